"""What the words of a call say of a layer: enough to tell which layer of a model it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from npulab.captures.capture import Capture
from npulab.npus.onert.memory import zero_point
from npulab.npus.onert.words import ACTIVATIONS, HYBRID, values_of
from npulab.quant.layers import FullyConnected, Layer


def outline(subject: Capture | Layer) -> Mapping[str, Any]:
    """Outputs, inputs, operation and activation by name, of a quantized layer zero points and
    scales too.

    Nothing of words that contradict one another, and of layers that the runtime multiplies in
    another way.
    """
    if isinstance(subject, Capture):
        return _of_words(subject)
    if not isinstance(subject, FullyConnected) or subject.dtype not in ("float32", "int8", "uint8"):
        return {}
    units, depth = subject.weights.shape
    found = {"outputs": units, "inputs": depth, "hybrid": subject.dtype == "float32", "activation": subject.activation}
    if subject.dtype == "float32":
        return found
    return found | {"input zero point": subject.input_q.zero_point, "weight zero point": subject.weight_q.zero_point,
                    "output zero point": subject.output_q.zero_point, "input scale": _single(subject.input_q.scale),
                    "output scale": _single(subject.output_q.scale)}


def _of_words(capture: Capture) -> dict[str, Any]:
    try:
        v = values_of(capture)
    except ValueError:
        return {}
    activation = next(name for name, raw in ACTIVATIONS.items() if raw == v["activation"])
    hybrid = v["operation"] == HYBRID
    found = {"outputs": v["units"], "inputs": v["input_size"], "hybrid": hybrid, "activation": activation}
    if hybrid:
        return found
    return found | {"input zero point": zero_point(v, "rhs"), "weight zero point": zero_point(v, "lhs"),
                    "output zero point": v["dst_zero_point"], "input scale": float(v["input_scale"]),
                    "output scale": float(v["output_scale"])}


def _single(scale: Any) -> float:
    return float(np.float32(scale))
