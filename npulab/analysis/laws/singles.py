"""Bits that one law explains on all captures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from npulab.analysis.laws.expressions import ALWAYS, shifted
from npulab.analysis.laws.library import Library
from npulab.analysis.laws.matching import Matches, Run, match, runs
from npulab.analysis.laws.prior import BUDGET, PRIOR
from npulab.analysis.laws.solved import Place, Rival, Solved
from npulab.analysis.laws.state import State


@dataclass(frozen=True)
class _Piece(Place):
    """The open bits of a ``run``, and the bits of information that they explain."""

    run: Run
    explained: float


def explain_singly(state: State, library: Library, derived: Collection[str] = (), *, lonely: bool = False,
                   wide: bool = False) -> State:
    """Explain bits by one law for all captures.

    Unless ``lonely``, a single bit counts only with a plain law, as a limit looks like the high bit
    of many a law, and a narrow run only where single laws explain all varying bits around it: a
    part of a larger field often follows some law by chance.  With ``wide`` only wide ones count at
    all.  ``derived`` are the fields that the library has.
    """
    matches = match(state.captures.words, library, state.todo)
    pieces = _cover(state, _by_gain(state, library, matches, derived), library)
    while pieces:
        bits = {position for piece in pieces for position in piece.positions}
        whole = {position for place in state.open_runs()
                 if all(position in bits or not state.todo[position] for position in place.positions)
                 for position in place.positions}
        count = Counter(piece.run.law for piece in pieces)
        sure = [piece for piece in pieces if lonely
                or ((piece.word, piece.lsb) in whole and not wide
                    and (piece.width > 1 or library.laws.cost[piece.run.law] < PRIOR.plain or count[piece.run.law] > 1))
                or (piece.width >= BUDGET.sure_width and not _is_top(state, piece))]
        if not sure:
            break
        for piece in sure:
            state = state.accept(_solved(state, piece, library, matches))
        pieces = [piece for piece in pieces if piece not in sure]  # these may stand alone now
    return state


def _place_cost(run: Run) -> float:
    return PRIOR.place + (PRIOR.middle if run.shift else 0)


def _by_gain(state: State, library: Library, matches: Matches, derived: Collection[str]) -> list[Run]:
    """Runs that are worth what they cost, best first.

    A law that explains bits of several words is worth more than one of the same bits of one word,
    as its pieces share its cost.
    """
    captures, costs = state.captures, library.laws.cost
    total = captures.information.sum(0)
    scored: list[tuple[float, Run]] = []
    circular: dict[tuple[int, int, int], int] = {}
    for run in runs(captures.words, library, matches, ~captures.varies, captures.starts):
        if derived:
            at = run.word, run.lsb, run.width
            if at not in circular:
                circular[at] = library.uses_of(state.circular(run, derived))
            if int(library.laws.uses[run.law]) & circular[at]:
                continue
        cost = float(costs[run.law])
        gain = float(total[run.word, run.lsb:run.end].sum()) - cost - _place_cost(run)
        if gain > -cost:  # a piece of a law that is known anyway costs little
            scored.append((gain, run))
    best: dict[int, dict[int, float]] = {}  # of each law, the best gain in each word
    for gain, run in scored:
        gains = best.setdefault(run.law, {})
        gains[run.word] = max(gains.get(run.word, 0.0), gain)

    def order(item: tuple[float, Run]) -> tuple[float, int, int]:
        gain, run = item
        elsewhere = sum(max(other, 0.0) for word, other in best[run.law].items() if word != run.word)
        return -gain - min(elsewhere, PRIOR.shared), run.word, run.lsb

    return [run for _, run in sorted(scored, key=order)]


def _cover(state: State, runs_: list[Run], library: Library) -> list[_Piece]:
    """The best runs that do not overlap, cut to what is open."""
    total, varies = state.captures.information.sum(0), state.captures.varies
    costs = library.laws.cost
    used: set[int] = set()
    free = state.todo.copy()
    chosen: list[_Piece] = []
    of_law: dict[int, list[Run]] = {}
    for run in runs_:
        of_law.setdefault(run.law, []).append(run)
    again: dict[tuple[int, int, int], Run] = {}  # places of laws that other bits follow, the cheapest ones
    for first in runs_:
        if not free[first.word, first.lsb:first.end].any():
            continue
        # of laws of one price the one that another run has
        other = again.get((first.word, first.lsb, first.width), first)
        run = other if first.law not in used and costs[other.law] < costs[first.law] + 1 else first
        span = np.flatnonzero(free[run.word, run.lsb:run.end])
        lsb, end = run.lsb + int(span[0]), run.lsb + int(span[-1]) + 1
        if (varies[run.word, lsb:end] & ~free[run.word, lsb:end]).any():
            continue  # in more than one piece
        cost, needed = float(costs[run.law]), PRIOR.bit_gain
        if run.law in used:
            cost, needed = PRIOR.law_again, PRIOR.piece_gain
        explained = float(total[run.word, lsb:end].sum())
        if explained - cost - _place_cost(run) <= needed:
            continue
        if run.law not in used:
            used.add(run.law)
            for other in of_law[run.law]:
                at = other.word, other.lsb, other.width
                if at not in again or costs[other.law] < costs[again[at].law]:
                    again[at] = other
        free[run.word, lsb:end] = False
        chosen.append(_Piece(run.word, lsb, end - lsb, run, explained))
    return chosen


def _is_top(state: State, place: Place) -> bool:
    """Whether a run could be the top of a larger field: many quantities agree in their rarely set
    high bits."""
    share = float((state.captures.words[:, place.word] >> np.uint32(place.lsb) & 1).mean())
    return place.lsb > 0 and bool(state.todo[place.word, place.lsb - 1]) and not 0.3 < share < 0.7


def _solved(state: State, piece: _Piece, library: Library, matches: Matches) -> Solved:
    """A piece with its law, and the laws that give the same bits."""
    run, costs = piece.run, library.laws.cost
    shift = run.shift + piece.lsb - run.lsb
    mask = sum(2 ** bit for word, bit in piece.positions if state.captures.varies[word, bit])
    cost = float(costs[run.law])
    rivals = []
    for (law, offset), matched in matches[piece.word].items():
        if matched & mask != mask:
            continue
        start = offset + piece.lsb
        extra_cost = float(costs[law]) + (PRIOR.middle if start else 0.0) - cost - (PRIOR.middle if shift else 0.0)
        extra_cost = max(extra_cost, 0.0)
        if extra_cost <= PRIOR.rival:
            if (law, start) != (run.law, shift):
                rivals.append(Rival(extra_cost, 0, law=shifted(library.laws[law], start)))
            rivals += [Rival(extra_cost + more, 0, law=shifted(other, start))
                       for more, other in library.rivals(law, PRIOR.rival - extra_cost)]
    rivals.sort(key=lambda rival: rival.extra_cost)
    return Solved(piece.word, piece.lsb, piece.width, ((ALWAYS, shifted(library.laws[run.law], shift)),),
                  (state.captures.n,), cost + PRIOR.place, piece.explained, tuple(rivals[:60]))
