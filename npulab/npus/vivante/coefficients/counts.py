"""How many items each segment of a V7 stream with zero runs has, so that it is known where every
bit lies.

Where a segment begins depends on the items of all before it: what stands behind each bit is looked
up in tables, which are made for all bits at once, and only from segment to segment it goes one by
one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from npulab.layout.bitstream import bits_at
from npulab.npus.vivante.coefficients.plain import WEIGHT_BITS

FEW = 32  # weights of the longest segments whose items are counted from every bit at once,
OFTEN = 8  # and how many of these there must be for each of its weights
LONG = 256  # weights of a segment that is worth arrays of its own
LEAPS = (64, 16, 4, 1)  # items whose weights are counted at once in others
CHUNK = 2**14  # bytes
MANY = 2**12  # items


class Part(NamedTuple):
    """Segments that are counted in one way: weights of each, bits behind it and, at least, ahead of
    it, bits of all at most."""

    lengths: list[int]
    gaps: list[int]
    ahead: np.ndarray
    most: int


def parts_of(lengths: np.ndarray, gaps: np.ndarray, zrl: int) -> list[Part]:
    """Parts of segments of ``lengths`` weights, ``gaps`` bits behind each: alternately of few and
    of many weights."""
    width = zrl + WEIGHT_BITS
    turns = np.flatnonzero(np.diff(lengths > LONG)) + 1
    return [
        Part(
            some.tolist(),
            behind.tolist(),
            np.append(0, np.cumsum(behind - some // -(2**zrl) * width)),
            int((behind + width * some).sum()),
        )
        for some, behind in zip(np.split(lengths, turns), np.split(gaps, turns), strict=True)
        if len(some)
    ]


def count_items(data: bytes, at: int, parts: list[Part], zrl: int) -> list[int] | None:
    """Items of the segments from bit ``at`` on, each up to the item that ends it or goes too far;
    None where they go past the end of ``data``."""
    out = list[int]()
    for part in parts:
        found = (_count_long if part.lengths[0] > LONG else _count_short)(data, at, part, zrl)
        if found is None:
            return None
        some, at = found
        out += some
    return out


def _count_long(data: bytes, at: int, part: Part, zrl: int) -> tuple[list[int], int] | None:
    """Items of segments of many weights, and the bit behind."""
    width, out, share = zrl + WEIGHT_BITS, [], 1.0
    for left, gap in zip(part.lengths, part.gaps, strict=True):
        count = 0
        while left > 0:
            if at >= 8 * len(data):
                return None
            taken = min(left, MANY, int(share * left) + 16)
            reach = np.cumsum(
                (bits_at(data, at + width * np.arange(taken), zrl)) + 1, dtype=np.int64
            )
            if reach[-1] >= left:
                taken = int(np.searchsorted(reach, left)) + 1
            left -= int(reach[taken - 1])
            share = min(1.0, 1.1 * taken / int(reach[taken - 1]))
            at += width * taken
            count += taken
        out.append(count)
        at += gap
    return out, at


def _count_short(data: bytes, at: int, part: Part, zrl: int) -> tuple[list[int], int] | None:
    """The same of segments of few, by tables of what the items from each bit of a chunk on stand
    for."""
    width, out, longest = zrl + WEIGHT_BITS, list[int](), max(part.lengths)
    way = _by_leaps
    if longest <= FEW and len(part.lengths) > OFTEN * longest:
        way = _by_count
    while len(out) < len(part.lengths):
        if at >= 8 * len(data):
            return None
        done, base = len(out), at // 8
        bits = 8 * min(len(data) - base, CHUNK, part.most // 8 + 1)
        begin = slice(
            done, int(np.searchsorted(part.ahead, part.ahead[done] + bits))
        )  # at most these in the chunk
        runs = _runs(data[base:], bits + 2 * longest * width, zrl)
        some, at = way(runs, bits, at - 8 * base, part.lengths[begin], part.gaps[begin], zrl)
        at += 8 * base
        out += some
    return out, at


def _runs(data: bytes, bits: int, zrl: int) -> np.ndarray:
    """The zero run of an item at each of so many bits; behind the end of ``data`` all bits are
    0."""
    room = (bits + zrl) // 8 + 1
    planes = np.unpackbits(
        np.frombuffer(data[:room].ljust(room, b"\0"), np.uint8), bitorder="little"
    )
    out = planes[zrl - 1 :][:bits].copy()
    for plane in range(zrl - 2, -1, -1):
        out += out
        out += planes[plane : plane + bits]
    return out


def _by_count(
    runs: np.ndarray,
    bits: int,
    at: int,
    lengths: list[int],
    gaps: list[int],
    zrl: int,
) -> tuple[list[int], int]:
    """Items of those segments that begin in the first ``bits`` bits: of one that begins at any of
    them they are counted for each length there is."""
    width, longest = zrl + WEIGHT_BITS, max(lengths)
    if 2**zrl + longest > 255:
        runs = np.minimum(
            runs, np.uint8(longest)
        )  # a sum that is not too large yet does not overflow
    weights = runs + np.uint8(1)
    sums, short = np.zeros(bits, np.uint8), np.empty(bits, bool)
    # as many as do not reach the end if all are of longest runs, and the last
    counts = {length: np.full(bits, (length - 1) // 2**zrl + 1, np.uint8) for length in {*lengths}}
    left = {length: np.ones(bits, bool) for length in counts}
    for items in range(1, longest):
        sums += weights[(items - 1) * width :][:bits]
        for length, count in counts.items():
            if items < length <= items * 2**zrl:
                left[length] &= np.less(sums, np.uint8(length), out=short)
                count += left[length].view(np.uint8)
    tables, out = {length: count.data for length, count in counts.items()}, list[int]()
    try:
        for table, gap in zip(map(tables.__getitem__, lengths), gaps, strict=True):
            items = table[at]
            out.append(items)
            at += width * items + gap
    except IndexError:
        pass  # behind the last bit
    return out, at


def _by_leaps(
    runs: np.ndarray,
    bits: int,
    at: int,
    lengths: list[int],
    gaps: list[int],
    zrl: int,
) -> tuple[list[int], int]:
    """The same by leaps of several items, whose weights are known for each bit."""
    width, have = zrl + WEIGHT_BITS, 1
    weights = {1: runs.astype(np.uint16) + np.uint16(1)}
    while 4 * have <= max(lengths):
        weights[2 * have] = weights[have][: -have * width] + weights[have][have * width :]
        have *= 2
    leaps = [(weights[leap].data, leap * width) for leap in LEAPS if leap in weights]
    out = []
    for left, gap in zip(lengths, gaps, strict=True):
        if at >= bits:
            break
        start = at
        for table, step in leaps:
            while (reach := table[at]) <= left:
                left -= reach
                at += step
        at += width * (left > 0)
        out.append((at - start) // width)
        at += gap
    return out, at
