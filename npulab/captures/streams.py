"""Recorded streams that lie in a buffer as well as in the jobs: both are kept alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from npulab.captures.capture import Job

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
    every = np.concatenate(words) if words else np.zeros(0, np.uint32)
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


def rewritten(before: Sequence[Job], after: Sequence[Job], buffers: Mapping[str, bytes]) -> dict[str, bytes]:
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
