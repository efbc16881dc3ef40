"""Reader of shift and mask macros: the headers of envytools and Mesa, of Linux drivers, of CMSIS.

================================================== ====================================================================
``REG_X``, ``X_OFFSET``, ``X_REG``, ``X``          a register at a byte offset, with fields whose names begin ``X_``
``X_F__MASK``, ``_MASK``, ``_Msk``, ``_FIELD``     the bits of field F, in place, or from bit 0 where a shift puts them
``X_F__SHIFT``, ``_SHIFT``, ``_LSB``, ``_Pos``     its lowest bit; ``_WIDTH``, ``_MSB`` its width or highest one
``X_F BIT(3)``, ``GENMASK(7, 4)``, ``(1 << 3)``    the same in one
``X_F(x) (((x) & 0xf) << 4)``                      the same, by what it makes of all ones and of one
``static inline uint32_t X_F(int32_t val)``        what envytools says of the value: signed, float, ``>> n``
``X_F_NAME 0x10``                                  a value of F's enum, in place or from bit 0
================================================== ====================================================================

A field with a shift and nothing that says its width reaches to the next one; its evidence is
``guess``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from npulab.registers.fields import WORD_BITS, WORD_BYTES
from npulab.registers.formats.c_fields import ALL, Found, rows_of, runs_of
from npulab.registers.formats.c_marked import annotated, notes_of
from npulab.registers.formats.c_numbers import Macro, NumberError
from npulab.registers.formats.c_source import Source

SHOWN = 6
TAIL = re.compile(r"(.+?)(_{1,2})(MASK|Msk|FIELD|SHIFT|SHFT|LSB|Pos|POS|OFFSET|WIDTH|BITS|MSB)")
LOW, WIDE = ("SHIFT", "SHFT", "LSB", "Pos", "POS", "OFFSET"), ("WIDTH", "BITS")
REGISTER = re.compile(r"REG_(\w+)|(\w+?)_(?:OFFSET|REG|ADDR)")
ONE = re.compile(r"\bBIT\w*\s*\(|\bGENMASK\w*\s*\(|\bREG_(?:BIT|GENMASK)\w*\s*\(|<<")
MADE = re.compile(r"<<|\bFIELD_PREP\s*\(|\bGENMASK\w*\s*\(|\bBIT\w*\s*\(|_MASK\b")
HEX = re.compile(r"\(?\s*0[xX][0-9a-fA-F]+[uUlL]*\s*\)?")
INLINE = re.compile(r"\bstatic\s+inline\s+uint32_t\s+(\w+)\s*\(\s*(u?int32_t|uint|float|enum\s+\w+)\s+(\w+)\s*\)\s*"
                    r"\{([^{}]{0,600})\}")


def read_macros(source: Source, known_enums: Mapping[str, Any], lost: dict[str, None],
                ) -> tuple[list[tuple[int, list[dict[str, Any]]]], dict[str, dict[int, str]]]:
    """(position, rows) of each register, and their own enums; ``lost`` gets what has no place."""
    notes = notes_of(source)
    values: dict[str, int] = {}
    for name, macro in source.macros.items():
        if macro.parameters is None and macro.body:
            try:
                values[name] = source.numbers.macro(name)
            except NumberError:
                continue
    chunks, enums, taken = annotated(source, values, notes)
    rest = {name: macro for name, macro in source.macros.items() if name not in taken}
    fields = _fields(source, rest, values, notes)
    registers = _registers(rest, values, fields)
    _place(fields, registers)
    for some in _by_register(fields, registers).values():
        lows = sorted(other.low if other.low >= 0 else (other.bits & -other.bits).bit_length() - 1 for other in some)
        for one in some:
            if one.bits < 0 <= one.low:
                one.width = next((low for low in lows if low > one.low), WORD_BITS) - one.low
                one.words["evidence"] = "guess"
    known = {**fields}
    _one_macro(source, rest, values, fields, registers, notes)
    _place(fields, registers)
    owners = [name for name, one in fields.items() if one.register]
    _values(rest, values, fields, registers, known, owners)
    meaning = {name: value for name, value in _inline(source).items()
               if not value.startswith("enum:") or value.removeprefix("enum:") in known_enums}
    unplaced = [one.name for one in fields.values() if not one.register or one.bits <= 0]
    offsets: dict[int, str] = {}
    for name, some in _by_register(fields, registers).items():
        offset, position, certain = registers[name]
        some = [one for one in some if one.bits > 0]
        if not some and not certain:
            continue
        if offsets.setdefault(offset, name) != name:
            lost[f"register {name} at {offset:#x}, where {offsets[offset]} lies"] = None
            continue
        chunks.append((position, rows_of(name, offset, some, notes.get(position, ("", {}))[0], enums, meaning, lost)))
    arrays = [name for name, macro in rest.items() if macro.parameters and REGISTER.fullmatch(name)]
    if arrays:
        lost[f"registers that are arrays of unknown length: {_some(arrays)}"] = None
    block = re.sub(r"\W", "_", source.path.stem)
    for _, rows in chunks:
        for row in rows:
            row.setdefault("block", block)
    if unplaced:
        lost[f"macros without a register or without bits: {_some(unplaced)}"] = None
    return chunks, enums


def _some(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def _fields(source: Source, rest: Mapping[str, Macro], values: Mapping[str, int],
            notes: Mapping[int, tuple[str, dict[str, Any]]]) -> dict[str, Found]:
    """Fields by what their macros are named."""
    out: dict[str, Found] = {}
    for name, macro in rest.items():
        match = TAIL.fullmatch(name)
        if match is None or name not in values or not _says_bits(match, rest):
            continue
        one = out.setdefault(match[1], Found(match[1], macro.position))
        value, kind = values[name], match[3]
        one.strict |= match[2] == "__"
        one.note = one.note or notes.get(macro.position, ("", {}))[0]
        if kind in ("MASK", "Msk", "FIELD"):
            one.mask = value & ALL
        elif kind in LOW:
            one.low = value if 0 <= value < WORD_BITS else one.low
        elif kind in WIDE:
            one.width = value if 0 < value <= WORD_BITS else one.width
        else:
            one.high = value if 0 <= value < WORD_BITS else one.high
    for name, macro in rest.items():
        if macro.parameters is None or len(macro.parameters) != 1 or name in out or not MADE.search(macro.body) \
                or _longest(name, out):  # one that only sets a field that others say
            continue
        try:
            every, one_bit = source.numbers.call(name, ALL) & ALL, source.numbers.call(name, 1)
        except NumberError:
            continue
        if one_bit > 0 and one_bit.bit_count() == 1 and one_bit < 2 ** WORD_BITS:
            low = one_bit.bit_length() - 1
            whole = every == ALL - (2 ** low - 1)  # nothing cuts the value
            out[name] = Found(name, macro.position, -1 if whole else every, low,
                              note=notes.get(macro.position, ("", {}))[0])
    return {name: one for name, one in out.items() if one.bits >= 0 or one.low >= 0}


def _says_bits(match: re.Match[str], rest: Mapping[str, Macro]) -> bool:
    """Whether a name is of a field: an offset is one of bits only beside a mask, FIELD a mask only
    beside a shift."""
    beside = {"OFFSET": "MASK", "FIELD": "SHIFT"}.get(match[3])
    return beside is None or f"{match[1]}{match[2]}{beside}" in rest


def _registers(rest: Mapping[str, Macro], values: Mapping[str, int], fields: Mapping[str, Found],
               ) -> dict[str, tuple[int, int, bool]]:
    """(offset, position, whether its name says that it is one) of each register."""
    out: dict[str, tuple[int, int, bool]] = {}
    for name, macro in rest.items():
        value = values.get(name, -1)
        tail = TAIL.fullmatch(name)
        if value < 0 or value % WORD_BYTES or value >= 2 ** WORD_BITS or (tail and _says_bits(tail, rest)):
            continue
        if match := REGISTER.fullmatch(name):
            out[match[1] or match[2]] = value, macro.position, True
    members = [*fields, *(name for name, macro in rest.items() if ONE.search(macro.body))] if not out else []
    heads = {name[:at] for name in members for at in range(len(name)) if name[at] == "_"}
    for name, macro in rest.items():
        value = values.get(name, -1)
        if name in heads and name not in fields and macro.parameters is None and not ONE.search(macro.body) \
                and value >= 0 and not value % WORD_BYTES and value < 2 ** WORD_BITS:
            out[name] = value, macro.position, False
    if out and not any(certain for *_, certain in out.values()):
        _alone(rest, values, fields, out)
    return out


def _alone(rest: Mapping[str, Macro], values: Mapping[str, int], fields: Mapping[str, Found],
           out: dict[str, tuple[int, int, bool]]) -> None:
    """Add registers without fields: hexadecimal numbers, named as the others begin, that no other
    name begins."""
    first = {name.split("_")[0] for name in out}
    bases = {word for macro in rest.values() for word in re.findall(r"[A-Za-z_]\w*", macro.body)}
    used = {offset for offset, *_ in out.values()}
    for name, macro in rest.items():
        value = values.get(name, -1)
        if HEX.fullmatch(macro.body) and macro.parameters is None and name.split("_")[0] in first \
                and not _longest(name, out) and not _longest(name, fields) and name not in fields \
                and name not in bases and not TAIL.fullmatch(name) and not value % WORD_BYTES and value not in used \
                and value < 2 ** WORD_BITS:
            out[name] = value, macro.position, True
            used.add(value)


def _longest(name: str, known: Mapping[str, Any]) -> str:
    """The longest known name that this one begins with, at an underscore; blank for none."""
    return next((name[:at] for at in range(len(name) - 1, 0, -1) if name[at] == "_" and name[:at] in known), "")


def _place(fields: Mapping[str, Found], registers: Mapping[str, Any]) -> None:
    for one in fields.values():
        one.register = one.register or _longest(one.name, registers) or (one.name if one.name in registers else "")


def _by_register(fields: Mapping[str, Found], registers: Mapping[str, Any]) -> dict[str, list[Found]]:
    out: dict[str, list[Found]] = {name: [] for name in registers}
    for one in fields.values():
        if one.register:
            out[one.register].append(one)
    return out


def _one_macro(source: Source, rest: Mapping[str, Macro], values: Mapping[str, int], fields: dict[str, Found],
               registers: Mapping[str, Any], notes: Mapping[int, tuple[str, dict[str, Any]]]) -> None:
    """Add fields that one macro says: BIT, GENMASK, a shifted number, or a bit of a register of a
    chip's header."""
    for name, macro in rest.items():
        if macro.parameters is not None or name in fields or name in registers or TAIL.fullmatch(name) \
                or name not in values or REGISTER.fullmatch(name):
            continue
        register, owner = _longest(name, registers), _longest(name, fields)
        if not register or (owner and len(owner) > len(register)):
            continue
        value = values[name] & ALL
        if (ONE.search(macro.body) and len(runs_of(value)) == 1) or \
                (HEX.fullmatch(macro.body) and value.bit_count() == 1):
            fields[name] = Found(name, macro.position, value, note=notes.get(macro.position, ("", {}))[0],
                                 register=register)


def _values(rest: Mapping[str, Macro], values: Mapping[str, int], fields: dict[str, Found],
            registers: Mapping[str, Any], known: Mapping[str, Found], owners: list[str]) -> None:
    """Give the named values to the fields that they are of."""
    named = {name: fields[name] for name in owners}
    for name, macro in rest.items():
        if macro.parameters is not None or name not in values or TAIL.fullmatch(name) or name in registers \
                or name in fields:
            continue
        owner = _longest(name, named)
        if owner and len(owner) > len(_longest(name, registers)) and values[name] >= 0:
            named[owner].values[name[len(owner) + 1:]] = values[name], ONE.search(macro.body) is not None


def _inline(source: Source) -> dict[str, str]:
    """The value column of fields, as the functions of envytools say it."""
    out: dict[str, str] = {}
    for name, kind, argument, body in (match.groups() for match in INLINE.finditer(source.code)):
        shift = re.search(rf"\b{argument}\s*\)*\s*>>\s*(\d{{1,2}})\b", body)
        factor = re.search(rf"\b{argument}\s*\)*\s*\*\s*(\d+)\.0\b", body)
        signed = "signed " if kind == "int32_t" or "(int32_t)" in body else ""
        step = f"raw*{2 ** int(shift[1])}" if shift and 0 < int(shift[1]) < WORD_BITS else ""
        if factor and int(factor[1]).bit_count() == 1:
            step = f"raw>>{int(factor[1]).bit_length() - 1}"
        out[name] = "f32" if kind == "float" and "fui" in body else f"enum:{kind.split()[1]}" if kind[:4] == "enum" \
            else (signed + step).strip()
    return {name: value for name, value in out.items() if value}
