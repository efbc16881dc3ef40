"""Sets of captures as rows of bits, 64 captures in a number."""

from __future__ import annotations

import numpy as np

from npulab.analysis.laws.expressions import Array


def packed(rows: Array) -> Array:
    """Pack ``(R, N) bool`` into ``(R, K) uint64``, 64 captures in a number."""
    data = np.packbits(rows, axis=1, bitorder="little")
    out = np.zeros((len(rows), -(-rows.shape[1] // 64) * 8), np.uint8)
    out[:, : data.shape[1]] = data
    return out.view("<u8")


def unpacked(rows: Array, n: int) -> Array:
    """``(R, N) bool`` of ``packed`` rows."""
    return np.unpackbits(rows.view(np.uint8), axis=1, count=n, bitorder="little").view(bool)


def counted(rows: Array) -> Array:
    """The number of captures in each row of ``(R, N) bool``, (R,)."""
    return np.bitwise_count(np.packbits(rows, axis=1)).sum(1, dtype=np.int64)


def distinct(rows: Array) -> Array:
    """The first row of each kind of ``(R, K) uint64`` rows, by rising number."""
    weights = (
        np.random.default_rng(2).integers(1, 2**62, rows.shape[1]).astype(np.uint64) * np.uint64(2)
        + 1
    )
    # equal rows have equal sums; two different rows do with a chance of 1 in 2**63
    return np.sort(
        np.unique(rows @ weights if rows.shape[1] > 1 else rows[:, 0], return_index=True)[1]
    )


def weighed(rows: Array, weights: Array) -> Array:
    """The sum of ``weights (N,)`` over the captures of each row of ``(R, N) bool``, (R,)."""
    return weighed_octets(np.packbits(rows, axis=1, bitorder="little"), weights)


def weighed_octets(rows: Array, weights: Array) -> Array:
    """``weighed`` for packed rows ``(R, K) uint8``.

    Eight captures at a time are looked up in a table of their sums, which is quicker than a product
    of matrices and takes one thread.
    """
    octets = np.zeros((rows.shape[1], 8))
    octets.ravel()[: len(weights)] = weights
    sums = octets @ (np.arange(256) >> np.arange(8)[:, None] & 1)
    return sum(map(np.take, sums, rows.T), np.zeros(len(rows)))
