"""Whose code may run: what the user trusts, by its content, and how it is loaded.

The record has for each trusted place, the folder or the file of a module, the sha256 of every file
in it that may be code; of a file those of the modules and packages next to it too, which it can
import. Tables and texts are data, which may change; whatever else changes is asked for again.  Code
is compiled from its source each time: a compiled copy beside it is nothing that anybody has looked
at.  What trusted code imports of the working folder from outside its place wants trust of its own
(``imported``).
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import sys
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    SourceFileLoader,
)
from itertools import islice
from pathlib import Path
from types import CodeType, ModuleType

from npulab.support.files import locked, read_bounded, read_json, replace_file
from npulab.support.refuse import refuse_if

DATA = {".bin", ".csv", ".ipynb", ".json", ".md", ".npz", ".png", ".rst", ".svg", ".txt"}
COMPILED = "__pycache__"
MODULES = {*SOURCE_SUFFIXES, *(f".{suffix.rpartition('.')[2]}" for suffix in EXTENSION_SUFFIXES)}
MOST_FILES = 10_000
MOST_FOLDERS = 10_000  # that a module can import from
MOST_BYTES = 2**28  # of one file of code
MOST_NAMED = 3  # files that a sentence names
Sums = dict[str, str]  # sha256 by the file's name in its place


def trust(given: Path) -> Path:
    """Record that the code of a target's folder, of every target in a folder, or of a module, may
    run as it is now; gives the record's path.

    Raises ValueError for a folder without a target and code that cannot be told, OSError.
    """
    made = _places(given)
    refuse_if(
        not made,
        given,
        "no target",
        "is a target's folder, one of targets such as npulab_targets, or a module",
    )
    sums = {str(place): code_of(place) for place in made}
    record = _record()
    with locked(record):
        known = {place: one for place, one in _trusted().items() if Path(place).exists()}
        replace_file(record, json.dumps(known | sums, indent=0, sort_keys=True).encode())
    return record


def untrusted(place: Path) -> str:
    """Why the code of a place may not run, and the command that trusts it; nothing where it may."""
    place = place.resolve()
    known = _trusted().get(str(place))
    if known is None:
        return f"{place} is not trusted; if you know who wrote it: npulab trust {place}"
    try:
        now = code_of(place)
    except (OSError, ValueError) as error:
        return f"{place} is not as it was trusted: {error}"
    if now == known:
        return ""
    return (
        f"{place} is not as it was trusted: {_changes(known, now)}; if you know who changed it: "
        f"npulab trust {place}"
    )


def code_of(place: Path) -> Sums:
    """The sha256 of every file of a folder that may be code, or of a file and what it can import
    from its folder.

    Raises ValueError for a folder that is a link, whose files may be changed elsewhere, and for
    more than 10,000 files.
    """
    base = place.parent
    if place.is_dir():
        base = place
    return {one.relative_to(base).as_posix(): _sum(one) for one in files_of(place)}


def covers(file: Path) -> bool:
    """Whether a module's file is part of a place that is as it was trusted."""
    file = file.resolve()
    for name, sums in _trusted().items():
        place = Path(name)
        base = place.parent
        if place.is_dir():
            base = place
        inside = file.is_relative_to(base) and file.relative_to(base).as_posix() in sums
        if inside and not untrusted(place):
            return True
    return False


def files_of(place: Path) -> list[Path]:
    """The files that ``code_of`` has; raises as that does."""
    if place.is_dir():
        files = list(_inside(place))
    else:
        files = [place, *_next_to(place)]
    if len(files) > MOST_FILES:
        raise ValueError(
            f"{place}: got more than {MOST_FILES} files of code, allowed are {MOST_FILES}"
        )
    return files


def _inside(place: Path) -> Iterator[Path]:
    """The files of a folder that may be code."""
    for folder, folders, names in os.walk(place, onerror=_fail):
        folders[:] = [one for one in folders if one != COMPILED and not one.startswith(".")]
        links = [one for one in folders if Path(folder, one).is_symlink()]
        if links:
            raise ValueError(
                f"{Path(folder, links[0])}: got a link to a folder, allowed are folders that lie "
                "in "
                f"{place}"
            )
        code = [
            one for one in names if not one.startswith(".") and Path(one).suffix.lower() not in DATA
        ]
        yield from islice((Path(folder, one) for one in code), MOST_FILES + 1)


def _next_to(file: Path) -> Iterator[Path]:
    """The other modules of a file's folder and those of packages there; links to folders are left
    out,
    so that what lies behind them is covered by nothing."""
    for count, (folder, folders, names) in enumerate(os.walk(file.parent, onerror=_fail), 1):
        folders[:] = sorted(one for one in folders if one.isidentifier() and one != COMPILED)
        if count > MOST_FOLDERS:
            raise ValueError(
                f"{file.parent}: got more than {MOST_FOLDERS} folders that {file.name} can import, "
                f"allowed are {MOST_FOLDERS}; move it to a folder of its own"
            )
        for name in sorted(names):
            one = Path(folder, name)
            if one.suffix in MODULES and one != file and one.is_file():
                yield one


def load_module(name: str, place: Path) -> ModuleType:
    """The module in a folder or file, its code compiled from the source; what had the name is
    gone.
    """
    for known in [one for one in sys.modules if f"{one}.".startswith(f"{name}.")]:
        del sys.modules[known]  # of another folder, or of files that are no more as they were
    file = place
    if place.is_dir():
        file = place / "__init__.py"
    loader = None
    if file.suffix in SOURCE_SUFFIXES:
        loader = Source(name, str(file))
    if place.is_dir():
        for folder, _, _ in os.walk(place):
            sys.path_importer_cache[folder] = FileFinder(
                folder, (ExtensionFileLoader, EXTENSION_SUFFIXES), (Source, SOURCE_SUFFIXES)
            )
    spec = importlib.util.spec_from_file_location(
        name,
        file,
        loader=loader,
        submodule_search_locations=([str(place)] if place.is_dir() else None),
    )
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Source(SourceFileLoader):
    """Compiles a module from its source each time."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code


def _places(given: Path) -> list[Path]:
    """The folders and files of modules that a path means."""
    if given.is_file() and given.suffix in MODULES:
        return [given.resolve()]
    inner = sorted(
        one.parent.resolve() for one in [*given.glob("__init__.py"), *given.glob("*/__init__.py")]
    )
    return inner or sorted(
        {one.parent.resolve() for one in given.glob("*.py")}
    )  # a package without a page of its own


def _record() -> Path:
    """Where is recorded what this user trusts."""
    home = os.environ.get("XDG_STATE_HOME", "")
    return (
        Path(home) if Path(home).is_absolute() else Path.home() / ".local/state"
    ) / "npulab/trusted.json"


def _trusted() -> dict[str, Sums]:
    """The sums of each trusted place; none of a record that is broken, or of paths alone, as npulab
    wrote it before it kept sums."""
    try:
        read = read_json(_record())
    except (OSError, ValueError, RuntimeError):  # none, a broken one, a user without a home
        return {}
    if isinstance(read, dict):
        return {place: sums for place, sums in read.items() if isinstance(sums, dict)}
    return {}


def _changes(known: Mapping[str, str], now: Mapping[str, str]) -> str:
    told = [f"{name} has changed" for name in known if name in now and known[name] != now[name]]
    told += [f"{name} is new" for name in now if name not in known]
    told += [f"{name} is gone" for name in known if name not in now]
    more = []
    if len(told) > MOST_NAMED:
        more = [f"{len(told) - MOST_NAMED} files more"]
    return ", ".join([*told[:MOST_NAMED], *more])


def _sum(path: Path) -> str:
    state = path.stat()
    return _sum_of(path, state.st_mtime_ns, state.st_ctime_ns, state.st_size, state.st_ino)


@lru_cache(MOST_FILES)
def _sum_of(path: Path, *_: int) -> str:
    return hashlib.sha256(read_bounded(path, MOST_BYTES)).hexdigest()


def _fail(error: OSError) -> None:
    raise error
