"""Reads a network binary graph (``.nb``, version 0x00020005): header, sections, records.

``structures.csv`` has the layouts, ``sections.csv`` the sections by number. A file holds a network:
its operations, the instructions of the NN and TP units, the command streams that start them, and
the coefficients. Its patches list all words that are addresses; the driver fills in these words.
The format was found in files that the compiler made of layers of our own, not read from source
text.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray as Array

from npulab.npus.kit import WORD_BYTES, read_table, refuse_if

HERE = Path(__file__).parent
MAGIC, VERSION = b"VPMN", 0x00020005
MOST_BYTES = 2**30
# Bounds of the memory and time that a broken file costs: more than any network has.
MOST_SECTIONS, MOST_RECORDS = 256, 2**18
INSTRUCTION = 48 * WORD_BYTES  # bytes of an instruction, for the NN unit or for one TP core
MOST_CORES = 16
NONE = 2**32 - 1  # this number means that an operation has no layer or no command stream
KINDS = {"u4": "<u4", "u8": "<u8", "i4": "<i4", "f4": "<f4", "s": "S"}
BUFFER = "buffer"
UNNAMED = re.compile(r"w\d+")  # fields of structures that nobody named; they are 0 in all files


Span = tuple[int, int, str]  # first byte, byte after it, what lies there


def _structures() -> dict[str, np.dtype[Any]]:
    fields: dict[str, list[Any]] = {}
    for row in read_table(HERE / "structures.csv"):
        kind, _, count = row["kind"].partition("*")
        member: tuple[Any, ...] = row["field"], KINDS[kind]
        if kind == "s":
            member = row["field"], f"{KINDS[kind]}{count}"
        elif count:
            member = row["field"], KINDS[kind], (int(count),)
        fields.setdefault(row["structure"], []).append(member)
    return {name: np.dtype(members) for name, members in fields.items()}


STRUCTURES = _structures()
KNOWN = {int(row["number"]): row for row in read_table(HERE / "sections.csv")}


@dataclass(frozen=True)
class Section:
    """A section of a file. ``place`` is the byte of the file at which it begins. ``address``,
    ``align`` and ``item`` (the bytes of an item) are as its header states them. ``kept`` names the
    part of a capture that holds the section, ``data`` are its bytes."""

    number: int
    name: str
    place: int
    address: int
    align: int
    item: int
    kept: str
    data: bytes

    def __str__(self) -> str:
        return f"section {self.number} ({self.name}) at byte {self.place:#x}"


@dataclass(frozen=True, eq=False)
class Graph:
    """A file as read. ``records`` has the table of records of each section by the section's name;
    it is empty if the file lacks the section. ``nn`` ``(items, 48) uint32`` and ``tp`` ``(items,
    cores, 48) uint32`` are instructions. ``crc`` is the checksum that the header states,
    ``crc_found`` the checksum of the file's bytes.

    ``headers`` has the bytes of all headers if a header field that nobody named is not 0.
    ``between`` has the bytes outside of all headers and sections if one of them is not 0.
    """

    pid: int
    crc: int
    crc_found: int
    sections: Mapping[str, Section]
    records: Mapping[str, Array]
    nn: Array
    tp: Array
    headers: bytes
    between: bytes

    def parts(self, table: str, of: str) -> list[bytes]:
        """The bytes of section ``of``, cut into entries; the section ``table`` states the first
        byte and the size of each entry."""
        return _parts(self.records[table], self.sections.get(table), self.sections.get(of), of)


def is_nb(data: bytes) -> bool:
    """True if bytes begin as a network binary graph."""
    return data.startswith(MAGIC)


def read(data: bytes) -> Graph:
    """Read a file from its bytes.

    Raises ValueError with section and byte for a file of another version, for a file that is cut
    short, and for sections, tables and items that lie outside of it or overlap."""
    head = _record(data, "header", 0)
    refuse_if(
        head["version"] != VERSION,
        "header at byte 0x4",
        f"version {int(head['version']):#010x}",
        f"is {VERSION:#010x}, the one whose layout is known",
    )
    stated = int(head["bytes"])
    allowed = f"is {len(data)}, the bytes of the file; it may be cut short"
    refuse_if(stated != len(data), "header at byte 0x10", stated, allowed)
    heads, spans = _section_heads(data, head)
    sections = [_section(data, row) for row in heads]
    headers = b""
    if is_odd(head) or is_odd(heads):
        headers = b"".join(data[first:after] for first, after, _ in spans)
    spans += [(part.place, part.place + len(part.data), str(part)) for part in sections]
    by_name = {section.name: section for section in sections}
    records = {}
    for row in KNOWN.values():
        if row["structure"]:
            structure = STRUCTURES[row["structure"]]
            records[row["name"]] = _records(by_name.get(row["name"]), structure)
    cores = _cores(by_name.get("tp_instr"))
    zeroed = data[:12] + bytes(WORD_BYTES)
    crc = zlib.crc32(memoryview(data)[16:], zlib.crc32(zeroed))
    return Graph(
        int(head["pid"]),
        int(head["crc"]),
        crc,
        by_name,
        records,
        _instructions(by_name.get("nn_instr"), 1)[:, 0],
        _instructions(by_name.get("tp_instr"), cores),
        headers,
        _between(data, _apart(spans)),
    )


def _record(data: bytes, name: str, at: int) -> Any:
    """Return the record at byte ``at`` of the file, of the structure ``name``."""
    structure = STRUCTURES[name]
    refuse_if(
        at + structure.itemsize > len(data),
        f"{name} at byte {at:#x}",
        f"{max(len(data) - at, 0)} bytes",
        f"are {structure.itemsize}",
    )
    return np.frombuffer(data, structure, 1, at)[0]


def _section_heads(data: bytes, head: Any) -> tuple[Array, list[Span]]:
    """Return the headers of the sections, and where all headers of the file lie. Raises ValueError
    for headers outside of the file, and for two sections of one number."""
    at, count = int(head["parts"]), int(head["part_count"])
    refuse_if(count != 1, "header at byte 0x20", f"{count} parts", "is 1")
    size = STRUCTURES["part"].itemsize
    stated = int(head["part_bytes"])
    refuse_if(stated != size, "header at byte 0x1c", f"parts of {stated} bytes", f"are {size}")
    part = _record(data, "part", at)
    begin, size, count = (int(part[name]) for name in ("sections", "section_bytes", "count"))
    structure = STRUCTURES["section"]
    where = f"part at byte {at:#x}"
    allowed = f"are {structure.itemsize}"
    refuse_if(size != structure.itemsize, where, f"section headers of {size} bytes", allowed)
    refuse_if(count > MOST_SECTIONS, where, f"{count} sections", f"are at most {MOST_SECTIONS}")
    allowed = f"are {count * size} bytes for {count} sections"
    left = max(len(data) - begin, 0)
    refuse_if(left < count * size, f"sections at byte {begin:#x}", left, allowed)
    spans = [
        (0, STRUCTURES["header"].itemsize, "the header"),
        (at, at + STRUCTURES["part"].itemsize, where),
        (begin, begin + count * size, f"the section headers at byte {begin:#x}"),
    ]
    heads = np.frombuffer(data, structure, count, begin)
    numbers = heads["number"].tolist()
    for place, number in enumerate(numbers):
        twice = number in numbers[:place]
        where = f"section header at byte {begin + place * size:#x}"
        refuse_if(twice, where, f"the number {number} again", "is a section of each number")
    return heads, spans


def _section(data: bytes, row: Any) -> Section:
    number, place, size = int(row["number"]), int(row["offset"]), int(row["bytes"])
    known = KNOWN.get(number, {"name": f"section{number}", "kept": BUFFER})
    name = known["name"]
    if place + size > len(data):
        raise ValueError(
            f"section {number} ({name}) at byte {place:#x}: got {size} bytes, allowed are at most "
            f"the {max(len(data) - place, 0)} from this byte to the file's end"
        )
    return Section(
        number,
        name,
        place,
        int(row["address"]),
        int(row["align"]),
        int(row["item"]),
        known["kept"],
        data[place : place + size],
    )


def _apart(spans: Sequence[Span]) -> list[tuple[int, int]]:
    """Return (first byte, byte after the last) of each span, in ascending order. Raises ValueError
    if two spans overlap."""
    out: list[tuple[int, int]] = []
    end, before = 0, ""
    for first, after, name in sorted(spans):
        if first == after:
            continue
        if first < end:
            raise ValueError(
                f"{name}: got bytes {first:#x} to {after:#x}, allowed are bytes from {end:#x} on, "
                f"where {before} ends"
            )
        out.append((first, after))
        end, before = after, name
    return out


def _between(data: bytes, ends: Sequence[tuple[int, int]]) -> bytes:
    """Return the bytes outside of the spans ``ends`` (first byte, byte after the last); no bytes if
    all of them are 0."""
    found, end = bytearray(), 0
    for first, after in (*ends, (len(data), len(data))):
        found += data[end:first]
        end = after
    if any(found):
        return bytes(found)
    return b""


def _records(section: Section | None, structure: np.dtype[Any]) -> Array:
    """Return the records of a section; none without the section. Raises ValueError unless whole
    records fill the section."""
    if section is None:
        return np.zeros(0, structure)
    size = structure.itemsize
    if section.name == "network_info":  # one record, then bytes of unknown meaning
        refuse_if(len(section.data) < size, section, len(section.data), f"are {size} bytes")
        return np.frombuffer(section.data, structure, 1)
    refuse_if(section.item != size, section, f"items of {section.item} bytes", f"are {size}")
    count, rest = divmod(len(section.data), size)
    refuse_if(rest, section, f"{len(section.data)} bytes", f"are items of {size}")
    allowed = f"are at most {MOST_RECORDS}"
    refuse_if(count > MOST_RECORDS, section, f"{count} items", allowed)
    return np.frombuffer(section.data, structure, count)


def _cores(section: Section | None) -> int:
    """Return the number of TP cores: an item of the TP section has an instruction for each core."""
    if section is None:
        return 1
    cores, rest = divmod(section.item, INSTRUCTION)
    refuse_if(
        rest or not 1 <= cores <= MOST_CORES,
        section,
        f"items of {section.item} bytes",
        f"are {INSTRUCTION} for each of at most {MOST_CORES} cores",
    )
    return cores


def _instructions(section: Section | None, cores: int) -> Array:
    """Return the instructions of a section, ``(items, cores, 48) uint32``."""
    words = INSTRUCTION // WORD_BYTES
    if section is None:
        return np.zeros((0, cores, words), np.uint32)
    size = cores * INSTRUCTION
    refuse_if(section.item != size, section, f"items of {section.item} bytes", f"are {size}")
    refuse_if(
        len(section.data) % size, section, f"{len(section.data)} bytes", f"are items of {size}"
    )
    return np.frombuffer(section.data, "<u4").reshape(-1, cores, words)


def _parts(table: Array, stated: Section | None, section: Section | None, name: str) -> list[bytes]:
    """Return the bytes of each entry of ``section``. ``table`` has (first byte, size) of each
    entry, from the section ``stated``. Raises ValueError for entries outside of the section, and
    for entries that overlap without being equal."""
    if stated is None:
        return []
    data = b""
    if section is not None:
        data = section.data
    parts: dict[tuple[int, int], bytes] = {}
    spans: list[Span] = []
    for number, (first, size) in enumerate(table.tolist()):
        after = first + size
        where = f"{stated}, entry {number}"
        if after > len(data):
            raise ValueError(
                f"{where}: got bytes {first:#x} to {after:#x}, allowed are the {len(data):#x} "
                f"bytes of section {name}"
            )
        if (first, size) not in parts:
            parts[first, size] = data[first:after]
            spans.append((first, after, where))
    _apart(spans)
    return [parts[first, size] for first, size in table.tolist()]


def is_odd(table: Any) -> bool:
    """True if a field without a name (``w`` and a number) is not 0 in one of the records."""
    unnamed = filter(UNNAMED.fullmatch, table.dtype.names)
    return any(np.any(table[name]) for name in unnamed)
