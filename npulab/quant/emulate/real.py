"""Layers whose input and output are real numbers: hybrid layers with int8 weights, and float16
layers.

In a hybrid layer the input is quantized when it arrives and the products are summed in whole
numbers. The sums are scaled in float32, and each operation is rounded by itself. ``NAMED`` are the
two variants of this for a fully connected layer. In a float16 layer the rule says how the sum is
computed: in float32, one product after the other, or exactly with one rounding at the end
(``exact``). NaN and infinities are treated as in IEEE 754, and every NaN in the output is 0x7E00.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy import ndarray as Array

from npulab.quant.emulate.elements import activation, elementwise
from npulab.quant.emulate.engines import REAL
from npulab.quant.emulate.exact import columns, summed
from npulab.quant.emulate.pooling import real_pool
from npulab.quant.emulate.quantized import accumulate
from npulab.quant.emulate.sliding import windows
from npulab.quant.layers import (
    Activation,
    Add,
    Concat,
    Conv1D,
    Conv2D,
    Elementwise,
    FullyConnected,
    Layer,
    Operation,
    Pool2D,
    Weighted,
    per_channel,
)
from npulab.quant.rules import QuantParams, Rule, half_away

F = np.float32
# TensorFlow Lite's builtin kernels work on several numbers at once: the loop that quantizes an
# input rounds ``VECTOR`` values, the depthwise kernel scales ``GROUP`` channels.
VECTOR = 8
GROUP = 4
HYBRID = ("hybrid-float32", "tflite-reference", "tflite-builtin", "xnnpack")
# Variants of a fully connected layer. Fused: the last product plus the bias is rounded once, as
# compilers for AArch64 may do it. Portable: all inputs are rounded exactly half away, as portable
# loops do it, while vector loops add a half in float32.
FUSED, PORTABLE = NAMED = ("hybrid-float32:fused", "hybrid-float32:portable")
SEQUENTIAL = ("tflite-reference", "tflite-micro")


def hybrid(layer: Weighted, images: Array, rule: str | Rule) -> Array:
    """Return the output ``(N, H, W, C)`` float32 of images ``(N, H, W, C)`` float32.

    Every image, or row of a fully connected layer, is quantized with a scale of its own. Its codes
    have the zero point 0 if the weights have one scale, or if the layer is fully connected; else
    the image has a zero point of its own.
    Source: tensorflow/lite/kernels/{conv,depthwise_conv,fully_connected}.cc, XNNPACK qd8 operators,
    measured; for the variants of a fully connected layer
    Samsung/ONE:compute/cker/include/cker/{NeonTensorUtils,PortableTensorUtils}.h. Raises
    LookupError for an unknown rule, ValueError for an image or row whose scale has no reciprocal in
    float32.
    """
    flat = isinstance(layer, FullyConnected)
    allowed: tuple[str, ...] = HYBRID
    if flat:
        allowed += NAMED
    _refuse_rule(layer, rule, allowed, "float32")
    rows = images
    if flat:
        rows = images.reshape(-1, images.shape[-1])
    # large scales give infinities, and the difference of two infinities is NaN
    with np.errstate(over="ignore", invalid="ignore"):
        if rule == "xnnpack" and layer.op != "depthwise":
            out = _fused(layer, rows)
        else:
            out = _separate(layer, rows, str(rule))
            # a convolution without an activation clamps to the finite numbers
            if not flat:
                out = out.clip(np.finfo(F).min, np.finfo(F).max)
    if flat:
        out = out.reshape(*images.shape[:3], -1)
    return _clamped(layer, out)


def _refuse_rule(layer: Layer, rule: Any, allowed: tuple[str, ...], dtype: str) -> None:
    if not isinstance(rule, str) or rule not in allowed:
        raise LookupError(
            f"rule: got {rule!r}, allowed with {layer} of {dtype} is one of {', '.join(allowed)}"
        )


def _separate(layer: Weighted, rows: Array, rule: str) -> Array:
    """Return the output by TensorFlow Lite's own kernels: each operation is rounded by itself."""
    weight = np.asarray(layer.weight_q.scale, F)
    flat = isinstance(layer, FullyConnected)
    # if all rows are 0 the output is the bias itself, even a bias of -0
    if flat and not rows.any():
        return np.broadcast_to(layer.bias, (len(rows), len(layer.bias)))
    several = per_channel(layer.weight_q.scale) and len(set(weight.tolist())) > 1
    if flat or (layer.op == "conv" and not several):
        codes, scale = symmetric(rows, rule == PORTABLE)
        sums = _sums(layer, codes, np.zeros(len(rows), int))
        scale = _column(scale, sums) * weight
        if rule == FUSED:
            return multiply_add(sums, scale, layer.bias)
        return sums * scale + layer.bias
    codes, scale, zeros = asymmetric(rows)
    sums = _sums(layer, codes, zeros)
    scale = _column(scale, sums)
    # XNNPACK leaves depthwise convolutions to the builtin kernels
    builtin = rule in ("tflite-builtin", "xnnpack")
    if layer.op == "conv" and not builtin:
        scaled = (sums * weight) * scale
    elif layer.op != "conv" and builtin:
        # whole groups of four channels are multiplied in another order than the channels after them
        scaled = (sums * weight) * scale
        body = sums.shape[-1] // GROUP * GROUP
        scaled[..., body:] = ((sums * scale) * weight)[..., body:]
    else:
        scaled = sums * (scale * weight)
    return scaled + layer.bias


def symmetric(rows: Array, portable: bool = False) -> tuple[Array, Array]:
    """Return (codes int8, scales float32) of rows ``(N, ...)``: the largest absolute value of a row
    becomes 127.

    With ``portable`` every value is rounded half away. Otherwise values are rounded as vector loops
    round them: 0.5 - 2**-25 goes up, and all other values give the same codes.
    """
    flat = rows.reshape(len(rows), -1)
    most = np.abs(flat).max(1)
    none = most == 0
    scaled = flat * _divided(127, np.where(none, F(1), most))[:, None]
    rounded = half_away(scaled) if portable else _rounded(scaled)
    codes = np.clip(rounded, -127, 127).astype(np.int8)
    return codes.reshape(rows.shape), np.where(none, F(1), most / F(127))


def asymmetric(rows: Array) -> tuple[Array, Array, Array]:
    """Return (codes int8, scales float32, zero points) of rows ``(N, ...)``. The range of each row,
    extended to include 0, is divided into 255 steps.
    """
    flat, low, high = _ranges(rows)
    none = low == high
    scale = np.where(none, 1.0, (high - low).astype(np.float64) / 255)
    below = low / scale
    above = high / scale
    # the zero point is computed from the end of the range that gives the smaller error
    zero = np.where(128 + np.abs(below) < 127 + np.abs(above), -128 - below, 127 - above)
    zeros = np.where(none, 0, np.clip(half_away(zero), -128, 127)).astype(np.int64)
    single = scale.astype(F)
    steps = _rounded(flat * _divided(1, single)[:, None]).astype(np.int64)
    codes = np.where(none[:, None], 0, np.clip(steps + zeros[:, None], -128, 127))
    return codes.astype(np.int8).reshape(rows.shape), single, zeros


def _rounded(values: Array) -> Array:
    """Return float32 values ``(rows, n)`` rounded half away. Whole vectors add a half in float32;
    the values after the last whole vector are rounded exactly.
    """
    body = values.shape[1] // VECTOR * VECTOR
    out = half_away(values)
    out[:, :body] = np.trunc(values[:, :body] + np.copysign(F(0.5), values[:, :body]))
    return out


def _fused(layer: Weighted, rows: Array) -> Array:
    """Return the output by XNNPACK's operators: one fused multiply-add leads from the scaled sum to
    the output.
    """
    pointwise = isinstance(layer, Conv2D) and layer.kernel == layer.stride == (1, 1)
    if isinstance(layer, Conv2D) and pointwise and layer.weights.size > 1:
        # a pointwise convolution is run as a fully connected layer, so that every pixel has its own
        # scale, pixels of the border too
        rows = np.pad(rows, [(0, 0), *layer.pads, (0, 0)])
        weights = layer.weights.reshape(len(layer.weights), -1)
        per_pixel = FullyConnected(weights, layer.bias, weight_q=layer.weight_q, dtype=layer.dtype)
        out = _fused(per_pixel, rows.reshape(-1, rows.shape[-1]))
        return out.reshape(*rows.shape[:3], -1)
    flat, low, high = _ranges(rows)
    none = low == high
    steps = np.where(none, F(1), _divided(255, np.where(none, F(1), high - low)))
    below = low * steps
    above = high * steps
    zero = np.where((F(-128) + below) + (F(127) + above) > 0, F(-128) - below, F(127) - above)
    zeros = np.rint(np.clip(zero, -128, 127)).astype(np.int64)
    codes = np.rint(flat * steps[:, None]).astype(np.int64) + zeros[:, None]
    codes = np.clip(codes, -128, 127).astype(np.int8)
    sums = _sums(layer, codes.reshape(rows.shape), zeros)
    scaled = sums * _column(_divided(1, steps), sums)
    return multiply_add(scaled, np.asarray(layer.weight_q.scale, F), layer.bias)


def multiply_add(a: Array, b: Array, c: Array) -> Array:
    """Return ``a * b + c`` of float32 numbers, rounded once.

    >>> a, b, c = np.float32([1 + 2 ** -23]), np.float32([1 - 2 ** -24]), np.float32([-1])
    >>> (multiply_add(a, b, c) * 2 ** 24).tolist(), (a * b + c).tolist()
    ([0.9999998807907104], [0.0])
    """
    product = np.asarray(a, np.float64) * np.asarray(b, np.float64)  # exact
    total = product + c
    other = total - product
    lost = (product - (total - other)) + (c - other)
    # If the sum is not exact in float64, its last bit is set to 1 ("rounding to odd"). Rounding
    # this number to float32 then gives the same as rounding the exact sum.
    even = total.view(np.int64) % 2 == 0
    odd = np.nextafter(total, np.copysign(np.inf, lost))
    return np.where((lost != 0) & even, odd, total).astype(F)


def _divided(number: int, sizes: Array) -> Array:
    """Return ``number / sizes`` ``(rows,)`` float32. Raises ValueError if a quotient overflows,
    because C++ does not define what kernels then do.
    """
    with np.errstate(over="ignore", divide="ignore"):
        quotients = F(number) / sizes
    wrong = np.flatnonzero(~np.isfinite(quotients))
    if wrong.size:
        row = wrong[0]
        raise ValueError(
            f"x: got a scale of row {row} without a reciprocal in float32 "
            f"({number} / {sizes[row]:g}), allowed are a scale whose reciprocal is finite, and a "
            "row of zeros"
        )
    return quotients


def _ranges(rows: Array) -> tuple[Array, Array, Array]:
    """Return (rows ``(N, n)``, the smaller of 0 and each row's lowest number, the larger of 0 and
    each row's highest number).
    """
    flat = rows.reshape(len(rows), -1)
    return flat, np.minimum(F(0), flat.min(1)), np.maximum(F(0), flat.max(1))


def _sums(layer: Weighted, codes: Array, zeros: Array) -> Array:
    """Return ``sum (code - zero) * w`` in float32; each row of codes has its own zero point."""
    no_bias = np.zeros(len(layer.bias), int)
    plain = replace(layer, dtype="int8", bias=no_bias, weight_q=QuantParams(1.0))
    if isinstance(layer, FullyConnected):
        sums = np.empty((1, len(codes), 1, len(no_bias)), np.int64)
        accumulate(plain, codes.reshape(1, len(codes), 1, -1), sums)
        of_zeros = zeros[:, None] * layer.weights.sum(1, dtype=np.int64)
        return (sums[0, :, 0] - of_zeros).astype(F)
    sums = np.empty((len(codes), *layer.output_shape), np.int64)
    for number, zero in enumerate(zeros.tolist()):
        only = slice(number, number + 1)
        accumulate(replace(plain, input_q=QuantParams(1.0, zero)), codes[only], sums[only])
    return sums.astype(F)


def _column(scale: Array, sums: Array) -> Array:
    """Return a number for each row in a shape that can be multiplied with the sums."""
    return np.expand_dims(scale, tuple(range(1, sums.ndim)))


def _clamped(layer: Any, out: Array) -> Array:
    low, high = REAL[layer.activation]
    out = out.clip(F(low), F(high))
    # a lower bound of 0 turns -0 into +0
    if low == 0:
        out = out + F(0)
    return out


def half(layer: Layer, given: Any, rule: str | Rule) -> Array:
    """Return the output ``(N, H, W, C)`` float16 of images ``(N, H, W, C)`` float16, or of a tuple
    of tensors for a layer that takes several.
    """
    exact = rule == "fp16"
    sums = isinstance(layer, Conv2D | FullyConnected) or layer.op == "average_pool"
    # a rule is allowed if it is known in which order it adds
    allowed: tuple[str, ...] = (*SEQUENTIAL, "fp16")
    if not sums:
        allowed += ("tflite-builtin", "xnnpack")
    elif isinstance(layer, Pool2D):
        allowed += ("tflite-builtin",)
    _refuse_rule(layer, rule, allowed, "float16")
    if isinstance(layer, Conv2D) and layer.groups > 1:
        outputs = [half(group, given[..., part], rule) for group, part in _groups(layer)]
        return np.concatenate(outputs, -1)
    if isinstance(layer, Elementwise):
        return elementwise(layer, given, exact)
    if isinstance(layer, Activation):
        return activation(layer, given[0], exact)
    assert not isinstance(layer, Concat | Conv1D | Operation)
    bounds = REAL[layer.activation]
    # numbers that are too large for float16 become infinite
    with np.errstate(over="ignore", invalid="ignore"):
        if exact and sums and not isinstance(layer, Add):
            return summed(layer, given, bounds)
        out = _sequential(layer, given).clip(*bounds).astype(np.float16)
    return np.where(np.isnan(out), np.float16(np.nan), out)


def _groups(layer: Conv2D) -> Iterator[tuple[Conv2D, slice]]:
    """Yield the convolution of each group, and the range of its input channels."""
    height, width, channels = layer.input_shape
    inputs = channels // layer.groups
    outputs = len(layer.weights) // layer.groups
    for number in range(layer.groups):
        mine = slice(number * outputs, (number + 1) * outputs)
        group = replace(
            layer,
            weights=layer.weights[mine],
            groups=1,
            padding=layer.pads,
            bias=layer.bias[mine],
            input_shape=(height, width, inputs),
        )
        yield group, slice(number * inputs, (number + 1) * inputs)


def _sequential(layer: Add | Pool2D | Weighted, given: Any) -> Array:
    """Return the output in float32, before the clamp: products are added one after the other."""
    if isinstance(layer, Add):
        return given[0].astype(F) + given[1].astype(F)
    if isinstance(layer, Pool2D):
        return real_pool(layer, given, *REAL[layer.activation])
    if isinstance(layer, FullyConnected):
        sums = _products(given.reshape(-1, given.shape[-1]), layer.weights.T)
        return (sums + layer.bias.astype(F)).reshape(*given.shape[:3], -1)
    return np.stack([_convolved(layer, image) for image in given])


def _convolved(layer: Conv2D, image: Array) -> Array:
    """Return the sums ``(H, W, O)`` float32 of a convolution of one image, bias included."""
    if layer.depthwise:
        every = windows(layer, image.astype(F))  # (H, W, C, kernel_h, kernel_w)
        weights = layer.weights[0].astype(F)
        copies = weights.shape[2] // every.shape[2]
        total = np.zeros(layer.output_shape, F)
        for i, j in np.ndindex(*layer.kernel):
            total += np.repeat(every[..., i, j], copies, -1) * weights[i, j]
    else:
        weights = layer.weights.reshape(len(layer.weights), -1).T
        total = np.concatenate([_products(rows, weights) for rows in columns(layer, image)])
    return total.reshape(layer.output_shape) + layer.bias.astype(F)


def _products(rows: Array, weights: Array) -> Array:
    """Return sums of products ``(rows, O)`` float32, one product added after the other."""
    total = np.zeros((len(rows), weights.shape[1]), F)
    for column, row in zip(rows.astype(F).T, weights.astype(F), strict=True):
        total += column[:, None] * row
    return total
