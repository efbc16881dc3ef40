"""The windows of an image over which a kernel moves."""

from __future__ import annotations

from typing import Any

import numpy as np

from npulab.quant.layers import Conv2D, Pool2D


def windows(layer: Conv2D | Pool2D, x: np.ndarray, border: Any = 0) -> np.ndarray:
    """Return the windows ``(..., out_h, out_w, C, kernel_h, kernel_w)`` of an input ``(..., H, W,
    C)``. The input is padded with the value ``border``.
    """
    rows, columns = layer.pads
    padded = np.pad(x, [(0, 0)] * (x.ndim - 3) + [rows, columns, (0, 0)], constant_values=border)
    (kernel_h, kernel_w), (dilation_h, dilation_w) = layer.kernel, layer.dilation
    span = (kernel_h - 1) * dilation_h + 1, (kernel_w - 1) * dilation_w + 1
    every = np.lib.stride_tricks.sliding_window_view(padded, span, axis=(-3, -2))
    return every[..., :: layer.stride[0], :: layer.stride[1], :, ::dilation_h, ::dilation_w]
