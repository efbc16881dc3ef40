"""Layouts that a buffer may have where its values do not say, the plainest first."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations
from typing import Any

from npulab.layout.nest import Layout, Loop

TILES = (2, 4, 8, 16, 32, 64)
ALIGNS = (16, 32, 64, 128, 256)
ORDERS = 24  # permutations of axes that are tried


def candidates(shape: tuple[int, ...], size: int, **stored: Any) -> Iterator[Layout]:
    """Layouts of a whole tensor in at most ``size`` bytes, from the first of them or up to the last: axes in any order,
    rows and planes with gaps, one axis in tiles, two axes in tiles, with tiles completed or short.

    ``stored`` are further fields of ``Layout``.
    """
    seen = set()
    for loops in _nests(shape, size, stored):
        if loops in seen:
            continue
        seen.add(loops)
        try:
            layout = Layout(shape, loops, **stored)
        except ValueError:
            continue
        if layout.size > size:
            continue
        yield layout
        if layout.size < size:
            yield replace(layout, offset=size - layout.size, size=size)


def _nests(shape: tuple[int, ...], size: int, stored: dict[str, Any]) -> Iterator[tuple[Loop, ...]]:
    itemsize = Layout((1,), (), **stored).itemsize
    axes = [axis for axis, n in enumerate(shape) if n > 1]
    orders = list(permutations(axes))[:ORDERS] if len(axes) <= 4 else [tuple(axes), tuple(axes[::-1])]
    for order in orders:
        yield _padded(shape, [(axis, 1) for axis in order], itemsize)
    for order in orders:
        yield from _pitched(shape, order, itemsize, size)
    for axis in axes:
        for tile in (tile for tile in TILES if tile < shape[axis]):
            for order in orders:
                nest = [(one, tile if one == axis else 1) for one in order] + [(axis, 1)]
                yield _padded(shape, nest, itemsize)
                yield _packed(nest)
    for a, b in permutations(axes, 2):
        rest = [(axis, 1) for axis in axes if axis not in (a, b)]
        for wide in (tile for tile in TILES if tile < shape[a]):
            for high in (tile for tile in TILES if tile < shape[b]):
                for inner in ((a, b), (b, a)):
                    nest = [(a, wide), (b, high), *rest, (inner[0], 1), (inner[1], 1)]
                    yield _padded(shape, nest, itemsize)
                    yield _packed(nest)


def _packed(nest: list[tuple[int, int]]) -> tuple[Loop, ...]:
    return tuple(Loop(axis, tile) for axis, tile in nest)


def _padded(shape: tuple[int, ...], nest: list[tuple[int, int]], itemsize: int, aligns: dict[int, int] | None = None,
            ) -> tuple[Loop, ...]:
    """Every tile completed; the stride of loop number n rounded up to ``aligns[n]``."""
    out, step = [], itemsize
    left: dict[int, int] = {}
    for at in reversed(range(len(nest))):
        axis, tile = nest[at]
        align = (aligns or {}).get(at, 1)
        step = -(-step // align) * align
        out.append(Loop(axis, tile, step))
        outer = next((wide for other, wide in reversed(nest[:at]) if other == axis), shape[axis])
        step *= -(-outer // tile)
        left[axis] = tile
    return tuple(out[::-1])


def _pitched(shape: tuple[int, ...], order: tuple[int, ...], itemsize: int, size: int) -> Iterator[tuple[Loop, ...]]:
    """Gaps after each row, after each plane, and whatever makes the outermost blocks fill the buffer."""
    nest = [(axis, 1) for axis in order]
    for at in range(len(order) - 1):
        for align in ALIGNS:
            yield _padded(shape, nest, itemsize, {at: align})
        block = itemsize * math.prod(shape[axis] for axis in order[at + 1:])
        outer = math.prod(shape[axis] for axis in order[:at + 1])
        if size % outer == 0 and size // outer > block:
            yield _padded(shape, nest, itemsize, {at: size // outer})
