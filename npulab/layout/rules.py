"""The nest of loops that places follow."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise, permutations, product
from typing import Any, NamedTuple

import numpy as np

from npulab.layout.nest import Layout, Loop

LINES = 64  # lines along an axis of which the middle one counts
# an axis reaches as far as its indices have at least so small a part of the places that the fullest
# has
RARE = 8
UNKNOWN = np.int64(2**62)
WRONG = 8  # so small a part of the places along an axis may be wrong
LISTED = 4  # elements for each index whose bytes are listed, at least
GAPS = 64  # ends of a tile that are tried where no place tells


Digits = Sequence[tuple[int, int | tuple[int, ...]]]  # (tile, stride) from the lowest


class Step(NamedTuple):
    """A digit of an axis: blocks of ``tile`` indices lie ``stride`` bytes apart."""

    axis: int
    tile: int
    stride: int | tuple[int, ...]


def layouts(places: np.ndarray, deep: bool = False, **stored: Any) -> Iterator[Layout]:
    """Nests that places ``(*shape) int64`` may follow, -1 where unknown, the plainest first.

    A few places may be missing or wrong; whether a nest holds is for the caller to see.  ``deep``
    gives instead the nests that begin inside of a tile, have tiles of two axes together, or a list
    of the bytes to each index.  ``stored`` are further fields of ``Layout``; its size grows where
    the nest needs more.
    """
    window = _window(places)
    if not window:
        return
    inside = places[tuple(slice(*ends) for ends in window)]
    if deep:
        for kind, steps in _deeper(inside):
            yield from _nests(places.shape, window, steps, kind.pop("offset"), {**stored, **kind})
        return
    seen = [
        _steps(inside, lines, corners)
        for lines, corners in ((1, False), (LINES, False), (1, True), (2, True))
    ]
    sure = [steps for at, steps in enumerate(seen) if steps is not None and steps not in seen[:at]]
    for steps in [*sure, *(near for one in sure for near in _near(one))]:
        offset = _origin(inside, steps)
        # what follows the last places may lie past the end of a buffer that was cut off, the first
        # may not be known
        whole = tuple((0, n) for n in places.shape)
        start = _extended(window, places.shape, steps, offset)
        if window != whole and start is not None:
            yield from _nests(places.shape, whole, steps, start, stored)
        yield from _nests(places.shape, window, steps, offset, stored)


def _deeper(places: np.ndarray) -> Iterator[tuple[dict[str, Any], list[Step]]]:
    """Fields of ``Layout`` and steps: axis by axis, then composed; joined axes first."""
    axes = [axis for axis, n in enumerate(places.shape) if n > 1]
    joins = (join for count in (0, *range(2, len(axes) + 1)) for join in permutations(axes, count))
    for join, lines in product(joins, (1, LINES)):
        joined = places
        if join:
            order = [axis for axis in range(places.ndim) if axis not in join[1:]]
            at = order.index(join[0])
            shape = [1 if axis in join else n for axis, n in enumerate(places.shape)]
            shape[join[0]] = math.prod(places.shape[axis] for axis in join)
            joined = places.transpose(*order[:at], *join, *order[at + 1 :]).reshape(shape)
        starts, steps = [0] * places.ndim, []
        for axis, n in enumerate(joined.shape):
            if n > 1:
                starts[axis], digits = _any_digits(*_line(joined, axis, lines), axis in join)
            else:
                starts[axis], digits = 0, []
            if digits is None or (
                axis in join and n > 1 and not _together(digits, starts[axis], places, join)
            ):
                digits = None
                break
            steps += [Step(axis, tile, stride) for tile, stride in digits]
        listed = max(
            (len(step.stride) for step in steps if isinstance(step.stride, tuple)), default=0
        )
        if digits is not None and LISTED * listed <= places.size:
            yield (
                {
                    "offset": _origin(joined, steps, starts),
                    "starts": tuple(starts),
                    "join": (join,) if join else (),
                },
                steps,
            )


def _together(digits: Digits, start: int, places: np.ndarray, join: Sequence[int]) -> bool:
    """Whether digits are of axes together: no loops over fewer of them would do."""
    inner = [math.prod(places.shape[axis] for axis in join[at:]) for at in range(1, len(join))]
    return start > 0 or all(any(tile % n and n % tile for tile, _ in digits) for n in inner)


def _any_digits(line: np.ndarray, known: np.ndarray, joint: bool) -> tuple[int, Digits | None]:
    """Where in its first tile an axis begins, and its digits; the highest may be a list of the
    distances, not of joint axes."""
    digits = _digits(line, known)
    apart = np.diff(line)[known[1:] & known[:-1]]
    step = 0
    if len(apart):
        step = int(np.median(apart))
    breaks = np.flatnonzero(known[1:] & known[:-1] & (np.diff(line) != step)) + 1
    start = 0
    if len(breaks) > 1:
        start = int(breaks[1] - 2 * breaks[0])
    if start > 0:
        # as if the indices before the start were there too
        whole = np.concatenate([np.arange(start) * step, line + start * step])
        shifted = _digits(whole, np.concatenate([np.ones(start, bool), known]))
        if shifted is not None:
            return start, shifted
    if digits is not None or joint or not known.all():
        return 0, digits
    tile = 1
    if len(breaks):
        tile = int(breaks[0])
    blocks = line[::tile]
    even = np.array_equal(
        np.repeat(blocks, tile)[: len(line)] + np.arange(len(line)) % tile * step, line
    )
    if even and tile > 1:
        return 0, [(1, step), (tile, tuple(blocks.tolist()))]
    return 0, [(1, tuple(line.tolist()))]


def _near(steps: list[Step]) -> Iterator[list[Step]]:
    """Steps with a tile that ends a few indices earlier or later: equal values on both sides of its
    end may have hidden where that is."""
    for at, step in enumerate(steps):
        inner = [one for one in steps if one.axis == step.axis and one.tile < step.tile]
        outer = [one for one in steps if one.axis == step.axis and one.tile > step.tile]
        for more in (1, -1, 2, -2, 3, -3) if len(inner) == 1 and not outer else ():
            if step.tile + more > 1:
                other = Step(
                    step.axis,
                    step.tile + more,
                    Loop(*step).reach(1) + more * Loop(*inner[0]).reach(1),
                )
                yield [*steps[:at], other, *steps[at + 1 :]]


def _extended(
    window: tuple[tuple[int, int], ...],
    shape: tuple[int, ...],
    steps: list[Step],
    offset: int,
) -> int | None:
    """Where the first element of the whole tensor lies, by the steps inside of a window; None where
    they do not say."""
    for axis, ((start, _), n) in enumerate(zip(window, shape, strict=True)):
        outer = max(
            (step for step in steps if step.axis == axis), key=lambda step: step.tile, default=None
        )
        if n > 1 and (outer is None or start % outer.tile):
            return None
        if outer:
            offset -= Loop(*outer).reach(start // outer.tile)
        else:
            offset -= 0
    return offset


def _nests(
    shape: tuple[int, ...],
    window: tuple[tuple[int, int], ...],
    steps: list[Step],
    offset: int,
    stored: dict[str, Any],
) -> Iterator[Layout]:
    ordered = sorted(steps, key=lambda step: -_wide(step.stride))
    # loops over one axis are written from the largest tile to the smallest, wherever their strides
    # would put them
    by_axis = {
        axis: sorted((step for step in steps if step.axis == axis), key=lambda step: step.tile)
        for axis in range(len(shape))
    }
    ordered = [by_axis[step.axis].pop() for step in ordered]
    uneven = any(stored.get("starts", ())) or any(
        isinstance(step.stride, tuple) for step in ordered
    )
    for fixed in (len(ordered), *(range(len(ordered)) if not uneven else ())):
        loops = tuple(
            Loop(step.axis, step.tile, step.stride if at < fixed else None)
            for at, step in enumerate(ordered)
        )
        # a tile of tiles that nothing comes between says nothing
        loops = tuple(
            loop
            for loop, inner in pairwise((*loops, None))
            if loop
            and not (
                inner
                and loop.stride is None
                and inner.axis == loop.axis
                and loop.tile % inner.tile == 0
            )
        )
        try:
            layout = Layout(shape, loops, offset=offset, window=window, **{**stored, "size": 0})
            if layout.size < stored.get("size", 0):
                layout = Layout(shape, loops, offset=offset, window=window, **stored)
        except ValueError:
            continue
        yield layout


def _wide(stride: int | tuple[int, ...]) -> int:
    """How far apart blocks are, on the whole."""
    if isinstance(stride, int):
        return abs(stride)
    return (max(stride) - min(stride)) // max(len(stride) - 1, 1)


def _window(places: np.ndarray) -> tuple[tuple[int, int], ...]:
    """(start, stop) of each axis around the indices that have places; empty where none has."""
    known = places >= 0
    out = []
    for axis in range(places.ndim):
        counts = np.count_nonzero(
            known, axis=tuple(other for other in range(places.ndim) if other != axis)
        )
        have = np.flatnonzero((counts > 0) & (counts * RARE >= counts.max()))
        if not len(have):
            return ()
        out.append((int(have[0]), int(have[-1]) + 1))
    return tuple(out)


def _steps(places: np.ndarray, lines: int, corners: bool) -> list[Step] | None:
    """The digits of all axes, as lines near the origin have them; None where these are not made of
    digits.

    With ``corners`` tiles also end where they do on the lines at the far end, whose tiles may be
    short.
    """
    out: list[Step] = []
    for axis, n in enumerate(places.shape):
        if n == 1:
            continue
        line, known = _line(places, axis, lines)
        digits = _digits(line, known)
        if digits is None:
            return None
        if corners:
            far = tuple(
                slice(None) if other == axis else slice(None, None, -1)
                for other in range(places.ndim)
            )
            tiles = {
                tile for tile, _ in [*digits, *(_digits(*_line(places[far], axis, lines)) or [])]
            }
            digits = [(tile, int(line[tile])) for tile in sorted(tiles) if known[tile]]
        out += [Step(axis, tile, stride) for tile, stride in digits]
    return out


def _line(places: np.ndarray, axis: int, lines: int) -> tuple[np.ndarray, np.ndarray]:
    """Distances ``(n,)`` from the first index along an axis, and where they are known: what most of
    some lines near the origin have, where tiles are full."""
    others = [n for other, n in enumerate(places.shape) if other != axis]
    each = max(int(lines ** (1 / max(sum(n > 1 for n in others), 1)) + 1e-9), 1)
    near = places[
        tuple(slice(None) if other == axis else slice(each) for other in range(places.ndim))
    ]
    table = np.moveaxis(near, axis, -1).reshape(-1, places.shape[axis])
    table = table[table[:, 0] >= 0]
    if not len(table):
        return np.zeros(places.shape[axis], np.int64), np.zeros(places.shape[axis], bool)
    apart = np.sort(np.where(table >= 0, table - table[:, :1], UNKNOWN), axis=0)
    counts = np.count_nonzero(apart < UNKNOWN, axis=0)
    middle = np.take_along_axis(apart, np.maximum(counts - 1, 0)[None] // 2, 0)[0]
    return middle, 2 * np.count_nonzero((apart == middle) & (apart < UNKNOWN), axis=0) > counts


def _digits(line: np.ndarray, known: np.ndarray) -> list[tuple[int, int]] | None:
    """(tile, stride) of the digits that distances along an axis are made of, from the lowest; None
    where they are not so made."""
    have = np.flatnonzero(known)
    if len(line) == 1:
        return []
    if len(have) < 2 or have[0] != 0 or line[have[1]] % have[1]:
        return None
    stride = int(line[have[1]] // have[1])
    index = np.arange(len(line))
    wrong = np.flatnonzero(known & (line != index * stride))
    if not len(wrong):
        return [(1, stride)]
    right = have[have < wrong[0]][-1]
    for tile in range(int(wrong[0]), max(int(right), int(wrong[0]) - GAPS), -1):
        rest = _blocks(line - index % tile * stride, known, tile)
        digits = None
        if rest:
            digits = _digits(*rest)
        if digits is not None:
            # a tile that changes nothing is seen where places are missing around its end
            next_one = [(tile * above, wide) for above, wide in digits]
            return [
                (1, stride),
                *(next_one[1:] if next_one[0] == (tile, stride * tile) else next_one),
            ]
    return None


def _blocks(line: np.ndarray, known: np.ndarray, tile: int) -> tuple[np.ndarray, Any] | None:
    """The distance of each block of ``tile`` indices that most of them have; None where too many
    have another."""
    short = -len(line) % tile
    values = np.pad(np.where(known, line, UNKNOWN), (0, short), constant_values=UNKNOWN).reshape(
        -1, tile
    )
    counts = np.count_nonzero(values != UNKNOWN, axis=1)
    middle = np.take_along_axis(np.sort(values, 1), np.maximum(counts - 1, 0)[:, None] // 2, 1)
    wrong = np.count_nonzero((values != UNKNOWN) & (values != middle))
    if WRONG * wrong <= np.count_nonzero(known):
        return middle[:, 0], counts > 0
    return None


def _origin(places: np.ndarray, steps: list[Step], starts: Sequence[int] = ()) -> int:
    """Where the first element lies, at the start of its tiles: the middle of what those near it
    say."""
    near = places[(slice(max(int(LINES ** (1 / places.ndim)), 2)),) * places.ndim]
    index = np.argwhere(near >= 0)
    if not len(index):
        index, near = np.argwhere(places >= 0)[:LINES], places
    out = near[tuple(index.T)].copy()
    for axis in range(places.ndim):
        left = index[:, axis] + (starts[axis] if starts else 0)
        for step in sorted(
            (step for step in steps if step.axis == axis), key=lambda step: -step.tile
        ):
            out -= Loop(*step).reach(left // step.tile)
            left %= step.tile
    return int(np.sort(out)[(len(out) - 1) // 2])
