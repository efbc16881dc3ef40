"""Fields: bits of one word, and the decision lists that explain them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from npulab.analysis.laws.expressions import ALWAYS, FIELD, PARAMETER, Array, Columns, Expression

# A decision list: pairs of a condition and a law. The first pair whose condition holds on a capture
# decides the capture; if no condition holds, the capture has no law.
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
        """The name of a run of bits by word, lowest bit and width: ``w3_0_7``.

        Maps whose registers have addresses, or with several blocks, write such names in another
        way; see ``naming``.
        """
        return f"w{self.word}_{self.lsb}_{self.width}"

    @classmethod
    def named(cls, name: str) -> Place:
        """The place with this automatic name."""
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
        """True if one of the two fields begins at the end of the other."""
        return self.word == other.word and (self.end == other.lsb or other.end == self.lsb)


def runs_of(bits: Array, word: int, starts: int = 0) -> list[Place]:
    """The places of adjacent set bits in ``bits (32,) bool`` of a word. A set bit that is also set
    in the mask ``starts`` begins a new place.
    """
    out: list[Place] = []
    for bit in np.flatnonzero(bits).tolist():
        if out and out[-1].end == bit and not starts >> bit & 1:
            out[-1] = replace(out[-1], width=out[-1].width + 1)
        else:
            out.append(Place(word, bit, 1))
    return out


def covered(fields: Iterable[Place], words: int) -> Array:
    """``(words,) uint32``: masks of the bits of each word that belong to one of the fields."""
    out = np.zeros(words, np.uint32)
    for place in fields:
        out[place.word] |= np.uint32(place.mask)
    return out


@dataclass(frozen=True)
class Rival:
    """What may take the place of a step of a decision list, or of the whole list: a law, a
    condition or a list that no capture tells from it.

    It costs ``extra_cost`` bits more.
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
    """A field with a decision list, which gives its bits on every capture that a step of the list
    decides. ``cost`` of the list and ``explained``, the information in the field, are in bits.

    ``support`` is the number of captures that each step decides. ``missed`` is a mask ``(N,) bool``
    of the captures that lists made without them give wrongly; None for a field with one law.
    """

    steps: Steps
    support: tuple[int, ...]
    cost: float
    explained: float
    rivals: tuple[Rival, ...] = ()
    missed: Array | None = None

    @classmethod
    def always(
        cls, place: Place, law: Expression, captures: int, cost: float, explained: float
    ) -> Solved:
        """A field with one law for all captures; ``captures`` is their number."""
        steps = ((ALWAYS, law),)
        return cls(place.word, place.lsb, place.width, steps, (captures,), cost, explained)

    @property
    def parts(self) -> tuple[Expression, ...]:
        """The conditions and laws of all steps."""
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
        """``(N,)``: the number of the step that decides each row; -1 if none does."""
        out = np.full(columns.n, -1)
        for number, (when, _) in enumerate(steps or self.steps):
            out[(out < 0) & columns[when]] = number
        return out

    def uncut(self, columns: Columns, steps: Steps = ()) -> Array:
        """``(N,) int64``: the full values of the laws, of which the field has the low bits; 0 on
        rows that no step decides.
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
        """``(N,) int64``: the field's raw value on each row."""
        return self.uncut(columns, steps) % 2**self.width

    def wrong(self, columns: Columns, words: Array, steps: Steps = ()) -> Array:
        """``(N,) bool``: the captures in which the field differs from the law of the step that
        decides.
        """
        return (self.values(columns, steps) != self.raw(words)) & (self.decide(columns, steps) >= 0)

    def alternative(self, rival: Rival) -> Steps:
        """The steps of the list with ``rival`` in place of its step, or of the whole list."""
        if rival.steps:
            return rival.steps
        when, law = self.steps[rival.step]
        changed = (rival.when or when, rival.law or law)
        return (*self.steps[: rival.step], changed, *self.steps[rival.step + 1 :])

    def changes(self, rival: Rival, columns: Columns, values: Array) -> Array:
        """``(N,) int64``: the bits that ``rival`` changes in the field's ``values``."""
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
