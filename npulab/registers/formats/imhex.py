"""Writer of patterns for the hex editor ImHex: the registers of a block as bit-fields over its
bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from npulab.registers.fields import WORD_BYTES
from npulab.registers.formats.drawn import Drawn, boxes
from npulab.registers.formats.naming import Identifiers, by_block, keywords
from npulab.registers.formats.tables import RegisterTable, features_in
from npulab.registers.meaning import Meaning

KEYWORDS = keywords("ImHex")
HEAD = ("#pragma endian little", "#pragma bitfield_order right_to_left", "")


def imhex_text(table: RegisterTable) -> str:
    """Return the pattern of a table: a struct for each block, and a further struct for each feature
    of the block's rows. The first struct is placed at byte 0 of the file; the lines that would
    place the other structs are comments.

    Words are little-endian. Each piece of a split field is a field of its own, with a comment that
    says which bits of the whole field's value it has.
    """
    names = Identifiers(KEYWORDS)
    lines = [f"// {line}".rstrip() for line in table.copyright.splitlines()] + [*HEAD]
    enums = {}
    for enum, values in table.enums.items():
        labels = Identifiers(KEYWORDS)
        enums[enum] = names.new(enum)
        lines.append(f"enum {enums[enum]} : u64 {{")
        for raw, text in values.items():
            label = labels.new(text)
            lines.append(f"  {label} = {raw:#x},")
            if label != text:
                lines[-1] += f" // {text}"
        lines += ["};", ""]
    placed = []
    for block, _, registers in by_block(table):
        for feature in ["", *features_in(table.blocks[block])]:
            found = []
            for offset, register, rows in registers:
                if any(row.get("feature", "") in ("", feature) for row in rows):
                    bits = boxes(rows, feature, table.by_address)
                    found.append(Drawn(block, offset, register, feature, bits))
            if not found:
                continue
            fields = Identifiers(KEYWORDS)
            kinds = [names.new(f"{block}_{item.register}_{feature}".strip("_")) for item in found]
            for kind, item in zip(kinds, found, strict=True):
                lines.append(f"bitfield {kind} {{ // {item.register} at {item.offset:#x}")
                lines += [*_fields(item, enums), "};", ""]
            struct = names.new(f"{block}_{feature}".strip("_") or "registers")
            lines += [f"struct {struct} {{", *_members(found, kinds, fields), "};", ""]
            placed.append(f"{struct} {names.new(f'at_{struct}')} @ 0x00;")
    lines += [*placed[:1], *(f"// {line}" for line in placed[1:]), ""]
    return "\n".join(lines)


def _fields(register: Drawn, enums: dict[str, str]) -> Iterator[str]:
    """Yield the line of each field of a register; ``enums`` has the name that each enum has in the
    pattern."""
    names = Identifiers(KEYWORDS)
    for box in register.boxes:
        if not box.row:
            yield f"  padding : {box.width};"
            continue
        name = names.new(box.name)
        meaning = Meaning.parse(str(box.row.get("value", "")))
        kind = ""
        if meaning.enum in enums and "at" not in box.row:
            kind = f"{enums[meaning.enum]} "
        elif meaning.kind == "signed" and "at" not in box.row:
            kind = "signed "
        said = [box.meaning, str(box.row.get("note", ""))]
        if name != box.name:
            said.insert(0, box.name)
        text = "; ".join(filter(None, said))
        if text:
            text = f" // {text}"
        yield f"  {kind}{name} : {box.width};{text}"


def _members(registers: Sequence[Drawn], kinds: Sequence[str], names: Identifiers) -> Iterator[str]:
    """Yield the members of a struct, with padding between registers. A register at the place of an
    earlier register becomes a comment."""
    end = 0
    for register, kind in zip(registers, kinds, strict=True):
        if register.offset < end:
            yield f"  // {register.register} at {register.offset:#x}, where another register lies"
            continue
        if register.offset > end:
            yield f"  padding[{register.offset - end:#x}];"
        yield f"  {kind} {names.new(register.register)};"
        end = register.offset + WORD_BYTES
