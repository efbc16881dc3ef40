"""Kernel buffers of the Apple Neural Engine written and read, beside the plain way, one weight
after another:

    pytest -o addopts= -s tests/tools/bench_ane.py

Figures are MB of buffer in a second, on one thread.  The plain way gets a smaller kernel of the
same form.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ane_by_weight as plain
import numpy as np
import pytest
from rates import rated

from npulab.npus.ane import coefficients
from npulab.npus.ane.coefficients import Kernel

FORMS = {
    "dense, 1x1": Kernel(1024, 1024),
    "dense, 3x3": Kernel(512, 256, 3, 3, bias=True),
    "grouped": Kernel(512, 512, 3, 3, groups=4, bias=True),
    "depthwise": Kernel(16384, 16384, 3, 3, 16384),
    "sparse, 1x1": Kernel(1024, 1024, stride=(2, 2), sparse=True),
    "sparse, 3x3": Kernel(512, 256, 3, 3, stride=(2, 2), bias=True, sparse=True),
}
WAYS = ["fast", "plain"]


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> Kernel:
    return FORMS[request.param]


def content(k: Kernel) -> tuple[np.ndarray, np.ndarray | None]:
    """Weights of which a fifth are zero, and a bias where there is one."""
    random = np.random.RandomState(1)
    weights = random.normal(size=k.shape).astype(np.float16)
    weights[random.random_sample(k.shape) < 0.2] = 0
    return weights, random.normal(size=k.outputs).astype(np.float16) if k.bias else None


def fitting(k: Kernel, way: str) -> Kernel:
    if way == "fast":
        return k
    inputs = k.inputs // 16 if k.depthwise else k.inputs // 32
    return replace(
        k, inputs=inputs, **({"outputs": inputs, "groups": inputs} if k.depthwise else {})
    )


@pytest.mark.benchmark(group="encode")
@pytest.mark.parametrize("way", WAYS)
def test_encode(benchmark: Any, form: Kernel, way: str) -> None:
    k = fitting(form, way)
    given = content(k)
    function = coefficients.encode if way == "fast" else plain.write_by_weight
    data = coefficients.encode(k, *given)
    assert rated(benchmark, len(data) / 1e6, "MB", function, k, *given) == data


@pytest.mark.benchmark(group="decode")
@pytest.mark.parametrize("way", WAYS)
def test_decode(benchmark: Any, form: Kernel, way: str) -> None:
    k = fitting(form, way)
    given = content(k)
    data = coefficients.encode(k, *given)
    function = coefficients.decode if way == "fast" else plain.read_by_weight
    weights, _ = rated(benchmark, len(data) / 1e6, "MB", function, k, data)
    assert np.array_equal(weights.view(np.uint16) & 0x7FFF, given[0].view(np.uint16) & 0x7FFF)


@pytest.mark.benchmark(group="explain")
@pytest.mark.parametrize("name", ["dense, 3x3", "sparse, 3x3"])
def test_explain(benchmark: Any, name: str) -> None:
    k = replace(FORMS[name], inputs=32)
    data = coefficients.encode(k, *content(k))
    assert rated(benchmark, len(data) / 1e6, "MB", coefficients.explain, k, data)[-1].kind in (
        "weight",
        "fill",
    )
