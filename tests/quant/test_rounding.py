"""Rounding rules named: from chosen probes, from ordinary layers, from runtimes as black boxes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from oracles import litert, micro

from npulab.models import single_op_model
from npulab.quant.emulate import accumulate, clamp_range, emulate
from npulab.quant.emulate.engines import EXACT as ENGINE_NAMES
from npulab.quant.functions import functions
from npulab.quant.identify import Identification, identify_rounding
from npulab.quant.layers import Conv2D, FullyConnected
from npulab.quant.probes import Probes, rounding_probes
from npulab.quant.rules import (
    RULES,
    DoubleRounding,
    Mantissa,
    QuantParams,
    Rule,
    SingleRounding,
    half_away,
    ratio_of_scales,
    rule,
)

DTYPES = ("int8", "uint8", "int16")
PROBES = {"int8": 8, "uint8": 8, "int16": 6}
CASES = [(dtype, name) for dtype in DTYPES for name, by in RULES.items() if dtype in by.types]
SAME = {frozenset({"qnnpack-precise", "vivante-v8:half-away"})}
ZERO = frozenset({"float32-even", "float32-zero-point-first"})
probes = cache(rounding_probes)


def same(dtype: str) -> set[frozenset[str]]:
    """The rules that are one function."""
    return SAME | {ZERO} if dtype == "int16" else SAME


def black_box(name: str | Rule, layer: Any) -> np.ndarray:
    """Outputs of a layer of weights 0 by a rule's definition."""
    by, info = rule(name), np.iinfo(layer.dtype)
    factors = by.multiplier(
        layer.input_q.scale, np.asarray(layer.weight_q.scale), layer.output_q.scale
    )
    return np.clip(
        by.exact(layer.bias, *factors, layer.output_q.zero_point), info.min, info.max
    ).astype(layer.dtype)


@cache
def ordinary(kind: str, whole: bool = False) -> tuple[Conv2D, np.ndarray, np.ndarray]:
    """(layer, input, accumulators): 3x3 "depthwise" or 1x1 "pointwise"; ``whole``: ratios that
    are powers of two.
    """
    random = np.random.RandomState(1)
    depthwise = kind == "depthwise"
    shape = (56, 56, 64) if depthwise else (28, 28, 512)
    weights = random.randint(-127, 128, (1, 3, 3, 64) if depthwise else (256, 1, 1, 512)).astype(
        np.int8
    )
    count = weights.shape[3 if depthwise else 0]
    scales = 50 / (5402 * np.sqrt(9 if depthwise else 512)) * random.uniform(0.5, 1, count)
    scales = 2.0 ** np.rint(np.log2(scales)) if whole else scales
    layer = Conv2D(
        weights,
        random.randint(-500, 500, count),
        shape,
        padding="same",
        depthwise=depthwise,
        input_q=QuantParams(2.0**-5 if whole else 0.0235, -3),
        weight_q=QuantParams(scales),
        output_q=QuantParams(2.0**-5 if whole else 0.0241, 5),
    )
    x = random.randint(-128, 128, shape).astype(np.int8)
    return layer, x, accumulate(layer, x)


@pytest.mark.sample(22)
@pytest.mark.parametrize(("dtype", "name"), CASES)
def test_every_rule_is_named_from_the_probes(dtype: str, name: str) -> None:
    found = probes(dtype).name(black_box(name, probes(dtype).layer))
    assert set(found.fits) == next((group for group in same(dtype) if name in group), {name})
    assert [set(group.rules) for group in found.groups] == [set(found.fits)] * (len(found.fits) > 1)
    assert all(group.same and group.reason.startswith("one function: ") for group in found.groups)


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", DTYPES)
def test_probes_are_few_and_separate_every_pair(dtype: str) -> None:
    for per_channel in (True, False):
        found = rounding_probes(dtype, per_channel=per_channel)
        assert len(found.accumulators) == len(found.scales) == PROBES[dtype]
        assert {frozenset(group.rules) for group in found.groups} == same(dtype)
        for a, b in combinations(found.expected.index, 2):
            alike = np.array_equal(found.expected.loc[a], found.expected.loc[b])
            assert alike == any({a, b} <= group for group in same(dtype)), (a, b)
            assert np.array_equal(
                found.expected.loc[a],
                np.concatenate([black_box(a, layer) for layer in found.layers]),
            )


def test_reasons_are_structure() -> None:
    assert [group.reason for group in probes("int16").groups] == [
        "one function: Mantissa with order S, register 32, bits 23, ties half-away",
        "one function: Float with order S, ties half-even, zero_point_first False, the zero point being 0",
    ]
    assert len(functions([rule("qnnpack-q31"), rule("gemmlowp:S")])) == 1
    assert len(functions([rule("float32-even:P"), rule("float32-even")])) == 1
    assert len(functions([rule("float64-half-away:P"), rule("float64-half-away:S")])) == 2
    assert (
        len(functions([rule("float32-even"), rule("float32-zero-point-first")], zero_point=2)) == 2
    )


def test_probes_are_the_same_again_and_fit_a_layer() -> None:
    first, again = probes("int8"), rounding_probes("int8")
    assert single_op_model(first.layer) == single_op_model(again.layer)
    assert np.array_equal(accumulate(first.layer, first.x)[0, 0], first.accumulators)
    assert first.layers == (first.layer,)
    assert len(rounding_probes("int8", seed=7).scales) <= 16
    assert repr(first) == "Probes(8 accumulators at 6 scales tell 22 int8 rules into 21 groups)"


def test_one_scale_per_tensor_is_a_layer_each() -> None:
    found = rounding_probes("uint8", per_channel=False)
    assert len(found.layers) == len(set(found.scales)) <= 5
    assert all(isinstance(layer.weight_q.scale, float) for layer in found.layers)
    outputs = [black_box("fp16", layer) for layer in found.layers]
    assert found.name(outputs).fits == ("fp16",)
    for asked in (lambda: found.layer, lambda: found.x):
        with pytest.raises(
            ValueError,
            match=r"^layer: got probes of \d layers, one for each scale, allowed is one layer: use \.layers$",
        ):
            asked()


HOW = (
    "floor",
    "toward-zero",
    "half-up",
    "half-even",
    "half-away",
    "half-down",
    "half-odd",
    "half-toward-zero",
)


def foreign(found: Probes, bits: int | None, how: str) -> np.ndarray:
    """Codes of a unit whose multiplier has so many bits, rounded to nearest, and whose ties go
    where none listed do.
    """
    first, codes = found.layers[0], []
    for total, scale in zip(found.accumulators.tolist(), found.scales, strict=True):
        ratio = Fraction(
            float(ratio_of_scales(first.input_q.scale, scale, first.output_q.scale, "D"))
        )
        unit = Fraction(2) ** ((bits or 0) - math.frexp(ratio)[1])
        real = total * (
            Fraction(math.floor(ratio * unit + Fraction(1, 2))) / unit if bits else ratio
        )
        floor, tie = math.floor(real), real % 1 == Fraction(1, 2)
        at_tie = {
            "half-up": 1,
            "half-even": floor % 2,
            "half-away": real >= 0,
            "half-down": 0,
            "half-odd": 1 - floor % 2,
            "half-toward-zero": real < 0,
        }
        up = {"floor": 0, "toward-zero": real < 0 and real != floor}.get(
            how, at_tie.get(how, 0) if tie else real % 1 > 0.5
        )
        codes.append(floor + int(up) + first.output_q.zero_point)
    info = np.iinfo(first.dtype)
    return np.clip(codes, info.min, info.max)


ALL_BITS = (None, 8, 12, 15, 16, 18, 24, 31)


# of the 25, 23 have the same outputs as a listed rule on 768 further accumulators
@pytest.mark.parametrize(
    ("dtype", "widths", "named"),
    [
        ("int8", (None, 15), [9, 6]),
        pytest.param("int8", ALL_BITS, [40, 25], marks=pytest.mark.long),
        pytest.param("uint8", ALL_BITS, [40, 25], marks=pytest.mark.long),
    ],
)
def test_more_probes_name_fewer_rules_that_nobody_listed(
    dtype: str, widths: tuple[int | None, ...], named: list[int]
) -> None:
    for found, count in zip((probes(dtype), probes(dtype, count=16)), named, strict=True):
        boxes = product(widths, HOW)
        assert sum(bool(found.name(foreign(found, *box)).fits) for box in boxes) == count


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", DTYPES)
def test_more_probes_hold_ties_of_both_signs_and_parities(dtype: str) -> None:
    few = rounding_probes(dtype)
    for per_channel in (True, False):
        found = rounding_probes(dtype, per_channel=per_channel, count=16)
        assert len(found.accumulators) == 16
        assert {frozenset(group.rules) for group in found.groups} == same(dtype)
        real = (
            found.accumulators
            * found.scales
            * found.layers[0].input_q.scale
            / found.layers[0].output_q.scale
        )
        ties = real[real % 1 == 0.5]
        assert {(one < 0, np.floor(one) % 2) for one in ties.tolist()} == {
            (a, b) for a in (False, True) for b in (0, 1)
        }
        assert found.name(found.expected.loc["float64-half-away"]).fits == ("float64-half-away",)
    assert np.array_equal(
        rounding_probes(dtype, count=len(few.scales)).accumulators, few.accumulators
    )


ENGINES = [
    ("conv", "reference", "gemmlowp"),
    ("conv", "builtin", "ruy-x86"),
    ("conv", "auto", "float32-even"),
    ("conv", "micro", "gemmlowp"),
    ("depthwise", "reference", "gemmlowp"),
    ("depthwise", "auto", "float32-even"),
    ("fully_connected", "reference", "float64-half-away"),
    ("fully_connected", "builtin", "ruy-x86"),
    ("fully_connected", "auto", "float32-even"),
    ("fully_connected", "micro", "gemmlowp"),
]
OTHERS = [
    ("uint8", "conv", "reference", "gemmlowp"),
    ("uint8", "conv", "builtin", "ruy-x86"),
    ("uint8", "conv", "auto", "float32-even"),
    ("uint8", "depthwise", "builtin", "gemmlowp"),
    ("uint8", "fully_connected", "reference", "float64-half-away"),
    ("int16", "conv", "reference", "int16x8"),
    ("int16", "depthwise", "builtin", "int16x8"),
    ("int16", "fully_connected", "reference", "float64-half-away"),
]


def run(found: Probes, engine: str) -> list[np.ndarray]:
    """Outputs of the probes' models in a runtime."""
    inputs = [np.zeros((1, *layer.input_shape), layer.dtype) for layer in found.layers]
    models = [single_op_model(layer) for layer in found.layers]
    if engine == "micro":
        return [micro(model, x) for model, x in zip(models, inputs, strict=True)]
    return [litert(model, x, kernels=engine)[0] for model, x in zip(models, inputs, strict=True)]


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("dtype", "op", "engine", "name"), [*[("int8", *one) for one in ENGINES], *OTHERS]
)
def test_runtime_is_named_from_the_probes(dtype: str, op: str, engine: str, name: str) -> None:
    found = rounding_probes(dtype, per_channel=dtype != "uint8", op=op)
    named = found.name(run(found, engine))
    assert named.fits == (name,)
    kernels = {
        "reference": "tflite-reference",
        "builtin": "tflite-builtin",
        "auto": "xnnpack",
        "micro": "tflite-micro",
    }
    assert kernels[engine] in named.engines


@pytest.mark.parametrize(("dtype", "name"), [("int8", "gemmlowp:D"), ("uint8", "gemmlowp:P")])
def test_order_of_scales_is_named_where_it_is_asked(dtype: str, name: str) -> None:
    rules = [
        f"{one}:{order}"
        for one in ("gemmlowp", "float64-half-away", "float32-even")
        for order in "DPS"
    ]
    found = rounding_probes(dtype, rules, per_channel=dtype != "uint8")
    assert [set(group.rules) for group in found.groups] == [{"float32-even:P", "float32-even:S"}]
    assert found.name(run(found, "reference")).fits == (name,)


NEAREST = {
    "single-half-up",
    "q31-half-away",
    "qnnpack-precise",
    "float32-even",
    "float64-half-away",
    "vivante-v8:half-up",
    "vivante-v8:half-even",
    "vivante-v8:half-away",
}
HALF_AWAY = {
    "q31-half-away",
    "qnnpack-precise",
    "float32-half-away",
    "float64-half-away",
    "vivante-v7:half-away",
    "vivante-v8:half-away",
    "nvdla",
}


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("kind", "whole", "name", "most"),
    [
        ("depthwise", False, "tflite-reference", {"gemmlowp", "qnnpack-q31"}),
        ("depthwise", False, "ruy-x86", {"ruy-x86"}),
        ("pointwise", False, "tflite-reference", {"gemmlowp", "qnnpack-q31"}),
        ("pointwise", False, "ruy-x86", {"ruy-x86"}),
        ("depthwise", False, "vivante-v7:floor", {"vivante-v7:floor"}),
        ("depthwise", False, "nvdla", {"nvdla"}),
        ("pointwise", False, "fp16", {"fp16"}),
        (
            "pointwise",
            False,
            "vivante-v7:half-up",
            {f"vivante-v7:half-{ties}" for ties in ("up", "away", "even")},
        ),
        (
            "depthwise",
            False,
            "xnnpack",
            NEAREST | {"float32-zero-point-first", "float32-half-away"},
        ),
        (
            "depthwise",
            True,
            "xnnpack",
            {"float32-even", "vivante-v7:half-even", "vivante-v8:half-even"},
        ),
        ("depthwise", True, "nvdla", HALF_AWAY),
        ("depthwise", True, "torch-onednn", {"float32-zero-point-first"}),
    ],
)
def test_ordinary_layer_tells_the_family(kind: str, whole: bool, name: str, most: set[str]) -> None:
    layer, x, sums = ordinary(kind, whole)
    found = identify_rounding(sums, emulate(layer, x, name), layer)
    assert found.fits
    assert set(found.fits) <= most
    assert found.compared == sums.size == 200_704
    if len(found.fits) > 1:
        assert set(found.groups[0].rules) == set(found.fits)
        assert found.groups[0].reason.startswith("not separated by these accumulators: ")
        assert not found.groups[0].same
        assert ": not told apart" in str(found)
    assert found.engines == tuple(
        one
        for one in ENGINE_NAMES
        if np.array_equal(emulate(layer, x, one), emulate(layer, x, name))
    )


def test_witness_would_separate() -> None:
    layer, x, sums = ordinary("pointwise")
    found = identify_rounding(sums[:2], emulate(layer, x, "gemmlowp")[:2], layer)
    assert found.fits == ("gemmlowp", "qnnpack-q31")
    said = re.search(
        r"accumulator (-?\d+) in channel (\d+) would give (-?\d+) by (\S+).*?, (-?\d+) by (\S+?)(,|$)",
        found.groups[0].reason,
    )
    assert said, found.groups
    total, channel = int(said[1]), int(said[2])
    for code, name in ((said[3], said[4].rstrip(",")), (said[5], said[6])):
        factors = rule(name).multiplier(
            layer.input_q.scale, layer.weight_q.scale[channel], layer.output_q.scale
        )
        assert int(rule(name).exact(np.array(total), *factors, layer.output_q.zero_point)) == int(
            code
        )


def test_power_of_two_scales_hide_the_width_of_the_multiplier() -> None:
    layer, x, sums = ordinary("depthwise", True)
    found = identify_rounding(sums, emulate(layer, x, "nvdla"), layer)
    assert str(found).startswith(
        "q31-half-away, qnnpack-precise, float32-half-away, float64-half-away, "
        "vivante-v7:half-away, vivante-v8:half-away and 1 more fit all 200704 outputs ("
    )
    found = identify_rounding(sums, emulate(layer, x, "vivante-v7:half-up"), layer)
    assert found.groups[0].reason.endswith(
        "no accumulator near a boundary with these scales would; the scales of rounding_probes do"
    )
    assert rounding_probes("int8", found.fits).groups == ()


def test_planted_wrong_outputs_are_found() -> None:
    layer, x, sums = ordinary("depthwise")
    outputs = emulate(layer, x, "ruy-x86")
    outputs[3, 4, 5] += 1
    outputs[6, 7, 5] += 1
    found = identify_rounding(sums, outputs, layer)
    assert found.fits == ()
    assert found.closest[0][:2] == ("ruy-x86", 2)
    assert found.closest[0].pattern.startswith("all +1")
    assert found.by_channel is None
    first = found.table.iloc[0]
    assert first[
        ["rule", "mismatches", "compared", "fits", "accumulator", "channel", "got"]
    ].tolist() == ["ruy-x86", 2, 200_704, False, sums[3, 4, 5], 5, outputs[3, 4, 5]]
    assert first.predicted == first.got - 1
    assert found.table.mismatches.is_monotonic_increasing
    assert str(found).startswith("no rule fits all 200704 outputs (")
    assert "; closest ruy-x86: 2 differ (all +1" in str(found)


def test_pattern_says_ties() -> None:
    layer, x, sums = ordinary("depthwise", True)
    found = identify_rounding(
        sums, emulate(layer, x, "float32-half-away"), layer, rules="single-half-up"
    )
    assert found.closest[0].pattern.startswith("all -1, all at ties, all of negative accumulators")


def test_kernel_that_mixes_rules_is_told_by_channel() -> None:
    random = np.random.RandomState(2)
    layer = Conv2D(
        random.randint(-127, 128, (1, 3, 3, 20)).astype(np.int8),
        np.arange(20),
        (40, 40, 20),
        padding="same",
        depthwise=True,
        input_q=QuantParams(0.02),
        weight_q=QuantParams(random.uniform(0.001, 0.004, 20)),
        output_q=QuantParams(0.05, 3),
    )
    x = random.randint(-128, 128, (40, 40, 20)).astype(np.int8)
    outputs = litert(single_op_model(layer), x[None], kernels="builtin")[0][0]
    found = identify_rounding(accumulate(layer, x), outputs, layer)
    assert found.fits == ()
    assert found.by_channel is not None
    (a, b, body), (c, d, tail) = found.by_channel.to_numpy().tolist()
    assert (a, b, c, d) == (0, 16, 16, 20)
    assert body == ("ruy-x86",)
    assert "gemmlowp" in tail
    assert set(tail) <= {"gemmlowp", "qnnpack-q31"}
    assert "; channels 0 to 15: ruy-x86; channels 16 to 19: gemmlowp" in str(found)
    assert str(found).endswith("; engines that fit: tflite-builtin")
    asked = identify_rounding(
        accumulate(layer, x), outputs, layer, rules=["gemmlowp", "tflite-builtin", "xnnpack"]
    )
    assert asked.fits == asked.engines == ("tflite-builtin",)
    assert asked.table.rule[0] == "tflite-builtin"


def test_engine_is_named_by_a_layer_with_its_own_clamp() -> None:
    layer, x, sums = ordinary("pointwise")
    layer = replace(
        layer, activation="relu_n1_to_1", output_q=QuantParams(2 / 3, 3)
    )  # codes 1.5 and 4.5: ties
    found = identify_rounding(sums, emulate(layer, x, "xnnpack"), layer, rules=ENGINE_NAMES)
    low, high = clamp_range(layer, np.int8, "xnnpack")
    assert (low, high) != clamp_range(layer, np.int8)
    assert found.fits == found.engines == ("xnnpack",)
    assert not identify_rounding(sums, emulate(layer, x, "onnxruntime"), layer).engines.count(
        "xnnpack"
    )


def test_engine_and_rule_of_one_function_say_so() -> None:
    layer, x, sums = ordinary("pointwise")
    found = identify_rounding(
        sums, emulate(layer, x, "xnnpack"), layer, rules=["xnnpack", "float32-even"]
    )
    assert [group.rules for group in found.groups] == [("xnnpack", "float32-even")]
    assert str(found) == (
        "xnnpack, float32-even fit all 200704 outputs ("
        f"{found.saturated} saturated): one function; "
        "engines that fit: xnnpack, onnxruntime, torch-fbgemm"
    )
    assert (
        identify_rounding(
            sums,
            emulate(layer, x, "xnnpack"),
            input_q=layer.input_q,
            weight_q=layer.weight_q,
            output_q=layer.output_q,
        ).engines
        == ()
    )


def test_rule_that_does_not_apply_says_why() -> None:
    sums = np.arange(-60, 60).reshape(-1, 1)
    found = identify_rounding(
        sums,
        sums.astype(np.int8),
        input_q=QuantParams(1.0),
        weight_q=QuantParams(1.0),
        output_q=QuantParams(1.0),
        rules=["qnnpack-q31", "gemmlowp", "int16x8"],
    )
    assert found.fits == ("gemmlowp",)
    table = found.table.set_index("rule")
    assert table.reason["qnnpack-q31"] == (
        "not applicable: ratio of scales: got 1, allowed with qnnpack-q31 is 2**-32 "
        "up to 1, 1 excluded"
    )
    assert (
        table.reason["int16x8"]
        == "not applicable: outputs: got int8, allowed with int16x8 is int16"
    )
    assert table.mismatches.isna().tolist() == [False, True, True]
    none = identify_rounding(
        sums,
        sums.astype(np.int8),
        input_q=QuantParams(1.0),
        weight_q=QuantParams(1.0),
        output_q=QuantParams(1.0),
        rules=["int16x8"],
    )
    assert str(none) == "no rule applies to these 120 outputs"


def test_int16_sums_past_32_bits() -> None:
    layer = Conv2D(
        np.zeros((2, 1, 1, 1), np.int8),
        np.array([2**40 + 3, -(2**39)]),
        (1, 1, 1),
        dtype="int16",
        input_q=QuantParams(1.0),
        weight_q=QuantParams(1.0),
        output_q=QuantParams(2.0**26),
    )
    found = identify_rounding(
        layer.bias, black_box(replace(rule("float64-half-away"), register=48), layer), layer
    )
    assert {"float64-half-away", "int16x8", "float32-even"} <= set(found.fits)
    assert (
        "in channel 0, allowed with gemmlowp is -2147483648"
        in found.table.set_index("rule").reason["gemmlowp"]
    )


def test_real_outputs() -> None:
    sums = np.array([[100, -3], [7, 2**25 + 1]])
    layer = FullyConnected(
        np.zeros((2, 4), np.int8),
        np.array([0.5, -0.25]),
        weight_q=QuantParams([0.1, 0.3]),
        dtype="float32",
    )
    scale = np.float32(0.007) * np.array([0.1, 0.3], np.float32)
    outputs = sums.astype(np.float32) * scale + layer.bias
    assert identify_rounding(sums, outputs, layer, input_q=QuantParams(0.007)).fits == (
        "hybrid-float32",
    )
    outputs[1, 0] += 1
    found = identify_rounding(sums, outputs, layer, input_q=QuantParams(0.007))
    assert found.closest[0].mismatches == 1


def test_rule_of_ones_own_is_named() -> None:
    class Upwards(DoubleRounding):
        """Ties of both roundings up, a bit of the multiplier lost."""

        def of_ratio(self, ratio: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            multiplier, right_shift = super().of_ratio(ratio)
            return multiplier // 2 * 2, right_shift

    mine = Upwards("mine", ties="half-up")
    found = rounding_probes("int8", [*(name for dtype, name in CASES if dtype == "int8"), mine])
    assert len(found.scales) <= 16
    assert found.name(black_box(mine, found.layer)).fits == ("mine",)


ONE = QuantParams(1.0)


def ask(**changes: Any) -> Identification:
    given: dict[str, Any] = {
        "accumulators": np.zeros((3, 2), int),
        "outputs": np.zeros((3, 2), np.int8),
        "input_q": ONE,
        "weight_q": ONE,
        "output_q": ONE,
    }
    return identify_rounding(**(given | changes))


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (
            lambda: ask(outputs=np.zeros((2, 3), np.int8)),
            ValueError,
            r"^outputs: got shape \(2, 3\), allowed is the accumulators' shape \(3, 2\), \(\.\.\., C\) and not empty$",
        ),
        (
            lambda: ask(accumulators=np.zeros((0, 2), int), outputs=np.zeros((0, 2), np.int8)),
            ValueError,
            "not empty$",
        ),
        (
            lambda: ask(accumulators=np.zeros((3, 2))),
            TypeError,
            "^accumulators: got float64, allowed are whole numbers$",
        ),
        (
            lambda: ask(outputs=np.zeros((3, 2), int)),
            TypeError,
            "^outputs: got int64, allowed is int8, uint8, int16 or float32$",
        ),
        (
            lambda: ask(weight_q=None),
            ValueError,
            r"^weight_q: got None, allowed is QuantParams\(scale, zero_point\), or a layer that has it$",
        ),
        (lambda: ask(output_q=0.5), ValueError, "^output_q: got 0.5, allowed is QuantParams"),
        (
            lambda: ask(weight_q=QuantParams([1.0, 1.0, 1.0])),
            ValueError,
            "^weight_q: got 3 scales, allowed is 1 or 2, one per channel$",
        ),
        (
            lambda: ask(input_q=QuantParams([1.0, 1.0])),
            ValueError,
            "^input_q: got 2 scales, allowed is one, a plain number$",
        ),
        (lambda: ask(activation="gelu"), ValueError, "^activation: got 'gelu', allowed is one of"),
        (
            lambda: ask(rules=["gut feeling"]),
            LookupError,
            "^rule: got 'gut feeling', allowed is one of gemmlowp",
        ),
        (
            lambda: ask(outputs=[[1, 2], [3]]),
            ValueError,
            r"^outputs: got a list that is not an array, allowed is an array \(\.\.\., C\)$",
        ),
        (
            lambda: ask(accumulators=[[1, 2], [3]]),
            ValueError,
            "^accumulators: got a list that is not an array",
        ),
        (
            lambda: ask(accumulators=np.full((3, 2), 2**63, np.uint64)),
            ValueError,
            r"^accumulators: got 9223372036854775808, allowed is below 2\*\*63$",
        ),
        (
            lambda: ask(output_q=QuantParams([1.0])),
            ValueError,
            "^output_q: got 1 scales, allowed is one, a plain number$",
        ),
        (lambda: ask(rules=3), TypeError, "^rules: got 3, allowed are names or rules$"),
        (
            lambda: ask(rules=[["gemmlowp"]]),
            TypeError,
            r"^rules: got \['gemmlowp'\], allowed are names or rules$",
        ),
        (lambda: ask(rules=[]), ValueError, "^rules: got none, allowed is one or more$"),
        (
            lambda: ask(rules="xnnpack"),
            ValueError,
            "^rules: got the engine xnnpack without a layer that has ",
        ),
        (
            lambda: rounding_probes("int8", 3),
            TypeError,
            "^rules: got 3, allowed are names or rules$",
        ),
        (
            lambda: rounding_probes(["int8"]),
            ValueError,
            r"^dtype: got \['int8'\], allowed is int8, uint8, int16$",
        ),
        *[
            (
                lambda seed=seed: rounding_probes(seed=seed),
                ValueError,
                r"^seed: got .*, allowed is a whole number, 0 to 4294967295$",
            )
            for seed in (-1, 2**40, "a", 1.5, None)
        ],
        *[
            (
                lambda count=count: rounding_probes(rules=["fp16", "nvdla"], count=count),
                ValueError,
                r"^count: got .*, allowed is a whole number, 1 to \d+$",
            )
            for count in (0, 10**9, "a")
        ],
        *[
            (
                lambda given=given: probes("int8").name(given),
                ValueError,
                rf"^outputs: got {got}, allowed is 8 codes of int8, one",
            )
            for given, got in (
                (None, "1 object"),
                ([], "0 int8"),
                ("abc", r"1 <U\d"),
                (np.full(8, 0.5), "0.5 of probe 0"),
                (np.full(8, np.nan), "nan of probe 0"),
                ([0, 1e30, *range(6)], r"1e\+30 of probe 1"),
                ([[[1], [2, 3]]], "a list that holds no codes"),
            )
        ],
        (
            lambda: rounding_probes("float32"),
            ValueError,
            "^dtype: got 'float32', allowed is int8, uint8, int16$",
        ),
        (
            lambda: rounding_probes(op="add"),
            ValueError,
            "^op: got 'add', allowed is conv, depthwise, fully_connected$",
        ),
        (
            lambda: rounding_probes("int8", []),
            ValueError,
            "^rules: got none, allowed is one or more$",
        ),
        (
            lambda: rounding_probes("int8", "int16x8"),
            ValueError,
            "^dtype: got int8, allowed with int16x8 is int16$",
        ),
        (
            lambda: probes("int8").name(np.zeros(3, np.int8)),
            ValueError,
            "^outputs: got 3 int8, allowed is 8 codes of int8, one per probe$",
        ),
        (
            lambda: probes("int8").name(np.full(8, 200)),
            ValueError,
            "^outputs: got 200 of probe 0, allowed is 8 codes of int8",
        ),
    ],
)
def test_bad_input_is_one_sentence(
    call: Callable[[], Any], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        call()


def test_byte_order_of_outputs_is_any() -> None:
    sums = np.arange(-6, 6).reshape(6, 2)
    for kind in ("i2", "f4"):
        some = [ask(accumulators=sums, outputs=sums.astype(order + kind)) for order in "<>"]
        assert some[0].fits == some[1].fits != ()


PAIRS = [
    ("qnnpack-precise", "vivante-v8:half-away", 3),
    ("qnnpack-q31", "gemmlowp:S", 3),
    ("float32-even", "float32-zero-point-first", 0),
    ("float32-even:P", "float32-even", 3),
    ("fp16:P", "fp16", 3),
    ("float32-half-away:P", "float32-half-away", 3),
    ("vivante-v7:half-up:P", "vivante-v7:half-up", 3),
]


@pytest.mark.parametrize(
    ("count", "ratios"), [(500, 40), pytest.param(5000, 200, marks=pytest.mark.long)]
)
@pytest.mark.parametrize(("a", "b", "zero_point"), PAIRS)
def test_one_function_is_one_function(
    a: str, b: str, zero_point: int, count: int, ratios: int
) -> None:
    """By drawn and boundary accumulators over many scales; the structural claim comes from
    ``functions``.
    """
    assert len(functions([rule(a), rule(b)], zero_point)) == 1
    random = np.random.RandomState(3)
    for n in range(ratios):
        scales = (
            (1.0, 2.0 ** -random.randint(1, 24), 1.0)
            if n % 4 == 0
            else (random.uniform(0.001, 1), 2.0 ** random.uniform(-22, -2), random.uniform(1, 9))
        )
        near = half_away(random.randint(-400, 400, count) / 2 * scales[2] / (scales[0] * scales[1]))
        sums = np.concatenate(
            [near + random.randint(-2, 3, count), random.randint(-(2**31), 2**31, count // 2)]
        )
        sums = sums[np.abs(sums) < 2**31].astype(np.int64)
        one, other = (
            by.exact(sums, *by.multiplier(*scales), zero_point) for by in (rule(a), rule(b))
        )
        assert np.array_equal(one, other), scales


def test_other_widths_of_the_same_multiplier_are_other_functions() -> None:
    rules = [Mantissa(f"{bits} bits", bits=bits, ties="half-up") for bits in range(12, 24)]
    assert len(rounding_probes("int8", rules).groups) == 0


def test_rule_of_ones_own_by_earlier_names() -> None:
    with pytest.warns(DeprecationWarning, match=r"^Old: .* is now ") as warned:

        class Old(SingleRounding):
            toward = "floor"

            def stray(self, right_shift: np.ndarray) -> float:
                return 0.25

    assert [str(warning.message) for warning in warned] == [
        "Old: toward is now rounding_direction",
        "Old: stray is now max_deviation",
    ]
    old = Old("old", ties="floor")
    assert (old.rounding_direction, old.max_deviation(np.zeros(1))) == ("floor", 0.25)
    sums = np.arange(-1000, 1000)[:, None]
    assert np.array_equal(
        old.fast(sums, 2**30, 5, 0, -128, 127), np.clip(old.exact(sums, 2**30, 5), -128, 127)
    )
    with pytest.warns(DeprecationWarning, match="^toward is now rounding_direction$"):
        assert RULES["gemmlowp"].toward == "nearest"
    with pytest.raises(AttributeError, match="DoubleRounding has no attribute 'tends'"):
        RULES["gemmlowp"].tends  # noqa: B018
