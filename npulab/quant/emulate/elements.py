"""float16 layers without sums over windows: element by element, by table, side by side.

Under rule "fp16" an element is computed exactly and rounded once; under the rules of TensorFlow
Lite's kernels every operation is one of float32, and the last result is rounded to float16.  NaN
and infinities go through as IEEE 754 has them: infinity less infinity, and 0 times infinity, are
NaN; a maximum or minimum with a NaN is NaN, and takes +0 for more than -0; every NaN that comes out
is 0x7E00.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from npulab.quant.emulate.engines import REAL
from npulab.quant.floats import Near, halves, nearest_half
from npulab.quant.layers import Activation, Concat, Elementwise

BLOCK = 65_536  # elements at a time


def elementwise(layer: Elementwise, tensors: tuple[np.ndarray, ...], exact: bool) -> np.ndarray:
    """Output float16 ``(..., C)`` of one tensor or two, with the same leading axes; every NaN is
    0x7E00."""
    shape = np.broadcast_shapes(*(one.shape for one in tensors))
    channels, kind = shape[-1], np.float64 if exact else np.float32
    rows = [np.broadcast_to(one, shape).reshape(-1, channels) for one in tensors]
    out, height = np.empty(rows[0].shape, np.float16), max(1, BLOCK // channels)
    for start in range(0, len(out), height):
        parts = [one[start : start + height] for one in rows]
        with np.errstate(over="ignore", invalid="ignore"):
            near = _formula(layer, [Near(one.astype(kind)) for one in parts])

        def again(place: tuple[int, ...], parts: list[np.ndarray] = parts) -> np.float16:
            return element(layer, tuple(part[place] for part in parts), place[-1])

        out[start : start + height] = halves(near, again, REAL[layer.activation])
    return out.reshape(shape)


def activation(layer: Activation, x: np.ndarray, exact: bool) -> np.ndarray:
    """Output float16 ``(..., C)``: what the table holds for each code, NaNs too; a prescale makes
    every NaN 0x7E00."""
    if np.any(layer.prescale != 1):
        x = elementwise(
            Elementwise("copy", layer.input_shape, prescale=layer.prescale), (x,), exact
        )
    return layer.outputs[np.ascontiguousarray(x).view(np.uint16)]


def concat(layer: Concat, tensors: tuple[np.ndarray, ...]) -> np.ndarray:
    """The tensors side by side, bit for bit."""
    return np.concatenate(tensors, layer.axis - len(layer.output_shape))


def _formula(layer: Elementwise, sources: list[Near]) -> Near:
    near = _times(sources[0], layer.prescale)
    if layer.kind == "abs":
        near = Near(
            np.abs(near.values), np.where(np.signbit(near.values), -1, 1) * near.tail, near.error
        )
    elif layer.kind == "multiply":
        near = _times(near, sources[1].values)
    elif layer.kind in ("add", "subtract"):
        if layer.kind == "add":
            near += sources[1].values
        else:
            near += -sources[1].values
    elif layer.kind in ("maximum", "minimum"):
        a, b, above = near.values, sources[1].values, layer.kind == "maximum"
        # the tail of one product is exact, and tells numbers apart that are equal but for it
        if above:
            tied = (near.tail > 0) | ((near.tail == 0) & np.signbit(b))
        else:
            tied = (near.tail < 0) | ((near.tail == 0) & np.signbit(a))
        first = ((a > b) if above else (a < b)) | ((a == b) & tied) | np.isnan(a)
        near = Near(np.where(first, a, b), np.where(first, near.tail, 0.0))
    near = _times(near, layer.scale)
    if np.all(np.equal(layer.bias, 0)):
        return near
    return near + np.where(np.equal(layer.bias, 0), -0.0, layer.bias)


def _times(near: Near, by: np.ndarray | float) -> Near:
    if np.all(np.equal(by, 1)):
        return near
    return near * by


def element(
    layer: Elementwise, elements: tuple[Any, ...], channel: int, exact: bool = True
) -> np.float16:
    """One element: of exact numbers rounded once, or of float32 numbers, each operation rounded by
    itself."""
    with np.errstate(over="ignore", invalid="ignore"):
        value = _in_arithmetic(layer, elements, channel, _whole if exact else np.float32)
        if exact and value == 0:  # has no sign here
            zero = _in_arithmetic(layer, elements, channel, float)
            return np.float16(0 if zero else zero)
        if isinstance(value, Fraction):
            out = nearest_half(value)
        else:
            out = np.float16(value)
    if np.isnan(out):
        return np.float16(np.nan)
    return out


def _whole(number: float) -> Fraction | float:
    """The number itself where it is finite."""
    if math.isfinite(number):
        return Fraction(number)
    return number


def _in_arithmetic(
    layer: Elementwise, elements: tuple[Any, ...], channel: int, number: Callable[[float], Any]
) -> Any:
    """``(prescale * a op b) * scale + bias``, clamped, in the arithmetic of a type of number."""
    prescale, scale, bias = (
        float(np.broadcast_to(value, layer.output_shape[-1:])[channel])
        for value in (layer.prescale, layer.scale, layer.bias)
    )
    first, *rest = (number(float(value)) for value in elements)
    if prescale != 1:
        first = first * number(prescale)
    if layer.kind in ("maximum", "minimum"):
        if layer.kind == "maximum":
            value = _larger(first, rest[0])
        else:
            value = -_larger(-first, -rest[0])
    else:
        value = {
            "abs": lambda: abs(first),
            "copy": lambda: first,
            "multiply": lambda: first * rest[0],
            "add": lambda: first + rest[0],
            "subtract": lambda: first - rest[0],
        }[layer.kind]()
    if scale != 1:
        value = value * number(scale)
    if bias != 0:
        value = value + number(bias)
    low, high = REAL[layer.activation]
    if value <= low:
        return low
    if value >= high:
        return high
    return value


def _larger(a: Any, b: Any) -> Any:
    if a != a or b != b:
        if a != a:
            return a
        return b
    if a > b or (a == b and math.copysign(1, b) < 0):
        return a
    return b
