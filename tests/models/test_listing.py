"""Listings of models: those of seed 003 to the character, the later form, rows, circle files,
files of several graphs.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
import pytest
from conftest import shared

from npulab.cli import main
from npulab.models import (
    Graph,
    Model,
    Operator,
    Tensor,
    is_model,
    read_model,
    single_op_model,
    write_model,
)
from npulab.models.facts import CIRCLE_NAMES, FORMS, LISTED, NAMES, OPERATORS, TABLES, TYPES
from npulab.models.file import _pack_table, pack, unpack
from npulab.models.read import OperatorList
from npulab.quant.layers import Add, Conv2D, FullyConnected, Layer
from npulab.quant.rules import QuantParams

TENSOR = re.compile(
    r"Tensor +(\d+) : buffer +(\d+) \| +\w+ \| (\w+) *\| Memory \S+ *\| "
    r"Shape \[([\d, ]+)\] \((.*)\)$"
)


class Block:
    """One operator of a pasted listing: its lines without what the paste left behind them, and
    what they say.
    """

    def __init__(self, lines: list[str]) -> None:
        self.lines = [line.rstrip() for line in lines]
        number, self.name = re.fullmatch(r"Operator (\d+): (\w+)", self.lines[0]).groups()  # type: ignore[union-attr]
        self.number = int(number)
        sides = [
            [int(one) for one in re.search(r"Tensors\[(.*)\]", line)[1].split(",")]  # type: ignore[index]
            for line in self.lines
            if "put Tensors" in line
        ]
        self.inputs, self.outputs = sides
        self.tensors: dict[int, Tensor] = {}
        for line in self.lines:
            if found := TENSOR.search(line):
                tensor, buffer, dtype, shape, name = found.groups()
                sizes = tuple(int(size) for size in shape.split(","))
                self.tensors[int(tensor)] = Tensor(name, sizes, dtype.lower(), int(buffer))


def seed_blocks() -> list[Block]:
    """The operators whose listing is in seed 003."""
    lines = shared("seeds/003_78f469e58df80a91.txt").read_text(encoding="utf-8").splitlines()
    starts = [i for i, line in enumerate(lines) if re.match(r"Operator \d+: ", line)]
    return [
        Block(lines[start : next(i for i in range(start, len(lines)) if not lines[i].strip())])
        for start in starts
    ]


def blocks(text: str) -> dict[str, list[str]]:
    """The lines of each operator of a listing, by the first."""
    return {
        part.splitlines()[0]: part.splitlines()
        for part in text.split("\n\n")
        if part.startswith("Operator")
    }


@pytest.mark.parametrize("which", [0, 1])
def test_a_model_of_one_layer_lists_as_the_seed(which: int) -> None:
    block = seed_blocks()[which]
    x, weights, bias = (block.tensors[number] for number in block.inputs)
    (y,) = (block.tensors[number] for number in block.outputs)
    layer = FullyConnected(
        np.ones(weights.shape, np.int8),
        np.ones(bias.shape),
        weight_q=QuantParams(0.5),
        dtype=x.dtype,
    )
    data = single_op_model(
        layer,
        x.shape[:-1],
        {"input": x.name, "weights": weights.name, "bias": bias.name, "output": y.name},
        weights_as=weights.dtype,
    )
    model = read_model(data)
    (one,) = model.operators
    # tensors and buffers have the numbers of the file
    numbers = dict(zip([*block.inputs, *block.outputs], [*one.inputs, *one.outputs], strict=True))
    lines = [
        re.sub(
            r"Tensors\[(.*)\]",
            lambda m: f"Tensors{[numbers[int(n)] for n in m[1].split(',')]}",
            line,
        )
        for line in block.lines
    ]
    lines = [
        re.sub(
            r"Tensor +(\d+) : buffer +\d+",
            lambda m: (
                f"Tensor {numbers[int(m[1])]:4d} : buffer {model.tensors[numbers[int(m[1])]].buffer:4d}"
            ),
            line,
        )
        for line in lines
    ]
    lines[0] = f"Operator 0: {block.name}"
    assert blocks(str(model))[lines[0]] == lines
    assert len(lines) == 8


# the later form


def window() -> Layer:
    return Conv2D(
        np.ones((2, 3, 3, 1), np.int8),
        [1, -2],
        (8, 8, 1),
        padding="same",
        stride=(1, 2),
        activation="relu6",
    )


def test_the_later_form() -> None:
    assert read_model(single_op_model(window())).listing("later").splitlines() == [
        "[#0 main (MAIN)]",
        "",
        "#0 main (MAIN) input tensors: [0]",
        "    %0    : buffer (Empty)                   | INT8    | Memory 64.0B  | Shape [1, 8, 8, 1] (input)",
        "#0 main (MAIN) output tensors: [3]",
        "    %3    : buffer (Empty)                   | INT8    | Memory 64.0B  | Shape [1, 8, 4, 2] (output)",
        "",
        "#0 CONV_2D",
        "  Fused Activation: RELU6",
        "  Input Tensors[%0, %1, %2]",
        "    %0    : buffer (Empty)                   | INT8    | Memory 64.0B  | Shape [1, 8, 8, 1] (input)",
        "    %1    : buffer (&1   : [[[[ ... ]]]])    | INT8    | Memory 18.0B  | Shape [2, 3, 3, 1] (weights)",
        "    %2    : buffer (&2   : [ 1, -2])         | INT32   | Memory 8.0B   | Shape [2] (bias)",
        "  Output Tensors[%3]",
        "    %3    : buffer (Empty)                   | INT8    | Memory 64.0B  | Shape [1, 8, 4, 2] (output)",
        "  Options",
        "    Stride W:H = 2:1, Dilation W:H = 1:1, Padding = SAME",
        "",
        "Number of all operator types          :    1",
        "  CONV_2D                             :    1",
        "Number of all operators               :    1",
        "",
        "Expected TOTAL  memory: 154.0B",
        "Expected FILLED memory: 26.0B",
    ]


def constants() -> Graph:
    """An operator with little constants of several shapes, one of another size than its type
    has, and one left out.
    """
    tensors = (
        Tensor("scalar", (), "int32", 1),
        Tensor("four", (2, 2), "float32", 2),
        Tensor("five", (5,), "int8", 3),
        Tensor("wrong", (2,), "int64", 1),
        Tensor("text", (1,), "string", 1),
        Tensor("y", (3,), "int4"),
    )
    buffers = (b"", np.int32(-7).tobytes(), np.float32([0.5, 1 / 3, -2, 0]).tobytes(), bytes(5))
    return Graph(tensors, (Operator("CUSTOM(mine)", (0, 1, -1, 2, 3, 4), (5,)),), buffers, (), (5,))


def test_the_later_form_prints_little_constants() -> None:
    lines = read_model(pack(constants())).listing("later").splitlines()
    assert lines[lines.index("#0 CUSTOM(mine)") :][2:10] == [
        "  Input Tensors[%0, %1, %-1, %2, %3, %4]",
        "    %0    : buffer (&1   : -7)               | INT32   | Memory 4.0B   | Shape Scalar (scalar)",
        "    %1    : buffer (&2   : [[ 0.5  ,  0.333], [-2.   ,  0.   ]]) | FLOAT32 | Memory 16.0B  | Shape [2, 2] (four)",
        "    %-1   : (OPTIONAL)",
        "    %2    : buffer (&3   : [ ... ])          | INT8    | Memory 5.0B   | Shape [5] (five)",
        "    %3    : buffer (&1   : [ ... ])          | INT64   | Memory 16.0B  | Shape [2] (wrong)",
        "    %4    : buffer (&1   : [ ... ])          | STRING  | Memory 0.0B   | Shape [1] (text)",
        "  Output Tensors[%5]",
    ]
    earlier = str(read_model(pack(constants()))).splitlines()
    assert earlier[:4] == [
        "Operator 0: CUSTOM(mine)",
        "        Fused Activation: NONE",
        "        Input Tensors[0, 1, -1, 2, 3, 4]",
        "                Tensor    0 : buffer    1 | Filled | INT32   | Memory 4.0B   | Shape Scalar (scalar)",
    ]
    assert earlier[5] == "                Tensor   -1"
    assert earlier[10].split("|")[3].strip() == "Memory 2.0B"  # three elements of four bits


def test_another_form_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^form: got 'newest', allowed is earlier or later$"):
        constants().listing("newest")


def test_a_name_stays_on_its_line() -> None:
    graph = constants()
    tensors = (replace(graph.tensors[0], name="a\nOperator 9: ADD\x1b[2J"), *graph.tensors[1:])
    graph = replace(
        graph,
        tensors=tensors,
        name="b\rc",
        operators=(replace(graph.operators[0], name="CUSTOM(x\ny)"),),
    )
    for form in ("earlier", "later"):
        text = graph.listing(form)
        assert len(text.splitlines()) == len(constants().listing(form).splitlines())
        assert "\x1b" not in text
        assert r"(a\nOperator 9: ADD\x1b[2J)" in text


@pytest.mark.parametrize(
    ("name", "options", "lines"),
    [
        (
            "STRIDED_SLICE",
            {
                "begin_mask": 1,
                "end_mask": 2,
                "ellipsis_mask": 0,
                "new_axis_mask": 4,
                "shrink_axis_mask": 8,
            },
            [
                "Fused Activation: NONE",
                "begin_mask(1), end_mask(2), ellipsis_mask(0), new_axis_mask(4), shrink_axis_mask(8)",
            ],
        ),
        ("MUL", {"activation": 3}, ["Fused Activation: RELU6"]),
        ("SUB", {"activation": 4}, ["Fused Activation: TANH"]),
        (
            "TRANSPOSE_CONV",
            {"stride_w": 2, "stride_h": 2, "activation": 1},
            ["Fused Activation: RELU"],
        ),
        ("LSTM", {"activation": 4, "cell_clip": 0.5}, ["Fused Activation: TANH"]),
        ("WHILE", {"condition_graph": 0}, ["Fused Activation: NONE"]),
        ("L2_POOL_2D", {"activation": 9}, ["Fused Activation: 9"]),
        ("SOFTMAX", {}, ["Fused Activation: NONE"]),
    ],
)
def test_activations_and_options(name: str, options: dict[str, Any], lines: list[str]) -> None:
    graph = Graph(
        (Tensor("x", (1,), "float32"),),
        (Operator(name, (0,), (0,), options),),
        inputs=(0,),
        outputs=(0,),
    )
    model = read_model(pack(graph))
    assert options.items() <= model.operators[0].options.items()
    found = [line.strip() for line in str(model).splitlines()]
    found = [
        line for line in found if line.startswith(("Fused", "begin", "Stride", "Filter", "Options"))
    ]
    assert [line for line in found if line != "Options"] == lines
    assert ("Options" in found) == (len(lines) > 1)


def test_options_of_another_number_are_not_known() -> None:
    for name, number in (("MUL", 18), ("CONV_2D", 3)):
        operator = {
            "code": 0,
            "inputs": (),
            "outputs": (),
            "options_type": 14,
            "options": ("LSTMOptions", {"activation": 3}),
        }
        data = of_parts("tflite", [{"code": number}], operators=[operator])
        if name == "MUL":
            assert unpack(data).operators[0].options == {}
            assert "Fused Activation: NONE" in str(unpack(data))
            continue
        with pytest.raises(
            ValueError, match=r"^operator 0, CONV_2D: got options of type 14, allowed is 1$"
        ):
            unpack(data)


# files of several graphs


def several(form: str = "tflite") -> Graph:
    """A loop of three graphs, whose buffers are common."""
    buffers = (b"", np.int32([1, 2]).tobytes())
    x = Tensor("x", (2,), "int32")
    body = Graph(
        (
            replace(x, name="in"),
            Tensor("c", (2,), "int32", 1),
            replace(x, name="out", scale=(0.5,), zero_point=(0,)),
        ),
        (Operator("ADD", (0, 1), (2,), {"activation": 1, "pot_scale_int16": False}),),
        buffers,
        (0,),
        (2,),
        name="body",
        form=form,
    )
    condition = Graph(
        (x, Tensor("y", (), "bool")),
        (Operator("LESS", (0, 0), (1,)),),
        buffers,
        (0,),
        (1,),
        name="",
        form=form,
    )
    first = Operator("WHILE", (0,), (1,), {"condition_graph": 1, "body_graph": 2})
    return Graph(
        (x, replace(x, name="z")),
        (first,),
        buffers,
        (0,),
        (1,),
        form=form,
        others=(condition, body),
    )


@pytest.mark.parametrize("form", FORMS)
def test_every_graph_is_listed(form: str) -> None:
    model = read_model(pack(several(form)))
    assert unpack(pack(several(form))) == several(form)
    assert len(model.graphs) == 3
    assert repr(model) == "Model(1 operator, 2 tensors, 2 buffers, the first of 3 graphs)"
    text = str(model).splitlines()
    assert [line for line in text if line.startswith(("[", "Operator"))] == [
        "[#0 main (MAIN)]",
        "Operator 0: WHILE",
        "[#1 ]",
        "Operator 0: LESS",
        "[#2 body]",
        "Operator 0: ADD",
    ]
    assert text.count("Number of all operator types: 1") == 3
    assert "#2 body input tensors: [0]" in model.listing("later").splitlines()
    assert model.quantization() == "Graph 2 Tensor    2 : scale 0.5 | zero point 0 (out)"
    assert [
        (row["graph"], row["index"], row["name"], row["fused_activation"]) for row in model.rows
    ] == [(0, 0, "WHILE", "NONE"), (1, 0, "LESS", "NONE"), (2, 0, "ADD", "RELU")]
    assert model.rows[0]["options"] == {"condition_graph": 1, "body_graph": 2}
    with pytest.raises(ValueError, match=r"^operator 0, WHILE: is part of no layer"):
        model.layers  # noqa: B018


def test_layers_are_those_of_the_first_graph() -> None:
    graph = unpack(single_op_model(window()))
    model = read_model(
        pack(replace(graph, others=(replace(several().others[0], buffers=graph.buffers),)))
    )
    assert len(model.layers) == 1
    assert len(model.network.layers) == 1
    with pytest.raises(
        ValueError,
        match=r"^others: got a graph with buffers of its own, allowed are those of the first graph$",
    ):
        pack(replace(graph, others=several().others))


def test_an_error_names_the_graph() -> None:
    graph = several()
    bad = replace(graph.others[1], operators=(Operator("ADD", (0, 7), (2,)),))
    with pytest.raises(
        ValueError, match=r"^graph 2, operator 0, ADD: inputs: got 7, allowed is -1 to 2$"
    ):
        read_model(pack(replace(graph, others=(graph.others[0], bad))))
    with pytest.raises(ValueError, match=r"^outputs of graph 1: got 9, allowed is 0 to 1$"):
        read_model(
            pack(replace(graph, others=(replace(graph.others[0], outputs=(9,)), graph.others[1])))
        )


def test_the_generated_schema_reads_what_is_written() -> None:
    schema = pytest.importorskip("ai_edge_litert.schema_py_generated")
    found = schema.ModelT.InitFromPackedBuf(pack(several()))
    assert (found.version, [one.name for one in found.subgraphs]) == (3, [b"main", b"", b"body"])
    codes = [
        found.operatorCodes[one.operators[0].opcodeIndex].builtinCode for one in found.subgraphs
    ]
    assert codes == [
        schema.BuiltinOperator.WHILE,
        schema.BuiltinOperator.LESS,
        schema.BuiltinOperator.ADD,
    ]
    loop, add = found.subgraphs[0].operators[0], found.subgraphs[2].operators[0]
    assert (loop.builtinOptions.condSubgraphIndex, loop.builtinOptions.bodySubgraphIndex) == (1, 2)
    assert (add.builtinOptions.fusedActivationFunction, add.builtinOptions.potScaleInt16) == (
        1,
        False,
    )
    assert found.subgraphs[2].tensors[1].shape.tolist() == [2]


def test_what_the_generated_schema_writes_is_read() -> None:
    """With all that is not kept here: signatures, unknown sizes, options of custom operators,
    metadata.
    """
    schema = pytest.importorskip("ai_edge_litert.schema_py_generated")

    def made(table: str, **fields: Any) -> Any:
        out = getattr(schema, f"{table}T")()
        vars(out).update(fields)
        return out

    operators, custom = schema.BuiltinOperator, schema.BuiltinOperator.CUSTOM
    codes = [
        made(
            "OperatorCode",
            builtinCode=operators.STABLEHLO_CASE,
            deprecatedBuiltinCode=127,
            version=2,
        ),
        made(
            "OperatorCode",
            builtinCode=custom,
            deprecatedBuiltinCode=custom,
            customCode="TFLite_Detection",
        ),
    ]
    case = made(
        "Operator",
        inputs=[0, -1],
        outputs=[1],
        builtinOptions2Type=schema.BuiltinOptions2.StablehloCaseOptions,
        builtinOptions2=made("StablehloCaseOptions"),
    )
    other = made("Operator", opcodeIndex=1, inputs=[1], outputs=[0], customOptions=[1, 2, 3])
    tensors = [
        made("Tensor", shape=[1, 5], shapeSignature=[-1, 5], name="in", hasRank=True),
        made(
            "Tensor",
            shape=[3],
            type=schema.TensorType.INT4,
            name="out",
            buffer=1,
            quantization=made("QuantizationParameters", scale=[0.5], zeroPoint=[-1]),
            isVariable=True,
        ),
    ]
    graph = made(
        "SubGraph",
        tensors=tensors,
        operators=[case, other],
        inputs=[0],
        outputs=[1],
        name="g",
    )
    model = made(
        "Model",
        version=3,
        operatorCodes=codes,
        subgraphs=[graph],
        buffers=[made("Buffer"), made("Buffer", data=[1, 2])],
        description="made elsewhere",
        signatureDefs=[made("SignatureDef", signatureKey="serving_default")],
    )
    builder = flatbuffers.Builder(64)
    builder.Finish(model.Pack(builder), b"TFL3")
    assert unpack(bytes(builder.Output())) == Graph(
        (Tensor("in", (1, 5), "float32"), Tensor("out", (3,), "int4", 1, (0.5,), (-1,))),
        (
            Operator("STABLEHLO_CASE", (0, -1), (1,), {}, 2),
            Operator("CUSTOM(TFLite_Detection)", (1,), (0,)),
        ),
        (b"", b"\1\2"),
        (0,),
        (1,),
        "made elsewhere",
        "g",
    )


# circle


def test_a_circle_file_is_the_same_model() -> None:
    for layer in (
        window(),
        Add((2, 2, 1), "relu"),
        FullyConnected(np.ones((3, 5), np.float16), np.ones(3)),
    ):
        circle, tflite = (
            read_model(single_op_model(layer, 2, form=form)) for form in ("circle", "tflite")
        )
        assert (circle.form, tflite.form) == ("circle", "tflite")
        assert replace(circle, form="tflite") == tflite
        assert str(circle) == str(tflite)
        assert type(circle.layers[0]) is type(layer)
        assert unpack(pack(unpack(single_op_model(layer, form="circle")))) == unpack(
            single_op_model(layer, form="circle")
        )
    assert write_model([window()], form="circle")[4:8] == b"CIR0"
    assert read_model(write_model([window()], form="circle")).network.layers[0].op == "conv"


OWN = {
    252: "BCQ_GATHER",
    253: "BCQ_FULLY_CONNECTED",
    254: "INSTANCE_NORM",
    251: "GRU",
    250: "RMS_NORM",
}


@pytest.mark.parametrize("number", [*OWN, -2, -3, -4, -5, -6])
def test_circles_own_operators_have_two_numbers(number: int) -> None:
    """The byte of older files, which has no sign or is read with one, and the word of newer
    ones.
    """
    name = OWN[number % 256]
    signed = number
    if number > 0:
        signed -= 256
    # a tflite file takes the larger of two numbers, unless one of them is negative
    for code, plain in (
        ({"old_code": signed}, signed),
        ({"code": number}, number),
        ({"code": number, "old_code": 127}, number),
    ):
        model = unpack(coded("circle", code))
        assert model.operators[0].name == name
        assert not any(model.operators[0].options.values())
        assert unpack(pack(model)) == model
        assert unpack(coded("tflite", code)).operators[0].name == str(plain)


def coded(form: str, code: dict[str, int]) -> bytes:
    """A model of one operator that has these numbers."""
    return of_parts(form, [code], operators=[{"code": 0, "inputs": (), "outputs": ()}])


def of_parts(form: str, codes: Any = (), **parts: Any) -> bytes:
    """A model of one graph that has these tables."""
    identifier, version = FORMS[form]
    builder = flatbuffers.Builder(64)
    builder.Finish(
        _pack_table(
            builder,
            "Model",
            {"version": version, "codes": codes, "buffers": [{}], "graphs": [parts]},
        ),
        identifier,
    )
    return bytes(builder.Output())


@pytest.mark.parametrize(
    "number", [0, 2, 127, 128, 200, 255, 257, 259, 2**31 - 1, -1, -128, -129, -(2**31)]
)
@pytest.mark.parametrize("form", FORMS)
def test_every_number_of_an_operator_is_kept(form: str, number: int) -> None:
    model = unpack(coded(form, {"code": number}))
    own = {250: "RMS_NORM"} if form == "circle" else {}
    assert model.operators[0].name == own.get(
        number, NAMES[number] if 0 <= number < 210 else str(number)
    )
    assert unpack(pack(model)) == model


def test_an_operator_or_type_of_another_form_is_refused() -> None:
    x = Tensor("x", (32,), "ggml_q4_0")
    with pytest.raises(
        ValueError, match=r"^x: got type ggml_q4_0, allowed in a .tflite is one of float32, "
    ):
        pack(Graph((x,), ()))
    with pytest.raises(
        ValueError,
        match=r"^operator: got GRU, allowed in a .tflite are the names of its operators, numbers and CUSTOM",
    ):
        pack(Graph((), (Operator("GRU", (), ()),)))
    with pytest.raises(ValueError, match=r"^tensor 0, x: type: got -2, allowed is 0 to 22$"):
        unpack(of_parts("tflite", tensors=[{"shape": (32,), "type": -2, "buffer": 0, "name": "x"}]))
    assert unpack(
        of_parts("circle", tensors=[{"shape": (32,), "type": -2, "buffer": 0, "name": "x"}])
    ).tensors == (x,)


@pytest.mark.parametrize(
    ("dtype", "shape", "size"),
    [
        ("int2", (5,), 2),
        ("int4", (3, 3), 5),
        ("uint4", (4,), 2),
        ("float8_e4m3fn", (7,), 7),
        ("bfloat16", (3,), 6),
        ("bool", (3,), 3),
        ("complex128", (2,), 32),
        ("string", (9,), 0),
        ("ggml_q4_0", (2, 32), 36),
        ("ggml_q4_1", (64,), 40),
        ("ggml_q8_0", (32,), 34),
        ("ggml_q8_1", (32,), 36),
        ("mxfp4", (32,), 17),
        ("mxint8", (4, 32), 132),
        ("float64", (), 8),
        ("float16", (0, 5), 0),
    ],
)
def test_the_memory_of_every_type(dtype: str, shape: tuple[int, ...], size: int) -> None:
    one = Tensor("x", shape, dtype)
    assert one.memory == size
    form = "tflite" if dtype in TYPES else "circle"
    assert unpack(pack(Graph((one,), (), form=form))).tensors == (one,)


# our names of fields that are not part of theirs
SPELT = {
    "multiplier": "depthmultiplier",
    "kernelw": "filterwidth",
    "kernelh": "filterheight",
    "from": "indatatype",
    "to": "outdatatype",
    "thengraph": "thensubgraphindex",
    "elsegraph": "elsesubgraphindex",
    "conditiongraph": "condsubgraphindex",
    "bodygraph": "bodysubgraphindex",
}


def test_numbers_are_those_of_the_generated_schema() -> None:
    schema = pytest.importorskip("ai_edge_litert.schema_py_generated")
    assert {one: number for number, one in enumerate(NAMES)} == numbers(schema.BuiltinOperator)
    assert {one.upper(): number for number, one in enumerate(TYPES)} == numbers(schema.TensorType)
    kinds = numbers(schema.BuiltinOptions)
    same = {
        "MulOptions": ("MulOptions", "DivOptions", "L2NormOptions"),
        "AddOptions": ("AddOptions", "SubOptions"),
    }
    for name, (number, options, kind) in (OPERATORS | LISTED).items():
        if name in CIRCLE_NAMES:
            assert number == -2 - CIRCLE_NAMES.index(name)
            continue
        assert number == numbers(schema.BuiltinOperator)[name]
        assert options in [kinds[one] for one in same.get(kind, (kind,))]
        # fields in their order, and some that came later are not known here
        theirs = [one.lower() for one in vars(getattr(schema, f"{kind}T")())]
        ours = [one.partition(":")[0].replace("_", "") for one in TABLES[kind].split()]
        assert all(SPELT.get(a, a) in b for a, b in zip(ours, theirs, strict=False)), (ours, theirs)
        assert len(ours) <= len(theirs) <= len(ours) + 2


def numbers(enum: Any) -> dict[str, int]:
    return {name: number for name, number in vars(enum).items() if isinstance(number, int)}


# from the shell


def shown(capsys: pytest.CaptureFixture[str], *arguments: Any) -> tuple[int, str, str]:
    status = main([str(one) for one in arguments])
    return status, *capsys.readouterr()


def json_rows(capsys: pytest.CaptureFixture[str], path: Path) -> list[dict[str, Any]]:
    """The lines that are shown as JSON, in which infinity is a text."""
    _, out, _ = shown(capsys, "show", path, "--form", "later", "--json")
    return [json.loads(line, parse_constant=pytest.fail) for line in out.splitlines()]


@pytest.mark.parametrize("form", FORMS)
def test_a_model_is_shown(form: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / f"m.{form}"
    path.write_bytes(single_op_model(window(), form=form))
    model = read_model(path)
    assert is_model(path)
    assert isinstance(model, Model)
    assert shown(capsys, "show", path) == (0, f"{OperatorList(model)}\n", "")
    for which in ("earlier", "later"):
        text = f"{model.listing(which)}\n\n{model.quantization()}\n"
        assert shown(capsys, "show", path, "--form", which) == (0, text, "")
    (row,) = json_rows(capsys, path)
    assert model.rows[0].items() <= row.items()
    assert (row["kernel_h"], row["fused_activation"], row["activation"]) == (3, "RELU6", "relu6")
    assert row["inputs"][1] == {
        "tensor": 1,
        "name": "weights",
        "type": "int8",
        "shape": [2, 3, 3, 1],
        "memory": 18,
        "buffer": 1,
        "filled": True,
        "scale": [1.0],
        "zero_point": [0],
        "axis": 0,
    }


def test_every_operator_of_a_model_is_a_row(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "m"
    path.write_bytes(pack(several()))
    rows = json_rows(capsys, path)
    assert [(row["graph"], row["name"], len(row["inputs"])) for row in rows] == [
        (0, "WHILE", 1),
        (1, "LESS", 2),
        (2, "ADD", 2),
    ]
    odd = {"scale": (np.inf, np.nan), "zero_point": (0, 0)}
    tensors = [replace(one, **odd) for one in constants().tensors]
    path.write_bytes(pack(replace(constants(), tensors=tuple(tensors))))
    (row,) = json_rows(capsys, path)
    assert row["inputs"][2] is None
    assert row["inputs"][0]["scale"] == ["inf", "nan"]


def test_what_is_no_model_has_no_form(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "x").write_text("no")
    status, out, err = shown(capsys, "show", tmp_path / "x", "--form", "later")
    assert (status, out) == (2, "")
    assert (
        err
        == f"npulab: --form: got {tmp_path / 'x'}, allowed is a TensorFlow Lite or circle model\n"
    )


@pytest.mark.parametrize("options", [(), ("--json",), ("--form", "later")])
@pytest.mark.parametrize("form", FORMS)
def test_a_broken_model_is_one_sentence(
    form: str, options: tuple[str, ...], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "broken.tflite"
    path.write_bytes(single_op_model(window(), form=form)[:100])
    status, out, err = shown(capsys, "show", path, *options)
    assert (status, out) == (2, "")
    assert re.fullmatch(
        rf"npulab: {path}: \w+, \w+: got \d+ bytes? at offset \d+, allowed is inside the file of 100; the file is cut "
        r"off or broken\n",
        err,
    )
