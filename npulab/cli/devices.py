"""The devices that a command runs captures on, and the options of those that are programs."""

from __future__ import annotations

import argparse
from typing import Any

from npulab.captures.devices import Command
from npulab.cli.output import Add

DEVICES = (
    "simulated, command:PROGRAM ARGUMENTS (the trial's folder goes last), "
    "python:MODULE:CLASS (stays up)"
)
OF_PROGRAMS = ("timeout", "reset", "cooldown", "retries")


def program_options(add: Add) -> None:
    """Declare the options that only a device ``command:PROGRAM`` has."""
    add(
        "--timeout",
        type=float,
        metavar="SECONDS",
        help="after which a program's run counts as hung (60)",
    )
    add("--reset", metavar="PROGRAM", help="run after a hang, or to make a device ready again")
    add("--cooldown", type=float, metavar="SECONDS", help="to wait after a hang (0)")
    add("--retries", type=int, metavar="N", help="of a program that could not be run (0)")


def program_settings(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options of ``program_options`` that are given, as parameters of ``Command``."""
    given = {name: getattr(options, name) for name in OF_PROGRAMS}
    return {name: value for name, value in given.items() if value is not None}


def refuse_settings(name: str, text: str, device: object) -> None:
    """Raise ValueError for an option of programs, ``name``, with another device."""
    if not isinstance(device, Command):
        raise ValueError(f"--{name}: got device {text!r}, allowed is a device command:PROGRAM")
