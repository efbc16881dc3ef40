"""Layers made from plain parameters, so that a source can be asked for any of them.

A parameter is a number by name: ``op`` (an index of ``OPS``), ``input_h``, ``input_w``,
``input_c``, ``output_c``, ``kernel_h``, ``kernel_w``, ``stride_h``, ``stride_w``, ``same``,
``depthwise`` and ``relu`` (1 or 0), ``input_scale``, ``weight_scale``, ``output_scale``,
``input_zero_point``, ``weight_zero_point``, ``output_zero_point``.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy import ndarray as Array

from npulab.quant.layers import UNIT, Add, Conv2D, FullyConnected, Layer, Pool2D
from npulab.quant.layers.spellings import with_numbers
from npulab.quant.rules import QuantParams
from npulab.support.refuse import near, refuse_if, shortly

OPS = ("conv", "fully_connected", "max_pool", "average_pool", "add")
TOGETHER = {"kernel": ("kernel_h", "kernel_w"), "stride": ("stride_h", "stride_w")}
# The range of each parameter for which a caller gives no range. With these scales, outputs stay
# inside the range of their type.
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
# The most elements along an axis.
MOST_SIZE = 2**24
# The most elements of a tensor that is made.
MOST_WEIGHTS = 2**21


def complete_ranges(ranges: Mapping[str, Any]) -> dict[str, Any]:
    """The range of every parameter of a layer: the given range, or the usual range of a parameter
    that is not given. A given ``kernel`` or ``stride`` sets both axes, and stands in the result
    instead of ``kernel_h`` and ``kernel_w``, or ``stride_h`` and ``stride_w``. Other spellings of a
    name (``input_channels``) are taken, and texts of ``padding`` and ``activation`` for ``same``
    and ``relu``.

    Raises ValueError for a parameter that no layer has, for a range that is neither (low, high) nor
    a list of values, for a value that the parameter may not have, and for an unknown operator.

    >>> complete_ranges({"kernel": [1, 3], "op": ["conv", "add"]})["op"]
    [0, 4]
    """
    given = isinstance(ranges, Mapping)
    refuse_if(not given, "ranges", shortly(ranges), f"is {RANGE} by parameter")
    ranges = with_numbers(ranges)
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
                f"is one of them: {name} sets both axes",
            )
            del out[axis]
        out[name] = allowed
    return out


def _operators(allowed: Any) -> list[int]:
    """The indices in ``OPS`` of operators, which are given as one name or as a list of names and
    indices; raises ValueError for an unknown operator."""
    ops = allowed
    if isinstance(allowed, str):
        ops = [allowed]
    known = f"is one of {', '.join(OPS)}, or a list of them"
    wrong = isinstance(ops, Mapping) or not isinstance(ops, Iterable)
    refuse_if(wrong, "ranges: op", shortly(ops), known)
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
    """Raise ValueError unless a range is (low, high) or a list of numbers, each of which the
    parameter may have."""
    what = f"ranges: {name}"
    hint = ""
    if isinstance(allowed, int | float) and not isinstance(allowed, bool):
        hint = f"; one value is [{allowed}]"
    wrong = isinstance(allowed, str | bytes | Mapping) or not isinstance(allowed, Iterable)
    refuse_if(wrong, what, shortly(allowed), f"is {RANGE}{hint}")
    values = list(allowed)
    refuse_if(not values, what, "no value", f"is {RANGE}")
    low, high, text = _limits(name)
    for place, value in enumerate(values):
        number = _is_number(value) or (name in FLAGS and isinstance(value, bool))
        got = f"{shortly(value)} as value {place}"
        refuse_if(not number, what, got, f"is {RANGE} of finite numbers")
        whole = name.endswith("_scale") or float(value).is_integer()
        refuse_if(not low <= value <= high or not whole, what, f"{value} as value {place}", text)
    if not isinstance(allowed, tuple):
        return
    refuse_if(len(allowed) != 2, what, shortly(allowed), f"is {RANGE}")
    first, last = allowed
    refuse_if(first > last, what, f"low {first} above high {last}", "is (low, high)")


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        return False
    return bool(np.isfinite(value))


def _limits(name: str) -> tuple[float, float, str]:
    """The lowest and the highest allowed value of a parameter, and the words for both in an error
    text."""
    if name in FLAGS:
        return 0, 1, "is 1 or 0"
    if name.endswith("_scale"):
        info = np.finfo(np.float32)
        return float(info.tiny), float(info.max), "are positive numbers"
    if name.endswith("_zero_point"):
        return -(2**31), 2**31 - 1, "are whole numbers"
    return 1, MOST_SIZE, f"are whole numbers from 1 to {MOST_SIZE}"


def made(
    parameters: Mapping[str, float], seed: int = 0, dtype: str = "uint8"
) -> tuple[Layer, Array]:
    """Return (layer, input) with the given parameters; parameters that are left out are 0.

    Weights, bias and input are random numbers that depend only on the parameters and the seed.
    Raises ValueError if there is no such layer.
    """
    p = {name: parameters.get(name, 0) for name in USUAL}
    text = json.dumps({name: float(value) for name, value in sorted(p.items())})
    draw = _Draw(np.random.default_rng([seed, zlib.crc32(text.encode())]), dtype)
    op = OPS[int(p["op"])]
    shape = int(p["input_h"]), int(p["input_w"]), int(p["input_c"])
    outputs = int(p["output_c"])
    kernel = int(p["kernel_h"]), int(p["kernel_w"])
    common: dict[str, Any] = {"activation": None, "input_q": _q(p, "input", dtype)}
    if p["relu"]:
        common["activation"] = "relu"
    window: dict[str, Any] = {"stride": (int(p["stride_h"]), int(p["stride_w"]))}
    window["padding"] = "same" if p["same"] else "valid"
    if op.endswith("_pool"):
        kind = op.removesuffix("_pool")
        common["output_q"] = common["input_q"]
        return Pool2D(kind, kernel, shape, dtype=dtype, **window, **common), draw.codes(*shape)
    common["output_q"] = _q(p, "output", dtype)
    second_q = _q(p, "weight", dtype)
    if op == "add":
        return Add(shape, other_q=second_q, dtype=dtype, **common), draw.codes(*shape)
    layer: Layer
    if op == "fully_connected":
        weights = draw.codes(outputs, math.prod(shape))
        layer = FullyConnected(weights, draw.bias(outputs), weight_q=second_q, **common)
        return layer, draw.codes(*layer.input_shape)
    depthwise = bool(p["depthwise"])
    if depthwise:
        outputs = shape[2]
        weights = draw.codes(1, *kernel, outputs)
    else:
        weights = draw.codes(outputs, *kernel, shape[2])
    common |= {"depthwise": depthwise, "weight_q": second_q, **window}
    layer = Conv2D(weights, draw.bias(outputs), shape, **common)
    return layer, draw.codes(*shape)


@dataclass(frozen=True)
class _Draw:
    """A source of random tensors of one type, ``dtype``."""

    random: np.random.Generator
    dtype: str

    def codes(self, *shape: int) -> Array:
        """A tensor of random codes, each code of the type as likely as any other; for float16
        random multiples of 1/16 from -8 to below 8."""
        if np.prod(shape, dtype=float) > MOST_WEIGHTS:
            raise ValueError(
                f"layer: got a tensor of shape {shape}, allowed are at most {MOST_WEIGHTS} elements"
            )
        if self.dtype == "float16":
            return self.random.integers(-128, 128, shape).astype(self.dtype) / np.float16(16)
        info = np.iinfo(self.dtype)
        return self.random.integers(info.min, info.max + 1, shape).astype(self.dtype)

    def bias(self, outputs: int) -> Array:
        return self.random.integers(-1000, 1000, outputs)


def _q(parameters: Mapping[str, float], name: str, dtype: str) -> QuantParams:
    """The quantization of the tensor ``name`` (input, weight, output), from the parameters
    ``name_scale`` and ``name_zero_point``."""
    if dtype == "float16":
        return UNIT
    scale = float(np.float32(parameters[f"{name}_scale"]))
    return QuantParams(scale, int(parameters[f"{name}_zero_point"]))


def following(layer: Layer) -> dict[str, float]:
    """The sizes of a layer's output by name (``output_h``, ``output_w``, ``output_c``), which
    follow from its parameters."""
    return {
        f"output_{axis}": float(size)
        for axis, size in zip("hwc", layer.output_shape[-3:], strict=False)
    }
