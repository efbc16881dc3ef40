"""``npulab import``: a foreign dump into capture folders, captures into one sweep."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from npulab.captures import store
from npulab.captures.capture import PROVENANCES, Capture
from npulab.captures.sweep import SUFFIX, save_sweep, sweep_of
from npulab.captures.unrecognised import holds_none
from npulab.cli.output import Add, Done, show, tell


def _options(add: Add) -> None:
    add("path", metavar="PATH")
    add("dest", metavar="DEST", help=f"a folder, or a file {SUFFIX} for one sweep of all captures")
    add("--name", help="of the case; NAME-<side> where the dump holds several")
    add("--source", help="where the dump is from, for the record")
    add("--chip", help="the chip it was taken on")
    add(
        "--provenance",
        choices=PROVENANCES,
        help="what recorded it, where it is not as the dump says",
    )


def _import(options: argparse.Namespace) -> int:
    cases = [*store.load_cases(options.path).values()]
    torn = [case for case in cases if isinstance(case, ValueError)]
    if len(torn) == len(cases) == 1:
        raise torn[0]
    for error in torn:
        tell(error)
    captures = [
        replace(case, provenance=options.provenance or case.provenance)
        for case in cases
        if isinstance(case, Capture)
    ]
    if not captures and torn:
        return 2
    if not captures:
        raise ValueError(holds_none(Path(options.path)))
    (_into_sweep if Path(options.dest).suffix == SUFFIX else _into_folders)(options, captures)
    return 2 * bool(torn)


def _into_folders(options: argparse.Namespace, captures: list[Capture]) -> None:
    name = options.name or Path(options.path).stem
    if Path(name).name != name or name in (".", ".."):
        raise ValueError(f"--name: got {name!r}, allowed is a plain folder name")
    if len(captures) == 1:
        named = {name: captures[0]}
    else:
        named = {f"{name}-{capture.name}": capture for capture in captures}
    written = store.save_all(
        {
            Path(options.dest) / case: replace(
                store.on_chip(capture, options.chip),
                name=case,
                source=options.source or capture.source,
            )
            for case, capture in named.items()
        }
    )
    for path in written:
        show(options, Done({"case": path.name, "path": str(path)}, str(path)))


def _into_sweep(options: argparse.Namespace, captures: list[Capture]) -> None:
    """Captures into one sweep; its name is that of the file."""
    if options.name:
        raise ValueError(
            f"--name: got {options.name!r}, allowed is none with a sweep, which is named as its "
            "file"
        )
    sweep = sweep_of([store.on_chip(capture, options.chip) for capture in captures])
    path = save_sweep(replace(sweep, source=options.source or sweep.source), options.dest)
    show(options, Done({"sweep": path.stem, "path": str(path), **sweep.counts}, str(path)))


COMMANDS = {"import": (_options, _import)}
