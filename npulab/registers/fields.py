"""Fields: runs of bits of 32-bit words, read from and written to many captures; a split field has
several runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray as Array

from npulab.registers.meaning import Meaning
from npulab.support.refuse import one_of

WORD_BITS = 32
WORD_BYTES = 4
AS_STORED = Meaning()

Row = Mapping[str, Any]  # a row of a table: its cells by column
Cells = dict[str, Any]  # a row that is being made
Codes = Mapping[int, str]  # an enum: its names by raw number
Enums = Mapping[str, Codes]  # several enums, by the name of the enum
NewCodes = dict[int, str]  # an enum that is being made
NewEnums = dict[str, NewCodes]


class Piece(NamedTuple):
    """One run of bits of a field.

    ``word`` is the index of the word in the map, ``lsb`` the lowest bit in the word, ``width`` the
    count of bits. ``at`` is the bit of the field's value at which the run begins.
    """

    word: int
    lsb: int
    width: int
    at: int


@dataclass(frozen=True)
class Field:
    """A named value of a register map: its pieces, its meaning, and its evidence.

    ``names`` has (raw number, name) for each code of the field's enum. ``address`` is True if the
    field points into memory. A value is a multiple of ``align``; 0 states nothing. ``automatic`` is
    True if the name is the automatic name of the bits, ``declared`` if the table has a row for the
    field. A driver cannot set a field that is ``read_only``.
    """

    block: str
    register: str
    name: str
    pieces: tuple[Piece, ...]
    meaning: Meaning = AS_STORED
    names: tuple[tuple[int, str], ...] = ()
    address: bool = False
    align: int = 0
    evidence: str = "unknown"
    note: str = ""
    automatic: bool = False
    declared: bool = True
    read_only: bool = False
    # True if a write to the field's register starts a unit of the NPU; it is not compared, because
    # the NPU's record states it, not the map
    starts: bool = field(default=False, compare=False)
    # the unit of the value if another field names it; it is not compared, because it depends on the
    # words of a capture
    unit: int = field(default=1, compare=False)

    @classmethod
    def whole_word(cls, block: str, register: str) -> Field:
        """Return an automatic field over the whole word of a register that is in no map;
        ``register`` is the automatic name of the register.
        """
        name, pieces = f"{register}_0_{WORD_BITS}", (Piece(0, 0, WORD_BITS, 0),)
        return cls(block, register, name, pieces, automatic=True, declared=False)

    @property
    def full_name(self) -> str:
        """The name with block and register in front."""
        return f"{self.block}.{self.register}.{self.name}"

    @property
    def where(self) -> str:
        """The register and the field, as the beginning of an error text."""
        return f"register {self.register} field {self.name}"

    @cached_property
    def width(self) -> int:
        return max(piece.at + piece.width for piece in self.pieces)

    @cached_property
    def gaps(self) -> int:
        """A mask of the bits of the value that belong to no piece; bit 0 is the lowest bit of the
        value."""
        held = sum(2**piece.at * int(mask(piece.width)) for piece in self.pieces)
        return 2**self.width - 1 - held

    @cached_property
    def stored_below(self) -> tuple[int, int]:
        """Two bounds, the first for values, the second for raw values. An integer that is at least
        0 and below its bound is stored without a change and needs no check.
        """
        end = 2**self.width
        # if some bits of the value are in no piece, every integer is checked: these bits must be 0
        if self.gaps:
            end = 0
        meaning = self.meaning
        if meaning.kind or meaning.steps or meaning.by:
            return 0, end
        return end, end

    @property
    def stored_type(self) -> Any:
        if self.width <= WORD_BITS:
            return np.uint32
        return np.uint64

    @property
    def bits(self) -> str:
        """The place of the field: ``5[25:0]`` is bits 25 to 0 of word 5 of the map. The places of
        several pieces are separated by blanks; the piece with the lowest bit of the value is first.
        """
        places = []
        for piece in self.pieces:
            high = ""
            if piece.width > 1:
                high = f"{piece.lsb + piece.width - 1}:"
            places.append(f"{piece.word}[{high}{piece.lsb}]")
        return " ".join(places)

    def extract(self, words: Array) -> Array:
        """Return the raw values ``(...)`` of the field in words ``(..., W) uint32``: uint32, or
        uint64 for a field wider than a word."""
        wide = self.stored_type
        out = np.zeros(words.shape[:-1], wide)
        for piece in self.pieces:
            run = words[..., piece.word] >> np.uint32(piece.lsb) & mask(piece.width)
            out |= run.astype(wide) << wide(piece.at)
        return out

    def raw_in(self, words: Array) -> int:
        """Return the raw value of the field in the words ``(W,)`` of one job. It is computed with
        Python's integers, which are faster than arrays of one element."""
        raw = 0
        for piece in self.pieces:
            run = int(words[piece.word]) >> piece.lsb & 2**piece.width - 1
            raw |= run << piece.at
        return raw

    def insert(self, words: Array, raw: Any) -> None:
        """Put raw values ``(...)`` into words ``(..., W) uint32`` in place.

        Raises ValueError, with register, field, got and allowed, for a raw value that does not fit.
        """
        bits = self.stored(raw).astype(np.uint64)
        for piece in self.pieces:
            run = (bits >> np.uint64(piece.at)).astype(np.uint32) & mask(piece.width)
            words[..., piece.word] &= ~(mask(piece.width) << np.uint32(piece.lsb))
            words[..., piece.word] |= run << np.uint32(piece.lsb)

    def stored(self, raw: Any) -> Array:
        """Return raw values as unsigned integers of at most 32 bits, or of at most 64 bits for a
        field wider than a word.

        Raises ValueError, with register, field, got and allowed, for a raw value that does not fit,
        or has a set bit that no piece holds.
        """
        raw = np.asarray(raw)
        if raw.dtype.kind != "u" or 8 * raw.itemsize > self.width:
            raw = self._fitting(raw, 0)
        wide = np.dtype(self.stored_type)
        if raw.dtype.kind == "u" and raw.itemsize <= wide.itemsize:
            bits = raw
        else:
            bits = raw.astype(wide)
        if self.gaps and np.any(bits.astype(np.uint64) & np.uint64(self.gaps)):
            raise ValueError(
                f"{self.where}: got a value with bits set that no piece holds (pieces {self.bits})"
                ", allowed is a value whose set bits are all in a piece"
            )
        return bits

    def value(self, raw: Any) -> Any:
        return self.meaning.value(raw, self.width, self.unit)

    def text(self, raw: int) -> Any:
        """Return the value as people read it: an enum's name, a plain int or a float."""
        if self.meaning.enum:
            return dict(self.names).get(int(raw), int(raw))
        return np.asarray(self.value(np.asarray(raw))).item()

    def raw(self, value: Any, unit: Any = None) -> Any:
        """Return the raw value of a value or, for an enum, of a name of the enum. A negative value
        becomes its two's complement. ``unit`` is the unit that another field names, by default
        ``self.unit``.

        Raises ValueError or LookupError, with register, field, got and allowed, for a value without
        a raw value and for an unknown name of the enum.
        """
        if unit is None:
            unit = self.unit
        if self.meaning.enum and isinstance(value, str):
            codes = {name: code for code, name in self.names}
            return codes[one_of(self.where, value, codes)]
        try:
            raw = self.meaning.raw(value, unit)
        except ValueError as error:
            raise ValueError(f"{self.where}: got {value!r}, {error}") from None
        if self.meaning.kind == "signed":
            # a negative number becomes its two's complement by adding 2**width; 2**64 does not fit
            # into int64, and a cast gives the same bits
            if self.width == 64:
                return raw.astype(np.uint64)
            half = 2 ** (self.width - 1)
            return np.where(self._fitting(raw, -half) < 0, raw + 2 * half, raw)
        return raw

    def _fitting(self, raw: Array, low: int) -> Array:
        """Return raw values; raises ValueError if one of them is not at least ``low`` and
        below ``low + 2**width``."""
        high = low + 2**self.width
        # if the least and the largest value fit, all do: no mask as large as the array is needed
        not_below = raw.dtype.kind == "u" or (raw.size and raw.min() >= low)
        if raw.size and raw.dtype.kind in "iu" and not_below and raw.max() < high:
            return raw
        wrong = (raw < low) | (raw >= high)
        if np.any(wrong):
            raise ValueError(
                f"{self.where}: got raw {int(raw[wrong].flat[0])}, allowed is {low} to {high - 1} "
                f"({self.width} bits)"
            )
        return raw


def pieces(start: int, width: int, at: int = 0) -> Iterator[Piece]:
    """Yield the pieces of a run of ``width`` bits, one for each word that it touches. ``start`` is
    its lowest bit, counted from bit 0 of word 0. ``at`` is the bit of the field's value at which
    the run begins.

    >>> [*pieces(30, 4)]
    [Piece(word=0, lsb=30, width=2, at=0), Piece(word=1, lsb=0, width=2, at=2)]
    """
    while width > 0:
        word, lsb = divmod(start, WORD_BITS)
        here = min(width, WORD_BITS - lsb)
        yield Piece(word, lsb, here, at)
        start, width, at = start + here, width - here, at + here


def mask(width: int) -> np.uint32:
    """A word whose lowest ``width`` bits are 1."""
    return np.uint32((1 << width) - 1)
