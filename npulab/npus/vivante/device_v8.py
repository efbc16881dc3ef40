"""Reads a V8 coefficient buffer for the simulated NN unit: Huffman codes, weight by weight."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from npulab.layout.bitstream import BitReader
from npulab.npus.kit import Hang, ceil_div, up
from npulab.npus.vivante.facts import Values

ALIGN, SYMBOLS, LENGTHS, BLOCK = 64, 20, 28, 9
# The first byte of a buffer is PLAIN (version 1 without other modes). The table of zero runs begins
# at byte TABLE. Key of TABLE_BITS: the table's number of entries. Value: the bits that pick one of
# the entries from the third on.
PLAIN = 0x10
TABLE, TABLE_BITS = 2, {0: 0, 4: 1, 6: 2, 10: 3, 18: 4}
# With zero runs, these bit lengths stand for a run of entry 0 or 1, a byte as it is, another run.
FIRST_RUNS, AS_IT_IS, OTHER_RUNS = 0, 7, 8
BIAS_BYTES = 4
SYMBOL_OF_CODE = {7: 2, 3: 3, 6: 4}  # the symbol by 3-bit code, of codes without escape or free bit


@dataclass(frozen=True)
class V8Buffer:
    """The parts of a coefficient buffer: the number of ``bits`` in each core's stream, the bit
    length of each symbol, the table of zero runs, and the bytes where streams and biases begin."""

    data: bytes
    bits: list[int]
    bit_lengths: list[int]
    runs: bytes
    streams: int
    biases: int

    def bias(self, channel: int) -> int:
        at = self.biases + BIAS_BYTES * channel
        return int.from_bytes(self.data[at : at + BIAS_BYTES], "little", signed=True)


def kernels(buffer: bytes, v: Values, cores: int) -> Iterator[tuple[int, int, list[int]]]:
    """Yield (channel, stored bias, weights in the order plane, row, column) of every kernel.

    ``v`` are the job's values. Raises Hang for a stream that does not hold the number of kernels
    and weights that ``v`` states.
    """
    channels = v["out_image_z_size"]
    size, block = v["kernel_xy_size"] * v["kernel_y_size"], BLOCK
    if v["depthwise"]:
        block = up(size, BLOCK)
    else:
        size *= v["kernel_z_size"]
    parts = _parts(buffer, channels, cores)
    used, start = len(parts.bits), parts.streams
    for core, bits in enumerate(parts.bits):
        share = channels // used + (core < channels % used)
        reader = BitReader(buffer, 8 * start, 8 * start + bits)
        stored = iter(_stream(reader, core, share, up(size, block), parts))
        start += up(bits, 8 * ALIGN) // 8
        for group in _superblocks(core, cores, v):
            held: list[list[int]] = [[] for _ in group]
            for _ in range(ceil_div(size, block)):
                for kernel in held:
                    for _ in range(block):
                        kernel.append((next(stored) + v["coef_zero_point"]) % 256)
            for channel, kernel in zip(group, held, strict=True):
                if not 0 <= channel < channels:
                    raise Hang(
                        f"core {core} works on channel {channel}, but channels are 0 or more and "
                        f"less than {channels}"
                    )
                yield channel, parts.bias(channel), kernel[:size]


def _parts(buffer: bytes, channels: int, cores: int) -> V8Buffer:
    """Return the parts of a buffer that its header describes. Raises Hang for an unknown header,
    for parts that reach past the buffer, and for a symbol's bit length that is too large."""
    start = up(LENGTHS + 4 * cores, ALIGN)
    if len(buffer) < start or buffer[0] != PLAIN or buffer[1] not in TABLE_BITS:
        raise Hang(
            f"the coefficient buffer of {len(buffer)} bytes begins with "
            f"{buffer[:2].hex() or 'nothing'} (hexadecimal), the simulated unit knows a whole "
            f"header of {PLAIN:02x}, then {', '.join(map(str, TABLE_BITS))} as size of the table "
            "of zero runs"
        )
    bits, biases = [], start
    for core in range(min(channels, cores)):
        at = LENGTHS + 4 * core
        bits.append(int.from_bytes(buffer[at : at + 4], "little"))
        biases += up(bits[-1], 8 * ALIGN) // 8
    bit_lengths = []
    for byte in buffer[SYMBOLS : SYMBOLS + 4]:
        bit_lengths += [byte & 15, byte >> 4]
    runs = buffer[TABLE : TABLE + buffer[1]]
    most = AS_IT_IS
    if runs:
        most = OTHER_RUNS
    if max(bit_lengths) > most or biases + BIAS_BYTES * channels > len(buffer):
        raise Hang(
            f"the coefficient buffer's streams of {bits} bits and its biases go past its "
            f"{len(buffer)} bytes, or a symbol has more than 7 bits (8 with zero runs)"
        )
    return V8Buffer(buffer, bits, bit_lengths, runs, start, biases)


def _stream(
    reader: BitReader, core: int, share: int, kernel_bytes: int, parts: V8Buffer
) -> list[int]:
    """Return the decoded bytes of a core's stream, which holds ``share`` kernels of
    ``kernel_bytes`` bytes. Raises Hang if the stream states another number of kernels, ends too
    early or has bits after its last byte.
    """
    given = reader.end - reader.position
    try:
        codes = _bytes(reader, 2 + share * kernel_bytes, parts)
    except EOFError as error:
        raise Hang(f"a core reads past the end of its coefficient stream: {error}") from None
    if reader.position != reader.end:
        raise Hang(
            f"core {core} is given a stream of {given} bits, its kernels end after "
            f"{given - (reader.end - reader.position)} bits"
        )
    count = codes[0] + 256 * codes[1]
    if count != share:
        raise Hang(f"the stream of core {core} states {count} kernels, the job gives it {share}")
    return codes[2:]


def _superblocks(core: int, cores: int, v: Values) -> Iterator[list[int]]:
    """Yield the channels of one core's kernels, superblock by superblock."""
    channels = v["out_image_z_size"]
    full = v["kernels_per_core"]
    used = min(channels, cores)
    whole = ceil_div(ceil_div(channels, used), full) - 1  # all superblocks except the last are full
    rest = channels - used * full * whole
    # The number of kernels in the last superblock, by core.
    shares = [rest // used + (each < rest % used) for each in range(used)]
    # Depthwise channels come in groups of one channel for each core. If the last group has fewer
    # channels, the first cores take one each.
    odd = 0
    if v["depthwise"] and used == cores:
        odd = channels % cores
    for superblock in range(whole + 1):
        first, count, before = used * full * superblock, full, core * full
        if superblock == whole:
            count, before = shares[core], sum(shares[:core])
        if not v["depthwise"]:
            yield [*range(first + before, first + before + count)]
            continue
        group = []
        for k in range(count):
            channel = first + used - core - 1 + k * cores
            if odd and channel >= channels - odd:
                channel -= cores - odd
            group.append(channel)
        yield group


def _bytes(reader: BitReader, count: int, parts: V8Buffer) -> list[int]:
    """Return the first ``count`` bytes of a stream.

    Symbols come in pairs, one for each step. A step holds the two 3-bit codes of its pair, then the
    escapes of the pair one step before, then the payloads of the pair two steps before.
    """
    out: list[int] = []
    coded: list[list[int]] = []  # by pair: its two 3-bit codes
    symbols: list[list[tuple[int, int | None]]] = []  # by pair: two (symbol, free bit)
    while len(out) < count:
        coded.append([reader.read(3), reader.read(3)])
        if len(coded) >= 2:
            symbols.append([_symbol(code, reader) for code in coded[-2]])
        if len(coded) >= 3:
            for symbol, free in symbols[-2]:
                out += _values(symbol, free, reader, parts)
    return out[:count]


def _symbol(code: int, reader: BitReader) -> tuple[int, int | None]:
    """Return the symbol of a 3-bit code, and the lowest bit of the symbol's payload; None if the
    code does not hold that bit."""
    if code % 4 < 2:
        return code % 4, code // 4
    if code != 2:
        return SYMBOL_OF_CODE[code], None
    escape = reader.read(2)
    if escape % 2:
        return 5, escape // 2
    if escape:
        return 6, None
    return 7, None


def _values(symbol: int, free: int | None, reader: BitReader, parts: V8Buffer) -> list[int]:
    """Return the bytes that a symbol and its payload stand for.

    Bit 0 of a payload is the sign of a byte, the bits above it are its magnitude without the
    leading 1. In a buffer with zero runs, bit length 7 means a byte as it is, 0 and 8 mean a run of
    zeros."""
    length, runs = parts.bit_lengths[symbol], parts.runs
    bits = max(length, 1)
    if runs and length == AS_IT_IS:
        bits = 8
    elif runs and length == OTHER_RUNS:
        bits = TABLE_BITS[len(runs)]
    if free is None:
        payload = reader.read(bits)
    else:
        payload = free + 2 * reader.read(bits - 1)
    if runs and length == AS_IT_IS:
        return [payload]
    if runs and length == FIRST_RUNS:
        return [0] * (runs[payload] + 1)
    if runs and length == OTHER_RUNS:
        return [0] * (runs[2 + payload] + 1)
    magnitude = payload // 2
    if length:
        magnitude += 2 ** (length - 1)
    if payload % 2 == 0:
        return [magnitude]
    if runs:
        return [-magnitude % 256]
    return [255 - magnitude]
