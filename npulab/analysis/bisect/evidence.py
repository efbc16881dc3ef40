"""The outcomes of sets of items, as trials show them, and the trials that contradict an answer."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy import ndarray as Array

from npulab.analysis.bisect.kinds import Groups

WRONG = 1e-3  # probability that a question repeated by the sequential test is answered wrongly
NEVER = 5e-4  # flake rate of a device that is said never to err, in the sequential test
HIDDEN = "hidden"  # outcome of a set whose symptom another failure may hide
# an answer that more trials contradict than errors do with this probability is not reported
IMPROBABLE = 1e-3


@dataclass(frozen=True)
class Evidence:
    """Trials in order: the items that each one changed ``(T, n) bool``, and its outcome.

    ``symptom`` is the outcome that is searched for, "fail" or "hang". The other of the two is
    ``HIDDEN``: a job that hangs does not show whether it would have failed, and one that is refused
    does not show whether it would have hung. ``flake`` is how often an outcome is wrong; at 0 a
    set is not asked twice, and a set inside one that passed passes too.
    """

    changed: Array
    outcomes: tuple[str, ...]
    symptom: str
    flake: float = 0.0

    @classmethod
    def of(
        cls, trials: Iterable[tuple[Array, str]], n: int, symptom: str, flake: float = 0.0
    ) -> Evidence:
        """Return the evidence of trials of ``n`` items, for a symptom."""
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
        """Return the outcome of a set ``(n,) bool``: the symptom, "pass", ``HIDDEN``, or None if
        that is not known yet."""
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
        """Return the first two trials (numbers from 0) that contradict each other: one shows the
        symptom, and one that changes as much or more passes; None if there are none."""
        passed, broke = np.flatnonzero(self.passed), np.flatnonzero(self.broke)
        more = self.changed[passed]
        for number in broke:
            holds = ~np.any(self.changed[number] & ~more, axis=1)
            if holds.any():
                return int(number), int(passed[np.argmax(holds)])
        return None

    def against(self, groups: Groups) -> list[int]:
        """Return the trials (numbers from 0) that contradict the answer that exactly these groups
        show the symptom.

        A trial contradicts it that passed although it changes all of a group, that shows the
        symptom although it changes no group whole, or in which a part of a group shows the symptom.
        """
        expected = self.expected(groups)
        against = (self.passed & expected) | (self.broke & ~expected)
        return np.flatnonzero(against).tolist()

    def expected(self, groups: Groups) -> Array:
        """Return the trials in which the answer expects the symptom, ``(T,) bool``."""
        expected = np.zeros(len(self.outcomes), bool)
        for group in groups:
            expected |= self.changed[:, list(group)].all(axis=1)
        return expected

    def improbable(self, groups: Groups, limit: float = IMPROBABLE) -> bool:
        """True if errors explain so many contradicting trials with less than this probability."""
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
        """True if this exact set was tried and most of its trials had one of these outcomes."""
        seen = self.seen(subset)
        return 2 * sum(outcome in outcomes for outcome in seen) > len(seen)

    def hides(self, subset: Array) -> bool:
        """True if this exact set ``(n,) bool`` was tried and most of its trials ended in the other
        way, which hides the symptom.
        """
        return self.mostly(subset, (HIDDEN,))

    def named(self, outcome: str) -> str:
        """Return the outcome as the search sees it: the symptom, "pass" or ``HIDDEN``."""
        if outcome in ("pass", self.symptom):
            return outcome
        return HIDDEN

    def _voted(self, seen: Sequence[str]) -> str | None:
        """Return the outcome on which repeated trials agree by Wald's sequential test; None while
        the test is open.
        """
        for outcome in (self.symptom, "pass", HIDDEN):
            if lead(seen, outcome) >= self.votes:
                return outcome
        return None

    @property
    def _odds(self) -> float:
        """How much more probable a right outcome is than a wrong one, as a logarithm."""
        rate = min(max(self.flake, NEVER), 0.4)
        return math.log((1 - rate) / rate)

    @property
    def votes(self) -> int:
        """The lead (agreeing less other trials) that decides the outcome of a set."""
        return math.ceil(math.log((1 - WRONG) / WRONG) / self._odds)

    @property
    def voted(self) -> int:
        """The number of sets that their trials decide."""
        return sum(self.says(subset) is not None for subset in np.unique(self.changed, axis=0))

    @property
    def misled(self) -> float:
        """The probability that such a decision is wrong."""
        return math.exp(-self.votes * self._odds)


def lead(seen: Sequence[str], outcome: str) -> int:
    """Return the number of trials with this outcome less the number of all other trials.

    >>> lead(["fail", "pass", "fail"], "fail"), lead([], "fail")
    (1, 0)
    """
    return 2 * seen.count(outcome) - len(seen)


def subset_of(items: Collection[int], n: int) -> Array:
    """Return the set ``(n,) bool`` that changes these items."""
    subset = np.zeros(n, bool)
    subset[list(items)] = True
    return subset
