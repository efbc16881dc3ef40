"""Laws that give a field on some of the captures: laws of the library, and laws with constants that
are solved from the captures.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from npulab.analysis.laws.expressions import Array, Expression, constant, term
from npulab.analysis.laws.library import Family, Leaf, Library
from npulab.analysis.laws.masks import counted, distinct, packed, weighed
from npulab.analysis.laws.operators import OPERATORS, equal_share
from npulab.analysis.laws.prior import BUDGET, PRIOR, constant_cost, roundest

POWERS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
BUDGETS = (4, 8, 16, 32, 64, 128)
# For each share in CEIL_SHARES, or in SUM_SHARES, a constant is sought that fits at least that
# share of the captures.
CEIL_SHARES = (0.12, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 1.0)
SUM_SHARES = (0.5, 0.22, 0.1)
UNBOUNDED = 2**40
PART = 1_024
# The laws of one kind: a function that makes law number i, the costs (L,) of the laws in bits, and
# a mask (L, N) bool of the captures on which each law gives the field.
Group = tuple[Callable[[int], Expression], Any, Array]


@dataclass(frozen=True, eq=False)
class Pool:
    """The candidate laws for a field, by rising ``cost`` in bits. ``agree (L, N) bool`` says on
    which captures each law gives the field.

    ``kept`` are the indices of the laws from which decision lists are made: of laws that agree on
    the same captures only one, and only the most useful.
    """

    make: tuple[Callable[[int], Expression], ...]
    which: Array  # (L, 2): the index of a function in ``make``, and its argument
    cost: Array
    agree: Array
    kept: Array

    def __getitem__(self, index: int) -> Expression:
        maker, number = self.which[index].tolist()
        return self.make[maker](number)


@dataclass(frozen=True, eq=False)
class Target:
    """A field to explain: its values ``raw (N,) uint32`` of ``width`` bits, the information
    ``weights (N,)`` in each capture's value, and the library of laws to choose from.
    """

    raw: Array
    width: int
    weights: Array
    library: Library

    @property
    def n(self) -> int:
        return len(self.raw)

    @cached_property
    def values(self) -> Array:
        return self.raw.astype(np.int64)

    @cached_property
    def total(self) -> float:
        return float(self.weights.sum())


def make_pool(target: Target, deep: bool = False) -> Pool:
    """The candidate laws for a field; with ``deep`` also laws of four columns."""
    many = target.n >= BUDGET.for_derived
    some, wide = target.width >= 3, target.width >= BUDGET.wide
    finders = (
        (_of_library, True),
        (_constants, True),
        (_plus_constant, some),
        (_summed, target.width >= BUDGET.address),
        (_held, some),
        (_rounded_up, wide),
        (_divided, some),
        (_clamped, wide and many),
        (_shares, some),
        (_scaled, some and deep and many),
    )
    groups: list[Group] = []
    for finder, tried in finders:
        if tried:
            groups += finder(target)
    agree = np.concatenate([np.zeros((0, target.n), bool), *(agree for *_, agree in groups)])
    cost = np.concatenate([np.zeros(0), *(cost for _, cost, _ in groups)]).astype(np.float32)
    which = np.array(
        [(maker, i) for maker, (_, cost, _) in enumerate(groups) for i in range(len(cost))], int
    )
    useful = np.argsort(cost - weighed(agree, target.weights), kind="stable")[: BUDGET.pool]
    order = np.union1d(useful, np.flatnonzero(cost < PRIOR.simple))
    order = order[np.argsort(cost[order], kind="stable")]
    agree, cost = agree[order], cost[order]
    return Pool(
        tuple(make for make, _, _ in groups),
        which.reshape(-1, 2)[order],
        cost,
        agree,
        _kept(agree, cost, target.weights),
    )


def _single(law: Expression, cost: float, agree: Array) -> Group:
    return lambda _: law, [cost], agree[None]


def _of_library(target: Target) -> Iterator[Group]:
    n, weights, library = target.n, target.weights, target.library
    most = len(library)
    if target.width <= len(BUDGET.narrow):
        most = min(most, BUDGET.narrow[target.width - 1])
    limit = np.uint32(2**target.width - 1)
    likely = np.arange(most)
    if n > BUDGET.key_sample:
        rows = library.sample_rows
        gain = _in_parts(
            lambda part: weighed((part ^ target.raw[rows]) & limit == 0, weights[rows]),
            library.sample[:most],
        )
        likely = np.flatnonzero(gain > 0.012 * weights[rows].sum())
    columns, costs = library.laws.values, library.laws.cost
    agree = _in_parts(lambda part: (columns[part] ^ target.raw) & limit == 0, likely)
    often = np.flatnonzero(counted(agree) >= max(BUDGET.holds, BUDGET.holds_share * n))
    likely, agree = likely[often], agree[often]
    gain = weighed(agree, weights) - costs[likely]
    good = np.flatnonzero(gain > 0)
    good = np.sort(good[np.argsort(-gain[good], kind="stable")[: BUDGET.library_part]])
    laws, named = likely[good], library.laws.named()
    yield (lambda i: named[int(laws[i])]), costs[laws], agree[good]


def _in_parts(of: Callable[[Array], Array], rows: Array) -> Array:
    """Apply a function of rows to parts of the rows that fit a cache, and join the results."""
    return np.concatenate(
        [of(rows[start : start + PART]) for start in range(0, len(rows) or 1, PART)]
    )


def _constants(target: Target) -> Iterator[Group]:
    seen, counts = np.unique(target.raw, return_counts=True)
    for i in np.argsort(-counts, kind="stable")[: BUDGET.constants]:
        if counts[i] >= 2:
            price = 1 + constant_cost(int(seen[i])) if target.width > 1 else 1
            yield _single(
                constant(int(seen[i])), min(price, 1.0 + target.width), target.raw == seen[i]
            )


def _plus_constant(target: Target) -> Iterator[Group]:
    """column + c and c - column, for each column with the c that fits the most captures."""
    n, size, library = target.n, 2**target.width, target.library
    columns = library.laws.values[: BUDGET.bases]
    number = np.uint16 if target.width <= 16 else np.uint32
    for sign, move in (("+", np.subtract), ("-", np.add)):
        differences = (move(target.raw, columns) & np.uint32(size - 1)).astype(number)
        ordered = np.sort(differences, 1)
        for share in SUM_SHARES:
            apart = max(BUDGET.holds + 1, int(share * n))
            if apart >= n:
                continue
            equal = ordered[:, apart:] == ordered[:, :-apart]
            hit = np.flatnonzero(equal.any(1))
            modes = ordered[hit, equal[hit].argmax(1)].astype(np.int64)
            agree = differences[hit] == modes[:, None]
            gain = weighed(agree, target.weights)
            c = modes
            if sign == "+":
                c = np.where(modes >= size // 2, modes - size, modes)
            price = library.laws.cost[hit].astype(float) + 3
            likely = np.flatnonzero((gain > price) & (np.abs(c) > 1))
            cost = price[likely] + [constant_cost(value) for value in c[likely].tolist()]
            good = gain[likely] > cost
            chosen = likely[good]
            make = partial(_of_constant, library.laws.named(), hit[chosen], sign, c[chosen])
            yield make, cost[good], agree[chosen]


def _of_constant(family: Family, laws: Array, op: str, c: Array, i: int) -> Expression:
    law, value = family[int(laws[i])], int(c[i])
    if op == "-":
        return term(op, value, law)
    return term(op, law, value)


def _summed(target: Target) -> Iterator[Group]:
    """ceil(x / d) + ceil(y / d) of two products of sizes x and y: the offset after two aligned
    buffers.
    """
    products = target.library.products
    products = products.of((products.parts[:, 3] < 0) & (products.cost < PRIOR.summed))
    rows = np.flatnonzero(target.values > np.median(target.values))
    rows = rows[np.linspace(0, len(rows) - 1, min(BUDGET.scaled_rows, len(rows))).astype(int)]
    first, second = np.triu_indices(len(products))
    for divisor in (1, *POWERS[2:7]):
        columns = -(-products.values // divisor)
        hits = np.zeros(len(first), np.int8)
        for row in rows:
            hits += columns[first, row] + columns[second, row] == target.values[row]
        likely = np.argsort(-hits, kind="stable")[: BUDGET.patterns]
        likely = likely[hits[likely] > 1]
        pairs = np.stack([first[likely], second[likely]], 1)
        agree = columns[pairs[:, 0]] + columns[pairs[:, 1]] == target.values
        cost = products.cost[pairs].sum(1) + 7 + (constant_cost(divisor) if divisor > 1 else 0)
        good = weighed(agree, target.weights) > cost
        yield partial(_summed_law, products.named(), pairs[good], divisor), cost[good], agree[good]


def _summed_law(products: Family, pairs: Array, divisor: int, i: int) -> Expression:
    return term("+", *(_rounded(products[int(number)], 0, divisor) for number in pairs[i]))


def _held(target: Target) -> Iterator[Group]:
    """min(column, c) and max(column, c), with a c that is the field's value on many captures."""
    library, values = target.library, target.raw
    seen, counts = np.unique(values, return_counts=True)
    columns = library.laws.values[: BUDGET.bases].astype(np.int64)
    columns = np.where(columns > 2**31, columns - 2**32, columns)
    for c in seen[np.argsort(-counts, kind="stable")[: BUDGET.held]].tolist():
        if c == 0 or (values == c).sum() < BUDGET.holds:
            continue
        cost = library.laws.cost[: BUDGET.bases].astype(float) + 4 + constant_cost(c)
        for op in ("min", "max"):
            agree = OPERATORS[op].function(columns, c) == values
            # a law that gives no other value than c is better stated as the constant c
            free = counted(agree & (values != c)) >= BUDGET.holds
            good = np.flatnonzero((weighed(agree, target.weights) > cost) & free)
            make = partial(_of_constant, library.laws.named(), good, op, np.full_like(good, c))
            yield make, cost[good], agree[good]


def _rounded_up(target: Target) -> Iterator[Group]:
    """ceil((x + k y + c) / d), with the c that the most captures allow.

    Each capture allows d successive values of c.
    """
    n, weights, linear = target.n, target.weights, target.library.linear
    columns = linear.values
    wide, span = np.ptp(columns, 1), int(np.ptp(target.values))
    # columns with a span above 32 times the largest divisor times that of the field are not
    # searched, so that mostly 32 bits hold all values
    number = np.int32 if 32 * POWERS[-1] * (span + 1) < 2**31 else np.int64
    moved, steps = ((rows - rows[..., :1]).astype(number) for rows in (columns, target.values))
    for divisor in POWERS:
        price = linear.cost + 5 + constant_cost(divisor)
        # the column must span about as many values as the field does, times the divisor
        alike = (wide < 8 * divisor * (span + 1)) & (8 * (wide + divisor) > divisor * span)
        fits = np.flatnonzero(alike & (price < target.total))
        # ``high`` is the largest c that each capture allows, less that of the first capture. One c
        # fits two captures if their largest c differ by less than the divisor.
        high = np.sort(divisor * steps - moved[fits], 1)
        shared, left, some = np.zeros(len(fits)), np.arange(len(fits)), high
        for share in CEIL_SHARES if n >= BUDGET.for_derived else CEIL_SHARES[2:]:
            apart = max(int(share * n), BUDGET.holds + 1) - 1
            close = (some[:, apart:] - some[:, : n - apart] < divisor).any(1)
            # a column for which no c fits this share of the captures needs no larger share tried
            left, some = (
                left[close],
                some[close],
            )
            shared[left] = apart + 1
        promise = shared * (target.total / n) - price[fits]
        at = np.argsort(-promise, kind="stable")[: BUDGET.solved]
        at = at[promise[at] > 0]
        if not len(at):
            continue
        rows, own = columns[fits[at]], price[fits[at]]
        # Captures are sorted by ``high``. For each column, ``begin`` is where the longest run of
        # captures begins that one c fits.
        ends = np.stack([np.searchsorted(row, row + divisor, "left") for row in high[at]])
        begin = (ends - np.arange(n)).argmax(1)[:, None]
        first = divisor * target.values[0] - rows[:, :1]
        most = first + high[at[:, None], begin]
        least = first + high[at[:, None], np.take_along_axis(ends, begin, 1) - 1] - divisor + 1
        likely = np.flatnonzero(weighed(-(-(rows + most) // divisor) == target.raw, weights) > own)
        c = np.array([roundest(int(least[i, 0]), int(most[i, 0])) for i in likely], np.int64)
        agree = -(-(rows[likely] + c[:, None]) // divisor) == target.raw
        cost = own[likely] + [constant_cost(value) if value else 0 for value in c.tolist()]
        good = weighed(agree, weights) > cost
        yield (
            partial(_rounded_law, linear.named(), fits[at[likely[good]]], c[good], divisor),
            cost[good],
            agree[good],
        )


def _rounded_law(linear: Family, laws: Array, c: Array, divisor: int, i: int) -> Expression:
    return _rounded(linear[int(laws[i])], int(c[i]), divisor)


def _rounded(law: Expression, c: int, divisor: int) -> Expression:
    """ceil((law + c) / divisor), without c if it is 0 and without the divisor if it is 1."""
    if c:
        law = term("+", law, c)
    if divisor > 1:
        return term("ceil", law, divisor)
    return law


def _divided(target: Target) -> Iterator[Group]:
    """ceil(x / n) and x // n, exact on all captures, for any n: each capture gives bounds of n."""
    linear, values = target.library.linear, target.values
    plain = np.flatnonzero((linear.values > 0).all(1) & (linear.values >= values).all(1))
    for op, above in (("ceil", 1), ("//", 0)):
        laws = plain
        for part in (slice(BUDGET.scaled_rows), slice(None)):  # a few captures rule out most laws
            x, y = linear.values[laws, part], values[part]
            # ceil(x / n) is (x - 1) // n + 1
            low, high = ((x - above) // np.maximum(by, 1) for by in (y + 1 - above, y - above))
            least, most = low.max(1) + 1, np.where(y > above, high, UNBOUNDED).min(1)
            fits = least <= most
            laws, least, most = laws[fits], least[fits], most[fits]
        for i in np.flatnonzero((least > 1) & (most < UNBOUNDED)).tolist():
            n = roundest(int(least[i]), int(most[i]))
            cost = float(linear.cost[laws[i]]) + 3 + constant_cost(n)
            agree = OPERATORS[op].function(linear.values[laws[i]], n) == values
            if agree @ target.weights > cost:
                yield _single(term(op, linear[int(laws[i])], n), cost, agree)


def _clamped(target: Target) -> Iterator[Group]:
    """max(min(ceil((x + c) / d), high), low), where x is a size or a product of sizes.

    ``high`` and ``low`` are values that the field has on many captures.
    """
    values, products = target.values, target.library.products
    columns = products.values
    ends = {"max": int(values.min()), "min": int(values.max())}
    piled = {op for op, end in ends.items() if (values == end).sum() >= BUDGET.holds}
    low, high = ends.items()
    for limits in map(dict, ([low], [high], [low, high])):
        free = np.flatnonzero(~np.isin(values, list(limits.values())))
        if len(free) < BUDGET.scaled_rows or not piled & limits.keys():
            continue
        few = free[np.linspace(0, len(free) - 1, BUDGET.scaled_rows).astype(int)]
        for divisor in (1, *POWERS):
            price = products.cost + 4 * len(limits) + sum(map(constant_cost, limits.values()))
            if divisor > 1:
                price = price + (4 + constant_cost(divisor))
            # the largest c that each capture allows; it also allows the next lower ``divisor - 1``
            # values
            largest = divisor * values[few] - columns[:, few]
            for i in np.flatnonzero(np.ptp(largest, axis=1) < divisor).tolist():
                allowed = divisor * values[free] - columns[i, free]
                least, most = int(allowed.max()) - divisor + 1, int(allowed.min())
                if least > most:
                    continue
                # x // d is ceil((x + 1 - d) / d)
                c = roundest(least, most)
                if c and least <= 1 - divisor <= most:
                    c = 1 - divisor
                result = -(-(columns[i] + c) // divisor)
                for op, end in limits.items():
                    result = OPERATORS[op].function(result, end)
                agree = result == values
                cost = float(price[i]) + (3 + constant_cost(c) if c else 0)
                if agree @ target.weights > cost:
                    yield _single(_clamped_law(products[i], c, divisor, limits), cost, agree)


def _clamped_law(law: Expression, c: int, divisor: int, limits: dict[str, int]) -> Expression:
    if divisor > 1 and c == 1 - divisor:
        law = term("//", law, divisor)
    else:
        law = _rounded(law, c, divisor)
    for op in ("min", "max"):
        if op in limits:
            law = term(op, law, limits[op])
    return law


def _shares(target: Target) -> Iterator[Group]:
    """share(x, c) and share(x, c // ceil(y / d)): the size of the parts if x is cut into the fewest
    equal parts of at most c, or of at most c // ceil(y / d).
    """
    values, laws = target.raw, target.library.laws
    columns = laws.values[: BUDGET.share_columns].astype(np.int64)
    # the share of the captures on which the field is x itself, because x is not cut
    whole = (columns == values).mean(1)
    bases = np.flatnonzero(
        (columns >= values).all(1) & (columns < 2**16).all(1) & (whole > 0.1) & (whole < 1)
    )
    if not len(bases):
        return
    budgets = _budgets(target.library)
    for i in bases[np.argsort(-whole[bases], kind="stable")][: BUDGET.share_bases].tolist():
        tried = []
        for most in range(2, min(int(columns[i].max()), BUDGET.share_limit)):
            tried.append((constant(most), 6 + constant_cost(most), np.full(target.n, most)))
        tried += budgets
        if not tried:
            continue
        limits, costs, limit_values = zip(*tried, strict=True)
        agree = equal_share(columns[i], np.array(limit_values)) == values
        gain = weighed(agree, target.weights)
        cost = float(laws.cost[i]) + np.array(costs)
        seen: Counter[bytes] = Counter()
        good = []
        # laws that are right on the same captures explain the same bits, so that a few of them do
        for number in np.flatnonzero(gain > cost.min()).tolist():
            key = agree[number].tobytes()
            seen[key] += 1
            if seen[key] <= BUDGET.share_alike and gain[number] > cost[number]:
                good.append(number)
        yield partial(_share_law, laws[i], [limits[at] for at in good]), cost[good], agree[good]


def _share_law(law: Expression, limits: Sequence[Expression], i: int) -> Expression:
    return term("share", law, limits[i])


def _budgets(library: Library) -> list[tuple[Expression, float, Array]]:
    """The divided budgets c // ceil(y / d) of sizes y, at least 1: the law, its cost as a part of a
    share law, and its values ``(N,)``.
    """
    found = []
    for leaf in library.leaves:
        if leaf.values.max() > BUDGET.small:
            for most, size in itertools.product(BUDGETS, BUDGETS):
                law = term("//", most, term("ceil", leaf.law, size))
                cost = leaf.cost + 12 + constant_cost(most) + constant_cost(size)
                values = most // np.maximum(-(-leaf.values // size), 1)
                found.append((law, cost, np.maximum(values, 1)))
    return found


def _scaled(target: Target) -> Iterator[Group]:
    """x + ceil(column * z / d). Each capture gives bounds of the column, and the columns within the
    bounds are looked up.
    """
    library, weights, values = target.library, target.weights, target.values
    (named, inner, costs, sorted_by), far = library.inner, int(values.max())
    for x, z in library.leaf_pairs():
        rest = values - x.values
        if (
            x.cost and x.values.max() > 4 * far
        ) or target.total < costs.min() + x.cost + z.cost + 10:
            continue
        informative = np.flatnonzero((rest > 0) & (z.values > 0))
        if len(informative) < max(BUDGET.scaled_rows, BUDGET.holds_share * target.n):
            continue
        rows = np.random.default_rng(3).permutation(informative)[:16]
        # captures with a large z come first, because they rule out most columns
        rows = rows[np.argsort(-z.values[rows], kind="stable")]
        divisors, by = np.array((1, *POWERS))[:, None], np.maximum(z.values, 1)
        # Each chosen capture has the columns, sorted by their values on it, and for each divisor
        # the range of these columns that fit the capture.
        spans = []
        for row in rows.tolist():
            if row not in sorted_by:
                order = np.argsort(inner[:, row])
                sorted_by[row] = order, inner[order, row]
            order, ordered = sorted_by[row]
            spans.append(
                (order, ordered.searchsorted(divisors * (rest[row] - (1, 0)) // by[row], "right"))
            )
        near = sum(ends[:, 1] - ends[:, 0] for _, ends in spans[:3])
        for at in np.flatnonzero((near > 0) & (near <= BUDGET.scaled_near)).tolist():
            right = np.bincount(np.concatenate([order[slice(*ends[at])] for order, ends in spans]))
            laws = np.flatnonzero(right >= max(BUDGET.scaled_rows, -(-len(rows) // 2)))
            low, high = (divisors[at] * limit // by for limit in (rest - 1, rest))
            early = inner[laws[:, None], rows[:3]]
            laws = laws[((early > low[rows[:3]]) & (early <= high[rows[:3]])).any(1)]
            if not len(laws):
                continue
            columns = inner[laws]
            agree = (columns > low) & (columns <= high) & (z.values > 0)
            divisor = int(divisors[at, 0])
            cost = costs[laws].astype(float) + x.cost + z.cost + 10 + constant_cost(divisor)
            good = weighed(agree, weights) > cost
            yield partial(_scaled_law, *named, laws[good], (x, z), divisor), cost[good], agree[good]


def _scaled_law(
    areas: Family, others: Family, laws: Array, leaves: tuple[Leaf, Leaf], divisor: int, i: int
) -> Expression:
    number, (x, z) = int(laws[i]), leaves
    if number < len(areas):
        inner = areas[number]
    else:
        inner = others[number - len(areas)]
    law = _rounded(term("*", inner, z.law), 0, divisor)
    if x.law == constant(0):
        return law
    return term("+", x.law, law)


def _kept(agree: Array, cost: Array, weights: Array) -> Array:
    """The indices of the laws to keep; of laws that agree on the same captures only one is kept.

    These are the best laws over all captures, the best laws on the captures where the very best one
    fails, and all cheap laws.
    """
    first = distinct(packed(agree))
    score = weighed(agree[first], weights) - cost[first]
    if len(first) <= BUDGET.patterns:
        return first
    best = np.argsort(-score, kind="stable")[: BUDGET.patterns // 2]
    rest = ~agree[first[best[0]]]
    then = np.argsort(cost[first] - weighed(agree[first][:, rest], weights[rest]), kind="stable")[
        : BUDGET.patterns // 3
    ]
    simple = np.flatnonzero(cost[first] < PRIOR.simple)
    return first[np.unique(np.concatenate([best, then, np.arange(BUDGET.cheap_patterns), simple]))]
