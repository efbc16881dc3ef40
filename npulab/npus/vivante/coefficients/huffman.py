"""The V8 coefficient buffer: a header, a Huffman coded stream for each core, then all biases.

A stream codes bytes: two bytes with the core's number of kernels, then the weights less their zero
point. ``codes`` says how a byte becomes a code, an escape and a payload. Bytes are coded in
pairs, one pair for each step: a step holds the two 3-bit codes of its pair, then the 2-bit escapes
of the pair one step before, then the payloads of the pair two steps before. If there are no zero
runs, the header gives their table a size of 0.

This module reads a buffer bit by bit; ``pairs`` reads and writes it with whole arrays.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice, repeat
from typing import NamedTuple

import construct
import numpy as np

from npulab.layout.bitstream import BitReader
from npulab.npus.kit import Item, ceil_div, refuse_if, up
from npulab.npus.vivante.coefficients import buffers
from npulab.npus.vivante.coefficients.buffers import (
    CODE_BITS,
    FIRST_SIZE,
    Coefficients,
    Event,
    Geometry,
)
from npulab.npus.vivante.coefficients.codes import (
    COUNT_BYTES,
    DELAY,
    ENTRY,
    ESCAPE_BITS,
    ESCAPED,
    LENGTH_BITS,
    TABLE_BYTES,
    TABLE_SIZES,
    Coding,
    coding_of,
    flush_codes,
    is_map,
    most_length,
)

VERSION = 1


@dataclass(frozen=True)
class Header:
    """The header before the streams: ``symbols`` has the bit length of each symbol, ``bits`` the
    number of bits in each core's stream. ``runs`` are the size of the table of zero runs and the
    table; empty without zero runs."""

    symbols: tuple[int, ...]
    bits: tuple[int, ...]
    runs: bytes = b""

    @property
    def coding(self) -> Coding:
        return coding_of(self.symbols, self.runs)


def layout(cores: int) -> construct.Construct:
    """Return the declaration of the header: 28 bytes of fields, a 32-bit count of bits for each
    core's stream, and fill up to a multiple of 64 bytes."""
    return construct.Aligned(
        buffers.ALIGN,
        construct.Struct(
            "flags" / construct.Byte,
            "run_size" / construct.Byte,
            "run_table" / construct.Bytes(TABLE_BYTES),
            "symbols" / construct.Int32ul,
            "average_bias" / construct.Int16ul,
            "reserved" / construct.Int16ul,
            "bits" / construct.Array(cores, construct.Int32ul),
        ),
    )


def read_header(buffer: bytes, geometry: Geometry) -> Header:
    """Return the header. Raises ValueError, with the byte, for a field with an unsupported value,
    for streams and biases that reach past the buffer, and for more weights in the geometry than
    the buffer can hold."""
    cores, used, start = geometry.cores, geometry.used, geometry.header_bytes
    refuse_if(
        len(buffer) < start,
        "coefficients",
        f"{len(buffer)} bytes",
        f"is at least the header's {start}",
    )
    raw = layout(cores).parse(buffer)
    fixed = ("flags", 0, VERSION * 16), ("average_bias", 24, 0), ("reserved", 26, 0)
    for name, at, allowed in fixed:
        if raw[name] != allowed:
            raise ValueError(
                f"coefficients: header at byte {at}, {name.replace('_', ' ')}: got {raw[name]:#x}, "
                f"allowed is {allowed:#x}"
            )
    symbols = BitReader(raw.symbols.to_bytes(4, "little"))
    lengths = tuple(symbols.read(LENGTH_BITS) for _ in range(buffers.SYMBOLS))
    runs = b""
    if raw.run_size:
        sizes = ", ".join(map(str, (0, *TABLE_SIZES)))
        refuse_if(
            raw.run_size not in TABLE_SIZES,
            "coefficients: header at byte 1, run-length size",
            raw.run_size,
            f"is one of {sizes}",
        )
        runs = bytes([raw.run_size]) + raw.run_table
    if not is_map(lengths, runs):
        raise ValueError(
            f"coefficients: header at byte 20, symbol map: got {list(lengths)}, allowed are "
            f"different bit lengths from 0 to {most_length(runs)}"
        )
    refuse_if(
        not runs and any(raw.run_table),
        "coefficients: header at byte 2, run-length table",
        raw.run_table.hex(),
        "is 0 if the run-length size is 0",
    )
    bits = tuple(int(size) for size in raw.bits)
    if not all(bits[:used]) or any(bits[used:]):
        raise ValueError(
            f"coefficients: header at byte {FIRST_SIZE}: got core sizes {list(bits)} (bits), "
            f"allowed are sizes above 0 for the first {used} cores and 0 for the others"
        )
    end = start + sum(map(stream_bytes, bits)) + buffers.BIAS_BYTES * geometry.channels
    if end > len(buffer):
        raise ValueError(
            f"coefficients: header at byte {FIRST_SIZE}: got core sizes {list(bits)} (bits), which "
            f"with {geometry.channels} biases end at byte {end}, allowed is at most byte "
            f"{len(buffer)}, the buffer's end"
        )
    header = Header(lengths, bits, runs)
    buffers.refuse_size(buffer, geometry, header.coding.most)
    return header


def stream_bytes(bits: int) -> int:
    """Return how many bytes a stream of ``bits`` bits takes in the buffer, fill included."""
    return ceil_div(bits, 8 * buffers.ALIGN) * buffers.ALIGN


def walk(buffer: bytes, geometry: Geometry) -> Iterator[Item]:
    """Yield every bit of the buffer as an ``Item``, in order. An item of kind ``weight`` is the
    payload of the weight, even if the payload has 0 bits.

    Raises ValueError with core, byte and bit if the buffer does not follow the format.
    """
    header = read_header(buffer, geometry)
    yield from _header_items(buffer, geometry)
    yield from buffers.walk_streams(
        buffer, geometry, header.bits[: geometry.used], partial(_stream, header=header)
    )


def _header_items(buffer: bytes, geometry: Geometry) -> Iterator[Item]:
    fields = [
        ("precode", 1),
        ("16-bit", 1),
        ("fp16", 1),
        ("reserved", 1),
        ("version", 4),
        ("run-length size", 8),
    ]
    fields += [("run length", 8)] * TABLE_BYTES + [("symbol length", LENGTH_BITS)] * buffers.SYMBOLS
    fields += [("average bias", 16), ("reserved", 16)]
    reader = BitReader(buffer)
    for kind, width in fields:
        yield Item(reader.position, width, kind, reader.read(width))
    for core in range(geometry.cores):
        yield Item(reader.position, 32, "core size", reader.read(32), core)
    yield from buffers.fill(buffer, reader.position, 8 * geometry.header_bytes)


class _Owner(NamedTuple):
    """What a byte of a stream stands for: one value or, with zero runs, several.

    ``of`` is the event of its first weight or, without a weight, of its first value. ``weights`` is
    how many of the values are weights, ``counts`` how many are bytes of the number of kernels.
    """

    of: Event
    weights: int
    counts: int = 0


def _owners(geometry: Geometry, core: int, reaches: Iterable[int]) -> Iterator[_Owner]:
    """Yield what each byte of a core's stream stands for. ``reaches`` has the number of values that
    each byte stands for. The fill of the last pair is a ``completion`` without a channel.
    """
    counts = repeat(Event("kernels per core"), COUNT_BYTES)
    events = chain(counts, geometry.events(core), repeat(Event("completion", None)))
    for reach in reaches:
        values = [*islice(events, reach)]
        weights = [event for event in values if event.kind == "weight"]
        first, *_ = *weights, *values
        kinds = [event.kind for event in values]
        yield _Owner(first, len(weights), kinds.count("kernels per core"))


def bytes_of(geometry: Geometry, core: int) -> int:
    """Return the number of bytes that a core's stream without zero runs codes: the number of
    kernels, the weights, and the fill of blocks."""
    g = geometry
    return COUNT_BYTES + g.kernels(core) * up(g.kernel_size, g.block)


def pairs_of(geometry: Geometry, core: int) -> int:
    """Return the number of pairs of bytes that a core's stream without zero runs codes; if the
    bytes are odd in number, one byte of fill completes the last pair."""
    return ceil_div(bytes_of(geometry, core), 2)


@dataclass
class _Byte:
    """A byte of a stream whose code was read. Its escape, if the code has an escape, and its
    payload are read in later steps."""

    code: int
    owner: _Owner
    escape: int | None = None


FLUSH = _Owner(Event("flush"), 0)


def _stream(reader: BitReader, g: Geometry, core: int, header: Header) -> Iterator[Item]:
    """Yield the items of a stream, step by step. After the last pair come the two steps of the
    flush: their codes stand for no bytes, but they hold the last escapes and payloads."""
    coding, pairs = header.coding, pairs_of(g, core)
    reaches: Iterable[int] = repeat(1)
    if coding.entries:
        # The length of a run is known only two steps after its code. So the stream is read twice:
        # once for the lengths of runs, then for the items.
        reaches = [*map(coding.reach, scan(reader, coding))]
        pairs = len(reaches) // 2
        refuse_reaches(reaches, g, core, reader.position)
    owners, recent = _owners(g, core, reaches), deque[list[_Byte]](maxlen=DELAY + 1)
    values = _Values(g, core, coding)
    for step in range(pairs + DELAY):
        flushes = step >= pairs
        recent.append([])
        for _ in range(2):
            kind, owner = "flush", FLUSH
            if not flushes:
                kind, owner = "symbol", next(owners)
            byte = _Byte(reader.read(CODE_BITS), owner)
            recent[-1].append(byte)
            yield _item(reader, CODE_BITS, kind, byte.code, core, owner)
        if flushes:
            values.refuse_flush(reader.position - 2 * CODE_BITS, recent[-1])
        if 0 < step <= pairs:
            for byte in recent[-2]:
                if byte.code == ESCAPED:
                    byte.escape = reader.read(ESCAPE_BITS)
                    yield _item(reader, ESCAPE_BITS, "escape", byte.escape, core, byte.owner)
        if step < DELAY:
            continue
        for byte in recent[0]:
            at, kind = reader.position, byte.owner.of.kind
            length, free, width = coding.payload(byte.code, byte.escape)
            token = coding.token(reader.read(width), free, length)
            if token >= ENTRY:
                kind = "run"
            value = values.next(token, byte.owner, at)
            yield _item(reader, width, kind, value, core, byte.owner)


def _item(reader: BitReader, width: int, kind: str, value: int, core: int, owner: _Owner) -> Item:
    """Return an item of kind ``kind`` for the ``width`` bits that ``reader`` has read last."""
    at, of, channel = reader.position - width, owner.of, None
    if of.kind == "weight":
        weights = 0
        if kind in ("weight", "run"):
            weights = owner.weights
        return Item(at, width, kind, value, core, *of[1:], weights)
    if of.kind == "completion":
        channel = of.channel
    return Item(at, width, kind, value, core, channel)


def scan(reader: BitReader, coding: Coding) -> Sequence[int]:
    """Return the tokens of a stream with zero runs up to its end, because no field states their
    number. The position of ``reader`` does not change.

    Raises EOFError if the last step goes past the end.
    """
    scout, out = BitReader(reader.data, reader.position, reader.end), array("H")
    recent = deque[list[_Byte]]([[], []], maxlen=DELAY + 1)
    while scout.position < scout.end:
        recent.append([_Byte(scout.read(CODE_BITS), FLUSH) for _ in range(2)])
        for byte in recent[-2]:
            if byte.code == ESCAPED:
                byte.escape = scout.read(ESCAPE_BITS)
        for byte in recent[0]:
            length, free, width = coding.payload(byte.code, byte.escape)
            out.append(coding.token(scout.read(width), free, length))
    return out


def refuse_reaches(reaches: Sequence[int], geometry: Geometry, core: int, at: int) -> None:
    """Raise ValueError if the bytes of a stream with zero runs stand for fewer values than the
    geometry needs, or if the bytes without the last pair stand for more. ``reaches`` has the number
    of values that each byte stands for. The error names core and bit ``at``.
    """
    total, needed = sum(reaches), bytes_of(geometry, core)
    if total < needed or total - sum(reaches[-2:]) > needed:
        raise ValueError(
            f"coefficients: the stream of core {core} from {buffers.place(at)} stands for {total} "
            f"values with its zero runs, allowed are {needed} and the fill of the last pair"
        )


class _Values:
    """Turns the tokens of a core's stream into values, and refuses values that contradict the
    geometry."""

    def __init__(self, geometry: Geometry, core: int, coding: Coding) -> None:
        self.zero, self.core, self.coding = geometry.zero_point, core, coding
        self.kernels = geometry.kernels(core)
        self.count = list(self.kernels.to_bytes(COUNT_BYTES, "little"))
        self.flush = {flush_of(geometry, core)}
        if coding.entries:
            self.flush = {flush_codes(0), flush_codes(1)}

    def next(self, token: int, owner: _Owner, at: int) -> int:
        """Return the value of a token's item: of a weight the code that the layer has, of a run its
        length, else the byte. ``owner`` is what the byte stands for, ``at`` the item's bit.

        Raises ValueError for a wrong number of kernels, and for fill of a block that is not 0.
        """
        where = f"coefficients: core {self.core} at {buffers.place(at)}"
        value, shown = token % 256, token % 256
        if token >= ENTRY:
            value, shown = 0, self.coding.reach(token)
        for _ in range(owner.counts):
            want = self.count.pop(0)
            refuse_if(
                value != want,
                where,
                f"{value} as a byte of the kernels per core",
                f"is {want} ({self.kernels} kernels)",
            )
        if owner.of.kind == "completion" and value:
            raise ValueError(f"{where}: got {value} in the fill of a block, allowed is 0")
        if owner.of.kind == "weight" and token < ENTRY:
            return (value + self.zero) % 256
        return shown

    def refuse_flush(self, at: int, codes: list[_Byte]) -> None:
        """Raise ValueError if the two codes of a step after the last byte are not the codes of a
        flush. ``at`` is the bit of the first code."""
        got = codes[0].code + 2**CODE_BITS * codes[1].code
        if got not in self.flush:
            allowed = " or ".join(map(hex, sorted(self.flush)))
            raise ValueError(
                f"coefficients: core {self.core} at {buffers.place(at)}: got codes {got:#x} after "
                f"the last weight, allowed is {allowed}, the two codes of a flush"
            )
        self.flush = {got}


def flush_of(geometry: Geometry, core: int) -> int:
    """Return the two codes of each step of the flush as one number. Their free bits are 1 if the
    core's stream codes an odd number of bytes, else 0.
    """
    return flush_codes(bytes_of(geometry, core) % 2)


def join(streams: list[tuple[int, bytes]], coefficients: Coefficients, geometry: Geometry) -> bytes:
    """Return a whole buffer: the header, the streams, the biases, and zeros up to the size of
    ``coefficients``. ``streams`` has (number of bits, bytes) of each core."""
    c, g = coefficients, geometry
    packed = 0
    # The first symbol's bit length lies in the lowest bits of the word, so it is added last.
    for length in reversed(c.symbols):
        packed = packed * 2**LENGTH_BITS + length
    runs = c.runs or bytes(1 + TABLE_BYTES)
    head = layout(g.cores).build(
        {
            "flags": VERSION * 16,
            "run_size": runs[0],
            "run_table": runs[1:],
            "symbols": packed,
            "average_bias": 0,
            "reserved": 0,
            "bits": [bits for bits, _ in streams] + [0] * (g.cores - g.used),
        }
    )
    filled = [stream.ljust(stream_bytes(bits), b"\0") for bits, stream in streams]
    return b"".join([head, *filled, np.asarray(c.bias, "<i4").tobytes()]).ljust(c.size, b"\0")
