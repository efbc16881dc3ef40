"""Tokens: how the units of an NPU wait for each other, and what waits for what in a stream of jobs.

A unit runs its jobs in their order. A job that pops a token begins when a job of another unit has
pushed it; the first pop takes the first push.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from npulab.captures.capture import Capture, Job
from npulab.support.files import read_table
from npulab.support.refuse import refuse_if

PUSH, POP = "push", "pop"


class Place(NamedTuple):
    """The ``unit`` that runs jobs of a ``block``; if a ``field`` is named, only jobs in which this
    field has the ``value``, as text."""

    block: str
    unit: str
    field: str = ""
    value: str = ""


class Pass(NamedTuple):
    """A ``field`` of the jobs of a ``unit``: if its raw value is not 0, a job pushes a token to the
    unit ``other`` (``act`` is "push"), or pops a token of that unit ("pop")."""

    unit: str
    field: str
    act: str
    other: str


@dataclass(frozen=True)
class Tokens:
    """What a target states of tokens: the unit of a job (that of the first of ``places`` that fits
    the job), and the fields that pass tokens (``passes``)."""

    places: tuple[Place, ...]
    passes: tuple[Pass, ...]

    def __post_init__(self) -> None:
        for row in self.passes:
            refuse_if(row.act not in (PUSH, POP), f"tokens: {row.field}", row.act, "is push or pop")

    @property
    def units(self) -> tuple[str, ...]:
        """The units that pass tokens, in the order of ``passes``, then those that only run jobs."""
        units = dict[str, None]()
        for passing in self.passes:
            units[passing.unit] = None
        for place in self.places:
            units[place.unit] = None
        return tuple(units)

    def unit_of(self, block: str, values: Mapping[str, Any]) -> str:
        """Return the unit that runs a job of ``block`` whose fields have ``values``, as texts by
        name; "" if no unit is stated."""
        for place in self.places:
            if place.block != block:
                continue
            if not place.field or str(values.get(place.field)) == place.value:
                return place.unit
        return ""

    def passed(self, unit: str, act: str, values: Mapping[str, Any]) -> list[str]:
        """Return the units to which a job of ``unit`` pushes a token, or from which it pops one, as
        ``act`` says; ``values`` are the job's raw values by field."""
        others = []
        for row in self.passes:
            if (row.unit, row.act) == (unit, act) and values.get(row.field):
                others.append(row.other)
        return others


def read_tokens(path: Path | str, places: Sequence[Place]) -> Tokens:
    """Read the table of the fields that pass tokens, with the columns unit, field, act and other.
    Raises ValueError for an act other than push and pop."""
    passes = []
    for row in read_table(path):
        passes.append(Pass(row["unit"], row["field"], row["act"], row["other"]))
    return Tokens(tuple(places), tuple(passes))


class Wait(NamedTuple):
    """A token that the job with the number ``task`` pops from the unit ``unit``; ``source`` is the
    number of the job that pushes it, None if no job does."""

    task: int
    unit: str
    source: int | None


@dataclass(frozen=True)
class Waits:
    """Which jobs of a stream wait for tokens: ``units`` has the unit of each job ("" if none is
    stated), ``waits`` a row for each token that a job pops, ``stuck`` the numbers of the jobs that
    never begin."""

    units: tuple[str, ...]
    waits: tuple[Wait, ...]
    stuck: tuple[int, ...]

    def of(self, task: int) -> list[Wait]:
        """The tokens that a job waits for."""
        return [wait for wait in self.waits if wait.task == task]

    def after(self, task: int) -> list[int]:
        """The numbers of the jobs that wait for a token that this job pushes."""
        return [wait.task for wait in self.waits if wait.source == task]

    @property
    def sentence(self) -> str:
        """How many jobs wait for another unit, and which job is the first that never begins."""
        count = len({wait.task for wait in self.waits})
        text = f"{count} jobs wait for another unit"
        if count == 1:
            text = "1 job waits for another unit"
        if self.stuck:
            first = self.stuck[0]
            text += f"; job {first} ({self.units[first]}) never begins"
            for wait in self.of(first):
                if wait.source is None:
                    text += f", no job of {wait.unit} pushes its token"
                    break
        return text


class Passed(NamedTuple):
    """The unit that runs a job ("" if none is stated), the units from which the job pops a token,
    and those to which it pushes one."""

    unit: str
    pops: tuple[str, ...]
    pushes: tuple[str, ...]

    def __str__(self) -> str:
        """Return the tokens in words.

        >>> print(Passed("load", (), ("compute", "store")))
        a job of unit load that pops of none and pushes to compute, store
        """
        pops = ", ".join(self.pops) or "none"
        pushes = ", ".join(self.pushes) or "none"
        return f"a job of unit {self.unit} that pops of {pops} and pushes to {pushes}"


def passed_by(job: Job, capture: Capture, tokens: Tokens) -> Passed:
    """Return the unit of a job and the tokens that the job passes, by the maps of its capture."""
    texts, raws = _values(job, capture)
    unit = tokens.unit_of(job.block, texts) or job.unit
    pops = tokens.passed(unit, POP, raws)
    pushes = tokens.passed(unit, PUSH, raws)
    return Passed(unit, tuple(pops), tuple(pushes))


def waits_of(capture: Capture, tokens: Tokens) -> Waits:
    """Return which jobs of a capture wait for tokens of which other jobs. Between two units, the
    first pop takes the first push."""
    units = []
    pushed: dict[tuple[str, str], list[int]] = {}
    popped: list[tuple[int, str]] = []
    for task, job in enumerate(capture.jobs):
        passed = passed_by(job, capture, tokens)
        units.append(passed.unit)
        for other in passed.pops:
            popped.append((task, other))
        for other in passed.pushes:
            pushed.setdefault((passed.unit, other), []).append(task)
    waits = []
    taken: dict[tuple[str, str], int] = {}
    for task, other in popped:
        way = other, units[task]
        number = taken.get(way, 0)
        taken[way] = number + 1
        source = None
        if number < len(pushed.get(way, ())):
            source = pushed[way][number]
        waits.append(Wait(task, other, source))
    return Waits(tuple(units), tuple(waits), _stuck(units, waits))


def _values(job: Job, capture: Capture) -> tuple[dict[str, str], dict[str, int]]:
    """Return the values of a job as texts, and as raw numbers, by the names of the fields."""
    texts = {}
    raws = {}
    for _, item, raw in job.values(capture.maps):
        texts[item.name] = str(item.text(raw))
        raws[item.name] = int(raw)
    return texts, raws


def _stuck(units: Sequence[str], waits: Sequence[Wait]) -> tuple[int, ...]:
    """Return the numbers of the jobs that never begin, if each unit runs its jobs in order and a
    job begins when all tokens that it pops were pushed."""
    needs: dict[int, list[int | None]] = {}
    for wait in waits:
        needs.setdefault(wait.task, []).append(wait.source)
    queues: dict[str, list[int]] = {}
    for task, unit in enumerate(units):
        queues.setdefault(unit, []).append(task)
    done: set[int] = set()
    at = dict.fromkeys(queues, 0)
    moved = True
    while moved:
        moved = False
        for unit, queue in queues.items():
            while at[unit] < len(queue) and done.issuperset(needs.get(queue[at[unit]], ())):
                done.add(queue[at[unit]])
                at[unit] += 1
                moved = True
    return tuple(task for task in range(len(units)) if task not in done)
