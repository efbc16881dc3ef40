"""The simulated device: it computes the output's bytes from the words of a call and bytes, as the
kernels of a path do.

It shares tables and kit with the other modules, and no other code, so that its agreement with lift
and emulation proves something.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from math import inf
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray as Array

from npulab.npus.kit import Capture, Hang, as_codes, buffer_of, hang_if, known, only_job, wrapped
from npulab.npus.onert.facts import BLOCK, CHIPS, EXPECTED, MOST_BYTES

HYBRID, QUANTIZED = 0, 1
TYPES: dict[int, np.dtype[Any]] = {1: np.dtype(np.uint8), 2: np.dtype(np.int8)}
# Key: the code of an activation. Value: the lower and the upper bound of the output.
BOUNDS = {0: (-inf, inf), 1: (0.0, inf), 2: (-1.0, 1.0), 3: (0.0, 6.0)}
MOST_PRODUCTS = 2**30
# The loop that quantizes a row takes this many values at a time; the last values, which are fewer,
# are rounded in another way (source L).
VECTOR = 8
F = np.float32
# By side: the name of the buffer that holds its packed matrix.
BUFFERS = {"lhs": "coefficients", "rhs": "input_rows"}
Values = Mapping[str, Any]


class PackedMatrix(NamedTuple):
    """The fields of a packed matrix: ``side`` is "lhs" (weights) or "rhs" (input rows). ``rows``
    and ``columns`` are its size, ``kernel_rows`` and ``kernel_columns`` the size of a block.
    ``stride`` is the number of elements from one column to the next.
    """

    side: str
    rows: int
    columns: int
    stride: int
    kernel_rows: int
    kernel_columns: int
    order: int
    kernel_order: int
    zero_point: int

    @classmethod
    def of(cls, v: Values, side: str) -> PackedMatrix:
        return cls(side, *(v[f"{side}_{name}"] for name in cls._fields[1:]))


def simulate(capture: Capture) -> bytes:
    """Return the output buffer after the capture's call ran, batch by batch: float32 of a hybrid
    layer, codes of a quantized layer.

    Input rows that are not prepacked are quantized and packed from the buffer ``input``. Raises
    Hang, with the reason, for a call that would fault, for example for sizes of 0, blocks that do
    not fill their matrix, or reads past the end of a buffer. Raises Unsupported for other jobs and
    for missing buffers.
    """
    v = only_job(capture, BLOCK, "the simulated device runs")
    paths = {facts["path"]: facts for facts in CHIPS.values()}
    hang_if(v["path"] not in paths, f"path is {v['path']:#x}, for which there are no kernels")
    _check_call(v)
    if v["operation"] == QUANTIZED:
        return _quantized(capture, v, bool(paths[v["path"]].get("one_rounding")))
    return _hybrid(capture, v)


def _check_call(v: Values) -> None:
    """Raise Hang for sizes and modes of a call that no kernel takes."""
    known(v, EXPECTED["device"])
    batches, units, stride, depth = v["batches"], v["units"], v["dst_stride"], v["lhs_rows"]
    _check_side(v, PackedMatrix.of(v, "lhs"), units)
    _check_side(v, PackedMatrix.of(v, "rhs"), batches)
    hang_if(depth != v["rhs_rows"], f"lhs_rows is {depth}, other than rhs_rows {v['rhs_rows']}")
    if 4 * ((batches - 1) * stride + units) > MOST_BYTES:
        raise Hang(
            f"the output of {batches} batches, {stride} elements apart, does not fit "
            f"{MOST_BYTES} bytes"
        )
    if batches * units * depth > MOST_PRODUCTS:
        raise Hang(
            f"{batches} batches x {units} units x {depth} rows are more than the {MOST_PRODUCTS} "
            "products that the simulated device computes"
        )


def _check_side(v: Values, matrix: PackedMatrix, count: int) -> None:
    """Raise Hang if a packed matrix is not whole blocks, does not have room for ``count`` columns
    of the input's size, or is too large to simulate."""
    side, rows, columns, pitch, high, wide, order, *_ = matrix
    if rows % high or columns % wide or order:
        raise Hang(
            f"{side}: {rows} x {columns} are not whole blocks of {high} x {wide} in the order of "
            "columns"
        )
    if count > columns or v["input_size"] > rows or pitch < rows:
        raise Hang(
            f"{side}: {v['input_size']} rows x {count} columns do not fit {rows} x {columns} with "
            f"a stride of {pitch}"
        )
    # The simulated kernel keeps the columns of a block, or their sums, as int64.
    strip = 8 * wide * max(rows, v["batches"])
    if max(columns * pitch, strip) > MOST_BYTES:
        raise Hang(
            f"{side}: {columns} columns of {pitch} bytes, or the {strip} bytes of a simulated "
            f"block of columns, do not fit {MOST_BYTES} bytes"
        )


def _hybrid(capture: Capture, v: Values) -> bytes:
    units, batches = v["units"], v["batches"]
    scales = _numbers_at(capture, "weight_scales", "<f4", _multiplier_count(v))
    biases = _numbers_at(capture, "biases", "<f4", units)
    out = _result(v, np.dtype("<f4"))
    if v["rhs_is_prepacked"]:
        rows = _prepacked(capture, v)
        row_scales = _numbers_at(capture, "input_scales", "<f4", batches)
        nothing = not rows[:batches].any()
    else:
        rows, row_scales, nothing = _measured(capture, v)
    low, high = BOUNDS[v["activation"]]
    products = _products(capture, v, rows, 0)
    for unit, sums in enumerate(products):
        bias = biases[unit]
        clamped = _clamped(wrapped(sums), v)
        total = clamped.astype(F)
        with np.errstate(over="ignore", invalid="ignore"):
            scale = row_scales * scales[unit % len(scales)]
            if v["fused_multiply_add"]:
                values = _fused(total, scale, bias)
            else:
                values = total * scale + bias
        if nothing:
            values = np.full(batches, bias)
        # np.clip would keep -0, but a bound of 0 has to replace it.
        values = np.where(values >= high, F(high), values)
        values = np.where(values <= low, F(low), values)
        out[unit :: v["dst_stride"]][:batches] = values
    return out.tobytes()


def _multiplier_count(v: Values) -> int:
    if v["per_channel"]:
        return int(v["units"])
    return 1


def _quantized(capture: Capture, v: Values, one_rounding: bool) -> bytes:
    count = _multiplier_count(v)
    biases = _numbers_at(capture, "biases", "<i4", v["units"])
    multipliers = _numbers_at(capture, "multipliers", "<i4", count)
    exponents = _numbers_at(capture, "exponents", "<i4", count)
    known(v, EXPECTED["device of codes"])
    out = _result(v, TYPES[v["dst_type"]])
    if v["rhs_is_prepacked"]:
        rows = _prepacked(capture, v)
    else:
        rows = _read_codes(capture, v)
    requantize = _twice
    if one_rounding:
        requantize = _once
    limits = np.iinfo(out.dtype)
    products = _products(capture, v, rows, v["rhs_zero_point"])
    for unit, sums in enumerate(products):
        multiplier = int(multipliers[unit % count])
        exponent = int(exponents[unit % count])
        if not -31 <= exponent <= 30:
            raise Hang(
                f"exponent {exponent} of unit {unit} is not one that a shift can do, -31 to 30"
            )
        total = wrapped(sums + int(biases[unit]))
        values = requantize(total, multiplier, exponent)
        clamped = _clamped(values + v["dst_zero_point"], v)
        codes = clamped.clip(limits.min, limits.max)
        out[unit :: v["dst_stride"]][: v["batches"]] = codes
    return out.tobytes()


def _once(total: Array, multiplier: int, exponent: int) -> Array:
    """Return ``total * multiplier * 2**(exponent - 31)`` rounded once, ties up."""
    shift = 31 - exponent
    return (total * multiplier + 2**shift // 2) // 2**shift


def _twice(total: Array, multiplier: int, exponent: int) -> Array:
    """Return ``total * multiplier * 2**(exponent - 31)`` rounded twice, ties up: to the high half
    of the doubled product, then in the right shift by a negative exponent.
    """
    shifted = wrapped(total * 2 ** max(exponent, 0))
    high = (shifted * multiplier + 2**30) // 2**31
    unit = 2 ** max(-exponent, 0)
    return (high + unit // 2) // unit


def _fused(total: Array, scale: Array, bias: np.float32) -> Array:
    """Return ``total * scale + bias`` rounded to float32 once.

    If the sum in float64 is not exact, it is rounded to the odd neighbour. The rounding to float32
    then gives the same as rounding the exact sum.
    """
    product = total.astype(np.float64) * scale.astype(np.float64)
    addend = float(bias)
    whole = product + addend
    # Knuth's two-sum: ``rest`` is the rounding error of the sum.
    part = whole - product
    rest = (product - (whole - part)) + (addend - part)
    inexact = np.isfinite(whole) & (rest != 0)
    even = whole.view(np.uint64) % 2 == 0
    toward = np.copysign(np.inf, rest)
    odd = np.nextafter(whole, toward)
    return np.where(inexact & even, odd, whole).astype(F)


def _products(capture: Capture, v: Values, rows: Array, rhs_zero: int) -> Iterator[Array]:
    """Yield the sums ``(batches,) int64`` of products of each unit, without the zero points' share.

    ``rows`` are packed input rows, ``rhs_zero`` is their zero point.
    """
    units, batches, step = v["units"], v["batches"], v["rhs_kernel_columns"]
    weights = PackedMatrix.of(v, "lhs")
    wide = weights.kernel_columns
    # The sums of columns lie after the packed weights. They are read only if the input's zero point
    # is not 0.
    sums = np.zeros(weights.columns, np.int64)
    if rhs_zero:
        start = weights.stride * weights.columns
        sums += _numbers_at(capture, "coefficients", "<i4", weights.columns, start=start)
    rows = rows[:batches]
    counted = rhs_zero * weights.rows - rows.sum(1, dtype=np.int64)
    from_zeros = weights.zero_point * counted
    for strip in range(0, units, wide):
        columns = _strip(capture, strip, weights)
        dots = np.empty((wide, batches), np.int64)
        for batch in range(0, batches, step):
            few = rows[batch : batch + step].astype(np.int64)
            dots[:, batch : batch + step] = columns @ few.T
        for place in range(min(wide, units - strip)):
            of_zero = rhs_zero * int(sums[strip + place])
            yield dots[place] + from_zeros - of_zero


def _strip(capture: Capture, column: int, matrix: PackedMatrix) -> Array:
    """Return the columns of one block from ``column`` on, ``(kernel_columns, rows) int64``."""
    high, wide = matrix.kernel_rows, matrix.kernel_columns
    shape = (matrix.rows // high, wide, high)
    if matrix.kernel_order:
        shape = (matrix.rows // high, high, wide)
    start = column * matrix.stride
    blocks = _numbers_at(capture, BUFFERS[matrix.side], "i1", *shape, start=start)
    if matrix.kernel_order:
        blocks = blocks.swapaxes(1, 2)
    return blocks.swapaxes(0, 1).reshape(wide, matrix.rows).astype(np.int64)


def _prepacked(capture: Capture, v: Values) -> Array:
    """Return the input rows that were packed before the call, ``(rhs_columns, rhs_rows) int8``."""
    matrix = PackedMatrix.of(v, "rhs")
    wide = matrix.kernel_columns
    rows = np.empty((matrix.columns, matrix.rows), np.int8)
    for column in range(0, matrix.columns, wide):
        rows[column : column + wide] = _strip(capture, column, matrix)
    return rows


def _measured(capture: Capture, v: Values) -> tuple[Array, Array, bool]:
    """Return the float32 input quantized: rows of codes, a scale for each row, and True if the
    whole input is 0.
    """
    batches, size = v["batches"], v["input_size"]
    x = _numbers_at(capture, "input", "<f4", batches, size)
    rows = _filled(v)
    scales = np.ones(batches, F)
    body = size - size % VECTOR
    for batch, row in enumerate(x):
        most = np.abs(row).max()
        if most == 0:
            rows[batch, :size] = 0
            continue
        with np.errstate(over="ignore"):
            scales[batch] = most / F(127)
            inverse = F(127) / most
        if not np.isfinite(most) or not np.isfinite(inverse):
            raise Hang(
                f"input: batch {batch} has a largest magnitude of {most}, which gives no finite "
                "scale"
            )
        scaled = row * inverse
        # The vector loop adds one half in float32; the loop over the last values, less than VECTOR
        # of them, adds it in float64.
        half = np.where(scaled >= 0, F(0.5), F(-0.5))
        near = scaled.astype(np.float64) + half
        near[:body] = scaled[:body] + half[:body]
        clamped = near.clip(-127, 127)
        rows[batch, :size] = np.trunc(clamped)
    return rows, scales, not x.any()


def _read_codes(capture: Capture, v: Values) -> Array:
    """Return the codes of the buffer ``input`` as the call packs them, ``(rhs_columns, rhs_rows)
    int8``."""
    dtype = TYPES[v["rhs_type"]].str
    codes = _numbers_at(capture, "input", dtype, v["batches"], v["input_size"])
    rows = _filled(v)
    batches, size = codes.shape
    rows[:batches, :size] = as_codes(codes, "int8")
    return rows


def _filled(v: Values) -> Array:
    """Return packed input rows of which every element is the zero point."""
    zero = v["rhs_zero_point"]
    hang_if(not -128 <= zero <= 127, f"rhs_zero_point is {zero}, a packed byte holds -128 to 127")
    return np.full((v["rhs_columns"], v["rhs_rows"]), zero, np.int8)


def _result(v: Values, dtype: np.dtype[Any]) -> Array:
    before = (v["batches"] - 1) * v["dst_stride"]
    return np.zeros(before + v["units"], dtype)


def _clamped(values: Array, v: Values) -> Array:
    # If the bounds cross, the lower bound wins; np.clip would give the upper.
    return np.maximum(np.minimum(values, v["clamp_max"]), v["clamp_min"])


def _numbers_at(capture: Capture, name: str, dtype: str, *shape: int, start: int = 0) -> Array:
    """Return little-endian numbers of a buffer from byte ``start`` on, in ``shape``. Raises Hang if
    the buffer is too short."""
    data = buffer_of(capture, name)
    count = math.prod(shape)
    size = count * np.dtype(dtype).itemsize
    if start + size > len(data):
        raise Hang(
            f"{name}: the call reads {size} bytes from byte {start:#x} on, the buffer ends at "
            f"byte {len(data):#x}"
        )
    return np.frombuffer(data, dtype, count, start).reshape(shape)
