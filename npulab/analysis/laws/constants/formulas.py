"""Formulas of constants, as arrays with a row for each formula: products of real parameters with
exponents -1, 0 and 1, and sums of such products with whole-valued parameters.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, permutations, product
from typing import Any

import numpy as np
from numpy import ndarray as Array

from npulab.support.text import plural

# At most MOST_PRODUCTS products are tried; if there would be more, products have fewer factors.
MOST_PRODUCTS = 12_000

# At most MOST_SUMS formulas with whole-valued parameters are tried.
MOST_SUMS = 60_000

# At least FAMILY columns whose names differ only in the number at the end are a family, such as one
# column for each channel: a formula reads columns of one number only. Fewer such columns may be the
# inputs of one layer, and one formula may read several of them.
FAMILY = 5
NUMBERED = re.compile(r"(.*?)_?(\d+)")
# The bits that it costs to say of which kind a formula is: a whole-valued column alone, or a sum.
# For a product they are its number of factors. The odds of all kinds add up to less than 1.
ALONE_BITS, SUM_BITS = 5.5, 6.0
DOUBLE, SINGLE_GIVEN, SINGLE = "double", "float32 parameters", "float32 products"


@dataclass(frozen=True)
class Formula:
    """``plus + sign * product``: ``factors`` of the product are (name of a column, exponent),
    ``plus`` is the name of a whole-valued column, or blank.
    """

    factors: tuple[tuple[str, int], ...]
    plus: str = ""
    sign: int = 1

    def __str__(self) -> str:
        above = [name for name, exponent in self.factors if exponent > 0]
        below = [name for name, exponent in self.factors if exponent < 0]
        text = " * ".join(above)
        if below:
            text = " / ".join([text or "1", *below])
        if not self.factors:
            return self.plus
        if self.plus:
            mark = "+"
            if self.sign < 0:
                mark = "-"
            return f"{self.plus} {mark} {text}"
        if self.sign < 0:
            return f"-{text}"
        return text


@dataclass(frozen=True, eq=False)
class Columns:
    """The names of real and of whole-valued parameters, and their values ``(P, N) float64``; rows
    of real parameters come first.
    """

    real: tuple[str, ...]
    whole: tuple[str, ...]
    values: Array

    @property
    def names(self) -> tuple[str, ...]:
        return self.real + self.whole

    @property
    def single(self) -> bool:
        """True if all parameters are exact as float32, so that rounding them to float32 changes
        nothing.
        """
        return bool((self.values == self.values.astype(np.float32)).all())


@dataclass(frozen=True, eq=False)
class Formulas:
    """Formulas as arrays with a row for each of ``F`` formulas.

    ``exponents (F, P) int8`` are the exponents of the columns in the product, ``sign (F,)`` is the
    sign of the product, ``plus (F,)`` the number of the column that is added (-1: none), ``cost
    (F,)`` the bits that it takes to choose the formula. ``left_off`` is a text: the formulas that
    were not tried.
    """

    columns: Columns
    exponents: Array
    plus: Array
    sign: Array
    cost: Array
    left_off: str = ""

    def __len__(self) -> int:
        return len(self.cost)

    @property
    def sums(self) -> Array:
        """``(F,) bool``: the formulas that read a whole-valued column."""
        real = len(self.columns.real)
        return (self.plus >= 0) | (self.exponents[:, real:] != 0).any(1)

    @cached_property
    def different(self) -> Array:
        """``(F,)``: the number of different values that each formula has on the captures."""
        ordered = np.sort(values_of(self, self.columns.values), axis=1)
        return (ordered[:, 1:] != ordered[:, :-1]).sum(1) + 1

    def formula(self, number: int) -> Formula:
        """The formula in row ``number``."""
        row = self.exponents[number]
        names = self.columns.names
        # whole-valued factors are written first: zx * sum * scale
        places = sorted(np.flatnonzero(row).tolist(), key=lambda place: place < len(self.real))
        factors = tuple((names[place], int(row[place])) for place in places)
        plus = ""
        if self.plus[number] >= 0:
            plus = names[self.plus[number]]
        return Formula(factors, plus, int(self.sign[number]))

    @property
    def real(self) -> tuple[str, ...]:
        return self.columns.real

    def only(self, chosen: Array) -> Formulas:
        """Some of the formulas, by their numbers or a mask."""
        return Formulas(
            self.columns,
            self.exponents[chosen],
            self.plus[chosen],
            self.sign[chosen],
            self.cost[chosen],
        )


def formulas_of(columns: Columns, most_factors: int) -> Formulas:
    """The formulas that the search tries over the columns."""
    products, factors = _products(columns, most_factors)
    left_off = ""
    if factors < min(most_factors, len(columns.real)):
        left_off = f"products of more than {factors} parameters"
    parts = []
    for count in range(1, factors + 1):
        of_count = products[(products != 0).sum(1) == count]
        if len(of_count):
            parts.append(_block(columns, of_count, float(count)))
    if columns.whole:
        summed, left = _sums(columns, products)
        parts += summed
        left_off = ", ".join(filter(None, [left_off, left]))
    if not parts:
        nothing = np.zeros((0, len(columns.names)), np.int8)
        parts = [_block(columns, nothing, 0.0)]
    kinds = np.concatenate([part.cost for part in parts])
    _, of_kind, members = np.unique(kinds, return_inverse=True, return_counts=True)
    bits = kinds + np.log2(members)[of_kind]
    return Formulas(
        columns,
        np.concatenate([part.exponents for part in parts]),
        np.concatenate([part.plus for part in parts]),
        np.concatenate([part.sign for part in parts]),
        bits,
        left_off,
    )


def _block(
    columns: Columns, exponents: Array, bits: float, plus: Array | int = -1, sign: Array | int = 1
) -> Formulas:
    """Formulas of one kind. Each costs ``bits`` and the bits to choose it among the formulas of its
    kind; formulas with the same value on all captures are left out.
    """
    count = len(exponents)
    every = Formulas(
        columns,
        exponents,
        np.broadcast_to(np.int64(plus), count),
        np.broadcast_to(np.int64(sign), count),
        np.zeros(count),
    )
    values = values_of(every, columns.values)
    moving = every.only((values != values[:, :1]).any(1))
    return replace(moving, cost=np.full(len(moving), bits))


def _products(columns: Columns, most_factors: int) -> tuple[Array, int]:
    """The products of real columns ``(F, P) int8``, and the most factors that one of them has."""
    slots = _slots(columns.real)
    for most in range(min(most_factors, len(slots)), 1, -1):
        if sum(1 for _ in _choices(slots, most, MOST_PRODUCTS)) <= MOST_PRODUCTS:
            return _exponents(columns, slots, most), most
    return _exponents(columns, slots, 1), 1


def _exponents(columns: Columns, slots: Sequence[Mapping[int, int]], most: int) -> Array:
    rows = list(_choices(slots, most, MOST_PRODUCTS))
    out = np.zeros((len(rows), len(columns.names)), np.int8)
    for number, row in enumerate(rows):
        for place, exponent in row:
            out[number, place] = exponent
    return out


def _slots(names: Sequence[str]) -> list[dict[int, int]]:
    """The slots of products: a product has at most one factor from each slot.

    A slot is a single column, as ``{-1: its index}``, or a family of columns: a key is a number at
    the end of a name, the value the index of that column.
    """
    families: dict[str, dict[int, int]] = defaultdict(dict)
    for place, name in enumerate(names):
        found = NUMBERED.fullmatch(name)
        if found:
            families[found[1]][int(found[2])] = place
    slots = []
    taken = set()
    for members in families.values():
        if len(members) >= FAMILY:
            slots.append(members)
            taken |= set(members.values())
    plain = [{-1: place} for place in range(len(names)) if place not in taken]
    return plain + slots


def _choices(
    slots: Sequence[Mapping[int, int]], most: int, enough: int
) -> Iterator[list[tuple[int, int]]]:
    """Yield products of 1 to ``most`` factors, each factor as (index of the column, exponent).

    At most ``enough + 1`` products are yielded. Factors from several families have the same number.
    """
    count = 0
    for size in range(1, most + 1):
        for chosen in combinations(slots, size):
            for places in _members(chosen):
                for exponents in product((1, -1), repeat=size):
                    yield list(zip(places, exponents, strict=True))
                    count += 1
                    if count > enough:
                        return


def _members(slots: Sequence[Mapping[int, int]]) -> Iterator[list[int]]:
    """Yield one column of each slot, as indices; columns of families all have the same number."""
    families = [slot for slot in slots if -1 not in slot]
    numbers = {-1}
    if families:
        numbers = set(families[0]).intersection(*families[1:])
    for number in sorted(numbers):
        yield [slot.get(-1, slot.get(number, 0)) for slot in slots]


def _sums(columns: Columns, products: Array) -> tuple[list[Formulas], str]:
    """Formulas with whole-valued columns ``a``, and a text about those that were left out.

    They are ``a`` alone, ``a + b``, ``a - b`` and ``b``, where ``b`` is a product of real columns
    and of at most two whole-valued columns.
    """
    real, names = len(columns.real), columns.names
    alone = np.zeros((len(columns.whole), len(names)), np.int8)
    first = _block(columns, alone, ALONE_BITS, np.arange(real, len(names)))
    counts = (products != 0).sum(1)
    for factors, wholes in ((3, 2), (3, 1), (2, 1), (1, 1)):
        bases = _with_wholes(columns, products[counts <= factors], wholes)
        ways = list(_added(columns, bases))
        if sum(len(of_way) for _, _, of_way in ways) <= MOST_SUMS:
            break
    else:
        return [first], "sums of products and whole parameters"
    parts = [first]
    for place, sign, of_way in ways:
        parts.append(_block(columns, of_way, SUM_BITS, place, sign))
    if (factors, wholes) == (3, 2):
        return parts, ""
    return parts, f"sums with more than {factors} real and {plural(wholes, 'whole factor')}"


def _added(columns: Columns, bases: Array) -> Iterator[tuple[int, int, Array]]:
    """Yield (index of the added column or -1, sign, products) of sums. A column of a family is
    added only to products that have its number.
    """
    real = len(columns.real)
    numbers = family_numbers(columns.names)
    for sign in (1, -1):
        yield -1, sign, bases[(bases[:, real:] != 0).any(1)]
        for place in range(real, len(columns.names)):
            chosen = bases[:, place] == 0
            if numbers[place] >= 0:
                own = [other for other, number in enumerate(numbers) if number == numbers[place]]
                chosen &= (bases[:, own] != 0).any(1)
            yield place, sign, bases[chosen]


def _with_wholes(columns: Columns, products: Array, most: int) -> Array:
    """The products, and the same products with 1 to ``most`` whole-valued columns as further
    factors. Columns of families have the number that the product's other columns have.
    """
    real = len(columns.real)
    numbers = family_numbers(columns.names)
    out = [products]
    for size in range(1, most + 1):
        for chosen in combinations(range(real, len(columns.names)), size):
            own = {numbers[place] for place in chosen} - {-1}
            if len(own) > 1:
                continue
            rows = products.copy()
            rows[:, list(chosen)] = 1
            for number in own:
                rows = rows[_agreeing(rows, numbers, number)]
            out.append(rows)
            if sum(map(len, out)) > MOST_SUMS:
                return np.concatenate(out)
    return np.concatenate(out)


def family_numbers(names: Sequence[str]) -> list[int]:
    """The number of each column in its family; -1 for a column of no family."""
    out = [-1] * len(names)
    for slot in _slots(names):
        for number, place in slot.items():
            out[place] = number
    return out


def _agreeing(rows: Array, numbers: Sequence[int], number: int) -> Array:
    """``(F,) bool``: True for a row if all its factors that belong to a family (their number is not
    -1) have the number ``number``."""
    others = [place for place, own in enumerate(numbers) if own not in (-1, number)]
    return (rows[:, others] == 0).all(1)


# ---- values ----


def values_of(formulas: Formulas, values: Array, way: str = DOUBLE) -> Array:
    """The values ``(F, N) float64`` of formulas, from the values ``(P, N) float64`` of columns.

    ``way`` says how they are computed: in double precision; in double precision from parameters
    rounded to float32; or in float32 steps: the product of the factors with exponent 1, the product
    of those with exponent -1, the quotient, the whole-valued factors, the sum.
    """
    kind: Any = np.float32
    if way != SINGLE:
        kind = np.float64
    if way == SINGLE_GIVEN:
        values = values.astype(np.float32).astype(np.float64)
    given: Array = values.astype(kind)
    real = len(formulas.real)
    with np.errstate(all="ignore"):
        # factors are multiplied before the division; ``stepped`` tries all other orders
        above = _multiplied(formulas.exponents[:, :real] > 0, given)
        below = _multiplied(formulas.exponents[:, :real] < 0, given)
        out = above / below
        wholes = _multiplied(formulas.exponents[:, real:] > 0, given[real:])
        out = out * wholes * formulas.sign[:, None].astype(kind)
        # the formula of a whole-valued column alone has no factor: its product counts as 0, not 1
        empty = ~formulas.exponents.any(1)
        out[empty] = 0
        added = formulas.plus >= 0
        out[added] += given[formulas.plus[added]]
        return out.astype(np.float64)


def _multiplied(chosen: Array, values: Array) -> Array:
    out = np.ones((len(chosen), values.shape[1]), values.dtype)
    for place in range(chosen.shape[1]):
        rows = chosen[:, place]
        out[rows] *= values[place]
    return out


def orders(count: int) -> list[tuple[int, ...]]:
    """The orders in which ``count`` factors may be multiplied or divided in float32 steps."""
    return list(permutations(range(count)))


def stepped(formulas: Formulas, values: Array, order: Sequence[int]) -> Array:
    """The values ``(F, N) float64`` of products of ``len(order)`` factors in float32 steps.

    Each begins with 1, which is multiplied with, or divided by, one factor after another. ``order``
    is the order of the factors, as numbers in the order of the columns.
    """
    count = len(order)
    _, used = np.nonzero(formulas.exponents)
    places = used.reshape(-1, count)
    exponents = np.take_along_axis(formulas.exponents, places, 1)
    single = values.astype(np.float32)
    out = np.ones((len(places), values.shape[1]), np.float32)
    with np.errstate(all="ignore"):
        for step in order:
            factor = single[places[:, step]]
            up = exponents[:, step, None] > 0
            out = np.where(up, out * factor, out / factor)
    return out.astype(np.float64)


def order_said(formula: Formula, names: Sequence[str], order: Sequence[int]) -> str:
    """The text of an order of float32 steps: ``float32 steps 1 / y_scale * x_scale``."""
    factors = sorted(formula.factors, key=lambda factor: names.index(factor[0]))
    text = ""
    for step in order:
        name, exponent = factors[step]
        mark = " * "
        if exponent < 0:
            mark = " / "
        text += mark + name
    text = text.removeprefix(" * ")
    if text.startswith(" / "):
        text = f"1{text}"
    return f"float32 steps {text}"
