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

from npulab.npus.nvdla.accumulate import handed_over
from npulab.npus.nvdla.rules import RULES, Rules
from npulab.quant.rules import EXACT_FLOAT32, EXACT_FLOAT64

SHARE = 1024  # products of a share
# bytes that a block of outputs may take beside the tensors, which are at least half as large where
# they are more
LEAST_SPARE, MOST_SPARE = 2 ** 16, 2 ** 23
SUM_BYTES = 64  # of which each sum takes so many on its way to an accumulator
MOST_PRODUCTS = EXACT_FLOAT64 // 2 ** 30  # of a sum of int16 elements
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
    out = np.zeros((height * width, max(lanes, kernels)),
                   np.int32 if rules.saturate_stages else np.int64)
    parts = list(shares(taps, channels))
    flat = weights.reshape(kernels, taps, channels)
    spare = min(MOST_SPARE, max(LEAST_SPARE, (x.nbytes + weights.nbytes + out.nbytes) // 2))
    deepest = max(part.depth for part in parts)
    step = max(1, spare // (deepest * (x.itemsize + type_.itemsize) + kernels * SUM_BYTES))
    for at in range(0, height * width, step):
        outputs = np.arange(at, min(at + step, height * width))
        joined = np.zeros((len(outputs), kernels), np.float64)
        for part in parts:
            read = _windows(x, weights.shape[2], window, part, outputs).astype(type_)
            few = max(1, spare // 4 // (part.depth * type_.itemsize))
            for k in range(0, kernels, few):
                group = flat[k:k + few, part.first:part.end, part.start:part.stop]
                joined[:, k:k + few] += read @ group.reshape(-1, part.depth).astype(type_).T
        out[outputs[0]:outputs[-1] + 1, :kernels] = handed_over(joined, truncate, x.itemsize, rules)
    return out.reshape(height, width, -1)


def _windows(x: np.ndarray, across: int, window: Window, share: Share, outputs: np.ndarray,
             ) -> np.ndarray:
    """What a share's taps read for outputs counted by rows, ``(outputs, products)``; kernels are
    ``across`` taps wide."""
    starts = np.divmod(outputs[:, None], window.output[1])
    taps = np.divmod(np.arange(share.first, share.end), across)
    down, over = (start * stride - before + tap * dilation for start, stride, before, tap, dilation
                  in zip(starts, window.stride, window.before, taps, window.dilation, strict=True))
    outside = (down < 0) | (down >= x.shape[0]) | (over < 0) | (over >= x.shape[1])
    down[outside], over[outside] = 0, 0
    read = x[down, over, share.start:share.stop]
    read[outside] = window.pad_value
    return read.reshape(len(outputs), -1)


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
