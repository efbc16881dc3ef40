"""Two streams of jobs held against each other: which job of one is which job of the other, and the
fewest edits that make one of the other.

An edit changes a job, inserts one, leaves one out or moves one. Jobs of one block and one number of
words may be the same job with other words; jobs of different blocks never are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

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

Identity = tuple[object, ...]  # what is equal for two jobs that do the same


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
    mine, theirs = list(map(_identity, a)), list(map(_identity, b))
    if list(map(_kind, a)) == list(map(_kind, b)):
        yield [Pair(number, number) for number in range(len(a))]
    yield _path(a, b, mine, theirs, Counter())
    yield _path(a, b, mine, theirs, Counter(mine) & Counter(theirs))


def _identity(job: Job) -> Identity:
    """Return what is equal for two jobs that do the same."""
    start: object = None
    if job.start:
        start = _identity(job.start)
    return job.block, job.words.tobytes(), job.writes, job.before, start, job.label, job.unit


def _kind(job: Job) -> tuple[str, int | None]:
    """Return what jobs must have in common to be the same job with other words: the block, and the
    number of words, which may differ only between jobs of register writes."""
    if job.writes:
        return job.block, None
    return job.block, len(job.words)


def _path(
    a: Sequence[Job],
    b: Sequence[Job],
    mine: Sequence[Identity],
    theirs: Sequence[Identity],
    spare: Counter[Identity],
) -> list[Pair]:
    """Return the cheapest alignment; a gap of a job that is in ``spare`` costs half an edit."""
    first, last = _ends(mine, theirs)
    pairs = [Pair(number, number) for number in range(first)]
    rows, columns = range(first, len(a) - last), range(first, len(b) - last)
    if len(rows) * len(columns) > MOST_CELLS:
        pairs += _cut(a, b, mine, theirs, spare, rows, columns)
    else:
        pairs += _cheapest(a, b, mine, theirs, spare, rows, columns)
    pairs += [Pair(len(a) - last + n, len(b) - last + n) for n in range(last)]
    return pairs


def _ends(mine: Sequence[Identity], theirs: Sequence[Identity]) -> tuple[int, int]:
    """Return how many jobs are equal from the first on, and then from the last on."""
    most = min(len(mine), len(theirs))
    first = 0
    while first < most and mine[first] == theirs[first]:
        first += 1
    last = 0
    while last < most - first and mine[-1 - last] == theirs[-1 - last]:
        last += 1
    return first, last


def _cut(
    a: Sequence[Job],
    b: Sequence[Job],
    mine: Sequence[Identity],
    theirs: Sequence[Identity],
    spare: Counter[Identity],
    rows: range,
    columns: range,
) -> list[Pair]:
    """Return an alignment of parts that are too long for one table: cut at the job, of those that
    occur once in each part, that is nearest to the middle; side by side if there is none."""
    own, other = Counter(mine[row] for row in rows), Counter(theirs[column] for column in columns)
    places = {theirs[column]: column for column in columns}
    middle = (rows.start + rows.stop) / 2
    once = [row for row in rows if own[mine[row]] == 1 and other[mine[row]] == 1]
    if not once:
        return _side_by_side(a, b, rows, columns)
    row = min(once, key=lambda row: abs(row - middle))
    column = places[mine[row]]
    before = range(rows.start, row), range(columns.start, column)
    after = range(row + 1, rows.stop), range(column + 1, columns.stop)
    pairs = []
    for part, (left, right) in enumerate((before, after)):
        inner = _path(
            a[left.start : left.stop],
            b[right.start : right.stop],
            mine[left.start : left.stop],
            theirs[right.start : right.stop],
            spare,
        )
        pairs += [_shifted(pair, left.start, right.start) for pair in inner]
        if part == 0:
            pairs.append(Pair(row, column))
    return pairs


def _shifted(pair: Pair, a: int, b: int) -> Pair:
    in_a, in_b = pair
    if in_a is not None:
        in_a += a
    if in_b is not None:
        in_b += b
    return Pair(in_a, in_b)


def _side_by_side(a: Sequence[Job], b: Sequence[Job], rows: range, columns: range) -> list[Pair]:
    pairs: list[Pair] = []
    for row, column in zip(rows, columns, strict=False):
        if _kind(a[row]) == _kind(b[column]):
            pairs.append(Pair(row, column))
        else:
            pairs += [Pair(row, None), Pair(None, column)]
    both = min(len(rows), len(columns))
    pairs += [Pair(row, None) for row in rows[both:]]
    pairs += [Pair(None, column) for column in columns[both:]]
    return pairs


def _cheapest(
    a: Sequence[Job],
    b: Sequence[Job],
    mine: Sequence[Identity],
    theirs: Sequence[Identity],
    spare: Counter[Identity],
    rows: range,
    columns: range,
) -> list[Pair]:
    """Return the cheapest alignment of a part of two streams."""
    changes = _prices([a[row] for row in rows], [b[column] for column in columns])
    down = np.array([_gap(mine[row], spare) for row in rows], np.int64)
    across = np.array([_gap(theirs[column], spare) for column in columns], np.int64)
    pairs = cheapest(changes, down, across)
    return [_shifted(pair, rows.start, columns.start) for pair in pairs]


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
        # gaps in a row add up: a running minimum over what each cell costs more than they do
        table[row + 1] = np.minimum.accumulate(best - base) + base
    pairs = []
    row, column = len(down), len(across)
    while row or column:
        price = table[row, column]
        change = row and column and table[row - 1, column - 1] + changes[row - 1, column - 1]
        if row and column and price == change:
            row, column = row - 1, column - 1
            pairs.append(Pair(row, column))
        elif column and price == table[row, column - 1] + across[column - 1]:
            column -= 1
            pairs.append(Pair(None, column))
        else:
            row -= 1
            pairs.append(Pair(row, None))
    return pairs[::-1]


def _gap(identity: Identity, spare: Counter[Identity]) -> int:
    if identity in spare:
        return EDIT // 2
    return EDIT


def _prices(a: Sequence[Job], b: Sequence[Job]) -> Array:
    """Return the price of making each job of ``b`` of each job of ``a``, ``(a, b) int64``: more
    than two gaps for jobs of other kinds."""
    prices = np.full((len(a), len(b)), 4 * EDIT, np.int64)
    columns: dict[tuple[tuple[str, int | None], int], list[int]] = {}
    for column, job in enumerate(b):
        columns.setdefault((_kind(job), len(job.words)), []).append(column)
    identities = list(map(_identity, b))
    for row, job in enumerate(a):
        own = _identity(job)
        for (kind, count), same in columns.items():
            if kind != _kind(job):
                continue
            bits = np.full(len(same), MOST_BITS)
            if count == len(job.words):
                theirs = np.stack([b[column].words for column in same])
                bits = np.bitwise_count(theirs ^ job.words).sum(1, dtype=np.int64)
            equal = np.array([identities[column] == own for column in same])
            prices[row, same] = np.where(equal, 0, EDIT + np.minimum(bits, MOST_BITS))
    return prices


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
