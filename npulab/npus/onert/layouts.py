"""The layouts of ruy's packed matrices. A matrix is filled up to whole blocks, of the size that the
kernels of a path read; a packed 8-bit matrix ends with a sum for each column."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from npulab.layout import Layout, Loop, packed_blocks
from npulab.npus.kit import SIGNED, refuse_if, up
from npulab.npus.onert.facts import ALIASING_BYTES, APART, CHIPS, SIDES


def packed(
    shape: tuple[int, int],
    chip: str,
    side: str = "lhs",
    *,
    dtype: str = "int8",
    zero_point: int = 0,
    stride: int = 0,
) -> Layout:
    """Return the layout of an 8-bit matrix ``(depth, columns)`` as ruy packs it on a path: its
    elements, then an int32 sum for each column.

    ``side`` is "lhs" (weights: columns are output channels) or "rhs" (input rows as columns).
    ``dtype`` is the type before packing: int8, or uint8, which is stored as int8 by XOR 0x80.
    ``zero_point`` is the zero point before packing; it is also the fill, which the sums include.
    ``stride`` is the number of elements from column to column, 0 for the number of packed rows.
    Source: google/ruy ruy/mat.h, kernel_arm.h, kernel_x86.h. Raises ValueError for a zero point
    outside of ``dtype`` and for a ``stride`` that is too small, LookupError for an unknown path,
    side or type.

    >>> packed((3, 2), "avx2").at(2, 1)
    np.int64(6)
    """
    facts = _facts(chip, side)
    if dtype not in ("int8", "uint8"):
        raise LookupError(f"dtype: got {dtype!r}, allowed is int8 or uint8")
    codes = np.iinfo(dtype)
    if not codes.min <= zero_point <= codes.max:
        raise ValueError(
            f"zero_point: got {zero_point}, allowed with {dtype} is {codes.min} to {codes.max}"
        )
    rows, columns = facts[f"{side}_kernel_rows"], facts[f"{side}_kernel_columns"]
    xor = SIGNED + codes.min
    fill = zero_point % (2 * SIGNED) ^ xor
    layout = packed_blocks(shape, rows, columns, dtype=dtype, sums=True, fill=fill, xor=xor)
    return _apart(layout, shape, rows, columns, stride)


def packed_float(
    shape: tuple[int, int], chip: str, side: str = "lhs", *, stride: int = 0
) -> Layout:
    """Return the layout of a float32 matrix ``(depth, columns)`` as ruy packs it on a path: blocks
    of a single row, filled with 0, without sums.

    ``side`` and ``stride`` are as in ``packed``. Raises LookupError for an unknown path or side.

    >>> packed_float((2, 9), "avx2").size
    128
    """
    columns = _facts(chip, side)[f"float_{side}_columns"]
    layout = packed_blocks(shape, 1, columns, dtype="float32")
    return _apart(layout, shape, 1, columns, stride)


def apart(rows: int, itemsize: int = 1) -> int:
    """Return the number of elements from column to column if ruy avoids aliasing: the number of
    rows, or 64 more if a column's bytes are a multiple of 1024.

    >>> apart(1008), apart(1024), apart(256, 4)
    (1008, 1088, 320)
    """
    if rows * itemsize % ALIASING_BYTES:
        return rows
    return rows + APART


def _facts(chip: str, side: str) -> Mapping[str, int]:
    """Return the facts of a path; LookupError for an unknown path or side."""
    refuse_if(chip not in CHIPS, "chip", f"{chip!r}", f"is one of {', '.join(CHIPS)}", LookupError)
    refuse_if(side not in SIDES, "side", f"{side!r}", f"is one of {', '.join(SIDES)}", LookupError)
    return CHIPS[chip]


def _apart(layout: Layout, shape: tuple[int, int], rows: int, columns: int, stride: int) -> Layout:
    """Return the layout with columns ``stride`` elements apart, and the sums after the last strip
    (the columns of a block). ``rows`` and ``columns`` are the size of a block. Raises ValueError
    for a stride below the number of packed rows.
    """
    high = up(shape[0], rows)
    if stride in (0, high):
        return layout
    refuse_if(stride < high, "stride", stride, f"with {high} rows is that or more")
    pitch = stride * layout.itemsize
    end = up(shape[1], columns) * pitch
    loops = (Loop(1, columns, columns * pitch), *layout.loops[1:])
    parts = tuple(replace(part, offset=end) for part in layout.parts)
    size = end + sum(part.size for part in parts)
    return replace(layout, loops=loops, parts=parts, size=size)
