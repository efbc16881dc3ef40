"""The rivals of a law: other laws, conditions and lists that agree with all captures.

Rivals are made with limits elsewhere in the gaps between captured numbers, with other budgets that
the captures allow, and with parameters that agree on all captures.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from npulab.analysis.laws.expressions import (
    ALWAYS,
    CONSTANT,
    FIELD,
    PARAMETER,
    Array,
    Columns,
    Expression,
    constant,
    parameter,
    term,
)
from npulab.analysis.laws.operators import OPERATORS, equal_share, operator
from npulab.analysis.laws.predicates import both, literals
from npulab.analysis.laws.prior import BUDGET, PRIOR, constant_cost
from npulab.analysis.laws.solved import Rival, Solved, Steps

TWINS = (("//", 2), ("ceil", 2), ("+", -1), ("+", 1), ("*", 2))
UNBOUNDED = 2**20  # stands for a budget without an upper bound; every budget is smaller


def shorter(solved: Solved) -> Iterator[Steps]:
    """Yield shorter decision lists: each lacks one condition, or has one operand of an operator in
    place of the operator.
    """
    for number, (when, law) in enumerate(solved.steps):
        parts = literals(when)
        changed = []
        for part in parts:
            if len(parts) > 1:
                changed.append((both(*(other for other in parts if other != part)), law))
        for outer in _whole(law):
            for inner in _whole(outer):
                if inner != outer:
                    changed.append((when, _replaced(law, outer, inner, [-1])))
        for step in changed:
            yield (*solved.steps[:number], step, *solved.steps[number + 1 :])


def _whole(law: Expression) -> dict[Expression, None]:
    """Yield a law and all its parts that are whole numbers computed from whole numbers."""
    inner: list[Expression] = []
    if operator(law.op).whole:
        for arg in law.args:
            inner += _whole(arg)
    return dict.fromkeys([law, *inner])


def gap_rivals(solved: Solved, columns: Columns, inner: bool = False) -> Iterator[Rival]:
    """Yield rivals with one threshold moved to an end of its gap; the gap lies between the captured
    values next to the threshold.

    With ``inner`` the threshold is also moved to the middle of the gap. A capture does not bound
    the gap if later steps give it the same value.
    """
    undecided, given = np.ones(columns.n, bool), solved.values(columns)
    for number, (when, law) in enumerate(solved.steps):
        parts = literals(when)
        rest = solved.steps[number + 1 :]
        # later steps would give these captures the same value
        alike = np.zeros(columns.n, bool)
        if rest:
            alike = (
                (columns[law] % 2**solved.width == given)
                & (solved.decide(columns, rest) >= 0)
                & (solved.values(columns, rest) == given)
            )
        for literal in parts:
            if not operator(literal.op).ordered or literal.args[1].op != CONSTANT:
                continue
            others = both(*(part for part in parts if part is not literal))
            column, limit = literal.args[0], literal.args[1].args[0]
            values = columns[column][undecided & columns[others] & ~alike]
            if literal.op in ("<=", ">"):
                up_to = values <= limit
            else:
                up_to = values < limit
            ends = []
            if up_to.any():
                ends.append(int(values[up_to].max()))
            if not up_to.all():
                ends.append(int(values[~up_to].min()) - 1)
            if inner and len(ends) == 2 and ends[1] - ends[0] > 1:
                ends.insert(0, (ends[0] + ends[1]) // 2)
            # an end of the gap is stated as the last value below the threshold, so that "<" becomes
            # "<=", and ">=" becomes ">"
            op = {"<": "<=", ">=": ">"}.get(literal.op, literal.op)
            for end in ends:
                moved = term(op, column, end)
                yield Rival(
                    0.0, number, when=both(*(moved if part is literal else part for part in parts))
                )
        undecided &= ~columns[when]


def limit_rivals(solved: Solved, columns: Columns) -> Iterator[Rival]:
    """Yield rivals with a limit on a law, at the lowest or the highest captured value of the law.

    The limit is tried if many captures share that value. If a law is limited at one end on most
    captures, limits at its other end, and beyond that end, are tried as well.
    """
    decided, values = solved.decide(columns), solved.values(columns)
    raw = [columns[law][decided == number] for number, (_, law) in enumerate(solved.steps)]
    for number, (_, law) in enumerate(solved.steps):
        if (
            operator(law.op).other_end
            and law.args[1].op == CONSTANT
            and operator(law.args[0].op).whole
            and 2 * (raw[number] == law.args[1].args[0]).sum() > len(raw[number])
        ):
            if law.op == "min":
                end, step = int(raw[number].min()), -1
            else:
                end, step = int(raw[number].max()), 1
            # limits are tried at the end of the captured values, one beyond it, and a quarter and a
            # half beyond it
            for limit in (end, end + step, end + step * end // 4, end + step * end // 2):
                yield Rival(0.0, number, law=term(operator(law.op).other_end, law, limit))
    for op, end in (("max", int(values.min())), ("min", int(values.max()))):
        if constant_cost(end) > PRIOR.round_limit or (values == end).sum() < max(
            BUDGET.at_end, 0.01 * columns.n
        ):
            continue
        for number, (_, law) in enumerate(solved.steps):
            plain = not operator(law.op).whole or law.op == op or not law.names() | law.names(FIELD)
            # a law whose values do not fit the field wraps, so it has no limit
            inside = (
                len(raw[number]) and raw[number].min() >= 0 and raw[number].max() < 2**solved.width
            )
            if not plain and inside and (raw[number] == end).any():
                yield Rival(0.0, number, law=term(op, law, end))


def clamp_rivals(
    solved: Solved, columns: Columns, fields: Sequence[Solved] = ()
) -> Iterator[Rival]:
    """Yield rivals in which a step with a constant is a limit on another law: that law is beyond
    the limit on all captures of the step.

    Such a limit may hold on more rows than the step decides: it may come first, or have a wider
    condition. The constant may also be one part of a limit whose other part is in a neighbouring
    field, one of ``fields``.
    """
    decided, values = solved.decide(columns), solved.values(columns)
    for number, (_, law) in enumerate(solved.steps):
        here = decided == number
        if law.op != CONSTANT or not here.any():
            continue
        limits = [(int(law.args[0]), 0, solved.steps)]
        for other in fields:
            beside = np.unique(other.values(columns)[here])
            if len(beside) == 1 and solved.adjoins(other):
                if other.lsb > solved.lsb:
                    low, high = solved, other
                else:
                    low, high = other, solved
                whole = {solved: law.args[0], other: beside[0]}
                limits.append(
                    (
                        int(whole[low] + 2**low.width * whole[high]),
                        solved.lsb - low.lsb,
                        (*solved.steps, *other.steps),
                    )
                )
        for limit, up, read in limits:
            parts = dict.fromkeys(
                part
                for _, read_law in read
                for part in read_law.walk()
                if (part.op in (PARAMETER, FIELD) or operator(part.op).whole)
                and not operator(part.op).other_end
            )
            for part in parts:
                column = columns[part][here]
                for op, beyond in (("min", column >= limit), ("max", column <= limit)):
                    if beyond.all():
                        held = _moved(term(op, part, limit), up)
                        yield from _earlier(solved, number, held, columns, values)


def separating_rivals(solved: Solved, columns: Columns, names: Sequence[str]) -> Iterator[Rival]:
    """Yield rivals for a field of two captured values: limits on a parameter that separate the two
    values, at either end of the gap between them.
    """
    values = solved.values(columns)
    kinds = np.unique(values)
    if len(kinds) != 2:
        return
    first = values == kinds[0]
    for name in names:
        column = columns[parameter(name)]
        for below, its_rows in ((kinds[0], first), (kinds[1], ~first)):
            low, high = int(column[its_rows].max()), int(column[~its_rows].min())
            if low >= high:
                continue
            above = kinds.sum() - below
            for end in {low, high - 1}:
                when = term("<=", parameter(name), end)
                steps = (when, constant(int(below))), (ALWAYS, constant(int(above)))
                yield Rival(steps=steps)


def _earlier(
    solved: Solved, number: int, law: Expression, columns: Columns, values: Array
) -> Iterator[Rival]:
    """Yield lists with a limited law as a step: as the first step, or with a wider condition, if
    the captures allow it.
    """
    when, rest = solved.steps[number][0], (*solved.steps[:number], *solved.steps[number + 1 :])
    parts = literals(when)
    wider = [both(*(other for other in parts if other != part)) for part in parts if len(parts) > 1]
    for condition in (when, *wider):
        for at in sorted({0, number}) if number < len(rest) else (number,):
            steps = (*rest[:at], (condition, law), *rest[at:])
            if (solved.values(columns, steps) == values).all():
                yield Rival(steps=steps)


def like_rivals(solved: Solved, fields: Sequence[Solved], columns: Columns) -> Iterator[Rival]:
    """Yield other lists that agree with the captures.

    One kind is the list of a neighbouring field, continued into this field. The other kind is the
    field's own list with a parameter that is one less or one more, as if a size stood in place of
    its last index.
    """
    lists = []
    for other in fields:
        if solved.adjoins(other):
            lists.append(
                tuple((when, _moved(law, solved.lsb - other.lsb)) for when, law in other.steps)
            )
    walks = [law.walk() for _, law in solved.steps]
    for part in dict.fromkeys(itertools.chain.from_iterable(walks)):
        for by in (-1, 1):
            if part.op == PARAMETER and columns[part].dtype.kind == "i":
                lists.append(
                    tuple(
                        (when, _replaced(law, part, term("+", part, by), [-1]))
                        for when, law in solved.steps
                    )
                )
    values = solved.values(columns)
    for steps in lists:
        if (solved.values(columns, steps) == values).all():
            yield Rival(steps=steps)


def _moved(law: Expression, up: int) -> Expression:
    """The law shifted right by ``up`` bits, or left if ``up`` is negative."""
    if up < 0 and law.op == "//" and law.args[1].op == CONSTANT and law.args[1].args[0] >= 2**-up:
        left = law.args[1].args[0] // 2**-up
        if left > 1:
            return term("//", law.args[0], left)
        return law.args[0]
    if up > 0:
        return term("//", law, 2**up)
    return term("*", law, 2**-up)


def hidden_changes(solved: Solved, captured: Columns, asked: Columns, values: Array) -> Array:
    """``(N,)``: masks of the field's bits that change if the budget of a ``share`` is another
    number that the captures allow.

    The budget is the largest size that a part may have; each capture only gives bounds of it. It is
    assumed to be one number, or to rise or fall with one column. On each row, all numbers between
    the bounds from the captures around it are as likely as the law.
    """
    changed = np.zeros(asked.n, np.int64)
    inside, outside = solved.decide(captured), solved.decide(asked)
    for number, (_, law) in enumerate(solved.steps):
        if law.op != "share" or not (outside == number).any():
            continue
        x, budget = law.args
        rows, here = np.flatnonzero(inside == number), np.flatnonzero(outside == number)
        low, high = _budgets(captured[x][rows], solved.values(captured)[rows])
        leaf = next((part for part in budget.walk() if part.op in (PARAMETER, FIELD)), None)
        if leaf is None:
            lower, upper = np.full(len(here), low.max()), np.full(len(here), high.min())
        else:
            # a quotient falls while its column rises; with the sign changed, both rise
            sign = 1
            if budget.op == "//":
                sign = -1
            along, at = sign * captured[leaf][rows], sign * asked[leaf][here]
            order = np.argsort(along, kind="stable")
            # A budget that rises with its column is at least the least budget of each capture with
            # a smaller column, and at most the greatest of each capture with a larger one.
            least = np.concatenate([[1], np.maximum.accumulate(low[order])])
            most = np.concatenate([np.minimum.accumulate(high[order][::-1])[::-1], [UNBOUNDED]])
            lower = least[np.searchsorted(along[order], at, "right")]
            upper = most[np.searchsorted(along[order], at, "left")]
        for bound in (upper, lower):
            shares = equal_share(asked[x][here], np.maximum(bound, 1))
            changed[here] |= (shares ^ values[here]) % 2**solved.width
    return changed


def _budgets(x: Array, values: Array) -> tuple[Array, Array]:
    """The least and the greatest budget with which x is cut into parts of these sizes."""
    pieces = -(-x // np.maximum(values, 1))
    least = -(-x // np.maximum(pieces, 1))
    # with a budget of x / pieces or more, x is cut into at most this many pieces; with
    # x / (pieces - 1) or more, into fewer
    return least, np.where(pieces > 1, -(-x // np.maximum(pieces - 1, 1)) - 1, UNBOUNDED)


class Twins:
    """Simple laws that are equal on all captures, such as two parameters that always agree, or a
    parameter that is always half of another.
    """

    def __init__(self, captured: Columns, names: Sequence[str]) -> None:
        self.captured = captured
        leaves = [parameter(name) for name in names]
        changed = []
        for leaf in leaves:
            changed += [term(op, leaf, value) for op, value in TWINS]
            changed.append(term("//", term("-", leaf, 1), 2))
        self._of: dict[bytes, list[Expression]] = {}
        for law in (*leaves, *changed):
            values = np.asarray(captured[law], np.int64)
            if (values != values[0]).any():
                self._of.setdefault(values.tobytes(), []).append(law)

    def of(self, law: Expression) -> list[Expression]:
        if law.op not in (PARAMETER, *(op for op, _ in TWINS)):
            return []
        key = np.asarray(self.captured[law], np.int64).tobytes()
        return [twin for twin in self._of.get(key, ()) if twin != law]

    def rivals(self, solved: Solved) -> Iterator[Rival]:
        """Yield rivals of a field in which a part of a law is replaced by its twin: one occurrence
        of the part, or all.
        """
        for number, (when, law) in enumerate(solved.steps):
            for whole in (law, when):
                for part in dict.fromkeys(whole.walk()):
                    for twin in self.of(part)[: BUDGET.twins]:
                        for places in (1, -1):
                            other = _replaced(whole, part, twin, [places])
                            if other != whole:
                                yield (
                                    Rival(0.0, number, law=other)
                                    if whole is law
                                    else Rival(0.0, number, when=other)
                                )

    def apart(self, solved: Solved, asked: Columns) -> Array:
        """``(N,) bool``: rows on which two twins differ; all False if the field reads no twin."""
        parts = dict.fromkeys(part for whole in solved.parts for part in whole.walk())
        out = np.zeros(asked.n, bool)
        if any(self.of(part) for part in parts):
            for first, *others in self._of.values():
                for other in others:
                    out |= asked[first] != asked[other]
        return out


def _replaced(law: Expression, part: Expression, twin: Expression, left: list[int]) -> Expression:
    """The law with ``twin`` in place of the first ``left[0]`` occurrences of a part; -1: of all."""
    if law == part:
        if left[0] == 0:
            return law
        left[0] -= 1
        return twin
    if law.op not in OPERATORS:
        return law
    return Expression(law.op, tuple(_replaced(part_of, part, twin, left) for part_of in law.args))
