"""PDP: average, maximum and minimum over windows of up to 8 x 8, channel by channel.

Source: the int8 and int16 traces of nvdla/hw.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np
from numpy import ndarray as Array

from npulab.captures.target import Features
from npulab.npus.kit import Raw, Unsupported, wrapped
from npulab.npus.nvdla.layouts import Cube
from npulab.npus.nvdla.memory import Memory
from npulab.npus.nvdla.rules import RULES, Rules, saturated, shifted
from npulab.npus.nvdla.units.fields import Fields

AVERAGE, MAX, MIN = range(3)
COMBINED = {AVERAGE: np.add, MAX: np.maximum, MIN: np.minimum}
RECIPROCAL_BITS = 16
# The width of an int8 average after the reciprocal of the width, and after that of the height.
KEPT_BITS = 11, 8
PAD_BITS = 19
# The width of an int8 sum along a row, and of an int8 sum of the pads of whole rows.
ROW_BITS, PADS_BITS = 11, 14
CONFIG, PADS = "PDP.D_POOLING_KERNEL_CFG.KERNEL_", "PDP.D_POOLING_PADDING_CFG.PAD_"


@dataclass(frozen=True)
class Axis:
    """A window along one axis: input and output size, kernel, stride, padding before.

    ``pads[n]`` is the sum of n padded taps. Raises Unsupported if an output has no tap inside the
    input.
    """

    name: str
    size: int
    out: int
    kernel: int
    stride: int
    before: int
    pads: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.padded().max(initial=0) >= self.kernel:
            raise Unsupported(
                f"PDP: an output's window of {self.kernel} along the {self.name} has no tap in the "
                f"{self.size} elements there, covered is one or more"
            )

    def padded(self) -> Array:
        """Return the padded taps of each output ``(out,)``."""
        first = np.arange(self.out) * self.stride - self.before
        inside = np.minimum(first + self.kernel, self.size) - np.maximum(first, 0)
        return self.kernel - np.maximum(inside, 0)

    def pooled(self, x: Array, axis: int, method: int, times: int = 1) -> Array:
        """Return the windows of int64 ``x`` along an axis; for averages their sum, in which the
        pads count ``times``."""
        shape = [1] * x.ndim
        shape[axis] = self.out
        combine = COMBINED[method]
        first = np.arange(self.out) * self.stride - self.before
        for tap in range(self.kernel):
            # A padded tap repeats the border's element; a maximum has that in its window anyway.
            at = np.clip(first + tap, 0, self.size - 1)
            taken = x.take(at, axis)
            if method == AVERAGE:
                taken *= (at == first + tap).reshape(shape)
            if tap == 0:
                out = taken
            else:
                combine(out, taken, out=out)
        if method == AVERAGE:
            out += times * np.array(self.pads)[self.padded()].reshape(shape)
        return out

    def of_outputs(self, outputs: slice) -> tuple[slice, Axis]:
        """Return the inputs that the windows of some outputs reach, and the axis with only these
        outputs.
        """
        begin = outputs.start * self.stride - self.before
        end = (outputs.stop - 1) * self.stride - self.before + self.kernel
        first = min(max(begin, 0), self.size - 1)
        stop = min(max(end, first + 1), self.size)
        count = outputs.stop - outputs.start
        axis = replace(self, size=stop - first, out=count, before=first - begin)
        return slice(first, stop), axis


def run(
    values: Raw,
    features: Features,
    memory: Memory,
    x: Array | None = None,
    rules: Rules = RULES,
) -> None:
    """Run one PDP job from raw register values by full name (``PDP.*``, ``PDP_RDMA.*``) on a chip's
    features.

    ``x``: the result of SDP, ``(surfaces, height, width, lanes)``, if the job takes it on the fly.
    The output is written to ``memory``. Splitting the width changes how lines are buffered and no
    result. Raises Unsupported, with register and value, for fp16 and windows that lie
    outside the input.
    """
    fields = Fields(values, features)
    source, output = cubes(fields)
    rows, columns = axes(fields, source.shape, output.shape)
    handed = handed_over(fields, source, x)
    for surfaces, lines in output.blocks():
        reached, part = rows.of_outputs(lines)
        if handed is None:
            block = source.read(memory, surfaces, reached)
        else:
            block = handed[surfaces, reached]
        y = pooled(fields, block.astype(np.int64), part, columns, rules)
        output.write(memory, surfaces, lines, y)


def cubes(fields: Fields) -> tuple[Cube, Cube]:
    """Return where a job's input and output lie.

    Raises Unsupported for outputs of other channels than the input, and for what PDP does not run.
    """
    itemsize = fields.precision("PDP.D_DATA_FORMAT.INPUT_DATA")
    shape = fields.shape("PDP.D_DATA_CUBE_IN_{0}.CUBE_IN_{0}")
    out = fields.shape("PDP.D_DATA_CUBE_OUT_{0}.CUBE_OUT_{0}")
    if shape[2] != out[2]:
        raise Unsupported(
            f"PDP.D_DATA_CUBE_OUT_CHANNEL.CUBE_OUT_CHANNEL is {out[2] - 1}, covered is that of the "
            f"input, {shape[2] - 1}"
        )
    fields.expect("run pooling")
    output = fields.cube("PDP", "DST", out, itemsize)
    return fields.cube("PDP_RDMA", "SRC", shape, itemsize), output


def handed_over(fields: Fields, source: Cube, x: Array | None) -> Array | None:
    """Return the result of SDP in the job's rows, None if the job reads memory.

    Raises ValueError for more, fewer or other elements than the job takes.
    """
    if fields["PDP.D_OPERATION_MODE_CFG.FLYING_MODE"]:
        return None
    itemsize = source.itemsize
    shape = source.surfaces, source.height, source.width, source.lanes
    got: object = "none"
    if x is not None:
        got = x.shape
        same_atoms = x.shape[::3] == shape[::3] and x.itemsize == itemsize
        if same_atoms and x.size == prod(shape):
            return x.reshape(shape)
    raise ValueError(
        f"input: got {got}, allowed is {shape} of {itemsize} bytes as PDP.D_DATA_CUBE_IN and "
        "D_DATA_FORMAT say"
    )


def windows(fields: Fields, x: Array) -> Array:
    """Return the pooled windows ``(surfaces, height, width, lanes)`` of int64 ``x``."""
    shape = fields.shape("PDP.D_DATA_CUBE_IN_{0}.CUBE_IN_{0}")
    rows, columns = axes(fields, shape, fields.shape("PDP.D_DATA_CUBE_OUT_{0}.CUBE_OUT_{0}"))
    return pooled(fields, x, rows, columns)


def axes(fields: Fields, shape: tuple[int, ...], out: tuple[int, ...]) -> tuple[Axis, Axis]:
    """Return the movement of windows along the rows and along the columns."""
    pads = pad_sums(fields)
    found = []
    for n, (name, side) in enumerate((("HEIGHT", "TOP"), ("WIDTH", "LEFT"))):
        kernel = fields.size(f"{CONFIG}{name}")
        stride = fields.size(f"{CONFIG}STRIDE_{name}")
        before = fields[f"{PADS}{side}"]
        found.append(Axis(name.lower(), shape[n], out[n], kernel, stride, before, pads))
    for axis in found:
        if axis.kernel > len(pads):
            raise Unsupported(
                f"{CONFIG}{axis.name.upper()} is {axis.kernel - 1}, covered are 0 to "
                f"{len(pads) - 1}"
            )
    rows, columns = found
    return rows, columns


def pad_sums(fields: Fields) -> tuple[int, ...]:
    """Return the sum that stands for each number of padded taps, from none to 7."""
    pads = [0]
    for n in range(1, 8):
        pad = fields[f"PDP.D_POOLING_PADDING_VALUE_{n}_CFG.PAD_VALUE_{n}X"]
        pads.append(wrapped(pad, PAD_BITS))
    return tuple(pads)


def pooled(fields: Fields, x: Array, rows: Axis, columns: Axis, rules: Rules = RULES) -> Array:
    """Return the windows of int64 ``(surfaces, height, width, lanes)``.

    An average is the sum of the taps inside the input and the pad values of the taps outside, times
    the reciprocal of the width, then times that of the height. Padded rows count once for each
    column of the kernel. A product of int8 keeps ``KEPT_BITS`` and is cut to them; int16 is
    rounded after each product and saturated at the end, as no simulation of the RTL showed yet.
    """
    method = fields["PDP.D_OPERATION_MODE_CFG.POOLING_METHOD"]
    itemsize = fields.precision("PDP.D_DATA_FORMAT.INPUT_DATA")
    if method != AVERAGE:
        return rows.pooled(columns.pooled(x, 2, method), 1, method)
    if itemsize == 1:
        y = _short_sums(x, rows, columns)
    else:
        y = rows.pooled(columns.pooled(x, 2, method), 1, method, times=columns.kernel)
    return saturated(averaged(fields, y, itemsize, rules.rounding), 8 * itemsize)


def averaged(fields: Fields, sums: Array, itemsize: int, rounding: str) -> Array:
    """Return sums of windows times the reciprocal of the width, rounded, and then times that of the
    height, rounded again.
    """
    for name, bits in zip(("WIDTH", "HEIGHT"), KEPT_BITS, strict=True):
        product = sums * fields[f"PDP.D_RECIP_KERNEL_{name}.RECIP_KERNEL_{name}"]
        if itemsize == 1:
            sums = kept(product, bits, rounding)
        else:
            sums = shifted(product, RECIPROCAL_BITS, rounding)
    return sums


def _short_sums(x: Array, rows: Axis, columns: Axis) -> Array:
    """Return the sums of int8 windows with their pads: along a row they keep ``ROW_BITS``, and the
    pads of whole rows ``PADS_BITS``. Source: the RTL of nv_small (PDP_CORE_cal1d, cal2d)."""
    across = replace(columns, pads=tuple(wrapped(pad, ROW_BITS) for pad in columns.pads))
    whole = tuple(wrapped(pad * columns.kernel, PADS_BITS) for pad in rows.pads)
    along = wrapped(across.pooled(x, 2, AVERAGE), ROW_BITS)
    return replace(rows, pads=whole).pooled(along, 1, AVERAGE)


def kept(products: Array, bits: int, rounding: str = "half-away") -> Array:
    """Return int64 ``products / 2**16`` rounded, of which a multiplier of PDP keeps ``bits``.

    A product of 0 or more loses its bits from ``bits - 1`` up before it is rounded; the result is
    wrapped to a signed number of ``bits``. Source: RTL simulation of nv_small and nv_large, 360
    jobs.

    >>> kept(np.array([1092 * 65536, -1092 * 65536, 3 * 32768]), 11)
    array([ 68, 956,   2])
    """
    floor = products >> RECIPROCAL_BITS
    carry = shifted(products, RECIPROCAL_BITS, rounding) - floor
    short = np.where(products < 0, floor, floor % 2 ** (bits - 1)) + carry
    return wrapped(short, bits)
