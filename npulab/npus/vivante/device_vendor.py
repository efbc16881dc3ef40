"""How the simulated unit of V7 reads the coefficients of the vendor's compiler, item by item."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy import ndarray as Array

from npulab.layout.bitstream import BitReader
from npulab.npus.kit import hang_if, wrapped
from npulab.npus.vivante.facts import Values

MARKS = 0x7800, 0x7804  # word 31 of the vendor's jobs


def is_vendors(v: Values) -> bool:
    """True if the words of a job are the vendor's."""
    return v["w31_0_32"] in MARKS


def as_meant(v: Values) -> dict[str, Any]:
    """Return the vendor's values with the sizes that the unit works with: of a kernel of one column
    its width, of a native depthwise layer its planes."""
    out = dict(v)
    if v["layer_type"]:
        out["kernel_xy_size"] = 1
    if v["depthwise"]:
        out["kernel_z_size"] = v["out_image_z_size"]
    return out


def refuse_rings(v: Values, sizes: Mapping[str, int]) -> None:
    """Raise Hang for a ring that does not hold its whole tensor."""
    for kind, tensor in (("in", "input"), ("out", "output")):
        ring = v[f"{kind}_image_circular_buf_size"]
        hang_if(
            0 < ring < sizes[tensor],
            f"a ring of {ring} bytes is smaller than its {tensor} of {sizes[tensor]}",
        )


def kernels(
    reader: BitReader,
    image: Array,
    v: Values,
    widest_run: int,
) -> Iterator[tuple[Array, int]]:
    """Yield (accumulators, output offset) of each kernel in one core's stream."""
    run_bits, left = reader.read(8), reader.read(16)
    hang_if(
        run_bits > widest_run,
        f"a stream has zero-run width {run_bits}, the chip has at most {widest_run}",
    )
    weights = _Weights(reader, run_bits, v["coef_zero_point"])
    while left > 0:
        share = min(v["kernels_per_core"], left)
        yield from _superblock(weights, share, image, v)
        left -= share


def _superblock(
    weights: _Weights,
    share: int,
    image: Array,
    v: Values,
) -> list[tuple[Array, int]]:
    """Return (accumulators, output offset) of the kernels that are resident together."""
    planes, rows, columns = v["kernel_z_size"], v["kernel_y_size"], v["kernel_xy_size"]
    height, width = v["out_image_y_size"], v["out_image_x_size"]
    sums = [np.zeros((height, width), np.int64) for _ in range(share)]
    offsets = []
    for plane in range(planes):
        for k in range(share):
            for cell in range(rows * columns):
                row, column = divmod(cell, columns)
                weight = weights.next() - v["coef_zero_point"]
                sums[k] += weight * image[plane, row : row + height, column : column + width]
                if plane == cell == 0:
                    sums[k] += weights.bias()
            if plane == planes - 1:
                offsets.append(weights.offset())
    return list(zip(sums, offsets, strict=True))


class _Weights:
    """Reads a stream weight by weight; a run of zero points may go on over one bias."""

    def __init__(self, reader: BitReader, run_bits: int, zero: int) -> None:
        self.reader, self.run_bits, self.zero = reader, run_bits, zero
        # Zero points that are left of the last item, its literal, and the biases since it was read.
        self.run, self.literal, self.biases = 0, -1, 0

    def next(self) -> int:
        if self.literal < 0:
            self.run, self.literal = self.reader.read(self.run_bits), self.reader.read(8)
            self.biases = 0
        if self.run:
            self.run -= 1
            return self.zero
        literal, self.literal = self.literal, -1
        return literal

    def bias(self) -> int:
        hang_if(self.biases and self.literal >= 0, "a run of zero points goes over two biases")
        self.biases += 1
        return wrapped(self.reader.read(32))

    def offset(self) -> int:
        hang_if(self.literal >= 0, "a run of zero points goes past the end of its kernel")
        return self.reader.read(32)
