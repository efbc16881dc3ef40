"""The compiled file (hwx): a 64-bit little-endian Mach-O with a magic of its own, read and written.

Segments hold the tasks (``__TEXT,__text``), their coefficients and tables (``__TEXT,__const``) and
the places of the tensors (``__FVMLIB``, no bytes).  Thread commands name the program, with the
table of its base addresses (BAR), and the tensors.  Nothing is fixed: not the order of the
segments, not an address, not which BAR a tensor has; all of it is what the file says.  Source:
files of the compilers 4.2.1, 5.4.1, 7.6.4 and 9.509.0.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from construct import ConstructError, Container

from npulab.npus.ane.structures import STRUCTURES
from npulab.npus.kit import refuse_if, refusing

MAGIC, MAGIC_64 = 0xBEEFFACE, 0xFEEDFACF
SEGMENT, THREAD, IDENT, SYMBOLS = 0x19, 0x04, 0x08, 0x02
PLACES = (0x06, 0x40)  # of a tensor: compilers up to 5, from 7 on
PROGRAM, PROGRAM_LATER, TENSOR = 1, 4, 3  # flavours of thread commands; 4 on H17 (second-hand)
INPUT, OUTPUT = 1, 2
BARS = 256
STABS_TENSOR, STABS_TYPE = 0x20, 0x80
ADDRESS_END = 2**32  # base addresses have 32 bits
MOST_BYTES = 2**30
MOST_NAMES = 2**24  # bytes of all names of symbols
KINDS = {INPUT: "input", OUTPUT: "output"}
STRIDES = ("batch", "channel", "row", "column", "depth")

HEAD, COMMAND, SEGMENT_HEAD, SECTION, SYMBOL_TABLE = map(
    STRUCTURES.__getitem__, ("hwx header", "command", "segment", "section", "symbol table")
)
PLACE, WIDE_PLACE, THREAD_HEAD, PROGRAM_THREAD, TENSOR_THREAD = map(
    STRUCTURES.__getitem__, ("place", "wide place", "thread", "program thread", "tensor thread")
)
# of these a file has many
SYMBOL = np.dtype(
    [("name", "<u4"), ("type", "u1"), ("section", "u1"), ("description", "<u2"), ("value", "<u8")]
)
RELOCATION = np.dtype([("address", "<u4"), ("packed", "<u4")])
VERSION = re.compile(r"zin_ane_compiler v(\S+)")


class Relocation(NamedTuple):
    """A word of a section that is filled in when the file is loaded."""

    address: int
    section: int
    pc_relative: int
    log2_bytes: int
    external: int
    type: int


@dataclass(frozen=True)
class Section:
    """A part of a segment; ``data`` is empty where the file holds no bytes of it (tensors), ``at``
    is the byte of the structure that states it."""

    segment: str
    name: str
    address: int
    size: int
    offset: int
    align: int
    flags: int
    at: int
    relocations: tuple[Relocation, ...] = ()
    data: bytes = field(default=b"", repr=False)


class Tensor(NamedTuple):
    """An input or output as its thread command states it; strides in bytes, ``span`` the bytes it
    takes.

    ``address`` and ``bar`` (number of the base address) are None where nothing in the file places
    it.
    """

    name: str
    symbol: str
    kind: str
    network: str
    element: int
    shape: tuple[int, ...]  # N, C, H, W, D
    strides: Mapping[str, int]  # batch, channel, row, column, depth
    interleave: int
    span: int
    address: int | None
    bar: int | None


class Symbol(NamedTuple):
    name: str
    type: int
    section: int
    description: int
    value: int


class Program(NamedTuple):
    """A network of the file: base addresses by number, where its task list begins, how many tasks
    it has; ``at`` is the byte of the command that states it."""

    name: str
    bars: Mapping[int, int]
    first_task: int
    first_words: int
    tasks: int
    scratch: int
    at: int


@dataclass(frozen=True)
class Hwx:
    """A compiled file."""

    magic: int
    cputype: int
    subtype: int
    filetype: int
    flags: int
    commands: tuple[int, ...]
    sections: tuple[Section, ...]
    programs: tuple[Program, ...]
    tensors: tuple[Tensor, ...]
    symbols: tuple[Symbol, ...] = field(repr=False)
    identity: str = field(repr=False)

    @property
    def compiler(self) -> str:
        """The compiler's version, "" where the file does not say."""
        return next(iter(VERSION.findall(self.identity)), "")

    def section(self, segment: str, name: str) -> Section:
        """The first section of a name; raises ValueError with those there are."""
        for one in self.sections:
            if (one.segment, one.name) == (segment, name):
                return one
        there = ", ".join(f"{one.segment},{one.name} at byte {one.at:#x}" for one in self.sections)
        raise ValueError(
            f"section: got {segment},{name}, the file has {there or 'none from byte 0x20 on'}"
        )


def is_hwx(data: bytes) -> bool:
    """Whether bytes begin as a compiled file does."""
    return len(data) >= HEAD.sizeof() and int.from_bytes(data[:4], "little") in (MAGIC, MAGIC_64)


def read(data: bytes, where: str = "hwx") -> Hwx:
    """A compiled file from its bytes.

    Raises ValueError naming ``where``, the structure and its byte offset for a file that is cut
    short, or whose sizes, counts, names or addresses lead outside.
    """
    with refusing(where):
        return _read(data)


def _read(data: bytes) -> Hwx:
    if len(data) > MOST_BYTES:
        raise ValueError(f"got {len(data)} bytes, allowed are {MOST_BYTES}")
    head = _parse(HEAD, data, 0, "header")
    if head.magic not in (MAGIC, MAGIC_64):
        raise ValueError(
            f"header at byte 0x0: got magic {head.magic:#010x}, allowed is {MAGIC:#010x}"
        )
    commands = list(_commands(data, head))
    spans: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for code, begin, end in commands:
        spans[code].append((begin, end))
    segments = [_segment(data, *span) for span in spans[SEGMENT]]
    sections = [section for _, parts in segments for section in parts]
    _apart([span for span, _ in segments], "addresses")
    _apart(
        [
            (one.offset, one.offset + one.size, f"section {one.segment},{one.name}")
            for one in sections
            if one.offset
        ],
        "bytes",
    )
    symbols = tuple(symbol for span in spans[SYMBOLS][-1:] for symbol in _symbols(data, *span))
    places = {
        symbol.name: symbol.value
        for symbol in reversed(symbols)
        if symbol.section and symbol.type not in (STABS_TENSOR, STABS_TYPE)
    }
    for struct, code in zip((PLACE, WIDE_PLACE), PLACES, strict=True):
        for span in spans[code]:
            one = _named(struct, data, span, "place of a tensor", "name")
            places[one.name] = one.address
    threads = [
        (
            _parse(
                THREAD_HEAD, data, span[0], f"thread command at byte {span[0]:#x}", span[1]
            ).flavour,
            span,
        )
        for span in spans[THREAD]
    ]
    programs = tuple(
        _program(data, span) for flavour, span in threads if flavour in (PROGRAM, PROGRAM_LATER)
    )
    bars = {address: number for program in programs for number, address in program.bars.items()}
    return Hwx(
        head.magic,
        head.cputype,
        head.cpusubtype,
        head.filetype,
        head.flags,
        tuple(code for code, *_ in commands),
        tuple(
            replace(one, data=data[one.offset : one.offset + one.size]) if one.offset else one
            for one in sections
        ),
        programs,
        tuple(_tensor(data, span, places, bars) for flavour, span in threads if flavour == TENSOR),
        symbols,
        "".join(
            _text(data, begin + COMMAND.sizeof(), end, f"identity at byte {begin:#x}")
            for begin, end in spans[IDENT]
        ),
    )


def _parse(
    struct: Any, data: bytes, begin: int, what: str, end: int | None = None
) -> Container[Any]:
    """A structure at a byte; ``end`` is where what holds it ends."""
    size, stop = struct.sizeof(), len(data) if end is None else end
    if begin + size > stop:
        raise ValueError(
            f"{what}: needs {size} bytes from byte {begin:#x}, there are {max(stop - begin, 0)}"
        )
    try:
        return struct.parse(data[begin : begin + size])
    except ConstructError as error:
        raise ValueError(f"{what} at byte {begin:#x}: {error}") from None


def _commands(data: bytes, head: Any) -> Iterator[tuple[int, int, int]]:
    """(code, first byte, byte behind) of each load command."""
    begin = HEAD.sizeof()
    limit = begin + head.commands_size
    if limit > len(data):
        raise ValueError(
            f"header at byte 0x0: got {head.commands_size} bytes of load commands, the file has "
            f"{len(data) - begin} behind the header"
        )
    for number in range(head.commands):
        what = f"load command {number} at byte {begin:#x}"
        one = _parse(COMMAND, data, begin, what, limit)
        if one.bytes < COMMAND.sizeof() or begin + one.bytes > limit:
            raise ValueError(
                f"{what}: got size {one.bytes:#x}, allowed are {COMMAND.sizeof()} to "
                f"{limit - begin:#x}"
            )
        yield one.command, begin, begin + one.bytes
        begin += one.bytes


def _apart(parts: list[tuple[int, int, str]], what: str) -> None:
    """Refuse parts (begin, end, name) that overlap."""
    for (begin, end, name), (start, stop, other) in pairwise(
        sorted(part for part in parts if part[1] > part[0])
    ):
        if start < end:
            raise ValueError(
                f"{other}: got {what} {start:#x} to {stop:#x}, of which {name} has {begin:#x} to "
                f"{end:#x}"
            )


def _segment(data: bytes, begin: int, end: int) -> tuple[tuple[int, int, str], list[Section]]:
    """((first address, the one behind, name), sections) of a segment."""
    head = _parse(SEGMENT_HEAD, data, begin, "segment", end)
    name = _name(head.name, f"segment at byte {begin:#x}")
    what = f"segment {name} at byte {begin:#x}"
    refuse_if(
        head.address + head.size > ADDRESS_END,
        what,
        f"{head.size:#x} bytes from address {head.address:#x}",
        f"is up to {ADDRESS_END:#x}",
    )
    _inside(data, head.offset, head.file_size, what, f"{head.file_size:#x} bytes")
    room = (end - begin - SEGMENT_HEAD.sizeof()) // SECTION.sizeof()
    if head.sections > room:
        raise ValueError(f"{what}: got {head.sections} sections, its command has room for {room}")
    step = SECTION.sizeof()
    places = (begin + SEGMENT_HEAD.sizeof() + step * number for number in range(head.sections))
    return (head.address, head.address + head.size, what), [
        _section(data, at, end, head) for at in places
    ]


def _section(data: bytes, begin: int, end: int, segment: Any) -> Section:
    head = _parse(SECTION, data, begin, "section", end)
    owner, name = (_name(one, f"section at byte {begin:#x}") for one in (head.segment, head.name))
    what = f"section {owner},{name} at byte {begin:#x}"
    for unit, first, low, size in (
        ("address", head.address, segment.address, segment.size),
        ("byte", head.offset, segment.offset, segment.file_size),
    ):
        if (first or unit == "address") and not low <= first <= first + head.size <= low + size:
            raise ValueError(
                f"{what}: got {head.size:#x} bytes from {unit} {first:#x}, its segment has "
                f"{size:#x} from {low:#x}"
            )
    _inside(
        data,
        head.relocations,
        RELOCATION.itemsize * head.relocation_count,
        what,
        f"{head.relocation_count} relocations",
    )
    relocations = np.frombuffer(data, RELOCATION, head.relocation_count, head.relocations).tolist()
    for number, (address, _) in enumerate(relocations):
        if address + 4 > head.size:
            raise ValueError(
                f"relocation {number} of {what}: got address {address:#x}, the section has "
                f"{head.size:#x} "
                "bytes"
            )
    return Section(
        owner,
        name,
        head.address,
        head.size,
        head.offset,
        head.align,
        head.flags,
        begin,
        tuple(
            Relocation(
                address,
                packed % 2**24,
                packed >> 24 & 1,
                packed >> 25 & 3,
                packed >> 27 & 1,
                packed >> 28,
            )
            for address, packed in relocations
        ),
    )


def _program(data: bytes, span: tuple[int, int]) -> Program:
    one = _named(PROGRAM_THREAD, data, span, "program thread", "name")
    return Program(
        one.name,
        {number: address for number, address in enumerate(one.bars) if address},
        one.first_task,
        one.first_size + 1,
        one.tasks,
        one.scratch,
        span[0],
    )


def _tensor(
    data: bytes, span: tuple[int, int], places: Mapping[str, int], bars: Mapping[int, int]
) -> Tensor:
    one = _named(TENSOR_THREAD, data, span, "tensor thread", "name", "symbol", "network")
    refuse_if(
        one.kind not in KINDS,
        f"tensor thread at byte {span[0]:#x}",
        f"kind {one.kind}",
        f"is {' or '.join(f'{code} ({kind})' for code, kind in KINDS.items())}",
    )
    address = places.get(one.symbol, places.get(one.name))
    return Tensor(
        one.name,
        one.symbol,
        KINDS[one.kind],
        one.network,
        one.element,
        tuple(one.shape),
        {axis: one[axis] for axis in STRIDES},
        one.interleave,
        one.span,
        address,
        None if address is None else bars.get(address),
    )


def _symbols(data: bytes, begin: int, end: int) -> tuple[Symbol, ...]:
    what = f"symbol table at byte {begin:#x}"
    table = _parse(SYMBOL_TABLE, data, begin, what, end)
    end = table.strings + table.size
    _inside(data, table.symbols, SYMBOL.itemsize * table.count, what, f"{table.count} symbols")
    _inside(data, table.strings, table.size, what, f"{table.size:#x} bytes of names")
    out, length = [], 0
    rows = np.frombuffer(data, SYMBOL, table.count, table.symbols).tolist()
    for number, (name, kind, section, description, value) in enumerate(rows):
        if name >= max(table.size, 1) or length > MOST_NAMES:
            at = table.symbols + SYMBOL.itemsize * number
            raise ValueError(
                f"symbol {number} at byte {at:#x}: got its name at {name:#x} behind {length:#x} "
                "bytes of "
                f"names, the table has {table.size:#x}, allowed in all are {MOST_NAMES:#x}"
            )
        text = _text(
            data,
            table.strings + name,
            end,
            f"name of symbol {number} at byte {table.strings + name:#x}",
        )
        length += len(text)
        out.append(Symbol(text, kind, section, description, value))
    return tuple(out)


def _inside(data: bytes, begin: int, size: int, what: str, got: str) -> None:
    """Refuse so many bytes from a byte on, if the file has not so many."""
    if begin + size > len(data):
        raise ValueError(
            f"{what}: got {got} from byte {begin:#x}, the file has {len(data):#x} bytes"
        )


def _named(
    struct: Any, data: bytes, span: tuple[int, int], kind: str, *names: str
) -> Container[Any]:
    """The structure of a command (first byte, byte behind), with the names that it has the offsets
    of: each is ended by a zero or the command's end."""
    (begin, end), what = span, f"{kind} at byte {span[0]:#x}"
    one = _parse(struct, data, begin, what, end)
    for name in names:
        if begin + one[name] >= end:
            raise ValueError(
                f"{what}: got a name at {one[name]:#x}, the command has {end - begin:#x} bytes"
            )
        one[name] = _text(data, begin + one[name], end, what)
    return one


def _text(data: bytes, begin: int, end: int, what: str) -> str:
    stop = data.find(b"\0", begin, end)
    try:
        return data[begin : end if stop < 0 else stop].decode()
    except UnicodeDecodeError:
        raise ValueError(f"{what}: got a name that is not UTF-8") from None


def _name(raw: bytes, what: str) -> str:
    return _text(raw, 0, len(raw), what)
