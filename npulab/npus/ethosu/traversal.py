"""The order in which a job reads its weights, nested: blocks of output channels, blocks of input
channels, parts of the kernel, small blocks of channels. Source: V (``sources.csv``)."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import numpy as np
from numpy import ndarray as Array

from npulab.npus.kit import up

# Input channels of a block: IN_BLOCK_PARTS if ``part_kernel_first`` is set or the input has 16
# bits, else IN_BLOCK.
IN_BLOCK, IN_BLOCK_PARTS = 32, 16
# A part of the kernel has at most SUBKERNEL rows and columns, dilation included. Its cells are
# filled up to a multiple of ELEMENTS (by bits of the input), if ``part_kernel_first`` is set or the
# job is depthwise.
SUBKERNEL = 8
ELEMENTS = {8: 4, 16: 2}


class Order(NamedTuple):
    """The order of a job's weights. ``block_depth`` is the number of output channels of a block,
    ``input_bits`` the bits of an input code, ``small`` the channels (inputs, outputs) of a small
    block. With ``part_kernel_first``, all cells of a part of the kernel are read before the next
    small block of inputs. ``dilation`` is (h, w)."""

    block_depth: int
    depthwise: bool = False
    part_kernel_first: bool = False
    input_bits: int = 8
    small: tuple[int, int] = (8, 8)
    dilation: tuple[int, int] = (1, 1)

    def places(self, shape: tuple[int, int, int, int]) -> Array:
        """Return the order in which a job reads its weights, as ``(n,) int64``: indices into the
        flattened weights OHWI (depthwise OHW1) of this ``shape``; -1 is fill.

        >>> Order(8, small=(2, 2)).places((2, 1, 1, 3))[:8].tolist()
        [0, 1, 3, 4, 2, -1, 5, -1]
        """
        outputs, rows, columns, inputs = shape
        small_in, small_out = self.small
        if self.depthwise:
            small_in = 1
        in_block = IN_BLOCK
        if self.part_kernel_first or self.input_bits == 16:
            in_block = IN_BLOCK_PARTS
        high = SUBKERNEL // self.dilation[0]
        across = SUBKERNEL // self.dilation[1]
        found = []
        for first_out, first_in, top, left in product(
            range(0, outputs, self.block_depth),
            range(0, inputs, in_block),
            range(0, rows, high),
            range(0, columns, across),
        ):
            height = min(rows - top, high)
            width = min(columns - left, across)
            cells = height * width
            depth = in_block
            if self.depthwise:
                depth = 1
                cells = up(cells, ELEMENTS[8])
            elif self.part_kernel_first:
                cells = up(cells, ELEMENTS[self.input_bits])
            if self.part_kernel_first:
                depth = min(in_block, inputs - first_in)
            ins = first_in + np.arange(up(depth, small_in)).reshape(-1, small_in)
            deep = up(min(self.block_depth, outputs - first_out), small_out)
            outs = first_out + np.arange(deep).reshape(-1, small_out)
            # The axes of `flat`: small blocks of outputs, cells, small blocks of inputs, outputs of
            # a small block, inputs of a small block.
            cell = np.arange(cells).reshape(-1, 1, 1, 1)
            y, x = np.divmod(cell, width)
            o = outs[:, None, None, :, None]
            i = ins[:, None, :]
            flat = ((o * rows + top + y) * columns + left + x) * inputs + i
            flat = np.where((o < outputs) & (i < inputs) & (y < height), flat, -1)
            if self.part_kernel_first:
                flat = flat.transpose(2, 0, 1, 3, 4)
            found.append(flat.ravel())
        return np.concatenate(found)

    def unpack(self, stream: Array, shape: tuple[int, int, int, int]) -> Array:
        """Return the weights, in ``shape``, that a stream holds. Raises ValueError if the stream
        has more or fewer weights."""
        places = self.places(shape)
        if len(stream) != len(places):
            raise ValueError(
                f"weights: got a stream of {len(stream)}, allowed for {shape} with {self} is a "
                f"stream of {len(places)}"
            )
        used = places >= 0
        weights = np.zeros(shape, stream.dtype)
        weights.ravel()[places[used]] = stream[used]
        return weights

    def pack(self, weights: Array) -> Array:
        """Return the weights in the order in which a job reads them, with zeros as fill; the
        inverse of ``unpack``."""
        places = self.places(weights.shape)  # type: ignore[arg-type]
        return np.where(places < 0, 0, weights.ravel()[places])
