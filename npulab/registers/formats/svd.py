"""Reader of CMSIS-SVD, the XML in which makers of microcontrollers describe their registers.

===========================  ======================================================================
``peripheral``               a block; offsets count from its base address, which the note of its
                             first field has
``cluster``                  the registers in it, named ``CLUSTER.REGISTER``
``register``                 a register of 8 bits or more; its ``size`` is its own, or that of the
                             element around it; 64 bits are two words, registers of 8 and 16 bits
                             may share a word
``field``                    ``bitRange``, ``lsb`` and ``msb``, or ``bitOffset`` and ``bitWidth``
``dim``, ``dimIncrement``,   an array: ``NAME[%s]`` becomes ``NAME[0]``, ``NAME%s`` takes the words
``dimIndex``                 of ``dimIndex``
``derivedFrom``              what an element does not say itself is taken from the named
                             peripheral, cluster, register, field or enumeratedValues
``enumeratedValues``         an enum, with its own name or, if it has none, named after register
                             and field
``access``, ``resetValue``   part of the register's note; a field's access is part of the field's
                             note if it differs from the register's
===========================  ======================================================================

If two registers share an address, as ``alternateRegister`` allows, or two fields share bits, the
first stays and the second is lost. If two registers of a block or two fields of a register have the
same name, such as ``RESERVED``, the second gets its offset or lowest bit after the name.
``vendorExtensions`` have what npulab's table can say and SVD cannot. Source: the CMSIS-SVD format
description and its schema 1.3.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from npulab.registers.fields import Cells, NewCodes
from npulab.registers.formats.placing import Found, Register, placed
from npulab.registers.formats.svd_counting import Counting
from npulab.registers.formats.svd_names import (
    MOST_DERIVED,
    Device,
    TooMuch,
    View,
    declare,
    dim_of,
    elements,
    name_of,
    parsed,
    view_of,
)
from npulab.registers.formats.tables import RegisterTable
from npulab.registers.formats.xml import Element, read_xml
from npulab.support.refuse import refuse_if

MOST_ELEMENTS = 2**20  # a chip of 100,000 fields has about 800,000 elements
PLAIN_ACCESS = "read-write"
ROW = ("value", "feature", "at", "align", "evidence")  # columns that npulab's own words state


HOLDERS = ("register", "cluster")
NOTED: Mapping[str, str] = {"modifiedWriteValues": "a write", "readAction": "a read"}
# elements that may lie beside registers and clusters; other code reads them, or no table needs them
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


class RegisterPlace(NamedTuple):
    """Where registers lie: their block, the beginning of their names (``prefix``), and the offset
    to which the offsets of the registers are added."""

    block: str
    prefix: str
    offset: int


class Around(NamedTuple):
    """The size, access, reset value and reset mask, as texts, that hold for the elements inside an
    element unless they say otherwise."""

    size: str = "32"
    access: str = ""
    reset: str = ""
    mask: str = ""

    def of(self, view: View) -> Around:
        """Return the size, access, reset value and reset mask that hold inside an element."""
        return Around(
            view.text("size") or self.size,
            view.text("access") or self.access,
            view.text("resetValue") or self.reset,
            view.text("resetMask") or self.mask,
        )


def read_svd(path: Path) -> RegisterTable:
    """Return the registers of a device.

    A UserWarning counts and names what the table has no place for, and registers and peripherals
    that are not understood. Raises ValueError, with file and line, if the file is broken, if no
    register in it is understood, or if its arrays are too long; FileNotFoundError for no file.
    """
    path = Path(path)
    root = read_xml(path, "", MOST_ELEMENTS)
    refuse_if(root.tag != "device", root.where, f"the element {root.tag}", "is device")
    device = Device()
    view = View((root,), "")
    if View(tuple(view.every("cpu")), "").text("endian") == "big":
        device.losses.lose(
            root.where, "that the device is big-endian: bits and offsets are taken as little-endian"
        )
    declare(root, "", device)
    registers = _in_bytes(_registers(view, device), view, device)
    said = {}
    for (tag, name), element in device.own.items():
        if tag == "addresses":
            said[_own_name(device, "block", name, name)] = element.get("are") == "true"
    table = placed(registers, device.enums.by_name, device.losses, _copyright(root), said)
    if device.errors and not table.rows:
        raise device.errors[0]
    device.losses.warn(path)
    return table


def _in_bytes(registers: Iterator[Register], root: View, device: Device) -> Iterable[Register]:
    """Return the registers with offsets in bytes.

    The file may state a unit of addresses other than a byte, but many makers that do still count
    bytes. The reader assumes bytes, unless this would put registers on each other's bytes; a loss
    says what it assumes.
    """
    unit = root.number("addressUnitBits", 8)
    if unit == 8:
        return registers
    if unit not in (16, 32, 64):
        raise ValueError(
            f"{root.where}: got addressUnitBits {root.text('addressUnitBits')}, allowed is 8, 16, "
            "32 or 64"
        )
    every = [*registers]
    places = sorted({(register.block, register.offset, register.size) for register in every})
    by_bytes = True
    for (block, offset, size), (next_block, next_offset, _) in pairwise(places):
        if block == next_block and offset < next_offset < offset + size // 8:
            by_bytes = False
    counted = "counts of this unit"
    if by_bytes:
        counted = "bytes"
    device.losses.lose(
        root.where, f"the address unit of {unit} bits: offsets are taken as {counted}"
    )
    if by_bytes:
        return every
    return [register._replace(offset=register.offset * unit // 8) for register in every]


def _registers(root: View, device: Device) -> Iterator[Register]:
    around = Around().of(root)
    peripherals = root.inner("peripherals")
    # arrays in arrays multiply, so that a small file could ask for more registers than memory holds
    Counting(device).refuse(child for child in peripherals if child.tag == "peripheral")
    seen = set[tuple[str, str]]()
    for peripheral in peripherals:
        if peripheral.tag != "peripheral":
            device.losses.lose(peripheral.where, f"the element {peripheral.tag}")
            continue
        try:
            blocks = [*_peripheral(peripheral, around, device)]
        except TooMuch:
            raise
        except ValueError as error:
            if device.is_own:
                raise
            count = sum(inner.tag == "register" for registers in peripheral for inner in registers)
            device.lose(peripheral.where, f"the peripheral {name_of(peripheral)}", error, count)
            continue
        for block, about, register in blocks:
            unique = f"{register.name}_{register.offset:#x}"
            if not device.is_own and (block, unique) in seen:
                device.losses.lose(
                    register.where,
                    f"the second register {register.name} at {register.offset:#x}",
                    1,
                )
                continue
            if not device.is_own and (block, register.name) in seen:
                register = register._replace(name=unique)
            seen |= {(block, register.name), (block, unique)}
            yield register._replace(note=". ".join(filter(None, (about, register.note))))


def _peripheral(
    peripheral: Element, around: Around, device: Device
) -> Iterator[tuple[str, str, Register]]:
    """Yield (block, text, register) for each register of a peripheral. The text is about the block,
    and belongs into the note of the block's first register; it is blank for the other registers."""
    view = view_of(peripheral, device)
    empty = any(inner.tag == "baseAddress" and not inner.text for inner in peripheral)
    if empty:
        device.losses.lose(
            peripheral.where,
            f"where the peripheral {name_of(peripheral)} lies: its baseAddress is empty",
        )
    for place in elements(view, "baseAddress", device, 0 if empty else None):
        block = _own_name(device, "block", view.path, place.name)
        about = ""
        if not device.is_own:
            about = f"{place.name} at {place.offset:#x}: {view.text('description')}".rstrip(": ")
        for some in view.every("registers"):
            for register in _inside(some, RegisterPlace(block, "", 0), around.of(view), device):
                yield block, about, register
                about = ""


def _inside(
    element: Element, place: RegisterPlace, around: Around, device: Device, depth: int = 0
) -> Iterator[Register]:
    """Yield the registers in an element, which is ``registers`` or a cluster."""
    refuse_if(
        depth > MOST_DERIVED,
        f"{element.where}: {element.tag} {place.prefix}",
        f"more than {MOST_DERIVED} clusters within each other",
        f"are {MOST_DERIVED}",
    )
    for inner in element:
        if inner.tag not in HOLDERS:
            if inner.tag not in KNOWN:
                device.losses.lose(inner.where, f"the element {inner.tag}")
            continue
        view = view_of(inner, device)
        said = around.of(view)
        for item in elements(view, "addressOffset", device):
            name, offset = f"{place.prefix}{item.name}", place.offset + item.offset
            if inner.tag == "cluster":
                # a cluster without registers has those of the cluster that it is derived from
                sources = [some for some in view.chain if any(i.tag in HOLDERS for i in some)]
                within = RegisterPlace(place.block, f"{name}.", offset)
                registers = [*_inside([*sources, inner][0], within, said, device, depth + 1)]
                _tell_long(view, offset, registers, device)
                yield from registers
                continue
            try:
                yield _register(view, RegisterPlace(place.block, name, offset), said, device)
            except ValueError as error:
                if device.is_own or isinstance(error, TooMuch):
                    raise
                device.lose(view.where, f"register {name} of {place.block}", error, 1)


def _tell_long(view: View, offset: int, registers: list[Register], device: Device) -> None:
    """Record a loss if the elements of an array of clusters overlap: a cluster has a register at
    the array's increment or further. Other readers of SVD refuse such a file, or read other
    offsets. ``registers`` are those of the element at ``offset``."""
    if not dim_of(view) or device.is_own:
        return
    step = view.number("dimIncrement")
    last = max([register.offset for register in registers], default=offset) - offset
    if last >= step:
        device.losses.lose(
            view.where,
            f"what is meant by the cluster {view.path}, which has a register at {last:#x} and an "
            f"increment of {step:#x}: its elements are read as overlapping",
        )


def _register(view: View, place: RegisterPlace, around: Around, device: Device) -> Register:
    """Return the register of an element; ``place`` has its name as ``prefix``, and its offset."""
    name = place.prefix
    size = parsed(view.where, f"register {name}", "size", around.size)
    fields: list[Found] = []
    for element in view.inner("fields"):
        if element.tag != "field":
            device.losses.lose(element.where, f"the element {element.tag}")
            continue
        for found in _fields(view_of(element, device), place, around, device):
            if device.is_own:
                fields.append(found)
            elif _fits(found, fields, name, size, device):
                if any(found.name == other.name for other in fields):
                    found = found._replace(name=f"{found.name}_{found.low}")
                fields.append(found)
    said = _said(view)
    if around.access not in ("", PLAIN_ACCESS):
        said.insert(0, around.access)
    said += _reset(view, name, around, device)
    note = _noted(view.text("description"), said)
    plain = _own_name(device, "register", view.path, name)
    return Register(place.block, place.offset, size, plain, view.where, note, tuple(fields))


def _fields(view: View, place: RegisterPlace, around: Around, device: Device) -> Iterator[Found]:
    """Yield the field of an element or, for an array, its fields; ``place`` and ``around`` are
    those of the register."""
    low, high = _bits(view, place.prefix)
    said = _said(view)
    access = view.text("access")
    if access and access != (around.access or PLAIN_ACCESS):
        said.insert(0, access)
    note = _noted(view.text("description"), said)
    for item in elements(view, "", device):
        enum_name = f"{place.prefix}_{item.name}"
        row: Cells = {"note": note}
        row["value"] = _enum(view, place.block, enum_name, high - low + 1, device)
        row |= _own_row(device.own.get(("field", view.path)), device)
        yield Found(
            _own_name(device, "field", view.path, item.name),
            low + item.offset,
            high + item.offset,
            view.where,
            row,
        )


def _fits(found: Found, fields: list[Found], register: str, size: int, device: Device) -> bool:
    """True if a field lies inside its register of ``size`` bits and shares no bits with ``fields``.
    If not, it is recorded as a loss."""
    what = f"field {found.name} of register {register}"
    if not found.low <= found.high < size:
        reason = f"whose bits {found.low} to {found.high} are not inside 0 to {size - 1}"
        device.losses.lose(found.where, f"{what}, {reason}")
        return False
    if any(found.low <= other.high and other.low <= found.high for other in fields):
        device.losses.lose(found.where, f"{what}, which shares bits with another field")
        return False
    return True


def _said(view: View) -> list[str]:
    """Return what an element says of the effects of writes and reads, as words of a note."""
    return [f"{words} {text}" for tag, words in NOTED.items() if (text := view.text(tag))]


def _reset(view: View, name: str, around: Around, device: Device) -> list[str]:
    """Return the words of a note about the value after reset; an empty list if the file states
    none, or if it is 0 and stated only around the register."""
    if not around.reset:
        return []
    try:
        reset = parsed(view.where, f"register {name}", "resetValue", around.reset)
        if around.mask:
            reset &= parsed(view.where, f"register {name}", "resetMask", around.mask)
    except ValueError:
        device.losses.lose(view.where, f"the reset value of {name}, which is not a number")
        return []
    if view.text("resetValue") or reset:
        return [f"reset {reset:#x}"]
    return []


def _bits(view: View, register: str) -> tuple[int, int]:
    """Return the lowest and the highest bit of a field, from the first element in the chain that
    states bits."""
    what = f"field {register}.{view.path.rpartition('.')[2]}"
    for element in view.chain:
        own = View((element,), view.path)
        if text := own.text("bitRange"):
            match = re.fullmatch(r"\[(\d{1,4}):(\d{1,4})\]", text)
            if match is None:
                raise ValueError(
                    f"{view.where}: {what}: got bitRange {text!r}, allowed is [HIGH:LOW]"
                )
            return int(match[2]), int(match[1])
        if own.text("lsb") or own.text("msb"):
            return own.number("lsb"), own.number("msb")
        if own.text("bitOffset"):
            low = own.number("bitOffset")
            return low, low + view.number("bitWidth", 1) - 1
    raise ValueError(
        f"{view.where}: {what}: got no bits, allowed is bitRange, lsb and msb, or bitOffset and "
        "bitWidth"
    )


def _enum(view: View, block: str, name: str, width: int, device: Device) -> str:
    """Return the value column of a field, and add its enumerated values to the enums; blank for a
    field without them."""
    some = view.every("enumeratedValues")
    for other in some[1:]:
        device.losses.lose(other.where, f"the second enumeratedValues of {name}")
    if not some:
        return ""
    element, seen = some[0], 0
    label = name_of(element)
    while not any(inner.tag == "enumeratedValue" for inner in element) and (
        source := element.get("derivedFrom")
    ):
        base = device.enum_named(source, view.path)
        seen += 1
        if base is None or seen > MOST_DERIVED:
            raise ValueError(
                f"{element.where}: enumeratedValues of {name}: got derivedFrom {source!r}, "
                "allowed is the name of other enumeratedValues of the file, not derived from these"
            )
        element, label = base, label or name_of(base)
    values = _values(element, name, width, device)
    if not values:
        return ""
    return device.enums.take(label, block, name, values, view.where)


def _values(element: Element, name: str, width: int, device: Device) -> NewCodes:
    """Return the named values in enumeratedValues, by number. A value is a loss if it lacks a name
    or a number, if a bit of it does not matter, if an earlier value has its name or number, or if a
    field of ``width`` bits cannot have it."""
    out: NewCodes = {}
    for value in (inner for inner in element if inner.tag == "enumeratedValue"):
        view = View((value,), "")
        label, text = view.text("name"), view.text("value")
        if not text:
            label = label or "a value without a name"
            device.losses.lose(value.where, f"{label} of {name}, which has no number")
            continue
        if not label:
            device.losses.lose(value.where, f"{text} of {name}, which has no name")
            continue
        if re.fullmatch(r"(#|0b)[01]*[xX][01xX]*", text):
            device.losses.lose(
                value.where, f"{label} of {name}, whose value {text} has bits that do not matter"
            )
            continue
        raw = parsed(value.where, f"enumeratedValue {label}", "value", re.sub("^0b", "#", text))
        if raw in out or label in out.values():
            device.losses.lose(
                value.where,
                f"{label} = {raw} of {name}, because an earlier value has this name or number",
            )
        elif raw.bit_length() > width:
            device.losses.lose(value.where, f"{label} = {raw} of {name}, which has {width} bits")
        else:
            out[raw] = label
    return out


def _own_name(device: Device, tag: str, path: str, name: str) -> str:
    """Return the name that npulab's own words give to an element; without such words, ``name``."""
    own = device.own.get((tag, path))
    if own is not None:
        return own.get("is", name)
    return name


def _own_row(own: Element | None, device: Device) -> Cells:
    """Return the columns of a field that npulab's own words state, because SVD cannot."""
    if own is None:
        return {}
    out: Cells = {name: own.get(name) for name in ROW if own.get(name)}
    for name in ("at", "align"):
        if name in out:
            out[name] = parsed(own.where, f"field {own.get('name')}", name, own.get(name))
    device.enums.refuse_unknown(str(out.get("value", "")), own.where)
    if own.get("address") == "yes":
        out["address"] = "yes"
    return out | {name: own.get(name) for name in ("register", "field") if name in own.attributes}


def _noted(text: str, said: list[str]) -> str:
    """Return a description, with further words in parentheses."""
    if said:
        return f"{text} ({', '.join(said)})".strip()
    return text


def _copyright(root: Element) -> str:
    return next(("".join(one.texts) for one in root if one.tag == "licenseText"), "")
