"""The causes of hangs: pairs of items of which a trial changed only one, and single items that hang
whenever they are changed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy import ndarray as Array

# A pair is coupled if changing only one of its two items hangs the device.
# The number of coupled pairs that are expected among all pairs.
EXPECTED = 3.0
# The highest probability that a pair is coupled, before the first trial.
LIKELIEST = 0.2
# If a trial split a pair and did not hang, the odds of the pair are multiplied by this.
CLEARED = 1e-3
# The rounds of belief propagation after each trial.
ROUNDS = 4
# The highest log odds of a pair, so that a trial can still refute that it is coupled.
LARGEST = 12.0
# The lowest rate of hangs by chance, even if the device is said never to err.
LEAST = 1e-4
# Pairs with a lower probability are left out of sums, to save time.
IGNORED = 1e-5
# The items of pairs with a higher probability are changed together.
TIED = 0.7
# A unit is kept whole after this many trials that split only this unit, if all of them hung.
TEARS = 3
# The probability of the pairs inside a unit that is kept whole.
WHOLE = 0.999


class Couplings:
    """The probability, for each pair of n items, that changing only one of the two hangs the
    device.

    ``suspect (n + 1, n + 1)`` holds these probabilities. The last item is a dummy that no trial
    changes: an item that is coupled to it hangs whenever it is changed. A trial splits a pair if it
    changes only one of the two.

    A trial that did not hang clears the pairs that it split. A hang has a cause: a pair that the
    trial split, or chance at the rate ``flake``. The fewer split pairs are not cleared yet, the
    more suspect is each of them (belief propagation over independent causes). Pairs inside one of
    ``units`` (lists of items) are suspect from the beginning.
    """

    def __init__(self, n: int, flake: float = 0.0, units: Sequence[Sequence[int]] = ()) -> None:
        self.n = n
        self.units = [np.array(unit) for unit in units if len(unit) > 1]
        # for each unit: how many trials split only this unit and hung; -1 once a trial that split
        # it did not hang
        self._hung = [0] * len(self.units)
        self.suspect = np.zeros((n + 1, n + 1))
        self._chance = -np.log1p(-max(flake, LEAST))
        self._pairs = np.triu_indices(n + 1, 1)
        # for each pair: how many trials split it and did not hang
        self._cleared = np.zeros(len(self._pairs[0]))
        # for each trial that hung: a mask of the pairs that it split
        self._split: list[Array] = []
        # for each trial that hung: the log odds that it adds to each pair
        self._messages: list[Array] = []
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
        """True if hangs are expected, because a unit was declared or a trial hung."""
        return bool(self.units or self._split)

    @property
    def hangs(self) -> int:
        return len(self._split)

    def tell(self, subset: Array, hung: bool) -> None:
        """Take in one more trial: its changed items ``(n,) bool``, and whether it hung."""
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
        # three trials that clear a pair divide its odds by 1e9; further ones change nothing
        prior = self._prior + np.log(CLEARED) * np.minimum(self._cleared, 3)
        shape = (len(self._split), len(prior))
        split = np.array(self._split, bool).reshape(shape)
        messages = np.array(self._messages, float).reshape(shape)
        rounds = 0
        if self._split:
            rounds = ROUNDS
        for _ in range(rounds):
            others = np.minimum(prior + messages.sum(axis=0) - messages, LARGEST)
            # -log(1 - p); p is the probability of each pair without what this trial adds to it
            rate = np.where(split, np.logaddexp(0, others), 0.0)
            total = rate.sum(axis=1, keepdims=True) + self._chance
            rest = np.maximum(total - rate, self._chance)
            received = np.where(split, -np.log(-np.expm1(-rest)), 0.0)
            # new messages count half: otherwise two pairs that explain the same trial would be
            # suspect in turn
            messages = (messages + received) / 2
        self._messages = list(messages)
        suspect = 1 / (1 + np.exp(-np.clip(prior + messages.sum(axis=0), -40, LARGEST)))
        self.suspect[self._pairs] = suspect
        self.suspect.T[self._pairs] = suspect
        if not self._split:
            # no trial hung: only the pairs of declared units stay suspect
            self.suspect[self.suspect < LIKELIEST / 2] = 0.0
        for unit, hung in zip(self.units, self._hung, strict=True):
            if hung >= TEARS:
                self.suspect[np.ix_(unit, unit)] = WHOLE
        np.fill_diagonal(self.suspect, 0.0)

    def rates(self, sets: Array) -> Array:
        """Return ``-log(1 - p)`` for each of the sets ``(Q, n) bool``, where p is the probability
        that the set hangs.
        """
        i, j = np.nonzero(np.triu(self.suspect > IGNORED))
        wide = np.concatenate([sets, np.zeros((len(sets), 1), bool)], axis=1)
        split = (wide[:, i] != wide[:, j]).astype(float)
        return np.einsum("qp,p->q", split, -np.log1p(-self.suspect[i, j]))

    def chance(self, subset: Array) -> float:
        """Return the probability that a set ``(n,) bool`` hangs; 0 as long as no trial hung and no
        unit was declared.
        """
        return float(-np.expm1(-self.rates(subset[None])[0]))

    def tied(self, units: bool = False) -> list[Array]:
        """Return groups of items that trials change together, in the order of their first items.
        Items that hang whenever they are changed are left out.

        With ``units``, the items of a declared unit are one group, unless a trial that split the
        unit did not hang.
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
