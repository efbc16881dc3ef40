"""The search, round by round: laws that hold on all captures, then fields with several cases, then
fields that read other fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from npulab.analysis.laws.between import between
from npulab.analysis.laws.boundaries import information, places
from npulab.analysis.laws.expressions import (
    ALWAYS,
    FIELD,
    PARAMETER,
    Array,
    Columns,
    Expression,
    field,
    parameter,
    term,
)
from npulab.analysis.laws.library import Library, Names, is_size, make_library
from npulab.analysis.laws.matching import bits_of
from npulab.analysis.laws.operators import operator
from npulab.analysis.laws.parity import parity
from npulab.analysis.laws.predicates import make_predicates
from npulab.analysis.laws.prior import BUDGET, PRIOR
from npulab.analysis.laws.regimes import Round, solve, solve_once
from npulab.analysis.laws.singles import explain_singly
from npulab.analysis.laws.solved import Place, Rival, Solved, names_in
from npulab.analysis.laws.state import Captures, State, Watch

QUANTILES = np.linspace(0, 1, 9)[1:-1]


@dataclass(frozen=True, eq=False)
class Derived:
    """The fields that other fields may read.

    ``usually`` has, by field, the law that the field follows as long as no limit applies. ``inner``
    are partial results of laws, on which limits are tried.
    """

    names: tuple[str, ...] = ()
    usually: tuple[tuple[str, Expression], ...] = ()
    inner: tuple[Expression, ...] = ()


def start(
    words: Array, columns: Columns, names: Names, ignore: Array, starts: Sequence[int], watch: Watch
) -> State:
    """The state before any bit is explained.

    ``ignore (W,) uint32`` masks bits without meaning, ``starts (W,)`` masks the bits at which a
    field begins.
    """
    bits = bits_of(words)
    varies = np.asarray(bits.any(0) & ~bits.all(0))
    captures = Captures(words, columns, names, varies, information(bits), starts, watch)
    watch.state = State(captures, varies & ~bits_of(ignore[None])[0].astype(bool))
    return watch.state


def explain_plainly(state: State) -> tuple[State, Library]:
    """Return the state after a search without exceptions, in which a field has one law over the
    parameters for all captures; and the library of the laws that were tried.
    """
    captures = state.captures
    library = make_library(captures.columns, captures.names, BUDGET.first_laws)
    return explain_singly(state, library), library


def explain(state: State, first: Library, brief: bool = False) -> State:
    """The state after the rounds that follow ``explain_plainly``, whose library is ``first``.

    These rounds seek regimes over the parameters, then over explained fields, then over captured
    fields. Laws between words are sought last. If ``brief`` is true, only the first round is
    made.
    """
    captures, library = state.captures, first
    if not state.todo.any():
        return state
    round_ = None
    derived = Derived()
    rounds = (
        (False, False, False, True, True) if captures.n >= BUDGET.for_derived else (False, False)
    )
    for number, captured in enumerate(rounds[:1] if brief else rounds):
        # laws that read open bits are sought only if few bits are open
        if (
            not state.todo.any()
            or captures.n < BUDGET.for_regimes
            or (captured and state.todo.sum() > BUDGET.open_for_derived)
        ):
            break
        before, derived = derived, derive(state, library, captured)
        # a round over the same columns as the round before would find the same laws
        if number and set(derived.names) == set(before.names):
            continue
        round_ = _round(state, derived, number > 0)
        library = round_.library
        if round_.deep:
            state = explain_singly(state, library, derived.names, wide=True)
            state = again(state, round_)
        state = regimes(state, round_)
        if not round_.deep:
            state = merge(widen(state, round_), round_)
    if round_ is not None and not brief:
        state = lone_bits(partly(state, round_), round_)
        state = replace(state, nearly=round_.nearly)
    state = explain_singly(state, first, lonely=True)
    return between(state, first)


def _round(state: State, derived: Derived, deep: bool) -> Round:
    """The laws and conditions of one round, over the parameters that matter and the derived
    columns.
    """
    captures = state.captures
    names = relevant(state)
    library = make_library(
        captures.columns,
        Names(
            names,
            fields=derived.names,
            given=captures.names.given,
            factors=[name for name in captures.names.integers if name not in names],
        ),
    )
    leaves = [*map(parameter, names), *map(field, derived.names)]
    # further conditions: a field follows its usual law, or does not
    compared = []
    for name, law in derived.usually:
        compared += [(term("==", field(name), law), 8.0), (term("!=", field(name), law), 8.0)]
    sizes = {leaf for leaf in leaves if is_size(captures.columns[leaf])}
    predicates = make_predicates(captures.columns, leaves, sizes, compared)
    predicates = predicates.with_thresholds(
        sorted(derived.inner, key=lambda law: len([*law.walk()]))
    )
    predicates = predicates.cheaper(
        {when for solved in state.solved for when, _ in solved.steps if when != ALWAYS}
    )
    captures.watch.tell(
        f"round: {len(library)} laws, {len(predicates)} conditions, {int(state.todo.sum())} bits"
    )
    return Round(library, predicates, derived.names, deep)


def relevant(state: State) -> list[str]:
    """The names of the whole-valued parameters that matter: those that some open bit depends on by
    a G test.

    Parameters with few values always matter, because they may decide which case applies, unless a
    field is a plain copy of them.
    """
    captures = state.captures
    targets = np.argwhere(state.todo)
    if not len(targets):
        return []
    bits = bits_of(captures.words)[:, targets[:, 0], targets[:, 1]].astype(np.float64)
    used = set[str]()
    for solved in state.solved:
        if len(solved.steps) > 1:
            used |= names_in(solved.parts)
    laws = [solved.steps[0][1] for solved in state.solved]
    copied = {law.args[0] for law in laws if law.op == PARAMETER}
    out = []
    for name in captures.names.integers:
        values = np.asarray(captures.columns[parameter(name)])
        kinds = np.unique(values)
        few = len(kinds) <= BUDGET.categories
        if captures.n < BUDGET.for_tests or name in used or (few and name not in copied):
            out.append(name)
            continue
        if few:
            limits = kinds[1:]
        else:
            limits = np.quantile(values, QUANTILES, method="nearest")
        group = np.searchsorted(np.unique(limits), values, side="right")
        counts = np.bincount(group, minlength=group.max() + 1).astype(np.float64)
        ones = np.stack(
            [np.bincount(group, weights=column, minlength=len(counts)) for column in bits.T]
        )
        share = bits.mean(0)[:, None]
        expected = np.stack([counts * share, counts * (1 - share)])
        observed = np.stack([ones, counts - ones])
        with np.errstate(all="ignore"):
            terms = np.where(observed > 0, observed * np.log(observed / expected), 0)
        if 2 * terms.sum((0, 2)).max() > 2.0 * len(counts) + 16:
            out.append(name)
    return out


def derive(state: State, library: Library, captured: bool) -> Derived:
    """Add columns for the fields that other fields may read: explained fields, with the values of
    their laws.

    With ``captured``, runs of open bits become columns, too, with their captured values.
    """
    captures = state.captures
    columns = captures.columns
    seen = {np.asarray(columns[parameter(name)]).tobytes() for name in captures.names.integers}
    if captured:
        ready = {leaf.args[0] for leaf in columns.values if leaf.op == FIELD}
    else:
        ready = set()
    names = []
    usually = []
    inner: dict[Expression, None] = {}

    def enter(place: Place, values: Array, may_be_limited: bool = True) -> None:
        names.append(place.name)
        law = None
        if may_be_limited:
            law = _usual(values, place.width, library)
        if law is not None:
            usually.append((place.name, law))

    for solved in sorted(state.solved, key=lambda solved: len(state.follows[solved.name])):
        if state.follows[solved.name] - ready:
            continue
        ready.add(solved.name)
        uncut = solved.uncut(columns)
        values = uncut % 2**solved.width
        if solved.partial:
            values = np.where(solved.decide(columns) < 0, solved.raw(captures.words), values)
        columns.add(solved.name, values)
        # No law reads a field whose own law gives larger values than the field can hold: a driver
        # that cuts a value to a narrow field computes other fields from the value before the cut.
        if (
            solved.width > 1
            and len(np.unique(values)) > 2
            and values.tobytes() not in seen
            and not (uncut >= 2**solved.width).any()
        ):
            seen.add(values.tobytes())
            enter(solved, values, len(solved.steps) > 1)
        inner |= dict.fromkeys(
            part
            for _, law in solved.steps
            for part in law.walk()
            if part != law and operator(part.op).limited and len([*part.walk()]) > 3
        )
    for run in state.open_runs() if captured else ():
        values = run.raw(captures.words).astype(np.int64)
        if run.width > 1 and len(np.unique(values)) > 2:
            columns.add(run.name, values)
            enter(run, values)
    return Derived(tuple(names), tuple(usually), tuple(inner))


def _usual(values: Array, width: int, library: Library) -> Expression | None:
    """The cheapest law that gives a field on more than half of the captures and is no constant."""
    if not len(library):
        return None
    first = library.laws.values[: BUDGET.usual_laws]
    share = (((first ^ values.astype(np.uint32)) & np.uint32(2**width - 1)) == 0).mean(1)
    best = int(share.argmax())
    if share[best] > 0.5 and operator(library.laws[best].op).whole:
        return library.laws[best]
    return None


def attempt(state: State, round_: Round, place: Place, **options: Any) -> State:
    """The state after a decision list is sought for a place; it is the same state if none
    is found.
    """
    solved = solve_once(state, round_, place, **options)
    if solved:
        return state.accept(solved)
    return state


def regimes(state: State, round_: Round) -> State:
    """Explain open bits by decision lists.

    First one list is sought for each whole run of open bits, then one for each field into which
    ``boundaries.places`` divides it.
    """
    cut = places(state.captures.words, state.captures.information, round_.library, state.todo)
    for place in state.open_runs():
        if 2 <= place.width <= 24:
            state = attempt(state, round_, place, depth=1)
    tried = set()
    # First the fields of ``places`` and the open runs are tried. The bits that are open afterwards
    # form new runs, which are tried second.
    for group in ([*cut, *state.open_runs()], None):
        for place in group or state.open_runs():
            if place.width > 1 and place.name not in tried and state.is_open(place):
                tried.add(place.name)
                state = attempt(state, round_, place)
    return state


def partly(state: State, round_: Round) -> State:
    """Explain runs of open bits by decision lists that leave some captures without a law."""
    for place in state.open_runs():
        solved = None
        if place.width >= BUDGET.sure_width:
            solved = solve(state, round_, place, partly=True)
        if solved and not np.any(solved.missed):
            state = state.accept(solved)
    return state


def again(state: State, round_: Round) -> State:
    """Solve fields with long lists again: a field that was explained after them may allow a shorter
    list.
    """
    for old in state.solved:
        if len(old.steps) > 1 and old.cost > PRIOR.long_list and not state.is_read(old):
            solved = solve(state, round_, Place(old.word, old.lsb, old.width))
            if solved and solved.cost + PRIOR.simpler < old.cost:
                state = state.accept(solved, instead_of=[old])
    return state


def widen(state: State, round_: Round) -> State:
    """Widen fields whose decision list has several steps. One or two open bits next to a field are
    added to it if a list for all of these bits costs about as much as the list of the field.
    """
    for old in state.solved:
        for run in state.open_runs() if len(old.steps) > 1 else ():
            if run.adjoins(old) and run.width <= BUDGET.beside:
                place = Place(old.word, min(old.lsb, run.lsb), old.width + run.width)
                solved = solve(state, round_, place)
                if solved and solved.cost <= old.cost + PRIOR.simpler:
                    state = state.accept(solved, instead_of=[old])
                    break
    return state


def merge(state: State, round_: Round) -> State:
    """Merge two adjacent fields, if one list explains both and costs about as much as the dearer of
    their two lists.
    """
    for low in state.solved:
        high = next(
            (
                solved
                for solved in state.solved
                if solved.lsb == low.end and solved.word == low.word
            ),
            None,
        )
        if (
            high is None
            or low not in state.solved
            or len(low.steps) == len(high.steps) == 1
            or state.is_read(low, high)
        ):
            continue
        solved = solve(state, round_, Place(low.word, low.lsb, low.width + high.width))
        if solved and solved.cost <= max(low.cost, high.cost) + PRIOR.simpler:
            state = state.accept(solved, instead_of=[low, high])
    return state


def lone_bits(state: State, round_: Round) -> State:
    """Find an exclusive or, or a decision list, for each bit that is still open."""
    captures = state.captures
    leaves = [*map(parameter, captures.names.integers)]
    known: dict[bytes, list[Expression]] = {}
    for word, bit in np.argwhere(state.todo).tolist():
        place = Place(word, bit, 1)
        explained = float(captures.weights(place).sum())
        wanted = place.raw(captures.words) == 1
        key = wanted.tobytes()
        if key not in known:
            known[key] = []
            if explained > PRIOR.parity:
                known[key] = parity(wanted, captures.columns, leaves)
        laws = known[key]
        if laws:
            solved = Solved.always(place, laws[0], captures.n, PRIOR.parity, explained)
            rivals = tuple(Rival(law=law) for law in laws[1:])
            state = state.accept(replace(solved, rivals=rivals))
        else:
            state = attempt(state, round_, place, margin=PRIOR.bit_gain)
    return state
