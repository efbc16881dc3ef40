"""Writer of CMSIS-SVD; what stands for what is said in ``svd``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from xml.sax.saxutils import escape, quoteattr

from npulab.registers.fields import WORD_BITS
from npulab.registers.formats.naming import APART, Identifiers, by_block
from npulab.registers.formats.svd_names import NPULAB
from npulab.registers.formats.tables import RegisterTable, Row
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
NAMES = ("register", "field")  # that are blank where the table has none
NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*")


def svd_text(table: RegisterTable) -> str:
    """The device description of a table: a peripheral for each block, a register for each name at
    an offset.

    Blocks have no address of their own, so peripherals follow each other.  Fields of chips that
    differ (``feature``) stand beside each other and may overlap.  ``read_svd`` gives the same
    table.
    """
    lines, own, whole = (
        [
            *HEAD,
            "<name>registers</name><version>1.0</version>",
            "<description>A register map, written by npulab.</description>",
        ],
        list[str](),
        set[str](),
    )
    apart = set[
        str
    ]()  # enums that a field names beside SVD's own words, perhaps before these declare them
    if table.copyright:
        lines.append(f"<licenseText>{escape(table.copyright)}</licenseText>")
    lines += [PROPERTIES, "<peripherals>"]
    blocks, said = Identifiers(), table.said()
    for block, begin, registers in by_block(table):
        name = blocks.new(block or "registers")
        if name != block:
            own += [f"<npulab:block name={quoteattr(name)} is={quoteattr(block)}/>"]
        if block in said:
            own.append(
                f'<npulab:addresses name={quoteattr(name)} are="{str(said[block]).lower()}"/>'
            )
        end = max(offset for offset, _, _ in registers) + WORD_BITS // 8
        lines += [
            f"<peripheral><name>{name}</name><baseAddress>{begin % 2**WORD_BITS:#010x}</baseAddress>",
            f"<addressBlock><offset>0x0</offset><size>{-(-end // APART) * APART % 2**WORD_BITS:#x}</size>"
            "<usage>registers</usage></addressBlock>",
            "<registers>",
        ]
        words = Identifiers()
        for offset, register, rows in registers:
            word = words.new(register)
            if word != register:
                own += [
                    f"<npulab:register name={quoteattr(f'{name}.{word}')} "
                    f"is={quoteattr(register)}/>"
                ]
            lines += [
                f"<register><name>{word}</name><addressOffset>{offset:#06x}</addressOffset><fields>",
                *_fields(rows, f"{name}.{word}", table, own, whole, apart),
                "</fields></register>",
            ]
        lines += ["</registers>", "</peripheral>"]
    lines.append("</peripherals>")
    own += [
        line
        for enum, values in table.enums.items()
        if enum not in whole or enum in apart
        for line in _own_enum(enum, values)
    ]
    lines += [
        "<vendorExtensions>",
        f'<npulab:map xmlns:npulab="{NPULAB}">',
        *own,
        "</npulab:map>",
        "</vendorExtensions>",
        "</device>",
        "",
    ]
    return "\n".join(lines)


def _fields(
    rows: Sequence[Row],
    path: str,
    table: RegisterTable,
    own: list[str],
    whole: set[str],
    apart: set[str],
) -> Iterator[str]:
    names = Identifiers()
    for row in rows:
        real = name_of(row, table.by_address)
        name = names.new(real)
        said = {}
        if name != real:
            said = {"is": real}
        said |= {column: str(row[column]) for column in OWN if column in row}
        said |= {column: "" for column in NAMES if column not in row}
        text = f"<field><name>{name}</name>"
        if "note" in row:
            text += f"<description>{escape(row['note'])}</description>"
        text += f"<bitOffset>{row['lsb']}</bitOffset><bitWidth>{row['width']}</bitWidth>"
        value = row.get("value", "")
        enum = Meaning.parse(value).enum
        values = table.enums.get(enum, {})
        if (
            enum
            and value == f"enum:{enum}"
            and "at" not in row
            and _writable(enum, values, row["width"])
        ):
            labels = Identifiers()
            written = {raw: labels.new(label) for raw, label in values.items()}
            if written == {**values}:
                whole |= {enum}
            else:
                whole |= set()
            text += (
                f"<enumeratedValues><name>{enum}</name>"
                + "".join(
                    f"<enumeratedValue><name>{label}</name><value>{raw:#x}</value></enumeratedValue>"
                    for raw, label in written.items()
                )
                + "</enumeratedValues>"
            )
        elif value:
            said["value"] = value
            apart |= {enum}
        if said:
            own.append(
                f"<npulab:field name={quoteattr(f'{path}.{name}')} "
                + " ".join(f"{key}={quoteattr(text)}" for key, text in said.items())
                + "/>"
            )
        yield f"{text}</field>"


def _writable(enum: str, values: Mapping[int, str], width: int) -> bool:
    return bool(NAME.fullmatch(enum) and values and max(values) < 2**width)


def _own_enum(enum: str, values: Mapping[int, str]) -> Iterator[str]:
    yield (
        f"<npulab:enum name={quoteattr(enum)}>"
        + "".join(
            f'<npulab:value raw="{raw:#x}" name={quoteattr(text)}/>' for raw, text in values.items()
        )
        + "</npulab:enum>"
    )
