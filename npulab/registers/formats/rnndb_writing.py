"""Writer of rnndb (rules-ng) XML; ``rnndb`` has the table of how its elements become a map."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import dropwhile
from typing import Any, NamedTuple
from xml.sax.saxutils import escape, quoteattr

from npulab.registers.fields import WORD_BITS, WORD_BYTES, Cells, Row
from npulab.registers.formats.naming import by_block
from npulab.registers.formats.rnndb import NAMESPACE, NPULAB
from npulab.registers.formats.tables import RegisterTable
from npulab.registers.meaning import Meaning
from npulab.registers.names import name_of

INDENT = "   "
AUTHOR = re.compile(
    r"Author: (?P<name>.*?)(?: <(?P<email>[^>]*)>)?(?: \((?P<nicks>[^)]*)\))?(?:: (?P<text>.*))?"
)
INDEX = re.compile(r"([^\[\]]+)\[(0|[1-9]\d*)\](?:\.(.+))?")
SEVERAL = re.compile(r"[\s,]")  # separates the names of several variants
OWN = ("at", "address", "align", "evidence", "nameless")


class WrittenRegister(NamedTuple):
    """A register to be written: byte offset, name, size in bits, and its fields. A field is a row
    as sorted (column, cell) pairs; its ``lsb`` counts from the start of the register."""

    offset: int
    name: str
    size: int
    fields: tuple[tuple[tuple[str, Any], ...], ...]


def rnndb_text(table: RegisterTable) -> str:
    """Return the XML of a table: a domain for each block, arrays for registers that repeat.

    Registers and fields without a name get their automatic name (``registers.names``), and an
    attribute says so. ``read_rnndb`` reads the same table from the text.
    """
    lines = ["", *_copyright(table.copyright)]
    for name, values in table.enums.items():
        lines.append(f"<enum name={quoteattr(name)}>")
        for raw, text in values.items():
            lines.append(f'{INDENT}<value name={quoteattr(text)} value="{raw:#x}"/>')
        lines += ["</enum>", ""]
    said = table.said()
    for block, _, registers in by_block(table):
        head = f"<domain name={quoteattr(block or 'registers')}"
        if not block:
            head += ' npulab:nameless="yes"'
        if block in said:
            head += f' npulab:addresses="{str(said[block]).lower()}"'
        body = _body(_registers(registers, table.by_address), 1, 0)
        lines += [f"{head}>", *body, "</domain>", ""]
    own = ""
    if any(" npulab:" in line for line in lines):
        own = f'\nxmlns:npulab="{NPULAB}"'
    begin = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        f'<database xmlns="{NAMESPACE}"{own}',
        'xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"',
        f'xsi:schemaLocation="{NAMESPACE} rules-ng.xsd">',
    ]
    return "\n".join([*begin, *lines, "</database>", ""])


def _registers(
    registers: Sequence[tuple[int, str, list[Row]]], by_address: frozenset[str]
) -> list[WrittenRegister]:
    """Return the registers of a block; two neighbouring words with the same name are one register
    of 64 bits."""
    places = {}
    for offset, name, rows in registers:
        places[offset, name] = [_said(row, by_address) for row in rows]
    second = {(offset, name) for offset, name in places if (offset - WORD_BYTES, name) in places}
    out = []
    for (offset, name), fields in places.items():
        if (offset, name) in second:
            continue
        size, upper = WORD_BITS, (offset + WORD_BYTES, name)
        if upper in second and (offset + 2 * WORD_BYTES, name) not in second:
            size += WORD_BITS
            for said in places[upper]:
                fields.append({**said, "lsb": said["lsb"] + WORD_BITS})
        else:  # three words or more with one name are a register each
            second.discard(upper)
        joined = [tuple(sorted(field.items())) for field in _joined(fields, name)]
        out.append(WrittenRegister(offset, name, size, tuple(joined)))
    return out


def _joined(fields: Sequence[Cells], register: str) -> Iterator[Cells]:
    """Yield the fields of a register. If a field has a piece in each word of a register of 64 bits,
    the pieces become one field, but only if npulab reads the joined field back by the same name.
    """
    lower: dict[Any, Cells] = {}
    upper: dict[Any, Cells] = {}
    for field in fields:
        key = field["field"], field.get("feature")
        whole = field["field"] == register and len(fields) == 2
        named = field["field"].removeprefix(f"{register}.") not in ("", field["field"])
        ends = field.get("at") == 0 and field["lsb"] + field["width"] == WORD_BITS
        if ends and (whole or named):
            lower[key] = field
        elif field["lsb"] == WORD_BITS:
            upper.setdefault((*key, field.get("at")), field)
    for field in fields:
        key = field["field"], field.get("feature")
        low = lower.get(key)
        if low is None or (field is not low and field["lsb"] != WORD_BITS):
            yield field
        elif field is low:
            high = upper.get((*key, low["width"]))
            if high is None:
                yield field
                continue
            joined = {column: value for column, value in low.items() if column != "at"}
            joined["field"] = ""
            if low["field"] != register:
                joined["field"] = low["field"].removeprefix(f"{register}.")
            yield {**joined, "width": low["width"] + high["width"]}
        elif field.get("at") != low["width"]:
            yield field


def _said(row: Row, by_address: frozenset[str]) -> Cells:
    """Return the columns of a row that the element of its field must state; ``nameless`` has the
    columns whose name is automatic."""
    said = {**row, "field": name_of(row, by_address)}
    if blank := [name for name in ("register", "field") if name not in row]:
        said["nameless"] = " ".join(blank)
    for name in ("block", "offset", "register"):
        said.pop(name, None)
    return said


def _body(registers: Sequence[WrittenRegister], depth: int, base: int) -> Iterator[str]:
    """Yield the lines of XML for registers; written offsets count from the byte ``base``."""
    arrays, inside = _arrays(registers)
    for register in registers:
        if register in inside:
            continue
        if register not in arrays:
            yield from _register(register, depth, base)
            continue
        name, offset, stride, length, elements = arrays[register]
        yield (
            f'{INDENT * depth}<array offset="{offset - base:#06x}" name={quoteattr(name)} '
            f'stride="{stride:#x}" length="{length}">'
        )
        yield from _body(elements, depth + 1, offset)
        yield f"{INDENT * depth}</array>"


def _arrays(
    registers: Sequence[WrittenRegister],
) -> tuple[dict[WrittenRegister, Any], set[WrittenRegister]]:
    """Return the arrays and the further registers of their elements. An array is (name, offset,
    stride, length, registers of its first element); its key is its first register."""
    groups: dict[str, dict[int, list[tuple[WrittenRegister, str]]]] = {}
    for register in registers:
        if match := INDEX.fullmatch(register.name):
            element = groups.setdefault(match[1], {}).setdefault(int(match[2]), [])
            element.append((register, match[3] or ""))
    arrays: dict[WrittenRegister, Any] = {}
    inside: set[WrittenRegister] = set()
    for name, elements in groups.items():
        offset = elements[min(elements)][0][0].offset
        stride = 0
        if 1 in elements:
            stride = elements[1][0][0].offset - offset
        shapes, members = set(), []
        for n, element in elements.items():
            begin = offset + stride * n
            members += [register for register, _ in element]
            shapes.add(
                tuple(reg._replace(offset=reg.offset - begin, name=tail) for reg, tail in element)
            )
        # it is an array if its elements are numbered from 0 on, have the same registers and are
        # evenly apart
        if len(shapes) == 1 and sorted(elements) == [*range(len(elements))] and stride >= 0:
            first = [register._replace(name=tail) for register, tail in elements[0]]
            arrays[members[0]] = name, offset, stride, len(elements), first
            inside.update(members[1:])
    return arrays, inside


def _register(register: WrittenRegister, depth: int, base: int) -> Iterator[str]:
    """Yield the lines of XML for a register and its fields."""
    head = f'{INDENT * depth}<reg{register.size} offset="{register.offset - base:#06x}"'
    if register.name:
        head += f" name={quoteattr(register.name)}"
    fields = [dict(values) for values in register.fields]
    if [said["field"] for said in fields] == [""]:
        whole = (fields[0]["lsb"], fields[0]["width"]) == (0, register.size)
        yield f"{head} {_attributes(fields[0], place=not whole)}/>"
        return
    yield f"{head}>"
    for said in fields:
        yield f"{INDENT * (depth + 1)}<bitfield {_attributes(said)}/>"
    yield f"{INDENT * depth}</reg{register.size}>"


def _attributes(said: Row, place: bool = True) -> str:
    """Return the attributes of a field; its bits are among them if ``place`` is True."""
    out: Cells = {}
    if said["field"]:
        out["name"] = said["field"]
    if place and said["width"] == 1:
        out["pos"] = said["lsb"]
    elif place:
        out |= {"low": said["lsb"], "high": said["lsb"] + said["width"] - 1}
    out |= _type(said)
    if "feature" in said and not SEVERAL.search(said["feature"]):
        out["variants"] = said["feature"]
    if "note" in said:
        out["brief"] = said["note"]
    out |= _own(said)
    return " ".join(f"{name}={quoteattr(str(value))}" for name, value in out.items())


def _type(said: Row) -> Cells:
    """Return the attributes ``type``, ``shr`` and ``radix``, as far as they can state the value
    column."""
    value = said.get("value", "")
    meaning = Meaning.parse(value)
    steps = dict(meaning.steps)
    factor, radix = steps.get("*", 1), steps.get(">>")
    plain = "uint"
    if said["width"] == 1:
        plain = "boolean"
    if not value:
        return {"type": plain}
    if meaning.enum and not meaning.kind:
        return {"type": meaning.enum}
    if meaning.kind.startswith("f"):
        return {"type": "float"}
    if meaning.enum or "+" in steps or factor < 1 or factor.bit_count() != 1 or radix == 0:
        return {"type": plain}
    # rnndb's name of the type, by (is signed, has a radix)
    kinds = {(0, 0): "uint", (1, 0): "int", (0, 1): "ufixed", (1, 1): "fixed"}
    out: Cells = {"type": kinds[meaning.kind == "signed", bool(radix)]}
    if factor > 1:
        out["shr"] = factor.bit_length() - 1
    if radix:
        out["radix"] = radix
    return out


def _own(said: Row) -> Cells:
    """Return npulab's own attributes, which state what rnndb cannot."""
    out = {f"npulab:{name}": said[name] for name in OWN if name in said}
    if SEVERAL.search(said.get("feature", "")):
        out["npulab:feature"] = said["feature"]
    value = said.get("value", "")
    if value and _type(said)["type"] in ("uint", "boolean") and "shr" not in _type(said):
        out["npulab:value"] = value
    return out


def _copyright(text: str) -> list[str]:
    """Return the lines of the copyright element. If the text is as ``read_rnndb`` makes it, the
    year and the authors become elements; any other text becomes the licence."""
    if not text:
        return []
    lines = text.splitlines()
    year = re.fullmatch(r"Copyright (\S.*)", lines[0])
    rest, out = lines, ["<copyright>"]
    if year:
        rest, out = lines[1:], [f"<copyright year={quoteattr(year[1])}>"]
    after = [*dropwhile(AUTHOR.fullmatch, rest)]
    # if a reader would make another text from these elements, the whole text becomes the licence
    if after and (after[0] or len(after) == len(lines)):
        rest, out = ["", *lines], ["<copyright>"]
    while rest and (match := AUTHOR.fullmatch(rest[0])):
        mail = ""
        if match["email"]:
            mail = f" email={quoteattr(match['email'])}"
        nicks = filter(None, (match["nicks"] or "").split(", "))
        text = "".join(f"<nick name={quoteattr(nick)}/>" for nick in nicks)
        text += escape(match["text"] or "")
        out.append(f"<author name={quoteattr(match['name'])}{mail}>{text}</author>")
        rest = rest[1:]
    body = "\n".join(rest).strip("\n")
    if body:
        out.append(f"<license>\n{escape(body)}\n</license>")
    return [*out, "</copyright>", ""]
