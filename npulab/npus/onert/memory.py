"""The buffers of a multiplication: what each must hold, by its words."""

from __future__ import annotations

import numpy as np

from npulab.captures.capture import Capture
from npulab.layout import Layout
from npulab.layout.parts import SUM_BYTES
from npulab.npus.kit import memory
from npulab.npus.onert import layouts
from npulab.npus.onert.facts import SIGN
from npulab.npus.onert.words import NAMES, Values

LHS = "coefficients"  # the packed weights and their sums
RHS = "input_rows"  # the packed input rows and their sums
PACKED = {"lhs": LHS, "rhs": RHS}


def buffer_of(capture: Capture, name: str, size: int) -> bytes:
    """A buffer by name; Unsupported without it, ValueError where its words say another size."""
    data = memory.buffer_of(capture, name)
    if len(data) != size:
        raise ValueError(f"capture {capture.name}: buffer {name!r}: got {len(data)} bytes, allowed by its words are "
                         f"{size}")
    return data


def numbers(capture: Capture, name: str, dtype: str, *shape: int) -> np.ndarray:
    """A buffer as little-endian numbers of a shape; raises as ``buffer_of``."""
    count = int(np.prod(shape, dtype=np.int64))
    return np.frombuffer(buffer_of(capture, name, count * np.dtype(dtype).itemsize), dtype).reshape(shape)


def packed_bytes(capture: Capture, v: Values, side: str) -> bytes:
    """The buffer of a packed side: its columns, then a sum for each; raises as ``buffer_of``."""
    return buffer_of(capture, PACKED[side], (v[f"{side}_stride"] + SUM_BYTES) * v[f"{side}_columns"])


def layout_of(v: Values, side: str, chip: str) -> Layout:
    """The layout of a packed side, of its source's type."""
    dtype = NAMES[v[f"{side}_type"]]
    return layouts.packed((v["input_size"], v["units" if side == "lhs" else "batches"]), chip, side, dtype=dtype,
                          zero_point=zero_point(v, side), stride=v[f"{side}_stride"])


def zero_point(v: Values, side: str) -> int:
    """The zero point of a side's source: packed, that of uint8 is less by 128."""
    return int(v[f"{side}_zero_point"] + (SIGN if NAMES[v[f"{side}_type"]] == "uint8" else 0))


def codes_of(capture: Capture, v: Values, side: str) -> np.ndarray:
    """The codes of a side's source ``(columns, depth)``: of each unit, or of each batch.

    Raises as ``buffer_of``, ValueError for fill that is not the zero point and a sum that is not
    its column's.
    """
    data = packed_bytes(capture, v, side)  # of another size, nothing is made of it
    name, layout = PACKED[side], layout_of(v, side, capture.chip)
    codes = layout.unpack(data)
    given, made = np.frombuffer(data, np.uint8), np.frombuffer(again(layout, data, v, side), np.uint8)
    wrong = np.flatnonzero(given != made)
    if len(wrong):
        at, sums = int(wrong[0]), layout.parts[0]
        if at < sums.offset:
            raise ValueError(f"capture {capture.name}: buffer {name!r}, byte {at:#x}: got fill {given[at]:#04x}, "
                             f"allowed is the zero point, {made[at]:#04x}")
        column = (at - sums.offset) // SUM_BYTES
        got, allowed = (int(np.frombuffer(one, "<i4", offset=sums.offset)[column]) for one in (given, made))
        raise ValueError(f"capture {capture.name}: buffer {name!r}, sum of column {column}: got {got}, allowed is "
                         f"{allowed}")
    return codes.T.copy()


def again(layout: Layout, data: bytes, v: Values, side: str) -> bytes:
    """The buffer with its elements unpacked and packed again, fill and sums made anew; bytes
    between strips of columns that nothing is written to stay."""
    out = np.frombuffer(layout.pack(layout.unpack(data)), np.uint8).copy()
    rows, stride, columns = (v[f"{side}_{name}"] for name in ("rows", "stride", "kernel_columns"))
    strips = out[:layout.parts[0].offset].reshape(-1, stride * columns)
    strips[:, rows * columns:] = np.frombuffer(data, np.uint8, strips.size).reshape(strips.shape)[:, rows * columns:]
    return out.tobytes()
