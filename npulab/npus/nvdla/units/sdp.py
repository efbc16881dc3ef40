"""SDP: single-point processing of accumulators or of a cube in memory, fast on whole blocks.

Three stages, X1 (BS), X2 (BN) and Y (EW with the tables), each of which can be passed by, and an
output converter. Source: the int8 and int16 traces of nvdla/hw; nvdla/hw cmod/hls/sdp for widths
that no trace tells.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from npulab.npus.kit import Hang, Unsupported, ceil_div, wrapped
from npulab.npus.nvdla.facts import ALU, BOTH, EQUAL, LETTERS, MAX, MEMORIES, MIN, MUL
from npulab.npus.nvdla.layouts import Cube
from npulab.npus.nvdla.memory import ByteMemory
from npulab.npus.nvdla.rules import RULES, Rules, saturated, shifted, shifted_left
from npulab.npus.nvdla.units.fields import Fields
from npulab.npus.nvdla.units.lut import Lookup, Tables, looked_up

STAGE_BITS, CONVERTER_BITS = 32, 17
MOST_DEALT = 2**19
WIDE_BITS = 44  # of a rule without saturation: as much as the products leave room for


@dataclass(frozen=True)
class Operands:
    """A stage's operands: whole numbers, or arrays int64 that broadcast over ``(surfaces, rows,
    width, lanes)``."""

    alu: Any = 0
    mul: Any = 0


def run(
    values: Mapping[str, int],
    features: Mapping[str, int],
    memory: ByteMemory,
    lut: tuple[np.ndarray, np.ndarray] | None = None,
    accumulators: np.ndarray | None = None,
    rules: Rules = RULES,
) -> np.ndarray | None:
    """Run one SDP job from raw register values by full name (``SDP.*``, ``SDP_RDMA.*``) on a chip's
    features.

    ``accumulators``: ``(height, width, kernels)`` int32, or as many places in other rows, where the
    job takes them on the fly; missing kernels, which are 0, fill the last atom.  ``lut``: the
    tables (65,) and (257,) int16.  The output is written to ``memory``; a job that hands it to PDP
    gives it, ``(surfaces, height, width, lanes)`` int8 or int16, and one that compares (EQL) writes
    nothing. Raises Unsupported, with register and value, for batches, Winograd and fp16; Hang for
    operands that nobody reads.
    """
    fields = Fields(values, features)
    fields.expect("run points")
    shape = height, width, channels = fields.shape("SDP.D_DATA_CUBE_{0}.{0}")
    inner = features["memory_atom"] // fields.precision("SDP.D_DATA_FORMAT.PROC_PRECISION")
    output = fields.cube("SDP", "DST", shape, fields.precision("SDP.D_DATA_FORMAT.OUT_PRECISION"))
    stages = [Stage(fields, name, shape, inner) for name in LETTERS if not bypassed(fields, name)]
    tables = None
    if looks_up(fields):
        tables = Tables.of(lut)
    how = Lookup.of(fields, "SDP", rules)
    source = None
    if not fields["SDP.D_FEATURE_MODE_CFG.FLYING_MODE"]:
        fields.expect("read points")
        source = fields.cube(
            "SDP_RDMA", "SRC", shape, fields.precision("SDP_RDMA.D_FEATURE_MODE_CFG.IN_PRECISION")
        )
    elif accumulators is None or prod(accumulators.shape[:2]) != height * width:
        got = "none" if accumulators is None else accumulators.shape
        raise ValueError(
            f"accumulators: got {got}, allowed is ({height}, {width}, kernels) as SDP.D_DATA_CUBE "
            "says"
        )
    else:
        # places come one behind the other, whatever the rows are
        accumulators = accumulators.reshape(height, width, -1)
    if compares(fields):
        return None
    to_pdp = fields["SDP.D_FEATURE_MODE_CFG.OUTPUT_DST"]
    given = None
    if to_pdp:
        given = np.empty((output.surfaces, height, width, output.lanes), f"i{output.itemsize}")
    # where elements change their size the channels are dealt out anew, across all surfaces of a row
    whole = output.lanes != inner or (source is not None and source.lanes != inner)
    if whole and width * channels > MOST_DEALT:
        raise Unsupported(
            f"SDP.D_DATA_FORMAT: elements change their size in rows of {width} x {channels}, "
            "covered "
            f"are up to {MOST_DEALT} elements"
        )
    for surfaces, rows in output.blocks(whole):
        within = surfaces
        if whole:
            within = slice(0, ceil_div(channels, inner))
        if source is not None:
            x = source.read(memory, slice(0, source.surfaces) if whole else surfaces, rows).astype(
                np.int64
            )
            if whole:
                x = dealt(x, within.stop, inner)
        else:
            assert accumulators is not None
            x = lanes_of(accumulators, within, rows, inner)
        operands = {stage.name: stage.operands(memory, within, rows, rules) for stage in stages}
        y = processed(fields, x, operands, tables, how, rules)
        if whole:
            y = dealt(y, output.surfaces, output.lanes)
        if not rules.padding_lanes:
            channel = np.arange(surfaces.start * output.lanes, surfaces.stop * output.lanes)
            y = np.where(channel.reshape(-1, 1, 1, output.lanes) < channels, y, 0)
        if given is not None:
            given[surfaces, rows] = y
        else:
            output.write(memory, surfaces, rows, y)
    return given


def bypassed(fields: Fields, stage: str) -> bool:
    """Whether a stage, "BS", "BN" or "EW", passes values on as they are."""
    return bool(fields[f"SDP.D_DP_{stage}_CFG.{stage}_BYPASS"])


def looks_up(fields: Fields) -> bool:
    """Whether Y looks its values up in the tables."""
    return not bypassed(fields, "EW") and not fields["SDP.D_DP_EW_CFG.EW_LUT_BYPASS"]


def compares(fields: Fields) -> bool:
    """Whether Y compares for equality: the job then sets its status and writes no output."""
    return (
        not bypassed(fields, "EW")
        and not fields["SDP.D_DP_EW_CFG.EW_ALU_BYPASS"]
        and fields["SDP.D_DP_EW_CFG.EW_ALU_ALGO"] == EQUAL
    )


def lanes_of(accumulators: np.ndarray, surfaces: slice, rows: slice, lanes: int) -> np.ndarray:
    """A block ``(surfaces, rows, width, lanes)`` int64 of ``(height, width, kernels)``; kernels
    that lack are 0."""
    part = accumulators[rows, :, surfaces.start * lanes : surfaces.stop * lanes]
    count = surfaces.stop - surfaces.start
    block = np.zeros((*part.shape[:2], count * lanes), np.int64)
    block[..., : part.shape[2]] = part
    return block.reshape(*part.shape[:2], count, lanes).transpose(2, 0, 1, 3)


def dealt(block: np.ndarray, surfaces: int, lanes: int) -> np.ndarray:
    """A block of every surface ``(surfaces, rows, width, lanes)`` with its channels in atoms of
    other lanes.

    Channels that lack are 0.

    >>> dealt(np.arange(4).reshape(2, 1, 1, 2), 1, 4).shape
    (1, 1, 1, 4)
    """
    if block.shape[::3] == (surfaces, lanes):
        return block
    channels = block.transpose(1, 2, 0, 3).reshape(*block.shape[1:3], -1)
    return lanes_of(channels, slice(0, surfaces), slice(None), lanes)


class Stage:
    """Where a stage's operands come from: registers, or memory by channel or by element.

    ``from_memory`` are the parts, ALU or MUL, that ``cube`` holds; raises Hang if nobody reads
    them.
    """

    def __init__(self, fields: Fields, name: str, shape: tuple[int, int, int], lanes: int) -> None:
        self.name, self.fields = name, fields
        config, place = f"SDP.D_DP_{name}_", f"SDP_RDMA.D_{name}_{{0}}.{name}_{{0}}"
        reader = f"SDP_RDMA.D_{LETTERS[name]}RDMA_CFG.{LETTERS[name]}RDMA_"
        self.registers = {
            part: wrapped(
                fields[f"{config}{part}_SRC_VALUE.{name}_{part}_OPERAND"],
                32 if name == "EW" else 16,
            )
            for part in ("ALU", "MUL")
        }
        self.from_memory = [
            part
            for part in ("ALU", "MUL")
            if fields[f"{config}{part}_CFG.{name}_{part}_SRC"]
            and not fields[f"{config}CFG.{name}_{part}_BYPASS"]
        ]
        use, size = fields[f"{reader}DATA_USE"], fields.size(f"{reader}DATA_SIZE")
        self.held = {MUL: ["MUL"], ALU: ["ALU"], BOTH: ["ALU", "MUL"]}.get(use, [])
        self.per_element = bool(fields[f"{reader}DATA_MODE"])
        if not self.from_memory:
            return
        if fields[f"{reader}DISABLE"]:
            raise Hang(
                f"{config}{self.from_memory[0]}_CFG takes operands from memory, {reader}DISABLE "
                "is 1"
            )
        for part in self.from_memory:
            if part not in self.held:
                raise Hang(
                    f"{config}{part}_CFG takes operands from memory, {reader}DATA_USE is {use}"
                )
        height, width, channels = shape
        inner = lanes * len(self.held)
        line, plane = (fields[place.format(part)] for part in ("LINE_STRIDE", "SURFACE_STRIDE"))
        if not self.per_element:
            height, width, line, plane = 1, 1, inner * size, inner * size
        self.cube = Cube(
            height,
            width,
            ceil_div(channels, lanes) * inner,
            inner * size,
            line,
            plane,
            size,
            MEMORIES[fields[f"{reader}RAM_TYPE"]],
            fields.address(place.format("BASE_ADDR_LOW")),
        )

    def operands(
        self, memory: ByteMemory, surfaces: slice, rows: slice, rules: Rules = RULES
    ) -> Operands:
        """Of a block; two operands of an element lie side by side, the ALU's first (the RTL says
        so, no trace)."""
        operands: dict[str, Any] = dict(self.registers)
        if self.from_memory:
            block = self.cube.read(memory, surfaces, rows if self.per_element else slice(0, 1))
            for part in self.from_memory:
                operand = block[..., self.held.index(part) :: len(self.held)].astype(np.int64)
                if self.name != "EW":
                    operands[part] = operand
                else:
                    operands[part] = converted(self.fields, part, operand, rules.table_rounding)
        return Operands(operands["ALU"], operands["MUL"])


def converted(
    fields: Fields, part: str, operand: np.ndarray, rounding: str = "half-away"
) -> np.ndarray:
    """Y's operand from memory, 8 or 16 bits, after its converter: 32 bits."""
    name = f"EW_{part}_CVT_"
    if fields[f"SDP.D_DP_EW_{part}_CFG.{name}BYPASS"]:
        return operand
    offset, scale = (
        wrapped(fields[f"SDP.D_DP_{name}{what}_VALUE.{name}{what}"], bits)
        for what, bits in (("OFFSET", 32), ("SCALE", 16))
    )
    truncate = fields[f"SDP.D_DP_{name}TRUNCATE_VALUE.{name}TRUNCATE"] % 64
    return saturated(shifted((operand - offset) * scale, truncate, rounding), 32)


def processed(
    fields: Fields,
    x: np.ndarray,
    operands: Mapping[str, Operands],
    tables: Tables | None,
    how: Lookup,
    rules: Rules = RULES,
) -> np.ndarray:
    """Values of the output's element type from int64 values of 32 bits, by the stages that have
    operands."""
    for stage, given in operands.items():
        if stage == "EW":
            x = stage_y(fields, x, given, tables, how, rules)
        else:
            x = stage_x(fields, stage, x, given, rules)
    offset, scale, shift = (
        fields[f"SDP.D_CVT_{name}.CVT_{name}"] for name in ("OFFSET", "SCALE", "SHIFT")
    )
    y = shifted((x - wrapped(offset, 32)) * wrapped(scale, 16), shift % 64, rules.rounding)
    if rules.saturate_converter:
        y = saturated(y, CONVERTER_BITS)
    return saturated(y, 8 * fields.precision("SDP.D_DATA_FORMAT.OUT_PRECISION"))


def stage_x(
    fields: Fields, stage: str, x: np.ndarray, operands: Operands, rules: Rules = RULES
) -> np.ndarray:
    """X1 ("BS") or X2 ("BN"): ALU, multiplier, shift, ReLU on values of 32 bits.

    The shift is that of the multiplier and happens although the multiplier is passed by; where it
    works as PReLU, values from 0 on skip both.  Such a sum past 32 bits is limited here, where the
    RTL cuts it off: no trace tells.
    """
    bits = WIDE_BITS
    if rules.saturate_stages:
        bits = STAGE_BITS
    config = f"SDP.D_DP_{stage}_"
    on = {name: not fields[f"{config}CFG.{stage}_{name}_BYPASS"] for name in ("ALU", "MUL", "RELU")}
    if on["ALU"]:
        shift = fields[f"{config}ALU_CFG.{stage}_ALU_SHIFT_VALUE"] % 64
        x = combined(
            fields[f"{config}CFG.{stage}_ALU_ALGO"], x, shifted_left(operands.alu, shift, bits)
        )
    skipping = None
    if on["MUL"] and fields[f"{config}CFG.{stage}_MUL_PRELU"]:
        skipping = x >= 0
    y = x
    if on["MUL"]:
        y = x * operands.mul
    if on["MUL"] or rules.shift_while_bypassed:
        y = shifted(y, fields[f"{config}MUL_CFG.{stage}_MUL_SHIFT_VALUE"] % 64, rules.rounding)
    if skipping is not None:
        y = np.where(skipping, x, y)
    y = saturated(y, bits)
    if on["RELU"]:
        return np.maximum(y, 0)
    return y


def combined(algorithm: int, x: np.ndarray, operand: Any) -> np.ndarray:
    """What an ALU makes of values and an operand."""
    if algorithm == MAX:
        return np.maximum(x, operand)
    if algorithm == MIN:
        return np.minimum(x, operand)
    return x + operand


def stage_y(
    fields: Fields,
    x: np.ndarray,
    operands: Operands,
    tables: Tables | None,
    how: Lookup,
    rules: Rules = RULES,
) -> np.ndarray:
    """Y (EW): multiplier with its truncation, ALU and tables on values of 32 bits; here the
    multiplier comes first."""
    x = saturated(x, STAGE_BITS)
    if not fields["SDP.D_DP_EW_CFG.EW_MUL_BYPASS"]:
        truncate = fields["SDP.D_DP_EW_TRUNCATE_VALUE.EW_TRUNCATE"]
        y = saturated(shifted(x * operands.mul, truncate, rules.table_rounding), STAGE_BITS)
        if fields["SDP.D_DP_EW_CFG.EW_MUL_PRELU"]:
            x = np.where(x >= 0, x, y)
        else:
            x = y
    if not fields["SDP.D_DP_EW_CFG.EW_ALU_BYPASS"]:
        x = saturated(combined(fields["SDP.D_DP_EW_CFG.EW_ALU_ALGO"], x, operands.alu), STAGE_BITS)
    if tables is not None:
        x = looked_up(x, tables, how, rules.table_rounding)
    return x
