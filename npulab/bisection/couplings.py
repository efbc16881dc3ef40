"""What hangs a device: pairs of items of which one changes alone, and items that change at all."""

from __future__ import annotations

import numpy as np

EXPECTED = 3.0  # coupled pairs, once something hung
LIKELIEST = 0.2  # of a pair, before anything was tried
CLEARED = 1e-3  # what is left of a suspicion by a trial that split the pair and ran
ROUNDS = 4  # of passing on, per trial, what those that hung say of each other's pairs
LARGEST = 12.0  # log odds
LEAST = 1e-4  # hangs by chance, also of a device that never errs
TIED = 0.7  # pairs more suspect than that are moved together


class Couplings:
    """How probable it is of each pair of n items that a change of one alone hangs: ``suspect`` ``(n + 1, n + 1)``.

    The last item stands for what never changes: paired with it, an item hangs whatever else changes.  A trial that
    ran clears the pairs it split.  One that hung was hung by a pair it split, or by chance at the rate ``flake``:
    the fewer pairs are left that nothing cleared, the more suspect each is (belief propagation over causes that act
    independently).
    """

    def __init__(self, n: int, flake: float = 0.0) -> None:
        self.n = n
        self.suspect = np.zeros((n + 1, n + 1))
        self._chance = -np.log1p(-max(flake, LEAST))
        self._pairs = np.triu_indices(n + 1, 1)
        self._cleared = np.zeros(len(self._pairs[0]))  # trials that ran and split the pair
        self._split: list[np.ndarray] = []  # (pairs,) of each trial that hung
        self._said: list[np.ndarray] = []  # log odds that each of those adds to each pair

    @property
    def hangs(self) -> int:
        return len(self._split)

    def tell(self, subset: np.ndarray, hung: bool) -> None:
        """One more trial, ``(n,) bool``: whether it hung."""
        i, j = self._pairs
        wide = np.append(subset, False)
        split = wide[i] != wide[j]
        if hung:
            self._split.append(split)
            self._said.append(np.zeros(len(split)))
        else:
            self._cleared += split
        if self._split:
            self._infer()

    def _infer(self) -> None:
        prior = np.log(min(EXPECTED / len(self._cleared), LIKELIEST)) + np.log(CLEARED) * np.minimum(self._cleared, 3)
        split, said = np.array(self._split), np.array(self._said)
        for _ in range(ROUNDS):
            others = np.minimum(prior + said.sum(axis=0) - said, LARGEST)
            rate = np.where(split, np.logaddexp(0, others), 0.0)  # -log(1 - p) of each pair without this trial
            total = rate.sum(axis=1, keepdims=True) + self._chance
            heard = np.where(split, -np.log(-np.expm1(-np.maximum(total - rate, self._chance))), 0.0)
            said = (said + heard) / 2  # by halves: two pairs that explain the same would take turns
        self._said = list(said)
        suspect = 1 / (1 + np.exp(-np.clip(prior + said.sum(axis=0), -40, LARGEST)))
        self.suspect[self._pairs] = suspect
        self.suspect.T[self._pairs] = suspect

    def rates(self, sets: np.ndarray) -> np.ndarray:
        """``-log(1 - chance of a hang)`` of sets ``(Q, n) bool``."""
        rates = -np.log1p(-self.suspect)
        return np.asarray(((sets @ rates[:-1, :-1]) * ~sets).sum(axis=1) + sets @ rates[-1, :-1])

    def chance(self, subset: np.ndarray) -> float:
        """The probability that a set hangs; 0 as long as nothing did."""
        return float(-np.expm1(-self.rates(subset[None])[0]))

    def tied(self) -> list[np.ndarray]:
        """Items in groups that are moved together, in the order of their first; those that always hang are left out."""
        label = np.arange(self.n + 1)
        for i, j in zip(*np.nonzero(np.triu(self.suspect > TIED)), strict=True):
            low, high = sorted((int(label[i]), int(label[j])))
            label[label == low] = high
        return [np.flatnonzero(label == one) for one in dict.fromkeys(label.tolist()) if one != self.n]
