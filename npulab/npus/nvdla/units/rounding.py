"""Shifts and limits of the data paths, on arrays of int64."""

from __future__ import annotations

from typing import Any

import numpy as np

from npulab.quant.rules import shift_right

MOST_SHIFT = 62  # that quant.shift_right takes for values up to 2**62
POWERS = np.array([2 ** n for n in range(63)])


def saturated(values: Any, bits: int) -> np.ndarray:
    """Values limited to so many signed bits.

    >>> saturated(np.array([-200, 5, 200]), 8)
    array([-128,    5,  127])
    """
    return np.minimum(np.maximum(values, -2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def shifted(values: np.ndarray, shift: int, rounding: str) -> np.ndarray:
    """``values / 2**shift`` rounded as named: int64, ``|values| <= 2**62``, any shift from 0 on.

    >>> shifted(np.array([-5, 5]), 1, "half-away"), shifted(np.array([2 ** 62]), 63, "half-away")
    (array([-3,  3]), array([1]))
    """
    if shift == 0:
        return values
    if shift > MOST_SHIFT:
        # the lowest bit that stays tells whether there was more
        cut = min(shift - MOST_SHIFT, 63)
        values, shift = values >> cut | (values & 2 ** cut - 1 != 0), MOST_SHIFT
    return shift_right(values, shift, rounding)


def shifted_either_way(values: np.ndarray, shift: int, bits: int, rounding: str) -> np.ndarray:
    """As ``shifted``, a negative shift multiplying; limited to so many bits, at most 46.

    >>> shifted_either_way(np.array([-5, 5, 2 ** 40]), -3, 32, "half-away")
    array([       -40,         40, 2147483647])
    """
    if shift >= 0:
        return saturated(shifted(values, shift, rounding), bits)
    return saturated(saturated(values, bits) * 2 ** min(-shift, 16), bits)


def shifted_left(values: Any, shift: int, bits: int) -> np.ndarray:
    """16-bit values times ``2**shift``, limited to so many bits, at most 46.

    >>> shifted_left(np.array([-3, 0, 3]), 63, 32)
    array([-2147483648,           0,  2147483647])
    """
    return saturated(np.asarray(values, np.int64) * 2 ** min(shift, 46), bits)
