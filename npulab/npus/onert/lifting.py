"""From what the runtime multiplied back to the layer."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from npulab.captures.capture import Capture
from npulab.captures.target import Lifted
from npulab.npus.onert.memory import RHS, codes_of, numbers, zero_point
from npulab.npus.onert.rules import multipliers, quantized_rows, rule_name
from npulab.npus.onert.words import ACTIVATIONS, HYBRID, NAMES, Values, values_of
from npulab.quant.emulate import clamp_range
from npulab.quant.layers import FullyConnected
from npulab.quant.rules import QuantParams


def lift(capture: Capture) -> Lifted:
    """The fully connected layer of the capture's words and packed weights, its input and captured
    output.

    Input and output have the leading axes that ``capture.parameters`` knows of the input, else
    ``(batches, ...)``. A hybrid layer has float32 input and output, a quantized one codes; scales
    are those of the words and buffers. Raises ValueError where words or bytes make no layer (blocks
    of another path, sizes that do not fit, fill that is not the zero point, wrong sums, packed rows
    that are not the input's), Unsupported without the weights' buffers.
    """
    v = values_of(capture)
    hybrid, count = v["operation"] == HYBRID, v["units"] if v["per_channel"] else 1
    scales = numbers(capture, "weight_scales", "<f4", count)
    if not np.all(np.isfinite(scales) & (scales > 0)):
        raise ValueError(f"capture {capture.name}: buffer 'weight_scales': got {scales.min()} to {scales.max()}, "
                         "allowed are positive finite numbers")
    weight_q = QuantParams(tuple(scales.tolist()) if v["per_channel"] else float(scales[0]), zero_point(v, "lhs"))
    activation = next(name for name, raw in ACTIVATIONS.items() if raw == v["activation"])
    layer = FullyConnected(
        codes_of(capture, v, "lhs"), numbers(capture, "biases", "<f4" if hybrid else "<i4", v["units"]), activation,
        QuantParams(float(v["input_scale"]), zero_point(v, "rhs")), weight_q,
        QuantParams(float(v["output_scale"]), v["dst_zero_point"]), _dtype(v, hybrid))
    if not hybrid:
        _formed(capture, v, layer, count)
    x = _input(capture, v, hybrid) if {"input", RHS} & {*capture.buffers} else None
    output = None
    if "output" in capture.buffers:
        output = numbers(capture, "output", "<f4" if hybrid else NAMES[v["dst_type"]], v["batches"], v["units"])
    shape = _shape(capture.parameters.get("input_shape"), v)
    if shape:
        x = x if x is None else x.reshape(shape)
        output = output if output is None else output.reshape(*shape[:_lead(shape, v)], v["units"])
    return Lifted(layer, x, output)


def _dtype(v: Values, hybrid: bool) -> str:
    """The type of the layer: that of its input."""
    return "float32" if hybrid else NAMES[v["rhs_type"]]


def _formed(capture: Capture, v: Values, layer: FullyConnected, count: int) -> None:
    """Multipliers and clamps are those that the layer's scales make."""
    for name, made in zip(("multipliers", "exponents"), multipliers(layer, capture.chip), strict=True):
        got = numbers(capture, name, "<i4", count)
        wrong = np.flatnonzero(got != made)
        if len(wrong):
            at = int(wrong[0])
            raise ValueError(f"capture {capture.name}: buffer {name!r}, number {at}: got {got[at]}, allowed with its "
                             f"scales is {made[at]}")
    dtype = np.dtype(NAMES[v["dst_type"]])
    allowed = clamp_range(layer, dtype, rule_name(capture.chip, bool(v["per_channel"])))
    if (v["clamp_min"], v["clamp_max"]) != allowed:
        raise ValueError(f"registers clamp_min and clamp_max: got {v['clamp_min']} and {v['clamp_max']}, allowed with "
                         f"{layer!r} is {allowed[0]} and {allowed[1]}")


def _input(capture: Capture, v: Values, hybrid: bool) -> np.ndarray | None:
    """The input ``(batches, input_size)``, found to be what the packed rows hold; None of float32
    where only these were recorded."""
    shape = v["batches"], v["input_size"]
    packed = codes_of(capture, v, "rhs") if RHS in capture.buffers else None
    scales = numbers(capture, "input_scales", "<f4", v["batches"]) if "input_scales" in capture.buffers else None
    if "input" not in capture.buffers:
        return None if hybrid else packed
    x = numbers(capture, "input", "<f4" if hybrid else NAMES[v["rhs_type"]], *shape).copy()
    if not hybrid:
        _agree(capture, packed, x, RHS)
        return x
    codes, made = quantized_rows(x)
    _agree(capture, packed, codes, RHS)
    _agree(capture, scales, made, "input_scales")
    return x


def _agree(capture: Capture, got: np.ndarray | None, made: np.ndarray, name: str) -> None:
    if got is None or np.array_equal(got, made):
        return
    at = tuple(int(n) for n in np.argwhere(got != made)[0])
    where = f"batch {at[0]}" + (f", input {at[1]}" if len(at) > 1 else "")
    raise ValueError(f"capture {capture.name}: buffer {name!r}, {where}: got {got[at]}, "
                     f"allowed is {made[at]}, which the input makes")


def _shape(known: Any, v: Values) -> tuple[int, ...]:
    """The input's shape where it is known and fits; () where not."""
    if not isinstance(known, list) or not all(type(n) is int and n > 0 for n in known):
        return ()
    shape = tuple(known)
    fits = math.prod(shape) == v["batches"] * v["input_size"] and _lead(shape, v) >= 0
    return shape if fits else ()


def _lead(shape: tuple[int, ...], v: Values) -> int:
    """How many axes are batches: all but the last three where these make an input together, all but
    the last where that does; -1 where neither."""
    for axes in (3, 1):
        if len(shape) >= axes and math.prod(shape[-axes:]) == v["input_size"]:
            return len(shape) - axes
    return -1


