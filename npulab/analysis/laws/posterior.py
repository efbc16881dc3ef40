"""What the captures leave possible: alternatives to the law of a field, and sums of their mass.

The law that the search found has the mass 1. Each alternative that the captures allow has the mass
``prior * weight``. The prior is that of its family, a row of ``families.csv``: it says how often
such an alternative was the truth, measured on captures that no search had used. The weight is
2**-bits of what the alternative costs more than the law, or it falls with the captures that speak
for the law.

The odds that a bit is wrong on a layer are the mass of all alternatives that change the bit on this
layer. Alternatives to the laws of fields that the bit's law reads are included. A bit is claimed if
its law keeps at least ``CLAIM`` of the mass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from npulab.analysis.laws.expressions import CONSTANT, FIELD, Array, Columns, Expression
from npulab.analysis.laws.findings import Findings, fill
from npulab.analysis.laws.predicates import literals
from npulab.analysis.laws.rivals import (
    clamp_rivals,
    gap_rivals,
    hidden_changes,
    like_rivals,
    limit_rivals,
    separating_rivals,
)
from npulab.analysis.laws.solved import Rival, Solved
from npulab.support.files import read_table

# A bit is claimed if its law keeps at least a share of CLAIM of the mass. Measured on the sources
# to which the priors were fitted, with laws from 200 layers: of the claims 0.040 % were wrong at a
# share of 0.98, 0.022 % at 0.99, 0.014 % at 0.995. Claimed were 79.5 %, 78.7 % and 76.2 % of all
# cells.
CLAIM = 0.99

# The spare bits of a field are the bits of information in it less the cost of its law. WEAK spare
# bits halve the mass of the alternative "no law"; at most MOST_SPARE of them count. Both numbers
# are assumed, not measured.
WEAK = 8.0
MOST_SPARE = 60.0


class Family(NamedTuple):
    """A kind of alternatives: its prior odds against the law, and what it is called."""

    prior: float
    reason: str
    text: str


class Alternative(NamedTuple):
    """What may hold instead of a law. ``changed (N,) int64`` are masks of the field's bits that it
    changes on each layer; ``weight`` is one number, or one for each layer.
    """

    family: str
    text: str
    weight: Array | float
    changed: Array


@cache
def families() -> Mapping[str, Family]:
    """The families of alternatives by name, as ``families.csv`` has them."""
    rows = read_table(Path(__file__).with_name("families.csv"))
    return {row["family"]: Family(float(row["prior"]), row["reason"], row["text"]) for row in rows}


@dataclass(frozen=True, eq=False)
class Belief:
    """The predicted ``words (N, W) uint32`` of some layers; and by name of each field the odds
    ``(N, width)`` that a bit of it is wrong.
    """

    fields: tuple[Solved, ...]
    words: Array
    odds: Mapping[str, Array]

    def probability(self) -> Array:
        """``(N, W, 32)``: the probability that a bit is right; 0 for a bit without a law."""
        out = np.zeros((*self.words.shape, 32), np.float32)
        for solved in self.fields:
            out[:, solved.word, solved.lsb : solved.end] = 1 / (1 + self.odds[solved.name])
        return out

    def unsure(self) -> dict[str, Array]:
        """By name of each field, ``(N,) bool``: the layers on which one of its bits is not
        claimed.
        """
        out = {}
        for name, odds in self.odds.items():
            out[name] = np.any(1 / (1 + odds) < CLAIM, axis=1)
        return out

    def claimed(self) -> Array:
        """``(N, W) uint32``: masks of the bits that are claimed."""
        out = np.zeros_like(self.words)
        for solved in self.fields:
            sure = 1 / (1 + self.odds[solved.name]) >= CLAIM
            out[:, solved.word] |= solved.placed(sure @ 2 ** np.arange(solved.width))
        return out


def believed(findings: Findings, asked: Columns) -> Belief:
    """The belief in the words of the layers ``asked``; the values of fields become columns of
    ``asked``.
    """
    values = fill(findings.ready, asked)
    words = np.zeros((asked.n, len(findings.moved)), np.uint32)
    odds: dict[str, Array] = {}
    for solved, others in alternatives(findings, asked):
        words[:, solved.word] |= solved.placed(values[solved.name])
        own = _odds(solved, others, asked.n)
        # A field is wrong if a field that it reads is wrong. The odds of that are added, because
        # all odds are small.
        for name in solved.reads:
            own += odds[name].max(1)[:, None]
        # a layer that no step decides has no law
        own[solved.decide(asked) < 0] = np.inf
        odds[solved.name] = own
    return Belief(findings.ready, words, odds)


def _odds(solved: Solved, others: Iterator[Alternative], n: int) -> Array:
    """The odds ``(N, width)`` that a bit of a field is wrong."""
    odds = np.zeros((n, solved.width))
    for family, mass in masses(solved, others, n).items():
        odds += families()[family].prior * mass
    return odds


def masses(solved: Solved, others: Iterator[Alternative], n: int) -> dict[str, Array]:
    """By family, the mass ``(N, width)`` of the alternatives that change each bit of a field, if
    all priors are 1.
    """
    places = np.arange(solved.width)
    out: dict[str, Array] = {}
    for other in others:
        weight = np.broadcast_to(np.asarray(other.weight, np.float64), n)
        bits = (other.changed[:, None] >> places & 1) * weight[:, None]
        out[other.family] = out.get(other.family, 0) + bits
    return out


def alternatives(
    findings: Findings, asked: Columns
) -> Iterator[tuple[Solved, Iterator[Alternative]]]:
    """Yield each field with the alternatives to its law that change it on one of the layers
    ``asked``, which have the values of the fields as columns.
    """
    unlike = findings.unlike(asked)
    dependent, pair, every = findings.unseen_rows(asked)
    for solved in findings.ready:
        rows = {"unlike": unlike, "dependent": dependent}
        if len(solved.steps) > 1 or solved.partial:
            rows |= {"pair": pair, "modes": every}
        yield solved, filter(_changes, _every(findings, solved, asked, rows))


def _changes(other: Alternative) -> bool:
    return bool(other.changed.any())


def _every(
    findings: Findings, solved: Solved, asked: Columns, unlike: Mapping[str, Array]
) -> Iterator[Alternative]:
    values = solved.values(asked)
    yield from _other_lists(findings, solved, asked, values)
    yield from _other_numbers(findings, solved, asked, values)
    yield from _unlike_layers(findings, solved, asked, values, unlike)
    yield from _little_evidence(findings, solved, asked)


def _other_lists(
    findings: Findings, solved: Solved, asked: Columns, values: Array
) -> Iterator[Alternative]:
    """Yield alternatives that are other decision lists: they agree with the captures as well."""
    captured, fields = findings.captured, findings.ready
    kinds: tuple[tuple[str, Iterator[Rival]], ...] = (
        ("rival", iter(solved.rivals)),
        ("limit", gap_rivals(solved, captured, inner=True)),
        ("end", limit_rivals(solved, captured)),
        ("held", clamp_rivals(solved, captured, fields)),
        ("parted", separating_rivals(solved, captured, findings.integers)),
        ("near", like_rivals(solved, fields, captured)),
        ("twin", findings.twins.rivals(solved)),
    )
    for family, rivals in kinds:
        for rival in rivals:
            changed = solved.changes(rival, asked, values)
            yield Alternative(family, str(rival), 2.0**-rival.extra_cost, changed)


def _other_numbers(
    findings: Findings, solved: Solved, asked: Columns, values: Array
) -> Iterator[Alternative]:
    """Yield alternatives that are other numbers in a law: budgets that the captures only bound, and
    values of fields that were cut to their width.
    """
    hidden = hidden_changes(solved, findings.captured, asked, values)
    yield _of("budget", hidden)
    for changed in findings.uncut_changes(solved, asked, values):
        yield _of("uncut", upwards(changed, solved.width))


def upwards(changed: Array, width: int) -> Array:
    """Masks of the lowest changed bit and of all bits above it: if the lowest one is wrong, bits
    above it are right only by chance.
    """
    return np.where(changed != 0, -(changed & -changed), 0) & (2**width - 1)


def _unlike_layers(
    findings: Findings,
    solved: Solved,
    asked: Columns,
    values: Array,
    unlike: Mapping[str, Array],
) -> Iterator[Alternative]:
    """Yield alternatives on layers that are unlike the captured ones. ``unlike`` has such layers by
    family, as masks ``(N,) bool``.
    """
    rows = {
        **unlike,
        "agree": findings.twins.apart(solved, asked),
        "between": findings.outside(solved, asked),
        "part": findings.hardly_proved(solved, asked, values),
        "beside": findings.cut_off(solved, asked),
    }
    for family, where in rows.items():
        yield _of(family, _whole(where, solved.width))
    where, spare = findings.unseen_numbers(solved, asked)
    yield _of("numbers", _whole(where, solved.width), _weakness(spare))


def _little_evidence(findings: Findings, solved: Solved, asked: Columns) -> Iterator[Alternative]:
    """Yield alternatives whose weight falls with the number of captures that support the law."""
    whole = np.full(asked.n, 2**solved.width - 1, np.int64)
    layers = len(findings.layers)
    text = f"{layers} captured layers"
    yield Alternative("any", text, 1 / (layers + 2), whole)
    if findings.apart:
        text = f"{findings.apart} captures set apart"
        yield Alternative("apart", text, findings.apart / layers, whole)
    spare = findings.spare(solved, findings.layers)
    text = f"{spare + solved.cost:.0f} bits of layers for a law of {solved.cost:.0f}"
    yield Alternative("weak", text, _weakness(spare), whole)
    support = findings.support(solved)
    decided = support[solved.decide(asked)]
    # the law of a step is proved only by the layers that the step decides
    if len(solved.steps) > 1 or solved.partial:
        fewest = f"{int(support[:-1].min())} captures in its regime"
        yield Alternative("step", fewest, 1 / (decided + 1), whole)
    # a bit that is rarely set follows many laws by chance
    if solved.width == 1:
        fewest = f"{findings.rarer(solved)} captures with the other value"
        yield Alternative("bit", fewest, 1 / (findings.rarer(solved) + 1), whole)
    # a condition on a field, or that two numbers are equal, is often not the one that decides in
    # truth, but only goes along with it
    conditions = [part for when, _ in solved.steps for part in literals(when)]
    for family, has in (
        ("proxy", any(part.names(FIELD) for part in conditions)),
        ("equal", any(_compares(part) for part in conditions)),
    ):
        if has:
            yield _of(family, whole, 1 / (decided + 2))


def _compares(condition: Expression) -> bool:
    """True if a condition says that two numbers, both not constant, are equal or differ."""
    equal = condition.op in ("==", "!=")
    return equal and not any(part.op == CONSTANT for part in condition.args)


def _weakness(spare: float) -> float:
    """The weight of the alternative "no law", if a field holds ``spare`` more bits than its law
    costs.
    """
    return float(2.0 ** (-min(spare, MOST_SPARE) / WEAK))


def _of(family: str, changed: Array, weight: Array | float = 1.0) -> Alternative:
    """An alternative with the text of its family."""
    return Alternative(family, families()[family].text, weight, changed)


def _whole(rows: Array, width: int) -> Array:
    """Masks ``(N,)`` of all bits of a field on the ``rows``, and 0 on other rows."""
    return np.where(rows, 2**width - 1, 0).astype(np.int64)


def predicted(findings: Findings, asked: Columns) -> tuple[Array, Array]:
    """The words ``(N, W) uint32`` that the laws give, and masks ``(N, W) uint32`` of the bits that
    are claimed.
    """
    belief = believed(findings, asked)
    return belief.words, belief.claimed()
