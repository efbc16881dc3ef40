"""Changes of files that know a file's structure: bytes, texts, JSON, XML, tables, members of an
npz.

Each mutator takes a source of randomness and the bytes of a seed, and gives other bytes.
"""

from __future__ import annotations

import copy
import csv
import io
import json
import re
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

Mutator = Callable[[Random, bytes], bytes]
PIECES = Path(__file__).with_name("fuzz_pieces.json")


def pieces(name: str) -> list[str]:
    """The texts of a list of fuzz_pieces.json; (text, count) there is the text so many times."""
    found = []
    for piece in json.loads(PIECES.read_text(encoding="utf-8"))[name]:
        if isinstance(piece, list):
            text, count = piece
            piece = text * count
        found.append(piece)
    return found


SMALL = [
    0,
    1,
    2,
    3,
    7,
    8,
    15,
    16,
    31,
    32,
    63,
    64,
    127,
    128,
    255,
    256,
    1023,
    4095,
    4096,
    32767,
    32768,
    65535,
]
WORDS = [*SMALL, 65536, 2**20, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**32 - 4, 2**32 - 64]
LONG = [*SMALL, 2**31, 2**32, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64 - 64]
SIZES = {"<H": (2, SMALL), "<I": (4, WORDS), "<Q": (8, LONG)}
TOKENS = pieces("TOKENS")
VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    -1,
    2**31,
    2**32,
    2**63,
    2**64,
    10**30,
    1.5,
    -0.0,
    1e300,
    float("nan"),
    float("inf"),
    "",
    "x",
    "../x",
    "/etc/passwd",
    "a\0b",
    "\ud800",
    "\u00e9" * 300,
    [],
    {},
    [[]],
    [1, 2],
    {"a": 1},
    [None],
    {"": {}},
    "0x10",
    "0xzz",
    "-5",
    [1] * 20,
    "a\nb",
    "\x1b[2J",
    "n" * 5000,
]
NUMBER = re.compile(r"-?(?:0[xX][0-9a-fA-F]+|\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)")
WORD = re.compile(r"[A-Za-z_]\w*|\S")
TAG, ATTRIBUTE = re.compile(r"<[^>]+>"), re.compile(r' ?([\w:]+)="([^"]*)"')


def change_bytes(r: Random, data: bytes) -> bytes:
    """Bits, bytes, numbers of 16 to 64 bits, stretches cut, repeated, moved and filled."""
    b = bytearray(data)
    for _ in range(r.choice([1, 1, 1, 2, 3, 8])):
        size = len(b)
        if not size:
            b += r.randbytes(r.randrange(1, 20))
            continue
        at = r.randrange(size) if r.random() < 0.6 else min(size - 1, int(r.expovariate(1 / 40)))
        length = r.choice([1, 2, 4, 8, 16, 64, 256])
        match r.randrange(9):
            case 0:
                b[at] ^= 1 << r.randrange(8)
            case 1:
                b[at] = r.choice([0, 1, 0x7F, 0x80, 0xFF, r.randrange(256)])
            case 2:
                del b[at:]
            case 3:
                del b[at : at + length]
            case 4:
                b[at:at] = r.randbytes(length) if r.random() < 0.5 else b[at : at + length]
            case 5 | 6:
                form = r.choice([*SIZES])
                count, values = SIZES[form]
                at -= at % count
                if r.random() < 0.3 and at + count <= size:
                    (was,) = struct.unpack_from(form, b, at)
                    b[at : at + count] = struct.pack(
                        form,
                        (was + r.choice([-64, -8, -4, -1, 1, 4, 8, 64, size, -size]))
                        % 2 ** (8 * count),
                    )
                else:
                    b[at : at + count] = struct.pack(form, r.choice(values))
            case 7:
                other = r.randrange(size)
                b[at : at + length] = b[other : other + length]
            case 8:
                b[at : at + length] = bytes([r.choice([0, 255, r.randrange(256)])]) * min(
                    length, size - at
                )
    return bytes(b)


def change_head(r: Random, data: bytes, size: int = 6000) -> bytes:
    """As ``change_bytes``, mostly where a container has its headers."""
    return change_bytes(r, data[:size]) + data[size:] if r.random() < 0.7 else change_bytes(r, data)


def flip_bits(r: Random, data: bytes) -> bytes:
    """One or two bits."""
    b = bytearray(data)
    for _ in range(r.choice([1, 2])):
        b[r.randrange(len(b))] ^= 1 << r.randrange(8)
    return bytes(b)


def encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def changed_number(r: Random, found: str) -> str:
    """Another number, in the same writing where that is hexadecimal."""
    try:
        was = int(found, 0)
    except ValueError:
        return r.choice(TOKENS)
    if r.random() < 0.4:
        return r.choice(TOKENS)
    new = r.choice(
        [
            was + 1,
            was - 1,
            -was,
            was * 2,
            was << 16,
            was << 32,
            was ^ 1,
            was ^ 1 << r.randrange(32),
            r.choice(WORDS),
        ]
    )
    return hex(new) if found[:2].lower() == "0x" and r.random() < 0.8 else str(new)


def change_text(r: Random, data: bytes) -> bytes:
    """Numbers, words and lines of a text."""
    text = data.decode("utf-8", "surrogateescape")
    text = text.encode("utf-8", "replace").decode() if r.random() < 0.01 else text
    for _ in range(r.choice([1, 1, 1, 2, 3, 6])):
        text = text or r.choice(TOKENS)
        at = r.randrange(len(text))
        kind = r.randrange(11)
        if kind < 3:
            if found := NUMBER.search(text, at) or NUMBER.search(text):
                text = text[: found.start()] + changed_number(r, found[0]) + text[found.end() :]
        elif kind < 6:
            lines = text.split("\n")
            n, other = r.randrange(len(lines)), r.randrange(len(lines))
            match r.randrange(5):
                case 0:
                    del lines[n]
                case 1:
                    lines.insert(n, lines[other])
                case 2:
                    lines[n], lines[other] = lines[other], lines[n]
                case 3:
                    lines[n] = lines[n][: r.randrange(len(lines[n]) + 1)]
                case 4:
                    lines[n:n] = lines[n : n + r.choice([1, 5, 50])]
            text = "\n".join(lines)
        elif kind == 6 and (found := WORD.search(text, at)):
            text = text[: found.start()] + r.choice(TOKENS) + text[found.end() :]
        elif kind == 7:
            text = text[:at] + r.choice(TOKENS) + text[at:]
        elif kind == 8:
            text = text[:at] + text[at + r.choice([1, 2, 5, 30]) :]
        elif (
            kind == 9
            and (found := WORD.search(text, at))
            and (other_word := WORD.search(text, r.randrange(len(text))))
        ):
            text = text[: found.start()] + other_word[0] + text[found.end() :]
        elif kind == 10:
            return change_bytes(
                r, text.encode("utf-8", "surrogateescape" if "\ud800" not in text else "replace")
            )
    return text.encode("utf-8", "surrogateescape")


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths to the parts of a JSON value, at most 60 of each list."""
    if path:
        yield path
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value[:60])
        if isinstance(value, list)
        else ()
    )
    for key, inner in items:
        yield from places(inner, (*path, key))


def change_tree(r: Random, value: Any) -> Any:
    """Parts of a JSON value taken away, put elsewhere, of another kind or size."""
    value = copy.deepcopy(value)
    for _ in range(r.choice([1, 1, 1, 2, 3])):
        paths = [*places(value)]
        if not paths:
            return copy.deepcopy(r.choice(VALUES))
        *above, key = r.choice(paths)
        holder = value
        for one in above:
            holder = holder[one]
        kind = r.randrange(6)
        if kind < 2:
            holder[key] = copy.deepcopy(r.choice(VALUES))
        elif kind == 2:
            del holder[key]
        elif kind == 3:
            other = value
            for one in r.choice(paths):
                other = other[one]
            holder[key] = copy.deepcopy(other)
        elif kind == 4 and isinstance(holder, dict):
            names = [path[-1] for path in paths if isinstance(path[-1], str)]
            holder[r.choice([*names, "x", "", "\x1b[2J", "n" * 5000])] = copy.deepcopy(
                r.choice(VALUES)
            )
        elif kind == 4:
            holder.insert(key, copy.deepcopy(r.choice(VALUES)))
        else:
            holder[key] = _nudged(r, holder[key])
    return value


def _nudged(r: Random, was: Any) -> Any:
    if isinstance(was, bool) or was is None:
        return {}
    if isinstance(was, int):
        return r.choice([was + 1, was - 1, -was, was * 2**32, float(was), str(was)])
    if isinstance(was, float):
        return r.choice([-was, 0.0, 1e308, 5e-324, float("nan"), float("inf"), was * 1e30])
    if isinstance(was, str):
        return r.choice([was + "x", was[:-1], was * 100, was.upper(), was + "\n", was + "\0"])
    if isinstance(was, list):
        return r.choice([was[::-1], was * 2, was[:-1], [*was, None]])
    return {}


def as_json(r: Random, value: Any) -> bytes:
    """The text of a JSON value, seldom one without end or with other bytes."""
    chance = r.random()
    if chance < 0.02:
        return b"[" * r.choice([500, 5000, 100_000])
    if chance < 0.04:
        return b'{"a":' * r.choice([500, 50_000]) + b"1"
    data = encoded(json.dumps(value, ensure_ascii=r.random() < 0.5))
    return change_bytes(r, data) if chance < 0.14 else data


def change_json(r: Random, data: bytes) -> bytes:
    return (
        as_json(r, change_tree(r, json.loads(data))) if r.random() < 0.75 else change_text(r, data)
    )


def change_json_line(r: Random, data: bytes) -> bytes:
    """A line of a journal."""
    if r.random() < 0.4:
        return change_text(r, data)
    lines = data.splitlines()
    n = r.randrange(len(lines))
    lines[n] = as_json(r, change_tree(r, json.loads(lines[n])))
    return b"\n".join(lines) + b"\n"


def change_xml(r: Random, data: bytes) -> bytes:
    """Tags and attributes of XML, elements repeated, or its text."""
    if r.random() < 0.4:
        return change_text(r, data)
    text = data.decode("utf-8", "replace")
    for _ in range(r.choice([1, 1, 2, 4])):
        tags = [*TAG.finditer(text)]
        if not tags:
            break
        tag = r.choice(tags)
        inner, attributes = tag[0], [*ATTRIBUTE.finditer(tag[0])]
        kind = r.randrange(6)
        if kind == 0:
            inner = ""
        elif kind == 1:
            inner = r.choice(tags)[0] + inner
        elif kind in (2, 3) and attributes:
            one = r.choice(attributes)
            inner = (
                inner[: one.start(2)]
                + r.choice([*TOKENS, one[2] * 2, str(r.choice(WORDS))])
                + inner[one.end(2) :]
                if kind == 2
                else inner[: one.start()] + inner[one.end() :]
            )
        elif kind == 4:
            end = text.find(">", max(text.find("</", tag.end()), tag.end())) + 1
            text = text[: tag.start()] + text[tag.start() : end] * r.choice([2, 3, 20]) + text[end:]
            continue
        else:
            inner += r.choice(TOKENS)
        text = text[: tag.start()] + inner + text[tag.end() :]
    return encoded(text)


def change_table(r: Random, data: bytes) -> bytes:
    """Cells, rows and columns of a CSV file, or its text."""
    if r.random() < 0.4:
        return change_text(r, data)
    rows = [*csv.reader(io.StringIO(data.decode("utf-8", "replace"), newline=""))]
    for _ in range(r.choice([1, 1, 2, 3])):
        row = rows[r.randrange(len(rows))] if r.random() < 0.9 else rows[0]
        column = r.randrange(len(row) or 1)
        match r.randrange(6):
            case 0 | 1 | 2 if row:
                row[column] = (
                    changed_number(r, row[column])
                    if NUMBER.fullmatch(row[column])
                    else r.choice(TOKENS)
                )
            case 3 if row:
                row[column] = r.choice([one for other in rows for one in other] or [""])
            case 4:
                for one in rows:
                    del one[column : column + 1]
            case 5:
                rows.insert(r.randrange(len(rows)), r.choice(rows))
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator="\n").writerows(rows)
    return encoded(out.getvalue())


DTYPES = pieces("DTYPES")
SHAPES = pieces("SHAPES")
# a pickle that would make a file: arrays of objects are never read
PICKLE = b"cos\nsystem\n(S'touch npulab-was-here'\ntR."


def npy(head: str, data: bytes, version: tuple[int, int] = (1, 0)) -> bytes:
    """An npy file with any head."""
    raw = head.encode("latin-1", "replace")
    raw += b" " * (-(len(raw) + 11) % 64) + b"\n"
    return (
        b"\x93NUMPY"
        + bytes(version)
        + (
            struct.pack("<H", len(raw) % 2**16)
            if version == (1, 0)
            else struct.pack("<I", len(raw))
        )
        + raw
        + data
    )


def change_npz(r: Random, data: bytes) -> bytes:
    """Members of an npz: their bytes, heads, names; or the archive's bytes."""
    if r.random() < 0.35:
        return change_bytes(r, data)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    name = r.choice([*parts])
    chance = r.randrange(8)
    if chance < 3:
        parts[name] = (
            change_bytes(r, parts[name][:128]) + parts[name][128:]
            if r.random() < 0.5
            else change_bytes(r, parts[name])
        )
    elif chance < 6:
        head = f"{{'descr': {r.choice(DTYPES)}, 'fortran_order': {r.choice(['False', 'True', 'None'])}, 'shape': {r.choice(SHAPES)}, }}"
        parts[name] = npy(
            r.choice([head, head, head, "{" * 900, "(" * 3000, "1" * 9000]),
            r.choice([b"", bytes(48), bytes(range(96)), PICKLE]),
            r.choice([(1, 0), (1, 0), (2, 0), (3, 0), (9, 9)]),
        )
    elif chance == 6:
        del parts[name]
    else:
        parts[r.choice(["../../evil.npy", "extra.npy", *parts])] = parts[name]
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", r.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])) as archive:
        for part, content in parts.items():
            archive.writestr(part, content)
    return change_bytes(r, out.getvalue()) if r.random() < 0.1 else out.getvalue()


def words_of(*words: str, most: int = 10) -> Mutator:
    """Texts put together of words; the seed is not looked at."""

    def make(r: Random, _: bytes) -> bytes:
        return encoded(
            r.choice(["", " "]).join(r.choice(words) for _ in range(r.randrange(1, most)))
        )

    return make
