"""Kernels of a training step at the published sizes, on one thread, beside the same einsum of
numpy:

OPENBLAS_NUM_THREADS=1 pytest -o addopts= tests/tools/bench_training.py
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ane_gradients import check_gradients
from rates import ONE_THREAD

from npulab.npus.ane.training import KERNELS, Step, example, given_to, precision, run, train

pytestmark = ONE_THREAD
STEP = Step(768, 2048, 512, 12)
NPU = [name for name, kernel in KERNELS.items() if kernel.unit == "NPU"]


@pytest.fixture(scope="module")
def values() -> dict[str, np.ndarray]:
    return train(STEP, example(STEP), "float32")


@pytest.mark.benchmark(group="kernels, float16 with sums in float32")
@pytest.mark.parametrize("kernel", NPU)
def test_run(benchmark: Any, values: dict[str, np.ndarray], kernel: str) -> None:
    benchmark.pedantic(run, (kernel, STEP, given_to(kernel, values)), rounds=3)


@pytest.mark.benchmark(group="scores")
def test_scores(benchmark: Any, values: dict[str, np.ndarray]) -> None:
    given = given_to("sdpa_backward_2", values)
    benchmark.pedantic(run, ("sdpa_backward_2", STEP, given, "float32"), rounds=3)


@pytest.mark.benchmark(group="scores")
def test_scores_by_einsum(benchmark: Any, values: dict[str, np.ndarray]) -> None:
    q, k = (values[name].reshape(12, 64, 512) for name in "qk")

    def plain() -> None:
        probs, dp = values["probs"], values["dp"]
        scores = probs * (dp - (probs * dp).sum(-1, keepdims=True)) / np.float32(8)
        np.einsum("hst,hdt->hds", scores, k)
        np.einsum("hst,hds->hdt", scores, q)

    benchmark.pedantic(plain, rounds=1)


@pytest.mark.benchmark(group="questions")
def test_precision(benchmark: Any) -> None:
    benchmark(precision, "forward_attention")


@pytest.mark.benchmark(group="questions")
def test_gradients(benchmark: Any) -> None:
    benchmark.pedantic(check_gradients, (Step(6, 5, 4, 2),), rounds=3)
