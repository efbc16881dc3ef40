"""Task streams of 10,240 tasks of a convolution, the most that a compiler was seen to write:

pytest -o addopts= -s tests/tools/bench_ane_streams.py
"""

from __future__ import annotations

from typing import Any

import pytest
from ane_streams import place_h14, states, write_h14
from test_ane_generations import MAPS, convolution

from npulab.npus.ane.tasks import Task, read_h14, split

TASKS = 10_240


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    return place_h14([convolution()] * TASKS)


@pytest.mark.benchmark(group="ane streams")
def test_read(benchmark: Any, tasks: list[Task]) -> None:
    assert benchmark(read_h14, write_h14(tasks)) == tasks


@pytest.mark.benchmark(group="ane streams")
def test_read_plainly(benchmark: Any, tasks: list[Task]) -> None:
    benchmark(lambda: [list(split(task.words, task.header_words, True, "task")) for task in tasks])


@pytest.mark.benchmark(group="ane streams")
def test_write(benchmark: Any, tasks: list[Task]) -> None:
    benchmark(write_h14, tasks)


@pytest.mark.benchmark(group="ane streams")
def test_states(benchmark: Any, tasks: list[Task]) -> None:
    benchmark(states, tasks, MAPS["h14"])


@pytest.mark.benchmark(group="ane streams")
def test_a_section_of_zeros(benchmark: Any) -> None:
    assert benchmark(read_h14, bytes(2**26)) == []
