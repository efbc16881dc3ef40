"""How much of new captures, which no law was made from, the laws claim, and how many claims are
wrong.
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
    """Counts of cells. A cell is one bit of one capture; only bits that vary have cells.
    ``claimed`` cells are those that the laws claim, ``wrong`` are claimed cells with another value
    than captured.

    If not all jobs of the captures were used, ``looked_at`` says how many of how many. ``by_bit``
    has a row for each bit that varies: word, bit, cells, claimed, wrong. ``mistakes`` are (row,
    word, mask of wrong bits, claimed value of the word, captured value).
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
    """The score of predictions, which are read part by part; ``mistakes`` has at most ``most``
    entries.

    Each part is three arrays ``(N, W) uint32``: the words of some captures, their predictions, and
    masks of the claimed bits. ``known`` are the captures that the laws were made from; bits of the
    mask ``nuisance (W,)`` do not count.
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
        # a bit that never varies has no cells, even if a law claims it
        if mask & varying[of_word]:
            listed.append((row, of_word, mask & int(varying[of_word]), *values))
    return Score(len(word) * count, *sums, frame, tuple(listed), looked_at)
