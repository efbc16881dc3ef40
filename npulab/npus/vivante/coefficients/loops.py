"""Loops that numba compiles (the extra ``npulab[fast]``), for work that goes item by item.

The functions take up to 9 arguments, all arrays or numbers. A jitclass would bundle them, but numba
cannot keep it on disk: each process would compile it again.
"""

from __future__ import annotations

import numpy as np

from npulab.quant.emulate.jit import compiled

POWERS = 2 ** np.arange(32, dtype=np.uint64)
ONES = 2 ** np.arange(16, dtype=np.int64) - 1
CODES, ESCAPES = 63, 15 * 64  # masks: bits 0 to 5 are two codes, bits 6 to 9 two escapes
CODES_BITS = 6
HALF = np.uint64(2**32)
BYTE = np.uint64(255)


@compiled
def window_at(words, at):  # type: ignore[no-untyped-def]
    """Return a uint64 with the next 33 to 64 bits of ``words`` (uint32) from bit ``at`` on; bit
    ``at`` is its lowest bit."""
    word = at >> 5
    pair = words[word] + HALF * np.uint64(words[word + 1])
    return pair >> np.uint64(at & 31)


@compiled
def runs(words, at, end, zrl, lengths, gaps, zero, counts, out):  # type: ignore[no-untyped-def]
    """Expand the zero runs of a stream from bit ``at`` of ``words`` (uint32) on.

    ``lengths`` has the number of weights of each segment, ``gaps`` the number of bits after it.
    The weights are written to ``out``, the number of items of each segment to ``counts``. Returns
    False if a run goes past its segment, or an item past bit ``end``.
    """
    width, longest, place = zrl + 8, 2**zrl - 1, 0
    for segment in range(lengths.size):
        left, count = lengths[segment], 0
        while left > 0:
            if at + width > end:
                return False
            item = window_at(words, at)
            run = np.int64(item) & longest
            if run >= left:
                return False
            for k in range(place, place + run):
                out[k] = zero
            out[place + run] = (item >> np.uint64(zrl)) & BYTE
            place += run + 1
            left -= run + 1
            at += width
            count += 1
        counts[segment] = count
        at += gaps[segment]
    return True


@compiled
def decode_pairs(words, at, end, steps, flush, table, values, out):  # type: ignore[no-untyped-def]
    """Decode Huffman steps from bit ``at`` of ``words`` (uint32) on into ``out (steps - 2, 2)``.

    Returns the bit after the last step. Returns -1 if a step begins at bit ``end`` or later, or if
    the codes of the last two steps are not ``flush``. ``table`` is ``both`` of the lookup tables in
    ``pairs``: two codes and the 4 bits that may be their escapes index it. An entry packs five
    numbers of 4 bits, the lowest first: the bits before the payloads, the widths of both payloads,
    the ways of both bytes. ``values`` is indexed by 256 times the way, plus the payload.
    """
    before = info = np.int64(0)
    for step in range(steps):
        if at >= end:
            return -1
        window = np.int64(window_at(words, at))
        # From here on `info` is the table's entry for the codes of the step before, and `ready` the
        # entry for the codes of two steps before, whose payloads lie in this step.
        ready, codes = info, window & CODES
        info = np.int64(table[before | (window & ESCAPES)])
        bits = info & 15
        if step == 0:
            bits = np.int64(CODES_BITS)
        elif step >= 2:
            payload = window >> bits
            first, second = ready >> 4 & 15, ready >> 8 & 15
            first_way, second_way = ready >> 12 & 15, ready >> 16
            out[step - 2, 0] = values[first_way * 256 + (payload & ONES[first])]
            payload >>= first
            out[step - 2, 1] = values[second_way * 256 + (payload & ONES[second])]
            bits += first + second
        if step >= steps - 2 and codes != flush:
            return -1
        at += bits
        before = codes
    return at


@compiled
def count_steps(words, at, end, table):  # type: ignore[no-untyped-def]
    """Count the Huffman steps from bit ``at`` of ``words`` (uint32) to bit ``end``.

    Returns (number of steps, codes of the last step), or (0, 0) if the last step goes past
    ``end``. ``table`` is the same as in ``decode_pairs``.
    """
    before = info = np.int64(0)
    steps = 0
    while at < end:
        window = np.int64(window_at(words, at))
        ready, codes = info, window & CODES
        info = np.int64(table[before | (window & ESCAPES)])
        bits = info & 15
        if steps == 0:
            bits = np.int64(CODES_BITS)
        elif steps >= 2:
            bits += (ready >> 4 & 15) + (ready >> 8 & 15)
        at += bits
        before = codes
        steps += 1
    if at != end:
        return 0, 0
    return steps, before


@compiled
def encode_pairs(stream, flush, code, escape, payload, out):  # type: ignore[no-untyped-def]
    """Write ``stream (pairs, 2)`` as Huffman steps into ``out`` (uint32 words that are all 0);
    return the number of bits written.

    ``code``, ``escape`` and ``payload`` have a (value, width in bits) for each byte. ``flush`` has
    the codes of the last two steps.
    """
    buffer, held, total, word = np.uint64(0), np.int64(0), np.int64(0), 0
    pairs = stream.shape[0]
    for step in range(pairs + 2):
        value, bits = np.uint64(flush), np.int64(CODES_BITS)
        if step < pairs:
            value = np.uint64(code[stream[step, 0], 0] + 8 * code[stream[step, 1], 0])
        if 1 <= step <= pairs:
            for half in range(2):
                byte = stream[step - 1, half]
                value += escape[byte, 0] * POWERS[bits]
                bits += np.int64(escape[byte, 1])
        if step >= 2:
            for half in range(2):
                byte = stream[step - 2, half]
                value += payload[byte, 0] * POWERS[bits]
                bits += np.int64(payload[byte, 1])
        # A step has at most 26 bits. With at most 31 bits that are not written yet, it fits into
        # the 64 bits of `buffer`.
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
