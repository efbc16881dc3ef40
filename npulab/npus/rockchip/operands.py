"""The constants of a compiled convolution (``.rknn`` for RK3576): weights, zero points, biases,
shares, as its tasks read them.

Dense weights lie as on RK3588. Depthwise weights lie in the same order in pairs, each pair
followed by the two negated zero points of its channels. The operands of eight output channels stand
together: biases, negated zero points (dense weights only), shares. Without zero points or shares
all channels have the same.
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

GROUP = 8  # output channels whose operands stand together
# Operands are filled up to a multiple of so many channels, of dense and of depthwise weights.
FILL, DEPTHWISE_FILL = 32, 64
OPERANDS = "DPU_RDMA.BRDMA_CFG.operands"  # the sum of the bits of what an operand has
PARTS = ((1, "biases", "<i4"), (2, "zero_points", "<i2"), (4, "shares", "<u2"))


class Constants(NamedTuple):
    """Weights OHWI (depthwise 1HWC) int8, and a number for each output channel: biases, negated
    zero points, shares. What the file does not have for each channel is None.
    """

    weights: Array
    biases: Array
    zero_points: Array | None
    shares: Array | None


def constants(capture: Capture) -> Constants:
    """The constants of a capture of a ``.rknn`` file with one convolution.

    Raises Unsupported for another capture, ValueError for constants of another size than its layer
    and its first task state.
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
    """The weights of a layer, and the negated zero points that lie between them."""
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
