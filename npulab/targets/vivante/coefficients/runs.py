"""The plain format (V7) with whole arrays: the same bytes and content as ``plain``, which explains each bit.

All cores have streams of the same order.  Between two places where pending runs are flushed (a segment)
items have one width, so that the count of items in each segment says where every bit lies.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from npulab.streams import bits_at, put_bits
from npulab.targets.vivante.coefficients import plain
from npulab.targets.vivante.coefficients.geometry import (
    ALIGN,
    COUNT_BITS,
    ZRL_BITS,
    Coefficients,
    Geometry,
    refuse_content,
    words_of,
)
from npulab.targets.vivante.coefficients.plain import WEIGHT_BITS, WORD_BITS

HEAD_BITS = ZRL_BITS + COUNT_BITS
WORD_BYTES = WORD_BITS // 8
FEW = 32  # weights of a segment whose items are counted from every bit at once
LONG = 256  # weights of one that is worth arrays of its own
LEAPS = (64, 16, 4, 1)  # items whose weights are counted at once in those between
CHUNK = 2 ** 13  # bytes
MANY = 2 ** 12  # items
SPARSE = 32  # weights in a byte


class Order:
    """Where a core's stream has what, in weights from its start.

    ``places (2 * kernels,)`` are where biases and offsets lie, in stream order, ``biases`` and ``offsets`` which of
    them are of each kernel; ``breaks`` is where segments end and ``lengths`` the weights they have, ``gaps`` the bits
    behind each; ``several`` are those of more than one weight; ``length`` are the weights in all.
    """

    def __init__(self, geometry: Geometry) -> None:
        g = self.geometry = geometry
        self.cells = np.array([row * g.kernel_w + column for row, column in g.cells()])
        self.plain = bool(np.all(self.cells[1:] > self.cells[:-1]))
        cells = len(self.cells)
        self.length = g.per_core * g.kernel_size
        first = min(g.group, g.planes) * cells
        last = (g.planes - (g.planes - 1) // g.group * g.group) * cells
        places, flushes, base = [], [np.array([self.length])], 0
        for number, block in enumerate(g.blocks(0)):
            kernels = np.arange(block.kernels)
            end = base + block.kernels * g.kernel_size
            places += [base + kernels * first + 1, end - (block.kernels - 1 - kernels) * last]
            if number == g.superblocks - 1 and g.order == "inter":
                flushes.append(np.arange(base, end, block.kernels * cells))
            base = end
        found = np.concatenate(places)
        # a kernel of one weight has bias and offset at one place
        ranks = np.argsort(found, kind="stable")
        self.places = found[ranks]
        inverse = np.empty_like(ranks)
        inverse[ranks] = np.arange(len(ranks))
        counts = np.repeat([part % 2 for part in range(len(places))], [len(part) for part in places])
        self.biases, self.offsets = inverse[counts == 0], inverse[counts == 1]
        breaks = np.unique(np.concatenate([self.places, *flushes]))
        self.breaks = breaks[breaks > 0]
        self.words_before = np.searchsorted(self.places, self.breaks)  # of the segment that ends there
        self.lengths = np.diff(self.breaks, prepend=0)
        self.gaps = WORD_BITS * np.diff(self.words_before, append=len(self.places))  # bits
        self.segments_before = np.searchsorted(self.breaks, self.places) + 1  # of each word
        self.several = np.flatnonzero(self.lengths > 1)
        # ahead of the first of them and behind each: bits between segments, and segments of one weight
        bounds = np.concatenate([[-1], self.several, [len(self.lengths)]])
        self.singles = np.diff(bounds) - 1
        self.skips = np.diff(np.append(0, np.cumsum(self.gaps))[np.append(0, bounds[1:])])

    def channels(self, core: int) -> np.ndarray:
        return np.concatenate([block.channels for block in self.geometry.blocks(core)])

    def weight_bytes(self) -> np.ndarray:
        """Mask of the bytes of a stream without zero runs that hold weights."""
        out = np.ones(HEAD_BITS // 8 + self.length + WORD_BYTES * len(self.places), bool)
        out[:HEAD_BITS // 8] = False
        out[self.word_bytes()] = False
        return out

    def word_bytes(self) -> np.ndarray:
        """Bytes of a stream without zero runs that hold biases and offsets, ``(words, 4)``."""
        first = HEAD_BITS // 8 + self.places + WORD_BYTES * np.arange(len(self.places))
        return first[:, None] + np.arange(WORD_BYTES)

    def take(self, weights: np.ndarray, core: int) -> np.ndarray:
        """A core's weights in stream order, ``(length,)``."""
        flat, parts = weights.reshape(len(weights), self.geometry.planes, -1), []
        for block in self.geometry.blocks(core):
            kernels = flat[block.first:block.first + block.kernels]
            kernels = kernels if self.plain else kernels[:, :, self.cells]
            parts += [part.reshape(-1) for part in self._parts(kernels)]
        return np.concatenate(parts)

    def put(self, stream: np.ndarray, core: int, weights: np.ndarray) -> None:
        """The inverse of ``take``, into ``weights``."""
        flat, at = weights.reshape(len(weights), self.geometry.planes, -1), 0
        for block in self.geometry.blocks(core):
            into = flat[block.first:block.first + block.kernels]
            kernels = into if self.plain else np.empty_like(into)
            for part in self._parts(kernels):
                part[...] = stream[at:at + part.size].reshape(part.shape)
                at += part.size
            if not self.plain:
                into[:, :, self.cells] = kernels

    def _parts(self, kernels: np.ndarray) -> list[np.ndarray]:
        """Views of a superblock ``(kernels, planes, cells)`` in stream order: whole groups of planes, the rest."""
        (count, planes, cells), group = kernels.shape, self.geometry.group
        whole = planes // group
        groups = kernels[:, :whole * group].reshape(count, whole, group, cells).transpose(1, 0, 2, 3)
        return [groups, kernels[:, whole * group:]]


def encode(coefficients: Coefficients, geometry: Geometry) -> bytes:
    """The buffer of ``coefficients``, filled with zeros to its ``size``; the inverse of ``decode``.

    Raises ValueError for content that does not go with the geometry.
    """
    refuse_content(coefficients, geometry)
    c, g, order = coefficients, geometry, Order(geometry)
    streams = []
    for core, zrl in enumerate(c.zrl):
        channels, words = order.channels(core), np.empty(len(order.places), np.uint32)
        words[order.biases], words[order.offsets] = c.bias[channels].astype(np.uint32), c.offsets[channels]
        weights = order.take(c.weights, core)
        streams.append(_with_runs(weights, words, order, zrl) if zrl else _without_runs(weights, words, order))
    return plain.join(streams, g, c.size)


def _head(order: Order, zrl: int) -> bytes:
    return bytes([zrl]) + order.geometry.per_core.to_bytes(COUNT_BITS // 8, "little")


def _without_runs(weights: np.ndarray, words: np.ndarray, order: Order) -> bytes:
    out = np.empty(HEAD_BITS // 8 + len(weights) + WORD_BYTES * len(words), np.uint8)
    out[:HEAD_BITS // 8] = np.frombuffer(_head(order, 0), np.uint8)
    out[order.weight_bytes()] = weights
    out[order.word_bytes()] = words.astype("<u4").view(np.uint8).reshape(-1, WORD_BYTES)
    return out.tobytes()


def _with_runs(weights: np.ndarray, words: np.ndarray, order: Order, zrl: int) -> bytes:
    ends, gaps = _gaps(weights, order)
    longest, literals = 2 ** zrl, weights[ends]
    runs = gaps - 1
    if len(gaps) and gaps.max() > longest:
        # a run that is too long ends in literal zero points
        counts = -(-gaps // longest)
        last = np.cumsum(counts) - 1
        ends, kept = np.repeat(ends, counts), literals
        literals = np.full(len(ends), order.geometry.zero_point, np.uint8)
        literals[last] = kept
        every = np.full(len(ends), longest - 1, runs.dtype)
        every[last] = runs % longest
        runs = every
    # of the items that an `end` was repeated for all come behind the words before it
    slots = 1 + np.searchsorted(ends, order.places) + np.arange(len(words))
    values, widths = np.empty((2, 1 + len(ends) + len(words)), np.uint32)
    items = np.ones(len(values), bool)
    items[0], items[slots] = False, False
    values[0], values[slots] = int.from_bytes(_head(order, zrl), "little"), words
    values[items] = runs.astype(np.uint32) + np.uint32(longest) * literals
    widths[:] = zrl + WEIGHT_BITS
    widths[0], widths[slots] = HEAD_BITS, WORD_BITS
    stops = np.cumsum(widths, dtype=np.int64)
    return put_bits(values, stops - widths, int(stops[-1]))


def _gaps(weights: np.ndarray, order: Order) -> tuple[np.ndarray, np.ndarray]:
    """Where an item must end whatever the zero-run width, and the weights since the one before."""
    stop = weights != order.geometry.zero_point
    stop[order.breaks - 1] = True
    ends = np.flatnonzero(stop)
    return ends, np.diff(ends, prepend=-1)


def choose_zrl(coefficients: Coefficients, geometry: Geometry, widest: int) -> int:
    """The zero-run width the driver picks: from the widest down, the smallest total of 32-bit words,
    ties to the narrower, stopping at the first increase; 0 for pointwise layers."""
    g = geometry
    if g.kernel_h == g.kernel_w == 1:
        return 0
    order = Order(g)
    cores = []
    for core in range(g.used):
        ends, gaps = _gaps(order.take(coefficients.weights, core), order)
        cores.append((len(ends), gaps[gaps > 1]))
    best, least = 0, None
    for zrl in range(widest, -1, -1):
        items = [count + int(((gaps - 1) // 2 ** zrl).sum()) for count, gaps in cores]
        total = sum(-(-(HEAD_BITS + WORD_BITS * len(order.places) + (zrl + WEIGHT_BITS) * n) // WORD_BITS)
                    for n in items)
        if least is not None and total > least:
            break
        best, least = zrl, total
    return best


class _Stream(NamedTuple):
    """A core's stream taken apart: zero-run width, weights that are not run over and where, biases and offsets."""

    zrl: int
    literals: np.ndarray
    ends: np.ndarray | None
    words: np.ndarray

    def weights(self, order: Order) -> np.ndarray:
        if self.ends is None:
            return self.literals
        out = np.full(order.length, order.geometry.zero_point, np.uint8)
        out[self.ends] = self.literals
        return out


def decode(buffer: bytes, geometry: Geometry, fast: bool = False) -> Coefficients:
    """Weights, biases and offsets of a buffer; raises ValueError as ``plain.walk`` does.

    ``fast`` runs compiled loops (``npulab[fast]``).
    """
    g = geometry
    plain.refuse_more_than_fits(buffer, g)
    sizes, start = plain.sizes(buffer, g)[:g.used], plain.header_bytes(g.cores)
    found: list[_Stream] = []
    # in this order runs end with each plane of the last superblock
    least = HEAD_BITS // 8 + 2 * WORD_BYTES * g.per_core + (g.planes if g.order == "inter" else 0)
    if min(sizes) >= least and not buffer[4 * g.cores:start].strip(b"\0"):
        order = Order(g)
        for size in sizes:
            stream = _read(buffer[start:start + size], order, fast)
            if stream is None:
                break
            found.append(stream)
            start += size
    if len(found) < g.used or buffer[start:].strip(b"\0"):
        for _ in plain.walk(buffer, g):  # says what is wrong
            pass
        raise AssertionError("coefficients: array and bit by bit readings differ")
    weights, words = np.empty(g.shape, np.uint8), np.empty((2, g.slots), np.uint32)
    for core, stream in enumerate(found):
        order.put(stream.weights(order), core, weights)
        words[:, order.channels(core)] = stream.words[order.biases], stream.words[order.offsets]
    return Coefficients(weights, words[0].view(np.int32), words[1], tuple(stream.zrl for stream in found), len(buffer))


def _read(data: bytes, order: Order, fast: bool) -> _Stream | None:
    """A stream, or None where it does not follow the format."""
    zrl = data[0]
    if zrl > ZRL_BITS or data[:HEAD_BITS // 8] != _head(order, zrl):
        return None
    if zrl:
        return _read_runs(data, order, zrl, fast)
    length = HEAD_BITS // 8 + order.length + WORD_BYTES * len(order.places)
    if not length <= len(data) < length + ALIGN or data[length:].strip(b"\0"):
        return None
    stored = np.frombuffer(data, np.uint8, length)
    words = np.ascontiguousarray(stored[order.word_bytes()]).view("<u4").reshape(-1)
    return _Stream(zrl, stored[order.weight_bytes()], None, words)


def _read_runs(data: bytes, order: Order, zrl: int, fast: bool) -> _Stream | None:
    width, weights = zrl + WEIGHT_BITS, np.zeros(0, np.uint8)
    if 2 ** zrl * (8 * len(data) // width) < order.length:
        return None
    fast = fast and order.length <= SPARSE * len(data)  # nothing large is made for a stream that may be broken
    if fast:
        from npulab.targets.vivante.coefficients import loops

        counts, weights = np.empty(len(order.breaks), np.int64), np.empty(order.length, np.uint8)
        if not loops.runs(words_of(data), HEAD_BITS, 8 * len(data), zrl, order.lengths, order.gaps,
                          np.uint8(order.geometry.zero_point), counts, weights):
            return None
    else:
        found = _count_items(data, order, zrl)
        if found is None:
            return None
        counts = found
    items = np.append(0, np.cumsum(counts))
    end = HEAD_BITS + width * int(items[-1]) + WORD_BITS * len(order.places)
    if not end <= 8 * len(data) < end + 8 * ALIGN or np.any(bits_at(data, np.arange(end, 8 * len(data)), 1)):
        return None
    at = HEAD_BITS + WORD_BITS * np.arange(len(order.places)) + width * items[order.segments_before]
    words = bits_at(data, at, WORD_BITS).astype(np.uint32)
    if fast:
        return _Stream(zrl, weights, None, words)
    at = np.repeat(HEAD_BITS + WORD_BITS * order.words_before, counts) + width * np.arange(items[-1])
    stored = bits_at(data, at, width)
    reach = np.cumsum((stored & (2 ** zrl - 1)) + 1, dtype=np.int64)
    if np.any(reach[items[1:] - 1] != order.breaks):
        return None
    return _Stream(zrl, (stored >> zrl).astype(np.uint8), reach - 1, words)


def _count_items(data: bytes, order: Order, zrl: int) -> np.ndarray | None:
    """Items of each segment up to the one that ends it or goes too far; None where the stream goes past its end."""
    width, counts = zrl + WEIGHT_BITS, np.ones(len(order.lengths), np.int64)
    skips = order.skips + width * order.singles
    at, found = HEAD_BITS + int(skips[0]), list[int]()
    lengths, gaps = order.lengths[order.several], skips[1:]
    kinds = np.searchsorted((FEW, LONG), lengths)
    bounds = [0, *(np.flatnonzero(np.diff(kinds)) + 1).tolist(), len(lengths)] if len(lengths) else []
    for first, behind in pairwise(bounds):
        count = _count_long if kinds[first] == 2 else _count_short
        some = count(data, at, lengths[first:behind], gaps[first:behind], zrl)
        if some is None:
            return None
        found += some
        at += width * sum(some) + int(gaps[first:behind].sum())
    counts[order.several] = found
    return counts


def _count_long(data: bytes, at: int, lengths: np.ndarray, gaps: np.ndarray, zrl: int) -> list[int] | None:
    """Items of segments of many weights, from bit ``at`` on; ``gaps`` are the bits behind each."""
    width, out, share = zrl + WEIGHT_BITS, [], 1.0
    for left, gap in zip(lengths.tolist(), gaps.tolist(), strict=True):
        count = 0
        while left > 0:
            if at >= 8 * len(data):
                return None
            taken = min(left, MANY, int(share * left) + 16)
            reach = np.cumsum((bits_at(data, at + width * np.arange(taken), zrl)) + 1, dtype=np.int64)
            if reach[-1] >= left:
                taken = int(np.searchsorted(reach, left)) + 1
            left -= int(reach[taken - 1])
            share = min(1.0, 1.1 * taken / int(reach[taken - 1]))
            at += width * taken
            count += taken
        out.append(count)
        at += gap
    return out


def _count_short(data: bytes, at: int, lengths: np.ndarray, gaps: np.ndarray, zrl: int) -> list[int] | None:
    """The same of segments of few weights, by tables of what the items from each bit of a chunk on stand for."""
    width, out, longest = zrl + WEIGHT_BITS, list[int](), int(lengths.max())
    least = np.append(0, np.cumsum(gaps - lengths // -2 ** zrl * width))  # bits ahead of each
    most = int((gaps + width * lengths).sum())
    while len(out) < len(lengths):
        if at >= 8 * len(data):
            return None
        done, base = len(out), at // 8
        bits = 8 * min(len(data) - base, CHUNK, most // 8 + 1)
        # of those that may begin in the chunk
        part = slice(done, int(np.searchsorted(least, least[done] + bits)))
        runs = _runs(data[base:], bits + 2 * longest * width, zrl)
        some = (_by_count if longest <= FEW else _by_leaps)(
            runs, bits, at - 8 * base, lengths[part].tolist(), gaps[part].tolist(), zrl)
        at += width * sum(some) + int(gaps[done:done + len(some)].sum())
        out += some
    return out


def _runs(data: bytes, bits: int, zrl: int) -> np.ndarray:
    """The zero run of an item at each of so many bits; behind the end of ``data`` all bits are 0."""
    room = (bits + zrl) // 8 + 1
    planes = np.unpackbits(np.frombuffer(data[:room].ljust(room, b"\0"), np.uint8), bitorder="little")
    out = planes[zrl - 1:][:bits].copy()
    for plane in range(zrl - 2, -1, -1):
        out += out
        out += planes[plane:plane + bits]
    return out


def _by_count(runs: np.ndarray, bits: int, at: int, lengths: list[int], gaps: list[int], zrl: int) -> list[int]:
    """Items of those segments that begin in the first ``bits`` bits: of one that begins at any of them they
    are counted for each length there is."""
    width, longest = zrl + WEIGHT_BITS, max(lengths)
    if 2 ** zrl + longest > 255:
        runs = np.minimum(runs, np.uint8(longest))  # a sum that is not too large yet does not overflow
    weights = runs + np.uint8(1)
    sums, short = np.zeros(bits, np.uint8), np.empty(bits, bool)
    # as many as do not reach the end if all are of longest runs, and the last
    counts = {length: np.full(bits, (length - 1) // 2 ** zrl + 1, np.uint8) for length in {*lengths}}
    left = {length: np.ones(bits, bool) for length in counts}
    for items in range(1, longest):
        sums += weights[(items - 1) * width:][:bits]
        for length, count in counts.items():
            if items < length <= items * 2 ** zrl:
                left[length] &= np.less(sums, np.uint8(length), out=short)
                count += left[length].view(np.uint8)
    tables, out = {length: count.data for length, count in counts.items()}, list[int]()
    try:
        for table, gap in zip([tables[length] for length in lengths], gaps, strict=True):
            items = table[at]
            out.append(items)
            at += width * items + gap
    except IndexError:
        pass
    return out


def _by_leaps(runs: np.ndarray, bits: int, at: int, lengths: list[int], gaps: list[int], zrl: int) -> list[int]:
    """The same by leaps of several items, whose weights are known for each bit."""
    width, have = zrl + WEIGHT_BITS, 1
    weights = {1: runs.astype(np.uint16) + np.uint16(1)}
    while 4 * have <= max(lengths):
        weights[2 * have] = weights[have][:-have * width] + weights[have][have * width:]
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
    return out
