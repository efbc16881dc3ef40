"""The result of a search, and what the captures say for and against each of its laws."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from npulab.analysis.laws.expressions import (
    CONSTANT,
    FIELD,
    GIVEN,
    PARAMETER,
    Array,
    Columns,
    Expression,
    field,
    parameter,
)
from npulab.analysis.laws.groups import Group, groups_of
from npulab.analysis.laws.operators import operator
from npulab.analysis.laws.predicates import literals
from npulab.analysis.laws.prior import BUDGET, PRIOR, constant_cost
from npulab.analysis.laws.rivals import Twins, shorter
from npulab.analysis.laws.solved import Place, Solved, Steps, covered, names_in
from npulab.registers.fields import WORD_BITS

# The captured numbers of a parameter are a list if there are, on average, LAYERS_A_NUMBER layers
# for each number. Measured on laws of seven kinds, with eight numbers in 64 to 100 layers: of the
# claims on other numbers 5 % were wrong; no such claim is made now.
LAYERS_A_NUMBER = 6


def in_order(
    fields: Sequence[Solved],
    follows: Mapping[str, frozenset[str]],
) -> tuple[tuple[Solved, ...], tuple[Solved, ...]]:
    """Return two tuples. The first has the fields that can be computed, each after the fields it
    reads; the second the fields that read a field without a law.

    Rivals that read a field without a law are dropped, because their values are unknown.
    """
    ready = []
    names: set[str] = set()
    left = list(fields)
    while now := [solved for solved in left if follows[solved.name] <= names]:
        ready += now
        names |= {solved.name for solved in now}
        left = [solved for solved in left if solved.name not in names]
    readable = []
    for solved in ready:
        rivals = tuple(rival for rival in solved.rivals if rival.reads <= names)
        readable.append(replace(solved, rivals=rivals))
    return tuple(readable), tuple(left)


def fill(fields: Sequence[Solved], columns: Columns) -> dict[str, Array]:
    """The values of fields by name; they are added to the columns, so that later fields can read
    them.
    """
    values = {}
    for solved in fields:
        values[solved.name] = solved.values(columns)
        columns.add(solved.name, values[solved.name])
    return values


@dataclass(frozen=True, eq=False)
class Findings:
    """The result of a search: the fields with laws, and the captures that prove them.

    Each of the ``ready`` fields comes after the fields it reads; ``stuck`` fields read a field
    without a law. ``captured`` has the parameters, and the values of all fields, as captured.
    ``words (N, W) uint32`` are the words of the captures, ``moved (W,) uint32`` masks the bits to
    explain. ``integers`` are names of whole-valued parameters. ``apart`` is the number of captures
    that were set apart.
    """

    ready: tuple[Solved, ...]
    stuck: tuple[Solved, ...]
    follows: Mapping[str, frozenset[str]]
    captured: Columns
    integers: tuple[str, ...]
    words: Array
    moved: Array
    apart: int = 0

    @classmethod
    def of(
        cls,
        fields: Sequence[Solved],
        follows: Mapping[str, frozenset[str]],
        captured: Columns,
        integers: Sequence[str],
        words: Array,
        moved: Array,
    ) -> Findings:
        ready, stuck = in_order(fields, follows)
        # these are the captured values, even if the law of a field gives others
        for solved in fields:
            captured.add(solved.name, solved.raw(words).astype(np.int64))
        return cls(ready, stuck, follows, captured, tuple(integers), words, moved)

    @cached_property
    def by_name(self) -> dict[str, Solved]:
        return {solved.name: solved for solved in self.ready}

    @cached_property
    def twins(self) -> Twins:
        return Twins(self.captured, self.integers)

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The groups to which the parameters of the captured layers keep, such as multiples of
        eight.
        """
        leaves = [leaf for leaf in self.captured.values if leaf.op == PARAMETER]
        return groups_of({leaf.args[0]: self.captured[leaf][self.layers] for leaf in leaves})

    def unlike(self, asked: Columns) -> Array:
        """``(N,) bool``: rows with a number outside the captured groups, or outside the captured
        lists.

        No capture shows what a unit does with such a number, even if no law reads it: if all
        captured channels are whole groups of eight, channels that fill no group may be padded.
        """
        out = np.zeros(asked.n, bool)
        for group in self.groups:
            out |= ~group.has(asked[parameter(group.name)])
        for name, values in self.lists.items():
            out |= ~np.isin(asked[parameter(name)], values)
        return out

    @cached_property
    def lists(self) -> dict[str, Array]:
        """The captured numbers of each whole-valued parameter that keeps to no group and has few
        numbers, each of them captured in several layers.

        Such numbers come from a list: another layer of the same kind would hardly bring a new one.
        """
        found = {}
        grouped = {group.name for group in self.groups}
        for name in self.integers:
            column = self.captured[parameter(name)][self.layers]
            values, counts = np.unique(column, return_counts=True)
            if name not in grouped and counts.min() >= 2 and counts.mean() >= LAYERS_A_NUMBER:
                found[name] = values
        return found

    @cached_property
    def modes(self) -> list[str]:
        """The names of parameters with few values that decide regimes.

        Fields with several steps read them: in a condition, in a law, or through another field.
        """
        lists = [solved.name for solved in self.ready if len(solved.steps) > 1]
        read = {*lists}.union(*(self.follows[name] for name in lists))
        names = set[str]()
        for name in read:
            names |= names_in(self.by_name[name].parts)
        return sorted(
            name
            for name in names
            if len(np.unique(self.captured[parameter(name)])) <= BUDGET.categories
        )

    @cached_property
    def together(self) -> dict[tuple[str, ...], bool]:
        """Sets of two or three modes that depend on each other, as keys. The value is True if
        hardly any combination of their values was captured only once.

        Modes depend on each other if the captures have far fewer combinations than there would be
        if each value occurred with each value of the other modes.
        """
        out = {}
        for names in (
            *itertools.combinations(self.modes, 2),
            *itertools.combinations(self.modes, 3),
        ):
            rows = _table([*map(parameter, names)], self.captured)
            kinds, counts = np.unique(rows, axis=0, return_counts=True)
            if (rows[:, None] == kinds).mean(0).prod(1).sum() < 1 - PRIOR.missing:
                out[names] = bool((counts == 1).sum() <= BUDGET.part_for_claim)
        return out

    def information(self, solved: Solved, rows: Any) -> float:
        """The bits of information in a field's values on the captures ``rows``: the bits that it
        takes to say which values occur, and in which captures. Bits of the field that always move
        together count once.
        """
        values = self.captured[field(solved.name)]
        counted = np.zeros(self.captured.n, bool)
        counted[rows] = True
        counted &= solved.decide(self.captured) >= 0
        kinds, of, counts = np.unique(values, return_inverse=True, return_counts=True)
        which = float(np.log2(self.captured.n / counts[of[counted]]).sum())
        named = 0.0
        for kind in kinds[np.unique(of[counted])].tolist():
            named += min(solved.width, constant_cost(kind))
        return min(solved.explained, which + named)

    def spare(self, solved: Solved, rows: Any = slice(None)) -> float:
        """The bits of information in a field, less the cost of its law. Only the captures ``rows``
        count, by default all.
        """
        return self.information(solved, rows) - solved.cost

    def unseen_numbers(self, solved: Solved, asked: Columns) -> tuple[Array, float]:
        """``(N,) bool``: rows on which a field reads a combination of values that no capture has;
        and the spare bits of the field, if only one capture of each combination counts.

        Captures that repeat a combination do not show what the law does with other numbers.
        """
        walked = {leaf for part in solved.parts for leaf in part.walk()}
        leaves = sorted((leaf for leaf in walked if leaf.op in (PARAMETER, FIELD, GIVEN)), key=str)
        if not leaves:
            return np.zeros(asked.n, bool), self.spare(solved)
        once = _first(_table(leaves, self.captured))
        return self._unseen(leaves, asked), self.spare(solved, once)

    def _unseen(self, leaves: Sequence[Expression], asked: Columns) -> Array:
        """``(N,) bool``: rows with a combination of numbers that no capture has."""
        captured = _table(leaves, self.captured)
        _, first, of = np.unique(
            np.concatenate([captured, _table(leaves, asked)]),
            axis=0,
            return_index=True,
            return_inverse=True,
        )
        return first[of.ravel()[len(captured) :]] >= len(captured)

    @cached_property
    def layers(self) -> Array:
        """The first capture of each layer."""
        leaves = [leaf for leaf in self.captured.values if leaf.op == PARAMETER]
        return _first(_table(leaves, self.captured))

    @cached_property
    def _hardly_needed(self) -> dict[str, list[Steps]]:
        """By name of a field: its lists with one part left out that fewer than ``part_for_claim``
        captured layers contradict.
        """
        out: dict[str, list[Steps]] = {}
        enough = min(BUDGET.part_for_claim, len(self.layers))
        for solved in self.ready:
            values = self.captured[field(solved.name)]
            for steps in shorter(solved):
                if (solved.values(self.captured, steps) != values)[self.layers].sum() < enough:
                    out.setdefault(solved.name, []).append(steps)
        return out

    def hardly_proved(self, solved: Solved, asked: Columns, values: Array) -> Array:
        """``(N,) bool``: rows on which the value depends on a part of the law that only few
        captured layers need.
        """
        out = np.zeros(asked.n, bool)
        for steps in self._hardly_needed.get(solved.name, ()):
            out |= solved.values(asked, steps) != values
            # A limit that few captures need may be a limit on another number. So all rows that the
            # step would decide without its limit are uncertain.
            for number, ((when, _), (wider, _)) in enumerate(zip(solved.steps, steps, strict=True)):
                if _has_limit({*literals(when)} - {*literals(wider)}):
                    out |= solved.decide(asked, steps) == number
        return out

    @cached_property
    def _above_open(self) -> set[str]:
        """The names of fields that lie above bits without a law, and whose own law is a quotient or
        has a limit.

        The high bits of many quantities agree, so that the law of such a field may hold by chance.
        """
        left, out = self.moved & ~covered(self.ready, len(self.moved)), set()
        for solved in sorted(self.ready, key=lambda solved: (solved.word, solved.lsb)):
            rough = any(
                operator(law.op).rounds or _has_limit(literals(when)) for when, law in solved.steps
            )
            if rough and int(left[solved.word]) & solved.mask // 2:
                out.add(solved.name)
                left[solved.word] |= np.uint32(solved.mask)
        return out

    def cut_off(self, solved: Solved, asked: Columns) -> Array:
        """``(N,) bool``: rows on which a field may be part of a larger field with another law.

        That may be if the bits next to the field continue its law on most captures, but not on all.
        It may also be if these bits have no law, and the law of the field is a quotient or has a
        limit. A row is left out if the laws of these bits decide it in another way than the
        captures that contradict the field's law.
        """
        out = np.full(asked.n, solved.name in self._above_open)
        if out.all() or len(solved.steps) > 1 or solved.partial:
            return out
        law, word = solved.steps[0][1], self.words[:, solved.word].astype(np.int64)
        values = self.captured[law]
        longer = 0
        if values.min() >= 0:
            longer = int(values.max() >> solved.width).bit_length()
        sides = [(values >> solved.width, solved.end, min(longer, WORD_BITS - solved.end))]
        if law.op == "//" and law.args[1].op == CONSTANT:
            shift = int(law.args[1].args[0]).bit_length() - 1
            if law.args[1].args[0] == 2**shift:
                low = min(shift, solved.lsb)
                sides.append((self.captured[law.args[0]] >> shift - low, solved.lsb - low, low))
        for here, lsb, width in sides:
            captured = (word >> lsb) % 2**width
            right = here % 2**width == captured
            share, usual = (
                right.mean(),
                np.unique(captured, return_counts=True)[1].max() / len(word),
            )
            if PRIOR.cut <= share < 1 and share > usual + (1 - usual) / 2:
                out |= self._where(Place(solved.word, lsb, width), ~right, asked)
        return out

    def _where(self, place: Place, rows: Array, asked: Columns) -> Array:
        """``(N,) bool``: rows that are decided by the same steps as the captures ``rows``, in all
        fields of a place.

        All rows are True if a bit of the place moved and has no law.
        """
        inside = []
        for other in self.ready:
            if other.word == place.word and other.mask & place.mask:
                inside.append(other)
        if not inside or int(self.moved[place.word]) & place.mask & ~sum(
            other.mask for other in inside
        ):
            return np.ones(asked.n, bool)
        return np.any(
            [np.isin(other.decide(asked), other.decide(self.captured)[rows]) for other in inside],
            axis=0,
        )

    def outside(self, solved: Solved, asked: Columns) -> Array:
        """``(N,) bool``: rows with a number that the captures do not cover, if a law may bend at
        that number.

        If the captures have few different numbers of a parameter, they cover these numbers only;
        else they cover the group to which the numbers keep. For example, if all captured sizes are
        even, no capture shows whether half of a size is rounded up or down.
        """
        out = np.zeros(asked.n, bool)
        names = names_in(
            part for _, law in solved.steps for part in law.walk() if operator(part.op).bends
        )
        groups = {group.name: group for group in self.groups}
        for name in sorted(names & {*self.integers}):
            values, column = np.unique(self.captured[parameter(name)]), asked[parameter(name)]
            if len(values) <= BUDGET.categories:
                out |= ~np.isin(column, values)
            elif name in groups:
                out |= ~groups[name].has(column)
        return out

    def unseen_rows(self, asked: Columns) -> list[Array]:
        """Three arrays ``(N,) bool``, each true for rows that have a combination of modes that no
        capture has. The first looks at modes that depend on each other, the second at any two
        modes, the third at all modes together.

        In such a row the field may depend on a mode, although no capture shows it.
        """
        kept = [names for names, few in self.together.items() if few]
        pairs = itertools.combinations(self.modes, min(2, len(self.modes)))
        found = []
        for groups in (kept, [*pairs, *self.together], [self.modes]):
            rows = np.zeros(asked.n, bool)
            for names in filter(None, groups):
                rows |= self._unseen([*map(parameter, names)], asked)
            found.append(rows)
        return found

    def uncut_changes(self, solved: Solved, asked: Columns, values: Array) -> list[Array]:
        """How a field's ``values`` change if the fields it reads are read with their full values,
        not cut to their widths: masks of changed bits ``(N,)``, for each cut field alone and for
        all together.

        Changes are left out if the captures contradict them.
        """
        longer = {name: self.by_name[name].uncut(asked) for name in sorted(solved.reads)}
        cut = [name for name, uncut in longer.items() if (uncut != asked[field(name)]).any()]
        changes = []
        for names in _alone_and_together(cut):
            was, now = (columns.rows(np.arange(columns.n)) for columns in (self.captured, asked))
            for name in names:
                was.add(name, self.by_name[name].uncut(self.captured))
                now.add(name, longer[name])
            if (solved.values(was) == solved.values(self.captured)).all():
                changes.append(solved.values(now) ^ values)
        return changes

    def support(self, solved: Solved) -> Array:
        """``(steps + 1,)``: the number of captured layers that each step of a field decides. The
        last entry is 0: it stands for no step.
        """
        decided = solved.decide(self.captured)[self.layers]
        return np.append([(decided == step).sum() for step in range(len(solved.steps))], 0)

    def rarer(self, solved: Solved) -> int:
        """The number of captured layers on which the field has another than its most frequent
        value.
        """
        values = solved.values(self.captured)[self.layers]
        return len(values) - int(np.unique(values, return_counts=True)[1].max())


def _has_limit(conditions: Iterable[Expression]) -> bool:
    return any(operator(condition.op).ordered for condition in conditions)


def _table(leaves: Sequence[Expression], columns: Columns) -> Array:
    return np.stack([columns[leaf] for leaf in leaves], 1)


def _first(rows: Array) -> Array:
    """The indices of the rows that equal no earlier row."""
    return np.unique(rows, axis=0, return_index=True)[1]


def _alone_and_together(names: list[str]) -> list[list[str]]:
    return [*([name] for name in names), *([names] if len(names) > 1 else [])]
