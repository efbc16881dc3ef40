"""The code that the user trusts: the record of its contents, and the loading of such code.

A trusted place is a folder or the file of a module. For each, the record has the sha256 of every
file in the folder that may be code; for a file also the sums of the modules and packages next to
it, which it can import. Tables and texts are data, which may change; any other change needs trust
again. Code is compiled from its source each time, because nobody has looked at a compiled copy
next to it. A module of the working folder that trusted code imports from outside its place needs
trust of its own (``imported``).
"""

from __future__ import annotations

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
from pathlib import Path
from types import CodeType, ModuleType

from npulab.support.files import bounded_sum, locked, read_json, replace_file
from npulab.support.refuse import refuse_if

DATA = {".bin", ".csv", ".ipynb", ".json", ".md", ".npz", ".png", ".rst", ".svg", ".txt"}
COMPILED = "__pycache__"
MODULES = {*SOURCE_SUFFIXES, *(f".{suffix.rpartition('.')[2]}" for suffix in EXTENSION_SUFFIXES)}
MOST_FILES = 10_000
MOST_FOLDERS = 10_000  # a trusted module can import from at most ``MOST_FOLDERS`` folders
MOST_BYTES = 2**28  # one file of code has at most ``MOST_BYTES`` bytes
MOST_NAMED = 3  # an error text names at most ``MOST_NAMED`` files
Sums = dict[str, str]  # key: a file's path relative to its place; value: the file's sha256


def trust(given: Path) -> Path:
    """Record that code may run as it is now, and return the path of the record.

    ``given`` is a target's folder, a folder of targets, or the file of a module. Raises ValueError
    for a folder without a target and for code that cannot be read whole; OSError if the record
    cannot be written.
    """
    places = _trusted_places(given)
    refuse_if(
        not places,
        given,
        "no target",
        "is a target's folder, one of targets such as npulab_targets, or a module",
    )
    sums = {str(place): code_of(place) for place in places}
    record = _record()
    with locked(record):
        known = {place: old for place, old in _trusted().items() if Path(place).exists()}
        replace_file(record, json.dumps(known | sums, indent=0, sort_keys=True).encode())
    return record


def untrusted(place: Path) -> str:
    """The reason why the code of a place may not run, with the command that trusts it; "" if it may
    run."""
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
    """The sha256, by relative path, of every file that may be code in a folder; for a file, of the
    file and of the modules that it can import from its folder.

    Raises ValueError for a folder inside ``place`` that is a link, because its files lie elsewhere,
    and for more than 10,000 files.
    """
    base = place.parent
    if place.is_dir():
        base = place
    return {file.relative_to(base).as_posix(): _sum(file) for file in files_of(place)}


def covers(file: Path) -> bool:
    """True if a module's file belongs to a trusted place that has not changed since it was
    trusted."""
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
    """The paths of the files whose sums ``code_of`` returns; raises as ``code_of``."""
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
    """Yield the files of a folder that may be code: all but hidden files, compiled copies, and
    data."""
    for folder, folders, names in os.walk(place, onerror=_fail):
        folders[:] = [name for name in folders if name != COMPILED and not name.startswith(".")]
        for name in folders:
            if Path(folder, name).is_symlink():
                raise ValueError(
                    f"{Path(folder, name)}: got a link to a folder, allowed are folders that lie "
                    f"in {place}"
                )
        for name in names[: MOST_FILES + 1]:
            if not name.startswith(".") and Path(name).suffix.lower() not in DATA:
                yield Path(folder, name)


def _next_to(file: Path) -> Iterator[Path]:
    """Yield the other modules in a file's folder, and the modules of the packages in it. Links to
    folders are not followed, so that trust never covers files elsewhere."""
    for count, (folder, folders, names) in enumerate(os.walk(file.parent, onerror=_fail), 1):
        folders[:] = sorted(name for name in folders if name.isidentifier() and name != COMPILED)
        if count > MOST_FOLDERS:
            raise ValueError(
                f"{file.parent}: got more than {MOST_FOLDERS} folders that {file.name} can import, "
                f"allowed are {MOST_FOLDERS}; move it to a folder of its own"
            )
        for name in sorted(names):
            module = Path(folder, name)
            if module.suffix in MODULES and module != file and module.is_file():
                yield module


def load_module(name: str, place: Path) -> ModuleType:
    """Compile the module in a folder or file from its source, run and return it; it replaces a
    loaded module of that name."""
    for known in [*sys.modules]:
        if f"{known}.".startswith(f"{name}."):
            del sys.modules[known]  # the loaded module may be from another folder or from old files
    file, folders = place, None
    if place.is_dir():
        file, folders = place / "__init__.py", [str(place)]
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
        submodule_search_locations=folders,
    )
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Source(SourceFileLoader):
    """A loader of modules that compiles the source each time, and never reads a compiled copy."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code


def _trusted_places(given: Path) -> list[Path]:
    """The places that a path given to ``npulab trust`` stands for: the file of a module, a folder,
    or the packages in a folder."""
    if given.is_file() and given.suffix in MODULES:
        return [given.resolve()]
    packages = {*given.glob("__init__.py"), *given.glob("*/__init__.py")}
    # a folder without packages is itself the place, provided that it holds modules
    files = packages or {*given.glob("*.py")}
    return sorted({file.parent.resolve() for file in files})


def _record() -> Path:
    """The path of the file that records what this user trusts."""
    home = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not home.is_absolute():
        home = Path.home() / ".local/state"
    return home / "npulab/trusted.json"


def _trusted() -> dict[str, Sums]:
    """The recorded sums of each trusted place; an empty dict if the record is missing or broken.
    Entries without sums, which early versions of npulab wrote, are left out."""
    try:
        record = read_json(_record())
    except (OSError, ValueError, RuntimeError):  # no file, a broken file, or no home folder
        return {}
    if isinstance(record, dict):
        return {place: sums for place, sums in record.items() if isinstance(sums, dict)}
    return {}


def _changes(known: Mapping[str, str], now: Mapping[str, str]) -> str:
    changes = [f"{name} has changed" for name in known if now.get(name, known[name]) != known[name]]
    changes += [f"{name} is new" for name in now if name not in known]
    changes += [f"{name} is gone" for name in known if name not in now]
    if len(changes) > MOST_NAMED:
        changes[MOST_NAMED:] = [f"{len(changes) - MOST_NAMED} files more"]
    return ", ".join(changes)


def _sum(path: Path) -> str:
    state = path.stat()
    return _sum_of(path, state.st_mtime_ns, state.st_ctime_ns, state.st_size, state.st_ino)


@lru_cache(MOST_FILES)
def _sum_of(path: Path, *_: int) -> str:
    return bounded_sum(path, MOST_BYTES)


def _fail(error: OSError) -> None:
    raise error
