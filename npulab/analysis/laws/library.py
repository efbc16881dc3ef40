"""The law library: laws over the parameters of the shapes in ``grammar.csv``, cheapest first.

Of laws with equal values on all captures, only the cheapest is in the library; the others are its
rivals.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from npulab.analysis.laws.expressions import (
    CONSTANT,
    FIELD,
    GIVEN,
    PARAMETER,
    Array,
    Columns,
    Expression,
    constant,
    field,
    parameter,
)
from npulab.analysis.laws.operators import OPERATORS
from npulab.analysis.laws.prior import BUDGET, PRIOR, constant_cost
from npulab.analysis.laws.texts import parse_law
from npulab.support.files import read_table

# A row of the grammar makes a column only if the row's condition holds on at least a share of
# USUALLY of the captures.
USUALLY = 0.5

EXACT = 2.0**62  # values below EXACT are computed exactly in int64
LAWS, FACTORS, REALS = "laws", "factors", "reals"
FAMILIES = ("linear", "products", "tiles", "areas")  # columns of these stages are no laws

# A column that is a parameter, a field or a user's law has the number LEAF in place of a shape.
LEAF = -1

# A column of the library. ``shape`` is the number of its shape; ``of`` are the columns that the
# names of the shape's formula take; ``cost`` is in bits. ``uses`` has a bit for each field that the
# column reads. ``key`` is a hash of the values, 0 if they do not vary or are not compared; ``row``
# is where the values are stored. ``grows`` is true if the column reads no mode, so that later rows
# of the grammar may take it; ``real`` is true if it reads a real number.
COLUMN = np.dtype(
    [
        ("shape", np.int16),
        ("of", np.int32, 4),
        ("cost", float),
        ("uses", np.uint64),
        ("key", np.uint64),
        ("row", np.int32),
        ("grows", bool),
        ("real", bool),
    ],
    align=True,
)


@dataclass(frozen=True)
class Names:
    """The columns that laws are made of: whole-valued parameters, real parameters, explained
    fields, and the texts of the user's laws.

    Real parameters enter only in products and ratios, as their float32 bit patterns. ``factors``
    are whole-valued parameters that enter only products for limits.
    """

    integers: Sequence[str] = ()
    reals: Sequence[str] = ()
    fields: Sequence[str] = ()
    given: Sequence[str] = ()
    factors: Sequence[str] = ()


@dataclass(frozen=True)
class Group:
    """Names of a formula that take columns of the same kinds. Exchanging two of these columns gives
    the same law, so that they are taken in rising order only. ``steps`` has a number for each two
    successive names: 1 if their columns must differ, 0 if they may be the same.
    """

    names: tuple[str, ...]
    kinds: str
    steps: tuple[int, ...]


@dataclass(frozen=True)
class Shape:
    """A row of the grammar with one of its constants; ``price`` is in bits, ``most`` the budget of
    the stage.
    """

    stage: str
    most: str
    formula: Expression
    groups: tuple[Group, ...]
    where: Expression | None
    price: float
    results: tuple[str, ...]

    @cached_property
    def names(self) -> list[str]:
        return [*itertools.chain.from_iterable(group.names for group in self.groups)]


@dataclass(frozen=True, eq=False)
class Formulas:
    """How the values of each column of a library are computed: a ``table`` of dtype COLUMN."""

    leaves: tuple[Expression, ...]
    table: Array

    def __getitem__(self, number: int) -> Expression:
        column = self.table[number]
        if column["shape"] == LEAF:
            return self.leaves[column["of"][0]]
        shape = grammar()[column["shape"]]
        parts = {}
        for name, part in zip(shape.names, column["of"].tolist(), strict=False):
            parts[name] = self[part]
        return _filled(shape.formula, parts)

    @cached_property
    def _by_key(self) -> tuple[Array, Array]:
        keys = self.table["key"]
        numbers = np.flatnonzero(keys)
        numbers = numbers[np.argsort(keys[numbers], kind="stable")]
        return numbers, keys[numbers]

    def twins(self, number: int) -> list[int]:
        """A few other columns with the same values as the column ``number``."""
        numbers, keys = self._by_key
        first, end = np.searchsorted(keys, self.table["key"][number] + np.array([0, 1], np.uint64))
        same = numbers[first : min(end, first + BUDGET.same_column + 1)]
        return same[same != number].tolist()


@dataclass(frozen=True, eq=False)
class Family:
    """Laws of one kind.

    ``values (L, N)`` are their values, ``cost (L,)`` their costs in bits. ``uses (L,)`` is a mask
    with a bit for each field that a law reads. ``numbers (L,)`` are the rows of the laws in
    ``formulas``.
    """

    values: Array
    cost: Array
    uses: Array
    numbers: Array
    formulas: Formulas

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> Expression:
        return self.formulas[int(self.numbers[index])]

    @property
    def parts(self) -> Array:
        """``(L, 4)``: for each law the columns that stand for the names of its formula, then -1."""
        return np.asarray(self.formulas.table["of"][self.numbers])

    def of(self, rows: Any) -> Family:
        """The laws that a mask, a slice or their numbers select."""
        return replace(
            self,
            values=self.values[rows],
            cost=self.cost[rows],
            uses=self.uses[rows],
            numbers=self.numbers[rows],
        )

    def named(self) -> Family:
        """The same laws without their values, which saves memory."""
        return replace(self, values=np.zeros((len(self), 0)))

    def without(self, uses: int) -> Family:
        return self.of((self.uses & np.uint64(uses)) == 0)


@dataclass(frozen=True, eq=False)
class Leaf:
    """A column that is a parameter, a field or a user's law. ``uses`` is the mask bit of a field, 0
    for any other leaf.
    """

    law: Expression
    values: Array
    cost: float
    uses: int


@dataclass(frozen=True, eq=False)
class Library:
    """The laws as ``uint32`` columns, by rising cost and with different values; and int64 columns
    for which a search solves constants.

    ``linear`` are x + k y of sizes and products. ``areas`` are (a + k - 1) (b + l - 1), aligned:
    the input that a tile of the output needs. ``products`` of up to four sizes are for limits.
    ``leaves`` are the parameters, fields and user's laws that are sizes. ``sample`` has the values
    of the laws on the captures ``sample_rows``.
    """

    laws: Family
    linear: Family
    areas: Family
    products: Family
    leaves: tuple[Leaf, ...]
    sample_rows: Array
    sample: Array
    field_bits: Mapping[str, int]

    @property
    def n(self) -> int:
        return self.laws.values.shape[1]

    def __len__(self) -> int:
        return len(self.laws)

    def without(self, uses: int) -> Library:
        """The library without the laws that read a field of the mask ``uses``."""
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
        """The mask of these fields, as ``uses`` has it."""
        uses = 0
        for name in fields:
            uses |= self.field_bits.get(name, 0)
        return uses

    @cached_property
    def limited(self) -> tuple[Family, Array, Array]:
        """The laws on which limits are tried; their values ``(N, L)``; and ``(L,) bool``, true for
        laws without negative values.
        """
        laws = self.laws.of(slice(BUDGET.limit_laws))
        return laws, np.ascontiguousarray(laws.values.T), laws.values.max(1) < 2**31

    @cached_property
    def inner(self) -> tuple[tuple[Family, Family], Array, Array, dict[int, tuple[Array, Array]]]:
        """The areas and the cheapest laws, which a search tries as factors of products: the laws,
        their values, their costs, and a cache.

        The key of the cache is the number of a capture. Its value is the laws sorted by their
        values on that capture, and these values.
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
        """Yield pairs (x, z) of leaves: x is the constant 0 or a field, z another leaf that is a
        size.
        """
        nothing = Leaf(constant(0), np.zeros(self.n, np.int64), 0.0, 0)
        for x in [nothing, *(leaf for leaf in self.leaves if leaf.uses)]:
            for z in self.leaves:
                if z is not x:
                    yield x, z

    def rivals(self, index: int, within: float) -> list[tuple[float, Expression]]:
        """Other laws with the same values as law ``index``, each with the bits that it costs more,
        which are at most ``within``.
        """
        formulas, number = self.laws.formulas, int(self.laws.numbers[index])
        costs = formulas.table["cost"]
        found: dict[Expression, float] = {}
        for twin in sorted(formulas.twins(number), key=costs.__getitem__):
            extra_cost = max(float(costs[twin] - costs[number]), 0.0)
            if extra_cost <= within:
                found.setdefault(formulas[twin], extra_cost)
        found.pop(formulas[number], None)
        return [(extra_cost, law) for law, extra_cost in found.items()]


def make_library(columns: Columns, names: Names, most: int = BUDGET.laws) -> Library:
    """The library over the columns of the captures, with at most about ``most`` laws."""
    growth = _Growth(columns, names)
    stages = defaultdict(list)
    for number, shape in enumerate(grammar()):
        stages[shape.stage].append(number)
    for stage, shapes in stages.items():
        growth.grow(stage, shapes)
    return growth.library(min(most, max(BUDGET.library_values // columns.n, 1000)))


def is_size(values: Array) -> bool:
    """True if a column may be a size and no flag: it has more than two values, or no value of 0 or
    below.
    """
    kinds = np.unique(values)
    return len(kinds) > 2 or bool(kinds[0] > 0)


@cache
def grammar() -> tuple[Shape, ...]:
    """The shapes of all rows of ``grammar.csv``, in the order of the table."""
    shapes = []
    for row in read_table(Path(__file__).with_name("grammar.csv")):
        formula, where = parse_law(row["formula"]), None
        if row["where"]:
            where = parse_law(row["where"])
        for value in _constants(row["constants"]):
            shapes.append(
                Shape(
                    row["stage"],
                    row["most"],
                    _filled(formula, {"c": constant(value)}),
                    tuple(_groups(row["names"])),
                    where,
                    _price(row["price"], value),
                    tuple(row["result"].split()),
                )
            )
    return tuple(shapes)


def _constants(text: str) -> Iterator[int]:
    """The numbers in a text as ``2..39 64``; 0 for an empty text, whose formula has no constant."""
    for part in text.split() or ["0"]:
        first, _, last = part.partition("..")
        yield from range(int(first), int(last or first) + 1)


def _groups(text: str) -> Iterator[Group]:
    for part in text.split(";"):
        names, _, kinds = part.partition(":")
        first, *others = re.split("(<=?)", names.strip())
        if first:
            steps = [int(sign == "<") for sign in others[::2]]
            yield Group((first, *others[1::2]), kinds, tuple(steps))


def _price(text: str, value: int) -> float:
    price = 0.0
    for part in text.split(" + "):
        if part == "c":
            price += constant_cost(value)
        else:
            price += float(part)
    return price


def _filled(formula: Expression, parts: Mapping[str, Expression]) -> Expression:
    """The expression of a formula, with ``parts`` in place of its names."""
    if formula.op == PARAMETER:
        return parts.get(formula.args[0], formula)
    if formula.op == CONSTANT:
        return formula
    return Expression(formula.op, tuple(_filled(part, parts) for part in formula.args))


def _computed(formula: Expression, columns: Mapping[str, Array]) -> Any:
    """The values of a formula; a constant stays a number, because numpy divides by it quickly."""
    if formula.op == PARAMETER:
        return columns[formula.args[0]]
    if formula.op == CONSTANT:
        return formula.args[0]
    parts = [_computed(part, columns) for part in formula.args]
    return OPERATORS[formula.op].function(*parts)


def _leaves(names: Names) -> Iterator[tuple[Expression, float, str]]:
    """Yield the law, the cost and the family of each leaf."""
    for text in names.given:
        yield Expression(GIVEN, (text,)), PRIOR.given, LAWS
    for name in names.integers:
        yield parameter(name), PRIOR.parameter, LAWS
    for name in names.fields:
        yield field(name), PRIOR.field, LAWS
    for name in names.factors:
        yield parameter(name), PRIOR.parameter, FACTORS
    for name in names.reals:
        yield parameter(name), 0.0, REALS


def _kinds(law: Expression, values: Array) -> Iterator[str]:
    """The words of the grammar for a parameter, a field or a user's law."""
    yield "column"
    least, most = int(values.min()), int(values.max())
    size = law.op == GIVEN or is_size(values)
    if law.op == FIELD:
        yield "field"
    else:
        yield "plain"
    if size:
        yield "size"
    else:
        yield "mode"
    if least >= 0 and most <= BUDGET.small:
        yield "small"
    elif size:
        yield "large"
    if least >= 1:
        yield "count"


def _by_shape(numbers: Array) -> Iterator[tuple[Shape, Array]]:
    """Yield each of the shapes with some numbers, and its places among the numbers."""
    order = np.argsort(numbers, kind="stable")
    kinds, first = np.unique(numbers[order], return_index=True)
    for number, rows in zip(kinds.tolist(), np.split(order, first[1:]), strict=False):
        yield grammar()[number], rows


@dataclass(frozen=True, eq=False)
class _Made:
    """Columns of one shape: their numbers in the table, their values, and their kinds."""

    numbers: Array
    values: Array
    kinds: Collection[str]


class _Growth:
    """Makes a library, stage by stage.

    ``kinds`` has the numbers of the columns by kind; ``stored`` the values of columns that later
    rows of the grammar take; ``made`` the numbers and values of the columns made, by family.
    """

    def __init__(self, columns: Columns, names: Names) -> None:
        self.n = columns.n
        self.leaves: list[Expression] = []
        self.table = np.zeros(0, COLUMN)
        self.stored: Array = np.zeros((0, self.n), np.int64)
        self.kinds: dict[str, list[int]] = defaultdict(list)
        self.made: dict[str, list[tuple[Array, Array]]] = defaultdict(list)
        self._fresh: list[Array] = []  # values of new columns, not yet in ``stored``
        self._rows = 0
        self._seen = {0}
        random = np.random.default_rng(1).integers(1, 2**62, self.n)
        self._weights = random.astype(np.uint64) * np.uint64(2) + 1
        # With fewer than 120 captures a stage makes fewer columns, down to 60 % of the usual
        # number, because few captures cannot pay for rare laws.
        self._share = min(1.0, max(self.n / 120, 0.6))
        # the 64th field and all later fields share the last bit of ``uses``
        self.field_bits = {name: 2 ** min(i, 63) for i, name in enumerate(names.fields)}
        for law, cost, family in _leaves(names):
            self._leaf(law, cost, family, np.asarray(columns[law]))

    def _leaf(self, law: Expression, cost: float, family: str, values: Array) -> None:
        if family == REALS:
            values, kinds = values.astype(np.float64).view(np.int64), {"real"}
        else:
            values = values.astype(np.int64)
            kinds = {*_kinds(law, values)}
        if family == FACTORS:
            kinds &= {"count"}
        block = np.zeros(1, COLUMN)
        block["shape"], block["of"], block["cost"] = LEAF, -1, cost
        block["of"][0, 0] = len(self.leaves)
        block["real"], block["grows"] = family == REALS, "mode" not in kinds
        if law.op == FIELD:
            block["uses"] = self.field_bits[law.args[0]]
        self.leaves.append(law)
        self.table = np.concatenate([self.table, block])
        self._enter([_Made(np.array([len(self.table) - 1]), values[None], kinds)], family)
        self._store()

    # -- a stage

    def grow(self, stage: str, shapes: Sequence[int]) -> None:
        """Make the columns of a stage by rising cost; ``shapes`` are the numbers of its shapes."""
        block, family = self._candidates(shapes), LAWS
        if stage in FAMILIES:
            block, family = block[self._peaks(block) < EXACT], stage
        order = np.argsort(block["cost"], kind="stable")
        most = grammar()[shapes[0]].most
        if most:
            order = order[: self._limit(most)]
        start = len(self.table)
        self.table = np.concatenate([self.table, block.take(order)])  # ``block[order]`` is slower
        for first in range(start, len(self.table), BUDGET.slice):
            part = self.table[first : first + BUDGET.slice]
            made = []
            for shape, rows in _by_shape(part["shape"]):
                values = self._values(shape.formula, shape, part["of"][rows])
                made.append(_Made(first + rows, values, shape.results))
            self._enter(made, family)
        self._store()

    def _candidates(self, shapes: Sequence[int]) -> Array:
        """All columns that some shapes may make."""
        operands = {}
        blocks = [self.table[:0]]
        for number in shapes:
            shape = grammar()[number]
            wanted = shape.groups, shape.where
            if wanted not in operands:
                operands[wanted] = self._operands(shape)
            of = operands[wanted]
            block = np.zeros(len(of), COLUMN)
            block["shape"], block["of"] = number, -1
            block["of"][:, : of.shape[1]] = of
            block["cost"] = self.table["cost"][of].sum(1) + shape.price
            block["uses"] = np.bitwise_or.reduce(self.table["uses"][of], axis=1)
            block["grows"] = self.table["grows"][of].all(1)
            block["real"] = self.table["real"][of].any(1)
            blocks.append(block)
        return np.concatenate(blocks)

    def _operands(self, shape: Shape) -> Array:
        """``(rows, names)``: the combinations of columns that a shape may take for its names."""
        of = np.zeros((1, 0), int)
        for group in shape.groups:
            chosen = self._chosen(group)
            left, right = np.indices((len(of), len(chosen))).reshape(2, -1)
            before, chosen = of[left], chosen[right]
            apart = (before[:, :, None] != chosen[:, None]).all((1, 2))
            of = np.concatenate([before, chosen], axis=1)[apart]
        if shape.where is None:
            return of
        holds = [np.zeros(0)]
        for first in range(0, len(of), BUDGET.slice):
            part = self._values(shape.where, shape, of[first : first + BUDGET.slice])
            holds.append(part.mean(1))
        return of[np.concatenate(holds) >= USUALLY]

    def _chosen(self, group: Group) -> Array:
        """``(rows, names)``: the combinations of columns that a group of names may take."""
        pool, size = np.array(self._pool(group.kinds), int), len(group.names)
        choices = [*itertools.combinations_with_replacement(range(len(pool)), size)]
        at = np.array(choices, int).reshape(-1, size)
        return pool[at[(np.diff(at, axis=1) >= group.steps).all(1)]]

    def _pool(self, kinds: str) -> list[int]:
        """The numbers of the columns of any of these kinds."""
        found: dict[int, None] = {}
        for kind in kinds.split(" or "):
            limit, _, words = kind.rpartition(" of ")
            first, *others = words.split()
            numbers = self.kinds[first]
            for word in others:
                numbers = [number for number in numbers if number in self.kinds[word]]
            if limit:
                order = np.argsort(self.table["cost"][numbers], kind="stable")
                numbers = np.array(numbers, int)[order[: self._limit(limit)]].tolist()
            found |= dict.fromkeys(numbers)
        return [*found]

    def _limit(self, text: str) -> int:
        """A limit of the grammar: a number, or the name of a budget."""
        if text.strip().isdecimal():
            return int(text)
        return int(self._share * getattr(BUDGET, text.strip()))

    def _values(self, formula: Expression, shape: Shape, of: Array) -> Array:
        """``(rows, N) int64``: a formula of the names of a shape."""
        columns = {}
        for name, numbers in zip(shape.names, of.T, strict=False):
            columns[name] = self.stored[self.table["row"][numbers]]
            if formula.op == "f":
                columns[name] = columns[name].view(np.float64)
        with np.errstate(all="ignore"):
            values = np.asarray(_computed(formula, columns), np.int64)
        return np.broadcast_to(values, (len(of), self.n))

    def _peaks(self, block: Array) -> Array:
        """An upper limit of the values of each column, from the largest values of its parts."""
        peaks = np.zeros(len(block))
        largest = self.stored.max(1).astype(float)
        for shape, rows in _by_shape(block["shape"]):
            parts = block["of"][rows, : len(shape.names)]
            columns = dict(zip(shape.names, largest[self.table["row"][parts]].T, strict=True))
            peaks[rows] = _computed(shape.formula, columns)
        return peaks

    def _enter(self, made: Sequence[_Made], family: str) -> None:
        """Enter columns under their kinds, and as laws or as columns of a family."""
        first: Array = np.ones(len(self.table), bool)
        dtype: Any = np.int64
        if family == LAWS:
            first, dtype = self._first(made), np.uint32
        for one in made:
            keep = first[one.numbers]
            self.made[family].append((one.numbers[keep], one.values.astype(dtype)[keep]))
            if not one.kinds:
                continue
            keep &= self.table["grows"][one.numbers] | (self.table["shape"][one.numbers] == LEAF)
            numbers = one.numbers[keep]
            self.table["row"][numbers] = self._rows + np.arange(len(numbers))
            self._rows += len(numbers)
            self._fresh.append(one.values[keep])
            for kind in one.kinds:
                self.kinds[kind] += numbers.tolist()

    def _first(self, made: Sequence[_Made]) -> Array:
        """Which of the columns just made vary and differ from all earlier columns.

        A column that equals an earlier column is a rival of that one.
        """
        all_keys, total = self.table["key"], self._weights.sum()
        for one in made:
            values = one.values.view(np.uint64)
            # ``einsum`` is three times as quick as ``@``
            keys = np.einsum("ij,j->i", values, self._weights)
            all_keys[one.numbers] = np.where(keys == values[:, 0] * total, 0, keys)
        numbers = np.sort(np.concatenate([one.numbers for one in made]))
        new = []
        for number, key in zip(numbers.tolist(), all_keys[numbers].tolist(), strict=True):
            if key not in self._seen:
                self._seen.add(key)
                new.append(number)
        first = np.zeros(len(self.table), bool)
        first[new] = True
        return first

    def _store(self) -> None:
        """Store the values of new columns."""
        if self._fresh:
            self.stored = np.concatenate([self.stored, *self._fresh])
            self._fresh.clear()

    # -- the library, from the columns of all stages

    def library(self, most: int) -> Library:
        formulas = Formulas(tuple(self.leaves), self.table)
        laws = self._family(LAWS, formulas, most)
        # the n-th law costs at least the bits that it takes to name one of n laws
        naming = np.log2(np.arange(len(laws)) + 1) + 1
        laws = replace(laws, cost=np.maximum(laws.cost, naming).astype(np.float32))
        leaves = []
        for number in self.kinds["size"]:
            column, values = self.table[number], self.stored[self.table["row"][number]].copy()
            leaves.append(
                Leaf(formulas[number], values, float(column["cost"]), int(column["uses"]))
            )
        rows = np.random.default_rng(3).permutation(self.n)[: BUDGET.key_sample]
        return Library(
            laws,
            self._family("linear", formulas),
            self._family("areas", formulas),
            self._family("products", formulas),
            tuple(leaves),
            rows,
            np.ascontiguousarray(laws.values[:, rows]),
            self.field_bits,
        )

    def _family(self, name: str, formulas: Formulas, most: int | None = None) -> Family:
        """The columns of a family by rising cost, at most ``most`` of them."""
        made = self.made[name]
        numbers = np.concatenate([np.zeros(0, int), *(of for of, _ in made)])
        order = np.argsort(self.table["cost"][numbers].astype(np.float32), kind="stable")
        numbers = numbers[order]
        keep = np.ones(len(numbers), bool)
        if most is not None:
            keep[most:] = False
            # laws of whole numbers would fill the library, so that a tenth of it is reserved for
            # laws of real numbers
            keep[np.flatnonzero(self.table["real"][numbers])[: most // 10]] = True
        numbers = numbers[keep]
        row = np.full(len(self.table), len(numbers))
        row[numbers] = np.arange(len(numbers))
        # one more row than laws: the values of columns that are left out are written to it
        dtypes = [values.dtype for _, values in made] or [np.dtype(np.int64)]
        values = np.empty((len(numbers) + 1, self.n), dtypes[0])
        for of, kept in made:
            values[row[of]] = kept
        columns = self.table.take(numbers)
        return Family(
            values[:-1], columns["cost"].astype(np.float32), columns["uses"], numbers, formulas
        )
