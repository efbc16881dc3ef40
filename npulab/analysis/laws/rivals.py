"""What the captures cannot tell from a law: limits elsewhere in their gaps, hidden budgets,
parameters that agree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from npulab.analysis.laws.expressions import (
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
from npulab.analysis.laws.predicates import both, literals
from npulab.analysis.laws.search import Rival, Solved, Steps

TWINS = (("//", 2), ("ceil", 2), ("+", -1), ("+", 1), ("*", 2))
MOST_TWINS = 4
MOST_BUDGET = 2 ** 20
ROUND, AT_END = 8.0, 4  # bits of a limit that somebody would set; captures that sit there
ORDERED = ("<=", ">", "<", ">=")


def rival_groups(solved: Solved, fields: Sequence[Solved], columns: Columns, *, twins: Twins | None = None,
                 inner: bool = False) -> Iterator[tuple[str, list[Rival]]]:
    """("rivals" or "threshold", what fits a field's captures as well), by kind: those of the
    search, limits moved, limits that may hold, other numbers; ``inner`` as in ``gap_rivals``,
    ``twins`` where they count as rivals."""
    yield "rivals", list(solved.rivals)
    yield "threshold", list(gap_rivals(solved, columns, inner))
    yield "threshold", [*limit_rivals(solved, columns), *clamp_rivals(solved, columns, fields)]
    yield "rivals", [*(twins.rivals(solved) if twins else ()), *longer_rivals(solved, fields, columns)]


def alternatives(solved: Solved, rival: Rival) -> Steps:
    """The steps with a rival in its place."""
    if rival.steps:
        return rival.steps
    steps = list(solved.steps)
    when, law = steps[rival.step]
    steps[rival.step] = (rival.when or when, rival.law or law)
    return tuple(steps)


def gap_rivals(solved: Solved, columns: Columns, inner: bool = False) -> Iterator[Rival]:
    """The steps with each threshold moved to the ends of the gap between the captured values beside
    it; with ``inner`` to its middle, too."""
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
    """The steps with a computed law held at the end of the captured values, where many captures
    share that end; and beyond what was captured, where it is held at the other end more often than
    not."""
    decided = solved.decide(columns)
    values = solved.values(columns)
    for number, (_, law) in enumerate(solved.steps):
        other = {"min": "max", "max": "min"}.get(law.op)
        raw = columns[law][decided == number]
        if other and law.args[1].op == CONSTANT and law.args[0].op in INTEGER \
                and 2 * (raw == law.args[1].args[0]).sum() > len(raw):
            end = int(raw.min() if other == "max" else raw.max())
            # anywhere between what a row would have and the end
            step = -1 if other == "max" else 1
            for limit in (end, end + step, end + step * end // 4, end + step * end // 2):
                yield Rival(0.0, number, law=Expression(other, (law, constant(limit))))
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


def clamp_rivals(solved: Solved, columns: Columns, fields: Sequence[Solved] = ()) -> Iterator[Rival]:
    """The steps with a constant as the limit of what another step reads, where the captures are all
    beyond it.

    A limit may hold for more than its captures show: its step may come first, or under a wider
    condition.  And it may be cut in two with the field, of ``fields``, beside this one.
    """
    decided, known = solved.decide(columns), solved.values(columns)
    neighbours = [one for one in fields if one.word == solved.word
                  and (one.lsb == solved.lsb + solved.width or one.lsb + one.width == solved.lsb)]
    for number, (_, law) in enumerate(solved.steps):
        here = decided == number
        if law.op != CONSTANT or not here.any():
            continue
        limits = [(int(law.args[0]), 0, solved.steps)]
        for other in neighbours:
            beside = np.unique(other.values(columns)[here])
            if len(beside) == 1 and other.lsb > solved.lsb:
                limits.append((int(law.args[0] + 2 ** solved.width * beside[0]), 0, (*solved.steps, *other.steps)))
            elif len(beside) == 1:
                limits.append((int(law.args[0] * 2 ** other.width + beside[0]), other.width,
                               (*solved.steps, *other.steps)))
        for limit, up, read in limits:
            others = dict.fromkeys(part for _, one in read for part in one.walk()
                                   if part.op in (PARAMETER, FIELD, *INTEGER) and part.op not in ("min", "max"))
            for part in others:
                values = columns[part][here]
                for op, beyond in (("min", values >= limit), ("max", values <= limit)):
                    if beyond.all():
                        held = _moved(Expression(op, (part, constant(limit))), up)
                        yield from _earlier(solved, number, held, columns, known)


def _earlier(solved: Solved, number: int, law: Expression, columns: Columns, known: Array) -> Iterator[Rival]:
    """A law for a step that may come first, too, or under a wider condition: what of it the
    captures allow."""
    rest = (*solved.steps[:number], *solved.steps[number + 1:])
    for when in wider(solved.steps[number][0]):
        for at in sorted({0, number}) if number < len(rest) else (number,):
            steps = (*rest[:at], (when, law), *rest[at:])
            if (solved.values(columns, steps) == known).all():
                yield Rival(0.0, -1, steps=steps)


def wider(when: Expression) -> list[Expression]:
    """A condition, and what is left of it without one of those that it joins."""
    parts = literals(when)
    return [when, *(both(*(one for one in parts if one != part)) for part in parts if len(parts) > 1)]


def longer_rivals(solved: Solved, fields: Sequence[Solved], columns: Columns) -> Iterator[Rival]:
    """The laws of the fields beside it, where the captures allow that these go on."""
    known = solved.values(columns)
    for other in fields:
        up = solved.lsb - other.lsb
        if other.word != solved.word or not (other.lsb + other.width == solved.lsb
                                             or solved.lsb + solved.width == other.lsb):
            continue
        steps = tuple((when, _moved(law, up)) for when, law in other.steps)
        if (solved.values(columns, steps) == known).all():
            yield Rival(0.0, -1, steps=steps)


def _moved(law: Expression, up: int) -> Expression:
    """A law from a bit higher (lower) on."""
    if up < 0 and law.op == "//" and law.args[1].op == CONSTANT and law.args[1].args[0] >= 2 ** -up:
        left = law.args[1].args[0] // 2 ** -up
        return Expression("//", (law.args[0], constant(left))) if left > 1 else law.args[0]
    return Expression("//", (law, constant(2 ** up))) if up > 0 else Expression("*", (law, constant(2 ** -up)))


def hidden_changes(solved: Solved, captured: Columns, asked: Columns, values: Array) -> Array:
    """``(N,)``: bits of the field that change when the budget of a ``share`` is anything the
    captures allow.

    A budget is a hidden number: each capture only bounds it.  It is taken to be one number, or to
    move one way with the column that it follows; what lies between the bounds of the captures
    beside a row is as likely as the law.
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
    """Simple laws with the same values on all captures: parameters that always agree, or a half of
    another."""

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
                for part in dict.fromkeys(whole.walk()):
                    for twin in self.of(part)[:MOST_TWINS]:
                        for first in (True, False):
                            other = _replaced(whole, part, twin, [1 if first else -1])
                            if other != whole:
                                yield Rival(0.0, number, law=other) if of_law else Rival(0.0, number, when=other)

    def apart(self, solved: Solved, asked: Columns) -> Array:
        """``(N,) bool``: rows that break what held on all captures, where a field reads anything
        that it holds for.

        What else the field reads there, no capture says; that one twin gives the value of the other
        proves nothing.
        """
        parts = dict.fromkeys(part for step in solved.steps for one in step for part in one.walk())
        return self.broken(asked) if any(self.of(part) for part in parts) else np.zeros(asked.n, bool)

    def broken(self, asked: Columns) -> Array:
        """``(N,) bool``: rows where anything that always agreed differs."""
        out = np.zeros(asked.n, bool)
        for first, *others in self._of.values():
            for other in others:
                out |= asked[first] != asked[other]
        return out


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
