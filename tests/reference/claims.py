"""The claims that laws make on layers that they have not seen: a field on a capture is one."""

from __future__ import annotations

from typing import Any

import numpy as np


def claims(laws: Any, words: np.ndarray, layers: Any) -> tuple[np.ndarray, np.ndarray]:
    """The probability told of each claim, and whether all its bits are right."""
    predicted, mask = laws.predict(layers)
    certainty = laws.certainty(layers)
    told, right = [], []
    for law in (law for law in laws.fields if not law.open):
        claimed = mask[:, law.word] & np.uint32(law.mask & ~int(laws.nuisance[law.word]))
        rows = np.flatnonzero(claimed)
        places = claimed[rows, None] >> np.arange(law.lsb, law.end, dtype=np.uint32) & 1
        of_bits = certainty[rows, law.word, law.lsb : law.end]
        told.append(np.where(places, of_bits, 1).min(1, initial=1))
        right.append(((predicted[rows, law.word] ^ words[rows, law.word]) & claimed[rows]) == 0)
    return np.concatenate(told), np.concatenate(right)
