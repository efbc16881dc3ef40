"""The files of a store: Parquet parts, each with its checksum, a head, and buffers by their hash.

::

    NAME/store.json             head: version, number of words, types of the columns, the texts
    NAME/parts/BATCH.parquet    the rows of a batch in columns: w0, w1, ..., parameters, others
    NAME/sums/BATCH.json        number of rows, bytes and sha256 of the part; sha256 of its contents
    NAME/buffers/3f/3f81...     the bytes of a buffer, named by their sha256

No file is written twice. A part is written to a hidden folder, its checksum is put into ``sums``,
and a hard link gives the part its name: so a part that has its name is whole and has a checksum.
A file in ``sums`` without a part belongs to a batch that was not finished, and is ignored.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from npulab.captures.sweep import HEAD
from npulab.support.files import (
    HIDDEN,
    PART,
    give_name,
    locked,
    read_json,
    replace_file,
    sync_folders,
    write_file,
)
from npulab.support.refuse import refuse_if, refusing

try:
    import fcntl
except ImportError:  # this system has no file locks
    fcntl = None  # type: ignore[assignment]

PARTS, SUMS, BUFFERS = "parts", "sums", "buffers"  # names of the folders in a store's folder
SUFFIX = ".parquet"
VERSION = 1  # files of a store that state another version are refused
BATCH = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")  # ``BATCH`` matches the name of a batch.
FRESH = 60.0  # a hidden folder younger than ``FRESH`` seconds may be a writer's that just began


@dataclass(frozen=True)
class Part:
    """A part of a store: the name of its batch, its number of ``rows``, the number of ``bytes`` and
    the ``sha256`` of its file, and the sha256 of its ``contents``, the values of its columns."""

    batch: str
    rows: int
    bytes: int
    sha256: str
    contents: str


KEYS = {"batch": str, "rows": int, "bytes": int, "sha256": str, "contents": str}


def part_path(store: Path, batch: str) -> Path:
    return store / PARTS / (batch + SUFFIX)


def read_parts(store: Path) -> tuple[Part, ...]:
    """The parts of a store, sorted by the names of their batches.

    Raises ValueError, which names the file, for a part without a file in ``sums``, or with another
    number of bytes than that file states.
    """
    found = []
    folder = store / PARTS
    if folder.is_dir():
        for path in sorted(folder.glob("*" + SUFFIX)):
            if not path.name.startswith("."):
                found.append(_read_part(store, path))
    return tuple(found)


def _read_part(store: Path, path: Path) -> Part:
    stated = store / SUMS / f"{path.stem}.json"
    refuse_if(
        not stated.is_file(), path, "a part without a checksum", f"is one with {SUMS}/{stated.name}"
    )
    with refusing(stated):
        values = read_json(stated)
        refuse_if(not isinstance(values, dict), "contents", type(values).__name__, "is an object")
        version = values.pop("version", None)
        refuse_if(version != VERSION, "version", version, f"is {VERSION}")
        refuse_if(values.keys() != KEYS.keys(), "keys", [*values], f"are {', '.join(KEYS)}")
        for key, kind in KEYS.items():
            value = values[key]
            refuse_if(type(value) is not kind, key, repr(value), f"is {kind.__name__}")
        part = Part(**values)
        refuse_if(part.batch != path.stem, "batch", repr(part.batch), f"is {path.stem}")
    size = path.stat().st_size
    refuse_if(
        size != part.bytes, path, f"{size} bytes", f"are {part.bytes}, as {SUMS}/{stated.name} says"
    )
    return part


def check_part(store: Path, part: Part) -> None:
    """Raise ValueError, which names the file, if a part's file has another sha256 than stated."""
    path = part_path(store, part.batch)
    found = file_sum(path)
    refuse_if(
        found != part.sha256,
        path,
        f"sha256 {found[:12]}..., it was changed or damaged",
        f"is {part.sha256[:12]}..., as {SUMS}/{part.batch}.json says",
    )


def file_sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def keep_part(store: Path, made: Path, part: Part) -> Part:
    """Put the finished file ``made`` into a store as ``part``, write its checksum, return the part.

    If the store has the batch with the same contents, the part in the store is returned and nothing
    is written. Raises FileExistsError if the store has the batch with other contents.
    """
    path = part_path(store, part.batch)
    stated = store / SUMS / f"{part.batch}.json"
    with locked(path):
        there = part_there(store, part.batch, part.contents)
        if there is not None:
            return there
        text = json.dumps({"version": VERSION, **asdict(part)}, indent=1) + "\n"
        replace_file(stated, text.encode())
        give_name(made, path)
    sync_folders([path])
    return part


def part_there(store: Path, batch: str, contents: str) -> Part | None:
    """The part of a batch, None if the store lacks it; raises FileExistsError if the sha256 of its
    contents is not ``contents``."""
    path = part_path(store, batch)
    if not path.is_file():
        return None
    part = _read_part(store, path)
    refuse_if(
        part.contents != contents,
        path,
        f"batch {batch!r} with other contents than the store has",
        "is a new name, or the same contents again",
        FileExistsError,
    )
    return part


@contextmanager
def hidden_folder(store: Path) -> Iterator[Path]:
    """A context with a new hidden folder inside a store, which is removed at the end; folders that
    killed writers left are removed first."""
    _clear(store)
    folder = Path(tempfile.mkdtemp(PART, HIDDEN, store))
    handle = os.open(folder, os.O_RDONLY)
    try:
        if fcntl is not None:
            with suppress(OSError):  # the file system has no locks
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def _clear(store: Path) -> None:
    """Remove the hidden folders of writers that ended: folders that nobody locks and that are older
    than ``FRESH`` seconds."""
    for folder in store.glob(f"{HIDDEN}*{PART}"):
        with suppress(OSError):  # another writer may remove the folder at the same time
            age = time.time() - folder.stat().st_mtime
            if age > FRESH and folder.is_dir() and not folder.is_symlink() and _is_free(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_free(folder: Path) -> bool:
    if fcntl is None:
        return False
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


@contextmanager
def full_disk(path: Path, batch: str) -> Iterator[None]:
    """A context that turns the errors of a disk without space into an OSError of one sentence."""
    try:
        yield
    except Exception as error:
        number = getattr(error, "errno", None)
        full = number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        said = str(error)
        if not full and not any(text in said for text in FULL):
            raise
        reason = (
            f"No space left on the disk: batch {batch} is not written, the batches before it are; "
            "append it again if there is space"
        )
        raise OSError(errno.ENOSPC, reason, str(path)) from None


# the C library's texts for a full disk, a used-up quota and a too large file, as DuckDB quotes them
FULL = tuple(map(os.strerror, (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)))


def write_head(store: Path, head: Mapping[str, Any]) -> None:
    """Write the head of a new store; if another writer has written one meanwhile, keep that."""
    text = json.dumps({"version": VERSION, **head}, indent=1, ensure_ascii=False) + "\n"
    with suppress(FileExistsError):
        write_file(store / HEAD, text.encode())


def write_buffer(store: Path, data: bytes) -> str:
    """Keep bytes in a store and return their sha256; the same bytes are kept once."""
    name = hashlib.sha256(data).hexdigest()
    with suppress(FileExistsError):
        write_file(store / BUFFERS / name[:2] / name, data)
    return name


def read_buffer(store: Path, name: str) -> bytes:
    """The bytes that a store keeps under a sha256; raises LookupError if there are none, ValueError
    if they were changed."""
    path = store / BUFFERS / name[:2] / name
    refuse_if(
        not re.fullmatch("[0-9a-f]{64}", name) or not path.is_file(),
        f"{store}: buffer",
        repr(name),
        "is the sha256 of a buffer in the store",
        LookupError,
    )
    data = path.read_bytes()
    found = hashlib.sha256(data).hexdigest()
    refuse_if(found != name, path, f"sha256 {found[:12]}...", "is that of the file name")
    return data
