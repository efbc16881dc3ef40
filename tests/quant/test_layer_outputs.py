"""What layers of NPUs need besides TensorFlow Lite's: other roundings of averages, sums as outputs,
one dimension, a network as a layer, weights of few bits."""

from __future__ import annotations

from fractions import Fraction
from math import ceil, floor
from typing import Any

import numpy as np
import pytest

import npulab
from npulab import Conv1D, Conv2D, FullyConnected, Network, Pool2D, QuantParams
from npulab.quant.emulate import prepare
from npulab.quant.rules import ROUNDINGS, divided
from tests.reference import emulate_slowly

HALF = Fraction(1, 2)
ROUNDED = {  # of a fraction, from the names alone
    "floor": floor,
    "toward-zero": int,
    "half-up": lambda q: floor(q + HALF),
    "half-even": round,
    "half-away": lambda q: floor(q + HALF) if q >= 0 else ceil(q - HALF),
}


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_division_rounds_as_named(rounding: str) -> None:
    values = np.arange(-200, 201)
    for by in (1, 2, 3, 4, 6, 9, 16, 25):
        want = [ROUNDED[rounding](Fraction(int(value), by)) for value in values]
        assert divided(values, by, rounding).tolist() == want
        assert (
            divided(values.astype(np.int32), np.full(values.shape, by), rounding).tolist() == want
        )
    with pytest.raises(LookupError, match=r"^rounding: got 'up', allowed is one of floor, "):
        divided(values, 2, "up")


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
def test_averages_round_as_the_layer_says(rounding: str, dtype: str) -> None:
    random = np.random.default_rng(3)
    info = np.iinfo(dtype)
    for padding in ("valid", "same"):
        pool = Pool2D("average", (3, 2), (7, 6, 3), (2, 1), padding, dtype=dtype, rounding=rounding)
        x = random.integers(info.min, info.max + 1, pool.input_shape).astype(dtype)
        (top, _), (left, _) = pool.pads
        want = np.empty(pool.output_shape, np.int64)
        for i, j, c in np.ndindex(*pool.output_shape):
            a, b = 2 * i - top, j - left
            window = x[max(a, 0) : a + 3, max(b, 0) : b + 2, c]
            want[i, j, c] = ROUNDED[rounding](
                Fraction(int(window.sum(dtype=np.int64)), window.size)
            )
        assert np.array_equal(npulab.emulate(pool, x), want)
    assert (
        len(
            {
                npulab.emulate(
                    Pool2D("average", (1, 4), (1, 4, 1), rounding=one),
                    np.int8([[[-1], [-2], [-2], [-1]]]),
                ).item()
                for one in ROUNDINGS
            }
        )
        == 2
    )


def test_a_rounding_is_refused_where_nothing_is_rounded() -> None:
    with pytest.raises(
        ValueError, match=r"^rounding: got 'floor', allowed with max pooling of int8 is half-away$"
    ):
        Pool2D("max", (2, 2), (4, 4, 1), rounding="floor")
    with pytest.raises(
        ValueError, match=r"^rounding: got 'up', allowed with average pooling of int8 is floor, "
    ):
        Pool2D("average", (2, 2), (4, 4, 1), rounding="up")
    with pytest.raises(ValueError, match=r"allowed with average pooling of float16 is half-away"):
        Pool2D("average", (2, 2), (4, 4, 1), dtype="float16", rounding="floor")
    pool = Pool2D("average", (2, 2), (4, 4, 1), rounding="floor")
    assert pool.parameters["rounding"] == "floor"
    assert repr(pool).endswith("rounding floor, int8)")
    with pytest.raises(
        ValueError, match=r"^layer 0: rounding: got 'floor', allowed in a model is 'half-away'$"
    ):
        npulab.single_op_model(pool)


def _weighted(
    kind: str, random: np.random.Generator, dtype: str, **more: Any
) -> Conv2D | FullyConnected:
    info = np.iinfo(dtype)
    q = {
        "input_q": QuantParams(0.5, 3),
        "weight_q": QuantParams(0.25, 0 if dtype == "int8" else 120),
    }
    if kind == "fully_connected":
        return FullyConnected(
            random.integers(info.min, info.max + 1, (5, 12)).astype(dtype),
            random.integers(-999, 999, 5),
            **q,
            **more,
        )
    shape = (1, 3, 2, 6) if kind == "depthwise" else (6, 3, 2, 3)
    return Conv2D(
        random.integers(info.min, info.max + 1, shape).astype(dtype),
        random.integers(-999, 999, 6),
        (7, 6, 3),
        (2, 1),
        "same",
        depthwise=kind == "depthwise",
        **q,
        **more,
    )


@pytest.mark.parametrize("kind", ["conv", "depthwise", "fully_connected"])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("activation", [None, "relu"])
def test_sums_are_the_accumulators(kind: str, dtype: str, activation: str | None) -> None:
    random = np.random.default_rng(5)
    layer = _weighted(kind, random, dtype, activation=activation, output="sums")
    info = np.iinfo(dtype)
    shape = (4, *layer.input_shape)
    x = random.integers(info.min, info.max + 1, shape).astype(dtype)
    want = emulate_slowly.accumulate(layer, x)
    assert want.min() < 0
    want = np.maximum(want, 0) if activation else want
    for rule in ("tflite-reference", "vivante-v7:floor", "float32-even"):
        got = npulab.emulate(layer, x, rule)
        assert got.dtype == np.int32
        assert np.array_equal(got, want)
        assert np.array_equal(prepare(layer, rule)(x[0]), want[0])
    assert layer.output_dtype == "int32"
    assert layer.parameters["output"] == "sums"
    assert "sums" in repr(layer)
    with pytest.raises(
        ValueError, match=r"^layer 0: output: got 'sums', allowed in a model is 'codes'$"
    ):
        npulab.single_op_model(layer)


def test_sums_that_int32_cannot_hold_wrap_or_are_refused() -> None:
    layer = FullyConnected(np.full((1, 4), 127, np.int8), np.array([2**31 - 1]), output="sums")
    x = np.ones(4, np.int8)
    with pytest.raises(
        ValueError,
        match=r"^accumulator: got 2147484155 in channel 0, allowed with float64-half-away:D is ",
    ):
        npulab.emulate(layer, x)
    assert npulab.emulate(layer, x, "vivante-v7:floor").tolist() == [2147484155 - 2**32]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"output": "int32"}, "^output: got 'int32', allowed with int8 is codes or sums$"),
        ({"output": "sums", "dtype": "int16"}, "^output: got 'sums', allowed with int16 is codes$"),
        (
            {"output": "sums", "activation": "relu6"},
            "^activation: got 'relu6', allowed with sums is None or 'relu'$",
        ),
        (
            {"output": "sums", "output_q": QuantParams(0.5)},
            "^output_q: got .*, allowed with sums is ",
        ),
        ({"weight_bits": 3}, "^weight_bits: got 3, allowed with int8 weights is 1, 2, 4 or 8$"),
        ({"weight_bits": 4}, "^weights: got 9, allowed with 4 bits is -8 to 7$"),
        ({"weight_bits": 1}, "^weights: got 9, allowed with 1 bit is -1 to 0, or -1 and 1$"),
    ],
)
def test_outputs_and_widths_are_checked(more: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FullyConnected(np.array([[9, 1, -1, 0]], np.int8), np.zeros(1, int), **more)


@pytest.mark.parametrize(
    ("bits", "dtype", "codes"),
    [
        (1, "int8", (-1, 0)),
        (1, "int8", (-1, 1)),
        (1, "uint8", (0, 1)),
        (2, "int8", (-2, 1)),
        (4, "int8", (-8, 7)),
        (4, "uint8", (0, 15)),
    ],
)
def test_weights_of_few_bits_are_the_numbers_that_they_are(
    bits: int, dtype: str, codes: tuple[int, int]
) -> None:
    weights = np.resize(codes, (3, 8)).astype(dtype)
    narrow = FullyConnected(weights, np.zeros(3, int), weight_bits=bits, dtype="int8")
    wide = FullyConnected(weights, np.zeros(3, int), dtype="int8")
    x = np.arange(-4, 4, dtype=np.int8)
    assert np.array_equal(npulab.emulate(narrow, x), npulab.emulate(wide, x))
    assert narrow.parameters["weight_bits"] == bits
    assert "weight_bits" not in wide.parameters


@pytest.mark.parametrize("depthwise", [False, True])
@pytest.mark.parametrize("padding", ["same", "valid", (2, 1)])
@pytest.mark.parametrize("output", ["codes", "sums"])
def test_a_convolution_in_one_dimension_is_its_definition(
    depthwise: bool, padding: Any, output: str
) -> None:
    random = np.random.default_rng(7)
    weights = random.integers(-128, 128, (1, 3, 4) if depthwise else (5, 3, 4)).astype(np.int8)
    outputs = weights.shape[2 if depthwise else 0]
    layer = Conv1D(
        weights,
        random.integers(-99, 99, outputs),
        (11, 4),
        2,
        padding,
        2,
        depthwise,
        input_q=QuantParams(0.5, -3),
        weight_q=QuantParams(0.01),
        output=output,
    )
    x = random.integers(-128, 128, (3, 11, 4)).astype(np.int8)
    before, after = {"same": (2, 2), "valid": (0, 0)}.get(str(padding), padding)
    padded = np.pad(x.astype(np.int64) + 3, ((0, 0), (before, after), (0, 0)))
    length = (11 + before + after - 5) // 2 + 1
    sums = np.empty((3, length, outputs), np.int64)
    for n, at, o in np.ndindex(*sums.shape):
        window = padded[n, 2 * at : 2 * at + 5 : 2]
        taps = weights[0, :, o] if depthwise else weights[o]
        sums[n, at, o] = (window[:, o] * taps if depthwise else window * taps).sum() + layer.bias[o]
    assert layer.output_shape == sums.shape[1:]
    assert np.array_equal(npulab.accumulate(layer, x), sums)
    got = npulab.emulate(layer, x)
    assert got.dtype == np.dtype(layer.output_dtype)
    want = (
        sums
        if output == "sums"
        else npulab.quant.requantize.requantize(
            sums,
            "gemmlowp",
            *npulab.quant.rules.RULES["gemmlowp"].multiplier(0.5, 0.01, 1.0),
            0,
            -128,
            127,
        )
    )
    assert np.array_equal(got, want)
    assert np.array_equal(npulab.emulate(layer, x[0]), got[0])
    assert np.array_equal(prepare(layer)(x), got)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            {"input_shape": (1, 8, 2)},
            r"^input_shape: got \(1, 8, 2\), allowed is \(L, C\), each at least 1$",
        ),
        ({"stride": (1, 2)}, r"^stride: got \(1, 2\), allowed is a whole number, at least 1$"),
        ({"dilation": 0}, "^dilation: got 0, allowed is a whole number"),
        ({"padding": "s"}, "^padding: got 's', allowed is "),
        ({"padding": 1}, "^padding: got 1, allowed is "),
        ({"padding": (0, -1)}, r"^padding: got \(0, -1\), allowed is "),
    ],
)
def test_one_dimension_is_refused_in_its_own_words(more: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Conv1D(
            **{
                "weights": np.zeros((4, 3, 2), np.int8),
                "bias": np.zeros(4, int),
                "input_shape": (8, 2),
                **more,
            }
        )
    layer = Conv1D(np.zeros((4, 3, 2), np.int8), np.zeros(4, int), (8, 2))
    with pytest.raises(
        ValueError, match=r"^x: got shape \(8, 3\) int8, allowed is \(8, 2\), or that with leading"
    ):
        npulab.emulate(layer, np.zeros((8, 3), np.int8))


def test_a_network_in_the_place_of_a_layer_is_one_layer() -> None:
    random = np.random.default_rng(9)
    pool = Pool2D("max", (2, 2), (8, 8, 3), (2, 2))
    conv = Conv2D(
        random.integers(-99, 99, (4, 3, 3, 3)).astype(np.int8),
        np.zeros(4, int),
        (4, 4, 3),
        weight_q=QuantParams(0.01),
    )
    last = FullyConnected(
        random.integers(-99, 99, (5, 16)).astype(np.int8), np.zeros(5, int), output="sums"
    )
    network = Network((Network((pool, conv)), last))
    x = random.integers(-128, 128, (2, 8, 8, 3)).astype(np.int8)
    first, second = npulab.quant.emulate.outputs(network, x)
    assert np.array_equal(first, npulab.emulate(conv, npulab.emulate(pool, x)))
    assert np.array_equal(second, npulab.emulate(last, first))
    assert network.input_shapes == ((8, 8, 3),)
    assert network.dtype == "int32"
    with pytest.raises(ValueError, match=r"^layer 1, .*: got 2x2x4 int8 from Network"):
        Network((Network((pool, conv)), pool))
    with pytest.raises(ValueError, match=r"^layer 1, .*: got 5 int32 from FullyConnected"):
        Network((last, FullyConnected(np.zeros((2, 5), np.int8), np.zeros(2, int))))
    with pytest.raises(ValueError, match=r"^network: got Network\(2 .* with 2 outputs, allowed in"):
        Network((Network((pool, conv), outputs=(0, 1)), last))
