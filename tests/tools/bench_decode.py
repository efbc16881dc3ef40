"""Decoding and encoding beside libraries for binary data, in one run of pytest-benchmark on one
thread:

    pytest -o addopts= -s tests/tools/bench_decode.py

Times are of as many captures as ``extra_info`` says.  ``npulab bench decode`` measures the same
with ratios and limits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from npulab.cli.bench.decoding import CAPTURES, LIBRARIES, WORDS, Codec, struct

RAW = np.random.RandomState(1).randint(0, 2**32, (CAPTURES, WORDS), np.uint32)


@pytest.fixture(params=LIBRARIES)
def codec(request: pytest.FixtureRequest, benchmark: Any) -> Codec:
    module, make = LIBRARIES[request.param]
    found = make(struct(), RAW, pytest.importorskip(module))
    benchmark.extra_info["captures"] = found.captures
    return found


def rated(benchmark: Any, captures: int) -> None:
    if benchmark.stats:  # not with --benchmark-disable
        print(f"\n{captures / benchmark.stats.stats.min:,.0f} captures/s")


@pytest.mark.benchmark(group="decode")
def test_decode(benchmark: Any, codec: Codec) -> None:
    benchmark(codec.decode)
    rated(benchmark, codec.captures)


@pytest.mark.benchmark(group="encode")
def test_encode(benchmark: Any, codec: Codec) -> None:
    decoded = codec.decode()
    assert codec.data(benchmark(codec.encode, decoded)) == RAW[: codec.captures].tobytes()
    rated(benchmark, codec.captures)
