"""Plain layouts, the plainest first, to try if the values of a buffer do not show its layout."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import chain, permutations, product
from types import MappingProxyType
from typing import Any

from npulab.layout.nest import Layout, Loop
from npulab.layout.stored import Shape

TILES = (2, 4, 8, 16, 32, 64)
ALIGNS = (4, 8, 16, 32, 64, 128, 256)
HEADERS = (4, 8, 16, 32, 64, 128, 256)
# All orders of axes are tried for tensors of at most this many axes.
PERMUTED = 4
# The (axis, tile) of each loop, from the outermost to the innermost.
Nest = list[tuple[int, int]]


def candidates(shape: Shape, size: int, **stored: Any) -> Iterator[tuple[Layout, list[int]]]:
    """Yield layouts of a whole tensor in a buffer of ``size`` places, each with the places at which
    the tensor may begin.

    The layouts have offset 0 and the further fields ``stored`` of ``Layout``. Their axes are in any
    order, or for more than 4 axes in the tensor's order or its reverse. They have gaps after rows
    and planes, or one or two axes in tiles, of which the last is completed or short. The tensor
    begins at the start of the buffer, ends at the buffer's end (with the last element or the last
    completed tile), or follows a header of one of the sizes in ``HEADERS``.
    """
    seen = set()
    for loops, end in _nests(shape, size, stored):
        if loops in seen:
            continue
        seen.add(loops)
        # Most nests are far too large; the outermost loop shows this before a layout is made.
        if loops and loops[0].reach((shape[loops[0].axis] - 1) // loops[0].tile) >= size:
            continue
        try:
            layout = Layout(shape, loops, **stored)
        except ValueError:
            continue
        room = size - layout.size * layout.per_byte
        starts = dict.fromkeys((0, size - end, room, *HEADERS))
        if room >= 0:
            yield layout, [at for at in starts if 0 <= at <= room]


def _nests(
    shape: Shape, size: int, stored: dict[str, Any]
) -> Iterator[tuple[tuple[Loop, ...], int]]:
    """Yield (loops, end) of nests of loops; ``end`` is the place after the last completed tile."""
    itemsize = Layout((1,), (), **stored).itemsize
    axes = [axis for axis, n in enumerate(shape) if n > 1]
    orders = _orders(axes, len(axes))
    end = itemsize * math.prod(shape)
    for order in orders:
        yield _padded(shape, [(axis, 1) for axis in order], itemsize)
    for order in orders:
        yield from _pitched(shape, order, itemsize, size)
    for nest in chain(_tiles_of_one(shape, axes), _tiles_of_two(shape, axes)):
        yield _padded(shape, nest, itemsize)
        yield tuple(Loop(*block) for block in nest), end


def _tiles_of_one(shape: Shape, axes: list[int]) -> Iterator[Nest]:
    """Yield nests with one axis in tiles."""
    for axis in axes:
        for tile, order in product(_tiles(shape[axis]), _orders(axes, len(axes))):
            nest = [(other, 1) for other in order]
            nest[order.index(axis)] = axis, tile
            # The loop over the indices in a tile is the innermost loop, or the loop around it.
            yield [*nest, (axis, 1)]
            if order[-1] != axis:
                yield [*nest[:-1], (axis, 1), nest[-1]]


def _tiles_of_two(shape: Shape, axes: list[int]) -> Iterator[Nest]:
    """Yield nests with two axes in tiles; the two loops over the tiles are the outermost."""
    for a, b in permutations(axes, 2):
        rests = _orders([axis for axis in axes if axis not in (a, b)], len(axes))
        tiles = product(_tiles(shape[a]), _tiles(shape[b]))
        for (wide, high), inner, rest in product(tiles, ((a, b), (b, a)), rests):
            yield [(a, wide), (b, high), *((axis, 1) for axis in (*rest, *inner))]


def _tiles(n: int) -> list[int]:
    return [tile for tile in TILES if tile < n]


def _orders(axes: list[int], rank: int) -> list[tuple[int, ...]]:
    if rank <= PERMUTED:
        return list(permutations(axes))
    return [tuple(axes), tuple(axes[::-1])]


def _padded(
    shape: Shape, nest: Nest, itemsize: int, aligns: Mapping[int, int] = MappingProxyType({})
) -> tuple[tuple[Loop, ...], int]:
    """Return the loops of a nest with every tile completed, and the place after the last tile.

    The stride of loop number n is rounded up to a multiple of ``aligns[n]``, if it is there.
    """
    out, step = [], itemsize
    for at in reversed(range(len(nest))):
        axis, tile = nest[at]
        align = aligns.get(at, 1)
        step = -(-step // align) * align
        out.append(Loop(axis, tile, step))
        outer = next((wide for other, wide in reversed(nest[:at]) if other == axis), shape[axis])
        step *= -(-outer // tile)
    return tuple(out[::-1]), step


def _pitched(
    shape: Shape,
    order: tuple[int, ...],
    itemsize: int,
    size: int,
) -> Iterator[tuple[tuple[Loop, ...], int]]:
    """Yield nests with gaps after the blocks (elements, rows or planes) of one loop or of two
    loops.

    One of the gaps may be so large that the nest takes all ``size`` places of the buffer.
    """
    nest = [(axis, 1) for axis in order]
    for at in range(len(order)):
        for align in ALIGNS:
            yield _padded(shape, nest, itemsize, {at: align})
        block = itemsize * math.prod(shape[axis] for axis in order[at + 1 :])
        share, rest = divmod(size, math.prod(shape[axis] for axis in order[: at + 1]))
        fills = 1
        if not rest and share > block:
            fills = share
            yield _padded(shape, nest, itemsize, {at: fills})
        for inner, row in product(range(at + 1, len(order)), ALIGNS):
            # Rows are multiples of ``row`` already, so a smaller or equal alignment changes
            # nothing.
            for align in (fills, *(align for align in ALIGNS if align > row)):
                loops, end = _padded(shape, nest, itemsize, {at: align, inner: row})
                if end <= size:
                    yield loops, end
