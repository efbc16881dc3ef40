"""Recorded streams, which a capture holds in a buffer and also as jobs: functions that keep
buffer and jobs equal, or find where they differ."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy import ndarray as Array

if TYPE_CHECKING:
    from npulab.captures.capture import Job

Writes = Sequence[tuple[int, int]]
PAIR = 16  # bytes of a write while a stream is searched: offset and value with 64 bits each
WORD_BYTES = 4
LEAST = 16  # fewest bytes of words that are looked for in a buffer: fewer may lie there by chance


def places_of(jobs: Sequence[Job], data: bytes) -> list[int] | None:
    """The byte offset in a buffer of the words (little-endian) of each job.

    None if the buffer does not hold the words of all jobs, one job after another, or if the words
    are so few or so alike that they may lie there by chance.

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
    """The buffers after a change of jobs: in a buffer that holds the words of all jobs ``before``,
    those of the jobs ``after`` replace them.

    If jobs are not as many or as long as before, the words of a buffer that holds them without gaps
    are replaced as a whole; a buffer with gaps is left out, as nothing says what belongs into the
    gaps. Other buffers do not change.
    """
    sizes = [job.words.nbytes for job in before]
    out = dict(buffers)
    for name, data in buffers.items():
        places = places_of(before, data)
        if places is None:
            continue
        if sizes == [job.words.nbytes for job in after]:
            changed = bytearray(data)
            for place, job in zip(places, after, strict=True):
                changed[place : place + job.words.nbytes] = job.words.astype("<u4").tobytes()
            out[name] = bytes(changed)
            continue
        end = places[-1] + sizes[-1]
        if end - places[0] == sum(sizes):
            stream = b"".join(job.words.astype("<u4").tobytes() for job in after)
            out[name] = data[: places[0]] + stream + data[end:]
        else:
            del out[name]
    return out


def streams_of(jobs: Sequence[Job], buffers: Mapping[str, bytes]) -> list[str]:
    """The names of the buffers that hold the words of all jobs, one job after another."""
    return [name for name, data in buffers.items() if places_of(jobs, data) is not None]


class Held(NamedTuple):
    """The result of a comparison of a command stream with jobs: ``unlike`` says how they differ (""
    if they do not), ``absent`` are the numbers of jobs of which the stream holds nothing."""

    unlike: str = ""
    absent: tuple[int, ...] = ()


def held_against(jobs: Sequence[Job], data: bytes, writes: Callable[[Array], Writes]) -> Held:
    """Compare a command stream with the jobs that were recorded with it.

    ``writes`` returns the register writes (offset, value) in the words of a stream. The stream
    should hold the writes of each job, and of the job that starts it, one after another. A stream
    that holds all writes of some jobs and nothing else counts as equal; the other jobs are
    ``absent``. Jobs without register writes, and jobs whose writes change single bits, are not
    compared. Raises ValueError if the stream cannot be read.
    """
    parts = _written(jobs)
    if not parts:
        return Held()
    if len(data) % WORD_BYTES:
        return Held(f"got {len(data)} bytes, allowed is a multiple of 4, for 32-bit words")
    words = np.frombuffer(data, "<u4")
    found = list(writes(words))
    every = _as_pairs(found)
    # for each job that was found, its number of writes, by the number of its first write
    places: dict[int, int] = {}
    # (number of the job, its writes, the number of the write at which they should begin)
    missing: list[tuple[int, Writes, int]] = []
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
    return Held(f"from byte {byte:#x} on, the stream does not hold the writes of task {task}")


def _written(jobs: Sequence[Job]) -> list[tuple[int, Writes]]:
    """Return (number of the job, register writes) for each job, and for each job that starts it;
    jobs without writes, and jobs whose writes change only some bits of a register, are left out.
    """
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
    """Find a run of writes (``own``) among all writes of a stream (``every``); return the number of
    its first write, None if it is not there. A run that begins at a number in ``used`` is passed
    over.
    """
    at = every.find(own)
    while at >= 0:
        number, rest = divmod(at, PAIR)
        if not rest and number not in used:
            return number
        at = every.find(own, at + 1)
    return None


def _equal_start(own: Writes, found: Writes) -> int:
    """The number of writes at the start in which two runs of writes agree."""
    count = 0
    for wanted, got in zip(own, found, strict=False):
        if wanted != got:
            break
        count += 1
    return count


def _end_of(words: Array, writes: Callable[[Array], Writes], count: int) -> int:
    """The offset in bytes at which the first ``count`` writes of a stream end."""
    low, high = 0, len(words)
    while low < high:
        middle = (low + high) // 2
        if _count(words[:middle], writes) < count:
            low = middle + 1
        else:
            high = middle
    return WORD_BYTES * low


def _count(words: Array, writes: Callable[[Array], Writes]) -> int:
    """The number of whole writes in a stream whose end may lie inside a command."""
    for end in range(len(words), 0, -1):
        try:
            return len(writes(words[:end]))
        except ValueError:
            continue
    return 0
