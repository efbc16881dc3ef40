"""The law library: general shapes over the parameters, cheapest first; shapes with equal columns are rivals."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from npulab.laws.expressions import (
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
RIVALS = 12  # kept of the shapes that give one column
PAIRS, PARENTS, WORDY = 16_000, 3_000, 500  # shapes of two columns; those that grow on; those that take a third
MOST_VALUES = 40_000_000  # of the whole library: 160 MB


class Shape(NamedTuple):
    """A column of the library by its making: an operator on two others (``right`` -1: on one)."""

    op: str
    left: int
    right: int


@dataclass(frozen=True, eq=False)
class Leaf:
    """A plain column: ``uses`` has the bit of the field that it is."""

    law: Expression
    values: Array
    cost: float
    uses: int


class Library:
    """Columns ``values (L, N) uint32`` of laws by rising ``cost`` (bits), equal ones merged.

    ``columns`` are the captures' parameters; ``integers`` their whole-valued names, ``fields`` those of fields
    already explained, ``reals`` the others, which enter as float32 bit patterns of products and ratios only.
    ``[i]`` is law i as an expression, ``rivals(i)`` all the shapes that give the same column.
    """

    def __init__(self, columns: Columns, integers: Sequence[str], reals: Sequence[str] = (),
                 fields: Sequence[str] = (), given: Sequence[str] = (), most: int = 110_000, seed: int = 1) -> None:
        self.columns = columns
        self.n = columns.n
        self._weights = np.random.default_rng(seed).integers(1, 2 ** 62, self.n).astype(np.uint64) * np.uint64(2) + 1
        self._shapes: list[Shape | Expression] = []
        self._costs: list[float] = []
        self._first: dict[int, int] = {}
        self._members: dict[int, list[int]] = {}
        self._kept: list[tuple[Array, Array]] = []  # (nodes, values uint32) of the columns that are new
        self._parents: dict[int, Array] = {}
        self._constants: dict[int, int] = {}
        self._uses: list[int] = []  # of each node, a bit for each field
        self._field_bit = {field(name): 2 ** i for i, name in enumerate(fields)}
        self._most = min(most, max(MOST_VALUES // self.n, 1000))
        self._grow([parameter(name) for name in integers], [field(name) for name in fields],
                   [Expression(GIVEN, (text,)) for text in given])
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
        out._linear_pairs = [pair for pair, kept in zip(self._linear_pairs, keep, strict=True) if kept]
        keep = (self.area_uses & np.uint64(uses)) == 0
        out.areas, out.area_cost, out.area_uses = self.areas[keep], self.area_cost[keep], self.area_uses[keep]
        out._area_of = [one for one, kept in zip(self._area_of, keep, strict=True) if kept]
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
        return self._expression(int(self.nodes[index]))

    def rivals(self, index: int, within: float) -> list[tuple[float, Expression]]:
        """Other shapes of the same column, with how many bits dearer, at most ``within``."""
        node = int(self.nodes[index])
        out = []
        for other in self._members.get(node, ()):
            dearer = max(self._costs[other] - self._costs[node], 0.0)
            if dearer <= within:
                out.append((dearer, self._expression(other)))
        return sorted(out, key=lambda one: one[0])

    def _expression(self, node: int) -> Expression:
        shape = self._shapes[node]
        if isinstance(shape, Expression):
            return shape
        parts = [shape.left] if shape.right < 0 else [shape.left, shape.right]
        return Expression(shape.op, tuple(self._expression(part) for part in parts))

    # -- growing

    def _leaves(self, expressions: Iterable[Expression], cost: float) -> list[int]:
        nodes = []
        for one in expressions:
            node = len(self._shapes)
            self._shapes.append(one)
            self._costs.append(cost)
            values = np.asarray(self.columns[one], np.int64)
            self._merge(np.array([node]), values[None])
            self._parents[node] = values
            nodes.append(node)
        return nodes

    def _new(self, nodes: Sequence[int]) -> list[int]:
        """The nodes whose columns are not those of others."""
        first = set(self._first.values())
        return [node for node in nodes if node in first]

    def _constant(self, value: int) -> int:
        if value not in self._constants:
            self._constants[value] = len(self._shapes)
            self._shapes.append(constant(value))
            self._costs.append(0.0)
        return self._constants[value]

    def _apply(self, op: str, left: Sequence[int], right: Any, costs: Sequence[float], keep: bool) -> list[int]:
        """New columns ``left op right``; ``right`` is None, a constant or one node for each of ``left``."""
        fresh: list[int] = []
        function = OPERATORS[op][0]
        step = max(4_000_000 // self.n, 1)
        for start in range(0, len(left), step):
            part = left[start:start + step]
            values = np.stack([self._parents[node] for node in part])
            if right is None:
                values, others = function(values), [-1] * len(part)
            elif isinstance(right, int):
                values, others = function(values, right), [self._constant(right)] * len(part)
            else:
                others = list(right[start:start + step])
                values = function(values, np.stack([self._parents[node] for node in others]))
            first = len(self._shapes)
            self._shapes += [Shape(op, a, b) for a, b in zip(part, others, strict=True)]
            self._costs += costs[start:start + step]
            new = self._merge(np.arange(first, first + len(part)), values)
            if keep:
                self._parents.update((first + int(i), values[i]) for i in new)
            fresh += (first + new).tolist()
        return fresh

    def _merge(self, nodes: Array, values: Array) -> Array:
        """Which of the columns are new; the others join the rivals of the first with the same values."""
        keys = (values.astype(np.uint64) * self._weights).sum(1).tolist()
        varies = (values[:, :-1] != values[:, 1:]).any(1)
        new = []
        for i in np.flatnonzero(varies).tolist():
            node = int(nodes[i])
            first = self._first.setdefault(keys[i], node)
            if first == node:
                new.append(i)
            else:
                members = self._members.setdefault(first, [])
                if len(members) < RIVALS:
                    members.append(node)
        found = np.array(new, int)
        if new:
            self._kept.append((nodes[found], values[found].astype(np.uint32)))
        return found

    def _cheapest(self, candidates: list[tuple[float, str, int, int]], most: int, keep: bool) -> list[int]:
        """Make the cheapest of (cost, op, left, right node) candidates, by rising cost within each operator."""
        candidates.sort(key=lambda one: one[0])
        fresh: list[int] = []
        chosen = candidates[:most]
        # in slices of rising cost, so that the first of equal columns is a cheap one
        for start in range(0, len(chosen), 2500):
            groups: dict[str, list[tuple[float, str, int, int]]] = {}
            for one in chosen[start:start + 2500]:
                groups.setdefault(one[1], []).append(one)
            for op, group in groups.items():
                fresh += self._apply(op, [one[2] for one in group], [one[3] for one in group],
                                     [one[0] for one in group], keep)
        return fresh

    def _unary(self, nodes: Sequence[int], shapes: Sequence[tuple[str, int | None, float]], keep: bool) -> list[int]:
        fresh = []
        for op, value, cost in shapes:
            costs = [self._costs[node] + cost for node in nodes]
            fresh += self._apply(op, nodes, value, costs, keep)
        return fresh

    def _negated(self, nodes: Sequence[int], values: Sequence[int]) -> list[int]:
        """constant - column."""
        fresh = []
        for value in values:
            at = self._constant(value)
            self._parents[at] = np.full(self.n, value, np.int64)
            fresh += self._apply("-", [at] * len(nodes), list(nodes),
                                 [self._costs[node] + 4 + constant_cost(value) for node in nodes], True)
        return fresh

    def _grow(self, parameters: list[Expression], fields: list[Expression], given: list[Expression]) -> None:
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
        plain = [node for node in sizes if not self._use(node)]
        self._conv_sizes([node for node in plain if node not in small], [node for node in plain if node in small])
        costs = self._costs
        ofsize = set(sizes)
        cheap = [node for node in ones if self._base(node) in ofsize and costs[node] <= 11]
        cheap = sorted(cheap, key=lambda node: costs[node])[:260 if len(sizes) < 14 else 160]
        self.leaves = [Leaf(self._expression(node), self._parents[node], costs[node], self._use(node))
                       for node in sizes]
        pairs = []
        for i, a in enumerate(sizes):
            for b in [*sizes[i:], *cheap]:
                if a != b or b in ofsize:
                    # size + size * 2**n is two fields side by side, which are found as two
                    ops = ("*", "min", "max") if self._is_packed(b) else ("+", "*", "min", "max")
                    pairs += [(costs[a] + costs[b] + COST[op], op, a, b) for op in ops]
                if b in ofsize and a < b and not self._use(a) and not self._use(b):
                    pairs.append((costs[a] + costs[b] + COST["^"], "^", a, b))
            for b in [*sizes, *cheap]:
                if a != b:
                    pairs += [(costs[a] + costs[b] + COST[op], op, *order) for op in ("-", "//", "ceil")
                              for order in ((a, b), (b, a))]
        share = min(1.0, max(self.n / 120, 0.6))  # few captures cannot pay for rare laws
        twos = self._cheapest(pairs, int(share * PAIRS), True)
        self._linear(sizes, self._products(sizes))
        parents = sorted(twos, key=lambda node: costs[node])[:int(share * PARENTS)]
        known = set(parents)
        parents += [node for node in twos if node not in known and self._is_product(node)]
        then: list[tuple[str, int | None, float]] = [("+", -1, 2), ("+", 1, 2.5)]
        then += [("ceil", k, 2 + cost(k)) for k in (2, 3, 4, 8, 16, 32, 64, 128)]
        then += [("//", k, 2 + cost(k)) for k in (2, 3, 4, 8, 16, 32, 64, 128, 256)]
        then += [("align", k, 3 + cost(k)) for k in (2, 4, 8, 16, 32, 64)]
        then += [("min", k, 3 + cost(k)) for k in (1, 2, 3, 4, 8, 15, 16, 31, 32, 63, 64, 127, 128)]
        then += [("*", k, 2 + cost(k)) for k in (2, 3, 4, 8)]
        self._unary(parents, then, False)
        third = [(costs[a] + costs[b] + COST[op], op, a, b) for a in parents[:int(share * WORDY)] for b in sizes
                 for op in ("*", "ceil", "//", "+", "-", "min")]
        self._cheapest(third, len(third), False)
        self._areas(sizes, small)

    def _counts(self, node: int) -> bool:
        """Whether a column is a size and no flag."""
        values = np.unique(self._parents[node])
        return len(values) > 2 or values[0] > 0

    def _linear(self, sizes: list[int], products: list[int]) -> None:
        """x + k y of two sizes and products, for laws whose constants are solved for: kept beside the library."""
        columns = [self._parents[node] for node in products]
        costs = [self._costs[node] for node in products]
        pairs = [(node, 0, node) for node in products]
        for a in sizes:
            columns.append(self._parents[a])
            costs.append(self._costs[a])
            pairs.append((a, 0, a))
            for b in sizes:
                for k in FACTORS:
                    if a != b and (abs(k) > 1 or (k < 0) or a < b):
                        columns.append(self._parents[a] + k * self._parents[b])
                        costs.append(self._costs[a] + self._costs[b] + 3 + (constant_cost(k) if abs(k) > 1 else 0))
                        pairs.append((a, k, b))
        self.linear_uses = np.array([self._use(a) | self._use(b) for a, _, b in pairs], np.uint64)
        self.linear = np.array(columns, np.int64).reshape(-1, self.n)
        self.linear_cost = np.array(costs, np.float32)
        self._linear_pairs = pairs

    def linear_law(self, index: int) -> Expression:
        a, k, b = self._linear_pairs[index]
        one, other = self._expression(a), self._expression(b)
        if not k:
            return one
        if abs(k) > 1:
            other = Expression("*", (other, constant(abs(k))))
        return Expression("+" if k > 0 else "-", (one, other))

    def _use(self, node: int) -> int:
        """The fields that a node uses, a bit each."""
        while len(self._uses) <= node:
            shape = self._shapes[len(self._uses)]
            if isinstance(shape, Expression):
                self._uses.append(self._field_bit.get(shape, 0))
            else:
                self._uses.append(self._uses[shape.left] | (self._uses[shape.right] if shape.right >= 0 else 0))
        return self._uses[node]

    def _is_product(self, node: int) -> bool:
        """Whether a column is the product of two plain ones."""
        shape = self._shapes[node]
        return isinstance(shape, Shape) and shape.op == "*" \
            and isinstance(self._shapes[shape.left], Expression) and isinstance(self._shapes[shape.right], Expression)

    def _is_packed(self, node: int) -> bool:
        """Whether a column is another one times 8, 16, ..."""
        shape = self._shapes[node]
        if not isinstance(shape, Shape) or shape.op != "*":
            return False
        factor = self._shapes[shape.right]
        return isinstance(factor, Expression) and factor.op == CONSTANT and factor.args[0] >= 8

    def _base(self, node: int) -> int:
        """The column that a unary shape is of."""
        shape = self._shapes[node]
        if isinstance(shape, Expression):
            return node
        left = self._shapes[shape.left]
        return shape.right if isinstance(left, Expression) and left.op == CONSTANT else shape.left

    def _conv_sizes(self, sizes: list[int], small: list[int]) -> None:
        """(size + 2 padding - kernel) // stride + 1, the output size of a convolution, of fitting columns."""
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
        self._shapes.append(Shape(op, left[0], at))
        self._costs.append(self._costs[left[0]] + 3)
        self._parents[len(self._shapes) - 1] = values
        return [len(self._shapes) - 1]

    def _products(self, sizes: list[int]) -> list[int]:
        """Products of three and four, and what usually becomes of a product."""
        costs = self._costs
        few = sorted(sizes, key=lambda node: costs[node])[:14]
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
            entered = [node for node in made if node in self._entered]
            out += entered
            if length > 2:
                self._unary(entered, then, False)
        return out

    def _products_of(self, pairs: list[tuple[int, int]]) -> list[int]:
        first = len(self._shapes)
        if not pairs:
            return []
        costs = [self._costs[a] + self._costs[b] - 1.0 for a, b in pairs]
        values = np.stack([self._parents[a] for a, _ in pairs]) * np.stack([self._parents[b] for _, b in pairs])
        self._shapes += [Shape("*", a, b) for a, b in pairs]
        self._costs += costs
        nodes = np.arange(first, first + len(pairs))
        self._entered = set((first + self._merge(nodes, values)).tolist())
        self._parents.update(zip(nodes.tolist(), values, strict=True))
        return nodes.tolist()

    def _areas(self, sizes: list[int], small: set[int]) -> None:
        """(a + k - 1) (b + l - 1), aligned: the input that a tile of the output needs; kept beside the library."""
        for value in TILES:
            self._parents[self._constant(value)] = np.full(self.n, value, np.int64)
        wide = [a for a in sizes if a not in small] + [self._constant(value) for value in TILES]
        kernels = [k for k in sorted(small) if self._parents[k].min() >= 1]
        windows = [(a, k) for k in kernels for a in wide]
        columns = [self._parents[a] + self._parents[k] - 1 for a, k in windows]
        costs = [(self._costs[a] or 4.0) + self._costs[k] for a, k in windows]
        made, price, what = [], [], []
        for i, j in itertools.combinations_with_replacement(range(len(windows)), 2):
            square = windows[i][1] == windows[j][1]
            if not square and (self._use(windows[i][1]) or self._use(windows[j][1])):
                continue
            again = PARAMETER_COST if square else 0  # one kernel for both is said once
            area = columns[i] * columns[j]
            for to in (1, *ALIGNMENTS):
                made.append(area if to == 1 else -(-area // to) * to)
                price.append(costs[i] + costs[j] + 4 - again + (0 if to == 1 else 3 + constant_cost(to)))
                what.append((windows[i], windows[j], to))
        order = np.argsort(price, kind="stable")[:MOST_AREAS]
        self._area_of = [what[i] for i in order]
        self.areas = np.array([made[i] for i in order], np.int64).reshape(-1, self.n)
        self.area_cost = np.array([price[i] for i in order], np.float32)
        self.area_uses = np.array([self._use(one[0]) | self._use(one[1]) | self._use(other[0]) | self._use(other[1])
                                   for one, other, _ in self._area_of], np.uint64)

    def area(self, index: int) -> Expression:
        """The area of a number as an expression."""
        one, other, to = self._area_of[index]
        sides = [Expression("-", (Expression("+", (self._expression(a), self._expression(k))), constant(1)))
                 for a, k in (one, other)]
        law = Expression("*", tuple(sides))
        return law if to == 1 else Expression("align", (law, constant(to)))

    def _reals(self, names: Sequence[str]) -> None:
        """float32 bit patterns of scales, their products and ratios, by pieces; exponents with a bias."""
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
            self._costs[exponents[-1]] = self._costs[node] + 3
        for bias in range(90, 180):
            at = self._constant(bias)
            self._parents[at] = np.full(self.n, bias, np.int64)
            costs = [self._costs[node] + 5 for node in exponents]
            self._apply("-", [at] * len(exponents), exponents, costs, False)
            self._apply("+", exponents, -bias, costs, False)

    def _leaves_of(self, expressions: list[tuple[Expression, float]]) -> list[int]:
        return self._new([node for one, cost in expressions for node in self._leaves([one], cost)])

    def _finish(self) -> None:
        nodes = np.concatenate([nodes for nodes, _ in self._kept] or [np.zeros(0, int)])
        values = np.concatenate([values for _, values in self._kept] or [np.zeros((0, self.n), np.uint32)])
        costs = np.array([self._costs[node] for node in nodes], np.float32)
        order = np.argsort(costs, kind="stable")[:self._most]
        self.nodes = nodes[order]
        self.values = np.ascontiguousarray(values[order])
        self.uses = np.array([self._use(int(node)) for node in self.nodes], np.uint64)
        # naming law number n takes log2(n) bits, whatever its shape
        self.cost = np.maximum(costs[order], np.log2(np.arange(len(order)) + 1) + 1).astype(np.float32)
        self.sample_rows = np.random.default_rng(3).permutation(self.n)[:SAMPLE]
        self.sample = np.ascontiguousarray(self.values[:, self.sample_rows])
        for done in (self._parents, self._first, self._kept):
            done.clear()
