"""Files read with bounds, and written whole in the place of others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from npulab.support.files import read_bounded, replace_file, write_files


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
        with pytest.raises(ValueError, match=r": got what is no file, allowed is a file$"):
            read_bounded(path, 4)


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


def test_a_file_that_cannot_be_replaced_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no room")

    path = tmp_path / "a"
    write_files({path: b"one"})
    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(OSError, match="no room"):
        replace_file(path, b"two")
    assert path.read_bytes() == b"one"
    assert [one.name for one in tmp_path.iterdir()] == ["a"]
