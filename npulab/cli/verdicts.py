"""``npulab verdict``: check a verdict file of a search again; the writing of such a file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npulab.captures.store import load
from npulab.captures.verdicts import Verdict
from npulab.cli.devices import asked_device, program_settings, refuse_person
from npulab.cli.output import show, tell
from npulab.support.files import first_bytes
from npulab.support.refuse import refuse_if

if TYPE_CHECKING:
    from npulab.analysis.bisect import Bisected
    from npulab.captures.controlled import Controlled

HEAD = 2**16  # this many bytes at the start of a file are searched for its kind
IS_VERDICT = b'"npulab": "verdict"'


def _verdict(options: argparse.Namespace) -> int:
    from npulab.analysis.verdict import recheck

    verdict = Verdict.read(options.file)
    folder = Path(options.file).parent
    asked: Any = None
    if options.device is not None:
        path = Path(verdict["inputs"]["good"]["path"])
        if not path.exists():
            path = folder / path
        asked = asked_device(options, load(path))
        refuse_person(options, asked)
    for name in program_settings(options):
        without = options.device is None
        refuse_if(without, f"--{name}", "no --device", "is --device DEVICE with it")
    found = recheck(verdict, folder, asked)
    show(options, found)
    return int(not found.holds)


def refuse_other(option: str, path: str, kind: str, sign: bytes) -> None:
    """Raise an error if ``path`` cannot be written: ValueError for a folder, and for a path in a
    folder that does not exist; FileExistsError for a file of another kind.

    A file is of the kind ``kind`` if its first bytes contain ``sign``.
    """
    file = Path(path)
    if file.is_dir() or not file.parent.is_dir():
        raise ValueError(f"--{option}: got {path}, allowed is a file in a folder that exists")
    exists = file.exists() or file.is_symlink()
    if exists and sign not in first_bytes(file, HEAD):
        raise FileExistsError(
            f"--{option}: got {path}, which is there and is no {kind}, allowed is a new file"
        )


def write_verdict(
    options: argparse.Namespace, found: Bisected, watched: Controlled, settings: Mapping[str, Any]
) -> None:
    """Write the verdict of a bisection to the file that the options name."""
    from npulab.analysis.verdict import verdict_of

    paths = {"good": options.good, "bad": options.bad}
    if options.good_control is not None:
        paths["good control"] = options.good_control
    if options.bad_control is not None:
        paths["bad control"] = options.bad_control
    made = verdict_of(
        found,
        watched,
        paths=paths,
        device=options.device,
        settings=settings,
        command=["npulab", *sys.argv[1:]],
    )
    made.write(options.verdict)
    tell(f"{options.verdict}: written; npulab verdict {options.verdict} checks it again")


COMMANDS = {"verdict": _verdict}
