"""A layer of a real network on the rockchip target, in one run of pytest-benchmark:

pytest -o addopts= -s tests/tools/bench_rockchip.py
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import npulab
from npulab.captures.devices import Simulated
from npulab.quant.layers import Conv2D

CHIPS = ("rk3588", "rv1103")


def made() -> tuple[Conv2D, np.ndarray]:
    """3x3 from 56x56x64 to 64 channels: 115,605,504 multiply-accumulates with its border."""
    random = np.random.RandomState(1)
    layer = Conv2D(
        random.randint(-128, 128, (64, 3, 3, 64)).astype(np.int8),
        random.randint(-999, 999, 64),
        (56, 56, 64),
        padding="same",
        activation="relu",
        input_q=npulab.QuantParams(0.02, 3),
        weight_q=npulab.QuantParams(0.01, 1),
        output_q=npulab.QuantParams(1.0, -4),
    )
    return layer, random.randint(-128, 128, layer.input_shape).astype(np.int8)


@pytest.mark.benchmark(group="rockchip, 3x3 56x56x64")
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("step", ["lower", "lift", "simulate", "emulate", "check"])
def test_layer(benchmark: Any, step: str, chip: str) -> None:
    target, (layer, x) = npulab.target("rockchip"), made()
    capture = Simulated().record(target.lower(layer, chip=chip, x=x))
    run = {
        "lower": lambda: target.lower(layer, chip=chip, x=x),
        "lift": lambda: target.lift(capture),
        "simulate": lambda: target.simulate(capture),
        "check": lambda: npulab.check(capture),
        "emulate": lambda: npulab.emulate(layer, x, target.rule_of(capture)),
    }[step]
    benchmark.pedantic(run, rounds=2)
    assert npulab.check(capture).verdict == "equal"
