"""The NPUs that npulab knows, one folder each, found by name.

A folder beside this file is a target, and so is one in ``npulab_targets/`` of the working folder,
and an entry point of the group ``npulab.targets``.  Each has a ``TARGET``.  One of the working
folder is loaded again when a file of its has changed, as a map that is being made does.

Who loads a target runs its code.  That of the working folder runs if it is trusted, or was asked for
by name; a file that names it is not enough, for whoever made the file may have made the folder.
``npulab new`` trusts what it makes, ``npulab trust`` what it is given: both record it for the user.
The environment's ``NPULAB_TARGETS`` names folders of targets that are trusted, with the system's
separator between them; no other is looked into then, and ``none`` trusts none.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
import warnings
from collections.abc import Iterator
from functools import cache, lru_cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from npulab.captures.target import Target, place_of
from npulab.quant.rules import find_rules_with, state_rules
from npulab.support.files import locked, read_json, replace_file
from npulab.support.refuse import near, need, refuse_if

HERE = Path(__file__).parents[1] / "npus"
LOCAL = "npulab_targets"
TRUSTED = "NPULAB_TARGETS"
SHARED = {"kit", "template"}  # folders beside the NPUs that are none
_asked: set[Path] = set()  # folders of targets that were asked for by name: their code has run
_loading: list[str] = []  # what a target asks of its own rules while it is loaded has no answer yet


def targets() -> list[str]:
    """The names of all targets, sorted.

    >>> "vivante" in targets()
    True
    """
    return sorted({*_folders(HERE), *(name for folder in _local() for name in _folders(folder)),
                   *(point.name for point in _points())})


def target(name: str) -> Target:
    """The target of a name; raises LookupError with the known names.

    Who asks by name has its code run.  An ImportWarning, which the shell shows, says so of a folder
    that is not trusted.
    """
    return _target(name, asked=True)


def stated_target(name: str) -> Target:
    """The target that a file names: as ``target``, but raises ValueError in the place of running code
    that nobody trusts."""
    return _target(name, asked=False)


def _target(name: str, asked: bool) -> Target:
    need("target", name, str, "is an NPU's name, as npulab.targets() gives")
    folder = _folder(name)
    if not folder and name not in targets():
        raise LookupError(f"target: got {name!r}, allowed is one of {', '.join(targets())} "
                          f"(a folder in ./{LOCAL} counts too){near(name, targets())}")
    folder = folder or HERE / name  # of an entry point, which has none there
    users = folder.parent != HERE
    if asked:
        _asked.add(folder)
    elif users and folder not in _asked and not is_trusted(folder):
        raise ValueError(f"target {name}: its code is not run, for {folder} is not trusted; if you know who wrote it: "
                         f"npulab trust {folder}")
    made = _load(name, folder, _state(folder) if users else ())
    state_rules(made.name, made.rules)  # a target of this name in another folder has others
    return made


def working_targets() -> Iterator[Target]:
    """The targets in the order of their names, each loaded when it is asked for; a broken one is left
    out, so that the others work, and one whose code nobody trusts, which a UserWarning says once."""
    for name in targets():
        try:
            found = stated_target(name)
        except ValueError as error:
            if error.__cause__ is None:
                _tell_once(str(error))
            continue
        yield found


@cache
def _tell_once(text: str) -> None:
    warnings.warn(text, UserWarning, stacklevel=4)


def is_trusted(folder: Path) -> bool:
    """Whether the code of a target's folder may run because a file names the target."""
    return TRUSTED in os.environ or str(folder.resolve()) in _trusted()


def trust(folder: Path) -> Path:
    """Record that the code of a target's folder, or of every target in a folder, may run; gives the
    record's path.  Raises ValueError for a folder without one, OSError."""
    made = sorted(one.parent.resolve() for one in [*folder.glob("__init__.py"), *folder.glob("*/__init__.py")])
    refuse_if(not made, folder, "no target", f"is a target's folder, or one of targets such as {LOCAL}")
    record = _record()
    with locked(record):
        known = {one for one in _trusted() if Path(one).is_dir()}
        replace_file(record, json.dumps(sorted(known | set(map(str, made))), indent=0).encode())
    return record


def _record() -> Path:
    """Where the folders are recorded that this user trusts."""
    home = os.environ.get("XDG_STATE_HOME", "")
    return (Path(home) if Path(home).is_absolute() else Path.home() / ".local/state") / "npulab/trusted.json"


def _trusted() -> set[str]:
    try:
        return {str(one) for one in read_json(_record())}
    except (OSError, ValueError, TypeError, RuntimeError):  # none, a broken one, a user without a home
        return set()


@cache
def _load(name: str, folder: Path, state: tuple[tuple[str, int, int], ...]) -> Target:
    _loading.append(name)
    try:
        found = _import(name, folder)
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(f"while target {name} loaded") from error
    except (Exception, SystemExit) as error:  # whatever a folder of the user's does, it is told as the folder's
        where = place_of(error, str(folder))
        raise ValueError(f"target {name}: does not load: {type(error).__name__}: {error}"
                         f"{f', at {where}' * bool(where)}") from error
    finally:
        _loading.remove(name)
    if not isinstance(found, Target):
        raise ValueError(f"target {name}: TARGET is {type(found).__name__}, allowed is npulab.target.Target")
    return found


def _import(name: str, folder: Path) -> object:
    if folder.parent != HERE:
        if not is_trusted(folder):
            warnings.warn(f"target {name} runs code of {folder}; npulab trust {folder} says that it is trusted",
                          ImportWarning, stacklevel=2)
        spec = importlib.util.spec_from_file_location(f"{LOCAL}.{name}", folder / "__init__.py",
                                                      submodule_search_locations=[str(folder)])
        assert spec is not None
        assert spec.loader is not None
        for known in [one for one in sys.modules if f"{one}.".startswith(f"{spec.name}.")]:
            del sys.modules[known]  # of another folder, or of files that are no more as they were
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    elif folder.is_dir():
        module = importlib.import_module(f"npulab.npus.{name}")
    else:
        (point,) = (point for point in _points() if point.name == name)
        module = point.load()
    return module.TARGET


def _points() -> tuple[EntryPoint, ...]:
    """The entry points of targets, read again when something was installed beside npulab."""
    folders = [one for one in map(Path, sys.path) if one.is_dir()]
    return _points_of(tuple((one, one.stat().st_mtime_ns) for one in folders))


@lru_cache(1)
def _points_of(_: tuple[tuple[Path, int], ...]) -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group="npulab.targets"))


def _state(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Name, time and size of each file of a target."""
    files = {path.name: path.stat() for path in folder.glob("*") if path.is_file()}
    return tuple(sorted((name, one.st_mtime_ns, one.st_size) for name, one in files.items()))


def _local() -> list[Path]:
    """The folders that may hold targets of the user's."""
    trusted = os.environ.get(TRUSTED, str(Path.cwd() / LOCAL)).split(os.pathsep)
    return [Path(one).absolute() for one in trusted if one not in ("", "0", "none")]


def _folder(name: str) -> Path | None:
    """The folder of a target; None for one of an entry point, and for a name that no target has."""
    return next((folder / name for folder in [HERE, *_local()] if name in _folders(folder)), None)


def _folders(where: Path) -> list[str]:
    return [path.parent.name for path in where.glob("*/__init__.py") if where != HERE or path.parent.name not in SHARED]


def _load_rules(of: str) -> None:
    """Load the target of a name, if there is one, which makes its rules known."""
    if of in targets() and of not in _loading:
        target(of)


find_rules_with(_load_rules)
