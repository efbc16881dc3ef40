"""The commands of the shell: each reads arguments, calls one function and prints its result."""

from __future__ import annotations

import sys
from collections.abc import Sequence

REFUSED = 2  # exit status of a command whose input is refused


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command of the shell and return its exit status."""
    if arguments is None:
        arguments = sys.argv[1:]
    if list(arguments) == ["--version"]:  # answered at once, without loading the commands
        from npulab.support.distributions import version_of

        print(f"npulab {version_of('npulab')}")
        return 0
    try:
        from npulab.cli.shell import main

        return main(arguments)
    except ModuleNotFoundError as error:  # a package or a target's module is missing
        from npulab.support.extras import told

        print(f"npulab: {told(error)}", file=sys.stderr)
        return REFUSED
