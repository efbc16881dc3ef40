"""Distances between neighbours, from the rarest values of a buffer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy import ndarray as Array

from npulab.layout.places import Change, Pairs, halved

ANCHORS = 48  # elements whose neighbours are looked for
WINDOWS = (8, 16, 32)  # neighbours that are compared, the fewest that chance does not give
LIKELY = 1 / 16  # windows that chance may give
MOST_PAIRS = 2**21  # places of two rare values that are compared
VOTES = 2
MOST_LAGS = 3


class Window(NamedTuple):
    """Neighbours along an axis: their values in each capture, the places of each value in the first
    buffer, and the two rarest of the values.
    """

    values: list[Array]
    places: list[Array]
    rare: tuple[int, int]


def lags(pairs: Pairs, axis: int) -> list[int]:
    """Distances, in elements, between neighbours along an axis, the likeliest first; negative
    distances are backwards.

    The two rarest values of a window of neighbours are in few places of the buffer; any two of
    these places suggest a distance, and the other values of the window say which is right.
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
        if votes:
            return [lag for lag, count in votes.most_common(MOST_LAGS) if count >= VOTES]
    return []


def _windows(lines: list[Array], ordered: Array, order: Array) -> Iterator[Window]:
    """Windows with the rarest values, each as short as chance allows."""
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
            # the rare value is at either end of the window, or inside of it
            start = min(
                max(int(column) - (0, count - 1, count // 2)[turn % 3], 0), max(length - count, 0)
            )
            inside = (row, slice(start, start + count))
            share = often[inside] / len(ordered)
            # a window has as many chances as there are pairs of a first place and a distance, about
            # the square of the buffer
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
    """Distances at which all values of a window stand."""
    a, b = window.rare
    apart = window.places[b][None] - window.places[a][:, None]
    whole = (apart % (b - a) == 0) & (apart != 0)
    lag = apart[whole].astype(np.int64) // (b - a)
    begin = np.broadcast_to(window.places[a][:, None], whole.shape)[whole] - a * lag
    last = begin + (len(window.places) - 1) * lag
    fits = (np.minimum(begin, last) >= 0) & (np.maximum(begin, last) < len(cells[0]))
    lag, begin = lag[fits], begin[fits]
    # the rarest values refuse most distances, so that the rest is compared at few places
    for at in sorted(range(len(window.places)), key=lambda at: len(window.places[at])):
        good = np.logical_and.reduce(
            [
                cell[begin + at * lag] == values[at]
                for cell, values in zip(cells, window.values, strict=True)
            ]
        )
        lag, begin = lag[good], begin[good]
    return set(lag.tolist())
