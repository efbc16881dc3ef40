"""The table "What a wrong field does" of an NPU's page, against what its simulated device does.

A test states for each row the changes that show it. All outcomes that a row names are tried, and no
other may come; a hang is a guess if the row says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from case_tables import fields

import npulab
from npulab.analysis.ignored import _other_values, changeable
from npulab.captures.capture import Capture
from npulab.captures.target import Hang, Run, Unsupported
from npulab.support.files import read_table

HEAD = "## What a wrong field does\n"
COLUMNS = ["the simulated device", "how that is known"]
OUTCOMES = ("ignored", "other bytes", "hang", "refused")
PAGES = Path(npulab.__file__).parent / "npus"


@dataclass(frozen=True)
class Wrong:
    """A change of the good capture ``of``: fields of job ``task``, or what ``change`` makes of the
    capture. ``outcome`` is one of ``OUTCOMES``; ``why`` is a pattern for the reason of a hang or of
    a refusal."""

    of: str
    fields: Mapping[str, int] = field(default_factory=dict)
    outcome: str = "ignored"
    why: str = ""
    task: int | None = None
    change: Callable[[Capture], Capture] = lambda capture: capture

    def changed(self, good: Capture) -> Capture:
        return self.change(good.with_fields(self.task, **self.fields))


def wrong_rows(path: Path) -> dict[str, tuple[Wrong, ...]]:
    """The changes in a table (row of the page, good capture, fields, outcome, why, task), by the
    row that they show."""
    rows: dict[str, tuple[Wrong, ...]] = {}
    for row in read_table(path):
        task = int(row["task"]) if row["task"] else None
        wrong = Wrong(row["good"], fields(row["fields"]), row["outcome"], row["why"], task)
        rows[row["row"]] = (*rows.get(row["row"], ()), wrong)
    return rows


def rows_of(npu: str) -> dict[str, tuple[str, str]]:
    """What the device does, and how that is known, by the first cell of each row of the table."""
    text = (PAGES / npu / "README.md").read_text(encoding="utf-8")
    section = text.partition(HEAD)[2].partition("\n## ")[0]
    rows: dict[str, tuple[str, str]] = {}
    inside = False
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split(" | ")]
        if cells[1:] == COLUMNS:
            inside = True
        elif not line.startswith("|"):
            inside = False
        elif inside and set(line) != set("| -"):
            what, does, known = cells
            rows[what] = does, known
    return rows


def ended(good: Capture, changed: Capture) -> tuple[str, Run]:
    """The outcome of a changed capture, one of ``OUTCOMES``, and its run."""
    simulate = npulab.target(good.target).simulate
    usual = simulate(good)
    assert usual
    try:
        (run,) = simulate([changed])
    except Unsupported as error:
        return "refused", Run("", reason=str(error))
    if run.outcome == "hang":
        return "hang", run
    if run.output == usual:
        return "ignored", run
    return "other bytes", run


def check_row(npu: str, row: str, goods: Mapping[str, Capture], tries: Iterable[Wrong]) -> None:
    """Assert that a row is what the device does in all tries, and that nothing it names is left
    untried."""
    does, known = rows_of(npu)[row]
    named = {outcome for outcome in OUTCOMES if re.search(rf"\b{outcome}\b", does)}
    tried = set()
    for wrong in tries:
        good = goods[wrong.of]
        outcome, run = ended(good, wrong.changed(good))
        assert (wrong.fields, outcome) == (wrong.fields, wrong.outcome), run.reason
        assert re.search(wrong.why, run.reason), run.reason
        assert run.guessed == (outcome == "hang" and "guess" in known)
        tried.add(outcome)
    assert tried == named
    assert known


def unnamed_reasons(good: Capture, rows: Mapping[str, Iterable[Wrong]]) -> set[str]:
    """The reasons of hangs and refusals, of every field of a capture with other values, that no
    try of any row names."""
    patterns = [wrong.why for tries in rows.values() for wrong in tries if wrong.why]
    simulate = npulab.target(good.target).simulate
    found = set()
    for *_, item, raw, changed in changeable(good):
        for value in _other_values(item, raw):
            try:
                simulate(changed(value))
            except (Hang, Unsupported) as error:
                if not any(re.search(pattern, str(error)) for pattern in patterns):
                    found.add(f"{item.register}.{item.name} = {value}: {error}")
    return found
