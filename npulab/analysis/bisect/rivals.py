"""The weight of an answer compared with answers that resemble it, for devices that err.

The suspects are only simple explanations. If outcomes may be wrong, one wrong outcome can make a
simple explanation fit although the truth is not simple (two pairs that share an item, any two of
three). So an answer is compared with every answer that differs from it in one step (``Rivals``). A
trial is repeated if the weightiest rivals expect another outcome of it than the answer.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy import ndarray as Array

from npulab.analysis.bisect.evidence import Evidence, subset_of
from npulab.analysis.bisect.kinds import Groups
from npulab.analysis.bisect.proof import ways

# The weight of all rivals of one kind together, before the trials; the answer has the weight 1.
STEP = 1.0


@dataclass(frozen=True)
class Rivals:
    """The rivals of an answer over ``n`` items: answers that differ from it in one step. The arrays
    hold the weight of each rival after the trials; the answer itself has the weight 1.

    ``narrower (G, n, n)``: group g shows the symptom only together with item x or item y (if x = y:
    only with x). ``smaller (G, n)``: group g shows it even without its item x. ``more (n, n)``: x
    and y together (if x = y: x alone) show it too. ``nothing``: no set shows it.
    """

    groups: tuple[frozenset[int], ...]
    narrower: Array
    smaller: Array
    more: Array
    nothing: float

    @classmethod
    def of(
        cls, evidence: Evidence, groups: Groups, flake: float, untried: Collection[int] = ()
    ) -> Rivals:
        """Return the rivals of the answer ``groups``, for a device that errs in a share ``flake``
        of trials.

        ``untried`` are items that hide the symptom: trials of the items outside of the groups leave
        them out.
        """
        changed = evidence.changed
        expected = evidence.expected(groups)
        # 1 for a trial that passed, -1 for a trial that showed the symptom
        against = evidence.passed.astype(float) - evidence.broke
        trials = _Trials(changed, against, math.log((1 - flake) / flake))
        sets = tuple(frozenset(group) for group in groups)
        members = subset_of(frozenset().union(*sets), changed.shape[1])
        narrower = []
        smaller = []
        for group in sets:
            rest = tuple(tuple(other) for other in sets if other != group)
            narrower.append(_narrower(trials, group, evidence.expected(rest), members))
            smaller.append(_smaller(trials, group, expected, evidence))
        more = _more(trials, sets, expected, untried) * _decidable(evidence, sets, untried)
        nothing = STEP * math.exp(trials.odds * against[expected].sum())
        return cls(sets, np.array(narrower), np.array(smaller), more, nothing)

    @property
    def certainty(self) -> float:
        """The probability of the answer, assuming that the answer or one of its rivals is true."""
        weights = self.narrower.sum() + self.smaller.sum() + self.more.sum() + self.nothing
        return 1 / (1 + float(weights))

    def wanted(self, evidence: Evidence, untried: Collection[int] = ()) -> Array | None:
        """Return the set of items ``(n,) bool`` for which the rivals that expect another outcome
        than the answer have the largest total weight; None if all sets to try hide the symptom.
        """
        n = len(self.more)
        found: list[tuple[float, frozenset[int]]] = []
        for group, weight in zip(self.groups, self.narrower, strict=True):
            found.append((float(weight.sum()) + self.nothing, group))
        for group, weight in zip(self.groups, self.smaller, strict=True):
            if len(group) > 1:
                found += [(float(weight[item]), group - {item}) for item in group]
        for rest in _rests(n, self.groups, untried):
            inside = list(rest)
            found.append((float(self.more[np.ix_(inside, inside)].sum()), rest))
        best = None
        most = -math.inf
        for heavy, items in found:
            subset = subset_of(items, n)
            if heavy > most and not evidence.hides(subset):
                most, best = heavy, subset
        return best


@dataclass(frozen=True)
class _Trials:
    """Trials that change items ``(T, n) bool``.

    ``against (T,)`` is 1 for a trial that passed, -1 for a trial that showed the symptom, 0 for any
    other trial; ``odds`` is the logarithm of the odds of a right outcome.
    """

    changed: Array
    against: Array
    odds: float


def _narrower(trials: _Trials, group: frozenset[int], others: Array, members: Array) -> Array:
    """Return the weights ``(n, n)`` of the rivals in which a group also needs one of two items;
    ``others (T,) bool`` are trials in which another group shows the symptom anyway.
    """
    only = trials.changed[:, list(group)].all(axis=1) & ~others
    outside = ~subset_of(group, trials.changed.shape[1])
    lacking = ~trials.changed[only]
    prior = _prior(outside, np.outer(outside, outside), members)
    return prior * _weights(lacking, -trials.against[only], trials.odds)


def _smaller(trials: _Trials, group: frozenset[int], expected: Array, evidence: Evidence) -> Array:
    """Return the weights ``(n,)`` of the rivals in which a group does not need one of its items;
    ``expected (T,)`` are the trials in which the answer expects the symptom.

    An item has the weight 0 if the group without it hides the symptom: no trial can decide about
    it.
    """
    n = trials.changed.shape[1]
    weights = np.zeros(n)
    if len(group) == 1:
        return weights
    for item in group:
        rest = list(group - {item})
        if evidence.hides(subset_of(rest, n)):
            continue
        without = trials.changed[:, rest].all(axis=1) & ~expected
        net = trials.against[without].sum()
        weights[item] = STEP / len(group) * math.exp(-trials.odds * net)
    return weights


def _more(
    trials: _Trials,
    groups: Collection[frozenset[int]],
    expected: Array,
    untried: Collection[int],
) -> Array:
    """Return the weights ``(n, n)`` of the rivals in which two items together (on the diagonal: one
    item alone) are a further group.
    """
    n = trials.changed.shape[1]
    alone: list[int] = []
    for group in groups:
        if len(group) == 1:
            alone += group
    members = subset_of(frozenset().union(*groups), n)
    free = ~subset_of([*alone, *untried], n)
    pairs = np.outer(free, free)
    for group in groups:
        inside = subset_of(group, n)
        pairs &= ~np.outer(inside, inside)  # pairs inside a group belong to ``smaller``
    prior = _prior(free & ~members, pairs, members)
    return prior * _weights(trials.changed[~expected], trials.against[~expected], trials.odds)


def _rests(
    n: int, groups: Collection[frozenset[int]], untried: Collection[int]
) -> list[frozenset[int]]:
    """Return, for each choice of one item from each group, the set of all other items; last, the
    set of the items in no group. All sets leave out ``untried``.
    """
    left_out = [*(ways(groups) or []), frozenset().union(*groups)]
    every = frozenset(range(n)).difference(untried)
    return [every - items for items in left_out]


def _decidable(
    evidence: Evidence, groups: Collection[frozenset[int]], untried: Collection[int]
) -> Array:
    """Return a mask ``(n, n) bool`` of the pairs of items that a trial can decide: both lie in one
    set of ``_rests`` that does not hide the symptom.
    """
    n = evidence.changed.shape[1]
    decided = np.zeros((n, n), bool)
    for rest in _rests(n, groups, untried):
        inside = subset_of(rest, n)
        if not evidence.hides(inside):
            decided |= np.outer(inside, inside)
    return decided


def _prior(singles: Array, pairs: Array, members: Array) -> Array:
    """Return the prior weights of single items (on the diagonal) and of pairs (above it).

    ``singles (n,) bool`` and ``pairs (n, n) bool`` are masks of the possible ones. Each of four
    kinds has the total weight ``STEP``: singles, and pairs with none, one or two ``members`` of the
    answer.
    """
    of_members = members[:, None].astype(int) + members
    possible = np.triu(pairs, 1)
    kinds: list[Array] = [np.diag(singles)]
    for count in range(3):
        kinds.append(possible & (of_members == count))
    prior = np.zeros(pairs.shape)
    for kind in kinds:
        places = max(1, int(np.count_nonzero(kind)))
        prior += STEP / places * kind
    return prior


def _weights(changed: Array, against: Array, odds: float) -> Array:
    """Return the factors ``(n, n)`` by which the trials change the odds that a pair of items (on
    the diagonal: a single item) shows the symptom.

    Only trials of ``changed (T, n) bool`` in which both items are True count.
    """
    on = changed.astype(float)
    return np.exp(-odds * ((on.T * against) @ on))
