"""Quantized numbers and the rules that turn an accumulator into an output.

``real = scale * (q - zero_point)``.  A rule forms an integer multiplier and a right shift from the
three scales of a layer and applies them to accumulators with a stated rounding; adding the zero
point and clamping come after it and are the same for all.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

SHIFTABLE_BITS, SUM_BITS = 61, 32
ROUNDINGS = ("floor", "toward-zero", "half-up", "half-even", "half-away")


@dataclass(frozen=True)
class QuantParams:
    """Scale and zero point of a tensor; ``scale`` is a float, or one per output channel.

    Raises ValueError for a scale that is not positive and finite.
    """

    scale: float | tuple[float, ...]
    zero_point: int = 0

    def __post_init__(self) -> None:
        scales = np.asarray(self.scale, np.float64)
        if scales.ndim > 1 or scales.size == 0 or not np.all(np.isfinite(scales) & (scales > 0)):
            raise ValueError(f"scale: got {self.scale!r}, allowed is a positive number or one per channel")
        try:
            whole = operator.index(self.zero_point)
        except TypeError:
            raise ValueError(f"zero_point: got {self.zero_point!r}, allowed is a whole number") from None
        plain = float(scales) if scales.ndim == 0 else tuple(scales.tolist())
        object.__setattr__(self, "scale", plain)
        object.__setattr__(self, "zero_point", whole)


def shift_right(values: np.ndarray, shift: Any, rounding: str) -> np.ndarray:
    """``values / 2**shift`` rounded as named; int64, ``|values| < 2**61``, shift >= 0.

    >>> [int(shift_right(np.int64(-5), 1, r)) for r in ROUNDINGS]
    [-3, -2, -2, -2, -3]
    """
    values = np.asarray(values, np.int64)
    shift = np.minimum(np.asarray(shift, np.int64), 62)  # further out nothing is left but the sign
    half = np.where(shift > 0, np.int64(2) ** np.maximum(shift - 1, 0), 0)
    if rounding == "floor":
        return values >> shift
    if rounding == "toward-zero":
        return np.sign(values) * (np.abs(values) >> shift)
    if rounding == "half-up":
        return (values + half) >> shift
    if rounding == "half-away":
        return np.sign(values) * ((np.abs(values) + half) >> shift)
    if rounding == "half-even":
        up = (values + half) >> shift
        tie = (half > 0) & (values & (2 * half - 1) == half)
        return up - (tie & (up & 1 == 1))
    raise LookupError(f"rounding: got {rounding!r}, allowed is one of {', '.join(ROUNDINGS)}")


class Rule(Protocol):
    """What a rule offers: a multiplier and shift per channel, and their use on accumulators."""

    @property
    def name(self) -> str: ...

    def multiplier(self, input_scale: float, weight_scale: Any, output_scale: float, signed: bool,
                   ) -> tuple[np.ndarray, np.ndarray]: ...

    def apply(self, accumulators: np.ndarray, multiplier: np.ndarray, right_shift: np.ndarray,
              ) -> np.ndarray: ...


@dataclass(frozen=True)
class Mantissa:
    """One multiplication by the leading bits of the float32 scale, one rounding right shift.

    The multiplier is the scale's mantissa with its leading one, cut (not rounded) to ``bits`` bits
    behind it; the right shift is what makes multiplier / 2**right_shift the scale.
    """

    bits: int = 15
    rounding: str = "half-even"
    family: str = "mantissa"

    def __post_init__(self) -> None:
        if self.rounding not in ROUNDINGS or not 1 <= self.bits <= 23:
            raise LookupError(f"rule: got {self.bits} bits, {self.rounding!r}; allowed is 1 to 23 bits and "
                              f"{', '.join(ROUNDINGS)}")

    @property
    def name(self) -> str:
        return f"{self.family}:{self.rounding}"

    def multiplier(self, input_scale: float, weight_scale: Any, output_scale: float,
                   signed: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """(multiplier, right_shift), int64 like ``weight_scale``; each product is rounded to float32.

        >>> [int(n) for n in Mantissa(15).multiplier(1.0, 0.0053937435, 1.0)]
        [45246, 23]
        """
        single = np.float32(input_scale) * np.asarray(weight_scale, np.float32) / np.float32(output_scale)
        pattern = np.asarray(single, np.float32).view(np.uint32).astype(np.int64)
        exponent, mantissa = pattern >> 23, pattern & 0x7FFFFF
        # a sum of 32 bits times multiplier and left shift must stay where shift_right is exact
        most = SHIFTABLE_BITS - SUM_BITS - 1
        if np.any((exponent == 0) | (exponent - 127 >= most)):
            raise ValueError(f"scale: got {single}, allowed is a normal float32 below 2**{most}")
        return 2 ** self.bits + (mantissa >> 23 - self.bits), 127 + self.bits - exponent

    def apply(self, accumulators: np.ndarray, multiplier: np.ndarray, right_shift: np.ndarray,
              ) -> np.ndarray:
        """Accumulators ``(..., C)`` int64 within int32, scaled; int64."""
        product = np.asarray(accumulators, np.int64) * multiplier
        left = np.maximum(-np.asarray(right_shift, np.int64), 0)
        return shift_right(product * 2 ** left, np.maximum(right_shift, 0), self.rounding)


@dataclass(frozen=True)
class TFLiteReference:
    """TensorFlow Lite's reference kernels: a 31-bit multiplier, a rounding doubling high product
    (ties away from zero for positive products) and a second rounding shift (ties away from zero).

    Source: tensorflow/lite/kernels/internal/quantization_util.cc and gemmlowp fixedpoint.h.
    """

    name: str = "tflite-reference"

    def multiplier(self, input_scale: float, weight_scale: Any, output_scale: float,
                   signed: bool = True) -> tuple[np.ndarray, np.ndarray]:
        """(multiplier of 31 bits, right_shift): unsigned tensors multiply the first two scales in
        float32, signed ones in float64, as the kernels do."""
        a, b = np.float32(input_scale), np.asarray(weight_scale, np.float32)
        product = a.astype(np.float64) * b if signed else (a * b).astype(np.float64)
        fraction, exponent = np.frexp(product / np.float64(np.float32(output_scale)))
        whole = np.floor(fraction * 2.0 ** 31 + 0.5).astype(np.int64)
        full = whole == 2 ** 31
        whole, exponent = np.where(full, 2 ** 30, whole), exponent.astype(np.int64) + full
        tiny = exponent < -31
        return np.where(tiny, 0, whole), -np.where(tiny, 0, exponent)

    def apply(self, accumulators: np.ndarray, multiplier: np.ndarray, right_shift: np.ndarray,
              ) -> np.ndarray:
        """Accumulators ``(..., C)`` within int32, scaled; int64."""
        left = np.maximum(-np.asarray(right_shift, np.int64), 0)
        wrapped = (np.asarray(accumulators, np.int64) * 2 ** left).astype(np.int32).astype(np.int64)
        product = wrapped * multiplier
        nudged = product + np.where(product >= 0, 2 ** 30, 1 - 2 ** 30)
        high = np.sign(nudged) * (np.abs(nudged) >> 31)
        return shift_right(high, np.maximum(right_shift, 0), "half-away")


# Like TensorFlow Lite's, these are named after who showed them: 15 bits on V7 cores, 23 on V8.
FAMILIES = {"vivante-v7": 15, "vivante-v8": 23}
_KNOWN: tuple[Rule, ...] = (
    TFLiteReference(), *(Mantissa(bits, rounding, family) for family, bits in FAMILIES.items()
                         for rounding in ROUNDINGS))
RULES = {rule.name: rule for rule in _KNOWN}


def rule(name: str | Rule) -> Rule:
    """The rule of a name; a rule stays itself.  Raises LookupError with the known names."""
    if not isinstance(name, str):
        return name
    if name not in RULES:
        raise LookupError(f"rule: got {name!r}, allowed is one of {', '.join(RULES)}")
    return RULES[name]


def requantize(accumulators: np.ndarray, by: Rule, multiplier: Any, right_shift: Any, zero_point: int,
               low: int, high: int) -> np.ndarray:
    """Outputs ``(..., C)`` int64 of accumulators: scale by the rule, add the zero point, clamp.

    >>> requantize(np.array([12861, -14632]), Mantissa(15), 45246, 23, 119, 0, 255)
    array([188,  40])
    """
    scaled = by.apply(np.asarray(accumulators, np.int64), multiplier, right_shift)
    return np.clip(scaled + zero_point, low, high)
