"""Operators without weights against TensorFlow Lite's kernels, and as parts of networks."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import shared
from oracles import litert
from random_operations import KINDS, random_operation
from refusals import refused

import npulab
from npulab.models import read_model, single_op_model, write_model
from npulab.quant import fixed
from npulab.quant.emulate import outputs
from npulab.quant.layers import Network, Operation, Placeholder
from npulab.quant.layers.operation import RULED
from npulab.quant.rules import QuantParams

SEEDS = 12  # of each kind in a normal run
LONG = 650  # which makes 20,150 operators
BUILTIN = [kind for kind, rules in RULED.items() if not rules or "tflite-builtin" in rules]
ULPS = 1  # float32 results whose arithmetic goes through an exponential; others are equal


def differs(got: np.ndarray, want: np.ndarray) -> bool:
    if got.dtype != want.dtype or got.shape != want.shape:
        return True
    if got.dtype != np.float32:
        return not np.array_equal(got, want)
    return bool(np.any(np.abs(got.view(np.int32).astype(np.int64) - want.view(np.int32)) > ULPS))


def compared(seed: int, kind: str, kernels: str, rule: str) -> str:
    """What is wrong with an operator; blank if nothing is."""
    layer, tensors = random_operation(seed, (kind,))
    want, _ = litert(single_op_model(layer), *tensors, kernels=kernels)
    got = npulab.emulate(layer, tensors if len(tensors) > 1 else tensors[0], rule)
    return f"seed {seed}, {layer} {dict(layer.options)}" if differs(got, want) else ""


@pytest.mark.parametrize("kind", KINDS)
def test_operators_are_the_reference_kernels(kind: str) -> None:
    assert (
        list(
            filter(
                None,
                (compared(seed, kind, "reference", "tflite-reference") for seed in range(SEEDS)),
            )
        )
        == []
    )


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_twenty_thousand_operators_are_the_reference_kernels(kind: str) -> None:
    assert (
        list(
            filter(
                None,
                (
                    compared(seed, kind, "reference", "tflite-reference")
                    for seed in range(1000, 1000 + LONG)
                ),
            )
        )
        == []
    )


@pytest.mark.parametrize("kind", BUILTIN)
def test_operators_are_the_builtin_kernels(kind: str) -> None:
    assert (
        list(
            filter(
                None, (compared(seed, kind, "builtin", "tflite-builtin") for seed in range(SEEDS))
            )
        )
        == []
    )


@pytest.mark.long
@pytest.mark.parametrize("kind", BUILTIN)
def test_many_operators_are_the_builtin_kernels(kind: str) -> None:
    assert (
        list(
            filter(
                None,
                (
                    compared(seed, kind, "builtin", "tflite-builtin")
                    for seed in range(1000, 1000 + LONG)
                ),
            )
        )
        == []
    )


@pytest.mark.parametrize("kind", KINDS)
def test_operators_read_back_from_their_models(kind: str) -> None:
    for seed in range(4):
        layer, _ = random_operation(seed, (kind,))
        found = read_model(single_op_model(layer))
        part = next(one for one in found.layers if getattr(one, "part", 0) == layer.part)
        if not isinstance(part, Operation):
            continue  # an addition of two tensors of one shape is an Add
        assert (part.kind, part.output, dict(part.options), part.moving) == (
            layer.kind,
            layer.output,
            dict(layer.options),
            layer.moving,
        )


# Networks


def image(
    shape: tuple[int, ...], dtype: str = "int8", scale: float = 0.1, zero: int = 3
) -> Placeholder:
    return Placeholder(shape, dtype, QuantParams(scale, zero))


def small() -> Network:
    """A convolution with a branch: its codes times themselves, reshaped, softmax of it, two
    outputs.
    """
    rng = np.random.RandomState(3)
    conv = npulab.Conv2D(
        rng.randint(-9, 9, (4, 3, 3, 2)).astype(np.int8),
        np.arange(4),
        (6, 6, 2),
        (1, 1),
        "valid",
        activation="relu",
        input_q=QuantParams(0.05, -3),
        weight_q=QuantParams(0.02),
        output_q=QuantParams(0.1, 3),
    )
    product = Operation("MUL", (image((1, 4, 4, 4)),) * 2, image((1, 4, 4, 4), scale=0.2))
    flat = Operation(
        "RESHAPE",
        (image((1, 4, 4, 4), scale=0.2), Placeholder((2,), "int32")),
        image((1, 64), scale=0.2),
        constants={1: np.array([1, 64], np.int32)},
    )
    soft = Operation(
        "SOFTMAX", (image((1, 64), scale=0.2),), image((1, 64), scale=1 / 256, zero=-128)
    )
    return Network((conv, product, flat, soft), ((-1,), (0, 0), (1,), (2,)), (3, 0))


def test_a_network_of_operators_is_the_engine_s() -> None:
    network = small()
    x = np.random.RandomState(4).randint(-128, 128, (1, 6, 6, 2)).astype(np.int8)
    soft, conv = npulab.emulate(network, x)
    want, _ = litert(write_model(Network(network.layers, network.inputs)), x)
    assert np.array_equal(soft, want)
    assert np.array_equal(conv, outputs(network, x)[0])
    without = npulab.emulate(network, x[0])
    assert without[0].shape == (64,)
    assert np.array_equal(without[0], soft[0])
    several = np.concatenate([x, x[:, ::-1]])
    assert np.array_equal(
        npulab.emulate(network, several)[0][1], npulab.emulate(network, several[1:])[0][0]
    )


def test_a_model_runs_up_to_what_is_not_read() -> None:
    from dataclasses import replace

    from npulab.models.file import pack, unpack

    graph = unpack(write_model(Network(small().layers, small().inputs)))
    *first, last = graph.operators
    broken = replace(graph, operators=(*first, replace(last, name="LOG_SOFTMAX", options={})))
    model = read_model(pack(broken))
    network, problem = model.readable
    assert network is not None
    assert (len(network.layers), network.outputs) == (3, (2,))
    assert problem.startswith("operator 3, LOG_SOFTMAX: is part of no layer")
    with pytest.raises(ValueError, match=r"^operator 3, LOG_SOFTMAX: is part of no layer"):
        model.network  # noqa: B018 - it refuses
    x = np.zeros((1, 6, 6, 2), np.int8)
    assert np.array_equal(npulab.emulate(network, x), outputs(small(), x)[2])


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: Operation("SIN", (image((1,)),), image((1,))), "kind: got 'SIN'"),
        (
            lambda: Operation("MUL", (image((1,)),), image((1,)), {"alpha": 1}),
            "options: got 'alpha', allowed with MUL is one of activation",
        ),
        (
            lambda: Operation("MUL", (image((1,)),), Placeholder((1,), "int4")),
            "got a tensor of int4",
        ),
        (
            lambda: Operation(
                "RESHAPE", (image((1,)),), image((1,)), constants={0: np.zeros(1, np.int8)}
            ),
            "got constants alone",
        ),
        (lambda: npulab.emulate(small().layers[3], np.zeros((1, 63), np.int8)), "x: got (1, 63)"),
        (
            lambda: npulab.emulate(small().layers[3], np.zeros((1, 64), np.uint8)),
            "x: got (1, 64) uint8",
        ),
        (
            lambda: npulab.emulate(small().layers[3], np.zeros((1, 64), np.int8), "xnnpack"),
            "rule: got 'xnnpack', allowed with",
        ),
        (lambda: Network(small().layers, small().inputs, (4,)), "outputs (4,)"),
    ],
)
def test_what_does_not_fit_is_refused(made: Any, said: str) -> None:
    refused(made, said)


@pytest.mark.parametrize("bits", range(2, 8))
def test_exponentials_are_near_the_real_ones(bits: int) -> None:
    raw = -np.unique(np.geomspace(1, 2**31, 5000).astype(np.int64))
    real = np.exp(raw / 2.0 ** (31 - bits))
    assert np.abs(fixed.exponential(raw, bits) / 2.0**31 - real).max() < 2.0**-20
    assert fixed.exponential(np.array([0]), bits).tolist() == [2**31 - 1]


def test_constants_are_the_numbers_that_they_stand_for() -> None:
    assert {
        power: round(math.exp(-(2.0**power)) * 2**31) for power in fixed.EXPONENTIALS
    } == fixed.EXPONENTIALS
    assert (round(math.exp(-1 / 8) * 2**31), round(2**31 / 3)) == (fixed.EXP_EIGHTH, fixed.THIRD)
    assert (round(48 / 17 * 2**29), round(-32 / 17 * 2**29)) == (fixed.START, fixed.SLOPE)
    assert fixed.exponential(np.array([-(2**28)]), 0).tolist() == [round(math.exp(-1 / 8) * 2**31)]
    assert fixed.inverse_of_one_plus(np.array([0])).tolist() == [2**31 - 1]


def test_the_inverse_is_its_definition() -> None:
    """Number by number, as gemmlowp's fixedpoint.h has it: halves and products round away from
    zero.
    """

    def cut(a: int, b: int) -> int:
        return abs(a) // b * (1 if a >= 0 else -1)

    def product(a: int, b: int) -> int:
        return cut(a * b + (2**30 if a * b >= 0 else 1 - 2**30), 2**31)

    for value in [
        0,
        1,
        2,
        3,
        2**31 - 1,
        2**31 - 2,
        *np.random.default_rng(0).integers(0, 2**31, 200).tolist(),
    ]:
        half = cut(value + 2**31 - 1 + 1, 2)
        x = 1515870810 + product(half, -1010580540)
        for _ in range(3):
            x += 4 * product(x, 2**29 - product(half, x))
        assert int(fixed.inverse_of_one_plus(np.array([value]))[0]) == min(2 * x, 2**31 - 1)


def test_fixed_point_numbers_are_near_the_real_ones() -> None:
    raw = -np.arange(0, 2**31, 2**20 + 12345, dtype=np.int64)
    real = np.exp(raw / 2.0**26)
    assert np.abs(fixed.exponential(raw, 5) / 2.0**31 - real).max() < 2.0**-20
    unit = -raw
    assert (
        np.abs(fixed.inverse_of_one_plus(unit) / 2.0**31 - 1 / (1 + unit / 2.0**31)).max()
        < 2.0**-27
    )
    assert fixed.shifted_right(np.array([5, -5, 4]), 1).tolist() == [3, -3, 2]
    assert fixed.product(np.array([-(2**31)]), -(2**31)).tolist() == [2**31 - 1]


# Models of others


MODELS = (
    "mlcommons+tiny__benchmark__training__keyword_spotting__trained_models__kws_ref_model.tflite",
    "ricardodeazambuja+LibrEdgeTPU__libredgetpu__looming__templates__looming_64x64_3x3.tflite",
    "ricardodeazambuja+LibrEdgeTPU__libredgetpu__pattern__templates__pattern_64x64_8x8_3ch.tflite",
    "tensorflow+tflite-micro__tensorflow__lite__micro__python__tflite_size__tests__simple_add_model.tflite",
)


def run_whole(path: Path, seed: int) -> list[str]:
    """The layers of a model whose outputs are not LiteRT's."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    model, random = read_model(path), np.random.RandomState(seed)
    engine = Interpreter(
        model_content=path.read_bytes(),
        num_threads=1,
        experimental_preserve_all_tensors=True,
        experimental_op_resolver_type=OpResolverType.BUILTIN_REF,
    )
    engine.allocate_tensors()
    given = []
    for place in engine.get_input_details():
        kind = np.dtype(place["dtype"])
        x = (
            random.normal(size=place["shape"])
            if kind.kind == "f"
            else random.randint(np.iinfo(kind).min, np.iinfo(kind).max + 1, place["shape"])
        )
        given.append(x.astype(kind))
        engine.set_tensor(place["index"], given[-1])
    engine.invoke()
    every = outputs(model.network, tuple(given) if len(given) > 1 else given[0])
    return [
        str(one.layer)
        for one, got in zip(model._found[0], every, strict=True)
        if differs(got.reshape(engine.get_tensor(one.output).shape), engine.get_tensor(one.output))
    ]


@pytest.mark.parametrize("name", MODELS)
def test_public_models_run_whole(name: str) -> None:
    assert run_whole(shared(f"data/models/{name}"), 0) == []


@pytest.mark.long
def test_three_in_five_public_quantized_models_run_whole() -> None:
    whole, wrong, part = [], {}, {}
    for path in sorted(shared("data/models").glob("*.tflite")):
        model = read_model(path)
        custom = any(one.name.startswith("CUSTOM") for one in model.operators)
        if custom or not any(
            one.scale and one.dtype in ("int8", "uint8", "int16") for one in model.tensors
        ):
            continue
        try:
            model.network  # noqa: B018 - it refuses
        except ValueError as error:
            part[path.name] = str(error)
            continue
        if path.name.endswith("models__person_detect.tflite"):
            continue  # LiteRT refuses its quantization
        whole.append(path.name)
        if bad := run_whole(path, 1):
            wrong[path.name] = bad
    assert wrong == {}
    assert len(whole) >= 0.6 * (len(whole) + len(part))
