"""Pairs of items that hang a device unless both change: how suspect each pair is, from what hung and what ran."""

from __future__ import annotations

import numpy as np

CLEARED = 1e-3  # what is left of a suspicion by a trial that split the pair and ran
ROUNDS = 2  # of passing on, per trial, what those that hung say of each other's pairs
LARGEST = 12.0  # log odds
TIED = 0.7  # pairs more suspect than that are moved together


class Couplings:
    """How probable it is of each pair of n items that a change of one alone hangs: ``suspect`` ``(n, n)``.

    A trial that ran clears the pairs it split.  One that hung was hung by a pair it split: the fewer of those are
    left that nothing cleared, the more suspect each is (belief propagation over causes that act independently).
    """

    def __init__(self, n: int) -> None:
        self.n = n
        self.suspect = np.zeros((n, n))
        self._pairs = np.triu_indices(n, 1)
        self._cleared = np.zeros(len(self._pairs[0]))  # trials that ran and split the pair
        self._split: list[np.ndarray] = []  # (pairs,) of each trial that hung
        self._said: list[np.ndarray] = []  # log odds that each of those adds to each pair

    @property
    def hangs(self) -> int:
        return len(self._split)

    def tell(self, subset: np.ndarray, hung: bool) -> None:
        """One more trial, ``(n,) bool``: whether it hung."""
        i, j = self._pairs
        split = subset[i] != subset[j]
        if hung:
            self._split.append(split)
            self._said.append(np.zeros(len(split)))
        else:
            self._cleared += split
        if self._split and len(i):
            self._infer()

    def _infer(self) -> None:
        prior = np.log((1 + self.hangs) / len(self._cleared)) + np.log(CLEARED) * np.minimum(self._cleared, 3)
        split, said = np.array(self._split), np.array(self._said)
        for _ in range(ROUNDS):
            others = np.minimum(prior + said.sum(axis=0) - said, LARGEST)
            rate = np.where(split, np.logaddexp(0, others), 0.0)  # -log(1 - p) of each pair without this trial
            total = rate.sum(axis=1, keepdims=True)
            said = np.where(split, -np.log(-np.expm1(-np.maximum(total - rate, 1e-9))), 0.0)
        self._said = list(said)
        suspect = 1 / (1 + np.exp(-np.clip(prior + said.sum(axis=0), -40, LARGEST)))
        self.suspect[self._pairs] = suspect
        self.suspect.T[self._pairs] = suspect

    @property
    def rates(self) -> np.ndarray:
        """``-log(1 - suspect)`` of each pair ``(n, n)``: these add up over the pairs that a set splits."""
        return -np.log1p(-self.suspect)

    def chance(self, subset: np.ndarray) -> float:
        """The probability that a set hangs; 0 as long as nothing did."""
        return float(-np.expm1(-(subset @ self.rates @ ~subset)))

    def tied(self) -> list[np.ndarray]:
        """Items in groups that are moved together, in the order of their first."""
        label = np.arange(self.n)
        for i, j in zip(*np.nonzero(np.triu(self.suspect > TIED)), strict=True):
            low, high = sorted((int(label[i]), int(label[j])))
            label[label == high] = low
        return [np.flatnonzero(label == one) for one in np.unique(label)]
