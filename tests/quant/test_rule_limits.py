"""What rounding rules, codes and clamps do exactly at their limits, against whole numbers and
fractions.
"""

from __future__ import annotations

from fractions import Fraction
from math import floor
from typing import Any

import numpy as np
import pytest

from npulab.quant.codes import codes_by_rule, real_values, same_codes
from npulab.quant.requantize import Requantizer, Scratch
from npulab.quant.rules import NAMED, RULES, Leaky, Mantissa, Rule, TwoSteps, rule

DEVIATING = [
    rule(name)
    for name in ("gemmlowp", "ruy-x86", "q31-half-away", "rockchip-rv1103:half-even-twice")
]


def boundary(value: Fraction, direction: str) -> Fraction:
    """How far a number is from where its rounding changes."""
    at = value + (Fraction(1, 2) if direction == "nearest" else 0)
    return min(at - floor(at), floor(at) + 1 - at)


def nearest(value: Fraction, direction: str) -> int:
    """Rounded as a rule says that it approximates; ties, which are boundaries, go up."""
    if direction == "nearest":
        return floor(value + Fraction(1, 2))
    return floor(value) if direction == "floor" or value >= 0 else -floor(-value)


@pytest.mark.parametrize("by", DEVIATING, ids=lambda by: by.name)
def test_maximum_deviation_is_never_passed_and_nearly_reached(by: Rule) -> None:
    """Where a rule says another code than its rounding of the real value, the value is that near
    to a boundary.
    """
    steps = isinstance(by, TwoSteps)
    multipliers = (10007 * 2**16 + 2**15 - 1,) if steps else (2**31 - 1, 3 * 2**29)
    for right in (0, 1, 2, 6, 14, 15, 17, 20):
        furthest = Fraction(0)
        for multiplier in multipliers:
            real = Fraction(
                10007 * (2**15 - 1) if steps else multiplier,
                2 ** (right + (14 if steps else by.fraction_bits)),
            )
            middle = [
                round(Fraction(n, 2) / real) for n in range(-101, 102, 2)
            ]  # beside the boundaries
            sums = sorted(
                {one + step for one in middle for step in range(-2, 3)} | set(range(-300, 301))
            )
            sums = [one for one in sums if by.accumulators[0] <= one <= by.accumulators[1]]
            for one, code in zip(
                sums, by.exact(np.array(sums), multiplier, right).tolist(), strict=True
            ):
                if code != nearest(one * real, by.rounding_direction):
                    furthest = max(furthest, boundary(one * real, by.rounding_direction))
        said = Fraction(float(np.max(by.max_deviation(np.array([right])))))
        assert furthest <= said, right
        assert said <= 4 * furthest or (said == Fraction(1, 2) and steps), right


@pytest.mark.parametrize(
    "name",
    [
        "float32-even",
        "float32-zero-point-first",
        "float32-half-away",
        "gemmlowp",
        "float64-half-away",
    ],
)
def test_fast_is_exact_however_wide_the_clamp(name: str) -> None:
    by = rule(name)
    for power in (7, 15, 21, 22, 23, 30):
        for zero in (0, -(2**power) + 1, 2**power - 1):
            some = np.concatenate(
                [
                    np.arange(-20, 20),
                    (np.arange(-20, 20) - zero) * 2,
                    2**power - zero + np.arange(-20, 20),
                ]
            )
            formed = by.multiplier(1.0, 0.5, 1.0)
            low, high = -(2**power), 2**power - 1
            sums = some.clip(*by.accumulators)
            want = by.exact(sums[:, None], *formed, zero).clip(low, high)
            assert np.array_equal(by.fast(sums[:, None], *formed, zero, low, high), want), (
                power,
                zero,
            )


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [(np.int8, -128, 127), (np.uint8, 0, 255), (np.int16, -(2**15), 2**15 - 1)],
)
@pytest.mark.parametrize(
    "names",
    [
        ("float32-even",) * 2,
        ("float32-zero-point-first",) * 2,
        ("gemmlowp",) * 2,
        ("vivante-v7:floor",) * 2,
        ("single-half-up", "gemmlowp"),
        ("float32-even", "float32-half-away"),
    ],
)
def test_outputs_of_a_requantizer_in_any_memory(
    names: tuple[str, str], dtype: Any, low: int, high: int
) -> None:
    """Rows with gaps, several channels, one rule in the vector body and another in the tail;
    more than are asked again at a time.
    """
    body, tail = rule(names[0]), rule(names[1])
    zero = (high + low + 1) // 2 + 3
    multiplier, right = body.multiplier(1.0, np.array([0.5, 0.3, 1.0]), 1.0)
    sums = np.resize(np.stack([np.arange(-300, 301)] * 3, 1), (9000, 3)) * (
        1 if high < 2**10 else 99
    )
    parts = ((body, 0, 1), (tail, 1, 3)) if body != tail else ((body, 0, 3),)
    want = np.concatenate(
        [
            by.exact(sums[:, first:end], multiplier[first:end], right[first:end], zero)
            for by, first, end in parts
        ],
        1,
    ).clip(low, high)
    ready = Requantizer(parts, multiplier, right, zero, low, high)
    for columns in (slice(0, 3), slice(1, 4)):
        memory = np.full((9000, columns.stop + columns.start), 77, dtype)
        out = memory[:, columns]
        for kind in (np.float64, np.float32):
            at, asked = ready(sums.astype(kind), out, Scratch())
            assert asked.tolist() == sums.ravel()[at].tolist()
            ready.recompute(at, asked, out)
            assert np.array_equal(out, want)
        assert np.all(np.delete(memory, np.arange(columns.start, columns.stop), axis=1) == 77)


def test_few_are_asked_again_beside_a_channel_that_asks_many() -> None:
    """A shift of 1 leaves half of gemmlowp's values open, one of 20 hardly any: each channel has
    its own limit.
    """
    multiplier, right = np.array([2**30, 2**30]), np.array([1, 20])
    limits = -(2**15), 2**15 - 1
    ready = Requantizer.of(rule("gemmlowp"), (multiplier, right), 0, limits, 2)
    sums = np.random.RandomState(1).randint(-(2**31), 2**31, (4000, 2)) // [2**16, 1]
    at, _ = ready(sums.astype(np.float64), np.empty(sums.shape, np.int16), Scratch())
    asked = np.bincount(at % 2, minlength=2)
    assert 1000 < asked[0] <= 4000
    assert asked[1] < 200


def test_scratch_memory_is_used_again_where_it_is_large_enough() -> None:
    scratch = Scratch()
    first = scratch.take("a", (4, 6), np.float32)
    assert (first.shape, first.dtype) == ((4, 6), np.float32)
    for shape in ((4, 6), (24,), (2, 3), (0, 3)):
        again = scratch.take("a", shape, np.float32)
        assert again.shape == shape
        assert not again.size or np.shares_memory(again, first)
    assert not np.shares_memory(scratch.take("b", (4, 6), np.float32), first)
    larger = scratch.take("a", (5, 5), np.float32)
    assert larger.shape == (5, 5)
    assert not np.shares_memory(larger, first)
    assert np.shares_memory(scratch.take("a", (4, 6), np.float32), larger)
    other = scratch.take("a", (4, 6), np.int16)
    assert other.dtype == np.int16
    assert scratch.take("a", (2, 3), np.int16).dtype == np.int16


def test_codes_of_scales_given_as_one_ratio_or_as_three() -> None:
    sums = [5, -3, 2**31 - 1, 5]
    of_ratio, of_three = codes_by_rule(sums, 0.25, 3), codes_by_rule(sums, (0.5, 2.0, 4.0), 3)
    assert of_ratio.equals(of_three)
    assert of_ratio.columns.tolist() == [-3, 5, 2**31 - 1]
    assert of_ratio.index.tolist() == [name for name, by in RULES.items() if "uint8" in by.types]
    assert of_ratio.loc["gemmlowp"].tolist() == [2, 5, 2**29 + 3]  # 1.25 becomes 2.5, 3, 1.5, 2
    assert of_ratio.loc["single-half-up"].tolist() == [2, 4, 2**29 + 3]
    assert (
        real_values([1, -3], (0.5, 2.0, 4.0)).tolist()
        == real_values([1, -3], 0.25).tolist()
        == [0.25, -0.75]
    )
    assert codes_by_rule(7, 0.5, rules=rule("gemmlowp")).loc["gemmlowp"].tolist() == [4]
    assert codes_by_rule([2**47 - 1], 2.0**-30, rules="int16x8").to_numpy().tolist() == [[2**17]]
    for scales in ((0.5, 2.0), (1.0, 0.5, 2.0, 4.0)):
        with pytest.raises(
            ValueError,
            match=rf"^scales: got {len(scales)} numbers, allowed is one \(the ratio\) or three \(the scales of input, weights and output\)$",
        ):
            codes_by_rule(sums, scales)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^accumulators: got none, allowed is one or more$"):
        codes_by_rule([], 0.25)
    with pytest.raises(ValueError, match=r"^accumulators: got \[9223372036854775808\], allowed"):
        codes_by_rule([2**63], 0.25)
    same = same_codes(
        codes_by_rule(
            [-2, 2], 0.25, rules=["vivante-v7:half-up", "vivante-v7:half-away", "single-half-up"]
        )
    )
    assert [(names, codes.tolist()) for names, codes in same] == [
        (("vivante-v7:half-up", "single-half-up"), [0, 1]),
        (("vivante-v7:half-away",), [-1, 1]),
    ]


@pytest.mark.parametrize("by", NAMED.values(), ids=lambda by: by.name)
def test_a_zero_point_left_out_is_zero(by: Rule) -> None:
    factors = by.multiplier(1.0, np.array([0.75]), 1.0)
    sums = np.arange(-20, 20)[:, None]
    assert by.exact(sums, *factors).tolist() == by.exact(sums, *factors, 0).tolist()
    if by.types != ("float32",):
        whole = 4 * sums  # no ties
        assert by.exact(whole, *factors, 3).tolist() == (by.exact(whole, *factors) + 3).tolist()


def test_a_channel_that_is_wrong_is_named_where_there_are_several() -> None:
    by = rule("gemmlowp")
    for weights, words in (
        (0.0, "got 0.0,"),
        ([0.0], "got 0.0,"),
        ([1.0, 0.0], "got 0.0 in channel 1,"),
        ([0.0, 1.0], "got 0.0 in channel 0,"),
        ([1.0, np.inf, -1.0], "got inf in channel 1,"),
    ):
        with pytest.raises(
            ValueError, match=f"^weight scale: {words} allowed is a positive finite float32$"
        ):
            by.multiplier(1.0, weights, 1.0)


def test_widths_of_a_mantissa_from_one_bit_to_all() -> None:
    for bits, (multiplier, right) in {1: (3, 1), 2: (7, 2), 23: (15 * 2**20 + 1, 23)}.items():
        assert [
            int(one) for one in Mantissa("m", bits=bits).multiplier(1.0, 1.875 + 2.0**-23, 1.0)
        ] == [multiplier, right]
    for bits in (0, 24):
        with pytest.raises(
            LookupError,
            match=f"^rule: got {bits} bits, 'half-even'; allowed is 1 to 23 bits and floor",
        ):
            Mantissa("m", bits=bits)


def test_leaks_shift_what_is_below_the_zero_point() -> None:
    by = rule("gemmlowp")
    one = Leaky("leaky", by=by)
    codes = one.exact(np.array([40, 2, 0, -2, -14, -16]), 2**30, 0, 5).tolist()
    assert codes == [25, 6, 5, 4, 1, 1]  # the half of a half, rounded down
    assert (
        one.fast(np.arange(-600, 600)[:, None], 2**30, 0, 5, -128, 127).tolist()
        == one.exact(np.arange(-600, 600)[:, None], 2**30, 0, 5).clip(-128, 127).tolist()
    )
