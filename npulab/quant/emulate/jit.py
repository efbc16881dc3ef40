"""Loops compiled by numba (the extra ``npulab[fast]``), which pass over the data once where numpy
needs many passes.

They give the same numbers as ``quant.Requantizer`` and ``sums.Depthwise``; tests compare them.
numba keeps machine code on disk. The machine code contains constants of ``quant``, but is only
compiled again if this file changes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray as Array

from npulab.quant.requantize import MAGIC, Requantizer
from npulab.quant.rules import (
    HALVES,
    ROUNDINGS,
    DoubleRounding,
    Float,
    OneRounding,
)
from npulab.support.extras import needed

numba = needed("numba", "compiling loops")

MODES = {name: number for number, name in enumerate(ROUNDINGS)}
# A key is a direction of rounding, the value is (distance down, distance toward zero). A number is
# moved by these distances before it is rounded to nearest, which gives the rounding of the key.
FURTHER = {"nearest": (0.0, 0.0), "floor": (0.5, 0.0), "toward-zero": (0.0, 0.5)}


def compiled(loop: Any) -> Any:
    """Return the loop as machine code, which is kept on disk if there is a place for it."""
    try:
        return numba.njit(cache=True, nogil=True)(loop)
    except RuntimeError:
        return numba.njit(nogil=True)(loop)


class Scaling(NamedTuple):
    """The float32 arithmetic of a row: ``(sum + bias) * factor``, then clamped to codes."""

    bias: Array
    factor: Array
    zero: np.int32
    low: int
    high: int


class Direction(NamedTuple):
    """The rounding of an estimate. Before the estimate is rounded to nearest, it is moved down by
    ``down`` and toward zero by ``inward``.

    If rounding changes the moved estimate by ``limit`` or more, the rule itself is computed.
    ``limit`` has a number for each sum of a row.
    """

    down: np.float32
    inward: np.float32
    limit: Array


class Shifts(NamedTuple):
    """A rule in whole numbers: a product with ``multiplier``, then a right shift by ``first`` bits
    and one by ``second`` bits, each ``(C,)``. ``first_mode`` and ``second_mode`` are the numbers in
    ``MODES`` of the roundings of the two shifts.
    """

    multiplier: Array
    first: Array
    second: Array
    first_mode: int
    second_mode: int


class Rows:
    """A rule prepared for rows of sums. The sums are float32 without the bias, or int32 that
    contain the bias; ``bias`` is then 0.

    An int32 number changes by at most 2**-24 of its size if it becomes float32; the limit of
    ``Requantizer`` allows for that. ``usable`` is False if no loop of this module computes the
    rule.
    """

    def __init__(self, ready: Requantizer, bias: Array) -> None:
        by = ready.parts[0][0]
        self.scaling = Scaling(
            bias, ready.factor, np.int32(ready.zero_point), ready.low, ready.high
        )
        # a rule that is itself float32 arithmetic may add the zero point before rounding
        self.zero_point_first = isinstance(by, Float) and by.zero_point_first
        self.shifts = None
        if not ready.plain:
            self.shifts = _shifts(ready)
        self.usable = ready.plain or self.shifts is not None
        down, inward = map(np.float32, FURTHER[by.rounding_direction])
        limit = np.ascontiguousarray(np.broadcast_to(ready.limit, ready.factor.shape))
        self.direction = Direction(down, inward, limit)

    def __call__(self, sums: Array, out: Array) -> None:
        """Write the codes of sums ``(n, repeat * C)`` to ``out``."""
        if self.shifts is None:
            _plain_rows(sums, *self.scaling, self.zero_point_first, out)
        else:
            _requantized_rows(sums, *self.scaling, *self.direction, *self.shifts, out)


def _shifts(ready: Requantizer) -> Shifts | None:
    """Return the rule as a product and two right shifts. Return None if the rule has another form,
    if the channels use several rules, or if a shift is to the left or by more than 62 bits.
    """
    by = ready.parts[0][0]
    right = ready.right_shift
    if len(ready.parts) > 1 or not right.size or right.min() < 0:
        return None
    if (right + by.fraction_bits).max() > 62:
        return None
    half_up = MODES["half-up"]
    none = np.zeros_like(right)
    # a subclass that defines its own ``exact`` is another rule
    exact = type(by).exact
    if isinstance(by, DoubleRounding) and exact is DoubleRounding.exact:
        return Shifts(ready.multiplier, none + 31, right, half_up, MODES[by.ties])
    if isinstance(by, OneRounding) and exact is OneRounding.exact:
        return Shifts(ready.multiplier, right + by.fraction_bits, none, MODES[by.ties], 0)
    return None


# The next functions have up to 15 parameters each. With named tuples in their place, a call from
# Python took 2.9 microseconds instead of 1.1, and a loop over rows of 3,584 sums 1.24 to 1.5 times
# as long.
@compiled
def _plain_rows(sums, bias, factor, zero, low, high, zero_point_first, out):  # type: ignore[no-untyped-def]
    """Write codes of rows of sums for rules that are themselves float32 arithmetic."""
    before = np.float32(0)
    after = zero
    if zero_point_first:
        before = np.float32(zero)
        after = np.int32(0)
    low_f = np.float32(low - after)
    high_f = np.float32(high - after)
    for row in range(len(sums)):
        _plain_row(sums[row], bias, factor, before, after, low_f, high_f, out[row])


@compiled
def _plain_row(sums, bias, factor, before, after, low, high, out):  # type: ignore[no-untyped-def]
    for k in range(sums.size):
        scaled = (np.float32(sums[k]) + bias[k]) * factor[k] + before
        out[k] = np.int32((min(max(scaled, low), high) + MAGIC) - MAGIC) + after


@compiled
def _requantized_rows(  # type: ignore[no-untyped-def]
    sums,
    bias,
    factor,
    zero,
    low,
    high,
    down,
    inward,
    limit,
    multiplier,
    first,
    second,
    first_mode,
    second_mode,
    out,
):
    """Write codes of rows of sums for a rule in whole numbers. The rule itself is computed only for
    sums that float32 cannot decide.
    """
    columns = sums.shape[1]
    channels = multiplier.size
    low_f = np.float32(low - zero)
    high_f = np.float32(high - zero)
    # a byte for each sum of a row, 1 if its estimate is near a boundary; eight bytes are tested at
    # once, because few are 1
    near = np.zeros((columns + 7) // 8 * 8, np.uint8)
    eights = near.view(np.uint64)
    for row in range(len(sums)):
        _estimate(sums[row], bias, factor, limit, down, inward, zero, low_f, high_f, out[row], near)
        for eight in range(eights.size):
            if eights[eight]:
                for k in range(8 * eight, min(8 * eight + 8, columns)):
                    if near[k]:
                        c = k % channels
                        value = (np.int64(sums[row, k]) + np.int64(bias[k])) * multiplier[c]
                        value = _shifted(value, first[c], first_mode)
                        value = _shifted(value, second[c], second_mode)
                        out[row, k] = min(max(value + zero, low), high)


@compiled
def _estimate(sums, bias, factor, limit, down, inward, zero, low, high, out, near):  # type: ignore[no-untyped-def]
    """Write the codes of one row of sums as float32 estimates give them to ``out``. Write 1 to
    ``near`` where an estimate is near a rounding boundary, 0 elsewhere.
    """
    for k in range(sums.size):
        scaled = (np.float32(sums[k]) + bias[k]) * factor[k]
        scaled -= down + (inward if scaled >= 0 else -inward)
        scaled = min(max(scaled, low), high)
        whole = (scaled + MAGIC) - MAGIC
        out[k] = np.int32(whole) + zero
        near[k] = np.int32(abs(scaled - whole) >= limit[k])


@compiled
def _shifted(value, shift, mode):  # type: ignore[no-untyped-def]
    """Return one whole number shifted right, as ``rules.shift_right`` shifts arrays; ``mode`` is
    the number of the rounding in ``MODES``.
    """
    if shift == 0:
        return value
    half = HALVES[shift]
    if mode == 0:  # floor
        return value >> shift
    if mode == 1:  # toward zero
        return -((-value) >> shift) if value < 0 else value >> shift
    if mode == 2:  # half up
        return (value + half) >> shift
    if mode == 4:  # half away
        return (value + half - (value < 0)) >> shift
    up = (value + half) >> shift
    return up - 1 if (value & (2 * half - 1)) == half and up & 1 else up


@compiled
def depthwise(image, weights, dilation, stride, channels, out):  # type: ignore[no-untyped-def]
    """Write the sums ``(rows, run)`` of an image ``(lines, phases, columns * C)`` of codes times
    weights ``(kernel_h, kernel_w, run)``.

    A pass over the sums reads and writes each of them once. Three taps of the kernel are added in
    one pass, so that there are fewer passes.
    """
    height, width, run = weights.shape
    down, right = stride
    spread_h, spread_w = dilation
    for row in range(len(out)):
        for i in range(height):
            line = image[row * down + i * spread_h]
            for j in range(0, width - 2, 3):
                a = j * spread_w
                b = a + spread_w
                c = b + spread_w
                at_a = a // right * channels
                at_b = b // right * channels
                at_c = c // right * channels
                _three(
                    line[a % right, at_a : at_a + run],
                    line[b % right, at_b : at_b + run],
                    line[c % right, at_c : at_c + run],
                    weights[i, j : j + 3],
                    i + j == 0,
                    out[row],
                )
            for j in range(width - width % 3, width):
                at = j * spread_w
                first = at // right * channels
                codes = line[at % right, first : first + run]
                _one(codes, weights[i, j], i + j == 0, out[row])


@compiled
def _three(a, b, c, weights, begin, out):  # type: ignore[no-untyped-def]
    of_a = weights[0]
    of_b = weights[1]
    of_c = weights[2]
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
def _one(codes, weights, begin, out):  # type: ignore[no-untyped-def]
    if begin:
        for k in range(out.size):
            out[k] = np.float32(codes[k]) * weights[k]
    else:
        for k in range(out.size):
            out[k] += np.float32(codes[k]) * weights[k]
