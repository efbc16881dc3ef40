"""The sizes of a training step of one transformer layer, and the letters that axes are written
with."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, fields

from npulab.support.refuse import one_of

MOST = 2 ** 18  # of each size, so that the counts of a step stay within int64
LETTERS = "cefsthd"


@dataclass(frozen=True)
class Step:
    """One training step of a transformer layer: ``dim`` channels, ``hidden`` channels of the
    feed-forward part, ``seq`` positions, ``heads`` of ``dim / heads`` channels each.

    Raises ValueError if a size is not a whole number from 1 to 262144, or if heads do not
    divide dim.

    >>> Step(768, 2048, 512, 12).head
    64
    """

    dim: int
    hidden: int
    seq: int
    heads: int

    def __post_init__(self) -> None:
        for item in fields(self):
            size = getattr(self, item.name)
            try:
                whole = 0 if isinstance(size, bool) else operator.index(size)
            except TypeError:
                whole = 0
            if not 1 <= whole <= MOST:
                raise ValueError(f"{item.name}: got {size!r}, allowed is a whole number from 1 to {MOST}")
            object.__setattr__(self, item.name, whole)
        if self.dim % self.heads:
            raise ValueError(f"heads: got {self.heads}, allowed with dim {self.dim} is a divisor of it")

    @property
    def head(self) -> int:
        """Channels of a head."""
        return self.dim // self.heads

    def size(self, letter: str) -> int:
        """The size of an axis: c and e dim, f hidden, s and t seq, h heads, d head; LookupError for
        another."""
        sizes = {"c": self.dim, "e": self.dim, "f": self.hidden, "s": self.seq, "t": self.seq, "h": self.heads,
                 "d": self.head}
        return sizes[one_of("axis", letter, sizes)]

    def axes(self, letters: str) -> tuple[int, ...]:
        """The size of each axis.

        >>> Step(768, 2048, 512, 12).axes("hds")
        (12, 64, 512)
        """
        return tuple(self.size(letter) for letter in letters)

    def shape(self, letters: str) -> tuple[int, ...]:
        """The shape a tensor is kept in: the channels of all heads are one axis, head by head.

        >>> Step(768, 2048, 512, 12).shape("hds")
        (768, 512)
        """
        return self.axes(letters.replace("hd", "c"))

    def count(self, letters: str) -> int:
        """The number of elements."""
        return math.prod(self.axes(letters))
