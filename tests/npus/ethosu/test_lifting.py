"""Layers of Ethos-U from its command streams: made by hand, and as Vela compiles them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ethosu_streams import CHIPS, RANDOM, RECORDS, WEIGHTS, Compile, by_hand, compiler
from refusals import refused

import npulab
from npulab import Add, Conv2D, FullyConnected, Network, Pool2D, QuantParams
from npulab.analysis.mismatch.model_run import check_run
from npulab.captures.layers import made
from npulab.models.write import single_op_model, write_model
from npulab.npus.ethosu.coefficients import recode
from npulab.npus.ethosu.lifting import lift, outline, split
from npulab.npus.ethosu.operations import operations
from npulab.npus.ethosu.rules import RULE


def test_jobs_of_one_layer_are_one_layer() -> None:
    capture = by_hand()
    (operation,) = operations(capture)
    assert (operation.tasks, operation.slices) == ((0, 2), [8, 4])
    layer = lift(capture).layer
    assert isinstance(layer, Conv2D)
    assert (layer.input_shape, layer.output_shape, layer.pads) == (
        (6, 7, 5),
        (6, 7, 12),
        ((1, 1), (1, 1)),
    )
    assert np.array_equal(layer.weights, WEIGHTS)
    assert np.array_equal(layer.bias, RECORDS.bias)
    assert (layer.input_q.zero_point, layer.output_q.zero_point, layer.activation) == (
        7,
        -3,
        "relu",
    )
    multiplier, right_shift = RULE.multiplier(1.0, layer.weight_q.scale, 1.0)
    assert np.array_equal(multiplier, RECORDS.multiplier)
    assert np.array_equal(right_shift + 31, RECORDS.right_shift)
    assert recode(capture) == capture.buffers["coefficients"]


def test_a_captured_output_is_compared() -> None:
    x = RANDOM.integers(-128, 128, (6, 7, 5)).astype(np.int8)
    layer = lift(by_hand()).layer
    sums = npulab.accumulate(layer, x).astype(np.int64)
    high = (sums * RECORDS.multiplier + 2**30) >> 31
    shift = RECORDS.right_shift - 31
    halves = np.where(high < 0, 2 ** (shift - 1) - 1, 2 ** (shift - 1))
    output = (((high + halves) >> shift) - 3).clip(-3, 127).astype(np.int8)
    capture = by_hand().with_buffers(input=x.tobytes(), output=output.tobytes())
    result = npulab.check(capture)
    assert (result.verdict, result.compared, result.words, result.coefficients) == (
        "equal",
        504,
        True,
        True,
    )
    output[3, 4, 5] ^= 1
    found = npulab.check(capture.with_buffers(output=output.tobytes()))
    assert (found.verdict, found.mismatches, found.first) == ("differs", 1, (3, 4, 5))


def test_planted_coefficients_are_found() -> None:
    """A weight, a bias and a multiplier that are others change what tells layers apart."""
    plain, data = outline(by_hand()), by_hand().buffers["coefficients"]
    for at, name in ((0, "biases"), (5, "multipliers")):
        changed = by_hand().with_buffers(
            coefficients=data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        )
        found = outline(changed)
        assert [one for one in plain if plain[one] != found.get(one)] == [f"checksum of {name}"]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"IFM_PRECISION": 5}, "got IFM_PRECISION S16, allowed are U8, S8 so far"),
        ({"IFM_UPSCALE": 1}, "got 1 in IFM_UPSCALE.mode, allowed is 0 so far"),
        ({"ACTIVATION": 3}, "got 3 in ACTIVATION.type, allowed is 0 so far"),
        ({"OFM_PRECISION": 0x4001}, "got 1 in OFM_PRECISION.rounding, allowed is 0 so far"),
        ({"ACTIVATION_MIN": 4}, "got output codes within (4, 127) with zero point -3"),
        ({"OFM_HEIGHT0_M1": 3}, "got an output in a ring of rows"),
        ({"IFM_HEIGHT0_M1": 3}, "got an output of shape (6, 7, 12), allowed with Conv2D"),
        (
            {"SCALE_LENGTH": 16},
            "SCALE_LENGTH: got 16 bytes of records, allowed for 8 output channels are at least 80",
        ),
        ({"KERNEL_WIDTH_M1": 0}, "weights: got"),
    ],
)
def test_what_no_layer_is_lifted_from_is_refused(changed: dict[str, int], said: str) -> None:
    refused(lambda: lift(by_hand(**changed)), said)


def test_a_chip_whose_streams_are_not_known_is_refused() -> None:
    refused(
        lambda: lift(replace(by_hand(), chip="ethos-u85-256")),
        "chip: got ethos-u85-256",
        "order of weights is known",
    )


# Vela


@pytest.fixture
def compiled(tmp_path: Path) -> Compile:
    return compiler(tmp_path)


def drawn(random: np.random.Generator, op: int, most: int) -> tuple[Any, tuple[np.ndarray, ...]]:
    """A layer of an operator (an index of ``OPS``) and inputs for it."""
    numbers = {
        name: int(random.integers(1, most))
        for name in ("input_h", "input_w", "input_c", "output_c")
    }
    scales = {
        name: float(random.uniform(*ends))
        for name, ends in (
            ("input_scale", (0.01, 0.05)),
            ("weight_scale", (0.01, 0.05) if op == 4 else (0.001, 0.02)),
            ("output_scale", (0.02, 0.1)),
        )
    }
    small = {
        name: int(random.integers(*ends))
        for name, ends in (
            ("kernel_h", (1, 8)),
            ("kernel_w", (1, 8)),
            ("stride_h", (1, 4)),
            ("stride_w", (1, 4)),
            ("same", (0, 2)),
            ("relu", (0, 2)),
            ("depthwise", (0, 2)),
            ("input_zero_point", (-128, 128)),
            ("output_zero_point", (-128, 128)),
        )
    }
    if op == 1:
        numbers |= {"input_h": 1, "input_w": 1}
    if op == 4:
        small["weight_zero_point"] = int(random.integers(-128, 128))
    try:
        layer, x = made(
            {"op": op, **numbers, **scales, **small}, int(random.integers(2**31)), "int8"
        )
    except ValueError:  # a kernel that is larger than the input
        return drawn(random, op, most)
    other = random.integers(-128, 128, x.shape).astype(np.int8)
    return layer, (x, other) if op == 4 else (x,)


def litert(model: bytes, *inputs: np.ndarray) -> np.ndarray:
    """What LiteRT's reference kernels give."""
    interpreter = pytest.importorskip("ai_edge_litert.interpreter")
    run = interpreter.Interpreter(
        model_content=model, experimental_op_resolver_type=interpreter.OpResolverType.BUILTIN_REF
    )
    run.allocate_tensors()
    for tensor, x in zip(run.get_input_details(), inputs, strict=True):
        run.set_tensor(tensor["index"], x.reshape(tensor["shape"]))
    run.invoke()
    return run.get_tensor(run.get_output_details()[0]["index"])


def check_layer(
    compiled: Compile, random: np.random.Generator, op: int, chip: str, most: int
) -> None:
    """The layer is found again, and what it computes is LiteRT's output: for a fully connected one,
    which LiteRT rounds once, gemmlowp's."""
    layer, inputs = drawn(random, op, most)
    model = single_op_model(layer)
    capture = compiled(model, chip)
    if op != 4:  # the words do not say rows that no window reaches
        capture = capture.with_buffers(input=inputs[0].tobytes())
    found = lift(capture).layer
    wanted, mine = outline(layer), outline(capture)
    different = {
        name
        for name in wanted.keys() & mine.keys()
        if wanted[name] != mine[name]
        and not (
            name.startswith("scale") and math.isclose(wanted[name], mine[name], rel_tol=2**-20)
        )
    }
    assert not different, (layer, capture)
    if op < 2:
        assert np.array_equal(found.weights.ravel(), layer.weights.ravel())
        assert np.array_equal(found.bias, layer.bias)
        assert recode(capture) == capture.buffers["coefficients"]
    expected = npulab.emulate(layer, inputs[0], "gemmlowp:P") if op == 1 else litert(model, *inputs)
    shaped = tuple(
        x.reshape(shape) for x, shape in zip(inputs, [found.input_shape] * len(inputs), strict=True)
    )
    got = npulab.emulate(found, shaped if op == 4 else shaped[0], RULE.name)
    assert np.array_equal(got.ravel(), expected.ravel()), (layer, capture)


@pytest.mark.parametrize("op", range(5))
def test_layers_that_vela_compiles_are_found_again(compiled: Compile, op: int) -> None:
    random = np.random.default_rng([13, op])
    for chip in CHIPS[op % 2 :: 2]:
        check_layer(compiled, random, op, chip, 24)


@pytest.mark.long
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("op", range(5))
def test_many_layers_that_vela_compiles_are_found_again(
    compiled: Compile, op: int, chip: str
) -> None:
    random = np.random.default_rng([17, op, CHIPS.index(chip)])
    for _ in range(200 if op == 0 else 50):
        check_layer(compiled, random, op, chip, 129)


def scales(random: np.random.Generator, count: int) -> Iterator[QuantParams]:
    for scale in random.uniform(0.02, 0.1, count):
        yield QuantParams(float(np.float32(scale)), int(random.integers(-128, 128)))


def residual(seed: int, size: int = 12) -> Network:
    """Convolutions, a sum, both kinds of pool and a fully connected layer."""
    random = np.random.default_rng(seed)
    first, a, b, c, d, e, last = scales(random, 7)

    def conv(
        shape: Any,
        outputs: int,
        kernel: int,
        stride: int,
        x: QuantParams,
        y: QuantParams,
        activation: str | None = None,
    ) -> Conv2D:
        weights = random.integers(-127, 128, (outputs, kernel, kernel, shape[2])).astype(np.int8)
        spread = (
            random.uniform(0.5, 1.5, outputs) * y.scale / x.scale / 70 / kernel / shape[2] ** 0.5
        )
        each = tuple(float(one) for one in spread.astype(np.float32))
        return Conv2D(
            weights,
            random.integers(-3000, 3000, outputs),
            shape,
            (stride, stride),
            "same",
            activation=activation,
            input_q=x,
            weight_q=QuantParams(each),
            output_q=y,
        )

    b = QuantParams(b.scale, -128)
    layers: list[Any] = [
        conv((size, size, 8), 16, 3, 1, first, a),
        conv((size, size, 16), 16, 1, 1, a, b, "relu"),
        conv((size, size, 16), 16, 3, 1, b, c),
        Add((size, size, 16), None, a, c, d),
        Pool2D("max", (2, 2), (size, size, 16), (2, 2), input_q=d),
    ]
    layers.append(conv(layers[-1].output_shape, 24, 3, 2, d, e))
    shape = layers[-1].output_shape
    layers += [
        Pool2D("average", shape[:2], shape, input_q=e),
        FullyConnected(
            random.integers(-127, 128, (10, 24)).astype(np.int8),
            random.integers(-99, 99, 10),
            None,
            e,
            QuantParams(0.003),
            last,
        ),
    ]
    return Network(tuple(layers), ((-1,), (0,), (1,), (0, 2), (3,), (4,), (5,), (6,)))


def check_network(compiled: Compile, network: Network, chip: str) -> None:
    model, random = write_model(network), np.random.default_rng(3)
    capture = compiled(model, chip, "network")
    assert len(split(capture)) == len(network.layers)
    x = random.integers(-128, 128, network.input_shapes[0]).astype(np.int8)
    wanted = npulab.emulate(network, x, "gemmlowp:D")
    result = npulab.check(capture.with_buffers(input=x.tobytes(), output=wanted.tobytes()))
    assert (result.verdict, result.coefficients) == ("equal", True), str(result)
    assert check_run([capture], model).counts == {"nothing to compare": len(network.layers)}


def test_a_network_that_vela_compiles_is_its_operators(compiled: Compile) -> None:
    check_network(compiled, residual(5), "ethos-u55-128")


@pytest.mark.long
@pytest.mark.parametrize("chip", CHIPS)
def test_networks_that_vela_compiles_are_their_operators(compiled: Compile, chip: str) -> None:
    for seed in range(6, 18):
        check_network(compiled, residual(seed, 8 + seed), chip)


def wrong_weight(layer: Any) -> Any:
    weights = layer.weights.copy()
    weights[1, 0, 0, 2] ^= 4
    return replace(layer, weights=weights)


PLANTED: dict[str, Callable[[Any], Any]] = {
    "checksum of weights": wrong_weight,
    "checksum of multipliers": lambda layer: replace(
        layer,
        weight_q=QuantParams(
            tuple(scale * (1 + (n == 3) / 2**20) for n, scale in enumerate(layer.weight_q.scale))
        ),
    ),
    "checksum of biases": lambda layer: replace(layer, bias=layer.bias + (np.arange(16) == 9)),
    "rows and columns before": lambda layer: replace(layer, padding=((0, 2), (1, 1))),
}


@pytest.mark.parametrize("said", PLANTED)
def test_what_is_planted_in_a_network_is_named(compiled: Compile, said: str) -> None:
    network = residual(5)
    layers = list(network.layers)
    layers[2] = PLANTED[said](layers[2])
    capture = compiled(
        write_model(replace(network, layers=tuple(layers))), "ethos-u55-128", "planted"
    )
    found = check_run([capture], write_model(network))
    assert [one.operator for one in found.operators if one.verdict == "differs"] == [2]
    assert found.first is not None
    assert f"{said} is" in found.first.reason


def test_another_zero_point_and_another_operator_are_named(compiled: Compile) -> None:
    network = residual(5)
    capture, model = compiled(write_model(network), "ethos-u55-128"), write_model(network)
    moved = capture.with_fields(task=operations(capture)[2].tasks[0], ofm_zero_point=5)
    first = check_run([moved], model).first
    assert first is not None
    assert (first.operator, "output zero point is 5, the model's" in first.reason) == (2, True)
    pools = list(network.layers)
    pools[4] = replace(pools[4], kind="average")
    first = check_run(
        [compiled(write_model(replace(network, layers=tuple(pools))), "ethos-u55-128")], model
    ).first
    assert first is not None
    assert "operation is average_pool, the model's max_pool" in first.reason
