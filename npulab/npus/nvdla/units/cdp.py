"""CDP: normalisation across channels, each element by the squares of its neighbours and a table.

Source: the int8 traces of nvdla/hw; nvdla/hw cmod/cdp and cmod/hls/cdp_libs for elements of two
bytes and the lanes past the channels, which no trace shows.
"""

from __future__ import annotations

import numpy as np

from npulab.captures.target import Features
from npulab.npus.kit import Raw, Unsupported, wrapped
from npulab.npus.nvdla.facts import Lut
from npulab.npus.nvdla.layouts import BLOCK
from npulab.npus.nvdla.memory import Memory
from npulab.npus.nvdla.rules import RULES, Rules, saturated, shifted
from npulab.npus.nvdla.units.fields import Fields
from npulab.npus.nvdla.units.lut import Lookup, Tables, looked_up

# By element bytes: bits of the input's offset and of the input converter's result.
IN_BITS = {1: (8, 9), 2: (16, 17)}
SUM_BITS = 38
# By element bytes: bits of the values that the output converter takes, and of its offset.
OUT_BITS = {1: (25, 25), 2: (33, 32)}


def run(
    values: Raw,
    features: Features,
    memory: Memory,
    lut: Lut | None,
    rules: Rules = RULES,
) -> None:
    """Run one CDP job from raw register values by full name (``CDP.*``, ``CDP_RDMA.*``) on a chip's
    features.

    ``lut``: the tables (65,) and (257,) int16. The output is written to ``memory``. Raises
    Unsupported, with register and value, for fp16 and compression, and if no tables are given.
    """
    fields = Fields(values, features)
    fields.expect("run normalisation")
    itemsize = fields.precision("CDP.D_DATA_FORMAT.INPUT_DATA_TYPE")
    if fields.precision("CDP_RDMA.D_DATA_FORMAT.INPUT_DATA") != itemsize:
        raise Unsupported(
            f"CDP_RDMA.D_DATA_FORMAT.INPUT_DATA is {fields['CDP_RDMA.D_DATA_FORMAT.INPUT_DATA']}, "
            "covered is that of CDP.D_DATA_FORMAT.INPUT_DATA_TYPE, "
            f"{fields['CDP.D_DATA_FORMAT.INPUT_DATA_TYPE']}"
        )
    shape = _, width, _ = fields.shape("CDP_RDMA.D_DATA_CUBE_{0}.{0}")
    source = fields.cube("CDP_RDMA", "SRC", shape, itemsize)
    output = fields.cube("CDP", "DST", shape, itemsize)
    tables = Tables.of(lut)
    how = Lookup.of(fields, "CDP", rules)
    for surfaces, rows in source.blocks(whole_rows=True):
        block = source.read(memory, surfaces, rows)
        out = np.empty_like(block)
        lines, lanes = block.shape[1], block.shape[0] * block.shape[3]
        step = max(1, BLOCK // (lines * lanes))
        for left in range(0, width, step):
            part = slice(left, left + step)
            # Neighbours lie along the last axis, surface after surface.
            x = block[:, :, part].transpose(1, 2, 0, 3).reshape(lines, -1, lanes).astype(np.int64)
            y = normalised(fields, x, tables, how, rules)
            y = y.reshape(lines, -1, block.shape[0], source.lanes)
            out[:, :, part] = y.transpose(2, 0, 1, 3)
        output.write(memory, surfaces, rows, out)


def normalised(
    fields: Fields, x: np.ndarray, tables: Tables, how: Lookup, rules: Rules
) -> np.ndarray:
    """Return output values of int64 ``(rows, width, lanes)``; lanes past the channels count as the
    input's offset."""
    rounding = rules.cdp_rounding
    itemsize = fields.precision("CDP.D_DATA_FORMAT.INPUT_DATA_TYPE")
    offset_bits, z_bits = IN_BITS[itemsize]
    offset = fields["CDP.D_DATIN_OFFSET.DATIN_OFFSET"]
    scale = fields["CDP.D_DATIN_SCALE.DATIN_SCALE"]
    shift = fields["CDP.D_DATIN_SHIFTER.DATIN_SHIFTER"]
    z = shifted((x - wrapped(offset, offset_bits)) * wrapped(scale, 16), shift % 32, rounding)
    if rules.saturate_cdp:
        z = saturated(z, z_bits)
    z[..., fields.size("CDP_RDMA.D_DATA_CUBE_CHANNEL.CHANNEL") :] = 0
    sums = z
    if not fields["CDP.D_FUNC_BYPASS.SQSUM_BYPASS"]:
        reach = fields["CDP.D_LRN_CFG.NORMALZ_LEN"] + 1
        squares = np.zeros((*z.shape[:2], z.shape[2] + 2 * reach), np.int64)
        squares[..., reach:-reach] = z * z
        sums = np.zeros_like(z)
        for n in range(2 * reach + 1):
            sums += squares[..., n : n + z.shape[2]]
    y = looked_up(saturated(sums, SUM_BITS), tables, how, rules.table_rounding)
    if not fields["CDP.D_FUNC_BYPASS.MUL_BYPASS"]:
        y = y * z
    taken_bits, offset_bits = OUT_BITS[itemsize]
    half = 2 ** (taken_bits - 1)
    y = ((y + half) & (2 * half - 1)) - half
    offset = fields["CDP.D_DATOUT_OFFSET.DATOUT_OFFSET"]
    scale = fields["CDP.D_DATOUT_SCALE.DATOUT_SCALE"]
    shift = fields["CDP.D_DATOUT_SHIFTER.DATOUT_SHIFTER"]
    y = shifted((y - wrapped(offset, offset_bits)) * wrapped(scale, 16), shift % 64, rounding)
    return saturated(y, 8 * itemsize)
