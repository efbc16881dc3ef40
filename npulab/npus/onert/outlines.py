"""What the words of a call say of a layer: enough to tell which layer of a model it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from npulab.captures.capture import Capture
from npulab.npus.onert.memory import zero_point
from npulab.npus.onert.words import ACTIVATION_NAMES, HYBRID, values_of
from npulab.quant.layers import FullyConnected, Layer

HINTS = ("outputs", "inputs", "hybrid", "activation")
QUANTIZED_HINTS = ("input zero point", "weight zero point", "output zero point", "input scale",
                   "output scale")


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
        values = (v["units"], v["input_size"], hybrid, ACTIVATION_NAMES[v["activation"]],
                  zero_point(v, "rhs"), zero_point(v, "lhs"), v["dst_zero_point"],
                  float(v["input_scale"]), float(v["output_scale"]))
    elif isinstance(subject, FullyConnected) and subject.dtype in ("float32", "int8", "uint8"):
        hybrid, scaled = subject.dtype == "float32", (subject.input_q, subject.output_q)
        values = (*subject.weights.shape, hybrid, subject.activation, subject.input_q.zero_point,
                  subject.weight_q.zero_point, subject.output_q.zero_point,
                  *(np.asarray(q.scale, np.float32).item() for q in scaled))
    else:
        return {}
    return dict(zip(HINTS if hybrid else HINTS + QUANTIZED_HINTS, values, strict=False))
