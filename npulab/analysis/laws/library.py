"""The law library: laws of general shapes over the parameters, cheapest first.

Of laws with equal columns, only the first is in the library; the others are its rivals.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from npulab.analysis.laws.expressions import (
    CONSTANT,
    FIELD,
    GIVEN,
    Array,
    Columns,
    Expression,
    constant,
    field,
    parameter,
    term,
)
from npulab.analysis.laws.operators import OPERATORS
from npulab.analysis.laws.prior import BUDGET, PRIOR, constant_cost

POWERS = (2, 4, 8, 16, 32, 64, 128, 256)
DIVISORS = (*range(2, 40), 64, 128)
CAPS = (1, 2, 3, 4, 6, 7, 8, 15, 16, 31, 32, 63, 64, 127, 128, 255, 256, 511, 512, 1023)
MINUENDS = (0, 1, 2, 3, 4, 7, 8, 15, 16, 31, 32)
FACTORS = (1, -1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 64)
TILES = (1, 2, 4, 8, 16)
AREA_ALIGNMENTS = (1, 8, 16, 32, 64)
BIASES = range(90, 180)  # exponent biases tried for float32 scales
MANTISSA = 2**23
USUALLY = 0.5  # least share of captures on which columns must fit to count as sizes of windows
# Shapes of laws: (operator, constants that are tried with it, cost in addition to the constant's).
# OF_COLUMN has the shapes that are applied to one column.
Shapes = tuple[tuple[str, tuple[int | None, ...], float], ...]
OF_COLUMN: Shapes = (
    ("+", (-1,), 0),
    ("+", (1,), 0.5),
    ("+", (-2, 2, 3, 4, 7, 8, 15, 16, 31, 32, 63, 64), 3),
    ("clog2", (None,), 4),
    ("flog2", (None,), 4),
    ("!=0", (None,), 3),
    ("%", (2,), 2),
    ("ceil", DIVISORS, 2),
    ("//", DIVISORS, 2),
    ("align", POWERS, 3),
    ("min", CAPS, 3),
    ("max", (1, 2, 4, 8, 16, 32), 3),
    ("*", (2, 3, 4, 5, 7, 8, 16, 32, 64), 2),
    ("%", (4, 8, 16), 4),
)
# the shapes that are applied to the result of combining two columns
OF_PAIR: Shapes = (
    ("+", (-1,), 0),
    ("+", (1,), 0.5),
    ("ceil", (2, 3, 4, 8, 16, 32, 64, 128), 2),
    ("//", (2, 3, 4, 8, 16, 32, 64, 128, 256), 2),
    ("align", (2, 4, 8, 16, 32, 64), 3),
    ("min", (1, 2, 3, 4, 8, 15, 16, 31, 32, 63, 64, 127, 128), 3),
    ("*", (2, 3, 4, 8), 2),
)
# the shapes that are applied to a product of three or four columns
OF_PRODUCT: Shapes = (
    ("+", (-1,), 0),
    ("+", (1,), 0.5),
    ("ceil", POWERS[:-1], 2),
    ("//", POWERS[:-1], 2),
    ("align", POWERS[:-1], 3),
)
LEAF = "leaf"
SYMBOLS = (LEAF, *OPERATORS)
CODES = {symbol: code for code, symbol in enumerate(SYMBOLS)}
CANDIDATE = np.dtype(
    [("cost", float), ("op", np.int8), ("left", np.int32), ("right", np.int32)], align=True
)


@dataclass(frozen=True)
class Names:
    """The columns that laws are made of.

    These are whole-valued and real parameters, explained fields, and texts of the user's laws.
    Real parameters enter only as float32 bit patterns of products and ratios; ``factors`` are
    whole-valued parameters that enter only products for limits.
    """

    integers: Sequence[str] = ()
    reals: Sequence[str] = ()
    fields: Sequence[str] = ()
    given: Sequence[str] = ()
    factors: Sequence[str] = ()


@dataclass(frozen=True, eq=False)
class Family:
    """Laws of one shape.

    ``values (L, N)``; ``cost (L,)`` in bits; ``uses (L,)`` has a bit for each field that a law
    reads; law i is ``make(*parts[i])``.
    """

    values: Array
    cost: Array
    uses: Array
    parts: Array
    make: Callable[..., Expression]

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> Expression:
        return self.make(*self.parts[index].tolist())

    def of(self, rows: Any) -> Family:
        """Some of the laws, selected by a mask or a slice."""
        return replace(
            self,
            **{name: getattr(self, name)[rows] for name in ("values", "cost", "uses", "parts")},
        )

    def named(self) -> Family:
        """The laws without their values, which takes little memory."""
        return replace(self, values=np.zeros((len(self), 0)))

    def without(self, uses: int) -> Family:
        return self.of((self.uses & np.uint64(uses)) == 0)


@dataclass(frozen=True, eq=False)
class Leaf:
    """A column that is a parameter, a field or a user's law; ``uses`` is the bit of the field, 0 if
    it is no field.
    """

    law: Expression
    values: Array
    cost: float
    uses: int


@dataclass(frozen=True, eq=False)
class Library:
    """Laws with ``uint32`` columns by rising cost, without laws whose column another law has; and
    columns in int64 for which a search solves constants.

    ``linear`` is x + k y of sizes and products; ``areas`` is (a + k - 1) (b + l - 1), aligned: the
    input that a tile of the output needs; ``products`` are of up to four sizes, for limits.
    ``leaves`` are the plain columns that are sizes, ``sample`` has the values of the laws on the
    captures ``sample_rows``.
    """

    laws: Family
    linear: Family
    areas: Family
    products: Family
    leaves: tuple[Leaf, ...]
    sample_rows: Array
    sample: Array
    field_bits: Mapping[str, int]
    nodes: _Nodes

    @property
    def n(self) -> int:
        return self.laws.values.shape[1]

    def __len__(self) -> int:
        return len(self.laws)

    def without(self, uses: int) -> Library:
        """The library without the laws that read any of the fields whose bits are in ``uses``."""
        if not uses:
            return self
        return replace(
            self,
            laws=self.laws.without(uses),
            linear=self.linear.without(uses),
            areas=self.areas.without(uses),
            products=self.products.without(uses),
            leaves=tuple(leaf for leaf in self.leaves if not leaf.uses & uses),
            sample=self.sample[(self.laws.uses & np.uint64(uses)) == 0],
        )

    def uses_of(self, fields: Iterable[str]) -> int:
        """The bits of ``uses`` that stand for these fields."""
        uses = 0
        for name in fields:
            uses |= self.field_bits.get(name, 0)
        return uses

    @cached_property
    def limited(self) -> tuple[Family, Array, Array]:
        """The laws for which limits are searched, their values ``(N, L)``, and ``(L,) bool``: true
        for laws without negative numbers.
        """
        laws = self.laws.of(slice(BUDGET.limit_laws))
        return laws, np.ascontiguousarray(laws.values.T), laws.values.max(1) < 2**31

    @cached_property
    def inner(self) -> tuple[tuple[Family, Family], Array, Array, dict[int, tuple[Array, Array]]]:
        """The areas and the first laws, which a search tries as factors of products: the laws,
        their values, their costs, and a cache.

        The cache has, by the number of a capture, the laws sorted by their values there, and these
        values.
        """
        both = self.areas, self.laws.of(slice(BUDGET.scaled_columns))
        values = np.concatenate([family.values.astype(np.int64) for family in both])
        return (
            (both[0].named(), both[1].named()),
            values,
            np.concatenate([family.cost for family in both]),
            {},
        )

    def leaf_pairs(self) -> Iterator[tuple[Leaf, Leaf]]:
        """Yield pairs (x, z) of plain columns: x is the constant 0 or a field, z any size but x."""
        nothing = Leaf(constant(0), np.zeros(self.n, np.int64), 0.0, 0)
        for x in [nothing, *(leaf for leaf in self.leaves if leaf.uses)]:
            for z in self.leaves:
                if z is not x:
                    yield x, z

    def rivals(self, index: int, within: float) -> list[tuple[float, Expression]]:
        """Other laws with the same column as law ``index``, each with the bits that it costs more:
        at most ``within``.
        """
        node, costs = int(self.laws.parts[index, 0]), self.nodes.cost
        twins = []
        for twin in self.nodes.twins(node):
            twins.append((max(float(costs[twin] - costs[node]), 0.0), twin))
        found: list[tuple[float, Expression]] = []
        for extra_cost, twin in sorted(twins, key=lambda pair: pair[0]):
            if extra_cost <= within:
                found.append((extra_cost, self.nodes.expression(twin)))
        return found


def make_library(columns: Columns, names: Names, most: int = BUDGET.laws) -> Library:
    """The library over the captures' columns, with about ``most`` laws at most."""
    return _Growth(columns, names).library(min(most, max(BUDGET.library_values // columns.n, 1000)))


def is_size(values: Array) -> bool:
    """True if a column may be a size rather than a flag: it has more than two values, or all its
    values are above 0.
    """
    kinds = np.unique(values)
    return len(kinds) > 2 or bool(kinds[0] > 0)


class _Nodes:
    """How each column is computed, as arrays with an entry for each node (a column), and the values
    of the columns that are operands of other columns.

    Node i applies ``op[i]`` to the nodes ``left[i]`` and ``right[i]`` (-1 if there is only one
    operand); a leaf has its number in ``left[i]``.
    """

    def __init__(self, captures: int) -> None:
        self.n = self._stored = 0
        self.leaves: list[Expression] = []
        self.op = np.zeros(1024, np.int8)
        self.left, self.right = np.zeros(1024, np.int32), np.zeros(1024, np.int32)
        self.cost = np.zeros(1024)
        self.uses = np.zeros(1024, np.uint64)  # a bit for each field
        # true for the first node with its values: only such nodes become laws
        self.kept = np.zeros(1024, bool)
        self.key = np.zeros(1024, np.uint64)  # a hash of the values; 0 if they are not compared
        self._row = np.zeros(1024, np.int32)
        self._rows: Array = np.zeros((256, captures), np.int64)

    def add(self, op: str, left: Any, right: Any, cost: Any) -> Array:
        """Append as many nodes as ``left`` has; returns their numbers."""
        first, end = self.n, self.n + np.size(left)
        while end > len(self.op):
            for name in ("op", "left", "right", "cost", "uses", "kept", "key", "_row"):
                array = getattr(self, name)
                setattr(self, name, np.concatenate([array, np.zeros_like(array)]))
        self.op[first:end], self.left[first:end], self.right[first:end] = CODES[op], left, right
        self.cost[first:end] = cost
        if op != LEAF:
            self.uses[first:end] = self.uses[left]
            if np.ndim(right) or right >= 0:
                self.uses[first:end] |= self.uses[right]
        self.n = end
        return np.arange(first, end)

    def leaf(self, law: Expression, cost: float, uses: int, values: Array) -> int:
        node = int(self.add(LEAF, len(self.leaves), -1, cost)[0])
        self.uses[node] = uses
        self.leaves.append(law)
        self.store([node], values[None])
        return node

    def store(self, nodes: Sequence[int] | Array, values: Array) -> None:
        first, end = self._stored, self._stored + len(values)
        while end > len(self._rows):
            self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
        self._rows[first:end] = values
        self._row[nodes] = np.arange(first, end)
        self._stored = end

    def values(self, nodes: Any) -> Array:
        """``(len(nodes), N) int64`` of stored columns."""
        return self._rows[self._row[nodes]]

    def forget(self) -> None:
        """Free the memory of the values."""
        self._rows = self._rows[:0].copy()

    def is_leaf(self, node: Any) -> Any:
        return self.op[node] == CODES[LEAF]

    def is_constant(self, node: int) -> bool:
        return bool(self.is_leaf(node)) and self.leaves[self.left[node]].op == CONSTANT

    def is_product(self, node: int) -> bool:
        """True if a column is the product of two plain columns, or of a column and a field less
        1.
        """
        left, right = self.left[node], self.right[node]
        less = (
            self.op[right] == CODES["+"]
            and self.uses[right]
            and self.expression(self.right[right]) == constant(1)
        )
        return bool(
            self.op[node] == CODES["*"] and self.is_leaf(left) and (self.is_leaf(right) or less)
        )

    def is_packed(self, node: int) -> bool:
        """True if a column is another column times 8, 16, ..."""
        return bool(
            self.op[node] == CODES["*"]
            and self.is_constant(self.right[node])
            and self.leaves[self.left[self.right[node]]].args[0] >= 8
        )

    def base(self, node: int) -> int:
        """The column in a node that combines one column with a constant; a leaf is its own base."""
        if self.is_leaf(node):
            return node
        return int(self.right[node] if self.is_constant(self.left[node]) else self.left[node])

    def expression(self, node: int) -> Expression:
        if self.is_leaf(node):
            return self.leaves[self.left[node]]
        parts = [part for part in (self.left[node], self.right[node]) if part >= 0]
        return Expression(
            SYMBOLS[self.op[node]], tuple(self.expression(int(part)) for part in parts)
        )

    def linear_law(self, left: int, factor: int, right: int) -> Expression:
        law, other = self.expression(left), self.expression(right)
        if not factor:
            return law
        if abs(factor) > 1:
            other = term("*", other, abs(factor))
        return term("+" if factor > 0 else "-", law, other)

    def product_law(self, *nodes: int) -> Expression:
        law, *others = [self.expression(node) for node in nodes if node >= 0]
        for other in others:
            law = term("*", law, other)
        return law

    def area_law(self, a: int, k: int, b: int, its_k: int, align: int) -> Expression:
        law = term(
            "*",
            *(
                term("-", term("+", self.expression(size), self.expression(kernel)), 1)
                for size, kernel in ((a, k), (b, its_k))
            ),
        )
        if align == 1:
            return law
        return term("align", law, align)

    @cached_property
    def _by_key(self) -> tuple[Array, Array]:
        nodes = np.flatnonzero(self.key[: self.n])
        nodes = nodes[np.argsort(self.key[nodes], kind="stable")]
        return nodes, self.key[nodes]

    def twins(self, node: int) -> list[int]:
        """The first few other nodes that have the same values as a node."""
        nodes, keys = self._by_key
        first, end = (
            int(np.searchsorted(keys, self.key[node], side)) for side in ("left", "right")
        )
        found: list[int] = []
        for twin in nodes[first : min(end, first + BUDGET.same_column + 1)].tolist():
            if twin != node:
                found.append(twin)
        return found


class _Growth:
    """Makes a library; ``_kept`` are (nodes, values as uint32) of the columns that become laws."""

    def __init__(self, columns: Columns, names: Names) -> None:
        self.columns, self.n = columns, columns.n
        self._key = (
            np.random.default_rng(1).integers(1, 2**62, self.n).astype(np.uint64) * np.uint64(2) + 1
        )
        self.nodes = _Nodes(self.n)
        self._seen: set[int] = set()
        self._kept: list[tuple[Array, Array]] = []
        self._constants: dict[int, int] = {}
        # the 64th field and all later fields share the last bit of ``uses``
        self.field_bits = {name: 2 ** min(i, 63) for i, name in enumerate(names.fields)}
        self._grow(names)
        self._first_real = self.nodes.n
        self._reals(names.reals)

    # -- nodes

    def _leaves(self, laws: Iterable[Expression], cost: float) -> list[int]:
        nodes = []
        for law in laws:
            values = np.asarray(self.columns[law], np.int64)
            uses = 0
            if law.op == FIELD:
                uses = self.field_bits.get(law.args[0], 0)
            nodes.append(self.nodes.leaf(law, cost, uses, values))
            self._enter(np.array(nodes[-1:]), values[None])
        return nodes

    def _constant(self, value: int) -> int:
        if value not in self._constants:
            column = np.full(self.n, value, np.int64)
            self._constants[value] = self.nodes.leaf(constant(value), 0.0, 0, column)
        return self._constants[value]

    def _new(self, nodes: Sequence[int]) -> list[int]:
        """Those of the nodes that were the first with their column."""
        return [node for node in nodes if self.nodes.kept[node]]

    def _cheapest(self, nodes: Iterable[int], most: int) -> list[int]:
        return sorted(nodes, key=lambda node: float(self.nodes.cost[node]))[:most]

    def _apply(
        self, op: str, left: Sequence[int] | Array, right: Any, costs: Array, keep: bool
    ) -> list[int]:
        """Make the columns ``left op right`` and return the new ones; ``right`` is None, a
        constant, or a node for each of ``left``.
        """
        fresh: list[int] = []
        function = OPERATORS[op].function
        step = max(BUDGET.block_values // self.n, 1)
        for start in range(0, len(left), step):
            part = left[start : start + step]
            values = self.nodes.values(part)
            if right is None:
                values, others = function(values), -1
            elif isinstance(right, int):
                values, others = function(values, right), self._constant(right)
            else:
                others = right[start : start + step]
                values = function(values, self.nodes.values(others))
            nodes = self.nodes.add(op, part, others, costs[start : start + step])
            new = self._enter(nodes, values)
            fresh += nodes[new].tolist()
            if keep:
                self.nodes.store(nodes[new], values[new])
        return fresh

    def _enter(self, nodes: Array, values: Array) -> Array:
        """Enter columns as laws; return the indices of those that vary and that no earlier node
        has.

        A column that an earlier node has is a rival of that node.
        """
        keys = values.view(np.uint64) @ self._key
        varies = np.flatnonzero(keys != values[:, 0].view(np.uint64) * self._key.sum())
        new, seen = [], self._seen
        for i, key in zip(varies.tolist(), keys[varies].tolist(), strict=True):
            if key not in seen:
                seen.add(key)
                new.append(i)
        first = np.array(new, int)
        self.nodes.key[nodes[varies]] = keys[varies]
        self.nodes.kept[nodes[first]] = True
        if new:
            self._kept.append((nodes[first], values[first].astype(np.uint32)))
        return first

    def _step(self, op: str, left: int, right: int) -> int:
        """A node that is made only as an operand of another and is not entered as a law."""
        values = OPERATORS[op].function(self.nodes.values(left), self.nodes.values(right))
        node = self.nodes.add(op, [left], right, self.nodes.cost[left] + 3)
        self.nodes.store(node, values[None])
        return int(node[0])

    def _unary(self, nodes: Sequence[int], shapes: Shapes, keep: bool) -> list[int]:
        priced = []
        for op, constants, cost in shapes:
            for value in constants:
                priced.append((op, value, cost + (0 if value is None else constant_cost(value))))
        found: list[int] = []
        for op, value, price in priced:
            for node in self._apply(op, nodes, value, self.nodes.cost[nodes] + price, keep):
                found.append(node)
        return found

    def _negated(self, nodes: Sequence[int]) -> list[int]:
        """Make the columns ``constant - column`` and return the new ones."""
        found: list[int] = []
        for value in MINUENDS:
            for node in self._apply(
                "-",
                [self._constant(value)] * len(nodes),
                nodes,
                self.nodes.cost[nodes] + 4 + constant_cost(value),
                True,
            ):
                found.append(node)
        return found

    def _make(self, candidates: Array, keep: bool) -> list[int]:
        """Make the columns of candidates, cheap ones first, and return the new ones."""
        fresh: list[int] = []
        order = np.argsort(candidates["cost"], kind="stable")
        # slices of rising cost, so that the first of several equal columns is a cheap one
        for start in range(0, len(order), BUDGET.slice):
            chosen = candidates[order[start : start + BUDGET.slice]]
            codes, first = np.unique(chosen["op"], return_index=True)
            for code in codes[np.argsort(first)]:
                group = chosen[chosen["op"] == code]
                fresh += self._apply(
                    SYMBOLS[code], group["left"], group["right"], group["cost"], keep
                )
        return fresh

    # -- shapes of integers

    def _grow(self, names: Names) -> None:
        nodes = self.nodes
        own = self._leaves([Expression(GIVEN, (text,)) for text in names.given], PRIOR.given)
        base = self._new(
            self._leaves(map(parameter, names.integers), PRIOR.parameter)
            + self._leaves(map(field, names.fields), PRIOR.field)
        )
        ones = self._unary(base + own, OF_COLUMN, True) + self._negated(base + own)
        sizes = [node for node in base if is_size(nodes.values(node))] + own
        small = set()
        for node in sizes:
            if nodes.values(node).max() <= BUDGET.small and nodes.values(node).min() >= 0:
                small.add(node)
        self._conv_sizes([node for node in sizes if not nodes.uses[node]], small)
        known = set(sizes)
        of_sizes = [node for node in ones if nodes.base(node) in known and nodes.cost[node] <= 11]
        cheap = self._cheapest(of_sizes, 260 if len(sizes) < 14 else 160)
        self.leaves = tuple(
            Leaf(
                nodes.expression(node),
                nodes.values(node).copy(),
                float(nodes.cost[node]),
                int(nodes.uses[node]),
            )
            for node in sizes
        )
        # few captures save too few bits to pay for rare laws
        share = min(1.0, max(self.n / 120, 0.6))
        pairs = np.concatenate(
            [np.zeros(0, CANDIDATE), *(self._pairs(sizes, i, cheap) for i in range(len(sizes)))]
        )
        pairs = pairs[np.argsort(pairs["cost"], kind="stable")[: int(share * BUDGET.pairs)]]
        twos = self._make(pairs, True)
        self.linear = self._linear(sizes, self._products(sizes))
        self.products = self._size_products(sizes, names.factors)
        parents = self._cheapest(twos, int(share * BUDGET.grown_pairs))
        known = set(parents)
        parents += [node for node in twos if node not in known and nodes.is_product(node)]
        self._unary(parents, OF_PAIR, False)
        first = np.array(parents[: int(share * BUDGET.third_column)], int)
        third = _candidates(
            nodes,
            np.repeat(first, len(sizes)),
            np.tile(np.array(sizes, int), len(first)),
            ("*", "ceil", "//", "+", "-", "min"),
        )
        self._make(third.ravel(), False)
        self.areas = self._areas(sizes, small)

    def _pairs(self, sizes: list[int], i: int, cheap: list[int]) -> Array:
        """Pair size number i with the sizes after it and with all cheap columns, in both orders if
        it matters."""
        nodes, a = self.nodes, sizes[i]
        others = np.array([*sizes[i:], *cheap], int)
        either = _candidates(nodes, np.full(len(others), a), others, ("+", "*", "min", "max", "^"))
        makes = np.ones(either.shape, bool)
        # size + size * 2**n would be two adjacent fields, which are found as two
        makes[:, 0] = [not nodes.is_packed(node) for node in others.tolist()]
        makes[:, 4] = (
            (np.arange(len(others)) < len(sizes) - i)
            & (others > a)
            & (nodes.uses[others] == 0)
            & (nodes.uses[a] == 0)
        )
        others = np.array([node for node in (*sizes, *cheap) if node != a], int)
        ordered = _candidates(
            nodes, np.full(len(others), a), others, ("-", "-", "//", "//", "ceil", "ceil")
        )
        ordered["left"][:, 1::2], ordered["right"][:, 1::2] = others[:, None], a
        return np.concatenate([either[makes], ordered.ravel()])

    def _conv_sizes(self, plain: list[int], small: set[int]) -> None:
        """Make (size + 2 padding - kernel) // stride + 1, the output size of a convolution, of all
        columns that may be these sizes.
        """
        sizes = [node for node in plain if node not in small]
        least = {node: self.nodes.values(node).min() for node in plain}
        counts = sorted(node for node in small if node in least and least[node] >= 1)
        for padding, kernel, stride in itertools.permutations(
            [node for node in plain if node in small], 3
        ):
            if not sizes or least[kernel] < 1 or least[stride] < 1:
                continue
            inner = self._step("*", padding, self._constant(2))
            for size in sizes:
                span = self._step("-", self._step("+", size, inner), kernel)
                self._apply("+", [self._step("//", span, stride)], 1, np.array([10.0]), True)
        for kernel, stride in itertools.permutations(counts, 2):
            for output, size in itertools.permutations(sizes, 2):
                self._windows(output, size, kernel, stride)

    def _windows(self, output: int, size: int, kernel: int, stride: int) -> None:
        """Make columns of the part of an input that windows reach, and of the padding that the
        windows need: before, after, in all.

        Nothing is made if the four columns do not fit as the sizes of windows.
        """
        reach = (self.nodes.values(output) - 1) * self.nodes.values(stride) + self.nodes.values(
            kernel
        )
        beyond = reach - self.nodes.values(size)
        # all windows begin inside the input, and one more window would reach beyond it
        if (
            (beyond > -self.nodes.values(stride)) & (beyond < self.nodes.values(kernel))
        ).mean() < USUALLY:
            return
        need = self._step(
            "+", self._step("*", self._step("-", output, self._constant(1)), stride), kernel
        )
        used = self._step("min", need, size)
        padding = self._step("max", self._step("-", need, size), self._constant(0))
        before = self._step("//", padding, self._constant(2))
        for node, cost in (
            (need, 8.0),
            (used, 9.0),
            (padding, 9.0),
            (before, 9.5),
            (self._step("ceil", padding, self._constant(2)), 9.5),
            (self._step("-", need, self._constant(1)), 9.0),
            (self._step("-", used, self._constant(1)), 9.5),
        ):
            self.nodes.cost[node] = cost
            self._enter(np.array([node]), self.nodes.values([node]))

    def _products(self, sizes: list[int]) -> list[int]:
        """Make products of two to four columns, and the shapes that usually follow a product;
        return the new products.
        """
        few = self._cheapest(sizes, BUDGET.factors)
        grown: dict[tuple[int, ...], int] = {(node,): node for node in few}
        entered: list[int] = []
        for length in (2, 3, 4):
            longer = {}
            for names, node in grown.items():
                for other in few:
                    if other >= names[-1] and (length == 2 or other not in names):
                        longer[(*names, other)] = (node, other)
            grown = dict(zip(longer, self._products_of([*longer.values()]), strict=True))
            new = self._new([*grown.values()])
            entered += new
            if length > 2:
                self._unary(new, OF_PRODUCT, False)
        return entered

    def _products_of(self, pairs: list[tuple[int, int]]) -> list[int]:
        left, right = np.array(pairs, int).reshape(-1, 2).T
        values = self.nodes.values(left) * self.nodes.values(right)
        cost = self.nodes.cost[left] + self.nodes.cost[right] - 1.0
        nodes = self.nodes.add("*", left, right, cost)
        self._enter(nodes, values)
        self.nodes.store(nodes, values)
        return nodes.tolist()

    # -- columns for solved constants

    def _linear(self, sizes: list[int], products: list[int]) -> Family:
        pairs = [(node, 0, node) for node in products]
        for a in sizes:
            pairs.append((a, 0, a))
            for b in sizes:
                for k in FACTORS:
                    if a != b and (k != 1 or a < b):
                        pairs.append((a, k, b))
        parts = np.array(pairs, int).reshape(-1, 3)
        left, factor, right = parts.T
        cost, uses = self.nodes.cost, self.nodes.uses
        by_factor = {0: 0.0} | {k: 3 + (constant_cost(k) if abs(k) > 1 else 0) for k in FACTORS}
        extra_cost = np.array([by_factor[k] for k in factor.tolist()])
        return Family(
            self.nodes.values(left) + factor[:, None] * self.nodes.values(right),
            (cost[left] + np.where(factor, cost[right], 0) + extra_cost).astype(np.float32),
            uses[left] | uses[right],
            parts,
            self.nodes.linear_law,
        )

    def _size_products(self, sizes: list[int], factors: Sequence[str]) -> Family:
        """Sizes and products of up to four of them, exact to 63 bits, for limits.

        A product may show a limit that none of its factors shows, so factors that show in no bit by
        themselves belong here too.
        """
        nodes = self.nodes
        counts = [node for node in sizes if nodes.values(node).min() >= 1]
        for name in factors:
            values = np.asarray(self.columns[parameter(name)], np.int64)
            if values.min() >= 1:
                counts.append(nodes.leaf(parameter(name), PRIOR.parameter, 0, values))
        few = self._cheapest(counts, BUDGET.factors)
        groups = []
        for length in (1, 2, 3, 4):
            for group in itertools.combinations(few, length):
                groups.append(group)
        groups += [(node, node) for node in few]
        magnitude = {node: float(np.log2(nodes.values(node)).max()) for node in few}
        groups = [group for group in groups if sum(map(magnitude.__getitem__, group)) < 62]
        parts = np.array([(*group, *[-1] * (4 - len(group))) for group in groups], int).reshape(
            -1, 4
        )
        columns = [np.prod(nodes.values(list(group)), axis=0) for group in groups]
        cost = [nodes.cost[list(group)].sum() - (len(group) - 1) for group in groups]
        uses = [np.bitwise_or.reduce(nodes.uses[list(group)]) for group in groups]
        return Family(
            np.array(columns, np.int64).reshape(-1, self.n),
            np.array(cost, np.float32),
            np.array(uses, np.uint64),
            parts,
            self.nodes.product_law,
        )

    def _areas(self, sizes: list[int], small: set[int]) -> Family:
        wide = [a for a in sizes if a not in small] + [self._constant(value) for value in TILES]
        cost, uses = self.nodes.cost, self.nodes.uses
        kernels = [k for k in sorted(small) if self.nodes.values(k).min() >= 1]
        a, k = np.array([(a, k) for k in kernels for a in wide], int).reshape(-1, 2).T
        columns = self.nodes.values(a) + self.nodes.values(k) - 1
        costs = np.where(cost[a] > 0, cost[a], 4.0) + cost[k]
        first, second = np.triu_indices(len(a))
        square = k[first] == k[second]
        fits = square | ((uses[k[first]] | uses[k[second]]) == 0)
        first, second, square = first[fits], second[fits], square[fits]
        align = np.array(AREA_ALIGNMENTS)
        extra_cost = np.array([0.0, *(3 + constant_cost(value) for value in AREA_ALIGNMENTS[1:])])
        # a kernel that is the same in both directions is tried once
        price = (costs[first] + costs[second] + 4 - np.where(square, PRIOR.parameter, 0))[
            :, None
        ] + extra_cost
        order = np.argsort(price.ravel(), kind="stable")[: BUDGET.areas]
        first, second, align = (
            first[order // len(align)],
            second[order // len(align)],
            align[order % len(align)],
        )
        area = columns[first] * columns[second]
        parts: Array = np.stack([a[first], k[first], a[second], k[second], align], 1)
        return Family(
            -(-area // align[:, None]) * align[:, None],
            price.ravel()[order].astype(np.float32),
            np.bitwise_or.reduce(uses[parts[:, :4]], axis=1),
            parts,
            self.nodes.area_law,
        )

    # -- real numbers

    def _reals(self, names: Sequence[str]) -> None:
        """Make columns of the float32 bit patterns of scales, of their products and ratios: the
        whole pattern, and its exponent less a bias or subtracted from a bias.
        """
        shapes: list[tuple[Expression, float]] = []
        leaf = {name: parameter(name) for name in names}
        for a in names:
            shapes += [(leaf[a], 5), (term("f/", 1, leaf[a]), 7)]
        for a, b in itertools.combinations(names, 2):
            shapes.append((term("f*", leaf[a], leaf[b]), 8))
        for a, b in itertools.permutations(names, 2):
            shapes.append((term("f/", leaf[a], leaf[b]), 8))
        for a, b, c in itertools.permutations(names, 3):
            if a < b:
                for kind, cost in (("f", 9), ("d", 10)):
                    shapes.append(
                        (term(f"{kind}/", term(f"{kind}*", leaf[a], leaf[b]), leaf[c]), cost)
                    )
            if b < c:
                shapes.append((term("f/", leaf[a], term("f*", leaf[b], leaf[c])), 10))
        leaves = []
        for law, price in shapes:
            leaves += self._leaves([term("f", law)], price)
        patterns = self._new(leaves)
        exponents = [self._step("//", node, self._constant(MANTISSA)) for node in patterns]
        biases = [self._constant(bias) for bias in BIASES]
        # the exponents of a ratio and of its inverse give the same columns: the cheaper one first
        for node in self._cheapest(exponents, len(exponents)):
            costs, same = np.full(len(biases), self.nodes.cost[node] + 5), [node] * len(biases)
            self._apply("-", biases, same, costs, False)
            self._apply("-", same, biases, costs, False)

    # -- the end

    def library(self, most: int) -> Library:
        nodes = np.concatenate([np.zeros(0, int), *(nodes for nodes, _ in self._kept)])
        costs = self.nodes.cost[nodes].astype(np.float32)
        order = np.argsort(costs, kind="stable")
        keep = np.arange(len(order)) < most
        # a tenth of the places is reserved for laws of real numbers, because integer shapes would
        # fill all
        keep[np.flatnonzero(nodes[order] >= self._first_real)[: most // 10]] = True
        order = order[keep]
        nodes = nodes[order]
        row = np.full(self.nodes.n, len(nodes))
        row[nodes] = np.arange(len(nodes))
        # the last row takes the values of the laws that are left out
        values = np.empty((len(nodes) + 1, self.n), np.uint32)
        for of, kept in self._kept:
            values[row[of]] = kept
        # naming law number n takes log2(n) bits, whatever its shape
        cost = np.maximum(costs[order], np.log2(np.arange(len(order)) + 1) + 1).astype(np.float32)
        laws = Family(
            values[:-1], cost, self.nodes.uses[nodes], nodes[:, None], self.nodes.expression
        )
        rows = np.random.default_rng(3).permutation(self.n)[: BUDGET.key_sample]
        self.nodes.forget()
        return Library(
            laws,
            self.linear,
            self.areas,
            self.products,
            self.leaves,
            rows,
            np.ascontiguousarray(laws.values[:, rows]),
            self.field_bits,
            self.nodes,
        )


def _candidates(nodes: _Nodes, left: Array, right: Array, ops: Sequence[str]) -> Array:
    """``(pairs, operators)`` of candidates: each pair with each operator."""
    out = np.empty((len(left), len(ops)), CANDIDATE)
    out["cost"] = (nodes.cost[left] + nodes.cost[right])[:, None] + [
        OPERATORS[op].cost for op in ops
    ]
    out["op"] = [CODES[op] for op in ops]
    out["left"], out["right"] = left[:, None], right[:, None]
    return out
