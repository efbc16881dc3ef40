"""NVDLA's convolution element by element in whole numbers of Python: slow, and what the fast one
is checked by.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from npulab.npus.nvdla.convolution import Window
from npulab.npus.nvdla.fetch import Format
from npulab.npus.nvdla.layouts import Cube, Weights

WORD, CONVERTED_BITS = (
    16,
    17,
)  # bits that packed channels are moved up in; behind the converter of pixels


def cube_places_plain(cube: Cube) -> np.ndarray:
    """Byte of each element of a cube, element by element."""
    out = np.empty(cube.shape, np.int64)
    for y, x, lane in np.ndindex(cube.shape):
        surface, inside = divmod(lane, cube.lanes)
        out[y, x, lane] = (
            surface * cube.plane_pitch + y * cube.row_pitch + x * cube.atom + inside * cube.itemsize
        )
    return out


def weight_places_plain(weights: Weights) -> np.ndarray:
    """Byte of each weight, loop by loop."""
    out, at = np.empty(weights.shape, np.int64), 0
    for group in range(0, weights.kernels, weights.group):
        for block in range(0, weights.channels, weights.block):
            for rows in range(0, weights.height, weights.lines):
                for column in range(weights.width):
                    for kernel in range(group, min(group + weights.group, weights.kernels)):
                        for row in range(rows, min(rows + weights.lines, weights.height)):
                            for channel in range(
                                block, min(block + weights.block, weights.channels)
                            ):
                                out[kernel, row, column, channel] = at
                                at += weights.itemsize
    return out


def unpack_plain(form: Format, rows: np.ndarray, rows_uv: np.ndarray | None = None) -> np.ndarray:
    """``Format.unpack``, pixel by pixel and channel by channel."""
    height, width = len(rows), rows.shape[1] // form.pixel
    out = np.empty((height, width, len(form.channels)), f"u{form.element}")
    for y, x, channel in np.ndindex(out.shape):
        first, bits = form.channels[channel]
        pixel = rows[y, x * form.pixel : (x + 1) * form.pixel].tobytes()
        if rows_uv is not None:
            pixel += rows_uv[y, x * form.pixel_uv : (x + 1) * form.pixel_uv].tobytes()
        if bits:
            out[y, x, channel] = (
                int.from_bytes(pixel, "little") // 2**first % 2**bits * 2 ** (WORD - bits)
            )
        else:
            out[y, x, channel] = int.from_bytes(
                pixel[first * form.element : (first + 1) * form.element], "little"
            )
    return out


def converted_plain(value: int, offset: int, scale: int, truncate: int, bits: int) -> int:
    """``converted`` of one value."""
    moved = (value - offset) * scale
    size = (2 * abs(moved) + 2**truncate) // 2 ** (truncate + 1)
    for width in (CONVERTED_BITS, bits):
        size = min(size, 2 ** (width - 1) - (0 if moved < 0 else 1))
    return -size if moved < 0 else size


def handed_over_plain(total: int, truncate: int, itemsize: int = 1) -> int:
    """``handed_over`` of one sum."""
    half = 2 ** ((34 if itemsize == 1 else 48) - 1)
    kept = min(max(total, -half), half - 1)
    size = (2 * abs(kept) + 2**truncate) // 2 ** (truncate + 1)
    return min(max(size if kept >= 0 else -size, -(2**31)), 2**31 - 1)


def convolve_plain(
    x: np.ndarray, weights: np.ndarray, window: Window, truncate: int = 0, lanes: int = 0
) -> np.ndarray:
    """``convolve``, output by output and tap by tap in whole numbers."""
    (height, width), (kernels, rows, columns, channels) = window.output, weights.shape
    out = np.zeros((height, width, max(lanes, kernels)), np.int32)
    for y, x_, k in np.ndindex(height, width, kernels):
        total = 0
        for row, column, channel in product(range(rows), range(columns), range(channels)):
            at = y * window.stride[0] - window.before[0] + row * window.dilation[0]
            over = x_ * window.stride[1] - window.before[1] + column * window.dilation[1]
            inside = 0 <= at < x.shape[0] and 0 <= over < x.shape[1]
            total += int(weights[k, row, column, channel]) * (
                int(x[at, over, channel]) if inside else window.pad_value
            )
        out[y, x_, k] = handed_over_plain(total, truncate, x.itemsize)
    return out
