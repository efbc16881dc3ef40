"""The rules of the arithmetic as values; wrong rules that captures can tell from the right ones;
and functions that shift and saturate arrays of int64 as the data paths do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy import ndarray as Array

from npulab.npus.kit import read_table
from npulab.npus.nvdla.facts import HERE
from npulab.quant.rules import ROUNDINGS, shift_right

WEIGHT_ORDERS = ("grouped", "plain")
MOST_SHIFT = 62  # the largest shift that quant.shift_right accepts for values up to 2**62
POWERS = np.array([2**n for n in range(63)])


@dataclass(frozen=True)
class Rules:
    """The choices of the arithmetic; the defaults are the rules that the captures show.

    ``rounding`` is used for every right shift of the accumulator, the SDP's first two stages, its
    output converter and the averages, ``table_rounding`` for the third stage and the tables,
    ``cdp_rounding`` for CDP's converters. ``shift_while_bypassed``: a stage shifts even if its
    multiplier is bypassed. ``padding_lanes``: SDP writes lanes past the channels as computed, else
    as 0. ``pad_value``: taps of a convolution outside the input read the pad value, else 0.
    ``saturate_converter``: 17 bits after the output converter's shift. ``saturate_stages``: 32
    bits from stage to stage of SDP.  ``saturate_cdp``: 9 bits (17 for elements of two bytes) after
    CDP's input converter. ``priorities``: the tables' priority bits are heeded, else LE wins.
    ``fraction_bits``: bits of the way between entries of the SDP's tables. ``weight_order``:
    "grouped" in groups of kernels and blocks of channels, or "plain"; ``transposed``: rows and
    columns of kernels swapped. Raises ValueError for a rounding or an order that is not known.
    """

    rounding: str = "half-away"
    table_rounding: str = "half-away"
    cdp_rounding: str = "half-away"
    shift_while_bypassed: bool = True
    padding_lanes: bool = True
    pad_value: bool = True
    saturate_converter: bool = True
    saturate_stages: bool = True
    saturate_cdp: bool = True
    priorities: bool = True
    fraction_bits: int = 35
    weight_order: str = "grouped"
    transposed: bool = False

    def __post_init__(self) -> None:
        for name, allowed in (
            ("rounding", ROUNDINGS),
            ("table_rounding", ROUNDINGS),
            ("cdp_rounding", ROUNDINGS),
            ("weight_order", WEIGHT_ORDERS),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"{name}: got {getattr(self, name)!r}, allowed is one of {', '.join(allowed)}"
                )
        if not 1 <= self.fraction_bits <= 35:
            raise ValueError(f"fraction_bits: got {self.fraction_bits}, allowed is 1 to 35")


RULES = Rules()


def _changed(rule: str, value: str) -> Rules:
    """Return the rules with a rule changed to a value of ``mutations.csv``."""
    kind = type(getattr(RULES, rule))
    changed: Any = value
    if kind is not str:
        changed = kind(int(value))
    return replace(RULES, **{rule: changed})


_mutations = {"none": RULES}
for _row in read_table(HERE / "mutations.csv"):
    _mutations[_row["change"]] = _changed(_row["rule"], _row["value"])
MUTATIONS: Mapping[str, Rules] = MappingProxyType(_mutations)


def saturated(values: Any, bits: int) -> Array:
    """Return values saturated to signed ``bits``.

    >>> saturated(np.array([-200, 5, 200]), 8)
    array([-128,    5,  127])
    """
    return np.minimum(np.maximum(values, -(2 ** (bits - 1))), 2 ** (bits - 1) - 1)


def shifted(values: Array, shift: int, rounding: str) -> Array:
    """Return ``values / 2**shift`` rounded as named: int64, ``|values| <= 2**62``, a shift of 0 or
    more.

    >>> shifted(np.array([-5, 5]), 1, "half-away"), shifted(np.array([2 ** 62]), 63, "half-away")
    (array([-3,  3]), array([1]))
    """
    if shift == 0:
        return values
    if shift > MOST_SHIFT:
        # The lowest bit that is kept becomes 1 if any bit that is cut off is 1.
        cut = min(shift - MOST_SHIFT, 63)
        values, shift = values >> cut | (values & 2**cut - 1 != 0), MOST_SHIFT
    return shift_right(values, shift, rounding)


def shifted_either_way(values: Array, shift: int, bits: int, rounding: str) -> Array:
    """Return ``values / 2**shift``, rounded as by ``shifted``; a negative shift multiplies, by at
    most ``2**16``. The result is saturated to ``bits`` (at most 46).

    >>> shifted_either_way(np.array([-5, 5, 2 ** 40]), -3, 32, "half-away")
    array([       -40,         40, 2147483647])
    """
    if shift >= 0:
        return saturated(shifted(values, shift, rounding), bits)
    return saturated(saturated(values, bits) * 2 ** min(-shift, 16), bits)


def shifted_left(values: Any, shift: int, bits: int) -> Array:
    """Return 16-bit values times ``2**shift``, saturated to ``bits`` (at most 46).

    >>> shifted_left(np.array([-3, 0, 3]), 63, 32)
    array([-2147483648,           0,  2147483647])
    """
    return saturated(np.asarray(values, np.int64) * 2 ** min(shift, 46), bits)
