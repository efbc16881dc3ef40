"""Streams of items between the units of a device that stays up, and the items of a stream that stay
for the next job.

A unit marks the last item of its job. The unit that takes the items counts them by its own
registers: it takes no item after a mark, and leaves items in the stream if it has enough before the
mark comes. Source: the RTL of nv_small (CACC_delivery_ctrl, SDP_cmux, SDP_core, SDP_rdma).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy import ndarray as Array


@dataclass
class Part:
    """``count`` items that a unit gives. ``values(start, stop)`` returns the items from ``start``
    to before ``stop``, ``(stop - start, ...)``. If ``marked``, the last item ends the unit's job.
    """

    count: int
    values: Callable[[int, int], Array]
    marked: bool = True
    comes: bool = True
    taken: int = 0

    @property
    def left(self) -> int:
        return self.count - self.taken

    def take(self, count: int) -> Array:
        """Return the next ``count`` items of the part; the part must have at least this many."""
        self.taken += count
        return self.values(self.taken - count, self.taken)


@dataclass
class Stream:
    """The items that wait to enter a unit, as a list of parts."""

    parts: deque[Part] = field(default_factory=deque)

    def add(self, part: Part) -> None:
        self.parts.append(part)

    def available(self) -> int:
        """Return the number of items up to the next mark."""
        count = 0
        for part in self.parts:
            count += part.left
            if part.marked:
                break
        return count

    def take(self, count: int) -> Array:
        """Return the next ``count`` items of the stream; it must have at least this many."""
        found: list[Array] = []
        while count:
            part = self.parts[0]
            size = min(count, part.left)
            found.append(part.take(size))
            count -= size
            if not part.left:
                self.parts.popleft()
        return np.concatenate(found)
