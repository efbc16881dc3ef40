"""The two lookup tables of SDP and CDP: LE with 65 entries, LO with 257.

A table spans what its start and index registers say; a value below or above it follows a slope from
the end entry. Source: the LUT traces of nvdla/hw; nvdla/hw cmod/hls/sdp/sdp_y_idx.cpp,
sdp_y_inp.cpp and cmod/cdp/NV_NVDLA_cdp.cpp for what no trace shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy import ndarray as Array

from npulab.npus.kit import Unsupported, refuse_if, wrapped
from npulab.npus.nvdla.facts import Lut
from npulab.npus.nvdla.rules import POWERS, Rules, saturated, shifted, shifted_either_way
from npulab.npus.nvdla.units.fields import Fields

LE_ENTRIES, LO_ENTRIES = 65, 257
CDP_FRACTION = 16
# How many bits CDP on int8 chips keeps of the start of a table: CDP_START_BITS for the index, which
# counts from the start, CDP_BOUND_BITS for the slopes outside the table. The shift of the index
# keeps CDP_SELECT_BITS. Source: the RTL of nv_large
# (CDP_DP_LUT_CTRL_unit, INTP_unit).
CDP_START_BITS, CDP_SELECT_BITS, CDP_BOUND_BITS = 22, 6, 39
CDP_NO_SHIFT = -32  # the select whose magnitude does not fit the shifter of LO
MOST_BIAS = 40  # the largest exponent that counts: greater powers of two are beyond every value


class Tables(NamedTuple):
    """Entries as written: ``le`` (65,) and ``lo`` (257,) int16; ValueError for other shapes."""

    le: Array
    lo: Array

    @classmethod
    def of(cls, pair: Lut | None) -> Tables:
        """Return the tables of a pair of arrays; Unsupported without a pair."""
        if pair is None:
            raise Unsupported("the tables are looked up, and none were given")
        le, lo = map(np.asarray, pair)
        refuse_if(
            le.shape != (LE_ENTRIES,) or lo.shape != (LO_ENTRIES,),
            "tables",
            f"{le.shape} and {lo.shape} entries",
            f"are ({LE_ENTRIES},) and ({LO_ENTRIES},)",
        )
        return cls(le.astype(np.int64), lo.astype(np.int64))


@dataclass(frozen=True)
class Slope:
    """The slope that a value outside a table adds to the end entry: ``(value - bound) * scale /
    2**shift``."""

    bound: int
    scale: int
    shift: int


@dataclass(frozen=True)
class Index:
    """How values become indices of a table: from ``start``, an exponent less ``offset``, or a
    distance over ``2**select``."""

    exponent: bool
    start: int
    offset: int
    select: int
    under: Slope
    over: Slope


@dataclass(frozen=True)
class Lookup:
    """The indices of both tables and which table wins; ``fraction_bits`` of the way to the next
    entry are kept.

    ``at_once``: both weighted entries are added before a single rounding (SDP), else the step
    between them is rounded and added (CDP).
    """

    le: Index
    lo: Index
    under_lo: bool
    over_lo: bool
    hybrid_lo: bool
    fraction_bits: int
    at_once: bool

    @classmethod
    def of(cls, fields: Fields, unit: str, rules: Rules) -> Lookup:
        """Return the lookup of a unit's registers; ``unit`` is "SDP" or "CDP"."""
        cdp = unit == "CDP"
        registers = _Registers(fields, unit, cdp and not fields.features.get("full_map"))
        priority = f"{unit}.S_LUT_CFG.LUT_{{}}_PRIORITY".format
        names = "UFLOW", "OFLOW", "HYBRID"
        wins = [rules.priorities and bool(fields[priority(name)]) for name in names]
        fraction_bits = rules.fraction_bits
        if cdp:
            fraction_bits = CDP_FRACTION
        under_lo, over_lo, hybrid_lo = wins
        return cls(
            registers.index("LE"),
            registers.index("LO"),
            under_lo,
            over_lo,
            hybrid_lo,
            fraction_bits,
            not cdp,
        )


@dataclass(frozen=True)
class _Registers:
    """The table registers of a unit, "SDP" or "CDP"; ``short`` if the index keeps few bits: in CDP
    of chips for int8 alone."""

    fields: Fields
    unit: str
    short: bool

    def number(self, name: str, bits: int) -> int:
        """Return a register as a signed number."""
        return wrapped(self.fields[f"{self.unit}.{name}"], bits)

    def bound(self, name: str) -> int:
        if self.unit == "SDP":
            return self.number(f"S_{name}.{name}", 32)
        high = self.fields[f"CDP.S_{name}_HIGH.{name}_HIGH"]
        return wrapped(high * 2**32 + self.fields[f"CDP.S_{name}_LOW.{name}_LOW"], 38)

    def slope(self, table: str, side: str, at: int) -> Slope:
        name = f"S_LUT_{table}_SLOPE_{{0}}.LUT_{table}_SLOPE_{side}_{{0}}".format
        return Slope(at, self.number(name("SCALE"), 16), self.number(name("SHIFT"), 5))

    def index(self, table: str) -> Index:
        """Return the index of "LE" or "LO"; only LE may be of exponents."""
        start, end = self.bound(f"LUT_{table}_START"), self.bound(f"LUT_{table}_END")
        select = f"S_LUT_INFO.LUT_{table}_INDEX_SELECT"
        exponent = False
        offset = 0
        under = start
        if table == "LE":
            exponent = not self.fields[f"{self.unit}.S_LUT_CFG.LUT_LE_FUNCTION"]
            offset = self.number("S_LUT_INFO.LUT_LE_INDEX_OFFSET", 8)
        # The first entry stands for the distance 2**offset; the SDP leaves out the distance 1.
        if exponent and offset >= int(self.unit == "SDP"):
            under += 2 ** min(offset, MOST_BIAS)
        shift = self.number(select, 8)
        counted = start
        if self.short:
            shift = self.number(select, CDP_SELECT_BITS)
            counted = wrapped(start, CDP_START_BITS)
            under = wrapped(under, CDP_BOUND_BITS)
            if table == "LO" and shift == CDP_NO_SHIFT:
                shift = 0
        sides = self.slope(table, "UFLOW", under), self.slope(table, "OFLOW", end)
        return Index(exponent, counted, offset, shift, *sides)


class Entered(NamedTuple):
    """The entries and fractions of values in a table, and masks of values under or over it."""

    entry: Array
    fraction: Array
    under: Array
    over: Array


def looked_up(values: Array, tables: Tables, how: Lookup, rounding: str = "half-away") -> Array:
    """Return the tables' results for int64 values, of 32 bits in the SDP and 38 in CDP: int64, of
    32 bits or 16."""
    le = entered(values, how.le, LE_ENTRIES, how.fraction_bits)
    lo = entered(values, how.lo, LO_ENTRIES, how.fraction_bits)
    le_hit = ~(le.under | le.over)
    lo_hit = ~(lo.under | lo.over)
    # A later line overrules an earlier one. The hybrid priority decides about a value that both
    # tables hit, or miss on different sides.
    wins_lo = np.where(le_hit == lo_hit, how.hybrid_lo, lo_hit)
    wins_lo = np.where(le.over & lo.over, how.over_lo, wins_lo)
    wins_lo = np.where(le.under & lo.under, how.under_lo, wins_lo)
    return np.where(
        wins_lo,
        read_out(values, tables.lo, how.lo, lo, how, rounding),
        read_out(values, tables.le, how.le, le, how, rounding),
    )


def entered(values: Array, table: Index, entries: int, fraction_bits: int) -> Entered:
    """Return indices 0 to ``entries - 2`` and fractions of ``fraction_bits``, truncated; 0 for
    values outside."""
    far = values - table.start
    under = far <= 0
    # Values under the table are replaced later; until then 1 keeps the powers of two in range.
    far = np.maximum(far, 1)
    if table.exponent:
        # frexp is exact: distances have fewer bits than a double.
        exponent = np.frexp(far.astype(np.float64))[1].astype(np.int64) - 1
        index, rest = exponent - table.offset, far - POWERS[exponent]
        up = POWERS[np.maximum(fraction_bits - exponent, 0)]
        fraction = (rest * up) >> np.maximum(exponent - fraction_bits, 0)
        under = under | (index < 0)
    elif table.select < 0:
        index, fraction = far * 2 ** min(-table.select, 20), np.zeros_like(far)
    else:
        # The register allows shifts that int64 does not; 62 already moves every bit out.
        select = min(table.select, 62)
        index, rest = far >> select, far & (2**select - 1)
        fraction = rest * 2 ** max(fraction_bits - select, 0)
        fraction >>= max(table.select - fraction_bits, 0)
    over = ~under & (index >= entries - 1)
    inside = ~(under | over)
    return Entered(np.where(inside, index, 0), np.where(inside, fraction, 0), under, over)


def read_out(
    values: Array,
    entries: Array,
    table: Index,
    at: Entered,
    how: Lookup,
    rounding: str,
) -> Array:
    """Return the value between two entries, or along the slope from the end entry."""
    first, following = entries[at.entry], entries[at.entry + 1]
    step = (following - first) * at.fraction
    if how.at_once:
        bits, out = 32, shifted(first * 2**how.fraction_bits + step, how.fraction_bits, rounding)
    else:
        bits, out = 16, saturated(first + shifted(step, how.fraction_bits, rounding), 16)
    sides = (at.under, entries[0], table.under), (at.over, entries[-1], table.over)
    for outside, end, slope in sides:
        if outside.any():
            risen = (values - slope.bound) * slope.scale
            away = shifted_either_way(risen, slope.shift, 32, rounding)
            out = np.where(outside, saturated(end + away, bits), out)
    return out
