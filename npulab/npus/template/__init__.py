"""A new target: a folder that loads and passes its tests, with one worked field."""

from __future__ import annotations

import re
from importlib.resources import files
from keyword import iskeyword
from pathlib import Path

from npulab.captures.registry import HERE, LOCAL, targets
from npulab.registers.fields import WORD_BYTES
from npulab.registers.table import MOST_WORDS
from npulab.support.files import write_folders

NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
PLACEHOLDER, PACKAGE, LAST = "@NAME@", "@HERE@", "@LAST@"
WORDS = 16
SUFFIX = ".txt"  # so that nobody takes a template for the file that it becomes


def new_target(name: str, folder: Path | None = None, words: int = WORDS) -> list[Path]:
    """Write the folder of a new target, below ``folder`` (by default ``npulab_targets`` here), and
    give its files.

    ``words`` is how many its parameter block has.  Raises ValueError for a name that no module can
    have or another target has, FileExistsError where the folder is there; nothing is half-written.
    """
    if not NAME.fullmatch(name) or iskeyword(name):
        raise ValueError(f"name: got {name!r:.60}, allowed are up to 40 of a-z, 0-9 and _, a letter first, and no word "
                         "of Python's own")
    if not 2 <= words <= MOST_WORDS:
        raise ValueError(f"words: got {words}, allowed are 2 to {MOST_WORDS}")
    where = (Path.cwd() / LOCAL if folder is None else Path(folder)) / name
    if where.exists():
        raise FileExistsError(f"{where}: is there already")
    if name in targets():
        raise ValueError(f"name: got {name!r}, which another target has; there are {', '.join(targets())}")
    # a folder that is not npulab's own is a package without a name that anybody could import it by
    package = f"npulab.npus.{name}." if where.resolve().parent == HERE else "."
    (made,) = write_folders({where: {
        filled(one.name, name).removesuffix(SUFFIX):
            filled(one.read_text(encoding="utf-8"), name, package, words).encode()
        for one in (files(__name__) / "files").iterdir()}})
    return sorted(made.iterdir())


def filled(text: str, name: str, package: str = ".", words: int = WORDS) -> str:
    """A template's text for a target of this name and so many words, its modules imported from
    ``package``.

    >>> filled("test_@NAME@.py", "mine")
    'test_mine.py'
    """
    last = f"{WORD_BYTES * (words - 1):#06x}"
    return text.replace(PLACEHOLDER, name).replace(PACKAGE, package).replace(LAST, last)
