"""The explanations of a failure, by kind, each with the number of trials that contradict it.

An explanation says which sets of changed items fail: one item alone, two or three together, any of
two or three, one alone or two together, one together with either of two.  Each kind has a **dual**:
an explanation f of the changed items, and not f of the unchanged items, are the same arithmetic
with the outcome turned round, so "any of three" is "all three together" seen from the other side.

Kinds of up to three items are listed whole; kinds of more are sampled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

Groups = tuple[tuple[int, ...], ...]
Told = list[tuple[np.ndarray, bool]]

LISTED = 6_000_000  # explanations of one kind that are listed, at most
INVALID = 190  # more than any count of contradictions, with room to count on
SETTLE = 64  # trials between two clearings of that room
SHORT = 16  # a table is left for a list where the list is so many times shorter
PARTICLES = 400
MOST = 8  # items of a sampled explanation
SIZES = 0.6  # each further item is so much less probable
SLOTS = 4  # items of a particle that are drawn anew per trial
LIGHT = 100.0  # times what is negligible: so light a sample follows the trials in larger steps,
PATIENCE = 8  # of so many


class Level(NamedTuple):
    """Explanations of one kind with the same number of contradictions: how many, log of their mass
    together."""

    level: int
    size: int
    log_mass: float


class Cells(NamedTuple):
    """Explanations with their weights: f is "all of ``needs``, or any of ``ones``" of the changed
    items, or, where ``dual``, not f of the unchanged ones; -1 stands for no item, ``never`` for
    what never is so."""

    needs: np.ndarray  # (H, A) int
    ones: np.ndarray  # (H, B) int
    dual: np.ndarray  # (H,) bool
    never: np.ndarray  # (H,) bool
    weights: np.ndarray  # (H,) float

    @classmethod
    def of(
        cls,
        needs: np.ndarray,
        weights: np.ndarray,
        *,
        ones: np.ndarray | None = None,
        dual: bool = False,
    ) -> Cells:
        count = len(needs)
        none = np.full((count, 1), -1)
        return cls(
            needs,
            none if ones is None else ones,
            np.full(count, dual),
            np.zeros(count, bool),
            weights,
        )

    def groups(self, row: int) -> Groups:
        """The smallest sets that fail: no set where nothing fails, the empty one where everything
        does."""
        needs = tuple(sorted(int(item) for item in self.needs[row] if item >= 0))
        ones = tuple(sorted(int(item) for item in self.ones[row] if item >= 0))
        if self.never[row]:
            return ()
        if not self.dual[row]:
            return tuple(sorted([*((one,) for one in ones), needs]))
        if not ones:
            return tuple((item,) for item in needs)
        return tuple(sorted(tuple(sorted((*ones, item))) for item in needs))


def join(parts: Sequence[Cells]) -> Cells:
    """All of them, padded to one width."""

    def wide(arrays: Sequence[np.ndarray]) -> np.ndarray:
        out = np.full((sum(map(len, arrays)), max(array.shape[1] for array in arrays)), -1)
        row = 0
        for array in arrays:
            out[row : row + len(array), : array.shape[1]] = array
            row += len(array)
        return out

    return Cells(
        wide([part.needs for part in parts]),
        wide([part.ones for part in parts]),
        np.concatenate([part.dual for part in parts]),
        np.concatenate([part.never for part in parts]),
        np.concatenate([part.weights for part in parts]),
    )


# A kind of explanations has ``few``, whether at most two items are behind each, and
# tell(told, log_weights): take in the last of the trials told; ``log_weights(trials)`` are those by
#   contradictions
# levels(log_weights, floor): those that weigh, as far as a log mass of ``floor`` matters
# draw(level, wanted, mass, rng): some of a level, which stand for all of its mass; all of them if
#   they are at most ``wanted``
# thin(log_weights, floor): drop what weighs nothing beside a log mass of ``floor``


class Ends:
    """Nothing fails, and everything does."""

    PRIOR = (0.01, 0.005)
    few = True

    def __init__(self) -> None:
        self.counts = [0, 0]

    def tell(self, told: Told, log_weights: Callable[[int], np.ndarray]) -> None:
        self.counts[0 if told[-1][1] else 1] += 1

    def levels(self, log_weights: np.ndarray, floor: float) -> list[Level]:
        # told apart by level: if both have the same they are drawn together
        priors = {
            level: [
                prior
                for count, prior in zip(self.counts, self.PRIOR, strict=True)
                if count == level
            ]
            for level in self.counts
        }
        return [
            Level(level, len(prior), math.log(sum(prior)) + log_weights[level])
            for level, prior in priors.items()
        ]

    def draw(self, level: int, wanted: int, mass: float, rng: np.random.Generator) -> Cells:
        which = np.array([end for end in (0, 1) if self.counts[end] == level])
        share = np.array(self.PRIOR)[which]
        none = np.full((len(which), 1), -1)
        return Cells(none, none, np.zeros(len(which), bool), which == 0, mass * share / share.sum())

    def thin(self, log_weights: np.ndarray, floor: float) -> None:
        """Both ends stay."""


@lru_cache(maxsize=8)
def pairs(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices of all pairs i < j."""
    return np.triu_indices(n, 1)


@lru_cache(maxsize=4)
def blank(shape: str, n: int) -> np.ndarray:
    """The table (pair, third item) of a shape before anything was tried: 0, or INVALID where it is
    no explanation."""
    i, j = (index[:, None] for index in pairs(n))
    k = np.arange(n)
    return np.where(k > j if shape == "three" else (k != i) & (k != j), 0, INVALID).astype(np.uint8)


def size(shape: str, n: int) -> int:
    """How many explanations of a shape there are over n items."""
    return {
        "one": n,
        "two": math.comb(n, 2),
        "three": math.comb(n, 3),
        "mixed": n * math.comb(max(n - 1, 0), 2),
    }[shape]


class Listed:
    """All explanations of one shape: "one", "two" or "three" (together), "mixed" (one alone, or two
    together).

    While they are many they are counted in a table (pair, third item); what trials leave of it is a
    list.
    """

    def __init__(self, n: int, shape: str, dual: bool, prior: float) -> None:
        self.n, self.shape, self.dual, self.size = n, shape, dual, size(shape, n)
        self.few = shape in ("one", "two")
        self.log_prior = math.log(prior / self.size)
        self.items: np.ndarray | None = None  # (H, A) of the list; None while there is a table
        if self.few:
            if shape == "one":
                self.items = np.arange(n)[:, None]
            else:
                self.items = np.stack(pairs(n), 1)
        if self.few:
            self.counts = np.zeros(self.size, np.uint8)
        else:
            self.counts = blank(shape, n).copy()

    def tell(self, told: Told, log_weights: Callable[[int], np.ndarray]) -> None:
        changed, failed = told[-1]
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
        self.counts += (~predicted if failed != self.dual else predicted).view(np.uint8)
        if len(told) % SETTLE == 0:
            self.counts[self.counts >= INVALID] = INVALID
            np.minimum(
                self.counts, INVALID - SETTLE - 1, out=self.counts, where=self.counts < INVALID
            )

    def levels(self, log_weights: np.ndarray, floor: float) -> list[Level]:
        if self.items is not None:
            found = np.bincount(self.counts)[: len(log_weights)]
            return [
                Level(
                    int(m),
                    int(found[m]),
                    float(self.log_prior + log_weights[m] + math.log(found[m])),
                )
                for m in np.flatnonzero(found)
            ]
        out, left = [], self.size
        for m, weight in enumerate(log_weights):
            if not left or self.log_prior + weight + math.log(left) < floor:
                break
            count = int(np.count_nonzero(self.counts == m))
            if count:
                out.append(Level(m, count, float(self.log_prior + weight + math.log(count))))
                left -= count
        return out

    def thin(self, log_weights: np.ndarray, floor: float) -> None:
        if self.few:
            return
        light = self.log_prior + log_weights + math.log(self.size) < floor
        if light.any():
            most = int(np.argmax(light)) - 1
        else:
            most = len(log_weights) - 1
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
            items = self.items[
                found if len(found) <= wanted else rng.choice(found, wanted, replace=False)
            ]
        else:
            items = self._from_table(level, wanted, rng)
        weights = np.full(len(items), mass / len(items))
        if self.shape == "mixed":
            return Cells.of(items[:, :2], weights, ones=items[:, 2:], dual=self.dual)
        return Cells.of(items, weights, dual=self.dual)

    def _from_table(self, level: int, wanted: int, rng: np.random.Generator) -> np.ndarray:
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

    def _triples(self, places: np.ndarray, start: int = 0, step: int = 1) -> np.ndarray:
        """The items at places of the table of which every step-th row is counted."""
        pair, third = np.divmod(places, self.n)
        i, j = (index[start + step * pair] for index in pairs(self.n))
        return np.stack([i, j, third], 1)


def _packed(bits: np.ndarray) -> np.ndarray:
    """Rows of bits ``(R, T)`` as ``(R, W) uint64``."""
    wide = np.zeros((len(bits), -(-bits.shape[1] // 64) * 64), bool)
    wide[:, : bits.shape[1]] = bits
    return np.packbits(wide, axis=1).view(np.uint64)


def _both(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """How many bits each row of a ``(P, W)`` has in common with each of b ``(C, W)``."""
    return sum(
        (np.bitwise_count(a[:, w, None] & b[:, w]).astype(int) for w in range(a.shape[1])),
        np.zeros((len(a), len(b)), int),
    )


class Many:
    """Explanations with ``least`` to ``MOST`` items together, sampled: particles that follow the
    trials.

    Each new trial weights the particles, draws them anew, and then draws some items of each from
    what all trials say of every item in that place (Gibbs).
    """

    few = False

    def __init__(self, n: int, dual: bool, least: int, prior: float, seed: int) -> None:
        self.n, self.dual, self.least = n, dual, least
        self.most = min(MOST, n)
        self.rng = np.random.default_rng((seed, dual))
        sizes = SIZES ** np.arange(self.most - least + 1)
        sizes /= sizes.sum()
        # of one arrangement of k items over the places: prior of the size, over the sets, over the
        # arrangements
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

    def tell(self, told: Told, log_weights: Callable[[int], np.ndarray]) -> None:
        if self.light and len(told) - self.seen < PATIENCE:
            return
        x = np.ones((len(told), self.n + 1), bool)
        x[:, : self.n] = np.array([changed for changed, _ in told]) != self.dual
        y = np.array([failed for _, failed in told]) != self.dual
        now = sum(x[t][self.items].all(axis=1) != y[t] for t in range(self.seen, len(told)))
        after = log_weights(len(told))
        gain = after[self.counts + now] - log_weights(self.seen)[self.counts]
        self.counts = self.counts + now
        self.log_evidence += float(np.logaddexp.reduce(gain) - math.log(PARTICLES))
        self._resample(np.exp(gain - gain.max()))
        self._move(x, y, after)
        self.seen = len(told)

    def _resample(self, weights: np.ndarray) -> None:
        places = (np.arange(PARTICLES) + self.rng.random()) / PARTICLES * weights.sum()
        chosen = np.minimum(np.searchsorted(np.cumsum(weights), places), PARTICLES - 1)
        self.items, self.counts = self.items[chosen], self.counts[chosen]

    def _move(self, x: np.ndarray, y: np.ndarray, log_weights: np.ndarray) -> None:
        rows = np.arange(PARTICLES)
        # contradicted: a trial that passed where all of the items were changed, or failed where
        # not; 64 trials a word
        passed, failed = (_packed(x[which].T) for which in (~y, y))
        missing = (~x[:, self.items]).sum(
            axis=2
        )  # (T, P): items of the particle that a trial left unchanged
        for place in self.rng.permutation(self.most)[:SLOTS]:
            mine = self.items[:, place]
            others = (missing - ~x[:, mine] == 0).T
            contradicted = (
                _both(_packed(others[:, ~y]), passed)
                + int(y.sum())
                - _both(_packed(others[:, y]), failed)
            )
            size = (self.items < self.n).sum(axis=1) - (mine < self.n)
            log_p = log_weights[contradicted]
            log_p[:, : self.n] += self.arranged[size + 1][:, None]
            log_p[:, self.n] += self.arranged[size]
            for other in range(self.most):
                if other != place:
                    occupant = self.items[:, other]
                    log_p[rows[occupant < self.n], occupant[occupant < self.n]] = -np.inf
            p = np.cumsum(np.exp(log_p - log_p.max(axis=1, keepdims=True)), axis=1)
            chosen = (p < self.rng.random((PARTICLES, 1)) * p[:, -1:]).sum(axis=1)
            missing += x[:, mine].astype(int) - x[:, chosen]
            self.items[:, place] = chosen
            self.counts = contradicted[rows, chosen]

    def levels(self, log_weights: np.ndarray, floor: float) -> list[Level]:
        if self.log_evidence < floor:
            return []
        sets = np.sort(self.items, axis=1)
        levels, counts = np.unique(self.counts, return_counts=True)
        return [
            Level(
                int(level),
                len(np.unique(sets[self.counts == level], axis=0)),
                self.log_evidence + math.log(count / PARTICLES),
            )
            for level, count in zip(levels, counts.tolist(), strict=True)
        ]

    def thin(self, log_weights: np.ndarray, floor: float) -> None:
        self.light = self.log_evidence < floor + math.log(LIGHT)

    def draw(self, level: int, wanted: int, mass: float, rng: np.random.Generator) -> Cells:
        sets, times = np.unique(
            np.sort(self.items[self.counts == level], axis=1), axis=0, return_counts=True
        )
        return Cells.of(
            np.where(sets == self.n, -1, sets), mass * times / times.sum(), dual=self.dual
        )


Kind = Ends | Listed | Many
