"""How far apart neighbours lie, told by the rarest values of a buffer."""

from __future__ import annotations

from collections import Counter

import numpy as np

from npulab.layout.places import Change, Pairs, halved

ANCHORS = 48  # elements whose neighbours are looked for
WINDOWS = (8, 16, 32)  # neighbours that are compared, the fewest that chance does not give
LIKELY = 1 / 16  # windows that chance may give
MOST_PAIRS = 2 ** 21  # places of two rare values that are compared
VOTES = 2
MOST_LAGS = 3


def lags(pairs: Pairs, axis: int) -> list[int]:
    """Distances, in elements, between neighbours along an axis, the likeliest first; negative ones
    are backwards.

    The two rarest values of a window of neighbours stand in few places of the buffer; each two of
    these would be a distance, and the other values of the window say which it is.
    """
    width = pairs.itemsize
    cells = [buffer[:len(buffer) // width * width].view(f"<u{width}") for buffer in pairs.buffers]
    order = np.argsort(cells[0], kind="stable")
    ordered = cells[0][order]
    votes: Counter[int] = Counter()
    for change in (Change(), halved(pairs.bits)):
        raw = [np.moveaxis(change.of(tensor), axis, -1).reshape(-1, pairs.shape[axis]) for tensor in pairs.raw]
        values, inverse = np.unique(raw[0], return_inverse=True)
        first, end = (np.searchsorted(ordered, values, side) for side in ("left", "right"))
        number = (end - first)[inverse].reshape(raw[0].shape)
        rare = np.argsort(np.where(number > 0, number, len(ordered)), axis=None, kind="stable")[:ANCHORS]
        for turn, (row, column) in enumerate(zip(*np.unravel_index(rare, number.shape), strict=True)):
            for count in WINDOWS:
                if count > number.shape[1]:
                    break
                # the rare value is at one end of the window, or inside of it
                start = min(max(int(column) - (0, count - 1, count // 2)[turn % 3], 0), number.shape[1] - count)
                window = slice(start, start + count)
                near = np.argsort(number[row, window], kind="stable")
                chance = float(np.prod(number[row, window] / len(ordered)))
                if chance * len(ordered) ** 2 > LIKELY:
                    continue
                a, b = sorted(near[:2].tolist())
                numbers = number[row, window][[a, b]]
                if numbers.min() == 0 or numbers.prod() > MOST_PAIRS:
                    break
                places = [order[first[at]:end[at]] for at in inverse.reshape(number.shape)[row, window][[a, b]]]
                apart = places[1][None] - places[0][:, None]
                whole = (apart % (b - a) == 0) & (apart != 0)
                lag = apart[whole] // (b - a)
                begin = np.broadcast_to(places[0][:, None], whole.shape)[whole] - a * lag
                last = begin + (count - 1) * lag
                fits = (np.minimum(begin, last) >= 0) & (np.maximum(begin, last) < len(ordered))
                lag, begin = lag[fits], begin[fits]
                for at in near.tolist():
                    good = np.logical_and.reduce([cell[begin + at * lag] == tensor[row, start + at]
                                                  for cell, tensor in zip(cells, raw, strict=True)])
                    lag, begin = lag[good], begin[good]
                votes.update(set(lag.tolist()))
                break
        if votes:
            break
    return [lag for lag, number_of in votes.most_common(MOST_LAGS) if number_of >= VOTES]
