"""What several benchmarks write alike: one thread, and how much is done in a second."""

from __future__ import annotations

import os
from typing import Any

import pytest

ONE_THREAD = pytest.mark.skipif(
    os.environ.get("OPENBLAS_NUM_THREADS") != "1",
    reason="claims are of one thread: set OPENBLAS_NUM_THREADS=1",
)


def rated(benchmark: Any, amount: float, unit: str, function: Any, *arguments: Any) -> Any:
    """The result of a call that is measured; prints how many ``unit`` of ``amount`` it does in a
    second."""
    found = benchmark.pedantic(function, arguments, rounds=3, warmup_rounds=1)
    if benchmark.stats:  # not with --benchmark-disable
        print(f"\n{amount / benchmark.stats.stats.min:,.2f} {unit}/s")
    return found
