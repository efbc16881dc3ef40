"""Reader of SystemRDL 2.0, in which makers of chips describe their registers; needs the package
systemrdl-compiler.

================  ==================================================================================
``addrmap``       a block; a map inside another is a block of its own, ``OUTER.INNER``
``regfile``,      the registers in it, named ``REGFILE.REGISTER``; a memory without registers is a
``mem``           loss
``reg``           8 bits or more; 64 bits are two words, registers of 8 and 16 bits share a word
arrays            ``NAME[0]``, ``NAME[1]``, ...; parameters have their values
``field``         its bits; ``name`` and ``desc`` are the note, with ``sw``, ``hw``, ``onread``,
                  ``onwrite`` and ``reset`` if they say more than plain storage; ``is_signed`` and
                  ``fracwidth`` if the file declares them
``encode``        an enum
================  ==================================================================================

Verilog's ifdef and define are carried out, include only of files in the same folder or below;
Perl (``<% %>``) is refused. The compiler runs as a program of its own, for at most a minute and
in at most two GiB. Properties ``npulab_...`` hold what npulab's table has and SystemRDL has no
word for. Source: SystemRDL 2.0; systemrdl-compiler.
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
from npulab.registers.formats.placing import Enums, Found, Losses, Register, placed
from npulab.registers.formats.tables import MOST_ROWS, RegisterTable
from npulab.support.extras import needed
from npulab.support.files import read_bounded, text_of
from npulab.support.processes import execute

MOST_BYTES = 2**23  # of a file and its includes together
FILES = 64
# brackets within each other: a thousand take the compiler seconds, recorded maps have ten
MOST_DEEP = 100
SECONDS, ROOM = 60, 2**31
INCLUDED = "`include"
INCLUDE = re.compile(r'`include\s+(?:"([^\r\n]+)"|<([^\r\n]+)>)')
QUIET = re.compile(r'//[^\n]*|/\*.*?(?:\*/|\Z)|"(?:[^"\\]|\\.)*"', re.DOTALL)
BRACKET = re.compile(r"[][(){}]")
PLAIN = "rw"


def read_rdl(path: Path) -> RegisterTable:
    """Return the registers of a file: of its last address map and of the maps next to it.

    A UserWarning names what the table has no place for. Raises ValueError with file and line for
    text that is broken or refused, FileNotFoundError for no file, MissingPackage that names
    ``npulab[maps]`` if the compiler is not installed.
    """
    path = Path(path)
    refuse(path)
    needed("systemrdl", f"{path}: reading SystemRDL")
    with tempfile.TemporaryDirectory(prefix="npulab-") as folder:
        result = Path(folder) / "records.json"
        end = execute(
            f"{path}",
            (
                sys.executable,
                "-P",
                rdl_compiling.__file__,
                str(path.absolute()),
                str(result),
                str(SECONDS),
                str(ROOM),
                str(2 * MOST_ROWS),
            ),
            timeout=SECONDS,
        )
        if not result.is_file():
            raise ValueError(
                f"{path}: got what takes the compiler of SystemRDL more than {SECONDS} seconds or "
                f"{ROOM // 2**20} MiB, or ends it ({end}), allowed is less"
            )
        records = json.loads(result.read_text(encoding="utf-8"))
    return table_of(path, records)


def refuse(path: Path) -> None:
    """Raise ValueError for text that must not reach the compiler: Perl, files elsewhere, too
    much text, brackets that are too deep."""
    folder = path.resolve().parent
    left = [MOST_BYTES, FILES]
    depth = 0

    def look(file: Path, above: tuple[Path, ...]) -> None:
        nonlocal depth
        size = file.stat().st_size
        left[0], left[1] = left[0] - size, left[1] - 1
        if left[0] < 0 or left[1] < 0:
            raise ValueError(
                f"{file}: got {size} bytes, or more than {FILES} files, allowed are {MOST_BYTES} "
                "bytes with all includes"
                if left[0] < 0
                else f"{file}: got an include too many, allowed are {FILES}"
            )
        text = text_of(read_bounded(file, MOST_BYTES), file, "utf-8")
        if (at := text.find("<%")) >= 0:
            raise ValueError(
                f"{_at(file, text, at)}: got a directive of Perl (<%), allowed is a file without; "
                "npulab runs nothing that a file says"
            )
        for match in _steps(text):
            if match[0] != INCLUDED:
                depth = max(0, depth + (1 if match[0] in "[({" else -1))
                if depth > MOST_DEEP:
                    raise ValueError(
                        f"{_at(file, text, match.start())}: got brackets {depth} deep, allowed are "
                        f"{MOST_DEEP}"
                    )
                continue
            full = INCLUDE.match(text, match.start())
            name = ""
            if full:
                name = full[1] or full[2]
            real = (file.parent / name).resolve()
            if (
                not name
                or Path(name).is_absolute()
                or not real.is_relative_to(folder)
                or not real.is_file()
                or real in above
            ):
                raise ValueError(
                    f"{_at(file, text, match.start())}: include: got {name!r}, allowed is a file "
                    f"that lies in {folder} or below and does not include itself"
                )
            look(file.parent / name, (*above, real))

    look(path, (path.resolve(),))


def _steps(text: str) -> list[re.Match[str]]:
    """Yield the brackets of a text outside comments and strings, and every include, in order."""
    bare = QUIET.sub(lambda found: " " * len(found[0]), text)
    found = [*BRACKET.finditer(bare), *re.finditer(INCLUDED, text)]
    return sorted(found, key=lambda one: one.start())


def _at(path: Path, text: str, at: int) -> str:
    return f"{path}, line {text.count(chr(10), 0, at) + 1}"


def is_rdl(head: bytes) -> bool:
    """True if the beginning of a file is SystemRDL.

    >>> is_rdl(b"/* a */ addrmap top { reg {} r; };"), is_rdl(b"struct regs { unsigned a : 3; };")
    (True, False)
    """
    plain = b" ".join(
        re.sub(rb'//[^\n]*|/\*.*?(\*/|$)|"[^"]*"', b" ", head, flags=re.DOTALL).split()
    )
    # structs of C have such names too
    return (
        b"<%" in plain
        or re.search(
            rb"(?<!struct )(?<!union )(?<!enum )\b(addrmap|regfile|reg|field)( \w+)? ?"
            rb"(# ?\([^)]*\) ?)?[{]|\b(addrmap|regfile) \w+ ?#|\bproperty \w+ ?[{]",
            plain,
        )
        is not None
    )


def table_of(path: Path, records: Mapping[str, Any]) -> RegisterTable:
    """Return the table of the records that the compiler made of a file; raises ValueError for
    its error."""
    if "error" in records:
        text = " ".join(str(records["error"]).split())
        if "allowed" in records:
            raise ValueError(f"{_where(records, path)}: got {text}, allowed {records['allowed']}")
        raise ValueError(
            f"{_where(records, path)}: got what is no SystemRDL, or has a fault ({text}), allowed "
            "is a "
            "description that compiles"
        )
    losses, own = Losses(), records["top"]
    enums = Enums({})
    for said in own.get("enums", ()):
        name, *value = said.split(" ", 2)
        names = enums.own(unquote(name))
        if len(value) == 2:
            names[int(value[0], 0)] = unquote(value[1])
    for what, line in records["told"]:
        losses.lose(_where(line, path), what)
    said = {
        _block(one): bool(one["home"]["own"]["addresses"])
        for one in records["registers"]
        if "addresses" in one["home"]["own"]
    }
    table = placed(
        _registers(path, records, "map" in own, enums, losses),
        enums.by_name,
        losses,
        unquote(own.get("copyright", "")),
        said,
    )
    losses.warn(path)
    return table


def _where(said: Mapping[str, Any], path: Path) -> str:
    if "line" in said:
        return f"{said['path'] if Path(said['path']).is_absolute() else path}, line {said['line']}"
    return str(path)


def _registers(
    path: Path, records: Mapping[str, Any], own: bool, enums: Enums, losses: Losses
) -> Iterator[Register]:
    homes = set[str]()
    found = records["registers"]
    # npulab writes blocks that only some chips have last; they belong where they lie
    for one in sorted(found, key=lambda one: one["home"]["address"]) if own else found:
        home = one["home"]
        block = _block(one)
        about = [one["title"], one["desc"]]
        if not own and one["block"] not in homes:
            homes.add(one["block"])
            if home["top"]:
                address = ""
            else:
                address = f" at {home['address']:#x}"
            about.insert(
                0,
                f"{one['block']}{address}: {home['desc']}".rstrip(": ")
                if address or home["desc"]
                else "",
            )
        if "name" in one["own"]:
            name = unquote(one["own"]["name"])
        else:
            name = one["name"]
        fields = tuple(
            _field(path, one, field, enums, records["enums"], losses) for field in one["fields"]
        )
        yield Register(
            block, one["offset"], one["size"], name, _where(one, path), _joined(about), fields
        )


def _block(one: Mapping[str, Any]) -> str:
    """The block of a register."""
    home = one["home"]
    if "name" in home["own"]:
        return unquote(home["own"]["name"])
    return str(one["block"])


def _field(
    path: Path,
    register: Mapping[str, Any],
    one: Mapping[str, Any],
    enums: Enums,
    declared: list[Any],
    losses: Losses,
) -> Found:
    own, where = one["own"], _where(one, path)
    if "name" in own:
        name = unquote(own["name"])
    else:
        name = one["name"]
    said = [f"{key}={one[key]}" for key in ("sw", "hw") if one[key] != PLAIN]
    said += one["effects"] + ([f"reset={one['reset']:#x}"] if one["reset"] is not None else [])
    note = _joined([one["title"], one["desc"]])
    row: dict[str, Any] = {"note": f"{note} ({', '.join(said)})".strip() if said else note}
    if one["msb0"]:
        losses.lose(where, f"that the bits of {one['name']} are in order of msb0")
    fraction = one.get("fracwidth", 0)
    if one.get("is_signed"):
        value = "signed "
    else:
        value = ""
    if fraction > 0:
        row["value"] = f"{value}raw>>{fraction}"
    else:
        row["value"] = value.strip()
    if "enum" in one:
        label, values = declared[one["enum"]]
        row["value"] = enums.take(
            label,
            register["block"],
            f"{register['name']}_{one['name']}",
            {raw: text for text, raw in values},
            where,
        )
    row |= {
        key: unquote(own[key]) for key in ("value", "feature", "evidence", "note") if key in own
    }
    row |= {key: int(own[key]) for key in ("at", "align") if key in own}
    if own.get("address"):
        row |= {"address": "yes"}
    else:
        row |= {}
    if own.get("nameless"):
        row |= {"register": ""}
    else:
        row |= {}
    if own.get("unnamed"):
        row |= {"field": ""}
    else:
        row |= {}
    enums.refuse_unknown(row["value"], where)
    return Found(name, one["low"], one["high"], where, row)


def _joined(texts: list[str]) -> str:
    return ": ".join(" ".join(text.split()) for text in texts if text and text.split())
