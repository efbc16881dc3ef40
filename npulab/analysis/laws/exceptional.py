"""Captures that were probably labelled wrongly: a few that break several plain laws together.

One capture that breaks a law hides it. If the same few captures break several laws, it is cheaper
to name these captures once than to explain each field by cases. They are set apart if, for each of
them, another value of one parameter makes all these laws right. The laws are then sought on the
other captures.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from npulab.analysis.laws.boundaries import entropy, places
from npulab.analysis.laws.expressions import Array, Columns, parameter
from npulab.analysis.laws.library import Library
from npulab.analysis.laws.masks import weighed
from npulab.analysis.laws.prior import BUDGET
from npulab.analysis.laws.solved import Solved, names_in
from npulab.analysis.laws.state import State

if TYPE_CHECKING:
    import pandas as pd

# At most a share of MOST_APART of the captures is set apart. With 3 % of 200 captures, the search
# lost rare regimes in three of thirteen sweeps.
MOST_APART = 0.02
# A capture is set apart only if it breaks LEAST_LAWS laws. This is assumed, not measured: captures
# that break a single law may be of a kind for which the law is another one.
LEAST_LAWS = 2


@dataclass(frozen=True, eq=False)
class Apart:
    """Captures that are set apart: their numbers ``rows (M,)`` among all captures given, their
    ``words (M, W) uint32`` and their ``parameters``.
    """

    rows: Array
    words: Array
    parameters: pd.DataFrame


def broken_laws(
    fields: Iterable[Solved], words: Array, columns: Columns
) -> Iterator[tuple[Solved, Array]]:
    """Yield each field with ``(N,) bool``: the captures that break its law.

    A field comes after the fields that its law reads. A law reads their values from the captures.
    """
    part = columns.rows(np.arange(columns.n))
    for solved in fields:
        yield solved, solved.wrong(part, words)
        part.add(solved.name, solved.raw(words).astype(np.int64))


def relabelled(
    fields: Sequence[Solved], words: Array, layer: Mapping[str, Any], values: Mapping[str, Array]
) -> str:
    """The one change of one parameter after which all laws give the ``words (W,) uint32`` of a
    capture, as text: ``shift would be 5``. It is "" if no change does that, or several do.

    ``values`` are the values of each whole-valued parameter in the captures.
    """
    found = []
    for name, others in values.items():
        rows = {}
        for own, value in layer.items():
            rows[own] = np.full(len(others), value)
        rows[name] = others
        columns = Columns(rows)
        right = others != layer[name]
        every = np.tile(words, (len(others), 1))
        for _, broken in broken_laws(fields, every, columns):
            right &= ~broken
        for value in others[right].tolist():
            found.append(f"{name} would be {value}")
    if len(found) == 1:
        return found[0]
    return ""


def exceptional(state: State, library: Library) -> Array:
    """``(N,) bool``: the captures to set apart, because they break at least ``LEAST_LAWS`` laws
    together.

    None is set apart if, for one of them, no single parameter has exactly one other value with
    which all laws are right: such captures may be of a kind that is lowered in another way.
    """
    captures = state.captures
    none = np.zeros(captures.n, bool)
    most = max(MOST_APART * captures.n, 1)
    found = [one for one in _broken(state, library) if 0 < one[1].sum() <= most]
    if len(found) < LEAST_LAWS:
        return none
    broken = np.array([rows for _, rows in found])
    apart, best = none, 0.0
    # in each round, the captures that break one more law are added, if that saves bits
    while True:
        wider = apart | broken
        gains = np.array([_gain(rows, broken) for rows in wider])
        gains[wider.sum(1) > most] = -np.inf
        if gains.max() <= best:
            break
        best = float(gains.max())
        apart = wider[int(gains.argmax())]
    laws = [law for law, rows in found if not (rows & ~apart).any()]
    if len(laws) < LEAST_LAWS:
        return none
    values = {}
    for name in captures.names.integers:
        values[name] = np.unique(captures.columns[parameter(name)])
    # if no other value of a parameter explains a capture, the captures may be of a kind that is
    # lowered in another way, and none is set apart
    fields = [*state.solved, *laws]
    for row in np.flatnonzero(apart).tolist():
        layer = {name: int(captures.columns[parameter(name)][row]) for name in values}
        if not relabelled(_of_integers(fields, values), captures.words[row], layer, values):
            return none
    return apart


def _of_integers(fields: Sequence[Solved], names: Container[str]) -> list[Solved]:
    """The fields whose laws read only whole-valued parameters, and no field."""
    found = []
    for solved in fields:
        if all(name in names for name in names_in(solved.parts)) and not solved.reads:
            found.append(solved)
    return found


def _broken(state: State, library: Library) -> Iterator[tuple[Solved, Array]]:
    """Yield likely fields, each with the law that explains it best, and ``(N,) bool``: the captures
    that break this law.
    """
    captures = state.captures
    laws = library.laws.of(slice(BUDGET.boundary_laws))
    for place in places(captures.words, captures.information, library, state.todo):
        values = place.raw(captures.words)
        agree = (laws.values ^ values) & np.uint32(2**place.width - 1) == 0
        best = int(np.argmax(weighed(agree, captures.weights(place)) - laws.cost))
        solved = Solved.always(place, laws[best], captures.n, float(laws.cost[best]), 0.0)
        yield solved, ~agree[best]


def _gain(apart: Array, broken: Array) -> float:
    """The bits saved by naming the captures ``apart`` once, instead of once for each law that no
    other capture breaks.
    """
    n = len(apart)
    alone = broken[~(broken & ~apart).any(1)]
    named = n * entropy(alone.sum(1) / n)
    return float(named.sum()) - int(apart.sum()) * math.log2(n)
