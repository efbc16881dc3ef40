"""The weight of an answer against the answers that resemble it, for devices that err.

The suspects are weighed among simple explanations only. If outcomes may be wrong, one wrong outcome
turns an explanation that is not among them (two pairs that share an item, any two of three) into a
simple one. So an answer is weighed against every answer that differs from it in one step
(``Rivals``), and the trial is repeated in which most of these would end differently.
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

STEP = 1.0  # how probable all rivals of one kind are together, before the trials; the answer is 1


@dataclass(frozen=True)
class Rivals:
    """The rivals of an answer over ``n`` items, each kind with its weight after the trials (the
    answer's is 1).

    narrower ``(G, n, n)``: group g shows the symptom only together with item x or item y (x = y:
    only with x); smaller ``(G, n)``: group g shows it without its item x already; more ``(n, n)``:
    x and y together (x = y: x alone) show it too; nothing: no set shows it.
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
        """Return the rivals of ``groups``, for a device that errs in a share ``flake`` of trials.

        ``untried`` are items that are left out of every trial of the rest, as they hide the
        symptom.
        """
        changed = evidence.changed
        expected = evidence.expected(groups)
        against = evidence.passed.astype(float) - evidence.broke  # if the symptom is expected
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
        """The probability of the answer among its rivals."""
        weights = self.narrower.sum() + self.smaller.sum() + self.more.sum() + self.nothing
        return 1 / (1 + float(weights))

    def wanted(self, evidence: Evidence, untried: Collection[int] = ()) -> Array | None:
        """Return the set of items ``(n,) bool`` that would end differently with most of the
        rivals; None if each set that would distinguish them ends in another way."""
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

    ``against (T,)`` is 1 for a trial that speaks against the symptom, -1 for a trial that speaks
    for it, 0 for a trial without information; ``odds`` is the logarithm of the odds of a right
    outcome.
    """

    changed: Array
    against: Array
    odds: float


def _narrower(trials: _Trials, group: frozenset[int], others: Array, members: Array) -> Array:
    """Return the weights ``(n, n)`` of pairs of items, if a group needs one of the two;
    ``others (T,) bool`` are trials in which another group shows the symptom anyway."""
    only = trials.changed[:, list(group)].all(axis=1) & ~others
    outside = ~subset_of(group, trials.changed.shape[1])
    lacking = ~trials.changed[only]
    prior = _prior(outside, np.outer(outside, outside), members)
    return prior * _weights(lacking, -trials.against[only], trials.odds)


def _smaller(trials: _Trials, group: frozenset[int], expected: Array, evidence: Evidence) -> Array:
    """Return the weights ``(n,)`` of the items that a group does not need; ``expected (T,)`` are
    the trials in which the answer expects the symptom.

    An item without which the group ends in another way is not a rival: no trial can decide.
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
    """Return the weights ``(n, n)`` of pairs of items that are a group too."""
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
        pairs &= ~np.outer(inside, inside)  # a part of a group is in ``smaller``
    prior = _prior(free & ~members, pairs, members)
    return prior * _weights(trials.changed[~expected], trials.against[~expected], trials.odds)


def _rests(
    n: int, groups: Collection[frozenset[int]], untried: Collection[int]
) -> list[frozenset[int]]:
    """Return the sets of all items without one item of each group, for each choice of these items,
    and the set without all groups.
    """
    left_out = [*(ways(groups) or []), frozenset().union(*groups)]
    every = frozenset(range(n)).difference(untried)
    return [every - items for items in left_out]


def _decidable(
    evidence: Evidence, groups: Collection[frozenset[int]], untried: Collection[int]
) -> Array:
    """Return the pairs of items ``(n, n) bool`` that are together in a set that does not end in
    another way: no trial can decide the other pairs."""
    n = evidence.changed.shape[1]
    decided = np.zeros((n, n), bool)
    for rest in _rests(n, groups, untried):
        inside = subset_of(rest, n)
        if not evidence.hides(inside):
            decided |= np.outer(inside, inside)
    return decided


def _prior(singles: Array, pairs: Array, members: Array) -> Array:
    """Return the prior probabilities of single items (on the diagonal) and pairs (above it).

    ``singles (n,) bool`` and ``pairs (n, n) bool`` are possible. Singles, pairs of two ``members``
    of the answer, of one member and of none are four kinds of equal total probability.
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
    """Return by how much trials change the odds of each pair of items ``(n, n)``; on the diagonal,
    of each item.

    The pair expects the symptom in a trial of ``changed (T, n) bool`` that changes both.
    """
    on = changed.astype(float)
    return np.exp(-odds * ((on.T * against) @ on))
