"""From a layer to the runtime's multiplication: the words of the call and its buffers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy import ndarray as Array

from npulab.npus.kit import SIGNED, Capture, Job, features_asked, lowered, up
from npulab.npus.onert import layouts
from npulab.npus.onert.facts import AVOIDS, BLOCK, CACHED, FACTS, FEATURES, FUSED, MOST_BYTES, SIDES
from npulab.npus.onert.memory import LHS, RHS, layout_of
from npulab.npus.onert.rules import multipliers, quantized_rows, rule_name
from npulab.npus.onert.words import (
    ACTIVATIONS,
    HYBRID,
    INT32,
    QUANTIZED,
    SCALARS,
    Values,
    values_of,
)
from npulab.quant.emulate import clamp_range
from npulab.quant.layers import FullyConnected, per_channel


def lower(
    layer: FullyConnected,
    chip: str = FACTS.usual_chip,
    x: Any = None,
    name: str = "lowered",
    features: Iterable[str] = (),
) -> Capture:
    """Return the capture of a fully connected layer's multiplication: the words of the call, packed
    weights and, with ``x``, the input and its packed rows.

    ``chip`` is a path of ruy. ``x`` is ``(..., I)``, or ``(..., H, W, C)`` with I elements in the
    last three axes; each I elements are a batch. A hybrid layer (``dtype`` "float32") has a float32
    input, a quantized layer an int8 or uint8 input. Without ``x`` there is one batch.

    Buffers of every layer: ``coefficients`` (packed weights, then sums), ``weight_scales``
    (float32) and ``biases`` (float32 of a hybrid layer; else int32, in units of input scale *
    weight scale). A quantized layer also has ``multipliers`` and ``exponents`` (int32). With ``x``
    there are ``input``, ``input_rows`` (packed, then sums) and, of a hybrid layer, ``input_scales``
    (float32, one for each row).

    ``features`` are ``cached-weights`` (the packed weights come from ruy's cache),
    ``fused-multiply-add`` (of a hybrid layer) and ``avoid-aliasing`` (ruy of 2020: columns of whole
    KiB lie 64 bytes further apart). The runtime uses ruy if the units are a multiple of 4; this is
    not checked. Raises ValueError for a layer or input that is not supported, Unsupported for an
    unknown chip, LookupError for an unknown feature.
    """
    FACTS.features(chip)
    quirks = set(features)
    features_asked(quirks, FEATURES)
    _check_layer(layer, quirks)
    parameters = dict(layer.parameters)
    rows = None
    if x is not None:
        x = _checked_input(layer, x)
        rows = x.reshape(-1, layer.input_shape[0])
        parameters["input_shape"] = list(x.shape)
    v = _values(layer, chip, rows, quirks)
    parameters["batches"] = v["batches"]
    buffers = _constants(layer, chip, v)
    if rows is not None:
        buffers |= _input_buffers(rows, chip, v)
    words = FACTS.maps(chip)[BLOCK].encode(v)
    return lowered(FACTS, name, chip, [Job(BLOCK, words)], (buffers, {}), parameters)


def features_of(capture: Capture) -> tuple[str, ...]:
    """Return the features with which ``lower`` gives the capture's words again; raises as
    ``values_of``."""
    v = values_of(capture)
    shown = {CACHED: v["lhs_is_prepacked"], FUSED: v["fused_multiply_add"]}
    shown[AVOIDS] = any(v[f"{side}_stride"] > v[f"{side}_rows"] for side in SIDES)
    return tuple(name for name in FEATURES if shown[name])


def _check_layer(layer: Any, quirks: set[str]) -> None:
    """Raise ValueError for a layer that is neither hybrid nor quantized, has too many weights, or
    has scales that float32 cannot hold. Raise LookupError for the feature ``fused-multiply-add``
    with a layer that is not hybrid."""
    if not isinstance(layer, FullyConnected) or layer.dtype not in ("float32", "int8", "uint8"):
        raise ValueError(
            f"lower for onert: got {layer!r}, allowed is a FullyConnected of float32 "
            "(hybrid), int8 or uint8"
        )
    if layer.weights.size > MOST_BYTES // 2:
        raise ValueError(
            f"lower for onert: got {layer.weights.size} weights, allowed are at most "
            f"{MOST_BYTES // 2}"
        )
    hybrid = layer.dtype == "float32"
    if FUSED in quirks and not hybrid:
        raise LookupError(f"features: got {FUSED!r} with {layer!r}, allowed is a hybrid layer")
    if hybrid and layer.weights.dtype != np.int8:
        raise ValueError(f"weights: got {layer.weights.dtype}, allowed with a hybrid layer is int8")
    for name in ("input_q", "weight_q", "output_q"):
        scale = np.asarray(getattr(layer, name).scale)
        with np.errstate(over="ignore", under="ignore"):
            single = scale.astype(np.float32)
        if not np.all(np.isfinite(single) & (single > 0)):
            raise ValueError(
                f"{name}: got a scale of {scale.min():g} to {scale.max():g}, allowed is a positive "
                "finite float32"
            )


def _checked_input(layer: FullyConnected, x: Any) -> Array:
    """Return the input as an array. Raises ValueError for a shape or type that does not fit the
    layer, and for too many bytes of input or output."""
    x = np.asarray(x)
    size = layer.input_shape[0]
    types = ["int8", "uint8"]
    if layer.dtype == "float32":
        types = ["float32"]
    fits = x.ndim > 0 and x.shape[-1] == size
    if x.ndim > 2 and math.prod(x.shape[-3:]) == size:
        fits = True
    if not fits or not x.size or x.dtype.name not in types:
        raise ValueError(
            f"x: got shape {x.shape} {x.dtype}, allowed is (..., {size}), or (..., H, W, C) with "
            f"H * W * C the same number, of {' or '.join(types)}"
        )
    batches = x.size // size
    units = layer.output_shape[0]
    if 4 * max(x.size, batches * units) > MOST_BYTES // 2:
        raise ValueError(
            f"x: got {batches} rows of {size} for {units} units, allowed are at most "
            f"{MOST_BYTES // 2} bytes of input and as many of output, at 4 bytes a number"
        )
    return x


def _values(layer: FullyConnected, chip: str, rows: Array | None, quirks: set[str]) -> Values:
    """Return the values of the call by field. ``rows`` is the input ``(batches, input_size)``, None
    for one batch without data."""
    facts = FACTS.chips[chip]
    units, depth = layer.weights.shape
    several = per_channel(layer.weight_q.scale)
    batches = 1
    kind = layer.dtype
    if rows is not None:
        batches = len(rows)
        kind = rows.dtype.name
    v: Values = {"path": facts["path"], "units": units, "input_size": depth, "batches": batches}
    v["activation"] = ACTIVATIONS[layer.activation]
    v["per_channel"] = int(several)
    v["fused_multiply_add"] = int(FUSED in quirks)
    v["lhs_is_prepacked"] = int(CACHED in quirks)
    v["rhs_is_prepacked"] = 0
    v["lhs_cache_policy"] = "never"
    if CACHED in quirks:
        v["lhs_cache_policy"] = "always"
    v["packed_type"] = SCALARS["int8"]
    v["dst_stride"] = units
    v["input_scale"] = layer.input_q.scale
    v["output_scale"] = layer.output_q.scale
    v["dst_zero_point"] = layer.output_q.zero_point
    if layer.dtype == "float32":
        v["operation"] = HYBRID
        v["dst_type"] = SCALARS["int32"]
        v["clamp_min"], v["clamp_max"] = INT32
        kind = "int8"
    else:
        v["operation"] = QUANTIZED
        v["dst_type"] = SCALARS[kind]
        rule = rule_name(chip, several)
        v["clamp_min"], v["clamp_max"] = clamp_range(layer, np.dtype(kind), rule)
    avoids = AVOIDS in quirks
    weight_zero = layer.weight_q.zero_point
    v |= _side("lhs", facts, (depth, units), layer.weights.dtype.name, weight_zero, avoids)
    v |= _side("rhs", facts, (depth, batches), kind, layer.input_q.zero_point, avoids)
    return v


def _side(
    side: str,
    facts: Mapping[str, int],
    shape: tuple[int, int],
    dtype: str,
    zero: int,
    avoids: bool,
) -> Values:
    """Return the values of the fields of a packed matrix, "lhs" or "rhs". ``shape`` is its (depth,
    columns) before packing. With ``avoids``, columns of whole KiB lie further apart."""
    depth, count = shape
    rows = facts[f"{side}_kernel_rows"]
    columns = facts[f"{side}_kernel_columns"]
    high = up(depth, rows)
    wide = up(count, columns)
    stride = high
    if avoids:
        stride = layouts.apart(high)
    codes = np.iinfo(dtype)
    if not codes.min <= zero <= codes.max:
        raise ValueError(
            f"lower for onert: got zero point {zero}, allowed with {dtype} is {codes.min} to "
            f"{codes.max}"
        )
    if wide * stride > MOST_BYTES:
        raise ValueError(
            f"lower for onert: got {count} columns of {depth} to pack, allowed are columns of at "
            f"most {MOST_BYTES} bytes in all, packed"
        )
    fields = {"kernel_rows": rows, "kernel_columns": columns, "type": SCALARS[dtype]}
    fields |= {"rows": high, "columns": wide, "stride": stride}
    # Codes of uint8 are packed as int8, less 128.
    fields["zero_point"] = zero - codes.min - SIGNED
    return {f"{side}_{name}": value for name, value in fields.items()}


def _constants(layer: FullyConnected, chip: str, v: Values) -> dict[str, bytes]:
    """Return the buffers, by name, that do not depend on the input: weights, biases and scales or
    multipliers."""
    scales = np.atleast_1d(np.asarray(layer.weight_q.scale, "<f4"))
    buffers = {LHS: _packed_side(layer.weights, chip, v, "lhs"), "weight_scales": scales.tobytes()}
    if v["operation"] == HYBRID:
        buffers["biases"] = layer.bias.astype("<f4").tobytes()
        return buffers
    buffers["biases"] = layer.bias.astype("<i4").tobytes()
    fixed, exponents = multipliers(layer, chip)
    buffers["multipliers"] = fixed.astype("<i4").tobytes()
    buffers["exponents"] = exponents.astype("<i4").tobytes()
    return buffers


def _input_buffers(rows: Array, chip: str, v: Values) -> dict[str, bytes]:
    """Return buffers by name: ``input``, its packed rows ``input_rows`` and, of a hybrid layer,
    ``input_scales``."""
    little = rows.astype(rows.dtype.newbyteorder("<"))
    buffers = {"input": little.tobytes()}
    if v["operation"] == HYBRID:
        rows, scales = quantized_rows(rows)
        buffers["input_scales"] = scales.astype("<f4").tobytes()
    buffers[RHS] = _packed_side(rows, chip, v, "rhs")
    return buffers


def _packed_side(codes: Array, chip: str, v: Values, side: str) -> bytes:
    columns = np.ascontiguousarray(codes.T)
    return layout_of(v, side, chip).pack(columns)
