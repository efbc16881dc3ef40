"""Layers as an NPU wants them: of one type of code, as convolutions, with a border by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from npulab.npus.kit.numbers import SIGNED, as_codes
from npulab.quant.layers import PADDINGS, Conv2D, FullyConnected, QuantParams, pads


def of_type(layer: Any, dtype: str) -> Any:
    """The layer with codes and zero points of ``dtype``, int8 or uint8, in place of the other."""
    if dtype == "uint8":
        by = SIGNED
    else:
        by = -SIGNED
    if layer.dtype == dtype:
        tensors = []
    else:
        tensors = ["input_q", "other_q", "output_q"]
    changed: dict[str, Any] = {"dtype": dtype}
    if hasattr(layer, "weights") and layer.weights.dtype != dtype:
        changed["weights"] = as_codes(layer.weights, dtype)
        tensors.append("weight_q")
    changed |= {
        name: QuantParams(q.scale, q.zero_point + by)
        for name in tensors
        if (q := getattr(layer, name, None)) is not None
    }
    return replace(layer, **changed)


def as_1x1(layer: FullyConnected) -> Conv2D:
    """The convolution over one pixel that a fully connected layer is."""
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
    """How far windows reach behind an image of ``size``, whose first begins ``before`` it.

    Negative if the last cells of the image are in no window; ``apart`` is the dilation.

    >>> behind(8, 4, 3, 2, 0), behind(8, 3, 3, 2, 0)
    (1, -1)
    """
    return (outputs - 1) * stride + (kernel - 1) * apart + 1 - size - before


def padding_names(layer: Conv2D, names: Sequence[Any] = PADDINGS) -> list[str]:
    """Those of the names, in order, that give the layer's border."""
    return [
        name
        for name in dict.fromkeys(names)
        if name in PADDINGS
        and pads(name, layer.input_shape, layer.kernel, layer.stride, layer.dilation) == layer.pads
    ]
