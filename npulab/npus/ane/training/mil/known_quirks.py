"""Warnings for MIL programs that are known to go wrong on the ANE, found in a program and its
weight files. ``quirks.csv`` says what each quirk does and where it was seen."""

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
    """A warning: ``line`` (0 for a program that was not read from a text), ``op`` (the operation,
    function or input that it is about), its ``text``, and the ``source`` where it was seen."""

    line: int
    op: str
    text: str
    source: str


def quirks(program: Program, blobs: weight_files.Files = None) -> list[Quirk]:
    """Return warnings for the known effects of the ANE and its compiler on a program, in its order.

    Each names where it was seen. Other builds and chips may differ, and a quirk does not by itself
    make a program wrong. With ``blobs`` (a weight file, or files by path) the records of constants
    are looked at too.
    """
    found: list[Quirk] = []
    for function in program.functions:
        found += _function_quirks(function)
        inputs = dict(function.inputs)
        # The names that do not depend on an input, with their constants.
        fixed: dict[str, Value | None] = {}
        for operation in function.operations:
            if all(name in fixed for name in operation.names):
                for name, _ in operation.outputs:
                    fixed[name] = operation.value
            found += _operation_quirks(operation, inputs, fixed)
            found += _file_quirks(operation, blobs)
    return found


def _quirk(about: Function | Operation, quirk: str, name: str = "", **values: Any) -> Quirk:
    """Return the warning of a row of ``quirks.csv`` with values in its text, about an operation, a
    function or a name of a function."""
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
    """Return the size of a softmax's axis, None if it is not known."""
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
    """Yield warnings for fp16 constants in the text that become 0 or infinite in fp16."""
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
    """Yield warnings for constants of a weight file: a record with faults, and a record of another
    type or size than the constant."""
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
