"""What the captures prove: a bit is claimed on a row only where nothing that fits them as well changes it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from npulab.laws.expressions import (
    CONSTANT,
    FIELD,
    INTEGER,
    OPERATORS,
    PARAMETER,
    Array,
    Columns,
    Expression,
    constant,
    constant_cost,
)
from npulab.laws.predicates import FEW, both, literals
from npulab.laws.search import Rival, Solved, Steps

TWINS = (("//", 2), ("ceil", 2), ("+", -1), ("+", 1), ("*", 2))
MOST_TWINS = 4
CLEAR, CLEAR_LIMIT, THIN_STEP = 40.0, 28.0, 4  # bits that regimes save for a claim; captures that a step decides
MOST_BUDGET = 2 ** 20
ROUND, AT_END = 8.0, 4  # bits of a limit that somebody would set; captures that sit there
ORDERED = ("<=", ">", "<", ">=")


def in_order(fields: Sequence[Solved], follows: dict[str, set[str]]) -> tuple[list[Solved], list[Solved]]:
    """Fields so that each comes after those it follows from; and those that follow from an open one."""
    ready: list[Solved] = []
    names: set[str] = set()
    left = list(fields)
    while True:
        now = [one for one in left if follows[one.name] <= names]
        if not now:
            return ready, left
        ready += now
        names |= {one.name for one in now}
        left = [one for one in left if one not in now]


def gap_rivals(solved: Solved, columns: Columns, inner: bool = False) -> Iterator[Rival]:
    """The steps with each threshold moved to the ends of the gap between the captured values beside it; with
    ``inner`` to its middle, too."""
    free = np.ones(columns.n, bool)
    for number, (when, _) in enumerate(solved.steps):
        parts = literals(when)
        for literal in parts:
            if literal.op not in ORDERED or literal.args[1].op != CONSTANT:
                continue
            others = np.ones(columns.n, bool)
            for part in parts:
                if part is not literal:
                    others &= columns[part]
            values = columns[literal.args[0]][free & others]
            limit = literal.args[1].args[0]
            below = values[values <= limit] if literal.op in ("<=", ">") else values[values < limit]
            above = values[values > limit] if literal.op in ("<=", ">") else values[values >= limit]
            ends = ([int(below.max())] if len(below) else []) + ([int(above.min()) - 1] if len(above) else [])
            op = {"<": "<=", ">=": ">"}.get(literal.op, literal.op)
            if inner and len(ends) == 2 and ends[1] - ends[0] > 1:
                ends.insert(0, (ends[0] + ends[1]) // 2)
            for end in ends:
                moved = Expression(op, (literal.args[0], constant(end)))
                yield Rival(0.0, number, when=both(*(moved if part is literal else part for part in parts)))
        free &= ~columns[when]


def limit_rivals(solved: Solved, columns: Columns) -> Iterator[Rival]:
    """The steps with a computed law held at the end of the captured values, where many captures share that end."""
    decided = solved.decide(columns)
    values = solved.values(columns)
    for op, end in (("max", int(values.min())), ("min", int(values.max()))):
        if constant_cost(end) > ROUND or (values == end).sum() < max(AT_END, 0.01 * columns.n):
            continue
        for number, (_, law) in enumerate(solved.steps):
            plain = law.op in (PARAMETER, CONSTANT, FIELD) or law.op == op or not law.names() | law.names(FIELD)
            raw = columns[law][decided == number]
            # a law that wraps has no limits
            inside = raw.min() >= 0 and raw.max() < 2 ** solved.width if len(raw) else False
            if not plain and law.op in INTEGER and inside and (raw == end).any():
                yield Rival(0.0, number, law=Expression(op, (law, constant(end))))


def hidden_changes(solved: Solved, captured: Columns, asked: Columns, values: Array) -> Array:
    """``(N,)``: bits of the field that change when the budget of a ``share`` is anything the captures allow.

    A budget is a hidden number: each capture only bounds it.  It is taken to be one number, or to move one way with
    the column that it follows; what lies between the bounds of the captures beside a row is as likely as the law.
    """
    changed = np.zeros(asked.n, np.int64)
    inside, outside = solved.decide(captured), solved.decide(asked)
    for number, (_, law) in enumerate(solved.steps):
        if law.op != "share" or not (outside == number).any():
            continue
        x, budget = law.args
        rows, here = np.flatnonzero(inside == number), np.flatnonzero(outside == number)
        low, high = _budgets(captured[x][rows], solved.values(captured)[rows])
        leaves = [one for one in budget.walk() if one.op in (PARAMETER, FIELD)]
        along = captured[leaves[0]][rows] if leaves else np.zeros(len(rows), np.int64)
        at = asked[leaves[0]][here] if leaves else np.zeros(len(here), np.int64)
        falls = bool(leaves) and budget.op == "//"
        order = np.argsort(along, kind="stable")
        # a falling budget is at most what captures before allow, at least what captures after need
        before = np.searchsorted(along[order], at, "right" if falls else "left")
        after = np.searchsorted(along[order], at, "left" if falls else "right")
        most = np.concatenate([[MOST_BUDGET], np.minimum.accumulate(high[order])])
        least = np.concatenate([np.maximum.accumulate(low[order][::-1])[::-1], [1]])
        if not leaves:
            upper, lower = np.full(len(here), high.min()), np.full(len(here), low.max())
        elif falls:
            upper, lower = most[before], least[after]
        else:
            upper = np.concatenate([np.minimum.accumulate(high[order][::-1])[::-1], [MOST_BUDGET]])[before]
            lower = np.concatenate([[1], np.maximum.accumulate(low[order])])[after]
        share = OPERATORS["share"][0]
        for bound in (upper, lower):
            changed[here] |= (share(asked[x][here], np.maximum(bound, 1)) ^ values[here]) % 2 ** solved.width
    return changed


def _budgets(x: Array, values: Array) -> tuple[Array, Array]:
    """The least and the greatest budget with which x is cut into these shares."""
    pieces = -(-x // np.maximum(values, 1))
    least = -(-x // np.maximum(pieces, 1))
    # so many pieces: at least x / pieces each; one more would be another number of pieces
    most = np.where(pieces > 1, -(-x // np.maximum(pieces - 1, 1)) - 1, MOST_BUDGET)
    return least, most


class Twins:
    """Simple laws with the same values on all captures: parameters that always agree, or a half of another."""

    def __init__(self, captured: Columns, names: Sequence[str]) -> None:
        self.captured = captured
        leaves = [Expression(PARAMETER, (name,)) for name in names]
        self._of: dict[bytes, list[Expression]] = {}
        for leaf in leaves:
            self._put(leaf)
        for leaf in leaves:
            for op, value in TWINS:
                self._put(Expression(op, (leaf, constant(value))))
            self._put(Expression("//", (Expression("-", (leaf, constant(1))), constant(2))))

    def _put(self, law: Expression) -> None:
        values = np.asarray(self.captured[law], np.int64)
        if (values != values[0]).any():
            self._of.setdefault(values.tobytes(), []).append(law)

    def of(self, law: Expression) -> list[Expression]:
        if law.op not in (PARAMETER, *(op for op, _ in TWINS)):
            return []
        key = np.asarray(self.captured[law], np.int64).tobytes()
        return [one for one in self._of.get(key, ()) if one != law]

    def rivals(self, solved: Solved) -> Iterator[Rival]:
        """The steps with one part, or every one like it, said by its twin."""
        for number, (when, law) in enumerate(solved.steps):
            for of_law, whole in ((True, law), (False, when)):
                parts = [part for part in dict.fromkeys(whole.walk()) if part.op != CONSTANT]
                for part in parts:
                    for twin in self.of(part)[:MOST_TWINS]:
                        for first in (True, False):
                            other = _replaced(whole, part, twin, [1 if first else -1])
                            if other != whole:
                                yield Rival(0.0, number, law=other) if of_law else Rival(0.0, number, when=other)


def _replaced(law: Expression, part: Expression, twin: Expression, left: list[int]) -> Expression:
    """A law with a part said otherwise: its first ``left[0]`` places, all of them for -1."""
    if law == part:
        if left[0] == 0:
            return law
        left[0] -= 1
        return twin
    if law.op not in OPERATORS:
        return law
    return Expression(law.op, tuple(_replaced(one, part, twin, left) for one in law.args))


def weak(solved: Solved) -> bool:
    """Whether a list of several steps explains hardly more than it takes to say it.

    One limit between two numbers needs less, as the gap that it lies in is doubted anyhow.
    """
    plain = len(solved.steps) == 2 and all(law.op == CONSTANT for _, law in solved.steps) \
        and len(literals(solved.steps[0][0])) == 1
    return len(solved.steps) > 1 and solved.saved - solved.cost < (CLEAR_LIMIT if plain else CLEAR)


def alternatives(solved: Solved, rival: Rival) -> Steps:
    """The steps with a rival in its place."""
    if rival.steps:
        return rival.steps
    steps = list(solved.steps)
    when, law = steps[rival.step]
    steps[rival.step] = (rival.when or when, rival.law or law)
    return tuple(steps)


def categories(solved: Solved, columns: Columns, by_name: Mapping[str, Solved]) -> set[str]:
    """The parameters of few values that a field's conditions and laws read, through the fields it follows from."""
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
    """What decides regimes: parameters of few values that conditions read, and conditions that wide fields prove."""

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
    """``(N,) bool``: rows that a step with hardly any captures decides; all, where the whole list is weak."""
    if weak(one):
        return np.ones(asked.n, bool)
    few = [number for number, support in enumerate(one.support) if support < THIN_STEP]
    return np.isin(one.decide(asked), few) if few else np.zeros(asked.n, bool)


def unseen_rows(one: Solved, known: Opening, captured: Columns, asked: Columns) -> Array:
    """``(N,) bool``: rows whose combination of modes was never captured.

    A narrow field may depend on a mode that its captures did not show, so all of them count; unless wide fields prove
    its conditions.
    """
    if len(one.steps) == 1:
        return np.zeros(asked.n, bool)
    own = categories(one, captured, known.by_name)
    sure = not narrow(one, captured) or (conditions(one) <= known.trusted and names_of(one) <= own)
    return never_captured(own if sure else known.names, captured, asked)


def doubts(fields: Sequence[Solved], follows: dict[str, set[str]], captured: Columns, asked: Columns, words: int,
           within: float, integers: Sequence[str]) -> tuple[Array, Array]:
    """(words (N, W) uint32 as the laws give them, doubt (N, W) uint32: bits that something else would change)."""
    ready, _ = in_order(fields, follows)
    values: dict[str, Array] = {}
    for one in ready:
        values[one.name] = one.values(asked)
        asked.add(one.name, values[one.name])
    out = np.zeros((asked.n, words), np.uint32)
    doubt = np.zeros_like(out)
    for one in ready:
        out[:, one.word] |= one.placed(values[one.name])
    known = opening(ready, captured)
    twins = Twins(captured, integers)
    for one in ready:
        later = [other for other in ready if one.name in follows[other.name]]
        if len(one.steps) > 1:
            unseen = unseen_rows(one, known, captured, asked) | thin_rows(one, asked)
            for other in (one, *later):
                doubt[unseen, other.word] |= np.uint32(other.mask)
        changes = [one.values(asked, alternatives(one, rival)) ^ values[one.name]
                   for rival in (*one.rivals, *gap_rivals(one, captured), *limit_rivals(one, captured),
                                 *twins.rivals(one))
                   if rival.dearer <= within]
        for changed in (*changes, hidden_changes(one, captured, asked, values[one.name])):
            rows = np.flatnonzero(changed)
            if not len(rows):
                continue
            doubt[:, one.word] |= one.placed(changed)
            if later:
                part = asked.rows(rows)
                part.add(one.name, values[one.name][rows] ^ changed[rows])
                for other in later:
                    again = other.values(part)
                    part.add(other.name, again)
                    doubt[rows, other.word] |= other.placed(again ^ values[other.name][rows])
    return out, doubt
