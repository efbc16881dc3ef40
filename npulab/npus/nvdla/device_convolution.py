"""The simulated convolution: CDMA, CSC, CMAC and CACC, from words and bytes to accumulators."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from npulab.captures.target import Hang, Unanswerable
from npulab.npus.nvdla.device_cube import (
    Cube,
    Values,
    covered,
    element_bytes,
    few,
    limit,
    right,
    same,
    whole,
)
from npulab.npus.nvdla.device_memory import MEMORIES, Memory

MOST_PRODUCTS, MOST_TAPS = 2 ** 32, 2 ** 18
# where the bytes of a pixel go, by the raw value of PIXEL_FORMAT: the ten orders of four 8-bit channels
ORDERS = {**dict.fromkeys((12, 16), (0, 1, 2, 3)), **dict.fromkeys((13, 17, 26), (2, 1, 0, 3)),
          **dict.fromkeys((14, 18, 27), (1, 2, 3, 0)), **dict.fromkeys((15, 19), (3, 2, 1, 0))}
MEANS = ("0.MEAN_RY", "0.MEAN_GU", "1.MEAN_BV", "1.MEAN_AX")
UNITS = ("CDMA", "CSC", "CMAC_A", "CMAC_B", "CACC")
Plane = Callable[[int], np.ndarray]


def accumulators(v: Values, chip: Mapping[str, int], memory: Memory) -> np.ndarray:
    """``(K, H, W)`` int64 of 32 bits, as CACC hands them on.

    Raises Hang, with the reason, for units that wait for one another or for bytes that are not there.
    """
    covered(v, CDMA__D_MISC_CFG__CONV_MODE=(0,), CSC__D_MISC_CFG__CONV_MODE=(0,), CSC__D_BATCH_NUMBER__BATCHES=(0,),
            CDMA__D_WEIGHT_FORMAT__WEIGHT_FORMAT=(0,), CSC__D_WEIGHT_FORMAT__WEIGHT_FORMAT=(0,),
            CSC__D_POST_Y_EXTENSION__Y_EXTENSION=(0,), CDMA__D_MISC_CFG__DATA_REUSE=(0,),
            CDMA__D_MISC_CFG__WEIGHT_REUSE=(0,))
    image = v["CDMA.D_DATAIN_FORMAT.DATAIN_FORMAT"]
    same(v, "CSC waits for data that CDMA never gives", "CDMA.D_DATAIN_FORMAT.DATAIN_FORMAT",
         "CSC.D_DATAIN_FORMAT.DATAIN_FORMAT")
    for name in ("WIDTH", "HEIGHT"):
        same(v, "CSC waits for data that CDMA never gives", f"CDMA.D_DATAIN_SIZE_0.DATAIN_{name}",
             f"CSC.D_DATAIN_SIZE_EXT_0.DATAIN_{name}_EXT")
        same(v, "CACC waits for sums that CSC never asks for", f"CSC.D_DATAOUT_SIZE_0.DATAOUT_{name}",
             f"CACC.D_DATAOUT_SIZE_0.DATAOUT_{name}")
    same(v, "CSC waits for data that CDMA never gives", "CDMA.D_DATAIN_SIZE_1.DATAIN_CHANNEL",
         "CSC.D_DATAIN_SIZE_EXT_1.DATAIN_CHANNEL_EXT")
    same(v, "the kernels are not as many as the output has channels", "CSC.D_DATAOUT_SIZE_1.DATAOUT_CHANNEL",
         "CSC.D_WEIGHT_SIZE_EXT_1.WEIGHT_KERNEL")
    for name in ("D_BANK.DATA_BANK", "D_BANK.WEIGHT_BANK", "D_ENTRY_PER_SLICE.ENTRIES", "D_WEIGHT_BYTES.WEIGHT_BYTES"):
        same(v, "CSC looks for data elsewhere than CDMA puts them", f"CDMA.{name}", f"CSC.{name}")
    units = [unit for unit in UNITS if v[f"{unit}.D_OP_ENABLE.OP_EN"]]
    same(v, "units that compute in different ways wait for one another",
         *(f"{unit}.D_MISC_CFG.CONV_MODE" for unit in units))
    size = element_bytes(v, *(f"{unit}.D_MISC_CFG.PROC_PRECISION" for unit in units))
    if v["CDMA.D_MISC_CFG.IN_PRECISION"] != v["CDMA.D_MISC_CFG.PROC_PRECISION"]:
        raise Unanswerable(f"CDMA.D_MISC_CFG.IN_PRECISION is {v['CDMA.D_MISC_CFG.IN_PRECISION']}, the simulated device "
                           f"covers that of PROC_PRECISION, {v['CDMA.D_MISC_CFG.PROC_PRECISION']}")
    height, width = (v[f"CSC.D_WEIGHT_SIZE_EXT_0.WEIGHT_{name}_EXT"] + 1 for name in ("HEIGHT", "WIDTH"))
    depth, count = v["CSC.D_WEIGHT_SIZE_EXT_1.WEIGHT_CHANNEL_EXT"] + 1, v["CSC.D_WEIGHT_SIZE_EXT_1.WEIGHT_KERNEL"] + 1
    rows, columns = (v[f"CSC.D_DATAOUT_SIZE_0.DATAOUT_{name}"] + 1 for name in ("HEIGHT", "WIDTH"))
    few(count * rows * columns, "the accumulators")
    few(height * width * depth, "the weights of a kernel", MOST_TAPS)
    few(height * width * depth * count * rows * columns, "the products", MOST_PRODUCTS)
    weights = _weights(v, chip, memory, (count, height, width, depth), size)
    if image:
        if width > 1 or depth % 4:
            raise Hang(f"kernels of an image have {width} columns of {depth} channels, allowed is one of pixels of 4")
        plane, channels, across = _pixels(v, memory), 4, depth // 4
        weights = weights.reshape(count, height, across, 4)
    else:
        if depth != v["CDMA.D_DATAIN_SIZE_1.DATAIN_CHANNEL"] + 1:
            raise Hang(f"kernels have {depth} channels, the input has {v['CDMA.D_DATAIN_SIZE_1.DATAIN_CHANNEL'] + 1}")
        plane, channels, across = _feature(v, chip, memory, size), depth, width
    sums = np.zeros((count, rows, columns), np.int64)
    for channel in range(channels):
        data = plane(channel)
        for y in range(height):
            for x in range(across):
                sums += weights[:, y, x, channel, None, None] * _tap(v, data, y, x, (rows, columns), size)
    sums = limit(sums, 34 if size == 1 else 48)
    return limit(right(sums, v["CACC.D_CLIP_CFG.CLIP_TRUNCATE"]), 32)


def _tap(v: Values, data: np.ndarray, y: int, x: int, shape: tuple[int, int], size: int) -> np.ndarray:
    """What one tap of the kernel meets at each output; outside the input that is the pad value."""
    at = []
    for tap, out, axis, side in ((y, shape[0], "Y", "TOP"), (x, shape[1], "X", "LEFT")):
        stride = v[f"CSC.D_CONV_STRIDE_EXT.CONV_{axis}_STRIDE_EXT"] + 1
        spread = v[f"CSC.D_DILATION_EXT.{axis}_DILATION_EXT"] + 1
        at.append(np.arange(out) * stride - v[f"CSC.D_ZERO_PADDING.PAD_{side}"] + tap * spread)
    rows, columns = at
    inside = ((rows >= 0) & (rows < data.shape[0]))[:, None] & ((columns >= 0) & (columns < data.shape[1]))[None, :]
    met = data[np.clip(rows, 0, data.shape[0] - 1)[:, None], np.clip(columns, 0, data.shape[1] - 1)[None, :]]
    return np.where(inside, met, whole(v["CSC.D_ZERO_PADDING_VALUE.PAD_VALUE"], 8 * size))


def _feature(v: Values, chip: Mapping[str, int], memory: Memory, size: int) -> Plane:
    """Channels of a feature cube."""
    covered(v, CDMA__D_CVT_CFG__CVT_EN=(0,))
    atom = chip["memory_atom"]
    base = v["CDMA.D_DAIN_ADDR_LOW_0.DATAIN_ADDR_LOW_0"]
    for name in ("CDMA.D_DAIN_ADDR_LOW_0.DATAIN_ADDR_LOW_0", "CDMA.D_LINE_STRIDE.LINE_STRIDE",
                 "CDMA.D_SURF_STRIDE.SURF_STRIDE"):
        if v[name] % atom:
            raise Hang(f"{name} is {v[name]:#x}, off its alignment of {atom}")
    found = Cube("CDMA (data)", MEMORIES[v["CDMA.D_DAIN_RAM_TYPE.DATAIN_RAM_TYPE"]],
                 base + 2 ** 32 * v["CDMA.D_DAIN_ADDR_HIGH_0.DATAIN_ADDR_HIGH_0"], v["CDMA.D_LINE_STRIDE.LINE_STRIDE"],
                 v["CDMA.D_SURF_STRIDE.SURF_STRIDE"], v["CDMA.D_DATAIN_SIZE_0.DATAIN_HEIGHT"] + 1,
                 v["CDMA.D_DATAIN_SIZE_0.DATAIN_WIDTH"] + 1, atom // size, size)
    return lambda channel: found.plane(memory, channel)


def _pixels(v: Values, memory: Memory) -> Plane:
    """Channels of an image, converted."""
    covered(v, CDMA__D_DATAIN_FORMAT__PIXEL_FORMAT=tuple(ORDERS), CDMA__D_DATAIN_SIZE_1__DATAIN_CHANNEL=(3,),
            CDMA__D_PIXEL_OFFSET__PIXEL_X_OFFSET=(0,), CDMA__D_PIXEL_OFFSET__PIXEL_Y_OFFSET=(0,),
            CDMA__D_DATAIN_FORMAT__PIXEL_MAPPING=(0,), CDMA__D_CVT_CFG__CVT_EN=(1,),
            CDMA__D_MISC_CFG__PROC_PRECISION=(0,))
    base = v["CDMA.D_DAIN_ADDR_LOW_0.DATAIN_ADDR_LOW_0"] + 2 ** 32 * v["CDMA.D_DAIN_ADDR_HIGH_0.DATAIN_ADDR_HIGH_0"]
    found = Cube("CDMA (pixels)", MEMORIES[v["CDMA.D_DAIN_RAM_TYPE.DATAIN_RAM_TYPE"]], base,
                 v["CDMA.D_LINE_STRIDE.LINE_STRIDE"], 0, v["CDMA.D_DATAIN_SIZE_0.DATAIN_HEIGHT"] + 1,
                 v["CDMA.D_DATAIN_SIZE_0.DATAIN_WIDTH"] + 1, 4, 1)
    order = ORDERS[v["CDMA.D_DATAIN_FORMAT.PIXEL_FORMAT"]]

    def plane(channel: int) -> np.ndarray:
        raw = found.plane(memory, order[channel])
        if not v["CDMA.D_DATAIN_FORMAT.PIXEL_SIGN_OVERRIDE"]:
            raw = raw & 0xFF
        mean = v[f"CDMA.D_MEAN_GLOBAL_{MEANS[channel]}"] if v["CDMA.D_MEAN_FORMAT.MEAN_FORMAT"] \
            else v["CDMA.D_CVT_OFFSET.CVT_OFFSET"]
        scaled = (raw - whole(mean, 16)) * whole(v["CDMA.D_CVT_SCALE.CVT_SCALE"], 16)
        return limit(limit(right(scaled, v["CDMA.D_CVT_CFG.CVT_TRUNCATE"]), 17), 8)
    return plane


def _weights(v: Values, chip: Mapping[str, int], memory: Memory, shape: tuple[int, int, int, int], size: int,
             ) -> np.ndarray:
    """Kernels ``(K, R, S, C)`` int64, read as they come: groups of kernels, blocks of channels, rows, columns."""
    count, height, width, depth = shape
    given, needed = v["CDMA.D_WEIGHT_BYTES.WEIGHT_BYTES"], count * height * width * depth * size
    if given < needed:
        raise Hang(f"CSC waits for {needed} bytes of weights, CDMA.D_WEIGHT_BYTES gives {given}")
    base = v["CDMA.D_WEIGHT_ADDR_LOW.WEIGHT_ADDR_LOW"] + 2 ** 32 * v["CDMA.D_WEIGHT_ADDR_HIGH.WEIGHT_ADDR_HIGH"]
    where = MEMORIES[v["CDMA.D_WEIGHT_RAM_TYPE.WEIGHT_RAM_TYPE"]]
    codes = memory.take(where, base + np.arange(needed), "CDMA (weights)")
    numbers = codes.view(np.int8 if size == 1 else "<i2").astype(np.int64)
    out = np.zeros(shape, np.int64)
    at = 0
    group = chip.get("atomic_k_int16", chip["atomic_k"]) if size == 2 else chip["atomic_k"]
    for kernels, channels in _blocks(count, depth, group, chip["atomic_c"]):
        for y in range(height):
            for x in range(width):
                for kernel in kernels:
                    out[kernel, y, x, channels.start:channels.stop] = numbers[at:at + len(channels)]
                    at += len(channels)
    return out


def _blocks(count: int, depth: int, group: int, block: int) -> Iterator[tuple[range, range]]:
    for first in range(0, count, group):
        for start in range(0, depth, block):
            yield range(first, min(first + group, count)), range(start, min(start + block, depth))
