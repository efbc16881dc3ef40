"""Memory by address: segments, and who wrote what."""

from __future__ import annotations

import numpy as np
from hypothesis import given, strategies as st

from npulab.captures.capture import Capture
from npulab.layout import planar
from npulab.npus.kit.memory import PAGE, Memory

WRITES = st.lists(
    st.tuples(st.integers(PAGE - 6, PAGE + 6), st.binary(min_size=1, max_size=5)), max_size=8
)


def slow_segments(writes: list[tuple[int, bytes]]) -> dict[int, bytes]:
    """The definition: byte by byte."""
    held = {start + n: byte for start, data in writes for n, byte in enumerate(data)}
    out: dict[int, bytes] = {}
    for address in sorted(held):
        start = next((at for at, data in out.items() if at + len(data) == address), address)
        out[start] = out.get(start, b"") + bytes([held[address]])
    return out


@given(WRITES)
def test_words_written_one_by_one_become_segments(writes: list[tuple[int, bytes]]) -> None:
    memory = Memory({}, {})
    for number, (start, data) in enumerate(writes):
        memory.write(start, data, by=f"write {number}")
    assert memory.segments == slow_segments(writes)
    last = {
        start + n: f"write {number}"
        for number, (start, data) in enumerate(writes)
        for n in range(len(data))
    }
    for address in range(PAGE - 8, PAGE + 14):
        assert memory.writer(address) == last.get(address, "")


def test_far_segments_stay_apart() -> None:
    memory = Memory({"a": b"abc", "b": b"defg"}, {"a": 2**40, "b": 2**40 + PAGE})
    assert memory.segments == {2**40: b"abc", 2**40 + PAGE: b"defg"}
    assert memory.writer(2**40 + PAGE) == "b"


def test_buffers_of_a_capture_are_one_memory() -> None:
    capture = Capture("a", "demo", "x", (), {"input": b"abcd", "log": b"z"}, {"input": 0x100})
    memory = Memory.of(capture)
    assert memory.segments == {0x100: b"abcd"}
    memory.scatter(np.array([0x103, 0x101]), np.array([1, 2], np.uint8), by="task 2")
    assert [memory.writer(address) for address in range(0x100, 0x105)] == [
        "input",
        "task 2",
        "input",
        "task 2",
        "",
    ]
    assert memory.tensor(0x100, planar((1, 2, 2))).tolist() == [[[97, 99], [2, 1]]]
