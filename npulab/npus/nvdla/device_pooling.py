"""The simulated PDP and CDP."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from npulab.captures.target import Hang, Unanswerable
from npulab.npus.nvdla.device_cube import (
    Cube,
    Values,
    covered,
    cube,
    element_bytes,
    few,
    lanes_of,
    limit,
    right,
    same,
    whole,
)
from npulab.npus.nvdla.device_memory import Memory
from npulab.npus.nvdla.device_tables import looked_up

AVERAGE, MAX, MIN = range(3)
MOST_WINDOWS = 2 ** 20


def pooled_to(v: Values, chip: Mapping[str, int]) -> tuple[Cube, int]:
    """Where PDP writes, and its channels."""
    size, shape = element_bytes(v, "PDP.D_DATA_FORMAT.INPUT_DATA"), _shape(v, "PDP.D_DATA_CUBE_OUT_{0}.CUBE_OUT_{0}")
    return cube(v, "PDP", "DST", "PDP.D_DST_RAM_CFG.DST_RAM_TYPE", shape, chip["memory_atom"], size), \
        v["PDP.D_DATA_CUBE_OUT_CHANNEL.CUBE_OUT_CHANNEL"] + 1


def pool(v: Values, chip: Mapping[str, int], memory: Memory, planes: list[np.ndarray] | None) -> None:
    """Pool planes that SDP gives, or a cube in memory."""
    covered(v, PDP__D_OPERATION_MODE_CFG__POOLING_METHOD=(AVERAGE, MAX, MIN))
    same(v, "PDP gives another number of channels than it takes", "PDP.D_DATA_CUBE_IN_CHANNEL.CUBE_IN_CHANNEL",
         "PDP.D_DATA_CUBE_OUT_CHANNEL.CUBE_OUT_CHANNEL")
    output, channels = pooled_to(v, chip)
    few(output.height * output.width * channels, "the elements of PDP's output", MOST_WINDOWS)
    shape = _shape(v, "PDP.D_DATA_CUBE_IN_{0}.CUBE_IN_{0}")
    flies = not v["PDP.D_OPERATION_MODE_CFG.FLYING_MODE"]
    lanes = len([*lanes_of(channels, output.lanes)])
    if flies and (planes is None or len(planes) != lanes or planes[0].shape != shape):
        raise Hang(f"PDP waits for {channels} channels of {shape[0]}x{shape[1]} from SDP, which gives others")
    if not flies:
        for name in ("WIDTH", "HEIGHT", "CHANNEL"):
            same(v, "PDP waits for data that its reader never gives", f"PDP.D_DATA_CUBE_IN_{name}.CUBE_IN_{name}",
                 f"PDP_RDMA.D_DATA_CUBE_IN_{name}.CUBE_IN_{name}")
        source = cube(v, "PDP_RDMA", "SRC", "PDP_RDMA.D_SRC_RAM_CFG.SRC_RAM_TYPE", shape, chip["memory_atom"],
                      output.size)
    done = [_pooled(v, planes[channel] if flies and planes is not None else source.plane(memory, channel),
                    (output.height, output.width), output.size) for channel in lanes_of(channels, output.lanes)]
    for channel, plane in enumerate(done):
        output.put(memory, channel, plane)


def _pooled(v: Values, x: np.ndarray, shape: tuple[int, int], size: int) -> np.ndarray:
    """One channel, window by window."""
    method = v["PDP.D_OPERATION_MODE_CFG.POOLING_METHOD"]
    height, width = (v[f"PDP.D_POOLING_KERNEL_CFG.KERNEL_{name}"] + 1 for name in ("HEIGHT", "WIDTH"))
    if max(height, width) > 8:
        raise Unanswerable(f"PDP.D_POOLING_KERNEL_CFG is {height}x{width}, the simulated device covers up to 8x8")
    down, across = (v[f"PDP.D_POOLING_KERNEL_CFG.KERNEL_STRIDE_{name}"] + 1 for name in ("HEIGHT", "WIDTH"))
    top, left = v["PDP.D_POOLING_PADDING_CFG.PAD_TOP"], v["PDP.D_POOLING_PADDING_CFG.PAD_LEFT"]
    pads = [0, *(whole(v[f"PDP.D_POOLING_PADDING_VALUE_{n}_CFG.PAD_VALUE_{n}X"], 19) for n in range(1, 8))]
    out = np.zeros(shape, np.int64)
    for oy in range(shape[0]):
        first, end = max(oy * down - top, 0), min(oy * down - top + height, x.shape[0])
        for ox in range(shape[1]):
            start, stop = max(ox * across - left, 0), min(ox * across - left + width, x.shape[1])
            if end <= first or stop <= start:
                raise Unanswerable(f"PDP: the window of output ({oy}, {ox}) lies outside the input of "
                                   f"{x.shape[0]}x{x.shape[1]}, the simulated device covers windows with an element")
            window = x[first:end, start:stop]
            if method != AVERAGE:
                out[oy, ox] = window.max() if method == MAX else window.min()
                continue
            rows, columns = height - (end - first), width - (stop - start)
            out[oy, ox] = window.sum() + (end - first) * pads[columns] + pads[rows] * width
    if method != AVERAGE:
        return out
    for name in ("WIDTH", "HEIGHT"):
        out = right(out * v[f"PDP.D_RECIP_KERNEL_{name}.RECIP_KERNEL_{name}"], 16)
    return limit(out, 8 * size)


def normalised_to(v: Values, chip: Mapping[str, int]) -> tuple[Cube, int]:
    """Where CDP writes, and its channels."""
    size, shape = element_bytes(v, "CDP.D_DATA_FORMAT.INPUT_DATA_TYPE"), _shape(v, "CDP_RDMA.D_DATA_CUBE_{0}.{0}")
    return cube(v, "CDP", "DST", "CDP.D_DST_DMA_CFG.DST_RAM_TYPE", shape, chip["memory_atom"], size), \
        v["CDP_RDMA.D_DATA_CUBE_CHANNEL.CHANNEL"] + 1


def normalise(v: Values, chip: Mapping[str, int], memory: Memory, tables: tuple[list[int], list[int]]) -> None:
    """Normalise a cube in memory across its channels."""
    covered(v, CDP__D_DATA_FORMAT__INPUT_DATA_TYPE=(0,), CDP_RDMA__D_DATA_FORMAT__INPUT_DATA=(0,),
            CDP__D_DST_COMPRESSION_EN__DST_COMPRESSION_EN=(0,), CDP_RDMA__D_SRC_COMPRESSION_EN__SRC_COMPRESSION_EN=(0,))
    output, channels = normalised_to(v, chip)
    few(output.height * output.width * channels, "the elements of CDP's output")
    source = cube(v, "CDP_RDMA", "SRC", "CDP_RDMA.D_SRC_DMA_CFG.SRC_RAM_TYPE", (output.height, output.width),
                  chip["memory_atom"], output.size)
    offset, scale = whole(v["CDP.D_DATIN_OFFSET.DATIN_OFFSET"], 8), whole(v["CDP.D_DATIN_SCALE.DATIN_SCALE"], 16)
    planes = []
    for channel in lanes_of(channels, output.lanes):
        z = limit(right((source.plane(memory, channel) - offset) * scale, v["CDP.D_DATIN_SHIFTER.DATIN_SHIFTER"]), 9)
        planes.append(z if channel < channels else np.zeros_like(z))
    reach = v["CDP.D_LRN_CFG.NORMALZ_LEN"] + 1
    offset, scale = whole(v["CDP.D_DATOUT_OFFSET.DATOUT_OFFSET"], 25), whole(v["CDP.D_DATOUT_SCALE.DATOUT_SCALE"], 16)
    for channel, z in enumerate(planes):
        around = planes[max(channel - reach, 0):channel + reach + 1]
        s = z if v["CDP.D_FUNC_BYPASS.SQSUM_BYPASS"] else np.sum([one * one for one in around], axis=0)
        found = looked_up(s, v, tables, "CDP")
        m = found if v["CDP.D_FUNC_BYPASS.MUL_BYPASS"] else found * z
        m = (m + 2 ** 24) % 2 ** 25 - 2 ** 24
        y = right((m - offset) * scale, v["CDP.D_DATOUT_SHIFTER.DATOUT_SHIFTER"])
        output.put(memory, channel, limit(y, 8))


def _shape(v: Values, names: str) -> tuple[int, int]:
    return v[names.format("HEIGHT")] + 1, v[names.format("WIDTH")] + 1
