"""The words of a multiplication, checked against its path and its sizes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from npulab.npus.kit import SIGNED, Capture, expect, only_job, refuse_if, up
from npulab.npus.onert.facts import BLOCK, EXPECTED, FACTS, MOST_BYTES, SIDES
from npulab.npus.onert.layouts import apart

HYBRID, QUANTIZED = FACTS.enum("operation")["hybrid"], FACTS.enum("operation")["quantized"]
ACTIVATION_NAMES: dict[int, str | None] = {
    raw: name for name, raw in FACTS.enum("activation").items()
}
ACTIVATION_NAMES[FACTS.enum("activation")["none"]] = None
ACTIVATIONS = {name: raw for raw, name in ACTIVATION_NAMES.items()}
SCALARS = FACTS.enum("scalar")
NAMES = {raw: name for name, raw in SCALARS.items()}
DTYPES = ("float32", "int8", "uint8")  # types of a layer's input; float32 for a hybrid layer
INT32 = (-(2**31), 2**31 - 1)
Values = dict[str, Any]
Allowed = tuple[str, Collection[int], str]


def values_of(capture: Capture) -> Values:
    """Return the values of the capture's one multiplication, by field.

    Raises Unsupported if the capture has other jobs, ValueError if its words contradict the path,
    each other, or the most bytes of a buffer.
    """
    v = only_job(capture, BLOCK, "a layer is lifted from")
    for name, allowed, reason in _allowed(v, capture.chip):
        text = f"field {{name}}: got {{got}}, allowed with {reason} is {{allowed}}"
        expect(v, {name: allowed}, text)
    for name in ("input_scale", "output_scale"):
        if not (np.isfinite(v[name]) and v[name] > 0):
            raise ValueError(f"field {name}: got {v[name]}, allowed is a positive finite float32")
    return v


def _allowed(v: Values, chip: str) -> Iterator[Allowed]:
    """Yield (field, the values that it may have, the reason). The order matters: the values of a
    row are right only if the fields of all rows before it have allowed values.
    """
    facts = FACTS.features(chip)
    for name in ("batches", "units", "input_size"):
        yield name, range(1, MOST_BYTES + 1), "this runtime"
    batches, units, depth = v["batches"], v["units"], v["input_size"]
    sizes = {"weights": units * depth, "input": 4 * batches * depth, "output": 4 * batches * units}
    for what, size in sizes.items():
        refuse_if(
            size > MOST_BYTES,
            "fields batches, units, input_size",
            f"{batches}, {units} and {depth}, which make {what} of {size} bytes",
            f"is {MOST_BYTES}",
        )
    yield "path", (facts["path"],), chip
    yield from _allowed_side("lhs", units, v, facts, chip)
    yield from _allowed_side("rhs", batches, v, facts, chip)
    yield from _of_table("hybrid or quantized layers", "this runtime", "8-bit kernels")
    yield "dst_stride", (units,), f"{units} units"
    if v["operation"] == HYBRID:
        yield from _of_table("a hybrid layer", "this operation", "sums of int32")
        return
    yield from _of_table("codes")
    yield "dst_type", (v["rhs_type"],), "this operation"
    for side in SIDES:
        yield f"{side}_zero_point", range(-SIGNED, SIGNED), "codes"


def _of_table(*reasons: str) -> Iterator[Allowed]:
    """Yield (field, allowed values, reason) from ``expected.csv``, for each of ``reasons``."""
    for reason in reasons:
        for name, allowed in EXPECTED[reason].items():
            yield name, allowed, reason


def _allowed_side(
    side: str, count: int, v: Values, facts: Mapping[str, int], chip: str
) -> Iterator[Allowed]:
    """Yield (field, allowed values, reason) for the fields of a packed matrix: ``side`` is "lhs" or
    "rhs", ``count`` the number of columns before packing."""
    depth = v["input_size"]
    rows, columns = facts[f"{side}_kernel_rows"], facts[f"{side}_kernel_columns"]
    high, wide = up(depth, rows), up(count, columns)
    blocks = f"blocks of {rows} x {columns}"
    of_path = {"kernel_rows": rows, "kernel_columns": columns, "order": 0, "kernel_order": 0}
    for name, value in of_path.items():
        yield f"{side}_{name}", (value,), chip
    yield f"{side}_rows", (high,), f"{depth} rows in {blocks}"
    yield f"{side}_columns", (wide,), f"{count} columns in {blocks}"
    yield f"{side}_stride", dict.fromkeys((high, apart(high))), f"{high} rows"
    stride = v[f"{side}_stride"]
    yield f"{side}_columns", range(1, MOST_BYTES // stride + 1), f"columns of {stride} bytes"
