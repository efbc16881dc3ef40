"""Recorded streams that lie in a buffer as well as in the jobs: both are kept equal."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from npulab.captures.capture import Job

Writes = Sequence[tuple[int, int]]
PAIR = 16  # bytes of a write, (offset, value) of 64 bits each, as streams are searched
WORD_BYTES = 4
LEAST = 16  # bytes of words that all lie in a buffer: fewer may lie there by chance


def places_of(jobs: Sequence[Job], data: bytes) -> list[int] | None:
    """The offset in a buffer of each job's words (little-endian), one job after another.

    None if the buffer does not hold the words of all jobs in their order, or if these are so few or
    so alike that they may lie there by chance.

    >>> from npulab.captures.capture import Job
    >>> words = np.arange(1, 5, dtype="<u4")
    >>> places_of([Job("A", words[:2]), Job("B", words[2:])], bytes(4) + words.tobytes())
    [4, 12]
    """
    words = [job.words for job in jobs]
    every = np.concatenate([np.zeros(0, np.uint32), *words])
    if every.nbytes < LEAST or len(np.unique(every)) < 2 or any(job.writes for job in jobs):
        return None
    places = []
    at = 0
    for block in words:
        place = data.find(block.astype("<u4").tobytes(), at)
        if place < 0:
            return None
        places.append(place)
        at = place + block.nbytes
    return places


def rewritten(
    before: Sequence[Job], after: Sequence[Job], buffers: Mapping[str, bytes]
) -> dict[str, bytes]:
    """The buffers; a buffer that holds the words of all jobs has those of the changed jobs instead.

    Jobs keep their lengths; a buffer that holds no stream stays as it is.
    """
    out = dict(buffers)
    for name, data in buffers.items():
        places = places_of(before, data)
        if places is None:
            continue
        changed = bytearray(data)
        for place, job in zip(places, after, strict=True):
            changed[place : place + job.words.nbytes] = job.words.astype("<u4").tobytes()
        out[name] = bytes(changed)
    return out


def streams_of(jobs: Sequence[Job], buffers: Mapping[str, bytes]) -> list[str]:
    """The names of the buffers that hold the words of all jobs."""
    return [name for name, data in buffers.items() if places_of(jobs, data) is not None]


class Held(NamedTuple):
    """A command stream compared with jobs: how it differs from theirs, "" if it does not, and the
    tasks that are not in it at all."""

    unlike: str = ""
    absent: tuple[int, ...] = ()


def held_against(jobs: Sequence[Job], data: bytes, writes: Callable[[np.ndarray], Writes]) -> Held:
    """Compare a command stream with the jobs that were recorded with it.

    ``writes`` gives the register writes (offset, value) in words of a stream.  The writes of each
    job, and of the job that starts it, lie in it one after another.  A stream that holds some tasks
    whole and nothing else is theirs, and the other tasks are absent.  Jobs without register writes,
    or whose writes change single bits, are left out.  Raises ValueError if the stream cannot be
    read.
    """
    parts = _written(jobs)
    if not parts:
        return Held()
    if len(data) % WORD_BYTES:
        return Held(f"got {len(data)} bytes, allowed are whole 32-bit words")
    words = np.frombuffer(data, "<u4")
    found = list(writes(words))
    every = _as_pairs(found)
    places: dict[int, int] = {}  # by number of the first write of a task: its number of writes
    missing: list[tuple[int, Writes, int]] = []  # task, its writes, where they should begin
    present: set[int] = set()
    end = 0
    for task, own in parts:
        place = _number_of(every, _as_pairs(own), places)
        if place is None:
            missing.append((task, own, end))
        else:
            places[place] = len(own)
            present.add(task)
            end = place + len(own)
    if not missing:
        return Held()
    absent = {task for task, _, _ in missing}
    if present and not present & absent and sum(places.values()) == len(found):
        return Held(absent=tuple(sorted(absent)))
    task, own, start = missing[0]
    byte = _end_of(words, writes, start + _equal_start(own, found[start:]))
    return Held(f"from byte {byte:#x} on it is not the stream of task {task}")


def _written(jobs: Sequence[Job]) -> list[tuple[int, Writes]]:
    """(task, register writes) of jobs and of the jobs that start them, if they write whole
    words."""
    out: list[tuple[int, Writes]] = []
    for task, job in enumerate(jobs):
        part: Job | None = job
        while part is not None:
            if part.writes and not part.masks:
                out.append((task, part.writes))
            part = part.start
    return out


def _as_pairs(writes: Writes) -> bytes:
    return np.array(writes, "<u8").tobytes()


def _number_of(every: bytes, own: bytes, used: Collection[int]) -> int | None:
    """The number of the first write of a run of writes that is not ``used``; None if there is no
    such run."""
    at = every.find(own)
    while at >= 0:
        number, rest = divmod(at, PAIR)
        if not rest and number not in used:
            return number
        at = every.find(own, at + 1)
    return None


def _equal_start(own: Writes, found: Writes) -> int:
    """The number of equal writes at the start of two runs."""
    count = 0
    for wanted, got in zip(own, found, strict=False):
        if wanted != got:
            break
        count += 1
    return count


def _end_of(words: np.ndarray, writes: Callable[[np.ndarray], Writes], count: int) -> int:
    """The byte after the first ``count`` writes of a stream."""
    low, high = 0, len(words)
    while low < high:
        middle = (low + high) // 2
        if _count(words[:middle], writes) < count:
            low = middle + 1
        else:
            high = middle
    return WORD_BYTES * low


def _count(words: np.ndarray, writes: Callable[[np.ndarray], Writes]) -> int:
    """The number of whole writes in a stream that may end inside a command."""
    for end in range(len(words), 0, -1):
        try:
            return len(writes(words[:end]))
        except ValueError:
            continue
    return 0
