"""The layers to capture: a first sweep that varies parameters independently, and layers that settle
open questions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np

from npulab.analysis.laws.expressions import Array, Columns, parameter
from npulab.analysis.laws.findings import Findings
from npulab.analysis.laws.posterior import CLAIM, alternatives, families
from npulab.analysis.laws.prior import BUDGET
from npulab.analysis.laws.solved import Solved

if TYPE_CHECKING:
    import pandas as pd

# A single alternative of the mass UNCLAIMED prevents a claim.
UNCLAIMED = 1 / CLAIM - 1

# Each chosen layer that settles a doubt multiplies the weight of the doubt by SETTLED.
SETTLED = 0.2

# A layer counts for UNLIKE if it has a number outside the captured groups.
UNLIKE = 1.0

# A feature of a layer (a value, a pair of values, or a bit of a number) counts for NOVELTY if no
# capture has it, and for less the more captures have it.
NOVELTY = 0.02
Ranges = Mapping[str, Any]
Rule = Callable[["pd.DataFrame"], Any]


def plan_sweep(
    ranges: Ranges | None = None,
    constraints: Sequence[Rule] | Rule = (),
    n: int = 32,
    *,
    derived: Mapping[str, Rule] | None = None,
    candidates: Any = None,
    seed: int = 0,
) -> pd.DataFrame:
    """``n`` layers to capture first. They have every mode and sizes just below and above powers of
    two, and no two parameters vary alike.

    ``ranges`` gives (low, high) or a list of values by parameter; (low, high) of whole numbers
    gives whole numbers. ``constraints`` are functions of the DataFrame that are True for each row
    that can be captured. ``derived`` are further columns by name, each a function of the DataFrame.
    In place of these three, ``candidates`` is a DataFrame of layers to choose from, whose index is
    kept. Raises ValueError for an empty range, and if hardly any row meets the constraints.

    >>> plan_sweep({"width": (1, 64), "stride": [1, 2]}, n=4)["stride"].tolist().count(2)
    2
    """
    if n < 1:
        raise ValueError(f"n: got {n}, allowed is 1 or more")
    if candidates is None:
        layers = Space({} if ranges is None else ranges, constraints, derived or {}).pool(n, seed)
        return layers.iloc[_most_new(features(layers), n)].reset_index(drop=True)
    if ranges is not None or derived is not None or constraints != ():
        raise ValueError(
            "candidates: got ranges, constraints or derived columns with candidates, allowed "
            "are candidates alone"
        )
    layers = given_rows(candidates)
    layers = layers.iloc[np.random.default_rng(seed).permutation(len(layers))]
    return layers.iloc[_most_new(features(layers), n)]


def _most_new(shown: Array, n: int) -> list[int]:
    """The indices of the ``n`` rows with most new features. The fewer of the chosen rows have a
    feature, the more it counts.
    """
    chosen: list[int] = []
    seen = np.zeros(shown.shape[1])
    for _ in range(min(n, len(shown))):
        score = shown @ (0.5**seen)
        score[chosen] = -1
        chosen.append(int(score.argmax()))
        seen += shown[chosen[-1]]
    return chosen


def given_rows(rows: Any) -> pd.DataFrame:
    """The candidates that the user gave; raises ValueError if there are none."""
    import pandas as pd

    if isinstance(rows, pd.DataFrame):
        layers = rows
    else:
        layers = pd.DataFrame(dict(rows))
    if not len(layers):
        raise ValueError("candidates: got no rows, allowed is at least one layer")
    return layers


@dataclass(frozen=True)
class Space:
    """The layers that can be captured. ``ranges`` gives (low, high) or a list of values by
    parameter; ``constraints`` are those that a layer must meet, ``derived`` columns follow from the
    parameters.
    """

    ranges: Ranges
    constraints: Sequence[Rule] | Rule = ()
    derived: Mapping[str, Rule] | None = None

    def pool(self, n: int, seed: int) -> pd.DataFrame:
        """Layers to choose ``n`` from."""
        return self.draw(max(BUDGET.pool_for_capture * n, BUDGET.pool_least), seed)

    def draw(self, n: int, seed: int) -> pd.DataFrame:
        """Draw ``n`` layers at random, with sizes of every order of magnitude."""
        import pandas as pd

        if not isinstance(self.ranges, Mapping) or not self.ranges:
            raise ValueError(
                f"ranges: got {self.ranges!r}, allowed is (low, high) or a list of values by "
                "parameter"
            )
        random = np.random.default_rng(seed)
        if callable(self.constraints):
            rules = [self.constraints]
        else:
            rules = list(self.constraints)
        parts: list[pd.DataFrame] = []
        count = 0
        while count < n and len(parts) < BUDGET.tries:
            frame = pd.DataFrame(
                {name: _drawn(name, allowed, n, random) for name, allowed in self.ranges.items()}
            )
            for name, rule in (self.derived or {}).items():
                frame[name] = _applied(f"derived {name!r}", rule, frame)
            keep = np.ones(len(frame), bool)
            for rule in rules:
                keep &= _applied("constraints", rule, frame).astype(bool)
            parts.append(frame[keep])
            count += int(keep.sum())
        if count == 0:
            raise ValueError(
                f"constraints: got constraints that none of {BUDGET.tries * n} drawn layers meets, "
                "allowed are constraints that some layers meet"
            )
        return pd.concat(parts, ignore_index=True).iloc[:n]


def _applied(what: str, rule: Rule, frame: pd.DataFrame) -> Array:
    """The values of a rule, such as a constraint, for each row."""
    try:
        values = np.asarray(rule(frame))
    except Exception as error:
        raise ValueError(
            f"{what}: got {type(error).__name__} ({error}), allowed is a function of the "
            "parameters "
            f"{', '.join(map(str, frame))}"
        ) from error
    if values.shape != (len(frame),):
        raise ValueError(
            f"{what}: got shape {values.shape}, allowed is a value for each of {len(frame)} rows"
        )
    return values


def _drawn(name: str, allowed: Any, n: int, random: np.random.Generator) -> Array:
    ends = None
    if (
        isinstance(allowed, tuple)
        and len(allowed) == 2
        and all(isinstance(end, Real) and math.isfinite(end) for end in allowed)
    ):
        ends = allowed
    if (ends is None or ends[0] > ends[1]) and (
        isinstance(allowed, (tuple, str)) or not np.iterable(allowed)
    ):
        raise ValueError(
            f"ranges: got {allowed!r} for {name!r}, allowed is (low, high) or a list of values"
        )
    if ends is not None:
        low, high = ends
        if all(isinstance(end, Integral) for end in ends):
            return _whole(int(low), int(high), n, random)
        if low > 0:
            return np.exp(random.uniform(np.log(low), np.log(high), n)).astype(np.float32)
        return random.uniform(low, high, n).astype(np.float32)
    values = np.asarray(list(allowed))
    if not len(values):
        raise ValueError(
            f"ranges: got no value for {name!r}, allowed is (low, high) or a list of values"
        )
    # each value equally often, in random order
    return random.permutation(np.resize(values, n))


def _whole(low: int, high: int, n: int, random: np.random.Generator) -> Array:
    """Draw whole numbers: a third evenly, a third evenly by magnitude, and a third next to powers
    of two and the ends.
    """
    even = random.integers(low, high + 1, n)
    if high - low < 16:
        return even
    log = np.exp(random.uniform(np.log(max(low, 1)), np.log(high), n)).astype(np.int64)
    edges = sorted(
        {
            value
            for bit in range(high.bit_length() + 1)
            for value in (2**bit - 1, 2**bit, 2**bit + 1)
            if low <= value <= high
        }
        | {low, high}
    )
    return np.clip(
        np.choose(random.integers(0, 3, n), [even, log, random.choice(edges, n)]), low, high
    )


def features(layers: pd.DataFrame) -> Array:
    """``(rows, F)``: the features of each row.

    A feature is a value of a mode, a pair of such values, a combination of all modes (if there are
    few), or a bit of a number that is set, or that is clear.
    """
    parts, modes = [], []
    for name in layers:
        column = layers[name].to_numpy()
        values = np.unique(column)
        if len(values) <= BUDGET.categories:
            modes.append(np.searchsorted(values, column))
            parts.append(column[:, None] == values)
        elif column.dtype.kind in "iu":
            bits = (column[:, None] >> np.arange(int(column.max()).bit_length())) & 1
            parts += [bits == 1, bits == 0]
        else:
            parts.append(
                np.digitize(column, np.quantile(column, np.linspace(0, 1, 9)[1:-1]))[:, None]
                == np.arange(8)
            )
    for i, mode in enumerate(modes):
        for other in modes[:i]:
            pairs = mode * (other.max() + 1) + other
            parts.append(pairs[:, None] == np.unique(pairs))
    if len(modes) > 2:
        kinds, which = np.unique(np.stack(modes, 1), axis=0, return_inverse=True)
        if len(kinds) <= BUDGET.kinds:
            parts.append(which.reshape(-1, 1) == np.arange(len(kinds)))
    return np.concatenate(parts, 1).astype(np.float64)


@dataclass(frozen=True, eq=False)
class Doubt:
    """An alternative to the law of a field. ``mass (N,)`` is its mass on each layer, 0 on layers
    where it does not differ from the law.
    """

    solved: Solved
    reason: str
    detail: str
    mass: Array


def open_doubts(findings: Findings, asked: Columns) -> Iterator[Doubt]:
    """Yield every alternative that differs from a law on one of these layers."""
    for solved, others in alternatives(findings, asked):
        for other in others:
            family = families()[other.family]
            mass = np.where(other.changed != 0, family.prior * other.weight, 0.0)
            yield Doubt(solved, family.reason, other.text, mass)


def best_rows(findings: Findings, asked: Columns, shown: Array, seen: Array, n: int) -> list[int]:
    """The best ``n`` rows of layers to capture, chosen one after the other. What is open about the
    laws has a weight; once a chosen row settles it, the weight is less.

    ``shown`` are the features of each row, ``seen`` says how many captures have each feature.
    """
    told, weights = [], []
    for doubt in open_doubts(findings, asked):
        # a mass that prevents a claim by itself counts fully, a larger mass not more
        told.append(np.minimum(doubt.mass / UNCLAIMED, 1))
        weights.append(float(doubt.solved.width))
    for solved in findings.ready:
        captured = solved.uncut(findings.captured)
        # A layer also counts if it moves a bit of the law's value that no capture moved. All bits
        # above the field count together as one bit, because the field may be wider.
        moved = (solved.uncut(asked) ^ captured[0]) & ~np.bitwise_or.reduce(captured ^ captured[0])
        for moves in (*(moved >> i & 1 for i in range(solved.width)), moved >> solved.width):
            if moves.any():
                told.append(moves != 0)
                weights.append(1.0)
    for group in findings.groups:
        outside = ~group.has(asked[parameter(group.name)])
        if outside.any():
            told.append(outside)
            weights.append(UNLIKE)
    settles, weight = np.array(told, np.float64).reshape(-1, asked.n), np.array(weights)
    chosen: list[int] = []
    for _ in range(min(n, asked.n)):
        score = weight @ settles + NOVELTY * (shown @ (0.7**seen))
        score[chosen] = -np.inf
        best = int(score.argmax())
        chosen.append(best)
        weight = weight * (1 - (1 - SETTLED) * settles[:, best])
        seen = seen + shown[best]
    return chosen
