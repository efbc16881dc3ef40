"""Two streams of jobs held against each other: which job of one is which job of the other, and the
fewest edits that make one of the other.

An edit changes a job, inserts one, leaves one out or moves one. Jobs of one block and one number of
words may be the same job with other words; jobs of different blocks never are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple, TypeVar

import numpy as np
from numpy import ndarray as Array

from npulab.captures.capture import Job

CHANGED, INSERTED, LEFT_OUT, MOVED = "changed", "inserted", "left out", "moved"
# The price of an edit; a change costs the bits that differ on top, at most MOST_BITS. So the fewest
# edits win, and among equally many those that change the fewest bits.
EDIT, MOST_BITS = 2**16, 2**10
# Most cells of the table of prices: 2,000 by 2,000 jobs, 32 MiB. Longer parts are cut at jobs that
# occur once in each stream.
MOST_CELLS = 2**22

One = TypeVar("One")
Identity = tuple[object, ...]  # what is equal for two jobs that do the same
Kind = tuple[object, ...]  # what is equal for two jobs that are one job with other words


class Edit(NamedTuple):
    """One edit: ``a`` is the job's number in the first stream, ``b`` in the second, None for a job
    that is left out. An inserted job stands before the job ``a`` of the first stream, whose end
    counts as a job here."""

    kind: str
    a: int
    b: int | None


class Pair(NamedTuple):
    """A place in two streams side by side: the number of the job in each, None where it has
    none."""

    a: int | None
    b: int | None


def aligned(a: Sequence[Job], b: Sequence[Job]) -> list[Pair]:
    """Return the jobs of two streams side by side, each once, in an order that keeps that of both.

    >>> words = [np.uint32([number]) for number in (1, 2, 3)]
    >>> x, y, z = (Job("A", one) for one in words)
    >>> aligned([x, z], [x, y, z])
    [Pair(a=0, b=0), Pair(a=None, b=1), Pair(a=1, b=2)]
    """
    best: list[Pair] = []
    least = len(a) + len(b) + 1
    for pairs in _alignments(a, b):
        count = len(edits_of(a, b, pairs))
        if count < least:
            best, least = pairs, count
        if least <= 1:
            break  # no alignment has fewer
    return best


def edits(a: Sequence[Job], b: Sequence[Job]) -> list[Edit]:
    """Return the edits that make the second stream of the first one, in the order of the streams;
    a job that is left out in one place and inserted in another is moved."""
    return edits_of(a, b, aligned(a, b))


def _alignments(a: Sequence[Job], b: Sequence[Job]) -> Iterator[list[Pair]]:
    """Yield alignments of which one has the fewest edits: side by side as far as both go, by the
    price of each edit, and with cheap gaps for jobs that both streams have, which may have
    moved."""
    if list(map(_kind, a)) == list(map(_kind, b)):
        yield _abreast(len(a), 0, 0)
    mine, theirs = tuple(map(_identity, a)), tuple(map(_identity, b))
    yield _path(_Streams(a, b, mine, theirs, Counter()))
    yield _path(_Streams(a, b, mine, theirs, Counter(mine) & Counter(theirs)))


@dataclass(frozen=True)
class _Streams:
    """Two streams, or a part of both, with the identity of each job; a gap of a job that is in
    ``spare`` costs half an edit."""

    a: Sequence[Job]
    b: Sequence[Job]
    mine: Sequence[Identity]
    theirs: Sequence[Identity]
    spare: Counter[Identity]

    def part(self, rows: range, columns: range) -> _Streams:
        first, last = rows.start, rows.stop
        left, right = columns.start, columns.stop
        return _Streams(
            self.a[first:last],
            self.b[left:right],
            self.mine[first:last],
            self.theirs[left:right],
            self.spare,
        )

    def gaps(self, identities: Sequence[Identity]) -> Array:
        """The prices of a gap of each job, int64."""
        spared = np.array([identity in self.spare for identity in identities], bool)
        return np.where(spared, EDIT // 2, EDIT).astype(np.int64)


def _identity(job: Job) -> Identity:
    """Return the identity of a job: equal for two jobs that do the same."""
    start: Identity | None = None
    if job.start:
        start = _identity(job.start)
    return job.block, job.words.tobytes(), job.writes, job.before, start, job.label, job.unit


def _kind(job: Job) -> Kind:
    """Return what jobs must have in common to be the same job with other words: the block, the
    number of words, which may differ only between jobs of register writes, and the kind of the job
    that starts it, if that is of words."""
    if job.writes:
        return job.block, None, None
    start = None
    if job.start is not None and not job.start.writes:
        start = _kind(job.start)
    return job.block, len(job.words), start


def _path(of: _Streams) -> list[Pair]:
    """Return the cheapest alignment. Equal jobs at both ends are paired as they stand. The jobs
    between them are paired by prices; if these are too many for one table, they are cut in two."""
    first, last = _ends(of.mine, of.theirs)
    pairs = _abreast(first, 0, 0)
    rows, columns = range(first, len(of.a) - last), range(first, len(of.b) - last)
    rest = of.part(rows, columns)
    if len(rows) * len(columns) > MOST_CELLS:
        inner = _cut(rest)
    else:
        changes = _prices(rest.a, rest.b)
        inner = cheapest(changes, rest.gaps(rest.mine), rest.gaps(rest.theirs))
    pairs += _shifted(inner, first, first)
    pairs += _abreast(last, rows.stop, columns.stop)
    return pairs


def _abreast(count: int, a: int, b: int) -> list[Pair]:
    """Return ``count`` pairs of jobs that follow one another, from job ``a`` of the first stream
    and job ``b`` of the second."""
    pairs = []
    for number in range(count):
        pair = Pair(a + number, b + number)
        pairs.append(pair)
    return pairs


def _ends(mine: Sequence[Identity], theirs: Sequence[Identity]) -> tuple[int, int]:
    """Return how many jobs are equal at the start of both streams, and how many of the remaining
    jobs are equal at the end."""
    most = min(len(mine), len(theirs))
    first = 0
    while first < most and mine[first] == theirs[first]:
        first += 1
    last = 0
    while last < most - first and mine[-1 - last] == theirs[-1 - last]:
        last += 1
    return first, last


def _cut(of: _Streams) -> list[Pair]:
    """Return an alignment of streams that are too long for one table: cut at the job, of those that
    occur once in each, that is nearest to the middle; side by side if there is none."""
    own, other = Counter(of.mine), Counter(of.theirs)
    places = {identity: column for column, identity in enumerate(of.theirs)}
    best = None
    for row, identity in enumerate(of.mine):
        once = own[identity] == 1 and other[identity] == 1
        if once and (best is None or abs(2 * row - len(of.a)) < abs(2 * best - len(of.a))):
            best = row
    if best is None:
        return _side_by_side(of)
    column = places[of.mine[best]]
    before = _path(of.part(range(best), range(column)))
    after = _path(of.part(range(best + 1, len(of.a)), range(column + 1, len(of.b))))
    return [*before, Pair(best, column), *_shifted(after, best + 1, column + 1)]


def _shifted(pairs: Iterable[Pair], a: int, b: int) -> list[Pair]:
    """Return the pairs of a part that begins at these jobs."""
    out = []
    for in_a, in_b in pairs:
        if in_a is not None:
            in_a += a
        if in_b is not None:
            in_b += b
        out.append(Pair(in_a, in_b))
    return out


def _side_by_side(of: _Streams) -> list[Pair]:
    pairs: list[Pair] = []
    for number, (one, other) in enumerate(zip_longest(of.a, of.b)):
        if one and other and _kind(one) == _kind(other):
            pairs.append(Pair(number, number))
            continue
        if one:
            pairs.append(Pair(number, None))
        if other:
            pairs.append(Pair(None, number))
    return pairs


def cheapest(changes: Array, down: Array, across: Array) -> list[Pair]:
    """Return the cheapest alignment of two sequences: ``changes (A, B)`` are the prices of a pair,
    ``down (A,)`` and ``across (B,)`` those of a gap; all int64.

    The table of the prices of all beginnings takes ``8 * (A + 1) * (B + 1)`` bytes.
    """
    base = np.concatenate([[0], np.cumsum(across)])
    table = np.empty((len(down) + 1, len(across) + 1), np.int64)
    table[0] = base
    for row in range(len(down)):
        best = table[row] + down[row]
        best[1:] = np.minimum(best[1:], table[row, :-1] + changes[row])
        # gaps in a row add up: a running minimum over each cell's price less the gaps before it
        table[row + 1] = np.minimum.accumulate(best - base) + base
    pairs = []
    row, column = len(down), len(across)
    while row or column:
        price = table[row, column]
        paired = inserted = None
        if row and column:
            paired = table[row - 1, column - 1] + changes[row - 1, column - 1]
        if column:
            inserted = table[row, column - 1] + across[column - 1]
        if price == paired:
            row -= 1
            column -= 1
            pair = Pair(row, column)
        elif price == inserted:
            column -= 1
            pair = Pair(None, column)
        else:
            row -= 1
            pair = Pair(row, None)
        pairs.append(pair)
    pairs.reverse()
    return pairs


def _prices(a: Sequence[Job], b: Sequence[Job]) -> Array:
    """Return the price of making each job of ``b`` of each job of ``a``, ``(a, b) int64``: more
    than two gaps for jobs of other kinds."""
    prices = np.full((len(a), len(b)), 4 * EDIT, np.int64)
    columns: dict[Kind, list[int]] = {}
    for column, job in enumerate(b):
        columns.setdefault(_kind(job), []).append(column)
    identities = list(map(_identity, b))
    for row, job in enumerate(a):
        own = _identity(job)
        same = columns.get(_kind(job), [])
        if not same:
            continue
        bits = _bits_apart(job, [b[column] for column in same])
        prices[row, same] = EDIT + np.minimum(bits, MOST_BITS)
        for column in same:
            if identities[column] == own:
                prices[row, column] = 0
    return prices


def _bits_apart(job: Job, others: Sequence[Job]) -> Array:
    """Return how many bits differ between a job and others of its kind, ``MOST_BITS`` if one has
    more words, as jobs of register writes may."""
    if any(len(other.words) != len(job.words) for other in others):
        return np.full(len(others), MOST_BITS)
    words = np.stack([other.words for other in others])
    return np.bitwise_count(words ^ job.words).sum(1, dtype=np.int64)


def edits_of(a: Sequence[Job], b: Sequence[Job], pairs: Sequence[Pair]) -> list[Edit]:
    """Return the edits of an alignment; each job that is left out takes the nearest equal one that
    is inserted, and is moved there."""
    inserted: dict[Identity, list[int]] = {}
    for left, right in pairs:
        if left is None and right is not None:
            inserted.setdefault(_identity(b[right]), []).append(right)
    moved: dict[int, int] = {}
    for left, right in pairs:
        if right is None and left is not None:
            places = inserted.get(_identity(a[left]))
            if places:
                away = [abs(place - left) for place in places]
                moved[left] = places.pop(away.index(min(away)))
    targets = set(moved.values())
    out = []
    ahead = 0  # the next job of the first stream
    for left, right in pairs:
        if left is None:
            if right not in targets:
                out.append(Edit(INSERTED, ahead, right))
            continue
        ahead = left + 1
        if right is None:
            if left in moved:
                out.append(Edit(MOVED, left, moved[left]))
            else:
                out.append(Edit(LEFT_OUT, left, None))
        elif _identity(a[left]) != _identity(b[right]):
            out.append(Edit(CHANGED, left, right))
    return out


def edited(
    a: Sequence[One],
    b: Sequence[One],
    pairs: Sequence[Pair],
    chosen: Collection[Edit],
    changed: Mapping[int, One],
) -> list[One]:
    """Return the first stream after the ``chosen`` edits that insert, leave out or move;
    ``changed`` has its other members, by number, in place of those that it has."""
    gone = {edit.a for edit in chosen if edit.kind != INSERTED}
    new = {edit.b for edit in chosen if edit.b is not None}
    members = []
    for left, right in pairs:
        if left is not None and left not in gone:
            members.append(changed.get(left, a[left]))
        elif left is None and right is not None and right in new:
            members.append(b[right])
    return members
