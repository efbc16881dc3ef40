"""Search for the distances in a buffer between neighbours in a tensor, by the rarest values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy import ndarray as Array

from npulab.layout.places import Change, Pairs, halved

# Windows are made around the elements with the rarest values, at most this many.
ANCHORS = 48
# The possible lengths of a window, of which the shortest that is unlikely to match by chance is
# used: at most LIKELY matches are expected by chance.
WINDOWS = (8, 16, 32)
LIKELY = 1 / 16
# A window with more pairs of places of its two rarest values is left out.
MOST_PAIRS = 2**21
# A distance is returned if at least this many windows suggest it.
VOTES = 2
# At most this many distances are returned.
MOST_LAGS = 3


class Window(NamedTuple):
    """Some neighbours along an axis of a tensor.

    ``values`` are their values in each capture, ``places`` the places of each value in the first
    buffer (counted in elements), ``rare`` the positions of the two rarest values in the window.
    """

    values: list[Array]
    places: list[Array]
    rare: tuple[int, int]


def lags(pairs: Pairs, axis: int) -> list[int]:
    """Return likely distances between neighbours along an axis, in elements, the likeliest first.

    A negative distance goes backwards. The two rarest values of a window of neighbours are at few
    places of the buffer. A place of the first value and a place of the second suggest a distance;
    the other values of the window show if this distance is right.
    """
    width = pairs.itemsize
    cells = [buffer[: len(buffer) // width * width].view(f"<u{width}") for buffer in pairs.buffers]
    order = np.argsort(cells[0], kind="stable").astype(np.int32)
    for change in (Change(), halved(pairs.bits)):
        lines = [
            np.moveaxis(change.of(raw), axis, -1).reshape(-1, pairs.shape[axis])
            for raw in pairs.raw
        ]
        votes: Counter[int] = Counter()
        for window in _windows(lines, cells[0][order], order):
            votes.update(_distances(window, cells))
        # A distance that only one window suggests may be chance.
        if votes:
            return [lag for lag, count in votes.most_common(MOST_LAGS) if count >= VOTES]
    return []


def _windows(lines: list[Array], ordered: Array, order: Array) -> Iterator[Window]:
    """Yield windows around the rarest values.

    A window is just long enough that it is unlikely to match by chance.
    """
    length = lines[0].shape[1]
    values, inverse = np.unique(lines[0], return_inverse=True)
    inverse = inverse.reshape(lines[0].shape)
    first, end = (np.searchsorted(ordered, values, side) for side in ("left", "right"))
    often = (end - first)[inverse]
    rarest = np.argsort(np.where(often > 0, often, len(ordered)), axis=None, kind="stable")[
        :ANCHORS
    ]
    for turn, (row, column) in enumerate(zip(*np.unravel_index(rarest, often.shape), strict=True)):
        for count in WINDOWS:
            # In turn, the rare value is at the start, at the end and in the middle of its window.
            before = (0, count - 1, count // 2)[turn % 3]
            start = min(max(int(column) - before, 0), max(length - count, 0))
            inside = (row, slice(start, start + count))
            share = often[inside] / len(ordered)
            # A window may match at any first place with any distance; these are about as many pairs
            # as the square of the buffer's size.
            if count <= length and float(np.prod(share)) * len(ordered) ** 2 <= LIKELY:
                a, b = sorted(np.argsort(share, kind="stable")[:2].tolist())
                if 0 < int(often[inside][a]) * int(often[inside][b]) <= MOST_PAIRS:
                    yield Window(
                        [line[inside] for line in lines],
                        [order[first[value] : end[value]] for value in inverse[inside]],
                        (a, b),
                    )
                break


def _distances(window: Window, cells: list[Array]) -> set[int]:
    """Return the distances at which the buffers have all values of a window.

    ``cells`` are the buffers as elements.
    """
    a, b = window.rare
    apart = window.places[b][None] - window.places[a][:, None]
    whole = (apart % (b - a) == 0) & (apart != 0)
    lag = apart[whole].astype(np.int64) // (b - a)
    begin = np.broadcast_to(window.places[a][:, None], whole.shape)[whole] - a * lag
    last = begin + (len(window.places) - 1) * lag
    fits = (np.minimum(begin, last) >= 0) & (np.maximum(begin, last) < len(cells[0]))
    lag, begin = lag[fits], begin[fits]
    # The rarest values are compared first: they rule out most distances for the other values.
    for at in sorted(range(len(window.places)), key=lambda at: len(window.places[at])):
        good = np.logical_and.reduce(
            [
                cell[begin + at * lag] == values[at]
                for cell, values in zip(cells, window.values, strict=True)
            ]
        )
        lag, begin = lag[good], begin[good]
    return set(lag.tolist())
