"""Two sides and what differs between them, as far as it is wanted."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npulab.analysis.check import diff, diff_buffers, jobs_apart, raw_fields
from npulab.captures.capture import Capture, CaptureSet, Job
from npulab.captures.listing import ALL, Wanted, folded
from npulab.captures.store import load_all
from npulab.captures.sweep import Sweep, is_sweep, load_sweep
from npulab.captures.unrecognised import holds_none
from npulab.support.answers import Answer, Part, Table
from npulab.support.text import Row, as_address, plural, rows_of

SOME = ("differs", "constant", "pairs")  # columns that only sets have


Place = str | os.PathLike[str]


def load_sides(a: Place, b: Place | None = None, tasks: Sequence[int] = ()) -> tuple[Any, Any]:
    """What two paths hold: captures, sets of them or sweeps; without ``b`` the two cases of a dump,
    or, for two ``tasks``, the one capture on both sides.

    Raises as ``load_all`` and ``load_sweep``; ValueError for a side without a capture, and if ``a``
    alone does not have two.
    """
    if b is None:
        paths = [a]
    else:
        paths = [a, b]
    if any(map(is_sweep, paths)):
        if b is None:
            raise ValueError(f"{a}: got one sweep, allowed are two, A and B")
        return load_sweep(a), load_sweep(b)
    sides: list[Any] = [load_all(path) for path in paths]
    if b is None:
        if len(sides[0]) == 1 and tasks:
            return sides[0][0], sides[0][0]
        if len(sides[0]) != 2:
            raise ValueError(
                f"{a}: holds {plural(len(sides[0]), 'capture')}, allowed without B is two"
            )
        return sides[0][0], sides[0][1]
    for path, side in zip(paths, sides, strict=True):
        if not len(side):
            raise ValueError(holds_none(Path(path)))
    if all(len(side) == 1 for side in sides):
        sides = [side[0] for side in sides]
    return sides[0], sides[1]


@dataclass(frozen=True, eq=False)
class Differing(Answer):
    """The rows of ``diff`` and ``diff_buffers`` that are wanted."""

    a: Capture | CaptureSet | Sweep
    b: Capture | CaptureSet | Sweep
    fields: Sequence[Row]
    buffers: Sequence[Row] = ()
    filtered: bool = False

    def records(self) -> list[Row]:
        buffers = self.buffers
        if self.filtered:
            buffers = ()
        return [
            *self.fields,
            *(
                {
                    "task": None,
                    "block": "buffer",
                    "register": row["buffer"],
                    "field": f"(bytes from {row['first']})",
                    "a": row["a"],
                    "b": row["b"],
                    "address": False,
                }
                for row in buffers
            ),
        ]

    @property
    def parts(self) -> list[Part]:
        every = folded(self.fields, jobs_of(self.a, self.b))
        fields = [row for row in every if not row["address"]]
        addresses = [
            {**row, "a": as_address(row["a"]), "b": as_address(row["b"])}
            for row in every
            if row["address"]
        ]
        names = [
            "task",
            "block",
            "register",
            "field",
            *(name for name in (self.fields[0] if self.fields else ()) if name in SOME),
            "a",
            "b",
        ]
        parts: list[Part] = [
            f"a {self.a!r}",
            f"b {self.b!r}",
            "",
            f"{_differ(len(fields), 'field', 's')}" + ", addresses apart" * bool(addresses),
            Table(fields, names),
        ]
        if addresses:
            parts += ["", f"{_differ(len(addresses), 'address', 'es')}", Table(addresses, names)]
        for row in self.buffers:
            parts += [
                "",
                f"buffer {row['buffer']} differs in {row['bytes']} bytes, "
                f"from byte {row['first']} on (a {_length(row['a'])}, b {_length(row['b'])})",
            ]
        return parts


def differing(a: Any, b: Any, wanted: Wanted = ALL, tasks: Sequence[int] = ()) -> Differing:
    """What ``diff`` and ``diff_buffers`` find between two sides, or a task of each, as far as it is
    wanted.

    Raises as ``diff``; LookupError where no field of either side has a name that is wanted.
    """
    if tasks:
        a, b = jobs_apart(a, b, tasks)
    if isinstance(a, Sweep):
        every = rows_of(diff(a, b, never=True))
        known = {_place(row) for row in every}
        automatic = known - {
            (item.block, item.register, item.name)
            for side in (a, b)
            for item in side.registers or ()
            if not item.automatic
        }
        wanted.refuse(known)
        rows = [row for row in every if row["differs"] != "never"]
    else:
        items = {
            key[1:]: item
            for side in (a, b)
            for capture in (side if isinstance(side, CaptureSet) else [side])
            for key, (item, _) in raw_fields(capture).items()
        }
        automatic = {names for names, item in items.items() if item.automatic}
        wanted.refuse(items)
        rows = rows_of(diff(a, b))
    rows = [
        row for row in rows if wanted.holds(*_place(row), _place(row) in automatic, row["address"])
    ]
    pair = isinstance(a, Capture) and isinstance(b, Capture)
    return Differing(a, b, rows, rows_of(diff_buffers(a, b)) if pair else (), bool(wanted))


def _place(row: Row) -> tuple[str, str, str]:
    """The block, the register and the name of the field of a row."""
    return row["block"], row["register"], row["field"]


def jobs_of(*sides: Any) -> Sequence[Job]:
    """The jobs of the captures among some sides, by task."""
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
