"""PDP: average, maximum and minimum over windows of up to 8 x 8, channel by channel.

Source: the int8 and int16 traces of nvdla/hw.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from npulab.npus.kit import Unsupported, wrapped
from npulab.npus.nvdla.memory import ByteMemory
from npulab.npus.nvdla.rules import RULES, Rules, saturated, shifted
from npulab.npus.nvdla.units.fields import Fields

AVERAGE, MAX, MIN = range(3)
RECIPROCAL_BITS = 16
PAD_BITS = 19
CONFIG, PADS = "PDP.D_POOLING_KERNEL_CFG.KERNEL_", "PDP.D_POOLING_PADDING_CFG.PAD_"


@dataclass(frozen=True)
class Axis:
    """A window along one axis: input and output size, kernel, stride, padding before; with what
    padded taps add up to.

    ``pads[n]`` is the sum of n padded taps.
    Raises Unsupported where an output has no tap inside the input.
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

    def padded(self) -> np.ndarray:
        """Padded taps of each output ``(out,)``."""
        first = np.arange(self.out) * self.stride - self.before
        inside = np.minimum(first + self.kernel, self.size) - np.maximum(first, 0)
        return self.kernel - np.maximum(inside, 0)

    def pooled(self, x: np.ndarray, axis: int, method: int, times: int = 1) -> np.ndarray:
        """Windows of int64 ``x`` along an axis; for averages the sum, the pads counted so many
        times."""
        first = np.arange(self.out) * self.stride - self.before
        shape = [1] * x.ndim
        shape[axis] = self.out
        out: np.ndarray | None = None
        for tap in range(self.kernel):
            at = first + tap
            taken = x.take(np.clip(at, 0, self.size - 1), axis)
            if method == AVERAGE:
                taken *= ((at >= 0) & (at < self.size)).reshape(shape)
                if out is None:
                    out = taken
                else:
                    out = out + taken
            else:
                # a padded tap repeats the border's element only where that is in the window anyway
                if out is None:
                    out = taken
                else:
                    out = (np.maximum if method == MAX else np.minimum)(out, taken)
        assert out is not None
        if method == AVERAGE:
            out += times * np.array(self.pads)[self.padded()].reshape(shape)
        return out


def run(
    values: Mapping[str, int],
    features: Mapping[str, int],
    memory: ByteMemory,
    x: np.ndarray | None = None,
    rules: Rules = RULES,
) -> None:
    """Run one PDP job from raw register values by full name (``PDP.*``, ``PDP_RDMA.*``) on a chip's
    features.

    ``x``: what SDP hands over, ``(surfaces, height, width, lanes)``, where the job takes it on the
    fly.  The output is written to ``memory``.  Splitting the width changes how lines are buffered
    and no result. Raises Unsupported, with register and value, for fp16 and windows that lie
    outside the input.
    """
    fields = Fields(values, features)
    itemsize = fields.precision("PDP.D_DATA_FORMAT.INPUT_DATA")
    shape, out = (
        fields.shape(f"PDP.D_DATA_CUBE_{way}_{{0}}.CUBE_{way}_{{0}}") for way in ("IN", "OUT")
    )
    if shape[2] != out[2]:
        raise Unsupported(
            f"PDP.D_DATA_CUBE_OUT_CHANNEL.CUBE_OUT_CHANNEL is {out[2] - 1}, covered is that of the "
            f"input, {shape[2] - 1}"
        )
    fields.expect("run pooling")
    rows, columns = axes(fields, shape, out)
    output = fields.cube("PDP", "DST", out, itemsize)
    source = fields.cube("PDP_RDMA", "SRC", shape, itemsize)
    if not fields["PDP.D_OPERATION_MODE_CFG.FLYING_MODE"]:
        whole = (source.surfaces, source.height, source.width, source.lanes)
        if (
            x is None
            or x.size != prod(whole)
            or x.shape[::3] != whole[::3]
            or x.itemsize != itemsize
        ):
            raise ValueError(
                f"input: got {'none' if x is None else x.shape}, allowed is {whole} of {itemsize} "
                "bytes "
                "as PDP.D_DATA_CUBE_IN and D_DATA_FORMAT say"
            )
        x = x.reshape(whole)
    for surfaces, lines in output.blocks():
        # the rows that the windows of these lines reach
        top = min(max(lines.start * rows.stride - rows.before, 0), shape[0] - 1)
        bottom = min(
            max((lines.stop - 1) * rows.stride - rows.before + rows.kernel, top + 1), shape[0]
        )
        reached = slice(top, bottom)
        block = (
            source.read(memory, surfaces, reached)
            if fields["PDP.D_OPERATION_MODE_CFG.FLYING_MODE"]
            else x[surfaces, reached]  # type: ignore[index]
        )
        part = Axis(
            rows.name,
            bottom - top,
            lines.stop - lines.start,
            rows.kernel,
            rows.stride,
            rows.before - lines.start * rows.stride + top,
            rows.pads,
        )
        y = pooled(fields, block.astype(np.int64), part, columns, rules)
        output.write(memory, surfaces, lines, y)


def axes(fields: Fields, shape: tuple[int, ...], out: tuple[int, ...]) -> tuple[Axis, Axis]:
    """Rows and columns of the windows."""
    pads = (
        0,
        *(
            wrapped(fields[f"PDP.D_POOLING_PADDING_VALUE_{n}_CFG.PAD_VALUE_{n}X"], PAD_BITS)
            for n in range(1, 8)
        ),
    )
    rows, columns = (
        Axis(
            name.lower(),
            shape[n],
            out[n],
            fields.size(f"{CONFIG}{name}"),
            fields.size(f"{CONFIG}STRIDE_{name}"),
            fields[f"{PADS}{before}"],
            pads,
        )
        for n, (name, before) in enumerate((("HEIGHT", "TOP"), ("WIDTH", "LEFT")))
    )
    for axis in (rows, columns):
        if axis.kernel > len(pads):
            raise Unsupported(
                f"{CONFIG}{axis.name.upper()} is {axis.kernel - 1}, covered are 0 to "
                f"{len(pads) - 1}"
            )
    return rows, columns


def pooled(
    fields: Fields, x: np.ndarray, rows: Axis, columns: Axis, rules: Rules = RULES
) -> np.ndarray:
    """Windows of int64 ``(surfaces, height, width, lanes)``.

    An average is the sum of valid taps, per valid row what its padded columns add, and per padded
    row what so many padded taps add, once for each column of the kernel; times the reciprocals of
    width and height, rounded after each, and limited to the element, where the C model cuts it off:
    no trace tells.
    """
    method = fields["PDP.D_OPERATION_MODE_CFG.POOLING_METHOD"]
    y = rows.pooled(columns.pooled(x, 2, method), 1, method, times=columns.kernel)
    if method != AVERAGE:
        return y
    for name in ("WIDTH", "HEIGHT"):
        y = shifted(
            y * fields[f"PDP.D_RECIP_KERNEL_{name}.RECIP_KERNEL_{name}"],
            RECIPROCAL_BITS,
            rules.rounding,
        )
    return saturated(y, 8 * fields.precision("PDP.D_DATA_FORMAT.INPUT_DATA"))
