"""Which of n items break it: Bayesian group testing over every simple explanation.

Each trial that contradicts an explanation (see ``kinds``) makes it less probable; the next trial
changes the set of items whose outcome is least certain. Nothing here knows what an item is.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy import ndarray as Array

from npulab.analysis.bisect.couplings import Couplings
from npulab.analysis.bisect.kinds import (
    LISTED,
    Cells,
    Ends,
    Groups,
    Kind,
    Level,
    Listed,
    Many,
    Trials,
    join,
    pairs,
    size,
)

# How probable each kind (shape, dual) is before the first trial. A single item at 0.46 costs 1.1
# bits more than a search that knows that it is a single item.
PRIOR = {
    ("one", False): 0.46,
    ("two", False): 0.18,
    ("two", True): 0.17,
    ("three", False): 0.07,
    ("three", True): 0.03,
    ("mixed", False): 0.03,
    ("mixed", True): 0.005,
}
MANY = {False: 0.02, True: 0.02}
# Explanations of many items are slow to follow, so they join only when those of one or two items
# are less probable than this.
WAKE = 0.5
# A device that is said never to err is allowed this flake rate: a device that errs once must not
# rule the truth out.
NEVER = 5e-4
# Flake rates and their priors if nobody knows the rate: most devices hardly err.
FLAKES = {5e-4: 0.4, 0.005: 0.12, 0.01: 0.12, 0.02: 0.12, 0.05: 0.12, 0.1: 0.07, 0.2: 0.05}
# Levels with a smaller share of the probability are dropped: together they change no answer.
NEGLIGIBLE = 1e-6
# Errors do not explain a number of contradictions that is less probable than this. It is small
# because it is looked at after every trial, not once.
UNEXPLAINED = 1e-4
# Explanations that stand for all when a question is weighed: more are slower, fewer are coarser.
SAMPLE = 900
# Levels that weigh less than this, or than a hundredth of what is still open, do not change the
# question.
UNSEEN = 1e-3
# Random sets that a question starts from, each with one of these shares of changed items.
CANDIDATES = 24
DENSITIES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.5, 0.6, 0.7, 0.8, 0.9)
CLOSE = 0.01  # bits below the most that a trial can say: a better set is not worth the time
STEPS = 12  # groups that a set is bettered by, at most: limits the time of a question
# Decimals of a bit. Rounded, equally good sets stay equal on every machine, in whatever order it
# adds, and the first of them is asked everywhere.
DIGITS = 9
RISE = 1e-9  # a step must gain more than the rounding
# Bits added to a set that a likely explanation names, so that it is seen to happen in the end.
CONFIRM = 0.02
HEAVIEST = 3  # likely explanations, and groups of each, that are tried as they are
SILENT = 1e-5  # bits: a trial that says less is not worth a run
HANG_COST = 10.0  # runs that a hang costs: a device that hung is reset
HANG_SAYS = 0.2  # share of what a hang says of couplings that counts as an answer to the question
CERTAIN = 0.95  # a hang more probable than this is not asked for
# A question that keeps together what belongs together is good enough with more than ENOUGH bits
# and a smaller chance of a hang than FEARED.
ENOUGH = 0.4
FEARED = 0.2
# Over more items the pairs are not even counted: the table would exceed ``LISTED`` anyway.
TABLE_ITEMS = 2000


@dataclass(frozen=True)
class Suspicion:
    """One explanation and how probable it is: the job fails if all items of a group are changed.

    Without a group nothing fails; with an empty group everything does.

    >>> Suspicion(((3,), (5, 7)), 0.9).items
    (3, 5, 7)
    """

    groups: Groups
    probability: float

    @property
    def items(self) -> tuple[int, ...]:
        return tuple(sorted(set().union(*self.groups)))


class Question(NamedTuple):
    """A set of items to change ``(n,) bool``: the probabilities of a failure and of a hang, and
    how many bits the outcome says."""

    subset: Array
    fails: float
    bits: float
    hangs: float = 0.0


class Suspects:
    """The explanations over n items, weighed by the trials so far, and the set to try next.

    ``flake_rate`` is how often an outcome is wrong; None means that it is not known, and then it
    is inferred too. The questions depend on ``seed`` and the trials alone. Raises ValueError
    for no items or a rate outside 0 to 0.5.

    >>> suspects = Suspects(8, seed=1)
    >>> while suspects.top(1)[0].probability < 0.99:
    ...     subset = suspects.ask().subset
    ...     suspects.tell(subset, bool(subset[3] and subset[6]))
    >>> suspects.top(1)[0].groups, suspects.trials < 14
    (((3, 6),), True)
    """

    def __init__(self, n: int, flake_rate: float | None = 0.0, seed: int = 0) -> None:
        if n < 1:
            raise ValueError(f"items: got {n}, allowed is at least 1")
        rates = FLAKES
        if flake_rate is not None:
            if not isinstance(flake_rate, int | float) or not 0 <= flake_rate < 0.5:
                raise ValueError(
                    f"flake_rate: got {flake_rate!r}, allowed is 0 up to 0.5, or None where it is "
                    "not known"
                )
            rates = {max(flake_rate, NEVER): 1.0}
        self.n = n
        self.seed = seed
        self._flakes = np.array(list(rates))
        self._flake_prior = np.array(list(rates.values()))
        self.flake = float(self._flakes @ self._flake_prior)
        self.kinds: list[Kind] = [Ends()]
        for (shape, dual), prior in PRIOR.items():
            if size(shape, n) and _table_size(shape, n) <= LISTED:
                self.kinds.append(Listed(n, shape, dual, prior))
        self.history: Trials = []
        self._awake = False
        self._weigh()

    @property
    def trials(self) -> int:
        return len(self.history)

    def tell(self, subset: Array, failed: bool) -> None:
        """Take in one more trial: which items it changed ``(n,) bool``, and if it failed."""
        self.history.append((np.array(subset, bool), bool(failed)))
        for kind in self.kinds:
            kind.tell(self.history, self._log_weights)
        self._weigh()

    def ask(
        self, couplings: Couplings | None = None, tried: Collection[bytes] = ()
    ) -> Question | None:
        """Return the set whose outcome says most for what it costs; None if no set says anything.

        Sets in ``tried`` (their bytes) are not asked for: a device that never errs would say the
        same again.
        """
        if couplings is not None and not couplings.known:
            couplings = None
        hangs = 0
        if couplings is not None:
            hangs = couplings.hangs
        rng = np.random.default_rng((self.seed, self.trials, hangs))
        search = _Search(self._sample(rng), self.flake, couplings, tried, rng)
        items = np.eye(self.n, dtype=bool)
        if couplings is None:
            found = [search.best(items, items)]
        else:
            found = self._ask_coupled(search, couplings, items)
        best: Question | None = None
        most = -math.inf
        for worth, question in found:
            if question.bits >= SILENT and question.hangs < CERTAIN and worth > most:
                most, best = worth, question
        return best

    def _ask_coupled(
        self, search: _Search, couplings: Couplings, items: Array
    ) -> list[tuple[float, Question]]:
        """Return what to ask if items belong together: these are moved together or, if that says
        little, item by item."""
        kept = couplings.tied(units=True)
        together = np.zeros((len(kept), self.n), bool)
        for row, group in zip(together, kept, strict=True):
            row[group] = True
        found = []
        good = False
        drawn = items
        if kept:
            drawn = together
            found.append(search.best(together, together))
            question = found[0][1]
            good = question.bits > ENOUGH and question.hangs < FEARED
        if len(kept) < self.n and (couplings.hangs or not good):
            found.append(search.best(items, drawn))
        return found

    def top(self, count: int = 5) -> list[Suspicion]:
        """Return the most probable explanations, best first."""
        rng = np.random.default_rng(self.seed)
        best = sorted(
            self._cells, key=lambda cell: cell[1].log_mass - math.log(cell[1].size), reverse=True
        )
        summed: dict[Groups, float] = {}
        for kind, level in best[: count + 2]:
            found = kind.draw(level.level, 4 * count, math.exp(level.log_mass), rng)
            # if only some of the level were drawn, their weights stand for the whole level
            share = min(1.0, len(found.weights) / level.size)
            for row, weight in enumerate(found.weights):
                groups = found.groups(row)
                summed[groups] = summed.get(groups, 0.0) + float(weight) * share
        ordered = sorted(summed.items(), key=lambda pair: (-pair[1], pair[0]))
        return [Suspicion(groups, min(weight, 1.0)) for groups, weight in ordered[:count]]

    @property
    def bits(self) -> float:
        """The entropy of the explanations: how much is not known yet, in bits."""
        total = 0.0
        for _, level in self._cells:
            open_bits = math.log2(level.size) - level.log_mass / math.log(2)
            total += math.exp(level.log_mass) * open_bits
        return max(0.0, total)

    @property
    def explained(self) -> bool:
        """True if errors explain how often the best explanation is contradicted."""
        least = min(level.level for _, level in self._cells)
        if len(self._flakes) == 1 and self.flake <= NEVER:
            return least == 0
        fewer = 0.0
        for m in range(least):
            ways = math.comb(self.trials, m)
            fewer += ways * self.flake**m * (1 - self.flake) ** (self.trials - m)
        return 1 - fewer > UNEXPLAINED

    def _log_shares(self, level: Array, trials: int) -> Array:
        """Return the log probability of so many contradictions in so many trials, ``(levels,
        flake rates)``."""
        wrong = level[:, None]
        errors: Array = wrong * np.log(self._flakes)
        return errors + (trials - wrong) * np.log1p(-self._flakes) + np.log(self._flake_prior)

    def _log_weights(self, trials: int) -> Array:
        """Return the log weight of an explanation by its contradictions, ``(trials + 1,)``."""
        return np.logaddexp.reduce(self._log_shares(np.arange(trials + 1), trials), axis=1)

    def _weigh(self) -> None:
        """Weigh every level anew, and drop what is negligible."""
        weights = self._log_weights(self.trials)
        negligible = math.log(NEGLIGIBLE)
        cells: list[tuple[Kind, Level]] = []
        heaviest = -math.inf
        for kind in self.kinds:
            for level in kind.levels(weights, heaviest + negligible):
                cells.append((kind, level))
            heaviest = max([heaviest, *(level.log_mass for _, level in cells)])
        total = float(np.logaddexp.reduce([level.log_mass for _, level in cells]))
        self._cells: list[tuple[Kind, Level]] = []
        few = 0.0
        for kind, level in cells:
            log_mass = level.log_mass - total
            if log_mass > negligible:
                self._cells.append((kind, level._replace(log_mass=log_mass)))
                few += kind.few * math.exp(log_mass)
        for kind in self.kinds:
            kind.thin(weights, total + negligible)
        if len(self._flakes) > 1:
            self.flake = self._inferred_flake()
        if not self._awake and (few < WAKE or _table_size("three", self.n) > LISTED):
            self._awake = True
            self._wake()

    def _inferred_flake(self) -> float:
        """Return the mean flake rate over the explanations that are left."""
        levels = np.array([level.level for _, level in self._cells])
        logs = self._log_shares(levels, self.trials)
        shares = np.exp(logs - np.logaddexp.reduce(logs, axis=1)[:, None])
        mass = np.exp([level.log_mass for _, level in self._cells])
        return float(mass @ shares @ self._flakes / mass.sum())

    def _wake(self) -> None:
        """Add the explanations of more items, and count all trials so far."""
        least = 4
        if _table_size("three", self.n) > LISTED:
            least = 3  # nobody lists those of three items, so they are sampled too
        if self.n < least:
            return
        for dual, prior in MANY.items():
            many = Many(self.n, dual, least, prior, self.seed)
            for count in range(1, self.trials + 1):
                many.tell(self.history[:count], self._log_weights)
            self.kinds.append(many)
        self._weigh()

    def _sample(self, rng: np.random.Generator) -> Cells:
        """Return explanations that stand for all: from each level in proportion to its mass."""
        masses = [math.exp(level.log_mass) for _, level in self._cells]
        least = min(UNSEEN, UNSEEN * 10 * (1 - max(masses)), max(masses))
        drawn = []
        for (kind, level), mass in zip(self._cells, masses, strict=True):
            if mass >= least:
                drawn.append(kind.draw(level.level, 4 + int(SAMPLE * mass), mass, rng))
        return join(drawn)


def _table_size(shape: str, n: int) -> int:
    """Return how many entries the table has that counts a shape over n items."""
    if shape in ("three", "mixed") and n <= TABLE_ITEMS:
        return len(pairs(n)[0]) * n
    return size(shape, n)


class _Sets(NamedTuple):
    """Sets made of whole groups: which groups ``(Q, G) bool``, which items ``(Q, n) bool``, and
    how the sample sees them (``_Scorer``): ``lacks`` and ``has`` ``(H, Q)``."""

    groups: Array
    items: Array
    lacks: Array
    has: Array

    def only(self, at: int) -> _Sets:
        """Return set number ``at`` as the only one."""
        one = slice(at, at + 1)
        return _Sets(self.groups[one], self.items[one], self.lacks[:, one], self.has[:, one])


@dataclass(frozen=True)
class _Search:
    """The search for the best question: a sample of explanations, what may hang, the sets that
    were tried, and the random numbers."""

    cells: Cells
    flake: float
    couplings: Couplings | None
    tried: Collection[bytes]
    rng: np.random.Generator

    def best(self, groups: Array, drawn: Array) -> tuple[float, Question]:
        """Return the best question that changes whole ``groups`` ``(G, n) bool``, after its worth.

        Random sets of the groups ``drawn`` (each made of ``groups``) are bettered group by group.
        """
        scorer = _Scorer(self.cells, groups)
        sets, likely = self._candidates(scorer, drawn)
        worth = self._worth(scorer, sets)
        worth[:likely] += CONFIRM
        best, chosen = self._climb(scorer, sets, worth)
        fails = float(scorer.fails(chosen)[0])
        subset = chosen.items[0]
        hangs = 0.0
        if self.couplings:
            hangs = self.couplings.chance(subset)
        bits = 0.0
        if subset.tobytes() not in self.tried:
            bits = float(_outcome_bits(np.array(fails), self.flake))
        return best, Question(subset, fails, bits, hangs)

    def _candidates(self, scorer: _Scorer, drawn: Array) -> tuple[_Sets, int]:
        """Return the sets to start from: what the likely explanations name and all but that,
        which are counted, then everything, nothing and random sets."""
        groups = scorer.groups
        random = self.rng.random((CANDIDATES, len(drawn)))
        subsets = (random < self.rng.choice(DENSITIES, CANDIDATES)[:, None]) @ drawn
        chosen = (groups[:, None] & subsets).any(axis=2).T
        likely = []
        for row in np.argsort(-self.cells.weights, kind="stable")[:HEAVIEST]:
            for group in self.cells.groups(int(row))[:HEAVIEST]:
                likely.append(groups[:, list(group)].any(axis=1))
        named = np.array(likely, bool).reshape(-1, len(groups))
        ends = np.array([[True], [False]]).repeat(len(groups), axis=1)
        return scorer.sets(np.concatenate([named, ~named, ends, chosen])), 2 * len(named)

    def _climb(self, scorer: _Scorer, sets: _Sets, worth: Array) -> tuple[float, _Sets]:
        """Return the best set that changes of one group at a time lead to, after its worth."""
        at = self._first(worth, sets.items)
        best, here = float(worth[at]), sets.only(at)
        # with couplings the worth of a set has no such limit
        enough = math.inf
        if not self.couplings:
            enough = float(_outcome_bits(np.array(0.5), self.flake)) - CLOSE
        for _ in range(STEPS):
            if best > enough:
                break
            moved = scorer.moved(here)
            worth = self._worth(scorer, moved)
            at = self._first(worth, moved.items)
            if worth[at] <= best + RISE:
                break
            best, here = float(worth[at]), moved.only(at)
        return best, here

    def _worth(self, scorer: _Scorer, sets: _Sets) -> Array:
        """Return the bits that each set says for the runs that it costs, ``(Q,)``."""
        hangs = np.array(0.0)
        if self.couplings:
            hangs = -np.expm1(-self.couplings.rates(sets.items))
        # a hang says something too, as far as the question itself does
        says = 1 - hangs + HANG_SAYS * entropy(hangs)
        gain = _outcome_bits(scorer.fails(sets), self.flake) * says / (1 + HANG_COST * hangs)
        return np.round(gain, DIGITS)

    def _first(self, worth: Array, items: Array) -> int:
        """Return the best of the sets that was not tried; sets that were tried lose their
        worth."""
        while True:
            at = int(np.argmax(worth))
            if worth[at] <= 0 or items[at].tobytes() not in self.tried:
                return at
            worth[at] = 0.0


class _Scorer:
    """How a sample of explanations sees sets of whole ``groups`` ``(G, n) bool``.

    ``lacks`` is how many needed items a set leaves out, ``has`` how many items it holds that
    suffice alone; a dual explanation counts unchanged items, so that a change of a group takes
    from its counts what it would give to those of another. There are no matrix products: they
    are so small that a BLAS with several threads would spend its time on waking them.
    """

    def __init__(self, cells: Cells, groups: Array) -> None:
        n = groups.shape[1]
        self.cells = cells
        self.groups = groups
        self.weights = cells.weights / cells.weights.sum()
        # the group of each item; items of no group, and the place n of no item, have number G
        label = np.full(n + 1, len(groups))
        grouped = groups.any(axis=0)
        label[:n][grouped] = groups.argmax(axis=0)[grouped]
        self.needs = self._count_in_groups(label[cells.needs])
        self.ones = self._count_in_groups(label[cells.ones])

    def _count_in_groups(self, labels: Array) -> Array:
        """Return how many of an explanation's items ``(H, A)`` each group holds, ``(H, G)``,
        negative for a dual one."""
        rows = np.arange(len(labels))
        turn = np.where(self.cells.dual, -1, 1).astype(np.int8)
        counts = np.zeros((len(labels), len(self.groups) + 1), np.int8)
        for column in labels.T:
            counts[rows, column] += turn
        return counts[:, :-1]

    def sets(self, groups: Array) -> _Sets:
        """Return the sets that change these groups ``(Q, G) bool``."""
        items = groups @ self.groups
        nothing = np.zeros((len(items), 1), bool)
        changed = np.concatenate([items, nothing], axis=1).T
        kept = np.concatenate([~items, nothing], axis=1).T
        dual = self.cells.dual[:, None]
        lacks = np.zeros((len(self.weights), len(items)), np.int8)
        has = np.zeros_like(lacks)
        for column in self.cells.needs.T:
            lacks += np.where(dual, changed[column], kept[column])
        for column in self.cells.ones.T:
            has += np.where(dual, kept[column], changed[column])
        return _Sets(groups, items, lacks + self.cells.never[:, None], has)

    def moved(self, of: _Sets) -> _Sets:
        """Return the G sets that differ from one set in one group."""
        step = np.where(of.groups[0], -1, 1).astype(np.int8)
        return _Sets(
            of.groups ^ np.eye(len(self.groups), dtype=bool),
            of.items ^ self.groups,
            of.lacks - self.needs * step,
            of.has + self.ones * step,
        )

    def fails(self, sets: _Sets) -> Array:
        """Return the probability that each set fails, ``(Q,)``."""
        failed = ((sets.lacks == 0) | (sets.has > 0)) ^ self.cells.dual[:, None]
        return np.einsum("h,hq->q", self.weights, failed.astype(float))


def entropy(p: Array) -> Array:
    """Return the bits of a yes or no of probability p, elementwise."""
    p = np.clip(p, 1e-12, 1 - 1e-12)
    return -(p * np.log2(p) + (1 - p) * np.log2(1 - p))


def _outcome_bits(fails: Array, flake: float) -> Array:
    """Return the bits that an outcome says of the explanations if a failure has this
    probability."""
    return entropy(fails * (1 - 2 * flake) + flake) - entropy(np.array(flake))
