"""Tensors as the ANE has them in memory: rows of a multiple of 64 bytes, planes of rows, images of
planes.

An IOSurface of a MIL program holds a tensor [1, C, 1, S] of fp16: one row for each channel.  Where
S is a multiple of 32 there are no gaps, and the bytes are those of the array (C, S). Source: tensor
commands and stabs of hwx files of four compiler versions; maderix/ANE (io_write_fp16_at, io_copy).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from npulab.npus.ane import memory
from npulab.npus.kit.numbers import up
from npulab.support.refuse import one_of, refuse_if

ROW_ALIGN = memory.UNIT
EXACT_COLUMNS = ROW_ALIGN // 2  # rows of fp16 without gaps are multiples of so many columns
TILE_BYTES = 0x4000  # memory for the DMA is given in these
AXES = {"channels": 0, "columns": 1}


class Strides(NamedTuple):
    """Bytes from a row, plane (channel), depth slice or batch to the next, and of the whole
    tensor."""

    row: int
    plane: int
    depth: int
    batch: int
    size: int

    @property
    def allocated(self) -> int:
        """The size in whole tiles of 0x4000 bytes."""
        return up(self.size, TILE_BYTES)


def strides(shape: Sequence[int], itemsize: int = 2) -> Strides:
    """Strides of a tensor (N, C, H, W) or (N, C, D, H, W), elements of ``itemsize`` bytes.

    A row is rounded up to 64 bytes; a plane has H rows, a depth slice C planes, a batch D depth
    slices.  The batch stride was never seen with more than one.  Raises ValueError for another rank
    or sizes below 1.

    >>> strides((1, 3, 1, 77))
    Strides(row=192, plane=192, depth=576, batch=576, size=576)
    """
    if len(shape) not in (4, 5) or min(shape) < 1 or itemsize < 1:
        raise ValueError(f"shape: got {tuple(shape)} of {itemsize} bytes, allowed is (N, C, H, W) or (N, C, D, H, W) "
                         "of 1 or more")
    n, c, h, w = shape[0], shape[1], shape[-2], shape[-1]
    row = up(w * itemsize, ROW_ALIGN)
    depth = row * h * c
    batch = depth * (shape[2] if len(shape) == 5 else 1)
    return Strides(row, row * h, depth, batch, batch * n)


def pack(tensor: np.ndarray, rows: bool = True) -> bytes:
    """An array ``(C, S)`` as the bytes of an IOSurface, fp16 (rounded half to even, infinite beyond
    65504).

    ``rows=False`` leaves out the gaps after rows, as maderix/ANE copies and allocates (C * S * 2
    bytes), which is the same where S is a multiple of 32.  Raises ValueError for another rank.

    >>> len(pack(np.zeros((2, 3)))), len(pack(np.zeros((2, 3)), rows=False)), len(pack(np.zeros((2, 32))))
    (128, 12, 128)
    """
    array = np.asarray(tensor)
    refuse_if(array.ndim != 2 or 0 in array.shape or array.dtype.kind not in "fiu", "tensor",
              f"{array.shape} {array.dtype}", "are numbers (channels, columns)")
    with np.errstate(over="ignore"):
        return _surface(array.shape[0], array.shape[1], rows).layout.pack(array.astype("<f2").T[None])


def unpack(data: bytes, channels: int, columns: int, rows: bool = True) -> np.ndarray:
    """The array ``(C, S) float16`` of an IOSurface; ``rows`` as in ``pack``.

    Bytes past the tensor are not looked at: a surface may be allocated larger.  Raises ValueError
    for fewer.
    """
    refuse_if(channels < 1 or columns < 1, "shape", f"{channels} channels, {columns} columns",
              "is 1 or more")
    return np.ascontiguousarray(
        memory.unpack(data, _surface(channels, columns, rows), "surface")[0].T)


def _surface(channels: int, columns: int, rows: bool) -> memory.Surface:
    return memory.Surface(1, columns, channels, ROW_ALIGN if rows else 1)


def join(tensors: Sequence[np.ndarray], axis: str = "columns") -> np.ndarray:
    """Several arrays ``(C, S)`` as one input: side by side along the ``columns``, or one after the
    other along the ``channels``.

    maderix/ANE gives a backward kernel its taps along the channels (``concat`` of axis 1), and
    activations with their weights along the columns.  Raises ValueError for arrays that differ
    along the other axis.

    >>> join([np.zeros((4, 2)), np.ones((4, 3))]).shape, join([np.zeros((4, 2)), np.ones((1, 2))], "channels").shape
    ((4, 5), (5, 2))
    """
    arrays = [np.asarray(tensor) for tensor in tensors]
    along = AXES[one_of("axis", axis, AXES)]
    if not arrays or any(one.ndim != 2 or one.shape[1 - along] != arrays[0].shape[1 - along] for one in arrays):
        raise ValueError(f"tensors: got {[one.shape for one in arrays]}, allowed are (C, S) that differ in their "
                         f"{axis} only")
    return np.concatenate(arrays, along)


def split(tensor: np.ndarray, sizes: Sequence[int], axis: str = "columns") -> list[np.ndarray]:
    """The arrays that ``join`` put together, by their sizes along the axis; raises ValueError where
    these do not add up to it.

    >>> [part.shape for part in split(np.zeros((4, 5)), [2, 3])]
    [(4, 2), (4, 3)]
    """
    along, array = AXES[one_of("axis", axis, AXES)], np.asarray(tensor)
    if array.ndim != 2 or min(sizes, default=0) < 1 or sum(sizes) != array.shape[along]:
        raise ValueError(f"sizes: got {list(sizes)} of {array.shape}, allowed are numbers that add up to its {axis}")
    return np.split(array, np.cumsum(sizes)[:-1].tolist(), along)
