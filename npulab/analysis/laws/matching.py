"""Laws that hold on all captures, found by comparing columns of bits; a field ends where its bits
stop to equal those of the law.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from npulab.analysis.laws.expressions import Array
from npulab.analysis.laws.library import Library
from npulab.analysis.laws.masks import distinct
from npulab.analysis.laws.prior import BUDGET
from npulab.analysis.laws.solved import Place
from npulab.registers.fields import WORD_BITS as WORD


@dataclass(frozen=True, eq=False)
class Matches:
    """The bits of words and the bits of laws that are equal on every capture.

    Equal bits have one number: ``of_bit (W, 32)`` has the number of each bit to explain, ``of_law
    (L, 32)`` that of each bit of a law; -1 means that no bit equals it. ``order`` has the bits of
    laws, as 32 law + bit, sorted by number. The bits with number i begin there at ``ends[i]``.
    """

    of_bit: Array
    of_law: Array
    order: Array
    ends: Array

    def giving(self, positions: Sequence[tuple[int, int]]) -> tuple[Array, Array]:
        """The laws that give the bits at ``positions``, all of one word; and for each law the
        number of its bit at the first position.
        """
        wanted = []
        for position in positions:
            wanted.append((int(self.of_bit[position]), position[1] - positions[0][1]))
        # The bit that the fewest laws give comes first: only these laws are checked at other bits.
        wanted.sort(key=lambda one: int(self.ends[one[0] + 1] - self.ends[one[0]]))
        (number, up), *others = wanted
        law, bit = np.divmod(self.order[self.ends[number] : self.ends[number + 1]], WORD)
        start = bit - up
        for number, up in others:
            inside = np.flatnonzero((start + up >= 0) & (start + up < WORD))
            good = inside[self.of_law[law[inside], start[inside] + up] == number]
            law, start = law[good], start[good]
        return law, start


@dataclass(frozen=True)
class Run(Place):
    """Bits of a word that equal the bits of law ``law`` from its bit ``shift`` up."""

    law: int
    shift: int


def bits_of(words: Array) -> Array:
    """``(N, W, 32) uint8``: the bits of ``(N, W) uint32``, lowest first."""
    data = np.ascontiguousarray(words, "<u4")
    return np.unpackbits(data.view(np.uint8).reshape(*data.shape, 4), axis=-1, bitorder="little")


def _keys(values: Array) -> Array:
    """``(32, L) uint64``: a key for each bit of each row of values ``(L, N)``. Bits that are equal
    on all captures have equal keys.
    """
    out = np.zeros((WORD, len(values)), np.uint64)
    more = np.random.default_rng(5).integers(2**62, size=-(-values.shape[1] // WORD)) * 2 + 1
    # Of up to 64 captures, the key of a bit is the bit's column itself. Of more captures it is a
    # sum, and two different columns hardly ever have equal sums.
    for start, factor in zip(range(0, values.shape[1], WORD), [1, 2**WORD, *more], strict=False):
        part = values[:, start : start + WORD].T
        square = np.zeros((WORD, len(values)), np.uint32)
        square[: len(part)] = part
        _transpose(square)
        out += square * np.uint64(factor)
    return out


def _transpose(square: Array) -> None:
    """Transpose 32 x 32 bits in place, for all L at once: bit i of row j of ``(32, L) uint32`` and
    bit j of row i change places.
    """
    step = WORD // 2
    low = np.uint32(2**step - 1)
    while step:
        halves = square.reshape(WORD // 2 // step, 2, step, -1)
        one, other = halves[:, 0], halves[:, 1]
        moved = ((one >> np.uint32(step)) ^ other) & low
        other ^= moved
        one ^= moved * np.uint32(2**step)
        step //= 2
        if step:
            low ^= low * np.uint32(2**step)
        else:
            low ^= np.uint32(0)


def match(words: Array, library: Library, todo: Array) -> Matches:
    """Find the bits of laws that equal bits of words on every capture; ``todo (W, 32) bool`` are
    the bits to explain.
    """
    of_bit, of_law = np.full(todo.shape, -1), np.full((len(library), WORD), -1, np.int32)
    kinds, of_bit[todo] = np.unique(_keys(words.T).T[todo], return_inverse=True)
    likely = np.zeros(2**16, bool)
    likely[_folded(kinds)] = True
    for start in range(0, len(library) if len(kinds) else 0, BUDGET.match_block):
        keys = _keys(library.laws.values[start : start + BUDGET.match_block])
        bit, law = np.nonzero(likely[_folded(keys)])
        kind = np.searchsorted(kinds[:-1], keys[bit, law])
        same = kinds[kind] == keys[bit, law]
        of_law[start + law[same], bit[same]] = kind[same]
    return Matches(of_bit, of_law, *_sorted(of_law, len(kinds)))


def _folded(keys: Array) -> Array:
    """A number of 16 bits from each key; it depends on all bits of the key."""
    return (keys * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(48)


def _sorted(numbers: Array, kinds: int) -> tuple[Array, Array]:
    """The flat indices of all numbers but -1, sorted by number; and for each number the index there
    at which it begins.
    """
    places = np.flatnonzero(numbers >= 0)
    which = numbers.ravel()[places]
    return places[np.argsort(which, kind="stable")], np.bincount(
        which + 1, minlength=kinds + 1
    ).cumsum()


def _spans(first: Array, counts: Array) -> Array:
    """The ranges that begin at ``first`` and have ``counts`` numbers each, one after the other."""
    return np.repeat(first - counts.cumsum() + counts, counts) + np.arange(counts.sum())


def _placed(matches: Matches, laws: Array) -> tuple[Array, Array, Array, Array]:
    """Where laws match, as four arrays ``(M,)``: word, index in ``laws``, offset of the law in the
    word, and a mask of the word's bits that equal the bits of the law at that offset.
    """
    order, ends = _sorted(matches.of_bit, len(matches.ends) - 1)
    law, shift = np.nonzero(matches.of_law[laws] >= 0)
    number = matches.of_law[laws[law], shift]
    counts = ends[number + 1] - ends[number]
    word, bit = np.divmod(order[_spans(ends[number], counts)], WORD)
    law, shift = np.repeat([law, shift], counts, axis=1)
    # (word, law, offset of the law in the word, bit), packed into one number that can be sorted
    size = len(matches.of_bit), len(laws), 2 * WORD, WORD
    keys = np.sort(np.ravel_multi_index((word, law, shift - bit + WORD, bit), size))
    first = np.flatnonzero(np.diff(keys // WORD, prepend=-1))
    masks = np.bitwise_or.reduceat(2 ** (keys % WORD), first)
    word, law, offset, _ = np.unravel_index(keys[first], size)
    return word, law, offset - WORD, masks


def runs(
    words: Array, library: Library, matches: Matches, constant: Array, starts: Sequence[int]
) -> Array:
    """``(R, 5)``: word, lowest bit, width, law, and the law's own bit at the lowest bit, of each
    longest run of matched bits within a field.

    A constant bit may lie inside a run if the law's bit there has the same constant value.
    """
    laws = np.flatnonzero((matches.of_law >= 0).any(1))
    given = (matches.of_law[laws] >= 0) @ 2 ** np.arange(WORD)
    values = library.laws.values[laws]
    level, moves = (
        values[:, 0].astype(np.int64),
        np.bitwise_or.reduce(values ^ values[:, :1], axis=1).astype(np.int64),
    )
    # The given bits of a law are those that equal bits of words. Laws that agree in all bits from
    # their lowest to their highest given bit match the same runs; only the first of them is used.
    between = 2 ** np.frexp(given)[1].astype(np.int64) - (given & -given) & ~given & ~moves
    rows = np.column_stack(
        [matches.of_law[laws], between, between & level, library.laws.uses[laws].view(np.int64)]
    )
    different = distinct(rows.view(np.uint64))
    laws, level, moves = laws[different], level[different], moves[different]
    word, law, offset, masks = _placed(matches, laws)
    up, down = np.maximum(offset, 0), np.maximum(-offset, 0)
    # three masks of each law, shifted to its place in the word: all bits of the law, its bits that
    # vary, and its value on the first capture
    inside, moves, level = (
        (mask >> up) * 2**down for mask in (2**WORD - 1, moves[law], level[law])
    )
    still = constant @ (2 ** np.arange(WORD))
    alike = ~(level ^ words[0].astype(np.int64)[word])
    filled = masks | still[word] & inside & ~moves & alike
    first = np.array(starts, np.int64)
    left, rows, out = masks, np.arange(len(filled)), [np.zeros((0, 5), np.int64)]
    while len(rows):
        low = left & -left
        # the run is the adjacent set bits from the lowest bit up: adding the lowest bit clears them
        run = filled & ~(filled + low)
        # the run ends below the first field that begins above the run's lowest bit
        above = first[word[rows]] & -2 * low
        run &= (above & -above) - 1
        lsb, end = (np.frexp(bits)[1] for bits in (low, left & run))
        out.append(
            np.stack(
                [word[rows], lsb - 1, end - lsb + 1, laws[law[rows]], offset[rows] + lsb - 1], 1
            )
        )
        left = left & ~run
        more = left != 0
        left, filled, rows = left[more], filled[more], rows[more]
    return np.concatenate(out)
