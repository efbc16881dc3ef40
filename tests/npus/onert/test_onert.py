"""The ONE runtime: fully connected layers packed for ruy's paths, run on the simulated kernels,
lifted again.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import tracemalloc
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import onert_by_hand as hand
import pytest
from conftest import CAPTURES
from oracles import litert
from record_simulated_onert import record

import npulab
import npulab.analysis.mismatch.model_run
from npulab import cli
from npulab.captures.devices import Simulated
from npulab.captures.target import Hang, Target, Unsupported
from npulab.layout import find_layout, markers
from npulab.npus.onert import layouts
from npulab.npus.onert.facts import CHIPS, FACTS, HERE, SIDES
from npulab.npus.onert.lowering import features_of
from npulab.quant.emulate import real
from npulab.quant.layers import FullyConnected
from npulab.support.files import read_table

Q = npulab.QuantParams
PATHS = tuple(CHIPS)
ACTIVATIONS = (None, "relu", "relu6", "relu_n1_to_1")
# some fill their blocks, most do not; 1009 to 1024 deep may have a stride of their own
SHAPES = (
    (1, 1),
    (2, 2),
    (5, 3),
    (16, 16),
    (17, 1),
    (37, 13),
    (3, 41),
    (100, 33),
    (1, 9),
    (1021, 5),
)
PACKED = [*itertools.product(PATHS, SIDES)]


@pytest.fixture(scope="module")
def onert() -> Target:
    return npulab.target("onert")


@pytest.fixture(scope="module")
def kept() -> npulab.CaptureSet:
    return npulab.load_all(CAPTURES / "onert")


def codes(random: np.random.RandomState, dtype: str, *shape: int) -> np.ndarray:
    return (random.randint(0, 256, shape) + np.iinfo(dtype).min).astype(dtype)


def random_layer(n: int) -> tuple[str, FullyConnected, np.ndarray]:
    """(path, layer, input) number ``n``: two of three hybrid; 1-D to 4-D inputs of 1 to 20
    batches.
    """
    random = np.random.RandomState([n, 9])
    units, depth = (int(size) for size in random.randint(1, (50, 120)))
    path = PATHS[n // 3 % len(PATHS)]
    lead = (
        (),
        (int(random.randint(1, 21)),),
        tuple(random.randint(1, 5, 2).tolist()),
        (2, 1, int(random.randint(1, 11))),
    )[random.randint(4)]
    shape = (*lead, *((1, 1, depth) if lead and random.randint(6) == 0 else (depth,)))
    channels, activation = bool(random.randint(2)), ACTIVATIONS[random.randint(4)]
    scales = (2.0 ** random.uniform(-10, -3, units)).astype(np.float32).tolist()
    scale = tuple(scales) if channels else scales[0]
    if n % 3:
        x = (random.standard_normal(shape) * 2.0 ** random.randint(-20, 20)).astype(np.float32)
        x[random.random_sample(shape[:-1]) < 0.15] = 0
        bias = random.standard_normal(units).astype(np.float32)
        bias[random.random_sample(units) < 0.1] = -0.0
        return (
            path,
            FullyConnected(
                codes(random, "int8", units, depth),
                bias,
                activation,
                weight_q=Q(scale),
                dtype="float32",
            ),
            x,
        )
    weights, dtype = (("int8", "uint8")[random.randint(2)] for _ in range(2))
    zero = {
        kind: [int(random.randint(256)) + np.iinfo(kind).min for _ in range(2)]
        for kind in ("int8", "uint8")
    }
    layer = FullyConnected(
        codes(random, weights, units, depth),
        random.randint(-9000, 9000, units),
        activation,
        Q(0.02, zero[dtype][0]),
        Q(scale, 0 if weights == "int8" and random.randint(2) else zero[weights][1]),
        Q(float(np.float32(2.0 ** random.uniform(-4, 3))), zero[dtype][1]),
        dtype,
    )
    return path, layer, codes(random, dtype, *shape)


def same_layer(a: FullyConnected, b: FullyConnected) -> bool:
    """Every number the same, bit for bit; scales as float32."""

    def single(q: npulab.QuantParams) -> tuple[Any, int]:
        return np.asarray(q.scale, np.float32).tolist(), q.zero_point

    return (
        a.weights.dtype == b.weights.dtype
        and np.array_equal(a.weights, b.weights)
        and a.bias.tobytes() == b.bias.tobytes()
        and (a.activation, a.dtype) == (b.activation, b.dtype)
        and [single(q) for q in (a.input_q, a.weight_q, a.output_q)]
        == [single(q) for q in (b.input_q, b.weight_q, b.output_q)]
    )


def agrees(n: int, onert: Target) -> int:
    """A random layer lowered, run, lifted and lowered again; the outputs compared."""
    path, layer, x = random_layer(n)
    capture = onert.lower(layer, chip=path, x=x, name=f"layer-{n}")
    expected = npulab.emulate(layer, x, onert.rule_of(capture))
    assert onert.simulate(capture) == expected.tobytes(), f"layer {n}: {layer}, {path}"
    capture = replace(capture, buffers={**capture.buffers, "output": expected.tobytes()})
    lifted = onert.lift(capture)
    assert same_layer(lifted.layer, layer)
    assert lifted.x.shape == x.shape
    assert lifted.x.tobytes() == x.tobytes()
    assert lifted.output.shape == expected.shape
    assert lifted.output.tobytes() == expected.tobytes()
    again = onert.lower(lifted.layer, chip=path, x=lifted.x, name=f"layer-{n}")
    assert np.array_equal(again.words, capture.words)
    assert again.buffers.items() <= capture.buffers.items()
    assert onert.recode(capture) == capture.buffers["coefficients"]
    return expected.size


@pytest.mark.parametrize("dozen", range(6))
def test_random_layers(dozen: int, onert: Target) -> None:
    assert sum(agrees(n, onert) for n in range(12 * dozen, 12 * dozen + 12)) > 200


@pytest.mark.long
@pytest.mark.parametrize("hundred", range(10))
def test_random_layers_long(hundred: int, onert: Target) -> None:
    for n in range(1000 + 100 * hundred, 1100 + 100 * hundred):
        agrees(n, onert)


def test_random_layers_are_of_every_kind() -> None:
    drawn = [random_layer(n) for n in range(72)]
    for part in (0, 1):  # hybrid, quantized
        mine = [one for one in drawn if (one[1].dtype == "float32") != bool(part)]
        assert {path for path, *_ in mine} == {*PATHS}
        assert {x.ndim for *_, x in mine} >= {1, 2, 3, 4}
        assert {layer.activation for _, layer, _ in mine} == {*ACTIVATIONS}
        assert {isinstance(layer.weight_q.scale, tuple) for _, layer, _ in mine} == {False, True}
    batches = {x.size // layer.input_shape[0] for _, layer, x in drawn}
    assert min(batches) == 1
    assert max(batches) >= 19
    assert {(layer.weights.dtype.name, x.dtype.name) for _, layer, x in drawn} == {
        ("int8", "float32"),
        ("int8", "int8"),
        ("int8", "uint8"),
        ("uint8", "int8"),
        ("uint8", "uint8"),
    }


def agrees_with_litert(n: int, onert: Target) -> int:
    """A batch of a random layer that LiteRT takes, on the simulated kernels and in LiteRT's own."""
    _, layer, x = random_layer(n)
    channels, hybrid = isinstance(layer.weight_q.scale, tuple), layer.dtype == "float32"
    if not hybrid:  # both of one type, int8 weights without a zero point, uint8 ones with one scale
        layer = replace(
            layer,
            weight_q=Q(
                layer.weight_q.scale, 0 if layer.dtype == "int8" else layer.weight_q.zero_point
            ),
        )
        if layer.weights.dtype != layer.dtype or (channels and layer.dtype == "uint8"):
            return 0
    layer, row = (
        replace(layer, weights=np.maximum(layer.weights, -127) if hybrid else layer.weights),
        x.reshape(-1, *layer.input_shape)[:1],
    )
    given = litert(npulab.single_op_model(layer), row, kernels="builtin")[0]
    made = onert.simulate(onert.lower(layer, chip=("avx2", "avx512")[n % 2], x=row))
    assert np.array_equal(np.frombuffer(made, given.dtype), given.ravel()), f"layer {n}: {layer}"
    return given.size


def test_random_layers_agree_with_litert(onert: Target) -> None:
    """LiteRT's builtin kernels multiply by ruy too: hybrid and quantized layers, element by
    element.
    """
    pytest.importorskip("ai_edge_litert")
    assert sum(agrees_with_litert(n, onert) for n in range(5000, 5060)) > 1000


@pytest.mark.long
def test_random_layers_agree_with_litert_long(onert: Target) -> None:
    pytest.importorskip("ai_edge_litert")
    assert sum(agrees_with_litert(n, onert) for n in range(6000, 7000)) > 15_000


def test_rows_of_three_axes_are_one_input(onert: Target) -> None:
    random = np.random.RandomState(4)
    layer = FullyConnected(codes(random, "int8", 6, 24), np.zeros(6), dtype="float32")
    x = random.standard_normal((5, 2, 3, 4)).astype(np.float32)
    capture = Simulated().record(onert.lower(layer, x=x))
    assert onert.lift(capture).output.shape == (5, 6)
    assert npulab.check(capture).verdict == "equal"
    for known in (None, "5", [5, 2, 3, 4.0], [5, -2, -3, 4], [120], [24, 5], [True] * 3):
        parameters = {**capture.parameters, "input_shape": known}
        lifted = onert.lift(replace(capture, parameters=parameters))
        assert lifted.x.shape == (5, 24)
        assert np.array_equal(lifted.x, x.reshape(5, 24))


# Packed matrices


def place(row: Any, column: Any, rows: int, columns: int, stride: int) -> Any:
    """Where an element lies, in elements: the block it is in, then its place there."""
    first_row, first_column = row - row % rows, column - column % columns
    return (
        first_row * columns
        + first_column * stride
        + (row - first_row)
        + (column - first_column) * rows
    )


def slow(
    matrix: np.ndarray, block: tuple[int, int], zero: int, stride: int
) -> tuple[list[int], int]:
    """(elements with fill, stride) of a packed matrix of stored elements, one after the other."""
    out = [zero] * (stride * hand.up(matrix.shape[1], block[1]))
    for row, column in np.ndindex(matrix.shape):
        out[place(row, column, *block, stride)] = int(matrix[row, column])
    return out, stride


def test_blocks_are_those_of_the_kernels() -> None:
    for path, facts in CHIPS.items():
        blocks = [(facts[f"{side}_kernel_rows"], facts[f"{side}_kernel_columns"]) for side in SIDES]
        floats = [facts[f"float_{side}_columns"] for side in SIDES]
        assert (*blocks, *floats) == hand.PATHS[path]
    assert {*CHIPS} == {*hand.PATHS}
    codes = {row["code"] for row in read_table(HERE / "sources.csv")}
    for table in ("chips.csv", "trmul.csv"):
        assert {row["evidence"] for row in read_table(HERE / table)} <= codes
    assert FACTS.enum("path") == {path: facts["path"] for path, facts in CHIPS.items()}


def block_of(path: str, side: str) -> tuple[int, int]:
    return hand.PATHS[path][SIDES.index(side)]


@pytest.mark.parametrize(("path", "side"), PACKED)
def test_packed_matrix_is_that_of_the_formula(path: str, side: str) -> None:
    """Elements, fill and sums, of int8 and of uint8 by XOR 0x80."""
    block = block_of(path, side)
    for shape in SHAPES:
        random = np.random.RandomState([*shape, 1])
        rows, columns = np.indices(shape)
        for dtype, zero, gap in (("int8", 0, 0), ("int8", -77, 64), ("uint8", 131, 0)):
            matrix = codes(random, dtype, *shape)
            moved = -128 - np.iinfo(dtype).min
            stored = matrix.astype(int) + moved
            elements, stride = slow(stored, block, zero + moved, hand.up(shape[0], block[0]) + gap)
            layout = layouts.packed(
                shape, path, side, dtype=dtype, zero_point=zero, stride=stride if gap else 0
            )
            sums = np.full(len(elements) // stride, (stride - gap) * (zero + moved))
            sums[: shape[1]] += (stored - zero - moved).sum(0)
            data = np.array(elements, np.int8).tobytes() + sums.astype("<i4").tobytes()
            assert layout.pack(matrix) == data
            assert np.array_equal(layout.unpack(data), matrix)
            assert np.array_equal(layout.index_map(), place(rows, columns, *block, stride))


@pytest.mark.parametrize(("path", "side"), PACKED)
def test_packed_float_matrix_is_that_of_the_formula(path: str, side: str) -> None:
    block = 1, hand.PATHS[path][2 + SIDES.index(side)]
    for shape in ((3, 5), (256, 3), (255, 17), (7, 17), (5, 16), (1, 1)):
        matrix = np.random.RandomState(5).permutation(shape[0] * shape[1]).reshape(shape) + 1
        stride = layouts.apart(shape[0], 4) if shape[1] == 3 else shape[0]
        assert stride - shape[0] == (64 if shape == (256, 3) else 0)
        elements, _ = slow(matrix, block, 0, stride)
        layout = layouts.packed_float(shape, path, side, stride=stride)
        data = layout.pack(matrix.astype(np.float32))
        assert data == np.array(elements, "<f4").tobytes()
        assert np.array_equal(layout.unpack(data), matrix)


@pytest.mark.sample(40)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("path", "side"), PACKED)
def test_packed_layout_is_found_from_markers(path: str, side: str, shape: tuple[int, int]) -> None:
    """Blocks, fill and sums; a sum of one element may be a copy of it, and then nothing is
    claimed.
    """
    dtype, zero = (("int8", -3), ("uint8", 131), ("int8", 0))[sum(shape) % 3]
    stride = layouts.apart(hand.up(shape[0], block_of(path, side)[0])) if side == "lhs" else 0
    layout = layouts.packed(shape, path, side, dtype=dtype, zero_point=zero, stride=stride)
    tensors = markers(shape, dtype)
    found = find_layout(tensors, [layout.pack(tensor) for tensor in tensors])
    assert np.array_equal(found.index_map(), layout.index_map())
    other = codes(np.random.RandomState(6), dtype, *shape)
    assert found.pack(other) == layout.pack(other)
    assert found.sure or shape[0] == 1


@pytest.mark.parametrize("path", PATHS)
def test_packed_float_layout_is_found_from_markers(path: str) -> None:
    for side, shape in itertools.product(SIDES, ((7, 11), (256, 9))):
        layout = layouts.packed_float(shape, path, side)
        tensors = markers(shape, "float32")
        found = find_layout(tensors, [layout.pack(tensor) for tensor in tensors])
        assert np.array_equal(found.index_map(), layout.index_map())
        assert found.sure


# Rounding


def test_fused_multiply_add_rounds_once(onert: Target) -> None:
    """Against exact fractions; and it is another number than the separate roundings in some
    outputs.
    """
    random = np.random.RandomState(7)
    layer = FullyConnected(
        codes(random, "int8", 40, 30),
        random.standard_normal(40),
        weight_q=Q(0.013),
        dtype="float32",
    )
    x = random.standard_normal((12, 30)).astype(np.float32)
    capture = onert.lower(layer, x=x, features=["fused-multiply-add"])
    assert onert.rule_of(capture) == "hybrid-float32:fused"
    got = np.frombuffer(onert.simulate(capture), np.float32).reshape(12, 40)
    scales = np.frombuffer(capture.buffers["input_scales"], np.float32) * np.float32(0.013)
    rows = (
        layouts.packed((30, 12), "neon-aarch64", "rhs")
        .unpack(capture.buffers["input_rows"])
        .T.astype(int)
    )
    sums = rows @ layer.weights.T.astype(int)
    for batch, unit in np.ndindex(got.shape):
        exact = Fraction(float(np.float32(sums[batch, unit]))) * Fraction(
            float(scales[batch])
        ) + Fraction(float(layer.bias[unit]))
        around = [np.nextafter(got[batch, unit], np.float32(to)) for to in (-np.inf, np.inf)]
        error = abs(Fraction(float(got[batch, unit])) - exact)
        assert all(error <= abs(Fraction(float(one)) - exact) for one in around)
    separate = npulab.emulate(layer, x, "hybrid-float32")
    assert 0 < np.count_nonzero(separate != got) < got.size // 2
    assert npulab.emulate(layer, x, real.FUSED).tobytes() == got.tobytes()


def test_arm_rounds_once_and_x86_twice(onert: Target) -> None:
    """The same layer on each path: what the rules of both give, which differ in some outputs."""
    random = np.random.RandomState(8)
    layer = FullyConnected(
        codes(random, "int8", 64, 40),
        random.randint(-9000, 9000, 64),
        weight_q=Q(0.0041),
        input_q=Q(1.0, 5),
    )
    x, outputs = codes(random, "int8", 20, 40), {}
    for path in PATHS:
        capture = onert.lower(layer, chip=path, x=x)
        outputs[path] = onert.simulate(capture)
        assert outputs[path] == npulab.emulate(layer, x, onert.rule_of(capture)).tobytes()
    arm, intel = PATHS[:3], PATHS[3:]
    assert len({outputs[path] for path in arm}) == len({outputs[path] for path in intel}) == 1
    assert outputs[arm[0]] != outputs[intel[0]]


def test_an_input_of_zeros_leaves_the_bias_as_it_is(onert: Target) -> None:
    layer = FullyConnected(
        np.full((3, 5), 7, np.int8), np.array([-0.0, 1.5, -2.0]), weight_q=Q(0.5), dtype="float32"
    )
    x = np.zeros((2, 5), np.float32)
    out = np.frombuffer(onert.simulate(onert.lower(layer, x=x)), np.float32)
    assert out.tobytes() == np.tile(layer.bias, 2).tobytes()
    x[0, 0] = 1  # now the sums of the other row are added, and -0 + 0 is 0
    out = np.frombuffer(onert.simulate(onert.lower(layer, x=x)), np.float32).reshape(2, 3)
    assert np.signbit(out[1]).tolist() == [False, False, True]


# Captures


def test_simulated_captures_are_recorded_the_same_again(kept: npulab.CaptureSet) -> None:
    again = {capture.name: capture for capture in record()}
    assert sorted(again) == kept.names
    assert [name for name, capture in again.items() if capture != kept[name]] == []
    assert sum(len(data) for capture in kept for data in capture.buffers.values()) < 120_000


def test_captures_are_lowered_again_the_same(kept: npulab.CaptureSet, onert: Target) -> None:
    for capture in kept:
        layer, x, _ = onert.lift(capture)
        again = onert.lower(layer, chip=capture.chip, x=x, features=features_of(capture))
        assert np.array_equal(again.words, capture.words)
        assert {**again.buffers, "output": onert.simulate(again)} == capture.buffers
    assert features_of(kept["sim-hybrid-cached"]) == ("cached-weights", "avoid-aliasing")
    assert features_of(kept["sim-hybrid-2d"].with_fields(fused_multiply_add=1)) == (
        "fused-multiply-add",
    )


def test_captures_are_checked_shown_listed_and_compared(capsys: pytest.CaptureFixture[str]) -> None:
    def run(*arguments: object) -> list[str]:
        assert cli.main([str(argument) for argument in arguments]) == 0
        return capsys.readouterr().out.splitlines()

    folder = CAPTURES / "onert"
    assert run("check", folder)[-1] == "6 captures, 0 differ (6 equal)"
    assert len(run("list", folder)) == 7
    shown = run("show", folder / "sim-uint8", "--field", "*_type")
    assert [line.split()[6] for line in shown if "_type " in line] == [
        "uint8",
        "uint8",
        "int8",
        "uint8",
    ]
    assert any("simulated" in line for line in shown)
    differs = run("diff", folder / "sim-hybrid-2d", folder / "sim-hybrid-3d")
    assert "path" in " ".join(differs)
    assert any("input_size" in line and line.split()[-2:] == ["100", "154"] for line in differs)


def test_every_byte_of_the_weights_is_explained(kept: npulab.CaptureSet, onert: Target) -> None:
    for capture in kept:
        items, layer = onert.explain(capture), onert.lift(capture).layer
        ends = [item.bit + item.bits for item in items]
        assert [item.bit for item in items] == [0, *ends[:-1]]
        assert ends[-1] == 8 * len(capture.buffers["coefficients"])
        stored = capture.buffers["coefficients"]
        moved = 128 if layer.weights.dtype == np.uint8 else 0
        for item in items:
            if item.kind in ("weight", "fill"):
                assert (item.value - moved * (item.kind == "weight")) % 256 == stored[item.bit // 8]
        weights = {(item.channel, item.row): item.value for item in items if item.kind == "weight"}
        assert weights == {place: int(code) for place, code in np.ndenumerate(layer.weights)}
        assert sum(item.weights for item in items) == layer.weights.size
        zero = capture.values["lhs_zero_point"] % 256
        assert {item.value for item in items if item.kind == "fill"} <= {zero}
        sums = [item.value for item in items if item.kind == "sum"]
        assert len(sums) == capture.values["lhs_columns"]
        gaps = [item.bits for item in items if item.kind == "other"]
        assert gaps == ([8 * 64 * 16] * 2 if capture.name == "sim-hybrid-cached" else [])
    assert npulab.explain(kept["sim-uint8"], byte=0).kind.tolist() == ["weight"]


def test_bytes_between_strips_are_kept_as_they_are(kept: npulab.CaptureSet, onert: Target) -> None:
    """What nothing writes may hold anything."""
    capture = kept["sim-hybrid-cached"]
    data = bytearray(capture.buffers["coefficients"])
    data[1024 * 16 : 1088 * 16] = bytes(range(256)) * 4
    other = capture.with_buffers(coefficients=bytes(data))
    assert onert.recode(other) == bytes(data)
    assert same_layer(onert.lift(other).layer, onert.lift(capture).layer)
    assert onert.simulate(other) == capture.buffers["output"]


def test_both_strides_of_a_depth_of_whole_kib_are_lifted(
    kept: npulab.CaptureSet, onert: Target
) -> None:
    capture = kept["sim-hybrid-cached"]
    layer, x, output = onert.lift(capture)
    other = onert.lower(layer, chip="avx512", x=x, features=["cached-weights"])
    assert npulab.diff(capture, other).field.tolist() == ["lhs_stride", "rhs_stride"]
    assert [len(one.buffers["coefficients"]) for one in (capture, other)] == [
        1088 * 32 + 4 * 32,
        1024 * 32 + 4 * 32,
    ]
    assert onert.simulate(other) == output.tobytes()
    assert (
        npulab.check(replace(other, buffers={**other.buffers, "output": output.tobytes()})).verdict
        == "equal"
    )
    assert same_layer(onert.lift(other).layer, layer)
    again = onert.lower(layer, chip="avx512", x=x, features=["cached-weights", "avoid-aliasing"])
    assert again.buffers.items() <= capture.buffers.items()
    assert np.array_equal(again.words, capture.words)


def test_rows_packed_before_the_call_are_taken_as_they_are(
    kept: npulab.CaptureSet, onert: Target
) -> None:
    for capture in kept:
        other = capture.with_fields(rhs_is_prepacked=1)
        buffers = {name: data for name, data in other.buffers.items() if name != "input"}
        other = replace(other, buffers=buffers)
        assert onert.simulate(other) == capture.buffers["output"]
        lifted = onert.lift(other)
        if capture.values["operation"]:
            assert np.array_equal(lifted.x, onert.lift(capture).x)
            assert npulab.check(other).verdict == "equal"
        else:
            assert lifted.x is None
            assert npulab.check(other).verdict == "nothing to compare"


def test_calls_are_found_in_their_model(kept: npulab.CaptureSet, onert: Target) -> None:
    """Each capture against a model of its layer, and of another."""
    for capture in kept:
        layer = onert.lift(capture).layer
        assert onert.outline(capture) == onert.outline(layer)
        assert npulab.analysis.mismatch.model_run.check_run(
            [capture], npulab.single_op_model(layer)
        ).counts == {"equal": 1}
        if capture.values["per_channel"]:
            continue  # weights with a scale each are not compared with the model's
        other = replace(layer, weights=np.roll(layer.weights, 1, 0))
        assert npulab.analysis.mismatch.model_run.check_run(
            [capture], npulab.single_op_model(other)
        ).counts == {"differs": 1}
    assert onert.outline(kept["sim-uint8"].with_fields(units=0)) == {}
    assert onert.outline(npulab.Conv2D(np.ones((1, 1, 1, 1), np.int8), [0], (1, 1, 1))) == {}


def test_a_layer_without_an_input_is_lowered_for_one_batch(onert: Target) -> None:
    layer = FullyConnected(np.ones((2, 3), np.int8), np.zeros(2), dtype="float32")
    capture = onert.lower(layer, chip="avx2")
    assert capture.values["batches"] == 1
    assert {*capture.buffers} == {"coefficients", "weight_scales", "biases"}
    assert same_layer(onert.lift(capture).layer, layer)
    assert onert.lift(capture)[1:] == (None, None)
    with pytest.raises(
        Unsupported,
        match=r"^capture lowered: buffer 'input' is missing, there are coefficients, weight_scales, biases$",
    ):
        onert.simulate(capture)


def test_features_are_said_in_the_words(onert: Target) -> None:
    layer = FullyConnected(np.ones((2, 3), np.int8), np.zeros(2), dtype="float32")
    plain, cached = (
        onert.lower(layer, features=features) for features in ((), ("cached-weights",))
    )
    assert npulab.diff(plain, cached).field.tolist() == ["lhs_is_prepacked", "lhs_cache_policy"]
    assert cached.buffers == plain.buffers


# Refusals


HYBRID = FullyConnected(np.ones((4, 3), np.int8), np.zeros(4), dtype="float32")
CODES = FullyConnected(
    np.ones((4, 3), np.uint8), np.zeros(4, int), weight_q=Q(1.0, 3), input_q=Q(1.0, 200)
)


@pytest.mark.parametrize(
    ("layer", "options", "kind", "words"),
    [
        (
            HYBRID,
            {"chip": "sse"},
            Unsupported,
            "chip: got 'sse', allowed is one of neon-aarch64, neon-armv7, neon-dotprod, avx, avx2, avx512",
        ),
        (
            HYBRID,
            {"features": ["fast"]},
            LookupError,
            "features: got 'fast', allowed are cached-weights, fused-multiply-add, avoid-aliasing",
        ),
        (
            CODES,
            {"features": ["fused-multiply-add"]},
            LookupError,
            "features: got 'fused-multiply-add' with .*, allowed is a hybrid layer",
        ),
        (
            HYBRID,
            {"x": np.zeros((2, 4), np.float32)},
            ValueError,
            r"x: got shape \(2, 4\) float32, allowed is \(..., 3\), or \(..., H, W, C\) with H \* W \* C the same number, of float32",
        ),
        (HYBRID, {"x": np.zeros((2, 3))}, ValueError, "x: got shape .* float64"),
        (HYBRID, {"x": np.zeros((0, 3), np.float32)}, ValueError, r"x: got shape \(0, 3\)"),
        (HYBRID, {"x": np.float32(1)}, ValueError, r"x: got shape \(\)"),
        (
            HYBRID,
            {"x": np.array([[1, 2, 3], [0, np.nan, 0]], np.float32)},
            ValueError,
            "x: got a largest magnitude of nan in row 1, allowed is 0, or a finite number by which",
        ),
        (
            HYBRID,
            {"x": np.array([[1, 0, 3], [0, 1e-40, 0]], np.float32)},
            ValueError,
            "x: got a largest magnitude of 9.99.*e-41 in row 1",
        ),
        (CODES, {"x": np.zeros((2, 3), np.int16)}, ValueError, "of int8 or uint8"),
        (
            CODES,
            {"x": np.zeros((2, 3), np.int8)},
            ValueError,
            "got zero point 200, allowed with int8 is -128 to 127",
        ),
        (
            replace(CODES, weight_q=Q(1e-50)),
            {},
            ValueError,
            "weight_q: got a scale of 1e-50 to 1e-50, allowed is a positive finite float32",
        ),
        (replace(CODES, output_q=Q(1e-30)), {}, ValueError, "ratio"),
        (
            replace(HYBRID, dtype="int16", bias=np.zeros(4, int)),
            {},
            ValueError,
            r"lower for onert: got FullyConnected\(3 -> 4, int16\), allowed is a FullyConnected of float32",
        ),
        (
            npulab.Conv2D(np.ones((1, 1, 1, 1), np.int8), [0], (1, 1, 1)),
            {},
            ValueError,
            "allowed is a FullyConnected",
        ),
    ],
)
def test_what_is_not_lowered(
    layer: Any, options: dict[str, Any], kind: type[Exception], words: str, onert: Target
) -> None:
    with pytest.raises(kind, match=words):
        onert.lower(layer, **options)


@pytest.mark.parametrize(
    ("case", "fields", "words"),
    [
        ("sim-hybrid-2d", {"path": "avx2"}, "field path: got 128, allowed with neon-armv7 is 17"),
        (
            "sim-hybrid-2d",
            {"lhs_kernel_rows": 0},
            "field lhs_kernel_rows: got 0, allowed with neon-armv7 is 16",
        ),
        (
            "sim-hybrid-2d",
            {"rhs_kernel_columns": 4},
            "field rhs_kernel_columns: got 4, allowed with neon-armv7 is 2",
        ),
        ("sim-hybrid-2d", {"lhs_order": 1}, "field lhs_order: got 1, allowed with neon-armv7 is 0"),
        (
            "sim-hybrid-2d",
            {"batches": 0},
            "field batches: got 0, allowed with this runtime is 1 to 67108864",
        ),
        (
            "sim-hybrid-2d",
            {"batches": 5},
            "field rhs_columns: got 4, allowed with 5 columns in blocks of 16 x 2 is 6",
        ),
        (
            "sim-hybrid-2d",
            {"units": 2**31},
            "field units: got 2147483648, allowed with this runtime is 1 to 67108864",
        ),
        (
            "sim-hybrid-2d",
            {"units": 2**26},
            "which make weights of 6710886400 bytes, allowed is 67108864",
        ),
        (
            "sim-hybrid-2d",
            {"input_size": 96},
            "field lhs_rows: got 112, allowed with 96 rows in blocks of 16 x 4 is 96",
        ),
        (
            "sim-hybrid-2d",
            {"lhs_stride": 128},
            "field lhs_stride: got 128, allowed with 112 rows is 112",
        ),
        (
            "sim-hybrid-cached",
            {"lhs_stride": 1100},
            "field lhs_stride: got 1100, allowed with 1024 rows is 1024 or 1088",
        ),
        (
            "sim-hybrid-2d",
            {"operation": 7},
            "field operation: got 7, allowed with hybrid or quantized layers is 0 or 1",
        ),
        (
            "sim-hybrid-2d",
            {"activation": 9},
            "field activation: got 9, allowed with this runtime is 0 or 1 or 2 or 3",
        ),
        (
            "sim-hybrid-2d",
            {"lhs_type": 5},
            "field lhs_type: got 5, allowed with a hybrid layer is 2",
        ),
        (
            "sim-hybrid-2d",
            {"dst_type": 2},
            "field dst_type: got 2, allowed with this operation is 4",
        ),
        (
            "sim-hybrid-2d",
            {"lhs_zero_point": 1},
            "field lhs_zero_point: got 1, allowed with a hybrid layer is 0",
        ),
        (
            "sim-hybrid-2d",
            {"clamp_max": 9},
            "field clamp_max: got 9, allowed with sums of int32 is 2147483647",
        ),
        (
            "sim-hybrid-2d",
            {"dst_stride": 95},
            "field dst_stride: got 95, allowed with 96 units is 96",
        ),
        (
            "sim-hybrid-2d",
            {"input_scale": float("nan")},
            "field input_scale: got nan, allowed is a positive finite float32",
        ),
        (
            "sim-hybrid-2d",
            {"per_channel": 1},
            "buffer 'weight_scales': got 4 bytes, allowed by its words are 384",
        ),
        (
            "sim-hybrid-2d",
            {"input_size": 101},
            "buffer 'input': got 1600 bytes, allowed by its words are 1616",
        ),
        (
            "sim-uint8",
            {"lhs_zero_point": 200},
            "field lhs_zero_point: got 200, allowed with codes is -128 to 127",
        ),
        (
            "sim-uint8",
            {"lhs_zero_point": 4},
            "buffer 'coefficients', byte 0x[0-9a-f]+: got fill 0xf9, allowed is the zero point, 0x04",
        ),
        (
            "sim-uint8",
            {"fused_multiply_add": 1},
            "field fused_multiply_add: got 1, allowed with codes is 0",
        ),
        (
            "sim-uint8",
            {"output_scale": 0.25},
            "buffer 'exponents', element 0: got -8, allowed with the layer's scales is -9",
        ),
        (
            "sim-uint8",
            {"clamp_min": 3},
            "registers clamp_min and clamp_max: got 3 and 255, allowed with .* is 0 and 255",
        ),
    ],
)
def test_words_that_make_no_layer(
    case: str, fields: dict[str, Any], words: str, kept: npulab.CaptureSet, onert: Target
) -> None:
    capture = kept[case]
    changed = capture.with_fields(**fields)
    with pytest.raises(ValueError, match=words):
        onert.lift(changed)
    found = npulab.check(changed)
    assert (found.verdict, found.compared) == ("differs", 0)


def test_bytes_that_make_no_layer(kept: npulab.CaptureSet, onert: Target) -> None:
    def changed(case: str, name: str, edit: Any) -> npulab.Capture:
        data = bytearray(kept[case].buffers[name])
        return kept[case].with_buffers(**{name: bytes(edit(data) or data)})

    def add(at: int) -> Any:
        return lambda data: data.__setitem__(at, (data[at] + 1) % 256)

    end = 112 * 96  # of the packed weights, where the sums begin
    for case, name, edit, words in (
        (
            "sim-hybrid-2d",
            "coefficients",
            lambda data: data[:-1],
            "buffer 'coefficients': got 11135 bytes, allowed by its words are 11136",
        ),
        ("sim-hybrid-2d", "coefficients", lambda data: data + b"\0", "got 11137 bytes"),
        (
            "sim-hybrid-2d",
            "coefficients",
            add(end - 1),
            "buffer 'coefficients', byte 0x29ff: got fill 0x01, allowed is the zero point, 0x00",
        ),
        (
            "sim-hybrid-2d",
            "coefficients",
            add(0),
            r"buffer 'coefficients', sum of column 0: got -?\d+, allowed is -?\d+",
        ),
        (
            "sim-hybrid-2d",
            "coefficients",
            add(end + 8),
            "buffer 'coefficients', sum of column 2: got",
        ),
        ("sim-hybrid-2d", "input_rows", add(0), "buffer 'input_rows', sum of column 0: got"),
        (
            "sim-hybrid-2d",
            "input_scales",
            add(0),
            "buffer 'input_scales', batch 0: got .*, allowed is .*, which follows from the buffer 'input'",
        ),
        (
            "sim-hybrid-2d",
            "input",
            lambda data: data[:4] + b"\0\0\x80\x7f" + data[8:],
            "x: got a largest magnitude of inf in row 0",
        ),
        (
            "sim-hybrid-2d",
            "biases",
            lambda data: data[4:],
            "buffer 'biases': got 380 bytes, allowed by its words are 384",
        ),
        (
            "sim-hybrid-2d",
            "weight_scales",
            lambda data: bytes(4),
            "buffer 'weight_scales': got scales of 0.0 to 0.0, allowed are positive finite numbers",
        ),
        ("sim-hybrid-2d", "output", lambda data: data[:-4], "buffer 'output': got 1532 bytes"),
        ("sim-uint8", "input", add(3), "buffer 'input_rows', batch 0, input 3: got"),
        ("sim-uint8", "multipliers", add(0), "buffer 'multipliers', element 0: got"),
    ):
        with pytest.raises(ValueError, match=words):
            onert.lift(changed(case, name, edit))
    for name in kept["sim-uint8"].buffers:
        with pytest.raises(ValueError, match=f"buffer '{name}': got"):
            onert.lift(changed("sim-uint8", name, lambda data: data[:-1]))
    assert npulab.check(changed("sim-hybrid-2d", "coefficients", add(0))).coefficients is False
    bare = replace(kept["sim-hybrid-2d"], buffers={})
    with pytest.raises(
        Unsupported,
        match=r"^capture sim-hybrid-2d: buffer 'weight_scales' is missing, there are none$",
    ):
        onert.lift(bare)


def test_jobs_of_other_kinds_are_not_answered(kept: npulab.CaptureSet, onert: Target) -> None:
    capture = kept["sim-uint8"]
    two = replace(capture, jobs=capture.jobs * 2)
    for call in (onert.lift, onert.simulate, onert.recode, onert.explain):
        with pytest.raises(Unsupported, match="got jobs TRMUL, TRMUL"):
            call(two)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"path": 1}, "path is 0x1, for which there are no kernels"),
        ({"lhs_kernel_rows": 0}, "lhs_kernel_rows is 0"),
        ({"units": 97}, "lhs: 100 rows x 97 columns do not fit 112 x 96"),
        ({"lhs_rows": 113}, "lhs: 113 x 96 are not whole blocks of 16 x 4"),
        ({"rhs_rows": 128, "rhs_stride": 128}, "lhs_rows is 112, other than rhs_rows 128"),
        ({"rhs_order": 1}, "in the order of columns"),
        ({"batches": 3, "input_size": 112}, None),
        (
            {"batches": 4, "input_size": 112},
            "input: the call reads 1792 bytes from byte 0x0 on, the buffer ends at byte 0x640",
        ),
        ({"lhs_columns": 2**31, "units": 2**31}, "do not fit 67108864 bytes"),
        ({"dst_stride": 2**31}, "the output of 4 batches"),
        (
            {"lhs_stride": 240},
            "coefficients: the call reads 448 bytes from byte 0x[0-9a-f]+ on, the buffer ends at byte 0x2b80",
        ),
        ({"operation": 1}, "exponent"),
        ({"operation": 3}, "operation is 3, the simulated unit knows 0 and 1 only"),
    ],
)
def test_words_that_hang(
    fields: dict[str, int], words: str | None, kept: npulab.CaptureSet
) -> None:
    """What reads past a buffer, or fits no kernel, is an outcome with a reason."""
    capture = kept["sim-hybrid-2d"]
    if fields.get("operation") == 1:
        capture = capture.with_buffers(
            multipliers=bytes(4), exponents=b"\x7f\0\0\0", input=bytes(400)
        ).with_fields(dst_type=2)
    run = Simulated().run(capture.with_fields(**fields))
    assert (run.outcome, bool(run.reason)) == (("hang", True) if words else ("done", False))
    assert re.search(words or "^$", run.reason), run.reason


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 22))]
)
def test_no_words_or_bytes_do_more_than_refuse(
    seed: int, kept: npulab.CaptureSet, onert: Target
) -> None:
    """Changed words and buffers: every answer is one, or a sentence; no more than 64 MiB is
    held.
    """
    random = np.random.RandomState([seed, 11])
    tracemalloc.start()
    try:
        for n in range(40):
            capture = kept[n % len(kept)]
            words = capture.words.copy()
            for at in random.randint(0, len(words), random.randint(1, 4)).tolist():
                word = int(words[at])
                words[at] = (
                    word ^ 2 ** int(random.randint(32)),
                    int(random.randint(70000)),
                    0,
                    (word + 1) % 2**32,
                    2 * word % 2**32,
                    int(random.randint(2**31)),
                )[random.randint(6)]
            buffers = dict(capture.buffers)
            if n % 3 == 0:
                name = [*buffers][random.randint(len(buffers))]
                buffers[name] = buffers[name][: random.randint(len(buffers[name]) + 1)]
            changed = replace(capture.with_words(words), buffers=buffers)
            tracemalloc.reset_peak()
            for call in (
                onert.lift,
                onert.simulate,
                onert.recode,
                onert.rule_of,
                *([onert.explain] if n % 5 == 0 else []),
            ):
                with contextlib.suppress(ValueError, Hang):
                    call(changed)
            npulab.check(changed)
            assert tracemalloc.get_traced_memory()[1] < 2**26
    finally:
        tracemalloc.stop()


def test_a_buffer_is_measured_before_anything_is_made_of_it(
    kept: npulab.CaptureSet, onert: Target
) -> None:
    many = kept["sim-hybrid-2d"].with_fields(
        units=2**22,
        input_size=1,
        lhs_rows=16,
        rhs_rows=16,
        lhs_stride=16,
        rhs_stride=16,
        lhs_columns=2**22,
        dst_stride=2**22,
        batches=1,
        rhs_columns=2,
    )
    with pytest.raises(
        ValueError,
        match="buffer 'coefficients': got 11136 bytes, allowed by its words are 83886080",
    ):
        onert.recode(many)
