"""Reading a draft's files from the disk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from npulab.registers.formats.tables import MOST_BYTES, MOST_ROWS
from npulab.support import files

Contents = Mapping[Path, bytes | None]  # by path: the bytes of a file; None if there is none


def read(path: Path) -> bytes | None:
    """Read a file and return its bytes, None if there is no file. Raises ValueError for a folder,
    and for a file that is too large.
    """
    if path.exists():
        return files.read_bounded(path, MOST_BYTES)
    return None


def text_of(path: Path, data: bytes) -> str:
    """Return the text of a table that was read as ``data``; a byte order mark stays in it. Raises
    ValueError if it is not UTF-8 text or has too many lines.
    """
    text = files.text_of(data, path, "utf-8")
    lines = data.count(b"\n") + data.count(b"\r")
    if lines > 4 * MOST_ROWS:
        raise ValueError(f"{path}: got {lines} lines, allowed are at most {4 * MOST_ROWS}")
    return text
