"""A session with something of everything: it is there again, is merged, and its report runs nothing."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import warnings
from pathlib import Path

import pytest
from conftest import CAPTURES
from hostile_maps import EVIL, Tags, harmless
from told_session import folder, hostile, texts, told  # noqa: F401

import npulab
import npulab.notebook.sessions
from npulab.cli import main


def test_a_session_is_there_again_from_one_readable_file(folder: Path) -> None:
    one = told(folder)
    text = (folder / "story.json").read_text(encoding="utf-8")
    assert max(map(len, text.splitlines())) < 400, "a change is a line or two of a diff"
    assert json.loads(text)["title"] == "What is <relu>?"
    again = npulab.session(folder / "story.json")
    assert (again.problems, again.conflicts) in (((), ()), ([], []))
    for what in ("title", "notes", "bookmarks", "captures", "laws", "journals"):
        assert getattr(again, what) == getattr(one, what), what
        assert len(getattr(again, what)) > 0
    assert {note.anchor.text for note in again.notes} >= {"field clamp_below", "register w2"}
    assert "clamp_below" in {*again.registers.fields["field"]}
    assert again.draft.steps == ["rename relu to clamp_below"]
    view = again.show()
    assert isinstance(view, npulab.RegisterView)
    assert (tuple(view.cursor), tuple(view.words)) == (
        (2, 24),
        tuple(npulab.load(folder / "captures/sim-3x3-same").words),
    )
    assert "relu" in (folder / "nn.csv").read_text(), (
        "edits that were not saved are in the session alone"
    )
    before = text
    again.save()
    assert (folder / "story.json").read_text(encoding="utf-8") == before


def test_a_new_note_is_a_small_diff(folder: Path) -> None:
    one = told(folder)
    before = (folder / "story.json").read_text().splitlines()
    one.note("another", field="stride")
    after = (folder / "story.json").read_text().splitlines()
    assert [line for line in before if line not in after] == []
    assert len(after) - len(before) < 10


def test_two_peoples_sessions_lose_no_note(folder: Path) -> None:
    told(folder)
    base = (folder / "story.json").read_bytes()
    for name in ("base", "ours", "theirs"):
        (folder / f"{name}.json").write_bytes(base)
    ours, theirs = (
        npulab.session(folder / f"{name}.json", author=name) for name in ("ours", "theirs")
    )
    for n in range(20):
        (ours if n % 2 else theirs).note(f"note {n}", field=f"f{n % 3}")
    shared_note = next(note for note in ours.notes if note.text == "a register")
    ours.edit(shared_note.id, "our reading")
    theirs.edit(shared_note.id, "their reading")
    gone = next(note for note in ours.notes if note.text == "the capture")
    ours.remove(gone.id)
    story = next(note for note in ours.notes if note.text == "the story")
    ours.remove(story.id)
    theirs.edit(story.id, "the story, told better")
    for a, b in ((ours, theirs), (theirs, ours)):
        merged = npulab.notebook.sessions.merge_sessions(
            folder / "base.json", a.path if hasattr(a, "path") else a, b
        )
        all_text = " ".join(texts(merged)) + json.dumps([str(note) for note in merged.notes])
        assert {f"note {n}" for n in range(20)} <= texts(merged)
        assert all(
            reading in all_text for reading in ("our reading", "their reading", "told better")
        )
        assert "the capture" not in texts(merged)
        assert len(merged.conflicts) >= 1
    assert main(
        ["session", "merge", *(str(folder / f"{name}.json") for name in ("base", "ours", "theirs"))]
    ) in (0, 1)
    assert {f"note {n}" for n in range(20)} <= texts(npulab.session(folder / "ours.json"))


def test_a_session_written_by_somebody_else_meanwhile_is_merged(folder: Path) -> None:
    one, other = (npulab.session(folder / "x.json", author=name) for name in ("ada", "bob"))
    one.note("ada's")
    with pytest.raises(ValueError, match="merge"):
        other.note("bob's")
    assert other.merge() in ([], ())
    assert texts(npulab.session(folder / "x.json")) == {"ada's", "bob's"}


@pytest.mark.parametrize(
    "path", ["../outside", "/etc/passwd", "captures/../../outside", "captures/link"]
)
def test_paths_that_leave_the_folder_are_refused(
    path: str, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("elsewhere") / "outside"
    shutil.copytree(CAPTURES / "vivante/sim-3x3-same", outside)
    (folder / "captures/link").symlink_to(outside)
    shutil.copytree(outside, folder.parent / "outside", dirs_exist_ok=True)
    one = npulab.session(folder / "x.json")
    with pytest.raises((ValueError, OSError)):
        one.attach(path)
    one.note("n")
    said = json.loads((folder / "x.json").read_text())
    for kind in ("captures", "journals", "figures"):
        hostile = {**said, kind: {path: {"sha256": "0" * 64}}}
        (folder / "y.json").write_text(json.dumps(hostile))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                bad = npulab.session(folder / "y.json")
                page = bad.report(folder / f"{kind}.html").read_text()
            except (ValueError, OSError, LookupError):
                continue
        assert "root:x" not in page
        assert "sim-3x3-same" not in page
        with pytest.raises((ValueError, LookupError, OSError)):
            bad.load(path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "[" * 100_000,
        '{"npulab": "session"}',
        '{"npulab": "session", "version": 1, "notes": []}',
        "\ufeff{}",
        '{"npulab": "session", "version": 1, "notes": {"a": 3}}',
    ],
)
def test_what_is_no_session_is_refused_in_a_sentence(
    text: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "x.json").write_text(text)
    status = main(["report", str(folder / "x.json"), str(folder / "out.html")])
    said = capsys.readouterr().err.strip()
    assert (status, "\n" in said, "x.json" in said) == (2, False, True), said
    assert not (folder / "out.html").exists()


def test_a_report_opens_anywhere_and_runs_nothing(folder: Path) -> None:
    one = hostile(folder)
    page = one.report(folder / "out.html").read_text(encoding="utf-8")
    harmless(page)
    assert EVIL in Tags(page).text
    assert not re.search(r"url\((?!['\"]?data:)|@import", page)
    markdown = one.report(folder / "out.md").read_text(encoding="utf-8")
    prose = re.sub(r"^(`{3,}).*?^\1", "", markdown, flags=re.M | re.S)
    assert not re.search(r"(?<!\\)<(script|img)", re.sub(r"`+[^`]*`+", "", prose))
    assert not re.search(r"(?<!\\)\]\(<?javascript", prose)


def test_a_report_tells_the_story_with_commands_that_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one = told(folder)
    page = Tags(one.report(folder / "out.html").read_text(encoding="utf-8"))
    for said in (
        "What is <relu>?",
        "Clamps",
        "sixteen bytes",
        "look here",
        "kernel_h",
        "simulated",
        "clamp_below",
        "ada",
    ):
        assert said in page.text, said
    markdown = one.report(folder / "out.md").read_text(encoding="utf-8")
    monkeypatch.chdir(folder)
    commands = [
        line
        for block in re.findall(r"^```sh\n(.*?)^```", markdown, re.M | re.S)
        for line in block.splitlines()
        if line.startswith("npulab ") and "laws" not in line and "bisect" not in line
    ]
    assert len({*commands}) >= 4
    for line in dict.fromkeys(commands):
        assert main(shlex.split(line)[1:]) in (0, 1), line
        capsys.readouterr()
    assert main(["report", "story.json", "again.html"]) == 0
    assert (folder / "again.html").read_bytes() == (folder / "out.html").read_bytes()
