"""The two tables that SDP and CDP look a value up in: LE with 65 entries, LO with 257.

A table spans what its start and index registers say; a value below or above it follows a slope from
the end entry. Source: the LUT traces of nvdla/hw; nvdla/hw cmod/hls/sdp/sdp_y_idx.cpp,
sdp_y_inp.cpp and cmod/cdp/NV_NVDLA_cdp.cpp for what no trace tells.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from npulab.npus.kit import Unsupported, refuse_if, wrapped
from npulab.npus.nvdla.rules import POWERS, Rules, saturated, shifted, shifted_either_way
from npulab.npus.nvdla.units.fields import Fields

LE_ENTRIES, LO_ENTRIES = 65, 257
CDP_FRACTION = 16
MOST_BIAS = 40  # powers of two above it are beyond every value


class Tables(NamedTuple):
    """Entries as written: ``le`` (65,) and ``lo`` (257,) int16; ValueError for other shapes."""

    le: np.ndarray
    lo: np.ndarray

    @classmethod
    def of(cls, pair: tuple[np.ndarray, np.ndarray] | None) -> Tables:
        """Tables of a pair of arrays; Unsupported where there is none."""
        if pair is None:
            raise Unsupported("the tables are looked up, and none were given")
        le, lo = (np.asarray(table) for table in pair)
        refuse_if(
            le.shape != (LE_ENTRIES,) or lo.shape != (LO_ENTRIES,),
            "tables",
            f"{le.shape} and {lo.shape} entries",
            f"are ({LE_ENTRIES},) and ({LO_ENTRIES},)",
        )
        return cls(le.astype(np.int64), lo.astype(np.int64))


@dataclass(frozen=True)
class Slope:
    """What a value outside a table adds to the end entry: ``(value - bound) * scale /
    2**shift``."""

    bound: int
    scale: int
    shift: int


@dataclass(frozen=True)
class Table:
    """How one table is entered: ``start``, an exponent less ``offset`` or a distance over
    ``2**select``."""

    exponent: bool
    start: int
    offset: int
    select: int
    under: Slope
    over: Slope


@dataclass(frozen=True)
class Lookup:
    """Both tables and which one wins; ``fraction_bits`` of the way to the next entry are kept.

    ``at_once``: both weighted entries are added before the one rounding (SDP), else the step
    between them is rounded and added (CDP).
    """

    le: Table
    lo: Table
    under_lo: bool
    over_lo: bool
    hybrid_lo: bool
    fraction_bits: int
    at_once: bool

    @classmethod
    def of(cls, fields: Fields, unit: str, rules: Rules) -> Lookup:
        """From a unit's registers, ``unit`` being "SDP" or "CDP"."""
        cdp = unit == "CDP"

        def register(name: str, bits: int) -> int:
            """Of the name's last part, as a signed number."""
            return wrapped(fields[f"{unit}.{name}"], bits)

        def bound(name: str) -> int:
            if not cdp:
                return register(f"S_{name}.{name}", 32)
            high = fields[f"CDP.S_{name}_HIGH.{name}_HIGH"]
            return wrapped(high * 2**32 + fields[f"CDP.S_{name}_LOW.{name}_LOW"], 38)

        def slope(table: str, side: str, at: int) -> Slope:
            return Slope(
                at,
                register(f"S_LUT_{table}_SLOPE_SCALE.LUT_{table}_SLOPE_{side}_SCALE", 16),
                register(f"S_LUT_{table}_SLOPE_SHIFT.LUT_{table}_SLOPE_{side}_SHIFT", 5),
            )

        exponent = not fields[f"{unit}.S_LUT_CFG.LUT_LE_FUNCTION"]
        offset = register("S_LUT_INFO.LUT_LE_INDEX_OFFSET", 8)
        start, end = bound("LUT_LE_START"), bound("LUT_LE_END")
        # the first entry stands for the distance 2**offset; the SDP leaves out that of 1
        bias = 0
        if exponent and offset >= (0 if cdp else 1):
            bias = 2 ** min(offset, MOST_BIAS)
        le = Table(
            exponent,
            start,
            offset,
            register("S_LUT_INFO.LUT_LE_INDEX_SELECT", 8),
            slope("LE", "UFLOW", start + bias),
            slope("LE", "OFLOW", end),
        )
        start, end = bound("LUT_LO_START"), bound("LUT_LO_END")
        lo = Table(
            False,
            start,
            0,
            register("S_LUT_INFO.LUT_LO_INDEX_SELECT", 8),
            slope("LO", "UFLOW", start),
            slope("LO", "OFLOW", end),
        )
        under, over, hybrid = (
            bool(fields[f"{unit}.S_LUT_CFG.LUT_{name}_PRIORITY"]) and rules.priorities
            for name in ("UFLOW", "OFLOW", "HYBRID")
        )
        return cls(
            le, lo, under, over, hybrid, CDP_FRACTION if cdp else rules.fraction_bits, not cdp
        )


class Entered(NamedTuple):
    """Where values enter a table: entry, fraction, and whether they lie under or over it."""

    entry: np.ndarray
    fraction: np.ndarray
    under: np.ndarray
    over: np.ndarray


def looked_up(
    values: np.ndarray, tables: Tables, how: Lookup, rounding: str = "half-away"
) -> np.ndarray:
    """What the tables make of int64 values, of 32 bits in the SDP and 38 in CDP: int64, of 32 bits
    or 16."""
    le, lo = (
        entered(values, table, entries, how.fraction_bits)
        for table, entries in ((how.le, LE_ENTRIES), (how.lo, LO_ENTRIES))
    )
    both = how.hybrid_lo
    le_hit, lo_hit = ~(le.under | le.over), ~(lo.under | lo.over)
    wins_lo = np.where(le_hit == lo_hit, both, lo_hit)
    wins_lo = np.where(le.over & lo.over, how.over_lo, wins_lo)
    wins_lo = np.where(le.under & lo.under, how.under_lo, wins_lo)
    return np.where(
        wins_lo,
        read_out(values, tables.lo, how.lo, lo, how, rounding),
        read_out(values, tables.le, how.le, le, how, rounding),
    )


def entered(values: np.ndarray, table: Table, entries: int, fraction_bits: int) -> Entered:
    """Indices 0 to ``entries - 2`` and fractions of ``fraction_bits``, cut off; 0 where a value
    lies outside."""
    far = values - table.start
    under = far <= 0
    far = np.maximum(far, 1)
    if table.exponent:
        # frexp is exact: distances have fewer bits than a double
        exponent = np.frexp(far.astype(np.float64))[1].astype(np.int64) - 1
        index, rest = exponent - table.offset, far - POWERS[exponent]
        up = POWERS[np.maximum(fraction_bits - exponent, 0)]
        fraction = (rest * up) >> np.maximum(exponent - fraction_bits, 0)
        under = under | (index < 0)
    elif table.select < 0:
        index, fraction = far * 2 ** min(-table.select, 20), np.zeros_like(far)
    else:
        select = min(table.select, 62)
        index, rest = far >> select, far & (2**select - 1)
        fraction = rest * 2 ** max(fraction_bits - select, 0) >> max(
            table.select - fraction_bits, 0
        )
    over = ~under & (index >= entries - 1)
    inside = ~(under | over)
    return Entered(np.where(inside, index, 0), np.where(inside, fraction, 0), under, over)


def read_out(
    values: np.ndarray,
    entries: np.ndarray,
    table: Table,
    at: Entered,
    how: Lookup,
    rounding: str,
) -> np.ndarray:
    """The value between two entries, or along the slope from the end entry."""
    first, following = entries[at.entry], entries[at.entry + 1]
    step = (following - first) * at.fraction
    if how.at_once:
        out = shifted(first * 2**how.fraction_bits + step, how.fraction_bits, rounding)
    else:
        out = saturated(first + shifted(step, how.fraction_bits, rounding), 16)
    for outside, end, slope in (
        (at.under, entries[0], table.under),
        (at.over, entries[-1], table.over),
    ):
        if outside.any():
            away = shifted_either_way(
                (values - slope.bound) * slope.scale, slope.shift, 32, rounding
            )
            out = np.where(outside, saturated(end + away, 32 if how.at_once else 16), out)
    return out
