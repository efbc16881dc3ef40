"""The law library: general shapes over the parameters, cheapest first; shapes with equal columns
are rivals."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from npulab.analysis.laws.expressions import (
    CONSTANT,
    GIVEN,
    OPERATORS,
    Array,
    Columns,
    Expression,
    constant,
    constant_cost,
    field,
    parameter,
)

USUAL = (2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 64, 128)
POWERS = (2, 4, 8, 16, 32, 64, 128, 256)
CAPS = (1, 2, 3, 4, 6, 7, 8, 15, 16, 31, 32, 63, 64, 127, 128, 255, 256, 511, 512, 1023)
ADDED = (-2, 2, 3, 4, 7, 8, 15, 16, 31, 32, 63, 64)
# bits an operator costs
COST = {"+": 3.0, "-": 3.0, "*": 3.0, "//": 4.0, "ceil": 4.0, "min": 4.0, "max": 4.0, "^": 5.0}
PARAMETER_COST, FIELD_COST, GIVEN_COST = 4.0, 5.0, 4.0
SMALL = 16  # a kernel, a stride, a padding stay below it
FACTORS = (1, -1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 64)
SAMPLE = 64  # captures that most laws are told apart on
TILES = (1, 2, 4, 8, 16)
MOST_DIVISOR = 40
ALIGNMENTS, MOST_AREAS = (8, 16, 32, 64), 12_000
MOST_FACTORS = 14  # columns that products are made of
RIVALS = 12  # kept of the shapes that give one column
PAIRS, PARENTS, WORDY = 16_000, 3_000, 500  # shapes of two columns; those that grow on; those that take a third
MOST_VALUES = 40_000_000  # of the whole library: 160 MB
BLOCK = 250_000  # values that are made at once
LEAF = "leaf"
SYMBOLS = (LEAF, *OPERATORS)
CODES = {symbol: code for code, symbol in enumerate(SYMBOLS)}


class _Nodes:
    """How columns are made, as arrays: node i is ``op`` on ``left`` and ``right`` (-1: on one), or
    leaf ``left``."""

    def __init__(self) -> None:
        self.n = 0
        self.leaves: list[Expression] = []
        self.op = np.zeros(1024, np.int8)
        self.left, self.right = np.zeros(1024, np.int32), np.zeros(1024, np.int32)
        self.cost = np.zeros(1024)
        self.uses = np.zeros(1024, np.uint64)  # a bit for each field
        self.kept = np.zeros(1024, bool)  # the first of its values, and so in the library
        self.key = np.zeros(1024, np.uint64)  # the same for the same values, 0 for those that were not compared

    def add(self, op: str, left: Any, right: Any, cost: Any, count: int) -> Array:
        """``count`` more nodes: their numbers."""
        first, end = self.n, self.n + count
        while end > len(self.op):
            for name in ("op", "left", "right", "cost", "uses", "kept", "key"):
                old = getattr(self, name)
                setattr(self, name, np.concatenate([old, np.zeros_like(old)]))
        self.op[first:end], self.left[first:end], self.right[first:end] = CODES[op], left, right
        self.cost[first:end] = cost
        if op != LEAF:
            self.uses[first:end] = self.uses[left]
            if np.ndim(right) or right >= 0:
                self.uses[first:end] |= self.uses[right]
        self.n = end
        return np.arange(first, end)

    def leaf(self, law: Expression, cost: float, uses: int) -> int:
        node = int(self.add(LEAF, len(self.leaves), -1, cost, 1)[0])
        self.uses[node] = uses
        self.leaves.append(law)
        return node

    def is_leaf(self, node: Any) -> Any:
        return self.op[node] == CODES[LEAF]

    def is_constant(self, node: int) -> bool:
        return bool(self.is_leaf(node)) and self.leaves[self.left[node]].op == CONSTANT

    def expression(self, node: int) -> Expression:
        if self.is_leaf(node):
            return self.leaves[self.left[node]]
        parts = [self.left[node]] if self.right[node] < 0 else [self.left[node], self.right[node]]
        return Expression(SYMBOLS[self.op[node]], tuple(self.expression(int(part)) for part in parts))

    @cached_property
    def _by_key(self) -> tuple[Array, Array]:
        nodes = np.flatnonzero(self.key[:self.n])
        nodes = nodes[np.argsort(self.key[nodes], kind="stable")]
        return nodes, self.key[nodes]

    def twins(self, node: int) -> list[int]:
        """Other nodes of the same values, the first ones."""
        nodes, keys = self._by_key
        first, end = (int(np.searchsorted(keys, self.key[node], side)) for side in ("left", "right"))
        return [one for one in nodes[first:min(end, first + RIVALS + 1)].tolist() if one != node]


class _Values:
    """Columns that others are made of, by node."""

    def __init__(self, n: int) -> None:
        self._rows: Array = np.zeros((256, n), np.int64)
        self._n = 0
        self._at: dict[int, int] = {}

    def __getitem__(self, node: int) -> Array:
        return self._rows[self._at[int(node)]]

    def __setitem__(self, node: int, values: Array) -> None:
        self.put([node], values[None])

    def of(self, nodes: Sequence[int] | Array) -> Array:
        """``(len(nodes), N)``."""
        at = self._at
        return self._rows[[at[node] for node in (nodes.tolist() if isinstance(nodes, np.ndarray) else nodes)]]

    def put(self, nodes: Iterable[int], values: Array) -> None:
        first = self._n
        self._n += len(values)
        while first + len(values) > len(self._rows):
            self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
        self._rows[first:first + len(values)] = values
        self._at.update((node, first + i) for i, node in enumerate(nodes))


@dataclass(frozen=True, eq=False)
class _Candidates:
    """Columns that could be made: ``cost``, code of the operator, ``left`` and ``right`` node, each
    ``(C,)``."""

    cost: Array
    op: Array
    left: Array
    right: Array

    def of(self, chosen: Array) -> _Candidates:
        return _Candidates(self.cost[chosen], self.op[chosen], self.left[chosen], self.right[chosen])

    @staticmethod
    def joined(parts: Sequence[_Candidates]) -> _Candidates:
        return _Candidates(*(np.concatenate([getattr(one, name) for one in parts] or [np.zeros(0, int)])
                             for name in ("cost", "op", "left", "right")))


@dataclass(frozen=True, eq=False)
class Leaf:
    """A plain column: ``uses`` has the bit of the field that it is."""

    law: Expression
    values: Array
    cost: float
    uses: int


class Library:
    """Columns ``values (L, N) uint32`` of laws by rising ``cost`` (bits), equal ones merged.

    ``columns`` are the captures' parameters; ``integers`` their whole-valued names, ``fields``
    those of fields already explained, ``reals`` the others, which enter as float32 bit patterns of
    products and ratios only. ``factors`` are integers that only enter ``products (P, N) int64``,
    the sizes and their products beside the library. ``[i]`` is law i as an expression,
    ``rivals(i)`` all the shapes that give the same column.
    """

    def __init__(self, columns: Columns, integers: Sequence[str], reals: Sequence[str] = (),
                 fields: Sequence[str] = (), given: Sequence[str] = (), most: int = 110_000, seed: int = 1,
                 factors: Sequence[str] = ()) -> None:
        self.columns = columns
        self.n = columns.n
        self._weights = np.random.default_rng(seed).integers(1, 2 ** 62, self.n).astype(np.uint64) * np.uint64(2) + 1
        self._nodes = _Nodes()
        self._known: set[int] = set()
        self._kept: list[tuple[Array, Array]] = []  # (nodes, values uint32) of the columns that are new
        self._parents = _Values(self.n)
        self._constants: dict[int, int] = {}
        # fields beyond the 64th share a bit: they count as one
        self._field_bit = {field(name): 2 ** min(i, 63) for i, name in enumerate(fields)}
        self._most = min(most, max(MOST_VALUES // self.n, 1000))
        self._grow([parameter(name) for name in integers], [field(name) for name in fields],
                   [Expression(GIVEN, (text,)) for text in given], [parameter(name) for name in factors])
        self._first_real = self._nodes.n
        self._reals(reals)
        self._finish()

    def __len__(self) -> int:
        return len(self.values)

    def without(self, uses: int) -> Library:
        """The same library but for the laws that use any of these fields."""
        if not uses:
            return self
        out = object.__new__(Library)
        out.__dict__.update(self.__dict__)
        keep = (self.uses & np.uint64(uses)) == 0
        out.nodes, out.values, out.cost, out.uses = (
            one[keep] for one in (self.nodes, self.values, self.cost, self.uses))
        out.sample = self.sample[keep]
        keep = (self.linear_uses & np.uint64(uses)) == 0
        out.linear, out.linear_cost, out.linear_uses = self.linear[keep], self.linear_cost[keep], self.linear_uses[keep]
        out._linear_pairs = self._linear_pairs[keep]
        keep = (self.area_uses & np.uint64(uses)) == 0
        out.areas, out.area_cost, out.area_uses = self.areas[keep], self.area_cost[keep], self.area_uses[keep]
        out._area_of = self._area_of[keep]
        keep = (self.product_uses & np.uint64(uses)) == 0
        out.products, out.product_cost = self.products[keep], self.product_cost[keep]
        out.product_uses = self.product_uses[keep]
        out._product_of = [one for one, kept in zip(self._product_of, keep, strict=True) if kept]
        out.leaves = [leaf for leaf in self.leaves if not leaf.uses & uses]
        return out

    def field_bit(self, name: str) -> int:
        """The bit of ``uses`` that stands for a field, 0 for one that the library has not."""
        return self._field_bit.get(field(name), 0)

    def leaf_pairs(self) -> Iterator[tuple[Leaf, Leaf]]:
        """(x, z) of plain columns: x nothing or a field, z any size but x."""
        nothing = Leaf(constant(0), np.zeros(self.n, np.int64), 0.0, 0)
        for x in [nothing, *(leaf for leaf in self.leaves if leaf.uses)]:
            for z in self.leaves:
                if z is not x:
                    yield x, z

    def __getitem__(self, index: int) -> Expression:
        return self._nodes.expression(int(self.nodes[index]))

    def rivals(self, index: int, within: float) -> list[tuple[float, Expression]]:
        """Other shapes of the same column, with how many bits dearer, at most ``within``."""
        node, costs = int(self.nodes[index]), self._nodes.cost
        out = []
        for other in self._nodes.twins(node):
            dearer = max(float(costs[other] - costs[node]), 0.0)
            if dearer <= within:
                out.append((dearer, self._nodes.expression(other)))
        return sorted(out, key=lambda one: one[0])

    # -- growing

    def _leaves(self, expressions: Iterable[Expression], cost: float) -> list[int]:
        nodes = []
        for one in expressions:
            node = self._nodes.leaf(one, cost, self._field_bit.get(one, 0))
            values = np.asarray(self.columns[one], np.int64)
            self._merge(np.array([node]), values[None])
            self._parents[node] = values
            nodes.append(node)
        return nodes

    def _new(self, nodes: Sequence[int]) -> list[int]:
        """The nodes whose columns are not those of others."""
        return [node for node in nodes if self._nodes.kept[node]]

    def _constant(self, value: int) -> int:
        if value not in self._constants:
            self._constants[value] = self._nodes.leaf(constant(value), 0.0, 0)
        return self._constants[value]

    def _apply(self, op: str, left: Sequence[int] | Array, right: Any, costs: Sequence[float] | Array, keep: bool,
               ) -> list[int]:
        """New columns ``left op right``; ``right`` is None, a constant or one node for each of
        ``left``."""
        fresh: list[int] = []
        function = OPERATORS[op][0]
        step = max(BLOCK // self.n, 1)
        for start in range(0, len(left), step):
            part = left[start:start + step]
            values = self._parents.of(part)
            if right is None:
                values, others = function(values), -1
            elif isinstance(right, int):
                values, others = function(values, right), self._constant(right)
            else:
                others = right[start:start + step]
                values = function(values, self._parents.of(others))
            nodes = self._nodes.add(op, part, others, costs[start:start + step], len(part))
            new = self._merge(nodes, values)
            fresh += nodes[new].tolist()
            if keep:
                self._parents.put(nodes[new].tolist(), values[new])
        return fresh

    def _merge(self, nodes: Array, values: Array) -> Array:
        """Which of the columns are new; the others are rivals of the first with the same values."""
        keys = values.view(np.uint64) @ self._weights
        varies = np.flatnonzero((values != values[:, :1]).any(1))
        new, known = [], self._known
        for i, key in zip(varies.tolist(), keys[varies].tolist(), strict=True):
            if key not in known:
                known.add(key)
                new.append(i)
        found = np.array(new, int)
        self._nodes.key[nodes[varies]] = keys[varies]
        self._nodes.kept[nodes[found]] = True
        if new:
            self._kept.append((nodes[found], values[found].astype(np.uint32)))
        return found

    def _cheapest(self, candidates: _Candidates, most: int, keep: bool) -> list[int]:
        """Make the cheapest candidates, by rising cost within each operator."""
        order = np.argsort(candidates.cost, kind="stable")[:most]
        fresh: list[int] = []
        # in slices of rising cost, so that the first of equal columns is a cheap one
        for start in range(0, len(order), 2500):
            chosen = order[start:start + 2500]
            codes, first = np.unique(candidates.op[chosen], return_index=True)
            for code in codes[np.argsort(first)]:
                group = chosen[candidates.op[chosen] == code]
                fresh += self._apply(SYMBOLS[code], candidates.left[group], candidates.right[group],
                                     candidates.cost[group], keep)
        return fresh

    def _unary(self, nodes: Sequence[int], shapes: Sequence[tuple[str, int | None, float]], keep: bool) -> list[int]:
        fresh = []
        for op, value, cost in shapes:
            fresh += self._apply(op, nodes, value, self._nodes.cost[nodes] + cost, keep)
        return fresh

    def _negated(self, nodes: Sequence[int], values: Sequence[int]) -> list[int]:
        """constant - column."""
        fresh = []
        for value in values:
            at = self._constant(value)
            self._parents[at] = np.full(self.n, value, np.int64)
            fresh += self._apply("-", [at] * len(nodes), list(nodes),
                                 self._nodes.cost[nodes] + 4 + constant_cost(value), True)
        return fresh

    def _grow(self, parameters: list[Expression], fields: list[Expression], given: list[Expression],
              factors: list[Expression]) -> None:
        own = self._leaves(given, GIVEN_COST)
        base = self._leaves(parameters, PARAMETER_COST) + self._leaves(fields, FIELD_COST)
        base = self._new(base)
        cost = constant_cost
        first: list[tuple[str, int | None, float]] = [("+", -1, 2), ("+", 1, 2.5)]
        first += [("+", k, 3 + cost(k)) for k in ADDED]
        first += [("clog2", None, 4), ("flog2", None, 4), ("!=0", None, 3), ("%", 2, 4)]
        first += [(op, k, 2 + cost(k)) for op in ("ceil", "//") for k in (*range(2, MOST_DIVISOR), *USUAL[-2:])]
        first += [("align", k, 3 + cost(k)) for k in POWERS]
        first += [("min", k, 3 + cost(k)) for k in CAPS] + [("max", k, 3 + cost(k)) for k in (1, 2, 4, 8, 16, 32)]
        first += [("*", k, 2 + cost(k)) for k in (2, 3, 4, 5, 7, 8, 16, 32, 64)]
        first += [("%", k, 4 + cost(k)) for k in (4, 8, 16)]
        ones = self._unary(base + own, first, True) + self._negated(base + own, (0, 1, 2, 3, 4, 7, 8, 15, 16, 31, 32))
        sizes = [node for node in base if self._counts(node)] + own
        small = {node for node in sizes if self._parents[node].max() <= SMALL and self._parents[node].min() >= 0}
        plain = [node for node in sizes if not self._nodes.uses[node]]
        self._conv_sizes([node for node in plain if node not in small], [node for node in plain if node in small])
        costs = self._nodes.cost
        ofsize = set(sizes)
        cheap = [node for node in ones if self._base(node) in ofsize and costs[node] <= 11]
        cheap = sorted(cheap, key=lambda node: float(costs[node]))[:260 if len(sizes) < 14 else 160]
        self.leaves = [Leaf(self._nodes.expression(node), self._parents[node].copy(), float(costs[node]),
                            int(self._nodes.uses[node])) for node in sizes]
        pairs = _Candidates.joined([self._pairs(sizes, i, cheap) for i in range(len(sizes))])
        share = min(1.0, max(self.n / 120, 0.6))  # few captures cannot pay for rare laws
        twos = self._cheapest(pairs, int(share * PAIRS), True)
        self._linear(sizes, self._products(sizes))
        self._counted(sizes, factors)
        costs = self._nodes.cost
        parents = sorted(twos, key=lambda node: float(costs[node]))[:int(share * PARENTS)]
        known = set(parents)
        parents += [node for node in twos if node not in known and self._is_product(node)]
        then: list[tuple[str, int | None, float]] = [("+", -1, 2), ("+", 1, 2.5)]
        then += [("ceil", k, 2 + cost(k)) for k in (2, 3, 4, 8, 16, 32, 64, 128)]
        then += [("//", k, 2 + cost(k)) for k in (2, 3, 4, 8, 16, 32, 64, 128, 256)]
        then += [("align", k, 3 + cost(k)) for k in (2, 4, 8, 16, 32, 64)]
        then += [("min", k, 3 + cost(k)) for k in (1, 2, 3, 4, 8, 15, 16, 31, 32, 63, 64, 127, 128)]
        then += [("*", k, 2 + cost(k)) for k in (2, 3, 4, 8)]
        self._unary(parents, then, False)
        first_ones = np.array(parents[:int(share * WORDY)], int)
        third = self._candidates(np.repeat(first_ones, len(sizes)), np.tile(np.array(sizes, int), len(first_ones)),
                                 ("*", "ceil", "//", "+", "-", "min"))
        self._cheapest(third, len(third.cost), False)
        self._areas(sizes, small)

    def _candidates(self, left: Array, right: Array, ops: Sequence[str]) -> _Candidates:
        """Each pair with each operator, a pair's operators next to each other."""
        costs = self._nodes.cost
        both = np.repeat(costs[left] + costs[right], len(ops)) + np.tile([COST[op] for op in ops], len(left))
        return _Candidates(both, np.tile([CODES[op] for op in ops], len(left)),
                           np.repeat(left, len(ops)), np.repeat(right, len(ops)))

    def _pairs(self, sizes: list[int], i: int, cheap: list[int]) -> _Candidates:
        """Size number i with the sizes after it, and with all cheap columns; both ways where that
        matters."""
        nodes, a = self._nodes, sizes[i]
        others = np.array([*sizes[i:], *cheap], int)
        ops = ("+", "*", "min", "max", "^")
        one = self._candidates(np.full(len(others), a), others, ops)
        makes = np.ones((len(others), len(ops)), bool)
        # size + size * 2**n is two fields side by side, which are found as two
        makes[:, 0] = [not self._is_packed(node) for node in others.tolist()]
        makes[:, 4] = (np.arange(len(others)) < len(sizes) - i) & (others > a) & (nodes.uses[others] == 0) \
            & (nodes.uses[a] == 0)
        others = np.array([node for node in (*sizes, *cheap) if node != a], int)
        ordered = np.stack([np.full(len(others), a), others], 1)
        # a op b, b op a for each of the operators
        left, right = np.tile(ordered, 3).ravel(), np.tile(ordered[:, ::-1], 3).ravel()
        cost = nodes.cost[a] + nodes.cost[others]
        twice = ("-", "-", "//", "//", "ceil", "ceil")
        other = _Candidates(np.repeat(cost, 6) + np.tile([COST[op] for op in twice], len(others)),
                            np.tile([CODES[op] for op in twice], len(others)), left, right)
        return _Candidates.joined([one.of(makes.ravel()), other])

    def _counts(self, node: int) -> bool:
        """Whether a column is a size and no flag."""
        values = np.unique(self._parents[node])
        return bool(len(values) > 2 or values[0] > 0)

    def _counted(self, sizes: list[int], factors: list[Expression]) -> None:
        """Sizes and products of up to four, exact to 63 bits, for limits: kept beside the library.

        A product tells more than each of its factors, so that one which by itself shows in no bit
        has its place here.
        """
        counts = [node for node in sizes if self._parents[node].min() >= 1]
        for one in factors:
            values = np.asarray(self.columns[one], np.int64)
            if values.min() >= 1:
                counts.append(self._nodes.leaf(one, PARAMETER_COST, 0))
                self._parents[counts[-1]] = values
        costs, uses = self._nodes.cost, self._nodes.uses
        few = sorted(counts, key=lambda node: float(costs[node]))[:MOST_FACTORS]
        groups = [group for length in (1, 2, 3, 4) for group in itertools.combinations(few, length)]
        groups += [(node, node) for node in few]
        magnitude = {node: float(np.log2(self._parents[node]).max()) for node in few}
        groups = [group for group in groups if sum(magnitude[node] for node in group) < 62]
        self._product_of = groups
        self.products = np.ones((len(groups), self.n), np.int64)
        for row, group in zip(self.products, groups, strict=True):
            for node in group:
                row *= self._parents[node]
        self.product_cost = np.array([costs[list(group)].sum() - (len(group) - 1) for group in groups], np.float32)
        self.product_uses = np.array([np.bitwise_or.reduce(uses[list(group)]) for group in groups], np.uint64)

    def product(self, index: int) -> Expression:
        """The product of a number as an expression."""
        law, *others = [self._nodes.expression(node) for node in self._product_of[index]]
        for other in others:
            law = Expression("*", (law, other))
        return law

    def _linear(self, sizes: list[int], products: list[int]) -> None:
        """x + k y of two sizes and products, for laws whose constants are solved for: kept beside
        the library."""
        pairs = [(node, 0, node) for node in products]
        for a in sizes:
            pairs.append((a, 0, a))
            pairs += [(a, k, b) for b in sizes for k in FACTORS
                      if a != b and (abs(k) > 1 or (k < 0) or a < b)]
        left, factor, right = np.array(pairs, int).reshape(-1, 3).T
        nodes = self._nodes
        self.linear = self._parents.of(left) + factor[:, None] * self._parents.of(right)
        dearer = np.array([3 + (constant_cost(k) if abs(k) > 1 else 0) if k else 0 for k in range(
            min(FACTORS), max(FACTORS) + 1)])[factor - min(FACTORS)]
        self.linear_cost = (nodes.cost[left] + np.where(factor, nodes.cost[right], 0) + dearer).astype(np.float32)
        self.linear_uses = nodes.uses[left] | nodes.uses[right]
        self._linear_pairs: Array = np.stack([left, factor, right], 1)

    def linear_law(self, index: int) -> Expression:
        a, k, b = self._linear_pairs[index].tolist()
        one, other = self._nodes.expression(a), self._nodes.expression(b)
        if not k:
            return one
        if abs(k) > 1:
            other = Expression("*", (other, constant(abs(k))))
        return Expression("+" if k > 0 else "-", (one, other))

    def _is_product(self, node: int) -> bool:
        """Whether a column is the product of two plain ones."""
        nodes = self._nodes
        return bool(nodes.op[node] == CODES["*"] and nodes.is_leaf(nodes.left[node])
                    and nodes.is_leaf(nodes.right[node]))

    def _is_packed(self, node: int) -> bool:
        """Whether a column is another one times 8, 16, ..."""
        nodes = self._nodes
        if nodes.op[node] != CODES["*"] or not nodes.is_constant(nodes.right[node]):
            return False
        return bool(nodes.expression(int(nodes.right[node])).args[0] >= 8)

    def _base(self, node: int) -> int:
        """The column that a unary shape is of."""
        nodes = self._nodes
        if nodes.is_leaf(node):
            return node
        return int(nodes.right[node] if nodes.is_constant(nodes.left[node]) else nodes.left[node])

    def _conv_sizes(self, sizes: list[int], small: list[int]) -> None:
        """(size + 2 padding - kernel) // stride + 1, the output size of a convolution, of fitting
        columns."""
        for padding, kernel, stride in itertools.permutations(small, 3):
            if not sizes or not (self._parents[kernel] >= 1).all() or not (self._parents[stride] >= 1).all():
                continue
            inner = self._quiet("*", [padding], 2)
            for size in sizes:
                sum_ = self._quiet("+", [size], inner)
                span = self._quiet("-", sum_, [kernel])
                steps = self._quiet("//", span, [stride])
                self._apply("+", steps, 1, [10.0], True)

    def _quiet(self, op: str, left: list[int], right: Any) -> list[int]:
        """A node that is only a step to another: made, not entered."""
        values = OPERATORS[op][0](self._parents[left[0]], right if isinstance(right, int) else self._parents[right[0]])
        at = self._constant(right) if isinstance(right, int) else right[0]
        nodes = self._nodes.add(op, left, at, self._nodes.cost[left] + 3, 1).tolist()
        self._parents.put(nodes, values[None])
        return nodes

    def _products(self, sizes: list[int]) -> list[int]:
        """Products of three and four, and what usually becomes of a product."""
        costs = self._nodes.cost
        few = sorted(sizes, key=lambda node: float(costs[node]))[:14]
        grown: dict[tuple[int, ...], int] = {(node,): node for node in few}
        cost = constant_cost
        then: list[tuple[str, int | None, float]] = [("+", -1, 2), ("+", 1, 2.5)]
        then += [(op, k, 2 + cost(k)) for op in ("ceil", "//") for k in (2, 4, 8, 16, 32, 64, 128)]
        then += [("align", k, 3 + cost(k)) for k in (2, 4, 8, 16, 32, 64, 128)]
        out: list[int] = []
        for length in (2, 3, 4):
            longer: dict[tuple[int, ...], tuple[int, int]] = {}
            for names, node in grown.items():
                for other in few:
                    if other >= names[-1] and (length == 2 or other not in names):
                        longer[(*names, other)] = (node, other)
            keys = list(longer)
            made = self._products_of([longer[key] for key in keys])
            grown = dict(zip(keys, made, strict=True))
            entered = self._new(made)
            out += entered
            if length > 2:
                self._unary(entered, then, False)
        return out

    def _products_of(self, pairs: list[tuple[int, int]]) -> list[int]:
        if not pairs:
            return []
        left, right = np.array(pairs).T
        values = self._parents.of(left) * self._parents.of(right)
        nodes = self._nodes.add("*", left, right, self._nodes.cost[left] + self._nodes.cost[right] - 1.0, len(left))
        self._merge(nodes, values)
        self._parents.put(nodes.tolist(), values)
        return nodes.tolist()

    def _areas(self, sizes: list[int], small: set[int]) -> None:
        """(a + k - 1) (b + l - 1), aligned: the input that a tile of the output needs; kept beside
        the library."""
        for value in TILES:
            self._parents[self._constant(value)] = np.full(self.n, value, np.int64)
        wide = [a for a in sizes if a not in small] + [self._constant(value) for value in TILES]
        kernels = [k for k in sorted(small) if self._parents[k].min() >= 1]
        a, k = np.array([(a, k) for k in kernels for a in wide], int).reshape(-1, 2).T
        cost, uses = self._nodes.cost, self._nodes.uses
        columns = self._parents.of(a) + self._parents.of(k) - 1
        costs = np.where(cost[a] > 0, cost[a], 4.0) + cost[k]
        one, other = np.triu_indices(len(a))
        square = k[one] == k[other]
        fits = square | ((uses[k[one]] | uses[k[other]]) == 0)
        one, other, square = one[fits], other[fits], square[fits]
        to = np.array([1, *ALIGNMENTS])
        dearer = np.array([0.0 if value == 1 else 3 + constant_cost(value) for value in to.tolist()])
        # one kernel for both is said once
        price = (costs[one] + costs[other] + 4 - np.where(square, PARAMETER_COST, 0))[:, None] + dearer
        order = np.argsort(price.ravel(), kind="stable")[:MOST_AREAS]
        one, other, to = one[order // len(to)], other[order // len(to)], to[order % len(to)]
        area = columns[one] * columns[other]
        self.areas = -(-area // to[:, None]) * to[:, None]
        self.area_cost = price.ravel()[order].astype(np.float32)
        self._area_of: Array = np.stack([a[one], k[one], a[other], k[other], to], 1)
        self.area_uses = np.bitwise_or.reduce(uses[self._area_of[:, :4]], axis=1)

    def area(self, index: int) -> Expression:
        """The area of a number as an expression."""
        *sides_of, to = self._area_of[index].tolist()
        size, kernel, other, its_kernel = (self._nodes.expression(node) for node in sides_of)
        sides = [Expression("-", (Expression("+", both), constant(1)))
                 for both in ((size, kernel), (other, its_kernel))]
        law = Expression("*", tuple(sides))
        return law if to == 1 else Expression("align", (law, constant(to)))

    def _reals(self, names: Sequence[str]) -> None:
        """float32 bit patterns of scales, their products and ratios, by pieces; exponents with a
        bias."""
        shapes: list[tuple[Expression, float]] = []
        leaf = {name: parameter(name) for name in names}

        def of(op: str, *args: Expression) -> Expression:
            return Expression(op, args)

        one = constant(1)
        for a in names:
            shapes += [(leaf[a], 5), (of("f/", one, leaf[a]), 7)]
        for a, b in itertools.combinations(names, 2):
            shapes.append((of("f*", leaf[a], leaf[b]), 8))
        for a, b in itertools.permutations(names, 2):
            shapes.append((of("f/", leaf[a], leaf[b]), 8))
        for a, b, c in itertools.permutations(names, 3):
            if a < b:
                shapes += [(of("f/", of("f*", leaf[a], leaf[b]), leaf[c]), 9),
                           (of("d/", of("d*", leaf[a], leaf[b]), leaf[c]), 10)]
            if b < c:
                shapes.append((of("f/", leaf[a], of("f*", leaf[b], leaf[c])), 10))
        patterns = self._leaves_of([(of("f", real), cost) for real, cost in shapes])
        exponents = []
        for node in patterns:
            exponents += self._quiet("//", [node], 2 ** 23)
        self._nodes.cost[exponents] = self._nodes.cost[patterns] + 3
        biases = range(90, 180)
        at = [self._constant(bias) for bias in biases]
        self._parents.put(at, np.repeat(np.array(biases, np.int64)[:, None], self.n, 1))
        # the exponents of a ratio and of its inverse give the same columns: the cheaper one first
        for node in sorted(exponents, key=lambda node: float(self._nodes.cost[node])):
            cost, same = float(self._nodes.cost[node]) + 5, [node] * len(biases)
            self._apply("-", at, same, np.full(len(biases), cost), False)
            self._apply("-", same, at, np.full(len(biases), cost), False)

    def _leaves_of(self, expressions: list[tuple[Expression, float]]) -> list[int]:
        return self._new([node for one, cost in expressions for node in self._leaves([one], cost)])

    def _finish(self) -> None:
        nodes = np.concatenate([nodes for nodes, _ in self._kept] or [np.zeros(0, int)])
        values = np.concatenate([values for _, values in self._kept] or [np.zeros((0, self.n), np.uint32)])
        costs = self._nodes.cost[nodes].astype(np.float32)
        order = np.argsort(costs, kind="stable")
        keep = np.arange(len(order)) < self._most
        # a tenth is for what shapes of integers would leave no place
        keep[np.flatnonzero(nodes[order] >= self._first_real)[:self._most // 10]] = True
        order = order[keep]
        self.nodes = nodes[order]
        self.values = np.ascontiguousarray(values[order])
        self.uses = self._nodes.uses[self.nodes]
        # naming law number n takes log2(n) bits, whatever its shape
        self.cost = np.maximum(costs[order], np.log2(np.arange(len(order)) + 1) + 1).astype(np.float32)
        self.sample_rows = np.random.default_rng(3).permutation(self.n)[:SAMPLE]
        self.sample = np.ascontiguousarray(self.values[:, self.sample_rows])
        self._parents, self._known, self._kept = _Values(0), set(), []
