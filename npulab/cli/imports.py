"""``npulab import``: turn a foreign dump into capture folders, or captures or words of an NPU that
has no target into one sweep."""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

from npulab.captures import store
from npulab.captures.capture import Capture
from npulab.captures.logs import capture_of_log
from npulab.captures.registry import targets
from npulab.captures.sweep import SUFFIX, SUFFIXES, save_sweep, sweep_of
from npulab.captures.unrecognised import holds_none
from npulab.captures.words import read_words
from npulab.cli.output import Done, show, tell
from npulab.cli.roles import CHOICES, chosen_jobs, tell_part
from npulab.support.refuse import refuse_if


def _import(options: argparse.Namespace) -> int:
    if _of_words(options):
        return _words_into_sweep(options)
    cases = _cases(options)
    torn = [case for case in cases if isinstance(case, ValueError)]
    if len(torn) == len(cases) == 1:
        raise torn[0]
    for error in torn:
        tell(error)
    captures = [case for case in cases if isinstance(case, Capture)]
    chosen = chosen_jobs(options)
    if chosen and Path(options.dest).suffix not in SUFFIXES:
        name = next(iter(chosen))
        raise ValueError(f"--{name}: got DEST {options.dest}, allowed with it is a file {SUFFIX}")
    if options.provenance:
        captures = [*map(partial(replace, provenance=options.provenance), captures)]
    if captures and Path(options.dest).suffix in SUFFIXES:
        _into_sweep(options, captures, chosen)
    elif captures:
        _into_folders(options, captures)
    elif not torn:
        raise ValueError(holds_none(Path(options.path)))
    return 2 if torn else 0


def _of_words(options: argparse.Namespace) -> bool:
    """True if an option is given that describes how words lie in a file without a target."""
    given = options.words, options.parameters, options.bits
    return options.big_endian or any(value is not None for value in given)


def _words_into_sweep(options: argparse.Namespace) -> int:
    """Write one sweep of words that no target describes."""
    for name in ("name", *CHOICES):
        if getattr(options, name) is not None:
            raise ValueError(
                f"--{name}: got words, allowed is a dump of captures, without --words, "
                "--parameters, --bits and --big-endian"
            )
    dest = Path(options.dest)
    if dest.suffix not in SUFFIXES:
        raise ValueError(
            f"{dest}: got {dest.suffix or 'no suffix'}, allowed is a file {SUFFIX} for a sweep"
        )
    bits = {}
    if options.bits is not None:
        bits = {"bits": options.bits}
    sweep = replace(
        read_words(
            options.path,
            options.words,
            options.parameters,
            big_endian=options.big_endian,
            **bits,
        ),
        name=dest.stem,
        chip=options.chip or "",
        provenance=options.provenance or "",
        source=options.source or "",
    )
    path = save_sweep(sweep, dest)
    record = {"sweep": sweep.name, "path": str(path), **sweep.counts}
    show(options, Done(record, f"{path}: {sweep!r}"))
    return 0


def _cases(options: argparse.Namespace) -> list[Capture | ValueError]:
    """Return the captures that the path holds, with errors in the places of captures that cannot be
    read; with ``--pattern`` the one capture that is read from a text such as a log.
    """
    path, pattern = options.path, options.pattern
    if pattern is None:
        refuse_if(options.target, "--target", options.target, "is --target only with --pattern")
        return [*store.load_cases(path).values()]
    if not options.target:
        raise ValueError(
            f"--target: got none, allowed with --pattern is one of {', '.join(targets())}; "
            f"npulab new NAME --from {quote(path)} --pattern {quote(pattern)} begins another NPU"
        )
    return [capture_of_log(path, pattern, options.target, options.chip)]


def _into_folders(options: argparse.Namespace, captures: list[Capture]) -> None:
    name = options.name or Path(options.path).stem
    if Path(name).name != name or name in (".", ".."):
        raise ValueError(f"--name: got {name!r}, allowed is a plain folder name")
    by_folder = {}
    for capture in captures:
        case = name
        if len(captures) > 1:
            case = f"{name}-{capture.name}"
            if not options.name and Path(options.path, capture.name).is_dir():
                case = capture.name
        source = options.source or capture.source
        kept = store.on_chip(capture, options.chip)
        by_folder[Path(options.dest) / case] = replace(kept, name=case, source=source)
    for path in store.save_all(by_folder):
        show(options, Done({"case": path.name, "path": str(path)}, str(path)))


def _into_sweep(
    options: argparse.Namespace, captures: list[Capture], chosen: dict[str, Any]
) -> None:
    """Write captures as one sweep, which has the name of its file."""
    if options.name:
        raise ValueError(
            f"--name: got {options.name!r} with a sweep, allowed is no --name: a sweep has the "
            "name of its file"
        )
    sweep = sweep_of([*map(partial(store.on_chip, chip=options.chip), captures)], **chosen)
    path = save_sweep(replace(sweep, source=options.source or sweep.source), options.dest)
    done = {"sweep": path.stem, "path": str(path), **sweep.counts}
    if sweep.looked_at:
        done["looked_at"] = sweep.looked_at
    show(options, Done(done, str(path)))
    if not chosen:
        tell_part(sweep.looked_at, options.path)


COMMANDS = {"import": _import}
