"""Layouts that many NPUs and libraries use; a tile size belongs to who uses it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from npulab.layout.nest import Layout, Loop
from npulab.layout.parts import Sums
from npulab.layout.stored import bytes_of_places, place_bytes
from npulab.support.refuse import refuse_if


def hwc(
    shape: tuple[int, ...], *, dtype: str = "uint8", row_pitch: int = 0, **stored: Any
) -> Layout:
    """The order of the tensor itself, last axis fastest: NHWC activations, OHWI weights, a matrix
    by rows.

    ``row_pitch`` are the bytes between rows, of ``(..., H, W, C)`` and of a matrix; left out, there
    are no gaps.  ``stored`` are further fields of ``Layout``: size, fill, offset, xor, copies, ...
    Raises ValueError for a pitch below what a row takes.

    >>> hwc((1, 2, 3), row_pitch=8).index_map()
    array([[[0, 1, 2],
            [3, 4, 5]]])
    """
    order = tuple(range(len(shape)))
    if len(shape) >= 3:
        pitches = {len(shape) - 3: row_pitch}
    elif len(shape) == 2:
        pitches = {0: row_pitch}
    else:
        pitches = {}
    return strided(shape, order, pitches, dtype, **stored)


def planar(
    shape: tuple[int, ...],
    *,
    dtype: str = "uint8",
    row_pitch: int = 0,
    plane_pitch: int = 0,
    row_align: int = 1,
    plane_align: int = 1,
    **stored: Any,
) -> Layout:
    """A plane of rows for each channel of a tensor ``(..., H, W, C)``: CHW, NCHW.

    Pitches are bytes from one row or plane to the next; left out, what a row or plane takes rounded
    up to its ``align``.  The buffer ends with the pitch of its last plane. Raises ValueError for a
    pitch below what a row or plane takes.

    >>> planar((2, 3, 2), dtype="float16", row_align=64).index_map()[1, 2]
    array([ 68, 196])
    """
    h, w, c = _three(shape)
    row_pitch = row_pitch or _up(w * place_bytes(dtype), row_align)
    plane_pitch = plane_pitch or _up(h * row_pitch, plane_align)
    last = len(shape) - 1
    order = (*range(last - 2), last, last - 2, last - 1)
    size = bytes_of_places(stored.get("offset", 0) + math.prod(shape[:-3]) * c * plane_pitch, dtype)
    stored = {"size": size, **stored}
    return strided(shape, order, {last - 2: row_pitch, last: plane_pitch}, dtype, **stored)


def nc1hwc2(
    shape: tuple[int, ...],
    c2: int,
    *,
    dtype: str = "uint8",
    row_pitch: int = 0,
    plane_pitch: int = 0,
    **stored: Any,
) -> Layout:
    """Channels of a tensor ``(..., H, W, C)`` in tiles of ``c2``: a plane of pixels for each tile,
    ``c2`` together.

    A last tile that the channels do not fill is completed with fill.  Of atoms of memory ``c2`` is
    how many elements one holds; pitches are bytes from one row or plane (surface) to the next.
    Raises ValueError for a pitch below what a row or plane takes.

    >>> nc1hwc2((1, 2, 3), 2).index_map()
    array([[[0, 1, 4],
            [2, 3, 6]]])
    """
    h, w, c = _three(shape)
    refuse_if(c2 < 1, "c2", c2, "is 1 or more")
    itemsize = place_bytes(dtype)
    pixel = c2 * itemsize
    row_pitch = _pitch("row_pitch", row_pitch, w * pixel)
    plane_pitch = _pitch("plane_pitch", plane_pitch, h * row_pitch)
    last = len(shape) - 1
    image = -(-c // c2) * plane_pitch
    loops = [
        Loop(axis, 1, image * math.prod(shape[axis + 1 : last - 2])) for axis in range(last - 2)
    ]
    loops += [
        Loop(last, c2, plane_pitch),
        Loop(last - 2, 1, row_pitch),
        Loop(last - 1, 1, pixel),
        Loop(last, 1, itemsize),
    ]
    stored = {
        "size": bytes_of_places(stored.get("offset", 0) + math.prod(shape[:-3]) * image, dtype),
        **stored,
    }
    return Layout(shape, tuple(loops), dtype=dtype, **stored)


def kernel_groups(
    shape: tuple[int, int, int, int],
    kernels: int,
    channels: int,
    *,
    dtype: str = "uint8",
    align: int = 1,
    **stored: Any,
) -> Layout:
    """Weights OHWI in groups of ``kernels``, in each blocks of ``channels``; groups and blocks that
    are not full are short, without fill.

    In a block come rows, columns, the kernels of the group, the channels of the block.  The end of
    the buffer is rounded up to ``align`` bytes.

    >>> print(kernel_groups((20, 3, 3, 12), 16, 8, align=128))
    O1I1HWO2I2, O2=16, I2=8, packed: (20, 3, 3, 12) uint8, 2176 bytes
    """
    if kernels < 1 or channels < 1 or align < 1:
        raise ValueError(
            f"kernels, channels, align: got {kernels}, {channels}, {align}, allowed is 1 or more"
        )
    loops = (Loop(0, kernels), Loop(3, channels), Loop(1), Loop(2), Loop(0), Loop(3))
    size = _up(
        bytes_of_places(stored.get("offset", 0) + math.prod(shape) * place_bytes(dtype), dtype),
        align,
    )
    return Layout(shape, loops, dtype=dtype, **{"size": size, **stored})


def packed_blocks(
    shape: tuple[int, int],
    rows: int,
    columns: int,
    *,
    dtype: str = "uint8",
    sums: bool = False,
    fill: int = 0,
    **stored: Any,
) -> Layout:
    """A matrix ``(R, C)`` in blocks of ``rows`` times ``columns``: blocks down a strip of columns,
    then the next strip; in a block by columns.

    Blocks are completed with ``fill`` (as stored).  With ``sums`` an int32 for each column follows,
    fill included.

    >>> packed_blocks((2, 3), 2, 2).index_map()
    array([[0, 2, 4],
           [1, 3, 5]])
    """
    refuse_if(rows < 1 or columns < 1, "rows, columns", f"{rows}, {columns}", "is 1 or more")
    (r, c), itemsize = shape, place_bytes(dtype)
    high, wide = _up(r, rows), _up(c, columns)
    loops = (
        Loop(1, columns, itemsize * high * columns),
        Loop(0, rows, itemsize * rows * columns),
        Loop(1, 1, itemsize * rows),
        Loop(0, 1, itemsize),
    )
    end = bytes_of_places(stored.get("offset", 0) + itemsize * high * wide, dtype)
    parts = (*stored.pop("parts", ()), *((Sums(end, 1, wide, high - r, high),) if sums else ()))
    size = max([end, *(part.offset + part.size for part in parts)])
    return Layout(shape, loops, dtype=dtype, fill=fill, parts=parts, **{"size": size, **stored})


def only(layout: Layout, axis: int, start: int, stop: int) -> Layout:
    """The same layout where only the indices ``start`` to ``stop - 1`` of an axis lie in the
    buffer, which keeps its size.

    Places are those of ``layout`` counted from ``start``: of rows and planes the first channel
    alone is ``only(planar(shape), 2, 0, 1)``.
    """
    window = tuple((start, stop) if at == axis else ends for at, ends in enumerate(layout.window))
    return replace(layout, window=window)


def strided(
    shape: tuple[int, ...],
    order: tuple[int, ...],
    pitches: dict[int, int] | None = None,
    dtype: str = "uint8",
    **stored: Any,
) -> Layout:
    """Axes in an ``order`` from the outermost to the innermost; ``pitches`` are bytes between steps
    of an axis, where they are more than what is inside takes.

    Raises ValueError for an order that is no permutation, and pitches too small.
    """
    if sorted(order) != list(range(len(shape))):
        raise ValueError(
            f"order: got {order}, allowed are the axes 0 to {len(shape) - 1}, each once"
        )
    step, loops = place_bytes(dtype), []
    for axis in reversed(order):
        pitch = _pitch(f"pitch of axis {axis}", (pitches or {}).get(axis, 0), step)
        loops.append(Loop(axis, 1, pitch))
        step = pitch * shape[axis]
    return Layout(shape, tuple(loops[::-1]), dtype=dtype, **stored)


def _pitch(name: str, given: int, least: int) -> int:
    refuse_if(given and given < least, name, f"{given} bytes", f"is {least} or more")
    return given or least


def _up(size: int, align: int) -> int:
    return -(-size // align) * align


def _three(shape: tuple[int, ...]) -> tuple[int, int, int]:
    refuse_if(len(shape) < 3, "shape", shape, "is (..., H, W, C)")
    return shape[-3], shape[-2], shape[-1]
