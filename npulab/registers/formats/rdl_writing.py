"""Writer of SystemRDL; what stands for what is said in ``systemrdl``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import quote

from npulab.registers.formats.naming import Identifiers, by_block, keywords
from npulab.registers.formats.rdl_compiling import CHIP
from npulab.registers.formats.tables import RegisterTable, Row
from npulab.registers.meaning import Meaning
from npulab.registers.names import name_of

NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*")
KEYWORDS = keywords("SystemRDL")
STRINGS = ("feature", "value", "evidence", "note")  # of fields
PROPERTIES = (
    ("name", "addrmap | reg | field", "string"),
    *((name, "field", "string") for name in STRINGS),
    ("at", "field", "longint unsigned"),
    ("align", "field", "longint unsigned"),
    ("address", "field", "boolean"),
    ("nameless", "field", "boolean"),
    ("unnamed", "field", "boolean"),
    ("map", "addrmap", "boolean"),
    ("addresses", "addrmap", "boolean"),
    ("copyright", "addrmap", "string"),
    ("enums", "addrmap", "string[]"),
)


def rdl_text(table: RegisterTable) -> str:
    """The SystemRDL of a table: an address map for each block, one around them all.

    Blocks have no address of their own, so they follow each other.  A field that only some chips
    have (``feature``) is there where the parameter ``has_FEATURE`` of the map is true.
    ``read_rdl`` gives the same table.
    """
    types = Identifiers(KEYWORDS)
    top = types.new("registers")
    chips = Identifiers(KEYWORDS)
    features = {feature: chips.new(f"{CHIP}{feature}") for feature in table.features}
    whole: dict[str, str] = {}
    lines = [
        f"property npulab_{name} {{ component = {where}; type = {kind}; }};"
        for name, where, kind in PROPERTIES
    ]
    rest = []
    for enum, values in table.enums.items():
        written = None
        if NAME.fullmatch(enum) and values:
            written = _enum(types, enum, values)
        if written is not None:
            whole[enum] = written[0]
            lines.append(written[1])
        if written is None or not written[2]:
            rest += _kept_enum(enum, values)
    blocks = []
    # a map of nothing does not compile: one feature is there where no row is without
    first = ""
    if all("feature" in row for row in table.rows):
        first = features[table.features[0]]
    parameters = ", ".join(
        f"boolean {name} = {str(name == first).lower()}" for name in features.values()
    )
    if features:
        parameters = f" #({parameters})"
    else:
        parameters = ""
    given = ", ".join(f".{name}({name})" for name in features.values())
    if features:
        given = f" #({given})"
    else:
        given = ""
    used, apart = (
        set[str](),
        set[str](),
    )  # enums that fields encode, and those that values name, perhaps before
    said = table.said()
    for block, begin, registers in by_block(table):
        name = types.new(block or "registers")
        lines.append(f"addrmap {name}{parameters} {{")
        if name != block:
            lines += [f"  npulab_name = {_string(_kept(block))};"]
        if block in said:
            lines.append(f"  npulab_addresses = {str(said[block]).lower()};")
        lines += _present([row for _, _, rows in registers for row in rows], features, "  ")
        words = Identifiers(KEYWORDS)
        for offset, register, rows in registers:
            lines += _register(
                offset, register, words.new(register), rows, table, whole, features, used, apart
            )
        lines.append("};")
        blocks.append(f"  {name}{given} {name} @ {begin:#x};")
    rest += [
        line
        for enum in whole
        if enum not in used or enum in apart
        for line in _kept_enum(enum, table.enums[enum])
    ]
    lines += [f"addrmap {top}{parameters} {{", "  npulab_map = true;"]
    if table.copyright:
        lines += [f"  npulab_copyright = {_string(_kept(table.copyright))};"]
    if rest:
        lines += ["  npulab_enums = '{", ",\n".join(f"    {_string(one)}" for one in rest), "  };"]
    return "\n".join([*lines, *blocks, "};", ""])


def _enum(types: Identifiers, enum: str, values: Mapping[int, str]) -> tuple[str, str, bool]:
    """The name, the text of an enum, and whether it says all of it."""
    labels = Identifiers(KEYWORDS)
    written = {raw: labels.new(text) for raw, text in values.items()}
    name = types.new(enum)
    text = " ".join(f"{label} = {raw:#x};" for raw, label in written.items())
    return name, f"enum {name} {{ {text} }};", name == enum and written == {**values}


def _kept_enum(enum: str, values: Mapping[int, str]) -> list[str]:
    return [f"{quote(enum)} {raw:#x} {_kept(text)}" for raw, text in values.items()]


def _register(
    offset: int,
    real: str,
    name: str,
    rows: Sequence[Row],
    table: RegisterTable,
    whole: Mapping[str, str],
    features: Mapping[str, str],
    used: set[str],
    apart: set[str],
) -> Iterator[str]:
    yield "  reg {"
    if name != real:
        yield f"    npulab_name = {_string(_kept(real))};"
    yield from _present(rows, features, "    ")
    names = Identifiers(KEYWORDS)
    for row in rows:
        whole_name = name_of(row, table.by_address)
        field = names.new(whole_name)
        said = []
        if field != whole_name:
            said = [f"npulab_name = {_string(_kept(whole_name))};"]
        value = row.get("value", "")
        enum = Meaning.parse(value).enum
        if (
            enum in whole
            and value == f"enum:{enum}"
            and whole[enum] == enum
            and "at" not in row
            and max(table.enums[enum]) < 2 ** row["width"]
        ):
            used.add(enum)
            said.append(f"encode = {enum};")
        elif value:
            apart.add(enum)
            said.append(f"npulab_value = {_string(_kept(value))};")
        if note := row.get("note", ""):
            said.append(f"desc = {_string(_shown(note))};")
            if _shown(note) != note:
                said += [f"npulab_note = {_string(_kept(note))};"]
        if feature := row.get("feature"):
            said += [
                f"npulab_feature = {_string(_kept(feature))};",
                f"ispresent = {features[feature]};",
            ]
        said += [f"npulab_{key} = {row[key]};" for key in ("at", "align") if key in row]
        if "address" in row:
            said += ["npulab_address = true;"]
        if "evidence" in row:
            said += [f"npulab_evidence = {_string(_kept(row['evidence']))};"]
        if "register" not in row:
            said += ["npulab_nameless = true;"]
        if "field" not in row:
            said += ["npulab_unnamed = true;"]
        yield f"    field {{ {' '.join(said)} }} {field}[{row['lsb'] + row['width'] - 1}:{row['lsb']}];"
    yield f"  }} {name} @ {offset:#x};"


def _present(rows: Sequence[Row], features: Mapping[str, str], indent: str) -> Iterator[str]:
    """Where something is there, if not on all chips."""
    chips = sorted({row.get("feature", "") for row in rows})
    if chips[0]:
        yield f"{indent}ispresent = {' || '.join(features[one] for one in chips)};"


def _kept(text: str) -> str:
    """A text without what a preprocessor or a string takes for something else; ``unquote`` gives it
    back."""
    return re.sub(r'[%<`"\\]', lambda match: f"%{ord(match[0]):02X}", text)


def _shown(text: str) -> str:
    """A text as people read it, without directives of a preprocessor."""
    return text.replace("<%", "< %").replace("`", "'")


def _string(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
