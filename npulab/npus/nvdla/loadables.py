"""Loadables, which NVDLA's compiler writes and its runtime hands to the driver: listed and checked.

The file is in FlatBuffers' encoding (``loadable.csv`` has its tables).  Its tasks, memories, addresses,
events, blobs and tensors are listed.  What the blobs of descriptors say (the operations of the
firmware) is not read: the driver makes register writes of them on the board.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from npulab.captures.documents import Document, Finding
from npulab.npus.nvdla.facts import HERE
from npulab.registers.table import read_table
from npulab.support.files import read_bounded
from npulab.support.text import Row, plural

SCHEMA: dict[str, list[tuple[str, str]]] = {}
for _row in read_table(HERE / "loadable.csv"):
    SCHEMA.setdefault(_row["table"], []).append((_row["field"], _row["kind"]))
ROOT = "Loadable"
MOST_BYTES, MOST_ROWS = 2 ** 30, 2 ** 18
MAJOR, MINORS = 0, range(1, 32)  # versions of a loadable; 0.7 is the one of the schema
INTERFACES = {0: "none", 1: "DLA1", 2: "EMU1"}
DOMAINS = {0: "system", 1: "SRAM"}
FLAGS = {1: "alloc", 2: "set", 4: "input", 8: "output"}
TYPES = {0: "unknown", 1: "float32", 2: "float16", 3: "int16", 4: "int8"}
VERSION = 3  # bytes
LOOK = 2 ** 12


class _Bytes:
    """A file in FlatBuffers' encoding; every read is checked, and how many tables and numbers are
    read is bounded."""

    def __init__(self, data: bytes, where: Path | str) -> None:
        self.data, self.where, self.left = data, where, MOST_ROWS

    def refuse(self, what: str, at: int) -> ValueError:
        return ValueError(f"{self.where}: {what}: got byte {at:#x}, allowed is inside the {len(self.data)} bytes; the "
                          "loadable is cut short or broken")

    def number(self, kind: str, at: int, what: str) -> int:
        if not 0 <= at <= len(self.data) - struct.calcsize(kind):
            raise self.refuse(what, at)
        return int(struct.unpack_from(f"<{kind}", self.data, at)[0])

    def raw(self, at: int, size: int, what: str) -> bytes:
        if not 0 <= at <= len(self.data) - size:
            raise self.refuse(what, at + size)
        return self.data[at:at + size]

    def table(self, kind: str, at: int) -> dict[str, Any]:
        self.left -= 1
        if self.left < 0:
            raise ValueError(f"{self.where}: {kind}: got more than {MOST_ROWS} tables, at most {MOST_ROWS} are allowed")
        slots = at - self.number("i", at, kind)
        size = self.number("H", slots, f"{kind}, slots")
        out: dict[str, Any] = {}
        for slot, (name, part) in enumerate(SCHEMA[kind]):
            place = 4 + 2 * slot
            entry = self.number("H", slots + place, f"{kind}, slots") if place + 2 <= size else 0
            out[name] = self.part(part, at + entry, f"{kind}, {name}") if entry else _absent(part)
        return out

    def part(self, kind: str, at: int, what: str) -> Any:
        if kind == "version":
            return tuple(self.raw(at, VERSION, what))
        if len(kind) == 1 and kind != "s":
            return self.number(kind, at, what)
        at += self.number("I", at, what)
        if kind == "s":
            return self.raw(at + 4, self.number("I", at, what), what).decode(errors="backslashreplace")
        count, at, element = self.number("I", at, what), at + 4, kind[1:-1]
        if element == "B":
            return self.raw(at, count, what)
        width = struct.calcsize(element) if len(element) == 1 and element != "s" else 4
        self.raw(at, count * width, what)
        self.left -= count
        if element == "s":
            return [self.part("s", at + 4 * i, what) for i in range(count)]
        if width == 4 and element in SCHEMA:
            return [self.table(element, at + 4 * i + self.number("I", at + 4 * i, what)) for i in range(count)]
        return [self.number(element, at + width * i, what) for i in range(count)]


def _absent(kind: str) -> Any:
    """What a field is that is not stored."""
    return {"s": "", "[B]": b"", "version": (0, 0, 0)}.get(kind, [] if kind[0] == "[" else 0)


def recognises(path: Path) -> bool:
    """Whether a file begins as a loadable: a root with a version, and no more tables than there
    are."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(8)
        if len(head) < 8 or not 4 <= struct.unpack("<I", head[:4])[0] <= size - 4:
            return False
        root = struct.unpack("<I", head[:4])[0]
        file.seek(max(root - LOOK, 0))
        part = file.read(2 * LOOK)
    at = min(root, LOOK)
    near = _Bytes(part, path)
    try:
        slots = at - near.number("i", at, ROOT)
        length = near.number("H", slots, ROOT)
        entry = near.number("H", slots + 4, ROOT)
        major, minor, _ = near.raw(at + entry, VERSION, ROOT)
    except ValueError:
        return False
    whole = 6 <= length <= 4 + 2 * len(SCHEMA[ROOT]) and length % 2 == 0
    return whole and entry >= 4 and major == MAJOR and minor in MINORS


def list_loadable(path: Path) -> Document:
    """A loadable: its tasks, memories, addresses, events, blobs and tensors, and what was found in it.

    A number of a memory, address or event that is not there is an error.  Raises ValueError with
    the byte for a file that is cut short.
    """
    file = _Bytes(read_bounded(path, MOST_BYTES), path)
    root = file.table(ROOT, file.number("I", 0, ROOT))
    tables = {"tasks": [{**row, "interface": INTERFACES.get(row["interface"], row["interface"])}
                        for row in root["tasks"]],
              "submits": root["submits"],
              "memories": [{**row, "domain": DOMAINS.get(row["domain"], row["domain"]),
                            "flags": " ".join(text for bit, text in FLAGS.items() if row["flags"] & bit)}
                           for row in root["memories"]],
              "addresses": root["addresses"], "events": root["events"],
              "blobs": [{**row, "version": ".".join(map(str, row["version"])), "data": len(row["data"]),
                         "interface": INTERFACES.get(row["interface"], row["interface"])} for row in root["blobs"]],
              "tensors": [{**row, "type": TYPES.get(row["type"], row["type"])} for row in root["tensors"]],
              "relocations": root["relocations"]}
    version = ".".join(map(str, root["version"]))
    title = (f"{path}: NVDLA loadable {version}, {plural(len(root['tasks']), 'task')}, "
             f"{plural(len(root['blobs']), 'blob')}")
    return Document(path.name, title, tables, [*_findings(root)])


def _findings(root: Mapping[str, Sequence[Row]]) -> Iterator[Finding]:
    for kind, field, other in (("tasks", "addresses", "addresses"), ("tasks", "waits", "events"),
                               ("tasks", "signals", "events"), ("submits", "tasks", "tasks")):
        ids = {row["id"] for row in root[other]}
        for row in root[kind]:
            for number in row[field]:
                if number not in ids:
                    yield _missing(kind, row, other, number)
    memories = {row["id"]: row for row in root["memories"]}
    for row in root["addresses"]:
        if row["memory"] not in memories:
            yield _missing("addresses", row, "memories", row["memory"])
        elif row["offset"] + row["size"] > memories[row["memory"]]["size"]:
            yield Finding(0, f"addresses {row['id']}", f"got {row['size']} bytes from {row['offset']} on, allowed are "
                          f"the {memories[row['memory']]['size']} of memory {row['memory']}", wrong=True)
    blobs = {row["name"]: row for row in root["blobs"]}
    for row in root["memories"]:
        for name in row["contents"]:
            if name not in blobs:
                yield Finding(0, f"memories {row['id']}", f"got content {name!r}, allowed is the name of a blob",
                              wrong=True)
    for row in root["blobs"]:
        if row["size"] != len(row["data"]):
            yield Finding(0, f"blobs {row['name']}", f"got {len(row['data'])} bytes, allowed are the {row['size']} "
                          "that it says", wrong=True)
    if root["tasks"]:
        yield Finding(0, "tasks", "the operations in the blobs of descriptors are not read: the driver makes register "
                      "writes of them; a register log of a run shows these")


def _missing(kind: str, row: Row, other: str, number: int) -> Finding:
    return Finding(0, f"{kind} {row['id']}", f"got number {number}, which is not one of the {other}", wrong=True)
