"""The jobs of a capture, one line for each: what the job is, and those of its fields that changed
or are not 0."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from npulab.captures.capture import Capture
from npulab.captures.listing import about
from npulab.captures.roles import kinds_of
from npulab.registers.commands import opcodes
from npulab.registers.fields import Field
from npulab.support.answers import Answer, Lines, Part
from npulab.support.late import pd
from npulab.support.refuse import near, need, refuse_if
from npulab.support.text import Row, as_address

COLUMNS = ("task", "block", "kind", "name", "like", "changed", "others")
# Stands between the fields that differ from the last job of the same kind, and the other fields.
APART = " · "
LEGEND = "before the ·: the fields that differ from the job of the same kind before it"
TASKS = re.compile(r"(\d+)(?:-(\d+))?")


class Line(NamedTuple):
    """The line of a job.

    ``kind`` is the job's block, followed by the value of the field that divides the jobs of the
    block, if there is one (``LOAD inp``). ``name`` is the job's label and unit. ``like`` is the
    number of the last job of the same kind before this job, None if there is none. A field is a
    text, name and value: the fields in ``changed`` differ from the job ``like``; the fields in
    ``others`` do not, and are not 0. The opcode is left out, as the block tells it.
    """

    task: int
    block: str
    kind: str
    name: str
    like: int | None
    changed: tuple[str, ...]
    others: tuple[str, ...]

    @property
    def pieces(self) -> list[str]:
        """The text of all fields (``fields``) in pieces, one for each field."""
        first = list(self.changed)
        if self.like is not None:
            if not first:
                first = [f"as job {self.like}"]
            first[-1] += APART
        texts = []
        for number, text in enumerate([*first, *self.others]):
            if number not in (0, len(first)) or (number and not first):
                text = f", {text}"
            texts.append(text)
        if texts:
            texts[-1] = texts[-1].removesuffix(APART)
        return texts

    @property
    def fields(self) -> str:
        """All fields as one text: first ``changed``, then ``others``."""
        return "".join(self.pieces)


@dataclass(frozen=True, eq=False)
class JobLines(Answer):
    """The jobs of a capture with the numbers ``tasks``, one line for each; ``hint`` is a last line
    for the reader."""

    capture: Capture
    tasks: Sequence[int]
    hint: str = ""

    @cached_property
    def lines(self) -> list[Line]:
        chosen = set(self.tasks)
        return [line for line in _lines(self.capture) if line.task in chosen]

    @property
    def table(self) -> pd.DataFrame:
        """A row for each job, with the columns ``COLUMNS``."""
        return pd.DataFrame(self.lines, columns=[*COLUMNS])

    def records(self) -> list[Row]:
        return [line._asdict() for line in self.lines]

    @property
    def parts(self) -> list[Part]:
        rows: list[Row] = []
        for line in self.lines:
            rows.append(
                {"task": line.task, "job": line.kind, "name": line.name, "fields": line.pieces}
            )
        names = ["task", "job", "name", "fields"]
        if not any(line.name for line in self.lines):
            names.remove("name")
        parts: list[Part] = [*about(self.capture), Lines(rows, names)]
        if any(line.like is not None for line in self.lines):
            parts.append(LEGEND)
        if self.hint:
            parts.append(self.hint)
        return parts

    def __len__(self) -> int:
        return len(self.tasks)


def lines_of(
    capture: Capture, tasks: str | None = None, block: str | None = None, hint: str = ""
) -> JobLines:
    """Return the jobs of a capture, one line for each; ``tasks`` and ``block`` choose jobs, as in
    ``chosen_tasks``."""
    need("lines_of", capture, Capture, "is a Capture, as npulab.load gives")
    return JobLines(capture, chosen_tasks(capture, tasks, block), hint)


def chosen_tasks(capture: Capture, tasks: str | None = None, block: str | None = None) -> list[int]:
    """Return the numbers of the jobs in ``tasks`` (``3``, ``3-7``, several with commas between), by
    default of all jobs; if a ``block`` is given, only of its jobs.

    Raises LookupError for a job or a block that the capture does not have, and ValueError for any
    other text in ``tasks``.
    """
    end = len(capture.jobs)
    chosen = set(range(end))
    if tasks is not None:
        chosen = set()
        for part in tasks.split(","):
            chosen |= set(_range_of(part.strip(), capture))
    if block is not None:
        blocks = sorted({job.block for job in capture.jobs})
        if block not in blocks:
            raise LookupError(
                f"--block: got {block!r}, allowed are the blocks of the jobs of {capture.name}: "
                f"{', '.join(blocks)}{near(block, blocks)}"
            )
        of_block = set()
        for task in chosen:
            if capture.jobs[task].block == block:
                of_block.add(task)
        chosen = of_block
    return sorted(chosen)


def _range_of(text: str, capture: Capture) -> range:
    found = TASKS.fullmatch(text)
    refuse_if(not found, "--task", repr(text), "is the number of a job, or a range such as 3-7")
    assert found is not None
    first = int(found[1])
    last = int(found[2] or first)
    end = len(capture.jobs)
    if not first <= last < end:
        raise LookupError(
            f"--task: got {text}, allowed are the jobs of {capture.name}, 0 to {end - 1}"
        )
    return range(first, last + 1)


def _lines(capture: Capture) -> list[Line]:
    said = set()  # the opcodes: the block of a job tells their values
    if len(capture.maps) > 1:
        said = {(block, item.name) for block, item in opcodes(capture.maps).items()}
    before: dict[tuple[str, str], tuple[int, dict[tuple[str, str, str], int]]] = {}
    lines = []
    for task, (job, kind) in enumerate(zip(capture.jobs, kinds_of(capture), strict=True)):
        values = []
        for block, item, raw in job.values(capture.maps):
            if (block, item.name) not in said:
                values.append((block, item, int(raw)))
        raws = {}
        names = Counter[str]()
        for block, item, raw in values:
            raws[block, item.register, item.name] = raw
            names[item.name] += 1
        like, held = before.get((job.block, kind), (None, raws))
        changed: list[str] = []
        others: list[str] = []
        for block, item, raw in values:
            text = _text(item, raw, names[item.name] > 1)
            if held.get((block, item.register, item.name)) != raw:
                changed.append(text)
            elif raw:
                others.append(text)
        before[job.block, kind] = task, raws
        lines.append(Line(task, job.block, kind, job.name, like, tuple(changed), tuple(others)))
    return lines


def _text(item: Field, raw: int, twice: bool) -> str:
    """Return a field's name and value as text; if ``twice``, another field of the job has the same
    name, and the register's name stands in front."""
    name = item.name
    if twice:
        name = f"{item.register}.{name}"
    value = item.text(raw)
    if item.address:
        value = as_address(value)
    return f"{name} {value}"
