r"""Register accesses in a text of any form: a regular expression says what each line means.

::

    (?P<direction>Read|Write)Register(?P<width>\d+) \[(?P<address>\w+)\] \S+ (?P<value>\w+)

``address`` and ``value`` are needed. Their numbers are hexadecimal, with or without ``0x``.
``direction`` is a text that begins with ``r`` or ``w``; without this group every access is a write.
``width`` is 32 or 64 bits; without this group it is 32. A write of 64 bits counts as two of 32, the
lower half first. Lines that the pattern does not match are counted and left out.
"""

from __future__ import annotations

import json
import re
import sys
import warnings
from collections.abc import Iterable, Mapping
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from npulab.captures.capture import READS, Capture
from npulab.captures.dumps import jobs_of_writes
from npulab.captures.registry import asked_target
from npulab.registers.fields import WORD_BITS, WORD_BYTES
from npulab.support import matching
from npulab.support.files import read_bounded
from npulab.support.processes import execute
from npulab.support.refuse import near, need, need_path, refuse_if, refusing

NEEDED = ("address", "value")
GROUPS = (*NEEDED, "width", "direction")
WIDTHS = {"32": WORD_BITS, "64": 2 * WORD_BITS}
# The first letter of a direction, and true if the access is a write.
DIRECTIONS = {"r": False, "w": True}
# The parameter of a capture that says how the capture was found in a text.
LOG = "log"
MOST_BYTES = 2**26
MOST_ACCESSES = 2**20
# The most letters of a pattern.
MOST_LETTERS = 1000
# The most seconds of a search of a text; one second is added for each MiB of the text.
SECONDS = 10


class Access(NamedTuple):
    """A register access: line, byte address, value, its width in bits, and true if it is a
    write."""

    line: int
    address: int
    value: int
    width: int
    write: bool

    @property
    def words(self) -> list[tuple[int, int]]:
        """The access as words of 32 bits: (address, value) of each word, the lowest first."""
        found = []
        for at in range(self.width // WORD_BITS):
            word = self.value // 2 ** (WORD_BITS * at) % 2**WORD_BITS
            found.append((self.address + WORD_BYTES * at, word))
        return found


class Log(NamedTuple):
    """The register accesses of a text in their order, the pattern that found them, and the number
    of lines of the text."""

    accesses: tuple[Access, ...]
    pattern: str
    lines: int

    @property
    def writes(self) -> list[tuple[int, int]]:
        """(address, value) of each word of 32 bits that was written, in order."""
        return _words(access for access in self.accesses if access.write)

    @property
    def read(self) -> list[tuple[int, int]]:
        """(address, value) of each word of 32 bits that was read, in order."""
        return _words(access for access in self.accesses if not access.write)

    @property
    def reads(self) -> list[dict[str, Any]]:
        """A row for each read; equal reads that follow one another are one row.

        A row has ``writes`` (the number of words of 32 bits written before), ``address`` and
        ``value`` as texts, ``width`` in bits, ``times`` (the number of reads), and the first
        ``line``.
        """
        rows: list[dict[str, Any]] = []
        before = 0
        for _, group in groupby(self.accesses, key=lambda access: access[1:]):
            same = list(group)
            first = same[0]
            if first.write:
                before += len(same) * len(first.words)
                continue
            rows.append(
                {
                    "writes": before,
                    "address": hex(first.address),
                    "value": hex(first.value),
                    "width": first.width,
                    "times": len(same),
                    "line": first.line,
                }
            )
        return rows


@refusing()
def read_log(path: Path | str, pattern: str) -> Log:
    """The register accesses that a pattern finds in the lines of a text.

    At most one access is found in a line, within its first 4,096 letters. Raises ValueError for a
    text that is no pattern, for a pattern that lacks the group ``address`` or ``value``, that
    matches no line, or whose search takes more than 10 seconds and one second for each MiB of the
    text; and, with the line, for a text that is no number and for a number that does not fit.
    """
    need_path("read_log", path)
    path = Path(path)
    _check(pattern)
    # a console may have put other bytes between its lines
    text = read_bounded(path, MOST_BYTES).decode("utf-8-sig", "replace")
    text = text.replace("\r\n", "\n").replace("\r", " ")
    lines = text.rstrip("\n").count("\n") + 1
    accesses = []
    for number, groups in _found(path, text, pattern):
        accesses.append(_access(f"{path}, line {number}", number, groups))
        more = f"more than {MOST_ACCESSES} accesses"
        refuse_if(len(accesses) > MOST_ACCESSES, path, more, "is a text with fewer")
    if not accesses:
        first, _, _ = text.strip().partition("\n")
        raise ValueError(
            f"{path}: --pattern matches none of {lines} lines, allowed is one that matches "
            f"each access; the first line is {first!r:.60}"
        )
    return Log(tuple(accesses), pattern, lines)


@refusing()
def capture_of_log(path: Path | str, pattern: str, npu: str, chip: str | None = None) -> Capture:
    """Read a text of register accesses as a capture; ``pattern`` is that of ``read_log``, and
    ``npu`` is the target that has the registers.

    The writes are the capture's jobs. The reads are no part of a job: ``parameters["reads"]`` has
    the rows of ``Log.reads``. ``parameters["log"]`` has the pattern and the numbers of lines and
    accesses. Raises as ``read_log``, and ValueError for a text without a write.
    """
    known = asked_target(npu)
    chip = chip or next(iter(known.chips))
    maps = known.maps(chip)
    log = read_log(path, pattern)
    path = Path(path)
    refuse_if(not log.writes, path, f"{len(log.read)} reads and no write", "is at least one write")
    counts = {"pattern": pattern, "lines": log.lines, "accesses": len(log.accesses)}
    parameters: dict[str, Any] = {LOG: [counts]}
    if log.read:
        parameters[READS] = log.reads
    jobs = jobs_of_writes(log.writes, maps, path)
    return Capture(path.stem, npu, chip, jobs, parameters=parameters, source=path.name, maps=maps)


def _check(pattern: str) -> None:
    """Raise ValueError for a pattern that is too long, is no regular expression, lacks a needed
    group, or has a group that is not in ``GROUPS``."""
    need("--pattern", pattern, str, "is a regular expression")
    count = len(pattern)
    refuse_if(count > MOST_LETTERS, "--pattern", f"{count} letters", f"are at most {MOST_LETTERS}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            groups = re.compile(pattern).groupindex
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(
            f"--pattern: got {pattern!r:.80}, allowed is a regular expression of Python: {error}"
        ) from None
    for name in NEEDED:
        if name not in groups:
            raise ValueError(
                f"--pattern: got {pattern!r:.80}, which has no group {name}; (?P<{name}>0x\\w+) "
                "is one"
            )
    for name in groups:
        refuse_if(
            name not in GROUPS,
            "--pattern",
            f"the group {name!r:.40}",
            f"are {', '.join(GROUPS)}{near(name, GROUPS)}",
        )


def _found(path: Path, text: str, pattern: str) -> Iterable[tuple[int, Mapping[str, str | None]]]:
    """Yield (number of the line, text of each named group) for each line that matches; raises
    ValueError if the search takes too long."""
    with TemporaryDirectory() as folder:
        stated, lines, out = (Path(folder, name) for name in ("pattern", "lines", "found"))
        stated.write_text(json.dumps(pattern), encoding="ascii")
        lines.write_text(text, encoding="utf-8", newline="\n")
        out.touch()
        program = (sys.executable, "-I", matching.__file__, str(stated), str(lines), str(out))
        seconds = SECONDS + len(text) / 2**20
        end = execute("--pattern", program, seconds)
        # the last line is left out: a search that was ended may have written only a part of it
        rows = [json.loads(row) for row in out.read_text(encoding="utf-8").split("\n")[:-1]]
    if end.status is None:
        last = 0
        if rows:
            last = rows[-1][0]
        raise ValueError(
            f"{path}: --pattern: got {pattern!r:.80}, which is not done after {seconds:.0f} "
            f"seconds, line {last} was the last match; repeats inside of repeats, as in (a+)+, can "
            "take for ever"
        )
    refuse_if(end.status, f"{path}: --pattern", end, "is a search that ends")
    yield from rows


def _access(where: str, line: int, groups: Mapping[str, str | None]) -> Access:
    """Return the access that the groups of a line state; raises ValueError, which names
    ``where``, for a group that states none."""
    width = WORD_BITS
    if "width" in groups:
        text = groups["width"] or ""
        refuse_if(text not in WIDTHS, f"{where}: width", f"{text!r:.40}", "is 32 or 64")
        width = WIDTHS[text]
    write = True
    if "direction" in groups:
        text = groups["direction"] or ""
        letter = text[:1].lower()
        allowed = "is a text that begins with r or w, as read and WR do"
        refuse_if(letter not in DIRECTIONS, f"{where}: direction", f"{text!r:.40}", allowed)
        write = DIRECTIONS[letter]
    address = _number(f"{where}: address", groups["address"], 64)
    aligned = f"is a multiple of {WORD_BYTES}"
    refuse_if(address % WORD_BYTES, f"{where}: address", f"{address:#x}", aligned)
    value = _number(f"{where}: value", groups["value"], width)
    return Access(line, address, value, width, write)


def _number(where: str, text: str | None, bits: int) -> int:
    text = text or ""
    try:
        number = int(text, 16)
    except ValueError:
        number = -1
    allowed = f"is a hexadecimal number of at most {bits} bits"
    refuse_if(not 0 <= number < 2**bits, where, f"{text!r:.40}", allowed)
    return number


def _words(accesses: Iterable[Access]) -> list[tuple[int, int]]:
    words: list[tuple[int, int]] = []
    for access in accesses:
        words += access.words
    return words
