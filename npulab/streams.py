"""Bit strings: the first item lies in the lowest bits of the first byte."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np


def pack_bits(items: Iterable[tuple[int, int]]) -> bytes:
    """The bytes of (value, width) items, the last byte filled up with zeros.

    Width is 0 to 32, a value is taken modulo ``2**width``.

    >>> pack_bits([(1, 4), (2, 4), (0x30, 8)]).hex()
    '2130'
    """
    pairs = np.array(list(items), np.int64).reshape(-1, 2)
    values, widths = pairs[:, 0].astype(np.uint64), pairs[:, 1]
    if np.any((widths < 0) | (widths > 32)):
        raise ValueError(f"bit string: got width {widths[(widths < 0) | (widths > 32)][0]}, "
                         "allowed is 0 to 32")
    owner = np.repeat(np.arange(len(pairs)), widths)
    place = np.arange(len(owner)) - np.repeat(np.cumsum(widths) - widths, widths)
    bits = (values[owner] >> place.astype(np.uint64)) & np.uint64(1)
    return np.packbits(bits.astype(np.uint8), bitorder="little").tobytes()


class BitReader:
    """Reads a bit string from bit ``position`` on, never past ``end`` (bits).

    >>> BitReader(bytes([0x21, 0x30])).read(4)
    1
    """

    def __init__(self, data: bytes, position: int = 0, end: int | None = None) -> None:
        self.data = data
        self.position = position
        self.end = 8 * len(data) if end is None else end

    def read(self, width: int) -> int:
        """The next ``width`` bits; raises EOFError with the bit position where they run out."""
        start, stop = self.position, self.position + width
        if stop > self.end:
            raise EOFError(f"bit string ends at bit {self.end}, {width} bits wanted at bit {start}")
        span = int.from_bytes(self.data[start // 8:(stop + 7) // 8], "little")
        self.position = stop
        return span >> start % 8 & ((1 << width) - 1)
