"""Modules in the working folder that trusted code imports: each of them needs trust of its own.

In a notebook and with ``python -m`` Python looks for modules in the working folder, and in the
folders that ``PYTHONPATH`` names. Trusted code may import a module from there that was not trusted
with it; that would run whatever somebody has put there since. So if trusted code imports a module,
while it loads or in a later call, and the module lies in the working folder, the module is looked
up in the record of trust. If the record does not have its present contents, the import is refused
in one sentence. Imports by the notebook itself are not checked.
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

# npulab itself is not checked: it may be a checkout in the working folder
OWN = Path(__file__).parents[1]
_watched: set[str] = set()  # folders and files of trusted code that was loaded


def watch(place: Path) -> None:
    """Check from now on every import by trusted code that lies at a place (a file or folder)."""
    _watched.add(str(place))
    if any(isinstance(finder, _Guard) for finder in sys.meta_path):
        return
    at = len(sys.meta_path)
    if PathFinder in sys.meta_path:
        at = sys.meta_path.index(PathFinder)
    sys.meta_path.insert(at, _Guard())


class _Guard:
    """A finder for ``sys.meta_path``: it finds the modules in the working folder that trusted code
    imports, if they are trusted."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, _: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a module in the working folder that trusted code imports; it is always loaded
        from its source, never from a compiled copy.

        None for any other import. Raises ImportError for a module that nobody trusts.
        """
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
    """True if trusted code (a file or folder given to ``watch``) is among the callers."""
    files = set()
    while frame is not None:
        files.add(frame.f_code.co_filename)
        frame = frame.f_back
    return any(map(_is_watched, files))


def _is_watched(file: str) -> bool:
    """True if a file, or a folder that holds the file, was given to ``watch``."""
    place = file
    while place:
        if place in _watched:
            return True
        place = place.rpartition(os.sep)[0]
    return False


def _trusted_path(file: Path) -> Path:
    """The path to give to ``npulab trust`` so that it covers a module: the folder of its outermost
    package, or its file if it is in no package."""
    folder = file.parent
    while (folder.parent / "__init__.py").is_file():
        folder = folder.parent
    if (folder / "__init__.py").is_file():
        return folder
    return file
