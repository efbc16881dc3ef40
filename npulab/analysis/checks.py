"""The check of many captures: a line for each capture, the number of captures that differ, and
explanations if they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from threading import Event
from typing import Any

from npulab.analysis.check import Comparison, check
from npulab.analysis.compared import counted
from npulab.analysis.mismatch.hypotheses import hypotheses, summary_lines
from npulab.analysis.mismatch.summary import where
from npulab.captures.capture import Capture
from npulab.support.answers import Answer, Part, Table
from npulab.support.executors import Workers, ordered
from npulab.support.late import pd
from npulab.support.text import Row, indented, rows_of

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
    """The results of checks, and the number of captures that could not be read.

    ``explanations`` has what ``nearby`` returned for a result, by the number of the result, from 0;
    None if explanations were not asked for.
    """

    results: Sequence[Comparison]
    unreadable: int = 0
    explanations: Mapping[int, pd.DataFrame | str] | None = None

    @property
    def ok(self) -> bool:
        """True if no result differs."""
        return all(result.ok for result in self.results)

    @property
    def empty(self) -> bool:
        """True if no output was compared, although at least one capture has recorded outputs."""
        recorded = any(result.left for result in self.results)
        return recorded and not any(result.compared for result in self.results)

    def records(self) -> list[Row]:
        rows = []
        for number, result in enumerate(self.results):
            [row] = result.records()
            if self.explanations is not None:
                table = self.explanations.get(number, "")
                row["explanations"] = []
                if not isinstance(table, str):
                    row["explanations"] = rows_of(table)
            rows.append(row)
        return rows

    @property
    def parts(self) -> list[Part]:
        rows = []
        for result in self.results:
            [row] = result.records()
            if not result.compared:
                row |= {"compared": None, "mismatches": None}
            row["predicted or reason"] = _outcome(result)
            rows.append(row)
        parts: list[Part] = [Table(rows, COLUMNS), self._sentence()]
        if self.explanations is not None:
            for number, result in enumerate(self.results):
                parts += explained(result, self.explanations.get(number))
        return parts

    def __repr__(self) -> str:
        return f"Checks({self._sentence()})"

    def _sentence(self) -> str:
        unlike = sum(not result.complete for result in self.results)
        others = {"with nothing or not all compared": unlike, "unreadable": self.unreadable}
        return counted(self.results, "", ("differs", "differ"), others)


def check_all(
    captures: Iterable[Capture],
    executor: Workers = None,
    *,
    stop: Event | None = None,
    progress: Callable[[int], object] | None = None,
) -> Checks:
    """Check captures as ``npulab.check`` does, by the workers of an executor; the results are in
    the order of the captures, for any number of workers.

    Each capture is taken from ``captures`` only when it is sent to a worker, so a generator may
    read captures one by one. Executors are those of ``ordered`` in ``npulab.support.executors``. If
    ``stop`` is set, the results of further captures are missing. ``progress`` is called with the
    number of captures that are done.
    """
    results = []
    for _, result in ordered(check, captures, executor, stop=stop):
        results.append(result)
        if progress is not None:
            progress(len(results))
    return Checks(results)


def nearby(result: Comparison, progress: Callable[[Any], Iterable[Any]]) -> pd.DataFrame | str:
    """Return a table of the changes that may explain a difference, as ``hypotheses`` returns it, or
    a sentence that says why none is tried.
    """
    try:
        return hypotheses(result, progress=progress)
    except ValueError as error:
        return f"no other explanation is tried: {' '.join(str(error).split())}"


def explained(result: Comparison, near: pd.DataFrame | str | None) -> list[str]:
    """Return a result as lines, after a blank line, with the explanations that ``nearby`` returned
    for it."""
    lines: list[str] = []
    if isinstance(near, str):
        lines = [near]
    elif near is not None:
        lines = summary_lines(near)
    if result.captured is not None and result.captured.ndim == 3 and near is not None:
        lines.insert(0, f"where: {where(result) or 'spread'}")
    lines = list(filter(None, lines))
    return ["", str(result), *indented(lines)]


def _outcome(result: Comparison) -> str:
    """Return the last column of a result's row: its first predicted bytes, or its reason."""
    wrong = result.verdict == "differs"
    if not result.compared:
        if wrong and not result.claims_wrong:
            return f"not compared: {result.reason}"
        return result.reason
    if not wrong:
        return result.shown or result.reason
    # if outputs differ, the counts of the row show it, so no reason is needed
    if result.claims_wrong or result.captured is None or not result.mismatches:
        return result.reason
    return ""
