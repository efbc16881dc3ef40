"""Reading compiled files (hwx): 64-bit little-endian Mach-O files with a magic of their own.

Segments have the tasks (section ``__TEXT,__text``), their coefficients and activation tables
(``__TEXT,__const``), and the addresses of the tensors (``__FVMLIB``, without bytes in the file).
Thread commands state the program, with its table of base addresses (BAR), and each tensor. The
order of segments, all addresses and the BAR of each tensor differ between files and are read from
the file. Source: files of the compilers 4.2.1, 5.4.1, 7.6.4 and 9.509.0.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from construct import Container

from npulab.npus.ane.structures import STRUCTURES
from npulab.npus.kit import refuse_if, refusing

MAGIC, MAGIC_64 = 0xBEEFFACE, 0xFEEDFACF
SEGMENT, THREAD, IDENT, SYMBOLS = 0x19, 0x04, 0x08, 0x02
# Codes of the command that states a tensor's address: of compilers up to 5, of compilers from 7 on.
PLACES = (0x06, 0x40)
# Flavours of thread commands. A program has 1, or 4 on H17, as others report; no file was seen.
PROGRAM, PROGRAM_LATER, TENSOR = 1, 4, 3
INPUT, OUTPUT = 1, 2
BARS = 256
STABS_TENSOR, STABS_TYPE = 0x20, 0x80
# Base addresses have 32 bits.
ADDRESS_END = 2**32
MOST_BYTES = 2**30
# The names of all symbols together have at most this many bytes.
MOST_NAMES = 2**24
KINDS = {INPUT: "input", OUTPUT: "output"}
STRIDES = ("batch", "channel", "row", "column", "depth")

HEAD, COMMAND, SEGMENT_HEAD, SECTION, SYMBOL_TABLE = itemgetter(
    "hwx header", "command", "segment", "section", "symbol table"
)(STRUCTURES)
PLACE, WIDE_PLACE, THREAD_HEAD, PROGRAM_THREAD, TENSOR_THREAD = itemgetter(
    "place", "wide place", "thread", "program thread", "tensor thread"
)(STRUCTURES)
# A file may have many symbols and relocations; as numpy types, all are read in one step.
SYMBOL = np.dtype(
    [("name", "<u4"), ("type", "u1"), ("section", "u1"), ("description", "<u2"), ("value", "<u8")]
)
RELOCATION = np.dtype([("address", "<u4"), ("packed", "<u4")])
# The byte at which a command begins, and the byte after its end.
Span = tuple[int, int]
VERSION = re.compile(r"zin_ane_compiler v(\S+)")


class Relocation(NamedTuple):
    """A relocation: a word of a section that the loader fills with an address.

    ``address`` is the word's byte offset in the section; ``log2_bytes`` is 2 for four bytes.
    """

    address: int
    section: int
    pc_relative: int
    log2_bytes: int
    external: int
    type: int


@dataclass(frozen=True)
class Section:
    """A section of a segment.

    ``address`` and ``size`` (bytes) are its place in memory. ``data`` are its bytes, which begin at
    byte ``offset`` of the file. Sections of tensors have no bytes in the file: ``offset`` is 0 and
    ``data`` is empty. ``at`` is the byte of the file at which the structure of the section begins.
    """

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
    """An input or output, as its thread command states it.

    ``shape`` is (N, C, H, W, D). ``element`` is the code of the element type. ``strides`` has the
    bytes between batches, channels, rows, columns and depths, by these names in the singular;
    ``span`` is the size in bytes. ``address`` is None if the file states none. ``bar`` is the
    number of the base address in the program's table, None if the table does not have ``address``.
    """

    name: str
    symbol: str
    kind: str
    network: str
    element: int
    shape: tuple[int, ...]
    strides: Mapping[str, int]
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
    """A program (compiled network) of the file.

    ``bars`` has the base addresses that are not 0 by their number. ``first_task`` is the address of
    the first task, ``first_words`` its number of words, ``tasks`` the number of tasks. ``at`` is
    the byte of the file at which the program's command begins.
    """

    name: str
    bars: Mapping[int, int]
    first_task: int
    first_words: int
    tasks: int
    scratch: int
    at: int


@dataclass(frozen=True)
class Hwx:
    """The contents of a compiled file.

    ``commands`` are the codes of its load commands in order, ``identity`` the text of its identity
    commands.
    """

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
        """The version of the compiler, such as 4.2.1; empty if the file does not state it."""
        found = VERSION.search(self.identity)
        return found[1] if found else ""

    def section(self, segment: str, name: str) -> Section:
        """Return the first section with these names of segment and section.

        Raises ValueError, with the names of all sections, if there is none.
        """
        names = []
        for section in self.sections:
            if (section.segment, section.name) == (segment, name):
                return section
            names.append(f"{section.segment},{section.name} at byte {section.at:#x}")
        listed = ", ".join(names) or "none from byte 0x20 on"
        raise ValueError(f"section: got {segment},{name}, the file has {listed}")


def is_hwx(data: bytes) -> bool:
    """Return true if bytes begin with the magic of a compiled file."""
    return len(data) >= HEAD.sizeof() and int.from_bytes(data[:4], "little") in (MAGIC, MAGIC_64)


def read(data: bytes, where: str = "hwx") -> Hwx:
    """Return the contents of a compiled file, read from its bytes.

    Raises ValueError for a file that is cut short, or whose sizes, counts, names or addresses lead
    outside of the file. The error names ``where``, the structure and its byte offset.
    """
    with refusing(where):
        return _read_whole(data)


def _read_whole(data: bytes) -> Hwx:
    if len(data) > MOST_BYTES:
        raise ValueError(f"got {len(data)} bytes, allowed are up to {MOST_BYTES}")
    head = _parse(HEAD, data, 0, "header")
    if head.magic not in (MAGIC, MAGIC_64):
        raise ValueError(
            f"header at byte 0x0: got magic {head.magic:#010x}, allowed is {MAGIC:#010x}"
        )
    codes: list[int] = []
    spans: dict[int, list[Span]] = defaultdict(list)
    for code, begin, end in _commands(data, head):
        codes.append(code)
        spans[code].append((begin, end))
    symbols: tuple[Symbol, ...] = ()
    if spans[SYMBOLS]:
        symbols = _symbols(data, *spans[SYMBOLS][-1])
    sections = _sections(data, spans[SEGMENT])
    threads: dict[int, list[Span]] = defaultdict(list)
    for begin, end in spans[THREAD]:
        thread = _parse(THREAD_HEAD, data, begin, f"thread command at byte {begin:#x}", end)
        threads[PROGRAM if thread.flavour == PROGRAM_LATER else thread.flavour].append((begin, end))
    programs = tuple(_program(data, span) for span in threads[PROGRAM])
    bars: dict[int | None, int] = {}
    for program in programs:
        bars |= {address: number for number, address in program.bars.items()}
    places = _places(data, spans, symbols)
    tensors = tuple(_tensor(data, span, places, bars) for span in threads[TENSOR])
    identity = ""
    for begin, end in spans[IDENT]:
        identity += _text_at(data, begin + COMMAND.sizeof(), end, f"identity at byte {begin:#x}")
    return Hwx(
        head.magic,
        head.cputype,
        head.cpusubtype,
        head.filetype,
        head.flags,
        tuple(codes),
        sections,
        programs,
        tensors,
        symbols,
        identity,
    )


def _sections(data: bytes, spans: list[Span]) -> tuple[Section, ...]:
    """Return the sections of all segments, with their bytes.

    ``spans`` are the spans of the segment commands. Raises ValueError if segments overlap in memory
    or sections overlap in the file.
    """
    sections: list[Section] = []
    addresses, stored = [], []
    for span in spans:
        segment, parts = _segment(data, *span)
        addresses.append(segment)
        for part in parts:
            if part.offset:
                end = part.offset + part.size
                stored.append((part.offset, end, f"section {part.segment},{part.name}"))
                part = replace(part, data=data[part.offset : end])
            sections.append(part)
    _apart(addresses, "addresses")
    _apart(stored, "bytes")
    return tuple(sections)


def _places(
    data: bytes, spans: Mapping[int, list[Span]], symbols: tuple[Symbol, ...]
) -> dict[str, int]:
    """Return the addresses of tensors by name.

    An address comes from the tensor's place command, without one from its symbol.
    """
    places: dict[str, int] = {}
    for symbol in symbols:
        if symbol.section and symbol.type not in (STABS_TENSOR, STABS_TYPE):
            places.setdefault(symbol.name, symbol.value)
    for struct, code in zip((PLACE, WIDE_PLACE), PLACES, strict=True):
        for span in spans[code]:
            place = _with_names(struct, data, span, "place of a tensor", "name")
            places[place.name] = place.address
    return places


def _parse(
    struct: Any, data: bytes, begin: int, what: str, end: int | None = None
) -> Container[Any]:
    """Return the structure that begins at byte ``begin``.

    ``end`` is the end of the command that it belongs to, by default the end of the file. Raises
    ValueError, with ``what``, if the structure reaches past ``end``.
    """
    if end is None:
        end = len(data)
    size = struct.sizeof()
    if begin + size > end:
        raise ValueError(
            f"{what}: needs {size} bytes from byte {begin:#x}, there are {max(end - begin, 0)}"
        )
    return struct.parse(data[begin : begin + size])


def _commands(data: bytes, head: Any) -> Iterator[tuple[int, int, int]]:
    """Yield for each load command its code, the byte at which it begins and the byte after it."""
    begin = HEAD.sizeof()
    limit = begin + head.commands_size
    if limit > len(data):
        raise ValueError(
            f"header at byte 0x0: got {head.commands_size} bytes of load commands, the file has "
            f"{len(data) - begin} after the header"
        )
    for number in range(head.commands):
        what = f"load command {number} at byte {begin:#x}"
        command = _parse(COMMAND, data, begin, what, limit)
        end = begin + command.bytes
        if command.bytes < COMMAND.sizeof() or end > limit:
            raise ValueError(
                f"{what}: got size {command.bytes:#x}, allowed are {COMMAND.sizeof()} to "
                f"{limit - begin:#x}"
            )
        yield command.command, begin, end
        begin = end


def _apart(parts: list[tuple[int, int, str]], what: str) -> None:
    """Raise ValueError if two of the parts (begin, end, name) overlap; ``what`` names their
    unit."""
    filled = sorted(part for part in parts if part[1] > part[0])
    for (begin, end, before), (start, stop, name) in pairwise(filled):
        if start < end:
            raise ValueError(
                f"{name}: got {what} {start:#x} to {stop:#x}, of which {before} has {begin:#x} to "
                f"{end:#x}"
            )


def _segment(data: bytes, begin: int, end: int) -> tuple[tuple[int, int, str], list[Section]]:
    """Return (first address, address after the end, name) of a segment, and its sections.

    ``begin`` and ``end`` are the bytes of its command.
    """
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
    sections = []
    at = begin + SEGMENT_HEAD.sizeof()
    for _ in range(head.sections):
        sections.append(_section(data, at, end, head))
        at += SECTION.sizeof()
    return (head.address, head.address + head.size, what), sections


def _section(data: bytes, begin: int, end: int, segment: Any) -> Section:
    head = _parse(SECTION, data, begin, "section", end)
    owner = _name(head.segment, f"section at byte {begin:#x}")
    name = _name(head.name, f"section at byte {begin:#x}")
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
    rows = np.frombuffer(data, RELOCATION, head.relocation_count, head.relocations).tolist()
    relocations = []
    for number, (address, packed) in enumerate(rows):
        section, bits = packed % 2**24, packed >> 24
        flags = bits & 1, bits >> 1 & 3, bits >> 3 & 1, bits >> 4
        relocations.append(Relocation(address, section, *flags))
        if address + 4 > head.size:
            raise ValueError(
                f"relocation {number} of {what}: got address {address:#x}, "
                f"the section has {head.size:#x} bytes"
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
        tuple(relocations),
    )


def _program(data: bytes, span: Span) -> Program:
    thread = _with_names(PROGRAM_THREAD, data, span, "program thread", "name")
    return Program(
        thread.name,
        {number: address for number, address in enumerate(thread.bars) if address},
        thread.first_task,
        thread.first_size + 1,
        thread.tasks,
        thread.scratch,
        span[0],
    )


def _tensor(
    data: bytes, span: Span, places: Mapping[str, int], bars: Mapping[int | None, int]
) -> Tensor:
    thread = _with_names(TENSOR_THREAD, data, span, "tensor thread", "name", "symbol", "network")
    refuse_if(
        thread.kind not in KINDS,
        f"tensor thread at byte {span[0]:#x}",
        f"kind {thread.kind}",
        f"is {' or '.join(f'{code} ({kind})' for code, kind in KINDS.items())}",
    )
    address = places.get(thread.symbol, places.get(thread.name))
    return Tensor(
        thread.name,
        thread.symbol,
        KINDS[thread.kind],
        thread.network,
        thread.element,
        tuple(thread.shape),
        {axis: thread[axis] for axis in STRIDES},
        thread.interleave,
        thread.span,
        address,
        bars.get(address),
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
                f"symbol {number} at byte {at:#x}: got its name at {name:#x} after {length:#x} "
                f"bytes of names, the table has {table.size:#x}, "
                f"allowed in all are {MOST_NAMES:#x}"
            )
        at = table.strings + name
        text = _text_at(data, at, end, f"name of symbol {number} at byte {at:#x}")
        length += len(text)
        out.append(Symbol(text, kind, section, description, value))
    return tuple(out)


def _inside(data: bytes, begin: int, size: int, what: str, got: str) -> None:
    """Raise ValueError if ``size`` bytes from byte ``begin`` reach past the end of the file."""
    if begin + size > len(data):
        raise ValueError(
            f"{what}: got {got} from byte {begin:#x}, the file has {len(data):#x} bytes"
        )


def _with_names(struct: Any, data: bytes, span: Span, kind: str, *names: str) -> Container[Any]:
    """Return the structure of a command; each offset in ``names`` is replaced by its text.

    An offset counts from the command's begin; a text ends with a zero byte or with the command.
    """
    begin, end = span
    what = f"{kind} at byte {begin:#x}"
    found = _parse(struct, data, begin, what, end)
    for name in names:
        if begin + found[name] >= end:
            raise ValueError(
                f"{what}: got a name at {found[name]:#x}, the command has {end - begin:#x} bytes"
            )
        found[name] = _text_at(data, begin + found[name], end, what)
    return found


def _text_at(data: bytes, begin: int, end: int, what: str) -> str:
    stop = data.find(b"\0", begin, end)
    if stop < 0:
        stop = end
    try:
        return data[begin:stop].decode()
    except UnicodeDecodeError:
        raise ValueError(f"{what}: got a name that is not UTF-8") from None


def _name(raw: bytes, what: str) -> str:
    return _text_at(raw, 0, len(raw), what)
