"""The simulated device: from register words and bytes to memory, task by task.

It shares the tables, the reading of fields and memory with the rest, and nothing else, so that its
agreement with lift and emulation means something.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import product, zip_longest
from typing import Any

import numpy as np

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
# a block of four channels' operands (ORK)
OPERANDS = np.dtype([("bias", "<i4", 4), ("offset", "<i2", 4), ("share", "<u2", 4)])
ENDED, NEXT = "TASK.interrupt_status.interrupt_status", "PC.BASE_ADDRESS.PC_SOURCE_ADDR"
CORES = "PC.REGISTER_AMOUNTS.RESERVED_0"  # less one (PH)


def simulate(capture: Capture) -> bytes:
    """The output buffer after the capture's tasks ran in order; where task records say which ended,
    those that did.

    Buffers lie at their addresses.  Lanes of the output past ORIG_CHANNEL are 0 (C:dump-+2, which
    adds 2 to one of 8). Raises Hang, with the reason, for sizes of 0, memory that no buffer holds
    and windows that no output fits; Unsupported for units and modes that the simulated device does
    not have.
    """
    base = address_of(capture, "output", "where its tasks write")
    buffers = {
        name: data for name, data in capture.buffers.items() if name not in (COMMANDS, "output")
    }
    memory = Memory(buffers, capture.addresses)
    for v in ran([values_of(job, capture.maps) for job in capture.jobs]):
        run(v, memory)
    others = [at - base for name, at in capture.addresses.items() if name in buffers and at > base]
    return memory.stretch(base, min(others, default=MOST_BYTES))


def ran(jobs: Sequence[Raw]) -> list[Raw]:
    """The tasks that ran: all of them, or of the programs in which a record says that a task ended,
    and those for other cores beside them, the tasks up to it; cores go side by side.

    A program is a chain of tasks that name the next, for as many cores as its first task says (less
    one).
    """
    if not any(v.get(ENDED) for v in jobs):
        return list(jobs)
    programs: list[list[Raw]] = [[]]
    for v in jobs:
        programs[-1].append(v)
        if not v.get(NEXT):
            programs.append([])
    programs = [program for program in programs if program]
    cores = {program[0].get(CORES, 0) for program in programs if any(v.get(ENDED) for v in program)}
    chosen = []
    for program in programs:
        shared = program[0].get(CORES, 0)
        last = [n for n, v in enumerate(program) if v.get(ENDED) or v.get(CORES, 0)]
        if shared in cores and (shared or any(v.get(ENDED) for v in program)):
            chosen.append(program[: 1 + max(last)])
    return [v for step in zip_longest(*chosen) for v in step if v is not None]


def run(v: Raw, memory: Memory) -> None:
    """One task: a convolution, or elements that the DPU reads and writes."""
    if "CNA.CONV_CON1.CONV_MODE" in v:
        convolution(v, memory)
    elif v.get("DPU.FEATURE_MODE_CFG.FLYING_MODE"):
        elements(v, memory)
    else:
        raise Unsupported("the simulated device runs convolutions and elements of the DPU")


def convolution(v: Raw, memory: Memory) -> None:
    """Every weight is met once, in the order of the buffer, and used for the whole output."""
    known(v, EXPECTED["device"])
    kind = _precision(v, "CNA.CONV_CON1.IN_PRECISION")
    out_h, out_w = (v[f"CORE.DATAOUT_SIZE_0.DATAOUT_{side}"] + 1 for side in ("HEIGHT", "WIDTH"))
    (step_y, step_x), (apart_y, apart_x) = _steps(v)
    outputs = v["DPU.DATA_CUBE_CHANNEL.ORIG_CHANNEL"] + 1
    image = window(v, memory, kind, out_h, out_w)
    depthwise = v["CNA.CONV_CON1.CONV_MODE"] == DEPTHWISE
    if depthwise:
        count = len(image)
    else:
        count = v["CNA.WEIGHT_SIZE2.WEIGHT_KERNELS"]
    _fits("the sums", (count, out_h, out_w))
    need = v["CNA.WEIGHT_SIZE0.WEIGHT_BYTES"]
    data = memory.read(v["CNA.DCOMP_ADDR0.DECOMPRESS_ADDR0"], need, "weights")
    stored, real = np.frombuffer(data, kind), kind.kind == "f"
    sums = np.zeros((count, out_h, out_w), np.float32 if real else np.int64)
    offsets, biases, shares = operands(v, memory, outputs, count)
    if len(stored) * out_h * out_w > MOST_PRODUCTS:
        raise Hang(
            f"{len(stored)} weights for {out_h}x{out_w} outputs are more than "
            f"{MOST_PRODUCTS} products"
        )
    for at, (row, column, kernel, channel) in enumerate(
        places(v, count, len(image), kind.itemsize)
    ):
        if at >= len(stored):
            raise Hang(f"weights: {need} bytes end before the kernels do")
        weight = stored.item(at) + (0 if real else offsets[kernel])
        if weight:
            top, left = row * apart_y, column * apart_x
            down, along = top + (out_h - 1) * step_y + 1, left + (out_w - 1) * step_x + 1
            sums[kernel] += weight * image[channel, top:down:step_y, left:along:step_x]
    hang_if(outputs > count, f"{outputs} output channels of {count} kernels")
    store(
        v, memory, np.stack([finished(*one, v) for one in zip(sums, biases, shares, strict=False)])
    )


def places(
    v: Raw,
    kernels: int,
    channels: int,
    itemsize: int,
) -> Iterator[tuple[int, int, int, int]]:
    """(row, column, kernel, channel) of each weight in the order of the buffer."""
    rows, columns = (range(v[f"CNA.WEIGHT_SIZE2.WEIGHT_{side}"]) for side in ("HEIGHT", "WIDTH"))
    if v["CNA.CONV_CON1.CONV_MODE"] == DEPTHWISE:
        for start in range(0, channels, 64):
            block = range(start, min(start + 64, channels))
            for row, column, channel in product(rows, columns, block):
                yield row, column, channel, channel
        return
    group = 32 // itemsize
    for first, start in product(range(0, kernels, group), range(0, channels, 32)):
        yield from product(
            rows,
            columns,
            range(first, min(first + group, kernels)),
            range(start, min(start + 32, channels)),
        )


def window(v: Raw, memory: Memory, kind: np.dtype[Any], out_h: int, out_w: int) -> np.ndarray:
    """The input with all of its border that windows reach, ``(channels, rows, columns)``, fill
    lanes included."""
    rows, stored = v["CNA.DATA_SIZE0.DATAIN_HEIGHT"], v["CNA.DATA_SIZE1.DATAIN_CHANNEL"]
    width, base = v["CNA.FC_DATA_SIZE0.DMA_WIDTH"], v["CNA.FEATURE_DATA_ADDR.FEATURE_BASE_ADDR"]
    line, surface = v["CNA.DMA_CON1.LINE_STRIDE"], v["CNA.DMA_CON2.SURF_STRIDE"]
    top, left = v["CNA.PAD_CON0.PAD_TOP"], v["CNA.PAD_CON0.PAD_LEFT"]
    (step_y, step_x), (apart_y, apart_x) = _steps(v)
    reach_y = (out_h - 1) * step_y + (v["CNA.WEIGHT_SIZE2.WEIGHT_HEIGHT"] - 1) * apart_y + 1
    reach_x = (out_w - 1) * step_x + (v["CNA.WEIGHT_SIZE2.WEIGHT_WIDTH"] - 1) * apart_x + 1
    shape, real = (stored, max(reach_y, top + rows), max(reach_x, left + width)), kind.kind == "f"
    _fits("the input", shape)
    if real:
        border = 0
    else:
        border = wrapped(v["CNA.PAD_CON1.PAD_VALUE"], 8)
    out = np.full(shape, border, np.float32 if real else np.int64)
    image = out[:, top : top + rows, left : left + width]
    if v["CNA.CONV_CON1.ARGB_IN"]:
        image[1:], codes = 0, kind if real else np.dtype(np.uint8)
        for row in range(rows):
            data = memory.read(base + row * line * kind.itemsize, width * kind.itemsize, "input")
            image[0, row] = single(np.frombuffer(data, codes), v)
    elif v["CNA.CONV_CON1.GROUP_LINE_OFF"]:
        read_planes(memory, base, (ATOM * (surface + width), ATOM * line), image, kind, "input")
    else:
        pitches = ATOM * (surface + line), ATOM // 4 * line
        read_planes(memory, base, pitches, image, kind, "input")
    return out


def read_planes(
    memory: Memory,
    base: int,
    pitches: tuple[int, int],
    out: np.ndarray,
    kind: np.dtype[Any],
    what: str,
) -> None:
    """Fill ``(channels, rows, columns)`` from planes of 16-byte pixels; ``pitches`` are bytes from
    plane to plane and from row to row."""
    (channels, rows, width), lanes = out.shape, ATOM // kind.itemsize
    for plane, row in product(range(ceil_div(channels, lanes)), range(rows)):
        at = base + plane * pitches[0] + row * pitches[1]
        pixels = np.frombuffer(memory.read(at, ATOM * width, what), kind).reshape(width, lanes)
        part = out[plane * lanes : (plane + 1) * lanes, row]
        part[:] = pixels.T[: len(part)]


def _steps(v: Raw) -> tuple[tuple[int, int], tuple[int, int]]:
    """(stride, dilation), down and along."""
    return (
        (v["CNA.CONV_CON3.CONV_Y_STRIDE"], v["CNA.CONV_CON3.CONV_X_STRIDE"]),
        (v["CNA.CONV_CON3.ATROUS_Y_DILATION"] + 1, v["CNA.CONV_CON3.ATROUS_X_DILATION"] + 1),
    )


def _fits(what: str, shape: tuple[int, int, int]) -> None:
    if math.prod(shape) * 8 > MOST_BYTES:
        raise Hang(
            f"{what}: {'x'.join(map(str, shape))} numbers of 8 bytes, which does not fit the "
            f"simulated unit's {MOST_BYTES} bytes"
        )


def single(codes: np.ndarray, v: Raw) -> np.ndarray:
    """A row of one channel as the converter lets it through."""
    if v["CNA.CVT_CON0.CVT_BYPASS"]:
        return codes
    scaled = (codes.astype(np.int64) + v["CNA.CVT_CON1.CVT_OFFSET0"]) * v["CNA.CVT_CON1.CVT_SCALE0"]
    unit = 2 ** v["CNA.CVT_CON0.CVT_TRUNCATE_0"]
    return np.sign(scaled) * ((np.abs(scaled) + unit // 2) // unit)


def operands(
    v: Raw,
    memory: Memory,
    outputs: int,
    kernels: int,
) -> tuple[list[int], list[int], list[int]]:
    """(weight offsets of each kernel, biases and shares of each output channel)."""
    offsets, shares = [v["DPU.BS_OW_OP.OW_OP"]] * max(outputs, kernels), [2**14] * outputs
    base = v.get("DPU_RDMA.RDMA_BS_BASE_ADDR.BS_BASE_ADDR", 0)
    if v["DPU.BS_CFG.BS_BYPASS"] or not v["DPU.BS_CFG.BS_ALU_SRC"]:
        return offsets, [0] * outputs, shares
    if v["DPU.BS_CFG.BS_MUL_BYPASS"]:
        return (
            offsets,
            np.frombuffer(memory.read(base, 4 * outputs, "biases"), "<i4").tolist(),
            shares,
        )
    blocks = [
        np.frombuffer(memory.read(base + at, 32, "biases"), OPERANDS)
        for at in range(0, 8 * outputs, 32)
    ]
    biases, zeros, shares = (
        np.concatenate([block[name].ravel() for block in blocks])[:outputs].tolist()
        for name in ("bias", "offset", "share")
    )
    return zeros + offsets[outputs:], biases, shares


def finished(sums: np.ndarray, bias: int, share: int, v: Raw) -> np.ndarray:
    """Sums of one channel as the output holds them, in whole numbers where they are."""
    kind = _precision(v, "DPU.DATA_FORMAT.OUT_PRECISION")
    if kind.kind == "f":
        return arithmetic(sums, v).astype(kind)
    used = not v["DPU.BS_CFG.BS_BYPASS"]
    truncate = 2 ** v["CORE.CLIP_TRUNCATE.CLIP_TRUNCATE"]
    sums = np.sign(sums) * ((np.abs(sums) + truncate // 2) // truncate)
    sums = wrapped(sums) + bias
    if used and not v["DPU.BS_CFG.BS_RELU_BYPASS"]:
        sums = np.maximum(sums, 0)
    if used and not v["DPU.BS_CFG.BS_MUL_BYPASS"]:
        sums = _even(sums * share, v["DPU.BS_CFG.BS_MUL_SHIFT"])
    scale, shift = v["DPU.OUT_CVT_SCALE.OUT_CVT_SCALE"], v["DPU.OUT_CVT_SHIFT.OUT_CVT_SHIFT"]
    sums = _even(sums * scale, shift) + v["DPU.OUT_CVT_OFFSET.OUT_CVT_OFFSET"]
    return np.minimum(np.maximum(sums, np.iinfo(kind).min), np.iinfo(kind).max).astype(kind)


def _even(values: np.ndarray, shift: int) -> np.ndarray:
    """``values / 2**shift`` rounded to nearest, ties to even; no value reaches 2**61."""
    unit = 2 ** min(shift, 62)
    whole, rest = values // unit, values % unit
    return whole + ((rest > unit - rest) | ((rest == unit - rest) & (whole % 2 == 1)))


def elements(v: Raw, memory: Memory) -> None:
    """fp16 elements read from memory, through the first unit of the DPU, to memory."""
    _covered(v, EXPECTED["fp16 elements"])
    height, width = v["DPU.DATA_CUBE_HEIGHT.HEIGHT"] + 1, v["DPU.DATA_CUBE_WIDTH.WIDTH"] + 1
    elements = np.zeros((v["DPU.DATA_CUBE_CHANNEL.ORIG_CHANNEL"] + 1, height, width), np.float32)
    plane = width * height + v["DPU_RDMA.RDMA_SURF_NOTCH.SURF_NOTCH_ADDR"]
    read_planes(
        memory,
        v["DPU_RDMA.RDMA_SRC_BASE_ADDR.SRC_BASE_ADDR"],
        (ATOM * plane, ATOM * width),
        elements,
        np.dtype(np.float16),
        "elements",
    )
    store(v, memory, arithmetic(elements, v).astype(np.float16))


def arithmetic(values: np.ndarray, v: Raw) -> np.ndarray:
    """float32 numbers after the first unit's addition and multiplication by a number that a
    register holds."""
    if v["DPU.BS_CFG.BS_BYPASS"]:
        return values
    if not v["DPU.BS_CFG.BS_ALU_BYPASS"]:
        _covered(v, EXPECTED["fp16 addition"])
        values = values + np.uint32(v["DPU.BS_ALU_CFG.BS_ALU_OPERAND"]).view(np.float32)
    if not v["DPU.BS_CFG.BS_MUL_BYPASS"]:
        _covered(v, EXPECTED["multiplied"])
        values = values * np.float32(np.uint16(v["DPU.BS_MUL_CFG.BS_MUL_OPERAND"]).view(np.float16))
    if v["DPU.BS_CFG.BS_RELU_BYPASS"]:
        return values
    return np.maximum(values, 0)


def store(v: Raw, memory: Memory, planes: np.ndarray) -> None:
    """Write ``(channels, rows, columns)`` in planes of 16-byte pixels."""
    channels, height, width = planes.shape
    lanes, base = ATOM // planes.itemsize, v["DPU.DST_BASE_ADDR.DST_BASE_ADDR"]
    pitch = ATOM * (width + v["DPU.DATA_CUBE_NOTCH_ADDR.NOTCH_ADDR_0"])
    step = ATOM * v["DPU.DST_SURF_STRIDE.DST_SURF_STRIDE"]
    last = (ceil_div(channels, lanes) - 1) * step + (height - 1) * pitch + ATOM * width
    hang_if(
        last > MOST_BYTES,
        f"the output of {last} bytes does not fit the simulated unit's {MOST_BYTES} bytes",
    )
    out = np.zeros(last, np.uint8)
    there = memory.stretch(base, last)
    out[: len(there)] = np.frombuffer(there, np.uint8)
    filled = np.zeros((up(channels, lanes), height, width), planes.dtype)
    filled[:channels] = planes
    pixels = filled.reshape(-1, lanes, height, width).transpose(0, 2, 3, 1)
    for plane, row in product(range(len(pixels)), range(height)):
        at = plane * step + row * pitch
        out[at : at + ATOM * width] = np.frombuffer(pixels[plane, row].tobytes(), np.uint8)
    memory.write(base, out.tobytes())


def _precision(v: Raw, name: str) -> np.dtype[Any]:
    _covered(v, {name: PRECISIONS})
    return PRECISIONS[v[name]]


def _covered(v: Raw, allowed: Mapping[str, Collection[int]]) -> None:
    expect(v, allowed, DEVICE, Unsupported, joint=" and ")
