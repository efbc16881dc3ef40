"""Files that no target recognises, told as what they are, with the next step."""

from __future__ import annotations

from pathlib import Path

from npulab.captures.registry import stated_target, targets
from npulab.registers.fields import WORD_BYTES
from npulab.registers.table import MOST_WORDS
from npulab.support.files import first_bytes
from npulab.support.text import Row, plural

# how files begin that are often taken for a dump
KINDS = {b"\x89PNG": "a PNG picture", b"\xff\xd8\xff": "a JPEG picture", b"GIF8": "a GIF picture",
         b"BM": "a BMP picture", b"%PDF": "a PDF document", b"PK\x03\x04": "a zip archive",
         b"\x1f\x8b": "a gzip archive", b"\xfd7zXZ": "an xz archive", b"7z\xbc\xaf": "a 7z archive",
         b"\x7fELF": "an ELF program or library", b"MZ": "a Windows program", b"ONNX": "an ONNX model",
         b"SQLite format 3": "an SQLite database", b"\x89HDF": "an HDF5 file"}
HEAD = 4096
FORMATS = "npulab list --formats names what they read"


def formats() -> list[Row]:
    """The dumps that targets read: target and format; of a broken target what is wrong."""
    rows: list[Row] = []
    for name in targets():
        try:
            of = stated_target(name)
            rows += [{"target": name, "format": importer.name} for importer in of.importers]
            rows += [{"target": name, "format": f"{kind.name}, by show and check"} for kind in of.documents]
        except ValueError as error:
            rows.append({"target": name, "format": f"none: {error}"})
    return rows


def sentence_of(path: Path) -> str:
    """What a file is that no target recognises, what to do with it, and targets that are broken."""
    broken = [row["format"].removeprefix("none: ") for row in formats() if row["format"].startswith("none: ")]
    return "; ".join([_what(path), *broken])


def _what(path: Path) -> str:
    size = path.stat().st_size
    head = first_bytes(path, HEAD)
    if not head:
        return f"{path}: is empty, allowed is a dump that a target recognises; record it again"
    kind = next((kind for start, kind in KINDS.items() if head.startswith(start)), "")
    if kind:
        return f"{path}: is {kind}, no target recognises this file; {FORMATS}"
    if _is_text(head):
        return f"{path}: is text, no target recognises this file; {FORMATS}"
    words, rest = divmod(size, WORD_BYTES)
    if rest or not 2 <= words <= MOST_WORDS:
        return f"{path}: is {plural(size, 'byte')}, no target recognises this file; {FORMATS}"
    begin = f"npulab new NAME --from {path}" if path.suffix == ".bin" else f"npulab new NAME --words {words}"
    return (f"{path}: is {plural(words, 'word')} of 32 bits or other bytes, no target recognises this file; {FORMATS}, "
            f"words of an NPU that has no target begin with {begin}")


def _is_text(head: bytes) -> bool:
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.reason != "unexpected end of data":  # the last letter may be cut
            return False
        text = head[:error.start].decode("utf-8")
    return not any(ord(letter) < 32 and letter not in "\t\n\r\f\x1b" for letter in text)
