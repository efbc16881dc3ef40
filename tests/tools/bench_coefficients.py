"""Coefficient streams of both formats, and those of another NPU's compiler beside them, on one
thread:

    pytest -o addopts= -s tests/tools/bench_coefficients.py

Figures are MB of weights in a second.  ``mlw_codec`` is what ethos-u-vela packs the weights of
Ethos-U with.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import rates

from npulab.npus.vivante import coefficients
from npulab.npus.vivante.coefficients import Coefficients, Geometry
from npulab.quant.emulate import compiles

ZERO = 128
# channels, planes, kernel; weights around the zero point by so much, and how many of them are it
# besides
LAYERS = {
    "3x3": (256, 256, 3, 20.0, 0.2),
    "3x3, half are zero": (256, 256, 3, 20.0, 0.5),
    "1x1": (1024, 512, 1, 20.0, 0.2),
    "5x5, few planes": (128, 16, 5, 20.0, 0.2),
    "depthwise made dense": (384, 384, 3, 20.0, 0.9975),
    "3x3, one plane": (4096, 1, 3, 20.0, 0.2),
}
CODECS = ["plain", "plain, zero runs", "huffman"]
FAST = [
    False,
    pytest.param(
        True, marks=pytest.mark.skipif(not compiles(), reason="needs the extra npulab[fast]")
    ),
]


@pytest.fixture(params=LAYERS)
def layer(request: pytest.FixtureRequest) -> tuple[Geometry, np.ndarray]:
    channels, planes, kernel, spread, zeros = LAYERS[request.param]
    g = Geometry(8, channels, planes, kernel, kernel, 2, ZERO, 49, 14)
    random = np.random.RandomState(1)
    weights = np.round(random.normal(ZERO, spread, g.shape)).clip(0, 255).astype(np.uint8)
    weights[random.random_sample(g.shape) < zeros] = ZERO
    return g, weights


def content(codec: str, g: Geometry, weights: np.ndarray) -> tuple[Geometry, Coefficients]:
    bias, offsets = np.zeros(g.slots, np.int32), np.zeros(g.slots, np.uint32)
    if codec == "huffman":
        symbols = coefficients.choose_symbols(weights)
        return replace(g, cores=6, huffman=True), Coefficients(
            weights, bias, offsets[:0], symbols=symbols
        )
    given = Coefficients(weights, bias, offsets, (0,) * g.used)
    # the driver's choice, or 1 where that is none
    zrl = max(coefficients.choose_zrl(given, g, 5), 1) if codec == "plain, zero runs" else 0
    return g, replace(given, zrl=(zrl,) * g.used)


def rated(benchmark: Any, function: Any, weights: np.ndarray, *arguments: Any) -> Any:
    return rates.rated(benchmark, weights.size / 1e6, "MB", function, *arguments)


@pytest.mark.benchmark(group="encode")
@pytest.mark.parametrize("fast", FAST)
@pytest.mark.parametrize("codec", CODECS)
def test_encode(benchmark: Any, layer: tuple[Geometry, np.ndarray], codec: str, fast: bool) -> None:
    g, given = content(codec, *layer)
    rated(benchmark, coefficients.encode, layer[1], given, g, fast)


@pytest.mark.benchmark(group="decode")
@pytest.mark.parametrize("fast", FAST)
@pytest.mark.parametrize("codec", CODECS)
def test_decode(benchmark: Any, layer: tuple[Geometry, np.ndarray], codec: str, fast: bool) -> None:
    g, given = content(codec, *layer)
    found = rated(benchmark, coefficients.decode, layer[1], coefficients.encode(given, g), g, fast)
    assert np.array_equal(found.weights, layer[1])


@pytest.mark.benchmark(group="choose")
@pytest.mark.parametrize("codec", ["plain, zero runs", "huffman"])
def test_choose(benchmark: Any, layer: tuple[Geometry, np.ndarray], codec: str) -> None:
    g, given = content(codec, *layer)
    if codec == "huffman":
        rated(benchmark, coefficients.choose_symbols, layer[1], given.weights)
    else:
        rated(benchmark, coefficients.choose_zrl, layer[1], given, g, 5)


@pytest.fixture
def vela(layer: tuple[Geometry, np.ndarray]) -> tuple[Any, list[int]]:
    """The codec, and the weights as the list of signed numbers that it takes."""
    mlw = pytest.importorskip("ethosu.mlw_codec", reason="ethos-u-vela is not installed")
    return mlw, (layer[1].astype(np.int16) - ZERO).reshape(-1).tolist()


@pytest.mark.benchmark(group="encode")
def test_vela_encode(
    benchmark: Any, layer: tuple[Geometry, np.ndarray], vela: tuple[Any, list[int]]
) -> None:
    rated(benchmark, vela[0].encode, layer[1], vela[1])


@pytest.mark.benchmark(group="decode")
def test_vela_decode(
    benchmark: Any, layer: tuple[Geometry, np.ndarray], vela: tuple[Any, list[int]]
) -> None:
    found = rated(benchmark, vela[0].decode, layer[1], vela[0].encode(vela[1]))
    assert found[: len(vela[1])] == vela[1]
