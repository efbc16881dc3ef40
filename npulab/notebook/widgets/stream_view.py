"""The jobs of a capture, a row each: what they are, the fields that matter, which job waits for
which, and the bits and fields of a chosen job.

``StreamModel`` holds the state and all the logic and needs no browser; ``StreamView`` shows it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from traitlets import Dict, List, observe

from npulab.captures.capture import Capture
from npulab.captures.lines import Line, lines_of
from npulab.captures.registry import stated_target
from npulab.captures.tokens import Tokens, Waits, waits_of
from npulab.notebook.widgets.bits_view import facts_of
from npulab.notebook.widgets.frame import NameIn, Numbers, RowsModel, View, assets, table_html
from npulab.notebook.widgets.register_view import JobBits
from npulab.support.refuse import need
from npulab.support.text import plural

NEVER = "a token that never comes"
# the page gets these attributes of an opened job, and the facts that its map decides
OF_JOB = ("title", "summary", "filter", "words", "reference", "values")


@dataclass(frozen=True)
class StreamRow:
    """A job of a stream: its line, the unit that runs it, the jobs that it waits for (``before``;
    None for a token that no job pushes), the jobs that wait for it (``after``), and ``stuck``,
    True if it never begins."""

    line: Line
    unit: str = ""
    before: tuple[int | None, ...] = ()
    after: tuple[int, ...] = ()
    stuck: bool = False

    @property
    def waits(self) -> str:
        """The jobs and missing tokens that the job waits for, as text."""
        texts = []
        for job in self.before:
            text = NEVER
            if job is not None:
                text = str(job)
            texts.append(text)
        return ", ".join(texts)

    @property
    def releases(self) -> str:
        """The numbers of the jobs that wait for this job, as text."""
        return ", ".join(map(str, self.after))

    @property
    def text(self) -> str:
        """All that is known of the job, in one line."""
        parts = [f"job {self.line.task} {self.line.kind}", self.line.name]
        if self.unit and self.unit != self.line.name:
            parts.append(f"{self.unit} unit")
        if self.before:
            parts.append(f"waits for {self.waits}")
        if len(self.after) == 1:
            parts.append(f"{self.releases} waits for it")
        elif self.after:
            parts.append(f"{self.releases} wait for it")
        if self.stuck:
            parts.append("never begins")
        return " · ".join(filter(None, [*parts, self.line.fields]))


class JobModel(JobBits):
    """The words of a job of a stream, compared with the job of its kind before it, if there is a
    job that writes the same registers.
    """

    def __init__(self, capture: Capture, line: Line) -> None:
        job = capture.jobs[line.task]
        self.like = None
        reference = job
        if line.like is not None:
            other = capture.jobs[line.like]
            if list(dict(other.writes)) == list(dict(job.writes)):
                self.like, reference = line.like, other
        super().__init__(capture, line.task, reference)

    @property
    def compared(self) -> str:
        return f"job {self.like}"

    @property
    def unchanged(self) -> str:
        if self.like is None:
            return "no job of this kind stands before it"
        return super().unchanged


class StreamModel(RowsModel):
    """The jobs of a capture as rows, with the fields of one of them; it needs no browser.

    ``rows`` are all jobs. These can be set and observed: ``block`` (only jobs of this block are
    shown, "" shows all), ``selected`` (the number of a shown job; -1 if none is shown) and
    ``opened`` (the number of the job whose bits and fields are shown, -1 for none). ``shown``
    (numbers of jobs), ``summary`` and ``fields`` (a ``JobModel`` of the opened job, or None)
    follow.

    ``press`` gives a message of the page, such as a filter, to ``fields``; ``filtered`` then has
    the filter, the indices of the fields that it keeps, and a status.

    If the target states tokens (``Target.tokens``), ``waits`` says which job waits for which.

    Raises LookupError for an unknown block, ValueError for a job that the capture does not have.

    >>> from npulab.bits import RegisterMap
    >>> from npulab.capture import Job
    >>> size = {"field": "size", "lsb": 0, "width": 8}
    >>> maps = {block: RegisterMap([{"block": block, **size}]) for block in "AB"}
    >>> jobs = Job("A", [4]), Job("B", [0]), Job("A", [5])
    >>> model = StreamModel(Capture("a", "demo", "x", jobs, maps=maps))
    >>> model.block = "A"
    >>> model.shown, model.summary
    ([0, 2], '3 jobs: 2 A, 1 B; 2 shown')
    >>> model.opened = 2
    >>> model.fields.summary
    '1 bit in 1 field differs from job 0: size 4 → 5'
    """

    block = NameIn("blocks")
    selected = Numbers("job", -1, lambda owner, _: [(-1, owner.count)])
    opened = Numbers("job", -1, lambda owner, _: [(-1, owner.count)])
    job: Dict[str, Any] = Dict(read_only=True)
    filtered: Dict[str, Any] = Dict(read_only=True)

    def __init__(self, capture: Capture) -> None:
        need("StreamView", capture, Capture, "is a Capture, as npulab.load gives")
        self.capture = capture
        self.tokens = _tokens_of(capture)
        self.waits: Waits | None = None
        if self.tokens is not None:
            self.waits = waits_of(capture, self.tokens)
        self.rows = _rows_of(lines_of(capture).lines, self.waits)
        self._counts = Counter[str]()  # the number of jobs of each block
        for row in self.rows:
            self._counts[row.line.block] += 1
        self.blocks = tuple(self._counts)
        self.fields: JobModel | None = None
        super().__init__()
        self._filter(None)

    # ---- the state as text ----

    @property
    def title(self) -> str:
        return f"{self.capture.target}/{self.capture.name}"

    @property
    def simulated(self) -> bool:
        return self.capture.simulated

    @property
    def line(self) -> str:
        return f"{self.marked_title}; {self.summary}"

    @property
    def units(self) -> tuple[str, ...]:
        """The units that run jobs of this stream, in the order of the target's statement; empty
        without a statement of tokens."""
        if self.tokens is None or self.waits is None:
            return ()
        used = set(self.waits.units) - {""}
        units = dict.fromkeys([*self.tokens.units, *self.waits.units])
        return tuple(filter(used.__contains__, units))

    @property
    def columns(self) -> tuple[str, ...]:
        columns = ["job", "what"]
        if any(row.line.name for row in self.rows):
            columns.append("name")
        if self.units:
            columns += ["unit", "waits for", "releases"]
        return (*columns, "fields")

    def cells(self, task: int) -> list[str]:
        """Return the texts of a job's row, a text for each of ``columns``."""
        row = self.rows[task]
        texts = {
            "job": str(task),
            "what": row.line.kind,
            "name": row.line.name,
            "unit": row.unit,
            "waits for": row.waits,
            "releases": row.releases,
            "fields": row.line.fields,
        }
        return [texts[name] for name in self.columns]

    # ---- what follows from the traits ----

    @observe("block")
    def _filter(self, _: Any) -> None:
        shown = []
        for row in self.rows:
            if self.block in ("", row.line.block):
                shown.append(row.line.task)
        self.show_rows(shown)

    @observe("opened")
    def _open(self, change: Any) -> None:
        self.fields = None
        if change.new >= 0:
            self.fields = JobModel(self.capture, self.rows[change.new].line)
            if change.new not in self.shown:
                self.block = ""
            self.selected = change.new
        self.set_trait("filtered", {})
        self.set_trait("job", _facts_of(self.fields))

    def press(self, message: Any) -> None:
        """Act on a message of the page about the opened job, as ``BitsModel.press`` does; nothing
        happens if no job is opened."""
        if self.fields is not None:
            self.fields.press(message)
            filtered = {}
            for name in ("filter", "kept", "status"):
                filtered[name] = getattr(self.fields, name)
            self.set_trait("filtered", filtered)

    def _summary(self) -> str:
        blocks = ", ".join(f"{count} {block}" for block, count in self._counts.items())
        parts = [plural(self.count, "job")]
        if blocks:
            parts[0] += f": {blocks}"
        if self.units and self.waits is not None:
            parts.append(self.waits.sentence)
        if len(self.shown) < self.count:
            parts.append(f"{len(self.shown)} shown")
        return "; ".join(parts)

    def _repr_html_(self) -> str:
        face = self.heading_html() + table_html(self.columns, map(self.cells, self.shown))
        if self.fields is not None:
            face += self.fields._repr_html_()
        return face


class StreamView(View):
    """The jobs of a capture, a row each, with the jobs that each waits for if the target states
    tokens: arrows step through the jobs, Enter shows the bits and fields of a job and Escape goes
    back, b shows one block, w and r follow the tokens.

    ``block``, ``selected`` and ``opened`` are the model's and can be set and observed; ``shown``,
    ``summary`` and ``selection`` follow them. Everything else is on ``model``.
    """

    _esm, _css = assets("rows", "bits_view", "stream_view")
    _of, _linked = StreamModel, ("block", "selected", "opened")
    _followed = ("shown", "job", "filtered")
    _fixed = ("columns", "units", "blocks")

    rows: List[Any] = List()

    def __init__(self, capture: Capture) -> None:
        model = StreamModel(capture)
        rows = []
        for row in model.rows:
            rows.append(
                {
                    "cells": model.cells(row.line.task),
                    "line": row.text,
                    "before": [task for task in row.before if task is not None],
                    "after": list(row.after),
                    "stuck": row.stuck,
                }
            )
        super().__init__(model, rows=rows)


def _tokens_of(capture: Capture) -> Tokens | None:
    """Return the tokens that the target of a capture states; None for an unknown target."""
    try:
        return stated_target(capture.target).tokens
    except (ValueError, LookupError):
        return None


def _rows_of(lines: Sequence[Line], waits: Waits | None) -> tuple[StreamRow, ...]:
    if waits is None:
        return tuple(map(StreamRow, lines))
    rows = []
    for line in lines:
        before = tuple(wait.source for wait in waits.of(line.task))
        after = tuple(waits.after(line.task))
        stuck = line.task in waits.stuck
        rows.append(StreamRow(line, waits.units[line.task], before, after, stuck))
    return tuple(rows)


def _facts_of(model: JobModel | None) -> Mapping[str, Any]:
    """Return the facts that the page needs to show a job, by name; no facts for None."""
    if model is None:
        return {}
    facts = {name: getattr(model, name) for name in OF_JOB}
    return {**facts, **facts_of(model)}
