"""How ruy packs a matrix: blocks of a path's kernels, filled up, and a sum for each column."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

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
    """The layout of a packed 8-bit matrix ``(depth, columns)`` of a path: elements, then an int32
    sum for each column.

    ``side`` is "lhs" (weights, their columns output channels) or "rhs" (input rows as columns).
    ``dtype`` is the type of the source, int8, or uint8, which is stored as int8 by XOR 0x80;
    ``zero_point`` is the source's, and as packed the fill, which the sums count.  ``stride`` are
    elements from column to column, 0 as many as there are rows. Source: google/ruy ruy/mat.h,
    kernel_arm.h, kernel_x86.h. Raises ValueError for a zero point that is no code, LookupError for
    an unknown path, side or type.

    >>> packed((3, 2), "avx2").at(2, 1)
    np.int64(6)
    """
    facts = _facts(chip, side)
    if dtype not in ("int8", "uint8"):
        raise LookupError(f"dtype: got {dtype!r}, allowed is int8 or uint8")
    if dtype == "uint8":
        low = 0
    else:
        low = -SIGNED
    if not low <= zero_point < low + 2 * SIGNED:
        raise ValueError(
            f"zero_point: got {zero_point}, allowed with {dtype} is {low} to {low + 2 * SIGNED - 1}"
        )
    xor = 0
    if dtype == "uint8":
        xor = SIGNED
    layout = packed_blocks(
        shape,
        facts[f"{side}_kernel_rows"],
        facts[f"{side}_kernel_columns"],
        dtype=dtype,
        sums=True,
        fill=zero_point % (2 * SIGNED) ^ xor,
        xor=xor,
    )
    return _apart(
        layout, shape, facts[f"{side}_kernel_rows"], facts[f"{side}_kernel_columns"], stride
    )


def packed_float(
    shape: tuple[int, int], chip: str, side: str = "lhs", *, stride: int = 0
) -> Layout:
    """The layout of a packed float32 matrix ``(depth, columns)`` of a path: blocks one deep, filled
    with 0, no sums.

    ``side`` and ``stride`` as in ``packed``.  Raises LookupError for an unknown path or side.

    >>> packed_float((2, 9), "avx2").size
    128
    """
    columns = _facts(chip, side)[f"float_{side}_columns"]
    return _apart(packed_blocks(shape, 1, columns, dtype="float32"), shape, 1, columns, stride)


def apart(rows: int, itemsize: int = 1) -> int:
    """Elements from column to column of so many rows where aliasing is avoided: 64 more where these
    are whole KiB.

    >>> apart(1008), apart(1024), apart(256, 4)
    (1008, 1088, 320)
    """
    if rows * itemsize % ALIASING_BYTES:
        return rows
    return rows + APART


def _facts(chip: str, side: str) -> Mapping[str, int]:
    refuse_if(chip not in CHIPS, "chip", f"{chip!r}", f"is one of {', '.join(CHIPS)}", LookupError)
    refuse_if(side not in SIDES, "side", f"{side!r}", f"is one of {', '.join(SIDES)}", LookupError)
    return CHIPS[chip]


def _apart(layout: Layout, shape: tuple[int, int], rows: int, columns: int, stride: int) -> Layout:
    """The layout with strips of columns as far apart as the stride has them, and the sums behind
    the last."""
    high, wide, size = up(shape[0], rows), up(shape[1], columns), layout.itemsize
    if stride in (0, high):
        return layout
    refuse_if(stride < high, "stride", stride, f"with {high} rows is that or more")
    end = stride * wide * size
    loops = (Loop(1, columns, stride * columns * size), *layout.loops[1:])
    parts = tuple(replace(part, offset=end) for part in layout.parts)
    return replace(layout, loops=loops, parts=parts, size=end + sum(part.size for part in parts))
