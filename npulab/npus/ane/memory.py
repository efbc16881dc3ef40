"""Tensors between arrays and memory: rows of fp16 filled up to 64 bytes, a plane for each
channel."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from npulab.layout import Layout, planar
from npulab.npus.kit.numbers import up

UNIT = 64  # bytes; what strides in memory are counted in
HALF = 2
MOST_BYTES = 2 ** 26


class Surface(NamedTuple):
    """A tensor in memory: its sizes, and the bytes between rows and channels that follow from them.

    >>> Surface(2, 33, 3).row, Surface(2, 33, 3).bytes
    (128, 768)
    """

    height: int
    width: int
    channels: int
    align: int = UNIT  # bytes that rows are filled up to

    @property
    def layout(self) -> Layout:
        """Where the elements lie: planes of rows."""
        return planar(self[:3], dtype="float16", row_align=self.align)

    @property
    def row(self) -> int:
        """Bytes between rows."""
        return up(HALF * self.width, self.align)

    @property
    def plane(self) -> int:
        """Bytes between channels."""
        return self.row * self.height

    @property
    def bytes(self) -> int:
        """All of it."""
        return self.plane * self.channels

    @property
    def span(self) -> int:
        """Bytes up to the last element."""
        return self.bytes - self.row + HALF * self.width


def pack(tensor: np.ndarray) -> bytes:
    """``(H, W, C) float16`` as it lies in memory: planes of rows, zeros behind each row;
    little-endian.

    >>> pack(np.full((1, 1, 2), 2, np.float16))[64:66].hex()
    '0040'
    """
    return Surface(*tensor.shape).layout.pack(tensor)


def unpack(data: bytes, surface: Surface, what: str = "tensor") -> np.ndarray:
    """The tensor ``(H, W, C) float16`` of bytes; what lies between rows is left alone.

    Bytes behind the last element may be missing, and bytes behind the last plane are left alone.
    Raises ValueError naming ``what`` where there are fewer.
    """
    if len(data) < surface.span or surface.bytes > MOST_BYTES:
        raise ValueError(f"{what}: got {len(data)} bytes, allowed are {surface.span} or more, up to {MOST_BYTES}, for "
                         f"{surface.channels} planes of {surface.height} rows of {surface.row} bytes")
    return surface.layout.unpack(data[:surface.bytes].ljust(surface.bytes, b"\0"))
