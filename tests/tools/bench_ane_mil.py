"""Seconds for the kernels of a training step at their own size, in one run of pytest-benchmark:

pytest -o addopts= tests/tools/bench_ane_mil.py
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from npulab.npus.ane.training import blobs, mil
from npulab.npus.ane.training.programs import KERNELS, Dims, kernel

DIMS = Dims()


@pytest.fixture(scope="module")
def weights() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    d, h = DIMS.dim, DIMS.hidden
    shapes = {
        "Wq": (d, d),
        "Wk": (d, d),
        "Wv": (d, d),
        "Wo": (d, d),
        "W1": (h, d),
        "W3": (h, d),
        "W2": (d, h),
    }
    drawn = {name: rng.standard_normal(shape) / shape[1] ** 0.5 for name, shape in shapes.items()}
    return drawn | {"rms1": np.ones(d), "rms2": np.ones(d)}


@pytest.mark.parametrize("name", sorted(KERNELS))
@pytest.mark.parametrize("float64", [False, True])
def test_run(benchmark: Any, weights: dict[str, np.ndarray], name: str, float64: bool) -> None:
    made = kernel(name, DIMS, weights)
    x = np.random.default_rng(1).standard_normal(made.inputs["x"])
    benchmark.pedantic(
        mil.run, (made.program, {"x": x}, made.blobs), {"float64": float64}, rounds=3
    )


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_text(benchmark: Any, name: str) -> None:
    made = kernel(name, DIMS)
    assert benchmark(lambda: mil.read(mil.write(made.program))) == made.program


def test_weight_file(benchmark: Any, weights: dict[str, np.ndarray]) -> None:
    halves = {name: array.astype(np.float16) for name, array in weights.items()}
    found = benchmark(lambda: blobs.read(blobs.write(halves).data))
    assert [record.elements for record in found.records] == [
        array.size for array in weights.values()
    ]
