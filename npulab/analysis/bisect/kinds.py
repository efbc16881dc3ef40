"""The explanations of a failure, by kind, each with the number of trials that contradict it.

An explanation says which sets of changed items fail. Its kind is one of: sets with one certain
item; with two or three certain items together; with any of two or three items; with one item alone
or two others together; with one item together with either of two others.

Each kind has a **dual**. A kind fails if f(changed items) is true; its dual fails if f(unchanged
items) is false. Both need the same arithmetic, with the outcome inverted: "any of three items" is
the dual of "all three together".

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

# At most this many explanations of one kind are listed; each takes a byte.
LISTED = 6_000_000
# A byte counts the trials that contradict an explanation. INVALID is larger than any count and
# marks entries of a table that are no explanation. Since a trial may add 1 to such an entry, it is
# set to INVALID again after every SETTLE trials, before the byte overflows.
INVALID = 190
SETTLE = 64
# A list of explanations replaces a table if the table has more than this many times its entries.
SHORT = 16
# The number of explanations in a sample (particles).
PARTICLES = 400
# The most items of a sampled explanation.
MOST = 8
# The prior of a sampled explanation is multiplied by this for each further item.
SIZES = 0.6
# This many items of each sampled explanation are drawn again after each trial.
SLOTS = 4
# To save time, a sample is updated only every PATIENCE trials while its weight is less than LIGHT
# times the weight below which explanations are dropped.
LIGHT = 100.0
PATIENCE = 8


class Level(NamedTuple):
    """The explanations of one kind that are contradicted by exactly ``level`` trials. ``size`` is
    their number, ``log_mass`` the logarithm of the sum of their weights.
    """

    level: int
    size: int
    log_mass: float


class Cells(NamedTuple):
    """H explanations with their weights, one in each row of the arrays.

    An explanation expects a failure if f(changed items) is true: if all items of ``needs (H, A)
    int`` are changed, or any item of ``ones (H, B) int``. If ``dual (H,) bool``, it expects a
    failure if f(unchanged items) is false. If ``never (H,) bool``, no set fails. Rows with fewer
    items are filled with -1.
    """

    needs: Array
    ones: Array
    dual: Array
    never: Array
    weights: Array

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
        """Return the smallest sets of items that fail by the explanation in this row. If it says
        that no set fails, there is none; if every set fails, the only one is the empty set.
        """
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
    """Return one ``Cells`` that holds the explanations of all ``parts``; shorter rows are filled
    with -1.
    """
    needs, ones, dual, never, weights = zip(*parts, strict=True)
    return Cells(_padded(needs), _padded(ones), *map(np.concatenate, (dual, never, weights)))


def _padded(arrays: Sequence[Array]) -> Array:
    """Return the rows of all arrays, which differ in width, as one array; shorter rows are filled
    with -1.
    """
    width = max(array.shape[1] for array in arrays)
    out = np.full((sum(map(len, arrays)), width), -1)
    row = 0
    for array in arrays:
        out[row : row + len(array), : array.shape[1]] = array
        row += len(array)
    return out


# Each of the classes below is a kind of explanations. It has ``few``, which is True if an
# explanation has at most two items, and these methods:
# tell(trials, log_weights) takes in the last trial; ``log_weights(n)`` returns, after n trials, the
#   log weight of an explanation by the number of trials that contradict it;
# levels(log_weights, floor) returns the levels; it may leave out levels with a log mass below
#   ``floor``;
# draw(level, wanted, mass, rng) returns about ``wanted`` random explanations of a level, or all if
#   they are fewer; their weights add up to ``mass``;
# thin(log_weights, floor) may drop explanations that together have a log mass below ``floor``, or
#   take in further trials less often.


class Ends:
    """The two extreme explanations: that no set fails, and that every set fails."""

    # The probabilities of "no set fails" and "every set fails" before the first trial: both are
    # rare mistakes of a user. With ``suspects.PRIOR`` and ``suspects.MANY`` they add up to 1.
    PRIOR = (0.01, 0.005)
    few = True

    def __init__(self) -> None:
        self.counts = [0, 0]

    def tell(self, trials: Trials, log_weights: Callable[[int], Array]) -> None:
        _, failed = trials[-1]
        self.counts[not failed] += 1

    def levels(self, log_weights: Array, floor: float) -> list[Level]:
        # explanations that equally many trials contradict are one level; ``draw`` takes all of them
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
    """Return all pairs i < j of numbers below n, as an array of i and an array of j."""
    return np.triu_indices(n, 1)


@lru_cache(maxsize=4)
def blank(shape: str, n: int) -> Array:
    """Return a table for one shape of explanation before the first trial. It has a row for each
    pair of items and a column for each third item.

    An entry counts the trials that contradict its explanation, so it is 0 at first. It is INVALID
    if pair and third item make no explanation of this shape.
    """
    i, j = pairs(n)
    k = np.arange(n)
    if shape == "three":
        valid = k > j[:, None]
    else:
        valid = (k != i[:, None]) & (k != j[:, None])
    return np.where(valid, 0, INVALID).astype(np.uint8)


def size(shape: str, n: int) -> int:
    """Return how many explanations of a shape (see ``Listed``) there are over n items."""
    return {
        "one": n,
        "two": math.comb(n, 2),
        "three": math.comb(n, 3),
        "mixed": n * math.comb(max(n - 1, 0), 2),
    }[shape]


class Listed:
    """All explanations of one shape: "one" (item), "two" or "three" (items together), "mixed" (one
    item alone, or two others together).

    A table (pair, third item) counts the trials that contradict an explanation of "three" or
    "mixed". Once few explanations are left, a list takes the place of the table.
    """

    def __init__(self, n: int, shape: str, dual: bool, prior: float) -> None:
        self.n, self.shape, self.dual, self.size = n, shape, dual, size(shape, n)
        self.few = shape in ("one", "two")
        self.log_prior = math.log(prior / self.size)
        self.items: Array | None = None  # the listed explanations (H, A); None if a table counts
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
        open_ = self.size  # explanations at higher levels
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
        # if many explanations have this level, every ``step``-th row of the table holds enough
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
        """Return the three items of explanations, from indices into the flattened table, or into a
        table of every ``step``-th row from row ``start`` on.
        """
        pair, third = np.divmod(places, self.n)
        row = start + step * pair
        i, j = pairs(self.n)
        return np.stack([i[row], j[row], third], 1)


class Many:
    """Explanations that ``least`` to ``MOST`` items fail together: a random sample (particles),
    since they are too many to list.

    After a trial the particles are weighed and drawn again by weight. Then some items of each
    particle are replaced, each by an item that is drawn with its probability given all trials
    (Gibbs sampling).
    """

    few = False

    def __init__(self, n: int, dual: bool, least: int, prior: float, seed: int) -> None:
        self.n, self.dual, self.least = n, dual, least
        self.most = min(MOST, n)
        self.rng = np.random.default_rng((seed, dual))
        sizes = SIZES ** np.arange(self.most - least + 1)
        sizes /= sizes.sum()
        # By k: the log prior of one arrangement of k items in a particle's places. It is the prior
        # of size k, divided by the number of sets of k items and by the number of their
        # arrangements.
        self.arranged = np.full(self.most + 2, -np.inf)
        for k, share in enumerate(sizes, least):
            self.arranged[k] = (
                math.log(share / math.comb(n, k))
                - math.lgamma(self.most + 1)
                + math.lgamma(self.most - k + 1)
            )
        self.log_evidence = math.log(prior)
        # the number n marks a place without an item
        self.items = np.full((PARTICLES, self.most), n)
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
        # although some were not; 64 trials are packed as bits into a word
        passed, failed = _bits_in_words(x[~y].T), _bits_in_words(x[y].T)
        # (T, P): how many items of each of P particles each of T trials left unchanged
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
    """Pack rows of bits ``(R, T)`` into words ``(R, W) uint64`` of 64 bits."""
    wide = np.zeros((len(bits), -(-bits.shape[1] // 64) * 64), bool)
    wide[:, : bits.shape[1]] = bits
    return np.packbits(wide, axis=1).view(np.uint64)


def _bits_in_common(a: Array, b: Array) -> Array:
    """Return ``(P, C)``: the number of bits that are 1 in a row of ``a (P, W)`` and in a row of ``b
    (C, W)``.
    """
    common = np.zeros((len(a), len(b)), int)
    for word in range(a.shape[1]):
        common += np.bitwise_count(a[:, word, None] & b[:, word])
    return common


Kind = Ends | Listed | Many
