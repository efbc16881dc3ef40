"""The arithmetic of one printed field: the bits that it copies, and how they make its value."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from npulab.registers.fields import WORD_BITS
from npulab.registers.meaning import Meaning


class BitSource(NamedTuple):
    """One bit of a printed value: its place in the raw value, the number of the bit of the words
    that it copies, and whether it is inverted.
    """

    at: int
    bit: int
    inverted: bool


@dataclass(frozen=True)
class Reading:
    """How the value of a printed field follows from the words.

    ``sources`` are the bits of a raw number, which is in two's complement if ``signed``. The value
    is ``raw * factor + offset``, divided by ``2 ** right_shift``; or, if ``f32``, the float32 with
    the bit pattern ``raw``; or, for a text, one of the two ``names``.

    ``false_positive_probability`` is an upper bound of the chance that a field which is an XOR of
    bits looks like this reading; it is nan for a constant. A field that is an AND or OR of bits
    cannot look like it if every call was answered. A field that is a copy, or a constant, for
    nearly all words is read as such until a call shows another value.
    """

    field: str
    sources: tuple[BitSource, ...]
    signed: bool = False
    factor: int = 1
    offset: int = 0
    right_shift: int = 0
    f32: bool = False
    names: tuple[str, ...] = ()
    false_positive_probability: float = math.nan

    @property
    def source_bits(self) -> set[int]:
        """The numbers of the bits of the words that the value copies."""
        return {source.bit for source in self.sources}

    @property
    def inversions(self) -> set[bool]:
        """{False} if no bit is inverted, {True} if all are, both if some are; empty for a
        constant.
        """
        return {source.inverted for source in self.sources}

    @property
    def kind(self) -> str:
        """One of: constant, text, f32, partly inverted, inverted, arithmetic, signed, plain."""
        inversions = self.inversions
        if not inversions:
            return "constant"
        if self.names:
            return "text"
        if self.f32:
            return "f32"
        if len(inversions) > 1:
            return "partly inverted"
        if (self.factor, self.offset, self.right_shift) != (1, 0, 0):
            return "arithmetic"
        if True in inversions:
            return "inverted"
        if self.signed:
            return "signed"
        return "plain"

    @property
    def meaning(self) -> Meaning:
        """The meaning of the field's bits for a register map. For a field that is ``partly
        inverted`` it applies to the bits after the inversion.
        """
        if self.names:
            return Meaning(enum=self.enum)
        if self.f32:
            return Meaning("f32")
        factor, offset = self.factor, self.offset
        if False not in self.inversions:
            # inverting all bits gives a number of all ones less the raw number, so the factor
            # changes its sign
            zeros = np.zeros(1 + max(self.source_bits, default=0), np.uint8)
            offset += factor * self._raw(zeros)
            factor = -factor
        steps: list[tuple[str, int]] = []
        if factor != 1:
            steps.append(("*", factor))
        if offset:
            steps.append(("+", offset))
        if self.right_shift:
            steps.append((">>", self.right_shift))
        kind = ""
        if self.signed:
            kind = "signed"
        return Meaning(kind, tuple(steps))

    @property
    def value(self) -> str:
        """The meaning as text: as a register map writes it, a constant's value, or both texts."""
        if self.names:
            return " or ".join(self.names)
        if self.sources:
            return str(self.meaning)
        return repr(self.predict(np.zeros(0, np.uint8)))

    @property
    def runs(self) -> list[list[BitSource]]:
        """The sources, divided into runs of neighbouring bits of one word, from the low end of the
        value.
        """
        runs: list[list[BitSource]] = []
        follower = None  # the source that would continue the last run
        for source in self.sources:
            if source == follower and source.bit % WORD_BITS:
                runs[-1].append(source)
            else:
                runs.append([source])
            follower = (source.at + 1, source.bit + 1, source.inverted)
        return runs

    @property
    def bits(self) -> str:
        """The bits of the field as text, ``w2[26] w15[27:22]``, from the low end of the value; in a
        field that is partly inverted, ``~`` marks inverted bits.
        """
        mixed = self.kind == "partly inverted"
        pieces = []
        for run in self.runs:
            piece = bit_range(run[0].bit, len(run))
            if mixed and run[0].inverted:
                piece = f"~{piece}"
            pieces.append(piece)
        return " ".join(pieces)

    def predict(self, bits: np.ndarray) -> Any:
        """Return the value printed for bits ``(32 * W,)`` of 0 and 1, bit 0 of word 0 first."""
        raw = self._raw(bits)
        if self.names:
            return self.names[raw]
        if self.f32:
            return np.uint32(raw).view(np.float32)
        number = raw * self.factor + self.offset
        if self.right_shift:
            return number / 2**self.right_shift
        return number

    @property
    def enum(self) -> str:
        """The name of the enum of a field of two texts: the field's name, made an identifier."""
        return re.sub(r"\W", lambda odd: f"_{ord(odd[0]):x}_", self.field)

    def _raw(self, bits: np.ndarray) -> int:
        raw = sum(2**at * (int(bits[bit]) ^ inverted) for at, bit, inverted in self.sources)
        if self.signed:
            top = 2 ** self.sources[-1].at
            raw -= 2 * (raw & top)
        return raw


def bit_range(bit: int, width: int = 1) -> str:
    """Return the text for ``width`` bits, from the number of the lowest one in the words.

    >>> bit_range(36), bit_range(36, 4)
    ('w1[4]', 'w1[7:4]')
    """
    word, lsb = divmod(int(bit), WORD_BITS)
    if width > 1:
        return f"w{word}[{lsb + width - 1}:{lsb}]"
    return f"w{word}[{lsb}]"
