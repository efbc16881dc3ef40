"""Emulation beside TensorFlow Lite, in one run of pytest-benchmark on one thread:

    OPENBLAS_NUM_THREADS=1 OPENBLAS_CORETYPE=SkylakeX pytest -o addopts=
    tests/tools/bench_emulate.py

The ratios are those of the table's own columns.  ``npulab bench emulate`` measures the same with
limits.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from rates import ONE_THREAD

from npulab.cli.bench.emulation import KERNELS, litert, mobilenet
from npulab.models import single_op_model
from npulab.quant.emulate import prepare

pytestmark = ONE_THREAD
LAYERS = mobilenet()


def every(calls: list[Callable[[], Any]]) -> None:
    for call in calls:
        call()


@pytest.mark.benchmark(group="MobileNetV1-224, 28 layers")
@pytest.mark.parametrize("engine", KERNELS)
def test_tensorflow_lite(benchmark: Any, engine: str) -> None:
    pytest.importorskip("ai_edge_litert")
    benchmark(every, [litert(single_op_model(layer), x, engine)[0] for layer, x in LAYERS.values()])


@pytest.mark.benchmark(group="MobileNetV1-224, 28 layers")
@pytest.mark.parametrize("rule", ["gemmlowp", "tflite-reference", "xnnpack"])
@pytest.mark.parametrize("fast", [False, True], ids=["numpy", "numba"])
def test_emulate(benchmark: Any, fast: bool, rule: str) -> None:
    if fast and importlib.util.find_spec("numba") is None:
        pytest.skip("numba is not installed")
    ready = [(prepare(layer, rule, fast=fast), x) for layer, x in LAYERS.values()]
    every([lambda run=run, x=x: run(x) for run, x in ready])
    benchmark(every, [lambda run=run, x=x: run(x) for run, x in ready])


@pytest.mark.benchmark(group="limits")
def test_matrix_product(benchmark: Any) -> None:
    a, b, out = (
        np.ones((784, 512), np.float32),
        np.ones((512, 512), np.float32),
        np.empty((784, 512), np.float32),
    )
    benchmark(np.matmul, a, b, out=out)
