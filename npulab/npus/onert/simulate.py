"""The simulated device: the kernels of a path, from the words of a call and bytes to the output's
bytes.

It shares the tables and the kit with the rest and no other code, so that its agreement with lift
and emulation means something.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from npulab.npus.kit import Capture, Hang, as_codes, buffer_of, hang_if, known, only_job, wrapped
from npulab.npus.onert.facts import BLOCK, CHIPS, EXPECTED, MOST_BYTES

HYBRID, QUANTIZED = 0, 1
TYPES: dict[int, np.dtype[Any]] = {1: np.dtype(np.uint8), 2: np.dtype(np.int8)}
BOUNDS = {0: (-np.inf, np.inf), 1: (0.0, np.inf), 2: (-1.0, 1.0), 3: (0.0, 6.0)}
MOST_PRODUCTS = 2**30
# values that the quantizing loop takes at a time; what is left over is rounded in another way (L)
VECTOR = 8
F = np.float32
Values = Mapping[str, Any]


def simulate(capture: Capture) -> bytes:
    """The output buffer after the capture's call ran: float32 of a hybrid layer, else codes, batch
    by batch.

    Rows that are not prepacked are quantized and packed from ``input``.  Raises Hang, with the
    reason, for what would fault: sizes of 0, blocks that do not fill their matrix, reads past the
    end of a buffer; Unsupported for other jobs and for buffers that are missing.
    """
    v = only_job(capture, BLOCK, "the simulated device runs")
    facts = next((facts for facts in CHIPS.values() if facts["path"] == v["path"]), None)
    if facts is None:
        raise Hang(f"path is {v['path']:#x}, which no kernels are for")
    _check(v)
    if v["operation"] == QUANTIZED:
        return _quantized(capture, v, bool(facts.get("one_rounding")))
    return _hybrid(capture, v)


def _hybrid(capture: Capture, v: Values) -> bytes:
    scales = _numbers(capture, "weight_scales", "<f4", v["units"] if v["per_channel"] else 1)
    biases = _numbers(capture, "biases", "<f4", v["units"])
    out = _result(v, np.dtype("<f4"))
    if v["rhs_is_prepacked"]:
        rows, row_scales = (
            _prepacked(capture, v),
            _numbers(capture, "input_scales", "<f4", v["batches"]),
        )
        nothing = not any(bool(row.any()) for row in rows[: v["batches"]])
    else:
        rows, row_scales, nothing = _measured(capture, v)
    low, high = (F(bound) for bound in BOUNDS[v["activation"]])
    for unit, sums in enumerate(_products(capture, v, rows, 0)):
        bias, total = biases[unit], _clamped(wrapped(sums), v).astype(F)
        with np.errstate(over="ignore", invalid="ignore"):
            scale = row_scales * scales[unit % len(scales)]
            if v["fused_multiply_add"]:
                values = _fused(total, scale, bias)
            else:
                values = total * scale + bias
        if nothing:
            values = np.full(v["batches"], bias)
        values = np.where(values <= low, low, np.where(values >= high, high, values))
        out[unit :: v["dst_stride"]][: v["batches"]] = values
    return out.tobytes()


def _quantized(capture: Capture, v: Values, one_rounding: bool) -> bytes:
    count = 1
    if v["per_channel"]:
        count = v["units"]
    biases, fixed, exponents = (
        _numbers(capture, name, "<i4", size)
        for name, size in (("biases", v["units"]), ("multipliers", count), ("exponents", count))
    )
    known(v, EXPECTED["codes"])
    out = _result(v, TYPES[v["dst_type"]])
    if v["rhs_is_prepacked"]:
        rows = _prepacked(capture, v)
    else:
        rows = _read_codes(capture, v)
    least, most = int(np.iinfo(out.dtype).min), int(np.iinfo(out.dtype).max)
    for unit, sums in enumerate(_products(capture, v, rows, v["rhs_zero_point"])):
        multiplier, exponent = int(fixed[unit % count]), int(exponents[unit % count])
        if not -31 <= exponent <= 30:
            raise Hang(
                f"exponent {exponent} of unit {unit} is outside of what a shift does, -31 to 30"
            )
        total = wrapped(sums + int(biases[unit]))
        values = (_once if one_rounding else _twice)(total, multiplier, exponent)
        values = _clamped(values + v["dst_zero_point"], v)
        out[unit :: v["dst_stride"]][: v["batches"]] = np.maximum(np.minimum(values, most), least)
    return out.tobytes()


def _once(total: np.ndarray, multiplier: int, exponent: int) -> np.ndarray:
    """The product shifted right once, ties up."""
    shift = 31 - exponent
    return (total * multiplier + 2**shift // 2) // 2**shift


def _twice(total: np.ndarray, multiplier: int, exponent: int) -> np.ndarray:
    """The high half of the doubled product, then what is left of the shift; ties up in both."""
    high = (wrapped(total * 2 ** max(exponent, 0)) * multiplier + 2**30) // 2**31
    unit = 2 ** max(-exponent, 0)
    return (high + unit // 2) // unit


def _fused(total: np.ndarray, scale: np.ndarray, bias: np.float32) -> np.ndarray:
    """``total * scale + bias`` rounded once: the float64 sum, made odd where it is not exact, keeps
    the last rounding from being a second one."""
    product, other = total.astype(np.float64) * scale.astype(np.float64), float(bias)
    whole = product + other
    part = whole - product
    rest = (product - (whole - part)) + (other - part)
    even = np.isfinite(whole) & (rest != 0) & (whole.view(np.uint64) % 2 == 0)
    return np.where(even, np.nextafter(whole, np.where(rest > 0, np.inf, -np.inf)), whole).astype(F)


def _products(capture: Capture, v: Values, rows: np.ndarray, rhs_zero: int) -> Iterator[np.ndarray]:
    """Sums ``(batches,) int64`` of each unit, less what zero points add, strip of columns by
    strip."""
    data, stride, wide = (
        buffer_of(capture, "coefficients"),
        v["lhs_stride"],
        v["lhs_kernel_columns"],
    )
    count = 0
    if rhs_zero:
        count = v["lhs_columns"]
    sums = _numbers(capture, "coefficients", "<i4", count, start=stride * count)
    lhs_zero, rows = v["lhs_zero_point"], rows[: v["batches"]]
    from_zeros = lhs_zero * (rhs_zero * v["lhs_rows"] - rows.sum(1, dtype=np.int64))
    for strip in range(0, v["units"], wide):
        columns = _strip(data, strip * stride, v, "lhs")
        dots = np.empty((wide, v["batches"]), np.int64)
        for batch in range(0, v["batches"], v["rhs_kernel_columns"]):
            few = rows[batch : batch + v["rhs_kernel_columns"]].astype(np.int64)
            dots[:, batch : batch + len(few)] = columns @ few.T
        for place in range(min(wide, v["units"] - strip)):
            yield (
                dots[place] + from_zeros - (rhs_zero * int(sums[strip + place]) if rhs_zero else 0)
            )


def _strip(data: bytes, at: int, v: Values, side: str) -> np.ndarray:
    """``(kernel_columns, rows) int64`` of the strip of columns at a byte, block by block."""
    high, wide, rows = v[f"{side}_kernel_rows"], v[f"{side}_kernel_columns"], v[f"{side}_rows"]
    if at + rows * wide > len(data):
        raise Hang(
            f"{side}: reads {rows * wide} bytes at byte {at:#x}, the buffer ends at {len(data):#x}"
        )
    out = np.empty((wide, rows), np.int64)
    for row in range(0, rows, high):
        block = np.frombuffer(data, np.int8, high * wide, at + row * wide)
        if v[f"{side}_kernel_order"]:
            turned = block.reshape(high, wide).T
        else:
            turned = block.reshape(wide, high)
        out[:, row : row + high] = turned
    return out


def _prepacked(capture: Capture, v: Values) -> np.ndarray:
    """Packed input rows as they lie, ``(rhs_columns, rhs_rows) int8``."""
    data, wide = buffer_of(capture, "input_rows"), v["rhs_kernel_columns"]
    out = np.empty((v["rhs_columns"], v["rhs_rows"]), np.int8)
    for strip in range(0, v["rhs_columns"], wide):
        out[strip : strip + wide] = _strip(data, strip * v["rhs_stride"], v, "rhs")
    return out


def _measured(capture: Capture, v: Values) -> tuple[np.ndarray, np.ndarray, bool]:
    """(rows of codes, a scale for each, whether the whole input is 0) of the float32 input."""
    x = _numbers(capture, "input", "<f4", v["batches"], v["input_size"])
    rows, scales = _filled(v), np.ones(v["batches"], F)
    body = v["input_size"] - v["input_size"] % VECTOR
    for batch, row in enumerate(x):
        most = F(max(F(row.max()), F(-row.min())))
        if most == 0:
            rows[batch, : len(row)] = 0
            continue
        with np.errstate(over="ignore"):
            scales[batch], inverse = most / F(127), F(127) / most
        if not np.isfinite(most) or not np.isfinite(inverse):
            raise Hang(
                f"input: batch {batch} has a largest size of {most}, of which no scale is made"
            )
        scaled = row * inverse
        near = scaled.astype(np.float64) + np.where(scaled >= 0, 0.5, -0.5)
        near[:body] = scaled[:body] + np.where(scaled[:body] >= 0, F(0.5), F(-0.5))
        rows[batch, : len(row)] = np.trunc(np.minimum(np.maximum(near, -127), 127))
    return rows, scales, not x.any()


def _read_codes(capture: Capture, v: Values) -> np.ndarray:
    """Rows of codes as the call packs them, ``(rhs_columns, rhs_rows) int8``."""
    codes = _numbers(capture, "input", TYPES[v["rhs_type"]].str, v["batches"], v["input_size"])
    rows = _filled(v)
    rows[: v["batches"], : v["input_size"]] = as_codes(codes, "int8")
    return rows


def _filled(v: Values) -> np.ndarray:
    zero = v["rhs_zero_point"]
    hang_if(not -128 <= zero <= 127, f"rhs_zero_point is {zero}, a packed byte holds -128 to 127")
    return np.full((v["rhs_columns"], v["rhs_rows"]), zero, np.int8)


def _result(v: Values, dtype: np.dtype[Any]) -> np.ndarray:
    return np.zeros((v["batches"] - 1) * v["dst_stride"] + v["units"], dtype)


def _clamped(values: np.ndarray, v: Values) -> np.ndarray:
    return np.maximum(np.minimum(values, v["clamp_max"]), v["clamp_min"])


def _numbers(capture: Capture, name: str, dtype: str, *shape: int, start: int = 0) -> np.ndarray:
    """Little-endian numbers of a buffer from a byte on; Hang if it ends before them."""
    data, count = buffer_of(capture, name), math.prod(shape)
    size = count * np.dtype(dtype).itemsize
    if start + size > len(data):
        raise Hang(
            f"{name}: reads {size} bytes at byte {start:#x}, the buffer ends at {len(data):#x}"
        )
    return np.frombuffer(data, dtype, count, start).reshape(shape)


def _check(v: Values) -> None:
    """Raise Hang for sizes and modes that no kernel takes."""
    known(v, EXPECTED["device"])
    batches, units, stride, depth = v["batches"], v["units"], v["dst_stride"], v["lhs_rows"]
    for side, count in (("lhs", units), ("rhs", batches)):
        rows, columns, pitch, high, wide = (
            v[f"{side}_{name}"]
            for name in ("rows", "columns", "stride", "kernel_rows", "kernel_columns")
        )
        if rows % high or columns % wide or v[f"{side}_order"]:
            raise Hang(
                f"{side}: {rows} x {columns} are not whole blocks of {high} x {wide}, in columns"
            )
        if count > columns or v["input_size"] > rows or pitch < rows:
            raise Hang(
                f"{side}: {v['input_size']} x {count} do not fit {rows} x {columns} with a "
                f"stride of {pitch}"
            )
        strip = 8 * wide * max(rows, batches)  # as the simulated kernel holds it
        if max(columns * pitch, strip) > MOST_BYTES:
            raise Hang(
                f"{side}: {columns} columns of {pitch} bytes, or {strip} bytes for a strip of "
                f"them, do not fit {MOST_BYTES} bytes"
            )
    hang_if(depth != v["rhs_rows"], f"lhs_rows is {depth} and rhs_rows {v['rhs_rows']}")
    if 4 * ((batches - 1) * stride + units) > MOST_BYTES:
        raise Hang(
            f"the output of {batches} batches {stride} apart does not fit {MOST_BYTES} bytes"
        )
    if batches * units * depth > MOST_PRODUCTS:
        raise Hang(f"{batches} x {units} x {depth} are more than {MOST_PRODUCTS} products")
