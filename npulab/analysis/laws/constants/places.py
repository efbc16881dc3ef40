"""Places of a stream as numbers: a place is a byte offset, read as a word of 1, 2 or 4 bytes in
either byte order. Places with equal numbers on all captures share a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy import ndarray as Array

WIDTHS = (1, 2, 4)
LITTLE, BIG = 0, 1
LEAST = 3  # a place has at least LEAST different values (2 if there are two captures)


@dataclass(frozen=True, eq=False)
class Rows:
    """The different places of one width.

    ``codes (U, N) uint32`` are the numbers of each row, ``present (U, N) bool`` the captures that
    have these bytes. Place ``i`` has the offset ``offsets[i]`` and the byte order ``order[i]``, and
    its numbers are in row ``row[i]``; places are sorted by row, then by offset.
    """

    width: int
    codes: Array
    present: Array
    offsets: Array
    order: Array
    row: Array

    def of(self, number: int) -> Iterator[tuple[int, int]]:
        """Yield (offset, byte order) of each place of a row."""
        first, last = np.searchsorted(self.row, [number, number + 1])
        chosen = slice(first, last)
        yield from zip(self.offsets[chosen].tolist(), self.order[chosen].tolist(), strict=True)


def rows_of(data: Array, present: Array, left_out: Array, width: int) -> Rows:
    """The places of one width whose numbers vary enough between the streams ``data (N, B) uint8``.
    No place holds a byte of ``left_out (B,) bool``.
    """
    captures, size = data.shape
    count = max(size - width + 1, 0)
    orders = [LITTLE, BIG]
    if width == 1:
        orders = [LITTLE]
    codes, offsets, order = [], [], []
    there = np.ones((count, captures), bool)
    free = np.ones(count, bool)
    for byte in range(width):
        there &= present.T[byte : byte + count]
        free &= ~left_out[byte : byte + count]
    # words are made only where a byte differs between captures, because most bytes do not
    moved = _moving(data, width, count) & free
    places = np.flatnonzero(moved)
    for way in orders:
        codes.append(words_at(data, places, width, way))
        offsets.append(places)
        order.append(np.full(len(places), way))
    every = np.concatenate(codes)
    present_rows = np.concatenate([there[places]] * len(orders))
    enough = different(every, present_rows) >= min(LEAST, captures)
    return _unique(
        width,
        every[enough],
        present_rows[enough],
        np.concatenate(offsets)[enough],
        np.concatenate(order)[enough],
    )


def _moving(data: Array, width: int, count: int) -> Array:
    byte_moves = (data != data[0]).any(0)
    moves = np.zeros(count, bool)
    for byte in range(width):
        moves |= byte_moves[byte : byte + count]
    return moves


def words_at(data: Array, places: Array, width: int, order: int) -> Array:
    """The words ``(places, N) uint32`` at the given places."""
    out = np.zeros((len(places), len(data)), np.uint32)
    for byte in range(width):
        at = places + byte
        if order == LITTLE:
            at = places + width - 1 - byte
        out = out * np.uint32(256) + data[:, at].T
    return out


def different(codes: Array, counted: Array) -> Array:
    """The number of different codes in each row ``(R, N)``, of the codes marked in ``counted (R,
    N)``.
    """
    wide = np.where(counted, codes.astype(np.int64), -1)
    ordered = np.sort(wide, axis=1)
    steps = (ordered[:, 1:] != ordered[:, :-1]) & (ordered[:, 1:] >= 0)
    return steps.sum(1) + (ordered[:, 0] >= 0)


def mixed(codes: Array) -> Array:
    """A hash ``(R,) uint64`` of each row of codes ``(R, N)``: equal rows have equal hashes, two
    different rows have with a chance of about 2**-64.
    """
    out = np.zeros(len(codes), np.uint64)
    for column in range(codes.shape[1]):
        out = (out ^ codes[:, column]) * np.uint64(0x9E3779B97F4A7C15)
        out ^= out >> np.uint64(29)
    return out


def _unique(width: int, codes: Array, present: Array, offsets: Array, order: Array) -> Rows:
    # a code that a stream does not have becomes 0xFFFFFFFF, so that its row equals no row that has
    # the code
    keys = mixed(np.where(present, codes, np.uint32(0xFFFFFFFF)))
    _, first, row = np.unique(keys, return_index=True, return_inverse=True)
    ordered = np.lexsort([order, offsets, row])
    return Rows(
        width,
        codes[first],
        present[first],
        offsets[ordered],
        order[ordered],
        row[ordered],
    )
