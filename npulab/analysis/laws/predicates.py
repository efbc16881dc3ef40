"""When a law holds: conditions on the parameters, with the captures each of them selects."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

import numpy as np

from npulab.analysis.laws.expressions import (
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
from npulab.analysis.laws.masks import distinct, packed, unpacked

FEW = 6  # values that a column may have to count as a category
STEPS = (2, 4, 8, 16)
LEAST_ROWS = 2
NONE = -1
MOST = 16_000  # conditions that select different captures, the cheapest


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
    # a power of two is a limit that is not reached
    below = t == high or (low + 1 <= t and t.bit_count() == 1)
    return Expression("<" if below else "<=", (column, constant(t))), constant_cost(t)


def _combinations(n: int, length: int) -> Array:
    """``(C, length)``: as ``itertools.combinations(range(n), length)``."""
    out = np.arange(n)[:, None]
    for _ in range(length - 1):
        more = n - 1 - out[:, -1]
        last = np.arange(more.sum()) - np.repeat(more.cumsum() - more, more)
        out = np.repeat(out, more, axis=0)
        out = np.concatenate([out, (out[:, -1] + 1 + last)[:, None]], 1)
    return out


class Predicates:
    """Conditions with ``masks (P, N) bool`` of the captures they select, by rising ``cost``, equal
    masks merged.

    Number 0 always holds.  ``all_masks`` (packed) and ``all_costs`` are those of every condition,
    rivals included; ``condition(i)`` and ``any_condition(i)`` are the conditions themselves.
    """

    def __init__(self, columns: Columns, leaves: Sequence[Expression], sizes: Iterable[Expression] = (),
                 extra: Iterable[tuple[Expression, float]] = ()) -> None:
        self.columns = columns
        self._literals: list[Expression] = []
        self._number: dict[Expression, int] = {}
        self._literal_masks: list[Array] = []  # of the literals that are not in the table yet
        self._table: list[Array] = []  # those of the others, packed
        self._parts: list[Array] = []  # (P, 3) numbers of literals, -1 for none
        self._prices: list[Array] = []
        categories, natural = self._single(leaves, set(sizes))
        self._joined(categories, natural)
        for condition, cost in extra:
            self._put(condition, cost)
        self._merge(*self._gathered())

    def _literal(self, condition: Expression) -> int:
        number = self._number.get(condition)
        if number is None:
            number = self._number[condition] = len(self._literals)
            self._literals.append(condition)
            self._literal_masks.append(np.asarray(self.columns[condition], bool))
        return number

    def _put(self, condition: Expression, cost: float) -> int:
        number = self._literal(condition)
        self._parts.append(np.array([[number, NONE, NONE]]))
        self._prices.append(np.array([cost]))
        return number

    def _both_ways(self, condition: Expression, cost: float) -> None:
        self._put(condition, cost)
        self._put(opposite(condition), cost + 0.5)

    def _single(self, leaves: Sequence[Expression], sizes: set[Expression],
                ) -> tuple[list[tuple[Expression, float]], list[tuple[Expression, float]]]:
        categories: list[tuple[Expression, float]] = []
        natural: list[tuple[Expression, float]] = []
        name = math.log2(len(leaves) + 1) / 2
        for column in leaves:
            values = np.unique(self.columns[column]).tolist()
            if 2 <= len(values) <= FEW:
                equal = [Expression("==", (column, constant(value))) for value in values]
                categories += [(one, 2 + name) for one in equal]
                if len(values) > 2:
                    categories += [(opposite(one), 2.5 + name) for one in equal]
                for low, high in itertools.pairwise(values[1:-1]):
                    condition, cost = threshold(column, low, high)
                    self._both_ways(condition, cost + 2 + name)
            elif len(values) > FEW:
                self._both_ways(Expression("==", (column, constant(values[0]))), 5 + name)
                self._both_ways(Expression("==", (column, constant(values[-1]))), 6 + name)
                if column in sizes:
                    natural += self._thresholds(column, values, 3 + name)
                    for step in STEPS:
                        self._both_ways(Expression("divides", (column, constant(step))), 4 + name + (step > 2))
                    natural.append((Expression("divides", (column, constant(2))), 4 + name))
        for condition, cost in categories:
            self._put(condition, cost)
        many = [one for one in leaves if one in sizes]
        for i, a in enumerate(many):
            for j, b in enumerate(many):
                if i != j:
                    self._both_ways(Expression("<", (a, b)), 4 + 2 * name)
                if i < j:
                    self._both_ways(Expression("==", (a, b)), 4 + 2 * name)
        return categories, natural

    def _thresholds(self, column: Expression, values: Sequence[int], price: float) -> list[tuple[Expression, float]]:
        """Limits between all captured values; gives those that are round."""
        round_ones = []
        for low, high in itertools.pairwise(values):
            condition, cost = threshold(column, low, high)
            # at most what it takes to name one of the gaps
            self._both_ways(condition, min(cost, 2 + math.log2(len(values))) + price)
            if cost <= 4:
                round_ones.append((condition, cost + price))
        return round_ones

    def _joined(self, categories: Sequence[tuple[Expression, float]],
                natural: Sequence[tuple[Expression, float]]) -> None:
        """Two and three categories at once; a category and a round limit."""
        numbers = np.array([self._literal(one) for one, _ in categories], int)
        costs = np.array([cost for _, cost in categories])
        columns = {one: i for i, one in enumerate(dict.fromkeys(one.args[0] for one, _ in categories))}
        of = np.array([columns[one.args[0]] for one, _ in categories], int)
        for length in (2, 3):
            if len(numbers) >= length:
                groups = _combinations(len(numbers), length)
                apart = (np.diff(np.sort(of[groups], 1), axis=1) > 0).all(1)
                groups = groups[apart]
                parts = np.full((len(groups), 3), NONE)
                parts[:, :length] = numbers[groups]
                self._parts.append(parts)
                self._prices.append(costs[groups].sum(1) + length - 1)
        limits = [(self._literal(way), cost) for one, cost in natural for way in (one, opposite(one))]
        self._pair(numbers, costs, limits)

    def _pair(self, numbers: Array, costs: Array, limits: Sequence[tuple[int, float]]) -> None:
        for limit, cost in limits if len(numbers) else ():
            self._parts.append(np.stack([numbers, np.full_like(numbers, limit), np.full_like(numbers, NONE)], 1))
            self._prices.append(costs + cost + 1)

    def _gathered(self) -> tuple[Array, Array]:
        parts = np.concatenate(self._parts) if self._parts else np.zeros((0, 3), int)
        return parts, np.concatenate(self._prices) if self._prices else np.zeros(0)

    def _merge(self, parts: Array, costs: Array, asked: int = 0) -> None:
        """``asked`` of them, the last ones, stay however many are cheaper."""
        n = self.columns.n
        every = packed(np.ones((1, n), bool))
        if self._literal_masks:
            self._table.append(packed(np.array(self._literal_masks)))
            self._literal_masks.clear()
        table = np.concatenate([*self._table, every])  # the last is "none"
        masks = table[parts[:, 0]] & table[parts[:, 1]] & table[parts[:, 2]]
        count = np.bitwise_count(masks).sum(1, dtype=np.int64)
        order = np.argsort(costs, kind="stable")
        order = order[(count[order] >= LEAST_ROWS) & (count[order] < n)]
        self._all_parts, self.all_masks = parts[order], masks[order]
        self.all_costs = np.maximum(costs[order], np.log2(np.arange(len(order)) + 1) + 1).astype(np.float32)
        first = distinct(self.all_masks)
        self._first = first[(np.arange(len(first)) < MOST) | (order[first] >= len(parts) - asked)]
        self.cost = np.concatenate([[0], self.all_costs[self._first]]).astype(np.float32)
        self.masks = unpacked(np.concatenate([every, self.all_masks[self._first]]), n)

    def __len__(self) -> int:
        return len(self.cost)

    def any_condition(self, index: int) -> Expression:
        return both(*(self._literals[part] for part in self._all_parts[index] if part != NONE))

    def condition(self, index: int) -> Expression:
        return ALWAYS if index == 0 else self.any_condition(int(self._first[index - 1]))

    def _changed(self, parts: Array, costs: Array, asked: int = 0) -> Predicates:
        out = object.__new__(Predicates)
        out.columns, out._literals, out._number = self.columns, self._literals, self._number
        out._literal_masks, out._table = self._literal_masks, self._table
        out._merge(parts, costs, asked)
        return out

    def _codes(self, parts: Array) -> Array:
        """A number for each set of literals."""
        first, second, third = np.sort(parts, 1).T + 2
        return (first * (len(self._literals) + 2) + second) * (len(self._literals) + 2) + third

    def cheaper(self, used: set[Expression]) -> Predicates:
        """The same where conditions that other fields are decided by are cheap: regimes are
        shared."""
        price = 2 + math.log2(max(len(used), 1))
        known = [[self._number.get(one, -2) for one in literals(condition)] for condition in used]
        parts = np.array([one + [NONE] * (3 - len(one)) for one in known if len(one) <= 3], int)
        cheap = np.isin(self._codes(self._all_parts), self._codes(parts.reshape(-1, 3)))
        if not cheap.any():
            return self
        return self._changed(self._all_parts, np.where(cheap, np.minimum(self.all_costs, price), self.all_costs))

    def without(self, fields: set[str]) -> Predicates:
        """The same but for conditions on some fields."""
        bad = np.array([bool(one.names(FIELD) & fields) for one in self._literals] + [False]) if fields else np.zeros(1)
        if not bad.any():
            return self
        keep = ~bad[self._all_parts].any(1)
        return self if keep.all() else self._changed(self._all_parts[keep], self.all_costs[keep])

    def also(self, extra: Sequence[tuple[Expression, float]]) -> Predicates:
        """These and more conditions, with their costs, and the opposites."""
        if not extra:
            return self
        self._parts, self._prices = [self._all_parts], [self.all_costs]
        for condition, cost in extra:
            self._both_ways(condition, cost)
        return self._changed(*self._gathered(), asked=2 * len(extra))

    def with_thresholds(self, columns: Sequence[Expression], most: int = 64) -> Predicates:
        """These and thresholds on more columns, alone and with the cheapest of these."""
        if not columns:
            return self
        self._parts, self._prices = [self._all_parts], [self.all_costs]
        single = np.flatnonzero(self._all_parts[self._first, 1] == NONE)[:most]
        numbers, costs = self._all_parts[self._first[single], 0], self.cost[1:][single]
        for column in columns:
            values = np.unique(self.columns[column]).tolist()
            for one, cost in self._thresholds(column, values, 4):
                self._pair(numbers, costs, [(self._literal(way), cost) for way in (one, opposite(one))])
        return self._changed(*self._gathered())
