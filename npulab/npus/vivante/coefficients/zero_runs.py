"""The zero runs of a Huffman stream (V8) with whole arrays: from tokens to values and back.

The values of a stream are the two bytes with the number of kernels, then the weights less their
zero point. Each coded byte has a token (see ``codes``), which says for which values the byte
stands, and a way: by bit length, as it is, or by an entry of the table of runs. The tokens follow
from values and ways.
"""

from __future__ import annotations

import numpy as np
from numpy import ndarray as Array

from npulab.npus.vivante.coefficients.codes import (
    COUNT_BYTES,
    ENTRY,
    LONGEST,
    RAW,
    RAW_LENGTH,
    TOKENS,
    Coding,
)

# The ways to write a byte: by the bit length of its value, as it is, or as a run by entry n of the
# table (BY_ENTRY + n).
BY_LENGTH, AS_IT_IS, BY_ENTRY = 0, 1, 2
# By byte: the bit length of its magnitude, which is its two's complement if it is negative.
LENGTHS = np.array([min(byte, 256 - byte).bit_length() for byte in range(256)])
AS_IT_IS_COST = 2  # the cost of a zero that is written as it is; a run costs 1


def reaches(tokens: Array, entries: tuple[int, ...]) -> Array:
    """Return how many values each token stands for."""
    table = np.ones(TOKENS, np.int64)
    table[ENTRY : ENTRY + len(entries)] = entries
    return table[tokens]


def go_round(reach: Array, needed: int) -> bool:
    """True if all bytes stand for at least ``needed`` values, and all bytes except the last two for
    at most ``needed``. ``reach`` has the number of values that each byte stands for."""
    total = int(reach.sum())
    return total - int(reach[-2:].sum()) <= needed <= total


def expanded(tokens: Array, entries: tuple[int, ...]) -> Array:
    """Return the values of a stream from its tokens and the lengths of runs (``entries``). They
    include the zeros that fill up the last pair of bytes."""
    reach = reaches(tokens, entries)
    out = np.zeros(int(reach.sum()), np.uint8)
    literal = tokens < ENTRY
    starts = np.cumsum(reach) - reach
    out[starts[literal]] = tokens[literal] % RAW
    return out


def ways(tokens: Array) -> Array:
    """Return the way in which the byte of each token is written."""
    found = tokens // RAW
    runs = tokens >= ENTRY
    found[runs] += tokens[runs] % RAW
    return found.astype(np.uint8)


def tokens_of(values: Array, written: Array, entries: tuple[int, ...], core: int) -> Array:
    """Return the tokens of a core's values. ``written`` has the way of each coded byte, ``entries``
    the lengths of runs. Raises ValueError if the ways do not fit the values.
    """
    written = written.astype(np.uint16)
    tokens, runs = RAW * written, written >= BY_ENTRY
    tokens[runs] = ENTRY + written[runs] - BY_ENTRY
    sound = len(written) % 2 == 0 and int(written.max(initial=0)) < BY_ENTRY + len(entries)
    if sound:
        reach = reaches(tokens, entries)
        sound = go_round(reach, len(values))
    if sound:
        room = np.zeros(int(reach.sum()), np.uint8)
        room[: len(values)] = values
        starts = np.cumsum(reach) - reach
        literals = room[starts[~runs]]
        tokens[~runs] += literals
        sound = np.count_nonzero(literals) == np.count_nonzero(values)
    if not sound:
        raise ValueError(
            f"coefficients: items: got ways to write bytes of core {core} that do not fit its "
            "weights, allowed are whole pairs of bytes with runs only where zero points are; "
            "without items the encoder chooses the ways"
        )
    return tokens


def choose_ways(values: Array, coding: Coding) -> Array:
    """Return the ways to write a core's values in few bytes: an element for each byte, fill of the
    last pair included. One more element has the free bits of the flush: 1 if there is fill, else 0.

    The two bytes with the number of kernels are written without runs.
    """
    zeros = values == 0
    zeros[:COUNT_BYTES] = False
    starts, lengths = segments(zeros)
    others = np.flatnonzero(~zeros)
    by_length = np.zeros(RAW_LENGTH + 2, bool)
    by_length[[length for length in coding.symbols if 0 < length < RAW_LENGTH]] = True
    literal = np.where(by_length[LENGTHS[values[others]]], BY_LENGTH, AS_IT_IS)
    # By byte, `found` has its way and `places` the number of a value: of the byte's value or, for
    # the runs of a segment of zeros, of the segment's first. A stable sort keeps the runs' order.
    places, found = [others], [literal]
    sizes, first = plan(coding.entries)
    while len(starts):
        size, way = sizes[lengths], first[lengths]
        count = lengths // size
        places.append(np.repeat(starts, count))
        found.append(np.repeat(way, count))
        lengths = lengths % size
        starts, lengths = starts[lengths > 0], lengths[lengths > 0]
    order = np.argsort(np.concatenate(places), kind="stable")
    odd = len(order) % 2
    fill = np.full(odd, AS_IT_IS)
    return np.concatenate([np.concatenate(found)[order], fill, [odd]]).astype(np.uint8)


def segments(zeros: Array) -> tuple[Array, Array]:
    """Return the begins and the lengths of the segments in which all of ``zeros`` is True. Segments
    that are longer than the longest run are cut into pieces."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], zeros, [False]]).view(np.int8)))
    starts, ends = edges[::2], edges[1::2]
    pieces = (ends - starts - 1) // LONGEST + 1
    number = np.arange(int(pieces.sum())) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    first = np.repeat(starts, pieces) + LONGEST * number
    return first, np.minimum(np.repeat(ends, pieces) - first, LONGEST)


def plan(entries: tuple[int, ...]) -> tuple[Array, Array]:
    """Return two arrays that say how to write 0 to ``LONGEST`` zeros, indexed by the number of
    zeros: the length of the run that is written first, as often as it fits, and its way."""
    lengths = np.arange(LONGEST + 1)
    cost, sizes = AS_IT_IS_COST * lengths, np.ones(LONGEST + 1, np.int64)
    first = np.full(LONGEST + 1, AS_IT_IS)
    for number in np.argsort(entries, kind="stable").tolist():
        size = entries[number]
        with_it = lengths // size + cost[lengths % size]
        better = with_it < cost
        cost[better] = with_it[better]
        sizes[better], first[better] = size, BY_ENTRY + number
    return sizes, first


def choose_entries(lengths: Array, count: int) -> list[int]:
    """Return the lengths of at most ``count`` runs that write segments of zeros in few bytes.
    ``lengths`` has the length of each segment. Each turn adds the run that saves most bytes."""
    often = np.bincount(lengths, minlength=LONGEST + 1)
    every = np.arange(LONGEST + 1)
    cost, out = AS_IT_IS_COST * every, list[int]()
    runs = every[1:, None]
    while len(out) < count:
        # The costs with one more run: a row for each length of this run, a column for each number
        # of zeros to write.
        with_it = every // runs + cost[every % runs]
        saved = (np.maximum(cost - with_it, 0) * often).sum(1)
        best = int(saved.argmax())
        if not saved[best]:
            break
        out.append(best + 1)
        cost = np.minimum(cost, with_it[best])
    return out
