"""The NPUs that npulab knows, one folder each, found by name.

A folder beside this file is a target, and so is one in ``npulab_targets/`` of the working folder,
and an entry point of the group ``npulab.targets``.  Each has a ``TARGET``.  One of the working
folder is loaded again when a file of its has changed, as a map that is being made does.

Who loads a target runs its code.  An ImportWarning, which the shell shows, says so of one of the
working folder.  The environment's ``NPULAB_TARGETS`` names the folders of targets that are trusted,
with the system's separator between them; no other is looked into then, and ``none`` trusts none.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import warnings
from collections.abc import Iterator
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

from npulab.captures.target import Target, place_of
from npulab.quant.rules import find_rules_with, state_rules

HERE = Path(__file__).parents[1] / "npus"
LOCAL = "npulab_targets"
TRUSTED = "NPULAB_TARGETS"
SHARED = {"kit", "template"}  # folders beside the NPUs that are none
_loading: list[str] = []  # what a target asks of its own rules while it is loaded has no answer yet


def targets() -> list[str]:
    """The names of all targets, sorted.

    >>> "vivante" in targets()
    True
    """
    return sorted({*_folders(HERE), *(name for folder in _local() for name in _folders(folder)),
                   *(point.name for point in entry_points(group="npulab.targets"))})


def target(name: str) -> Target:
    """The target of a name; raises LookupError with the known names."""
    if name not in _folders(HERE) and name not in targets():
        raise LookupError(f"target: got {name!r}, allowed is one of {', '.join(targets())} "
                          f"(a folder in ./{LOCAL} counts too)")
    local = next((folder for folder in _local() if name in _folders(folder)), Path.cwd() / LOCAL)
    made = _load(name, local, () if name in _folders(HERE) else _state(local / name))
    state_rules(made.name, made.rules)  # a target of this name in another folder has others
    return made


def working_targets() -> Iterator[Target]:
    """The targets in the order of their names, each loaded when it is asked for; a broken one is left
    out, so that the others work."""
    for name in targets():
        try:
            found = target(name)
        except ValueError:
            continue
        yield found


@cache
def _load(name: str, local: Path, state: tuple[tuple[str, int, int], ...]) -> Target:
    _loading.append(name)
    try:
        found = _import(name, local)
    except (Exception, SystemExit) as error:  # whatever a folder of the user's does, it is told as the folder's
        where = place_of(error, str((HERE if name in _folders(HERE) else local) / name))
        raise ValueError(f"target {name}: does not load: {type(error).__name__}: {error}"
                         f"{f', at {where}' * bool(where)}") from error
    finally:
        _loading.remove(name)
    if not isinstance(found, Target):
        raise ValueError(f"target {name}: TARGET is {type(found).__name__}, allowed is npulab.target.Target")
    return found


def _import(name: str, local: Path) -> object:
    if name in _folders(HERE):
        module = importlib.import_module(f"npulab.npus.{name}")
    elif name in _folders(local):
        if TRUSTED not in os.environ:
            warnings.warn(f"target {name} runs code of {local}; {TRUSTED}=none runs none, {TRUSTED}={local} says "
                          "that it is trusted", ImportWarning, stacklevel=2)
        spec = importlib.util.spec_from_file_location(f"{LOCAL}.{name}", local / name / "__init__.py",
                                                      submodule_search_locations=[str(local / name)])
        assert spec is not None
        assert spec.loader is not None
        for known in [one for one in sys.modules if f"{one}.".startswith(f"{spec.name}.")]:
            del sys.modules[known]  # of another folder, or of files that are no more as they were
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    else:
        (point,) = entry_points(group="npulab.targets", name=name)
        module = point.load()
    return module.TARGET


def _state(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Name, time and size of each file of a target."""
    files = {path.name: path.stat() for path in folder.glob("*") if path.is_file()}
    return tuple(sorted((name, one.st_mtime_ns, one.st_size) for name, one in files.items()))


def _local() -> list[Path]:
    """The folders that may hold targets of the user's."""
    trusted = os.environ.get(TRUSTED, str(Path.cwd() / LOCAL)).split(os.pathsep)
    return [Path(one).absolute() for one in trusted if one not in ("", "0", "none")]


def _folders(where: Path) -> list[str]:
    return [path.parent.name for path in where.glob("*/__init__.py") if where != HERE or path.parent.name not in SHARED]


def _load_rules(of: str) -> None:
    """Load the target of a name, if there is one, which makes its rules known."""
    if of in targets() and of not in _loading:
        target(of)


find_rules_with(_load_rules)
