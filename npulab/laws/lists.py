"""Decision lists for one field: when ... then ..., else ..., chosen by description length."""

from __future__ import annotations

import numpy as np

from npulab.laws.expressions import Array
from npulab.laws.masks import packed
from npulab.laws.pool import Pool
from npulab.laws.predicates import LEAST_ROWS, Predicates

DEPTH, BEAM, FAN = 6, 3, 8
STEP_COST, AGAIN_COST = 1.0, 2.0
FOLDS = 4
BLOCK = 256
HALVES = 500  # conditions whose larger side has a law, looked at for the other side

Path = tuple[tuple[int, int], ...]  # (number of the predicate, number of the law) of each step


def _apart(one: Array, other: Array) -> Array:
    """``(A, B) bool``: whether packed rows of ``(A, K)`` and ``(B, K)`` have no capture in common."""
    common = one[:, None, 0] & other[None, :, 0]
    for k in range(1, one.shape[1]):
        common |= one[:, None, k] & other[None, :, k]
    return common == 0


def decision_lists(agree: Array, cost: Array, masks: Array, prices: Array, weights: Array,
                   depth: int = DEPTH) -> tuple[tuple[float, Path], ...]:
    """Lists whose every step is exact on the captures that it decides, by rising description length.

    ``agree (L, N) bool`` says where each law gives the field, ``cost (L,)`` its bits; ``masks (P, N) bool`` which
    captures a predicate selects, the first all of them, ``prices (P,)`` its bits; ``weights (N,)`` the bits of a
    capture left unexplained.
    """
    chosen, fails, given = packed(masks), packed(~agree), masks.astype(np.float32)
    states: list[tuple[float, Array, Path]] = [(0.0, np.ones(len(weights), bool), ())]
    done: list[tuple[float, Path]] = []
    seen: set[bytes] = set()
    for level in range(depth):
        following: list[tuple[float, float, Array, Path]] = []
        for spent, left, path in states:
            rows = packed(left[None])
            price = cost.copy()
            price[[law for _, law in path]] = AGAIN_COST
            state = _State(chosen & rows, fails & rows, price, int(left.sum()))
            exact = np.flatnonzero(~state.wrong.any(1))
            if len(exact):
                law = int(exact[price[exact].argmin()])
                done.append((spent + float(price[law]), (*path, (0, law))))
            if depth > 1 and level < 2:
                done += [(spent + total, (*path, *two)) for total, two in _halves(state, prices, rows)]
            if level < depth - 1:
                steps = _steps(state, prices, given @ np.where(left, weights, 0).astype(np.float32))
                following += _fan(steps, masks, left, spent, path, prices, price, weights)
        following.sort(key=lambda state: state[0])
        best = min((total for total, _ in done), default=np.inf)
        states = []
        for _, spent, left, path in following:
            key = left.tobytes()
            if key not in seen and spent < best:
                seen.add(key)
                states.append((spent, left, path))
                if len(states) == BEAM:
                    break
        if not states:
            break
    return tuple(sorted(done))


class _State:
    """The captures left: which of them predicates select and laws fail on, packed; laws by rising price."""

    def __init__(self, inside: Array, wrong: Array, price: Array, n: int) -> None:
        self.inside, self.wrong, self.price, self.n = inside, wrong, price, n
        self.count = np.bitwise_count(inside).sum(1, dtype=np.int64)
        self.laws = np.argsort(price, kind="stable")
        self.right = n - np.bitwise_count(wrong).sum(1, dtype=np.int64)[self.laws]


def _halves(state: _State, prices: Array, rows: Array) -> list[tuple[float, Path]]:
    """The best ways to end with one condition and its else: (bits, steps).

    One side has half of the captures, so only laws that agree on as many can be exact there.
    """
    able = state.laws[state.right >= state.n / 2]
    asked = np.flatnonzero((state.count >= LEAST_ROWS) & (state.count <= state.n - LEAST_ROWS))
    if not len(able) or not len(asked):
        return []
    many = state.count[asked] >= state.n / 2
    inside, outside = state.inside[asked], rows & ~state.inside[asked]
    exact = _apart(state.wrong[able], np.where(many[:, None], inside, outside))
    has = exact.any(0)
    first = able[exact.argmax(0)]
    order = np.flatnonzero(has)[np.argsort((prices[asked] + state.price[first])[has], kind="stable")[:HALVES]]
    asked, many, first = asked[order], many[order], first[order]
    exact = _apart(state.wrong[state.laws], np.where(many[:, None], outside[order], inside[order]))
    second = state.laws[exact.argmax(0)]
    out: list[tuple[float, Path]] = []
    for i in np.flatnonzero(exact.any(0)):
        total = float(prices[asked[i]] + state.price[first[i]] + STEP_COST
                      + (AGAIN_COST if second[i] == first[i] else state.price[second[i]]))
        when, other = (first[i], second[i]) if many[i] else (second[i], first[i])
        out.append((total, ((int(asked[i]), int(when)), (0, int(other)))))
    return sorted(out)[:FAN]


def _steps(state: _State, prices: Array, worth: Array) -> list[tuple[float, int, int]]:
    """The best (gain, predicate, law) steps for the captures left, the law the cheapest that is exact there.

    Predicates come by falling limit of their gain, so that most need not be tried; and only laws that agree on as
    many captures as a predicate selects can be exact on them.
    """
    limit = worth - prices - state.price.min() - STEP_COST
    limit[(state.count < LEAST_ROWS) | (state.count == state.n)] = -np.inf
    order = np.argsort(-limit, kind="stable")
    order = order[:int((limit > 0).sum())]
    best: list[tuple[float, int, int]] = []
    for start in range(0, len(order), BLOCK):
        block = order[start:start + BLOCK]
        if len(best) >= 3 * FAN and limit[block[0]] <= best[3 * FAN - 1][0]:
            break
        able = state.laws[state.right >= state.count[block].min()]
        if not len(able):
            continue
        exact = _apart(state.wrong[able], state.inside[block])
        first = able[exact.argmax(0)]
        gain = worth[block] - prices[block] - state.price[first] - STEP_COST
        best += [(float(gain[i]), int(block[i]), int(first[i])) for i in np.flatnonzero(exact.any(0) & (gain > 0))]
        best.sort(key=lambda one: -one[0])
        del best[6 * FAN:]
    return best[:3 * FAN]


def _fan(steps: list[tuple[float, int, int]], masks: Array, left: Array, spent: float, path: Path, prices: Array,
         price: Array, weights: Array) -> list[tuple[float, float, Array, Path]]:
    """The next states of the best steps that leave different captures: (total, spent, left, path)."""
    out: list[tuple[float, float, Array, Path]] = []
    seen: set[bytes] = set()
    for _, predicate, law in steps:
        after = left & ~masks[predicate]
        key = after.tobytes()
        if key in seen or not after.any():
            continue
        seen.add(key)
        now = spent + float(prices[predicate] + price[law]) + STEP_COST
        out.append((now + float(weights[after].sum()), now, after, (*path, (predicate, law))))
        if len(out) == FAN:
            break
    return out


def held_out(pool: Pool, predicates: Predicates, weights: Array, depth: int = DEPTH) -> Array:
    """``(N,) bool``: the captures that a list made without them (a quarter at a time) gets wrong."""
    part = np.random.default_rng(7).permutation(len(weights)) % FOLDS
    agree, cost = pool.agree[pool.kept], pool.cost[pool.kept]
    wrong = np.zeros(len(weights), bool)
    for fold in range(FOLDS):
        seen, unseen = part != fold, part == fold
        found = decision_lists(agree[:, seen], cost, predicates.masks[:, seen], predicates.cost, weights[seen], depth)
        if not found:
            wrong[unseen] = True
            continue
        free = np.ones(int(unseen.sum()), bool)
        right = np.zeros_like(free)
        for predicate, law in found[0][1]:
            here = free & predicates.masks[predicate, unseen]
            right |= here & agree[law, unseen]
            free &= ~here
        wrong[np.flatnonzero(unseen)[~right]] = True
    return wrong
