"""Decision lists for one field: when ... then ..., else ..., chosen by description length."""

from __future__ import annotations

import numpy as np

from npulab.laws.expressions import Array
from npulab.laws.pool import Pool
from npulab.laws.predicates import LEAST_ROWS, Predicates

DEPTH, BEAM, FAN = 6, 3, 8
STEP_COST, AGAIN_COST = 1.0, 2.0
FOLDS = 4
BLOCK = 256
HALVES = 500  # conditions whose larger side has a law, looked at for the other side

Path = tuple[tuple[int, int], ...]  # (number of the predicate, number of the law) of each step


def decision_lists(agree: Array, cost: Array, masks: Array, prices: Array, weights: Array,
                   depth: int = DEPTH) -> tuple[tuple[float, Path], ...]:
    """Lists whose every step is exact on the captures that it decides, by rising description length.

    ``agree (L, N) bool`` says where each law gives the field, ``cost (L,)`` its bits; ``masks (P, N) bool`` which
    captures a predicate selects, the first all of them, ``prices (P,)`` its bits; ``weights (N,)`` the bits of a
    capture left unexplained.
    """
    chosen = masks.astype(np.float32)
    fails = (~agree).astype(np.float32)
    states: list[tuple[float, Array, Path]] = [(0.0, np.ones(len(weights), bool), ())]
    done: list[tuple[float, Path]] = []
    seen: set[bytes] = set()
    for level in range(depth):
        following: list[tuple[float, float, Array, Path]] = []
        for spent, left, path in states:
            rows = np.flatnonzero(left)
            price = cost.copy()
            price[[law for _, law in path]] = AGAIN_COST
            wrong = fails[:, rows]
            exact = np.flatnonzero(~wrong.any(1))
            if len(exact):
                law = int(exact[price[exact].argmin()])
                done.append((spent + float(price[law]), (*path, (0, law))))
            if depth > 1 and level < 2:
                done += [(spent + total, (*path, *two)) for total, two
                         in _halves(chosen[:, rows], prices, wrong, price)]
            if level < depth - 1:
                steps = _steps(chosen[:, rows], prices, wrong, price, weights[rows])
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


def _halves(inside: Array, prices: Array, wrong: Array, price: Array) -> list[tuple[float, Path]]:
    """The best ways to end with one condition and its else: (bits, steps).

    One side has half of the captures, so only laws that agree on as many can be exact there.
    """
    n = inside.shape[1]
    laws = np.argsort(price, kind="stable")
    able = laws[(n - wrong[laws].sum(1)) >= n / 2]
    count = inside.sum(1)
    asked = np.flatnonzero((count >= LEAST_ROWS) & (count <= n - LEAST_ROWS))
    if not len(able) or not len(asked):
        return []
    failed = wrong[able] @ inside[asked].T
    many = count[asked] >= n / 2
    # of the other side a law fails on the rest of its failures
    exact = np.where(many, failed, wrong[able].sum(1)[:, None] - failed) == 0
    has = exact.any(0)
    asked, many, first = asked[has], many[has], able[exact.argmax(0)[has]]
    order = np.argsort(prices[asked] + price[first], kind="stable")[:HALVES]
    asked, many, first = asked[order], many[order], first[order]
    small = np.where(many[:, None], 1 - inside[asked], inside[asked])
    exact = wrong[laws] @ small.T == 0
    has = exact.any(0)
    second = laws[exact.argmax(0)]
    out: list[tuple[float, Path]] = []
    for i in np.flatnonzero(has):
        total = float(prices[asked[i]] + price[first[i]] + STEP_COST
                      + (AGAIN_COST if second[i] == first[i] else price[second[i]]))
        when, other = (first[i], second[i]) if count[asked[i]] >= n / 2 else (second[i], first[i])
        out.append((total, ((int(asked[i]), int(when)), (0, int(other)))))
    return sorted(out)[:FAN]


def _steps(inside: Array, prices: Array, wrong: Array, price: Array, weights: Array) -> list[tuple[float, int, int]]:
    """The best (gain, predicate, law) steps for the captures left, the law the cheapest that is exact there.

    Predicates come by rising limit of their gain, so that most need not be tried; and only laws that agree on as
    many captures as a predicate selects can be exact on them.
    """
    count, worth = inside.sum(1), inside @ weights
    limit = worth - prices - price.min() - STEP_COST
    limit[(count < LEAST_ROWS) | (count == len(weights))] = -np.inf
    order = np.argsort(-limit, kind="stable")
    order = order[:int((limit > 0).sum())]
    laws = np.argsort(price, kind="stable")
    right = len(weights) - wrong[laws].sum(1)
    best: list[tuple[float, int, int]] = []
    for start in range(0, len(order), BLOCK):
        block = order[start:start + BLOCK]
        if len(best) >= 3 * FAN and limit[block[0]] <= best[3 * FAN - 1][0]:
            break
        able = laws[right >= count[block].min()]
        if not len(able):
            continue
        exact = wrong[able] @ inside[block].T == 0
        has = exact.any(0)
        first = able[exact.argmax(0)]
        gain = worth[block] - prices[block] - price[first] - STEP_COST
        best += [(float(gain[i]), int(block[i]), int(first[i])) for i in np.flatnonzero(has & (gain > 0))]
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
