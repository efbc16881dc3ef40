"""Sessions: what was noted is on the disk, reads back the same, and is lost in no merge."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import CAPTURES, ROOT
from hypothesis import HealthCheck, given, settings, strategies as st

import npulab
import npulab.captures.sweep
import npulab.notebook.sessions
import npulab.notebook.widgets
from npulab.cli import main
from npulab.notebook.sessions.file import MOST_BYTES, read_session, session_text
from npulab.support.files import replace_file

VENDOR = "captures/vivante/update4-vendor"
SWEEP = "captures/vivante/sweep-addresses.npz"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with some captures, as a person has it."""
    for name in ("update4-vendor", "sim-1x1"):
        shutil.copytree(CAPTURES / "vivante" / name, tmp_path / "captures/vivante" / name)
    shutil.copy(CAPTURES / "vivante/sweep-addresses.npz", tmp_path / SWEEP)
    return tmp_path


def texts(session: npulab.notebook.sessions.Session) -> set[str]:
    return {note.text for note in session.notes}


def test_what_was_noted_is_there_again(folder: Path) -> None:
    session = npulab.session(folder / "x.json", author="ada")
    session.title = "Which bits are the stride?"
    capture = session.attach(VENDOR)
    session.note("one line", field="stride", date="2026-01-02")
    session.note("two\nlines ü \U0001f41f\r\n", register="w2", author="bob")
    session.note("bytes", capture=capture, buffer="output", offset=16, size=4)
    session.note("of it all")
    session.bookmark("look here", field="relu", capture=VENDOR, task=0)
    session.accept("input_w * 2", "w3_0_13", support=3)
    again = npulab.session(folder / "x.json")
    assert again == session
    assert again.notes == session.notes
    assert [one.anchor.text for one in sorted(again.notes, key=lambda one: one.text)] == [
        f"bytes 0x10 to 0x13 of output of {VENDOR}",
        "the session",
        "field stride",
        "register w2",
    ]
    assert texts(again) == {"one line", "two\nlines ü \U0001f41f\r\n", "bytes", "of it all"}
    assert {one.author for one in again.notes} == {"ada", "bob"}
    assert again.bookmarks[0].anchor.capture == VENDOR
    assert (again.laws[0].field, again.laws[0].law, again.laws[0].support) == (
        "w3_0_13",
        "input_w * 2",
        3,
    )
    assert again.captures[0].path == VENDOR
    assert again.load(VENDOR) == capture
    assert (
        repr(again) == "Session(Which bits are the stride?, 1 capture, 4 notes, 1 bookmark, 1 law)"
    )
    assert "one line" in again._repr_html_()


def test_same_session_gives_same_bytes(folder: Path) -> None:
    def write(name: str, order: int) -> bytes:
        session = npulab.session(folder / name)
        for text in ["a", "b", "c\nd", "e" * 200][::order]:
            session.note(text, field=text[:3])
        session.attach(VENDOR)
        return (folder / name).read_bytes()

    one = write("x.json", 1)
    assert write("y.json", -1) == one
    assert one.endswith(b"}\n")
    assert session_text(read_session(one, "x.json")).encode() == one
    npulab.session(folder / "x.json").save()
    assert (folder / "x.json").read_bytes() == one


def test_a_new_note_is_a_small_diff_of_short_lines(folder: Path) -> None:
    session = npulab.session(folder / "x.json")
    session.attach(VENDOR)
    for number in range(9):
        session.note(f"note {number}", field=f"f{number}")
    before = (folder / "x.json").read_text().splitlines()
    session.note("another", field="stride")
    after = (folder / "x.json").read_text().splitlines()
    assert {*before} <= {*after}
    assert len(after) - len(before) < 10
    assert max(map(len, after)) < 200


def test_same_note_again_is_the_same_note() -> None:
    session = npulab.notebook.sessions.Session()
    note = session.note("a", field="x")
    assert session.note("a", field="x") == note
    assert session.note("a", field="y").id != note.id
    session.edit(note.id, "b", author="bob")
    assert session.note("a", field="x").id not in (note.id, "")  # another text has its id now
    assert texts(session) == {"a", "b"}
    assert len(session.notes) == 3
    session.remove(note.id)
    assert texts(session) == {"a"}
    with pytest.raises(LookupError, match="allowed is the id"):
        session.remove(note.id)
    with pytest.raises(LookupError, match="note: got"):
        session.edit(note.id, "c")


def test_a_write_that_fails_leaves_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = npulab.session(tmp_path / "x.json")
    session.note("kept")
    before = (tmp_path / "x.json").read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        session.note("lost")
    assert (tmp_path / "x.json").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]
    monkeypatch.undo()
    session.save()
    assert texts(npulab.session(tmp_path / "x.json")) == {"kept", "lost"}


def test_a_file_changed_by_somebody_else_is_not_overwritten(tmp_path: Path) -> None:
    session = npulab.session(tmp_path / "x.json")
    session.note("of both")
    other = npulab.session(tmp_path / "x.json")
    other.note("theirs")
    with pytest.raises(ValueError, match=r"x\.json: was changed since it was read.*merge"):
        session.note("mine")
    assert texts(npulab.session(tmp_path / "x.json")) == {"of both", "theirs"}
    assert session.merge() == []
    assert (
        texts(session)
        == texts(npulab.session(tmp_path / "x.json"))
        == {"of both", "mine", "theirs"}
    )
    session.note("and on")


def test_without_autosave_nothing_is_written_until_it_is_said(tmp_path: Path) -> None:
    session = npulab.session(tmp_path / "x.json", autosave=False)
    session.note("a")
    assert not (tmp_path / "x.json").exists()
    session.save()
    assert texts(npulab.session(tmp_path / "x.json")) == {"a"}
    memory = npulab.notebook.sessions.Session()
    memory.note("b")
    with pytest.raises(FileExistsError, match="is there already"):
        memory.save(tmp_path / "x.json")
    assert texts(npulab.session(memory.save(tmp_path / "deep/y.json"))) == {"b"}
    with pytest.raises(ValueError, match="got no path"):
        npulab.notebook.sessions.Session().save()


# What is refused


def document(**parts: Any) -> bytes:
    return json.dumps({"npulab": "session", "version": 1, **parts}).encode()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "line 1, column 1: is not JSON"),
        (b"[]", "allowed is an object"),
        (b"null", "allowed is an object"),
        (b"{", "line 1, column 2: is not JSON"),
        (b"\xff", "0xff at byte 0"),
        (b"{}", 'no "npulab": "session"'),
        (document(version="1"), "version: got '1'"),
        (document(version=True), "version: got True"),
        (b'{"npulab": "session", "version": 1,\n<<<<<<< ours\n', r"line 2: got git's mark"),
        (
            b'{"npulab": "session", "version": 1, "notes": {}, "notes": {}}',
            "got name 'notes' twice in one object",
        ),
        (b'{"npulab": "session", "version": NaN}', "got NaN"),
        (b"[" * 10**5, "is not JSON"),
        (b'{"npulab": "session", "version": 1, "a": ' + b"[" * 40 + b"]" * 40 + b"}", "deep"),
        (b'{"npulab": "session", "version": 1, "title": "\\ud800"}', "surrogate"),
        (document(title=3), "title: got 3"),
        (document(notes=[]), r"notes: got \[\]"),
        (document(notes={"xyz": {"text": ""}}), "notes 'xyz': got that as an id"),
        (document(notes={"0": "x"}), "notes '0': got that as an id"),
        (document(notes={"0" * 12: {}}), "got no text"),
        (document(notes={"0" * 12: {"text": [1]}}), r"text: got \[1\]"),
        (
            document(notes={"0" * 12: {"text": "", "anchor": {"offset": 1}}}),
            "buffer, offset and size together",
        ),
        (
            document(
                notes={"0" * 12: {"text": "", "anchor": {"buffer": "x", "offset": 1, "size": 1}}}
            ),
            "with its capture",
        ),
        (
            document(notes={"0" * 12: {"text": "", "anchor": {"capture": "x", "buffer": "x"}}}),
            "buffer, offset and size together",
        ),
        (
            document(
                notes={
                    "0" * 12: {
                        "text": "",
                        "anchor": {"capture": "x", "buffer": "", "offset": 1, "size": 1},
                    }
                }
            ),
            "is a buffer's name",
        ),
        (
            document(notes={"0" * 12: {"text": "", "anchor": {"capture": "", "task": 1}}}),
            "is a path inside",
        ),
        (
            document(
                notes={
                    "0" * 12: {
                        "text": "",
                        "anchor": {"capture": "x", "buffer": "x", "offset": -1, "size": 1},
                    }
                }
            ),
            "got -1",
        ),
        (
            document(notes={"0" * 12: {"text": "", "anchor": {"capture": "x", "task": 1.5}}}),
            "got 1.5",
        ),
        (document(captures={"a": {"sha256": "0"}}), "64 digits"),
        (document(laws={"0" * 12: {"field": "x"}}), "got no law"),
        (document(captures={"a": {}}), "got no sha256"),
        (document(figures={"0" * 12: {"path": "a"}}), "got no sha256"),
        (document(view=[]), "view: got"),
        (document(views={"a": {"capture": "x"}}), "got no kind"),
        (document(conflicts={"a": 1}), "allowed is a list"),
        (document(map={"path": "a"}), "got no sha256"),
        (b" " * (MOST_BYTES + 1), "bytes, allowed are"),
        (b'{"a": [' + b"[]," * 10**6 + b"0]}", "values, allowed are"),
    ],
)
def test_what_is_no_session_is_refused_in_one_sentence(
    tmp_path: Path, data: bytes, words: str
) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=words) as caught:
        npulab.session(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == data


@pytest.mark.parametrize(
    "path",
    [
        "../x",
        "/etc",
        "a/../../x",
        "a/./b",
        "a//b",
        "./a",
        "..",
        ".",
        "",
        "a\\b",
        "C:/x",
        "a\0b",
        "a\nb",
        3,
        None,
    ],
)
@pytest.mark.parametrize(
    "kind", ["captures", "journals", "map", "figures", "anchor", "laws", "views"]
)
def test_paths_that_leave_the_folder_are_refused(kind: str, path: Any) -> None:
    some, item = "0" * 12, {"sha256": "0" * 64}
    if kind in ("captures", "journals") and not isinstance(path, str):
        return
    parts = {
        "captures": {path: item},
        "journals": {path: {}},
        "map": {"path": path, **item},
        "figures": {some: {"path": path, "caption": "", **item}},
        "anchor": {some: {"text": "", "anchor": {"capture": path}}},
        "laws": {some: {"field": "", "law": "", "sweep": path}},
        "views": {"a": {"kind": "", "capture": path}},
    }
    with pytest.raises(ValueError, match="allowed is a path inside the session's folder"):
        read_session(document(**{"notes" if kind == "anchor" else kind: parts[kind]}), "x.json")


def test_links_that_leave_the_folder_are_refused(folder: Path) -> None:
    (folder / "here").mkdir()
    (folder / "here/out").symlink_to(folder / "captures")
    sums = {"sha256": "0" * 64}
    for kind, kept in (("captures", sums), ("journals", {})):
        data = document(**{kind: {"out/vivante/update4-vendor": kept}})
        (folder / "here/x.json").write_bytes(data)
        with pytest.raises(ValueError, match=r"x\.json: 'out/vivante.*over a link"):
            npulab.session(folder / "here/x.json")
    session = npulab.session(folder / "here/y.json")
    for path in (folder / "here/out/vivante/update4-vendor", "out/vivante/update4-vendor"):
        with pytest.raises(ValueError, match="over a link"):
            session.attach(path)
    with pytest.raises(ValueError, match="lies outside the session's folder"):
        session.attach(folder / VENDOR)
    with pytest.raises(FileNotFoundError, match="no such file"):
        session.attach("nowhere")
    assert session.captures == ()


def test_a_bomb_takes_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    for data in (
        b'{"a": [' + b"[]," * (MOST_BYTES // 3 - 9) + b"0]}",
        b'{"a":"' + b"\\u00e4" * (MOST_BYTES // 6 - 9) + b'"}',
        b'{"a": ['
        + b"{}," * 130_000
        + b'"\xf0\x9f\x90\x9f'
        + b"x" * (MOST_BYTES - 400_000)
        + b'"]}',
    ):
        path.write_bytes(data)
        tracemalloc.start()
        with pytest.raises(ValueError, match="allowed"):
            npulab.session(path)
        assert tracemalloc.get_traced_memory()[1] < 64 * 2**20
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ({"buffer": "output"}, "together, or none"),
        ({"offset": 1, "size": 2}, "together, or none"),
        ({"buffer": "output", "offset": 0, "size": 0, "capture": VENDOR}, "of at least 1"),
        ({"task": 0}, "that has the task"),
        ({"buffer": "output", "offset": 0, "size": 1}, "that has the buffer"),
        ({"task": -1, "capture": VENDOR}, "got -1"),
        ({"capture": "nowhere"}, "no such file"),
    ],
)
def test_a_place_that_is_none_is_refused(folder: Path, place: dict[str, Any], words: str) -> None:
    session = npulab.session(folder / "x.json")
    with pytest.raises((ValueError, OSError), match=words):
        session.note("a", **place)
    assert session.notes == ()


def test_a_note_that_no_file_could_hold_is_none(tmp_path: Path) -> None:
    session = npulab.session(tmp_path / "x.json")
    with pytest.raises(ValueError, match="allowed are"):
        session.note("x" * MOST_BYTES)
    with pytest.raises(ValueError, match="surrogate"):
        session.note("\ud800")
    for text in ("[" * 10**6, "\n" * 10**6, "", "\0", "{", '"', "\\", "<<<<<<< x", "a\n=======\nb"):
        session.note(text)
        assert text in texts(npulab.session(tmp_path / "x.json"))
        session.remove(session.note(text).id)


# What is not as it was


def test_missing_and_changed_captures_are_told(folder: Path) -> None:
    session = npulab.session(folder / "x.json")
    session.attach("captures/vivante/sim-1x1")
    session.attach(SWEEP)
    (folder / "captures/vivante/sim-1x1/capture.json").write_text("{}")
    (folder / SWEEP).unlink()
    with pytest.warns(UserWarning, match="x.json: ") as told:
        again = npulab.session(folder / "x.json")
    assert len(told) == 2
    assert again.problems[0].startswith("captures/vivante/sim-1x1 has changed: its sha256 is ")
    assert again.problems[1] == f"{SWEEP} is missing"
    again.note("it goes on")


def test_strange_files_are_told_and_nothing_hangs(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    sums = {"sha256": "0" * 64}
    (folder / "x.json").write_bytes(
        document(
            captures={"pipe": sums, f"{VENDOR}/nn.bin/x": sums, "captures": sums},
            journals={"pipe": {}},
        )
    )
    with pytest.warns(
        UserWarning, match=r"cannot be read: is no file|Not a directory|missing"
    ) as told:
        session = npulab.session(folder / "x.json")
    assert len(told) == len(session.problems) == 4
    session.report(folder / "o.html")
    for path in (folder / "pipe", folder):
        with pytest.raises(
            ValueError, match=r"got (something that is no plain file|a folder), allowed is a file"
        ):
            npulab.session(path)


def test_what_a_newer_npulab_keeps_stays(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(
        document(
            colours={"a": [1, 2.5, None]},
            notes={"0" * 12: {"text": "a", "mood": "good"}},
        )
    )
    with pytest.warns(UserWarning, match="does not know and keeps as it is: colours, notes: mood"):
        session = npulab.session(path)
    session.note("b")
    session.edit("0" * 12, "c")
    kept = json.loads(path.read_bytes())
    assert kept["colours"] == {"a": [1, 2.5, None]}
    assert kept["notes"]["0" * 12] == {"text": "c", "mood": "good"}


# Views, maps, laws, journals


def test_the_view_that_was_open_is_there_again(folder: Path) -> None:
    session = npulab.session(folder / "x.json")
    capture = session.attach(VENDOR)
    view = npulab.RegisterView(capture)
    view.words = (*view.words[:2], view.words[2] ^ 2**24, *view.words[3:])
    view.cursor = (2, 24)
    assert session.open_view(view) == f"RegisterView {VENDOR}"
    session.open_view(
        npulab.RegisterView(session.attach("captures/vivante/sim-1x1"), capture),
        "against the vendor",
    )
    again = npulab.session(folder / "x.json")
    last, first = again.show(), again.show(f"RegisterView {VENDOR}")
    assert (first.cursor, first.changed, first.words) == (view.cursor, {"relu": (0, 1)}, view.words)
    assert last.capture.name == "sim-1x1"
    assert last.reference == tuple(capture.words.tolist())
    assert again.views[f"RegisterView {VENDOR}"]["cursor"] == [2, 24]
    again.open_view(
        {
            "kind": "RegisterView",
            "capture": VENDOR,
            "task": 0,
            "cursor": [3, 1],
            "filters": {"unknown": True},
        }
    )
    assert again.show().cursor == (3, 1)
    with pytest.raises(LookupError, match="view: got 'nothing'"):
        again.show("nothing")
    with pytest.raises(LookupError, match="attach adds a capture"):
        again.open_view(npulab.RegisterView(npulab.load(CAPTURES / "vivante/sim-5x5-same")))
    for state in (
        {"kind": "Popen"},
        {"kind": "RegisterModel", "capture": VENDOR},
        {"kind": "RegisterView"},
        {"kind": "RegisterView", "capture": VENDOR, "words": [1]},
    ):
        again.open_view(state, "bad")
        with pytest.raises((ValueError, LookupError), match=r"allowed|cannot be shown"):
            again.show("bad")


def test_a_map_with_steps_that_are_not_saved(folder: Path) -> None:
    (folder / "map.csv").write_text("field,lsb,width\nstride,0,2\n")
    session = npulab.session(folder / "x.json")
    session.use_map("map.csv", [{"step": "rename", "field": "stride", "new": "stride_w"}])
    again = npulab.session(folder / "x.json")
    assert again.map is not None
    assert (again.map.path, again.map.steps[0]["new"]) == ("map.csv", "stride_w")
    (folder / "map.csv").write_text("field,lsb,width\nstride,0,3\n")
    assert again.problems[0].startswith("map.csv has changed")
    again.use_map("map.csv")
    assert again.problems == []


def test_a_draft_and_what_shows_it(folder: Path) -> None:
    (folder / "map.csv").write_text(
        "block,offset,field,lsb,width,evidence\n"
        + "".join(f"NN,{4 * word},a{word},0,32,K\n" for word in range(34))
    )
    session = npulab.session(folder / "x.json")
    capture = session.attach(VENDOR)
    made = npulab.draft(folder / "map.csv")
    made.rename("a2", "second")
    made.save()
    made.rename("a3", "third")
    session.use_map(made)
    again = npulab.session(folder / "x.json")
    assert again.map is not None
    assert [step["do"] for step in again.map.steps] == [
        "rename"
    ]  # the one that the file does not have
    assert again.registers.third.bits == again.draft.map.third.bits == "3[31:0]"
    assert again.decoded(VENDOR).values["third"] == capture.words[3]
    made.rename("a4", "fourth")
    for view in (
        npulab.notebook.widgets.MapEditor(made, capture),
        npulab.RegisterView(capture, draft=made),
    ):
        session.open_view(view)
        shown = npulab.session(folder / "x.json").show()
        assert type(shown).__name__ == type(view).__name__
        assert shown.draft.steps == made.steps[1:]
    note = session.note("now it has a name", field="third")
    text = session.report(folder / "o.md").read_text(encoding="utf-8")
    assert "rename a4 to fourth" in text
    assert "| NN | w3 | third | 3\\[31:0\\] | raw | K |" in text
    assert note.text in text
    with pytest.raises(ValueError, match="without a file"):
        session.use_map(npulab.draft(2))


def test_what_is_made_on_the_draft_is_kept(folder: Path) -> None:
    """By the session's own draft, by the editor that shows it again, by one that it was given;
    each on the disk at once.
    """
    (folder / "map.csv").write_text("block,offset,field,lsb,width\nNN,0,a,0,16\nNN,0,b,16,16\n")
    session = npulab.session(folder / "x.json")
    session.use_map(folder / "map.csv")
    session.draft.rename("a", "first")
    assert (
        session.draft.steps
        == npulab.session(folder / "x.json").draft.steps
        == ["rename a to first"]
    )
    assert session.draft is session.draft
    assert session.registers.first.width == 16
    session.draft.undo()
    assert npulab.session(folder / "x.json").draft.steps == []
    session.open_view(npulab.notebook.widgets.MapEditor(session.draft))
    again = npulab.session(folder / "x.json")
    again.show().model.press({"do": "cell", "field": "a", "column": "field", "text": "one"})
    assert again.draft.steps == npulab.session(folder / "x.json").draft.steps == ["rename a to one"]
    other = npulab.draft(folder / "map.csv")
    again.use_map(other)
    other.rename("b", "second")
    assert npulab.session(folder / "x.json").draft.steps == ["rename b to second"]
    assert again.draft is other
    again.use_map(folder / "map.csv")
    other.rename("a", "lost")
    assert npulab.session(folder / "x.json").draft.steps == []


def test_steps_that_are_in_the_file_now(folder: Path) -> None:
    (folder / "map.csv").write_text("block,offset,field,lsb,width\nNN,0,a,0,32\n")
    session = npulab.session(folder / "x.json")
    session.use_map(folder / "map.csv")
    made = session.draft
    made.rename("a", "b")
    assert session.draft.steps == ["rename a to b"]
    (folder / "map.csv").write_text("block,offset,field,lsb,width\nNN,0,c,0,32\n")
    with pytest.warns(UserWarning, match=r"map.csv has changed"):
        other = npulab.session(folder / "x.json")
    with pytest.raises(
        LookupError,
        match=r"^map.csv: the session's unsaved edits do not fit the file as it is now \(edit 1: got "
        r"field 'a'.*; use_map with the path of the file drops these edits$",
    ):
        _ = other.draft
    (folder / "map.csv").write_text("block,offset,field,lsb,width\nNN,0,a,0,32\n")
    made.save()
    assert (session.problems, npulab.session(folder / "x.json").draft.steps) == ([], [])
    assert session.registers.b.bits == "0[31:0]"


@pytest.mark.parametrize("call", ["attach", "use_map", "journal"])
def test_what_is_no_path(folder: Path, call: str) -> None:
    with pytest.raises(
        ValueError, match=r"^path: got dict, allowed is the path of a file or folder$"
    ):
        getattr(npulab.session(folder / "x.json"), call)({})


@pytest.mark.parametrize("kind", ["ByteView", "DiffView", "OutputView"])
def test_every_view_is_there_again(folder: Path, kind: str) -> None:
    session = npulab.session(folder / "x.json")
    capture, other = session.attach(VENDOR), session.attach("captures/vivante/sim-1x1")
    if kind == "ByteView":
        view = npulab.notebook.widgets.ByteView(capture, buffer="commands", reference=other)
        view.element, view.query, view.selection = "u32", "5", (8, 4)
        session.open_view(view, reference=other)
        state = ("element", "query", "selection", "cursor", "summary")
    elif kind == "DiffView":
        view = npulab.notebook.widgets.DiffView(capture, other)
        view.query, view.addresses = "in_*", False
        session.open_view(view)
        state = ("query", "addresses", "summary")
    else:
        view = npulab.notebook.widgets.OutputView(npulab.check(capture))
        view.place = (1, 2, 0)
        session.open_view(view)
        state = ("place", "about")
    shown = npulab.session(folder / "x.json").show()
    assert [getattr(shown, name) for name in state] == [getattr(view, name) for name in state]
    assert repr(shown) == repr(view)


def test_laws_are_accepted_as_they_were_found(folder: Path) -> None:
    session = npulab.session(folder / "x.json", author="ada")
    sweep = session.attach(SWEEP)
    width = sweep.parameters["input_w"] if "input_w" in sweep.parameters else range(len(sweep))
    words = sweep.words[:, :1] * 0
    words[:, 0] = [int(one) * 2 + 1 for one in width]
    law = npulab.find_laws(words, {"width": width}).fields[0]
    accepted = session.accept(law, sweep=sweep, date="2026-01-02")
    assert (accepted.field, accepted.law, accepted.by) == (law.name, law.text, "ada")
    assert accepted.support == sum(law.support) == len(sweep)
    assert accepted.sweep == SWEEP
    assert accepted.simulated == sweep.simulated
    assert npulab.session(folder / "x.json").laws == (accepted,)
    with pytest.raises(ValueError, match="law"):
        session.accept("import os", "x")
    with pytest.raises(ValueError, match="field: got no name"):
        session.accept("a * 2")


def test_a_law_of_which_the_field_cuts_something_off_is_held_against_its_captures(
    tmp_path: Path,
) -> None:
    """A zero point below 0, and the low bits of a size."""
    random = np.random.default_rng(3)
    known = pd.DataFrame(
        {
            "zero": random.integers(-128, 128, 40),
            "size": random.integers(1, 5000, 40),
            "wide": random.integers(0, 2, 40),
        }
    )
    words = (
        known.zero % 256
        + known["size"] % 64 * 256
        + np.where(known.wide == 1, known["size"], 7) % 256 * 2**16
    ).to_numpy(np.uint32)
    npulab.captures.sweep.save_sweep(
        npulab.Sweep(words[:, None], known, provenance="simulated"), tmp_path / "sweep.npz"
    )
    session = npulab.session(tmp_path / "x.json")
    sweep = session.attach("sweep.npz")
    laws = npulab.find_laws(sweep)
    accepted = {session.accept(law, sweep="sweep.npz").law for law in laws.fields}
    assert {"(zero) % 256", "(size) % 64"} <= accepted
    assert any(text.startswith("when") and "(size) % 256" in text for text in accepted)
    assert [law.text for law in laws.fields if law.text in accepted] == []
    text = session.report(tmp_path / "x.md").read_text()
    assert text.count("found: agrees in 40 of 40") == len(laws.fields) == 3
    assert "contradicted" not in text


def test_journals_and_what_came_of_them(folder: Path) -> None:
    good = npulab.load(folder / "captures/vivante/sim-1x1")
    bad = good.with_fields(relu=1)
    npulab.save(bad, folder / "captures/bad")
    session = npulab.session(folder / "x.json")
    session.attach("captures")
    found = npulab.bisect_fields(
        good, bad, lambda one: "fail" if one.values["relu"] else "pass", journal=folder / "j.jsonl"
    )
    session.journal(found, device="simulated")
    one = npulab.session(folder / "x.json").journals[0]
    assert (one.path, one.good, one.bad, one.simulated) == (
        "j.jsonl",
        "captures/vivante/sim-1x1",
        "captures/bad",
        True,
    )
    assert one.result == found.sentence
    with pytest.raises(FileNotFoundError, match="no such file"):
        session.journal("k.jsonl")
    (folder / "j.jsonl").unlink()
    assert session.problems == ["j.jsonl is missing"]


# Merges


def test_both_sides_are_kept(tmp_path: Path) -> None:
    base = npulab.notebook.sessions.Session()
    same, ours_only, theirs_only, both, gone, left = (base.note(text).id for text in "abcdef")
    base.title = "t"
    ours, theirs = (
        npulab.notebook.sessions.merge_sessions(base, base, base),
        npulab.notebook.sessions.merge_sessions(None, base, base),
    )
    assert ours == theirs == base
    ours.note("new of ours")
    theirs.note("new of theirs")
    ours.edit(ours_only, "b of ours")
    theirs.edit(theirs_only, "c of theirs")
    ours.edit(both, "d of ours")
    theirs.edit(both, "d of theirs")
    ours.remove(gone)
    theirs.remove(left)
    ours.edit(left, "f of ours")
    ours.title, theirs.title = "t of ours", "t of theirs"
    merged = npulab.notebook.sessions.merge_sessions(base, ours, theirs)
    assert texts(merged) == {
        "a",
        "b of ours",
        "c of theirs",
        "d of ours",
        "d of theirs",
        "f of ours",
        "new of ours",
        "new of theirs",
    }
    marked = {note.text: note.conflict for note in merged.notes if note.conflict}
    assert {*marked} == {"d of ours", "d of theirs", "f of ours"}
    ids = {note.text: note.id for note in merged.notes}
    assert marked["d of ours"] == (ids["d of theirs"],)
    assert marked["d of theirs"] == (ids["d of ours"],)
    assert marked["f of ours"] == ("deleted on the other side",)
    assert merged.title == "t of ours"
    assert merged.conflicts[-1] == 'title: "t of ours" or "t of theirs"'
    assert same in ids.values()
    assert npulab.notebook.sessions.merge_sessions(base, merged, theirs) == merged
    merged.settle()
    assert merged.conflicts == []
    assert "d of theirs" in texts(merged)
    # what was settled stays so where somebody else merged as well
    before = npulab.notebook.sessions.merge_sessions(base, ours, theirs)
    before_too = npulab.notebook.sessions.merge_sessions(base, ours, theirs)
    before_too.note("more")
    assert npulab.notebook.sessions.merge_sessions(before, merged, before_too).conflicts == []


WORDS = st.sampled_from(["a", "b", "ü\nz", "", "<b>", "long " * 30])
CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["edit", "remove", "note", "edit", "remove", "bookmark", "law", "title"]),
        WORDS,
        st.integers(0, 2),
    ),
    min_size=1,
    max_size=6,
)


def played(
    session: npulab.notebook.sessions.Session, changes: list[tuple[str, str, int]]
) -> npulab.notebook.sessions.Session:
    out = npulab.notebook.sessions.merge_sessions(session, session, session)
    for change, text, number in changes:
        ids = [note.id for note in out.notes]
        if change == "note":
            out.note(text, field=f"f{number}")
        elif change == "bookmark":
            out.bookmark(text, field=f"f{number}")
        elif change == "law":
            out.accept(f"width * {number}", text or "w0_0_1")
        elif change == "title":
            out.title = text
        elif ids and change == "edit":
            out.edit(ids[number % len(ids)], f"{text} {number}")
        elif ids:
            out.remove(ids[number % len(ids)])
    return out


def check_merge(first: Any, second: Any, third: Any) -> None:
    base = npulab.notebook.sessions.Session()
    for number in range(3):
        base.note(f"of both {number}")
    base = played(base, first[1:])
    ours, theirs = played(base, second), played(base, third)
    merged = npulab.notebook.sessions.merge_sessions(base, ours, theirs)
    was, a, b = ({note.id: note for note in one.notes} for one in (base, ours, theirs))
    for mine, other in ((a, b), (b, a)):
        for key, note in mine.items():
            # what the other side took out or changed itself is theirs to say; everything else
            # stands
            touched = (
                key in was and note == was[key] and (key not in other or other[key] != was[key])
            )
            assert touched or note.text in texts(merged)
            assert touched or any(
                (one.text, one.anchor) == (note.text, note.anchor) for one in merged.notes
            )
    for key in was:
        assert (key in a) + (key in b) or key not in {note.id for note in merged.notes}
    for kind in ("bookmarks", "laws"):
        assert {one.id for side in (ours, theirs) for one in getattr(side, kind)} == {
            one.id for one in getattr(merged, kind)
        }
    assert npulab.notebook.sessions.merge_sessions(base, theirs, ours).text == merged.text
    assert npulab.notebook.sessions.merge_sessions(base, merged, theirs).text == merged.text
    assert npulab.notebook.sessions.merge_sessions(base, merged, merged).text == merged.text
    assert npulab.notebook.sessions.merge_sessions(merged, merged, merged).text == merged.text
    assert read_session(merged.text.encode(), "x.json")


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(CHANGES, CHANGES, CHANGES)
def test_no_note_is_lost(first: Any, second: Any, third: Any) -> None:
    check_merge(first, second, third)


@pytest.mark.long
@settings(max_examples=3_000, suppress_health_check=[HealthCheck.too_slow])
@given(CHANGES, CHANGES, CHANGES)
def test_no_note_is_lost_in_many_merges(first: Any, second: Any, third: Any) -> None:
    check_merge(first, second, third)


def git() -> str:
    found = shutil.which("git")
    if found is None:
        pytest.skip("git is not installed")
    return found


@pytest.mark.parametrize("notes", [0, 1, 8])
def test_git_itself_usually_merges_two_added_notes(tmp_path: Path, notes: int) -> None:
    merged, tries = 0, 12
    for number in range(tries):
        base = npulab.notebook.sessions.Session()
        for one in range(notes):
            base.note(f"note {one}", field=f"f{one}")
        base.save(tmp_path / f"base{number}")
        sides = [npulab.notebook.sessions.merge_sessions(base, base, base) for _ in range(2)]
        paths = []
        for name, side in zip(("ours", "theirs"), sides, strict=True):
            side.note(f"{number} of {name}", field="stride", author=name)
            paths.append(side.save(tmp_path / f"{name}{number}"))
        done = subprocess.run(
            [git(), "merge-file", "-p", paths[0], tmp_path / f"base{number}", paths[1]],
            capture_output=True,
            check=False,
        )
        if not done.returncode:
            merged += 1
            assert (
                done.stdout.decode() == npulab.notebook.sessions.merge_sessions(base, *sides).text
            )
        else:
            with pytest.raises(ValueError, match="git's mark of a conflict"):
                read_session(done.stdout, "x.json")
    assert merged >= tries * 0.75


def test_as_a_merge_driver_of_git(tmp_path: Path) -> None:
    def run(*arguments: str, fails: bool = False) -> str:
        who = {
            f"GIT_{role}_{what}": "a@b"
            for role in ("AUTHOR", "COMMITTER")
            for what in ("NAME", "EMAIL")
        }
        env = {
            **os.environ,
            **who,
            "PYTHONPATH": str(ROOT),
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
        }
        done = subprocess.run(
            [git(), *arguments], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
        )
        assert bool(done.returncode) == fails, done.stderr
        return done.stdout + done.stderr

    run("init", "-q", "-b", "main")
    run("config", "merge.npulab.driver", f"{sys.executable} -m npulab session merge %O %A %B")
    (tmp_path / ".gitattributes").write_text("*.session.json merge=npulab\n")
    path = tmp_path / "x.session.json"
    session = npulab.session(path)
    note = session.note("of both")
    run("add", "-A")
    run("commit", "-qm", "base")
    run("checkout", "-qb", "other")
    session.note("theirs")
    session.edit(note.id, "of both, theirs")
    run("commit", "-qam", "theirs")
    run("checkout", "-q", "main")
    session = npulab.session(path)
    session.note("mine")
    session.edit(note.id, "of both, mine")
    run("commit", "-qam", "mine")
    assert "is at odds with" in run("merge", "other", "-m", "both", fails=True)
    assert texts(npulab.session(path)) == {"of both, mine", "of both, theirs", "mine", "theirs"}


def test_the_shell_merges_and_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("ours", "theirs"):
        npulab.session(tmp_path / name).note(name)
    (tmp_path / "base").write_bytes(b"")
    paths = [str(tmp_path / name) for name in ("base", "ours", "theirs")]
    assert main(["session", "merge", *paths]) == 0
    assert texts(npulab.session(tmp_path / "ours")) == {"ours", "theirs"}
    (tmp_path / "theirs").write_text("[]")
    before = (tmp_path / "ours").read_bytes()
    assert main(["session", "merge", *paths]) == 2
    assert "theirs, the file: got []" in capsys.readouterr().err
    assert (tmp_path / "ours").read_bytes() == before
    assert main(["report", paths[2], str(tmp_path / "no.md")]) == 2
    assert main(["report", str(tmp_path / "ours"), str(tmp_path / "out.md")]) == 0
    assert "theirs" in (tmp_path / "out.md").read_text(encoding="utf-8")
    assert main(["report", str(tmp_path / "nowhere"), str(tmp_path / "no.md")]) == 2
    assert not (tmp_path / "nowhere").exists()
    assert not (tmp_path / "no.md").exists()


def test_a_file_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "x"
    replace_file(path, b"a")
    assert path.stat().st_mode & 0o777 == 0o644
    path.chmod(0o600)
    replace_file(path, b"b")
    assert (path.stat().st_mode & 0o777, path.read_bytes()) == (0o600, b"b")


@pytest.mark.parametrize("kind", ["SweepView", "WritesView"])
def test_a_place_in_a_sweep_or_in_writes_is_there_again(folder: Path, kind: str) -> None:
    path = "sweep.npz" if kind == "SweepView" else "captures/nvdla/sim-add"
    source = CAPTURES / ("heron/sweep-jobs.npz" if kind == "SweepView" else "nvdla/sim-add")
    (shutil.copy if source.is_file() else shutil.copytree)(source, folder / path)
    session = npulab.session(folder / "x.json")
    view = getattr(npulab.notebook.widgets, kind)(session.attach(path))
    view.against, view.at = 3, 7
    session.open_view(view)
    shown = npulab.session(folder / "x.json").show()
    assert (type(shown).__name__, shown.at, shown.model.line) == (kind, 7, view.model.line)


def test_an_opened_job_of_a_stream_is_there_again(folder: Path) -> None:
    path = "captures/ane/sim-concat"
    shutil.copytree(CAPTURES / "ane" / "sim-concat", folder / path)
    session = npulab.session(folder / "x.json")
    view = npulab.notebook.widgets.StreamView(session.attach(path))
    view.block, view.opened = "H13", 1
    session.open_view(view)
    shown = npulab.session(folder / "x.json").show()
    assert type(shown).__name__ == "StreamView"
    assert (shown.block, shown.selected, shown.opened) == ("H13", 1, 1)
