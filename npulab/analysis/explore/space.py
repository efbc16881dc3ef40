"""The layers that a source can be asked for, limited by rules that are learnt from its refusals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from operator import itemgetter
from typing import Any

import numpy as np
from numpy import ndarray as Array

from npulab.analysis.laws.planning import Space
from npulab.captures.layers import TOGETHER
from npulab.support.late import pd

LEAST_REFUSED = 2  # a rule must explain at least this many refused layers
MOST_RULES = 12
MOST_MODES = 3  # a parameter with more values is not the ``mode`` of a rule
Mode = tuple[str, float] | None


@dataclass(frozen=True)
class Rule:
    """A rule that says which layers a source refuses: those in which ``left`` is above ``limit``
    or, if ``above`` is False, below it.

    ``left`` is a parameter, or the product or difference of two. With a ``mode`` (name, value) the
    rule only holds for layers in which the parameter of this name has this value.
    """

    left: str
    above: bool
    limit: float
    mode: Mode = None

    def refuses(self, frame: pd.DataFrame) -> Array:
        """A mask of the rows (layers) that the rule refuses."""
        values = dict(quantities(frame))[self.left]
        if self.above:
            beyond = values > self.limit
        else:
            beyond = values < self.limit
        if self.mode is None:
            return beyond
        return beyond & (frame[self.mode[0]] == self.mode[1]).to_numpy()

    def __str__(self) -> str:
        side = "<"
        if self.above:
            side = ">"
        text = f"{self.left} {side} {self.limit:g}"
        if self.mode is None:
            return text
        return f"{text} where {self.mode[0]} == {self.mode[1]:g}"


def quantities(frame: pd.DataFrame) -> Iterator[tuple[str, Array]]:
    """Yield (name, values) of every quantity that a rule may limit: each parameter, and the
    difference, absolute difference and product of any two."""
    columns = {str(name): frame[name].to_numpy(float) for name in frame}
    yield from columns.items()
    for (first, a), (second, b) in combinations(columns.items(), 2):
        yield f"{first} - {second}", a - b
        yield f"|{first} - {second}|", np.abs(a - b)
        yield f"{first} * {second}", a * b


def learnt_rules(asked: pd.DataFrame, refused: Array) -> tuple[Rule, ...]:
    """Rules that explain the refused layers; no rule refuses a layer that was captured.

    The rules are made one by one: each refuses most of the layers that no earlier rule refuses; of
    equally good rules the simplest is taken. There are at most 12 rules, and each refuses at least
    2 layers that no earlier rule refuses.
    """
    rules: list[Rule] = []
    rest = refused.copy()
    if not refused.any() or refused.all():
        return ()
    names, columns = zip(*quantities(asked), strict=True)
    values = np.stack(columns)
    modes: list[Mode] = [None]
    for name in asked:
        if asked[name].nunique() <= MOST_MODES:
            modes += [(str(name), float(value)) for value in asked[name].unique()]
    while rest.sum() >= LEAST_REFUSED and len(rules) < MOST_RULES:
        best, found = LEAST_REFUSED - 1, None
        for mode in modes:
            within = np.ones(len(asked), bool)
            if mode is not None:
                within = (asked[mode[0]] == mode[1]).to_numpy()
            if not (within & rest).any() or not (within & ~refused).any():
                continue
            captured, others = values[:, within & ~refused], values[:, within & rest]
            highest, lowest = captured.max(1), captured.min(1)
            above = (others > highest[:, None]).sum(1)
            below = (others < lowest[:, None]).sum(1)
            for is_above, limits, counts in ((True, highest, above), (False, lowest, below)):
                most = int(counts.argmax())
                # a rule with a mode has to explain one layer more than a rule without
                if counts[most] > best + (mode is not None):
                    best = int(counts[most])
                    found = Rule(names[most], is_above, float(limits[most]), mode)
        if found is None:
            break
        rules.append(found)
        rest &= ~found.refuses(asked)
    return tuple(rules)


@dataclass(frozen=True)
class Possible:
    """The layers within given ranges that meet the constraints and that no learnt rule refuses."""

    ranges: Mapping[str, Any]
    constraints: Sequence[Callable[..., Any]] = ()
    derived: Mapping[str, Callable[..., Any]] | None = None
    rules: tuple[Rule, ...] = ()

    def draw(self, n: int, seed: int) -> pd.DataFrame:
        """Random layers that no rule refuses, at least one and at most ``n``: a row for each layer,
        a column for each parameter.
        """
        count = n
        if self.rules:
            count = 2 * n
        frame = Space(self.ranges, self.constraints, self._derived).draw(count, seed)
        frame = frame.drop(columns=[name for name in TOGETHER if name in frame])
        for rule in self.rules:
            kept = frame[~rule.refuses(frame)]
            if len(kept):
                frame = kept
        return frame.iloc[:n].reset_index(drop=True)

    @property
    def _derived(self) -> dict[str, Callable[..., Any]]:
        both: dict[str, Callable[..., Any]] = {}
        for name, axes in TOGETHER.items():
            if name in self.ranges:
                both |= dict.fromkeys(axes, itemgetter(name))
        return both | dict(self.derived or {})
