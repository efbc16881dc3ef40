"""The plain format (V7) as VeriSilicon's compiler writes it, with whole arrays: the same bytes and
content as ``plain``, which explains each bit.

A core's stream has its superblocks in order. A superblock has plane after plane, a plane kernel
after kernel, a kernel row after row, for any size of the kernel. A run of zero points may go on
over kernels, biases and planes. It ends at a kernel's last weight, and when it has the greatest
length. A start is a place where a kernel begins its first plane, or where a superblock begins a
plane; a run holds at most one start. Source: V, 60 buffers of A311D. The laws were found on half of
the layers and hold on the other half.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy import ndarray as Array

from npulab.layout.bitstream import bits_at
from npulab.npus.kit import ceil_div
from npulab.npus.vivante.coefficients import buffers, plain
from npulab.npus.vivante.coefficients.buffers import ALIGN, ZRL_BITS, Coefficients, Geometry
from npulab.npus.vivante.coefficients.plain import WEIGHT_BITS, WORD_BITS, Words
from npulab.npus.vivante.coefficients.runs import HEAD_BITS, packed

AT_ONCE = 2**12  # at most this many items of a stream are read at a time

# A kernel's count is its number of weights that are not the zero point. If the largest count is at
# least UNEVEN above the smallest, the vendor deals kernels to cores by count. The difference is 15
# or more in the 3 of 60 buffers with dealt kernels, and at most 13 in the others.
UNEVEN = 14


@dataclass(frozen=True, eq=False)
class Order:
    """The order of one core's stream. A place in it is the number of weights before that place.

    ``length`` is the number of weights, ``kernels`` has the numbers of the core's kernels in the
    buffer, ``words`` says where biases and offsets lie. ``starts`` are the places where a kernel
    begins its first plane, or a superblock begins a plane.
    """

    length: int
    kernels: Array
    words: Words
    starts: Array

    @property
    def ends(self) -> Array:
        """The place of each kernel's last weight."""
        return self.words.places[self.words.offsets] - 1


def order_of(geometry: Geometry, core: int) -> Order:
    """Return the order of a core's stream."""
    g = geometry
    cells = g.kernel_h * g.kernel_w
    kernels, biases, offsets, starts = [], [], [], []
    base = 0
    for block in g.blocks(core):
        kernels.append(block.channels)
        firsts = base + cells * np.arange(block.kernels)
        biases.append(firsts + 1)
        plane = cells * block.kernels
        starts += [firsts, base + plane * np.arange(g.planes)]
        base += plane * g.planes
        offsets.append(base - cells * np.arange(block.kernels)[::-1])
    return Order(
        base,
        np.concatenate(kernels),
        plain.words_at(biases, offsets),
        np.unique(np.concatenate(starts)),
    )


def encode(content: Coefficients, geometry: Geometry) -> bytes:
    """Return the buffer that holds ``content``, filled with zeros up to its ``size``; the inverse
    of ``decode``."""
    c = _by_place(content)
    streams = []
    for core, zrl in enumerate(c.zrl):
        order = order_of(geometry, core)
        weights = _taken(c.weights, geometry, core)
        ends = _item_ends(_stops(weights, order, geometry.zero_point), order, zrl)
        words = order.words.stored(c, order.kernels)
        # A word comes after the item that holds the weight before it.
        before = np.searchsorted(ends, order.words.places - 1) + 1
        head = bytes([zrl]) + len(order.kernels).to_bytes(buffers.COUNT_BITS // 8, "little")
        runs = np.diff(ends, prepend=-1) - 1
        streams.append(packed(head, runs, weights[ends], words, before, zrl))
    return plain.join(streams, geometry, content.size)


def choose_zrl(content: Coefficients, geometry: Geometry, widest: int) -> int:
    """Return the zero-run width, at most ``widest`` bits, that the vendor picks: the narrowest with
    which the streams take the fewest bytes, fill included. Kernels of one plane have width 0."""
    if geometry.planes == 1:
        return 0
    c = _by_place(content)
    totals = [0] * (widest + 1)
    for core in range(geometry.used):
        order = order_of(geometry, core)
        stops = _stops(_taken(c.weights, geometry, core), order, geometry.zero_point)
        for zrl in range(widest + 1):
            items = len(_item_ends(stops, order, zrl))
            bits = HEAD_BITS + WORD_BITS * len(order.words.places) + (zrl + WEIGHT_BITS) * items
            totals[zrl] += ceil_div(bits, 8 * ALIGN)
    return totals.index(min(totals))


def choose_channels(weights: Array, geometry: Geometry) -> tuple[int, ...]:
    """Return the output channels in the order of the vendor's streams; () if the order is that of
    the channels.

    The vendor reorders kernels if their numbers of weights that are not the zero point differ by
    ``UNEVEN`` or more. Kernels with the smallest number are dealt first: a kernel to each core from
    the first core to the last, then a kernel to each core from the last to the first, and so on. In
    a core's stream, kernels are in the order of their channels. If a core has several
    superblocks, nothing is reordered."""
    g = geometry
    counts = np.count_nonzero(weights != g.zero_point, axis=(1, 2, 3))
    if g.superblocks > 1 or np.ptp(counts) < UNEVEN:
        return ()
    dealt: list[list[int]] = [[] for _ in range(g.used)]
    ranked = np.argsort(counts, kind="stable").tolist()
    for first in range(0, len(ranked), g.used):
        turn = ranked[first : first + g.used]
        if first // g.used % 2:
            turn.reverse()
        for hand, channel in zip(dealt, turn, strict=False):
            hand.append(channel)
    order = [channel for hand in dealt for channel in sorted(hand)]
    if order == list(range(g.channels)):
        return ()
    return tuple(order)


def decode(buffer: bytes, geometry: Geometry) -> Coefficients | None:
    """Return the content of a buffer with kernels in the order of the output channels, or None if
    the buffer does not follow the format.
    """
    g = geometry
    stops = plain.stops_of(buffer, g)
    if stops is None:
        return None
    streams, widths = [], []
    for core in range(g.used):
        order = order_of(g, core)
        data = buffer[stops[core] : stops[core + 1]]
        found = _stream(data, order, g.zero_point)
        if found is None:
            return None
        streams.append((order, *found))
        widths.append(data[0])
    content = plain.empty(g, widths, len(buffer))
    for core, (order, stream, words) in enumerate(streams):
        _put(stream, content.weights, g, core)
        order.words.put(words, order.kernels, content)
    return _by_output(content, geometry)


def _by_output(content: Coefficients, geometry: Geometry) -> Coefficients:
    """Return the content with its kernels moved from the order of the streams to the order of the
    output channels."""
    c = content
    channels = buffers.channels_of(c.offsets, geometry)
    if not channels:
        return c
    at = np.argsort(channels)
    named = channels
    if channels == tuple(range(geometry.channels)):
        named = ()
    return Coefficients(c.weights[at], c.bias[at], c.offsets[at], c.zrl, c.size, channels=named)


def _by_place(content: Coefficients) -> Coefficients:
    """Return the content with its kernels moved from the order of the output channels to the order
    of the streams; the inverse of ``_by_output``."""
    c = content
    if not c.channels:
        return c
    at = np.array(c.channels)
    return Coefficients(c.weights[at], c.bias[at], c.offsets[at], c.zrl, c.size)


# The weights of a core, in the order of its stream


def _taken(weights: Array, geometry: Geometry, core: int) -> Array:
    """Return a core's weights in the order of its stream."""
    parts = []
    for block in geometry.blocks(core):
        parts.append(weights[block.channels].swapaxes(0, 1).reshape(-1))
    return np.concatenate(parts)


def _put(stream: Array, weights: Array, geometry: Geometry, core: int) -> None:
    """Write the weights of a core's stream into ``weights``; the inverse of ``_taken``."""
    _, planes, rows, columns = geometry.shape
    start = 0
    for block in geometry.blocks(core):
        end = start + block.kernels * geometry.kernel_size
        part = stream[start:end].reshape(planes, block.kernels, rows, columns)
        weights[block.channels] = part.swapaxes(0, 1)
        start = end


# The items of a stream


def _stops(weights: Array, order: Order, zero: int) -> Array:
    """Return the numbers (places in the stream) of the weights that end an item at every zero-run
    width: those that are not ``zero``, and the last weight of each kernel."""
    stop = weights != zero
    stop[order.ends] = True
    return np.flatnonzero(stop)


def _item_ends(stops: Array, order: Order, zrl: int) -> Array:
    """Return the numbers (places in the stream) of the weights that end an item at zero-run width
    ``zrl``. ``stops`` are those that end an item at every width."""
    if not zrl:
        return np.arange(order.length)
    # `stops` cut the stream into parts. Each turn of the loop cuts one more item off every part
    # that still has several weights.
    ends = [stops]
    at, last = np.append(0, stops[:-1] + 1), stops
    starts = np.append(order.starts, [order.length, order.length])
    left = at < last
    while left.any():
        at, last = at[left], last[left]
        second_start = starts[np.searchsorted(order.starts, at) + 1]
        end = np.minimum(at + 2**zrl, second_start) - 1
        left = end < last
        ends.append(end[left])
        at = end + 1
    # A stable sort is faster than another, because it merges arrays that are already sorted.
    return np.sort(np.concatenate(ends), kind="stable")


def _stream(data: bytes, order: Order, zero: int) -> tuple[Array, Array] | None:
    """Return (weights, words) of a stream with the zero point ``zero``, or None if it does not
    follow the format."""
    zrl = data[0]
    count = int.from_bytes(data[1 : HEAD_BITS // 8], "little")
    most = 2**zrl * (8 * len(data) // (zrl + WEIGHT_BITS))
    if zrl > ZRL_BITS or count != len(order.kernels) or most < order.length:
        return None
    at, covered, stretches, words_at = HEAD_BITS, 0, [], []
    for place in order.words.places.tolist():
        while covered < place:
            if at >= 8 * len(data):
                return None
            items, held = _items(data, at, zrl, place - covered)
            covered += held
            stretches.append(at + (zrl + WEIGHT_BITS) * np.arange(items))
            at += (zrl + WEIGHT_BITS) * items
        words_at.append(at)
        at += WORD_BITS
    if covered != order.length or not plain.may_end(data, at, len(data)):
        return None
    stored = bits_at(data, np.concatenate(stretches), zrl + WEIGHT_BITS)
    reach = np.cumsum(stored % 2**zrl + 1, dtype=np.int64)
    # A run may go over one bias, but not over two biases and not over an offset.
    holding = np.searchsorted(reach, order.words.places[order.words.biases])
    if not np.isin(order.ends + 1, reach).all() or not np.diff(holding).all():
        return None
    weights = np.full(order.length, zero, np.uint8)
    weights[reach - 1] = stored >> zrl
    return weights, bits_at(data, np.array(words_at), WORD_BITS).astype(np.uint32)


def _items(data: bytes, at: int, zrl: int, weights: int) -> tuple[int, int]:
    """Return how many items from bit ``at`` on hold ``weights`` weights, and how many weights these
    items hold. At most ``AT_ONCE`` items are counted, which may hold fewer weights.
    """
    taken = min(weights, AT_ONCE)
    runs = bits_at(data, at + (zrl + WEIGHT_BITS) * np.arange(taken), zrl)
    reach = np.cumsum(runs + 1, dtype=np.int64)
    items = min(int(np.searchsorted(reach, weights)) + 1, taken)
    return items, int(reach[items - 1])
