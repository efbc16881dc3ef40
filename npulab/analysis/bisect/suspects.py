"""Which of n items break a job: Bayesian group testing over every simple explanation.

Each trial that contradicts an explanation (see ``kinds``) makes it less probable; the next trial
changes the set of items whose outcome is least certain. This module does not know what an item is.
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

# The probability of each kind (shape, dual) before the first trial. With 0.46, a search for a
# single item costs 1.1 bits more than one that knows that it is a single item.
PRIOR = {
    ("one", False): 0.46,
    ("two", False): 0.18,
    ("two", True): 0.17,
    ("three", False): 0.07,
    ("three", True): 0.03,
    ("mixed", False): 0.03,
    ("mixed", True): 0.005,
}
# The probability, before the first trial, that many items fail together (False), or that each of
# many items fails alone (True, the dual).
MANY = {False: 0.02, True: 0.02}
# Explanations of many items take time, so they are added only when the explanations of one or two
# items together are less probable than this.
WAKE = 0.5
# The lowest flake rate that is assumed, even if a device is said never to err: one wrong outcome
# must not rule the truth out.
NEVER = 5e-4
# Flake rates and their priors if nobody knows the rate: most devices hardly err.
FLAKES = {5e-4: 0.4, 0.005: 0.12, 0.01: 0.12, 0.02: 0.12, 0.05: 0.12, 0.1: 0.07, 0.2: 0.05}
# Levels with a smaller share of the probability are dropped: together they change no answer.
NEGLIGIBLE = 1e-6
# Errors do not explain a number of contradictions that is less probable than this. The limit is
# small because the number is tested after every trial, not once.
UNEXPLAINED = 1e-4
# A question is weighed by a sample of this many explanations: more take longer, fewer are less
# exact.
SAMPLE = 900
# The sample leaves out levels with a lower probability than this, and levels below a hundredth of
# the probability that the most probable level is wrong.
UNSEEN = 1e-3
# The search for a question begins with CANDIDATES random sets; each changes a share of the items
# that is one of DENSITIES.
CANDIDATES = 24
DENSITIES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.5, 0.6, 0.7, 0.8, 0.9)
# A set is not improved if its worth is this close, in bits, to the highest possible worth.
CLOSE = 0.01
# A set is improved in at most this many steps, to limit the time for a question.
STEPS = 12
# The worth of a set in bits is rounded to this many decimals: then sets of one worth are equal in
# whatever order a machine adds, and every machine asks for the first of them.
DIGITS = 9
# A step that improves a set must gain more bits than this, the error of rounding.
RISE = 1e-9
# Bits that are added to the worth of a set that a likely explanation names, so that this set is
# tried in the end.
CONFIRM = 0.02
# The items of groups of this many most likely explanations, and at most this many groups of each,
# are tried as sets.
HEAVIEST = 3
# A set whose outcome gives fewer bits is not asked for.
SILENT = 1e-5
# A hang costs as much as this many runs, since the device is reset.
HANG_COST = 10.0
# A hang gives information, too: its entropy counts with this factor in the worth of a question.
HANG_SAYS = 0.2
# A set that hangs with a higher probability is not asked for.
CERTAIN = 0.95
# A question that keeps coupled items together is good enough if it gives more than ENOUGH bits and
# its probability of a hang is below FEARED.
ENOUGH = 0.4
FEARED = 0.2
# With more items than this, a table of all pairs and third items is larger than ``LISTED``, so its
# size is not computed.
TABLE_ITEMS = 2000


@dataclass(frozen=True)
class Suspicion:
    """One explanation and its probability: the job fails if all items of at least one of ``groups``
    are changed.

    If there are no groups, no set fails; if a group is empty, every set fails.

    >>> Suspicion(((3,), (5, 7)), 0.9).items
    (3, 5, 7)
    """

    groups: Groups
    probability: float

    @property
    def items(self) -> tuple[int, ...]:
        return tuple(sorted(set().union(*self.groups)))


class Question(NamedTuple):
    """A set of items to change ``(n,) bool``, the probabilities that it fails and that it hangs,
    and how many bits of information the outcome gives.
    """

    subset: Array
    fails: float
    bits: float
    hangs: float = 0.0


class Suspects:
    """The explanations over n items, weighed by the trials so far, and the next set to try.

    ``flake_rate`` is the share of wrong outcomes; None means that it is not known and is inferred
    from the trials. The questions depend only on ``seed`` and the trials. Raises ValueError if n is
    0, or for a rate outside of 0 to below 0.5.

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
                    f"flake_rate: got {flake_rate!r}, allowed is a number from 0 to below 0.5, "
                    "or None if it is not known"
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
        """Return the set whose outcome gives most information for its cost; None if no set gives
        any.

        Sets in ``tried`` (as bytes) are not asked for: if the device never errs, a second trial
        gives the same outcome.
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
        """Return pairs (worth, question) for items of which some hang unless they are changed
        together.

        The first question keeps coupled items together. A second one may change any item; it is
        left out if no trial hung and the first gives enough information.
        """
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
            # the weights of the drawn explanations add up to that of the whole level, so each is
            # scaled down
            share = min(1.0, len(found.weights) / level.size)
            for row, weight in enumerate(found.weights):
                groups = found.groups(row)
                summed[groups] = summed.get(groups, 0.0) + float(weight) * share
        ordered = sorted(summed.items(), key=lambda pair: (-pair[1], pair[0]))
        return [Suspicion(groups, min(weight, 1.0)) for groups, weight in ordered[:count]]

    @property
    def shares(self) -> Array:
        """``(n,) float``: for each item the probability that the true explanation names it, from a
        sample of the explanations.
        """
        cells = self._sample(np.random.default_rng((self.seed, self.trials)))
        named = np.zeros(self.n)
        for items in (cells.needs, cells.ones):
            rows, columns = np.nonzero((items >= 0) & ~cells.never[:, None])
            np.add.at(named, items[rows, columns], cells.weights[rows])
        return np.clip(named / cells.weights.sum(), 0, 1)

    @property
    def bits(self) -> float:
        """The entropy of the explanations in bits: how much is still unknown."""
        total = 0.0
        for _, level in self._cells:
            open_bits = math.log2(level.size) - level.log_mass / math.log(2)
            total += math.exp(level.log_mass) * open_bits
        return max(0.0, total)

    @property
    def explained(self) -> bool:
        """True if errors of the device explain the trials that contradict the best explanation."""
        least = min(level.level for _, level in self._cells)
        if len(self._flakes) == 1 and self.flake <= NEVER:
            return least == 0
        fewer = 0.0
        for m in range(least):
            ways = math.comb(self.trials, m)
            fewer += ways * self.flake**m * (1 - self.flake) ** (self.trials - m)
        return 1 - fewer > UNEXPLAINED

    def _log_shares(self, level: Array, trials: int) -> Array:
        """Return ``(levels, flake rates)``: the log probability that exactly ``level`` of the
        trials contradict the true explanation, for each level and each flake rate.
        """
        wrong = level[:, None]
        errors: Array = wrong * np.log(self._flakes)
        return errors + (trials - wrong) * np.log1p(-self._flakes) + np.log(self._flake_prior)

    def _log_weights(self, trials: int) -> Array:
        """Return the log weight of an explanation by the number of trials that contradict it,
        ``(trials + 1,)``.
        """
        return np.logaddexp.reduce(self._log_shares(np.arange(trials + 1), trials), axis=1)

    def _weigh(self) -> None:
        """Compute the weight of every level again, and drop levels that are negligible."""
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
        """Return the mean flake rate over the explanations that were not dropped."""
        levels = np.array([level.level for _, level in self._cells])
        logs = self._log_shares(levels, self.trials)
        shares = np.exp(logs - np.logaddexp.reduce(logs, axis=1)[:, None])
        mass = np.exp([level.log_mass for _, level in self._cells])
        return float(mass @ shares @ self._flakes / mass.sum())

    def _wake(self) -> None:
        """Add the explanations of more items, and take in all trials so far for them."""
        least = 4
        if _table_size("three", self.n) > LISTED:
            least = 3  # if explanations of three items are not listed, they are sampled, too
        if self.n < least:
            return
        for dual, prior in MANY.items():
            many = Many(self.n, dual, least, prior, self.seed)
            for count in range(1, self.trials + 1):
                many.tell(self.history[:count], self._log_weights)
            self.kinds.append(many)
        self._weigh()

    def _sample(self, rng: np.random.Generator) -> Cells:
        """Return a sample that represents all explanations: from each level a number in proportion
        to its probability.
        """
        masses = [math.exp(level.log_mass) for _, level in self._cells]
        least = min(UNSEEN, UNSEEN * 10 * (1 - max(masses)), max(masses))
        drawn = []
        for (kind, level), mass in zip(self._cells, masses, strict=True):
            if mass >= least:
                drawn.append(kind.draw(level.level, 4 + int(SAMPLE * mass), mass, rng))
        return join(drawn)


def _table_size(shape: str, n: int) -> int:
    """Return the number of entries of the table of one shape over n items; if the shape has no
    table, the number of its explanations.
    """
    if shape in ("three", "mixed") and n <= TABLE_ITEMS:
        return len(pairs(n)[0]) * n
    return size(shape, n)


class _Sets(NamedTuple):
    """Q sets of whole groups: ``groups (Q, G) bool`` and ``items (Q, n) bool`` of each set, and
    ``lacks (H, Q)`` and ``has (H, Q)``, the counts of ``_Scorer`` for H explanations.
    """

    groups: Array
    items: Array
    lacks: Array
    has: Array

    def only(self, at: int) -> _Sets:
        """Return only the set with the number ``at``."""
        one = slice(at, at + 1)
        return _Sets(self.groups[one], self.items[one], self.lacks[:, one], self.has[:, one])


@dataclass(frozen=True)
class _Search:
    """The search for the best question: a sample of explanations, the couplings that may hang, the
    sets that were tried, and a generator of random numbers.
    """

    cells: Cells
    flake: float
    couplings: Couplings | None
    tried: Collection[bytes]
    rng: np.random.Generator

    def best(self, groups: Array, drawn: Array) -> tuple[float, Question]:
        """Return (worth, question) of the best question that changes only whole ``groups`` ``(G, n)
        bool``.

        It begins with random sets made of the rows of ``drawn (D, n) bool``, each of which holds
        whole groups. It then improves the best of these sets group by group.
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
        """Return the sets from which the search begins, and how many of them come from likely
        explanations. The first sets are those of likely explanations: the items of a failing group,
        and all others. Then come all items, no item, and random sets.
        """
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
        """Return (worth, set). It begins with the best of the given sets and changes one group at a
        time, as long as the worth grows.
        """
        at = self._first(worth, sets.items)
        best, here = float(worth[at]), sets.only(at)
        # with couplings, the highest possible worth is not known
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
        """Return the bits that the outcome of each set gives, divided by the runs that it costs,
        ``(Q,)``.
        """
        hangs = np.array(0.0)
        if self.couplings:
            hangs = -np.expm1(-self.couplings.rates(sets.items))
        # a hang gives information, too: in proportion to the bits of the question
        says = 1 - hangs + HANG_SAYS * entropy(hangs)
        gain = _outcome_bits(scorer.fails(sets), self.flake) * says / (1 + HANG_COST * hangs)
        return np.round(gain, DIGITS)

    def _first(self, worth: Array, items: Array) -> int:
        """Return the number of the set with the highest worth that was not tried. Sets in ``worth``
        that were tried are set to 0.
        """
        while True:
            at = int(np.argmax(worth))
            if worth[at] <= 0 or items[at].tobytes() not in self.tried:
                return at
            worth[at] = 0.0


class _Scorer:
    """Counts that decide, for each explanation of a sample, whether a set of whole ``groups`` ``(G,
    n) bool`` fails.

    ``lacks`` is the number of items in ``needs`` that the set does not change, ``has`` the number
    of items in ``ones`` that it changes. A dual explanation counts unchanged items instead: if one
    more group is changed, its counts move the other way. Counts are not computed as matrix
    products: these are so small that a BLAS would spend its time on waking threads.
    """

    def __init__(self, cells: Cells, groups: Array) -> None:
        n = groups.shape[1]
        self.cells = cells
        self.groups = groups
        self.weights = cells.weights / cells.weights.sum()
        # for each item: the number of its group, or G for no group; index -1, which fills rows,
        # gives G
        label = np.full(n + 1, len(groups))
        grouped = groups.any(axis=0)
        label[:n][grouped] = groups.argmax(axis=0)[grouped]
        self.needs = self._count_in_groups(label[cells.needs])
        self.ones = self._count_in_groups(label[cells.ones])

    def _count_in_groups(self, labels: Array) -> Array:
        """Return ``(H, G)``: how many items of each explanation each group holds, negative for a
        dual explanation. ``labels (H, A)`` are the numbers of the items' groups.
        """
        rows = np.arange(len(labels))
        turn = np.where(self.cells.dual, -1, 1).astype(np.int8)
        counts = np.zeros((len(labels), len(self.groups) + 1), np.int8)
        for column in labels.T:
            counts[rows, column] += turn
        return counts[:, :-1]

    def sets(self, groups: Array) -> _Sets:
        """Return the sets that change ``groups (Q, G) bool``, with the counts ``lacks`` and ``has``
        of each explanation.
        """
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
        """Return G sets; set g differs from the set ``of`` in group g."""
        step = np.where(of.groups[0], -1, 1).astype(np.int8)
        return _Sets(
            of.groups ^ np.eye(len(self.groups), dtype=bool),
            of.items ^ self.groups,
            of.lacks - self.needs * step,
            of.has + self.ones * step,
        )

    def fails(self, sets: _Sets) -> Array:
        """Return the probability that each set fails, ``(Q,)``, over the explanations of the
        sample.
        """
        failed = ((sets.lacks == 0) | (sets.has > 0)) ^ self.cells.dual[:, None]
        return np.einsum("h,hq->q", self.weights, failed.astype(float))


def entropy(p: Array) -> Array:
    """Return the entropy, in bits, of an event of probability p, elementwise."""
    p = np.clip(p, 1e-12, 1 - 1e-12)
    return -(p * np.log2(p) + (1 - p) * np.log2(1 - p))


def _outcome_bits(fails: Array, flake: float) -> Array:
    """Return the bits of information that an outcome gives about the explanations if a failure has
    the probability ``fails``.
    """
    return entropy(fails * (1 - 2 * flake) + flake) - entropy(np.array(flake))
