"""``npulab session`` from the shell: made, noted in, shown."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import CAPTURES
from test_cli import run  # noqa: F401 - a fixture

import npulab


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of one's own with two captures."""
    for side in ("mesa", "vendor"):
        shutil.copytree(CAPTURES / "vivante" / f"update4-{side}", tmp_path / "captures" / side)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_session_is_made_noted_in_and_shown(run: Any, here: Path) -> None:
    status, lines, _ = run("session", "new", "mine.json", "captures", "--title", "two drivers")
    assert (status, lines[0]) == (0, "mine.json: 2 captures")
    assert lines[1].startswith("next: npulab session note mine.json ")
    assert (
        run(
            "session",
            "note",
            "mine.json",
            "3 where a layer has one",
            "--field",
            "relu",
            "--author",
            "me",
        )[0]
        == 0
    )
    assert (
        run("session", "note", "mine.json", "as the blog has it", "--capture", "captures/mesa")[0]
        == 0
    )
    _, lines, _ = run("session", "show", "mine.json")
    assert lines[0] == "Session(two drivers, 2 captures, 2 notes)"
    assert [
        line
        for line in lines
        if line.split()[:3] == ["note", "field", "relu"] and line.endswith("me")
    ]
    rows = [json.loads(line) for line in run("session", "show", "mine.json", "--json")[1]]
    assert [row["kind"] for row in rows] == ["capture", "capture", "note", "note"]
    session = npulab.session("mine.json")
    assert {(note.anchor.text, note.text) for note in session.notes} == {
        (row["on"], row["what"]) for row in rows[2:]
    }
    assert run("report", "mine.json", "mine.md")[0] == 0
    assert "3 where a layer has one" in Path("mine.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["new", "mine.json"], "mine.json: is there already"),
        (["note", "mine.json"], "session note: got 1 argument, allowed are FILE TEXT"),
        (["merge", "a", "b"], "session merge: got 2 arguments, allowed are BASE OURS THEIRS"),
        (
            ["show", "nowhere.json"],
            "nowhere.json: there is no such session; npulab session new nowhere.json makes one",
        ),
        (
            ["note", "mine.json", "x", "--field", "relo"],
            "got 'relo', which no capture of the session has; near are relu",
        ),
        (
            ["note", "mine.json", "x", "--capture", "nowhere"],
            "nowhere: there is no such file or folder",
        ),
    ],
)
def test_a_refusal_changes_nothing(run: Any, here: Path, arguments: list[str], words: str) -> None:
    run("session", "new", "mine.json", "captures/mesa")
    before = Path("mine.json").read_bytes()
    status, lines, err = run("session", *arguments)
    assert (status, lines, err.count("\n")) == (2, [], 1)
    assert words in err
    assert Path("mine.json").read_bytes() == before


def test_a_capture_outside_leaves_no_session_behind(run: Any, here: Path, tmp_path: Path) -> None:
    assert run("session", "new", "mine.json", CAPTURES / "vivante" / "update4-mesa")[0] == 2
    assert not Path("mine.json").exists()
