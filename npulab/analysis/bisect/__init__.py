"""Which field breaks a job: a search for the culprits among the fields that differ between a good
and a bad capture.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from npulab.analysis.bisect.ahead import Ask, asked_ahead
from npulab.analysis.bisect.idle import (
    MOST_IDLE,
    Idle,
    Idled,
    idles_of,
    is_idle,
    matters,
    names_of,
)
from npulab.analysis.bisect.kinds import Groups
from npulab.analysis.bisect.parts import families, lone_bytes, mix, name_of, parts_of, two_layers
from npulab.analysis.bisect.search import CERTAINTY, FOUND, UNSURE, Search
from npulab.analysis.bisect.words import Words, good_and_bad
from npulab.analysis.check import Difference, Key, raw_fields
from npulab.analysis.edited import edited_job, is_job
from npulab.analysis.records import BUFFER
from npulab.captures.aligned import aligned
from npulab.captures.capture import Capture
from npulab.captures.controlled import (
    TakenBack,
    Unusable,
    controlled_of,
    facts_of,
    refuse_workers,
)
from npulab.captures.devices import as_code
from npulab.captures.journal import (
    ANSWERS,
    NOT_EXECUTED,
    POISONS,
    REBOOTS,
    REFUSED,
    Journal,
    Trial,
)
from npulab.captures.roles import kinds_of
from npulab.captures.target import GUESS
from npulab.support.answers import Answer, Part, Table
from npulab.support.executors import Workers
from npulab.support.late import pd
from npulab.support.refuse import refuse_if
from npulab.support.text import Row, plural, rows_of

__all__ = [
    "CERTAINTY",
    "MAX_HANGS",
    "Bisected",
    "Bisection",
    "Idled",
    "Oracle",
    "Suspect",
    "Trying",
    "bisect_fields",
    "mix",
]

Oracle = Callable[[Capture], str]
# A bisection stops after this many hangs: each costs a reboot, and a person may have to declare
# fields that belong together as units.
MAX_HANGS = 50
SYMPTOMS = (*ANSWERS[1:], POISONS)
# Outcomes that only a device with controls reports, each with the outcome that the search takes in
# instead. The good job passed before and after the trial, so the fault is the trial's and not the
# device's.
COUNTS_AS = {NOT_EXECUTED: "fail", REBOOTS: "hang"}
SAID_OF = {
    REBOOTS: "rebooted the device, which counts as a hang",
    NOT_EXECUTED: "ended without being executed, which counts as a failure",
    REFUSED: "must not be run, and counts for nothing",
}
SAID = (
    "culprits",
    "groups",
    "idle",
    "certainty",
    "queries",
    "hangs",
    "guessed",
    "flake_rate",
    "done",
    "found",
    "sentence",
)


@dataclass(frozen=True)
class Trying:
    """A trial: ``capture`` is the good capture with the parts ``changed`` as in the bad one.
    ``jobs`` counts the jobs of the good capture, ``reason`` says why the trial is run. If ``idle``
    is the key of a changed part, a no-operation stands in place of the job of that part.
    """

    capture: Capture
    changed: tuple[Difference, ...]
    reason: str
    jobs: int = 1
    idle: Key | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the changed parts, as a journal writes them."""
        return names_of(self.changed, self.idle)

    def __str__(self) -> str:
        """Return the reason, then a line for each field that a person has to set by hand, with its
        value, and for each job that is inserted, left out or moved.
        """
        text = (
            f"{self.reason}\nThe good job with {plural(len(self.changed), 'part')} of the bad one:"
        )
        for part in self.changed:
            if is_job(part):
                text += f"\n  {edited_job(part, self.jobs, 'BAD')}"
                if part.key == self.idle:
                    text += ", but with a no-operation in its place"
            else:
                text += f"\n  {name_of(part.key)} = {good_and_bad(part)}"
        return text


@dataclass(frozen=True)
class Suspect:
    """An explanation of the failure in words, the fields that it names, and its probability."""

    text: str
    keys: tuple[Key, ...]
    probability: float


@dataclass(frozen=True)
class Bisected(Answer):
    """The answer of a bisection, or the answer so far if ``done`` is false.

    ``found`` is true if the answer is as certain as was asked for, and every trial agrees with it;
    if the device errs, errors may explain some contradicting trials. If ``found`` is false,
    ``sentence`` begins with "not found", or says that BAD passes, and names a trial that
    contradicts an answer.

    ``culprits`` are (task, block, register, field). ``groups`` are the smallest sets of culprits
    that break the job: all fields of a group together do. If no answer was found, ``culprits`` and
    ``groups`` are those that the trials suggest. ``certainty`` is the probability of exactly these
    groups, or None if trials contradict them. ``queries`` counts the runs, ``hangs`` the runs that
    hung, ``guessed`` the hangs that a simulated device only guesses. ``flake_rate`` is the rate of
    wrong outcomes that was given or inferred.

    ``idle`` is about the jobs in ``groups`` that are inserted or left out: by trials with a
    no-operation in the place of a job it says if the tokens of the job matter, or what the job
    does.
    """

    culprits: tuple[Key, ...]
    groups: tuple[tuple[Key, ...], ...]
    certainty: float | None
    queries: int
    hangs: int
    flake_rate: float
    done: bool
    found: bool
    sentence: str
    journal: Journal
    differences: tuple[Difference, ...]
    good: Capture
    bad: Capture
    oracle: str = ""  # Python text of the oracle that ran the trials, if known
    guessed: int = 0
    idle: tuple[Idled, ...] = ()

    @property
    def diff(self) -> pd.DataFrame:
        """The fields of the groups as a table: task, block, register, field, good, bad, group (the
        number of the group, from 1).
        """
        from npulab.registers.shown import Table

        by_key = {part.key: part for part in self.differences}
        rows = []
        for number, group in enumerate(self.groups, 1):
            for key in group:
                rows.append((*key, by_key[key].a, by_key[key].b, number))
        return Table(
            rows,
            columns=["task", "block", "register", "field", "good", "bad", "group"],
            dtype=object,
        )

    @property
    def captures(self) -> tuple[Capture, ...]:
        """One capture for each group: the good capture with only that group changed, which breaks
        it.
        """
        return tuple(mix(self.good, self.bad, group) for group in self.groups)

    def script(
        self, good: str | None = None, bad: str | None = None, oracle: str | None = None
    ) -> str:
        """Return Python that shows the failure again.

        ``good`` and ``bad`` are the paths from which it loads the captures, by default the
        captures' folders as seen from the working folder; ``oracle`` is Python text that runs a
        capture, by default the text of the oracle that ran the trials.
        """
        unsaved = []
        if not (good or self.good.folder):
            unsaved.append(self.good.name)
        if not (bad or self.bad.folder):
            unsaved.append(self.bad.name)
        note = ""
        if unsaved:
            names = " and ".join(unsaved)
            note = f"# {names}: first write with npulab.save to the folder below\n"
        good = good or _folder_of(self.good)
        bad = bad or _folder_of(self.bad)
        groups = "".join(f"    {list(group)!r},\n" for group in self.groups)
        return f"""# {self.sentence}
{note}import npulab
import npulab.analysis.bisect

good, bad = npulab.load({good!r}), npulab.load({bad!r})
oracle = {oracle or self.oracle or "npulab.Simulated()"}
groups = [
{groups}]
print(oracle(good), "with nothing changed")
for group in groups:
    print(oracle(npulab.analysis.bisect.mix(good, bad, group)), group)
"""

    def records(self) -> list[Row]:
        return [{name: getattr(self, name) for name in SAID}]

    @property
    def parts(self) -> list[Part]:
        return [self.sentence, Table(rows_of(self.diff), [*self.diff])]

    def __repr__(self) -> str:
        return f"Bisected({self.sentence})"


class Bisection:
    """A bisection step by step: ``trial`` is the next job to run, ``tell`` takes its outcome.

    ``good`` passes, ``bad`` does not; a trial is ``good`` with some fields changed to their values
    in ``bad``. ``flake_rate`` is the share of wrong outcomes, None if it is not known; the search
    ends at ``certainty``. ``units`` lists fields, by name (``relu``, ``w3.relu`` or
    ``0/NN/w3/relu``), that are changed together as long as a trial of the whole unit helps; every
    other field is a unit of its own. With None the units are taken from the names of the fields
    (``families``).

    Fields that point into memory keep their values in ``good`` unless ``addresses``; buffers that
    differ are changed as fields are, unless ``buffers`` is false. ``symptom`` is the outcome of the
    bad job, "fail", "hang" or "poisons" (it spoils the known-good job after it; the oracle is a
    ``Probed`` device), if it is known: then the bad job is run first, and if it ends otherwise the
    bisection ends with that answer. ``journal`` is a path or a Journal: the trials
    that it holds are not run again. ``warning`` is a sentence about captures of two layers, and
    stands before the reason of the first trial.

    If an inserted or left out job is in the answer, and the target has a no-operation for it
    (``idle``), a further trial shows if what the job does matters or its tokens. At most
    ``MOST_IDLE`` jobs get a further trial, and none does if the answer is in doubt, the device
    keeps a state, or no trial separates the parts.

    Raises ValueError for captures that cannot be mixed or a journal of other captures, LookupError
    for an unknown field.
    """

    def __init__(
        self,
        good: Capture,
        bad: Capture,
        *,
        flake_rate: float | None = 0.0,
        certainty: float = CERTAINTY,
        units: Iterable[Iterable[str]] | None = None,
        addresses: bool = False,
        buffers: bool = True,
        symptom: str | None = None,
        seed: int = 0,
        journal: Journal | str | os.PathLike[str] | None = None,
    ) -> None:
        if not isinstance(seed, int) or seed < 0:
            raise ValueError(f"seed: got {seed!r}, allowed is a whole number from 0 on")
        if units is not None and (isinstance(units, str) or not isinstance(units, Iterable)):
            raise TypeError(f"units: got {units!r}, allowed are lists of field names")
        if symptom not in (None, *SYMPTOMS):
            raise ValueError(
                f"symptom: got {symptom!r}, allowed is one of {', '.join(SYMPTOMS)}, or None if it "
                "is not known"
            )
        self._spoils = symptom == POISONS
        if self._spoils:
            symptom = "fail"
        self.good, self.bad = good, bad
        self.differences = tuple(parts_of(good, bad, addresses=addresses, buffers=buffers))
        self._pairs = aligned(good.jobs, bad.jobs)
        self.warning = two_layers(good, bad)
        self.names = tuple(name_of(part.key) for part in self.differences)
        kinds = kinds_of(good), kinds_of(bad)
        lone = lone_bytes(good, bad)
        self._words = Words(self.differences, len(good.jobs), self._spoils, kinds, lone)
        if units is None:
            self.units = families(self.differences)
        else:
            self.units = self._units(list(units))
        self._new_search = partial(
            Search,
            len(self.differences),
            self.units,
            flake_rate=flake_rate,
            certainty=certainty,
            symptom=symptom,
            seed=seed,
        )
        self._search = self._new_search()
        if not isinstance(journal, Journal | str | os.PathLike | None):
            raise TypeError(f"journal: got {journal!r}, allowed is a path or a Journal")
        about = {"good": good.name, "bad": bad.name, "target": good.target, "parts": self._digest()}
        if isinstance(journal, Journal):
            self.journal = journal
        else:
            self.journal = Journal(journal, about)
        self._again = False
        self._trial: Trying | None = None
        self._followed: list[Trial] = []  # the trials that the search took in
        self._idles_of: dict[Groups, list[Idle]] = {}
        self._follow()

    @property
    def search(self) -> Search:
        """The search, after it took in every trial of the journal. An outcome goes to the journal
        first, so a crash loses no trial.
        """
        self._follow()
        return self._search

    def _follow(self) -> None:
        # the search skips trials with a no-operation: they say nothing of the parts
        trials = [trial for trial in self.journal if not is_idle(trial)]
        same = 0
        for followed, trial in zip(self._followed, trials, strict=False):
            if followed is not trial:
                break
            same += 1
        if same < len(self._followed):
            self._search.undo(len(self._followed) - same)
            del self._followed[same:]
        for trial in trials[same:]:
            self._search.tell(self._subset(trial.subset), self._shown(trial.outcome))
            self._followed.append(trial)

    def _shown(self, outcome: str) -> str:
        """Return the outcome that the search takes in for an outcome of the journal: if "poisons"
        is the symptom, it counts as "fail" and "fail" as "pass"; else "poisons" counts as "pass".
        """
        counted = COUNTS_AS.get(outcome, outcome)
        if self._spoils:
            return {POISONS: "fail", "fail": "pass"}.get(counted, counted)
        if outcome == POISONS:
            return "pass"
        return counted

    @property
    def trial(self) -> Trying | None:
        """The next job to run; None if the bisection is done."""
        if self._trial is None:
            if self._again and len(self.journal):
                last = self.journal[-1]
                reason = f"asked again: the last outcome was {last.outcome}"
                self._trial = self._once_more(last, reason)
                return self._trial
            question = self.search.ask()
            left = self._idles_left()
            if question is None and left:
                self._trial = self._trying_idle(left[0], self._asks(left[0]))
            elif question is not None:
                reason = question.reason
                if self.warning and not len(self.journal):
                    reason = f"{self.warning}; {reason}"
                self._trial = self._trying(question.subset, reason)
        return self._trial

    @property
    def done(self) -> bool:
        return self.trial is None

    def following(self) -> list[Capture]:
        """The captures that may be tried after ``trial``: the one after a pass of ``trial``, then
        the one after the symptom.

        There are none after the last trial of the search, and after a trial with a no-operation.
        """
        trial = self.trial
        if trial is None or trial.idle is not None:
            return []
        chosen = self._subset(trial.names)
        captures = []
        for outcome in ("pass", self.search.symptom or "fail"):
            # the assumed outcome goes to a copy: the search itself takes in only real ones
            search = self._new_search()
            for told in [*self.search.history, (chosen, outcome)]:
                search.tell(*told)
            question = search.ask()
            if question is not None:
                captures.append(self._trying(question.subset, question.reason).capture)
        return captures

    def tell(
        self, outcome: str, seconds: float = 0.0, more: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        """Write the outcome of ``trial`` to the journal: "pass", "fail", "hang" or another outcome
        that a journal allows. ``more`` are further data of the trial.

        Raises ValueError for another outcome, or if there is no trial.
        """
        trial = self.trial
        if trial is None:
            raise ValueError(
                f"tell: got {outcome!r}, allowed is nothing after the last trial: no trial waits "
                "for an outcome"
            )
        self.journal.add(Trial(trial.names, trial.reason, outcome, seconds, more=more))
        self._trial, self._again = None, False

    def again(self) -> None:
        """Repeat the last trial as the next one, because its outcome is in doubt; both outcomes
        then count.
        """
        self._again, self._trial = bool(len(self.journal)), None

    def undo(self, count: int = 1) -> None:
        """Take back the last ``count`` outcomes; after ``again``, take back only the wish for
        another run.

        Raises ValueError if there are fewer outcomes than ``count``.
        """
        if not self._again:
            self.journal.undo(count)
        self._trial, self._again = None, False

    def take_back(self, count: int) -> None:
        """Take back the last ``count`` trials that were told, or all if there are fewer. Refused
        trials were not run and do not count.
        """
        told = 0
        while told < count and len(self.journal):
            told += self.journal[-1].outcome != REFUSED
            self.undo()
        self._trial = None

    @property
    def queries(self) -> int:
        return len(self.journal)

    @property
    def left(self) -> int:
        """The expected number of trials until the end."""
        return self.search.left + len(self._idles_left())

    @property
    def suspects(self) -> list[Suspect]:
        """The most probable explanations, best first, at most five."""
        found = []
        for groups, probability in self.search.likely:
            keys = self._keys(sorted(set().union(*groups)))
            found.append(Suspect(self._words.groups(groups), keys, probability))
        return found

    @property
    def shares(self) -> list[float]:
        """For each of ``differences``: the probability that it takes part in the failure."""
        shares: list[float] = self.search.shares.tolist()
        return shares

    @property
    def result(self) -> Bisected:
        """The answer so far; ``done`` says if it is the last."""
        done, search = self.done, self.search
        how = UNSURE
        if search.end:
            how = search.end.how
        ended = done or bool(self._idles_left())
        groups: Groups = ()
        if ended:
            groups = search.groups
        certainty = None
        if ended and how in (FOUND, UNSURE):
            certainty = search.certain
        return Bisected(
            culprits=self._keys(sorted(set().union(*groups))),
            groups=tuple(self._keys(group) for group in groups if group),
            certainty=certainty,
            queries=self.queries,
            hangs=self.journal.hangs,
            flake_rate=search.suspects.flake,
            done=done,
            found=how == FOUND,
            sentence=self._sentence(search),
            journal=self.journal,
            differences=self.differences,
            good=self.good,
            bad=self.bad,
            guessed=self.journal.guessed,
            idle=tuple(self._idled(idle) for idle in self._idles() if self._numbers(idle)),
        )

    def _sentence(self, search: Search) -> str:
        text = self._words.sentence(search) + self._without_effect(search)
        return text + self._spoiled() + self._ended() + self._guessed()

    def _without_effect(self, search: Search) -> str:
        """Return text: what no-operations in place of jobs showed, and which of them were not
        tried.
        """
        text = ""
        for idle in self._idles():
            numbers = self._numbers(idle)
            if numbers:
                shown = self._words.idle(search, idle.item, self._idled(idle), numbers[-1] + 1)
                text += f"; {shown}"
            elif idle in self._idles_left():
                text += f"; not tried yet: a no-operation in place of {self._words.job(idle.item)}"
        more = len(self._idles()) - MOST_IDLE
        if more > 0:
            text += f"; {plural(more, 'job')} more not tried as a no-operation"
        return text

    def _idles(self) -> list[Idle]:
        """Return a trial for each job of the answer that has a no-operation; none before the search
        ends, or if the answer is in doubt.
        """
        search = self.search
        if search.end is None or search.end.how != FOUND or search.apart or search.inseparable:
            return []
        if search.groups not in self._idles_of:
            found = idles_of(self.good, self.bad, self.differences, search.groups)
            self._idles_of[search.groups] = found
        return self._idles_of[search.groups]

    def _idles_left(self) -> list[Idle]:
        return [idle for idle in self._idles()[:MOST_IDLE] if not self._numbers(idle)]

    def _numbers(self, idle: Idle) -> list[int]:
        """Return the numbers, from 0, of the trials with this no-operation."""
        parts = [self.differences[item] for item in idle.group]
        names = names_of(parts, self.differences[idle.item].key)
        return [number for number, trial in enumerate(self.journal) if trial.subset == names]

    def _idled(self, idle: Idle) -> Idled:
        """Return what the trials with a no-operation show."""
        symptom = self.search.symptom or "fail"
        if self._spoils:
            symptom = POISONS
        part = self.differences[idle.item]
        outcomes = tuple(str(self.journal[number].outcome) for number in self._numbers(idle))
        return Idled(part.key, outcomes, matters(part, outcomes, symptom))

    def _asks(self, idle: Idle) -> str:
        """Return the reason of a trial with a no-operation."""
        job = self._words.job(idle.item)
        text = f"is it what {job} does, or its tokens? with a no-operation in its place"
        if idle.fields:
            text += f": {idle.fields}"
        return text

    def _guessed(self) -> str:
        """Return text: how many hangs a simulated device only guessed; "" if it guessed none."""
        count = self.journal.guessed
        if not count:
            return ""
        return f"; {plural(count, 'trial')} hung on the simulated device, {GUESS}"

    def _spoiled(self) -> str:
        """Return text: the first trial that poisoned the device; "" if none did, or if "poisons" is
        the symptom.
        """
        if self._spoils:
            return ""
        for number, trial in enumerate(self.journal, 1):
            if trial.outcome == POISONS:
                return f"; trial {number} poisoned the device: symptom {POISONS!r} finds by what"
        return ""

    def _ended(self) -> str:
        """Return text: how many trials were refused, rebooted the device or were not executed, and
        as what they count.
        """
        text = ""
        for outcome, said in SAID_OF.items():
            count = sum(trial.outcome == outcome for trial in self.journal)
            if count:
                text += f"; {plural(count, 'trial')} {said}"
        return text

    def _keys(self, items: Iterable[int]) -> tuple[Key, ...]:
        return tuple(self.differences[item].key for item in items)

    def _trying(self, subset: np.ndarray, reason: str) -> Trying:
        changed = tuple(self.differences[item] for item in np.flatnonzero(subset))
        mixed = mix(self.good, self.bad, [part.key for part in changed], self._pairs)
        return Trying(mixed, changed, reason, len(self.good.jobs))

    def _trying_idle(self, idle: Idle, reason: str) -> Trying:
        changed = tuple(self.differences[item] for item in idle.group)
        key = self.differences[idle.item].key
        keys = [part.key for part in changed]
        mixed = mix(self.good, self.bad, keys, self._pairs, {key: idle.job})
        return Trying(mixed, changed, reason, len(self.good.jobs), key)

    def _once_more(self, last: Trial, reason: str) -> Trying:
        if is_idle(last):
            self.search.ask()  # after a journal was read, the search ends only when it is asked
        for idle in self._idles():
            if self._numbers(idle)[-1:] == [len(self.journal) - 1]:
                return self._trying_idle(idle, reason)
        return self._trying(self._subset(last.subset), reason)

    def _subset(self, names: Iterable[str]) -> np.ndarray:
        chosen = set(names)
        unknown = chosen.difference(self.names)
        if unknown:
            raise LookupError(
                f"journal: got a trial that changes {min(unknown)}, allowed are the fields that "
                f"differ between {self.good.name} and {self.bad.name}"
            )
        return np.array([name in chosen for name in self.names], bool)

    def _digest(self) -> str:
        """Return a hash of the fields that differ and their values; a journal with another hash is
        refused.
        """
        parts = []
        for name, part in zip(self.names, self.differences, strict=True):
            parts.append([name, repr(part.a), repr(part.b)])
        for name in sorted({part.register for part in self.differences if part.block == BUFFER}):
            for capture in (self.good, self.bad):
                data = capture.buffers.get(name, b"")
                parts.append([name, hashlib.sha256(data).hexdigest()])
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]

    def _units(self, units: list[Iterable[str]]) -> list[list[int]]:
        """Return the units as lists of indices of parts, from lists of names; a field that does not
        differ is left out, since it cannot be changed.
        """
        by_name: dict[str, list[int]] = {}
        for key in (*raw_fields(self.good), *raw_fields(self.bad)):
            for name in _names(key):
                by_name[name] = []
        for index, part in enumerate(self.differences):
            for name in _names(part.key):
                by_name.setdefault(name, []).append(index)
        found: list[list[int]] = []
        seen: set[int] = set()
        for unit in units:
            if isinstance(unit, str):
                raise TypeError(f"units: got {unit!r}, allowed are lists of field names")
            inside: set[int] = set()
            for name in unit:
                if name not in by_name:
                    raise LookupError(
                        f"units: got {name!r}, allowed are the fields of {self.good.name} and "
                        f"{self.bad.name}"
                    )
                inside.update(by_name[name])
            if seen & inside:
                raise ValueError(
                    f"units: got {self.names[min(seen & inside)]} in two units, allowed is one"
                )
            seen |= inside
            if inside:
                found.append(sorted(inside))
        for index in range(len(self.differences)):
            if index not in seen:
                found.append([index])
        return sorted(found)

    def __repr__(self) -> str:
        sentence = self._sentence(self.search)
        against = f"{self.good.name} against {self.bad.name}"
        return f"Bisection({against}, {len(self.differences)} parts: {sentence})"


def _folder_of(capture: Capture) -> str:
    """Return the folder of a capture as seen from the working folder."""
    if capture.folder is None:
        return f"captures/{capture.target}/{capture.name}"
    try:
        return Path(os.path.relpath(capture.folder)).as_posix()
    except ValueError:  # no relative path leads to another drive
        return capture.folder.resolve().as_posix()


def _names(key: Key) -> tuple[str, str, str]:
    """Return the three names by which a user may call a field, shortest first: field,
    register.field, task/block/register/field.
    """
    return key[3], f"{key[2]}.{key[3]}", name_of(key)


def bisect_fields(
    good: Capture,
    bad: Capture,
    oracle: Oracle,
    flake_rate: float | None = 0.0,
    *,
    max_hangs: int = MAX_HANGS,
    asking: Callable[[Trying], None] | None = None,
    progress: Callable[[Bisection], None] | None = None,
    stop: Callable[[], bool] | None = None,
    different_layers: bool = False,
    executor: Workers = None,
    **options: Any,
) -> Bisected:
    """Find the fields of ``bad`` that break ``good``, with few runs of ``oracle``.

    ``oracle(capture)`` says "pass", "fail" or "hang". ``asking`` is called before every trial,
    ``progress`` after it. ``stop`` is called before each trial: if it returns True, or if
    ``max_hangs`` trials hung, the answer so far is returned. ``options`` are those of
    ``Bisection``.

    ``executor`` runs trials ahead (``Ahead``): the next trial, the one after its pass, and the one
    after its failure. Trials, journal and answer are then the same if the outcome of a job does not
    depend on the runs before it, as with simulators; a board that keeps a state, or that is
    expensive to hang, is asked one trial at a time, without an executor.

    A device with controls (``npulab.captures.controlled``) may take outcomes back; these trials run
    again. If the device is not usable any more, ``sentence`` begins with "not found" and says why.
    On such a device "reboots" counts as a hang, "not executed" as a failure, and "refused" for
    nothing.

    Raises ValueError for captures of two layers unless ``different_layers``, since fields of two
    layers differ anyway, and for a bad capture that the device refuses.

    >>> from npulab.bits import RegisterMap
    >>> from npulab.capture import Job
    >>> fields = [dict(block="NN", field=f"f{n}", lsb=n, width=1) for n in range(32)]
    >>> maps = {"NN": RegisterMap(fields)}
    >>> good = Capture("good", "demo", "x", (Job("NN", [0]),), maps=maps)
    >>> bad = Capture("bad", "demo", "x", (Job("NN", [2**32 - 1]),), maps=maps)
    >>> def oracle(capture):
    ...     return "fail" if capture.words[0] >= 2**31 else "pass"
    >>> found = bisect_fields(good, bad, oracle)
    >>> found.culprits, found.queries < 12
    (((0, 'NN', 'w0', 'f31'),), True)
    """
    if not callable(oracle):
        raise TypeError(
            f"oracle: got {oracle!r}, allowed is a function that is given a capture and returns "
            "pass, fail or hang"
        )
    session = Bisection(good, bad, flake_rate=flake_rate, **options)
    refuse_workers(oracle, executor)
    _refuse(session, oracle, different_layers)
    unusable = ""
    try:
        with asked_ahead(oracle, executor) as ask:
            while session.journal.hangs < max_hangs and not (stop and stop()):
                if not _asked(session, oracle, ask, asking):
                    break
                if progress:
                    progress(session)
    except Unusable as error:
        session.take_back(error.count)
        unusable = str(error)
    found = replace(session.result, oracle=as_code(oracle, good))
    if not unusable:
        return found
    sentence = f"not found: {unusable}; until then: {found.sentence}"
    return replace(found, found=False, done=False, certainty=None, sentence=sentence)


def _asked(
    session: Bisection,
    oracle: Oracle,
    ask: Ask,
    asking: Callable[[Trying], None] | None,
) -> bool:
    """Run the next trial and take in its outcome. Return False if there is no further trial; before
    that, a device with controls checks the last one.
    """
    trial = session.trial
    try:
        if trial is None:
            controlled = controlled_of(oracle)
            if controlled is not None:
                controlled.finish()
            return False
        if asking:
            asking(trial)
        start = time.monotonic()
        outcome = ask(trial.capture, session.following)
    except TakenBack as back:
        session.take_back(back.count)
        return True
    session.tell(outcome, time.monotonic() - start, facts_of(oracle))
    return True


def _refuse(session: Bisection, oracle: Oracle, different_layers: bool) -> None:
    """Raise ValueError for captures of two layers, and for a bad capture that a device with
    controls refuses to run.
    """
    if session.warning and not different_layers:
        raise ValueError(
            f"{session.warning}; different_layers=True (--different-layers in the shell) bisects "
            "them all the same"
        )
    controlled = controlled_of(oracle)
    if controlled is not None:
        # the proof of any answer runs the bad job itself
        why, bad = controlled.never.why(session.bad), session.bad.name
        refuse_if(why, f"bad: {bad}", why, "is a capture without it, as mix() makes")
