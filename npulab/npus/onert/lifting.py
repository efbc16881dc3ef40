"""From what the runtime multiplied back to the layer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from npulab.npus.kit import Capture, Lifted, refuse_if
from npulab.npus.onert.memory import RHS, codes_of, numbers, zero_point
from npulab.npus.onert.rules import multipliers, quantized_rows, rule_name
from npulab.npus.onert.words import ACTIVATION_NAMES, HYBRID, NAMES, Values, values_of
from npulab.quant.emulate import clamp_range
from npulab.quant.layers import FullyConnected, Layer, QuantParams


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
    if hybrid:
        dtype = "float32"
    else:
        dtype = NAMES[v["rhs_type"]]
    scales = numbers(capture, "weight_scales", "float32", count)
    if not np.all(np.isfinite(scales) & (scales > 0)):
        raise ValueError(
            f"capture {capture.name}: buffer 'weight_scales': got {scales.min()} to "
            f"{scales.max()}, allowed are positive finite numbers"
        )
    weight_scale = tuple(scales.tolist()) if v["per_channel"] else float(scales[0])
    layer = FullyConnected(
        codes_of(capture, v, "lhs"),
        numbers(capture, "biases", "float32" if hybrid else "int32", v["units"]),
        ACTIVATION_NAMES[v["activation"]],
        QuantParams(float(v["input_scale"]), zero_point(v, "rhs")),
        QuantParams(weight_scale, zero_point(v, "lhs")),
        QuantParams(float(v["output_scale"]), v["dst_zero_point"]),
        dtype,
    )
    if not hybrid:
        _check_requantizing(capture, v, layer, count)
    x, output = _input(capture, v, dtype), None
    shape, batches = _shape(capture.parameters.get("input_shape"), v)
    if "output" in capture.buffers:
        output = numbers(capture, "output", dtype, *batches, v["units"])
    return Lifted(layer, None if x is None else x.reshape(shape), output)


def _check_requantizing(capture: Capture, v: Values, layer: FullyConnected, count: int) -> None:
    """Raise ValueError if multipliers and clamps are not those that the layer's scales make."""
    for name, made in zip(
        ("multipliers", "exponents"), multipliers(layer, capture.chip), strict=True
    ):
        got = numbers(capture, name, "int32", count)
        wrong = np.flatnonzero(got != made)
        if len(wrong):
            at = int(wrong[0])
            raise ValueError(
                f"capture {capture.name}: buffer {name!r}, number {at}: got {got[at]}, "
                f"allowed with its scales is {made[at]}"
            )
    rule = rule_name(capture.chip, bool(v["per_channel"]))
    low, high = clamp_range(layer, np.dtype(layer.dtype), rule)
    refuse_if(
        (v["clamp_min"], v["clamp_max"]) != (low, high),
        "registers clamp_min and clamp_max",
        f"{v['clamp_min']} and {v['clamp_max']}",
        f"with {layer!r} is {low} and {high}",
    )


def _input(capture: Capture, v: Values, dtype: str) -> np.ndarray | None:
    """The input ``(batches, input_size)``, checked against the packed rows; None of float32 if only
    these were recorded."""
    packed = None
    if RHS in capture.buffers:
        packed = codes_of(capture, v, "rhs")
    scales = None
    if "input_scales" in capture.buffers:
        scales = numbers(capture, "input_scales", "float32", v["batches"])
    if "input" not in capture.buffers:
        if dtype == "float32":
            return None
        return packed
    x = numbers(capture, "input", dtype, v["batches"], v["input_size"]).copy()
    if dtype == "float32":
        codes, row_scales = quantized_rows(x)
    else:
        codes, row_scales = x, None
    _agree(capture, RHS, packed, codes)
    if row_scales is not None:
        _agree(capture, "input_scales", scales, row_scales)
    return x


def _agree(capture: Capture, name: str, got: np.ndarray | None, made: np.ndarray) -> None:
    if got is None or np.array_equal(got, made):
        return
    at = tuple(np.argwhere(got != made)[0].tolist())
    where = ", ".join(f"{axis} {n}" for axis, n in zip(("batch", "input"), at, strict=False))
    raise ValueError(
        f"capture {capture.name}: buffer {name!r}, {where}: got {got[at]}, allowed is "
        f"{made[at]}, which the input makes"
    )


def _shape(known: Any, v: Values) -> tuple[Sequence[int], Sequence[int]]:
    """(the input's shape, those of its axes that are batches): as known if that fits, else of two
    axes.

    Batches are all axes but the last three if these make an input together, all but the last if
    that does.
    """
    if (
        isinstance(known, list)
        and all(type(n) is int and n > 0 for n in known)
        and math.prod(known) == v["batches"] * v["input_size"]
    ):
        for axes in (3, 1):
            if len(known) >= axes and math.prod(known[-axes:]) == v["input_size"]:
                return known, known[:-axes]
    return (v["batches"], v["input_size"]), (v["batches"],)


HINTS = ("outputs", "inputs", "hybrid", "activation")
QUANTIZED_HINTS = (
    "input zero point",
    "weight zero point",
    "output zero point",
    "input scale",
    "output scale",
)


def outline(subject: Capture | Layer) -> Mapping[str, Any]:
    """Outputs, inputs, operation and activation by name, of a quantized layer zero points and
    scales too.

    Empty for words that contradict one another, and for layers that the runtime multiplies in
    another way.
    """
    values: tuple[Any, ...]
    if isinstance(subject, Capture):
        try:
            v = values_of(subject)
        except ValueError:
            return {}
        hybrid = v["operation"] == HYBRID
        values = (
            v["units"],
            v["input_size"],
            hybrid,
            ACTIVATION_NAMES[v["activation"]],
            zero_point(v, "rhs"),
            zero_point(v, "lhs"),
            v["dst_zero_point"],
            float(v["input_scale"]),
            float(v["output_scale"]),
        )
    elif isinstance(subject, FullyConnected) and subject.dtype in ("float32", "int8", "uint8"):
        hybrid, scaled = subject.dtype == "float32", (subject.input_q, subject.output_q)
        values = (
            *subject.weights.shape,
            hybrid,
            subject.activation,
            subject.input_q.zero_point,
            subject.weight_q.zero_point,
            subject.output_q.zero_point,
            *(np.asarray(q.scale, np.float32).item() for q in scaled),
        )
    else:
        return {}
    return dict(zip(HINTS if hybrid else HINTS + QUANTIZED_HINTS, values, strict=False))
