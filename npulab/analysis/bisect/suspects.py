"""Which of n items break it: Bayesian group testing over every simple explanation.

Every explanation (see ``kinds``) is weighted by the trials that contradict it; the next trial is
the set of items whose outcome is least certain.  Nothing here knows what an item is.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

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
    Told,
    join,
    pairs,
    size,
)

# How probable each kind is before anything was tried: the price of not being told is 1.1 bits for a
# single item.
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
WAKE = 0.5  # explanations of many items are taken in where those of one or two are less probable
NEVER = 5e-4  # an oracle that is said never to err is allowed this much
FLAKES = {
    5e-4: 0.4,
    0.005: 0.12,
    0.01: 0.12,
    0.02: 0.12,
    0.05: 0.12,
    0.1: 0.07,
    0.2: 0.05,
}  # where it is not known
NEGLIGIBLE = 1e-6
UNEXPLAINED = (
    1e-4  # so improbable a number of contradictions is no flakiness, whenever it is looked at
)
SAMPLE = 900
UNSEEN = 1e-3  # levels that weigh less, or a hundredth of what is open, do not change what is asked
CANDIDATES = 24
DENSITIES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.5, 0.6, 0.7, 0.8, 0.9)
CLOSE = 0.01  # bits short of the most a trial can say: nothing is gained by looking further
STEPS = 12
DIGITS = 9  # of a bit: equally good sets are equal on every machine, however it adds up
CONFIRM = (
    0.02  # bits that it is worth to see a likely explanation happen: that is asked for in the end
)
SILENT = 1e-5  # bits: a trial that says no more is not worth running
HANG_COST = 10.0  # runs that a hang costs
CERTAIN = 0.95  # so sure a hang is not asked for
ENOUGH, FEARED = (
    0.4,
    0.2,
)  # bits and chance of a hang of a question that keeps together what belongs together


@dataclass(frozen=True)
class Suspicion:
    """One explanation: it fails where all items of one of ``groups`` are changed, and how probable
    that is.

    No group: nothing fails; an empty group: everything does.

    >>> Suspicion(((3,), (5, 7)), 0.9).items
    (3, 5, 7)
    """

    groups: Groups
    probability: float

    @property
    def items(self) -> tuple[int, ...]:
        return tuple(sorted({item for group in self.groups for item in group}))


class Question(NamedTuple):
    """A set of items to change ``(n,) bool``, how probable a failure is, and how many bits the
    outcome says."""

    subset: np.ndarray
    fails: float
    bits: float
    hangs: float = 0.0


class Suspects:
    """The explanations over n items, what was told, and the set to try next.

    ``flake_rate`` is how often an outcome is wrong, None where it is not known: then it is inferred
    with the rest.  Deterministic: what is asked depends on ``seed`` and the trials alone.  Raises
    ValueError for no items or a rate outside 0 to 0.5.

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
        if flake_rate is not None and not (
            isinstance(flake_rate, int | float) and 0 <= flake_rate < 0.5
        ):
            raise ValueError(
                f"flake_rate: got {flake_rate!r}, allowed is 0 up to 0.5, or None where it is not "
                "known"
            )
        self.n, self.seed = n, seed
        if flake_rate is None:
            rates = FLAKES
        else:
            rates = {max(flake_rate, NEVER): 1.0}
        self._flakes, self._flake_prior = np.array(list(rates)), np.array(list(rates.values()))
        self.flake = float(self._flakes @ self._flake_prior)
        self.kinds: list[Kind] = [
            Ends(),
            *(
                Listed(n, shape, dual, prior)
                for (shape, dual), prior in PRIOR.items()
                if size(shape, n) and _table(shape, n) <= LISTED
            ),
        ]
        self.told: Told = []
        self._awake = False
        self._weigh()

    @property
    def trials(self) -> int:
        return len(self.told)

    def tell(self, subset: np.ndarray, failed: bool) -> None:
        """One more trial: which items were changed ``(n,) bool``, and whether it failed."""
        self.told.append((np.array(subset, bool), bool(failed)))
        for kind in self.kinds:
            kind.tell(self.told, self._log_weights)
        self._weigh()

    def ask(
        self, couplings: Couplings | None = None, tried: Collection[bytes] = ()
    ) -> Question | None:
        """The set whose outcome says most for what it costs; None where no set says anything.

        Sets in ``tried`` (their bytes) are not asked for: an oracle that never errs says the same
        again.
        """
        if couplings and not couplings.known:
            couplings = None
        rng = np.random.default_rng((self.seed, self.trials, couplings.hangs if couplings else 0))
        cells, items = self._sample(rng), np.eye(self.n, dtype=bool)
        if couplings is None:
            found = [self._search(cells, items, items, None, tried, rng)]
        else:  # what belongs together is moved together or, if that says little, item by item
            kept = couplings.tied(units=True)
            together = np.array(
                [np.isin(np.arange(self.n), group) for group in kept], bool
            ).reshape(-1, self.n)
            found = []
            if kept:
                found = [self._search(cells, together, together, couplings, tried, rng)]
            plain = any(question.bits > ENOUGH and question.hangs < FEARED for _, question in found)
            if len(kept) < self.n and (couplings.hangs or not plain):
                found.append(
                    self._search(cells, items, together if kept else items, couplings, tried, rng)
                )
        worthy = [pair for pair in found if pair[1].bits >= SILENT and pair[1].hangs < CERTAIN]
        if worthy:
            return max(worthy, key=lambda pair: pair[0])[1]
        return None

    def _search(
        self,
        cells: Cells,
        groups: np.ndarray,
        drawn: np.ndarray,
        couplings: Couplings | None,
        tried: Collection[bytes],
        rng: np.random.Generator,
    ) -> tuple[float, Question]:
        """How worthy the best question is that changes whole ``groups`` ``(G, n) bool``, and the
        question.

        Random sets of the groups ``drawn`` (each made of ``groups``) are bettered group by group.
        """
        scorer = _Scorer(cells, groups)
        most = float(_bits(np.array(0.5), self.flake))

        def worth(fails: np.ndarray, splits: np.ndarray | float) -> np.ndarray:
            hangs = -np.expm1(-np.asarray(splits))
            # a hang says something too, as far as the question itself does
            gain = (
                _bits(fails, self.flake)
                * (1 - hangs + 0.2 * entropy(hangs))
                / (1 + HANG_COST * hangs)
            )
            return np.round(gain, DIGITS)

        def splits(sets: np.ndarray) -> np.ndarray | float:
            if couplings:
                return couplings.rates(sets)
            return 0.0

        def first(value: np.ndarray, sets: np.ndarray) -> int:
            """The best of the sets that was not tried."""
            while sets[at := int(np.argmax(value))].tobytes() in tried and value[at] > 0:
                value[at] = 0.0
            return at

        random = (
            rng.random((CANDIDATES, len(drawn))) < rng.choice(DENSITIES, CANDIDATES)[:, None]
        ) @ drawn
        chosen = ((groups[:, None] & random).any(axis=2)).T
        heaviest = np.argsort(-cells.weights, kind="stable")[:3]
        tops = [list(group) for row in heaviest for group in cells.groups(int(row))[:3]]
        likely = np.array([groups[:, group].any(axis=1) for group in tops], bool).reshape(
            -1, len(groups)
        )
        ends = np.array([[True], [False]]).repeat(len(groups), axis=1)
        chosen = np.concatenate([likely, ~likely, ends, chosen])
        sets = chosen @ groups
        lacks, has = scorer.counts(sets)
        value = worth(scorer.fails(lacks, has), splits(sets))
        value[: 2 * len(likely)] += CONFIRM
        at = first(value, sets)
        here, subset, lack, hold, best = (
            chosen[at],
            sets[at],
            lacks[:, at],
            has[:, at],
            float(value[at]),
        )
        for _ in range(STEPS):
            if best > most - CLOSE and not couplings:
                break
            step = np.where(here, -1, 1).astype(np.int8)
            moved = scorer.moved(lack, hold, step)
            value = worth(scorer.fails(*moved), splits(subset ^ groups) if couplings else 0.0)
            at = first(value, subset ^ groups)
            if value[at] <= best + 1e-9:
                break
            here = here.copy()
            here[at] ^= True
            best, subset, lack, hold = (
                float(value[at]),
                here @ groups,
                moved[0][:, at],
                moved[1][:, at],
            )
        fails = float(scorer.fails(lack[:, None], hold[:, None])[0])
        hangs = 0.0
        if couplings:
            hangs = couplings.chance(subset)
        if subset.tobytes() in tried:
            bits = 0.0
        else:
            bits = float(_bits(np.array(fails), self.flake))
        return best, Question(subset, fails, bits, hangs)

    def top(self, count: int = 5) -> list[Suspicion]:
        """The most probable explanations, best first."""
        rng = np.random.default_rng(self.seed)
        best = sorted(
            self._cells, key=lambda cell: cell[1].log_mass - math.log(cell[1].size), reverse=True
        )
        summed: dict[Groups, float] = {}
        for kind, level in best[: count + 2]:
            found = kind.draw(level.level, 4 * count, math.exp(level.log_mass), rng)
            share = min(
                1.0, len(found.weights) / level.size
            )  # where not all of the level was drawn
            for row, weight in enumerate(found.weights):
                groups = found.groups(row)
                summed[groups] = summed.get(groups, 0.0) + float(weight) * share
        ordered = sorted(summed.items(), key=lambda pair: (-pair[1], pair[0]))
        return [Suspicion(groups, min(weight, 1.0)) for groups, weight in ordered[:count]]

    @property
    def bits(self) -> float:
        """What is not known yet, in bits."""
        return max(
            0.0,
            sum(
                math.exp(level.log_mass) * (math.log2(level.size) - level.log_mass / math.log(2))
                for _, level in self._cells
            ),
        )

    @property
    def explained(self) -> bool:
        """Whether the best explanation is contradicted no more often than flakiness would do."""
        least = min(level.level for _, level in self._cells)
        if len(self._flakes) == 1 and self.flake <= NEVER:
            return least == 0
        fewer = sum(
            math.comb(self.trials, m) * self.flake**m * (1 - self.flake) ** (self.trials - m)
            for m in range(least)
        )
        return 1 - fewer > UNEXPLAINED

    def _log_shares(self, level: np.ndarray | range, trials: int) -> np.ndarray:
        """Log probability of so many contradictions in so many trials, ``(levels, flake
        rates)``."""
        m = np.asarray(level)[:, None]
        logs: np.ndarray = (
            m * np.log(self._flakes)
            + (trials - m) * np.log1p(-self._flakes)
            + np.log(self._flake_prior)
        )
        return logs

    def _log_weights(self, trials: int) -> np.ndarray:
        """Log weight of an explanation by its contradictions, ``(trials + 1,)``."""
        return np.logaddexp.reduce(self._log_shares(range(trials + 1), trials), axis=1)

    def _weigh(self) -> None:
        weights = self._log_weights(self.trials)
        cells: list[tuple[Kind, Level]] = []
        heaviest = -math.inf
        for kind in self.kinds:
            found = kind.levels(weights, heaviest + math.log(NEGLIGIBLE))
            cells += [(kind, level) for level in found]
            heaviest = max([heaviest, *(level.log_mass for level in found)])
        total = float(np.logaddexp.reduce([level.log_mass for _, level in cells]))
        self._cells = [
            (kind, level._replace(log_mass=level.log_mass - total))
            for kind, level in cells
            if level.log_mass - total > math.log(NEGLIGIBLE)
        ]
        for kind in self.kinds:
            kind.thin(weights, total + math.log(NEGLIGIBLE))
        if len(self._flakes) > 1:
            logs = self._log_shares(
                np.array([level.level for _, level in self._cells]), self.trials
            )
            shares = np.exp(logs - np.logaddexp.reduce(logs, axis=1)[:, None])
            mass = np.exp([level.log_mass for _, level in self._cells])
            self.flake = float(mass @ shares @ self._flakes / mass.sum())
        few = sum(math.exp(level.log_mass) for kind, level in self._cells if kind.few)
        if not self._awake and (few < WAKE or _table("three", self.n) > LISTED):
            self._awake = True
            self._wake()

    def _wake(self) -> None:
        """Take explanations of more items in, and tell them all that was tried."""
        if _table("three", self.n) > LISTED:
            least = 3
        else:
            least = 4
        if self.n < least:
            return
        many = [Many(self.n, dual, least, prior, self.seed) for dual, prior in MANY.items()]
        for trials in range(1, self.trials + 1):
            for kind in many:
                kind.tell(self.told[:trials], self._log_weights)
        self.kinds += many
        self._weigh()

    def _sample(self, rng: np.random.Generator) -> Cells:
        """Explanations that stand for all: of each level in proportion to its mass."""
        masses = [math.exp(level.log_mass) for _, level in self._cells]
        least = min(UNSEEN, UNSEEN * 10 * (1 - max(masses)), max(masses))
        return join(
            [
                kind.draw(level.level, 4 + int(SAMPLE * mass), mass, rng)
                for (kind, level), mass in zip(self._cells, masses, strict=True)
                if mass >= least
            ]
        )


def _table(shape: str, n: int) -> int:
    """Places of the table that counts a shape over n items."""
    if shape in ("three", "mixed") and n <= 2000:
        return len(pairs(n)[0]) * n
    return size(shape, n)


class _Scorer:
    """How a sample of explanations sees a set of changed items, and every set that differs from it
    in one group.

    ``lacks`` is how many needed items a set leaves out, ``has`` how many of those that suffice
    alone it holds; a dual explanation counts unchanged items, so that a change takes where it gives
    to another.  No matrix products: they are so small that a BLAS with several threads would spend
    its time on waking them.
    """

    def __init__(self, cells: Cells, groups: np.ndarray) -> None:
        rows, n = np.arange(len(cells.weights)), groups.shape[1]
        self.cells, self.weights = cells, cells.weights / cells.weights.sum()
        turn = np.where(cells.dual, -1, 1).astype(np.int8)
        label = np.full(
            n + 1, len(groups)
        )  # of each item; the last number is that of no group and of no item
        label[:n][groups.any(axis=0)] = groups.argmax(axis=0)[groups.any(axis=0)]
        self.needs, self.ones = (np.zeros((len(rows), len(groups) + 1), np.int8) for _ in range(2))
        for table, columns in ((self.needs, cells.needs), (self.ones, cells.ones)):
            for column in columns.T:
                table[rows, label[column]] += turn
        self.needs, self.ones = self.needs[:, :-1], self.ones[:, :-1]

    def counts(self, subsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(lacks, has), each ``(H, Q)``, of sets ``(Q, n) bool``."""
        nothing = np.zeros((len(subsets), 1), bool)
        dual = self.cells.dual[:, None]
        taken, left = (np.concatenate([sets, nothing], axis=1).T for sets in (subsets, ~subsets))
        lacks, has = (np.zeros((len(self.weights), len(subsets)), np.int8) for _ in range(2))
        for column in self.cells.needs.T:
            lacks += np.where(dual, taken[column], left[column])
        for column in self.cells.ones.T:
            has += np.where(dual, left[column], taken[column])
        return lacks + self.cells.never[:, None], has

    def fails(self, lacks: np.ndarray, has: np.ndarray) -> np.ndarray:
        """The probability of a failure ``(Q,)``."""
        failed = ((lacks == 0) | (has > 0)) ^ self.cells.dual[:, None]
        return np.einsum("h,hq->q", self.weights, failed.astype(float))

    def moved(
        self, lacks: np.ndarray, has: np.ndarray, step: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Counts ``(H, G)`` with each group changed (step 1) or put back (-1) beside counts
        ``(H,)``."""
        return lacks[:, None] - self.needs * step, has[:, None] + self.ones * step


def entropy(p: np.ndarray) -> np.ndarray:
    """Bits of a yes or no of probability p, elementwise."""
    p = np.clip(p, 1e-12, 1 - 1e-12)
    return -(p * np.log2(p) + (1 - p) * np.log2(1 - p))


def _bits(fails: np.ndarray, flake: float) -> np.ndarray:
    """Bits that an outcome says of the explanations where a failure has this probability."""
    return entropy(fails * (1 - 2 * flake) + flake) - entropy(np.array(flake))
