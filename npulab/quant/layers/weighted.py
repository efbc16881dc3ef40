"""Layers with weights: convolutions and fully connected layers."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, wraps
from typing import Any, TypeVar

from numpy import ndarray as Array

from npulab.quant.layers.checks import (
    PADDINGS,
    UNIT,
    Pair,
    Shape3,
    activation_text,
    by_axis,
    check_output,
    check_quantization,
    check_size,
    check_window,
    checked_bias,
    checked_bits,
    checked_dtype,
    checked_groups,
    checked_padding,
    checked_shape,
    checked_weights,
    kind_text,
    output_dtype,
    output_size,
    padding_text,
    pads,
    quantization_parameters,
    shape_text,
    store,
    weight_parameters,
    weight_text,
    whole,
    window_parameters,
    window_text,
)
from npulab.quant.rules import QuantParams

Layer = TypeVar("Layer")


def _formerly(old: str, new: str) -> Callable[[type[Layer]], type[Layer]]:
    """Return a class decorator for a parameter that was renamed: the keyword and attribute ``old``
    still work in place of ``new``, with a DeprecationWarning.
    """

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

    ``weights`` are OHWI, or 1HWC if depthwise, with C a multiple of the input channels; they are
    uint8, int8 or float16. ``bias`` is ``(O,)``: whole numbers in units of input scale * weight
    scale, within int32 (2**52 if the input is int16), or real numbers if the input is real. None
    stands for zeros. ``input_shape`` is (H, W, C), ``stride`` and ``dilation`` are (h, w),
    ``padding`` is "same", "valid" or ((top, bottom), (left, right)). ``dtype`` is the type of input
    and output: by default that of the weights, "int16" (int16 activations, int8 weights) or
    "float32" (hybrid: the input is quantized when it arrives).

    If weights are float16, ``groups`` is the number of groups into which the channels of input and
    output are divided: group n of the output is computed from group n of the input, and weights
    have I = C / groups. If outputs are codes, ``activation`` may also be "leaky>>N": before the
    clamp, the distance of a code below the zero point from the zero point is shifted right by N
    bits, rounded down. If ``output`` is "sums", a layer of 8 bits gives its accumulators as int32,
    with or without ReLU; the output scale does not change them.
    ``weight_bits`` is the width of a stored weight, 1, 2, 4 or 8 bits; it does not change the
    arithmetic. ``driver_quirks`` are habits of a driver that a ``lift`` saw, by a target's own
    names. They do not change the arithmetic; ``lower`` repeats them.

    Raises ValueError, which names the parameter, for shapes or values that do not go together.
    """

    weights: Array
    bias: Array
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
    output: str = "codes"
    weight_bits: int = 8

    def __post_init__(self) -> None:
        weights = checked_weights(self.weights, 4)
        shape = checked_shape(self.input_shape)
        if self.depthwise and (weights.shape[0] != 1 or weights.shape[3] % shape[2]):
            raise ValueError(
                f"weights: got {weights.shape}, allowed is 1HWC with C a multiple of "
                f"{shape[2]} input channels"
            )
        groups = checked_groups(self.groups, weights, shape, self.depthwise)
        if not self.depthwise and weights.shape[3] * groups != shape[2]:
            of = ""
            if groups > 1:
                of = f" in {groups} groups"
            raise ValueError(
                f"weights: got {weights.shape[3]} input channels, allowed is {shape[2] // groups}, "
                f"the channels of input_shape{of}"
            )
        outputs = weights.shape[3 if self.depthwise else 0]
        dtype = checked_dtype(self.dtype, weights)
        bias = checked_bias(self.bias, outputs, dtype)
        check_quantization(self, dtype, outputs)
        check_output(self, dtype)
        check_window(self, ("stride", "dilation"))
        store(
            self,
            weights=weights,
            bias=bias,
            input_shape=shape,
            dtype=dtype,
            groups=groups,
            padding=checked_padding(self.padding),
            weight_bits=checked_bits(self.weight_bits, weights),
        )
        check_size(self)

    @property
    def kernel(self) -> Pair:
        """(kernel_h, kernel_w)."""
        return self.weights.shape[1], self.weights.shape[2]

    @property
    def op(self) -> str:
        """ "conv" or "depthwise"."""
        if self.depthwise:
            return "depthwise"
        return "conv"

    @cached_property
    def pads(self) -> tuple[Pair, Pair]:
        """((top, bottom), (left, right)): rows and columns of border. If "same" needs an odd number
        of them, the bottom or the right has one more.
        """
        return pads(self.padding, self.input_shape, self.kernel, self.stride, self.dilation)

    @cached_property
    def output_shape(self) -> Shape3:
        """(H, W, C) of the output.

        >>> import numpy as np
        >>> weights = np.zeros((4, 3, 3, 1), np.uint8)
        >>> Conv2D(weights, np.zeros(4, int), (8, 8, 1), stride=(2, 2)).output_shape
        (3, 3, 4)
        """
        height, width = output_size(self)
        return height, width, self.weights.shape[3 if self.depthwise else 0]

    @property
    def parameters(self) -> dict[str, Any]:
        """The layer in plain numbers and names, as columns of a sweep."""
        grouped = {}
        if self.groups > 1:
            grouped = {"groups": self.groups}
        return {
            "op": "conv2d",
            **window_parameters(self),
            **by_axis("dilation", "hw", self.dilation),
            "depthwise": self.depthwise,
            **grouped,
            **weight_parameters(self),
            **quantization_parameters(self),
        }

    output_dtype = property(output_dtype)

    def __repr__(self) -> str:
        return f"Conv2D({kind_text(self)}{window_text(self)}{weight_text(self)})"


@dataclass(frozen=True, eq=False)
class FullyConnected:
    """A quantized fully connected layer: ``weights`` are ``(O, I)``, ``bias`` ``(O,)``.

    Types, bias, ``dtype``, ``output`` and ``weight_bits`` are as in ``Conv2D``. The input is
    ``(..., I)``, or ``(H, W, C)`` with I elements in all. Raises ValueError, which names the
    parameter, for shapes or values that do not go together.
    """

    weights: Array
    bias: Array
    activation: str | None = None
    input_q: QuantParams = UNIT
    weight_q: QuantParams = UNIT
    output_q: QuantParams = UNIT
    dtype: str = ""
    output: str = "codes"
    weight_bits: int = 8
    op = "fully_connected"

    def __post_init__(self) -> None:
        weights = checked_weights(self.weights, 2)
        dtype = checked_dtype(self.dtype, weights)
        bias = checked_bias(self.bias, len(weights), dtype)
        check_quantization(self, dtype, len(weights))
        check_output(self, dtype)
        bits = checked_bits(self.weight_bits, weights)
        store(self, weights=weights, bias=bias, dtype=dtype, weight_bits=bits)

    @property
    def input_shape(self) -> tuple[int]:
        """(I,), the number of inputs."""
        return (self.weights.shape[1],)

    @property
    def output_shape(self) -> tuple[int]:
        """(O,), the number of outputs."""
        return (self.weights.shape[0],)

    @property
    def parameters(self) -> dict[str, Any]:
        """The layer in plain numbers and names, as columns of a sweep."""
        return {
            "op": self.op,
            "input_c": self.input_shape[0],
            "output_c": self.output_shape[0],
            **weight_parameters(self),
            **quantization_parameters(self),
        }

    output_dtype = property(output_dtype)

    def __repr__(self) -> str:
        return (
            f"FullyConnected({self.input_shape[0]} -> {self.output_shape[0]}, {self.dtype}"
            f"{activation_text(self)}{weight_text(self)})"
        )


@dataclass(frozen=True, eq=False)
class Conv1D:
    """A quantized 1-D convolution. ``weights`` are ``(O, K, I)``, or ``(1, K, C)`` if depthwise;
    the input is ``(L, C)``.

    ``stride`` and ``dilation`` are whole numbers, ``padding`` is "same", "valid" or (before,
    after). The remaining parameters are as in ``Conv2D``. ``image`` is a 2-D convolution over an
    image of one row that gives the same numbers. Raises ValueError, which names the parameter, for
    shapes or values that do not go together.

    >>> import numpy as np
    >>> Conv1D(np.zeros((4, 3, 2), np.int8), np.zeros(4, int), (8, 2)).output_shape
    (6, 4)
    """

    weights: Array
    bias: Array
    input_shape: Pair
    stride: int = 1
    padding: Any = "valid"
    dilation: int = 1
    depthwise: bool = False
    activation: str | None = None
    input_q: QuantParams = UNIT
    weight_q: QuantParams = UNIT
    output_q: QuantParams = UNIT
    dtype: str = ""
    groups: int = 1
    output: str = "codes"
    weight_bits: int = 8
    image: Conv2D = field(init=False, repr=False)
    op = "conv1d"

    def __post_init__(self) -> None:
        weights, shape = checked_weights(self.weights, 3), whole(self.input_shape)
        if len(shape) != 2 or min(shape) < 1:
            raise ValueError(
                f"input_shape: got {self.input_shape}, allowed is (L, C), each at least 1"
            )
        for name in ("stride", "dilation"):
            if not whole([getattr(self, name)]) or getattr(self, name) < 1:
                raise ValueError(
                    f"{name}: got {getattr(self, name)!r}, allowed is a whole number, at least 1"
                )
        padding = around = self.padding
        if not isinstance(padding, str) or padding not in PADDINGS:
            padding = whole(padding)
            # the image has one row: its border lies before and after that row
            around = (0, 0), padding
            if len(padding) != 2 or min(padding) < 0:
                raise ValueError(
                    f'padding: got {self.padding!r}, allowed is "same", "valid" or (before, '
                    "after), none negative"
                )
        image = Conv2D(
            weights[:, None],
            self.bias,
            (1, *shape),
            (1, self.stride),
            around,
            (1, self.dilation),
            self.depthwise,
            self.activation,
            self.input_q,
            self.weight_q,
            self.output_q,
            dtype=self.dtype,
            groups=self.groups,
            output=self.output,
            weight_bits=self.weight_bits,
        )
        store(self, weights=weights, bias=image.bias, input_shape=shape)
        store(self, padding=padding, dtype=image.dtype, image=image)

    output_dtype = property(output_dtype)

    @property
    def output_shape(self) -> Pair:
        """(L, C) of the output."""
        return self.image.output_shape[1:]

    @property
    def parameters(self) -> dict[str, Any]:
        """The layer in plain numbers and names, as columns of a sweep."""
        return {
            "op": self.op,
            **by_axis("input", "wc", self.input_shape),
            **by_axis("output", "wc", self.output_shape),
            "kernel_w": self.weights.shape[1],
            "stride_w": self.stride,
            "padding": padding_text(self),
            **by_axis("pad", ("left", "right"), self.image.pads[1]),
            "dilation_w": self.dilation,
            "depthwise": self.depthwise,
            **weight_parameters(self),
            **quantization_parameters(self),
        }

    def __repr__(self) -> str:
        return (
            f"Conv1D({kind_text(self)}{self.weights.shape[1]}, {shape_text(self.input_shape)} -> "
            f"{shape_text(self.output_shape)}, stride {self.stride}, padding {self.padding}"
            f"{activation_text(self)}{weight_text(self)})"
        )


Weighted = Conv2D | FullyConnected
