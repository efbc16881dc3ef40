"""Fields and registers as ``c_macros`` collects them from the macros of a C header, and the runs of
bits in a mask.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from npulab.registers.fields import WORD_BITS

ALL = 2**64 - 1


class Lost(NamedTuple):
    """A thing of the file that is not in the table, or not as the file says: its kind (such as
    "register", "field" or "declaration"), its name, its position in the text, and the reason.
    """

    kind: str
    name: str
    position: int
    reason: str


class NamedNumber(NamedTuple):
    """A number that has a name, as a value of a field. ``in_place`` is True if the number certainly
    has its bits where they are in the register; if it is False, it may also be counted from bit 0.
    """

    value: int
    in_place: bool


@dataclass(slots=True)
class Bits:
    """A field as its macros describe it; a number that no macro states is -1.

    ``mask``, ``low`` (the lowest bit), ``width`` and ``high`` (the highest bit) are as the macros
    state them. ``strict`` is True for envytools' spelling, in which a named value has
    its bits where they are in the register. ``guess`` is True if the width is a guess. ``values``
    has the named values.
    """

    name: str
    position: int
    mask: int = -1
    low: int = -1
    width: int = -1
    high: int = -1
    strict: bool = False
    guess: bool = False
    values: dict[str, NamedNumber] = field(default_factory=dict)

    @property
    def bits(self) -> int:
        """The field's mask, with its bits where they are in the register. It is -1 if it is
        unknown, and wider than 64 bits if a number of the field is too large for any register.
        """
        if max(self.low, self.width, self.high) > WORD_BITS * 2:
            return ALL + 1
        if self.mask >= 0:
            # a stated mask with bits below the lowest bit of the field is counted from bit 0
            if self.low > 0 and self.mask % 2**self.low:
                return self.mask * 2**self.low
            return self.mask
        high = self.high
        if self.width > 0:
            high = self.low + self.width - 1
        if high >= self.low >= 0:
            return 2 ** (high + 1) - 2**self.low
        return -1

    @property
    def lowest(self) -> int:
        """The number of the field's lowest bit; -1 if it is unknown."""
        bits = self.bits
        if bits > 0:
            return lowest_bit(bits)
        return self.low


@dataclass(slots=True)
class Register:
    """A register: the macro of its offset, its name in the table, and its fields and values."""

    macro: str
    name: str
    offset: int  # the offset is in bytes
    position: int  # the macro begins at this character of the text
    # An array has, for each dimension, the number of elements and the bytes from one to the next.
    lengths: tuple[tuple[int, int], ...] = ()
    heads: list[str] = field(default_factory=list)  # the texts with which its fields' names begin
    fields: list[Bits] = field(default_factory=list)
    values: dict[str, NamedNumber] = field(default_factory=dict)  # named values of the whole word

    def short(self, name: str) -> str:
        """Return the name of a field without the longest of the register's ``heads``; a field
        whose name is a head gets the name of the register."""
        heads = [head for head in self.heads if name.startswith(f"{head}_")]
        if heads:
            return name[max(map(len, heads)) :].lstrip("_")
        if name in self.heads:
            return self.name
        return name

    def has(self, mask: int) -> bool:
        """True if the mask and some field of the register have a bit in common; False for an
        unknown mask (-1).
        """
        return mask > 0 and any(bits.bits & mask for bits in self.fields if bits.bits > 0)

    def reach(self) -> None:
        """Widen, as a guess, each field of which only the shift is known, up to the next field or
        the end of the word."""
        for bits in self.fields:
            if bits.mask < 0 <= bits.low and bits.bits < 0:
                above = [other.lowest for other in self.fields if other.lowest > bits.low]
                bits.width = min(above, default=WORD_BITS) - bits.low
                bits.guess = True


def lowest_bit(mask: int) -> int:
    """Return the number of the lowest bit of a mask, which is above 0."""
    return (mask & -mask).bit_length() - 1


def is_run(mask: int) -> bool:
    """True if the ones of a mask lie side by side, in bits 0 to 63.

    >>> is_run(0xf0), is_run(0xf0f), is_run(0)
    (True, False, False)
    """
    return 0 < mask <= ALL and not mask & mask + (mask & -mask)


def fits(value: int, mask: int) -> bool:
    """True if a number can be a value of the field with this mask: its bits are at the mask's
    place, or it is counted from bit 0 and not too large. True for an unknown mask (0 or less).
    """
    return mask <= 0 or not value & ~mask or value <= mask // (mask & -mask)


def runs_of(mask: int) -> list[tuple[int, int]]:
    """Return (lsb, width) of each run of ones in a mask; an empty list for a mask of more than 64
    bits.

    >>> runs_of(0xf0f)
    [(0, 4), (8, 4)]
    """
    out, lsb = [], 0
    while 0 < mask <= ALL:
        low = lowest_bit(mask)
        mask //= 2**low
        width = lowest_bit(mask + 1)
        out.append((lsb + low, width))
        mask //= 2**width
        lsb += low + width
    return out
