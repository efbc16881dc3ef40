"""Rounding rules against their definitions in whole numbers."""

from __future__ import annotations

from fractions import Fraction
from math import floor

import numpy as np
import pytest

from npulab.quant import ROUNDINGS, RULES, Mantissa, QuantParams, ratio_of_scales, requantize, rule, shift_right


def rounded(value: Fraction, rounding: str) -> int:
    """The definition of each rounding, on an exact fraction."""
    if rounding == "floor":
        return floor(value)
    if rounding == "toward-zero":
        return floor(value) if value >= 0 else -floor(-value)
    if rounding == "half-up":
        return floor(value + Fraction(1, 2))
    if rounding == "half-away":
        return floor(value + Fraction(1, 2)) if value >= 0 else -floor(-value + Fraction(1, 2))
    return round(value)  # Python rounds ties to even


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_shift_right_is_its_definition(rounding: str) -> None:
    random = np.random.RandomState(7)
    values = np.concatenate([np.arange(-70, 71), random.randint(-2 ** 60, 2 ** 60, 200)])
    for shift in [0, 1, 2, 3, 5, 17, 47, 61, 62, 63, 90, 127, 252]:
        want = [rounded(Fraction(int(value), 2 ** shift), rounding) for value in values]
        assert shift_right(values, shift, rounding).tolist() == want, shift


def test_shift_right_takes_a_shift_per_channel() -> None:
    assert shift_right(np.array([6, 6, 6]), np.array([0, 1, 2]), "half-even").tolist() == [6, 3, 2]


def test_unknown_rounding_names_the_known() -> None:
    with pytest.raises(LookupError, match="got 'nearest', allowed is one of floor, toward-zero"):
        shift_right(np.array([1]), 1, "nearest")
    with pytest.raises(LookupError, match="got 'gut feeling', allowed is one of gemmlowp"):
        rule("gut feeling")
    with pytest.raises(LookupError, match="got 24 bits"):
        Mantissa("too many", bits=24)


@pytest.mark.parametrize("bits", [15, 23])
def test_mantissa_cuts_the_float32_scale(bits: int) -> None:
    random = np.random.RandomState(3)
    for scale in random.uniform(1e-6, 2, 300):
        multiplier, shift = (int(n) for n in Mantissa("of so many bits", bits=bits).multiplier(1.0, scale, 1.0))
        single = Fraction(float(np.float32(scale)))
        got = Fraction(multiplier) / Fraction(2) ** shift
        assert 2 ** bits <= multiplier < 2 ** (bits + 1)
        assert 0 <= single - got < single / 2 ** bits


def test_mantissa_rounds_each_product_to_float32() -> None:
    random = np.random.RandomState(4)
    for a, b, c in random.uniform(0.001, 0.5, (200, 3)):
        single = np.float32(np.float32(np.float32(a) * np.float32(b)) / np.float32(c))
        assert Mantissa("23 bits", bits=23).multiplier(a, b, c)[0] == 2 ** 23 + (int(single.view(np.uint32)) & 0x7FFFFF)


def test_captured_multiplier_and_shift() -> None:
    assert [int(n) for n in Mantissa("15 bits", bits=15).multiplier(1.0, 45246 / 2 ** 23, 1.0)] == [45246, 23]


def reference_multiplier(scale: float) -> tuple[int, int]:
    """TFLite's QuantizeMultiplier in exact fractions: (multiplier, left shift)."""
    value, exponent = Fraction(scale), 0
    while value >= 1:
        value, exponent = value / 2, exponent + 1
    while value < Fraction(1, 2):
        value, exponent = value * 2, exponent - 1
    whole = floor(value * 2 ** 31 + Fraction(1, 2))
    return (2 ** 30, exponent + 1) if whole == 2 ** 31 else (whole, exponent)


def reference_apply(accumulator: int, multiplier: int, exponent: int) -> int:
    """gemmlowp's saturating rounding doubling high multiply and rounding divide by a power of two."""
    wrapped = (accumulator * 2 ** max(exponent, 0) + 2 ** 31) % 2 ** 32 - 2 ** 31
    product = wrapped * multiplier
    nudged = product + (2 ** 30 if product >= 0 else 1 - 2 ** 30)
    high = abs(nudged) // 2 ** 31 * (1 if nudged >= 0 else -1)
    shift = max(-exponent, 0)
    low, mask = high % 2 ** shift, 2 ** shift - 1
    return high // 2 ** shift + int(low > mask // 2 + (high < 0))


def test_tflite_reference_is_its_definition() -> None:
    by, random = RULES["gemmlowp"], np.random.RandomState(5)
    scales = [*random.uniform(1e-4, 1.5, 40), 0.5, 0.25, 2.0 ** -9, 1.0, 2.0 ** -31, 1 - 2.0 ** -24]
    for scale in scales:
        multiplier, right = by.multiplier(1.0, np.float32(scale), 1.0)
        want = reference_multiplier(float(np.float32(scale)))
        assert (int(multiplier), -int(right)) == want
        accumulators = np.concatenate([random.randint(-2 ** 31, 2 ** 31, 200), np.arange(-300, 300)])
        got = by.exact(accumulators, multiplier, right)
        assert got.tolist() == [reference_apply(int(a), *want) for a in accumulators], scale


def test_three_orders_of_forming_the_ratio() -> None:
    a, b, c = 0.0031, 0.0017, 0.093
    f = np.float32
    want = {"D": float(f(a)) * float(f(b)) / float(f(c)), "P": float(f(a) * f(b)) / float(f(c)),
            "S": float(f(f(a) * f(b)) / f(c))}
    assert len(set(want.values())) == 3
    for order, ratio in want.items():
        assert ratio_of_scales(a, b, c, order) == ratio
        assert int(rule(f"gemmlowp:{order}").multiplier(a, b, c)[0]) == reference_multiplier(ratio)[0]


def test_requantize_adds_the_zero_point_then_clamps() -> None:
    sums = np.array([12861, -14632, 12426, 30146, 10933, 4854, 2018, 5900, 4733])
    got = requantize(sums, "vivante-v7:half-even", 45246, 23, 119, 0, 255)
    assert bytes(got.astype(np.uint8)).hex(" ").upper() == "BC 28 BA FF B2 91 82 97 91"
    floored = requantize(sums, RULES["vivante-v7:floor"], 45246, 23, 119, 0, 255)
    assert bytes(floored.astype(np.uint8)).hex(" ").upper() == "BC 28 BA FF B1 91 81 96 90"


def test_every_rule_is_found_by_its_name() -> None:
    assert [rule(name).name for name in RULES] == list(RULES)
    assert rule(RULES["vivante-v7:floor"]).name == "vivante-v7:floor"


@pytest.mark.parametrize("scale", [0, -1.0, float("nan"), float("inf"), [], [[1.0]]])
def test_scale_that_is_none(scale: object) -> None:
    with pytest.raises(ValueError, match="allowed is a positive number or one per channel"):
        QuantParams(scale)


def test_scale_out_of_float32() -> None:
    with pytest.raises(ValueError, match=r"ratio of scales: got 0\.0, allowed is a positive finite float32"):
        RULES["vivante-v7:floor"].multiplier(1e-30, 1e-30, 1.0)


def test_quant_params_compare_and_print() -> None:
    assert QuantParams(np.float32(0.5), np.int64(3)) == QuantParams(0.5, 3)
    assert repr(QuantParams([0.5, 1.0], 3)) == "QuantParams(scale=(0.5, 1.0), zero_point=3)"


@pytest.mark.parametrize("zero_point", [1.5, float("inf"), "x"])
def test_zero_point_that_is_not_whole(zero_point: object) -> None:
    with pytest.raises(ValueError, match=r"^zero_point: got .*, allowed is a whole number$"):
        QuantParams(1.0, zero_point)
