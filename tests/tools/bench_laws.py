"""Recall and precision of laws against the count of captures, and the seconds they take, in one run
of pytest-benchmark:

    pytest -o addopts= -s tests/tools/bench_laws.py

The descriptor is that of the tests: 38 words, 109 fields, 39 laws; scored on 3,000 layers that the
laws have not seen.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from conftest import CAPTURES, shared
from descriptor import RANGES, addresses, confounded, decorrelated, descriptors, score

import npulab
import npulab.analysis.laws
from npulab.captures.sweep import Sweep, load_sweep


def told(how: str, laws: npulab.analysis.laws.Laws, unseen: Sweep) -> None:
    """Print which of the bits that move in unseen captures the laws claim, and which of them
    they have right.
    """

    def count(masks: Any) -> int:
        return int(np.bitwise_count(masks & moves).sum())

    truth = unseen.words
    moves = np.bitwise_or.reduce(truth ^ truth[0], axis=0)
    words, mask = laws.predict(unseen.parameters)
    wrong = words ^ truth
    claimed, right = np.bitwise_and.reduce(mask, axis=0), ~np.bitwise_or.reduce(wrong, axis=0)
    share = count(mask & ~wrong) / count(np.full_like(truth, 0xFFFFFFFF))
    print(
        f"\n{how}, {len(laws.words)} captures: {count(claimed & right)} of {count(moves)} bits claimed on every row "
        f"and right, {count(right)} right, {share:.3f} of all claimed and right, "
        f"{count(np.bitwise_or.reduce(wrong & mask, axis=0))} bits claimed and wrong on some row, "
        f"{count(mask & wrong)} of {count(mask)} claims wrong; {laws.score(truth, unseen.parameters)}"
    )


def noted(benchmark: Any, laws: npulab.analysis.laws.Laws) -> None:
    found = score(laws)
    benchmark.extra_info |= {"recall": found.recall, "precision": found.precision}
    print(
        f"\n{len(laws.words)} captures: {found.recall:.3f} of the fields that are not hard, bit precision "
        f"{found.precision:.3f}"
    )


@pytest.mark.benchmark(group="random captures")
@pytest.mark.parametrize("n", [16, 32, 64, 128, 256])
def test_random(benchmark: Any, n: int) -> None:
    layers = decorrelated(n, 5)
    noted(
        benchmark,
        benchmark.pedantic(
            npulab.find_laws, (descriptors(layers), layers), {"nuisance": addresses()}
        ),
    )


@pytest.mark.benchmark(group="planned captures")
@pytest.mark.parametrize("n", [24, 32])
def test_planned(benchmark: Any, n: int) -> None:
    layers = npulab.analysis.laws.plan_sweep(RANGES, n=n, seed=5)
    noted(
        benchmark,
        benchmark.pedantic(
            npulab.find_laws, (descriptors(layers), layers), {"nuisance": addresses()}
        ),
    )


@pytest.mark.benchmark(group="from a confounded start")
def test_confounded(benchmark: Any) -> None:
    layers = confounded(16, 5)
    laws = npulab.find_laws(descriptors(layers), layers, nuisance=addresses())
    for seed in range(2):
        more = laws.next_captures(16, ranges=RANGES, seed=seed)
        laws = laws.update(descriptors(more, seed), more)
    benchmark.pedantic(laws.predict, (decorrelated(1000, 6),))
    noted(benchmark, laws)


@pytest.mark.benchmark(
    group="a driver's sweep, rows of the file as captures, scored on rows 400 to 799"
)
@pytest.mark.parametrize("how", ["planned", "random"])
def test_driver(benchmark: Any, how: str) -> None:
    """The curve: 30 rows picked blind, batches by what is open then; against as many, and 400,
    as they come.
    """
    sweep = load_sweep(shared("data/vivante/sweep_imx8mp.npz"))
    known, unseen = sweep.parameters.iloc[:400], sweep[400:]

    def curve() -> None:
        if how == "random":
            for n in (30, 50, 75, 100, 200, 400):
                told(how, npulab.find_laws(sweep.words[:n], known.iloc[:n]), unseen)
            return
        rows = npulab.analysis.laws.plan_sweep(candidates=known, n=30, seed=1)
        laws, left = npulab.find_laws(sweep.words[rows.index], rows), known.drop(index=rows.index)
        told(how, laws, unseen)
        for batch in (20, 25, 25):
            rows = laws.next_captures(batch, left)
            laws, left = laws.update(sweep.words[rows.index], rows), left.drop(index=rows.index)
            told(how, laws, unseen)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a parameter that never varies
        benchmark.pedantic(curve)


@pytest.mark.benchmark(group="our own sweeps, laws from two rows of three, scored on the rest")
@pytest.mark.parametrize(
    "name", ["sweep-layers", "sweep-layers-imx8mp", "sweep-layers-s905d3", "sweep-layers-stm32mp25"]
)
def test_own_sweep(benchmark: Any, name: str) -> None:
    sweep = load_sweep(CAPTURES / "vivante" / f"{name}.npz")
    seen = 2 * len(sweep) // 3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # where a parameter never varies
        laws = benchmark.pedantic(npulab.find_laws, (sweep[:seen],))
    told(name, laws, sweep[seen:])
