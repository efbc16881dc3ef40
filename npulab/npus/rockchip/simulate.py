"""The simulated device: from register words and bytes to memory, task by task.

It shares only the tables, the reading of fields and the memory with the modules for ``lift`` and
emulation. It uses no other part of these modules, so its agreement with them is evidence.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import product, zip_longest
from typing import Any

import numpy as np
from numpy import ndarray as Array

from npulab.npus.kit import COMMANDS, Capture, Hang, Memory, Unsupported, address_of
from npulab.npus.kit.fields import DEVICE, Raw, expect, hang_if, known, values_of
from npulab.npus.kit.numbers import ceil_div, up, wrapped
from npulab.npus.rockchip.facts import EXPECTED

ATOM = 16
MOST_BYTES = 2**26
MOST_PRODUCTS = 2**31
PRECISIONS: dict[int, np.dtype[Any]] = {
    0: np.dtype(np.int8),
    2: np.dtype(np.float16),
    4: np.dtype("<i4"),
    5: np.dtype("<f4"),
}
DEPTHWISE = 3
# The operands of four output channels: biases, weight offsets and shares (ORK).
OPERANDS = np.dtype([("bias", "<i4", 4), ("offset", "<i2", 4), ("share", "<u2", 4)])
ENDED, NEXT = "TASK.interrupt_status.interrupt_status", "PC.BASE_ADDRESS.PC_SOURCE_ADDR"
# This field has the number of cores that share the operation, less 1 (PH).
CORES = "PC.REGISTER_AMOUNTS.RESERVED_0"


def simulate(capture: Capture) -> bytes:
    """Run the capture's tasks in order; return the bytes of the output buffer.

    If task records state which tasks ended, only the tasks that ``ran`` returns run. Buffers lie
    at their addresses. Output lanes past ORIG_CHANNEL are 0 (C:dump-+2 adds 2 in one of 8 lanes
    only). Raises Hang, with the reason, for a size or count of 0, for reads outside of all buffers,
    and for sizes that contradict each other. Raises Unsupported for units and modes that it does
    not simulate.
    """
    base = address_of(capture, "output", "where its tasks write")
    buffers = dict(capture.buffers)
    for name in (COMMANDS, "output"):
        buffers.pop(name, None)
    memory = Memory(buffers, capture.addresses)
    for v in ran([values_of(job, capture.maps) for job in capture.jobs]):
        run(v, memory)
    # The output buffer ends where the next buffer begins.
    size = MOST_BYTES
    for name, address in capture.addresses.items():
        if name in buffers and address > base:
            size = min(size, address - base)
    return memory.stretch(base, size)


def ran(jobs: Sequence[Raw]) -> list[Raw]:
    """Return the tasks that ran, as the task records state it; all tasks if no record states that
    its task ended.

    A program is a chain of tasks, each of which has the address of the next. The record of a
    program's first task states the number of cores that share the program. A program ran if a
    record states that one of its tasks ended, or if its number of cores is that of such a program:
    then it ran beside that program. A program ran up to its last task whose record states an end or
    a number of cores. Tasks of programs that ran side by side alternate in the result.
    """
    if not _any_ended(jobs):
        return list(jobs)
    programs: list[list[Raw]] = []
    goes_on = False
    for v in jobs:
        if not goes_on:
            programs.append([])
        programs[-1].append(v)
        goes_on = bool(v.get(NEXT))
    ended = [program for program in programs if _any_ended(program)]
    cores = {program[0].get(CORES, 0) for program in ended}
    chosen = []
    for program in programs:
        shared = program[0].get(CORES, 0)
        if program in ended or (shared and shared in cores):
            last = 0
            for number, v in enumerate(program):
                if v.get(ENDED) or v.get(CORES, 0):
                    last = number
            chosen.append(program[: last + 1])
    tasks = []
    for step in zip_longest(*chosen):
        tasks += [v for v in step if v is not None]
    return tasks


def _any_ended(tasks: Sequence[Raw]) -> bool:
    return any(v.get(ENDED) for v in tasks)


def run(v: Raw, memory: Memory) -> None:
    """Run one task with values ``v``: a convolution, or elements that the DPU reads and writes."""
    if "CNA.CONV_CON1.CONV_MODE" in v:
        convolution(v, memory)
    elif v.get("DPU.FEATURE_MODE_CFG.FLYING_MODE"):
        elements(v, memory)
    else:
        raise Unsupported("the simulated device runs convolutions and elements of the DPU")


def convolution(v: Raw, memory: Memory) -> None:
    """Run a convolution task and write its output.

    Each weight is read once, in the order of the buffer, and multiplied with all its inputs.
    """
    known(v, EXPECTED["device"])
    kind = _precision(v, "CNA.CONV_CON1.IN_PRECISION")
    out_h = v["CORE.DATAOUT_SIZE_0.DATAOUT_HEIGHT"] + 1
    out_w = v["CORE.DATAOUT_SIZE_0.DATAOUT_WIDTH"] + 1
    (step_y, step_x), (apart_y, apart_x) = _strides_and_dilations(v)
    outputs = v["DPU.DATA_CUBE_CHANNEL.ORIG_CHANNEL"] + 1
    image = window(v, memory, kind, out_h, out_w)
    if v["CNA.CONV_CON1.CONV_MODE"] == DEPTHWISE:
        count = len(image)
    else:
        count = v["CNA.WEIGHT_SIZE2.WEIGHT_KERNELS"]
    _fits("the sums", (count, out_h, out_w))
    need = v["CNA.WEIGHT_SIZE0.WEIGHT_BYTES"]
    data = memory.read(v["CNA.DCOMP_ADDR0.DECOMPRESS_ADDR0"], need, "weights")
    stored = np.frombuffer(data, kind)
    sums = np.zeros((count, out_h, out_w), _accumulator(kind))
    offsets, biases, shares = operands(v, memory, outputs, count)
    if kind.kind == "f":
        offsets = [0] * len(offsets)
    if len(stored) * out_h * out_w > MOST_PRODUCTS:
        raise Hang(
            f"{len(stored)} weights for {out_h}x{out_w} outputs are more than "
            f"{MOST_PRODUCTS} products"
        )
    order = places(v, count, len(image), kind.itemsize)
    for at, (row, column, kernel, channel) in enumerate(order):
        if at >= len(stored):
            raise Hang(f"weights: {need} bytes end before the kernels do")
        weight = stored.item(at) + offsets[kernel]
        if weight:
            top, left = row * apart_y, column * apart_x
            rows = slice(top, top + (out_h - 1) * step_y + 1, step_y)
            columns = slice(left, left + (out_w - 1) * step_x + 1, step_x)
            sums[kernel] += weight * image[channel, rows, columns]
    hang_if(outputs > count, f"{outputs} output channels of {count} kernels")
    planes = []
    for channel in range(outputs):
        planes.append(finished(sums[channel], biases[channel], shares[channel], v))
    store(v, memory, np.stack(planes))


def _accumulator(kind: np.dtype[Any]) -> type[np.generic]:
    """Return the type of inputs and sums for weights of type ``kind``: float32 or int64."""
    if kind.kind == "f":
        return np.float32
    return np.int64


def places(
    v: Raw,
    kernels: int,
    channels: int,
    itemsize: int,
) -> Iterator[tuple[int, int, int, int]]:
    """Yield (row, column, kernel, input channel) of each weight, in the order of the buffer.

    ``itemsize`` is the number of bytes of a weight.
    """
    rows = range(v["CNA.WEIGHT_SIZE2.WEIGHT_HEIGHT"])
    columns = range(v["CNA.WEIGHT_SIZE2.WEIGHT_WIDTH"])
    if v["CNA.CONV_CON1.CONV_MODE"] == DEPTHWISE:
        for start in range(0, channels, 64):
            block = range(start, min(start + 64, channels))
            for row, column, channel in product(rows, columns, block):
                yield row, column, channel, channel
        return
    group = 32 // itemsize
    for first, start in product(range(0, kernels, group), range(0, channels, 32)):
        together = range(first, min(first + group, kernels))
        block = range(start, min(start + 32, channels))
        yield from product(rows, columns, together, block)


def window(v: Raw, memory: Memory, kind: np.dtype[Any], out_h: int, out_w: int) -> Array:
    """Return the input with padding, ``(channels, rows, columns)``, with the channels that are
    fill.

    The padding reaches as far as the windows of ``out_h`` x ``out_w`` outputs.
    """
    rows, stored = v["CNA.DATA_SIZE0.DATAIN_HEIGHT"], v["CNA.DATA_SIZE1.DATAIN_CHANNEL"]
    width, base = v["CNA.FC_DATA_SIZE0.DMA_WIDTH"], v["CNA.FEATURE_DATA_ADDR.FEATURE_BASE_ADDR"]
    line, surface = v["CNA.DMA_CON1.LINE_STRIDE"], v["CNA.DMA_CON2.SURF_STRIDE"]
    top, left = v["CNA.PAD_CON0.PAD_TOP"], v["CNA.PAD_CON0.PAD_LEFT"]
    (step_y, step_x), (apart_y, apart_x) = _strides_and_dilations(v)
    reach_y = (out_h - 1) * step_y + (v["CNA.WEIGHT_SIZE2.WEIGHT_HEIGHT"] - 1) * apart_y + 1
    reach_x = (out_w - 1) * step_x + (v["CNA.WEIGHT_SIZE2.WEIGHT_WIDTH"] - 1) * apart_x + 1
    shape = (stored, max(reach_y, top + rows), max(reach_x, left + width))
    _fits("the input", shape)
    border = 0
    codes = kind
    if kind.kind != "f":
        border = wrapped(v["CNA.PAD_CON1.PAD_VALUE"], 8)
        codes = np.dtype(np.uint8)
    out = np.full(shape, border, _accumulator(kind))
    image = out[:, top : top + rows, left : left + width]
    if v["CNA.CONV_CON1.ARGB_IN"]:
        image[1:] = 0
        for row in range(rows):
            data = memory.read(base + row * line * kind.itemsize, width * kind.itemsize, "input")
            image[0, row] = single(np.frombuffer(data, codes), v)
        return out
    pitches = (ATOM * (surface + line), ATOM // 4 * line)
    if v["CNA.CONV_CON1.GROUP_LINE_OFF"]:
        pitches = (ATOM * (surface + width), ATOM * line)
    read_planes(memory, base, pitches, image, kind, "input")
    return out


def read_planes(
    memory: Memory,
    base: int,
    pitches: tuple[int, int],
    out: Array,
    kind: np.dtype[Any],
    what: str,
) -> None:
    """Read planes of 16-byte pixels into ``out`` ``(channels, rows, columns)``.

    ``pitches`` are the bytes from plane to plane and from row to row; ``what`` names the tensor in
    an error.
    """
    channels, rows, width = out.shape
    lanes = ATOM // kind.itemsize
    plane_pitch, row_pitch = pitches
    for plane, row in product(range(ceil_div(channels, lanes)), range(rows)):
        data = memory.read(base + plane * plane_pitch + row * row_pitch, ATOM * width, what)
        pixels = np.frombuffer(data, kind).reshape(width, lanes)
        part = out[plane * lanes : (plane + 1) * lanes, row]
        part[:] = pixels.T[: len(part)]


def _strides_and_dilations(v: Raw) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the stride (rows, columns) and the dilation (rows, columns)."""
    strides = (v["CNA.CONV_CON3.CONV_Y_STRIDE"], v["CNA.CONV_CON3.CONV_X_STRIDE"])
    down = v["CNA.CONV_CON3.ATROUS_Y_DILATION"] + 1
    along = v["CNA.CONV_CON3.ATROUS_X_DILATION"] + 1
    return strides, (down, along)


def _fits(what: str, shape: tuple[int, int, int]) -> None:
    if math.prod(shape) * 8 > MOST_BYTES:
        raise Hang(
            f"{what}: {'x'.join(map(str, shape))} numbers of 8 bytes, which does not fit the "
            f"simulated unit's {MOST_BYTES} bytes"
        )


def single(codes: Array, v: Raw) -> Array:
    """Return the codes of a row of a one-channel input after the converter of the CNA unit."""
    if v["CNA.CVT_CON0.CVT_BYPASS"]:
        return codes
    moved = codes.astype(np.int64) + v["CNA.CVT_CON1.CVT_OFFSET0"]
    scaled = moved * v["CNA.CVT_CON1.CVT_SCALE0"]
    return _away(scaled, v["CNA.CVT_CON0.CVT_TRUNCATE_0"])


def _away(values: Array, shift: int) -> Array:
    """Return ``values / 2**shift`` rounded to the nearest whole number, ties away from 0."""
    unit = 2**shift
    return np.sign(values) * ((np.abs(values) + unit // 2) // unit)


def operands(
    v: Raw,
    memory: Memory,
    outputs: int,
    kernels: int,
) -> tuple[list[int], list[int], list[int]]:
    """Return the weight offset of each kernel, the bias and the share of each output channel.

    A weight offset is added to each weight. A share has 14 bits of fraction.
    """
    offsets = [v["DPU.BS_OW_OP.OW_OP"]] * max(outputs, kernels)
    shares = [2**14] * outputs
    base = v.get("DPU_RDMA.RDMA_BS_BASE_ADDR.BS_BASE_ADDR", 0)
    if v["DPU.BS_CFG.BS_BYPASS"] or not v["DPU.BS_CFG.BS_ALU_SRC"]:
        return offsets, [0] * outputs, shares
    if v["DPU.BS_CFG.BS_MUL_BYPASS"]:
        data = memory.read(base, 4 * outputs, "biases")
        return offsets, np.frombuffer(data, "<i4").tolist(), shares
    # The unit reads each block of four channels by itself, so a missing block hangs.
    blocks = []
    for at in range(0, 8 * outputs, OPERANDS.itemsize):
        data = memory.read(base + at, OPERANDS.itemsize, "biases")
        blocks.append(np.frombuffer(data, OPERANDS))
    joined = np.concatenate(blocks)
    offsets[:outputs] = joined["offset"].ravel()[:outputs].tolist()
    biases = joined["bias"].ravel()[:outputs].tolist()
    shares = joined["share"].ravel()[:outputs].tolist()
    return offsets, biases, shares


def finished(sums: Array, bias: int, share: int, v: Raw) -> Array:
    """Return the output of one channel from its sums; integer sums are computed with integers."""
    kind = _precision(v, "DPU.DATA_FORMAT.OUT_PRECISION")
    if kind.kind == "f":
        return arithmetic(sums, v).astype(kind)
    used = not v["DPU.BS_CFG.BS_BYPASS"]
    truncated = _away(sums, v["CORE.CLIP_TRUNCATE.CLIP_TRUNCATE"])
    sums = wrapped(truncated) + bias
    if used and not v["DPU.BS_CFG.BS_RELU_BYPASS"]:
        sums = np.maximum(sums, 0)
    if used and not v["DPU.BS_CFG.BS_MUL_BYPASS"]:
        sums = _even(sums * share, v["DPU.BS_CFG.BS_MUL_SHIFT"])
    scale, shift = v["DPU.OUT_CVT_SCALE.OUT_CVT_SCALE"], v["DPU.OUT_CVT_SHIFT.OUT_CVT_SHIFT"]
    sums = _even(sums * scale, shift) + v["DPU.OUT_CVT_OFFSET.OUT_CVT_OFFSET"]
    limits = np.iinfo(kind)
    return sums.clip(limits.min, limits.max).astype(kind)


def _even(values: Array, shift: int) -> Array:
    """Return ``values / 2**shift`` rounded to nearest, ties to even; values are below 2**61."""
    unit = 2 ** min(shift, 62)
    whole, rest = np.divmod(values, unit)
    # Compared with unit - rest, because 2 * rest could leave int64.
    above = rest > unit - rest
    tie = rest == unit - rest
    return whole + (above | (tie & (whole % 2 == 1)))


def elements(v: Raw, memory: Memory) -> None:
    """Run a task of fp16 elements: read a tensor, apply the first unit of the DPU, write it."""
    _covered(v, EXPECTED["fp16 elements"])
    height, width = v["DPU.DATA_CUBE_HEIGHT.HEIGHT"] + 1, v["DPU.DATA_CUBE_WIDTH.WIDTH"] + 1
    channels = v["DPU.DATA_CUBE_CHANNEL.ORIG_CHANNEL"] + 1
    values = np.zeros((channels, height, width), np.float32)
    plane = width * height + v["DPU_RDMA.RDMA_SURF_NOTCH.SURF_NOTCH_ADDR"]
    base = v["DPU_RDMA.RDMA_SRC_BASE_ADDR.SRC_BASE_ADDR"]
    pitches = (ATOM * plane, ATOM * width)
    read_planes(memory, base, pitches, values, np.dtype(np.float16), "elements")
    store(v, memory, arithmetic(values, v).astype(np.float16))


def arithmetic(values: Array, v: Raw) -> Array:
    """Return float32 values after the first unit of the DPU: a number added, a number multiplied,
    ReLU, as far as the registers enable each."""
    if v["DPU.BS_CFG.BS_BYPASS"]:
        return values
    if not v["DPU.BS_CFG.BS_ALU_BYPASS"]:
        _covered(v, EXPECTED["fp16 addition"])
        values = values + np.uint32(v["DPU.BS_ALU_CFG.BS_ALU_OPERAND"]).view(np.float32)
    if not v["DPU.BS_CFG.BS_MUL_BYPASS"]:
        _covered(v, EXPECTED["multiplied"])
        operand = np.uint16(v["DPU.BS_MUL_CFG.BS_MUL_OPERAND"]).view(np.float16)
        values = values * np.float32(operand)
    if v["DPU.BS_CFG.BS_RELU_BYPASS"]:
        return values
    return np.maximum(values, 0)


def store(v: Raw, memory: Memory, planes: Array) -> None:
    """Write the output ``planes`` (channels, rows, columns) to memory, in planes of 16-byte
    pixels."""
    channels, height, width = planes.shape
    lanes = ATOM // planes.itemsize
    base = v["DPU.DST_BASE_ADDR.DST_BASE_ADDR"]
    pitch = ATOM * (width + v["DPU.DATA_CUBE_NOTCH_ADDR.NOTCH_ADDR_0"])
    step = ATOM * v["DPU.DST_SURF_STRIDE.DST_SURF_STRIDE"]
    last_plane = (ceil_div(channels, lanes) - 1) * step
    size = last_plane + (height - 1) * pitch + ATOM * width
    hang_if(
        size > MOST_BYTES,
        f"the output of {size} bytes does not fit the simulated unit's {MOST_BYTES} bytes",
    )
    # Bytes between rows and planes keep what memory has.
    out = bytearray(size)
    before = memory.stretch(base, size)
    out[: len(before)] = before
    filled = np.zeros((up(channels, lanes), height, width), planes.dtype)
    filled[:channels] = planes
    pixels = filled.reshape(-1, lanes, height, width).transpose(0, 2, 3, 1)
    for plane, row in product(range(len(pixels)), range(height)):
        at = plane * step + row * pitch
        out[at : at + ATOM * width] = pixels[plane, row].tobytes()
    memory.write(base, bytes(out))


def _precision(v: Raw, name: str) -> np.dtype[Any]:
    _covered(v, {name: PRECISIONS})
    return PRECISIONS[v[name]]


def _covered(v: Raw, allowed: Mapping[str, Collection[int]]) -> None:
    expect(v, allowed, DEVICE, Unsupported, joint=" and ")
