"""The constants of a compiled convolution (``.rknn`` for RK3576), as its tasks read them.

Weights have the order of RK3588. Two depthwise weights are followed by the negated zero points of
their two channels. Operands of eight output channels stand together: their biases, their negated
zero points (dense weights only), their shares. A share is a channel's scale as a part of the
largest scale. A file without zero points or shares has one for all channels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray as Array

from npulab.npus.kit import Capture, Unsupported, refuse_if, up, values_of
from npulab.npus.rockchip import layouts, rknn
from npulab.npus.rockchip.rknn import Compiled

# The operands of this many output channels stand together.
GROUP = 8
# Operands are filled up to a multiple of this many channels: for dense, for depthwise weights.
FILL, DEPTHWISE_FILL = 32, 64
# The field with the bits of PARTS that are there; PARTS has (bit, name, numpy type) of each.
OPERANDS = "DPU_RDMA.BRDMA_CFG.operands"
PARTS = ((1, "biases", "<i4"), (2, "zero_points", "<i2"), (4, "shares", "<u2"))


class Constants(NamedTuple):
    """The constants of a convolution.

    ``weights`` are OHWI (depthwise 1HWC) int8. ``biases``, ``zero_points`` (negated) and ``shares``
    have a number for each output channel; they are None if the file has no numbers by channel.
    """

    weights: Array
    biases: Array
    zero_points: Array | None
    shares: Array | None


def constants(capture: Capture) -> Constants:
    """Return the constants of a capture of a ``.rknn`` file with one convolution.

    Raises Unsupported for another capture. Raises ValueError for constants of another size than
    the layer and the first task state.
    """
    layer = capture.parameters
    if "container" not in capture.buffers or "kernel_h" not in layer:
        raise Unsupported(f"constants of {capture.name}: it is no .rknn file of one convolution")
    compiled = rknn.read(capture.buffers["container"])
    node = next(node for node in compiled.graph["nodes"] if node["layer"])
    inputs: tuple[int, ...] = node["inputs"]
    refuse_if(len(inputs) != 3, "inputs", len(inputs), "are input, weights and biases")
    _, weight, bias = inputs
    depthwise = bool(layer["depthwise"])
    weights, zero_points = _weights(compiled, weight, layer, depthwise)
    flags = values_of(capture.jobs[0], capture.maps)[OPERANDS]
    parts = [(name, kind, GROUP) for bit, name, kind in PARTS if flags & bit]
    record = np.dtype(parts)
    fill = FILL
    if depthwise:
        fill = DEPTHWISE_FILL
    channels = layer["output_c"]
    data = compiled.held(compiled.tensor(bias))
    size = up(channels, fill) // GROUP * record.itemsize
    refuse_if(len(data) != size, "operands", f"{len(data)} bytes", f"are {size}")
    held = np.frombuffer(data, record)
    found = {name: held[name].ravel()[:channels] for name, _, _ in parts}
    return Constants(
        weights, found["biases"], found.get("zero_points", zero_points), found.get("shares")
    )


def _weights(
    compiled: Compiled, number: int, layer: Mapping[str, Any], depthwise: bool
) -> tuple[Array, Array | None]:
    """Return the weights of a layer, and the negated zero points between depthwise weights.

    ``number`` is the number of the tensor with the weights. Dense weights have None as zero points.
    """
    tensor = compiled.tensor(number)
    data = np.frombuffer(compiled.held(tensor), np.int8)
    channels = layer["input_c"]
    kernels = layer["output_c"]
    if depthwise:
        kernels = 1
    shape = (kernels, layer["kernel_h"], layer["kernel_w"], channels)
    filled = layouts.weights_shape(shape, depthwise)
    size = math.prod(filled)
    if depthwise:
        size *= 2
    what = f"weights {tensor['name']!r:.40}"
    refuse_if(len(data) != size, what, f"{len(data)} bytes", f"are {size} for {shape}")
    layout = layouts.weights(filled, depthwise)
    if not depthwise:
        return layout.unpack(data.tobytes())[:kernels, ..., :channels], None
    pairs = data.reshape(-1, 2, 2)
    zeros = layout.unpack(pairs[:, 1].tobytes())[..., :channels]
    first = zeros[0, 0, 0]
    refuse_if((zeros != first).any(), what, "zero points that differ", "is one for each channel")
    return layout.unpack(pairs[:, 0].tobytes())[..., :channels], first
