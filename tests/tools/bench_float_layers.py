"""float16 layers by rule "fp16" (exact, one rounding), in one run of pytest-benchmark on one
thread:

    OPENBLAS_NUM_THREADS=1 pytest -o addopts= tests/tools/bench_float_layers.py

Tensors are 1600 x 2560, an image 56 x 56 x 64; beside them numpy's own float16 sum, which does no
more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import npulab
from npulab.quant.layers import Activation, Conv2D, Elementwise, Pool2D

RANDOM = np.random.RandomState(0)
A, B = (RANDOM.normal(size=(1600, 2560, 1)).astype(np.float16) for _ in range(2))
IMAGE = RANDOM.normal(size=(56, 56, 64)).astype(np.float16)
CODES = np.arange(65536, dtype=np.uint16).view(np.float16)
CASES: dict[str, Callable[[], Any]] = {
    "numpy a + b": lambda: A + B,
    "add": lambda: npulab.emulate(Elementwise("add", A.shape), (A, B), "fp16"),
    "add, scale 0.3": lambda: npulab.emulate(
        Elementwise("add", A.shape, scale=0.3), (A, B), "fp16"
    ),
    "multiply": lambda: npulab.emulate(Elementwise("multiply", A.shape), (A, B), "fp16"),
    "table": lambda: npulab.emulate(Activation(A.shape, CODES), A, "fp16"),
    "3x3 of 64 to 64": lambda: npulab.emulate(CONV, IMAGE, "fp16"),
    "3x3 depthwise": lambda: npulab.emulate(DEPTHWISE, IMAGE, "fp16"),
    "3x3 average": lambda: npulab.emulate(
        Pool2D("average", (3, 3), IMAGE.shape, dtype="float16"), IMAGE, "fp16"
    ),
}
CONV = Conv2D(
    RANDOM.normal(size=(64, 3, 3, 64)).astype(np.float16),
    np.zeros(64, np.float16),
    IMAGE.shape,
    padding="same",
)
DEPTHWISE = Conv2D(
    RANDOM.normal(size=(1, 3, 3, 64)).astype(np.float16),
    np.zeros(64, np.float16),
    IMAGE.shape,
    padding="same",
    depthwise=True,
)


@pytest.mark.benchmark(group="float16")
@pytest.mark.parametrize("name", CASES)
def test_layer(benchmark: Any, name: str) -> None:
    assert benchmark.pedantic(CASES[name], rounds=3, warmup_rounds=1).dtype == np.float16
