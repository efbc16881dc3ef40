"""Warnings for MIL programs that are known to go wrong on the ANE.

A quirk is a known fault of the ANE or of its compiler. ``quirks.csv`` has its text and its source;
this module finds the operations, inputs and weight-file records of a program that it affects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from npulab.npus.ane.training import blobs as weight_files
from npulab.npus.ane.training.mil.values import (
    DTYPES,
    File,
    Function,
    Operation,
    Program,
    Type,
    Value,
)
from npulab.npus.kit import ceil_div, read_table

COLUMNS = 32  # fp16 elements in a row of 64 bytes
QUIRKS = {row["quirk"]: row for row in read_table(Path(__file__).parent / "quirks.csv")}


class Quirk(NamedTuple):
    """A warning about a program.

    ``line`` is a line of the program's text, 0 if the program was not read from a text. ``op``
    names the operation, function or input that is affected, ``source`` where the fault was seen.
    """

    line: int
    op: str
    text: str
    source: str


def quirks(program: Program, blobs: weight_files.Files = None) -> list[Quirk]:
    """Return warnings for known faults of the ANE and its compiler that affect a program.

    The warnings follow the order of functions and operations. Each names the source of its fault;
    other builds and chips may not have the fault. ``blobs`` is the weight file, or each file by its
    path in the program; if it is given, the record of each constant in a weight file is judged too.
    """
    found: list[Quirk] = []
    for function in program.functions:
        found += _function_quirks(function)
        inputs = dict(function.inputs)
        # Names whose values depend on no input; the value is the constant of a const, else None.
        fixed: dict[str, Value | None] = {}
        for operation in function.operations:
            if all(name in fixed for name in operation.names):
                for name, _ in operation.outputs:
                    fixed[name] = operation.value
            found += _operation_quirks(operation, inputs, fixed)
            found += _file_quirks(operation, blobs)
    return found


def _quirk(about: Function | Operation, quirk: str, name: str = "", **values: Any) -> Quirk:
    """Return the warning of the row ``quirk`` of ``quirks.csv``, with ``values`` put into its text.

    The warning is about an operation or a function; ``name`` is the affected input of a function.
    """
    row = QUIRKS[quirk]
    if isinstance(about, Operation):
        op = about.op
    else:
        op = name or about.name
    return Quirk(about.line, op, row["text"].format(**values), row["source"])


def _function_quirks(function: Function) -> Iterator[Quirk]:
    for name, kind in function.inputs:
        columns = None
        if isinstance(kind, Type) and kind.shape:
            columns = kind.shape[-1]
        if columns is None or (columns >= COLUMNS and columns % COLUMNS == 0):
            continue
        quirk = "gaps"
        if columns < COLUMNS:
            quirk = "narrow"
        yield _quirk(function, quirk, name, columns=columns, whole=COLUMNS)
    values = [operation.value for operation in function.operations]
    if any(value and isinstance(value.data, File) for value in values):
        yield _quirk(function, "compilations")


def _operation_quirks(
    operation: Operation, inputs: Mapping[str, Any], fixed: Mapping[str, Value | None]
) -> Iterator[Quirk]:
    op = operation.op
    arguments = dict(operation.arguments)
    if op in ("reduce_mean", "tile"):
        yield _quirk(operation, op)
    if op == "scaled_dot_product_attention" and "attn_mask" in arguments:
        yield _quirk(operation, "mask")
    if op == "cast" and any(kind.dtype == "fp32" for _, kind in operation.outputs):
        yield _quirk(operation, "cast")
    yield from _half_quirks(operation)
    if op == "softmax":
        size = _softmax_size(operation, arguments.get("axis"), fixed)
        if size and size & (size - 1):
            yield _quirk(operation, op, size=size)
    weight = arguments.get("weight")
    if op == "conv" and isinstance(weight, str) and weight not in fixed:
        yield _quirk(operation, "weights")
    if op == "slice_by_index" and arguments.get("x") in inputs:
        yield _quirk(operation, op)


def _softmax_size(operation: Operation, axis: Any, fixed: Mapping[str, Value | None]) -> int | None:
    """Return the number of elements along the axis of a softmax, or None if it is not known.

    ``fixed`` has constants by name, for an axis that is stated by name.
    """
    if not operation.outputs:
        return None
    shape = operation.outputs[0][1].shape
    if isinstance(axis, str):
        axis = fixed.get(axis)
    at = -1
    if isinstance(axis, Value) and isinstance(axis.data, int):
        at = axis.data
    if -len(shape) <= at < len(shape):
        return shape[at]
    return None


def _half_quirks(operation: Operation) -> Iterator[Quirk]:
    """Yield warnings for an fp16 constant of the text with numbers that fp16 rounds to 0 or
    infinity."""
    value = operation.value
    if value is None or isinstance(value.data, File) or not isinstance(value.type, Type):
        return
    if value.type.dtype != "fp16":
        return
    numbers = np.array(value.data, np.float64)
    with np.errstate(all="ignore"):
        halves = numbers.astype(np.float16)
    lost = {"0": (halves == 0) & (numbers != 0)}
    lost["infinite"] = np.isinf(halves) & np.isfinite(numbers)
    for half, wrong in lost.items():
        if wrong.any():
            number = float(numbers[wrong].flat[0])
            yield _quirk(operation, "half", number=number, half=half)


def _file_quirks(operation: Operation, blobs: weight_files.Files) -> Iterator[Quirk]:
    """Yield warnings for each constant that lies in a weight file.

    The offset may be none of a record. If ``blobs`` has the file, its record may have faults, or
    another type or size than the constant.
    """
    for _, value in (*operation.attributes, *operation.arguments):
        if not isinstance(value, Value) or not isinstance(value.data, File):
            continue
        kind = value.type
        if not isinstance(kind, Type):
            continue
        path, offset = value.data.path, value.data.offset
        if offset < weight_files.ALIGN or offset % weight_files.ALIGN:
            yield _quirk(operation, "offset", offset=offset)
        data = weight_files.file_at(blobs, path)
        if data is None:
            continue
        try:
            record, warnings = weight_files.record_at(data, offset)
        except ValueError as error:
            yield _quirk(operation, "record", text=error)
            continue
        for text in warnings:
            yield _quirk(operation, "record", text=f"{path}: {text}")
        about: dict[str, Any] = {"path": path, "offset": offset}
        if record.dtype != kind.dtype:
            yield _quirk(operation, "type", stored=record.dtype, dtype=kind.dtype, **about)
        bits = (kind.elements or 0) * DTYPES[kind.dtype][1]
        if not 0 <= 8 * record.size - bits < 8:
            needed = ceil_div(bits, 8)
            yield _quirk(operation, "size", size=record.size, type=kind, needed=needed, **about)
