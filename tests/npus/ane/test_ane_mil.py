"""MIL text: written and read, refused with line and column, checked, run, and its quirks told."""

from __future__ import annotations

import itertools
import math
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from npulab.npus.ane.training import blobs, mil
from npulab.npus.ane.training.mil import File, Function, Operation, Program, Type, Value, reading
from npulab.npus.ane.training.mil.operations import OPERATIONS
from npulab.npus.ane.training.mil.values import DTYPES
from npulab.npus.ane.training.programs import build_info

STRING = Type("string", plain=True)


def program(
    *lines: str,
    inputs: str = "tensor<fp16, [1, 4, 1, 32]> x",
    outputs: str = "y",
    version: str = "1.3",
) -> str:
    return "\n".join(
        [
            f"program({version})",
            "{",
            f"    func main<ios18>({inputs}) {{",
            *(f"        {line}" for line in lines),
            f"    }} -> ({outputs});",
            "}",
            "",
        ]
    )


def ran(
    *lines: str,
    inputs: str = "",
    given: dict[str, Any] | None = None,
    outputs: str = "y",
    file: bytes | None = None,
    float64: bool = True,
) -> Any:
    found = mil.run(
        mil.read(program(*lines, inputs=inputs, outputs=outputs)),
        given or {},
        file,
        float64=float64,
    )
    return found[outputs] if "," not in outputs else found


# Text


def test_text_of_the_training() -> None:
    """A constant, a weight, an operation and the header, letter by letter."""
    half = Type("fp16", (1, 4, 1, 32))
    lines = (
        Operation(
            "const",
            (("gr", Type("int32", plain=True)),),
            (),
            (("name", Value(STRING, "gr")), ("val", Value(Type("int32", plain=True), 1))),
        ),
        Operation(
            "const",
            (("st", Type("int32", (2,))),),
            (),
            (("name", Value(STRING, "st")), ("val", Value(Type("int32", (2,)), (1, 1)))),
        ),
        Operation(
            "const",
            (("W", Type("fp16", (4, 4, 1, 1))),),
            (),
            (
                ("name", Value(STRING, "W")),
                ("val", Value(Type("fp16", (4, 4, 1, 1)), File("@model_path/weights/wq.bin", 64))),
            ),
        ),
        Operation(
            "concat",
            (("out", half),),
            (("axis", "gr"), ("values", ("x", "x"))),
            (("name", Value(STRING, "cat")),),
        ),
    )
    whole = Program(
        (Function((("x", half),), lines, ("out",)),),
        "1.3",
        (build_info({"coremlc-version": "3505.4.1", "a": ""}),),
    )
    assert mil.write(whole) == (
        'program(1.3)\n[buildInfo = dict<string, string>({{"coremlc-version", "3505.4.1"}, {"a", ""}})]\n{\n'
        "    func main<ios18>(tensor<fp16, [1, 4, 1, 32]> x) {\n"
        '        int32 gr = const()[name=string("gr"), val=int32(1)];\n'
        '        tensor<int32, [2]> st = const()[name=string("st"), val=tensor<int32, [2]>([1,1])];\n'
        '        tensor<fp16, [4,4,1,1]> W = const()[name=string("W"), val=tensor<fp16, [4,4,1,1]>(BLOBFILE('
        'path=string("@model_path/weights/wq.bin"), offset=uint64(64)))];\n'
        '        tensor<fp16, [1,4,1,32]> out = concat(axis=gr,values=(x,x))[name=string("cat")];\n'
        "    } -> (out);\n}\n"
    )
    assert mil.read(mil.write(whole)) == whole
    assert whole.build_info == {"coremlc-version": "3505.4.1", "a": ""}
    assert [line.line for line in mil.read(mil.write(whole))["main"].operations] == [5, 6, 7, 8]


def test_text_of_version_1_0() -> None:
    """Tensors without axes where 1.3 has plain types, blanks and comments anywhere, bare
    literals.
    """
    text = """program(1.0)
[buildInfo = dict<tensor<string, []>, tensor<string, []>>({{"coremlc-version", "3505.4.1"}})]
{
    func main<ios16>(tensor<fp16, [1, 2, 1, ?]> x)
            [FlexibleShapeInformation = tuple<tuple<tensor<string, []>, dict<tensor<string, []>, tensor<int32, [?]>>>>
             ((("DefaultShapes", {{"x", [1, 2, 1, 32]}})))] {
        // what a comment says: } -> ( "
        tensor<fp16, []> h = const()[name = tensor<string, []>("h"), val = tensor<fp16, []>(-0x1.8p-1)];
        tensor<fp16,[2,2,1,1]> W=const()[name=tensor<string,[]>("W"),val=tensor<fp16,[2,2,1,1]>(BLOBFILE(
            path = tensor<string, []>("@model_path/weights/weight.bin"), offset = tensor<uint64, []>(64)))];
        tensor<bool, []> no = const()[name = tensor<string, []>("no"), val = tensor<bool, []>(false)];
        tensor<int32, [2, 2]> nested = const()[val = tensor<int32, [2, 2]>([[1, -2], [0x10, 4]])];
        tensor<string, [2]> words = const()[val = tensor<string, [2]>(["a, [b]", "\\"\\\\\\n"])];
        tensor<fp16, [1, 2, 1, ?]> p, tensor<fp16, [1, 0, 1, ?]> q = split(x = x, axis = 1, sizes = [2, 0], flag = true);
        tensor<fp16, [1, 2, 1, ?]> y = mul(x = p, y = h)[name = tensor<string, []>("y")];
    } -> (y, q);
    func other<ios17>() { } -> ();
}
"""
    found = mil.read(text)
    main = found["main"]
    assert (found.version, main.target, main.outputs) == ("1.0", "ios16", ("y", "q"))
    assert found.build_info == {"coremlc-version": "3505.4.1"}
    assert main.inputs == (("x", Type("fp16", (1, 2, 1, None))),)
    values = [operation.value for operation in main.operations]
    assert values[0] == Value(Type("fp16"), -0.75)
    assert values[1] == Value(
        Type("fp16", (2, 2, 1, 1)), File("@model_path/weights/weight.bin", 64, plain=False)
    )
    assert values[3] == Value(Type("int32", (2, 2)), (1, -2, 16, 4))
    assert values[4] == Value(Type("string", (2,)), ("a, [b]", '"\\\n'))
    assert [name for name, _ in main.operations[5].outputs] == ["p", "q"]
    assert dict(main.operations[5].arguments)["flag"] == Value(None, True)
    assert main.operations[0].line == 8
    assert mil.read(mil.write(found)) == found
    with pytest.raises(LookupError, match="function: got 'third', allowed is one of main, other"):
        found["third"]


def test_constants_of_arrays() -> None:
    """Numpy's numbers become plain ones, and are checked like them."""
    shape = tuple(np.array([2, 3]))
    value = Value(Type("fp16", shape), np.arange(6, dtype=np.float16).reshape(2, 3))
    assert value == Value(Type("fp16", (2, 3)), [0.0, 1, 2, 3, 4, 5])
    assert repr(value.type) == "Type(dtype='fp16', shape=(2, 3), plain=False)"
    assert Value(Type("int8"), np.int64(5)).data == 5
    with pytest.raises(ValueError, match=r"shape: got \(1.5,\), allowed are whole numbers"):
        Type("fp16", (1.5,))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="value: got 200, allowed for int8 is -128 to 127"):
        Value(Type("int8", (1,)), np.array([200]))
    with pytest.raises(ValueError, match="shape: got 33 axes, allowed are up to 32"):
        Type("fp16", (1,) * 33)


NAMES = st.sampled_from(
    ["x", "y", "_a1", "Wq", "tensor", "fp16", "func", "const", "true1", "inf_", "BLOBFILE", "bool"]
)
NUMBERS = st.floats() | st.sampled_from([0.0, -0.0, 1 / 768, 1e-5, 65504.0, 1e300, 5e-324, -1e16])


@st.composite
def constants(draw: Any) -> Value:
    dtype = draw(st.sampled_from(sorted(DTYPES)))
    letter, bits = DTYPES[dtype]
    low, high = (
        (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if letter == "i" else (0, 2 ** max(bits, 1) - 1)
    )
    one = {
        "f": NUMBERS,
        "b": st.booleans(),
        "s": st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
    }.get(letter, st.integers(low, high))
    shape = draw(st.sampled_from([None, (), (0,), (1,), (3,), (2, 1), (2, 3)]))
    kind = Type(dtype, shape or (), plain=shape is None)
    if shape and draw(st.booleans()):
        return Value(
            kind,
            File(
                draw(st.text('ab/@."\\\n', max_size=5)),
                draw(st.integers(0, 2**64 - 1)),
                draw(st.booleans()),
            ),
        )
    return Value(kind, tuple(draw(one) for _ in range(math.prod(shape))) if shape else draw(one))


DTYPE = st.sampled_from(sorted(DTYPES))
TENSORS = st.builds(Type, DTYPE, st.lists(st.none() | st.integers(0, 9), max_size=4).map(tuple))
TYPES = TENSORS | st.builds(Type, DTYPE, plain=st.just(True))
BARE = st.builds(
    Value,
    st.none(),
    st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False) | st.text("ab\n"),
)
ONE = NAMES | constants() | BARE
ATTRIBUTES = st.lists(st.tuples(NAMES, constants() | BARE), max_size=2).map(tuple)
NAMED = st.tuples(NAMES, TYPES)
LINES = st.builds(
    Operation,
    NAMES,
    st.lists(NAMED, max_size=2).map(tuple),
    st.lists(st.tuples(NAMES, ONE | st.lists(ONE, max_size=3).map(tuple)), max_size=3).map(tuple),
    ATTRIBUTES,
)
FUNCTIONS = st.builds(
    Function,
    st.lists(NAMED, max_size=2).map(tuple),
    st.lists(LINES, max_size=3).map(tuple),
    st.lists(NAMES, max_size=2).map(tuple),
    st.just("main"),
    NAMES,
    ATTRIBUTES,
)
INFOS = st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=2)
PROGRAMS = st.builds(
    Program, st.tuples(FUNCTIONS), st.sampled_from(["1.0", "1.3", "1", "2.10.3"]), ATTRIBUTES
)


@given(PROGRAMS, INFOS)
@settings(max_examples=25)
def test_round_trip(whole: Program, info: dict[str, str]) -> None:
    whole = Program(whole.functions, whole.version, (*whole.attributes, build_info(info)))
    text = mil.write(whole)
    again = mil.read(text)
    assert again == whole
    assert mil.write(again) == text
    if all(name != "buildInfo" for name, _ in whole.attributes[:-1]):
        assert again.build_info == info


@given(st.floats(allow_nan=False))
def test_floats_come_back_exactly(number: float) -> None:
    whole = mil.read(program(f"fp32 y = const()[val=fp32({number!r})];", inputs=""))
    value = mil.read(mil.write(whole))["main"].operations[0].value
    assert value is not None
    assert value.data.hex() == number.hex()


# Refusals


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "line 1, column 1: got the end of the text, allowed is 'program'"),
        ("program(x)", "line 1, column 9: got 'x', allowed is a version, as 1.3"),
        ("program(1e3) { }", "line 1, column 10: got 'e3', allowed is ')'"),
        (
            "program(1..3) { }",
            "line 1, column 1: version: got '1..3', allowed are numbers with dots",
        ),
        (
            program("fp16 true = exp(x=x);"),
            "line 4, column 9: name: got 'true', allowed are letters, digits and _, a digit",
        ),
        ("program(1.3)\n{ } more", "line 2, column 5: got 'more', allowed is the end of the text"),
        ("program(1.3)\n{ \x00 }", "line 2, column 3: got '\\x00', allowed is 'func'"),
        (
            program("tensor<fp17, [1]> y = exp(x=x);"),
            "line 4, column 9: dtype: got 'fp17', allowed is one of fp16, fp32",
        ),
        (
            program("fp17 y = exp(x=x);"),
            "line 4, column 9: got 'fp17', allowed is a type: tensor, dict",
        ),
        (
            program("tensor<fp16, [-1]> y = exp(x=x);"),
            "line 4, column 23: got -1, allowed is a size",
        ),
        (
            program("tensor<fp16, [1.5]> y = exp(x=x);"),
            "line 4, column 23: got 1.5, allowed is a size",
        ),
        (program("exp(x=x)"), "line 5, column 5: got '}', allowed is ';'"),
        (program("fp16 y = exp(x=x)"), "line 5, column 5: got '}', allowed is ';'"),
        (program("fp16 y = exp(x=x;"), "line 4, column 25: got ';', allowed is ',' or ')'"),
        (
            program("fp16 y = exp(x=);"),
            "line 4, column 24: got ')', allowed is a number, a string, true, false or an",
        ),
        (
            program("fp16 y = cond(x=x) { } ;"),
            "line 4, column 28: got '{', allowed is ';' (blocks inside of operations are",
        ),
        (
            program("dict<fp16> y = exp(x=x);"),
            "line 4, column 9: got dict<fp16>, allowed is a tensor or a plain type",
        ),
        (
            program("int32 y = const()[val=int32(1.5)];"),
            "line 4, column 31: value: got '1.5' (float), allowed is a int32",
        ),
        (
            program("int8 y = const()[val=int8(128)];"),
            "line 4, column 30: value: got 128, allowed for int8 is -128 to 127",
        ),
        (
            program("bool y = const()[val=bool(1)];"),
            "line 4, column 30: value: got '1' (int), allowed is a bool",
        ),
        (
            program("tensor<fp16, [3]> y = const()[val=tensor<fp16, [3]>([1,2])];"),
            "line 4, column 43: value: got 2 elements, allowed are the elements of tensor<fp16, [3]>",
        ),
        (
            program("tensor<fp16, [3]> y = const()[val=tensor<fp16, [3]>(1)];"),
            "got one element, allowed are the elements of",
        ),
        (
            program("tensor<fp16, [2]> y = const()[val=tensor<fp16, [2]>([1,e])];"),
            "line 4, column 61: got 'e', allowed is a number of up to 64 letters",
        ),
        (
            program("tensor<fp16, [2, 2]> y = const()[val=tensor<fp16, [2, 2]>([[1,2],[3]])];"),
            "line 4, column 67: got 2 rows, allowed is rows of equal length, as many as the shape says ([2, 2])",
        ),
        (
            program(f"fp16 y = const()[val=fp16({'1' * 65})];"),
            f"line 4, column 35: got '{'1' * 40}', allowed is a number of",
        ),
        (
            program("fp16 y = const()[val=fp16(0x1p999999)];"),
            "line 4, column 35: got '0x1p999999', allowed is a number",
        ),
        (
            program('string y = const()[val=string("a\\q")];'),
            "line 4, column 39: got '\\\\q', allowed is one of the escapes",
        ),
        (
            program('string y = const()[val=string("a'),
            "line 4, column 39: got '\"', allowed is a number, a string",
        ),
        (
            program("fp16 y = const()[val=fp16(BLOBFILE(offset=uint64(64)))];"),
            "column 44: got 'offset', allowed is 'path'",
        ),
        (
            program('fp16 y = const()[val=fp16(BLOBFILE(path=string("a"), offset=int32(64)))];'),
            "line 4, column 69: got offset of int32, allowed is uint64",
        ),
        (
            "program(1.3) { func main<ios18>() { } -> (); func main<ios18>() { } -> (); }",
            "line 1, column 1: functions: got main, main, allowed is each name once",
        ),
        (
            program(inputs="tuple<" * 40),
            "line 3, column 124: got types more than 16 deep, allowed is fewer",
        ),
        (
            program(f"fp16 y = exp(x={'{' * 40});"),
            "line 4, column 41: got brackets more than 16 deep, allowed is fewer",
        ),
        (
            program(f'fp16 y = const()[val=tensor<fp16, [1]>({"[" * 40}"a")];'),
            "got brackets more than 16 deep",
        ),
    ],
)
def test_refusals(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=r"^mil: line ") as found:
        mil.read(text)
    assert words in str(found.value)
    assert "\n" not in str(found.value)


def test_sizes_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_TEXT", 4000)
    with pytest.raises(ValueError, match="mil: got 4001 letters, allowed is up to 4000"):
        mil.read(" " * 4001)
    monkeypatch.setattr(reading, "MOST_ELEMENTS", 100)
    with pytest.raises(
        ValueError, match="line 4, column 63: got more than 100 elements of constants"
    ):
        mil.read(
            program(f"tensor<fp16, [101]> y = const()[val=tensor<fp16, [2]>([{'0,' * 100}0])];")
        )
    monkeypatch.setattr(reading, "MOST_TOKENS", 100)
    with pytest.raises(ValueError, match="got more than 100 tokens, allowed is a shorter program"):
        mil.read(program(*["fp16 y = exp(x=x);"] * 20))
    with pytest.raises(
        ValueError, match="line 4, column 39: got a string of 65537 letters, allowed is up to 65536"
    ):
        monkeypatch.setattr(reading, "MOST_TEXT", 2**20)
        mil.read(program(f'string y = const()[val=string("{"a" * 65537}")];'))
    with pytest.raises(ValueError, match="mil: got bytes, allowed is text"):
        mil.read(b"program")  # type: ignore[arg-type]


@pytest.mark.parametrize("piece", ["a", "\\n", "//\n", " ", "(", "[0,", "x=", "{1,", "tuple<", "-"])
def test_long_texts_take_little_memory(piece: str) -> None:
    """A quarter MiB of the same, as a string, a constant and behind an operation."""
    many = piece * (2**18 // len(piece))
    for text in (
        f'program(1.3) {{ func main<ios18>() {{ string y = const()[val=string("{many}',
        program(f"fp16 y = exp(x={many}"),
        program(f"fp16 y = const()[val=fp16({many})];"),
        many,
    ):
        tracemalloc.start()
        with pytest.raises(ValueError, match=r"^mil: line "):
            mil.read(text)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert most < 2**22


MUTANT = program(
    'fp16 eps = const()[name=string("eps"), val=fp16(0.00001)];',
    "tensor<int32, [4]> b = const()[val=tensor<int32, [4]>([0,0,0,0])];",
    'tensor<fp16, [4,4,1,1]> W = const()[val=tensor<fp16, [4,4,1,1]>(BLOBFILE(path=string("w"), offset=uint64(64)))];',
    'tensor<fp16, [1,4,1,32]> a = slice_by_size(x=x,begin=b,size=b)[name=string("s")];',
    "tensor<fp16, [1,4,1,32]> y = concat(axis=0x1,interleave=false,values=(x,a,[[1],{2}]));",
)
PIECES = [
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    "<",
    ">",
    ",",
    ";",
    "=",
    "?",
    '"',
    "\\",
    "-",
    "0x",
    "1e9",
    "inf",
    "\n",
    "//",
    "tensor",
    "BLOBFILE",
    "é",
    "\x00",
    "999999999999",
    "->",
]


@pytest.mark.parametrize("count", [400, pytest.param(30_000, marks=pytest.mark.long)])
def test_mutated_texts(count: int) -> None:
    """Letters changed, left out and put in: a program that comes back, or a ValueError with its
    place.
    """
    rng = np.random.default_rng(count)
    read, refused = 0, []
    for _ in range(count):
        text = MUTANT
        for _ in range(int(rng.integers(1, 4))):
            at, length = int(rng.integers(len(text) + 1)), int(rng.choice([0, 1, 3, 40]))
            text = text[:at] + str(rng.choice([*PIECES, ""])) + text[at + length :]
        try:
            found = mil.read(text)
        except ValueError as error:
            refused.append(str(error))
            continue
        read += 1
        assert mil.read(mil.write(found)) == found
        try:
            mil.check(found)
            mil.run(
                found,
                {"x": np.zeros((1, 4, 1, 32))},
                blobs.write({"w": np.zeros(16, np.float16)}).data,
            )
        except (ValueError, LookupError) as error:
            refused.append(str(error))
        mil.quirks(found, b"")
    assert read
    assert refused
    assert not [text for text in refused if "got" not in text or "allowed" not in text]


@given(st.text('()[]{}<>,;=?"\\-0x1e.infa \n/', max_size=60))
def test_no_text_at_all(text: str) -> None:
    for whole in (text, program(text), program(f"fp16 y = const()[val={text}];")):
        try:
            mil.read(whole)
        except ValueError as error:
            assert str(error).startswith("mil: line ")  # noqa: PT017


def test_states_and_operations_without_results() -> None:
    """As programs for iOS 18 have them: read, not run."""
    text = program(
        'tensor<fp16, [4]> old = read_state(input = kv)[name = string("r")];',
        'write_state(input = kv, data = old)[name = string("w")];',
        inputs="state<tensor<fp16, [4]>> kv",
        outputs="old",
    )
    found = mil.read(text)
    assert found["main"].operations[1].outputs == ()
    assert mil.read(mil.write(found)) == found
    with pytest.raises(
        ValueError, match=r"input kv: got state<tensor<fp16, \[4\]>>, allowed is a tensor or number"
    ):
        mil.check(found)
    with pytest.raises(ValueError, match="line 4, const: outputs: got 0, allowed is 1"):
        mil.check(mil.read(program("const()[val=fp16(1)];", outputs="x")))


# Types and shapes


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "tensor<fp16, [1,4,1,32]> y = add(x=x,y=z);",
            "line 4, add y: argument y: got 'z', allowed is a name from above",
        ),
        (
            "tensor<fp16, [1,4,1,32]> x = add(x=x,y=x);",
            "line 4, add x: output: got x, allowed is names that are not in use yet",
        ),
        (
            "tensor<fp16, [1,4,1,32]> y = add(x=x,x=x);",
            "line 4, add y: argument x: got it twice, allowed is each argument",
        ),
        (
            "tensor<fp16, [1,4,1,32]> y = add(x=x);",
            "line 4, add y: y: got nothing, allowed is one tensor or number",
        ),
        (
            "tensor<fp16, [1,4,1,32]> y = add(x=x,y=fp32(1));",
            "x and y: got tensor<fp16, [1, 4, 1, 32]>, fp32, allowed is one",
        ),
        (
            "tensor<fp16, [1,4,1,32]> y = add(x=x,y=tensor<fp16, [3]>([1,2,3]));",
            "x and y: got [1, 4, 1, 32] and [3], allowed is shapes that broadcast",
        ),
        (
            "tensor<fp16, [1,4,1,31]> y = exp(x=x);",
            "type of y: got tensor<fp16, [1, 4, 1, 31]>, allowed is tensor<fp16, [1, 4, 1, 32]>",
        ),
        (
            "tensor<fp32, [1,4,1,32]> y = exp(x=x);",
            "type of y: got tensor<fp32, [1, 4, 1, 32]>, allowed is tensor<fp16",
        ),
        (
            "tensor<int32, [1]> y = exp(x=tensor<int32, [1]>([1]));",
            "x: got tensor<int32, [1]>, allowed is floats",
        ),
        ('fp16 y = const()[name=string("y")];', "val: got nothing, allowed is one constant"),
        ("fp16 y = const()[val=fp32(1)];", "type of y: got fp16, allowed is fp32"),
        (
            "tensor<fp16, [1,1,1,32]> y = reduce_sum(x=x,axes=tensor<int32, [1]>([4]),keep_dims=true);",
            "axes: got 4, allowed is -4 to 3",
        ),
        (
            "tensor<fp16, [1,1,1,32]> y = reduce_sum(x=x,axes=tensor<int32, [2]>([1,-3]),keep_dims=true);",
            "axes: got [1, 1], allowed is each axis once",
        ),
        (
            "tensor<fp16, [1,1,1,32]> y = reduce_sum(x=x,axes=tensor<int32, [1]>([1]),keep_dims=1);",
            "keep_dims: got 1, allowed is true or false",
        ),
        (
            "tensor<fp16, [1,4,1,32]> y = softmax(x=x,axis=1.5);",
            "axis: got 1.5, allowed is a whole number",
        ),
        (
            "tensor<fp16, [5]> y = reshape(x=x,shape=tensor<int32, [1]>([5]));",
            "shape: got [5], allowed is a shape of the 128 elements of [1, 4, 1, 32]",
        ),
        (
            "tensor<fp16, [5]> y = reshape(x=x,shape=x);",
            "shape: got what is not known before the program runs, allowed is a",
        ),
        (
            "tensor<fp16, [1,4,1,32]> y = transpose(x=x,perm=tensor<int32, [3]>([0,1,2]));",
            "perm: got [0, 1, 2], allowed is the 4 axes of [1, 4, 1, 32], each once",
        ),
        (
            "tensor<fp16, [1,4,1,32]> y = slice_by_size(x=x,begin=tensor<int32, [4]>([0,1,0,0]),size=tensor<int32, [4]>([1,4,1,32]));",
            "begin and size of axis 1: got 1 and 4, allowed is a part of the 4 of [1, 4, 1, 32]",
        ),
        (
            "tensor<fp16, [1,4,1,32]> y = slice_by_size(x=x,begin=0,size=0);",
            "begin: got [0], allowed is 4 whole numbers",
        ),
        (
            "tensor<fp16, [1,4,1,32]> y = concat(values=x,axis=1);",
            "values: got none in ( ), allowed is one tensor or more in ( )",
        ),
        (
            "tensor<fp16, [1,5,1,32]> y = concat(values=(x,tensor<fp16, [1]>([1])),axis=1);",
            "allowed is tensors that differ along axis 1 only",
        ),
        (
            "tensor<fp16, [1,4,1,32]> y = matmul(x=x,y=x);",
            "x and y, after their transposes: got [1, 4, 1, 32] and [1, 4, 1, 32], allowed is as many columns of x",
        ),
        (
            "tensor<fp16, [1,2,1,32]> y = conv(x=x,weight=tensor<fp16, [2,3,1,1]>([1,1,1,1,1,1]));",
            "x and weight: got [1, 4, 1, 32] and [2, 3, 1, 1] in 1 groups, allowed is 4 channels as weight's axis 1",
        ),
        (
            "tensor<fp16, [1,1,1,32]> y = conv(x=x,weight=tensor<fp16, [1,4,2,1]>([1,1,1,1,1,1,1,1]));",
            "allowed is a kernel that fits into x",
        ),
        (
            'tensor<fp16, [1,1,1,32]> y = conv(x=x,weight=tensor<fp16, [1,4,1,1]>([1,1,1,1]),pad_type="custom",'
            "pad=tensor<int32, [4]>([65536,65536,65536,65536]));",
            "allowed is up to 67108864 elements",
        ),
        (
            'tensor<fp16, [1,4,1,32]> y = cast(x=x,dtype="fp17");',
            "dtype: got 'fp17', allowed is one of fp16",
        ),
        (
            "tensor<fp16, [99999,99999]> y = unheard(x=x);",
            "type of y: got tensor<fp16, [99999, 99999]>, allowed is up to 67108864 el",
        ),
        ("fp16 z = unheard(x=x);", "function main: output: got 'y', allowed is a name from above"),
    ],
)
def test_what_does_not_go_together(line: str, words: str) -> None:
    found = mil.read(program(line))
    with pytest.raises(ValueError, match=r"^mil: ") as refused:
        mil.check(found)
    assert words in str(refused.value)
    with pytest.raises((ValueError, LookupError)):
        mil.run(found, {"x": np.zeros((1, 4, 1, 32))})


def test_what_is_not_understood_is_taken_as_declared() -> None:
    found = mil.read(
        program("tensor<fp16, [7]> z = unheard(x=x);", "tensor<fp16, [7]> y = exp(x=z);")
    )
    assert mil.check(found) == ["unheard"]
    with pytest.raises(
        LookupError,
        match="line 4, unheard z: got an operation that is not understood, allowed is one of",
    ):
        mil.run(found, {"x": np.zeros((1, 4, 1, 32))})


def test_sizes_that_are_not_known() -> None:
    text = program("tensor<fp16, [1,?]> y = add(x=x,y=x);", inputs="tensor<fp16, [1, ?]> x")
    found = mil.read(text)
    assert mil.check(found) == []
    assert mil.run(found, {"x": np.ones((1, 5))})["y"].tolist() == [[2] * 5]
    with pytest.raises(
        ValueError, match=r"input x: got \(2, 5\) float64, allowed is tensor<fp16, \[1, \?\]>"
    ):
        mil.run(found, {"x": np.ones((2, 5))})
    with pytest.raises(LookupError, match="inputs: got none, allowed is x"):
        mil.run(found, {})


@pytest.mark.parametrize("count", [1000, pytest.param(50_000, marks=pytest.mark.long)])
def test_any_arguments(count: int) -> None:
    """Every operation with arguments drawn at random: refused in a sentence, or run to the shape
    that was foretold.
    """
    rng = np.random.default_rng(count)
    inputs = {
        "a": (1, 4, 1, 8),
        "b": (4,),
        "c": (2, 4, 1, 1),
        "d": (8, 4),
        "e": (),
        "f": (1, 2, 4, 8),
    }
    texts = [
        "true",
        "1",
        "-1",
        "0",
        "2",
        "fp16(0.5)",
        '"valid"',
        '"fp16"',
        "tensor<int32, [2]>([1,1])",
        "tensor<int32, [1]>([1])",
        "tensor<int32, [4]>([0,1,0,0])",
        "tensor<int32, [4]>([1,2,1,8])",
        "tensor<int8, [4]>([1,2,3,4])",
        'tensor<string, [2]>(["a","b"])',
        "tensor<bool, [4]>([true,true,false,true])",
        "(a,f)",
        "(a,a)",
        "(c,a)",
        "tensor<fp16, [0]>([])",
        "tensor<int32, [0]>([])",
        "tensor<int32, [4]>([0,2,3,1])",
        *inputs,
        *inputs,
        *inputs,
    ]
    names = [
        "x",
        "y",
        "axis",
        "axes",
        "keep_dims",
        "shape",
        "perm",
        "begin",
        "size",
        "values",
        "interleave",
        "num_splits",
        "split_sizes",
        "dtype",
        "transpose_x",
        "weight",
        "bias",
        "query",
        "key",
        "value",
        "attn_mask",
        "scale",
        "epsilon",
        "quantized_data",
        "zero_point",
        "strides",
        "pad",
        "pad_type",
        "groups",
        "dilations",
        "data",
        "offset",
    ]
    head = ", ".join(f"tensor<fp16, {list(shape)}> {name}" for name, shape in inputs.items())
    given_inputs = {name: rng.standard_normal(shape) for name, shape in inputs.items()}
    ran_through = set()
    for _ in range(count):
        op = str(rng.choice(sorted(OPERATIONS)))
        common = ["x", *rng.permutation(names)[:3]]
        wanted = {
            "matmul": ["x", "y"],
            "conv": ["x", "weight"],
            "concat": ["values", "axis"],
            "linear": ["x", "weight"],
            "scaled_dot_product_attention": ["query", "key", "value", "attn_mask"],
            "split": ["x", "num_splits", "axis"],
            "constexpr_blockwise_shift_scale": ["data", "scale"],
            "constexpr_lut_to_dense": ["indices", "lut"],
            "constexpr_affine_dequantize": ["quantized_data", "scale", "zero_point", "axis"],
            "cast": ["x", "dtype"],
            "reshape": ["x", "shape"],
            "transpose": ["x", "perm"],
            "slice_by_size": ["x", "begin", "size"],
            "expand_dims": ["x", "axes"],
        }.get(op, ["x", "y"])
        arguments = ",".join(
            f"{name}={rng.choice(texts)}" for name in dict.fromkeys([*wanted, *common])
        )
        guess = str(rng.choice(["tensor<fp16, [1,4,1,8]>", "tensor<fp16, [4]>"]))
        found = mil.read(program(f"{guess} y = {op}({arguments});", inputs=head))
        for _ in range(2):
            try:
                mil.check(found)
                ran_through.add(op)
                out = mil.run(found, given_inputs)["y"]
                assert out.shape == found["main"].operations[0].outputs[0][1].shape
                break
            except (ValueError, LookupError) as error:
                text = str(error)
            assert text.startswith("mil: line 4, ") or "dtype: got" in text, (arguments, text)
            assert "got" in text
            if "type of y: got " not in text:
                break
            # what it would have been, tried again
            right = text[text.index("allowed is ") + 11 :]
            found = mil.read(program(f"{right} y = {op}({arguments});", inputs=head))
    assert len(ran_through) > 25


# Values


X = np.random.default_rng(7).standard_normal((2, 3, 4))
FORMULAS = {
    "exp": np.exp,
    "exp2": np.exp2,
    "sqrt": np.sqrt,
    "tanh": np.tanh,
    "relu": lambda x: np.where(x > 0, x, 0),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "abs": np.abs,
    "sin": np.sin,
    "cos": np.cos,
    "square": lambda x: x * x,
    "identity": lambda x: x,
    "sign": np.sign,
    "rsqrt": lambda x: (x + 1e-12) ** -0.5,
    "log": np.log,
    "inverse": lambda x: 1 / (x + 1e-4),
}


@pytest.mark.parametrize("op", sorted(FORMULAS))
def test_unary(op: str) -> None:
    x = np.abs(X) if op in ("sqrt", "rsqrt", "log", "inverse") else X
    found = ran(
        f"tensor<fp32, [2,3,4]> y = {op}(x=x);", inputs="tensor<fp32, [2, 3, 4]> x", given={"x": x}
    )
    np.testing.assert_allclose(found, FORMULAS[op](x), rtol=1e-13)


def test_sigmoid_of_large_numbers() -> None:
    with np.errstate(all="raise", under="ignore"):
        found = ran(
            "tensor<fp32, [3]> y = sigmoid(x=x);",
            inputs="tensor<fp32, [3]> x",
            given={"x": [-1e4, 0, 1e4]},
        )
    assert found.tolist() == [0, 0.5, 1]


@pytest.mark.parametrize(
    ("op", "formula"),
    [
        ("add", lambda a, b: a + b),
        ("sub", lambda a, b: a - b),
        ("mul", lambda a, b: a * b),
        ("real_div", lambda a, b: a / b),
        ("pow", lambda a, b: math.exp(b * math.log(a))),
        ("maximum", max),
        ("minimum", min),
    ],
)
def test_binary(op: str, formula: Any) -> None:
    a, b = np.abs(X) + 0.1, np.abs(X[0, :1]) + 0.2
    found = ran(
        f"tensor<fp32, [2,3,4]> z = {op}(x=x,y=b);",
        inputs="tensor<fp32, [2, 3, 4]> x, tensor<fp32, [1, 4]> b",
        given={"x": a, "b": b},
        outputs="z",
    )
    expected = [
        formula(one, other) for one, other in zip(a.ravel(), np.tile(b, 6).ravel(), strict=True)
    ]
    np.testing.assert_allclose(found.ravel(), expected, rtol=1e-13)


@pytest.mark.parametrize(
    ("op", "formula"),
    [
        ("reduce_sum", math.fsum),
        ("reduce_max", max),
        ("reduce_min", min),
        ("reduce_mean", lambda x: math.fsum(x) / len(x)),
        ("reduce_sum_square", lambda x: math.fsum(one * one for one in x)),
    ],
)
def test_reductions(op: str, formula: Any) -> None:
    kept = ran(
        f"tensor<fp32, [2,1,4]> y = {op}(x=x,axes=tensor<int32, [1]>([-2]),keep_dims=true);",
        inputs="tensor<fp32, [2, 3, 4]> x",
        given={"x": X},
    )
    gone = ran(
        f"tensor<fp32, [3]> y = {op}(x=x,axes=tensor<int32, [2]>([0,-1]),keep_dims=false);",
        inputs="tensor<fp32, [2, 3, 4]> x",
        given={"x": X},
    )
    for i, k in np.ndindex(2, 4):
        assert kept[i, 0, k] == pytest.approx(formula(X[i, :, k]), rel=1e-13)
    for j in range(3):
        assert gone[j] == pytest.approx(formula(X[:, j].ravel()), rel=1e-13)


def test_softmax() -> None:
    found = ran(
        "tensor<fp32, [2,3,4]> y = softmax(x=x,axis=1);",
        inputs="tensor<fp32, [2, 3, 4]> x",
        given={"x": 300 * X},
    )
    for i, k in itertools.product(range(2), range(4)):
        powers = [math.exp(one - 300 * X[i, :, k].max()) for one in 300 * X[i, :, k]]
        np.testing.assert_allclose(found[i, :, k], np.array(powers) / math.fsum(powers), rtol=1e-13)


def test_shapes_and_places() -> None:
    inputs = "tensor<fp32, [2, 3, 4]> x"
    found = ran(
        "tensor<fp32, [3,2,4]> t = transpose(x=x,perm=tensor<int32, [3]>([1,0,2]));",
        "tensor<fp32, [3,8]> r = reshape(x=t,shape=tensor<int32, [2]>([0,-1]));",
        "tensor<fp32, [2,5]> s = slice_by_size(x=r,begin=tensor<int32, [2]>([1,2]),size=tensor<int32, [2]>([-1,5]));",
        "tensor<fp32, [2,10]> c = concat(values=(s,s),axis=-1,interleave=false);",
        "tensor<fp32, [4,5]> i = concat(values=(s,s),axis=0,interleave=true);",
        "tensor<fp32, [2,2]> p, tensor<fp32, [2,3]> q = split(x=s,split_sizes=tensor<int32, [2]>([2,3]),axis=1);",
        "tensor<fp32, [2,5]> h, tensor<fp32, [2,5]> g = split(x=c,num_splits=2,axis=1);",
        "tensor<fp32, [2,1,5,1]> e = expand_dims(x=s,axes=tensor<int32, [2]>([1,-1]));",
        "tensor<fp32, [2,5]> z = squeeze(x=e);",
        inputs=inputs,
        given={"x": X},
        outputs="t, r, s, c, i, p, q, g, h, e, z",
    )
    s = np.hstack(X)[1:, 2:7]
    assert np.array_equal(found["s"], s)
    assert np.array_equal(found["c"], [[*row, *row] for row in s])
    assert np.array_equal(found["i"], [s[0], s[0], s[1], s[1]])
    assert np.array_equal(np.hstack([found["p"], found["q"]]), s)
    assert np.array_equal(found["g"], s)
    assert np.array_equal(found["h"], s)
    assert found["e"].shape == (2, 1, 5, 1)
    assert np.array_equal(found["z"], s)


@pytest.mark.parametrize(("turn_x", "turn_y"), [*itertools.product([False, True], repeat=2)])
def test_matmul_against_plain_loops(turn_x: bool, turn_y: bool) -> None:
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((2, 1, 3, 4)), rng.standard_normal((5, 4, 2))
    x, y = a.swapaxes(-1, -2) if turn_x else a, b.swapaxes(-1, -2) if turn_y else b
    found = ran(
        f"tensor<fp32, [2,5,3,2]> y = matmul(x=x,y=b,transpose_x={str(turn_x).lower()},"
        f"transpose_y={str(turn_y).lower()});",
        given={"x": x, "b": y},
        inputs=f"tensor<fp32, {list(x.shape)}> x, tensor<fp32, {list(y.shape)}> b",
    )
    for i, j, m, n in np.ndindex(2, 5, 3, 2):
        assert found[i, j, m, n] == pytest.approx(
            math.fsum(a[i, 0, m, k] * b[j, k, n] for k in range(4)), rel=1e-12
        )


def plain_convolution(
    x: np.ndarray, weight: np.ndarray, strides: Any, dilations: Any, pads: Any, groups: int
) -> np.ndarray:
    (n, _, h, w), (outputs, inner, kernel_h, kernel_w) = x.shape, weight.shape
    high = (h + pads[0] + pads[1] - (kernel_h - 1) * dilations[0] - 1) // strides[0] + 1
    wide = (w + pads[2] + pads[3] - (kernel_w - 1) * dilations[1] - 1) // strides[1] + 1
    out = np.zeros((n, outputs, high, wide))
    for image, o, row, column, c, i, j in np.ndindex(
        n, outputs, high, wide, inner, kernel_h, kernel_w
    ):
        at_row = row * strides[0] + i * dilations[0] - pads[0]
        at_column = column * strides[1] + j * dilations[1] - pads[2]
        if 0 <= at_row < h and 0 <= at_column < w:
            group = o // (outputs // groups)
            out[image, o, row, column] += (
                weight[o, c, i, j] * x[image, group * inner + c, at_row, at_column]
            )
    return out


@given(st.data())
@settings(max_examples=60)
def test_conv_against_plain_loops(data: Any) -> None:
    size = st.integers(1, 3)
    groups, inner, per_group, n = (data.draw(size) for _ in range(4))
    kernel, strides, dilations = ([data.draw(size), data.draw(size)] for _ in range(3))
    kind = data.draw(st.sampled_from(["valid", "custom", "same", "same_lower"]))
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    pads = [data.draw(st.integers(0, 2)) for _ in range(4)] if kind == "custom" else [0] * 4
    h, w = (span + data.draw(st.integers(0, 4)) for span in spans)
    given_pads = list(pads)
    if kind.startswith("same"):
        for axis, have in enumerate((h, w)):
            whole = max((-(-have // strides[axis]) - 1) * strides[axis] + spans[axis] - have, 0)
            pads[2 * axis + (kind == "same")] = whole - whole // 2
            pads[2 * axis + (kind != "same")] = whole // 2
    rng = np.random.default_rng(groups * h)
    x = rng.integers(-4, 5, (n, inner * groups, h, w)).astype(float)
    weight = rng.integers(-4, 5, (per_group * groups, inner, *kernel)).astype(float)
    expected = plain_convolution(x, weight, strides, dilations, pads, groups)
    found = ran(
        f"tensor<fp16, {list(weight.shape)}> W = const()[val=tensor<fp16, {list(weight.shape)}>("
        'BLOBFILE(path=string("w"), offset=uint64(64)))];',
        f'tensor<fp32, {list(weight.shape)}> V = cast(x=W,dtype="fp32");',
        f"tensor<fp32, {list(expected.shape)}> y = conv(x=x,weight=V,strides=tensor<int32, [2]>({strides}),"
        f'pad_type="{kind}",pad=tensor<int32, [4]>({given_pads}),dilations=tensor<int32, [2]>({dilations}),'
        f"groups=int32({groups}),bias=tensor<fp32, [{len(weight)}]>({[float(o) for o in range(len(weight))]}));",
        inputs=f"tensor<fp32, {list(x.shape)}> x",
        given={"x": x},
        file=blobs.write({"w": weight.astype(np.float16)}).data,
    )
    assert np.array_equal(found, expected + np.arange(len(weight)).reshape(1, -1, 1, 1))


def test_attention_operation() -> None:
    rng = np.random.default_rng(2)
    q, k, v = (rng.standard_normal((2, 3, 4)) for _ in range(3))
    mask = np.triu(np.full((3, 3), -1e4), 1)
    names = "tensor<fp32, [2, 3, 4]> q, tensor<fp32, [2, 3, 4]> k, tensor<fp32, [2, 3, 4]> v, tensor<fp32, [3, 3]> m"
    found = ran(
        "tensor<fp32, [2,3,4]> y = scaled_dot_product_attention(query=q,key=k,value=v,attn_mask=m);",
        inputs=names,
        given={"q": q, "k": k, "v": v, "m": mask},
    )
    for b, row in np.ndindex(2, 3):
        weights = np.array([math.exp(q[b, row] @ k[b, column] / 2) for column in range(row + 1)])
        np.testing.assert_allclose(
            found[b, row], weights @ v[b, : row + 1] / weights.sum(), rtol=1e-12
        )


def test_weights_of_int8_and_uint4() -> None:
    """Codes of a weight file, scaled along an axis, as attributes or arguments; the program's
    type goes before dtype 1.
    """
    codes = np.array([[-128, 127], [0, 5]], np.int8)
    file = bytearray(blobs.write({"w": codes}).data)
    file[68] = 1
    scaled = ran(
        "tensor<fp16, [2,2]> y = constexpr_affine_dequantize()[axis=int32(0), quantized_data=tensor<int8, [2,2]>("
        'BLOBFILE(path=string("w"), offset=uint64(64))), scale=tensor<fp16, [2]>([2,0.5]), '
        "zero_point=tensor<int8, [2]>([-1,1])];",
        file=bytes(file),
    )
    assert scaled.tolist() == [[-254, 256], [-0.5, 2]]
    # the int8 benchmark: dtype of fp16, the size of 512 channels whatever follows, no data offset
    file[72:76], file[80:84] = bytes([0, 0, 8, 0]), bytes(4)
    line = 'tensor<int8, [2,2]> y = const()[val=tensor<int8, [2,2]>(BLOBFILE(path=string("w"), offset=uint64(64)))];'
    assert np.array_equal(ran(line, file=bytes(file)), codes)
    assert [
        text.split(":")[1].strip()
        for _, _, text, _ in mil.quirks(mil.read(program(line)), bytes(file))[1:]
    ] == [
        "record at byte 64, data offset",
        "record at byte 64, size",
        "record at byte 64 says fp16, the program int8, as the int8 benchmark does under dtype 1",
    ]
    file = blobs.write({"w": np.array([1, 15, 7], np.uint8)}, {"w": "uint4"}).data
    assert ran(
        'tensor<uint4, [3]> y = const()[val=tensor<uint4, [3]>(BLOBFILE(path=string("w"), offset=uint64(64)))];',
        file=file,
    ).tolist() == [1, 15, 7]
    with pytest.raises(
        ValueError,
        match=r"const y: BLOBFILE of tensor<uint4, \[5\]>: weights: record at byte 64, size",
    ):
        ran(
            'tensor<uint4, [5]> y = const()[val=tensor<uint4, [5]>(BLOBFILE(path=string("w"), offset=uint64(64)))];',
            file=file,
        )
    with pytest.raises(ValueError, match="record at byte 64, dtype: got uint4, allowed is int4"):
        ran(
            'tensor<int4, [3]> y = const()[val=tensor<int4, [3]>(BLOBFILE(path=string("w"), offset=uint64(64)))];',
            file=file,
        )
    with pytest.raises(LookupError, match="BLOBFILE: got 'w', allowed is a file that is given"):
        ran(
            'tensor<uint4, [3]> y = const()[val=tensor<uint4, [3]>(BLOBFILE(path=string("w"), offset=uint64(64)))];'
        )


def test_weights_by_blocks_and_tables() -> None:
    """Each element on its own: scale and offset of its block, and the entry that its index says
    of its table.
    """
    rng = np.random.default_rng(4)
    data, scale, offset = (
        rng.integers(-8, 8, (4, 6)),
        rng.standard_normal((2, 3)),
        rng.integers(-8, 8, (2, 3)),
    )
    inputs = "tensor<int8, [4, 6]> d, tensor<fp32, [2, 3]> s, tensor<int8, [2, 3]> o"
    found = ran(
        'tensor<fp32, [4,6]> y = constexpr_blockwise_shift_scale(data=d,scale=s,offset=o)[name=string("w")];',
        inputs=inputs,
        given={"d": data, "s": scale, "o": offset},
    )
    for i, j in np.ndindex(4, 6):
        block = i // 2, j // 2
        assert found[i, j] == scale[block] * (data[i, j] - offset[block])
    indices, table = (
        rng.integers(0, 16, (32, 5)).astype(np.uint8),
        rng.standard_normal((2, 1, 16, 1)).astype(np.float16),
    )
    data, offsets = blobs.write({"i": indices, "t": table}, {"i": "uint4"})
    file = 'BLOBFILE(path=string("w"), offset=uint64({}))'
    found = ran(
        f"tensor<fp16, [32,5]> y = constexpr_lut_to_dense(indices=tensor<uint4, [32,5]>({file.format(offsets['i'])}),"
        f'lut=tensor<fp16, [2,1,16,1]>({file.format(offsets["t"])}))[name=string("w")];',
        file=data,
    )
    for i, j in np.ndindex(32, 5):
        assert found[i, j] == table[i // 16, 0, indices[i, j], 0]
    with pytest.raises(
        ValueError,
        match="constexpr_lut_to_dense y: indices: got 3, allowed is 0 to 1, the entries of the table",
    ):
        ran(
            "tensor<fp16, [1]> y = constexpr_lut_to_dense(indices=tensor<uint2, [1]>([3]),lut=tensor<fp16, [1,2,1]>([1,2]));"
        )


def test_results_are_rounded_to_their_type() -> None:
    """Each once, half to even, beyond the range infinite; not at all in float64."""
    lines = (
        "tensor<fp16, [3]> s = add(x=x,y=fp16(0.00001));",
        "tensor<fp16, [3]> t = mul(x=s,y=fp16(65504));",
        'tensor<fp32, [3]> y = cast(x=t,dtype="fp32");',
    )
    x = np.array([0.1, 1.0, 1.001], np.float16)
    found = ran(*lines, inputs="tensor<fp16, [3]> x", given={"x": x}, float64=False)
    with np.errstate(over="ignore"):
        s = (x.astype(float) + float(np.float16(0.00001))).astype(np.float16)
        t = (s.astype(float) * 65504).astype(np.float16)
    assert (found.dtype, found.tolist()) == (np.float32, t.astype(np.float32).tolist())
    assert found[2] == math.inf
    exact = ran(*lines, inputs="tensor<fp16, [3]> x", given={"x": [0.1, 1.0, 1.001]})
    assert exact.tolist() == [(one + 0.00001) * 65504 for one in (0.1, 1.0, 1.001)]
    every = mil.run(mil.read(program(*lines, inputs="tensor<fp16, [3]> x")), {"x": x}, trace=True)
    assert [*every] == ["x", "s", "t", "y"]
    assert every["s"].dtype == np.float16


# Quirks


@pytest.mark.parametrize(
    ("lines", "inputs", "line", "words"),
    [
        (
            [
                "tensor<fp16, [1,1,1,32]> y = reduce_mean(x=x,axes=tensor<int32, [1]>([1]),keep_dims=true);"
            ],
            "",
            4,
            "reduce_mean is not",
        ),
        (
            ["tensor<fp16, [1,4,2,32]> y = tile(x=x,reps=tensor<int32, [4]>([1,1,2,1]));"],
            "",
            4,
            "after a program with tile",
        ),
        (
            [
                "tensor<fp16, [4,1,32]> q = squeeze(x=x,axes=tensor<int32, [1]>([0]));",
                "tensor<fp16, [4,1,32]> y = scaled_dot_product_attention(query=q,key=q,value=q,attn_mask=q);",
            ],
            "",
            5,
            "attn_mask is ignored",
        ),
        (
            ['tensor<fp32, [1,4,1,32]> y = cast(x=x,dtype="fp32");'],
            "",
            4,
            "casts to and from fp32 do not compile on M1",
        ),
        (["tensor<fp16, [1,4,1,32]> y = softmax(x=x,axis=-1);"], "", 0, ""),
        (
            ["tensor<fp16, [1,4,1,96]> y = softmax(x=x,axis=-1);"],
            "tensor<fp16, [1, 4, 1, 96]> x",
            4,
            "softmax over 96, which is no",
        ),
        (["fp16 e = const()[val=fp16(0.00000001)];"], "", 4, "1e-08 is 0 as fp16"),
        (["fp16 e = const()[val=fp16(-100000)];"], "", 4, "-100000.0 is infinite as fp16"),
        (
            [],
            "tensor<fp16, [1, 4, 1, 16]> x",
            3,
            "an input of 16 columns compiles and gives garbage",
        ),
        ([], "tensor<fp16, [1, 4, 1, 33]> x", 3, "rows of 33 columns have gaps in memory"),
        (
            ["tensor<fp16, [1,4,1,32]> y = conv(x=x,weight=w);"],
            "tensor<fp16, [1, 4, 1, 32]> x, tensor<fp16, [4, 4, 1, 32]> w",
            4,
            "weights that come from an input are ignored",
        ),
        (["tensor<fp16, [1,4,1,1]> y = slice_by_index(x=x);"], "", 4, "slice_by_index of an input"),
    ],
)
def test_quirks(lines: list[str], inputs: str, line: int, words: str) -> None:
    found = mil.quirks(mil.read(program(*lines, inputs=inputs or "tensor<fp16, [1, 4, 1, 32]> x")))
    assert [(one.line, one.text[: len(words)]) for one in found] == (
        [(line, words)] if words else []
    )
    assert all(one.op and one.source for one in found)


def test_quirks_of_weight_files() -> None:
    def told(offset: int, file: bytes | None, dtype: str = "fp16") -> list[str]:
        line = (
            f'tensor<{dtype}, [4]> y = const()[val=tensor<{dtype}, [4]>(BLOBFILE(path=string("w"), '
            f"offset=uint64({offset})))];"
        )
        found = mil.quirks(mil.read(program(line)), None if file is None else {"w": file})
        assert found[0][:2] == (3, "main")
        assert "about 119" in found[0].text
        return [text for _, _, text, _ in found[1:]]

    good = blobs.write({"w": np.zeros(4, np.float16)}).data
    assert told(64, good) == told(64, None) == []
    assert told(0, None) == [
        "BLOBFILE offset 0 is that of a record, not of data: the first is 64, and all are multiples of 64"
    ]
    assert told(128, good + bytes(64)) == [
        "weights: offset: got 128, allowed is the place of a record (sentinel 0xdeadbeef); "
        "the record is at 64, this is its data"
    ]
    assert told(64, good, "int8") == [
        "w: record at byte 64 says fp16, the program int8, as the int8 benchmark does under "
        "dtype 1",
        "w: record at byte 64 has 8 bytes, tensor<int8, [4]> takes 4",
    ]
    nowhere = good[:80] + bytes(8) + good[88:]
    assert told(64, nowhere) == [
        "w: record at byte 64, data offset: says 0, the file's header; its data is taken from byte 128"
    ]
