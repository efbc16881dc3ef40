"""float16 layers: element by element, by table, side by side; what is exact, by a definition of
its own.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import emulate_slowly
import numpy as np
import pytest

import npulab
from npulab.models import single_op_model, write_model
from npulab.quant.emulate import elements, outputs, prepare
from npulab.quant.floats import nearest_half
from npulab.quant.layers import (
    PAIRED,
    SINGLE,
    Activation,
    Add,
    Concat,
    Conv2D,
    Elementwise,
    FullyConnected,
    Network,
    Pool2D,
)
from npulab.quant.rules import QuantParams

RULES = ("fp16", "tflite-reference", "tflite-micro", "tflite-builtin", "xnnpack")
CODES = np.arange(65536, dtype=np.uint16).view(np.float16)
NUMBERS = np.sort(CODES[np.isfinite(CODES) & (CODES.view(np.uint16) != 0x8000)])
ODD = np.array(
    [0, -0.0, np.inf, -np.inf, np.nan, 65504, -65504, 2.0**-24, -(2.0**-24), 1, -1, 2048, 2049],
    np.float16,
)


def halves(seed: int, shape: tuple[int, ...], odd: float = 0.1) -> np.ndarray:
    """Codes of float16 of every size, some of them special."""
    random = np.random.RandomState(seed)
    x = random.randint(0, 65536, shape).astype(np.uint16).view(np.float16)
    x = np.where(
        random.rand(*shape) < 0.5, (random.randint(-64, 65, shape) / 8).astype(np.float16), x
    )
    return np.where(
        random.rand(*shape) < odd,
        random.choice(ODD, shape),
        np.where(np.isnan(x), np.float16(1), x),
    )


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal bit for bit."""
    return a.dtype == b.dtype and np.array_equal(a.view(np.uint16), b.view(np.uint16))


def by_search(value: Fraction) -> np.float16:
    """The float16 number nearest to an exact one: looked for among all of them, ties to an even
    code.
    """
    if abs(value) >= 65520:
        return np.float16(np.inf if value > 0 else -np.inf)
    at = int(np.searchsorted(NUMBERS, float(value)))
    near = [NUMBERS[i] for i in range(max(at - 2, 0), min(at + 3, len(NUMBERS)))]
    return min(near, key=lambda one: (abs(Fraction(float(one)) - value), one.view(np.uint16) % 2))


def test_one_rounding_is_to_the_nearest_and_ties_go_to_even() -> None:
    random = np.random.RandomState(0)
    tiny = Fraction(1, 2**200)
    for code in [
        *random.randint(0, len(NUMBERS) - 1, 100).tolist(),
        0,
        31743,
        31744,
        len(NUMBERS) - 2,
    ]:
        low, high = (Fraction(float(one)) for one in NUMBERS[code : code + 2])
        middle = (low + high) / 2
        for value in (
            middle,
            middle + tiny,
            middle - tiny,
            low + tiny,
            high - tiny,
            low,
            middle + (high - low) / 2**60,
        ):
            assert nearest_half(value) == by_search(value), value
    assert nearest_half(Fraction(65520)) == np.inf
    assert nearest_half(Fraction(65520) - tiny) == 65504


def constants(random: np.random.RandomState, channels: int) -> dict[str, object]:
    """Some of the three, numbers of few bits and of many, by channel or for all."""

    def one() -> object:
        shape = (channels,) if random.rand() < 0.5 else ()
        values = [
            random.normal(size=shape),
            np.float16(random.normal(size=shape)),
            2.0 ** random.randint(-9, 9, shape),
            random.choice([1 / 3, 1, -1, 0.1, 1e-30, 1e30, 0], shape),
        ]
        return values[random.randint(4)]

    return {name: one() for name in ("prescale", "scale", "bias") if random.rand() < 0.5}


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", [*PAIRED, *SINGLE])
def test_elementwise_is_its_definition_bit_for_bit(kind: str) -> None:
    random = np.random.RandomState([*PAIRED, *SINGLE].index(kind))
    for seed in range(24):
        shapes = [
            [(3, 4, 5), (3, 4, 5)],
            [(3, 4, 5), (3, 1, 5)],
            [(1, 4, 1), (3, 4, 5)],
            [(3, 4, 5), (3, 4, 5)],
        ][random.randint(4)]
        shapes = shapes[:1] if kind in SINGLE else shapes
        layer = Elementwise(
            kind,
            *shapes,
            **constants(random, max(shape[-1] for shape in shapes)),
            activation=[None, "relu", "relu6", "relu_n1_to_1"][random.randint(4)],
        )
        x = tuple(halves(100 * seed + i, shape) for i, shape in enumerate(shapes))
        given = x if len(x) == 2 else x[0]
        for rule in ("fp16", RULES[1 + seed % 4]):
            got = npulab.emulate(layer, given, rule)
            assert got.shape == layer.output_shape
            assert same(got, emulate_slowly.emulate(layer, given, rule)), (layer, rule)
            assert same(prepare(layer, rule)(given), got)


def test_elementwise_is_exact_with_one_rounding() -> None:
    """Against whole fractions rounded by search, numbers whose float64 steps round among them."""
    random = np.random.RandomState(5)
    for seed in range(40):
        layer = Elementwise(
            ["add", "subtract", "multiply"][seed % 3], (2, 2, 3), **constants(random, 3)
        )
        a, b = (halves(2 * seed + i, (2, 2, 3), odd=0) for i in (0, 1))
        a, b = (np.where(np.isfinite(one), one, np.float16(3)) for one in (a, b))
        got = npulab.emulate(layer, (a, b), "fp16")
        for place in np.ndindex(a.shape):
            p, s, t = (
                Fraction(float(np.broadcast_to(one, (3,))[place[-1]]))
                for one in (layer.prescale, layer.scale, layer.bias)
            )
            u, v = p * Fraction(float(a[place])), Fraction(float(b[place]))
            exact = {"add": u + v, "subtract": u - v, "multiply": u * v}[layer.kind] * s + t
            assert got[place] == by_search(exact), (layer, a[place], b[place])


def test_what_float64_would_round_twice_is_rounded_once() -> None:
    x = np.full((1, 1, 1), 2.0**-24, np.float16)
    tie = Elementwise("copy", (1, 1, 1), prescale=2.0**-60, bias=2049)  # half way, and 2**-84 more
    assert float(np.float64(2049) + 2.0**-84) == 2049.0
    assert npulab.emulate(tie, x, "fp16").item() == 2050
    assert npulab.emulate(tie, -x, "fp16").item() == 2048
    assert (
        npulab.emulate(
            Elementwise("copy", (1, 1, 1), prescale=2.0**-60, bias=2051), -x, "fp16"
        ).item()
        == 2050
    )
    assert npulab.emulate(tie, x, "tflite-reference").item() == 2048  # a float32 sum has lost it


def test_sum_and_product_of_two_are_numpys() -> None:
    """One float16 operation of numpy is rounded once."""
    a, b = halves(1, (4, 8, 64)), halves(2, (4, 8, 64))
    with np.errstate(all="ignore"):
        for kind, want in (("add", a + b), ("subtract", a - b), ("multiply", a * b)):
            want = np.where(np.isnan(want), np.float16(np.nan), want)
            for rule in RULES:
                assert same(npulab.emulate(Elementwise(kind, a.shape), (a, b), rule), want), (
                    kind,
                    rule,
                )
    assert same(
        npulab.emulate(Add(a.shape, dtype="float16"), (a, b), "fp16"),
        npulab.emulate(Elementwise("add", a.shape), (a, b), "fp16"),
    )


def test_zeros_infinities_and_nan_by_hand() -> None:
    a = np.array([0, -0.0, -0.0, np.inf, np.inf, np.nan, 1], np.float16).reshape(1, 1, 7)
    b = np.array([-0.0, 0, -0.0, -np.inf, 0, 1, np.nan], np.float16).reshape(1, 1, 7)
    pos, neg, inf, nan = 0, 0x8000, 0x7C00, 0x7E00

    def of(kind: str, **more: object) -> list[int]:
        given = a if kind in SINGLE else (a, b)
        return (
            npulab.emulate(Elementwise(kind, (1, 1, 7), **more), given, "fp16")
            .view(np.uint16)
            .ravel()
            .tolist()
        )

    assert of("add") == [pos, pos, neg, nan, inf, nan, nan]
    assert of("subtract") == [pos, neg, pos, inf, inf, nan, nan]
    assert of("multiply") == [neg, neg, pos, 0xFC00, nan, nan, nan]
    assert of("maximum") == [pos, pos, neg, inf, inf, nan, nan]
    assert of("minimum") == [neg, neg, neg, 0xFC00, pos, nan, nan]
    assert of("abs") == [pos, pos, pos, inf, inf, nan, 0x3C00]
    assert of("copy") == [pos, neg, neg, inf, inf, nan, 0x3C00]
    assert of("copy", bias=0.0, scale=1) == of("copy")
    assert of("copy", activation="relu") == [pos, pos, pos, inf, inf, nan, 0x3C00]
    assert of("copy", prescale=-1)[:5] == [neg, pos, pos, 0xFC00, 0xFC00]
    assert of("copy", prescale=0)[3:6] == [nan, nan, nan]


def test_large_tensor_is_worked_on_in_blocks() -> None:
    layer = Elementwise(
        "add", (300, 7, 64), other_shape=(300, 1, 64), scale=np.linspace(0.5, 2, 64), bias=1 / 3
    )
    a, b = halves(1, (2, 300, 7, 64)), halves(2, (2, 300, 1, 64))
    got = npulab.emulate(layer, (a, b), "fp16")
    for rows in (slice(0, 2), slice(145, 148), slice(298, 300)):
        some = Elementwise(
            "add",
            (rows.stop - rows.start, 7, 64),
            (rows.stop - rows.start, 1, 64),
            1.0,
            layer.scale,
            layer.bias,
        )
        assert same(got[:, rows], emulate_slowly.emulate(some, (a[:, rows], b[:, rows]), "fp16"))


@pytest.mark.parametrize("prescale", [1.0, -1.0, np.array([1.4424, 0.5, 1 / 3])])
@pytest.mark.parametrize("rule", RULES)
def test_activation_is_its_table(prescale: object, rule: str) -> None:
    with np.errstate(all="ignore"):
        table = np.tanh(CODES.astype(np.float64)).astype(np.float16)
    table[CODES.view(np.uint16) == 0xFE01] = 7  # a NaN may have an output of its own
    layer = Activation((5, 5, 3), table, "tanh", prescale)
    x = halves(4, (2, 5, 5, 3))
    got = npulab.emulate(layer, x, rule)
    assert same(got, emulate_slowly.emulate(layer, x, rule))
    if np.ndim(prescale) == 0:
        assert same(got, table[(x if prescale == 1 else -x).view(np.uint16)])
        odd = np.array([0xFE01], np.uint16).view(np.float16) * np.ones((5, 5, 3), np.float16)
        assert (
            npulab.emulate(
                layer, odd.view(np.uint16).clip(0xFE01, 0xFE01).view(np.float16), rule
            ).flat[0]
            == 7
            or prescale != 1
        )


@pytest.mark.parametrize(
    ("shapes", "axis"),
    [
        ([(4, 5, 3), (4, 5, 2)], -1),
        ([(4, 5, 3), (4, 1, 3), (4, 2, 3)], 1),
        ([(2, 5, 3)] * 4, 0),
        ([(7,)], 0),
    ],
)
@pytest.mark.parametrize("dtype", ["float16", "uint8", "int16"])
def test_concat_is_bit_for_bit(shapes: list[tuple[int, ...]], axis: int, dtype: str) -> None:
    layer = Concat(shapes, axis, dtype)
    random = np.random.RandomState(1)
    x = tuple(
        random.randint(0, 256 ** np.dtype(dtype).itemsize, (2, *shape))
        .astype(f"u{np.dtype(dtype).itemsize}")
        .view(dtype)
        for shape in shapes
    )
    got = npulab.emulate(layer, x if len(x) > 1 else x[0], "fp16")
    assert got.shape == (2, *layer.output_shape)
    assert got.tobytes() == emulate_slowly.emulate(layer, x, "fp16").tobytes()
    start = 0
    for one in x:  # every NaN as it was
        part = np.take(got, np.arange(start, start + one.shape[layer.axis + 1]), layer.axis + 1)
        assert part.tobytes() == one.tobytes()
        start += one.shape[layer.axis + 1]


def test_network_of_several_inputs() -> None:
    shape = (4, 4, 8)
    relu = Activation(shape, np.maximum(CODES, np.float16(0)), "relu")
    layers = (
        Elementwise("multiply", shape, scale=0.5),
        relu,
        Concat([shape, shape]),
        Elementwise("copy", (4, 4, 16), bias=1),
    )
    network = Network(layers, ((-1, -3), (0,), (1, -2), (2,)))
    a, b, c = (halves(i, (2, *shape), odd=0) for i in range(3))
    assert network.input_shapes == (shape, shape, shape)
    assert (network.output_shape, network.dtype, network.output_q) == (
        (4, 4, 16),
        "float16",
        QuantParams(1.0),
    )
    got = npulab.emulate(network, (a, b, c), "fp16")
    one = npulab.emulate(relu, npulab.emulate(layers[0], (a, c), "fp16"), "fp16")
    assert same(got, npulab.emulate(layers[3], np.concatenate([one, b], -1), "fp16"))
    assert [out.shape for out in outputs(network, (a, b, c), "fp16")] == [(2, *shape)] * 2 + [
        (2, 4, 4, 16)
    ] * 2
    # left out, the first layer takes what the network is given
    assert same(npulab.emulate([layers[0], relu], (a, c), "fp16"), one)
    for x, words in (
        ((a, b), "got 2 tensors, allowed with Network.* is a tuple of 3 tensors"),
        (a, "got ndarray, allowed with"),
    ):
        with pytest.raises(ValueError, match=f"^x: {words}"):
            npulab.emulate(network, x, "fp16")
    with pytest.raises(
        ValueError,
        match=r"^layer 0, Elementwise.*: got inputs \(-1, -3\), allowed are 2 sources from -2 to -1$",
    ):
        Network(layers[:1], ((-1, -3),))
    with pytest.raises(
        ValueError,
        match=r"^layer 1, Concat.*: got 4x4x8 float16 from Elementwise.*, allowed is 4x4x3 float16$",
    ):
        Network((layers[0], Concat([shape, (4, 4, 3)])), ((-1, -2), (-1, 0)))


@pytest.mark.parametrize("kind", ["average", "max", "min"])
@pytest.mark.parametrize("rule", ["fp16", "tflite-reference"])
def test_pools_of_float16(kind: str, rule: str) -> None:
    random = np.random.RandomState(9)
    for seed in range(20):
        kernel, stride = (tuple(int(n) for n in random.randint(1, 4, 2)) for _ in range(2))
        padding = ["same", "valid", ((min(1, kernel[0] - 1), 0), (0, kernel[1] - 1))][seed % 3]
        layer = Pool2D(
            kind,
            kernel,
            (6, 5, 3),
            stride,
            padding,
            [None, "relu", "relu6"][seed % 3],
            dtype="float16",
        )
        x = halves(seed, (2, 6, 5, 3), odd=0 if seed % 2 else 0.05)
        got = npulab.emulate(layer, x, rule)
        want = emulate_slowly.emulate(layer, x, rule)
        # of two zeros either is the largest
        assert (
            same(got, want) if kind == "average" else np.array_equal(got, want, equal_nan=True)
        ), (layer, seed)


def test_average_is_exact_with_one_rounding() -> None:
    layer = Pool2D("average", (3, 3), (7, 7, 4), (2, 2), "same", dtype="float16")
    x = np.where(np.isfinite(halves(3, (7, 7, 4))), halves(3, (7, 7, 4)), np.float16(5))
    got = npulab.emulate(layer, x, "fp16")
    (top, _), (left, _) = layer.pads
    for row, column, channel in np.ndindex(got.shape):
        window = x[
            max(2 * row - top, 0) : 2 * row - top + 3,
            max(2 * column - left, 0) : 2 * column - left + 3,
            channel,
        ].ravel()
        assert got[row, column, channel] == by_search(
            sum(map(Fraction, map(float, window)), Fraction(0)) / len(window)
        )
    # a float32 sum would have lost what decides the tie: 2 * 2049 + a bit, over two
    two = Pool2D("average", (1, 3), (1, 3, 1), dtype="float16")
    for least, want in ((2.0**-24, 2050), (-(2.0**-24), 2048), (0, 2048)):
        y = np.array([4096, 2051, least], np.float16).reshape(1, 3, 1)
        assert npulab.emulate(two, y, "fp16").item() == by_search(
            sum(map(Fraction, map(float, y.ravel())), Fraction(0)) / 3
        ), (least, want)


@pytest.mark.parametrize("depthwise", [False, True])
@pytest.mark.parametrize("activation", [None, "relu"])
def test_convolution_is_exact_with_one_rounding(depthwise: bool, activation: str | None) -> None:
    random = np.random.RandomState(4)
    for seed in range(6):
        weights = halves(seed, (1, 3, 2, 6) if depthwise else (4, 3, 2, 3), odd=0)
        weights = np.where(np.isfinite(weights), weights, np.float16(2))
        bias = np.float16(random.normal(size=6 if depthwise else 4))
        layer = Conv2D(
            weights, bias, (5, 6, 3), (1, 2), "same", depthwise=depthwise, activation=activation
        )
        x = halves(seed + 50, (2, 5, 6, 3), odd=0.02 if seed % 2 else 0)
        got = npulab.emulate(layer, x, "fp16")
        assert same(got, emulate_slowly.emulate(layer, x, "fp16")), seed
        assert np.isnan(got).any() == (seed % 2 == 1) or np.isfinite(x).all()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: Elementwise("divide", (2,)),
            "^kind: got 'divide', allowed is one of add, subtract, multiply, maximum, minimum, abs, copy$",
        ),
        (lambda: Elementwise("add", ()), "^input_shape: got"),
        (lambda: Elementwise("add", (2, 0)), "^input_shape: got"),
        (lambda: Elementwise("add", (2.5,)), "^input_shape: got"),
        (lambda: Elementwise("add", 3), "^input_shape: got 3"),
        (
            lambda: Elementwise("add", (2, 3), (2, 2)),
            r"^other_shape: got \(2, 2\), allowed is \(2, 3\), or a shape that broadcasts with it",
        ),
        (lambda: Elementwise("add", (2, 3), (3,)), "^other_shape: got"),
        (lambda: Elementwise("abs", (2,), (2,)), "^other_shape: got .* allowed with abs is none$"),
        (
            lambda: Elementwise("add", (2, 3), scale=[1, 2]),
            r"^scale: got \[1, 2\], allowed is a number within float32, or 3 such numbers$",
        ),
        (lambda: Elementwise("add", (2, 3), bias=np.nan), "^bias: got nan"),
        (lambda: Elementwise("add", (2, 3), bias=1e39), "^bias: got"),
        (lambda: Elementwise("add", (2, 3), prescale="x"), "^prescale: got 'x'"),
        (lambda: Elementwise("add", (2, 3), prescale=1e-60), "^prescale: got 1e-60"),
        (lambda: Elementwise("add", (2,), activation="gelu"), "^activation: got 'gelu'"),
        (lambda: Elementwise("add", (2,), dtype="int8"), "^dtype: got 'int8', allowed is float16$"),
        (
            lambda: Elementwise("add", (2**16, 1), (1, 2**16)),
            "allowed are at most 2147483648 elements$",
        ),
        (
            lambda: Activation((2,), np.zeros(65536)),
            r"^outputs: got shape \(65536,\) float64, allowed is \(65536,\) float16",
        ),
        (lambda: Activation((2,), np.zeros(256, np.float16)), "^outputs: got shape"),
        (lambda: Activation((2,), CODES, prescale=[1, 2, 3]), "^prescale: got"),
        (lambda: Concat([]), "^input_shapes: got"),
        (lambda: Concat([(2, 3), (3, 3)]), "^input_shapes: got .* differ in axis 1 only$"),
        (lambda: Concat([(2, 3), (2,)]), "^input_shapes: got"),
        (lambda: Concat([(2, 3)], 2), "^axis: got 2, allowed is -2 to 1$"),
        (lambda: Concat([(2, 3)], 0.5), "^axis: got 0.5"),
        (lambda: Concat([(2, 3)], dtype="float32"), "^dtype: got 'float32'"),
        (lambda: Concat([(2, 3)], input_q=QuantParams(1.0, 3)), "^input_q: got zero point 3"),
        (lambda: Concat([(2, 3)], input_q=1), "^input_q: got 1"),
    ],
)
def test_layer_that_is_refused(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def test_input_that_is_refused() -> None:
    add, joined = Elementwise("add", (2, 3), (2, 1)), Concat([(2, 3)] * 3)
    a, b = np.zeros((2, 3), np.float16), np.zeros((2, 1), np.float16)
    for x, words in (
        (
            a,
            r"^x: got ndarray, allowed with Elementwise.* is a pair, two tensors of \(2, 3\) and \(2, 1\), or",
        ),
        (
            (a, a),
            r"^x: got shapes \(2, 3\) float16 and \(2, 3\) float16, allowed is two tensors of",
        ),
        ((a[None], b), "^x: got shapes"),
        ((a, b.astype(np.float32)), "^x: got shapes"),
        ((a,), "^x: got tuple"),
    ):
        with pytest.raises(ValueError, match=words):
            npulab.emulate(add, x, "fp16")
    with pytest.raises(
        ValueError,
        match=r"^x: got tuple, allowed with Concat.* is a tuple, 3 tensors of \(2, 3\), or",
    ):
        npulab.emulate(joined, (a, a), "fp16")
    for layer, x in ((add, (a, b)), (Activation((2, 3), CODES), a)):
        with pytest.raises(
            LookupError,
            match=r"^rule: got 'gemmlowp', allowed with .* of float16 is one of tflite-reference",
        ):
            npulab.emulate(layer, x, "gemmlowp")
    with pytest.raises(LookupError, match=r"^rule: got 'made up'"):
        npulab.emulate(joined, (a, a, a), "made up")
    for refused in (add, Activation((2, 3), CODES), joined):
        with pytest.raises(
            ValueError, match="allowed is a Conv2D, FullyConnected, Pool2D, Add or Operation"
        ):
            single_op_model(refused)
    with pytest.raises(
        ValueError,
        match=r"^layer 0: got Elementwise.*, allowed in a model is a Conv2D, FullyConnected",
    ):
        write_model([Elementwise("copy", (2, 3))])
    with pytest.raises(
        ValueError,
        match=r"^layer: got Elementwise.*, allowed is a Conv2D, Conv1D or FullyConnected$",
    ):
        npulab.accumulate(Elementwise("copy", (2, 3)), a)


def test_layers_print_and_tell_their_parameters() -> None:
    layer = Elementwise("add", (4, 4, 8), (4, 1, 8), -1, np.ones(8) * 2, 0.5, "relu")
    assert (
        repr(layer)
        == "Elementwise(add 4x4x8 and 4x1x8 -> 4x4x8, prescale -1, scale by channel, bias 0.5, relu, float16)"
    )
    assert layer.parameters == {
        "op": "add",
        "input_h": 4,
        "input_w": 4,
        "input_c": 8,
        "other_h": 4,
        "other_w": 1,
        "other_c": 8,
        "prescale": -1.0,
        "scale": (2.0,) * 8,
        "bias": 0.5,
        "activation": "relu",
        "dtype": "float16",
    }
    assert repr(Elementwise("copy", (2, 3))) == "Elementwise(copy 2x3, float16)"
    assert repr(Activation((2, 3), CODES, "tanh", 2)) == "Activation(tanh 2x3, prescale 2, float16)"
    assert Activation((1, 2, 3), CODES, "tanh").parameters == {
        "op": "activation",
        "function": "tanh",
        "input_h": 1,
        "input_w": 2,
        "input_c": 3,
        "prescale": 1.0,
        "dtype": "float16",
    }
    assert repr(Concat([(2, 3)] * 2, 0)) == "Concat(2 times 2x3 -> 4x3, axis 0, float16)"
    assert Concat([(1, 2, 3)] * 2).parameters["output_c"] == 6
    assert isinstance(FullyConnected(np.zeros((2, 3), np.float16), np.zeros(2)).parameters, dict)


@pytest.mark.parametrize("seed", range(8))
def test_sums_that_float64_does_not_hold_are_taken_again(seed: int) -> None:
    """A large number and its negative, with what decides a tie between them: float64 loses it."""
    random = np.random.RandomState(seed)
    least = random.choice([-1, 1]) * 2.0**-24
    x = np.array([65504, -65504, 2.0**-24, 1, 1], np.float16)
    weights = np.array([65504, 65504, least, 2050, 1], np.float16)
    order = random.permutation(5)
    want = by_search(Fraction(2051) + Fraction(least) * Fraction(1, 2**24))
    assert want == (2052 if least > 0 else 2050)
    flat = FullyConnected(weights[order][None], np.zeros(1, np.float16))
    conv = Conv2D(weights[order].reshape(1, 1, 1, 5), np.zeros(1, np.float16), (1, 1, 5))
    depth = Conv2D(
        weights[order].reshape(1, 1, 5, 1), np.zeros(1, np.float16), (1, 5, 1), depthwise=True
    )
    for layer in (flat, conv, depth):
        assert npulab.emulate(layer, x[order].reshape(layer.input_shape), "fp16").item() == want
        assert (
            emulate_slowly.emulate(layer, x[order].reshape(layer.input_shape), "fp16").item()
            == want
        )
    relu = Conv2D(
        -weights[order].reshape(1, 1, 1, 5), np.zeros(1, np.float16), (1, 1, 5), activation="relu"
    )
    assert npulab.emulate(relu, x[order].reshape(1, 1, 5), "fp16").view(np.uint16).item() == 0


def test_fully_connected_of_float16_is_its_definition() -> None:
    for seed in range(4):
        weights = np.where(
            np.isfinite(halves(seed, (5, 40))), halves(seed, (5, 40)), np.float16(0.5)
        )
        layer = FullyConnected(
            weights, np.float16(np.arange(5) / 3), activation=[None, "relu6"][seed % 2]
        )
        x = halves(seed + 9, (3, 40), odd=0.01)
        for rule in ("fp16", "tflite-reference"):
            assert same(npulab.emulate(layer, x, rule), emulate_slowly.emulate(layer, x, rule))


def test_what_two_float64_numbers_leave_open_is_taken_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []
    whole = elements.element
    monkeypatch.setattr(elements, "element", lambda *given: asked.append(given) or whole(*given))
    layer = Elementwise("add", (1, 1, 1), scale=1.0000000000000002, bias=-0.09997558593750003)
    x = np.zeros((1, 1, 1), np.float16), np.full((1, 1, 1), 0.375, np.float16)
    want = by_search(Fraction(0.375) * Fraction(layer.scale) + Fraction(layer.bias))
    assert npulab.emulate(layer, x, "fp16").item() == want
    assert len(asked) == 1


@pytest.mark.parametrize(("groups", "outputs_"), [(2, 4), (3, 6), (6, 6), (6, 12)])
def test_grouped_convolution(groups: int, outputs_: int) -> None:
    random = np.random.RandomState(groups)
    weights = random.normal(size=(outputs_, 3, 2, 6 // groups)).astype(np.float16)
    layer = Conv2D(
        weights,
        np.arange(outputs_) / 4,
        (5, 4, 6),
        (2, 1),
        "same",
        activation="relu",
        groups=groups,
    )
    x = random.normal(size=(2, 5, 4, 6)).astype(np.float16)
    spread = np.zeros(
        (outputs_, 3, 2, 6), np.float16
    )  # the same layer with zeros for the other groups
    for n in range(outputs_):
        first = n // (outputs_ // groups) * (6 // groups)
        spread[n, ..., first : first + 6 // groups] = weights[n]
    whole = Conv2D(spread, layer.bias, (5, 4, 6), (2, 1), "same", activation="relu")
    for rule in ("fp16", "tflite-reference"):
        got = npulab.emulate(layer, x, rule)
        assert same(got, emulate_slowly.emulate(layer, x, rule))
        assert np.array_equal(got, npulab.emulate(whole, x, rule))
        assert same(prepare(layer, rule)(x), got)
    assert repr(layer).startswith(f"Conv2D({groups} groups 3x2, 5x4x6 -> 3x4x{outputs_}")
    assert layer.parameters["groups"] == groups
    assert "groups" not in whole.parameters
    with pytest.raises(
        ValueError, match=f"^layer 0: groups: got {groups}, allowed in a model is 1$"
    ):
        single_op_model(layer)


@pytest.mark.parametrize(
    ("dtype", "shape", "change", "words"),
    [
        (
            np.float16,
            (4, 1, 1, 2),
            {"groups": 4},
            "^groups: got 4, allowed with float16 weights .* is a divisor of 2, which divides input and output channels$",
        ),
        (
            np.float16,
            (4, 1, 1, 6),
            {"groups": 2},
            "^weights: got 6 input channels, allowed is 3, the channels of input_shape in 2 groups$",
        ),
        (np.float16, (4, 1, 1, 6), {"groups": 0}, "^groups: got 0"),
        (np.float16, (4, 1, 1, 6), {"groups": "2"}, "^groups: got '2'"),
        (
            np.int8,
            (4, 1, 1, 3),
            {"groups": 2},
            "^groups: got 2, allowed with int8 weights .* is 1$",
        ),
        (
            np.float16,
            (1, 1, 1, 6),
            {"groups": 2, "depthwise": True},
            "^groups: got 2, allowed with depthwise weights .* is 1$",
        ),
    ],
)
def test_groups_that_are_refused(
    dtype: type, shape: tuple[int, ...], change: dict[str, object], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        Conv2D(
            np.zeros(shape, dtype),
            np.zeros(shape[0] if shape[0] > 1 else 6, dtype),
            (3, 3, 6),
            **change,
        )


@pytest.mark.long
def test_many_elementwise_layers_are_their_definition() -> None:
    some = [
        1 / 3,
        1,
        -1,
        0.1,
        2.0**-60,
        2.0**60,
        0,
        1e-30,
        -1e30,
        3,
        2049,
        1 + 2.0**-52,
        2.0**-40,
        0.5,
        1 / 49,
    ]
    for seed in range(4000):
        random = np.random.RandomState(seed)
        kind = [*PAIRED, *SINGLE][seed % 7]
        given = {
            name: random.choice(some, 6)
            for name in ("prescale", "scale", "bias")
            if random.rand() < 0.7
        }
        layer = Elementwise(
            kind, (3, 4, 6), activation=random.choice([None, "relu", "relu_n1_to_1"]), **given
        )
        x = tuple(
            halves(seed + i, (3, 4, 6), odd=random.choice([0, 0.2]))
            for i in range(2 if kind in PAIRED else 1)
        )
        x = x if len(x) == 2 else x[0]
        assert same(npulab.emulate(layer, x, "fp16"), emulate_slowly.emulate(layer, x, "fp16")), (
            seed,
            layer,
        )
