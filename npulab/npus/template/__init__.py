"""A new target: a folder that loads and passes its tests, with one worked field."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from importlib.resources import files
from keyword import iskeyword
from pathlib import Path
from typing import NamedTuple

from npulab.captures.registry import HERE, LOCAL, targets, trust
from npulab.captures.writes import read_writes, rows_of_writes
from npulab.registers.expansion import shaped
from npulab.registers.fields import WORD_BYTES
from npulab.registers.formats.formats import FORMATS, HEAD, format_of, read_map
from npulab.registers.formats.tables import RegisterTable
from npulab.registers.table import MOST_WORDS
from npulab.support.files import first_bytes, need_file, read_bounded, read_table, write_folders
from npulab.support.refuse import refuse_if, refusing
from npulab.support.text import plural

NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
PLACEHOLDER, PACKAGE, LAST = "@NAME@", "@HERE@", "@LAST@"
WORDS = 16
MOST_BYTES = WORD_BYTES * MOST_WORDS
SUFFIX = ".txt"  # so that nobody takes a template for the file that it becomes
MAPS = {known.suffix for known in FORMATS.values() if known.read}
SOURCES = "code,title,where\nguess,what somebody thinks,nobody has checked it\nunknown,nothing,the bits are there\n"
WORKED = "`kernel_h`, the worked field of `registers.csv`: an example. Remove it with your first row."


class Start(NamedTuple):
    """What a new target begins with: files in the place of the template's, whether a block has a
    word at every offset, what its page says of it, and how many words its parameter block has."""

    files: Mapping[str, str]
    dense: bool
    guessed: str
    words: int


def new_target(name: str, folder: Path | None = None, words: int = WORDS,
               source: Path | str | None = None) -> list[Path]:
    """Write the folder of a new target, below ``folder`` (by default ``npulab_targets`` here), and
    give its files.

    ``words`` is how many its parameter block has.  ``source`` is what there is of it: a map in a
    format that ``read_map`` knows (a C header, CMSIS-SVD, SystemRDL, rnndb XML, a table); words of
    a job as a ``.bin``, little-endian; or register writes as ``read_writes`` reads them.  Raises
    ValueError for a name that no module can have or another target has and for a broken source,
    FileExistsError where the folder is there; nothing is half-written.  The folder is trusted from
    then on; a UserWarning says that this cannot be recorded.
    """
    refuse_if(not NAME.fullmatch(name) or iskeyword(name), "name", f"{name!r:.60}",
              "are up to 40 of a-z, 0-9 and _, a letter first, and no word of Python's own")
    start = Start({}, True, WORKED, words) if source is None else begin(Path(source))
    refuse_if(not 2 <= start.words <= MOST_WORDS, "words", start.words, f"are 2 to {MOST_WORDS}")
    where = (Path.cwd() / LOCAL if folder is None else Path(folder)) / name
    if where.exists():
        raise FileExistsError(f"{where}: is there already")
    if name in targets():
        raise ValueError(f"name: got {name!r}, which another target has; there are {', '.join(targets())}")
    # a folder that is not npulab's own is a package without a name that anybody could import it by
    package = f"npulab.npus.{name}." if where.resolve().parent == HERE else "."
    contents = {filled(one.name, name).removesuffix(SUFFIX):
                filled(one.read_text(encoding="utf-8"), name, package, start.words, start.dense, start.guessed,
                       f"{where.parent.name}/{name}")
                for one in (files(__name__) / "files").iterdir()} | dict(start.files)
    (made,) = write_folders({where: {file: text.encode() for file, text in contents.items()}})
    try:
        trust(made)
    except (OSError, RuntimeError) as error:
        warnings.warn(f"{made}: is made, and not recorded as trusted: {error}", stacklevel=2)
    return sorted(made.iterdir())


@refusing()
def begin(source: Path) -> Start:
    """What a map, words or register writes give a new target; raises as ``new_target``."""
    if source.suffix == ".bin":
        data = read_bounded(source, MOST_BYTES)
        if len(data) % WORD_BYTES:
            raise ValueError(f"{source}: got {len(data)} bytes, allowed are words of {WORD_BYTES}")
        return Start({}, True, WORKED, len(data) // WORD_BYTES)
    need_file(source)
    if source.suffix not in MAPS and not format_of(first_bytes(source, HEAD)):
        table = RegisterTable.of(rows_of_writes(read_writes(source), "JOB"))
        registers = f"The {len(table.rows)} registers that `{source.name}` writes are in `registers.csv`, unnamed."
        return Start({"registers.csv": table.csv()}, False, registers, max(len(table.rows), 2))
    arrays = source.suffix == ".csv" and shaped(read_table(source))  # what a map of words does not say
    with warnings.catch_warnings():
        if arrays:
            warnings.simplefilter("ignore")
        table = read_map(source)
    table.check()
    rows = [{"block": "JOB", **row, "evidence": row.get("evidence") or "source"} for row in table.rows]
    table = RegisterTable.of(rows, table.enums, table.copyright)
    codes = sorted({row["evidence"] for row in table.rows} - {"unknown", "guess"})
    sources = "".join(f'{code},"{source.name.replace(chr(34), "")}",read by npulab new\n' for code in codes
                      if not code.startswith("C:"))
    counts = ", ".join(plural(count, what[:-1]) for what, count in table.counts.items())
    text = source.read_text(encoding="utf-8") if arrays else table.csv()
    return Start({"registers.csv": text, "enums.csv": table.enums_csv() or "enum,raw,name\n",
                  "sources.csv": f"{SOURCES}{sources}"}, arrays,
                 f"What `{source.name}` says, in `registers.csv`: {counts}. Nobody has checked it on a job.",
                 max(len(table.registers), 2))


def filled(text: str, name: str, package: str = ".", words: int = WORDS, dense: bool = True, guessed: str = "",
           folder: str = "") -> str:
    """A template's text for a target of this name and so many words, its modules imported from
    ``package``.

    >>> filled("test_@NAME@.py", "mine")
    'test_mine.py'
    """
    values = {PLACEHOLDER: name, PACKAGE: package, LAST: f"{WORD_BYTES * (words - 1):#06x}", "@DENSE@": str(dense),
              "@GUESSED@": guessed, "@FOLDER@": folder}
    for mark, value in values.items():
        text = text.replace(mark, value)
    return text
