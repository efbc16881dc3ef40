"""A stream that was recorded in a buffer too is the jobs' stream, whatever is changed in them."""

from __future__ import annotations

import numpy as np
import pytest

from npulab import Capture, bisect_fields
from npulab.captures.capture import Job
from npulab.captures.streams import places_of, streams_of
from npulab.registers.map import RegisterMap

MAPS = {
    block: RegisterMap(
        [
            {
                "block": block,
                "offset": 4 * n,
                "register": f"w{n}",
                "field": f"f{n}",
                "lsb": 0,
                "width": 32,
            }
            for n in range(4)
        ]
    )
    for block in ("LOAD", "GEMM")
}


def stream(name: str, changed: dict[int, int], head: bytes = b"\x07\x00\x00\x00") -> Capture:
    words = np.arange(100, 112, dtype=np.uint32)
    for place, value in changed.items():
        words[place] = value
    jobs = tuple(
        Job(block, words[4 * n : 4 * n + 4]) for n, block in enumerate(("LOAD", "GEMM", "LOAD"))
    )
    return Capture(
        name,
        "demo",
        "x",
        jobs,
        {"insns": head + words.astype("<u4").tobytes(), "weights": bytes(range(64))},
        maps=MAPS,
    )


def words_in(capture: Capture) -> list[int]:
    return np.frombuffer(capture.buffers["insns"][4:], "<u4").tolist()


@pytest.mark.parametrize("task", [0, 1, 2])
def test_a_changed_job_changes_the_stream_in_its_buffer(task: int) -> None:
    capture = stream("good", {})
    changed = capture.with_fields(task, f2=7)
    expected = words_in(capture)
    expected[4 * task + 2] = 7
    assert words_in(changed) == expected
    assert np.concatenate([job.words for job in changed.jobs]).tolist() == expected
    assert changed.buffers["weights"] == capture.buffers["weights"]
    assert words_in(changed.with_fields(task, f2=int(capture.jobs[task].words[2]))) == words_in(
        capture
    )


def test_a_device_that_runs_the_buffer_is_bisected() -> None:
    """BAD's stream in a buffer is no part of its own, and each trial's buffer holds what its
    fields say.
    """
    good, bad = stream("good", {}), stream("bad", {1: 9, 6: 5, 11: 3})

    def oracle(capture: Capture) -> str:
        return "fail" if words_in(capture)[6] == 5 else "pass"

    found = bisect_fields(good, bad, oracle)
    assert (found.found, found.culprits) == (True, ((1, "GEMM", "w2", "f2"),))


def test_what_is_no_stream_stays() -> None:
    zeros = (Job("LOAD", [0, 0, 0, 0]), Job("GEMM", [0, 0, 0, 0]))
    assert places_of(zeros, bytes(64)) is None
    assert places_of((Job("LOAD", [1, 2]),), np.array([1, 2], "<u4").tobytes()) is None
    writes = Job.from_writes("LOAD", [(0, 1), (4, 2), (8, 3), (12, 4)], MAPS["LOAD"])
    assert places_of((writes,), writes.words.tobytes()) is None
    capture = stream("good", {})
    assert streams_of(capture.jobs, capture.buffers) == ["insns"]
    assert streams_of(capture.jobs[::-1], {"insns": capture.buffers["insns"][:-4]}) == []
