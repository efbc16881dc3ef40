"""Layers in the form that an NPU needs: all codes of one type, a fully connected layer as a
convolution, padding by name, and no property that changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from npulab.npus.kit.numbers import SIGNED, as_codes
from npulab.quant.emulate.engines import clamps_alike
from npulab.quant.layers import PADDINGS, Conv2D, FullyConnected, QuantParams, pads
from npulab.support.refuse import refuse_if

PLAIN = (None, "relu")  # the activations that most NPUs can do


def of_type(layer: Any, dtype: str) -> Any:
    """Return the layer with all codes and zero points in ``dtype``, int8 or uint8: moved by 128 if
    they are of the other type.
    """
    by = SIGNED if dtype == "uint8" else -SIGNED
    tensors = []
    if layer.dtype != dtype:
        tensors = ["input_q", "other_q", "output_q"]
    changed: dict[str, Any] = {"dtype": dtype}
    if hasattr(layer, "weights") and layer.weights.dtype != dtype:
        changed["weights"] = as_codes(layer.weights, dtype)
        changed["weight_bits"] = 8  # codes of fewer bits, moved by 128, need all 8 bits
        tensors.append("weight_q")
    for name in tensors:
        params = getattr(layer, name, None)
        if params is not None:
            changed[name] = QuantParams(params.scale, params.zero_point + by)
    return replace(layer, **changed)


def as_1x1(layer: FullyConnected) -> Conv2D:
    """Return a fully connected layer as a convolution with a 1x1 kernel over one pixel."""
    return Conv2D(
        layer.weights[:, None, None],
        layer.bias,
        (1, 1, layer.weights.shape[1]),
        activation=layer.activation,
        input_q=layer.input_q,
        weight_q=layer.weight_q,
        output_q=layer.output_q,
        dtype=layer.dtype,
        output=layer.output,
        weight_bits=layer.weight_bits,
    )


def plain_activation(layer: Any, where: str, allowed: Sequence[str | None] = PLAIN) -> Any:
    """Return the layer with one of the ``allowed`` activations: its own, or else the last of them
    that gives the same codes.

    So relu6 becomes "relu" if the type has no code above 6. Raises ValueError, which begins with
    ``where``, if no allowed activation gives the same codes.
    """
    if layer.activation in allowed:
        return layer
    alike = [activation for activation in allowed if clamps_alike(layer, activation)]
    names = " or ".join(map(repr, allowed))
    refuse_if(
        not alike,
        f"{where}: activation",
        repr(layer.activation),
        f"is {names}, or what gives the same codes",
    )
    return replace(layer, activation=alike[-1])


def per_tensor(layer: Any) -> Any:
    """Return the layer with one weight scale if the scales of all its channels are equal."""
    scale = layer.weight_q.scale
    if isinstance(scale, tuple) and len({*scale}) == 1:
        return replace(layer, weight_q=QuantParams(scale[0], layer.weight_q.zero_point))
    return layer


def undilated(layer: Conv2D) -> Conv2D:
    """Return the layer with dilation 1 along each axis on which its kernel has one cell."""
    height, width = layer.dilation
    if layer.kernel[0] == 1:
        height = 1
    if layer.kernel[1] == 1:
        width = 1
    return replace(layer, dilation=(height, width))


def stepped(layer: Conv2D, strides: Sequence[tuple[int, int]]) -> Conv2D:
    """Return the layer with the first of ``strides`` that gives the same windows, as any stride
    does along an axis with one window; the layer itself if none does."""
    if layer.stride in strides:
        return layer
    for stride in strides:
        axes = zip(layer.output_shape[:2], layer.stride, stride, strict=True)
        if all(windows == 1 or own == asked for windows, own, asked in axes):
            other = replace(layer, stride=stride, padding=layer.pads)
            if other.output_shape == layer.output_shape:
                return other
    return layer


def as_dense(layer: Conv2D) -> Conv2D:
    """Return a depthwise layer of one channel as the plain convolution that it is; any other layer
    unchanged."""
    if layer.depthwise and layer.input_shape[2] == 1:
        return replace(layer, weights=layer.weights.transpose(3, 1, 2, 0), depthwise=False)
    return layer


def behind(size: int, outputs: int, kernel: int, stride: int, before: int, apart: int = 1) -> int:
    """Return how many cells the last window reaches past the end of an axis of ``size`` cells; the
    first window begins ``before`` cells before the axis.

    The number is negative if no window holds the last cells of the axis; ``apart`` is the
    dilation.

    >>> behind(8, 4, 3, 2, 0), behind(8, 3, 3, 2, 0)
    (1, -1)
    """
    return (outputs - 1) * stride + (kernel - 1) * apart + 1 - size - before


def padding_names(layer: Conv2D, names: Sequence[Any] = PADDINGS) -> list[str]:
    """Return the paddings among ``names`` that give the layer its border, in the order of
    ``names``."""
    found = []
    for name in dict.fromkeys(names):
        if name in PADDINGS:
            shape = layer.input_shape, layer.kernel, layer.stride, layer.dilation
            if pads(name, *shape) == layer.pads:
                found.append(name)
    return found
