"""SDP: single-point processing of accumulators or of a cube in memory, fast on whole blocks.

Three stages, X1 (BS), X2 (BN) and Y (EW with the tables), each of which can be bypassed, and an
output converter. Source: the int8 and int16 traces of nvdla/hw; nvdla/hw cmod/hls/sdp for widths
that no trace shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy import ndarray as Array

from npulab.captures.target import Features
from npulab.npus.kit import Raw, Unsupported, ceil_div, hang_if, wrapped
from npulab.npus.nvdla.facts import EQUAL, HELD, LETTERS, MAX, MEMORIES, MIN, Lut, Shape
from npulab.npus.nvdla.layouts import Cube
from npulab.npus.nvdla.memory import Memory
from npulab.npus.nvdla.rules import RULES, Rules, saturated, shifted, shifted_left
from npulab.npus.nvdla.units.fields import READER, Fields
from npulab.npus.nvdla.units.lut import Lookup, Tables, looked_up

STAGE_BITS, CONVERTER_BITS = 32, 17
# Elements of a row whose channels are regrouped at once: its int64 copies take 4 MiB each.
MOST_REGROUPED = 2**19
# Bits between stages under a rule without saturation: products leave no room for more.
WIDE_BITS = 44


@dataclass(frozen=True)
class Operands:
    """A stage's operands: whole numbers, or arrays int64 that broadcast over ``(surfaces, rows,
    width, lanes)``."""

    alu: Any = 0
    mul: Any = 0


def run(
    values: Raw,
    features: Features,
    memory: Memory,
    lut: Lut | None = None,
    accumulators: Array | None = None,
    rules: Rules = RULES,
) -> Array | None:
    """Run one SDP job from raw register values by full name (``SDP.*``, ``SDP_RDMA.*``) on a chip's
    features.

    ``accumulators``: ``(height, width, kernels)`` int32, or as many positions in other rows, if the
    job takes them on the fly; missing kernels, which are 0, fill the last atom. ``lut``: the
    tables (65,) and (257,) int16. The output is written to ``memory``; a job that hands it to PDP
    returns it, ``(surfaces, height, width, lanes)`` int8 or int16; a job that compares (EQL) writes
    nothing. Raises Unsupported, with register and value, for batches, Winograd and fp16; Hang for
    operands that nobody reads.
    """
    fields = Fields(values, features)
    fields.expect("run points")
    shape = height, width, channels = fields.shape("SDP.D_DATA_CUBE_{0}.{0}")
    lanes = features["memory_atom"] // fields.precision("SDP.D_DATA_FORMAT.PROC_PRECISION")
    output = fields.cube("SDP", "DST", shape, fields.precision("SDP.D_DATA_FORMAT.OUT_PRECISION"))
    stages = [Stage(fields, name, shape, lanes) for name in LETTERS if not bypassed(fields, name)]
    tables = None
    if looks_up(fields):
        tables = Tables.of(lut)
    how = Lookup.of(fields, "SDP", rules)
    incoming = _incoming(fields, shape, accumulators)
    if compares(fields):
        return None
    # If elements change their size, the channels are regrouped across all surfaces of a row.
    regroups = output.lanes != lanes
    if isinstance(incoming, Cube):
        regroups |= incoming.lanes != lanes
    if regroups and width * channels > MOST_REGROUPED:
        raise Unsupported(
            f"SDP.D_DATA_FORMAT: elements change their size in rows of {width} x {channels}, "
            f"covered are up to {MOST_REGROUPED} elements"
        )
    handed = None
    if fields["SDP.D_FEATURE_MODE_CFG.OUTPUT_DST"]:
        handed = np.empty((output.surfaces, height, width, output.lanes), f"i{output.itemsize}")
    for surfaces, rows in output.blocks(regroups):
        within = surfaces
        if regroups:
            within = slice(0, ceil_div(channels, lanes))
        x = _block(incoming, memory, within, rows, lanes)
        operands = {stage.name: stage.operands(memory, within, rows, rules) for stage in stages}
        y = processed(fields, x, operands, tables, how, rules)
        if regroups:
            y = regrouped(y, output.surfaces, output.lanes)
        if not rules.padding_lanes:
            channel = np.arange(surfaces.start * output.lanes, surfaces.stop * output.lanes)
            y = np.where(channel.reshape(-1, 1, 1, output.lanes) < channels, y, 0)
        if handed is None:
            output.write(memory, surfaces, rows, y)
        else:
            handed[surfaces, rows] = y
    return handed


def _incoming(fields: Fields, shape: Shape, accumulators: Array | None) -> Cube | Array:
    """Return the cube that SDP_RDMA reads, or the accumulators divided into the job's rows.

    Raises ValueError if the job takes accumulators and their number of positions differs from its
    own.
    """
    height, width, _ = shape
    if not fields["SDP.D_FEATURE_MODE_CFG.FLYING_MODE"]:
        fields.expect("read points")
        itemsize = fields.precision("SDP_RDMA.D_FEATURE_MODE_CFG.IN_PRECISION")
        return fields.cube("SDP_RDMA", "SRC", shape, itemsize)
    got: object = "none"
    if accumulators is not None:
        got = accumulators.shape
        if prod(accumulators.shape[:2]) == height * width:
            # The accumulators are a plain sequence of positions: only their number must agree, not
            # how they are divided into rows.
            return accumulators.reshape(height, width, -1)
    raise ValueError(
        f"accumulators: got {got}, allowed is ({height}, {width}, kernels) as SDP.D_DATA_CUBE says"
    )


def _block(
    incoming: Cube | Array, memory: Memory, surfaces: slice, rows: slice, lanes: int
) -> Array:
    """Return a block ``(surfaces, rows, width, lanes)`` int64 of a cube or of accumulators.

    If the cube's atoms hold another number of lanes, the block must have all surfaces of its rows.
    """
    if isinstance(incoming, Array):
        return lanes_of(incoming, surfaces, rows, lanes)
    if incoming.lanes == lanes:
        return incoming.read(memory, surfaces, rows).astype(np.int64)
    block = incoming.read(memory, slice(0, incoming.surfaces), rows).astype(np.int64)
    return regrouped(block, surfaces.stop, lanes)


def bypassed(fields: Fields, stage: str) -> bool:
    """True if a stage, "BS", "BN" or "EW", passes values on unchanged."""
    return bool(fields.of_stage(stage, "CFG.{}_BYPASS"))


def register_operands(fields: Fields, stage: str) -> dict[str, Any]:
    """Return the operands of a stage, ALU and MUL, as its registers hold them: signed numbers."""
    bits = 16
    if stage == "EW":
        bits = 32
    found: dict[str, Any] = {}
    for part in ("ALU", "MUL"):
        raw = fields.of_stage(stage, f"{part}_SRC_VALUE.{{}}_{part}_OPERAND")
        found[part] = wrapped(raw, bits)
    return found


def parts_from_memory(fields: Fields, stage: str) -> list[str]:
    """Return the operands of a stage, ALU and MUL, that are used and not taken from registers."""
    found = []
    for part in ("ALU", "MUL"):
        used = not fields.of_stage(stage, f"CFG.{{}}_{part}_BYPASS")
        if used and fields.of_stage(stage, f"{part}_CFG.{{}}_{part}_SRC"):
            found.append(part)
    return found


def looks_up(fields: Fields) -> bool:
    """True if Y looks its values up in the tables."""
    return not bypassed(fields, "EW") and not fields["SDP.D_DP_EW_CFG.EW_LUT_BYPASS"]


def compares(fields: Fields) -> bool:
    """True if Y compares for equality: the job then sets its status and writes no output."""
    return (
        not bypassed(fields, "EW")
        and not fields["SDP.D_DP_EW_CFG.EW_ALU_BYPASS"]
        and fields["SDP.D_DP_EW_CFG.EW_ALU_ALGO"] == EQUAL
    )


def lanes_of(accumulators: Array, surfaces: slice, rows: slice, lanes: int) -> Array:
    """Return a block ``(surfaces, rows, width, lanes)`` int64 of ``(height, width, kernels)``;
    missing kernels are 0."""
    part = accumulators[rows, :, surfaces.start * lanes : surfaces.stop * lanes]
    count = surfaces.stop - surfaces.start
    block = np.zeros((*part.shape[:2], count * lanes), np.int64)
    block[..., : part.shape[2]] = part
    return block.reshape(*part.shape[:2], count, lanes).transpose(2, 0, 1, 3)


def regrouped(block: Array, surfaces: int, lanes: int) -> Array:
    """Return a block of every surface with its channels in atoms of another number of lanes:
    ``(surfaces, rows, width, lanes)``.

    Missing channels are 0.

    >>> regrouped(np.arange(4).reshape(2, 1, 1, 2), 1, 4).shape
    (1, 1, 1, 4)
    """
    if block.shape[::3] == (surfaces, lanes):
        return block
    channels = block.transpose(1, 2, 0, 3).reshape(*block.shape[1:3], -1)
    return lanes_of(channels, slice(0, surfaces), slice(None), lanes)


class Stage:
    """The source of a stage's operands: registers, or memory by channel or by element.

    ``from_memory`` are the parts, ALU or MUL, that are taken from ``cube``; ``held`` are the parts
    that it holds. Raises Hang if nobody reads the parts from memory.
    """

    def __init__(self, fields: Fields, name: str, shape: Shape, lanes: int) -> None:
        self.name, self.fields = name, fields
        reader = READER.format(LETTERS[name])
        self.registers = register_operands(fields, name)
        self.from_memory = parts_from_memory(fields, name)
        use = fields.of_reader(name, "DATA_USE")
        self.held = HELD.get(use, ())
        self.per_element = bool(fields.of_reader(name, "DATA_MODE"))
        for part in self.from_memory:
            taken = f"SDP.D_DP_{name}_{part}_CFG takes operands from memory"
            hang_if(fields.of_reader(name, "DISABLE"), f"{taken}, {reader}DISABLE is 1")
            hang_if(part not in self.held, f"{taken}, {reader}DATA_USE is {use}")
        if self.from_memory:
            self.cube = self._operand_cube(shape, lanes)

    def _operand_cube(self, shape: Shape, lanes: int) -> Cube:
        """Return the cube of the operands; operands per channel are a cube of one row and one
        column.
        """
        fields = self.fields
        height, width, channels = shape
        size = fields.of_reader(self.name, "DATA_SIZE") + 1
        held_lanes = lanes * len(self.held)
        base, line_name, plane_name = fields.places("SDP_RDMA", self.name)
        line, plane = fields[line_name], fields[plane_name]
        if not self.per_element:
            height = width = 1
            line = plane = held_lanes * size
        return Cube(
            height,
            width,
            ceil_div(channels, lanes) * held_lanes,
            held_lanes * size,
            line,
            plane,
            size,
            MEMORIES[fields.of_reader(self.name, "RAM_TYPE")],
            fields.address(base),
        )

    def operands(
        self, memory: Memory, surfaces: slice, rows: slice, rules: Rules = RULES
    ) -> Operands:
        """Return the operands of a block.

        Two operands of an element lie next to each other, the ALU's first (the RTL says so, no
        trace does).
        """
        operands = dict(self.registers)
        if self.from_memory:
            if not self.per_element:
                rows = slice(0, 1)
            block = self.cube.read(memory, surfaces, rows)
            for part in self.from_memory:
                operand = block[..., self.held.index(part) :: len(self.held)].astype(np.int64)
                if self.name == "EW":
                    operand = converted(self.fields, part, operand, rules.table_rounding)
                operands[part] = operand
        return Operands(operands["ALU"], operands["MUL"])


def converted(fields: Fields, part: str, operand: Array, rounding: str = "half-away") -> Array:
    """Return Y's operand from memory, 8 or 16 bits, after its converter: 32 bits."""
    if fields[f"SDP.D_DP_EW_{part}_CFG.EW_{part}_CVT_BYPASS"]:
        return operand
    name = f"SDP.D_DP_EW_{part}_CVT_{{0}}_VALUE.EW_{part}_CVT_{{0}}".format
    offset = wrapped(fields[name("OFFSET")], 32)
    scale = wrapped(fields[name("SCALE")], 16)
    truncate = fields[name("TRUNCATE")] % 64
    return saturated(shifted((operand - offset) * scale, truncate, rounding), 32)


def processed(
    fields: Fields,
    x: Array,
    operands: Mapping[str, Operands],
    tables: Tables | None,
    how: Lookup,
    rules: Rules,
) -> Array:
    """Return values of the output's element type from ``x``, 32-bit values stored as int64. The
    stages in ``operands`` run in its order."""
    for stage, given in operands.items():
        if stage == "EW":
            x = stage_y(fields, x, given, tables, how, rules)
        else:
            x = stage_x(fields, stage, x, given, rules)
    offset = wrapped(fields["SDP.D_CVT_OFFSET.CVT_OFFSET"], 32)
    scale = wrapped(fields["SDP.D_CVT_SCALE.CVT_SCALE"], 16)
    y = shifted((x - offset) * scale, fields["SDP.D_CVT_SHIFT.CVT_SHIFT"] % 64, rules.rounding)
    if rules.saturate_converter:
        y = saturated(y, CONVERTER_BITS)
    return saturated(y, 8 * fields.precision("SDP.D_DATA_FORMAT.OUT_PRECISION"))


def stage_x(fields: Fields, stage: str, x: Array, operands: Operands, rules: Rules) -> Array:
    """Return values of 32 bits after X1 ("BS") or X2 ("BN"): ALU, multiplier, shift, ReLU.

    The shift belongs to the multiplier and happens even if the multiplier is bypassed. As PReLU,
    values of 0 or more skip both. Source: RTL simulation of nv_small, 880 jobs.
    """
    bits = WIDE_BITS
    if rules.saturate_stages:
        bits = STAGE_BITS
    config = partial(fields.of_stage, stage)
    multiplies = not config("CFG.{}_MUL_BYPASS")
    if not config("CFG.{}_ALU_BYPASS"):
        operand = shifted_left(operands.alu, config("ALU_CFG.{}_ALU_SHIFT_VALUE") % 64, bits)
        x = combined(config("CFG.{}_ALU_ALGO"), x, operand)
    y = x
    if multiplies:
        y = x * operands.mul
    if multiplies or rules.shift_while_bypassed:
        y = shifted(y, config("MUL_CFG.{}_MUL_SHIFT_VALUE") % 64, rules.rounding)
    y = saturated(y, bits)
    if multiplies and config("CFG.{}_MUL_PRELU"):
        # a value of 0 or more keeps its lowest 32 bits, even if the ALU's sum has 33
        passed = x
        if rules.saturate_stages:
            passed = x.astype(np.int32).astype(np.int64)
        y = np.where(x >= 0, passed, y)
    if not config("CFG.{}_RELU_BYPASS"):
        return np.maximum(y, 0)
    return y


def stage_y(
    fields: Fields,
    x: Array,
    operands: Operands,
    tables: Tables | None,
    how: Lookup,
    rules: Rules,
) -> Array:
    """Return values of 32 bits after Y (EW): the multiplier with its truncation, which comes first
    here, then ALU and tables."""
    x = saturated(x, STAGE_BITS)
    if not fields["SDP.D_DP_EW_CFG.EW_MUL_BYPASS"]:
        truncate = fields["SDP.D_DP_EW_TRUNCATE_VALUE.EW_TRUNCATE"]
        y = saturated(shifted(x * operands.mul, truncate, rules.table_rounding), STAGE_BITS)
        if fields["SDP.D_DP_EW_CFG.EW_MUL_PRELU"]:
            y = np.where(x >= 0, x, y)
        x = y
    if not fields["SDP.D_DP_EW_CFG.EW_ALU_BYPASS"]:
        x = saturated(combined(fields["SDP.D_DP_EW_CFG.EW_ALU_ALGO"], x, operands.alu), STAGE_BITS)
    if tables is not None:
        x = looked_up(x, tables, how, rules.table_rounding)
    return x


def combined(algorithm: int, x: Array, operand: Any) -> Array:
    """Return the result of an ALU for values and an operand."""
    if algorithm == MAX:
        return np.maximum(x, operand)
    if algorithm == MIN:
        return np.minimum(x, operand)
    return x + operand
