"""Weights of convolutions in a capture's coefficient buffer, and outputs in planes of channels."""

from __future__ import annotations

import math

import numpy as np

from npulab.layout import Layout
from npulab.npus.kit import Capture, Item, Raw, refuse_if, values_of
from npulab.npus.kit.memory import MOST_BYTES, address_of, buffer_of, bytes_at, tensor_at
from npulab.npus.rockchip import layouts, words
from npulab.npus.rockchip.plans import DEPTHWISE, FP16, INT8

MOST_WEIGHTS = MOST_BYTES // 8


def recode(capture: Capture) -> bytes:
    """Return the coefficient buffer with the weights of every convolution unpacked and packed
    again.

    Bytes outside of weights are copied.
    """
    data = bytearray(buffer_of(capture, "coefficients"))
    for start, (_, layout) in weight_runs(capture):
        end = start + layout.size
        weights = layout.unpack(data[start:end])
        data[start:end] = layout.pack(weights)
    return bytes(data)


def explain(capture: Capture) -> list[Item]:
    """Return items for all bits of the coefficient buffer, in order.

    Kinds are weight, fill (elements that complete the weights) and other (all other bytes).
    """
    data = buffer_of(capture, "coefficients")
    runs = dict(weight_runs(capture))
    items: list[Item] = []
    end = 0
    for start in sorted(runs):
        if start < end:
            continue
        if start > end:
            items.append(Item(8 * end, 8 * (start - end), "other"))
        v, layout = runs[start]
        end = start + layout.size
        items += _weight_items(v, layout, data, start)
    if end < len(data):
        items.append(Item(8 * end, 8 * (len(data) - end), "other"))
    return items


def _weight_items(v: Raw, layout: Layout, data: bytes, start: int) -> list[Item]:
    """Return the items (weights and fill) of a convolution whose weights begin at byte
    ``start``."""
    sizes = words.Sizes.of(v)
    outputs, inputs = sizes.output[2], sizes.input[2]
    # The axes of output and input channel: in OHWI, and in 1HWC of a depthwise convolution.
    channel, plane = 0, 3
    if v[words.CONVOLUTION] == DEPTHWISE:
        channel, plane = 3, 0
    stored = data[start : start + layout.size]
    items = []
    for item in layout.items(stored, channel=channel, plane=plane, row=1, column=2):
        item = item._replace(bit=8 * start + item.bit)
        if (item.channel or 0) >= outputs or (item.plane or 0) >= inputs:
            item = item._replace(weights=0, kind="fill")
        items.append(item)
    return items


def weights_of(capture: Capture, v: Raw) -> np.ndarray:
    """Return the weights OHWI (depthwise 1HWC) of a convolution task, without fill.

    ``v`` has the task's values. Raises ValueError for a number of bytes that contradicts the sizes.
    """
    layout = weights_layout(v)
    sizes = words.Sizes.of(v)
    channels, outputs = sizes.input[2], sizes.output[2]
    kernels = outputs
    if v[words.CONVOLUTION] == DEPTHWISE:
        kernels = 1
    fits = kernels <= layout.shape[0] and channels <= layout.shape[3]
    refuse_if(
        v[words.WEIGHT_BYTES] != layout.size or not fits,
        "block CNA field WEIGHT_BYTES",
        f"{v[words.WEIGHT_BYTES]} for {outputs} outputs of {channels} channels",
        f"with weights of {layout.shape} is {layout.size}, and no more than these",
    )
    weights = tensor_at(capture, "coefficients", v[words.WEIGHTS_AT], layout)
    return weights[:kernels, ..., :channels]


def weight_runs(capture: Capture) -> list[tuple[int, tuple[Raw, Layout]]]:
    """Return (byte in the coefficient buffer, (values of the task, layout)) for the weights of each
    convolution task.
    """
    base = address_of(capture, "coefficients", "where weights lie")
    runs: list[tuple[int, tuple[Raw, Layout]]] = []
    for job in capture.jobs:
        v = values_of(job, capture.maps)
        if words.CONVOLUTION not in v or v[words.PRECISION] not in (INT8, FP16):
            continue
        address = v[words.WEIGHTS_AT]
        size = v[words.WEIGHT_BYTES]
        bytes_at(capture, "coefficients", address, size)
        layout = weights_layout(v)
        allowed = f"with its kernel is {layout.size}"
        refuse_if(size != layout.size, "block CNA field WEIGHT_BYTES", size, allowed)
        runs.append((address - base, (v, layout)))
    return runs


def weights_layout(v: Raw) -> Layout:
    """Return the layout of a convolution's weights, OHWI (depthwise 1HWC) with fill.

    Raises ValueError for a size of 0 and for too many weights.
    """
    depthwise = v[words.CONVOLUTION] == DEPTHWISE
    kernels = 1
    if not depthwise:
        kernels = v["CNA.WEIGHT_SIZE2.WEIGHT_KERNELS"]
    height = v["CNA.WEIGHT_SIZE2.WEIGHT_HEIGHT"]
    width = v["CNA.WEIGHT_SIZE2.WEIGHT_WIDTH"]
    shape = (kernels, height, width, v["CNA.DATA_SIZE1.DATAIN_CHANNEL"])
    refuse_if(
        0 in shape or math.prod(shape) > MOST_WEIGHTS,
        "block CNA",
        f"weights of {shape}",
        f"are sizes of at least 1, at most {MOST_WEIGHTS} weights in all",
    )
    dtype = "int8"
    if v[words.PRECISION] == FP16:
        dtype = "float16"
    return layouts.weights(shape, depthwise, dtype)


def output_of(capture: Capture, v: Raw, shape: tuple[int, int, int], dtype: str) -> np.ndarray:
    """Return the captured output ``(H, W, C)`` of a task that writes planes; ``v`` are its
    values."""
    layout = output_layout(v, shape, dtype)
    return tensor_at(capture, "output", v[words.OUTPUT_AT], layout)


def output_layout(v: Raw, shape: tuple[int, int, int], dtype: str) -> Layout:
    """Return the layout of the output ``(H, W, C)`` of a task that writes planes."""
    row_pitch = layouts.ATOM * (shape[1] + v["DPU.DATA_CUBE_NOTCH_ADDR.NOTCH_ADDR_0"])
    plane_pitch = layouts.ATOM * v["DPU.DST_SURF_STRIDE.DST_SURF_STRIDE"]
    return layouts.features(shape, dtype, row_pitch=row_pitch, plane_pitch=plane_pitch)
