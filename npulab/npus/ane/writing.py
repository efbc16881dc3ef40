"""Writing a compiled file (hwx) of a capture, in the layout of compiler 4.2.1.

The file has a header, load commands, symbols, their names and relocations. The task list follows at
a multiple of 0x4000 bytes, the coefficients after it at a multiple of 64 bytes. Source: the bytes
of eight files of that compiler.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from npulab.npus.ane import hwx, tasks
from npulab.npus.ane.facts import CHIPS, ENGINES, TENSORS
from npulab.npus.kit import WORD_BYTES, Capture, refuse_if, up

PAGE, COEFFICIENT_ALIGN = 0x4000, 64
# The address of the task list in files of compilers 4.2.1 to 7.6.4.
TEXT_AT = 0x30000000
NETWORK = "net"
TEXT_BAR, COEFFICIENT_BAR = 0, 1
# The addresses of CoeffBaseAddr and CoeffDMAConfig of engine 0; each has 16 registers, one an
# engine.
FIRST_BASE, FIRST_CONFIG = 0x1F848, 0x1F808
READ, WRITE, EXECUTE = 1, 2, 4
TENSOR_FLAGS = {"input": ("__const", READ, 0x21), "output": ("__data", WRITE, 0x23)}
# The symbols of element types. A tensor's symbol names a type by its position here, from 1 on.
TYPES = (
    "void:t1=1",
    "int8:t2=r2;0;127",
    "uint8:t3=r1;0;255",
    "int16:t4=r1;-32768;32767",
    "float16:t5=r1;2;0",
    "float:t6=r1;4;0",
    "raw10:t7=r1;-512;511",
    "lut:t8=",
    "uint4:t9=r1;0;15",
    "uint6:t10=r1;0;63",
)
# The type of a symbol that has an address.
DEFINED = 15
# The description of the symbol of coefficients and inputs, and of the symbol of outputs.
PRIVATE, NO_ENTRY = 2, 0
# Bits 24 and up of a relocation: relative to its own address, and 4 bytes long. The lower bits are
# the number of the section.
RELOCATION_BITS = (1 + 2 * 2) * 2**24
# The two words after the scratch size of a program: in files of one task, and in files of several
# tasks (concat). Their meaning is unknown.
ONE_TASK_TAIL = np.array([0x11, 3], "<u8").tobytes()
MORE_TASKS_TAIL = np.array([7, 4], "<u8").tobytes()
TENSOR_TAIL = bytes(4)

MOST_TEXT = 2**26
RELOCATION_ALIGN, COMMAND_ALIGN = 8, 8
MAKER = "npulab lower"
MADE_BY = f"{MAKER}, in the layout of zin_ane_compiler 4.2.1"
TABLE = 2
NONLINEAR = "NE.MACCfg.NonlinearMode"
BASES = [(row["valid"], row["bar"]) for row in TENSORS.values()]
KERNEL_VALID, KERNEL_BASE = BASES[-1]
AXES = {"n": "batch", "c": "channel", "h": "row", "w": "column"}
TENSOR_KEYS = {"name", "kind", "bar", "element", *"nchwd", "strides", "interleave", "span"}
KIND_CODES = {name: code for code, name in hwx.KINDS.items()}

Described = Mapping[str, Any]


class EngineCoefficients(NamedTuple):
    """The coefficients that an engine reads in one task.

    ``place`` is the byte of the task list with the word that states their ``offset``, which is in
    bytes from the first coefficient. ``table`` is true if the task has an activation table.
    """

    place: int
    engine: int
    offset: int
    table: bool


class Contents(NamedTuple):
    """The contents that a file gets.

    ``text`` are the bytes of the task list, ``base`` is its address. ``data`` are the coefficients,
    ``const_at`` is their address.
    """

    capture: Capture
    base: int
    text: bytes
    const_at: int
    data: bytes
    tensors: Sequence[Described]
    kernels: Sequence[EngineCoefficients]

    @property
    def network(self) -> str:
        """The name of the network in the file, by default ``net``."""
        return str(self.capture.parameters.get("network", NETWORK))

    @property
    def placed(self) -> list[Described]:
        """The tensors in the order of their addresses."""
        return sorted(self.tensors, key=lambda tensor: tensor["address"])

    @property
    def stored(self) -> int:
        """The number of bytes from the begin of the task list to the end of the coefficients."""
        return self.const_at + len(self.data) - self.base


class Offsets(NamedTuple):
    """The byte offsets in the file of symbols, names (``strings``), relocations and task list.

    ``names`` is the size of the table of names in bytes; ``body`` is the offset of the task list.
    """

    symbols: int
    strings: int
    names: int
    relocations: int
    body: int


def hwx_bytes(capture: Capture, identity: str = "", label: str = "") -> bytes:
    """Return the bytes of the compiled file of a capture.

    ``capture.parameters["tensors"]`` describes the tensors as the importer does;
    ``capture.addresses`` has the addresses of tensors, task list (``text``) and coefficients.
    ``identity`` is the text of the identity command. ``label`` is the name of the coefficients in
    the symbol table, by default the SHA-256 of their bytes; the compiler's files have a hash of
    something unknown. ``npulab.load`` of the bytes returns the same jobs, coefficients, tensors and
    addresses.

    Raises ValueError for a tensor without an address, for overlapping addresses, and for a task
    with a base address that neither tasks, coefficients nor a tensor have.
    """
    contents = _contents(capture)
    identity = identity or f"ANEC v1\n{MADE_BY}\n\t-t {capture.chip}\n\t--name={capture.name}\n"
    digest = hashlib.sha256(contents.data).hexdigest()
    label = label or "K" + digest.upper()
    names, symbols = _symbol_table(contents, label)
    # Commands built with offsets of 0 have the final sizes, from which the offsets follow.
    sized = _commands(contents, identity, Offsets(0, 0, 0, 0, 0))
    commands_size = len(b"".join(sized))
    symbols_at = hwx.HEAD.sizeof() + commands_size
    strings_at = symbols_at + len(symbols)
    relocations_at = strings_at + len(names)
    if contents.kernels:
        relocations_at = up(relocations_at, RELOCATION_ALIGN)
    relocations = _relocations(contents)
    body_at = up(relocations_at + len(relocations), PAGE)
    offsets = Offsets(symbols_at, strings_at, len(names), relocations_at, body_at)
    commands = _commands(contents, identity, offsets)
    values = {
        "cpusubtype": CHIPS[capture.chip]["cpusubtype"],
        "commands": len(commands),
        "commands_size": commands_size,
    }
    head = hwx.HEAD.build(values)
    front = b"".join([head, *commands, symbols, names])
    front = front.ljust(relocations_at, b"\0")
    front += relocations
    text_size = contents.const_at - contents.base
    body = contents.text.ljust(text_size, b"\0") + contents.data
    body_size = up(contents.stored, PAGE)
    return front.ljust(body_at, b"\0") + body.ljust(body_size, b"\0")


def _relocations(contents: Contents) -> bytes:
    """Return the bytes of a relocation for each word of the task list that places coefficients."""
    relocated = [(kernel.place, RELOCATION_BITS + 2) for kernel in contents.kernels]
    return np.array(relocated, hwx.RELOCATION).tobytes()


def _contents(capture: Capture) -> Contents:
    listed, text = _task_list(capture)
    tensors = _tensors(capture)
    base = capture.addresses.get("text", TEXT_AT)
    least = base + up(len(text), COEFFICIENT_ALIGN)
    const_at = capture.addresses.get("coefficients", least)
    data = capture.buffers.get("coefficients", bytes(PAGE))
    within = least <= const_at < least + MOST_TEXT
    got = f"address {const_at:#x}"
    allowed = f"is at least {least:#x}, after {len(text)} bytes of tasks at {base:#x}"
    aligned = const_at % COEFFICIENT_ALIGN == 0
    place = f"{capture.name}: coefficients"
    refuse_if(not within or not aligned, place, got, allowed)
    kernels = list(_kernels(capture, listed))
    contents = Contents(capture, base, text, const_at, data, tensors, kernels)
    _refuse_overlaps(contents)
    _refuse_missing_bars(contents)
    return contents


def _task_list(capture: Capture) -> tuple[list[tasks.Task], bytes]:
    """Return the tasks of a capture at the offsets that their links state, and the list's bytes.

    Raises ValueError for links that do not reach every task once.
    """
    listed: list[tasks.Task] = []
    offset, seen = 0, set[int]()
    for number, job in enumerate(capture.jobs):
        # The first task is at offset 0; a link of 0 means the end of the list.
        taken = not offset or offset in seen
        wrong = taken or offset % WORD_BYTES or offset > MOST_TEXT
        place = f"{capture.name}: task {number - 1}"
        allowed = f"is a place of its own up to {MOST_TEXT:#x}"
        refuse_if(number and wrong, place, f"its next task at {offset:#x}", allowed)
        seen.add(offset)
        task = tasks.records(job.writes, offset)
        listed.append(task)
        offset = task.header[tasks.H13.pointer]
    got = f"{len(listed)} tasks and a last link to {offset:#x}"
    allowed = "are one or more, the last without a link"
    refuse_if(not listed or offset, capture.name, got, allowed)
    in_order = sorted(listed, key=lambda task: task.offset)
    return listed, tasks.write(in_order, what=f"{capture.name}: tasks")


def _tensors(capture: Capture) -> Sequence[Described]:
    """Return the descriptions of the capture's tensors, each with the key ``address`` added.

    Raises ValueError for missing tensors, keys, addresses or numbers of base addresses.
    """
    given = capture.parameters.get("tensors", ())
    found = [dict(tensor) for tensor in given]
    allowed = "are those that the importer or lower gives"
    refuse_if(not found, f"{capture.name}: parameters", "no tensors", allowed)
    for tensor in found:
        known = tensor.keys() >= TENSOR_KEYS and tensor["kind"] in TENSOR_FLAGS
        address = capture.addresses.get(tensor.get("name", ""))
        # Compared with None, because 0 is an allowed address and number.
        placed = address is not None and tensor.get("bar") is not None
        place = f"{capture.name}: tensor {tensor.get('name')!r}"
        allowed = "is an input or output with the keys of the importer, a BAR and an address"
        refuse_if(not known or not placed, place, sorted(tensor), allowed)
        tensor["address"] = address
    return found


def _refuse_overlaps(contents: Contents) -> None:
    name, base = contents.capture.name, contents.base
    spans = [(base, base + contents.stored, "tasks and coefficients")]
    for tensor in contents.tensors:
        at = tensor["address"]
        end = at + _section_bytes(tensor)
        spans.append((at, end, tensor["name"]))
    spans.sort()
    for (_, end, before), (begin, _, after) in pairwise(spans):
        least = up(end, PAGE)
        allowed = f"is at least {least:#x}, after {before}"
        got = f"address {begin:#x}"
        refuse_if(least > begin, f"{name}: {after}", got, allowed)
    begins = [begin for begin, *_ in spans]
    last_end = spans[-1][1]
    unaligned = any(begin % PAGE for begin in begins)
    got = f"addresses {', '.join(map(hex, begins))}"
    allowed = f"are multiples of {PAGE:#x} within 32 bits"
    refuse_if(unaligned or last_end > hwx.ADDRESS_END, name, got, allowed)


def _refuse_missing_bars(contents: Contents) -> None:
    bars = sorted(_bars(contents))
    allowed = ", ".join(map(str, bars))
    for task, job in enumerate(contents.capture.jobs):
        registers = contents.capture.maps[job.block]
        for valid, base in BASES:
            bar = int(registers[base].extract(job.words))
            is_read = bool(registers[valid].extract(job.words))
            place = f"{contents.capture.name}: task {task}"
            got = f"{base} {bar}, which no tensor of the capture has"
            refuse_if(is_read and bar not in bars, place, got, f"are {allowed}")


def _bars(contents: Contents) -> dict[int, int]:
    """Return the base addresses of task list, coefficients and tensors by their number."""
    bars = {TEXT_BAR: contents.base, COEFFICIENT_BAR: contents.const_at}
    for tensor in contents.tensors:
        bars[tensor["bar"]] = tensor["address"]
    return bars


def _kernels(capture: Capture, listed: Sequence[tasks.Task]) -> Iterator[EngineCoefficients]:
    """Yield the coefficients of each enabled engine, for every task that reads coefficients."""
    registers = capture.maps["H13"]
    for number, task in enumerate(listed):
        state = dict(task.writes)
        words = capture.jobs[number].words
        base = int(registers[KERNEL_BASE].extract(words))
        if not registers[KERNEL_VALID].extract(words) or base != COEFFICIENT_BAR:
            continue
        table = int(registers[NONLINEAR].extract(words)) == TABLE
        for place, record in task.placed:
            for i, (address, value) in enumerate(record.writes, 1):
                engine = (address - FIRST_BASE) // WORD_BYTES
                config = FIRST_CONFIG + WORD_BYTES * engine
                if 0 <= engine < ENGINES and state.get(config, 0) % 2:
                    yield EngineCoefficients(place + WORD_BYTES * i, engine, value, table)


def _symbol_table(contents: Contents, label: str) -> tuple[bytes, bytes]:
    """Return the bytes of the table of names, which begins with an empty name, and of the
    symbols."""
    names, rows = b"\0", []
    for name, *fields in _symbols(contents, label):
        rows.append((len(names), *fields))
        names += _zero_ended(name)
    return names, np.array(rows, hwx.SYMBOL).tobytes()


def _zero_ended(name: str) -> bytes:
    return name.encode() + b"\0"


def _symbols(contents: Contents, label: str) -> Iterator[hwx.Symbol]:
    """Yield the symbols in the compiler's order: of each engine's coefficients, tensors, element
    types, and tensors' types. ``label`` begins the names of coefficients.
    """
    for kernel in contents.kernels:
        name = f"{label}_ne_{kernel.engine}"
        if kernel.table and len(contents.kernels) == 1:
            name = label
        address = contents.const_at + kernel.offset
        yield hwx.Symbol(name, DEFINED, 2, PRIVATE, address)
    for section, tensor in enumerate(contents.placed, 3):
        description = NO_ENTRY
        if tensor["kind"] == "input":
            description = PRIVATE
        address = tensor["address"]
        yield hwx.Symbol(tensor["name"], DEFINED, section, description, address)
    for name in TYPES:
        yield hwx.Symbol(name, hwx.STABS_TYPE, 0, 0, 0)
    number = len(TYPES) + 1
    for tensor in contents.placed:
        name = _type_of(tensor, number)
        yield hwx.Symbol(name, hwx.STABS_TENSOR, 0, number, 0)
        # A tensor's type takes one number for itself and one for each axis.
        number += 1 + len(AXES)


def _type_of(tensor: Described, number: int) -> str:
    """Return the text of a tensor's type, number ``number``: nested arrays, one for each axis."""
    name = f"{tensor['name']}:t{number}="
    for axis, step in AXES.items():
        number += 1
        stride = tensor["strides"][step]
        name += f"ar1;0;{tensor[axis]};{number}=s{stride}{axis}:"
    return f"{name}{tensor['element']}"


def _commands(contents: Contents, identity: str, offsets: Offsets) -> list[bytes]:
    """Return the bytes of each load command, in the compiler's order."""
    placed = contents.placed
    zero_page = _segment("__PAGEZERO", size=PAGE, flags=4)
    commands = [zero_page, _text_segment(contents, offsets)]
    commands += map(_tensor_segment, placed)
    for tensor in placed:
        values = {"address": tensor["address"]}
        commands.append(_command(hwx.PLACE, values, [tensor["name"]]))
    commands.append(_program(contents))
    for tensor in contents.tensors:
        commands.append(_tensor_thread(tensor, contents.network))
    identify = {"command": hwx.IDENT}
    commands.append(_command(hwx.COMMAND, identify, [identity]))
    symbols_size = offsets.strings - offsets.symbols
    symbols = {
        "symbols": offsets.symbols,
        "count": symbols_size // hwx.SYMBOL.itemsize,
        "strings": offsets.strings,
        "size": offsets.names,
    }
    commands.append(hwx.SYMBOL_TABLE.build(symbols))
    return commands


def _text_segment(contents: Contents, offsets: Offsets) -> bytes:
    """Return the bytes of the segment command of task list and coefficients."""
    text_flags = 0x28
    relocations_at = 0
    if contents.kernels:
        text_flags = 0x128
        relocations_at = offsets.relocations
    text_section = _named_part(
        hwx.SECTION,
        "__text",
        segment="__TEXT",
        address=contents.base,
        size=len(contents.text),
        offset=offsets.body,
        align=14,
        flags=text_flags,
        relocations=relocations_at,
        relocation_count=len(contents.kernels),
    )
    const_offset = contents.const_at - contents.base
    const_section = _named_part(
        hwx.SECTION,
        "__const",
        segment="__TEXT",
        address=contents.const_at,
        size=len(contents.data),
        offset=offsets.body + const_offset,
        align=6,
        flags=0x26,
    )
    flags = 4
    if "coefficients" in contents.capture.buffers:
        flags = 0
    size = up(contents.stored, PAGE)
    return _segment(
        "__TEXT",
        text_section,
        const_section,
        address=contents.base,
        size=size,
        offset=offsets.body,
        file_size=size,
        protection=READ + EXECUTE,
        flags=flags,
    )


def _tensor_segment(tensor: Described) -> bytes:
    section, protection, flags = TENSOR_FLAGS[tensor["kind"]]
    at = tensor["address"]
    size = _section_bytes(tensor)
    part = _named_part(
        hwx.SECTION, section, segment="__FVMLIB", address=at, size=size, align=14, flags=flags
    )
    return _segment(
        "__FVMLIB", part, address=at, size=up(size, PAGE), protection=protection, flags=6
    )


def _segment(name: str, *sections: bytes, protection: int = 0, **fields: Any) -> bytes:
    body = b"".join(sections)
    head = _named_part(
        hwx.SEGMENT_HEAD,
        name,
        bytes=hwx.SEGMENT_HEAD.sizeof() + len(body),
        most=protection,
        protection=protection,
        sections=len(sections),
        **fields,
    )
    return head + body


def _named_part(struct: Any, name: str, *, segment: str = "", **fields: Any) -> bytes:
    """Return the bytes of a segment's head or of a section, with its names and fields.

    A field that is left out is 0.
    """
    fields["name"] = name.encode().ljust(16, b"\0")
    fields["segment"] = segment.encode().ljust(16, b"\0")
    return bytes(struct.build(fields))


def _program(contents: Contents) -> bytes:
    capture, bars = contents.capture, _bars(contents)
    first = tasks.records(capture.jobs[0].writes)
    by_number = [bars.get(number, 0) for number in range(hwx.BARS)]
    values = {
        "bars": by_number,
        "first_task": contents.base,
        "first_size": len(first.words) - 1,
        "tasks": len(capture.jobs),
    }
    tail = ONE_TASK_TAIL
    if len(capture.jobs) > 1:
        tail = MORE_TASKS_TAIL
    return _command(hwx.PROGRAM_THREAD, values, [contents.network], tail)


def _tensor_thread(tensor: Described, network: str) -> bytes:
    symbol = tensor["name"]
    names_at = hwx.TENSOR_THREAD.sizeof() + len(TENSOR_TAIL)
    name_at = names_at + len(_zero_ended(network))
    symbol_at = name_at + len(_zero_ended(symbol))
    shape = [tensor[axis] for axis in "nchwd"]
    values = {
        "kind": KIND_CODES[tensor["kind"]],
        "name": name_at,
        **tensor["strides"],
        "element": tensor["element"],
        "interleave": tensor["interleave"],
        "span": tensor["span"],
        "shape": shape,
        "symbol": symbol_at,
    }
    return _command(hwx.TENSOR_THREAD, values, [network, symbol, symbol], TENSOR_TAIL)


def _command(
    struct: Any, values: Mapping[str, Any], names: Sequence[str], more: bytes = b""
) -> bytes:
    """Return the bytes of a load command: its structure, ``more``, then the names.

    Each name ends with a zero byte; zeros fill the command up to a multiple of 8 bytes.
    """
    tail = more + b"".join(map(_zero_ended, names))
    size = up(struct.sizeof() + len(tail), COMMAND_ALIGN)
    command = struct.build({**values, "bytes": size}) + tail
    return bytes(command.ljust(size, b"\0"))


def _section_bytes(tensor: Described) -> int:
    """Return the size of a tensor's section in bytes."""
    return int(tensor["n"] * tensor["strides"]["batch"])
