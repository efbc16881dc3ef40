"""Files of people: a session, its journal, its map with a draft's steps, and its captures open
as they were written.
"""

from __future__ import annotations

from pathlib import Path

import npulab
import npulab.analysis.bisect
from npulab.captures.journal import Journal

GOLDEN = Path(__file__).parent / "golden"
SESSION = GOLDEN / "stride.session.json"


def test_a_session_opens() -> None:
    session = npulab.session(SESSION, autosave=False)
    assert session.text.encode() == SESSION.read_bytes()
    assert session.problems == []
    assert len(session.conflicts) == 3
    assert [one.path for one in session.captures] == ["captures/bad", "captures/good"]
    assert {note.text for note in session.notes} >= {
        "two\nlines ü",
        "the first row",
        "of it all",
        "of ours",
        "of theirs",
    }
    assert {note.anchor.text for note in session.notes} == {
        "field third",
        "register w2",
        "bytes 0x0 to 0xf of output of captures/good",
        "the session",
    }
    assert session.bookmarks[0].anchor == npulab.notebook.sessions.Anchor(
        field="second", capture="captures/good", task=0
    )
    assert (session.laws[0].field, session.laws[0].law, session.laws[0].support) == (
        "w3_0_13",
        "input_w * 2",
        3,
    )
    assert (session.journals[0].device, session.journals[0].simulated) == ("simulated", True)
    assert session.show().cursor == (2, 24)


def test_a_journal_of_a_bisection_opens() -> None:
    journal = Journal.read(GOLDEN / "journal.jsonl")
    good, bad = (npulab.load(GOLDEN / "captures" / name) for name in ("good", "bad"))
    assert (
        "relu = 1 (good 0) breaks it"
        in npulab.analysis.bisect.Bisection(good, bad, journal=journal).result.sentence
    )


def test_a_draft_opens() -> None:
    assert npulab.draft(GOLDEN / "map.csv").map.second.bits == "2[31:0]"
    session = npulab.session(SESSION, autosave=False)
    assert session.draft.steps == ["rename a3 to third"]
    assert session.registers.third.bits == "3[31:0]"
    assert (
        session.decoded("captures/good").values["third"] == session.load("captures/good").words[3]
    )


def test_a_capture_folder_opens() -> None:
    good, bad = (npulab.load(GOLDEN / "captures" / name) for name in ("good", "bad"))
    assert (good.target, good.provenance, len(good.words), len(good.buffers["output"])) == (
        "vivante",
        "simulated",
        34,
        3456,
    )
    assert (good.values["relu"], bad.values["relu"]) == (0, 1)


def test_its_report_tells_everything(tmp_path: Path) -> None:
    session = npulab.session(SESSION, autosave=False)
    text = session.report(tmp_path / "out.md").read_text(encoding="utf-8")
    for words in (
        "# t &lt;b&gt; of ours",
        "rename a3 to third",
        "It **clamps** below, see `relu` and [the table](<https://example.org/a?b=1&c=2>)",
        "- two &lt;b&gt;",
        "int a = 1 < 2;",
        "relu = 1 (good 0) breaks it",
        "at odds since a merge",
    ):
        assert words in text, words
