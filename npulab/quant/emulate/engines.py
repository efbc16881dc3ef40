"""The rules that inference engines follow, by operator and type."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from npulab.quant.emulate.saturating import Saturation
from npulab.quant.layers import (
    Add,
    Layer,
    Pool2D,
    Weighted,
    leak_of,
    per_channel,
)
from npulab.quant.rules import (
    QUANTIZED,
    Factors,
    Leaky,
    Rule,
    half_away,
    is_rule,
    positive,
    rule,
    rule_names,
)
from npulab.support.files import read_table

HERE = Path(__file__).parent


class Row(NamedTuple):
    """A row of the table of engines: ``engine`` computes ``op`` for an input of ``type`` by
    ``rule``. ``scales`` is "tensor" for one weight scale, "channel" for one per channel. A blank
    ``op``, ``type`` or ``scales`` fits every layer.

    If a row has a ``tail``, its kernel handles ``vector`` channels at a time; the channels after
    the last whole group use the rule ``tail``, which forms the same multiplier.
    """

    engine: str
    op: str
    type: str
    scales: str
    rule: str
    tail: str = ""
    vector: int = 1


# A layer uses the first row that fits it. In the column ``rule``, the letter after the colon is one
# of ``rules.ORDERS``.
TABLE = tuple(
    Row(
        row["engine"],
        row["op"],
        row["type"],
        row["scales"],
        row["rule"],
        row["tail"],
        int(row["vector"] or 1),
    )
    for row in read_table(HERE / "engine_rules.csv")
)
# a key is an engine; the value says with which release and on which processors it was measured
ENGINES = {row["engine"]: row["measured"] for row in read_table(HERE / "engines.csv")}
NAMES = tuple(ENGINES)


class Accumulation(NamedTuple):
    """``engine`` adds the products of ``op`` with saturation, if input and weights have the types
    ``input`` and ``weights``.

    A depthwise convolution saturates only if it has at least ``copies`` output channels per input
    channel.
    """

    engine: str
    op: str
    input: str
    weights: str
    saturation: Saturation = Saturation()
    copies: int = 1


# Combinations of engine, operator and types that saturate; every other combination adds exactly.
# onnxruntime adds exactly in a depthwise convolution with one output channel per input channel.
SATURATING = tuple(
    Accumulation(row["engine"], row["op"], row["input"], row["weights"], copies=int(row["copies"]))
    for row in read_table(HERE / "saturating.csv")
)
EXACT = tuple(name for name in NAMES if name not in {row.engine for row in SATURATING})
Parts = tuple[tuple[Rule, int, int], ...]


def parts(name: str | Rule, op: str, dtype: str, scales: str, channels: int) -> Parts:
    """Return the rules that a name stands for with an operator, as parts (rule, first channel, end
    channel). The name is that of a rule or an engine.

    ``op`` is "conv", "depthwise" or "fully_connected", ``dtype`` is the input's type, ``scales`` is
    "tensor" or "channel". Raises LookupError for an unknown name, with the known names.

    >>> for by, first, end in parts("tflite-builtin", "depthwise", "int8", "channel", 20):
    ...     print(by.name, first, end)
    ruy-x86:D 0 16
    gemmlowp:D 16 20
    """
    if not isinstance(name, str) or name not in NAMES:
        if not is_rule(name):
            raise LookupError(
                f"rule: got {name!r}, allowed is one of {', '.join((*NAMES, *rule_names()))}"
            )
        return ((rule(name), 0, channels),)
    for row in TABLE:
        known = row.op in ("", op) and row.type in ("", dtype) and row.scales in ("", scales)
        if row.engine != name or not known:
            continue
        body = channels
        if row.tail:
            body = channels // row.vector * row.vector
        split = []
        if body:
            split.append((_row_rule(row.rule, dtype), 0, body))
        if body < channels:
            split.append((_row_rule(row.tail, dtype), body, channels))
        return tuple(split)
    raise LookupError(f"rule: got {name!r}, allowed is an engine that computes {op} of {dtype}")


def _row_rule(name: str, dtype: str) -> Rule:
    by = rule(name)
    # Sums of int16 codes are computed in 64 bits. The product of a sum with a multiplier of 15 bits
    # must fit into them too, so that the sum may have at most 48 bits.
    if dtype == "int16":
        by = replace(by, register=48)
    return by


def saturation_of(layer: Weighted, dtype: np.dtype, name: str | Rule) -> Saturation | None:
    """Return how a rule or an engine saturates the products of a layer with an input of ``dtype``;
    None if it adds them exactly.
    """
    copies = 1
    if layer.op == "depthwise":
        copies = layer.output_shape[-1] // layer.input_shape[-1]
    key = name, layer.op, dtype.name, layer.weights.dtype.name
    return next(
        (row.saturation for row in SATURATING if row[:4] == key and copies >= row.copies), None
    )


def parts_of(layer: Weighted, dtype: np.dtype, name: str | Rule) -> Parts:
    """Return the rules that the name of a rule or an engine stands for with a layer and the type of
    its input.

    Raises LookupError as ``parts`` does, ValueError for a rule that has no outputs of this type.
    """
    scales = "tensor"
    if per_channel(layer.weight_q.scale):
        scales = "channel"
    out = parts(name, layer.op, dtype.name, scales, layer.output_shape[-1])
    for by, _, _ in out:
        if dtype.name not in by.types:
            raise ValueError(
                f"rule: got {by.name} for {layer} of {dtype}, allowed with that rule is "
                f"{', '.join(by.types)}"
            )
    leak = leak_of(layer.activation)
    if leak:
        return tuple(
            (Leaky(by.name, by.order, by.register, by, leak), first, end) for by, first, end in out
        )
    return out


def multipliers(layer: Weighted, by: Rule, first: int, end: int) -> Factors:
    """Return (multiplier, right_shift) by a rule for the channels ``first`` to ``end - 1`` of a
    layer, each ``(end - first,)``.
    """
    scale = layer.weight_q.scale
    mine = scale
    if isinstance(scale, tuple):
        mine = scale[first:end]
    multiplier, right_shift = by.multiplier(layer.input_q.scale, mine, layer.output_q.scale)
    return np.broadcast_to(multiplier, (end - first,)), np.broadcast_to(right_shift, (end - first,))


# a key is an activation, the value the lowest and the highest real number that it gives
REAL: dict[str | None, tuple[float, float]] = {
    None: (-np.inf, np.inf),
    "relu": (0.0, np.inf),
    "relu6": (0.0, 6.0),
    "relu_n1_to_1": (-1.0, 1.0),
}


def delegated(layer: Layer, dtype: Any) -> bool:
    """Return True if TensorFlow Lite leaves a quantized layer to XNNPACK, False if its builtin
    kernels run the layer.

    Neither XNNPACK nor the builtin kernels have an operator for minimum pooling. Models that
    ``models`` writes compute a minimum as the complement of a maximum of complements, and clamp it
    by a maximum pooling of single elements. XNNPACK runs both operators.
    """
    if np.dtype(dtype).itemsize > 1:
        return False
    if isinstance(layer, Add):
        return all(2.0**-10 <= ratio < 2.0**8 for ratio in output_ratios(layer))
    if isinstance(layer, Pool2D):
        return layer.kind == "min" or (
            layer.kind == "max" and all(np.less_equal(layer.stride, layer.kernel))
        )
    return layer.op != "depthwise" or np.dtype(dtype) == np.int8


def output_ratios(layer: Add) -> list[float]:
    """Return the ratio of each input's scale to the output's scale, float32."""
    a, b, c = (
        np.asarray(q.scale, np.float32) for q in (layer.input_q, layer.other_q, layer.output_q)
    )
    return [float(a / c), float(b / c)]


def clamp_range(layer: Layer, dtype: Any, rule: str | Rule = "tflite-reference") -> tuple[int, int]:
    """Return the lowest and highest output code: the type's range, narrowed by the activation."""
    info = np.iinfo(dtype)
    low, high = activation_codes(layer, dtype, rule)
    return int(np.clip(low, info.min, info.max)), int(np.clip(high, info.min, info.max))


def clamps_alike(layer: Any, activation: str | None) -> bool:
    """Return True if a layer of codes has the same lowest and highest output code with
    ``activation`` as with its own activation, and so gives the same outputs.

    >>> from npulab.quant.rules import QuantParams
    >>> q = QuantParams(6 / 255, -128)
    >>> codes = Pool2D("max", (1, 1), (1, 1, 1), activation="relu6", input_q=q)
    >>> clamps_alike(codes, None), clamps_alike(codes, "relu_n1_to_1")
    (True, False)
    """
    if layer.activation == activation:
        return True
    of_codes = layer.dtype in QUANTIZED and getattr(layer, "output", "codes") == "codes"
    if not of_codes or layer.activation not in REAL:
        return False
    other = replace(layer, activation=activation)
    return clamp_range(layer, layer.dtype) == clamp_range(other, layer.dtype)


def activation_codes(
    layer: Layer, dtype: Any, rule: str | Rule = "tflite-reference"
) -> tuple[float, float]:
    """Return the codes of the lowest and highest number that the activation gives. They may lie
    outside of the type's range, and are infinite if there is no such number.

    The code is ``zero_point + round(real / scale)``, ties away from zero. XNNPACK adds the zero
    point in float32 and rounds ties to even.
    """
    assert layer.output_q is not None
    zero = layer.output_q.zero_point
    with np.errstate(over="ignore", under="ignore"):
        scale = np.asarray(layer.output_q.scale).astype(np.float32)
    if layer.activation is not None:
        positive("output scale", layer.output_q.scale, scale)
    first = rule == "xnnpack" and delegated(layer, dtype)

    def code(real: float) -> float:
        if np.isinf(real):
            return real
        with np.errstate(over="ignore"):
            steps = np.clip(np.float32(real) / scale, -(2.0**40), 2.0**40)
        if first:
            return float(np.rint(steps + np.float32(zero)))
        return float(zero + half_away(steps))

    low, high = REAL.get(layer.activation, REAL[None])
    return code(low), code(high)
