"""Counts the items in each segment of a plain stream (V7) with zero runs. From the counts follows
where every bit lies.

An item is a zero run and the literal weight after it; a segment ends where a run has to end. Where
a segment begins depends on the number of items in all segments before it. So tables are made first
that say, for each bit, how many weights the items from that bit on hold. With the tables, only the
begins of segments are found one after the other.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy import ndarray as Array

from npulab.layout.bitstream import bits_at
from npulab.npus.vivante.coefficients.plain import WEIGHT_BITS

# `_by_count` is used if no segment has more than FEW weights and the segments are more than OFTEN
# times as many as the weights of the longest. With fewer segments its tables cost more than they
# save.
FEW, OFTEN = 32, 8
# A segment of more than LONG weights is counted without tables, at most MANY items at a time. LEAPS
# are the numbers of items that `_by_leaps` passes in one step. Tables are made for CHUNK bytes of a
# stream at a time.
LONG = 256
LEAPS = (64, 16, 4, 1)
CHUNK = 2**14
MANY = 2**12


class Segments(NamedTuple):
    """Neighbouring segments that are counted in the same way.

    ``lengths`` has the number of weights of each segment, ``gaps`` the number of bits between it
    and the next. ``ahead`` has the least number of bits from the first segment to each segment,
    ``most`` is the largest number of bits of all these segments and gaps.
    """

    lengths: list[int]
    gaps: list[int]
    ahead: Array
    most: int


def segments_of(lengths: Array, gaps: Array, zrl: int) -> list[Segments]:
    """Return neighbouring segments in groups: those of a group all have at most ``LONG`` weights,
    or all more. ``lengths`` has the number of weights of each segment, ``gaps`` the number of bits
    after it."""
    width, out = zrl + WEIGHT_BITS, []
    turns = np.flatnonzero(np.diff(lengths > LONG)) + 1
    for some, after in zip(np.split(lengths, turns), np.split(gaps, turns), strict=True):
        if len(some):
            least = after - some // -(2**zrl) * width
            ahead = np.append(0, np.cumsum(least))
            most = int((after + width * some).sum())
            out.append(Segments(some.tolist(), after.tolist(), ahead, most))
    return out


def count_items(data: bytes, at: int, groups: list[Segments], zrl: int) -> list[int] | None:
    """Return the number of items in each segment from bit ``at`` on, or None if a segment begins
    past the end of ``data``.

    A segment is counted up to the item that completes its weights. In a broken stream this item may
    hold more weights than the segment needs; the caller has to check that."""
    out = list[int]()
    for part in groups:
        count = _count_short
        if part.lengths[0] > LONG:
            count = _count_long
        found = count(data, at, part, zrl)
        if found is None:
            return None
        some, at = found
        out += some
    return out


def _count_long(data: bytes, at: int, part: Segments, zrl: int) -> tuple[list[int], int] | None:
    """Return the number of items in each segment of a group with many weights, and the bit at
    which the next group begins; None if a segment begins past the end of ``data``."""
    width, out, share = zrl + WEIGHT_BITS, [], 1.0
    for left, gap in zip(part.lengths, part.gaps, strict=True):
        count = 0
        while left > 0:
            if at >= 8 * len(data):
                return None
            taken = min(left, MANY, int(share * left) + 16)
            runs = bits_at(data, at + width * np.arange(taken), zrl)
            reach = np.cumsum(runs + 1, dtype=np.int64)
            if reach[-1] >= left:
                taken = int(np.searchsorted(reach, left)) + 1
            weights = int(reach[taken - 1])
            left -= weights
            share = min(1.0, 1.1 * taken / weights)
            at += width * taken
            count += taken
        out.append(count)
        at += gap
    return out, at


def _count_short(data: bytes, at: int, part: Segments, zrl: int) -> tuple[list[int], int] | None:
    """Return what ``_count_long`` returns, for a group of segments with at most ``LONG`` weights.
    The tables have an entry for each bit of a chunk of ``data``.
    """
    width, out, longest = zrl + WEIGHT_BITS, list[int](), max(part.lengths)
    way = _by_leaps
    if longest <= FEW and len(part.lengths) > OFTEN * longest:
        way = _by_count
    while len(out) < len(part.lengths):
        if at >= 8 * len(data):
            return None
        done, base = len(out), at // 8
        bits = 8 * min(len(data) - base, CHUNK, part.most // 8 + 1)
        # Only these segments can begin in this chunk. Later segments begin behind the chunk even if
        # all segments before them have as few bits as they can.
        begin = slice(done, int(np.searchsorted(part.ahead, part.ahead[done] + bits)))
        runs = _runs(data[base:], bits + 2 * longest * width, zrl)
        some, at = way(runs, bits, at - 8 * base, part.lengths[begin], part.gaps[begin], zrl)
        at += 8 * base
        out += some
    return out, at


def _runs(data: bytes, bits: int, zrl: int) -> Array:
    """Return, for each of the first ``bits`` bits, the length of the zero run of an item that
    begins at this bit. Bits after the end of ``data`` are read as 0.
    """
    room = (bits + zrl) // 8 + 1
    stored = np.frombuffer(data[:room].ljust(room, b"\0"), np.uint8)
    planes = np.unpackbits(stored, bitorder="little")
    out = planes[zrl - 1 :][:bits].copy()
    for plane in range(zrl - 2, -1, -1):
        out += out
        out += planes[plane : plane + bits]
    return out


def _by_count(
    runs: Array,
    bits: int,
    at: int,
    lengths: list[int],
    gaps: list[int],
    zrl: int,
) -> tuple[list[int], int]:
    """Return the number of items in each segment that begins in the first ``bits`` bits, and the
    bit at which the segment after them begins. The first segment begins at bit ``at``; ``runs`` has
    the length of the zero run of an item at each bit.

    For each length of a segment, a table has the number of items of a segment at each bit.
    """
    width, longest = zrl + WEIGHT_BITS, max(lengths)
    if 2**zrl + longest > 255:
        # Runs are cut to the length of the longest segment, so that a uint8 sum does not overflow
        # if one more run is added.
        runs = np.minimum(runs, np.uint8(longest))
    weights = runs + np.uint8(1)
    sums, short = np.zeros(bits, np.uint8), np.empty(bits, bool)
    counts, left = {}, {}
    for length in {*lengths}:
        # Counting starts at the least number of items, that of a segment of the longest runs.
        counts[length] = np.full(bits, (length - 1) // 2**zrl + 1, np.uint8)
        left[length] = np.ones(bits, bool)
    for items in range(1, longest):
        sums += weights[(items - 1) * width :][:bits]
        for length, count in counts.items():
            if items < length <= items * 2**zrl:
                left[length] &= np.less(sums, np.uint8(length), out=short)
                count += left[length].view(np.uint8)
    # Elements are read one by one, which is faster from memory views than from arrays.
    tables, out = {length: count.data for length, count in counts.items()}, list[int]()
    for length, gap in zip(lengths, gaps, strict=True):
        if at >= bits:
            break
        items = tables[length][at]
        out.append(items)
        at += width * items + gap
    return out, at


def _by_leaps(
    runs: Array,
    bits: int,
    at: int,
    lengths: list[int],
    gaps: list[int],
    zrl: int,
) -> tuple[list[int], int]:
    """Return what ``_by_count`` returns, by leaps over several items at once. For each size of a
    leap, a table has the number of weights that the leap passes, by the bit at which it begins.
    """
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
        if left:
            at += width
        out.append((at - start) // width)
        at += gap
    return out, at
