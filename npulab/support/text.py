"""Rows as text and as JSON takes them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

Row = dict[str, Any]
# what moves a terminal's cursor, sets its title, or turns the direction of what is read
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
QUOTED = re.compile(r"(?<!\w)(['\"])((?:\\.|(?!\1)[^\\]){81,})\1(?!\w)", re.DOTALL)
# a number, or a row without blanks, which no name of a file is
RUN = re.compile(r"((?:0x)?[0-9a-f]{75}|[^\s/]{157})[^\s/]{4,}")
MOST_TOLD = 1500  # characters of a sentence that refuses something


def visible(text: str) -> str:
    """A text without control characters: they are escaped; ends of lines and tabs stay.

    >>> visible("a\\x1b[2J")
    'a\\\\u001b[2J'
    """
    return CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def one_line(text: str) -> str:
    """A sentence on one line: control characters escaped, what it quotes cut to 80 characters, of
    which the last 30 are the end: a path's name.

    >>> one_line(f"got {'x' * 200 + 'y' * 30!r},\\nallowed is less")
    "got 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...yyyyyyyyyyyyyyyyyyyyyyyyyyyyyy', allowed is less"
    """  # noqa: E501 - a line of a doctest
    quoted = QUOTED.sub(
        lambda found: f"{found[1]}{found[2][:47]}...{found[2][-30:]}{found[1]}", text
    )
    short = RUN.sub(r"\1...", quoted)
    if len(short) <= MOST_TOLD:
        cut = short
    else:
        cut = f"{short[: MOST_TOLD - 3]}..."
    return visible(" ".join(cut.split()))


def in_columns(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[str]:
    """Rows side by side under a line of their names; no line where there is no row.

    >>> in_columns([{"case": "a", "jobs": 1}, {"case": "bcdef", "jobs": None}], ["case", "jobs"])
    ['case   jobs', 'a      1', 'bcdef  -']
    """
    cells = [list(names), *([cell(row.get(name)) for name in names] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(names))]
    return [
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
        if rows
    ]


def cell(value: Any) -> str:
    """A value in a table.

    >>> cell({"h": 1, "w": [2, None]})
    'h 1, w 2 -'
    """
    if isinstance(value, dict):
        return ", ".join(f"{name} {cell(inner)}" for name, inner in value.items())
    if value is None:
        return "-"
    if isinstance(value, list):
        return " ".join(map(cell, value))
    return str(value)


def plural(number: int, name: str) -> str:
    """A number of things.

    >>> plural(1, "model"), plural(2, "model")
    ('1 model', '2 models')
    """
    return f"{number} {name}{'s' * (number != 1)}"


def as_address(value: Any) -> Any:
    """A number that points into memory, or a list of such, in hexadecimal; else the value.

    >>> as_address([4096, None])
    ['0x00001000', None]
    """
    if isinstance(value, list):
        return [*map(as_address, value)]
    if isinstance(value, int):
        return f"{value:#010x}"
    return value


def rows_of(frame: Any) -> list[Row]:
    """The rows of a DataFrame."""
    return frame.to_dict("records")


def known(row: Row) -> Row:
    """A row of a DataFrame without what it does not have."""
    return {
        name: value
        for name, value in row.items()
        if not (isinstance(value, float) and math.isnan(value))
    }


def brief(rows: Sequence[Row]) -> list[Row]:
    """Rows with six digits of each real number."""
    return [
        {
            name: six_digits(value) if isinstance(value, float) else value
            for name, value in row.items()
        }
        for row in rows
    ]


def six_digits(value: Any) -> str:
    """A value as text; of a real number six digits.

    >>> six_digits(0.1234567), six_digits(12345678)
    ('0.123457', '12345678')
    """
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value)


def indented(lines: Sequence[str]) -> list[str]:
    """Lines two places further in."""
    return [f"  {line}" for line in lines]
