"""Streams of the Versatile Tensor Accelerator, made at random and run once more step by step.

Nothing here is shared with the target ``vta`` of ``tests/outsider``: bits are cut by the numbers
of its one page, memory is a dict of bytes, a step a loop over Python's integers, and instructions
run in the order of the stream, so tokens have no effect.
"""

from __future__ import annotations

import random
from collections import defaultdict

ENTRY = {0: 4, 1: 256, 2: 16, 3: 64, 4: 16, 5: 16}  # bytes outside, by memory_type
PLACES = {"uops": 0x10000, "acc": 0x40000, "wgt": 0x100000, "inp": 0x200000, "output": 0x300000}
MICRO_OPS, ENTRIES, TILES = 8, 24, 6  # how many of each random streams have
Row = dict[int, list[int]]  # by entry, its lanes


def bits(value: int, low: int, high: int) -> int:
    return value >> low & 2 ** (high - low + 1) - 1


def signed(value: int, width: int) -> int:
    low = value & 2**width - 1
    return low - 2**width * (low >> width - 1)


def entry_of(memory: dict[int, int], kind: int, index: int) -> list[int]:
    size = ENTRY[kind]
    data = bytes(memory[size * index + n] for n in range(size))
    if kind == 0:
        return [int.from_bytes(data, "little")]
    width = 4 if kind == 3 else 1
    return [
        int.from_bytes(data[n : n + width], "little", signed=True) for n in range(0, size, width)
    ]


def run(stream: bytes, memory: dict[int, int]) -> dict[int, int]:
    """The bytes that a stream stores, by address."""
    chip: dict[int, Row] = {kind: defaultdict(lambda: [0] * 16) for kind in (0, 1, 2, 3)}
    stored: dict[int, int] = {}
    for at in range(0, len(stream), 16):
        word = int.from_bytes(stream[at : at + 16], "little")
        opcode = bits(word, 0, 2)
        if opcode == 0:
            load(word, memory, chip)
        elif opcode == 1:
            stored |= store(word, chip)
        elif opcode in (2, 4):
            for step in steps(word, chip[0]):
                one_step(word, opcode, chip, *step)
    return stored


def load(word: int, memory: dict[int, int], chip: dict[int, Row]) -> None:
    kind, place = bits(word, 7, 9), bits(word, 10, 25)
    base, stride = bits(word, 26, 57), bits(word, 96, 111)
    height, width = bits(word, 64, 79), bits(word, 80, 95)
    top, bottom, left, right = (bits(word, n, n + 3) for n in (112, 116, 120, 124))
    lanes = {0: 1, 1: 256}.get(kind, 16)
    for y in range(-top, height + bottom):
        for x in range(-left, width + right):
            inside = 0 <= y < height and 0 <= x < width
            entry = entry_of(memory, kind, base + y * stride + x) if inside else [0] * lanes
            chip[3 if kind == 5 else kind][place] = entry
            place += 1


def store(word: int, chip: dict[int, Row]) -> dict[int, int]:
    place, base, stride = bits(word, 10, 25), bits(word, 26, 57), bits(word, 96, 111)
    stored = {}
    for y in range(bits(word, 64, 79)):
        for x in range(bits(word, 80, 95)):
            for lane, value in enumerate(chip[3][place]):
                stored[16 * (base + y * stride + x) + lane] = value & 255
            place += 1
    return stored


def steps(word: int, uops: Row) -> list[tuple[int, int, int]]:
    """(dst, src, wgt) of each step."""
    factors = [(bits(word, n, n + 10), bits(word, n + 11, n + 21)) for n in (64, 86)]
    factors.append((bits(word, 108, 117), bits(word, 118, 127)))
    out = []
    for i in range(bits(word, 35, 48)):
        for j in range(bits(word, 49, 62)):
            for u in range(bits(word, 8, 20), bits(word, 21, 34)):
                (micro,) = uops[u]
                parts = (bits(micro, 0, 10), bits(micro, 11, 21), bits(micro, 22, 31))
                dst, src, wgt = (
                    part + i * outer + j * inner
                    for part, (outer, inner) in zip(parts, factors, strict=True)
                )
                out.append((dst, src, wgt))
    return out


def one_step(word: int, opcode: int, chip: dict[int, Row], dst: int, src: int, wgt: int) -> None:
    old = chip[3][dst]
    if opcode == 2 and bits(word, 7, 7):
        new = [0] * 16
    elif opcode == 2:
        inputs, tile = chip[2][src], chip[1][wgt]
        new = []
        for lane, value in enumerate(old):
            row = tile[16 * lane : 16 * lane + 16]
            new.append(value + sum(a * b for a, b in zip(row, inputs, strict=True)))
    else:
        second = list(chip[3][src])
        if bits(word, 111, 111):
            second = [signed(bits(word, 112, 127), 16)] * 16
        new = []
        for a, b in zip(old, second, strict=True):
            new.append(operation(bits(word, 108, 110), a, b))
    chip[3][dst] = [signed(value, 32) for value in new]


def operation(code: int, a: int, b: int) -> int:
    if code == 3 and b < 0:
        return a << min(-b, 32)
    return [min(a, b), max(a, b), a + b, a >> max(0, min(b, 32)), a * b][code]


def packed(fields: dict[tuple[int, int], int]) -> bytes:
    """An instruction, by the lowest bits and the widths of its fields."""
    word = 0
    for (low, width), value in fields.items():
        word |= (value & 2**width - 1) << low
    return word.to_bytes(16, "little")


def moved(opcode: int, kind: int, name: str, shape: tuple[int, int], **more: int) -> bytes:
    height, width = shape
    fields = {(0, 3): opcode, (7, 3): kind, (26, 32): PLACES[name] // ENTRY[kind]}
    fields |= {(64, 16): height, (80, 16): width, (96, 16): more.get("stride", width)}
    fields |= {(3, 4): more.get("tokens", 0), (10, 16): more.get("place", 0)}
    fields |= {(112, 16): more.get("pads", 0)}
    return packed(fields)


def random_stream(draw: random.Random) -> tuple[bytes, dict[str, bytes]]:
    """A stream with GEMMs and ALUs whose steps use entries again and again, and its buffers."""
    micro = []
    for _ in range(MICRO_OPS):
        dst, src, wgt = draw.randrange(6), draw.randrange(20), draw.randrange(2)
        micro.append(dst | src << 11 | wgt << 22)
    buffers = {
        "uops": b"".join(word.to_bytes(4, "little") for word in micro),
        "acc": draw.randbytes(64 * ENTRIES),
        "wgt": draw.randbytes(256 * TILES),
        "inp": draw.randbytes(16 * ENTRIES),
    }
    stream = [
        moved(0, 0, "uops", (1, MICRO_OPS)),
        moved(0, 2, "inp", (3, 4), stride=6, pads=0x2101),
    ]
    stream.append(moved(0, 1, "wgt", (1, TILES), tokens=8))
    stream.append(moved(0, 3, "acc", (1, ENTRIES), tokens=1))
    for _ in range(6):
        if not draw.randrange(4):
            stream.append(
                moved(0, 5, "inp", (2, 2), stride=3, place=draw.randrange(16), pads=0x0110)
            )
        stream.append(random_steps(draw))
    stream[-1] = packed({(0, 128): int.from_bytes(stream[-1], "little") | 1 << 6})
    stream.append(moved(1, 4, "output", (3, 8), stride=8, tokens=0b0101))
    stream.append(packed({(0, 3): 3, (4, 1): 1}))
    return b"".join(stream), buffers


def random_steps(draw: random.Random) -> bytes:
    opcode = draw.choice((2, 4))
    first = draw.randrange(MICRO_OPS)
    fields = {(0, 3): opcode, (8, 13): first, (21, 14): draw.randint(first, MICRO_OPS)}
    fields |= {(35, 14): draw.randint(1, 3), (49, 14): draw.randint(1, 3)}
    fields |= {(low, 11): draw.randrange(5) for low in (64, 75)}
    fields |= {(low, 11): draw.randrange(2) for low in (86, 97)}
    if opcode == 2:
        fields |= {(7, 1): not draw.randrange(6), (108, 10): draw.randrange(2), (118, 10): 1}
    else:
        fields |= {(108, 3): draw.randrange(5), (111, 1): draw.randrange(2)}
        fields |= {(112, 16): draw.choice((draw.randrange(2**16), draw.randint(-40, 40)))}
    return packed(fields)
