"""The words of a multiplication, checked against its path and its sizes: what lift begins with."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from npulab.npus.kit import SIGNED, Capture, expect, only_job, refuse_if, up
from npulab.npus.onert.facts import BLOCK, FACTS, MOST_BYTES, SIDES
from npulab.npus.onert.layouts import apart

HYBRID, QUANTIZED = FACTS.enum("operation")["hybrid"], FACTS.enum("operation")["quantized"]
ACTIVATIONS = {
    None if name == "none" else name: raw for name, raw in FACTS.enum("activation").items()
}
ACTIVATION_NAMES = {raw: name for name, raw in ACTIVATIONS.items()}
SCALARS = FACTS.enum("scalar")
NAMES = {raw: name for name, raw in SCALARS.items()}
INT8, CODES = (SCALARS["int8"],), (SCALARS["uint8"], SCALARS["int8"])
INT32 = (-(2**31), 2**31 - 1)
Values = dict[str, Any]


def values_of(capture: Capture) -> Values:
    """The words of the capture's one multiplication, by field, as meant.

    Raises Unsupported if it has other jobs, ValueError if its words contradict the path, one
    another or the sizes that a buffer may have.
    """
    v, facts = only_job(capture, BLOCK, "a layer is lifted from"), FACTS.features(capture.chip)
    for name, allowed, what in _allowed(v, facts, capture.chip):
        expect(
            v, {name: allowed}, f"field {{name}}: got {{got}}, allowed with {what} is {{allowed}}"
        )
    for name in ("input_scale", "output_scale"):
        if not (np.isfinite(v[name]) and v[name] > 0):
            raise ValueError(f"field {name}: got {v[name]}, allowed is a positive finite float32")
    return v


def _allowed(
    v: Values,
    facts: Mapping[str, int],
    chip: str,
) -> Iterator[tuple[str, Collection[int], str]]:
    """(field, the values it may have, with what), in order: a row relies on those before it."""
    for name in ("batches", "units", "input_size"):
        yield name, range(1, MOST_BYTES + 1), "this runtime"
    batches, units, depth = v["batches"], v["units"], v["input_size"]
    _fits("weights", units * depth, v)
    _fits("input", 4 * batches * depth, v)
    _fits("output", 4 * batches * units, v)
    yield "path", (facts["path"],), chip
    for side, count in (("lhs", units), ("rhs", batches)):
        rows, columns = facts[f"{side}_kernel_rows"], facts[f"{side}_kernel_columns"]
        high, blocks = up(depth, rows), f"blocks of {rows} x {columns}"
        for name, value in (
            ("kernel_rows", rows),
            ("kernel_columns", columns),
            ("order", 0),
            ("kernel_order", 0),
        ):
            yield f"{side}_{name}", (value,), chip
        yield f"{side}_rows", (high,), f"{depth} rows in {blocks}"
        yield f"{side}_columns", (up(count, columns),), f"{count} columns in {blocks}"
        yield f"{side}_stride", dict.fromkeys((high, apart(high))), f"{high} rows"
        most = MOST_BYTES // v[f"{side}_stride"]
        yield f"{side}_columns", range(1, most + 1), f"columns of {v[f'{side}_stride']} bytes"
    yield "operation", (HYBRID, QUANTIZED), "hybrid or quantized layers"
    hybrid = v["operation"] == HYBRID
    layer, types = ("a hybrid layer", INT8) if hybrid else ("codes", CODES)
    yield "activation", ACTIVATION_NAMES, "this runtime"
    yield "lhs_type", types, layer
    yield "rhs_type", types, layer
    yield "packed_type", INT8, "8-bit kernels"
    yield "dst_type", (SCALARS["int32"] if hybrid else v["rhs_type"],), "this operation"
    yield "dst_stride", (units,), f"{units} units"
    for side in SIDES:
        yield f"{side}_zero_point", (0,) if hybrid else range(-SIGNED, SIGNED), layer
    if hybrid:
        yield "dst_zero_point", (0,), layer
        for name, bound in zip(("clamp_min", "clamp_max"), INT32, strict=True):
            yield name, (bound,), "sums of int32"
    else:
        yield "fused_multiply_add", (0,), layer


def _fits(what: str, size: int, v: Values) -> None:
    refuse_if(
        size > MOST_BYTES,
        "fields batches, units, input_size",
        f"{v['batches']}, {v['units']} and {v['input_size']}, which make {what} of {size} bytes",
        f"is {MOST_BYTES}",
    )
