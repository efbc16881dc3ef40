"""Whole numbers as hardware has them: rounded up, cut to a number of bits, 8-bit codes moved by
128.
"""

from __future__ import annotations

from functools import cache
from typing import TypeVar

import numpy as np
from numpy import ndarray as Array

Number = TypeVar("Number", int, Array)
SIGNED = 128  # a uint8 code is the int8 code of the same meaning plus ``SIGNED``


def ceil_div(value: Number, by: int) -> Number:
    """Return ``value / by``, rounded up.

    >>> ceil_div(7, 2)
    4
    """
    return -(-value // by)


def up(size: int, align: int) -> int:
    """Return ``size`` rounded up to a multiple of ``align``.

    >>> up(33, 16), up(32, 16)
    (48, 32)
    """
    return -(-size // align) * align


def wrapped(value: Number, bits: int = 32) -> Number:
    """Return whole numbers as a signed register of ``bits`` bits holds them: higher bits are lost.

    >>> wrapped(200, 8), wrapped(2 ** 31)
    (-56, -2147483648)
    """
    half = 2 ** (bits - 1)
    return (value + half) % (2 * half) - half


@cache
def half(bits: int) -> float:
    """Return the real number that the 16 raw bits of a float16 stand for.

    >>> half(0x3C00)
    1.0
    """
    return float(np.uint16(bits).view(np.float16))


def as_codes(codes: Array, dtype: str) -> Array:
    """Return 8-bit codes as ``dtype``, int8 or uint8: moved by 128 if they are of the other type,
    so that each keeps its meaning.

    >>> as_codes(np.array([0, 255], np.uint8), "int8")
    array([-128,  127], dtype=int8)
    """
    if codes.dtype == dtype:
        return codes
    return (codes.view(np.uint8) ^ np.uint8(SIGNED)).view(dtype)
