"""Activation tables: decoded, encoded, and evaluated exactly for every input.

If ``x <= x_low`` the result is ``y_low``; otherwise, if ``x >= x_high``, it is ``y_high``. Between
the first and the last knot (a stored value at a fixed x) the table interpolates linearly; before
and after the knots it is a line. An odd table is evaluated for ``|x|``, and the result gets the
sign of x. Kinds that are named after a function first reduce ``x`` to a mantissa or a fraction. The
result is rounded once, to fp16, half to even. For tanh, the outputs of a device are equal bit for
bit.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy import ndarray as Array

from npulab.npus.ane.tables.entries import (
    KNOTS,
    NO_STEP,
    REDUCED,
    Table,
    decode,
    halves,
    refuse_unknown,
)
from npulab.quant.floats import Near, odd

__all__ = ["Table", "decode", "evaluate", "outputs", "values"]

# The number of possible inputs, which are fp16.
CODES = 2**16


def evaluate(table: Table, x: Any) -> Array:
    """Return the outputs (float16) of a table for inputs of any shape.

    Inputs are rounded to fp16. Interpolation is exact, and the result is rounded once. NaN gives
    NaN (0x7e00), and so does an input for which neither limits nor knots and lines give a value, as
    a negative input of a logarithm. A computed 0 is +0, a value that rounds to 0 keeps its sign,
    and a result of an odd table gets the sign of x. Raises ``Unsupported``, with slot and byte
    offset, for an unknown kind, symmetry or flag.
    """
    x = halves(x)
    if x.size >= CODES:
        return outputs(table)[x.view(np.uint16)]
    return halves(values(table, x))[()]


def values(table: Table, x: Any) -> Array:
    """Return the values (float64) that ``evaluate`` rounds to fp16.

    They are the exact values rounded to odd, so that rounding them to fp16 gives the same as
    rounding the exact values once.
    """
    refuse_unknown(table)
    x = halves(x)
    given = x.astype(np.float64)
    is_odd = table.symmetry_name == "odd"
    if is_odd:
        given = np.abs(given)
    lost = ~np.isfinite(given) | ((given < 0) & (table.symmetry_name == "positive"))
    with np.errstate(over="ignore", invalid="ignore"):
        some = np.where(lost, 1.0, given)
        if table.kind_name in REDUCED:
            base, rise, t, scale = _reduced(table, some)
        else:
            base, rise, t, scale = _unreduced(table, some)
        out = np.ldexp(odd(Near(rise) * t + base), scale)
        above, below = given >= float(table.x_high), given <= float(table.x_low)
    out = np.where(lost, np.nan, out)
    out = np.where(above, float(table.y_high), out)
    out = np.where(below, float(table.y_low), out)
    if is_odd:
        out = np.where(np.signbit(x), -out, out)
    return np.where(np.isnan(out) | np.isnan(x), np.nan, out)[()]


@lru_cache(16)
def outputs(table: Table) -> Array:
    """Return the output of every fp16 input, ``(65536,) float16``, by the 16 bits of the input.

    Raises the errors of ``evaluate``.

    >>> line = Table(-np.inf, np.inf, -np.inf, np.inf, np.zeros(33), 0.5, 0, 2, 0)
    >>> outputs(line)[[0x3C00, 0xBC00]].tolist()
    [2.0, -0.5]
    """
    codes = np.arange(CODES, dtype=np.uint16).view(np.float16)
    out = np.concatenate([evaluate(table, part) for part in np.split(codes, 2)])
    out.setflags(write=False)
    return out


def _unreduced(table: Table, x: Array) -> tuple[Array, Array, Array, Array]:
    """Return base, rise, t and power; the table's value is ``(base + rise * t) * 2**power``.

    The arrays are exact, in float64; the kind is one without reduction, so power is 0.
    """
    if table.step_exponent == NO_STEP:
        left, right = x < 0, x >= 0
        base, rise, t = np.zeros(x.shape), np.zeros(x.shape), x
    else:
        place = np.ldexp(x, table.step_exponent) - table.first
        left, right = place < 0, place > KNOTS - 1
        base, rise, t = _between(table, place)
    for side, slope, intercept in (
        (left, table.left_slope, table.left_intercept),
        (right, table.right_slope, table.right_intercept),
    ):
        base = np.where(side, float(intercept), base)
        rise = np.where(side, float(slope), rise)
        t = np.where(side, x, t)
    return base, rise, t, np.zeros(x.shape, int)


def _reduced(table: Table, x: Array) -> tuple[Array, Array, Array, Array]:
    """Return base, rise, t and power, as ``_unreduced``, for a kind named after a function.

    base is NaN for an x for which the function is not defined.
    """
    kind = table.kind_name
    has = (x > 0) | (kind == "exp2")
    x = np.where(has, x, 1.0)
    if kind == "exp2":
        power = np.floor(x)
        mantissa, power = x - power, power.astype(int)
    else:
        mantissa, power = np.frexp(x)
        # The root of 2**power is 2**(power / 2), so an odd power moves into the mantissa.
        if kind in ("sqrt", "rsqrt"):
            rest = power % 2
            mantissa, power = np.ldexp(mantissa, rest), power - rest
    base, rise, t = _between(table, np.ldexp(mantissa, table.step_exponent) - table.first)
    if kind == "log2":
        base = base + power
    base = np.where(has, base, np.nan)
    scale = {
        "exp2": power,
        "log2": 0 * power,
        "inv": -power,
        "sqrt": power // 2,
        "rsqrt": -power // 2,
    }[kind]
    # A power beyond these limits gives 0 or infinity in fp16, as the limits do.
    return base, rise, t, np.clip(scale, -200, 200)


def _between(table: Table, place: Array) -> tuple[Array, Array, Array]:
    """Return for each place the value of the knot before it, the difference of the next knot's
    value, and the share of the way to the next knot (0 to 1).

    A place is the number of steps from the first knot.
    """
    knots = table.knots.astype(np.float64)
    place = np.where((place >= 0) & (place <= KNOTS - 1), place, 0.0)
    at = place.astype(np.intp)
    rise = knots[np.minimum(at + 1, KNOTS - 1)] - knots[at]
    return knots[at], np.where(place == at, 0.0, rise), place - at
