"""Recall and precision of laws against the count of captures, and the seconds they take, in one run of pytest-benchmark:

    pytest -o addopts= -s tests/bench_laws.py

The descriptor is that of the tests: 38 words, 109 fields, 39 laws; scored on 3,000 layers that the laws have not seen.
"""

from __future__ import annotations

from typing import Any

import pytest
from descriptor import RANGES, addresses, confounded, decorrelated, descriptors, score

import npulab


def noted(benchmark: Any, laws: npulab.Laws) -> None:
    found = score(laws)
    benchmark.extra_info |= {"recall": found.recall, "precision": found.precision}
    print(f"\n{len(laws.words)} captures: {found.recall:.3f} of the fields that are not hard, bit precision "
          f"{found.precision:.3f}")


@pytest.mark.benchmark(group="random captures")
@pytest.mark.parametrize("n", [16, 32, 64, 128, 256])
def test_random(benchmark: Any, n: int) -> None:
    layers = decorrelated(n, 5)
    noted(benchmark, benchmark.pedantic(npulab.find_laws, (descriptors(layers), layers),
                                        {"nuisance": addresses()}))


@pytest.mark.benchmark(group="planned captures")
@pytest.mark.parametrize("n", [24, 32])
def test_planned(benchmark: Any, n: int) -> None:
    layers = npulab.plan_sweep(RANGES, n=n, seed=5)
    noted(benchmark, benchmark.pedantic(npulab.find_laws, (descriptors(layers), layers),
                                        {"nuisance": addresses()}))


@pytest.mark.benchmark(group="from a confounded start")
def test_confounded(benchmark: Any) -> None:
    layers = confounded(16, 5)
    laws = npulab.find_laws(descriptors(layers), layers, nuisance=addresses())
    for seed in range(2):
        more = laws.next_captures(16, ranges=RANGES, seed=seed)
        laws = laws.update(descriptors(more, seed), more)
    benchmark.pedantic(laws.predict, (decorrelated(1000, 6),))
    noted(benchmark, laws)
