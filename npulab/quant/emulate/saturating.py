"""Accumulation in which the sum of a few products saturates before it joins the accumulator.

The x86 instruction VPMADDUBSW multiplies uint8 by int8 and adds the products in pairs, each sum
saturated to int16 (Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2,
PMADDUBSW); processors without VNNI have nothing quicker for 8-bit codes, and so have narrow NPUs
with 16-bit registers behind their multipliers.  The difference from the true sum is computed only
where a group can saturate at all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from npulab.quant.emulate.sliding import windows
from npulab.quant.layers import Conv2D, FullyConnected
from npulab.support.refuse import refuse_if

ORDERS = ("HWC", "CHW", "WHC")
BLOCK = 1_000_000  # products looked at at a time: 8 MB as int64


@dataclass(frozen=True)
class Saturation:
    """Products are added ``group`` at a time, and each group's sum saturates to ``bits`` bits,
    signed.

    Groups run along K, the products of one output, filled with zeros to a whole group.  ``order``
    names the axes of K from the slowest to the fastest: "HWC" is kernel row, kernel column,
    channel.  A depthwise convolution has one channel in its K.  ``stored``: the codes are
    multiplied as they are stored and zero points are taken off the sums; otherwise zero points are
    taken off before the products are formed.  Padding enters as the input's zero point. Raises
    ValueError for a group below 2, a width outside 2 to 32 and an unknown order.

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
        """Lowest and highest sum of a group."""
        return -(2 ** (self.bits - 1)), 2 ** (self.bits - 1) - 1

    def __str__(self) -> str:
        if self.group == 2:
            size = "pairs"
        else:
            size = f"groups of {self.group}"
        if self.stored:
            codes = ""
        else:
            codes = ", zero points taken off before"
        return (
            f"products saturate in {size} at {self.bits} bits, K in the order {self.order}{codes}"
        )


def excess(layer: Conv2D | FullyConnected, x: np.ndarray, saturation: Saturation) -> np.ndarray:
    """What saturation takes off the true accumulators: ``(..., C)`` int64, true minus saturated.

    ``x`` are images ``(N, H, W, C)`` of a convolution, rows ``(..., I)`` of a fully connected
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
    layer: Conv2D | FullyConnected,
    x: np.ndarray,
    saturation: Saturation,
    positions: np.ndarray,
) -> np.ndarray:
    """``excess`` of some outputs only, ``(P, C)``: ``positions`` count images, rows and columns in
    one number."""
    images = (
        x.reshape(-1, layer.weights.shape[1])
        if isinstance(layer, FullyConnected)
        else x.reshape(-1, *layer.input_shape)
    )
    seen, weights = _windows(layer, images, saturation)
    return _of_windows(
        layer, seen[np.unravel_index(positions, seen.shape[:-3])], weights, saturation
    )


def _windows(
    layer: Conv2D | FullyConnected, x: np.ndarray, saturation: Saturation
) -> tuple[np.ndarray, np.ndarray]:
    """What enters the products, int32: windows ``(N, H, W, C, kernel_h, kernel_w)`` and weights
    OHWI or 1HWC.

    A fully connected layer has rows ``(1, N, 1, I, 1, 1)`` and weights ``(O, 1, 1, I)``.
    """
    if saturation.stored:
        x_zero, w_zero = 0, 0
    else:
        x_zero, w_zero = layer.input_q.zero_point, layer.weight_q.zero_point
    x, weights = (
        x.astype(np.int32) - np.int32(x_zero),
        layer.weights.astype(np.int32) - np.int32(w_zero),
    )
    if isinstance(layer, FullyConnected):
        return x.reshape(1, -1, 1, weights.shape[1], 1, 1), weights[:, None, None]
    return windows(layer, x, layer.input_q.zero_point - x_zero), weights


def _of_windows(
    layer: Conv2D | FullyConnected,
    seen: np.ndarray,
    weights: np.ndarray,
    saturation: Saturation,
) -> np.ndarray:
    """``excess`` ``(P, channels)`` of windows ``(P, C, kernel_h, kernel_w)``."""
    axes = ["CHW".index(axis) for axis in saturation.order]
    rows = seen.transpose(0, *(axis + 1 for axis in axes))
    kernels = weights.transpose(0, 3, 1, 2).transpose(0, *(axis + 1 for axis in axes))
    if not (isinstance(layer, Conv2D) and layer.depthwise):
        return _matrix_excess(
            rows.reshape(len(rows), -1), kernels.reshape(len(weights), -1).T, saturation
        )
    depth = saturation.order.index("C")
    by_channel, taps = np.moveaxis(rows, depth + 1, 0), np.moveaxis(kernels[0], depth, 0)
    copies = len(taps) // len(by_channel)
    parts = [
        _matrix_excess(one.reshape(len(rows), -1), kernel.reshape(copies, -1).T, saturation)
        for one, kernel in zip(by_channel, taps.reshape(-1, copies, *taps.shape[1:]), strict=True)
    ]
    return np.concatenate(parts, axis=1)


def _matrix_excess(rows: np.ndarray, weights: np.ndarray, saturation: Saturation) -> np.ndarray:
    """True minus saturated sums ``(M, N)`` int64 of rows ``(M, K)`` times weights ``(K, N)``.

    A group of weights is multiplied out only if the largest and smallest codes of its columns of
    ``rows`` can take its sum past a bound.
    """
    group, (low, high) = saturation.group, saturation.bounds
    fill = -rows.shape[1] % group
    rows, weights = np.pad(rows, ((0, 0), (0, fill))), np.pad(weights, ((0, fill), (0, 0)))
    out = np.zeros((len(rows), weights.shape[1]), np.int64)
    if not out.size or not rows.size:
        return out
    least, most = (edge.astype(np.int64)[:, None] for edge in (rows.min(0), rows.max(0)))
    ends = np.minimum(least * weights, most * weights), np.maximum(least * weights, most * weights)
    smallest, largest = (end.reshape(-1, group, weights.shape[1]).sum(1) for end in ends)
    reaching = (smallest < low) | (largest > high)
    wide = np.abs(smallest).max(initial=0) >= 2**31 or np.abs(largest).max(initial=0) >= 2**31
    rows, weights = (codes.astype(np.int64 if wide else np.int32) for codes in (rows, weights))
    columns = np.ascontiguousarray(rows.T)
    for number in np.flatnonzero(reaching.any(axis=1)):
        chosen = np.flatnonzero(reaching[number])
        taps = range(number * group, number * group + group)
        sums = columns[taps[0]][:, None] * weights[taps[0], chosen]
        for tap in taps[1:]:
            sums += columns[tap][:, None] * weights[tap, chosen]
        out[:, chosen] += sums - np.clip(sums, low, high)
    return out
