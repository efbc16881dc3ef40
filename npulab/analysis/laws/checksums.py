"""Checksums of words: how each kind is computed, and a checksum as a part of a law."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from npulab.registers.fields import WORD_BITS
from npulab.support.files import read_table

Array = np.ndarray
BYTE = 8
TABLE = Path(__file__).with_name("checksums.csv")
After = Callable[[Array, Array], Array]


@dataclass(frozen=True)
class Kind:
    """A kind of checksum: a row of ``checksums.csv``.

    The checksum takes one word after another. A sum or an exclusive or cuts each word into parts of
    ``part`` bits. ``widths`` are the widths in bits of the fields that can hold the checksum.

    If ``polynomial`` is not 0, the kind is a cyclic code: it begins with ``initial``, and its last
    value is xored with ``final``. It is ``reflected`` if it takes the lowest bit of a byte first,
    and ``high_first`` if it takes the highest byte of a word first. Else the kind is a sum if
    ``adds`` is true, an exclusive or if not.
    """

    name: str
    widths: tuple[int, ...]
    part: int
    adds: bool
    polynomial: int
    initial: int
    reflected: bool
    final: int
    high_first: bool = False

    @property
    def linear(self) -> Kind:
        """The kind with ``initial`` and ``final`` 0. Its checksums of equally many words differ
        from those of this kind by one number.
        """
        return replace(self, name="", initial=0, final=0)

    @property
    def join(self) -> np.ufunc:
        """The operation that joins the values of two runs of words to the value of both runs."""
        if self.adds:
            return np.add
        return np.bitwise_xor

    @property
    def apart(self) -> np.ufunc:
        """The inverse of ``join``: it takes the value of one run out of the value of both runs."""
        if self.adds:
            return np.subtract
        return np.bitwise_xor

    def of_word(self, words: Array) -> Array:
        """The checksum of each word by itself, if ``initial`` and ``final`` are 0."""
        if self.polynomial:
            return self._cyclic(words, np.zeros_like(words))
        parts = []
        for shift in range(0, WORD_BITS, self.part):
            parts.append((words >> shift) & (2**self.part - 1))
        return np.asarray(self.join.reduce(parts))

    def advanced(self, values: Array) -> Array:
        """The values of checksums after one more word, which is 0."""
        if self.polynomial:
            return self._cyclic(np.zeros_like(values), values)
        return values

    def after(self, most: int) -> After:
        """A function of values ``(M, S)`` and counts ``(M,)``: it gives the values of checksums
        after ``count`` more words that are 0. A count is at most ``most``.
        """
        if not self.polynomial:
            return lambda values, counts: values
        # A table has the code of each single byte of a value. The code of a value is the exclusive
        # or of the codes of its bytes, because cyclic codes are linear.
        table = [np.arange(256) * 2 ** np.arange(0, self.widths[0], BYTE)[:, None]]
        for _ in range(most):
            table.append(self.advanced(table[-1]))
        tables = np.stack(table)

        def after(values: Array, counts: Array) -> Array:
            found = np.zeros_like(values)
            for place in range(tables.shape[1]):
                found ^= tables[counts[:, None], place, values >> place * BYTE & 0xFF]
            return found

        return after

    def _cyclic(self, words: Array, state: Array) -> Array:
        width = self.widths[0]
        table = _table(width, self.polynomial, self.reflected)
        shifts = [*range(0, WORD_BITS, BYTE)]
        if self.high_first:
            shifts.reverse()
        for shift in shifts:
            byte = (words >> shift) & 0xFF
            if self.reflected:
                state = table[(state ^ byte) & 0xFF] ^ (state >> BYTE)
            else:
                top = (state >> (width - BYTE)) ^ byte
                state = (state * 2**BYTE) % 2**width ^ table[top]
        return state

    def value(self, words: Iterable[Array], n: int) -> Array:
        """The checksum ``(N,) int64`` of words, each ``(N,) int64``; a sum is not cut to the width
        of its field.
        """
        state = np.full(n, self.initial, np.int64)
        for word in words:
            state = self.join(self.advanced(state), self.of_word(word))
        return state ^ self.final


@cache
def _table(width: int, polynomial: int, reflected: bool) -> Array:
    """``(256,)``: the value of a cyclic code after a single byte, by the byte; it begins with 0."""
    state = np.arange(256)
    if reflected:
        turned = int(f"{polynomial:0{width}b}"[::-1], 2)
        for _ in range(BYTE):
            state = (state >> 1) ^ np.where(state & 1, turned, 0)
        return state
    state *= 2 ** (width - BYTE)
    for _ in range(BYTE):
        carried = np.where(state >> (width - 1), polynomial, 0)
        state = (state * 2) % 2**width ^ carried
    return state


def _kinds() -> dict[str, Kind]:
    """The kinds of ``checksums.csv`` by name. Each cyclic code has a second kind, with ``_be``
    after its name, that takes the highest byte of a word first.
    """
    kinds = {}
    for row in read_table(TABLE):
        values: dict[str, Any] = {**row}
        values["widths"] = tuple(map(int, row["widths"].split()))
        values["part"] = int(row["part"])
        for name in ("adds", "reflected"):
            values[name] = row[name] == "yes"
        for name in ("polynomial", "initial", "final"):
            values[name] = int(row[name] or "0", 16)
        kind = Kind(**values)
        kinds[kind.name] = kind
        if kind.polynomial:
            turned = replace(kind, name=f"{kind.name}_be", high_first=True)
            kinds[turned.name] = turned
    return kinds


KINDS = _kinds()
WORD = rf"[A-Za-z_][\w.\[\]]*?_0_{WORD_BITS}"
TEXT = rf"(?:{'|'.join(KINDS)})\(\s*{WORD}\s+to\s+{WORD}(?:\s+without\s+[\w.\[\]]+)?\s*\)"
BITS = re.compile(r"([\w.\[\]]*w)(\d+)_(\d+)_(\d+)")
# A checksum that is read from text covers at most MOST_WORDS words: the number of its last word,
# less that of its first, is in RUN.
MOST_WORDS = 4096
RUN = range(1, MOST_WORDS)


@dataclass(frozen=True)
class Word:
    """A word that a checksum covers: the sum of a ``constant`` and of fields. ``pieces`` are the
    fields, each as its name and its lowest bit in the word; bits of the mask ``without`` count as
    0.
    """

    constant: int
    pieces: tuple[tuple[str, int], ...]
    without: int = 0

    def value(self, fields: Mapping[str, Array], n: int) -> Array:
        total = np.full(n, self.constant, np.int64)
        for name, lsb in self.pieces:
            total += fields[name] * 2**lsb
        return total & ~self.without


@dataclass(frozen=True)
class Checksum:
    """A checksum of some words, computed from the fields in them; ``text`` names the words."""

    kind: Kind
    words: tuple[Word, ...]
    text: str

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of the fields in the words of the checksum."""
        found: set[str] = set()
        for word in self.words:
            found |= dict(word.pieces).keys()
        return frozenset(found)

    def values(self, fields: Mapping[str, Array], n: int) -> Array:
        """The checksum ``(N,) int64`` from the values of fields by name."""
        return self.kind.value((word.value(fields, n) for word in self.words), n)

    def __str__(self) -> str:
        return f"{self.kind.name}({self.text})"


def parse_checksum(text: str) -> Checksum | None:
    """A checksum from its text, such as ``crc32(w0_0_32 to w6_0_32 without w3_16_16)``.

    None if the last word is not after the first one, or if there are more words than
    ``MOST_WORDS``.
    """
    name, _, inner = text.rstrip(") ").partition("(")
    said = " ".join(inner.split())
    places = [found.groups() for found in BITS.finditer(said)]
    numbers = [int(number) for _, number, *_ in places]
    if len(places) - 2 != said.count("without") or len(range(*numbers[:2])) not in RUN:
        return None
    words = []
    for number in range(numbers[0], numbers[1] + 1):
        without = 0
        if numbers[2:] == [number]:
            lsb, width = map(int, places[2][2:])
            without = (2**width - 1) * 2**lsb
        piece = f"{places[0][0]}{number}_0_{WORD_BITS}", 0
        words.append(Word(0, (piece,), without))
    return Checksum(KINDS[name], tuple(words), said)
