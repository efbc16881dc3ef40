"""The names of bits in laws: the names in the map of the words, if there is a map.

The search itself names bits by their word, ``w3_0_7``. Its answers use the names that ``show`` and
the formats have (``registers.names``): ``r1010_0_7`` if registers have addresses, ``GEMM.w3_0_7``
if the map has several blocks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from npulab.registers.fields import WORD_BITS
from npulab.registers.map import RegisterMap
from npulab.registers.names import automatic_name

# the name of bits as the search writes it: word, lowest bit, width
PLACE = re.compile(r"\bw(\d+)_(\d+)_(\d+)\b")
RUN = re.compile(r"(?P<word>.+)_(?P<lsb>\d+)_(?P<width>\d+)")
NAME = re.compile(r"[A-Za-z_](?:\w|\.|\[\w+\])*")


def renamed(text: str, names: Mapping[str, str]) -> str:
    """A law's text with other names for some fields.

    >>> renamed("min(w1_0_7, 3) + w1_0_71", {"w1_0_7": "input_w"})
    'min(input_w, 3) + w1_0_71'
    """
    return NAME.sub(lambda found: names.get(found[0], found[0]), text)


@dataclass(frozen=True)
class Naming:
    """The names of words, by their number.

    >>> Naming.of(2).name(1, 0, 7), Naming.of(2).place("w1_0_7")
    ('w1_0_7', (1, 0, 7))
    >>> Naming(("A.w0", "B.w0")).said("w1_0_7 + 1")
    'B.w0_0_7 + 1'
    """

    words: tuple[str, ...]
    registers: RegisterMap | None = None

    @classmethod
    def of(cls, width: int, registers: RegisterMap | None = None) -> Naming:
        """The names of ``width`` words: as in a map with as many words, else w0, w1, ..."""
        if registers is not None and len(registers) == width:
            return cls(registers.word_names, registers)
        return cls(tuple(f"w{word}" for word in range(width)))

    @cached_property
    def _numbers(self) -> Mapping[str, int]:
        return {name: word for word, name in enumerate(self.words)}

    @cached_property
    def _plain(self) -> bool:
        return all(name == f"w{word}" for word, name in enumerate(self.words))

    def name(self, word: int, lsb: int, width: int) -> str:
        """The name of bits by their place: word, lowest bit, width."""
        return automatic_name(self.words[word], lsb, width)

    @cached_property
    def _fields(self) -> Mapping[tuple[int, int, int], str]:
        """The names of fields that have exactly one run of bits, by the place of the run."""
        registers = self.registers
        if registers is None:
            return {}
        found = {}
        for item in registers:
            if len(item.pieces) == 1:
                found[item.pieces[0][:3]] = registers.key(item)
        return found

    def called(self, word: int, lsb: int, width: int) -> str:
        """The name of the map's field that has exactly these bits, else their name by place."""
        return self._fields.get((word, lsb, width)) or self.name(word, lsb, width)

    def word(self, name: str) -> int | None:
        """The number of the word with this name; None if there is none."""
        return self._numbers.get(name)

    def place(self, name: str) -> tuple[int, int, int] | None:
        """The word, lowest bit and width of the bits of this name; None for any other name."""
        found = RUN.fullmatch(name)
        word = None
        if found:
            word = self.word(found["word"])
        if found is None or word is None:
            return None
        lsb, width = int(found["lsb"]), int(found["width"])
        if width and lsb + width <= WORD_BITS:
            return word, lsb, width
        return None

    def said(self, text: str) -> str:
        """A text of the search, with each ``w3_0_7`` replaced by the name that the bits have in the
        map.
        """
        if self._plain:
            return text
        return PLACE.sub(self._named, text)

    def all_said(self, texts: Sequence[str]) -> tuple[str, ...]:
        """Several texts of the search, each as ``said`` gives it."""
        return tuple(map(self.said, texts))

    def _named(self, found: re.Match[str]) -> str:
        word, lsb, width = map(int, found.groups())
        if word < len(self.words):
            return self.name(word, lsb, width)
        return found[0]


def naming_of(laws: Any) -> Naming:
    """The names of the words of laws; ``w0``, ``w1``, ... if the laws state no names."""
    known = getattr(laws, "naming", None)
    if isinstance(known, Naming):
        return known
    return Naming.of(len(laws.status))
