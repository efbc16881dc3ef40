"""What distributions in Python's path say, whoever wrote it."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pytest

import npulab
from npulab.captures import registry
from npulab.support.distributions import stated_points, version_of

GROUP = "npulab.targets"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, which is in Python's path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    registry._points_of.cache_clear()
    registry._warn_once.cache_clear()
    return tmp_path


def head(folder: Path, name: str = "evil-1.dist-info") -> Path:
    made = folder / name
    made.mkdir()
    return made


@pytest.mark.parametrize(
    "line",
    [
        "x=",
        "x = \u00e9 mod:T",
        "= mod",
        "x = mod:",
        "x = .mod",
        "x = 1mod",
        "x",
        "x = mod;y",
        "x = [a]",
    ],
)
def test_a_malformed_entry_point_is_left_out(folder: Path, line: str) -> None:
    file = head(folder) / "entry_points.txt"
    file.write_text(
        f"[other]\n{line}\n\n[{GROUP}]\n# mine\n{line}\nwell = wellmod\n", encoding="utf-8"
    )
    with pytest.warns(
        UserWarning, match="allowed is an entry point such as name = module; it is left out"
    ) as said:
        names = npulab.targets()
    assert [str(one.message) for one in said] == [
        f"{file}, line 6: got {line!r}, allowed is an entry point such as name = module; it is left out"
    ]
    assert "well" in names
    assert "x" not in names


@pytest.mark.parametrize(
    "value",
    ["mod", "mod.inner", "mod : T", "mod:T.inner", "mod:T [extra]", "mod [a, b]", "m\u00f6d"],
)
def test_an_entry_point_is_taken(folder: Path, value: str) -> None:
    (head(folder) / "entry_points.txt").write_text(f"[{GROUP}]\nmine = {value}\n", encoding="utf-8")
    found = [
        (one.name, one.value, one.wrong)
        for one in stated_points(GROUP)
        if one.dist.locate_file("") == folder
    ]
    assert found == [("mine", value, "")]


def test_bytes_that_are_no_text_are_left_out(folder: Path) -> None:
    file = head(folder) / "entry_points.txt"
    file.write_bytes(b"\xff\xfe[\x00")
    with pytest.warns(UserWarning, match="UTF-8") as said:
        assert "vivante" in npulab.targets()
    assert [str(one.message) for one in said] == [
        f"{file}: got byte 0xff at byte 0, allowed is UTF-8; its entry points are left out"
    ]


@pytest.mark.parametrize("name", ["evil-1.dist-info", "-1.dist-info", "evil.egg-info"])
def test_a_pipe_is_not_waited_for(folder: Path, name: str) -> None:
    made = head(folder, name)
    for file in ("entry_points.txt", "METADATA", "PKG-INFO"):
        os.mkfifo(made / file)
    with pytest.warns(
        UserWarning,
        match=r"entry_points.txt: got something that is no plain file, allowed is a file; its entry points are left out$",
    ):
        assert "vivante" in npulab.targets()


def test_the_size_is_bounded(folder: Path) -> None:
    file = head(folder) / "entry_points.txt"
    file.touch()
    os.truncate(file, 2**40)
    with pytest.warns(
        UserWarning, match=r"entry_points.txt: got 1099511627776 bytes, allowed are 1048576; its"
    ):
        npulab.targets()


def test_a_page_without_entry_points_says_nothing(folder: Path) -> None:
    head(folder)
    (folder / "plain.egg-info").touch()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        npulab.targets()


def test_the_version_is_that_of_a_page_that_can_be_read(folder: Path) -> None:
    known = version_of("npulab")
    os.mkfifo(head(folder, "npulab-9.dist-info") / "METADATA")
    assert version_of("npulab") == known != "unknown"
    assert version_of("nobody-has-this") == "unknown"


def test_a_working_folder_that_was_removed_has_no_targets(folder: Path) -> None:
    folder.rmdir()
    assert "vivante" in npulab.targets()
