"""The names of codes that a C header gives next to its structs: macros with the field's name inside
theirs, and enums with the field's name at the end of their tag.

``#define NPU_OPCODE_LOAD 0`` and ``#define NPU_OPCODE_STORE 1`` name the codes of a bit-field
``opcode``, unless the header has a bit-field whose longer name is inside the macros' names too, as
``npu_opcode``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from npulab.registers.fields import Cells, Enums, NewCodes, NewEnums, Row

Rows = Sequence[Cells]

FEWEST = 2  # fewest macros that are the codes of a field
# A field as wide as a type of C may be anything of a program: a number, a size, flags. A field of
# at most NARROW bits may have any codes; in a wider field every second code has a name.
WHOLE, NARROW = (8, 16, 32, 64), 8
# the words of a name: parts between underscores, and parts that begin with a capital letter
WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


class Named(NamedTuple):
    """Rows of which some have an enum, the enums that were made for them, and the macros that they
    were made of.
    """

    rows: Rows
    enums: NewEnums
    macros: set[str]


class _Field(NamedTuple):
    """A field that may have codes: the words of its name in capitals, and the bits of the narrowest
    field of the name.
    """

    words: tuple[str, ...]
    width: int


class _Code(NamedTuple):
    """A macro whose name has a field's words: the words up to the field's last, the rest, and its
    number.
    """

    front: str
    name: str
    number: int
    macro: str


def with_codes(rows: Rows, numbers: Mapping[str, int], enums: Enums) -> Named:
    """Return the rows of structs with an enum for each field whose codes ``numbers`` or ``enums``
    name.

    ``numbers`` are macros that nothing else explains. The macros of a field begin alike, are at
    least two, and fit into the field; of two for the same code the first counts. Numbers that all
    have one bit set are no codes, for they may be flags.
    """
    fields = _fields(rows)
    found: dict[str, list[_Code]] = {}
    for macro, number in numbers.items():
        place = _place_of(macro, fields)
        if place is not None:
            field, front, name = place
            found.setdefault(field, []).append(_Code(front, name, number, macro))
    made: NewEnums = {}
    macros: set[str] = set()
    columns: dict[str, str] = {}
    for field, (words, width) in fields.items():
        codes = found.get(field, [])
        names = _names(codes, width)
        if names:
            enum = _free(field, enums)
            made[enum] = names
            macros.update(code.macro for code in codes if names.get(code.number) == code.name)
            columns[field] = f"enum:{enum}"
            continue
        enum = _enum_of(words, width, enums)
        if enum:
            columns[field] = f"enum:{enum}"
    out = []
    for row in rows:
        column = columns.get(_own_name(row))
        if column is not None:
            row = {**row, "value": column}
        out.append(row)
    return Named(out, made, macros)


def _own_name(row: Row) -> str:
    """The name of a row's field without the members and the alternative around it."""
    return str(row.get("field", "")).rpartition(".")[2]


def _fields(rows: Rows) -> dict[str, _Field]:
    """The fields that may have codes, by name; a name is left out if any field of that name has a
    meaning already.
    """
    widths: dict[str, int] = {}
    fields: dict[tuple[str, str, str], int] = {}
    taken = set()
    for row in rows:
        name = _own_name(row)
        place = str(row.get("block", "")), str(row.get("feature", "")), str(row.get("field", ""))
        if not name or row.get("value") or row.get("address"):
            taken.add(name)
        fields[place] = fields.get(place, 0) + int(row["width"])
        widths[name] = 0
    for (*_, full), width in fields.items():
        name = full.rpartition(".")[2]
        widths[name] = min(width, widths[name] or width)
    return {
        name: _Field(_words(name), width)
        for name, width in widths.items()
        if name not in taken and _words(name)
    }


def _words(name: str) -> tuple[str, ...]:
    """The words of a name in capitals.

    >>> _words("alu_opcode"), _words("NpuOpcode"), _words("VTA_MEM_ID")
    (('ALU', 'OPCODE'), ('NPU', 'OPCODE'), ('VTA', 'MEM', 'ID'))
    """
    return tuple(word.upper() for word in WORDS.findall(name))


def _place_of(macro: str, fields: Mapping[str, _Field]) -> tuple[str, str, str] | None:
    """The field whose words are inside a macro's name, the macro's name up to their end, and the
    rest; the field with the most words counts. None if there is no such field or no rest.
    """
    parts = macro.split("_")
    upper = [part.upper() for part in parts]
    best: tuple[int, str, str, str] | None = None
    for field, (words, _) in fields.items():
        size = len(words)
        for at in range(len(parts) - size):
            if tuple(upper[at : at + size]) == words and (best is None or size > best[0]):
                front, name = "_".join(parts[: at + size]), "_".join(parts[at + size :])
                best = size, field, front, name
    if best is None or not best[3]:
        return None
    return best[1:]


def _names(codes: Sequence[_Code], width: int) -> NewCodes:
    """The names of a field's codes by number; none if the macros do not begin alike or cannot be
    its codes.
    """
    fronts = {code.front for code in codes}
    names: NewCodes = {}
    for code in codes:
        if code.name not in names.values():
            names.setdefault(code.number, code.name)
    words = all(name[0].isalpha() for name in names.values())
    if len(fronts) == 1 and words and _are_codes(names, width):
        return dict(sorted(names.items()))
    return {}


def _are_codes(numbers: Collection[int], width: int) -> bool:
    """True if numbers may be the codes of a field of some bits."""
    if len(numbers) < FEWEST or min(numbers) < 0 or max(numbers) >= 2**width:
        return False
    if all(number.bit_count() == 1 for number in numbers):
        return False
    return width <= NARROW or max(numbers) < 2 * len(numbers)


def _enum_of(words: Sequence[str], width: int, enums: Enums) -> str:
    """The only enum whose tag is a field's words and whose numbers may be its codes; for a field
    that is no whole type, the tag may also have words before the field's. "" if there is none or
    there are several.
    """
    found = []
    for tag, names in enums.items():
        said = _words(tag.removesuffix("_t"))
        if width not in WHOLE:
            said = said[-len(words) :]
        if said == tuple(words) and _are_codes(names, width):
            found.append(tag)
    if len(found) == 1:
        return found[0]
    return ""


def _free(name: str, taken: Iterable[str]) -> str:
    """The name, with ``_codes`` appended until it is none of ``taken``."""
    known = set(taken)
    while name in known:
        name += "_codes"
    return name
