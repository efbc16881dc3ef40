"""Prefix bisection with a sequential test: one smallest failing set after the other, whatever their
number and size.

It needs more trials than group testing and assumes only that more changes never mend what fewer
broke.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence

import numpy as np

WRONG = 1e-3  # probability that a question repeated by the sequential test is answered wrongly
Asking = Generator[tuple[int, ...], bool, bool]


class Prefix:
    """The smallest failing sets of n items, disjoint ones, one by one.

    ``ask`` gives the set to try, None when all are found; ``groups`` are those found so far.

    >>> search = Prefix(9)
    >>> while (subset := search.ask()) is not None:
    ...     search.tell(bool(subset[2] and subset[7]) or bool(subset[4]))
    >>> search.groups
    ((4,), (2, 7))
    """

    def __init__(self, n: int, flake_rate: float = 0.0) -> None:
        rate = min(max(flake_rate, 5e-4), 0.4)
        self.n, self._step = n, math.log((1 - rate) / rate)
        self._found: list[tuple[int, ...]] = []
        self._steps = self._all()
        self._asked: tuple[int, ...] | None = next(self._steps)

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        return tuple(self._found)

    def ask(self) -> np.ndarray | None:
        """The set to try ``(n,) bool``, None when there is no more to find."""
        if self._asked is None:
            return None
        subset = np.zeros(self.n, bool)
        subset[list(self._asked)] = True
        return subset

    def tell(self, failed: bool) -> None:
        """The outcome of what was asked."""
        try:
            self._asked = self._steps.send(failed)
        except StopIteration:
            self._asked = None

    def _sure(self, items: Sequence[int]) -> Asking:
        """Ask the same until the odds are past the limit (Wald's test)."""
        odds, limit = 0.0, math.log((1 - WRONG) / WRONG)
        while abs(odds) < limit:
            odds += self._step if (yield tuple(items)) else -self._step
        return odds > 0

    def _all(self) -> Generator[tuple[int, ...], bool, None]:
        rest = list(range(self.n))
        while rest and (yield from self._sure(rest)):
            found: list[int] = []
            pool = rest
            while not (found and (yield from self._sure(found))):
                if not pool:
                    return  # what failed once does so no more
                low, high = 0, len(pool)  # found and pool[:high] fail, found and pool[:low] do not
                while high - low > 1:
                    middle = (low + high) // 2
                    if (yield from self._sure([*found, *pool[:middle]])):
                        high = middle
                    else:
                        low = middle
                found.append(pool[high - 1])
                pool = pool[:high - 1]
            self._found.append(tuple(sorted(found)))
            rest = [item for item in rest if item not in found]
