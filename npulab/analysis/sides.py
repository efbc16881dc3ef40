"""The two sides of a diff, and the differing fields and buffers that pass a filter."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npulab.analysis.check import JOB, Difference, diff, diff_buffers, jobs_apart, raw_fields
from npulab.analysis.edited import streams_differ
from npulab.analysis.records import BUFFER
from npulab.captures.capture import Capture, CaptureSet, Job
from npulab.captures.listing import ALL, Wanted, folded
from npulab.captures.store import load_all
from npulab.captures.sweep import Sweep, is_sweep, load_sweep
from npulab.captures.unrecognised import holds_none
from npulab.registers.fields import Field
from npulab.support.answers import Answer, Part, Table
from npulab.support.text import Row, as_address, plural, rows_of

# At most this many fields of records are shown.
MOST_SHOWN = 60
# Columns that only diffs of sets and sweeps have.
SOME = ("differs", "constant", "pairs")
# The column with the bits that differ in a field without a name.
XOR = "xor"
SidePath = str | os.PathLike[str]
FieldNames = tuple[str, str, str]  # a field as (block, register, field)


def load_sides(
    a: SidePath, b: SidePath | None = None, tasks: Sequence[int] = ()
) -> tuple[Any, Any]:
    """Return the two sides of a diff, read from paths: captures, sets of captures or sweeps.

    Without ``b`` the sides are the two captures in the dump ``a``. With two ``tasks``, ``a`` may
    also hold one capture, which is then both sides. Errors are those of ``load_all`` and
    ``load_sweep``; also ValueError for a side without a capture, and if ``a`` alone does not hold
    two.
    """
    if b is None:
        return _sides_of_one(a, bool(tasks))
    if is_sweep(a) or is_sweep(b):
        return load_sweep(a), load_sweep(b)
    left, right = load_all(a), load_all(b)
    for path, side in ((a, left), (b, right)):
        if not len(side):
            raise ValueError(holds_none(Path(path)))
    if len(left) == len(right) == 1:
        return left[0], right[0]
    return left, right


def _sides_of_one(path: SidePath, tasks: bool) -> tuple[Capture, Capture]:
    if is_sweep(path):
        raise ValueError(f"{path}: got one sweep, allowed are two, A and B")
    captures = load_all(path)
    if len(captures) == 1 and tasks:
        return captures[0], captures[0]
    if len(captures) != 2:
        raise ValueError(
            f"{path}: got {plural(len(captures), 'capture')}, allowed without a side B are two"
        )
    return captures[0], captures[1]


@dataclass(frozen=True, eq=False)
class Differing(Answer):
    """The rows of ``diff`` and ``diff_buffers`` that pass the filter. ``unnamed`` are fields
    without a name of their own, whose raw numbers are shown in base 16.
    """

    a: Capture | CaptureSet | Sweep
    b: Capture | CaptureSet | Sweep
    fields: Sequence[Row]
    buffers: Sequence[Row] = ()
    filtered: bool = False
    unnamed: Collection[FieldNames] = ()

    def records(self) -> list[Row]:
        rows = list(self.fields)
        if self.filtered:
            return rows
        for row in self.buffers:
            rows.append(
                {
                    "task": None,
                    "block": "buffer",
                    "register": row["buffer"],
                    "field": f"(bytes from {row['first']})",
                    "a": row["a"],
                    "b": row["b"],
                    "address": False,
                }
            )
        return rows

    @property
    def parts(self) -> list[Part]:
        fields: list[Row] = []
        addresses: list[Row] = []
        inside: list[Row] = []
        jobs = [row for row in self.fields if row["register"] == JOB]
        others = [row for row in self.fields if row["register"] != JOB]
        for row in folded(others, jobs_of(self.a, self.b)):
            if row["block"] == BUFFER:
                title = f"{BUFFER} {row['register']} {row['field']}"
                inside.append({"record": title, "a": row["a"], "b": row["b"]})
            elif row["address"]:
                addresses.append({**row, "a": as_address(row["a"]), "b": as_address(row["b"])})
            elif _names_of(row) in self.unnamed:
                fields.append(_in_base_16(row))
            else:
                fields.append(row)
        names = ["task", "block", "register", "field"]
        if self.fields:
            names += [name for name in self.fields[0] if name in SOME]
        names += ["a", "b"]
        if any(XOR in row for row in fields):
            names.append(XOR)
        title = _differ(len(fields), "field", "s")
        if addresses:
            title += "; addresses stand below"
        if jobs:
            title = self._streams()
        parts: list[Part] = [f"a {self.a!r}", f"b {self.b!r}", "", title]
        parts.append(Table([*jobs, *fields], names))
        if addresses:
            parts += ["", _differ(len(addresses), "address", "es"), Table(addresses, names)]
        if inside:
            title = f"records differ in {plural(len(inside), 'field')}"
            if len(inside) > MOST_SHOWN:
                title += f", the first {MOST_SHOWN} (--json prints all)"
            parts += ["", title, Table(inside[:MOST_SHOWN], ["record", "a", "b"])]
        for row in self.buffers:
            parts += [
                "",
                f"buffer {row['buffer']} differs in {row['bytes']} bytes, "
                f"from byte {row['first']} on (a {_length(row['a'])}, b {_length(row['b'])})",
            ]
        return parts

    def _streams(self) -> str:
        """Return what differs between two streams of jobs, in one sentence."""
        assert isinstance(self.a, Capture)
        return streams_differ([Difference(**row) for row in self.fields], len(self.a.jobs))


def differing(a: Any, b: Any, wanted: Wanted = ALL, tasks: Sequence[int] = ()) -> Differing:
    """Return the rows of ``diff`` and ``diff_buffers`` for two sides that pass the filter
    ``wanted``; with two ``tasks`` only one job of each side is compared.

    Errors are those of ``diff``, and LookupError if no field of either side has a name that the
    filter asks for.
    """
    if tasks:
        a, b = jobs_apart(a, b, tasks)
    if isinstance(a, Sweep):
        every = rows_of(diff(a, b, never=True))
        known = {_names_of(row) for row in every}
        automatic = known - _declared_names(a) - _declared_names(b)
        wanted.refuse(known)
        # if a field is equal in each pair of captures, the sides do not differ, although its values
        # vary
        every = [row for row in every if row["differs"] != "never" and row.get("pairs", 1)]
    else:
        items = {**_items(a), **_items(b)}
        automatic = {names for names, item in items.items() if item.automatic}
        wanted.refuse(items)
        every = rows_of(diff(a, b))
    rows = []
    for row in every:
        names = _names_of(row)
        if row["block"] == BUFFER:
            row["task"] = None
            names = _names_in_record(row, a)
        if wanted.holds(*names, names in automatic, row["address"]):
            rows.append(row)
    buffers: Sequence[Row] = ()
    if isinstance(a, Capture) and isinstance(b, Capture):
        buffers = rows_of(diff_buffers(a, b))
    return Differing(a, b, rows, buffers, bool(wanted), automatic)


def _names_of(row: Row) -> FieldNames:
    return row["block"], row["register"], row["field"]


def _in_base_16(row: Row) -> Row:
    """Return a row with its numbers in base 16, and, if each side has one value, the bits that
    differ.
    """
    a, b = row["a"], row["b"]
    shown = {**row, "a": _hex(a), "b": _hex(b)}
    if isinstance(a, int) and isinstance(b, int):
        shown[XOR] = _hex(a ^ b)
    return shown


def _hex(value: Any) -> Any:
    if isinstance(value, list):
        return [*map(_hex, value)]
    if isinstance(value, int):
        return f"{value:#x}"
    return value


def _names_in_record(row: Row, side: Capture) -> FieldNames:
    """Return (block, register, field) of a record's field as its map names it; the row's own names
    for a whole record.
    """
    records = side.records[row["register"]]
    _, _, name = row["field"].rpartition(" ")
    item = records.fields.get(name.removeprefix(f"{records.block}."))
    if item is None:
        return _names_of(row)
    return item.block, item.register, item.name


def _declared_names(side: Sweep) -> set[FieldNames]:
    fields = side.registers or ()
    return {(item.block, item.register, item.name) for item in fields if not item.automatic}


def _items(side: Capture | CaptureSet) -> dict[FieldNames, Field]:
    """Return the fields of all captures of a side, by block, register and name."""
    if isinstance(side, Capture):
        side = CaptureSet((side,))
    items: dict[FieldNames, Field] = {}
    for capture in side:
        for key, (item, _) in raw_fields(capture).items():
            items[key[1:]] = item
        for records in capture.records.values():
            for item in records.fields.values():
                items[item.block, item.register, item.name] = item
    return items


def jobs_of(*sides: Any) -> Sequence[Job]:
    """Return jobs by their number: those of the first capture among ``sides``, then the further
    jobs of a capture that has more.
    """
    jobs: tuple[Job, ...] = ()
    for side in sides:
        if isinstance(side, Capture):
            jobs += side.jobs[len(jobs) :]
    return jobs


def _differ(count: int, name: str, many: str) -> str:
    if count == 1:
        return f"{count} {name} differs"
    return f"{count} {name}{many} differ"


def _length(size: int | None) -> str:
    if size is None:
        return "has none"
    return f"{size} bytes"
