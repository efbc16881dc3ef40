"""Writer of CMSIS-SVD; ``svd`` has the table of how its elements become a register map."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from xml.sax.saxutils import escape, quoteattr

from npulab.registers.fields import WORD_BITS, WORD_BYTES, Codes, Row
from npulab.registers.formats.naming import APART, Identifiers, by_block
from npulab.registers.formats.svd_names import NPULAB
from npulab.registers.formats.tables import RegisterTable
from npulab.registers.meaning import Meaning
from npulab.registers.names import name_of

HEAD = (
    '<?xml version="1.0" encoding="utf-8"?>',
    '<device schemaVersion="1.3" '
    'xmlns:xs="http://www.w3.org/2001/XMLSchema-instance" '
    'xs:noNamespaceSchemaLocation="CMSIS-SVD.xsd">',
)
PROPERTIES = (
    f"<addressUnitBits>8</addressUnitBits><width>{WORD_BITS}</width><size>{WORD_BITS}</size>"
)
OWN = ("feature", "at", "address", "align", "evidence")
NAMES = ("register", "field")  # if blank, these columns are stated in npulab's own words
NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Writing:
    """What is known of a file while it is written: the lines of npulab's own words, and the enums
    that fields have."""

    table: RegisterTable
    own: list[str] = field(default_factory=list)
    whole: set[str] = field(default_factory=set)  # enums that SVD can state completely
    apart: set[str] = field(default_factory=set)  # enums that npulab's own words name


def svd_text(table: RegisterTable) -> str:
    """Return the device description of a table: a peripheral for each block, a register for each
    offset and name.

    Blocks have no address of their own, so each peripheral gets the next free one. A register has
    the fields of all chips (``feature``), so its fields may overlap. ``read_svd`` reads the same
    table from the text.
    """
    writing = Writing(table)
    lines = [
        *HEAD,
        "<name>registers</name><version>1.0</version>",
        "<description>A register map, written by npulab.</description>",
    ]
    if table.copyright:
        lines.append(f"<licenseText>{escape(table.copyright)}</licenseText>")
    lines += [PROPERTIES, "<peripherals>"]
    blocks, said = Identifiers(), table.said()
    for block, begin, registers in by_block(table):
        name = blocks.new(block or "registers")
        quoted = quoteattr(name)
        if name != block:
            writing.own.append(f"<npulab:block name={quoted} is={quoteattr(block)}/>")
        if block in said:
            are = str(said[block]).lower()
            writing.own.append(f'<npulab:addresses name={quoted} are="{are}"/>')
        lines += _peripheral(name, begin, registers, writing)
    lines.append("</peripherals>")
    for enum, values in table.enums.items():
        if enum not in writing.whole or enum in writing.apart:
            writing.own.append(_own_enum(enum, values))
    lines += [
        "<vendorExtensions>",
        f'<npulab:map xmlns:npulab="{NPULAB}">',
        *writing.own,
        "</npulab:map>",
        "</vendorExtensions>",
        "</device>",
        "",
    ]
    return "\n".join(lines)


def _peripheral(
    name: str, begin: int, registers: Sequence[tuple[int, str, list[Row]]], writing: Writing
) -> Iterator[str]:
    """Yield the lines of XML for a block; what SVD cannot state is added to npulab's own words."""
    end = max(offset for offset, _, _ in registers) + WORD_BYTES
    base, size = begin % 2**WORD_BITS, -(-end // APART) * APART % 2**WORD_BITS
    yield f"<peripheral><name>{name}</name><baseAddress>{base:#010x}</baseAddress>"
    yield (
        f"<addressBlock><offset>0x0</offset><size>{size:#x}</size><usage>registers</usage>"
        "</addressBlock>"
    )
    yield "<registers>"
    words = Identifiers()
    for offset, register, rows in registers:
        word = words.new(register)
        path = f"{name}.{word}"
        if word != register:
            writing.own.append(
                f"<npulab:register name={quoteattr(path)} is={quoteattr(register)}/>"
            )
        yield f"<register><name>{word}</name><addressOffset>{offset:#06x}</addressOffset><fields>"
        names = Identifiers()
        for row in rows:
            yield _field(row, path, names, writing)
        yield "</fields></register>"
    yield "</registers>"
    yield "</peripheral>"


def _field(row: Row, path: str, names: Identifiers, writing: Writing) -> str:
    """Return the element of a field; what SVD cannot state is added to npulab's own words."""
    plain = name_of(row, writing.table.by_address)
    name = names.new(plain)
    said = {}
    if name != plain:
        said["is"] = plain
    said |= {column: str(row[column]) for column in OWN if column in row}
    said |= {column: "" for column in NAMES if column not in row}
    text = f"<field><name>{name}</name>"
    if "note" in row:
        text += f"<description>{escape(row['note'])}</description>"
    text += f"<bitOffset>{row['lsb']}</bitOffset><bitWidth>{row['width']}</bitWidth>"
    value = row.get("value", "")
    enum = Meaning.parse(value).enum
    values = writing.table.enums.get(enum, {})
    is_plain = value == f"enum:{enum}" and "at" not in row
    if is_plain and _writable(enum, values, row["width"]):
        labels = Identifiers()
        written = {raw: labels.new(label) for raw, label in values.items()}
        if written == {**values}:
            writing.whole.add(enum)
        text += f"<enumeratedValues><name>{enum}</name>"
        for raw, label in written.items():
            text += (
                f"<enumeratedValue><name>{label}</name><value>{raw:#x}</value></enumeratedValue>"
            )
        text += "</enumeratedValues>"
    elif value:
        said["value"] = value
        writing.apart.add(enum)
    if said:
        attributes = " ".join(f"{key}={quoteattr(word)}" for key, word in said.items())
        writing.own.append(f"<npulab:field name={quoteattr(f'{path}.{name}')} {attributes}/>")
    return f"{text}</field>"


def _writable(enum: str, values: Codes, width: int) -> bool:
    """True if SVD can state an enum for a field of ``width`` bits."""
    return bool(NAME.fullmatch(enum) and values and max(values) < 2**width)


def _own_enum(enum: str, values: Codes) -> str:
    """Return the line of an enum in npulab's own words."""
    text = f"<npulab:enum name={quoteattr(enum)}>"
    for raw, name in values.items():
        text += f'<npulab:value raw="{raw:#x}" name={quoteattr(name)}/>'
    return f"{text}</npulab:enum>"
