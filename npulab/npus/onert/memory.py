"""The buffers of a multiplication, read and checked by its words."""

from __future__ import annotations

import math

import numpy as np

from npulab.layout import Layout
from npulab.layout.parts import SUM_BYTES
from npulab.npus.kit import SIGNED, Capture, Item, buffer_of
from npulab.npus.onert import layouts
from npulab.npus.onert.words import NAMES, Values, values_of

# The buffer LHS has the packed weights and their sums, RHS the packed input rows and their sums.
LHS = "coefficients"
RHS = "input_rows"
PACKED = {"lhs": LHS, "rhs": RHS}


def numbers(capture: Capture, name: str, dtype: str, *shape: int) -> np.ndarray:
    """Return a buffer, read as little-endian numbers ``dtype``, in ``shape``; raises as
    ``buffer_of``."""
    kind = np.dtype(dtype).newbyteorder("<")
    data = buffer_of(capture, name, math.prod(shape) * kind.itemsize)
    return np.frombuffer(data, kind).reshape(shape)


def packed_bytes(capture: Capture, v: Values, side: str) -> bytes:
    """Return the buffer of a packed matrix, "lhs" or "rhs": its columns, then a sum for each
    column. Raises as ``buffer_of``."""
    column = v[f"{side}_stride"] + SUM_BYTES
    return buffer_of(capture, PACKED[side], column * v[f"{side}_columns"])


def layout_of(v: Values, side: str, chip: str) -> Layout:
    """Return the layout of a packed matrix, "lhs" or "rhs". The layout's type and zero point are
    those before packing."""
    columns = v["units"]
    if side == "rhs":
        columns = v["batches"]
    return layouts.packed(
        (v["input_size"], columns),
        chip,
        side,
        dtype=NAMES[v[f"{side}_type"]],
        zero_point=zero_point(v, side),
        stride=v[f"{side}_stride"],
    )


def zero_point(v: Values, side: str) -> int:
    """Return the zero point of a matrix, "lhs" or "rhs", before packing: for uint8 it is 128 more
    than after packing."""
    packed = int(v[f"{side}_zero_point"])
    if NAMES[v[f"{side}_type"]] == "uint8":
        return packed + SIGNED
    return packed


def codes_of(capture: Capture, v: Values, side: str) -> np.ndarray:
    """Return the codes of a packed matrix before packing: ``(units, depth)`` for "lhs", ``(batches,
    depth)`` for "rhs".

    Raises as ``buffer_of``, and ValueError for fill that is not the zero point and for a wrong sum
    of a column.
    """
    data = packed_bytes(capture, v, side)  # checks the size before a layout of this size is made
    layout = layout_of(v, side, capture.chip)
    stored = np.frombuffer(data, np.uint8)
    packed = np.frombuffer(again(layout, data, v, side), np.uint8)
    wrong = np.flatnonzero(stored != packed)
    if len(wrong):
        at = int(wrong[0])
        sums = layout.parts[0].offset
        what = f"byte {at:#x}"
        got = f"fill {stored[at]:#04x}"
        allowed = f"the zero point, {packed[at]:#04x}"
        if at >= sums:
            column = (at - sums) // SUM_BYTES
            what = f"sum of column {column}"
            got = str(stored[sums:].view("<i4")[column])
            allowed = str(packed[sums:].view("<i4")[column])
        raise ValueError(
            f"capture {capture.name}: buffer {PACKED[side]!r}, {what}: got {got}, "
            f"allowed is {allowed}"
        )
    return layout.unpack(data).T.copy()


def again(layout: Layout, data: bytes, v: Values, side: str) -> bytes:
    """Return the bytes of a packed matrix after unpacking and packing its elements again, which
    computes fill and sums anew.

    Gaps between strips (the columns of a block), which ruy does not write, keep their bytes.
    """
    rows, stride = v[f"{side}_rows"], v[f"{side}_stride"]
    columns = v[f"{side}_kernel_columns"]
    packed = bytearray(layout.pack(layout.unpack(data)))
    for strip in range(0, layout.parts[0].offset, stride * columns):
        gap = slice(strip + rows * columns, strip + stride * columns)
        packed[gap] = data[gap]
    return bytes(packed)


def recode(capture: Capture) -> bytes:
    """Return the coefficient buffer after unpacking and packing the weights again, which computes
    fill and sums anew.

    Raises ValueError if words contradict each other or the buffer has another size than they say.
    """
    v = values_of(capture)
    data = packed_bytes(capture, v, "lhs")
    return again(layout_of(v, "lhs", capture.chip), data, v, "lhs")


def explain(capture: Capture) -> list[Item]:
    """Return an item for every byte of the packed weights in order (a single item for a gap between
    strips), then an item for the sum of each column.

    A weight has its output channel and, as ``row``, the number of the input that it multiplies; its
    value is the model's code. Raises as ``recode``.
    """
    v = values_of(capture)
    data = packed_bytes(capture, v, "lhs")
    layout = layout_of(v, "lhs", capture.chip)
    codes = layout.unpack(data)
    places = layout.index_map()
    end = layout.parts[0].offset
    at = np.full(end, -1)
    at[places.ravel()] = np.arange(places.size)
    strip = v["lhs_stride"] * v["lhs_kernel_columns"]
    filled = v["lhs_rows"] * v["lhs_kernel_columns"]
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
    for channel, value in enumerate(sums):
        items.append(Item(8 * (end + 4 * channel), 32, "sum", value, channel=channel))
    return items
