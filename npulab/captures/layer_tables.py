"""Tables of layers: a ``.csv`` with a column of numbers for each parameter and a row for each
capture."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from npulab.quant.layers.spellings import spelled
from npulab.support.files import read_bounded, text_of
from npulab.support.refuse import near, refuse_if, refusing
from npulab.support.text import plural

# The most bytes of a table.
MOST_BYTES = 2**25
# A column with one of these names has the names of captures.
NAMES = ("name", "capture", "case")


@dataclass(frozen=True)
class LayerTable:
    """The parameters of layers: the names of the parameters, a row of numbers for each layer, and
    the names of the captures; ``names`` is empty if the table does not state them."""

    parameters: tuple[str, ...]
    rows: tuple[tuple[int | float, ...], ...]
    names: tuple[str, ...] = ()

    def numbers_of(self, names: Sequence[str]) -> list[int]:
        """The numbers of the rows with these names; raises ValueError unless the table has each
        name, and no other."""
        places = {name: number for number, name in enumerate(self.names)}
        known = set(names)
        for name in names:
            refuse_if(
                name not in places,
                "names",
                f"no row of capture {name!r:.60}",
                f"is one for each of the {plural(len(names), 'capture')}{near(name, places)}",
            )
        for name in self.names:
            refuse_if(
                name not in known,
                "names",
                f"a row of {name!r:.60}",
                f"are the {plural(len(names), 'capture')}{near(name, names)}",
            )
        return [places[name] for name in names]

    def columns(self, numbers: Sequence[int] | None = None) -> dict[str, list[int | float]]:
        """The values of the parameters in the rows ``numbers``, by default in all rows: a list for
        each parameter, by npulab's name of it."""
        rows = self.rows
        if numbers is not None:
            rows = tuple(self.rows[number] for number in numbers)
        columns: dict[str, list[int | float]] = {}
        for place, name in enumerate(self.parameters):
            columns[name] = [row[place] for row in rows]
        return spelled(columns)


@refusing()
def read_layers(path: Path) -> LayerTable:
    """The table of layers in a ``.csv`` file, whose first line has the names of the columns; a
    column called name, capture or case has the names of captures.

    Raises FileNotFoundError, and ValueError (file, line, what, got, allowed) for a file that is no
    such table, for two columns or two captures of one name, and for a cell that is not a number.
    """
    text = text_of(read_bounded(path, MOST_BYTES), path)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    lines: list[tuple[int, list[str]]] = []
    try:
        for cells in reader:
            stripped = [cell.strip() for cell in cells]
            if any(stripped):
                lines.append((reader.line_num, stripped))
    except csv.Error as error:
        raise ValueError(
            f"{path}, line {reader.line_num}: got no line of a table ({error}), allowed are cells "
            "with commas between them"
        ) from None
    refuse_if(not lines, path, "no line", "is a line of names, then one for each capture")
    _, header = lines[0]
    named = _place_of_names(path, header)
    first: dict[str, int] = {}
    rows = []
    for number, cells in lines[1:]:
        where = f"{path}, line {number}"
        refuse_if(
            len(cells) != len(header),
            where,
            plural(len(cells), "cell"),
            f"are {len(header)}, one for each column",
        )
        row = []
        for place, cell in enumerate(cells):
            if place != named:
                row.append(_number(where, header[place], cell))
                continue
            before = first.setdefault(cell, number)
            refuse_if(
                before != number, where, f"{cell!r:.60} as in line {before}", "is each name once"
            )
        rows.append(tuple(row))
    parameters = [name for place, name in enumerate(header) if place != named]
    return LayerTable(tuple(parameters), tuple(rows), tuple(first))


def _place_of_names(path: Path, header: Sequence[str]) -> int | None:
    """The number of the column with the names of captures, None if there is none; raises ValueError
    for a column without a name, two columns of one name, and a table without parameters."""
    found = None
    for place, name in enumerate(header):
        refuse_if(not name, path, f"column {place + 1} without a name", "is a name for each")
        refuse_if(header.index(name) != place, path, f"column {name!r:.60} twice", "is each once")
        if name.lower() in NAMES:
            found = place
    refuse_if(
        len(header) == 1 and found == 0, path, "no column of a parameter", "is at least one of them"
    )
    return found


def _number(where: str, name: str, cell: str) -> int | float:
    for kind in (int, float):
        try:
            number: int | float = kind(cell)
        except ValueError:
            continue
        if math.isfinite(number):
            return number
    raise ValueError(
        f"{where}: got {name} {cell!r:.60}, allowed are numbers; a column of the captures' names "
        f"is called {NAMES[0]}"
    )
