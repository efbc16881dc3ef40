"""What is there, as text and as records: a list of captures and sweeps, one with its contents."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from npulab.captures.capture import Capture, Job
from npulab.captures.registry import target
from npulab.captures.sweep import TEXTS, Sweep
from npulab.registers.names import full_names
from npulab.support.answers import Answer, Part, Table
from npulab.support.refuse import near
from npulab.support.text import Row, as_address, brief, rows_of

COLUMNS = ("case", "target", "chip", "provenance", "date", "jobs", "buffers")
COUNTS = ("captures", "words", "parameters")


@dataclass(frozen=True)
class Wanted:
    """Which fields are wanted; without an argument all are.

    ``field`` is a glob for a field, register.field, block.field or block.register.field,
    ``unknown`` asks for bits without a name, ``addresses`` for fields that point into memory,
    ``nonzero`` for those that hold something.
    """

    field: str | None = None
    unknown: bool = False
    addresses: bool = False
    nonzero: bool = False

    def __bool__(self) -> bool:
        return bool(self.field or self.unknown or self.addresses or self.nonzero)

    def named(self, block: str, register: str, field: str) -> bool:
        """Whether a field has a name that is wanted."""
        return not self.field or any(
            fnmatch.fnmatchcase(name, self.field) for name in full_names(block, register, field)
        )

    def holds(self, block: str, register: str, field: str, automatic: bool, address: bool) -> bool:
        """Whether a field is wanted."""
        return (
            self.named(block, register, field)
            and (automatic or not self.unknown)
            and (address or not self.addresses)
        )

    def refuse(self, known: Iterable[tuple[str, str, str]], of: str = "") -> None:
        """Raises LookupError, with names that are near, where none of the (block, register, field)
        has a name that is wanted."""
        names = dict.fromkeys(known)
        if self.field and not any(self.named(*name) for name in names):
            alone, in_register, in_block, whole = zip(
                *(full_names(*name) for name in names), strict=True
            )
            forms = (alone, (*in_register, *in_block), whole)[min(self.field.count("."), 2)]
            raise LookupError(
                f"--field: got {self.field!r}, which no field{f' of {of}' * bool(of)} matches"
                f"{near(self.field, forms)}"
            )


ALL = Wanted()


@dataclass(frozen=True)
class Listing(Answer):
    """Captures and sweeps, a line each."""

    captures: Sequence[Capture]
    sweeps: Sequence[Sweep] = ()

    def records(self) -> list[Row]:
        rows: list[Row] = [
            {
                "case": c.name,
                "target": c.target,
                "chip": c.chip,
                "provenance": c.origin,
                "date": c.date,
                "jobs": len(c.jobs),
                "buffers": ", ".join(c.buffers),
            }
            for c in self.captures
        ]
        return rows + [
            {
                "case": s.name,
                "target": s.target,
                "chip": s.chip,
                "provenance": s.provenance,
                "date": s.date,
                **s.counts,
            }
            for s in self.sweeps
        ]

    @property
    def parts(self) -> list[Part]:
        rows = [
            {"buffers": ", ".join(f"{row[name]} {name}" for name in COUNTS if name in row), **row}
            for row in self.records()
        ]
        return [Table(rows, COLUMNS)]


@dataclass(frozen=True)
class Formats(Answer):
    """The dumps that targets read, a line each."""

    rows: Sequence[Row]

    def records(self) -> list[Row]:
        return [*self.rows]

    @property
    def parts(self) -> list[Part]:
        return [Table(self.rows, ("target", "format"))]


def folded(rows: Sequence[Row], jobs: Sequence[Job]) -> list[Row]:
    """Rows of tasks for people: of the units of one label, rows that are equal are one, and the
    task of a job that has a name is said by name.  What units of a label say of a field stands
    together.

    >>> jobs = [Job("L", [0], label="layer 2", unit=f"group {n}") for n in range(3)]
    >>> folded([{"task": n, "a": 7} for n in range(3)], jobs)
    [{'task': 'layer 2, group 0-2', 'a': 7}]
    """
    together: dict[str, tuple[Row, list[str]]] = {}
    first: dict[str, int] = {}  # row of each label, and of each field of a label
    order: dict[str, tuple[int, int]] = {}
    for number, row in enumerate(rows):
        job = None
        if row["task"] is not None and jobs:
            job = jobs[row["task"]]
        if job is None or not job.unit:
            if job and job.label:
                name = job.label
            else:
                name = row["task"]
            together[str(number)] = {**row, "task": name}, []
            order[str(number)] = number, number
            continue
        key = repr((job.label, [(name, value) for name, value in row.items() if name != "task"]))
        field = repr([job.label, *(row.get(name) for name in ("block", "register", "field"))])
        order.setdefault(
            key, (first.setdefault(job.label, number), first.setdefault(field, number))
        )
        together.setdefault(key, ({**row, "task": job.label}, []))[1].append(job.unit)
    folded_rows = (together[key] for key in sorted(together, key=order.__getitem__))
    return [
        {**row, "task": ", ".join(filter(None, [row["task"], *_ranges(units)]))} if units else row
        for row, units in folded_rows
    ]


def _ranges(units: Sequence[str]) -> list[str]:
    """Names, those with consecutive numbers at their end as one."""
    out: list[tuple[str, int, int]] = []
    for unit in units:
        name = unit.rstrip("0123456789")
        number = int(unit[len(name) :] or -1)
        if out and out[-1][0] == name and out[-1][2] + 1 == number > 0:
            out[-1] = name, out[-1][1], number
        else:
            out.append((name, number, number))
    return [
        name + (str(first) * (first >= 0) if first == last else f"{first}-{last}")
        for name, first, last in out
    ]


@dataclass(frozen=True, eq=False)
class Decoded(Answer):
    """A capture with the fields that are wanted.

    ``rows`` have task, block, register, field, bits, raw, value, evidence and note.
    """

    capture: Capture
    wanted: Wanted = ALL

    @cached_property
    def rows(self) -> list[Row]:
        return [
            {
                "task": task,
                "block": block,
                "register": item.register,
                "field": item.name,
                "bits": item.bits,
                "raw": int(raw),
                "value": item.text(raw),
                "evidence": item.evidence,
                "note": item.note,
            }
            for task, job in enumerate(self.capture.jobs)
            for block, item, raw in job.values(self.capture.maps)
            if self.wanted.holds(block, item.register, item.name, item.automatic, item.address)
            and (raw or not self.wanted.nonzero)
        ]

    def refuse(self) -> None:
        """Raises LookupError where no field of the capture has a name that is wanted."""
        self.wanted.refuse(
            [
                (block, item.register, item.name)
                for job in self.capture.jobs
                for block, item, _ in job.values(self.capture.maps)
            ],
            self.capture.name,
        )

    def records(self) -> list[Row]:
        return self.rows

    @property
    def parts(self) -> list[Part]:
        of, rows = self.capture, self.rows
        parts: list[Part] = [
            repr(of),
            *(
                f"{name} {text}"
                for name, text in (("source", of.source), ("tool", of.tool), ("date", of.date))
                if text
            ),
        ]
        for name, value in of.parameters.items():
            if isinstance(value, list) and value and all(isinstance(row, dict) for row in value):
                parts += [f"{name}:", Table(value, [*value[0]])]
        pointers = {
            (item.register, item.name)
            for registers in of.maps.values()
            for item in registers
            if item.address
        }
        parts.append(
            Table(
                [
                    {
                        **row,
                        "raw": f"{row['raw']:#x}",
                        "value": as_address(row["value"])
                        if (row["register"], row["field"]) in pointers
                        else row["value"],
                    }
                    for row in folded(rows, of.jobs)
                ],
                [*rows[0]] if rows else [],
            )
        )
        sources = target(of.target).sources if rows else {}
        used = dict.fromkeys(row["evidence"] for row in rows if row["evidence"] in sources)
        return [*parts, *(f"evidence {code}: {sources[code]}" for code in used)]


@dataclass(frozen=True, eq=False)
class Contents(Answer):
    """What a sweep holds: the ranges of its parameters and the bits that vary."""

    sweep: Sweep

    def records(self) -> list[Row]:
        sweep = self.sweep
        texts = {name: getattr(sweep, name) for name in TEXTS}
        return [
            {"sweep": sweep.name, **texts, **sweep.counts, "varying_bits": sweep.bits},
            *rows_of(sweep.ranges),
        ]

    @property
    def parts(self) -> list[Part]:
        sweep = self.sweep
        texts = [f"{name} {getattr(sweep, name)}" for name in TEXTS if getattr(sweep, name)]
        words = [
            {"word": word, "varying bits": mask.bit_count(), "mask": f"{mask:#010x}"}
            for word, mask in enumerate(sweep.varying.tolist())
            if mask
        ]
        return [
            repr(sweep),
            *texts,
            "",
            Table(brief(rows_of(sweep.ranges)), [*sweep.ranges]),
            "",
            Table(words, ["word", "varying bits", "mask"]),
        ]
