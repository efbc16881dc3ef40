"""Where the code of an entry point lies, and whether somebody installed it.

Python looks for distributions in every folder of its path, in a notebook and with ``python -m`` in
the working folder too: what lies there need not be the user's.  A folder that PYTHONPATH names by
an absolute path outside the working folder is one that the user chose, and counts for installed;
one that it names as seen from the working folder, as ``..``, is whatever lies there.
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
    """The working folder; one that does not exist where it was removed."""
    try:
        return Path.cwd().resolve()
    except OSError:  # it was removed
        return Path("/nowhere")


def _said_from_here() -> tuple[Path, ...]:
    """The folders that the environment names as seen from the working folder, as ``..``; Python has
    them
    in its path as absolute ones."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return tuple((here() / one).resolve() for one in given if one and not Path(one).is_absolute())


START = here()  # in the path of a notebook, wherever it goes from there
RELATIVE = _said_from_here()


def place_of(point: EntryPoint, dist: Distribution | None) -> tuple[Path, bool]:
    """The folder or file of an entry point's module, and whether the distribution or its module
    lies in
    the working folder, where an environment of the interpreter counts for elsewhere."""
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
    """The folder or file of a module; None where there is none.  Nothing of it runs."""
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
    """Whether a path lies in the working folder, or in a folder of Python's path that is said as
    seen
    from it, and nobody installed it."""
    return not is_installed(path) and _is_local(path)


def _is_local(path: Path) -> bool:
    real = path.resolve()
    return not path.is_absolute() or any(
        real.is_relative_to(folder) for folder in (here(), START, *RELATIVE)
    )


def is_installed(path: Path) -> bool:
    real = path.resolve()
    return any(real.is_relative_to(folder) for folder in _installed())


@cache
def _installed() -> tuple[Path, ...]:
    """The folders of Python's own modules, and those that the interpreter's installer writes to."""
    own = [sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")]
    names = [*own, *site.getsitepackages()]
    if site.ENABLE_USER_SITE:
        names.append(site.getusersitepackages())
    return tuple(Path(name).resolve() for name in names)


def _is_checkout(dist: Distribution | None, module: Path) -> bool:
    """Whether somebody installed the distribution as a link to the folder that the module lies
    in.
    """
    if dist is None or not is_installed(_folder_of(dist)):
        return False
    try:
        told = json.loads(dist.read_text("direct_url.json") or "{}")
        editable = bool(told.get("dir_info", {}).get("editable"))
        folder = Path(unquote(urlsplit(told.get("url", "")).path))
    except (AttributeError, TypeError, ValueError):
        return False
    return editable and folder.is_absolute() and module.resolve().is_relative_to(folder.resolve())
