"""Bits that one law explains on all captures."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from npulab.analysis.laws.expressions import PARAMETER, Array, shifted
from npulab.analysis.laws.library import Library
from npulab.analysis.laws.matching import Matches, Run, match, runs
from npulab.analysis.laws.prior import BUDGET, PRIOR
from npulab.analysis.laws.solved import Place, Rival, Solved
from npulab.analysis.laws.state import State
from npulab.registers.fields import WORD_BITS


@dataclass(frozen=True)
class _Piece(Place):
    """The open bits of a ``run``, and the bits of information that they explain."""

    run: Run
    explained: float


def explain_singly(
    state: State,
    library: Library,
    derived: Collection[str] = (),
    *,
    lonely: bool = False,
    wide: bool = False,
) -> State:
    """Explain bits by laws that hold on all captures.

    A single bit is explained only by a plain law, unless ``lonely`` is true: a limit looks like the
    high bit of many laws. A narrow run is explained only if single laws explain all varying bits
    around it: a part of a larger field often follows some law by chance. With ``wide`` only wide
    runs are explained. ``derived`` are the fields that are in the library.
    """
    matches = match(state.captures.words, library, state.todo)
    pieces = _cover(state, _by_gain(state, library, matches, derived), library)
    while pieces:
        bits = set(itertools.chain.from_iterable(piece.positions for piece in pieces))
        whole = set()
        for place in state.open_runs():
            if bits.issuperset(place.positions):
                whole |= {*place.positions}
        count = Counter(piece.run.law for piece in pieces)
        sure = [
            piece
            for piece in pieces
            if lonely
            or (
                (piece.word, piece.lsb) in whole
                and not wide
                and (
                    piece.width > 1
                    or library.laws.cost[piece.run.law] < PRIOR.plain
                    or count[piece.run.law] > 1
                )
            )
            or (piece.width >= BUDGET.sure_width and not _is_top(state, piece))
        ]
        if not sure:
            break
        for piece in sure:
            # a law is not accepted if it reads a field that reads this field
            if not library.uses_of(state.circular(piece, derived)) & int(
                library.laws.uses[piece.run.law]
            ):
                state = state.accept(_solved(state, piece, library, matches))
        # the laws just accepted may make other pieces sure, which the next turn of the loop tries
        pieces = [piece for piece in pieces if piece not in sure]
    return state


def _by_gain(state: State, library: Library, matches: Matches, derived: Collection[str]) -> Array:
    """``(R, 5)``: the runs that save more bits than they cost, the largest gain first.

    A law that explains runs in several words gains more, because these runs share its cost.
    """
    captures, costs = state.captures, library.laws.cost
    found = runs(captures.words, library, matches, ~captures.varies, captures.starts)
    word, lsb, width, law, shift = found.T
    information = np.pad(captures.information.sum(0, dtype=float).cumsum(1), ((0, 0), (1, 0)))
    explained = information[word, lsb + width] - information[word, lsb]
    place_cost = PRIOR.place + np.where(shift, PRIOR.middle, 0)
    # the cost of the law is not yet subtracted, because another run may pay for it
    keep = explained > place_cost
    size = len(information), WORD_BITS, WORD_BITS + 1
    at = np.ravel_multi_index((word, lsb, width), size)
    if derived:
        places, of = np.unique(at, return_inverse=True)
        circular = []
        for place in zip(*np.unravel_index(places, size), strict=True):
            circular.append(library.uses_of(state.circular(Place(*place), derived)))
        keep &= library.laws.uses[law] & np.array(circular, np.uint64)[of] == 0
    cheapest = np.full(np.prod(size), np.inf)
    np.minimum.at(cheapest, at[keep], costs[law[keep]])
    # A law may be the best of its place if it costs more than the cheapest law there, but only by
    # what it can save by giving bits of several words. All dearer laws are left out.
    keep &= costs[law] <= cheapest[at] + PRIOR.shared + PRIOR.middle + 1
    gain = (explained - costs[law] - place_cost)[keep]
    found, word, law = found[keep], word[keep], law[keep]
    pairs, of = np.unique(law * len(information) + word, return_inverse=True)
    # the largest gain of each pair of a law and a word
    best = np.zeros(len(pairs))
    np.maximum.at(best, of, gain)
    elsewhere = np.bincount(pairs // len(information), best, len(costs))[law] - best[of]
    return found[np.lexsort([law, found[:, 1], word, -gain - np.minimum(elsewhere, PRIOR.shared)])]


def _cover(state: State, found: Array, library: Library) -> list[_Piece]:
    """The best of the runs ``(R, 5)`` that do not overlap, each cut to the bits that are open."""
    total, powers = state.captures.information.sum(0), 2 ** np.arange(WORD_BITS)
    costs, laws = library.laws.cost, found[:, 3]
    used = set()
    free, varies = (state.todo @ powers).tolist(), (state.captures.varies @ powers).tolist()
    chosen = []
    # a key is a place (word, lowest bit, width), the value the run there of the cheapest law that
    # an earlier run follows
    again: dict[tuple[int, int, int], Run] = {}
    for numbers in found.tolist():
        word, lsb, width, law, _ = numbers
        span = free[word] & (2**width - 1) * 2**lsb
        if not span:
            continue
        # if two laws cost about the same, the law that another run has already is taken
        other = None
        if law not in used:
            other = again.get((word, lsb, width))
        if other and costs[other.law] < costs[law] + 1:
            run = other
        else:
            run = Run(*numbers)
        lsb, end = (span & -span).bit_length() - 1, span.bit_length()
        span = 2**end - 2**lsb
        if varies[word] & span & ~free[word]:
            continue  # bits that are explained already cut the run into pieces
        cost, needed = float(costs[run.law]), PRIOR.bit_gain
        if run.law in used:
            cost, needed = PRIOR.law_again, PRIOR.piece_gain
        explained = float(total[word, lsb:end].sum())
        if explained - cost - PRIOR.place - (PRIOR.middle if run.shift else 0) <= needed:
            continue
        if run.law not in used:
            used.add(run.law)
            for other in (Run(*row) for row in found[laws == run.law].tolist()):
                at = other.word, other.lsb, other.width
                if at not in again or costs[other.law] < costs[again[at].law]:
                    again[at] = other
        free[word] &= ~span
        chosen.append(_Piece(word, lsb, end - lsb, run, explained))
    return chosen


def _is_top(state: State, place: Place) -> bool:
    """True if a run may be the top of a larger field. Many quantities have equal high bits, because
    these are rarely set.
    """
    share = float((state.captures.words[:, place.word] >> np.uint32(place.lsb) & 1).mean())
    return place.lsb > 0 and bool(state.todo[place.word, place.lsb - 1]) and not 0.3 < share < 0.7


def _solved(state: State, piece: _Piece, library: Library, matches: Matches) -> Solved:
    """A run as a field with its law; other laws that give the same bits are its rivals."""
    run, costs, shift = piece.run, library.laws.cost, piece.run.shift + piece.lsb - piece.run.lsb
    cost = float(costs[run.law])
    # laws that give all varying bits of the piece; ``starts`` are their bits at its lowest bit,
    # which varies
    fits, starts = matches.giving(
        [position for position in piece.positions if state.captures.varies[position]]
    )
    extra = costs[fits] - cost + PRIOR.middle * ((starts > 0) - float(shift > 0))
    # if a parameter gives the same bits as a formula and is cheaper, it is the law, even if other
    # words have the formula as their law
    least = int(extra.argmin())
    plain = int(fits[least]), int(starts[least])
    if extra[least] < 0 and library.laws[plain[0]].op == PARAMETER:
        told = plain
    else:
        told = run.law, shift
    rivals = []
    for number, start, extra_cost in zip(
        fits.tolist(), starts.tolist(), np.maximum(extra, 0).tolist(), strict=True
    ):
        if extra_cost > PRIOR.recorded:
            continue
        if (number, start) != told:
            rivals.append(Rival(extra_cost, law=shifted(library.laws[number], start)))
        for more, other in library.rivals(number, PRIOR.recorded - extra_cost):
            rivals.append(Rival(extra_cost + more, law=shifted(other, start)))
    rivals.sort(key=lambda rival: rival.extra_cost)
    law = shifted(library.laws[told[0]], told[1])
    solved = Solved.always(piece, law, state.captures.n, cost + PRIOR.place, piece.explained)
    return replace(solved, rivals=tuple(rivals[: BUDGET.rivals]))
