"""The devices that a command runs captures on, and the options of those that are programs."""

from __future__ import annotations

import argparse
from typing import Any

from npulab.captures import store
from npulab.captures.capture import Capture
from npulab.captures.controlled import EVERY, Controlled
from npulab.captures.devices import Command, Manual
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


# options that ask for controls, each alone
CONTROLS = ("controls", "good_control", "bad_control", "every", "fingerprint", "boot", "never")


def control_options(add: Add, good: str, bad: str) -> None:
    """Declare the options of trials with controls; the texts say what the controls are by
    default."""
    add("--controls", action="store_true", help="run controls before, between and after trials")
    add("--good-control", metavar="CAPTURE", help=f"a known-good one, with its output ({good})")
    add("--bad-control", metavar="CAPTURE", help=f"one that must not give that output ({bad})")
    add("--every", type=int, metavar="N", help=f"trials between controls ({EVERY})")
    add(
        "--fingerprint",
        metavar="COMMAND",
        help="prints what the device is (kernel, firmware, model); a change ends the search",
    )
    add("--boot", metavar="COMMAND", help="prints a text that changes when the device reboots")
    add(
        "--never",
        action="append",
        metavar="CONDITION",
        help="of fields (post_shift == 0) or a capture's hash, that must not run; repeatable",
    )


def wants_controls(options: argparse.Namespace) -> bool:
    """True if an option asks for trials with controls."""
    return any(getattr(options, name) for name in CONTROLS)


def controlled(
    options: argparse.Namespace, device: Any, good: Capture, bad: Capture | None, **more: Any
) -> Controlled:
    """Return a device with the controls that the options ask for; ``good`` and ``bad`` are the
    controls that no option names."""
    if isinstance(device, Manual):
        raise ValueError(
            f"--controls: got {options.device!r}, allowed is a device that runs without a person"
        )
    if options.good_control is not None:
        good = store.load(options.good_control)
    elif getattr(device, "expected", None) is not None:
        good = good.with_buffers(output=device.expected)
    if options.bad_control is not None:
        bad = store.load(options.bad_control)
    for name in ("every", "fingerprint", "boot", "never"):
        if getattr(options, name) is not None:
            more[name] = getattr(options, name)
    return Controlled(device, good, bad, **more)
