"""Exact integer operators: a layer and an input give the output that a named rule demands."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from npulab.quant import Rule, requantize
from npulab.quant import rule as find_rule

if TYPE_CHECKING:
    from npulab.layers import Conv2D


def emulate(layer: Conv2D, x: np.ndarray, rule: str | Rule = "tflite-reference") -> np.ndarray:
    """Output ``(H, W, C)`` or ``(N, H, W, C)`` of a layer, in the type of ``x``.

    ``x`` is ``(H, W, C)`` or ``(N, H, W, C)``, uint8 or int8, as ``layer.input_shape`` says.  ``rule``
    is a name of ``quant.RULES``; a target's own is ``target.rule``.  Raises ValueError where ``x`` is
    not so, LookupError for an unknown rule.
    """
    by = find_rule(rule)
    x = _checked(layer, x)
    multiplier, right_shift = by.multiplier(_one(layer.input_q.scale), layer.weight_q.scale,
                                            _one(layer.output_q.scale), signed=x.dtype == np.int8)
    low, high = clamp_range(layer, x.dtype)
    out = requantize(accumulate(layer, x), by, multiplier, right_shift, layer.output_q.zero_point, low, high)
    return out.astype(x.dtype)


def accumulate(layer: Conv2D, x: np.ndarray) -> np.ndarray:
    """Accumulators ``(..., H, W, C)`` int64: ``bias + sum (x - input zero) * (w - weight zero)``.

    They wrap at 32 bits as an int32 register does.
    """
    x = _checked(layer, x)
    # float64 holds whole numbers to 2**53: sums of 2**37 products of 8 bits, more than memory holds, are exact
    windows = _windows(layer, x.astype(np.float64) - layer.input_q.zero_point)
    weights = layer.weights.astype(np.float64) - layer.weight_q.zero_point
    if layer.depthwise:
        per_input = weights.shape[3] // layer.input_shape[2]
        grouped = weights[0].reshape(*layer.kernel, layer.input_shape[2], per_input)
        sums = np.einsum("...cij,ijcm->...cm", windows, grouped, optimize=True)
        sums = sums.reshape(*sums.shape[:-2], -1)
    else:
        sums = np.tensordot(windows, weights, axes=((-3, -2, -1), (3, 1, 2)))
    return (sums.astype(np.int64) + layer.bias).astype(np.int32).astype(np.int64)


def accumulate_reference(layer: Conv2D, x: np.ndarray) -> np.ndarray:
    """The definition of ``accumulate`` for one ``(H, W, C)`` input, in plain integer loops."""
    x = _checked(layer, x)
    (top, _), (left, _) = layer.pads
    out_h, out_w, out_c = layer.output_shape
    in_h, in_w, in_c = layer.input_shape
    out = np.zeros(layer.output_shape, np.int64)
    for row, column, channel in np.ndindex(out_h, out_w, out_c):
        total = int(layer.bias[channel])
        for i, j in np.ndindex(*layer.kernel):
            y = row * layer.stride[0] + i * layer.dilation[0] - top
            z = column * layer.stride[1] + j * layer.dilation[1] - left
            if not (0 <= y < in_h and 0 <= z < in_w):
                continue
            for c in [channel * in_c // out_c] if layer.depthwise else range(in_c):
                w = layer.weights[0, i, j, channel] if layer.depthwise else layer.weights[channel, i, j, c]
                total += (int(x[y, z, c]) - layer.input_q.zero_point) * (int(w) - layer.weight_q.zero_point)
        out[row, column, channel] = (total + 2 ** 31) % 2 ** 32 - 2 ** 31
    return out


def clamp_range(layer: Conv2D, dtype: np.dtype | type) -> tuple[int, int]:
    """Lowest and highest output code: the type's range, narrowed by the activation."""
    info = np.iinfo(dtype)
    real_low, real_high = {None: (None, None), "relu": (0.0, None), "relu6": (0.0, 6.0),
                           "relu_n1_to_1": (-1.0, 1.0)}[layer.activation]
    scale, zero = np.float32(_one(layer.output_q.scale)), layer.output_q.zero_point
    low, high = int(info.min), int(info.max)
    if real_low is not None:
        low = max(low, zero + _half_away(np.float32(real_low) / scale))
    if real_high is not None:
        high = min(high, zero + _half_away(np.float32(real_high) / scale))
    return low, high


def _half_away(value: np.float32) -> int:
    return int(np.sign(value) * np.floor(np.abs(np.float64(value)) + 0.5))


def _one(scale: float | tuple[float, ...]) -> float:
    assert isinstance(scale, float)
    return scale


def _checked(layer: Conv2D, x: np.ndarray) -> np.ndarray:
    x = np.asarray(x)
    if x.ndim not in (3, 4) or x.shape[-3:] != layer.input_shape or x.dtype not in (np.uint8, np.int8):
        raise ValueError(f"x: got shape {x.shape} {x.dtype}, allowed is {layer.input_shape}, or that with "
                         "a leading batch axis, of uint8 or int8")
    return x


def _windows(layer: Conv2D, x: np.ndarray) -> np.ndarray:
    """Windows ``(..., out_h, out_w, C, kernel_h, kernel_w)`` of zero-based input ``(..., H, W, C)``."""
    rows, columns = layer.pads
    padded = np.pad(x, [(0, 0)] * (x.ndim - 3) + [rows, columns, (0, 0)])
    (kernel_h, kernel_w), (dilation_h, dilation_w) = layer.kernel, layer.dilation
    span = (kernel_h - 1) * dilation_h + 1, (kernel_w - 1) * dilation_w + 1
    every = np.lib.stride_tricks.sliding_window_view(padded, span, axis=(-3, -2))
    return every[..., ::layer.stride[0], ::layer.stride[1], :, ::dilation_h, ::dilation_w]
