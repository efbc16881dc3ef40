"""What NN words say of a layer, whatever way it was lowered: enough to tell which layer of a model
a job is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from npulab.captures.capture import Capture
from npulab.npus.vivante.facts import CHIPS, tensor_bytes
from npulab.npus.vivante.words import ratio_of
from npulab.quant.layers import Add, Conv2D, FullyConnected, Layer, per_channel

STORED_UP = {"uint8": 0, "int8": 128}  # what drivers add to the codes of a model; the unit sees uint8


def outline(subject: Capture | Layer) -> Mapping[str, Any]:
    """Outputs (how many), channels, zero points and scale (input * weights / output) by name.

    Nothing of a capture without an NN job or of an unknown chip, and of layers that drivers make no
    NN job of.  A scale per channel is left out, and of an addition all but outputs and their zero
    point: drivers recut it and choose its weights.
    """
    if isinstance(subject, Capture):
        return _of_words(subject)
    if not isinstance(subject, Conv2D | FullyConnected | Add) or subject.dtype not in STORED_UP:
        return {}
    up = STORED_UP[subject.dtype]
    found: dict[str, Any] = {"outputs": math.prod(subject.output_shape),
                             "output zero point": subject.output_q.zero_point + up}
    if isinstance(subject, Add):
        return found
    found |= {"channels": subject.output_shape[-1], "input zero point": subject.input_q.zero_point + up}
    if per_channel(subject.weight_q.scale):
        return found
    scales: list[Any] = [q.scale for q in (subject.input_q, subject.weight_q, subject.output_q)]
    return {**found, "weight zero point": subject.weight_q.zero_point + STORED_UP.get(subject.weights.dtype.name, 0),
            "scale": scales[0] * scales[1] / scales[2]}


def _of_words(capture: Capture) -> dict[str, Any]:
    words = next((job.words for job in capture.jobs if job.block == "NN"), None)
    if words is None or capture.chip not in CHIPS:
        return {}
    v = capture.maps["NN"].decode(words)
    return {"outputs": tensor_bytes(v)["output"],
            "output zero point": v["out_zero_point"], "channels": v["out_image_z_size"],
            "input zero point": v["in_image_border_const"], "weight zero point": v["coef_zero_point"],
            "scale": ratio_of(CHIPS[capture.chip], v["post_multiplier"], v["post_shift"])}
