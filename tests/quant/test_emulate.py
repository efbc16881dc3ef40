"""Layers and their exact emulation, against plain integer loops."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from typing import Any

import emulate_slowly
import numpy as np
import pytest

import npulab
from npulab.cli.bench import mobilenet
from npulab.quant.emulate import accumulate, clamp_range, outputs, prepare
from npulab.quant.emulate.engines import clamps_alike
from npulab.quant.layers import Add, FullyConnected, Network, Pool2D
from npulab.quant.rules import RULES, DoubleRounding, QuantParams

network = cache(mobilenet)


def wide_layer(seed: int) -> tuple[npulab.Conv2D | FullyConnected, np.ndarray] | None:
    """Layers of every quantized type, with sums and biases that float32 cannot hold, in batches."""
    random = np.random.RandomState(seed)
    op, dtype = (
        ["conv", "depthwise", "fully_connected"][random.randint(3)],
        ["int8", "uint8", "int16"][random.randint(3)],
    )
    of_weights = "uint8" if dtype == "uint8" and random.rand() < 0.7 else "int8"
    info, codes = np.iinfo(dtype), np.iinfo(of_weights)
    channels = int(random.choice([1, 2, 3, 8, 17, 64, 200]))
    outputs = (
        channels * int(random.randint(1, 4))
        if op == "depthwise"
        else int(random.choice([1, 4, 7, 16, 33, 64]))
    )
    kernel = random.randint(1, 6, 2)

    def zero(of: np.iinfo) -> int:
        return 0 if dtype == "int16" else int(random.randint(of.min, of.max + 1))

    scale = (
        tuple(random.uniform(1e-4, 0.01, outputs))
        if random.rand() < 0.5
        else random.uniform(1e-4, 0.01)
    )
    common = {
        "input_q": QuantParams(random.uniform(0.01, 0.1), zero(info)),
        "dtype": dtype,
        "weight_q": QuantParams(scale, 0 if of_weights == "int8" else zero(codes)),
        "output_q": QuantParams(random.uniform(0.01, 1), zero(info)),
        "activation": [None, "relu", "relu6", "relu_n1_to_1"][random.randint(4)],
    }
    bias = random.randint(-(10 ** random.randint(1, 9)), 10 ** random.randint(1, 9), outputs)
    if random.rand() < 0.1:
        bias[-1] = 2**31 - 1
    if op == "fully_connected":
        depth = int(random.choice([3, 64, 257, 1024, 5000]))
        weights = random.randint(codes.min, codes.max + 1, (outputs, depth)).astype(of_weights)
        return FullyConnected(weights, bias, **common), random.randint(
            info.min, info.max + 1, (random.randint(1, 9), depth)
        ).astype(dtype)
    shape = (int(random.randint(5, 24)), int(random.randint(5, 24)), channels)
    of = (1, *kernel, outputs) if op == "depthwise" else (outputs, *kernel, channels)
    try:
        layer = npulab.Conv2D(
            random.randint(codes.min, codes.max + 1, of).astype(of_weights),
            bias,
            shape,
            tuple(random.randint(1, 4, 2)),
            ["same", "valid", ((1, 0), (2, 1)), ((0, 3), (0, 0))][random.randint(4)],
            tuple(random.randint(1, 3, 2)),
            op == "depthwise",
            **common,
        )
    except ValueError:
        return None  # too small for its kernel
    batch = (2,) if random.rand() < 0.3 else ()
    return layer, random.randint(info.min, info.max + 1, (*batch, *shape)).astype(dtype)


@pytest.mark.sample(3)
@pytest.mark.parametrize("chunk", range(20))
def test_fast_paths_are_the_definition(chunk: int) -> None:
    compared = refused = 0
    for seed in range(6 * chunk, 6 * (chunk + 1)):
        found = wide_layer(seed)
        if found is None:
            continue
        layer, x = found
        want = emulate_slowly.accumulate(layer, x)
        assert np.array_equal(accumulate(layer, x), want.reshape(accumulate(layer, x).shape)), seed
        others = (
            []
            if layer.dtype == "int16"
            else [name for name in RULES if layer.dtype in RULES[name].types]
        )
        for rule in ("tflite-reference", "tflite-builtin", "xnnpack", *others[seed % 7 :: 7]):
            try:
                want = emulate_slowly.emulate(layer, x, rule)
            except (
                ValueError
            ) as error:  # a sum that does not fit, or a ratio: all say so in the same words
                for run in (
                    lambda: npulab.emulate(layer, x, rule),  # noqa: B023
                    lambda: prepare(layer, rule)(x),  # noqa: B023
                ):
                    with pytest.raises(ValueError, match=re.escape(str(error))):
                        run()
                refused += 1
                continue
            for got in (
                npulab.emulate(layer, x, rule),
                prepare(layer, rule, fast=False)(x),
                prepare(layer, rule)(x),
            ):
                assert np.array_equal(got, want.reshape(got.shape)), (seed, rule)
            compared += want.size
    assert compared > 3_000
    assert refused or chunk != 8  # the layers of that chunk have a sum that does not fit


@pytest.mark.parametrize("seed", range(30))
def test_pools_and_sums_are_their_definition(seed: int) -> None:
    random = np.random.RandomState(seed)
    dtype = ["int8", "uint8", "int16"][seed % 3]
    info = np.iinfo(dtype)
    shape = tuple(int(n) for n in random.randint(4, 12, 3))
    q = [
        QuantParams(
            random.uniform(0.01, 0.4),
            0 if dtype == "int16" else int(random.randint(info.min, info.max)),
        )
        for _ in range(3)
    ]
    a, b = (random.randint(info.min, info.max + 1, (2, *shape)).astype(dtype) for _ in range(2))
    act = [None, "relu", "relu6", "relu_n1_to_1"][random.randint(4)]
    for kind in ("average", "max", "min"):
        pool = Pool2D(
            kind,
            tuple(random.randint(1, 4, 2)),
            shape,
            tuple(random.randint(1, 4, 2)),
            ["same", "valid"][random.randint(2)],
            act,
            q[0],
            dtype=dtype,
        )
        assert np.array_equal(npulab.emulate(pool, a), emulate_slowly.emulate(pool, a))
        assert npulab.emulate(pool, a[0]).shape == pool.output_shape
    add = Add(shape, act, *q, dtype=dtype)
    assert np.array_equal(npulab.emulate(add, (a, b)), emulate_slowly.emulate(add, (a, b)))
    assert np.array_equal(npulab.emulate(add, (a[0], b[0])), npulab.emulate(add, (a, b))[0])


def test_average_by_hand() -> None:
    x = np.array([[1, 2], [2, -7]], np.int8).reshape(2, 2, 1)
    pool = Pool2D("average", (2, 2), (2, 2, 1), padding="same")
    assert npulab.emulate(pool, x)[..., 0].tolist() == [
        [-1, -3],
        [-3, -7],
    ]  # -2 / 4 = -0.5 and -5 / 2 go away from 0


def test_network_runs_its_layers() -> None:
    random = np.random.RandomState(3)
    q = QuantParams(0.05, 3)
    conv = npulab.Conv2D(
        random.randint(-127, 128, (4, 3, 3, 4)).astype(np.int8),
        random.randint(-99, 99, 4),
        (6, 6, 4),
        padding="same",
        input_q=q,
        weight_q=QuantParams(0.01),
        output_q=q,
        activation="relu6",
    )
    pool = Pool2D("average", (6, 6), (6, 6, 4), input_q=q)
    last = FullyConnected(
        random.randint(-127, 128, (5, 4)).astype(np.int8),
        random.randint(-99, 99, 5),
        input_q=q,
        weight_q=QuantParams(0.02),
        output_q=QuantParams(0.1),
    )
    x = random.randint(-128, 128, (2, 6, 6, 4)).astype(np.int8)
    network = Network(
        (conv, conv, Add((6, 6, 4), None, q, q, q), pool, last), ((-1,), (0,), (1, -1), (2,), (3,))
    )
    one = npulab.emulate(conv, x)
    two = npulab.emulate(conv, one)
    summed = npulab.emulate(Add((6, 6, 4), None, q, q, q), (two, x))
    want = npulab.emulate(last, npulab.emulate(pool, summed))
    assert want.shape == (2, 5)
    assert np.array_equal(npulab.emulate(network, x), want)
    assert [out.shape for out in outputs(network, x)] == [(2, 6, 6, 4)] * 3 + [(2, 1, 1, 4), (2, 5)]
    assert np.array_equal(npulab.emulate([conv, conv], x), two)


@pytest.mark.parametrize(
    ("layers", "inputs", "words"),
    [
        ((), (), "^network: got 0 layers and 0 tuples of sources"),
        (
            (0,),
            ((0,),),
            r"^layer 0, Pool2D.*: got inputs \(0,\), allowed are 1 sources from -1 to -1$",
        ),
        ((0, 1), (), r"^layer 1, Pool2D.*: got 2x2x3 int8 from Pool2D.*, allowed is 4x4x3 int8$"),
    ],
)
def test_network_that_does_not_fit(
    layers: tuple[int, ...], inputs: tuple[tuple[int, ...], ...], words: str
) -> None:
    pools = [Pool2D("max", (3, 3), (4, 4, 3)), Pool2D("max", (3, 3), (4, 4, 3))]
    with pytest.raises(ValueError, match=words):
        Network(tuple(pools[i] for i in layers), inputs)


def test_accumulator_past_32_bits_is_refused_unless_the_rule_wraps() -> None:
    layer = npulab.Conv2D(np.full((1, 1, 1, 1), 255, np.uint8), [2**31 - 1], (1, 1, 1))
    x = np.full((1, 1, 1), 1, np.uint8)
    assert (
        accumulate(layer, x).item() == emulate_slowly.accumulate(layer, x).item() == 2**31 - 1 + 255
    )
    with pytest.raises(
        ValueError,
        match=r"^accumulator: got 2147483902 in channel 0, allowed with gemmlowp:P is -2147",
    ):
        npulab.emulate(layer, x)
    assert npulab.emulate(layer, x, "vivante-v7:half-up").item() == 0


@pytest.mark.parametrize("zero_point", [-128, -1, 0, 128, 200, 255])
@pytest.mark.parametrize("depthwise", [False, True])
def test_borders_of_any_zero_point(zero_point: int, depthwise: bool) -> None:
    random = np.random.RandomState(1)
    weights = random.randint(-127, 128, (1, 3, 3, 16) if depthwise else (8, 3, 3, 16)).astype(
        np.int8
    )
    layer = npulab.Conv2D(
        weights,
        np.arange(16 if depthwise else 8),
        (5, 6, 16),
        padding="same",
        depthwise=depthwise,
        input_q=QuantParams(0.1, zero_point),
        weight_q=QuantParams(0.01),
        output_q=QuantParams(0.5, 3),
    )
    for dtype in (np.int8, np.uint8):
        x = random.randint(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, (5, 6, 16)).astype(dtype)
        want = emulate_slowly.emulate(layer, x)
        assert np.array_equal(npulab.emulate(layer, x), want)
        assert np.array_equal(prepare(layer)(x), want)


@pytest.mark.parametrize("fast", [False, True])
def test_prepared_is_called_by_two_threads(fast: bool) -> None:
    layer, x = network()["pw6"]
    ready, want = prepare(layer, "gemmlowp", fast=fast), npulab.emulate(layer, x, "gemmlowp")
    with ThreadPoolExecutor(4) as pool:
        assert all(np.array_equal(got, want) for got in pool.map(ready, [x] * 8))


class Down(DoubleRounding):
    """A rule that is another than its parent."""

    def exact(
        self, accumulators: np.ndarray, multiplier: object, right_shift: object, zero_point: int = 0
    ) -> np.ndarray:
        return super().exact(accumulators, multiplier, right_shift, zero_point) - 1

    def max_deviation(self, right_shift: np.ndarray) -> float:
        return 1.0


def test_rule_of_ones_own() -> None:
    layer, x = network()["dw13"]
    want = emulate_slowly.emulate(layer, x, Down("down"))
    assert np.array_equal(npulab.emulate(layer, x, Down("down")), want)
    assert np.array_equal(prepare(layer, Down("down"))(x), want)
    assert not np.array_equal(npulab.emulate(layer, x, "gemmlowp"), want)
    narrow = replace(RULES["gemmlowp"], register=12)
    for run in (lambda: npulab.emulate(layer, x, narrow), lambda: prepare(layer, narrow)(x)):
        with pytest.raises(ValueError, match="allowed with gemmlowp is -2048 to 2047"):
            run()


def test_average_of_many() -> None:
    pool = Pool2D("average", (300, 300), (300, 300, 1), dtype="int16")
    assert npulab.emulate(pool, np.full((300, 300, 1), 32767, np.int16)).item() == 32767


@pytest.mark.parametrize("activation", ["relu", "relu6", "relu_n1_to_1"])
@pytest.mark.parametrize(
    ("dtype", "q"),
    [
        (np.int8, QuantParams(1.0, 255)),
        (np.uint8, QuantParams(1.0, -128)),
        (np.int8, QuantParams(1e-40, 3)),
    ],
)
def test_clamp_range_stays_in_the_type(activation: str, dtype: type, q: QuantParams) -> None:
    info = np.iinfo(dtype)
    for rule in ("tflite-reference", "xnnpack"):
        low, high = clamp_range(
            Pool2D("max", (2, 2), (4, 4, 1), activation=activation, input_q=q), dtype, rule
        )
        assert info.min <= low <= info.max
        assert info.min <= high <= info.max


def test_same_padding_puts_the_odd_row_behind() -> None:
    layer = npulab.Conv2D(
        np.zeros((1, 3, 3, 1), np.uint8), [0], (8, 9, 1), stride=(2, 2), padding="same"
    )
    assert layer.pads == ((0, 1), (1, 1))
    assert layer.output_shape == (4, 5, 1)


@pytest.mark.sample(15)
@pytest.mark.parametrize("seed", range(40))
def test_activations_clamp_alike_only_if_every_accumulator_gives_the_same(seed: int) -> None:
    """Over accumulators that reach every code of the type, and lie outside of it on both sides."""
    random = np.random.RandomState(seed)
    dtype = ("int8", "uint8", "int16")[seed % 3]
    info = np.iinfo(dtype)
    zero = int(random.choice([info.min, info.max, random.randint(info.min, info.max + 1)]))
    if dtype == "int16":
        zero = 0
    top = random.choice([1.0, 6.0]) / max(info.max - zero, 1)
    scale = float(np.float32(top * random.choice([1, 1, 1.01, 0.99, 0.3])))
    codes = info.max - info.min + 1
    sums = np.arange(-codes - 9, codes + 9)
    layer = FullyConnected(
        np.zeros((len(sums), 1), "uint8" if dtype == "uint8" else "int8"),
        sums,
        input_q=QuantParams(1.0),
        weight_q=QuantParams(scale),
        output_q=QuantParams(scale, zero),
        dtype=dtype,
    )
    x = np.zeros(1, dtype)
    assert len({*npulab.emulate(layer, x).tolist()}) == codes
    activations = (None, "relu", "relu6", "relu_n1_to_1")
    given = [npulab.emulate(replace(layer, activation=one), x) for one in activations]
    for mine, own in zip(activations, given, strict=True):
        for other, got in zip(activations, given, strict=True):
            alike = clamps_alike(replace(layer, activation=mine), other)
            assert alike == np.array_equal(own, got), (mine, other)


def test_sums_and_leaky_layers_clamp_like_themselves_only() -> None:
    q = QuantParams(6 / 255, -128)
    layer = FullyConnected(np.zeros((1, 1), np.int8), [0], activation="leaky>>3", output_q=q)
    assert clamps_alike(layer, "leaky>>3")
    assert not clamps_alike(layer, None)
    sums = FullyConnected(np.zeros((1, 1), np.int8), [0], activation="relu", output="sums")
    assert not clamps_alike(sums, None)
    half = npulab.Add((1,), "relu6", dtype="float16")
    assert not clamps_alike(half, None)


@pytest.mark.parametrize(
    ("activation", "dtype", "want"),
    [
        (None, np.uint8, (0, 255)),
        ("relu", np.uint8, (10, 255)),
        ("relu6", np.uint8, (10, 130)),
        ("relu_n1_to_1", np.int8, (-10, 30)),
        ("relu6", np.int8, (10, 127)),
    ],
)
def test_clamp_range(activation: str | None, dtype: type, want: tuple[int, int]) -> None:
    layer = npulab.Conv2D(
        np.zeros((1, 1, 1, 1), dtype),
        [0],
        (1, 1, 1),
        activation=activation,
        output_q=npulab.QuantParams(0.05, 10),
    )
    assert clamp_range(layer, dtype) == want


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"weights": np.zeros((1, 3, 3), np.uint8)}, r"^weights: got shape \(1, 3, 3\)"),
        (
            {"weights": np.zeros((1, 3, 3, 1), np.float32)},
            "float32, allowed is 4 axes of uint8 or int8",
        ),
        ({"weights": np.zeros((1, 3, 3, 2), np.uint8)}, "got 2 input channels, allowed is 1"),
        ({"bias": np.zeros(2, int)}, r"^bias: got shape \(2,\)"),
        ({"bias": np.array([0.5])}, "^bias: got"),
        ({"bias": np.array([2**40])}, "within int32"),
        ({"bias": [2**70]}, "^bias: got"),
        ({"stride": (1.5, 1)}, "^stride: got"),
        ({"stride": None}, "^stride: got"),
        ({"padding": None}, "^padding: got"),
        ({"padding": (1, 1)}, "^padding: got"),
        ({"input_shape": (8, 8)}, "^input_shape: got"),
        ({"input_shape": (2, 2, 1)}, r"too small for a kernel of \(3, 3\)"),
        ({"stride": (0, 1)}, r"^stride: got \(0, 1\)"),
        ({"dilation": (1, -1)}, "^dilation: got"),
        ({"padding": "full"}, "^padding: got 'full'"),
        ({"padding": ((0, -1), (0, 0))}, "none negative"),
        ({"activation": "gelu"}, "^activation: got 'gelu'"),
        ({"input_shape": (8.5, 8, 1)}, "^input_shape: got"),
        ({"padding": ((1.5, 0), (0, 0))}, "^padding: got"),
        ({"stride": 2}, "^stride: got 2, allowed is"),
        ({"input_q": 0.1}, "^input_q: got 0.1, allowed is QuantParams"),
        ({"weight_q": npulab.QuantParams([1.0, 2.0])}, "got 2 scales, allowed is 1 or 1"),
        ({"input_q": npulab.QuantParams([1.0])}, "^input_q: got 1 scales"),
        ({"depthwise": True, "input_shape": (8, 8, 2)}, "allowed is 1HWC with C a multiple of 2"),
    ],
)
def test_bad_layer_is_refused(change: dict[str, object], words: str) -> None:
    layer = npulab.Conv2D(np.zeros((1, 3, 3, 1), np.uint8), [0], (8, 8, 1))
    with pytest.raises(ValueError, match=words):
        replace(layer, **change)


@pytest.mark.parametrize(
    "x",
    [
        np.zeros((8, 8, 2), np.uint8),
        np.zeros((8, 8), np.uint8),
        np.zeros((8, 8, 1)),
        np.zeros((8, 8, 1), object),
        np.zeros((0, 8, 8, 1), np.uint8),
        None,
        "abc",
    ],
)
def test_bad_input_is_refused(x: Any) -> None:
    layer = npulab.Conv2D(np.zeros((1, 3, 3, 1), np.uint8), [0], (8, 8, 1))
    with pytest.raises((ValueError, TypeError), match=r"^x: got "):
        npulab.emulate(layer, x)


def test_layer_prints_its_sizes() -> None:
    layer = npulab.Conv2D(
        np.zeros((4, 3, 3, 1), np.uint8), np.zeros(4, int), (8, 8, 1), (2, 2), activation="relu"
    )
    assert repr(layer) == "Conv2D(3x3, 8x8x1 -> 3x3x4, stride 2x2, padding valid, relu)"
    assert layer.parameters["stride_h"] == 2


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: Pool2D("mean", (2, 2), (4, 4, 1)),
            "^kind: got 'mean', allowed is one of average, max, min$",
        ),
        (
            lambda: Pool2D("max", (0, 2), (4, 4, 1)),
            r"^kernel: got \(0, 2\), allowed is \(h, w\), each at least 1$",
        ),
        (lambda: Pool2D("max", (5, 2), (4, 4, 1)), "^input_shape: got .*, too small"),
        (
            lambda: Pool2D("max", (2, 2), (4, 4, 1), output_q=QuantParams(2.0)),
            "^output_q: got .*, allowed is the quantization of the input",
        ),
        (
            lambda: Pool2D("max", (2, 2), (4, 4, 1), padding=((2, 0), (0, 0))),
            "allowed is less than the kernel",
        ),
        (
            lambda: Pool2D("max", (2, 2), (4, 4, 1), dtype="int32"),
            "^dtype: got 'int32', allowed is int8, uint8, int16 or float16$",
        ),
        (lambda: Add((), dtype="int8"), "^input_shape: got"),
        (lambda: Add((2,), dtype="float32"), "^dtype: got 'float32'"),
        (
            lambda: Add((2,), input_q=QuantParams(1.0, 3), dtype="int16"),
            "^input_q: got zero point 3, allowed with int16 activations is 0$",
        ),
        (
            lambda: FullyConnected(np.zeros((2, 3), np.int32), np.zeros(2, int)),
            "int32, allowed is 2 axes of uint8 or int8",
        ),
        (
            lambda: FullyConnected(np.zeros((2, 3), np.int8), np.zeros(3, int)),
            r"^bias: got shape \(3,\) int64, allowed is \(2,\) within int32$",
        ),
        (
            lambda: FullyConnected(np.zeros((2, 3), np.uint8), np.zeros(2, int), dtype="int16"),
            "^dtype: got 'int16', allowed with uint8 weights is uint8, int8$",
        ),
        (
            lambda: FullyConnected(
                np.zeros((2, 3), np.int8), np.array([1.0, np.inf]), dtype="float32"
            ),
            "^bias: got .* allowed is .* finite float32$",
        ),
    ],
)
def test_other_layer_that_is_refused(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def test_other_input_that_is_refused() -> None:
    flat = FullyConnected(np.zeros((2, 12), np.int8), np.zeros(2, int))
    assert npulab.emulate(flat, np.zeros((5, 3, 2, 2), np.int8)).shape == (5, 2)
    assert npulab.emulate(flat, np.zeros((4, 5, 12), np.int8)).shape == (4, 5, 2)
    with pytest.raises(
        ValueError,
        match=r"^x: got shape \(11,\) int8, allowed is \(\.\.\., 12\), or \(\.\.\., H, W, C\) of as many",
    ):
        npulab.emulate(flat, np.zeros(11, np.int8))
    add = Add((2, 2))
    for pair in (np.zeros((2, 2), np.int8), (np.zeros((2, 2), np.int8),)):
        with pytest.raises(ValueError, match=r"allowed with .* is a pair"):
            npulab.emulate(add, pair)
    with pytest.raises(ValueError, match=r"^x: got shapes \(2, 2\) int8 and \(2, 3\) int8"):
        npulab.emulate(add, (np.zeros((2, 2), np.int8), np.zeros((2, 3), np.int8)))
    hybrid = replace(flat, bias=np.zeros(2), dtype="float32")
    with pytest.raises(ValueError, match="not finite"):
        npulab.emulate(hybrid, np.full(12, np.nan, np.float32))


@pytest.mark.parametrize(
    ("layer", "rule", "words"),
    [
        (
            Add((2,), input_q=QuantParams(1e-50)),
            "xnnpack",
            "^input scale: got 1e-50, allowed is a positive finite float32$",
        ),
        (Add((2,), other_q=QuantParams(1e300)), "gemmlowp", r"^other scale: got 1e\+300, allowed"),
        (
            Pool2D("max", (1, 1), (1, 1, 1), activation="relu6", input_q=QuantParams(1e-50)),
            "gemmlowp",
            "^output scale: got 1e-50",
        ),
        (
            Pool2D("max", (1, 1), (1, 1, 1)),
            "made up",
            "got 'made up', allowed is one of tflite-reference",
        ),
        (Add((2,)), "nvdla", "allowed with .* is one of tflite-reference, tflite-builtin"),
        (
            FullyConnected(np.zeros((2, 3), np.int8), np.zeros(2), dtype="float32"),
            "gemmlowp",
            "of float32 is one of hybrid-float32",
        ),
        (
            FullyConnected(np.zeros((2, 3), np.float16), np.zeros(2)),
            "tflite-builtin",
            "of float16 is one of tflite-reference",
        ),
        (
            FullyConnected(np.zeros((2, 3), np.int8), np.zeros(2, int)),
            "made up",
            "got 'made up', allowed is one of tflite-reference, .* gemmlowp",
        ),
        (
            FullyConnected(np.zeros((2, 3), np.int8), np.zeros(2, int)),
            "hybrid-float32",
            "got hybrid-float32 for .* of int8, allowed with that rule is float32",
        ),
    ],
)
def test_rule_that_does_not_go_with_a_layer(layer: object, rule: str, words: str) -> None:
    x = np.zeros(layer.input_shape, layer.dtype)
    with pytest.raises((LookupError, ValueError), match=words):
        npulab.emulate(layer, (x, x) if isinstance(layer, Add) else x, rule)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize(
    "rule", ["vivante-v7:half-even", "vivante-v8:half-away", "vivante-v8:floor"]
)
def test_addition_by_convolution_is_its_definition(rule: str, dtype: str) -> None:
    random = np.random.RandomState(8)
    info = np.iinfo(dtype)
    for scales in ((0.01, 0.01, 0.02), (0.5, 0.01, 0.4), (0.01, 0.7, 0.3), (1.0, 3e-5, 1.0)):
        zeros = random.randint(info.min, info.max + 1, 3)
        quantized = [
            QuantParams(scale, int(zero)) for scale, zero in zip(scales, zeros, strict=True)
        ]
        layer = Add((5, 7), (None, "relu")[random.randint(2)], *quantized, dtype)
        pair = random.randint(info.min, info.max + 1, (2, 5, 7)).astype(dtype)
        got = npulab.emulate(layer, tuple(pair), rule)
        assert np.array_equal(got, emulate_slowly.emulate(layer, tuple(pair), rule))
        near = np.array(emulate_slowly.emulate(layer, tuple(pair)), int)
        assert np.max(np.abs(got - near)) <= 3
    with pytest.raises(
        LookupError, match=r"allowed with .* is one of tflite-reference, .*vivante-v7:half-even"
    ):
        npulab.emulate(Add((2,), dtype="int16"), (np.zeros(2, np.int16),) * 2, rule)
