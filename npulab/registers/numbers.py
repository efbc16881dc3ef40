"""Places of fields that depend on the configuration of a chip. A cell of the column ``lsb`` or
``width`` may be a sum of whole numbers and of names, such as ``8+log_uop``; the chip states the
number of each name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from npulab.registers.fields import Row
from npulab.support.text import one_line

PLACES = ("lsb", "width")  # the columns that may have a sum
TERM = re.compile(
    r"\s*(?P<sign>[+-])\s*(?:(?P<name>[A-Za-z_]\w*)|(?P<number>0[xX][0-9a-fA-F]+|\d+))"
)


def sums_in(rows: Iterable[Row]) -> list[tuple[Row, str]]:
    """Return the row and the column of each cell of ``rows`` that has a sum."""
    found = []
    for row in rows:
        for column in PLACES:
            if is_sum(row.get(column)):
                found.append((row, column))
    return found


def names_in(rows: Iterable[Row]) -> frozenset[str]:
    """Return the names in the sums of ``rows``; raises ValueError for a malformed sum."""
    names: set[str] = set()
    for row, column in sums_in(rows):
        names.update(name for _, name, _ in _terms(row, column) if name)
    return frozenset(names)


def with_numbers(rows: Iterable[Row], numbers: Mapping[str, int]) -> list[Row]:
    """Return the rows with each sum replaced by its value; raises ValueError for a malformed sum,
    and for a name that is not in ``numbers``."""
    out = []
    for row in rows:
        for column in PLACES:
            if is_sum(row.get(column)):
                row = {**row, column: _value(row, column, numbers)}
        out.append(row)
    return out


def is_sum(cell: object) -> bool:
    """True if a cell is a text that is neither blank nor a whole number. Such a text is read as a
    sum, which may be malformed.

    >>> [is_sum(cell) for cell in (8, "8", "-1", "0x1f", "log_uop", "8+log_uop")]
    [False, False, False, False, True, True]
    """
    if not isinstance(cell, str) or cell.isdecimal():
        return False
    try:
        int(cell.strip() or "0", 0)
    except ValueError:
        return True
    return False


def _value(row: Row, column: str, numbers: Mapping[str, int]) -> int:
    total = 0
    for sign, name, number in _terms(row, column):
        if name and name not in numbers:
            known = one_line(", ".join(sorted(numbers))) or "none"
            raise ValueError(
                f"{_where(row)}: got {column} {row[column]!r:.60}, allowed is a whole number, or a "
                f"sum with names of numbers of the chip, known are {known}; {name!r} is none of "
                "them"
            )
        if name:
            number = numbers[name]
        total += sign * number
    return total


def _terms(row: Row, column: str) -> list[tuple[int, str, int]]:
    """Return (sign, name, number) of each term of a sum: sign is 1 or -1; name is "" for a term
    that is a number; number is 0 for a term that is a name."""
    text = str(row[column]).strip()
    rest = text
    if not rest.startswith(("+", "-")):
        rest = f"+{rest}"
    terms = []
    while rest:
        found = TERM.match(rest)
        if not found:
            raise ValueError(
                f"{_where(row)}: got {column} {text!r:.60}, allowed is a whole number, or numbers "
                "and names of numbers of the chip with + or - between them"
            )
        sign = 1
        if found["sign"] == "-":
            sign = -1
        terms.append((sign, found["name"] or "", int(found["number"] or "0", 0)))
        rest = rest[found.end() :].rstrip()
    return terms


def _where(row: Row) -> str:
    return f"register map, field {row.get('field')!r}"
