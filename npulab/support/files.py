"""Files read with bounds; files and folders written whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def need_file(path: Path) -> None:
    """Raises FileNotFoundError where nothing is, ValueError for a folder, a pipe or a device."""
    if not path.is_file() and path.exists():
        raise ValueError(f"{path}: got {'a folder' if path.is_dir() else 'what is no file'}, allowed is a file")
    if not path.exists():
        raise FileNotFoundError(f"{path}: there is no such file")


def read_bounded(path: Path, most: int) -> bytes:
    """The bytes of a file; raises as ``need_file``, and ValueError for more than ``most`` bytes."""
    need_file(path)
    size = path.stat().st_size
    if size > most:
        raise ValueError(f"{path}: got {size} bytes, allowed are {most}")
    return path.read_bytes()


def text_of(data: bytes, where: Path | str, encoding: str = "utf-8-sig") -> str:
    """The text in a file's bytes; raises ValueError with the first byte that is no UTF-8.

    >>> text_of("\\ufeffa".encode(), "x.csv")
    'a'
    """
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        raise ValueError(f"{where}: got byte {error.object[error.start]:#04x} at byte {error.start}, allowed is "
                         "UTF-8") from None


def read_json(path: Path) -> Any:
    """The value in a file of JSON; raises ValueError with the file for another one."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: is not JSON that can be read: {error}") from None


def write_folders(contents: Mapping[Path, Mapping[str, bytes]]) -> list[Path]:
    """Write folders of files by name, all of them or none.

    Each is filled beside its place under a hidden name and then renamed.  Raises FileExistsError
    where one is there already.
    """
    for folder in contents:
        if folder.exists():
            raise FileExistsError(f"{folder}: is there already")
    scratch: list[Path] = []
    done: list[Path] = []
    try:
        for folder, files in contents.items():
            folder.parent.mkdir(parents=True, exist_ok=True)
            scratch.append(Path(tempfile.mkdtemp(prefix=".npulab-", dir=folder.parent)))
            for name, data in files.items():
                (scratch[-1] / name).write_bytes(data)
            scratch[-1].chmod(0o755)
        for part, folder in zip(scratch, contents, strict=True):
            part.rename(folder)
            done.append(folder)
    except BaseException:
        for folder in [*scratch, *done]:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    return done


def write_file(path: Path, data: bytes) -> Path:
    """Write a file, whole or not at all; raises FileExistsError where it is there already."""
    return write_files({path: data})[0]


def write_files(contents: Mapping[Path, bytes]) -> list[Path]:
    """Write files, all of them or none; raises FileExistsError where one is there already."""
    for path in contents:
        if path.exists():
            raise FileExistsError(f"{path}: is there already")
    scratch: list[Path] = []
    done: list[Path] = []
    try:
        for path, data in contents.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            scratch.append(beside(path, data))
        for part, path in zip(scratch, contents, strict=True):
            part.rename(path)
            done.append(path)
    except BaseException:
        for path in [*scratch, *done]:
            path.unlink(missing_ok=True)
        raise
    return done


def replace_file(path: Path, data: bytes) -> None:
    """Write a file whole, in the place of one that may be there, whose mode stays and whose links
    lead where they led; it is on the disk when this returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = beside(path, data, sync=True)
    try:
        part.replace(path.resolve())
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def beside(path: Path, data: bytes, sync: bool = False) -> Path:
    """A hidden file with these bytes in the folder that a file lies in, with its mode where it is
    there already."""
    real = path.resolve()
    handle, name = tempfile.mkstemp(prefix=".npulab-", dir=real.parent)
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        part.chmod(real.stat().st_mode & 0o777 if real.exists() else 0o644)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return part
