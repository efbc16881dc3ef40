"""Hybrid fully connected layers against LiteRT: random models, the two of seed 003, the variants
that have names.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from oracles import litert
from random_models import random_hybrid

import npulab
from npulab.models import Graph, read_model, single_op_model
from npulab.models.file import pack, unpack
from npulab.quant.emulate.real import multiply_add, symmetric
from npulab.quant.floats import ulps
from npulab.quant.layers import Conv2D, FullyConnected
from npulab.quant.rules import QuantParams

ENGINES = {"reference": "tflite-reference", "builtin": "tflite-builtin"}
FUSED, PORTABLE = "hybrid-float32:fused", "hybrid-float32:portable"
FEW, MANY = 100, 2000
NAMES = {"input": "x", "output": "y"}
# the operators of seed 003: leading axes, inputs, outputs
SEED = {"[4,1000]x[96,1000]": ((4,), 1000, 96), "[4,2,1536]x[96,1536]": ((4, 2), 1536, 96)}


def bits(a: np.ndarray) -> np.ndarray:
    assert a.dtype == np.float32
    return a.view(np.int32)


def unbiased(model: bytes) -> bytes:
    """The model with its bias left out."""
    graph = unpack(model)
    (one,) = graph.operators
    return pack(replace(graph, operators=(replace(one, inputs=(*one.inputs[:2], -1)),)))


def model_of(
    layer: FullyConnected, x: np.ndarray, biased: bool = True, label: str | None = None
) -> bytes:
    model = single_op_model(layer, x.shape[:-1], weights_as=label)
    return model if biased else unbiased(model)


def differing(seed: int) -> Counter[str]:
    """Outputs of a random model, and how many differ in a bit, by engine and variant."""
    layer, x, biased, label = random_hybrid(seed)
    counts: Counter[str] = Counter()
    model = model_of(layer, x, biased, label)
    plain = npulab.emulate(layer, x, "hybrid-float32")
    for kernels, engine in ENGINES.items():
        given, delegated = litert(model, x, kernels=kernels)
        assert not delegated
        assert given.shape == (x.size // x.shape[-1], len(layer.weights))
        ours = npulab.emulate(layer, x, engine)
        assert ours.size == given.size
        counts[engine] += int(np.sum(bits(ours).ravel() != bits(given).ravel()))
        counts["hybrid-float32"] += int(np.sum(bits(plain).ravel() != bits(given).ravel()))
        # what a bound of the activation cuts off cannot differ
        open_ = (
            np.abs(given).ravel() > 0 if layer.activation is None else np.zeros(given.size, bool)
        )
        fused = npulab.emulate(layer, x, FUSED)
        counts["told apart"] += (
            int(np.sum((bits(fused).ravel() != bits(given).ravel()) & open_)) * biased
        )
        counts["open"] += int(np.sum(open_)) * biased
    counts["outputs"] += 2 * plain.size
    counts.update(
        {
            f"{x.ndim} axes",
            "per channel" if isinstance(layer.weight_q.scale, tuple) else "per tensor",
            f"bias {biased}",
            f"label {label}",
            f"activation {layer.activation}",
            "a row of zeros" if np.any(~x.reshape(-1, x.shape[-1]).any(1)) else "no row of zeros",
            "nothing but zeros" if not x.any() else "numbers",
        }
    )
    return counts


def counted(seeds: range) -> Counter[str]:
    total: Counter[str] = Counter()
    for seed in seeds:
        total.update(differing(seed))
    return total


@cache
def few() -> Counter[str]:
    return counted(range(FEW))


def check_counts(found: Counter[str]) -> None:
    assert [found[name] for name in (*ENGINES.values(), "hybrid-float32")] == [0, 0, 0]
    # of outputs with a bias that no activation cuts off, the fused variant has about an eighth
    # otherwise
    assert 0.10 < found["told apart"] / found["open"] < 0.15


def test_random_models_in_litert() -> None:
    check_counts(few())
    assert few()["outputs"] > 40_000


@pytest.mark.parametrize(
    "what",
    [
        "2 axes",
        "3 axes",
        "4 axes",
        "per channel",
        "per tensor",
        "bias True",
        "bias False",
        "label None",
        "label uint8",
        "a row of zeros",
        "no row of zeros",
        "nothing but zeros",
        "activation None",
        "activation relu",
        "activation relu6",
        "activation relu_n1_to_1",
    ],
)
def test_every_kind_is_drawn(what: str) -> None:
    assert few()[what] > 0


@pytest.mark.long
def test_many_random_models_in_litert(capsys: pytest.CaptureFixture[str]) -> None:
    found = counted(range(MANY))
    with capsys.disabled():
        print("", *sorted(found.items()), sep="\n")
    check_counts(found)


def seed_layer(
    name: str, scale: Any = 0.0078125, seed: int = 3
) -> tuple[FullyConnected, np.ndarray]:
    random = np.random.RandomState(seed)
    lead, inputs, outputs = SEED[name]
    layer = FullyConnected(
        random.randint(-127, 128, (outputs, inputs)).astype(np.int8),
        random.normal(size=outputs).astype(np.float32),
        weight_q=QuantParams(scale),
        dtype="float32",
    )
    return layer, random.normal(size=(*lead, inputs)).astype(np.float32)


@pytest.mark.parametrize("kernels", ENGINES)
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("name", SEED)
def test_the_operators_of_the_seed(name: str, per_channel: bool, kernels: str) -> None:
    scales = tuple(np.random.RandomState(1).uniform(1e-3, 2e-2, 96).astype(np.float32).tolist())
    layer, x = seed_layer(name, scales if per_channel else 0.0078125)
    model = single_op_model(layer, SEED[name][0], weights_as="uint8")
    given, _ = litert(model, x, kernels=kernels)
    assert given.shape == ((4, 96) if len(SEED[name][0]) == 1 else (8, 96))
    ours = npulab.emulate(layer, x, ENGINES[kernels])
    assert np.array_equal(bits(ours).reshape(given.shape), bits(given))
    assert np.array_equal(npulab.emulate(read_model(model).layers[0], x), ours)
    fused = npulab.emulate(layer, x, FUSED).reshape(given.shape)
    assert 0.2 < np.mean(fused != given) < 0.35


def test_fused_is_further_than_an_ulp_only_where_the_sum_cancels() -> None:
    layer, x = seed_layer("[4,1000]x[96,1000]", 0.0123)
    plain, fused = (npulab.emulate(layer, x, name) for name in ("hybrid-float32", FUSED))
    product = plain.astype(float) - layer.bias
    cancels = np.abs(plain) < np.abs(product)
    assert np.all(ulps(plain, fused)[~cancels] <= 1)
    assert ulps(plain, fused).max() > 1
    # each has one rounding of its own at the end, and the plain one that of the product
    bound = (np.abs(product) + np.abs(plain) + np.abs(fused)) * 1.001 * 2.0**-24
    assert np.all(np.abs(plain.astype(float) - fused) <= bound)


def test_a_product_and_a_sum_rounded_once() -> None:
    """Against whole numbers, also where float64 would round twice."""
    random = np.random.RandomState(5)
    a = random.randint(-(2**24), 2**24, 4000).astype(np.float32)
    b = (random.normal(size=4000) * 2.0 ** random.randint(-20, 4, 4000)).astype(np.float32)
    c = (random.normal(size=4000) * 2.0 ** random.randint(-40, 40, 4000)).astype(np.float32)
    near = np.arange(4000) % 2 == 0
    c[near] = (a * b)[near] * -1 + random.randint(-3, 4, near.sum()).astype(
        np.float32
    ) * np.spacing(a * b)[near]
    # next to a tie of float32, which 53 bits do not hold
    a[:2], b[:2], c[:2] = 1 + 2.0**-23, [2.0**-60, -(2.0**-60)], [1 + 2.0**-23, 1 + 2.0**-23]
    a[2:4], b[2:4], c[2:4] = [2.0**-24] * 2, [1 + 2.0**-23, 1 - 2.0**-24], 1
    assert bits(multiply_add(a, b, c)).tolist() == [
        int(bits(once(*each))) for each in zip(a, b, c, strict=True)
    ]


def once(a: np.float32, b: np.float32, c: np.float32) -> np.ndarray:
    """The float32 number nearest to ``a * b + c``, ties to even, found among three."""
    from fractions import Fraction

    exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    guess = np.float32(float(exact))
    near = [
        np.nextafter(guess, np.float32(-np.inf)),
        guess,
        np.nextafter(guess, np.float32(np.inf)),
    ]
    return np.asarray(
        min(near, key=lambda one: (abs(Fraction(float(one)) - exact), int(bits(one)) % 2))
    )


def test_variants_against_whole_numbers() -> None:
    """Row by row, product by product."""
    random = np.random.RandomState(11)
    layer = FullyConnected(
        random.randint(-127, 128, (6, 11)).astype(np.int8),
        random.normal(size=6).astype(np.float32),
        "relu_n1_to_1",
        weight_q=QuantParams(tuple(random.uniform(1e-3, 1e-2, 6).astype(np.float32).tolist())),
        dtype="float32",
    )
    x = random.normal(size=(5, 11)).astype(np.float32)
    x[2] = 0
    fused, portable = (np.empty((5, 6), np.float32) for _ in range(2))
    for row, values in enumerate(x):
        most = np.abs(values).max()
        step, inverse = (
            (most / np.float32(127), np.float32(127) / most)
            if most
            else (np.float32(1), np.float32(0))
        )
        codes = [int(np.sign(one) * np.floor(abs(float(one)) + 0.5)) for one in values * inverse]
        for channel, scale in enumerate(np.float32(layer.weight_q.scale)):
            dot = np.float32(
                sum(code * int(by) for code, by in zip(codes, layer.weights[channel], strict=True))
            )
            bias = np.float32(layer.bias[channel])
            fused[row, channel] = np.clip(once(dot, step * scale, bias), -1, 1)
            portable[row, channel] = np.clip(dot * (step * scale) + bias, -1, 1)
    assert np.array_equal(npulab.emulate(layer, x, FUSED), fused)
    assert np.array_equal(npulab.emulate(layer, x, PORTABLE), portable)
    assert np.any(fused != portable)


@pytest.mark.parametrize("kernels", ENGINES)
def test_vectors_round_the_last_value_below_a_half_up(kernels: str) -> None:
    """Which exact rounding does not: it is the only value that tells the two apart."""
    below = np.nextafter(np.float32(0.5), np.float32(0))
    x = np.zeros((2, 12), np.float32)
    x[0, 0], x[0, 3], x[0, 9] = 127, below, below  # the first eight are a vector's, the rest is not
    x[1, 0], x[1, 3], x[1, 9] = 127, -below, np.nextafter(below, np.float32(0))
    layer = FullyConnected(
        np.eye(12, dtype=np.int8), np.zeros(12), weight_q=QuantParams(1.0), dtype="float32"
    )
    given, _ = litert(model_of(layer, x), x, kernels=kernels)
    assert given[:, [3, 9]].tolist() == [[1, 0], [-1, 0]]
    assert np.array_equal(npulab.emulate(layer, x, ENGINES[kernels]), given)
    assert np.array_equal(npulab.emulate(layer, x, FUSED), given)
    assert npulab.emulate(layer, x, PORTABLE)[:, [3, 9]].tolist() == [[0, 0], [0, 0]]


def test_portable_rounding_differs_nowhere_else() -> None:
    values = np.arange(
        np.float32(0.25).view(np.int32), np.float32(127).view(np.int32), 997, np.int32
    ).view(np.float32)
    halves = np.arange(1, 254, dtype=np.float32) / 2
    values = np.concatenate(
        [values, halves, np.nextafter(halves, np.float32(0)), np.nextafter(halves, np.float32(999))]
    )
    values = np.concatenate(
        [[np.float32(127)], values, -values, np.zeros(-2 * len(values) % 8 + 7)]
    ).astype(np.float32)
    vectors, portable = (symmetric(values[None], one)[0][0] for one in (False, True))
    assert {abs(one) for one in values[vectors != portable].tolist()} == {
        float(np.nextafter(np.float32(0.5), np.float32(0)))
    }


@pytest.mark.parametrize("name", [FUSED, PORTABLE])
def test_a_variant_is_one_of_a_hybrid_fully_connected_layer(name: str) -> None:
    flat = FullyConnected(np.ones((2, 3), np.int8), np.zeros(2, int))
    conv = Conv2D(np.ones((2, 1, 1, 3), np.int8), np.zeros(2), (1, 1, 3), dtype="float32")
    with pytest.raises(LookupError, match=rf"^rule: got '{name}', allowed is one of "):
        npulab.emulate(flat, np.zeros((1, 3), np.int8), name)
    with pytest.raises(
        LookupError,
        match=rf"^rule: got '{name}', allowed with Conv2D\(.*\) of float32 is one of hybrid-float32,",
    ):
        npulab.emulate(conv, np.zeros((1, 1, 3), np.float32), name)
    with pytest.raises(LookupError, match=rf"is one of hybrid-float32, .*, {FUSED}, {PORTABLE}$"):
        npulab.emulate(
            replace(flat, dtype="float32", bias=np.zeros(2)),
            np.zeros((1, 3), np.float32),
            "gemmlowp",
        )


def test_asymmetric_inputs_are_refused() -> None:
    layer, _ = seed_layer("[4,1000]x[96,1000]")
    graph = unpack(single_op_model(layer))
    (one,) = graph.operators
    model = pack(
        replace(
            graph,
            operators=(replace(one, options={**one.options, "asymmetric_quantize_inputs": True}),),
        )
    )
    with pytest.raises(
        ValueError,
        match=r"^operator 0, FULLY_CONNECTED: options: got .*'asymmetric_quantize_inputs': True.*, allowed are weights_format 0 and",
    ):
        read_model(model).layers  # noqa: B018


# what a model of one such layer may state


def test_leading_axes_names_and_label_are_written_and_read_back() -> None:
    layer, x = seed_layer("[4,2,1536]x[96,1536]")
    model = read_model(single_op_model(layer, (4, 2), NAMES, "uint8"))
    assert [(one.name, one.shape, one.dtype) for one in model.tensors] == [
        ("x", (4, 2, 1536), "float32"),
        ("weights", (96, 1536), "uint8"),
        ("bias", (96,), "float32"),
        ("y", (8, 96), "float32"),
    ]
    (back,) = model.layers
    assert back.weights.dtype == np.int8
    assert np.array_equal(back.weights, layer.weights)
    assert np.array_equal(back.bias, layer.bias)
    assert (back.weight_q, back.dtype, back.activation) == (
        layer.weight_q,
        layer.dtype,
        layer.activation,
    )
    assert np.array_equal(npulab.emulate(back, x), npulab.emulate(layer, x))
    assert (
        single_op_model(layer, [4, 2])
        == single_op_model(layer, (4, 2))
        != single_op_model(layer, 8)
    )
    assert single_op_model(layer, (8,)) == single_op_model(layer, 8, {}, None)


def test_int8_layers_take_leading_axes_too() -> None:
    random = np.random.RandomState(0)
    layer = FullyConnected(
        random.randint(-127, 128, (5, 7)).astype(np.int8),
        random.randint(-99, 99, 5),
        weight_q=QuantParams(0.01),
        output_q=QuantParams(0.05),
    )
    x = random.randint(-128, 128, (2, 3, 2, 7)).astype(np.int8)
    given, _ = litert(single_op_model(layer, (2, 3, 2)), x)
    assert np.array_equal(given, npulab.emulate(layer, x).reshape(12, 5))


def test_weights_of_a_convolution_may_have_the_label_where_they_have_one_scale() -> None:
    random = np.random.RandomState(0)
    for scale in (0.01, (0.01, 0.02)):
        layer = Conv2D(
            random.randint(-127, 128, (2, 2, 2, 3)).astype(np.int8),
            random.normal(size=2).astype(np.float32),
            (4, 4, 3),
            weight_q=QuantParams(scale),
            dtype="float32",
        )
        graph = unpack(single_op_model(layer))
        model = pack(relabelled(graph))
        if isinstance(scale, tuple):
            with pytest.raises(
                ValueError,
                match=r"^operator 0, CONV_2D: dtype: got 'float32', allowed with uint8 weights",
            ):
                read_model(model).layers  # noqa: B018
            continue
        x = random.normal(size=(1, 4, 4, 3)).astype(np.float32)
        given, _ = litert(model, x)
        assert np.array_equal(npulab.emulate(read_model(model).layers[0], x), given)


def relabelled(graph: Graph) -> Graph:
    return replace(
        graph,
        tensors=tuple(
            replace(one, dtype="uint8") if one.name == "weights" else one for one in graph.tensors
        ),
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            {"batch": (4, 0)},
            "batch: got (4, 0), allowed is up to 3 sizes of at least 1 and within int32 in all",
        ),
        (
            {"batch": ()},
            "batch: got (), allowed is up to 3 sizes of at least 1 and within int32 in all",
        ),
        (
            {"batch": (1, 2, 3, 4)},
            "batch: got (1, 2, 3, 4), allowed is up to 3 sizes of at least 1 and within int32 in all",
        ),
        (
            {"batch": (2**16, 2**16)},
            "batch: got (65536, 65536), allowed is up to 3 sizes of at least 1 and within int32 in all",
        ),
        ({"batch": "4"}, "batch: got '4', allowed is at least 1 and within int32"),
        (
            {"names": {"wieghts": "w"}},
            "names: got 'wieghts': 'w', allowed are texts for input, weights, bias, output",
        ),
        (
            {"names": {"weights": 3}},
            "names: got 'weights': 3, allowed are texts for input, weights, bias, output",
        ),
        (
            {"weights_as": "int4"},
            "weights_as: got 'int4' with FullyConnected(3 -> 2, float32), allowed is 'uint8' with a fully "
            "connected layer of float32",
        ),
        ({"form": "onnx"}, "form: got 'onnx', allowed is tflite or circle"),
    ],
)
def test_what_cannot_be_written_says_so(arguments: dict[str, Any], words: str) -> None:
    layer = FullyConnected(np.ones((2, 3), np.int8), np.zeros(2), dtype="float32")
    with pytest.raises(ValueError) as caught:
        single_op_model(layer, **arguments)
    assert str(caught.value) == words


def test_other_layers_have_one_leading_axis_and_their_own_label() -> None:
    conv = Conv2D(np.ones((2, 1, 1, 3), np.int8), np.zeros(2), (1, 1, 3), dtype="float32")
    with pytest.raises(
        ValueError, match=r"^batch: got \(4, 2\), allowed is at least 1 and within int32$"
    ):
        single_op_model(conv, (4, 2))
    with pytest.raises(ValueError, match=r"^weights_as: got 'uint8' with Conv2D"):
        single_op_model(conv, weights_as="uint8")
