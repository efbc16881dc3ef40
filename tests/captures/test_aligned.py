"""Streams held against each other: planted edits are found, and make one stream of the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from npulab.captures.aligned import (
    CHANGED,
    INSERTED,
    LEFT_OUT,
    MOVED,
    Edit,
    Pair,
    aligned,
    edits,
)
from npulab.captures.capture import Job

BLOCKS = ("LOAD", "GEMM", "ALU", "STORE")
WORDS = 4


def job(block: str, *words: int) -> Job:
    return Job(block, np.array(words, np.uint32))


def random_stream(rng: np.random.Generator, count: int) -> list[Job]:
    """Jobs of a few blocks: runs of one unit that repeats with small changes, and others between."""
    unit = [
        (BLOCKS[rng.integers(4)], rng.integers(0, 2**32, WORDS, dtype=np.uint32))
        for _ in range(rng.integers(3, 8))
    ]
    jobs: list[Job] = []
    while len(jobs) < count:
        if rng.random() < 0.5:
            for block, words in unit:
                own = words.copy()
                if rng.random() < 0.6:
                    own[rng.integers(WORDS)] ^= np.uint32(rng.integers(256))
                jobs.append(Job(block, own))
        else:
            words = rng.integers(0, 2**32, WORDS, dtype=np.uint32)
            jobs.append(Job(BLOCKS[rng.integers(4)], words))
    return jobs[:count]


def edited(rng: np.random.Generator, stream: Sequence[Job]) -> tuple[list[Job], int]:
    """A stream after one to three planted edits, and how many."""
    jobs = list(stream)
    count = int(rng.integers(1, 4))
    for _ in range(count):
        at = int(rng.integers(len(jobs)))
        words = jobs[at].words.copy()
        words[rng.integers(WORDS)] ^= np.uint32(1 << int(rng.integers(32)))
        kind = rng.choice([CHANGED, INSERTED, LEFT_OUT, MOVED])
        if kind == CHANGED:
            jobs[at] = Job(jobs[at].block, words)
        elif kind == INSERTED:
            jobs.insert(int(rng.integers(len(jobs))), Job(jobs[at].block, words))
        elif kind == LEFT_OUT:
            jobs.pop(at)
        else:
            jobs.insert(int(rng.integers(len(jobs))), jobs.pop(at))
    return jobs, count


def applied(a: Sequence[Job], b: Sequence[Job], script: Sequence[Edit]) -> list[Job]:
    """The first stream after the edits, made with the jobs of the second one that they name."""
    gone = {edit.a for edit in script if edit.kind in (LEFT_OUT, MOVED)}
    new = {edit.b for edit in script if edit.kind in (INSERTED, MOVED)}
    changed = {edit.a: edit.b for edit in script if edit.kind == CHANGED}
    kept = [b[changed[n]] if n in changed else one for n, one in enumerate(a) if n not in gone]
    jobs = []
    for number, one in enumerate(b):
        jobs.append(one if number in new else kept.pop(0))
    assert kept == []
    return jobs


def planted(seed: int) -> None:
    rng = np.random.default_rng(seed)
    a = random_stream(rng, int(rng.integers(8, 60)))
    b, count = edited(rng, a)
    script = edits(a, b)
    assert len(script) <= count, (seed, script)
    assert applied(a, b, script) == b
    pairs = aligned(a, b)
    assert [pair.a for pair in pairs if pair.a is not None] == list(range(len(a)))
    assert [pair.b for pair in pairs if pair.b is not None] == list(range(len(b)))


def test_no_more_edits_than_were_planted() -> None:
    for seed in range(60):
        planted(seed)


@pytest.mark.long
def test_no_more_edits_than_were_planted_in_500_pairs() -> None:
    for seed in range(1000, 1500):
        planted(seed)


def test_each_edit_is_named() -> None:
    x, y, z = job("LOAD", 1, 2), job("GEMM", 3, 4), job("STORE", 5, 6)
    assert edits([x, y, z], [x, y, z]) == []
    assert edits([x, z], [x, y, z]) == [Edit(INSERTED, 1, 1)]
    assert edits([x, y, z], [x, z]) == [Edit(LEFT_OUT, 1, None)]
    assert edits([x, y, z], [y, z, x]) == [Edit(MOVED, 0, 2)]
    assert edits([x, y, z], [x, job("GEMM", 3, 5), z]) == [Edit(CHANGED, 1, 1)]
    # another block is another job
    assert edits([x, y], [x, z]) == [Edit(LEFT_OUT, 1, None), Edit(INSERTED, 2, 1)]
    assert edits([], [x]) == [Edit(INSERTED, 0, 0)]


def test_a_job_is_held_against_the_one_with_the_fewest_other_bits() -> None:
    near, far, other = job("LOAD", 0b1000, 7), job("LOAD", 0b0111, 0), job("LOAD", 0b1001, 7)
    assert aligned([near], [far, other]) == [Pair(None, 0), Pair(0, 1)]


def test_long_streams_are_cut_at_jobs_that_occur_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    a = random_stream(rng, 300)
    b = [*a[:40], job("ALU", 1, 2, 3, 4), *a[40:200], *a[203:]]
    expected = edits(a, b)
    assert len(expected) == 4
    monkeypatch.setattr("npulab.captures.aligned.MOST_CELLS", 2000)
    assert edits(a, b) == expected
