"""Symbols and zero runs of a Huffman stream (V8) in the vendor's dialect.

Which table of zero runs the vendor's compiler picks is not known. Here the buffer is made as short
as the tables that are tried allow, and never longer than without runs.
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
    """Return the content with symbols, zero runs and the ways to write each byte."""
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
    """Return the content with a table of zero runs of a size."""
    entries = zero_runs.choose_entries(zeros, size)
    # Places that no run needs have runs of their own, so that no entry stands twice.
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
    # A length of which no symbol is left is written as it is.
    sized = range(1, RAW_LENGTH)
    rarest = min(sized, key=lambda length: (counts[length], -length))
    counts[RAW_LENGTH] += counts.pop(rarest)
    coding = coding_of(_symbols(counts), runs)
    items = []
    for core in values:
        items.append(zero_runs.choose_ways(core, coding).tobytes())
    return replace(content, symbols=coding.symbols, runs=runs, items=tuple(items))


def _counts_of_values(values: list[Array]) -> dict[int, int]:
    """Return how many bytes have each bit length, without zero runs."""
    counts = np.bincount(np.concatenate(values), minlength=256)
    out = dict.fromkeys(range(SYMBOLS), 0)
    for byte, count in enumerate(counts.tolist()):
        out[min(byte, 255 - byte).bit_length()] += count
    return out


def _counts_of_ways(values: list[Array], found: list[Array]) -> dict[int, int]:
    """Return how many bytes have each bit length; bytes that stand for runs do not count."""
    out = dict.fromkeys(range(MANY_LENGTH + 1), 0)
    for core, written in zip(values, found, strict=True):
        lengths = np.bincount(LENGTHS[core], minlength=MANY_LENGTH + 1).tolist()
        for length in range(1, RAW_LENGTH):
            out[length] += lengths[length]
        out[RAW_LENGTH] += int(np.count_nonzero(written == AS_IT_IS))
    return out


def _symbols(counts: dict[int, int]) -> tuple[int, ...]:
    """Return the symbol map: bit lengths from the most frequent to the rarest, by the counts of all
    bytes of all streams.

    The swaps decide between equal counts, as in the only map without zero runs that is known of the
    vendor (PID 0x9F)."""
    out = sorted(counts)
    for place in range(len(out)):
        for other in range(place + 1, len(out)):
            if counts[out[other]] > counts[out[place]]:
                out[place], out[other] = out[other], out[place]
    return tuple(out)


def _bytes(content: Coefficients, values: list[Array], geometry: Geometry) -> int:
    """Return the bytes of all streams."""
    total = 0
    for core, of_core in enumerate(values):
        total += huffman.stream_bytes(pairs.bits_of(content, of_core, geometry, core))
    return total
