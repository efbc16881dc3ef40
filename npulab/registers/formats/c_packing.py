"""Writer of plain C99 functions that turn the words of a block into its fields and back."""

from __future__ import annotations

from collections.abc import Iterator

from npulab.registers.fields import WORD_BITS, Field, Piece
from npulab.registers.formats.c_names import c_names
from npulab.registers.formats.c_writing import check, head
from npulab.registers.formats.tables import RegisterTable, features_in
from npulab.registers.map import RegisterMap

JOINED = "\n        | "


def packing_text(table: RegisterTable) -> str:
    """Return C source with ``struct NAME_values``, ``NAME_pack`` and ``NAME_unpack`` for each
    block; it needs stdint.h only.

    The argument ``words`` of both functions points to the ``NAME_WORDS`` words of the block;
    ``NAME_offsets`` has their byte offsets. The members of the struct have raw values, each the
    value of a whole field, even of a split one. Bits without a name are members too, so that every
    word round-trips. Bits of a value that do not fit into its field are cut off.

    If the rows of a block have features, the struct and the two functions are written for each
    feature. Only one C file of a program may include the source, because it defines the functions.
    Raises as ``RegisterTable.check``.
    """
    check(table)
    names = c_names()
    lines = head(table, "PACK_")
    for block, rows in table.blocks.items():
        for feature in features_in(rows) or [""]:
            part = RegisterTable(tuple(rows), table.enums, by_address=table.by_address).map(
                [feature]
            )
            tag = "_".join(filter(None, (block or "registers", feature)))
            lines += _functions(
                names.new(tag, "_pack", "_unpack", "_values", "_offsets", "_WORDS"), part
            )
    return "\n".join([*lines, "#endif", ""])


def _functions(tag: str, fields: RegisterMap) -> Iterator[str]:
    """Yield the lines of a block's struct and of its two functions."""
    members = c_names()
    spelled = [(members.new(fields.key(item)), item) for item in fields]
    yield f"#define {tag}_WORDS {len(fields)}"
    yield f"extern const uint32_t {tag}_offsets[{tag}_WORDS];"
    yield f"const uint32_t {tag}_offsets[{tag}_WORDS] = {{"
    yield from (f"    {offset:#06x}," for _, offset, _ in fields.registers)
    yield from ("};", "", f"struct {tag}_values {{")
    for name, item in spelled:
        yield f"    {_type(item)} {name}; /* {item.bits} */"
    pack = f"void {tag}_pack(uint32_t *words, const struct {tag}_values *values)"
    unpack = f"void {tag}_unpack(struct {tag}_values *values, const uint32_t *words)"
    yield from ("};", "", f"{pack};", f"{unpack};", "", pack, "{")
    parts: list[list[str]] = [[] for _ in range(len(fields))]
    for name, item in spelled:
        for piece in item.pieces:
            parts[piece.word].append(_packed(name, piece))
    for word, some in enumerate(parts):
        yield f"    words[{word}] = {JOINED.join(some)};"
    yield from ("}", "", unpack, "{")
    for name, item in spelled:
        some = [_unpacked(_type(item), piece) for piece in item.pieces]
        yield f"    values->{name} = {JOINED.join(some)};"
    yield from ("}", "")


def _packed(name: str, piece: Piece) -> str:
    """Return the C expression for the bits of a member that a piece holds, at their place in the
    word."""
    cut = f"(uint32_t)({_shifted(f'values->{name}', '>>', piece.at)})"
    if piece.width < WORD_BITS:
        cut = f"({cut} & {2**piece.width - 1:#x}u)"
    return _shifted(cut, "<<", piece.lsb)


def _unpacked(kind: str, piece: Piece) -> str:
    """Return the C expression for the bits of a word that a piece holds, at their place in the
    member, which has the type ``kind``."""
    cut = _shifted(f"words[{piece.word}]", ">>", piece.lsb)
    if piece.lsb + piece.width < WORD_BITS:
        if piece.lsb:
            cut = f"({cut})"
        cut = f"{cut} & {2**piece.width - 1:#x}u"
    return _shifted(f"({kind})({cut})", "<<", piece.at)


def _shifted(text: str, operator: str, bits: int) -> str:
    if bits:
        return f"{text} {operator} {bits}"
    return text


def _type(item: Field) -> str:
    if item.width <= WORD_BITS:
        return "uint32_t"
    return "uint64_t"
