"""Rounding rules against their definitions in whole numbers."""

from __future__ import annotations

from fractions import Fraction
from math import floor
from typing import Any

import numpy as np
import pytest

from npulab.quant.codes import codes_by_rule
from npulab.quant.floats import Near
from npulab.quant.requantize import requantize
from npulab.quant.rules import (
    ROUNDINGS,
    RULES,
    LeadingBits,
    Mantissa,
    QuantParams,
    Rule,
    TwoSteps,
    ratio_of_scales,
    rule,
    shift_right,
    whole,
)


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
    values = np.concatenate([np.arange(-70, 71), random.randint(-(2**60), 2**60, 200)])
    for shift in [0, 1, 2, 3, 5, 17, 47, 61, 62, 63, 90, 127, 252]:
        want = [rounded(Fraction(int(value), 2**shift), rounding) for value in values]
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
        multiplier, shift = (
            int(n) for n in Mantissa("of so many bits", bits=bits).multiplier(1.0, scale, 1.0)
        )
        single = Fraction(float(np.float32(scale)))
        got = Fraction(multiplier) / Fraction(2) ** shift
        assert 2**bits <= multiplier < 2 ** (bits + 1)
        assert 0 <= single - got < single / 2**bits


def test_mantissa_rounds_each_product_to_float32() -> None:
    random = np.random.RandomState(4)
    for a, b, c in random.uniform(0.001, 0.5, (200, 3)):
        single = np.float32(np.float32(np.float32(a) * np.float32(b)) / np.float32(c))
        assert Mantissa("23 bits", bits=23).multiplier(a, b, c)[0] == 2**23 + (
            int(single.view(np.uint32)) & 0x7FFFFF
        )


def test_captured_multiplier_and_shift() -> None:
    assert [int(n) for n in Mantissa("15 bits", bits=15).multiplier(1.0, 45246 / 2**23, 1.0)] == [
        45246,
        23,
    ]


def test_three_orders_of_forming_the_ratio() -> None:
    a, b, c = 0.0031, 0.0017, 0.093
    f = np.float32
    want = {
        "D": float(f(a)) * float(f(b)) / float(f(c)),
        "P": float(f(a) * f(b)) / float(f(c)),
        "S": float(f(f(a) * f(b)) / f(c)),
    }
    assert len(set(want.values())) == 3
    for order, ratio in want.items():
        assert ratio_of_scales(a, b, c, order) == ratio
        assert rule(f"float64-half-away:{order}").multiplier(a, b, c)[0] == ratio


def test_requantize_adds_the_zero_point_then_clamps() -> None:
    sums = np.array([12861, -14632, 12426, 30146, 10933, 4854, 2018, 5900, 4733])
    got = requantize(sums, "vivante-v7:half-even", 45246, 23, 119, 0, 255)
    assert bytes(got.astype(np.uint8)).hex(" ").upper() == "BC 28 BA FF B2 91 82 97 91"
    floored = requantize(sums, RULES["vivante-v7:floor"], 45246, 23, 119, 0, 255)
    assert bytes(floored.astype(np.uint8)).hex(" ").upper() == "BC 28 BA FF B1 91 81 96 90"


@pytest.mark.parametrize("name", [*RULES, "14 bits"])
def test_a_multiplier_says_its_ratio(name: str) -> None:
    by = RULES.get(name, LeadingBits("14 bits"))
    for scale in (0.0053937435, 0.25, 0.0017):
        real = float(np.asarray(by.real(*by.multiplier(1.0, scale, 1.0))).flat[0])
        assert real == pytest.approx(scale, rel=2.0**-6), (name, scale)


def test_every_rule_is_found_by_its_name() -> None:
    assert [rule(name).name for name in RULES] == list(RULES)
    assert rule(RULES["vivante-v7:floor"]).name == "vivante-v7:floor"


@pytest.mark.parametrize(
    "scale",
    [0, -1.0, float("nan"), float("inf"), [], [[1.0]], "a", None, 1j, 10**400, (1.0, 0.0)],
)
def test_scale_that_is_none(scale: object) -> None:
    with pytest.raises(ValueError, match="allowed is a positive number or one per channel"):
        QuantParams(scale)


def test_scale_out_of_float32() -> None:
    with pytest.raises(
        ValueError, match=r"ratio of scales: got 0\.0, allowed is a positive finite float32"
    ):
        RULES["vivante-v7:floor"].multiplier(1e-30, 1e-30, 1.0)


def test_quant_params_compare_and_print() -> None:
    assert QuantParams(np.float32(0.5), np.int64(3)) == QuantParams(0.5, 3)
    assert repr(QuantParams([0.5, 1.0], 3)) == "QuantParams(scale=(0.5, 1.0), zero_point=3)"


@pytest.mark.parametrize("zero_point", [1.5, float("inf"), "x", None, (1, 2)])
def test_zero_point_that_is_not_whole(zero_point: object) -> None:
    with pytest.raises(ValueError, match=r"^zero_point: got .*, allowed is a whole number$"):
        QuantParams(1.0, zero_point)


def boundary_sums(random: np.random.RandomState, ratio: np.ndarray, count: int) -> np.ndarray:
    """Accumulators ``(count, C)`` of which most lie beside a rounding boundary, the rest
    anywhere.
    """
    whole = random.randint(-170, 171, (count, ratio.size)) + random.choice(
        [0.0, 0.5], (count, ratio.size)
    )
    sums = np.rint(whole / ratio) + random.randint(-2, 3, whole.shape)
    sums[::5] = np.rint(random.uniform(-400, 400, sums[::5].shape) / ratio)
    return np.clip(sums, -(2**31), 2**31 - 1).astype(np.int64)


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", [name for name in RULES if RULES[name].types != ("float32",)])
def test_fast_is_exact(name: str) -> None:
    by, random, ties = RULES[name], np.random.RandomState(11), 0
    for trial in range(60):
        ratio = 2.0 ** random.uniform(-24, -0.1, random.randint(1, 7))
        ratio = 2.0 ** np.round(np.log2(ratio)) if trial % 3 == 0 else ratio
        ratio = ratio.astype(np.float32).clip(2.0**-24, 0.99).astype(np.float64)
        dtype = "int16" if by.types == ("int16",) else ["int8", "uint8"][trial % 2]
        info = np.iinfo(dtype)
        zero, reach = int(random.randint(info.min, info.max)), 1 if info.bits == 8 else 256
        sums = boundary_sums(random, ratio, 300) * reach
        sums = sums.clip(-(2**31), 2**31 - 1)
        formed = by.multiplier(1.0, ratio, 1.0)
        want = by.exact(sums, *formed, zero).clip(info.min, info.max)
        assert np.array_equal(by.fast(sums, *formed, zero, info.min, info.max), want), trial
        ties += np.count_nonzero(np.abs(sums * ratio % 1 - 0.5) < 1e-9)
    assert ties > 500, "the sums hardly ask about ties"


@pytest.mark.parametrize("ratio", [1.0, 1.5, 3.7, 100.0, 2.0**20])
def test_fast_is_exact_where_registers_wrap(ratio: float) -> None:
    random = np.random.RandomState(12)
    sums = np.concatenate(
        [random.randint(-(2**31), 2**31, (300, 1)), random.randint(-300, 300, (300, 1))]
    )
    for by in (
        rule("gemmlowp"),
        rule("ruy-x86"),
        rule("single-half-up"),
        rule("vivante-v7:half-up"),
    ):
        formed = by.multiplier(1.0, ratio, 1.0)
        want = by.exact(sums, *formed, 3).clip(-128, 127)
        assert np.array_equal(by.fast(sums, *formed, 3, -128, 127), want), by.name


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gemmlowp", "multiplier: got 2147483648, allowed with gemmlowp is 0 to 2147483647"),
        (
            "vivante-v7:floor",
            "multiplier: got 2147483648, allowed with vivante-v7:floor is 32768 to 65535",
        ),
        ("nvdla", "multiplier: got 2147483648, allowed with nvdla is -32768 to 32767"),
    ],
)
def test_multiplier_out_of_range(name: str, words: str) -> None:
    with pytest.raises(ValueError, match=f"^{words}$"):
        requantize(np.array([1]), name, 2**31, 3, 0, -128, 127)


@pytest.mark.parametrize(
    ("name", "shift"),
    [
        ("gemmlowp", 32),
        ("gemmlowp", -31),
        ("nvdla", 64),
        ("nvdla", -1),
        ("int16x8", -8),
        ("float32-even", 1),
        ("vivante-v8:half-up", -5),
    ],
)
def test_right_shift_out_of_range(name: str, shift: int) -> None:
    least = RULES[name].multipliers[0]
    with pytest.raises(ValueError, match=f"^right_shift: got {shift}, allowed with {name} is "):
        requantize(
            np.array([1]),
            name,
            max(least, 1e-30) if least < 1 and least else least,
            shift,
            0,
            -128,
            127,
        )


def test_accumulator_out_of_range_names_its_channel() -> None:
    sums = np.zeros((4, 3), np.int64)
    sums[2, 1] = 2**31
    words = "^accumulator: got 2147483648 in channel 1, allowed with gemmlowp is -2147483648 to 2147483647$"
    with pytest.raises(ValueError, match=words):
        requantize(sums, "gemmlowp", 2**30, 5, 0, -128, 127)
    assert (
        requantize(sums, "vivante-v7:floor", 2**15, 15, 0, -128, 127)[2, 1] == -128
    )  # its register wraps
    with pytest.raises(ValueError, match="allowed with int16x8 is -140737488355328"):
        requantize(sums * 2**17, "int16x8", 2**14, 5, 0, -32768, 32767)


@pytest.mark.parametrize(
    ("scales", "words"),
    [
        ((0.0, 1.0, 1.0), r"^input scale: got 0\.0, allowed is a positive finite float32$"),
        ((1.0, [0.5, -1.0], 1.0), r"^weight scale: got -1\.0 in channel 1, allowed"),
        ((1.0, 1.0, float("nan")), r"^output scale: got nan, allowed"),
        ((1e-40, 1e-40, 1.0), "^ratio of scales: got 0"),
        ((1.0, 1e39, 1.0), r"^weight scale: got 1e\+39, allowed"),
    ],
)
def test_scales_that_make_no_ratio(scales: tuple[object, ...], words: str) -> None:
    for name in ("gemmlowp:P", "float32-even", "vivante-v8:floor", "nvdla:S"):
        with pytest.raises(ValueError, match=words):
            rule(name).multiplier(*scales)


@pytest.mark.parametrize(
    ("name", "ratio", "words"),
    [
        (
            "gemmlowp",
            2.0**31,
            r"^ratio of scales: got 2.14748e\+09, allowed with gemmlowp is below 2\*\*30$",
        ),
        (
            "qnnpack-q31",
            1.0,
            r"^ratio of scales: got 1, allowed with qnnpack-q31 is 2\*\*-32 up to 1, 1 excluded$",
        ),
        ("nvdla", 2.0**15, r"allowed with nvdla is below 2\*\*15$"),
        ("int16x8", 128.0, r"allowed .* is below 2\*\*7$"),
    ],
)
def test_ratio_that_a_rule_cannot_say(name: str, ratio: float, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        rule(name).multiplier(1.0, ratio, 1.0)


BOUNDS: dict[str, tuple[Rule, tuple[float, float], tuple[float, float], tuple[int, int]]] = {
    # the rule: its least ratio (0: any), the power of two that its ratios stay below, multipliers
    # and right shifts that occur
    "gemmlowp": (rule("gemmlowp"), (0, 2.0**30), (0, 2**31 - 1), (-30, 31)),
    "single-half-up": (rule("single-half-up"), (0, 2.0**30), (0, 2**31 - 1), (-30, 31)),
    "qnnpack-q31": (rule("qnnpack-q31"), (2.0**-32, 1), (2**30, 2**31 - 128), (0, 31)),
    "qnnpack-precise": (
        rule("qnnpack-precise"),
        (2.0**-126, 2.0**28),
        (2**23, 2**24 - 1),
        (-4, 149),
    ),
    "vivante-v7:floor": (
        rule("vivante-v7:floor"),
        (2.0**-126, 2.0**28),
        (2**15, 2**16 - 1),
        (-12, 141),
    ),
    "nvdla": (rule("nvdla"), (0, 2.0**15), (0, 2**15 - 1), (0, 63)),
    "int16x8": (rule("int16x8"), (0, 2.0**7), (0, 2**15 - 1), (-7, 31)),
    "leading": (LeadingBits("leading"), (2.0**-126, 2.0**15), (2**14, 2**15), (0, 140)),
}
FRACTIONS = (0.5, 0.5 + 2.0**-24, 0.75, 1 - 2.0**-24)


@pytest.mark.parametrize("name", BOUNDS)
def test_ratios_multipliers_and_right_shifts_reach_from_end_to_end(name: str) -> None:
    by, (least, below), multipliers, shifts = BOUNDS[name]
    ratios = np.array(
        sorted(np.ldexp(one, power) for one in FRACTIONS for power in range(-160, 66))
    )
    if by.order == "S":
        ratios = ratios[ratios.astype(np.float32) == ratios]
    fits = (ratios >= least) & (ratios < below)
    found, right = by.of_ratio(ratios[fits])
    for one in (*ratios[ratios < least][-1:], *ratios[ratios >= below][:1]):
        with pytest.raises(ValueError, match=r"^ratio of scales: got "):
            by.of_ratio(np.array([one]))
    assert (found.min(), right.min(), right.max()) == (multipliers[0], *shifts)
    assert multipliers[1] - 128 <= found.max() <= multipliers[1]
    by.refuse(found, right)
    for low, high, others in ((*by.multipliers, shifts[0]), (*by.right_shifts, multipliers[1])):
        for given, fine in ((low, True), (high, True), (low - 1, False), (high + 1, False)):
            pair = (given, others) if (low, high) == by.multipliers else (others, given)
            if fine:
                by.refuse(*pair)
            else:
                with pytest.raises(
                    ValueError, match=rf"got {given}, allowed with {by.name} is {low} to {high}$"
                ):
                    by.refuse(*pair)
    assert (by.multipliers[0], by.right_shifts) == (
        -(2**15) if name == "nvdla" else multipliers[0],
        shifts,
    )
    assert by.multipliers[1] == (2**31 - 1 if name == "qnnpack-q31" else multipliers[1])
    # within what the last bit of a multiplier says, where it has all of its bits
    whole = found >= max(by.multipliers[1] // 2, 1)
    if name == "leading":  # of a mantissa of ones its driver makes half of the ratio
        whole &= np.frexp(ratios[fits])[0] < 0.999
    assert whole.any()
    assert np.allclose(
        by.real(found, right)[whole], ratios[fits][whole], rtol=4 / by.multipliers[1], atol=0
    )


@pytest.mark.parametrize("name", ["float32-even", "float32-half-away", "float64-half-away"])
def test_ratios_of_real_rules_are_their_own_factor(name: str) -> None:
    by = rule(name)
    ratios = np.array([2.0**-140, 0.3, 2.0**64])
    factor, right = by.of_ratio(ratios)
    assert (factor.tolist(), right.tolist(), by.real(factor, right).tolist()) == (
        ratios.tolist(),
        [0, 0, 0],
        ratios.tolist(),
    )
    by.refuse(factor, right)
    least = 5e-324 if name.startswith("float64") else 2.0**-149
    by.refuse(np.array([least, 2.0**64]), 0)
    for factor, right in ((2.0**65, 0), (least / 2, 0), (0.0, 0), (1.0, 1), (1.0, -1)):
        with pytest.raises(ValueError, match=r"^(multiplier|right_shift): got "):
            by.refuse(factor, right)
    with pytest.raises(ValueError, match=r"is up to 2\*\*64$"):
        by.of_ratio(np.array([2.0**65]))


def test_shares_of_two_steps() -> None:
    by = TwoSteps("two steps")
    for most, right in (
        (2.0**15 - 1, 0),
        (2.0**14, 0),
        (1.0, 14),
        (1 - 2.0**-20, 14),
        (0.9, 15),
        (2.0**-60, 63),
    ):
        found, shifts = by.of_ratio(np.array([most, most / 2, most / 2**15]))
        share, of_all = by.split(found)
        assert (share.tolist(), set(of_all.tolist()), set(shifts.tolist())) == (
            [2**14, 2**13, 0],
            {round(most * 2.0**right)},
            {right},
        )
        by.refuse(found, shifts)
        assert by.real(found, shifts)[:2] == pytest.approx(
            [most, most / 2], rel=2.0**-2 if most < 1e-10 else 2.0**-14
        )
    with pytest.raises(ValueError, match=r"is at most 2\*\*15 - 1$"):
        by.of_ratio(np.array([1.0, 2.0**15 - 0.5]))
    for wrong in (2**14 * 2**16 + 2**15, 0):
        with pytest.raises(ValueError, match=r"^multiplier: got "):
            by.refuse(wrong, 3)
    for wrong in (-1, 64):
        with pytest.raises(ValueError, match=r"^right_shift: got "):
            by.refuse(2**30 + 1, wrong)
    assert by.types == LeadingBits("x").types == ("int8", "uint8")


def test_near_numbers_are_as_near_as_they_say() -> None:
    """Sums and products of doubles against whole fractions: what is not in values and tail is
    within the error.
    """
    rng = np.random.default_rng(3)
    numbers = [np.ldexp(rng.standard_normal(40), rng.integers(-30, 30, 40)) for _ in range(6)]
    near, exact = Near(numbers[0]), [Fraction(one) for one in numbers[0].tolist()]
    for step, by in enumerate(numbers[1:]):
        near = near * by if step % 2 else near + by
        exact = [
            a * Fraction(b) if step % 2 else a + Fraction(b)
            for a, b in zip(exact, by.tolist(), strict=True)
        ]
        tails, errors = (np.broadcast_to(one, 40).tolist() for one in (near.tail, near.error))
        left = [
            abs(one - Fraction(value) - Fraction(tail))
            for one, value, tail in zip(exact, near.values.tolist(), tails, strict=True)
        ]
        assert all(one <= Fraction(error) for one, error in zip(left, errors, strict=True)), step
        assert step > 0 or not any(errors)  # one sum is exact
        assert (
            all(
                abs(tail) <= np.spacing(abs(value))
                for value, tail in zip(near.values.tolist(), tails, strict=True)
            )
            or step
        )
        assert all(
            error <= 2.0**-90 * (abs(value) + 2.0**60)
            for value, error in zip(near.values.tolist(), errors, strict=True)
        )
    assert all(errors)


@pytest.mark.parametrize("given", [[0.5], [1.0], [2**63], ["a"], [True]])
def test_what_is_no_accumulator(given: list[Any]) -> None:
    with pytest.raises(
        ValueError, match=r"^accumulators: got \[.*\], allowed are whole numbers within int64$"
    ):
        codes_by_rule(given, 0.25)


def test_results_at_the_ends_of_their_registers() -> None:
    """17 bits behind NVDLA's shift; shifts of nothing and to the left; real numbers cut off at
    2**62.
    """
    sums = np.array([2**30, 65535, 65536, -65536, -65537, -(2**30)])
    assert rule("nvdla").exact(sums, 1, 0).tolist() == [65535, 65535, 65535, -65536, -65536, -65536]
    assert rule("nvdla").exact(sums[:1], 2**14, 40, 5).tolist() == [21]
    cut = rule("vivante-v7:floor")
    assert [cut.exact(np.array([3, -3]), 2**15 + 1, shift).tolist() for shift in (-1, 0, 1)] == [
        [6 * (2**15 + 1), -6 * (2**15 + 1)],
        [3 * (2**15 + 1), -3 * (2**15 + 1)],
        [49153, -49154],
    ]
    assert whole(np.array([1e300, 2.0**61, -(2.0**61), -1e300])).tolist() == [
        2**62,
        2**61,
        -(2**61),
        -(2**62),
    ]
