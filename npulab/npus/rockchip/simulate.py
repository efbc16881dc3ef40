"""The simulated device: from register words and bytes to memory, task by task.

It shares the tables, the reading of fields and memory with the rest, and nothing else, so that its
agreement with lift and emulation means something.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from npulab.captures.capture import COMMANDS, Capture
from npulab.captures.target import Hang, Unsupported
from npulab.npus.kit.fields import Raw, known, nonzero, values_of
from npulab.npus.kit.memory import Memory, address_of
from npulab.npus.kit.numbers import ceil_div, wrapped

ATOM = 16
MOST_BYTES = 2 ** 26
MOST_PRODUCTS = 2 ** 31
PRECISIONS: dict[int, np.dtype[Any]] = {0: np.dtype(np.int8), 2: np.dtype(np.float16),
                                        4: np.dtype("<i4"), 5: np.dtype("<f4")}
DEPTHWISE = 3
ENDED, NEXT = "TASK.interrupt_status.interrupt_status", "PC.BASE_ADDRESS.PC_SOURCE_ADDR"
CORES = "PC.REGISTER_AMOUNTS.RESERVED_0"  # less one (PH)
NONZERO = ("CNA.DATA_SIZE0.DATAIN_WIDTH", "CNA.DATA_SIZE0.DATAIN_HEIGHT",
           "CNA.DATA_SIZE1.DATAIN_CHANNEL", "CNA.WEIGHT_SIZE2.WEIGHT_WIDTH",
           "CNA.WEIGHT_SIZE2.WEIGHT_HEIGHT", "CNA.WEIGHT_SIZE2.WEIGHT_KERNELS",
           "CNA.CONV_CON3.CONV_X_STRIDE", "CNA.CONV_CON3.CONV_Y_STRIDE",
           "CNA.FC_DATA_SIZE0.DMA_WIDTH")
KNOWN = {"CNA.CONV_CON1.CONV_MODE": (0, DEPTHWISE), "CNA.CONV_CON1.DECONV": (0,),
         "CNA.CONV_CON1.IN_PRECISION": (0, 2), "DPU.BN_CFG.BN_BYPASS": (1,),
         "DPU.EW_CFG.EW_BYPASS": (1,)}


def simulate(capture: Capture) -> bytes:
    """The output buffer after the capture's tasks ran in order; where task records say which ended,
    those that did.

    Buffers lie at their addresses.  Lanes of the output past ORIG_CHANNEL are 0 (C:dump-+2, which
    adds 2 to one of 8). Raises Hang, with the reason, for sizes of 0, memory that no buffer holds
    and windows that no output fits; Unsupported for units and modes that the simulated device does
    not have.
    """
    base = address_of(capture, "output", "where its tasks write")
    buffers = {name: data for name, data in capture.buffers.items()
               if name not in (COMMANDS, "output")}
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
    used = {one[0].get(CORES, 0) for one in programs if any(v.get(ENDED) for v in one)}
    chosen = []
    for one in programs:
        ended = [n for n, v in enumerate(one) if v.get(ENDED)]
        if one and one[0].get(CORES, 0) in used and (ended or one[0].get(CORES, 0)):
            shared = [n for n, v in enumerate(one) if v.get(CORES, 0)]
            chosen.append(one[:1 + max([*ended, *shared])])
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
    nonzero(v, NONZERO)
    known(v, KNOWN)
    kind = _precision(v, "CNA.CONV_CON1.IN_PRECISION")
    out_h, out_w = v["CORE.DATAOUT_SIZE_0.DATAOUT_HEIGHT"] + 1, v["CORE.DATAOUT_SIZE_0.DATAOUT_WIDTH"] + 1
    outputs = v["DPU.DATA_CUBE_CHANNEL.ORIG_CHANNEL"] + 1
    image = window(v, memory, kind, out_h, out_w)
    depthwise = v["CNA.CONV_CON1.CONV_MODE"] == DEPTHWISE
    count = image.shape[0] if depthwise else v["CNA.WEIGHT_SIZE2.WEIGHT_KERNELS"]
    if count * out_h * out_w * 8 > MOST_BYTES:
        raise Hang(f"the sums of {count}x{out_h}x{out_w} do not fit the simulated unit's {MOST_BYTES} bytes")
    need = v["CNA.WEIGHT_SIZE0.WEIGHT_BYTES"]
    stored = np.frombuffer(memory.read(v["CNA.DCOMP_ADDR0.DECOMPRESS_ADDR0"], need, "weights"), kind)
    real = kind.kind == "f"
    sums = np.zeros((count, out_h, out_w), np.float32 if real else np.int64)
    offsets, biases, shares = operands(v, memory, outputs)
    step_y, step_x = v["CNA.CONV_CON3.CONV_Y_STRIDE"], v["CNA.CONV_CON3.CONV_X_STRIDE"]
    apart_y, apart_x = v["CNA.CONV_CON3.ATROUS_Y_DILATION"] + 1, v["CNA.CONV_CON3.ATROUS_X_DILATION"] + 1
    if len(stored) * out_h * out_w > MOST_PRODUCTS:
        raise Hang(f"{len(stored)} weights for {out_h}x{out_w} outputs are more than {MOST_PRODUCTS} products")
    for at, (kernel, channel, row, column) in enumerate(places(v, count, image.shape[0], kind.itemsize)):
        if at >= len(stored):
            raise Hang(f"weights: {need} bytes end before the kernels do")
        weight = float(stored[at]) if real else int(stored[at]) + (offsets[kernel] if kernel < len(offsets) else 0)
        if weight:
            row, column = row * apart_y, column * apart_x
            down, along = row + (out_h - 1) * step_y + 1, column + (out_w - 1) * step_x + 1
            sums[kernel] += weight * image[channel, row:down:step_y, column:along:step_x]
    if outputs > count:
        raise Hang(f"{outputs} output channels of {count} kernels")
    store(v, memory, np.stack([finished(sums[k], v, biases[k], shares[k]) for k in range(outputs)]))


def places(v: Raw, kernels: int, channels: int, itemsize: int) -> Iterator[tuple[int, int, int, int]]:
    """(kernel, channel, row, column) of each weight in the order of the buffer."""
    height, width = v["CNA.WEIGHT_SIZE2.WEIGHT_HEIGHT"], v["CNA.WEIGHT_SIZE2.WEIGHT_WIDTH"]
    if v["CNA.CONV_CON1.CONV_MODE"] == DEPTHWISE:
        for start in range(0, channels, 64):
            for row in range(height):
                for column in range(width):
                    for channel in range(start, min(start + 64, channels)):
                        yield channel, channel, row, column
        return
    group = 32 // itemsize
    for first in range(0, kernels, group):
        for start in range(0, channels, 32):
            for row in range(height):
                for column in range(width):
                    for kernel in range(first, min(first + group, kernels)):
                        for channel in range(start, min(start + 32, channels)):
                            yield kernel, channel, row, column


def window(v: Raw, memory: Memory, kind: np.dtype[Any], out_h: int, out_w: int) -> np.ndarray:
    """The input with all of its border that windows reach, ``(channels, rows, columns)``, fill
    lanes included."""
    rows, filled = v["CNA.DATA_SIZE0.DATAIN_HEIGHT"], v["CNA.DATA_SIZE1.DATAIN_CHANNEL"]
    width, base = v["CNA.FC_DATA_SIZE0.DMA_WIDTH"], v["CNA.FEATURE_DATA_ADDR.FEATURE_BASE_ADDR"]
    line, surface = v["CNA.DMA_CON1.LINE_STRIDE"], v["CNA.DMA_CON2.SURF_STRIDE"]
    top, left = v["CNA.PAD_CON0.PAD_TOP"], v["CNA.PAD_CON0.PAD_LEFT"]
    reach = [(v[f"CNA.WEIGHT_SIZE2.WEIGHT_{size}"] - 1) * (v[f"CNA.CONV_CON3.ATROUS_{axis}_DILATION"] + 1) + 1
             for size, axis in (("HEIGHT", "Y"), ("WIDTH", "X"))]
    height = max((out_h - 1) * v["CNA.CONV_CON3.CONV_Y_STRIDE"] + reach[0], top + rows)
    across = max((out_w - 1) * v["CNA.CONV_CON3.CONV_X_STRIDE"] + reach[1], left + width)
    if filled * height * across * 8 > MOST_BYTES:
        raise Hang(f"the input of {filled}x{height}x{across} does not fit the simulated unit's {MOST_BYTES} bytes")
    real = kind.kind == "f"
    border = 0 if real else wrapped(v["CNA.PAD_CON1.PAD_VALUE"], 8)
    out = np.full((filled, height, across), border, np.float32 if real else np.int64)
    if v["CNA.CONV_CON1.ARGB_IN"]:
        out[1:, top:top + rows, left:left + width] = 0
        for row in range(rows):
            size = kind.itemsize
            data = memory.read(base + row * line * size, width * size, "input")
            out[0, top + row, left:left + width] = single(np.frombuffer(data, kind if real else np.uint8), v)
        return out
    lanes = ATOM // kind.itemsize
    grouped = not v["CNA.CONV_CON1.GROUP_LINE_OFF"]
    pitch, plane = (ATOM // 4 * line, ATOM * (surface + line)) if grouped else (ATOM * line, ATOM * (surface + width))
    for start in range(0, filled, lanes):
        for row in range(rows):
            data = memory.read(base + start // lanes * plane + row * pitch, ATOM * width, "input")
            pixels = np.frombuffer(data, kind).reshape(width, lanes)
            out[start:start + lanes, top + row, left:left + width] = pixels.T[:filled - start]
    return out


def single(codes: np.ndarray, v: Raw) -> np.ndarray:
    """A row of one channel as the converter lets it through."""
    if v["CNA.CVT_CON0.CVT_BYPASS"]:
        return codes
    scaled = (codes.astype(np.int64) + v["CNA.CVT_CON1.CVT_OFFSET0"]) * v["CNA.CVT_CON1.CVT_SCALE0"]
    unit = 2 ** v["CNA.CVT_CON0.CVT_TRUNCATE_0"]
    return np.sign(scaled) * ((np.abs(scaled) + unit // 2) // unit)


def operands(v: Raw, memory: Memory, outputs: int) -> tuple[list[int], list[int], list[int]]:
    """(weight offsets, biases, shares) of each output channel."""
    kernels = max(outputs, v["CNA.WEIGHT_SIZE2.WEIGHT_KERNELS"])
    offsets, biases = [v["DPU.BS_OW_OP.OW_OP"]] * kernels, [0] * outputs
    shares = [2 ** 14] * outputs
    base = v.get("DPU_RDMA.RDMA_BS_BASE_ADDR.BS_BASE_ADDR", 0)
    if v["DPU.BS_CFG.BS_BYPASS"] or not v["DPU.BS_CFG.BS_ALU_SRC"]:
        return offsets, biases, shares
    if v["DPU.BS_CFG.BS_MUL_BYPASS"]:
        data = memory.read(base, 4 * outputs, "biases")
        return offsets, [int.from_bytes(data[4 * n:4 * n + 4], "little", signed=True) for n in range(outputs)], shares
    for n in range(outputs):
        block, lane = memory.read(base + n // 4 * 32, 32, "biases"), n % 4
        biases[n] = int.from_bytes(block[4 * lane:4 * lane + 4], "little", signed=True)
        offsets[n] = int.from_bytes(block[16 + 2 * lane:18 + 2 * lane], "little", signed=True)
        shares[n] = int.from_bytes(block[24 + 2 * lane:26 + 2 * lane], "little")
    return offsets, biases, shares


def finished(sums: np.ndarray, v: Raw, bias: int, share: int) -> np.ndarray:
    """Sums of one channel as the output holds them, in whole numbers where they are."""
    kind = _precision(v, "DPU.DATA_FORMAT.OUT_PRECISION")
    if kind.kind == "f":
        return arithmetic(sums, v).astype(kind)
    used = not v["DPU.BS_CFG.BS_BYPASS"]
    offset = v["DPU.OUT_CVT_OFFSET.OUT_CVT_OFFSET"]
    truncate = 2 ** v["CORE.CLIP_TRUNCATE.CLIP_TRUNCATE"]
    sums = np.sign(sums) * ((np.abs(sums) + truncate // 2) // truncate)
    sums = wrapped(sums) + bias
    if used and not v["DPU.BS_CFG.BS_RELU_BYPASS"]:
        sums = np.maximum(sums, 0)
    if used and not v["DPU.BS_CFG.BS_MUL_BYPASS"]:
        sums = _even(sums * share, v["DPU.BS_CFG.BS_MUL_SHIFT"])
    sums = _even(sums * v["DPU.OUT_CVT_SCALE.OUT_CVT_SCALE"], v["DPU.OUT_CVT_SHIFT.OUT_CVT_SHIFT"]) + offset
    return np.minimum(np.maximum(sums, np.iinfo(kind).min), np.iinfo(kind).max).astype(kind)


def _even(values: np.ndarray, shift: int) -> np.ndarray:
    """``values / 2**shift`` rounded to nearest, ties to even; no value reaches 2**61."""
    unit = 2 ** min(shift, 62)
    whole, rest = values // unit, values % unit
    return whole + ((rest > unit - rest) | ((rest == unit - rest) & (whole % 2 == 1)))


def elements(v: Raw, memory: Memory) -> None:
    """fp16 elements read from memory, through the first unit of the DPU, to memory."""
    for name in ("DPU_RDMA.RDMA_FEATURE_MODE_CFG.IN_PRECISION", "DPU.DATA_FORMAT.OUT_PRECISION"):
        planes = not v["DPU.FEATURE_MODE_CFG.TP_EN"] and not v["DPU.FEATURE_MODE_CFG.NONALIGN"]
        if PRECISIONS.get(v[name]) != np.float16 or not planes:
            raise Unsupported(f"{name} is {v[name]}, the simulated device runs elements of fp16 in planes only")
    height, width = v["DPU.DATA_CUBE_HEIGHT.HEIGHT"] + 1, v["DPU.DATA_CUBE_WIDTH.WIDTH"] + 1
    channels, lanes = v["DPU.DATA_CUBE_CHANNEL.ORIG_CHANNEL"] + 1, ATOM // 2
    plane = width * height + v["DPU_RDMA.RDMA_SURF_NOTCH.SURF_NOTCH_ADDR"]
    out = np.zeros((channels, height, width), np.float16)
    for start in range(0, channels, lanes):
        at = v["DPU_RDMA.RDMA_SRC_BASE_ADDR.SRC_BASE_ADDR"] + start // lanes * plane * ATOM
        pixels = np.frombuffer(memory.read(at, ATOM * width * height, "elements"), np.float16)
        given = pixels.reshape(height, width, lanes).transpose(2, 0, 1)[:channels - start]
        out[start:start + lanes] = arithmetic(given.astype(np.float32), v)
    store(v, memory, out)


def arithmetic(values: np.ndarray, v: Raw) -> np.ndarray:
    """float32 numbers after the first unit's addition and multiplication by a number that a
    register holds."""
    if v["DPU.BS_CFG.BS_BYPASS"]:
        return values
    if not v["DPU.BS_CFG.BS_ALU_BYPASS"]:
        if v["DPU.BS_CFG.BS_ALU_SRC"] or v["DPU.BS_CFG.BS_ALU_ALGO"] != 2:
            raise Unsupported("the simulated device adds a register to fp16 elements only")
        values = values + np.array(v["DPU.BS_ALU_CFG.BS_ALU_OPERAND"], np.uint32).view(np.float32)
    if not v["DPU.BS_CFG.BS_MUL_BYPASS"]:
        if v["DPU.BS_MUL_CFG.BS_MUL_SRC"]:
            raise Unsupported("the simulated device multiplies fp16 elements by a register only")
        values = values * np.array(v["DPU.BS_MUL_CFG.BS_MUL_OPERAND"], np.uint16).view(np.float16).astype(np.float32)
    return values if v["DPU.BS_CFG.BS_RELU_BYPASS"] else np.maximum(values, 0)


def store(v: Raw, memory: Memory, planes: np.ndarray) -> None:
    """Write ``(channels, rows, columns)`` in planes of 16-byte pixels."""
    channels, height, width = planes.shape
    lanes, base = ATOM // planes.itemsize, v["DPU.DST_BASE_ADDR.DST_BASE_ADDR"]
    pitch = ATOM * (width + v["DPU.DATA_CUBE_NOTCH_ADDR.NOTCH_ADDR_0"])
    step = ATOM * v["DPU.DST_SURF_STRIDE.DST_SURF_STRIDE"]
    last = (ceil_div(channels, lanes) - 1) * step + (height - 1) * pitch + ATOM * width
    if last > MOST_BYTES:
        raise Hang(f"the output of {last} bytes does not fit the simulated unit's {MOST_BYTES} bytes")
    out = np.zeros(last, np.uint8)
    there = memory.stretch(base, last)
    out[:len(there)] = np.frombuffer(there, np.uint8)
    for start in range(0, channels, lanes):
        part = planes[start:start + lanes]
        pixels = np.zeros((height, width, lanes), planes.dtype)
        pixels[..., :len(part)] = part.transpose(1, 2, 0)
        for row in range(height):
            at = start // lanes * step + row * pitch
            out[at:at + ATOM * width] = pixels[row].reshape(-1).view(np.uint8)
    memory.write(base, out.tobytes())


def _precision(v: Raw, name: str) -> np.dtype[Any]:
    if v[name] not in PRECISIONS:
        raise Unsupported(f"{name} is {v[name]}, the simulated device knows {', '.join(map(str, PRECISIONS))} only")
    return PRECISIONS[v[name]]
