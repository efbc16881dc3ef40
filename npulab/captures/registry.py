"""The NPUs that npulab knows, one folder each, found by name.

A folder beside this file is a target, and so is one in ``npulab_targets/`` of the working folder,
and an entry point of the group ``npulab.targets``.  Each has a ``TARGET``.  One of the working
folder is loaded again when a file of its has changed, as a map that is being made does.

Who loads a target runs its code.  That of the working folder, an entry point's too, runs if it is
trusted as it is now, or was asked for by name; a file that names it is not enough, for whoever made
the file may have made the folder.  ``npulab new`` trusts what it makes, ``npulab trust`` what it is
given: both record it for the user, with the sums of its code (``trusted``).  The environment's
``NPULAB_TARGETS`` names folders of targets that are trusted whatever lies in them, with the
system's separator between them; no other of the working folder is looked into then, and ``none``
trusts none.
"""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.metadata import EntryPoint
from pathlib import Path

from npulab.captures import installed
from npulab.captures.imported import watch
from npulab.captures.target import Target, place_of
from npulab.captures.trusted import Sums, code_of, files_of, load_module, trust, untrusted
from npulab.quant.rules import find_rules_with, state_rules
from npulab.support.distributions import stated_points
from npulab.support.refuse import near, need

__all__ = [
    "HERE",
    "LOCAL",
    "asked_target",
    "stated_target",
    "target",
    "targets",
    "trust",
    "working_targets",
]

HERE = Path(__file__).parents[1] / "npus"
LOCAL = "npulab_targets"
TRUSTED = "NPULAB_TARGETS"
GROUP = "npulab.targets"
SHARED = {"kit", "template"}  # folders beside the NPUs that are none
_asked: dict[
    Path, Sums
] = {}  # places of targets that were asked for by name, with their code as it was then
_ran: set[Path] = set()  # places whose code has run
_loading: list[str] = []  # what a target asks of its own rules while it is loaded has no answer yet


@dataclass(frozen=True)
class Code:
    """Where a target's code lies; ``users``: in the working folder, so that it wants trust."""

    name: str
    place: Path
    users: bool
    point: EntryPoint | None = None


def targets() -> list[str]:
    """The names of all targets, sorted.

    >>> "vivante" in targets()
    True
    """
    return sorted(
        {
            *_folders(HERE),
            *(name for folder in _local() for name in _folders(folder)),
            *(code.name for code in _points()),
        }
    )


def asked_target(name: str) -> Target:
    """The target of a name that a person gives; raises LookupError with the known names.

    Who asks by name has its code run as it is now.  An ImportWarning, which the shell shows, says
    so of a folder that is not trusted.
    """
    return _target(name, asked=True)


def target(name: str) -> Target:
    """The target of a capture in hand: as ``asked_target``, but code that has run and was changed
    since is not run anew, which raises ValueError, unless it is trusted as it is now."""
    code = _code(name)
    return _target(name, asked=code is None or code.place not in _ran)


def stated_target(name: str) -> Target:
    """The target that a file names: as ``target``, but raises ValueError in the place of running
    code
    that nobody trusts."""
    return _target(name, asked=False)


def _target(name: str, asked: bool) -> Target:
    need("target", name, str, "is an NPU's name, as npulab.targets() gives")
    code = _code(name)
    if code is None:
        raise LookupError(
            f"target: got {name!r}, allowed is one of {', '.join(targets())} "
            f"(a folder in ./{LOCAL} counts too){near(name, targets())}"
        )
    if asked and code.users:
        _asked[code.place] = _sums(code.place)
    elif why := _untrusted(code):
        raise ValueError(f"target {name}: its code is not run, for {why}")
    _ran.add(code.place)
    made = _load(code, _state(code.place) if code.users else ())
    state_rules(made.name, made.rules)  # a target of this name in another folder has others
    return made


def working_targets() -> Iterator[Target]:
    """The targets in the order of their names, each loaded when it is asked for; a broken one is
    left
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


def _untrusted(code: Code) -> str:
    """Why the code of a target may not run because a file names the target; nothing where it
    may.
    """
    if not code.users or (
        code.point is None and TRUSTED in os.environ
    ):  # no other folder is looked into
        return ""
    asked = _asked.get(code.place)
    if asked and asked == _sums(code.place):
        return ""
    return untrusted(code.place)


def _sums(place: Path) -> Sums:
    """The sums of code as it is now; none of what cannot be told."""
    try:
        return code_of(place)
    except (OSError, ValueError):
        return {}


@cache
def _load(code: Code, state: tuple[tuple[str, int, int], ...]) -> Target:
    name = code.name
    _loading.append(name)
    try:
        found = _import(code)
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(f"while target {name} loaded") from error
    except (
        Exception,
        SystemExit,
    ) as error:  # whatever a folder of the user's does, it is told as the folder's
        where = place_of(error, str(code.place))
        raise ValueError(
            f"target {name}: does not load: {type(error).__name__}: {error}"
            f"{f', at {where}' * bool(where)}"
        ) from error
    finally:
        _loading.remove(name)
    if not isinstance(found, Target):
        raise ValueError(
            f"target {name}: TARGET is {type(found).__name__}, allowed is npulab.target.Target"
        )
    return found


def _import(code: Code) -> object:
    if code.users and (code.point is not None or TRUSTED not in os.environ):
        if untrusted(code.place):
            warnings.warn(
                f"target {code.name} runs code of {code.place}; npulab trust {code.place} says "
                "that it is "
                "trusted",
                ImportWarning,
                stacklevel=2,
            )
        else:
            watch(code.place)
    if code.point is not None:
        top = code.point.module.partition(".")[0]
        if code.users and top not in sys.modules and code.place.exists():
            load_module(top, code.place)
        module = code.point.load()
    elif code.users:
        module = load_module(f"{LOCAL}.{code.name}", code.place)
    else:
        module = importlib.import_module(f"npulab.npus.{code.name}")
    return module.TARGET


def _points() -> tuple[Code, ...]:
    """The targets of entry points, installed ones first; read again when something was installed
    beside npulab."""
    folders = [one for one in map(Path, sys.path) if one.is_dir()]
    found = _points_of(installed.here(), tuple((one, one.stat().st_mtime_ns) for one in folders))
    return tuple(code for code in found if TRUSTED not in os.environ or not code.users)


@lru_cache(1)
def _points_of(_: Path, __: tuple[tuple[Path, int], ...]) -> tuple[Code, ...]:
    codes = []
    for one in stated_points(GROUP):
        if one.wrong:
            _tell_once(one.wrong)
            continue
        point = EntryPoint(one.name, one.value, GROUP)
        codes.append(Code(point.name, *installed.place_of(point, one.dist), point))
    return tuple(sorted(codes, key=lambda code: code.users))


def _state(place: Path) -> tuple[tuple[str, int, int], ...]:
    """Name, time and size of each file of a target."""
    every = place.rglob("*") if place.is_dir() else files_of(place)
    files = {str(path): path.stat() for path in every if path.is_file()}
    return tuple(sorted((name, one.st_mtime_ns, one.st_size) for name, one in files.items()))


def _local() -> list[Path]:
    """The folders that may hold targets of the user's."""
    trusted = os.environ.get(TRUSTED, str(installed.here() / LOCAL)).split(os.pathsep)
    return [Path(one).absolute() for one in trusted if one not in ("", "0", "none")]


def _code(name: str) -> Code | None:
    """The code of a target; None for a name that no target has."""
    for folder in (HERE, *_local()):
        if name in _folders(folder):
            return Code(name, folder / name, folder != HERE)
    return next((code for code in _points() if code.name == name), None)


def _folders(where: Path) -> list[str]:
    return [
        path.parent.name
        for path in where.glob("*/__init__.py")
        if where != HERE or path.parent.name not in SHARED
    ]


def _load_rules(of: str) -> None:
    """Load the target of a name, if there is one, which makes its rules known."""
    if of in targets() and of not in _loading:
        stated_target(of)  # a file may name a rule too


find_rules_with(_load_rules)
