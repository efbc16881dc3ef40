"""The trials so far: the outcome that they show for a set of changed items, and the trials that
contradict an answer.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy import ndarray as Array

from npulab.analysis.bisect.kinds import Groups

# The probability that the sequential test decides for a wrong outcome of a set.
WRONG = 1e-3
# The lowest flake rate in the sequential test, even if a device is said never to err.
NEVER = 5e-4
# Any outcome other than "pass" and the symptom: the symptom may be hidden by it.
HIDDEN = "hidden"
# If errors explain the trials that contradict an answer with a lower probability, the answer is
# not reported as found.
IMPROBABLE = 1e-3


@dataclass(frozen=True)
class Evidence:
    """Trials in the order of their runs: the items that each one changed ``(T, n) bool``, and its
    outcome.

    ``symptom`` is the outcome that is searched for, "fail" or "hang". If "fail" is the symptom,
    "hang" counts as ``HIDDEN``, and the reverse: a job that hangs does not show if it would have
    failed, nor a job that fails if it would have hung. ``flake`` is the share of wrong outcomes. If
    ``flake`` is 0, one trial of a set is enough, and each subset of a set that passed counts as
    passing.
    """

    changed: Array
    outcomes: tuple[str, ...]
    symptom: str
    flake: float = 0.0

    @classmethod
    def of(
        cls, trials: Iterable[tuple[Array, str]], n: int, symptom: str, flake: float = 0.0
    ) -> Evidence:
        """Return the evidence of trials (changed items ``(n,) bool``, outcome) for a symptom."""
        subsets = []
        outcomes = []
        for subset, outcome in trials:
            subsets.append(subset)
            outcomes.append(outcome)
        changed = np.array(subsets, bool).reshape(-1, n)
        return cls(changed, tuple(outcomes), symptom, flake)

    @property
    def passed(self) -> Array:
        """The trials that passed, ``(T,) bool``."""
        return np.array([outcome == "pass" for outcome in self.outcomes], bool)

    @property
    def broke(self) -> Array:
        """The trials that showed the symptom, ``(T,) bool``."""
        return np.array([outcome == self.symptom for outcome in self.outcomes], bool)

    def seen(self, subset: Array) -> list[str]:
        """Return the outcomes of the trials of exactly this set ``(n,) bool``: the symptom, "pass"
        or ``HIDDEN``."""
        same = np.flatnonzero((self.changed == subset).all(axis=1))
        return [self.named(self.outcomes[number]) for number in same]

    def says(self, subset: Array) -> str | None:
        """Return the outcome of a set ``(n,) bool``: the symptom, "pass" or ``HIDDEN``.

        The outcome comes from trials of the set. If the device never errs, it may also follow from
        trials of other sets. None if the trials do not show it.
        """
        seen = self.seen(subset)
        if self.flake > 0:
            return self._voted(seen)
        if seen:
            return seen[-1]
        if np.any(self.passed & ~np.any(subset & ~self.changed, axis=1)):
            return "pass"
        hides = not np.all(self.passed | self.broke)
        if not hides and np.any(self.broke & ~np.any(self.changed & ~subset, axis=1)):
            return self.symptom
        return None

    def conflict(self) -> tuple[int, int] | None:
        """Return the first two trials (numbers from 0) that contradict each other: the first shows
        the symptom, the second changes at least the same items and passes. None if no two do.
        """
        passed, broke = np.flatnonzero(self.passed), np.flatnonzero(self.broke)
        more = self.changed[passed]
        for number in broke:
            holds = ~np.any(self.changed[number] & ~more, axis=1)
            if holds.any():
                return int(number), int(passed[np.argmax(holds)])
        return None

    def against(self, groups: Groups) -> list[int]:
        """Return the numbers, from 0, of the trials that contradict an answer, which says that
        exactly these groups break the job.

        A trial contradicts it if it passed although it changes all items of a group, or showed the
        symptom although it changes all items of no group.
        """
        expected = self.expected(groups)
        against = (self.passed & expected) | (self.broke & ~expected)
        return np.flatnonzero(against).tolist()

    def expected(self, groups: Groups) -> Array:
        """Return a mask ``(T,) bool`` of the trials that should show the symptom according to the
        answer ``groups``.
        """
        expected = np.zeros(len(self.outcomes), bool)
        for group in groups:
            expected |= self.changed[:, list(group)].all(axis=1)
        return expected

    def improbable(self, groups: Groups, limit: float = IMPROBABLE) -> bool:
        """True if the probability is below ``limit`` that errors of the device cause as many trials
        that contradict the answer ``groups``, or more.
        """
        trials = int(np.count_nonzero(self.passed | self.broke))
        wrong = len(self.against(groups))
        if self.flake == 0:
            return wrong > 0
        right, errs = math.log1p(-self.flake), math.log(self.flake)
        fewer = 0.0
        for m in range(wrong):
            ways = math.lgamma(trials + 1) - math.lgamma(m + 1) - math.lgamma(trials - m + 1)
            fewer += math.exp(ways + m * errs + (trials - m) * right)
        return 1 - fewer < limit

    def mostly(self, subset: Array, outcomes: Collection[str]) -> bool:
        """True if exactly the set ``subset`` was tried, and most of its trials had one of
        ``outcomes``.
        """
        seen = self.seen(subset)
        return 2 * sum(outcome in outcomes for outcome in seen) > len(seen)

    def hides(self, subset: Array) -> bool:
        """True if exactly this set ``(n,) bool`` was tried, and most trials are ``HIDDEN``."""
        return self.mostly(subset, (HIDDEN,))

    def named(self, outcome: str) -> str:
        """Return what an outcome counts as: the symptom, "pass" or ``HIDDEN``."""
        if outcome in ("pass", self.symptom):
            return outcome
        return HIDDEN

    def _voted(self, seen: Sequence[str]) -> str | None:
        """Return the outcome on which repeated trials of a set agree by Wald's sequential test;
        None while they are too few to decide.
        """
        for outcome in (self.symptom, "pass", HIDDEN):
            if lead(seen, outcome) >= self.votes:
                return outcome
        return None

    @property
    def _odds(self) -> float:
        """The logarithm of the odds of a right outcome: log((1 - rate) / rate), with the flake rate
        limited to the range from ``NEVER`` to 0.4.
        """
        rate = min(max(self.flake, NEVER), 0.4)
        return math.log((1 - rate) / rate)

    @property
    def votes(self) -> int:
        """The lead that decides the outcome of a set: trials with this outcome less trials with
        another.
        """
        return math.ceil(math.log((1 - WRONG) / WRONG) / self._odds)

    @property
    def voted(self) -> int:
        """The number of sets that were tried and whose outcome is decided."""
        return sum(self.says(subset) is not None for subset in np.unique(self.changed, axis=0))

    @property
    def misled(self) -> float:
        """The probability that the decision on the outcome of a set is wrong."""
        return math.exp(-self.votes * self._odds)


def lead(seen: Sequence[str], outcome: str) -> int:
    """Return the number of trials with this outcome less the number of all other trials.

    >>> lead(["fail", "pass", "fail"], "fail"), lead([], "fail")
    (1, 0)
    """
    return 2 * seen.count(outcome) - len(seen)


def subset_of(items: Collection[int], n: int) -> Array:
    """Return a mask ``(n,) bool`` that is True at these items."""
    subset = np.zeros(n, bool)
    subset[list(items)] = True
    return subset
