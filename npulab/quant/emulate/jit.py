"""Loops compiled by numba (the extra ``npulab[fast]``): what numpy takes many passes for, in one.

They give the numbers that ``quant.Requantizer`` and ``sums.Depthwise`` give, and are tested to.
What numba keeps on disk holds the constants of ``quant`` and is only made anew when this file
changes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from npulab.quant.requantize import MAGIC, Requantizer
from npulab.quant.rules import (
    HALVES,
    ROUNDINGS,
    DoubleRounding,
    Float,
    Mantissa,
    Short,
    SingleRounding,
)
from npulab.support.extras import needed

numba = needed("numba", "compiling loops")

MODES = {name: number for number, name in enumerate(ROUNDINGS)}
FURTHER = {"nearest": (0.0, 0.0), "floor": (0.5, 0.0), "toward-zero": (0.0, 0.5)}


def compiled(loop: Any) -> Any:
    """The loop as machine code, kept on disk where there is a place for it."""
    try:
        return numba.njit(cache=True, nogil=True)(loop)
    except RuntimeError:
        return numba.njit(nogil=True)(loop)


class Rows:
    """A rule made ready for rows of sums: float32 without bias, or int32 with it and a bias of 0.

    An int32 as float32 is off by 2**-24 of its size, which the margin of ``Requantizer`` covers.
    """

    def __init__(self, ready: Requantizer, bias: np.ndarray) -> None:
        (by, _, _), *others = ready.parts
        right = ready.right_shift
        none = np.zeros_like(right)
        self.steps: tuple[Any, ...] | None = None
        if ready.plain:
            assert isinstance(by, Float)
            self.first = by.zero_point_first
        elif (
            not others
            and right.size
            and right.min() >= 0
            and (right + by.fraction_bits).max() <= 62
        ):
            # a subclass with an exact of its own is another rule
            exact = type(by).exact
            if isinstance(by, DoubleRounding) and exact is DoubleRounding.exact:
                self.steps = none + 31, right, MODES["half-up"], MODES[by.ties]
            elif isinstance(by, SingleRounding | Mantissa) and exact in (
                SingleRounding.exact,
                Mantissa.exact,
            ):
                self.steps = right + by.fraction_bits, none, MODES[by.ties], 0
            elif exact is Short.exact:
                self.steps = right + by.fraction_bits, none, MODES["half-up"], 0
        self.usable = ready.plain or self.steps is not None
        self.ready, self.bias = ready, bias
        self.limit = np.ascontiguousarray(np.broadcast_to(ready.limit, ready.factor.shape))

    def __call__(self, sums: np.ndarray, out: np.ndarray) -> None:
        """Write the codes of sums ``(n, repeat * C)`` to ``out``."""
        ready = self.ready
        codes = np.int32(ready.zero_point), ready.low, ready.high
        if self.steps is None:
            _plain(sums, self.bias, ready.factor, self.first, *codes, out)
        else:
            down, inward = map(np.float32, FURTHER[ready.parts[0][0].rounding_direction])
            _requantize(
                sums,
                self.bias,
                ready.factor,
                self.limit,
                down,
                inward,
                *codes,
                ready.multiplier,
                *self.steps,
                out,
            )


@compiled
def _plain(sums, bias, factor, first, zero, low, high, out):  # type: ignore[no-untyped-def]
    """Codes where float32 arithmetic is the rule itself."""
    if first:
        ahead, behind = np.float32(zero), np.int32(0)
    else:
        ahead, behind = np.float32(0), zero
    low_f, high_f = np.float32(low - behind), np.float32(high - behind)
    for row in range(len(sums)):
        _plain_row(sums[row], bias, factor, ahead, behind, low_f, high_f, out[row])


@compiled
def _plain_row(sums, bias, factor, ahead, behind, low, high, out):  # type: ignore[no-untyped-def]
    for k in range(sums.size):
        scaled = (np.float32(sums[k]) + bias[k]) * factor[k] + ahead
        out[k] = np.int32((min(max(scaled, low), high) + MAGIC) - MAGIC) + behind


@compiled
def _requantize(  # type: ignore[no-untyped-def]
    sums,
    bias,
    factor,
    limit,
    down,
    inward,
    zero,
    low,
    high,
    multiplier,
    first,
    second,
    one,
    two,  # type: ignore[no-untyped-def]
    out,
):
    """Codes of a rule in whole numbers: a product and two rounding shifts, where float32 could not
    tell."""
    columns, channels = sums.shape[1], multiplier.size
    near = np.zeros((columns + 7) // 8 * 8, np.uint8)
    words = near.view(np.uint64)
    low_f, high_f = np.float32(low - zero), np.float32(high - zero)
    for row in range(len(sums)):
        _estimate(sums[row], bias, factor, limit, down, inward, zero, low_f, high_f, out[row], near)
        for word in range(words.size):
            if words[word]:
                for k in range(8 * word, min(8 * word + 8, columns)):
                    if near[k]:
                        c = k % channels
                        value = (np.int64(sums[row, k]) + np.int64(bias[k])) * multiplier[c]
                        code = _shifted(_shifted(value, first[c], one), second[c], two) + zero
                        out[row, k] = min(max(code, low), high)


@compiled
def _estimate(sums, bias, factor, limit, down, inward, zero, low, high, out, near):  # type: ignore[no-untyped-def]
    """Codes decided in float32, and where the value is near a boundary; as in ``Requantizer``."""
    for k in range(sums.size):
        scaled = (np.float32(sums[k]) + bias[k]) * factor[k]
        scaled -= down + (inward if scaled >= 0 else -inward)
        scaled = min(max(scaled, low), high)
        whole = (scaled + MAGIC) - MAGIC
        out[k] = np.int32(whole) + zero
        near[k] = np.int32(abs(scaled - whole) >= limit[k])


@compiled
def _shifted(value, shift, mode):  # type: ignore[no-untyped-def]
    """``quant.shift_right`` of one number."""
    if shift == 0:
        return value
    half = HALVES[shift]
    if mode == 0:
        return value >> shift
    if mode == 1:
        return -((-value) >> shift) if value < 0 else value >> shift
    if mode == 2:
        return (value + half) >> shift
    if mode == 4:
        return (value + half - (value < 0)) >> shift
    up = (value + half) >> shift
    return up - 1 if (value & (2 * half - 1)) == half and up & 1 else up


@compiled
def depthwise(image, taps, spread, right, channels, down, out):  # type: ignore[no-untyped-def]
    """Sums ``(rows, run)`` of an image ``(lines, phases, columns * C)`` of codes, three taps in a
    pass."""
    height, width, run = taps.shape
    for row in range(len(out)):
        for i in range(height):
            line = image[row * down + i * spread[0]]
            for j in range(0, width - 2, 3):
                a, b, c = j * spread[1], (j + 1) * spread[1], (j + 2) * spread[1]
                at, after, last = (
                    a // right * channels,
                    b // right * channels,
                    c // right * channels,
                )
                _three(
                    line[a % right, at : at + run],
                    taps[i, j],
                    line[b % right, after : after + run],
                    taps[i, j + 1],
                    line[c % right, last : last + run],
                    taps[i, j + 2],
                    i + j == 0,
                    out[row],
                )
            for j in range(width - width % 3, width):
                at = j * spread[1] // right * channels
                _one(line[j * spread[1] % right, at : at + run], taps[i, j], i + j == 0, out[row])


@compiled
def _three(a, of_a, b, of_b, c, of_c, begin, out):  # type: ignore[no-untyped-def]
    if begin:
        for k in range(out.size):
            out[k] = (
                np.float32(a[k]) * of_a[k] + np.float32(b[k]) * of_b[k] + np.float32(c[k]) * of_c[k]
            )
    else:
        for k in range(out.size):
            out[k] += (
                np.float32(a[k]) * of_a[k] + np.float32(b[k]) * of_b[k] + np.float32(c[k]) * of_c[k]
            )


@compiled
def _one(a, of_a, begin, out):  # type: ignore[no-untyped-def]
    for k in range(out.size):
        out[k] = np.float32(a[k]) * of_a[k] + (np.float32(0) if begin else out[k])
