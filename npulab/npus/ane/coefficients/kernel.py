"""Kernel buffers of H13: their sizes, and the engine, plane and lane of each output channel.

Each of at most sixteen engines reads a buffer, which is a row of planes. A plane has the biases and
weights of several output channels; each of these channels is a lane. The lanes are interleaved
halfword by halfword: first one bias of each lane, then for each slot of each input channel one
weight of each lane. A slot is the place of one tap of the kernel.

Sources: five files of compiler 4.2.1 (tinygrad), and the constant sections whose SHA-256
joshuaswarren/mil-hwx-compiler records under research/oracles/h13
(tests/npus/ane/test_ane_coefficients.py names them).
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy import ndarray as Array

from npulab.npus.ane.facts import ENGINES, EXPECTED
from npulab.npus.ane.memory import (
    HALF,
    UNIT as ALIGN,  # an engine reads this many bytes at a time
)
from npulab.npus.kit import ceil_div, expect, refuse_if
from npulab.quant.layers import Conv2D

# An activation table has this many bytes.
TABLE_BYTES = 128
# The count before the masks has this many bytes; the third is used by counts from 65536 on
# (k3_c512_n512_st2).
COUNT_BYTES = 3
MASK_BITS = 8
# A kernel is small if its output has at most this many rows and columns.
SMALL_SIDE = 8
# By Kernel.small: the most lanes of a plane, and the fewest lanes for which a mask has bits.
MOST_LANES = {True: 32, False: 16}
MASK_LANES = {True: 4, False: 2}
# The largest value of the fields Cin and Cout; all groups together also have at most so many.
MOST_CHANNELS = 2**17 - 1
# The largest values of the fields NumGroups, of Kh and Kw, and of Sx and Sy.
MOST_GROUPS = 2**13 - 1
MOST_TAPS = 2**5 - 1
MOST_STRIDE = 2**2 - 1
# An address has 26 bits and counts units of 64 bytes.
MOST_BYTES = 2**32
Pair = tuple[int, int]
ONLY = {name: only for name, (only,) in EXPECTED["kernel"].items()}
# The value of NonlinearMode for an activation table.
TABLE = 2
Values = Mapping[str, int]


@dataclass(frozen=True)
class Kernel:
    """Everything that the layout of a kernel's buffers depends on.

    - ``outputs`` and ``inputs``: the channels of all ``groups`` together. A kernel with as many
      groups as inputs and as outputs is depthwise.
    - ``stride``: (h, w). ``bias``: true if the kernel has a bias.
    - ``sparse``: true if weights of 0 are left out and mask bits say which.
    - ``small``: true if the output has at most 8 x 8 pixels.
    - ``lanes``: the most channels of a plane, a power of two (``2 ** ConvCfg.OCGSize``). 0 means
      the compiler's choice: at most 32 for small outputs, else 16, and at most a sixteenth of a
      group's output channels, rounded down to a power of two.
    - ``columns``: how many output columns are computed at a time (``ConvCfg.Ox``). If there are
      several, ``stride`` is the step from their first column to the first of the next columns, and
      the buffer has a shifted copy of the weights for each column.
    - ``table``: true if each engine's buffer begins with the 128 bytes of an activation table.

    Proved, by equal SHA-256 of sections that the compiler wrote: dense kernels, 4 groups,
    depthwise, two columns of a depthwise 1x9, dense with a table, sparse 1x1 and 3x3 of stride 2.
    A guess by the same rule: other numbers of groups; groups of fewer than 16 channels; more than
    16 channels that are no multiple of 16; stride 3; strides that differ; sparse kernels of stride
    1; absent taps of a dense kernel; a table before biases or masks; the order of taps for odd
    padding at the top or left. Raises ValueError, with the field, for a value that is out of range
    or contradicts others.

    >>> Kernel(64, 64, 3, 3).shape, Kernel(64, 64, groups=64).shape
    ((64, 3, 3, 64), (1, 1, 1, 64))
    """

    outputs: int
    inputs: int
    kernel_h: int = 1
    kernel_w: int = 1
    groups: int = 1
    stride: Pair = (1, 1)
    bias: bool = False
    sparse: bool = False
    small: bool = False
    lanes: int = 0
    columns: int = 1
    table: bool = False

    def __post_init__(self) -> None:
        self._take_whole_numbers()
        most_groups = MOST_GROUPS
        if self.depthwise:
            most_groups = MOST_CHANNELS
        for name, number, most in (
            ("groups", self.groups, most_groups),
            ("kernel_h", self.kernel_h, MOST_TAPS),
            ("kernel_w", self.kernel_w, MOST_TAPS),
            ("columns", self.columns, MOST_STRIDE),
            ("outputs", self.outputs, MOST_CHANNELS),
            ("inputs", self.inputs, MOST_CHANNELS),
            ("stride", self.stride[0], MOST_STRIDE),
            ("stride", self.stride[1], MOST_STRIDE),
        ):
            refuse_if(not 1 <= number <= most, f"kernel: {name}", number, f"is 1 to {most}")
        self._check_groups()
        self._check_lanes()
        refuse_if(
            self.least_bytes > MOST_BYTES,
            "kernel",
            f"{self.least_bytes} bytes at least",
            f"is {MOST_BYTES}",
        )

    def _take_whole_numbers(self) -> None:
        try:
            object.__setattr__(self, "stride", tuple(map(operator.index, self.stride)))
            for name in ("outputs", "inputs", "kernel_h", "kernel_w", "groups", "lanes", "columns"):
                object.__setattr__(self, name, operator.index(getattr(self, name)))
        except TypeError:
            raise ValueError(f"kernel: got {self}, allowed are whole numbers") from None
        refuse_if(len(self.stride) != 2, "kernel: stride", self.stride, "is (h, w)")

    def _check_groups(self) -> None:
        of_one_channel = self.groups > 1 and self.groups in (self.inputs, self.outputs)
        if of_one_channel and self.inputs != self.outputs:
            raise ValueError(
                f"kernel: groups: got {self.groups} with {self.inputs} inputs and {self.outputs} "
                "outputs; how a group of one channel is stored is known for as many outputs as "
                "inputs"
            )
        multiples = f"are multiples of the {self.groups} groups"
        refuse_if(self.outputs % self.groups, "kernel: outputs", self.outputs, multiples)
        refuse_if(self.inputs % self.groups, "kernel: inputs", self.inputs, multiples)

    def _check_lanes(self) -> None:
        if self.lanes.bit_count() > 1 or not 0 <= self.lanes <= self.usual_lanes:
            raise ValueError(
                f"kernel: lanes: got {self.lanes}, allowed is a power of two up to "
                f"{self.usual_lanes} for {self.outputs} outputs in {self.groups} groups, or 0"
            )
        wide = self.sparse or self.most_lanes > 1
        if self.columns > 1 and (wide or self.stride[1] % self.columns):
            raise ValueError(
                f"kernel: columns: got {self.columns}, allowed is 1, or a divisor of the stride "
                f"{self.stride[1]} of a kernel of one lane that is not sparse"
            )

    @property
    def depthwise(self) -> bool:
        """True if each output channel reads only the input channel of the same number."""
        return self.groups == self.inputs == self.outputs and self.groups > 1

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape of the weights: OHWI with the input channels of one group; depthwise 1HWC."""
        if self.depthwise:
            return 1, self.kernel_h, self.kernel_w, self.outputs
        return self.outputs, self.kernel_h, self.kernel_w, self.depth

    @property
    def depth(self) -> int:
        """The number of input channels that an output channel reads."""
        return self.inputs // self.groups

    @property
    def parts(self) -> int:
        """The number of groups that have planes of their own; 1 for depthwise kernels, whose groups
        share planes.
        """
        if self.depthwise:
            return 1
        return self.groups

    @property
    def usual_lanes(self) -> int:
        """The most channels that the compiler puts into a plane of this kernel."""
        if self.depthwise:
            return 1
        return min(MOST_LANES[self.small], _lanes_for(self.outputs // self.parts))

    @property
    def most_lanes(self) -> int:
        """The most channels in a plane of this kernel: ``lanes``, or the compiler's choice."""
        return self.lanes or self.usual_lanes

    @cached_property
    def slots(self) -> int:
        """The number of halfwords that an output channel has for each input channel.

        Every phase of the stride has equally many slots, so some slots have no tap.
        """
        return len(self.taps())

    @property
    def steps(self) -> int:
        """The number of halfwords of each lane in a dense kernel: biases, then weights."""
        return self.bias_rows + self.depth * self.slots

    @property
    def table_bytes(self) -> int:
        """The number of bytes of the activation table before an engine's planes; 0 without one."""
        if self.table:
            return TABLE_BYTES
        return 0

    @property
    def bias_rows(self) -> int:
        """The number of halfwords of bias in each lane: one for each of ``columns``, or 0."""
        if self.bias:
            return self.columns
        return 0

    @property
    def least_bytes(self) -> int:
        """A lower bound of the bytes of all buffers.

        Fill is not counted; of a sparse kernel counts and weights are not counted either.
        """
        total = 0
        for chunk in _chunks(self):
            each = HALF * self.steps * chunk.lanes
            if self.sparse:
                each = HALF * self.bias_rows * chunk.lanes + self.mask_bytes(chunk.lanes)
            total += chunk.times * chunk.planes * each
        return self.parts * total + self.table_bytes * min(ENGINES, self.outputs // self.parts)

    def mask_width(self, lanes: int) -> int:
        """The number of mask bits for each slot of a plane with ``lanes`` lanes.

        It is one for each lane, but at least 2, or 4 if the kernel is ``small``.
        """
        return max(lanes, MASK_LANES[self.small])

    def mask_bytes(self, lanes: int) -> int:
        """The number of mask bytes of a plane with ``lanes`` lanes."""
        return ceil_div(self.depth * self.slots * self.mask_width(lanes), MASK_BITS)

    def taps(self) -> Array:
        """Return the tap in each slot, (slots,) int64: ``row * kernel_w + column``, -1 without one.

        A phase is the taps whose row and column have the same remainders modulo the stride. Slots
        are ordered by phase (the row's remainder changes slowest), then by row, then by column.
        Each tap has one slot for each of the ``columns`` output columns.

        >>> Kernel(16, 1, 3, 3, stride=(2, 2)).taps()
        array([ 0,  2,  6,  8,  1, -1,  7, -1,  3,  5, -1, -1,  4, -1, -1, -1])
        """
        high, wide = self.stride
        shifts = wide // self.columns * np.arange(self.columns)
        rows = ceil_div(self.kernel_h, high)
        columns = ceil_div(self.kernel_w + int(shifts[-1]), wide)
        # The axes are: phase of the row, phase of the column, row, column, output column.
        row = np.arange(high)[:, None, None, None, None] + high * np.arange(rows)[:, None, None]
        column = np.arange(wide)[:, None, None, None] + wide * np.arange(columns)[:, None] - shifts
        present = (row < self.kernel_h) & (column >= 0) & (column < self.kernel_w)
        return np.where(present, row * self.kernel_w + column, -1).ravel()


class Planes(NamedTuple):
    """The planes of a kernel in the order of the buffers; every field is (P,) int64.

    ``engine`` is the engine that reads the plane. ``first`` is the output channel of lane 0; the
    next lanes have the channels after it. ``lanes`` is the number of lanes. ``run`` is the number
    of the plane's run: all planes of one group in one engine's buffer, filled up to 64 bytes.
    """

    engine: Array
    first: Array
    lanes: Array
    run: Array


def planes(kernel: Kernel) -> Planes:
    """Return the planes of a kernel, engine by engine.

    Output channels are dealt out in rounds, in which each engine gets at most one plane. Planes of
    the last rounds may have fewer lanes.

    >>> planes(Kernel(768, 64, small=True)).lanes[:4]
    array([32, 16, 32, 16])
    """
    share = kernel.outputs // kernel.parts
    lanes, used, times = np.array(_chunks(kernel)).T
    lanes, used = np.repeat(lanes, times), np.repeat(used, times)
    begin = np.cumsum(lanes * used) - lanes * used
    # For each group, planes are first listed chunk by chunk, then sorted by engine.
    chunk = np.tile(np.repeat(np.arange(len(lanes)), used), kernel.parts)
    engine = np.arange(used.sum()) - np.repeat(np.cumsum(used) - used, used)
    engine = np.tile(engine, kernel.parts)
    group = np.repeat(np.arange(kernel.parts), used.sum())
    order = np.lexsort((chunk, group, engine))
    engine, group, chunk = engine[order], group[order], chunk[order]
    first = group * share + begin[chunk] + engine * lanes[chunk]
    return Planes(engine, first, lanes[chunk], engine * kernel.parts + group)


class Chunk(NamedTuple):
    """Consecutive output channels of a group, dealt out to engines in planes of one size.

    ``lanes`` is the number of channels of each plane, ``planes`` the number of engines (1 to 16)
    that get a plane in a round, ``times`` the number of rounds.
    """

    lanes: int
    planes: int
    times: int


def _chunks(kernel: Kernel) -> list[Chunk]:
    """Return the chunks of one group; together they have all its output channels, in order."""
    out = []
    channels, most = kernel.outputs // kernel.parts, kernel.most_lanes
    while channels:
        lanes = min(most, _lanes_for(channels))
        times = 1
        if lanes == most:
            times = max(channels // (ENGINES * lanes), 1)
        used = min(ENGINES, channels // lanes)
        out.append(Chunk(lanes, used, times))
        channels -= lanes * used * times
    return out


def _lanes_for(channels: int) -> int:
    """Return a sixteenth of the channels, rounded down to a power of two; at least 1."""
    return int(2 ** (max(channels // ENGINES, 1).bit_length() - 1))


class Places(NamedTuple):
    """The places of planes and buffers, in bytes from the beginning of the first buffer.

    ``start`` and ``size`` (P,) are those of each plane; ``engines`` (E, 2) has offset and size of
    each engine's buffer.
    """

    start: Array
    size: Array
    engines: Array

    @property
    def total(self) -> int:
        """The number of bytes of all buffers."""
        return int(self.engines[-1].sum())

    def engine_of(self, byte: Array) -> Array:
        """Return for each byte the number of the engine whose buffer has it."""
        return np.searchsorted(self.engines[:, 0], byte, "right") - 1

    def of_byte(self, byte: int) -> Pair:
        """Return the number of the engine whose buffer has a byte, and the byte's offset there."""
        engine = int(self.engine_of(np.array(byte)))
        return engine, byte - int(self.engines[engine, 0])


def places(kernel: Kernel, table: Planes, nonzero: Array | int = 0) -> Places:
    """Return the places of planes and buffers; ``table`` are the planes of the kernel.

    ``nonzero`` is how many weights each plane of a sparse kernel stores; dense kernels ignore it.
    """
    size = HALF * kernel.steps * table.lanes
    if kernel.sparse:
        width = np.maximum(table.lanes, MASK_LANES[kernel.small])
        masks = ceil_div(kernel.depth * kernel.slots * width, MASK_BITS)
        size = HALF * (kernel.bias_rows * table.lanes + nonzero) + COUNT_BYTES + masks
    begins_run = np.diff(table.run, prepend=-1) > 0
    heads = np.flatnonzero(begins_run)
    padded = ceil_div(np.add.reduceat(size, heads), ALIGN) * ALIGN
    run_start = np.cumsum(padded) - padded + kernel.table_bytes * (table.engine[heads] + 1)
    before = np.cumsum(size) - size
    run = np.cumsum(begins_run) - 1
    start = run_start[run] + before - before[heads][run]
    firsts = np.flatnonzero(np.diff(table.engine[heads], prepend=-1))
    offset = run_start[firsts] - kernel.table_bytes
    length = np.add.reduceat(padded, firsts) + kernel.table_bytes
    return Places(start, size, np.stack([offset, length], 1))


def kernel_of(layer: Conv2D) -> Kernel:
    """Return the kernel that the compiler makes of a layer.

    It has a bias if a bias of the layer is not 0. It is sparse if a kernel size is no multiple of
    the stride, so that slots have no tap; the known kernels of stride 2 are 1x1 and 3x3. Raises
    ValueError for dilation and for a channel multiplier, because no file with them is known.
    """
    if layer.dilation != (1, 1):
        raise ValueError(f"kernel of {layer}: got dilation {layer.dilation}, allowed is (1, 1)")
    height, width, outputs = layer.output_shape
    inputs = layer.input_shape[2]
    groups = 1
    if layer.depthwise:
        groups = inputs
    return Kernel(
        outputs,
        inputs,
        *layer.kernel,
        groups=groups,
        stride=layer.stride,
        bias=bool(np.any(layer.bias)),
        sparse=bool(layer.kernel[0] % layer.stride[0] or layer.kernel[1] % layer.stride[1]),
        small=max(height, width) <= SMALL_SIDE,
    )


# Kernels and places of buffers read from registers


def from_registers(values: Values) -> Kernel:
    """Return the kernel of a convolution task from raw values by name (``Common.ConvCfg.Kw``).

    ``NumGroups`` is the number of groups; ``Cin`` and ``Cout`` are the channels of one group
    (k1_c64_n256_g4). ``UnicastEn`` 1 means a depthwise kernel, with ``Cin`` equal to ``Cout`` and
    ``NumGroups`` 1. ``Ox`` is the number of output columns that are computed at a time: k1x9 of
    1024 channels has 2, with ``Sx`` 2 and half the columns in ``OutDim.Wout``. Raises ValueError,
    with field and value, for a value whose layout is not known, for fields that contradict each
    other, and for a missing field.
    """
    expect(
        {**ONLY, **values},
        EXPECTED["kernel"],
        "kernel: {name}: got {got}, allowed is "
        "{allowed}; how such coefficients are stored is not known",
        style="#x",
    )
    groups = _field(values, "Common.GroupConvCfg.NumGroups")
    outputs = _field(values, "Common.Cout.Cout")
    inputs = _field(values, "Common.Cin.Cin")
    sparse = _field(values, "NE.KernelCfg.SparseFmt")
    if sparse != values.get("KernelDMASrc.MasterConfig.KernelSparseFmt", sparse):
        raise ValueError(
            f"kernel: NE.KernelCfg.SparseFmt: got {sparse}, allowed is "
            f"KernelDMASrc.MasterConfig.KernelSparseFmt, which is {1 - sparse}"
        )
    total = groups
    if _field(values, "Common.GroupConvCfg.UnicastEn"):
        if inputs != outputs or groups != 1:
            raise ValueError(
                f"kernel: Common.GroupConvCfg.UnicastEn: got 1 with {inputs} inputs, {outputs} "
                f"outputs and {groups} groups, "
                "allowed with it is one group of as many inputs as outputs"
            )
        groups, total = inputs, 1
    return Kernel(
        outputs * total,
        inputs * total,
        _field(values, "Common.ConvCfg.Kh"),
        _field(values, "Common.ConvCfg.Kw"),
        groups,
        (_field(values, "Common.ConvCfg.Sy"), _field(values, "Common.ConvCfg.Sx")),
        bool(_field(values, "NE.MACCfg.BiasMode")),
        bool(sparse),
        bool(_field(values, "Common.Cfg.SmallSourceMode")),
        2 ** _field(values, "Common.ConvCfg.OCGSize"),
        values.get("Common.ConvCfg.Ox", 1),
        values.get("NE.MACCfg.NonlinearMode", 0) == TABLE,
    )


def places_of(values: Values) -> Array:
    """Return (offset, size) in bytes of the buffer of each engine that is on, (engines, 2) int64.

    Offsets count from the base address of the coefficients. ``values`` are raw values by name.
    Raises ValueError if an engine is on after an engine that is off.
    """
    on = [i for i in range(ENGINES) if values.get(f"KernelDMASrc.CoeffDMAConfig[{i}].En", 0)]
    if on != list(range(len(on))):
        raise ValueError(
            f"kernel: KernelDMASrc.CoeffDMAConfig: got engines {on}, allowed are engines from 0 on"
        )
    out = np.zeros((len(on), 2), np.int64)
    for i in on:
        base = values.get(f"KernelDMASrc.CoeffBaseAddr[{i}].Addr", 0)
        size = values.get(f"KernelDMASrc.CoeffBfrSize[{i}].MemBfrSize", 0)
        out[i] = ALIGN * base, ALIGN * size
    return out


def _field(values: Values, name: str) -> int:
    if name not in values:
        raise ValueError(
            f"kernel: {name}: got no value, allowed are the fields of a task with its own kernel"
        )
    return int(values[name])
