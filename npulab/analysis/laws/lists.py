"""Decision lists for one field (when ... then ..., else ...), chosen by description length."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from npulab.analysis.laws.expressions import Array
from npulab.analysis.laws.masks import distinct, packed, weighed_octets
from npulab.analysis.laws.pool import Pool
from npulab.analysis.laws.predicates import Predicates
from npulab.analysis.laws.prior import BUDGET, PRIOR

BLOCK = BUDGET.list_block
# A table of laws is made in pieces of at most TABLE uint64 numbers, which fit a cache. A number
# holds 64 laws.
TABLE = 2**13
Path = tuple[tuple[int, int], ...]  # a pair for each step: numbers of the condition and of the law


class Choices(NamedTuple):
    """The laws and conditions from which decision lists are made.

    ``agree (L, N) bool`` says on which captures each law gives the field, ``cost (L,)`` its cost in
    bits. ``masks (P, N) bool`` says which captures each condition selects (the first condition
    selects all), ``prices (P,)`` its cost in bits. ``weights (N,)`` are the bits that a capture
    without a law costs.
    """

    agree: Array
    cost: Array
    masks: Array
    prices: Array
    weights: Array

    @classmethod
    def of(cls, pool: Pool, predicates: Predicates, weights: Array) -> Choices:
        """The laws of a pool that lists are made of, and all conditions."""
        kept = pool.kept
        return cls(pool.agree[kept], pool.cost[kept], predicates.masks, predicates.cost, weights)

    def on(self, rows: Array) -> Choices:
        """The same laws and conditions, restricted to the captures ``rows (N,) bool``."""
        agree, masks = self.agree[:, rows], self.masks[:, rows]
        return self._replace(agree=agree, masks=masks, weights=self.weights[rows])


def decision_lists(
    choices: Choices, depth: int = BUDGET.depth, partly: bool = False
) -> tuple[tuple[float, Path], ...]:
    """Decision lists by rising description length. The law of each step is right on all captures
    that the step decides.

    With ``partly`` there are also lists that leave captures without a law; the bits of these
    captures are added to their length.
    """
    agree, cost, masks, prices, weights = choices
    chosen, right = _bytes(masks), _bytes(agree)
    states: list[tuple[float, Array, Path]] = [(0.0, np.ones(len(weights), bool), ())]
    done: list[tuple[float, Path]] = []
    seen: set[bytes] = set()
    for level in range(depth):
        following: list[tuple[float, float, Array, Path]] = []
        for spent, left, path in states:
            rows = _bytes(left[None])
            price = cost.copy()
            price[[law for _, law in path]] = PRIOR.step_again
            state = _State(chosen & rows, right & rows, price, int(left.sum()))
            law = int(state.law(rows)[0])
            if law >= 0:
                done.append((spent + float(price[law]), (*path, (0, law))))
            if depth > 1 and level < 2:
                for total, two in _halves(state, prices, rows):
                    done.append((spent + total, (*path, *two)))
            if level < depth - 1:
                steps = _steps(state, prices, weighed_octets(state.inside, weights))
                for predicate, law, after in _fan(steps, masks, left):
                    now = spent + float(prices[predicate] + price[law]) + PRIOR.step
                    following.append(
                        (now + float(weights[after].sum()), now, after, (*path, (predicate, law)))
                    )
        following.sort(key=lambda state: state[0])
        best = min((total for total, path in done if not path[-1][0]), default=np.inf)
        done += [(total, path) for total, _, _, path in following if partly]
        states = []
        for _, spent, left, path in following:
            key = left.tobytes()
            if key not in seen and spent < best:
                seen.add(key)
                states.append((spent, left, path))
                if len(states) == BUDGET.beam:
                    break
        if not states:
            break
    return tuple(sorted(done))


class _State:
    """The captures that no step decided yet, and the laws to choose from. ``inside`` are the packed
    rows of conditions, restricted to these captures.

    A law is dropped if a cheaper law is right on all captures on which the law is right.
    """

    def __init__(self, inside: Array, right: Array, price: Array, n: int) -> None:
        self.inside, self.price, self.n = inside, price, n
        self.count = np.bitwise_count(inside).sum(1, dtype=np.int64)
        order = np.argsort(price, kind="stable")
        order = order[distinct(right[order].view("<u8"))]
        right = right[order]
        first = Exact(right).first(right) == np.arange(len(order))
        self.laws, self.exact = order[first], Exact(right[first])

    def law(self, inside: Array) -> Array:
        """For each row of captures ``(B, K)``, the cheapest law that is right on all of them; -1 if
        there is none.
        """
        first = self.exact.first(inside)
        if len(self.laws):
            return np.where(first < 0, -1, self.laws[first])
        return first


def _bytes(rows: Array) -> Array:
    """Rows of ``packed`` as bytes of eight captures each, instead of numbers of 64."""
    return packed(rows).view(np.uint8)


class Exact:
    """A table to find the cheapest law that is right on all captures of a set.

    ``right (L, K) uint8`` has a bit for each capture. For each group of eight captures and each of
    its 256 subsets, the table has the laws that are right on the whole subset, 64 laws in a number.
    """

    def __init__(self, right: Array) -> None:
        laws = packed(np.unpackbits(right, axis=1, bitorder="little").T).reshape(
            right.shape[1], 8, -1
        )
        self.tables = np.full((len(laws), 256, laws.shape[2]), -1, np.int64).view(np.uint64)
        self.tables[:, :, -1:] >>= np.uint64(-len(right) % 64)
        for bit in range(8):
            size = 2**bit
            self.tables[:, size : 2 * size] = self.tables[:, :size] & laws[:, bit, None]

    def first(self, inside: Array) -> Array:
        """For each row of captures ``(A, K) uint8``, the number of the first law that is right on
        all of them; -1 if there is none.
        """
        out = np.full(len(inside), -1)
        needed = np.flatnonzero(inside.any(0))
        block = TABLE // max(self.tables.shape[2], 1)
        for start in range(0, len(inside) if self.tables.shape[2] else 0, block):
            part = inside[start : start + block]
            laws = self.tables[0, :1].repeat(len(part), axis=0)
            for k in needed:
                laws &= self.tables[k].take(part[:, k], axis=0)
            word = (laws != 0).argmax(1)
            bits = laws[np.arange(len(word)), word]
            lowest = np.bitwise_count((bits & -bits) - np.uint64(1))
            out[start : start + block] = np.where(bits, 64 * word + lowest, -1)
        return out


def _halves(state: _State, prices: Array, rows: Array) -> list[tuple[float, Path]]:
    """The best ends of a list, one condition and an else, as (bits, steps). The law of the half
    with more captures is chosen first.
    """
    asked = np.flatnonzero(
        (state.count >= BUDGET.in_step) & (state.count <= state.n - BUDGET.in_step)
    )
    many = (state.count[asked] >= state.n / 2)[:, None]
    inside, outside = state.inside[asked], rows & ~state.inside[asked]
    first = state.law(np.where(many, inside, outside))
    has = np.flatnonzero(first >= 0)
    order = has[
        np.argsort(prices[asked[has]] + state.price[first[has]], kind="stable")[: BUDGET.halves]
    ]
    second = state.law(np.where(many[order], outside[order], inside[order]))
    out: list[tuple[float, Path]] = []
    for i, law in zip(order.tolist(), second.tolist(), strict=True):
        if law >= 0:
            total = float(
                prices[asked[i]]
                + state.price[first[i]]
                + PRIOR.step
                + (PRIOR.step_again if law == first[i] else state.price[law])
            )
            if many[i]:
                when, other = first[i], law
            else:
                when, other = law, first[i]
            out.append((total, ((int(asked[i]), int(when)), (0, int(other)))))
    return sorted(out)[: BUDGET.fan]


def _steps(state: _State, prices: Array, explained: Array) -> list[tuple[float, int, int]]:
    """The best next steps (gain, condition, law). The law of a step is the cheapest that is right
    on all captures that the step decides.

    Conditions are tried in the order of an upper limit of their gain, so that most need not be
    tried.
    """
    limit = explained - prices - state.price.min() - PRIOR.step
    limit[(state.count < BUDGET.in_step) | (state.count == state.n)] = -np.inf
    order = np.argsort(-limit, kind="stable")
    order = order[: int((limit > 0).sum())]
    best: list[tuple[float, int, int]] = []
    for start in range(0, len(order), BLOCK):
        block = order[start : start + BLOCK]
        if len(best) >= 3 * BUDGET.fan and limit[block[0]] <= best[3 * BUDGET.fan - 1][0]:
            break
        law = state.law(state.inside[block])
        gain = explained[block] - prices[block] - state.price[law] - PRIOR.step
        for i in np.flatnonzero((law >= 0) & (gain > 0)):
            best.append((float(gain[i]), int(block[i]), int(law[i])))
        best.sort(key=lambda one: -one[0])
        del best[6 * BUDGET.fan :]
    return best[: 3 * BUDGET.fan]


def _fan(
    steps: list[tuple[float, int, int]], masks: Array, left: Array
) -> list[tuple[int, int, Array]]:
    """(condition, law, captures left undecided) of the best steps; no two steps leave the same."""
    out: dict[bytes, tuple[int, int, Array]] = {}
    for _, predicate, law in steps:
        after = left & ~masks[predicate]
        if after.any():
            out.setdefault(after.tobytes(), (predicate, law, after))
    return list(out.values())[: BUDGET.fan]


def held_out(pool: Pool, predicates: Predicates, weights: Array, partly: bool = False) -> Array:
    """``(N,) bool``: the captures that are given wrongly by a list that was made without them; a
    quarter of the captures is held out at a time.

    A capture that the list leaves without a law is wrong, unless ``partly`` is true.
    """
    part = np.random.default_rng(7).permutation(len(weights)) % BUDGET.folds
    choices = Choices.of(pool, predicates, weights)
    wrong = np.zeros(len(weights), bool)
    for fold in range(BUDGET.folds):
        seen, unseen = part != fold, part == fold
        found = decision_lists(choices.on(seen), partly=partly)
        if not found:
            wrong[unseen] = True
            continue
        free = np.ones(int(unseen.sum()), bool)
        right = np.zeros_like(free)
        for predicate, law in found[0][1]:
            here = free & choices.masks[predicate, unseen]
            right |= here & choices.agree[law, unseen]
            free &= ~here
        wrong[np.flatnonzero(unseen)[~(right | free & partly)]] = True
    return wrong
