"""The functions that activation tables approximate, in float64, by the compiler's names."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Array = np.ndarray
Function = Callable[[Array], Array]
# The constants of SELU (Klambauer et al., 2017).
ALPHA, LAMBDA = 1.6732632423543772, 1.0507009873554805


def _sigmoid(x: Array) -> Array:
    logarithm = -_softplus(-x)
    return np.exp(logarithm)


def _softplus(x: Array) -> Array:
    return np.logaddexp(0.0, x)


def _exponential_below_0(x: Array, factor: float) -> Array:
    # Clamped to 0, because expm1 of large x overflows; ``where`` does not use these values.
    not_above = np.minimum(x, 0.0)
    below = np.expm1(not_above)
    return np.where(x > 0, x, factor * below)


def _gelu(x: Array) -> Array:
    # erfc(-x) instead of 1 + erf(x), which loses the digits of a share near 0.
    scaled = -x / math.sqrt(2.0)
    share = _erfc(scaled) / 2.0
    return _gated(x, share)


def _gated(x: Array, gate: Array) -> Array:
    """Return ``x * gate``, and 0 for x of minus infinity, at which the gate is 0."""
    vanished = np.isneginf(x)
    return np.where(vanished, 0.0, x * gate)


def _compared(compare: Callable[[Any, float], Any]) -> Function:
    """Return a function of x that is 1 if ``compare(x, 0)`` is true, else 0."""
    return lambda x: np.asarray(compare(x, 0.0), np.float64)


_erf = np.vectorize(math.erf, otypes=[np.float64])
_erfc = np.vectorize(math.erfc, otypes=[np.float64])

# Functions by the compiler's names in lower case; a function that it does not name has a name here.
FUNCTIONS: Mapping[str, Function] = {
    "none": np.positive,
    "relu": lambda x: np.maximum(x, 0.0),
    "relu6": lambda x: np.clip(x, 0.0, 6.0),
    "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
    "hard_tanh": lambda x: np.clip(x, -1.0, 1.0),
    "sigmoid": _sigmoid,
    "sigmoid_less_half": lambda x: _sigmoid(x) - 0.5,
    "tanh": np.tanh,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "inv": np.reciprocal,
    "sqr": np.square,
    "log2": np.log2,
    "exp2": np.exp2,
    "elu": lambda x: _exponential_below_0(x, 1.0),
    "selu": lambda x: LAMBDA * _exponential_below_0(x, ALPHA),
    "sign": np.sign,
    "gelu": _gelu,
    "silu": lambda x: _gated(x, _sigmoid(x)),
    "exp": np.exp,
    "log": np.log,
    "erf": _erf,
    "atan": np.arctan,
    "softplus": _softplus,
    "equal_zero": _compared(np.equal),
    "non_zero": _compared(np.not_equal),
    "less_than_zero": _compared(np.less),
    "less_equal_zero": _compared(np.less_equal),
    "greater_equal_zero": _compared(np.greater_equal),
    "greater_than_zero": _compared(np.greater),
}
