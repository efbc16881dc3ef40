"""Addition of two quantized tensors: both inputs are scaled to a common scale and added, then the
sum is scaled to the output's scale.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy import ndarray as Array

import npulab.quant.rules as known
from npulab.quant.emulate.engines import clamp_range, delegated, output_ratios
from npulab.quant.layers import Add
from npulab.quant.requantize import Requantizer, Scratch, requantize
from npulab.quant.rules import (
    FAMILIES,
    ROUNDINGS,
    RULES,
    DoubleRounding,
    Float32Bits,
    QuantParams,
    Rule,
    SingleRounding,
    positive,
    shift_right,
)
from npulab.support.refuse import refuse_if

GEMMLOWP = RULES["gemmlowp"]
# ``BLOCK`` is the most elements that are added at once. ``LEFT`` is the number of bits by which
# codes are shifted left before they are scaled; a key is the type of the codes.
BLOCK = 65_536
LEFT = {"int8": 20, "uint8": 20, "int16": 15}


class Body(NamedTuple):
    """The vector body of a kernel: it scales whole groups of ``group`` elements by ``rule``.

    ``bits`` is the width of the register that holds the sum of the two inputs.
    """

    rule: Rule
    group: int
    bits: int


# A key is an engine and a type, the value its vector body. Elements after the last whole group, and
# all elements in engines without a vector body, are computed by gemmlowp's rule (measured:
# ai-edge-litert 2.3.0, x86).
BODIES = {
    ("tflite-builtin", "int8"): Body(SingleRounding("body"), 16, 16),
    ("tflite-builtin", "uint8"): Body(DoubleRounding("body", ties="floor"), 8, 16),
    ("tflite-builtin", "int16"): Body(SingleRounding("body"), 16, 32),
}
# TensorFlow Lite's builtin kernels compute the additions that XNNPACK does not take
BODIES |= {("xnnpack", dtype): body for (_, dtype), body in BODIES.items()}
RULED = ("tflite-reference", "tflite-builtin", "xnnpack", "tflite-micro", "gemmlowp")
# ONNX Runtime adds codes of 8 bits in float32 (measured: onnxruntime 1.32.0, x86, AVX512)
IN_FLOATS = "onnxruntime"
# The width in bits of the larger of the two inputs' multipliers, in XNNPACK and in QNNPACK.
XNNPACK_BITS, QNNPACK_BITS = 21, 22
# If an addition is computed as a convolution, the input with the larger scale has the weight 255.
HEAVIEST = 255


class Weights(NamedTuple):
    """An addition as a convolution: ``one * (a - zero) + other * (b - zero) + bias``, in units of
    ``scale`` times the first input's scale.

    ``a`` and ``b`` are codes of the two inputs; ``zero`` is the first input's zero point for both.
    """

    one: int
    other: int
    bias: int
    scale: float


def weighted(layer: Add) -> Weights:
    """Return the addition as a convolution with whole numbers as weights, for engines that have no
    addition.

    >>> weighted(Add((2,), None, QuantParams(0.5, 3), QuantParams(1.0, 5), QuantParams(1.0)))[:3]
    (127, 255, -510)
    """
    first, second = (np.float32(single(q)) for q in (layer.input_q, layer.other_q))
    ratio = second / first
    scale = np.float32(float(max(ratio, np.float32(1))) / HEAVIEST)
    between = float(np.float32(layer.input_q.zero_point - layer.other_q.zero_point) * second)
    return Weights(
        away(1 / float(scale)),
        away(float(ratio) / float(scale)),
        away(between / float(scale * first)),
        float(scale),
    )


def away(value: float) -> int:
    """Return the nearest whole number, halves rounded away from zero."""
    return int(math.copysign(math.floor(abs(value) + 0.5), value))


def weighs(rule: str | Rule) -> bool:
    """True if a rule belongs to an engine that computes an addition as a convolution."""
    name = rule
    if isinstance(rule, Rule):
        name = rule.name
    return isinstance(name, str) and name in RULES and name.partition(":")[0] in FAMILIES


class Addition:
    """An ``Add`` of codes, prepared for many calls."""

    def __init__(self, layer: Add, dtype: np.dtype, rule: str | Rule) -> None:
        eight = dtype.name in ("int8", "uint8")
        by = None
        if known.is_rule(rule):
            by = known.rule(rule)
        self.qnnpack = eight and isinstance(by, Float32Bits)
        self.in_floats = eight and rule == IN_FLOATS
        if isinstance(by, DoubleRounding) and by.ties == GEMMLOWP.ties:
            # an addition forms its multipliers itself, so that a rule with gemmlowp's rounding
            # gives the same outputs as gemmlowp, whatever its order of scales
            rule = GEMMLOWP.name
        ruled = (isinstance(rule, str) and rule in RULED) or self.in_floats
        if not (eight and weighs(rule)) and not ruled:
            convolved = [f"{family}:{ties}" for family in FAMILIES for ties in ROUNDINGS]
            raise LookupError(
                f"rule: got {rule!r}, allowed with {layer} is one of "
                f"{', '.join((*RULED, IN_FLOATS, *convolved))}"
            )
        for name in ("input", "other", "output"):
            scale = np.asarray(getattr(layer, f"{name}_q").scale)
            with np.errstate(over="ignore", under="ignore"):
                positive(f"{name} scale", scale, scale.astype(np.float32))
        self.layer, self.dtype = layer, dtype
        self.rule = RULES[rule.name if isinstance(rule, Rule) else rule] if weighs(rule) else None
        self.fixed = None
        if rule == "xnnpack" and delegated(layer, dtype):
            self.fixed = fixed_point(layer, XNNPACK_BITS)
        elif self.qnnpack:
            _refuse_ratios(layer)
            self.fixed = fixed_point(layer, QNNPACK_BITS)
        self.low, self.high = clamp_range(layer, dtype, rule)
        self.body = None
        if self.rule:
            self.weights = weighted(layer)
            self.factors = self.rule.multiplier(
                layer.input_q.scale, self.weights.scale, layer.output_q.scale
            )
            return
        self.body = None if self.fixed else BODIES.get((str(rule), dtype.name))
        self.first = int(np.iinfo(dtype).min)
        if self.fixed is None and not self.in_floats:
            rules = [GEMMLOWP, *([self.body.rule] if self.body else [])]
            self.stages = {rule: self._tables(rule) for rule in rules}
            self.factors = output_multiplier(layer, dtype)
            limits = self.low, self.high
            self.ready = Requantizer.of(
                GEMMLOWP, self.factors, layer.output_q.zero_point, limits, 1
            )

    def __call__(self, pair: tuple[Array, Array]) -> Array:
        """Return the sums of a pair of tensors, in their type."""
        a, b = (one.reshape(-1) for one in pair)
        out = np.empty(a.shape, self.dtype)
        if self.body is None:
            whole = 0
        else:
            whole = a.size // self.body.group * self.body.group
        for start in range(0, a.size, BLOCK):
            end = min(start + BLOCK, a.size)
            if self.rule:
                out[start:end] = self._weighted(a[start:end], b[start:end], self.rule)
                continue
            if self.in_floats:
                out[start:end] = self._floats(a[start:end], b[start:end])
                continue
            if self.fixed:
                out[start:end] = self._fixed(a[start:end], b[start:end])
                continue
            for first, last, body in (
                (start, min(end, whole), self.body),
                (max(start, whole), end, None),
            ):
                if first < last:
                    out[first:last] = self._scaled(a[first:last], b[first:last], body)
        return out.reshape(pair[0].shape)

    def _tables(self, rule: Rule) -> tuple[Array, Array]:
        """Return a table for each of the two inputs, int64: item n is the value, on the common
        scale, of the n-th code counted from the lowest.
        """
        codes = np.arange(self.first, int(np.iinfo(self.dtype).max) + 1)
        return tuple(
            scaled_input(codes, q, self.layer, self.dtype, rule)  # type: ignore[return-value]
            for q in (self.layer.input_q, self.layer.other_q)
        )

    def _scaled(self, a: Array, b: Array, body: Body | None) -> Array:
        one, other = self.stages[body.rule if body else GEMMLOWP]
        sums = one[a.astype(np.intp) - self.first] + other[b.astype(np.intp) - self.first]
        if body is not None and body.bits == 16:
            codes = GEMMLOWP.exact(sums, *self.factors, self.layer.output_q.zero_point)
            return wrapped16(codes).clip(self.low, self.high)
        out = np.empty((len(sums), 1), np.int64)
        self.ready.recompute(*self.ready(sums.astype(np.float64)[:, None], out, Scratch()), out)
        return out[:, 0]

    def _weighted(self, a: Array, b: Array, rule: Rule) -> Array:
        zero, weights = self.layer.input_q.zero_point, self.weights
        sums = (
            (a.astype(np.int64) - zero) * weights.one
            + (b.astype(np.int64) - zero) * weights.other
            + weights.bias
        )
        return requantize(
            sums, rule, *self.factors, self.layer.output_q.zero_point, self.low, self.high
        )

    def _fixed(self, a: Array, b: Array) -> Array:
        assert self.fixed is not None
        one, other, shift = self.fixed
        layer = self.layer
        # with QNNPACK's multipliers of 22 bits the sum of both products nearly fills int32, so that
        # the rounding needs int64
        kind = "int32"
        if self.qnnpack:
            kind = "int64"
        sums = (a.astype(kind) - layer.input_q.zero_point) * one
        sums += (b.astype(kind) - layer.other_q.zero_point) * other
        if self.qnnpack:
            codes = shift_right(sums, shift, "half-away")
        else:
            sums += 2 ** (shift - 1)
            codes = sums >> shift
        return (codes + layer.output_q.zero_point).clip(self.low, self.high)

    def _floats(self, a: Array, b: Array) -> Array:
        """Return the sums, computed in float32 in the kernel's order.

        The kernel rounds the second input's scaled zero point by itself. Every other product is
        fused with the addition after it: product and sum are rounded once.
        """
        layer = self.layer
        output = np.float32(single(layer.output_q))
        one, other = (np.float32(single(q)) / output for q in (layer.input_q, layer.other_q))
        zeros = other * np.float32(layer.other_q.zero_point)
        # float64 holds the product exactly, so that product and sum are rounded once
        zeros = np.float32(np.float64(one) * layer.input_q.zero_point + np.float64(zeros))
        sums = np.full(a.shape, np.float32(layer.output_q.zero_point) - zeros)
        for codes, ratio in ((b, other), (a, one)):
            sums = (codes * np.float64(ratio) + sums).astype(np.float32)
        return np.rint(sums).clip(self.low, self.high)


def single(q: QuantParams) -> float:
    """Return a scale as models store it, float32."""
    return float(np.asarray(q.scale, np.float32))


def common_scale(layer: Add) -> float:
    """Return the scale to which both inputs are scaled: twice the larger of the two input
    scales.
    """
    return 2 * max(single(layer.input_q), single(layer.other_q))


def scaled_input(codes: Array, q: QuantParams, layer: Add, dtype: np.dtype, rule: Rule) -> Array:
    """Return the codes of one input on the common scale, int64."""
    multiplier, right_shift = rule.of_ratio(np.asarray(single(q) / common_scale(layer)))
    moved = (codes - q.zero_point) * 2 ** LEFT[dtype.name]
    return rule.exact(moved.astype(np.int32), multiplier, right_shift)


def output_multiplier(layer: Add, dtype: np.dtype) -> tuple[Array, Array]:
    """Return (multiplier, right_shift) from the common scale to the output's scale; raises
    ValueError if their ratio is 1 or more.
    """
    left = LEFT[dtype.name]
    ratio = common_scale(layer) / (2.0**left * single(layer.output_q))
    if ratio >= 1:
        raise ValueError(
            f"output_q: got scale {layer.output_q.scale}, allowed with input scales of "
            f"{layer.input_q.scale} and {layer.other_q.scale} is a scale above the larger of "
            f"them divided by {2 ** (left - 1)}"
        )
    return GEMMLOWP.of_ratio(np.asarray(ratio))


def fixed_point(layer: Add, bits: int) -> tuple[int, int, int]:
    """Return (multiplier of the first input, multiplier of the second input, right shift) for the
    addition of XNNPACK and QNNPACK. The larger multiplier has ``bits`` bits.
    """
    ratios = output_ratios(layer)
    shift = bits - int(np.frexp(max(ratios))[1])
    one, other = (int(np.rint(ratio * 2.0**shift)) for ratio in ratios)
    return one, other, shift


def _refuse_ratios(layer: Add) -> None:
    """Raise ValueError if an input's scale, divided by the output's scale, is a ratio with which
    QNNPACK creates no addition.
    """
    for ratio in output_ratios(layer):
        allowed = "is 2**-14 up to 2**8, 2**8 excluded, with qnnpack-q31"
        wrong = not 2.0**-14 <= ratio < 2.0**8
        refuse_if(
            wrong, "scale of an input divided by the scale of the output", f"{ratio:.6g}", allowed
        )


def wrapped16(values: Array) -> Array:
    """Return whole numbers wrapped to the range of a signed 16-bit register."""
    return values.astype(np.int16).astype(np.int64)
