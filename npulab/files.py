"""Folders and files written whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path


def write_folders(contents: Mapping[Path, Mapping[str, bytes]]) -> list[Path]:
    """Write folders of files by name, all of them or none.

    Each is filled beside its place under a hidden name and then renamed.  Raises FileExistsError where one is
    there already.
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
            handle, name = tempfile.mkstemp(prefix=".npulab-", dir=path.parent)
            scratch.append(Path(name))
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            scratch[-1].chmod(0o644)
        for part, path in zip(scratch, contents, strict=True):
            part.rename(path)
            done.append(path)
    except BaseException:
        for path in [*scratch, *done]:
            path.unlink(missing_ok=True)
        raise
    return done
