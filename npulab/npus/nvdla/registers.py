"""The units that a job's register writes start, and the lookup tables that they write."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from npulab.npus.kit import Job, RegisterMap, names_of, offsets_of
from npulab.npus.nvdla.facts import (
    ACCESS,
    DATA,
    LAUNCHES,
    POINTER,
    STARTS,
    TABLE_ENTRIES,
    TABLES,
    UNITS,
    Lut,
    Pair,
)


@dataclass(frozen=True)
class Tables:
    """The entries of the lookup tables, by table and place, and the place to which the next entry
    is written (None while tables are read)."""

    entries: Mapping[Pair, int] = field(default_factory=dict)
    next: Pair | None = None
    access: int | None = None

    def after(self, writes: Iterable[tuple[str, int]]) -> Tables:
        """Return the tables after writes (register, value).

        An access register states table and place; each data register goes to the place after the
        last.
        """
        entries = dict(self.entries)
        place = self.next
        access = self.access
        for register, value in writes:
            if register == ACCESS:
                access = value
                place = None
                if value // 2**17 & 1:
                    place = value // 2**16 & 1, value % 2**10
            elif register == DATA and place is not None:
                entries[place] = value % 2**16
                table, entry = place
                place = table, entry + 1
        return Tables(entries, place, access)

    def writes(self, access: int, data: int) -> list[Pair]:
        """Return register writes that fill tables with these entries."""
        out: list[Pair] = []
        before = None
        for table, place in sorted(self.entries):
            if before != (table, place - 1):
                out.append((access, 2**17 + table * 2**16 + place))
            out.append((data, self.entries[table, place]))
            before = table, place
        if self.next is not None:
            table, place = self.next
            out.append((access, 2**17 + table * 2**16 + place % 2**10))
        elif self.access is not None:
            out.append((access, self.access))
        return out


def lut_of(job: Job, unit: str) -> Lut:
    """Return the lookup tables of SDP or CDP after a job: LE ``(65,)`` and LO ``(257,)`` int16, 0
    if not written.

    Raises LookupError for a unit without tables, ValueError for an entry after the last.
    """
    if f"{unit}.{ACCESS}" not in offsets_of(TABLES[job.block]):
        raise LookupError(f"unit: got {unit!r}, allowed are SDP and CDP, which have tables")
    for table, place in _written([job], unit):
        if place >= TABLE_ENTRIES[table]:
            raise ValueError(
                f"{unit}: got entry {place} of table {('LE', 'LO')[table]}, allowed is 0 to "
                f"{TABLE_ENTRIES[table] - 1}"
            )
    return tables_after([job], unit)


def tables_after(jobs: Iterable[Job], unit: str) -> Lut:
    """Return the tables after several jobs, in the form of ``lut_of``. An entry that a job writes
    past the end of a table is ignored."""
    out = {table: np.zeros(count, np.uint16) for table, count in TABLE_ENTRIES.items()}
    for (table, place), value in _written(jobs, unit).items():
        if place < TABLE_ENTRIES[table]:
            out[table][place] = value
    return out[0].view(np.int16), out[1].view(np.int16)


def _written(jobs: Iterable[Job], unit: str) -> Mapping[Pair, int]:
    tables = Tables()
    for job in jobs:
        at = offsets_of(TABLES[job.block])
        names = {at[f"{unit}.{ACCESS}"]: ACCESS, at[f"{unit}.{DATA}"]: DATA}
        tables = tables.after((names.get(offset, ""), value) for offset, value in job.writes)
    return tables.entries


class Access(NamedTuple):
    """A register write, with the unit and the group that it goes to; ``S_POINTER`` names the group
    at that time.
    """

    unit: str
    register: str
    group: int
    offset: int
    value: int

    @property
    def starts(self) -> bool:
        """True if the write starts the unit."""
        return self.value & 1 == 1 and self.unit in UNITS and self.register in STARTS


def accesses(writes: Iterable[Pair], registers: RegisterMap) -> Iterator[Access]:
    """Yield writes (offset, value) in order, with unit, register and group; blank without a
    register."""
    names, producer = names_of(registers), dict[str, int]()
    for offset, value in writes:
        unit, _, register = names.get(offset, "").partition(".")
        if register == POINTER:
            producer[unit] = value & 1
        yield Access(unit, register, LAUNCHES.get(register, producer.get(unit, 0)), offset, value)


def units_of(job: Job) -> dict[str, int]:
    """Return the units that a job enables and the group of each, as its register writes say."""
    writes = accesses(job.writes, TABLES[job.block])
    return {access.unit: access.group for access in writes if access.starts}
