"""A journal of trials: one JSON line each, written before the next trial begins.

The first line says what the trials are of, so that a journal is never taken up for another job.  A
line is ``{"trial": 0, "subset": [...], "reason": ..., "outcome": ..., "seconds": ..., "time":
...}``, or ``{"undo": 2}`` where the last two verdicts were taken back: nothing is ever rewritten.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from npulab.support.files import Lines, need_file, read_bounded, write_file
from npulab.support.json_text import json_of
from npulab.support.refuse import refuse_if, refusing

VERSION = 1
MOST_BYTES = 2**28  # of a journal's file; a trial of 1,000 fields takes some 40 kB
BROKEN = (
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    RecursionError,
)  # what a broken line gives
OUTCOMES = ("pass", "fail", "hang")


@dataclass(frozen=True)
class Trial:
    """One trial: what was changed, why it was tried, its outcome, how long it took.

    ``time`` is when the outcome was known, in UTC; ``more`` is whatever else the asker keeps, as
    JSON has it.

    >>> Trial(("0/NN/CFG/relu",), "half of the probability", "fail")
    Trial(fail: 0/NN/CFG/relu; half of the probability)
    """

    subset: tuple[str, ...]
    reason: str
    outcome: str
    seconds: float = 0.0
    time: str = ""
    more: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        if len(self.subset) <= 3:
            shown = self.subset
        else:
            shown = *self.subset[:2], f"and {len(self.subset) - 2} more"
        return f"Trial({self.outcome}: {', '.join(shown) or 'nothing changed'}; {self.reason})"


class Journal:
    """Trials in order, in memory or in a file that is taken up again where it ended.

    ``about`` says what the trials are of, as JSON has it.  A line that a crash cut off is dropped;
    every other broken line is refused.  Raises ValueError for a file that is no journal, or one of
    something else.

    >>> journal = Journal(about={"good": "a", "bad": "b"})
    >>> journal.add(Trial(("relu",), "a first half", "fail"))
    >>> journal.undo()
    >>> len(journal)
    0
    """

    @refusing()
    def __init__(
        self, path: str | os.PathLike[str] | None = None, about: Mapping[str, Any] | None = None
    ) -> None:
        if path is None:
            self.path = None
        else:
            self.path = Path(path)
        self.about = json.loads(json.dumps(dict(about or {})))
        if (
            self.path is not None and not self.path.parent.is_dir()
        ):  # a slip: a journal makes no folder
            raise FileNotFoundError(f"{self.path.parent}: no such folder")
        self._trials: list[Trial] = []
        self._lines: list[str] = []
        if self.path is None:
            self._file = None
        else:
            self._file = Lines(self.path, MOST_BYTES)
        head = {"npulab": "journal", "version": VERSION, "about": self.about}
        if self._file and (
            self._file.whole or not as_line(head).encode().startswith(self._file.torn)
        ):
            self._take_up(self._file.whole, about is not None)
        else:  # a crash cut the head off, if there is a file
            self._write(head)

    @classmethod
    @refusing()
    def read(cls, path: str | os.PathLike[str]) -> Journal:
        """A journal as it lies in a file; raises FileNotFoundError where there is none."""
        need_file(Path(path))
        return cls(path)

    @property
    def trials(self) -> tuple[Trial, ...]:
        """The trials that count: those taken back are left out."""
        return tuple(self._trials)

    @property
    def hangs(self) -> int:
        return sum(trial.outcome == "hang" for trial in self._trials)

    def add(self, trial: Trial) -> None:
        """Write a trial down; it is on the disk when this returns.

        Raises ValueError for an outcome that is none of pass, fail and hang.
        """
        if trial.outcome not in OUTCOMES:
            raise ValueError(
                f"outcome: got {trial.outcome!r}, allowed is one of {', '.join(OUTCOMES)}"
            )
        if not trial.time:
            trial = Trial(
                trial.subset,
                trial.reason,
                trial.outcome,
                trial.seconds,
                datetime.now(UTC).isoformat(timespec="milliseconds"),
                trial.more,
            )
        self._write(
            {
                "trial": len(self._trials),
                "subset": list(trial.subset),
                "reason": trial.reason,
                "outcome": trial.outcome,
                "seconds": round(trial.seconds, 4),
                "time": trial.time,
                **trial.more,
            }
        )
        self._trials.append(trial)

    def undo(self, count: int = 1) -> None:
        """Take the last verdicts back; raises ValueError where there are not so many."""
        kept = self._without(count)
        self._write({"undo": count})
        self._trials = kept

    @property
    def text(self) -> str:
        """The lines as they are in the file."""
        return "".join(self._lines)

    def _write(self, entry: Mapping[str, Any]) -> None:
        line = as_line(entry)
        if self._file is not None:
            self._file.add(line.encode())
        self._lines.append(line)

    def _take_up(self, whole: bytes, expected: bool) -> None:
        refuse_if(not whole, self.path, "no whole line", "is a journal of npulab")
        self._lines = [f"{line}\n" for line in whole.decode("utf-8", "replace").split("\n")[:-1]]
        for number, line in enumerate(self._lines, 1):
            try:
                entry = json_of(line, self.path, number)
                if number == 1:
                    about = _head(entry)
                elif "undo" in entry:
                    self._trials = self._without(entry["undo"])
                else:
                    self._trials.append(_trial(entry, len(self._trials)))
            except BROKEN as error:
                raise ValueError(
                    f"{_told(error, self.path, number)}; npulab repair makes a journal of the "
                    "lines that "
                    "can be read"
                ) from None
        if expected and about != self.about:
            told = [
                f"{name} {about.get(name)!r}, not {self.about.get(name)!r}"
                for name in {**about, **self.about}
                if about.get(name) != self.about.get(name)
            ]
            raise ValueError(f"{self.path}: is a journal of something else: {'; '.join(told)}")
        self.about = about

    def _without(self, count: Any) -> list[Trial]:
        """The trials without the last ones."""
        if type(count) is not int or not 1 <= count <= len(self._trials):
            raise ValueError(
                f"undo: got {count!r}, allowed is 1 to {len(self._trials)}, as many as there are"
            )
        return self._trials[:-count]

    def __len__(self) -> int:
        return len(self._trials)

    def __iter__(self) -> Iterator[Trial]:
        return iter(self._trials)

    def __getitem__(self, number: int) -> Trial:
        return self._trials[number]

    def __repr__(self) -> str:
        where = ""
        if self.path:
            where = f", {self.path}"
        return f"Journal({len(self)} trial{'s' * (len(self) != 1)}, {self.hangs} hung{where})"


@refusing()
def repair(path: str | os.PathLike[str], into: str | os.PathLike[str]) -> tuple[Journal, list[str]]:
    """A broken journal's trials in a new file, and what was dropped of it, a sentence a line.

    A trial with a number that another writer used too is kept, with the next number.  Raises
    ValueError if the first line is no head of a journal, FileExistsError if ``into`` is there.
    """
    first, *lines = (
        read_bounded(Path(path), MOST_BYTES).decode("utf-8", "replace").strip("\n").split("\n")
    )
    dropped = []
    with refusing(f"{path}, line 1"):
        sound = Journal(None, _head(json_of(first, path)))
    for number, line in enumerate(lines, 2):
        try:
            entry = json_of(line, path, number)
            if "undo" in entry:
                sound.undo(entry["undo"])
            else:
                sound.add(_trial({**entry, "trial": len(sound)}, len(sound)))
        except BROKEN as error:
            dropped.append(_told(error, path, number).removeprefix(f"{path}, "))
    write_file(Path(into), sound.text.encode())
    return Journal.read(into), dropped


def _told(error: Exception, path: object, number: int) -> str:
    """What is wrong with a line of a journal, with its place; what is no JSON says its column
    already.
    """
    told, where = str(error), f"{path}, line {number}"
    if told.startswith(where):
        return told
    return f"{where}: {told}"


def as_line(entry: Mapping[str, Any]) -> str:
    """An entry as JSON, with the end of its line; half a character, as a broken name of a file has
    it, stays an escape."""
    return json.dumps(entry, ensure_ascii=False).encode("utf-8", "backslashreplace").decode() + "\n"


def _head(entry: Any) -> dict[str, Any]:
    if (
        not isinstance(entry, dict)
        or entry.get("npulab") != "journal"
        or not isinstance(entry.get("about"), dict)
    ):
        raise ValueError("got no head of a journal, allowed is a journal of npulab")
    if entry.get("version") != VERSION:
        raise ValueError(f"version: got {entry.get('version')!r}, allowed is {VERSION}")
    return entry["about"]


def _trial(entry: Mapping[str, Any], number: int) -> Trial:
    """The trial of a line; raises ValueError where something is missing or out of place."""
    entry = dict(entry)
    refuse_if(entry.pop("trial", None) != number, "trial", "another number", f"is {number}")
    known = {
        name: entry.pop(name, None) for name in ("subset", "reason", "outcome", "seconds", "time")
    }
    subset: Sequence[Any] | None = known["subset"]
    if not isinstance(subset, list) or not all(isinstance(name, str) for name in subset):
        raise ValueError(f"subset: got {subset!r}, allowed is a list of names")
    if known["outcome"] not in OUTCOMES:
        raise ValueError(f"outcome: got {known['outcome']!r}, allowed is {', '.join(OUTCOMES)}")
    if (
        not isinstance(known["seconds"], int | float)
        or not isinstance(known["reason"], str)
        or not isinstance(known["time"], str)
    ):
        raise ValueError("reason, seconds, time: got something that is no text, number, text")
    return Trial(
        tuple(subset),
        known["reason"],
        known["outcome"],
        float(known["seconds"]),
        known["time"],
        entry,
    )
