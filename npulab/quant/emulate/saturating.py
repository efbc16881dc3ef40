"""Accumulation in which the sum of a few products saturates before it is added to the accumulator.

The x86 instruction VPMADDUBSW multiplies uint8 by int8 and adds the products in pairs; the sum of
each pair is saturated to int16 (Intel 64 and IA-32 Architectures Software Developer's Manual,
volume 2, PMADDUBSW). Processors without VNNI have no quicker instruction for 8-bit codes. Narrow
NPUs that have 16-bit registers after their multipliers saturate in the same way. The difference
from the true sum is computed only for groups of products that can saturate at all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy import ndarray as Array

from npulab.quant.emulate.sliding import windows
from npulab.quant.layers import Conv2D, FullyConnected, Weighted
from npulab.support.refuse import refuse_if

ORDERS = ("HWC", "CHW", "WHC")
BLOCK = 1_000_000  # most products that are computed at once: 8 MB as int64


@dataclass(frozen=True)
class Saturation:
    """Products are added in groups of ``group``, and the sum of each group saturates to a signed
    number of ``bits`` bits.

    The K products of one output are divided into groups; zeros complete the last group. ``order``
    names the axes over which K runs, the slowest first: "HWC" is kernel row, kernel column,
    channel. The K of a depthwise convolution has one channel. If ``stored`` is true, the codes are
    multiplied as they are stored, and the effect of the zero points is subtracted from the sums.
    Otherwise zero points are subtracted from the codes before they are multiplied. Padding has the
    input's zero point. Raises ValueError for a group below 2, a width outside 2 to 32 and an
    unknown order.

    >>> str(Saturation())
    'products saturate in pairs at 16 bits, K in the order HWC'
    """

    group: int = 2
    bits: int = 16
    order: str = "HWC"
    stored: bool = True

    def __post_init__(self) -> None:
        refuse_if(self.group < 2, "group", self.group, "is at least 2")
        refuse_if(not 2 <= self.bits <= 32, "bits", self.bits, "is 2 to 32")
        if self.order not in ORDERS:
            raise ValueError(f"order: got {self.order!r}, allowed is one of {', '.join(ORDERS)}")

    @property
    def bounds(self) -> tuple[int, int]:
        """The lowest and the highest sum that a group can have."""
        return -(2 ** (self.bits - 1)), 2 ** (self.bits - 1) - 1

    def __str__(self) -> str:
        size = "pairs"
        if self.group != 2:
            size = f"groups of {self.group}"
        text = f"products saturate in {size} at {self.bits} bits, K in the order {self.order}"
        if not self.stored:
            text += ", zero points taken off before"
        return text


def excess(layer: Weighted, x: Array, saturation: Saturation) -> Array:
    """Return the true minus the saturated accumulators, ``(..., C)`` int64.

    ``x`` is images ``(N, H, W, C)`` for a convolution, and rows ``(..., I)`` for a fully connected
    layer.
    """
    seen, weights = _windows(layer, x, saturation)
    lead = seen.shape[:-3]
    out = np.zeros((math.prod(lead), layer.output_shape[-1]), np.int64)
    step = max(1, BLOCK // (math.prod(seen.shape[-3:]) * math.prod(lead[2:])))
    start = 0
    for image in seen:
        for first in range(0, len(image), step):
            rows = image[first : first + step]
            rows = rows.reshape(-1, *rows.shape[-3:])
            out[start : start + len(rows)] = _of_windows(layer, rows, weights, saturation)
            start += len(rows)
    if isinstance(layer, FullyConnected):
        return out.reshape(*x.shape[:-1], -1)
    return out.reshape(*lead, -1)


def of_outputs(
    layer: Weighted,
    x: Array,
    saturation: Saturation,
    positions: Array,
) -> Array:
    """Return ``excess`` for some outputs only, ``(P, C)``. ``positions`` are the P numbers of the
    outputs, counted from 0 over images, rows and columns.
    """
    if isinstance(layer, FullyConnected):
        images: Array = x.reshape(-1, layer.weights.shape[1])
    else:
        images = x.reshape(-1, *layer.input_shape)
    seen, weights = _windows(layer, images, saturation)
    chosen = seen[np.unravel_index(positions, seen.shape[:-3])]
    return _of_windows(layer, chosen, weights, saturation)


def _windows(layer: Weighted, x: Array, saturation: Saturation) -> tuple[Array, Array]:
    """Return the factors of the products, int32: (windows ``(N, H, W, C, kernel_h, kernel_w)``,
    weights OHWI or 1HWC).

    For a fully connected layer the windows are its rows ``(1, N, 1, I, 1, 1)``, and the weights are
    ``(O, 1, 1, I)``.
    """
    codes = x.astype(np.int32)
    weights = layer.weights.astype(np.int32)
    border = layer.input_q.zero_point
    if not saturation.stored:
        codes -= np.int32(layer.input_q.zero_point)
        zeros = layer.weight_q.zeros.astype(np.int32)
        if zeros.ndim and len(weights) > 1:
            zeros = zeros.reshape(-1, *[1] * (weights.ndim - 1))
        weights -= zeros
        border = 0
    if isinstance(layer, FullyConnected):
        return codes.reshape(1, -1, 1, weights.shape[1], 1, 1), weights[:, None, None]
    return windows(layer, codes, border), weights


def _of_windows(
    layer: Weighted,
    seen: Array,
    weights: Array,
    saturation: Saturation,
) -> Array:
    """Return ``excess`` ``(P, channels)`` of windows ``(P, C, kernel_h, kernel_w)``."""
    axes = [1 + "CHW".index(axis) for axis in saturation.order]
    rows = seen.transpose(0, *axes)
    kernels = weights.transpose(0, 3, 1, 2).transpose(0, *axes)
    if not (isinstance(layer, Conv2D) and layer.depthwise):
        columns = kernels.reshape(len(weights), -1).T
        return _matrix_excess(rows.reshape(len(rows), -1), columns, saturation)
    # a depthwise convolution is a separate matrix product for each input channel
    depth = saturation.order.index("C")
    by_channel = np.moveaxis(rows, depth + 1, 0)
    taps = np.moveaxis(kernels[0], depth, 0)
    copies = len(taps) // len(by_channel)
    parts = []
    for number, channel in enumerate(by_channel):
        mine = taps[number * copies : (number + 1) * copies]
        columns = mine.reshape(copies, -1).T
        parts.append(_matrix_excess(channel.reshape(len(rows), -1), columns, saturation))
    return np.concatenate(parts, axis=1)


def _matrix_excess(rows: Array, weights: Array, saturation: Saturation) -> Array:
    """Return the true minus the saturated sums ``(M, N)`` int64 of rows ``(M, K)`` times weights
    ``(K, N)``.

    A group is a few neighbouring columns of ``rows``. Its products are computed only if its sum
    could pass a bound, given the largest and the smallest code in each of these columns.
    """
    group = saturation.group
    low, high = saturation.bounds
    fill = -rows.shape[1] % group
    rows = np.pad(rows, ((0, 0), (0, fill)))
    weights = np.pad(weights, ((0, fill), (0, 0)))
    out = np.zeros((len(rows), weights.shape[1]), np.int64)
    if not out.size or not rows.size:
        return out
    least = rows.min(0).astype(np.int64)[:, None] * weights
    most = rows.max(0).astype(np.int64)[:, None] * weights
    smallest = np.minimum(least, most).reshape(-1, group, weights.shape[1]).sum(1)
    largest = np.maximum(least, most).reshape(-1, group, weights.shape[1]).sum(1)
    reaching = (smallest < low) | (largest > high)
    size = max(np.abs(smallest).max(initial=0), np.abs(largest).max(initial=0))
    wide = np.dtype(np.int64 if size >= 2**31 else np.int32)
    weights = weights.astype(wide)
    columns = np.ascontiguousarray(rows.astype(wide).T)
    for number in np.flatnonzero(reaching.any(axis=1)):
        chosen = np.flatnonzero(reaching[number])
        sums = np.zeros((len(rows), len(chosen)), wide)
        for tap in range(number * group, number * group + group):
            sums += columns[tap][:, None] * weights[tap, chosen]
        out[:, chosen] += sums - np.clip(sums, low, high)
    return out
