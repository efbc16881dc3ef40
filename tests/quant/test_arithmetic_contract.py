"""The contract of the arithmetic, as its users read it: every answer computed again with whole
numbers and loops.
"""

from __future__ import annotations

import dataclasses
import math
import time
import tracemalloc
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import emulate_slowly
import numpy as np
import pytest
from pace import limit
from refusals import refused
from test_quant import rounded

import npulab
import npulab.quant.emulate
from npulab import (
    Add,
    Conv2D,
    FullyConnected,
    Network,
    QuantParams,
    accumulate,
    cli,
    emulate,
)
from npulab.quant import rules as quant
from npulab.quant.requantize import requantize

ROUNDINGS = ("half-up", "half-away", "half-even", "floor", "toward-zero")
VIVANTE = [f"vivante-{core}:{rounding}" for core in ("v7", "v8") for rounding in ROUNDINGS]
INTEGER_RULES = [
    "gemmlowp",
    "ruy-x86",
    "single-half-up",
    "q31-half-away",
    "qnnpack-precise",
    "qnnpack-q31",
    "float32-even",
    "float32-zero-point-first",
    "float32-half-away",
    "float64-half-away",
    *VIVANTE,
    "nvdla",
    "fp16",
]
# ---------------------------------------------------------------------------------------------- the
# rules, by hand


def ratio_of(scales: tuple[float, float, float], order: str) -> float:
    """Input scale * weight scale / output scale, rounded on the way as the order of scales says."""
    given, weight, out = (np.float32(scale) for scale in scales)
    if order == "D":
        return float(given) * float(weight) / float(out)
    product = np.float32(given * weight)
    return float(product) / float(out) if order == "P" else float(np.float32(product / out))


def q31(ratio: float) -> tuple[int, int]:
    """(multiplier of 31 bits, exponent): the ratio is nearly multiplier * 2**(exponent - 31)."""
    mantissa, exponent = math.frexp(ratio)
    multiplier = rounded(Fraction(mantissa) * 2**31, "half-up")
    if multiplier == 2**31:
        multiplier, exponent = 2**30, exponent + 1
    return (multiplier, exponent) if exponent >= -31 else (0, 0)


def wrapped(value: int) -> int:
    return (value + 2**31) % 2**32 - 2**31


def code(name: str, accumulator: int, scales: tuple[float, float, float], zero: int) -> int:
    """Output code before the clamp."""
    if name in ("gemmlowp", "ruy-x86"):
        multiplier, exponent = q31(ratio_of(scales, "D"))
        product = wrapped(accumulator << max(exponent, 0)) * multiplier
        if name == "ruy-x86":
            high = (product + 2**30) >> 31
        else:  # nudged, then divided with truncation
            nudged = product + (2**30 if product >= 0 else 1 - 2**30)
            high = int(math.copysign(abs(nudged) // 2**31, nudged))
        return (
            rounded(
                Fraction(high, 2 ** max(-exponent, 0)),
                "half-away" if name == "gemmlowp" else "half-up",
            )
            + zero
        )
    if name in ("single-half-up", "q31-half-away"):
        multiplier, exponent = q31(ratio_of(scales, "D"))
        return (
            rounded(
                accumulator * multiplier * Fraction(2) ** (exponent - 31), name.partition("-")[2]
            )
            + zero
        )
    if name == "int16x8":
        multiplier, exponent = q31(ratio_of(scales, "D"))
        short = min((multiplier + 2**15) >> 16, 0x7FFF)
        return rounded(accumulator * short * Fraction(2) ** (exponent - 15), "half-up") + zero
    if name == "float64-half-away":
        return rounded(Fraction(float(accumulator) * ratio_of(scales, "D")), "half-away") + zero
    if name == "nvdla":
        mantissa, exponent = math.frexp(ratio_of(scales, "D"))
        multiplier = rounded(Fraction(mantissa) * 2**15, "half-up")
        value = accumulator * multiplier * Fraction(2) ** (exponent - 15)
        return max(-(2**16), min(2**16 - 1, rounded(value, "half-away"))) + zero
    single = np.float32(ratio_of(scales, "S"))
    if name == "qnnpack-precise":
        return rounded(accumulator * Fraction(float(single)), "half-away") + zero
    bits = int(single.view(np.uint32))
    significand, exponent = bits & 0x7FFFFF | 0x800000, bits >> 23
    if name == "qnnpack-q31":
        high = (accumulator * (significand << 7) + 2**30) >> 31
        return rounded(Fraction(high, 2 ** (126 - exponent)), "half-away") + zero
    if name.startswith("vivante"):
        width = 15 if "v7" in name else 23
        value = (
            accumulator * (significand >> (23 - width)) / Fraction(2) ** (127 - exponent + width)
        )
        return rounded(value, name.partition(":")[2]) + zero
    real = np.float32(accumulator) * single
    if name == "fp16":
        return (
            rounded(Fraction(float(np.float16(np.clip(real, -65504, 65504)))), "half-even") + zero
        )
    if name == "float32-zero-point-first":
        return rounded(Fraction(float(np.float32(real + np.float32(zero)))), "half-even")
    return rounded(Fraction(float(real)), "half-" + name.rpartition("-")[2]) + zero


def bias_layer(
    bias: list[int], scales: tuple[float, Any, float], zero: int, dtype: str = "int8"
) -> Conv2D:
    """A layer whose accumulators are its bias."""
    weights = np.zeros((len(bias), 1, 1, 1), "int8" if dtype == "int16" else dtype)
    return Conv2D(
        weights,
        np.array(bias),
        (1, 1, 1),
        dtype=dtype,
        input_q=QuantParams(scales[0]),
        weight_q=QuantParams(scales[1]),
        output_q=QuantParams(scales[2], zero),
    )


def outputs_of(layer: Conv2D, rule: Any) -> list[int]:
    return emulate(layer, np.zeros((1, 1, 1), layer.dtype), rule).ravel().tolist()


@pytest.mark.parametrize("powers", [False, True], ids=["any", "powers of two"])
@pytest.mark.parametrize("name", [*INTEGER_RULES, "int16x8"])
def test_a_rule_is_its_definition(name: str, powers: bool) -> None:
    """Scales of one layer from 2**-30 up to 1, zero points at the ends, int32's ends,
    accumulators at ties.
    """
    random = np.random.RandomState(3 + powers)
    types = [("int8", -128), ("int8", 127), ("uint8", 0), ("uint8", 255), ("int8", 3)]
    if name == "int16x8":
        types = [("int16", 0)] * 5
    for dtype, zero in types:
        exponent = random.uniform(-30, -0.01, 60)
        ratio = 2.0 ** np.floor(exponent) if powers else 2**exponent
        given, out = (
            (2.0**-5, 2.0**-3) if powers else (float(np.float32(0.0313)), float(np.float32(0.117)))
        )
        weight = (ratio * out / given).astype(np.float32).astype(float)
        tie = np.rint((random.randint(-256, 256, 60) + 0.5) / ratio) + random.randint(-1, 2, 60)
        kinds = [
            tie,
            random.randint(-(2**31), 2**31, 60),
            random.randint(-(2**24), 2**24, 60),
            np.full(60, -(2**31)),
            np.full(60, 2**31 - 1),
        ]
        bias = np.choose(random.choice(5, 60, p=[0.6, 0.2, 0.1, 0.05, 0.05]), kinds)
        bias = [int(one) for one in bias.clip(-(2**31), 2**31 - 1)]
        info = np.iinfo(dtype)
        expected = [
            max(info.min, min(info.max, code(name, one, (given, by, out), zero)))
            for one, by in zip(bias, weight, strict=True)
        ]
        assert (
            outputs_of(bias_layer(bias, (given, tuple(weight), out), zero, dtype), name) == expected
        )


def test_the_order_of_scales_is_part_of_the_name() -> None:
    random, told_apart = np.random.RandomState(5), 0
    for _ in range(60):
        scales = tuple(
            float(np.float32(scale))
            for scale in (random.rand() + 0.1, 1e-6 * (random.rand() + 1), random.rand() + 0.1)
        )
        multipliers = {order: q31(ratio_of(scales, order)) for order in "DPS"}
        ties = [
            Fraction(2 * n + 1, 2) / Fraction(ratio_of(scales, order))
            for n in (60, 101, 120)
            for order in "DPS"
        ]
        bias = [round(tie) + step for tie in ties for step in (-1, 0, 1)]
        expected = {
            order: [
                rounded(one * multiplier * Fraction(2) ** (exponent - 31), "half-up")
                for one in bias
            ]
            for order, (multiplier, exponent) in multipliers.items()
        }
        for order, codes in expected.items():
            assert outputs_of(bias_layer(bias, scales, 0), f"single-half-up:{order}") == codes
        told_apart += len({tuple(codes) for codes in expected.values()}) == 3
    assert told_apart > 5


# ------------------------------------------------------------------------------------------- sums,
# by plain loops


def sums_by_loops(layer: Conv2D, x: np.ndarray) -> list[list[list[int]]]:
    (top, bottom), (left, right) = layer.pads
    height, width, channels = x.shape
    _, kernel_h, kernel_w, last = layer.weights.shape
    outputs = last if layer.depthwise else len(layer.weights)
    zero, weight_zero = layer.input_q.zero_point, layer.weight_q.zero_point
    (stride_h, stride_w), (dilation_h, dilation_w) = layer.stride, layer.dilation
    rows = (height + top + bottom - (kernel_h - 1) * dilation_h - 1) // stride_h + 1
    columns = (width + left + right - (kernel_w - 1) * dilation_w - 1) // stride_w + 1
    given, weights = x.tolist(), layer.weights.tolist()
    out = [[[int(one) for one in layer.bias] for _ in range(columns)] for _ in range(rows)]
    for i in range(rows):
        for j in range(columns):
            for down in range(kernel_h):
                for along in range(kernel_w):
                    y, z = (
                        i * stride_h + down * dilation_h - top,
                        j * stride_w + along * dilation_w - left,
                    )
                    if not (0 <= y < height and 0 <= z < width):
                        continue
                    for o in range(outputs):
                        pairs = (
                            [(given[y][z][o // (outputs // channels)], weights[0][down][along][o])]
                            if layer.depthwise
                            else zip(given[y][z], weights[o][down][along], strict=True)
                        )
                        out[i][j][o] += sum((a - zero) * (w - weight_zero) for a, w in pairs)
    return out


def ways_to_lie(x: np.ndarray) -> Iterator[np.ndarray]:
    """The same tensor, as arrays come."""
    yield x
    yield np.asfortranarray(x)
    spread = np.zeros([2 * n for n in x.shape], x.dtype)[
        tuple(slice(None, None, 2) for _ in x.shape)
    ]
    spread[...] = x
    yield spread
    yield np.ascontiguousarray(x[::-1, ::-1, ::-1])[::-1, ::-1, ::-1]
    still = x.copy()
    still.flags.writeable = False
    yield still


def odd_layer(seed: int) -> tuple[Conv2D, np.ndarray]:
    """A small layer of odd shape: strides past the kernel, kernels past the input, multiplier 7,
    wide dilation.
    """
    random = np.random.RandomState(seed)
    of_weights, of_x = random.choice(["int8", "uint8"], 2)
    dtype = random.choice(["", "int16"]) if of_weights == "int8" else ""
    of_x = "int16" if dtype else of_x
    depthwise = bool(random.rand() < 0.5)
    kernel, stride = (
        random.choice([1, 2, 3, 6], 2),
        tuple(int(n) for n in random.choice([1, 2, 7], 2)),
    )
    dilation = tuple(int(n) for n in random.choice([1, 1, 2, 9], 2))
    height, width, channels = (int(n) for n in random.choice([1, 2, 3, 5], 3))
    outputs = (
        channels * int(random.choice([1, 2, 7])) if depthwise else int(random.choice([1, 2, 9]))
    )
    shape = (1, *kernel, outputs) if depthwise else (outputs, *kernel, channels)
    w, a = np.iinfo(of_weights), np.iinfo(of_x)
    extreme = random.rand() < 0.2
    weights = (
        random.choice([w.min, w.max], shape) if extreme else random.randint(w.min, w.max + 1, shape)
    )
    padding: Any = "same"
    if random.rand() < 0.5:
        reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
        padding = tuple((int(random.randint(k + 1)), k) for k in reach)
    zeros = (
        [0, 0, 0]
        if dtype
        else [
            int(random.choice([a.min, a.max, 3])),
            int(random.choice([w.min, w.max, 0])),
            int(random.choice([a.min, a.max, 5])),
        ]
    )
    scale = tuple(np.float32(2.0 ** -random.uniform(3, 14)) for _ in range(outputs))
    layer = Conv2D(
        weights.astype(of_weights),
        random.randint(-(2**20), 2**20, outputs),
        (height, width, channels),
        stride=stride,
        padding=padding,
        dilation=dilation,
        depthwise=depthwise,
        dtype=dtype,
        input_q=QuantParams(np.float32(0.5), np.int16(zeros[0])),
        weight_q=QuantParams(scale, np.int64(zeros[1])),
        output_q=QuantParams(np.float32(0.75), np.int32(zeros[2])),
    )
    return layer, random.randint(a.min, a.max + 1, (height, width, channels)).astype(of_x)


@pytest.mark.parametrize("seed", range(24))
def test_odd_layers_are_plain_loops(seed: int) -> None:
    layer, x = odd_layer(seed)
    sums = sums_by_loops(layer, x)
    info = np.iinfo(x.dtype)
    name = "int16x8" if x.dtype == np.int16 else INTEGER_RULES[seed % 10]
    scales = [(0.5, one, 0.75) for one in layer.weight_q.scale]

    def expect(value: int, channel: int) -> int:
        got = code(name, value, scales[channel], layer.output_q.zero_point)
        return int(max(info.min, min(info.max, got)))

    expected = [[[expect(value, c) for c, value in enumerate(at)] for at in row] for row in sums]
    slow = npulab.quant.emulate.prepare(layer, name, fast=False)
    for given in ways_to_lie(x):
        before = given.copy()
        assert accumulate(layer, given).tolist() == sums
        assert emulate_slowly.accumulate(layer, given).tolist() == sums
        for out in (emulate(layer, given, name), slow(given), slow(given)):
            assert out.dtype == x.dtype
            assert out.tolist() == expected
        assert np.array_equal(given, before)
    batch = emulate(layer, np.stack([x, x[::-1], x]), name)
    assert batch[0].tolist() == batch[2].tolist() == expected


@pytest.mark.sample(3)
@pytest.mark.parametrize(("inputs", "outputs"), [(1033, 17), (20000, 3), (65793, 1), (131072, 1)])
@pytest.mark.parametrize(
    ("given", "by"), [("int8", "int8"), ("uint8", "int8"), ("uint8", "uint8"), ("int8", "uint8")]
)
def test_long_sums_are_whole_and_never_wrap(inputs: int, outputs: int, given: str, by: str) -> None:
    """Products at the ends of the codes: past what float32, and what int32, holds whole."""
    a, w = np.iinfo(given), np.iinfo(by)
    for value in (a.min, a.max):
        for weight in (w.min, w.max):
            for zero, weight_zero in (
                (0, 0),
                (int(a.max), 0),
                (int(a.min), int(w.max) if by == "uint8" else 0),
            ):
                layer = FullyConnected(
                    np.full((outputs, inputs), weight, by),
                    np.arange(outputs),
                    input_q=QuantParams(1.0, zero),
                    weight_q=QuantParams(2.0**-24),
                    output_q=QuantParams(1.0),
                )
                layer = dataclasses.replace(layer, weight_q=QuantParams(2.0**-24, weight_zero))
                x = np.full((2, inputs), value, given)
                x[1, ::3] = 0
                products = (
                    inputs * (int(value) - zero),
                    (inputs - -(-inputs // 3)) * (int(value) - zero),
                )
                rows = products[0], products[1] - -(-inputs // 3) * zero
                sums = [
                    [row * (int(weight) - weight_zero) + o for o in range(outputs)] for row in rows
                ]
                assert accumulate(layer, x).tolist() == sums
                over = [
                    o for row in sums for o, one in enumerate(row) if not -(2**31) <= one < 2**31
                ]
                if over:
                    refused(
                        lambda: emulate(layer, x, "single-half-up"),  # noqa: B023
                        "accumulator",
                        f"channel {over[0]},",
                    )
                else:
                    expected = [
                        [max(a.min, min(a.max, (one + 2**23) >> 24)) for one in row] for row in sums
                    ]
                    assert emulate(layer, x, "single-half-up").tolist() == expected


# ---------------------------------------------------------------------------------------------------
# what is refused


@pytest.mark.parametrize(
    "rule", ["gemmlowp", "tflite-reference", "tflite-builtin", "xnnpack", "nvdla", "fp16"]
)
@pytest.mark.parametrize("depthwise", [False, True])
def test_an_accumulator_past_32_bits_is_told_with_its_channel(rule: str, depthwise: bool) -> None:
    for channels, channel in ((1, 0), (9, 8), (17, 16), (17, 3), (2000, 1999)):
        for sign in (1, -1):
            bias = np.zeros(channels, np.int64)
            bias[channel] = 2**31 - 1 if sign > 0 else -(2**31)
            weights = np.ones((1, 1, 1, channels) if depthwise else (channels, 1, 1, 2), np.int8)
            shape = (2, 3, channels if depthwise else 2)
            layer = Conv2D(weights, bias, shape, depthwise=depthwise, output_q=QuantParams(1e6))
            x = np.zeros((3, *shape), np.int8)
            emulate(layer, x, rule)
            x[2, 1, 2] = sign
            got = int(bias[channel]) + sign * (1 if depthwise else 2)
            words = f"got {got} in channel {channel},"
            refused(lambda: emulate(layer, x, rule), words, "-2147483648 to 2147483647")  # noqa: B023


@pytest.mark.parametrize("rule", ["tflite-reference", *INTEGER_RULES])
@pytest.mark.parametrize("op", ["conv", "fully_connected"])
def test_scales_of_any_size_give_the_right_code_or_a_sentence(op: str, rule: str) -> None:
    for scales in (
        (1e-30, 1e-30, 1e30),
        (1e30, 1e-30, 1.0),
        (1e30, 1.0, 1e-30),
        (1e-30, 1e-10, 1.0),
        (1.0, 1.0, 1e30),
        (1e-38, 1e-38, 1e-38),
        (1.0, 1.0, 1e-44),
        (3e38, 3e38, 3e38),
        (1e38, 10.0, 1e38),
        (1e-45, 1.0, 1.0),
    ):
        q = {
            name: QuantParams(scale)
            for name, scale in zip(("input_q", "weight_q", "output_q"), scales, strict=True)
        }
        layer = (
            Conv2D(np.ones((1, 1, 1, 3), np.int8), np.zeros(1, int), (1, 1, 3), **q)
            if op == "conv"
            else FullyConnected(np.ones((1, 3), np.int8), np.zeros(1, int), **q)
        )
        given, weight, out = (Fraction(float(np.float32(one))) for one in scales)
        exact = 3 * given * weight / out
        try:
            got = emulate(layer, np.ones((1, 1, 3) if op == "conv" else 3, np.int8), rule).item()
        except ValueError as error:
            got = str(error)
        assert got == min(127, round(exact)) or ("got" in got and "allowed" in got)


Q = {"input_q": QuantParams(0.5), "weight_q": QuantParams(0.1), "output_q": QuantParams(0.7)}
PLAIN = Conv2D(np.ones((2, 1, 1, 3), np.int8), np.zeros(2, int), (4, 4, 3), **Q)
X = np.ones((4, 4, 3), np.int8)
DENSE = FullyConnected(np.ones((2, 12), np.int8), np.zeros(2, int))
SUM = Add((4,))
ROW = np.ones(4, np.int8)


def plain(**changes: Any) -> Conv2D:
    return dataclasses.replace(PLAIN, **changes)


BAD: dict[str, Callable[[], Any]] = {
    "input zero point": lambda: plain(input_q=QuantParams(0.5, 2**31)),
    "output zero point": lambda: plain(output_q=QuantParams(0.5, 10**30)),
    "weight zero point": lambda: plain(weight_q=QuantParams(0.5, 10**6)),
    "zero point of int16": lambda: plain(dtype="int16", input_q=QuantParams(1.0, 1)),
    "x of a fully connected layer": lambda: emulate(DENSE, np.ones((12, 1), np.int8)),
    "no row": lambda: emulate(DENSE, np.ones((0, 12), np.int8)),
    **{
        f"pair {i}": lambda pair=pair: emulate(SUM, pair)
        for i, pair in enumerate(
            (
                (ROW,),
                ROW,
                (ROW, ROW[:2]),
                (ROW, ROW.astype(np.int16)),
                (ROW, None),
                None,
                (np.ones((0, 4), np.int8),) * 2,
            )
        )
    },
    "hybrid x that is not finite": lambda: emulate(
        plain(dtype="float32", bias=np.zeros(2, np.float32)), X * np.float32("nan")
    ),
    "float16 weights that are not finite": lambda: plain(
        weights=np.full((2, 1, 1, 3), np.inf, np.float16), bias=np.zeros(2)
    ),
    **{
        f"rule {rule!r}": lambda rule=rule: emulate(PLAIN, X, rule)
        for rule in (
            "Gemmlowp",
            "",
            "gemmlowp:X",
            "vivante-v7",
            "vivante-v9:floor",
            "tflite-reference:D",
            None,
            3,
            ["gemmlowp"],
        )
    },
    "the rule of all rules": lambda: emulate(PLAIN, X, quant.Rule("x")),
    "no layer": lambda: emulate(None, X),
    "a name for a layer": lambda: emulate("conv", X),
    "layers and a number": lambda: emulate([PLAIN, 3], X),
    "sums of no layer": lambda: accumulate(None, X),
    "no layers": lambda: emulate([], X),
    "layers in the wrong order": lambda: emulate([PLAIN, PLAIN], X),
    **{
        f"join {inputs!r}": lambda inputs=inputs: Network((PLAIN, Add((4, 4, 2))), inputs)
        for inputs in (
            ((-1,),),
            ((-1,), (0,)),
            ((-1,), (0, 1)),
            ((-1,), (0, -2)),
            ((-1,), 0),
            (-1, (0, 0)),
            "ab",
            ((-1,), (0.0, 0)),
        )
    },
    "a network of nothing": lambda: Network(None),
    "join of another type": lambda: Network(
        (PLAIN, Conv2D(np.ones((1, 1, 1, 2), np.uint8), np.zeros(1, int), (4, 4, 2)))
    ),
    "sum of int16": lambda: Add((4,), dtype="int16", output_q=QuantParams(1.0, 1)),
    "multiplier below 0": lambda: requantize(
        np.array([1]), "vivante-v7:floor", -1, 5, 0, -128, 127
    ),
    "benchmark": lambda: npulab.bench("nothing"),
}
SUMS = np.arange(-20, 20).reshape(-1, 4)
CODES = SUMS.astype(np.int8)


@pytest.mark.sample(20)
@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_sentence(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(BAD[name])
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------------------------------------------
# memory and time


def random_codes(shape: tuple[int, ...], dtype: str = "int8") -> np.ndarray:
    return np.random.RandomState(0).randint(-100, 101, shape).astype(dtype)


# name, weights, input, how the layer differs from a dense one of int8; why it takes more, if it does
SHAPES = """
1x1 of 4096 channels           | 2048 1 1 4096 | 1 1 4096    |                                         |
many input channels            | 64 3 3 2048   | 4 4 2048    | padding=same                            |
depthwise, wide                | 1 3 3 256     | 112 112 256 | padding=same; depthwise                 |
depthwise, multiplier 7        | 1 3 3 448     | 56 56 64    | padding=same; depthwise                 |
depthwise, stride 2            | 1 3 3 64      | 112 112 64  | padding=same; depthwise; stride=2 2     |
depthwise, one channel         | 1 3 3 1       | 512 512 1   | padding=same; depthwise                 |
depthwise, to one place        | 1 3 3 16384   | 3 3 16384   | depthwise                               | 2.5 MB where 1.5 are allowed
depthwise, a long row          | 1 1 31 64     | 1 4000 64   | padding=same; depthwise                 |
depthwise, dilated by 32       | 1 3 3 512     | 32 32 512   | padding=same; depthwise; dilation=32 32 |
first layer                    | 64 7 7 3      | 224 224 3   | padding=same; stride=2 2                |
large image, few outputs       | 8 3 3 3       | 224 224 3   | padding=same; stride=4 4                |
strides past the kernel        | 4 1 1 64      | 224 224 64  | stride=8 8                              |
large kernel                   | 4 31 31 4     | 64 64 4     | padding=same                            | 1.1 MB where 0.45 are allowed
dilated by 32                  | 32 3 3 32     | 32 32 32    | padding=same; dilation=32 32            |
a row                          | 8 1 5 1       | 1 100000 1  | padding=same                            |
a row, stride 7                | 1 1 5 1       | 1 300000 1  | padding=same; stride=1 7                |
a column                       | 8 5 1 4       | 100000 1 4  | padding=same                            |
int16                          | 64 3 3 64     | 56 56 64    | padding=same; dtype=int16               |
int16, depthwise               | 1 3 3 64      | 56 56 64    | padding=same; depthwise; dtype=int16    |
hybrid                         | 64 3 3 64     | 56 56 64    | padding=same; dtype=float32             |
float16                        | 64 3 3 64     | 56 56 64    | padding=same; dtype=float16             |
many weights                   | 256 3 3 256   | 14 14 256   | padding=same                            |
few outputs of a large input   | 64 3 3 256    | 56 56 256   | padding=same                            |
a kernel as large as its input | 512 7 7 64    | 7 7 64      | padding=same                            |
a wide kernel                  | 16 5 5 16     | 112 112 16  | padding=same                            |
1x1 of a large input           | 64 1 1 32     | 112 112 32  |                                         |
fully connected 4096           | 4096 4096     | 1 4096      |                                         |
fully connected, one output    | 1 200000      | 1 200000    |                                         | 14 kB more than the 1.6 MB allowed
"""


class Sized(NamedTuple):
    """A row of the table."""

    name: str
    weights: tuple[int, ...]
    x: tuple[int, ...]
    given: dict[str, Any]
    too_large: str


def numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split()))


def sized_rows() -> Iterator[Any]:
    for line in SHAPES.strip().splitlines():
        name, weights, x, words, too_large = (part.strip() for part in line.split("|"))
        given: dict[str, Any] = {}
        for word in filter(None, words.split("; ")):
            what, _, value = word.partition("=")
            given[what] = value or True
            if what in ("stride", "dilation"):
                given[what] = numbers(value)
        marks = []
        if too_large:
            marks = [pytest.mark.xfail(strict=True, reason=too_large)]
        row = Sized(name, numbers(weights), numbers(x), given, too_large)
        yield pytest.param(row, id=name, marks=marks)


@pytest.mark.sample(6)
@pytest.mark.parametrize("row", [*sized_rows()])
def test_memory_is_at_most_four_times_the_tensors(row: Sized) -> None:
    dtype = row.given.get("dtype", "int8")
    x = random_codes(row.x, dtype)
    weights = random_codes(row.weights, "float16" if dtype == "float16" else "int8")
    scales = {
        name: QuantParams(one)
        for name, one in (("input_q", 0.5), ("weight_q", 0.01), ("output_q", 7.0))
    }
    if len(row.weights) == 2:
        layer: Any = FullyConnected(weights, None, **scales)
    else:
        layer = Conv2D(weights, None, row.x, **scales, **row.given)
    emulate(layer, x)  # whatever is compiled or remembered
    tracemalloc.start()
    try:
        out = emulate(layer, x)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= 4 * (x.nbytes + weights.nbytes + out.nbytes + 4 * out.size)


def test_dilation_past_the_image_costs_nothing() -> None:
    layer = Conv2D(
        random_codes((1, 3, 3, 3)),
        np.array([1, 2, 3]),
        (4, 4, 3),
        padding="same",
        dilation=(10**5, 10**5),
        depthwise=True,
        weight_q=QuantParams(1 / 128),
    )
    x = random_codes((4, 4, 3))
    start = time.process_time()
    out = emulate(layer, x, "single-half-up")
    assert time.process_time() - start < limit(1)
    expected = (
        x.astype(int) * layer.weights[0, 1, 1] + [1, 2, 3] + 64
    ) >> 7  # only the middle is inside
    assert out.tolist() == expected.clip(-128, 127).tolist()


# ------------------------------------------------------------------------------------------------------
# black boxes


def test_few_constant_and_saturated_outputs_name_nobody() -> None:
    one = npulab.identify_rounding(np.array([3]), np.array([0], np.int8), **Q)
    assert one.compared == 1
    assert {"gemmlowp", "ruy-x86", "float32-even"} <= set(one.fits)
    full = npulab.identify_rounding(np.full((4, 4), 10**6), np.full((4, 4), 127, np.int8), **Q)
    assert set(full.fits) == set(INTEGER_RULES)
    assert full.saturated == 16
    assert {name for group in full.groups for name in group.rules} == set(INTEGER_RULES)
    wrong = npulab.identify_rounding(SUMS, np.full(SUMS.shape, 99, np.int8), **Q)
    assert not wrong.fits
    assert len(wrong.closest) > 0


def test_accumulators_and_outputs_come_in_any_order_of_bytes() -> None:
    layer = bias_layer([-9, 8, 7, 1234], (0.5, 0.1, 0.7), 3)
    sums = accumulate(layer, np.zeros((1, 1, 1), np.int8))
    outs = emulate(layer, np.zeros((1, 1, 1), np.int8), "gemmlowp")
    fits = npulab.identify_rounding(sums, outs, layer).fits
    for given in (
        sums.astype(">i4"),
        sums.astype(">i8"),
        np.asfortranarray(sums),
        sums.astype(np.int16),
    ):
        assert npulab.identify_rounding(given, outs, layer).fits == fits


@pytest.mark.parametrize(
    "command", ["bench nothing", "bench --rounds 0", "check --explain nowhere"]
)
def test_a_bad_argument_exits_2_with_a_sentence(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(command.split()) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
