"""The arithmetic's rules as values, and the wrong rules that captures can tell from the right
ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from npulab.quant.rules import ROUNDINGS

WEIGHT_ORDERS = ("grouped", "plain")


@dataclass(frozen=True)
class Rules:
    """What the units do where they could do otherwise; the defaults are what the captures show.

    ``rounding`` is that of every right shift of the accumulator, the SDP's first two stages, its
    output converter and the averages, ``table_rounding`` that of the third stage and of the tables,
    ``cdp_rounding`` that of CDP's converters.  ``shift_while_bypassed``: a stage shifts although
    its multiplier is bypassed.  ``padding_lanes``: SDP gives lanes past the channels as computed,
    else as 0.  ``pad_value``: taps of a convolution outside the input read the pad value, else 0.
    ``saturate_converter``: 17 bits after the output converter's shift.  ``saturate_stages``: 32
    bits from stage to stage of SDP.  ``saturate_cdp``: 9 bits (17 for elements of two bytes) after
    CDP's input converter.  ``priorities``: the tables' priority bits are heeded, else LE wins.
    ``fraction_bits``: of the way from one entry of the SDP's tables to the next.  ``weight_order``:
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
        for name, allowed in (("rounding", ROUNDINGS), ("table_rounding", ROUNDINGS), ("cdp_rounding", ROUNDINGS),
                              ("weight_order", WEIGHT_ORDERS)):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}: got {getattr(self, name)!r}, allowed is one of {', '.join(allowed)}")
        if not 1 <= self.fraction_bits <= 35:
            raise ValueError(f"fraction_bits: got {self.fraction_bits}, allowed is 1 to 35")


RULES = Rules()
# one rule changed at a time; a capture that stays equal under one does not prove the rule
MUTATIONS: Mapping[str, Rules] = MappingProxyType({
    "none": RULES,
    "floor": Rules(rounding="floor"),
    "half up": Rules(rounding="half-up"),
    "half to even": Rules(rounding="half-even"),
    "toward zero": Rules(rounding="toward-zero"),
    "no shift while the multiplier is bypassed": Rules(shift_while_bypassed=False),
    "weights as plain K, R, S, C": Rules(weight_order="plain"),
    "kernel rows and columns swapped": Rules(transposed=True),
    "padding lanes as zero": Rules(padding_lanes=False),
    "pad value 0": Rules(pad_value=False),
    "no 17-bit saturation": Rules(saturate_converter=False),
    "no 32-bit saturation": Rules(saturate_stages=False),
    "no 9-bit saturation in CDP": Rules(saturate_cdp=False),
    "floor in tables and EW": Rules(table_rounding="floor"),
    "half up in tables and EW": Rules(table_rounding="half-up"),
    "floor in CDP's converters": Rules(cdp_rounding="floor"),
    "half up in CDP's converters": Rules(cdp_rounding="half-up"),
    "16-bit fraction in the SDP's tables": Rules(fraction_bits=16),
    "priorities of tables ignored": Rules(priorities=False),
})
