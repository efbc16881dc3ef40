"""The simulated SDP: stages X1, X2 and Y and the output converter, one channel after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping

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
from npulab.npus.nvdla.device_memory import MEMORIES, Memory
from npulab.npus.nvdla.device_tables import looked_up

MUL, ALU, BOTH = range(3)  # what operands in memory are for
Tables = tuple[list[int], list[int]]
Operand = Callable[[int], np.ndarray | int]


def destination(v: Values, chip: Mapping[str, int]) -> tuple[Cube, int]:
    """Where SDP writes, and its channels."""
    size = element_bytes(v, "SDP.D_DATA_FORMAT.PROC_PRECISION", "SDP.D_DATA_FORMAT.OUT_PRECISION")
    return cube(v, "SDP", "DST", "SDP.D_DST_DMA_CFG.DST_RAM_TYPE", _shape(v), chip["memory_atom"], size), \
        v["SDP.D_DATA_CUBE_CHANNEL.CHANNEL"] + 1


def run(v: Values, chip: Mapping[str, int], memory: Memory, tables: Tables, sums: np.ndarray | None,
        ) -> list[np.ndarray] | None:
    """Write the output of accumulators ``(K, H, W)``, or of a cube in memory; planes where it goes to PDP instead."""
    covered(v, SDP__D_FEATURE_MODE_CFG__WINOGRAD=(0,), SDP__D_FEATURE_MODE_CFG__BATCH_NUMBER=(0,))
    output, channels = destination(v, chip)
    shape, size = _shape(v), output.size
    few(shape[0] * shape[1] * channels, "the elements of SDP's output")
    if sums is None:
        element_bytes(v, "SDP.D_DATA_FORMAT.PROC_PRECISION", "SDP_RDMA.D_FEATURE_MODE_CFG.IN_PRECISION")
        covered(v, SDP_RDMA__D_FEATURE_MODE_CFG__WINOGRAD=(0,), SDP_RDMA__D_FEATURE_MODE_CFG__BATCH_NUMBER=(0,))
        _same_size(v)
        source = cube(v, "SDP_RDMA", "SRC", "SDP_RDMA.D_SRC_DMA_CFG.SRC_RAM_TYPE", shape, chip["memory_atom"], size)
    elif sums.shape != (channels, *shape):
        raise Hang(f"SDP waits for {channels} channels of {shape[0]}x{shape[1]}, CACC gives {sums.shape[0]} of "
                   f"{sums.shape[1]}x{sums.shape[2]}")
    stages = [stage for stage in ("BS", "BN", "EW") if not v[f"SDP.D_DP_{stage}_CFG.{stage}_BYPASS"]]
    operands = {stage: _operands(v, stage, memory, shape, output.lanes) for stage in stages}
    to_pdp = bool(v["SDP.D_FEATURE_MODE_CFG.OUTPUT_DST"])
    planes = []
    for channel in lanes_of(channels, output.lanes):
        if sums is None:
            x = source.plane(memory, channel)
        else:
            x = sums[channel] if channel < channels else np.zeros(shape, np.int64)
        for stage in stages:
            alu, mul = (operand(channel) for operand in operands[stage])
            x = _y(v, x, alu, mul, tables) if stage == "EW" else _x(v, stage, x, alu, mul)
        offset = whole(v["SDP.D_CVT_OFFSET.CVT_OFFSET"], 32)
        scaled = (x - offset) * whole(v["SDP.D_CVT_SCALE.CVT_SCALE"], 16)
        planes.append(limit(limit(right(scaled, v["SDP.D_CVT_SHIFT.CVT_SHIFT"]), 17), 8 * size))
    if to_pdp:
        return planes
    for channel, plane in enumerate(planes):
        output.put(memory, channel, plane)
    return None


def _same_size(v: Values) -> None:
    """Hang where SDP and its reader do not mean the same cube."""
    for name in ("WIDTH", "HEIGHT", "CHANNEL"):
        same(v, "SDP waits for data that its reader never gives", f"SDP.D_DATA_CUBE_{name}.{name}",
             f"SDP_RDMA.D_DATA_CUBE_{name}.{name}")


def _shape(v: Values) -> tuple[int, int]:
    return v["SDP.D_DATA_CUBE_HEIGHT.HEIGHT"] + 1, v["SDP.D_DATA_CUBE_WIDTH.WIDTH"] + 1


def _x(v: Values, stage: str, x: np.ndarray, alu: np.ndarray | int, mul: np.ndarray | int) -> np.ndarray:
    """X1 or X2: the ALU, the multiplier, its shift (also where the multiplier is passed by), ReLU."""
    config = f"SDP.D_DP_{stage}_"
    if not v[f"{config}CFG.{stage}_ALU_BYPASS"]:
        moved = np.asarray(alu, np.int64) * 2 ** min(v[f"{config}ALU_CFG.{stage}_ALU_SHIFT_VALUE"] % 64, 40)
        x = _combined(v[f"{config}CFG.{stage}_ALU_ALGO"], x, limit(moved, 32))
    multiplies = not v[f"{config}CFG.{stage}_MUL_BYPASS"]
    shift = v[f"{config}MUL_CFG.{stage}_MUL_SHIFT_VALUE"] % 64
    y = right(x * mul if multiplies else x, shift)
    if multiplies and v[f"{config}CFG.{stage}_MUL_PRELU"]:
        y = np.where(x >= 0, x, y)
    y = limit(y, 32)
    return y if v[f"{config}CFG.{stage}_RELU_BYPASS"] else np.maximum(y, 0)


def _y(v: Values, x: np.ndarray, alu: np.ndarray | int, mul: np.ndarray | int, tables: Tables) -> np.ndarray:
    """Y: the multiplier comes first here, then the ALU, then the tables."""
    if not v["SDP.D_DP_EW_CFG.EW_MUL_BYPASS"]:
        y = limit(right(x * mul, v["SDP.D_DP_EW_TRUNCATE_VALUE.EW_TRUNCATE"]), 32)
        x = np.where(x >= 0, x, y) if v["SDP.D_DP_EW_CFG.EW_MUL_PRELU"] else y
    if not v["SDP.D_DP_EW_CFG.EW_ALU_BYPASS"]:
        if v["SDP.D_DP_EW_CFG.EW_ALU_ALGO"] == 3:
            raise Unanswerable("SDP.D_DP_EW_CFG.EW_ALU_ALGO is 3 (EQL), which writes no output; the simulated device "
                               "covers 0 to 2")
        x = limit(_combined(v["SDP.D_DP_EW_CFG.EW_ALU_ALGO"], x, np.asarray(alu, np.int64)), 32)
    return x if v["SDP.D_DP_EW_CFG.EW_LUT_BYPASS"] else looked_up(x, v, tables, "SDP")


def _combined(algorithm: int, x: np.ndarray, operand: np.ndarray) -> np.ndarray:
    if algorithm in (0, 1):
        return np.minimum(x, operand) if algorithm else np.maximum(x, operand)
    return x + operand


def _operands(v: Values, stage: str, memory: Memory, shape: tuple[int, int], lanes: int) -> tuple[Operand, Operand]:
    """What gives the ALU's and the multiplier's operand of a channel: a register, or memory."""
    letter, bits = {"BS": "B", "BN": "N", "EW": "E"}[stage], 32 if stage == "EW" else 16
    reader = f"SDP_RDMA.D_{letter}RDMA_CFG.{letter}RDMA_"
    found: list[Operand] = []
    for part, only in (("ALU", ALU), ("MUL", MUL)):
        config = f"SDP.D_DP_{stage}_"
        if v[f"{config}CFG.{stage}_{part}_BYPASS"] or not v[f"{config}{part}_CFG.{stage}_{part}_SRC"]:
            number = whole(v[f"{config}{part}_SRC_VALUE.{stage}_{part}_OPERAND"], bits)
            found.append(lambda _, number=number: number)  # type: ignore[misc]
            continue
        use = v[f"{reader}DATA_USE"]
        if v[f"{reader}DISABLE"] or not v["SDP_RDMA.D_OP_ENABLE.OP_EN"] or use not in (only, BOTH):
            raise Hang(f"{config}{part}_CFG waits for an operand from memory; {reader}DISABLE is "
                       f"{v[f'{reader}DISABLE']}, {reader}DATA_USE is {use}")
        found.append(_from_memory(v, stage, letter, part, memory, shape, lanes))
    return found[0], found[1]


def _from_memory(v: Values, stage: str, letter: str, part: str, memory: Memory, shape: tuple[int, int], lanes: int,
                 ) -> Operand:
    reader, place = f"SDP_RDMA.D_{letter}RDMA_CFG.{letter}RDMA_", f"SDP_RDMA.D_{stage}_{{0}}.{stage}_{{0}}"
    _same_size(v)
    parts, size = 1 + (v[f"{reader}DATA_USE"] == BOTH), 1 + v[f"{reader}DATA_SIZE"]
    base = v[place.format("BASE_ADDR_LOW")] + 2 ** 32 * v[place.format("BASE_ADDR_HIGH")]
    pitches = v[place.format("LINE_STRIDE")], v[place.format("SURFACE_STRIDE")]
    if not v[f"{reader}DATA_MODE"]:
        shape, pitches = (1, 1), (0, lanes * parts * size)
    source = Cube(f"SDP_RDMA ({stage})", MEMORIES[v[f"{reader}RAM_TYPE"]], base, *pitches, *shape, lanes, size, parts)
    second = int(parts == 2 and part == "MUL")  # the ALU's comes first, as far as anybody knows

    def operand(channel: int) -> np.ndarray:
        read = source.plane(memory, channel, second)
        if stage != "EW" or v[f"SDP.D_DP_EW_{part}_CFG.EW_{part}_CVT_BYPASS"]:
            return read
        name = f"SDP.D_DP_EW_{part}_CVT_{{0}}_VALUE.EW_{part}_CVT_{{0}}"
        moved = (read - whole(v[name.format("OFFSET")], 32)) * whole(v[name.format("SCALE")], 16)
        return limit(right(moved, v[name.format("TRUNCATE")] % 64), 32)
    return operand
