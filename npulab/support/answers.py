"""Answers in the form that people see: sentences and tables, as plain text, as HTML, or for a
terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from npulab.support.text import GAP, Row, cell, cut_short, in_columns

# In a notebook, the last column of a ``Lines`` table has at most this many letters.
MOST_LETTERS = 120

# A verdict has a tone, which chooses the background colour of its cell. ``_BAD`` are the verdicts
# with the tone "bad", ``_OPEN`` those with the tone "open".
_BAD = ("differs", "hang", "failed", "unsteady")
_OPEN = (
    "not executed",
    "nothing to compare",
    "partly compared",
    "one value",
    "claims agree",
    "not read",
    "not covered",
    "not run",
    "no operator",
    "both hang",
)
_VERDICTS = {"equal": "good", "none": "quiet"}
_VERDICTS |= dict.fromkeys(_BAD, "bad")
_VERDICTS |= dict.fromkeys(_OPEN, "open")
_EVIDENCE = {"guess": "open", "unknown": "bad"}
TONES: dict[str, dict[str, str]] = {
    "verdict": _VERDICTS,
    "words": _VERDICTS,
    "coefficients": _VERDICTS,
    "evidence": _EVIDENCE,
    "provenance": {"simulated": "quiet", "simulated, changed": "quiet"},
    "differs": {"always": "bad", "sometimes": "open"},
}
# The background colour of a cell, by the tone of its value. Letters keep the colour of the
# notebook's theme.
TINTS = {
    "good": "rgba(46, 160, 67, .25)",
    "bad": "rgba(218, 54, 51, .3)",
    "open": "rgba(210, 153, 34, .3)",
}


def compared_rows(results: Iterable[Any]) -> list[Row]:
    """The records of several results as rows of a table. In a row whose ``compared`` is 0, both
    ``compared`` and ``mismatches`` become None."""
    rows: list[Row] = []
    for result in results:
        rows += result.records()
    for row in rows:
        if not row["compared"]:
            row |= {"compared": None, "mismatches": None}
    return rows


def tone(column: str, value: Any) -> str:
    """The tone of a value in a column, for its colour: "good", "bad", "open" or "quiet"; "" for a
    value without a tone.

    >>> tone("verdict", "differs"), tone("case", "differs")
    ('bad', '')
    """
    if isinstance(value, str):
        return TONES.get(column, {}).get(value, "")
    return ""


@dataclass(frozen=True, eq=False)
class Table:
    """Rows and the names of their columns; a table without rows is not shown in an answer."""

    rows: Sequence[Mapping[str, Any]]
    names: Sequence[str]

    def __str__(self) -> str:
        return "\n".join(in_columns(self.rows, self.names))

    def _repr_html_(self) -> str:
        head = "".join(f"<th style='text-align:left'>{escape(name)}</th>" for name in self.names)
        body = ""
        for row in self.rows:
            cells = "".join(_html(name, row.get(name)) for name in self.names)
            body += f"<tr>{cells}</tr>"
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


class Lines(Table):
    """A table whose rows are one line each. Its last column has a list of texts: as many as fit are
    shown, then the number of those left out. Plain text has all of them, because programs read it.
    """

    def fitted(self, most: int) -> str:
        """The table in lines of at most ``most`` letters."""
        heads = in_columns(self.rows, self.names[:-1])
        start = max(map(len, heads), default=0) + len(GAP)
        return str(self.cut(most - start))

    def cut(self, most: int) -> Table:
        """The table with at most ``most`` letters in its last column."""
        last = self.names[-1]
        rows = []
        for row in self.rows:
            rows.append({**row, last: cut_short(row[last], most)})
        return Table(rows, self.names)

    def __str__(self) -> str:
        # programs such as grep and less have to find every text
        return str(self.cut(sys.maxsize))

    def _repr_html_(self) -> str:
        return self.cut(MOST_LETTERS)._repr_html_()


Part = str | Table


class Answer:
    """A result that is shown to people; ``parts`` are its lines and tables from top to bottom."""

    @property
    def parts(self) -> Sequence[Part]:
        raise NotImplementedError

    def __str__(self) -> str:
        return "\n".join(str(part) for part in shown(self.parts))

    def _repr_html_(self) -> str:
        text = ""
        for part in shown(self.parts):
            if isinstance(part, Table):
                text += part._repr_html_()
            else:
                text += f"<div style='white-space:pre-wrap'>{escape(part) or '&nbsp;'}</div>"
        return text


def shown(parts: Sequence[Part]) -> list[Part]:
    """The parts of an answer, without the tables that have no rows."""
    return [part for part in parts if isinstance(part, str) or part.rows]


def _html(name: str, value: Any) -> str:
    kind = tone(name, value)
    tint = ""
    if kind in TINTS:
        tint = f";background:{TINTS[kind]}"
    return f"<td style='text-align:left{tint}'>{escape(cell(value))}</td>"


def attended() -> bool:
    """True if a person can answer a question that the running notebook asks."""
    shell = None
    if "IPython" in sys.modules:
        shell = sys.modules["IPython"].get_ipython()
    return bool(getattr(getattr(shell, "kernel", None), "_allow_stdin", False))
