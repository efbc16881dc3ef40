"""Modules of the working folder that trusted code imports: they need the same trust.

In a notebook and with ``python -m`` Python looks for modules in the working folder, and in the
folders that ``PYTHONPATH`` names.  Code that is trusted may import a module from there that was not
trusted with it: that would run whatever somebody has put there since.  So if code of a trusted
place asks for a module, while it loads or in a call later, and the module lies in the working
folder, the module is looked up in the record of trust.  If its present contents are not there, it
is refused in one sentence.  Imports of the notebook itself are its own business.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import SOURCE_SUFFIXES, ModuleSpec, PathFinder
from pathlib import Path
from types import FrameType, ModuleType

from npulab.captures.installed import is_local
from npulab.captures.trusted import Source, covers

OWN = Path(__file__).parents[1]  # npulab may be a checkout in the working folder
_watched: set[str] = set()  # folders and files of trusted code that was loaded


def watch(place: Path) -> None:
    """Check from now on what the code of a place imports."""
    _watched.add(str(place))
    if any(isinstance(finder, _Guard) for finder in sys.meta_path):
        return
    at = len(sys.meta_path)
    if PathFinder in sys.meta_path:
        at = sys.meta_path.index(PathFinder)
    sys.meta_path.insert(at, _Guard())


class _Guard:
    """Finds the modules of the working folder that trusted code asks for."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, _: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's own source, never a compiled copy; None for a module elsewhere.  Raises
        ImportError for a module that nobody trusts."""
        if not _asked_by_trusted(sys._getframe(1)):
            return None
        found = PathFinder.find_spec(name, path)
        if found is None or not found.has_location or found.origin is None:
            return None
        file = Path(found.origin).absolute()
        if file.resolve().is_relative_to(OWN) or not is_local(file):
            return None
        if not covers(file):
            raise ImportError(
                f"{name}: its code is not run, for {file} is not trusted as it is now; if you know "
                f"who wrote it: npulab trust {_trusted_path(file)}",
                name=name,
                path=str(file),
            )
        _watched.add(str(file))
        loader = found.loader
        if file.suffix in SOURCE_SUFFIXES:
            loader = Source(name, str(file))
        return importlib.util.spec_from_file_location(
            name, file, loader=loader, submodule_search_locations=found.submodule_search_locations
        )


def _asked_by_trusted(frame: FrameType | None) -> bool:
    """True if code of a watched place is among the callers."""
    while frame is not None:
        file = frame.f_code.co_filename
        if any(file == place or file.startswith(f"{place}{os.sep}") for place in _watched):
            return True
        frame = frame.f_back
    return False


def _trusted_path(file: Path) -> Path:
    """The path that the user gives to ``npulab trust`` for a module: the folder of a package."""
    folder = file.parent
    while (folder.parent / "__init__.py").is_file():
        folder = folder.parent
    if (folder / "__init__.py").is_file():
        return folder
    return file
