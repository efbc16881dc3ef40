"""Runs and hangs that a scan takes, beside the time it takes itself, in one run of
pytest-benchmark:

    pytest -o addopts= -s tests/tools/bench_scan.py

The toys are those of the tests, other seeds: 4,096 bits of which 12 hang, 10 are control and 3,968
data.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_scan import assert_told_apart, impulse_each, inputs_of, lowered, stream_truth, toy

import npulab
from npulab.analysis.scan import Scan, scan, scan_capture


def noted(benchmark: Any, found: Scan) -> None:
    benchmark.extra_info |= {"runs": found.runs, "hangs": found.hangs, "mapped": found.mapped}
    print(f"\n{found}")


@pytest.mark.benchmark(group="toy")
@pytest.mark.parametrize("seed", range(100, 120))
@pytest.mark.parametrize(
    "known", [True, False], ids=["impulses and layer", "an impulse each, no layer"]
)
def test_toy(benchmark: Any, seed: int, known: bool) -> None:
    one = toy(seed)
    found = benchmark.pedantic(
        scan, (one.data, one.run, *((inputs_of(one), one.layer) if known else (impulse_each(one),)))
    )
    np.testing.assert_array_equal(found.kinds, one.truth)
    noted(benchmark, found)


@pytest.mark.benchmark(group="simulated stream")
@pytest.mark.parametrize(
    "layer",
    [
        {"seed": 1, "channels": 8, "depth": 2, "kernel": 3, "size": 8},
        {"seed": 4, "channels": 3, "depth": 1, "kernel": 5, "size": 10},
        {"seed": 2, "channels": 3, "depth": 3, "kernel": 3, "size": 8, "zeros": 0.7},
    ],
    ids=str,
)
def test_stream(benchmark: Any, layer: dict[str, Any]) -> None:
    _, capture = lowered(**layer)
    found = benchmark.pedantic(scan_capture, (capture, npulab.Simulated()))
    kinds, places = stream_truth(capture)
    assert_told_apart(found, kinds)
    told = (kinds == "data") & (found.places[:, 4] >= 0)
    np.testing.assert_array_equal(found.places[told, :5], places[told])
    noted(benchmark, found)
