"""The text that prints every GEM buffer of a run, as recorders of the kernel driver's calls write
it::

    gem open got 0 <id> <size>
    Gem <id>
    [<hex offset>] = <up to four hex words of 32 bits>

Other lines, before, between and behind buffers, say nothing of their bytes.  Plain or gzip.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from npulab.support.files import opened

OPEN = re.compile(rb"gem open got (-?\d{1,10}) (\d{1,10}) (\d{1,10})\s*")
HEAD = re.compile(rb"Gem (\d{1,10})\s*")
ROW = re.compile(rb"\[([0-9a-f]{8})\] = ([0-9a-f]{8}(?: [0-9a-f]{8}){0,3}) ?\r?\n")
MAGIC = b"\x1f\x8b"
MOST_BYTES = 2**25  # of all buffers together
MOST_LINES, MOST_LINE = 2**21, 2**10
MOST_OTHERS = 2**18  # lines that are no row of a buffer
MOST_GEMS = 2**10
ROW_BYTES = 16
LOOK = 2**16


@dataclass(frozen=True)
class Gem:
    """A buffer: its number, its bytes, and the line it begins in."""

    number: int
    data: bytes
    line: int

    def line_of(self, byte: int) -> int:
        """The line of the text that has a byte."""
        return self.line + 1 + byte // ROW_BYTES


def is_gems(head: bytes) -> bool:
    """Whether a file with these first bytes is such a text."""
    if head[:2] == MAGIC:
        try:
            head = zlib.decompressobj(zlib.MAX_WBITS + 16).decompress(head, LOOK)
        except zlib.error:
            return False
    return re.search(rb"^(gem open got -?\d+ \d+ \d+|Gem \d+)\s*$", head, re.MULTILINE) is not None


def read_gems(path: Path) -> list[Gem]:
    """The buffers in a file, in order.

    Raises ValueError with the line where one is cut short, out of order or larger than it was
    opened.
    """
    try:
        return [*_gems(path)]
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(
            f"{path}: got a gzip file that is broken ({error}), allowed is a whole one"
        ) from None


def _gems(path: Path) -> Iterator[Gem]:
    sizes: dict[int, int] = {}
    seen: set[int] = set()
    number, begin, total = -1, 0, 0
    data = bytearray()
    n = others = 0
    for n, line in _lines(path):
        row = None
        if number >= 0:
            row = ROW.fullmatch(line)
        if row:
            at = len(data) // ROW_BYTES * ROW_BYTES
            if int(row[1], 16) != at or len(data) != at:
                raise ValueError(
                    f"{path}, line {n}: Gem {number}: got offset {row[1].decode()}, allowed is "
                    f"{at:08x} "
                    "behind whole rows"
                )
            data += bytes.fromhex(row[2].decode())
            if len(data) > sizes[number]:
                raise ValueError(
                    f"{path}, line {n}: Gem {number}: got more than the {sizes[number]} "
                    "bytes it was opened with, at most these are allowed"
                )
            continue
        others += 1
        if others > MOST_OTHERS:
            raise ValueError(
                f"{path}, line {n}: got more than {MOST_OTHERS} lines that are no row "
                f"of a buffer, at most {MOST_OTHERS} are allowed"
            )
        if number >= 0:
            if line.startswith(b"[") and len(data) < sizes[number]:
                raise ValueError(
                    f"{path}, line {n}: Gem {number}: got {line[:60].strip().decode('latin-1')!r}, "
                    "allowed is [offset] = four words"
                )
            if line.strip() == b"" and len(data) < sizes[number]:
                continue
            yield _whole(path, n, number, begin, data, sizes)
            number, data = -1, bytearray()
        if opened := OPEN.fullmatch(line):
            sizes[int(opened[2])] = int(opened[3])
            if len(sizes) > MOST_GEMS:
                raise ValueError(
                    f"{path}, line {n}: got more than {MOST_GEMS} GEM buffers, at most "
                    f"{MOST_GEMS} are allowed"
                )
        elif head := HEAD.fullmatch(line):
            number, begin = int(head[1]), n
            if number in seen or number not in sizes:
                raise ValueError(
                    f"{path}, line {n}: got Gem {number} "
                    + (
                        "a second time, allowed is once"
                        if number in seen
                        else "without its size, allowed is one behind its 'gem open got'"
                    )
                )
            seen.add(number)
            total += sizes[number]
            if total > MOST_BYTES or sizes[number] % 4:
                raise ValueError(
                    f"{path}, line {n}: Gem {number}: got {sizes[number]} bytes, {total} with "
                    "those "
                    f"before, allowed are whole words and {MOST_BYTES} together"
                )
    if number >= 0:
        yield _whole(path, n + 1, number, begin, data, sizes)


def _whole(
    path: Path, line: int, number: int, begin: int, data: bytearray, sizes: dict[int, int]
) -> Gem:
    if len(data) != sizes[number]:
        raise ValueError(
            f"{path}, line {line}: Gem {number}: got {len(data)} bytes up to there, allowed are "
            "the "
            f"{sizes[number]} it was opened with"
        )
    return Gem(number, np.frombuffer(data, ">u4").astype("<u4").tobytes(), begin)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    with opened(path) as raw:
        packed = raw.read(2) == MAGIC
        raw.seek(0)
        stream = gzip.GzipFile(fileobj=raw) if packed else raw
        for n in range(1, MOST_LINES + 1):
            line = stream.readline(MOST_LINE)
            if not line:
                return
            if len(line) == MOST_LINE:
                raise ValueError(
                    f"{path}, line {n}: got more than {MOST_LINE - 1} characters, at most "
                    f"{MOST_LINE - 1} are allowed"
                )
            yield n, line if line.endswith(b"\n") else line + b"\n"
    raise ValueError(f"{path}: got more than {MOST_LINES} lines, at most {MOST_LINES} are allowed")
