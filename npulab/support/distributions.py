"""The metadata of the distributions (installed packages) in Python's path.

Python looks for distributions in the working folder too, which may contain distributions of a
stranger. So their files are checked before they are read: to read a pipe would take for ever, and a
file that is not UTF-8 would raise an error without its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import NamedTuple

from npulab.support.files import read_bounded, text_of

MOST_BYTES = 2**20  # a metadata file with more bytes than this is not read
POINTS = "entry_points.txt"
VERSION = re.compile(r"^Version:\s*(\S+)", re.MULTILINE)
NAME = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
# Matches the value of an entry point: ``module`` or ``module:object``, perhaps with ``[extras]`` at
# the end.
VALUE = re.compile(rf"{NAME}\s*(?::\s*{NAME}\s*)?(?:\[.*\]\s*)?")


class Stated(NamedTuple):
    """An entry point as a distribution states it; ``wrong`` is the error text of a broken entry
    point, else ""."""

    dist: Distribution
    name: str
    value: str
    wrong: str = ""


def stated_points(group: str) -> Iterator[Stated]:
    """Yield the entry points of a group. If two distributions in folders have the same name, only
    the first in Python's path counts; a distribution in an archive always counts.
    """
    seen: set[str] = set()
    for dist in distributions():
        folder = _folder(dist)
        if folder is None:
            yield from _points_of_finder(dist, group)
            continue
        name = re.sub(r"[-_.]+", "-", folder.stem.partition("-")[0]).lower()
        if name not in seen:
            seen.add(name)
            yield from _points_in_file(dist, folder / POINTS, group)


def version_of(name: str) -> str:
    """The version of a distribution; "unknown" if no folder of a distribution of this name states
    a version."""
    for dist in distributions(name=name):
        folder = _folder(dist)
        if folder is None:
            continue
        for file in (folder / "METADATA", folder / "PKG-INFO"):
            try:
                found = VERSION.search(text_of(read_bounded(file, MOST_BYTES), file))
            # the search goes on, because another distribution of this name may be readable
            except (OSError, ValueError):
                continue
            if found:
                return found[1]
    return "unknown"


def _folder(dist: Distribution) -> Path | None:
    """The folder that holds the metadata of a distribution; None if it is in an archive."""
    folder = getattr(dist, "_path", None)
    if isinstance(folder, Path):
        return folder
    return None


def _points_of_finder(dist: Distribution, group: str) -> Iterator[Stated]:
    """Yield the entry points of a group of a distribution in an archive, as Python reads them
    (``dist.entry_points``).
    """
    for point in dist.entry_points:
        if point.group == group:
            yield Stated(dist, point.name, point.value)


def _points_in_file(dist: Distribution, file: Path, group: str) -> Iterator[Stated]:
    """Yield the entry points of a group from a distribution's ``entry_points.txt``. A broken file,
    and each broken line, yields an entry point with an error text in ``wrong``.
    """
    try:
        if not file.exists():
            return
        text = text_of(read_bounded(file, MOST_BYTES), file)
    except (OSError, ValueError) as error:
        text = str(error)
        if str(file) not in text:
            text = f"{file}: {text}"
        yield Stated(dist, "", "", f"{text}; its entry points are left out")
        return
    for number, line in _lines(text, group):
        name, _, value = map(str.strip, line.partition("="))
        wrong = ""
        if not name or not VALUE.fullmatch(value):
            wrong = (
                f"{file}, line {number}: got {line!r:.60}, allowed is an entry point such as name "
                "= module; it is left out"
            )
        yield Stated(dist, name, value, wrong)


def _lines(text: str, group: str) -> Iterator[tuple[int, str]]:
    """Yield (number, text) of each line in the section of a group, without blank lines and
    comments; the numbers count the lines of the whole text from 1."""
    section = ""
    for number, whole in enumerate(text.splitlines(), 1):
        line = whole.strip()
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1].strip()
        elif section == group and line and not line.startswith("#"):
            yield number, line
