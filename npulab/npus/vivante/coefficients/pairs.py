"""The Huffman format (V8) with whole arrays: the same bytes and content as ``huffman``, which
explains each bit.

Where a step begins depends on the two before it, so that these places are found one by one; all
else is done at once.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from npulab.layout.bitstream import BitReader, bits_at, put_bits
from npulab.npus.kit import ceil_div
from npulab.npus.vivante.coefficients import buffers, huffman
from npulab.npus.vivante.coefficients.buffers import CODE_BITS, Coefficients, Geometry
from npulab.npus.vivante.coefficients.huffman import COUNT_BYTES, DELAY, ESCAPE_BITS, ESCAPED, READ

# Mesa 25.0.7, etnaviv_ml_nn_v8.c: the comparisons that sort the symbols
NETWORK = (
    (0, 2),
    (1, 3),
    (4, 6),
    (5, 7),
    (0, 4),
    (1, 5),
    (2, 6),
    (3, 7),
    (0, 1),
    (2, 3),
    (4, 5),
    (6, 7),
    (2, 4),
    (3, 5),
    (1, 4),
    (3, 6),
    (1, 2),
    (3, 4),
    (5, 6),
)
CHUNK = 2**16  # bytes
ROOM = 32  # for the bits of two payloads
ONES = (2 ** np.arange(9) - 1).astype(np.uint32)
PAIR_CODES, PAIR_ESCAPES = 2 ** (2 * CODE_BITS), 2 ** (2 * ESCAPE_BITS)


def decode(buffer: bytes, geometry: Geometry, fast: bool = False) -> Coefficients | None:
    """Weights, biases and symbols of a buffer, or None if it does not follow the format.

    ``fast`` runs compiled loops (``npulab[fast]``).  Of zero runs only those behind the last weight
    are understood.
    """
    header = huffman.read_header(buffer, geometry)
    if header.runs:
        return huffman.read_by_item(buffer, geometry)
    weights = np.empty(geometry.shape, np.uint8)
    start = geometry.header_bytes
    if buffer[buffers.FIRST_SIZE + buffers.SIZE_BYTES * geometry.cores : start].strip(b"\0"):
        return None
    for core, bits in enumerate(header.bits[: geometry.used]):
        data = buffer[start : start + huffman.stream_bytes(bits)]
        stream = _bytes(data, bits, header, geometry, core, fast)
        if (
            stream is None
            or not _take(stream, geometry, core, weights)
            or BitReader(data, bits).read(8 * len(data) - bits)
        ):
            return None
        start += len(data)
    if buffer[start + buffers.BIAS_BYTES * geometry.channels :].strip(b"\0"):
        return None
    bias = np.frombuffer(buffer, "<i4", geometry.channels, start).astype(np.int32)
    return Coefficients(
        weights, bias, np.zeros(0, np.uint32), size=len(buffer), symbols=header.symbols
    )


class _Tables(NamedTuple):
    """A symbol map, made ready.

    By two codes: ``before``, the bits of a step ahead of its payloads in the step after.  By two
    codes and 4 bits that hold their escapes: ``step``, these bits times ``ROOM`` and the bits of
    the payloads; ``ways`` in which both bytes are written and ``widths`` of their payloads;
    ``both``, all that in 4 bits each. ``bytes`` is by way and payload.  ``code``, ``escape`` and
    ``payload`` are (value, width) by byte.
    """

    before: np.ndarray
    step: np.ndarray
    both: np.ndarray
    ways: np.ndarray
    widths: np.ndarray
    bytes: np.ndarray
    code: np.ndarray
    escape: np.ndarray
    payload: np.ndarray


@lru_cache(8)
def _tables(symbols: tuple[int, ...]) -> _Tables:
    ways = {key: n for n, key in enumerate(READ)}
    values = np.zeros((len(ways), 256), np.uint8)
    written = np.zeros((3, 256, 2), np.uint32)
    widths = []
    for (code, escape), (symbol, free) in READ.items():
        length = symbols[symbol]
        width = max(length, 1) - (free is not None)
        widths.append(width)
        for payload in range(2**width):
            value = huffman.signed(payload if free is None else 2 * payload + free, length, False)
            values[ways[code, escape], payload] = value
            written[:, value] = (
                (code, CODE_BITS),
                (escape or 0, ESCAPE_BITS * (code == ESCAPED)),
                (payload, width),
            )
    index = np.arange(PAIR_CODES * PAIR_ESCAPES)
    way, wide = np.zeros((2, len(index), 2), np.uint8)
    rest, bits = index // PAIR_CODES, np.full(len(index), 2 * CODE_BITS)
    for half, codes in enumerate((index % 2**CODE_BITS, index // 2**CODE_BITS % 2**CODE_BITS)):
        escaped = codes == ESCAPED
        for (code, escape), n in ways.items():
            of = (codes == code) & (~escaped | (rest % 2**ESCAPE_BITS == escape))
            way[of, half], wide[of, half] = n, widths[n]
        bits = bits + ESCAPE_BITS * escaped
        rest = np.where(escaped, rest // 2**ESCAPE_BITS, rest)
    step = (ROOM * bits + wide.sum(1)).astype(np.uint16)
    both = (np.column_stack([bits, wide, way]) * 16 ** np.arange(5)).sum(1).astype(np.uint32)
    return _Tables(bits[:PAIR_CODES].astype(np.uint32), step, both, way, wide, values, *written)


def _bytes(
    data: bytes, bits: int, header: huffman.Header, geometry: Geometry, core: int, fast: bool
) -> np.ndarray | None:
    """The bytes of a stream of so many bits, or None where it does not end there."""
    pairs, tables = huffman.pairs_of(geometry, core), _tables(header.symbols)
    if 2 * CODE_BITS * (pairs + DELAY) > bits:
        return None
    out = np.empty((pairs, 2), np.uint8)
    if fast:
        from npulab.npus.vivante.coefficients import loops

        flush = huffman.flush_of(geometry, core)
        stop = loops.decode_pairs(
            buffers.words_of(data),
            0,
            bits,
            pairs + DELAY,
            flush,
            tables.both,
            tables.bytes.reshape(-1),
            out,
        )
        if stop == bits:
            return out.reshape(-1)
        return None
    at = _steps(data, bits, tables.step, pairs + DELAY)
    if at is None:
        return None
    windows = bits_at(data, at, 24)
    codes = windows % PAIR_CODES
    if np.any(codes[pairs:] != huffman.flush_of(geometry, core)):
        return None
    index = codes[:-DELAY] | windows[1:-1] & PAIR_CODES * (PAIR_ESCAPES - 1)
    payloads = windows[DELAY:] >> tables.before[codes[1:-1]]
    widths, ways = tables.widths[index], tables.ways[index]
    out[:, 0] = tables.bytes[ways[:, 0], payloads & ONES[widths[:, 0]]]
    out[:, 1] = tables.bytes[ways[:, 1], payloads >> widths[:, 0] & ONES[widths[:, 1]]]
    return out.reshape(-1)


def _steps(data: bytes, bits: int, table: np.ndarray, steps: int) -> np.ndarray | None:
    """The bit where each step begins, or None where the last does not stop at ``bits``."""
    advance, found, at = table.data, array("q", [0]), 2 * CODE_BITS
    codes, escapes, before, payloads = (
        PAIR_CODES - 1,
        PAIR_CODES * (PAIR_ESCAPES - 1),
        data[0] % PAIR_CODES,
        0,
    )
    while len(found) < steps and at < bits:
        base = at // 8
        size = min(8 * CHUNK, bits - 8 * base)
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
    if at == bits and len(found) == steps:
        return np.frombuffer(found, np.int64)
    return None


def _parts(
    stream: np.ndarray,
    weights: np.ndarray,
    g: Geometry,
    core: int,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Of each superblock the bytes of the stream ``(kernels, blocks, weights of a block)`` and the
    weights ``(kernels, kernel_size)``, both as views."""
    flat, at = weights.reshape(g.slots, g.kernel_size), COUNT_BYTES
    blocks = ceil_div(g.kernel_size, g.block)
    for first, count, step in g.blocks(core):
        size = count * blocks * g.block
        yield (
            stream[at : at + size].reshape(blocks, count, g.block).transpose(1, 0, 2),
            flat[first : first + step * count : step],
        )
        at += size


def _take(stream: np.ndarray, geometry: Geometry, core: int, weights: np.ndarray) -> bool:
    """Put a stream's bytes in their places; False if it has another number of kernels, or what
    completes a block is not 0."""
    g, behind = geometry, huffman.bytes_of(geometry, core)
    sound = stream[:COUNT_BYTES].tobytes() == g.kernels(core).to_bytes(COUNT_BYTES, "little")
    for blocks, into in _parts(stream, weights, g, core):
        kernels = blocks.reshape(len(into), -1)
        into[...] = kernels[:, : g.kernel_size] + np.uint8(g.zero_point)
        sound = sound and not kernels[:, g.kernel_size :].any()
    return sound and not stream[behind:].any()


def encode(coefficients: Coefficients, geometry: Geometry, fast: bool = False) -> bytes:
    """The buffer of ``coefficients``, filled with zeros to its ``size``; the inverse of
    ``decode``."""
    c, g = coefficients, geometry
    write = _written
    if fast:
        write = _written_fast
    tables = _tables(tuple(c.symbols))
    streams = [
        write(_stream(c, g, core), tables, huffman.flush_of(g, core)) for core in range(g.used)
    ]
    return huffman.join(streams, c, g)


def _stream(c: Coefficients, g: Geometry, core: int) -> np.ndarray:
    """The bytes of a core's stream, the last pair completed."""
    out = np.zeros(2 * huffman.pairs_of(g, core), np.uint8)
    out[:COUNT_BYTES] = np.frombuffer(g.kernels(core).to_bytes(COUNT_BYTES, "little"), np.uint8)
    for blocks, weights in _parts(out, c.weights, g, core):
        kernels = np.zeros((len(weights), blocks[0].size), np.uint8)
        kernels[:, : g.kernel_size] = weights - np.uint8(g.zero_point)
        blocks[...] = kernels.reshape(blocks.shape)
    return out


def _written(stream: np.ndarray, tables: _Tables, flush: int) -> tuple[int, bytes]:
    """(bits, bytes) of the steps that write the bytes of a stream."""
    codes, code_bits = _joined(stream, tables.code)
    escapes, escape_bits = _joined(stream, tables.escape)
    payloads, payload_bits = _joined(stream, tables.payload)
    values = np.concatenate([codes, np.full(DELAY, flush, np.uint32)])
    widths = np.concatenate([code_bits, np.full(DELAY, 2 * CODE_BITS, np.uint32)])
    values[1:-1] |= np.left_shift(escapes, widths[1:-1])
    widths[1:-1] += escape_bits
    values[2:] |= np.left_shift(payloads, widths[2:])
    widths[2:] += payload_bits
    ends = np.cumsum(widths, dtype=np.int64)
    return int(ends[-1]), put_bits(values, ends - widths, int(ends[-1]))


def _written_fast(stream: np.ndarray, tables: _Tables, flush: int) -> tuple[int, bytes]:
    """The same, compiled."""
    from npulab.npus.vivante.coefficients import loops

    out = np.zeros(len(stream) // 2 + DELAY + 1, np.uint32)  # a step has at most 24 bits
    bits = loops.encode_pairs(
        stream.reshape(-1, 2),
        flush,
        *(table.astype(np.uint64) for table in (tables.code, tables.escape, tables.payload)),
        out,
    )
    return int(bits), out.astype("<u4").tobytes()[: ceil_div(int(bits), 8)]


def _joined(stream: np.ndarray, table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(values, widths) of pairs of bytes, by a table of (value, width) of single ones."""
    first, second = table[stream[::2]], table[stream[1::2]]
    return first[:, 0] | np.left_shift(second[:, 0], first[:, 1]), first[:, 1] + second[:, 1]


def choose_symbols(weights: np.ndarray) -> tuple[int, ...]:
    """The symbol map the driver picks for ``weights``, uint8 or int8 as the model has them: bit
    lengths by falling count, in the order that its fixed comparisons leave them.

    >>> choose_symbols(np.array([0, 3, 3, 0xFF], np.uint8))
    (2, 1, 0, 3, 4, 5, 6, 7)
    """
    counts = np.bincount(np.ascontiguousarray(weights).view(np.uint8).reshape(-1), minlength=256)
    # a negative byte's magnitude is its complement; 0xFF has length 0, and is counted as 1
    lengths = [max(min(byte, 255 - byte).bit_length(), byte // 255) for byte in range(256)]
    histogram = np.bincount(lengths, counts, buffers.SYMBOLS).tolist()
    out = list(range(buffers.SYMBOLS))
    for a, b in NETWORK:
        if histogram[out[a]] < histogram[out[b]]:
            out[a], out[b] = out[b], out[a]
    return tuple(out)
