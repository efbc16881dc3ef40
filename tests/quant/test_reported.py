"""Reports of wrong outputs that people brought to issue trackers, with the answer of the thread: the
numbers are those that stand there.
"""

from __future__ import annotations

import struct
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracles import onnx_add

import npulab
from npulab import Add, Conv2D, FullyConnected, QuantParams, accumulate, emulate
from npulab.analysis.mismatch.hypotheses import hypotheses, summary_lines
from npulab.quant.emulate.addition import output_ratios
from npulab.quant.emulate.saturating import Saturation
from npulab.quant.requantize import requantize
from npulab.quant.rules import rule

AVX2 = {"torch-fbgemm:avx2", "onnxruntime:avx2"}


def test_an_explanation_that_is_refused() -> None:
    """tensorflow/tensorflow#102943 and PR #103028: -120, not -119, is no matter of single or double
    rounding, which both give -119; it is XNNPACK's float32, where 6.5 goes to even.
    """
    given: dict[str, Any] = {
        "input_q": QuantParams(0.05296124517917633, -124),
        "weight_q": QuantParams(0.024093778803944588),
        "output_q": QuantParams(0.11484327912330627, -126),
    }
    assert [
        int(part) for part in rule("gemmlowp").multiplier(*(q.scale for q in given.values()))
    ] == [
        1527099593,
        6,
    ]
    found = npulab.identify_rounding(np.array([[585]]), np.array([[-120]], np.int8), **given)
    assert "float32-even" in found.fits
    assert {"gemmlowp", "single-half-up", "q31-half-away", "ruy-x86"}.isdisjoint(found.fits)
    other = npulab.identify_rounding(np.array([[585]]), np.array([[-119]], np.int8), **given)
    assert {"gemmlowp", "single-half-up"} <= {*other.fits}
    assert "float32-even" not in other.fits


def test_two_rules_that_a_report_exchanges() -> None:
    """tensorflow/tensorflow#25087: the real value is 11.499."""
    assert 7984 * 1583594044 == 12643414847296
    assert requantize(7984, "gemmlowp", 1583594044, 9, 0, -128, 127) == 12
    assert requantize(7984, "single-half-up", 1583594044, 9, 0, -128, 127) == 11


def test_a_multiplier_of_16_bits_for_a_rule_of_31() -> None:
    """ARM-software/CMSIS-NN#184: 163 instead of 81."""
    pair = rule("gemmlowp").multiplier(0.5416631102561951, 0.003441296052187681, 0.1264280378818512)
    assert [int(part) for part in pair] == [2026365287, 6]
    with pytest.warns(UserWarning, match="966") as told:
        assert requantize(5523, "gemmlowp", 966, -16, 0, -1000, 1000) == 163
    (warning,) = told
    assert str(warning.message) == (
        "multiplier: got 966 with right_shift -16, which gemmlowp reads as Q31, a ratio of 0.02948; "
        "if 966 / 2**16 = 0.01474 is meant, give 2025848832 with right_shift 6"
    )
    assert warning.filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for multiplier in (2026365287, 2025848832):
            assert requantize(5523, "gemmlowp", multiplier, 6, 0, -1000, 1000) == 81
        # rules whose multipliers have other widths, and one that scales everything to 0
        requantize(5523, "vivante-v7:half-even", 2**15, 16, 0, -1000, 1000)
        requantize(5523, "gemmlowp", 0, 0, 0, -1000, 1000)
    with pytest.warns(UserWarning, match="got 7 with right_shift 3, which"):
        requantize(np.zeros((1, 2), int), "single-half-up", [2**30, 7], [0, 3], 0, -8, 7)


def convolution(dtype: str, weights: Any, **given: Any) -> Conv2D:
    of = np.array(weights, np.int8).reshape(1, 3, 3, 1)
    return Conv2D(of, [0], (3, 3, 1), padding="valid", dtype=dtype, **given)


def equal_changes(layer: Any, x: np.ndarray, output: np.ndarray, by: str) -> dict[str, set[str]]:
    """The changes that make the outputs equal, by kind."""
    found: dict[str, set[str]] = {}
    for row in hypotheses(layer, x, output, by).itertuples():
        if row.equal:
            found.setdefault(row.kind, set()).add(row.change)
    return found


def test_a_clamp_is_not_taken_for_saturation() -> None:
    """pytorch/pytorch#56331: 0 where -63 was expected is the output's type; nothing saturates."""
    x = np.array([[3, 9, 30], [14, 4, 22], [11, 7, 5]]).reshape(3, 3, 1)
    weights = [[17, 21, -59], [-4, -10, -31], [2, -3, 59]]
    of = {"output_q": QuantParams(32.0), "input_q": QuantParams(1.0), "weight_q": QuantParams(1.0)}
    layer = convolution("uint8", weights, **of)
    codes = x.astype(np.uint8)
    assert accumulate(layer, codes).item() == accumulate(layer, codes, Saturation()).item() == -2012
    for engine in ("torch-fbgemm", *AVX2):
        assert emulate(layer, codes, engine).item() == 0
    expected = convolution("int8", weights, **of)
    codes = x.astype(np.int8)
    assert emulate(expected, codes, "float32-even").item() == -63
    output = np.zeros((1, 1, 1), np.int8)
    found = equal_changes(expected, codes, output, "float32-even")
    assert {*found} == {"clamp"}
    assert "nothing below code 0" in found["clamp"]
    (line, *_) = summary_lines(hypotheses(expected, codes, output, "float32-even"))
    assert "nothing below code 0" in line
    assert "saturate in pairs" not in line


def test_a_saturation_is_not_taken_for_a_clamp() -> None:
    """pytorch/pytorch#44939: 211 * 71 + 171 * 107 is one more than an int16 holds, by 511."""
    assert 211 * 71 + 171 * 107 == 33278 == 32767 + 511
    x = np.array([[42, 93, 209], [96, 211, 171], [200, 174, 38]], np.uint8).reshape(3, 3, 1)
    q = QuantParams(0.13133743405342102, 1)
    layer = convolution(
        "uint8",
        [0, 0, 0, 0, 71, 107, 0, 0, 0],
        input_q=q,
        weight_q=QuantParams(1.0),
        output_q=QuantParams(q.scale * 150, 0),
    )
    sums = accumulate(layer, x).item(), accumulate(layer, x, Saturation()).item()
    assert (sums[0] - sums[1], sums[0]) == (511, 33278 - 71 - 107)
    output = emulate(layer, x, "torch-fbgemm:avx2")
    found = equal_changes(layer, x, output, "torch-fbgemm")
    assert {f"rounding rule {name}" for name in AVX2} <= found["rule"]
    assert not {"rounding rule onnxruntime", "rounding rule torch-onednn"} & found["rule"]
    assert "clamp" not in found


@pytest.mark.parametrize(("weight", "saturates"), [(-81, True), (-80, False)])
def test_a_saturation_begins_at_one_weight(weight: int, saturates: bool) -> None:
    """microsoft/onnxruntime#16105: -127 to -81 give the wrong result."""
    assert (210 * weight + 198 * -80 < -(2**15)) == saturates
    layer = FullyConnected(
        np.array([[weight, -80, 127]], np.int8),
        [0],
        dtype="uint8",
        input_q=QuantParams(0.01),
        weight_q=QuantParams(0.01),
        output_q=QuantParams(0.003, 128),
    )
    x = np.array([[210, 198, 234]], np.uint8)
    outputs = {engine: emulate(layer, x, engine) for engine in npulab.ENGINES}
    right = outputs["onnxruntime"].item()
    assert {name for name, output in outputs.items() if output.item() != right} == (
        AVX2 if saturates else set()
    )
    if saturates:
        found = equal_changes(layer, x, outputs["onnxruntime:avx2"], "onnxruntime")
        assert {f"rounding rule {name}" for name in AVX2} <= found["rule"]
        assert "clamp" not in found


def scale(text: str) -> float:
    """The float32 whose bytes a report gives."""
    (value,) = struct.unpack("<f", bytes.fromhex(text))
    return float(value)


def sums(layer: Add, pair: tuple[int, int], dtype: str, rules: Any) -> dict[str, int]:
    """The sum of two codes by each rule or engine."""
    x = tuple(np.array([code], dtype) for code in pair)
    return {name: emulate(layer, x, name).item() for name in rules}


# by who adds in one way
ADDING = (
    "tflite-reference",
    "tflite-builtin",
    "tflite-micro",
    "xnnpack",
    "gemmlowp",
    "onnxruntime",
)


def test_an_addition_near_a_tie() -> None:
    """pytorch/pytorch#37343: 154.4999977 is 154; QNNPACK's multipliers of 22 bits make it 155."""
    one, other, out = scale("f124263d"), scale("2ee5b53d"), scale("4cedb83d")
    real = (one * (158 - 112) + other * (136 - 126)) / out + 124
    assert 154.49999 < real < 154.5
    layer = Add((1,), None, QuantParams(one, 112), QuantParams(other, 126), QuantParams(out, 124))
    found = sums(layer, (158, 136), "uint8", (*ADDING, "qnnpack-q31"))
    assert found == {**dict.fromkeys(ADDING, 154), "qnnpack-q31": 155}


def test_an_addition_whose_steps_have_an_order() -> None:
    """microsoft/onnxruntime#25512: -112.50000794 is -113; with each step of the constant part rounded
    to float32 it is -112, which the report has and onnxruntime 1.32 no more.
    """
    qs = [
        QuantParams(0.02534690499305725, -106),
        QuantParams(0.035809919238090515, -120),
        QuantParams(0.0365859717130661, -105),
    ]
    layer = Add((1,), None, *qs)
    found = sums(layer, (-114, -122), "int8", (*ADDING, "qnnpack-q31"))
    assert found == dict.fromkeys((*ADDING, "qnnpack-q31"), -113)
    one, other = (np.float32(ratio) for ratio in output_ratios(layer))
    rounded = np.float32(-105) - (one * np.float32(-106) + other * np.float32(-120))
    assert np.rint(rounded + one * np.float32(-114) + other * np.float32(-122)) == -112
    assert sums(layer, (-114, -122), "int8", ["vivante-v8:half-even"]) == {
        "vivante-v8:half-even": -112
    }


def random_addition(seed: int) -> tuple[Add, np.ndarray, np.ndarray]:
    """An addition of every pair of codes; every other one has ratios with many near ties."""
    random = np.random.default_rng(seed)
    dtype = np.dtype(["int8", "uint8"][seed // 2 % 2])
    low = int(np.iinfo(dtype).min)
    scales = random.uniform(0.01, 0.1, 3)
    if seed % 2:
        scales[:2] = scales[2] * random.integers(1, 8, 2) / 4
    zeros = random.integers(low, low + 256, 3).tolist()
    qs = [QuantParams(float(np.float32(s)), zero) for s, zero in zip(scales, zeros, strict=True)]
    pairs = np.meshgrid(np.arange(low, low + 256), np.arange(low, low + 256))
    a, b = (codes.reshape(-1).astype(dtype) for codes in pairs)
    return Add(a.shape, None, *qs, dtype=dtype.name), a, b


def differing(seeds: range) -> int:
    wrong = 0
    for seed in seeds:
        layer, a, b = random_addition(seed)
        wrong += int(np.sum(emulate(layer, (a, b), "onnxruntime") != onnx_add(layer, a, b)))
    return wrong


FUSED = "fma" in Path("/proc/cpuinfo").read_text(encoding="utf-8")
needs_fusing = pytest.mark.skipif(not FUSED, reason="no fused multiplication and addition here")


@needs_fusing
def test_an_addition_is_that_of_onnxruntime() -> None:
    assert differing(range(8)) == 0


@needs_fusing
@pytest.mark.long
def test_many_additions_are_those_of_onnxruntime() -> None:
    assert differing(range(8, 300)) == 0
