"""Streams of bytes of different lengths side by side: which byte of one stream is the same as which
byte of another."""

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

# If a run of this many bytes occurs once in each of two streams, the two runs are aligned.
RUN = 8
# The price of a pair of bytes that differ, and the price of a byte that only one stream has. Bytes
# between two aligned runs are aligned at the lowest price.
DIFFERENT, GAP = 3, 2
# All streams together have at most this many bytes.
MOST_BYTES = 2**28


@dataclass(frozen=True, eq=False)
class AlignedBytes:
    """N streams, aligned to the B bytes of the stream with the number ``reference``.

    ``data (N, B) uint8`` has the byte of each stream that belongs to a byte of the reference, and
    ``places (N, B) int64`` the offset of that byte in its stream. A stream that has no such byte
    has False in ``present (N, B) bool``, 0 in ``data`` and -1 in ``places``. ``lengths`` are
    the numbers of bytes of the streams.
    """

    data: Array
    present: Array
    places: Array
    reference: int
    lengths: tuple[int, ...]

    @property
    def moved(self) -> bool:
        """True if the streams differ in length, so that a byte may lie at another offset than in
        the reference."""
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
    """Return streams side by side: byte i beside byte i if all streams have one length, else
    aligned to the first stream of the most common length.

    ``streams`` are the bytes of each of N captures, or ``(N, B) uint8``. If a run of 8 bytes
    occurs once in each of two streams, the two runs are aligned. The bytes between two runs are
    aligned by the fewest changes. Raises TypeError for anything but bytes, and ValueError for no
    stream, for a stream without bytes, and for more than 2**28 bytes in all.

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
    refuse_if(
        sum(lengths) > MOST_BYTES, "streams", f"{sum(lengths)} bytes", f"are at most {MOST_BYTES}"
    )
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
                f"streams: got {one.dtype} of shape {one.shape}, allowed for each capture are "
                "bytes or one row of uint8"
            )
        rows.append(np.frombuffer(one, np.uint8))
    return rows


def byte_places(a: Array, b: Array) -> Array:
    """The offset in ``b (B,) uint8`` of each byte of ``a (A,) uint8``, as ``(A,) int64``; the
    offsets ascend, and a byte of ``a`` that ``b`` does not have has -1."""
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
    """Return (offset in ``a``, offset in ``b``) of runs of 8 bytes that occur once in each stream:
    as many runs as have the same order in both streams."""
    mine, theirs = _once(a), _once(b)
    _, in_a, in_b = np.intersect1d(mine[0], theirs[0], assume_unique=True, return_indices=True)
    first, second = mine[1][in_a], theirs[1][in_b]
    order = np.argsort(first)
    first, second = first[order], second[order]
    return [(int(first[place]), int(second[place])) for place in _ascending(second.tolist())]


def _once(data: Array) -> tuple[Array, Array]:
    """The runs of 8 bytes that occur once in a stream, as uint64, and where each begins."""
    if len(data) < RUN:
        return np.zeros(0, np.uint64), np.zeros(0, int)
    windows = np.lib.stride_tricks.sliding_window_view(data, RUN)
    runs = np.ascontiguousarray(windows).view(np.uint64)[:, 0]
    values, first, count = np.unique(runs, return_index=True, return_counts=True)
    return values[count == 1], first[count == 1]


def _ascending(numbers: Sequence[int]) -> list[int]:
    """The indices of a longest ascending subsequence of numbers."""
    # at index n: the least number that ends an ascending subsequence of n + 1 numbers
    tails: list[int] = []
    # at index n: the index of the number that ends a subsequence of n numbers, -1 if n is 0
    last = [-1]
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
    """The offset in ``b`` of each byte of ``a``, -1 for none. ``a`` and ``b`` are the bytes of two
    streams between the same two aligned runs.

    If ``a`` and ``b`` are equally long, byte i belongs to byte i. Else the equal bytes at their
    starts and at their ends are aligned, and the bytes between by the fewest changes. If these need
    a table of more than ``MOST_CELLS`` cells, they have -1.
    """
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
    """The number of bytes before the first byte in which ``a`` and ``b``, of one length, differ."""
    unlike = np.flatnonzero(a != b)
    if len(unlike):
        return int(unlike[0])
    return len(a)
