"""A compiled file (hwx) written from a capture, in the layout of compiler 4.2.1.

Header, load commands, symbols with their names, relocations, then from a multiple of 0x4000 on the
task list and, 64 bytes aligned behind it, the coefficients.  Source: the bytes of eight files of
that compiler.
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
CPU, EXECUTABLE, FLAGS = 0x80, 2, 0x200000
NETWORK = "net"
TEXT_BAR, COEFFICIENT_BAR = 0, 1
FIRST_BASE, FIRST_CONFIG = 0x1F848, 0x1F808  # one word for each engine
READ, WRITE, EXECUTE = 1, 2, 4
TENSOR_FLAGS = {"input": ("__const", READ, 0x21), "output": ("__data", WRITE, 0x23)}
# numbers of the types are their places from 1 on
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
RELOCATION_BITS = (
    1 + 2 * 2
) * 2**24  # relative to its place, 4 bytes long; the section stands below
# two words behind the scratch size: of one task, of several (concat)
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
KIND_CODES = {name: code for code, name in hwx.KINDS.items()}

Described = Mapping[str, Any]


class Kernel(NamedTuple):
    """The coefficients of an engine in one task: the byte of the task list that places them, whose
    they are, where."""

    place: int
    engine: int
    offset: int
    table: bool


def hwx_bytes(capture: Capture, identity: str = "", label: str = "") -> bytes:
    """The compiled file of a capture: its task list, coefficients, tensors, base addresses,
    relocations and symbols.

    ``capture.parameters["tensors"]`` names the tensors as the importer gives them,
    ``capture.addresses`` places them, the task list (``text``) and the coefficients.  ``identity``
    is the text of the file's identity command, ``label`` the name of the coefficients in the symbol
    table: a hash of something unknown in the compiler's files, here SHA-256 of their bytes.
    ``npulab.load`` of the bytes gives the same jobs, coefficients, tensors and addresses. Raises
    ValueError where the capture does not say where something lies, two things share addresses, or a
    task uses a base address that nothing has.
    """
    listed, text = _text(capture)
    tensors = _tensors(capture)
    base = capture.addresses.get("text", TEXT_AT)
    behind = base + up(len(text), COEFFICIENT_ALIGN)
    const_at = capture.addresses.get("coefficients", behind)
    data = capture.buffers.get("coefficients", bytes(PAGE))
    if not behind <= const_at < behind + MOST_TEXT or const_at % COEFFICIENT_ALIGN:
        raise ValueError(
            f"{capture.name}: coefficients: got address {const_at:#x}, allowed is from {behind:#x} "
            "on, "
            f"behind {len(text)} bytes of tasks at {base:#x}"
        )
    stored = const_at + len(data) - base
    _refuse_overlaps(capture.name, base, stored, tensors)
    _refuse_missing_bars(capture, tensors)
    kernels = [*_kernels(capture, listed)]
    placed = sorted(tensors, key=lambda tensor: tensor["address"])
    label = label or "K" + hashlib.sha256(data).hexdigest().upper()
    symbols = [*_symbols(kernels, const_at, label, placed)]
    names, starts = _strings([symbol.name for symbol in symbols])
    named, size = len(names), up(stored, PAGE)
    bars = {
        TEXT_BAR: base,
        COEFFICIENT_BAR: const_at,
        **{one["bar"]: one["address"] for one in tensors},
    }
    uses = "coefficients" in capture.buffers

    def commands(symbols_at: int, strings_at: int, relocations_at: int, offset: int) -> list[bytes]:
        text_section = _named_part(
            hwx.SECTION,
            "__text",
            segment="__TEXT",
            address=base,
            size=len(text),
            offset=offset,
            align=14,
            flags=0x128 if kernels else 0x28,
            relocations=relocations_at if kernels else 0,
            relocation_count=len(kernels),
        )
        const_section = _named_part(
            hwx.SECTION,
            "__const",
            segment="__TEXT",
            address=const_at,
            size=len(data),
            offset=offset + const_at - base,
            align=6,
            flags=0x26,
        )
        return [
            _segment("__PAGEZERO", size=PAGE, flags=4),
            _segment(
                "__TEXT",
                text_section,
                const_section,
                address=base,
                size=size,
                offset=offset,
                file_size=size,
                protection=READ + EXECUTE,
                flags=0 if uses else 4,
            ),
            *map(_tensor_segment, placed),
            *(_named(hwx.PLACE, {"address": one["address"]}, [one["name"]]) for one in placed),
            _program(capture, base, bars),
            *(_tensor_thread(one, capture.parameters.get("network", NETWORK)) for one in tensors),
            _named(hwx.COMMAND, {"command": hwx.IDENT}, [identity or _identity(capture)]),
            hwx.SYMBOL_TABLE.build(
                {"symbols": symbols_at, "count": len(symbols), "strings": strings_at, "size": named}
            ),
        ]

    symbols_at = hwx.HEAD.sizeof() + sum(map(len, commands(0, 0, 0, 0)))
    strings_at = symbols_at + hwx.SYMBOL.itemsize * len(symbols)
    if kernels:
        relocations_at = up(strings_at + len(names), RELOCATION_ALIGN)
    else:
        relocations_at = strings_at + len(names)
    names = names.ljust(relocations_at - strings_at, b"\0")
    offset = up(relocations_at + hwx.RELOCATION.itemsize * len(kernels), PAGE)
    loads = commands(symbols_at, strings_at, relocations_at, offset)
    head = hwx.HEAD.build(
        {
            "magic": hwx.MAGIC,
            "cputype": CPU,
            "cpusubtype": CHIPS[capture.chip]["cpusubtype"],
            "filetype": EXECUTABLE,
            "commands": len(loads),
            "commands_size": sum(map(len, loads)),
            "flags": FLAGS,
            "reserved": 0,
        }
    )
    table = np.array(
        [(at, *one[1:]) for one, at in zip(symbols, starts, strict=True)], hwx.SYMBOL
    ).tobytes()
    moved = np.array(
        [(one.place, RELOCATION_BITS + 2) for one in kernels], hwx.RELOCATION
    ).tobytes()
    front = b"".join([head, *loads, table, names, moved])
    body = text.ljust(const_at - base, b"\0") + data
    return front.ljust(offset, b"\0") + body.ljust(size, b"\0")


def _text(capture: Capture) -> tuple[list[tasks.Task], bytes]:
    """The tasks at the places that their links give them, and the task list."""
    listed: list[tasks.Task] = []
    offset, seen = 0, set[int]()
    for number, job in enumerate(capture.jobs):
        if number and (not offset or offset in seen or offset % WORD_BYTES or offset > MOST_TEXT):
            raise ValueError(
                f"{capture.name}: task {number - 1}: got its next task at {offset:#x}, allowed is "
                "a place "
                f"of its own up to {MOST_TEXT:#x}"
            )
        seen.add(offset)
        listed.append(tasks.records(job.writes, offset))
        offset = listed[-1].header[tasks.H13.pointer]
    if not listed or offset:
        raise ValueError(
            f"{capture.name}: got {len(listed)} tasks and a last link to {offset:#x}, allowed are "
            "one or "
            "more, the last without a link"
        )
    return listed, tasks.write(
        sorted(listed, key=lambda one: one.offset), what=f"{capture.name}: tasks"
    )


def _tensors(capture: Capture) -> Sequence[Described]:
    """What is known of the tensors, with ``address``."""
    found = [dict(one) for one in capture.parameters.get("tensors", ())]
    refuse_if(
        not found,
        f"{capture.name}: parameters",
        "no tensors",
        "are those that the importer or lower gives",
    )
    for one in found:
        lacking = {
            "name",
            "kind",
            "bar",
            "element",
            *"nchwd",
            "strides",
            "interleave",
            "span",
        } - one.keys()
        if (
            lacking
            or one["kind"] not in TENSOR_FLAGS
            or one["name"] not in capture.addresses
            or one["bar"] is None
        ):
            raise ValueError(
                f"{capture.name}: tensor {one.get('name')!r}: got {sorted(one)}, allowed is an "
                "input or "
                "output with the keys of the importer, a BAR and an address"
            )
        one["address"] = capture.addresses[one["name"]]
    return found


def _refuse_overlaps(name: str, base: int, size: int, tensors: Sequence[Described]) -> None:
    spans = sorted(
        [
            (base, base + size, "tasks and coefficients"),
            *((one["address"], one["address"] + _bytes(one), one["name"]) for one in tensors),
        ]
    )
    for (_, end, a), (begin, _, b) in pairwise(spans):
        if up(end, PAGE) > begin:
            raise ValueError(
                f"{name}: {b}: got address {begin:#x}, allowed is from {up(end, PAGE):#x} on, "
                f"behind {a}"
            )
    if any(begin % PAGE for begin, *_ in spans) or spans[-1][1] > hwx.ADDRESS_END:
        raise ValueError(
            f"{name}: got addresses {', '.join(f'{begin:#x}' for begin, *_ in spans)}, allowed are "
            f"multiples of {PAGE:#x} within 32 bits"
        )


def _refuse_missing_bars(capture: Capture, tensors: Sequence[Described]) -> None:
    there = {TEXT_BAR, COEFFICIENT_BAR, *(one["bar"] for one in tensors)}
    for task, job in enumerate(capture.jobs):
        for valid, base in BASES:
            registers = capture.maps[job.block]
            bar = int(registers[base].extract(job.words))
            if registers[valid].extract(job.words) and bar not in there:
                raise ValueError(
                    f"{capture.name}: task {task}: got {base} {bar}, which no tensor of the "
                    "capture has, "
                    f"allowed are {', '.join(map(str, sorted(there)))}"
                )


def _kernels(capture: Capture, listed: Sequence[tasks.Task]) -> Iterator[Kernel]:
    """The enabled engines of every task that reads coefficients of the file."""
    for number, task in enumerate(listed):
        state = dict(task.writes)
        registers, words = capture.maps["H13"], capture.jobs[number].words
        if (
            not registers[KERNEL_VALID].extract(words)
            or int(registers[KERNEL_BASE].extract(words)) != COEFFICIENT_BAR
        ):
            continue
        table = int(registers[NONLINEAR].extract(words)) == TABLE
        for place, record in task.placed:
            for i, (address, value) in enumerate(record.writes, 1):
                engine = (address - FIRST_BASE) // WORD_BYTES
                if 0 <= engine < ENGINES and state.get(FIRST_CONFIG + WORD_BYTES * engine, 0) % 2:
                    yield Kernel(place + WORD_BYTES * i, engine, value, table)


def _symbols(
    kernels: Sequence[Kernel],
    const_at: int,
    label: str,
    placed: Sequence[Described],
) -> Iterator[hwx.Symbol]:
    alone = len(kernels) == 1
    for one in kernels:
        if one.table and alone:
            name = label
        else:
            name = f"{label}_ne_{one.engine}"
        yield hwx.Symbol(name, DEFINED, 2, PRIVATE, const_at + one.offset)
    for section, tensor in enumerate(placed, 3):
        yield hwx.Symbol(
            tensor["name"],
            DEFINED,
            section,
            PRIVATE if tensor["kind"] == "input" else NO_ENTRY,
            tensor["address"],
        )
    for name in TYPES:
        yield hwx.Symbol(name, hwx.STABS_TYPE, 0, 0, 0)
    number = len(TYPES) + 1
    for tensor in placed:
        axes = "".join(
            f"ar1;0;{tensor[axis]};{number + 1 + i}=s{tensor['strides'][step]}{axis}:"
            for i, (axis, step) in enumerate(AXES.items())
        )
        yield hwx.Symbol(
            f"{tensor['name']}:t{number}={axes}{tensor['element']}", hwx.STABS_TENSOR, 0, number, 0
        )
        number += 1 + len(AXES)


def _strings(names: Sequence[str]) -> tuple[bytes, list[int]]:
    """The table of names, which begins with an empty one, and where each stands in it."""
    table, starts = b"\0", []
    for name in names:
        starts.append(len(table))
        table += name.encode() + b"\0"
    return table, starts


def _named_part(struct: Any, name: str, *, segment: str = "", **fields: Any) -> bytes:
    """A segment's head or a section by its fields, 0 if they are left out."""
    names = {
        key: text.encode().ljust(16, b"\0") for key, text in (("name", name), ("segment", segment))
    }
    zeros = {part.name: 0 for part in struct.subcons if part.name and part.name != "command"}
    return bytes(struct.build({**zeros, **names, **fields}))


def _segment(name: str, *sections: bytes, protection: int = 0, **fields: Any) -> bytes:
    length = hwx.SEGMENT_HEAD.sizeof() + sum(map(len, sections))
    head = _named_part(
        hwx.SEGMENT_HEAD,
        name,
        bytes=length,
        most=protection,
        protection=protection,
        sections=len(sections),
        **fields,
    )
    return head + b"".join(sections)


def _tensor_segment(tensor: Described) -> bytes:
    section, protection, flags = TENSOR_FLAGS[tensor["kind"]]
    at, size = tensor["address"], _bytes(tensor)
    part = _named_part(
        hwx.SECTION, section, segment="__FVMLIB", address=at, size=size, align=14, flags=flags
    )
    return _segment(
        "__FVMLIB", part, address=at, size=up(size, PAGE), protection=protection, flags=6
    )


def _program(capture: Capture, base: int, bars: Mapping[int, int]) -> bytes:
    first = tasks.records(capture.jobs[0].writes)
    values = {
        "bars": [bars.get(n, 0) for n in range(hwx.BARS)],
        "first_task": base,
        "first_size": len(first.words) - 1,
        "tasks": len(capture.jobs),
    }
    return _named(
        hwx.PROGRAM_THREAD,
        values,
        [capture.parameters.get("network", NETWORK)],
        TAILS[len(capture.jobs) > 1],
    )


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
    return _named(hwx.TENSOR_THREAD, values, [network, symbol, symbol], TENSOR_TAIL)


def _named(
    struct: Any, values: Mapping[str, Any], names: Sequence[str], more: bytes = b""
) -> bytes:
    """A command with ``more`` and the names behind it, filled up to 8 bytes."""
    tail = more + b"".join(name.encode() + b"\0" for name in names)
    size = up(struct.sizeof() + len(tail), COMMAND_ALIGN)
    return (struct.build({**values, "bytes": size}) + tail).ljust(size, b"\0")


def _identity(capture: Capture) -> str:
    return f"ANEC v1\n{MADE_BY}\n\t-t {capture.chip}\n\t--name={capture.name}\n"


def _bytes(tensor: Described) -> int:
    """Bytes of the section of a tensor."""
    return int(tensor["n"] * tensor["strides"]["batch"])
