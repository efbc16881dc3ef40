"""Bit strings, item by item."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from npulab.layout.bitstream import put_bits


def pack_bits(items: Iterable[tuple[int, int]]) -> bytes:
    """The bytes of (value, width) items, the last byte filled up with zeros.

    Width is 0 to 32, a value is taken modulo ``2**width``.

    >>> pack_bits([(1, 4), (2, 4), (0x30, 8)]).hex()
    '2130'
    """
    pairs = np.array(list(items), np.int64).reshape(-1, 2)
    values, widths = pairs[:, 0], pairs[:, 1]
    if np.any((widths < 0) | (widths > 32)):
        raise ValueError(
            f"bit string: got width {widths[(widths < 0) | (widths > 32)][0]}, allowed is 0 to 32"
        )
    values = values.astype(np.uint64) & ((np.uint64(1) << widths.astype(np.uint64)) - np.uint64(1))
    ends = np.cumsum(widths)
    return put_bits(values, ends - widths, int(ends[-1]) if len(ends) else 0)
