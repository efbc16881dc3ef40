"""What the captures prove: a bit is claimed on a row only where nothing that fits them as well
changes it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from npulab.analysis.laws.expressions import CONSTANT, FIELD, PARAMETER, Array, Columns, Expression, constant_cost
from npulab.analysis.laws.predicates import FEW, literals
from npulab.analysis.laws.rivals import ORDERED, Twins, alternatives, hidden_changes, rival_groups
from npulab.analysis.laws.search import Solved

SURE, SURE_PIECE, CLEAR_LIMIT, CLEAR = 12.0, 28.0, 28.0, 40.0  # bits that a law, a limit, regimes save for a claim
THIN_STEP = 6  # captures that a step decides
BENT = {"//", "ceil", "align", "%", "share", "clog2", "flog2", "!=0", "^"}  # between captured numbers they may bend


def in_order(fields: Sequence[Solved], follows: dict[str, set[str]]) -> tuple[list[Solved], list[Solved]]:
    """Fields so that each comes after those it follows from; and those that follow from an open
    one.

    Rivals that read a field which is open are left out: nobody could say what they give.
    """
    ready: list[Solved] = []
    names: set[str] = set()
    left = list(fields)
    while True:
        now = [one for one in left if follows[one.name] <= names]
        if not now:
            return [replace(one, rivals=tuple(rival for rival in one.rivals if rival.reads <= names))
                    for one in ready], left
        ready += now
        names |= {one.name for one in now}
        left = [one for one in left if one not in now]


def told(solved: Solved, columns: Columns) -> float:
    """Bits that say a field's values: which of them each capture has, and what they are.

    Bits that always move together say one thing, however many they are.
    """
    kinds, counts = np.unique(solved.values(columns), return_counts=True)
    which = float(counts @ np.log2(columns.n / counts))
    return min(solved.saved, which + sum(min(solved.width, constant_cost(int(kind))) for kind in kinds))


def weak(solved: Solved, columns: Columns, below: bool = False, above: bool = False) -> bool:
    """Whether a law explains hardly more than it takes to say it; ``below``, ``above``: a bit there
    has no law.

    One limit between two numbers needs less than other lists, as the gap that it lies in is doubted
    anyhow.  What is rounded above open bits is not their law, and most likely none: the high bits
    of many quantities agree.
    """
    if below and rough(solved):
        return True
    plain = len(solved.steps) == 2 and all(law.op == CONSTANT for _, law in solved.steps) \
        and len(literals(solved.steps[0][0])) == 1
    one = SURE_PIECE if below or above else SURE
    needed = one if len(solved.steps) == 1 else CLEAR_LIMIT if plain else CLEAR
    return told(solved, columns) - solved.cost < needed


def categories(solved: Solved, columns: Columns, by_name: Mapping[str, Solved]) -> set[str]:
    """The parameters of few values that a field's conditions and laws read, through the fields it
    follows from."""
    names: set[str] = set()
    waiting, seen = [solved], {solved.name}
    while waiting:
        one = waiting.pop()
        for expression in itertools.chain.from_iterable(one.steps):
            names |= expression.names()
            for name in expression.names(FIELD):
                if name in by_name and name not in seen:
                    seen.add(name)
                    waiting.append(by_name[name])
    return {name for name in names if len(np.unique(columns[Expression(PARAMETER, (name,))])) <= FEW}


def conditions(solved: Solved) -> set[Expression]:
    """The single conditions that its steps are decided by."""
    return {literal for when, _ in solved.steps for literal in literals(when)}


def names_of(solved: Solved) -> set[str]:
    return {name for step in solved.steps for one in step for name in one.names()}


def narrow(solved: Solved, columns: Columns) -> bool:
    """Whether a field has so few values that a wrong regime is easily overlooked."""
    return solved.saved < 3.5 * columns.n or len(np.unique(solved.values(columns))) < 8


def never_captured(names: Iterable[str], captured: Columns, asked: Columns) -> Array:
    """Rows whose combination of these parameters no capture has, (N,) bool."""
    leaves = [Expression(PARAMETER, (name,)) for name in sorted(names)]
    if not leaves:
        return np.zeros(asked.n, bool)
    seen = set(zip(*(captured[leaf].tolist() for leaf in leaves), strict=True))
    return np.array([row not in seen for row in zip(*(asked[leaf].tolist() for leaf in leaves), strict=True)], bool)


@dataclass(frozen=True)
class Opening:
    """What decides regimes: parameters of few values that conditions read, and conditions that wide
    fields prove."""

    names: frozenset[str]
    trusted: frozenset[Expression]
    by_name: Mapping[str, Solved]


def opening(fields: Sequence[Solved], captured: Columns) -> Opening:
    by_name = {one.name: one for one in fields}
    names = set().union(*(categories(one, captured, by_name) for one in fields if len(one.steps) > 1))
    trusted = set().union(*(conditions(one) for one in fields if not narrow(one, captured)
                            and (one.missed is None or not one.missed.any())))
    return Opening(frozenset(names), frozenset(trusted), by_name)


def thin_rows(one: Solved, asked: Columns) -> Array:
    """``(N,) bool``: rows of a list that has a step with hardly any captures: which others are its
    own, none says."""
    thin = len(one.steps) > 1 and min(one.support) < THIN_STEP
    return np.full(asked.n, thin)


def beside(fields: Sequence[Solved], moved: Array) -> dict[str, tuple[bool, bool]]:
    """Whether captures move a bit below, or above, each field that has no law; ``moved (W,)
    uint32``."""
    known = np.zeros_like(moved)
    for one in fields:
        known[one.word] |= np.uint32(one.mask)
    left = moved & ~known
    out = {}
    for one in sorted(fields, key=lambda one: (one.word, one.lsb)):
        below, above = (bool(int(left[one.word]) & mask) for mask in (one.mask // 2, one.mask * 2))
        out[one.name] = below, above
        if below and rough(one):
            left[one.word] |= np.uint32(one.mask)
    return out


def rough(solved: Solved) -> bool:
    """Whether a field is a number rounded, or a limit on one."""
    return any(law.op in ("//", "ceil") or any(literal.op in ORDERED for literal in literals(when))
               for when, law in solved.steps)


class Domain:
    """Which numbers of a parameter the captures are about: of few numbers themselves, else those in
    step with them."""

    def __init__(self, captured: Columns, names: Sequence[str]) -> None:
        self._of: dict[str, tuple[Array, int]] = {}
        for name in names:
            values = np.unique(captured[Expression(PARAMETER, (name,))])
            self._of[name] = (values, int(np.gcd.reduce(values - values[0])))

    def outside(self, solved: Solved, asked: Columns) -> Array:
        """``(N,) bool``: rows that a law takes to numbers that its captures say nothing of.

        All sizes captured are even, say: then a half rounded up and one rounded down are the same.
        """
        out = np.zeros(asked.n, bool)
        names = {name for _, law in solved.steps for part in law.walk() if part.op in BENT for name in part.names()}
        for name in sorted(names & self._of.keys()):
            values, step = self._of[name]
            column = asked[Expression(PARAMETER, (name,))]
            out |= ~np.isin(column, values) if len(values) <= FEW else (column - values[0]) % max(step, 1) != 0
        return out


def unseen_rows(one: Solved, known: Opening, captured: Columns, asked: Columns) -> Array:
    """``(N,) bool``: rows whose combination of modes was never captured.

    A narrow field may depend on a mode that its captures did not show, so all of them count; unless
    wide fields prove its conditions.
    """
    if len(one.steps) == 1:
        return np.zeros(asked.n, bool)
    own = categories(one, captured, known.by_name)
    sure = not narrow(one, captured) or (conditions(one) <= known.trusted and names_of(one) <= own)
    return never_captured(own if sure else known.names, captured, asked)


def doubts(fields: Sequence[Solved], follows: dict[str, set[str]], captured: Columns, asked: Columns, moved: Array,
           within: float, integers: Sequence[str]) -> tuple[Array, Array]:
    """(words (N, W) uint32 as the laws give them, doubt (N, W) uint32: bits that something else
    would change).

    ``moved`` ``(W,) uint32`` are the bits to explain.
    """
    ready, _ = in_order(fields, follows)
    values: dict[str, Array] = {}
    for one in ready:
        values[one.name] = one.values(asked)
        asked.add(one.name, values[one.name])
    out = np.zeros((asked.n, len(moved)), np.uint32)
    doubt = np.zeros_like(out)
    for one in ready:
        out[:, one.word] |= one.placed(values[one.name])
    bits = {one.name: np.zeros(asked.n, np.int64) for one in ready}
    known = opening(ready, captured)
    twins, domain, neighbours = Twins(captured, integers), Domain(captured, integers), beside(ready, moved)
    by_name = {one.name: one for one in ready}
    for one in ready:
        own = bits[one.name]
        later = [other for other in ready if one.name in follows[other.name]]
        for changed in (*from_doubted(one, asked, values, bits),
                        *uncut_changes(one, by_name, captured, asked, values[one.name])):
            own |= upwards(changed, one.width)
        whole = domain.outside(one, asked) | twins.apart(one, asked)
        if weak(one, captured, *neighbours[one.name]):
            whole[:] = True
        elif len(one.steps) > 1:
            whole |= unseen_rows(one, known, captured, asked) | thin_rows(one, asked)
        own[whole] = 2 ** one.width - 1
        changes = [one.values(asked, alternatives(one, rival)) ^ values[one.name]
                   for _, rivals in rival_groups(one, ready, captured) for rival in rivals if rival.dearer <= within]
        for changed in (*changes, hidden_changes(one, captured, asked, values[one.name])):
            rows = np.flatnonzero(changed)
            if not len(rows):
                continue
            own |= changed
            if later:
                part = asked.rows(rows)
                part.add(one.name, values[one.name][rows] ^ changed[rows])
                for other in later:
                    again = other.values(part)
                    part.add(other.name, again)
                    bits[other.name][rows] |= again ^ values[other.name][rows]
        doubt[:, one.word] |= one.placed(own)
    return out, doubt


def upwards(changed: Array, width: int) -> Array:
    """From the lowest bit that changes on: above it, bits are right by chance."""
    return np.where(changed != 0, -(changed & -changed), 0) & (2 ** width - 1)


def from_doubted(one: Solved, asked: Columns, values: Mapping[str, Array], bits: Mapping[str, Array]) -> list[Array]:
    """What changes of a field where doubted bits of the fields that it reads are all clear, or all
    set."""
    reads = [name for name in sorted({name for step in one.steps for part in step for name in part.names(FIELD)})
             if bits[name].any()]
    changes = []
    for chosen in [[name] for name in reads] + ([reads] if len(reads) > 1 else []):
        rows = np.flatnonzero(np.any([bits[name] != 0 for name in chosen], axis=0))
        for level in (False, True):
            part = asked.rows(rows)
            for name in chosen:
                unsure = bits[name][rows]
                part.add(name, values[name][rows] | unsure if level else values[name][rows] & ~unsure)
            changed = np.zeros(asked.n, np.int64)
            changed[rows] = one.values(part) ^ values[one.name][rows]
            changes.append(changed)
    return changes


def uncut_changes(one: Solved, by_name: Mapping[str, Solved], captured: Columns, asked: Columns, values: Array,
                  ) -> list[Array]:
    """What changes where fields that it reads are not cut to the bits that captures moved."""
    names = sorted({name for step in one.steps for part in step for name in part.names(FIELD)})
    longer = {name: _uncut(by_name[name], asked) for name in names}
    cut = [name for name in names if (longer[name] != asked[Expression(FIELD, (name,))]).any()]
    changes = []
    for chosen in [[name] for name in cut] + ([cut] if len(cut) > 1 else []):
        was, now = (columns.rows(np.arange(columns.n)) for columns in (captured, asked))
        for name in chosen:
            was.add(name, _uncut(by_name[name], captured))
            now.add(name, longer[name])
        if (one.values(was) == one.values(captured)).all():
            changes.append(one.values(now) ^ values)
    return changes


def _uncut(one: Solved, columns: Columns) -> Array:
    """A field's law, and not only its bits that captures moved."""
    decided = one.decide(columns)
    out = np.zeros(columns.n, np.int64)
    for number, (_, law) in enumerate(one.steps):
        out = np.where(decided == number, columns[law], out)
    return out
