"""Activation tables on one thread:

OPENBLAS_NUM_THREADS=1 pytest -o addopts= tests/tools/bench_ane_tables.py
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ane_table_loops import evaluate_reference

from npulab.npus.ane.tables import evaluate, outputs
from npulab.npus.ane.tables.functions import fit

EVERY = np.arange(2**16, dtype=np.uint16).view(np.float16)


@pytest.mark.benchmark(group="every input")
@pytest.mark.parametrize("name", ["tanh", "exp2", "inv"])
def test_outputs(benchmark: Any, name: str) -> None:
    benchmark(outputs, fit(name))


@pytest.mark.benchmark(group="every input")
def test_outputs_in_whole_fractions(benchmark: Any) -> None:
    benchmark.pedantic(evaluate_reference, (fit("tanh"), EVERY), rounds=2)


@pytest.mark.benchmark(group="4 million inputs")
def test_tensor(benchmark: Any) -> None:
    x = np.random.default_rng(1).normal(size=(1, 2560, 1600)).astype(np.float16)
    benchmark(evaluate, fit("tanh"), x)


@pytest.mark.benchmark(group="4 million inputs")
def test_numpy_tanh(benchmark: Any) -> None:
    benchmark(np.tanh, np.random.default_rng(1).normal(size=(1, 2560, 1600)).astype(np.float16))
