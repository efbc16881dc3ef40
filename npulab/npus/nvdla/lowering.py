"""From a layer to what a driver would send: one job of register writes, weights, operands and input
in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from npulab.captures.capture import Capture
from npulab.captures.target import Unsupported
from npulab.npus.nvdla.facts import CHIPS, USUAL_CHIP, block_of, maps
from npulab.npus.nvdla.layouts import Cube, Weights
from npulab.npus.nvdla.points import RULE, Operands, Points, reading, scaled, summed
from npulab.npus.nvdla.words import address, program, spread
from npulab.quant.layers import Add, Conv2D, Layer, Pool2D
from npulab.quant.rules import shift_right

ADDRESSES = {"input": 0x80000000, "other": 0x88000000, "coefficients": 0x90000000, "bs": 0xA0000000, "bn": 0xA8000000,
             "output": 0xB0000000}
ALIGNMENT = 32  # of addresses on any chip
SOURCE = 1  # RAM_TYPE of the memory that every chip has
POOLS = {"average": 0, "max": 1, "min": 2}
RECIPROCAL = 2 ** 16
MOST_POOLED = 8  # rows and columns of a window


def lower(layer: Layer, chip: str = USUAL_CHIP, x: Any = None, name: str = "lowered",
          addresses: Mapping[str, int] | None = None) -> Capture:
    """The register program of a layer for a chip, its weights (``coefficients``), the operands of
    SDP's stages (``bs``, ``bn``) and, with ``x``, the input.

    Convolutions of int8 with symmetric weights, one scale or one per channel, no activation or
    ReLU; max, min and average pooling whose averages the unit rounds as the layer does; additions
    of two int8 tensors of one scale, the output's being that times a power of two.  ``x`` is ``(H,
    W, C)`` int8, for additions a pair.  The whole input and a group of kernels have to fit into the
    convolution buffer: nothing is cut into several jobs.  Numbers that the hardware takes and
    nobody checked in a trace: biases of two bytes, and pairs of bias and multiplier. Raises
    ValueError for a layer that is not covered, Unsupported for an unknown chip, LookupError for an
    unknown address.
    """
    if chip not in CHIPS:
        raise Unsupported(f"chip: got {chip!r}, allowed is one of {', '.join(CHIPS)}")
    where = _placed(addresses or {})
    if layer.dtype != "int8" or not isinstance(layer, Conv2D | Pool2D | Add):
        raise ValueError(f"lower for nvdla: got {layer!r} of {layer.dtype}, allowed is a Conv2D, Pool2D or Add of int8")
    given = _given(layer, x)
    if isinstance(layer, Conv2D):
        values, buffers = _convolution(layer, CHIPS[chip], where)
    else:
        buffers = {}
        values = _pooling(layer, CHIPS[chip], where) if isinstance(layer, Pool2D) \
            else _addition(layer, CHIPS[chip], where)
    shape = _three(layer.input_shape)
    for key, tensor in given.items():
        cube = Cube.packed(*shape, CHIPS[chip]["memory_atom"])
        memory = bytearray(cube.size)
        cube.pack(tensor.reshape(shape), memory)
        buffers[key] = bytes(memory)
    block, registers = block_of(chip), maps(chip)
    used = {"input", "output", *buffers} | ({"other"} if isinstance(layer, Add) else set())
    return Capture(name, "nvdla", chip, (program(values, block, registers[block]),), buffers,
                   {key: at for key, at in where.items() if key in used}, layer.parameters, "simulated",
                   tool="npulab lower", maps=registers)


def _placed(addresses: Mapping[str, int]) -> dict[str, int]:
    for name, at in addresses.items():
        if name not in ADDRESSES:
            raise LookupError(f"addresses: got {name!r}, allowed are {', '.join(ADDRESSES)}")
        if not isinstance(at, int) or not 0 <= at < 2 ** 40 or at % ALIGNMENT:
            raise ValueError(f"addresses: got {name} {at!r}, allowed is a multiple of {ALIGNMENT} within 40 bits")
    return {**ADDRESSES, **addresses}


def _given(layer: Layer, x: Any) -> dict[str, np.ndarray]:
    if x is None:
        return {}
    names = ("input", "other") if isinstance(layer, Add) else ("input",)
    parts = [np.asarray(one) for one in (x if isinstance(layer, Add) and isinstance(x, tuple | list) else [x])]
    if len(parts) != len(names) or any(one.shape != layer.input_shape or one.dtype != np.int8 for one in parts):
        kinds = " and ".join(f"shape {one.shape} {one.dtype}" for one in parts)
        raise ValueError(f"x: got {kinds}, allowed is {'a pair, each ' if len(names) > 1 else ''}{layer.input_shape} "
                         "of int8")
    return dict(zip(names, parts, strict=True))


def _three(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """An addition's tensor as (H, W, C): whatever lies before the last two axes counts as rows."""
    *rows, width, channels = (1, 1, *shape)
    return int(np.prod(rows)), width, channels


def _convolution(layer: Conv2D, chip: Mapping[str, int], where: Mapping[str, int],
                 ) -> tuple[dict[str, int], dict[str, bytes]]:
    _supported(layer)
    (height, width, channels), (rows, columns, count) = layer.input_shape, layer.output_shape
    (top, bottom), (left, right) = layer.pads
    kernel_h, kernel_w = layer.kernel
    cube = Cube.packed(height, width, channels, chip["memory_atom"])
    weights = Weights(count, kernel_h, kernel_w, channels, chip["atomic_k"], chip["atomic_c"])
    entries, data_banks = _buffered(cube, weights, chip)
    zero = layer.input_q.zero_point
    wide = layer.weights.astype(np.int64)
    bias = layer.bias.astype(np.int64) - zero * wide.sum((1, 2, 3))
    multiplier, shift = RULE.multiplier(layer.input_q.scale, np.broadcast_to(layer.weight_q.scale, (count,)),
                                        layer.output_q.scale)
    points = scaled(bias, multiplier, shift, layer.output_q.zero_point, layer.activation == "relu",
                    128 * np.abs(wide).sum((1, 2, 3)))
    modes = {f"{unit}.D_MISC_CFG.{name}": 0 for unit in ("CDMA", "CSC", "CMAC_A", "CMAC_B", "CACC")
             for name in ("CONV_MODE", "PROC_PRECISION")}
    banks = data_banks - 1, chip["cbuf_banks"] - data_banks - 1
    values = modes | {
        "CDMA.D_DATAIN_FORMAT.DATAIN_FORMAT": 0,
        **spread("CDMA.D_DATAIN_SIZE_0.DATAIN_WIDTH DATAIN_HEIGHT", (width - 1, height - 1)),
        "CDMA.D_DATAIN_SIZE_1.DATAIN_CHANNEL": channels - 1,
        **spread("CDMA.D_DATAIN_SIZE_EXT_0.DATAIN_WIDTH_EXT DATAIN_HEIGHT_EXT", (width - 1, height - 1)),
        "CDMA.D_DAIN_RAM_TYPE.DATAIN_RAM_TYPE": SOURCE,
        **address("CDMA.D_DAIN_ADDR_LOW_0.DATAIN_ADDR_LOW_0", where["input"]),
        "CDMA.D_LINE_STRIDE.LINE_STRIDE": cube.row_pitch, "CDMA.D_SURF_STRIDE.SURF_STRIDE": cube.plane_pitch,
        **spread("CDMA.D_DAIN_MAP.LINE_PACKED SURF_PACKED", (1, 1)),
        "CDMA.D_ENTRY_PER_SLICE.ENTRIES": entries - 1,
        "CDMA.D_WEIGHT_SIZE_0.BYTE_PER_KERNEL": kernel_h * kernel_w * channels - 1,
        "CDMA.D_WEIGHT_SIZE_1.WEIGHT_KERNEL": count - 1, "CDMA.D_WEIGHT_RAM_TYPE.WEIGHT_RAM_TYPE": SOURCE,
        **address("CDMA.D_WEIGHT_ADDR_LOW.WEIGHT_ADDR_LOW", where["coefficients"]),
        "CDMA.D_WEIGHT_BYTES.WEIGHT_BYTES": weights.size,
        **spread("CDMA.D_CONV_STRIDE.CONV_X_STRIDE CONV_Y_STRIDE", (layer.stride[1] - 1, layer.stride[0] - 1)),
        **spread("CDMA.D_ZERO_PADDING.PAD_LEFT PAD_RIGHT PAD_TOP PAD_BOTTOM", (left, right, top, bottom)),
        "CDMA.D_ZERO_PADDING_VALUE.PAD_VALUE": zero, **spread("CDMA.D_BANK.DATA_BANK WEIGHT_BANK", banks),
        "CSC.D_DATAIN_FORMAT.DATAIN_FORMAT": 0,
        **spread("CSC.D_DATAIN_SIZE_EXT_0.DATAIN_WIDTH_EXT DATAIN_HEIGHT_EXT", (width - 1, height - 1)),
        "CSC.D_DATAIN_SIZE_EXT_1.DATAIN_CHANNEL_EXT": channels - 1, "CSC.D_ENTRY_PER_SLICE.ENTRIES": entries - 1,
        **spread("CSC.D_WEIGHT_SIZE_EXT_0.WEIGHT_WIDTH_EXT WEIGHT_HEIGHT_EXT", (kernel_w - 1, kernel_h - 1)),
        **spread("CSC.D_WEIGHT_SIZE_EXT_1.WEIGHT_CHANNEL_EXT WEIGHT_KERNEL", (channels - 1, count - 1)),
        "CSC.D_WEIGHT_BYTES.WEIGHT_BYTES": weights.size,
        **spread("CSC.D_DATAOUT_SIZE_0.DATAOUT_WIDTH DATAOUT_HEIGHT", (columns - 1, rows - 1)),
        "CSC.D_DATAOUT_SIZE_1.DATAOUT_CHANNEL": count - 1, "CSC.D_ATOMICS.ATOMICS": rows * columns - 1,
        "CSC.D_RELEASE.RLS_SLICES": height - 1,
        **spread("CSC.D_CONV_STRIDE_EXT.CONV_X_STRIDE_EXT CONV_Y_STRIDE_EXT",
                 (layer.stride[1] - 1, layer.stride[0] - 1)),
        **spread("CSC.D_DILATION_EXT.X_DILATION_EXT Y_DILATION_EXT", (layer.dilation[1] - 1, layer.dilation[0] - 1)),
        **spread("CSC.D_ZERO_PADDING.PAD_LEFT PAD_TOP", (left, top)), "CSC.D_ZERO_PADDING_VALUE.PAD_VALUE": zero,
        **spread("CSC.D_BANK.DATA_BANK WEIGHT_BANK", banks),
        **spread("CACC.D_DATAOUT_SIZE_0.DATAOUT_WIDTH DATAOUT_HEIGHT", (columns - 1, rows - 1)),
        "CACC.D_DATAOUT_SIZE_1.DATAOUT_CHANNEL": count - 1,
        "CACC.D_DATAOUT_ADDR.DATAOUT_ADDR": where["output"] % 2 ** 32,
        **_pitched("CACC.D_LINE_STRIDE.LINE_STRIDE", "CACC.D_SURF_STRIDE.SURF_STRIDE", layer, chip),
        **spread("CACC.D_DATAOUT_MAP.LINE_PACKED SURF_PACKED", (1, 1)), "CACC.D_CLIP_CFG.CLIP_TRUNCATE": 0,
        **_written(layer, chip, where, points, flies=True)}
    buffers = {"coefficients": weights.pack(layer.weights)}
    for stage, operands in points.operands.items():
        buffers[stage.lower()] = operands.bytes(chip["memory_atom"])
    return values, buffers


def _supported(layer: Conv2D) -> None:
    wrong = None
    if layer.depthwise or layer.weights.dtype != np.int8:
        wrong = f"got {layer!r} with {layer.weights.dtype} weights, allowed is int8, not depthwise"
    if layer.activation not in (None, "relu"):
        wrong = f"activation: got {layer.activation!r}, allowed is None or 'relu'"
    if layer.weight_q.zero_point:
        wrong = f"weight_q: got zero point {layer.weight_q.zero_point}, allowed is 0"
    for name, q in (("input_q", layer.input_q), ("output_q", layer.output_q)):
        if not -128 <= q.zero_point <= 127:
            wrong = f"{name}: got zero point {q.zero_point}, allowed is -128 to 127"
    if wrong:
        raise ValueError(f"lower for nvdla: {wrong}")


def _buffered(cube: Cube, weights: Weights, chip: Mapping[str, int]) -> tuple[int, int]:
    """(entries of a line, banks of the whole input) in the convolution buffer; ValueError where it
    does not fit."""
    atoms = chip["cbuf_entry"] // cube.atom  # of a full entry
    full, rest = divmod(cube.surfaces, atoms)
    entries = full * cube.width
    if rest:
        entries += -(-cube.width // (atoms // 2 ** (rest - 1).bit_length()))
    banks = -(-entries * cube.height // chip["cbuf_entries"])
    group = min(weights.kernels, weights.group) * weights.used // weights.kernels
    kept = -(-group // (chip["cbuf_entry"] * chip["cbuf_entries"]))
    if banks + kept > chip["cbuf_banks"]:
        raise ValueError(f"lower for nvdla: got an input of {banks} banks and groups of kernels of {kept}, allowed are "
                         f"{chip['cbuf_banks']} banks of the convolution buffer together")
    return entries, banks


def _pitched(line: str, surface: str, layer: Any, chip: Mapping[str, int]) -> dict[str, int]:
    cube = Cube.packed(*_three(layer.output_shape), chip["memory_atom"])
    return {line: cube.row_pitch, surface: cube.plane_pitch}


def _written(layer: Any, chip: Mapping[str, int], where: Mapping[str, int], points: Points, flies: bool,
             ) -> dict[str, int]:
    """SDP and, where something is read, SDP_RDMA."""
    height, width, channels = _three(layer.output_shape)
    shape = {f"{{0}}.D_DATA_CUBE_{name}.{name}": size - 1
             for name, size in (("WIDTH", width), ("HEIGHT", height), ("CHANNEL", channels))}
    out = {name.format("SDP"): size for name, size in shape.items()} | {
        **address("SDP.D_DST_BASE_ADDR_LOW.DST_BASE_ADDR_LOW", where["output"]),
        **_pitched("SDP.D_DST_LINE_STRIDE.DST_LINE_STRIDE", "SDP.D_DST_SURFACE_STRIDE.DST_SURFACE_STRIDE", layer, chip),
        **spread("SDP.D_FEATURE_MODE_CFG.FLYING_MODE OUTPUT_DST", (flies, 0)), "SDP.D_DST_DMA_CFG.DST_RAM_TYPE": SOURCE,
        **spread("SDP.D_DATA_FORMAT.PROC_PRECISION OUT_PRECISION", (0, 0)), **points.values}
    if flies and not points.operands:
        return out
    out |= {name.format("SDP_RDMA"): size for name, size in shape.items()}
    out |= spread("SDP_RDMA.D_FEATURE_MODE_CFG.FLYING_MODE IN_PRECISION PROC_PRECISION OUT_PRECISION", (flies, 0, 0, 0))
    for stage in ("BS", "BN"):
        operands = points.operands.get(stage)
        out |= reading(stage, operands, where[stage.lower()])
    return out | {"SDP_RDMA.D_ERDMA_CFG.ERDMA_DISABLE": 1}


def _addition(layer: Add, chip: Mapping[str, int], where: Mapping[str, int]) -> dict[str, int]:
    one, other, out = (float(np.float32(q.scale)) for q in (layer.input_q, layer.other_q, layer.output_q))  # type: ignore[arg-type]
    shift = int(np.log2(out / one)) if out >= one else -1
    if one != other or not 0 <= shift < 32 or one * 2.0 ** shift != out:
        raise ValueError(f"lower for nvdla: scales: got {layer.input_q.scale} and {layer.other_q.scale} to "
                         f"{layer.output_q.scale}, allowed are two that are equal, to that times a power of two")
    if layer.activation not in (None, "relu"):
        raise ValueError(f"lower for nvdla: activation: got {layer.activation!r}, allowed is None or 'relu'")
    offset = -layer.input_q.zero_point - layer.other_q.zero_point
    points = summed(offset, shift, layer.output_q.zero_point, layer.activation == "relu")
    values = _written(layer, chip, where, points, flies=False)
    cube = Cube.packed(*_three(layer.input_shape), chip["memory_atom"])
    values |= address("SDP_RDMA.D_SRC_BASE_ADDR_LOW.SRC_BASE_ADDR_LOW", where["input"]) | {
        "SDP_RDMA.D_SRC_LINE_STRIDE.SRC_LINE_STRIDE": cube.row_pitch,
        "SDP_RDMA.D_SRC_SURFACE_STRIDE.SRC_SURFACE_STRIDE": cube.plane_pitch,
        "SDP_RDMA.D_SRC_DMA_CFG.SRC_RAM_TYPE": SOURCE}
    values |= reading("BS", Operands(alu=np.zeros(1, np.int64)), where["other"], (cube.row_pitch, cube.plane_pitch))
    return values


def _pooling(layer: Pool2D, chip: Mapping[str, int], where: Mapping[str, int]) -> dict[str, int]:
    if layer.activation is not None:
        raise ValueError(f"lower for nvdla: activation: got {layer.activation!r}, allowed with pooling is None")
    if max(layer.kernel) > MOST_POOLED:
        raise ValueError(f"lower for nvdla: kernel: got {layer.kernel}, allowed with pooling is up to {MOST_POOLED}")
    (height, width, channels), (rows, columns, _) = layer.input_shape, layer.output_shape
    (top, bottom), (left, right) = layer.pads
    reciprocals = (0, 0)
    if layer.kind == "average":
        taps = layer.kernel[0] * layer.kernel[1]
        if max(top, bottom, left, right):
            raise ValueError(f"lower for nvdla: padding: got {layer.pads}, allowed with averages is none: the unit "
                             "divides by the whole window")
        reciprocals = RECIPROCAL, (RECIPROCAL + taps // 2) // taps
        if not averages(taps, *reciprocals):
            raise ValueError(f"lower for nvdla: kernel: got {layer.kernel}, allowed are averages that a reciprocal of "
                             f"16 bits rounds right, not of {taps}")
    cube = Cube.packed(height, width, channels, chip["memory_atom"])
    sizes: dict[str, int] = {}
    for side, shape in (("IN", (width, height, channels)), ("OUT", (columns, rows, channels))):
        sizes |= {f"PDP.D_DATA_CUBE_{side}_{name}.CUBE_{side}_{name}": size - 1
                  for name, size in zip(("WIDTH", "HEIGHT", "CHANNEL"), shape, strict=True)}
    sizes |= {f"PDP_RDMA.{name.removeprefix('PDP.')}": size for name, size in sizes.items() if "_IN_" in name}
    return {**sizes,
            **spread("PDP.D_OPERATION_MODE_CFG.POOLING_METHOD FLYING_MODE SPLIT_NUM", (POOLS[layer.kind], 1, 0)),
            **spread("PDP.D_POOLING_KERNEL_CFG.KERNEL_WIDTH KERNEL_HEIGHT KERNEL_STRIDE_WIDTH KERNEL_STRIDE_HEIGHT",
                     (layer.kernel[1] - 1, layer.kernel[0] - 1, layer.stride[1] - 1, layer.stride[0] - 1)),
            "PDP.D_RECIP_KERNEL_WIDTH.RECIP_KERNEL_WIDTH": reciprocals[0],
            "PDP.D_RECIP_KERNEL_HEIGHT.RECIP_KERNEL_HEIGHT": reciprocals[1],
            **spread("PDP.D_POOLING_PADDING_CFG.PAD_LEFT PAD_TOP PAD_RIGHT PAD_BOTTOM", (left, top, right, bottom)),
            **address("PDP.D_SRC_BASE_ADDR_LOW.SRC_BASE_ADDR_LOW", where["input"]),
            "PDP.D_SRC_LINE_STRIDE.SRC_LINE_STRIDE": cube.row_pitch,
            "PDP.D_SRC_SURFACE_STRIDE.SRC_SURFACE_STRIDE": cube.plane_pitch,
            **address("PDP.D_DST_BASE_ADDR_LOW.DST_BASE_ADDR_LOW", where["output"]),
            **_pitched("PDP.D_DST_LINE_STRIDE.DST_LINE_STRIDE", "PDP.D_DST_SURFACE_STRIDE.DST_SURFACE_STRIDE", layer,
                       chip),
            "PDP.D_DST_RAM_CFG.DST_RAM_TYPE": SOURCE, "PDP.D_DATA_FORMAT.INPUT_DATA": 0,
            "PDP_RDMA.D_FLYING_MODE.FLYING_MODE": 1,
            **address("PDP_RDMA.D_SRC_BASE_ADDR_LOW.SRC_BASE_ADDR_LOW", where["input"]),
            "PDP_RDMA.D_SRC_LINE_STRIDE.SRC_LINE_STRIDE": cube.row_pitch,
            "PDP_RDMA.D_SRC_SURFACE_STRIDE.SRC_SURFACE_STRIDE": cube.plane_pitch,
            "PDP_RDMA.D_SRC_RAM_CFG.SRC_RAM_TYPE": SOURCE, "PDP_RDMA.D_DATA_FORMAT.INPUT_DATA": 0,
            **spread("PDP_RDMA.D_POOLING_KERNEL_CFG.KERNEL_WIDTH KERNEL_STRIDE_WIDTH",
                     (layer.kernel[1] - 1, layer.stride[1] - 1)),
            "PDP_RDMA.D_POOLING_PADDING_CFG.PAD_WIDTH": left}


def averages(taps: int, across: int, down: int) -> bool:
    """Whether two reciprocals, each with its rounding, make of every sum of so many int8 taps its
    average, ties away from 0.

    >>> averages(4, 65536, 16384), averages(4, 32768, 32768)
    (True, False)
    """
    sums = np.arange(-128 * taps, 127 * taps + 1)
    got = shift_right(shift_right(sums * across, 16, "half-away") * down, 16, "half-away")
    return bool(np.array_equal(got, np.sign(sums) * ((np.abs(sums) + taps // 2) // taps)))
