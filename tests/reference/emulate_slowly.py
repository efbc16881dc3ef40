"""The slow definitions that the fast paths of ``npulab.quant.emulate`` are compared with: whole
windows in int64.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from npulab.quant.emulate.addition import weighs, weighted
from npulab.quant.emulate.elements import element
from npulab.quant.emulate.engines import REAL, clamp_range, multipliers, parts_of, saturation_of
from npulab.quant.emulate.operations import batches
from npulab.quant.emulate.saturating import Saturation
from npulab.quant.emulate.sliding import windows
from npulab.quant.floats import nearest_half
from npulab.quant.layers import (
    Activation,
    Add,
    Concat,
    Conv2D,
    Elementwise,
    FullyConnected,
    Layer,
    Operation,
    Pool2D,
)
from npulab.quant.requantize import within
from npulab.quant.rules import RULES, QuantParams, Rule


def accumulate(
    layer: Conv2D | FullyConnected, x: np.ndarray, saturation: Saturation | None = None
) -> np.ndarray:
    """Accumulators ``(..., H, W, C)`` int64, ``bias + sum (x - input zero) * (w - weight zero)``,
    unbounded.

    ``saturation`` cuts the sum of each group of products.
    """
    if saturation is not None:
        return saturated(layer, x, saturation)
    weights = layer.weights.astype(np.int64) - layer.weight_q.zero_point
    shifted = x.astype(np.int64) - layer.input_q.zero_point
    if isinstance(layer, FullyConnected):
        return shifted.reshape(-1, weights.shape[1]) @ weights.T + layer.bias
    return products(windows(layer, shifted), weights, layer.depthwise) + layer.bias


def saturated(layer: Conv2D | FullyConnected, x: np.ndarray, saturation: Saturation) -> np.ndarray:
    """Accumulators of groups of products, added one group after the other."""
    x_zero, w_zero = layer.input_q.zero_point, layer.weight_q.zero_point
    of_x, of_w = (0, 0) if saturation.stored else (x_zero, w_zero)
    codes, weights = x.astype(np.int64) - of_x, layer.weights.astype(np.int64) - of_w
    low, high = -(2 ** (saturation.bits - 1)), 2 ** (saturation.bits - 1) - 1
    if isinstance(layer, FullyConnected):
        every = codes.reshape(-1, weights.shape[1])
        pairs = [(every, row) for row in weights]
    else:
        axes = ["CHW".index(axis) for axis in saturation.order]
        seen = windows(layer, codes, x_zero - of_x)
        lead = seen.shape[:-3]
        pairs = []
        for channel in range(layer.output_shape[2]):
            window, kernel = (
                seen,
                weights[0, :, :, channel, None] if layer.depthwise else weights[channel],
            )
            if layer.depthwise:
                source = channel * layer.input_shape[2] // layer.output_shape[2]
                window = seen[..., source : source + 1, :, :]
            ordered = np.moveaxis(window, [axis - 3 for axis in axes], (-3, -2, -1)).reshape(
                *lead, -1
            )
            pairs.append((ordered, np.moveaxis(kernel, -1, 0).transpose(axes).ravel()))
    out = []
    for (every, row), bias in zip(pairs, layer.bias, strict=True):
        total = np.full(every.shape[:-1], int(bias))
        for start in range(0, row.size, saturation.group):
            taps = slice(start, start + saturation.group)
            total += np.clip((every[..., taps] * row[taps]).sum(-1), low, high)
        if saturation.stored:
            total -= x_zero * row.sum() + w_zero * every.sum(-1) - row.size * x_zero * w_zero
        out.append(total)
    return np.stack(out, axis=-1)


def products(every: np.ndarray, weights: np.ndarray, depthwise: bool) -> np.ndarray:
    """Sums ``(..., O)`` of windows ``(..., C, kernel_h, kernel_w)`` times weights OHWI, depthwise
    1HWC."""
    if not depthwise:
        return np.einsum("...cij,oijc->...o", every, weights, optimize=True)
    grouped = weights[0].reshape(*weights.shape[1:3], every.shape[-3], -1)
    sums = np.einsum("...cij,ijcm->...cm", every, grouped)
    return sums.reshape(*sums.shape[:-2], -1)


def emulate(layer: Layer, x: Any, rule: str | Rule = "tflite-reference") -> np.ndarray:
    """Output codes of a quantized layer, every one by the rule's ``exact``; float16 ones element by
    element; of an ``Operation`` what its kernel gives."""
    if isinstance(layer, Elementwise):
        return elementwise(layer, tuple(x) if isinstance(x, tuple | list) else (x,), rule)
    if isinstance(layer, Activation):
        return looked_up(layer, x, rule)
    if isinstance(layer, Operation):
        return batches(layer, x, rule)  # TensorFlow Lite's own kernels are held against it
    if isinstance(layer, Concat):
        return joined(layer, x if isinstance(x, tuple | list) else (x,))
    if layer.dtype == "float16":
        return halves(layer, x, rule == "fp16")
    if isinstance(layer, Pool2D):
        return pool(layer, x, rule)
    if isinstance(layer, Add):
        return weighted_add(layer, x[0], x[1], rule) if weighs(rule) else add(layer, *x)
    sums, out = accumulate(layer, x, saturation_of(layer, x.dtype, rule)), []
    for by, first, end in parts_of(layer, x.dtype, rule):
        factors = multipliers(layer, by, first, end)
        out.append(by.exact(within(sums[..., first:end], by), *factors, layer.output_q.zero_point))
    return np.clip(np.concatenate(out, -1), *clamp_range(layer, x.dtype, rule)).astype(x.dtype)


def pool(layer: Pool2D, x: np.ndarray, rule: str | Rule = "tflite-reference") -> np.ndarray:
    """Pooled codes; an average counts the elements inside the image, ties away from code 0."""
    info = np.iinfo(x.dtype)
    border = {"average": 0, "max": info.min, "min": info.max}[layer.kind]
    every = windows(layer, x.astype(np.int64), border)
    if layer.kind == "average":
        count = windows(layer, np.ones(x.shape, np.int64)).sum((-2, -1))
        total = every.sum((-2, -1))
        out = np.where(total > 0, (total + count // 2) // count, -((-total + count // 2) // count))
    else:
        out = every.max((-2, -1)) if layer.kind == "max" else every.min((-2, -1))
    return np.clip(out, *clamp_range(layer, x.dtype, rule)).astype(x.dtype)


def add(layer: Add, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Summed codes as TensorFlow Lite's reference kernels have them."""
    rule, ones = RULES["gemmlowp"], []
    left = 2 ** (15 if a.dtype == np.int16 else 20)
    scales = [
        float(np.asarray(q.scale, np.float32))
        for q in (layer.input_q, layer.other_q, layer.output_q)
    ]
    twice = 2 * max(scales[:2])
    for codes, q, scale in ((a, layer.input_q, scales[0]), (b, layer.other_q, scales[1])):
        moved = (codes.astype(np.int64) - q.zero_point) * left
        ones.append(rule.exact(moved, *rule.of_ratio(np.asarray(scale / twice))))
    ratio = np.asarray(twice / (left * scales[2]))
    total = rule.exact(ones[0] + ones[1], *rule.of_ratio(ratio), layer.output_q.zero_point)
    return np.clip(total, *clamp_range(layer, a.dtype)).astype(a.dtype)


def weighted_add(layer: Add, a: np.ndarray, b: np.ndarray, rule: str | Rule) -> np.ndarray:
    """Summed codes as engines have them that add by convolution: both inputs are the channels of a
    1x1 layer."""
    one, other, bias, scale = weighted(layer)
    conv = Conv2D(
        np.array([[[[one, other]]]], np.uint8),
        np.array([bias]),
        (a.size, 1, 2),
        activation=layer.activation,
        input_q=layer.input_q,
        weight_q=QuantParams(scale),
        output_q=layer.output_q,
    )
    pair = np.stack([a.reshape(-1, 1), b.reshape(-1, 1)], axis=-1)
    return emulate(conv, pair, rule).reshape(a.shape)


def elementwise(
    layer: Elementwise, tensors: tuple[np.ndarray, ...], rule: str | Rule
) -> np.ndarray:
    """Elements one by one, as ``element`` has them."""
    shape = np.broadcast_shapes(*(one.shape for one in tensors))
    out, every = np.empty(shape, np.float16), [np.broadcast_to(one, shape) for one in tensors]
    for place in np.ndindex(shape):
        out[place] = element(layer, tuple(one[place] for one in every), place[-1], rule == "fp16")
    return out


def halves(layer: Conv2D | FullyConnected | Pool2D | Add, x: Any, exact: bool) -> np.ndarray:
    """float16 outputs one by one, of sums of exact numbers rounded once, or of float32 numbers one
    after the other."""
    if isinstance(layer, Add):
        return elementwise(
            Elementwise("add", layer.input_shape, activation=layer.activation), x, "fp16"
        )
    low, high = REAL[layer.activation]
    if isinstance(layer, FullyConnected):
        rows = x.reshape(-1, *layer.input_shape)
        sums = [
            _sum(row, weights, bias, (low, high), exact)
            for row in rows
            for weights, bias in zip(layer.weights, layer.bias, strict=True)
        ]
        return np.array(sums, np.float16).reshape(len(rows), -1)
    out: list[np.float16] = []
    for image in x.reshape(-1, *layer.input_shape):
        every = windows(layer, image).transpose(0, 1, 3, 4, 2)  # (H, W, kernel_h, kernel_w, C)
        inside = windows(layer, np.ones(image.shape, bool)).transpose(0, 1, 3, 4, 2)
        for row, column, channel in np.ndindex(layer.output_shape):
            window, there = every[row, column], inside[row, column]
            if isinstance(layer, Conv2D):
                weights = (
                    layer.weights[0, ..., channel] if layer.depthwise else layer.weights[channel]
                )
                if layer.depthwise:
                    window = window[..., channel * image.shape[2] // layer.output_shape[2]]
                elif layer.groups > 1:
                    first = channel * layer.groups // layer.output_shape[2] * weights.shape[-1]
                    window = window[..., first : first + weights.shape[-1]]
                out.append(
                    _sum(window.ravel(), weights.ravel(), layer.bias[channel], (low, high), exact)
                )
                continue
            one = window[..., channel][there[..., channel]]
            if layer.kind == "average":
                out.append(_sum(one, np.ones(one.size), 0, (low, high), exact, one.size))
            else:
                most = (np.max if layer.kind == "max" else np.min)(one)
                out.append(_sum(most[None], np.ones(1), 0, (low, high), exact))
    return np.array(out, np.float16).reshape(*x.shape[:-3], *layer.output_shape)


def _sum(
    x: np.ndarray,
    weights: np.ndarray,
    bias: Any,
    bounds: tuple[float, float],
    exact: bool,
    count: int = 1,
) -> np.float16:
    """``(sum x * w) / count + bias``, clamped; a sum of 0 is +0."""
    number: Any = (Fraction if np.all(np.isfinite(x)) else float) if exact else np.float32
    total, (low, high) = number(0.0), bounds
    with np.errstate(over="ignore", invalid="ignore"):
        for one, weight in zip(x, weights, strict=True):
            total = total + number(float(one)) * number(float(weight))
        total = total / number(count) + number(float(bias))
        total = low if total <= low else high if total >= high else total
        out = nearest_half(total) if isinstance(total, Fraction) else np.float16(total)
    return np.float16(np.nan) if np.isnan(out) else out


def looked_up(layer: Activation, x: np.ndarray, rule: str | Rule) -> np.ndarray:
    """What a table holds, element by element."""
    if np.any(layer.prescale != 1):
        x = elementwise(Elementwise("copy", layer.input_shape, prescale=layer.prescale), (x,), rule)
    out = np.empty(x.shape, np.float16)
    for place in np.ndindex(x.shape):
        out[place] = layer.outputs[int(x[place].view(np.uint16))]
    return out


def joined(layer: Concat, tensors: Sequence[np.ndarray]) -> np.ndarray:
    """Tensors side by side, element by element."""
    lead = tensors[0].shape[: tensors[0].ndim - len(layer.output_shape)]
    out, axis, start = (
        np.empty((*lead, *layer.output_shape), tensors[0].dtype),
        len(lead) + layer.axis,
        0,
    )
    for one in tensors:
        for place in np.ndindex(one.shape):
            out[(*place[:axis], place[axis] + start, *place[axis + 1 :])] = one[place]
        start += one.shape[axis]
    return out
