"""The laws of captures of several jobs, role by role, as text and as records: a line for each role,
and how many bits of all jobs have a law."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from threading import Event

from npulab.analysis.laws.found import find_laws
from npulab.analysis.laws.summary import Summary
from npulab.captures.roles import PRESENCE, Roles
from npulab.captures.sweep import Sweep
from npulab.support.answers import Answer, Part, Table
from npulab.support.executors import Workers, ordered
from npulab.support.refuse import reason
from npulab.support.text import Row, part_said, plural

# gives the laws of a sweep, and what people should be told of the search
Search = Callable[[Sweep], tuple[Summary, tuple[str, ...]]]
VARYING = ("law", "rivals", "open")
COLUMNS = ("role", "block", "captures", "jobs", "varying bits", *VARYING, "nuisance", "laws")
# why a role has no laws, where that is no lack of knowledge
WITHOUT = "no bit varies"


@dataclass(frozen=True, eq=False)
class OfRole:
    """A role with its sweep and the ``summary`` of its laws, or the ``reason`` why there is none;
    ``told`` are the warnings of the search.

    The sweep is None if the jobs of the role make none.
    """

    name: str
    sweep: Sweep | None
    summary: Summary | None = None
    reason: str = "not searched"
    told: tuple[str, ...] = ()

    @classmethod
    def of(cls, known: Roles, name: str) -> OfRole:
        """A role of which no laws are known yet; or the presence of all roles, by its name."""
        try:
            if name == PRESENCE:
                sweep = known.presence()
            else:
                sweep = known.sweep(name)
        except ValueError as error:
            return cls(name, None, reason=str(error))
        if not sweep.bits:
            return cls(name, sweep, reason=WITHOUT)
        return cls(name, sweep)

    @property
    def searchable(self) -> bool:
        return self.sweep is not None and self.sweep.bits > 0

    @property
    def bits(self) -> dict[str, int]:
        """The number of bits of each status; if a role has no laws, all bits that vary are open."""
        if self.summary is not None:
            return self.summary.statuses
        # a role that makes no sweep has no bits that can be counted
        varying = 0
        if self.sweep is not None:
            varying = self.sweep.bits
        return {"law": 0, "rivals": 0, "open": varying}


def laws_of_roles(
    known: Roles,
    names: Sequence[str] = (),
    executor: Workers = None,
    *,
    search: Search | None = None,
    stop: Event | None = None,
    progress: Callable[[str, int, int], object] | None = None,
) -> LawsOfRoles:
    """The laws of roles of captures, and of how often captures have them, each searched by itself
    by the workers of an executor; the answer is the same whatever the workers.

    ``names`` are those of ``known``, by default all and ``PRESENCE``; ``search`` gives the summary
    of a sweep and what to tell, by default ``summarized``. Executors and ``stop`` are those of
    ``ordered``: after a stop, roles are left that were not searched. ``progress`` is called with
    the name of a role, the number of roles that are done, and that of all.
    """
    found = [OfRole.of(known, name) for name in names or (*known.names, PRESENCE)]
    places = [place for place, one in enumerate(found) if one.searchable]
    asked = [found[place] for place in places]
    made = ordered(
        partial(_searched, search or summarized), asked, executor, stop=stop, what="search"
    )
    for number, one in made:
        found[places[number]] = one
        if progress is not None:
            progress(one.name, number + 1, len(places))
    return LawsOfRoles(known, tuple(found))


def summarized(sweep: Sweep) -> tuple[Summary, tuple[str, ...]]:
    """The laws of a sweep and what is open, and the warnings of the search."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        laws = find_laws(sweep, progress=_untold)
        found = Summary(sweep, laws, laws.open, None)
    return found, tuple(str(warning.message) for warning in caught)


def _untold(text: str) -> None:
    """The progress of a search in a worker, which nobody sees."""


def _searched(search: Search, one: OfRole) -> OfRole:
    """A role with the summary of its laws, or the reason why it has none."""
    assert one.sweep is not None
    try:
        summary, told = search(one.sweep)
        return replace(one, summary=summary, told=told)
    except ValueError as error:
        return replace(one, reason=reason(error))


@dataclass(frozen=True, eq=False)
class LawsOfRoles(Answer):
    """The laws of several roles of captures, and the counts over all of them."""

    known: Roles
    found: tuple[OfRole, ...]

    @property
    def bits(self) -> dict[str, int]:
        """The number of bits of each status, over all roles here."""
        counts = Counter[str]()
        for one in self.found:
            counts.update(one.bits)
        return {name: counts[name] for name in (*VARYING, "nuisance")}

    @property
    def looked_at(self) -> str:
        """How many jobs of how many are looked at; "" if all are."""
        rows = self._rows()
        roles = [row for row in rows if row["role"] != PRESENCE]
        if len(roles) == len(self.known):
            return ""
        jobs = sum(row["jobs"] for row in roles)
        captures = plural(len(self.known.captures), "capture")
        of = f"{len(self.known)} roles, {len(self.known.of)} jobs of {captures}"
        return f"{plural(len(roles), 'role')}, {plural(jobs, 'job')} of {of}"

    def _rows(self) -> list[Row]:
        roles = {role.name: role for role in self.known.roles}
        rows = []
        for one in self.found:
            row = {"role": one.name, "block": "", "captures": len(self.known.captures)}
            row["jobs"] = None
            if one.name in roles:
                role = roles[one.name]
                row |= {"block": role.block, "captures": role.captures, "jobs": role.jobs}
            row |= one.bits
            row["varying bits"] = sum(one.bits[name] for name in VARYING)
            row["laws"] = one.reason
            if one.summary is not None:
                row["laws"] = plural(len(one.summary.laws.fields), "field")
            rows.append(row)
        return rows

    def records(self) -> list[Row]:
        """Return the counts over all roles, then the records of each role, with its name."""
        about: Row = {
            "kind": "roles",
            "roles": len(self.known),
            "jobs": len(self.known.of),
            "captures": len(self.known.captures),
            "bits": self.bits,
        }
        if self.looked_at:
            about["looked_at"] = self.looked_at
        rows = [about]
        for one in self.found:
            records = [{"kind": "sweep", "bits": one.bits, "reason": one.reason}]
            if one.summary is not None:
                records = one.summary.records()
            rows += [{**record, "role": one.name} for record in records]
        return rows

    @property
    def parts(self) -> list[Part]:
        bits = self.bits
        counts = ", ".join(f"{bits[name]} {name}" for name in VARYING)
        varying = plural(sum(bits[name] for name in VARYING), "varying bit")
        parts: list[Part] = [
            repr(self.known),
            Table(self._rows(), COLUMNS),
            f"{varying} of these roles: {counts}; {bits['nuisance']} nuisance",
        ]
        if self.looked_at:
            parts.append(part_said(self.looked_at))
        for one in self.found:
            if one.summary is not None:
                parts += ["", f"== {one.name}", *one.summary.parts]
        return parts
