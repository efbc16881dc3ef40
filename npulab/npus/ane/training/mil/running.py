"""Checking and running MIL programs.

``check`` refuses names, types and shapes that contradict each other. ``run`` computes the
operations in order with numpy and rounds each output to its type.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy import ndarray as Array

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

Blobs = weight_files.Files
# A tensor of a program has at most this many elements.
MOST_SIZE = 2**26
NO_ARGUMENTS = ("name", "val")
# Only these arguments of operations may be strings.
WORDS = ("dtype", "pad_type")
Scope = dict[str, Known]
Named = Mapping[str, Any]


def check(program: Program) -> list[str]:
    """Raise ValueError for a program with wrong names, types or shapes.

    The error states the line and the operation. Returns the sorted names of operations without a
    rule in ``OPERATIONS``. The declared outputs are believed for an operation without a rule, and
    for an operation with an argument of unknown size.

    >>> x = Type("fp16", (1, 4, 1, 32))
    >>> add = Operation("add", (("y", x),), (("x", "x"), ("y", "z")))
    >>> check(Program((Function((("x", x),), (add,), ("y",)),)))
    Traceback (most recent call last):
    ValueError: mil: add y: argument y: got 'z', allowed is a name from above
    """
    missing: set[str] = set()
    for function in program.functions:
        scope = _declared(function)
        for operation in function.operations:
            if operation.op != "const" and operation.op not in OPERATIONS:
                missing.add(operation.op)
            _, results = judged(operation, scope)
            scope |= results
        line = ""
        if function.line:
            line = f"line {function.line}, "
        _refuse_unknown_output(function, scope, line)
    return sorted(missing)


def _refuse_unknown_output(function: Function, known: Named, line: str = "") -> None:
    for name in function.outputs:
        if name not in known:
            raise ValueError(
                f"mil: {line}function {function.name}: output: got {name!r}, allowed is a name "
                "from above"
            )


def _declared(function: Function) -> Scope:
    """Return the types of a function's inputs, as ``Known`` by name.

    Raises ValueError for a name that two inputs have, and for a type that is not of a tensor or
    number.
    """
    scope: Scope = {}
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


def judged(operation: Operation, scope: Scope) -> tuple[Call, Scope]:
    """Return an operation with its arguments, and its outputs as ``Known`` by name.

    ``scope`` has the values that were named before the operation. Raises ValueError for arguments
    that the operation does not allow. An output needs a new name, the declared type and at most
    2**26 elements.
    """
    call = resolved(operation, scope)
    declared = dict(operation.outputs)
    if len(declared) < len(operation.outputs) or any(name in scope for name in declared):
        call.refuse("output", ", ".join(declared), "names that are not in use yet")
    if operation.op == "const":
        results = _const(call)
    else:
        results = {name: Known(kind) for name, kind in operation.outputs} | _inferred(call)
    for name, output in results.items():
        if (output.type.elements or 0) > MOST_SIZE:
            call.refuse(f"type of {name}", str(output.type), f"up to {MOST_SIZE} elements")
    return call, results


def _inferred(call: Call) -> Scope:
    """Return the outputs that an operation's rule infers, as ``Known`` by name.

    The result is empty if the operation has no rule in ``OPERATIONS``, or if the size of an
    argument is not known. Raises ValueError if the text declares other outputs than the rule
    infers.
    """
    rule = OPERATIONS.get(call.operation.op)
    if rule is None:
        return {}
    declared = call.operation.outputs
    unknown = False
    for name, given in call.given.items():
        operands = given
        if isinstance(given, Known):
            operands = (given,)
        for operand in operands:
            if operand.dtype == "string" and name not in WORDS:
                call.refuse(name, "a string", "a tensor or number")
            if None in operand.type.shape:
                unknown = True
    if unknown:
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


def resolved(operation: Operation, scope: Scope) -> Call:
    """Return an operation with its arguments as ``Known``; names are looked up in ``scope``.

    An attribute counts as an argument too, except ``name`` and ``val``, and those of a const.
    """
    given: dict[str, Any] = {}
    for name, argument in operation.arguments:
        if name in given:
            Call(operation, {}).refuse(f"argument {name}", "it twice", "each argument once")
        if isinstance(argument, tuple):
            given[name] = tuple(_operand(operation, name, item, scope) for item in argument)
        else:
            given[name] = _operand(operation, name, argument, scope)
    for name, value in operation.attributes:
        if name not in NO_ARGUMENTS and operation.op != "const":
            given.setdefault(name, _operand(operation, name, value, scope))
    return Call(operation, given)


def _operand(operation: Operation, name: str, argument: str | Value, scope: Scope) -> Known:
    if isinstance(argument, str):
        if argument not in scope:
            Call(operation, {}).refuse(f"argument {name}", repr(argument), "a name from above")
        return scope[argument]._replace(source=argument)
    try:
        return known(argument)
    except ValueError as error:
        text = str(error).removeprefix("mil: ")
        raise ValueError(f"mil: {operation}: argument {name}: {text}") from None


def _const(call: Call) -> Scope:
    value = call.operation.value
    if len(call.operation.outputs) != 1:
        call.refuse("outputs", len(call.operation.outputs), "1")
    name, kind = call.operation.outputs[0]
    if value is None:
        call.refuse("val", "nothing", "one constant of a tensor or plain type")
    if not isinstance(value.type, Type):
        call.refuse("val", str(value.type), "one constant of a tensor or plain type")
    if (value.type.dtype, value.type.shape) != (kind.dtype, kind.shape):
        call.refuse(f"type of {name}", str(kind), str(value.type))
    return {name: known(value)}


def run(
    program: Program,
    inputs: Named,
    blobs: Blobs = None,
    *,
    float64: bool = False,
    function: str = "main",
    trace: bool = False,
) -> dict[str, Array]:
    """Return the outputs of a function by name, from its inputs by name.

    ``blobs`` are the bytes of the weight file, or of each file by its path in the program. Each
    operation is computed in float64, and its output is rounded to its declared type: half to even,
    infinite beyond the range. ``float64`` leaves inputs, constants and outputs unrounded. ``trace``
    returns the value of every operation and input. How the ANE rounds inside of an operation is not
    known.

    Raises ValueError for a program that ``check`` refuses and for weights that the file does not
    have. Raises LookupError for an operation without a rule, a missing input or weight file, and an
    unknown input.

    >>> from npulab.npus.ane.training.mil import read
    >>> text = "program(1.3) { func main<ios18>(fp16 x) { fp16 y = add(x=x,y=x); } -> (y); }"
    >>> float(run(read(text), {"x": 0.1})["y"])
    0.199951171875
    """
    main = program[function]
    scope = _declared(main)
    values = _inputs(scope, inputs, float64)
    for name, argument in scope.items():
        scope[name] = Known(Type(argument.dtype, values[name].shape))
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
    _refuse_unknown_output(main, values)
    shown = {}
    for name, array in values.items():
        if isinstance(array, Array) and (trace or name in main.outputs):
            shown[name] = array
    return shown


def _inputs(scope: Mapping[str, Known], inputs: Named, float64: bool) -> dict[str, Any]:
    """Return the inputs as arrays, rounded to their declared types unless ``float64``.

    Raises LookupError for a missing or unknown name, ValueError for another shape than declared.
    """
    if set(inputs) != set(scope):
        got = ", ".join(sorted(inputs)) or "none"
        raise LookupError(f"inputs: got {got}, allowed is {', '.join(scope) or 'none'}")
    arrays = {}
    for name, (kind, *_) in scope.items():
        array = np.asarray(inputs[name])
        if array.dtype.kind not in "fiub" or not kind.fits(array.shape):
            raise ValueError(f"input {name}: got {array.shape} {array.dtype}, allowed is {kind}")
        with np.errstate(all="ignore"):
            arrays[name] = _rounded(array, kind.dtype, float64)
    return arrays


def _computed(call: Call, values: Named, blobs: Blobs, float64: bool) -> list[Any]:
    """Return the outputs of an operation in float64 (integers and bools in their types), unrounded.

    Raises LookupError for an operation without a rule in ``OPERATIONS``.
    """
    if call.operation.op not in OPERATIONS:
        raise LookupError(
            f"mil: {call.operation}: got an operation that is not understood, allowed is one of "
            f"const, {', '.join(sorted(OPERATIONS))}"
        )

    def wide(operand: Known) -> Any:
        if isinstance(operand.source, str):
            array = values[operand.source]
        else:
            array = _constant(call, operand.source, blobs, float64)
        if isinstance(array, Array) and array.dtype.kind == "f":
            return array.astype(np.float64)
        return array

    arrays: dict[str, Any] = {}
    for name, operand in call.given.items():
        if isinstance(operand, Known):
            arrays[name] = wide(operand)
        else:
            arrays[name] = [wide(item) for item in operand]
    results = OPERATIONS[call.operation.op].compute(call, arrays)
    if isinstance(results, list):
        return results
    return [results]


def _constant(call: Call, value: Value | None, blobs: Blobs, float64: bool) -> Any:
    """Return a constant as an array of its type, from the text or from a weight file.

    A string is returned as it is; with ``float64`` a float of the text stays unrounded.
    """
    assert value is not None
    if isinstance(value.data, File):
        assert isinstance(value.type, Type)
        return _weights(call.operation, value.data, value.type, blobs)
    kind = known(value).type
    if kind.dtype == "string":
        return value.data
    # Floats become float64 here, so that only _rounded rounds them.
    numpy = np.dtype(np.float64)
    if DTYPES[kind.dtype][0] != "f":
        numpy = numpy_type(kind.dtype)
    array = np.array(value.data, numpy).reshape(kind.sizes)
    return _rounded(array, kind.dtype, float64)


def _weights(operation: Operation, file: File, kind: Type, blobs: Blobs) -> Array:
    """Return the constant of type ``kind`` that ``file`` names, read from its record.

    Raises LookupError for a missing weight file, ValueError for a wrong record.
    """
    data = weight_files.file_at(blobs, file.path)
    if data is None:
        given = ""
        if isinstance(blobs, Mapping) and blobs:
            given = f": {', '.join(blobs)}"
        raise LookupError(
            f"mil: {operation}: BLOBFILE: got {file.path!r}, allowed is a file that is given{given}"
        )
    try:
        record, _ = weight_files.record_at(data, file.offset)
        allowed = [kind.dtype]
        letter, bits = DTYPES[kind.dtype]
        # Integers in a record of type fp16: the int8 and int4 benchmarks of maderix/ANE do this.
        if letter in "iu" and bits <= 8:
            allowed.append("fp16")
        refuse_if(
            record.dtype not in allowed,
            f"weights: record at byte {file.offset}, dtype",
            record.dtype,
            f"is {kind.dtype}",
        )
        return record.values(kind.sizes, kind.dtype)
    except (ValueError, LookupError) as error:
        raise ValueError(f"mil: {operation}: BLOBFILE of {kind}: {error.args[0]}") from None


def _rounded(array: Any, dtype: str, float64: bool) -> Any:
    if not isinstance(array, Array | np.generic):
        return array
    if DTYPES[dtype][0] == "f" and float64:
        return np.asarray(array, np.float64)
    return np.asarray(array).astype(numpy_type(dtype))
