"""Tensors packed to and unpacked from memory: a plane for each channel, rows filled to 64 bytes.

An IOSurface of a MIL program has a tensor [1, C, 1, S] of fp16: one row of S elements for each of C
channels. If S is a multiple of 32, rows have no fill, and the bytes are those of the array (C, S).
Source: tensor commands and symbols of types in hwx files of four compiler versions; maderix/ANE
(io_write_fp16_at, io_copy).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy import ndarray as Array

from npulab.layout import Layout, planar
from npulab.npus.kit import one_of, refuse_if, up

# Registers count strides in memory in units of this many bytes.
UNIT = 64
HALF = 2
MOST_BYTES = 2**26
AXES = {"channels": 0, "columns": 1}


class Surface(NamedTuple):
    """The sizes of a tensor in memory, from which the bytes between rows and channels follow.

    A row is filled up to a multiple of ``align`` bytes.

    >>> Surface(2, 33, 3).row, Surface(2, 33, 3).bytes
    (128, 768)
    """

    height: int
    width: int
    channels: int
    align: int = UNIT

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape (H, W, C)."""
        return self[:3]

    @property
    def layout(self) -> Layout:
        """The layout of the elements: float16, a plane for each channel, rows filled."""
        return planar(self.shape, dtype="float16", row_align=self.align)

    @property
    def row(self) -> int:
        """The bytes from a row to the next row."""
        return up(HALF * self.width, self.align)

    @property
    def plane(self) -> int:
        """The bytes from a channel to the next channel."""
        return self.row * self.height

    @property
    def bytes(self) -> int:
        """The bytes of all planes, with the fill of the last row."""
        return self.plane * self.channels

    @property
    def span(self) -> int:
        """The bytes up to the end of the last element, without the fill of the last row."""
        return self.bytes - self.row + HALF * self.width


def pack(tensor: Array, rows: bool = True) -> bytes:
    """Return the bytes of a tensor ``(H, W, C)``, or ``(C, S)`` for an IOSurface, in memory.

    Elements are rounded to fp16 (half to even, infinite beyond 65504), little-endian; rows are
    filled with zeros up to 64 bytes. ``rows=False`` leaves out this fill, as maderix/ANE does (C *
    S * 2 bytes). Raises ValueError for another number of axes.

    >>> pack(np.full((1, 1, 2), 2, np.float16))[64:66].hex()
    '0040'
    >>> [len(pack(np.zeros(shape))) for shape in ((2, 3), (2, 32))]
    [128, 128]
    >>> len(pack(np.zeros((2, 3)), rows=False))
    12
    """
    array = np.asarray(tensor)
    refuse_if(
        array.ndim not in (2, 3) or 0 in array.shape or array.dtype.kind not in "fiu",
        "tensor",
        f"{array.shape} {array.dtype}",
        "are numbers (channels, columns) or (H, W, C)",
    )
    if array.ndim == 2:
        array = array.T[None]
    with np.errstate(over="ignore"):
        height, width, channels = array.shape
        surface = Surface(height, width, channels, UNIT if rows else 1)
        return surface.layout.pack(array.astype("<f2"))


def unpack(data: bytes, surface: Surface, what: str = "tensor") -> Array:
    """Return the tensor ``(H, W, C) float16`` that bytes of memory have.

    The fill of rows and bytes after the last plane are ignored; the fill of the last row may be
    missing. Raises ValueError, with ``what``, if elements are missing, and for a tensor of more
    than 2**26 bytes.
    """
    if len(data) < surface.span or surface.bytes > MOST_BYTES:
        raise ValueError(
            f"{what}: got {len(data)} bytes, allowed are {surface.span} or more, up to "
            f"{MOST_BYTES}, for {surface.channels} planes of {surface.height} rows of "
            f"{surface.row} bytes"
        )
    return surface.layout.unpack(data[: surface.bytes].ljust(surface.bytes, b"\0"))


def join(tensors: Sequence[Array], axis: str = "columns") -> Array:
    """Return several arrays ``(C, S)`` joined along the axis ``columns`` or ``channels``.

    maderix/ANE joins the taps that a backward kernel reads along the channels, and activations and
    their weights along the columns. Raises ValueError for arrays that differ along the axis that is
    not joined.

    >>> join([np.zeros((4, 2)), np.ones((4, 3))]).shape
    (4, 5)
    >>> join([np.zeros((4, 2)), np.ones((1, 2))], "channels").shape
    (5, 2)
    """
    arrays = [np.asarray(tensor) for tensor in tensors]
    along = AXES[one_of("axis", axis, AXES)]
    shapes = [array.shape for array in arrays]
    lengths = {shape[1 - along] if len(shape) == 2 else None for shape in shapes}
    if len(lengths) != 1 or None in lengths:
        raise ValueError(
            f"tensors: got {shapes}, allowed are (C, S) that differ in their {axis} only"
        )
    return np.concatenate(arrays, along)


def split(tensor: Array, sizes: Sequence[int], axis: str = "columns") -> list[Array]:
    """Return the arrays that ``join`` joined, given their sizes along the axis.

    Raises ValueError if the sizes do not add up to the size of ``tensor``.

    >>> [part.shape for part in split(np.zeros((4, 5)), [2, 3])]
    [(4, 2), (4, 3)]
    """
    along, array = AXES[one_of("axis", axis, AXES)], np.asarray(tensor)
    if array.ndim != 2 or min(sizes, default=0) < 1 or sum(sizes) != array.shape[along]:
        raise ValueError(
            f"sizes: got {list(sizes)} of {array.shape}, allowed are numbers that add up to its "
            f"{axis}"
        )
    return np.split(array, np.cumsum(sizes)[:-1].tolist(), along)
