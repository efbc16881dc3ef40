"""A new target: a folder that loads and passes its tests, with what there is of it, or an example
of
a row."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Mapping, Sequence
from importlib.resources import files
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path
from typing import NamedTuple

from npulab.captures.installed import is_installed
from npulab.captures.registry import HERE, LOCAL, targets, trust
from npulab.captures.writes import read_writes, rows_of_writes
from npulab.npus.template.alternatives import Usable, shared, together, usable
from npulab.registers.expansion import shaped
from npulab.registers.fields import WORD_BYTES
from npulab.registers.formats.formats import FORMATS, HEAD, format_of, read_map
from npulab.registers.formats.tables import RegisterTable
from npulab.registers.table import MOST_WORDS
from npulab.support.files import first_bytes, need_file, read_table, write_folders
from npulab.support.refuse import refuse_if, refusing
from npulab.support.text import plural

NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
PLACEHOLDER, PACKAGE, LAST = "@NAME@", "@HERE@", "@LAST@"
WORDS = 16
SUFFIX = ".txt"  # so that nobody takes a template for the file that it becomes
MAPS = {known.suffix for known in FORMATS.values() if known.read}
SOURCES = "code,title,where\nguess,what somebody thinks,nobody has checked it\nunknown,nothing,the bits are there\n"
WORKED = (
    "Nothing yet. `kernel_h` of `registers.csv` is an example of a row, with the evidence "
    "`unknown`: nothing is "
    "known of its bits. Your first row takes its place."
)
BARE = (
    "Nothing yet. `registers.csv` has a row of the last word, which says how many there are; all "
    "bits have names "
    "of their own."
)
TABLE_HEAD = "block,offset,register,field,lsb,width,at,value,feature,address,align,evidence,note"
CHIPS_HEAD = "chip,feature,value,evidence,note"


class Start(NamedTuple):
    """What a new target begins with: files in the place of the template's, whether a block has a
    word at every offset, what its page says of it, and how many words its parameter block has."""

    files: Mapping[str, str]
    dense: bool
    guessed: str
    words: int


def new_target(
    name: str,
    folder: Path | None = None,
    words: int | None = None,
    source: Path | str | None = None,
    define: Sequence[str] = (),
    include: Sequence[Path | str] = (),
) -> list[Path]:
    """Write the folder of a new target, below ``folder`` (by default ``npulab_targets`` here), and
    give its files.

    ``words`` is how many its parameter block has.  ``source`` is what there is of it: a map in a
    format that ``read_map`` knows (a C header, CMSIS-SVD, SystemRDL, rnndb XML, a table); words of
    one or several jobs as a ``.bin``, little-endian; or register writes as ``read_writes`` reads
    them.  ``define`` and ``include`` are those of ``read_map``.  Raises ValueError for a name that
    no module can have, that one has, or another target, for a broken source, and for another number
    of words than it has; FileExistsError where the folder is there; nothing is half-written.  The
    folder is trusted from then on; a UserWarning says that this cannot be recorded.
    """
    refuse_if(
        not NAME.fullmatch(name) or iskeyword(name),
        "name",
        f"{name!r:.60}",
        "are up to 40 of a-z, 0-9 and _, a letter first, and no word of Python's own",
    )
    if source is None:
        refuse_if(
            define or include,
            "define, include",
            "no source",
            "are they with a C header or rnndb XML",
        )
        start = Start({}, True, WORKED, WORDS if words is None else words)
    else:
        start = begin(Path(source), name, words, define, include)
    refuse_if(not 2 <= start.words <= MOST_WORDS, "words", start.words, f"are 2 to {MOST_WORDS}")
    where = (Path.cwd() / LOCAL if folder is None else Path(folder)) / name
    if where.exists():
        raise FileExistsError(f"{where}: is there already")
    if name in targets():
        raise ValueError(
            f"name: got {name!r}, which another target has; there are {', '.join(targets())}"
        )
    if module := _module_of(name):
        raise ValueError(
            f"name: got {name!r}, which is the name of {module}, and Python would import one in "
            "the place "
            f"of the other; allowed is a name that no module has, such as {name}_npu"
        )
    # a folder that is not npulab's own is a package without a name that anybody could import it by
    package = "."
    if where.resolve().parent == HERE:
        package = f"npulab.npus.{name}."
    contents = {
        filled(one.name, name).removesuffix(SUFFIX): filled(
            one.read_text(encoding="utf-8"),
            name,
            package,
            start.words,
            start.dense,
            start.guessed,
            f"{where.parent.name}/{name}",
        )
        for one in (files(__name__) / "files").iterdir()
    } | dict(start.files)
    (made,) = write_folders({where: {file: text.encode() for file, text in contents.items()}})
    try:
        trust(made)
    except (OSError, RuntimeError) as error:
        warnings.warn(f"{made}: is made, and not recorded as trusted: {error}", stacklevel=2)
    return sorted(made.iterdir())


def _module_of(name: str) -> str:
    """The module of Python's, npulab's or an installed package's that has a name; "" where none
    has.
    """
    if name in sys.stdlib_module_names:
        return "a module of Python's own"
    try:
        found = find_spec(name)
    except (ImportError, ValueError):  # a module that says nothing of where it is from
        return "a module that is loaded"
    if found is None or found.origin is None:  # a folder of files is no module
        return ""
    file = Path(found.origin).resolve()
    if not (name == "npulab" or is_installed(file) or file.is_relative_to(Path.cwd())):
        return ""  # of a folder that is in the path here, and need not be elsewhere
    return f"the module {found.origin}"


@refusing()
def begin(
    source: Path,
    name: str = "",
    words: int | None = None,
    define: Sequence[str] = (),
    include: Sequence[Path | str] = (),
) -> Start:
    """What a map, words or register writes give a new target of a name; raises as
    ``new_target``.
    """
    need_file(source)
    is_map = source.suffix != ".bin" and (
        source.suffix in MAPS or format_of(first_bytes(source, HEAD)) != ""
    )
    if not is_map:
        refuse_if(
            define or include,
            source,
            "define or include with it",
            "are they with a C header or rnndb",
        )
    if source.suffix == ".bin":
        return _of_words(source, words)
    if is_map:
        start = _of_map(source, name, define, include)
    else:
        start = _of_writes(source)
    if words not in (None, start.words):
        raise ValueError(
            f"{source}: words: got {words}, allowed is {start.words}, as the file itself says; "
            "leave "
            "--words out, it is for words of jobs in a .bin"
        )
    return start


def jobs_in(source: Path, words: int | None) -> tuple[int, int]:
    """(words of a job, jobs) of a file of words; raises ValueError where it is not whole jobs."""
    size = source.stat().st_size
    if size % WORD_BYTES or not size:
        raise ValueError(f"{source}: got {plural(size, 'byte')}, allowed are words of {WORD_BYTES}")
    count = size // WORD_BYTES
    if words is None:
        refuse_if(
            count > MOST_WORDS,
            source,
            f"{count} words",
            f"are 2 to {MOST_WORDS} of a job; --words N says how many a job of several has",
        )
        return count, 1
    refuse_if(not 2 <= words <= MOST_WORDS, "words", words, f"are 2 to {MOST_WORDS}")
    if count % words:
        raise ValueError(
            f"{source}: got {count} words, which are no whole jobs of {words}, allowed for --words "
            "is a "
            f"number that divides {count}"
        )
    return words, count // words


def _of_words(source: Path, words: int | None) -> Start:
    count, _ = jobs_in(source, words)
    last = WORD_BYTES * (count - 1)
    row = f"JOB,{last:#06x},w{last:#06x},,0,32,,,,,,unknown,the last word of the block"
    return Start({"registers.csv": f"{TABLE_HEAD}\n{row}\n"}, True, BARE, count)


def _of_writes(source: Path) -> Start:
    table = RegisterTable.of(rows_of_writes(read_writes(source), "JOB"))
    registers = f"The {len(table.rows)} registers that `{source.name}` writes are in `registers.csv`, unnamed."
    return Start({"registers.csv": table.csv()}, False, registers, max(len(table.rows), 2))


def _of_map(source: Path, name: str, define: Sequence[str], include: Sequence[Path | str]) -> Start:
    arrays = source.suffix == ".csv" and shaped(
        read_table(source)
    )  # what a map of words does not say
    with warnings.catch_warnings():
        if arrays:
            warnings.simplefilter("ignore")
        table = read_map(source, define, include)
    refuse_if(not table.rows, source, "a map without a register", "is one that has some")
    table.check()
    rows = [
        {"block": "JOB", **row, "evidence": row.get("evidence") or "source"} for row in table.rows
    ]
    table = RegisterTable.of(rows, table.enums, table.copyright)
    if arrays:
        made = Usable(table, {}, together(table))
    else:
        made = usable(table)
    table = made.table
    file_name = source.name.replace('"', "")
    sources = ""
    for code in sorted({row["evidence"] for row in table.rows} - {"unknown", "guess"}):
        if not code.startswith("C:"):
            sources += f'{code},"{file_name}",read by npulab new\n'
    counts = ", ".join(plural(count, what[:-1]) for what, count in table.counts.items())
    if arrays:
        text = source.read_text(encoding="utf-8")
    else:
        text = table.csv()
    files = {
        "registers.csv": text,
        "enums.csv": table.enums_csv() or "enum,raw,name\n",
        "sources.csv": f"{SOURCES}{sources}",
    }
    if made.features:
        files["chips.csv"] = _chips(name, made.features)
    said = " ".join(
        [
            f"What `{source.name}` says, in `registers.csv`: {counts}. Nobody has checked it on a "
            "job.",
            *_alternatives(made),
        ]
    )
    return Start(files, arrays, said, max(len(table.registers), 2))


def _chips(name: str, features: Mapping[str, int]) -> str:
    """The chip of a map with features: it has those that go together."""
    notes = {
        1: "the rows of registers.csv with this feature are read",
        0: "its rows overlap those of another feature",
    }
    lines = [CHIPS_HEAD]
    for feature, value in features.items():
        lines.append(f"{name},{feature},{value},guess,{notes[value]}")
    return "\n".join([*lines, ""])


def _alternatives(made: Usable) -> list[str]:
    """What a target's page says of unions and features."""
    said = []
    for block, names in made.split.items():
        listed = ", ".join(f"`{one}`" for one in names)
        common = ", ".join(f"`{field}`" for field in shared(made.table, names)) or "no field"
        said.append(
            f"`{block}` is a union: each alternative is a block ({listed}), and all of them have "
            f"{common} in "
            "the same bits. `read_commands` takes streams apart by one whose enum names the blocks."
        )
    off = [feature for feature, value in made.features.items() if not value]
    if off:
        said.append(
            f"`chips.csv` leaves out {', '.join(f'`{one}`' for one in off)}, whose rows overlap "
            "those of other "
            "features; a chip that has them is a line there."
        )
    return said


def filled(
    text: str,
    name: str,
    package: str = ".",
    words: int = WORDS,
    dense: bool = True,
    guessed: str = "",
    folder: str = "",
) -> str:
    """A template's text for a target of this name and so many words, its modules imported from
    ``package``.

    >>> filled("test_@NAME@.py", "mine")
    'test_mine.py'
    """
    values = {
        PLACEHOLDER: name,
        PACKAGE: package,
        LAST: f"{WORD_BYTES * (words - 1):#06x}",
        "@DENSE@": str(dense),
        "@GUESSED@": guessed,
        "@FOLDER@": folder,
    }
    for mark, value in values.items():
        text = text.replace(mark, value)
    return text
