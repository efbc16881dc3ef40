"""Conditions on the parameters, with the captures that each selects."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from npulab.analysis.laws.expressions import (
    ALWAYS,
    FIELD,
    Array,
    Columns,
    Expression,
    term,
)
from npulab.analysis.laws.masks import distinct, packed, unpacked
from npulab.analysis.laws.operators import OPERATORS
from npulab.analysis.laws.prior import BUDGET, constant_cost, roundest

STEPS = (2, 4, 8, 16)
NONE = -1
Priced = tuple[Expression, float]  # (a condition, its cost in bits)

# P conditions: the numbers (P, 3) of the single conditions that ``and`` joins to each of them, NONE
# in place of a missing one; and their costs (P,) in bits
Group = tuple[Array, Array]


def opposite(condition: Expression) -> Expression:
    return Expression(OPERATORS[condition.op].opposite, condition.args)


def literals(condition: Expression) -> list[Expression]:
    """The single conditions that ``and`` joins to a condition; none for ``ALWAYS``."""
    if condition.op == "and":
        found = []
        for part in condition.args:
            for literal in literals(part):
                found.append(literal)
        return found
    if condition == ALWAYS:
        return []
    return [condition]


def both(*conditions: Expression) -> Expression:
    """The condition that all of these conditions hold."""
    out = ALWAYS
    for condition in conditions:
        if out == ALWAYS:
            out = condition
        elif condition == ALWAYS:
            out = out
        else:
            out = term("and", out, condition)
    return out


def threshold(column: Expression, low: int, high: int) -> Priced:
    """``column <= t``, with the roundest t between the captured values ``low`` and ``high``, and
    the cost of naming t.
    """
    # the limit t is exclusive ("< t") if it is the upper captured value, or a power of two, because
    # engineers usually write such limits so; else it is inclusive ("<= t")
    t = roundest(low, high)
    below = t == high or (low + 1 <= t and t.bit_count() == 1)
    return term("<" if below else "<=", column, t), constant_cost(t)


def both_ways(priced: Iterable[Priced]) -> list[Priced]:
    """Each condition, followed by its opposite."""
    found = []
    for condition, cost in priced:
        for way in ((condition, cost), (opposite(condition), cost + 0.5)):
            found.append(way)
    return found


class _Literals:
    """Single conditions by their number, with the captures that each selects."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self.conditions: list[Expression] = []
        self.fields: set[str] = set()  # the fields that conditions read
        self._number: dict[Expression, int] = {}
        # masks (N,) bool of the newest conditions, not yet in ``_packed``
        self._masks: list[Array] = []
        self._packed = [np.zeros((0, -(-columns.n // 64)), np.uint64)]

    def number(self, condition: Expression) -> int:
        number = self._number.setdefault(condition, len(self.conditions))
        if number == len(self.conditions):
            self.conditions.append(condition)
            self.fields |= condition.names(FIELD)
            self._masks.append(np.asarray(self.columns[condition], bool))
        return number

    def known(self, conditions: Iterable[Expression]) -> list[int]:
        """The numbers of conditions; -2 for a condition without a number."""
        return [self._number.get(condition, -2) for condition in conditions]

    def masks(self) -> Array:
        """``(L + 1, K) uint64``: for each condition the captures that it selects, packed; the last
        row, number ``NONE``, selects every capture.
        """
        if self._masks:
            self._packed.append(packed(np.array(self._masks)))
            self._masks.clear()
        return np.concatenate([*self._packed, packed(np.ones((1, self.columns.n), bool))])

    def group(self, priced: Collection[Priced]) -> Group:
        parts = np.full((len(priced), 3), NONE)
        parts[:, 0] = [self.number(condition) for condition, _ in priced]
        return parts, np.array([cost for _, cost in priced], float)

    def codes(self, parts: Array) -> Array:
        """A number for each row of literals; it is the same for rows with the same literals in
        another order.
        """
        first, second, third = np.sort(parts, 1).T + 2
        base = len(self.conditions) + 2
        return (first * base + second) * base + third


@dataclass(frozen=True, eq=False)
class Predicates:
    """Conditions by rising ``cost``; ``masks (P, N) bool`` are the captures that each selects.

    Of conditions with equal masks only the cheapest is here. Number 0 selects all captures.
    ``all_masks`` (packed) and ``all_costs`` are those of every condition, including the dearer ones
    with equal masks. ``condition(i)`` and ``any_condition(i)`` are the conditions themselves.
    """

    masks: Array
    cost: Array
    all_masks: Array
    all_costs: Array
    _all_parts: Array
    _first: Array  # for conditions 1 and up: the index of each among all conditions
    _literals: _Literals

    def __len__(self) -> int:
        return len(self.cost)

    def any_condition(self, index: int) -> Expression:
        return both(
            *(self._literals.conditions[part] for part in self._all_parts[index] if part != NONE)
        )

    def condition(self, index: int) -> Expression:
        if index == 0:
            return ALWAYS
        return self.any_condition(int(self._first[index - 1]))

    def up_to(self, cost: float) -> Predicates:
        """The conditions whose cost is at most ``cost``."""
        few = int(np.searchsorted(self.cost, cost, "right"))
        return replace(self, masks=self.masks[:few], cost=self.cost[:few])

    def cheaper(self, used: set[Expression]) -> Predicates:
        """The same conditions at lower costs for those that decide other fields already, because
        fields often have the same regimes.
        """
        price = 2 + math.log2(max(len(used), 1))
        known = [self._literals.known(literals(condition)) for condition in used]
        parts = np.array([part + [NONE] * (3 - len(part)) for part in known if len(part) <= 3], int)
        codes = self._literals.codes
        cheap = np.isin(codes(self._all_parts), codes(parts.reshape(-1, 3)))
        if not cheap.any():
            return self
        costs = np.where(cheap, np.minimum(self.all_costs, price), self.all_costs)
        return _merged(self._literals, [(self._all_parts, costs)])

    def without(self, fields: set[str]) -> Predicates:
        """The conditions that read none of these fields."""
        if not fields & self._literals.fields:
            return self
        bad = [bool(condition.names(FIELD) & fields) for condition in self._literals.conditions]
        keep = ~np.array([*bad, False])[self._all_parts].any(1)
        if keep.all():
            return self
        return _merged(self._literals, [(self._all_parts[keep], self.all_costs[keep])])

    def also(self, extra: Sequence[Priced]) -> Predicates:
        """These conditions, the further ones with their costs, and the opposites of the further
        ones.
        """
        return _merged(
            self._literals, [self._literals.group(both_ways(extra))], self, protected=2 * len(extra)
        )

    def with_thresholds(self, columns: Sequence[Expression], most: int = 64) -> Predicates:
        """These conditions and thresholds on further columns; each threshold also joined with the
        cheapest of these conditions.
        """
        if not columns:
            return self
        groups = []
        single = np.flatnonzero(self._all_parts[self._first, 1] == NONE)[:most]
        cheapest = self._all_parts[self._first[single], 0], self.cost[1:][single]
        for column in columns:
            limits, natural = _thresholds(
                column, np.unique(self._literals.columns[column]).tolist(), 4
            )
            groups += [self._literals.group(limits), *_paired(self._literals, *cheapest, natural)]
        return _merged(self._literals, groups, self)


def make_predicates(
    columns: Columns,
    leaves: Sequence[Expression],
    sizes: Collection[Expression] = (),
    extra: Collection[Priced] = (),
) -> Predicates:
    """Return conditions on leaves, each with its price in bits; sizes are also compared with
    thresholds and with each other.

    Of conditions that select the same captures the cheapest stays.
    """
    table = _Literals(columns)
    single = []
    categories = []
    natural = []
    naming = math.log2(len(leaves) + 1) / 2  # naming a column costs this many bits
    for column in leaves:
        values = np.unique(columns[column]).tolist()
        if 2 <= len(values) <= BUDGET.categories:
            equal = [term("==", column, value) for value in values]
            categories += [(condition, 2 + naming) for condition in equal]
            if len(values) > 2:
                categories += [(opposite(condition), 2.5 + naming) for condition in equal]
            limits = []
            for low, high in itertools.pairwise(values[1:-1]):
                limits.append(threshold(column, low, high))
            single += both_ways((condition, cost + 2 + naming) for condition, cost in limits)
        elif len(values) > BUDGET.categories:
            single += both_ways(
                [
                    (term("==", column, values[0]), 5 + naming),
                    (term("==", column, values[-1]), 6 + naming),
                ]
            )
            if column in sizes:
                ways, round_limits = _thresholds(column, values, 3 + naming)
                natural += [*round_limits, (term("divides", column, 2), 4 + naming)]
                single += ways + both_ways(
                    (term("divides", column, step), 4 + naming + (step > 2)) for step in STEPS
                )
    single += categories
    many = [leaf for leaf in leaves if leaf in sizes]
    for (i, a), (j, b) in itertools.product(enumerate(many), repeat=2):
        if i != j:
            single += both_ways([(term("<", a, b), 4 + 2 * naming)])
        if i < j:
            single += both_ways([(term("==", a, b), 4 + 2 * naming)])
    groups = [table.group(single), *_joined(table, categories, natural)]
    return _merged(table, [*groups, table.group(extra)])


def _thresholds(
    column: Expression, values: Sequence[int], price: float
) -> tuple[list[Priced], list[Priced]]:
    """Limits of a column between any two captured values, in both directions, and round limits."""
    limits = [threshold(column, low, high) for low, high in itertools.pairwise(values)]
    most = 2 + math.log2(len(values))  # the bits that it takes to name one of the gaps
    return (
        both_ways((condition, min(cost, most) + price) for condition, cost in limits),
        [(condition, cost + price) for condition, cost in limits if cost <= 4],
    )


def _joined(
    table: _Literals, categories: Sequence[Priced], natural: Sequence[Priced]
) -> list[Group]:
    """Pairs and triples of categories, and pairs of a category and a round limit."""
    numbers = np.array([table.number(condition) for condition, _ in categories], int)
    costs = np.array([cost for _, cost in categories])
    columns = {}
    for i, column in enumerate(dict.fromkeys(condition.args[0] for condition, _ in categories)):
        columns[column] = i
    of = np.array([columns[condition.args[0]] for condition, _ in categories], int)
    groups = []
    for length in (2, 3):
        if len(numbers) >= length:
            chosen = np.array([*itertools.combinations(range(len(numbers)), length)])
            chosen = chosen[(np.diff(np.sort(of[chosen], 1), axis=1) > 0).all(1)]
            parts = np.full((len(chosen), 3), NONE)
            parts[:, :length] = numbers[chosen]
            groups.append((parts, costs[chosen].sum(1) + length - 1))
    return [*groups, *_paired(table, numbers, costs, natural)]


def _paired(
    table: _Literals, numbers: Array, costs: Array, limits: Sequence[Priced]
) -> list[Group]:
    """Each literal joined with each limit, and with the opposite of each limit."""
    ways = []
    for condition, cost in limits:
        for way in (condition, opposite(condition)):
            ways.append((table.number(way), cost))
    found = []
    for limit, cost in ways:
        found.append(
            (
                np.stack([numbers, np.full_like(numbers, limit), np.full_like(numbers, NONE)], 1),
                costs + cost + 1,
            )
        )
    return found


def _merged(
    table: _Literals, groups: Sequence[Group], base: Predicates | None = None, protected: int = 0
) -> Predicates:
    """Conditions, merged with those of a ``base``: of conditions that select the same captures the
    cheapest stays.

    If there are too many conditions, the dearest are left out, but none of the last ``protected``.
    """
    n = table.columns.n
    parts, costs = (np.concatenate(arrays) for arrays in zip(*groups, strict=True))
    of_literal = table.masks()
    masks = of_literal[parts[:, 0]] & of_literal[parts[:, 1]] & of_literal[parts[:, 2]]
    count = np.bitwise_count(masks).sum(1, dtype=np.int64)
    some = np.flatnonzero((count >= BUDGET.in_step) & (count < n))
    protected = int((some >= len(costs) - protected).sum())
    parts, costs, masks, new = parts[some], costs[some], masks[some], np.ones(len(some), bool)
    if base is not None:
        parts, costs = (
            np.concatenate([base._all_parts, parts]),
            np.concatenate([base.all_costs, costs]),
        )
        masks, new = np.concatenate([base.all_masks, masks]), np.pad(new, (len(base.all_costs), 0))
        # only the conditions of the base with different masks can be the first with their mask
        new[base._first] = True
    order = np.argsort(costs, kind="stable")
    all_masks = masks[order]
    all_costs = np.maximum(costs[order], np.log2(np.arange(len(order)) + 1) + 1).astype(np.float32)
    likely = np.flatnonzero(new[order])
    first = likely[distinct(all_masks[likely])]
    first = first[
        (np.arange(len(first)) < BUDGET.conditions) | (order[first] >= len(order) - protected)
    ]
    return Predicates(
        unpacked(np.concatenate([of_literal[NONE:], all_masks[first]]), n),
        np.concatenate([[0], all_costs[first]]).astype(np.float32),
        all_masks,
        all_costs,
        parts[order],
        first,
        table,
    )
