"""Random layers of every kind that lower takes, the same on every machine."""

from __future__ import annotations

from typing import Any

import numpy as np

from npulab.quant.layers import Add, Conv2D, FullyConnected
from npulab.quant.rules import QuantParams

A311D, IMX8MP, S905D3, STM32MP25 = (
    "vipnano-qi-a311d",
    "vipnano-si-imx8mp",
    "vipnano-qi-s905d3",
    "gcnanoultra31-stm32mp25",
)
FEATURES = ("hwc-tensors", "pad-job", "nn-job-alone", "odd-stride2-tile")
KINDS = (
    "conv",
    "pointwise",
    "depthwise",
    "one channel",
    "narrow",
    "wide",
    "many",
    "explicit",
    "full",
    "add",
)


def random_layer(n: int, chip: str) -> tuple[Any, Any, tuple[str, ...]]:
    """(layer, input, features) number ``n`` for a chip."""
    random = np.random.RandomState([n, len(chip)])
    kind, dtype = KINDS[n % len(KINDS)], ("uint8", "int8")[random.randint(4) // 3]
    low = np.iinfo(dtype).min

    def codes(*shape: int) -> np.ndarray:
        return (random.randint(0, 256, shape) + low).astype(dtype)

    def q(scale: float, least: int = 0, most: int = 256) -> QuantParams:
        return QuantParams(
            float(np.float32(scale * random.uniform(0.5, 1.5))),
            int(random.randint(least, most)) + low,
        )

    relu = (None, "relu")[random.randint(2)]
    if kind == "add":
        add = Add(
            tuple(int(d) for d in random.randint(1, 9, 3)),
            relu,
            q(0.02),
            q(0.02 * 4.0 ** random.uniform(-1, 1)),
            q(0.04),
            dtype,
        )
        return add, (codes(*add.input_shape), codes(*add.input_shape)), ()
    if kind == "full":
        inputs, outputs = (
            int(random.choice([1, 7, 12, 17, 30, 64, 121, 150])),
            int(random.randint(1, 40)),
        )
        weights = codes(outputs, inputs)
        full = FullyConnected(
            weights,
            random.randint(-2000, 2000, outputs),
            relu,
            q(0.02),
            q(0.01, 80, 180),
            q(0.02 * 0.01 * 74 * 74 * inputs**0.5 / 60),
            dtype,
        )
        return full, codes(inputs), ()
    kernel = {"pointwise": (1, 1), "wide": (3, 3)}.get(
        kind,
        [(3, 3), (5, 5), (2, 2), (3, 5), (1, 1), (4, 2), (7, 7), (1, 3), (6, 6)][random.randint(9)],
    )
    low_size, high = (1, 6) if kind == "narrow" else (4, 15)
    size = [int(random.randint(low_size, high)) for _ in "hw"]
    channels = 1 if kind == "one channel" else int(random.randint(1, 9))
    outputs = int(random.randint(1, 20))
    if kind == "wide":
        size, channels, outputs = (
            [3, int(random.randint(60, 75))],
            int(random.randint(1, 3)),
            int(random.randint(1, 4)),
        )
    if kind == "many":
        size, channels, outputs = (
            [int(random.randint(3, 6)) for _ in "hw"],
            2,
            int(random.randint(100, 300)),
        )
    stride, depthwise = 1 + int(random.randint(2)), kind == "depthwise"
    padding: Any = ("same", "valid")[random.randint(2)]
    if kind == "explicit":
        padding = tuple((int(random.randint(0, 3)), int(random.randint(0, 3))) for _ in "hw")
    if padding != "same":
        size = [max(s, k) for s, k in zip(size, kernel, strict=True)]
    shape = (1, *kernel, channels) if depthwise else (outputs, *kernel, channels)
    weights, weight_q = codes(*shape), q(0.01, 80, 180)
    if random.randint(3) == 0:
        weights[random.random_sample(shape) < random.random_sample()] = weight_q.zero_point
    taps = kernel[0] * kernel[1] * (1 if depthwise else channels)
    layer = Conv2D(
        weights,
        random.randint(-5000, 5000, channels if depthwise else outputs),
        (*size, channels),
        (stride, stride),
        padding,
        depthwise=depthwise,
        activation=relu,
        input_q=q(0.02),
        weight_q=weight_q,
        output_q=q(0.02 * 0.01 * 74 * 74 * taps**0.5 / 60),
    )
    asked = tuple(name for name in FEATURES if random.randint(6) == 0)
    return layer, codes(*layer.input_shape), asked
