"""Seconds to find, pack and unpack layouts of about a million elements, in one run of
pytest-benchmark:

    pytest -o addopts= -s tests/tools/bench_layout.py

Found from markers (three captures of one byte, two of two; of planes as many as their units take), and from one capture of random values;
the peak memory is that of ``find_layout`` alone, as a multiple of its buffers.
"""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from npulab.layout import (
    Layout,
    Loop,
    Planes,
    find_layout,
    hwc,
    kernel_groups,
    markers,
    nc1hwc2,
    packed_blocks,
    planar,
)

SECONDS = 5  # most that a search for the planes of a million elements may take


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


def planes() -> dict[str, Planes]:
    """Elements split over planes; the unit says how many bits of an element lie together."""
    weights = (250, 3, 3, 445)
    inner = (Loop(0), Loop(1), Loop(2))
    return {
        "nibbles, planes of 36 bytes": split(
            weights, "uint8", 4, (*STRIDED, Loop(4, stride=72), Loop(3, stride=1))
        ),
        "bit planes": split(weights, "uint8", 1, (Loop(4), *inner, Loop(3))),
        "bits of 32, short": split(weights, "uint8", 1, (*inner, Loop(3, 32), Loop(4), Loop(3))),
        "12 bits, 8 and 4": split(
            weights, "uint12", 1, (*inner, Loop(3, 32), Loop(4, 8), Loop(3), Loop(4))
        ),
        "16 bit planes": split(weights, "uint16", 1, (Loop(4), *inner, Loop(3))),
        "5 bits, one axis": split((1001250,), "uint5", 1, (Loop(0, 32), Loop(1), Loop(0))),
    }


STRIDED = (
    Loop(3, 72, stride=324000),
    Loop(0, stride=1296),
    Loop(1, stride=432),
    Loop(2, stride=144),
)


def split(shape: tuple[int, ...], dtype: str, unit: int, loops: tuple[Loop, ...]) -> Planes:
    bits = int(dtype.removeprefix("uint"))
    return Planes(shape, (Layout((*shape, bits // unit), loops, dtype=f"uint{unit}"),), dtype=dtype)


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


@pytest.mark.benchmark(group="find_layout of planes from markers")
@pytest.mark.parametrize("name", planes())
def test_planes(benchmark: Any, name: str) -> None:
    layout = planes()[name]
    tensors = markers(layout.shape, layout.dtype, unit=layout.unit)
    buffers = [layout.pack(tensor) for tensor in tensors]
    found = benchmark.pedantic(find_layout, (tensors, buffers), {"dtype": layout.dtype}, rounds=3)
    assert np.array_equal(found.index_map(), layout.index_map())
    assert found.proved == found.held > 0
    assert benchmark.stats["min"] < SECONDS


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
