"""A new target: a folder that loads and passes its tests, made from a map, from words or register
writes of a job, or from an example.
"""

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
from npulab.captures.logs import read_log
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
STREAMS = "streams"  # the folder of files for an NPU whose jobs are a stream of commands
SUFFIX = ".txt"  # so that no tool treats a template as the file that it becomes
MAPS = {known.suffix for known in FORMATS.values() if known.read}
SOURCES = (
    "code,title,where\nguess,an idea of somebody,not checked\nunknown,no source,the bits exist\n"
)
WORKED = (
    "Nothing yet. `kernel_h` of `registers.csv` is an example of a row, with the evidence "
    "`unknown`: nothing is known of its bits. Your first row takes its place."
)
BARE = (
    "Nothing yet. `registers.csv` has a row of the last word, which says how many there are; all "
    "bits have names of their own."
)
TABLE_HEAD = "block,offset,register,field,lsb,width,at,value,feature,address,align,evidence,note"
CHIPS_HEAD = "chip,feature,value,evidence,note"


class Start(NamedTuple):
    """The contents that a new target begins with.

    ``files`` replace files of the template; ``dense`` says that a block has a word at every offset;
    ``guessed`` is a text for the target's page; ``words`` is the size of its parameter block in
    words; ``opcode`` is the field that names the block of each command, if jobs are a stream of
    commands.
    """

    files: Mapping[str, str] = {}
    dense: bool = True
    guessed: str = ""
    words: int = WORDS
    opcode: str = ""


class Reading(NamedTuple):
    """How a header is read: ``define`` and ``include`` as ``read_map`` has them; ``opcodes`` has,
    by name of an opcode, the alternative of a union with its fields. ``pattern`` says how a log is
    read, as ``read_log`` has it.
    """

    define: Sequence[str] = ()
    include: Sequence[Path | str] = ()
    opcodes: Mapping[str, str] = {}
    pattern: str | None = None


PLAIN = Reading()


def new_target(
    name: str,
    folder: Path | None = None,
    words: int | None = None,
    source: Path | str | None = None,
    reading: Reading = PLAIN,
) -> list[Path]:
    """Write the folder of a new target, below ``folder`` (by default ``npulab_targets`` here), and
    return its files.

    ``words`` is the size of its parameter block. ``source`` is what is known of it: a map in a
    format that ``read_map`` knows (a C header, CMSIS-SVD, SystemRDL, rnndb XML, a table); words of
    one or several jobs as a ``.bin``, little-endian; or register writes as ``read_writes`` reads
    them, or a log as ``read_log`` does. ``reading`` says how a header or a log is read; if an
    opcode has no alternative of its name and ``reading`` states none, one is a guess, and a
    UserWarning says so. Raises ValueError for a name that no module can have, or that a module or
    another target has, for a broken source, and for another number of words than the source has;
    FileExistsError if the folder exists; nothing is half-written. The folder is trusted from then
    on; a UserWarning says if this cannot be recorded.
    """
    refuse_if(
        not NAME.fullmatch(name) or iskeyword(name),
        "name",
        f"{name!r:.60}",
        "are up to 40 of a-z, 0-9 and _, a letter first, and no word of Python's own",
    )
    if source is not None:
        start = begin(Path(source), name, words, reading)
    else:
        refuse_if(
            any(reading),
            "define, include, opcode, pattern",
            "no source",
            "is a C header, rnndb XML or a log as source",
        )
        start = Start(guessed=WORKED, words=WORDS if words is None else words)
    refuse_if(not 2 <= start.words <= MOST_WORDS, "words", start.words, f"are 2 to {MOST_WORDS}")
    where = Path(folder or Path.cwd() / LOCAL) / name
    if where.exists():
        raise FileExistsError(f"{where}: is there already")
    _refuse_name(name)
    contents = {file: text.encode() for file, text in _contents(name, where, start).items()}
    (made,) = write_folders({where: contents})
    try:
        trust(made)
    except (OSError, RuntimeError) as error:
        warnings.warn(f"{made}: is made, and not recorded as trusted: {error}", stacklevel=2)
    return sorted(made.iterdir())


def _contents(name: str, where: Path, start: Start) -> dict[str, str]:
    """Return the text of each file of a new target, by file name."""
    # a target outside of npulab imports its own modules from ``.``
    package = "."
    if where.resolve().parent == HERE:
        package = f"npulab.npus.{name}."
    folder = f"{where.parent.name}/{name}"
    contents = {}
    templates = [*(files(__name__) / "files").iterdir()]
    if start.opcode:
        templates += (files(__name__) / "files" / STREAMS).iterdir()
    for template in templates:
        if template.is_file():
            file = filled(template.name, name).removesuffix(SUFFIX)
            text = template.read_text(encoding="utf-8")
            contents[file] = filled(text, name, package, start, folder)
    return contents | dict(start.files)


def _refuse_name(name: str) -> None:
    """Raise ValueError for a name that another target or a Python module has."""
    if name in targets():
        raise ValueError(
            f"name: got {name!r}, which another target has; there are {', '.join(targets())}"
        )
    module = _module_of(name)
    if module:
        raise ValueError(
            f"name: got {name!r}, which is the name of {module}, and Python would import one in "
            f"the place of the other; allowed is a name that no module has, such as {name}_npu"
        )


def _module_of(name: str) -> str:
    """Return in words which module has a name, of Python, npulab or an installed package; "" if
    none has.
    """
    if name in sys.stdlib_module_names:
        return "a module of Python's own"
    try:
        found = find_spec(name)
    except (ImportError, ValueError):  # a loaded module without a spec
        return "a module that is loaded"
    if found is None or found.origin is None:  # a folder without __init__.py is not a module
        return ""
    file = Path(found.origin).resolve()
    if not (name == "npulab" or is_installed(file) or file.is_relative_to(Path.cwd())):
        return ""  # a module of another folder in sys.path, which elsewhere may not be there
    return f"the module {found.origin}"


@refusing()
def begin(
    source: Path,
    name: str = "",
    words: int | None = None,
    reading: Reading = PLAIN,
) -> Start:
    """Return the contents of a new target from ``source``, a file of a map, words or register
    writes; raises as ``new_target``.
    """
    need_file(source)
    if reading.pattern is not None:
        given = any(reading._replace(pattern=None)) or words is not None
        refuse_if(given, source, "other options with a pattern", "is the pattern alone")
        log = read_log(source, reading.pattern)
        return _of_writes(source, log.writes, log.read)
    is_words = source.suffix == ".bin"
    is_map = source.suffix in MAPS or (not is_words and format_of(first_bytes(source, HEAD)) != "")
    refuse_if(
        any(reading) and not is_map,
        source,
        "define, include or opcode",
        "are these with a C header or rnndb XML only",
    )
    if is_words:
        return _of_words(source, words)
    if is_map:
        start = _of_map(source, name, reading)
    else:
        start = _of_writes(source, read_writes(source))
    if words not in (None, start.words):
        raise ValueError(
            f"{source}: words: got {words}, allowed is {start.words}, as the file itself says; "
            "leave --words out, it is for words of jobs in a .bin"
        )
    return start


def jobs_in(source: Path, words: int | None) -> tuple[int, int]:
    """Return the number of words of a job, and the number of jobs in a file; raises ValueError if
    the file is not whole jobs.
    """
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
            f"{source}: got {count} words, which are no whole jobs of {words}, "
            f"allowed for --words is a number that divides {count}"
        )
    return words, count // words


def _of_words(source: Path, words: int | None) -> Start:
    count, _ = jobs_in(source, words)
    last = WORD_BYTES * (count - 1)
    row = f"JOB,{last:#06x},w{last:#06x},,0,32,,,,,,unknown,the last word of the block"
    return Start({"registers.csv": f"{TABLE_HEAD}\n{row}\n"}, True, BARE, count)


def _of_writes(
    source: Path, writes: Sequence[Sequence[int]], reads: Sequence[Sequence[int]] = ()
) -> Start:
    table = RegisterTable.of(rows_of_writes(writes, "JOB", reads))
    count = len(table.rows)
    does = "writes"
    if reads:
        does = "writes or reads"
    text = f"The {count} registers that `{source.name}` {does} are in `registers.csv`, unnamed."
    return Start({"registers.csv": table.csv()}, False, text, max(count, 2))


def _of_map(source: Path, name: str, reading: Reading) -> Start:
    # the text of a table with arrays of registers is not changed
    arrays = source.suffix == ".csv" and shaped(read_table(source))
    with warnings.catch_warnings():
        if arrays:
            warnings.simplefilter("ignore")
        table = read_map(source, reading.define, reading.include)
    refuse_if(not table.rows, source, "a map without a register", "is one that has some")
    table.check()
    rows = []
    for row in table.rows:
        rows.append({"block": "JOB", **row, "evidence": row.get("evidence") or "source"})
    table = RegisterTable.of(rows, table.enums, table.copyright)
    if arrays:
        made = Usable(table, {}, together(table))
        text = source.read_text(encoding="utf-8")
    else:
        made = usable(table, reading.opcodes)
        table = made.table
        text = table.csv()
    file_name = source.name.replace('"', "")
    sources = SOURCES
    for code in sorted({row["evidence"] for row in table.rows} - {"unknown", "guess"}):
        if not code.startswith("C:"):
            sources += f'{code},"{file_name}",read by npulab new\n'
    enums = table.enums_csv() or "enum,raw,name\n"
    files = {"registers.csv": text, "enums.csv": enums, "sources.csv": sources}
    if made.features:
        files["chips.csv"] = _chips(name, made.features)
    counts = ", ".join(plural(count, what[:-1]) for what, count in table.counts.items())
    page = (
        f"What `{source.name}` says, in `registers.csv`: {counts}. Nobody has checked it on a job."
    )
    page = " ".join([page, *_alternatives(made)])
    for guess in _guesses(made):
        warnings.warn(f"{source}: {guess}", stacklevel=4)
    return Start(files, arrays, page, max(len(table.registers), 2), _opcode_of(made))


def _chips(name: str, features: Mapping[str, int]) -> str:
    """Return the text of ``chips.csv`` with one chip, which has the features with value 1."""
    notes = {
        1: "the rows of registers.csv with this feature are read",
        0: "its rows overlap those of another feature",
    }
    lines = [CHIPS_HEAD]
    for feature, value in features.items():
        lines.append(f"{name},{feature},{value},guess,{notes[value]}")
    return "\n".join([*lines, ""])


def _alternatives(made: Usable) -> list[str]:
    """Return sentences for the target's page about blocks that are unions, and about features that
    the chip does not have.
    """
    texts = []
    for block, names in made.split.items():
        common = _quoted(shared(made.table, names)) or "no field"
        if block in made.opcodes:
            field = made.opcodes[block].field
            texts.append(
                f"`{block}` is a union: each name of its opcode `{field}` is a block "
                f"({_quoted(names)}), and all of them have {common} in the same bits. "
                "`read_commands` takes streams apart by it, as `dumps.py` does."
            )
            continue
        texts.append(
            f"`{block}` is a union: each alternative is a block ({_quoted(names)}), and all of "
            f"them have {common} in the same bits. `read_commands` takes streams apart by one "
            "whose enum names the blocks."
        )
    texts += [f"{guess}." for guess in _guesses(made)]
    off = [feature for feature, value in made.features.items() if not value]
    if off:
        texts.append(
            f"`chips.csv` leaves out {_quoted(off)}, whose rows overlap those of other features; "
            "a chip that has them is a line there."
        )
    return texts


def _guesses(made: Usable) -> list[str]:
    """Return sentences, without their full stops, about names of opcodes whose alternative is
    guessed, and about alternatives that no name has.
    """
    texts = []
    for block, opcode in made.opcodes.items():
        if opcode.guessed:
            alternative = opcode.alternatives[opcode.guessed[0]]
            texts.append(
                f"`{block}`: that {_quoted(opcode.guessed)} have the fields of `{alternative}` "
                "is a guess (`--opcode NAME=ALTERNATIVE` of `npulab new` states it)"
            )
        if opcode.unused:
            texts.append(f"`{block}`: no block has the fields of {_quoted(opcode.unused)}")
    return texts


def _opcode_of(made: Usable) -> str:
    """Return the field that names the block of a command; "" if not every block is one of a single
    union with an opcode.
    """
    if len(made.opcodes) == 1:
        ((block, opcode),) = made.opcodes.items()
        if {*made.split[block]} == {*made.table.blocks}:
            return opcode.field
    return ""


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def filled(
    text: str, name: str, package: str = ".", start: Start | None = None, folder: str = ""
) -> str:
    """Return a text of the template with its marks replaced for a target ``name``, whose modules
    import from ``package``.

    >>> filled("test_@NAME@.py", "mine")
    'test_mine.py'
    """
    start = start or Start()
    values = {
        PLACEHOLDER: name,
        PACKAGE: package,
        LAST: f"{WORD_BYTES * (start.words - 1):#06x}",
        "@DENSE@": str(start.dense),
        "@GUESSED@": start.guessed,
        "@OPCODE@": start.opcode,
        "@FOLDER@": folder,
    }
    for mark, value in values.items():
        text = text.replace(mark, value)
    return text
