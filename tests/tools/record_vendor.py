"""Record the captures ``vendor-*``: small layers of our own that VeriSilicon's compiler compiled and
its simulator ran.

    python tests/tools/record_vendor.py captures/vivante

They are made from the shared data and need nothing of the vendor's package.  A folder that is there
already is refused; a changed capture is a commit of its own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import npulab
from npulab.captures.capture import Capture, Job
from npulab.quant.layers import Conv2D, QuantParams

ANSWERS = "data/vivante_vendor/a311d-answers.npz"
SHARED = Path(__file__).parents[3] / "shared"
CHIP = "vipnano-qi-a311d"
WORDS = 34
TOOL = "acuitylite 6.57.1"
SOURCE = (
    "random layer {name} of npulab, given to VeriSilicon's compiler and simulator (acuitylite "
    "6.57.1, PID 0x88)"
)
ARRAYS = "coef", "x", "y", "w", "b", "words"

# The capture of each layer.  Each is one NN job; the data has no layer that is an operator other
# than a convolution.
NAMES = {
    "0041": "vendor-3x3-one-row",
    "0082": "vendor-3x3-valid",
    "0021": "vendor-1x1-21-outputs",
    "0033": "vendor-1x1-3-outputs",
    "0012": "vendor-2x2-ties",
    "0073": "vendor-2x2-reordered",
    "0026": "vendor-4x4-reordered",
    "0064": "vendor-4x4-zero-runs",
    "0080": "vendor-5x5",
    "0031": "vendor-5x5-30-planes",
    "0002": "vendor-7x7-ties",
    "0023": "vendor-7x5-zero-runs",
    "0074": "vendor-1x3",
    "0008": "vendor-7x1",
    "0024": "vendor-6x6-whole-image",
    "0007": "vendor-depthwise-2x2",
    "0018": "vendor-depthwise-4x4-ties",
    "0015": "vendor-depthwise-5x3",
    "0077": "vendor-depthwise-1x1-ties",
    "0017": "vendor-depthwise-3x6-pooled",
}


def record() -> Iterator[Capture]:
    """The captures, made from the shared data."""
    layers = {answer["name"]: answer for answer in answers()}
    for name, case in NAMES.items():
        yield captured(layers[name], case)


@cache
def answers() -> list[dict[str, Any]]:
    """The layers whole: parameters, tensors as (C, H, W), words and coefficients."""
    with np.load(SHARED / ANSWERS) as data:
        out: list[dict[str, Any]] = json.loads(str(data["layers"]))
        for layer in out:
            for key in ARRAYS:
                layer[key] = data[f"{layer['name']}_{key}"]
            layer["words"] = layer["words"][:WORDS]
    return out


def layer_of(answer: dict[str, Any]) -> Conv2D:
    channels, height, width = answer["x"].shape
    padding = "valid"
    if answer["same"]:
        padding = "same"
    quantization = {}
    for name, letter in (("input", "x"), ("weight", "w"), ("output", "y")):
        quantization[f"{name}_q"] = QuantParams(answer[f"{letter}_scale"], answer[f"{letter}_zero"])
    return Conv2D(
        answer["w"].transpose(0, 2, 3, 1),
        answer["b"],
        (height, width, channels),
        tuple(answer["stride"]),
        padding,
        depthwise=answer["kind"] == "depthwise",
        activation="relu" if answer["relu"] else None,
        **quantization,
    )


def captured(answer: dict[str, Any], case: str) -> Capture:
    """The NN job of a layer as the compiler wrote it: addresses are 0.

    ``weights`` and ``bias`` are what the compiler was given, as ``npulab.Conv2D`` has them.
    """
    layer = layer_of(answer)
    buffers = {
        "coefficients": answer["coef"].tobytes(),
        "input": answer["x"].tobytes(),
        "output": answer["y"].tobytes(),
        "weights": layer.weights.tobytes(),
        "bias": layer.bias.astype("<i4").tobytes(),
    }
    return Capture(
        case,
        "vivante",
        CHIP,
        (Job("NN", answer["words"]),),
        buffers,
        {},
        parameters=layer.parameters,
        provenance="compiler",
        output_provenance="vendor simulator",
        source=SOURCE.format(name=answer["name"]),
        tool=TOOL,
        maps=npulab.target("vivante").maps(CHIP),
    )


if __name__ == "__main__":
    for capture in record():
        print(npulab.save(capture, Path(sys.argv[1]) / capture.name))
