"""The place of an entry point's code, and whether somebody installed that code.

Python looks for distributions in every folder of its path; in a notebook and with ``python -m``
that includes the working folder, which may hold code of somebody else. A folder that PYTHONPATH
names by an absolute path outside the working folder was chosen by the user and counts as installed.
A relative path, such as ``..``, may lead to anybody's folder.
"""

from __future__ import annotations

import importlib.util
import json
import os
import site
import sysconfig
from functools import cache
from importlib.metadata import Distribution, EntryPoint
from pathlib import Path
from urllib.parse import unquote, urlsplit


def here() -> Path:
    """The working folder; if it was removed, a path that does not exist."""
    try:
        return Path.cwd().resolve()
    except OSError:
        return Path("/nowhere")


def _relative_folders() -> tuple[Path, ...]:
    """The absolute paths of the folders that PYTHONPATH names relative to the working folder, such
    as ``..``."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    names = [name for name in given if name and not Path(name).is_absolute()]
    return tuple((here() / name).resolve() for name in names)


# the working folder at the start stays in Python's path if a notebook changes its folder
START = here()
RELATIVE = _relative_folders()


def place_of(point: EntryPoint, dist: Distribution | None) -> tuple[Path, bool]:
    """Return the folder or file of an entry point's module (the distribution's folder if there is
    no such module), and True if the distribution or the module is local (``is_local``). A module of
    an editable install is not local."""
    folder = _folder_of(dist)
    module = _module(point.module.partition(".")[0])
    local = is_local(folder)
    if module is None:
        return folder, local
    shadowed = is_local(module) and not _is_checkout(dist, module)
    return module, local or shadowed


def _folder_of(dist: Distribution | None) -> Path:
    if dist is None:
        return Path()
    return Path(str(dist.locate_file("")))


def _module(name: str) -> Path | None:
    """The folder or file of a module, found without running its code; None if there is no such
    module."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations))).absolute()
    if spec.origin and spec.has_location:
        return Path(spec.origin).absolute()
    return None


def is_local(path: Path) -> bool:
    """True if a path lies in the working folder, or in a folder that PYTHONPATH names by a relative
    path, and nobody installed it there.

    A virtual environment in the working folder counts as installed.
    """
    if is_installed(path):
        return False
    real, folders = path.resolve(), (here(), START, *RELATIVE)
    return not path.is_absolute() or any(real.is_relative_to(folder) for folder in folders)


def is_installed(path: Path) -> bool:
    real = path.resolve()
    return any(real.is_relative_to(folder) for folder in _installed())


@cache
def _installed() -> tuple[Path, ...]:
    """The folders of Python's own modules, and those into which pip installs for this
    interpreter."""
    own = [sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")]
    names = [*own, *site.getsitepackages()]
    if site.ENABLE_USER_SITE:
        names.append(site.getusersitepackages())
    return tuple(Path(name).resolve() for name in names)


def _is_checkout(dist: Distribution | None, module: Path) -> bool:
    """True if somebody installed the distribution as a link (an editable install) to a folder that
    holds the module."""
    if dist is None or not is_installed(_folder_of(dist)):
        return False
    try:
        record = json.loads(dist.read_text("direct_url.json") or "{}")
        editable = bool(record.get("dir_info", {}).get("editable"))
        folder = Path(unquote(urlsplit(record.get("url", "")).path))
    except (AttributeError, TypeError, ValueError):
        return False
    return editable and folder.is_absolute() and module.resolve().is_relative_to(folder.resolve())
