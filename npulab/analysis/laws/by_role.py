"""The laws of captures of several jobs, searched role by role; a role is a position of a job in its
capture. The answer has a line for each role, and says how many bits of all roles have a law.
"""

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

# a function that gives, for a sweep, the summary of its laws and the warnings of the search
Search = Callable[[Sweep], tuple[Summary, tuple[str, ...]]]
VARYING = ("law", "rivals", "open")
COLUMNS = ("role", "block", "captures", "jobs", "varying bits", *VARYING, "nuisance", "laws")
# the reason why no laws of a role were sought, if all captures of the role are equal
WITHOUT = "no bit varies"


@dataclass(frozen=True, eq=False)
class OfRole:
    """A role with its sweep and the ``summary`` of its laws, or the ``reason`` why there is none.

    The sweep is None if no sweep can be made of the jobs of the role. ``told`` are the warnings of
    the search.
    """

    name: str
    sweep: Sweep | None
    summary: Summary | None = None
    reason: str = "not searched"
    told: tuple[str, ...] = ()

    @classmethod
    def of(cls, known: Roles, name: str) -> OfRole:
        """A role before its laws are sought, with the sweep of its jobs. If the name is
        ``PRESENCE``, the sweep says how often each capture has each role.
        """
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
    """Search the laws of each role of the captures, and of how often captures have each role.

    The workers of ``executor`` search several roles at once; the answer is the same for any number
    of workers. ``names`` are names of roles, by default all roles and ``PRESENCE``. ``search``
    makes the summary and the warnings of a sweep, by default ``summarized``. ``executor`` and
    ``stop`` are those of ``ordered``: if ``stop`` is set, further roles have the reason "not
    searched". ``progress`` is called with the name of a role, the number of roles that are
    searched, and the number of all roles to search.
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
    """The summary of the laws of a sweep, without a plan, and the warnings of the search."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        laws = find_laws(sweep, progress=_untold)
        found = Summary(sweep, laws, laws.open, None)
    return found, tuple(str(warning.message) for warning in caught)


def _untold(text: str) -> None:
    """Do nothing with a line of progress, because nobody sees what a worker prints."""


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
    """The laws of several roles of captures, and how many bits of all these roles have laws."""

    known: Roles
    found: tuple[OfRole, ...]

    @property
    def bits(self) -> dict[str, int]:
        """The number of bits of each status, summed over the roles of this answer."""
        counts = Counter[str]()
        for one in self.found:
            counts.update(one.bits)
        return {name: counts[name] for name in (*VARYING, "nuisance")}

    @property
    def looked_at(self) -> str:
        """A text that says how many of all roles and jobs were searched; "" if all roles were."""
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
        """A record with the counts over all roles, then the records of each role; each of these has
        the name of its role.
        """
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
