"""Rows and values as text, and in the form that JSON needs."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

Row = dict[str, Any]
# Matches a character that must not reach a terminal: a control character, a mark that ends a line
# or changes the direction of the text, or half of a surrogate pair.
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
QUOTED = re.compile(r"(?<!\w)(['\"])((?:\\.|(?!\1)[^\\]){81,})\1(?!\w)", re.DOTALL)
# Matches a run without a blank or slash, which ``one_line`` cuts after group 1: 75 hexadecimal
# digits, or 157 characters, and at least 4 more characters.
RUN = re.compile(r"((?:0x)?[0-9a-f]{75}|[^\s/]{157})[^\s/]{4,}")
DIGITS = re.compile(r"\d+")
# For sorting, a number in a name is filled with zeros to ``MOST_DIGITS`` digits. ``GAP`` stands
# between two columns of a table. An error text has at most ``MOST_LETTERS`` characters.
MOST_DIGITS = 20
GAP = "  "
MOST_LETTERS = 1500


def visible(text: str) -> str:
    r"""A text with its control characters escaped; ends of lines and tabs are kept.

    >>> visible("a\x1b[2J")
    'a\\u001b[2J'
    """
    return CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def one_line(text: str) -> str:
    r"""A sentence on one line, with control characters escaped.

    A longer text in quotes is cut to 80 characters: its first 47, ``...`` and its last 30, which
    have the name at the end of a path. Long runs without a blank, and a sentence of more than
    ``MOST_LETTERS`` characters, are cut too.

    >>> one_line(f"got\n{'x' * 200 + 'y' * 30!r}")
    "got 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...yyyyyyyyyyyyyyyyyyyyyyyyyyyyyy'"
    """
    quoted = QUOTED.sub(lambda found: f"{found[1]}{_cut_middle(found[2])}{found[1]}", text)
    short = RUN.sub(r"\1...", quoted)
    if len(short) > MOST_LETTERS:
        short = f"{short[: MOST_LETTERS - 3]}..."
    return visible(" ".join(short.split()))


def _cut_middle(text: str) -> str:
    return f"{text[:47]}...{text[-30:]}"


def in_columns(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[str]:
    """The lines of a table in aligned columns, below a line with the names of the columns; an empty
    list if there is no row.

    >>> in_columns([{"case": "a", "jobs": 1}, {"case": "bcdef", "jobs": None}], ["case", "jobs"])
    ['case   jobs', 'a      1', 'bcdef  -']
    """
    if not rows:
        return []
    cells = [list(names)]
    for row in rows:
        cells.append([cell(row.get(name)) for name in names])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for texts in cells:
        padded = map(str.ljust, texts, widths)
        lines.append(GAP.join(padded).rstrip())
    return lines


def cut_short(texts: Sequence[str], most: int) -> str:
    """The texts one after another, as many as fit into ``most`` letters, then how many are left
    out.

    >>> fields = ["size 4", ", stride 2", ", relu 1"]
    >>> cut_short(fields, 24), cut_short(fields, 20)
    ('size 4, stride 2, relu 1', 'size 4 … 2 more')
    """
    shown = "".join(texts)
    left = 0
    # texts are left out from the end until the shown texts and the count of the others fit
    while len(shown) > most and left < len(texts):
        left += 1
        shown = "".join(texts[:-left]) + f" … {left} more"
    return shown.lstrip()


def cell(value: Any) -> str:
    """The text of a value in a table: "-" for None, the members of a list or a dict joined.

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
    """A count with its noun, to which "s" is added unless the count is 1.

    >>> plural(1, "model"), plural(2, "model")
    ('1 model', '2 models')
    """
    if number == 1:
        return f"1 {name}"
    return f"{number} {name}s"


def by_numbers(name: str) -> str:
    """A key by which names are sorted so that the numbers in them ascend.

    >>> sorted(["run10", "w1_0_7", "run2"], key=by_numbers)
    ['run2', 'run10', 'w1_0_7']
    """
    return DIGITS.sub(lambda found: found[0].zfill(MOST_DIGITS), name)


def part_said(looked_at: str) -> str:
    """The sentence that the jobs named in ``looked_at`` are looked at; "" if ``looked_at`` is "",
    because then all jobs are looked at.

    >>> part_said("1 job GEMM of 13 jobs of 1 capture")
    '1 job GEMM of 13 jobs of 1 capture is looked at'
    """
    if not looked_at:
        return ""
    if looked_at.startswith("1 "):
        return f"{looked_at} is looked at"
    return f"{looked_at} are looked at"


def as_address(value: Any) -> Any:
    """An address, or each of a list of addresses, as a hexadecimal text of at least 8 digits; any
    other value unchanged.

    >>> as_address([4096, None])
    ['0x00001000', None]
    """
    if isinstance(value, list):
        return [*map(as_address, value)]
    if isinstance(value, int):
        return f"{value:#010x}"
    return value


def rows_of(frame: Any) -> list[Row]:
    """The rows of a DataFrame as a list of dicts."""
    return frame.to_dict("records")


def known(row: Row) -> Row:
    """A row without its missing values (NaN)."""
    return {name: value for name, value in row.items() if not _is_nan(value)}


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def brief(rows: Sequence[Row]) -> list[Row]:
    """The rows, with each float as a text, rounded to six significant digits."""
    short = []
    for row in rows:
        reals = {name: six_digits(value) for name, value in row.items() if isinstance(value, float)}
        short.append({**row, **reals})
    return short


def six_digits(value: Any) -> str:
    """A value as text; a float is rounded to six significant digits.

    >>> six_digits(0.1234567), six_digits(12345678)
    ('0.123457', '12345678')
    """
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value)


def indented(lines: Sequence[str]) -> list[str]:
    """The lines with two blanks before each."""
    return [f"  {line}" for line in lines]
