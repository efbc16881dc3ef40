"""Bit strings: bit 0 is the lowest bit of the first byte."""

from __future__ import annotations

import numpy as np
from numpy import ndarray as Array


def put_bits(values: Array, positions: Array, bits: int) -> bytes:
    """Return the bytes of a bit string of ``bits`` bits, with ``values`` at ``positions``.

    All other bits are 0. Values are below ``2**32``. Positions are bit numbers in ascending order;
    values may not overlap.

    >>> put_bits(np.array([1, 3]), np.array([0, 12]), 16).hex()
    '0130'
    """
    out = np.zeros(bits // 32 + 2, np.uint32)
    if len(values):
        places = positions >> 5
        wide = values.astype(np.uint64) << (positions & 31).astype(np.uint64)
        first = np.concatenate([[0], np.flatnonzero(places[1:] != places[:-1]) + 1])
        out[places[first]] = np.add.reduceat(wide.astype(np.uint32), first)
        # Of the values that begin in a word, only the last can reach into the next word.
        last = np.append(first[1:], len(values)) - 1
        out[places[last] + 1] |= (wide[last] >> np.uint64(32)).astype(np.uint32)
    return out.astype("<u4").tobytes()[: (bits + 7) // 8]


def bits_at(data: bytes, positions: Array, width: int) -> Array:
    """Return the values of ``width`` bits that begin at each of ``positions``.

    ``width`` is at most 57; the result is uint32 up to a width of 25, else uint64. Positions are
    bit numbers in any order; bits past the end of ``data`` are 0.

    >>> bits_at(bytes([0x21, 0x30]), np.array([4, 8, 12]), 4).tolist()
    [2, 0, 3]
    """
    wide = np.dtype("<u4" if width <= 25 else "<u8")
    # windows[n] is the number of 32 or 64 bits that begins at byte n, so one read serves each
    # position. The shift below drops up to 7 of its bits, hence the limits of 25 and 57 bits.
    windows = Array(len(data) + 1, wide, data + bytes(wide.itemsize), strides=(1,))
    # ``take`` copies all windows first, so it is quicker only if many positions are read.
    if len(data) < 8 * positions.size:
        found = windows.take(positions >> 3, mode="clip")
    else:
        found = windows[np.minimum(positions >> 3, len(data))]
    found >>= (positions & 7).astype(wide)
    found &= wide.type((1 << width) - 1)
    return found


class BitReader:
    """Reads a bit string from bit ``position`` up to, but not including, bit ``end``.

    >>> BitReader(bytes([0x21, 0x30])).read(4)
    1
    """

    def __init__(self, data: bytes, position: int = 0, end: int | None = None) -> None:
        self.data = data
        self.position = position
        if end is None:
            self.end = 8 * len(data)
        else:
            self.end = end

    def read(self, width: int) -> int:
        """Return the value of the next ``width`` bits.

        Raises EOFError, with the bit position, if fewer bits follow.
        """
        start, stop = self.position, self.position + width
        if stop > self.end:
            raise EOFError(f"bit string ends at bit {self.end}, {width} bits wanted at bit {start}")
        span = int.from_bytes(self.data[start // 8 : (stop + 7) // 8], "little")
        self.position = stop
        return span >> start % 8 & ((1 << width) - 1)
