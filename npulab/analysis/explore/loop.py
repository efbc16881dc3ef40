"""Plan, predict, capture, learn: the loop between a source and the laws of its words."""

from __future__ import annotations

import html
import os
import re
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Event
from typing import Any

import numpy as np

from npulab.analysis.explore.space import Possible, Rule, learnt_rules
from npulab.analysis.explore.storing import Kept, Store
from npulab.analysis.laws.found import Laws, find_laws
from npulab.analysis.laws.planning import plan_sweep
from npulab.analysis.laws.score import Score
from npulab.captures.layers import complete_ranges
from npulab.captures.sources import Source, ask_all
from npulab.captures.sweep import Sweep
from npulab.support.late import pd
from npulab.support.refuse import need, shortly
from npulab.support.text import plural

FIRST = 24  # layers of the first sweep
TWICE = 3  # of them asked again with other weights
LEAST_BATCH, MOST_BATCH = 8, 48
GROWTH = 3  # a batch is a third of what is captured, so that learning stays a part of the time
# times the captures of the last whole search: then all laws are looked for anew, and at the end
WHOLE = 2
RANDOM = 4  # one layer in four is drawn, not planned
POOL = 400  # layers that a batch is planned from
BEYOND = 4  # what is observed of them is at most so many times the most that was captured
MOST_REASONS = 3  # why layers gave no capture
NUMBER = re.compile(r"0x[0-9a-f]+|\d+(?:\.\d+)?(?:e[+-]?\d+)?")
BRACKETS = re.compile(r"\([^()]*\)")
Progress = Callable[["Step"], None]


@dataclass(frozen=True)
class Step:
    """Where an exploration is: layers asked, of how many, what it does or the last batch's score in
    words, and what is known after a batch."""

    asked: int
    budget: int
    text: str
    found: Explored | None = None


@dataclass(frozen=True)
class Reason:
    """Why layers gave no capture: how many, the outcome, what the source said of the first of
    them.
    """

    layers: int
    outcome: str
    text: str

    def __str__(self) -> str:
        said = ", and the source said nothing"
        if self.text:
            said = f": {self.text}"
        return f"{plural(self.layers, 'layer')} {self.outcome}{said}"


def reasons_of(outcomes: Iterable[tuple[str, str]]) -> tuple[Reason, ...]:
    """The most frequent reasons among (outcome, text); texts that differ in numbers alone, or in
    what is in brackets, as a layer's parameters, are one.

    >>> print(*reasons_of([("refused", "w 9 is too large"), ("hang", ""), ("refused", "w 12 is too large")]), sep="; ")
    2 layers refused: w 9 is too large; 1 layer hang, and the source said nothing
    """
    found: dict[tuple[str, str], list[str]] = {}
    for outcome, text in outcomes:
        kind = NUMBER.sub("#", BRACKETS.sub("()", text))
        found.setdefault((outcome, kind), []).append(text)
    ranked = sorted(found, key=lambda kind: -len(found[kind]))
    return tuple(
        Reason(len(found[kind]), kind[0], found[kind][0]) for kind in ranked[:MOST_REASONS]
    )


@dataclass(frozen=True, eq=False)
class Explored:
    """What an exploration found.

    ``laws`` are those of every capture (None with fewer than two), ``sweep`` the captures with
    their parameters, ``batches`` a row for each batch that was predicted before it was captured:
    batch, captures, drawn, cells, claimed, wrong, share, and of the drawn layers alone drawn_cells,
    drawn_claimed, drawn_wrong, with the seconds of capturing and of learning.  ``surprises`` has a
    row for each wrong prediction, ``outcomes`` one for each layer that was refused, failed or hung,
    ``rules`` the constraints learnt from refusals.  ``reasons`` says why most layers gave no
    capture.
    """

    laws: Laws | None
    sweep: Sweep | None
    batches: pd.DataFrame
    surprises: pd.DataFrame
    outcomes: pd.DataFrame
    rules: tuple[Rule, ...] = ()
    stopped: bool = False

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """The most frequent reasons for which layers gave no capture, at most three."""
        if self.outcomes.empty:
            return ()
        return reasons_of(zip(self.outcomes["outcome"], self.outcomes["text"], strict=True))

    def __repr__(self) -> str:
        if self.sweep is None:
            captures = 0
        else:
            captures = len(self.sweep.words)
        last = ""
        if len(self.batches):
            last = f", last batch {100 * self.batches['share'].iloc[-1]:.0f} % right"
        if self.stopped:
            stopped = ", stopped"
        else:
            stopped = ""
        why = "".join(f"; {reason}" for reason in self.reasons)
        return (
            f"Explored({captures} captures, {len(self.outcomes)} without one{last}, "
            f"{len(self.surprises)} surprises"
            f"{stopped}{why})"
        )

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
    seed: int = 0,
    workers: int = 1,
    progress: Progress | None = None,
    stop: Event | None = None,
) -> Explored:
    """Find the laws of a source's words: a first sweep, then plan, predict, capture, learn, until
    nothing is open or ``budget`` layers were asked.

    ``ranges`` are those of ``npulab.captures.layers``; ``constraints`` and ``derived`` as
    ``plan_sweep`` has them.  Each batch is predicted by laws that were not made from it; one layer
    in four is drawn at random, the others are those whose capture would settle most.  Three layers
    are asked twice with other weights: bits that differ are not functions of the parameters.
    ``store`` is a folder that keeps every answer at once; the next call with it goes on.  An
    interrupt, or ``stop``, ends it with what is known.  Raises ValueError as ``plan_sweep``, and
    for a store of another exploration.
    """
    need_source(source)
    need("explore: budget", budget, int, "is a whole number of layers")
    if budget < 2:
        raise ValueError(f"budget: got {budget}, allowed is at least 2 layers")
    run = _Run(
        source,
        Possible(complete_ranges(ranges or {}), tuple(constraints), derived),
        budget,
        seed,
        workers,
        Store(
            store,
            {
                "source": source.record,
                "ranges": {
                    name: list(value) if isinstance(value, tuple | list) else value
                    for name, value in (ranges or {}).items()
                },
                "seed": seed,
            },
        ),
        progress or (lambda step: None),
        stop or Event(),
    )
    return run.explore()


def need_source(source: object) -> None:
    """Raise TypeError for what compiles no layers."""
    if not callable(source) or not hasattr(source, "record"):
        raise TypeError(
            f"explore: source: got {shortly(source)}, allowed is a source, as "
            "npulab.Compiler(command) or "
            "npulab.captures.sources.Lowered(target) make"
        )


class _Run:
    """One exploration as it goes; everything it knows follows from the answers in its store."""

    def __init__(
        self,
        source: Source,
        possible: Possible,
        budget: int,
        seed: int,
        workers: int,
        store: Store,
        progress: Progress,
        stop: Event,
    ) -> None:
        self.source, self.possible, self.budget, self.seed = source, possible, budget, seed
        self.workers, self.store, self.progress, self.stop = workers, store, progress, stop
        self.laws: Laws | None = None
        self.earlier: Laws | None = None  # what the next laws are made from
        self.searched = 0  # captures of the last whole search
        self.batches: list[dict[str, Any]] = []
        self.surprises: list[dict[str, Any]] = []

    def explore(self) -> Explored:
        stopped = False
        try:
            while (
                len(self.store.answers) < self.budget
                and not self.stop.is_set()
                and not self._settled()
            ):
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
            for first in range(0, len(rows), max(self.workers, 1)):
                if self.stop.is_set():
                    break
                part = rows[first : first + max(self.workers, 1)]
                for row, answer in zip(
                    part, ask_all(self.source, part, seed, self.workers), strict=True
                ):
                    self.store.add(number, reason, seed, row, answer)
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
        """(why, layers, seed of the weights) of a batch."""
        seed = self.seed + number
        if self.laws is None:
            layers = plan_sweep(
                candidates=self.possible.draw(POOL, seed), n=min(FIRST, self.budget), seed=seed
            )
            layers = layers.reset_index(drop=True)
            return [("first", layers, 0), ("again", layers.iloc[:TWICE], 1)]
        possible = replace(self.possible, rules=learnt_rules(*self._asked()))
        size = min(
            max(len(self._captured()) // GROWTH, LEAST_BATCH),
            MOST_BATCH,
            self.budget - len(self.store.answers),
        )
        drawn = possible.draw(max(size // RANDOM, 1), seed + 1000)
        planned = self._most_settling(possible.draw(POOL, seed), size - len(drawn))
        return [("random", drawn, 0), ("planned", planned, 0)]

    def _most_settling(self, pool: pd.DataFrame, n: int) -> pd.DataFrame:
        """The layers of a pool whose capture would settle most; what would be observed is told from
        the captures."""
        assert self.laws is not None
        if n < 1:
            return pool.iloc[:0]
        known = self.laws.parameters
        seen = known[[name for name in known if name not in pool]]
        # sizes and counts are products of powers of what they follow from, or nearly
        layers, asked = (
            np.c_[np.log(np.abs(frame[[*pool]].to_numpy(float)) + 1), np.ones(len(frame))]
            for frame in (known, pool)
        )
        usual = (
            np.exp(asked @ np.linalg.lstsq(layers, np.log(np.abs(seen.to_numpy(float)) + 1))[0]) - 1
        )
        usual = np.clip(np.rint(usual), seen.min().to_numpy(), BEYOND * seen.max().to_numpy())
        full = pool.assign(**dict(zip(seen, usual.T, strict=True)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            chosen = self.laws.next_captures(n, candidates=full[list(known.columns)])
        return pool.loc[chosen.index]

    def _judge(
        self, laws: Laws, number: int, new: list[Kept], learning: float, capturing: float
    ) -> str:
        """Hold a batch against what the laws said of it before."""
        kept = [
            one for one in new if one.words is not None and len(one.words) == laws.words.shape[1]
        ]
        row: dict[str, Any] = {"batch": number, "captures": len(kept)}
        every, drawn = (
            self._score(laws, kept),
            self._score(laws, [one for one in kept if one.reason == "random"]),
        )
        for prefix, score in (("", every), ("drawn_", drawn)):
            row |= {
                f"{prefix}{name}": getattr(score, name) if score else 0
                for name in ("cells", "claimed", "wrong")
            }
        row |= {
            "share": every.share if every else 0.0,
            "drawn_share": drawn.share if drawn else 0.0,
            "capturing": capturing,
            "learning": learning,
        }
        self.batches.append(row)
        for place, word, bits, got, expected in every.mistakes if every else ():
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
        return f"batch {number}: {every or 'no capture'}"

    def _score(self, laws: Laws, kept: list[Kept]) -> Score | None:
        if not kept:
            return None
        frame = self._frame(kept)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return laws.score(np.stack([one.row for one in kept]), frame)

    # ---- what is known ----

    def _captured(self) -> list[Kept]:
        """The answers with words, as many as the first one has."""
        with_words = [kept for kept in self.store.answers if kept.words is not None]
        return [kept for kept in with_words if len(kept.row) == len(with_words[0].row)]

    def _asked(self) -> tuple[pd.DataFrame, np.ndarray]:
        """Every layer that was asked for, and whether it gave no capture: refused, or the source
        failed or hung."""
        frame = pd.DataFrame([kept.parameters for kept in self.store.answers])
        return frame, np.array([kept.outcome != "captured" for kept in self.store.answers])

    def _frame(self, kept: Sequence[Kept]) -> pd.DataFrame:
        """The parameters of captures, with what follows and what was observed in all of them."""
        frame = pd.DataFrame([{**one.parameters, **one.observed} for one in kept])
        names = self._names()
        return frame[[name for name in frame.columns if name in names]].fillna(0)

    def _names(self) -> set[str]:
        """The parameters that every capture has."""
        named = [{*one.parameters, *one.observed} for one in self._captured()]
        if named:
            return set.intersection(*named)
        return set()

    def _nuisance(self) -> np.ndarray:
        """Bits that differ between captures of the same layer with other weights."""
        captured = self._captured()
        mask = np.zeros(len(captured[0].row), np.uint32)
        first = {
            tuple(sorted(kept.parameters.items())): kept
            for kept in captured
            if kept.reason != "again"
        }
        for kept in captured:
            other = first.get(tuple(sorted(kept.parameters.items())))
            if kept.reason == "again" and other is not None and kept.observed == other.observed:
                mask |= kept.row ^ other.row
        return mask

    def _learn(self, quick: bool = False) -> None:
        """Look for laws; a ``quick`` search keeps those that new captures prove."""
        captured = self._captured()
        self._say(f"learning from {len(captured)} captures")
        words, frame = np.stack([kept.row for kept in captured]), self._frame(captured)
        if len(captured) < 2 or (words == words[0]).all() or (frame == frame.iloc[0]).all().all():
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            self.laws = find_laws(
                words, frame, nuisance=self._nuisance(), earlier=self.earlier if quick else None
            )
        if not quick:
            self.searched = len(captured)

    def _settled(self) -> bool:
        """Whether the last two batches were claimed whole and right."""
        last = self.batches[-2:]
        return len(last) == 2 and all(
            row["cells"] == row["claimed"] > 0 == row["wrong"] for row in last
        )

    def _explored(self, stopped: bool) -> Explored:
        captured = self._captured()
        sweep = None
        if captured:
            record = self.source.record
            sweep = Sweep(
                np.stack([kept.row for kept in captured]),
                self._frame(captured),
                name="explored",
                provenance="simulated" if record.get("source") == "lower" else "compiler",
                source=str(record.get("command") or record.get("target") or ""),
                tool=str(record.get("version") or "npulab explore"),
            )
        lost = [
            {"layer": kept.number, "outcome": kept.outcome, "text": kept.text, **kept.parameters}
            for kept in self.store.answers
            if kept.outcome != "captured"
        ]
        rules = learnt_rules(*self._asked()) if self.store.answers else ()
        return Explored(
            self.laws,
            sweep,
            pd.DataFrame(self.batches),
            pd.DataFrame(self.surprises),
            pd.DataFrame(lost),
            rules,
            stopped,
        )
