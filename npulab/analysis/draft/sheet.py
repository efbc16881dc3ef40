"""A table as it stands in a file: every line keeps its bytes until a cell of it changes."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from npulab.registers.formats.tables import COMMENT
from npulab.support.cells import guarded, unguarded

BOM = "\ufeff"
LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
ENDS = "\r\n"
# quotes that are not closed hold the rest of the text
CELL = re.compile(r'(?:"([^"]*(?:""[^"]*)*)(?:"|\Z))?([^,\r\n]*)')
RECORD = re.compile(rf"{CELL.pattern}(?:,{CELL.pattern})*(?:\r\n|\r|\n|\Z)")
MOST_CELLS = 64  # of a record
UNWRITABLE = ("Cc", "Cs", "Zl", "Zp")  # Unicode's controls, lone surrogates and line ends


class Cell(NamedTuple):
    """A cell of a line: where its text begins and ends there, and what it says."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Line:
    """A record (one line of the file, more where a quoted cell holds line ends), or a comment or a
    blank line.

    ``text`` is as it stands in the file, with its line end; ``row`` says whether it is a record.
    ``was`` is the line as it was read, None where it is new; ``key`` stays the same as long as the
    line does.
    """

    key: int
    text: str
    row: bool = True
    was: str | None = field(default=None, compare=False)

    @property
    def end(self) -> str:
        """Its line end; blank where it is the last and has none."""
        return self.text[len(self.text.rstrip(ENDS)) :]

    @property
    def cells(self) -> list[Cell]:
        return cells(self.text.rstrip(ENDS))

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """What its cells say, blanks cut off."""
        return tuple(cell.text.strip() for cell in self.cells)


@dataclass(frozen=True)
class Sheet:
    """The lines of a table; its edits give another sheet and leave this one as it is.

    >>> sheet = Sheet.parse('field,lsb\\n"a", 0x4\\n')
    >>> sheet.changed(1, {"field": "b,c"}).text
    'field,lsb\\n"b,c", 0x4\\n'
    """

    lines: tuple[Line, ...]
    bom: bool = False

    @classmethod
    def parse(cls, text: str) -> Sheet:
        """The sheet of a text, with or without a byte order mark."""
        bom = text.startswith(BOM)
        records = enumerate(_records(text.removeprefix(BOM)))
        return cls(tuple(Line(key, said, row, said) for key, (said, row) in records), bom)

    @property
    def text(self) -> str:
        return (BOM if self.bom else "") + "".join(line.text for line in self.lines)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The columns, as the first record has them; none in an empty sheet."""
        return next(
            (tuple(cell.text for cell in line.cells) for line in self.lines if line.row), ()
        )

    @property
    def records(self) -> int:
        """How many records there are behind the first."""
        return max(0, sum(line.row for line in self.lines) - 1)

    @cached_property
    def rows(self) -> dict[int, dict[str, str]]:
        """What each record behind the first says, by the key of its line: column to text, blanks
        cut off.

        Raises ValueError with its line for one that has other columns than the first.
        """
        out: dict[int, dict[str, str]] = {}
        number, head = 1, True
        for line in self.lines:
            if line.row and not head:
                if len(line.texts) != len(self.names):
                    raise ValueError(
                        f"line {number}: got {len(line.texts)} cells, allowed are "
                        f"{len(self.names)}, one "
                        "for each column"
                    )
                out[line.key] = dict(zip(self.names, line.texts, strict=True))
            head = head and not line.row
            number += len(LINE.findall(line.text))
        return out

    @cached_property
    def _places(self) -> dict[int, int]:
        return {line.key: place for place, line in enumerate(self.lines)}

    def place(self, key: int) -> int:
        """How many lines stand before a line."""
        return self._places[key]

    def changed(self, key: int, values: Mapping[str, str]) -> Sheet:
        """With other cells in one record, the others as they are written; one that says again what
        it said when it was read has its text of then."""
        place = self.place(key)
        line = self.lines[place]
        text, held = line.text, line.cells
        for column in reversed(range(len(self.names))):
            wanted = values.get(self.names[column])
            cell = held[column]
            if wanted is not None and wanted != cell.text.strip():
                written = spelled(
                    wanted, quoted=text[cell.start : cell.start + 1] == '"', first=not column
                )
                text = text[: cell.start] + written + text[cell.end :]
        if line.was is not None:
            before, now = cells(line.was.rstrip(ENDS)), cells(text.rstrip(ENDS))
            if [cell.text.strip() for cell in before] == [cell.text.strip() for cell in now]:
                text = line.was.rstrip(ENDS) + line.end
        return self._with(place, replace(line, text=text))

    def inserted(self, place: int, values: Mapping[str, str], like: int) -> tuple[Sheet, int]:
        """With a new record before the line of a place, quoted as the record with the key ``like``;
        and its key."""
        model = self.lines[self.place(like)]
        written = [
            spelled(
                values.get(name, ""),
                quoted=model.text[cell.start : cell.start + 1] == '"' and bool(values.get(name)),
                first=not column,
            )
            for column, (name, cell) in enumerate(zip(self.names, model.cells, strict=True))
        ]
        end = next((line.end for line in (model, *self.lines) if line.end), "\n")
        key = 1 + max((line.key for line in self.lines), default=0)
        new, lines = Line(key, ",".join(written) + end), [*self.lines]
        if (
            place == len(lines) and not lines[-1].end
        ):  # the last line of the file still has no line end
            new, lines[-1] = (
                replace(new, text=new.text.rstrip(ENDS)),
                replace(lines[-1], text=lines[-1].text + end),
            )
        return replace(self, lines=(*lines[:place], new, *lines[place:])), key

    def without(self, key: int) -> Sheet:
        """Without one line."""
        place = self.place(key)
        return replace(self, lines=(*self.lines[:place], *self.lines[place + 1 :]))

    def with_columns(self, names: Iterable[str]) -> Sheet:
        """With more columns at the end, blank in every record."""
        sheet = self
        for name in (name for name in names if name not in self.names):
            head = next((line for line in sheet.lines if line.row), None)
            sheet = replace(
                sheet,
                lines=tuple(
                    replace(
                        line, text=f"{line.text.rstrip(ENDS)},{name * (line is head)}{line.end}"
                    )
                    if line.row
                    else line
                    for line in sheet.lines
                ),
            )
        return sheet

    def _with(self, place: int, line: Line) -> Sheet:
        return replace(self, lines=(*self.lines[:place], line, *self.lines[place + 1 :]))


def spelled(text: str, quoted: bool = False, first: bool = False) -> str:
    """A cell as a table writes it, no formula to a spreadsheet; ``first`` says that a line begins
    with it, where # would make a comment.

    Raises ValueError for what no line can hold.

    >>> spelled('one, "two"')
    '"one, ""two\"""'
    >>> spelled("=1"), spelled("-1")
    ("'=1", '-1')
    """
    wrong = next((char for char in text if unicodedata.category(char) in UNWRITABLE), "")
    if wrong:
        raise ValueError(f"got {text[:80]!r}, allowed is one line of text, without {wrong!r}")
    cell = guarded(text)
    if (
        quoted
        or re.search('[,"]', cell)
        or cell != cell.strip()
        or (first and cell.startswith(COMMENT))
    ):
        return '"' + cell.replace('"', '""') + '"'
    return cell


def unified(name: str, before: str, after: str) -> str:
    """What makes one text of another, as a unified diff; blank where they are the same."""
    lines = difflib.unified_diff(LINE.findall(before), LINE.findall(after), name, name)
    return "".join(
        line if line.endswith(("\n", "\r")) else f"{line}\n\\ No newline at end of file\n"
        for line in lines
    )


def cells(text: str) -> list[Cell]:
    """The cells of a record, as npulab's reader has them; at most one more than ``MOST_CELLS``."""
    out: list[Cell] = []
    start = 0
    while start <= len(text) and len(out) <= MOST_CELLS:
        match = CELL.match(text, start)
        assert match is not None  # a cell may be empty
        said = (match[1] or "").replace('""', '"') + match[2]
        out.append(Cell(start, match.end(), unguarded(said)))
        start = match.end() + 1
    return out


def _records(text: str) -> Iterator[tuple[str, bool]]:
    """(text, whether it is a record) of each line; those that a quoted cell runs over are one."""
    at = 0
    while line := LINE.match(text, at):
        row = bool(line[0].strip()) and not line[0].startswith(COMMENT)
        record = RECORD.match(text, at) if row else line
        assert record is not None
        yield record[0], row
        at = record.end()
