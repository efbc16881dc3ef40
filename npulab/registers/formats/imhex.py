"""Writer of patterns for the hex editor ImHex: the registers of a block as bit-fields over its
bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from npulab.registers.fields import WORD_BYTES
from npulab.registers.formats.drawn import Drawn, boxes
from npulab.registers.formats.naming import Identifiers, by_block, keywords
from npulab.registers.formats.tables import RegisterTable
from npulab.registers.meaning import Meaning

KEYWORDS = keywords("ImHex")
HEAD = ("#pragma endian little", "#pragma bitfield_order right_to_left", "")


def imhex_text(table: RegisterTable) -> str:
    """The pattern of a table: a struct for each block, one more for each feature that it has rows
    of; the first is placed at 0, the others wait in comments.

    Words are little-endian.  The pieces of a split field are fields of their own, with a comment
    that says which bits of its value they are.
    """
    names = Identifiers(KEYWORDS)
    lines = [f"// {line}".rstrip() for line in table.copyright.splitlines()] + [*HEAD]
    enums = {}
    for enum, values in table.enums.items():
        labels = Identifiers(KEYWORDS)
        enums[enum] = names.new(enum)
        lines += [
            f"enum {enums[enum]} : u64 {{",
            *(
                f"  {label} = {raw:#x}," + (f" // {text}" if label != text else "")
                for raw, text in values.items()
                for label in [labels.new(text)]
            ),
            "};",
            "",
        ]
    placed = []
    for block, _, registers in by_block(table):
        features = sorted(
            {row["feature"] for _, _, rows in registers for row in rows if "feature" in row}
        )
        for feature in ["", *features]:
            here = [
                Drawn(block, offset, register, feature, boxes(rows, feature, table.by_address))
                for offset, register, rows in registers
                if any(row.get("feature", "") in ("", feature) for row in rows)
            ]
            if not here:
                continue
            fields = Identifiers(KEYWORDS)
            kinds = [names.new(f"{block}_{one.register}_{feature}".strip("_")) for one in here]
            for kind, one in zip(kinds, here, strict=True):
                lines += [
                    f"bitfield {kind} {{ // {one.register} at {one.offset:#x}",
                    *_fields(one, enums),
                    "};",
                    "",
                ]
            struct = names.new(f"{block}_{feature}".strip("_") or "registers")
            lines += [f"struct {struct} {{", *_members(here, kinds, fields), "};", ""]
            placed.append(f"{struct} {names.new(f'at_{struct}')} @ 0x00;")
    lines += [line if n == 0 else f"// {line}" for n, line in enumerate(placed)]
    return "\n".join([*lines, ""])


def _fields(one: Drawn, enums: dict[str, str]) -> Iterator[str]:
    names = Identifiers(KEYWORDS)
    for box in one.boxes:
        if not box.row:
            yield f"  padding : {box.width};"
            continue
        name = names.new(box.name)
        meaning = Meaning.parse(str(box.row.get("value", "")))
        if meaning.enum in enums and "at" not in box.row:
            kind = f"{enums[meaning.enum]} "
        elif meaning.kind == "signed" and "at" not in box.row:
            kind = "signed "
        else:
            kind = ""
        said = [box.name if name != box.name else "", box.meaning, str(box.row.get("note", ""))]
        text = "; ".join(filter(None, said))
        yield f"  {kind}{name} : {box.width};" + (f" // {text}" if text else "")


def _members(registers: Sequence[Drawn], kinds: Sequence[str], names: Identifiers) -> Iterator[str]:
    at = 0
    for one, kind in zip(registers, kinds, strict=True):
        if one.offset < at:
            yield f"  // {one.register} at {one.offset:#x}, where another lies"
            continue
        if one.offset > at:
            yield f"  padding[{one.offset - at:#x}];"
        yield f"  {kind} {names.new(one.register)};"
        at = one.offset + WORD_BYTES
