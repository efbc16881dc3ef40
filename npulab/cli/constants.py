"""``npulab constants``: real-valued constants in streams of bytes."""

from __future__ import annotations

import argparse
from itertools import count

from npulab.captures.byte_streams import read_streams
from npulab.captures.sweep import SUFFIX, is_sweep, load_sweep
from npulab.cli.output import show
from npulab.cli.terminal import progress
from npulab.support.refuse import refuse_if


def _constants(options: argparse.Namespace) -> int:
    from npulab.analysis.laws.constants import find_constants

    with progress("encoding") as bar:
        steps = count(1)

        def told(text: str) -> None:
            bar(next(steps), None, text)

        if is_sweep(options.path):
            # a sweep itself states the parameters of its captures
            refuse_if(options.parameters, "--parameters", "a sweep", "is a folder of files")
            refuse_if(options.leave_out, "--leave-out", "a sweep", "is a folder of files")
            sweep = load_sweep(options.path)
            found = find_constants(sweep, most_factors=options.factors, progress=told)
        else:
            refuse_if(
                options.parameters is None,
                "--parameters",
                "none",
                f"is a table of the layers, as layers.csv, unless PATH is a sweep {SUFFIX}",
            )
            streams = read_streams(options.path, options.parameters).without(options.leave_out)
            found = find_constants(
                streams.rows, streams.columns, most_factors=options.factors, progress=told
            )
    show(options, found)
    # the exit status tells a script whether a constant was found
    return int(not found.constants)


COMMANDS = {"constants": _constants}
