"""Layers in the form that an NPU needs: all codes of one type, a fully connected layer as a
convolution, padding by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from npulab.npus.kit.numbers import SIGNED, as_codes
from npulab.quant.layers import PADDINGS, Conv2D, FullyConnected, QuantParams, pads


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


def behind(size: int, outputs: int, kernel: int, stride: int, before: int, apart: int = 1) -> int:
    """Return how many cells the last window reaches past the end of an axis of ``size`` cells; the
    first window begins ``before`` cells before the axis.

    The number is negative if the last cells of the axis are in no window; ``apart`` is the
    dilation.

    >>> behind(8, 4, 3, 2, 0), behind(8, 3, 3, 2, 0)
    (1, -1)
    """
    return (outputs - 1) * stride + (kernel - 1) * apart + 1 - size - before


def padding_names(layer: Conv2D, names: Sequence[Any] = PADDINGS) -> list[str]:
    """Return those of ``names`` that are paddings and give the layer its border, in their order."""
    found = []
    for name in dict.fromkeys(names):
        if name in PADDINGS:
            shape = layer.input_shape, layer.kernel, layer.stride, layer.dilation
            if pads(name, *shape) == layer.pads:
                found.append(name)
    return found
