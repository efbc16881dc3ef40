"""Layers made from plain parameters, so that a source can be asked for any of them.

A parameter is a number by name: ``op`` (an index of ``OPS``), ``input_h``, ``input_w``,
``input_c``, ``output_c``, ``kernel_h``, ``kernel_w``, ``stride_h``, ``stride_w``, ``same``,
``depthwise`` and ``relu`` (1 or 0), ``input_scale``, ``weight_scale``, ``output_scale``,
``input_zero_point``, ``weight_zero_point``, ``output_zero_point``.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from npulab.quant.layers import UNIT, Add, Conv2D, FullyConnected, Layer, Pool2D
from npulab.quant.rules import QuantParams
from npulab.support.refuse import near, refuse_if, shortly

OPS = ("conv", "fully_connected", "max_pool", "average_pool", "add")
TOGETHER = {"kernel": ("kernel_h", "kernel_w"), "stride": ("stride_h", "stride_w")}
# what a source draws of parameters that are left out; scales keep outputs inside their type
USUAL: Mapping[str, Any] = {
    "op": ["conv"],
    "input_h": (1, 64),
    "input_w": (1, 64),
    "input_c": (1, 64),
    "output_c": (1, 64),
    "kernel_h": [1, 3],
    "kernel_w": [1, 3],
    "stride_h": [1, 2],
    "stride_w": [1, 2],
    "same": [0, 1],
    "depthwise": [0],
    "relu": [0, 1],
    "input_scale": [0.02],
    "weight_scale": [0.01],
    "output_scale": [0.05],
    "input_zero_point": [0],
    "weight_zero_point": [0],
    "output_zero_point": [0],
}
FLAGS = ("same", "depthwise", "relu")
RANGE = "(low, high) or a list of values"
MOST_SIZE = 2**24  # along an axis
MOST_WEIGHTS = 2**21  # of a layer that is made


def complete_ranges(ranges: Mapping[str, Any]) -> dict[str, Any]:
    """Ranges of every parameter: those given, ``kernel`` and ``stride`` in place of those of both
    axes, and the usual ones of the rest.

    Raises ValueError for a name that no layer has, for what is neither (low, high) nor a list of
    numbers that such a parameter may have, and for an operator that is not known.

    >>> complete_ranges({"kernel": [1, 3], "op": ["conv", "add"]})["op"]
    [0, 4]
    """
    refuse_if(
        not isinstance(ranges, Mapping), "ranges", shortly(ranges), f"is {RANGE} by parameter"
    )
    out = {**USUAL, "op": _operators(ranges.get("op", USUAL["op"]))}
    names = (*USUAL, *TOGETHER)
    for name, allowed in ranges.items():
        if name not in names:
            raise ValueError(
                f"ranges: got {name!r}, allowed is one of "
                f"{', '.join(names)}{near(str(name), names)}"
            )
        if name == "op":
            continue
        _check_range(name, allowed)
        for axis in TOGETHER.get(name, ()):
            refuse_if(
                axis in ranges,
                "ranges",
                f"{name} and {axis}",
                f"is one of them: {name} is that of both axes",
            )
            del out[axis]
        out[name] = allowed
    return out


def _operators(allowed: Any) -> list[int]:
    """The numbers of operators that are given by name or number, one or several."""
    ops = allowed
    if isinstance(allowed, str):
        ops = [allowed]
    known = f"is one of {', '.join(OPS)}, or a list of them"
    refuse_if(
        isinstance(ops, Mapping) or not isinstance(ops, Iterable), "ranges: op", shortly(ops), known
    )
    found: list[int] = []
    for op in ops:
        number = op
        if op in OPS:
            number = OPS.index(op)
        hint = ""
        if isinstance(op, str):
            hint = near(op, OPS)
        wrong = isinstance(number, str) or number not in range(len(OPS))
        refuse_if(wrong, "ranges", f"op {op!r:.60}", f"{known}{hint}")
        found.append(int(number))
    refuse_if(not found, "ranges: op", "no value", known)
    return found


def _check_range(name: str, allowed: Any) -> None:
    """Raise ValueError where a range is neither (low, high) nor a list of numbers of its
    parameter.
    """
    what = f"ranges: {name}"
    one = isinstance(allowed, int | float) and not isinstance(allowed, bool)
    hint = ""
    if one:
        hint = f"; one value is [{allowed}]"
    refuse_if(
        isinstance(allowed, str | bytes | Mapping) or not isinstance(allowed, Iterable),
        what,
        shortly(allowed),
        f"is {RANGE}{hint}",
    )
    values = list(allowed)
    refuse_if(not values, what, "no value", f"is {RANGE}")
    for place, value in enumerate(values):
        number = _is_number(value) or (name in FLAGS and isinstance(value, bool))
        refuse_if(
            not number, what, f"{shortly(value)} as value {place}", f"is {RANGE} of finite numbers"
        )
        low, high, text = _limits(name)
        whole = name.endswith("_scale") or float(value).is_integer()
        refuse_if(not low <= value <= high or not whole, what, f"{value} as value {place}", text)
    if isinstance(allowed, tuple) and len(allowed) == 2:
        refuse_if(
            allowed[0] > allowed[1],
            what,
            f"low {allowed[0]} above high {allowed[1]}",
            "is (low, high)",
        )
    elif isinstance(allowed, tuple):
        refuse_if(True, what, shortly(allowed), f"is {RANGE}")


def _is_number(value: Any) -> bool:
    number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(
        value, bool
    )
    return number and bool(np.isfinite(value))


def _limits(name: str) -> tuple[float, float, str]:
    """The lowest and the highest value of a parameter, in numbers and behind "allowed"."""
    if name in FLAGS:
        return 0, 1, "is 1 or 0"
    if name.endswith("_scale"):
        return (
            float(np.finfo(np.float32).tiny),
            float(np.finfo(np.float32).max),
            "are positive numbers",
        )
    if name.endswith("_zero_point"):
        return -(2**31), 2**31 - 1, "are whole numbers"
    return 1, MOST_SIZE, f"are whole numbers from 1 to {MOST_SIZE}"


def made(
    parameters: Mapping[str, float], seed: int = 0, dtype: str = "uint8"
) -> tuple[Layer, np.ndarray]:
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
        if real:
            return UNIT
        return QuantParams(float(np.float32(p[f"{name}_scale"])), int(p[f"{name}_zero_point"]))

    height, width, channels, outputs = (
        int(p[name]) for name in ("input_h", "input_w", "input_c", "output_c")
    )
    kernel, stride = ((int(p[f"{name}_h"]), int(p[f"{name}_w"])) for name in ("kernel", "stride"))
    common: dict[str, Any] = {
        "activation": "relu" if p["relu"] else None,
        "input_q": q("input"),
        "output_q": q("output"),
    }
    window: dict[str, Any] = {"stride": stride, "padding": "same" if p["same"] else "valid"}
    op, shape = OPS[int(p["op"])], (height, width, channels)
    layer: Layer
    if op == "add":
        layer = Add(shape, other_q=q("weight"), dtype=dtype, **common)
    elif op.endswith("_pool"):
        layer = Pool2D(
            op.removesuffix("_pool"),
            kernel,
            shape,
            dtype=dtype,
            **window,
            **{**common, "output_q": common["input_q"]},
        )
    elif op == "fully_connected":
        weights = codes(outputs, height * width * channels)
        layer = FullyConnected(weights, _bias(random, outputs), weight_q=q("weight"), **common)
    else:
        depthwise = bool(p["depthwise"])
        if depthwise:
            weights = codes(1, *kernel, channels)
        else:
            weights = codes(outputs, *kernel, channels)
        layer = Conv2D(
            weights,
            _bias(random, channels if depthwise else outputs),
            shape,
            depthwise=depthwise,
            weight_q=q("weight"),
            **window,
            **common,
        )
    return layer, codes(*(shape if op != "fully_connected" else layer.input_shape))


def _bias(random: np.random.Generator, outputs: int) -> np.ndarray:
    return random.integers(-1000, 1000, outputs)


def following(layer: Layer) -> dict[str, float]:
    """What follows from a layer's parameters: the sizes of its output."""
    return {
        f"output_{axis}": float(size)
        for axis, size in zip("hwc", layer.output_shape[-3:], strict=False)
    }
