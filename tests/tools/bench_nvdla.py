"""NVDLA's convolution in multiply-accumulates a second, from registers and memory, of
pytest-benchmark on one thread:

    OPENBLAS_NUM_THREADS=1 pytest -o addopts= tests/tools/bench_nvdla.py

``extra_info`` holds the multiply-accumulates; the column OPS times these is what is done in a
second.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from rates import ONE_THREAD
from test_nvdla_convolution import FULL, SMALL, Bytes, placed, sizes

from npulab.npus.nvdla.convolution import Window, run
from npulab.npus.nvdla.layouts import TYPES, Cube, Weights

pytestmark = ONE_THREAD
# name: input (H, W, C), kernels (K, R, S), stride, bytes of an element
LAYERS = {
    "3x3": ((32, 26, 76), (270, 3, 3), 1, 1),
    "5x3": ((44, 24, 14), (41, 5, 3), 1, 1),
    "1x1": ((28, 28, 256), (256, 1, 1), 1, 1),
    "few channels": ((112, 112, 3), (32, 3, 3), 2, 1),
    "fully connected": ((1, 1, 8192), (1000, 1, 1), 1, 1),
    "int16": ((56, 56, 64), (192, 3, 3), 1, 2),
}


@pytest.mark.benchmark(group="convolution jobs")
@pytest.mark.parametrize("name", LAYERS)
def test_job(benchmark: Any, name: str) -> None:
    (height, width, channels), (kernels, rows, columns), stride, itemsize = LAYERS[name]
    features = FULL if itemsize == 2 else SMALL
    random, atom, unit = (
        np.random.default_rng(0),
        features["memory_atom"],
        32 if itemsize == 2 else 1,
    )
    cube = Cube.packed(height, width, channels, atom, itemsize)
    stored = Weights(
        kernels, rows, columns, channels, 16 if itemsize == 2 else 8, features["atomic_c"], itemsize
    )
    window = Window(
        ((height - rows) // stride + 1, (width - columns) // stride + 1), (stride, stride)
    )
    memory, at = Bytes(), 2**28
    memory.ranges = {
        ("pri_mem", 0): random.bytes(cube.size),
        ("sec_mem", at): stored.pack(
            random.integers(-128, 128, stored.shape).astype(TYPES[itemsize])
        ),
    }
    values = {
        **sizes(window, stored, height, width, channels),
        **placed(itemsize, stored, 0, at),
        "CDMA.D_LINE_STRIDE.LINE_STRIDE": cube.row_pitch // unit,
        "CDMA.D_SURF_STRIDE.SURF_STRIDE": cube.plane_pitch // unit,
        "CACC.D_CLIP_CFG.CLIP_TRUNCATE": 5,
    }
    benchmark.extra_info["multiply_accumulates"] = int(np.prod(window.output)) * int(
        np.prod(stored.shape)
    )
    benchmark(run, values, features, memory)
