"""Coefficient buffers of the VeriSilicon engine read and written item by item: what the fast ways
are compared with.

Reading goes by the items of ``walk``; writing shares the order of events and the headers with the
package, and no codes and no arrays.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from bit_strings import pack_bits

from npulab.layout.bitstream import BitReader
from npulab.npus.vivante.coefficients import Coefficients, Geometry, huffman, plain, walk
from npulab.npus.vivante.coefficients.buffers import refuse_size
from npulab.npus.vivante.coefficients.codes import ENTRY, RAW

# (code, escape, what the free bit adds to the last of them) by symbol
SYMBOLS = (
    (0, None, 4),
    (1, None, 4),
    (7, None, 0),
    (3, None, 0),
    (6, None, 0),
    (2, 1, 2),
    (2, 2, 0),
    (2, 0, 0),
)


def read(buffer: bytes, g: Geometry) -> Coefficients:
    """The content of a buffer; raises ValueError as ``walk`` does."""
    if g.huffman:
        return read_huffman(buffer, g)
    refuse_size(buffer, g)
    return read_plain(buffer, g)


def write(content: Coefficients, g: Geometry) -> bytes:
    """The buffer of a content, filled with zeros to its ``size``."""
    if g.huffman:
        streams = []
        for core in range(g.used):
            items = list(huffman_items(content, g, core))
            streams.append((sum(width for _, width in items), pack_bits(items)))
        return huffman.join(streams, content, g)
    return plain.join(
        [pack_bits(plain_items(content, g, core, content.zrl[core])) for core in range(g.used)],
        g,
        content.size,
    )


def read_huffman(buffer: bytes, g: Geometry) -> Coefficients:
    header = huffman.read_header(buffer, g)
    weights = np.full(g.shape, g.zero_point, np.uint8)
    bias = np.zeros(g.channels, np.uint32)
    free = [0] * g.used
    for item in walk(buffer, g):
        if item.kind == "weight":
            weights[item.channel, item.plane, item.row, item.column] = item.value
        elif item.kind == "bias":
            bias[item.channel] = item.value
        elif item.kind == "flush" and item.core is not None:
            free[item.core] = int(item.value > 0)
    items, start = [], 8 * g.header_bytes
    for core, bits in enumerate(header.bits[: g.used]):
        if header.runs:
            tokens = huffman.scan(BitReader(buffer, start, start + bits), header.coding)
            items.append(bytes([*map(way, tokens), free[core]]))
        start += 8 * huffman.stream_bytes(bits)
    return Coefficients(
        weights,
        bias.astype(np.int32),
        np.zeros(0, np.uint32),
        size=len(buffer),
        symbols=header.symbols,
        runs=header.runs,
        items=tuple(items),
    )


def way(token: int) -> int:
    """How the byte of a token is written: 0 by its bit length, 1 as it is, 2 + n by entry n of the
    table."""
    return token // RAW + token % RAW * (token >= ENTRY)


def read_plain(buffer: bytes, g: Geometry) -> Coefficients:
    weights = np.full(g.shape, g.zero_point, np.uint8)
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


def plain_items(c: Coefficients, g: Geometry, core: int, zrl: int) -> Iterator[tuple[int, int]]:
    """(value, width) of a stream's bits."""
    zero, longest, run = g.zero_point, 2**zrl - 1, 0
    yield zrl, 8
    yield g.per_core, 16
    for event in g.events(core):
        if event.kind == "weight":
            weight = int(c.weights[event[1:]])
            if weight == zero and run < longest:
                run += 1
                continue
            yield run, zrl
            yield weight, 8
            run = 0
            continue
        if run:  # a pending run ends in a literal zero point
            yield run - 1, zrl
            yield zero, 8
            run = 0
        if event.kind == "bias":
            yield int(c.bias[event.channel]) % 2**32, 32
        elif event.kind == "offset":
            yield int(c.offsets[event.channel]), 32


def huffman_values(c: Coefficients, g: Geometry, core: int) -> list[int]:
    """The values of a stream: the number of kernels, weights less their zero point, and zeros that
    complete blocks."""
    values = list(g.kernels(core).to_bytes(2, "little"))
    for event in g.events(core):
        values.append(
            (int(c.weights[event[1:]]) - g.zero_point) % 256 if event.kind == "weight" else 0
        )
    return values


def huffman_items(c: Coefficients, g: Geometry, core: int) -> Iterator[tuple[int, int]]:
    """(value, width) of a stream's bits: the codes of a pair, escapes of the pair before, payloads
    of the one before
    that."""
    values = huffman_values(c, g, core)
    odd = len(values) % 2
    if c.items:
        *ways, odd = c.items[core]
        written = []
        for way in ways:
            written.append(written_way(way, values, c))
            del values[: c.runs[way - 1] + 1 if way > 1 else 1]
    else:
        written = [written_byte(value, c.symbols) for value in values + [0] * odd]
    flush = (4 + 8 * 4) * odd
    for step in range(0, len(written) + 4, 2):
        for byte in written[step : step + 2]:
            yield byte[0]
        if step >= len(written):
            yield flush, 6
        for part in (1, 2):
            for byte in written[max(step - 2 * part, 0) : max(step - 2 * part + 2, 0)]:
                yield byte[part]


def written_way(way: int, values: list[int], c: Coefficients) -> list[tuple[int, int]]:
    """(value, width) of the code, the escape and the payload of the first of ``values`` in a stream
    with zero runs: 0 by its bit length, 1 as it is, 2 + n by entry n of the table."""
    value = values[0] if values else 0
    if way == 1:
        return coded(c.symbols.index(7), value, 8)
    if way in (2, 3):
        return coded(c.symbols.index(0), way - 2, 1)
    if way > 3:
        return coded(c.symbols.index(8), way - 4, {4: 1, 6: 2, 10: 3, 18: 4}[c.runs[0]])
    sign, magnitude = (1, 256 - value) if value > 127 else (0, value)
    length = magnitude.bit_length()
    return coded(c.symbols.index(length), sign + 2 * (magnitude - 2 ** (length - 1)), length)


def written_byte(byte: int, symbols: tuple[int, ...]) -> list[tuple[int, int]]:
    """(value, width) of the code, the escape and the payload of a byte."""
    sign, magnitude = (1, 255 - byte) if byte > 127 else (0, byte)
    length = magnitude.bit_length()
    payload = sign + 2 * (magnitude - (2 ** (length - 1) if length else 0))
    return coded(symbols.index(length), payload, max(length, 1))


def coded(symbol: int, payload: int, width: int) -> list[tuple[int, int]]:
    """(value, width) of the code, the escape and the payload of a symbol."""
    code, escape, unit = SYMBOLS[symbol]
    free = 0
    if unit:
        free, payload, width = unit * (payload % 2), payload // 2, width - 1
    if escape is None:
        return [(code + free, 3), (0, 0), (payload, width)]
    return [(code, 3), (escape + free, 2), (payload, width)]
