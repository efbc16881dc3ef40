"""``npulab roles``: list the roles of jobs, that is, what each job is in its stream of jobs; and
the options by which other commands choose jobs by role.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from npulab.captures.roles import Roles, roles
from npulab.captures.sweep import load_captures
from npulab.cli.output import show, tell
from npulab.support.answers import Answer, Part, Table
from npulab.support.text import Row, part_said, rows_of

COLUMNS = ("role", "block", "captures", "jobs", "most")
CHOICES = ("role", "block", "job")


@dataclass(frozen=True, eq=False)
class Listed(Answer):
    """The roles of the jobs of captures, a row for each role."""

    roles: Roles

    def records(self) -> list[Row]:
        return rows_of(self.roles.table)

    @property
    def parts(self) -> list[Part]:
        return [repr(self.roles), Table(self.records(), COLUMNS)]


def _roles(options: argparse.Namespace) -> None:
    show(options, Listed(roles(load_captures(options.path, options.chip, options.target))))


def chosen_jobs(options: argparse.Namespace) -> dict[str, Any]:
    """Return, by name, the given option of those that choose jobs (role, block, job); raises
    ValueError if two are given.
    """
    found = {}
    for name in CHOICES:
        value = getattr(options, name, None)
        if value is not None:
            found[name] = value
    if len(found) > 1:
        raise ValueError(f"--{' and --'.join(found)}: got both, allowed is one of them")
    return found


def tell_part(looked_at: str, captures: object) -> None:
    """Say on stderr which part of the jobs a command looks at, and how to look at other jobs; say
    nothing if ``looked_at`` is empty, which means all jobs. ``captures`` is the path of the
    captures.
    """
    # this goes to stderr, because a program may read the answer on stdout
    if looked_at:
        tell(
            f"{part_said(looked_at)}; npulab roles {captures} lists the roles, --role takes another"
        )


# By name of a command: the function that runs it.
COMMANDS = {"roles": _roles}
