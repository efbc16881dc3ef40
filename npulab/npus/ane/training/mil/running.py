"""Programs checked, whether names, types and shapes go together, and run: one numpy operation after
the other, each result rounded to its type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from npulab.npus.ane.training import blobs as weight_files
from npulab.npus.ane.training.mil.operations import OPERATIONS, Call, Known, known, numpy_type
from npulab.npus.ane.training.mil.values import (
    DTYPES,
    File,
    Function,
    Operation,
    Program,
    Type,
    Value,
)
from npulab.npus.kit import refuse_if

MOST_SIZE = 2**26  # elements of a tensor
NO_ARGUMENTS = ("name", "val")
WORDS = ("dtype", "pad_type")  # arguments that are strings


def check(program: Program) -> list[str]:
    """Refuse unknown and repeated names, and types and shapes that do not go together.

    Gives the operations that are not understood, whose outputs are taken as declared; so are those
    that depend on sizes which are not known.  Raises ValueError with the line and the operation.

    >>> x = Type("fp16", (1, 4, 1, 32))
    >>> check(Program((Function((("x", x),), (Operation("add", (("y", x),), (("x", "x"), ("y", "z"))),), ("y",)),)))
    Traceback (most recent call last):
    ValueError: mil: add y: argument y: got 'z', allowed is a name from above
    """
    missing: list[str] = []
    for function in program.functions:
        scope = _declared(function)
        for operation in function.operations:
            if operation.op != "const" and operation.op not in OPERATIONS:
                missing.append(operation.op)
            scope.update(judged(operation, scope)[1])
        for name in function.outputs:
            if name not in scope:
                line = ""
                if function.line:
                    line = f"line {function.line}, "
                raise ValueError(
                    f"mil: {line}function {function.name}: output: got {name!r}, allowed is a name "
                    "from "
                    "above"
                )
    return sorted(set(missing))


def _declared(function: Function) -> dict[str, Known]:
    """What the inputs of a function are."""
    scope: dict[str, Known] = {}
    for name, kind in function.inputs:
        if name in scope:
            raise ValueError(
                f"mil: function {function.name}: input: got {name!r} twice, allowed is each name "
                "once"
            )
        if not isinstance(kind, Type):
            raise ValueError(
                f"mil: function {function.name}: input {name}: got {kind}, allowed is a tensor or "
                "number"
            )
        scope[name] = Known(kind)
    return scope


def judged(operation: Operation, scope: dict[str, Known]) -> tuple[Call, dict[str, Known]]:
    """An operation with its arguments, and what its outputs are; raises ValueError where they are
    not as declared."""
    call = resolved(operation, scope)
    declared = dict(operation.outputs)
    if len(declared) < len(operation.outputs) or any(name in scope for name in declared):
        call.refuse("output", ", ".join(declared), "names that are not there yet")
    if operation.op == "const":
        results = _const(call)
    else:
        results = {name: Known(kind) for name, kind in operation.outputs} | _inferred(call)
    for name, output in results.items():
        if (output.type.elements or 0) > MOST_SIZE:
            call.refuse(f"type of {name}", str(output.type), f"up to {MOST_SIZE} elements")
    return call, results


def _inferred(call: Call) -> dict[str, Known]:
    """The outputs of an operation that is understood, where the sizes of its arguments are
    known.
    """
    rule, declared = OPERATIONS.get(call.operation.op), call.operation.outputs
    operands = [
        (name, operand)
        for name, given in call.given.items()
        for operand in ([given] if isinstance(given, Known) else given)
    ]
    for name, operand in operands if rule else ():
        if operand.dtype == "string" and name not in WORDS:
            call.refuse(name, "a string", "a tensor or number")
    if rule is None or any(None in operand.type.shape for _, operand in operands):
        return {}
    inferred = rule.infer(call)
    if len(inferred) != len(declared):
        call.refuse("outputs", len(declared), str(len(inferred)))
    results = {}
    for (name, kind), (dtype, shape) in zip(declared, inferred, strict=True):
        if kind.dtype != dtype or not kind.fits(shape):
            call.refuse(f"type of {name}", str(kind), str(Type(dtype, shape)))
        results[name] = Known(Type(dtype, shape, kind.plain))
    return results


def resolved(operation: Operation, scope: dict[str, Known]) -> Call:
    """An operation with what its arguments stand for; attributes other than a name count as
    arguments."""
    given: dict[str, Any] = {}
    for name, argument in operation.arguments:
        if name in given:
            Call(operation, {}).refuse(f"argument {name}", "it twice", "each argument once")
        if not isinstance(argument, tuple):
            given[name] = _operand(operation, name, argument, scope)
        else:
            given[name] = tuple(_operand(operation, name, item, scope) for item in argument)
    for name, value in operation.attributes:
        if name not in NO_ARGUMENTS and operation.op != "const":
            given.setdefault(name, _operand(operation, name, value, scope))
    return Call(operation, given)


def _operand(
    operation: Operation, name: str, argument: str | Value, scope: dict[str, Known]
) -> Known:
    if isinstance(argument, str):
        if argument not in scope:
            Call(operation, {}).refuse(f"argument {name}", repr(argument), "a name from above")
        return scope[argument]._replace(source=argument)
    try:
        return known(argument)
    except ValueError as error:
        raise ValueError(
            f"mil: {operation}: argument {name}: {str(error).removeprefix('mil: ')}"
        ) from None


def _const(call: Call) -> dict[str, Known]:
    value = call.operation.value
    if len(call.operation.outputs) != 1:
        call.refuse("outputs", len(call.operation.outputs), "1")
    name, kind = call.operation.outputs[0]
    if value is None or not isinstance(value.type, Type):
        call.refuse(
            "val",
            "nothing" if value is None else str(value.type),
            "one constant of a tensor or plain type",
        )
    if (value.type.dtype, value.type.shape) != (kind.dtype, kind.shape):
        call.refuse(f"type of {name}", str(kind), str(value.type))
    return {name: known(value)}


Blobs = bytes | Mapping[str, bytes] | None


def run(
    program: Program,
    inputs: Mapping[str, Any],
    blobs: Blobs = None,
    *,
    float64: bool = False,
    function: str = "main",
    trace: bool = False,
) -> dict[str, np.ndarray]:
    """The outputs of a function by name, from its inputs by name.

    ``blobs`` are the bytes of the weight file, or of each by its path in the program.  Every
    operation is taken in float64 and its result rounded to its declared type, half to even, beyond
    the range infinite; with ``float64`` floats are never rounded, and constants are taken as they
    are written.  ``trace`` gives every result, not only the outputs.  How the ANE rounds inside of
    an operation is not known. Raises ValueError with line and operation for what ``check`` refuses
    and for weights that are not in the file, LookupError for an operation that is not understood
    and inputs that are missing or too many.

    >>> from npulab.npus.ane.training.mil import read
    >>> text = "program(1.3) { func main<ios18>(fp16 x) { fp16 y = add(x=x,y=x); } -> (y); }"
    >>> float(run(read(text), {"x": 0.1})["y"])
    0.199951171875
    """
    main = program[function]
    scope = _declared(main)
    values = _inputs(main, scope, inputs, float64)
    scope = {
        name: Known(Type(argument.dtype, values[name].shape)) for name, argument in scope.items()
    }
    with np.errstate(all="ignore"):
        for operation in main.operations:
            call, results = judged(operation, scope)
            scope.update(results)
            if operation.op == "const":
                arrays = [_constant(call, operation.value, blobs, float64)]
            else:
                arrays = _computed(call, values, blobs, float64)
            for (name, result), array in zip(results.items(), arrays, strict=True):
                values[name] = _rounded(array, result.type.dtype, float64)
    for name in main.outputs:
        if name not in values:
            raise ValueError(
                f"mil: function {main.name}: output: got {name!r}, allowed is a name from above"
            )
    return {
        name: array
        for name, array in values.items()
        if isinstance(array, np.ndarray) and (trace or name in main.outputs)
    }


def _inputs(
    function: Function, scope: Mapping[str, Known], inputs: Mapping[str, Any], float64: bool
) -> dict[str, Any]:
    if set(inputs) != set(scope):
        raise LookupError(
            f"inputs: got {', '.join(sorted(inputs)) or 'none'}, allowed is "
            f"{', '.join(scope) or 'none'}"
        )
    out = {}
    for name, (kind, *_) in scope.items():
        array = np.asarray(inputs[name])
        if array.dtype.kind not in "fiub" or not kind.fits(array.shape):
            raise ValueError(f"input {name}: got {array.shape} {array.dtype}, allowed is {kind}")
        with np.errstate(all="ignore"):
            out[name] = _rounded(array, kind.dtype, float64)
    return out


def _computed(call: Call, values: Mapping[str, Any], blobs: Blobs, float64: bool) -> list[Any]:
    if call.operation.op not in OPERATIONS:
        raise LookupError(
            f"mil: {call.operation}: got an operation that is not understood, allowed is one of "
            "const, "
            f"{', '.join(sorted(OPERATIONS))}"
        )

    def array(operand: Known) -> Any:
        if isinstance(operand.source, str):
            return _wide(values[operand.source])
        return _wide(_constant(call, operand.source, blobs, float64))

    arrays = {
        name: array(operand) if isinstance(operand, Known) else [array(each) for each in operand]
        for name, operand in call.given.items()
    }
    results = OPERATIONS[call.operation.op].compute(call, arrays)
    return results if isinstance(results, list) else [results]


def _constant(call: Call, value: Value | None, blobs: Blobs, float64: bool) -> Any:
    assert value is not None
    if isinstance(value.data, File):
        assert isinstance(value.type, Type)
        return _weights(call.operation, value.data, value.type, blobs)
    kind = known(value).type
    if kind.dtype == "string":
        return value.data
    numpy = "float64" if DTYPES[kind.dtype][0] == "f" else numpy_type(kind.dtype)
    return _rounded(np.array(value.data, numpy).reshape(_sizes(kind)), kind.dtype, float64)


def _sizes(kind: Type) -> list[int]:
    return [size or 0 for size in kind.shape]


def _weights(operation: Operation, file: File, kind: Type, blobs: Blobs) -> np.ndarray:
    data = blobs.get(file.path) if isinstance(blobs, Mapping) else blobs
    if data is None:
        raise LookupError(
            f"mil: {operation}: BLOBFILE: got {file.path!r}, allowed is a file that is given"
            f"{': ' + ', '.join(blobs) if isinstance(blobs, Mapping) and blobs else ''}"
        )
    try:
        record, _ = weight_files.record_at(data, file.offset)
        letter, bits = DTYPES[kind.dtype]
        # integers under the dtype of fp16 are what the benchmarks of int8 and int4 write
        refuse_if(
            record.dtype not in (kind.dtype, "fp16" if letter in "iu" and bits <= 8 else ""),
            f"weights: record at byte {file.offset}, dtype",
            record.dtype,
            f"is {kind.dtype}",
        )
        return record.values(_sizes(kind), "" if record.dtype == kind.dtype else kind.dtype)
    except (ValueError, LookupError) as error:
        raise ValueError(f"mil: {operation}: BLOBFILE of {kind}: {error.args[0]}") from None


def _wide(array: Any) -> Any:
    """Floats as float64."""
    return (
        array.astype(np.float64)
        if isinstance(array, np.ndarray) and array.dtype.kind == "f"
        else array
    )


def _rounded(array: Any, dtype: str, float64: bool) -> Any:
    if not isinstance(array, np.ndarray | np.generic):
        return array
    if DTYPES[dtype][0] == "f" and float64:
        return np.asarray(array, np.float64)
    return np.asarray(array).astype(numpy_type(dtype))
