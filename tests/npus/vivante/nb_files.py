"""Network binary graphs (.nb) written by hand, from the layout alone: whole files, and broken ones.

Nothing here uses npulab's tables of the format, so that a wrong table is seen.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from random import Random

NONE = 0xFFFFFFFF
NN, TP, SHADER, STREAM, START_UP = 2, 3, 1, 6, 0xFFFF
Section = tuple[int, bytes, int]  # number, bytes, bytes of an item
# What starts an NN job, as the files of the compiler have it.
START = (0x08010E4C, 0x02422014, 0x080169A6, 0xF00, 0x08010428, 0, 0x08010429, 0)
BEGIN = (0x0801028A, 0x11, 0x08010E13, 2)


def whole(sections: Sequence[Section], pid: int = 0x88, version: int = 0x00020005) -> bytes:
    """A file of sections, one behind the other, with its CRC."""
    at = 0x3C + 44 * len(sections)
    heads, body = b"", b""
    for number, data, item in sections:
        body += bytes(-(at + len(body)) % 64 if number == 24 else 0)
        place = at + len(body)
        heads += struct.pack("<IQQQIQI", number, place, len(data), 0, 0, item, 0)
        body += data
    part = struct.pack("<III", 0x3C, 44, len(sections))
    size = at + len(body)
    return summed(
        struct.pack("<4sIIIIIIIIIII", b"VPMN", version, pid, 0, size, 0, 0x30, 12, 1, 0, 0, 0)
        + part
        + heads
        + body
    )


def summed(data: bytes) -> bytes:
    """A file with the right CRC in its header."""
    zeroed = data[:12] + bytes(4) + data[16:]
    return data[:12] + struct.pack("<I", zlib.crc32(zeroed)) + data[16:]


def name(text: str) -> bytes:
    return text.encode().ljust(64, b"\0")


def tensor(sizes: Sequence[int], scale: float, zero_point: int, text: str, code: int = 2) -> bytes:
    padded = [*sizes, *[1] * (6 - len(sizes))]
    return struct.pack("<I6IIIIfi", len(sizes), *padded, code, 0, 2, scale, zero_point) + name(text)


def words(values: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


def table(parts: Sequence[bytes]) -> tuple[bytes, bytes]:
    """A table of places and the section that it is of, its entries at multiples of 64 bytes."""
    places, data = [], bytearray()
    for part in parts:
        places += [len(data), len(part)]
        data += part + bytes(-len(part) % 64)
    return words(places), bytes(data)


def network(
    kinds: Sequence[int],
    nn: Callable[[int], Sequence[int]] = lambda number: [number] * 34 + [0, 0x03FFFFFF] + [0] * 12,
    coefficients: Callable[[int], bytes] = lambda number: bytes([number % 251]) * 640,
    cores: int = 4,
    pid: int = 0x88,
    more: Sequence[Section] = (),
) -> bytes:
    """A file of one operation a layer: NN, TP, shader or stream-processor operations in order."""
    layers, instructions = b"", {NN: b"", TP: b"", SHADER: b""}
    operations = [struct.pack("<8I", START_UP, 0xFFFF, NONE, 0, 0, 0, 0, NONE)]
    patches: list[bytes] = []
    parts: list[bytes] = []
    streams = [words(BEGIN)]
    counts = dict.fromkeys(kinds, 0)
    for number, kind in enumerate(kinds):
        layers += struct.pack("<64sIIi", name(f"Layer{kind}"), kind, 1, number)
        first = len(patches)
        if kind == NN:
            for where, byte, source, index, adds, form in (
                (0, 0x14, 0, 0, 0, 1),
                (1, 0x18, 1, 0, 0, 0),
                (1, 0x54, 1, 0, 0x100, 1),
                (1, 0x1C, 2, 0, 0, 0),
                (1, 0x14, 5, len(parts), 0, 1),
            ):
                patches.append(struct.pack("<7I", where, byte, source, index, adds, form, 0))
            instructions[NN] += words(nn(number))
            parts.append(coefficients(number))
        elif kind == TP:
            for core in range(cores):
                instructions[TP] += words([number * 10 + core + 1] * 31 + [0] * 17)
                patches.append(struct.pack("<7I", 1, 192 * core + 0x1C, 1, 0, 0, 0, 0))
        elif kind == SHADER:
            instructions[SHADER] += words([number, 7])
        record = kind, counts[kind], number, len(streams), first, len(patches) - first, 0, number
        operations.append(struct.pack("<8I", *record))
        streams.append(words([*START[:-1], number]))
        counts[kind] += 1
    places, data = table(parts)
    state_places, states = table(streams)
    found = [
        (35, name("made by hand") + bytes(156), 220),
        (38, words([0xB00]), 4),
        (1, tensor([8, 8, 4, 1], 0.5, 128, "in"), 112),
        (2, tensor([8, 8, 8, 1], 0.25, 100, "out"), 112),
        (3, layers, 76),
        (4, b"".join(operations), 32),
        (7, instructions[NN], 192),
        (8, instructions[TP], 192 * cores),
        (9, instructions[SHADER], 8),
        (10, b"".join(patches), 28),
        (23, places, 8),
        (27, state_places, 8),
        (24, data, 1),
        (21, states, 1),
        *more,
    ]
    sums = []
    for number in (7, 24, 21):
        sums += [number, zlib.crc32(next(data for one, data, _ in found if one == number))]
    return whole([*[part for part in found if part[1]], (40, words(sums), 8)], pid)


def broken(r: Random, data: bytes) -> bytes:
    """A file with some bytes changed, cut off, or with another number in a header or table."""
    out = bytearray(data)
    for _ in range(r.choice((1, 1, 2, 5))):
        r.choice((flip, flip, cut, head, entry, entry, record, moved))(r, out)
        if len(out) < 64:
            break
    return bytes(out)


VALUES = (0, 1, 2, 3, 7, 0x2C, 0x30, 0x3C, 0xC0, 0xFFFF, 2**20, 2**31 - 1, 2**31, 2**32 - 4, NONE)


def flip(r: Random, data: bytearray) -> None:
    for _ in range(r.choice((1, 8, 64))):
        at = r.randrange(len(data))
        data[at] = r.choice((data[at] ^ 2 ** r.randrange(8), r.randrange(256), 0, 255))


def cut(r: Random, data: bytearray) -> None:
    del data[r.randrange(len(data)) :]
    if len(data) >= 20 and r.random() < 0.7:
        struct.pack_into("<I", data, 16, len(data))


def head(r: Random, data: bytearray) -> None:
    put(r, data, 4 * r.randrange(15))


def entry(r: Random, data: bytearray) -> None:
    """A word of a section's header."""
    put(r, data, 0x3C + 44 * r.randrange(16) + 4 * r.randrange(11))


def record(r: Random, data: bytearray) -> None:
    put(r, data, 4 * r.randrange(max(len(data) // 4, 1)))


def moved(r: Random, data: bytearray) -> None:
    """Two section headers change places, or one is written over another."""
    a, b = (0x3C + 44 * r.randrange(16) for _ in range(2))
    first, second = data[a : a + 44], data[b : b + 44]
    if len(first) == len(second) == 44:
        data[b : b + 44] = first
        if r.random() < 0.5:
            data[a : a + 44] = second


def put(r: Random, data: bytearray, at: int) -> None:
    if at + 4 <= len(data):
        (old,) = struct.unpack_from("<I", data, at)
        near = (old + 1, old - 1, old + 4, old * 2, old + len(data), len(data), len(data) - 1)
        struct.pack_into("<I", data, at, r.choice((*VALUES, *near)) % 2**32)
