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
PAIR = 16  # bytes of one write, offset and value with 64 bits each, as ``_as_pairs`` packs it
WORD_BYTES = 4
# words of jobs are searched for in a buffer if they have at least ``LEAST`` bytes in all, because
# fewer may be in the buffer by chance
LEAST = 16


def places_of(jobs: Sequence[Job], data: bytes) -> list[int] | None:
    """For each job, the byte offset of its words (little-endian) in a buffer.

    None if the buffer does not hold the words of all jobs, in the order of the jobs, or if a job
    has register writes. Also None if the words might be there by chance: if they have fewer than
    ``LEAST`` bytes in all, or are all equal.

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
    """The buffers after the jobs ``before`` were replaced by the jobs ``after``.

    A buffer that does not hold the words of all jobs ``before`` (``places_of``) stays as it is. In
    any other buffer the words are replaced. If the number of jobs and their lengths are the same,
    the words of each job are replaced in their place. Otherwise, words that follow one another
    without gaps are replaced as a whole. If there are gaps between the words of the jobs, the
    buffer is left out, because the new contents of the gaps are not known.
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
    """The names of the buffers that hold the words of all jobs, as ``places_of`` finds them."""
    return [name for name, data in buffers.items() if places_of(jobs, data) is not None]


class Held(NamedTuple):
    """The result of a comparison of a command stream with jobs. ``unlike`` is a text that says how
    they differ, "" if they are equal. ``absent`` are the numbers of the jobs that the stream does
    not hold."""

    unlike: str = ""
    absent: tuple[int, ...] = ()


def held_against(jobs: Sequence[Job], data: bytes, writes: Callable[[Array], Writes]) -> Held:
    """Compare a command stream with the jobs that were recorded with it.

    ``data`` is the stream, and ``writes`` returns the register writes (offset, value) in words of
    it. Stream and jobs are equal if the stream holds the writes of each job, and of the job that
    starts it, as an unbroken run. They are also equal if the stream holds all writes of some jobs
    and no other writes; the jobs that the stream does not hold are ``absent``. Jobs without
    register writes, and jobs with writes that change only some bits of a register, are not
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
    # for each job found in the stream; key: the place of its first write among the stream's
    # writes, value: how many writes it has
    places: dict[int, int] = {}
    # for each job not found: its number, its writes, the place in the stream where they should be
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
    """Return (number of the job, register writes) for each job and for each ``start`` of a job.

    A job without writes, or with a write that changes only some bits of a register, is left out.
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
    """Return the place, counted in writes, at which a job's writes begin in a stream; None if the
    stream does not hold them.

    ``own`` are the job's writes and ``every`` all writes of the stream, both from ``_as_pairs``.
    Places in ``used`` are skipped, because another job's writes begin there.
    """
    at = every.find(own)
    while at >= 0:
        number, rest = divmod(at, PAIR)
        if not rest and number not in used:
            return number
        at = every.find(own, at + 1)
    return None


def _equal_start(own: Writes, found: Writes) -> int:
    """How many writes at the start of two sequences of writes are equal."""
    count = 0
    for wanted, got in zip(own, found, strict=False):
        if wanted != got:
            break
        count += 1
    return count


def _end_of(words: Array, writes: Callable[[Array], Writes], count: int) -> int:
    """The byte offset in a stream at which its first ``count`` writes end."""
    low, high = 0, len(words)
    while low < high:
        middle = (low + high) // 2
        if _count(words[:middle], writes) < count:
            low = middle + 1
        else:
            high = middle
    return WORD_BYTES * low


def _count(words: Array, writes: Callable[[Array], Writes]) -> int:
    """How many whole writes the first words of a stream hold; these may end inside a command."""
    for end in range(len(words), 0, -1):
        try:
            return len(writes(words[:end]))
        except ValueError:
            continue
    return 0
