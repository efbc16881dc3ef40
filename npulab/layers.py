"""Layers: parameters, weights, bias and quantization, as a model states them."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from npulab.quant import QUANTIZED, QuantParams

ACTIVATIONS = (None, "relu", "relu6", "relu_n1_to_1")
POOLS = ("average", "max", "min")
PADDINGS = ("same", "valid")
# input and output type by the type of the weights; the first is the usual one
TYPES = {"int8": ("int8", "uint8", "int16", "float32"), "uint8": ("uint8", "int8"), "float16": ("float16",)}
UNIT = QuantParams(1.0)
MOST_OUTPUTS = 2 ** 31
# zero points: tensors of 8 bits may be read as either type
HOLDS = {"int16": (-2 ** 15, 2 ** 15 - 1), "int8": (-128, 255), "uint8": (-128, 255)}
Pair = tuple[int, int]
Shape3 = tuple[int, int, int]


@dataclass(frozen=True, eq=False)
class Conv2D:
    """A quantized 2-D convolution.

    ``weights`` are OHWI, depthwise 1HWC with ``C = multiplier * input channels``; uint8, int8 or float16.
    ``bias`` is ``(O,)`` whole numbers in units of input scale * weight scale, within int32 (2**52 where
    the input is int16); real numbers where the input is.  ``input_shape`` is (H, W, C),
    ``stride`` and ``dilation`` (h, w), ``padding`` "same", "valid" or ((top, bottom), (left, right)).
    ``dtype`` is the type of input and output: that of the weights where it is not said, "int16" (int16
    activations, int8 weights) or "float32" (hybrid: the input is quantized as it comes).
    ``habits`` are names in a target's own vocabulary: what a ``lift`` saw the driver do that does
    not change the arithmetic, so that ``lower`` can do it again.

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
    habits: frozenset[str] = field(default=frozenset(), repr=False)
    dtype: str = ""

    def __post_init__(self) -> None:
        weights = _weights(self.weights, 4)
        shape = _input_shape(self.input_shape)
        if self.depthwise and (weights.shape[0] != 1 or weights.shape[3] % shape[2]):
            raise ValueError(f"weights: got {weights.shape}, allowed is 1HWC with C a multiple of "
                             f"{shape[2]} input channels")
        if not self.depthwise and weights.shape[3] != shape[2]:
            raise ValueError(f"weights: got {weights.shape[3]} input channels, allowed is {shape[2]} as in "
                             "input_shape")
        outputs = weights.shape[3 if self.depthwise else 0]
        dtype = _dtype(self.dtype, weights)
        bias = _bias(self.bias, outputs, dtype)
        _quantization(self, dtype, outputs)
        _window(self, ("stride", "dilation"))
        for name, value in (("weights", weights), ("bias", bias), ("input_shape", shape), ("dtype", dtype),
                            ("padding", _padding(self.padding))):
            object.__setattr__(self, name, value)
        _fits(self)

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
        """((top, bottom), (left, right)) rows and columns of border; "same" puts the odd one behind."""
        return pads(self.padding, self.input_shape, self.kernel, self.stride, self.dilation)

    @cached_property
    def output_shape(self) -> Shape3:
        """(H, W, C) of the output.

        >>> Conv2D(np.zeros((4, 3, 3, 1), np.uint8), np.zeros(4, int), (8, 8, 1), (2, 2)).output_shape
        (3, 3, 4)
        """
        height, width = _output_size(self)
        return height, width, self.weights.shape[3 if self.depthwise else 0]

    @property
    def parameters(self) -> dict[str, Any]:
        """What a person knows of the layer, as plain numbers and names."""
        return {"op": "conv2d", **_window_parameters(self), "dilation_h": self.dilation[0],
                "dilation_w": self.dilation[1], "depthwise": self.depthwise, **_quantization_parameters(self)}

    def __repr__(self) -> str:
        kind = "depthwise " if self.depthwise else ""
        return f"Conv2D({kind}{_window_text(self)})"


@dataclass(frozen=True, eq=False)
class FullyConnected:
    """A quantized fully connected layer: ``weights`` are ``(O, I)``, ``bias`` ``(O,)``.

    Types, bias and ``dtype`` as in ``Conv2D``.  The input is ``(..., I)`` or an ``(H, W, C)`` of as many.
    Raises ValueError naming the parameter where shapes or values do not go together.
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
        weights = _weights(self.weights, 2)
        dtype = _dtype(self.dtype, weights)
        bias = _bias(self.bias, len(weights), dtype)
        _quantization(self, dtype, len(weights))
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
                **_quantization_parameters(self)}

    def __repr__(self) -> str:
        return (f"FullyConnected({self.input_shape[0]} -> {self.output_shape[0]}, {self.dtype}"
                f"{', ' + self.activation if self.activation else ''})")


@dataclass(frozen=True, eq=False)
class Pool2D:
    """Average, maximum or minimum of windows of ``kernel`` (h, w); the border counts for nothing.

    ``dtype`` is "int8", "uint8", "int16" or "float16"; output scale and zero point are the input's.
    Raises ValueError naming the parameter where values do not go together.
    """

    kind: str
    kernel: Pair
    input_shape: Shape3
    stride: Pair = (1, 1)
    padding: Any = "valid"
    activation: str | None = None
    input_q: QuantParams = UNIT
    output_q: QuantParams | None = None
    dtype: str = "int8"
    dilation = (1, 1)

    def __post_init__(self) -> None:
        if self.kind not in POOLS:
            raise ValueError(f"kind: got {self.kind!r}, allowed is one of {', '.join(POOLS)}")
        object.__setattr__(self, "input_shape", _input_shape(self.input_shape))
        if self.output_q is None:
            object.__setattr__(self, "output_q", self.input_q)
        _plain_type(self.dtype)
        _quantization(self, self.dtype, self.input_shape[2])
        if self.output_q != self.input_q:
            raise ValueError(f"output_q: got {self.output_q}, allowed is that of the input, {self.input_q}")
        _window(self, ("kernel", "stride"))
        object.__setattr__(self, "padding", _padding(self.padding))
        _fits(self)
        if any(before >= size or after >= size
               for (before, after), size in zip(self.pads, self.kernel, strict=True)):
            raise ValueError(f"padding: got {self.padding}, allowed is less than the kernel of {self.kernel}, so that "
                             "every window holds an element")

    @property
    def op(self) -> str:
        """"average_pool", "max_pool" or "min_pool"."""
        return f"{self.kind}_pool"

    @cached_property
    def pads(self) -> tuple[Pair, Pair]:
        """((top, bottom), (left, right)) rows and columns of border."""
        return pads(self.padding, self.input_shape, self.kernel, self.stride)

    @cached_property
    def output_shape(self) -> Shape3:
        """(H, W, C) of the output."""
        height, width = _output_size(self)
        return height, width, self.input_shape[2]

    @property
    def parameters(self) -> dict[str, Any]:
        """What a person knows of the layer, as plain numbers and names."""
        return {"op": self.op, **_window_parameters(self), **_quantization_parameters(self)}

    def __repr__(self) -> str:
        return f"Pool2D({self.kind} {_window_text(self)}, {self.dtype})"


@dataclass(frozen=True, eq=False)
class Add:
    """The sum of two tensors of one shape: its input is the pair of them.

    ``dtype`` is "int8", "uint8", "int16" (zero points 0) or "float16".
    Raises ValueError naming the parameter where values do not go together.
    """

    input_shape: tuple[int, ...]
    activation: str | None = None
    input_q: QuantParams = UNIT
    other_q: QuantParams = UNIT
    output_q: QuantParams = UNIT
    dtype: str = "int8"
    op = "add"

    def __post_init__(self) -> None:
        shape = _whole(self.input_shape)
        if not shape or min(shape) < 1:
            raise ValueError(f"input_shape: got {self.input_shape}, allowed are sizes, each at least 1")
        object.__setattr__(self, "input_shape", shape)
        _plain_type(self.dtype)
        _quantization(self, self.dtype, shape[-1])

    @property
    def output_shape(self) -> tuple[int, ...]:
        """That of each input."""
        return self.input_shape

    @property
    def parameters(self) -> dict[str, Any]:
        """What a person knows of the layer, as plain numbers and names."""
        return {"op": self.op, **{f"input_{axis}": size for axis, size in zip("hwc", self.input_shape, strict=False)},
                "other_scale": self.other_q.scale, "other_zero_point": self.other_q.zero_point,
                **_quantization_parameters(self)}

    def __repr__(self) -> str:
        return f"Add({_shape(self.input_shape)}, {self.dtype}{', ' + self.activation if self.activation else ''})"


Layer = Conv2D | FullyConnected | Pool2D | Add


@dataclass(frozen=True, eq=False)
class Network:
    """Layers in the order they run; ``inputs[i]`` says where layer i takes its input from.

    A source is the number of an earlier layer, or -1 for the network's input; an ``Add`` takes two.  Left
    out, every layer takes what the layer before it gives.
    Raises ValueError naming the layer where a source does not fit.
    """

    layers: tuple[Layer, ...]
    inputs: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        layers = tuple(self.layers) if isinstance(self.layers, list | tuple) else ()
        if not all(isinstance(layer, Conv2D | FullyConnected | Pool2D | Add) for layer in layers):
            raise ValueError(f"network: got {', '.join(sorted({type(one).__name__ for one in layers}))}, allowed are "
                             "Conv2D, FullyConnected, Pool2D and Add")
        try:
            inputs = tuple(tuple(operator.index(n) for n in one) for one in self.inputs)
        except TypeError:
            raise ValueError(f"network: got inputs {self.inputs!r}, allowed is a tuple of layer numbers for each "
                             "layer") from None
        inputs = inputs or tuple((i - 1,) for i in range(len(layers)))
        object.__setattr__(self, "layers", layers)
        object.__setattr__(self, "inputs", inputs)
        if not layers or len(inputs) != len(layers):
            raise ValueError(f"network: got {len(layers)} layers and {len(inputs)} inputs, allowed is one for each "
                             "layer, at least one")
        for i, (layer, sources) in enumerate(zip(layers, inputs, strict=True)):
            need = 2 if isinstance(layer, Add) else 1
            if len(sources) != need or not all(-1 <= source < i for source in sources):
                raise ValueError(f"layer {i}, {layer}: got inputs {sources}, allowed is {need} of -1 to {i - 1}")
            for place, source in enumerate(sources):
                if source >= 0:
                    takes = layer.other_q if isinstance(layer, Add) and place else layer.input_q
                    _joins(i, layer, layers[source], takes)

    def __repr__(self) -> str:
        return f"Network({len(self.layers)} layers, {self.layers[0]} ... {self.layers[-1]})"


def pads(padding: Any, input_shape: tuple[int, ...], kernel: Pair, stride: Pair = (1, 1), dilation: Pair = (1, 1),
         ) -> tuple[Pair, Pair]:
    """((top, bottom), (left, right)) of a padding given by name or by numbers.

    >>> pads("same", (8, 9, 1), (3, 3), (2, 2))
    ((0, 1), (1, 1))
    """
    if padding not in PADDINGS:
        return padding
    out = []
    for size, k, step, spread in zip(input_shape, kernel, stride, dilation, strict=False):
        total = max((-(-size // step) - 1) * step + (k - 1) * spread + 1 - size, 0) if padding == "same" else 0
        out.append((total // 2, total - total // 2))
    return out[0], out[1]


def padding_name(layer: Conv2D | Pool2D, prefer: Any = None) -> str | None:
    """The name that gives the layer's border, also where numbers say the same; None where no name does.

    ``prefer`` is tried first, then the layer's own padding.
    """
    for name in (prefer, layer.padding, "valid", "same"):
        if isinstance(name, str) and name in PADDINGS \
                and pads(name, layer.input_shape, layer.kernel, layer.stride, layer.dilation) == layer.pads:
            return name
    return None


def per_channel(scale: float | tuple[float, ...]) -> bool:
    """Whether there is one scale per channel."""
    return isinstance(scale, tuple)


def _weights(weights: Any, axes: int) -> np.ndarray:
    weights = np.asarray(weights)
    if weights.ndim != axes or weights.dtype.name not in TYPES or 0 in weights.shape:
        raise ValueError(f"weights: got shape {weights.shape} {weights.dtype}, allowed is {axes} axes of "
                         "uint8 or int8 (or float16), none empty")
    if weights.dtype.kind == "f" and not np.all(np.isfinite(weights)):
        raise ValueError("weights: got a value that is not finite, allowed are finite numbers")
    return weights


def _input_shape(given: Any) -> Shape3:
    shape = _whole(given)
    if len(shape) != 3 or min(shape) < 1:
        raise ValueError(f"input_shape: got {given}, allowed is (H, W, C), each at least 1")
    return shape[0], shape[1], shape[2]


def _dtype(given: str, weights: np.ndarray) -> str:
    allowed = TYPES[weights.dtype.name]
    if given and given not in allowed:
        raise ValueError(f"dtype: got {given!r}, allowed with {weights.dtype} weights is {', '.join(allowed)}")
    return given or allowed[0]


def _plain_type(dtype: str) -> None:
    if dtype not in (*QUANTIZED, "float16"):
        raise ValueError(f"dtype: got {dtype!r}, allowed is {', '.join(QUANTIZED)} or float16")


def _bias(bias: Any, outputs: int, dtype: str) -> np.ndarray:
    bias = np.asarray(bias)
    if dtype not in QUANTIZED:
        if bias.shape != (outputs,) or bias.dtype.kind not in "iuf" \
                or not np.all(np.abs(bias) <= float(np.finfo(dtype).max)):
            raise ValueError(f"bias: got shape {bias.shape} {bias.dtype}, allowed is ({outputs},) finite {dtype}")
        return bias.astype(dtype)
    # float64 keeps a sum with this bias exact
    kind, most, words = (np.int64, 2 ** 52, "2**52") if dtype == "int16" else (np.int32, 2 ** 31, "int32")
    if bias.shape != (outputs,) or bias.dtype.kind not in "iu" or np.any((bias < -most) | (bias > most - 1)):
        raise ValueError(f"bias: got shape {bias.shape} {bias.dtype}, allowed is ({outputs},) within {words}")
    return bias.astype(kind)


def _quantization(layer: Any, dtype: str, outputs: int) -> None:
    """Raises ValueError where a scale or zero point does not go with the type, or the activation is unknown."""
    for name in ("input_q", "other_q", "weight_q", "output_q"):
        one = getattr(layer, name, UNIT)
        if not isinstance(one, QuantParams):
            raise ValueError(f"{name}: got {one!r}, allowed is QuantParams(scale, zero_point)")
        if name == "weight_q":
            if isinstance(one.scale, tuple) and len(one.scale) != outputs:
                raise ValueError(f"{name}: got {len(one.scale)} scales, allowed is 1 or {outputs}")
        elif isinstance(one.scale, tuple):
            raise ValueError(f"{name}: got {len(one.scale)} scales, allowed is 1")
    for name in ("input_q", "other_q", "weight_q", "output_q"):
        holds = HOLDS.get(dtype, (0, 0))
        if name == "weight_q" and hasattr(layer, "weights"):
            codes = layer.weights.dtype
            holds = (np.iinfo(codes).min, np.iinfo(codes).max) if codes.kind in "iu" else (0, 0)
        zero = getattr(layer, name, UNIT).zero_point
        if not holds[0] <= zero <= holds[1]:
            raise ValueError(f"{name}: got zero point {zero}, allowed is {holds[0]} to {holds[1]}")
    if dtype in ("int16", "float32") and layer.op not in ("average_pool", "max_pool", "min_pool"):
        for name in ("input_q", "other_q", "weight_q", "output_q"):
            zero = getattr(layer, name, UNIT).zero_point
            if zero:
                raise ValueError(f"{name}: got zero point {zero}, allowed with {dtype} activations is 0")
    if layer.activation not in ACTIVATIONS:
        raise ValueError(f"activation: got {layer.activation!r}, allowed is one of {ACTIVATIONS}")


def _window(layer: Any, names: Sequence[str]) -> None:
    for name in names:
        value = getattr(layer, name)
        if np.shape(value) != (2,) or np.asarray(value).dtype.kind not in "iu" or min(value) < 1:
            raise ValueError(f"{name}: got {value!r}, allowed is (h, w), each at least 1")
        object.__setattr__(layer, name, tuple(int(n) for n in value))


def _fits(layer: Any) -> None:
    if min(layer.output_shape) < 1:
        least = [(kernel - 1) * spread + 1 - sum(pad)
                 for kernel, spread, pad in zip(layer.kernel, layer.dilation, layer.pads, strict=True)]
        raise ValueError(f"input_shape: got {layer.input_shape}, too small for a kernel of {layer.kernel} with "
                         f"padding {layer.padding}; allowed is at least {least[0]} x {least[1]}")
    if math.prod(layer.output_shape) > MOST_OUTPUTS:
        raise ValueError(f"padding: got {layer.padding}, which makes an output of {_shape(layer.output_shape)}, "
                         f"allowed are {MOST_OUTPUTS} elements")


def _output_size(layer: Any) -> Pair:
    sizes = [(size + sum(pad) - (kernel - 1) * dilation - 1) // stride + 1
             for size, pad, kernel, stride, dilation
             in zip(layer.input_shape, layer.pads, layer.kernel, layer.stride, layer.dilation, strict=False)]
    return sizes[0], sizes[1]


def _joins(number: int, layer: Layer, source: Layer, takes: QuantParams) -> None:
    """Raises ValueError where what a layer gives is not what the next takes, in shape, type or quantization."""
    gives = source.output_q
    if layer.dtype in QUANTIZED and gives is not None and (
            np.float32(gives.scale) != np.float32(takes.scale) or gives.zero_point != takes.zero_point):  # type: ignore[arg-type]
        raise ValueError(f"layer {number}, {layer}: got {gives} from {source}, allowed is {takes}")
    fits = np.prod(source.output_shape) == layer.input_shape[0] if isinstance(layer, FullyConnected) \
        else source.output_shape == layer.input_shape
    if not fits or source.dtype != layer.dtype:
        raise ValueError(f"layer {number}, {layer}: got {_shape(source.output_shape)} {source.dtype} from {source}, "
                         f"allowed is {_shape(layer.input_shape)} {layer.dtype}")


def _window_parameters(layer: Any) -> dict[str, Any]:
    (top, bottom), (left, right) = layer.pads
    return {"input_h": layer.input_shape[0], "input_w": layer.input_shape[1],
            "input_channels": layer.input_shape[2], "output_h": layer.output_shape[0],
            "output_w": layer.output_shape[1], "output_channels": layer.output_shape[2],
            "kernel_h": layer.kernel[0], "kernel_w": layer.kernel[1], "stride_h": layer.stride[0],
            "stride_w": layer.stride[1], "padding": layer.padding if isinstance(layer.padding, str) else "explicit",
            "pad_top": top, "pad_bottom": bottom, "pad_left": left, "pad_right": right}


def _quantization_parameters(layer: Any) -> dict[str, Any]:
    out = {"activation": layer.activation}
    for name in ("input", "weight", "output"):
        one = getattr(layer, f"{name}_q", None)
        if one is not None:
            out |= {f"{name}_scale": one.scale, f"{name}_zero_point": one.zero_point}
    return out | {"dtype": layer.dtype}


def _window_text(layer: Any) -> str:
    return (f"{'x'.join(map(str, layer.kernel))}, {_shape(layer.input_shape)} -> {_shape(layer.output_shape)}, stride "
            f"{layer.stride[0]}x{layer.stride[1]}, padding {layer.padding}"
            f"{', ' + layer.activation if layer.activation else ''}")


def _whole(numbers: Any) -> tuple[int, ...]:
    """The numbers as plain ints; none of them where one is not whole."""
    try:
        return tuple(operator.index(n) for n in numbers)
    except TypeError:
        return ()


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def _padding(padding: Any) -> Any:
    if isinstance(padding, str) and padding in PADDINGS:
        return padding
    try:
        (top, bottom), (left, right) = padding
        pads = (operator.index(top), operator.index(bottom)), (operator.index(left), operator.index(right))
    except (TypeError, ValueError):
        pads = (-1, -1), (-1, -1)
    if min(map(min, pads)) < 0:
        raise ValueError(f'padding: got {padding!r}, allowed is "same", "valid" or '
                         "((top, bottom), (left, right)), none negative")
    return pads
