"""Pooling of codes and of real numbers. One tap of the kernel at a time adds one element to each
window. Elements of the border are not counted.
"""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
from numpy import ndarray as Array

from npulab.quant.emulate.engines import clamp_range
from npulab.quant.emulate.sums import Border
from npulab.quant.layers import Pool2D
from npulab.quant.rules import Rule, divided

TAKE = {"max": np.maximum, "min": np.minimum, "average": np.add}


def pool(layer: Pool2D, images: Array, rule: str | Rule) -> Array:
    """Return the output ``(N, H, W, C)`` of images ``(N, H, W, C)`` of codes; averages are rounded
    as ``layer.rounding`` says.
    """
    rounding, _, centre = layer.rounding.partition(":")
    zero = 0
    if centre:
        zero = layer.input_q.zero_point
    low, high = clamp_range(layer, images.dtype, rule)
    # int32 holds the sum of a window's codes unless the window is very large
    wide = np.int64 if math.prod(layer.kernel) * np.iinfo(images.dtype).max >= 2**30 else np.int32
    out = np.stack(
        [taken(layer, image, wide if layer.kind == "average" else images.dtype) for image in images]
    )
    if layer.kind == "average":
        held = counts(layer)
        out = divided(out - zero * held if zero else out, held, rounding) + zero
    return out.clip(low, high).astype(images.dtype)


def real_pool(layer: Pool2D, images: Array, low: float, high: float) -> Array:
    """Return the output, float32, of images of real numbers, clamped to ``low`` and ``high``; a sum
    is taken tap by tap.
    """
    out = np.stack([taken(layer, image, np.float32) for image in images])
    if layer.kind == "average":
        out /= counts(layer).astype(np.float32)
    return out.clip(np.float32(low), np.float32(high))


def counts(layer: Pool2D) -> Array:
    """Return the number of elements of the input in each window, ``(H, W, 1)``."""
    axes = []
    for size, kernel, step, (before, _), out in zip(
        layer.input_shape, layer.kernel, layer.stride, layer.pads, layer.output_shape, strict=False
    ):
        start = np.arange(out) * step - before
        axes.append(np.minimum(start + kernel, size) - np.maximum(start, 0))
    return (axes[0][:, None, None] * axes[1][None, :, None]).astype(np.int64)


def taken(layer: Pool2D, image: Array, dtype: Any) -> Array:
    """Return the sum, maximum or minimum of every window."""
    (height, width, depth), (down, right) = layer.output_shape, layer.stride
    border = Border(layer, _idle(layer.kind, image.dtype))
    lines, inside, first, end = border.lines((0, height))
    within, left, after = border.columns()
    bordered = np.full((lines, border.across, depth), border.zero, image.dtype)
    bordered[inside, within] = image[first:end, left:after]
    out: Array | None = None
    for i, j in product(*map(range, border.kernel)):
        tap = bordered[
            i : i + (height - 1) * down + 1 : down, j : j + (width - 1) * right + 1 : right
        ]
        if out is None:
            out = tap.astype(dtype)
        else:
            out = TAKE[layer.kind](out, tap, out=out)
    assert out is not None
    return out


def _idle(kind: str, dtype: np.dtype) -> Any:
    """Return the value for the border that leaves each sum, maximum or minimum unchanged."""
    if kind == "average":
        return 0
    if dtype.kind == "f":
        if kind == "max":
            return -np.inf
        return np.inf
    if kind == "max":
        return np.iinfo(dtype).min
    return np.iinfo(dtype).max
