"""Sets of captures as rows of bits, packed so that a uint64 number holds 64 captures."""

from __future__ import annotations

import numpy as np

from npulab.analysis.laws.expressions import Array


def packed(rows: Array) -> Array:
    """Pack ``(R, N) bool`` into ``(R, K) uint64``, with 64 captures in each number."""
    data = np.packbits(rows, axis=1, bitorder="little")
    out = np.zeros((len(rows), -(-rows.shape[1] // 64) * 8), np.uint8)
    out[:, : data.shape[1]] = data
    return out.view("<u8")


def unpacked(rows: Array, n: int) -> Array:
    """The ``(R, N) bool`` from which ``packed`` made these rows; ``n`` is N."""
    return np.unpackbits(rows.view(np.uint8), axis=1, count=n, bitorder="little").view(bool)


def counted(rows: Array) -> Array:
    """``(R,)``: the number of captures in each row of ``(R, N) bool``."""
    return np.bitwise_count(np.packbits(rows, axis=1)).sum(1, dtype=np.int64)


def distinct(rows: Array) -> Array:
    """The indices of ``(R, K) uint64`` rows that equal no earlier row, in rising order."""
    weights = (
        np.random.default_rng(2).integers(1, 2**62, rows.shape[1]).astype(np.uint64) * np.uint64(2)
        + 1
    )
    # equal rows have equal sums; two different rows have equal sums with a chance of 2**-63
    return np.sort(
        np.unique(rows @ weights if rows.shape[1] > 1 else rows[:, 0], return_index=True)[1]
    )


def weighed(rows: Array, weights: Array) -> Array:
    """``(R,)``: the sum of ``weights (N,)`` over the captures in each row of ``(R, N) bool``."""
    return weighed_octets(np.packbits(rows, axis=1, bitorder="little"), weights)


def weighed_octets(rows: Array, weights: Array) -> Array:
    """``weighed`` for rows ``(R, K) uint8`` in which each byte holds eight captures.

    The sums of all 256 subsets of eight captures are made first, then looked up. That is quicker
    than a matrix product and takes one thread.
    """
    octets = np.zeros((rows.shape[1], 8))
    octets.ravel()[: len(weights)] = weights
    sums = octets @ (np.arange(256) >> np.arange(8)[:, None] & 1)
    return sum(map(np.take, sums, rows.T), np.zeros(len(rows)))
