"""Reading memory images and traces on one thread; the traces lie beside the checkout:

OPENBLAS_NUM_THREADS=1 pytest -o addopts= tests/tools/bench_nvdla_traces.py
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import shared

from npulab.npus.nvdla import imported
from npulab.npus.nvdla.images import spelled_anyhow, spelled_as_usual

DATA = np.random.default_rng(1).integers(0, 256, (5000, 4))
TEXT = "".join(
    f"{{offset:{4 * n:#x}, size:4, payload:{' '.join(map('{:#04x}'.format, row))}}} ,\n"
    for n, row in enumerate(DATA.tolist())
).encode()


@pytest.mark.benchmark(group="5,000 records")
@pytest.mark.parametrize("read", [spelled_as_usual, spelled_anyhow])
def test_records(benchmark: Any, read: Any) -> None:
    assert benchmark(read, TEXT) is not None


@pytest.mark.benchmark(group="traces")
def test_every_trace(benchmark: Any) -> None:
    assert len(benchmark.pedantic(imported.read, (shared("data/nvdla"),), rounds=3)) >= 32
