"""Laws between words: a word may be a checksum of words of its capture, or an address that is
another address plus a size.

These laws are sought once, for the bits that are still open after the search for laws over
parameters.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from npulab.analysis.laws.boundaries import information
from npulab.analysis.laws.checksums import KINDS, After, Checksum, Kind, Word
from npulab.analysis.laws.expressions import (
    FIELD,
    Array,
    Expression,
    checksum,
    constant,
    field,
    shifted,
    term,
)
from npulab.analysis.laws.library import Library
from npulab.analysis.laws.matching import bits_of
from npulab.analysis.laws.prior import BUDGET, PRIOR, constant_cost
from npulab.analysis.laws.singles import explain_singly
from npulab.analysis.laws.solved import Place, Rival, Solved, covered, runs_of
from npulab.analysis.laws.state import State, Watch
from npulab.registers.fields import WORD_BITS

WIDTHS = (32, 16, 8)  # the widths in bits of fields that hold checksums, the widest first

# odd factors: the sum of a column's values, each times its factor, is a hash of the column
FACTORS = np.random.default_rng(5).integers(2**62, size=BUDGET.lane_sample, dtype=np.uint64) * 2 + 1


def between(state: State, library: Library) -> State:
    """The state with laws between words for bits that are still open."""
    return differences(checksums(state), library)


# Checksums ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Found:
    """A checksum of the words ``first`` to ``end - 1`` that gives the field ``lane``.

    If the field lies in one of these words, its bits count as 0 there. If the kind adds, the field
    is ``constant`` plus ``sign`` times the sum; else it is the checksum xored with ``constant``.
    """

    lane: Place
    kind: Kind
    first: int
    end: int
    sign: int
    constant: int

    @property
    def order(self) -> tuple[int, ...]:
        """A key for sorting: the likeliest of several checksums of a field comes first.

        A shorter checksum may lie in the words of a longer one, which can then read it.

        Checksums with constant 0 come first, then checksums of words that do not hold the field,
        then sums with the sign 1. Of two checksums the one of fewer words comes first. If each of
        two words is the exclusive or of the other words, the word with the higher number is taken
        as the checksum.
        """
        has_own = self.first <= self.lane.word < self.end
        words = self.end - self.first
        return self.constant, has_own, -self.sign, words, -self.lane.word

    def gives(self, words: Array) -> bool:
        """True if the checksum equals the field on all captures, ``words (N, W) int64``."""
        values = self.lane.raw(words)
        words = words.copy()
        words[:, self.lane.word] &= ~self.lane.mask
        found = self.kind.value(words.T[self.first : self.end], len(words))
        if self.kind.adds:
            found = self.constant + self.sign * found
        else:
            found ^= self.constant
        return bool((found % 2**self.lane.width == values).all())


def checksums(state: State) -> State:
    """Explain open bits by checksums of other words."""
    # captures with equal words count once
    words = np.unique(state.captures.words, axis=0).astype(np.int64)
    open_ = state.todo @ 2 ** np.arange(WORD_BITS)
    tries = math.log2(len(KINDS) * words.shape[1] ** 3)
    found: list[_Found] = []
    for width in WIDTHS:
        lanes = []
        somewhere = np.flatnonzero(open_).tolist()
        for word, lsb in itertools.product(somewhere, range(0, WORD_BITS, width)):
            lane = Place(word, lsb, width)
            if _which(words[:, word] & open_[word] & lane.mask) > tries + PRIOR.selection:
                lanes.append(lane)
        found += _matching(words, lanes[-BUDGET.lanes :], width)
    best = defaultdict(list)
    for one in sorted(found, key=lambda one: one.order):
        best[one.lane].append(one)
    for founds in best.values():
        state = _accepted(state, founds, tries)
    return state


def _which(values: Array) -> float:
    """The bits of information in ``values (N,)``: the number of values times their entropy."""
    counts = np.unique(values, return_counts=True)[1]
    return float((counts * np.log2(len(values) / counts)).sum())


def _matching(words: Array, lanes: Sequence[Place], width: int) -> Iterator[_Found]:
    """Yield the checksums that give a field of ``lanes`` on all captures ``words (N, W)``; all
    these fields have the same ``width``.

    At most one checksum is yielded for each field, each linear kind and each sign. A sample of the
    captures selects the runs of words, then all captures check them.
    """
    few = BUDGET.lane_sample // width
    sample = words[np.unique(np.linspace(0, len(words) - 1, few).astype(int))]
    alike = defaultdict(list)
    for kind in KINDS.values():
        if lanes and width in kind.widths:
            alike[kind.linear].append(kind)
    for linear, kinds in alike.items():
        after = linear.after(words.shape[1])
        signs = [1]
        if linear.adds:
            signs.append(-1)
        for lane, sign in itertools.product(lanes, signs):
            runs = _runs(sample.T, lane, linear, sign, after)
            for number, kind, run in itertools.product((0, 2**width - 1), kinds, runs):
                found = _Found(lane, kind, *run, sign, number)
                if found.gives(words[:1]) and found.gives(words):
                    yield found
                    break


def _runs(words: Array, lane: Place, kind: Kind, sign: int, after: After) -> list[tuple[int, int]]:
    """The runs of ``words (W, S)`` whose checksum differs from the field ``lane`` by a constant,
    each as (first word, the word after the last).

    ``begun[a]`` is the checksum of the words before word a, advanced over all later words as if
    they were 0. ``ended[b]`` is the value of the field, advanced over word b and all later words. A
    run from word a to word b - 1 is found if ``begun[b]`` without ``begun[a]`` is ``ended[b]``.

    A run of a cyclic code has at least one word that varies, besides the word of the field; a run
    of a sum or an exclusive or has at least two. If the field differs from another word by a
    constant, it is not tried as a sum or an exclusive or: that word, with words that cancel each
    other, would look like the words of a checksum.
    """
    count = len(words)
    values = lane.raw(words.T)
    covers = words.copy()
    covers[lane.word] &= ~lane.mask
    parts = kind.of_word(covers)
    parts = kind.apart(parts, parts[:, :1])
    values = sign * kind.apart(values, values[:1])
    others = np.arange(count) != lane.word
    copies = np.stack([values, kind.apart(values, parts[lane.word])])
    if not kind.polynomial and np.isin(_keys(copies, lane), _keys(parts[others], lane)).any():
        return []
    begun = np.zeros((count + 1, words.shape[1]), np.int64)
    kind.join.accumulate(after(parts, np.arange(count)[::-1]), out=begun[1:])
    ended = after(np.broadcast_to(values, begun.shape), np.arange(count + 1)[::-1])
    wanted = _keys(kind.apart(begun, ended), lane)
    firsts, ends = np.nonzero(_keys(begun, lane)[:, None] == wanted)
    varied = np.cumsum([0, *(others & parts.any(1))])
    least = 2
    if kind.polynomial:
        least = 1
    keep = varied[ends] - varied[firsts] >= least
    runs = np.stack([firsts, ends], 1)[keep]
    has_own = (runs[:, 0] <= lane.word) & (lane.word < runs[:, 1])
    order = np.lexsort([runs[:, 0] - runs[:, 1], has_own])
    return [(first, end) for first, end in runs[order[: BUDGET.lane_runs]].tolist()]


def _keys(values: Array, lane: Place) -> Array:
    """A number for each row of values, cut to the width of the field; equal rows have equal
    numbers.
    """
    cut = values & (2**lane.width - 1)
    return np.asarray(cut.astype(np.uint64) @ FACTORS[: cut.shape[1]])


def _accepted(state: State, founds: Sequence[_Found], tries: float) -> State:
    """The state in which the first checksum in ``founds`` is a law; all checksums are of one field,
    and those after the first become rivals.

    The law gives the whole field if its bits are open. It also does so if all fields that the
    checksum reads have laws, and the laws of bits of this field can be dropped: no law reads them.
    Else it gives only the open bits of the field. The state stays the same if the checksum reads
    the field itself, directly or through other fields.
    """
    lane = founds[0].lane
    laws = [_law(state, found) for found in founds]
    reads = laws[0].names(FIELD)
    reads = reads.union(*(state.follows.get(name, frozenset()) for name in reads))
    for read in map(Place.named, reads):
        if read.word == lane.word and read.mask & lane.mask:
            return state
    here = lane.mask >> np.arange(WORD_BITS) & 1 == 1
    places = runs_of(state.todo[lane.word] & here, lane.word)
    inside = [one for one in state.solved if one.word == lane.word and one.mask & lane.mask]
    whole = not state.is_read(*inside) and all(one.mask & ~lane.mask == 0 for one in inside)
    if state.is_open(lane) or (whole and reads <= {one.name for one in state.solved}):
        places = [lane]
    else:
        inside = []
    for place in places:
        laws_here = [shifted(law, place.lsb - lane.lsb) for law in laws]
        rivals = tuple(Rival(law=law) for law in laws_here[1:])
        solved = _always(state, place, laws_here[0], tries)
        state = state.accept(replace(solved, rivals=rivals), instead_of=inside)
    return state


def _always(state: State, place: Place, law: Expression, cost: float) -> Solved:
    explained = float(state.captures.information[:, place.word, place.lsb : place.end].sum())
    return Solved.always(place, law, state.captures.n, cost, explained)


def _law(state: State, found: _Found) -> Expression:
    """A checksum as a law over the fields of its words."""
    text = f"w{found.first}_0_{WORD_BITS} to w{found.end - 1}_0_{WORD_BITS}"
    words = []
    for number in range(found.first, found.end):
        without = 0
        if number == found.lane.word:
            without = found.lane.mask
            text += f" without {found.lane.name}"
        words.append(_word(state, number, without))
    law = checksum(Checksum(found.kind, tuple(words), text))
    if not found.kind.adds and found.constant:
        return term("^", law, found.constant)
    if found.sign < 0:
        return term("-", found.constant, law)
    return _plus(law, found.constant)


def _plus(law: Expression, other: Expression | int) -> Expression:
    if other in (0, constant(0)):
        return law
    return term("+", law, other)


def _word(state: State, number: int, without: int) -> Word:
    """A word as a constant and pieces: its fields with laws, and its runs of bits that vary without
    a law. Bits of the mask ``without`` are in no piece.
    """
    free = state.captures.varies[number] & (without >> np.arange(WORD_BITS) & 1 == 0)
    places: list[Place] = []
    for solved in state.solved:
        if solved.word == number and not solved.mask & without:
            places.append(solved)
            free[solved.lsb : solved.end] = False
    places += runs_of(free, number)
    pieces = tuple((place.name, place.lsb) for place in places)
    still = ~covered(places, number + 1)[number]
    return Word(int(state.captures.words[0, number] & still), pieces, without)


# Differences --------------------------------------------------------------------------------------


def differences(state: State, library: Library) -> State:
    """Explain open words by another open word: the difference of the two is a constant, or one law
    over the parameters gives it.
    """
    pairs = _pairs(state)
    if not pairs:
        return state
    words = state.captures.words
    apart = np.stack([words[:, high] - words[:, low] for low, high in pairs], 1)
    found = _singly(state, apart, library)
    # A word gets its cheapest law, which comes first. Later laws of the word find no open bit.
    for cost, number, law in sorted(found, key=lambda one: one[:2]):
        low, high = pairs[number]
        base = _plus(field(Place(low, 0, WORD_BITS).name), law)
        for run in state.open_runs():
            if run.word == high:
                solved = _always(state, run, shifted(base, run.lsb), cost + PRIOR.field)
                state = state.accept(solved)
    return state


def _pairs(state: State) -> list[tuple[int, int]]:
    """Pairs of words with wide open runs; the word with the lower median is the first of a pair."""
    words = state.captures.words
    wide = {run.word for run in state.open_runs() if run.width >= BUDGET.wide_run}
    several = sorted(wide, key=lambda word: float(np.median(words[:, word])))
    return [*itertools.combinations(several[-BUDGET.wide_words :], 2)]


def _singly(
    state: State, words: Array, library: Library
) -> Iterator[tuple[float, int, Expression]]:
    """Yield (cost, number, law) of the columns that are constant, or whose bits one law gives. The
    columns of ``words (N, P)`` are differences of two words.
    """
    bits = bits_of(words)
    varies = np.asarray(bits.any(0) & ~bits.all(0))
    captures = replace(
        state.captures,
        words=words,
        varies=varies,
        information=information(bits),
        starts=[0] * len(varies),
        watch=Watch(lambda text: None),
    )
    for number in np.flatnonzero(~varies.any(1)).tolist():
        value = int(words[0, number])
        yield constant_cost(value), number, constant(value)
    for solved in explain_singly(State(captures, varies), library, lonely=True).solved:
        law = solved.steps[0][1]
        if solved.lsb:
            law = term("*", law, 2**solved.lsb)
        law = _plus(law, int(words[0, solved.word]) & ~solved.mask)
        if (state.captures.columns[law] == words[:, solved.word]).all():
            yield solved.cost, solved.word, law
