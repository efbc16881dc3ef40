"""The loop between a source of captures and the laws of their words: plan, predict,
capture, learn.
"""

from __future__ import annotations

import html
import os
import re
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Event
from typing import Any

import numpy as np
from numpy import ndarray as Array

from npulab.analysis.explore.space import Possible, Rule, learnt_rules
from npulab.analysis.explore.storing import JobsOf, Kept, Store
from npulab.analysis.laws.found import Laws, find_laws
from npulab.analysis.laws.planning import plan_sweep
from npulab.analysis.laws.score import Score
from npulab.captures.layers import complete_ranges
from npulab.captures.roles import COUNT, INDEX, roles
from npulab.captures.sources import Source, answers
from npulab.captures.sweep import Sweep
from npulab.quant.layers.spellings import with_numbers
from npulab.support.executors import Workers, need_executor, threads
from npulab.support.late import pd
from npulab.support.refuse import need, refuse_if, shortly
from npulab.support.text import part_said, plural

# The first sweep has at most this many layers.
FIRST = 24
# This many layers of the first sweep are asked for again, with other weights.
TWICE = 3
LEAST_BATCH, MOST_BATCH = 8, 48
# A batch has 1 / GROWTH times as many layers as there are captures, so that learning does not take
# most of the time.
GROWTH = 3
# Every law is searched again at the end, and whenever the number of captures has grown by this
# factor since all laws were searched.
WHOLE = 2
# One layer in RANDOM of a batch is drawn at random, not planned.
RANDOM = 4
# The planned layers of a batch are chosen from this many random layers.
POOL = 400
# An estimated size is at most this many times the largest size that was captured.
BEYOND = 4
# At most this many reasons are given for layers without a capture.
MOST_REASONS = 3
NUMBER = re.compile(r"0x[0-9a-f]+|\d+(?:\.\d+)?(?:e[+-]?\d+)?")
BRACKETS = re.compile(r"\([^()]*\)")
Progress = Callable[["Step"], None]


@dataclass(frozen=True)
class Step:
    """The progress of an exploration: the number of layers that were asked for, the budget, a text
    about the present work or the last batch, and, after a batch, the results so far (``found``).
    """

    asked: int
    budget: int
    text: str
    found: Explored | None = None


@dataclass(frozen=True)
class Reason:
    """A reason why layers gave no capture: the number of these layers, their outcome, and the
    source's message for the first of these layers.
    """

    layers: int
    outcome: str
    text: str

    def __str__(self) -> str:
        message = ", and the source said nothing"
        if self.text:
            message = f": {self.text}"
        return f"{plural(self.layers, 'layer')} {self.outcome}{message}"


def reasons_of(outcomes: Iterable[tuple[str, str]]) -> tuple[Reason, ...]:
    """The most frequent reasons, at most three, among pairs (outcome, message).

    Messages that differ only in numbers, or inside brackets, are one reason: numbers and brackets
    name the parameters of the layer.

    >>> outcomes = [("refused", "w 9 is too large"), ("hang", ""), ("refused", "w 12 is too large")]
    >>> print(*reasons_of(outcomes), sep="; ")
    2 layers refused: w 9 is too large; 1 layer hang, and the source said nothing
    """
    found: dict[tuple[str, str], list[str]] = {}
    for outcome, text in outcomes:
        kind = NUMBER.sub("#", BRACKETS.sub("()", text))
        found.setdefault((outcome, kind), []).append(text)
    ranked = sorted(found, key=lambda kind: -len(found[kind]))
    return tuple(Reason(len(found[key]), key[0], found[key][0]) for key in ranked[:MOST_REASONS])


@dataclass(frozen=True, eq=False)
class Explored:
    """The results of an exploration.

    ``laws`` are made from all captures (None with fewer than two). ``sweep`` has the captures with
    their parameters. ``batches`` has a row for each batch that was predicted before it was
    captured. Its columns are: batch; captures; cells (bits x captures that vary); ``claimed`` (the
    cells that the laws claimed); ``wrong`` (the claims that were wrong); ``share`` (of the cells,
    those that were claimed and right); the same for the layers drawn at random alone (drawn_cells,
    drawn_claimed, drawn_wrong, drawn_share); and the seconds of capturing and of learning.

    ``surprises`` has a row for each wrong prediction, ``outcomes`` a row for each layer that was
    refused, failed or hung. ``rules`` are the constraints learnt from refusals. ``reasons`` says
    why most of the layers in ``outcomes`` gave no capture.
    """

    laws: Laws | None
    sweep: Sweep | None
    batches: pd.DataFrame
    surprises: pd.DataFrame
    outcomes: pd.DataFrame
    rules: tuple[Rule, ...] = ()
    stopped: bool = False

    @property
    def looked_at(self) -> str:
        """How many jobs of how many were looked at; "" if all of them were."""
        if self.sweep is None:
            return ""
        return self.sweep.looked_at

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """The most frequent reasons why layers gave no capture, at most three."""
        if self.outcomes.empty:
            return ()
        return reasons_of(zip(self.outcomes["outcome"], self.outcomes["text"], strict=True))

    def __repr__(self) -> str:
        captures = 0
        if self.sweep is not None:
            captures = len(self.sweep.words)
        text = f"{captures} captures, {len(self.outcomes)} without one"
        if self.looked_at:
            text = f"{captures} jobs, {plural(len(self.outcomes), 'layer')} without a capture"
        if len(self.batches):
            text += f", last batch {100 * self.batches['share'].iloc[-1]:.0f} % right"
        text += f", {len(self.surprises)} surprises"
        if self.stopped:
            text += ", stopped"
        for reason in self.reasons:
            text += f"; {reason}"
        if self.looked_at:
            text += f"; {part_said(self.looked_at)}"
        return f"Explored({text})"

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(repr(self))}</p>{self.batches.to_html(max_rows=40)}"


def explore(
    source: Source,
    ranges: Mapping[str, Any] | None = None,
    constraints: Sequence[Any] = (),
    derived: Mapping[str, Any] | None = None,
    budget: int = 200,
    store: str | os.PathLike[str] | None = None,
    *,
    role: str | None = None,
    block: str | None = None,
    seed: int = 0,
    workers: int = 1,
    executor: Workers = None,
    progress: Progress | None = None,
    stop: Event | None = None,
) -> Explored:
    """Find the laws of the words of a source: capture a first sweep, then plan, predict, capture
    and learn in batches, until the laws are settled or ``budget`` layers were asked for.

    The laws are settled if, in the last two batches, they predicted every varying bit, and every
    prediction was right. ``ranges`` are those of ``npulab.captures.layers``; ``constraints`` and
    ``derived`` are those of ``plan_sweep``. Each batch is predicted by laws that were made without
    it. One layer in four is drawn at random; the others are the layers whose captures would decide
    most between laws. Three layers are asked for twice, with other weights: bits that differ
    between the two captures are not functions of the parameters.

    If captures have several jobs, the words are those of each capture's main job, and the result
    says of how many jobs. With ``role`` they are those of all jobs of a role, with ``block`` those
    of the only role of a block, as in ``sweep_of``. Roles are found again in all captures after
    each batch; a role that they do not have raises LookupError, which lists the roles.

    Layers are asked for by ``workers`` threads, or by the workers of ``executor``
    (``npulab.support.executors``). The answers are the same for any number of workers.

    ``store`` is a folder in which every answer is saved at once; the next call with the same folder
    continues. An interrupt, or the event ``stop``, ends the exploration with the results so far.
    Errors are those of ``plan_sweep``, and ValueError for a store of another exploration.
    """
    need_source(source)
    executor = _executor_of(workers, executor)
    need("explore: budget", budget, int, "is a whole number of layers")
    if budget < 2:
        raise ValueError(f"budget: got {budget}, allowed is at least 2 layers")
    # the ranges of the source count where ``ranges`` states none
    asked = ranges or {}
    if isinstance(asked, Mapping):
        asked = {**getattr(source, "ranges", {}), **with_numbers(asked)}
    allowed = complete_ranges(asked)
    possible = Possible(allowed, tuple(constraints), derived)
    chosen = _chosen(role, block)
    stated = _stated(with_numbers(ranges or {}))
    about = {"source": source.record, "ranges": stated, "seed": seed, **chosen}
    kept = Store(store, about, bool(chosen))
    run = _Exploration(source, possible, budget, seed, executor, kept, **chosen)
    if progress is not None:
        run.progress = progress
    if stop is not None:
        run.stop = stop
    return run.explore()


def _executor_of(workers: int, executor: Workers) -> Workers:
    """Return the executor that was given, or one of threads; raises an error for both."""
    need_executor(executor)
    refuse_if(workers != 1 and executor is not None, "explore", "workers and executor", "is one")
    if workers > 1:
        return threads(workers)
    return executor


def _stated(ranges: Mapping[str, Any]) -> dict[str, Any]:
    """Return ranges as JSON holds them: with lists in place of tuples."""
    stated: dict[str, Any] = {}
    for name, allowed in ranges.items():
        stated[name] = allowed
        if isinstance(allowed, tuple):
            stated[name] = list(allowed)
    return stated


def _chosen(role: str | None, block: str | None) -> dict[str, Any]:
    """Return the role or the block that was given, by name; raises ValueError for both."""
    given: dict[str, Any] = {}
    for name, value in (("role", role), ("block", block)):
        need(f"explore: {name}", value, (str, type(None)), f"is the name of a {name}")
        if value is not None:
            given[name] = value
    refuse_if(len(given) > 1, "explore", "role and block", "is one of them")
    return given


def need_source(source: object) -> None:
    """Raise TypeError unless the given value can be called and has a ``record``, as a source of
    captures has."""
    if not callable(source) or not hasattr(source, "record"):
        raise TypeError(
            f"explore: source: got {shortly(source)}, allowed is a source, as "
            "npulab.Compiler(command) or npulab.captures.sources.Lowered(target) make"
        )


@dataclass
class _Exploration:
    """One exploration while it runs. Its state follows only from the answers in its store, so that
    it can be continued.
    """

    source: Source
    possible: Possible
    budget: int
    seed: int
    executor: Workers
    store: Store
    role: str | None = None
    block: str | None = None
    progress: Progress = lambda step: None
    stop: Event = field(default_factory=Event)
    laws: Laws | None = None
    # the laws of the batch before, from which a quick search starts
    earlier: Laws | None = None
    # how many captures there were when all laws were last searched
    searched: int = 0
    batches: list[dict[str, Any]] = field(default_factory=list)
    surprises: list[dict[str, Any]] = field(default_factory=list)
    # the number of answers with words, and the rows of a role's jobs that were made from them
    known_rows: tuple[int, list[Kept]] = field(default=(0, []))
    # True after a capture had several jobs of the role
    runs: bool = False

    def explore(self) -> Explored:
        stopped = False
        try:
            while len(self.store.answers) < self.budget and not self._settled():
                if self.stop.is_set():
                    break
                self._batch()
        except KeyboardInterrupt:
            stopped = True
        if self._captured() and self.laws is None:
            self._learn()
        return self._explored(stopped or self.stop.is_set())

    # ---- one batch ----

    def _batch(self) -> None:
        number = max((kept.batch for kept in self.store.answers), default=-1) + 1
        begun = time.monotonic()
        if self.laws is None and len(self._captured()) >= 2 and number:
            self._learn(quick=len(self._captured()) < WHOLE * self.searched)
        learnt = time.monotonic()
        laws, before = self.laws, len(self.store.answers)
        for reason, frame, seed in self._planned(number):
            rows = [frame.iloc[place].to_dict() for place in range(len(frame))]
            rows = rows[: max(self.budget - len(self.store.answers), 0)]
            # each answer is written to the disk before the next one is awaited
            for place, answer in answers(self.source, rows, seed, self.executor, self.stop):
                self.store.add(number, reason, seed, rows[place], answer)
                self._say(f"batch {number}: {reason} layers")
        new = self.store.answers[before:]
        lost = reasons_of((kept.outcome, kept.text) for kept in new if kept.outcome != "captured")
        text = "; ".join([f"{len(new)} layers asked", *map(str, lost[:1])])
        if laws is not None:
            text = self._judge(laws, number, new, learnt - begun, time.monotonic() - learnt)
        self._say(text, self._explored(False))
        self.laws, self.earlier = None, laws or self.earlier

    def _say(self, text: str, found: Explored | None = None) -> None:
        self.progress(Step(len(self.store.answers), self.budget, text, found))

    def _planned(self, number: int) -> list[tuple[str, pd.DataFrame, int]]:
        """Return the layers of a batch, grouped by the reason to ask for them: (reason, layers,
        seed of the weights).
        """
        seed = self.seed + number
        if self.laws is None:
            pool, count = self.possible.draw(POOL, seed), min(FIRST, self.budget)
            layers = plan_sweep(candidates=pool, n=count, seed=seed).reset_index(drop=True)
            return [("first", layers, 0), ("again", layers.iloc[:TWICE], 1)]
        possible = replace(self.possible, rules=learnt_rules(*self._asked()))
        size = max(len(self._captured()) // GROWTH, LEAST_BATCH)
        size = min(size, MOST_BATCH, self.budget - len(self.store.answers))
        drawn = possible.draw(max(size // RANDOM, 1), seed + 1000)
        planned = self._most_settling(possible.draw(POOL, seed), size - len(drawn))
        return [("random", drawn, 0), ("planned", planned, 0)]

    def _most_settling(self, pool: pd.DataFrame, n: int) -> pd.DataFrame:
        """The ``n`` layers of a pool whose captures would decide most between laws. Sizes that only
        captures show (``coefficient_bytes``) are estimated from the captures so far.
        """
        assert self.laws is not None
        if n < 1:
            return pool.iloc[:0]
        known = self.laws.parameters
        seen = known[[name for name in known if name not in pool]]
        # sizes and counts are roughly products of powers of the parameters, so their logarithms are
        # fitted as sums of the parameters' logarithms
        layers, asked = _log(known[[*pool]]), _log(pool)
        layers = np.c_[layers, np.ones(len(layers))]
        asked = np.c_[asked, np.ones(len(asked))]
        usual = np.exp(asked @ np.linalg.lstsq(layers, _log(seen))[0]) - 1
        usual = np.clip(np.rint(usual), seen.min().to_numpy(), BEYOND * seen.max().to_numpy())
        full = pool.assign(**dict(zip(seen, usual.T, strict=True)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            chosen = self.laws.next_captures(n, candidates=full[list(known.columns)])
        return pool.loc[chosen.index]

    def _judge(
        self, laws: Laws, number: int, new: list[Kept], learning: float, capturing: float
    ) -> str:
        """Compare the captures of a batch with the laws' predictions for them, record the result,
        and return it as a sentence.
        """
        width = laws.words.shape[1]
        numbers = {answer.number for answer in new}
        kept = []
        for answer in self._rows():
            if answer.number in numbers and len(answer.row) == width:
                kept.append(answer)
        every = self._score(laws, kept)
        drawn = self._score(laws, [answer for answer in kept if answer.reason == "random"])
        row: dict[str, Any] = {"batch": number, "captures": len({one.number for one in kept})}
        row |= {"cells": every.cells, "claimed": every.claimed, "wrong": every.wrong}
        row |= {f"drawn_{name}": getattr(drawn, name) for name in ("cells", "claimed", "wrong")}
        row |= {"share": every.share, "drawn_share": drawn.share}
        self.batches.append(row | {"capturing": capturing, "learning": learning})
        for place, word, bits, got, expected in every.mistakes:
            self.surprises.append(
                {
                    "batch": number,
                    "layer": kept[place].number,
                    "word": word,
                    "bits": f"{bits:#010x}",
                    "predicted": f"{got:#010x}",
                    "captured": f"{expected:#010x}",
                }
            )
        if not kept:
            return f"batch {number}: no capture"
        return f"batch {number}: {every}"

    def _score(self, laws: Laws, kept: list[Kept]) -> Score:
        if not kept:
            return Score(0, 0, 0, pd.DataFrame())
        frame, words = self._frame(kept), np.stack([answer.row for answer in kept])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return laws.score(words, frame)

    # ---- the answers so far, and the laws made from them ----

    def _captured(self) -> list[Kept]:
        """The answers that have as many words as the first answer with words."""
        rows = self._rows()
        return [kept for kept in rows if len(kept.row) == len(rows[0].row)]

    def _rows(self) -> list[Kept]:
        """The answers that have words. In an exploration of a role, each job of the role gives one:
        the answer with the words of that job and, as observed sizes, its place in a run of such
        jobs.
        """
        with_words = [kept for kept in self.store.answers if kept.words is not None]
        if not with_words or (self.role is None and self.block is None):
            return with_words
        if self.known_rows[0] != len(with_words):
            self.known_rows = len(with_words), self._rows_of_role(with_words)
        return self.known_rows[1]

    def _rows_of_role(self, with_words: Sequence[Kept]) -> list[Kept]:
        captures = [kept.capture for kept in with_words if kept.capture is not None]
        # more captures may change the name of a role: then ``chosen`` raises an error that says so
        known = roles(captures)
        number = known.number(known.chosen(self.role, self.block))
        mine = np.flatnonzero(known.of == number)
        # after the laws had the place in a run as a parameter, every later row has it
        self.runs = self.runs or int(known.counts[mine].max()) > 1
        places = known.runs(mine)
        rows = []
        for row, job in enumerate(mine):
            capture = int(known.capture[job])
            kept = with_words[capture]
            observed = dict(kept.observed)
            if self.runs:
                for name, column in places.items():
                    observed[name] = float(column[row])
            words = captures[capture].jobs[known.task[job]].words
            rows.append(replace(kept, words=words, observed=observed))
        return rows

    def _looked_at(self) -> str:
        """Text: how many jobs of how many the rows are; "" if they are all jobs."""
        with_words = [kept for kept in self.store.answers if kept.words is not None]
        every = 0
        kind = "job"
        label = self.role or self.block or ""
        for kept in with_words:
            jobs = kept.jobs or JobsOf(1, "", 1)
            every += jobs.jobs
            if not (self.role or self.block):
                label = label or jobs.block
                if jobs.alike > 1:
                    kind = "first job"
        rows = len(self._captured())
        if rows == every:
            return ""
        of = f"{plural(every, 'job')} of {plural(len(with_words), 'capture')}"
        return f"{plural(rows, kind)} {label} of {of}"

    def _asked(self) -> tuple[pd.DataFrame, Array]:
        """Return the parameters of every layer that was asked for, and a mask of the layers that
        gave no capture, because they were refused, failed or hung.
        """
        frame = pd.DataFrame([kept.parameters for kept in self.store.answers])
        return frame, np.array([kept.outcome != "captured" for kept in self.store.answers])

    def _frame(self, kept: Sequence[Kept]) -> pd.DataFrame:
        """The parameters and observed sizes of the answers ``kept``, one row each. Columns are the
        names that every capture of the exploration has.
        """
        frame = pd.DataFrame([answer.parameters | answer.observed for answer in kept])
        names = self._names()
        return frame[[name for name in frame.columns if name in names]].fillna(0)

    def _names(self) -> set[str]:
        """The names of parameters and observed sizes that every capture has."""
        named = [{*answer.parameters, *answer.observed} for answer in self._captured()]
        if named:
            return set.intersection(*named)
        return set()

    def _nuisance(self) -> Array:
        """A mask ``(W,) uint32`` of the bits that differ between two captures of the same layer
        with other weights.
        """
        captured = self._captured()
        mask = np.zeros(len(captured[0].row), np.uint32)
        first: dict[tuple[tuple[str, float], ...], Kept] = {}
        again = []
        for kept in captured:
            if kept.reason == "again":
                again.append(kept)
            else:
                first[_layer_of(kept)] = kept
        for kept in again:
            other = first.get(_layer_of(kept))
            if other is not None and kept.observed == other.observed:
                mask |= kept.row ^ other.row
        return mask

    def _learn(self, quick: bool = False) -> None:
        """Search for laws. A ``quick`` search keeps the laws of the batch before that the new
        captures confirm, and searches only for laws of bits that have none.
        """
        captured = self._captured()
        self._say(f"learning from {len(captured)} captures")
        words, frame = np.stack([kept.row for kept in captured]), self._frame(captured)
        if len(captured) < 2 or (words == words[0]).all() or (frame == frame.iloc[0]).all().all():
            return
        earlier = None
        if quick:
            earlier = self.earlier
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            found = find_laws(words, frame, nuisance=self._nuisance(), earlier=earlier)
        self.laws = replace(found, looked_at=self._looked_at())
        if not quick:
            self.searched = len(captured)

    def _settled(self) -> bool:
        """True if, in the last two batches, the laws claimed every varying bit and every claim was
        right."""
        last = self.batches[-2:]
        right = [row["cells"] == row["claimed"] > 0 == row["wrong"] for row in last]
        return len(last) == 2 and all(right)

    def _explored(self, stopped: bool) -> Explored:
        captured = self._captured()
        sweep = None
        if captured:
            record = self.source.record
            provenance = "compiler"
            if record.get("source") == "lower":
                provenance = "simulated"
            sweep = Sweep(
                np.stack([kept.row for kept in captured]),
                self._frame(captured),
                name="explored",
                provenance=provenance,
                source=str(record.get("command") or record.get("target") or ""),
                tool=str(record.get("version") or "npulab explore"),
                looked_at=self._looked_at(),
            )
        lost = []
        for kept in self.store.answers:
            if kept.outcome != "captured":
                row = {"layer": kept.number, "outcome": kept.outcome, "text": kept.text}
                lost.append(row | kept.parameters)
        rules: tuple[Rule, ...] = ()
        if self.store.answers:
            rules = learnt_rules(*self._asked())
        return Explored(
            self.laws,
            sweep,
            pd.DataFrame(self.batches),
            pd.DataFrame(self.surprises),
            pd.DataFrame(lost),
            rules,
            stopped,
        )


def _layer_of(kept: Kept) -> tuple[tuple[str, float], ...]:
    """The parameters of an answer's layer, and the place of its job in a run if it has one."""
    place = {name: kept.observed[name] for name in (INDEX, COUNT) if name in kept.observed}
    return tuple(sorted({**kept.parameters, **place}.items()))


def _log(frame: pd.DataFrame) -> Array:
    """log(abs(x) + 1) of each number x of a table."""
    return np.log(np.abs(frame.to_numpy(float)) + 1)
