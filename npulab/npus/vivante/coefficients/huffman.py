"""The V8 coefficient buffer: a header, a Huffman coded bit string per core, then all biases.

A byte is a symbol, which stands for a bit length, and a payload of so many bits. Bytes go in
pairs: a step has the 3-bit codes of a pair, the 2-bit escapes of the pair one step before and the
payloads of the pair two steps before. A stream is two bytes with its number of kernels, then
weights less their zero point.

Here everything is read and written bit by bit; ``pairs`` does the same with whole arrays.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import repeat

import construct
import numpy as np

from npulab.layout.bitstream import BitReader
from npulab.npus.kit import Item, Unsupported, ceil_div, refuse_if, up
from npulab.npus.vivante.coefficients import buffers
from npulab.npus.vivante.coefficients.buffers import (
    CODE_BITS,
    FIRST_SIZE,
    Coefficients,
    Event,
    Geometry,
)

VERSION = 1
ESCAPE_BITS, COUNT_BYTES = 2, 2
LENGTH_BITS, MOST_LENGTH = 4, 7
DELAY = 2  # a byte's payload comes this many steps after its code
RUN_LENGTH, RAW_LENGTH = 0, 7  # the bit lengths of a run and of a raw byte, with zero runs
TABLE_BYTES = 18
ESCAPED = 2  # the code that an escape follows
FREE_CODE = 4  # for symbols 0 and 1, a free bit that is set adds this to the code
# The symbol of each (code, escape), and the value of its free bit, None for a symbol without one.
READ: dict[tuple[int, int | None], tuple[int, int | None]] = {
    (0, None): (0, 0),
    (4, None): (0, 1),
    (1, None): (1, 0),
    (5, None): (1, 1),
    (7, None): (2, None),
    (3, None): (3, None),
    (6, None): (4, None),
    (2, 1): (5, 0),
    (2, 3): (5, 1),
    (2, 2): (6, None),
    (2, 0): (7, None),
}


@dataclass(frozen=True)
class Header:
    """The header before the streams: bit length by symbol, bits of each stream, bytes for zero
    runs."""

    symbols: tuple[int, ...]
    bits: tuple[int, ...]
    runs: bytes = b""


def layout(cores: int) -> construct.Construct:
    """Return the declaration of the header: 28 bytes and a 32-bit count of bits per core, filled up
    to 64 bytes."""
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
    """Return the header; ValueError with the byte if a field has a value that is not supported, or
    streams and biases do not fit the buffer."""
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
        runs = bytes([raw.run_size]) + raw.run_table
    # With zero runs, 8 may replace one of the lengths; none of the known streams uses it.
    most = MOST_LENGTH + bool(runs)
    if len(set(lengths)) < buffers.SYMBOLS or max(lengths) > most:
        raise ValueError(
            f"coefficients: header at byte 20, symbol map: got {list(lengths)}, allowed is each "
            f"bit length from 0 to {most} at most once"
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
            f"coefficients: header at byte {FIRST_SIZE}: got core sizes {list(bits)}, allowed are "
            f"bits for the first {used} cores"
        )
    end = start + sum(map(stream_bytes, bits)) + buffers.BIAS_BYTES * geometry.channels
    if end > len(buffer):
        raise ValueError(
            f"coefficients: header at byte {FIRST_SIZE}: got core sizes {list(bits)} (bits), which "
            f"with {geometry.channels} biases end at byte {end}, allowed is {len(buffer)} bytes"
        )
    return Header(lengths, bits, runs)


def stream_bytes(bits: int) -> int:
    """Return the bytes that a stream takes in the buffer."""
    return ceil_div(bits, 8 * buffers.ALIGN) * buffers.ALIGN


def walk(buffer: bytes, geometry: Geometry) -> Iterator[Item]:
    """Yield every bit of the buffer as an ``Item``, in order; a ``weight`` lies where its payload
    does, even if that is 0 bits wide.

    Raises ValueError with core, byte and bit if the buffer does not follow the format, Unsupported
    for zero runs of the vendor whose meaning is not known.
    """
    buffers.refuse_size(buffer, geometry)
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


def _owners(geometry: Geometry, core: int) -> Iterator[Event]:
    """Yield the event that each byte of a core's stream is for; a byte that fills the last pair is
    a completion.
    """
    yield from [Event("kernels per core")] * COUNT_BYTES
    yield from geometry.events(core)
    yield from repeat(Event("completion", None))


def bytes_of(geometry: Geometry, core: int) -> int:
    """Return the number of bytes in a core's stream, without zero runs."""
    g = geometry
    return COUNT_BYTES + g.kernels(core) * up(g.kernel_size, g.block)


def pairs_of(geometry: Geometry, core: int) -> int:
    """Return the number of pairs in a core's stream, the last completed, without zero runs."""
    return ceil_div(bytes_of(geometry, core), 2)


@dataclass
class _Byte:
    """A byte of which the code was read, and maybe not yet the escape and the payload."""

    code: int
    of: Event
    escape: int | None = None


def _stream(reader: BitReader, g: Geometry, core: int, header: Header) -> Iterator[Item]:
    """Yield the items of a stream, step by step; two pairs of codes without bytes push the last
    payloads out."""
    runs = bool(header.runs)
    if runs:
        pairs = _pairs_with_runs(reader, header)
    else:
        pairs = pairs_of(g, core)
    owners, recent = _owners(g, core), deque[list[_Byte]](maxlen=DELAY + 1)
    values = _Values(g, core, runs)
    for step in range(pairs + DELAY):
        flushes = step >= pairs
        recent.append([])
        for _ in range(2):
            kind, of = "flush", Event("flush")
            if not flushes:
                kind, of = "symbol", next(owners)
            byte = _Byte(reader.read(CODE_BITS), of)
            recent[-1].append(byte)
            yield _item(reader, CODE_BITS, kind, byte.code, core, of)
        if flushes:
            values.refuse_flush(reader.position - 2 * CODE_BITS, recent[-1])
        if 0 < step <= pairs:
            for byte in recent[-2]:
                if byte.code == ESCAPED:
                    byte.escape = reader.read(ESCAPE_BITS)
                    yield _item(reader, ESCAPE_BITS, "escape", byte.escape, core, byte.of)
        if step < DELAY:
            continue
        for byte in recent[0]:
            at, kind = reader.position, byte.of.kind
            length, free, width = _payload(byte, header.symbols, runs)
            bits = reader.read(width)
            if free is not None:
                bits = 2 * bits + free
            if runs and length == RUN_LENGTH:
                kind = "run"
            yield _item(reader, width, kind, values.next(bits, length, byte.of, at), core, byte.of)


def _item(reader: BitReader, width: int, kind: str, value: int, core: int, of: Event) -> Item:
    """Return the bits just read as an item."""
    at, channel = reader.position - width, None
    if of.kind == "weight":
        return Item(at, width, kind, value, core, *of[1:], int(kind == "weight"))
    if of.kind == "completion":
        channel = of.channel
    return Item(at, width, kind, value, core, channel)


def _payload(byte: _Byte, symbols: tuple[int, ...], runs: bool) -> tuple[int, int | None, int]:
    """Return (bit length, free bit, width of the payload) of a byte."""
    symbol, free = READ[byte.code, byte.escape]
    length = symbols[symbol]
    width = max(length, 1)
    if runs and length >= RAW_LENGTH:
        width = 8
    if free is not None:
        width -= 1
    return length, free, width


def _pairs_with_runs(reader: BitReader, header: Header) -> int:
    """Return the number of pairs in a stream with zero runs, which only the stream's size in bits
    says.
    """
    scout, steps = BitReader(reader.data, reader.position, reader.end), 0
    recent = deque[list[_Byte]]([[], []], maxlen=DELAY + 1)
    try:
        while scout.position < scout.end:
            recent.append([_Byte(scout.read(CODE_BITS), Event("")) for _ in range(2)])
            for byte in recent[-2]:
                if byte.code == ESCAPED:
                    byte.escape = scout.read(ESCAPE_BITS)
            for byte in recent[0]:
                _, _, width = _payload(byte, header.symbols, True)
                scout.read(width)
            steps += 1
    except EOFError:
        steps += (
            1  # the stream is cut off: `_stream` reads it again and raises the error with the place
        )
    return max(steps - DELAY, 0)


class _Values:
    """Turns payloads into bytes and refuses impossible payloads."""

    def __init__(self, geometry: Geometry, core: int, runs: bool) -> None:
        self.zero, self.core, self.runs = geometry.zero_point, core, runs
        self.kernels = geometry.kernels(core)
        self.left = self.kernels * geometry.kernel_size
        self.count = list(self.kernels.to_bytes(COUNT_BYTES, "little"))
        self.flush = {flush_of(geometry, core)}
        if runs:
            self.flush = {0, _flush_codes(1)}

    def next(self, bits: int, length: int, of: Event, at: int) -> int:
        """Return the byte of a payload: its sign, then its magnitude without the leading 1."""
        where = f"coefficients: core {self.core} at {buffers.place(at)}"
        if self.runs and length == RUN_LENGTH:
            if self.left or of.kind == "kernels per core":
                raise Unsupported(
                    f"{where}: a zero run with {self.left} weights to come, and for how many a run "
                    "stands is not known"
                )
            return bits
        if self.runs and length > RAW_LENGTH:
            raise Unsupported(f"{where}: got bit length {length}, allowed is up to {RAW_LENGTH}")
        value = bits
        if not self.runs or length != RAW_LENGTH:
            value = signed(bits, length, self.runs)
        if of.kind == "kernels per core":
            want = self.count.pop(0)
            refuse_if(
                value != want,
                where,
                f"{value} as a byte of the kernels per core",
                f"is {want} ({self.kernels} kernels)",
            )
        elif of.kind == "weight":
            self.left -= 1
            value = (value + self.zero) % 256
        elif value:
            raise ValueError(f"{where}: got {value} in the fill of a block, allowed is 0")
        return value

    def refuse_flush(self, at: int, codes: list[_Byte]) -> None:
        """Raise ValueError for codes after the last byte that are not the codes of a flush."""
        got = codes[0].code + 2**CODE_BITS * codes[1].code
        if got not in self.flush:
            allowed = " or ".join(map(hex, sorted(self.flush)))
            raise ValueError(
                f"coefficients: core {self.core} at {buffers.place(at)}: got codes {got:#x} after "
                f"the last byte, allowed is {allowed}"
            )


def signed(bits: int, length: int, two: bool) -> int:
    """Return the byte of ``bits``: its sign in bit 0, then its magnitude without the leading 1.

    A negative byte is the complement of its magnitude, with ``two`` (streams with zero runs) the
    two's complement.
    """
    magnitude = bits // 2
    if length:
        magnitude += 2 ** (length - 1)
    if bits % 2 == 0:
        return magnitude
    if two:
        return -magnitude % 256
    return 255 - magnitude


def flush_of(geometry: Geometry, core: int) -> int:
    """Return the codes of a flush, the pairs after the last byte that push the last payloads out:
    their free bits are set if the number of bytes is odd.

    With zero runs, the vendor sets the free bits for an even number too.
    """
    return _flush_codes(bytes_of(geometry, core) % 2)


def _flush_codes(free: int) -> int:
    return (1 + 2**CODE_BITS) * FREE_CODE * free


def read_by_item(buffer: bytes, geometry: Geometry) -> Coefficients:
    """Return the content as ``walk`` reads it."""
    header = read_header(buffer, geometry)
    weights = np.full(geometry.shape, geometry.zero_point, np.uint8)
    bias = np.zeros(geometry.channels, np.uint32)
    for item in walk(buffer, geometry):
        if item.kind == "weight":
            weights[item.channel, item.plane, item.row, item.column] = item.value
        elif item.kind == "bias":
            bias[item.channel] = item.value
    return Coefficients(
        weights,
        bias.astype(np.int32),
        np.zeros(0, np.uint32),
        size=len(buffer),
        symbols=header.symbols,
        runs=header.runs,
    )


def join(streams: list[tuple[int, bytes]], coefficients: Coefficients, geometry: Geometry) -> bytes:
    """Return header, (bits, bytes) of each stream, biases, and zeros up to the size."""
    c, g = coefficients, geometry
    packed = 0
    # The first symbol lies in the lowest bits of the word, so that it is put in last.
    for length in reversed(c.symbols):
        packed = packed * 2**LENGTH_BITS + length
    head = layout(g.cores).build(
        {
            "flags": VERSION * 16,
            "run_size": 0,
            "run_table": bytes(TABLE_BYTES),
            "symbols": packed,
            "average_bias": 0,
            "reserved": 0,
            "bits": [bits for bits, _ in streams] + [0] * (g.cores - g.used),
        }
    )
    filled = [stream.ljust(stream_bytes(bits), b"\0") for bits, stream in streams]
    return b"".join([head, *filled, np.asarray(c.bias, "<i4").tobytes()]).ljust(c.size, b"\0")
