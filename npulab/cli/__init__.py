"""The shell commands."""

from __future__ import annotations

import sys
from collections.abc import Sequence

REFUSED = 2  # the exit status


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status."""
    if arguments is None:
        arguments = sys.argv[1:]
    if list(arguments) == ["--version"]:  # answered before anything is loaded
        from npulab.support.distributions import version_of

        print(f"npulab {version_of('npulab')}")
        return 0
    try:
        from npulab.cli.shell import main

        return main(arguments)
    except ModuleNotFoundError as error:  # a package of npulab's, or of a target's code
        from npulab.support.extras import told

        print(f"npulab: {told(error)}", file=sys.stderr)
        return REFUSED
