"""The simulated NN unit's reading of a V8 coefficient buffer: Huffman codes, one weight after
another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from npulab.layout.bitstream import BitReader
from npulab.npus.kit import Hang, ceil_div, up

ALIGN, LENGTHS, BLOCK = 64, 28, 9
PLAIN = 0x10  # first byte: version 1, no other mode


def kernels(
    buffer: bytes, v: Mapping[str, Any], cores: int
) -> Iterator[tuple[int, int, list[int]]]:
    """(channel, stored bias, weights in the order plane, row, column) of every kernel.

    Raises Hang for a stream that does not hold what the words say.
    """
    channels = v["out_image_z_size"]
    used, size = min(channels, cores), v["kernel_xy_size"] * v["kernel_y_size"]
    if v["depthwise"]:
        size *= 1
    else:
        size *= v["kernel_z_size"]
    block = BLOCK
    if v["depthwise"]:
        block = up(max(size, BLOCK), BLOCK)
    start = up(LENGTHS + 4 * cores, ALIGN)
    if len(buffer) < start or buffer[0] != PLAIN or buffer[1]:
        raise Hang(
            f"the coefficient buffer of {len(buffer)} bytes begins with "
            f"{buffer[:2].hex() or 'nothing'}, the "
            f"simulated unit knows {PLAIN:02x}00 and a whole header"
        )
    lengths = [
        int.from_bytes(buffer[at : at + 4], "little")
        for at in range(LENGTHS, LENGTHS + 4 * used, 4)
    ]
    bit_lengths = [buffer[20 + symbol // 2] >> 4 * (symbol % 2) & 15 for symbol in range(8)]
    biases = start + sum(up(length, 8 * ALIGN) // 8 for length in lengths)
    if max(bit_lengths) > 7 or biases + 4 * channels > len(buffer):
        raise Hang(
            f"the coefficient buffer's streams of {lengths} bits and its biases go past its "
            f"{len(buffer)} bytes"
        )
    for core, length in enumerate(lengths):
        share = channels // used + (core < channels % used)
        reader = BitReader(buffer, 8 * start, 8 * start + length)
        try:
            codes = _bytes(reader, 2 + share * up(size, block), bit_lengths)
        except EOFError as error:
            raise Hang(f"a stream of coefficients overruns: {error}") from None
        if reader.position != reader.end:
            raise Hang(
                f"core {core} is given {length} bits of coefficients, its stream ends after "
                f"{length - (reader.end - reader.position)}"
            )
        if codes[0] + 256 * codes[1] != share:
            raise Hang(f"core {core} is given {codes[0] + 256 * codes[1]} kernels, it has {share}")
        stored, zero = iter(codes[2:]), v["coef_zero_point"]
        for group in _superblocks(core, cores, v):
            held: list[list[int]] = [[] for _ in group]
            for _ in range(ceil_div(size, block)):
                for kernel in held:
                    kernel += [(next(stored) + zero) % 256 for _ in range(block)]
            for channel, kernel in zip(group, held, strict=True):
                if not 0 <= channel < channels:
                    raise Hang(f"core {core} works on channel {channel} of {channels}")
                at = biases + 4 * channel
                yield (
                    channel,
                    int.from_bytes(buffer[at : at + 4], "little", signed=True),
                    kernel[:size],
                )
        start += up(length, 8 * ALIGN) // 8


def _superblocks(core: int, cores: int, v: Mapping[str, Any]) -> Iterator[list[int]]:
    """The channels of one core's kernels, superblock by superblock."""
    channels, full = v["out_image_z_size"], v["kernels_per_core"]
    used = min(channels, cores)
    whole = ceil_div(ceil_div(channels, used), full) - 1  # superblocks before the last
    rest = channels - used * full * whole
    shares = [rest // used + (each < rest % used) for each in range(used)]  # of the last, by core
    for superblock in range(whole + 1):
        last, first = superblock == whole, used * full * superblock
        count = full
        if last:
            count = shares[core]
        if v["depthwise"]:
            group = [first + used - core - 1 + k * cores for k in range(count)]
            # the last ones are shared by as many cores as there are
            odd = 0
            if used == cores:
                odd = channels % cores
            yield [k - (cores - odd) if odd and k >= channels - odd else k for k in group]
        else:
            if last:
                first += sum(shares[:core])
            else:
                first += core * full
            yield [*range(first, first + count)]


def _bytes(reader: BitReader, count: int, bit_lengths: list[int]) -> list[int]:
    """The first ``count`` bytes of a stream, which come in pairs: a step holds two 3-bit codes,
    what follows the codes of the step before, and the values whose codes came two steps before."""
    out: list[int] = []
    coded: list[list[int]] = []  # of a pair the 3-bit codes, then symbols and free bits
    symbols: list[list[tuple[int, int | None]]] = []
    for step in range(ceil_div(count, 2) + 2):
        coded.append([reader.read(3), reader.read(3)])
        if step >= 1:
            symbols.append([_symbol(code, reader) for code in coded[step - 1]])
        if step >= 2:
            out += [_value(symbol, free, reader, bit_lengths) for symbol, free in symbols[step - 2]]
    return out[:count]


def _symbol(code: int, reader: BitReader) -> tuple[int, int | None]:
    """(symbol, the value's lowest bit where the code holds it)."""
    if code % 4 < 2:
        return code % 4, code // 4
    if code != 2:
        return {7: 2, 3: 3, 6: 4}[code], None
    more = reader.read(2)
    if more % 2:
        return 5, more // 2
    return 6 if more else 7, None


def _value(symbol: int, free: int | None, reader: BitReader, bit_lengths: list[int]) -> int:
    """The byte: its sign in the lowest bit, then its magnitude without the leading one."""
    length = bit_lengths[symbol]
    bits = max(length, 1)
    if free is None:
        payload = reader.read(bits)
    else:
        payload = free + 2 * reader.read(bits - 1)
    magnitude = payload // 2 + (2 ** (length - 1) if length else 0)
    if payload % 2:
        return 255 - magnitude
    return magnitude
