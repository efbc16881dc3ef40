"""Streams of bytes of different lengths side by side: which byte of one is which of another."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy import ndarray as Array

from npulab.captures.aligned import MOST_CELLS, cheapest
from npulab.support.refuse import need_all, refuse_if
from npulab.support.text import plural

RUN = 8  # bytes that occur once in each of two streams and are taken for the same bytes
DIFFERENT, GAP = 3, 2  # prices between such runs: two bytes that differ, a byte that is left out
MOST_BYTES = 2**28  # most bytes of all streams


@dataclass(frozen=True, eq=False)
class AlignedBytes:
    """Streams beside the stream ``reference``: the bytes ``data (N, B) uint8`` that lie at each of
    its bytes, ``present (N, B) bool`` where a stream has them, and ``places (N, B) int64``, their
    offsets in the streams, -1 for none."""

    data: Array
    present: Array
    places: Array
    reference: int
    lengths: tuple[int, ...]

    @property
    def moved(self) -> bool:
        """True if bytes of a stream lie at another offset than those of the reference."""
        return len(set(self.lengths)) > 1

    def __str__(self) -> str:
        size = self.data.shape[1]
        if not self.moved:
            return f"{plural(len(self.data), 'stream')} of {plural(size, 'byte')}"
        least, most = min(self.lengths), max(self.lengths)
        whole = int(self.present.all(0).sum())
        return (
            f"{plural(len(self.data), 'stream')} of {least} to {most} bytes, aligned to stream "
            f"{self.reference} ({size} bytes, {whole} of them in all streams)"
        )


def aligned_bytes(streams: Sequence[bytes] | Array) -> AlignedBytes:
    """Streams side by side: byte i beside byte i if they are of one length, else aligned to the
    first stream of the most common length.

    ``streams`` are N captures' bytes, or ``(N, B) uint8``. Runs of 8 bytes that occur once in each
    of two streams are the same bytes; what lies between two of them is aligned by the fewest
    changes. Raises TypeError for anything else, ValueError for no stream, and one without bytes.

    >>> found = aligned_bytes([b"head 12345678 end", b"head 12345678 end", b"head 12345678, end"])
    >>> found.places[2, 12:].tolist()
    [12, 14, 15, 16, 17]
    >>> print(found)
    3 streams of 17 to 18 bytes, aligned to stream 0 (17 bytes, 17 of them in all streams)
    """
    rows = _rows(streams)
    lengths = tuple(map(len, rows))
    refuse_if(not rows, "streams", "none", "is one for each capture")
    for number, length in enumerate(lengths):
        refuse_if(not length, "streams", f"stream {number} without bytes", "are bytes")
    refuse_if(sum(lengths) > MOST_BYTES, "streams", f"{sum(lengths)} bytes", f"are {MOST_BYTES}")
    ((usual, _),) = Counter(lengths).most_common(1)
    reference = lengths.index(usual)
    places = np.tile(np.arange(usual), (len(rows), 1))
    if len(set(lengths)) > 1:
        for number, row in enumerate(rows):
            places[number] = byte_places(rows[reference], row)
    present = places >= 0
    data = np.zeros(places.shape, np.uint8)
    for number, row in enumerate(rows):
        data[number, present[number]] = row[places[number, present[number]]]
    return AlignedBytes(data, present, places, reference, lengths)


def _rows(streams: Sequence[bytes] | Array) -> list[Array]:
    if isinstance(streams, np.ndarray):
        refuse_if(
            streams.ndim != 2 or streams.dtype != np.uint8,
            "streams",
            f"{streams.dtype} of shape {streams.shape}",
            "is uint8 of shape (captures, bytes), or bytes of each capture",
            TypeError,
        )
        return list(streams)
    given = need_all(
        "streams",
        streams,
        (bytes, bytearray, memoryview, np.ndarray),
        "are the bytes of each capture",
    )
    rows = []
    for one in given:
        if isinstance(one, np.ndarray) and (one.dtype != np.uint8 or one.ndim != 1):
            raise TypeError(
                f"streams: got {one.dtype} of shape {one.shape}, allowed are bytes or uint8"
            )
        rows.append(np.frombuffer(one, np.uint8))
    return rows


def byte_places(a: Array, b: Array) -> Array:
    """For each byte of ``a (A,) uint8`` its offset in ``b (B,) uint8``, ascending, -1 for a byte
    that ``b`` does not have."""
    out = np.full(len(a), -1, np.int64)
    for first, second in _anchors(a, b):
        out[first] = second
    known = np.flatnonzero(out >= 0)
    starts = [-1, *known.tolist()]
    ends = [*known.tolist(), len(a)]
    before = [-1, *out[known].tolist()]
    after = [*out[known].tolist(), len(b)]
    for left, right, low, high in zip(starts, ends, before, after, strict=True):
        if right - left > 1:
            found = _between(a[left + 1 : right], b[low + 1 : high])
            out[left + 1 : right] = np.where(found >= 0, found + low + 1, -1)
    return out


def _anchors(a: Array, b: Array) -> list[tuple[int, int]]:
    """The pairs of offsets of runs that occur once in each stream, as many as ascend in both."""
    mine, theirs = _once(a), _once(b)
    _, in_a, in_b = np.intersect1d(mine[0], theirs[0], assume_unique=True, return_indices=True)
    first, second = mine[1][in_a], theirs[1][in_b]
    order = np.argsort(first)
    first, second = first[order], second[order]
    return [(int(first[place]), int(second[place])) for place in _ascending(second.tolist())]


def _once(data: Array) -> tuple[Array, Array]:
    """The runs that occur once, as numbers, and their offsets."""
    if len(data) < RUN:
        return np.zeros(0, np.uint64), np.zeros(0, int)
    windows = np.lib.stride_tricks.sliding_window_view(data, RUN)
    runs = np.ascontiguousarray(windows).view(np.uint64)[:, 0]
    values, first, count = np.unique(runs, return_index=True, return_counts=True)
    return values[count == 1], first[count == 1]


def _ascending(numbers: Sequence[int]) -> list[int]:
    """The places of a longest ascending part of numbers."""
    tails: list[int] = []  # the least last number of a part of each length
    last = [-1]  # its place; a part of no numbers has none
    before: list[int] = []
    for place, number in enumerate(numbers):
        length = bisect_left(tails, number)
        before.append(last[length])
        tails[length : length + 1] = [number]
        last[length + 1 : length + 2] = [place]
    out = []
    place = last[-1]
    while place >= 0:
        out.append(place)
        place = before[place]
    out.reverse()
    return out


def _between(a: Array, b: Array) -> Array:
    """The places of the bytes of a part in another one: side by side if they are as long, else by
    the fewest changes after what both begin and end with."""
    if len(a) == len(b):
        return np.arange(len(a))
    out = np.full(len(a), -1, np.int64)
    most = min(len(a), len(b))
    first = _alike(a[:most], b[:most])
    last = _alike(a[::-1][: most - first], b[::-1][: most - first])
    out[:first] = np.arange(first)
    if last:
        out[-last:] = np.arange(len(b) - last, len(b))
    inner, other = a[first : len(a) - last], b[first : len(b) - last]
    if not len(inner) or not len(other) or len(inner) * len(other) > MOST_CELLS:
        return out
    prices = np.where(inner[:, None] == other, 0, DIFFERENT).astype(np.int64)
    down = np.full(len(inner), GAP, np.int64)
    across = np.full(len(other), GAP, np.int64)
    for left, right in cheapest(prices, down, across):
        if left is not None and right is not None:
            out[first + left] = first + right
    return out


def _alike(a: Array, b: Array) -> int:
    """How many bytes two parts of one length begin with alike."""
    unlike = np.flatnonzero(a != b)
    if len(unlike):
        return int(unlike[0])
    return len(a)
