"""Reading the text that prints every GEM buffer (driver memory) of a run.

Recorders of the kernel driver's calls write it in this form::

    gem open got 0 <id> <size>
    Gem <id>
    [<hex offset>] = <up to four hex words of 32 bits>

Lines of any other form have no bytes and may stand outside of buffers. The text is plain or gzip.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from npulab.support.files import opened

OPEN = re.compile(rb"gem open got (-?\d{1,10}) (\d{1,10}) (\d{1,10})\s*")
HEAD = re.compile(rb"Gem (\d{1,10})\s*")
ROW = re.compile(rb"\[([0-9a-f]{8})\] = ([0-9a-f]{8}(?: [0-9a-f]{8}){0,3}) ?\r?\n")
MAGIC = b"\x1f\x8b"
# All buffers together have at most this many bytes.
MOST_BYTES = 2**25
MOST_LINES, MOST_LINE = 2**21, 2**10
# A text has at most this many lines that are not rows of a buffer.
MOST_OTHERS = 2**18
MOST_GEMS = 2**10
ROW_BYTES = 16
LOOK = 2**16


@dataclass(frozen=True)
class Gem:
    """A buffer: its number, its bytes, and the number of the text's line in which it begins."""

    number: int
    data: bytes
    line: int

    def line_of(self, byte: int) -> int:
        """Return the number of the text's line that has byte ``byte`` of the buffer."""
        return self.line + 1 + byte // ROW_BYTES


def is_gems(head: bytes) -> bool:
    """Return true if a file with these first bytes is a text of GEM buffers, plain or gzip."""
    if head[:2] == MAGIC:
        try:
            head = zlib.decompressobj(zlib.MAX_WBITS + 16).decompress(head, LOOK)
        except zlib.error:
            return False
    return re.search(rb"^(gem open got -?\d+ \d+ \d+|Gem \d+)\s*$", head, re.MULTILINE) is not None


def read_gems(path: Path) -> list[Gem]:
    """Return the buffers in a text, in its order.

    Raises ValueError, with the line, if a buffer's rows are not in order, or if it has fewer or
    more bytes than the line ``gem open got`` states.
    """
    try:
        return _Gems(path).read()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(
            f"{path}: got a gzip file that is broken ({error}), allowed is a whole one"
        ) from None


class _Gems:
    """The state of reading a text.

    It has the sizes of opened buffers, the finished buffers, and the buffer whose rows are being
    read; ``number`` is -1 if no buffer is being read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sizes: dict[int, int] = {}
        self.done: list[Gem] = []
        self.seen: set[int] = set()
        self.total = 0
        self.number = -1
        self.begin = 0
        self.data = bytearray()

    def read(self) -> list[Gem]:
        line_number = other_lines = 0
        for line_number, line in _lines(self.path):
            row = None
            if self.number >= 0:
                row = ROW.fullmatch(line)
            if row:
                self.row(line_number, int(row[1], 16), bytes.fromhex(row[2].decode()))
                continue
            other_lines += 1
            if other_lines > MOST_OTHERS:
                raise ValueError(
                    f"{self.path}, line {line_number}: got more than {MOST_OTHERS} lines that are "
                    f"not a row of a buffer, at most {MOST_OTHERS} are allowed"
                )
            if self.number >= 0 and not self.ends(line_number, line):
                continue
            self.head(line_number, line)
        if self.number >= 0:
            self.finish(line_number + 1)
        return self.done

    def row(self, line_number: int, offset: int, row: bytes) -> None:
        """Add the words of a row to the buffer that is being read; ``offset`` is the row's."""
        at = len(self.data) // ROW_BYTES * ROW_BYTES
        where = f"{self.path}, line {line_number}: Gem {self.number}"
        if offset != at or len(self.data) != at:
            raise ValueError(
                f"{where}: got offset {offset:08x}, allowed is {at:08x} after whole rows"
            )
        self.data += row
        size = self.sizes[self.number]
        if len(self.data) > size:
            raise ValueError(
                f"{where}: got more bytes than it was opened with, allowed are up to {size}"
            )

    def ends(self, line_number: int, line: bytes) -> bool:
        """Finish the buffer that is being read, because a line is not one of its rows.

        Return False without finishing for a blank line before the buffer has all its bytes."""
        if len(self.data) < self.sizes[self.number]:
            if line.startswith(b"["):
                raise ValueError(
                    f"{self.path}, line {line_number}: Gem {self.number}: got "
                    f"{line[:60].strip().decode('latin-1')!r}, allowed is [offset] = four words"
                )
            if not line.strip():
                return False
        self.finish(line_number)
        return True

    def finish(self, line_number: int) -> None:
        size = self.sizes[self.number]
        if len(self.data) != size:
            raise ValueError(
                f"{self.path}, line {line_number}: Gem {self.number}: got {len(self.data)} bytes "
                f"up to there, allowed are the {size} it was opened with"
            )
        # Words were printed as numbers; their bytes in memory are little-endian.
        little = np.frombuffer(self.data, ">u4").astype("<u4")
        self.done.append(Gem(self.number, little.tobytes(), self.begin))
        self.number = -1
        self.data = bytearray()

    def head(self, line_number: int, line: bytes) -> None:
        """Read a line that is not a row: an opened buffer, or the begin of a buffer.

        Any other line is skipped.
        """
        where = f"{self.path}, line {line_number}"
        opening = OPEN.fullmatch(line)
        if opening:
            self.sizes[int(opening[2])] = int(opening[3])
            if len(self.sizes) > MOST_GEMS:
                raise ValueError(
                    f"{where}: got more than {MOST_GEMS} GEM buffers, at most {MOST_GEMS} are "
                    "allowed"
                )
        beginning = HEAD.fullmatch(line)
        if not beginning:
            return
        number = int(beginning[1])
        if number in self.seen:
            raise ValueError(f"{where}: got Gem {number} a second time, allowed is once")
        if number not in self.sizes:
            raise ValueError(
                f"{where}: got Gem {number} without its size, allowed is a Gem after its "
                "'gem open got'"
            )
        self.seen.add(number)
        size = self.sizes[number]
        self.total += size
        if self.total > MOST_BYTES or size % 4:
            raise ValueError(
                f"{where}: Gem {number}: got {size} bytes, {self.total} with those before, "
                f"allowed are whole words and {MOST_BYTES} together"
            )
        self.number = number
        self.begin = line_number


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield (number, line) of a plain or gzip file, counted from 1; a line keeps its line end."""
    with opened(path) as raw:
        packed = raw.read(2) == MAGIC
        raw.seek(0)
        stream: BinaryIO | gzip.GzipFile = raw
        if packed:
            stream = gzip.GzipFile(fileobj=raw)
        for number in range(1, MOST_LINES + 1):
            line = stream.readline(MOST_LINE)
            if not line:
                return
            if len(line) == MOST_LINE:
                raise ValueError(
                    f"{path}, line {number}: got more than {MOST_LINE - 1} characters, at most "
                    f"{MOST_LINE - 1} are allowed"
                )
            yield number, line.removesuffix(b"\n") + b"\n"
    raise ValueError(f"{path}: got more than {MOST_LINES} lines, at most {MOST_LINES} are allowed")
