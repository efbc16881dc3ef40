"""The shell commands."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    given = sys.argv[1:] if arguments is None else arguments
    if list(given) == ["--version"]:  # answered before anything is loaded
        from importlib.metadata import version

        print(f"npulab {version('npulab')}")
        return 0
    from npulab.cli.shell import main

    return main(arguments)
