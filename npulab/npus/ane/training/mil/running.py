"""A small interpreter of MIL programs: one numpy operation after the other, each result rounded to
its type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from npulab.npus.ane.training import blobs as weight_files
from npulab.npus.ane.training.mil.calls import Call, Known, known, numpy_type
from npulab.npus.ane.training.mil.checking import inputs as known_inputs
from npulab.npus.ane.training.mil.checking import judged
from npulab.npus.ane.training.mil.operations import OPERATIONS
from npulab.npus.ane.training.mil.values import DTYPES, File, Function, Operation, Program, Type, Value

Blobs = bytes | Mapping[str, bytes] | None


def run(program: Program, inputs: Mapping[str, Any], blobs: Blobs = None, *, float64: bool = False,
        function: str = "main", trace: bool = False) -> dict[str, np.ndarray]:
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
    scope = known_inputs(main)
    values = _inputs(main, scope, inputs, float64)
    scope = {name: Known(Type(given.type.dtype, values[name].shape)) for name, given in scope.items()}
    with np.errstate(all="ignore"):
        for operation in main.operations:
            call, results = judged(operation, scope)
            scope.update(results)
            if operation.op == "const":
                found = [_constant(call, operation.value, blobs, float64)]
            else:
                found = _computed(call, values, blobs, float64)
            for (name, result), array in zip(results.items(), found, strict=True):
                values[name] = _rounded(array, result.type.dtype, float64)
    for name in main.outputs:
        if name not in values:
            raise ValueError(f"mil: function {main.name}: output: got {name!r}, allowed is a name from above")
    return {name: array for name, array in values.items() if isinstance(array, np.ndarray)
            and (trace or name in main.outputs)}


def _inputs(function: Function, scope: Mapping[str, Known], inputs: Mapping[str, Any], float64: bool) -> dict[str, Any]:
    if set(inputs) != set(scope):
        raise LookupError(f"inputs: got {', '.join(sorted(inputs)) or 'none'}, allowed is {', '.join(scope) or 'none'}")
    out = {}
    for name, one in scope.items():
        array = np.asarray(inputs[name])
        if array.dtype.kind not in "fiub" or array.ndim != len(one.type.shape) or any(
                size not in (None, have) for size, have in zip(one.type.shape, array.shape, strict=True)):
            raise ValueError(f"input {name}: got {array.shape} {array.dtype}, allowed is {one.type}")
        with np.errstate(all="ignore"):
            out[name] = _rounded(array, one.type.dtype, float64)
    return out


def _computed(call: Call, values: Mapping[str, Any], blobs: Blobs, float64: bool) -> list[Any]:
    operation = call.operation
    if operation.op not in OPERATIONS:
        raise LookupError(f"mil: {operation}: got an operation that is not understood, allowed is one of const, "
                          f"{', '.join(sorted(OPERATIONS))}")
    given: dict[str, Any] = dict(operation.arguments)
    for name, value in operation.attributes:
        given.setdefault(name, value)
    arrays: dict[str, Any] = {}
    for name in call.given:
        one = given[name]
        many = [_wide(_argument(call, each, values, blobs, float64)) for each in
                (one if isinstance(one, tuple) else (one,))]
        arrays[name] = many if isinstance(one, tuple) else many[0]
    found = OPERATIONS[operation.op].compute(call, arrays)
    return found if isinstance(found, list) else [found]


def _argument(call: Call, one: Any, values: Mapping[str, Any], blobs: Blobs, float64: bool) -> Any:
    return values[one] if isinstance(one, str) else _constant(call, one, blobs, float64)


def _constant(call: Call, value: Value | None, blobs: Blobs, float64: bool) -> Any:
    assert value is not None
    if isinstance(value.data, File):
        assert isinstance(value.type, Type)
        return _weights(call.operation, value.data, value.type, blobs)
    kind = known(value).type
    if kind.dtype == "string":
        return value.data
    shape = tuple(size or 0 for size in kind.shape)
    numpy = np.dtype("float64") if DTYPES[kind.dtype][0] == "f" else numpy_type(kind.dtype)
    return _rounded(np.array(value.data, numpy).reshape(shape), kind.dtype, float64)


def _weights(operation: Operation, file: File, kind: Type, blobs: Blobs) -> np.ndarray:
    data = blobs.get(file.path) if isinstance(blobs, Mapping) else blobs
    if data is None:
        raise LookupError(f"mil: {operation}: BLOBFILE: got {file.path!r}, allowed is a file that is given"
                          f"{': ' + ', '.join(blobs) if isinstance(blobs, Mapping) and blobs else ''}")
    shape = [size or 0 for size in kind.shape]
    try:
        record, _ = weight_files.record_at(data, file.offset)
        letter, bits = DTYPES[kind.dtype]
        # integers under the dtype of fp16 are what the benchmarks of int8 and int4 write
        if record.dtype not in (kind.dtype, "fp16" if letter in "iu" and bits <= 8 else ""):
            raise ValueError(f"weights: record at byte {file.offset}, dtype: got {record.dtype}, "
                             f"allowed is {kind.dtype}")
        return record.values(shape, "" if record.dtype == kind.dtype else kind.dtype)
    except (ValueError, LookupError) as error:
        raise ValueError(f"mil: {operation}: BLOBFILE of {kind}: {error.args[0]}") from None


def _wide(array: Any) -> Any:
    """Floats as float64."""
    return array.astype(np.float64) if isinstance(array, np.ndarray) and array.dtype.kind == "f" else array


def _rounded(array: Any, dtype: str, float64: bool) -> Any:
    if not isinstance(array, np.ndarray | np.generic):
        return array
    if DTYPES[dtype][0] == "f" and float64:
        return np.asarray(array, np.float64)
    return np.asarray(array).astype(numpy_type(dtype))
