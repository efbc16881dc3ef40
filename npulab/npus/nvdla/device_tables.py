"""The simulated lookup tables of SDP and CDP, value by value in plain whole numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from npulab.captures.capture import Job
from npulab.npus.nvdla.device_cube import Values, whole
from npulab.registers.map import RegisterMap

ENTRIES = (65, 257)  # of LE and LO


class Found(NamedTuple):
    """What one table says of a value: ``side`` is -1 below it, 1 above it, 0 where it is hit."""

    value: int
    side: int


def nearest(value: int, shift: int) -> int:
    """A whole number over ``2**shift``, halves away from zero; a negative shift multiplies."""
    if shift <= 0:
        return value * 2 ** min(-shift, 64)
    size = abs(value) + 2 ** (shift - 1) >> shift
    return size if value >= 0 else -size


def clamp(value: int, bits: int) -> int:
    return max(-2 ** (bits - 1), min(value, 2 ** (bits - 1) - 1))


def loaded(jobs: Iterable[Job], registers: RegisterMap, unit: str) -> tuple[list[int], list[int]]:
    """Both tables as the register writes of jobs leave them, 0 where nothing was written."""
    names = {offset: name for block, offset, name in registers.registers if block == unit}
    tables: tuple[list[int], list[int]] = ([0] * ENTRIES[0], [0] * ENTRIES[1])
    place, table, writing = 0, 0, False
    for job in jobs:
        for offset, value in job.writes:
            if names.get(offset) == "S_LUT_ACCESS_CFG":
                place, table, writing = value % 1024, value // 2 ** 16 % 2, bool(value // 2 ** 17 % 2)
            elif names.get(offset) == "S_LUT_ACCESS_DATA" and writing:
                if place < ENTRIES[table]:
                    tables[table][place] = whole(value, 16)
                place += 1
    return tables


def looked_up(x: np.ndarray, v: Values, tables: tuple[list[int], list[int]], unit: str) -> np.ndarray:
    """The tables' answer for values of int64, each different one worked out once."""
    values, at = np.unique(x, return_inverse=True)
    out = [_one(int(value), v, tables, unit) for value in values]
    return np.array(out, np.int64)[at.reshape(-1)].reshape(x.shape)


def _one(value: int, v: Values, tables: tuple[list[int], list[int]], unit: str) -> int:
    le, lo = _le(value, v, tables[0], unit), _linear(value, v, tables[1], unit, "LO")
    say = {name: v[f"{unit}.S_LUT_CFG.LUT_{name}_PRIORITY"] for name in ("UFLOW", "OFLOW", "HYBRID")}
    if le.side == lo.side and le.side:
        return (le, lo)[say["UFLOW" if le.side < 0 else "OFLOW"]].value
    if (le.side == 0) != (lo.side == 0):
        return le.value if le.side == 0 else lo.value
    return (le, lo)[say["HYBRID"]].value


def _bound(v: Values, unit: str, name: str) -> int:
    if unit == "SDP":
        return whole(v[f"SDP.S_LUT_{name}.LUT_{name}"], 32)
    low, high = (v[f"CDP.S_LUT_{name}_{part}.LUT_{name}_{part}"] for part in ("LOW", "HIGH"))
    return whole(low % 2 ** 32 + high * 2 ** 32, 38)


def _le(value: int, v: Values, entries: list[int], unit: str) -> Found:
    if v[f"{unit}.S_LUT_CFG.LUT_LE_FUNCTION"]:
        return _linear(value, v, entries, unit, "LE")
    offset = whole(v[f"{unit}.S_LUT_INFO.LUT_LE_INDEX_OFFSET"], 8)
    start = _bound(v, unit, "LE_START")
    distance = value - start
    index = distance.bit_length() - 1 - offset
    if distance <= 0 or index < 0:
        least = 0 if unit == "CDP" else 1
        bias = 2 ** min(offset, 64) if offset >= least else 0
        return Found(_outside(value - start - bias, v, entries[0], unit, "LE", "UFLOW"), -1)
    if index >= len(entries) - 1:
        return Found(_outside(value - _bound(v, unit, "LE_END"), v, entries[-1], unit, "LE", "OFLOW"), 1)
    power = distance.bit_length() - 1
    return Found(_between(entries, index, distance - 2 ** power, power, unit), 0)


def _linear(value: int, v: Values, entries: list[int], unit: str, table: str) -> Found:
    select = whole(v[f"{unit}.S_LUT_INFO.LUT_{table}_INDEX_SELECT"], 8)
    start = _bound(v, unit, f"{table}_START")
    distance = value - start
    if distance <= 0:
        return Found(_outside(distance, v, entries[0], unit, table, "UFLOW"), -1)
    index = distance >> select if select >= 0 else distance * 2 ** -select
    if index >= len(entries) - 1:
        return Found(_outside(value - _bound(v, unit, f"{table}_END"), v, entries[-1], unit, table, "OFLOW"), 1)
    return Found(_between(entries, index, distance - index * 2 ** select if select > 0 else 0, max(select, 0), unit), 0)


def _between(entries: list[int], index: int, rest: int, bits: int, unit: str) -> int:
    """Between an entry and the next one, ``rest / 2**bits`` of the way."""
    one, other = entries[index], entries[index + 1]
    fine = 35 if unit == "SDP" else 16
    fraction = rest * 2 ** fine >> bits
    if unit == "SDP":
        return nearest(one * (2 ** fine - fraction) + other * fraction, fine)
    return clamp(one + nearest((other - one) * fraction, fine), 16)


def _outside(distance: int, v: Values, end: int, unit: str, table: str, side: str) -> int:
    """The end entry and what the slope adds to it."""
    scale = whole(v[f"{unit}.S_LUT_{table}_SLOPE_SCALE.LUT_{table}_SLOPE_{side}_SCALE"], 16)
    shift = whole(v[f"{unit}.S_LUT_{table}_SLOPE_SHIFT.LUT_{table}_SLOPE_{side}_SHIFT"], 5)
    if unit == "SDP":
        return clamp(end + clamp(nearest(distance * scale, shift), 32), 32)
    return clamp(end + clamp(nearest(distance * scale, shift), 26), 16)
