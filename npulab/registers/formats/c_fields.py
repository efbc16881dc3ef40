"""Fields and registers while the macros of a C header are read, and runs of bits in masks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from npulab.registers.fields import WORD_BITS

ALL = 2**64 - 1


class Lost(NamedTuple):
    """A thing that is not in the table: its kind (register, field, declaration, macro), name,
    position and the reason."""

    kind: str
    name: str
    position: int
    reason: str


class NamedNumber(NamedTuple):
    """A value that has a name; ``in_place`` if it surely stands where the field's bits stand."""

    value: int
    in_place: bool


@dataclass(slots=True)
class Bits:
    """A field as its macros say it; -1 for a number that no macro says."""

    name: str
    position: int
    mask: int = -1
    low: int = -1
    width: int = -1
    high: int = -1
    strict: bool = False  # of envytools, whose values stand in place
    guess: bool = False
    values: dict[str, NamedNumber] = field(default_factory=dict)

    @property
    def bits(self) -> int:
        """The mask in the register; -1 if unknown, above 64 bits if the field fits nowhere."""
        if max(self.low, self.width, self.high) > WORD_BITS * 2:
            return ALL + 1
        if self.mask >= 0:
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
        """The lowest bit; -1 if unknown."""
        bits = self.bits
        if bits > 0:
            return lowest_bit(bits)
        return self.low


@dataclass(slots=True)
class Register:
    """A register: the macro of its offset, its name in the table, its fields and values."""

    macro: str
    name: str
    offset: int
    position: int
    lengths: tuple[tuple[int, int], ...] = ()  # (elements, bytes between them) of each dimension
    heads: list[str] = field(default_factory=list)  # beginnings of the names of its fields
    fields: list[Bits] = field(default_factory=list)
    values: dict[str, NamedNumber] = field(default_factory=dict)  # of the whole word

    def short(self, name: str) -> str:
        """The name of a field without the name of its register."""
        heads = [head for head in self.heads if name.startswith(f"{head}_")]
        if heads:
            return name[max(map(len, heads)) :].lstrip("_")
        if name in self.heads:
            return self.name
        return name

    def has(self, mask: int) -> bool:
        """True if a field has some bits of the mask; of an unknown mask (-1) none."""
        return mask > 0 and any(bits.bits & mask for bits in self.fields if bits.bits > 0)

    def reach(self) -> None:
        """Let each field that has only a shift reach to the next field, as a guess."""
        for bits in self.fields:
            if bits.mask < 0 <= bits.low and bits.bits < 0:
                above = [other.lowest for other in self.fields if other.lowest > bits.low]
                bits.width = min(above, default=WORD_BITS) - bits.low
                bits.guess = True


def lowest_bit(mask: int) -> int:
    """The number of the lowest bit of a mask above 0."""
    return (mask & -mask).bit_length() - 1


def is_run(mask: int) -> bool:
    """True if the ones of a mask of at most 64 bits are one run.

    >>> is_run(0xf0), is_run(0xf0f), is_run(0)
    (True, False, False)
    """
    return 0 < mask <= ALL and not mask & mask + (mask & -mask)


def fits(value: int, mask: int) -> bool:
    """True if a number can be a value of the field with a mask: in place or counted from bit 0."""
    return mask <= 0 or not value & ~mask or value <= mask // (mask & -mask)


def runs_of(mask: int) -> list[tuple[int, int]]:
    """Return (lsb, width) of each run of ones of a mask; none for a mask of more than 64 bits.

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
