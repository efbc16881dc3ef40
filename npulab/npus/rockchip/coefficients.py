"""The weights of a capture's convolutions in its coefficient buffer, and its other buffers by
address."""

from __future__ import annotations

import math

import numpy as np

from npulab.captures.capture import Capture
from npulab.captures.target import Item
from npulab.npus.kit.fields import Raw, values_of
from npulab.npus.kit.memory import MOST_BYTES, address_of, buffer_of, bytes_at, tensor_at
from npulab.npus.rockchip import layouts
from npulab.npus.rockchip.plans import DEPTHWISE, FP16, INT8

CONVOLUTION = "CNA.CONV_CON1.CONV_MODE"


def recode(capture: Capture) -> bytes:
    """The coefficient buffer with the weights of every convolution unpacked and packed again; what
    lies around them stays."""
    data = bytearray(buffer_of(capture, "coefficients"))
    for v, start, size in weight_runs(capture):
        layout = layouts.weights(*weights_shape(v))
        data[start:start + size] = layout.pack(layout.unpack(data[start:start + size]))
    return bytes(data)


def explain(capture: Capture) -> list[Item]:
    """Every weight of the coefficient buffer in order, and runs of bytes that are none."""
    data, done = buffer_of(capture, "coefficients"), 0
    items: list[Item] = []
    runs = {start: (v, size) for v, start, size in weight_runs(capture)}
    for start, (v, size) in sorted(runs.items()):
        if start < done:
            continue
        if start > done:
            items.append(Item(8 * done, 8 * (start - done), "other"))
        shape, depthwise, dtype = weights_shape(v)
        outputs, planes = channels_of(v)
        itemsize, places = np.dtype(dtype).itemsize, layouts.weights(shape, depthwise, dtype).index_map()
        stored = np.frombuffer(data, dtype, size // itemsize, start)
        for at, flat in enumerate(np.argsort(places, axis=None)):
            kernel, row, column, plane = (int(n) for n in np.unravel_index(flat, places.shape))
            kernel, plane = (plane, 0) if depthwise else (kernel, plane)
            fill = kernel >= outputs or plane >= planes
            value = int(stored[at]) if itemsize == 1 else int(stored.view(np.uint16)[at])
            items.append(Item(8 * (start + at * itemsize), 8 * itemsize, "fill" if fill else "weight", value, None,
                              kernel, plane, row, column, 0 if fill else 1))
        done = start + size
    return items + ([Item(8 * done, 8 * (len(data) - done), "other")] if done < len(data) else [])


def weights_of(capture: Capture, v: Raw) -> np.ndarray:
    """The weights OHWI (depthwise 1HWC) of a convolution, without fill."""
    shape, depthwise, dtype = weights_shape(v)
    (outputs, channels), layout = channels_of(v), layouts.weights(shape, depthwise, dtype)
    stored, fits = v["CNA.WEIGHT_SIZE0.WEIGHT_BYTES"], channels <= shape[3] and (depthwise or outputs <= shape[0])
    if stored != layout.size or not fits:
        raise ValueError(f"block CNA field WEIGHT_BYTES: got {stored} for {outputs} outputs of {channels} channels, "
                         f"allowed with weights of {shape} is {layout.size}, and no more than these")
    weights = tensor_at(capture, "coefficients", v["CNA.DCOMP_ADDR0.DECOMPRESS_ADDR0"], layout)
    return weights[:1 if depthwise else outputs, ..., :channels]


def channels_of(v: Raw) -> tuple[int, int]:
    """(output channels, input channels) without fill."""
    return v["DPU.DATA_CUBE_CHANNEL.ORIG_CHANNEL"] + 1, v["CNA.DATA_SIZE1.DATAIN_CHANNEL_REAL"] + 1


def weight_runs(capture: Capture) -> list[tuple[Raw, int, int]]:
    """(values, start in the coefficient buffer, bytes) of each convolution's weights."""
    base = address_of(capture, "coefficients", "where weights lie")
    out: list[tuple[Raw, int, int]] = []
    for job in capture.jobs:
        v = values_of(job, capture.maps)
        if CONVOLUTION not in v or v["CNA.CONV_CON1.IN_PRECISION"] not in (INT8, FP16):
            continue
        size, address = v["CNA.WEIGHT_SIZE0.WEIGHT_BYTES"], v["CNA.DCOMP_ADDR0.DECOMPRESS_ADDR0"]
        bytes_at(capture, "coefficients", address, size)
        shape, _, dtype = weights_shape(v)
        need = math.prod(shape) * np.dtype(dtype).itemsize
        if size != need:
            raise ValueError(f"block CNA field WEIGHT_BYTES: got {size}, allowed with its kernel is {need}")
        out.append((v, address - base, size))
    return out


def weights_shape(v: Raw) -> tuple[tuple[int, int, int, int], bool, str]:
    """(OHWI with fill, depthwise, dtype) of a convolution's weights; ValueError for a size of 0 or
    too many."""
    depthwise, half = v[CONVOLUTION] == DEPTHWISE, v["CNA.CONV_CON1.IN_PRECISION"] == FP16
    shape = (1 if depthwise else v["CNA.WEIGHT_SIZE2.WEIGHT_KERNELS"], v["CNA.WEIGHT_SIZE2.WEIGHT_HEIGHT"],
             v["CNA.WEIGHT_SIZE2.WEIGHT_WIDTH"], v["CNA.DATA_SIZE1.DATAIN_CHANNEL"])
    if 0 in shape or math.prod(shape) > MOST_BYTES // 8:
        raise ValueError(f"block CNA: got weights of {shape}, allowed are sizes from 1 on, {MOST_BYTES // 8} in all")
    return shape, depthwise, "float16" if half else "int8"
