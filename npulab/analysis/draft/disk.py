"""A draft's files: read once, and written over only where they are still as they were read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from npulab.registers.formats.tables import MOST_BYTES, MOST_ROWS
from npulab.support import files

Contents = Mapping[Path, bytes | None]  # None where there is no file


def read(path: Path) -> bytes | None:
    """A file's bytes, None if there is no file; raises ValueError for one that is too large, and for
    a folder."""
    return files.read_bounded(path, MOST_BYTES) if path.exists() else None


def text_of(path: Path, data: bytes) -> str:
    """The text of a table, its byte order mark kept; raises ValueError if it is not UTF-8 text or
    has too many lines."""
    text = files.text_of(data, path, "utf-8")
    lines = data.count(b"\n") + data.count(b"\r")
    if lines > 4 * MOST_ROWS:
        raise ValueError(f"{path}: got {lines} lines, allowed are at most {4 * MOST_ROWS}")
    return text


def write_over(before: Contents, after: Mapping[Path, bytes]) -> None:
    """Write files that were ``before``, all of them or none; the mode of a file stays, a link leads
    where it led.

    Raises ValueError for a file that is no longer as it was.
    """
    for path, data in before.items():
        if read(path) != data:
            raise ValueError(f"{path}: {'is there now and was not' if data is None else 'was changed on the disk'} "
                             "since it was opened, allowed is a file as it was read; save to another path, or open it "
                             "again and replay the edits")
    files.write_files({path: data for path, data in after.items() if before[path] is None})
    done: list[Path] = []
    scratch: dict[Path, Path] = {}
    try:
        for path, data in after.items():
            if before[path] is not None:
                scratch[path] = files.beside(path, data)
        for path, part in scratch.items():
            part.replace(path.resolve())
            done.append(path)
    except BaseException:
        for path in done:
            files.beside(path, before[path] or b"").replace(path.resolve())
        for path, data in before.items():
            if data is None:
                path.unlink(missing_ok=True)
        raise
    finally:
        for part in scratch.values():
            part.unlink(missing_ok=True)
