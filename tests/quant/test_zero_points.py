"""Weights with a zero point for each output channel, as ONNX's DequantizeLinear has them."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from oracles import onnx_sums
from random_models import random_case

import npulab
from npulab import Conv2D, FullyConnected, QuantParams, accumulate, emulate
from npulab.analysis.mismatch.hypotheses import hypotheses
from npulab.quant.emulate import prepare
from npulab.quant.emulate.saturating import Saturation

OPS = ("conv", "depthwise", "fully_connected")


def several(layer: Any, seed: int) -> Any:
    """The layer with a zero point for each output channel."""
    outputs = layer.output_shape[-1]
    low, high = np.iinfo(layer.weights.dtype).min, np.iinfo(layer.weights.dtype).max
    zeros = np.random.default_rng(seed).integers(low, high + 1, outputs)
    q = layer.weight_q
    return replace(layer, weight_q=QuantParams(q.scale, zero_points=tuple(zeros.tolist())))


def by_channel(layer: Any, x: np.ndarray, by: Any) -> np.ndarray:
    """What ``by`` gives for each channel of layers with one zero point each."""
    parts = []
    for number, zero in enumerate(layer.weight_q.zeros.tolist()):
        q = QuantParams(layer.weight_q.scale, zero)
        parts.append(by(replace(layer, weight_q=q), x)[..., number])
    return np.stack(parts, axis=-1)


@pytest.mark.parametrize("op", OPS)
def test_each_channel_is_that_of_a_layer_with_its_zero_point(op: str) -> None:
    seen = 0
    for seed in range(8):
        layer, x = random_case(seed, tuple(product([op], ["int8", "uint8"])))
        if layer.output_shape[-1] == 1 or layer.output_shape[-1] > 20:
            continue
        layer = several(layer, seed)
        seen += bool(layer.weight_q.zero_points)
        for by in (
            accumulate,
            emulate,
            lambda one, x: accumulate(one, x, Saturation(stored=False)),
        ):
            assert np.array_equal(by(layer, x), by_channel(layer, x, by))
        assert np.array_equal(prepare(layer)(x), emulate(layer, x))
    assert seen > 2


def test_sums_are_those_of_onnxruntime() -> None:
    """MatMulInteger takes a zero point for each column."""
    random = np.random.default_rng(0)
    weights = random.integers(0, 256, (7, 40)).astype(np.uint8)
    zeros = random.integers(0, 256, 7).astype(np.uint8)
    q = QuantParams(1.0, zero_points=tuple(zeros.tolist()))
    layer = FullyConnected(
        weights, np.zeros(7, int), dtype="uint8", input_q=QuantParams(1.0, 77), weight_q=q
    )
    x = random.integers(0, 256, (5, 40)).astype(np.uint8)
    assert np.array_equal(accumulate(layer, x), onnx_sums(layer, x))


def test_outputs_are_those_of_dequantized_tensors() -> None:
    """DequantizeLinear, a convolution of real numbers and QuantizeLinear: no output is near a tie."""
    random = np.random.default_rng(1)
    weights = random.integers(0, 256, (4, 3, 3, 2)).astype(np.uint8)
    scales = (0.5, 0.25, 1.0, 0.125)
    q = QuantParams(scales, zero_points=(0, 255, 100, 128))
    bias = random.integers(-500, 500, 4)
    layer = Conv2D(
        weights,
        bias,
        (5, 6, 2),
        dtype="uint8",
        input_q=QuantParams(0.5, 7),
        weight_q=q,
        output_q=QuantParams(150.0, 128),
    )
    x = random.integers(0, 256, (5, 6, 2)).astype(np.uint8)
    real = (weights - q.zeros.reshape(-1, 1, 1, 1)) * np.reshape(scales, (-1, 1, 1, 1))
    sums = np.zeros(layer.output_shape)
    for row, column in product(range(3), range(4)):
        window = (x[row : row + 3, column : column + 3] - 7.0) * 0.5
        sums[row, column] = (real * window).sum((1, 2, 3)) + bias * 0.5 * np.array(scales)
    codes = sums / 150 + 128
    assert np.abs(np.abs(codes % 1) - 0.5).min() > 1e-3
    assert np.array_equal(emulate(layer, x), np.rint(codes).clip(0, 255))


def test_equal_zero_points_are_one() -> None:
    assert QuantParams(1.0, zero_points=(4, 4)) == QuantParams(1.0, 4)
    assert repr(QuantParams(1.0, zero_points=(4, 5))) == (
        "QuantParams(scale=1.0, zero_point=0, zero_points=(4, 5))"
    )
    assert repr(QuantParams(1.0, 4)) == "QuantParams(scale=1.0, zero_point=4)"


def layer_of(**changed: Any) -> FullyConnected:
    return FullyConnected(np.ones((2, 3), np.uint8), [0, 0], dtype="uint8", **changed)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda: QuantParams(1.0, 3, (4, 5)),
            "zero_point: got 3 beside zero_points, allowed is one of the two",
        ),
        (lambda: QuantParams(1.0, zero_points=(4, 5.5)), "zero_points: got float 5.5"),
        (lambda: QuantParams(1.0, zero_points=(4, None)), "zero_points: got None"),
        (
            lambda: layer_of(weight_q=QuantParams(1.0, zero_points=(1, 2, 3))),
            "weight_q: got 3 zero points, allowed is one, or 2 for weights, one per output channel",
        ),
        (
            lambda: layer_of(input_q=QuantParams(1.0, zero_points=(1, 2))),
            "input_q: got 2 zero points, allowed is one, or 2 for weights, one per output channel",
        ),
        (
            lambda: layer_of(weight_q=QuantParams(1.0, zero_points=(1, 256))),
            "weight_q: got zero point 256, allowed is 0 to 255",
        ),
        (
            lambda: npulab.single_op_model(layer_of(weight_q=QuantParams(1.0, zero_points=(1, 2)))),
            "weight_q: got 2 zero points, allowed in a .tflite is one",
        ),
        (
            lambda: npulab.target("onert").lower(
                layer_of(weight_q=QuantParams(1.0, zero_points=(1, 2)))
            ),
            "lower for onert: weight_q: got 2 zero points, allowed is one",
        ),
    ],
)
def test_what_is_refused(call: Any, sentence: str) -> None:
    with pytest.raises((ValueError, TypeError)) as found:
        call()
    assert sentence in str(found.value)


def test_a_wrong_output_of_such_weights_is_explained() -> None:
    random = np.random.default_rng(2)
    layer = Conv2D(
        random.integers(0, 256, (4, 3, 3, 2)).astype(np.uint8),
        [9000, -9000, 5000, 0],
        (9, 9, 2),
        dtype="uint8",
        weight_q=QuantParams(1.0, zero_points=(0, 255, 100, 128)),
        output_q=QuantParams(1000.0, 128),
    )
    x = random.integers(0, 256, layer.input_shape).astype(np.uint8)
    output = emulate(replace(layer, bias=np.zeros_like(layer.bias)), x)
    found = hypotheses(layer, x, output)
    assert set(found[found.equal].change) == {"bias left out"}
