"""Writer of C: structs of bit-fields, and macros of offsets, shifts and masks. ``read_c`` reads the
same table from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from npulab.registers.fields import WORD_BITS, WORD_BYTES, Cells, Codes, Row
from npulab.registers.formats.c_comments import annotation, licence_comment, note_comment
from npulab.registers.formats.c_names import c_name, c_names
from npulab.registers.formats.naming import Identifiers
from npulab.registers.formats.tables import RegisterTable, features_in
from npulab.registers.names import in_register, name_of, run_of, word_name
from npulab.registers.table import COLUMNS
from npulab.support.refuse import refuse_if

MOST_WORDS = 2**12  # a block that spans more words becomes macros, not a struct
INT_MOST = 2**31 - 1  # the largest int of C
# The columns that an annotation may state for a field.
OWN = tuple(
    name for name in COLUMNS if name not in ("block", "offset", "register", "field", "lsb", "width")
)
SHIFT, MASK = "__SHIFT", "__MASK"


def c_text(table: RegisterTable) -> str:
    """Return a header with a struct of bit-fields for each block. A struct begins at the block's
    first register.

    If rows of a block have features, the block has a struct for each feature; ``of_chip`` makes the
    map of one chip. Pieces of a split field are members ``NAME_AT``. Bits without a row are members
    without a name; words without a row are arrays ``reserved_...``. A block that spans more than
    4096 words becomes macros. Raises as ``check``.
    """
    check(table)
    names, macros = c_names(), c_names()
    lines = [*head(table), *_said(table)]
    lines += _enums(table, names, macros)
    for block, rows in table.blocks.items():
        offsets = [row["offset"] for row in rows]
        # with registers so far apart, a struct would mostly have reserved words
        if (max(offsets) - min(offsets)) // WORD_BYTES >= MOST_WORDS:
            name = c_name(block or "registers")
            lines += [
                f"/* {name}: more than {MOST_WORDS} words from its first register to its last */",
                *_macros(block, rows, macros, table),
                "",
            ]
            continue
        for variant in features_in(rows) or [""]:
            kept = [row for row in rows if row.get("feature", variant) == variant]
            lines += _struct(block, variant, kept, min(offsets), names, table.by_address)
    return "\n".join([*lines, "#endif", ""])


def macros_text(table: RegisterTable) -> str:
    """Return a header of macros.

    ``REG_BLOCK_REGISTER`` is a register's byte offset. ``BLOCK_REGISTER_FIELD__SHIFT`` is a field's
    lowest bit, ``BLOCK_REGISTER_FIELD__MASK`` its mask in the word; an automatic name, which
    contains the register, follows the block, as in ``GEMM_w3_0_7__MASK``. ``ENUM_NAME`` is the
    number of a name of an enum. Raises as ``check``.
    """
    check(table)
    names = c_names()
    lines = [*head(table), *_said(table)]
    for name, values in table.enums.items():
        lines += _defines(name, values, names)
    for block, rows in table.blocks.items():
        lines += [*_macros(block, rows, names, table), ""]
    return "\n".join([*lines, "#endif", ""])


def check(table: RegisterTable) -> None:
    """Raise ValueError or LookupError if no map can be made of a table, and ValueError if an enum
    has a number that C cannot hold.
    """
    table.check()
    for name, values in table.enums.items():
        for raw, text in values.items():
            high = not 0 <= raw < 2**64
            refuse_if(high, f"enum {name}", f"{text} = {raw}", "is 0 to 2**64 - 1")


def head(table: RegisterTable, kind: str = "") -> list[str]:
    """Return the first lines of a header: the copyright, the include guard and the line that
    includes stdint.h. The caller ends the guard by ``#endif``; ``kind`` is a part of its name.
    """
    guard = f"NPULAB_{c_name(next(iter(table.blocks), '') or 'registers').upper()}_{kind}H"
    return [
        *filter(None, [licence_comment(table.copyright)]),
        f"#ifndef {guard}",
        f"#define {guard}",
        "",
        "#include <stdint.h>",
        "",
    ]


def _said(table: RegisterTable) -> Iterator[str]:
    """Yield, for each block of which a reader of the header would assume the opposite, an
    annotation that says whether the block's registers have addresses.
    """
    for block, has_addresses in table.said(None).items():
        word = "words"
        if has_addresses:
            word = "sparse"
        yield annotation({word: block})
        yield ""


def _enums(table: RegisterTable, names: Identifiers, macros: Identifiers) -> Iterator[str]:
    for name, values in table.enums.items():
        # in C an enumerator is an int, so larger numbers become macros
        if max(values, default=0) > INT_MOST:
            yield from _defines(name, values, macros)
            continue
        tag = names.new(name, "")
        prefix = f"{tag}_"
        yield f"enum {tag} {{"
        for n, (raw, text) in enumerate(values.items()):
            spelled = names.new(prefix + text)
            said = {}
            if not n:
                said["prefix"] = prefix
                if tag != name:
                    said["enum"] = name
            if spelled.removeprefix(prefix) != text:
                said["name"] = text
            yield f"    {spelled} = {raw:#x}, {annotation(said)}".rstrip()
        yield from ("};", "")


def _defines(name: str, values: Codes, names: Identifiers) -> Iterator[str]:
    for raw, text in values.items():
        spelled = names.new(f"{name}_{text}")
        tail = "u"
        if raw >= 2**WORD_BITS:
            tail = "ull"
        yield f"#define {spelled} {raw:#x}{tail} {annotation({'enum': name, 'name': text})}"
    yield ""


def _own(row: Row, spelled: str, known: Row) -> str:
    """Return the comments of a row: its note, and an annotation with the columns that C does not
    express. ``spelled`` is the field's name in C; ``known`` has the columns that its type states.
    """
    note = note_comment(row.get("note", ""))
    said = {}
    if row.get("field", "") != spelled:
        said = {"field": row.get("field", "")}
    said |= {name: row.get(name, "") for name in OWN if row.get(name, "") != known.get(name, "")}
    if note:
        del said["note"]
    return " ".join(filter(None, (note, annotation(said))))


def _struct(
    block: str,
    variant: str,
    rows: Sequence[Row],
    base: int,
    names: Identifiers,
    by_address: frozenset[str],
) -> Iterator[str]:
    tag = names.new("_".join(filter(None, (block or "registers", variant))))
    said: Cells = {}
    if tag != block:
        said["block"] = block
    if base:
        said["base"] = base
    if variant:
        said["feature"] = variant
    if said:
        yield annotation(said)
    yield f"struct {tag} {{"
    members = c_names()
    by_offset: dict[int, list[tuple[Row, str]]] = {}
    for row, name in zip(rows, in_register(rows, by_address), strict=True):
        by_offset.setdefault(row["offset"], []).append((row, name))
    next_free = base
    for offset, inside in sorted(by_offset.items()):
        if offset > next_free:
            spelled = members.new(f"reserved_{next_free:#06x}")
            count = (offset - next_free) // WORD_BYTES
            yield f"    uint32_t {spelled}[{count}]; {annotation({'hole': True})}"
        next_free = offset + WORD_BYTES
        register = next((row["register"] for row, _ in inside if "register" in row), "")
        if register:
            yield f"    {annotation({'word': register})}"
        done = 0
        for row, name in sorted(inside, key=lambda named: int(named[0]["lsb"])):
            if row["lsb"] > done:
                yield f"    uint32_t : {row['lsb'] - done}; {annotation({'hole': True})}"
            done = row["lsb"] + row["width"]
            yield f"    {_member(row, name, register, members)}"
        if done < WORD_BITS:
            yield f"    uint32_t : {WORD_BITS - done}; {annotation({'hole': True})}"
    size = next_free - base
    claim = names.new(f"{tag}_has_{size}_bytes")
    yield from ("};", f"typedef char {claim}[sizeof(struct {tag}) == {size} ? 1 : -1];", "")


def _member(row: Row, name: str, register: str, members: Identifiers) -> str:
    """Return the declaration of one run of bits, with its comments."""
    whole = row["width"] == WORD_BITS
    known: Cells = {}
    kind = "uint32_t"
    if "at" in row:
        name = f"{name}_{row['at']}"
    spelled = members.new(name)
    if row.get("value") == "signed":
        kind, known["value"] = "int32_t", "signed"
    elif row.get("value") == "f32" and whole and "at" not in row:
        kind, known["value"] = "float", "f32"
    said = _own(row, spelled, known)
    own = ""
    if row.get("register", "") != register:
        own = annotation({"register": row.get("register", "")})
    declared = f"{kind} {spelled}"
    if not whole:
        declared += f" : {row['width']}"
    return " ".join(filter(None, (f"{declared};", said, own)))


def _macros(
    block: str, rows: Sequence[Row], names: Identifiers, table: RegisterTable
) -> Iterator[str]:
    """Yield the macros of a block: each register's offset, each field's shift and mask."""
    registers: dict[tuple[int, str], list[Row]] = {}
    for row in rows:
        registers.setdefault((row["offset"], row.get("register", "")), []).append(row)
    for (offset, register), inside in registers.items():
        label = word_name(offset, block in table.by_address)
        plain = names.new("_".join(filter(None, (block, register or label))))
        spelled = names.new(f"REG_{plain}")
        said = annotation({"block": block, "register": register})
        yield f"#define {spelled} {offset:#06x} {said}"
        for row in inside:
            name = name_of(row, table.by_address)
            scope = plain
            if run_of(name) == (offset, row["lsb"], row["width"]):
                scope = block
            tails = [str(row[column]) for column in ("at", "feature") if column in row]
            field = names.new("_".join(filter(None, [scope, name, *tails])), SHIFT, MASK)
            mask = (2 ** row["width"] - 1) * 2 ** row["lsb"]
            yield f"#define {field}{SHIFT} {row['lsb']}"
            yield f"#define {field}{MASK} {mask:#010x}u {_own(row, field, {})}"
