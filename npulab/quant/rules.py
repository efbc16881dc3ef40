"""Quantized numbers and the rules that turn an accumulator into an output.

``real = scale * (q - zero_point)``.  A rule forms a multiplier and a right shift from the three scales
of a layer (``multiplier / 2**right_shift`` is their ratio, as near as the rule can say it) and applies
them to accumulators with a stated rounding; adding the zero point and clamping come after it.

Every rule has two methods that give the same numbers: ``exact``, its definition in whole numbers, and
``fast``, which decides most elements in float32 and asks ``exact`` about the few near a boundary.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

ROUNDINGS = ("floor", "toward-zero", "half-up", "half-even", "half-away")
# how the ratio of scales is formed: in double; first product in single, quotient in double; all in single
ORDERS = ("D", "P", "S")
MAGIC = np.float32(1.5 * 2 ** 23)  # float32 + MAGIC is that float32 rounded half to even, in the low bits
MAGIC_BYTES = np.float32(1.5 * 2 ** 15)  # the same, with 8 bits of fraction kept
EXACT_FLOAT32, EXACT_FLOAT64 = 2 ** 24, 2 ** 53
QUANTIZED = ("int8", "uint8", "int16")  # types of codes
BUNCH = 16_384  # elements redone at a time
HALVES = np.array([0, *(2 ** n for n in range(62))])  # half of 2**shift, whole


@dataclass(frozen=True)
class QuantParams:
    """Scale and zero point of a tensor; ``scale`` is a float, or one per output channel.

    Raises ValueError for a scale that is not positive and finite.
    """

    scale: float | tuple[float, ...]
    zero_point: int = 0

    def __post_init__(self) -> None:
        try:
            scales = np.asarray(self.scale, np.float64) if not isinstance(self.scale, str | bytes) else np.empty(0)
        except (TypeError, ValueError, OverflowError):
            scales = np.empty(0)
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
    """``values / 2**shift`` rounded as named; int64, ``|values| < 2**62``, shift >= 0.

    >>> [int(shift_right(np.int64(-5), 1, r)) for r in ROUNDINGS]
    [-3, -2, -2, -2, -3]
    """
    values, shift = np.asarray(values, np.int64), np.asarray(shift, np.int64)
    if rounding not in ROUNDINGS:
        raise LookupError(f"rounding: got {rounding!r}, allowed is one of {', '.join(ROUNDINGS)}")
    if rounding == "floor":
        return values >> np.minimum(shift, 62)
    if shift.size and shift.max() > 62:  # every value is under a half
        return np.where(shift > 62, 0, shift_right(values, np.minimum(shift, 62), rounding))
    if rounding == "toward-zero":
        return np.sign(values) * (np.abs(values) >> shift)
    half = HALVES[shift]
    if rounding == "half-up":
        return (values + half) >> shift
    if rounding == "half-away":
        return (values + half - ((values < 0) & (half > 0))) >> shift
    up = (values + half) >> shift
    tie = (half > 0) & (values & (2 * half - 1) == half)
    return up - (tie & (up & 1 == 1))


def ratio_of_scales(input_scale: Any, weight_scale: Any, output_scale: Any, order: str) -> np.ndarray:
    """``input_scale * weight_scale / output_scale``, float64 like ``weight_scale``.

    The scales are float32 numbers.  Order "D": product and quotient in float64; "P": the product is
    rounded to float32, the quotient is float64; "S": both are rounded to float32.
    Raises ValueError where a scale is not positive and finite in float32, or the ratio is not.
    """
    if order not in ORDERS:
        raise LookupError(f"order of scales: got {order!r}, allowed is one of {', '.join(ORDERS)}")
    with np.errstate(over="ignore", under="ignore", divide="ignore", invalid="ignore"):
        a, b, c = (np.asarray(scale, np.float32) for scale in (input_scale, weight_scale, output_scale))
        product = a.astype(np.float64) * b if order == "D" else (a * b).astype(np.float64)
        out = product / c.astype(np.float64)
        out = out.astype(np.float32).astype(np.float64) if order == "S" else out
    for name, given, scale in (("input scale", input_scale, a), ("weight scale", weight_scale, b),
                               ("output scale", output_scale, c), ("ratio of scales", out, out)):
        positive(name, given, scale)
    return out


def positive(name: str, given: Any, single: Any) -> None:
    """Raise ValueError where a scale, as float32, is not positive and finite; ``given`` is what is told."""
    wrong = ~(np.isfinite(single) & (np.asarray(single) > 0))
    if np.any(wrong):
        got = np.broadcast_to(np.asarray(given), wrong.shape)[wrong].flat[0]
        where = f" in channel {int(np.flatnonzero(wrong)[0])}" if wrong.ndim and wrong.size > 1 else ""
        raise ValueError(f"{name}: got {got}{where}, allowed is a positive finite float32")


@dataclass(frozen=True)
class Rule:
    """A rounding rule: how scales become a multiplier and a right shift, and what these make of accumulators.

    ``multiplier / 2**(fraction_bits + right_shift)`` is the ratio of scales as the rule says it.  A rule of
    your own is a subclass with ``of_ratio`` and ``exact``; ``toward`` says what ``exact`` comes close to
    ("nearest", "floor", "toward-zero") and ``stray`` how far from a boundary, in output units, it may
    decide otherwise.  Accumulators that ``register`` bits cannot hold wrap where ``wraps`` is set, and are
    refused where not.  ``types`` are the output types the rule is used with.
    """

    name: str
    order: str = "D"
    register: int = 32
    toward: ClassVar[str] = "nearest"
    fraction_bits: ClassVar[int] = 31
    multipliers: ClassVar[tuple[float, float]] = (0, 2 ** 31 - 1)
    right_shifts: ClassVar[tuple[int, int]] = (-30, 31)
    wraps: ClassVar[bool] = False
    types: ClassVar[tuple[str, ...]] = QUANTIZED

    @property
    def accumulators(self) -> tuple[int, int]:
        """Lowest and highest accumulator."""
        return -2 ** (self.register - 1), 2 ** (self.register - 1) - 1

    def multiplier(self, input_scale: Any, weight_scale: Any, output_scale: Any) -> tuple[np.ndarray, np.ndarray]:
        """(multiplier, right_shift), int64 like ``weight_scale``: here 31 bits, rounded to nearest.

        Source: tensorflow/lite/kernels/internal/quantization_util.cc.
        Raises ValueError for scales whose ratio the rule cannot say.
        """
        return self.of_ratio(ratio_of_scales(input_scale, weight_scale, output_scale, self.order))

    def of_ratio(self, ratio: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(multiplier, right_shift) of a ratio of scales, float64."""
        fraction, exponent = np.frexp(ratio)
        whole = np.floor(fraction * 2.0 ** 31 + 0.5).astype(np.int64)
        full = whole == 2 ** 31
        whole, exponent = np.where(full, 2 ** 30, whole), exponent.astype(np.int64) + full
        least = self.right_shifts[0]
        self._at_most(ratio, exponent <= -least, f"below 2**{-least}")
        tiny = exponent < -31
        return np.where(tiny, 0, whole), -np.where(tiny, 0, exponent)

    def exact(self, accumulators: np.ndarray, multiplier: Any, right_shift: Any, zero_point: int = 0) -> np.ndarray:
        """Output codes ``(..., C)`` int64 before the clamp, of accumulators ``(..., C)`` int64; the definition."""
        raise NotImplementedError

    def stray(self, right_shift: np.ndarray) -> Any:
        """How far the value may lie from a boundary for ``exact`` to decide otherwise, in output units."""
        return 0.0

    def fast(self, accumulators: np.ndarray, multiplier: Any, right_shift: Any, zero_point: int, low: int, high: int,
             ) -> np.ndarray:
        """``clip(exact(...), low, high)``, int64, most of it decided in float32."""
        accumulators = np.asarray(accumulators, np.int64)
        channels = accumulators.shape[-1] if accumulators.ndim else 1
        flat = accumulators.reshape(-1, channels)
        out = np.empty(flat.shape, np.int64)
        ready = Requantizer.of(self, multiplier, right_shift, zero_point, low, high, channels)
        ready.redo(*ready(flat.astype(np.float64), out, Scratch()), out)
        return out.reshape(accumulators.shape)

    def real(self, multiplier: Any, right_shift: Any) -> np.ndarray:
        """The ratio of scales that a multiplier and a right shift say, float64."""
        return np.asarray(multiplier) * 2.0 ** -(np.asarray(right_shift) + float(self.fraction_bits))

    def refuse(self, multiplier: Any, right_shift: Any) -> None:
        """Raise ValueError for a multiplier or right shift that the rule does not have."""
        for name, got, (low, high) in (("multiplier", multiplier, self.multipliers),
                                       ("right_shift", right_shift, self.right_shifts)):
            got = np.asarray(got)
            wrong = ~((got >= low) & (got <= high))
            if np.any(wrong):
                raise ValueError(f"{name}: got {got[wrong].flat[0]}, allowed with {self.name} is {low} to {high}")

    def _at_most(self, ratio: np.ndarray, fits: np.ndarray, allowed: str) -> None:
        if not np.all(fits):
            got = np.asarray(ratio)[~fits].flat[0]
            raise ValueError(f"ratio of scales: got {got:.6g}, allowed with {self.name} is {allowed}")


@dataclass(frozen=True)
class DoubleRounding(Rule):
    """A doubling high product with 31 bits, ties up, then a rounding right shift of its own.

    A right shift below 0 shifts the accumulator left first, in a register of 32 bits.  Ties of the last
    shift go as ``ties`` says: "half-away" in gemmlowp (fixedpoint/fixedpoint.h), "half-up" in ruy's x86
    kernels (ruy/kernel_avx2_fma.cc).
    """

    ties: str = "half-away"

    def exact(self, accumulators: np.ndarray, multiplier: Any, right_shift: Any, zero_point: int = 0) -> np.ndarray:
        accumulators, right_shift = np.asarray(accumulators, np.int64), np.asarray(right_shift, np.int64)
        if right_shift.size and right_shift.min() < 0:
            shifted = accumulators * 2 ** np.maximum(-right_shift, 0)
            accumulators, right_shift = shifted.astype(np.int32).astype(np.int64), np.maximum(right_shift, 0)
        return shift_right(shift_right(accumulators * multiplier, 31, "half-up"), right_shift, self.ties) + zero_point

    def stray(self, right_shift: np.ndarray) -> Any:
        # the first rounding moves the value by half a unit of the last shift; a register that was shifted
        # left may have wrapped and land anywhere
        right_shift = np.asarray(right_shift, np.float64)
        return np.where(right_shift > 0, 2.0 ** -(np.maximum(right_shift, 0) + 1), np.where(right_shift < 0, 1.0, 0.0))


@dataclass(frozen=True)
class Float32Bits(DoubleRounding):
    """QNNPACK's fixed-point rule (q31.c): the float32 ratio's own 24 bits in place of a rounded multiplier."""

    order: str = "S"
    multipliers: ClassVar[tuple[float, float]] = (2 ** 30, 2 ** 31 - 1)
    right_shifts: ClassVar[tuple[int, int]] = (0, 31)

    def of_ratio(self, ratio: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(multiplier, right_shift); raises ValueError outside of 2**-32 <= ratio < 1, as QNNPACK does."""
        self._at_most(ratio, (ratio < 1) & (ratio >= 2.0 ** -32), "2**-32 up to 1, 1 excluded")
        return super().of_ratio(ratio)


@dataclass(frozen=True)
class SingleRounding(Rule):
    """One product with 31 bits and one rounding right shift.

    Ties up: TensorFlow Lite built with single rounding, ruy's portable and ARM kernels
    (ruy/apply_multiplier.cc).
    """

    ties: str = "half-up"

    def exact(self, accumulators: np.ndarray, multiplier: Any, right_shift: Any, zero_point: int = 0) -> np.ndarray:
        product = np.asarray(accumulators, np.int64) * multiplier
        return shift_right(product, 31 + np.asarray(right_shift, np.int64), self.ties) + zero_point


@dataclass(frozen=True)
class Mantissa(Rule):
    """One multiplication by the leading bits of the float32 ratio, one rounding right shift.

    The multiplier is the ratio's mantissa with its leading one, cut (not rounded) to ``bits`` bits
    behind it; the right shift is what makes multiplier / 2**right_shift the ratio.

    >>> [int(n) for n in Mantissa("15 bits", bits=15).multiplier(1.0, 0.0053937435, 1.0)]
    [45246, 23]
    """

    order: str = "S"
    bits: int = 15
    ties: str = "half-even"
    fraction_bits: ClassVar[int] = 0
    wraps: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.ties not in ROUNDINGS or not 1 <= self.bits <= 23:
            raise LookupError(f"rule: got {self.bits} bits, {self.ties!r}; allowed is 1 to 23 bits and "
                              f"{', '.join(ROUNDINGS)}")

    @property
    def multipliers(self) -> tuple[float, float]:  # type: ignore[override]
        """The leading one, to all bits set."""
        return 2 ** self.bits, 2 ** (self.bits + 1) - 1

    @property
    def right_shifts(self) -> tuple[int, int]:  # type: ignore[override]
        """So that 32 bits times multiplier and left shift stay where ``shift_right`` is exact."""
        return self.bits - 27, 126 + self.bits

    @property
    def toward(self) -> str:  # type: ignore[override]
        """What the rounding comes close to."""
        return self.ties if self.ties in ("floor", "toward-zero") else "nearest"

    def of_ratio(self, ratio: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(multiplier, right_shift), int64 like ``ratio``."""
        pattern = np.asarray(ratio, np.float32).view(np.uint32).astype(np.int64)
        exponent, mantissa = pattern >> 23, pattern & 0x7FFFFF
        right = 127 + self.bits - exponent
        self._at_most(ratio, (exponent > 0) & (right >= self.right_shifts[0]),
                      f"a normal float32 below 2**{self.bits + 1 - self.right_shifts[0]}")
        return 2 ** self.bits + (mantissa >> 23 - self.bits), right

    def exact(self, accumulators: np.ndarray, multiplier: Any, right_shift: Any, zero_point: int = 0) -> np.ndarray:
        product = np.asarray(accumulators, np.int64) * multiplier
        left = np.maximum(-np.asarray(right_shift, np.int64), 0)
        return shift_right(product * 2 ** left, np.maximum(right_shift, 0), self.ties) + zero_point


@dataclass(frozen=True)
class SignedMultiplier(Rule):
    """A signed multiplier of 16 bits and a right shift of 6, ties away from zero, 17 bits of result.

    The multiplier is the nearest that 15 bits can say; the zero point is added behind the shift.
    Source: nvdla/hw cmod/hls/sdp/sdp_c.cpp.
    """

    fraction_bits: ClassVar[int] = 0
    multipliers: ClassVar[tuple[float, float]] = (-2 ** 15, 2 ** 15 - 1)
    right_shifts: ClassVar[tuple[int, int]] = (0, 63)

    def of_ratio(self, ratio: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(multiplier, right_shift), int64 like ``ratio``."""
        exponent = np.frexp(ratio)[1]
        self._at_most(ratio, exponent <= 15, "below 2**15")
        right = np.minimum(15 - exponent.astype(np.int64), 63)
        return np.minimum(np.rint(ratio * 2.0 ** right), 2 ** 15 - 1).astype(np.int64), right

    def exact(self, accumulators: np.ndarray, multiplier: Any, right_shift: Any, zero_point: int = 0) -> np.ndarray:
        product = np.asarray(accumulators, np.int64) * multiplier
        return np.clip(shift_right(product, right_shift, "half-away"), -2 ** 16, 2 ** 16 - 1) + zero_point


@dataclass(frozen=True)
class LeadingBits(Rule):
    """The leading 14 bits of the float32 ratio's mantissa plus one, and one rounding right shift, ties to even.

    A mantissa of ones alone gives 2**15 where the exponent is odd and, as the driver computes it, 2**14 where it is
    even.  The driver does not say how ties go: to even as on a chip of the same family.
    Source: Mesa's rocket driver, rkt_regcmd.c.

    >>> [int(n) for n in LeadingBits("14 bits").multiplier(1.0, 0.0053937435, 1.0)]
    [22624, 22]
    """

    order: str = "S"
    fraction_bits: ClassVar[int] = 0
    multipliers: ClassVar[tuple[float, float]] = (2 ** 14, 2 ** 15)
    right_shifts: ClassVar[tuple[int, int]] = (0, 140)
    types: ClassVar[tuple[str, ...]] = ("int8", "uint8")

    def of_ratio(self, ratio: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(multiplier, right_shift), int64 like ``ratio``."""
        pattern = np.asarray(ratio, np.float32).view(np.uint32).astype(np.int64)
        exponent, multiplier = pattern >> 23, (pattern >> 9 & 0x7FFF) + 1
        self._at_most(ratio, (exponent > 0) & (exponent <= 141), "a normal float32 below 2**15")
        return np.where(multiplier < 2 ** 14, multiplier | 2 ** 14, multiplier), 141 - exponent

    def exact(self, accumulators: np.ndarray, multiplier: Any, right_shift: Any, zero_point: int = 0) -> np.ndarray:
        return shift_right(np.asarray(accumulators, np.int64) * multiplier, right_shift, "half-even") + zero_point


@dataclass(frozen=True)
class TwoSteps(Rule):
    """A share of each channel with 14 bits of fraction, then one multiplier and right shift for all; both round, ties
    to even.

    The share is the channel's scale over the largest one; ``multiplier`` holds both, ``share * 2**16 + multiplier of
    all``, as ``split`` takes them apart.
    Source: open-rknpu, src/open_rknpu/quantization.py, which reports equal outputs on RV1103 boards.

    >>> by = TwoSteps("two steps")
    >>> [[int(n) for n in one] for one in by.split(by.multiplier(1.0, [0.25, 0.1875], 1.0)[0])]
    [[16384, 12288], [16384, 16384]]
    """

    multipliers: ClassVar[tuple[float, float]] = (1, 2 ** 14 * 2 ** 16 + 2 ** 15 - 1)
    right_shifts: ClassVar[tuple[int, int]] = (0, 63)
    types: ClassVar[tuple[str, ...]] = ("int8", "uint8")
    share_bits: ClassVar[int] = 14

    def multiplier(self, input_scale: Any, weight_scale: Any, output_scale: Any) -> tuple[np.ndarray, np.ndarray]:
        """(share * 2**16 + multiplier of all, right_shift), int64 like ``weight_scale``."""
        ratio = ratio_of_scales(input_scale, weight_scale, output_scale, self.order)
        scale = np.asarray(weight_scale, np.float32)
        return self._formed(ratio, scale / scale.max())

    def of_ratio(self, ratio: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(share * 2**16 + multiplier of all, right_shift), int64 like ``ratio``."""
        ratio = np.asarray(ratio)
        return self._formed(ratio, (ratio / ratio.max(initial=0)).astype(np.float32))

    def _formed(self, ratio: np.ndarray, part: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        most = ratio.max()
        fraction, exponent = math.frexp(most)
        right = 15 - exponent - (fraction * 2 ** 15 > 2 ** 15 - 1)
        self._at_most(ratio, np.asarray(ratio <= 2 ** 15 - 1), "at most 2**15 - 1")
        right = min(right, 63)
        share = np.rint(part * np.float32(2 ** self.share_bits)).astype(np.int64)
        return share * 2 ** 16 + round(most * 2.0 ** right), np.full(ratio.shape, right, np.int64)

    @staticmethod
    def split(multiplier: Any) -> tuple[np.ndarray, np.ndarray]:
        """(share of each channel, multiplier of all)."""
        share, of_all = np.divmod(np.asarray(multiplier, np.int64), 2 ** 16)
        return share, of_all

    def real(self, multiplier: Any, right_shift: Any) -> np.ndarray:
        share, of_all = self.split(multiplier)
        return share * of_all * 2.0 ** -(np.asarray(right_shift) + float(self.share_bits))

    def exact(self, accumulators: np.ndarray, multiplier: Any, right_shift: Any, zero_point: int = 0) -> np.ndarray:
        share, of_all = self.split(multiplier)
        once = shift_right(np.asarray(accumulators, np.int64) * share, self.share_bits, "half-even")
        return shift_right(once * of_all, right_shift, "half-even") + zero_point

    def stray(self, right_shift: np.ndarray) -> Any:
        # the first step moves a value by half a unit, which the multiplier of all, below 2**15, carries on
        return np.minimum(2.0 ** (14 - np.asarray(right_shift, np.float64)), 0.5)


@dataclass(frozen=True)
class Short(Rule):
    """int16 activations: accumulators of 64 bits, the 31-bit multiplier rounded to 15, ties up.

    Source: tensorflow/lite/kernels/internal/common.cc.
    """

    register: int = 48
    fraction_bits: ClassVar[int] = 15
    multipliers: ClassVar[tuple[float, float]] = (0, 2 ** 15 - 1)
    right_shifts: ClassVar[tuple[int, int]] = (-7, 31)
    types: ClassVar[tuple[str, ...]] = ("int16",)

    def of_ratio(self, ratio: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(multiplier of 15 bits, right_shift), int64 like ``ratio``."""
        long, right = super().of_ratio(ratio)
        return np.where(long < 0x7FFF0000, (long + 2 ** 15) >> 16, 0x7FFF), right

    def exact(self, accumulators: np.ndarray, multiplier: Any, right_shift: Any, zero_point: int = 0) -> np.ndarray:
        product = np.asarray(accumulators, np.int64) * multiplier
        return shift_right(product, 15 + np.asarray(right_shift, np.int64), "half-up") + zero_point


@dataclass(frozen=True)
class Float(Rule):
    """The accumulator as float32 times the float32 ratio, rounded to a whole number.

    Ties "half-even" or "half-away"; with ``zero_point_first`` the zero point is added in float32 before
    the rounding, which sends ties the other way where it is odd.
    Source: XNNPACK (src/qs8-requantization), QNNPACK's fp32 variants.
    """

    order: str = "S"
    ties: str = "half-even"
    zero_point_first: bool = False
    fraction_bits: ClassVar[int] = 0
    multipliers: ClassVar[tuple[float, float]] = (2.0 ** -149, 2.0 ** 64)
    right_shifts: ClassVar[tuple[int, int]] = (0, 0)

    def of_ratio(self, ratio: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(ratio, 0), float64."""
        self._at_most(ratio, ratio <= self.multipliers[1], "up to 2**64")
        return ratio, np.zeros(ratio.shape, np.int64)

    def exact(self, accumulators: np.ndarray, multiplier: Any, right_shift: Any, zero_point: int = 0) -> np.ndarray:
        scaled = np.asarray(accumulators, np.int64).astype(np.float32) * np.asarray(multiplier, np.float32)
        if self.zero_point_first:
            return whole(np.rint(scaled + np.float32(zero_point)))
        return whole(np.rint(scaled) if self.ties == "half-even" else half_away(scaled)) + zero_point


@dataclass(frozen=True)
class Double(Float):
    """The accumulator times the ratio in float64, ties away from zero."""

    order: str = "D"
    multipliers: ClassVar[tuple[float, float]] = (5e-324, 2.0 ** 64)

    def exact(self, accumulators: np.ndarray, multiplier: Any, right_shift: Any, zero_point: int = 0) -> np.ndarray:
        return whole(half_away(np.asarray(accumulators, np.float64) * multiplier)) + zero_point


@dataclass(frozen=True)
class Half(Float):
    """The float32 product rounded to float16, saturated, then to a whole number, ties to even."""

    types: ClassVar[tuple[str, ...]] = ("int8", "uint8", "float16")

    def exact(self, accumulators: np.ndarray, multiplier: Any, right_shift: Any, zero_point: int = 0) -> np.ndarray:
        scaled = np.asarray(accumulators, np.int64).astype(np.float32) * np.asarray(multiplier, np.float32)
        most = np.float32(np.finfo(np.float16).max)
        return np.rint(np.clip(scaled, -most, most).astype(np.float16)).astype(np.int64) + zero_point

    def stray(self, right_shift: np.ndarray) -> Any:
        return 0.5  # float16 is coarser than any window


@dataclass(frozen=True)
class Hybrid(Float):
    """A real output: the accumulator as float32 times the float32 product of input and weight scale.

    The output scale has no part in it.
    Source: tensorflow/lite/kernels/internal/reference/portable_tensor_utils.cc.
    """

    types: ClassVar[tuple[str, ...]] = ("float32",)

    def multiplier(self, input_scale: Any, weight_scale: Any, output_scale: Any = 1.0,
                   ) -> tuple[np.ndarray, np.ndarray]:
        """(product of input and weight scale, 0), float64 like ``weight_scale``."""
        return super().multiplier(input_scale, weight_scale, 1.0)

    def exact(self, accumulators: np.ndarray, multiplier: Any, right_shift: Any, zero_point: int = 0) -> np.ndarray:
        return np.asarray(accumulators, np.int64).astype(np.float32) * np.asarray(multiplier, np.float32)

    def fast(self, accumulators: np.ndarray, multiplier: Any, right_shift: Any, zero_point: int = 0,
             low: float = -np.inf, high: float = np.inf) -> np.ndarray:
        return np.clip(self.exact(accumulators, multiplier, right_shift), np.float32(low), np.float32(high))


# Like TensorFlow Lite's, these are named after who showed them: 15 bits on V7 cores, 23 on V8.
FAMILIES = {"vivante-v7": 15, "vivante-v8": 23}
_KNOWN: tuple[Rule, ...] = (
    DoubleRounding("gemmlowp"), DoubleRounding("ruy-x86", ties="half-up"), SingleRounding("single-half-up"),
    SingleRounding("q31-half-away", ties="half-away"), Mantissa("qnnpack-precise", bits=23, ties="half-away"),
    Float32Bits("qnnpack-q31"), Float("float32-even"), Float("float32-zero-point-first", zero_point_first=True),
    Float("float32-half-away", ties="half-away"), Double("float64-half-away"), Short("int16x8"),
    Hybrid("hybrid-float32"),
    *(Mantissa(f"{family}:{ties}", bits=bits, ties=ties) for family, bits in FAMILIES.items() for ties in ROUNDINGS),
    SignedMultiplier("nvdla"), Half("fp16"))
RULES = {rule.name: rule for rule in _KNOWN}
# Known by name, and no candidates where nobody asks for them: the one differs from others by its multiplier alone, the
# other looks at all channels of a layer together.
_MORE: tuple[Rule, ...] = (LeadingBits("rockchip-rk3588:half-even"), TwoSteps("rockchip-rv1103:half-even-twice"))
NAMED = RULES | {rule.name: rule for rule in _MORE}


def rule(name: str | Rule) -> Rule:
    """The rule of a name; a rule stays itself.

    ``name:P`` is the rule with its ratio of scales formed in another order ("D", "P", "S").
    Raises LookupError with the known names.
    """
    if isinstance(name, Rule):
        if type(name).exact is Rule.exact:
            raise LookupError(f"rule: got {name!r} without exact, allowed is a subclass that has it")
        return name
    base, _, order = str(name).rpartition(":")
    if isinstance(name, str) and base in NAMED and order in ORDERS:
        return replace(NAMED[base], name=name, order=order)
    if not isinstance(name, str) or name not in NAMED:
        raise LookupError(f"rule: got {name!r}, allowed is one of {', '.join(NAMED)}")
    return NAMED[name]


def requantize(accumulators: np.ndarray, by: str | Rule, multiplier: Any, right_shift: Any, zero_point: int,
               low: int, high: int) -> np.ndarray:
    """Outputs ``(..., C)`` int64 of accumulators: scale by the rule, add the zero point, clamp.

    Raises ValueError for a multiplier, right shift or accumulator that the rule does not take.

    >>> requantize(np.array([12861, -14632]), "vivante-v7:half-even", 45246, 23, 119, 0, 255)
    array([188,  40])
    """
    by = rule(by)
    by.refuse(multiplier, right_shift)
    accumulators = within(accumulators, by)
    return by.fast(accumulators, multiplier, right_shift, zero_point, low, high)


def within(accumulators: np.ndarray, by: Rule, channel: int = 0) -> np.ndarray:
    """Accumulators ``(..., C)`` int64 as the rule's register holds them: wrapped where it wraps.

    ``channel`` is the number of the first.  Raises ValueError naming the channel where one does not fit a
    register that does not wrap.
    """
    accumulators = np.asarray(accumulators, np.int64)
    low, high = by.accumulators
    wrong = (accumulators < low) | (accumulators > high)
    if not np.any(wrong):
        return accumulators
    if by.wraps:
        return (accumulators - low) % (high - low + 1) + low
    at = np.argwhere(wrong)[0]
    channel += int(at[-1]) if len(at) else 0
    raise ValueError(f"accumulator: got {accumulators[tuple(at)]} in channel {channel}, allowed with {by.name} "
                     f"is {low} to {high}")


def half_away(values: Any) -> np.ndarray:
    """Real numbers rounded to whole ones, ties away from zero; float64, exact for float32 and float64."""
    values = np.asarray(values, np.float64)
    whole = np.trunc(values)
    return whole + np.where(np.abs(values - whole) >= 0.5, np.sign(values), 0.0)


NOTHING = np.empty(0, np.int64), np.empty(0, np.float32)


def whole(values: np.ndarray) -> np.ndarray:
    """Whole real numbers as int64, cut off at 2**62."""
    return values.clip(-2.0 ** 62, 2.0 ** 62).astype(np.int64)


@dataclass(eq=False)
class Requantizer:
    """A rule made ready for rows of accumulators of one layer.

    ``parts`` are (rule, first channel, end channel): a kernel may follow one rule in its vector body and
    another in its tail.  Multiplier and right shift are per channel ``(C,)``; ``factor`` is their
    float32 value, repeated for every position of a row.

    A product of float32 numbers is within 2**-22 of its size, so inside the clamp range an estimate that is
    further from a rounding boundary than that, and than the rule strays, has the rule's own answer.  The
    rest is redone by the rule.
    """

    parts: tuple[tuple[Rule, int, int], ...]
    multiplier: np.ndarray
    right_shift: np.ndarray
    zero_point: int
    low: int
    high: int
    repeat: int = 1
    factor: np.ndarray = field(init=False)
    limit: Any = field(init=False)
    bytewise: bool = field(init=False)

    @classmethod
    def of(cls, by: Rule, multiplier: Any, right_shift: Any, zero_point: int, low: int, high: int, channels: int,
           ) -> Requantizer:
        """One rule for every channel."""
        spread = [np.ascontiguousarray(np.broadcast_to(value, (channels,))) for value in (multiplier, right_shift)]
        return cls(((by, 0, channels),), spread[0], spread[1], zero_point, low, high)

    def __post_init__(self) -> None:
        by = self.parts[0][0]
        # what float32 cannot say is too small to reach a boundary
        real = by.real(self.multiplier, self.right_shift)
        with np.errstate(under="ignore"):
            self.factor = np.tile(real.astype(np.float32), self.repeat)
        stray = np.max([np.broadcast_to(one.stray(self.right_shift), real.shape) for one, _, _ in self.parts], axis=0)
        reach = max(abs(self.low - self.zero_point), abs(self.high - self.zero_point)) + 1
        limit = 0.5 - stray - reach * 2.0 ** -22
        self.bytewise = by.toward == "nearest" and bool(0.5 - limit.min() < 2.0 ** -9)
        # one limit for all is quicker where that asks the rule about few more
        even = np.ptp(limit) < 2.0 ** -5
        self.limit = np.float32(limit.min()) if even else np.tile(limit.astype(np.float32), self.repeat)

    @property
    def plain(self) -> bool:
        """Whether float32 arithmetic is the rule itself: nothing to redo."""
        by = self.parts[0][0]
        reach = max(abs(self.low), abs(self.high), abs(self.zero_point))
        return len(self.parts) == 1 and type(by) is Float and by.ties == "half-even" and reach < 2 ** 21

    def __call__(self, accumulators: np.ndarray, out: np.ndarray, scratch: Scratch) -> tuple[np.ndarray, np.ndarray]:
        """Write the outputs of accumulators ``(n, repeat * C)``, float32 or float64 whole numbers, to ``out``.

        Gives what is left to ``redo``: flat places in ``out`` and the accumulators there.
        """
        scaled = scratch.take("scaled", accumulators.shape, np.float32)
        if accumulators.dtype == np.float32:
            np.multiply(accumulators, self.factor, out=scaled)
        else:
            np.copyto(scaled, accumulators, casting="same_kind")
            scaled *= self.factor
        if self.plain:
            self._plain(scaled, out)
            return NOTHING
        near = self._bytes if self.bytewise and out.itemsize == 1 else self._near
        at = np.flatnonzero(near(scaled, out, scratch))
        return at, accumulators.ravel()[at]

    def _plain(self, scaled: np.ndarray, out: np.ndarray) -> None:
        by, zero = self.parts[0][0], np.float32(self.zero_point)
        first = isinstance(by, Float) and by.zero_point_first
        if first:
            scaled += zero
        shift = np.float32(0) if first else zero
        np.clip(scaled, np.float32(self.low) - shift, np.float32(self.high) - shift, out=scaled)
        scaled += MAGIC
        whole = scaled.view(np.int32)
        if out.itemsize == 1:  # the low byte is the whole number, and adding wraps back into range
            np.copyto(out, whole, casting="unsafe")
            if not first:
                out += np.array(self.zero_point & 0xFF, np.uint8).astype(out.dtype)
        else:
            np.subtract(whole, MAGIC.view(np.int32) - np.int32(shift), out=out, casting="unsafe")

    def _bytes(self, scaled: np.ndarray, out: np.ndarray, scratch: Scratch) -> np.ndarray:
        """Write the estimates of 8 bits; where they are near a boundary.

        A value plus MAGIC_BYTES has its whole part in one byte and eight bits of fraction in the next, rounded
        to nearest: a fraction of 0 is what lies within 2**-9 of a boundary.
        """
        zero = np.float32(self.zero_point)
        both = scratch.take("both", scaled.shape, np.int16 if out.dtype.kind == "i" else np.uint16)
        part = scratch.take("part of it", scaled.shape, np.uint8)
        np.clip(scaled, np.float32(self.low) - zero, np.float32(self.high) - zero, out=scaled)
        scaled += MAGIC_BYTES + zero + np.float32(0.5)
        np.copyto(both, scaled.view(np.int32), casting="unsafe")
        np.copyto(part, both, casting="unsafe")
        both >>= 8
        np.copyto(out, both, casting="unsafe")
        return np.equal(part, 0, out=scratch.take("near", scaled.shape, np.bool_))

    def _near(self, scaled: np.ndarray, out: np.ndarray, scratch: Scratch) -> np.ndarray:
        """Write the estimates; where they are near a boundary."""
        toward, zero = self.parts[0][0].toward, np.float32(self.zero_point)
        whole = scratch.take("whole", scaled.shape, np.float32)
        near = scratch.take("near", scaled.shape, np.bool_)
        # floor and truncation are rounding to nearest half a unit further down, or in
        if toward == "floor":
            scaled -= np.float32(0.5)
        elif toward == "toward-zero":
            scaled -= np.copysign(np.float32(0.5), scaled, out=whole)
        np.clip(scaled, np.float32(self.low) - zero, np.float32(self.high) - zero, out=scaled)
        np.rint(scaled, out=whole)
        scaled -= whole
        np.abs(scaled, out=scaled)
        np.greater_equal(scaled, self.limit, out=near)
        whole += zero
        np.copyto(out, whole, casting="unsafe")
        return near

    def redo(self, at: np.ndarray, accumulators: np.ndarray, out: np.ndarray) -> None:
        """Ask the rule about places ``at`` (flat, in ``out``), whose accumulators are given."""
        channels = len(self.multiplier)
        columns = out.shape[-1]
        for start in range(0, at.size, BUNCH):
            some, asked = at[start:start + BUNCH], accumulators[start:start + BUNCH].astype(np.int64)
            channel = some % channels
            if len(self.parts) == 1:
                answer = self._ask(self.parts[0][0], asked, channel)
            else:
                answer = np.empty(asked.shape, np.int64)
                for by, first, end in self.parts:
                    mine = (channel >= first) & (channel < end)
                    answer[mine] = self._ask(by, asked[mine], channel[mine])
            if out.flags.c_contiguous:
                out.reshape(-1)[some] = answer
            else:
                out[np.divmod(some, columns)] = answer

    def _ask(self, by: Rule, accumulators: np.ndarray, channel: np.ndarray) -> np.ndarray:
        codes = by.exact(accumulators, self.multiplier[channel], self.right_shift[channel], self.zero_point)
        return np.minimum(np.maximum(codes, self.low), self.high)


class Scratch:
    """Arrays that are taken again and again while a layer runs."""

    def __init__(self) -> None:
        self._held: dict[str, np.ndarray] = {}
        self._views: dict[tuple[str, tuple[int, ...]], np.ndarray] = {}

    def take(self, name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """An array of this name, with whatever it held last."""
        view = self._views.get((name, shape))
        if view is not None and view.dtype == dtype:
            return view
        size = math.prod(shape)
        held = self._held.get(name)
        if held is None or held.size < size or held.dtype != dtype:
            held = self._held[name] = np.empty(size, dtype)
            self._views = {key: one for key, one in self._views.items() if key[0] != name}
        view = self._views[name, shape] = held[:size].reshape(shape)
        return view
