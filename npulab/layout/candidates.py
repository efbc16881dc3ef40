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
PERMUTED = 4  # most axes of which all orders are tried
Nest = list[tuple[int, int]]  # (axis, tile) of each loop, from the outermost


def candidates(shape: Shape, size: int, **stored: Any) -> Iterator[tuple[Layout, list[int]]]:
    """Yield (layout, places): layouts of a whole tensor that takes at most ``size`` places, each
    with the places at which the tensor may begin.

    The layouts have offset 0. They have axes in any order (if there are more than 4 axes, only in
    the tensor's order or its reverse), gaps after rows and planes, one axis in tiles, or two axes
    in tiles; a last tile is completed or short. The tensor may begin at the start of the buffer,
    end at its end (with the last element or the last completed tile), or follow a header of one of
    the sizes in ``HEADERS``. ``stored`` are further fields of ``Layout``.
    """
    seen = set()
    for loops, end in _nests(shape, size, stored):
        if loops in seen:
            continue
        seen.add(loops)
        # most nests are far too large: the outermost loop shows that before a layout is made
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
    """Yield nests of loops, each with the place at which the nest ends if tiles that the tensor
    fills only in part take their full size.
    """
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
            # the indices inside of a tile are the innermost loop, or the loop next to it
            yield [*nest, (axis, 1)]
            if order[-1] != axis:
                yield [*nest[:-1], (axis, 1), nest[-1]]


def _tiles_of_two(shape: Shape, axes: list[int]) -> Iterator[Nest]:
    """Yield nests with two axes in tiles; the loops over these tiles are the outermost."""
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
    """Return the loops with every tile completed, and the place where the last tile ends.

    The stride of loop number n is rounded up to ``aligns[n]``.
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
    """Yield nests with a gap after the blocks of one loop (elements, rows or planes), or of two
    loops; one of the gaps may be so large that the nest takes all of the buffer.
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
            # an alignment of at most ``row`` changes nothing: rows are multiples of it already
            for align in (fills, *(align for align in ALIGNS if align > row)):
                loops, end = _padded(shape, nest, itemsize, {at: align, inner: row})
                if end <= size:
                    yield loops, end
