"""The journal: nothing that was written is lost, and nothing broken is taken for a journal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from npulab.captures.journal import Journal, Trial

ABOUT = {"good": "a", "bad": "b"}


def trial(outcome: str = "pass", *subset: str) -> Trial:
    return Trial(subset, "a half", outcome, 0.25, more={"cost": 3})


def test_what_was_added_is_there_again(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    journal = Journal(path, ABOUT)
    for outcome in ("pass", "fail", "hang"):
        journal.add(trial(outcome, "x", "y"))
    journal.undo(2)
    journal.add(trial("fail", "ü"))
    again = Journal(path, ABOUT)
    assert again.trials == journal.trials
    assert [one.outcome for one in again] == ["pass", "fail"]
    assert (again[1].subset, again[1].more, again[1].seconds) == (("ü",), {"cost": 3}, 0.25)
    assert again.text == path.read_text(encoding="utf-8")
    assert Journal.read(path).about == ABOUT


def test_half_a_character_is_kept(tmp_path: Path) -> None:
    """As a file's name that is no UTF-8 has it."""
    Journal(tmp_path / "j.jsonl", ABOUT).add(trial("fail", "\udcff"))
    assert Journal.read(tmp_path / "j.jsonl")[0].subset == ("\udcff",)


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_line_cut_off_costs_that_line_alone(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "j.jsonl"
    journal = Journal(path, ABOUT)
    journal.add(trial("fail", "x"))
    whole = path.read_bytes()
    journal.add(trial("pass", "y"))
    torn = path.read_bytes()[:-cut]
    path.write_bytes(torn)
    again = Journal(path, ABOUT)
    assert len(again) == 1
    assert path.read_bytes() == torn  # who reads writes nothing
    again.add(trial("pass", "y"))
    assert path.read_bytes().startswith(whole)
    assert [one.subset for one in Journal(path, ABOUT)] == [("x",), ("y",)]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("[]", "line 2"),
        ("{", "line 2"),
        ('{"trial": 7}', "allowed is 0"),
        ('{"undo": 1}', "allowed is 1 to 0"),
        ('{"trial": 0, "subset": [], "reason": "", "outcome": "pass", "time": ""}', "seconds"),
    ],
)
def test_a_broken_line_is_refused_with_its_number(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "j.jsonl"
    Journal(path, ABOUT)
    path.write_text(path.read_text() + line + "\n")
    before = path.read_bytes()
    with pytest.raises(ValueError, match=words):
        Journal(path, ABOUT)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "text",
    ["x", "hello\n", '{"a": 1}\n', "[1]\n", '{"npulab": "journal", "version": 9, "about": {}}\n'],
)
def test_what_is_no_journal_is_not_written_to(tmp_path: Path, text: str) -> None:
    path = tmp_path / "j.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"allowed is|line 1"):
        Journal(path, ABOUT)
    assert path.read_text() == text


def test_a_journal_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    Journal(path, ABOUT)
    with pytest.raises(ValueError, match="something else: good 'a', not 'c'"):
        Journal(path, {**ABOUT, "good": "c"})


def test_undo_knows_its_bounds() -> None:
    journal = Journal(about=ABOUT)
    journal.add(trial())
    before = journal.text
    for bad in (1.5, -1, "a"):
        with pytest.raises(ValueError, match="undo: got"):
            journal.undo(bad)
    with pytest.raises(ValueError, match="outcome: got 'oops'"):
        journal.add(trial("oops"))
    assert journal.text == before
    with pytest.raises(FileNotFoundError):
        Journal.read("nowhere.jsonl")


def test_the_head_is_one_line_of_json(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.jsonl", ABOUT)
    journal.add(trial())
    lines = (tmp_path / "j.jsonl").read_text().splitlines()
    assert json.loads(lines[0]) == {"npulab": "journal", "version": 2, "about": ABOUT}
    assert set(json.loads(lines[1])) == {
        "trial",
        "subset",
        "reason",
        "outcome",
        "seconds",
        "time",
        "cost",
    }


def test_a_journal_says_how_many_and_where(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", {})
    assert repr(journal) == f"Journal(0 trials, 0 hung, {tmp_path / 'j'})"
