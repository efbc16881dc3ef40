"""A journal of trials: one line of JSON for each trial, written before the next trial begins.

The first line says what the trials are about, so that a journal is never continued for another
task. Every other line is a trial, ``{"trial": 0, "subset": [...], "reason": ..., "outcome": ...,
"seconds": ..., "time": ...}``, with ``"guessed": true`` if the outcome is only a guess of a
simulated device, or ``{"undo": 2}`` if the last two trials were taken back: no line is ever
changed. A trial of a device with controls also has ``hash`` (of the job), ``since`` (how the device
began last: start, power-up, hang or reboot), ``jobs_since`` (the number of jobs from then to the
trial), ``before`` (the hash of the job before the trial), ``runs`` (their number) and
``fingerprint``. A file of version 1 is read, too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from npulab.support.files import Lines, need_file, read_bounded, write_file
from npulab.support.json_text import json_of
from npulab.support.refuse import refuse_if, refusing
from npulab.support.text import plural

# Version 1 has no trials with the outcomes "reboots", "not executed" and "refused".
VERSION = 2
READ = (1, 2)
# The most bytes of a journal's file; a trial of 1,000 fields takes some 40 kB.
MOST_BYTES = 2**28
# The errors that a read of a broken line may raise.
BROKEN = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
# The outcomes that one run shows.
ANSWERS = ("pass", "fail", "hang")
# The trial left the device in a state in which a known-good job fails.
POISONS = "poisons"
# The device began anew by itself.
REBOOTS = "reboots"
# The run ended, but the job did not write the output.
NOT_EXECUTED = "not executed"
# The job was not run, because it is on the list of what must not be run.
REFUSED = "refused"
# The outcomes that only controls show.
ENDINGS = (POISONS, REBOOTS, NOT_EXECUTED, REFUSED)
OUTCOMES = (*ANSWERS, *ENDINGS)


class Guessed(str):
    """An outcome that a simulated device guesses. It is the text of the outcome, so that it passes
    through an oracle of any kind."""

    __slots__ = ()


@dataclass(frozen=True)
class Trial:
    """One trial: the names of the fields that were changed (``subset``), the reason for the trial,
    its outcome, and how long it took.

    ``time`` is when the outcome was known, in UTC; ``more`` has other data of the caller, as JSON
    values. ``guessed`` is True if the outcome is only a guess of a simulated device.

    >>> Trial(("0/NN/CFG/relu",), "half of the probability", "fail")
    Trial(fail: 0/NN/CFG/relu; half of the probability)
    """

    subset: tuple[str, ...]
    reason: str
    outcome: str
    seconds: float = 0.0
    time: str = ""
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def guessed(self) -> bool:
        return isinstance(self.outcome, Guessed)

    def __repr__(self) -> str:
        shown = self.subset
        if len(shown) > 3:
            shown = *shown[:2], f"and {len(shown) - 2} more"
        return f"Trial({self.outcome}: {', '.join(shown) or 'nothing changed'}; {self.reason})"


class Journal:
    """Trials in the order in which they were made, in memory or in a file; an existing file is
    continued at its end.

    ``about`` says in JSON values what the trials are about. A last line that a crash cut off is
    dropped; every other broken line is refused. Raises ValueError for a file that is not a
    journal, or is a journal about something else.

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
        self.path = None
        if path is not None:
            self.path = Path(path)
        self.about = json.loads(json.dumps(dict(about or {})))
        self._trials: list[Trial] = []
        self._lines: list[str] = []
        self._file = None
        head = {"npulab": "journal", "version": VERSION, "about": self.about}
        if self.path is not None:
            # a journal makes no folder: the path is probably misspelt
            if not self.path.parent.is_dir():
                raise FileNotFoundError(f"{self.path.parent}: no such folder")
            self._file = Lines(self.path, MOST_BYTES)
            # if a crash left only a part of the first line, that line is written again
            if self._file.whole or not as_line(head).encode().startswith(self._file.torn):
                self._take_up(self._file.whole, about is not None)
                return
        self._write(head)

    @classmethod
    @refusing()
    def read(cls, path: str | os.PathLike[str]) -> Journal:
        """The journal in a file; raises FileNotFoundError if there is none."""
        need_file(Path(path))
        return cls(path)

    @property
    def trials(self) -> tuple[Trial, ...]:
        """The trials, without those that were taken back."""
        return tuple(self._trials)

    @property
    def hangs(self) -> int:
        """The number of trials that hung, or made the device reboot."""
        return sum(trial.outcome in ("hang", REBOOTS) for trial in self._trials)

    @property
    def guessed(self) -> int:
        """The number of trials whose outcome is only a guess of a simulated device."""
        return sum(trial.guessed for trial in self._trials)

    def add(self, trial: Trial) -> None:
        """Add a trial; its line is on the disk when this returns.

        Raises ValueError for an outcome that is none of ``OUTCOMES``.
        """
        if trial.outcome not in OUTCOMES:
            raise ValueError(
                f"outcome: got {trial.outcome!r}, allowed is one of {', '.join(OUTCOMES)}"
            )
        if not trial.time:
            trial = replace(trial, time=datetime.now(UTC).isoformat(timespec="milliseconds"))
        entry = {
            "trial": len(self._trials),
            "subset": list(trial.subset),
            "reason": trial.reason,
            "outcome": trial.outcome,
            "seconds": round(trial.seconds, 4),
            "time": trial.time,
            **trial.more,
        }
        if trial.guessed:
            entry["guessed"] = True
        self._write(entry)
        self._trials.append(trial)

    def undo(self, count: int = 1) -> None:
        """Take back the last ``count`` trials; raises ValueError if the journal has fewer."""
        kept = self._without(count)
        self._write({"undo": count})
        self._trials = kept

    @property
    def text(self) -> str:
        """The lines of the journal as one text, as the file holds them."""
        return "".join(self._lines)

    def _write(self, entry: Mapping[str, Any]) -> None:
        line = as_line(entry)
        if self._file is not None:
            self._file.add(line.encode())
        self._lines.append(line)

    def _take_up(self, whole: bytes, expected: bool) -> None:
        """Read the trials of an existing file; if ``expected``, raise ValueError for a journal
        about something else."""
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
                    f"{_with_line(error, self.path, number)}; npulab repair makes a journal of "
                    "the lines that can be read"
                ) from None
        if expected and about != self.about:
            differences = []
            for name in about | self.about:
                if about.get(name) != self.about.get(name):
                    differences.append(f"{name} {about.get(name)!r}, not {self.about.get(name)!r}")
            raise ValueError(
                f"{self.path}: is a journal of something else: {'; '.join(differences)}"
            )
        self.about = about

    def _without(self, count: Any) -> list[Trial]:
        """The trials without the last ``count``; raises ValueError if there are fewer."""
        if type(count) is not int or not 1 <= count <= len(self._trials):
            raise ValueError(
                f"undo: got {count!r}, allowed is 1 to {len(self._trials)}, the number of trials"
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
        return f"Journal({plural(len(self), 'trial')}, {self.hangs} hung{where})"


@refusing()
def repair(path: str | os.PathLike[str], into: str | os.PathLike[str]) -> tuple[Journal, list[str]]:
    """Copy the trials of a broken journal to a new file; return the new journal, and a sentence for
    each line that was dropped.

    Trials are numbered anew, so two trials to which two writers gave one number are both kept.
    Raises ValueError if the first line is not the head of a journal, FileExistsError if ``into``
    exists.
    """
    text = read_bounded(Path(path), MOST_BYTES).decode("utf-8", "replace")
    first, *lines = text.strip("\n").split("\n")
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
            dropped.append(_with_line(error, path, number).removeprefix(f"{path}, "))
    write_file(Path(into), sound.text.encode())
    return Journal.read(into), dropped


def _with_line(error: Exception, path: object, number: int) -> str:
    """The text of an error with the file and the line in front, unless it begins with them, as the
    error of a JSON parser does.
    """
    text, where = str(error), f"{path}, line {number}"
    if text.startswith(where):
        return text
    return f"{where}: {text}"


def outcomes_counted(counts: Mapping[str, int]) -> dict[str, int]:
    """The number of trials by outcome, in the order of ``OUTCOMES``. Outcomes of ``ANSWERS`` are
    always there, outcomes of ``ENDINGS`` only if their number is not 0.

    >>> outcomes_counted({"fail": 2, "pass": 1})
    {'pass': 1, 'fail': 2, 'hang': 0}
    """
    found = {}
    for outcome in OUTCOMES:
        count = counts.get(outcome, 0)
        if count or outcome in ANSWERS:
            found[outcome] = count
    return found


def as_line(entry: Mapping[str, Any]) -> str:
    """An entry as one line of JSON, with the end of the line. Half of a surrogate pair, which a
    broken file name may have, is written as an escape."""
    text = json.dumps(entry, ensure_ascii=False)
    return text.encode("utf-8", "backslashreplace").decode() + "\n"


def _head(entry: Any) -> dict[str, Any]:
    known = isinstance(entry, dict) and entry.get("npulab") == "journal"
    if not known or not isinstance(entry.get("about"), dict):
        raise ValueError("got no head of a journal, allowed is a first line of a journal of npulab")
    if entry.get("version") not in READ:
        raise ValueError(f"version: got {entry.get('version')!r}, allowed is 1 or 2")
    return entry["about"]


def _trial(entry: Mapping[str, Any], number: int) -> Trial:
    """The trial that a line states; raises ValueError if its number is not ``number``, or if a
    value is missing or has the wrong type."""
    entry = dict(entry)
    refuse_if(entry.pop("trial", None) != number, "trial", "another number", f"is {number}")
    subset, reason = entry.pop("subset", None), entry.pop("reason", None)
    outcome, seconds = entry.pop("outcome", None), entry.pop("seconds", None)
    time, guessed = entry.pop("time", None), entry.pop("guessed", False)
    if not isinstance(subset, list) or not all(isinstance(name, str) for name in subset):
        raise ValueError(f"subset: got {subset!r}, allowed is a list of names")
    if outcome not in OUTCOMES:
        raise ValueError(f"outcome: got {outcome!r}, allowed is one of {', '.join(OUTCOMES)}")
    texts = isinstance(reason, str) and isinstance(time, str)
    if not texts or not isinstance(seconds, int | float):
        raise ValueError(
            "reason, seconds, time: got values of other types, allowed are a text, a number and a "
            "text"
        )
    refuse_if(not isinstance(guessed, bool), "guessed", repr(guessed), "is true or false")
    if guessed:
        outcome = Guessed(outcome)
    return Trial(tuple(subset), reason, outcome, float(seconds), time, entry)
