"""The buffers of a multiplication: what each must hold, by its words."""

from __future__ import annotations

import math

import numpy as np

from npulab.layout import Layout
from npulab.layout.parts import SUM_BYTES
from npulab.npus.kit import SIGNED, Capture, Item, buffer_of
from npulab.npus.onert import layouts
from npulab.npus.onert.words import NAMES, Values, values_of

LHS = "coefficients"  # the packed weights and their sums
RHS = "input_rows"  # the packed input rows and their sums
PACKED = {"lhs": LHS, "rhs": RHS}


def numbers(capture: Capture, name: str, dtype: str, *shape: int) -> np.ndarray:
    """A buffer as little-endian numbers of a shape; raises as ``buffer_of``."""
    kind = np.dtype(dtype).newbyteorder("<")
    data = buffer_of(capture, name, math.prod(shape) * kind.itemsize)
    return np.frombuffer(data, kind).reshape(shape)


def packed_bytes(capture: Capture, v: Values, side: str) -> bytes:
    """The buffer of a packed side: its columns, then a sum for each; raises as ``buffer_of``."""
    return buffer_of(
        capture, PACKED[side], (v[f"{side}_stride"] + SUM_BYTES) * v[f"{side}_columns"]
    )


def layout_of(v: Values, side: str, chip: str) -> Layout:
    """The layout of a packed side, of its source's type."""
    shape = v["input_size"], v["units" if side == "lhs" else "batches"]
    return layouts.packed(
        shape,
        chip,
        side,
        dtype=NAMES[v[f"{side}_type"]],
        zero_point=zero_point(v, side),
        stride=v[f"{side}_stride"],
    )


def zero_point(v: Values, side: str) -> int:
    """The zero point of a side's source: packed, that of uint8 is less by 128."""
    return int(v[f"{side}_zero_point"] + SIGNED * (NAMES[v[f"{side}_type"]] == "uint8"))


def codes_of(capture: Capture, v: Values, side: str) -> np.ndarray:
    """The codes of a side's source ``(columns, depth)``: of each unit, or of each batch.

    Raises as ``buffer_of``, ValueError for fill that is not the zero point and a sum that is not
    its column's.
    """
    data = packed_bytes(capture, v, side)  # the size is checked before a layout of it is made
    layout = layout_of(v, side, capture.chip)
    stored, packed = (
        np.frombuffer(part, np.uint8) for part in (data, again(layout, data, v, side))
    )
    wrong = np.flatnonzero(stored != packed)
    if len(wrong):
        at, sums = int(wrong[0]), layout.parts[0].offset
        what, got = f"byte {at:#x}", f"fill {stored[at]:#04x}"
        allowed = f"the zero point, {packed[at]:#04x}"
        if at >= sums:
            column = (at - sums) // SUM_BYTES
            what = f"sum of column {column}"
            got, allowed = (str(part[sums:].view("<i4")[column]) for part in (stored, packed))
        raise ValueError(
            f"capture {capture.name}: buffer {PACKED[side]!r}, {what}: got {got}, "
            f"allowed is {allowed}"
        )
    return layout.unpack(data).T.copy()


def again(layout: Layout, data: bytes, v: Values, side: str) -> bytes:
    """The buffer with its elements unpacked and packed again, fill and sums made anew; bytes
    between strips of columns that nothing is written to stay."""
    rows, stride, columns = (v[f"{side}_{name}"] for name in ("rows", "stride", "kernel_columns"))
    packed = bytearray(layout.pack(layout.unpack(data)))
    for strip in range(0, layout.parts[0].offset if stride > rows else 0, stride * columns):
        gap = slice(strip + rows * columns, strip + stride * columns)
        packed[gap] = data[gap]
    return bytes(packed)


def recode(capture: Capture) -> bytes:
    """The coefficient buffer with the weights unpacked and packed again, fill and sums made anew.

    Raises ValueError where the words make no packed matrix or the buffer has another size.
    """
    v = values_of(capture)
    data = packed_bytes(capture, v, "lhs")
    return again(layout_of(v, "lhs", capture.chip), data, v, "lhs")


def explain(capture: Capture) -> list[Item]:
    """Every byte of the packed weights in order, then the sum of each column.

    A weight has its output channel and, as ``row``, the input it is multiplied with; its value is
    the code as the model has it.  Raises as ``recode``.
    """
    v = values_of(capture)
    data = packed_bytes(capture, v, "lhs")
    layout = layout_of(v, "lhs", capture.chip)
    codes, places, end = layout.unpack(data), layout.index_map(), layout.parts[0].offset
    at = np.full(end, -1)
    at[places.ravel()] = np.arange(places.size)
    strip, filled = (v[f"lhs_{name}"] * v["lhs_kernel_columns"] for name in ("stride", "rows"))
    items: list[Item] = []
    for byte, element in enumerate(at.tolist()):
        if element >= 0:
            row, channel = divmod(element, v["units"])
            value = int(codes[row, channel])
            items.append(Item(8 * byte, 8, "weight", value, channel=channel, row=row, weights=1))
        elif byte % strip < filled:
            items.append(Item(8 * byte, 8, "fill", data[byte]))
        elif byte % strip == filled:
            items.append(Item(8 * byte, 8 * (strip - filled), "other"))
    sums = np.frombuffer(data, "<i4", offset=end).tolist()
    return items + [
        Item(8 * (end + 4 * channel), 32, "sum", value, channel=channel)
        for channel, value in enumerate(sums)
    ]
