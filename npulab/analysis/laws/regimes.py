"""The cheapest decision list for the bits of one field, and the rivals of each of its steps."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from npulab.analysis.laws.expressions import FIELD, Array, Expression, term
from npulab.analysis.laws.library import Library
from npulab.analysis.laws.lists import Choices, Path, decision_lists, held_out
from npulab.analysis.laws.masks import packed, weighed
from npulab.analysis.laws.nearly import exceptions
from npulab.analysis.laws.operators import operator
from npulab.analysis.laws.pool import Pool, Target, make_pool
from npulab.analysis.laws.predicates import Predicates, opposite, threshold
from npulab.analysis.laws.prior import BUDGET, PRIOR
from npulab.analysis.laws.solved import Place, Rival, Solved, Steps
from npulab.analysis.laws.state import Captures, State

# A list of one step is accepted without a trial on held-out captures; a list of two steps is, if it
# costs less than a share of PLAIN of the bits that it explains.
PLAIN = 0.25
Found = tuple[tuple[float, Path], ...]


@dataclass(frozen=True, eq=False)
class Round:
    """What all decision lists of one round of the search share.

    ``derived`` are the fields that laws may read; ``deep`` is true if laws of four columns are
    allowed. ``tried`` keeps the result of each place that was tried, by the values of the place.
    """

    library: Library
    predicates: Predicates
    derived: tuple[str, ...] = ()
    deep: bool = False
    tried: dict[Any, Solved | None] = field(default_factory=dict)
    # pools that were made last, stored because a place is tried in several ways
    pools: dict[Any, Pool] = field(default_factory=dict)

    # a key is an open place, the value its near law as text
    nearly: dict[Place, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Limit:
    """A limit on the values of a law, as a condition that is true up to ``low`` and false from
    ``high`` on. ``cost`` is that of the whole condition in bits, ``price`` the part that names the
    law.
    """

    condition: Expression
    cost: float
    price: float
    low: int
    high: int


@dataclass(frozen=True, eq=False)
class _Lists:
    """The decision lists over some conditions; ``found`` has them by rising cost."""

    laws: Pool
    weights: Array
    predicates: Predicates
    found: Found
    limits: tuple[Limit, ...] = ()
    partly: bool = False

    def evident(self) -> _Lists:
        """The lists without those in which a condition may have been chosen only because it selects
        the captures on which a law is right by chance.
        """
        return replace(
            self,
            found=tuple(one for one in self.found if one[1][-1][0] and self._is_evident(one[1])),
        )

    def _is_evident(self, path: Path) -> bool:
        left = np.ones(len(self.weights), bool)
        for predicate, law in path:
            here = left & self.predicates.masks[predicate]
            share = (left & self.laws.agree[self.laws.kept[law]]).sum() / left.sum()
            left &= ~here
            if (
                here.sum() < BUDGET.step_for_part
                or -here.sum() * np.log2(share) < self.predicates.cost[predicate] + PRIOR.selection
            ):
                return False
        return True

    def steps(self, path: Path) -> Steps:
        return tuple(
            (self.predicates.condition(p), self.laws[int(self.laws.kept[law])]) for p, law in path
        )


def solve_once(state: State, round_: Round, place: Place, **options: Any) -> Solved | None:
    """``solve``, but only once for all places with the same values.

    Drivers often write the same number to several words.
    """
    key = (place.raw(state.captures.words).tobytes(), place.width, tuple(options.items()))
    solved = round_.tried.get(key)
    if key in round_.tried and (
        solved is None or not solved.reads & state.circular(place, round_.derived)
    ):
        return solved and replace(solved, word=place.word, lsb=place.lsb)
    round_.tried[key] = solve(state, round_, place, **options)
    return round_.tried[key]


def solve(
    state: State,
    round_: Round,
    place: Place,
    *,
    depth: int | None = None,
    margin: float = PRIOR.field_gain,
    partly: bool = False,
) -> Solved | None:
    """The cheapest decision list for the bits of a place that is also right on captures that were
    held out.

    None if there is no such list. With ``partly``, a list may leave captures without a law.
    """
    captures, library = state.captures, round_.library
    weights = captures.weights(place)
    total = float(weights.sum())
    if total < (PRIOR.derived_gain if round_.deep else margin) or not len(library):
        return None
    circular = state.circular(place, round_.derived)
    uses = library.uses_of(circular)
    values = place.raw(captures.words)
    laws = _pool(round_, Target(values, place.width, weights, library.without(uses)), uses)
    predicates = round_.predicates.without(circular)
    agree, cost = laws.agree[laws.kept], laws.cost[laws.kept]
    once = depth == 1 and not agree.all(1).any()
    if once or not len(laws.kept) or not (partly or agree.any(0).all()):
        return None

    def lists(conditions: Predicates, limits: tuple[Limit, ...] = ()) -> _Lists:
        choices = Choices.of(laws, conditions, weights)
        found = decision_lists(choices, depth or BUDGET.depth, partly)
        return _Lists(laws, weights, conditions, found, limits, partly)

    if partly:
        best = lists(predicates.up_to(PRIOR.plain)).evident()
        law = int(np.argmax(weighed(agree, weights) - cost))
        if (~agree[law]).mean() <= PRIOR.nearly:
            round_.nearly[place] = exceptions(laws[int(laws.kept[law])], agree[law], predicates)
        if best.found and best.found[0][0] + margin < total:
            return _solved(captures, place, best)
        return None
    best = lists(predicates)
    if (not best.found or len(best.found[0][1]) > 3) and place.width >= 3 and depth is None:
        best = _cheaper(
            best, lists(predicates.with_thresholds(_dominant(laws, agree, cost, weights)))
        )
    if depth != 1 and (
        not best.found or best.found[0][0] > 0.5 * total or len(best.found[0][1]) > 2
    ):
        limits = tuple(_separating(values, library, uses))
        if limits:
            conditions = predicates.also([(limit.condition, limit.cost) for limit in limits])
            best = replace(_cheaper(best, lists(conditions)), limits=limits)
    if not best.found or best.found[0][0] + margin > total:
        return None
    return _solved(captures, place, best)


def _pool(round_: Round, target: Target, uses: int) -> Pool:
    """The candidate laws for a field; they are kept, because the same place may be tried again."""
    key = target.raw.tobytes(), target.width, uses
    if key not in round_.pools:
        for oldest in [*round_.pools][: 1 - BUDGET.pools]:
            del round_.pools[oldest]
        round_.pools[key] = make_pool(target, round_.deep)
    return round_.pools[key]


def _cheaper(first: _Lists, second: _Lists) -> _Lists:
    return min(first, second, key=lambda lists: lists.found[0][0] if lists.found else np.inf)


def _dominant(laws: Pool, agree: Array, cost: Array, weights: Array) -> list[Expression]:
    """At most four expressions: the law that explains most, the law that explains most of the other
    captures, and parts of these two.

    A field often splits, or saturates, where the value of such an expression passes a limit.
    """
    first = int(np.argmax(weighed(agree, weights) - cost))
    second = int(np.argmax(weighed(agree, np.where(agree[first], 0, weights)) - cost))
    chosen = [laws[int(laws.kept[number])] for number in (first, second)]
    parts = dict.fromkeys(itertools.chain.from_iterable(law.walk() for law in chosen))
    return [
        part for part in parts if operator(part.op).whole and (part.names() or part.names(FIELD))
    ][:4]


def _separating(values: Array, library: Library, uses: int) -> list[Limit]:
    """Limits on laws: each separates the captures with one value of the field from all other
    captures.

    A law that reads a field of the mask ``uses`` is left out.
    """
    kinds, counts = np.unique(values, return_counts=True)
    first, its_values, natural = library.limited
    families = (
        (first, its_values, natural & (first.uses & np.uint64(uses) == 0)),
        (library.products, library.products.values.T, library.products.uses & np.uint64(uses) == 0),
    )
    out: dict[Expression, Limit] = {}
    for kind in kinds[np.argsort(-counts, kind="stable")][:3]:
        here = values == kind
        if not 2 <= here.sum() <= len(values) - 2:
            continue
        for family, numbers, able in families:
            for way in (here, ~here):
                likely = np.flatnonzero(able)
                for most in (
                    BUDGET.scaled_rows,
                    None,
                ):  # a few captures rule out most laws: they are compared first
                    low, high = (
                        numbers[np.flatnonzero(side)[:most, None], likely] for side in (way, ~way)
                    )
                    top, bottom = low.max(0), high.min(0)
                    apart = top < bottom
                    likely, top, bottom = likely[apart], top[apart], bottom[apart]
                for i, *ends in np.stack([likely, top, bottom], 1)[: BUDGET.limits].tolist():
                    price = float(family.cost[i])
                    condition, cost = threshold(family[i], *ends)
                    out.setdefault(condition, Limit(condition, 2 + cost + price, price, *ends))
    return list(out.values())


def _solved(captures: Captures, place: Place, lists: _Lists) -> Solved | None:
    """The field with the cheapest list and its rivals. None if lists that are made without some
    captures give too many of the held-out captures wrongly.
    """
    total, path = lists.found[0]
    steps = lists.steps(path)
    rivals: list[Rival] = []
    support = []
    left = np.ones(captures.n, bool)
    for number, (predicate, _) in enumerate(path):
        here = lists.predicates.masks[predicate] & left
        support.append(int(here.sum()))
        rivals += _step_rivals(captures, lists, number, here, left)
        left &= ~here
    for cost, other in lists.found[1:12]:
        if cost - total < PRIOR.recorded:
            rivals.append(Rival(max(0.0, cost - total), steps=lists.steps(other)))
    information = float(lists.weights[~left].sum())
    total -= float(lists.weights[left].sum())
    plain = len(path) == 1 or (len(path) == 2 and total < PLAIN * information)
    if plain:
        missed = np.zeros(captures.n, bool)
    else:
        missed = held_out(lists.laws, lists.predicates, lists.weights, lists.partly)
    if missed.sum() > max(2, 0.015 * captures.n):
        return None
    return Solved(
        place.word,
        place.lsb,
        place.width,
        steps,
        tuple(support),
        total,
        information,
        tuple(rivals),
        missed,
    )


def _step_rivals(
    captures: Captures, lists: _Lists, number: int, here: Array, left: Array
) -> Iterator[Rival]:
    """The rivals of a step: other laws that are right on its captures, and other conditions that
    select the same captures.

    The step decides the captures ``here``, of the captures ``left`` by earlier steps.
    """
    laws, predicates = lists.laws, lists.predicates
    predicate, law = lists.found[0][1][number]
    own, price = laws.kept[law], laws.cost[laws.kept[law]]
    fits = np.flatnonzero((laws.cost <= price + PRIOR.recorded) & laws.agree[:, here].all(1))
    for other in fits[np.argsort(laws.cost[fits], kind="stable")][:60]:
        if other != own:
            yield Rival(max(0.0, float(laws.cost[other] - price)), number, law=laws[int(other)])
    if not predicate:
        return
    cost, when = predicates.cost[predicate], predicates.condition(predicate)
    # a capture that later steps would give the same value need not be selected by this step's
    # condition
    rest, free = np.zeros(captures.n, bool), left.copy()
    for later, its_law in lists.found[0][1][number + 1 :]:
        rest |= free & predicates.masks[later] & laws.agree[laws.kept[its_law]]
        free &= ~predicates.masks[later]
    needed, others = here & ~rest, left & ~laws.agree[own]
    inside, outside = packed(needed[None]), packed(others[None])
    same = (predicates.all_costs <= cost + PRIOR.recorded) & (
        (inside & ~predicates.all_masks | outside & predicates.all_masks) == 0
    ).all(1)
    for other in np.flatnonzero(same)[: BUDGET.rivals].tolist():
        condition = predicates.any_condition(other)
        if condition != when:
            yield Rival(max(0.0, float(predicates.all_costs[other] - cost)), number, when=condition)
    # A limit may lie anywhere between two captures. So a limit on another law costs only the
    # difference of the two laws more, however round the limits are.
    limit = next(
        (limit for limit in lists.limits if when in (limit.condition, opposite(limit.condition))),
        None,
    )
    if limit is None:
        return
    for other_limit in lists.limits:
        extra_cost = other_limit.price - limit.price
        if other_limit is limit or extra_cost > PRIOR.recorded:
            continue
        for end in (other_limit.low, other_limit.high - 1):
            below = term("<=", other_limit.condition.args[0], end)
            for way in (below, opposite(below)):
                selected = captures.columns[way]
                if selected[needed].all() and not selected[others].any():
                    yield Rival(max(0.0, extra_cost), number, when=way)
