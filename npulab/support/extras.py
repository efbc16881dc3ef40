"""Packages that may be missing: they are imported here, so that the error names the install command
that brings the package."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

from npulab.support.files import read_table

PACKAGES = Path(__file__).with_name("packages.csv")
# finds the module's name in Python's message about a missing module
MISSING = re.compile(r"No module named '?([A-Za-z_]\w*)")


class MissingPackage(ImportError):
    """Raised if a package that a call needs is not installed or cannot be loaded; the text is one
    sentence with the install command."""


def needed(module: str, purpose: str) -> Any:
    """A module of another package, loaded; raises MissingPackage if it cannot be loaded.
    ``purpose`` names the work that needs the module; the error text begins with it.

    >>> needed("math", "counting").factorial(3)
    6
    """
    try:
        importlib.import_module(_top(module))
        return importlib.import_module(module)
    # OSError is raised if a shared library of the package does not load
    except (ImportError, OSError) as error:
        raise MissingPackage(f"{purpose} needs {lacking(module, error)}") from None


def installed(module: str) -> bool:
    """Load a module of another package and return True; return False if it cannot be loaded."""
    try:
        needed(module, "this")
    except MissingPackage:
        return False
    return True


def lacking(module: str, error: Exception | None = None) -> str:
    """The name of a missing package with the install command that brings it, as words to follow
    "needs"; ``error`` is the error that the import of the module raised.

    >>> lacking("clang.cindex")
    "libclang, which is not installed: pip install 'npulab[maps]'"
    """
    top = _top(module)
    absent = isinstance(error, ModuleNotFoundError) and _top(error.name or top) == top
    state = "is not installed"
    if error is not None and not absent:
        state = f"cannot be loaded ({error})"
    for row in read_table(PACKAGES):
        if row["module"] == top:
            return f"{row['package']}, which {state}: {_install(row)}"
    return f"{top}, which {state}, and which no install of npulab brings"


def _top(module: str) -> str:
    return module.partition(".")[0]


def _install(row: dict[str, str]) -> str:
    """The install command that brings the package of a row of packages.csv."""
    if row["extra"]:
        return f"pip install 'npulab[{row['extra']}]'"
    return f"pip install {row['package']}"


def told(error: ImportError) -> str:
    """The error of a failed import as one sentence, with the install command if a package is
    missing.

    >>> told(ModuleNotFoundError("No module named 'mine'", name="mine"))
    'this needs mine, which is not installed, and which no install of npulab brings'
    """
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"this needs {lacking(error.name)}"
    return " ".join(str(error).split())


def lacking_in(text: str) -> str:
    """The package that a Python program lacks, with its install command, found in the last words
    that the program printed; "" if they name none.

    >>> lacking_in("python: No module named numba.core"), lacking_in("no such layer")
    ("numba, which is not installed: pip install 'npulab[fast]'", '')
    """
    found = MISSING.findall(text)
    if found:
        return lacking(found[-1])
    return ""
