"""Reader of C: structs with bit-fields, and headers of shift and mask macros, by content; text
around is let be.

What C has no word for stands in comments of npulab's own, as ``c_writing`` makes them; other
comments beside a member or macro are its note.
"""

from __future__ import annotations

import re
import warnings
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from npulab.registers.formats.c_attributes import mark_of
from npulab.registers.formats.c_comments import licence_in, said_in
from npulab.registers.formats.c_declarations import Declarations, Unit, comments_of, find, parse
from npulab.registers.formats.c_macros import read_macros
from npulab.registers.formats.c_source import Source, read_source
from npulab.registers.formats.c_structs import Laid, Layout, holes, rows_of
from npulab.registers.formats.c_types import BASIC
from npulab.registers.formats.tables import MOST_ROWS, RegisterTable
from npulab.registers.table import COLUMNS

BEGINS = re.compile(rb"\b(?:struct|union|enum)\b[\w\s()]{0,200}\{|^[ \t]*#[ \t]*define[ \t]+\w", re.MULTILINE)
SHOWN = 8
NEAR = 256  # characters between an annotation and the struct that it is of


def is_c(head: bytes) -> bool:
    """Whether the beginning of a file has a struct, union, enum or macro of C in it.

    >>> is_c(b"As I wrote, struct job { uint32_t a : 1; };"), is_c(b"a struct, a union")
    (True, False)
    """
    return BEGINS.search(head) is not None


class Struct(NamedTuple):
    """A struct, union or enum of a file: its node, name (of the type where it has no tag),
    position."""

    node: Any
    name: str
    position: int


def read_c(path: Path) -> RegisterTable:
    """The registers that a C file says in structs, in shift and mask macros, or in both.

    Nothing of the file is run, no other file is read.  A UserWarning names silent holes of a struct
    (word, bits), names of an enum that were left out and macros that have no place.  Raises
    ValueError with file and line for what is broken and a file that has neither,
    ModuleNotFoundError where the extra ``maps`` is needed and missing.
    """
    path = Path(path)
    source = read_source(path)
    lost: dict[str, None] = {}
    try:
        chunks, enums = _structs(source, lost) if find(source) else ([], {})
    except RecursionError:
        raise ValueError(f"{path}: got declarations too deep within each other, allowed are fewer") from None
    more, others = read_macros(source, enums, lost)
    chunks = sorted([*chunks, *more], key=lambda one: one[0])
    rows = _once([row for _, some in chunks for row in some])
    if not rows and lost:
        raise ValueError(f"{path}: got nothing that has a place ({next(iter(lost))}), allowed is a struct, or shift "
                         "and mask macros whose names begin with that of a register's offset")
    if not rows:
        raise ValueError(f"{path}: got a file without a struct and without shift and mask macros, allowed is C that "
                         "has one of them")
    if len(rows) > MOST_ROWS:
        raise ValueError(f"{path}: got more than {MOST_ROWS} fields, allowed are as many")
    if lost:
        told = [*lost][:SHOWN] + ([f"{len(lost) - SHOWN} more"] if len(lost) > SHOWN else [])
        warnings.warn(f"{path}: {'; '.join(told)}", stacklevel=3)
    try:
        return RegisterTable.of(rows, {**enums, **others}, _copyright(source))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _once(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows without those that structs of several features share."""
    out = {tuple(str(row.get(name, "")) for name in COLUMNS): row for row in reversed(rows)}
    kept = {id(row) for row in out.values()}
    return [row for row in rows if id(row) in kept]


def _copyright(source: Source) -> str:
    first = len(source.code) - len(source.code.lstrip())
    said = []
    for one in source.comments:
        text = ""
        if "copyright" in one.text and (words := said_in(one.text)) is not None:
            text = words.get("copyright", "")
        elif one.start < first:
            text = licence_in(one.text)
        said += [text] if text else []
    return "\n".join(said)


def _structs(source: Source, lost: dict[str, None]) -> tuple[list[tuple[int, list[dict[str, Any]]]],
                                                             dict[str, dict[int, str]]]:
    """(position, rows) of each struct that no other holds, and the enums."""
    declared = parse(source, [*BASIC])
    layout = Layout(declared)
    tops = _declare(declared, layout)
    notes, words = comments_of(source, [*_units(declared)])
    _name_enums(declared, words)
    for one in tops:
        if type(one.node).__name__ == "Enum":
            layout.enum(one.node, one.position, one.name)
    structs = [one for one in tops if type(one.node).__name__ != "Enum"]
    for one in structs:
        layout.struct(one.node, one.position)
    out: list[tuple[int, list[dict[str, Any]]]] = []
    seen = set[tuple[str, str]]()
    for one in structs:
        if id(one.node) in layout.held:
            continue
        runs = sorted((run.name, run.position) for run in layout.laid[id(one.node)].runs if run.name)
        for (a, _), (b, position) in pairwise(runs):
            if a == b:
                raise layout.error(position, f"struct {one.name}: got member {b} a second time, allowed is once")
        said = _before(source, one.position)
        block = said.get("block", one.name)
        if (block, said.get("feature", "")) in seen:
            raise layout.error(one.position, f"struct {block}: got it a second time, allowed is once")
        seen.add((block, said.get("feature", "")))
        rows = _rows(block, layout, one, said.get("base", 0), notes, words)
        told = _told(layout.laid[id(one.node)])
        if told:
            lost[f"struct {block}: silent holes at {', '.join(told)}"] = None
        out.append((one.position, rows))
    lost.update((f"not carried over: {text}", None) for text in layout.lost)
    return out, layout.enums


def _declare(declared: Declarations, layout: Layout) -> list[Struct]:
    """Everything a file declares, its names known to the layout."""
    out: dict[int, Struct] = {}
    for top in declared.nodes:
        position = declared.position(top)
        if type(top).__name__ == "Typedef" and (position >= 0 or top.name in declared.macro_types):
            layout.typedefs[top.name] = top.type
        if position < 0:
            continue
        node = top.type if type(top).__name__ == "Decl" else top
        while type(node).__name__ in ("TypeDecl", "ArrayDecl", "Typedef"):
            node = node.type
        if type(node).__name__ in ("Struct", "Union", "Enum") and _body(node) is not None:
            other = getattr(top, "name", None) or ""
            tag = node.name or other
            out[id(node)] = Struct(node, other if other and tag.startswith("_") else tag, position)
            if node.name and type(node).__name__ != "Enum":
                layout.structs[node.name] = node
            _inner(node, layout)
    return [*out.values()]


def _inner(node: Any, layout: Layout) -> None:
    """Make the tags of structs inside others known."""
    for one in node.decls if type(node).__name__ != "Enum" and node.decls else ():
        below = one.type
        while type(below).__name__ in ("TypeDecl", "ArrayDecl", "PtrDecl"):
            below = below.type
        if type(below).__name__ in ("Struct", "Union") and below.decls is not None:
            if below.name:
                layout.structs[below.name] = below
            _inner(below, layout)


def _body(node: Any) -> Any:
    return node.values if type(node).__name__ == "Enum" else node.decls


def _units(declared: Declarations) -> list[Unit]:
    """Members and enumerators as they stand in the file."""
    out, stack = [], [*declared.nodes]
    code = declared.source.code
    while stack:
        node = stack.pop()
        kind = type(node).__name__
        if kind == "Enumerator":
            out.append(_unit(code, declared.position(node), ",}"))
        elif kind == "Enum":
            stack += node.values.enumerators if node.values is not None else []
        elif kind in ("Struct", "Union"):
            for one in node.decls or ():
                if type(one).__name__ == "Decl" and mark_of(one) is None:
                    if one.coord is not None or type(one.type).__name__ == "TypeDecl":
                        out.append(_unit(code, declared.position(one), ",;"))
                    stack.append(one)
        elif kind in ("Decl", "Typedef", "TypeDecl", "ArrayDecl", "PtrDecl"):
            stack.append(node.type)
    return out


def _unit(code: str, start: int, ends: str) -> Unit:
    depth = 0
    for match in re.compile(r"[\[\](),;{}]").finditer(code, start):
        if depth <= 0 and match[0] in ends:
            return Unit(start, match.start() if match[0] == "}" else match.end())
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(match[0], 0)
    return Unit(start, len(code))


def _name_enums(declared: Declarations, words: dict[Unit, dict[str, Any]]) -> None:
    """Take the names of enums and enumerators from the annotations."""
    by_start = {unit.start: said for unit, said in words.items()}
    stack = [*declared.nodes]
    while stack:
        node = stack.pop()
        kind = type(node).__name__
        if kind == "Enum" and node.values is not None:
            saids = [by_start.get(declared.position(one), {}) for one in node.values.enumerators]
            prefix = saids[0].get("prefix", "") if saids else ""
            if saids and "enum" in saids[0]:
                declared.enum_names[node.name or ""] = saids[0]["enum"]
            for one, said in zip(node.values.enumerators, saids, strict=True):
                text = said.get("name", one.name.removeprefix(prefix))
                declared.names_of_enumerators[node.name or "", one.name] = text
        elif kind in ("Struct", "Union"):
            stack += node.decls or ()
        elif kind in ("Decl", "Typedef", "TypeDecl", "ArrayDecl", "PtrDecl"):
            stack.append(node.type)


def _before(source: Source, position: int) -> dict[str, Any]:
    """The annotation right before a declaration."""
    start = max(source.code.rfind(word, max(0, position - NEAR), position) for word in ("struct", "union"))
    at = bisect_right(source.comments, start, key=lambda one: one.end) - 1
    if start < 0 or at < 0 or start - source.comments[at].end > NEAR \
            or source.code[source.comments[at].end:start].strip() not in ("", "typedef"):
        return {}
    try:
        return said_in(source.comments[at].text) or {}
    except ValueError as error:
        raise ValueError(f"{source.where(source.comments[at].start)}: {error}") from None


def _rows(block: str, layout: Layout, one: Struct, base: int, notes: dict[Unit, str],
          words: dict[Unit, dict[str, Any]]) -> list[dict[str, Any]]:
    by_start = {unit.start: said for unit, said in words.items()}
    note_at = {unit.start: note for unit, note in notes.items()}
    registers: dict[int, str] = {}
    out: list[dict[str, Any]] = []
    for row, run in rows_of(block, layout.laid[id(one.node)], base):
        said = by_start.get(run.position, {})
        if "word" in said:
            registers[row["offset"]] = said["word"]
        if said.get("hole"):
            continue
        columns = {name: value for name, value in said.items() if name in COLUMNS}
        note = note_at.get(run.position, "")
        out.append({**row, **({"note": note} if note else {}), **columns})
    return [{**row, "register": row.get("register", registers.get(row["offset"], ""))} for row in out]


def _told(laid: Laid) -> list[str]:
    """The silent holes of a struct as text."""
    found = holes(laid)
    told = [f"word {word} bits {lsb + width - 1}:{lsb}" for word, lsb, width in found[:SHOWN]]
    return told + ([f"{len(found) - SHOWN} more"] if len(found) > SHOWN else [])
