"""Random layers of every kind that lower for NVDLA takes, the same on every machine, and the public
traces."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from conftest import shared

import npulab
from npulab.captures.capture import CaptureSet
from npulab.quant.layers import Add, Conv2D, Pool2D
from npulab.quant.rules import QuantParams

KINDS = (
    "conv",
    "per channel",
    "pointwise",
    "wide bias",
    "padded",
    "pool",
    "add",
    "dilated",
    "many",
    "average",
)


@cache
def public_traces() -> CaptureSet:
    """The public traces of nvdla/hw, read once."""
    return npulab.load_all(shared("data/nvdla"))


def random_layer(n: int) -> tuple[Any, Any]:
    """(layer, input) number ``n``."""
    random = np.random.RandomState([14, n])
    kind = KINDS[n % len(KINDS)]

    def whole(low: int, high: int) -> int:
        return int(random.randint(low, high))

    def codes(*shape: int) -> np.ndarray:
        return random.randint(-128, 128, shape).astype(np.int8)

    def q(scale: float) -> QuantParams:
        return QuantParams(
            float(np.float32(scale * random.uniform(0.5, 1.5))), whole(-128, 128) * whole(0, 2)
        )

    relu = (None, "relu")[whole(0, 2)]
    shape = whole(3, 12), whole(3, 12), whole(1, 70)
    if kind == "add":
        scale = float(np.float32(random.uniform(0.01, 1)))
        add = Add(
            shape,
            relu,
            QuantParams(scale, whole(-128, 128)),
            QuantParams(scale, whole(-128, 128)),
            QuantParams(scale * 2.0 ** whole(0, 4), whole(-128, 128)),
        )
        return add, (codes(*shape), codes(*shape))
    if kind == "pool":
        kernel = whole(1, 9), whole(1, 9)
        padding = tuple((whole(0, min(k, 8)), whole(0, min(k, 8))) for k in kernel)
        shape = whole(8, 15), whole(8, 15), shape[2]
        pool = Pool2D(
            ("max", "min")[whole(0, 2)], kernel, shape, (whole(1, 5), whole(1, 5)), padding
        )
        return pool, codes(*shape)
    if kind == "average":
        kernel = [(1, 1), (2, 2), (3, 3), (4, 4), (1, 2), (4, 2), (5, 3), (8, 8)][whole(0, 8)]
        shape = whole(8, 15), whole(8, 15), shape[2]
        return Pool2D("average", kernel, shape, (whole(1, 4), whole(1, 4))), codes(*shape)
    kernel = (1, 1) if kind == "pointwise" else (whole(1, 5), whole(1, 5))
    outputs = whole(60, 100) if kind == "many" else whole(1, 40)
    dilation = (whole(1, 3), whole(1, 3)) if kind == "dilated" else (1, 1)
    padding = ("same", "valid")[whole(0, 2)]
    if kind == "padded":
        padding = tuple((whole(0, 5), whole(0, 5)) for _ in "hw")
    shape = (
        tuple(
            max(size, (k - 1) * d + 1) for size, k, d in zip(shape, kernel, dilation, strict=False)
        )
        + shape[2:]
    )
    weights = codes(outputs, *kernel, shape[2])
    if whole(0, 3) == 0:
        weights[random.random_sample(weights.shape) < random.random_sample()] = 0
    taps = kernel[0] * kernel[1] * shape[2]
    reach = {"wide bias": 2**24, "conv": 100}.get(kind, 2 ** whole(4, 19))
    bias = random.randint(-reach, reach, outputs) * whole(0, 8) // 7 // 8 * 8 ** whole(0, 2)
    weight_q = q(0.01).scale
    if kind in ("per channel", "dilated"):
        weight_q = tuple(
            (weight_q * 2.0 ** random.uniform(-3, 3, outputs)).astype(np.float32).tolist()
        )
    output_q = q(0.02 * 0.01 * 74 * 74 * taps**0.5 / 60)
    layer = Conv2D(
        weights,
        bias,
        shape,
        (whole(1, 4), whole(1, 4)),
        padding,
        dilation,
        activation=relu,
        input_q=q(0.02),
        weight_q=QuantParams(weight_q),
        output_q=output_q,
    )
    return layer, codes(*shape)
