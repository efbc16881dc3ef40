"""The records in a buffer of two captures compared: which records belong together, what differs,
and the buffer with some differences taken over.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, cast

import numpy as np
from numpy import ndarray as Array

from npulab.captures.aligned import (
    CHANGED,
    INSERTED,
    LEFT_OUT,
    Edit,
    Pair,
    aligned,
    edited,
    edits_of,
)
from npulab.captures.capture import Capture, Job
from npulab.captures.records import Records
from npulab.registers.fields import Field

# In the key of a whole buffer: its block, its field, and the field of its bytes in no record.
BUFFER, BYTES, OTHERS = "buffer", "(bytes)", "(bytes in no record)"
RECORD = "record"
# At most this many records, from the first to the last that differs, are aligned (10 s). In longer
# runs, records with the same number are compared.
MOST_ALIGNED = 2**17
# Records with the same number are also compared in runs of more than FEW records of which fewer
# than one in SHARED occurs on both sides.
FEW, SHARED = 2**10, 64
# A bisection takes a buffer apart if at most this many parts differ (6 s of search).
MOST_PARTS = 2**12
# The comparisons of this many pairs of buffers are kept in memory.
MOST_KEPT = 8


class Part(NamedTuple):
    """A difference between records: a field, with its values as people read them, or, without a
    ``field``, a whole record that is inserted, left out or moved.
    """

    name: str
    edit: Edit
    field: Field | None
    a: Any
    b: Any


@dataclass(frozen=True, eq=False)
class Beside:
    """The records of one buffer in two captures, side by side.

    The first ``first`` records are equal, and so are the last ``last``. ``pairs`` are the records
    between these, each as its number in the first and in the second capture; None on a side without
    it.
    """

    a: Records
    b: Records
    first: int
    last: int
    pairs: tuple[Pair, ...]
    edits: tuple[Edit, ...]

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """A part for each field that differs, and for each record that is inserted, left out or
        moved, in the order of the first capture's records."""
        fields = self._fields([edit for edit in self.edits if edit.kind == CHANGED])
        found = []
        for edit in self.edits:
            if edit.kind == CHANGED:
                found += fields.get(edit, [])
                continue
            there = other = None
            if edit.kind != INSERTED:
                there = f"{RECORD} {edit.a}"
            if edit.b is not None:
                other = f"{RECORD} {edit.b}"
            found.append(Part(f"{edit.kind} {other or there}", edit, None, there, other))
        return tuple(found)

    @cached_property
    def _others(self) -> dict[int, int]:
        """By the number of each record of the first capture that the second one has, too: its
        number in the second.
        """
        others = {}
        for left, right in self.pairs:
            if left is not None and right is not None:
                others[left] = right
        return others

    def _fields(self, changed: Sequence[Edit]) -> dict[Edit, list[Part]]:
        """The parts for the fields that differ between two records that belong together
        (``changed``).
        """
        mine = self.a.words[[edit.a for edit in changed]]
        theirs = self.b.words[[self._others[edit.a] for edit in changed]]
        meant, others_meant = _texts(self.a, mine), _texts(self.b, theirs)
        found: dict[Edit, list[Part]] = {}
        for name, item in self.a.fields.items():
            differ = np.flatnonzero(item.extract(mine) != item.extract(theirs)).tolist()
            for number in differ:
                edit = changed[number]
                title = f"{RECORD} {edit.a} {self.a.block}.{name}"
                texts = meant[name][number], others_meant[name][number]
                found.setdefault(edit, []).append(Part(title, edit, item, *texts))
        return found

    @property
    def apart(self) -> bool:
        """True if bytes outside of all records differ."""
        return self.a.outside != self.b.outside

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of the parts, and, if bytes outside of all records differ, the name of these
        bytes.
        """
        return frozenset({OTHERS, *(part.name for part in self.parts)})

    def mixed(self, names: Collection[str]) -> bytes:
        """The buffer of the first capture, with the parts of these ``names`` as in the second."""
        words = self.a.words.copy()
        chosen = set()
        for part in self.parts:
            if part.name not in names:
                continue
            if part.field is None:
                chosen.add(part.edit)
                continue
            number = part.edit.a
            one = words[number : number + 1]
            part.field.insert(one, part.field.extract(self.b.words[self._others[number]]))
        mine, theirs = cast("Sequence[Array]", words), cast("Sequence[Array]", self.b.words)
        between = edited(mine, theirs, self.pairs, chosen, {})
        parts = [words[: self.first], *(one[None] for one in between)]
        parts.append(words[len(words) - self.last :])
        outside = self.a.outside
        if OTHERS in names:
            outside = self.b.outside
        return self.a.with_words(np.concatenate(parts), outside)


def _texts(records: Records, words: Array) -> dict[str, list[Any]]:
    """Return the value of each field in some records, as people read it, by the field's name."""
    values = records.registers.decode(words)
    texts = {}
    for name, item in records.fields.items():
        texts[name] = values[name].tolist()
        if item.names:
            names = dict(item.names)
            texts[name] = [names.get(value, value) for value in texts[name]]
    return texts


def beside(a: Capture, b: Capture) -> dict[str, Beside]:
    """Return the records side by side of each buffer that differs, by the buffer's name.

    A buffer is left out, and compared only as bytes, if the captures have different maps for it, or
    if the bytes between its records differ. It is also left out if the captures have different
    numbers of records and there are bytes between them.
    """
    found = {}
    for name, mine in a.records.items():
        theirs = b.records.get(name)
        if theirs is None or mine.data == theirs.data:
            continue
        alike = (mine.block, mine.held) == (theirs.block, theirs.held)
        if not alike or tuple(mine.registers) != tuple(theirs.registers):
            continue
        between = mine.gaps, theirs.gaps
        same = between[0] == between[1]
        if len(mine) != len(theirs):
            same = not any(map(any, between))
        if same:
            found[name] = _beside(mine, theirs)
    return found


@lru_cache(MOST_KEPT)
def _beside(a: Records, b: Records) -> Beside:
    """Return the records of two buffers side by side."""
    first, last = _ends(a.words, b.words)
    mine = a.words[first : len(a) - last]
    theirs = b.words[first : len(b) - last]
    longest = max(len(mine), len(theirs))
    apart = longest > FEW and _shared(mine, theirs) * SHARED < longest
    # if a map states the most records of a buffer, the buffer is a table: no record is inserted in
    # it
    if longest > MOST_ALIGNED or apart or a.held.most is not None:
        pairs, edits = _side_by_side(mine, theirs)
    else:
        jobs = [Job(a.block, words) for words in mine]
        others = [Job(b.block, words) for words in theirs]
        pairs = aligned(jobs, others)
        edits = edits_of(jobs, others, pairs)
    return Beside(
        a,
        b,
        first,
        last,
        tuple(Pair(_further(pair.a, first), _further(pair.b, first)) for pair in pairs),
        tuple(Edit(one.kind, one.a + first, _further(one.b, first)) for one in edits),
    )


def _shared(a: Array, b: Array) -> int:
    """Return the number of records, each counted once, that occur in both runs."""
    rows = np.dtype((np.void, a.shape[1] * a.itemsize))
    mine, theirs = (np.unique(np.ascontiguousarray(run).view(rows)) for run in (a, b))
    return len(mine) + len(theirs) - len(np.unique(np.concatenate([mine, theirs])))


def _further(number: int | None, by: int) -> int | None:
    if number is None:
        return None
    return number + by


def _ends(a: Array, b: Array) -> tuple[int, int]:
    """Return the number of equal records at the start, and then at the end, of both."""
    most = min(len(a), len(b))
    if not most:
        return 0, 0
    first = _equal(a[:most], b[:most])
    most -= first
    last = _equal(a[len(a) - most :][::-1], b[len(b) - most :][::-1])
    return first, last


def _equal(a: Array, b: Array) -> int:
    """Return the number of equal rows at the start of both."""
    wrong = (a != b).any(1)
    if wrong.any():
        return int(np.argmax(wrong))
    return len(a)


def _side_by_side(a: Array, b: Array) -> tuple[list[Pair], list[Edit]]:
    """Pair the records of two runs by their numbers, with the edits; records that only the longer
    run has come last.
    """
    both = min(len(a), len(b))
    pairs = [Pair(number, number) for number in range(both)]
    edits = []
    for number in np.flatnonzero((a[:both] != b[:both]).any(1)).tolist():
        edits.append(Edit(CHANGED, number, number))
    for number in range(both, len(a)):
        pairs.append(Pair(number, None))
        edits.append(Edit(LEFT_OUT, number, None))
    for number in range(both, len(b)):
        pairs.append(Pair(None, number))
        edits.append(Edit(INSERTED, both, number))
    return pairs, edits
