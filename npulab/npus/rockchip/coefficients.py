"""The weights of a capture's convolutions in its coefficient buffer, and its outputs in planes."""

from __future__ import annotations

import math

import numpy as np

from npulab.layout import Layout
from npulab.npus.kit import Capture, Item, Raw, refuse_if, values_of
from npulab.npus.kit.memory import MOST_BYTES, address_of, buffer_of, bytes_at, tensor_at
from npulab.npus.rockchip import layouts, words
from npulab.npus.rockchip.plans import DEPTHWISE, FP16, INT8


def recode(capture: Capture) -> bytes:
    """The coefficient buffer with the weights of every convolution unpacked and packed again; what
    lies around them stays."""
    data = bytearray(buffer_of(capture, "coefficients"))
    for start, (_, layout) in weight_runs(capture):
        end = start + layout.size
        data[start:end] = layout.pack(layout.unpack(data[start:end]))
    return bytes(data)


def explain(capture: Capture) -> list[Item]:
    """Every weight of the coefficient buffer in order, and runs of bytes that are none."""
    data, end = buffer_of(capture, "coefficients"), 0
    items: list[Item] = []
    for start, (v, layout) in sorted(dict(weight_runs(capture)).items(), key=lambda run: run[0]):
        if start < end:
            continue
        if start > end:
            items.append(Item(8 * end, 8 * (start - end), "other"))
        sizes, channel = words.Sizes.of(v), 3 if v[words.CONVOLUTION] == DEPTHWISE else 0
        for item in layout.items(
            data[start : start + layout.size], channel=channel, plane=3 - channel, row=1, column=2
        ):
            fill = (item.channel or 0) >= sizes.output[2] or (item.plane or 0) >= sizes.input[2]
            items.append(
                item._replace(
                    bit=8 * start + item.bit,
                    weights=item.weights * (not fill),
                    kind="fill" if fill else item.kind,
                )
            )
        end = start + layout.size
    return items + ([Item(8 * end, 8 * (len(data) - end), "other")] if end < len(data) else [])


def weights_of(capture: Capture, v: Raw) -> np.ndarray:
    """The weights OHWI (depthwise 1HWC) of a convolution, without fill."""
    layout, sizes, depthwise = (
        weights_layout(v),
        words.Sizes.of(v),
        v[words.CONVOLUTION] == DEPTHWISE,
    )
    channels, outputs = sizes.input[2], sizes.output[2]
    fits = channels <= layout.shape[3] and (depthwise or outputs <= layout.shape[0])
    refuse_if(
        v[words.WEIGHT_BYTES] != layout.size or not fits,
        "block CNA field WEIGHT_BYTES",
        f"{v[words.WEIGHT_BYTES]} for {outputs} outputs of {channels} channels",
        f"with weights of {layout.shape} is {layout.size}, and no more than these",
    )
    weights = tensor_at(capture, "coefficients", v[words.WEIGHTS_AT], layout)
    return weights[: 1 if depthwise else outputs, ..., :channels]


def weight_runs(capture: Capture) -> list[tuple[int, tuple[Raw, Layout]]]:
    """(start in the coefficient buffer, (values, layout)) of each convolution's weights."""
    base = address_of(capture, "coefficients", "where weights lie")
    out: list[tuple[int, tuple[Raw, Layout]]] = []
    for job in capture.jobs:
        v = values_of(job, capture.maps)
        if words.CONVOLUTION not in v or v[words.PRECISION] not in (INT8, FP16):
            continue
        bytes_at(capture, "coefficients", v[words.WEIGHTS_AT], v[words.WEIGHT_BYTES])
        layout = weights_layout(v)
        refuse_if(
            v[words.WEIGHT_BYTES] != layout.size,
            "block CNA field WEIGHT_BYTES",
            v[words.WEIGHT_BYTES],
            f"with its kernel is {layout.size}",
        )
        out.append((v[words.WEIGHTS_AT] - base, (v, layout)))
    return out


def weights_layout(v: Raw) -> Layout:
    """The layout OHWI with fill of a convolution's weights; ValueError for a size of 0 or too
    many."""
    depthwise, half = v[words.CONVOLUTION] == DEPTHWISE, v[words.PRECISION] == FP16
    height, width = (v[f"CNA.WEIGHT_SIZE2.WEIGHT_{side}"] for side in ("HEIGHT", "WIDTH"))
    shape = (
        1 if depthwise else v["CNA.WEIGHT_SIZE2.WEIGHT_KERNELS"],
        height,
        width,
        v["CNA.DATA_SIZE1.DATAIN_CHANNEL"],
    )
    refuse_if(
        0 in shape or math.prod(shape) > MOST_BYTES // 8,
        "block CNA",
        f"weights of {shape}",
        f"are sizes from 1 on, at most {MOST_BYTES // 8} in all",
    )
    return layouts.weights(shape, depthwise, "float16" if half else "int8")


def output_of(capture: Capture, v: Raw, shape: tuple[int, int, int], dtype: str) -> np.ndarray:
    """The captured output ``(H, W, C)`` of a task that writes planes."""
    return tensor_at(capture, "output", v[words.OUTPUT_AT], output_layout(v, shape, dtype))


def output_layout(v: Raw, shape: tuple[int, int, int], dtype: str) -> Layout:
    """Where a task that writes planes puts the elements of its output."""
    row_pitch = layouts.ATOM * (shape[1] + v["DPU.DATA_CUBE_NOTCH_ADDR.NOTCH_ADDR_0"])
    plane_pitch = layouts.ATOM * v["DPU.DST_SURF_STRIDE.DST_SURF_STRIDE"]
    return layouts.features(shape, dtype, row_pitch=row_pitch, plane_pitch=plane_pitch)
