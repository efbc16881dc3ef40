"""The layers that a source can be asked for, as far as its refusals have shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from npulab.analysis.laws.planning import Space
from npulab.captures.layers import TOGETHER
from npulab.support.late import pd

LEAST_REFUSED = 2  # layers that a rule has to refuse before it counts
MOST_RULES = 12
MOST_MODES = 3  # values of a parameter that rules may hold for one of
Mode = tuple[str, float] | None


@dataclass(frozen=True)
class Rule:
    """Layers that a source refuses: those whose ``left`` (a parameter, or a product or difference
    of two) is on one side of a limit; with a ``mode`` (name, value) those alone that have it."""

    left: str
    above: bool
    limit: float
    mode: Mode = None

    def refuses(self, frame: pd.DataFrame) -> np.ndarray:
        """Whether each row is refused."""
        values = dict(quantities(frame))[self.left]
        if self.above:
            beyond = values > self.limit
        else:
            beyond = values < self.limit
        if self.mode is None:
            return beyond
        return beyond & (frame[self.mode[0]] == self.mode[1]).to_numpy()

    def __str__(self) -> str:
        if self.mode is None:
            where = ""
        else:
            where = f" where {self.mode[0]} == {self.mode[1]:g}"
        return f"{self.left} {'>' if self.above else '<'} {self.limit:g}{where}"


def quantities(frame: pd.DataFrame) -> Iterator[tuple[str, np.ndarray]]:
    """What rules are about: each parameter, and the difference and product of any two."""
    columns = {str(name): frame[name].to_numpy(float) for name in frame}
    yield from columns.items()
    names = list(columns)
    for at, one in enumerate(names):
        for other in names[at + 1 :]:
            yield f"{one} - {other}", columns[one] - columns[other]
            yield f"|{one} - {other}|", np.abs(columns[one] - columns[other])
            yield f"{one} * {other}", columns[one] * columns[other]


def learnt_rules(asked: pd.DataFrame, refused: np.ndarray) -> tuple[Rule, ...]:
    """Rules that refuse as many of the refused layers as they can and none that was captured,
    those that refuse most first; of those that refuse as many the plainest."""
    rules: list[Rule] = []
    left = refused.copy()
    if not refused.any() or refused.all():
        return ()
    names, columns = zip(*quantities(asked), strict=True)
    values = np.stack(columns)
    modes: list[Mode] = [
        None,
        *(
            (str(name), float(value))
            for name in asked
            if asked[name].nunique() <= MOST_MODES
            for value in asked[name].unique()
        ),
    ]
    while left.sum() >= LEAST_REFUSED and len(rules) < MOST_RULES:
        best, found = LEAST_REFUSED - 1, None
        for mode in modes:
            if mode is None:
                here = np.ones(len(asked), bool)
            else:
                here = (asked[mode[0]] == mode[1]).to_numpy()
            if not (here & left).any() or not (here & ~refused).any():
                continue
            captured, others = values[:, here & ~refused], values[:, here & left]
            for above, limits in ((True, captured.max(1)), (False, captured.min(1))):
                counts = (others > limits[:, None] if above else others < limits[:, None]).sum(1)
                most = int(counts.argmax())
                if counts[most] > best + (mode is not None):  # a mode has to pay
                    best, found = (
                        int(counts[most]),
                        Rule(names[most], above, float(limits[most]), mode),
                    )
        if found is None:
            break
        rules.append(found)
        left &= ~found.refuses(asked)
    return tuple(rules)


@dataclass(frozen=True)
class Possible:
    """The layers within ranges that meet the constraints and that no learnt rule refuses."""

    ranges: Mapping[str, Any]
    constraints: Sequence[Callable[..., Any]] = ()
    derived: Mapping[str, Callable[..., Any]] | None = None
    rules: tuple[Rule, ...] = ()

    def draw(self, n: int, seed: int) -> pd.DataFrame:
        """At least one and at most ``n`` possible layers, each parameter a column."""
        frame = Space(self.ranges, self.constraints, self._derived).draw(
            2 * n if self.rules else n, seed
        )
        frame = frame.drop(columns=[name for name in TOGETHER if name in frame])
        for rule in self.rules:
            kept = frame[~rule.refuses(frame)]
            if len(kept):
                frame = kept
        return frame.iloc[:n].reset_index(drop=True)

    @property
    def _derived(self) -> dict[str, Callable[..., Any]]:
        both = {
            axis: (lambda frame, name=name: frame[name])
            for name, axes in TOGETHER.items()
            if name in self.ranges
            for axis in axes
        }
        return both | dict(self.derived or {})
