"""Reads images of memory: the two kinds of ``.dat`` files next to traces, plain or gzipped
(``.dat.gz``).

``.cfg`` traces have records: a list of ``{offset:0x20, size:4, payload:0x00 0x10 0x20 0x30}``, with
the bytes in ascending order of their address; memory that no record lists keeps its bytes.
``.txn`` traces have lines: bytes ``0xNN``, and lines of ``Key=Value`` and other text, which are
skipped.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray as Array

from npulab.support.files import opened

GZIPPED = ".gz"
CHUNK = 2**16  # bytes of text that are read at a time
MOST_TEXT = 2**28
MOST_NAME = 255  # most bytes of the name of a file, as file systems have it
# An image is kept as its runs alone if it reaches further than both MOST_BYTES and PER_TEXT times
# the bytes of its text.
MOST_BYTES, PER_TEXT = 2**25, 4

NUMBER = rb"(0x[0-9a-fA-F]{1,12}|[0-9]{1,12})"
BYTES = rb"(?:0x[0-9a-fA-F]{2}[ \t]*+)"
SEPARATORS = rb"(?:[\s,}]|\{(?!\s*+offset))*+"
RECORD = re.compile(
    SEPARATORS
    + rb"\{\s*+offset\s*+:\s*+"
    + NUMBER
    + rb"\s*+,\s*+size\s*+:\s*+"
    + NUMBER
    + rb"\s*+,\s*+payload\s*+:\s*+("
    + BYTES
    + rb"++)\}"
)
BETWEEN = re.compile(SEPARATORS)
HEAD = re.compile(rb"\{offset:0x([0-9a-fA-F]{1,12}), size:([0-9]{1,12}), payload:")
TOKEN = len("0x00 ")
# The value of a hexadecimal digit, by its letter; 255 for other letters.
HEX = np.full(256, 255, np.uint8)
HEX[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)
HEX[np.frombuffer(b"ABCDEF", np.uint8)] = np.arange(10, 16)
BLANKS = b" \t\r\n\v\f,{}"  # letters that may stand between records
LINE = re.compile(rb"[ \t]*+(" + BYTES + rb"++)\r?\n?")
STARTS = re.compile(rb"[ \t]*+0x")

# Offsets (n,) int64, sizes (n,) int64, and the bytes of all records uint8.
Records = tuple[Array, Array, Array]


@dataclass(frozen=True, eq=False)
class Image:
    """The bytes that a file puts into memory.

    ``runs`` ``(n, 2) int64`` has the (offset, size) of each stretch of bytes that the file states,
    in ascending order; between two stretches is a gap. ``data`` begins at the image's start and is
    zero in the gaps. If ``packed`` is True, ``data`` has the bytes of the stretches only, one
    stretch directly after the other.
    """

    name: str
    data: bytes
    runs: Array
    packed: bool = False

    @property
    def extent(self) -> int:
        """The number of bytes from the image's start to its last byte, gaps included."""
        if self.packed:
            return int(self.runs[-1].sum())
        return len(self.data)

    @property
    def whole(self) -> bool:
        """True if the file states every byte of ``data``."""
        return bool(len(self.runs) == 1 and self.runs[0, 1] == len(self.data))


def image_file(folder: Path, name: str) -> Path:
    """Return the file of that name, or of that name with ``.gz`` at its end.

    Raises ValueError for a name that is not plain or too long, and if neither file exists.
    """
    plain = name == Path(name).name and "\\" not in name and "\0" not in name
    if not plain or name in ("", ".", "..") or len((name + GZIPPED).encode()) > MOST_NAME:
        raise ValueError(
            f"got file {name!r}, allowed is the plain name of a file next to the trace, of at "
            f"most {MOST_NAME} bytes with {GZIPPED!r}"
        )
    for path in (folder / name, folder / (name + GZIPPED)):
        if path.is_file():
            return path
    raise ValueError(
        f"got file {name!r}, which is not next to the trace, nor is {name + GZIPPED!r}"
    )


def read_records(path: Path) -> Image:
    """Return the image in a file of records.

    Raises ValueError naming file and line for text that is not a record, a payload of another size
    than stated, and a list that does not end.
    """
    parts: list[Records] = []
    text, depth, last = 0, 0, 1
    for line, chunk in _chunks(path, b"}"):
        text += len(chunk)
        depth += chunk.count(b"{") - chunk.count(b"}")
        last = line + chunk.count(b"\n")
        parts.append(spelled_as_usual(chunk) or spelled_anyhow(chunk, f"{path}, line", line))
    if depth:
        raise ValueError(f"{path}, line {last}: ends inside a list, allowed is a }} for every {{")
    if not any(starts.size for starts, _, _ in parts):
        raise ValueError(
            f"{path}, line {last}: got no record, allowed is at least one "
            "{offset:0x0, size:4, payload:0x00 0x01 0x02 0x03}"
        )
    return _placed(path, parts, text)


def spelled_as_usual(chunk: bytes) -> Records | None:
    """Return the records of a text if each is spelled ``{offset:0x20, size:4, payload:0x00 0x01
    0x02 0x03}``, else None; the bytes of all payloads are read at once."""
    heads, codes = HEAD.findall(chunk), np.frombuffer(chunk, np.uint8)
    begins = np.flatnonzero(codes == ord("l")) + len("load:")  # once in each head
    if not heads or len(begins) != len(heads):
        return None
    starts, counts = zip(*heads, strict=True)
    sizes = np.array(list(map(int, counts)), np.int64)
    total = int(sizes.sum())
    if sizes.min() < 1 or TOKEN * total > len(chunk):
        return None
    ends = np.cumsum(sizes)
    at = np.repeat(begins - TOKEN * (ends - sizes), sizes) + TOKEN * np.arange(total)
    if at[-1] + TOKEN > len(chunk):
        return None
    behind = np.full(total, ord(" "), np.uint8)
    behind[ends - 1] = ord("}")
    high, low = HEX[codes[at + 2]], HEX[codes[at + 3]]
    # Only separators lie between the records if no other character is left.
    spelled = (
        len("offset:0xsize:payload:") * len(heads)
        + len(b"".join(starts + counts))
        + len("0x00") * total
    )
    if (
        np.any((high | low) > 15)
        or np.any(codes[at] != ord("0"))
        or np.any(codes[at + 1] != ord("x"))
        or np.any(codes[at + 4] != behind)
        or len(chunk.translate(None, BLANKS)) != spelled
    ):
        return None
    offsets = bytes.fromhex(b"".join([start.rjust(16, b"0") for start in starts]).decode())
    return np.frombuffer(offsets, ">i8").astype(np.int64), sizes, high * 16 + low


def spelled_anyhow(chunk: bytes, where: str = "line", line: int = 1) -> Records:
    """Return the records of a text with blanks and line ends in any allowed place; ``line`` is the
    number of its first line.

    Raises ValueError naming the line of text that is not a record.
    """
    starts, sizes, payloads, at = [], [], [], 0
    while match := RECORD.match(chunk, at):
        start, size, payload = match.groups()
        count = payload.count(b"x")
        stated = _number(size)
        if count != stated:
            raise ValueError(
                f"{where} {line + chunk.count(10, 0, match.start(1))}: got {count} bytes of "
                f"payload, allowed are the {stated} that its size says"
            )
        starts.append(_number(start))
        sizes.append(count)
        payloads.append(payload)
        at = match.end()
    end = BETWEEN.match(chunk, at)
    if end is None or end.end() != len(chunk):
        if end is not None:
            at = end.end()
        raise ValueError(
            f"{where} {line + chunk.count(10, 0, at)}: got {_shown(chunk, at)}, allowed is "
            "{offset:0x0, size:4, payload:0x00 0x01 0x02 0x03}"
        )
    data = bytes.fromhex(b" ".join(payloads).replace(b"0x", b" ").decode())
    return np.array(starts, np.int64), np.array(sizes, np.int64), np.frombuffer(data, np.uint8)


def _number(text: bytes) -> int:
    if text[:2] == b"0x":
        return int(text, 16)
    return int(text)


def read_lines(path: Path, size: int) -> Image:
    """Return the image in a file of lines: its first ``size`` bytes, 1 or more.

    Raises ValueError naming file and line if a line begins as bytes but has other text, and if
    there are fewer bytes.
    """
    parts, got = [], 0
    for number, chunk in _chunks(path, b"\n"):
        for line, text in enumerate(chunk.splitlines(keepends=True), number):
            if match := LINE.fullmatch(text):
                parts.append(match[1])
                got += match[1].count(b"x")
            elif STARTS.match(text):
                raise ValueError(
                    f"{path}, line {line}: got {_shown(text, 0)}, allowed are bytes 0x00 to 0xff, "
                    "separated by blanks"
                )
        if got >= size:
            break
    if got < size:
        raise ValueError(f"{path}: got {got} bytes, allowed are at least {size}")
    data = bytes.fromhex(b"".join(parts).replace(b"0x", b" ").decode())[:size]
    return Image(_stem(path), data, np.array([[0, len(data)]], np.int64))


def _chunks(path: Path, end: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (number of the first line, text) of parts of a file that end with ``end``; the last
    part ends with the file."""
    line, rest, total = 1, b"", 0
    with opened(path) as raw:
        file: Any = raw
        if path.suffix == GZIPPED:
            file = gzip.GzipFile(fileobj=raw)
        while True:
            try:
                part = file.read(CHUNK)
            except (OSError, EOFError, zlib.error) as error:
                raise ValueError(f"{path}: cannot be unpacked: {error}") from None
            total += len(part)
            if total > MOST_TEXT:
                raise ValueError(
                    f"{path}: got more than {MOST_TEXT} bytes of text, allowed are up to that"
                )
            text = rest + part
            if part:
                cut = text.rfind(end) + 1
            else:
                cut = len(text)
            if part and len(text) - cut > 4 * CHUNK:
                raise ValueError(
                    f"{path}, line {line}: got {len(text) - cut} bytes without a {end.decode()!r}, "
                    f"allowed are up to {4 * CHUNK}"
                )
            if cut:
                yield line, text[:cut]
                line += text.count(b"\n", 0, cut)
            rest = text[cut:]
            if not part:
                return


def _placed(path: Path, parts: Sequence[Records], text: int) -> Image:
    """Return the image of records at their offsets; a later record covers an earlier one."""
    runs = np.concatenate([merged(starts, sizes) for starts, sizes, _ in parts])
    end, most = int(runs.sum(axis=-1).max()), max(MOST_BYTES, PER_TEXT * text)
    runs = merged(*runs.T)
    packed = end > most
    # the offset of each run in packed data, less its offset in memory
    moved = np.cumsum(runs[:, 1]) - runs[:, 1] - runs[:, 0]
    if packed:
        end = int(runs[:, 1].sum())
    data = np.zeros(end, np.uint8)
    for begins, counts, payload in parts:
        if packed:
            begins = begins + moved[np.searchsorted(runs[:, 0], begins, "right") - 1]
        before = np.cumsum(counts) - counts
        places = np.repeat(begins - before, counts) + np.arange(len(payload))
        data[places] = payload
    return Image(_stem(path), data.tobytes(), runs, packed)


def merged(starts: Array, sizes: Array) -> Array:
    """Return the runs ``(n, 2)``, each (start, size), that cover the same places as the given
    runs, in ascending order. Runs that overlap or touch are joined.

    >>> merged(np.array([8, 0, 4]), np.array([4, 4, 2])).tolist()
    [[0, 6], [8, 4]]
    """
    if not len(starts):
        return np.zeros((0, 2), np.int64)
    order = np.argsort(starts, kind="stable")
    begins, ends = starts[order], np.maximum.accumulate((starts + sizes)[order])
    first = np.flatnonzero(np.concatenate(([True], begins[1:] > ends[:-1])))
    last = np.concatenate((first[1:] - 1, [len(begins) - 1]))
    return np.stack([begins[first], ends[last] - begins[first]], axis=-1)


def _stem(path: Path) -> str:
    return Path(path.name.removesuffix(GZIPPED)).stem


def _shown(text: bytes, at: int) -> str:
    return repr(text[at : at + 60].decode("latin-1").split("\n")[0].strip())
