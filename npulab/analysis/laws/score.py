"""How much of new captures (from which no law was made) the laws claim, and how much of the claimed
is wrong.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from npulab.analysis.laws.matching import bits_of
from npulab.registers.fields import WORD_BITS
from npulab.support.text import part_said

if TYPE_CHECKING:
    import pandas as pd

    from npulab.analysis.laws.expressions import Array


@dataclass(frozen=True, eq=False)
class Score:
    """Counts of cells; a cell is one bit in one capture, of the bits that vary in any capture.
    ``claimed`` cells are those that the laws claim, ``wrong`` are claimed cells with the wrong
    value.

    ``looked_at`` says how many jobs of how many the captures' words are, if not all of them.
    ``by_bit`` has a row for each bit that varies: word, bit, cells, claimed, wrong. ``mistakes``
    are (row, word, mask of wrong bits, claimed value of the word, its real value).
    """

    cells: int
    claimed: int
    wrong: int
    by_bit: pd.DataFrame
    mistakes: tuple[tuple[int, ...], ...] = ()
    looked_at: str = ""

    @property
    def share(self) -> float:
        """The share of all cells that are claimed and right."""
        if self.cells:
            return (self.claimed - self.wrong) / self.cells
        return 0.0

    @property
    def error(self) -> float:
        """The share of the claimed cells that are wrong."""
        if self.claimed:
            return self.wrong / self.claimed
        return 0.0

    def __str__(self) -> str:
        text = (
            f"{self.claimed} of {self.cells} cells claimed "
            f"({100 * self.claimed / max(self.cells, 1):.1f} %), "
            f"{self.wrong} of them wrong"
        )
        if self.looked_at:
            text += f"; {part_said(self.looked_at)}"
        return text


def scored(
    known: Array,
    nuisance: Array,
    parts: Iterable[tuple[Array, Array, Array]],
    looked_at: str = "",
    most: int = sys.maxsize,
) -> Score:
    """The score of predictions, part by part; at most ``most`` mistakes are listed.

    A part is the words of some captures, their predictions and the masks of the claims, each
    ``(N, W) uint32``. ``known`` are the captures that the laws were made from, ``nuisance (W,)``
    masks bits to leave out.
    """
    import pandas as pd

    ones, zeros = np.bitwise_or.reduce(known, axis=0), np.bitwise_or.reduce(~known, axis=0)
    claimed = np.zeros((len(ones), WORD_BITS), np.int64)
    wrong = np.zeros_like(claimed)
    mistakes: list[tuple[int, ...]] = []
    count = 0
    for words, predicted, claims in parts:
        ones |= np.bitwise_or.reduce(words, axis=0)
        zeros |= np.bitwise_or.reduce(~words, axis=0)
        claims = claims & ~nuisance
        missed = (predicted ^ words) & claims
        claimed += bits_of(claims).sum(0, dtype=np.int64)
        wrong += bits_of(missed).sum(0, dtype=np.int64)
        for row, word in np.argwhere(missed)[: most - len(mistakes)].tolist():
            found = (int(array[row, word]) for array in (missed, predicted, words))
            mistakes.append((count + row, word, *found))
        count += len(words)
    varying = ones & zeros & ~nuisance
    word, bit = np.nonzero(bits_of(varying[None])[0])
    counts = {"claimed": claimed[word, bit], "wrong": wrong[word, bit]}
    sums = int(counts["claimed"].sum()), int(counts["wrong"].sum())
    frame = pd.DataFrame({"word": word, "bit": bit, "cells": count, **counts})
    listed = []
    for row, of_word, mask, *values in mistakes:
        # a bit that never varies is no cell, whatever a law says of it
        if mask & varying[of_word]:
            listed.append((row, of_word, mask & int(varying[of_word]), *values))
    return Score(len(word) * count, *sums, frame, tuple(listed), looked_at)
