"""The V7 coefficient buffer: a header with one stream size per core, then a bit string per core.

A stream begins with the zero-run width (8 bits) and the number of kernels per core (16 bits). Then
come weights in the driver's order. The bias of a kernel follows its first weight, its output offset
follows its last weight. If the zero-run width is not 0, a weight item is a run of zero points and
the literal weight after it. Mesa gives each used core the same number of kernels, with fill for the
last core, and ends runs at each bias and offset. The vendor's cores may differ in their number of
kernels, and its runs may go on over a bias.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import construct
import numpy as np
from numpy import ndarray as Array

from npulab.layout.bitstream import BitReader
from npulab.npus.kit import Item, refuse_if, up
from npulab.npus.vivante.coefficients import buffers
from npulab.npus.vivante.coefficients.buffers import ZRL_BITS, Coefficients, Geometry, place

WEIGHT_BITS, WORD_BITS = 8, 32


def header(cores: int) -> construct.Construct:
    """Return the declaration of the header: a 32-bit count of bytes for each core's stream, and
    fill up to a multiple of 64 bytes."""
    return construct.Aligned(buffers.ALIGN, construct.Array(cores, construct.Int32ul))


def sizes(buffer: bytes, geometry: Geometry) -> list[int]:
    """Return how many bytes each core's stream has, as the header states it. Raises ValueError if
    the streams do not fit the buffer, if a size is no multiple of 64, if a used core has 0 bytes or
    an idle core has more."""
    start, used = geometry.header_bytes, geometry.used
    refuse_if(
        len(buffer) < start,
        "coefficients",
        f"{len(buffer)} bytes",
        f"is at least the header's {start}",
    )
    out = [int(size) for size in header(geometry.cores).parse(buffer)]
    wrong = not all(out[:used]) or any(out[used:]) or any(size % buffers.ALIGN for size in out)
    if wrong or start + sum(out) > len(buffer):
        raise ValueError(
            f"coefficients: got core sizes {out} (bytes) from byte 0 on, allowed are multiples of "
            f"{buffers.ALIGN} for the first {used} cores, at most {len(buffer) - start} in all, "
            "and 0 for other cores"
        )
    return out


class Words(NamedTuple):
    """Where the biases and output offsets of a core's stream lie; each of them is a 32-bit word.

    ``places`` ``(2 * kernels,)`` has the number of weights before each word, in the order of the
    stream. ``biases`` has, for each kernel, the index of its bias in ``places``; ``offsets`` has
    the index of its output offset.
    """

    places: Array
    biases: Array
    offsets: Array

    def stored(self, content: Coefficients, kernels: Array) -> Array:
        """Return the biases and output offsets of a core's ``kernels`` as words ``(2 * kernels,)
        uint32``, in the order of its stream."""
        words = np.empty(len(self.places), np.uint32)
        words[self.biases] = content.bias[kernels].astype(np.uint32)
        words[self.offsets] = content.offsets[kernels]
        return words

    def put(self, words: Array, kernels: Array, content: Coefficients) -> None:
        """Write the words of a core's stream into the arrays of ``content``, at ``kernels``; the
        inverse of ``stored``."""
        content.bias[kernels] = words[self.biases].view(np.int32)
        content.offsets[kernels] = words[self.offsets]


def words_at(biases: list[Array], offsets: list[Array]) -> Words:
    """Return where the words of a stream lie. ``biases`` and ``offsets`` have, in the order of
    kernels, the number of weights before each kernel's bias and before its output offset."""
    places = np.concatenate([*biases, *offsets])
    # The bias and the offset of a kernel of one weight have the same place. A stable sort leaves
    # the bias before the offset.
    ranks = np.argsort(places, kind="stable")
    bias_ranks, offset_ranks = np.argsort(ranks).reshape(2, -1)
    return Words(places[ranks], bias_ranks, offset_ranks)


def empty(geometry: Geometry, widths: list[int], size: int) -> Coefficients:
    """Return a content whose arrays are not initialised, because its caller fills them. ``widths``
    has the zero-run width of each used core, ``size`` is the buffer's size in bytes."""
    slots = geometry.slots
    weights, bias = np.empty(geometry.shape, np.uint8), np.empty(slots, np.int32)
    return Coefficients(weights, bias, np.empty(slots, np.uint32), tuple(widths), size)


def stops_of(buffer: bytes, geometry: Geometry) -> list[int] | None:
    """Return the byte at which the first stream begins, then the byte after each stream.

    Returns None if the header's fill or a byte after the last stream is not 0.
    """
    g = geometry
    stops: list[int] = np.cumsum([g.header_bytes, *sizes(buffer, g)[: g.used]]).tolist()
    fill = buffer[buffers.SIZE_BYTES * g.cores : stops[0]] + buffer[stops[-1] :]
    if fill.strip(b"\0"):
        return None
    return stops


def may_end(data: bytes, end: int, stop: int) -> bool:
    """True if a stream may end at bit ``end``: the bits from ``end`` up to byte ``stop``, where the
    next stream begins, are fewer than those of 64 bytes, and all of them are 0."""
    most = 8 * buffers.ALIGN
    return end <= 8 * stop < end + most and not BitReader(data, end).read(8 * stop - end)


def walk(buffer: bytes, geometry: Geometry) -> Iterator[Item]:
    """Yield every bit of the buffer as an ``Item``, in order.

    Raises ValueError with core, byte and bit if a stream does not follow the format.
    """
    buffers.refuse_size(buffer, geometry)
    counts = sizes(buffer, geometry)
    for core, size in enumerate(counts):
        yield Item(32 * core, 32, "core size", size, core)
    yield from buffers.fill(buffer, 32 * len(counts), 8 * geometry.header_bytes)
    bits = [8 * size for size in counts[: geometry.used]]
    items = buffers.walk_streams(buffer, geometry, bits, _stream)
    if geometry.vendor:
        items = _by_output(items, geometry)
    yield from items


def _by_output(items: Iterator[Item], geometry: Geometry) -> Iterator[Item]:
    """Yield ``items`` of the vendor's streams with their output channels. The channel of each item
    in ``items`` is the number of its kernel in the streams; the kernel's output offset shows the
    output channel."""
    found = list(items)
    offsets = np.zeros(geometry.slots, np.uint32)
    for item in found:
        if item.kind == "offset":
            offsets[item.channel] = item.value
    channels = buffers.channels_of(offsets, geometry)
    for item in found:
        if item.channel is None or not channels:
            yield item
        else:
            yield item._replace(channel=channels[item.channel])


def _stream(reader: BitReader, geometry: Geometry, core: int) -> Iterator[Item]:
    """Yield the items of a core's plain stream. Raises ValueError if the stream contradicts the
    geometry."""
    at = reader.position
    zrl = reader.read(ZRL_BITS)
    yield Item(at, ZRL_BITS, "zero-run width", zrl, core)
    count = reader.read(buffers.COUNT_BITS)
    yield Item(at + ZRL_BITS, buffers.COUNT_BITS, "kernels per core", count, core)
    kernels = geometry.kernels(core)
    if zrl > ZRL_BITS or count != kernels:
        raise ValueError(
            f"coefficients: core {core} at {place(at)}: got zero-run width {zrl} and {count} "
            f"kernels per core, allowed are a width of 0 to {ZRL_BITS} and {kernels} kernels"
        )
    pending = 0  # weights of the last item that no event has taken yet
    left = kernels * geometry.kernel_size
    biases = 0  # the number of biases since the last item
    for event in geometry.events(core):
        at = reader.position
        if event.kind == "weight":
            if not pending:
                run = reader.read(zrl)
                literal = reader.read(WEIGHT_BITS)
                pending = run + 1
                biases = 0
                if pending > left:
                    raise ValueError(
                        f"coefficients: core {core} at {place(at)}: a run of zero points goes "
                        f"{pending - left} weights past the last weight of the core"
                    )
                yield Item(at, reader.position - at, "weight", literal, core, *event[1:], pending)
            pending, left = pending - 1, left - 1
        elif pending and not (geometry.vendor and event.kind == "bias" and not biases):
            raise ValueError(
                f"coefficients: core {core} at {place(at)}: a run of zero points goes "
                f"{pending} weights past the {event.kind} of channel {event.channel}"
            )
        elif event.kind in ("bias", "offset"):
            biases += event.kind == "bias"
            yield Item(at, WORD_BITS, event.kind, reader.read(WORD_BITS), core, event.channel)


def join(streams: list[bytes], geometry: Geometry, size: int = 0) -> bytes:
    """Return a whole buffer: the header, each core's stream filled up to a multiple of 64 bytes,
    and zeros up to ``size`` bytes."""
    counts, body = [0] * geometry.cores, b""
    for core, stream in enumerate(streams):
        counts[core] = up(len(stream), buffers.ALIGN)
        body += stream.ljust(counts[core], b"\0")
    return (header(geometry.cores).build(counts) + body).ljust(size, b"\0")
