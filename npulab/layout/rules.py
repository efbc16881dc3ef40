"""Search for the nest of loops that fits the places of elements.

If an axis lies in tiles, the distance from its first index to index ``n`` is a sum: the number of
the block times the stride of the blocks, plus the same for the smaller blocks inside of this block.
The block numbers are the digits of ``n``. They are read off lines of places along the axis; a nest
has a loop for each digit of each axis.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, pairwise, permutations, product, starmap
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray as Array

from npulab.layout.nest import Layout, Loop, join_axes
from npulab.layout.stored import Shape

# The median is taken from at most this many lines along an axis.
LINES = 64
# The window of an axis begins and ends at an index with at least 1 / RARE of the known places that
# the index with the most known places has.
RARE = 8
# Stands for a distance that is not known.
UNKNOWN = np.int64(2**62)
# At most 1 / WRONG of the places along an axis may be wrong.
WRONG = 8
# A list of the bytes to each index counts as a rule only with this many elements for each entry.
LISTED = 4
# If places are missing, at most this many ends of a tile are tried.
GAPS = 64

Stride = int | tuple[int, ...]


class Digit(NamedTuple):
    """One level of tiles of an axis: blocks of ``tile`` indices.

    ``stride`` is the bytes from block to block, or the list of bytes from the first block to each.
    """

    tile: int
    stride: Stride


class AxisDigit(NamedTuple):
    """A digit with the axis to which it belongs."""

    axis: int
    tile: int
    stride: Stride

    @property
    def loop(self) -> Loop:
        return Loop(self.axis, self.tile, self.stride)


def layouts(
    places: Array, deep: bool = False, *, sampled: bool = False, **stored: Any
) -> Iterator[Layout]:
    """Yield nests (layouts) that may fit the places of elements, the plainest first.

    ``places`` are ``(*shape) int64``, -1 for an unknown place. A few may be missing or wrong, so
    the caller has to check each nest. With ``deep`` only nests with axes that begin inside of a
    tile, joined axes, or a list of the bytes to each index are yielded, without ``deep`` only other
    nests. With ``sampled`` only some places are given, and the whole tensor is in the buffer.
    ``stored`` are further fields of ``Layout``; ``size`` grows if a nest needs more.
    """
    shape = places.shape
    whole = tuple((0, n) for n in shape)
    window = whole
    if not sampled:
        window = _window(places)
    if not window:
        return
    inside = places[tuple(slice(*ends) for ends in window)]
    if deep:
        for fields, steps in _deeper(inside):
            yield from _nests(shape, steps, {**stored, **fields, "window": window}, sampled)
        return
    for steps in _plain_readings(inside):
        offset = _origin(inside, steps)
        # The window's nest is also tried for the whole tensor: the last places may lie past the end
        # of a buffer that was cut off, and the first places may be unknown.
        start = _extended(window, shape, steps, offset)
        if window != whole and start is not None:
            yield from _nests(shape, steps, {**stored, "window": whole, "offset": start}, False)
        fields = {**stored, "window": window, "offset": offset}
        yield from _nests(shape, steps, fields, sampled)


def _window(places: Array) -> tuple[tuple[int, int], ...]:
    """Return (start, stop) of each axis around the indices with known places.

    The result is empty if no place is known.
    """
    known = places >= 0
    window = []
    for axis in range(places.ndim):
        counts = np.count_nonzero(known, axis=_without(axis, places.ndim))
        full = np.flatnonzero((counts > 0) & (counts * RARE >= counts.max()))
        if not len(full):
            return ()
        window.append((int(full[0]), int(full[-1]) + 1))
    return tuple(window)


def _without(axis: int, axes: int) -> tuple[int, ...]:
    """Return the numbers of all axes but one."""
    return (*range(axis), *range(axis + 1, axes))


def _plain_readings(places: Array) -> list[list[AxisDigit]]:
    """Return possible digits of all axes, as a list of readings.

    First come the digits that one line and many lines along each axis show, then the same digits
    with one tile slightly longer or shorter.
    """
    readings: list[list[AxisDigit]] = []
    for lines, corners in ((1, False), (LINES, False), (1, True), (2, True)):
        steps = _steps(places, lines, corners)
        if steps is not None and steps not in readings:
            readings.append(steps)
    moved: list[list[AxisDigit]] = []
    for steps in readings:
        moved += _near(steps)
    return readings + moved


def _steps(places: Array, lines: int, corners: bool) -> list[AxisDigit] | None:
    """Return the digits of all axes, read from lines of places near the origin.

    The result is None if a line is not made of digits.

    With ``corners`` the lines at the far end of the axes are read too: a tile may be short there,
    and so end where no tile near the origin ends.
    """
    steps: list[AxisDigit] = []
    for axis, n in enumerate(places.shape):
        if n == 1:
            continue
        line, known = _line(places, axis, lines)
        digits = digits_of(line, known)
        if digits is None:
            return None
        if corners:
            far_line, far_known = _line(np.flip(places, _without(axis, places.ndim)), axis, lines)
            far = digits_of(far_line, far_known) or []
            tiles = {digit.tile for digit in digits + far}
            digits = [Digit(tile, int(line[tile])) for tile in sorted(tiles) if known[tile]]
        steps += [AxisDigit(axis, *digit) for digit in digits]
    return steps


def _line(places: Array, axis: int, lines: int) -> tuple[Array, Array]:
    """Return the distance of each index of an axis from the first index, in bytes, ``(n,)``.

    The second value, ``(n,) bool``, is true for known distances.

    A distance is the median over about ``lines`` lines near the origin, because tiles are full
    there; it is known if more than half of the lines have it.
    """
    n = places.shape[axis]
    long_axes = sum(n > 1 for n in places.shape) - (n > 1)
    # Without 1e-9, a whole root could be rounded down to the number below.
    each = max(int(lines ** (1 / max(long_axes, 1)) + 1e-9), 1)
    corner = [slice(each)] * places.ndim
    corner[axis] = slice(None)
    table = np.moveaxis(places[tuple(corner)], axis, -1).reshape(-1, n)
    table = table[table[:, 0] >= 0]
    if not len(table):
        return np.zeros(n, np.int64), np.zeros(n, bool)
    distances = np.where(table >= 0, table - table[:, :1], UNKNOWN)
    middle, counts = _middle(distances, 0)
    agree = np.count_nonzero((distances == middle) & (distances < UNKNOWN), axis=0)
    return middle[0], 2 * agree > counts


def _middle(values: Array, axis: int) -> tuple[Array, Array]:
    """Return the median of the known values along an axis, and the number of known values.

    The axis stays with size 1 in both.
    """
    counts = np.count_nonzero(values != UNKNOWN, axis=axis)
    # UNKNOWN is larger than any distance and sorts last, so the median can be taken from known
    # values alone.
    at = np.expand_dims(np.maximum(counts - 1, 0) // 2, axis)
    return np.take_along_axis(np.sort(values, axis), at, axis), counts


def digits_of(line: Array, known: Array) -> list[Digit] | None:
    """Return the digits that give the distances along an axis, the lowest first.

    ``line`` has the distances, ``known`` is true for known ones. The result is None if no digits
    give these distances.
    """
    have = np.flatnonzero(known)
    if len(line) == 1:
        return []
    if len(have) < 2 or have[0] != 0 or line[have[1]] % have[1]:
        return None
    stride = int(line[have[1]] // have[1])
    index = np.arange(len(line))
    wrong = np.flatnonzero(known & (line != index * stride))
    if not len(wrong):
        return [Digit(1, stride)]
    # The tile ends at the first place that the stride does not give, or earlier if places before it
    # are missing.
    first_wrong = int(wrong[0])
    last_right = int(have[have < first_wrong][-1])
    for tile in range(first_wrong, max(last_right, first_wrong - GAPS), -1):
        blocks = _blocks(line - index % tile * stride, known, tile)
        if blocks is None:
            continue
        higher = digits_of(*blocks)
        if higher is None:
            continue
        digits = [Digit(tile * digit.tile, digit.stride) for digit in higher]
        # If places around the end of a tile are missing, the blocks may turn out to follow each
        # other with the stride of the indices; then the axis has no tile here, and the digit is
        # left out.
        if digits[0] == (tile, stride * tile):
            del digits[0]
        return [Digit(1, stride), *digits]
    return None


def _blocks(line: Array, known: Array, tile: int) -> tuple[Array, Any] | None:
    """Return the distance of each block of ``tile`` indices, and true for each known distance.

    The result is None if too many indices have another distance than most indices of their block.
    """
    short = -len(line) % tile
    values = np.pad(np.where(known, line, UNKNOWN), (0, short), constant_values=UNKNOWN)
    values = values.reshape(-1, tile)
    middle, counts = _middle(values, 1)
    wrong = np.count_nonzero((values != UNKNOWN) & (values != middle))
    if WRONG * wrong <= np.count_nonzero(known):
        return middle[:, 0], counts > 0
    return None


def _near(steps: list[AxisDigit]) -> Iterator[list[AxisDigit]]:
    """Yield the digits of all axes with one tile up to three indices longer or shorter.

    Equal values on both sides of a tile's end may have hidden its end.
    """
    for place, step in enumerate(steps):
        along = [digit for digit in steps if digit.axis == step.axis]
        inner = min(along, key=lambda digit: digit.tile)
        # Only the higher digit of an axis with two digits is changed, because further digits would
        # depend on the change.
        if len(along) != 2 or inner is step:
            continue
        for more in (1, -1, 2, -2, 3, -3):
            tile = step.tile + more
            if tile > 1:
                stride = step.loop.reach(1) + more * inner.loop.reach(1)
                yield [*steps[:place], AxisDigit(step.axis, tile, stride), *steps[place + 1 :]]


def _origin(places: Array, steps: list[AxisDigit], starts: Sequence[int] = ()) -> int:
    """Return the place at which the tiles of the first element begin.

    It is the median of the places that elements near the first element suggest.
    """
    near = places[(slice(max(int(LINES ** (1 / places.ndim)), 2)),) * places.ndim]
    index = np.argwhere(near >= 0)
    if not len(index):
        near = places
        index = np.argwhere(places >= 0)[:LINES]
    origins = near[tuple(index.T)].copy()
    rest = index + np.array(starts or (0,) * places.ndim)
    for step in sorted(steps, key=lambda step: -step.tile):
        origins -= step.loop.reach(rest[:, step.axis] // step.tile)
        rest[:, step.axis] %= step.tile
    return int(np.sort(origins)[(len(origins) - 1) // 2])


def _extended(
    window: tuple[tuple[int, int], ...],
    shape: Shape,
    steps: list[AxisDigit],
    offset: int,
) -> int | None:
    """Return the place of the first element of the whole tensor, from the digits in a window.

    The result is None if the digits do not show it.
    """
    outer: dict[int, AxisDigit] = {}
    for step in sorted(steps, key=lambda step: step.tile):
        outer[step.axis] = step
    for axis, ((start, _), n) in enumerate(zip(window, shape, strict=True)):
        if axis in outer:
            block, rest = divmod(start, outer[axis].tile)
            offset -= outer[axis].loop.reach(block)
        else:
            rest = 1
        if n > 1 and rest:
            return None
    return offset


def _nests(
    shape: Shape, steps: list[AxisDigit], fields: dict[str, Any], around: bool
) -> Iterator[Layout]:
    """Yield layouts with a loop for each digit in ``steps`` and with ``fields``.

    The size grows if the loops need more. In the first layout all loops have strides. In the next
    layouts some loops have none, so that their blocks may be short: all loops from some loop
    inwards, and with ``around`` also a run of loops around loops that keep their strides, as for
    elements with a gap after each.
    """
    loops = [step.loop for step in _in_order(steps)]
    count = len(loops)
    short = [range(0)]
    listed = any(isinstance(loop.stride, tuple) for loop in loops)
    if not listed and not any(fields.get("starts", ())):
        short += [range(first, count) for first in range(count)]
        if around:
            short += starmap(range, combinations(range(count), 2))
    for packed in short:
        changed = [*loops]
        for at in packed:
            changed[at] = replace(loops[at], stride=None)
        try:
            layout = Layout(shape, _needed(changed), **{**fields, "size": 0})
            if layout.size < fields.get("size", 0):
                layout = Layout(shape, layout.loops, **fields)
        except ValueError:
            continue
        yield layout


def _in_order(steps: list[AxisDigit]) -> list[AxisDigit]:
    """Return digits from the largest stride to the smallest.

    Digits of one axis are ordered from its largest tile to its smallest.
    """
    by_axis: dict[int, list[AxisDigit]] = {}
    for step in sorted(steps, key=lambda step: step.tile):
        by_axis.setdefault(step.axis, []).append(step)
    by_stride = sorted(steps, key=lambda step: -_wide(step.stride))
    return [by_axis[step.axis].pop() for step in by_stride]


def _wide(stride: Stride) -> int:
    """Return the average distance from block to block, in bytes."""
    if isinstance(stride, int):
        return abs(stride)
    return (max(stride) - min(stride)) // max(len(stride) - 1, 1)


def _needed(loops: list[Loop]) -> tuple[Loop, ...]:
    """Return the loops without superfluous loops.

    A loop without a stride is superfluous if the next loop has none either, has the same axis and
    smaller tiles, and so covers all its blocks.
    """
    needed = loops[-1:]
    for loop, inner in reversed([*pairwise(loops)]):
        joined = loop.axis == inner.axis and loop.tile % inner.tile == 0
        if loop.stride is not None or inner.stride is not None or not joined:
            needed.insert(0, loop)
    return tuple(needed)


def _deeper(places: Array) -> Iterator[tuple[dict[str, Any], list[AxisDigit]]]:
    """Yield (fields of ``Layout``, digits), first for each axis alone, then for joined axes."""
    axes = [axis for axis, n in enumerate(places.shape) if n > 1]
    joins: list[tuple[int, ...]] = [()]
    for count in range(2, len(axes) + 1):
        joins += permutations(axes, count)
    for join, lines in product(joins, (1, LINES)):
        groups = tuple(filter(None, [join]))
        joined = join_axes(places, groups)
        deep = _deep_steps(joined, join, places.shape, lines)
        if deep is None:
            continue
        starts, steps = deep
        listed = [len(step.stride) for step in steps if isinstance(step.stride, tuple)]
        # A list of byte offsets fits any places, so it counts as a rule only with several elements
        # for each entry.
        if LISTED * max(listed, default=0) <= places.size:
            offset = _origin(joined, steps, starts)
            yield {"starts": starts, "join": groups, "offset": offset}, steps


def _deep_steps(
    joined: Array, join: tuple[int, ...], shape: Shape, lines: int
) -> tuple[tuple[int, ...], list[AxisDigit]] | None:
    """Return for each axis the index in its first tile at which it begins, and the digits of all
    axes.

    The result is None if an axis is not made of digits, or if the axes give the same digits without
    being joined.
    """
    starts = [0] * joined.ndim
    steps: list[AxisDigit] = []
    for axis, n in enumerate(joined.shape):
        if n == 1:
            continue
        line, known = _line(joined, axis, lines)
        start, digits = _any_digits(line, known, axis in join)
        if digits is None:
            return None
        if axis in join and not _together(digits, start, shape, join):
            return None
        starts[axis] = start
        steps += [AxisDigit(axis, *digit) for digit in digits]
    return tuple(starts), steps


def _together(digits: Sequence[Digit], start: int, shape: Shape, join: Sequence[int]) -> bool:
    """Return true if digits need all axes of ``join`` joined; fewer joined axes cannot give
    them."""
    if start > 0:
        return True
    inner = 1
    for axis in reversed(join[1:]):
        inner *= shape[axis]
        if not any(tile % inner and inner % tile for tile, _ in digits):
            return False
    return True


def _any_digits(line: Array, known: Array, joint: bool) -> tuple[int, Sequence[Digit] | None]:
    """Return the index in its first tile at which an axis begins, and its digits or None.

    The highest digit may be a list of the distances, unless the axis is joined (``joint``).
    """
    digits = digits_of(line, known)
    steps = np.diff(line)
    both = known[1:] & known[:-1]
    step = 0
    if both.any():
        step = int(np.median(steps[both]))
    breaks = np.flatnonzero(both & (steps != step)) + 1
    if len(breaks) > 1:
        # An axis whose first tile is shorter than its second begins inside of a tile.
        start = int(breaks[1] - 2 * breaks[0])
        if start > 0:
            # The line is completed with the indices of the first tile before the start of the axis.
            whole = np.concatenate([np.arange(start) * step, line + start * step])
            shifted = digits_of(whole, np.concatenate([np.ones(start, bool), known]))
            if shifted is not None:
                return start, shifted
    if digits is not None or joint or not known.all():
        return 0, digits
    if len(breaks):
        tile = int(breaks[0])
        blocks = line[::tile]
        index = np.arange(len(line))
        even = np.array_equal(blocks[index // tile] + index % tile * step, line)
        if even and tile > 1:
            return 0, [Digit(1, step), Digit(tile, tuple(blocks.tolist()))]
    return 0, [Digit(1, tuple(line.tolist()))]
