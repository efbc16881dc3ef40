"""Reading a draft's files from the disk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from npulab.registers.formats.tables import MOST_BYTES, MOST_ROWS
from npulab.support import files

Contents = Mapping[Path, bytes | None]  # None where there is no file


def read(path: Path) -> bytes | None:
    """Return a file's bytes, None if there is no file; raises ValueError for a folder, and for a
    file that is too large."""
    if path.exists():
        return files.read_bounded(path, MOST_BYTES)
    return None


def text_of(path: Path, data: bytes) -> str:
    """Return the text of a table, with its byte order mark if it has one; raises ValueError if it
    is not UTF-8 text or has too many lines.
    """
    text = files.text_of(data, path, "utf-8")
    lines = data.count(b"\n") + data.count(b"\r")
    if lines > 4 * MOST_ROWS:
        raise ValueError(f"{path}: got {lines} lines, allowed are at most {4 * MOST_ROWS}")
    return text
