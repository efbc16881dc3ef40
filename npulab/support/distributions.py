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

MOST_BYTES = 2**20  # most bytes of a file of a distribution
POINTS = "entry_points.txt"
VERSION = re.compile(r"^Version:\s*(\S+)", re.MULTILINE)
NAME = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
# the value of an entry point: a module, and perhaps an object in it and extras
VALUE = re.compile(rf"{NAME}\s*(?::\s*{NAME}\s*)?(?:\[.*\]\s*)?")


class Stated(NamedTuple):
    """An entry point in the form in which a distribution states it; ``wrong`` is the error text if
    it is broken, else ""."""

    dist: Distribution
    name: str
    value: str
    wrong: str = ""


def stated_points(group: str) -> Iterator[Stated]:
    """Yield the entry points of a group; if two distributions have the same name, only the first in
    Python's path counts.
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
    """The version of a distribution; "unknown" if no distribution of this name states one."""
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
    """Yield the entry points of a distribution that has no folder, as the distribution's finder
    states them.
    """
    for point in dist.entry_points:
        if point.group == group:
            yield Stated(dist, point.name, point.value)


def _points_in_file(dist: Distribution, file: Path, group: str) -> Iterator[Stated]:
    """Yield the entry points in a distribution's file. For a broken file, or a broken line, an
    entry point with an error text (``wrong``) is yielded.
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
    comments."""
    section = ""
    for number, whole in enumerate(text.splitlines(), 1):
        line = whole.strip()
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1].strip()
        elif section == group and line and not line.startswith("#"):
            yield number, line
