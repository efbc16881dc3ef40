"""The V7 coefficient buffer: a header with one stream size per core, then a bit string per core.

A stream is 8 bits zero-run width, 16 bits kernels per core, then weights in the driver's order.
The bias follows the first weight of a kernel, the output offset its last.  With a zero-run width, a
weight item is a run of zero points and the literal behind it.
"""

from __future__ import annotations

from collections.abc import Iterator

import construct
import numpy as np

from npulab.captures.target import Item
from npulab.layout.bitstream import BitReader, pack_bits
from npulab.npus.kit.numbers import up
from npulab.npus.vivante.coefficients.geometry import (
    ALIGN,
    COUNT_BITS,
    ZRL_BITS,
    Coefficients,
    Geometry,
    place,
    refuse_content,
    refuse_size,
)

WEIGHT_BITS, WORD_BITS = 8, 32
LONGEST_RUN = 2 ** ZRL_BITS  # weights that one item can stand for


def header(cores: int) -> construct.Construct:
    """One 32-bit byte count per core, filled up to 64 bytes."""
    return construct.Aligned(ALIGN, construct.Array(cores, construct.Int32ul))


def header_bytes(cores: int) -> int:
    return up(4 * cores, ALIGN)


def sizes(buffer: bytes, geometry: Geometry) -> list[int]:
    """Stream bytes per core; raises ValueError where they do not fit the buffer."""
    if len(buffer) < header_bytes(geometry.cores):
        raise ValueError(f"coefficients: got {len(buffer)} bytes, allowed is at least the header's "
                         f"{header_bytes(geometry.cores)}")
    out = [int(size) for size in header(geometry.cores).parse(buffer)]
    wrong = [size for core, size in enumerate(out) if size % ALIGN or (size > 0) != (core < geometry.used)]
    if wrong or header_bytes(geometry.cores) + sum(out) > len(buffer):
        raise ValueError(f"coefficients: got core sizes {out} from byte 0 on, allowed are multiples of {ALIGN} for "
                         f"the first {geometry.used} cores, {len(buffer) - header_bytes(geometry.cores)} bytes in all")
    return out


def walk(buffer: bytes, geometry: Geometry) -> Iterator[Item]:
    """Every bit of the buffer as an ``Item``, in order.

    Raises ValueError with core, byte and bit where a stream does not follow the format.
    """
    refuse_more_than_fits(buffer, geometry)
    start = 8 * header_bytes(geometry.cores)
    streams = sizes(buffer, geometry)
    for core, size in enumerate(streams):
        yield Item(32 * core, 32, "core size", size, core)
    if start > 32 * len(streams):
        yield _fill(buffer, 32 * len(streams), start, None)
    for core, size in enumerate(streams[:geometry.used]):
        stop = start + 8 * size
        reader = BitReader(buffer, start, stop)
        try:
            yield from _stream(reader, geometry, core)
        except EOFError:
            raise ValueError(f"coefficients: the stream of core {core} runs past its {size} bytes "
                             f"(buffer byte {stop // 8})") from None
        if stop - reader.position >= 8 * ALIGN:
            raise ValueError(f"coefficients: the stream of core {core} ends at buffer {place(reader.position)}, its "
                             f"size says byte {stop // 8}")
        if stop > reader.position:
            yield _fill(buffer, reader.position, stop, core)
        start = stop
    if 8 * len(buffer) > start:
        yield _fill(buffer, start, 8 * len(buffer), None)


def refuse_more_than_fits(buffer: bytes, geometry: Geometry) -> None:
    """Raises ValueError for more weights than the longest runs could stand for."""
    refuse_size(buffer, geometry, LONGEST_RUN)


def _fill(buffer: bytes, start: int, stop: int, core: int | None) -> Item:
    reader = BitReader(buffer, start, stop)
    value = reader.read(stop - start)
    if value:
        first = start + (value & -value).bit_length() - 1
        raise ValueError(f"coefficients: got a bit that is set at {place(first)}, in the fill from byte {start // 8} "
                         f"to {stop // 8}, allowed is 0")
    return Item(start, stop - start, "fill", value, core)


def _stream(reader: BitReader, geometry: Geometry, core: int) -> Iterator[Item]:
    at = reader.position
    zrl = reader.read(ZRL_BITS)
    yield Item(at, ZRL_BITS, "zero-run width", zrl, core)
    count = reader.read(COUNT_BITS)
    yield Item(at + ZRL_BITS, COUNT_BITS, "kernels per core", count, core)
    if zrl > ZRL_BITS or count != geometry.per_core:
        raise ValueError(f"coefficients: core {core} at {place(at)}: got zero-run width {zrl}, {count} "
                         f"kernels per core, allowed is 0 to {ZRL_BITS} and {geometry.per_core}")
    pending = 0  # weights of the last item that are still to be handed out
    left = geometry.per_core * geometry.planes * geometry.kernel_h * geometry.kernel_w
    for event in geometry.events(core):
        at = reader.position
        if event.kind == "weight":
            if not pending:
                run = reader.read(zrl)
                literal = reader.read(WEIGHT_BITS)
                pending = run + 1
                if pending > left:
                    raise ValueError(f"coefficients: core {core} at {place(at)}: a run of zero points goes "
                                     f"{pending - left} weights past the last of the core")
                yield Item(at, reader.position - at, "weight", literal, core, *event[1:], pending)
            pending, left = pending - 1, left - 1
        elif pending:
            raise ValueError(f"coefficients: core {core} at {place(at)}: a run of zero points goes "
                             f"{pending} weights past the {event.kind} of channel {event.channel}")
        elif event.kind in ("bias", "offset"):
            yield Item(at, WORD_BITS, event.kind, reader.read(WORD_BITS), core, event.channel)


def read_by_item(buffer: bytes, geometry: Geometry) -> Coefficients:
    """Weights, biases and offsets of a buffer; raises ValueError as ``walk`` does."""
    g = geometry
    refuse_more_than_fits(buffer, g)
    weights = np.full((g.slots, g.planes, g.kernel_h, g.kernel_w), g.zero_point, np.uint8)
    bias, offsets = np.zeros(g.slots, np.int32), np.zeros(g.slots, np.uint32)
    zrl: list[int] = []
    places: list[tuple[int | None, int, int, int]] = []
    reach = 0
    for item in walk(buffer, g):
        if item.kind == "zero-run width":
            zrl.append(item.value)
            places = [event[1:] for event in g.events(len(zrl) - 1) if event.kind == "weight"]
            reach = 0
        elif item.kind == "weight":
            reach += item.weights
            weights[places[reach - 1]] = item.value
        elif item.kind == "bias":
            bias[item.channel] = np.uint32(item.value).astype(np.int32)
        elif item.kind == "offset":
            offsets[item.channel] = item.value
    return Coefficients(weights, bias, offsets, tuple(zrl), len(buffer))


def write_by_item(coefficients: Coefficients, geometry: Geometry) -> bytes:
    """The buffer of ``coefficients``, filled with zeros to its ``size``; the inverse of
    ``decode``."""
    refuse_content(coefficients, geometry)
    streams = [pack_bits(items(coefficients, geometry, core, coefficients.zrl[core]))
               for core in range(geometry.used)]
    return join(streams, geometry, coefficients.size)


def join(streams: list[bytes], geometry: Geometry, size: int = 0) -> bytes:
    """Header and streams, each filled up to 64 bytes, and zeros up to ``size``."""
    filled = [stream.ljust(up(len(stream), ALIGN), b"\0") for stream in streams]
    counts = [len(stream) for stream in filled] + [0] * (geometry.cores - len(filled))
    return (header(geometry.cores).build(counts) + b"".join(filled)).ljust(size, b"\0")


def items(c: Coefficients, geometry: Geometry, core: int, zrl: int) -> Iterator[tuple[int, int]]:
    """(value, width) of a stream's bits."""
    zero, longest, run = geometry.zero_point, 2 ** zrl - 1, 0
    yield zrl, ZRL_BITS
    yield geometry.per_core, COUNT_BITS
    for event in geometry.events(core):
        if event.kind == "weight":
            weight = int(c.weights[event[1:]])
            if weight == zero and run < longest:
                run += 1
                continue
            yield run, zrl
            yield weight, WEIGHT_BITS
            run = 0
            continue
        if run:  # a pending run ends in a literal zero point
            yield run - 1, zrl
            yield zero, WEIGHT_BITS
            run = 0
        if event.kind == "bias":
            yield int(c.bias[event.channel]) % 2 ** WORD_BITS, WORD_BITS
        elif event.kind == "offset":
            yield int(c.offsets[event.channel]), WORD_BITS
