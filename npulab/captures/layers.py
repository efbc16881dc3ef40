"""Layers made from plain parameters, so that a source can be asked for any of them.

A parameter is a number by name: ``op`` (an index of ``OPS``), ``input_h``, ``input_w``, ``input_c``,
``output_c``, ``kernel_h``, ``kernel_w``, ``stride_h``, ``stride_w``, ``same``, ``depthwise`` and ``relu``
(1 or 0), ``input_scale``, ``weight_scale``, ``output_scale``, ``input_zero_point``,
``weight_zero_point``, ``output_zero_point``.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from npulab.quant.layers import UNIT, Add, Conv2D, FullyConnected, Layer, Pool2D
from npulab.quant.rules import QuantParams

OPS = ("conv", "fully_connected", "max_pool", "average_pool", "add")
TOGETHER = {"kernel": ("kernel_h", "kernel_w"), "stride": ("stride_h", "stride_w")}
# what a source draws of parameters that are left out; scales keep outputs inside their type
USUAL: Mapping[str, Any] = {
    "op": ["conv"], "input_h": (1, 64), "input_w": (1, 64), "input_c": (1, 64), "output_c": (1, 64),
    "kernel_h": [1, 3], "kernel_w": [1, 3], "stride_h": [1, 2], "stride_w": [1, 2], "same": [0, 1],
    "depthwise": [0], "relu": [0, 1], "input_scale": [0.02], "weight_scale": [0.01], "output_scale": [0.05],
    "input_zero_point": [0], "weight_zero_point": [0], "output_zero_point": [0]}
MOST_WEIGHTS = 2 ** 21  # of a layer that is made


def complete_ranges(ranges: Mapping[str, Any]) -> dict[str, Any]:
    """Ranges of every parameter: those given, ``kernel`` and ``stride`` in place of those of both
    axes, and the usual ones of the rest.

    Raises ValueError for a name that no layer has and for an operator that is not known.

    >>> complete_ranges({"kernel": [1, 3], "op": ["conv", "add"]})["op"]
    [0, 4]
    """
    out = dict(USUAL)
    for name, allowed in ranges.items():
        if name not in USUAL and name not in TOGETHER:
            raise ValueError(f"ranges: got {name!r}, allowed is one of {', '.join((*USUAL, *TOGETHER))}")
        for axis in TOGETHER.get(name, ()):
            del out[axis]
        out[name] = allowed
    ops = [out["op"]] if isinstance(out["op"], str) else list(out["op"])
    unknown = [op for op in ops if op not in OPS and op not in range(len(OPS))]
    if unknown:
        raise ValueError(f"ranges: got op {unknown[0]!r}, allowed is one of {', '.join(OPS)}")
    out["op"] = [OPS.index(op) if op in OPS else int(op) for op in ops]
    return out


def made(parameters: Mapping[str, float], seed: int = 0, dtype: str = "uint8") -> tuple[Layer, np.ndarray]:
    """(layer, input) of some parameters: the same for the same parameters and seed.

    Weights, bias and input are drawn from the seed.  Raises ValueError if there is no such layer.
    """
    p = {name: parameters.get(name, 0) for name in USUAL}
    text = json.dumps({name: float(value) for name, value in sorted(p.items())})
    random = np.random.default_rng([seed, zlib.crc32(text.encode())])
    real = dtype == "float16"

    def codes(*shape: int) -> np.ndarray:
        if np.prod(shape, dtype=float) > MOST_WEIGHTS:
            raise ValueError(f"layer: got {shape} elements, at most {MOST_WEIGHTS} are allowed")
        if real:
            return random.integers(-128, 128, shape).astype(dtype) / np.float16(16)
        return random.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, shape).astype(dtype)

    def q(name: str) -> QuantParams:
        return UNIT if real else QuantParams(float(np.float32(p[f"{name}_scale"])), int(p[f"{name}_zero_point"]))

    height, width, channels, outputs = (int(p[name]) for name in ("input_h", "input_w", "input_c", "output_c"))
    kernel, stride = ((int(p[f"{name}_h"]), int(p[f"{name}_w"])) for name in ("kernel", "stride"))
    common: dict[str, Any] = {"activation": "relu" if p["relu"] else None, "input_q": q("input"),
                              "output_q": q("output")}
    window: dict[str, Any] = {"stride": stride, "padding": "same" if p["same"] else "valid"}
    op, shape = OPS[int(p["op"])], (height, width, channels)
    layer: Layer
    if op == "add":
        layer = Add(shape, other_q=q("weight"), dtype=dtype, **common)
    elif op.endswith("_pool"):
        layer = Pool2D(op.removesuffix("_pool"), kernel, shape, dtype=dtype,
                       **window, **{**common, "output_q": common["input_q"]})
    elif op == "fully_connected":
        weights = codes(outputs, height * width * channels)
        layer = FullyConnected(weights, _bias(random, outputs), weight_q=q("weight"), **common)
    else:
        depthwise = bool(p["depthwise"])
        weights = codes(1, *kernel, channels) if depthwise else codes(outputs, *kernel, channels)
        layer = Conv2D(weights, _bias(random, channels if depthwise else outputs), shape, depthwise=depthwise,
                       weight_q=q("weight"), **window, **common)
    return layer, codes(*(shape if op != "fully_connected" else layer.input_shape))


def _bias(random: np.random.Generator, outputs: int) -> np.ndarray:
    return random.integers(-1000, 1000, outputs)


def following(layer: Layer) -> dict[str, float]:
    """What follows from a layer's parameters: the sizes of its output."""
    return {f"output_{axis}": float(size) for axis, size in zip("hwc", layer.output_shape[-3:], strict=False)}
