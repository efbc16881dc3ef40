"""Writer of plain C99 functions that turn the words of a block into its fields and back."""

from __future__ import annotations

from collections.abc import Iterator

from npulab.registers.fields import WORD_BITS, Field
from npulab.registers.formats.c_names import c_names
from npulab.registers.formats.c_writing import check, head
from npulab.registers.formats.tables import RegisterTable, features_in
from npulab.registers.map import RegisterMap


def packing_text(table: RegisterTable) -> str:
    """Return C source with ``struct NAME_values``, ``NAME_pack`` and ``NAME_unpack`` for each
    block; it needs stdint.h only.

    ``words`` are the ``NAME_WORDS`` registers of the block, in the order of their byte offsets
    ``NAME_offsets``. Values are raw, with the pieces of a split field joined; bits without a name
    are members too, so that every word round-trips. Bits of a value that do not fit into its field
    are cut off. If the rows of a block differ by feature, the struct and the two functions are
    written for each feature. The source defines the functions that it declares: only one C file of
    a program may include it. Raises as ``RegisterTable.check``.
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
    members = c_names()
    spelled = [(members.new(fields.key(one)), one) for one in fields]
    yield f"#define {tag}_WORDS {len(fields)}"
    yield f"extern const uint32_t {tag}_offsets[{tag}_WORDS];"
    yield f"const uint32_t {tag}_offsets[{tag}_WORDS] = {{"
    yield from (f"    {offset:#06x}," for _, offset, _ in fields.registers)
    yield from ("};", "", f"struct {tag}_values {{")
    for name, one in spelled:
        yield f"    {_type(one)} {name}; /* {one.bits} */"
    yield from (
        "};",
        "",
        f"void {tag}_pack(uint32_t *words, const struct {tag}_values *values);",
        f"void {tag}_unpack(struct {tag}_values *values, const uint32_t *words);",
        "",
    )
    yield from (f"void {tag}_pack(uint32_t *words, const struct {tag}_values *values)", "{")
    parts: list[list[str]] = [[] for _ in range(len(fields))]
    for name, one in spelled:
        for piece in one.pieces:
            cut = f"(uint32_t)(values->{name}{f' >> {piece.at}' if piece.at else ''})"
            if piece.width < WORD_BITS:
                cut = f"({cut} & {2**piece.width - 1:#x}u)"
            parts[piece.word].append(f"{cut} << {piece.lsb}" if piece.lsb else cut)
    for word, some in enumerate(parts):
        yield f"    words[{word}] = " + "\n        | ".join(some) + ";"
    yield from (
        "}",
        "",
        f"void {tag}_unpack(struct {tag}_values *values, const uint32_t *words)",
        "{",
    )
    for name, one in spelled:
        some = []
        for piece in one.pieces:
            if piece.lsb:
                cut = f"words[{piece.word}] >> {piece.lsb}"
            else:
                cut = f"words[{piece.word}]"
            if piece.lsb + piece.width < WORD_BITS:
                if piece.lsb:
                    cut = f"({cut}) & {2**piece.width - 1:#x}u"
                else:
                    cut = f"{cut} & {2**piece.width - 1:#x}u"
            some.append(
                f"({_type(one)})({cut}) << {piece.at}" if piece.at else f"({_type(one)})({cut})"
            )
        yield f"    values->{name} = " + "\n        | ".join(some) + ";"
    yield from ("}", "")


def _type(one: Field) -> str:
    if one.width <= WORD_BITS:
        return "uint32_t"
    return "uint64_t"
