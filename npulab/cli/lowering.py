"""``npulab lower``: the jobs that a driver would send for the operators of a model."""

from __future__ import annotations

import argparse
from pathlib import Path

from npulab.cli.output import show
from npulab.cli.scanning import tensor_in
from npulab.cli.terminal import progress


def _lower(options: argparse.Namespace) -> int:
    from npulab.analysis.lowered import lower_model
    from npulab.captures.store import save_all

    given = {}
    if options.chip:
        given["chip"] = options.chip
    if options.input:
        given["x"] = tensor_in(Path(options.input))
    with progress("operator") as bar:
        found = lower_model(options.model, options.target, progress=bar, **given)
    if options.dest:
        save_all({Path(options.dest) / capture.name: capture for capture in found.captures})
    show(options, found)
    if not len(found.captures):
        return 1
    return 0


COMMANDS = {"lower": _lower}
