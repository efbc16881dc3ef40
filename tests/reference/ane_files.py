"""Compiled files of the ANE read and laid out anew, plainly: what the package's reader is held
against.

Nothing of the package is used here: ``struct`` and the facts only.
"""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SEGMENT, PLACES, THREAD, SYMBOLS, TEXT = 0x19, (0x06, 0x40), 0x04, 0x02, 0x08
PAGE = 0x4000
STABS_TENSOR, STABS_TYPE = 0x20, 0x80
AXES = re.compile(r"(?:ar1|r1|a?r\d+);(-?\d+);(-?\d+);(?:\d+)=s(\d+)([a-z])")
TYPE = re.compile(r"(.+?):t(\d+)=(.*)", re.S)
OPTION = re.compile(r"(?:^|\s)-t\s+(\S+)")


def u32(data: bytes | bytearray, at: int) -> int:
    return int(struct.unpack_from("<I", data, at)[0])


def u64(data: bytes | bytearray, at: int) -> int:
    return int(struct.unpack_from("<Q", data, at)[0])


def text_at(data: bytes | bytearray, at: int) -> str:
    return bytes(data[at : data.index(b"\0", at)]).decode()


@dataclass
class Plain:
    """What a file says, in the plainest form."""

    sections: list[dict] = field(default_factory=list)
    bars: dict[int, int] = field(default_factory=dict)
    first: int = 0
    words: int = 0
    count: int = 0
    tensors: list[dict] = field(default_factory=list)
    symbols: list[tuple[str, int, int, int]] = field(default_factory=list)
    identity: str = ""
    tasks: list[dict] = field(default_factory=list)

    def section(self, segment: str, name: str) -> dict:
        return next(s for s in self.sections if (s["segment"], s["name"]) == (segment, name))


def described(symbols: Iterable[Sequence[Any]]) -> list[dict[str, Any]]:
    """Tensors as the type strings of symbols (name, type, ...) have them: name, extent and byte
    stride of each axis, type.
    """
    out = []
    for name, kind, *_ in symbols:
        parts = TYPE.fullmatch(name)
        if kind != STABS_TENSOR or not parts:
            continue
        axes = {axis: (int(last), int(step)) for _, last, step, axis in AXES.findall(parts[3])}
        tail = parts[3].rsplit(":", 1)[-1]
        if axes and tail.isdigit():
            out.append({"name": parts[1], "axes": axes, "type": int(tail)})
    return out


def types(symbols: Iterable[Sequence[Any]]) -> dict[int, str]:
    """Names of the element types by number, from symbols (name, type, ...)."""
    found = (TYPE.fullmatch(name) for name, kind, *_ in symbols if kind == STABS_TYPE)
    return {int(one[2]): one[1] for one in found if one}


def asked_for(identity: str) -> str:
    """The chip that the compiler was asked for, as ``h13``; "" where an identity does not say."""
    return next(iter(OPTION.findall(identity)), "")


def commands(data: bytes) -> list[bytes]:
    at, found = 32, []
    for _ in range(u32(data, 16)):
        found.append(data[at : at + u32(data, at + 4)])
        at += u32(data, at + 4)
    return found


def section_headers(command: bytes) -> list[int]:
    return [72 + 80 * i for i in range(u32(command, 64))]


def plain(data: bytes) -> Plain:
    """A file as its bytes say it."""
    out = Plain()
    places = {}
    for command in commands(data):
        kind = u32(command, 0)
        if kind == SEGMENT:
            for at in section_headers(command):
                name, segment = (command[a : a + 16].rstrip(b"\0").decode() for a in (at, at + 16))
                offset, size, many = (
                    u32(command, at + 48),
                    u64(command, at + 40),
                    u32(command, at + 60),
                )
                where = u32(command, at + 56)
                out.sections.append(
                    {
                        "segment": segment,
                        "name": name,
                        "address": u64(command, at + 32),
                        "size": size,
                        "offset": offset,
                        "data": data[offset : offset + size] if offset else b"",
                        "relocations": [
                            (u32(data, where + 8 * i), u32(data, where + 8 * i + 4) & 0xFFFFFF)
                            for i in range(many)
                        ],
                    }
                )
        elif kind in PLACES:
            places[text_at(command, u32(command, 8))] = u32(command, 16)
        elif kind == THREAD and u32(command, 8) == 3:
            n, c, h, w, d = struct.unpack_from("<5I", command, 0x28)
            strides = struct.unpack_from("<5Q", command, 0x50)
            out.tensors.append(
                {
                    "name": text_at(command, u32(command, 0x20)),
                    "symbol": text_at(command, u32(command, 0x7C)),
                    "kind": {1: "input", 2: "output"}[u32(command, 0x14)],
                    "element": u32(command, 0x24),
                    "shape": (n, c, h, w, d),
                    "strides": dict(
                        zip(("batch", "channel", "row", "column", "depth"), strides, strict=True)
                    ),
                    "interleave": u32(command, 0x78),
                    "span": u32(command, 0x80),
                }
            )
        elif kind == THREAD:
            out.bars = {i: u64(command, 16 + 8 * i) for i in range(256) if u64(command, 16 + 8 * i)}
            out.first, out.words, out.count = (
                u64(command, 0x810),
                u32(command, 0x818) + 1,
                u32(command, 0x81C),
            )
        elif kind == SYMBOLS:
            at, many, strings = u32(command, 8), u32(command, 12), u32(command, 16)
            for i in range(many):
                name, kind, section, _, value = struct.unpack_from("<IBBHQ", data, at + 16 * i)
                out.symbols.append((text_at(data, strings + name), kind, section, value))
        elif kind == TEXT:
            out.identity = command[8:].rstrip(b"\0").decode()
    for tensor in out.tensors:
        tensor["address"] = places.get(tensor.pop("symbol"))
    code = out.section("__TEXT", "__text")
    out.tasks = tasks(code["data"], out.first - code["address"], out.words)
    return out


def tasks(text: bytes, offset: int, words: int) -> list[dict]:
    """The linked list: offset, header words, and each register's value by address."""
    found = []
    while True:
        word = struct.unpack_from(f"<{words}I", text, offset)
        header = 11 if word[6] & 0x01000000 else 10
        at, registers = header, {}
        while at < words:
            count, address = (word[at] >> 26) + 1, word[at] & 0x3FFFFFF
            registers |= {address + 4 * i: word[at + 1 + i] for i in range(count)}
            at += 1 + count
        found.append(
            {"offset": offset, "words": words, "header": word[:header], "registers": registers}
        )
        offset, words = word[7], (word[1] >> 16 & 0x1FF) + 1
        if not offset:
            return found


def selectors(word: int, places: Sequence[int], bars: Mapping[int, int]) -> int:
    """A header word whose five-bit numbers of bases, valid where the bit behind them says so,
    are renumbered.
    """
    for lsb in places:
        if word >> lsb + 5 & 1:
            number = word >> lsb & 31
            word ^= (number ^ bars[number]) * 2**lsb
    return word


def moved_tasks(
    text: bytes, first: int, words: int, start: int, pitch: int, bars: Mapping[int, int]
) -> bytes:
    """The list of tasks at other offsets, with other numbers of bases; zeros between."""
    out = bytearray()
    old = tasks(text, first, words)
    for i, task in enumerate(old):
        at = start + i * pitch
        body = bytearray(text[task["offset"] : task["offset"] + 4 * task["words"]])
        struct.pack_into("<I", body, 28, at + pitch if i + 1 < len(old) else 0)
        struct.pack_into("<I", body, 32, selectors(u32(body, 32), (0, 6, 12, 18), bars))
        struct.pack_into("<I", body, 36, selectors(u32(body, 36), (0, 6, 12, 18), bars))
        out += bytes(at - len(out)) + body
    return bytes(out)


def rebuilt(
    data: bytes,
    *,
    base: int | None = None,
    order: Callable[[list[int]], list[int]] = lambda places: places,
    commands_in: Callable[[list[bytes]], list[bytes]] = lambda found: found,
    bars: Mapping[int, int] | None = None,
    start: int = 0,
    pitch: int = 0,
    names: Mapping[str, str] | None = None,
    gap: int = 0,
) -> bytes:
    """A file that says the same in another way.

    ``base`` is the first address; ``order`` of the segments (but the guard) in memory and in the
    commands; ``commands_in`` the order of all commands at the end; ``bars`` renumbers the base
    addresses, in the tasks too; tasks lie from ``start`` on, ``pitch`` bytes apart; ``names`` of
    tensors change; ``gap`` more bytes before the segments' bytes in the file.
    """
    old, names = plain(data), names or {}
    bars = {i: i for i in range(256)} | dict(bars or {})
    found = [bytearray(c) for c in commands(data)]
    segments = [i for i, c in enumerate(found) if u32(c, 0) == SEGMENT and u32(c, 64)]
    rest = [i for i in range(len(found)) if i not in segments]
    code, const = old.section("__TEXT", "__text"), old.section("__TEXT", "__const")
    text = moved_tasks(
        code["data"], old.first - code["address"], old.words, start, pitch or 0x300, bars
    )
    const_at = (len(text) + 63) // 64 * 64

    # addresses: segments one behind the other in the order that was asked for
    wanted = order(segments)
    place: list[tuple[int, int, int]] = []  # old start, old end, new start
    address = base if base is not None else min(u64(found[i], 24) for i in segments)
    numbers: dict[int, int] = {}
    old_ordinal = {}
    count = 0
    for i in segments:
        for at in section_headers(found[i]):
            count += 1
            old_ordinal[i, at] = count
    count = 0
    offset = code["offset"] + gap
    for i in wanted:
        command = found[i]
        start_old, size = u64(command, 24), u64(command, 32)
        is_text = command[8:24].startswith(b"__TEXT")
        for at in section_headers(command):
            count += 1
            numbers[old_ordinal[i, at]] = count
            section_old, section_size = u64(command, at + 32), u64(command, at + 40)
            new = address + section_old - start_old
            if is_text:
                name = command[at : at + 16].rstrip(b"\0")
                new = address + (0 if name == b"__text" else const_at)
                if name == b"__text":
                    struct.pack_into("<Q", command, at + 40, len(text))
                struct.pack_into("<I", command, at + 48, offset + new - address)
            place.append((section_old, section_old + section_size, new))
            struct.pack_into("<Q", command, at + 32, new)
        if is_text:
            size = max(size, (const_at + const["size"] + PAGE - 1) // PAGE * PAGE)
            struct.pack_into("<QQQQ", command, 24, address, size, offset, size)
        else:
            struct.pack_into("<Q", command, 24, address)
        address += size

    def there(value: int) -> int:
        return next((new + value - low for low, high, new in place if low <= value < high), value)

    # names and addresses in the other commands
    for i in rest:
        command = found[i]
        kind = u32(command, 0)
        if kind in PLACES:
            struct.pack_into("<I", command, 16, there(u32(command, 16)))
            found[i] = renamed(command, 8, [8], names)
        elif kind == THREAD and u32(command, 8) == 3:
            found[i] = renamed(command, 12, [0x18, 0x20, 0x7C], names)
        elif kind == THREAD:
            table = {bars[number]: there(value) for number, value in old.bars.items()}
            struct.pack_into("<256Q", command, 16, *(table.get(n, 0) for n in range(256)))
            struct.pack_into("<Q", command, 0x810, there(code["address"]) + start)
    found = commands_in([found[i] for i in rest if u32(found[i], 0) == SEGMENT]
                        + [found[i] for i in wanted]
                        + [found[i] for i in rest if u32(found[i], 0) != SEGMENT])  # fmt: skip
    edge = 32 + sum(map(len, found))

    # symbols, then relocations
    entries, strings = bytearray(), bytearray(b"\0")
    for name, kind, section, value in old.symbols:
        head, colon, tail = name.partition(":")
        entry = (len(strings), kind, numbers.get(section, section), 0, there(value))
        entries += struct.pack("<IBBHQ", *entry)
        strings += (names.get(head, head) + colon + tail).encode() + b"\0"
    after = bytearray(entries + strings)
    for command in found:
        if u32(command, 0) == SYMBOLS:
            struct.pack_into(
                "<4I", command, 8, edge, len(old.symbols), edge + len(entries), len(strings)
            )
        elif u32(command, 0) == SEGMENT:
            for at in section_headers(command):
                where, many = u32(command, at + 56), u32(command, at + 60)
                if many:
                    after += bytes(-(edge + len(after)) % 8)
                    struct.pack_into("<I", command, at + 56, edge + len(after))
                    for k in range(many):
                        relocated, info = struct.unpack_from("<II", data, where + 8 * k)
                        ordinal = numbers[info & 0xFFFFFF]
                        after += struct.pack("<II", relocated + start, info & 0xFF000000 | ordinal)
    head = bytearray(data[:32])
    struct.pack_into("<II", head, 16, len(found), edge - 32)
    out = bytes(head) + b"".join(found) + bytes(after)
    assert len(out) <= offset, "the tables reach into the segments: ask for a gap"
    out += bytes(offset - len(out)) + text + bytes(const_at - len(text)) + const["data"]
    return out + bytes(-len(out) % PAGE)


def renamed(
    command: bytearray, name_end: int, at: Sequence[int], names: Mapping[str, str]
) -> bytearray:
    """A command with other names at its end."""
    texts = [text_at(command, u32(command, a)) for a in at]
    begin = min(u32(command, a) for a in at)
    out = bytearray(command[:begin])
    for a, text in zip(at, texts, strict=True):
        struct.pack_into("<I", out, a, len(out))
        out += names.get(text, text).encode() + b"\0"
    out += bytes(-len(out) % 8)
    struct.pack_into("<I", out, 4, len(out))
    if u32(out, 0) == THREAD:
        struct.pack_into("<I", out, name_end, (len(out) - 16) // 4)
    return out


def damaged(data: bytes, rng: random.Random) -> tuple[str, bytes]:
    """A file with one to three things wrong in it, and what was done."""
    out, done = bytearray(data), []
    starts, at = [], 32
    for command in commands(data):
        starts.append(at)
        at += len(command)
    table_end = at
    text = plain(data).section("__TEXT", "__text")
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        what = rng.randrange(9)
        huge = rng.choice((2**32 - 1, 2**31, 2**32 - 8, 2**24, PAGE, 7, 1, 0, 0xFFFFFFF0))
        if what == 0:
            end = rng.choice(
                (
                    rng.randrange(len(out) + 1),
                    rng.randrange(table_end),
                    text["offset"] + rng.randrange(0x300),
                )
            )
            out, doing = out[:end], f"cut at {end}"
        elif what == 1 and len(out) > 36:
            where = rng.randrange(0, min(table_end, len(out) - 4), 4)
            struct.pack_into("<I", out, where, huge)
            doing = f"u32 at {where} = {huge:#x}"
        elif what == 2 and len(out) > table_end:
            where = rng.choice(starts) + rng.choice((0, 4, 8, 12, 24, 32, 40, 48, 64))
            struct.pack_into(
                "<Q",
                out,
                min(where, len(out) - 8),
                rng.choice((2**32, 2**63, 2**64 - 1, 2**40 + 5)),
            )
            doing = f"u64 at {where}"
        elif what == 3 and len(out) > text["offset"] + 40:
            struct.pack_into(
                "<I", out, text["offset"] + 28, rng.choice((4, 0x274, 0x100, text["size"], huge, 0))
            )
            doing = "next pointer"
        elif what == 4 and len(out) > text["offset"] + 40:
            where = text["offset"] + 4 * rng.randrange(10)
            struct.pack_into("<I", out, where, rng.getrandbits(32))
            doing = f"task header at {where}"
        elif what == 5 and len(out) > text["offset"] + 700:
            where = text["offset"] + 4 * rng.randrange(10, 157)
            struct.pack_into("<I", out, where, rng.getrandbits(32))
            doing = f"task word at {where}"
        elif what == 6:
            begin = rng.randrange(max(1, len(out)))
            del out[begin : begin + rng.choice((1, 4, 8, 100))]
            doing = f"bytes gone at {begin}"
        elif what == 7:
            begin = rng.randrange(max(1, len(out)))
            out[begin:begin] = rng.randbytes(rng.choice((1, 4, 8, 100)))
            doing = f"bytes more at {begin}"
        else:
            for _ in range(rng.randrange(1, 30)):
                if out:
                    out[
                        rng.randrange(len(out) if rng.random() < 0.3 else min(len(out), table_end))
                    ] = rng.randrange(256)
            doing = "bytes"
        done.append(doing)
    return ", ".join(done), bytes(out)
