"""The check of many captures: a line each, how many differ, and why where that is asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from npulab.analysis.check import Comparison
from npulab.analysis.mismatch.hypotheses import hypotheses, summary_lines
from npulab.support.answers import Answer, Part, Table
from npulab.support.late import pd
from npulab.support.text import Row, indented, plural, rows_of

COLUMNS = (
    "case",
    "target",
    "provenance",
    "words",
    "coefficients",
    "compared",
    "mismatches",
    "verdict",
    "predicted or reason",
)


@dataclass(frozen=True, eq=False)
class Checks(Answer):
    """Captures that were checked, and how many could not be read.

    ``explanations``, where they are asked for, are by the number of a result what ``nearby`` gives.
    """

    results: Sequence[Comparison]
    unreadable: int = 0
    explanations: Mapping[int, pd.DataFrame | str] | None = None

    @property
    def ok(self) -> bool:
        """Nothing differs."""
        return all(result.ok for result in self.results)

    @property
    def empty(self) -> bool:
        """Whether outputs were recorded, and of no capture any was compared."""
        recorded = any(result.left for result in self.results)
        return recorded and not any(result.compared for result in self.results)

    def records(self) -> list[Row]:
        rows = [row for result in self.results for row in result.records()]
        if self.explanations is not None:
            tables = (self.explanations.get(number, "") for number in range(len(rows)))
            rows = [
                {**row, "explanations": [] if isinstance(table, str) else rows_of(table)}
                for row, table in zip(rows, tables, strict=True)
            ]
        return rows

    @property
    def parts(self) -> list[Part]:
        rows = [{**row, **_outcome(result)} for result in self.results for row in result.records()]
        parts: list[Part] = [Table(rows, COLUMNS), self._sentence()]
        if self.explanations is not None:
            for number, result in enumerate(self.results):
                parts += explained(result, self.explanations.get(number))
        return parts

    def __repr__(self) -> str:
        return f"Checks({self._sentence()})"

    def _sentence(self) -> str:
        counts = Counter(result.verdict for result in self.results)
        bad = sum(not result.ok for result in self.results)
        open_ = sum(not result.complete for result in self.results)
        parts = [plural(len(self.results), "capture"), "1 differs" if bad == 1 else f"{bad} differ"]
        if open_:
            parts.append(f"{open_} with nothing or not all compared")
        if self.unreadable:
            parts.append(f"{self.unreadable} unreadable")
        verdicts = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
        return ", ".join(parts) + (f" ({verdicts})" if verdicts else "")


def nearby(result: Comparison, progress: Callable[[Any], Iterable[Any]]) -> pd.DataFrame | str:
    """The hypotheses on what differs, or a sentence that says why there are none."""
    try:
        return hypotheses(result, progress=progress)
    except ValueError as error:
        return f"no other explanation is tried: {' '.join(str(error).split())}"


def explained(result: Comparison, near: pd.DataFrame | str | None) -> list[str]:
    """A comparison in lines, a blank one first, with what ``nearby`` gave."""
    if near is None:
        lines = []
    elif isinstance(near, str):
        lines = [near]
    else:
        lines = summary_lines(near)
    return ["", str(result), *indented(lines)]


def _outcome(result: Comparison) -> Row:
    """The columns of a line that are not those of the record."""
    if not result.compared:
        seen = {"compared": None, "mismatches": None}
        unread = result.verdict == "differs" and not result.claims_wrong
        return {
            **seen,
            "predicted or reason": f"not compared: {result.reason}" if unread else result.reason,
        }
    if result.verdict != "differs":
        return {"predicted or reason": result.shown or result.reason}
    unseen = result.captured is None or not result.mismatches
    return {"predicted or reason": result.reason if result.claims_wrong or unseen else ""}
