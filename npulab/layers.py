"""Layers: parameters, weights, bias and quantization, as a model states them."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from npulab.quant import QuantParams

ACTIVATIONS = (None, "relu", "relu6", "relu_n1_to_1")
UNIT = QuantParams(1.0)
Pair = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Conv2D:
    """A quantized 2-D convolution.

    ``weights`` are OHWI, depthwise 1HWC with ``C = multiplier * input channels``; uint8 or int8.
    ``bias`` is ``(O,) int32`` in units of input scale * weight scale.  ``input_shape`` is (H, W, C),
    ``stride`` and ``dilation`` (h, w), ``padding`` "same", "valid" or ((top, bottom), (left, right)).
    ``habits`` are names in a target's own vocabulary: what a ``lift`` saw the driver do that does
    not change the arithmetic, so that ``lower`` can do it again.

    Raises ValueError naming the parameter where shapes or values do not go together.
    """

    weights: np.ndarray
    bias: np.ndarray
    input_shape: tuple[int, int, int]
    stride: Pair = (1, 1)
    padding: Any = "valid"
    dilation: Pair = (1, 1)
    depthwise: bool = False
    activation: str | None = None
    input_q: QuantParams = UNIT
    weight_q: QuantParams = UNIT
    output_q: QuantParams = UNIT
    habits: frozenset[str] = field(default=frozenset(), repr=False)

    def __post_init__(self) -> None:
        weights, bias = np.asarray(self.weights), np.asarray(self.bias)
        if weights.ndim != 4 or weights.dtype not in (np.uint8, np.int8) or 0 in weights.shape:
            raise ValueError(f"weights: got shape {weights.shape} {weights.dtype}, allowed is 4 axes of "
                             "uint8 or int8, none empty")
        shape = _whole(self.input_shape)
        if len(shape) != 3 or min(shape) < 1:
            raise ValueError(f"input_shape: got {self.input_shape}, allowed is (H, W, C), each at least 1")
        if self.depthwise and (weights.shape[0] != 1 or weights.shape[3] % shape[2]):
            raise ValueError(f"weights: got {weights.shape}, allowed is 1HWC with C a multiple of "
                             f"{shape[2]} input channels")
        if not self.depthwise and weights.shape[3] != shape[2]:
            raise ValueError(f"weights: got {weights.shape[3]} input channels, allowed is {shape[2]} as in "
                             "input_shape")
        outputs = weights.shape[3 if self.depthwise else 0]
        if bias.shape != (outputs,) or bias.dtype.kind not in "iu" \
                or np.any(bias.astype(np.int64) != bias.astype(np.int32)):
            raise ValueError(f"bias: got shape {bias.shape} {bias.dtype}, allowed is ({outputs},) within int32")
        for name in ("input_q", "weight_q", "output_q"):
            if not isinstance(getattr(self, name), QuantParams):
                raise ValueError(f"{name}: got {getattr(self, name)!r}, allowed is QuantParams(scale, zero_point)")
        scale = self.weight_q.scale
        if isinstance(scale, tuple) and len(scale) != outputs:
            raise ValueError(f"weight_q: got {len(scale)} scales, allowed is 1 or {outputs}")
        for name, one in (("input_q", self.input_q), ("output_q", self.output_q)):
            if isinstance(one.scale, tuple):
                raise ValueError(f"{name}: got {len(one.scale)} scales, allowed is 1")
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"activation: got {self.activation!r}, allowed is one of {ACTIVATIONS}")
        for name in ("stride", "dilation"):
            value = getattr(self, name)
            if np.shape(value) != (2,) or np.asarray(value).dtype.kind not in "iu" or min(value) < 1:
                raise ValueError(f"{name}: got {value!r}, allowed is (h, w), each at least 1")
            object.__setattr__(self, name, tuple(int(n) for n in value))
        object.__setattr__(self, "weights", weights)
        object.__setattr__(self, "bias", bias.astype(np.int32))
        object.__setattr__(self, "input_shape", shape)
        object.__setattr__(self, "padding", _padding(self.padding))
        if min(self.output_shape) < 1:
            raise ValueError(f"input_shape: got {shape}, too small for a kernel of {self.kernel} with "
                             f"padding {self.padding}")

    @property
    def kernel(self) -> Pair:
        """(kernel_h, kernel_w)."""
        return self.weights.shape[1], self.weights.shape[2]

    @property
    def pads(self) -> tuple[Pair, Pair]:
        """((top, bottom), (left, right)) rows and columns of border; "same" puts the odd one behind."""
        return pads(self.padding, self.input_shape, self.kernel, self.stride, self.dilation)

    @property
    def output_shape(self) -> tuple[int, int, int]:
        """(H, W, C) of the output.

        >>> Conv2D(np.zeros((4, 3, 3, 1), np.uint8), np.zeros(4, int), (8, 8, 1), (2, 2)).output_shape
        (3, 3, 4)
        """
        sizes = [(size + sum(pad) - (kernel - 1) * dilation - 1) // stride + 1
                 for size, pad, kernel, stride, dilation
                 in zip(self.input_shape, self.pads, self.kernel, self.stride, self.dilation, strict=False)]
        return sizes[0], sizes[1], self.weights.shape[3 if self.depthwise else 0]

    @property
    def parameters(self) -> dict[str, Any]:
        """What a person knows of the layer, as plain numbers and names."""
        (top, bottom), (left, right) = self.pads
        return {
            "op": "conv2d", "input_h": self.input_shape[0], "input_w": self.input_shape[1],
            "input_channels": self.input_shape[2], "output_h": self.output_shape[0],
            "output_w": self.output_shape[1], "output_channels": self.output_shape[2],
            "kernel_h": self.kernel[0], "kernel_w": self.kernel[1], "stride_h": self.stride[0],
            "stride_w": self.stride[1], "padding": self.padding if isinstance(self.padding, str) else "explicit",
            "pad_top": top, "pad_bottom": bottom, "pad_left": left, "pad_right": right,
            "dilation_h": self.dilation[0], "dilation_w": self.dilation[1], "depthwise": self.depthwise,
            "activation": self.activation, "input_scale": self.input_q.scale,
            "input_zero_point": self.input_q.zero_point, "weight_scale": self.weight_q.scale,
            "weight_zero_point": self.weight_q.zero_point, "output_scale": self.output_q.scale,
            "output_zero_point": self.output_q.zero_point}

    def __repr__(self) -> str:
        kind = "depthwise " if self.depthwise else ""
        return (f"Conv2D({kind}{'x'.join(map(str, self.kernel))}, {_shape(self.input_shape)} -> "
                f"{_shape(self.output_shape)}, stride {self.stride[0]}x{self.stride[1]}, padding "
                f"{self.padding}{', ' + self.activation if self.activation else ''})")


def pads(padding: Any, input_shape: tuple[int, ...], kernel: Pair, stride: Pair = (1, 1), dilation: Pair = (1, 1),
         ) -> tuple[Pair, Pair]:
    """((top, bottom), (left, right)) of a padding given by name or by numbers.

    >>> pads("same", (8, 9, 1), (3, 3), (2, 2))
    ((0, 1), (1, 1))
    """
    if padding not in ("same", "valid"):
        return padding
    out = []
    for size, k, step, spread in zip(input_shape, kernel, stride, dilation, strict=False):
        total = max((-(-size // step) - 1) * step + (k - 1) * spread + 1 - size, 0) if padding == "same" else 0
        out.append((total // 2, total - total // 2))
    return out[0], out[1]


def _whole(numbers: Any) -> tuple[int, ...]:
    """The numbers as plain ints; none of them where one is not whole."""
    try:
        return tuple(operator.index(n) for n in numbers)
    except TypeError:
        return ()


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def _padding(padding: Any) -> Any:
    if padding in ("same", "valid"):
        return padding
    try:
        (top, bottom), (left, right) = padding
        pads = (operator.index(top), operator.index(bottom)), (operator.index(left), operator.index(right))
    except (TypeError, ValueError):
        pads = (-1, -1), (-1, -1)
    if min(min(pads)) < 0:
        raise ValueError(f'padding: got {padding!r}, allowed is "same", "valid" or '
                         "((top, bottom), (left, right)), none negative")
    return pads
