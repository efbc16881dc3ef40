"""Statements of a compiler's log about fields, compared with a map.

A compiler that could not fit a value into a field may print the place of the field and its highest
value: ``bit width of field value exceeds the limit, target: v2, offset: 0x5048, shift = 19, limit:
0x1fff``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from npulab.registers.fields import Row as MapRow
from npulab.support.answers import Answer, Part, Table
from npulab.support.files import read_bounded
from npulab.support.refuse import refuse_if, refusing
from npulab.support.text import Row, plural

STATED = re.compile(
    r"\boffset: ?(0x[0-9a-fA-F]{1,16}), ?shift ?[=:] ?(\d{1,2}), ?limit: ?(0x[0-9a-fA-F]{1,16})\b"
)
MOST_BYTES = 2**26
# the verdicts on a statement; views show them in the colours of the verdicts of ``check``
AGREES, DIFFERS, ABSENT = "equal", "differs", "not covered"
COLUMNS = ("line", "offset", "lsb", "width", "field", "verdict", "map")


class Statement(NamedTuple):
    """The place and the highest value of a field, as a log states them.

    ``line`` is the first line, counted from 1, with this statement. ``offset`` is in bytes, ``lsb``
    is the lowest bit, ``limit`` is the highest value.
    """

    line: int
    offset: int
    lsb: int
    limit: int


@dataclass(frozen=True)
class Stated(Answer):
    """The statements of a log, each with what a map has at the same offset.

    A row has the statement (``line``, ``offset``, ``lsb``, ``width``), the ``field`` of the map,
    the ``verdict`` and, in ``map``, what the map has. The verdict is "equal", "differs", or
    "not covered" if the map has no register at the offset.
    """

    rows: tuple[Row, ...]

    @property
    def differ(self) -> int:
        """The number of statements that contradict the map."""
        return sum(row["verdict"] == DIFFERS for row in self.rows)

    def records(self) -> list[Row]:
        return [*self.rows]

    @property
    def parts(self) -> list[Part]:
        agree = sum(row["verdict"] == AGREES for row in self.rows)
        count = plural(len(self.rows), "statement")
        return [Table(self.rows, COLUMNS), f"{count}, {agree} agree, {self.differ} differ"]


@refusing()
def statements(path: Path | str) -> list[Statement]:
    """Return the statements of a log, each once; raises ValueError for a log without one."""
    path = Path(path)
    found: dict[tuple[int, int, int], Statement] = {}
    text = read_bounded(path, MOST_BYTES).decode("utf-8", "replace")
    for number, line in enumerate(text.split("\n"), 1):
        for match in STATED.finditer(line):
            offset, lsb, limit = int(match[1], 16), int(match[2]), int(match[3], 16)
            # compilers repeat a statement for each value that does not fit
            found.setdefault((offset, lsb, limit), Statement(number, offset, lsb, limit))
    allowed = "is a line such as offset: 0x5048, shift = 19, limit: 0x1fff"
    refuse_if(not found, path, "no statement about a field", allowed)
    return [*found.values()]


def against(rows: Iterable[MapRow], stated: Iterable[Statement]) -> Stated:
    """Compare statements with the rows of a map, such as ``read_map(path).rows``."""
    by_offset: dict[int, list[MapRow]] = {}
    for row in rows:
        by_offset.setdefault(row["offset"], []).append(row)
    return Stated(tuple(_judged(one, by_offset.get(one.offset, [])) for one in stated))


def _judged(stated: Statement, rows: list[MapRow]) -> Row:
    """Return the row of ``Stated`` for a statement; ``rows`` are the map's rows at its offset."""
    width = stated.limit.bit_length()
    verdict, field, has = ABSENT, "", "no register there"
    if rows:
        verdict, has = DIFFERS, f"no field from bit {stated.lsb} on"
    for row in rows:
        if row["lsb"] == stated.lsb:
            field = f"{row.get('register', '')}.{row.get('field', '')}"
            has = f"bits {row['lsb'] + row['width'] - 1}:{row['lsb']}"
            if row["width"] == width:
                verdict = AGREES
                break
    # a limit that is not 2**n - 1 comes from another rule than the width of a field
    if stated.limit & (stated.limit + 1):
        verdict, has = DIFFERS, f"{has}; the limit {stated.limit:#x} is not 2**n - 1"
    return {
        "line": stated.line,
        "offset": f"{stated.offset:#x}",
        "lsb": stated.lsb,
        "width": width,
        "field": field,
        "verdict": verdict,
        "map": has,
    }
