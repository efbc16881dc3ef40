"""float16 layers without sums over windows: arithmetic on each element, activation by table,
concatenation.

Under rule "fp16" an element is computed exactly and rounded once. Under the rules of TensorFlow
Lite's kernels every operation is computed in float32, and only the last result is rounded to
float16. NaN and infinities are treated as in IEEE 754: infinity minus infinity, and 0 times
infinity, are NaN. A maximum or minimum with a NaN is NaN, and +0 counts as larger than -0. Every
NaN in the output is 0x7E00.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from fractions import Fraction
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy import ndarray as Array

from npulab.quant.emulate.engines import REAL
from npulab.quant.floats import Near, halves, nearest_half
from npulab.quant.layers import Activation, Concat, Elementwise

BLOCK = 65_536  # most elements that are computed at once


def elementwise(layer: Elementwise, tensors: tuple[Array, ...], exact: bool) -> Array:
    """Return the output float16 ``(..., C)`` of one tensor, or of two tensors with the same leading
    axes; every NaN is 0x7E00.
    """
    shape = np.broadcast_shapes(*(tensor.shape for tensor in tensors))
    channels = shape[-1]
    kind: type[np.floating] = np.float32
    if exact:
        kind = np.float64
    rows = [np.broadcast_to(tensor, shape).reshape(-1, channels) for tensor in tensors]
    out = np.empty(rows[0].shape, np.float16)
    height = max(1, BLOCK // channels)
    for start in range(0, len(out), height):
        blocks = [tensor[start : start + height] for tensor in rows]
        with np.errstate(over="ignore", invalid="ignore"):
            near = _formula(layer, [Near(block.astype(kind)) for block in blocks])

        def again(place: tuple[int, ...], blocks: list[Array] = blocks) -> np.float16:
            return element(layer, tuple(block[place] for block in blocks), place[-1])

        out[start : start + height] = halves(near, again, REAL[layer.activation])
    return out.reshape(shape)


def _formula(layer: Elementwise, sources: list[Near]) -> Near:
    """Return ``(prescale * a op b) * scale + bias`` as ``Near``: rounded numbers and their rounding
    errors.
    """
    near = _operated(layer.kind, _times(sources[0], layer.prescale), sources[1:])
    near = _times(near, layer.scale)
    if np.all(np.equal(layer.bias, 0)):
        return near
    # a bias of 0 is added as -0, because -0 + +0 would be +0, while adding -0 changes no number
    return near + np.where(np.equal(layer.bias, 0), -0.0, layer.bias)


def _times(near: Near, by: Array | float) -> Near:
    if np.all(np.equal(by, 1)):
        return near
    return near * by


def _operated(kind: str, near: Near, others: list[Near]) -> Near:
    """Return ``a op b``. ``near`` is a; ``others`` holds b if the layer takes two tensors, and is
    empty otherwise.
    """
    if kind == "copy":
        return near
    if kind == "abs":
        sign = np.where(np.signbit(near.values), -1, 1)
        return Near(np.abs(near.values), sign * near.tail, near.error)
    a = near.values
    b = others[0].values
    if kind == "multiply":
        return _times(near, b)
    if kind == "add":
        return near + b
    if kind == "subtract":
        return near + -b
    # ``a`` is at most one product, whose tail is exact; if the values of ``a`` and ``b`` are equal,
    # the tail says which number is larger
    if kind == "maximum":
        tied = (near.tail > 0) | ((near.tail == 0) & np.signbit(b))
        first = a > b
    else:
        tied = (near.tail < 0) | ((near.tail == 0) & np.signbit(a))
        first = a < b
    first = first | ((a == b) & tied) | np.isnan(a)
    return Near(np.where(first, a, b), np.where(first, near.tail, 0.0))


def activation(layer: Activation, x: Array, exact: bool) -> Array:
    """Return the output float16 ``(..., C)``: for each code the number in the table. Codes of NaN
    are looked up too; if there is a prescale, every NaN becomes 0x7E00 before it is looked up.
    """
    if np.any(layer.prescale != 1):
        scaled = Elementwise("copy", layer.input_shape, prescale=layer.prescale)
        x = elementwise(scaled, (x,), exact)
    return layer.outputs[np.ascontiguousarray(x).view(np.uint16)]


def concat(layer: Concat, tensors: tuple[Array, ...]) -> Array:
    """Return the tensors next to each other along an axis, bit for bit."""
    return np.concatenate(tensors, layer.axis - len(layer.output_shape))


def element(
    layer: Elementwise, elements: tuple[Any, ...], channel: int, exact: bool = True
) -> np.float16:
    """Return one element of the output: if ``exact``, computed exactly and rounded once, otherwise
    computed in float32 step by step.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        if not exact:
            return _half(_in_arithmetic(layer, elements, channel, np.float32))
        value = _in_arithmetic(layer, elements, channel, _whole)
        # a fraction of 0 has no sign: the sign of the zero is computed in float64
        if value == 0:
            zero = _in_arithmetic(layer, elements, channel, float)
            return np.float16(0 if zero else zero)
        if isinstance(value, Fraction):
            return nearest_half(value)
        return _half(value)


def _half(value: Any) -> np.float16:
    """Return a float as float16; every NaN becomes 0x7E00."""
    if np.isnan(value):
        return np.float16(np.nan)
    return np.float16(value)


def _whole(number: float) -> Fraction | float:
    """Return a finite number as an exact fraction; infinities and NaN are returned as floats."""
    if math.isfinite(number):
        return Fraction(number)
    return number


def _in_arithmetic(
    layer: Elementwise, elements: tuple[Any, ...], channel: int, number: Callable[[float], Any]
) -> Any:
    """Return ``(prescale * a op b) * scale + bias``, clamped. ``number`` converts each operand to
    the type in which this is computed.
    """
    operands = [number(float(value)) for value in elements]
    prescale = _of_channel(layer, layer.prescale, channel)
    if prescale != 1:
        operands[0] *= number(prescale)
    value = OPERATORS[layer.kind](*operands)
    scale = _of_channel(layer, layer.scale, channel)
    if scale != 1:
        value = value * number(scale)
    bias = _of_channel(layer, layer.bias, channel)
    if bias != 0:
        value = value + number(bias)
    low, high = REAL[layer.activation]
    if value <= low:
        return low
    if value >= high:
        return high
    return value


def _of_channel(layer: Elementwise, values: Any, channel: int) -> float:
    """Return the number of a parameter for one channel; a parameter that is one number is the same
    for all channels.
    """
    return float(np.broadcast_to(values, layer.output_shape[-1:])[channel])


def _larger(a: Any, b: Any) -> Any:
    """Return the larger of two numbers; NaN if either is NaN, and +0 for +0 and -0."""
    if a != a:
        return a
    if b != b or b > a:
        return b
    if a == b and math.copysign(1, b) >= 0:
        return b
    return a


def _smaller(a: Any, b: Any) -> Any:
    return -_larger(-a, -b)


OPERATORS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "copy": operator.pos,
        "abs": abs,
        "add": operator.add,
        "subtract": operator.sub,
        "multiply": operator.mul,
        "maximum": _larger,
        "minimum": _smaller,
    }
)
