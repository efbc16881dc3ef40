"""Files read with bounds, and written whole in the place of others."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from npulab.support.files import (
    first_bytes,
    opened,
    read_bounded,
    replace_file,
    write_file,
    write_files,
)


def test_reading_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"abcd")
    assert read_bounded(path, 4) == b"abcd"
    with pytest.raises(ValueError, match=r"a: got 4 bytes, allowed are 3$"):
        read_bounded(path, 3)
    with pytest.raises(FileNotFoundError, match=r"b: there is no such file$"):
        read_bounded(tmp_path / "b", 4)
    with pytest.raises(ValueError, match=r": got a folder, allowed is a file$"):
        read_bounded(tmp_path, 4)


def test_what_has_no_end_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(
            ValueError, match=r": got something that is no plain file, allowed is a file$"
        ):
            read_bounded(path, 4)


def test_a_file_of_no_size_is_read_to_the_bound_and_no_further(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    endless = Path("/proc/kallsyms")
    if not endless.is_file() or endless.stat().st_size or len(first_bytes(endless, 5000)) < 5000:
        pytest.skip("no pseudo file of size 0 with much in it")
    with pytest.raises(
        ValueError, match=r"^/proc/kallsyms: got more than 100 bytes, allowed are 100$"
    ):
        read_bounded(endless, 100)
    counted = read_bounded(Path("/proc/self/status"), 10_000)
    assert counted.startswith(b"Name:")


def test_a_file_that_grows_is_read_to_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x" * 200_000)
    known = os.fstat

    def small(handle: int) -> os.stat_result:
        fields = [*known(handle)]
        fields[stat.ST_SIZE] = 3
        return os.stat_result(fields)

    monkeypatch.setattr(os, "fstat", small)
    assert read_bounded(path, 200_000) == b"x" * 200_000
    with pytest.raises(ValueError, match=r"a: got more than 199999 bytes, allowed are 199999$"):
        read_bounded(path, 199_999)


def test_what_would_wait_for_its_bytes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a pipe with an open end for writing has no bytes yet, as a log of the kernel
    os.mkfifo(tmp_path / "log")
    keeps_open = os.open(tmp_path / "log", os.O_RDWR)
    monkeypatch.setattr("npulab.support.files.need_file", lambda path: None)
    monkeypatch.setattr(stat, "S_ISREG", lambda mode: True)
    for read in (lambda file: file.read(1), lambda file: file.read(), lambda file: file.readline()):
        with (
            opened(tmp_path / "log") as file,
            pytest.raises(ValueError, match=r"log: got a file that makes its reader wait"),
        ):
            read(file)
    with pytest.raises(
        ValueError,
        match=r"log: got a file that makes its reader wait .*, allowed is a file on a disk$",
    ):
        read_bounded(tmp_path / "log", 10)
    os.close(keeps_open)


def test_what_became_a_pipe_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr(
        "npulab.support.files.need_file", lambda path: None
    )  # a file when it was looked at
    with pytest.raises(
        ValueError, match=r"pipe: got something that is no plain file, allowed is a file$"
    ):
        read_bounded(tmp_path / "pipe", 10)


@pytest.mark.parametrize(
    "number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EACCES, errno.EINVAL]
)
def test_a_new_file_is_whole_where_links_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def no_links(self: Path, target: Path) -> None:
        raise OSError(number, os.strerror(number))

    def full(path: Path, data: bytes) -> None:
        path.write_bytes(data[:3])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "hardlink_to", no_links)
    opens = Path.open

    def opens_parts(self: Path, *arguments: Any, **more: Any) -> Any:
        return full(self, b"torn") if self.name == "a" else opens(self, *arguments, **more)

    path = tmp_path / "a"
    with monkeypatch.context() as patched:
        patched.setattr(
            Path, "open", opens_parts
        )  # a file that is filled under its final name is torn
        write_file(path, b"one two three")
    assert path.read_bytes() == b"one two three"
    with pytest.raises(
        FileExistsError, match=r"a: is there already; give another path, or move it away$"
    ):
        write_file(path, b"other")
    with monkeypatch.context() as patched:
        patched.setattr("npulab.support.files._write", full)
        with pytest.raises(OSError, match="No space left on device"):
            write_file(tmp_path / "b", b"y" * 100)
    assert [one.name for one in tmp_path.iterdir()] == ["a"]
    write_file(tmp_path / "b", b"y" * 100)
    assert (tmp_path / "b").read_bytes() == b"y" * 100


def test_a_name_that_was_taken_meanwhile_is_kept_where_links_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def taken(self: Path, target: Path) -> None:
        self.write_bytes(b"another's")
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(Path, "hardlink_to", taken)
    with pytest.raises(
        FileExistsError, match=r"a: is there already; give another path, or move it away$"
    ):
        write_file(tmp_path / "a", b"mine")
    assert (tmp_path / "a").read_bytes() == b"another's"
    assert [one.name for one in tmp_path.iterdir()] == ["a"]


def test_a_file_that_is_replaced_keeps_its_mode_and_its_link(tmp_path: Path) -> None:
    path, link = tmp_path / "here/a", tmp_path / "link"
    replace_file(path, b"one")
    assert path.stat().st_mode & 0o777 == 0o644
    path.chmod(0o600)
    link.symlink_to(path)
    replace_file(link, b"two")
    assert link.is_symlink()
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"two", 0o600)
    assert [one.name for one in path.parent.iterdir()] == ["a"]


def test_a_file_that_cannot_be_replaced_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no room")

    path = tmp_path / "a"
    write_files({path: b"one"})
    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(OSError, match="no room"):
        replace_file(path, b"two")
    assert path.read_bytes() == b"one"
    assert [one.name for one in tmp_path.iterdir()] == ["a"]
