"""The words of a multiplication, found to agree with its path and its sizes: what lift begins
with."""

from __future__ import annotations

from typing import Any

import numpy as np

from npulab.captures.capture import Capture
from npulab.captures.target import Unsupported
from npulab.npus.kit.fields import expect
from npulab.npus.kit.numbers import up
from npulab.npus.onert.facts import AVOIDS, BLOCK, CACHED, FACTS, FEATURES, FUSED, MOST_BYTES, SIDES, enum
from npulab.npus.onert.layouts import apart

HYBRID, QUANTIZED = enum("operation")["hybrid"], enum("operation")["quantized"]
ACTIVATIONS = {None if name == "none" else name: raw for name, raw in enum("activation").items()}
SCALARS = enum("scalar")
NAMES = {raw: name for name, raw in SCALARS.items()}
CODES = (SCALARS["uint8"], SCALARS["int8"])
CAN = {HYBRID: ((SCALARS["int8"],), (SCALARS["int8"],)), QUANTIZED: (CODES, CODES)}
INT32 = (-2 ** 31, 2 ** 31 - 1)
Values = dict[str, Any]


def values_of(capture: Capture) -> Values:
    """The words of the capture's one multiplication, by field, as meant.

    Raises Unsupported where it has other jobs, ValueError where its words contradict the path, one
    another or the sizes that a buffer may have.
    """
    if [job.block for job in capture.jobs] != [BLOCK]:
        blocks = ", ".join(job.block for job in capture.jobs) or "none"
        raise Unsupported(f"capture {capture.name}: got jobs {blocks}, a layer is lifted from one of {BLOCK}")
    facts = FACTS.features(capture.chip)
    v = capture.maps[BLOCK].decode(capture.words)
    _sizes(v)
    _same(v, "path", facts["path"], capture.chip)
    for side in SIDES:
        _side(v, side, facts[f"{side}_kernel_rows"], facts[f"{side}_kernel_columns"], capture.chip)
    _types(v)
    return v


def features_of(capture: Capture) -> tuple[str, ...]:
    """The features that ``lower`` is to be asked for to give the capture's words again; raises as
    ``values_of``."""
    v = values_of(capture)
    said = {CACHED: v["lhs_is_prepacked"], FUSED: v["fused_multiply_add"],
            AVOIDS: any(v[f"{side}_stride"] > v[f"{side}_rows"] for side in SIDES)}
    return tuple(name for name in FEATURES if said[name])


def _sizes(v: Values) -> None:
    for name in ("batches", "units", "input_size"):
        if not 1 <= v[name] <= MOST_BYTES:
            raise ValueError(f"register {name}: got {v[name]}, allowed is 1 to {MOST_BYTES}")
    for what, size in (("weights", v["units"] * v["input_size"]), ("input", 4 * v["batches"] * v["input_size"]),
                       ("output", 4 * v["batches"] * v["units"])):
        if size > MOST_BYTES:
            raise ValueError(f"registers batches, units, input_size: got {v['batches']}, {v['units']} and "
                             f"{v['input_size']}, which make {what} of {size} bytes, allowed is {MOST_BYTES}")


def _side(v: Values, side: str, rows: int, columns: int, chip: str) -> None:
    """Blocks are those of the path, and as many as the sizes need."""
    count = v["units" if side == "lhs" else "batches"]
    _same(v, f"{side}_kernel_rows", rows, chip)
    _same(v, f"{side}_kernel_columns", columns, chip)
    for name in ("order", "kernel_order"):
        _same(v, f"{side}_{name}", 0, chip)
    high, words = up(v["input_size"], rows), f"blocks of {rows} x {columns}"
    _same(v, f"{side}_rows", high, f"{v['input_size']} rows in {words}")
    _same(v, f"{side}_columns", up(count, columns), f"{count} columns in {words}")
    if v[f"{side}_stride"] not in (high, apart(high)):
        allowed = " or ".join(map(str, dict.fromkeys((high, apart(high)))))
        raise ValueError(f"register {side}_stride: got {v[f'{side}_stride']}, allowed with {high} rows is {allowed}")
    if v[f"{side}_stride"] * v[f"{side}_columns"] > MOST_BYTES:
        raise ValueError(f"register {side}_columns: got {v[f'{side}_columns']} of {v[f'{side}_stride']} bytes, allowed "
                         f"are {MOST_BYTES} bytes")


def _types(v: Values) -> None:
    operation = v["operation"]
    if operation not in CAN:
        raise ValueError(f"register call field operation: got {operation}, allowed is "
                         f"{HYBRID} (hybrid) or {QUANTIZED} (quantized)")
    if v["activation"] not in ACTIVATIONS.values():
        raise ValueError(f"register call field activation: got {v['activation']}, allowed is one of "
                         f"{', '.join(map(str, ACTIVATIONS.values()))}")
    allowed = dict(zip(SIDES, CAN[operation], strict=True))
    for side in SIDES:
        if v[f"{side}_type"] not in allowed[side]:
            raise ValueError(f"register types field {side}_type: got {v[f'{side}_type']}, allowed is "
                             f"{' or '.join(f'{raw} ({NAMES[raw]})' for raw in allowed[side])}")
    hybrid = operation == HYBRID
    _same(v, "packed_type", SCALARS["int8"], "8-bit kernels")
    _same(v, "dst_type", SCALARS["int32"] if hybrid else v["rhs_type"], "this operation")
    _same(v, "dst_stride", v["units"], f"{v['units']} units")
    for name in ("lhs_zero_point", "rhs_zero_point"):
        if hybrid:
            _same(v, name, 0, "a hybrid layer")
        elif not -128 <= v[name] <= 127:
            raise ValueError(f"register {name}: got {v[name]}, allowed is -128 to 127")
    if hybrid:
        _same(v, "dst_zero_point", 0, "a hybrid layer")
        for name, bound in zip(("clamp_min", "clamp_max"), INT32, strict=True):
            _same(v, name, bound, "sums of int32")
    elif v["fused_multiply_add"]:
        raise ValueError("register call field fused_multiply_add: got 1, allowed with codes is 0")
    for name in ("input_scale", "output_scale"):
        if not (np.isfinite(v[name]) and v[name] > 0):
            raise ValueError(f"register {name}: got {v[name]}, allowed is a positive finite float32")


def _same(v: Values, name: str, value: int, what: str) -> None:
    expect(v, {name: (value,)}, f"field {{name}}: got {{got}}, allowed with {what} is {{allowed}}")
