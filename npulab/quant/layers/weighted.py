"""Layers with weights: convolutions and fully connected ones."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, wraps
from typing import Any, TypeVar

import numpy as np

from npulab.quant.layers.checks import (
    UNIT,
    Pair,
    Shape3,
    check_quantization,
    check_size,
    check_window,
    checked_bias,
    checked_dtype,
    checked_groups,
    checked_padding,
    checked_shape,
    checked_weights,
    output_size,
    pads,
    quantization_parameters,
    window_parameters,
    window_text,
)
from npulab.quant.rules import QuantParams

Layer = TypeVar("Layer")

def _formerly(old: str, new: str) -> Callable[[type[Layer]], type[Layer]]:
    """A class decorator: the keyword and the attribute ``old`` still mean ``new``, with a
    DeprecationWarning."""
    def warn() -> None:
        warnings.warn(f"{old} is now {new}", DeprecationWarning, stacklevel=3)

    def renamed(layer: type[Layer]) -> type[Layer]:
        plain = layer.__init__

        @wraps(plain)
        def init(self: Layer, *values: Any, **named: Any) -> None:
            if old in named:
                warn()
                named[new] = named.pop(old)
            plain(self, *values, **named)

        def former(self: Layer) -> Any:
            warn()
            return getattr(self, new)

        setattr(layer, "__init__", init)  # noqa: B010 (mypy refuses to assign a method)
        setattr(layer, old, property(former))
        return layer
    return renamed


@_formerly("habits", "driver_quirks")
@dataclass(frozen=True, eq=False)
class Conv2D:
    """A quantized 2-D convolution.

    ``weights`` are OHWI, depthwise 1HWC with ``C = multiplier * input channels``; uint8, int8 or
    float16. ``bias`` is ``(O,)`` whole numbers in units of input scale * weight scale, within int32
    (2**52 where the input is int16); real numbers where the input is.  ``input_shape`` is (H, W,
    C), ``stride`` and ``dilation`` (h, w), ``padding`` "same", "valid" or ((top, bottom), (left,
    right)). ``dtype`` is the type of input and output: that of the weights where it is not said,
    "int16" (int16 activations, int8 weights) or "float32" (hybrid: the input is quantized as it
    comes). ``groups`` of float16 weights divide input and output channels into as many, in order,
    each group of outputs made of its own inputs: the weights have I = C / groups.
    ``driver_quirks`` are names in a target's own vocabulary: what a ``lift`` saw the driver do that
    does not change the arithmetic, so that ``lower`` can do it again.

    Raises ValueError naming the parameter where shapes or values do not go together.
    """

    weights: np.ndarray
    bias: np.ndarray
    input_shape: Shape3
    stride: Pair = (1, 1)
    padding: Any = "valid"
    dilation: Pair = (1, 1)
    depthwise: bool = False
    activation: str | None = None
    input_q: QuantParams = UNIT
    weight_q: QuantParams = UNIT
    output_q: QuantParams = UNIT
    driver_quirks: frozenset[str] = field(default=frozenset(), repr=False)
    dtype: str = ""
    groups: int = 1

    def __post_init__(self) -> None:
        weights = checked_weights(self.weights, 4)
        shape = checked_shape(self.input_shape)
        if self.depthwise and (weights.shape[0] != 1 or weights.shape[3] % shape[2]):
            raise ValueError(f"weights: got {weights.shape}, allowed is 1HWC with C a multiple of "
                             f"{shape[2]} input channels")
        groups = checked_groups(self.groups, weights, shape, self.depthwise)
        if not self.depthwise and weights.shape[3] * groups != shape[2]:
            of = f", in {groups} groups" if groups > 1 else ""
            raise ValueError(f"weights: got {weights.shape[3]} input channels, allowed is {shape[2] // groups} as in "
                             f"input_shape{of}")
        outputs = weights.shape[3 if self.depthwise else 0]
        dtype = checked_dtype(self.dtype, weights)
        bias = checked_bias(self.bias, outputs, dtype)
        check_quantization(self, dtype, outputs)
        check_window(self, ("stride", "dilation"))
        for name, value in (("weights", weights), ("bias", bias), ("input_shape", shape), ("dtype", dtype),
                            ("groups", groups), ("padding", checked_padding(self.padding))):
            object.__setattr__(self, name, value)
        check_size(self)

    @property
    def kernel(self) -> Pair:
        """(kernel_h, kernel_w)."""
        return self.weights.shape[1], self.weights.shape[2]

    @property
    def op(self) -> str:
        """"conv" or "depthwise"."""
        return "depthwise" if self.depthwise else "conv"

    @cached_property
    def pads(self) -> tuple[Pair, Pair]:
        """((top, bottom), (left, right)) rows and columns of border; "same" puts the odd one
        behind."""
        return pads(self.padding, self.input_shape, self.kernel, self.stride, self.dilation)

    @cached_property
    def output_shape(self) -> Shape3:
        """(H, W, C) of the output.

        >>> Conv2D(np.zeros((4, 3, 3, 1), np.uint8), np.zeros(4, int), (8, 8, 1), (2, 2)).output_shape
        (3, 3, 4)
        """
        height, width = output_size(self)
        return height, width, self.weights.shape[3 if self.depthwise else 0]

    @property
    def parameters(self) -> dict[str, Any]:
        """What a person knows of the layer, as plain numbers and names."""
        grouped = {"groups": self.groups} if self.groups > 1 else {}
        return {"op": "conv2d", **window_parameters(self), "dilation_h": self.dilation[0],
                "dilation_w": self.dilation[1], "depthwise": self.depthwise, **grouped, **quantization_parameters(self)}

    def __repr__(self) -> str:
        kind = "depthwise " if self.depthwise else f"{self.groups} groups " if self.groups > 1 else ""
        return f"Conv2D({kind}{window_text(self)})"


@dataclass(frozen=True, eq=False)
class FullyConnected:
    """A quantized fully connected layer: ``weights`` are ``(O, I)``, ``bias`` ``(O,)``.

    Types, bias and ``dtype`` as in ``Conv2D``.  The input is ``(..., I)`` or an ``(H, W, C)`` of as
    many. Raises ValueError naming the parameter where shapes or values do not go together.
    """

    weights: np.ndarray
    bias: np.ndarray
    activation: str | None = None
    input_q: QuantParams = UNIT
    weight_q: QuantParams = UNIT
    output_q: QuantParams = UNIT
    dtype: str = ""
    op = "fully_connected"

    def __post_init__(self) -> None:
        weights = checked_weights(self.weights, 2)
        dtype = checked_dtype(self.dtype, weights)
        bias = checked_bias(self.bias, len(weights), dtype)
        check_quantization(self, dtype, len(weights))
        for name, value in (("weights", weights), ("bias", bias), ("dtype", dtype)):
            object.__setattr__(self, name, value)

    @property
    def input_shape(self) -> tuple[int]:
        """(I,)."""
        return (self.weights.shape[1],)

    @property
    def output_shape(self) -> tuple[int]:
        """(O,)."""
        return (self.weights.shape[0],)

    @property
    def parameters(self) -> dict[str, Any]:
        """What a person knows of the layer, as plain numbers and names."""
        return {"op": self.op, "input_channels": self.input_shape[0], "output_channels": self.output_shape[0],
                **quantization_parameters(self)}

    def __repr__(self) -> str:
        return (f"FullyConnected({self.input_shape[0]} -> {self.output_shape[0]}, {self.dtype}"
                f"{', ' + self.activation if self.activation else ''})")
