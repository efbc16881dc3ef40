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
# TensorFlow Lite multiplies scales in float32 if weights have one scale, in float64 if they have a
# scale per channel. Key: scales per channel. Value: the ending of the rule's name.
ORDERS = {False: "P", True: "D"}


def rule_of(capture: Capture) -> str:
    """Return the name of the rounding rule of a capture's multiplication. Raises as
    ``values_of``."""
    v = values_of(capture)
    if v["operation"] == HYBRID:
        if v["fused_multiply_add"]:
            return FUSED_RULE
        return SEPARATE
    return rule_name(capture.chip, bool(v["per_channel"]))


def rule_name(chip: str, channels: bool) -> str:
    """Return the name of the rule that scales the sums of a quantized layer: paths of Arm round
    once, paths of x86 twice. ``channels`` is True for a scale per channel."""
    name = "ruy-x86"
    if CHIPS[chip].get("one_rounding"):
        name = "single-half-up"
    return f"{name}:{ORDERS[channels]}"


def quantized_rows(x: Array) -> tuple[Array, Array]:
    """Return (int8 codes, a float32 scale for each row) of rows ``(batches, n)`` float32; the
    number with the largest magnitude in a row becomes 127 or -127.

    Raises ValueError for a number that is not finite, and for a row whose largest magnitude is so
    small that 127 divided by it overflows: the runtime's result is then undefined in C++.
    """
    largest = np.abs(x).max(1)
    with np.errstate(over="ignore", divide="ignore"):
        inverse = np.float32(127) / largest
    fits = (largest == 0) | (np.isfinite(largest) & np.isfinite(inverse))
    if not np.all(fits):
        wrong = int(np.flatnonzero(~fits)[0])
        raise ValueError(
            f"x: got a largest magnitude of {largest[wrong]} in row {wrong}, allowed is 0, or a "
            "finite number by which 127 can be divided in float32"
        )
    return symmetric(x)


def multipliers(layer: FullyConnected, chip: str) -> tuple[Array, Array]:
    """Return (fixed-point multipliers, exponents), two int64 arrays with one element or an element
    for each channel. A factor is ``multiplier * 2**(exponent - 31)``.

    Raises ValueError for scales that the path's rule has no multiplier for.
    """
    by = rule(rule_name(chip, per_channel(layer.weight_q.scale)))
    fixed, right_shift = by.multiplier(
        layer.input_q.scale, layer.weight_q.scale, layer.output_q.scale
    )
    return np.atleast_1d(fixed), -np.atleast_1d(right_shift)
