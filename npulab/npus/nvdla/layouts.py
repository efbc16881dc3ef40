"""Layouts of features and weights in memory: bytes to tensors and tensors to bytes.

A feature cube is stored in surfaces of as many channels as an atom of memory holds, weights in
groups of kernels and blocks of channels; the last of each may be short. Source: nvdla/doc
doc/hw/format.rst; the int8 and int16 traces of nvdla/hw agree.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy import ndarray as Array

from npulab.layout import Layout, Loop, nc1hwc2
from npulab.npus.kit import refuse_if
from npulab.npus.nvdla.facts import MEMORIES, Pair, Shape
from npulab.npus.nvdla.memory import Memory

# The size of all weights together is rounded up to a multiple of this many bytes.
WEIGHT_ALIGN = 128
# The type of an element, by its bytes.
TYPES: dict[int, np.dtype[Any]] = {1: np.dtype(np.int8), 2: np.dtype("<i2")}
# The number of elements computed at a time: temporaries take some 160 bytes for each, and so stay
# small next to the cubes.
BLOCK, MOST_BLOCK, BLOCKS = 2**12, 2**14, 32


@dataclass(frozen=True)
class Cube:
    """A feature cube in memory. Sizes are in elements of ``itemsize`` (1 or 2) bytes; pitches and
    ``atom`` are in bytes.

    The element (y, x, c) of the tensor ``(height, width, lanes)`` lies ``c // e * plane_pitch + y *
    row_pitch + x * atom + c % e * itemsize`` bytes from the start, where ``e = atom // itemsize``.
    The lanes of the tensor are the channels and the fill of the last atom, which the hardware
    reads, computes and writes like channels. With one row or one surface, the pitch of that axis is
    not used and may be any number. ``memory`` names the memory in which the cube lies, ``base`` is
    its address there. Raises ValueError for sizes below 1, negative pitches, an itemsize other than
    1 and 2, and an atom that is not a multiple of the itemsize.

    >>> Cube(1, 2, 3, atom=2, row_pitch=4, plane_pitch=8).layout().index_map()
    array([[[ 0,  1,  8,  9],
            [ 2,  3, 10, 11]]])
    """

    height: int
    width: int
    channels: int
    atom: int
    row_pitch: int
    plane_pitch: int
    itemsize: int = 1
    memory: str = MEMORIES[1]
    base: int = 0

    def __post_init__(self) -> None:
        sizes = self.height, self.width, self.channels, self.atom
        refuse_if(min(sizes) < 1, "height, width, channels, atom", sizes, "is 1 or more of each")
        if self.itemsize not in TYPES or self.atom % self.itemsize:
            raise ValueError(
                f"itemsize: got {self.itemsize} in atoms of {self.atom} bytes, allowed is 1 or 2, "
                "and an atom is a multiple of it"
            )
        if min(self.row_pitch, self.plane_pitch) < 0:
            raise ValueError(
                f"row_pitch, plane_pitch: got {self.row_pitch}, {self.plane_pitch}, allowed is 0 "
                "or more"
            )

    @classmethod
    def packed(cls, height: int, width: int, channels: int, atom: int, itemsize: int = 1) -> Cube:
        """Return a cube without gaps between rows or surfaces."""
        return cls(height, width, channels, atom, width * atom, height * width * atom, itemsize)

    @property
    def lanes(self) -> int:
        """The number of elements in one atom (``e`` above)."""
        return self.atom // self.itemsize

    @property
    def surfaces(self) -> int:
        """The number of surfaces, each with an atom of channels."""
        return -(-self.channels // self.lanes)

    @property
    def shape(self) -> Shape:
        """The shape of the tensor, the fill of the last atom included in its lanes."""
        return self.height, self.width, self.surfaces * self.lanes

    @property
    def size(self) -> int:
        """Bytes from the first atom's start to the end of the last one."""
        return (
            (self.surfaces - 1) * self.plane_pitch
            + (self.height - 1) * self.row_pitch
            + self.width * self.atom
        )

    @property
    def filled(self) -> int:
        """The bytes of all atoms, without the gaps between rows and surfaces."""
        return self.surfaces * self.height * self.width * self.atom

    def runs(self, surfaces: slice | None = None, rows: slice | None = None) -> Iterator[Pair]:
        """Yield (address, bytes) of the stretches without gaps in the cube, or in a block of it,
        row by row in each surface.
        """
        surfaces = surfaces or slice(0, self.surfaces)
        rows = rows or slice(0, self.height)
        row = self.width * self.atom
        count = rows.stop - rows.start
        planes = surfaces.stop - surfaces.start
        lines = 1
        if self.row_pitch == row or count == 1:
            lines = count
        joined = 1
        if lines == count and self.plane_pitch == count * row:
            joined = planes
        for surface in range(surfaces.start, surfaces.stop, joined):
            for line in range(rows.start, rows.stop, lines):
                address = self.base + surface * self.plane_pitch + line * self.row_pitch
                yield address, joined * lines * row

    def blocks(self, whole_rows: bool = False) -> Iterator[tuple[slice, slice]]:
        """Yield (surfaces, rows) of blocks that cover the cube, each of at least ``BLOCK`` lanes if
        the cube has as many.

        With ``whole_rows`` each block has every surface of its rows.
        """
        row = self.width * self.lanes
        block = max(BLOCK, min(MOST_BLOCK, row * self.height * self.surfaces // BLOCKS))
        if whole_rows:
            surfaces, rows = self.surfaces, max(1, block // (row * self.surfaces))
        else:
            rows = min(self.height, max(1, block // row))
            surfaces = 1
            if rows == self.height:
                surfaces = max(1, block // (row * rows))
        for surface in range(0, self.surfaces, surfaces):
            planes = slice(surface, min(surface + surfaces, self.surfaces))
            for line in range(0, self.height, rows):
                yield planes, slice(line, min(line + rows, self.height))

    def read(
        self, memory: Memory, surfaces: slice | None = None, rows: slice | None = None
    ) -> Array:
        """Return the cube, or a block of it, ``(surfaces, rows, width, lanes)``, int8 or int16.

        Raises as ``memory.read``.
        """
        rows = rows or slice(0, self.height)
        runs = self.runs(surfaces, rows)
        parts = [memory.read(self.memory, address, size) for address, size in runs]
        data = parts[0]
        if len(parts) > 1:
            data = b"".join(parts)
        elements = np.frombuffer(data, TYPES[self.itemsize])
        return elements.reshape(-1, rows.stop - rows.start, self.width, self.lanes)

    def write(self, memory: Memory, surfaces: slice, rows: slice, block: Array) -> None:
        """Write a block of values that the element type holds; gaps between rows and surfaces keep
        their bytes."""
        data = np.ascontiguousarray(block, TYPES[self.itemsize]).reshape(-1).view(np.uint8)
        at = 0
        for address, size in self.runs(surfaces, rows):
            memory.write(self.memory, address, data[at : at + size].tobytes())
            at += size

    def unpack(self, data: bytes | bytearray | memoryview) -> Array:
        """Return the tensor ``(height, width, lanes)``, int8 or int16, in the bytes of memory that
        begin at the cube's start.

        Raises ValueError if the bytes end before the cube does.
        """
        if len(data) < self.size:
            raise ValueError(
                f"feature cube {self.shape}: got {len(data)} bytes of memory, allowed is "
                f"{self.size} or more"
            )
        shape = self.surfaces, self.height, self.width, self.lanes
        pitches = self.plane_pitch, self.row_pitch, self.atom, self.itemsize
        return self.tensor(Array(shape, TYPES[self.itemsize], data, 0, pitches))

    def tensor(self, stored: Array) -> Array:
        """Return the tensor ``(height, width, lanes)`` of stored elements ``(surfaces, height,
        width, lanes)``."""
        return np.ascontiguousarray(stored.transpose(1, 2, 0, 3)).reshape(self.shape)

    def pack(self, tensor: Array) -> bytes:
        """Return the bytes of a tensor ``(height, width, lanes)``, or ``(height, width,
        channels)``: the lanes after the channels are then 0; gaps are 0 too.

        Raises ValueError for another shape or type, and rows or surfaces that overlap.
        """
        whole = np.zeros(self.shape, TYPES[self.itemsize])
        shapes = self.shape, (self.height, self.width, self.channels)
        if tensor.dtype != whole.dtype or tensor.shape not in shapes:
            raise ValueError(
                f"tensor: got {tensor.dtype} {tensor.shape}, allowed is {whole.dtype} {self.shape} "
                f"or {self.channels} channels"
            )
        whole[..., : tensor.shape[2]] = tensor
        return self.layout().pack(whole)

    def layout(self) -> Layout:
        """Return the layout of the cube with all its lanes; ValueError if rows or surfaces
        overlap."""
        # The pitch of an axis with one row or one surface is never used and may be any number.
        rows = 0
        if self.height > 1:
            rows = self.row_pitch
        planes = 0
        if self.surfaces > 1:
            planes = self.plane_pitch
        return nc1hwc2(
            self.shape,
            self.lanes,
            dtype=TYPES[self.itemsize].name,
            row_pitch=rows,
            plane_pitch=planes,
            size=self.size,
        )


@dataclass(frozen=True)
class Weights:
    """Uncompressed weights in memory: ``kernels`` of (height, width, channels), in groups of
    ``group`` kernels and blocks of ``block`` channels; elements of 1 or 2 bytes.

    The order is group, block, row, column, kernel, channel, the last varying fastest, without fill.
    After all weights, zeros fill up to a multiple of 128 bytes. An image may have ``lines`` of 2 or
    4: then this number of a kernel's rows lie next to each other (fewer at the kernel's end), and
    all channels are one block. The source says so; no trace shows it. Raises ValueError for sizes
    below 1, an itemsize other than 1 and 2, and lines that do not fit into a block.

    >>> Weights(3, 1, 2, 1, group=2, block=8).layout().index_map()[:, 0, :, 0]
    array([[0, 2],
           [1, 3],
           [4, 5]])
    """

    kernels: int
    height: int
    width: int
    channels: int
    group: int
    block: int
    itemsize: int = 1
    lines: int = 1

    def __post_init__(self) -> None:
        sizes = *self.shape, self.group, self.block
        if min(sizes) < 1:
            raise ValueError(
                f"kernels, height, width, channels, group, block: got {sizes}, allowed is 1 or more"
            )
        refuse_if(self.itemsize not in TYPES, "itemsize", self.itemsize, "is 1 or 2")
        if self.lines not in (1, 2, 4) or (
            self.lines > 1 and self.lines * self.channels > self.block
        ):
            raise ValueError(
                f"lines: got {self.lines} of {self.channels} channels, allowed is 1, and 2 or 4 "
                f"that fit in a block of {self.block}"
            )

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape of the tensor: kernels, height, width, channels."""
        return self.kernels, self.height, self.width, self.channels

    @property
    def used(self) -> int:
        """Bytes of all weights, before the end is rounded up."""
        return prod(self.shape) * self.itemsize

    @property
    def size(self) -> int:
        """Bytes of all weights, the end rounded up."""
        return -(-self.used // WEIGHT_ALIGN) * WEIGHT_ALIGN

    def unpack(self, data: bytes | bytearray | memoryview) -> Array:
        """Return the tensor ``(kernels, height, width, channels)``, int8 or int16; bytes after it
        are ignored.

        Raises ValueError for too few bytes.
        """
        if len(data) < self.used:
            raise ValueError(
                f"weights {self.shape}: got {len(data)} bytes, allowed is {self.used} or more"
            )
        return self.layout(self.used).unpack(memoryview(data)[: self.used])

    def pack(self, tensor: Array) -> bytes:
        """Return the bytes of a tensor ``(kernels, height, width, channels)``; ValueError for
        another shape or type."""
        refuse_if(
            tensor.dtype != TYPES[self.itemsize] or tensor.shape != self.shape,
            "weights",
            f"{tensor.dtype} {tensor.shape}",
            f"is {TYPES[self.itemsize]} {self.shape}",
        )
        return self.layout().pack(tensor)

    def layout(self, size: int | None = None) -> Layout:
        """Return the layout of the weights in ``size`` bytes, by default the rounded size."""
        groups = Loop(0, self.group), Loop(3, self.block), Loop(1, self.lines)
        loops = *groups, Loop(2), Loop(0), Loop(1), Loop(3)
        return Layout(self.shape, loops, dtype=TYPES[self.itemsize].name, size=size or self.size)
