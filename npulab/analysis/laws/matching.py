"""Single laws by exact matching of bit columns: no boundary is guessed, they are where a match
ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from npulab.analysis.laws.expressions import Array
from npulab.analysis.laws.library import Library
from npulab.analysis.laws.prior import BUDGET
from npulab.analysis.laws.solved import Place
from npulab.registers.fields import WORD_BITS as WORD

SAMPLE = BUDGET.key_sample
# by word: (law, its shift against the word) -> mask of the word's bits that it gives
Matches = dict[int, dict[tuple[int, int], int]]


@dataclass(frozen=True)
class Run(Place):
    """The bits of a place equal bits ``shift`` and on of law ``law`` of the library."""

    law: int
    shift: int


def bits_of(words: Array) -> Array:
    """``(N, W, 32) uint8`` of ``(N, W) uint32``, lowest bit first."""
    data = np.ascontiguousarray(words, "<u4")
    return np.unpackbits(data.view(np.uint8).reshape(*data.shape, 4), axis=-1, bitorder="little")


def _keys(values: Array) -> Array:
    """``(32, L) uint64``: for each bit of each row of values ``(L, up to 64)``, its column as one
    number."""
    out = np.zeros((WORD, len(values)), np.uint64)
    for start in range(0, values.shape[1], WORD):
        part = values[:, start:start + WORD].T
        square = np.zeros((WORD, len(values)), np.uint32)
        square[:len(part)] = part
        _transpose(square)
        out |= square.astype(np.uint64) * np.uint64(2 ** start)
    return out


def _transpose(square: Array) -> None:
    """Bit i of row j of ``(32, L) uint32`` and bit j of row i change places: halves, quarters, ...
    at a time."""
    step = WORD // 2
    low = np.uint32(2 ** step - 1)
    while step:
        halves = square.reshape(WORD // 2 // step, 2, step, -1)
        one, other = halves[:, 0], halves[:, 1]
        moved = ((one >> np.uint32(step)) ^ other) & low
        other ^= moved
        one ^= moved * np.uint32(2 ** step)
        step //= 2
        low ^= low * np.uint32(2 ** step) if step else np.uint32(0)


def match(words: Array, library: Library, todo: Array) -> Matches:
    """Where laws equal bits on every capture; ``todo`` ``(W, 32) bool`` are the bits to explain."""
    targets = np.argwhere(todo)
    samples = _samples(len(words))
    wanted = [_keys(words[rows].T)[targets[:, 1], targets[:, 0]] for rows in samples]
    order = np.argsort(wanted[0], kind="stable")
    ordered = wanted[0][order]
    likely = np.zeros(2 ** 16, bool)
    likely[_folded(ordered)] = True
    values = library.laws.values
    hits: list[Array] = []  # law, shift, target
    for start in range(0, len(values) if len(targets) else 0, BUDGET.match_block):
        part = values[start:start + BUDGET.match_block]
        keys = [_keys(part[:, rows]).ravel() for rows in samples]
        at = np.flatnonzero(likely[_folded(keys[0])])
        left, right = (np.searchsorted(ordered, keys[0][at], side) for side in ("left", "right"))
        counts = right - left
        column = np.repeat(at, counts)
        target = order[np.repeat(left - np.concatenate([[0], counts.cumsum()])[:-1], counts) + np.arange(counts.sum())]
        same = np.ones(len(column), bool)
        for key, want in zip(keys[1:], wanted[1:], strict=True):
            same &= key[column] == want[target]
        shift, law = np.divmod(column[same], len(part))
        by_law = np.lexsort([shift, law])
        hits.append(np.stack([start + law, shift, target[same]], 1)[by_law])
    found = np.concatenate(hits) if hits else np.zeros((0, 3), int)
    return _grouped(words, values, found, targets)


def _folded(keys: Array) -> Array:
    """16 bits that depend on all of a key's."""
    return (keys * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(48)


def _samples(n: int) -> list[Array]:
    """Captures whose bits are compared as keys: all of few, two samples of many."""
    order = np.random.default_rng(5).permutation(n)
    return [order[start:start + SAMPLE] for start in range(0, min(n, 2 * SAMPLE), SAMPLE)]


def _grouped(words: Array, values: Array, found: Array, targets: Array) -> Matches:
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
    out: Matches = {}
    for of_word, *key, place in np.stack([word, law, shift - bit, bit], 1)[sure].tolist():
        masks = out.setdefault(of_word, {})
        masks[key[0], key[1]] = masks.get((key[0], key[1]), 0) | 2 ** place
    return out


def runs(words: Array, library: Library, matches: Matches, constant: Array,
         starts: Sequence[int]) -> Iterator[Run]:
    """Maximal runs of matched bits, inside of fields; a bit in between may be constant where the
    law's is, too."""
    laws = np.unique(np.array([law for masks in matches.values() for law, _ in masks], int))
    values = library.laws.values[laws]
    moving = np.bitwise_or.reduce(values, axis=1) ^ np.bitwise_and.reduce(values, axis=1)
    of_law = dict(zip(laws.tolist(), zip(moving.tolist(), values[:, 0].tolist(), strict=True), strict=True))
    still = [sum(2 ** bit for bit in np.flatnonzero(row).tolist()) for row in constant]
    levels = words[0].tolist()
    for word, masks in matches.items():
        for (law, offset), matched in masks.items():
            # bits of the law as they lie in the word
            inside, moves, level = (mask >> offset if offset >= 0 else mask * 2 ** -offset
                                    for mask in (2 ** WORD - 1, *of_law[law]))
            bridge = still[word] & inside & ~moves & ~(level ^ levels[word])
            bit = 0
            while bit < WORD:
                if not matched >> bit & 1:
                    bit += 1
                    continue
                end = last = bit
                while end < WORD and (matched | bridge) >> end & 1 and not (
                        end > bit and starts[word] >> end & 1):
                    last = end if matched >> end & 1 else last
                    end += 1
                yield Run(word, bit, last - bit + 1, law, bit + offset)
                bit = end
