"""A model on an NPU: its operators, the jobs of each operator, the fields of each job, and the
values that a field has in the jobs of each operator.

``OperatorsModel`` holds the state and all the logic and needs no browser; ``OperatorsView`` shows
it.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from traitlets import Int, List, Unicode, observe

from npulab.analysis.lowered import ModelJobs
from npulab.captures.capture import Capture
from npulab.notebook.widgets.bits_view import Rows, meant
from npulab.notebook.widgets.frame import Model, NameIn, Numbers, View, assets, table_html
from npulab.notebook.widgets.register_view import map_of, words_of
from npulab.support.refuse import need, shortly
from npulab.support.text import plural

VALUES = 4  # at most this many values of a field are named for an operator


class Operator(NamedTuple):
    """An operator of a model: its name, and the capture of its jobs, or None and the reason why
    there is no capture.
    """

    name: str
    capture: Capture | None
    reason: str = ""


class FieldRow(NamedTuple):
    """A field of a job as texts: its key in the job's map, its bits, raw and value, evidence and
    note.
    """

    key: str
    bits: str
    raw: str
    value: str
    evidence: str
    note: str


class OperatorsModel(Model):
    """The operators of a model with their jobs and fields; it needs no browser.

    ``operators`` has for each operator its name and either a capture or, as text, the reason for
    no capture. These can be set and observed: ``operator`` (the number of the chosen operator),
    ``job`` (the number of one of its jobs) and ``field`` (the key of one of the job's fields, or
    ""). These follow: ``jobs`` (for each job of the operator its number, block and name),
    ``fields`` (``FieldRow`` as lists) and ``values`` (for each operator its values of the chosen
    field in jobs of the same block, as text; "" if it has none).

    Raises ValueError for no operators, TypeError for an operator that is not a pair of a name and a
    capture, or of a name and a reason.

    >>> from npulab.captures.capture import Job
    >>> from npulab.registers.map import RegisterMap
    >>> registers = RegisterMap([dict(block="NN", field="relu", lsb=0, width=1)])
    >>> one, two = (Capture(name, "demo", "x", (Job("NN", [word]),), maps={"NN": registers})
    ...             for name, word in (("a", 0), ("b", 1)))
    >>> model = OperatorsModel([("conv", one), ("softmax", "no unit does it"), ("conv 2", two)])
    >>> model.field = "relu"
    >>> model.values, model.summary
    (['0', '', '1'], '2 of 3 operators in 2 jobs; relu: 0 in 1, 1 in 1')
    """

    operator = Numbers("operator", 0, lambda owner, _: [(0, len(owner.operators))])
    job = Numbers("job", 0, lambda owner, _: [(0, max(1, len(owner.jobs)))])
    field = NameIn("field_names")
    jobs: List[Any] = List(read_only=True)
    fields: List[Any] = List(read_only=True)
    values = List(Unicode(), read_only=True)
    summary = Unicode()
    turn = Int(read_only=True)

    def __init__(
        self, operators: ModelJobs | Sequence[tuple[str, Capture | str]], name: str = ""
    ) -> None:
        need("OperatorsView: name", name, str, "is a text")
        self.operators = _operators(operators)
        self.name = name
        self._read: dict[tuple[int, int], dict[str, FieldRow]] = {}
        super().__init__()
        for number, one in enumerate(self.operators):
            if one.capture is not None:
                self.operator = number
                break
        self._chosen(None)

    @property
    def title(self) -> str:
        count = plural(len(self.operators), "operator")
        if self.name:
            return f"{self.name}: {count}"
        return count

    @property
    def simulated(self) -> bool:
        return any(capture.simulated for capture in self._captures)

    @property
    def field_names(self) -> list[str]:
        """The keys of the fields of the chosen job."""
        return [*map(itemgetter(0), self.fields)]

    @property
    def _captures(self) -> list[Capture]:
        return [one.capture for one in self.operators if one.capture is not None]

    @property
    def capture(self) -> Capture | None:
        """The capture of the chosen operator; None for an operator without a capture."""
        return self.operators[self.operator].capture

    @property
    def rows(self) -> list[list[str]]:
        """For each operator its name, and the number of its jobs or the reason for no capture."""
        rows = []
        for one in self.operators:
            told = one.reason
            if one.capture is not None:
                told = plural(len(one.capture.jobs), "job")
            rows.append([one.name, told])
        return rows

    @observe("operator")
    def _chosen(self, _: Any) -> None:
        jobs = []
        if self.capture is not None:
            for number, job in enumerate(self.capture.jobs):
                jobs.append([number, job.block, job.name])
        with self.hold_trait_notifications():
            self.set_trait("jobs", jobs)
            self.job = min(self.job, max(0, len(jobs) - 1))
        self._open(None)

    @observe("job")
    def _open(self, _: Any) -> None:
        fields = self._fields(self.operator, self.job)
        self.set_trait("fields", [*map(list, fields.values())])
        if self.field not in fields:
            self.field = ""
        self._compare(None)

    @observe("field")
    def _compare(self, _: Any) -> None:
        self.set_trait("values", [*map(self._values, range(len(self.operators)))])
        self.summary = self._told()
        self.set_trait("turn", self.turn + 1)

    def _values(self, operator: int) -> str:
        """Return as text the chosen field's values in an operator's jobs of the same block."""
        capture = self.operators[operator].capture
        if not self.field or capture is None:
            return ""
        block = self.jobs[self.job][1]
        found = dict[str, None]()
        for number, job in enumerate(capture.jobs):
            row = self._fields(operator, number).get(self.field)
            if job.block == block and row is not None:
                found[row.value] = None
        values = list(found)
        if len(values) > VALUES:
            values[VALUES - 1 :] = ["…"]
        return ", ".join(values)

    def _fields(self, operator: int, number: int) -> dict[str, FieldRow]:
        """Return the fields of a job by key; none for an operator without a capture."""
        capture = self.operators[operator].capture
        if capture is None:
            return {}
        if (operator, number) not in self._read:
            job = capture.jobs[number]
            rows = Rows.of(job, map_of(capture, job))
            read = {}
            raws = rows.raw(words_of(job))
            for key, item, raw in zip(rows.names, rows.fields, raws, strict=True):
                texts = rows.bits(item), f"{raw:#x}", meant(item, raw), item.evidence, item.note
                read[key] = FieldRow(key, *texts)
            self._read[operator, number] = read
        return self._read[operator, number]

    def _told(self) -> str:
        captures = self._captures
        jobs = sum(len(capture.jobs) for capture in captures)
        told = f"{len(captures)} of {plural(len(self.operators), 'operator')}"
        told += f" in {plural(jobs, 'job')}"
        if self.field:
            counts = []
            for value in dict.fromkeys(filter(None, self.values)):
                counts.append(f"{value} in {self.values.count(value)}")
            told += f"; {self.field}: {', '.join(counts)}"
        return told

    def _repr_html_(self) -> str:
        head = ["operator", "jobs"]
        rows = self.rows
        if self.field:
            head.append(html.escape(self.field))
            for row, value in zip(rows, self.values, strict=True):
                row.append(value)
        face = self.heading_html() + table_html(head, rows)
        if not self.fields:
            return face
        name = self.operators[self.operator].name
        shown = [row for row in self.fields if row[2] != "0x0"]
        told = f"{name}, job {self.job} {self.jobs[self.job][1]}: "
        told += f"{len(shown)} of {len(self.fields)} fields not zero"
        face += f"<p>{html.escape(told)}</p>"
        return face + table_html(("field", *FieldRow._fields[1:]), shown)


class OperatorsView(View):
    """The operators of a model, the jobs of the chosen one, and the fields of a job, in three lists
    beside each other; a chosen field shows its value beside every operator.

    ``operators`` are what ``lower_model`` returns, or pairs of a name and either a capture or the
    reason for no capture; ``name`` is the model's. Up and down move in a list, right and left go to
    the next list and back, n and p go to the next operator with another value of the field, /
    searches fields. ``operator``, ``job`` and ``field`` are the model's and can be set and
    observed. Everything else is on ``model``.
    """

    _esm, _css = assets("rows", "operators_view")
    _of, _linked = OperatorsModel, ("operator", "job", "field")
    _together = ("jobs", "fields", "values")
    _fixed = ("rows",)

    def __init__(
        self, operators: ModelJobs | Sequence[tuple[str, Capture | str]], name: str = ""
    ) -> None:
        super().__init__(OperatorsModel(operators, name))


def _pairs(given: ModelJobs) -> list[tuple[str, Capture | str]]:
    """Return (number and name, capture or the reason for no capture) for each operator."""
    pairs: list[tuple[str, Capture | str]] = []
    for one in given.operators:
        name = f"{one.operator} {one.name}"
        if one.capture is None:
            pairs.append((name, one.reason))
        else:
            pairs.append((name, one.capture))
    return pairs


def _operators(given: Any) -> tuple[Operator, ...]:
    allowed = (
        "allowed are pairs of a name and a Capture (or the reason for no capture), or what "
        "lower_model returns"
    )
    if isinstance(given, ModelJobs):
        given = _pairs(given)
    if not isinstance(given, list | tuple):
        raise TypeError(f"OperatorsView: operators: got {shortly(given)}, {allowed}")
    found = []
    for number, pair in enumerate(given):
        match pair:
            case [str(name), Capture() as capture]:
                found.append(Operator(name, capture))
            case [str(name), str(reason)]:
                found.append(Operator(name, None, reason))
            case _:
                raise TypeError(f"OperatorsView: operator {number}: got {shortly(pair)}, {allowed}")
    if not found:
        raise ValueError(f"OperatorsView: operators: got no operator, {allowed}")
    return tuple(found)
