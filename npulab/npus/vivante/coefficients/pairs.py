"""The Huffman format (V8) with whole arrays: the same bytes and content as ``huffman``, which
explains each bit.

Where a step begins depends on the two steps before it, so the begins of steps are found one after
the other. Everything else is read and written with whole arrays.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy import ndarray as Array

from npulab.layout.bitstream import BitReader, bits_at, put_bits
from npulab.npus.kit import ceil_div, refuse_if
from npulab.npus.vivante.coefficients import buffers, huffman, zero_runs
from npulab.npus.vivante.coefficients.buffers import CODE_BITS, MESA, VENDOR, Coefficients, Geometry
from npulab.npus.vivante.coefficients.codes import (
    COUNT_BYTES,
    DELAY,
    ESCAPE_BITS,
    ESCAPED,
    RAW,
    READ,
    TOKENS,
    Coding,
    coding_of,
    flush_codes,
)

# A sorting network: pairs of places in the symbol map, which are compared in this order. Source:
# Mesa 25.0.7, etnaviv_ml_nn_v8.c.
NETWORK = "02 13 46 57 04 15 26 37 01 23 45 67 24 35 14 36 12 34 56"
# `_steps` reads CHUNK bytes of a stream at a time. One number holds two counts of bits of a step:
# ROOM times the bits before its payloads, plus the bits of its two payloads, fewer than ROOM.
CHUNK = 2**16
ROOM = 32
ONES = (2 ** np.arange(9) - 1).astype(np.uint32)
PAIR_CODES, PAIR_ESCAPES = 2 ** (2 * CODE_BITS), 2 ** (2 * ESCAPE_BITS)


class Stream(NamedTuple):
    """A stream's tokens, an even number, and the two codes of each step of its flush as one
    number."""

    tokens: Array
    flush: int


def decode(buffer: bytes, geometry: Geometry, fast: bool = False) -> Coefficients | None:
    """Return the content of a buffer, or None if a stream or the fill does not follow the format.
    Raises ValueError for a broken header.

    ``fast`` runs compiled loops (``npulab[fast]``).
    """
    header, g = huffman.read_header(buffer, geometry), geometry
    start = g.header_bytes
    if buffer[buffers.FIRST_SIZE + buffers.SIZE_BYTES * g.cores : start].strip(b"\0"):
        return None
    streams = []
    for core, bits in enumerate(header.bits[: g.used]):
        data = buffer[start : start + huffman.stream_bytes(bits)]
        stream = _stream(data, bits, header.coding, g, core, fast)
        if stream is None or BitReader(data, bits).read(8 * len(data) - bits):
            return None  # the stream is broken, or the fill after it is not 0
        streams.append(stream)
        start += len(data)
    if buffer[start + buffers.BIAS_BYTES * g.channels :].strip(b"\0"):
        return None
    # The array of weights is made only now, when the streams are known to hold as many weights.
    weights, items = np.empty(g.shape, np.uint8), []
    for core, stream in enumerate(streams):
        values = stream.tokens
        if header.runs:
            values = zero_runs.expanded(stream.tokens, header.coding.entries)
            items.append(zero_runs.ways(stream.tokens).tobytes() + bytes([stream.flush > 0]))
        if not _take(values, g, core, weights):
            return None
    bias = np.frombuffer(buffer, "<i4", g.channels, start).astype(np.int32)
    return Coefficients(
        weights,
        bias,
        np.zeros(0, np.uint32),
        size=len(buffer),
        symbols=header.symbols,
        runs=header.runs,
        items=tuple(items),
    )


class _Tables(NamedTuple):
    """Lookup tables of a coding.

    A way is the number of an entry of ``READ``: a code and its escape. ``before`` is indexed by the
    two codes of a step: how many bits the next step has before its payloads.

    Four tables are indexed by the two codes of a step and the 4 bits that may be their escapes.
    ``step`` has ``ROOM`` times the number in ``before``, plus the bits of the two payloads.
    ``ways`` has the ways of the two bytes, ``widths`` the bits of their payloads. ``both`` packs
    these five numbers into one, 4 bits each.

    ``tokens`` is indexed by way and payload. ``code``, ``escape`` and ``payload`` are indexed by
    token: each has (value, width in bits), with a width of 0 for tokens that the coding does not
    have. ``most`` is the number of bits of the longest step.
    """

    before: Array
    step: Array
    both: Array
    ways: Array
    widths: Array
    tokens: Array
    code: Array
    escape: Array
    payload: Array
    most: int


@lru_cache(8)
def _tables(symbols: tuple[int, ...], size: int = 0) -> _Tables:
    """Return the lookup tables for a symbol map and ``size`` entries of zero runs."""
    coding = Coding(symbols, (1,) * size)
    values = np.zeros((len(READ), 256), np.uint16)
    if not size:
        values = values.astype(np.uint8)  # without zero runs, tokens are bytes
    code_of, escape_of, payload_of = written = np.zeros((3, TOKENS, 2), np.uint32)
    widths = []
    for way, (code, escape) in enumerate(READ):
        length, free, width = coding.payload(code, escape)
        escape_bits = 0
        if code == ESCAPED:
            escape_bits = ESCAPE_BITS
        widths.append(width)
        for payload in range(2**width):
            token = coding.token(payload, free, length)
            values[way, payload] = token
            written[:, token] = (code, CODE_BITS), (escape or 0, escape_bits), (payload, width)
    index = np.arange(PAIR_CODES * PAIR_ESCAPES)
    pair_ways, pair_widths = np.zeros((2, len(index), 2), np.uint8)
    rest, before = index // PAIR_CODES, np.full(len(index), 2 * CODE_BITS)
    for half in range(2):
        codes = index // 2 ** (half * CODE_BITS) % 2**CODE_BITS
        escaped = codes == ESCAPED
        for way, (code, escape) in enumerate(READ):
            taken = (codes == code) & (~escaped | (rest % 2**ESCAPE_BITS == escape))
            pair_ways[taken, half] = way
            pair_widths[taken, half] = widths[way]
        before += ESCAPE_BITS * escaped
        rest[escaped] //= 2**ESCAPE_BITS
    step = (ROOM * before + pair_widths.sum(1)).astype(np.uint16)
    columns = np.column_stack([before, pair_widths, pair_ways])
    both = (columns * 16 ** np.arange(5)).sum(1).astype(np.uint32)
    before = before[:PAIR_CODES].astype(np.uint32)
    most = int(before.max()) + 2 * max(widths)
    return _Tables(
        before, step, both, pair_ways, pair_widths, values, code_of, escape_of, payload_of, most
    )


def _stream(
    data: bytes, bits: int, coding: Coding, geometry: Geometry, core: int, fast: bool
) -> Stream | None:
    """Return a core's stream of ``bits`` bits, or None if the stream is broken.

    A broken stream has a last step that does not end at bit ``bits``, last two pairs of codes that
    are not the flush, or another number of weights than the geometry.
    """
    steps, flushes = huffman.pairs_of(geometry, core) + DELAY, {huffman.flush_of(geometry, core)}
    tables = _tables(coding.symbols, len(coding.entries))
    if coding.entries:
        # With zero runs the number of steps is not known; the size gives the most.
        steps, flushes = bits // (2 * CODE_BITS), {flush_codes(0), flush_codes(1)}
    elif 2 * CODE_BITS * steps > bits:
        return None
    if fast:
        stream = _read_fast(data, bits, tables, steps, flushes)
    else:
        stream = _read(data, bits, tables, steps)
    if stream is None or stream.flush not in flushes:
        return None
    if coding.entries:
        reaches = zero_runs.reaches(stream.tokens, coding.entries)
        if not zero_runs.go_round(reaches, huffman.bytes_of(geometry, core)):
            return None
    elif len(stream.tokens) != 2 * (steps - DELAY):
        return None
    return stream


def _read_fast(
    data: bytes, bits: int, tables: _Tables, steps: int, flushes: set[int]
) -> Stream | None:
    """Return what ``_read`` returns, by compiled loops. ``flushes`` are the allowed codes of the
    flush. If it has one element, ``steps`` is the number of steps, else it is not used."""
    from npulab.npus.vivante.coefficients import loops

    words, (flush, *others) = buffers.words_of(data), flushes
    if others:
        steps, flush = loops.count_steps(words, 0, bits, tables.both)
    if steps <= DELAY:
        return None
    out = np.empty((steps - DELAY, 2), tables.tokens.dtype)
    values = tables.tokens.reshape(-1)
    if loops.decode_pairs(words, 0, bits, steps, flush, tables.both, values, out) != bits:
        return None
    return Stream(out.reshape(-1), flush)


def _read(data: bytes, bits: int, tables: _Tables, most: int) -> Stream | None:
    """Return a stream of at most ``most`` steps, or None if its last step does not end at bit
    ``bits`` or the last two pairs of codes (the flush) differ from each other."""
    at = _steps(data, bits, tables.step, most)
    if at is None or len(at) <= DELAY:
        return None
    windows = bits_at(data, at, tables.most)
    codes = windows % PAIR_CODES
    if codes[-1] != codes[-2]:
        return None
    index = codes[:-DELAY] | windows[1:-1] & PAIR_CODES * (PAIR_ESCAPES - 1)
    payloads = windows[DELAY:] >> tables.before[codes[1:-1]]
    widths, ways = tables.widths[index], tables.ways[index]
    out = np.empty((len(at) - DELAY, 2), tables.tokens.dtype)
    out[:, 0] = tables.tokens[ways[:, 0], payloads & ONES[widths[:, 0]]]
    out[:, 1] = tables.tokens[ways[:, 1], payloads >> widths[:, 0] & ONES[widths[:, 1]]]
    return Stream(out.reshape(-1), int(codes[-1]))


def _steps(data: bytes, bits: int, table: Array, steps: int) -> Array | None:
    """Return the bit at which each step begins, at most ``steps`` of them, or None if the last step
    does not end at bit ``bits``. ``table`` is ``step`` of the lookup tables."""
    advance, found, at = table.data, array("q", [0]), 2 * CODE_BITS
    codes, escapes = PAIR_CODES - 1, PAIR_CODES * (PAIR_ESCAPES - 1)
    before, payloads = data[0] & codes, 0
    while len(found) < steps and at < bits:
        base = at // 8
        size = min(8 * CHUNK, bits - 8 * base)
        # A window has the bits that follow a bit of the chunk; the last windows end behind it.
        windows = bits_at(data[base : base + CHUNK + 4], np.arange(size), 10).astype(np.uint16).data
        at -= 8 * base
        for _ in range(steps - len(found)):
            if at >= size:
                break
            found.append(at + 8 * base)
            window = windows[at]
            step = advance[before | window & escapes]
            at += step // ROOM + payloads
            payloads, before = step % ROOM, window & codes
        at += 8 * base
    if at == bits:
        return np.frombuffer(found, np.int64)
    return None


def _parts(
    stream: Array,
    weights: Array,
    g: Geometry,
    core: int,
) -> Iterator[tuple[Array, Array]]:
    """Yield two views for each superblock of a core: the bytes in ``stream``, ``(kernels, blocks,
    weights of a block)``, and the weights ``(kernels, kernel_size)`` that these bytes code."""
    flat, at = weights.reshape(g.slots, g.kernel_size), COUNT_BYTES
    blocks = ceil_div(g.kernel_size, g.block)
    for first, count, step in g.blocks(core):
        part = stream[at : at + count * blocks * g.block]
        kernels = flat[first : first + step * count : step]
        yield part.reshape(blocks, count, g.block).transpose(1, 0, 2), kernels
        at += len(part)


def _take(stream: Array, geometry: Geometry, core: int, weights: Array) -> bool:
    """Write the weights that a stream's bytes code into ``weights``.

    Returns False if the stream states another number of kernels than the geometry gives this core,
    or if the fill of a block or of the last pair is not 0.
    """
    g, end = geometry, huffman.bytes_of(geometry, core)
    sound = stream[:COUNT_BYTES].tobytes() == g.kernels(core).to_bytes(COUNT_BYTES, "little")
    for blocks, into in _parts(stream, weights, g, core):
        kernels = blocks.reshape(len(into), -1)
        into[...] = kernels[:, : g.kernel_size] + np.uint8(g.zero_point)
        sound = sound and not kernels[:, g.kernel_size :].any()
    return sound and not stream[end:].any()


def encode(coefficients: Coefficients, geometry: Geometry, fast: bool = False) -> bytes:
    """Return the buffer that holds ``coefficients``, filled with zeros up to their ``size``; the
    inverse of ``decode``."""
    c, g = coefficients, geometry
    write = _written
    if fast:
        write = _written_fast
    tables, streams = _tables_of(c), []
    for core in range(g.used):
        stream = _written_as(c, values_of(c, g, core), tables, g, core)
        streams.append(write(stream.tokens, tables, stream.flush))
    return huffman.join(streams, c, g)


def bits_of(c: Coefficients, values: Array, geometry: Geometry, core: int) -> int:
    """Return how many bits the stream has that ``encode`` makes of a core's ``values``; ``c`` has
    the coding."""
    tables = _tables_of(c)
    tokens = _written_as(c, values, tables, geometry, core).tokens
    bits = 2 * CODE_BITS * DELAY
    for table in (tables.code, tables.escape, tables.payload):
        bits += int(table[tokens, 1].sum(dtype=np.int64))
    return bits


def values_of(c: Coefficients, g: Geometry, core: int) -> Array:
    """Return the values of a core's stream: two bytes with the number of kernels, then the weights
    less the zero point, with the fill of blocks but not of the last pair."""
    out = np.zeros(huffman.bytes_of(g, core), np.uint8)
    out[:COUNT_BYTES] = np.frombuffer(g.kernels(core).to_bytes(COUNT_BYTES, "little"), np.uint8)
    for blocks, weights in _parts(out, c.weights, g, core):
        kernels = np.zeros((len(weights), blocks[0].size), np.uint8)
        kernels[:, : g.kernel_size] = weights - np.uint8(g.zero_point)
        blocks[...] = kernels.reshape(blocks.shape)
    return out


def _written_as(c: Coefficients, values: Array, tables: _Tables, g: Geometry, core: int) -> Stream:
    """Return the stream that codes a core's values. Raises ValueError for a value that the symbols
    of ``c`` cannot write."""
    if not c.runs:
        fill = np.zeros(len(values) % 2, np.uint8)
        return Stream(np.concatenate([values, fill]), huffman.flush_of(g, core))
    coding = coding_of(c.symbols, c.runs)
    if c.items:
        written = np.frombuffer(c.items[core], np.uint8)
    else:
        written = zero_runs.choose_ways(values, coding)
    tokens = zero_runs.tokens_of(values, written[:-1], coding.entries, core)
    missing, how = tokens[tables.code[tokens, 1] == 0], ""
    if c.items:
        how = " in the way that items say; without items the encoder chooses"
    refuse_if(
        len(missing),
        "coefficients: symbols",
        c.symbols,
        f"are those that can write byte {int(missing[:1].sum()) % RAW} of core {core}{how}",
    )
    return Stream(tokens, flush_codes(int(written[-1])))


def _tables_of(c: Coefficients) -> _Tables:
    return _tables(tuple(c.symbols), len(coding_of(c.symbols, c.runs).entries))


def _written(stream: Array, tables: _Tables, flush: int) -> tuple[int, bytes]:
    """Return (number of bits, bytes) of the steps that code a stream's tokens; ``flush`` are the
    codes of the last two steps."""
    codes, code_bits = _joined(stream, tables.code)
    escapes, escape_bits = _joined(stream, tables.escape)
    payloads, payload_bits = _joined(stream, tables.payload)
    values = np.concatenate([codes, np.full(DELAY, flush, np.uint32)])
    widths = np.concatenate([code_bits, np.full(DELAY, 2 * CODE_BITS, np.uint32)])
    # A pair's escapes lie one step after its codes, and its payloads two steps after; this is why
    # the slices begin at 1 and 2.
    values[1:-1] |= np.left_shift(escapes, widths[1:-1])
    widths[1:-1] += escape_bits
    values[2:] |= np.left_shift(payloads, widths[2:])
    widths[2:] += payload_bits
    ends = np.cumsum(widths, dtype=np.int64)
    return int(ends[-1]), put_bits(values, ends - widths, int(ends[-1]))


def _written_fast(stream: Array, tables: _Tables, flush: int) -> tuple[int, bytes]:
    """Return what ``_written`` returns, by a compiled loop."""
    from npulab.npus.vivante.coefficients import loops

    # A step has at most 26 bits, so a 32-bit word for each step is enough.
    out = np.zeros(len(stream) // 2 + DELAY + 1, np.uint32)
    code, escape = tables.code.astype(np.uint64), tables.escape.astype(np.uint64)
    payload = tables.payload.astype(np.uint64)
    bits = int(loops.encode_pairs(stream.reshape(-1, 2), flush, code, escape, payload, out))
    return bits, out.astype("<u4").tobytes()[: ceil_div(bits, 8)]


def _joined(stream: Array, table: Array) -> tuple[Array, Array]:
    """Return (values, widths in bits) of the pairs of a stream. ``table`` has (value, width) for
    each token; in a pair, the second value lies in the bits above the first.
    """
    first, first_bits = table[stream[::2]].T
    second, second_bits = table[stream[1::2]].T
    return first | np.left_shift(second, first_bits), first_bits + second_bits


def choose_symbols(weights: Array, dialect: str = MESA) -> tuple[int, ...]:
    """Return the symbol map that Mesa picks for ``weights``, uint8 or int8 as in the model. Return
    () in the vendor's dialect, in which the encoder picks map and zero runs together.

    The map lists the bit lengths from the most frequent to the rarest. The order of equally
    frequent lengths follows from the driver's sorting network.

    >>> choose_symbols(np.array([0, 3, 3, 0xFF], np.uint8))
    (2, 1, 0, 3, 4, 5, 6, 7)
    """
    if dialect == VENDOR:
        return ()
    counts = np.bincount(np.ascontiguousarray(weights).view(np.uint8).reshape(-1), minlength=256)
    # The magnitude of a negative byte is its ones' complement. So 0xFF (-1) has bit length 0, but
    # the driver counts its length as 1.
    lengths = [max(min(byte, 255 - byte).bit_length(), byte // 255) for byte in range(256)]
    histogram = np.bincount(lengths, counts, buffers.SYMBOLS).tolist()
    out = list(range(buffers.SYMBOLS))
    # A stable sort would order equal counts in another way than the driver, and the buffer would
    # have other bytes than the driver's.
    for places in NETWORK.split():
        first, second = map(int, places)
        if histogram[out[first]] < histogram[out[second]]:
            out[first], out[second] = out[second], out[first]
    return tuple(out)
