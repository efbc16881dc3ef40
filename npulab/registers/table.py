"""The rows of a register map: read, checked, and made into fields.

A word is 32 little-endian bits, bit 0 lowest. A map is a table, one row per run of bits::

    block, offset, register, field, lsb, width, at, value, feature, address, align, evidence, note

Rows of one block that share a field name and fill in ``at`` are pieces of one split field; ``at``
is the place of the piece inside the value. A row without a field name, and every bit without a
row, gets an automatic name (``w18_27_2``: word 18, lsb 27, 2 bits; ``r3930_7_1`` where registers
have addresses; ``registers.names`` has the rule), so that all words round-trip.

Columns that a table may have besides: ``access`` (``ro`` for what only the NPU sets), and ``bits``,
``count`` and ``stride``, which ``registers.expansion`` explains.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from npulab.registers.fields import WORD_BITS, WORD_BYTES, Field, Piece
from npulab.registers.meaning import Meaning
from npulab.registers.names import Row, automatic_name, word_name
from npulab.support.refuse import refuse_if, refusing
from npulab.support.text import one_line

Enums = Mapping[str, Mapping[int, str]]  # names by raw of each enum

MOST_WORDS = 2**16  # of a dense block
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
NO_TEXT = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")  # controls, halves of pairs
# an optional column: fields that only the NPU sets, and fields that start a unit when written
ACCESS, READ_ONLY, START = "access", "ro", "start"
REQUIRED = ("field", "lsb", "width")
ENUMS = "enums.csv"  # next to a table; each of several tables may have its own, TABLE.enums.csv


def own_enums(path: Path) -> Path:
    """The file that holds the enums of this table alone."""
    return path.with_name(f"{path.stem}.{ENUMS}")


def enums_beside(path: Path) -> Path | None:
    """The file of a table's enums: its own file, else that of the folder; None if there is
    neither."""
    files = own_enums(path), path.parent / ENUMS
    return next((beside for beside in files if beside.exists() and beside != path), None)


def read_enums(rows: Iterable[Mapping[str, str]]) -> dict[str, dict[int, str]]:
    """Names by raw of each enum in a table (enum, raw, name)."""
    out: dict[str, dict[int, str]] = {}
    for row in rows:
        add_enum(out, row)
    return out


def add_enum(enums: dict[str, dict[int, str]], row: Mapping[str, str]) -> None:
    """Add a row of a table of enums; raises ValueError for a row that is not a name of an enum."""
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
    """Return a text on one line; raises as ``refuse_odd``."""
    line = " ".join(text.split())
    refuse_odd(line, what)
    return line


def refuse_odd(text: str, what: str) -> None:
    """Raise ValueError that names a character that no file of text holds."""
    if odd := NO_TEXT.search(text):
        raise ValueError(f"{what}: got the character U+{ord(odd[0]):04X}, allowed is text")


def plain_row(row: Row) -> dict[str, Any]:
    """Return the columns that are filled in, in order, numbers as int, texts on one line.

    Raises ValueError that names field and column.
    """
    out: dict[str, Any] = {}
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


def normal_row(row: Row) -> dict[str, Any]:
    """Return a row with every column, its numbers as int; raises ValueError that names the field
    and the column."""
    for name in row:
        # the column word follows from the offset
        if name not in (*COLUMNS, ACCESS, "word"):
            raise ValueError(f"register map: got column {name!r}, allowed are {', '.join(COLUMNS)}")
    for name in REQUIRED:
        if name not in row:
            raise ValueError(f"register map: column {name!r} is missing")
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
    """The words of a map: (block, offset, register) of each, its label in automatic names, and its
    index by (block, offset)."""

    registers: list[tuple[str, int, str]]
    labels: list[str]
    index: Mapping[tuple[str, int], int]

    def of(self, row: Row) -> int:
        """The index of the word of a row."""
        return self.index[row["block"], row["offset"]]

    def name_of(self, row: Row) -> str:
        """The name of the field of a row, automatic if it has none."""
        return row["field"] or automatic_name(self.labels[self.of(row)], row["lsb"], row["width"])


def words_of(
    rows: Sequence[Row],
    dense: bool,
    sparse: Collection[str] = (),
    by_address: Collection[str] = (),
) -> Words:
    """Return the words of normal rows.

    Blocks that are ``sparse`` have no words between their registers; the labels of blocks
    ``by_address`` have the offset.
    """
    names: dict[tuple[str, int], str] = {}
    offsets: dict[str, set[int]] = {}
    for row in rows:
        block, offset, name = row["block"], row["offset"], row["register"]
        known = names.get((block, offset), "")
        if name and known and name != known:
            raise ValueError(
                f"register map, block {block!r} offset {offset:#x}: got register names {known!r} "
                f"and {name!r}"
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
    row.

    Raises ValueError if fields overlap, with both fields, the register and the bit.
    """
    owner = [[""] * WORD_BITS for _ in words.registers]
    grouped: dict[tuple[Any, ...], list[Row]] = {}
    splits = {
        (row["block"], row["field"]) for row in rows if row["field"] and row["at"] is not None
    }
    for n, row in enumerate(rows):
        word, name = words.of(row), words.name_of(row)
        register = words.registers[word][2]
        for bit in range(row["lsb"], row["lsb"] + row["width"]):
            if owner[word][bit]:
                raise ValueError(
                    f"register map: fields {owner[word][bit]} and {name} overlap at register "
                    f"{register} bit {bit}"
                )
            owner[word][bit] = name
        key: tuple[Any, ...] = row["block"], row["field"]
        if key not in splits:
            key = (n,)
        elif row["at"] is None:
            raise ValueError(
                f"register map, register {register} field {name}: a piece without its at, other "
                "pieces of the field have one"
            )
        grouped.setdefault(key, []).append(row)
    fields = [_field(group, words, enums) for group in grouped.values()]
    for word, bits in enumerate(owner):
        block, _, register = words.registers[word]
        for lsb, width in _unowned(bits):
            name = automatic_name(words.labels[word], lsb, width)
            pieces = (Piece(word, lsb, width, 0),)
            fields.append(Field(block, register, name, pieces, automatic=True, declared=False))
    return tuple(sorted(fields, key=lambda item: min(item.pieces)[:2]))


def _field(group: Sequence[Row], words: Words, enums: Enums) -> Field:
    """The field of the rows of its pieces; its first piece says all but the place of the others."""
    pieces = [Piece(words.of(row), row["lsb"], row["width"], row["at"] or 0) for row in group]
    pieces.sort(key=lambda piece: piece.at)
    first = min(group, key=lambda row: row["at"] or 0)
    register, name = words.registers[pieces[0].word][2], words.name_of(first)
    where = f"register map, register {register} field {name}"
    for a, b in pairwise(pieces):
        if a.at + a.width > b.at:
            raise ValueError(f"{where}: its pieces at {a.at} (width {a.width}) and {b.at} overlap")
    width = max(piece.at + piece.width for piece in pieces)
    with refusing(where):
        meaning = Meaning.parse(first["value"])
        meaning.refuse_width(width)
    if meaning.enum and meaning.enum not in enums:
        known = one_line(", ".join(enums)) or "none"
        raise LookupError(f"{where}: got enum {meaning.enum!r}, known are {known}")
    _refuse_later(where, first, group)
    refuse_if(width > 64, where, f"{width} bits", "is at most 64")
    if first["address"] not in ("", "yes"):
        raise ValueError(f"{where}: got address {first['address']!r}, allowed is blank or yes")
    return Field(
        first["block"],
        register,
        name,
        tuple(pieces),
        meaning,
        tuple(enums.get(meaning.enum, {}).items()),
        first["address"] == "yes",
        first["align"] or 0,
        first["evidence"] or "unknown",
        first["note"],
        automatic=len(pieces) == 1 and name == words.name_of({**first, "field": ""}),
        read_only=first.get(ACCESS) == READ_ONLY,
        starts=first.get(ACCESS) == START,
    )


def _refuse_later(where: str, first: Row, group: Sequence[Row]) -> None:
    """Raise ValueError if a later piece says something else than the first piece."""
    for column in ("value", "address", "align"):
        for row in group:
            if row[column] not in ("", None, first[column]):
                raise ValueError(
                    f"{where}: got {column} {row[column]!r} on a later piece, allowed is what its "
                    f"first piece says ({first[column] or 'nothing'})"
                )


def _unowned(bits: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield (lsb, width) of each run of bits that no field owns."""
    lsb = 0
    for owned, run in groupby(bits, bool):
        width = len([*run])
        if not owned:
            yield lsb, width
        lsb += width


def spellings_of(fields: Sequence[Field]) -> dict[str, Field]:
    """Return every unambiguous spelling of each field: name, register.name, block.register.name.

    If no other field is called so, also the part of the name after its last dot, and block.name.
    """
    spellings: dict[str, list[Field]] = {}
    for item in fields:
        register = f"{item.register}.{item.name}"
        for name in (item.name, register, f"{item.block}.{register}"):
            spellings.setdefault(name, []).append(item)
    out = {name: items[0] for name, items in spellings.items() if len(items) == 1}
    lost = [item for item in fields if f"{item.block}.{item.register}.{item.name}" not in out]
    if lost:
        _refuse_same_names(lost)
    _add_single(out, [item.name.rpartition(".")[2] for item in fields], fields)
    known = {*spellings, *out}
    free = [item for item in fields if item.block and f"{item.block}.{item.name}" not in known]
    _add_single(out, [f"{item.block}.{item.name}" for item in free], free)
    return out


def _refuse_same_names(fields: Sequence[Field]) -> None:
    """Raise ValueError for fields that share a register and a name."""
    by_place = {item.name for item in fields if item.automatic}
    for item in fields:
        if not item.automatic and item.name in by_place:
            raise ValueError(
                f"register map: field {item.name} of register {item.register} of block "
                f"{item.block!r} has bits {item.bits}, allowed is another name: other bits of the "
                "register have none and are called so by their place"
            )
    raise ValueError(
        f"register map: field {fields[0].name} stands twice in register {fields[0].register} "
        f"of block {fields[0].block!r}; pieces of one field fill in the column at"
    )


def _add_single(out: dict[str, Field], names: Sequence[str], fields: Sequence[Field]) -> None:
    """Add each field by its name, if no other field has that name."""
    count = Counter(names)
    for name, item in zip(names, fields, strict=True):
        if count[name] == 1:
            out[name] = item
