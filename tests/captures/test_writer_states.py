"""Files of several writers, some of them killed: whatever they do one after the other, what was
accepted is there, once.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from test_writers import CASE, killed

import npulab
from npulab.analysis.draft import Draft, draft
from npulab.analysis.explore.storing import Store
from npulab.captures.capture import Capture
from npulab.captures.journal import Journal, Trial
from npulab.captures.sources import Answer

WRITERS = st.integers(0, 1)
TABLE = "block,offset,register,field,lsb,width,value,evidence,note\nB,0,CFG,mode,0,4,,guess,\nB,0,CFG,size,8,8,,guess,\n"


class Kind(NamedTuple):
    """How a file of entries is opened, added to and read, and whether the last entry can be
    taken back.
    """

    name: str
    open: Callable[[Path], Any]
    add: Callable[[Any, str], object]
    read: Callable[[Path], list[str]]
    undo: bool


def _answers(folder: Path) -> Store:
    return Store(folder, {"seed": 1})


def _texts(folder: Path) -> list[str]:
    """The texts of an exploration's answers, whose captures are there and are those of the
    answers.
    """
    answers = _answers(folder).answers
    for one in answers:
        if one.words is not None:
            assert npulab.load(folder / f"captures/{one.number:05d}").source == one.text
    return [one.text for one in answers]


def _answer(text: str) -> Answer:
    if text.endswith("refused"):
        return Answer("refused", text=text)
    return Answer("captured", replace(_case(), source=text), text=text)


@cache
def _case() -> Capture:
    return npulab.load(CASE)


JOURNAL = Kind(
    "journal.jsonl",
    lambda folder: Journal(folder / "journal.jsonl", {"a": 1}),
    lambda one, text: one.add(Trial((text,), "", "pass")),
    lambda folder: [trial.subset[0] for trial in Journal.read(folder / "journal.jsonl")],
    True,
)
ANSWERS = Kind(
    "answers.jsonl",
    _answers,
    lambda one, text: one.add(0, "first", 1, {}, _answer(text)),
    _texts,
    False,
)


class Files(RuleBasedStateMachine):
    """A folder, two writers that have opened what is in it, and which of them have seen what is
    there now.
    """

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="npulab-states-"))
        self.count = 0
        self.writers: dict[int, Any] = {}
        self.current: set[int] = set()

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    def wrote(self, number: int | None) -> None:
        self.current = {number} & {*self.writers} if number is not None else set()


class Entries(Files):
    """Entries are added to the end of a file: a writer that another one was quicker than is
    refused.
    """

    kind: Kind

    def __init__(self) -> None:
        super().__init__()
        self.open(0)
        self.kept: list[str] = []

    @rule(number=WRITERS)
    def open(self, number: int) -> None:
        before = (self.folder / self.kind.name).stat().st_size if number in self.writers else None
        self.writers[number] = self.kind.open(self.folder)
        self.current.add(number)
        assert before is None or (self.folder / self.kind.name).stat().st_size == before

    @precondition(lambda self: len(self.writers) == 2)
    @rule(number=WRITERS, wide=st.booleans())
    def add(self, number: int, wide: bool) -> None:
        text = self.text(wide)
        if number not in self.current:
            with pytest.raises(ValueError, match="another program writes to it; open it again"):
                self.kind.add(self.writers[number], text)
            return
        self.kind.add(self.writers[number], text)
        self.kept.append(text)
        self.wrote(number)

    @precondition(lambda self: self.kind.undo and self.current)
    @rule(count=st.integers(1, 3))
    def undo(self, count: int) -> None:
        number = min(self.current)
        if count > len(self.kept):
            with pytest.raises(ValueError, match=r"^undo: got "):
                self.writers[number].undo(count)
            return
        self.writers[number].undo(count)
        del self.kept[-count:]
        self.wrote(number)

    @rule(calls=st.integers(0, 40))
    def killed(self, calls: int) -> None:
        """A third writer is killed between two calls: its entry is there, or it is not."""
        text, before = self.text(False), (self.folder / self.kind.name).read_bytes()
        alive = not killed(
            lambda folder: self.kind.add(self.kind.open(folder), text), self.folder, calls
        )
        if (self.folder / self.kind.name).read_bytes() != before:
            self.wrote(None)
        there = self.kind.read(self.folder)
        assert there in ([*self.kept, text], *([] if alive else [self.kept]))
        self.kept = there

    @rule(part=st.sampled_from([b"{", b'{"undo": 1', b"\xff", b'0000 {"number"', "é".encode()[:1]]))
    def torn(self, part: bytes) -> None:
        """The plug is pulled in the middle of a line: what there is of it counts for nothing."""
        path = self.folder / self.kind.name
        if path.read_bytes().endswith(b"\n"):
            with path.open("ab") as file:
                file.write(part)
            self.wrote(None)

    def text(self, wide: bool) -> str:
        self.count += 1
        return f"{self.count}, \u2028refused" if wide else f"{self.count}"

    @invariant()
    def what_was_accepted_is_there(self) -> None:
        assert self.kind.read(self.folder) == self.kept


class Trials(Entries):
    kind = JOURNAL


class Answers(Entries):
    kind = ANSWERS


class Drafts(Files):
    """A table and its enums: of two drafts of them one saves, the other is refused until it was
    opened again.
    """

    def __init__(self) -> None:
        super().__init__()
        self.path = self.folder / "registers.csv"
        self.path.write_text(TABLE)
        self.there = self.files()
        for number in range(2):
            self.open(number)

    def files(self) -> dict[str, bytes]:
        return {
            one.name: one.read_bytes()
            for one in self.folder.iterdir()
            if not one.name.startswith(".npulab-")
        }

    @rule(number=WRITERS)
    def open(self, number: int) -> None:
        self.writers[number] = draft(self.path)
        self.current.add(number)

    def edited(self, one: Draft) -> None:
        self.count += 1
        if self.count % 3:
            one.set_note("mode", f"note {self.count}")
        else:
            one.retype("size", "enum:sizes", {self.count: f"name{self.count}"})

    @rule(number=WRITERS)
    def edit(self, number: int) -> None:
        before = len(self.writers[number].steps)
        self.edited(self.writers[number])
        assert len(self.writers[number].steps) == before + 1

    @rule(number=WRITERS, back=st.booleans())
    def undo_or_redo(self, number: int, back: bool) -> None:
        one = self.writers[number]
        steps, undone = one.steps, one.undone
        told = one.undo() if back else one.redo()
        assert told == ((steps[-1:] if back else undone[:1]) or [""])[0]
        assert one.steps + one.undone == steps + undone

    @rule(number=WRITERS)
    def save(self, number: int) -> None:
        one = self.writers[number]
        saved = one.saved
        if number in self.current:
            one.save()
            assert one.saved
            self.there = self.files()
            if not saved:
                self.wrote(number)
        else:
            with pytest.raises(ValueError, match="open it again and replay the edits"):
                one.save()
            assert one.saved == saved

    @rule(calls=st.integers(0, 60))
    def killed(self, calls: int) -> None:
        """A third one is killed as it saves: the old table or the new one, with the enums that
        it needs.
        """

        def work(_: Path) -> None:
            one = draft(self.path)
            self.edited(one)
            one.save()

        alive = not killed(work, self.folder, calls)
        self.edited(draft(self.path))  # counted here too
        left = self.files()
        if left != self.there or alive:
            self.wrote(None)
        assert left != self.there or not alive
        assert (
            left["registers.csv"] == self.there["registers.csv"]
            or f"{self.count}" in left["registers.csv"].decode()
            or f"name{self.count}" in left["enums.csv"].decode()
        )
        self.there = left

    @invariant()
    def the_file_is_what_was_saved(self) -> None:
        assert self.files() == self.there
        opened = draft(self.path)
        assert (opened.steps, opened.saved) == ([], True)
        for number in self.current:
            one = self.writers[number]
            assert one.saved == (one.table == opened.table)
            if one.steps or one.saved:  # else what was saved was taken back
                again = draft(self.path)
                again.replay(one.unsaved)
                assert again.table == one.table


class Sessions(Files):
    """Notes of two people in one session: who was not quick enough is refused and merges, which
    loses nobody's note.
    """

    def __init__(self) -> None:
        super().__init__()
        self.path = self.folder / "s.json"
        self.kept: set[str] = set()
        self.seen: dict[
            int, bytes
        ] = {}  # the file as each knows it, the notes in it, and the notes that each has
        self.base: dict[int, set[str]] = {}
        self.own: dict[int, set[str]] = {}
        for number in range(2):
            self.open(number)

    def took(self, number: int) -> None:
        self.seen[number] = self.path.read_bytes()
        self.base[number], self.own[number] = {*self.kept}, {*self.kept}

    def changed(self, number: int, change: Callable[[], object]) -> None:
        """A change is in the file when it returns; one that is refused is kept for a merge."""
        if self.seen[number] == self.path.read_bytes():
            change()
            self.kept = {*self.own[number]}
            self.took(number)
            return
        before = self.path.read_bytes()
        with pytest.raises(
            ValueError,
            match=r"was changed since it was read, nothing is written; session\.merge\(\)",
        ):
            change()
        assert self.path.read_bytes() == before

    @rule(number=WRITERS)
    def open(self, number: int) -> None:
        self.writers[number] = npulab.session(self.path)
        self.took(number)

    @rule(number=WRITERS)
    def note(self, number: int) -> None:
        self.count += 1
        text = f"note {self.count}"
        self.own[number].add(text)
        self.changed(number, lambda: self.writers[number].note(text))

    @precondition(lambda self: any(self.own.values()))
    @rule(number=WRITERS)
    def remove(self, number: int) -> None:
        if self.own[number]:
            text = min(self.own[number])
            which = next(one.id for one in self.writers[number].notes if one.text == text)
            self.own[number].remove(text)
            self.changed(number, lambda: self.writers[number].remove(which))

    @rule(number=WRITERS)
    def merge(self, number: int) -> None:
        base, own = self.base[number], self.own[number]
        assert self.writers[number].merge() == []
        self.kept = (self.kept | own - base) - (base - own)
        self.took(number)

    @rule(calls=st.integers(0, 60))
    def killed(self, calls: int) -> None:
        """A third one is killed as a note is taken: it is there, or it is not."""
        self.count += 1
        text = f"note {self.count}"
        alive = not killed(lambda _: npulab.session(self.path).note(text), self.folder, calls)
        there = {one.text for one in npulab.session(self.path).notes}
        assert there in ([self.kept | {text}], [self.kept, self.kept | {text}])[not alive]
        self.kept = there

    @invariant()
    def what_was_accepted_is_there(self) -> None:
        there = [one.text for one in npulab.session(self.path).notes]
        assert sorted(there) == sorted(self.kept)
        for number, one in self.writers.items():
            assert {note.text for note in one.notes} == self.own[number]


STATES = {"session": Sessions, "journal": Trials, "exploration": Answers, "draft": Drafts}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="writers are killed in a forked process")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings(
    "ignore:.* it was moved to :UserWarning"
)  # half a capture of a writer that was killed
@pytest.mark.parametrize("name", STATES)
@pytest.mark.parametrize("count", [2, pytest.param(200, marks=pytest.mark.long)])
def test_files_of_several_writers(name: str, count: int) -> None:
    run_state_machine_as_test(
        STATES[name], settings=settings(max_examples=count, stateful_step_count=10)
    )  # type: ignore[no-untyped-call]
