"""``npulab verdict``: check a verdict file of a search again; the writing of such a file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npulab.captures.devices import Manual, Simulated, device
from npulab.captures.verdicts import Verdict
from npulab.cli.devices import program_settings, refuse_settings
from npulab.cli.output import show, tell
from npulab.support.files import first_bytes

if TYPE_CHECKING:
    from npulab.analysis.bisect import Bisected
    from npulab.captures.controlled import Controlled

HEAD = 2**12  # bytes in which a verdict says that it is one
IS_VERDICT = b'"npulab": "verdict"'


def _verdict(options: argparse.Namespace) -> int:
    from npulab.analysis.verdict import recheck

    verdict = Verdict.read(options.file)
    settings = program_settings(options)
    asked: Any = None
    if options.device is not None:
        asked = _device(options, verdict, Path(options.file).parent, settings)
    elif settings:
        name = next(iter(settings))
        raise ValueError(f"--{name}: got it without --device, allowed is it with --device")
    found = recheck(verdict, Path(options.file).parent, asked)
    show(options, found)
    return int(not found.holds)


def _device(
    options: argparse.Namespace, verdict: Verdict, folder: Path, settings: dict[str, Any]
) -> Any:
    """Return the device, which passes a run that gives the good capture's output."""
    from npulab.captures import store

    path = Path(verdict["inputs"]["good"]["path"])
    if not path.exists():
        path = folder / path
    good = store.load(path)
    found = device(options.device, good.buffers.get("output"), **settings)
    if isinstance(found, Manual):
        raise ValueError(
            f"--device: got {options.device!r}, allowed is one that runs without a person"
        )
    if settings:
        refuse_settings(next(iter(settings)), options.device, found)
    if isinstance(found, Simulated):
        # as bisect does: the good capture's output may be from a board
        return Simulated(found.run(good).output)
    return found


def refuse_verdict(path: str) -> None:
    """Raise an error for a path that cannot be written, or that has a file which is no verdict."""
    file = Path(path)
    if file.is_dir() or not file.parent.is_dir():
        raise ValueError(f"--verdict: got {path}, allowed is a file in a folder that is there")
    if file.exists() and IS_VERDICT not in first_bytes(file, HEAD):
        raise FileExistsError(
            f"--verdict: got {path}, which is there and is no verdict, allowed is a new file"
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
