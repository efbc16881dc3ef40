"""Memory images: the two kinds of ``.dat`` files that lie beside traces, plain or gzipped
(``.dat.gz``).

Records, of ``.cfg`` traces: a list of ``{offset:0x20, size:4, payload:0x00 0x10 0x20 0x30}``, bytes
in ascending order of their address; what no record lists keeps what was there.  Lines, of ``.txn``
traces: lines of ``0xNN`` between lines of ``Key=Value`` and other text, which say nothing here.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

GZIPPED = ".gz"
CHUNK = 2 ** 16  # bytes of text that are read at a time
MOST_TEXT = 2 ** 28
# An image may reach so far, or so many times the bytes of its text: what is far past its records is
# a wrong offset.
MOST_BYTES, PER_TEXT = 2 ** 25, 4

NUMBER = rb"(0x[0-9a-fA-F]{1,12}|[0-9]{1,12})"
BYTES = rb"(?:0x[0-9a-fA-F]{2}[ \t]*+)"
SEPARATORS = rb"(?:[\s,}]|\{(?!\s*+offset))*+"
RECORD = re.compile(SEPARATORS + rb"\{\s*+offset\s*+:\s*+" + NUMBER + rb"\s*+,\s*+size\s*+:\s*+" + NUMBER
                    + rb"\s*+,\s*+payload\s*+:\s*+(" + BYTES + rb"++)\}")
BETWEEN = re.compile(SEPARATORS)
HEAD, SIZE, PAYLOAD = b"{offset:0x", b", size:", b", payload:0x"
DIGITS = 12
HEX = np.full(256, 255, np.uint8)  # the value of a digit
HEX[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)
HEX[np.frombuffer(b"ABCDEF", np.uint8)] = np.arange(10, 16)
SAID = np.ones(256, bool)  # what is no separator
SAID[np.frombuffer(b" \t\r\n\v\f,{}", np.uint8)] = False
LINE = re.compile(rb"[ \t]*+(" + BYTES + rb"++)\r?\n?")
STARTS = re.compile(rb"[ \t]*+0x")

Records = tuple[np.ndarray, np.ndarray, np.ndarray]  # offsets and sizes (n,) int64, the bytes of all uint8


@dataclass(frozen=True, eq=False)
class Image:
    """What a file puts into memory: ``data`` from its start, zero where no record says, and
    ``runs`` ``(n, 2) int64`` (offset, size) of the bytes that it says, in ascending order and
    apart."""

    name: str
    data: bytes
    runs: np.ndarray

    @property
    def whole(self) -> bool:
        """Whether it says every byte of ``data``."""
        return bool(len(self.runs) == 1 and self.runs[0, 1] == len(self.data))


def image_file(folder: Path, name: str) -> Path:
    """The file of that name, or the one with ``.gz`` behind it.

    Raises ValueError for what is no plain name, and where there is neither.
    """
    if not name or name != Path(name).name or "\\" in name or "\0" in name or name in (".", ".."):
        raise ValueError(f"got file {name!r}, allowed is the plain name of a file beside the trace")
    for path in (folder / name, folder / (name + GZIPPED)):
        if path.is_file():
            return path
    raise ValueError(f"got file {name!r}, which is not beside the trace, nor is {name + GZIPPED!r}")


def read_records(path: Path) -> Image:
    """The image in a file of records.

    Raises ValueError naming file and line for what is no record, a payload of another size than it
    says, an offset far past the others, and a list that does not end.
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
        raise ValueError(f"{path}, line {last}: got no record, allowed is at least one "
                         "{offset:0x0, size:4, payload:0x00 0x01 0x02 0x03}")
    return _placed(path, parts, text)


def spelled_as_usual(chunk: bytes) -> Records | None:
    """The records of a text where each is spelled ``{offset:0x20, size:4, payload:0x00 0x01 0x02
    0x03}``, else None.

    All of them at once: every ``x`` is one of a number ``0x``, the first of a record that of its
    offset.
    """
    codes = np.frombuffer(chunk, np.uint8)
    at = np.flatnonzero(codes == ord("x"))
    if not at.size or at[-1] + 3 >= len(chunk) or at[0] < len(HEAD) - 1:
        return None
    first = np.flatnonzero(codes[at - 3] == ord("t"))  # behind "offset:0"
    if not first.size or first[0]:
        return None
    heads = at[first]
    starts, behind = _number(codes, heads + 1, 16)
    if starts is None or not _spells(codes, heads - len(HEAD) + 1, HEAD) or not _spells(codes, behind, SIZE):
        return None
    sizes, ends = _number(codes, behind + len(SIZE), 10)
    last = np.append(first[1:], len(at)) - 1
    if sizes is None or not np.array_equal(last - first, sizes) or not _spells(codes, ends, PAYLOAD) \
            or not np.array_equal(at[first + 1], ends + len(PAYLOAD) - 1) or np.any(codes[at[last] + 3] != ord("}")):
        return None
    tokens = np.ones(len(at), bool)
    tokens[first] = False
    at = at[tokens]
    apart = np.ones(len(at), bool)  # from the number before
    apart[first - np.arange(len(first))] = False
    if np.any(np.diff(at)[apart[1:]] != len("0x00 ")) or np.any(codes[at[apart] - 2] != ord(" ")) \
            or np.any(codes[at - 1] != ord("0")):
        return None
    high, low = HEX[codes[at + 1]], HEX[codes[at + 2]]
    if np.any((high | low) > 15):
        return None
    # what is between the records are separators, where no other character is left
    rest = len(heads) * len("offset:0xsize:payload:") + int((behind - heads - 1 + ends - behind - len(SIZE)).sum())
    if np.count_nonzero(SAID[codes]) != rest + len("0x00") * len(at):
        return None
    return starts, sizes, high * 16 + low


def _number(codes: np.ndarray, at: np.ndarray, base: int) -> tuple[np.ndarray | None, np.ndarray]:
    """Numbers ``(n,) int64`` whose digits begin at these places, and the places behind them; None
    where one has none, or too many."""
    value, going, at = np.zeros(len(at), np.int64), np.ones(len(at), bool), at.copy()
    for digit in range(DIGITS + 1):
        code = HEX[codes[np.minimum(at, len(codes) - 1)]]
        going = going & (code < base)
        if (not digit and not going.all()) or digit == DIGITS:
            return (None if not digit or going.any() else value), at
        if not going.any():
            break
        value = np.where(going, value * base + code, value)
        at += going
    return value, at


def _spells(codes: np.ndarray, at: np.ndarray, word: bytes) -> bool:
    """Whether a word stands at all these places."""
    return bool(at.min() >= 0 and at.max() + len(word) <= len(codes)) and \
        all(bool(np.all(codes[at + i] == letter)) for i, letter in enumerate(word))


def spelled_anyhow(chunk: bytes, where: str = "line", line: int = 1) -> Records:
    """The records of a text with blanks and line ends wherever they may be; ``line`` is the number
    of its first.

    Raises ValueError naming the line of what is no record.
    """
    starts, sizes, payloads, at = [], [], [], 0
    while match := RECORD.match(chunk, at):
        start, size, payload = match.groups()
        count, said = payload.count(b"x"), int(size, 16 if size[:2] == b"0x" else 10)
        if count != said:
            raise ValueError(f"{where} {line + chunk.count(10, 0, match.start(1))}: got {count} bytes of payload, "
                             f"allowed are the {said} that its size says")
        starts.append(int(start, 16 if start[:2] == b"0x" else 10))
        sizes.append(count)
        payloads.append(payload)
        at = match.end()
    end = BETWEEN.match(chunk, at)
    if end is None or end.end() != len(chunk):
        at = at if end is None else end.end()
        raise ValueError(f"{where} {line + chunk.count(10, 0, at)}: got {_shown(chunk, at)}, allowed is "
                         "{offset:0x0, size:4, payload:0x00 0x01 0x02 0x03}")
    data = bytes.fromhex(b" ".join(payloads).replace(b"0x", b" ").decode())
    return np.array(starts, np.int64), np.array(sizes, np.int64), np.frombuffer(data, np.uint8)


def read_lines(path: Path, size: int | None = None) -> Image:
    """The image in a file of lines: its first ``size`` bytes, by default all of them.

    Raises ValueError naming file and line where a line begins as bytes and is none, and where there
    are fewer.
    """
    parts, got = [], 0
    for number, chunk in _chunks(path, b"\n"):
        for line, text in enumerate(chunk.splitlines(keepends=True), number):
            if match := LINE.fullmatch(text):
                parts.append(match[1])
                got += match[1].count(b"x")
            elif STARTS.match(text):
                raise ValueError(f"{path}, line {line}: got {_shown(text, 0)}, allowed are bytes 0x00 to 0xff, parted "
                                 "by blanks")
        if size is not None and got >= size:
            break
    if not got or (size is not None and got < size):
        raise ValueError(f"{path}: got {got} bytes, allowed are at least {1 if size is None else size}")
    data = bytes.fromhex(b"".join(parts).replace(b"0x", b" ").decode())[:size]
    return Image(_stem(path), data, np.array([[0, len(data)]], np.int64))


def _chunks(path: Path, end: bytes) -> Iterator[tuple[int, bytes]]:
    """(number of its first line, text) of parts of a file that end behind ``end``, the last one
    where the file does."""
    line, rest, total = 1, b"", 0
    with _opened(path) as file:
        while True:
            try:
                part = file.read(CHUNK)
            except (OSError, EOFError, zlib.error) as error:
                raise ValueError(f"{path}: cannot be unpacked: {error}") from None
            total += len(part)
            if total > MOST_TEXT:
                raise ValueError(f"{path}: got more than {MOST_TEXT} bytes of text, allowed are so many")
            text = rest + part
            cut = text.rfind(end) + 1 if part else len(text)
            if part and len(text) - cut > 4 * CHUNK:
                raise ValueError(f"{path}, line {line}: got {len(text) - cut} bytes without a {end.decode()!r}, "
                                 f"allowed are up to {4 * CHUNK}")
            if cut:
                yield line, text[:cut]
                line += text.count(b"\n", 0, cut)
            rest = text[cut:]
            if not part:
                return


def _opened(path: Path) -> BinaryIO:
    return gzip.open(path) if path.suffix == GZIPPED else path.open("rb")  # type: ignore[return-value]


def _placed(path: Path, parts: Sequence[Records], text: int) -> Image:
    """Records put where they belong; a later one covers an earlier one."""
    runs = np.concatenate([merged(starts, sizes) for starts, sizes, _ in parts])
    end, most = int(runs.sum(axis=-1).max()), max(MOST_BYTES, PER_TEXT * text)
    if end > most:
        raise ValueError(f"{path}: got a record up to offset {end:#x}, allowed is up to {most:#x}")
    data = np.zeros(end, np.uint8)
    for begins, counts, payload in parts:
        data[np.repeat(begins - (np.cumsum(counts) - counts), counts) + np.arange(len(payload))] = payload
    return Image(_stem(path), data.tobytes(), merged(*runs.T))


def merged(starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Runs ``(n, 2)`` (start, size) that hold the same places, in order and apart.

    >>> merged(np.array([8, 0, 4]), np.array([4, 4, 2])).tolist()
    [[0, 6], [8, 4]]
    """
    if not len(starts):
        return np.zeros((0, 2), np.int64)
    order = np.argsort(starts, kind="stable")
    begins, ends = starts[order], np.maximum.accumulate((starts + sizes)[order])
    new = np.concatenate(([True], begins[1:] > ends[:-1]))
    first = np.flatnonzero(new)
    last = np.concatenate((first[1:] - 1, [len(begins) - 1]))
    return np.stack([begins[first], ends[last] - begins[first]], axis=-1)


def _stem(path: Path) -> str:
    return Path(path.name.removesuffix(GZIPPED)).stem


def _shown(text: bytes, at: int) -> str:
    return repr(text[at:at + 60].decode("latin-1").split("\n")[0].strip())

