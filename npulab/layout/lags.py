"""Distances in the buffer between neighbours in the tensor, from the buffer's rarest values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy import ndarray as Array

from npulab.layout.places import Change, Pairs, halved

ANCHORS = 48  # most elements, of the rarest values, whose neighbours are searched
# lengths of a window: the shortest that is unlikely to match by chance is used
WINDOWS = (8, 16, 32)
LIKELY = 1 / 16  # most matches of a window that are expected by chance
MOST_PAIRS = 2**21  # most pairs of places of the two rarest values
VOTES = 2  # fewest windows that have to suggest a distance
MOST_LAGS = 3  # most distances that are returned


class Window(NamedTuple):
    """Neighbours along an axis: their ``values`` in each capture, the ``places`` of each value in
    the first buffer (in elements), and ``rare``, the positions of the two rarest values in the
    window.
    """

    values: list[Array]
    places: list[Array]
    rare: tuple[int, int]


def lags(pairs: Pairs, axis: int) -> list[int]:
    """Return the distances, in elements, between neighbours along an axis, the likeliest first;
    negative distances go backwards.

    The two rarest values of a window of neighbours are at few places of the buffer. A place of the
    one with a place of the other suggests a distance; the remaining values of the window show which
    distance is right.
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
        # a distance that a single window suggests may be chance
        if votes:
            return [lag for lag, count in votes.most_common(MOST_LAGS) if count >= VOTES]
    return []


def _windows(lines: list[Array], ordered: Array, order: Array) -> Iterator[Window]:
    """Yield windows around the rarest values, each just long enough that it is unlikely to match by
    chance.
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
            # by turns the rare value is at the start of the window, at its end, or in its middle
            before = (0, count - 1, count // 2)[turn % 3]
            start = min(max(int(column) - before, 0), max(length - count, 0))
            inside = (row, slice(start, start + count))
            share = often[inside] / len(ordered)
            # a window may match at any pair of a first place and a distance; there are about as
            # many pairs as the square of the buffer's size
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
    """Return the distances at which the buffers hold all values of a window."""
    a, b = window.rare
    apart = window.places[b][None] - window.places[a][:, None]
    whole = (apart % (b - a) == 0) & (apart != 0)
    lag = apart[whole].astype(np.int64) // (b - a)
    begin = np.broadcast_to(window.places[a][:, None], whole.shape)[whole] - a * lag
    last = begin + (len(window.places) - 1) * lag
    fits = (np.minimum(begin, last) >= 0) & (np.maximum(begin, last) < len(cells[0]))
    lag, begin = lag[fits], begin[fits]
    # the rarest values are compared first: they rule out most distances, so that few are left to
    # compare for the other values
    for at in sorted(range(len(window.places)), key=lambda at: len(window.places[at])):
        good = np.logical_and.reduce(
            [
                cell[begin + at * lag] == values[at]
                for cell, values in zip(cells, window.values, strict=True)
            ]
        )
        lag, begin = lag[good], begin[good]
    return set(lag.tolist())
