"""Parts of a buffer that are not elements of its tensor: sums of elements, and constant bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy import ndarray as Array

SUM_BYTES = 4
# The text of a constant part shows at most this many bytes.
SHOWN = 8


@dataclass(frozen=True)
class _Bytes(ABC):
    """A part of a buffer that begins at byte ``offset``."""

    offset: int

    @property
    @abstractmethod
    def size(self) -> int:
        """The number of bytes of the part."""

    @property
    def end(self) -> int:
        """The offset of the byte after the part."""
        return self.offset + self.size


@dataclass(frozen=True)
class Sums(_Bytes):
    """Sums of the stored elements at each index of ``axis``, as ``count`` little-endian int32.

    Each sum includes ``fills`` times the fill value. If ``count`` is larger than the axis, the sums
    past its end are sums of ``depth`` fill values. Elements are summed as signed numbers if
    ``signed``, else as unsigned numbers.
    """

    axis: int
    count: int
    fills: int = 0
    depth: int = 0
    signed: bool = True

    @property
    def size(self) -> int:
        return SUM_BYTES * self.count

    def __str__(self) -> str:
        return f"{self.count} sums over axis {self.axis} at byte {self.offset}"

    def data(self, stored: Array, fill: int, bits: int) -> Array:
        """Return the bytes of the part, ``(size,) uint8``.

        ``stored`` are the elements in the buffer, as unsigned integers of ``bits`` bits; ``fill``
        is the fill value.
        """
        have = sums(stored, self.axis, self.signed, bits)
        value = fill
        if self.signed and fill >= 2 ** (bits - 1):
            value = fill - 2**bits
        out = np.full(self.count, self.depth * value, np.int64)
        out[: len(have)] = have + self.fills * value
        return (out % 2**32).astype("<u4").view(np.uint8)


@dataclass(frozen=True)
class Constant(_Bytes):
    """Bytes that do not depend on the tensor: ``data``, repeated ``repeat`` times."""

    data: bytes
    repeat: int = 1

    @property
    def size(self) -> int:
        return len(self.data) * self.repeat

    @property
    def row(self) -> Array:
        """The bytes of the part, ``(size,) uint8``."""
        return np.tile(np.frombuffer(self.data, np.uint8), self.repeat)

    def __str__(self) -> str:
        shown = self.data[:SHOWN].hex(" ")
        if len(self.data) > SHOWN or self.repeat > 1:
            shown += " ..."
        return f"{self.size} constant bytes at byte {self.offset} ({shown})"


Part = Sums | Constant


def sums(stored: Array, axis: int, signed: bool, bits: int) -> Array:
    """Return the sum of the elements at each of the ``n`` indices of an axis, ``(n,) int64``.

    ``stored`` are unsigned integers of ``bits`` bits; if ``signed``, they are summed as signed
    numbers with the same bits.
    """
    rest = tuple(other for other in range(stored.ndim) if other != axis)
    if not signed:
        return stored.sum(rest, dtype=np.int64)
    if bits >= 8:
        return stored.view(f"i{stored.itemsize}").sum(rest, dtype=np.int64)
    # Flipping the sign bit adds half of the range to each element; subtracting these halves from
    # the sum gives the sum of signed numbers.
    half = 2 ** (bits - 1)
    moved = (stored.astype(np.int8) ^ half).sum(rest, dtype=np.int64)
    return moved - half * (stored.size // stored.shape[axis])
