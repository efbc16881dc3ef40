"""Packages that may be missing: each is asked for here, so that who misses one reads which install
brings it."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

from npulab.support.files import read_table

PACKAGES = Path(__file__).with_name("packages.csv")
SAID = re.compile(r"No module named '?([A-Za-z_]\w*)")  # by Python


class MissingPackage(ImportError):
    """A package that a call needs is not installed, or cannot be loaded; the text is one sentence
    with the install that brings it."""


def needed(module: str, purpose: str) -> Any:
    """A module of another package; raises MissingPackage where it cannot be loaded.  ``purpose`` is
    what needs it.

    >>> needed("math", "counting").factorial(3)
    6
    """
    try:
        importlib.import_module(_top(module))
        return importlib.import_module(module)
    except (ImportError, OSError) as error:  # OSError: a library that it is made of
        raise MissingPackage(f"{purpose} needs {lacking(module, error)}") from None


def installed(module: str) -> bool:
    """Whether a module of another package can be loaded."""
    try:
        needed(module, "this")
    except MissingPackage:
        return False
    return True


def lacking(module: str, error: Exception | None = None) -> str:
    """A package that is not there, and what brings it; ``error`` is what its import raised.

    >>> lacking("clang.cindex")
    "libclang, which is not installed: pip install 'npulab[maps]'"
    """
    top = _top(module)
    state = "is not installed"
    if error is not None and not (
        isinstance(error, ModuleNotFoundError) and _top(error.name or top) == top
    ):
        state = f"cannot be loaded ({error})"
    row = next((row for row in read_table(PACKAGES) if row["module"] == top), None)
    if row is None:
        return f"{top}, which {state}, and which no install of npulab brings"
    return f"{row['package']}, which {state}: {_install(row)}"


def _top(module: str) -> str:
    return module.partition(".")[0]


def _install(row: dict[str, str]) -> str:
    """The command that brings a package."""
    if row["extra"]:
        return f"pip install 'npulab[{row['extra']}]'"
    return f"pip install {row['package']}"


def told(error: ImportError) -> str:
    """What an import that failed means, in one sentence.

    >>> told(ModuleNotFoundError("No module named 'mine'", name="mine"))
    'this needs mine, which is not installed, and which no install of npulab brings'
    """
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"this needs {lacking(error.name)}"
    return " ".join(str(error).split())


def lacking_in(text: str) -> str:
    """What a program in Python lacks, by its last words; nothing where it lacks no module.

    >>> lacking_in("python: No module named numba.core"), lacking_in("no such layer")
    ("numba, which is not installed: pip install 'npulab[fast]'", '')
    """
    found = SAID.findall(text)
    if found:
        return lacking(found[-1])
    return ""
