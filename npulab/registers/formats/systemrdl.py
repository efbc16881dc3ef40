"""Reader of SystemRDL 2.0, in which makers of chips describe their registers; needs the package
systemrdl-compiler.

================  ==================================================================================
``addrmap``       a block; a map inside another map is a block of its own, ``OUTER.INNER``
``regfile``,      the registers in it, named ``REGFILE.REGISTER``; a memory without registers is a
``mem``           loss
``reg``           a register of 8 bits or more; 64 bits are two words, registers of 8 and 16 bits
                  may share a word
arrays            ``NAME[0]``, ``NAME[1]``, ...; parameters are replaced by their values
``field``         a field; ``name`` and ``desc`` are its note, with ``sw`` and ``hw`` if they are
                  not ``rw``, and with ``onread``, ``onwrite`` and ``reset``; ``is_signed`` and
                  ``fracwidth`` are its value column
``encode``        an enum
================  ==================================================================================

Verilog's ifdef and define are carried out. A file may include files that are in its folder or
below. Perl (``<% %>``) is refused. The compiler runs as a program of its own, for at most a minute
and in at most two GiB. Properties ``npulab_...`` have what npulab's table can say and SystemRDL
cannot. Source: SystemRDL 2.0; systemrdl-compiler.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from npulab.registers.formats import rdl_compiling
from npulab.registers.formats.placing import FileEnums, Found, Losses, Register, placed
from npulab.registers.formats.tables import MOST_ROWS, RegisterTable
from npulab.support.extras import needed
from npulab.support.files import read_bounded, text_of
from npulab.support.processes import execute
from npulab.support.refuse import refuse_if

MOST_BYTES = 2**23  # a file and its includes have at most so many bytes together
FILES = 64  # a file has at most so many includes, itself counted
# At most so many brackets are inside each other. The compiler takes seconds for 1000; maps of real
# chips have 10.
MOST_DEEP = 100
SECONDS, ROOM = 60, 2**31  # the seconds of CPU time and bytes of memory that the compiler may use
INCLUDED = "`include"
INCLUDE = re.compile(r'`include\s+(?:"([^\r\n]+)"|<([^\r\n]+)>)')
QUIET = re.compile(r'//[^\n]*|/\*.*?(?:\*/|\Z)|"(?:[^"\\]|\\.)*"', re.DOTALL)
BRACKET = re.compile(r"[][(){}]")
STEPS = {"[": 1, "(": 1, "{": 1, "]": -1, ")": -1, "}": -1}  # what a bracket adds to the depth
SYSTEMRDL = re.compile(
    rb"<%|(?<!struct )(?<!union )(?<!enum )\b(addrmap|regfile|reg|field)( \w+)? ?"
    rb"(# ?\([^)]*\) ?)?[{]|\b(addrmap|regfile) \w+ ?#|\bproperty \w+ ?[{]"
)
PLAIN = "rw"
# npulab's own boolean properties, each as (property, column, cell): if the property is true, the
# column of the row has this cell
FLAGS = (("address", "address", "yes"), ("nameless", "register", ""), ("unnamed", "field", ""))

Record = Mapping[str, Any]


def read_rdl(path: Path) -> RegisterTable:
    """Return the registers of all address maps of a file, with the maps inside them. If npulab
    wrote the file, it has one outer map.

    A UserWarning names what the table has no place for. Raises ValueError, with the file and, if it
    is known, the line, for text that is broken, refused or takes too long; FileNotFoundError for no
    file; MissingPackage, which names ``npulab[maps]``, without the compiler.
    """
    path = Path(path)
    refuse(path)
    needed("systemrdl", f"{path}: reading SystemRDL")
    with tempfile.TemporaryDirectory(prefix="npulab-") as folder:
        result = Path(folder) / "records.json"
        given = path.absolute(), result, SECONDS, ROOM, 2 * MOST_ROWS
        program = sys.executable, "-P", rdl_compiling.__file__, *map(str, given)
        end = execute(str(path), program, timeout=SECONDS)
        if not result.is_file():
            raise ValueError(
                f"{path}: got a file that takes the compiler of SystemRDL more than "
                f"{SECONDS} seconds or {ROOM // 2**20} MiB, or that ends it ({end}), allowed "
                "is a file that needs less"
            )
        records = json.loads(result.read_text(encoding="utf-8"))
    return table_of(path, records)


def refuse(path: Path) -> None:
    """Raise ValueError for text that must not reach the compiler: Perl, an include of a file
    outside the folder or of itself, too much text, too many files, brackets that are too deep."""
    folder = path.resolve().parent
    size = files = depth = 0

    def look(file: Path, above: tuple[Path, ...]) -> None:
        nonlocal size, files, depth
        size += file.stat().st_size
        files += 1
        refuse_if(size > MOST_BYTES, file, f"{size} bytes with all includes", f"are {MOST_BYTES}")
        refuse_if(files > FILES, file, f"more than {FILES} files with all includes", f"are {FILES}")
        text = text_of(read_bounded(file, MOST_BYTES), file, "utf-8")
        perl = text.find("<%")
        if perl >= 0:
            raise ValueError(
                f"{_at(file, text, perl)}: got a directive of Perl (<%), allowed is a file "
                "without such directives, because npulab runs nothing that a file says"
            )
        for match in _steps(text):
            if match[0] != INCLUDED:
                depth = max(0, depth + STEPS[match[0]])
                if depth > MOST_DEEP:
                    where = _at(file, text, match.start())
                    raise ValueError(
                        f"{where}: got brackets {depth} deep, allowed are at most {MOST_DEEP}"
                    )
                continue
            name = ""
            if full := INCLUDE.match(text, match.start()):
                name = full[1] or full[2]
            real = (file.parent / name).resolve()
            inside = real.is_relative_to(folder) and real.is_file()
            if not inside or Path(name).is_absolute() or real in above:
                raise ValueError(
                    f"{_at(file, text, match.start())}: include: got {name!r}, allowed is a file "
                    f"that lies in {folder} or below and does not include itself"
                )
            look(file.parent / name, (*above, real))

    look(path, (path.resolve(),))


def _steps(text: str) -> list[re.Match[str]]:
    """Return the brackets of a text outside comments and strings, and every include, in the order
    of the text."""
    bare = QUIET.sub(lambda found: " " * len(found[0]), text)
    found = [*BRACKET.finditer(bare), *re.finditer(INCLUDED, text)]
    return sorted(found, key=re.Match.start)


def _at(path: Path, text: str, at: int) -> str:
    return f"{path}, line {text.count(chr(10), 0, at) + 1}"


def is_rdl(head: bytes) -> bool:
    """True if the beginning of a file is SystemRDL.

    >>> is_rdl(b"/* a */ addrmap top { reg {} r; };"), is_rdl(b"struct regs { unsigned a : 3; };")
    (True, False)
    """
    bare = re.sub(rb'//[^\n]*|/\*.*?(\*/|$)|"[^"]*"', b" ", head, flags=re.DOTALL)
    return SYSTEMRDL.search(b" ".join(bare.split())) is not None


def table_of(path: Path, records: Record) -> RegisterTable:
    """Return the table of the records that ``rdl_compiling`` made of a file; raises ValueError if
    they are an error."""
    if "error" in records:
        got, allowed = " ".join(str(records["error"]).split()), records.get("allowed")
        if allowed is None:
            got = f"what is no SystemRDL, or has a fault ({got})"
            allowed = "is a description that compiles"
        raise ValueError(f"{_where(records, path)}: got {got}, allowed {allowed}")
    losses, own = Losses(), records["top"]
    enums = FileEnums({})
    for kept in own.get("enums", ()):
        name, *value = kept.split(" ", 2)
        names = enums.own(unquote(name))
        if len(value) == 2:
            names[int(value[0], 0)] = unquote(value[1])
    for what, line in records["lost"]:
        losses.lose(_where(line, path), what)
    said = {}
    for record in records["registers"]:
        if "addresses" in record["home"]["own"]:
            said[_block(record)] = bool(record["home"]["own"]["addresses"])
    registers = _registers(path, records, "map" in own, enums, losses)
    table = placed(registers, enums.by_name, losses, unquote(own.get("copyright", "")), said)
    losses.warn(path)
    return table


def _where(said: Record, path: Path) -> str:
    """Return the file and line of a record; the file is ``path``, unless the record names another
    file by an absolute path."""
    if "line" not in said:
        return str(path)
    file = Path(said["path"])
    if not file.is_absolute():
        file = path
    return f"{file}, line {said['line']}"


def _registers(
    path: Path, records: Record, own: bool, enums: FileEnums, losses: Losses
) -> Iterator[Register]:
    """Yield the registers of records; ``own`` is True if npulab wrote the file."""
    homes = set[str]()
    found = records["registers"]
    if own:
        # registers of fields with a feature are the last records; sorting by address restores the
        # order of the blocks
        found = sorted(found, key=lambda record: record["home"]["address"])
    for record in found:
        about = [record["title"], record["desc"]]
        if not own and record["block"] not in homes:
            homes.add(record["block"])
            about.insert(0, _about(record["block"], record["home"]))
        fields = []
        for field in record["fields"]:
            where = _where(field, path)
            fields.append(_field(where, record, field, enums, records["enums"]))
            if field["msb0"]:
                losses.lose(where, f"that the bits of {field['name']} are in order of msb0")
        yield Register(
            _block(record),
            record["offset"],
            record["size"],
            _name(record),
            _where(record, path),
            _joined(about),
            tuple(fields),
        )


def _about(block: str, home: Record) -> str:
    """Return a text with the address and the description of a block; blank for the top map without
    a description."""
    text = block
    if not home["top"]:
        text += f" at {home['address']:#x}"
    elif not home["desc"]:
        return ""
    return f"{text}: {home['desc']}".rstrip(": ")


def _name(record: Record) -> str:
    """Return the name of a register or field: the name that npulab stated or, without it, the name
    in SystemRDL."""
    # identifiers of SystemRDL have no %, which unquote would replace
    return unquote(record["own"].get("name", record["name"]))


def _block(record: Record) -> str:
    """Return the name of the block of a register."""
    return unquote(record["home"]["own"].get("name", record["block"]))


def _field(
    where: str, register: Record, record: Record, enums: FileEnums, declared: list[Any]
) -> Found:
    """Return the field of a record; ``declared`` has the label and the values of each enum."""
    own = record["own"]
    said = [f"{key}={record[key]}" for key in ("sw", "hw") if record[key] != PLAIN]
    said += record["effects"]
    if record["reset"] is not None:
        said.append(f"reset={record['reset']:#x}")
    note = _joined([record["title"], record["desc"]])
    if said:
        note = f"{note} ({', '.join(said)})".strip()
    row: dict[str, Any] = {"note": note, "value": _value(record)}
    if "enum" in record:
        label, values = declared[record["enum"]]
        names = {raw: text for text, raw in values}
        name = f"{register['name']}_{record['name']}"
        row["value"] = enums.take(label, register["block"], name, names, where)
    for key in ("value", "feature", "evidence", "note"):
        if key in own:
            row[key] = unquote(own[key])
    for key in ("at", "align"):
        if key in own:
            row[key] = int(own[key])
    for key, column, cell in FLAGS:
        if own.get(key):
            row[column] = cell
    enums.refuse_unknown(row["value"], where)
    return Found(_name(record), record["low"], record["high"], where, row)


def _value(record: Record) -> str:
    """Return the value column of a field that PeakRDL's properties state; blank without them."""
    words = []
    if record.get("is_signed"):
        words.append("signed")
    if record.get("fracwidth", 0) > 0:
        words.append(f"raw>>{record['fracwidth']}")
    return " ".join(words)


def _joined(texts: list[str]) -> str:
    """Return the texts on one line, with colons between them."""
    lines = [" ".join(text.split()) for text in texts]
    return ": ".join(filter(None, lines))
