"""Captures and sweeps as text and as records: a list of several, or the contents of one."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter

from npulab.captures.capture import Capture, Job, is_records
from npulab.captures.records import Records
from npulab.captures.registry import target
from npulab.captures.sweep import Sweep
from npulab.captures.sweep_store import SweepStore
from npulab.registers.fields import Field
from npulab.registers.filters import Test, filter_of
from npulab.registers.names import full_names
from npulab.support.answers import Answer, Part, Table
from npulab.support.refuse import near
from npulab.support.text import Row, as_address, brief, plural, rows_of

COLUMNS = ("case", "target", "chip", "provenance", "date", "jobs", "buffers")
# The most records of a buffer that are shown.
MOST_RECORDS = 60
# The counts of a sweep that a list shows in the column ``buffers``.
COUNTS = (
    "looked_at",
    "captures",
    "words",
    "parameters",
)


@dataclass(frozen=True)
class Wanted:
    """A filter of fields; without an argument every field passes.

    ``field`` is a glob for a field, register.field, block.field or block.register.field;
    ``unknown`` passes only bits without a name, ``addresses`` only fields that point into memory,
    ``nonzero`` only fields that are not 0. ``where`` is an expression over the columns of
    ``Decoded``, which ``registers.filters`` reads; only fields for which it is true pass.
    """

    field: str | None = None
    unknown: bool = False
    addresses: bool = False
    nonzero: bool = False
    where: str = ""

    def __bool__(self) -> bool:
        return bool(self.field or self.unknown or self.addresses or self.nonzero or self.where)

    @cached_property
    def keeps(self) -> Test:
        """The test that ``where`` states; raises ValueError for a text that states none."""
        if not self.where:
            return bool
        return filter_of(self.where, FIELD_COLUMNS)

    def named(self, block: str, register: str, field: str) -> bool:
        """True if one of the full names of a field is the filter's ``field`` or matches it as a
        glob, or if the filter has no glob."""
        if not self.field:
            return True
        names = full_names(block, register, field)
        # the text may be a name with brackets, such as ``Stride[0].x``, that no glob would match
        return self.field in names or any(fnmatch.fnmatchcase(name, self.field) for name in names)

    def holds(self, block: str, register: str, field: str, automatic: bool, address: bool) -> bool:
        """True if a field passes ``field``, ``unknown`` and ``addresses`` of the filter; the other
        two need the value of the field and are not looked at."""
        return (
            self.named(block, register, field)
            and (automatic or not self.unknown)
            and (address or not self.addresses)
        )

    def refuse(self, known: Iterable[tuple[str, str, str]], of: str = "") -> None:
        """Raise LookupError, with similar names, if the glob matches none of the known fields,
        which are (block, register, field)."""
        names = dict.fromkeys(known)
        if not self.field or any(self.named(*name) for name in names):
            return
        # suggest only names with as many dots as the glob
        dots = self.field.count(".")
        allowed: list[str] = []
        for name in names:
            alone, in_register, in_block, whole = full_names(*name)
            if dots == 0:
                allowed.append(alone)
            elif dots == 1:
                allowed += in_register, in_block
            else:
                allowed.append(whole)
        where = ""
        if of:
            where = f" of {of}"
        raise LookupError(
            f"--field: got {self.field!r}, which no field{where} matches{near(self.field, allowed)}"
        )


ALL = Wanted()
FIELD_COLUMNS = ("task", "block", "register", "field", "bits", "raw", "value", "evidence", "note")


@dataclass(frozen=True)
class Listing(Answer):
    """A list of captures and sweeps with one line for each."""

    captures: Sequence[Capture]
    sweeps: Sequence[Sweep | SweepStore] = ()

    def records(self) -> list[Row]:
        rows: list[Row] = []
        for capture in self.captures:
            row = _named_row(capture, capture.origin)
            row["jobs"] = len(capture.jobs)
            row["buffers"] = ", ".join(capture.buffers)
            rows.append(row)
        for sweep in self.sweeps:
            row = _named_row(sweep, sweep.provenance) | sweep.counts
            if sweep.looked_at:
                row["looked_at"] = sweep.looked_at
            rows.append(row)
        return rows

    @property
    def parts(self) -> list[Part]:
        rows = self.records()
        for row in rows:
            counts = []
            for name in COUNTS:
                if name == "looked_at" and name in row:
                    counts.append(row[name])
                elif name in row:
                    counts.append(f"{row[name]} {name}")
            row.setdefault("buffers", ", ".join(counts))
        return [Table(rows, COLUMNS)]


def _named_row(found: Capture | Sweep | SweepStore, provenance: str) -> Row:
    """The columns that a capture and a sweep have in common: case, target, chip, provenance and
    date."""
    return {
        "case": found.name,
        "target": found.target,
        "chip": found.chip,
        "provenance": provenance,
        "date": found.date,
    }


@dataclass(frozen=True)
class Formats(Answer):
    """The formats of dumps that targets read, one line for each."""

    rows: Sequence[Row]

    def records(self) -> list[Row]:
        return [*self.rows]

    @property
    def parts(self) -> list[Part]:
        return [Table(self.rows, ("target", "format"))]


def folded(rows: Sequence[Row], jobs: Sequence[Job]) -> list[Row]:
    """Rows for people: equal rows of jobs that have one label and different units become one row,
    and ``task`` is the name of a job that has one, not its number.

    The rows of one label stand together, and among them the rows of one field.

    >>> jobs = [Job("L", [0], label="layer 2", unit=f"group {n}") for n in range(3)]
    >>> folded([{"task": n, "a": 7} for n in range(3)], jobs)
    [{'task': 'layer 2, group 0-2', 'a': 7}]
    """
    # (sort key, row, units of the jobs that have this row)
    found: list[tuple[tuple[int, int], Row, list[str]]] = []
    # the units of the jobs of a row; the key is the row as text, with the label as ``task``
    units: dict[str, list[str]] = {}
    # the number of the first row by label, and by the text of label and field
    first: dict[str, int] = {}
    for number, row in enumerate(rows):
        task, job = row["task"], None
        if task is not None and jobs:
            job = jobs[task]
        if job is None or not job.unit:
            if job and job.label:
                task = job.label
            found.append(((number, number), {**row, "task": task}, []))
            continue
        named = {**row, "task": job.label}
        key = repr(named)
        if key not in units:
            field = repr([job.label, row.get("block"), row.get("register"), row.get("field")])
            order = first.setdefault(job.label, number), first.setdefault(field, number)
            units[key] = []
            found.append((order, named, units[key]))
        units[key].append(job.unit)
    found.sort(key=itemgetter(0))
    for _, row, names in found:
        if names:
            row["task"] = ", ".join(filter(None, [row["task"], *_in_ranges(names)]))
    return [row for _, row, _ in found]


def _in_ranges(names: Sequence[str]) -> list[str]:
    """The names in the given order; neighbours whose last numbers are consecutive become one name:
    "group 0-2".
    """
    ranges: list[tuple[str, int, int]] = []
    for text in names:
        name = text.rstrip("0123456789")
        number = int(text[len(name) :] or -1)
        if ranges and ranges[-1][0] == name and ranges[-1][2] + 1 == number > 0:
            ranges[-1] = name, ranges[-1][1], number
        else:
            ranges.append((name, number, number))
    joined = []
    for name, first, last in ranges:
        if first < last:
            name += f"{first}-{last}"
        elif first >= 0:
            name += str(first)
        joined.append(name)
    return joined


def about(capture: Capture) -> list[Part]:
    """What is known of a capture besides its jobs, as lines and tables."""
    parts: list[Part] = [repr(capture)]
    for name in ("source", "tool", "date"):
        text = getattr(capture, name)
        if text:
            parts.append(f"{name} {text}")
    for name, value in capture.parameters.items():
        if is_records(value):
            parts += [f"{name}:", Table(value, [*value[0]])]
    return parts


@dataclass(frozen=True, eq=False)
class Decoded(Answer):
    """A capture with those of its fields that pass the filter ``wanted``; if ``tasks`` are given,
    only with fields of the jobs that have these numbers.

    ``rows`` have task, block, register, field, bits, raw, value, evidence and note. A record in a
    buffer is one row, with buffer, record, block and the record's fields. The table that people see
    leaves out a value that only repeats the raw number: of bits without a name, and of one digit.
    """

    capture: Capture
    wanted: Wanted = ALL
    tasks: Collection[int] | None = None

    @cached_property
    def rows(self) -> list[Row]:
        rows: list[Row] = []
        keeps = self.wanted.keeps
        for task, block, item, raw in self._fields():
            names = block, item.register, item.name
            if not self.wanted.holds(*names, item.automatic, item.address):
                continue
            if self.wanted.nonzero and not raw:
                continue
            about = item.text(raw), item.evidence, item.note
            cells = task, *names, item.bits, int(raw), *about
            row = dict(zip(FIELD_COLUMNS, cells, strict=True))
            if keeps(row):
                rows.append(row)
        return rows

    def refuse(self) -> None:
        """Raise LookupError if the glob of the filter matches no field of the jobs."""
        known = [(block, item.register, item.name) for _, block, item, _ in self._fields()]
        for held in self.capture.records.values():
            known += [(held.block, item.register, item.name) for item in held.fields.values()]
        self.wanted.refuse(known, self.capture.name)

    def records(self) -> list[Row]:
        rows = list(self.rows)
        for held in self.capture.records.values():
            for row in self._in_buffer(held):
                rows.append({"buffer": held.buffer, "block": held.block, **row})
        return rows

    def _in_buffer(self, held: Records, most: int | None = None) -> list[Row]:
        """The first records of a buffer, at most ``most`` (None: all), each as a row of the fields
        that pass the filter."""
        names = []
        if self.wanted.where:
            return []  # a record has none of the columns that ``where`` needs
        for name, item in held.fields.items():
            full = held.block, item.register, item.name
            if self.wanted.holds(*full, item.automatic, item.address):
                names.append(name)
        rows: list[Row] = []
        for row in held.rows(most):
            chosen = {name: row[name] for name in names}
            if self.wanted.nonzero and not any(chosen.values()):
                continue
            if chosen:
                number = row["record"]
                rows.append({"record": number, **chosen})
        return rows

    def _tables(self) -> list[Part]:
        """A title and a table of the first records, at most ``MOST_RECORDS``, for each buffer."""
        parts: list[Part] = []
        for held in self.capture.records.values():
            rows = self._in_buffer(held, MOST_RECORDS)
            if not rows:
                continue
            count = plural(len(held), "record")
            title = f"buffer {held.buffer}: {count} of {held.block}"
            if len(held) > MOST_RECORDS:
                title += f", the first {MOST_RECORDS} (--json prints all)"
            names = list(rows[0])
            parts += ["", title, Table(rows, names)]
        return parts

    @property
    def parts(self) -> list[Part]:
        capture = self.capture
        parts = about(capture)
        if not self.rows:
            return [*parts, Table([], []), *self._tables()]
        pointers = set()
        unnamed = set()
        for registers in capture.maps.values():
            pointers |= {(item.register, item.name) for item in registers if item.address}
            unnamed |= {(item.register, item.name) for item in registers if item.automatic}
        rows = folded(self.rows, capture.jobs)
        for row in rows:
            place = row["register"], row["field"]
            alike = place in unnamed or str(row["value"]) == f"{row['raw']:x}"
            if row["value"] == row["raw"] and alike:
                row["value"] = ""
            row["raw"] = f"{row['raw']:#x}"
            if place in pointers:
                row["value"] = as_address(row["value"])
        parts.append(Table(rows, [*rows[0]]))
        sources = target(capture.target).sources
        for code in dict.fromkeys(row["evidence"] for row in rows):
            if code in sources:
                parts.append(f"evidence {code}: {sources[code]}")
        return [*parts, *self._tables()]

    def _fields(self) -> Iterator[tuple[int, str, Field, int]]:
        """Yield (number of the job, block, field, raw) for every field of the jobs."""
        for task, job in enumerate(self.capture.jobs):
            if self.tasks is not None and task not in self.tasks:
                continue
            for block, item, raw in job.values(self.capture.maps):
                yield task, block, item, raw


@dataclass(frozen=True, eq=False)
class Contents(Answer):
    """The contents of a sweep: its counts, the range of each parameter, and the bits that vary."""

    sweep: Sweep | SweepStore

    def records(self) -> list[Row]:
        sweep = self.sweep
        about: Row = {"sweep": sweep.name, **sweep.texts, **sweep.counts}
        return [about | {"varying_bits": sweep.bits}, *rows_of(sweep.ranges)]

    @property
    def parts(self) -> list[Part]:
        sweep = self.sweep
        stated = sweep.texts.items()
        texts = [f"{name} {text}" for name, text in stated if text and name != "looked_at"]
        words: list[Row] = []
        for word, mask in enumerate(sweep.varying.tolist()):
            if mask:
                words.append(
                    {"word": word, "varying bits": mask.bit_count(), "mask": f"{mask:#010x}"}
                )
        ranges = Table(brief(rows_of(sweep.ranges)), [*sweep.ranges])
        masks = Table(words, ["word", "varying bits", "mask"])
        return [repr(sweep), *texts, "", ranges, "", masks]
