"""From a layer to what the runtime multiplies: the words of the call and its buffers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from npulab.captures.capture import Capture, Job
from npulab.npus.kit.lowering import features_asked, lowered
from npulab.npus.kit.numbers import up
from npulab.npus.onert import layouts
from npulab.npus.onert.facts import AVOIDS, BLOCK, CACHED, CHIPS, FACTS, FEATURES, FUSED, MOST_BYTES, SIGN, USUAL_CHIP
from npulab.npus.onert.memory import LHS, RHS
from npulab.npus.onert.rules import multipliers, quantized_rows, rule_name
from npulab.npus.onert.words import ACTIVATIONS, HYBRID, INT32, QUANTIZED, SCALARS, Values
from npulab.quant.emulate import clamp_range
from npulab.quant.layers import FullyConnected, per_channel

ALWAYS = "always"


def lower(layer: FullyConnected, chip: str = USUAL_CHIP, x: Any = None, name: str = "lowered",
          features: Iterable[str] = ()) -> Capture:
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
    is one batch. The runtime takes this way where the units are a multiple of 4; nothing here asks
    for it. Raises ValueError for a layer or input that is not covered, Unsupported for an unknown
    chip, LookupError for an unknown feature.
    """
    FACTS.features(chip)
    habits = {*features}
    features_asked(habits, FEATURES)
    hybrid = _covered(layer, habits)
    given = None if x is None else _given(layer, x, hybrid)
    rows = None if given is None else given.reshape(-1, layer.input_shape[0])
    v = _values(layer, chip, rows, habits, hybrid)
    buffers = _constants(layer, chip, v, hybrid)
    if rows is not None:
        buffers |= _rows(layer, chip, rows, v, hybrid)
    words = FACTS.maps(chip)[BLOCK].encode(v)
    shape = {} if given is None else {"input_shape": list(given.shape)}
    parameters = {**layer.parameters, "batches": v["batches"], **shape}
    return lowered(FACTS, name, chip, [Job(BLOCK, words)], buffers, {}, parameters)


def _covered(layer: Any, habits: set[str]) -> bool:
    """Whether the layer is hybrid; ValueError where it is neither that nor of codes."""
    if not isinstance(layer, FullyConnected) or layer.dtype not in ("float32", "int8", "uint8"):
        raise ValueError(f"lower for onert: got {layer!r}, allowed is a FullyConnected of float32 (hybrid), int8 or "
                         "uint8")
    if layer.weights.size > MOST_BYTES // 2:
        raise ValueError(f"lower for onert: got {layer.weights.size} weights, allowed are {MOST_BYTES // 2}")
    hybrid = layer.dtype == "float32"
    if FUSED in habits and not hybrid:
        raise LookupError(f"features: got {FUSED!r} with {layer!r}, allowed is a hybrid layer")
    if hybrid and layer.weights.dtype != np.int8:
        raise ValueError(f"weights: got {layer.weights.dtype}, allowed with a hybrid layer is int8")
    for what in ("input", "weight", "output"):
        scale = np.asarray(getattr(layer, f"{what}_q").scale)
        with np.errstate(over="ignore", under="ignore"):
            single = scale.astype(np.float32)
        if not np.all(np.isfinite(single) & (single > 0)):
            raise ValueError(f"{what}_q: got a scale of {scale.min():g} to {scale.max():g}, allowed is a positive "
                             "finite float32")
    return hybrid


def _given(layer: FullyConnected, x: Any, hybrid: bool) -> np.ndarray:
    """The input; ValueError where it does not fit the layer."""
    x, size = np.asarray(x), layer.input_shape[0]
    types = ("float32",) if hybrid else ("int8", "uint8")
    fits = x.ndim and size in (x.shape[-1], math.prod(x.shape[-3:]) if x.ndim > 2 else 0)
    if not fits or not x.size or x.dtype.name not in types:
        raise ValueError(f"x: got shape {x.shape} {x.dtype}, allowed is (..., {size}), or (..., H, W, C) of as many, "
                         f"of {' or '.join(types)}")
    batches, units = x.size // size, layer.output_shape[0]
    if max(4 * x.size, 4 * batches * units) > MOST_BYTES // 2:
        raise ValueError(f"x: got {batches} rows of {size} for {units} units, allowed are {MOST_BYTES // 2} bytes of "
                         "input and of output")
    return x


def _values(layer: FullyConnected, chip: str, rows: np.ndarray | None, habits: set[str], hybrid: bool) -> Values:
    """The fields of the call."""
    facts = CHIPS[chip]
    units, depth = layer.weights.shape
    batches, cached, several = 1 if rows is None else len(rows), CACHED in habits, per_channel(layer.weight_q.scale)
    kind = layer.dtype if rows is None else rows.dtype.name
    v: Values = {
        "path": facts["path"], "operation": HYBRID if hybrid else QUANTIZED,
        "activation": ACTIVATIONS[layer.activation], "per_channel": int(several),
        "fused_multiply_add": int(FUSED in habits),
        "lhs_is_prepacked": int(cached), "rhs_is_prepacked": 0, "lhs_cache_policy": ALWAYS if cached else "never",
        "lhs_type": SCALARS[layer.weights.dtype.name], "rhs_type": SCALARS["int8" if hybrid else kind],
        "packed_type": SCALARS["int8"], "dst_type": SCALARS["int32" if hybrid else kind],
        "batches": batches, "units": units, "input_size": depth, "dst_stride": units,
        "input_scale": layer.input_q.scale, "output_scale": layer.output_q.scale}
    for side, count, q, dtype in (("lhs", units, layer.weight_q, layer.weights.dtype.name),
                                  ("rhs", batches, layer.input_q, "int8" if hybrid else kind)):
        high = up(depth, facts[f"{side}_kernel_rows"])
        v |= {f"{side}_rows": high, f"{side}_columns": up(count, facts[f"{side}_kernel_columns"]),
              f"{side}_stride": layouts.apart(high) if AVOIDS in habits else high,
              f"{side}_kernel_rows": facts[f"{side}_kernel_rows"],
              f"{side}_kernel_columns": facts[f"{side}_kernel_columns"],
              f"{side}_zero_point": _packed_zero(q.zero_point, dtype)}
        if v[f"{side}_columns"] * v[f"{side}_stride"] > MOST_BYTES:
            raise ValueError(f"lower for onert: got {count} columns of {depth} to pack, allowed are {MOST_BYTES} bytes")
    low, high = INT32 if hybrid else clamp_range(layer, np.dtype(kind), rule_name(chip, several))
    return v | {"dst_zero_point": layer.output_q.zero_point, "clamp_min": low, "clamp_max": high}


def _packed_zero(zero_point: int, dtype: str) -> int:
    """The zero point as packed; ValueError where it is no code of the type."""
    packed = zero_point - SIGN if dtype == "uint8" else zero_point
    if not -SIGN <= packed < SIGN:
        raise ValueError(f"lower for onert: got zero point {zero_point}, allowed with {dtype} is "
                         f"{zero_point - packed - SIGN} to {zero_point - packed + SIGN - 1}")
    return packed


def _constants(layer: FullyConnected, chip: str, v: Values, hybrid: bool) -> dict[str, bytes]:
    """The buffers that do not depend on the input."""
    layout = layouts.packed(layer.weights.T.shape, chip, "lhs", dtype=layer.weights.dtype.name,
                            zero_point=layer.weight_q.zero_point, stride=v["lhs_stride"])
    scales = np.atleast_1d(np.asarray(layer.weight_q.scale, "<f4"))
    out = {LHS: layout.pack(np.ascontiguousarray(layer.weights.T)), "weight_scales": scales.tobytes(),
           "biases": layer.bias.astype("<f4" if hybrid else "<i4").tobytes()}
    if not hybrid:
        fixed, exponents = multipliers(layer, chip)
        out |= {"multipliers": fixed.astype("<i4").tobytes(), "exponents": exponents.astype("<i4").tobytes()}
    return out


def _rows(layer: FullyConnected, chip: str, rows: np.ndarray, v: Values, hybrid: bool) -> dict[str, bytes]:
    """The input, and its rows as they are packed."""
    out = {"input": np.ascontiguousarray(rows).astype(rows.dtype.newbyteorder("<")).tobytes()}
    codes = rows
    if hybrid:
        codes, scales = quantized_rows(rows)
        out["input_scales"] = scales.astype("<f4").tobytes()
    layout = layouts.packed(codes.T.shape, chip, "rhs", dtype=codes.dtype.name, zero_point=layer.input_q.zero_point,
                            stride=v["rhs_stride"])
    return out | {RHS: layout.pack(np.ascontiguousarray(codes.T))}
