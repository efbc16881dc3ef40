"""From the runtime's multiplication back to the layer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy import ndarray as Array

from npulab.npus.kit import Capture, Lifted, refuse_if
from npulab.npus.onert.memory import RHS, codes_of, numbers, zero_point
from npulab.npus.onert.rules import multipliers, quantized_rows, rule_name
from npulab.npus.onert.words import ACTIVATION_NAMES, DTYPES, HYBRID, NAMES, Values, values_of
from npulab.quant.emulate import clamp_range
from npulab.quant.layers import FullyConnected, Layer, QuantParams

# Names in the outline of a quantized layer: of its zero points, and of its scales.
POINTS = ("input zero point", "weight zero point", "output zero point")
SCALES = ("input scale", "output scale")


def lift(capture: Capture) -> Lifted:
    """Return the fully connected layer of the capture's words and packed weights, its input and
    captured output.

    Input and output have the leading axes of ``capture.parameters["input_shape"]``, else
    ``(batches, ...)``. A hybrid layer has float32 input and output, a quantized layer codes. Scales
    are read from words and buffers. Raises ValueError if words or bytes are not a layer's, for
    example for blocks of another path, sizes that do not fit, fill that is not the zero point,
    wrong sums, or packed rows that differ from the input. Raises Unsupported without the weights'
    buffers.
    """
    v = values_of(capture)
    hybrid = v["operation"] == HYBRID
    dtype, bias_dtype = NAMES[v["rhs_type"]], "int32"
    if hybrid:
        dtype = bias_dtype = "float32"
    count = 1
    if v["per_channel"]:
        count = v["units"]
    scales = numbers(capture, "weight_scales", "float32", count)
    if not np.all(np.isfinite(scales) & (scales > 0)):
        raise ValueError(
            f"capture {capture.name}: buffer 'weight_scales': got scales of {scales.min()} to "
            f"{scales.max()}, allowed are positive finite numbers"
        )
    weight_scale = scales.tolist()[0]
    if v["per_channel"]:
        weight_scale = tuple(scales.tolist())
    layer = FullyConnected(
        codes_of(capture, v, "lhs"),
        numbers(capture, "biases", bias_dtype, v["units"]),
        ACTIVATION_NAMES[v["activation"]],
        QuantParams(float(v["input_scale"]), zero_point(v, "rhs")),
        QuantParams(weight_scale, zero_point(v, "lhs")),
        QuantParams(float(v["output_scale"]), v["dst_zero_point"]),
        dtype,
    )
    if not hybrid:
        _check_requantizing(capture, v, layer, count)
    shape, batches = _shape(capture.parameters.get("input_shape"), v)
    x = _input(capture, v, dtype)
    if x is not None:
        x = x.reshape(shape)
    output = None
    if "output" in capture.buffers:
        output = numbers(capture, "output", dtype, *batches, v["units"])
    return Lifted(layer, x, output)


def _check_requantizing(capture: Capture, v: Values, layer: FullyConnected, count: int) -> None:
    """Raise ValueError if recorded multipliers, exponents or clamps do not follow from the layer's
    scales. ``count`` is the number of multipliers."""
    fixed, exponents = multipliers(layer, capture.chip)
    for name, right in (("multipliers", fixed), ("exponents", exponents)):
        got = numbers(capture, name, "int32", count)
        wrong = np.flatnonzero(got != right)
        if len(wrong):
            at = int(wrong[0])
            raise ValueError(
                f"capture {capture.name}: buffer {name!r}, element {at}: got {got[at]}, "
                f"allowed with the layer's scales is {right[at]}"
            )
    rule = rule_name(capture.chip, bool(v["per_channel"]))
    low, high = clamp_range(layer, np.dtype(layer.dtype), rule)
    refuse_if(
        (v["clamp_min"], v["clamp_max"]) != (low, high),
        "registers clamp_min and clamp_max",
        f"{v['clamp_min']} and {v['clamp_max']}",
        f"with {layer!r} is {low} and {high}",
    )


def _input(capture: Capture, v: Values, dtype: str) -> Array | None:
    """Return the input ``(batches, input_size)``; None if none was recorded. Codes are read from
    packed rows if need be; a float32 input is not. Raises ValueError if recorded packed rows or
    their scales differ from those of the input."""
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
    codes = x
    if dtype == "float32":
        codes, row_scales = quantized_rows(x)
    _refuse_difference(capture, RHS, packed, codes)
    if dtype == "float32":
        _refuse_difference(capture, "input_scales", scales, row_scales)
    return x


def _refuse_difference(capture: Capture, name: str, got: Array | None, right: Array) -> None:
    """Raise ValueError if the recorded buffer ``name`` (``got``, None if it was not recorded)
    differs from the buffer that the recorded input gives (``right``)."""
    if got is None or np.array_equal(got, right):
        return
    at = tuple(np.argwhere(got != right)[0].tolist())
    where = f"batch {at[0]}"
    if len(at) > 1:
        where += f", input {at[1]}"
    raise ValueError(
        f"capture {capture.name}: buffer {name!r}, {where}: got {got[at]}, allowed is "
        f"{right[at]}, which follows from the buffer 'input'"
    )


def _shape(known: Any, v: Values) -> tuple[Sequence[int], Sequence[int]]:
    """Return the input's shape, and its leading axes that count batches. The shape is ``known``
    (recorded) if that fits the words, else ``(batches, input_size)``.

    Batches are all axes except the last three if these three have ``input_size`` elements, else all
    axes except the last.
    """
    batches, size = v["batches"], v["input_size"]
    whole = isinstance(known, list) and all(type(n) is int and n > 0 for n in known)
    if whole and math.prod(known) == batches * size:
        for axes in (3, 1):
            if len(known) >= axes and math.prod(known[-axes:]) == size:
                return known, known[:-axes]
    return (batches, size), (batches,)


def outline(subject: Capture | Layer) -> Mapping[str, Any]:
    """Return properties, by name, that tell two layers apart: the numbers of outputs and inputs,
    whether the layer is hybrid, its activation and, of a quantized layer, zero points and scales.

    The result is empty for words that contradict each other, and for layers that are not fully
    connected or not of a type of ``DTYPES``.
    """
    if isinstance(subject, Capture):
        try:
            v = values_of(subject)
        except ValueError:
            return {}
        hybrid = v["operation"] == HYBRID
        outputs, inputs = v["units"], v["input_size"]
        activation = ACTIVATION_NAMES[v["activation"]]
        points = (zero_point(v, "rhs"), zero_point(v, "lhs"), v["dst_zero_point"])
        scales = (v["input_scale"], v["output_scale"])
    elif isinstance(subject, FullyConnected) and subject.dtype in DTYPES:
        hybrid = subject.dtype == "float32"
        outputs, inputs = subject.weights.shape
        activation = subject.activation
        given, weights, result = subject.input_q, subject.weight_q, subject.output_q
        points = (given.zero_point, weights.zero_point, result.zero_point)
        scales = (given.scale, result.scale)
    else:
        return {}
    properties = {"outputs": outputs, "inputs": inputs, "hybrid": hybrid, "activation": activation}
    if not hybrid:
        properties |= zip(POINTS, points, strict=True)
        # Words hold scales as float32, so a layer's scales are rounded to float32 too.
        properties |= zip(SCALES, np.asarray(scales, np.float32).tolist(), strict=True)
    return properties
