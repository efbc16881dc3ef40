"""What fixes a kernel buffer of H13: sizes, and which channels lie in which engine, plane and lane.

Sixteen engines read a buffer each.  A buffer is a row of planes; a plane holds some output
channels, its lanes, halfword by halfword beside each other: a row of biases, then a row for each
step of the reduction.

Sources: five files of compiler 4.2.1 (tinygrad), and the constant sections whose SHA-256
joshuaswarren/mil-hwx-compiler records under research/oracles/h13 (tests/test_ane_coefficients.py
names them).
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from npulab.npus.ane.facts import ENGINES, EXPECTED
from npulab.npus.ane.memory import HALF
from npulab.npus.ane.memory import UNIT as ALIGN  # bytes of what an engine reads at once
from npulab.npus.kit import ceil_div, expect, refuse_if
from npulab.quant.layers import Conv2D

TABLE_BYTES = 128  # of an activation table
# of the count before the masks; the third byte is in use from 65536 bytes on (k3_c512_n512_st2)
COUNT_BYTES = 3
MASK_BITS = 8
# An engine works on 8 x 8 outputs at a time, or on twice as many of a larger tensor.
SMALL_SIDE = 8
MOST_LANES = {True: 32, False: 16}
MASK_LANES = {True: 4, False: 2}  # the least that a mask has bits for
MOST_CHANNELS = 2**17 - 1  # Cin, Cout; more in all groups together are refused too
MOST_GROUPS = 2**13 - 1
MOST_TAPS = 2**5 - 1  # Kh, Kw
MOST_STRIDE = 2**2 - 1
MOST_BYTES = 2**32  # an address has 26 bits of 64 bytes
Pair = tuple[int, int]
ONLY = {name: only for name, (only,) in EXPECTED["kernel"].items()}
TABLE = 2  # NonlinearMode
Values = Mapping[str, int]


@dataclass(frozen=True)
class Kernel:
    """What the layout of a kernel buffer depends on, all of it told by the registers or by a
    ``Conv2D``.

    ``outputs`` and ``inputs`` are the channels of all ``groups`` together; a kernel with as many
    groups as inputs and as outputs is depthwise.  ``stride`` is (h, w), ``bias`` says that there is
    one.  ``sparse`` kernels leave out weights of zero and have mask bits instead; ``small`` says
    that the output is not larger than 8 x 8.  ``lanes`` is the most channels of a plane, a power of
    two (``2 ** ConvCfg.OCGSize``), 0 what the compiler takes: 32 for small outputs and else 16, in
    both cases at most a sixteenth of a group's channels, rounded down to a power of two.
    ``columns`` are the output columns that are computed at a time (``ConvCfg.Ox``): then ``stride``
    is the step from the first of them to the first of the next, and each weight lies in the buffer
    once for every column, shifted. With a ``table`` the 128 bytes of an activation table come first
    in each engine's buffer.

    How sure: dense, grouped by 4, depthwise, two columns of a depthwise 1x9, dense with a table,
    and the sparse form for 1x1 and 3x3 with stride 2 are SHA-256 equal to sections of the compiler.
    A guess, by the same rule: other numbers of groups and groups of fewer than 16 channels,
    channels that are no multiple of 16 past the first 16 (of a product the compiler makes tasks of
    powers of two), stride 3, strides that differ, sparse kernels of stride 1, absent taps of a
    kernel that is not sparse, a table before biases or masks, and the order of taps where the
    padding is odd at the top or the left. Raises ValueError naming the value that is out of range
    or does not go with the others.

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
        try:
            object.__setattr__(self, "stride", tuple(operator.index(n) for n in self.stride))
            for name in ("outputs", "inputs", "kernel_h", "kernel_w", "groups", "lanes", "columns"):
                object.__setattr__(self, name, operator.index(getattr(self, name)))
        except TypeError:
            raise ValueError(f"kernel: got {self}, allowed are whole numbers") from None
        refuse_if(len(self.stride) != 2, "kernel: stride", self.stride, "is (h, w)")
        limits = {
            "groups": MOST_CHANNELS if self.depthwise else MOST_GROUPS,
            "kernel_h": MOST_TAPS,
            "kernel_w": MOST_TAPS,
            "columns": MOST_STRIDE,
            "outputs": MOST_CHANNELS,
            "inputs": MOST_CHANNELS,
        }
        numbers = [(name, getattr(self, name), most) for name, most in limits.items()]
        for name, number, most in [
            *numbers,
            *(("stride", number, MOST_STRIDE) for number in self.stride),
        ]:
            refuse_if(not 1 <= number <= most, f"kernel: {name}", number, f"is 1 to {most}")
        if (
            self.groups > 1
            and self.inputs != self.outputs
            and self.groups in (self.inputs, self.outputs)
        ):
            raise ValueError(
                f"kernel: groups: got {self.groups} with {self.inputs} inputs and {self.outputs} "
                "outputs; "
                "how a group of one channel is stored is known for as many outputs as inputs"
            )
        for name in ("outputs", "inputs"):
            refuse_if(
                getattr(self, name) % self.groups,
                f"kernel: {name}",
                getattr(self, name),
                f"are multiples of the {self.groups} groups",
            )
        if self.lanes < 0 or self.lanes & (self.lanes - 1) or self.lanes > self.usual_lanes:
            raise ValueError(
                f"kernel: lanes: got {self.lanes}, allowed is a power of two up to "
                f"{self.usual_lanes} for "
                f"{self.outputs} outputs in {self.groups} groups, or 0"
            )
        if self.columns > 1 and (
            self.sparse or self.stride[1] % self.columns or (self.lanes or self.usual_lanes) > 1
        ):
            raise ValueError(
                f"kernel: columns: got {self.columns}, allowed is 1, or a divisor of the stride "
                f"{self.stride[1]} of a kernel of one lane that is not sparse"
            )
        if self.least_bytes > MOST_BYTES:
            raise ValueError(
                f"kernel: got {self.least_bytes} bytes at least, allowed is {MOST_BYTES}"
            )

    @property
    def depthwise(self) -> bool:
        """Whether each output channel reads one input channel of its own."""
        return self.groups == self.inputs == self.outputs and self.groups > 1

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Of the weights: OHWI, I being the input channels of a group; depthwise 1HWC."""
        if self.depthwise:
            return 1, self.kernel_h, self.kernel_w, self.outputs
        return self.outputs, self.kernel_h, self.kernel_w, self.inputs // self.groups

    @property
    def depth(self) -> int:
        """Input channels that an output channel reads."""
        return self.inputs // self.groups

    @property
    def parts(self) -> int:
        """Groups whose channels lie apart from each other; depthwise kernels have none."""
        if self.depthwise:
            return 1
        return self.groups

    @property
    def usual_lanes(self) -> int:
        """The most channels of a plane that the compiler takes."""
        if self.depthwise:
            share = 1
        else:
            share = max(self.outputs // self.parts // ENGINES, 1)
        return min(MOST_LANES[self.small], 2 ** (share.bit_length() - 1))

    @cached_property
    def slots(self) -> int:
        """Taps of a 2-D kernel as stored: as many in each phase of the stride, so that some may be
        absent."""
        return len(self.taps())

    @property
    def steps(self) -> int:
        """Halfwords of each lane: biases, then weights."""
        return self.bias_rows + self.depth * self.slots

    @property
    def table_bytes(self) -> int:
        """Bytes before the planes of each engine."""
        if self.table:
            return TABLE_BYTES
        return 0

    @property
    def bias_rows(self) -> int:
        """Halfwords of bias in each lane."""
        if self.bias:
            return self.columns
        return 0

    @property
    def least_bytes(self) -> int:
        """Bytes that the buffer has at least: all of a dense one, a sparse one where every weight
        is zero."""
        rest = self.outputs // self.parts
        bits, words = 0, 0
        for lanes, planes, times in _chunks(rest, self.lanes or self.usual_lanes):
            words += times * planes * lanes
            bits += times * planes * MASK_BITS * ceil_div(self.mask_slots(lanes), MASK_BITS)
        total = words * self.bias_rows * HALF + (
            bits // 8 if self.sparse else words * self.depth * self.slots * HALF
        )
        return self.parts * total + self.table_bytes * min(ENGINES, rest)

    def mask_slots(self, lanes: int) -> int:
        """Mask bits of a plane."""
        return self.depth * self.slots * max(lanes, MASK_LANES[self.small])

    def taps(self) -> np.ndarray:
        """(slots,) int64: the tap ``row * kernel_w + column`` in each place, -1 where none is.

        Phase by phase of the stride, rows of phases first; inside of a phase row by row; the
        columns of the output beside each other.

        >>> Kernel(16, 1, 3, 3, stride=(2, 2)).taps()
        array([ 0,  2,  6,  8,  1, -1,  7, -1,  3,  5, -1, -1,  4, -1, -1, -1])
        """
        high, wide = self.stride
        shifts = wide // self.columns * np.arange(self.columns)
        rows, columns = (
            ceil_div(self.kernel_h, high),
            ceil_div(self.kernel_w + int(shifts[-1]), wide),
        )
        row = np.arange(high)[:, None, None, None, None] + high * np.arange(rows)[:, None, None]
        column = np.arange(wide)[:, None, None, None] + wide * np.arange(columns)[:, None] - shifts
        there = (row < self.kernel_h) & (column >= 0) & (column < self.kernel_w)
        return np.where(there, row * self.kernel_w + column, -1).ravel()


class Planes(NamedTuple):
    """Planes in the order in which they lie: (P,) int64 each.

    ``first`` is the channel of lane 0, the others follow it; ``run`` counts what is filled up to 64
    bytes: an engine's buffer, of a grouped kernel a group's share of it.
    """

    engine: np.ndarray
    first: np.ndarray
    lanes: np.ndarray
    run: np.ndarray


def planes(kernel: Kernel) -> Planes:
    """The planes of a kernel: channels go by 16 planes, one an engine, with ever fewer lanes at the
    end.

    >>> planes(Kernel(768, 64, small=True)).lanes[:4]
    array([32, 16, 32, 16])
    """
    share, parts = kernel.outputs // kernel.parts, kernel.parts
    chunks = _chunks(share, kernel.lanes or kernel.usual_lanes)
    lanes, used = (
        np.repeat([one[i] for one in chunks], [times for _, _, times in chunks]) for i in (0, 1)
    )
    begin = np.cumsum(lanes * used) - lanes * used
    chunk = np.tile(np.repeat(np.arange(len(lanes)), used), parts)
    engine = np.tile(np.arange(used.sum()) - np.repeat(np.cumsum(used) - used, used), parts)
    group = np.repeat(np.arange(parts), used.sum())
    order = np.lexsort((chunk, group, engine))
    engine, group, chunk = engine[order], group[order], chunk[order]
    return Planes(
        engine,
        group * share + begin[chunk] + engine * lanes[chunk],
        lanes[chunk],
        engine * parts + group,
    )


class Places(NamedTuple):
    """Bytes: ``start`` and ``size`` of each plane (P,), ``offset`` and ``length`` of each engine's
    buffer (E, 2)."""

    start: np.ndarray
    size: np.ndarray
    engines: np.ndarray


def places(kernel: Kernel, table: Planes, nonzero: np.ndarray | int = 0) -> Places:
    """Where planes and engines lie; ``nonzero`` is the number of weights that each plane of a
    sparse kernel stores."""
    size = HALF * kernel.bias_rows * table.lanes
    if kernel.sparse:
        width = np.maximum(table.lanes, MASK_LANES[kernel.small])
        size = (
            size
            + COUNT_BYTES
            + ceil_div(kernel.depth * kernel.slots * width, MASK_BITS)
            + HALF * nonzero
        )
    else:
        size = size + HALF * table.lanes * kernel.depth * kernel.slots
    heads = np.flatnonzero(np.diff(table.run, prepend=-1))
    padded = ceil_div(np.add.reduceat(size, heads), ALIGN) * ALIGN
    starts = np.cumsum(padded) - padded + kernel.table_bytes * (table.engine[heads] + 1)
    before = np.cumsum(size) - size
    runs = np.cumsum(np.diff(table.run, prepend=-1) > 0) - 1
    start = starts[runs] + before - before[heads][runs]
    firsts = np.flatnonzero(np.diff(table.engine[heads], prepend=-1))
    offset, length = (
        starts[firsts] - kernel.table_bytes,
        np.add.reduceat(padded, firsts) + kernel.table_bytes,
    )
    return Places(start, size, np.stack([offset, length], 1))


def kernel_of(layer: Conv2D, bias: bool | None = None) -> Kernel:
    """The kernel that the compiler makes of a layer; where ``bias`` is not said there is one if any
    is not 0.

    Sparse are kernels whose stride leaves taps absent (all known ones of stride 2 are 1x1 or 3x3).
    Raises ValueError for dilation and for a channel multiplier, of which no file is known.
    """
    if layer.dilation != (1, 1):
        raise ValueError(f"kernel of {layer}: got dilation {layer.dilation}, allowed is (1, 1)")
    outputs, (high, wide) = layer.output_shape[2], layer.stride
    inputs = layer.input_shape[2]
    return Kernel(
        outputs,
        inputs,
        *layer.kernel,
        groups=inputs if layer.depthwise else 1,
        stride=layer.stride,
        bias=bool(np.any(layer.bias)) if bias is None else bias,
        sparse=bool(layer.kernel[0] % high or layer.kernel[1] % wide),
        small=max(layer.output_shape[:2]) <= SMALL_SIDE,
    )


def _chunks(channels: int, most: int) -> list[tuple[int, int, int]]:
    """(lanes, planes, how often) until the channels are used up."""
    out = []
    while channels:
        lanes = min(most, 2 ** (max(channels // ENGINES, 1).bit_length() - 1))
        times = 1
        if lanes == most:
            times = max(channels // (ENGINES * lanes), 1)
        used = min(ENGINES, channels // lanes)
        out.append((lanes, used, times))
        channels -= lanes * used * times
    return out


# What registers say of a kernel and of the engines' buffers


def from_registers(values: Values) -> Kernel:
    """The kernel of a convolution task from its fields, raw, by name (``Common.ConvCfg.Kw``).

    ``NumGroups`` counts groups, of which ``Cin`` and ``Cout`` are the channels of one
    (k1_c64_n256_g4); ``UnicastEn`` with as many inputs as outputs is depthwise; ``Ox`` counts
    output columns at a time (k1x9 of 1024 channels has 2, with ``Sx`` 2 and half as many columns in
    ``OutDim.Wout``). Raises ValueError naming field and value for what no layout is known for, and
    for a field that is missing.
    """
    expect(
        {**ONLY, **values},
        EXPECTED["kernel"],
        "kernel: {name}: got {got}, allowed is "
        "{allowed}; how such coefficients are stored is not known",
        style="#x",
    )
    groups, outputs, inputs = (
        _field(values, f"Common.{name}")
        for name in ("GroupConvCfg.NumGroups", "Cout.Cout", "Cin.Cin")
    )
    sparse = _field(values, "NE.KernelCfg.SparseFmt")
    if sparse != values.get("KernelDMASrc.MasterConfig.KernelSparseFmt", sparse):
        raise ValueError(
            f"kernel: NE.KernelCfg.SparseFmt: got {sparse}, allowed is "
            f"KernelDMASrc.MasterConfig.KernelSparseFmt, which is {1 - sparse}"
        )
    if _field(values, "Common.GroupConvCfg.UnicastEn"):
        if inputs != outputs or groups != 1:
            raise ValueError(
                f"kernel: Common.GroupConvCfg.UnicastEn: got 1 with {inputs} inputs, {outputs} "
                "outputs "
                f"and {groups} groups, allowed with it is one group of as many inputs as outputs"
            )
        groups, total = inputs, 1
    else:
        total = groups
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


def places_of(values: Values) -> np.ndarray:
    """(E, 2) int64: byte from the kernel base and bytes of the buffer of each engine that is
    switched on.

    Fields are raw, in 64 bytes.  Raises ValueError for an engine that is on behind one that is off.
    """
    on = [i for i in range(ENGINES) if values.get(f"KernelDMASrc.CoeffDMAConfig[{i}].En", 0)]
    if on != list(range(len(on))):
        raise ValueError(
            f"kernel: KernelDMASrc.CoeffDMAConfig: got engines {on} on, allowed are the first ones"
        )
    return np.array(
        [
            [
                ALIGN * int(values.get(f"KernelDMASrc.{name}", 0))
                for name in (f"CoeffBaseAddr[{i}].Addr", f"CoeffBfrSize[{i}].MemBfrSize")
            ]
            for i in on
        ],
        np.int64,
    ).reshape(-1, 2)


def _field(values: Values, name: str) -> int:
    if name not in values:
        raise ValueError(
            f"kernel: {name}: got no value, allowed are the fields of a task with its own kernel"
        )
    return int(values[name])
