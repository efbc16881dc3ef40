"""What is said of rules that fit and of those that do not, word for word, and where ranges and
numbers of probes end.
"""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from npulab.quant.emulate import emulate
from npulab.quant.identify import Closest, Group, Identification, identify_rounding
from npulab.quant.layers import Conv2D
from npulab.quant.probes import rounding_probes
from npulab.quant.rules import QuantParams, rule

ONE = QuantParams(1.0)


def ask(
    sums: Any, outputs: Any, ratio: Any = 1.0, zero_point: int = 0, **more: Any
) -> Identification:
    outputs = np.asarray(outputs)
    outputs = outputs.astype(np.int8) if outputs.dtype == int else outputs
    return identify_rounding(
        np.asarray(sums),
        outputs,
        **{
            "input_q": ONE,
            "weight_q": QuantParams(ratio),
            "output_q": QuantParams(1.0, zero_point),
            **more,
        },
    )


@pytest.mark.parametrize(
    ("sums", "outputs", "ratio", "said"),
    [
        ([1, 2, 3], [1, 2, 4], 1.0, "all +1"),
        ([1, 2, 3, 4, 5], [2, 3, 2, 4, 5], 1.0, "2 +1, 1 -1"),
        ([1, 2, 3, 4], [0, 4, 6, 4], 1.0, "1 -1, 1 +2, 1 +3"),
        ([1, 2, 3, 4], [0, 4, 6, 8], 1.0, "by -1 to +4, mean +2"),
        ([1, 2, 3, 4, 5], [0, 4, 6, 8, 9], 1.0, "by -1 to +4, mean +2.4"),
        ([-1, 0, 3], [-2, 0, 3], 1.0, "all -1, all of negative accumulators"),
        ([-1, 0, 3], [-2, -1, 3], 1.0, "all -1, 1 of negative accumulators"),
        ([300, 126], [127, 127], 1.0, "all +1, all saturated"),
        ([-127, 126, 5], [-128, 125, 4], 1.0, "all -1, 1 of negative accumulators, 1 saturated"),
        ([3, 5, 7, 8], [1, 2, 3, 4], 0.5, "all -1, all at ties"),
        ([3, -5, 8], [1, -3, 3], 0.5, "all -1, 2 at ties, 1 of negative accumulators"),
        ([6, -6], [1, -2], 0.25, "all -1, all at ties, 1 of negative accumulators"),
        ([5, 7], [2, 3], 0.25, "all +1"),
    ],
)
def test_what_mismatches_have_in_common(
    sums: list[int], outputs: list[int], ratio: float, said: str
) -> None:
    found = ask([[one] for one in sums], [[one] for one in outputs], ratio, rules="single-half-up")
    wrong = sum(
        np.clip(np.floor(one * ratio + 0.5), -128, 127) != code
        for one, code in zip(sums, outputs, strict=True)
    )
    assert found.closest == (Closest("single-half-up", wrong, said),)
    saturated = sum(code in (-128, 127) for code in outputs)
    assert str(found) == (
        f"no rule fits all {len(sums)} outputs{f' ({saturated} saturated)' * (saturated > 0)}; "
        f"closest single-half-up: {wrong} differ ({said})"
    )


def test_the_first_mismatch_is_in_the_table() -> None:
    sums = np.array([[1, 2], [3, 4], [5, 6]])
    outputs = sums.copy()
    outputs[1, 1], outputs[2, 0] = 0, 9
    table = ask(sums, outputs, rules=["gemmlowp", "single-half-up", "qnnpack-q31"]).table
    assert table.rule.tolist() == [
        "gemmlowp",
        "single-half-up",
        "qnnpack-q31",
    ]  # as they were given; what does not apply is last
    assert table.iloc[0, 1:8].tolist() == [2, 6, False, 4, 1, 0, 4]
    assert table.reason.map(bool).tolist() == [False, False, True]
    fit = ask(sums, sums, rules=["qnnpack-q31", "gemmlowp"])
    assert (fit.closest, fit.by_channel) == ((), None)
    table = fit.table
    assert table.rule.tolist() == ["gemmlowp", "qnnpack-q31"]
    assert table.index.tolist() == [0, 1]
    assert (table.fits.tolist(), table.compared.tolist(), table.mismatches.tolist()[0]) == (
        [True, False],
        [6, 0],
        0,
    )


def test_ranges_of_channels_are_the_fewest() -> None:
    """Ties alone, of which half-up and half-away make different codes."""
    sums = np.array([[-3] * 6, [-5] * 6])
    up, away = np.array([[-1], [-2]]), np.array([[-2], [-3]])
    rules = ["single-half-up", "q31-half-away"]
    for kinds, ranges in (
        ("uaauuu", [(0, 1, "u"), (1, 3, "a"), (3, 6, "u")]),
        ("uuuaaa", [(0, 3, "u"), (3, 6, "a")]),
        ("auuuua", [(0, 1, "a"), (1, 5, "u"), (5, 6, "a")]),
    ):
        found = ask(
            sums, np.hstack([up if one == "u" else away for one in kinds]), 0.5, rules=rules
        )
        names = {"u": ("single-half-up",), "a": ("q31-half-away",)}
        assert found.by_channel is not None
        assert [tuple(one) for one in found.by_channel.to_numpy().tolist()] == [
            (first, end, names[one]) for first, end, one in ranges
        ]
        assert str(found).split("; ")[2:] == [
            f"channels {first} to {end - 1}: {names[one][0]}" for first, end, one in ranges
        ]
    either, half = (
        np.arange(6) < 2,
        np.where(np.arange(6) < 4, up, away),
    )  # the first two are no ties
    found = ask(
        np.where(either, [[-4], [-6]], sums), np.where(either, [[-2], [-3]], half), 0.5, rules=rules
    )
    assert found.by_channel is not None
    assert found.by_channel.to_numpy().tolist() == [
        [0, 4, ("single-half-up",)],
        [4, 6, ("q31-half-away",)],
    ]
    none = ask(sums, np.hstack([up] * 5 + [up + 5]), 0.5, rules=rules)
    assert none.by_channel is None
    assert [one.rule for one in none.closest] == ["single-half-up"]


def test_what_an_identification_says_of_itself() -> None:
    def made(fits: str, *groups: Group, **more: Any) -> str:
        return str(Identification(None, tuple(fits), groups, 9, more.pop("saturated", 0), **more))

    apart, alike = Group(("a", "b", "c"), "not separated", False), Group(("a", "b"), "one function")
    assert made("a") == "a fits all 9 outputs"
    assert made("a", saturated=1) == "a fits all 9 outputs (1 saturated)"
    assert made("ab", alike) == "a, b fit all 9 outputs: one function"
    assert made("abc", apart, alike) == "a, b, c fit all 9 outputs: not told apart"
    assert made("abcdef", apart).startswith("a, b, c, d, e, f fit all")
    assert made("abcdefg", apart).startswith("a, b, c, d, e, f and 1 more fit all")
    assert made("") == "no rule applies to these 9 outputs"
    assert (
        made("", engines=("x", "y")) == "no rule applies to these 9 outputs; engines that fit: x, y"
    )
    assert (
        made("", closest=(Closest("a", 3, "all +1"), Closest("b", 3, "all -1")))
        == "no rule fits all 9 outputs; closest a, b: 3 differ (all +1)"
    )
    assert repr(Identification(None, ("a",), (), 9, 0)) == "Identification(a fits all 9 outputs)"


@pytest.mark.parametrize(
    ("total", "fits"), [(2**47 - 1, True), (-(2**47), True), (2**47, False), (-(2**47) - 1, False)]
)
def test_sums_of_int16_codes_have_48_bits(total: int, fits: bool) -> None:
    outputs = np.array([[2**15 - 1 if total > 0 else -(2**15)]], np.int16)
    found = ask([[total]], outputs)
    assert found.fits == (
        tuple(name for name in found.table.rule if name in found.fits) if fits else ()
    )
    assert ("float32-even" in found.fits, "int16x8" in found.fits) == (fits, fits)


def test_every_candidate_is_taken_once() -> None:
    rules = ["single-half-up", "q31-half-away"]
    with pytest.raises(ValueError, match=r"allowed is a whole number, 1 to (\d+)$") as told:
        rounding_probes("int8", rules, count=10**9)
    most = int(str(told.value).split()[-1])
    for count in (1, 2, 5, most):
        found = rounding_probes("int8", rules, count=count)
        places = [*zip(found.scales.tolist(), found.accumulators.tolist(), strict=True)]
        assert len(places) == count
        assert places == sorted(places)
        if count < most:
            assert len(set(places)) == count
    with pytest.raises(ValueError, match=rf"got {most + 1}, allowed"):
        rounding_probes("int8", rules, count=most + 1)
    with pytest.raises(ValueError, match=r"got 0, allowed"):
        rounding_probes("int8", rules, count=0)
    assert np.all(np.abs(found.accumulators) < 2**31)


def test_seeds_reach_from_end_to_end() -> None:
    assert [
        len(rounding_probes("int8", ["gemmlowp", "ruy-x86"], seed=seed).scales)
        for seed in (0, 2**32 - 1)
    ] == [1, 1]
    for seed in (-1, 2**32):
        with pytest.raises(
            ValueError, match=rf"^seed: got {seed}, allowed is a whole number, 0 to 4294967295$"
        ):
            rounding_probes("int8", seed=seed)


def test_a_layer_has_the_channels_of_its_outputs() -> None:
    layer = Conv2D(
        np.zeros((3, 1, 1, 1), np.int8),
        np.zeros(3, int),
        (1, 1, 1),
        input_q=ONE,
        weight_q=ONE,
        output_q=ONE,
    )
    with pytest.raises(
        ValueError, match=r"^layer: got 3 channels, allowed is 2 channels, as the outputs have$"
    ):
        identify_rounding([[1, 2]], np.int8([[1, 2]]), layer)
    assert "gemmlowp" in identify_rounding([[1, 2, 3]], np.int8([[1, 2, 3]]), layer).fits


def test_the_witness_tells_the_most_rules_apart() -> None:
    """At a ratio of a half all differ at ties; an accumulator that separates more rules is told
    before one that separates two.
    """
    rules = [
        "vivante-v8:floor",
        "vivante-v8:half-up",
        "vivante-v8:half-away",
        "vivante-v8:half-even",
    ]
    found = ask([[2, 4]], [[1, 1]], [0.5, 0.25], rules=rules)
    assert found.fits == tuple(rules)
    said = re.fullmatch(
        r"not separated by these accumulators: accumulator (-?\d+) in channel (\d) would give (.*)",
        found.groups[0].reason,
    )
    assert said
    ratio = (0.5, 0.25)[int(said[2])]
    codes: dict[int, list[str]] = {}
    for name in rules:
        codes.setdefault(
            int(rule(name).exact(np.array(int(said[1])), *rule(name).multiplier(1.0, ratio, 1.0))),
            [],
        ).append(name)
    assert len(codes) == 2  # no number has a third neighbour
    told = re.findall(r"(-?\d+) by ((?:[a-z0-9:-]+(?:, (?!-?\d+ by))?)+)", said[3])
    assert {int(code): names.rstrip(", ").split(", ") for code, names in told} == codes


def test_engines_of_probes_fit_all_of_their_layers() -> None:
    """With a scale for each layer an engine fits that makes the outputs of all layers, not of
    one.
    """
    found = rounding_probes("int8", ["gemmlowp", "float32-even"], per_channel=False, count=4)
    assert len(found.layers) > 1
    outputs = [
        emulate(layer, np.zeros(layer.input_shape, np.int8), "tflite-reference")
        for layer in found.layers
    ]
    assert "tflite-reference" in found.name(outputs).engines
    outputs[0] = outputs[0] ^ 64
    assert found.name(outputs).engines == ()


def test_probes_take_every_code_of_their_type_and_no_other() -> None:
    found = rounding_probes("int8", ["gemmlowp", "ruy-x86"], count=2)
    for code, fits in ((-128, True), (127, True), (-129, False), (128, False)):
        if fits:
            assert found.name(np.array([code, code])).compared == 2
        else:
            with pytest.raises(
                ValueError, match=rf"^outputs: got {code} of probe 0, allowed is 2 codes of int8"
            ):
                found.name(np.array([code, 0]))
    assert rule("gemmlowp").fast(np.array(6), 2**30, 0, 1, -128, 127).tolist() == 4


def test_rules_that_no_candidate_tells_apart() -> None:
    plain = rule("gemmlowp")

    class Copied(type(plain)):  # type: ignore[misc]
        """The same by other code."""

    copied = Copied(
        **{one.name: getattr(plain, one.name) for one in fields(plain)} | {"name": "copied"}
    )
    found = rounding_probes("int8", [plain, copied, "float32-even"])
    (group,) = found.groups
    assert (group.rules, group.same) == (("gemmlowp", "copied"), False)
    assert re.fullmatch(r"not separated by any of \d+ candidates", group.reason)


def test_real_outputs_need_no_scale_of_their_own() -> None:
    sums = np.array([[0, 5], [-7, 9]])
    quantized = {"input_q": QuantParams(0.5), "weight_q": QuantParams(0.25)}
    found = identify_rounding(
        sums, (sums * 0.125).astype(np.float32), **quantized, rules=["hybrid-float32"]
    )
    assert found.fits == ("hybrid-float32",)
    with pytest.raises(ValueError, match=r"^output_q: got None"):
        identify_rounding(sums, sums.astype(np.int8), **quantized)


def test_rules_that_share_no_ratio_have_no_probes() -> None:
    plain = rule("gemmlowp")

    class Refusing(type(plain)):  # type: ignore[misc]
        def multiplier(self, *scales: Any) -> Any:
            raise ValueError("no scale is right")

    refusing = Refusing(
        **{one.name: getattr(plain, one.name) for one in fields(plain)} | {"name": "refusing"}
    )
    with pytest.raises(
        ValueError,
        match=r"^rules: got 1 rules, allowed are rules with a ratio of scales in common; no scale is right$",
    ):
        rounding_probes("int8", [refusing])
