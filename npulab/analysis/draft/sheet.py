"""A table as its file has it: every line keeps its bytes until one of its cells changes."""

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
# If the quote of a cell is not closed, the cell runs to the end of the text.
CELL = re.compile(r'(?:"([^"]*(?:""[^"]*)*)(?:"|\Z))?([^,\r\n]*)')
RECORD = re.compile(rf"{CELL.pattern}(?:,{CELL.pattern})*(?:\r\n|\r|\n|\Z)")
# A record has at most this many cells.
MOST_CELLS = 64
# Unicode's categories of controls, lone surrogates and line ends: a cell may not hold these.
UNWRITABLE = ("Cc", "Cs", "Zl", "Zp")


class Cell(NamedTuple):
    """A cell of a line: the positions in the line where its text begins and ends, and the text
    without quotes.
    """

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Line:
    """A record, a comment, or a blank line. A record is one line of the file, or several lines if a
    quoted cell has line ends in it.

    ``text`` is the text in the file, with its line end. ``row`` is true for a record. ``was`` is
    the text that was read, None for a new line. ``key`` is a number that a line keeps through all
    edits.
    """

    key: int
    text: str
    row: bool = True
    was: str | None = field(default=None, compare=False)

    @property
    def end(self) -> str:
        """The characters that end the line; blank if it is the last line and has none."""
        return self.text[len(self.text.rstrip(ENDS)) :]

    @property
    def cells(self) -> list[Cell]:
        return cells(self.text.rstrip(ENDS))

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """The texts of the line's cells, without blanks around them."""
        return tuple(cell.text.strip() for cell in self.cells)


@dataclass(frozen=True)
class Sheet:
    r"""The lines of a table; an edit returns another sheet and leaves this sheet as it is.

    >>> sheet = Sheet.parse('field,lsb\n"a", 0x4\n')
    >>> sheet.changed(1, {"field": "b,c"}).text
    'field,lsb\n"b,c", 0x4\n'
    """

    lines: tuple[Line, ...]
    bom: bool = False

    @classmethod
    def parse(cls, text: str) -> Sheet:
        """Return the sheet of a text, with or without a byte order mark."""
        lines = []
        for key, (line, row) in enumerate(_records(text.removeprefix(BOM))):
            lines.append(Line(key, line, row, line))
        return cls(tuple(lines), text.startswith(BOM))

    @property
    def text(self) -> str:
        text = "".join(line.text for line in self.lines)
        if self.bom:
            return BOM + text
        return text

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the columns, which are the cells of the first record; none in an empty
        sheet.
        """
        for line in self.lines:
            if line.row:
                return tuple(cell.text for cell in line.cells)
        return ()

    @property
    def records(self) -> int:
        """The number of records after the first, which has the names of the columns."""
        return max(0, sum(line.row for line in self.lines) - 1)

    @cached_property
    def rows(self) -> dict[int, dict[str, str]]:
        """The records after the first by the key of their line; each maps a column to its text,
        without blanks around the text.

        Raises ValueError with the line for a record that has more or fewer cells than there are
        columns.
        """
        out: dict[int, dict[str, str]] = {}
        number, head = 1, True
        for line in self.lines:
            if line.row and not head:
                if len(line.texts) != len(self.names):
                    raise ValueError(
                        f"line {number}: got {len(line.texts)} cells, allowed are "
                        f"{len(self.names)}, one for each column"
                    )
                out[line.key] = dict(zip(self.names, line.texts, strict=True))
            head = head and not line.row
            number += len(LINE.findall(line.text))
        return out

    @cached_property
    def _places(self) -> dict[int, int]:
        return {line.key: place for place, line in enumerate(self.lines)}

    def place(self, key: int) -> int:
        """Return the number of lines before the line with this key."""
        return self._places[key]

    def changed(self, key: int, values: Mapping[str, str]) -> Sheet:
        """Return the sheet with new texts in some cells of a record; the other cells keep their
        bytes. If all cells of the record are again as they were read, it gets back the text that
        was read.
        """
        place = self.place(key)
        line = self.lines[place]
        text, held = line.text, line.cells
        # the last cell is changed first, so that the positions of the cells before it stay right
        for column in reversed(range(len(self.names))):
            wanted = values.get(self.names[column])
            cell = held[column]
            if wanted is not None and wanted != cell.text.strip():
                quoted = text.startswith('"', cell.start)
                written = spelled(wanted, quoted, first=not column)
                text = text[: cell.start] + written + text[cell.end :]
        if line.was is not None and Line(key, line.was).texts == Line(key, text).texts:
            text = line.was.rstrip(ENDS) + line.end
        return self._with(place, replace(line, text=text))

    def inserted(self, place: int, values: Mapping[str, str], like: int) -> tuple[Sheet, int]:
        """Return the sheet with a new record before the line at ``place`` (an index), and the key
        of the new record; a cell is quoted if the cell of its column in the record ``like`` (a key)
        is.
        """
        model = self.lines[self.place(like)]
        written: list[str] = []
        for name, cell in zip(self.names, model.cells, strict=True):
            value = values.get(name, "")
            quoted = bool(value) and model.text.startswith('"', cell.start)
            written.append(spelled(value, quoted, first=not written))
        end = next((line.end for line in (model, *self.lines) if line.end), "\n")
        key = 1 + max((line.key for line in self.lines), default=0)
        text = ",".join(written)
        lines = [*self.lines]
        if place == len(lines) and not lines[-1].end:
            # the last line of the file has no line end: it needs one before a further line
            lines[-1] = replace(lines[-1], text=lines[-1].text + end)
        else:
            text += end
        lines.insert(place, Line(key, text))
        return replace(self, lines=tuple(lines)), key

    def without(self, key: int) -> Sheet:
        """Return the sheet without one line."""
        place = self.place(key)
        return replace(self, lines=(*self.lines[:place], *self.lines[place + 1 :]))

    def with_columns(self, names: Iterable[str]) -> Sheet:
        """Return the sheet with more columns at the end, blank in every record."""
        new = [name for name in names if name not in self.names]
        if not new:
            return self
        added = new  # names are added to the first record, blanks to all others
        lines = []
        for line in self.lines:
            if line.row:
                text = ",".join([line.text.rstrip(ENDS), *added])
                line = replace(line, text=text + line.end)
                added = [""] * len(new)
            lines.append(line)
        return replace(self, lines=tuple(lines))

    def _with(self, place: int, line: Line) -> Sheet:
        return replace(self, lines=(*self.lines[:place], line, *self.lines[place + 1 :]))


def spelled(text: str, quoted: bool = False, first: bool = False) -> str:
    """Return a cell as a table writes it, so that no spreadsheet takes it for a formula.

    ``first`` is true for a cell that begins a line, where # would make a comment. Raises
    ValueError for a text that no line can hold.

    >>> spelled('one, "two"')
    '"one, ""two\"""'
    >>> spelled("=1"), spelled("-1")
    ("'=1", '-1')
    """
    wrong = next((char for char in text if unicodedata.category(char) in UNWRITABLE), "")
    if wrong:
        raise ValueError(f"got {text[:80]!r}, allowed is one line of text, without {wrong!r}")
    cell = guarded(text)
    comment = first and cell.startswith(COMMENT)
    if quoted or comment or re.search('[,"]', cell) or cell != cell.strip():
        return '"' + cell.replace('"', '""') + '"'
    return cell


def unified(name: str, before: str, after: str) -> str:
    """Return the unified diff of two texts; blank if they are the same."""
    text = ""
    for line in difflib.unified_diff(LINE.findall(before), LINE.findall(after), name, name):
        text += line
        if not line.endswith(("\n", "\r")):
            text += "\n\\ No newline at end of file\n"
    return text


def cells(text: str) -> list[Cell]:
    """Return the cells of a record, split as npulab's reader of tables splits them; at most
    ``MOST_CELLS`` plus one.
    """
    out: list[Cell] = []
    start = 0
    while start <= len(text) and len(out) <= MOST_CELLS:
        match = CELL.match(text, start)
        assert match is not None  # CELL matches an empty cell, too
        said = (match[1] or "").replace('""', '"') + match[2]
        out.append(Cell(start, match.end(), unguarded(said)))
        start = match.end() + 1
    return out


def _records(text: str) -> Iterator[tuple[str, bool]]:
    """Yield (text, True for a record) for each line; a record whose quoted cells have line ends is
    one text.
    """
    at = 0
    while found := LINE.match(text, at):
        row = bool(found[0].strip()) and not found[0].startswith(COMMENT)
        if row:
            found = RECORD.match(text, at)
        assert found is not None
        yield found[0], row
        at = found.end()
