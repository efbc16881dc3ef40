"""The rows of a register map: read, checked, and made into fields.

A word is 32 little-endian bits, bit 0 lowest.  A map is a table, one row per run of bits::

    block, offset, register, field, lsb, width, at, value, feature, address, align, evidence, note

Rows of one block that share a field name and fill in ``at`` are pieces of one split field; ``at``
is the place of the piece inside the value.  A row without a field name, and every bit without a
row, gets an automatic name (``w18_27_2``: word 18, lsb 27, 2 bits; ``r3930_7_1`` where registers
have addresses; ``registers.names`` has the rule), so that all words round-trip.

Columns that a table may have besides: ``access`` (``ro`` for what only the NPU sets), and ``bits``,
``count`` and ``stride``, of which ``registers.expansion`` tells.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from npulab.registers.fields import WORD_BITS, WORD_BYTES, Field, Piece
from npulab.registers.meaning import Meaning
from npulab.registers.names import automatic_name, word_name
from npulab.support.refuse import refuse_if, refusing
from npulab.support.text import one_line

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
# an optional column: what the NPU alone sets, and what starts a unit when it is written
ACCESS, READ_ONLY, START = "access", "ro", "start"
REQUIRED = ("field", "lsb", "width")
ENUMS = "enums.csv"  # beside a table; of several in a folder each may have its own, TABLE.enums.csv


def own_enums(path: Path) -> Path:
    """The file that holds the enums of this table alone."""
    return path.with_name(f"{path.stem}.{ENUMS}")


def enums_beside(path: Path) -> Path | None:
    """The file of a table's enums: its own one, else that of the folder; None where there is
    none."""
    files = own_enums(path), path.parent / ENUMS
    return next((beside for beside in files if beside.exists() and beside != path), None)


def read_enums(rows: Iterable[Mapping[str, str]]) -> dict[str, dict[int, str]]:
    """Names by raw of each enum in a table (enum, raw, name)."""
    out: dict[str, dict[int, str]] = {}
    for row in rows:
        add_enum(out, row)
    return out


def add_enum(enums: dict[str, dict[int, str]], row: Mapping[str, str]) -> None:
    """Add a row of a table of enums; raises ValueError for one that is none."""
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
    """A text on one line; raises ValueError naming it for a character that no file of text
    holds.
    """
    line = " ".join(text.split())
    refuse_odd(line, what)
    return line


def refuse_odd(text: str, what: str) -> None:
    """Raises ValueError naming it for a character that no file of text holds."""
    if odd := NO_TEXT.search(text):
        raise ValueError(f"{what}: got the character U+{ord(odd[0]):04X}, allowed is text")


def plain_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """What is filled in, in the order of the columns, numbers as int, texts on one line.  Raises
    ValueError naming field and column."""
    out: dict[str, Any] = {}
    for name, given in zip(COLUMNS, map(row.get, COLUMNS), strict=True):
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
        try:
            if text or name == "offset":
                if name in NUMBERS:
                    out[name] = int(text or "0", 0)
                else:
                    out[name] = text
        except ValueError:
            raise ValueError(
                f"field {row.get('field')!r}: got {name} {text!r:.60}, allowed is a whole number"
            ) from None
    return out


def normal_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with every column, its numbers as int; raises ValueError naming the field and the
    column."""
    unknown = [
        name for name in row if name not in (*COLUMNS, ACCESS, "word")
    ]  # word follows from the offset
    missing = [name for name in REQUIRED if name not in row]
    if unknown or missing:
        raise ValueError(
            f"register map: got column {unknown[0]!r}, allowed are {', '.join(COLUMNS)}"
            if unknown
            else f"register map: column {missing[0]!r} is missing"
        )
    try:
        out = {**dict.fromkeys(COLUMNS, ""), **dict.fromkeys(NUMBERS), **plain_row(row)}
    except ValueError as error:
        raise ValueError(f"register map, {error}") from None
    access = str(row.get(ACCESS) or "").strip()
    if access not in ("", READ_ONLY, START):
        raise ValueError(
            f"register map, field {out['field']!r}: got access {access!r}, allowed is "
            f"blank, {READ_ONLY} or {START}"
        )
    if access:
        out[ACCESS] = access
    if out["offset"] % WORD_BYTES or out["offset"] < 0:
        raise ValueError(
            f"register map, field {out['field']!r}: got offset {out['offset']:#x}, "
            f"allowed is a multiple of {WORD_BYTES} from 0"
        )
    if (out["at"] or 0) < 0:
        raise ValueError(
            f"register map, field {out['field']!r}: got at {out['at']}, allowed is at least 0"
        )
    if (
        out["lsb"] is None
        or not out["width"]
        or out["lsb"] < 0
        or out["width"] < 0
        or out["lsb"] + out["width"] > WORD_BITS
    ):
        raise ValueError(
            f"register map, field {out['field']!r} of register {out['register']!r}: got lsb "
            f"{out['lsb']} width {out['width']}, allowed is inside bits 0 to 31"
        )
    return out


def registers_of(
    rows: Sequence[Mapping[str, Any]],
    dense: bool,
    sparse: Collection[str] = (),
    by_address: Collection[str] = (),
) -> tuple[list[tuple[str, int, str]], list[str], dict[tuple[str, int], int]]:
    """The (block, offset, register) of each word, its label in automatic names, and the word's
    index by (block, offset); blocks that are ``sparse`` have no words between their registers,
    those
    ``by_address`` are labelled so."""
    names: dict[tuple[str, int], str] = {}
    for row in rows:
        place = row["block"], row["offset"]
        if row["register"] and names.get(place, row["register"]) != row["register"]:
            raise ValueError(
                f"register map, block {place[0]!r} offset {place[1]:#x}: got register names "
                f"{names[place]!r} and {row['register']!r}"
            )
        names[place] = row["register"] or names.get(place, "")
    places = []
    for block in dict.fromkeys(block for block, _ in names):
        offsets = sorted(offset for b, offset in names if b == block)
        if dense and block not in sparse and offsets[-1] > WORD_BYTES * MOST_WORDS:
            raise ValueError(
                f"register map, block {block!r}: got offset {offsets[-1]:#x}, allowed is up to "
                f"{WORD_BYTES * MOST_WORDS:#x} from the block's start, or dense=False"
            )
        if dense and block not in sparse:
            offsets = list(range(0, offsets[-1] + WORD_BYTES, WORD_BYTES))
        places += [(block, offset) for offset in offsets]
    labels = [word_name(offset, block in by_address) for block, offset in places]
    registers = [
        (*place, names.get(place) or label) for place, label in zip(places, labels, strict=True)
    ]
    return registers, labels, {place: i for i, place in enumerate(places)}


def fields_of(
    rows: Sequence[Mapping[str, Any]],
    registers: Sequence[tuple[str, int, str]],
    labels: Sequence[str],
    index: Mapping[tuple[str, int], int],
    enums: Mapping[str, Mapping[int, str]],
) -> tuple[Field, ...]:
    """The fields of rows, and one with an automatic name for each run of bits without a row.

    Raises ValueError if fields overlap, naming both, the register and the bit.
    """
    owner: list[list[str]] = [[""] * WORD_BITS for _ in registers]
    grouped: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    splits = {
        (row["block"], row["field"]) for row in rows if row["field"] and row["at"] is not None
    }
    for n, row in enumerate(rows):
        word = index[row["block"], row["offset"]]
        name = row["field"] or automatic_name(labels[word], row["lsb"], row["width"])
        for bit in range(row["lsb"], row["lsb"] + row["width"]):
            if owner[word][bit]:
                raise ValueError(
                    f"register map: fields {owner[word][bit]} and {name} overlap at register "
                    f"{registers[word][2]} bit {bit}"
                )
            owner[word][bit] = name
        split = (row["block"], row["field"]) in splits
        if split and row["at"] is None:
            raise ValueError(
                f"register map, register {registers[word][2]} field {name}: a piece without its "
                "at, other "
                "pieces of the field have one"
            )
        grouped.setdefault((row["block"], row["field"]) if split else (n,), []).append(row)
    fields = [_field(group, registers, labels, index, enums) for group in grouped.values()]
    for word, bits in enumerate(owner):
        for lsb, width in _runs(bits):
            fields.append(
                Field(
                    registers[word][0],
                    registers[word][2],
                    automatic_name(labels[word], lsb, width),
                    (Piece(word, lsb, width, 0),),
                    automatic=True,
                    declared=False,
                )
            )
    return tuple(sorted(fields, key=lambda item: min(item.pieces)[:2]))


def _field(
    group: Sequence[Mapping[str, Any]],
    registers: Sequence[tuple[str, int, str]],
    labels: Sequence[str],
    index: Mapping[tuple[str, int], int],
    enums: Mapping[str, Mapping[int, str]],
) -> Field:
    pieces = tuple(
        sorted(
            (
                Piece(index[row["block"], row["offset"]], row["lsb"], row["width"], row["at"] or 0)
                for row in group
            ),
            key=lambda piece: piece.at,
        )
    )
    first = min(group, key=lambda row: row["at"] or 0)
    word = pieces[0].word
    name = first["field"] or automatic_name(labels[word], first["lsb"], first["width"])
    where = f"register map, register {registers[word][2]} field {name}"
    for a, b in pairwise(pieces):
        if a.at + a.width > b.at:
            raise ValueError(f"{where}: its pieces at {a.at} (width {a.width}) and {b.at} overlap")
    width = max(piece.at + piece.width for piece in pieces)
    with refusing(where):
        meaning = Meaning.parse(first["value"])
        meaning.refuse_width(width)
    if meaning.enum and meaning.enum not in enums:
        raise LookupError(
            f"{where}: got enum {meaning.enum!r}, known are {one_line(', '.join(enums)) or 'none'}"
        )
    for name_of in ("value", "address", "align"):
        other = [row[name_of] for row in group if row[name_of] not in ("", None, first[name_of])]
        if other:
            raise ValueError(
                f"{where}: got {name_of} {other[0]!r} on a later piece, allowed is what its first "
                "piece "
                f"says ({first[name_of] or 'nothing'})"
            )
    refuse_if(width > 64, where, f"{width} bits", "is at most 64")
    if first["address"] not in ("", "yes"):
        raise ValueError(f"{where}: got address {first['address']!r}, allowed is blank or yes")
    names = tuple(enums.get(meaning.enum, {}).items())
    unnamed = len(pieces) == 1 and name == automatic_name(
        labels[word], first["lsb"], first["width"]
    )
    return Field(
        first["block"],
        registers[word][2],
        name,
        pieces,
        meaning,
        names,
        first["address"] == "yes",
        first["align"] or 0,
        first["evidence"] or "unknown",
        first["note"],
        automatic=unnamed,
        read_only=first.get(ACCESS) == READ_ONLY,
        starts=first.get(ACCESS) == START,
    )


def _runs(bits: Sequence[str]) -> Iterator[tuple[int, int]]:
    """(lsb, width) of each run of bits nobody owns."""
    start = None
    for bit, name in enumerate([*bits, "end"]):
        if not name and start is None:
            start = bit
        elif name and start is not None:
            yield start, bit - start
            start = None


def spellings_of(fields: Sequence[Field]) -> dict[str, Field]:
    """Every unambiguous spelling of each field: name, register.name, block.register.name; of a name
    with dots what is behind the last, too, and block.name, if no other field is called so."""
    spellings: dict[str, list[Field]] = {}
    for item in fields:
        for name in (
            item.name,
            f"{item.register}.{item.name}",
            f"{item.block}.{item.register}.{item.name}",
        ):
            spellings.setdefault(name, []).append(item)
    out = {name: items[0] for name, items in spellings.items() if len(items) == 1}
    lost = [item for item in fields if f"{item.block}.{item.register}.{item.name}" not in out]
    by_place = {item.name for item in lost if item.automatic}
    given = next((item for item in lost if not item.automatic and item.name in by_place), None)
    if given is not None:
        raise ValueError(
            f"register map: field {given.name} of register {given.register} of block "
            f"{given.block!r} has "
            f"bits {given.bits}, allowed is another name: other bits of the register have none and "
            "are "
            "called so by their place"
        )
    if lost:
        raise ValueError(
            f"register map: field {lost[0].name} stands twice in register {lost[0].register} "
            f"of block {lost[0].block!r}; pieces of one field fill in the column at"
        )
    _add_single(out, [item.name.rpartition(".")[2] for item in fields], fields)
    in_block = [f"{item.block}.{item.name}" for item in fields]
    known = {*spellings, *out}
    free = [
        (name, item)
        for name, item in zip(in_block, fields, strict=True)
        if item.block and name not in known
    ]
    _add_single(out, [name for name, _ in free], [item for _, item in free])
    return out


def _add_single(out: dict[str, Field], names: Sequence[str], fields: Sequence[Field]) -> None:
    """Add each field by its name, if no other one has it."""
    count = Counter(names)
    for name, item in zip(names, fields, strict=True):
        if count[name] == 1:
            out[name] = item
