"""Loops compiled by numba (the extra ``npulab[fast]``) for the steps that go item by item."""

from __future__ import annotations

import numpy as np

from npulab.quant.emulate.jit import compiled

POWERS = 2 ** np.arange(32, dtype=np.uint64)
ONES = 2 ** np.arange(16, dtype=np.int64) - 1
CODES, ESCAPES = 63, 15 * 64  # of two bytes
HALF = np.uint64(2**32)


@compiled
def runs(words, at, end, zrl, lengths, gaps, zero, counts, out):  # type: ignore[no-untyped-def]
    """Opens zero runs from bit ``at`` of ``words`` (uint32) on: the weights to ``out``, the items
    of each segment of so many weights to ``counts``; ``gaps`` are the bits behind each.  False
    where a run goes past its segment or the stream past ``end``."""
    width, longest, place = zrl + 8, 2**zrl - 1, 0
    for segment in range(lengths.size):
        left, count = lengths[segment], 0
        while left > 0:
            if at + width > end:
                return False
            item = (words[at >> 5] + HALF * np.uint64(words[(at >> 5) + 1])) >> np.uint64(at & 31)
            run = np.int64(item) & longest
            if run >= left:
                return False
            for k in range(place, place + run):
                out[k] = zero
            out[place + run] = (item >> np.uint64(zrl)) & np.uint64(255)
            place += run + 1
            left -= run + 1
            at += width
            count += 1
        counts[segment] = count
        at += gaps[segment]
    return True


@compiled
def decode_pairs(words, at, end, steps, flush, table, values, out):  # type: ignore[no-untyped-def]
    """Bytes of Huffman steps from bit ``at`` of ``words`` (uint32) on, to ``out (steps - 2, 2)``;
    the bit behind them, -1 where they go past ``end`` or the last codes are not ``flush``.

    ``table`` is by codes and what may be their escapes: bits of both, widths of both payloads, ways
    of both bytes, 4 bits each; ``values`` by way and payload.
    """
    before = info = np.int64(0)
    for step in range(steps):
        if at >= end:
            return -1
        window = np.int64(
            (words[at >> 5] + HALF * np.uint64(words[(at >> 5) + 1])) >> np.uint64(at & 31)
        )
        ready, codes = info, window & CODES
        info = np.int64(table[before | (window & ESCAPES)])
        bits = info & 15
        if step == 0:
            bits = np.int64(6)
        elif step >= 2:
            payload, first, second = window >> bits, ready >> 4 & 15, ready >> 8 & 15
            out[step - 2, 0] = values[(ready >> 12 & 15) * 256 + (payload & ONES[first])]
            payload >>= first
            out[step - 2, 1] = values[(ready >> 16) * 256 + (payload & ONES[second])]
            bits += first + second
        if step >= steps - 2 and codes != flush:
            return -1
        at += bits
        before = codes
    return at


@compiled
def encode_pairs(stream, flush, code, escape, payload, out):  # type: ignore[no-untyped-def]
    """Huffman steps of ``stream (pairs, 2)`` to ``out`` (uint32 words, 0); their bits.  The tables
    are (value, width) by byte."""
    buffer, held, total, word = np.uint64(0), np.int64(0), np.int64(0), 0
    for step in range(stream.shape[0] + 2):
        value, bits = np.uint64(flush), np.int64(6)
        if step < stream.shape[0]:
            value = np.uint64(code[stream[step, 0], 0] + 8 * code[stream[step, 1], 0])
        if 1 <= step <= stream.shape[0]:
            for half in range(2):
                byte = stream[step - 1, half]
                value += escape[byte, 0] * POWERS[bits]
                bits += np.int64(escape[byte, 1])
        if step >= 2:
            for half in range(2):
                byte = stream[step - 2, half]
                value += payload[byte, 0] * POWERS[bits]
                bits += np.int64(payload[byte, 1])
        buffer += value * POWERS[held]
        held += bits
        total += bits
        if held >= 32:
            out[word] = buffer & (HALF - np.uint64(1))
            buffer >>= np.uint64(32)
            held -= 32
            word += 1
    if held:
        out[word] = buffer
    return total
