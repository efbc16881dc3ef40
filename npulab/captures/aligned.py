"""Alignment of two streams of jobs: which job of the first stream is which job of the second, and
the edits that turn the first stream into the second, as few as are found.

An edit changes, inserts, leaves out or moves one job. Only jobs of one kind may be the same job
with other words: jobs of one block, with the same number of words unless they are register writes.
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
# EDIT is the price of an edit. For a changed job, the number of bits that differ is added, at most
# MOST_BITS. So an edit costs more than the differing bits of 63 changed jobs.
EDIT, MOST_BITS = 2**16, 2**10
# The most cells of a table of prices, 8 bytes each: about 2,000 by 2,000 jobs, 32 MiB. Streams that
# need a larger table are cut in two (``_cut``).
MOST_CELLS = 2**22

One = TypeVar("One")
# Two jobs that do the same have equal identities.
Identity = tuple[object, ...]
# Two jobs may be one job with other words only if their kinds are equal.
Kind = tuple[object, ...]


class Edit(NamedTuple):
    """One edit; ``kind`` is "changed", "inserted", "left out" or "moved". ``a`` is the number of
    the job in the first stream, ``b`` its number in the second.

    For a job that is left out, ``b`` is None. For an inserted job, ``a`` is the number of the job
    of the first stream before which it goes, or the length of the first stream if it goes last.
    """

    kind: str
    a: int
    b: int | None


class Pair(NamedTuple):
    """A row of an alignment: the number of a job in the first stream (``a``) and the number of its
    counterpart in the second (``b``). None means that this stream has no such job."""

    a: int | None
    b: int | None


def aligned(a: Sequence[Job], b: Sequence[Job]) -> list[Pair]:
    """Return the rows of an alignment. Each job is in one row, beside its counterpart in the other
    stream if it has one; the jobs of a stream keep their order.

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
            break  # no alignment has fewer edits
    return best


def edits(a: Sequence[Job], b: Sequence[Job]) -> list[Edit]:
    """Return the edits that turn the first stream into the second, in the order of the jobs; a job
    that is left out in one place and inserted in another is one edit, "moved"."""
    return edits_of(a, b, aligned(a, b))


def _alignments(a: Sequence[Job], b: Sequence[Job]) -> Iterator[list[Pair]]:
    """Yield two or three candidate alignments; the caller takes the one with the fewest edits.

    The first pairs jobs by number; it is made only if both streams have the same kinds of jobs in
    the same order. In the others, a gap is a job without a counterpart. The second is the cheapest
    alignment if each gap costs a whole edit; the third is the cheapest if a gap costs half an edit
    for a job that both streams hold, because this job may have moved.
    """
    if list(map(_kind, a)) == list(map(_kind, b)):
        yield _abreast(len(a), 0, 0)
    mine, theirs = tuple(map(_identity, a)), tuple(map(_identity, b))
    yield _path(_Streams(a, b, mine, theirs, Counter()))
    yield _path(_Streams(a, b, mine, theirs, Counter(mine) & Counter(theirs)))


@dataclass(frozen=True)
class _Streams:
    """Two streams ``a`` and ``b``, or a part of each; ``mine`` are the identities of the jobs of
    ``a``, ``theirs`` those of ``b``. A gap beside a job costs half an edit if the job's identity is
    in ``spare``, else a whole edit."""

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
        """Return the price of each of J jobs if it has no counterpart, ``(J,) int64``."""
        spared = np.array([identity in self.spare for identity in identities], bool)
        return np.where(spared, EDIT // 2, EDIT).astype(np.int64)


def _identity(job: Job) -> Identity:
    """Return the identity of a job: equal for two jobs that do the same."""
    start: Identity | None = None
    if job.start:
        start = _identity(job.start)
    return job.block, job.words.tobytes(), job.writes, job.before, start, job.label, job.unit


def _kind(job: Job) -> Kind:
    """Return the kind of a job. Two jobs may be one job with other words only if their kinds are
    equal.

    The kind of a job of register writes is its block. The kind of any other job is its block, its
    number of words and the kind of its ``start``; a ``start`` of register writes is ignored.
    """
    if job.writes:
        return job.block, None, None
    start = None
    if job.start is not None and not job.start.writes:
        start = _kind(job.start)
    return job.block, len(job.words), start


def _path(of: _Streams) -> list[Pair]:
    """Return the cheapest alignment. Jobs that are equal at the start of both streams, or at the
    end of both, are paired first. The jobs between them are paired by prices; if the table of
    prices needs more than ``MOST_CELLS`` cells, the streams are cut in two, and the result may not
    be the cheapest."""
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
    """Return an alignment of streams that are too long for one table of prices.

    Both streams are cut at a job that occurs exactly once in each. If there are several, the one
    nearest to the middle of the first stream is taken. The parts before and after the cut are
    aligned separately. If no job occurs once in each, jobs of one kind are paired by number.
    """
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
    """Return the pairs of a part as pairs of the whole streams: the part begins at job ``a`` of the
    first stream and at job ``b`` of the second."""
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
    """Return the cheapest alignment of two sequences: ``changes (A, B)`` are the prices of pairs.

    ``down (A,)`` are the prices of a gap beside an element of the first sequence, ``across (B,)``
    beside one of the second; all are int64. The table of prices has a cell for the first i elements
    of one and the first j of the other, and takes ``8 * (A + 1) * (B + 1)`` bytes.
    """
    base = np.concatenate([[0], np.cumsum(across)])
    table = np.empty((len(down) + 1, len(across) + 1), np.int64)
    table[0] = base
    for row in range(len(down)):
        best = table[row] + down[row]
        best[1:] = np.minimum(best[1:], table[row, :-1] + changes[row])
        # ``base`` has the sums of the gaps' prices. They are subtracted, so that a running minimum
        # finds the cheapest start of each run of gaps, and then added again.
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
    """Return the price of a pair of each job of ``a`` and each job of ``b``: ``(A, B) int64``.

    A pair of equal jobs costs 0, a pair of one kind ``EDIT`` and the number of bits that differ, at
    most ``MOST_BITS``. Jobs of different kinds cost more than two gaps: they are never paired.
    """
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
    """Return the number of bits in which the words of a job differ from each of the ``others`` of
    its kind; ``MOST_BITS`` for each if any of them has another number of words."""
    if any(len(other.words) != len(job.words) for other in others):
        return np.full(len(others), MOST_BITS)
    words = np.stack([other.words for other in others])
    return np.bitwise_count(words ^ job.words).sum(1, dtype=np.int64)


def edits_of(a: Sequence[Job], b: Sequence[Job], pairs: Sequence[Pair]) -> list[Edit]:
    """Return the edits of an alignment. If a job is left out and an equal job is inserted, this is
    one edit: the job is moved. If several equal jobs are inserted, the nearest is taken."""
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
    ahead = 0  # the number of the next job of the first stream
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
    """Return the first stream after the ``chosen`` edits, none of which may be a change.

    ``changed`` has the changed members of the first stream: by the number of a member of ``a``,
    the member that replaces it.
    """
    gone = {edit.a for edit in chosen if edit.kind != INSERTED}
    new = {edit.b for edit in chosen if edit.b is not None}
    members = []
    for left, right in pairs:
        if left is not None and left not in gone:
            members.append(changed.get(left, a[left]))
        elif left is None and right is not None and right in new:
            members.append(b[right])
    return members
