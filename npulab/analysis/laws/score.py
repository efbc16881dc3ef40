"""How much of new captures (from which no law was made) the laws claim, and how much of the claimed
is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from npulab.analysis.laws.matching import bits_of
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
    mistakes: tuple[tuple[int, int, int, int, int], ...] = ()
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


def scored(known: Array, words: Array, predicted: Array, claims: Array, nuisance: Array) -> Score:
    """The score of predictions ``(N, W) uint32`` with masks ``claims`` against ``words``; ``known``
    are the captures that the laws were made from, ``nuisance`` ``(W,)`` masks bits to leave out."""
    import pandas as pd

    every = np.concatenate([known, words])
    varying = np.bitwise_or.reduce(every ^ every[:1], axis=0) & ~nuisance
    claimed = claims & varying
    wrong = (predicted ^ words) & claimed
    word, bit = np.nonzero(bits_of(varying))
    counts = [bits_of(cells).sum(0)[word, bit] for cells in (claimed, wrong)]
    mistakes = tuple(
        (row, word, int(wrong[row, word]), int(predicted[row, word]), int(words[row, word]))
        for row, word in np.argwhere(wrong).tolist()
    )
    frame = pd.DataFrame(
        {"word": word, "bit": bit, "cells": len(words), "claimed": counts[0], "wrong": counts[1]}
    )
    return Score(
        int(np.bitwise_count(varying).sum()) * len(words),
        int(np.bitwise_count(claimed).sum()),
        int(np.bitwise_count(wrong).sum()),
        frame,
        mistakes,
    )
