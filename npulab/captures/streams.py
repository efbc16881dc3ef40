"""Recorded streams that lie in a buffer as well as in the jobs: both are kept alike."""

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
    >>> places_of([Job("A", [1, 2]), Job("B", [3, 4])], bytes(4) + np.arange(1, 5, dtype="<u4").tobytes())
    [4, 12]
    """
    words = [job.words for job in jobs]
    if words:
        every = np.concatenate(words)
    else:
        every = np.zeros(0, np.uint32)
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
    """The buffers with the words of changed jobs wherever the words of all jobs lie in one of them.

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
    """A command stream held against jobs: in which way it is not theirs, "" if it is, and the tasks
    that are not in it at all."""

    unlike: str = ""
    absent: tuple[int, ...] = ()


def held_against(jobs: Sequence[Job], data: bytes, writes: Callable[[np.ndarray], Writes]) -> Held:
    """A command stream held against the jobs that were recorded with it.

    ``writes`` gives the register writes (offset, value) in words of a stream.  Those of each job,
    and of what starts it, lie in it one behind another.  A stream that holds some tasks whole and
    nothing else is theirs, and the others are absent.  Jobs without register writes, or whose
    writes change single bits, say nothing of a stream.  Raises ValueError where the stream cannot
    be read.
    """
    parts = _written(jobs)
    if not parts:
        return Held()
    if len(data) % WORD_BYTES:
        return Held(f"got {len(data)} bytes, allowed are whole 32-bit words")
    words = np.frombuffer(data, "<u4")
    found = list(writes(words))
    every = _packed(found)
    places: dict[int, int] = {}  # number of the first write: how many
    missing: list[tuple[int, Writes, int]] = []  # with the write that it should begin with
    there: set[int] = set()
    behind = 0
    for task, own in parts:
        place = _place(every, _packed(own), places)
        if place is None:
            missing.append((task, own, behind))
        else:
            places[place] = len(own)
            there.add(task)
            behind = place + len(own)
    if not missing:
        return Held()
    absent = {task for task, _, _ in missing}
    if there and not there & absent and sum(places.values()) == len(found):
        return Held(absent=tuple(sorted(absent)))
    task, own, start = missing[0]
    byte = _end_of(words, writes, start + _alike(own, found[start:]))
    return Held(f"from byte {byte:#x} on it is not the stream of task {task}")


def _written(jobs: Sequence[Job]) -> list[tuple[int, Writes]]:
    """(task, register writes) of jobs and of what starts them, where these are whole words."""
    out: list[tuple[int, Writes]] = []
    for task, job in enumerate(jobs):
        part: Job | None = job
        while part is not None:
            if part.writes and not part.masks:
                out.append((task, part.writes))
            part = part.start
    return out


def _packed(writes: Writes) -> bytes:
    return np.array(writes, "<u8").tobytes()


def _place(every: bytes, own: bytes, used: Collection[int]) -> int | None:
    """The number of the write that a run of writes begins with, none that is used; None where it is
    not there."""
    at = every.find(own)
    while at >= 0:
        number, rest = divmod(at, PAIR)
        if not rest and number not in used:
            return number
        at = every.find(own, at + 1)
    return None


def _alike(own: Writes, found: Writes) -> int:
    """How many writes two runs of them begin with alike."""
    count = 0
    for one, other in zip(own, found, strict=False):
        if one != other:
            break
        count += 1
    return count


def _end_of(words: np.ndarray, writes: Callable[[np.ndarray], Writes], count: int) -> int:
    """The byte behind the first ``count`` writes of a stream."""
    low, high = 0, len(words)
    while low < high:
        middle = (low + high) // 2
        if _count(words[:middle], writes) < count:
            low = middle + 1
        else:
            high = middle
    return WORD_BYTES * low


def _count(words: np.ndarray, writes: Callable[[np.ndarray], Writes]) -> int:
    """How many writes a stream begins with that may end inside a command."""
    for end in range(len(words), 0, -1):
        try:
            return len(writes(words[:end]))
        except ValueError:
            continue
    return 0
