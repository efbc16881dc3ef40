"""Activation tables evaluated plainly: whole fractions, one input at a time."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np

from npulab.npus.ane.tables.entries import (
    KNOTS,
    NO_STEP,
    PLAIN,
    Half,
    Table,
    halves,
    refuse_unknown,
)


def evaluate_reference(table: Table, x: Any) -> np.ndarray:
    """The same as ``evaluate``, in whole fractions and one input at a time."""
    refuse_unknown(table)
    x = halves(x)
    return np.array([_one(table, value) for value in x.ravel()], np.float16).reshape(x.shape)[()]


def _one(table: Table, x: np.float16) -> np.float16:
    odd = table.symmetry_name == "odd"
    given = abs(float(x)) if odd else float(x)
    if math.isnan(given):
        y = np.float16(math.nan)
    elif given <= table.x_low:
        y = np.float16(table.y_low)
    elif given >= table.x_high:
        y = np.float16(table.y_high)
    elif math.isinf(given) or (given < 0 and table.symmetry_name == "positive"):
        y = np.float16(math.nan)
    else:
        y = _rounded(_reduced_exactly(table, Fraction(given)))
    y = -y if odd and np.signbit(x) else y
    return np.float16(math.nan) if np.isnan(y) else y


def _reduced_exactly(table: Table, x: Fraction) -> Fraction | float:
    kind, power = table.kind_name, 0
    if kind in PLAIN:
        return _exactly(table, x)
    if kind == "exp2":
        power = math.floor(x)
        return _scaled(_exactly(table, x - power), power)
    if x <= 0:
        return math.nan
    while x >= 1 or x < Fraction(1, 2):
        x, power = (x / 2, power + 1) if x >= 1 else (x * 2, power - 1)
    if kind in ("sqrt", "rsqrt") and power % 2:
        x, power = x * 2, power - 1
    y = _exactly(table, x)
    if kind == "log2":
        return y + power
    return _scaled(y, {"inv": -power, "sqrt": power // 2, "rsqrt": -power // 2}[kind])


def _scaled(y: Fraction | float, power: int) -> Fraction | float:
    return y if isinstance(y, float) else y * Fraction(2) ** power


def _exactly(table: Table, x: Fraction) -> Fraction | float:
    """The value at a reduced x; with an infinite or undefined slot it is what floats make of it."""
    if table.step_exponent == NO_STEP:
        place = Fraction(-1 if x < 0 else KNOTS)
    else:
        place = x * Fraction(2) ** table.step_exponent - table.first
    if place < 0:
        return _line(table.left_intercept, table.left_slope, x)
    if place > KNOTS - 1:
        return _line(table.right_intercept, table.right_slope, x)
    at = math.floor(place)
    if place == at:
        return _line(table.knots[at], 0.0, x)
    low, high = table.knots[at], table.knots[at + 1]
    return _line(low, float(high) - float(low), place - at)


def _line(base: Half, slope: Half, t: Fraction) -> Fraction | float:
    if math.isfinite(base) and math.isfinite(slope):
        return Fraction(float(base)) + Fraction(float(slope)) * t
    return float(base) + float(slope) * float(t)


def _rounded(value: Fraction | float) -> np.float16:
    """Half to even, in whole steps of the last place."""
    if isinstance(value, float) or value == 0:
        return np.float16(value)
    size = abs(value)
    exponent = max(size.numerator.bit_length() - size.denominator.bit_length() - 1, -15)
    while Fraction(2) ** (exponent + 1) <= size:
        exponent += 1
    last = Fraction(2) ** (max(exponent, -14) - 10)
    whole = round(size / last) * last
    rounded = math.inf if whole >= 2**16 else float(whole)
    return np.float16(-rounded if value < 0 else rounded)
