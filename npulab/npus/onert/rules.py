"""The rounding rule of a path's multiplications, and the multipliers that it forms."""

from __future__ import annotations

import numpy as np
from numpy import ndarray as Array

from npulab.npus.kit import Capture
from npulab.npus.onert.facts import CHIPS
from npulab.npus.onert.words import HYBRID, values_of
from npulab.quant.emulate.real import symmetric
from npulab.quant.layers import FullyConnected, per_channel
from npulab.quant.rules import rule

SEPARATE, FUSED_RULE = "hybrid-float32", "hybrid-float32:fused"
# TensorFlow Lite multiplies the scales of a tensor in float32, the scales of channels in float64.
ORDERS = {False: "P", True: "D"}


def rule_of(capture: Capture) -> str:
    """Return the rounding rule of a capture's multiplication; raise as ``lift``."""
    v = values_of(capture)
    if v["operation"] == HYBRID:
        if v["fused_multiply_add"]:
            return FUSED_RULE
        return SEPARATE
    return rule_name(capture.chip, bool(v["per_channel"]))


def rule_name(chip: str, channels: bool) -> str:
    """Return the rule of a path's quantized products: Arm rounds once, x86 twice."""
    name = "ruy-x86"
    if CHIPS[chip].get("one_rounding"):
        name = "single-half-up"
    return f"{name}:{ORDERS[channels]}"


def quantized_rows(x: Array) -> tuple[Array, Array]:
    """Return (codes int8, a float32 scale for each row) of rows ``(batches, n)`` float32; the
    largest size of a row becomes 127.

    Raises ValueError for a number that is not finite, and for a row so small that 127 divided by
    its largest size overflows: the runtime's result is then undefined in C++.
    """
    largest = np.abs(x).max(1)
    with np.errstate(over="ignore", divide="ignore"):
        inverse = np.float32(127) / largest
    fits = (largest == 0) | (np.isfinite(largest) & np.isfinite(inverse))
    if not np.all(fits):
        wrong = int(np.flatnonzero(~fits)[0])
        raise ValueError(
            f"x: got a largest size of {largest[wrong]} in row {wrong}, allowed is 0, or a finite "
            "number that 127 can be divided by in float32"
        )
    return symmetric(x)


def multipliers(layer: FullyConnected, chip: str) -> tuple[Array, Array]:
    """Return (fixed-point multipliers, exponents) int64, a single pair or one for each channel:
    ``multiplier * 2**(exponent - 31)``.

    Raises ValueError for scales for which the rule has no multiplier.
    """
    by = rule(rule_name(chip, per_channel(layer.weight_q.scale)))
    fixed, right_shift = by.multiplier(
        layer.input_q.scale, layer.weight_q.scale, layer.output_q.scale
    )
    return np.atleast_1d(fixed), -np.atleast_1d(right_shift)
