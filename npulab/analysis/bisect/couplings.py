"""What hangs a device: pairs of items of which one changes alone, and items that change at all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

EXPECTED = 3.0  # coupled pairs, once something hung
LIKELIEST = 0.2  # of a pair, before anything was tried
CLEARED = 1e-3  # what is left of a suspicion by a trial that split the pair and ran
ROUNDS = 4  # of passing on, per trial, what those that hung say of each other's pairs
LARGEST = 12.0  # log odds
LEAST = 1e-4  # hangs by chance, also of a device that never errs
IGNORED = 1e-5  # so little suspect a pair is not counted
TIED = 0.7  # pairs more suspect than that are moved together
TEARS = 3  # hangs of a unit torn apart, that never ran so, until it is left whole
WHOLE = 0.999


class Couplings:
    """How probable it is of each pair of n items that a change of one alone hangs: ``suspect`` ``(n
    + 1, n + 1)``.

    The last item stands for what never changes: paired with it, an item hangs whatever else
    changes.  A trial that ran clears the pairs it split.  One that hung was hung by a pair it
    split, or by chance at the rate ``flake``: the fewer pairs are left that nothing cleared, the
    more suspect each is (belief propagation over causes that act independently).  Pairs inside one
    of ``units`` (lists of items) are suspect from the beginning.
    """

    def __init__(self, n: int, flake: float = 0.0, units: Sequence[Sequence[int]] = ()) -> None:
        self.n = n
        self.units = [np.array(unit) for unit in units if len(unit) > 1]
        self._hung = [0] * len(
            self.units
        )  # trials that tore this unit alone and hung; -1 once one ran
        self.suspect = np.zeros((n + 1, n + 1))
        self._chance = -np.log1p(-max(flake, LEAST))
        self._pairs = np.triu_indices(n + 1, 1)
        self._cleared = np.zeros(len(self._pairs[0]))  # trials that ran and split the pair
        self._split: list[np.ndarray] = []  # (pairs,) of each trial that hung
        self._messages: list[np.ndarray] = []  # log odds that each of those adds to each pair
        self._prior = np.full(
            len(self._pairs[0]), np.log(min(EXPECTED / len(self._pairs[0]), LIKELIEST))
        )
        label = np.arange(n + 1)
        for unit in self.units:
            label[unit] = unit[0]
        self._prior[label[self._pairs[0]] == label[self._pairs[1]]] = np.log(LIKELIEST)
        if self.units:
            self._infer()

    @property
    def known(self) -> bool:
        """Whether there is anything to fear: a unit, or a trial that hung."""
        return bool(self.units or self._split)

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
            self._messages.append(np.zeros(len(split)))
        else:
            self._cleared += split
        torn = [
            number
            for number, unit in enumerate(self.units)
            if 0 < np.count_nonzero(subset[unit]) < len(unit)
        ]
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
        split, messages = (
            np.array(self._split, bool).reshape(shape),
            np.array(self._messages, float).reshape(shape),
        )
        for _ in range(ROUNDS if self._split else 0):
            others = np.minimum(prior + messages.sum(axis=0) - messages, LARGEST)
            rate = np.where(
                split, np.logaddexp(0, others), 0.0
            )  # -log(1 - p) of each pair without this trial
            total = rate.sum(axis=1, keepdims=True) + self._chance
            received = np.where(
                split, -np.log(-np.expm1(-np.maximum(total - rate, self._chance))), 0.0
            )
            messages = (
                messages + received
            ) / 2  # by halves: two pairs that explain the same would take turns
        self._messages = list(messages)
        suspect = 1 / (1 + np.exp(-np.clip(prior + messages.sum(axis=0), -40, LARGEST)))
        self.suspect[self._pairs] = suspect
        self.suspect.T[self._pairs] = suspect
        if not self._split:
            self.suspect[self.suspect < LIKELIEST / 2] = (
                0.0  # nothing hung: only what was declared is feared
            )
        for unit, hung in zip(self.units, self._hung, strict=True):
            if hung >= TEARS:
                self.suspect[np.ix_(unit, unit)] = WHOLE
        np.fill_diagonal(self.suspect, 0.0)

    def rates(self, sets: np.ndarray) -> np.ndarray:
        """``-log(1 - chance of a hang)`` of sets ``(Q, n) bool``."""
        i, j = np.nonzero(np.triu(self.suspect > IGNORED))
        wide = np.concatenate([sets, np.zeros((len(sets), 1), bool)], axis=1)
        return np.einsum(
            "qp,p->q", (wide[:, i] != wide[:, j]).astype(float), -np.log1p(-self.suspect[i, j])
        )

    def chance(self, subset: np.ndarray) -> float:
        """The probability that a set hangs; 0 as long as nothing did."""
        return float(-np.expm1(-self.rates(subset[None])[0]))

    def tied(self, units: bool = False) -> list[np.ndarray]:
        """Items in groups that are moved together, in the order of their first; those that always
        hang are left out.

        With ``units``, what was declared and never ran apart is together too.
        """
        label = np.arange(self.n + 1)
        together = np.triu(self.suspect > TIED)
        for unit, hung in zip(self.units, self._hung, strict=True) if units else ():
            together[unit[:-1], unit[1:]] |= hung >= 0
        for i, j in zip(*np.nonzero(together), strict=True):
            low, high = sorted((int(label[i]), int(label[j])))
            label[label == low] = high
        return [
            np.flatnonzero(label == one) for one in dict.fromkeys(label.tolist()) if one != self.n
        ]
