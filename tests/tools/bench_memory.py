"""Time that the memory of a model of 10,000 operators takes, by planner, in one run of
pytest-benchmark:

    pytest -o addopts= tests/tools/bench_memory.py

Each operator takes the tensor before and one up to so many before it; the plain reference is that
of the tests.
"""

from __future__ import annotations

from typing import Any

import pytest
from test_memory import chain, claims

from npulab.models.memory import PLANNERS, model_memory

FAR = [1, 100, 9999]


@pytest.mark.benchmark(group="10,000 operators")
@pytest.mark.parametrize("far", FAR)
@pytest.mark.parametrize("planner", PLANNERS)
def test_planner(benchmark: Any, planner: str, far: int) -> None:
    memory = benchmark(model_memory, chain(10_000, far=far), planner=planner)
    benchmark.extra_info |= {"peak": memory.peak, "planned": memory.planned, "total": memory.total}


@pytest.mark.benchmark(group="1,000 operators")
@pytest.mark.parametrize("plain", [False, True], ids=["fast", "plain"])
@pytest.mark.parametrize("planner", PLANNERS)
def test_plain_reference(benchmark: Any, planner: str, plain: bool) -> None:
    model = chain(1000, far=100)
    memory = model_memory(model, planner=planner)
    if plain:
        plans, capacity = benchmark.pedantic(claims, (memory, planner))
        assert (capacity, list(plans.values())) == (
            memory.planned,
            [memory.offsets[t] for t in plans],
        )
    else:
        benchmark(model_memory, model, planner=planner)
