"""Models: written for LiteRT to run, read back as the layers they came from, listed, swept."""

from __future__ import annotations

import csv
import hashlib
import re
import subprocess
import sys
import tracemalloc
from collections import Counter
from contextlib import suppress
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
import pytest
from oracles import litert, micro, onnx_conv, onnx_matmul, onnxruntime_engine
from random_models import damage

import npulab
from npulab.models import (
    Operator,
    Sweep,
    check_sweep,
    random_input,
    read_model,
    single_op_model,
    sweep,
    write_model,
    write_sweep,
)
from npulab.models.facts import TABLES
from npulab.models.file import _pack_table, pack, unpack
from npulab.quant.layers import Add, Conv2D, FullyConnected, Layer, Network, Pool2D
from npulab.quant.rules import QuantParams
from npulab.support.extras import MissingPackage

EXPLICIT = ((1, 0), (2, 1))
WINDOWS = {"input_h": [7], "input_w": [6], "stride_h": [1, 2], "kernel_h": [1, 3], "kernel_w": [2]}
# grids of every operator and type
ACTIVATED: dict[str, list[Any]] = {
    "dtype": ["int8", "uint8", "int16", "float16"],
    "activation": [None, "relu", "relu6", "relu_n1_to_1"],
}
WEIGHTED = {
    **ACTIVATED,
    "dtype": [*ACTIVATED["dtype"], "float32"],
    "per_channel": [False, True],
}
CONVOLVED = {**WINDOWS, **WEIGHTED, "padding": ["same", "valid", EXPLICIT]}
AVERAGED = {**WINDOWS, **ACTIVATED, "padding": ["same", "valid"]}
POOLED = {**AVERAGED, "padding": ["same", "valid", ((1, 1), (0, 1))], "kernel_h": [2, 3]}
GRIDS: dict[str, dict[str, list[Any]]] = {
    "conv": {**CONVOLVED, "dilation_w": [1, 2]},
    "depthwise": {**CONVOLVED, "depthwise": [True], "output_c": [4, 12]},
    "fully_connected": {**WEIGHTED, "op": ["fully_connected"], "input_c": [1, 40]},
    "average_pool": {**AVERAGED, "op": ["average_pool"]},
    "max_pool": {**POOLED, "op": ["max_pool"]},
    "min_pool": {**POOLED, "op": ["min_pool"]},
    "add": {**ACTIVATED, "op": ["add"]},
}
LOADED = {"reference": "tflite-reference", "builtin": "tflite-builtin", "auto": "xnnpack"}


@cache
def swept(op: str, seed: int = 0) -> Sweep:
    return sweep(GRIDS[op], seed=seed)


def refused(layer: Layer) -> bool:
    """Whether LiteRT does not load it."""
    return layer.dtype == "uint8" and isinstance(
        getattr(layer, "weight_q", QuantParams(1.0)).scale, tuple
    )


def unequal(a: Layer, b: Layer) -> list[str]:
    """The fields in which two layers differ; scales are compared as float32, paddings as
    numbers.
    """
    out = [] if type(a) is type(b) else ["type"]
    for name in [one.name for one in fields(a)]:
        x, y = getattr(a, name), getattr(b, name, None)
        if name == "padding":
            x, y = a.pads, b.pads
        if isinstance(x, QuantParams):
            x, y = (np.append(np.float32(q.scale), np.float32(q.zero_point)) for q in (x, y))
        same = np.array_equal(x, y) and x.dtype == y.dtype if isinstance(x, np.ndarray) else x == y
        out += [] if same else [name]
    return out


def small(**changes: Any) -> Conv2D:
    return replace(Conv2D(np.ones((2, 3, 3, 1), np.int8), [1, 2], (8, 8, 1)), **changes)


def network() -> Network:
    """A stem, an inverted residual block, a pool and a classifier."""
    random = np.random.default_rng(7)

    def conv(shape: tuple[int, int, int], outputs: int, kernel: int, **rest: Any) -> Conv2D:
        rows = (
            (1, kernel, kernel, outputs)
            if rest.get("depthwise")
            else (outputs, kernel, kernel, shape[2])
        )
        scale = random.uniform(0.5, 1, outputs) / 40 / (np.prod(rows) / outputs) ** 0.5
        return Conv2D(
            random.integers(-127, 128, rows).astype(np.int8),
            random.integers(-99, 99, outputs),
            shape,
            padding="same",
            input_q=QuantParams(0.05, -3),
            weight_q=QuantParams(scale),
            output_q=QuantParams(0.05, -3),
            **rest,
        )

    q = QuantParams(0.05, -3)
    layers: tuple[Layer, ...] = (
        conv((16, 16, 3), 8, 3, stride=(2, 2), activation="relu6"),
        conv((8, 8, 8), 24, 1, activation="relu6"),
        conv((8, 8, 24), 24, 3, depthwise=True, activation="relu6"),
        conv((8, 8, 24), 8, 1),
        Add((8, 8, 8), input_q=q, other_q=q, output_q=q),
        Pool2D("average", (8, 8), (8, 8, 8), input_q=q),
        FullyConnected(
            random.integers(-127, 128, (10, 8)).astype(np.int8),
            np.zeros(10, int),
            input_q=q,
            weight_q=QuantParams(0.01),
            output_q=q,
        ),
    )
    return Network(layers, ((-1,), (0,), (1,), (2,), (3, 0), (4,), (5,)))


# what is written is read back


@pytest.mark.sample(2)
@pytest.mark.parametrize("op", GRIDS)
def test_a_layer_reads_back_in_every_field(op: str) -> None:
    made = swept(op)
    assert len(made) > 10
    for layer, model in zip(made.layers, made.models, strict=True):
        (back,) = read_model(model).layers
        assert not unequal(layer, back), layer


@pytest.mark.parametrize("batch", [1, 3])
def test_a_network_reads_back(batch: int) -> None:
    model = read_model(write_model(network(), batch))
    back = model.network
    assert back.inputs == network().inputs
    assert not any(unequal(a, b) for a, b in zip(network().layers, back.layers, strict=True))
    assert model.parameters["name"].tolist() == [
        "CONV_2D",
        "CONV_2D",
        "DEPTHWISE_CONV_2D",
        "CONV_2D",
        "ADD",
        "AVERAGE_POOL_2D",
        "FULLY_CONNECTED",
    ]
    assert model.parameters.loc[2, "kernel_h"] == 3
    assert {one.shape[0] for one in model.tensors if one.name.endswith("put")} == {batch}


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "float16"])
def test_layers_of_several_operators_read_back_from_a_network(dtype: str) -> None:
    pool = Pool2D(
        "min", (2, 2), (5, 5, 3), padding=((1, 0), (0, 1)), activation="relu", dtype=dtype
    )
    given = Network(
        (pool, pool, Add((5, 5, 3), "relu6", dtype=dtype), replace(pool, kind="max")),
        ((-1,), (0,), (1, 0), (2,)),
    )
    back = read_model(write_model(given)).network
    assert back.inputs == given.inputs
    assert not any(unequal(a, b) for a, b in zip(given.layers, back.layers, strict=True))
    x = random_input(pool, np.random.default_rng(0))[0]
    assert np.array_equal(litert(write_model(given), x)[0], npulab.emulate(given, x))


def test_the_same_layer_gives_the_same_bytes() -> None:
    for op in GRIDS:
        made = swept(op)
        for number in range(0, len(made), 20):
            assert single_op_model(made.layers[number]) == made.models[number]
            graph = unpack(made.models[number])
            assert unpack(pack(graph)) == graph


def test_numbers_that_say_same_or_valid_are_written_so() -> None:
    for padding, name in ((((0, 0), (0, 0)), "valid"), (((1, 1), (1, 1)), "same")):
        model = read_model(single_op_model(small(padding=padding)))
        assert len(model.operators) == 1
        assert model.layers[0].padding == name


def test_a_path_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.tflite").write_bytes(single_op_model(small()))
    assert not unequal(small(), read_model(tmp_path / "a.tflite").layers[0])
    for data, got in (
        (b"no", "b'' at offset 4, allowed is b'TFL3' or b'CIR0'; the file is cut off"),
        (b"abc fore", "b'fore' .*; the file is no TensorFlow Lite or circle model"),
    ):
        (tmp_path / "b.tflite").write_bytes(data)
        with pytest.raises(ValueError, match=rf"b\.tflite: identifier: got {got}$"):
            read_model(tmp_path / "b.tflite")


def test_a_file_of_another_writer_is_listed() -> None:
    tflite_micro = pytest.importorskip("tflite_micro")
    path = Path(tflite_micro.__file__).parent / "python" / "tflite_micro" / "sine_float.tflite"
    model = read_model(path)
    assert "Shape [16, 1] (sequential/dense/MatMul)" in str(model)
    assert unpack(pack(unpack(path.read_bytes()))) == unpack(path.read_bytes())
    with pytest.raises(
        ValueError, match=r"^operator 0, FULLY_CONNECTED: weights: got shape \(16, 1\) float32"
    ):
        model.layers  # noqa: B018


# engines run it


@pytest.mark.sample(6)
@pytest.mark.parametrize("kernels", LOADED)
@pytest.mark.parametrize("op", GRIDS)
def test_litert_gives_our_output(op: str, kernels: str) -> None:
    made, delegated = swept(op, seed=1), 0
    for number in np.random.default_rng(3).permutation(len(made))[:60]:
        layer = made.layers[number]
        if refused(layer):
            with pytest.raises(RuntimeError, match="failed to prepare"):
                litert(made.models[number], *made.inputs(number), kernels=kernels)
            continue
        x = made.inputs(number)
        got, by_delegate = litert(made.models[number], *x, kernels=kernels)
        delegated += by_delegate
        assert got.shape == (1, *layer.output_shape)
        assert got.dtype == layer.dtype
        # sums of eighths are the same in any order, so that for float16 one rule is as good as
        # another
        rule = "tflite-reference" if layer.dtype == "float16" else LOADED[kernels]
        assert np.array_equal(got, npulab.emulate(layer, x if len(x) > 1 else x[0], rule)), layer
    assert bool(delegated) == (kernels == "auto")


def test_litert_runs_a_network() -> None:
    x = np.random.default_rng(0).integers(-128, 128, (2, 16, 16, 3)).astype(np.int8)
    for kernels, rule in LOADED.items():
        got, _ = litert(write_model(network(), 2), x, kernels=kernels)
        assert np.array_equal(got, npulab.emulate(network(), x, rule).reshape(got.shape))
        assert len(np.unique(got)) > 5


@pytest.mark.parametrize("op", ["conv", "depthwise", "fully_connected"])
def test_tflite_micro_gives_our_output(op: str) -> None:
    made = sweep({**GRIDS[op], "dtype": ["int8"]})
    for number in range(0, len(made), 7):
        (x,) = made.inputs(number)
        assert np.array_equal(
            micro(made.models[number], x), npulab.emulate(made.layers[number], x, "tflite-micro")
        )


@pytest.mark.sample(1)
@pytest.mark.parametrize("op", ["conv", "depthwise", "fully_connected"])
def test_onnxruntime_gives_our_output(op: str) -> None:
    made = sweep({**GRIDS[op], "dtype": ["uint8"], "per_channel": [False], "activation": [None]})
    for number in range(0, len(made), 2):
        (x,), layer = made.inputs(number), made.layers[number]
        assert isinstance(layer, Conv2D | FullyConnected)
        if number % 4:  # the type that is quick there
            layer = replace(
                layer,
                weights=layer.weights.view(np.int8),
                weight_q=QuantParams(layer.weight_q.scale),
                dtype="uint8",
            )
        if isinstance(layer, FullyConnected):
            layer = replace(layer, bias=np.zeros(len(layer.bias), int))
        got = onnx_matmul(layer, x) if isinstance(layer, FullyConnected) else onnx_conv(layer, x)
        assert np.array_equal(got, npulab.emulate(layer, x, onnxruntime_engine())), layer


# listing


@pytest.mark.parametrize(
    ("op", "bits"), [("conv", 4), ("depthwise", 4), ("fully_connected", 4), ("fully_connected", 2)]
)
def test_codes_of_few_bits_are_packed_and_run(op: str, bits: int) -> None:
    grid = {**GRIDS[op], "dtype": ["int8"], "activation": [None, "relu6"], "weight_bits": [bits]}
    made = sweep(grid, seed=1)
    engines: dict[str, Any] = {
        "tflite-reference": lambda model, x: litert(model, x)[0],
        "tflite-builtin": lambda model, x: litert(model, x, kernels="builtin")[0],
    }
    engines |= {"tflite-micro": micro} if bits == 4 else {}  # which has no others
    spread, looked = 0, range(0, len(made), max(len(made) // 12, 1))
    for number in looked:
        layer, model = made.layers[number], made.models[number]
        tensor = next(one for one in read_model(model).tensors if one.name.endswith("weights"))
        assert (tensor.dtype, tensor.memory) == (f"int{bits}", -(-layer.weights.size * bits // 8))
        assert unequal(layer, read_model(model).layers[0]) == []
        (x,) = made.inputs(number)
        for engine, run in engines.items():
            if (
                engine == "tflite-micro"
                and op == "fully_connected"
                and isinstance(layer.weight_q.scale, tuple)
            ):
                continue  # which has one scale there
            output = npulab.emulate(layer, x, engine)
            assert np.array_equal(run(model, x), output), (layer, engine)
        spread += len(np.unique(output))
    assert spread > 4 * len(looked)


def test_listing_ends_with_counts_and_memory() -> None:
    text = str(read_model(single_op_model(small(padding=EXPLICIT, activation="relu6"))))
    assert text.splitlines()[-17:] == [
        "        Fused Activation: RELU6",
        "        Input Tensors[2, 3, 4]",
        "                Tensor    2 : buffer    0 |  Empty | INT8    | Memory 99.0B  | Shape [1, 9, 11, 1] (pad)",
        "                Tensor    3 : buffer    2 | Filled | INT8    | Memory 18.0B  | Shape [2, 3, 3, 1] (weights)",
        "                Tensor    4 : buffer    3 | Filled | INT32   | Memory 8.0B   | Shape [2] (bias)",
        "        Output Tensors[5]",
        "                Tensor    5 : buffer    0 |  Empty | INT8    | Memory 126.0B | Shape [1, 7, 9, 2] (output)",
        "        Options",
        "                Stride W:H = 1:1, Dilation W:H = 1:1, Padding = VALID",
        "",
        "Number of all operator types: 2",
        "        CONV_2D                               :    1",
        "        PAD                                   :    1",
        "Number of all operators                       :    2",
        "",
        "Expected TOTAL  memory: 347.0B",
        "Expected FILLED memory: 58.0B",
    ]


# what cannot be says so


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (
            small(weight_q=QuantParams(1.0, 3)),
            "weight_q: got zero point 3, allowed in a .tflite is 0 with int8 weights",
        ),
        (
            small(dtype="uint8"),
            "weights: got int8, allowed in a .tflite is uint8 with uint8 activations",
        ),
        (
            small(weights=np.ones((2, 3, 3, 1), np.uint8), weight_bits=4, dtype="uint8"),
            "weight_bits: got 4, allowed in a .tflite with uint8 weights is 8",
        ),
        (
            small(weight_bits=1, weights=np.zeros((2, 3, 3, 1), np.int8)),
            "weight_bits: got 1, allowed in a .tflite with int8 weights is 2, 4 or 8",
        ),
        (
            small(output_q=QuantParams(1e-60)),
            "output_q: got scale 1e-60, allowed are scales above 0 within float32",
        ),
        (
            Pool2D("average", (2, 2), (4, 4, 1), padding=((1, 1), (0, 0))),
            'padding: got ((1, 1), (0, 0)), allowed in a .tflite for average pooling is "same" or "valid": a border that another operator adds would count in the averages',
        ),
    ],
)
def test_what_a_file_cannot_state_is_refused(layer: Layer, words: str) -> None:
    with pytest.raises(ValueError) as caught:
        single_op_model(layer)
    assert str(caught.value) == words


def changed(**changes: Any) -> Any:
    """The model of ``small`` with some parts changed."""
    return read_model(pack(replace(unpack(single_op_model(small())), **changes)))


def test_what_is_no_layer_is_refused() -> None:
    model = unpack(single_op_model(small()))
    (conv,) = model.operators
    weights = model.tensors[1]
    cases: list[tuple[dict[str, Any], str]] = [
        (
            {"operators": (conv, Operator("NEG", (3,), (3,)))},
            "operator 1, NEG: is part of no layer, allowed are CONV_2D, DEPTHWISE_CONV_2D, FULLY_CONNECTED, "
            "AVERAGE_POOL_2D, MAX_POOL_2D, ADD, the operators that single_op_model puts around these, and the kinds of Operation",
        ),
        (
            {"operators": (replace(conv, options={**conv.options, "activation": 4}),)},
            "operator 0, CONV_2D: activation: got TANH, allowed is one of NONE, RELU, RELU_N1_TO_1, RELU6",
        ),
        (
            {"operators": (replace(conv, inputs=(0, -1)),)},
            "operator 0, CONV_2D: tensors: got [0, -1], allowed is a list with a tensor at index 1",
        ),
        (
            {"tensors": (*model.tensors[:3], replace(model.tensors[3], shape=(1, 5, 5, 2)))},
            "operator 0, CONV_2D: output: got [1, 5, 5, 2] int8, allowed is [1, 6, 6, 2] int8",
        ),
        (
            {
                "tensors": (
                    model.tensors[0],
                    replace(weights, scale=(1.0, 1.0), zero_point=(0, 0), axis=3),
                    *model.tensors[2:],
                )
            },
            "operator 0, CONV_2D: weights: got 2 scales on axis 3 and 1 zero points, allowed is one of each or scales on axis 0",
        ),
        (
            {"buffers": (b"", b"short", *model.buffers[2:])},
            "operator 0, CONV_2D: weights: got 5 bytes, allowed is a constant of 18 bytes, int8 [2, 3, 3, 1]",
        ),
    ]
    for changes, words in cases:
        model_ = changed(**changes)
        assert not model_.parameters.empty
        assert str(model_)
        with pytest.raises(ValueError) as caught:
            model_.layers  # noqa: B018
        assert str(caught.value) == words
    assert len(read_model(single_op_model(Add((2, 2, 1)))).network.input_shapes) == 2
    with pytest.raises(
        ValueError, match=r"^model: got output input, allowed is an output of a layer"
    ):
        read_model(pack(changed(outputs=(0,)))).network  # noqa: B018


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: read_model(None),
            "model: got NoneType, allowed is the path or the bytes of a .tflite file",
        ),  # type: ignore[arg-type]
        (
            lambda: read_model(np.zeros(9, np.uint8)),
            "model: got ndarray, allowed is the path or the bytes of a .tflite file",
        ),  # type: ignore[arg-type]
        *[
            (
                lambda layer=layer: single_op_model(layer),
                f"layer: got {kind}, allowed is a Conv2D, FullyConnected, Pool2D, Add or Operation; "
                "write_model writes a Network or a list of layers",
            )
            for layer, kind in ((None, "NoneType"), (network(), "Network"), ([], "list"))
        ],
        *[
            (
                lambda batch=batch: single_op_model(small(), batch),
                f"batch: got {batch!r}, allowed is at least 1 and within int32",
            )
            for batch in (0, 1.5, "a", None, 2**31)
        ],
        (
            lambda: write_model(None),
            "network: got NoneType, allowed is a Network or a list of layers; single_op_model writes one layer",
        ),  # type: ignore[arg-type]
        (
            lambda: write_model([]),
            "network: got 0 layers and 0 tuples of sources, allowed are one layer or more, and as many tuples of sources as layers",
        ),
        (lambda: write_sweep(None, {}), "folder: got NoneType, allowed is a path"),  # type: ignore[arg-type]
        (lambda: check_sweep(3), "folder: got int, allowed is a path"),  # type: ignore[arg-type]
        (lambda: sweep({}, seed=-1), "seed: got -1, allowed is a whole number, not negative"),
    ],
)
def test_another_kind_of_argument_is_one_sentence(call: Any, words: str) -> None:
    with pytest.raises(ValueError) as caught:
        call()
    assert str(caught.value) == words


def test_bytes_of_any_kind_and_lists_of_layers_are_taken() -> None:
    data = single_op_model(small())
    assert read_model(bytearray(data)) == read_model(memoryview(data)) == read_model(data)
    assert read_model(write_model([small()])).network.inputs == ((-1,),)
    assert repr(read_model(data)) == "Model(1 operator, 4 tensors, 3 buffers)"


def test_scales_and_zero_points_are_listed() -> None:
    one = small(
        input_q=QuantParams(0.5, 3),
        weight_q=QuantParams((0.25, 0.125)),
        output_q=QuantParams(2.0, -7),
    )
    model = read_model(single_op_model(one))
    assert model.quantization().splitlines() == [
        "Tensor    0 : scale 0.5 | zero point 3 (input)",
        "Tensor    1 : scale 0.125 to 0.25, 2 on axis 0 | zero point 0 (weights)",
        "Tensor    2 : scale 0.0625 to 0.125, 2 on axis 0 | zero point 0 (bias)",
        "Tensor    3 : scale 2 | zero point -7 (output)",
    ]
    row = model.parameters.loc[0]
    assert (
        row.input_scale,
        row.input_zero_point,
        row.weight_scale,
        row.output_scale,
        row.output_zero_point,
    ) == (0.5, 3, (0.25, 0.125), 2.0, -7)


def test_what_is_around_a_layer_may_be_of_any_kind() -> None:
    graph = unpack(single_op_model(Pool2D("min", (2, 2), (5, 5, 2), padding=((1, 0), (0, 0)))))
    for number, changes in (
        (0, {"shape": (1, 5)}),
        (1, {"dtype": "float32"}),
        (1, {"dtype": "int32"}),
        (3, {"shape": ()}),
    ):
        tensors = (
            *graph.tensors[:number],
            replace(graph.tensors[number], **changes),
            *graph.tensors[number + 1 :],
        )
        with pytest.raises(ValueError, match=r"^operator \d, "):
            read_model(pack(replace(graph, tensors=tensors))).layers  # noqa: B018


def test_a_bias_that_is_left_out_is_zero() -> None:
    (conv,) = unpack(single_op_model(small())).operators
    assert changed(operators=(replace(conv, inputs=(0, 1)),)).layers[0].bias.tolist() == [0, 0]


@cache
def sound() -> tuple[bytes, ...]:
    """Models of every kind of part: both forms, options, quantization, several graphs, operators
    of no layer.
    """
    layers = [swept(op).layers[0] for op in ("conv", "fully_connected", "add")] + [
        Pool2D(
            "min", (2, 3), (5, 5, 2), padding=((1, 1), (0, 1)), activation="relu", dtype="float16"
        )
    ]
    graph = unpack(single_op_model(layers[0]))
    other = replace(
        graph,
        name="other",
        operators=(Operator("CUSTOM(x)", (0, -1), (1,)), Operator("IF", (0,), (1,))),
    )
    return (
        *(single_op_model(layer, form=form) for layer in layers for form in ("tflite", "circle")),
        pack(replace(graph, others=(other,))),
        pack(replace(graph, form="circle", others=(other, other))),
    )


def is_read(data: bytes) -> bool:
    """Whether a file can be read; what can be, can be listed, and has layers or says why not."""
    said = ""
    try:
        model = read_model(data)
    except ValueError as error:
        said = str(error)
    if (
        said
    ):  # the table, the operator or the tensor, what is wrong with it, and where a file is cut
        assert re.match(WORDS, said), said
        return False
    assert str(model)
    assert model.listing("later")
    assert len(model.rows) == sum(len(one.operators) for one in model.graphs)
    with suppress(ValueError):
        model.network  # noqa: B018
    return True


WHERE = rf"({'|'.join(TABLES)}|buffer)(, [a-z_0-9]+)?"
WORDS = (
    rf"^(identifier: got |model: got version |{WHERE}: got \d+ bytes? at offset -?\d+, allowed is inside the file of \d+; the file "
    rf"is cut off or broken$|{WHERE}: got the same bytes |(graph \d+, )?(tensor|operator) \d+[,:] "
    r"|(inputs|outputs) of (the model|graph \d+): got -?\d+, allowed)"
)


def with_words(value: int, data: bytes, places: range) -> Counter[bool]:
    """How many files are read with one word of them another."""
    return Counter(
        is_read(data[:at] + value.to_bytes(4, "little") + data[at + 4 :]) for at in places
    )


# offsets past the end and, with a sign, behind; counts that are huge; offsets to themselves
VALUES = (2**32 - 1, 2**31, 2**31 - 1, 2**24, 0, 1)


def test_words_may_be_others() -> None:
    for number, data in enumerate(sound()):
        for place, value in enumerate(VALUES):
            found = with_words(
                value, data, range(4 * ((number + place) % 13), len(data) - 3, 4 * 13)
            )
            assert found[False] > 0 or value < 2


@pytest.mark.long
@pytest.mark.parametrize("value", VALUES)
def test_every_word_may_be_another(value: int) -> None:
    for data in sound():
        with_words(value, data, range(0, len(data) - 3, 2))


@pytest.mark.parametrize("count", [500, pytest.param(10_000, marks=pytest.mark.long)])
def test_damaged_files_are_refused_or_read(count: int) -> None:
    """Neither takes much memory."""
    found: Counter[bool] = Counter()
    for seed in range(count):
        data = damage(sound()[seed % len(sound())], seed)
        tracemalloc.start()
        try:
            found[is_read(data)] += 1
            assert tracemalloc.get_traced_memory()[1] < 2**26, seed
        except Exception as error:
            error.add_note(f"damage(sound()[{seed % len(sound())}], {seed})")
            raise
        finally:
            tracemalloc.stop()
    assert min(found[True], found[False]) > 50


def shared_tables(operators: int, inputs: int, name: str = "x") -> bytes:
    """A file of one table of an operator again and again, and of one tensor for all its inputs."""
    builder = flatbuffers.Builder(64)
    tensor = _pack_table(builder, "Tensor", {"name": name})
    operator = _pack_table(builder, "Operator", {"code": 0, "inputs": (0,) * inputs})
    code, buffer = (
        _pack_table(builder, "OperatorCode", {"code": 18}),
        _pack_table(builder, "Buffer", {}),
    )

    def vector(place: int, count: int = 1) -> int:
        builder.StartVector(4, count, 4)
        for _ in range(count):
            builder.PrependUOffsetTRelative(place)
        return int(builder.EndVector())

    def table(parts: dict[int, int], version: int = 0) -> int:
        builder.StartObject(5)
        builder.PrependUint32Slot(0, version, 0)
        for slot, place in parts.items():
            builder.PrependUOffsetTRelativeSlot(slot, place, 0)
        return int(builder.EndObject())

    graph = table({0: vector(tensor), 3: vector(operator, operators)})
    builder.Finish(table({1: vector(code), 2: vector(graph), 4: vector(buffer)}, 3), b"TFL3")
    return bytes(builder.Output())


@pytest.mark.parametrize(
    ("operators", "inputs", "name"),
    [(3000, 3000, "x"), (500, 700, "x"), (5_000, 40, "x"), (1, 20_000, "x" * 20_000)],
)
def test_operators_that_share_their_bytes_are_no_trap(
    operators: int, inputs: int, name: str
) -> None:
    data = shared_tables(operators, inputs, name)
    tracemalloc.start()
    with pytest.raises(
        ValueError, match=r"^(Operator|operator)\b.*: got the same bytes again and again"
    ):
        str(read_model(data))
    assert tracemalloc.get_traced_memory()[1] < 2**26
    tracemalloc.stop()
    assert len(read_model(shared_tables(20, 30)).operators) == 20


def test_tables_that_share_their_bytes_are_no_trap() -> None:
    builder = flatbuffers.Builder(1024)
    place, copies = _pack_table(builder, "Tensor", {"name": "x" * 10_000}), 4_000
    for slots, number in (
        (5, 0),
        (5, 2),
    ):  # as the tensors of a graph, that as the graphs of a model
        builder.StartVector(4, copies, 4)
        for _ in range(copies):
            builder.PrependUOffsetTRelative(place)
        vector, copies = builder.EndVector(), 1
        builder.StartObject(slots)
        builder.PrependUOffsetTRelativeSlot(number, vector, 0)
        place = builder.EndObject()
    builder.Finish(place, b"TFL3")
    with pytest.raises(
        ValueError,
        match=r"^Tensor, name: got the same bytes again and again at offset \d+, allowed are values that take \d+ bytes of memory in all$",
    ):
        read_model(bytes(builder.Output()))


# sweeps


def test_sweep_is_written_for_a_board(tmp_path: Path) -> None:
    made = write_sweep(
        tmp_path / "sweep",
        {"kernel": [1, 3, 5], "input": [4], "padding": ["valid"], "dtype": ["int8", "uint8"]},
    )
    assert repr(made) == "Sweep(4 models, 2 points skipped)"
    point, reason = made.skipped[0]
    assert point == {"kernel": 5, "input": 4, "padding": "valid", "dtype": "int8"}
    assert (
        reason
        == "input_shape: got (4, 4, 4), too small for a kernel of (5, 5) with padding valid; allowed H x W is at least 5 x 5"
    )
    rows = list(csv.DictReader((tmp_path / "sweep" / "parameters.csv").read_text().splitlines()))
    assert [(row["model"], row["kernel_h"], row["dtype"], row["rule"]) for row in rows] == [
        ("000.tflite", "1", "int8", "tflite-reference"),
        ("001.tflite", "1", "uint8", "tflite-reference"),
        ("002.tflite", "3", "int8", "tflite-reference"),
        ("003.tflite", "3", "uint8", "tflite-reference"),
    ]
    for row in rows:
        raw = {
            name: (tmp_path / "sweep" / row[name]).read_bytes()
            for name in ("model", "input", "expected")
        }
        assert {name: hashlib.sha256(data).hexdigest() for name, data in raw.items()} == {
            name: row[f"{name}_sha256"] for name in raw
        }
        (layer,) = read_model(raw["model"]).layers
        x = np.frombuffer(raw["input"], layer.dtype).reshape(1, *layer.input_shape)
        assert npulab.emulate(layer, x).tobytes() == raw["expected"]
        assert litert(raw["model"], x)[0].tobytes() == raw["expected"]
    assert len(list((tmp_path / "sweep").iterdir())) == 13
    assert [path.name for path in tmp_path.iterdir()] == ["sweep"]


def test_outputs_of_a_board_are_read_back(tmp_path: Path) -> None:
    folder, board = tmp_path / "sweep", tmp_path / "board"
    made = write_sweep(folder, {"kernel": [1, 3], "dtype": ["int8", "int16"]})
    board.mkdir()
    for number in (0, 1, 3):
        (board / f"00{number}-output.bin").write_bytes(
            (folder / f"00{number}-expected.bin").read_bytes()
        )
    at = (2, 5, 1)
    raw = np.fromfile(folder / "003-expected.bin", "<i2").reshape(made.layers[3].output_shape)
    raw[at] += 1
    raw.tofile(board / "003-output.bin")
    found = npulab.models.check_sweep(folder, board)
    size = made.layers[0].output_shape
    count = int(np.prod(size))
    assert found.astype(object).to_numpy().tolist() == [
        ["000.tflite", count, 0, None, "equal"],
        ["001.tflite", count, 0, None, "equal"],
        ["002.tflite", 0, 0, None, "missing"],
        ["003.tflite", count, 1, at, "differs"],
    ]
    assert set(check_sweep(folder).verdict) == {"missing"}
    (board / "002-output.bin").write_bytes(b"x")
    with pytest.raises(
        ValueError,
        match=rf"002-output.bin: got 1 byte, allowed is {count} as 002-expected.bin has$",
    ):
        check_sweep(folder, board)
    with pytest.raises(
        FileNotFoundError,
        match=r"board: there is no parameters.csv, allowed is a folder that write_sweep made$",
    ):
        check_sweep(board)


def test_sweep_is_the_same_again_and_another_by_seed() -> None:
    grid = {"dtype": ["int8", "int16"]}
    assert sweep(grid).models == sweep(grid).models
    assert sweep(grid).models != sweep(grid, seed=1).models
    assert np.array_equal(sweep(grid).inputs(1)[0], sweep(grid).inputs(1)[0])


@pytest.mark.parametrize("op", GRIDS)
def test_outputs_of_a_sweep_spread(op: str) -> None:
    """Most outputs are inside the range and many codes occur."""
    made = sweep({**GRIDS[op], "activation": [None], "dtype": ["int8"], "input_c": [32]})
    for number in range(0, len(made), 5):
        got, _ = litert(made.models[number], *made.inputs(number))
        assert np.mean((got == -128) | (got == 127)) < 0.4
        assert len(np.unique(got)) > min(got.size, 256) / 8


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        ({"kernel_x": [1]}, "grid: got 'kernel_x', allowed are op, input_h, "),
        (
            {"dtype": ["int9"]},
            "grid: got dtype 'int9', allowed is one of int8, uint8, int16, float16, float32",
        ),
        (
            {"padding": "smae"},
            "grid: got padding 'smae', allowed is same, valid or ((top, bottom), (left, right))",
        ),
        ({"stride": [0]}, "grid: got stride 0, allowed is a whole number of at least 1"),
        (
            {"kernel": [9], "padding": ["valid"]},
            "grid: got 1 point, none of which has a model: input_shape: got (8, 8, 4), too small",
        ),
        (None, "grid: got None, allowed is values by name, such as {'kernel': [1, 3]}"),
        ([], "grid: got [], allowed is values by name"),
        ("abc", "grid: got 'abc', allowed is values by name"),
        ({"kernel": 1.5}, "grid: got kernel 1.5, allowed is a whole number of at least 1"),
        ({"kernel": []}, "grid: got 0 points, none of which has a model: a name has no values"),
    ],
)
def test_a_grid_that_is_not_so_is_refused(
    grid: dict[str, list[Any]], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError) as caught:
        write_sweep(tmp_path / "sweep", grid)
    assert str(caught.value).startswith(words)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_there_is_kept(tmp_path: Path) -> None:
    with pytest.raises(FileExistsError, match=r"is there already$"):
        write_sweep(tmp_path, {"kernel": [1]})


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(LookupError, match="rule"):
        write_sweep(tmp_path / "sweep", {"kernel": [1]}, rule="no such rule")
    assert not list(tmp_path.iterdir())


# packages


def test_import_loads_no_flatbuffers() -> None:
    code = "import npulab, sys; print([m for m in ('pandas', 'flatbuffers', 'tqdm') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_missing_flatbuffers_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flatbuffers", None)
    with pytest.raises(
        MissingPackage,
        match=r"^writing a model needs flatbuffers, which is not installed: pip install flatbuffers$",
    ):
        single_op_model(small())
