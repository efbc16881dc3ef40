"""Recall and precision of laws against the count of captures, and the seconds they take, in one run of pytest-benchmark:

    pytest -o addopts= -s tests/bench_laws.py

The descriptor is that of the tests: 38 words, 109 fields, 39 laws; scored on 3,000 layers that the laws have not seen.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from conftest import shared
from descriptor import RANGES, addresses, confounded, decorrelated, descriptors, score

import npulab
from npulab.sweeps import load_sweep


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


@pytest.mark.benchmark(group="a driver's sweep, rows of the file as captures, scored on rows 400 to 799")
@pytest.mark.parametrize("how", ["planned", "random"])
def test_driver(benchmark: Any, how: str) -> None:
    """The curve: 30 rows picked blind, batches by what is open then; against as many, and 400, as they come."""
    sweep = load_sweep(shared("data/vivante/sweep_imx8mp.npz"))
    known, truth = sweep.parameters.iloc[:400], sweep.words[400:]
    moves = np.bitwise_or.reduce(truth ^ truth[0], axis=0)

    def count(masks: Any) -> int:
        return int(np.bitwise_count(masks & moves).sum())

    def told(laws: npulab.Laws) -> None:
        words, mask = laws.predict(sweep.parameters.iloc[400:])
        wrong = words ^ truth
        claimed, right = np.bitwise_and.reduce(mask, axis=0), ~np.bitwise_or.reduce(wrong, axis=0)
        share = count(mask & ~wrong) / count(np.full_like(truth, 0xFFFFFFFF))
        print(f"\n{how}, {len(laws.words)} captures: {count(claimed & right)} of {count(moves)} bits claimed on every row "
              f"and right, {count(right)} right, {share:.3f} of all claimed and right, "
              f"{count(np.bitwise_or.reduce(wrong & mask, axis=0))} bits claimed and wrong on some row")

    def curve() -> None:
        if how == "random":
            for n in (30, 50, 75, 100, 200, 400):
                told(npulab.find_laws(sweep.words[:n], known.iloc[:n]))
            return
        rows = npulab.plan_sweep(candidates=known, n=30, seed=1)
        laws, left = npulab.find_laws(sweep.words[rows.index], rows), known.drop(index=rows.index)
        told(laws)
        for batch in (20, 25, 25):
            rows = laws.next_captures(batch, left)
            laws, left = laws.update(sweep.words[rows.index], rows), left.drop(index=rows.index)
            told(laws)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a parameter that never varies
        benchmark.pedantic(curve)
