"""What is added to a large session is appended: in linear time, whole or not at all, and one
file all the time.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

import npulab
from npulab.notebook.sessions import merge_sessions, state
from npulab.notebook.sessions.file import fold, is_folded, session_text
from npulab.notebook.sessions.state import Session


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "SMALL", 2**10)


def noted(path: Path, count: int, first: int = 0) -> Session:
    session = npulab.session(path)
    for number in range(first, first + count):
        session.note(f"note {number}", field=f"f{number}")
    return session


def grown(path: Path) -> Session:
    """A session whose file has something behind its object."""
    session = noted(path, 60)
    number = 60
    while is_folded(path.read_bytes()):
        session.note(f"note {number}", field=f"f{number}")
        number += 1
    return session


def test_what_is_written_grows_with_what_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    replace = state.replace_file
    monkeypatch.setattr(
        state, "replace_file", lambda path, data: (written.append(len(data)), replace(path, data))
    )
    session = noted(tmp_path / "x.json", 300)
    size = len(session.text.encode())
    assert sum(written) < 10 * size  # each note by itself would be 150 times
    assert len(npulab.session(tmp_path / "x.json").notes) == 300


@pytest.mark.long
def test_twenty_thousand_notes_one_by_one(tmp_path: Path) -> None:
    began = time.process_time()
    session = noted(tmp_path / "x.json", 20_000)
    assert time.process_time() - began < 120  # about 12 s
    assert npulab.session(tmp_path / "x.json") == session


def test_each_note_is_in_the_file_when_it_was_made(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    session = npulab.session(path)
    shapes = set()
    for number in range(80):
        session.note(f"note {number}\nof two lines", field=f"f{number}")
        if number % 3 == 0:
            session.bookmark(f"mark {number}", field=f"f{number}")
        shapes.add(is_folded(path.read_bytes()))
        assert npulab.session(path) == session
    assert shapes == {True, False}
    session.remove(session.notes[0].id)  # any other change writes it anew
    assert path.read_bytes() == session.text.encode()
    assert json.loads(path.read_bytes())["title"] == ""


def test_notes_of_a_killed_program_are_there(tmp_path: Path) -> None:
    program = (
        "import npulab, os, sys\nfrom npulab.notebook.sessions import state\nstate.SMALL = 1024\n"
        "session = npulab.session(sys.argv[1])\nfor number in range(90):\n    session.note(str(number))\nos.kill(os.getpid(), 9)"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "x.json")]
    assert subprocess.run(command, check=False, timeout=60).returncode == -9
    assert {note.text for note in npulab.session(tmp_path / "x.json").notes} == {
        str(number) for number in range(90)
    }


def test_a_line_that_a_crash_tore_is_no_part_of_it(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    session = grown(path)
    data, line = path.read_bytes(), b'{"notes": {"0123456789ab": {"text": "torn"}}}'
    for cut in (1, 2, 9, len(line) - 1, len(line)):
        path.write_bytes(data + line[:cut])
        again = npulab.session(path)
        assert again == session
        again.note("after the crash")
        assert {note.text for note in npulab.session(path).notes} == {
            *(note.text for note in session.notes),
            "after the crash",
        }
        assert b"torn" not in path.read_bytes()


@pytest.mark.parametrize(
    ("behind", "words"),
    [
        (b"x", "nothing behind the value"),
        (b"\nx\n", "is not JSON"),
        (b"\n[]\n", "a line after the object: got \\[\\]"),
        (b'\n{"title": {"a": {}}}\n', "a line after"),
        (b'\n{"notes": {"0123456789ab": {"text": 1}}}\n', "notes '0123456789ab'"),
        (b'\n{"notes": 1}\n', "a line after"),
        (b'\n{"notes": {}, "laws": {}}\n', "a line after"),
        (b"\n<<<<<<< ours\n", "git's mark of a conflict"),
    ],
)
def test_what_is_no_line_of_a_session_is_refused(tmp_path: Path, behind: bytes, words: str) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(session_text(Session()._document).encode().rstrip() + behind)
    with pytest.raises(ValueError, match=words):
        npulab.session(path)


def test_two_writers_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    one = grown(path)
    two = npulab.session(path)
    one.note("of the first")
    with pytest.raises(
        ValueError,
        match=r"was changed since it was read, nothing is written; session.merge\(\) takes both together",
    ):
        two.note("of the second")
    two.merge()
    with pytest.raises(ValueError, match="was changed since it was read"):
        one.note("of the first again")
    one.merge()
    texts = {note.text for note in npulab.session(path).notes}
    assert texts >= {"of the first", "of the second", "of the first again"}
    data = bytearray(path.read_bytes())
    data[data.index(b"of the second")] = ord("O")
    path.write_bytes(data)  # by hand, of the same length
    with pytest.raises(ValueError, match="was changed since it was read"):
        one.note("more")


def test_a_file_is_whole_when_its_session_ends(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    session = grown(path)
    text = session.text
    assert path.read_bytes() != text.encode()
    del session
    gc.collect()
    assert path.read_bytes() == text.encode()


def test_a_file_that_somebody_folds_is_the_same_session(tmp_path: Path) -> None:
    session = grown(tmp_path / "x.json")
    fold(tmp_path / "x.json")
    assert is_folded((tmp_path / "x.json").read_bytes())
    session.note("after it")
    assert npulab.session(tmp_path / "x.json") == session


def test_a_merge_takes_what_was_appended(tmp_path: Path) -> None:
    ours, theirs = grown(tmp_path / "ours.json"), grown(tmp_path / "theirs.json")
    ours.note("only ours")
    theirs.note("only theirs")
    merged = merge_sessions(None, tmp_path / "ours.json", tmp_path / "theirs.json")
    texts = {note.text for note in merged.notes}
    assert texts >= {"only ours", "only theirs"}
    assert len(texts) == len({note.text for note in (*ours.notes, *theirs.notes)})


def test_a_disk_that_is_full_leaves_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.json"
    session = grown(path)
    before = path.read_bytes()

    def full(*given: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        with pytest.raises(OSError, match="No space left"):
            session.note("one too many")
    assert path.read_bytes() == before
    session.save()
    assert "one too many" in {note.text for note in npulab.session(path).notes}
