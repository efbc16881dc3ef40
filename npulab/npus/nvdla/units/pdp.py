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
from npulab.npus.nvdla.memory import Memory
from npulab.npus.nvdla.rules import RULES, Rules, saturated, shifted
from npulab.npus.nvdla.units.fields import Fields

AVERAGE, MAX, MIN = range(3)
COMBINED = {AVERAGE: np.add, MAX: np.maximum, MIN: np.minimum}
RECIPROCAL_BITS = 16
PAD_BITS = 19
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
    itemsize = fields.precision("PDP.D_DATA_FORMAT.INPUT_DATA")
    shape = fields.shape("PDP.D_DATA_CUBE_IN_{0}.CUBE_IN_{0}")
    out = fields.shape("PDP.D_DATA_CUBE_OUT_{0}.CUBE_OUT_{0}")
    if shape[2] != out[2]:
        raise Unsupported(
            f"PDP.D_DATA_CUBE_OUT_CHANNEL.CUBE_OUT_CHANNEL is {out[2] - 1}, covered is that of the "
            f"input, {shape[2] - 1}"
        )
    fields.expect("run pooling")
    rows, columns = axes(fields, shape, out)
    output = fields.cube("PDP", "DST", out, itemsize)
    source = fields.cube("PDP_RDMA", "SRC", shape, itemsize)
    handed = None
    if not fields["PDP.D_OPERATION_MODE_CFG.FLYING_MODE"]:
        handed = _handed_over(x, (source.surfaces, *shape[:2], source.lanes), itemsize)
    for surfaces, lines in output.blocks():
        reached, part = rows.of_outputs(lines)
        if handed is None:
            block = source.read(memory, surfaces, reached)
        else:
            block = handed[surfaces, reached]
        y = pooled(fields, block.astype(np.int64), part, columns, rules)
        output.write(memory, surfaces, lines, y)


def _handed_over(x: Array | None, shape: tuple[int, ...], itemsize: int) -> Array:
    """Return the result of SDP in the job's rows; ValueError for more, fewer or other elements than
    the job takes.
    """
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


def axes(fields: Fields, shape: tuple[int, ...], out: tuple[int, ...]) -> tuple[Axis, Axis]:
    """Return the movement of windows along the rows and along the columns."""
    pads = [0]
    for n in range(1, 8):
        pad = fields[f"PDP.D_POOLING_PADDING_VALUE_{n}_CFG.PAD_VALUE_{n}X"]
        pads.append(wrapped(pad, PAD_BITS))
    found = []
    for n, (name, side) in enumerate((("HEIGHT", "TOP"), ("WIDTH", "LEFT"))):
        kernel = fields.size(f"{CONFIG}{name}")
        stride = fields.size(f"{CONFIG}STRIDE_{name}")
        before = fields[f"{PADS}{side}"]
        found.append(Axis(name.lower(), shape[n], out[n], kernel, stride, before, tuple(pads)))
    for axis in found:
        if axis.kernel > len(pads):
            raise Unsupported(
                f"{CONFIG}{axis.name.upper()} is {axis.kernel - 1}, covered are 0 to "
                f"{len(pads) - 1}"
            )
    rows, columns = found
    return rows, columns


def pooled(fields: Fields, x: Array, rows: Axis, columns: Axis, rules: Rules = RULES) -> Array:
    """Return the windows of int64 ``(surfaces, height, width, lanes)``.

    An average is the sum of the taps inside the input and the pad values of the taps outside, times
    the reciprocals of width and height, rounded after each, and saturated to the element. Padded
    rows count once for each column of the kernel. The C model truncates; no trace distinguishes
    the two.
    """
    method = fields["PDP.D_OPERATION_MODE_CFG.POOLING_METHOD"]
    y = rows.pooled(columns.pooled(x, 2, method), 1, method, times=columns.kernel)
    if method != AVERAGE:
        return y
    # Each reciprocal has its own rounding, so that the other order would give other averages.
    for name in ("WIDTH", "HEIGHT"):
        reciprocal = fields[f"PDP.D_RECIP_KERNEL_{name}.RECIP_KERNEL_{name}"]
        y = shifted(y * reciprocal, RECIPROCAL_BITS, rules.rounding)
    return saturated(y, 8 * fields.precision("PDP.D_DATA_FORMAT.INPUT_DATA"))
