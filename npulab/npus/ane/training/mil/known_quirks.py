"""What is known to go wrong with MIL programs on the ANE, told from a program and its weight files:
``quirks.csv`` states what each quirk does and where it was seen."""

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

COLUMNS = 32  # fp16 of a row of 64 bytes
QUIRKS = {row["quirk"]: row for row in read_table(Path(__file__).parent / "quirks.csv")}


class Quirk(NamedTuple):
    """A warning: line (0 of a program that was not read), operation or what else it is about, text,
    source."""

    line: int
    op: str
    text: str
    source: str


def quirks(program: Program, blobs: Mapping[str, bytes] | bytes | None = None) -> list[Quirk]:
    """Warnings for what the ANE or its compiler is known to do to such a program, in its order.

    Each names where it was seen; other builds and chips may differ, and none makes a program wrong
    by itself.  With ``blobs`` (a weight file, or by path) the records that constants point at are
    looked at too.
    """
    found: list[Quirk] = []
    for function in program.functions:
        found += _function(function)
        inputs, fixed = dict(function.inputs), dict[str, Value | None]()
        for operation in function.operations:
            if all(name in fixed for name in operation.names):
                fixed |= {name: operation.value for name, _ in operation.outputs}
            found += _operation(operation, inputs, fixed)
            found += _file(operation, blobs)
    return found


def _quirk(about: Function | Operation, quirk: str, name: str = "", **values: Any) -> Quirk:
    """A row of ``quirks.csv`` with values in its text, about an operation or a name of a
    function.
    """
    row = QUIRKS[quirk]
    if isinstance(about, Operation):
        op = about.op
    else:
        op = name or about.name
    return Quirk(about.line, op, row["text"].format(**values), row["source"])


def _function(function: Function) -> Iterator[Quirk]:
    for name, kind in function.inputs:
        columns = None
        if isinstance(kind, Type) and kind.shape:
            columns = kind.shape[-1]
        if columns is not None and (columns < COLUMNS or columns % COLUMNS):
            yield _quirk(
                function,
                "narrow" if columns < COLUMNS else "gaps",
                name,
                columns=columns,
                whole=COLUMNS,
            )
    if any(
        operation.value and isinstance(operation.value.data, File)
        for operation in function.operations
    ):
        yield _quirk(function, "compilations")


def _operation(
    operation: Operation, inputs: Mapping[str, Any], fixed: Mapping[str, Value | None]
) -> Iterator[Quirk]:
    op, arguments = operation.op, dict(operation.arguments)
    if op in ("reduce_mean", "tile"):
        yield _quirk(operation, op)
    if op == "scaled_dot_product_attention" and "attn_mask" in arguments:
        yield _quirk(operation, "mask")
    if op == "cast" and any(kind.dtype == "fp32" for _, kind in operation.outputs):
        yield _quirk(operation, "cast")
    yield from _arithmetic(operation)
    if op == "softmax":
        shape = operation.outputs[0][1].shape if operation.outputs else ()
        axis = arguments.get("axis")
        value = axis
        if isinstance(axis, str):
            value = fixed.get(axis)
        at = -1
        if isinstance(value, Value) and isinstance(value.data, int):
            at = value.data
        size = shape[at] if -len(shape) <= at < len(shape) else None
        if size and size & (size - 1):
            yield _quirk(operation, op, size=size)
    weight = arguments.get("weight")
    if op == "conv" and isinstance(weight, str) and weight not in fixed:
        yield _quirk(operation, "weights")
    if op == "slice_by_index" and arguments.get("x") in inputs:
        yield _quirk(operation, op)


def _arithmetic(operation: Operation) -> Iterator[Quirk]:
    value = operation.value
    if (
        value is None
        or not isinstance(value.type, Type)
        or value.type.dtype != "fp16"
        or isinstance(value.data, File)
    ):
        return
    data = np.array(value.data, np.float64)
    with np.errstate(all="ignore"):
        halves = data.astype(np.float16)
    for half, wrong in (
        ("0", (halves == 0) & (data != 0)),
        ("infinite", np.isinf(halves) & np.isfinite(data)),
    ):
        if wrong.any():
            yield _quirk(operation, "half", number=float(data[wrong].flat[0]), half=half)


def _file(operation: Operation, blobs: Mapping[str, bytes] | bytes | None) -> Iterator[Quirk]:
    for _, value in (*operation.attributes, *operation.arguments):
        if (
            not isinstance(value, Value)
            or not isinstance(value.data, File)
            or not isinstance(value.type, Type)
        ):
            continue
        path, offset = value.data.path, value.data.offset
        if offset < weight_files.ALIGN or offset % weight_files.ALIGN:
            yield _quirk(operation, "offset", offset=offset)
        data = blobs.get(path) if isinstance(blobs, Mapping) else blobs
        if data is None:
            continue
        try:
            record, warnings = weight_files.record_at(data, offset)
        except ValueError as error:
            yield _quirk(operation, "record", text=error)
            continue
        for text in warnings:
            yield _quirk(operation, "record", text=f"{path}: {text}")
        if record.dtype != value.type.dtype:
            yield _quirk(
                operation,
                "type",
                path=path,
                offset=offset,
                stored=record.dtype,
                dtype=value.type.dtype,
            )
        bits = (value.type.elements or 0) * DTYPES[value.type.dtype][1]
        if not 0 <= 8 * record.size - bits < 8:
            yield _quirk(
                operation,
                "size",
                path=path,
                offset=offset,
                size=record.size,
                type=value.type,
                needed=ceil_div(bits, 8),
            )
