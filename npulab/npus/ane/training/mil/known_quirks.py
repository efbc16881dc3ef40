"""What is known to go wrong with MIL programs on the ANE, told from a program and its weight
files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from npulab.npus.ane.training import blobs as weight_files
from npulab.npus.ane.training.mil.values import DTYPES, File, Function, Operation, Program, Type, Value

COLUMNS = 32  # fp16 of a row of 64 bytes
COMPILES = 119
GUIDE = "skyfallsin/apple-neural-engine-field-guide@4a1b518: README.md"
GOTCHAS = "hollance/neural-engine#44"
TRAINING = "maderix/ANE: README.md"
PEAK = "maderix/ANE: inmem_peak.m"
FORMAT = "apple/coremltools: MILBlob/Blob/StorageFormat.hpp"


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
        given, fixed = dict(function.inputs), dict[str, Value | None]()
        for operation in function.operations:
            if all(name in fixed for name in operation.names):
                fixed |= {name: operation.value for name, _ in operation.outputs}
            arguments = dict(operation.arguments)
            found += _named(operation)
            found += _arithmetic(operation)
            if operation.op == "softmax":
                found += _softmax(operation, fixed)
            if operation.op == "conv" and isinstance(arguments.get("weight"), str) and arguments["weight"] not in fixed:
                found.append(_of(operation, "weights that come from an input are ignored without an error: the "
                                            "convolution reads what was compiled in", GUIDE))
            if operation.op == "slice_by_index" and arguments.get("x") in given:
                found.append(_of(operation, "slice_by_index of an input, together with RMSNorm and convolutions, was "
                                            "refused as InvalidMILProgram; slice_by_size is not", GOTCHAS))
            found += _file(operation, blobs)
    return found


def _of(operation: Operation, text: str, source: str) -> Quirk:
    return Quirk(operation.line, operation.op, text, source)


def _function(function: Function) -> Iterator[Quirk]:
    for name, kind in function.inputs:
        columns = kind.shape[-1] if isinstance(kind, Type) and kind.shape else None
        if columns is not None and columns < COLUMNS:
            yield Quirk(function.line, name, f"an input of {columns} columns compiles and gives garbage; rows of fp16 "
                                             f"have at least {COLUMNS} (64 bytes)", GUIDE)
        elif columns is not None and columns % COLUMNS:
            yield Quirk(function.line, name, f"rows of {columns} columns have gaps in memory: a copy of exactly C * S "
                                             f"elements fits only multiples of {COLUMNS}", "maderix/ANE: stories_io.h")
    if any(operation.value and isinstance(operation.value.data, File) for operation in function.operations):
        yield Quirk(function.line, function.name, "weights are compiled in: a change of them is another compilation, "
                                                  f"and about {COMPILES} are what a process can do", TRAINING)


NAMED: dict[str, tuple[str, str]] = {
    "reduce_mean": ("reduce_mean is not there in some builds of the text compiler; reduce_sum and a mul by 1/N are",
                    GOTCHAS),
    "tile": ("after a program with tile ran, every later one of the process may fail (status 0x1d)", GUIDE)}


def _named(operation: Operation) -> Iterator[Quirk]:
    if operation.op in NAMED:
        yield _of(operation, *NAMED[operation.op])
    if operation.op == "scaled_dot_product_attention" and "attn_mask" in dict(operation.arguments):
        yield _of(operation, "attn_mask is ignored: a causal mask has to be added before a softmax of its own",
                  TRAINING)
    if operation.op == "cast" and any(kind.dtype == "fp32" for _, kind in operation.outputs):
        yield _of(operation, "casts to and from fp32 do not compile on M1 and M2; inputs and outputs of fp16 do", PEAK)


def _softmax(operation: Operation, fixed: Mapping[str, Value | None]) -> Iterator[Quirk]:
    shape, axis = operation.outputs[0][1].shape if operation.outputs else (), dict(operation.arguments).get("axis")
    value = fixed.get(axis) if isinstance(axis, str) else axis
    at = value.data if isinstance(value, Value) and isinstance(value.data, int) else -1
    size = shape[at] if -len(shape) <= at < len(shape) else None
    if size and size & (size - 1):
        yield _of(operation, f"softmax over {size}, which is no power of two, was refused as InvalidMILProgram",
                  GOTCHAS)


def _arithmetic(operation: Operation) -> Iterator[Quirk]:
    value = operation.value
    if value is None or not isinstance(value.type, Type) or value.type.dtype != "fp16" or isinstance(value.data, File):
        return
    data = np.array(value.data, np.float64)
    with np.errstate(all="ignore"):
        halves = data.astype(np.float16)
    for what, wrong in (("0", (halves == 0) & (data != 0)), ("infinite", np.isinf(halves) & np.isfinite(data))):
        if wrong.any():
            yield _of(operation, f"{float(data[wrong].flat[0])!r} is {what} as fp16", "IEEE 754 binary16")


def _file(operation: Operation, blobs: Mapping[str, bytes] | bytes | None) -> Iterator[Quirk]:
    for _, value in (*operation.attributes, *operation.arguments):
        if not isinstance(value, Value) or not isinstance(value.data, File) or not isinstance(value.type, Type):
            continue
        file = value.data
        if file.offset < weight_files.ALIGN or file.offset % weight_files.ALIGN:
            yield _of(operation, f"BLOBFILE offset {file.offset} is that of a record, not of data: the first is 64, "
                                 "and all are multiples of 64", FORMAT)
        data = blobs.get(file.path) if isinstance(blobs, Mapping) else blobs
        if data is None:
            continue
        try:
            record, warnings = weight_files.record_at(data, file.offset)
        except ValueError as error:
            yield _of(operation, str(error), FORMAT)
            continue
        for text in warnings:
            yield _of(operation, f"{file.path}: {text}", FORMAT)
        if record.dtype != value.type.dtype:
            yield _of(operation, f"{file.path}: record at byte {file.offset} says {record.dtype}, the program "
                                 f"{value.type.dtype}, as the int8 benchmark does under dtype 1", PEAK)
        bits = (value.type.elements or 0) * DTYPES[value.type.dtype][1]
        if not 0 <= 8 * record.size - bits < 8:
            yield _of(operation, f"{file.path}: record at byte {file.offset} has {record.size} bytes, {value.type} "
                                 f"takes {-(-bits // 8)}", FORMAT)

