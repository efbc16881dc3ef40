"""``npulab explore``: plan layers, ask a compiler or a driver for their captures, learn laws, and
repeat; a stopped exploration can be continued.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from shutil import which
from typing import Any

from npulab.cli.output import show
from npulab.cli.roles import chosen_jobs, tell_part
from npulab.cli.terminal import progress
from npulab.cli.workers import has_workers, workers_of
from npulab.support.answers import Answer, Part, Table
from npulab.support.files import read_json
from npulab.support.refuse import near, refuse_if, refusing, shortly
from npulab.support.text import Row

LOWER = "lower:"
ENDS = ("low", "high")
COLUMNS = ("batch", "captures", "cells", "claimed", "wrong", "share", "capturing", "learning")


@dataclass(frozen=True, eq=False)
class Answered(Answer):
    """The answer of ``npulab explore``; ``found`` is what the function ``explore`` returned."""

    found: Any

    def records(self) -> list[Row]:
        """Return records with a ``kind``: each "batch", each "surprise" (a wrong prediction), each
        layer without a capture ("lost"), the commonest "reason" why layers have no capture, the
        "part" of the jobs that is looked at (if not all are), and each "law".
        """
        rows = [
            *_records("batch", self.found.batches),
            *_records("surprise", self.found.surprises),
            *_records("lost", self.found.outcomes),
        ]
        rows += [{"kind": "reason", **asdict(reason)} for reason in self.found.reasons]
        if self.found.looked_at:
            rows.append({"kind": "part", "looked_at": self.found.looked_at})
        if self.found.laws is not None:
            rows += _records("law", self.found.laws.table)
        return rows

    @property
    def parts(self) -> list[Part]:
        rows = self.found.batches.round(3).to_dict("records")
        rules = [f"refused: {rule}" for rule in self.found.rules]
        return [Table(rows, COLUMNS), *rules, repr(self.found), str(self.found.laws or "no laws")]


def _records(kind: str, table: Any) -> list[Row]:
    rows = json.loads(table.to_json(orient="records"))
    return [{"kind": kind, **row} for row in rows]


def _explore(options: argparse.Namespace) -> int:
    from npulab.analysis.explore import explore
    from npulab.captures.registry import target
    from npulab.captures.sources import Compiler, Lowered, Source, reader_of

    source: Source
    if options.source.startswith(LOWER):
        name, _, chip = options.source.removeprefix(LOWER).partition(":")
        npu = target(name)
        if chip:
            npu.features(chip)  # raises for a chip that the target does not have
        source, workers = Lowered(name, chip or None, options.dtype), 1
    else:
        read = None
        if options.target:
            read = reader_of(options.target)
        source = Compiler(options.source, read, options.dtype or "int8", options.timeout)
        program = source.command[0]
        refuse_if(which(program) is None, "source", program, "is a program that can be run")
        workers = options.workers
    if has_workers(options):
        workers = 1
    with workers_of(options) as executor, progress("layer") as bar:
        found = explore(
            source,
            _ranges(options.ranges),
            budget=options.budget,
            store=options.store,
            workers=workers,
            executor=executor,
            **chosen_jobs(options),
            progress=lambda step: bar(step.asked, options.budget, f"{step.text:.60}"),
        )
    show(options, Answered(found))
    if not chosen_jobs(options):
        captures = "PATH"
        if options.store:
            captures = f"{options.store}/captures"
        tell_part(found.looked_at, captures)
    if found.stopped:
        return 1
    return 0


def _ranges(path: str | None) -> dict[str, Any]:
    """Read a JSON file of ranges: for each parameter a list of values, or an object with low and
    high; raises ValueError for any other value.
    """
    from npulab.captures.layers import complete_ranges

    if path is None:
        return {}
    said = read_json(Path(path))
    with refusing(path):
        refuse_if(
            not isinstance(said, dict),
            "ranges",
            shortly(said),
            "is an object of ranges by parameter",
        )
        ranges = {name: _ends(name, allowed) for name, allowed in said.items()}
        complete_ranges(ranges)
    return ranges


def _ends(name: str, allowed: Any) -> Any:
    """Return a range of the file in the form that ``explore`` takes: a list of values, or (low,
    high).
    """
    if not isinstance(allowed, dict):
        return allowed
    unknown = [key for key in allowed if key not in ENDS]
    if unknown:
        raise ValueError(
            f"ranges: {name}: got {unknown[0]!r:.60}, allowed are low and "
            f"high{near(unknown[0], ENDS)}"
        )
    missing = [key for key in ENDS if key not in allowed]
    refuse_if(missing, f"ranges: {name}", f"no {' and no '.join(missing)}", "are both low and high")
    return allowed["low"], allowed["high"]


COMMANDS = {"explore": _explore}
