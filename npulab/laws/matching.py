"""Single laws by exact matching of bit columns: no boundary is guessed, they are where a match ends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from npulab.laws.expressions import Array
from npulab.laws.library import Library

WORD = 32
SAMPLE = 64  # captures whose bits make the key of a column
CHUNK = 8192
PLACE_COST, MIDDLE_COST = 5.0, 4.0  # bits to say where a run lies, and that it starts inside its law
AGAIN_COST = 3.0  # a law that another run has


@dataclass(frozen=True)
class Run:
    """Bits ``lsb`` to ``lsb + width - 1`` of a word equal bits ``shift`` and on of law ``law`` of the library."""

    word: int
    lsb: int
    width: int
    law: int
    shift: int


def bits_of(words: Array) -> Array:
    """``(N, W, 32) uint8`` of ``(N, W) uint32``, lowest bit first."""
    data = np.ascontiguousarray(words, "<u4")
    return np.unpackbits(data.view(np.uint8).reshape(*data.shape, 4), axis=-1, bitorder="little")


def _keys(values: Array) -> Array:
    """``(L, 32) uint64``: for each bit of each row of values ``(L, up to 64)``, its column as one number."""
    bits = bits_of(values)  # L, n, 32
    packed = np.packbits(bits.transpose(0, 2, 1), axis=-1, bitorder="little")
    out = np.zeros((*packed.shape[:2], 8), np.uint8)
    out[..., :packed.shape[2]] = packed
    return out.view("<u8")[..., 0]


def match(words: Array, library: Library, todo: Array) -> dict[tuple[int, int, int], int]:
    """Where laws equal bits on every capture: (word, law, shift against the word) -> mask of the word's bits.

    ``todo`` ``(W, 32) bool`` says which bits are asked for.
    """
    targets = np.argwhere(todo)
    samples = _samples(len(words))
    wanted = [_keys(words[rows].T)[targets[:, 0], targets[:, 1]] for rows in samples]
    order = np.argsort(wanted[0], kind="stable")
    ordered = wanted[0][order]
    values = library.values
    hits: list[Array] = []  # law, shift, target
    for start in range(0, len(values) if len(targets) else 0, CHUNK):
        part = values[start:start + CHUNK]
        keys = [_keys(part[:, rows]).ravel() for rows in samples]
        left, right = (np.searchsorted(ordered, keys[0], side) for side in ("left", "right"))
        at = np.flatnonzero(right > left)
        counts = (right - left)[at]
        column = np.repeat(at, counts)
        target = order[np.repeat(left[at] - np.concatenate([[0], counts.cumsum()[:-1]]), counts)
                       + np.arange(counts.sum())]
        same = np.ones(len(column), bool)
        for key, want in zip(keys[1:], wanted[1:], strict=True):
            same &= key[column] == want[target]
        hits.append(np.stack([start + column[same] // WORD, column[same] % WORD, target[same]], 1))
    found = np.concatenate(hits) if hits else np.zeros((0, 3), int)
    return _grouped(words, values, found, targets)


def _samples(n: int) -> list[Array]:
    """Captures whose bits are compared as keys: all of few, two samples of many."""
    order = np.random.default_rng(5).permutation(n)
    return [order[start:start + SAMPLE] for start in range(0, min(n, 2 * SAMPLE), SAMPLE)]


def _grouped(words: Array, values: Array, found: Array, targets: Array) -> dict[tuple[int, int, int], int]:
    law, shift, target = found.T
    word, bit = targets[target].T if len(target) else (target, target)
    sure = np.ones(len(law), bool)
    if len(words) > 2 * SAMPLE:  # what the samples did not show
        step = max(4_000_000 // len(words), 1)
        for start in range(0, len(law), step):
            part = slice(start, start + step)
            apart = (values[law[part]] >> shift[part, None].astype(np.uint32)) \
                ^ (words.T[word[part]] >> bit[part, None].astype(np.uint32))
            sure[part] = ~(apart & np.uint32(1)).any(1)
    out: dict[tuple[int, int, int], int] = {}
    for key_word, key_law, offset, place in zip(word[sure].tolist(), law[sure].tolist(),
                                                (shift - bit)[sure].tolist(), bit[sure].tolist(), strict=True):
        key = (key_word, key_law, offset)
        out[key] = out.get(key, 0) | 2 ** place
    return out


def runs(words: Array, library: Library, found: dict[tuple[int, int, int], int], constant: Array) -> Iterator[Run]:
    """Maximal runs of matched bits; a bit in between may be constant where the law's is, too."""
    for (word, law, offset), matched in found.items():
        values = library.values[law]
        level = int(words[0, word])
        either = int(np.bitwise_or.reduce(values)) ^ int(np.bitwise_and.reduce(values))
        bridge = 0
        for bit in range(WORD):
            at = bit + offset
            if constant[word, bit] and 0 <= at < WORD and not either >> at & 1 \
                    and (int(values[0]) >> at & 1) == (level >> bit & 1):
                bridge |= 2 ** bit
        bit = 0
        while bit < WORD:
            if not matched >> bit & 1:
                bit += 1
                continue
            end = bit
            last = bit
            while end < WORD and (matched | bridge) >> end & 1:
                last = end if matched >> end & 1 else last
                end += 1
            yield Run(word, bit, last - bit + 1, law, bit + offset)
            bit = end
