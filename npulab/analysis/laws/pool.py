"""Laws that hold for a field on some share of the captures: of the library, and solved for their
constants."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from npulab.analysis.laws.expressions import OPERATORS, Array, Expression, constant, constant_cost, roundest
from npulab.analysis.laws.library import SAMPLE, SMALL, Library
from npulab.analysis.laws.masks import counted, distinct, packed

NARROW = {1: 12_000, 2: 25_000, 3: 50_000}  # narrow fields cannot pay for rare laws
LEAST, SHARE = 3, 0.02  # captures, and their share, that a law holds on to be looked at
MOST_LAWS, SIMPLE = 8_000, 10.0  # simple ones stay, however many others say more
MANY, KEPT, CHEAP = 12_000, 1_200, 150
SHARES = (0.12, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 1.0)  # of the captures that one constant is right on
MOST_SOLVED = 60
CONSTANTS, HELD, WIDE = 24, 3, 5
BASES = 3_000  # columns that constants are solved for
ENOUGH = 80  # captures that can pay for a law of four columns
INNER, LEAST_SCALED, MOST_NEAR = 4_000, 8, 6_000
MOST_ALIKE = 6
FRONT, MOST_BASES, MOST_SHARE = 4_000, 6, 64
BUDGETS = (4, 8, 16, 32, 64, 128)
SHARED = OPERATORS["share"][0]
DIVISORS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True, eq=False)
class Pool:
    """``agree (L, N) bool``: on which captures each law gives the field; ``cost`` its bits, rising.

    ``kept`` are the laws that a list is made of: one for each pattern of agreement, the most useful
    ones.
    """

    make: tuple[Callable[[int], Expression], ...]
    which: Array  # (L, 2): number in ``make``, and what it is called with
    cost: Array
    agree: Array
    kept: Array

    def __getitem__(self, index: int) -> Expression:
        maker, number = self.which[index].tolist()
        return self.make[maker](number)


class _Gathered:
    """Laws by groups: ``make(i)`` is law i of a group, with its cost and where it agrees."""

    def __init__(self, n: int) -> None:
        self.make: list[Callable[[int], Expression]] = []
        self.cost: list[Array] = [np.zeros(0)]
        self.agree: list[Array] = [np.zeros((0, n), bool)]

    def put_all(self, make: Callable[[int], Expression], cost: Any, agree: Any) -> None:
        self.make.append(make)
        self.cost.append(np.asarray(cost))
        self.agree.append(np.asarray(agree))

    def put(self, make: Callable[[], Expression], cost: float, agree: Array) -> None:
        self.put_all(lambda _: make(), [cost], agree[None])


def pool(values: Array, width: int, weights: Array, library: Library, without: int = 0, deep: bool = False) -> Pool:
    """The laws for a field of ``values (N,) uint32``, ``weights (N,)`` its bits of information per
    capture.

    ``without`` are the library's columns (bits of ``library.uses``) that the field must not follow
    from.
    """
    library = library.without(without)
    n, limit = len(values), np.uint32(2 ** width - 1)
    found = _Gathered(n)
    _of_library(found, values, limit, weights, library, NARROW.get(width, len(library)))
    _constants(found, values, width)
    if width >= 3:
        _shifted(found, values, width, weights, library)
        _held(found, values, weights, library)
        if width >= WIDE:
            _rounded_up(found, values, weights, library)
        _divided(found, values, weights, library)
        if width >= WIDE and n >= ENOUGH:
            _clamped(found, values, weights, library)
        _shares(found, values, weights, library)
    if deep and width >= 3 and len(values) >= ENOUGH:
        _scaled(found, values, weights, library)
    agree, cost = np.concatenate(found.agree), np.concatenate(found.cost).astype(np.float32)
    which = np.array([(maker, i) for maker, group in enumerate(found.cost[1:]) for i in range(len(group))], int)
    order = np.union1d(np.argsort(cost - agree @ weights, kind="stable")[:MOST_LAWS], np.flatnonzero(cost < SIMPLE))
    order = order[np.argsort(cost[order], kind="stable")]
    agree, cost = agree[order], cost[order]
    return Pool(tuple(found.make), which.reshape(-1, 2)[order], cost, agree, _kept(agree, cost, weights))


def _of_library(found: _Gathered, values: Array, limit: np.uint32, weights: Array, library: Library, most: int) -> None:
    n = len(values)
    likely = np.arange(min(most, len(library)))
    if n > SAMPLE:
        rows = library.sample_rows
        same = ((library.sample[:most] ^ values[rows]) & limit) == 0
        likely = np.flatnonzero(same @ weights[rows] > 0.012 * weights[rows].sum())
    columns = library.values[likely] if len(likely) < len(library) else library.values
    agree = ((columns ^ values) & limit) == 0
    often = np.flatnonzero(counted(agree) >= max(LEAST, SHARE * n))
    likely, agree = likely[often], agree[often]
    gain = agree @ weights - library.cost[likely]
    good = np.flatnonzero(gain > 0)
    if len(good) > MANY:
        good = np.sort(good[np.argsort(-gain[good], kind="stable")[:MANY]])
    laws = likely[good]
    found.put_all(lambda i: library[int(laws[i])], library.cost[laws], agree[good])


def _constants(found: _Gathered, values: Array, width: int) -> None:
    seen, counts = np.unique(values, return_counts=True)
    for i in np.argsort(-counts, kind="stable")[:CONSTANTS]:
        if counts[i] >= 2:
            cost = min(1 + constant_cost(int(seen[i])) if width > 1 else 1, 1.0 + width)
            found.put(partial(constant, int(seen[i])), cost, values == seen[i])


def _shifted(found: _Gathered, values: Array, width: int, weights: Array, library: Library) -> None:
    """column + c and c - column with the c that most captures share."""
    n, size = len(values), 2 ** width
    columns = library.values[:BASES].astype(np.int64)
    for sign in (1, -1):
        differences = (values - sign * columns) & (size - 1)
        ordered = np.sort(differences, 1)
        for share in (0.5, 0.22, 0.1):
            apart = max(LEAST + 1, int(share * n))
            if apart >= n:
                continue
            equal = ordered[:, apart:] == ordered[:, :-apart]
            hit = np.flatnonzero(equal.any(1))
            modes = ordered[hit, equal[hit].argmax(1)]
            agree = differences[hit] == modes[:, None]
            gain = agree @ weights
            c = np.where((sign > 0) & (modes >= size // 2), modes - size, modes)
            price = library.cost[hit].astype(float) + 3
            likely = np.flatnonzero((gain > price) & (np.abs(c) > 1))
            cost = price[likely] + [constant_cost(value) for value in c[likely].tolist()]
            good = gain[likely] > cost
            if good.any():
                found.put_all(_moved(library, hit[likely[good]], c[likely[good]], sign), cost[good],
                              agree[likely[good]])


def _moved(library: Library, laws: Array, c: Array, sign: int) -> Callable[[int], Expression]:
    def make(i: int) -> Expression:
        law, value = library[int(laws[i])], constant(int(c[i]))
        return Expression("+", (law, value)) if sign > 0 else Expression("-", (value, law))
    return make


def _held(found: _Gathered, values: Array, weights: Array, library: Library) -> None:
    """min(column, c) and max(column, c) with a c that many captures have."""
    seen, counts = np.unique(values, return_counts=True)
    columns = library.values[:BASES].astype(np.int64)
    columns = np.where(columns > 2 ** 31, columns - 2 ** 32, columns)
    for c in seen[np.argsort(-counts, kind="stable")[:HELD]].tolist():
        if c == 0 or (values == c).sum() < LEAST:
            continue
        for op, function in (("min", np.minimum), ("max", np.maximum)):
            agree = function(columns, c) == values
            gain = agree @ weights - library.cost[:BASES] - 4 - constant_cost(c)
            free = counted(agree & (values != c)) >= LEAST  # else it is the constant
            good = np.flatnonzero((gain > 0) & free)
            cost = library.cost[good].astype(float) + 4 + constant_cost(c)
            found.put_all(_limited(library, good, op, c), cost, agree[good])


def _limited(library: Library, laws: Array, op: str, c: int) -> Callable[[int], Expression]:
    return lambda i: Expression(op, (library[int(laws[i])], constant(c)))


def _rounded_up(found: _Gathered, values: Array, weights: Array, library: Library) -> None:
    """ceil((x + k y + c) / d) with the c that most captures allow; each capture allows d of
    them."""
    n, columns = len(values), library.linear
    wide = columns.max(1) - columns.min(1)
    span = int(values.max()) - int(values.min())
    target, total = values.astype(np.int64), float(weights.sum())
    for divisor in DIVISORS:
        price = library.linear_cost + 5 + constant_cost(divisor)
        # the column has to move about as far as the field does
        alike = (wide < 8 * divisor * (span + 1)) & (8 * (wide + divisor) > divisor * span)
        fits = np.flatnonzero(alike & (price < total))
        if not len(fits):
            continue
        # the largest c that each capture allows; captures within a divisor of each other have one
        # in common
        high = np.sort(divisor * target - columns[fits], 1)
        shared = np.zeros(len(fits))
        for share in SHARES if n >= ENOUGH else SHARES[2:]:
            apart = max(int(share * n), LEAST + 1) - 1
            shared[(high[:, apart:] - high[:, :n - apart] < divisor).any(1)] = apart + 1
        promise = shared * (total / n) - price[fits]
        for at in np.argsort(-promise, kind="stable")[:MOST_SOLVED].tolist():
            if promise[at] <= 0 or not shared[at]:
                break
            i, row = int(fits[at]), high[at]
            ends = np.searchsorted(row, row + divisor, "left")
            best = int((ends - np.arange(n)).argmax())
            low, most = int(row[ends[best] - 1]) - divisor + 1, int(row[best])
            agree = (-(-(columns[i] + most) // divisor)) == values
            gain = agree @ weights - price[i]
            if gain > 0:
                c = roundest(low, most)
                agree = (-(-(columns[i] + c) // divisor)) == values
                cost = float(price[i]) + (constant_cost(c) if c else 0)
                if agree @ weights > cost:
                    found.put(_ceil(library, i, c, divisor), cost, agree)


def _divided(found: _Gathered, values: Array, weights: Array, library: Library) -> None:
    """ceil(x / n) and x // n of all captures, with any n: each capture bounds it."""
    columns, target = library.linear, values.astype(np.int64)
    plain = np.flatnonzero((columns > 0).all(1) & (columns >= target).all(1))
    x = columns[plain]
    for op, low, high in (("ceil", -(-x // np.maximum(target, 1)),
                           np.where(target > 1, -(-x // np.maximum(target - 1, 1)) - 1, 2 ** 40)),
                          ("//", x // (target + 1) + 1, np.where(target > 0, x // np.maximum(target, 1), 2 ** 40))):
        least, most = low.max(1), high.min(1)
        for i in np.flatnonzero((least <= most) & (least > 1) & (most < 2 ** 40)).tolist():
            n = roundest(int(least[i]), int(most[i]))
            cost = float(library.linear_cost[plain[i]]) + 3 + constant_cost(n)
            agree = OPERATORS[op][0](x[i], n) == target
            if agree @ weights > cost:
                found.put(_by(library, int(plain[i]), op, n), cost, agree)


def _clamped(found: _Gathered, values: Array, weights: Array, library: Library) -> None:
    """max(min(ceil((x + c) / d), high), low) of sizes and their products, the limits where captures
    pile up."""
    target, columns = values.astype(np.int64), library.products
    ends = {"max": int(target.min()), "min": int(target.max())}
    piled = {op: end for op, end in ends.items() if (target == end).sum() >= LEAST}
    for limits in (dict(two) for count in (1, 2) for two in itertools.combinations(ends.items(), count)):
        free = np.flatnonzero(~np.isin(target, list(limits.values())))
        if len(free) < LEAST_SCALED or not any(op in piled for op in limits):
            continue
        few = free[np.linspace(0, len(free) - 1, LEAST_SCALED).astype(int)]
        for divisor in (1, *DIVISORS):
            price = library.product_cost + 4 * len(limits) + sum(constant_cost(end) for end in limits.values())
            price = price + (4 + constant_cost(divisor) if divisor > 1 else 0)
            # the largest c that each capture allows; it allows the divisor of them
            high = divisor * target[few] - columns[:, few]
            for i in np.flatnonzero(high.max(1) - high.min(1) < divisor).tolist():
                allowed = divisor * target[free] - columns[i, free]
                least, most = int(allowed.max()) - divisor + 1, int(allowed.min())
                if least > most:
                    continue
                # a floor is a ceil of less
                c = 1 - divisor if least <= 1 - divisor <= most and not least <= 0 <= most else roundest(least, most)
                law = partial(_limits, library, i, c, divisor, limits)
                result = -(-(columns[i] + c) // divisor)
                for op, end in limits.items():
                    result = OPERATORS[op][0](result, end)
                agree = result == target
                cost = float(price[i]) + (3 + constant_cost(c) if c else 0)
                if agree @ weights > cost:
                    found.put(law, cost, agree)


def _limits(library: Library, i: int, c: int, divisor: int, limits: dict[str, int]) -> Expression:
    law = library.product(i)
    if divisor > 1 and c == 1 - divisor:
        law = Expression("//", (law, constant(divisor)))
    else:
        law = Expression("+", (law, constant(c))) if c else law
        law = Expression("ceil", (law, constant(divisor))) if divisor > 1 else law
    for op in ("min", "max"):
        if op in limits:
            law = Expression(op, (law, constant(limits[op])))
    return law


def _by(library: Library, i: int, op: str, n: int) -> Callable[[], Expression]:
    return lambda: Expression(op, (library.linear_law(i), constant(n)))


def _ceil(library: Library, i: int, c: int, divisor: int) -> Callable[[], Expression]:
    def make() -> Expression:
        law = library.linear_law(i)
        return Expression("ceil", (Expression("+", (law, constant(c))) if c else law, constant(divisor)))
    return make


def _shares(found: _Gathered, values: Array, weights: Array, library: Library) -> None:
    """share(x, c) and share(x, c // ceil(y / d)): x cut into as few even parts as keep each within
    a budget."""
    columns = library.values[:FRONT].astype(np.int64)
    whole = (columns == values).mean(1)  # what is not cut stays as it is
    bases = np.flatnonzero((columns >= values).all(1) & (columns < 2 ** 16).all(1) & (whole > 0.1) & (whole < 1))
    if not len(bases):
        return
    budgets, budget_cost, laws = _budgets(library)
    for i in bases[np.argsort(-whole[bases], kind="stable")][:MOST_BASES].tolist():
        plain = np.arange(2, min(int(columns[i].max()), MOST_SHARE))
        limits = np.concatenate([np.repeat(plain[:, None], len(values), 1), budgets])
        agree = SHARED(columns[i], limits) == values
        gain = agree @ weights
        cost = float(library.cost[i]) + np.concatenate([[6 + constant_cost(most) for most in plain.tolist()],
                                                        budget_cost])
        seen: Counter[bytes] = Counter()
        good = []
        # laws that agree alike save as much
        for number in np.flatnonzero(gain > cost.min()).tolist():
            key = agree[number].tobytes()
            seen[key] += 1
            if seen[key] <= MOST_ALIKE and gain[number] > cost[number]:
                good.append(number)
        if good:
            found.put_all(_shared(library, i, good, [*map(constant, plain.tolist()), *laws]), cost[good], agree[good])


def _budgets(library: Library) -> tuple[Array, list[float], list[Expression]]:
    """c // ceil(y / d) of the sizes y, ``(B, N)`` of at least 1: with what they cost in a share,
    and as laws."""
    budget, block = (np.array(one) for one in zip(*itertools.product(BUDGETS, BUDGETS), strict=True))
    leaves = [leaf for leaf in library.leaves if leaf.values.max() > SMALL]
    values = [budget[:, None] // np.maximum(-(-leaf.values // block[:, None]), 1) for leaf in leaves]
    cost, laws = [], []
    for leaf in leaves:
        for most, size in zip(budget.tolist(), block.tolist(), strict=True):
            cost.append(leaf.cost + 12 + constant_cost(most) + constant_cost(size))
            laws.append(Expression("//", (constant(most), Expression("ceil", (leaf.law, constant(size))))))
    return np.maximum(np.concatenate([np.zeros((0, library.n), int), *values]), 1), cost, laws


def _shared(library: Library, law: int, good: list[int], limits: list[Expression]) -> Callable[[int], Expression]:
    return lambda i: Expression("share", (library[law], limits[good[i]]))


def _scaled(found: _Gathered, values: Array, weights: Array, library: Library) -> None:
    """x + ceil(column * z / d), searched backwards: what the column may be is known of each
    capture."""
    sorted_by: dict[int, tuple[Array, Array]]
    inner = np.concatenate([library.areas, library.values[:INNER].astype(np.int64)])
    costs = np.concatenate([library.area_cost, library.cost[:INNER]])
    target = values.astype(np.int64)
    far, sorted_by = int(target.max()), {}
    total = float(weights.sum())
    for x, z in library.leaf_pairs():
        rest = target - x.values
        if (x.cost and x.values.max() > 4 * far) or total < costs.min() + x.cost + z.cost + 10:
            continue
        informative = np.flatnonzero((rest > 0) & (z.values > 0))
        if len(informative) < max(LEAST_SCALED, SHARE * len(values)):
            continue
        rows = np.random.default_rng(3).permutation(informative)[:16]
        sampled = inner[:, rows]
        divisors, by = np.array((1, *DIVISORS)), np.maximum(z.values, 1)
        lows, highs = divisors[:, None] * (rest - 1) // by, divisors[:, None] * rest // by
        spans = []  # columns that could be right on one of three captures, for each divisor
        for row in rows[:3].tolist():
            if row not in sorted_by:
                order = np.argsort(inner[:, row], kind="stable")
                sorted_by[row] = order, inner[order, row]
            order, ordered = sorted_by[row]
            spans.append((order, np.searchsorted(ordered, lows[:, row], "right").tolist(),
                          np.searchsorted(ordered, highs[:, row], "right").tolist()))
        for at, (low, high) in enumerate(zip(lows, highs, strict=True)):
            likely = np.unique(np.concatenate([order[first[at]:end[at]] for order, first, end in spans]))
            if not len(likely) or len(likely) > MOST_NEAR:
                continue
            near = sampled[likely]
            inside = (near > low[rows]) & (near <= high[rows])
            laws = likely[inside.sum(1) >= max(LEAST_SCALED, 0.5 * len(rows))]
            agree = (inner[laws] > low) & (inner[laws] <= high) & (z.values > 0)
            divisor = int(divisors[at])
            cost = costs[laws].astype(float) + x.cost + z.cost + 10 + constant_cost(divisor)
            good = agree @ weights > cost
            if good.any():
                found.put_all(_plus_scaled(library, laws[good], x.law, z.law, divisor), cost[good], agree[good])


def _plus_scaled(library: Library, laws: Array, x: Expression, z: Expression, divisor: int,
                 ) -> Callable[[int], Expression]:
    def make(number: int) -> Expression:
        i, areas = int(laws[number]), len(library.areas)
        law = Expression("*", (library.area(i) if i < areas else library[i - areas], z))
        law = Expression("ceil", (law, constant(divisor))) if divisor > 1 else law
        return law if x == constant(0) else Expression("+", (x, law))
    return make


def _kept(agree: Array, cost: Array, weights: Array) -> Array:
    """One law of each pattern of agreement: the best over all, the best where the winner fails, all
    cheap ones."""
    if not len(agree):
        return np.zeros(0, int)
    first = distinct(packed(agree))
    score = agree[first] @ weights - cost[first]
    if len(first) <= KEPT:
        return first
    best = np.argsort(-score, kind="stable")[:KEPT // 2]
    rest = ~agree[first[best[0]]]
    then = np.argsort(cost[first] - agree[first][:, rest] @ weights[rest], kind="stable")[:KEPT // 3]
    return first[np.unique(np.concatenate([best, then, np.arange(CHEAP), np.flatnonzero(cost[first] < SIMPLE)]))]
