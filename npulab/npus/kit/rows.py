"""A table that computes fields of a job from a subject, such as a layer: a row says when it
applies, and which attribute of the subject is the field's number.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from npulab.support.files import read_table


class Row(NamedTuple):
    """A row of the table: if all attributes named in ``when`` of the subject (an object, such as a
    layer) are true, ``field`` is ``number`` divided by ``unit``.

    ``number`` is a number, or the name of an attribute of the subject (with dots).
    """

    field: str
    when: tuple[str, ...]
    number: int | str
    unit: int
    note: str


def read_rows(path: Path) -> tuple[Row, ...]:
    """Read the rows of a table with the columns when, field, number, unit, note."""
    rows = []
    for row in read_table(path):
        number: int | str = row["number"]
        if not row["number"][0].isalpha():
            number = int(row["number"], 0)
        when, unit = tuple(row["when"].split()), int(row["unit"] or 1)
        rows.append(Row(row["field"], when, number, unit, row["note"]))
    return tuple(rows)


def numbers_of(rows: tuple[Row, ...], subject: Any) -> Iterator[tuple[Row, int]]:
    """Yield (row, number divided by the row's unit) for each row that applies to a subject.

    Rows whose number is None, or not a multiple of the row's unit, are left out.
    """
    for row in rows:
        if all(attrgetter(name)(subject) for name in row.when):
            number = row.number
            if isinstance(row.number, str):
                number = attrgetter(row.number)(subject)
            if number is not None and number % row.unit == 0:
                yield row, int(number) // row.unit
