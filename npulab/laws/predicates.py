"""When a law holds: conditions on the parameters, with the captures each of them selects."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

import numpy as np

from npulab.laws.expressions import (
    ALWAYS,
    FIELD,
    OPPOSITE,
    Array,
    Columns,
    Expression,
    constant,
    constant_cost,
    roundest,
)

FEW = 6  # values that a column may have to count as a category
STEPS = (2, 4, 8, 16)
LEAST_ROWS = 2


def opposite(condition: Expression) -> Expression:
    return Expression(OPPOSITE[condition.op], condition.args)


def literals(condition: Expression) -> list[Expression]:
    """The conditions that an ``and`` joins."""
    if condition.op == "and":
        return [one for part in condition.args for one in literals(part)]
    return [] if condition == ALWAYS else [condition]


def both(*conditions: Expression) -> Expression:
    """All of the conditions."""
    parts = [one for one in conditions if one != ALWAYS]
    out = parts[0] if parts else ALWAYS
    for one in parts[1:]:
        out = Expression("and", (out, one))
    return out


def threshold(column: Expression, low: int, high: int) -> tuple[Expression, float]:
    """``column <= t`` for the roundest t between two captured values, and what t costs."""
    t = roundest(low, high)  # up to t, or where t is the upper value itself, below it
    below = t == high
    if not below and low + 1 <= t and t.bit_count() == 1:
        below = True  # a power of two is a limit that is not reached
    return Expression("<" if below else "<=", (column, constant(t))), constant_cost(t)


class Predicates:
    """Conditions with ``masks (P, N) bool`` of the captures they select, by rising ``cost``, equal masks merged.

    Number 0 always holds.  ``same(i)`` gives the other conditions that select the same captures.
    """

    def __init__(self, columns: Columns, leaves: Sequence[Expression], sizes: Iterable[Expression] = (),
                 extra: Iterable[tuple[Expression, float]] = ()) -> None:
        self.columns = columns
        self._conditions: list[Expression] = []
        self._costs: list[float] = []
        self._masks: list[Array] = []
        categories, natural = self._single(leaves, set(sizes))
        self._joined(categories, natural)
        for condition, cost in extra:
            self._put(condition, cost)
        self._merge()

    def _put(self, condition: Expression, cost: float) -> None:
        mask = self.columns[condition]
        count = int(mask.sum())
        if LEAST_ROWS <= count < len(mask):
            self._conditions.append(condition)
            self._costs.append(cost)
            self._masks.append(mask)

    def _single(self, leaves: Sequence[Expression], sizes: set[Expression]) -> tuple[list[tuple[Expression, float]], ...]:
        categories: list[tuple[Expression, float]] = []
        natural: list[tuple[Expression, float]] = []
        name = math.log2(len(leaves) + 1) / 2
        for column in leaves:
            values = np.unique(self.columns[column]).tolist()
            if len(values) < 2:
                continue
            if len(values) <= FEW:
                for value in values[:1] if len(values) == 2 else values:
                    categories.append((Expression("==", (column, constant(value))), 2 + name))
                if len(values) == 2:  # the other value, said of itself
                    categories.append((Expression("==", (column, constant(values[1]))), 2 + name))
                else:
                    categories += [(opposite(one), cost + 0.5) for one, cost in categories[-len(values):]]
                between = zip(values[:-1], values[1:], strict=True) if len(values) > 3 else ()
                for low, high in list(between)[1:-1]:
                    self._both_ways(*threshold(column, low, high), 2 + name)
                continue
            for value, cost in ((values[0], 5), (values[-1], 6)):
                self._both_ways(Expression("==", (column, constant(value))), 0, cost + name)
            if column not in sizes:
                continue
            for low, high in itertools.pairwise(values):
                condition, cost = threshold(column, low, high)
                self._both_ways(condition, cost, 3 + name)
                if cost <= 4:
                    natural.append((condition, 3 + name + cost))
            for step in STEPS:
                self._both_ways(Expression("divides", (column, constant(step))), 4 + name + (step > 2), 0)
            natural.append((Expression("divides", (column, constant(2))), 4 + name))
        for condition, cost in categories:
            self._put(condition, cost)
        many = [one for one in leaves if one in sizes]
        for a, b in itertools.permutations(many, 2):
            self._both_ways(Expression("<", (a, b)), 0, 4 + 2 * name)
            if many.index(a) < many.index(b):
                self._both_ways(Expression("==", (a, b)), 0, 4 + 2 * name)
        return categories, natural

    def _both_ways(self, condition: Expression, cost: float, more: float) -> None:
        self._put(condition, cost + more)
        self._put(opposite(condition), cost + more + 0.5)

    def _joined(self, categories: list[tuple[Expression, float]], natural: list[tuple[Expression, float]]) -> None:
        for length in (2, 3):
            for group in itertools.combinations(categories, length):
                if len({one.args[0] for one, _ in group}) == length:
                    self._put(both(*(one for one, _ in group)), sum(cost for _, cost in group) + length - 1)
        for one, cost in categories:
            for other, more in natural:
                self._put(both(one, other), cost + more + 1)
                self._put(both(one, opposite(other)), cost + more + 1)

    def _merge(self) -> None:
        order = np.argsort(self._costs, kind="stable")
        self.all = [self._conditions[i] for i in order]
        costs = np.array(self._costs, np.float32)[order]
        masks = np.array(self._masks, bool).reshape(-1, self.columns.n)[order]
        self.all_costs = np.maximum(costs, np.log2(np.arange(len(order)) + 1) + 1).astype(np.float32)
        self.all_masks = masks
        keys = np.packbits(masks, axis=1)
        _, first = np.unique(keys.view([("", keys.dtype, keys.shape[1])]).ravel(), return_index=True) \
            if len(keys) else (0, np.zeros(0, int))
        first.sort()
        self.conditions = [ALWAYS, *(self.all[i] for i in first)]
        self.cost = np.concatenate([[0], self.all_costs[first]]).astype(np.float32)
        self.masks = np.concatenate([np.ones((1, self.columns.n), bool), masks[first]])

    def cheaper(self, used: set[Expression]) -> Predicates:
        """The same where conditions that other fields are decided by are cheap: regimes are shared."""
        if not used:
            return self
        out = object.__new__(Predicates)
        out.columns = self.columns
        price = 2 + math.log2(len(used))
        out._conditions, out._masks = list(self.all), list(self.all_masks)
        out._costs = [min(cost, price) if one in used else cost
                      for one, cost in zip(self.all, self.all_costs.tolist(), strict=True)]
        out._merge()
        return out

    def without(self, fields: set[str]) -> Predicates:
        """The same but for conditions on some fields."""
        if not any(one.names(FIELD) & fields for one in self.all):
            return self
        out = object.__new__(Predicates)
        out.columns = self.columns
        keep = [i for i, one in enumerate(self.all) if not one.names(FIELD) & fields]
        out._conditions, out._costs = [self.all[i] for i in keep], self.all_costs[keep].tolist()
        out._masks = list(self.all_masks[keep])
        out._merge()
        return out

    def with_thresholds(self, columns: Sequence[Expression], most: int = 64) -> Predicates:
        """These and thresholds on more columns, alone and with the cheapest of these."""
        if not columns:
            return self
        out = object.__new__(Predicates)
        out.columns = self.columns
        out._conditions, out._costs = list(self.all), self.all_costs.tolist()
        out._masks = list(self.all_masks)
        single = [i for i, one in enumerate(self.conditions) if one.op not in ("and", "always")][:most]
        for column in columns:
            for low, high in itertools.pairwise(np.unique(self.columns[column]).tolist()):
                condition, cost = threshold(column, low, high)
                out._both_ways(condition, cost, 4)
                if cost <= 4:
                    for i in single:
                        out._put(both(self.conditions[i], condition), 5 + cost + float(self.cost[i]))
        out._merge()
        return out
