"""Lists and checks loadables, which NVDLA's compiler writes and its runtime hands to the driver.

The file is in FlatBuffers' encoding (``loadable.csv`` has its tables). Its tasks, memories,
addresses, events, blobs and tensors are listed. The blobs of descriptors (the operations of the
firmware) are not read: the driver makes register writes of them on the board.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from npulab.captures.documents import Document, Finding
from npulab.models.flat import Flat, read_schema
from npulab.npus.kit import read_bounded, refusing
from npulab.npus.nvdla.facts import HERE
from npulab.support.files import opened
from npulab.support.text import Row, plural

SCHEMA = read_schema(HERE / "loadable.csv")
ROOT = "Loadable"
LISTED = (
    "tasks",
    "submits",
    "memories",
    "addresses",
    "events",
    "blobs",
    "tensors",
    "relocations",
)
MOST_BYTES = 2**30
# Major version and minor versions that are read; the schema is of version 0.7.
MAJOR, MINORS = 0, range(1, 32)
# The meanings of numbers, by field.
NAMES = {
    "interface": {0: "none", 1: "DLA1", 2: "EMU1"},
    "domain": {0: "system", 1: "SRAM"},
    "type": {0: "unknown", 1: "float32", 2: "float16", 3: "int16", 4: "int8"},
}
NAMED = {"tasks": "interface", "blobs": "interface", "memories": "domain", "tensors": "type"}
FLAGS = {1: "alloc", 2: "set", 4: "input", 8: "output"}
# Numbers that have to be ids of rows: table, field, and the table of these rows.
LINKS = (
    ("tasks", "addresses", "addresses"),
    ("tasks", "waits", "events"),
    ("tasks", "signals", "events"),
    ("submits", "tasks", "tasks"),
    ("addresses", "memory", "memories"),
)
LOOK = 2**12  # bytes around the root that are read to recognise a file


def recognises(path: Path) -> bool:
    """True if a file begins as a loadable: a root with a version, and no more fields than the
    schema has."""
    size = path.stat().st_size
    with opened(path) as file:
        head = file.read(8)
        root = int.from_bytes(head[:4], "little")
        if len(head) < 8 or not 4 <= root <= size - 4:
            return False
        file.seek(max(root - LOOK, 0))
        part = file.read(2 * LOOK)
    at = min(root, LOOK)
    near = Flat(part, SCHEMA)
    try:
        slots = at - near.number("i", at, ROOT)
        length = near.number("H", slots, ROOT)
        entry = near.number("H", slots + 4, ROOT)
        major, minor, _ = near.take(at + entry, 3, ROOT)
    except ValueError:
        return False
    whole = 6 <= length <= 4 + 2 * len(SCHEMA[ROOT]) and length % 2 == 0
    return whole and entry >= 4 and major == MAJOR and minor in MINORS


def list_loadable(path: Path) -> Document:
    """Return a loadable as a document: its tasks, memories, addresses, events, blobs and tensors,
    and findings.

    A number of a memory, address or event that does not exist is an error. Raises ValueError with
    the byte for a file that is cut short.
    """
    file = Flat(read_bounded(path, MOST_BYTES), SCHEMA)
    with refusing(path):
        root = file.table(ROOT, file.number("I", 0, ROOT))
    tables = {}
    for name in LISTED:
        tables[name] = [_shown(name, row) for row in root[name]]
    title = (
        f"{path}: NVDLA loadable {_dotted(root)}, {plural(len(root['tasks']), 'task')}, "
        f"{plural(len(root['blobs']), 'blob')}"
    )
    findings = [Finding(0, where, text, wrong=True) for where, text in _wrong(root)]
    if root["tasks"]:
        text = (
            "the operations in the blobs of descriptors are not read: the driver makes register "
            "writes of them; a register log of a run shows these"
        )
        findings.append(Finding(0, "tasks", text))
    return Document(path.name, title, tables, findings)


def _dotted(row: Row) -> str:
    return ".".join(map(str, row["version"]))


def _shown(table: str, row: Row) -> Row:
    """Return a row of a table as it is listed: names for numbers, bytes counted."""
    out = {**row}
    if table in NAMED:
        field = NAMED[table]
        out[field] = NAMES[field].get(row[field], row[field])
    if table == "memories":
        out["flags"] = " ".join(text for bit, text in FLAGS.items() if row["flags"] & bit)
    if table == "blobs":
        out |= {"version": _dotted(row), "data": len(row["data"])}
    return out


def _wrong(root: Mapping[str, Sequence[Row]]) -> Iterator[tuple[str, str]]:
    """Yield (row, sentence) for each row that contradicts another row or itself."""
    for kind, field, other in LINKS:
        ids = {row["id"] for row in root[other]}
        for row in root[kind]:
            numbers = row[field]
            if not isinstance(numbers, Sequence):
                numbers = (numbers,)
            for number in numbers:
                if number not in ids:
                    text = f"got number {number}, which is not one of the {other}"
                    yield f"{kind} {row['id']}", text
    sizes = {row["id"]: row["size"] for row in root["memories"]}
    for row in root["addresses"]:
        if row["offset"] + row["size"] > sizes.get(row["memory"], 2**64):
            yield (
                f"addresses {row['id']}",
                f"got {row['size']} bytes from {row['offset']}, allowed "
                f"are the {sizes[row['memory']]} of memory {row['memory']}",
            )
    blobs = {row["name"] for row in root["blobs"]}
    for row in root["memories"]:
        for name in {*row["contents"]} - blobs:
            yield f"memories {row['id']}", f"got content {name!r}, allowed is the name of a blob"
    for row in root["blobs"]:
        if row["size"] != len(row["data"]):
            yield (
                f"blobs {row['name']}",
                f"got {len(row['data'])} bytes, allowed are the {row['size']} that it says",
            )
