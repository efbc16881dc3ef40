"""MIL text of a program, in the form of maderix/ANE (training/stories_mil.h): compact inside of
functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from npulab.npus.ane.training.mil.values import (
    CLOSING,
    Argument,
    File,
    Function,
    Group,
    Operation,
    Program,
    Type,
    Value,
)

ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}
SMALLEST, LARGEST = 1e-8, 1e16  # numbers between them are written without an exponent


def write(program: Program) -> str:
    """The text of a program, which ``read`` turns into an equal one.

    One operation a line, constants inside of functions without blanks, floats as the shortest
    decimal that is the same float64, and as hexadecimal where they are very small or large.

    >>> x = Type("fp16", (1, 4, 1, 32))
    >>> called = ("name", Value(Type("string", plain=True), "a"))
    >>> twice = Operation("add", (("y", x),), (("x", "x"), ("y", "x")), (called,))
    >>> print(write(Program((Function((("x", x),), (twice,), ("y",)),))), end="")
    program(1.3)
    {
        func main<ios18>(tensor<fp16, [1, 4, 1, 32]> x) {
            tensor<fp16, [1,4,1,32]> y = add(x=x,y=x)[name=string("a")];
        } -> (y);
    }
    """
    attributes = f"[{_attributes(program.attributes, ' = ', ', ')}]\n" if program.attributes else ""
    return f"program({program.version})\n{attributes}{{\n{''.join(map(_function, program.functions))}}}\n"


def _function(function: Function) -> str:
    inputs = ", ".join(f"{kind} {name}" for name, kind in function.inputs)
    attributes = f" [{_attributes(function.attributes, ' = ', ', ')}]" if function.attributes else ""
    lines = "".join(f"        {_operation(operation)};\n" for operation in function.operations)
    return (f"    func {function.name}<{function.target}>({inputs}){attributes} {{\n{lines}"
            f"    }} -> ({', '.join(function.outputs)});\n")


def _operation(operation: Operation) -> str:
    outputs = ", ".join(f"{kind.spelled(',')} {name}" for name, kind in operation.outputs)
    arguments = ",".join(f"{name}={_argument(argument)}" for name, argument in operation.arguments)
    attributes = f"[{_attributes(operation.attributes, '=', ',')}]" if operation.attributes else ""
    return f"{outputs}{' = ' if outputs else ''}{operation.op}({arguments}){attributes}"


def _attributes(pairs: Sequence[tuple[str, Value]], equals: str, comma: str) -> str:
    return ", ".join(f"{name}{equals}{_value(value, comma)}" for name, value in pairs)


def _argument(one: Argument) -> str:
    if isinstance(one, tuple):
        return f"({','.join(map(_argument, one))})"
    return one if isinstance(one, str) else _value(one, ",")


def _value(value: Value, comma: str) -> str:
    if value.type is None:
        return _literal(value.data, comma)
    if isinstance(value.data, File):
        string, number = (Type(dtype, plain=value.data.plain).spelled() for dtype in ("string", "uint64"))
        equals = "=" if comma == "," else " = "
        return (f"{value.type.spelled(comma)}(BLOBFILE(path{equals}{string}({_literal(value.data.path, comma)}), "
                f"offset{equals}{number}({value.data.offset})))")
    if not isinstance(value.type, Type):
        return f"{value.type}({', '.join(_literal(one, ', ') for one in value.data)})"
    several = isinstance(value.data, tuple)
    data = f"[{comma.join(_literal(one, comma) for one in value.data)}]" if several else _literal(value.data, comma)
    return f"{value.type.spelled(comma)}({data})"


def _literal(one: Any, comma: str) -> str:
    if isinstance(one, Group):
        return f"{one.bracket}{comma.join(_literal(item, comma) for item in one.items)}{CLOSING[one.bracket]}"
    if isinstance(one, Value):
        return _value(one, comma)
    if isinstance(one, str):
        return f'"{"".join(ESCAPES.get(letter, letter) for letter in one)}"'
    if isinstance(one, bool):
        return "true" if one else "false"
    if not isinstance(one, float) or not math.isfinite(one):
        return str(one)
    if one and not SMALLEST <= abs(one) < LARGEST:
        return one.hex()
    return np.format_float_positional(one, trim="0")
