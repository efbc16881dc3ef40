"""What hangs a device: pairs of items if one changes without the other, and items that change at
all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy import ndarray as Array

EXPECTED = 3.0  # coupled pairs, once something hung
LIKELIEST = 0.2  # probability of a coupled pair before the first trial, at most
CLEARED = 1e-3  # factor on a suspicion by a trial that split the pair and ran
ROUNDS = 4  # of belief propagation per trial
LARGEST = 12.0  # log odds of a coupled pair, at most, so that a trial can still refute it
LEAST = 1e-4  # rate of hangs by chance, also of a device that never errs
IGNORED = 1e-5  # a less suspect pair is not counted: it saves time
TIED = 0.7  # more suspect pairs are moved together
TEARS = 3  # hangs after which a unit that never ran torn apart is left whole
WHOLE = 0.999  # suspicion of the pairs of such a unit


class Couplings:
    """The probability, for each pair of n items, that changing only one of the two hangs the
    device.

    ``suspect (n + 1, n + 1)`` holds these probabilities. The last item stands for what never
    changes: paired with it, an item hangs whatever else changes. A trial that ran clears the pairs
    that it split. A trial that hung was hung by a pair that it split, or by chance at the rate
    ``flake``: the fewer of its pairs are not cleared, the more suspect each of these is (belief
    propagation over causes that act independently). Pairs inside one of ``units`` (lists of items)
    are suspect from the beginning.
    """

    def __init__(self, n: int, flake: float = 0.0, units: Sequence[Sequence[int]] = ()) -> None:
        self.n = n
        self.units = [np.array(unit) for unit in units if len(unit) > 1]
        # by unit: trials that tore this unit alone and hung; -1 once such a trial ran
        self._hung = [0] * len(self.units)
        self.suspect = np.zeros((n + 1, n + 1))
        self._chance = -np.log1p(-max(flake, LEAST))
        self._pairs = np.triu_indices(n + 1, 1)
        self._cleared = np.zeros(len(self._pairs[0]))  # trials that ran and split the pair
        self._split: list[Array] = []  # (pairs,) of each trial that hung
        self._messages: list[Array] = []  # log odds that each of those adds to each pair
        count = len(self._cleared)
        self._prior = np.full(count, np.log(min(EXPECTED / count, LIKELIEST)))
        label = np.arange(n + 1)
        for unit in self.units:
            label[unit] = unit[0]
        self._prior[label[self._pairs[0]] == label[self._pairs[1]]] = np.log(LIKELIEST)
        if self.units:
            self._infer()

    @property
    def known(self) -> bool:
        """True if a hang is possible: a unit was declared, or a trial hung."""
        return bool(self.units or self._split)

    @property
    def hangs(self) -> int:
        return len(self._split)

    def tell(self, subset: Array, hung: bool) -> None:
        """Take in one more trial ``(n,) bool`` and whether it hung."""
        i, j = self._pairs
        wide = np.append(subset, False)
        split = wide[i] != wide[j]
        if hung:
            self._split.append(split)
            self._messages.append(np.zeros(len(split)))
        else:
            self._cleared += split
        torn = []
        for number, unit in enumerate(self.units):
            if 0 < np.count_nonzero(subset[unit]) < len(unit):
                torn.append(number)
        for number in torn:
            if not hung:
                self._hung[number] = -1
            elif len(torn) == 1 and self._hung[number] >= 0:
                self._hung[number] += 1
        if self.known:
            self._infer()

    def _infer(self) -> None:
        prior = self._prior + np.log(CLEARED) * np.minimum(self._cleared, 3)
        shape = (len(self._split), len(prior))
        split = np.array(self._split, bool).reshape(shape)
        messages = np.array(self._messages, float).reshape(shape)
        rounds = 0
        if self._split:
            rounds = ROUNDS
        for _ in range(rounds):
            others = np.minimum(prior + messages.sum(axis=0) - messages, LARGEST)
            # -log(1 - p) of each pair without this trial
            rate = np.where(split, np.logaddexp(0, others), 0.0)
            total = rate.sum(axis=1, keepdims=True) + self._chance
            rest = np.maximum(total - rate, self._chance)
            received = np.where(split, -np.log(-np.expm1(-rest)), 0.0)
            # by halves: two pairs that explain the same trial would take turns
            messages = (messages + received) / 2
        self._messages = list(messages)
        suspect = 1 / (1 + np.exp(-np.clip(prior + messages.sum(axis=0), -40, LARGEST)))
        self.suspect[self._pairs] = suspect
        self.suspect.T[self._pairs] = suspect
        if not self._split:
            # nothing hung: only declared units are feared
            self.suspect[self.suspect < LIKELIEST / 2] = 0.0
        for unit, hung in zip(self.units, self._hung, strict=True):
            if hung >= TEARS:
                self.suspect[np.ix_(unit, unit)] = WHOLE
        np.fill_diagonal(self.suspect, 0.0)

    def rates(self, sets: Array) -> Array:
        """Return ``-log(1 - chance of a hang)`` of sets ``(Q, n) bool``."""
        i, j = np.nonzero(np.triu(self.suspect > IGNORED))
        wide = np.concatenate([sets, np.zeros((len(sets), 1), bool)], axis=1)
        split = (wide[:, i] != wide[:, j]).astype(float)
        return np.einsum("qp,p->q", split, -np.log1p(-self.suspect[i, j]))

    def chance(self, subset: Array) -> float:
        """Return the probability that a set hangs; 0 as long as nothing did."""
        return float(-np.expm1(-self.rates(subset[None])[0]))

    def tied(self, units: bool = False) -> list[Array]:
        """Return the groups of items that are moved together, in the order of their first items;
        items that always hang are left out.

        With ``units``, declared units that never ran apart are together too.
        """
        label = np.arange(self.n + 1)
        together = np.triu(self.suspect > TIED)
        if units:
            for unit, hung in zip(self.units, self._hung, strict=True):
                together[unit[:-1], unit[1:]] |= hung >= 0
        for i, j in np.argwhere(together):
            low, high = sorted((label[i], label[j]))
            label[label == low] = high
        groups = []
        for number in dict.fromkeys(label.tolist()):
            if number != self.n:
                groups.append(np.flatnonzero(label == number))
        return groups
