"""Pairs of items that hang a device unless both change: how suspect each pair is, from what hung and what ran."""

from __future__ import annotations

import numpy as np

EXPECTED = 0.02  # coupled pairs before anything was tried
CLEARED = 0.02  # what is left of a suspicion by a trial that split the pair and did not hang
SURE = 0.97
TIED = 0.5  # pairs more suspect than that are moved together


class Couplings:
    """How probable it is of each pair of n items that a change of one alone hangs.

    A trial that ran clears the pairs it split; one that hung makes them more suspect, by Bayes' rule for causes
    that act independently of each other.
    """

    def __init__(self, n: int) -> None:
        self.n = n
        self.suspect = np.full((n, n), EXPECTED / max(1, n * (n - 1) // 2))
        np.fill_diagonal(self.suspect, 0.0)
        self.hangs = 0

    def tell(self, subset: np.ndarray, hung: bool) -> None:
        """One more trial, ``(n,) bool``: whether it hung."""
        split = np.not_equal.outer(subset, subset)
        if not hung:
            self.suspect[split] *= CLEARED
            return
        self.hangs += 1
        chance = self.chance(subset)
        raised = np.minimum(self.suspect / max(chance, 1e-12), SURE)
        self.suspect = np.where(split, np.maximum(self.suspect, raised), self.suspect)

    @property
    def rates(self) -> np.ndarray:
        """``-log(1 - suspect)`` of each pair ``(n, n)``: these add up over the pairs that a set splits."""
        return -np.log1p(-self.suspect)

    def chance(self, subset: np.ndarray) -> float:
        """The probability that a set hangs."""
        return float(-np.expm1(-(subset @ self.rates @ ~subset)))

    def tied(self) -> list[np.ndarray]:
        """Items in groups that are moved together, in the order of their first."""
        label = np.arange(self.n)
        for i, j in zip(*np.nonzero(np.triu(self.suspect > TIED)), strict=True):
            low, high = sorted((int(label[i]), int(label[j])))
            label[label == high] = low
        return [np.flatnonzero(label == one) for one in np.unique(label)]
