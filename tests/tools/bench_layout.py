"""Seconds to find, pack and unpack layouts of about a million elements, in one run of
pytest-benchmark:

    pytest -o addopts= -s tests/tools/bench_layout.py

Found from markers (three captures of one byte, two of two), and from one capture of random values;
the peak memory is that of ``find_layout`` alone, as a multiple of its buffers.
"""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from npulab.layout import (
    Layout,
    find_layout,
    hwc,
    kernel_groups,
    markers,
    nc1hwc2,
    packed_blocks,
    planar,
)


def layouts(dtype: str) -> dict[str, Layout]:
    image = (125, 100, 77)
    return {
        "hwc": hwc(image, dtype=dtype),
        "planar": planar(image, dtype=dtype),
        "rows and planes of 64": planar(image, dtype=dtype, row_align=64),
        "tiles of 16 channels": nc1hwc2(image, 16, dtype=dtype),
        "atoms of 32 bytes": nc1hwc2(
            image, 32 // np.dtype(dtype).itemsize, dtype=dtype, row_pitch=4096
        ),
        "kernel groups": kernel_groups((250, 3, 3, 445), 32, 64, dtype=dtype, align=128),
        "blocks of 16 x 4": packed_blocks((1001, 999), 16, 4, dtype=dtype, sums=True, fill=7),
        "blocks of 4 x 8": packed_blocks((1001, 999), 4, 8, dtype=dtype, sums=True),
        "blocks of 4 x 16": packed_blocks((1001, 999), 4, 16, dtype=dtype, sums=True),
    }


EVERY = [
    pytest.param(layout, id=f"{name} {dtype}")
    for dtype in ("int8", "int16")
    for name, layout in layouts(dtype).items()
]


def noted(benchmark: Any, tensors: list[np.ndarray], layout: Layout) -> None:
    buffers = [layout.pack(tensor) for tensor in tensors]
    found = benchmark.pedantic(find_layout, (tensors, buffers), rounds=3)
    assert np.array_equal(found.index_map(), layout.index_map())
    tracemalloc.start()
    find_layout(tensors, buffers)
    peak = tracemalloc.get_traced_memory()[1] / sum(map(len, buffers))
    tracemalloc.stop()
    benchmark.extra_info["memory / buffers"] = round(peak, 1)
    print(
        f"\n{found.layout}: {found.own} of {found.elements} by values of their own, memory {peak:.1f} times the buffers"
    )


@pytest.mark.benchmark(group="find_layout from markers")
@pytest.mark.parametrize("layout", EVERY)
def test_markers(benchmark: Any, layout: Layout) -> None:
    noted(benchmark, markers(layout.shape, layout.dtype), layout)


@pytest.mark.benchmark(group="find_layout from one capture of random values")
@pytest.mark.parametrize("layout", EVERY)
def test_random_values(benchmark: Any, layout: Layout) -> None:
    noted(
        benchmark,
        [np.random.default_rng(0).integers(-128, 128, layout.shape).astype(layout.dtype)],
        layout,
    )


@pytest.mark.benchmark(group="pack")
@pytest.mark.parametrize("layout", EVERY)
def test_pack(benchmark: Any, layout: Layout) -> None:
    tensor = np.random.default_rng(0).integers(-128, 128, layout.shape).astype(layout.dtype)
    buffer = benchmark.pedantic(layout.pack, (tensor,), rounds=3)
    assert np.array_equal(layout.unpack(buffer), tensor)


@pytest.mark.benchmark(group="unpack")
@pytest.mark.parametrize("layout", EVERY)
def test_unpack(benchmark: Any, layout: Layout) -> None:
    tensor = np.random.default_rng(0).integers(-128, 128, layout.shape).astype(layout.dtype)
    assert np.array_equal(
        benchmark.pedantic(layout.unpack, (layout.pack(tensor),), rounds=3), tensor
    )
