"""The NPUs that npulab knows, each in a folder of its own, found by name.

A target is a folder in ``npus``, a folder in ``npulab_targets/`` of the working folder, or an entry
point of the group ``npulab.targets``. Each has a ``TARGET``. A target of the working folder is
loaded again when one of its files has changed, as happens while its map is made.

Loading a target runs its code. Code in the working folder, also that of an entry point, is run
only if it is trusted in its present state, or if a person asked for the target by name. It is not
enough that a file names the target, because whoever made the file may have made the folder.
``npulab new`` trusts the folder that it makes, ``npulab trust`` the path that it is given: both
record it for the user, with the sums of its code (``trusted``). The environment variable
``NPULAB_TARGETS`` names folders of targets that are trusted with any contents (several are
separated as in PATH); then targets of the working folder are found only there, and ``none`` names
no folder.
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
SHARED = {"kit", "template"}  # the folders ``SHARED`` of ``npus`` are not targets
# Key: place of a target that a person asked for by name; value: the sums of its code at that time.
_asked: dict[Path, Sums] = {}
_ran: set[Path] = set()  # ``_ran`` are the places whose code has run.
_loading: list[str] = []  # the targets ``_loading`` are not loaded whole: their rules are missing


@dataclass(frozen=True)
class Code:
    """The place of a target's code; ``users`` is True if the code is neither part of npulab nor
    installed, so that it needs trust.
    """

    name: str
    place: Path
    users: bool
    point: EntryPoint | None = None


def targets() -> list[str]:
    """The names of all targets, sorted.

    >>> "vivante" in targets()
    True
    """
    names = {code.name for code in _points()} | _shipped()
    for folder in _local():
        names.update(_folders(folder))
    return sorted(names)


def asked_target(name: str) -> Target:
    """The target whose name a person gave; raises LookupError, which lists the known names, for an
    unknown name.

    Asking by name runs the code of the target in its present state. If its folder is not trusted,
    an ImportWarning, which the shell shows, reports that.
    """
    return _target(name, asked=True)


def target(name: str) -> Target:
    """The target of this name, for a capture in memory.

    It is loaded as by ``asked_target``. But if the target's code has run before and was changed
    since, ValueError is raised unless the code is trusted in its present state.
    """
    code = _code(name)
    return _target(name, asked=code is None or code.place not in _ran)


def stated_target(name: str) -> Target:
    """The target that a file names.

    Raises LookupError for an unknown name, and ValueError for code that the user does not trust,
    which is not run.
    """
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
    else:
        why = _untrusted(code)
        if why:
            raise ValueError(f"target {name}: its code is not run, for {why}")
    _ran.add(code.place)
    state: tuple[tuple[str, int, int], ...] = ()
    if code.users:
        state = _state(code.place)
    loaded = _load(code, state)
    # a target loaded before from another folder may have had this name, with other rules
    state_rules(loaded.name, loaded.rules)
    return loaded


def working_targets() -> Iterator[Target]:
    """Yield the targets in the order of their names; each is loaded when it is reached.

    Targets that do not load are left out; so are targets whose code nobody trusts, which a
    UserWarning reports once.
    """
    for name in targets():
        try:
            found = stated_target(name)
        except ValueError as error:
            if error.__cause__ is None:
                _warn_once(str(error))
            continue
        yield found


@cache
def _warn_once(text: str) -> None:
    warnings.warn(text, UserWarning, stacklevel=4)


def _untrusted(code: Code) -> str:
    """The reason why the code of a target may not run if only a file names the target; "" if it may
    run."""
    # if NPULAB_TARGETS is set, a user's target without entry point lies in a folder that it trusts
    if not code.users or (code.point is None and TRUSTED in os.environ):
        return ""
    asked = _asked.get(code.place)
    if asked and asked == _sums(code.place):
        return ""
    return untrusted(code.place)


def _sums(place: Path) -> Sums:
    """The sha256, by file, of the code at a place as it is now; an empty dict if the code cannot be
    read whole."""
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
    except (Exception, SystemExit) as error:  # code of a user's folder may raise anything
        where = place_of(error, str(code.place))
        if where:
            where = f", at {where}"
        raise ValueError(
            f"target {name}: does not load: {type(error).__name__}: {error}{where}"
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
                "that it is trusted",
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
    """The targets of entry points, installed ones first; entry points are read again if a folder of
    Python's path has changed."""
    folders = [folder for folder in map(Path, sys.path) if folder.is_dir()]
    times = tuple((folder, folder.stat().st_mtime_ns) for folder in folders)
    found = _points_of(installed.here(), times)
    return tuple(code for code in found if TRUSTED not in os.environ or not code.users)


@lru_cache(1)
def _points_of(_: Path, __: tuple[tuple[Path, int], ...]) -> tuple[Code, ...]:
    codes = []
    for stated in stated_points(GROUP):
        if stated.wrong:
            _warn_once(stated.wrong)
            continue
        point = EntryPoint(stated.name, stated.value, GROUP)
        codes.append(Code(point.name, *installed.place_of(point, stated.dist), point))
    return tuple(sorted(codes, key=lambda code: code.users))


def _state(place: Path) -> tuple[tuple[str, int, int], ...]:
    """(path, time of change in ns, size in bytes) of each file of a target, sorted; the target is
    loaded again if this differs."""
    if place.is_dir():
        paths = [*place.rglob("*")]
    else:
        paths = files_of(place)
    states = []
    for path in paths:
        if path.is_file():
            stat = path.stat()
            states.append((str(path), stat.st_mtime_ns, stat.st_size))
    return tuple(sorted(states))


def _local() -> list[Path]:
    """The folders that may hold the user's own targets."""
    trusted = os.environ.get(TRUSTED, str(installed.here() / LOCAL)).split(os.pathsep)
    return [Path(name).absolute() for name in trusted if name not in ("", "0", "none")]


def _code(name: str) -> Code | None:
    """The code of the target of this name; None if there is no such target."""
    if name in _shipped():
        return Code(name, HERE / name, False)
    for folder in _local():
        if name in _folders(folder):
            return Code(name, folder / name, True)
    return next((code for code in _points() if code.name == name), None)


@cache
def _shipped() -> set[str]:
    """The names of npulab's own targets."""
    return {*_folders(HERE)} - {*SHARED}


def _folders(where: Path) -> list[str]:
    return [path.parent.name for path in where.glob("*/__init__.py")]


def _load_rules(of: str) -> None:
    """Load the target of this name, if there is one, so that its rounding rules are known."""
    if of in targets() and of not in _loading:
        stated_target(of)  # a file may name the rule, so the target's code must be trusted


find_rules_with(_load_rules)
