"""From a layer to what the runtime multiplies: the words of the call and its buffers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from npulab.npus.kit import SIGNED, Capture, Job, features_asked, lowered, refuse_if, up
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
    """What the runtime multiplies for a fully connected layer: the words of the call, packed
    weights and, with ``x``, the input and its packed rows.

    ``chip`` is a path of ruy.  ``x`` is ``(..., I)`` or ``(..., H, W, C)`` of I elements, every row
    a batch; float32 for a hybrid layer (``dtype`` "float32"), int8 or uint8 for a quantized one.
    Buffers: ``coefficients`` (packed weights, then sums), ``weight_scales`` (float32) and
    ``biases`` (float32; int32 in units of both scales), of a quantized layer ``multipliers`` and
    ``exponents`` (int32); ``input``, ``input_rows`` (packed, then sums) and, of a hybrid layer,
    ``input_scales`` (float32, one a row).  ``features`` are ``cached-weights`` (they came out of
    the prepacked cache), ``fused-multiply-add`` (of a hybrid layer) and ``avoid-aliasing`` (ruy as
    of the notes: a depth of whole KiB has its columns 64 bytes further apart).  Without ``x`` there
    is one batch. The runtime takes this way if the units are a multiple of 4; this is not checked
    here. Raises ValueError for a layer or input that is not supported, Unsupported for an unknown
    chip, LookupError for an unknown feature.
    """
    FACTS.features(chip)
    quirks = {*features}
    features_asked(quirks, FEATURES)
    _check_layer(layer, quirks)
    rows, shape = None, {}
    if x is not None:
        x = _checked_input(layer, x)
        rows, shape = x.reshape(-1, layer.input_shape[0]), {"input_shape": list(x.shape)}
    v = _values(layer, chip, rows, quirks)
    buffers = _constants(layer, chip, v)
    if rows is not None:
        buffers |= _rows(rows, chip, v)
    parameters = {**layer.parameters, "batches": v["batches"], **shape}
    words = FACTS.maps(chip)[BLOCK].encode(v)
    return lowered(FACTS, name, chip, [Job(BLOCK, words)], buffers, {}, parameters)


def features_of(capture: Capture) -> tuple[str, ...]:
    """The features that make ``lower`` give the capture's words again; raises as ``values_of``."""
    v = values_of(capture)
    shown = {
        CACHED: v["lhs_is_prepacked"],
        FUSED: v["fused_multiply_add"],
        AVOIDS: any(v[f"{side}_stride"] > v[f"{side}_rows"] for side in SIDES),
    }
    return tuple(name for name in FEATURES if shown[name])


def _check_layer(layer: Any, quirks: set[str]) -> None:
    """Raise ValueError for a layer that is neither hybrid nor of codes, or has scales that float32
    cannot hold; LookupError if it is to be fused and is not hybrid."""
    if not isinstance(layer, FullyConnected) or layer.dtype not in ("float32", "int8", "uint8"):
        raise ValueError(
            f"lower for onert: got {layer!r}, allowed is a FullyConnected of float32 "
            "(hybrid), int8 or uint8"
        )
    if layer.weights.size > MOST_BYTES // 2:
        raise ValueError(
            f"lower for onert: got {layer.weights.size} weights, at most "
            f"{MOST_BYTES // 2} are allowed"
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
        refuse_if(
            not np.all(np.isfinite(single) & (single > 0)),
            name,
            f"a scale of {scale.min():g} to {scale.max():g}",
            "is a positive finite float32",
        )


def _checked_input(layer: FullyConnected, x: Any) -> np.ndarray:
    """The input as an array; ValueError if it does not fit the layer."""
    x, size = np.asarray(x), layer.input_shape[0]
    types = ("float32",) if layer.dtype == "float32" else ("int8", "uint8")
    fits = x.ndim and size in (x.shape[-1], math.prod(x.shape[-3:]) if x.ndim > 2 else 0)
    if not fits or not x.size or x.dtype.name not in types:
        raise ValueError(
            f"x: got shape {x.shape} {x.dtype}, allowed is (..., {size}), or (..., H, "
            f"W, C) of as many, of {' or '.join(types)}"
        )
    batches, units = x.size // size, layer.output_shape[0]
    if 4 * max(x.size, batches * units) > MOST_BYTES // 2:
        raise ValueError(
            f"x: got {batches} rows of {size} for {units} units, at most "
            f"{MOST_BYTES // 2} bytes of input and of output are allowed"
        )
    return x


def _values(layer: FullyConnected, chip: str, rows: np.ndarray | None, quirks: set[str]) -> Values:
    """The fields of the call."""
    facts, (units, depth) = FACTS.chips[chip], layer.weights.shape
    hybrid, several = layer.dtype == "float32", per_channel(layer.weight_q.scale)
    if rows is None:
        batches, kind = 1, layer.dtype
    else:
        batches, kind = len(rows), rows.dtype.name
    if hybrid:
        packed = "int8"
    else:
        packed = kind
    v: Values = {
        "path": facts["path"],
        "operation": HYBRID if hybrid else QUANTIZED,
        "activation": ACTIVATIONS[layer.activation],
        "per_channel": int(several),
        "fused_multiply_add": int(FUSED in quirks),
        "lhs_is_prepacked": int(CACHED in quirks),
        "rhs_is_prepacked": 0,
        "lhs_cache_policy": "always" if CACHED in quirks else "never",
        "lhs_type": SCALARS[layer.weights.dtype.name],
        "rhs_type": SCALARS[packed],
        "packed_type": SCALARS["int8"],
        "dst_type": SCALARS["int32" if hybrid else kind],
        "batches": batches,
        "units": units,
        "input_size": depth,
        "dst_stride": units,
        "input_scale": layer.input_q.scale,
        "output_scale": layer.output_q.scale,
        "dst_zero_point": layer.output_q.zero_point,
    }
    for side, count, zero, dtype in (
        ("lhs", units, layer.weight_q.zero_point, layer.weights.dtype.name),
        ("rhs", batches, layer.input_q.zero_point, packed),
    ):
        kernel = {name: facts[f"{side}_{name}"] for name in ("kernel_rows", "kernel_columns")}
        high, wide = up(depth, kernel["kernel_rows"]), up(count, kernel["kernel_columns"])
        stride, moved = (
            layouts.apart(high) if AVOIDS in quirks else high,
            SIGNED * (dtype == "uint8"),
        )
        refuse_if(
            not -SIGNED <= zero - moved < SIGNED,
            "lower for onert",
            f"zero point {zero}",
            f"with {dtype} is {moved - SIGNED} to {moved + SIGNED - 1}",
        )
        if wide * stride > MOST_BYTES:
            raise ValueError(
                f"lower for onert: got {count} columns of {depth} to pack, at most "
                f"{MOST_BYTES} bytes are allowed"
            )
        side_values = {"rows": high, "columns": wide, "stride": stride, "zero_point": zero - moved}
        v |= {f"{side}_{name}": value for name, value in (kernel | side_values).items()}
    if hybrid:
        v["clamp_min"], v["clamp_max"] = INT32
    else:
        v["clamp_min"], v["clamp_max"] = clamp_range(
            layer, np.dtype(kind), rule_name(chip, several)
        )
    return v


def _constants(layer: FullyConnected, chip: str, v: Values) -> dict[str, bytes]:
    """The buffers that do not depend on the input."""
    hybrid, scales = (
        v["operation"] == HYBRID,
        np.atleast_1d(np.asarray(layer.weight_q.scale, "<f4")),
    )
    out = {
        LHS: _packed(layer.weights, chip, v, "lhs"),
        "weight_scales": scales.tobytes(),
        "biases": layer.bias.astype("<f4" if hybrid else "<i4").tobytes(),
    }
    if not hybrid:
        fixed, exponents = (part.astype("<i4").tobytes() for part in multipliers(layer, chip))
        out |= {"multipliers": fixed, "exponents": exponents}
    return out


def _rows(rows: np.ndarray, chip: str, v: Values) -> dict[str, bytes]:
    """The input, and its rows as they are packed."""
    out = {"input": np.ascontiguousarray(rows).astype(rows.dtype.newbyteorder("<")).tobytes()}
    if v["operation"] == HYBRID:
        rows, scales = quantized_rows(rows)
        out["input_scales"] = scales.astype("<f4").tobytes()
    return out | {RHS: _packed(rows, chip, v, "rhs")}


def _packed(codes: np.ndarray, chip: str, v: Values, side: str) -> bytes:
    return layout_of(v, side, chip).pack(np.ascontiguousarray(codes.T))
