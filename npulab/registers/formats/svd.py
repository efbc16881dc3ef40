"""Reader of CMSIS-SVD, the XML in which makers of microcontrollers describe their registers.

============================
==========================================================================================
``peripheral``               a block; offsets count from its base address, which goes into the note of its first field
``cluster``                  what is inside, named ``CLUSTER.REGISTER``
``register``                 8 to 64 bits, of the size that it or what is around it says; 64 are two words, registers of
                             8 and 16 bits share a word
``field``                    ``bitRange``, ``lsb`` and ``msb``, or ``bitOffset`` and ``bitWidth``
``dim``, ``dimIncrement``,   an array: ``NAME[%s]`` becomes ``NAME[0]``, ``NAME%s`` takes the words of ``dimIndex``
``dimIndex``
``derivedFrom``              what is not said is as there: of peripherals, clusters, registers, fields, enumeratedValues
``enumeratedValues``         an enum, named by its name, else after register and field
``access``, ``resetValue``   a register's go into its note; a field's access where it is another than its register's
============================
==========================================================================================

Of two registers at an address, as ``alternateRegister`` has them, and of two fields that share
bits, the first stays and the other is lost; a second name of a register or field, as ``RESERVED``,
gets its place behind it.  What npulab's table has and SVD has no word for stands in
``vendorExtensions``.  Source: the CMSIS-SVD format description and its schema 1.3.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from npulab.registers.formats.placing import Found, Register, placed
from npulab.registers.formats.svd_counting import Counting
from npulab.registers.formats.svd_names import (
    MOST_DERIVED,
    Device,
    TooMuch,
    View,
    declare,
    elements,
    parsed,
    view_of,
)
from npulab.registers.formats.tables import RegisterTable
from npulab.registers.formats.xml import Element, read_xml
from npulab.support.refuse import refuse_if

MOST_ELEMENTS = 2**20  # of a file: a chip of 100,000 fields has some 800,000
PLAIN_ACCESS = "read-write"
ROW = ("value", "feature", "at", "align", "evidence")


class Around(NamedTuple):
    """What holds in a place unless an element says otherwise."""

    size: str = "32"
    access: str = ""
    reset: str = ""
    mask: str = ""

    def of(self, view: View) -> Around:
        return Around(
            view.text("size") or self.size,
            view.text("access") or self.access,
            view.text("resetValue") or self.reset,
            view.text("resetMask") or self.mask,
        )


def read_svd(path: Path) -> RegisterTable:
    """The registers of a device.

    A UserWarning counts and names what the table has no place for, and registers and peripherals
    that are not understood.  Raises ValueError with file and line if the file is broken or nothing
    of it is understood, FileNotFoundError for no file.
    """
    path = Path(path)
    root = read_xml(path, "", MOST_ELEMENTS)
    refuse_if(root.tag != "device", root.where, f"the element {root.tag}", "is device")
    device = Device()
    view = View((root,), "")
    if any(
        one.text == "big" for cpu in root if cpu.tag == "cpu" for one in cpu if one.tag == "endian"
    ):
        device.losses.lose(
            root.where, "that the device is big-endian: bits and offsets are taken as little-endian"
        )
    declare(root, "", device)
    registers = _in_bytes(_registers(view, device), view, device)
    said = {
        _own_name(device, "block", name, name): one.get("are") == "true"
        for (tag, name), one in device.own.items()
        if tag == "addresses"
    }
    table = placed(registers, device.enums.by_name, device.losses, _copyright(root), said)
    if device.errors and not table.rows:
        raise device.errors[0]
    device.losses.warn(path)
    return table


def _in_bytes(registers: Iterator[Register], root: View, device: Device) -> Iterable[Register]:
    """The registers with offsets in bytes: makers that state a wider address unit often count bytes
    all the same; they do if no two registers share bytes then."""
    unit = root.number("addressUnitBits", 8)
    if unit == 8:
        return registers
    if unit not in (16, 32, 64):
        raise ValueError(
            f"{root.where}: got addressUnitBits {root.text('addressUnitBits')}, allowed is 8, 16, "
            "32 or "
            "64"
        )
    every = [*registers]
    places = sorted({(register.block, register.offset, register.size) for register in every})
    by_bytes = all(
        one[0] != other[0] or one[1] == other[1] or one[1] + one[2] // 8 <= other[1]
        for one, other in pairwise(places)
    )
    device.losses.lose(
        root.where,
        f"the address unit of {unit} bits: offsets are taken as "
        f"{'bytes' if by_bytes else 'counts of it'}",
    )
    if by_bytes:
        return every
    return [register._replace(offset=register.offset * unit // 8) for register in every]


def _registers(root: View, device: Device) -> Iterator[Register]:
    around = Around().of(root)
    is_own = ("map", "") in device.own
    peripherals = [inner for some in root.every("peripherals") for inner in some]
    Counting(device).refuse(one for one in peripherals if one.tag == "peripheral")
    seen = set[tuple[str, str]]()
    for one in peripherals:
        if one.tag != "peripheral":
            device.losses.lose(one.where, f"the element {one.tag}")
            continue
        try:
            blocks = [*_peripheral(one, around, device)]
        except TooMuch:
            raise
        except ValueError as error:
            if is_own:
                raise
            count = sum(inner.tag == "register" for some in one for inner in some)
            device.lose(one.where, f"the peripheral {_name(one)}", error, count)
            continue
        for block, about, register in blocks:
            unique = f"{register.name}_{register.offset:#x}"
            if not is_own and (block, unique) in seen:
                device.losses.lose(
                    register.where,
                    f"the second register {register.name} at {register.offset:#x}",
                    1,
                )
                continue
            if not is_own and (block, register.name) in seen:
                register = register._replace(name=unique)
            seen |= {(block, register.name), (block, unique)}
            yield register._replace(note=". ".join(filter(None, (about, register.note))))


def _peripheral(
    one: Element, around: Around, device: Device
) -> Iterator[tuple[str, str, Register]]:
    """(block, what the note of the block's first register begins with, register) of a
    peripheral."""
    view = view_of(one, device)
    empty = any(inner.tag == "baseAddress" and not inner.text for inner in one)
    if empty:
        device.losses.lose(
            one.where, f"where the peripheral {_name(one)} lies: its baseAddress is empty"
        )
    for place in elements(view, "baseAddress", device, 0 if empty else None):
        block = _own_name(device, "block", view.path, place.name)
        if ("map", "") in device.own:
            about = ""
        else:
            about = f"{place.name} at {place.offset:#x}: {view.text('description')}".rstrip(": ")
        for some in view.every("registers"):
            for register in _inside(some, block, "", 0, around.of(view), device):
                yield block, about, register
                about = ""


def _name(one: Element) -> str:
    return next((inner.text for inner in one if inner.tag == "name"), "")


def _inside(
    around_it: Element,
    block: str,
    prefix: str,
    offset: int,
    around: Around,
    device: Device,
    depth: int = 0,
) -> Iterator[Register]:
    """The registers in ``registers`` or in a cluster."""
    refuse_if(
        depth > MOST_DERIVED,
        f"{around_it.where}: {around_it.tag} {prefix}",
        f"more than {MOST_DERIVED} clusters within each other",
        "are as many",
    )
    for one in around_it:
        if one.tag not in ("register", "cluster"):
            if one.tag not in KNOWN:
                device.losses.lose(one.where, f"the element {one.tag}")
            continue
        view = view_of(one, device)
        for place in elements(view, "addressOffset", device):
            name, at, said = f"{prefix}{place.name}", offset + place.offset, around.of(view)
            if one.tag == "register":
                try:
                    yield _register(view, block, name, at, said, device)
                except ValueError as error:
                    if ("map", "") in device.own or isinstance(error, TooMuch):
                        raise
                    device.lose(view.where, f"register {name} of {block}", error, 1)
                continue
            source = next(
                (
                    some
                    for some in view.chain
                    if any(i.tag in ("register", "cluster") for i in some)
                ),
                one,
            )
            yield from _inside(source, block, f"{name}.", at, said, device, depth + 1)


def _register(
    view: View, block: str, name: str, offset: int, around: Around, device: Device
) -> Register:
    size = parsed(view.where, f"register {name}", "size", around.size)
    real = _own_name(device, "register", view.path, name)
    fields: list[Found] = []
    for one in (inner for some in view.every("fields") for inner in some):
        if one.tag != "field":
            device.losses.lose(one.where, f"the element {one.tag}")
            continue
        field_view = view_of(one, device)
        low, high = _bits(field_view, name)
        access = field_view.text("access")
        for place in elements(field_view, "", device):
            own = device.own.get(("field", field_view.path))
            said = []
            if access and access != (around.access or PLAIN_ACCESS):
                said = [access]
            said += [
                f"{words} {text}" for tag, words in NOTED.items() if (text := field_view.text(tag))
            ]
            row: dict[str, Any] = {"note": _noted(field_view.text("description"), said)}
            row |= {
                "value": _enum(field_view, block, f"{name}_{place.name}", high - low + 1, device)
            }
            row |= _own_row(own, device)
            found = Found(
                _own_name(device, "field", field_view.path, place.name),
                low + place.offset,
                high + place.offset,
                field_view.where,
                row,
            )
            if ("map", "") not in device.own:
                if not found.low <= found.high < size:
                    device.losses.lose(
                        found.where,
                        f"field {found.name} of register {name}, whose bits {found.low} to "
                        f"{found.high} are not inside 0 to {size - 1}",
                    )
                    continue
                if any(found.low <= other.high and other.low <= found.high for other in fields):
                    device.losses.lose(
                        found.where,
                        f"field {found.name} of register {name}, of whose bits another has some",
                    )
                    continue
                if any(found.name == other.name for other in fields):
                    found = found._replace(name=f"{found.name}_{found.low}")
            fields.append(found)
    said = []
    if around.access not in ("", PLAIN_ACCESS):
        said = [around.access]
    said += [f"{words} {text}" for tag, words in NOTED.items() if (text := view.text(tag))]
    if around.reset:
        try:
            reset = parsed(view.where, f"register {name}", "resetValue", around.reset)
            if around.mask:
                reset &= parsed(view.where, f"register {name}", "resetMask", around.mask)
            else:
                reset &= -1
            if view.text("resetValue") or reset:
                said += [f"reset {reset:#x}"]
        except ValueError:
            device.losses.lose(view.where, f"the reset value of {name}, which is no number")
    note = _noted(view.text("description"), said)
    return Register(block, offset, size, real, view.where, note, tuple(fields))


def _bits(view: View, register: str) -> tuple[int, int]:
    """The lowest and the highest bit of a field."""
    what = f"field {register}.{view.path.rpartition('.')[2]}"
    for element in view.chain:
        one = View((element,), view.path)
        if text := one.text("bitRange"):
            match = re.fullmatch(r"\[(\d{1,4}):(\d{1,4})\]", text)
            if match is None:
                raise ValueError(
                    f"{view.where}: {what}: got bitRange {text!r}, allowed is [HIGH:LOW]"
                )
            return int(match[2]), int(match[1])
        if one.text("lsb") or one.text("msb"):
            return one.number("lsb"), one.number("msb")
        if one.text("bitOffset"):
            low = one.number("bitOffset")
            return low, low + view.number("bitWidth", 1) - 1
    raise ValueError(
        f"{view.where}: {what}: got no bits, allowed is bitRange, lsb and msb, or bitOffset and "
        "bitWidth"
    )


def _enum(view: View, block: str, name: str, width: int, device: Device) -> str:
    """The value of a field that has enumerated values; they are added to the enums."""
    some = view.every("enumeratedValues")
    for other in some[1:]:
        device.losses.lose(other.where, f"the second enumeratedValues of {name}")
    if not some:
        return ""
    one, seen = some[0], 0
    label = _name(one)
    while not any(inner.tag == "enumeratedValue" for inner in one) and (
        source := one.get("derivedFrom")
    ):
        base = device.enum_named(source, view.path)
        seen += 1
        if base is None or seen > MOST_DERIVED:
            raise ValueError(
                f"{one.where}: enumeratedValues of {name}: got derivedFrom {source!r}, allowed is "
                "the "
                "name of others in the file, not derived from these"
            )
        one, label = base, label or next((inner.text for inner in base if inner.tag == "name"), "")
    values = _values(one, name, width, device)
    if not values:
        return ""
    return device.enums.take(label, block, name, values, view.where)


def _values(one: Element, name: str, width: int, device: Device) -> dict[int, str]:
    out: dict[int, str] = {}
    for value in (inner for inner in one if inner.tag == "enumeratedValue"):
        view = View((value,), "")
        label, text = view.text("name"), view.text("value")
        if not text or not label:
            device.losses.lose(
                value.where,
                f"{label or 'a value without a name'} of {name}, which has no number"
                if not text
                else f"{text} of {name}, which has no name",
            )
            continue
        if re.fullmatch(r"(#|0b)[01]*[xX][01xX]*", text):
            device.losses.lose(
                value.where, f"{label} of {name}, whose value {text} has bits that do not matter"
            )
            continue
        raw = parsed(value.where, f"enumeratedValue {label}", "value", re.sub("^0b", "#", text))
        if raw in out or label in out.values():
            device.losses.lose(
                value.where, f"{label} = {raw} of {name}, of which one is there before"
            )
        elif raw.bit_length() > width:
            device.losses.lose(value.where, f"{label} = {raw} of {name}, which has {width} bits")
        else:
            out[raw] = label
    return out


def _own_name(device: Device, tag: str, path: str, name: str) -> str:
    own = device.own.get((tag, path))
    if own is not None:
        return own.get("is", name)
    return name


def _own_row(own: Element | None, device: Device) -> dict[str, Any]:
    """The columns of a row that SVD has no word for."""
    if own is None:
        return {}
    out: dict[str, Any] = {name: own.get(name) for name in ROW if own.get(name)}
    for name in ("at", "align"):
        if name in out:
            out[name] = parsed(own.where, f"field {own.get('name')}", name, own.get(name))
    device.enums.refuse_unknown(str(out.get("value", "")), own.where)
    if own.get("address") == "yes":
        out |= {"address": "yes"}
    else:
        out |= {}
    return out | {name: own.get(name) for name in ("register", "field") if name in own.attributes}


def _noted(text: str, said: list[str]) -> str:
    if said:
        return f"{text} ({', '.join(said)})".strip()
    return text


def _copyright(root: Element) -> str:
    return next(("".join(one.texts) for one in root if one.tag == "licenseText"), "")


NOTED: Mapping[str, str] = {"modifiedWriteValues": "a write", "readAction": "a read"}
KNOWN = (
    "name",
    "description",
    "addressOffset",
    "dim",
    "dimIncrement",
    "dimIndex",
    "dimName",
    "dimArrayIndex",
    "size",
    "access",
    "protection",
    "resetValue",
    "resetMask",
    "alternateCluster",
    "alternateRegister",
    "alternateGroup",
    "headerStructName",
    "displayName",
)
