"""Fields that follow from a subject by a table: when a row applies, and which number it gives."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from npulab.support.files import read_table


class Row(NamedTuple):
    """A row: it gives ``number`` (a number or a path of attributes) in units of ``unit``, if all
    attributes in ``when`` are true."""

    field: str
    when: tuple[str, ...]
    number: int | str
    unit: int
    note: str


def read_rows(path: Path) -> tuple[Row, ...]:
    """The rows of a table (when, field, number, unit, note)."""
    return tuple(
        Row(
            row["field"],
            tuple(row["when"].split()),
            row["number"] if row["number"][0].isalpha() else int(row["number"], 0),
            int(row["unit"] or 1),
            row["note"],
        )
        for row in read_table(path)
    )


def numbers_of(rows: tuple[Row, ...], subject: Any) -> Iterator[tuple[Row, int]]:
    """Each row that applies to a subject, with its number; rows whose number is None are left out.

    A number that is not a multiple of the row's unit is left out too.
    """
    for row in rows:
        if all(attrgetter(name)(subject) for name in row.when):
            number = row.number
            if isinstance(row.number, str):
                number = attrgetter(row.number)(subject)
            if number is not None and number % row.unit == 0:
                yield row, int(number) // row.unit
