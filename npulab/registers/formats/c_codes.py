"""The names of codes that a C header gives next to its structs. They are macros whose names contain
the name of a field, or an enum whose tag ends in the name of a field.

``#define NPU_OPCODE_LOAD 0`` and ``#define NPU_OPCODE_STORE 1`` name the codes of a bit-field
``opcode``. If the header also has a bit-field ``npu_opcode``, they name the codes of that field,
because the macros' names contain its longer name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from npulab.registers.fields import Cells, Enums, NewCodes, NewEnums, Row

Rows = Sequence[Cells]

FEWEST = 2  # fewer macros are not taken as the codes of a field
# The widths of whole types of C, in bits. A field of such a width may be anything of a program (a
# number, a size, flags), so the tag of its enum must be its name exactly.
WHOLE = (8, 16, 32, 64)
# A field of at most so many bits may have any codes. In a wider field, the highest code is below
# twice the number of names.
NARROW = 8
# finds the words of a name, which end at an underscore, before a capital letter and at a digit
WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


class Named(NamedTuple):
    """``rows`` of structs, some of them with an enum; ``enums`` has the enums that were made of
    macros, and ``macros`` the names of these macros.
    """

    rows: Rows
    enums: NewEnums
    macros: set[str]


class _Field(NamedTuple):
    """A name of fields that may have codes: its ``words`` in capitals, and the ``width`` in bits of
    the narrowest field of this name.
    """

    words: tuple[str, ...]
    width: int


class _Code(NamedTuple):
    """A macro whose name contains the words of a field, and its ``number``. ``front`` is the
    macro's name up to and with the field's words, ``name`` what follows, the name of the code.
    """

    front: str
    name: str
    number: int
    macro: str


def with_codes(rows: Rows, numbers: Mapping[str, int], enums: Enums) -> Named:
    """Return the rows of structs; a field whose codes have names in ``numbers`` or ``enums`` gets
    an enum.

    ``numbers`` has the number of each macro that nothing else explains. The macros of a field must
    be at least two, have the same text up to the field's name, and fit into the field. If two
    macros have the same number, the first counts. Numbers that all have exactly one bit set are not
    codes, because they may be flags. ``enums`` has the enums of the header; one of them is used
    only if the field has no such macros.
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
    """Return the name of a row's field without the names of the members that contain it."""
    return str(row.get("field", "")).rpartition(".")[2]


def _fields(rows: Rows) -> dict[str, _Field]:
    """Return the fields that may have codes, by name. A name is left out if any field of this name
    is an address or has a value column already.
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
    """Return the words of a name, in capitals.

    >>> _words("alu_opcode"), _words("NpuOpcode"), _words("VTA_MEM_ID")
    (('ALU', 'OPCODE'), ('NPU', 'OPCODE'), ('VTA', 'MEM', 'ID'))
    """
    return tuple(word.upper() for word in WORDS.findall(name))


def _place_of(macro: str, fields: Mapping[str, _Field]) -> tuple[str, str, str] | None:
    """Return (field, front, name) for a macro, as ``_Code`` explains: the field is the one with the
    most words that the macro's name contains. None if there is no such field, or if nothing follows
    its words.
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
    """Return the names of a field's codes by number; an empty dict if the macros have different
    fronts, if a name does not begin with a letter, or if the numbers cannot be codes of the field.
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
    """True if numbers may be the codes of a field of ``width`` bits."""
    if len(numbers) < FEWEST or min(numbers) < 0 or max(numbers) >= 2**width:
        return False
    if all(number.bit_count() == 1 for number in numbers):
        return False
    return width <= NARROW or max(numbers) < 2 * len(numbers)


def _enum_of(words: Sequence[str], width: int, enums: Enums) -> str:
    """Return the only enum whose tag consists of a field's words and whose numbers may be codes of
    the field; "" if there is none, or if there are several. If the field's width is not that of a
    type of C (``WHOLE``), the tag may have other words in front.
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
    """Return the name; ``_codes`` is appended until it is not in ``taken``."""
    known = set(taken)
    while name in known:
        name += "_codes"
    return name
