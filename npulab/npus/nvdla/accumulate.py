"""The accumulator: sums of products shortened to the 32 bits that the next unit is handed.

Source: the int8 and int16 traces of nvdla/hw for rounding and the 32 bits; nvdla/hw cmod/cacc for
the width of a sum.
"""

from __future__ import annotations

import numpy as np

from npulab.npus.nvdla.rules import RULES, Rules
from npulab.npus.nvdla.units.rounding import saturated, shifted

SUM_BITS = {1: 34, 2: 48}  # of a sum, by the bytes of an element
HANDED_BITS = 32
MOST_TRUNCATE = 31  # CACC.D_CLIP_CFG.CLIP_TRUNCATE has 5 bits


def handed_over(sums: np.ndarray, truncate: int, itemsize: int = 1, rules: Rules = RULES) -> np.ndarray:
    """Accumulators int32 of sums, whole numbers of any type of at most 2**53 in size.

    A sum is limited to 34 bits (48 for elements of 2 bytes), divided by ``2**truncate`` and rounded
    half away from zero, and limited to 32 bits; under ``rules`` that do not saturate they are
    int64. Raises ValueError for a truncate outside 0 to 31.

    >>> handed_over(np.array([5, -5, 2 ** 33]), 1)
    array([         3,         -3, 2147483647], dtype=int32)
    """
    if not 0 <= truncate <= MOST_TRUNCATE:
        raise ValueError(f"truncate: got {truncate}, allowed is 0 to {MOST_TRUNCATE}")
    whole = np.asarray(sums).astype(np.int64)
    if not rules.saturate_stages:
        return shifted(whole, truncate, rules.rounding)
    short = shifted(saturated(whole, SUM_BITS[itemsize]), truncate, rules.rounding)
    return saturated(short, HANDED_BITS).astype(np.int32)
