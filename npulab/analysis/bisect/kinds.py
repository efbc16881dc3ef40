"""The explanations of a failure, by kind, each with the number of trials that contradict it.

An explanation says which sets of changed items fail: one item alone, two or three together, any of
two or three, one alone or two together, one together with either of two. Each kind has a **dual**:
an explanation f of the changed items, and not f of the unchanged items, are the same arithmetic
with the outcome inverted, so "any of three" is "all three together" seen from the other side.

Kinds of up to three items are listed whole; kinds of more items are sampled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy import ndarray as Array

Groups = tuple[tuple[int, ...], ...]
Trials = list[tuple[Array, bool]]

LISTED = 6_000_000  # explanations of one kind that are listed, at most: a byte each
# Contradictions are counted in bytes. INVALID marks what is not an explanation: it is larger than
# any count, and every SETTLE trials it is set again, so that counting on does not wrap around.
INVALID = 190
SETTLE = 64
SHORT = 16  # a table is replaced by a list that is so many times shorter
PARTICLES = 400  # explanations in a sample
MOST = 8  # items of a sampled explanation
SIZES = 0.6  # each further item makes an explanation so much less probable
SLOTS = 4  # items of a particle that are drawn anew per trial
# A sample that is so many times lighter than what is negligible follows the trials in steps of
# PATIENCE, which takes less time.
LIGHT = 100.0
PATIENCE = 8


class Level(NamedTuple):
    """The explanations of one kind that the same number of trials contradicts: their count, and the
    logarithm of the sum of their weights.
    """

    level: int
    size: int
    log_mass: float


class Cells(NamedTuple):
    """Explanations with their weights.

    f is "all of ``needs``, or any of ``ones``" of the changed items, or, if ``dual``, not f of the
    unchanged items.  -1 stands for no item; an explanation that is ``never`` so expects no failure.
    """

    needs: Array  # (H, A) int
    ones: Array  # (H, B) int
    dual: Array  # (H,) bool
    never: Array  # (H,) bool
    weights: Array  # (H,) float

    @classmethod
    def of(
        cls,
        needs: Array,
        weights: Array,
        *,
        ones: Array | None = None,
        dual: bool = False,
    ) -> Cells:
        count = len(needs)
        if ones is None:
            ones = np.full((count, 1), -1)
        return cls(needs, ones, np.full(count, dual), np.zeros(count, bool), weights)

    def groups(self, row: int) -> Groups:
        """Return the smallest sets that fail: no set if nothing fails, the empty set if everything
        does."""
        if self.never[row]:
            return ()
        needs = _items_of(self.needs[row])
        ones = _items_of(self.ones[row])
        if not self.dual[row]:
            return tuple(sorted([*zip(ones, strict=True), tuple(needs)]))
        return tuple(sorted(tuple(sorted([*ones, item])) for item in needs))


def _items_of(row: Array) -> list[int]:
    return np.sort(row[row >= 0]).tolist()


def join(parts: Sequence[Cells]) -> Cells:
    """Return all of them as one, padded to one width."""
    needs, ones, dual, never, weights = zip(*parts, strict=True)
    return Cells(_padded(needs), _padded(ones), *map(np.concatenate, (dual, never, weights)))


def _padded(arrays: Sequence[Array]) -> Array:
    """Return the rows of arrays of several widths as one array; missing places are -1."""
    width = max(array.shape[1] for array in arrays)
    out = np.full((sum(map(len, arrays)), width), -1)
    row = 0
    for array in arrays:
        out[row : row + len(array), : array.shape[1]] = array
        row += len(array)
    return out


# Each kind of explanations has ``few``, true if an explanation has at most two items, and
# tell(trials, log_weights): count the last trial; ``log_weights(trials)`` are the log weights by
#   contradictions
# levels(log_weights, floor): the levels that matter beside a log mass of ``floor``
# draw(level, wanted, mass, rng): explanations of a level that stand for all of its mass; all of
#   them if they are at most ``wanted``
# thin(log_weights, floor): drop explanations that weigh nothing beside a log mass of ``floor``


class Ends:
    """The two extreme explanations: nothing fails, and everything does."""

    PRIOR = (0.01, 0.005)
    few = True

    def __init__(self) -> None:
        self.counts = [0, 0]

    def tell(self, trials: Trials, log_weights: Callable[[int], Array]) -> None:
        _, failed = trials[-1]
        self.counts[not failed] += 1

    def levels(self, log_weights: Array, floor: float) -> list[Level]:
        # if both have the same number of contradictions they are one level, drawn together
        ends: dict[int, list[float]] = {}
        for level, prior in zip(self.counts, self.PRIOR, strict=True):
            ends.setdefault(level, []).append(prior)
        levels = []
        for level, priors in ends.items():
            log_mass = math.log(sum(priors)) + log_weights[level]
            levels.append(Level(level, len(priors), log_mass))
        return levels

    def draw(self, level: int, wanted: int, mass: float, rng: np.random.Generator) -> Cells:
        which = np.flatnonzero(np.array(self.counts) == level)
        share = np.array(self.PRIOR)[which]
        none = np.full((len(which), 1), -1)
        return Cells(none, none, np.zeros(len(which), bool), which == 0, mass * share / share.sum())

    def thin(self, log_weights: Array, floor: float) -> None:
        """Drop nothing: both explanations stay."""


@lru_cache(maxsize=8)
def pairs(n: int) -> tuple[Array, Array]:
    """Return the indices of all pairs i < j."""
    return np.triu_indices(n, 1)


@lru_cache(maxsize=4)
def blank(shape: str, n: int) -> Array:
    """Return the table (pair, third item) of an explanation's shape before the first trial.

    Entries are 0, or INVALID if pair and item do not make an explanation.
    """
    i, j = pairs(n)
    k = np.arange(n)
    if shape == "three":
        valid = k > j[:, None]
    else:
        valid = (k != i[:, None]) & (k != j[:, None])
    return np.where(valid, 0, INVALID).astype(np.uint8)


def size(shape: str, n: int) -> int:
    """Return how many explanations of a shape there are over n items."""
    return {
        "one": n,
        "two": math.comb(n, 2),
        "three": math.comb(n, 3),
        "mixed": n * math.comb(max(n - 1, 0), 2),
    }[shape]


class Listed:
    """All explanations of one shape: "one", "two" or "three" (together), "mixed" (one alone, or two
    together).

    While they are many they are counted in a table (pair, third item); when trials leave few, these
    become a list.
    """

    def __init__(self, n: int, shape: str, dual: bool, prior: float) -> None:
        self.n, self.shape, self.dual, self.size = n, shape, dual, size(shape, n)
        self.few = shape in ("one", "two")
        self.log_prior = math.log(prior / self.size)
        self.items: Array | None = None  # (H, A) of the list; None while there is a table
        self.counts = np.zeros(self.size, np.uint8)
        if shape == "one":
            self.items = np.arange(n)[:, None]
        elif shape == "two":
            self.items = np.stack(pairs(n), 1)
        else:
            self.counts = blank(shape, n).copy()

    def tell(self, trials: Trials, log_weights: Callable[[int], Array]) -> None:
        changed, failed = trials[-1]
        x = changed
        if self.dual:
            x = ~changed
        if self.items is None:
            i, j = pairs(self.n)
            pair = (x[i] & x[j])[:, None]
            if self.shape == "three":
                predicted = pair & x
            else:
                predicted = pair | x
        elif self.shape == "mixed":
            predicted = (x[self.items[:, 0]] & x[self.items[:, 1]]) | x[self.items[:, 2]]
        else:
            predicted = x[self.items].all(axis=1)
        if failed != self.dual:
            predicted = ~predicted
        self.counts += predicted.view(np.uint8)
        if len(trials) % SETTLE == 0:
            valid = self.counts < INVALID
            self.counts[~valid] = INVALID
            np.minimum(self.counts, INVALID - SETTLE - 1, out=self.counts, where=valid)

    def levels(self, log_weights: Array, floor: float) -> list[Level]:
        out = []
        if self.items is not None:
            found = np.bincount(self.counts)[: len(log_weights)]
            for m in np.flatnonzero(found).tolist():
                out.append(self._level(m, int(found[m]), log_weights))
            return out
        open_ = self.size  # explanations of the levels that are still to come
        for m, weight in enumerate(log_weights):
            if not open_ or self.log_prior + weight + math.log(open_) < floor:
                break
            count = int(np.count_nonzero(self.counts == m))
            if count:
                out.append(self._level(m, count, log_weights))
                open_ -= count
        return out

    def _level(self, level: int, count: int, log_weights: Array) -> Level:
        return Level(level, count, float(self.log_prior + log_weights[level] + math.log(count)))

    def thin(self, log_weights: Array, floor: float) -> None:
        if self.few:
            return
        light = self.log_prior + log_weights + math.log(self.size) < floor
        most = len(log_weights) - 1
        if light.any():
            most = int(np.argmax(light)) - 1
        if self.items is not None:
            keep = self.counts <= most
            if 2 * np.count_nonzero(keep) < len(keep):
                self.items, self.counts = self.items[keep], self.counts[keep]
        elif most < 2 or np.count_nonzero(self.counts[::SHORT] <= most) * SHORT * SHORT < self.size:
            found = np.flatnonzero(self.counts <= most)
            if len(found) * SHORT < self.size:
                self.items, self.counts = self._triples(found), self.counts.reshape(-1)[found]

    def draw(self, level: int, wanted: int, mass: float, rng: np.random.Generator) -> Cells:
        if self.items is not None:
            found = np.flatnonzero(self.counts == level)
            if len(found) > wanted:
                found = rng.choice(found, wanted, replace=False)
            items = self.items[found]
        else:
            items = self._from_table(level, wanted, rng)
        weights = np.full(len(items), mass / len(items))
        if self.shape == "mixed":
            return Cells.of(items[:, :2], weights, ones=items[:, 2:], dual=self.dual)
        return Cells.of(items, weights, dual=self.dual)

    def _from_table(self, level: int, wanted: int, rng: np.random.Generator) -> Array:
        # every step-th row of a full table holds enough
        share = np.count_nonzero(self.counts[::SHORT] == level) / max(1, self.counts[::SHORT].size)
        step = max(1, int(share * self.counts.size / (4 * wanted)))
        start = int(rng.integers(step))
        found = np.flatnonzero(self.counts[start::step] == level)
        if not len(found):
            start, step, found = 0, 1, np.flatnonzero(self.counts == level)
        if len(found) > wanted:
            found = rng.choice(found, wanted, replace=False)
        return self._triples(found, start, step)

    def _triples(self, places: Array, start: int = 0, step: int = 1) -> Array:
        """Return the items at places of the table, or of every step-th row of it."""
        pair, third = np.divmod(places, self.n)
        row = start + step * pair
        i, j = pairs(self.n)
        return np.stack([i[row], j[row], third], 1)


class Many:
    """Explanations with ``least`` to ``MOST`` items together, sampled: particles that follow the
    trials.

    Each new trial weighs the particles, draws them anew by weight, and then draws some items of
    each anew, with the probability that all trials give every item in that place (Gibbs sampling).
    """

    few = False

    def __init__(self, n: int, dual: bool, least: int, prior: float, seed: int) -> None:
        self.n, self.dual, self.least = n, dual, least
        self.most = min(MOST, n)
        self.rng = np.random.default_rng((seed, dual))
        sizes = SIZES ** np.arange(self.most - least + 1)
        sizes /= sizes.sum()
        # log prior of one arrangement of k items over the places: that of the size, divided by the
        # number of sets and by the number of arrangements
        self.arranged = np.full(self.most + 2, -np.inf)
        for k, share in enumerate(sizes, least):
            self.arranged[k] = (
                math.log(share / math.comb(n, k))
                - math.lgamma(self.most + 1)
                + math.lgamma(self.most - k + 1)
            )
        self.log_evidence = math.log(prior)
        self.items = np.full((PARTICLES, self.most), n)  # n: no item in this place
        drawn = self.rng.choice(np.arange(least, self.most + 1), PARTICLES, p=sizes)
        for row, k in zip(self.items, drawn, strict=True):
            row[:k] = self.rng.choice(n, k, replace=False)
        self.counts = np.zeros(PARTICLES, int)
        self.seen = 0
        self.light = False

    def tell(self, trials: Trials, log_weights: Callable[[int], Array]) -> None:
        if self.light and len(trials) - self.seen < PATIENCE:
            return
        x = np.ones((len(trials), self.n + 1), bool)
        x[:, : self.n] = np.array([changed for changed, _ in trials]) != self.dual
        y = np.array([failed for _, failed in trials]) != self.dual
        now = sum(x[t][self.items].all(axis=1) != y[t] for t in range(self.seen, len(trials)))
        after = log_weights(len(trials))
        gain = after[self.counts + now] - log_weights(self.seen)[self.counts]
        self.counts = self.counts + now
        self.log_evidence += float(np.logaddexp.reduce(gain) - math.log(PARTICLES))
        self._resample(np.exp(gain - gain.max()))
        self._move(x, y, after)
        self.seen = len(trials)

    def _resample(self, weights: Array) -> None:
        places = (np.arange(PARTICLES) + self.rng.random()) / PARTICLES * weights.sum()
        chosen = np.minimum(np.searchsorted(np.cumsum(weights), places), PARTICLES - 1)
        self.items, self.counts = self.items[chosen], self.counts[chosen]

    def _move(self, x: Array, y: Array, log_weights: Array) -> None:
        rows = np.arange(PARTICLES)
        # a trial contradicts an explanation if it passed although all items were changed, or failed
        # although not; 64 trials a word
        passed, failed = _bits_in_words(x[~y].T), _bits_in_words(x[y].T)
        # (T, P): items of the particle that a trial left unchanged
        missing = (~x[:, self.items]).sum(axis=2)
        for place in self.rng.permutation(self.most)[:SLOTS]:
            mine = self.items[:, place]
            others = (missing - ~x[:, mine] == 0).T
            wrong = _bits_in_common(_bits_in_words(others[:, ~y]), passed)
            right = _bits_in_common(_bits_in_words(others[:, y]), failed)
            contradicted = wrong + int(y.sum()) - right
            size = (self.items < self.n).sum(axis=1) - (mine < self.n)
            log_p = log_weights[contradicted]
            log_p[:, : self.n] += self.arranged[size + 1][:, None]
            log_p[:, self.n] += self.arranged[size]
            for other in range(self.most):
                if other != place:
                    occupant = self.items[:, other]
                    taken = occupant < self.n
                    log_p[rows[taken], occupant[taken]] = -np.inf
            p = np.cumsum(np.exp(log_p - log_p.max(axis=1, keepdims=True)), axis=1)
            chosen = (p < self.rng.random((PARTICLES, 1)) * p[:, -1:]).sum(axis=1)
            missing += x[:, mine].astype(int) - x[:, chosen]
            self.items[:, place] = chosen
            self.counts = contradicted[rows, chosen]

    def levels(self, log_weights: Array, floor: float) -> list[Level]:
        if self.log_evidence < floor:
            return []
        sets = np.sort(self.items, axis=1)
        levels = []
        for level in np.unique(self.counts).tolist():
            of_level = sets[self.counts == level]
            log_mass = self.log_evidence + math.log(len(of_level) / PARTICLES)
            levels.append(Level(level, len(np.unique(of_level, axis=0)), log_mass))
        return levels

    def thin(self, log_weights: Array, floor: float) -> None:
        self.light = self.log_evidence < floor + math.log(LIGHT)

    def draw(self, level: int, wanted: int, mass: float, rng: np.random.Generator) -> Cells:
        of_level = np.sort(self.items[self.counts == level], axis=1)
        sets, times = np.unique(of_level, axis=0, return_counts=True)
        items = np.where(sets == self.n, -1, sets)
        return Cells.of(items, mass * times / times.sum(), dual=self.dual)


def _bits_in_words(bits: Array) -> Array:
    """Return rows of bits ``(R, T)`` packed into words ``(R, W) uint64``."""
    wide = np.zeros((len(bits), -(-bits.shape[1] // 64) * 64), bool)
    wide[:, : bits.shape[1]] = bits
    return np.packbits(wide, axis=1).view(np.uint64)


def _bits_in_common(a: Array, b: Array) -> Array:
    """Return how many bits each row of a ``(P, W)`` has in common with each of b ``(C, W)``."""
    common = np.zeros((len(a), len(b)), int)
    for word in range(a.shape[1]):
        common += np.bitwise_count(a[:, word, None] & b[:, word])
    return common


Kind = Ends | Listed | Many
