"""Distances of two tensors in representable numbers, and exact values that are rounded once to a
floating-point type.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray as Array

SAME_SIZE: dict[str, type[np.int16] | type[np.int32]] = {"float16": np.int16, "float32": np.int32}


def ulps(a: Any, b: Any) -> Array:
    """Return how many representable numbers two tensors, both float16 or both float32, are apart:
    int64 ``(...)``.

    +0 and -0 count as one number. Infinity comes next after the largest finite number. The distance
    of two NaNs is 0; the distance of a NaN from a number is one more than the distance between the
    two infinities. Raises ValueError if the types differ, or are neither float16 nor float32.

    >>> ulps(np.float16([1, -0.0, 65504]), np.float16([1.001, 0, np.inf])).tolist()
    [1, 0, 1]
    """
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype.name not in SAME_SIZE or a.dtype.name != b.dtype.name:
        raise ValueError(
            f"ulps: got {a.dtype} and {b.dtype}, allowed are float16 twice or float32 twice"
        )
    return np.abs(steps(a, b))


def steps(a: Any, b: Any) -> Array:
    """Return how many representable numbers lead from ``b`` up to ``a``, int64 ``(...)``; negative
    if ``a`` is the smaller. For codes this is their difference, for real numbers it is ``ulps``
    with a sign.

    If exactly one of two numbers is NaN, the result is the distance that ``ulps`` has for a NaN,
    always positive. Raises ValueError if one tensor is real and the other has codes, and for types
    that are neither codes nor float16 nor float32.

    >>> steps(np.uint8([3, 3]), np.uint8([5, 3])).tolist()
    [-2, 0]
    >>> steps(np.float16(0.5), np.float16(0.501)).tolist()
    -2
    """
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype.kind in "iu" and b.dtype.kind in "iu":
        return a.astype(np.int64) - b.astype(np.int64)
    if a.dtype.name not in SAME_SIZE or a.dtype.name != b.dtype.name:
        raise ValueError(
            f"steps: got {a.dtype} and {b.dtype}, allowed are two types of codes, float16 twice or "
            "float32 twice"
        )
    out = _place(a) - _place(b)
    nan, other = np.isnan(a), np.isnan(b)
    most = 2 * int(_place(np.asarray(np.inf, a.dtype.name))) + 1
    return np.where(nan & other, 0, np.where(nan | other, most, out))


def unit(dtype: Any) -> str:
    """Return the unit in which ``steps`` counts for a type: "ulp" or "code"."""
    if np.dtype(dtype).kind == "f":
        return "ulp"
    return "code"


def _place(values: Array) -> Array:
    """Return the place of each number in the sorted list of all numbers of its type, int64. Both
    zeros have place 0, and negative numbers have negative places.
    """
    whole = SAME_SIZE[values.dtype.name]
    bits = (
        np.ascontiguousarray(values, values.dtype.name)
        .view(whole)
        .astype(np.int64)
        .reshape(values.shape)
    )
    return np.where(bits < 0, int(np.iinfo(whole).min) - bits, bits)


class Near(NamedTuple):
    """Results of float64 arithmetic, with their rounding errors: the exact result differs from
    ``values + tail`` by at most ``error``. ``tail`` is the sum of the rounding errors made in
    ``values``.

    Results of float32 arithmetic have no ``tail`` and no ``error``: their rounding is wanted.
    """

    values: Array
    tail: Array | float = 0.0
    error: Array | float = 0.0

    def __mul__(self, by: Any) -> Near:
        """Return the product with ``by``. The numbers in ``by`` are taken as numbers of the type of
        ``values``.
        """
        a, b = self.values, np.asarray(by, self.values.dtype)
        product = a * b
        if product.dtype != np.float64:
            return Near(product)
        (a_high, a_low), (b_high, b_low) = _split(a), _split(b)
        lost = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
        return self._next(product, lost, self.tail * b, self.error * np.abs(b))

    def __add__(self, other: Any) -> Near:
        """Return the sum with ``other``; both have values of the same type."""
        total, lost = _sum(self.values, np.asarray(other, self.values.dtype))
        if total.dtype == np.float64:
            return self._next(total, lost, self.tail, self.error)
        return Near(total)

    def _next(
        self,
        values: Array,
        lost: Array,
        tail: Array | float,
        error: Array | float,
    ) -> Near:
        lost = np.where(np.isfinite(values), lost, 0.0)  # infinities and NaN have no tail
        if not np.any(tail) and not np.any(error):
            return Near(values, lost)
        tail = np.where(np.isfinite(values), tail, 0.0)
        rounded = np.where(tail == 0, 0.0, np.abs(lost) + np.abs(tail)) * 2.0**-51
        return Near(
            values,
            lost + tail,
            np.where(np.isfinite(values), error * (1 + 2.0**-40) + rounded, 0.0),
        )


def _split(values: Array) -> tuple[Array, Array]:
    """Return each number as two numbers of at most 26 bits that add up to it."""
    raised = values * (2.0**27 + 1)
    high = raised - (raised - values)
    return high, values - high


def _sum(a: Array, b: Array) -> tuple[Array, Array]:
    """Return (the rounded sum, its rounding error). Either of the two numbers may be the larger."""
    total = a + b
    back = total - a
    return total, (a - (total - back)) + (b - back)


def odd(near: Near) -> Array:
    """Return ``values + tail`` as float64, rounded to odd.

    Rounding the result once more, to fewer bits, gives the same number as rounding the exact sum
    once (Boldo and Melquiond, 2008).
    """
    total, rest = _sum(near.values, np.asarray(near.tail))
    whole = np.isfinite(near.values)
    return _odd(np.where(whole, total, near.values), np.where(whole, np.sign(rest), 0))


def nearest_half(value: Fraction) -> np.float16:
    """Return the float16 number nearest to an exact number, ties to even; infinity if the number is
    too large.

    >>> nearest_half(Fraction(2049)), nearest_half(Fraction(2049) + Fraction(1, 2 ** 90))
    (np.float16(2.048e+03), np.float16(2.05e+03))
    """
    near = float(value)
    with np.errstate(over="ignore"):
        return np.float16(_odd(np.asarray(near), (value > near) - (value < near)))


def _odd(values: Array, side: Any) -> Array:
    """Return float64 numbers that round to float16 as numbers slightly above the values do
    (``side`` 1), slightly below (-1), or exactly equal to them (0).

    A float64 whose last bit is 1 is neither a float16 number nor half way between two of them. So a
    value whose last bit is 0 is replaced by its neighbour on the given side, whose last bit is 1.
    """
    even = values.view(np.int64) % 2 == 0
    return np.where(
        even & (side != 0), np.nextafter(values, np.where(side > 0, np.inf, -np.inf)), values
    )


def halves(
    near: Near,
    exact: Callable[[tuple[int, ...]], np.float16],
    bounds: tuple[float, float] = (-np.inf, np.inf),
) -> Array:
    """Return numbers clamped to ``bounds`` and rounded once to float16; every NaN becomes 0x7E00.

    If the error of a number allows two roundings, ``exact`` is called with the number's place in
    the array and computes it exactly. A lower bound of 0 turns -0 into +0.
    """

    def rounded(some: Array) -> Array:
        return (some.clip(*bounds) + (0.0 if bounds[0] == 0 else -0.0)).astype(np.float16)

    with np.errstate(over="ignore", invalid="ignore"):
        values, rest = near.values, np.zeros(())
        if np.any(near.tail):
            total, rest = _sum(values, np.asarray(near.tail))
            # values without a tail stay as they are: the sum could change the sign of a zero
            tailed = np.isfinite(values) & (near.tail != 0)
            values, rest = np.where(tailed, total, values), np.where(tailed, rest, 0.0)
        out = rounded(_odd(values, np.sign(rest)) if np.any(rest) else values)
        if np.any(near.error):
            undecided = (near.error > 0) & (np.abs(rest) <= near.error) & np.isfinite(values)
            reach = np.abs(rest) + near.error
            # ``nextafter`` moves the value past the error even if the error is too small to change
            # it
            low, high = (
                rounded(np.nextafter(values + sign * reach, sign * np.inf)).view(np.int16)
                for sign in (-1, 1)
            )
            for place in np.argwhere(undecided & (low != high)).tolist():
                out[tuple(place)] = exact(tuple(place))
    return np.where(np.isnan(out), np.float16(np.nan), out)
