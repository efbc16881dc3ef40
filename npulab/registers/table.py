"""The rows of a register map: read, checked, and made into fields.

A word is 32 little-endian bits, bit 0 lowest. A map is a table, one row per run of bits::

    block, offset, register, field, lsb, width, at, value, feature, address, align, evidence, note

``lsb`` and ``width`` may be sums that depend on numbers of a chip (``registers.numbers``). Rows of
one block that have the same field name and a number in ``at`` are pieces of one split field; ``at``
is the bit of the value at which the piece begins. A row without a field name, and each run of bits
without a row, gets an automatic name (``w18_27_2``: word 18, lsb 27, 2 bits; ``r3930_7_1`` if
registers have addresses; ``registers.names`` has the rule), so that all words round-trip.

A table may have more columns: ``access`` (``ro``: only the NPU sets the field; ``start``: a write
to the field starts a unit), and ``bits``, ``count``, ``stride`` and ``buffer``, which
``registers.expansion`` explains.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

from npulab.registers.expansion import SHAPE
from npulab.registers.fields import WORD_BITS, WORD_BYTES, Cells, Enums, Field, NewEnums, Piece, Row
from npulab.registers.meaning import Meaning
from npulab.registers.names import automatic_name, full_names, word_name
from npulab.support.refuse import refuse_if, refusing
from npulab.support.text import one_line

MOST_WORDS = 2**16  # most words of a dense block
COLUMNS = (
    "block",
    "offset",
    "register",
    "field",
    "lsb",
    "width",
    "at",
    "value",
    "feature",
    "address",
    "align",
    "evidence",
    "note",
)
NUMBERS = ("offset", "lsb", "width", "at", "align")
# finds the characters that are not text: control characters, lone surrogates and noncharacters
NO_TEXT = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
# ACCESS is an optional column with two values. READ_ONLY: only the NPU sets the field. START: a
# write to the field starts a unit of the NPU.
ACCESS, READ_ONLY, START = "access", "ro", "start"
REQUIRED = ("field", "lsb", "width")
# the file with the enums of the tables of its folder; NAME.enums.csv has the enums of NAME.csv
# alone
ENUMS = "enums.csv"


def own_enums(path: Path) -> Path:
    """Return the path of the file for the enums of this table alone; the file need not exist."""
    return path.with_name(f"{path.stem}.{ENUMS}")


def enums_beside(path: Path) -> Path | None:
    """Return the file with a table's enums: the table's own file or, if that does not exist, the
    file for all tables of the folder; None if neither exists.
    """
    files = own_enums(path), path.parent / ENUMS
    return next((beside for beside in files if beside.exists() and beside != path), None)


def read_enums(rows: Iterable[Mapping[str, str]]) -> NewEnums:
    """Return the enums in the rows (enum, raw, name) of a table. A key is the name of an enum, a
    value has the names of its codes by raw number; raises as ``add_enum``."""
    out: NewEnums = {}
    for row in rows:
        add_enum(out, row)
    return out


def add_enum(enums: NewEnums, row: Mapping[str, str]) -> None:
    """Add a row (enum, raw, name) to the enums. Raises ValueError for a blank cell, for a ``raw``
    that is no whole number from 0, and for a raw number or a name that the enum has already.
    """
    enum, text = row.get("enum", ""), row.get("name", "")
    try:
        raw = int(row.get("raw") or "", 0)
    except ValueError:
        raw = -1
    names = enums.setdefault(enum, {})
    if raw < 0 or not enum or not text:
        raise ValueError(
            f"got row {dict(row)}, allowed is enum, raw and name, all filled in, raw a "
            "whole number from 0"
        )
    refuse_if(
        raw in names or text in names.values(),
        f"enum {enum}",
        f"raw {raw} or name {text!r} twice",
        "is each raw and each name once",
    )
    names[raw] = text


def line_of(text: str, what: str) -> str:
    """Return a text on one line, with single blanks between its words; raises as ``refuse_odd``."""
    line = " ".join(text.split())
    refuse_odd(line, what)
    return line


def refuse_odd(text: str, what: str) -> None:
    """Raise ValueError if a text has a control character, a lone surrogate or a noncharacter; the
    error names the first of them.
    """
    if odd := NO_TEXT.search(text):
        raise ValueError(f"{what}: got the character U+{ord(odd[0]):04X}, allowed is text")


def plain_row(row: Row) -> Cells:
    """Return the cells of a row that are not blank, in the order of ``COLUMNS``, with numbers as
    int and each text on one line. A blank offset is 0.

    Raises ValueError, with the field and the column, for a number that is malformed; with the
    field, for a text that ``refuse_odd`` refuses.
    """
    out: Cells = {}
    for name in COLUMNS:
        given = row.get(name)
        if given is None or given == "":
            if name == "offset":
                out[name] = 0
            continue
        if type(given) is int and name in NUMBERS:
            out[name] = given
            continue
        text = str(given)
        if not text.isidentifier():
            text = line_of(text, f"field {row.get('field')!r}")
        # rows of ``RegisterMap.fields`` have True or False
        if name == "address":
            text = {"True": "yes", "False": ""}.get(text, text)
        if text and name not in NUMBERS:
            out[name] = text
        elif text or name == "offset":
            try:
                out[name] = int(text or "0", 0)
            except ValueError:
                raise ValueError(
                    f"field {row.get('field')!r}: got {name} {text!r:.60}, allowed is a whole "
                    "number"
                ) from None
    return out


def normal_row(row: Row) -> Cells:
    """Return a row with every column of ``COLUMNS`` and with its numbers as int.

    Raises ValueError for an unknown or missing column, a malformed number, an offset that is no
    multiple of 4, bits outside the word, and an unknown ``access``; the error names the field or
    the column.
    """
    for name in row:
        # a column ``word`` is ignored, because the offset gives the word
        if name not in (*COLUMNS, ACCESS, "word"):
            allowed = ", ".join((*COLUMNS, ACCESS, *SHAPE))
            raise ValueError(f"register map: got column {name!r}, allowed are {allowed}")
    for name in REQUIRED:
        if name not in row:
            raise ValueError(
                f"register map: got no column {name!r}, allowed are rows with this column"
            )
    try:
        out = {**dict.fromkeys(COLUMNS, ""), **dict.fromkeys(NUMBERS), **plain_row(row)}
    except ValueError as error:
        raise ValueError(f"register map, {error}") from None
    where = f"register map, field {out['field']!r}"
    access = str(row.get(ACCESS) or "").strip()
    if access:
        allowed = f"is blank, {READ_ONLY} or {START}"
        refuse_if(access not in (READ_ONLY, START), where, f"access {access!r}", allowed)
        out[ACCESS] = access
    offset, lsb, width = out["offset"], out["lsb"], out["width"]
    if offset % WORD_BYTES or offset < 0:
        allowed = f"is a multiple of {WORD_BYTES} from 0"
        raise ValueError(f"{where}: got offset {offset:#x}, allowed {allowed}")
    refuse_if((out["at"] or 0) < 0, where, f"at {out['at']}", "is at least 0")
    if lsb is None or not width or lsb < 0 or width < 0 or lsb + width > WORD_BITS:
        raise ValueError(
            f"{where} of register {out['register']!r}: got lsb {lsb} width {width}, allowed is "
            "inside bits 0 to 31"
        )
    return out


@dataclass(frozen=True)
class Words:
    """The words of a map, in their order.

    ``registers`` has (block, offset, register) of each word. ``labels`` has the automatic name of
    each word (``w18``), with which the automatic names of its fields begin. ``index`` has the
    number of each word by (block, offset).
    """

    registers: list[tuple[str, int, str]]
    labels: list[str]
    index: Mapping[tuple[str, int], int]

    def of(self, row: Row) -> int:
        """The index of the word of a row."""
        return self.index[row["block"], row["offset"]]

    def register(self, row: Row) -> str:
        """The name of the register of a row."""
        return self.registers[self.of(row)][2]

    def own_name(self, row: Row) -> str:
        """The automatic name of the bits of a row."""
        return automatic_name(self.labels[self.of(row)], row["lsb"], row["width"])

    def name_of(self, row: Row) -> str:
        """The name of the field of a row: its own name or, if it has none, the automatic name."""
        return row["field"] or self.own_name(row)


def words_of(
    rows: Sequence[Row],
    dense: bool,
    sparse: Collection[str] = (),
    by_address: Collection[str] = (),
) -> Words:
    """Return the words of rows as ``normal_row`` gives them.

    If ``dense``, a block has every word from offset 0 to its last register. Blocks in ``sparse``,
    and all blocks if not ``dense``, have a word for each register only. Automatic names of blocks
    in ``by_address`` have the offset, those of other blocks the number of the word.

    Raises ValueError for two register names at one offset, and for a dense block of more than about
    ``MOST_WORDS`` words.
    """
    names: dict[tuple[str, int], str] = {}
    offsets: dict[str, set[int]] = {}
    for row in rows:
        block, offset, name = row["block"], row["offset"], row["register"]
        known = names.get((block, offset), "")
        if name and known and name != known:
            raise ValueError(
                f"register map, block {block!r} offset {offset:#x}: got register names {known!r} "
                f"and {name!r}, allowed is one name"
            )
        names[block, offset] = name or known
        offsets.setdefault(block, set()).add(offset)
    places = []
    for block, some in offsets.items():
        every: Iterable[int] = sorted(some)
        if dense and block not in sparse:
            last, most = max(some), WORD_BYTES * MOST_WORDS
            if last > most:
                raise ValueError(
                    f"register map, block {block!r}: got offset {last:#x}, allowed is up to "
                    f"{most:#x} from the block's start, or dense=False"
                )
            every = range(0, last + WORD_BYTES, WORD_BYTES)
        places += [(block, offset) for offset in every]
    labels = [word_name(offset, block in by_address) for block, offset in places]
    registers = [
        (*place, names.get(place) or label) for place, label in zip(places, labels, strict=True)
    ]
    return Words(registers, labels, {place: i for i, place in enumerate(places)})


def fields_of(rows: Sequence[Row], words: Words, enums: Enums) -> tuple[Field, ...]:
    """Return the fields of rows, and a field with an automatic name for each run of bits without a
    row; the fields are sorted by word and bit.

    Raises ValueError, with both fields, the register and the bit, if two fields overlap. Raises
    ValueError or LookupError, with register and field, for a field whose rows are malformed or
    contradict each other.
    """
    grouped: dict[tuple[Any, ...], list[Row]] = {}
    splits = {(row["block"], row["field"]) for row in rows if row["at"] is not None}
    for n, row in enumerate(rows):
        key: tuple[Any, ...] = row["block"], row["field"]
        if not row["field"] or key not in splits:
            key = (n,)
        elif row["at"] is None:
            raise ValueError(
                f"register map, register {words.register(row)} field {row['field']}: got a piece "
                "with column 'at' blank, allowed is a number, because other pieces of the field "
                "have one"
            )
        grouped.setdefault(key, []).append(row)
    fields = [_field(group, words, enums) for group in grouped.values()]
    for word, lsb, width in _unowned(rows, words):
        block, _, register = words.registers[word]
        name = automatic_name(words.labels[word], lsb, width)
        pieces = (Piece(word, lsb, width, 0),)
        fields.append(Field(block, register, name, pieces, automatic=True, declared=False))
    return tuple(sorted(fields, key=lambda item: min(item.pieces)[:2]))


def _field(group: Sequence[Row], words: Words, enums: Enums) -> Field:
    """Return the field of some rows, one row for each piece. The row with the lowest ``at`` states
    the value, the evidence and everything else but the places of the other pieces.
    """
    rows = sorted(group, key=lambda row: row["at"] or 0)
    pieces = [Piece(words.of(row), row["lsb"], row["width"], row["at"] or 0) for row in rows]
    first = rows[0]
    register, name = words.register(first), words.name_of(first)
    where = f"register map, register {register} field {name}"
    for a, b in pairwise(pieces):
        if a.at + a.width > b.at:
            raise ValueError(
                f"{where}: got pieces at bit {a.at} (width {a.width}) and bit {b.at} of the "
                "field's value, allowed are pieces that do not overlap"
            )
    width = pieces[-1].at + pieces[-1].width
    with refusing(where):
        meaning = Meaning.parse(first["value"])
        meaning.refuse_width(width)
    if meaning.enum and meaning.enum not in enums:
        known = one_line(", ".join(enums)) or "none"
        raise LookupError(f"{where}: got enum {meaning.enum!r}, known are {known}")
    _refuse_later(where, first, rows)
    refuse_if(width > 64, where, f"{width} bits", "is at most 64")
    address = first["address"]
    refuse_if(address not in ("", "yes"), where, f"address {address!r}", "is blank or yes")
    return Field(
        first["block"],
        register,
        name,
        tuple(pieces),
        meaning,
        tuple(enums.get(meaning.enum, {}).items()),
        address == "yes",
        first["align"] or 0,
        first["evidence"] or "unknown",
        first["note"],
        automatic=len(pieces) == 1 and name == words.own_name(first),
        read_only=first.get(ACCESS) == READ_ONLY,
        starts=first.get(ACCESS) == START,
    )


def _refuse_later(where: str, first: Row, group: Sequence[Row]) -> None:
    """Raise ValueError if a piece other than the first states ``value``, ``address`` or ``align``,
    and the first states something else.
    """
    for column in ("value", "address", "align"):
        for row in group:
            if row[column] not in ("", None, first[column]):
                raise ValueError(
                    f"{where}: got {column} {row[column]!r} on a later piece, allowed is blank or "
                    f"the {column} of its first piece ({first[column] or 'blank'})"
                )


def _unowned(rows: Iterable[Row], words: Words) -> Iterator[tuple[int, int, int]]:
    """Yield (word, lsb, width) of each run of bits without a row, ``word`` as its number in the
    map; raises ValueError if two rows have a bit in common.
    """
    by_word: list[list[Row]] = [[] for _ in words.registers]
    for row in rows:
        by_word[words.of(row)].append(row)
    for word, inside in enumerate(by_word):
        end, owner = 0, ""
        for row in sorted(inside, key=itemgetter("lsb")):
            lsb, name = row["lsb"], words.name_of(row)
            if lsb < end:
                raise ValueError(
                    f"register map: fields {owner} and {name} overlap at register "
                    f"{words.register(row)} bit {lsb}"
                )
            if lsb > end:
                yield word, end, lsb - end
            end, owner = lsb + row["width"], name
        if end < WORD_BITS:
            yield word, end, WORD_BITS - end


def spellings_of(fields: Sequence[Field]) -> dict[str, Field]:
    """Return each field by its spellings that no other field has: ``name``, ``register.name``,
    ``block.register.name``, ``block.name``, and the part of the name after its last dot.

    Raises ValueError if two fields of one register have the same name.
    """
    spellings: dict[str, list[Field]] = {}
    for item in fields:
        alone, in_register, _, full = full_names(item.block, item.register, item.name)
        for name in (alone, in_register, full):
            spellings.setdefault(name, []).append(item)
    out = {name: items[0] for name, items in spellings.items() if len(items) == 1}
    lost = [item for item in fields if item.full_name not in out]
    if lost:
        _refuse_same_names(lost)
    _add_single(out, [item.name.rpartition(".")[2] for item in fields], fields)
    known = {*spellings, *out}
    free = [item for item in fields if item.block and f"{item.block}.{item.name}" not in known]
    _add_single(out, [f"{item.block}.{item.name}" for item in free], free)
    return out


def _refuse_same_names(fields: Sequence[Field]) -> None:
    """Raise ValueError for fields that have no spelling of their own, because another field of the
    same register has the same name."""
    by_place = {item.name for item in fields if item.automatic}
    for item in fields:
        if not item.automatic and item.name in by_place:
            raise ValueError(
                f"register map: field {item.name} of register {item.register} of block "
                f"{item.block!r} has bits {item.bits}, allowed is another name: this is the "
                "automatic name of other bits of the register, which have no name"
            )
    raise ValueError(
        f"register map: field {fields[0].name} stands twice in register {fields[0].register} "
        f"of block {fields[0].block!r}; the pieces of a split field need a number in column 'at'"
    )


def _add_single(out: dict[str, Field], names: Sequence[str], fields: Sequence[Field]) -> None:
    """Add each field by its name in ``names``, which has a name for each field, if no other field
    has that name."""
    count = Counter(names)
    for name, item in zip(names, fields, strict=True):
        if count[name] == 1:
            out[name] = item
