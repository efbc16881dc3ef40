"""What the registers say for a convolution: its cut into tasks, and values by full name.

Source: Mesa's rocket driver (rkt_task.c, rkt_regcmd.c) for RK3588, and a captured matrix
multiplication (WT).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from npulab.npus.kit.layers import as_1x1, of_type
from npulab.npus.kit.numbers import SIGNED, up
from npulab.npus.rockchip.layouts import ATOM, KERNELS, per_atom
from npulab.quant.layers import Conv2D, FullyConnected
from npulab.quant.rules import NAMED, TwoSteps, rule

BANKS, BANK_ENTRIES, ENTRY_BYTES = 12, 256, 128  # of the convolution buffer
SPLIT_BANKS = 7  # for the input where weights leave it fewer
GRAINS = 50  # Mesa: "seems to pass the most tests"
# of one channel: uint8 codes are moved down on the way in
TRUNCATE, CVT_SCALE, CVT_OFFSET = 14, 2 ** 14, -SIGNED
CHANNELS, DEPTHWISE_CHANNELS = 32, 64  # output channels are filled up to
INT8, FP16, INT32 = 0, 2, 4  # codes of a precision (WT; C:dump-x2)
DEPTHWISE = 3  # code of a convolution mode
SUM = 2  # code of an addition
SHARE_SHIFT = TwoSteps.share_bits  # of a chip with shares, 14 in open-rknpu's 0x121d80
BIAS, BIAS_OFFSETS_SHARES = 1, 7  # what is read of memory: biases, or with them weight zero points and shares
ACCUMULATORS = "int32-output"  # a driver quirk: a matrix multiplication whose sums are written as they are
TWICE = "twice_half_even"  # the feature of chips that have a share of each channel
DILATION = "dilation"  # the feature of chips whose kernels were seen spread
RULES = {False: "rockchip-rk3588:half-even", True: "rockchip-rv1103:half-even-twice"}  # by that feature


class Task(NamedTuple):
    """Rows of a convolution that run together: first and number of input rows, their border above,
    first and number of output rows, banks of the convolution buffer for input and weights."""

    top: int
    rows: int
    above: int
    first: int
    outputs: int
    data_banks: int
    weight_banks: int


def as_convolution(layer: Any) -> Conv2D:
    """The int8 convolution that a layer becomes: codes of uint8 less 128, fully connected layers
    over one pixel.

    Raises ValueError for a layer that is not covered.
    """
    if not isinstance(layer, Conv2D | FullyConnected) or layer.dtype not in ("int8", "uint8"):
        raise ValueError(f"lower for rockchip: got {layer!r} of {getattr(layer, 'dtype', 'no type')}, allowed is a "
                         "Conv2D or FullyConnected of int8 or uint8")
    if isinstance(layer, FullyConnected):
        layer = as_1x1(layer)
    down = SIGNED if layer.dtype == "uint8" else 0
    for name in ("input_q", "output_q"):
        zero = getattr(layer, name).zero_point - down
        if not -128 <= zero <= 127:
            raise ValueError(f"lower for rockchip: got {name} with zero point {zero + down}, allowed with "
                             f"{layer.dtype} is {down - 128} to {down + 127}")
    if layer.activation not in (None, "relu"):
        raise ValueError(f"lower for rockchip: got activation {layer.activation!r}, allowed is None or 'relu'")
    if layer.depthwise and layer.input_shape[2] == 1:
        layer = replace(layer, weights=layer.weights.transpose(3, 1, 2, 0), depthwise=False)
    elif layer.depthwise and layer.weights.shape[3] != layer.input_shape[2]:
        raise ValueError(f"lower for rockchip: got {layer.weights.shape[3]} depthwise outputs of "
                         f"{layer.input_shape[2]} channels, allowed are as many")
    return of_type(layer, "int8")


def cut(conv: Conv2D) -> list[Task]:
    """The tasks of a convolution: one where its input fits the banks that weights leave, else by
    rows from the top.

    Raises ValueError where not even one output row's input fits.
    """
    (height, width, channels), (rows, *_) = conv.input_shape, conv.output_shape
    above, below = conv.pads[0]
    atoms = -(-channels // ATOM)
    last = atoms % (ENTRY_BYTES // ATOM)
    entries = atoms // (ENTRY_BYTES // ATOM) * width
    entries += width if last == 3 else -(-last * width // (ENTRY_BYTES // ATOM))
    weight_bytes = conv.weights.size
    weight_banks = -(-weight_bytes // (ENTRY_BYTES * BANK_ENTRIES)) + 1
    wanted = -(-entries * height // BANK_ENTRIES)
    banks = BANKS - weight_banks if weight_banks + 1 < BANKS else SPLIT_BANKS
    if wanted <= banks:
        return [Task(0, height, above, 0, rows, wanted, BANKS - wanted)]
    weight_banks = weight_banks if weight_banks + 1 < BANKS else BANKS - SPLIT_BANKS
    most, stride = BANK_ENTRIES * banks // entries, conv.stride[0]
    kernel = (conv.kernel[0] - 1) * conv.dilation[0] + 1
    out: list[Task] = []
    first = 0
    while first < rows:
        start = first * stride - above
        top, pad = max(start, 0), max(-start, 0)
        end = min(top + most, height)
        behind = below if end == height else 0
        fitting = min((end + behind - start - kernel) // stride + 1, rows - first)
        if fitting < 1:
            raise ValueError(f"lower for rockchip: got {conv!r}, of whose input {most} rows fit the convolution "
                             "buffer, allowed are kernels of as many rows")
        out.append(Task(top, end - top, pad, first, fitting, banks, weight_banks))
        first += fitting
    return out


def values(conv: Conv2D, task: Task, where: Mapping[str, int], facts: Mapping[str, int], sums: bool) -> dict[str, int]:
    """Values by full name of what is not as in every job; ``where`` are the buffers' addresses.

    ``sums`` asks for a matrix multiplication: rows in, rows of int32 out.
    Raises ValueError for a border or scales that the registers cannot say.
    """
    (height, width, channels), (out_h, out_w, outputs) = conv.input_shape, conv.output_shape
    (kernel_h, kernel_w), depthwise, zero = conv.kernel, conv.depthwise, conv.input_q.zero_point
    if conv.dilation != (1, 1) and not facts.get(DILATION):
        raise ValueError(f"lower for rockchip: got dilation {conv.dilation}, allowed on this chip is (1, 1)")
    filled, single = up(channels, ATOM), channels == 1 and not sums
    kernels = 1 if depthwise else up(outputs, KERNELS)
    lanes = up(outputs, DEPTHWISE_CHANNELS if depthwise else CHANNELS)
    wide = max(width, ATOM) if single else width
    line, surface, pitch = 4 * width, width * height - 4 * width, ATOM * width
    if single:
        line, surface, pitch = wide, wide * (height - 1), wide
    if sums:
        line, surface, pitch = filled // ATOM, 0, filled
    entries = -(-width * 2 * -(-channels // ATOM) // (ENTRY_BYTES // ATOM))
    entries = wide * height if single else 40 if (width, channels) == (40, 40) else entries
    step = 1 if sums else out_h * out_w
    surfaces = 8 if sums else 4 if depthwise else 2
    notch = up(outputs, per_atom("int32")) // per_atom("int32") - 1 if sums else 0
    size, row = out_w - 1, task.outputs - 1
    out = {
        "CNA.CBUF_CON0.WEIGHT_BANK": task.weight_banks, "CNA.CBUF_CON0.DATA_BANK": task.data_banks,
        "CNA.CBUF_CON0.WEIGHT_REUSE": int(task.first > 0 and task.data_banks + task.weight_banks == BANKS
                                          and task.data_banks != SPLIT_BANKS),
        "CNA.CONV_CON1.GROUP_LINE_OFF": int(sums or single),
        "CNA.CONV_CON2.FEATURE_GRAINS": height + 1 if sums else GRAINS + conv.stride[0] + 1,
        "CNA.CONV_CON3.CONV_Y_STRIDE": conv.stride[0], "CNA.CONV_CON3.CONV_X_STRIDE": conv.stride[1],
        "CNA.CONV_CON3.ATROUS_Y_DILATION": conv.dilation[0] - 1,
        "CNA.CONV_CON3.ATROUS_X_DILATION": conv.dilation[1] - 1,
        "CNA.DATA_SIZE0.DATAIN_WIDTH": wide, "CNA.DATA_SIZE0.DATAIN_HEIGHT": task.rows,
        "CNA.DATA_SIZE1.DATAIN_CHANNEL_REAL": channels - 1, "CNA.DATA_SIZE1.DATAIN_CHANNEL": filled,
        "CNA.DATA_SIZE2.DATAOUT_WIDTH": out_w, "CNA.DATA_SIZE3.DATAOUT_ATOMICS": out_w * task.outputs,
        "CNA.WEIGHT_SIZE0.WEIGHT_BYTES": kernel_h * kernel_w * filled * kernels,
        "CNA.WEIGHT_SIZE1.WEIGHT_BYTES_PER_KERNEL": kernel_h * kernel_w * filled,
        "CNA.WEIGHT_SIZE2.WEIGHT_WIDTH": kernel_w, "CNA.WEIGHT_SIZE2.WEIGHT_HEIGHT": kernel_h,
        "CNA.WEIGHT_SIZE2.WEIGHT_KERNELS": kernels, "CNA.CBUF_CON1.DATA_ENTRIES": entries,
        "CNA.PAD_CON0.PAD_LEFT": conv.pads[1][0], "CNA.PAD_CON0.PAD_TOP": task.above,
        "CNA.FEATURE_DATA_ADDR.FEATURE_BASE_ADDR": where["input"] + task.top * pitch,
        "CNA.DMA_CON1.LINE_STRIDE": line, "CNA.DMA_CON2.SURF_STRIDE": surface,
        "CNA.FC_DATA_SIZE0.DMA_WIDTH": width, "CNA.FC_DATA_SIZE0.DMA_HEIGHT": task.rows,
        "CNA.FC_DATA_SIZE1.DMA_CHANNEL": filled, "CNA.DCOMP_ADDR0.DECOMPRESS_ADDR0": where["coefficients"],
        "CNA.PAD_CON1.PAD_VALUE": padding_word(zero, conv), "CORE.DATAOUT_SIZE_0.DATAOUT_HEIGHT": row,
        "CORE.DATAOUT_SIZE_0.DATAOUT_WIDTH": size, "CORE.DATAOUT_SIZE_1.DATAOUT_CHANNEL": lanes - 1,
        "DPU.DST_BASE_ADDR.DST_BASE_ADDR": where["output"] + task.first * ATOM * (out_w + notch),
        "DPU.DST_SURF_STRIDE.DST_SURF_STRIDE": step, "DPU.DATA_CUBE_WIDTH.WIDTH": size,
        "DPU.DATA_CUBE_HEIGHT.HEIGHT": row, "DPU.DATA_CUBE_NOTCH_ADDR.NOTCH_ADDR_1": notch,
        "DPU.DATA_CUBE_NOTCH_ADDR.NOTCH_ADDR_0": notch, "DPU.DATA_CUBE_CHANNEL.ORIG_CHANNEL": outputs - 1,
        "DPU.DATA_CUBE_CHANNEL.CHANNEL": lanes - 1, "DPU.WDMA_SIZE_0.CHANNEL_WDMA": lanes - 1,
        "DPU.WDMA_SIZE_1.HEIGHT_WDMA": row, "DPU.WDMA_SIZE_1.WIDTH_WDMA": size,
        **{f"DPU.BS_OW_CFG.SIZE_E_{n}": surfaces - 1 for n in range(3)},
        "DPU.SURFACE_ADD.SURF_ADD": step * surfaces}
    if single:
        out |= {"CNA.CONV_CON1.NONALIGN_DMA": 1, "CNA.CONV_CON1.ARGB_IN": 8, "CNA.CVT_CON0.DATA_SIGN": 0,
                "CNA.CVT_CON0.CVT_TYPE": 0, "CNA.CVT_CON0.CVT_BYPASS": 0, "CNA.CVT_CON5.PER_CHANNEL_CVT_EN": 0xFFFF}
        for n in range(4):
            out |= {f"CNA.CVT_CON0.CVT_TRUNCATE_{n}": TRUNCATE, f"CNA.CVT_CON{n + 1}.CVT_SCALE{n}": CVT_SCALE,
                    f"CNA.CVT_CON{n + 1}.CVT_OFFSET{n}": CVT_OFFSET}
    if depthwise:
        out |= {"CNA.CONV_CON1.CONV_MODE": DEPTHWISE, "CORE.MISC_CFG.DW_EN": 1,
                "DPU.FEATURE_MODE_CFG.CONV_MODE": DEPTHWISE}
    if sums:
        return out | {"DPU.DATA_FORMAT.OUT_PRECISION": INT32, "DPU.OUT_CVT_SCALE.OUT_CVT_SCALE": 1,
                      **{f"DPU.BS_CFG.BS_{name}": 1 for name in ("BYPASS", "ALU_BYPASS", "MUL_BYPASS", "RELU_BYPASS")},
                      "DPU.BS_CFG.BS_ALU_SRC": 0, "DPU.BS_CFG.BS_ALU_ALGO": 0}
    reads = {"DPU_RDMA.RDMA_DATA_CUBE_WIDTH.WIDTH": size, "DPU_RDMA.RDMA_DATA_CUBE_HEIGHT.HEIGHT": row,
             "DPU_RDMA.RDMA_DATA_CUBE_CHANNEL.CHANNEL": lanes - 1,
             "DPU_RDMA.RDMA_BS_BASE_ADDR.BS_BASE_ADDR": where["biases"],
             "DPU_RDMA.RDMA_FEATURE_MODE_CFG.CONV_MODE": DEPTHWISE if depthwise else 0}
    return out | reads | converter(conv, facts)


def converter(conv: Conv2D, facts: Mapping[str, int]) -> dict[str, int]:
    """Values of what makes outputs of sums; ValueError for scales that the chip cannot say."""
    by_channel = bool(facts.get(TWICE))
    if isinstance(conv.weight_q.scale, tuple) and not by_channel:
        raise ValueError(f"lower for rockchip: got weight_q with {len(conv.weight_q.scale)} scales, allowed on this "
                         "chip is one")
    by = rule(RULES[by_channel])
    multiplier, shift = by.multiplier(conv.input_q.scale, conv.weight_q.scale, conv.output_q.scale)
    of_all = TwoSteps.split(multiplier)[1] if by_channel else multiplier
    out = {"DPU.OUT_CVT_SCALE.OUT_CVT_SCALE": int(np.max(of_all)),
           "DPU.OUT_CVT_SHIFT.OUT_CVT_SHIFT": int(np.max(shift)),
           "DPU.OUT_CVT_OFFSET.OUT_CVT_OFFSET": conv.output_q.zero_point,
           "DPU.BS_CFG.BS_RELU_BYPASS": int(conv.activation is None),
           "DPU.BS_OW_OP.OW_OP": -conv.weight_q.zero_point}
    if by_channel:
        out |= {"DPU.BS_CFG.BS_MUL_BYPASS": 0, "DPU.BS_CFG.BS_MUL_SHIFT": SHARE_SHIFT,
                "DPU.BS_MUL_CFG.BS_MUL_SRC": 1,
                "DPU.BS_OW_CFG.OW_SRC": 1, "DPU.BS_OW_OP.OW_OP": 0,
                "DPU_RDMA.RDMA_BRDMA_CFG.BRDMA_DATA_USE": BIAS_OFFSETS_SHARES}
    return out


def shares(conv: Conv2D) -> np.ndarray:
    """Each output channel's share of the largest scale, ``(O,) int64`` with 14 bits of fraction."""
    multiplier, _ = NAMED[RULES[True]].multiplier(conv.input_q.scale, conv.weight_q.scale, conv.output_q.scale)
    return np.broadcast_to(TwoSteps.split(multiplier)[0], (conv.output_shape[2],))


def padding_word(zero: int, conv: Conv2D) -> int:
    """PAD_VALUE for a zero point: its low byte is what a tap beside the image reads.

    The driver repeats it in the byte above in two cases, which it found to be needed.
    """
    if (conv.kernel[1] >= 3 and zero == -SIGNED) or (conv.depthwise and zero == 0x0B):
        return (zero % 2 ** 8 * 0x101 + (0xFFFF0000 if zero < 0 else 0)) % 2 ** 32
    return zero % 2 ** 32
