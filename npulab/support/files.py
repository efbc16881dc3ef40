"""Files read up to a size limit; files and folders that are written whole or not at all."""

from __future__ import annotations

import csv
import errno
import hashlib
import io
import os
import re
import shutil
import stat
import tempfile
import threading
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from npulab.support.cells import APOSTROPHE, unguarded
from npulab.support.json_text import MOST_DEEP, json_of

try:
    import fcntl
except ImportError:  # Windows has no fcntl
    fcntl = None  # type: ignore[assignment]

Got = TypeVar("Got")
# A JSON file has at most ``MOST_JSON`` bytes, a CSV table ``MOST_TABLE``, a file that is replaced
# ``MOST_REPLACED``. From a file that grows ``BLOCK`` bytes are read at once.
MOST_JSON = 2**24
MOST_TABLE = 2**26
MOST_REPLACED = 2**31
BLOCK = 2**16
# The name of an unfinished file begins with ``HIDDEN`` and ends with ``PART``.
HIDDEN, PART = ".npulab-", ".part"
OURS = re.compile(rf"{re.escape(HIDDEN)}\w+{re.escape(PART)}")
# An unfinished file older than ``LEFT`` seconds was left by a killed program and is removed.
LEFT = 24 * 3600.0
PATIENCE = 10.0  # most seconds to wait for a folder's lock; a writer keeps a lock for milliseconds

_held = threading.local()  # ``_held.folders`` are the folders that this thread has locked
NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}
NO_LINKS = {
    errno.EPERM,
    errno.EACCES,
    errno.ENOSYS,
    errno.EOPNOTSUPP,
    errno.EINVAL,
    errno.EXDEV,
    errno.EMLINK,
}
# Flags to open a file for reading, so that neither the opening nor a read waits for bytes.
AT_ONCE = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


def need_file(path: Path) -> None:
    """Raise FileNotFoundError if nothing is at a path, and ValueError if it is a folder, a pipe or
    a device."""
    if path.is_file():
        return
    if not path.exists():
        raise FileNotFoundError(f"{path}: there is no such file")
    got = "something that is no plain file"
    if path.is_dir():
        got = "a folder"
    raise ValueError(f"{path}: got {got}, allowed is a file")


def opened(path: Path) -> io.BufferedReader:
    """A plain file, opened for reading; raises as ``need_file``.

    A read raises ValueError if it would have to wait for bytes, as with ``/proc/kmsg``.
    """
    need_file(path)
    plain = _Plain(os.open(path, AT_ONCE), path)
    # the file may have been replaced after ``need_file`` looked at it
    if not stat.S_ISREG(os.fstat(plain.fileno()).st_mode):
        plain.close()
        raise ValueError(f"{path}: got something that is no plain file, allowed is a file")
    return io.BufferedReader(plain)


class _Plain(io.FileIO):
    """A file that is read without waiting: a read raises ValueError if it would have to wait for
    bytes.
    """

    def __init__(self, handle: int, path: Path) -> None:
        super().__init__(handle)
        self._path = path

    def readinto(self, buffer: Any) -> int:
        with self._named():
            count: int | None = super().readinto(buffer)
        return self._there(count)

    def readall(self) -> bytes:
        with self._named():
            data: bytes | None = super().readall()
        return self._there(data)

    @contextmanager
    def _named(self) -> Iterator[None]:
        """A context that puts the name of the file into an OSError raised in it."""
        try:
            yield
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from None

    def _there(self, got: Got | None) -> Got:
        if got is None:
            raise ValueError(
                f"{self._path}: got a file that makes its reader wait (as a pipe or a kernel log "
                "does), allowed is a file on a disk"
            )
        return got


def read_table(path: Path | str) -> list[dict[str, str]]:
    """The rows of a CSV table as dicts; blank lines and lines that begin with # are left out, and
    the apostrophes that guard cells from spreadsheets (module ``cells``) are removed.
    """
    lines = io.StringIO(read_bounded(Path(path), MOST_TABLE).decode("utf-8-sig"), newline="")
    rows = list(csv.DictReader(line for line in lines if line.strip() and line[0] != "#"))
    for row in rows:
        bare_row(row)
    return rows


def bare_row(row: dict[str, str]) -> None:
    """Remove from the texts of a row of a CSV table, in place, the apostrophes that guard them from
    spreadsheets (module ``cells``)."""
    for name, cell in row.items():
        if isinstance(cell, str) and APOSTROPHE in cell:
            row[name] = unguarded(cell)


def read_bounded(path: Path, most: int) -> bytes:
    """The bytes of a file; raises as ``need_file``, and ValueError for more than ``most`` bytes.

    At most one byte more than ``most`` is read, whatever size the file system states.
    """
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise ValueError(f"{path}: got {size} bytes, allowed are {most}")
        # one byte more than the stated size is asked for: without that byte, this is the whole file
        data = file.read(size + 1)
        if len(data) <= size:
            return data
        return _grown(file, data, path, most)


def bounded_sum(path: Path, most: int) -> str:
    """The sha256 of a file of at most ``most`` bytes, in hexadecimal digits; raises as
    ``read_bounded``."""
    return hashlib.sha256(read_bounded(path, most)).hexdigest()


def _grown(file: io.BufferedReader, data: bytes, path: Path, most: int) -> bytes:
    """The bytes of a file that holds more than its stated size, because it grows or because the
    system makes its contents while they are read. ``data`` are its first bytes, already read."""
    grown = bytearray(data)
    while len(grown) <= most:
        more = file.read(min(BLOCK, most + 1 - len(grown)))
        if not more:
            return bytes(grown)
        grown += more
    raise ValueError(f"{path}: got more than {most} bytes, allowed are {most}")


def text_of(data: bytes, where: Path | str, encoding: str = "utf-8-sig") -> str:
    r"""The text in the bytes of a file; raises ValueError that shows the first byte that is not
    UTF-8.

    >>> text_of("\ufeffa".encode(), "x.csv")
    'a'
    """
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{where}: got byte {error.object[error.start]:#04x} at byte {error.start}, allowed is "
            "UTF-8"
        ) from None


def read_json(path: Path) -> Any:
    """The value in a JSON file; raises ValueError, with file, line and column, for a broken file
    and for values nested more than 100 deep."""
    return json_of(read_bounded(path, MOST_JSON), path, most_deep=MOST_DEEP)


def first_bytes(path: Path, count: int) -> bytes:
    """The first bytes of a file, at most ``count``; b"" if the path is no plain file."""
    if not path.is_file():
        return b""
    with opened(path) as file:
        return file.read(count)


class Lines:
    """A file to which whole lines are added; a file of more than ``most`` bytes is refused when it
    is opened.

    Once ``add`` has returned, its line is kept even if the program is killed. ``whole`` are the
    lines that the file had when it was opened. ``torn`` is the unfinished last line that a crash
    left; it stays in the file until ``add`` writes a line in its place.
    """

    def __init__(self, path: Path, most: int) -> None:
        self.path = path
        data = b""
        if path.exists():
            data = read_bounded(path, most)
        # the whole lines that the file had when it was opened
        self.whole = data[: data.rfind(b"\n") + 1]
        self.torn = data[len(self.whole) :]
        self._size = len(self.whole)

    def alone(self) -> None:
        """Raise ValueError if the file has another size than this writer left: then another program
        writes to it."""
        size, known = 0, self._size + len(self.torn)
        if self.path.exists():
            size = self.path.stat().st_size
        if size != known:
            raise ValueError(
                f"{self.path}: has {size} bytes, but this writer left {known}: another "
                "program writes to it; open it again"
            )

    def add(self, line: bytes) -> None:
        """Write a line in one write, and wait until it is on the disk.

        Raises as ``alone``, and OSError; after either error the file has the same whole lines as
        before.
        """
        with locked(self.path), named_as(self.path):
            self.alone()
            with self.path.open("ab", buffering=0) as file:
                if self.torn:
                    file.truncate(self._size)
                    self.torn = b""
                try:
                    if file.write(line) != len(line):
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                    os.fsync(file.fileno())
                except BaseException:
                    # a write that failed may have left the beginning of the line
                    os.truncate(self.path, self._size)
                    raise
        self._size += len(line)


@contextmanager
def locked(*paths: Path) -> Iterator[None]:
    """A context that keeps other users of this context, in this process and in others, out of the
    folders in which these files lie; folders that do not exist are made.

    The operating system locks the folder itself: the lock ends with the program that made it and
    leaves no file. A thread may lock a folder again while it has the lock. A UserWarning reports a
    file system without locks. Raises TimeoutError if another writer keeps a folder locked for 10
    seconds.
    """
    mine: set[Path] = _held.__dict__.setdefault("folders", set())
    wanted = {path.resolve().parent for path in paths} - mine
    with ExitStack() as held:
        # all writers lock folders in sorted order: otherwise two writers could each wait for a
        # folder that the other writer has locked
        for folder in sorted(wanted):
            folder.mkdir(parents=True, exist_ok=True)
            if fcntl is None or not _lock(folder, held):
                warnings.warn(
                    f"{folder}: the file system has no locks: two writers may lose what they write",
                    stacklevel=4,
                )
        mine |= wanted
        held.callback(mine.difference_update, wanted)
        yield


def _lock(folder: Path, held: ExitStack) -> bool:
    # flock belongs to the opened handle and not to the process, so that threads exclude each other
    # too
    handle = os.open(folder, os.O_RDONLY)
    held.callback(os.close, handle)
    end = time.monotonic() + PATIENCE
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > end:
                raise TimeoutError(
                    f"{folder}: another program has locked it, nothing is written; try again"
                ) from None
            time.sleep(0.002)  # a writer's lock lasts a few milliseconds
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            return False


def write_folders(contents: Mapping[Path, Mapping[str, bytes]]) -> list[Path]:
    """Write new folders, all of them or none, and return their paths. ``contents`` has, for each
    folder, the bytes of its files by name.

    Each folder is filled next to its place under a hidden name, synced to the disk, and then
    renamed. If several folders lie in one folder that does not exist, that folder appears with all
    of them in one step. Raises FileExistsError if a folder exists already.
    """
    _refuse_taken(contents)
    wanted = dict(contents)
    parents = {folder.parent for folder in contents}
    if len(contents) > 1 and len(parents) == 1:
        parent = parents.pop()
        if not parent.exists():
            every: dict[str, bytes] = {}
            for folder, files in contents.items():
                every |= {f"{folder.name}/{name}": data for name, data in files.items()}
            wanted = {parent: every}
    parts: dict[Path, Path] = {}
    with ExitStack() as undo:
        for folder, files in wanted.items():
            with named_as(folder):
                folder.parent.mkdir(parents=True, exist_ok=True)
                _clear(folder.parent)
                parts[folder] = part = Path(tempfile.mkdtemp(PART, HIDDEN, folder.parent))
                undo.callback(shutil.rmtree, part, ignore_errors=True)
                for name, data in files.items():
                    (part / name).parent.mkdir(exist_ok=True)
                    _write(part / name, data)
                _set_mode(part, 0o755)
        for folder, part in parts.items():
            with named_as(folder):
                part.rename(folder)
            undo.callback(shutil.rmtree, folder, ignore_errors=True)
        undo.pop_all()
    sync_folders(parts)
    return list(contents)


def write_file(path: Path, data: bytes) -> Path:
    """Write a new file, whole or not at all, and return its path; raises FileExistsError if it
    exists already."""
    return write_files({path: data})[0]


def write_files(contents: Mapping[Path, bytes]) -> list[Path]:
    """Write new files, all of them or none, and return their paths; raises FileExistsError if one
    exists already.

    The first file is written last, so that it never exists without the files that belong to it.
    """
    _refuse_taken(contents)
    replace_files({}, dict(reversed([*contents.items()])))
    return [*contents]


def replace_file(path: Path, data: bytes) -> None:
    """Write a file whole, in place of an older one if there is one; mode and symbolic links to it
    are kept. It is on the disk when this returns."""
    where = path
    if path.is_symlink():
        where = path.resolve()
    with locked(where):
        replace_files({where: _content(where)}, {where: data})


def replace_files(
    before: Mapping[Path, bytes | None], after: Mapping[Path, bytes], advice: str = ""
) -> list[Path]:
    """Write files in the order of ``after``, all of them or none, and return their paths; they are
    on the disk when this returns.

    ``after`` has the new contents of each file, ``before`` the contents that a file must still
    have (None: there must be no file); no other writer can come between this check and the
    replacement. Raises ValueError, with ``advice`` at its end, for a file with other contents than
    ``before`` says, and FileExistsError for a file that exists and is not in ``before``.
    """
    parts: dict[Path, Path] = {}
    with locked(*before, *after), ExitStack() as undo:
        for path, known in before.items():
            if _content(path) != known:
                what = "was changed on the disk since it was opened"
                if known is None:
                    what = "exists now, but did not exist when it was opened"
                raise ValueError(f"{path}: the file {what}{advice}")
        # all bytes are on the disk before the first file changes, so that a full disk changes
        # nothing
        for path, data in after.items():
            with named_as(path):
                parts[path] = _hidden_file(path, data)
                undo.callback(parts[path].unlink, missing_ok=True)
        for path, part in parts.items():
            with named_as(path):
                if before.get(path) is None:
                    give_name(part, path)
                else:
                    part.replace(path.resolve())
            undo.callback(_put_back, path, before.get(path))
        # all files are written: an error after this line must not put the old contents back
        undo.pop_all()
    sync_folders(path.resolve() for path in after)
    return list(after)


def _content(path: Path) -> bytes | None:
    """The bytes of a file that is to be replaced; None if there is no file."""
    if path.is_file():
        return read_bounded(path, MOST_REPLACED)
    return None


def _put_back(path: Path, data: bytes | None) -> None:
    """Write the contents ``data``, which a file had before, again; None: remove the file."""
    if data is None:
        path.unlink(missing_ok=True)
    else:
        _hidden_file(path, data).replace(path.resolve())


def give_name(part: Path, path: Path) -> None:
    """Give the hidden file ``part``, whose contents are complete, the name ``path``; raises
    FileExistsError if a file has that name, even if that file was made just now.

    A hard link gives the name; if the file system has no links, the file is renamed. So the name
    never belongs to an unfinished file.
    """
    try:
        path.hardlink_to(part)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        _refuse_taken([path])  # the folder is locked: no other npulab takes the name now
        part.rename(path)
        return
    part.unlink()


def _refuse_taken(paths: Iterable[Path]) -> None:
    for path in paths:
        if path.exists() or path.is_symlink():
            raise FileExistsError(f"{path}: is there already; give another path, or move it away")


def _hidden_file(path: Path, data: bytes) -> Path:
    """Write a hidden file with these bytes to the disk, in the folder of ``path``, and return the
    hidden file's path; if there is a file at ``path``, the hidden file gets the mode of that file.
    """
    real = path.resolve()
    _clear(real.parent)
    handle, name = tempfile.mkstemp(PART, HIDDEN, real.parent)
    os.close(handle)
    part = Path(name)
    try:
        _write(part, data)
        mode = 0o644
        if real.exists():
            mode = real.stat().st_mode & 0o777
        _set_mode(part, mode)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return part


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _set_mode(path: Path, mode: int) -> None:
    with suppress(PermissionError):  # raised by a file system that has no modes
        path.chmod(mode)


def sync_folders(paths: Iterable[Path]) -> None:
    """Sync the folders in which these paths lie to the disk, if the system allows that."""
    # a new file survives a crash of the system only if its folder is on the disk as well
    for folder in {path.parent for path in paths}:
        with suppress(OSError), ExitStack() as opened:
            handle = os.open(folder, os.O_RDONLY)
            opened.callback(os.close, handle)
            os.fsync(handle)


def _clear(folder: Path) -> None:
    """Remove from a folder the hidden files and folders that a killed program left more than a day
    ago."""
    now = time.time()
    for part in folder.iterdir():
        if OURS.fullmatch(part.name):
            with suppress(FileNotFoundError):  # another writer may have renamed the file
                if now - part.lstat().st_mtime > LEFT:
                    if part.is_dir() and not part.is_symlink():
                        shutil.rmtree(part, ignore_errors=True)
                    else:
                        part.unlink()


@contextmanager
def named_as(path: Path) -> Iterator[None]:
    """A context that replaces the path in an OSError by ``path``, which the caller named. If the
    error says that something exists at the path, a FileExistsError is raised instead."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            raise FileExistsError(
                f"{path}: is there already; give another path, or move it away"
            ) from None
        raise OSError(error.errno, os.strerror(error.errno), str(path)) from None
