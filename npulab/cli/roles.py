"""``npulab roles``: what the jobs of captures are in their streams; and the options of other
commands that choose jobs by it."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from npulab.captures.roles import Roles, roles
from npulab.captures.sweep import load_captures
from npulab.cli.output import Add, show, tell
from npulab.support.answers import Answer, Part, Table
from npulab.support.text import Row, part_said, rows_of

COLUMNS = ("role", "block", "captures", "jobs", "most")
CHOICES = ("role", "block", "job")


@dataclass(frozen=True, eq=False)
class Listed(Answer):
    """The roles of captures, one line for each."""

    roles: Roles

    def records(self) -> list[Row]:
        return rows_of(self.roles.table)

    @property
    def parts(self) -> list[Part]:
        return [repr(self.roles), Table(self.records(), COLUMNS)]


def _options(add: Add) -> None:
    add("path", metavar="PATH", help="a folder of captures, or a dump of several")
    add("--chip", help="only captures of this chip")
    add("--target", help="only captures of this NPU")


def _roles(options: argparse.Namespace) -> None:
    show(options, Listed(roles(load_captures(options.path, options.chip, options.target))))


def job_options(add: Add, block: str, job: bool = True) -> None:
    """Add the options that choose jobs of captures: ``--role``, ``--block``, ``--job``; ``block``
    is the help of the second."""
    add("--role", metavar="NAME", help="only jobs of this role, as npulab roles lists them")
    add("--block", metavar="NAME", help=block)
    if job:
        add("--job", type=int, metavar="N", help="only job N of each capture, counted from 0")


def chosen_jobs(options: argparse.Namespace) -> dict[str, Any]:
    """The options that choose jobs, by name, as far as they are given; raises ValueError for two of
    them."""
    found = {}
    for name in CHOICES:
        value = getattr(options, name, None)
        if value is not None:
            found[name] = value
    if len(found) > 1:
        raise ValueError(f"--{' and --'.join(found)}: got both, allowed is one of them")
    return found


def tell_part(looked_at: str, captures: object) -> None:
    """Say on stderr how many jobs of how many are looked at, if not all are, and how to look at
    others; ``captures`` is where they lie."""
    # the answer itself goes to stdout, which a program may read
    if looked_at:
        tell(
            f"{part_said(looked_at)}; npulab roles {captures} lists the roles, --role takes another"
        )


# each command by its name: its options and what it runs
COMMANDS = {"roles": (_options, _roles)}
