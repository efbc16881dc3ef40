"""Texts that people paste: reading them with limits, and the rows that describe skipped lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from npulab.support.files import first_bytes, read_bounded
from npulab.support.refuse import refuse_if

MOST_BYTES = 2**26
MOST_LINES = 2**21  # lines are limited too, because a line takes far more memory than its letters
LOOK = 2**20  # the first ``LOOK`` bytes of a file are searched for the sign of a format
# Skipped lines become at most ``MOST_ROWS`` rows, with at most ``MOST_SHOWN`` letters of text each.
MOST_ROWS, MOST_SHOWN = 16, 60
NBSP = "\xa0"  # the non-breaking space, which blogs have in place of blanks


class Line(NamedTuple):
    """A line of a text, with its number, counted from 1."""

    number: int
    text: str


def plain_text(data: bytes) -> str:
    """Return bytes as text: UTF-8, or Latin-1 if they are not UTF-8; non-breaking spaces become
    blanks.

    A UTF-8 character that is cut off at the end does not make the bytes Latin-1.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if error.start > len(data) - 4:
            text = data.decode("utf-8", "replace")
        else:
            text = data.decode("latin-1")
    return text.replace(NBSP, " ")


def head_of(path: Path, size: int = LOOK) -> str:
    """Return the first ``size`` bytes of a file as text; empty if a zero byte is among them."""
    head = first_bytes(path, size)
    if b"\0" in head:
        return ""
    return plain_text(head)


def lines_of(path: Path) -> list[Line]:
    """Return the lines of a text without their ends; raises ValueError for more than 64 MiB or
    2,097,152 lines."""
    data = read_bounded(path, MOST_BYTES)
    count = data.count(b"\n")
    refuse_if(count > MOST_LINES, path, f"{count} lines", f"are {MOST_LINES}")
    texts = [text.rstrip("\r") for text in plain_text(data).split("\n")]
    return list(map(Line._make, enumerate(texts, 1)))


def skipped_rows(lines: Iterable[Line]) -> list[dict[str, Any]]:
    """Return rows that describe the lines a reader skipped, for a capture's parameters: a row for
    each run of consecutive lines.

    A row has the number of a run's first ``line``, how many ``lines`` the run has, and the first
    line's ``text``; the last of at most 16 rows counts all further lines. Empty lines are left out.

    >>> skipped_rows([Line(3, "boot"), Line(4, "more"), Line(9, "end")])
    [{'line': 3, 'lines': 2, 'text': 'boot'}, {'line': 9, 'lines': 1, 'text': 'end'}]
    """
    rows: list[dict[str, Any]] = []
    last = -1
    for number, text in lines:
        if not text.strip() or number == last:
            last += number == last + 1
        elif rows and (number == last + 1 or len(rows) == MOST_ROWS):
            rows[-1]["lines"] += 1
            last = number
        else:
            rows.append({"line": number, "lines": 1, "text": text.strip()[:MOST_SHOWN]})
            last = number
    return rows


def skipped(lines: Sequence[Line]) -> dict[str, Any]:
    """Return the parameter ``skipped`` of a capture, as a dict to merge into its parameters; empty
    if no line was skipped.
    """
    if rows := skipped_rows(lines):
        return {"skipped": rows}
    return {}
