"""Fixed-point arithmetic of gemmlowp on int64 arrays that hold int32 registers.

A register with ``n`` integer bits stands for the number ``register / 2**(31 - n)``. Source:
gemmlowp/fixedpoint/fixedpoint.h.
"""

from __future__ import annotations

import numpy as np
from numpy import ndarray as Array

LOW, HIGH = -(2**31), 2**31 - 1
# a key is n, the value is exp(-2**n) as a register with no integer bits
EXPONENTIALS = {
    -2: 1672461947,
    -1: 1302514674,
    0: 790015084,
    1: 290630308,
    2: 39332535,
    3: 720401,
    4: 242,
}
# exp(-1/8) and 1/3 as registers with no integer bits
EXP_EIGHTH, THIRD = 1895147668, 715827883

# 48/17 and -32/17 as registers with 2 integer bits: start of Newton's method for 1 / x
START, SLOPE = 1515870810, -1010580540


def product(a: Array, b: Array | int, bits: int = 31) -> Array:
    """Return ``a * b / 2**bits`` rounded to nearest and saturated. ``a`` and ``b`` are registers of
    ``bits + 1`` bits; gemmlowp calls this the doubling high product.

    Ties go away from zero if the product is positive, and up if it is negative.
    """
    whole = np.asarray(a, np.int64) * b
    nudged = whole + np.where(whole >= 0, 2 ** (bits - 1), 1 - 2 ** (bits - 1))
    return np.minimum(np.sign(nudged) * (np.abs(nudged) >> bits), 2**bits - 1)


def shifted_right(values: Array, by: Array | int) -> Array:
    """Return ``values / 2**by``, rounded half away from zero."""
    values = np.asarray(values, np.int64)
    mask = np.left_shift(np.int64(1), np.asarray(by, np.int64)) - 1
    return (values >> by) + ((values & mask) > (mask >> 1) + (values < 0))


def shifted_left(values: Array, by: int) -> Array:
    """Return ``values * 2**by``, saturated to int32."""
    return np.clip(np.asarray(values, np.int64) * 2**by, LOW, HIGH)


def exponential(values: Array, integer_bits: int) -> Array:
    """Return ``exp(values)``, with no integer bits, for values of at most 0 that have
    ``integer_bits`` integer bits.
    """
    values = np.asarray(values, np.int64)
    fraction_bits = 31 - integer_bits
    quarter = 2 ** (fraction_bits - 2)
    below = (values & (quarter - 1)) - quarter
    out = _exponential_of_quarter(shifted_left(below, integer_bits))
    rest = below - values
    for power, factor in EXPONENTIALS.items():
        if integer_bits > power:
            out = np.where(rest & 2 ** (fraction_bits + power), product(out, factor), out)
    if integer_bits > 5:
        out = np.where(values < -(2 ** (fraction_bits + 5)), 0, out)
    return np.where(values == 0, HIGH, out)


def _exponential_of_quarter(values: Array) -> Array:
    """Return the exponential of values from -1/4 to 0, by a Taylor series about -1/8. Values and
    result have no integer bits.
    """
    x = values + 2**28
    square = product(x, x)
    cube, fourth = product(square, x), product(square, square)
    series = shifted_right(product(shifted_right(fourth, 2) + cube, THIRD) + square, 1)
    return np.minimum(EXP_EIGHTH + product(x + series, EXP_EIGHTH), HIGH)


def inverse_of_one_plus(values: Array) -> Array:
    """Return ``1 / (1 + values)`` for values from 0 to 1, by three steps of Newton's method. Values
    and result have no integer bits.
    """
    total = np.asarray(values, np.int64) + HIGH
    half = np.sign(total) * ((np.abs(total) + 1) // 2)
    x = START + product(half, SLOPE)
    for _ in range(3):
        x = x + shifted_left(product(x, 2**29 - product(half, x)), 2)
    return shifted_left(x, 1)


def reciprocal(values: Array, integer_bits: int) -> tuple[Array, Array]:
    """Return (register, bits) for positive values that have ``integer_bits`` integer bits: ``1 /
    values`` is ``register / 2**(31 + bits)``.
    """
    values = np.asarray(values, np.int64)
    headroom = 32 - np.frexp(values.astype(np.float64))[1].astype(np.int64)
    return inverse_of_one_plus(values * 2**headroom - 2**31), integer_bits - headroom
