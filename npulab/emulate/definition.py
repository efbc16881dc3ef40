"""The slow definitions that the fast paths are tested against: whole windows in int64."""

from __future__ import annotations

from typing import Any

import numpy as np

from npulab.emulate.addition import weighs, weighted
from npulab.emulate.engines import clamp_range, multipliers, parts_of
from npulab.layers import Add, Conv2D, FullyConnected, Layer, Pool2D
from npulab.quant import RULES, QuantParams, Rule, within


def accumulate(layer: Conv2D | FullyConnected, x: np.ndarray) -> np.ndarray:
    """Accumulators ``(..., H, W, C)`` int64, ``bias + sum (x - input zero) * (w - weight zero)``, unbounded."""
    weights = layer.weights.astype(np.int64) - layer.weight_q.zero_point
    shifted = x.astype(np.int64) - layer.input_q.zero_point
    if isinstance(layer, FullyConnected):
        return shifted.reshape(-1, weights.shape[1]) @ weights.T + layer.bias
    return products(windows(layer, shifted), weights, layer.depthwise) + layer.bias


def products(every: np.ndarray, weights: np.ndarray, depthwise: bool) -> np.ndarray:
    """Sums ``(..., O)`` of windows ``(..., C, kernel_h, kernel_w)`` times weights OHWI, depthwise 1HWC."""
    if not depthwise:
        return np.einsum("...cij,oijc->...o", every, weights, optimize=True)
    grouped = weights[0].reshape(*weights.shape[1:3], every.shape[-3], -1)
    sums = np.einsum("...cij,ijcm->...cm", every, grouped)
    return sums.reshape(*sums.shape[:-2], -1)


def emulate(layer: Layer, x: Any, rule: str | Rule = "tflite-reference") -> np.ndarray:
    """Output codes of a quantized layer, every one by the rule's ``exact``."""
    if isinstance(layer, Pool2D):
        return pool(layer, x, rule)
    if isinstance(layer, Add):
        return weighted_add(layer, x[0], x[1], rule) if weighs(rule) else add(layer, *x)
    sums, out = accumulate(layer, x), []
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
    scales = [float(np.asarray(q.scale, np.float32)) for q in (layer.input_q, layer.other_q, layer.output_q)]
    twice = 2 * max(scales[:2])
    for codes, q, scale in ((a, layer.input_q, scales[0]), (b, layer.other_q, scales[1])):
        moved = (codes.astype(np.int64) - q.zero_point) * left
        ones.append(rule.exact(moved, *rule.of_ratio(np.asarray(scale / twice))))
    ratio = np.asarray(twice / (left * scales[2]))
    total = rule.exact(ones[0] + ones[1], *rule.of_ratio(ratio), layer.output_q.zero_point)
    return np.clip(total, *clamp_range(layer, a.dtype)).astype(a.dtype)


def weighted_add(layer: Add, a: np.ndarray, b: np.ndarray, rule: str | Rule) -> np.ndarray:
    """Summed codes as engines have them that add by convolution: both inputs are the channels of a 1x1 layer."""
    one, other, bias, scale = weighted(layer)
    conv = Conv2D(np.array([[[[one, other]]]], np.uint8), np.array([bias]), (a.size, 1, 2), activation=layer.activation,
                  input_q=layer.input_q, weight_q=QuantParams(scale), output_q=layer.output_q)
    pair = np.stack([a.reshape(-1, 1), b.reshape(-1, 1)], axis=-1)
    return emulate(conv, pair, rule).reshape(a.shape)


def windows(layer: Conv2D | Pool2D, x: np.ndarray, border: Any = 0) -> np.ndarray:
    """Windows ``(..., out_h, out_w, C, kernel_h, kernel_w)`` of an input ``(..., H, W, C)`` bordered with a value."""
    rows, columns = layer.pads
    padded = np.pad(x, [(0, 0)] * (x.ndim - 3) + [rows, columns, (0, 0)], constant_values=border)
    (kernel_h, kernel_w), (dilation_h, dilation_w) = layer.kernel, layer.dilation
    span = (kernel_h - 1) * dilation_h + 1, (kernel_w - 1) * dilation_w + 1
    every = np.lib.stride_tricks.sliding_window_view(padded, span, axis=(-3, -2))
    return every[..., ::layer.stride[0], ::layer.stride[1], :, ::dilation_h, ::dilation_w]
