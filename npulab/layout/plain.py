"""Layouts that many NPUs and libraries use, for tile sizes that the caller gives.

In every function, ``stored`` are further fields of ``Layout`` (size, fill, offset, xor, copies,
...).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from npulab.layout.nest import Layout, Loop
from npulab.layout.parts import Sums
from npulab.layout.stored import Shape, bytes_of_places, place_bytes
from npulab.support.refuse import refuse_if


def hwc(shape: Shape, *, dtype: str = "uint8", row_pitch: int = 0, **stored: Any) -> Layout:
    """Return the layout in the order of the tensor's axes, the last axis fastest.

    It fits NHWC activations, OHWI weights, and a matrix by rows. ``row_pitch`` is the bytes from
    row to row (along H of ``(..., H, W, C)``, along the first axis of a matrix); by default there
    are no gaps. Raises ValueError for a pitch smaller than a row.

    >>> hwc((1, 2, 3), row_pitch=8).index_map()
    array([[[0, 1, 2],
            [3, 4, 5]]])
    """
    axes = len(shape)
    pitches = {}
    if axes >= 3:
        pitches[axes - 3] = row_pitch
    elif axes == 2:
        pitches[0] = row_pitch
    return strided(shape, tuple(range(axes)), pitches, dtype, **stored)


def planar(
    shape: Shape,
    *,
    dtype: str = "uint8",
    row_pitch: int = 0,
    plane_pitch: int = 0,
    row_align: int = 1,
    plane_align: int = 1,
    **stored: Any,
) -> Layout:
    """Return the layout CHW or NCHW of a tensor ``(..., H, W, C)``: a plane of rows a channel.

    Pitches are bytes from row to row and from plane to plane. By default a pitch is the size of a
    row or plane, rounded up to a multiple of ``row_align`` or ``plane_align`` bytes. The buffer
    ends one ``plane_pitch`` after the start of its last plane. Raises ValueError for a pitch
    smaller than a row or plane.

    >>> planar((2, 3, 2), dtype="float16", row_align=64).index_map()[1, 2]
    array([ 68, 196])
    """
    h, w, c = _three(shape)
    row_pitch = row_pitch or _rounded_up(w * place_bytes(dtype), row_align)
    plane_pitch = plane_pitch or _rounded_up(h * row_pitch, plane_align)
    *batch, rows, columns, channels = range(len(shape))
    planes = math.prod(shape[:-3]) * c
    stored.setdefault("size", _end(planes * plane_pitch, dtype, stored))
    pitches = {rows: row_pitch, channels: plane_pitch}
    return strided(shape, (*batch, channels, rows, columns), pitches, dtype, **stored)


def nc1hwc2(
    shape: Shape,
    c2: int,
    *,
    dtype: str = "uint8",
    row_pitch: int = 0,
    plane_pitch: int = 0,
    **stored: Any,
) -> Layout:
    """Return the layout NC1HWC2 of a tensor ``(..., H, W, C)``, with channels in tiles of ``c2``.

    Each tile is a plane of pixels, and each pixel has the ``c2`` channels of the tile. A last tile
    that the channels do not fill is completed with fill. On an NPU that addresses its memory in
    atoms, ``c2`` is the number of elements in an atom. Pitches are bytes from row to row and from
    plane (surface) to plane. Raises ValueError for a pitch smaller than a row or plane.

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
    image = -(-c // c2) * plane_pitch
    *batch, rows, columns, channels = range(len(shape))
    loops = []
    for axis in batch:
        loops.append(Loop(axis, 1, image * math.prod(shape[axis + 1 : rows])))
    loops += [
        Loop(channels, c2, plane_pitch),
        Loop(rows, 1, row_pitch),
        Loop(columns, 1, pixel),
        Loop(channels, 1, itemsize),
    ]
    stored.setdefault("size", _end(math.prod(shape[:-3]) * image, dtype, stored))
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
    """Return the layout of weights OHWI in groups of output channels and blocks of input channels.

    A group has ``kernels`` output channels, a block of a group ``channels`` input channels; the
    last group and block may be short, without fill. The loops of a block are, from the outermost:
    rows, columns, output channels of the group, input channels of the block. The end of the buffer
    is rounded up to a multiple of ``align`` bytes.

    >>> print(kernel_groups((20, 3, 3, 12), 16, 8, align=128))
    O1I1HWO2I2, O2=16, I2=8, packed: (20, 3, 3, 12) uint8, 2176 bytes
    """
    if kernels < 1 or channels < 1 or align < 1:
        raise ValueError(
            f"kernels, channels, align: got {kernels}, {channels}, {align}, allowed is 1 or more"
        )
    loops = (Loop(0, kernels), Loop(3, channels), Loop(1), Loop(2), Loop(0), Loop(3))
    size = _end(math.prod(shape) * place_bytes(dtype), dtype, stored)
    stored.setdefault("size", _rounded_up(size, align))
    return Layout(shape, loops, dtype=dtype, **stored)


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
    """Return the layout of a matrix ``(R, C)`` in blocks of ``rows`` times ``columns`` elements.

    All blocks of the first ``columns`` columns come first, from top to bottom, then those of the
    next ``columns`` columns. A block is stored column by column. Blocks are completed with
    ``fill``, which is a stored element. With ``sums``, the sum of each column, with its fill, is
    stored as an int32 after all blocks.

    >>> packed_blocks((2, 3), 2, 2).index_map()
    array([[0, 2, 4],
           [1, 3, 5]])
    """
    refuse_if(rows < 1 or columns < 1, "rows, columns", f"{rows}, {columns}", "is 1 or more")
    itemsize = place_bytes(dtype)
    high = _rounded_up(shape[0], rows)
    wide = _rounded_up(shape[1], columns)
    loops = (
        Loop(1, columns, itemsize * high * columns),
        Loop(0, rows, itemsize * rows * columns),
        Loop(1, 1, itemsize * rows),
        Loop(0, 1, itemsize),
    )
    end = _end(itemsize * high * wide, dtype, stored)
    parts = list(stored.pop("parts", ()))
    if sums:
        parts.append(Sums(end, 1, wide, high - shape[0], high))
    for part in parts:
        end = max(end, part.end)
    stored.setdefault("size", end)
    return Layout(shape, loops, dtype=dtype, fill=fill, parts=tuple(parts), **stored)


def only(layout: Layout, axis: int, start: int, stop: int) -> Layout:
    """Return a layout with only the indices ``start`` to ``stop - 1`` of an axis in the buffer.

    The buffer keeps its size. The element at index ``start`` lies where ``layout`` has index 0. For
    example, ``only(planar(shape), 2, 0, 1)`` has the first channel alone.
    """
    window = list(layout.window)
    window[axis] = start, stop
    return replace(layout, window=tuple(window))


def strided(
    shape: Shape,
    order: tuple[int, ...],
    pitches: dict[int, int] | None = None,
    dtype: str = "uint8",
    **stored: Any,
) -> Layout:
    """Return a layout with the axes in ``order``, from the outermost to the innermost.

    ``pitches`` has, by axis, the bytes from an index of the axis to the next. A pitch that is 0 or
    left out becomes the size of all inner axes. Raises ValueError for an order that does not have
    each axis once, and for a pitch below the size of the inner axes.
    """
    if sorted(order) != list(range(len(shape))):
        raise ValueError(
            f"order: got {order}, allowed are the axes 0 to {len(shape) - 1}, each once"
        )
    pitches = pitches or {}
    size = place_bytes(dtype)
    loops: list[Loop] = []
    for axis in reversed(order):
        pitch = _pitch(f"pitch of axis {axis}", pitches.get(axis, 0), size)
        loops.insert(0, Loop(axis, 1, pitch))
        size = pitch * shape[axis]
    return Layout(shape, tuple(loops), dtype=dtype, **stored)


def _end(size: int, dtype: str, stored: dict[str, Any]) -> int:
    """Return the bytes of a buffer that ends ``size`` places after the offset of its layout."""
    return bytes_of_places(stored.get("offset", 0) + size, dtype)


def _pitch(name: str, given: int, least: int) -> int:
    """Return the pitch ``given``, or ``least`` if it is 0.

    Raises ValueError for a pitch below ``least``; ``name`` is the pitch's name.
    """
    refuse_if(given and given < least, name, f"{given} bytes", f"is {least} or more")
    return given or least


def _rounded_up(size: int, align: int) -> int:
    return -(-size // align) * align


def _three(shape: Shape) -> tuple[int, int, int]:
    refuse_if(len(shape) < 3, "shape", shape, "is (..., H, W, C)")
    return shape[-3], shape[-2], shape[-1]
