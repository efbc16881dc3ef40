"""The devices that a command runs captures on, and the options of those that are programs."""

from __future__ import annotations

import argparse
from typing import Any

from npulab.captures import store
from npulab.captures.capture import Capture
from npulab.captures.controlled import Controlled
from npulab.captures.devices import Command, InProcess, Manual, Simulated, device

DEVICES = (
    "simulated, command:PROGRAM ARGUMENTS (the trial's folder goes last), "
    "python:MODULE:CLASS (stays up)"
)
OF_PROGRAMS = ("timeout", "reset", "cooldown", "retries")
# By parameter of ``Command``: the option that states it, if their names differ.
SHELL = {"output": "by-status"}


def program_settings(options: argparse.Namespace) -> dict[str, Any]:
    """Return those options of ``OF_PROGRAMS`` that are given, as parameters of ``Command``."""
    given = vars(options)
    return {name: given[name] for name in OF_PROGRAMS if given[name] is not None}


def refuse_settings(name: str, text: str, device: object) -> None:
    """Raise ValueError if the option ``name``, which only programs have, is given with a device
    that is no program; ``text`` is the device as it was typed.
    """
    if not isinstance(device, Command):
        raise ValueError(f"--{name}: got device {text!r}, allowed is a device command:PROGRAM")


def asked_device(
    options: argparse.Namespace, good: Capture | None = None, **more: Any
) -> Simulated | Command | InProcess | Manual:
    """Return the device that ``--device`` names. With a good capture, a trial passes if the device
    gives the output of that capture; the simulated device compares with its own output for it.

    ``more`` are further settings for a device that is a program. Raises ValueError for
    settings of programs if the device is no program, and for a good capture that hangs on the
    simulated device.
    """
    settings = {**more, **program_settings(options)}
    expected = None
    if good is not None:
        expected = good.buffers.get("output")
    found = device(options.device, expected, **settings)
    if settings:
        name = next(iter(settings))
        refuse_settings(SHELL.get(name, name), options.device, found)
    if good is None or not isinstance(found, Simulated):
        return found
    # the good capture's output may be from a board: trials are compared with this device's output
    run = found.run(good)
    if run.output is None:
        raise ValueError(
            f"{good.name}: hangs on the simulated device ({run.reason}), allowed is a capture that "
            "runs"
        )
    return Simulated(run.output)


def refuse_person(options: argparse.Namespace, found: object) -> None:
    """Raise ValueError for a device on which a person makes the runs."""
    if isinstance(found, Manual):
        raise ValueError(
            f"--device: got {options.device!r}, allowed is a device that runs without a person"
        )


# controls are captures of known outcome that are run between trials; each of these options asks for
# them
CONTROLS = ("controls", "good_control", "bad_control", "every", "fingerprint", "boot", "never")


def wants_controls(options: argparse.Namespace) -> bool:
    """True if an option asks for trials with controls."""
    return any(map(vars(options).get, CONTROLS))


def controlled(
    options: argparse.Namespace, device: Any, good: Capture, bad: Capture | None, **more: Any
) -> Controlled:
    """Return a device with the controls that the options ask for; ``good`` and ``bad`` are the
    controls if no option names others, ``more`` goes to ``Controlled``. Raises ValueError for a
    device that a person runs.
    """
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
