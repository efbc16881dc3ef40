"""Single laws by exact matching of bit columns: no boundary is guessed, they are where a match
ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from npulab.analysis.laws.expressions import Array
from npulab.analysis.laws.library import Library
from npulab.analysis.laws.prior import BUDGET
from npulab.analysis.laws.solved import Place
from npulab.registers.fields import WORD_BITS as WORD

SAMPLE = BUDGET.key_sample


@dataclass(frozen=True, eq=False)
class Matches:
    """What laws give on every capture, ``(M,)`` each: in a ``word`` the bits of a ``mask`` are those
    of a ``law``, ``offset`` bits further up in it."""

    word: Array
    law: Array
    offset: Array
    mask: Array


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
    shuffled = np.random.default_rng(5).permutation(len(words))
    samples = [shuffled[start:start + SAMPLE] for start in range(0, len(words), SAMPLE)]  # one key each
    wanted = [_keys(words[rows].T)[targets[:, 1], targets[:, 0]] for rows in samples]
    order = np.argsort(wanted[0], kind="stable")
    ordered = wanted[0][order]
    likely = np.zeros(2 ** 16, bool)
    likely[_folded(ordered)] = True
    values = library.laws.values
    hits: list[Array] = []  # law, shift, target
    for start in range(0, len(values) if len(targets) else 0, BUDGET.match_block):
        part = values[start:start + BUDGET.match_block]
        keys = _keys(part[:, samples[0]]).ravel()
        at = np.flatnonzero(likely[_folded(keys)])
        left, right = (np.searchsorted(ordered, keys[at], side) for side in ("left", "right"))
        counts = right - left
        column = np.repeat(at, counts)
        target = order[np.repeat(left - np.concatenate([[0], counts.cumsum()])[:-1], counts) + np.arange(counts.sum())]
        shift, law = np.divmod(column, len(part))
        laws, of = np.unique(law, return_inverse=True)
        same = np.ones(len(column), bool)
        for rows, want in zip(samples[1:], wanted[1:], strict=True):
            same &= _keys(part[np.ix_(laws, rows)])[shift, of] == want[target]
        found = np.stack([start + law, shift, target], 1)[same]
        hits.append(found[np.lexsort(found[:, 1::-1].T)])
    return _grouped(words, values, np.concatenate(hits) if hits else np.zeros((0, 3), int), targets)


def _folded(keys: Array) -> Array:
    """16 bits that depend on all of a key's."""
    return (keys * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(48)


def _grouped(words: Array, values: Array, found: Array, targets: Array) -> Matches:
    law, shift, target = found.T
    word, bit = targets[target].T if len(target) else (target, target)
    # the place of a law against a word as one number
    size = len(words[0]), len(values), 2 * WORD
    keys = np.ravel_multi_index((word, law, shift - bit + WORD), size)
    order = np.argsort(keys, kind="stable")
    kinds, first = np.unique(keys[order], return_index=True)
    masks = np.bitwise_or.reduceat(2 ** bit[order], first) if len(first) else first
    word, law, offset = np.unravel_index(kinds, size)
    return Matches(word, law, offset - WORD, masks)


def runs(words: Array, library: Library, matches: Matches, constant: Array, starts: Sequence[int]) -> Array:
    """``(R, 5)``: word, lowest bit, width, law and the law's own lowest bit of each maximal run of
    matched bits, inside of fields; a bit in between may be constant where the law's is, too."""
    laws, of_law = np.unique(matches.law, return_inverse=True)
    values = library.laws.values[laws].astype(np.int64)
    moves = (np.bitwise_or.reduce(values, axis=1) ^ np.bitwise_and.reduce(values, axis=1))[of_law]
    up, down = np.maximum(matches.offset, 0), np.maximum(-matches.offset, 0)
    # bits of the law as they lie in the word
    inside, moves, level = ((mask >> up) * 2 ** down for mask in (2 ** WORD - 1, moves, values[:, 0][of_law]))
    still = constant @ (2 ** np.arange(WORD))
    alike = ~(level ^ words[0].astype(np.int64)[matches.word])
    filled = matches.mask | still[matches.word] & inside & ~moves & alike
    first = np.array(starts, np.int64)
    left, rows, out = matches.mask, np.arange(len(filled)), [np.zeros((0, 5), np.int64)]
    while len(rows):
        low = left & -left
        run = filled & ~(filled + low)  # adding to it carries through the bits of a run
        above = first[matches.word[rows]] & -2 * low  # fields that begin after it does
        run &= (above & -above) - 1
        lsb, end = (np.frexp(bits)[1] for bits in (low, left & run))
        out.append(np.stack([matches.word[rows], lsb - 1, end - lsb + 1, matches.law[rows],
                             matches.offset[rows] + lsb - 1], 1))
        left = left & ~run
        more = left != 0
        left, filled, rows = left[more], filled[more], rows[more]
    return np.concatenate(out)
