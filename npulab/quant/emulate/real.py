"""Layers whose input and output are real numbers: hybrid ones with int8 weights, and float16.

Hybrid: the input is quantized as it comes, the products are summed in whole numbers, and the sums
are scaled in float32, every operation rounded by itself; ``NAMED`` are the variants of that for a
fully connected layer. float16: the rule says how the sum is taken, in float32 one product after the
other, or exactly with one rounding at the end (``exact``).  NaN and infinities go through as IEEE
754 has them, and every NaN that comes out is 0x7E00.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

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
    per_channel,
)
from npulab.quant.rules import QuantParams, Rule, half_away

F = np.float32
VECTOR = 8  # values that the vector body of a quantizing loop takes at a time
HYBRID = ("hybrid-float32", "tflite-reference", "tflite-builtin", "xnnpack")
# Of a fully connected layer: the last product and the bias's sum are rounded once, as a compiler
# for AArch64 may have it; inputs are rounded exactly half away, as portable loops have it, also
# where a vector adds a half in float32.
FUSED, PORTABLE = NAMED = ("hybrid-float32:fused", "hybrid-float32:portable")
SEQUENTIAL = ("tflite-reference", "tflite-micro")


def hybrid(layer: Conv2D | FullyConnected, images: np.ndarray, rule: str | Rule) -> np.ndarray:
    """Output ``(N, H, W, C)`` float32 of images ``(N, H, W, C)`` float32.

    Every image, or row of a fully connected layer, has a scale of its own: symmetric codes where
    the weights have one scale, asymmetric ones where they have several. Source:
    tensorflow/lite/kernels/{conv,depthwise_conv,fully_connected}.cc, XNNPACK qd8 operators,
    measured; Samsung/ONE:compute/cker/include/cker/{NeonTensorUtils,PortableTensorUtils}.h for the
    variants of one layer. Raises ValueError for an image or row whose scale has no reciprocal in
    float32.
    """
    flat = isinstance(layer, FullyConnected)
    allowed = (*HYBRID, *NAMED) if flat else HYBRID
    if not isinstance(rule, str) or rule not in allowed:
        raise LookupError(
            f"rule: got {rule!r}, allowed with {layer} of float32 is one of {', '.join(allowed)}"
        )
    rows = images
    if flat:
        rows = images.reshape(-1, *images.shape[3:])
    with np.errstate(
        over="ignore", invalid="ignore"
    ):  # large scales make infinities, and NaN of two of them
        if rule == "xnnpack" and layer.op != "depthwise":
            out = _fused(layer, rows)
        else:
            out = _separate(layer, rows, "tflite-builtin" if rule == "xnnpack" else rule)
            if not flat:  # a convolution without an activation clamps to the finite numbers
                out = out.clip(np.finfo(F).min, np.finfo(F).max)
    if flat:
        return _clamped(layer, out).reshape(*images.shape[:3], -1)
    return _clamped(layer, out)


def symmetric(rows: np.ndarray, portable: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """(codes int8, scales float32) of rows ``(N, ...)``: the largest size becomes 127.

    ``portable`` rounds every value half away; vectors round 0.5 - 2**-25 up, and that value alone
    otherwise.
    """
    flat = rows.reshape(len(rows), -1)
    most = np.abs(flat).max(1)
    none = most == 0
    inverse = _divided(127, np.where(none, F(1), most))
    scaled = flat * inverse[:, None]
    codes = np.clip(half_away(scaled) if portable else _rounded(scaled), -127, 127).astype(np.int8)
    return codes.reshape(rows.shape), np.where(none, F(1), most / F(127))


def asymmetric(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(codes int8, scales float32, zero points) of rows ``(N, ...)``: the range and 0 become 255
    steps."""
    flat, low, high = _ranges(rows)
    none = low == high
    scale = np.where(none, 1.0, (high - low).astype(np.float64) / 255)
    below, above = low / scale, high / scale
    zero = np.where(128 + np.abs(below) < 127 + np.abs(above), -128 - below, 127 - above)
    zeros = np.where(none, 0, np.clip(half_away(zero), -128, 127)).astype(np.int64)
    single = scale.astype(F)
    codes = _rounded(flat * _divided(1, single)[:, None]).astype(np.int64) + zeros[:, None]
    codes = np.where(none[:, None], 0, np.clip(codes, -128, 127)).astype(np.int8)
    return codes.reshape(rows.shape), single, zeros


def _separate(layer: Conv2D | FullyConnected, rows: np.ndarray, rule: str) -> np.ndarray:
    weight = np.asarray(layer.weight_q.scale, F)
    several = per_channel(layer.weight_q.scale) and len(set(weight.tolist())) > 1
    if isinstance(layer, FullyConnected) and not rows.any():
        return np.broadcast_to(
            layer.bias, (len(rows), len(layer.bias))
        )  # as it is, also where it is -0
    if isinstance(layer, FullyConnected) or (layer.op == "conv" and not several):
        codes, scale = symmetric(rows, rule == PORTABLE)
        sums = _sums(layer, codes, np.zeros(len(rows), int))
        scale = _column(scale, sums) * weight
        if rule == FUSED:
            return multiply_add(sums, scale, layer.bias)
        return sums * scale + layer.bias
    codes, scale, zeros = asymmetric(rows)
    sums = _sums(layer, codes, zeros)
    scale = _column(scale, sums)
    builtin = rule == "tflite-builtin"
    if (
        layer.op == "conv"
    ) != builtin:  # the two kernels of each operator have it the other way round
        if layer.op == "conv":
            scaled = (sums * weight) * scale
        else:
            scaled = _tailed(sums, weight, scale)
    else:
        scaled = sums * (scale * weight)
    return scaled + layer.bias


def _tailed(sums: np.ndarray, weight: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """The builtin depthwise kernel: groups of four channels multiply in another order than the
    rest."""
    body = sums.shape[-1] // 4 * 4
    return np.where(
        np.arange(sums.shape[-1]) < body, (sums * weight) * scale, (sums * scale) * weight
    )


def _fused(layer: Conv2D | FullyConnected, rows: np.ndarray) -> np.ndarray:
    if (
        isinstance(layer, Conv2D)
        and layer.kernel == layer.stride == (1, 1)
        and layer.weights.size > 1
    ):
        # a pointwise convolution is run as a fully connected layer: a scale for every pixel, the
        # border's too
        rows = np.pad(rows, [(0, 0), *layer.pads, (0, 0)])
        per_pixel = FullyConnected(
            layer.weights.reshape(len(layer.weights), -1),
            layer.bias,
            weight_q=layer.weight_q,
            dtype=layer.dtype,
        )
        return _fused(per_pixel, rows.reshape(-1, rows.shape[-1])).reshape(*rows.shape[:3], -1)
    flat, low, high = _ranges(rows)
    none = low == high
    steps = np.where(none, F(1), _divided(255, np.where(none, F(1), high - low)))
    below, above = low * steps, high * steps
    zero = np.where((F(-128) + below) + (F(127) + above) > 0, F(-128) - below, F(127) - above)
    zeros = np.rint(np.clip(zero, -128, 127)).astype(np.int64)
    codes = np.clip(
        np.rint(flat * steps[:, None]).astype(np.int64) + zeros[:, None], -128, 127
    ).astype(np.int8)
    sums = _sums(layer, codes.reshape(rows.shape), zeros)
    return multiply_add(
        sums * _column(_divided(1, steps), sums), np.asarray(layer.weight_q.scale, F), layer.bias
    )


def multiply_add(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """``a * b + c`` of float32 numbers, rounded once.

    >>> a, b, c = np.float32([1 + 2 ** -23]), np.float32([1 - 2 ** -24]), np.float32([-1])
    >>> (multiply_add(a, b, c) * 2 ** 24).tolist(), (a * b + c).tolist()
    ([0.9999998807907104], [0.0])
    """
    product = np.asarray(a, np.float64) * np.asarray(b, np.float64)  # exact
    total = product + c
    other = total - product
    lost = (product - (total - other)) + (c - other)
    # what 53 bits do not hold is left in the last of them, which float32 does not reach: rounding
    # to odd
    even = total.view(np.int64) % 2 == 0
    return np.where(
        (lost != 0) & even, np.nextafter(total, np.copysign(np.inf, lost)), total
    ).astype(F)


def _divided(number: int, sizes: np.ndarray) -> np.ndarray:
    """``number / sizes`` ``(rows,)`` float32; ValueError where it overflows, and kernels do what
    C++ leaves open."""
    with np.errstate(over="ignore", divide="ignore"):
        found = F(number) / sizes
    if not np.isfinite(found).all():
        row = int(np.argmin(np.isfinite(found)))
        raise ValueError(
            f"x: got a scale of row {row} without a reciprocal in float32 ({number} / "
            f"{sizes[row]:g}), "
            "allowed are rows of 0, and numbers neither so small nor so large"
        )
    return found


def _ranges(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    flat = rows.reshape(len(rows), -1)
    return flat, np.minimum(F(0), flat.min(1)), np.maximum(F(0), flat.max(1))


def _rounded(values: np.ndarray) -> np.ndarray:
    """Float32 values ``(rows, n)`` rounded half away: whole vectors add a half in float32, the rest
    is exact."""
    body = values.shape[1] // VECTOR * VECTOR
    out = half_away(values)
    out[:, :body] = np.trunc(values[:, :body] + np.copysign(F(0.5), values[:, :body]))
    return out


def _sums(layer: Conv2D | FullyConnected, codes: np.ndarray, zeros: np.ndarray) -> np.ndarray:
    """``sum (code - zero) * w`` of rows of codes with a zero point each, float32."""
    plain = replace(
        layer, dtype="int8", bias=np.zeros(len(layer.bias), int), weight_q=QuantParams(1.0)
    )
    if isinstance(layer, FullyConnected):
        out = np.empty((1, len(codes), 1, len(layer.bias)), np.int64)
        accumulate(plain, codes.reshape(1, len(codes), 1, -1), out)
        return (out[0, :, 0] - zeros[:, None] * layer.weights.sum(1, dtype=np.int64)).astype(F)
    out = np.empty((len(codes), *layer.output_shape), np.int64)
    for number, zero in enumerate(zeros.tolist()):
        ready = replace(plain, input_q=QuantParams(1.0, zero))
        accumulate(ready, codes[number : number + 1], out[number : number + 1])
    return out.astype(F)


def _column(scale: np.ndarray, sums: np.ndarray) -> np.ndarray:
    return scale.reshape(-1, *(1,) * (sums.ndim - 1))


def half(layer: Layer, given: Any, rule: str | Rule) -> np.ndarray:
    """Output ``(N, H, W, C)`` float16 of images ``(N, H, W, C)`` float16, or of the tuple of
    tensors of a layer that takes several."""
    exact = rule == "fp16"
    # the order of the sums of the other kernels is not known
    ordered = not isinstance(layer, Conv2D | FullyConnected) and layer.op != "average_pool"
    plain = (
        ("tflite-builtin", "xnnpack")
        if ordered
        else ("tflite-builtin",)
        if isinstance(layer, Pool2D)
        else ()
    )
    allowed = (*SEQUENTIAL, "fp16", *plain)
    if not isinstance(rule, str) or rule not in allowed:
        raise LookupError(
            f"rule: got {rule!r}, allowed with {layer} of float16 is one of {', '.join(allowed)}"
        )
    if isinstance(layer, Conv2D) and layer.groups > 1:
        return np.concatenate(
            [half(one, given[..., part], rule) for one, part in _groups(layer)], -1
        )
    if isinstance(layer, Elementwise):
        return elementwise(layer, given, exact)
    if isinstance(layer, Activation):
        return activation(layer, given[0], exact)
    assert not isinstance(layer, Concat | Conv1D | Operation)
    low, high = REAL[layer.activation]
    with np.errstate(over="ignore", invalid="ignore"):  # what is too large for float16 is infinite
        if exact and not isinstance(layer, Add) and not ordered:
            return summed(layer, given, (low, high))
        if isinstance(layer, Add):
            out = given[0].astype(F) + given[1].astype(F)
        elif isinstance(layer, Pool2D):
            out = real_pool(layer, given, low, high)
        elif isinstance(layer, FullyConnected):
            rows = given.reshape(-1, given.shape[-1])
            out = (_products(rows, layer.weights.T) + layer.bias.astype(F)).reshape(
                *given.shape[:3], -1
            )
        else:
            out = np.stack([_convolved(layer, image) for image in given])
        out = out.clip(low, high).astype(np.float16)
        return np.where(np.isnan(out), np.float16(np.nan), out)


def _groups(layer: Conv2D) -> list[tuple[Conv2D, slice]]:
    """The convolution of each group, and its input channels."""
    height, width, channels = layer.input_shape
    inputs, outputs = channels // layer.groups, len(layer.weights) // layer.groups
    return [
        (
            replace(
                layer,
                weights=layer.weights[n * outputs : (n + 1) * outputs],
                groups=1,
                padding=layer.pads,
                bias=layer.bias[n * outputs : (n + 1) * outputs],
                input_shape=(height, width, inputs),
            ),
            slice(n * inputs, (n + 1) * inputs),
        )
        for n in range(layer.groups)
    ]


def _convolved(layer: Conv2D, image: np.ndarray) -> np.ndarray:
    """Sums ``(H, W, O)`` float32, each product added after the other."""
    if layer.depthwise:
        every = windows(layer, image.astype(F))  # (H, W, C, kernel_h, kernel_w)
        weights, total = layer.weights[0].astype(F), np.zeros(layer.output_shape, F)
        for i, j in np.ndindex(*layer.kernel):
            total += (
                np.repeat(every[..., i, j], weights.shape[2] // every.shape[2], -1) * weights[i, j]
            )
    else:
        weights = layer.weights.reshape(len(layer.weights), -1).T
        total = np.concatenate([_products(some, weights) for some in columns(layer, image)])
    return total.reshape(layer.output_shape) + layer.bias.astype(F)


def _products(columns: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Sums of products ``(rows, O)`` float32, one product after the other."""
    total = np.zeros((len(columns), weights.shape[1]), F)
    for column, row in zip(columns.astype(F).T, weights.astype(F), strict=True):
        total += column[:, None] * row
    return total


def _clamped(layer: Any, out: np.ndarray) -> np.ndarray:
    low, high = REAL[layer.activation]
    return out.clip(F(low), F(high)) + F(
        0 if low == 0 else -0.0
    )  # a lower bound of 0 makes -0 one of +0
