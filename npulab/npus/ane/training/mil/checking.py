"""Whether names, types and shapes of a program go together."""

from __future__ import annotations

from typing import Any

from npulab.npus.ane.training.mil.calls import Call, Known, known
from npulab.npus.ane.training.mil.operations import OPERATIONS
from npulab.npus.ane.training.mil.values import Function, Operation, Program, Type, Value

MOST_SIZE = 2 ** 26  # elements of a tensor
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
        scope = inputs(function)
        for operation in function.operations:
            if operation.op != "const" and operation.op not in OPERATIONS:
                missing.append(operation.op)
            scope.update(judged(operation, scope)[1])
        for name in function.outputs:
            if name not in scope:
                line = f"line {function.line}, " if function.line else ""
                raise ValueError(f"mil: {line}function {function.name}: output: got {name!r}, allowed is a name from "
                                 "above")
    return sorted(set(missing))


def inputs(function: Function) -> dict[str, Known]:
    """What the inputs of a function are."""
    scope: dict[str, Known] = {}
    for name, kind in function.inputs:
        if name in scope:
            raise ValueError(f"mil: function {function.name}: input: got {name!r} twice, allowed is each name once")
        if not isinstance(kind, Type):
            raise ValueError(f"mil: function {function.name}: input {name}: got {kind}, allowed is a tensor or number")
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
    """The outputs of an operation that is understood, where the sizes of its arguments are known."""
    rule, declared = OPERATIONS.get(call.operation.op), call.operation.outputs
    operands = [(name, operand) for name, given in call.given.items()
                for operand in ([given] if isinstance(given, Known) else given)]
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
        given[name] = (_operand(operation, name, argument, scope) if not isinstance(argument, tuple)
                       else tuple(_operand(operation, name, item, scope) for item in argument))
    for name, value in operation.attributes:
        if name not in NO_ARGUMENTS and operation.op != "const":
            given.setdefault(name, _operand(operation, name, value, scope))
    return Call(operation, given)


def _operand(operation: Operation, name: str, argument: str | Value, scope: dict[str, Known]) -> Known:
    if isinstance(argument, str):
        if argument not in scope:
            Call(operation, {}).refuse(f"argument {name}", repr(argument), "a name from above")
        return scope[argument]._replace(source=argument)
    try:
        return known(argument)
    except ValueError as error:
        raise ValueError(f"mil: {operation}: argument {name}: {str(error).removeprefix('mil: ')}") from None


def _const(call: Call) -> dict[str, Known]:
    value = call.operation.value
    if len(call.operation.outputs) != 1:
        call.refuse("outputs", len(call.operation.outputs), "1")
    name, kind = call.operation.outputs[0]
    if value is None or not isinstance(value.type, Type):
        call.refuse("val", "nothing" if value is None else str(value.type), "one constant of a tensor or plain type")
    if (value.type.dtype, value.type.shape) != (kind.dtype, kind.shape):
        call.refuse(f"type of {name}", str(kind), str(value.type))
    return {name: known(value)}
