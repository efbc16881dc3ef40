"""Sums of products over windows: a direct convolution of int8 or int16 features, exact and fast.

Elements and weights are multiplied in floating point, in shares of a sum so short that no partial
sum, in whatever order, leaves the whole numbers that the type holds: 1024 products of int8 reach
2**24 in float32, and 2**23 products of int16 reach 2**53 in float64, in which the shares are
joined.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from npulab.npus.nvdla.accumulate import handed_over
from npulab.npus.nvdla.rules import RULES, Rules
from npulab.quant.rules import EXACT_FLOAT32, EXACT_FLOAT64

SHARE = 1024  # products of a share
# bytes that a block of outputs may take beside the tensors, which are at least half as large where
# they are more
LEAST_SPARE, MOST_SPARE = 2 ** 16, 2 ** 23
SUM_BYTES = 64  # of which each sum takes so many on its way to an accumulator
MOST_PRODUCTS = EXACT_FLOAT64 // 2 ** 30  # of a sum of int16 elements
Range = tuple[int, int]
FLOATS: dict[int, np.dtype[Any]] = {1: np.dtype(np.float32), 2: np.dtype(np.float64)}

assert SHARE * 2 ** 14 <= EXACT_FLOAT32


@dataclass(frozen=True)
class Window:
    """How windows move over an input: the output's ``(height, width)``, and what there is of
    (height, width) each.

    ``before`` is the padding above and left of the input; taps outside of it, on any side, read
    ``pad_value``. Raises ValueError for a size, stride or dilation below 1 and a padding below 0.
    """

    output: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    before: tuple[int, int] = (0, 0)
    pad_value: int = 0

    def __post_init__(self) -> None:
        if min(*self.output, *self.stride, *self.dilation) < 1 or min(self.before) < 0:
            raise ValueError(f"{self}: allowed are output, stride and dilation of 1 or more, before of 0 or more")


@dataclass(frozen=True)
class Share:
    """Taps ``first`` to ``end``, counted by rows, of which the channels ``start`` to ``stop`` are
    added up."""

    first: int
    end: int
    start: int
    stop: int

    @property
    def depth(self) -> int:
        """Products of a sum."""
        return (self.end - self.first) * (self.stop - self.start)


def shares(taps: int, channels: int) -> Iterator[Share]:
    """The shares of a sum over taps and channels, none longer than 1024 products."""
    many = max(1, SHARE // channels)
    for first in range(0, taps, many):
        for start in range(0, channels, SHARE):
            yield Share(first, min(first + many, taps), start, min(start + SHARE, channels))


def convolve(x: np.ndarray, weights: np.ndarray, window: Window, truncate: int = 0, lanes: int = 0,
             rules: Rules = RULES) -> np.ndarray:
    """Accumulators ``(height, width, lanes) int32`` of a convolution, as the accumulator hands them
    over.

    ``x`` is ``(H, W, C)``, ``weights`` ``(K, R, S, C)``, both int8 or both int16.  Lanes past the
    kernels, where there are to be ``lanes`` in all, are 0.  ``rules`` are those of the accumulator.
    Raises ValueError for other types and shapes, and for more than 2**23 products of a sum.
    """
    _check(x, weights, window, lanes)
    kernels, taps = len(weights), weights.shape[1] * weights.shape[2]
    (height, width), channels = window.output, weights.shape[3]
    type_ = FLOATS[x.itemsize]
    out = np.zeros((height * width, max(lanes, kernels)), np.int32 if rules.saturate_stages else np.int64)
    parts = list(shares(taps, channels))
    flat = weights.reshape(kernels, taps, channels)
    spare = min(MOST_SPARE, max(LEAST_SPARE, (x.nbytes + weights.nbytes + out.nbytes) // 2))
    deepest = max(part.depth for part in parts)
    step = max(1, spare // (deepest * type_.itemsize + kernels * SUM_BYTES))
    columns = np.empty(step * deepest, type_)
    for at in range(0, height * width, step):
        end = min(at + step, height * width)
        joined = np.zeros((end - at, kernels), np.float64)
        for part in parts:
            there = columns[:(end - at) * part.depth].reshape(end - at, part.end - part.first, part.stop - part.start)
            _windows(x, weights.shape[2], window, part, (at, end), there)
            few = max(1, spare // 4 // (part.depth * type_.itemsize))
            for k in range(0, kernels, few):
                some = flat[k:k + few, part.first:part.end, part.start:part.stop].reshape(-1, part.depth)
                joined[:, k:k + few] += there.reshape(-1, part.depth) @ some.astype(type_).T
        out[at:end, :kernels] = handed_over(joined, truncate, x.itemsize, rules)
    return out.reshape(height, width, -1)


def _windows(x: np.ndarray, across: int, window: Window, share: Share, ends: tuple[int, int], out: np.ndarray) -> None:
    """Write what the share's taps read for the outputs of ``ends``, counted by rows, to ``(outputs,
    taps, channels)``.

    Outputs are taken by rectangles: the part of one whose windows lie inside of the input is copied
    by rows of the kernel, the rest tap by tap.
    """
    x, taps = x[:, :, share.start:share.stop], [divmod(tap, across) for tap in range(share.first, share.end)]
    (first, _), (last, _) = taps[0], taps[-1]
    lines = [(row, [column for one, column in taps if one == row]) for row in range(first, last + 1)]
    left, right = min(columns[0] for _, columns in lines), max(columns[-1] for _, columns in lines)
    for top, bottom, start, stop in _rectangles(*ends, window.output[1]):
        rectangle = out[top * window.output[1] + start - ends[0]:(bottom - 1) * window.output[1] + stop - ends[0]]
        there = rectangle.reshape(bottom - top, stop - start, *out.shape[1:])
        a, b = _both(_inside(window, 0, first, (top, bottom), len(x)), _inside(window, 0, last, (top, bottom), len(x)))
        c, d = _both(_inside(window, 1, left, (start, stop), x.shape[1]),
                     _inside(window, 1, right, (start, stop), x.shape[1]))
        at = 0
        for row, columns in lines:
            if a < b and c < d:
                down = (top + a) * window.stride[0] - window.before[0] + row * window.dilation[0]
                over = (start + c) * window.stride[1] - window.before[1] + columns[0] * window.dilation[1]
                strides = (x.strides[0] * window.stride[0], x.strides[1] * window.stride[1],
                           x.strides[1] * window.dilation[1], x.strides[2])
                there[a:b, c:d, at:at + len(columns)] = as_strided(
                    x[down:, over:], (b - a, d - c, len(columns), x.shape[2]), strides, writeable=False)
            at += len(columns)
        whole = 0, stop - start
        edges = ((0, a), whole), ((b, bottom - top), whole), ((a, b), (0, c)), ((a, b), (d, stop - start))
        for (y, y_end), (z, z_end) in edges:
            if y < y_end and z < z_end:
                _edge(x, window, taps, (top + y, top + y_end), (start + z, start + z_end), there[y:y_end, z:z_end])


def _edge(x: np.ndarray, window: Window, taps: list[tuple[int, int]], rows: Range, columns: Range,
          out: np.ndarray) -> None:
    """Write what taps (row, column) read for a rectangle of outputs, some of it padding."""
    for at, (row, column) in enumerate(taps):
        top, bottom = _inside(window, 0, row, rows, x.shape[0])
        left, right = _inside(window, 1, column, columns, x.shape[1])
        out[:, :, at] = window.pad_value
        if top < bottom and left < right:
            down, over = (first * step - before + tap * spread for first, step, before, tap, spread in
                          zip((rows[0] + top, columns[0] + left), window.stride, window.before, (row, column),
                              window.dilation, strict=True))
            out[top:bottom, left:right, at] = x[down:down + (bottom - top - 1) * window.stride[0] + 1:window.stride[0],
                                                over:over + (right - left - 1) * window.stride[1] + 1:window.stride[1]]


def _rectangles(first: int, end: int, width: int) -> Iterator[tuple[int, int, int, int]]:
    """(top, bottom, left, right) of the outputs ``first`` to ``end``, counted by rows: at most
    three."""
    while first < end:
        row, column = divmod(first, width)
        if column or end - first < width:
            stop = min(end - row * width, width)
            yield row, row + 1, column, stop
            first = row * width + stop
        else:
            bottom = end // width
            yield row, bottom, 0, width
            first = bottom * width


def _inside(window: Window, axis: int, tap: int, ends: Range, size: int) -> Range:
    """First and end of the outputs of ``ends``, counted from the first of them, whose tap lies
    inside of an axis of the input."""
    step, (first, end) = window.stride[axis], ends
    at = tap * window.dilation[axis] - window.before[axis]
    start = min(max(first, -(at // step)), end)
    stop = min(max(start, -((at - size) // step)), end)
    return start - first, stop - first


def _both(one: Range, other: Range) -> Range:
    """What two stretches have in common."""
    start, stop = max(one[0], other[0]), min(one[1], other[1])
    return (start, stop) if start < stop else (0, 0)


def _check(x: np.ndarray, weights: np.ndarray, window: Window, lanes: int) -> None:
    if x.dtype not in (np.int8, np.int16) or weights.dtype != x.dtype:
        raise ValueError(f"x, weights: got {x.dtype}, {weights.dtype}, allowed is int8 or int16 for both")
    if x.ndim != 3 or weights.ndim != 4 or weights.shape[3] != x.shape[2] or not (x.size and weights.size):
        raise ValueError(f"x, weights: got {x.shape}, {weights.shape}, allowed is (H, W, C), (K, R, S, C)")
    if weights[0].size > MOST_PRODUCTS:
        raise ValueError(f"weights: got {weights[0].size} products of a sum, allowed is up to {MOST_PRODUCTS}")
    least, most = np.iinfo(x.dtype).min, np.iinfo(x.dtype).max
    if not least <= window.pad_value <= most:
        raise ValueError(f"pad_value: got {window.pad_value}, allowed is {least} to {most}")
    if lanes and lanes < len(weights):
        raise ValueError(f"lanes: got {lanes}, allowed is {len(weights)} or more")
