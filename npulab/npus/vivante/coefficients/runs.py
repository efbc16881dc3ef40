"""The plain format (V7) with whole arrays: the same bytes and content as ``plain``, which explains
each bit.

The streams of all cores have the same order. A segment is the part of a stream between two places
where a zero run has to end. All items (a zero run and the weight after it) have the same number of
bits, so the numbers of items in the segments say where every bit lies.
"""

from __future__ import annotations

from itertools import pairwise, takewhile
from operator import sub

import numpy as np
from numpy import ndarray as Array

from npulab.layout.bitstream import bits_at, put_bits
from npulab.npus.kit import ceil_div
from npulab.npus.vivante.coefficients import buffers, plain
from npulab.npus.vivante.coefficients.buffers import ALIGN, ZRL_BITS, Coefficients, Geometry
from npulab.npus.vivante.coefficients.counts import count_items, segments_of
from npulab.npus.vivante.coefficients.plain import WEIGHT_BITS, WORD_BITS

HEAD_BITS = ZRL_BITS + buffers.COUNT_BITS
WORD_BYTES = WORD_BITS // 8
# Streams of several cores are read at once, up to TOGETHER weights in all. Streams has, by stream,
# its weights and its words (biases and offsets). If the geometry has more than SPARSE weights for
# each byte of a buffer, all items are counted before the array of weights is made.
TOGETHER = 20_000
Streams = list[tuple[Array, Array]]
SPARSE = 32


class Order:
    """The order of a core's stream. A place in it is the number of weights before that place.

    ``length`` is the number of weights of a core, ``blocks`` has the superblocks of each core,
    ``words`` says where biases and offsets lie. Segments end at the places ``breaks``; ``lengths``
    has the number of weights of each segment, ``gaps`` the bits of words between it and the next.

    Segments are numbered. ``several`` has the numbers of the segments with more than one weight.
    ``singles`` is the number of segments of one weight before each of these, and after the last;
    ``skips`` is the number of bits of words among them.
    """

    def __init__(self, geometry: Geometry) -> None:
        g = self.geometry = geometry
        self.cells = np.array([row * g.kernel_w + column for row, column in g.cells()])
        self.plain = bool(np.all(self.cells[1:] > self.cells[:-1]))
        cells = len(self.cells)
        self.length = g.per_core * g.kernel_size
        first = min(g.group, g.planes) * cells
        last = (g.planes - (g.planes - 1) // g.group * g.group) * cells
        biases, offsets, flushes, base = [], [], [np.array([self.length])], 0
        self.blocks = [g.blocks(core) for core in range(g.used)]
        for number, block in enumerate(self.blocks[0]):
            kernels = np.arange(block.kernels)
            end = base + block.kernels * g.kernel_size
            biases.append(base + kernels * first + 1)
            offsets.append(end - kernels[::-1] * last)
            if number == g.superblocks - 1 and g.order == "inter":
                flushes.append(np.arange(base, end, block.kernels * cells))
            base = end
        self.words = plain.words_at(biases, offsets)
        places = self.words.places
        self.breaks = np.unique(np.concatenate([places, *flushes]))
        self.breaks = self.breaks[self.breaks > 0]
        # By segment: the number of words before it.
        self.words_before = np.searchsorted(places, self.breaks)
        self.lengths = np.diff(self.breaks, prepend=0)
        self.gaps = WORD_BITS * np.diff(self.words_before, append=len(places))
        # By word: the number of segments before it.
        self.segments_before = np.searchsorted(self.breaks, places) + 1
        self.several = np.flatnonzero(self.lengths > 1)
        bounds = np.concatenate([[-1], self.several, [len(self.lengths)]])
        self.singles = np.diff(bounds) - 1
        self.skips = np.diff(np.append(0, np.cumsum(self.gaps))[np.append(0, bounds[1:])])

    def channels(self, core: int) -> Array:
        return np.concatenate([block.channels for block in self.blocks[core]])

    def weight_bytes(self) -> Array:
        """Return a boolean for each byte of a stream without zero runs: True if the byte is a
        weight."""
        out = np.ones(HEAD_BITS // 8 + self.length + WORD_BYTES * len(self.words.places), bool)
        out[: HEAD_BITS // 8] = False
        out[self.word_bytes()] = False
        return out

    def word_bytes(self) -> Array:
        """Return the numbers ``(words, 4)`` of the bytes of a stream without zero runs that hold
        biases and offsets."""
        first = HEAD_BITS // 8 + self.words.places + WORD_BYTES * np.arange(len(self.words.places))
        return first[:, None] + np.arange(WORD_BYTES)

    def take(self, weights: Array, core: int) -> Array:
        """Return a core's weights in stream order, ``(length,)``."""
        flat, parts = weights.reshape(len(weights), self.geometry.planes, -1), []
        for block in self.blocks[core]:
            kernels = flat[block.first : block.first + block.kernels]
            if not self.plain:
                kernels = kernels[:, :, self.cells]
            parts += [part.reshape(-1) for part in self._parts(kernels)]
        return np.concatenate(parts)

    def put(self, stream: Array, core: int, weights: Array) -> None:
        """Write a core's weights in stream order into ``weights``; the inverse of ``take``."""
        flat, at = weights.reshape(len(weights), self.geometry.planes, -1), 0
        for block in self.blocks[core]:
            into = kernels = flat[block.first : block.first + block.kernels]
            if not self.plain:
                kernels = np.empty_like(into)
            for part in self._parts(kernels):
                part[...] = stream[at : at + part.size].reshape(part.shape)
                at += part.size
            if not self.plain:
                into[:, :, self.cells] = kernels

    def _parts(self, kernels: Array) -> list[Array]:
        """Return two views of a superblock's weights ``(kernels, planes, cells)``, each in stream
        order: one of all whole groups of planes, one of the planes after the last whole group.
        """
        (count, planes, cells), group = kernels.shape, self.geometry.group
        whole = planes // group
        groups = kernels[:, : whole * group].reshape(count, whole, group, cells)
        return [groups.transpose(1, 0, 2, 3), kernels[:, whole * group :]]


def encode(coefficients: Coefficients, geometry: Geometry) -> bytes:
    """Return the buffer that holds ``coefficients``, filled with zeros up to their ``size``; the
    inverse of ``decode``."""
    c, order, streams = coefficients, Order(geometry), []
    for core, zrl in enumerate(c.zrl):
        words = order.words.stored(c, order.channels(core))
        weights = order.take(c.weights, core)
        if zrl:
            streams.append(_with_runs(weights, words, order, zrl))
        else:
            streams.append(_without_runs(weights, words, order))
    return plain.join(streams, geometry, c.size)


def _head(order: Order, zrl: int) -> bytes:
    return bytes([zrl]) + order.geometry.per_core.to_bytes(buffers.COUNT_BITS // 8, "little")


def _without_runs(weights: Array, words: Array, order: Order) -> bytes:
    out = np.empty(HEAD_BITS // 8 + len(weights) + WORD_BYTES * len(words), np.uint8)
    out[: HEAD_BITS // 8] = np.frombuffer(_head(order, 0), np.uint8)
    out[order.weight_bytes()] = weights
    out[order.word_bytes()] = words.astype("<u4").view(np.uint8).reshape(-1, WORD_BYTES)
    return out.tobytes()


def _with_runs(weights: Array, words: Array, order: Order, zrl: int) -> bytes:
    ends, gaps = _gaps(weights, order)
    longest, literals = 2**zrl, weights[ends]
    runs = gaps - 1
    if len(gaps) and gaps.max() > longest:
        # A run that is longer than the width allows is cut into items; the weight of each item
        # except the last is a zero point.
        counts = -(-gaps // longest)
        last = np.cumsum(counts) - 1
        ends, kept = np.repeat(ends, counts), literals
        literals = np.full(len(ends), order.geometry.zero_point, np.uint8)
        literals[last] = kept
        every = np.full(len(ends), longest - 1, runs.dtype)
        every[last] = runs % longest
        runs = every
    # A word comes after the item that holds the weight before it.
    before = np.searchsorted(ends, order.words.places)
    return packed(_head(order, zrl), runs, literals, words, before, zrl)


def packed(
    head: bytes,
    runs: Array,
    literals: Array,
    words: Array,
    before: Array,
    zrl: int,
) -> bytes:
    """Return the bytes of a stream from its head (zero-run width and number of kernels), its items
    and its words (biases and offsets).

    Item n is ``runs[n]`` zero points and the weight ``literals[n]`` after them. ``before`` has the
    number of items before each word.
    """
    slots = 1 + before + np.arange(len(words))
    values, widths = np.empty((2, 1 + len(runs) + len(words)), np.uint32)
    items = np.ones(len(values), bool)
    items[0], items[slots] = False, False
    values[0], values[slots] = int.from_bytes(head, "little"), words
    values[items] = runs.astype(np.uint32) + np.uint32(2**zrl) * literals
    widths[:] = zrl + WEIGHT_BITS
    widths[0], widths[slots] = HEAD_BITS, WORD_BITS
    stops = np.cumsum(widths, dtype=np.int64)
    return put_bits(values, stops - widths, int(stops[-1]))


def _gaps(weights: Array, order: Order) -> tuple[Array, Array]:
    """Return two arrays: the numbers (places in the stream) of the weights that end an item at
    every zero-run width, and the difference of each number from the previous, of the first from -1.
    These weights are those that are not the zero point, and the last weights of segments."""
    stop = weights != order.geometry.zero_point
    stop[order.breaks - 1] = True
    ends = np.flatnonzero(stop)
    return ends, np.diff(ends, prepend=-1)


def choose_zrl(coefficients: Coefficients, geometry: Geometry, widest: int) -> int:
    """Return the zero-run width (bits) that Mesa picks; 0 for 1x1 kernels.

    Mesa tries the widths from ``widest`` down as long as the streams do not take more 32-bit words
    than with the width before. The last width before a growth, or 0, is picked."""
    g = geometry
    if g.kernel_h == g.kernel_w == 1:
        return 0
    order = Order(g)
    cores = []
    for core in range(g.used):
        ends, gaps = _gaps(order.take(coefficients.weights, core), order)
        cores.append((len(ends), gaps[gaps > 1]))
    fixed_bits = HEAD_BITS + WORD_BITS * len(order.words.places)
    best, least = 0, None
    for zrl in range(widest, -1, -1):
        total = 0
        for count, gaps in cores:
            items = count + int(((gaps - 1) // 2**zrl).sum())
            total += ceil_div(fixed_bits + (zrl + WEIGHT_BITS) * items, WORD_BITS)
        if least is not None and total > least:
            break
        best, least = zrl, total
    return best


def decode(buffer: bytes, geometry: Geometry, fast: bool = False) -> Coefficients | None:
    """Return the content of a buffer, or None if it does not follow the format.

    ``fast`` runs compiled loops (``npulab[fast]``).
    """
    g = geometry
    stops = plain.stops_of(buffer, g)
    least = HEAD_BITS // 8 + 2 * WORD_BYTES * g.per_core
    if g.order == "inter":
        least += g.planes  # each plane of the last superblock ends an item, of at least a byte
    if stops is None or min(map(sub, stops[1:], stops)) < least:
        return None
    return _read(buffer, stops, Order(g), fast)


def _read(buffer: bytes, stops: list[int], order: Order, fast: bool) -> Coefficients | None:
    """Return the content of the streams, or None if a stream does not follow the format. ``stops``
    are the byte at which the first stream begins and the byte after each stream."""
    g, widths = order.geometry, []
    for start in stops[:-1]:
        zrl = buffer[start]
        if zrl > ZRL_BITS or not buffer.startswith(_head(order, zrl), start):
            return None
        widths.append(zrl)
    streams: Streams = []
    while (core := len(streams)) < g.used:
        zrl, together = widths[core], max(1, TOGETHER // order.length)
        alike = len([*takewhile(lambda width: width == zrl, widths[core : core + together])])  # noqa: B023
        start, end = stops[core], stops[core + alike]
        inside = [stop - start for stop in stops[core : core + alike + 1]]
        if zrl:
            part = _split_runs(buffer[start:end], inside, order, fast)
        else:
            part = _split(buffer[start:end], inside, order)
        if part is None:
            return None
        streams += part
    content = plain.empty(g, widths, len(buffer))
    for core, (stream, words) in enumerate(streams):
        order.put(stream, core, content.weights)
        order.words.put(words, order.channels(core), content)
    return content


def _split(data: bytes, stops: list[int], order: Order) -> Streams | None:
    """Return (weights, words) of each stream, if all have no zero runs; None if a stream does not
    end where its size says.
    """
    length, out = HEAD_BITS // 8 + order.length + WORD_BYTES * len(order.words.places), []
    for start, stop in pairwise(stops):
        end = start + length
        if not end <= stop < end + ALIGN or data[end:stop].strip(b"\0"):
            return None
        stored = np.frombuffer(data, np.uint8, length, start)
        words = np.ascontiguousarray(stored[order.word_bytes()]).view("<u4").reshape(-1)
        out.append((stored[order.weight_bytes()], words))
    return out


def _split_runs(data: bytes, stops: list[int], order: Order, fast: bool) -> Streams | None:
    """Return (weights, words) of each stream, if all have the same zero-run width above 0; None if
    a stream does not follow the format."""
    zrl = data[0]
    width, streams = zrl + WEIGHT_BITS, [data[start:stop] for start, stop in pairwise(stops)]
    if any(2**zrl * (8 * len(stream) // width) < order.length for stream in streams):
        return None
    counts, weights = np.ones((len(streams), len(order.lengths)), np.int64), None
    # A small broken buffer must not lead to a large array. So the items are counted first if there
    # are many weights for each byte.
    if fast and order.length <= SPARSE * len(data):
        weights = np.empty((len(streams), order.length), np.uint8)
        for n, stream in enumerate(streams):
            if not _expand(stream, counts[n], weights[n], order):
                return None
    else:
        skips = order.skips + width * order.singles
        groups = segments_of(order.lengths[order.several], skips[1:], zrl)
        for n, stream in enumerate(streams):
            found = count_items(stream, HEAD_BITS + int(skips[0]), groups, zrl)
            if found is None:
                return None
            counts[n, order.several] = found
    starts = 8 * np.array(stops[:-1])[:, None] + HEAD_BITS  # the bit of each stream's first item
    items = np.zeros((len(streams), len(order.lengths) + 1), np.int64)
    np.cumsum(counts, axis=1, out=items[:, 1:])
    ends = (starts[:, 0] + width * items[:, -1] + WORD_BITS * len(order.words.places)).tolist()
    if not all(plain.may_end(data, end, stop) for end, stop in zip(ends, stops[1:], strict=True)):
        return None
    places = starts + WORD_BITS * np.arange(len(order.words.places))
    places += width * items[:, order.segments_before]
    words = bits_at(data, places, WORD_BITS).astype(np.uint32)
    if weights is None:
        weights = _weights(data, starts, items, order, zrl)
    if weights is None:
        return None
    return [*zip(weights, words, strict=True)]


def _weights(data: bytes, starts: Array, items: Array, order: Order, zrl: int) -> Array | None:
    """Return the weights of streams, or None if a run goes past its segment.

    ``starts (streams, 1)`` has the bit of each stream's first item. ``items`` has, for each stream,
    the number of items before each segment and, last, the number of all items.
    """
    width, length = zrl + WEIGHT_BITS, order.length
    # By stream: the number of items in the streams before it.
    before = np.cumsum(items[:, -1:], axis=0) - items[:, -1:]
    first = starts + WORD_BITS * order.words_before - width * before
    at = np.repeat(first.reshape(-1), np.diff(items).reshape(-1))
    at += width * np.arange(len(at))
    stored = bits_at(data, at, width)
    reach = np.cumsum((stored & (2**zrl - 1)) + 1, dtype=np.int64)
    wanted = order.breaks + length * np.arange(len(starts))[:, None]
    if np.any(reach[items[:, 1:] + before - 1] != wanted):
        return None
    out = np.full((len(starts), length), order.geometry.zero_point, np.uint8)
    out.reshape(-1)[reach - 1] = stored >> zrl
    return out


def _expand(data: bytes, counts: Array, weights: Array, order: Order) -> bool:
    """Read a stream by a compiled loop: write the number of items of each segment into ``counts``
    and the weights into ``weights``. Return False if the stream does not follow the format."""
    from npulab.npus.vivante.coefficients import loops

    return bool(
        loops.runs(
            buffers.words_of(data),
            HEAD_BITS,
            8 * len(data),
            data[0],
            order.lengths,
            order.gaps,
            np.uint8(order.geometry.zero_point),
            counts,
            weights,
        )
    )
