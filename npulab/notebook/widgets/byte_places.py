"""Places in a buffer as traits: a byte, a run of bytes, the two ends of a selection; their owner
has a ``size``."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import traitlets


class Offset(traitlets.TraitType[int, Any]):
    """A byte of the buffer; its owner says how many in ``size``."""

    default_value = 0
    least = 0

    def validate(self, obj: Any, value: Any) -> int:
        try:
            offset = operator.index(value)
        except TypeError:
            raise ValueError(f"{self.name}: got {value!r}, allowed is a whole number") from None
        if not self.least <= offset < obj.size:
            raise ValueError(f"{self.name}: got byte {offset}, allowed is {self.least} to {obj.size - 1}")
        return offset


class Pointed(Offset):
    """A byte of the buffer, or -1 for none."""

    default_value = least = -1


class Ends(traitlets.TraitType[tuple[int, int], Any]):
    """Where a selection began and where the cursor is: two bytes of the buffer."""

    default_value = (0, 0)

    def validate(self, obj: Any, value: Iterable[Any]) -> tuple[int, int]:
        try:
            anchor, cursor = (operator.index(number) for number in value)
        except (TypeError, ValueError):
            raise ValueError(f"{self.name}: got {value!r}, allowed is (anchor, cursor)") from None
        for offset in (anchor, cursor):
            if not 0 <= offset < obj.size:
                raise ValueError(f"{self.name}: got byte {offset}, allowed is 0 to {obj.size - 1}")
        return anchor, cursor


class Span(traitlets.TraitType[tuple[int, int], Any]):
    """A run of bytes: (offset, size)."""

    default_value = (0, 1)

    def validate(self, obj: Any, value: Iterable[Any]) -> tuple[int, int]:
        try:
            first, size = (operator.index(number) for number in value)
        except (TypeError, ValueError):
            raise ValueError(f"{self.name}: got {value!r}, allowed is (offset, size)") from None
        if first < 0 or not 1 <= size <= obj.size - first:
            raise ValueError(f"{self.name}: got {size} bytes at {first}, allowed is 1 or more within {obj.size}")
        return first, size


def between(ends: tuple[int, int]) -> tuple[int, int]:
    """The run of bytes from one end to the other: (offset, size).

    >>> between((7, 4))
    (4, 4)
    """
    return min(ends), abs(ends[1] - ends[0]) + 1
