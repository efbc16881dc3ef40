"""onert against a reference written by hand (``onert_by_hand``): packed weights, hybrid layers and
the cache.

The notes are a page on the development of Samsung ONE; shapes here are others."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onert_by_hand as hand
import pandas as pd
import pytest
from conftest import CAPTURES
from onert_by_hand import ARM, PATHS
from test_models_by_hand import lines, long

import npulab
import npulab.analysis.mismatch.summary
import npulab.captures.target
import npulab.layout
import npulab.models
from npulab import FullyConnected, QuantParams
from npulab.notebook import pictures
from npulab.npus.onert import layouts

SHAPES = [(1, 1, 1), (3, 15, 2), (4, 16, 4), (5, 17, 3), (8, 4, 1), (9, 33, 5)]
LONG_SHAPES = [
    (16, 32, 8),
    (19, 63, 17),
    (96, 1000, 4),
    (33, 1024, 9),
    (7, 1040, 2),
    (64, 256, 16),
    (20, 2048, 1),
    (17, 65, 33),
]
ENGINES = {
    "BUILTIN_REF": "tflite-reference",
    "BUILTIN_WITHOUT_DEFAULT_DELEGATES": "tflite-builtin",
}
KINDS = ["hybrid", "hybrid channels", "int8", "int8 channels", "uint8"]


def scale_of(scales: Any) -> Any:
    """A scale for each channel, or the only one."""
    scales = tuple(map(float, scales))
    return scales if len(scales) > 1 else scales[0]


def a_layer(
    kind: str, shape: tuple[int, int, int], seed: int = 0
) -> tuple[FullyConnected, np.ndarray]:
    """A layer of a kind with (units, inputs), and rows of an input."""
    units, inputs, batches = shape
    rng = np.random.default_rng([seed, *shape, KINDS.index(kind)])
    activation = hand.ACTIVATIONS[int(rng.integers(4))]
    scales = (
        rng.uniform(0.001, 0.1, units if "channels" in kind else 1).astype(np.float32).astype(float)
    )
    scale = scale_of(scales)
    if kind.startswith("hybrid"):
        weights = rng.integers(-127, 128, (units, inputs)).astype(np.int8)
        x = rng.normal(size=(batches, inputs)) * rng.choice(
            [0, 1e-3, 1, 50], (batches, 1), p=[0.1, 0.2, 0.5, 0.2]
        )
        return (
            FullyConnected(
                weights,
                rng.normal(size=units).astype(np.float32),
                activation,
                weight_q=QuantParams(scale),
                dtype="float32",
            ),
            x.astype(np.float32),
        )
    low, high = (0, 256) if kind == "uint8" else (-128, 128)
    weights = rng.integers(low + (kind != "uint8"), high, (units, inputs)).astype(kind.split()[0])
    x = rng.integers(low, high, (batches, inputs)).astype(weights.dtype)
    wide = float(np.float32(max(scales) * 0.02 * 70 * math.sqrt(inputs)))
    return (
        FullyConnected(
            weights,
            rng.integers(-999, 1000, units).astype(np.int32),
            activation,
            QuantParams(float(np.float32(0.02)), int(rng.integers(low, high))),
            QuantParams(scale, int(rng.integers(low, high)) if kind == "uint8" else 0),
            QuantParams(wide, int(rng.integers(low, high))),
        ),
        x,
    )


def ratios_of(layer: FullyConnected) -> list[float]:
    """Of channels all in float64 (order D), of one scale the product is float32 (order P)."""
    first, last = np.float32(layer.input_q.scale), np.float32(layer.output_q.scale)
    scales = np.atleast_1d(np.asarray(layer.weight_q.scale, np.float32))
    if len(scales) > 1:
        return [float(first) * float(s) / float(last) for s in scales]
    return [float(first * scales[0]) / float(last)]


def expected(layer: FullyConnected, x: np.ndarray, path: str) -> np.ndarray:
    """What the facts' arithmetic makes of a layer and rows."""
    scales = np.atleast_1d(np.asarray(layer.weight_q.scale, np.float32))
    if layer.dtype == "float32":
        return hand.hybrid(
            x, layer.weights, scales, layer.bias.astype(np.float32), layer.activation
        )
    low, high = (0, 255) if layer.dtype == "uint8" else (-128, 127)
    q, z = layer.output_q, layer.output_q.zero_point
    bounds = {
        None: (low, high),
        "relu": (z, high),
        "relu6": (z, z + round(6 / q.scale)),
        "relu_n1_to_1": (z - round(1 / q.scale), z + round(1 / q.scale)),
    }[layer.activation]
    low, high = max(low, bounds[0]), min(high, bounds[1])
    sums = (x.astype(int) - layer.input_q.zero_point) @ (
        layer.weights.astype(int) - layer.weight_q.zero_point
    ).T
    sums = sums + layer.bias.astype(int)
    ratios = ratios_of(layer)
    return hand.requantized(sums, ratios, path in ARM, z, low, high).astype(layer.dtype)


@pytest.fixture(scope="module")
def onert() -> npulab.captures.target.Target:
    return npulab.target("onert")


# ---- the target


@pytest.mark.sample(9)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("shape", [*SHAPES, *long(*LONG_SHAPES)], ids=str)
def test_a_layer_is_lowered_and_run_as_by_hand(
    shape: tuple[int, int, int], path: str, onert: npulab.captures.target.Target
) -> None:
    """Packed bytes, sums, fill, output of the device and emulation, of every kind of layer."""
    for kind in KINDS:
        layer, x = a_layer(kind, shape)
        capture = onert.lower(layer, path, x)
        left, right, *_ = PATHS[path]
        uint8 = kind == "uint8"
        zero = layer.weight_q.zero_point if not kind.startswith("hybrid") else 0
        assert capture.buffers["coefficients"] == hand.packed(layer.weights, left, zero, uint8), (
            kind
        )
        if not kind.startswith("hybrid"):
            assert capture.buffers["input_rows"] == hand.packed(
                x, right, layer.input_q.zero_point, uint8
            ), kind
            fixed = np.array([hand.multiplier(ratio) for ratio in ratios_of(layer)])
            assert capture.buffers["multipliers"] == fixed[:, 0].astype("<i4").tobytes(), kind
            assert capture.buffers["exponents"] == fixed[:, 1].astype("<i4").tobytes(), kind
        output = onert.simulate(capture)
        dtype = "<f4" if layer.dtype == "float32" else layer.dtype
        want = expected(layer, x, path)
        assert np.array_equal(np.frombuffer(output, dtype).reshape(want.shape), want), kind
        found = npulab.check(capture.with_buffers(output=output))
        assert (found.mismatches, found.compared) == (0, want.size), kind
        # outputs that are all the zero point, or all 0, may lie in a buffer that no job wrote
        if len({*output}) > 1:
            assert found.verdict == "equal", kind


def test_quantized_rows_of_a_hybrid_layer(onert: npulab.captures.target.Target) -> None:
    """Row by row: the scale is the largest size over 127, the codes are 127 over the largest
    times the value.
    """
    layer, _ = a_layer("hybrid", (4, 21, 1))
    x = np.float32(
        [np.linspace(-1, 1, 21), np.zeros(21), np.linspace(0, 254, 21) ** 2, -np.linspace(5, 9, 21)]
    )
    x[3, 4:9] = 0.5 * 9 / 127  # half a step
    codes, scales = [], []
    for row in x:
        most = np.abs(row).max()
        scales.append(most / np.float32(127) if most else np.float32(1))
        inverse = np.float32(127) / most if most else np.float32(0)
        codes.append(
            [int(math.copysign(math.floor(abs(float(v * inverse)) + 0.5), v)) for v in row]
        )
    for path in PATHS:
        buffers = onert.lower(layer, path, x).buffers
        assert buffers["input_scales"] == np.asarray(scales, "<f4").tobytes()
        assert buffers["input_rows"] == hand.packed(codes, PATHS[path][1])


@pytest.mark.parametrize(
    "path", ["neon-armv7", *long(*(path for path in PATHS if path != "neon-armv7"))]
)
def test_fill_and_sums_that_are_wrong_are_noticed(
    path: str, onert: npulab.captures.target.Target
) -> None:
    """Each byte of the packed weights: a changed weight breaks its sum, changed fill or a
    changed sum are named.
    """
    layer, x = a_layer("uint8", (5, 17, 3))
    capture = onert.lower(layer, path, x)
    good = capture.buffers["coefficients"]
    for at in range(0, len(good), 1 if path != "neon-armv7" else 5):
        data = bytearray(good)
        data[at] ^= 0x11
        changed = capture.with_buffers(coefficients=bytes(data))
        with pytest.raises(ValueError, match=r"coefficients|column|sum|fill"):
            onert.lift(changed)
        found = npulab.check(changed)
        assert found.verdict != "equal"
        assert found.coefficients != "equal"


def test_outputs_of_the_captures_are_those_by_hand(onert: npulab.captures.target.Target) -> None:
    kept = npulab.load_all(CAPTURES / "onert")
    assert {one.chip in ARM for one in kept} == {False, True}
    for one in kept:
        assert one.provenance == "simulated"
        lifted = onert.lift(one)
        rows = lifted.x.reshape(-1, lifted.layer.weights.shape[1])
        want = expected(lifted.layer, rows, one.chip)
        assert np.array_equal(want.ravel(), np.asarray(lifted.output).ravel())


@pytest.mark.parametrize("path", long(*PATHS))
def test_a_sweep_of_layers_shows_the_blocks(
    path: str, onert: npulab.captures.target.Target
) -> None:
    """Nobody tells the search what a block is: rows and columns of packed matrices are found as
    rounded up to them.
    """
    rng = np.random.default_rng(8)
    captures = []
    for number in range(70):
        layer, x = a_layer("hybrid", tuple(int(n) for n in rng.integers(1, (60, 90, 40))), number)
        captures.append(onert.lower(layer, path, x, name=f"layer {number}"))
    names = ["input_c", "output_c", "batches"]
    parameters = pd.DataFrame([one.parameters for one in captures])[names]
    laws = npulab.find_laws(np.stack([one.words for one in captures]), parameters)
    (rows, columns), (_, batches), *_ = PATHS[path]
    told = " ".join(laws.table["law"])
    assert f"ceil(input_c / {rows})" in told
    assert f"ceil(output_c / {columns})" in told
    assert f"ceil(batches / {batches})" in told


def test_where_outputs_of_rows_differ(
    onert: npulab.captures.target.Target, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A batch is a row of the views, one to four axes alike, and another rounding is named."""
    layer, _ = a_layer("int8", (9, 33, 5))
    for shape in [(33,), (6, 33), (3, 2, 1, 3, 11)]:
        many = np.resize(np.random.default_rng(2).integers(-128, 128, 999), shape).astype(np.int8)
        capture = onert.lower(layer, "neon-armv7", many)
        output = bytearray(onert.simulate(capture))
        output[13 % len(output)] ^= 1
        found = npulab.check(replace(capture, buffers={**capture.buffers, "output": bytes(output)}))
        assert (found.verdict, found.mismatches, found.max) == ("differs", 1, 1)
        assert found.first is not None
        assert len(found.first) == found.predicted.ndim == 3
        assert np.ravel_multi_index(found.first, found.predicted.shape) == 13 % len(output)
        assert npulab.analysis.mismatch.summary.mismatches(found).by_channel["differ"].sum() == 1
        if shape == (6, 33):
            for view in (pictures.output_comparison, pictures.output_difference):
                assert "differ" in repr(view(found))
            told = npulab.hypotheses(found).loc[0, ["mismatches", "compared"]]
            assert told.tolist() == [1, len(output)]
    capture = onert.lower(
        layer, "neon-armv7", np.random.default_rng(3).integers(-128, 128, (100, 33)).astype(np.int8)
    )
    twice = npulab.emulate(layer, onert.lift(capture).x, "ruy-x86:P")
    captured = replace(
        capture,
        name="twice",
        buffers={**capture.buffers, "output": twice.tobytes()},
        provenance="board",
    )
    npulab.save(captured, tmp_path / "twice")
    status, out, _ = lines(capsys, "check", "--explain", tmp_path / "twice")
    assert status == 1
    assert "ruy-x86" in out
    assert "first difference at (row, column, channel)" in out


# ---- hybrid layers against LiteRT


def litert(model: bytes, x: np.ndarray, kernels: str) -> np.ndarray:
    interpreter = pytest.importorskip(
        "ai_edge_litert.interpreter", reason="LiteRT is not installed"
    )
    kind = getattr(interpreter.OpResolverType, kernels)
    run = interpreter.Interpreter(
        model_content=model, num_threads=1, experimental_op_resolver_type=kind
    )
    run.allocate_tensors()
    run.set_tensor(run.get_input_details()[0]["index"], x)
    run.invoke()
    return np.array(run.get_tensor(run.get_output_details()[0]["index"]))


def random_hybrid(seed: int) -> tuple[bytes, FullyConnected, np.ndarray]:
    """A model put together by hand, the layer that is in it, and an input of two to four axes."""
    rng = np.random.default_rng([27, seed])
    units, inputs = (
        int(rng.integers(1, 40)),
        int(rng.choice([1, 2, 3, 4, 7, 15, 16, 17, 31, 33, 100, 257])),
    )
    leading = [int(n) for n in rng.integers(1, 6, rng.integers(1, 4))]
    activation = hand.ACTIVATIONS[int(rng.integers(4))]
    scale = (2.0 ** rng.uniform(-12, 2, units if rng.random() < 0.5 else 1)).astype(np.float32)
    weights = rng.integers(-127, 128, (units, inputs)).astype(np.int8)
    bias = (rng.normal(size=units) * 2.0 ** rng.integers(-9, 6)).astype(np.float32)
    x = rng.normal(size=(*leading, inputs)) * 2.0 ** rng.integers(-20, 12, (*leading, 1))
    if rng.random() < 0.3:
        x[rng.random(leading) < 0.4] = 0
    if rng.random() < 0.2:
        x = np.abs(x)
    layer = FullyConnected(
        weights,
        bias,
        activation,
        dtype="float32",
        weight_q=QuantParams(scale_of(scale)),
    )
    model = hand.fully_connected(
        weights, list(map(float, scale)), bias, activation, leading
    ).build()
    return model, layer, x.astype(np.float32)


def differing(a: np.ndarray, b: np.ndarray) -> int:
    return int(np.count_nonzero(np.ravel(a).view(np.int32) != np.ravel(b).view(np.int32)))


@pytest.mark.parametrize("first", [0, *long(*range(100, 2000, 100))])
def test_a_hundred_random_hybrid_models(first: int) -> None:
    """Every bit of each, from the model's own bytes; and of those made by ``single_op_model``."""
    outputs, fused, kinds = 0, 0, set()
    for seed in range(first, first + 100):
        model, layer, x = random_hybrid(seed)
        read = npulab.read_model(model).layers[0]
        assert np.array_equal(read.weights, layer.weights)
        assert np.array_equal(np.float32(read.weight_q.scale), np.float32(layer.weight_q.scale))
        assert (read.activation, read.dtype) == (layer.activation, "float32")
        made = npulab.single_op_model(layer, batch=x.shape[:-1] if x.ndim > 2 else len(x))
        for kernels, engine in ENGINES.items():
            want = litert(model, x, kernels)
            assert differing(npulab.emulate(read, x, engine), want) == 0, seed
            assert differing(litert(made, x, kernels), want) == 0, seed
        outputs += want.size
        fused += differing(npulab.emulate(read, x, "hybrid-float32:fused"), want)
        kinds |= {(layer.activation, x.ndim, isinstance(layer.weight_q.scale, tuple))}
    assert len(kinds) > 20, "of 24"
    assert 0.05 < fused / outputs < 0.3, (
        "the variant that rounds once differs in about a fifth of the outputs"
    )


@pytest.mark.parametrize("seed", range(12))
def test_both_variants_against_plain_arithmetic(seed: int) -> None:
    _, layer, x = random_hybrid(5000 + seed)
    rows = x.reshape(-1, x.shape[-1])[:6]
    scales = np.atleast_1d(np.float32(layer.weight_q.scale))
    for rule, fused in (("hybrid-float32", False), ("hybrid-float32:fused", True)):
        want = hand.hybrid(
            rows, layer.weights[:, :], scales, np.float32(layer.bias), layer.activation, fused
        )
        assert differing(npulab.emulate(layer, rows, rule), want) == 0


@pytest.mark.parametrize("x_shape", [(4, 1000), (4, 2, 1536)])
@pytest.mark.parametrize("channels", [False, True])
def test_both_operators_of_the_notes(
    x_shape: tuple[int, ...], channels: bool, onert: npulab.captures.target.Target
) -> None:
    """[4,1000]x[96,1000] and [4,2,1536]x[96,1536], from LiteRT and from the device of each path."""
    rng = np.random.default_rng(3)
    weights = rng.integers(-127, 128, (96, x_shape[-1])).astype(np.int8)
    bias, scale = (
        rng.normal(size=96).astype(np.float32),
        rng.uniform(0.001, 0.01, 96 if channels else 1),
    )
    layer = FullyConnected(
        weights,
        bias,
        None,
        dtype="float32",
        weight_q=QuantParams(scale_of(scale)),
    )
    x = rng.normal(size=x_shape).astype(np.float32)
    want = litert(
        hand.fully_connected(weights, list(map(float, scale)), bias, None, x_shape[:-1]).build(),
        x,
        "BUILTIN_WITHOUT_DEFAULT_DELEGATES",
    )
    assert want.shape == (math.prod(x_shape[:-1]), 96)
    assert differing(npulab.emulate(layer, x), want) == 0
    for path in ("neon-armv7", "avx512"):
        capture = onert.lower(layer, path, x)
        assert differing(np.frombuffer(onert.simulate(capture), "<f4"), want) == 0
        assert onert.lift(capture).x.shape == x_shape
        assert capture.parameters["input_shape"] == [*x_shape]
        assert capture.values["batches"] == math.prod(x_shape[:-1])


def test_numbers_at_the_edges_of_a_hybrid_layer() -> None:
    """Zeros, minus zero, rows of one value, ties of the codes, the smallest rows that have a
    reciprocal.
    """
    weights = np.int8([[127, -127, 1, 0], [-1, 1, -1, 1], [0, 0, 0, 0]])
    bias = np.float32([0.0, -0.0, 1e-30])
    rows = np.float32(
        [
            [0, 0, 0, 0],
            [-0.0, 0, -0.0, 0],
            [254, 1, 3, -1],
            [127, 0.5, -0.5, 1.5],
            [1e-30, -1e-30, 0, 5e-31],
            [3e38, -3e38, 1e38, 1],
            [4e-37, 0, 0, 0],
            [-7, -7, -7, -7],
        ]
    )
    for scale in ([0.5], [1e-3, 2.0, 7.0]):
        for activation in hand.ACTIVATIONS:
            layer = FullyConnected(
                weights,
                bias,
                activation,
                dtype="float32",
                weight_q=QuantParams(scale_of(scale)),
            )
            for x in (rows, rows[:1], rows[:2], rows[2:3]):
                model = hand.fully_connected(weights, scale, bias, activation, [len(x)]).build()
                for kernels, engine in ENGINES.items():
                    got = npulab.emulate(layer, x, engine)
                    want = litert(model, x, kernels)
                    assert differing(got, want) == 0, (scale, activation, got, want)


@pytest.mark.parametrize("depthwise", [False, True])
def test_infinite_outputs_of_a_hybrid_convolution(depthwise: bool) -> None:
    """A convolution clamps to the finite numbers where it has no activation; a fully connected
    layer does not.
    """
    rng = np.random.default_rng(6)
    x = (rng.uniform(-1, 1, (1, 3, 3, 2)) * 1e38).astype(np.float32)
    for activation in hand.ACTIVATIONS:
        for scale in (7.0, (0.01, 2.02)):
            layer = npulab.Conv2D(
                rng.integers(-127, 128, (1 if depthwise else 2, 2, 1, 2)).astype(np.int8),
                np.float32([0, 1]),
                (3, 3, 2),
                depthwise=depthwise,
                activation=activation,
                weight_q=QuantParams(scale),
                dtype="float32",
            )
            for kernels, engine in ENGINES.items():
                want = litert(npulab.single_op_model(layer), x, kernels)
                assert differing(npulab.emulate(layer, x, engine), want) == 0
                assert np.isfinite(want).all()


@pytest.mark.parametrize(
    "engine", ["tflite-reference", "tflite-builtin", "hybrid-float32:fused", "xnnpack"]
)
def test_rows_without_a_reciprocal_are_refused(engine: str) -> None:
    """127 / 1e-38 overflows: kernels make codes of infinity, which C++ leaves open, and their
    outputs show it.
    """
    layer = FullyConnected(np.int8([[1, 2, 3]]), np.float32([1]), dtype="float32")
    with pytest.raises(ValueError, match=r"row 1.*float32"):
        npulab.emulate(layer, np.float32([[0, 1, 2], [1e-38, 0, 0]]), engine)
    assert npulab.emulate(layer, np.float32([[0, 0, 0], [4e-36, 0, 0]]), engine).tolist() == [
        [1],
        [1],
    ]


# ---- memory


def test_memory_as_a_table_a_sentence_and_a_picture(onert: npulab.captures.target.Target) -> None:
    """The second noted operator: prepacking adds the bytes that the target packs."""
    layer = FullyConnected(np.zeros((96, 1536), np.int8), np.zeros(96, np.float32), dtype="float32")
    model = npulab.read_model(npulab.single_op_model(layer, (4, 2)))
    for path in PATHS:
        size = len(onert.lower(layer, path).buffers["coefficients"])
        memory = npulab.models.model_memory(
            model, lambda rows, columns, p=path: layouts.packed((rows, columns), p).size
        )
        assert memory.table.set_index("name")["packed"].to_dict() == {
            "input": 0,
            "weights": size,
            "bias": 0,
            "output": 0,
        }
        assert memory.peak == 4 * 8 * 1536 + 4 * 8 * 96
        assert memory.spare == 96 * 1536
    assert "48.0K" not in memory.text
    assert f"{memory.peak / 1024:.1f}K" in memory.text
    assert pictures.memory_picture(memory) is not None


# ---- the cache of packed weights
