"""Quantized numbers, and the rules that turn an accumulator into an output.

A code ``q`` stands for ``real = scale * (q - zero_point)``. From the three scales of a layer a rule
forms a multiplier and a right shift: ``multiplier / 2**right_shift`` is ``input scale * weight
scale / output scale``, as exactly as the rule can represent it. The rule scales accumulators by
them, with a stated rounding. Then the zero point is added and the sum is clamped.

Every rule has two methods that give the same numbers. ``exact`` is its definition in whole numbers.
``fast`` decides most elements in float32 and calls ``exact`` for the few near a rounding boundary.
"""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy import ndarray as Array

from npulab.support.refuse import need_all, one_of, refuse_if

ROUNDINGS = ("floor", "toward-zero", "half-up", "half-even", "half-away")
# How ``input scale * weight scale / output scale`` is computed: "D" in float64; "P" the product in
# float32, the quotient in float64; "S" both in float32.
ORDERS = ("D", "P", "S")
EXACT_FLOAT32, EXACT_FLOAT64 = 2**24, 2**53
QUANTIZED = ("int8", "uint8", "int16")  # the types of codes that rules have as outputs

# a key is the former name of an attribute, which still works and warns; the value is its name now
FORMER = {"toward": "rounding_direction", "stray": "max_deviation"}
# item n is half of 2**n, which is added to round a right shift by n bits; item 0 is 0
HALVES = np.array([0, *(2**n for n in range(62))])
# (multipliers, right shifts), each an array with a number per channel
Factors = tuple[Array, Array]


@dataclass(frozen=True)
class QuantParams:
    """Scale and zero point of a tensor; ``scale`` is a float, or a tuple with one float per output
    channel.

    Weights may have ``zero_points``, one per output channel as in ONNX, in place of ``zero_point``;
    if all are equal, they become ``zero_point``. Raises ValueError for a scale that is not positive
    and finite, for a ``zero_point`` that is not a whole number, and if both ``zero_point`` and
    ``zero_points`` are given.

    >>> QuantParams(0.5, zero_points=(3, 3)), QuantParams(0.5, zero_points=(3, 4)).zeros
    (QuantParams(scale=0.5, zero_point=3), array([3, 4]))
    """

    scale: float | tuple[float, ...]
    zero_point: int = 0
    zero_points: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        scales = np.empty(0)
        if not isinstance(self.scale, str | bytes):
            with suppress(TypeError, ValueError, OverflowError):
                scales = np.asarray(self.scale, np.float64)
        if scales.ndim > 1 or scales.size == 0 or not np.all(np.isfinite(scales) & (scales > 0)):
            raise ValueError(
                f"scale: got {self.scale!r}, allowed is a positive number or one per channel"
            )
        try:
            whole = operator.index(self.zero_point)
        except TypeError:
            raise ValueError(
                f"zero_point: got {self.zero_point!r}, allowed is a whole number"
            ) from None
        plain = float(scales) if scales.ndim == 0 else tuple(scales.tolist())
        object.__setattr__(self, "scale", plain)
        several = tuple(np.asarray(self.zero_points, object).ravel().tolist())
        if several:
            need_all("zero_points", several, (int, np.integer), "are whole numbers")
            refuse_if(whole, "zero_point", f"{whole} beside zero_points", "is one of the two")
        if len({*several}) == 1:
            whole = int(several[0])
            several = ()
        object.__setattr__(self, "zero_point", whole)
        object.__setattr__(self, "zero_points", several)

    @property
    def zeros(self) -> Array:
        """The zero point as an int64 array: ``()``, or ``(C,)`` if weights have one per output
        channel.
        """
        return np.array(self.zero_points or self.zero_point, np.int64)

    def __repr__(self) -> str:
        more = ""
        if self.zero_points:
            more = f", zero_points={self.zero_points}"
        return f"QuantParams(scale={self.scale}, zero_point={self.zero_point}{more})"


def shift_right(values: Array, shift: Any, rounding: str) -> Array:
    """Return ``values / 2**shift``, rounded as ``rounding`` names it, int64. Allowed are ``|values|
    < 2**62`` and a shift of at least 0.

    >>> [int(shift_right(np.int64(-5), 1, r)) for r in ROUNDINGS]
    [-3, -2, -2, -2, -3]
    """
    values, shift = np.asarray(values, np.int64), np.asarray(shift, np.int64)
    one_of("rounding", rounding, ROUNDINGS)
    if rounding == "floor":
        return values >> shift
    if shift.size and shift.max() > 62:  # a shift above 62 leaves less than 1/2 of any value
        return np.where(shift > 62, 0, shift_right(values, np.minimum(shift, 62), rounding))
    if rounding == "toward-zero":
        return np.sign(values) * (np.abs(values) >> shift)
    half = HALVES[shift]
    if rounding == "half-up":
        return (values + half) >> shift
    if rounding == "half-away":
        return (values + half - ((values < 0) & (half > 0))) >> shift
    up = (values + half) >> shift
    return up - ((values & (2 * half - 1) == half) & (up & 1 == 1))  # a tie goes to the even number


def divided(values: Array, by: Any, rounding: str) -> Array:
    """Return ``values / by``, rounded as ``rounding`` names it. Both are whole numbers, ``by`` at
    least 1.

    >>> [int(divided(np.int64(-10), 4, r)) for r in ROUNDINGS]
    [-3, -2, -2, -2, -3]
    """
    one_of("rounding", rounding, ROUNDINGS)
    values = np.asarray(values)
    if rounding in ("toward-zero", "half-away"):
        more = np.asarray(by) // 2 if rounding == "half-away" else 0
        return np.sign(values) * ((np.abs(values) + more) // by)
    down, rest = np.divmod(values, by)
    if rounding == "floor":
        return down
    tie = 2 * rest == by
    return down + (2 * rest > by) + (tie if rounding == "half-up" else tie & (down & 1 == 1))


def ratio_of_scales(input_scale: Any, weight_scale: Any, output_scale: Any, order: str) -> Array:
    """Return ``input_scale * weight_scale / output_scale``, float64 in the shape of
    ``weight_scale``.

    The scales are float32 numbers. Order "D": product and quotient in float64; "P": the product is
    rounded to float32, the quotient is float64; "S": both are rounded to float32. Raises ValueError
    if a scale or the ratio is not positive and finite in float32.
    """
    one_of("order of scales", order, ORDERS)
    with np.errstate(over="ignore", under="ignore", divide="ignore", invalid="ignore"):
        a, b, c = (
            np.asarray(scale, np.float32) for scale in (input_scale, weight_scale, output_scale)
        )
        if order == "D":
            product = a.astype(np.float64) * b
        else:
            product = (a * b).astype(np.float64)
        out = product / c.astype(np.float64)
        if order == "S":
            out = out.astype(np.float32).astype(np.float64)
    for name, given, scale in (
        ("input scale", input_scale, a),
        ("weight scale", weight_scale, b),
        ("output scale", output_scale, c),
        ("ratio of scales", out, out),
    ):
        positive(name, given, scale)
    return out


def positive(name: str, given: Any, single: Any) -> None:
    """Raise ValueError if a scale, as float32, is not positive and finite. The message names the
    parameter and shows its value, ``given``.
    """
    wrong = ~(np.isfinite(single) & (np.asarray(single) > 0))
    if np.any(wrong):
        got = np.broadcast_to(np.asarray(given), wrong.shape)[wrong].flat[0]
        where = ""
        if wrong.ndim and wrong.size > 1:
            where = f" in channel {int(np.flatnonzero(wrong)[0])}"
        raise ValueError(f"{name}: got {got}{where}, allowed is a positive finite float32")


@dataclass(frozen=True)
class Rule:
    """A rounding rule: it turns scales into a multiplier and a right shift, and scales accumulators
    to outputs by these two.

    ``multiplier / 2**(fraction_bits + right_shift)`` is the ratio of scales as the rule forms it;
    ``order`` is one of ``ORDERS``. ``multipliers`` and ``right_shifts`` are the lowest and highest
    that are allowed. Accumulators that a register of ``register`` bits cannot hold wrap if
    ``wraps`` is true, and are refused otherwise. ``types`` are the output types that the rule is
    used with.

    A rule of your own is a subclass with ``of_ratio`` and ``exact``. Its ``rounding_direction`` is
    the rounding of the real-valued result that ``exact`` approximates: "nearest", "floor" or
    "toward-zero". Its ``max_deviation`` says how far from a boundary of that rounding ``exact`` may
    still give the other code, in output units.
    """

    name: str
    order: str = "D"
    register: int = 32
    rounding_direction: ClassVar[str] = "nearest"
    fraction_bits: ClassVar[int] = 31
    multipliers: ClassVar[tuple[float, float]] = (0, 2**31 - 1)
    right_shifts: ClassVar[tuple[int, int]] = (-30, 31)
    wraps: ClassVar[bool] = False
    types: ClassVar[tuple[str, ...]] = QUANTIZED

    def __init_subclass__(cls) -> None:
        for former, name in FORMER.items():
            if former in vars(cls):
                warnings.warn(
                    f"{cls.__name__}: {former} is now {name}", DeprecationWarning, stacklevel=2
                )
                setattr(cls, name, vars(cls)[former])

    def __getattr__(self, name: str) -> Any:
        if name not in FORMER:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        warnings.warn(f"{name} is now {FORMER[name]}", DeprecationWarning, stacklevel=2)
        return getattr(self, FORMER[name])

    @property
    def accumulators(self) -> tuple[int, int]:
        """The lowest and the highest accumulator that the register holds."""
        return -(2 ** (self.register - 1)), 2 ** (self.register - 1) - 1

    def multiplier(self, input_scale: Any, weight_scale: Any, output_scale: Any) -> Factors:
        """Return (multiplier, right_shift) for the scales of a layer, int64 in the shape of
        ``weight_scale``.

        Here the multiplier has 31 bits and is rounded to nearest; some rules form it in another
        way. Source: tensorflow/lite/kernels/internal/quantization_util.cc. Raises ValueError if the
        rule cannot represent the ratio of the scales.
        """
        return self.of_ratio(ratio_of_scales(input_scale, weight_scale, output_scale, self.order))

    def of_ratio(self, ratio: Array) -> Factors:
        """Return (multiplier, right_shift) for ``ratio``, a float64 ratio of scales."""
        fraction, exponent = np.frexp(ratio)
        whole = np.floor(fraction * 2.0**31 + 0.5).astype(np.int64)
        full = whole == 2**31
        whole, exponent = np.where(full, 2**30, whole), exponent.astype(np.int64) + full
        least = self.right_shifts[0]
        self._at_most(ratio, exponent <= -least, f"below 2**{-least}")
        tiny = exponent < -31
        return np.where(tiny, 0, whole), -np.where(tiny, 0, exponent)

    def exact(
        self, accumulators: Array, multiplier: Any, right_shift: Any, zero_point: int = 0
    ) -> Array:
        """Return the output codes before the clamp, ``(..., C)`` int64, of accumulators ``(...,
        C)`` int64. This method is the definition of the rule.
        """
        raise NotImplementedError("rule: got a class without exact, allowed is one that defines it")

    def max_deviation(self, right_shift: Array) -> Any:
        """Return how much ``exact`` may deviate from the real-valued result before the one
        rounding, in output units.

        Closer than this to a rounding boundary, ``exact`` may give the code on the other side.
        """
        return 0.0

    def fast(
        self,
        accumulators: Array,
        multiplier: Any,
        right_shift: Any,
        zero_point: int,
        low: int,
        high: int,
    ) -> Array:
        """Return ``clip(exact(...), low, high)``, int64; most elements are decided in float32."""
        accumulators = np.asarray(accumulators, np.int64)
        channels = 1
        if accumulators.ndim:
            channels = accumulators.shape[-1]
        flat = accumulators.reshape(-1, channels)
        out = np.empty(flat.shape, np.int64)
        # imported here, because npulab.quant.requantize imports this module
        from npulab.quant.requantize import Requantizer, Scratch

        factors, limits = (multiplier, right_shift), (low, high)
        ready = Requantizer.of(self, factors, zero_point, limits, channels)
        ready.recompute(*ready(flat.astype(np.float64), out, Scratch()), out)
        return out.reshape(accumulators.shape)

    def real(self, multiplier: Any, right_shift: Any) -> Array:
        """Return the ratio of scales that a multiplier and a right shift stand for, float64."""
        return np.asarray(multiplier) * 2.0 ** -(
            np.asarray(right_shift) + float(self.fraction_bits)
        )

    def refuse(self, multiplier: Any, right_shift: Any) -> None:
        """Raise ValueError for a multiplier or right shift outside of the rule's range."""
        for name, got, (low, high) in (
            ("multiplier", multiplier, self.multipliers),
            ("right_shift", right_shift, self.right_shifts),
        ):
            got = np.asarray(got)
            wrong = ~((got >= low) & (got <= high))
            if np.any(wrong):
                raise ValueError(
                    f"{name}: got {got[wrong].flat[0]}, allowed with {self.name} is {low} to {high}"
                )

    def _at_most(self, ratio: Array, fits: Array, allowed: str) -> None:
        if not np.all(fits):
            got = np.asarray(ratio)[~fits].flat[0]
            raise ValueError(
                f"ratio of scales: got {got:.6g}, allowed with {self.name} is {allowed}"
            )


@dataclass(frozen=True)
class DoubleRounding(Rule):
    """A rule of two roundings: a product of 31 fraction bits rounded to nearest with ties up, then
    a right shift that rounds too.

    A right shift below 0 first shifts the accumulator left, in a register of 32 bits. ``ties`` is
    the rounding of the right shift: "half-away" in gemmlowp (fixedpoint/fixedpoint.h), "half-up" in
    ruy's x86 kernels (ruy/kernel_avx2_fma.cc).
    """

    ties: str = "half-away"

    def exact(
        self, accumulators: Array, multiplier: Any, right_shift: Any, zero_point: int = 0
    ) -> Array:
        sums = np.asarray(accumulators, np.int64)
        shift = np.asarray(right_shift, np.int64)
        if np.any(shift < 0):
            # the register of 32 bits wraps
            shifted = sums * 2 ** np.maximum(-shift, 0)
            sums = shifted.astype(np.int32).astype(np.int64)
            shift = np.maximum(shift, 0)
        high = shift_right(sums * multiplier, 31, "half-up")
        return shift_right(high, shift, self.ties) + zero_point

    def max_deviation(self, right_shift: Array) -> Any:
        # The first rounding is off by at most half a unit, which the right shift makes smaller. If
        # the shift is to the left, the register may wrap to any value.
        shift = np.asarray(right_shift, np.float64)
        last = 2.0 ** -(np.maximum(shift, 0) + 1)
        return np.where(shift > 0, last, shift < 0)


@dataclass(frozen=True)
class Float32Bits(DoubleRounding):
    """QNNPACK's fixed-point rule (q31.c). The multiplier consists of the 24 bits of the float32
    ratio's mantissa and is not rounded.
    """

    order: str = "S"
    multipliers: ClassVar[tuple[float, float]] = (2**30, 2**31 - 1)
    right_shifts: ClassVar[tuple[int, int]] = (0, 31)

    def of_ratio(self, ratio: Array) -> Factors:
        """Return (multiplier, right_shift); raises ValueError for a ratio below 2**-32 or of at
        least 1, as QNNPACK refuses them.
        """
        self._at_most(ratio, (ratio < 1) & (ratio >= 2.0**-32), "2**-32 up to 1, 1 excluded")
        return super().of_ratio(ratio)


class OneRounding(Rule):
    """A rule of one product and one shift by ``fraction_bits + right_shift`` to the right, rounded
    as ``ties`` says. If the sum of both is below 0, the product is shifted left instead.
    """

    ties: str = "half-up"

    def exact(
        self, accumulators: Array, multiplier: Any, right_shift: Any, zero_point: int = 0
    ) -> Array:
        product = np.asarray(accumulators, np.int64) * multiplier
        shift = self.fraction_bits + np.asarray(right_shift, np.int64)
        if np.any(shift < 0):
            product = product * 2 ** np.maximum(-shift, 0)
            shift = np.maximum(shift, 0)
        return shift_right(product, shift, self.ties) + zero_point


@dataclass(frozen=True)
class SingleRounding(OneRounding):
    """A rule of one rounding, with a multiplier of 31 bits.

    Ties go up in TensorFlow Lite built with single rounding, and in ruy's portable and ARM kernels
    (ruy/apply_multiplier.cc).
    """

    ties: str = "half-up"


@dataclass(frozen=True)
class Mantissa(OneRounding):
    """A rule of one product and one right shift that rounds as ``ties`` says; its multiplier is the
    leading bits of the float32 ratio.

    The multiplier has ``bits + 1`` bits: the mantissa's leading one, which float32 does not store,
    and the first ``bits`` stored bits. The last ``23 - bits`` stored bits are cut off, not rounded.
    The right shift follows from the ratio's exponent, so that ``multiplier / 2**right_shift`` is
    the ratio with these bits cut off.

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
            raise LookupError(
                f"rule: got {self.bits} bits, {self.ties!r}; allowed is 1 to 23 bits and "
                f"{', '.join(ROUNDINGS)}"
            )

    @property
    def multipliers(self) -> tuple[float, float]:  # type: ignore[override]
        """The smallest multiplier (only its leading bit is 1) and the largest (all bits are 1)."""
        return 2**self.bits, 2 ** (self.bits + 1) - 1

    @property
    def right_shifts(self) -> tuple[int, int]:  # type: ignore[override]
        """The lowest and the highest right shift. The lowest keeps an accumulator of 32 bits times
        a multiplier, shifted left, within the range of ``shift_right``.
        """
        return self.bits - 27, 126 + self.bits

    @property
    def rounding_direction(self) -> str:  # type: ignore[override]
        """The direction of the rounding: "floor" and "toward-zero" as ``ties`` has them, "nearest"
        for all roundings with "half" in their name.
        """
        if self.ties in ("floor", "toward-zero"):
            return self.ties
        return "nearest"

    def of_ratio(self, ratio: Array) -> Factors:
        """Return (multiplier, right_shift), int64 in the shape of ``ratio``; raises ValueError for
        a ratio that the rule cannot represent.
        """
        pattern = np.asarray(ratio, np.float32).view(np.uint32).astype(np.int64)
        exponent, mantissa = pattern >> 23, pattern & 0x7FFFFF
        right = 127 + self.bits - exponent
        self._at_most(
            ratio,
            (exponent > 0) & (right >= self.right_shifts[0]),
            f"a normal float32 below 2**{self.bits + 1 - self.right_shifts[0]}",
        )
        return 2**self.bits + (mantissa >> 23 - self.bits), right


@dataclass(frozen=True)
class SignedMultiplier(OneRounding):
    """A rule of a signed 16-bit multiplier and a right shift from 0 to 63, ties away from zero. The
    result saturates to a signed number of 17 bits.

    The multiplier is the nearest number of at most 15 bits and a sign. The zero point is added
    after the saturation. Source: nvdla/hw cmod/hls/sdp/sdp_c.cpp.
    """

    ties = "half-away"
    fraction_bits: ClassVar[int] = 0
    multipliers: ClassVar[tuple[float, float]] = (-(2**15), 2**15 - 1)
    right_shifts: ClassVar[tuple[int, int]] = (0, 63)

    def of_ratio(self, ratio: Array) -> Factors:
        """Return (multiplier, right_shift), int64 in the shape of ``ratio``."""
        exponent = np.frexp(ratio)[1]
        self._at_most(ratio, exponent <= 15, "below 2**15")
        right = np.minimum(15 - exponent.astype(np.int64), 63)
        return np.minimum(np.rint(ratio * 2.0**right), 2**15 - 1).astype(np.int64), right

    def exact(
        self, accumulators: Array, multiplier: Any, right_shift: Any, zero_point: int = 0
    ) -> Array:
        codes = super().exact(accumulators, multiplier, right_shift)
        return np.clip(codes, -(2**16), 2**16 - 1) + zero_point


@dataclass(frozen=True)
class LeadingBits(OneRounding):
    """A rule of one product and one right shift, ties to even. Its multiplier is ``2**14 + m + 1``,
    where ``m`` is the first 14 of the 23 mantissa bits that the float32 ratio stores.

    If all 14 bits are 1, this is 2**15. The driver computes 2**15 only if the stored exponent is
    odd, and 2**14 if it is even; so does this rule. The driver does not show how ties go: "to even"
    was seen on a chip of the same family. Source: Mesa's rocket driver, rkt_regcmd.c.

    >>> [int(n) for n in LeadingBits("14 bits").multiplier(1.0, 0.0053937435, 1.0)]
    [22624, 22]
    """

    order: str = "S"
    ties = "half-even"
    fraction_bits: ClassVar[int] = 0
    multipliers: ClassVar[tuple[float, float]] = (2**14, 2**15)
    right_shifts: ClassVar[tuple[int, int]] = (0, 140)
    types: ClassVar[tuple[str, ...]] = ("int8", "uint8")

    def of_ratio(self, ratio: Array) -> Factors:
        """Return (multiplier, right_shift), int64 in the shape of ``ratio``."""
        pattern = np.asarray(ratio, np.float32).view(np.uint32).astype(np.int64)
        exponent, multiplier = pattern >> 23, (pattern >> 9 & 0x7FFF) + 1
        self._at_most(ratio, (exponent > 0) & (exponent <= 141), "a normal float32 below 2**15")
        return np.where(multiplier < 2**14, multiplier | 2**14, multiplier), 141 - exponent


@dataclass(frozen=True)
class TwoSteps(Rule):
    """A rule that scales twice and rounds each time to nearest, ties to even: first by the share of
    the channel, then by a multiplier and right shift that all channels have in common.

    The share is the channel's weight scale divided by the layer's largest weight scale, as a whole
    number of units of 2**-14. Step 1 is ``a = round(accumulator * share / 2**14)``, step 2 is
    ``round(a * common / 2**right_shift)``. ``multiplier`` holds both numbers as ``share * 2**16 +
    common``, and ``split`` separates them. Source: open-rknpu, src/open_rknpu/quantization.py,
    which reports equal outputs on RV1103 boards.

    >>> by = TwoSteps("two steps")
    >>> [[int(n) for n in one] for one in by.split(by.multiplier(1.0, [0.25, 0.1875], 1.0)[0])]
    [[16384, 12288], [16384, 16384]]
    """

    multipliers: ClassVar[tuple[float, float]] = (1, 2**14 * 2**16 + 2**15 - 1)
    right_shifts: ClassVar[tuple[int, int]] = (0, 63)
    types: ClassVar[tuple[str, ...]] = ("int8", "uint8")
    share_bits: ClassVar[int] = 14

    def multiplier(self, input_scale: Any, weight_scale: Any, output_scale: Any) -> Factors:
        """Return (share * 2**16 + common multiplier, right_shift), int64 in the shape of
        ``weight_scale``.
        """
        ratio = ratio_of_scales(input_scale, weight_scale, output_scale, self.order)
        scale = np.asarray(weight_scale, np.float32)
        return self._formed(ratio, scale / scale.max())

    def of_ratio(self, ratio: Array) -> Factors:
        """Return (share * 2**16 + common multiplier, right_shift), int64 in the shape of ``ratio``.

        The shares are formed from ratios in place of weight scales.
        """
        ratio = np.asarray(ratio)
        return self._formed(ratio, (ratio / ratio.max(initial=0)).astype(np.float32))

    def _formed(self, ratio: Array, relative: Array) -> Factors:
        most = ratio.max()
        fraction, exponent = math.frexp(most)
        right = 15 - exponent - (fraction * 2**15 > 2**15 - 1)
        self._at_most(ratio, np.asarray(ratio <= 2**15 - 1), "at most 2**15 - 1")
        right = min(right, 63)
        share = np.rint(relative * np.float32(2**self.share_bits)).astype(np.int64)
        return share * 2**16 + round(most * 2.0**right), np.full(ratio.shape, right, np.int64)

    @staticmethod
    def split(multiplier: Any) -> Factors:
        """Return (share of each channel, multiplier that all channels have in common)."""
        share, of_all = np.divmod(np.asarray(multiplier, np.int64), 2**16)
        return share, of_all

    def real(self, multiplier: Any, right_shift: Any) -> Array:
        share, of_all = self.split(multiplier)
        return share * of_all * 2.0 ** -(np.asarray(right_shift) + float(self.share_bits))

    def exact(
        self, accumulators: Array, multiplier: Any, right_shift: Any, zero_point: int = 0
    ) -> Array:
        share, of_all = self.split(multiplier)
        once = shift_right(np.asarray(accumulators, np.int64) * share, self.share_bits, "half-even")
        return shift_right(once * of_all, right_shift, "half-even") + zero_point

    def max_deviation(self, right_shift: Array) -> Any:
        # step 1 is off by at most half a unit, and step 2 multiplies that error by at most
        # 2**15 / 2**right_shift
        return np.minimum(2.0 ** (14 - np.asarray(right_shift, np.float64)), 0.5)


@dataclass(frozen=True)
class Short(OneRounding):
    """The rule of int16 activations: accumulators of 64 bits, and the 31-bit multiplier rounded to
    15 bits; ties go up.

    Source: tensorflow/lite/kernels/internal/common.cc.
    """

    register: int = 48
    fraction_bits: ClassVar[int] = 15
    multipliers: ClassVar[tuple[float, float]] = (0, 2**15 - 1)
    right_shifts: ClassVar[tuple[int, int]] = (-7, 31)
    types: ClassVar[tuple[str, ...]] = ("int16",)

    def of_ratio(self, ratio: Array) -> Factors:
        """Return (multiplier of 15 bits, right_shift), int64 in the shape of ``ratio``."""
        long, right = super().of_ratio(ratio)
        return np.where(long < 0x7FFF0000, (long + 2**15) >> 16, 0x7FFF), right


@dataclass(frozen=True)
class Float(Rule):
    """A rule of float32 arithmetic: the accumulator as float32, times the float32 ratio, rounded to
    a whole number.

    ``ties`` is "half-even" or "half-away". If ``zero_point_first`` is true, the zero point is added
    in float32 before the rounding, so that an odd zero point sends a tie the other way. Source:
    XNNPACK (src/qs8-requantization), QNNPACK's fp32 variants.
    """

    order: str = "S"
    ties: str = "half-even"
    zero_point_first: bool = False
    fraction_bits: ClassVar[int] = 0
    multipliers: ClassVar[tuple[float, float]] = (2.0**-149, 2.0**64)
    right_shifts: ClassVar[tuple[int, int]] = (0, 0)

    def of_ratio(self, ratio: Array) -> Factors:
        """Return (ratio, 0): the multiplier is the ratio itself, float64."""
        self._at_most(ratio, ratio <= self.multipliers[1], "up to 2**64")
        return ratio, np.zeros(ratio.shape, np.int64)

    def exact(
        self, accumulators: Array, multiplier: Any, right_shift: Any, zero_point: int = 0
    ) -> Array:
        scaled = _product32(accumulators, multiplier)
        if self.zero_point_first:
            return whole(np.rint(scaled + np.float32(zero_point)))
        if self.ties == "half-even":
            rounded = np.rint(scaled)
        else:
            rounded = half_away(scaled)
        return whole(rounded) + zero_point


def _product32(accumulators: Any, multiplier: Any) -> Array:
    """Return the float32 product of accumulators, rounded to float32, and a multiplier."""
    sums = np.asarray(accumulators, np.int64).astype(np.float32)
    return sums * np.asarray(multiplier, np.float32)


@dataclass(frozen=True)
class Double(Float):
    """A rule of float64 arithmetic: the accumulator times the ratio, rounded with ties away from
    zero.
    """

    order: str = "D"
    multipliers: ClassVar[tuple[float, float]] = (5e-324, 2.0**64)

    def exact(
        self, accumulators: Array, multiplier: Any, right_shift: Any, zero_point: int = 0
    ) -> Array:
        return whole(half_away(np.asarray(accumulators, np.float64) * multiplier)) + zero_point


@dataclass(frozen=True)
class Half(Float):
    """A rule whose float32 product is rounded to float16 and saturated, then rounded to a whole
    number, ties to even.
    """

    types: ClassVar[tuple[str, ...]] = ("int8", "uint8", "float16")

    def exact(
        self, accumulators: Array, multiplier: Any, right_shift: Any, zero_point: int = 0
    ) -> Array:
        most = np.float32(np.finfo(np.float16).max)
        half = np.clip(_product32(accumulators, multiplier), -most, most).astype(np.float16)
        return np.rint(half).astype(np.int64) + zero_point

    def max_deviation(self, right_shift: Array) -> Any:
        return 0.5  # float32 cannot show where float16 rounds: ``exact`` computes every output


@dataclass(frozen=True)
class Hybrid(Float):
    """A rule with a real output: the accumulator as float32 times ``input scale * weight scale``, a
    float32 product.

    The output scale is not used. Source:
    tensorflow/lite/kernels/internal/reference/portable_tensor_utils.cc.
    """

    types: ClassVar[tuple[str, ...]] = ("float32",)

    def multiplier(
        self,
        input_scale: Any,
        weight_scale: Any,
        output_scale: Any = 1.0,
    ) -> Factors:
        """Return (product of input and weight scale, 0), float64 per ``weight_scale``."""
        return super().multiplier(input_scale, weight_scale, 1.0)

    def exact(
        self, accumulators: Array, multiplier: Any, right_shift: Any, zero_point: int = 0
    ) -> Array:
        return _product32(accumulators, multiplier)

    def fast(
        self,
        accumulators: Array,
        multiplier: Any,
        right_shift: Any,
        zero_point: int = 0,
        low: float = -np.inf,
        high: float = np.inf,
    ) -> Array:
        values = self.exact(accumulators, multiplier, right_shift)
        return np.clip(values, np.float32(low), np.float32(high))


# A key is a family of rules, named after the cores that were seen to use them. The value is
# ``Mantissa.bits`` of its rules: the multiplier has one bit more.
FAMILIES = {"vivante-v7": 15, "vivante-v8": 23}
_KNOWN: tuple[Rule, ...] = (
    DoubleRounding("gemmlowp"),
    DoubleRounding("ruy-x86", ties="half-up"),
    SingleRounding("single-half-up"),
    SingleRounding("q31-half-away", ties="half-away"),
    Mantissa("qnnpack-precise", bits=23, ties="half-away"),
    Float32Bits("qnnpack-q31"),
    Float("float32-even"),
    Float("float32-zero-point-first", zero_point_first=True),
    Float("float32-half-away", ties="half-away"),
    Double("float64-half-away"),
    Short("int16x8"),
    Hybrid("hybrid-float32"),
    *(
        Mantissa(f"{family}:{ties}", bits=bits, ties=ties)
        for family, bits in FAMILIES.items()
        for ties in ROUNDINGS
    ),
    SignedMultiplier("nvdla"),
    Half("fp16"),
)
RULES = {rule.name: rule for rule in _KNOWN}
# These rules are known by name, but are candidates only if they are asked for: LeadingBits differs
# from other rules by its multiplier alone, and TwoSteps needs the scales of all channels of a
# layer.
_MORE: tuple[Rule, ...] = (
    LeadingBits("rockchip-rk3588:half-even"),
    TwoSteps("rockchip-rv1103:half-even-twice"),
)
NAMED = RULES | {rule.name: rule for rule in _MORE}
# a key is the name of a target's rule, "<target>:..."; the value is the rule
_STATED: dict[str, Rule] = {}
# functions of ``find_rules_with``: each takes a target's name and states the target's rules
_finders: list[Callable[[str], None]] = []


def state_rules(of: str, rules: Sequence[Rule]) -> None:
    """Make the rules of target ``of`` known by name. They replace all rules that the target stated
    before.

    Raises ValueError for a name that does not begin with the target's name and a colon, LookupError
    for a rule without ``exact``.
    """
    for by in rules:
        if not isinstance(by, Rule) or not by.name.startswith(f"{of}:"):
            got = getattr(by, "name", type(by).__name__)
            raise ValueError(
                f"rules: got {got!r}, allowed in target {of} is a Rule named {of + ':...'!r}"
            )
    for name in [name for name in _STATED if name.startswith(f"{of}:")]:
        del _STATED[name]
    _STATED.update({by.name: rule(by) for by in rules})


def find_rules_with(finder: Callable[[str], None]) -> None:
    """Register a function that is called with a target's name if one of the target's rules is
    looked up and not known yet; it states the rules of that target.
    """
    _finders.append(finder)


def rule(name: str | Rule) -> Rule:
    """Return the rule of a name; a rule is returned unchanged.

    ``name:D``, ``name:P`` and ``name:S`` are the rule with the ratio of scales computed in that one
    of ``ORDERS``. ``<target>:...`` is a rule that a target states. Raises LookupError for an
    unknown name, with the known names, and for a rule without ``exact``.
    """
    if isinstance(name, Rule):
        if type(name).exact is Rule.exact:
            raise LookupError(
                f"rule: got {name!r} without exact, allowed is a subclass of Rule with exact"
            )
        return name
    by = _by_name(name)
    if by is None:
        raise LookupError(f"rule: got {name!r}, allowed is one of {', '.join(rule_names())}")
    return by


def rule_names() -> tuple[str, ...]:
    """Return the names of all rules, including the rules of targets that were loaded."""
    return (*NAMED, *_STATED)


def is_rule(name: Any) -> bool:
    """Return True for a rule and for the name of a rule, else False.

    >>> is_rule("gemmlowp:P"), is_rule("xnnpack")
    (True, False)
    """
    return isinstance(name, Rule) or _by_name(name) is not None


def _by_name(name: Any) -> Rule | None:
    """Return the rule of a name, or None if there is none. If the name begins with a target's name,
    that target is loaded first.
    """
    if not isinstance(name, str):
        return None
    by = _stated_as(name)
    of, colon, _ = name.partition(":")
    if by is None and colon:
        for finder in _finders:
            finder(of)
        by = _stated_as(name)
    return by


def _stated_as(name: str) -> Rule | None:
    base, _, order = name.rpartition(":")
    for known in (NAMED, _STATED):
        if base in known and order in ORDERS:
            return replace(known[base], name=name, order=order)
        if name in known:
            return known[name]
    return None


@dataclass(frozen=True)
class Leaky(Rule):
    """Rule ``by`` with a leaky activation: before the clamp, codes below the zero point are shifted
    right by ``shift`` bits, rounded down.

    Only the distance of a code from the zero point is shifted.

    >>> by = rule("gemmlowp")
    >>> Leaky(by.name, by.order, by.register, by, 2).exact(np.array([40, -7]), 2 ** 30, 0).tolist()
    [20, -1]
    """

    by: Rule = RULES["gemmlowp"]
    shift: int = 1

    def __post_init__(self) -> None:
        for name in (
            "rounding_direction",
            "fraction_bits",
            "multipliers",
            "right_shifts",
            "wraps",
            "types",
        ):
            object.__setattr__(self, name, getattr(self.by, name))

    def multiplier(self, input_scale: Any, weight_scale: Any, output_scale: Any) -> Factors:
        return self.by.multiplier(input_scale, weight_scale, output_scale)

    def exact(
        self, accumulators: Array, multiplier: Any, right_shift: Any, zero_point: int = 0
    ) -> Array:
        out = self.by.exact(accumulators, multiplier, right_shift, zero_point) - zero_point
        return np.where(out < 0, out >> self.shift, out) + zero_point

    def max_deviation(self, right_shift: Array) -> Any:
        return 1.0  # no float32 estimate shows the shifted code: ``exact`` computes every output

    def real(self, multiplier: Any, right_shift: Any) -> Array:
        return self.by.real(multiplier, right_shift)


def half_away(values: Any) -> Array:
    """Return real numbers rounded to whole numbers, ties away from zero, as float64. The result is
    exact for float32 and float64 numbers.
    """
    values = np.asarray(values, np.float64)
    whole = np.trunc(values)
    return whole + np.where(np.abs(values - whole) >= 0.5, np.sign(values), 0.0)


def whole(values: Array) -> Array:
    """Return real numbers that are whole as int64, clamped to -2**62 to 2**62."""
    return values.clip(-(2.0**62), 2.0**62).astype(np.int64)
