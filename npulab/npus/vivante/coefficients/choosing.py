"""Chooses symbols and zero runs of a Huffman buffer (V8) in the vendor's dialect.

It is not known which table of zero runs the vendor's compiler picks. This module tries a table of
each size, and no table, and takes the choice with the shortest streams.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy import ndarray as Array

from npulab.npus.vivante.coefficients import huffman, pairs, zero_runs
from npulab.npus.vivante.coefficients.buffers import SYMBOLS, Coefficients, Geometry
from npulab.npus.vivante.coefficients.codes import (
    COUNT_BYTES,
    FEW,
    FEW_LENGTH,
    MANY_LENGTH,
    RAW_LENGTH,
    TABLE_BYTES,
    TABLE_SIZES,
    Coding,
    coding_of,
)
from npulab.npus.vivante.coefficients.zero_runs import AS_IT_IS, BY_ENTRY, LENGTHS


def chosen(content: Coefficients, geometry: Geometry) -> Coefficients:
    """Return the content with the symbols, and if they make the streams shorter the zero runs and
    the way to write each byte, with which the streams are shortest."""
    g = geometry
    values = [pairs.values_of(content, g, core) for core in range(g.used)]
    best = replace(content, symbols=_symbols(_counts_of_values(values)), runs=b"", items=())
    least = _bytes(best, values, g)
    zeros = []
    for core in values:
        _, lengths = zero_runs.segments(core[COUNT_BYTES:] == 0)
        zeros.append(lengths)
    for size in TABLE_SIZES:
        tried = _with_runs(content, values, np.concatenate(zeros), size)
        needed = _bytes(tried, values, g)
        if needed < least:
            best, least = tried, needed
    return best


def _with_runs(content: Coefficients, values: list[Array], zeros: Array, size: int) -> Coefficients:
    """Return the content with a table of ``size`` zero runs, its symbols, and the way to write each
    byte. ``values`` are the bytes of each core's stream, ``zeros`` the lengths of all segments of
    zeros in the streams."""
    entries = zero_runs.choose_entries(zeros, size)
    # Entries of the table that no segment needs get lengths that the table does not have yet.
    for run in range(1, size + 1):
        if len(entries) < size and run not in entries:
            entries.append(run)
    symbols = tuple(range(SYMBOLS))
    found = [zero_runs.choose_ways(core, Coding(symbols, tuple(entries)))[:-1] for core in values]
    used = np.bincount(np.concatenate(found), minlength=BY_ENTRY + size)[BY_ENTRY:]
    order = np.argsort(-used, kind="stable").tolist()
    runs = bytes([size, *(entries[number] - 1 for number in order)])
    runs = runs.ljust(1 + TABLE_BYTES, b"\0")
    counts = _counts_of_ways(values, found)
    counts[FEW_LENGTH], counts[MANY_LENGTH] = used[order[:FEW]].sum(), used[order[FEW:]].sum()
    # A table of runs leaves 9 bit lengths for 8 symbols. So the rarest length gets no symbol, and
    # its bytes are written as they are.
    sized = range(1, RAW_LENGTH)
    rarest = min(sized, key=lambda length: (counts[length], -length))
    counts[RAW_LENGTH] += counts.pop(rarest)
    coding = coding_of(_symbols(counts), runs)
    items = []
    for core in values:
        items.append(zero_runs.choose_ways(core, coding).tobytes())
    return replace(content, symbols=coding.symbols, runs=runs, items=tuple(items))


def _counts_of_values(values: list[Array]) -> dict[int, int]:
    """Return the number of bytes of each bit length, by bit length, in streams without zero
    runs."""
    counts = np.bincount(np.concatenate(values), minlength=256)
    out = dict.fromkeys(range(SYMBOLS), 0)
    for byte, count in enumerate(counts.tolist()):
        out[min(byte, 255 - byte).bit_length()] += count
    return out


def _counts_of_ways(values: list[Array], found: list[Array]) -> dict[int, int]:
    """Return the number of bytes of each bit length, by bit length, in streams with zero runs.
    ``found`` has the way of each byte. The two bit lengths that mean runs get 0."""
    out = dict.fromkeys(range(MANY_LENGTH + 1), 0)
    for core, written in zip(values, found, strict=True):
        lengths = np.bincount(LENGTHS[core], minlength=MANY_LENGTH + 1).tolist()
        for length in range(1, RAW_LENGTH):
            out[length] += lengths[length]
        out[RAW_LENGTH] += int(np.count_nonzero(written == AS_IT_IS))
    return out


def _symbols(counts: dict[int, int]) -> tuple[int, ...]:
    """Return the symbol map: the bit lengths from the most frequent to the rarest. ``counts`` has
    the number of bytes by bit length, over all streams.

    The order of swaps decides between equal counts. With this order the result is the vendor's only
    known map without zero runs (PID 0x9F)."""
    out = sorted(counts)
    for place in range(len(out)):
        for other in range(place + 1, len(out)):
            if counts[out[other]] > counts[out[place]]:
                out[place], out[other] = out[other], out[place]
    return tuple(out)


def _bytes(content: Coefficients, values: list[Array], geometry: Geometry) -> int:
    """Return how many bytes the streams of all cores take in the buffer."""
    total = 0
    for core, of_core in enumerate(values):
        total += huffman.stream_bytes(pairs.bits_of(content, of_core, geometry, core))
    return total
