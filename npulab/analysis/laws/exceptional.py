"""Captures that break several plain laws together: layers that are lowered in another way, or
captures with wrong parameters.

One capture that breaks a law hides it. If the same few captures break several laws, it is cheaper
to name these captures once than to explain each field by cases: the laws are then sought on the
other captures.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from npulab.analysis.laws.boundaries import entropy, places
from npulab.analysis.laws.expressions import Array, Columns
from npulab.analysis.laws.library import Library
from npulab.analysis.laws.masks import weighed
from npulab.analysis.laws.prior import BUDGET
from npulab.analysis.laws.solved import Solved
from npulab.analysis.laws.state import State

if TYPE_CHECKING:
    import pandas as pd

MOST_APART = 0.03  # the most captures set apart, as a share: more of them are a regime
LEAST_LAWS = 3  # fewer laws that the same captures break may do so by chance


@dataclass(frozen=True, eq=False)
class Apart:
    """Captures that are set apart: their numbers ``rows (M,)`` among the given captures, their
    ``words (M, W) uint32`` and their ``parameters``."""

    rows: Array
    words: Array
    parameters: pd.DataFrame


def broken_laws(
    fields: Iterable[Solved], words: Array, columns: Columns
) -> Iterator[tuple[Solved, Array]]:
    """Yield each field with the captures that break its law, ``(N,) bool``; fields come after those
    that they read, which are read as captured."""
    part = columns.rows(np.arange(columns.n))
    for solved in fields:
        yield solved, solved.wrong(part, words)
        part.add(solved.name, solved.raw(words).astype(np.int64))


def relabelled(
    fields: Sequence[Solved], words: Array, layer: Mapping[str, Any], values: Mapping[str, Array]
) -> str:
    """The only other value of a parameter with which all laws give the ``words (W,) uint32`` of a
    capture, as ``shift would be 5``; "" if there is none or several.

    ``values`` are those that captures have of each whole-valued parameter.
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
    """``(N,) bool``: the captures to set apart, none if no few captures break several laws."""
    broken = np.array([*_broken(state, library)], bool).reshape(-1, state.captures.n)
    most = MOST_APART * state.captures.n
    broken = broken[(broken.sum(1) <= most) & broken.any(1)]
    apart = np.zeros(state.captures.n, bool)
    best = 0.0
    while len(broken):
        wider = apart | broken
        gains = np.array([_gain(rows, broken) for rows in wider])
        gains[wider.sum(1) > most] = -np.inf
        if gains.max() <= best:
            break
        best = float(gains.max())
        apart = wider[int(gains.argmax())]
    if (broken & ~apart).any(1).sum() > len(broken) - LEAST_LAWS:
        return np.zeros_like(apart)
    return apart


def _broken(state: State, library: Library) -> Iterator[Array]:
    """Yield, for each field that one law explains best, the captures that break this law."""
    captures = state.captures
    laws = library.laws.of(slice(BUDGET.boundary_laws))
    for place in places(captures.words, captures.information, library, state.todo):
        values = place.raw(captures.words)
        agree = (laws.values ^ values) & np.uint32(2**place.width - 1) == 0
        weights = captures.information[:, place.word, place.lsb : place.end].sum(1)
        best = int(np.argmax(weighed(agree, weights) - laws.cost))
        yield ~agree[best]


def _gain(apart: Array, broken: Array) -> float:
    """The bits saved if captures are named once and not for each law that only they break."""
    n = len(apart)
    alone = broken[~(broken & ~apart).any(1)]
    named = n * entropy(alone.sum(1) / n)
    return float(named.sum()) - int(apart.sum()) * math.log2(n)
