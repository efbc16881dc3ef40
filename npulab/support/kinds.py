"""The kind of a file by its first bytes, for kinds that are often mistaken for dumps."""

from __future__ import annotations

# The kind of a file, as words to follow "is", by the bytes with which such a file begins.
KINDS = {
    b"\x89PNG": "a PNG picture",
    b"\xff\xd8\xff": "a JPEG picture",
    b"GIF8": "a GIF picture",
    b"BM": "a BMP picture",
    b"%PDF": "a PDF document",
    b"PK\x03\x04": "a zip archive",
    b"\x1f\x8b": "a gzip archive",
    b"\xfd7zXZ": "an xz archive",
    b"7z\xbc\xaf": "a 7z archive",
    b"\x7fELF": "an ELF program or library",
    b"MZ": "a Windows program",
    b"ONNX": "an ONNX model",
    b"SQLite format 3": "an SQLite database",
    b"\x89HDF": "an HDF5 file",
}
TEXT, EMPTY = "text", "empty"


def kind_of(head: bytes) -> str:
    """The kind of a file with these first bytes, as words to follow "is"; "" if the kind is not
    known.

    >>> kind_of(b"%PDF-1.7"), kind_of(b"roses"), kind_of(b""), kind_of(bytes(4))
    ('a PDF document', 'text', 'empty', '')
    """
    if not head:
        return EMPTY
    for start, kind in KINDS.items():
        if head.startswith(start):
            return kind
    if _is_text(head):
        return TEXT
    return ""


def _is_text(head: bytes) -> bool:
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError as error:
        # this reason means that the head ends inside a character: that character is left out
        if error.reason != "unexpected end of data":
            return False
        text = head[: error.start].decode("utf-8")
    return not any(ord(letter) < 32 and letter not in "\t\n\r\f\x1b" for letter in text)
