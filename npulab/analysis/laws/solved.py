"""Fields: bits of one word, and the decision lists that explain them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from npulab.analysis.laws.expressions import ALWAYS, FIELD, PARAMETER, Array, Columns, Expression

# A decision list: (when, law) pairs, of which the first whose ``when`` holds decides. Captures on
# which no ``when`` holds have no law.
Steps = tuple[tuple[Expression, Expression], ...]


def names_in(parts: Iterable[Expression | None], op: str = PARAMETER) -> set[str]:
    """The names of the parameters (or fields) that expressions read."""
    found = set()
    for part in parts:
        if part is not None:
            for name in part.names(op):
                found.add(name)
    return found


@dataclass(frozen=True)
class Place:
    """A run of bits of one word that may be a field."""

    word: int
    lsb: int
    width: int

    @property
    def name(self) -> str:
        """The automatic name of a register map: word, lowest bit, width.

        ``naming`` has the name in maps whose registers have addresses or that have several blocks.
        """
        return f"w{self.word}_{self.lsb}_{self.width}"

    @classmethod
    def named(cls, name: str) -> Place:
        """The place of an automatic name."""
        return cls(*map(int, name[1:].split("_")))

    @property
    def end(self) -> int:
        return self.lsb + self.width

    @property
    def positions(self) -> list[tuple[int, int]]:
        """(word, bit) of each bit of the place."""
        return [(self.word, bit) for bit in range(self.lsb, self.end)]

    @property
    def mask(self) -> int:
        """A mask of the place's bits in the word."""
        return (2**self.width - 1) * 2**self.lsb

    def raw(self, words: Array) -> Array:
        """The raw value of the place in each of ``(N, W) uint32`` words: ``(N,) uint32``."""
        return (words[:, self.word] >> np.uint32(self.lsb)) & np.uint32(2**self.width - 1)

    def placed(self, values: Array) -> Array:
        """Raw values ``(N,)`` shifted to the place's bits in the word, uint32."""
        return (values * 2**self.lsb).astype(np.uint32)

    def adjoins(self, other: Place) -> bool:
        """True if another field begins at the end of this one, or the other way round."""
        return self.word == other.word and (self.end == other.lsb or other.end == self.lsb)


def runs_of(bits: Array, word: int, starts: int = 0) -> list[Place]:
    """The places of the set bits of a word, ``bits (32,) bool``: runs of adjacent bits, where a bit
    in the mask ``starts`` begins a place of its own."""
    out: list[Place] = []
    for bit in np.flatnonzero(bits).tolist():
        if out and out[-1].end == bit and not starts >> bit & 1:
            out[-1] = replace(out[-1], width=out[-1].width + 1)
        else:
            out.append(Place(word, bit, 1))
    return out


def covered(fields: Iterable[Place], words: int) -> Array:
    """``(words,) uint32``: the bits of each word that belong to fields."""
    out = np.zeros(words, np.uint32)
    for place in fields:
        out[place.word] |= np.uint32(place.mask)
    return out


@dataclass(frozen=True)
class Rival:
    """An alternative to a step of a decision list, or to the whole list, that the captures cannot
    distinguish from it: a law, a condition or a list.

    ``extra_cost`` is the bits that the alternative costs more.
    """

    extra_cost: float = 0.0
    step: int = 0
    law: Expression | None = None
    when: Expression | None = None
    steps: Steps = ()

    @property
    def reads(self) -> set[str]:
        """The names of the fields that the rival reads."""
        return names_in((self.law, self.when, *itertools.chain(*self.steps)), FIELD)

    def __str__(self) -> str:
        if self.steps:
            return "; ".join(
                f"{'else' if when == ALWAYS else when}: {law}" for when, law in self.steps
            )
        if self.law is not None:
            return str(self.law)
        return f"when {self.when}"


@dataclass(frozen=True, eq=False)
class Solved(Place):
    """A field with a decision list that gives its bits on every capture that the list decides;
    ``cost`` (of the list) and ``explained`` (information in the bits) are in bits.
    """

    steps: Steps
    support: tuple[int, ...]  # the number of captures that each step decides
    cost: float
    explained: float
    rivals: tuple[Rival, ...] = ()
    missed: Array | None = (
        None  # a mask of the captures that are given wrongly by lists made without them
    )

    @classmethod
    def always(
        cls, place: Place, law: Expression, captures: int, cost: float, explained: float
    ) -> Solved:
        """A field with one law for all captures; ``captures`` is their number."""
        steps = ((ALWAYS, law),)
        return cls(place.word, place.lsb, place.width, steps, (captures,), cost, explained)

    @property
    def parts(self) -> tuple[Expression, ...]:
        """All conditions and laws of the steps."""
        return tuple(itertools.chain(*self.steps))

    @cached_property
    def reads(self) -> frozenset[str]:
        """The names of the fields that conditions and laws read."""
        return frozenset(names_in(self.parts, FIELD))

    @property
    def partial(self) -> bool:
        """True if there may be captures that no step decides, because the last step has a
        condition.
        """
        return self.steps[-1][0] != ALWAYS

    def decide(self, columns: Columns, steps: Steps = ()) -> Array:
        """The number of the step that decides each row, (N,); -1 if none does."""
        out = np.full(columns.n, -1)
        for number, (when, _) in enumerate(steps or self.steps):
            out[(out < 0) & columns[when]] = number
        return out

    def uncut(self, columns: Columns, steps: Steps = ()) -> Array:
        """The full values of the laws, ``(N,) int64``; the field has only their low bits. 0 on rows
        that no step decides.
        """
        steps = steps or self.steps
        decided = self.decide(columns, steps)
        out = np.zeros(columns.n, np.int64)
        for number, (_, law) in enumerate(steps):
            here = decided == number
            if here.any():
                out[here] = columns[law][here]
        return out

    def values(self, columns: Columns, steps: Steps = ()) -> Array:
        """The field's raw value on each row, ``(N,) int64``."""
        return self.uncut(columns, steps) % 2**self.width

    def wrong(self, columns: Columns, words: Array, steps: Steps = ()) -> Array:
        """``(N,) bool``: the captures whose bits differ from the value of the step that decides
        them.
        """
        return (self.values(columns, steps) != self.raw(words)) & (self.decide(columns, steps) >= 0)

    def alternative(self, rival: Rival) -> Steps:
        """The steps after a rival takes the place of its step, or of the whole list."""
        if rival.steps:
            return rival.steps
        when, law = self.steps[rival.step]
        changed = (rival.when or when, rival.law or law)
        return (*self.steps[: rival.step], changed, *self.steps[rival.step + 1 :])

    def changes(self, rival: Rival, columns: Columns, values: Array) -> Array:
        """``(N,) int64``: the bits in which a rival differs from the field's ``values``."""
        return self.values(columns, self.alternative(rival)) ^ values

    def __str__(self) -> str:
        parts = []
        for (when, law), n in zip(self.steps, self.support, strict=True):
            parts.append(
                f"{law}"
                if when == ALWAYS and len(self.steps) == 1
                else f"{'else' if when == ALWAYS else when}: {law} ({n})"
            )
        if self.missed is None:
            missed = ""
        else:
            missed = f", held out {int(self.missed.sum())} wrong"
        bits = f"[{self.cost:.0f} of {self.explained:.0f} bits{missed}]"
        return f"{self.name} = {'; '.join(parts)}  {bits}"
