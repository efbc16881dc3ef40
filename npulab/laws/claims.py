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
SURE, SURE_PIECE, CLEAR_LIMIT, CLEAR = 12.0, 28.0, 28.0, 40.0  # bits that a law, a limit, regimes save for a claim
THIN_STEP = 6  # captures that a step decides
BENT = {"//", "ceil", "align", "%", "share", "clog2", "flog2", "!=0", "^"}  # between captured numbers they may bend
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
    """The steps with a computed law held at the end of the captured values, where many captures share that end; and
    beyond what was captured, where it is held at the other end more often than not."""
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


def clamp_rivals(solved: Solved, columns: Columns) -> Iterator[Rival]:
    """The steps with a constant as the limit of what another step reads, where the captures are all beyond it.

    A limit may hold for more than its captures show: its step may come first, or under a wider condition.
    """
    decided, known = solved.decide(columns), solved.values(columns)
    for number, (_, law) in enumerate(solved.steps):
        here = decided == number
        if law.op != CONSTANT or not here.any():
            continue
        others = dict.fromkeys(part for _, other in solved.steps for part in other.walk()
                               if part.op in (PARAMETER, FIELD, *INTEGER) and part.op not in ("min", "max"))
        for part in others:
            values = columns[part][here]
            for op, beyond in (("min", values >= law.args[0]), ("max", values <= law.args[0])):
                if not beyond.all():
                    continue
                for when in wider(solved.steps[number][0]):
                    step = (when, Expression(op, (part, law)))
                    rest = (*solved.steps[:number], *solved.steps[number + 1:])
                    for at in sorted({0, number}) if number < len(rest) else (number,):
                        steps = (*rest[:at], step, *rest[at:])
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
                for part in dict.fromkeys(whole.walk()):
                    for twin in self.of(part)[:MOST_TWINS]:
                        for first in (True, False):
                            other = _replaced(whole, part, twin, [1 if first else -1])
                            if other != whole:
                                yield Rival(0.0, number, law=other) if of_law else Rival(0.0, number, when=other)

    def apart(self, solved: Solved, asked: Columns) -> Array:
        """``(N,) bool``: rows that break what held on all captures, where a field reads anything that it holds for.

        What else the field reads there, no capture says; that one twin gives the value of the other proves nothing.
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


def told(solved: Solved, columns: Columns) -> float:
    """Bits that say a field's values: which of them each capture has, and what they are.

    Bits that always move together say one thing, however many they are.
    """
    kinds, counts = np.unique(solved.values(columns), return_counts=True)
    which = float(counts @ np.log2(columns.n / counts))
    return min(solved.saved, which + sum(min(solved.width, constant_cost(int(kind))) for kind in kinds))


def weak(solved: Solved, columns: Columns, below: bool = False, above: bool = False) -> bool:
    """Whether a law explains hardly more than it takes to say it; ``below``, ``above``: a bit there has no law.

    One limit between two numbers needs less than other lists, as the gap that it lies in is doubted anyhow.  What
    is rounded above open bits is not their law, and most likely none: the high bits of many quantities agree.
    """
    if below and rough(solved):
        return True
    plain = len(solved.steps) == 2 and all(law.op == CONSTANT for _, law in solved.steps) \
        and len(literals(solved.steps[0][0])) == 1
    one = SURE_PIECE if below or above else SURE
    needed = one if len(solved.steps) == 1 else CLEAR_LIMIT if plain else CLEAR
    return told(solved, columns) - solved.cost < needed


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
    """``(N,) bool``: rows of a list that has a step with hardly any captures: which others are its own, none says."""
    thin = len(one.steps) > 1 and min(one.support) < THIN_STEP
    return np.full(asked.n, thin)


def beside(fields: Sequence[Solved], moved: Array) -> dict[str, tuple[bool, bool]]:
    """Whether captures move a bit below, or above, each field that has no law; ``moved (W,) uint32``."""
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
    """Which numbers of a parameter the captures are about: of few numbers themselves, else those in step with them."""

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

    A narrow field may depend on a mode that its captures did not show, so all of them count; unless wide fields prove
    its conditions.
    """
    if len(one.steps) == 1:
        return np.zeros(asked.n, bool)
    own = categories(one, captured, known.by_name)
    sure = not narrow(one, captured) or (conditions(one) <= known.trusted and names_of(one) <= own)
    return never_captured(own if sure else known.names, captured, asked)


def doubts(fields: Sequence[Solved], follows: dict[str, set[str]], captured: Columns, asked: Columns, moved: Array,
           within: float, integers: Sequence[str]) -> tuple[Array, Array]:
    """(words (N, W) uint32 as the laws give them, doubt (N, W) uint32: bits that something else would change).

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
                   for rival in (*one.rivals, *gap_rivals(one, captured), *limit_rivals(one, captured),
                                 *clamp_rivals(one, captured), *longer_rivals(one, ready, captured))
                   if rival.dearer <= within]
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
    """What changes of a field where doubted bits of the fields that it reads are all clear, or all set."""
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
