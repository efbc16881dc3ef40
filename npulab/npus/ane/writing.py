"""A compiled file (hwx) written from a capture, in the layout of compiler 4.2.1.

Header, load commands, symbols, their names, relocations; then, at a multiple of 0x4000, the task
list; then, aligned to 64 bytes, the coefficients.  Source: the bytes of eight files of that
compiler.
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
TEXT_AT = 0x30000000  # where compilers 4.2.1 to 7.6.4 put the task list
NETWORK = "net"
TEXT_BAR, COEFFICIENT_BAR = 0, 1
FIRST_BASE, FIRST_CONFIG = 0x1F848, 0x1F808  # one word for each engine
READ, WRITE, EXECUTE = 1, 2, 4
TENSOR_FLAGS = {"input": ("__const", READ, 0x21), "output": ("__data", WRITE, 0x23)}
# a type has its place in this list as its number, counted from 1
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
DEFINED = 15  # type of a symbol that has a place
PRIVATE, NO_ENTRY = 2, 0  # descriptions: coefficients and inputs, outputs
# relative to its place, 4 bytes long; the bits below hold the number of the section
RELOCATION_BITS = (1 + 2 * 2) * 2**24
# two words after the scratch size: in files of one task, of several (concat); nobody knows them
TAILS = {False: np.array([0x11, 3], "<u8").tobytes(), True: np.array([7, 4], "<u8").tobytes()}
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
    """The coefficients of an engine in one task: the byte of the task list that places them, the
    engine, the offset of the coefficients, and whether they are an activation table."""

    place: int
    engine: int
    offset: int
    table: bool


class Contents(NamedTuple):
    """All that the file holds, and the addresses of it."""

    capture: Capture
    base: int  # address of the task list
    text: bytes  # the task list
    const_at: int  # address of the coefficients
    data: bytes
    tensors: Sequence[Described]
    kernels: Sequence[EngineCoefficients]

    @property
    def network(self) -> str:
        """The network's name."""
        return str(self.capture.parameters.get("network", NETWORK))

    @property
    def placed(self) -> list[Described]:
        """The tensors by address."""
        return sorted(self.tensors, key=lambda tensor: tensor["address"])

    @property
    def stored(self) -> int:
        """Bytes from the task list to the end of the coefficients."""
        return self.const_at + len(self.data) - self.base


class Offsets(NamedTuple):
    """Bytes of the file at which its parts begin; ``names`` is the size of the table of names."""

    symbols: int
    strings: int
    names: int
    relocations: int
    body: int


def hwx_bytes(capture: Capture, identity: str = "", label: str = "") -> bytes:
    """Return the compiled file of a capture: its task list, coefficients, tensors, base addresses,
    relocations and symbols.

    ``capture.parameters["tensors"]`` names the tensors as the importer gives them,
    ``capture.addresses`` places them, the task list (``text``) and the coefficients.  ``identity``
    is the text of the file's identity command, ``label`` the name of the coefficients in the symbol
    table: in the compiler's files a hash of something unknown, here SHA-256 of their bytes.
    ``npulab.load`` of the bytes gives the same jobs, coefficients, tensors and addresses. Raises
    ValueError if the capture does not say where something lies, if two things share addresses, or
    if a task uses a base address that nothing has.
    """
    contents = _contents(capture)
    kernels = contents.kernels
    identity = identity or _identity(capture)
    label = label or "K" + hashlib.sha256(contents.data).hexdigest().upper()
    symbols = [*_symbols(contents, label)]
    names, starts = _strings([symbol.name for symbol in symbols])
    # the sizes of commands do not depend on the offsets in them
    sized = _commands(contents, identity, Offsets(0, 0, len(names), 0, 0))
    symbols_at = hwx.HEAD.sizeof() + len(b"".join(sized))
    strings_at = symbols_at + hwx.SYMBOL.itemsize * len(symbols)
    relocations_at = strings_at + len(names)
    if kernels:
        relocations_at = up(relocations_at, RELOCATION_ALIGN)
    body_at = up(relocations_at + hwx.RELOCATION.itemsize * len(kernels), PAGE)
    offsets = Offsets(symbols_at, strings_at, len(names), relocations_at, body_at)
    commands = _commands(contents, identity, offsets)
    head = hwx.HEAD.build(
        {
            "cpusubtype": CHIPS[capture.chip]["cpusubtype"],
            "commands": len(commands),
            "commands_size": symbols_at - hwx.HEAD.sizeof(),
        }
    )
    rows = [(start, *symbol[1:]) for symbol, start in zip(symbols, starts, strict=True)]
    table = np.array(rows, hwx.SYMBOL).tobytes()
    relocated = [(kernel.place, RELOCATION_BITS + 2) for kernel in kernels]
    relocations = np.array(relocated, hwx.RELOCATION).tobytes()
    front = b"".join([head, *commands, table, names]).ljust(relocations_at, b"\0") + relocations
    body = contents.text.ljust(contents.const_at - contents.base, b"\0") + contents.data
    return front.ljust(body_at, b"\0") + body.ljust(up(contents.stored, PAGE), b"\0")


def _contents(capture: Capture) -> Contents:
    listed, text = _task_list(capture)
    tensors = _tensors(capture)
    base = capture.addresses.get("text", TEXT_AT)
    least = base + up(len(text), COEFFICIENT_ALIGN)
    const_at = capture.addresses.get("coefficients", least)
    data = capture.buffers.get("coefficients", bytes(PAGE))
    if not least <= const_at < least + MOST_TEXT or const_at % COEFFICIENT_ALIGN:
        raise ValueError(
            f"{capture.name}: coefficients: got address {const_at:#x}, allowed is at least "
            f"{least:#x}, after {len(text)} bytes of tasks at {base:#x}"
        )
    contents = Contents(capture, base, text, const_at, data, tensors, [*_kernels(capture, listed)])
    _refuse_overlaps(contents)
    _refuse_missing_bars(contents)
    return contents


def _task_list(capture: Capture) -> tuple[list[tasks.Task], bytes]:
    """Return the tasks at the places that their links give them, and the task list."""
    listed: list[tasks.Task] = []
    offset, seen = 0, set[int]()
    for number, job in enumerate(capture.jobs):
        # the first task lies at 0, where no link may lead
        wrong = not offset or offset in seen or offset % WORD_BYTES or offset > MOST_TEXT
        if number and wrong:
            raise ValueError(
                f"{capture.name}: task {number - 1}: got its next task at {offset:#x}, "
                f"allowed is a place of its own up to {MOST_TEXT:#x}"
            )
        seen.add(offset)
        listed.append(tasks.records(job.writes, offset))
        offset = listed[-1].header[tasks.H13.pointer]
    if not listed or offset:
        raise ValueError(
            f"{capture.name}: got {len(listed)} tasks and a last link to {offset:#x}, "
            "allowed are one or more, the last without a link"
        )
    in_order = sorted(listed, key=lambda task: task.offset)
    return listed, tasks.write(in_order, what=f"{capture.name}: tasks")


def _tensors(capture: Capture) -> Sequence[Described]:
    """Return what is known of the tensors, with ``address``."""
    found = [dict(tensor) for tensor in capture.parameters.get("tensors", ())]
    refuse_if(
        not found,
        f"{capture.name}: parameters",
        "no tensors",
        "are those that the importer or lower gives",
    )
    for tensor in found:
        lacking = TENSOR_KEYS - tensor.keys()
        if (
            lacking
            or tensor["kind"] not in TENSOR_FLAGS
            or tensor["name"] not in capture.addresses
            or tensor["bar"] is None
        ):
            raise ValueError(
                f"{capture.name}: tensor {tensor.get('name')!r}: got {sorted(tensor)}, allowed is "
                "an input or output with the keys of the importer, a BAR and an address"
            )
        tensor["address"] = capture.addresses[tensor["name"]]
    return found


def _refuse_overlaps(contents: Contents) -> None:
    name, base = contents.capture.name, contents.base
    spans = [(base, base + contents.stored, "tasks and coefficients")]
    for tensor in contents.tensors:
        at = tensor["address"]
        spans.append((at, at + _section_bytes(tensor), tensor["name"]))
    spans.sort()
    for (_, end, before), (begin, _, behind) in pairwise(spans):
        if up(end, PAGE) > begin:
            raise ValueError(
                f"{name}: {behind}: got address {begin:#x}, allowed is at least "
                f"{up(end, PAGE):#x}, after {before}"
            )
    begins = [begin for begin, *_ in spans]
    if any(begin % PAGE for begin in begins) or spans[-1][1] > hwx.ADDRESS_END:
        raise ValueError(
            f"{name}: got addresses {', '.join(map(hex, begins))}, allowed are multiples of "
            f"{PAGE:#x} within 32 bits"
        )


def _refuse_missing_bars(contents: Contents) -> None:
    bars = sorted(_bars(contents))
    for task, job in enumerate(contents.capture.jobs):
        registers = contents.capture.maps[job.block]
        for valid, base in BASES:
            bar = int(registers[base].extract(job.words))
            if registers[valid].extract(job.words) and bar not in bars:
                raise ValueError(
                    f"{contents.capture.name}: task {task}: got {base} {bar}, which no tensor of "
                    f"the capture has, allowed are {', '.join(map(str, bars))}"
                )


def _bars(contents: Contents) -> dict[int, int]:
    """Return the base addresses by number."""
    bars = {TEXT_BAR: contents.base, COEFFICIENT_BAR: contents.const_at}
    for tensor in contents.tensors:
        bars[tensor["bar"]] = tensor["address"]
    return bars


def _kernels(capture: Capture, listed: Sequence[tasks.Task]) -> Iterator[EngineCoefficients]:
    """Yield the enabled engines of every task that reads coefficients of the file."""
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
                if 0 <= engine < ENGINES and state.get(FIRST_CONFIG + WORD_BYTES * engine, 0) % 2:
                    yield EngineCoefficients(place + WORD_BYTES * i, engine, value, table)


def _symbols(contents: Contents, label: str) -> Iterator[hwx.Symbol]:
    """Yield the symbols of coefficients, tensors, types, and the types of the tensors."""
    for kernel in contents.kernels:
        name = f"{label}_ne_{kernel.engine}"
        if kernel.table and len(contents.kernels) == 1:
            name = label
        yield hwx.Symbol(name, DEFINED, 2, PRIVATE, contents.const_at + kernel.offset)
    for section, tensor in enumerate(contents.placed, 3):
        description = NO_ENTRY
        if tensor["kind"] == "input":
            description = PRIVATE
        yield hwx.Symbol(tensor["name"], DEFINED, section, description, tensor["address"])
    for name in TYPES:
        yield hwx.Symbol(name, hwx.STABS_TYPE, 0, 0, 0)
    number = len(TYPES) + 1
    for tensor in contents.placed:
        # a tensor takes a number for itself and one for each axis
        name = f"{tensor['name']}:t{number}="
        for of_axis, (axis, step) in enumerate(AXES.items(), number + 1):
            name += f"ar1;0;{tensor[axis]};{of_axis}=s{tensor['strides'][step]}{axis}:"
        yield hwx.Symbol(f"{name}{tensor['element']}", hwx.STABS_TENSOR, 0, number, 0)
        number += 1 + len(AXES)


def _strings(names: Sequence[str]) -> tuple[bytes, list[int]]:
    """Return the table of names, which begins with an empty name, and where each name begins."""
    table, starts = b"\0", []
    for name in names:
        starts.append(len(table))
        table += name.encode() + b"\0"
    return table, starts


def _commands(contents: Contents, identity: str, offsets: Offsets) -> list[bytes]:
    """Return the load commands in the order of the compiler."""
    placed = contents.placed
    commands = [_segment("__PAGEZERO", size=PAGE, flags=4), _text_segment(contents, offsets)]
    for tensor in placed:
        commands.append(_tensor_segment(tensor))
    for tensor in placed:
        commands.append(_command(hwx.PLACE, {"address": tensor["address"]}, [tensor["name"]]))
    commands.append(_program(contents))
    for tensor in contents.tensors:
        commands.append(_tensor_thread(tensor, contents.network))
    commands.append(_command(hwx.COMMAND, {"command": hwx.IDENT}, [identity]))
    symbols = {
        "symbols": offsets.symbols,
        "count": (offsets.strings - offsets.symbols) // hwx.SYMBOL.itemsize,
        "strings": offsets.strings,
        "size": offsets.names,
    }
    commands.append(hwx.SYMBOL_TABLE.build(symbols))
    return commands


def _text_segment(contents: Contents, offsets: Offsets) -> bytes:
    """Return the segment of the tasks and the coefficients."""
    text_flags, relocations_at = 0x28, 0
    if contents.kernels:
        text_flags, relocations_at = 0x128, offsets.relocations
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
    const_section = _named_part(
        hwx.SECTION,
        "__const",
        segment="__TEXT",
        address=contents.const_at,
        size=len(contents.data),
        offset=offsets.body + contents.const_at - contents.base,
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
    at, size = tensor["address"], _section_bytes(tensor)
    part = _named_part(
        hwx.SECTION, section, segment="__FVMLIB", address=at, size=size, align=14, flags=flags
    )
    return _segment(
        "__FVMLIB", part, address=at, size=up(size, PAGE), protection=protection, flags=6
    )


def _segment(name: str, *sections: bytes, protection: int = 0, **fields: Any) -> bytes:
    head = _named_part(
        hwx.SEGMENT_HEAD,
        name,
        bytes=hwx.SEGMENT_HEAD.sizeof() + len(b"".join(sections)),
        most=protection,
        protection=protection,
        sections=len(sections),
        **fields,
    )
    return b"".join([head, *sections])


def _named_part(struct: Any, name: str, *, segment: str = "", **fields: Any) -> bytes:
    """Return a segment's head or a section by its fields; fields left out are 0."""
    fields["name"] = name.encode().ljust(16, b"\0")
    fields["segment"] = segment.encode().ljust(16, b"\0")
    return bytes(struct.build(fields))


def _program(contents: Contents) -> bytes:
    capture, bars = contents.capture, _bars(contents)
    first = tasks.records(capture.jobs[0].writes)
    values = {
        "bars": [bars.get(number, 0) for number in range(hwx.BARS)],
        "first_task": contents.base,
        "first_size": len(first.words) - 1,
        "tasks": len(capture.jobs),
    }
    tail = TAILS[len(capture.jobs) > 1]
    return _command(hwx.PROGRAM_THREAD, values, [contents.network], tail)


def _tensor_thread(tensor: Described, network: str) -> bytes:
    symbol = tensor["name"]
    name = hwx.TENSOR_THREAD.sizeof() + len(TENSOR_TAIL) + len(network.encode()) + 1
    values = {
        "kind": KIND_CODES[tensor["kind"]],
        "name": name,
        **tensor["strides"],
        "element": tensor["element"],
        "interleave": tensor["interleave"],
        "span": tensor["span"],
        "shape": [tensor[axis] for axis in "nchwd"],
        "symbol": name + len(symbol.encode()) + 1,
    }
    return _command(hwx.TENSOR_THREAD, values, [network, symbol, symbol], TENSOR_TAIL)


def _command(
    struct: Any, values: Mapping[str, Any], names: Sequence[str], more: bytes = b""
) -> bytes:
    """Return a command with ``more`` and the names after it, filled up to 8 bytes."""
    tail = more
    for name in names:
        tail += name.encode() + b"\0"
    size = up(struct.sizeof() + len(tail), COMMAND_ALIGN)
    return (struct.build({**values, "bytes": size}) + tail).ljust(size, b"\0")


def _identity(capture: Capture) -> str:
    return f"ANEC v1\n{MADE_BY}\n\t-t {capture.chip}\n\t--name={capture.name}\n"


def _section_bytes(tensor: Described) -> int:
    """Return the bytes of the section of a tensor."""
    return int(tensor["n"] * tensor["strides"]["batch"])
