"""Writer of SystemRDL; ``systemrdl`` has the table of how its words become a register map."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote

from npulab.registers.fields import Codes, Row
from npulab.registers.formats.naming import Identifiers, by_block, keywords
from npulab.registers.formats.rdl_compiling import CHIP
from npulab.registers.formats.tables import RegisterTable
from npulab.registers.meaning import Meaning
from npulab.registers.names import name_of

NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*")
KEYWORDS = keywords("SystemRDL")
# npulab's own properties, as the file declares them
PROPERTIES = """\
property npulab_name { component = addrmap | reg | field; type = string; };
property npulab_feature { component = field; type = string; };
property npulab_value { component = field; type = string; };
property npulab_evidence { component = field; type = string; };
property npulab_note { component = field; type = string; };
property npulab_at { component = field; type = longint unsigned; };
property npulab_align { component = field; type = longint unsigned; };
property npulab_address { component = field; type = boolean; };
property npulab_nameless { component = field; type = boolean; };
property npulab_unnamed { component = field; type = boolean; };
property npulab_map { component = addrmap; type = boolean; };
property npulab_addresses { component = addrmap; type = boolean; };
property npulab_copyright { component = addrmap; type = string; };
property npulab_enums { component = addrmap; type = string[]; };"""


@dataclass(frozen=True)
class Writing:
    """What is known of a file while it is written: its names, and the enums that fields have."""

    table: RegisterTable
    features: Mapping[str, str]  # the name of a feature's parameter, by feature
    whole: dict[str, str] = field(default_factory=dict)  # an enum's name in the file, by enum
    used: set[str] = field(default_factory=set)  # enums that a field names by ``encode``
    apart: set[str] = field(default_factory=set)  # enums named by ``npulab_value``


def rdl_text(table: RegisterTable) -> str:
    """Return the SystemRDL of a table: an address map for each block, and a map that contains them.

    Blocks have no address of their own, so each gets the next free one. A field that only some
    chips have (``feature``) is present if the parameter ``has_FEATURE`` of the map is true.
    ``read_rdl`` reads the same table from the text.
    """
    types, chips = Identifiers(KEYWORDS), Identifiers(KEYWORDS)
    top = types.new("registers")
    writing = Writing(table, {feature: chips.new(f"{CHIP}{feature}") for feature in table.features})
    lines, rest = [PROPERTIES], []
    for enum, values in table.enums.items():
        complete = False
        if NAME.fullmatch(enum) and values:
            writing.whole[enum], text, complete = _enum(types, enum, values)
            lines.append(text)
        if not complete:
            rest += _kept_enum(enum, values)
    parameters, given = _parameters(writing)
    blocks = []
    said = table.said()
    for block, begin, registers in by_block(table):
        name = types.new(block or "registers")
        lines.append(f"addrmap {name}{parameters} {{")
        if name != block:
            lines.append(f"  npulab_name = {_string(_kept(block))};")
        if block in said:
            lines.append(f"  npulab_addresses = {str(said[block]).lower()};")
        lines += _present(table.blocks[block], writing.features, "  ")
        words = Identifiers(KEYWORDS)
        for offset, register, rows in registers:
            lines += _register(offset, register, words.new(register), rows, writing)
        lines.append("};")
        blocks.append(f"  {name}{given} {name} @ {begin:#x};")
    for enum in writing.whole:
        if enum not in writing.used or enum in writing.apart:
            rest += _kept_enum(enum, table.enums[enum])
    lines += [f"addrmap {top}{parameters} {{", "  npulab_map = true;"]
    if table.copyright:
        lines.append(f"  npulab_copyright = {_string(_kept(table.copyright))};")
    if rest:
        kept = ",\n".join(f"    {_string(text)}" for text in rest)
        lines += ["  npulab_enums = '{", kept, "  };"]
    return "\n".join([*lines, *blocks, "};", ""])


def _parameters(writing: Writing) -> tuple[str, str]:
    """Return two texts: the declaration of a map's parameters, one for each feature, and the
    arguments with which the outer map hands its own parameters to the map."""
    if not writing.features:
        return "", ""
    # SystemRDL rejects an empty map: if every row needs a feature, the first feature is true by
    # default
    first = ""
    if all("feature" in row for row in writing.table.rows):
        first = writing.table.features[0]
    declared, given = [], []
    for feature, name in writing.features.items():
        declared.append(f"boolean {name} = {str(feature == first).lower()}")
        given.append(f".{name}({name})")
    return f" #({', '.join(declared)})", f" #({', '.join(given)})"


def _enum(types: Identifiers, enum: str, values: Codes) -> tuple[str, str, bool]:
    """Return the name and the text of an enum in the file, and True if no name had to change."""
    labels = Identifiers(KEYWORDS)
    written = {raw: labels.new(text) for raw, text in values.items()}
    name = types.new(enum)
    text = " ".join(f"{label} = {raw:#x};" for raw, label in written.items())
    return name, f"enum {name} {{ {text} }};", name == enum and written == {**values}


def _kept_enum(enum: str, values: Codes) -> list[str]:
    return [f"{quote(enum)} {raw:#x} {_kept(text)}" for raw, text in values.items()]


def _register(
    offset: int, register: str, name: str, rows: Sequence[Row], writing: Writing
) -> Iterator[str]:
    """Yield the lines of a register; ``name`` is the identifier that it has in the file."""
    yield "  reg {"
    if name != register:
        yield f"    npulab_name = {_string(_kept(register))};"
    yield from _present(rows, writing.features, "    ")
    names = Identifiers(KEYWORDS)
    for row in rows:
        plain = name_of(row, writing.table.by_address)
        field_name = names.new(plain)
        said = []
        if field_name != plain:
            said.append(f"npulab_name = {_string(_kept(plain))};")
        said += _properties(row, writing)
        high = row["lsb"] + row["width"] - 1
        yield f"    field {{ {' '.join(said)} }} {field_name}[{high}:{row['lsb']}];"
    yield f"  }} {name} @ {offset:#x};"


def _properties(row: Row, writing: Writing) -> Iterator[str]:
    """Yield the properties of a field; its enum is added to ``writing``."""
    value = row.get("value", "")
    enum = Meaning.parse(value).enum
    plain = value == f"enum:{enum}" and "at" not in row and writing.whole.get(enum) == enum
    if plain and max(writing.table.enums[enum]) < 2 ** row["width"]:
        writing.used.add(enum)
        yield f"encode = {enum};"
    elif value:
        writing.apart.add(enum)
        yield f"npulab_value = {_string(_kept(value))};"
    if note := row.get("note", ""):
        yield f"desc = {_string(_shown(note))};"
        if _shown(note) != note:
            yield f"npulab_note = {_string(_kept(note))};"
    if feature := row.get("feature"):
        yield f"npulab_feature = {_string(_kept(feature))};"
        yield f"ispresent = {writing.features[feature]};"
    for key in ("at", "align"):
        if key in row:
            yield f"npulab_{key} = {row[key]};"
    if "address" in row:
        yield "npulab_address = true;"
    if "evidence" in row:
        yield f"npulab_evidence = {_string(_kept(row['evidence']))};"
    if "register" not in row:
        yield "npulab_nameless = true;"
    if "field" not in row:
        yield "npulab_unnamed = true;"


def _present(rows: Sequence[Row], features: Mapping[str, str], indent: str) -> Iterator[str]:
    """Yield the condition under which a register or block with these rows is present; nothing if it
    is present on all chips."""
    chips = sorted({row.get("feature", "") for row in rows})
    if chips[0]:
        yield f"{indent}ispresent = {' || '.join(features[chip] for chip in chips)};"


def _kept(text: str) -> str:
    """Return a text in which characters that a preprocessor or a string would replace are escaped;
    ``unquote`` returns the original text."""
    return re.sub(r'[%<`"\\]', lambda match: f"%{ord(match[0]):02X}", text)


def _shown(text: str) -> str:
    """Return a text for people, changed where a preprocessor would find a directive."""
    return text.replace("<%", "< %").replace("`", "'")


def _string(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
