"""The state of a search: the captures, which never change, and the fields explained so far."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from npulab.analysis.laws.expressions import Array, Columns
from npulab.analysis.laws.library import Names
from npulab.analysis.laws.solved import Place, Solved, runs_of

Progress = Callable[[str], None]


@dataclass(eq=False)
class Watch:
    """The observer of a search.

    ``tell`` is called with a line at each step. ``state`` is the latest state: it is used if the
    search is interrupted.
    """

    tell: Progress
    state: State | None = None


@dataclass(frozen=True, eq=False)
class Captures:
    """The captures of a search: ``words (N, W) uint32`` and their parameters as ``columns``.

    ``varies (W, 32) bool`` marks the bits that are not constant. ``information (N, W, 32)`` is the
    code length of each bit in bits. ``starts (W,)`` are masks of bits at which a field begins, as
    far as that is known. ``watch`` observes the search.
    """

    words: Array
    columns: Columns
    names: Names
    varies: Array
    information: Array
    starts: Sequence[int]
    watch: Watch

    @property
    def n(self) -> int:
        return len(self.words)

    def weights(self, place: Place) -> Array:
        """``(N,)``: the information in each capture's value in a place, in bits."""
        return np.asarray(self.information[:, place.word, place.lsb : place.end].sum(1))


@dataclass(frozen=True, eq=False)
class State:
    """The fields explained so far, and the bits that are still to be explained.

    ``todo (W, 32) bool`` are these bits, ``solved`` the explained fields. ``follows`` has by field
    the names of all fields that it reads, directly or through others. ``nearly`` has by open place
    a law that nearly fits, as text.
    """

    captures: Captures
    todo: Array
    solved: tuple[Solved, ...] = ()
    follows: Mapping[str, frozenset[str]] = field(default_factory=dict)
    nearly: Mapping[Place, str] = field(default_factory=dict)

    def accept(self, solved: Solved, instead_of: Collection[Solved] = ()) -> State:
        """The state with one more field, and without the fields ``instead_of``."""
        reads = solved.reads.union(*(self.follows.get(name, frozenset()) for name in solved.reads))
        # an earlier field may read the new field; it then also reads the fields that the law of the
        # new field reads
        follows = self.follows
        if reads:
            follows = {}
            for name, of in self.follows.items():
                follows[name] = of | reads if solved.name in of else of
        state = replace(
            self.but([solved]),
            follows={**follows, solved.name: reads},
            solved=(*(old for old in self.solved if old not in instead_of), solved),
        )
        self.captures.watch.state = state
        self.captures.watch.tell(str(solved))
        return state

    def but(self, places: Iterable[Place]) -> State:
        """The state in which the bits of some places are no longer to be explained."""
        todo = self.todo.copy()
        for place in places:
            todo[place.word, place.lsb : place.end] = False
        return replace(self, todo=todo)

    def is_read(self, *fields: Solved) -> bool:
        """True if any field reads one of these fields, directly or through others."""
        names = {solved.name for solved in fields}
        return any(names & follows for follows in self.follows.values())

    def is_open(self, place: Place) -> bool:
        """True if a place has a bit to explain, and each of its other varying bits is to be
        explained as well.
        """
        here = slice(place.lsb, place.end)
        todo, varies = self.todo[place.word, here], self.captures.varies[place.word, here]
        return bool(todo.any() and (todo | ~varies).all())

    def open_runs(self) -> list[Place]:
        """The bits to explain, as places of adjacent bits."""
        out = []
        for word in np.flatnonzero(self.todo.any(1)).tolist():
            out += runs_of(self.todo[word], word, self.captures.starts[word])
        return out

    def circular(self, place: Place, derived: Collection[str]) -> set[str]:
        """The names of ``derived`` fields that the law of a place must not read: fields that
        overlap the place, and fields that read one of these.
        """
        there = {name: Place.named(name) for name in derived}
        names = {place.name} | {
            name
            for name, other in there.items()
            if other.word == place.word and other.mask & place.mask
        }
        return names | {name for name in derived if self.follows.get(name, frozenset()) & names}
