"""Checks of the parameters of layers, and texts that show these parameters."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy import ndarray as Array

from npulab.quant.rules import QUANTIZED, QuantParams

ACTIVATIONS = (None, "relu", "relu6", "relu_n1_to_1")
OUTPUTS = ("codes", "sums")
SUMS = "int32"  # type of the output if a layer gives sums, not codes
WEIGHT_BITS = (1, 2, 4, 8)
POOLS = ("average", "max", "min")
PADDINGS = ("same", "valid")
# types that input and output may have, by the type of the weights; the first is the default
TYPES = {
    "int8": ("int8", "uint8", "int16", "float32"),
    "uint8": ("uint8", "int8"),
    "float16": ("float16",),
}
UNIT = QuantParams(1.0)
MOST_OUTPUTS = 2**31
# ranges of zero points: tensors of 8 bits may be read as int8 or uint8, so that both ranges are
# allowed
HOLDS = {"int16": (-(2**15), 2**15 - 1), "int8": (-128, 255), "uint8": (-128, 255)}
Shape = tuple[int, ...]
Pair = tuple[int, int]
Shape3 = tuple[int, int, int]


def pads(
    padding: Any,
    input_shape: Shape,
    kernel: Pair,
    stride: Pair = (1, 1),
    dilation: Pair = (1, 1),
) -> tuple[Pair, Pair]:
    """Return ((top, bottom), (left, right)) for a padding given by name or by numbers.

    >>> pads("same", (8, 9, 1), (3, 3), (2, 2))
    ((0, 1), (1, 1))
    """
    if padding not in PADDINGS:
        return padding
    out = []
    for size, k, step, spread in zip(input_shape, kernel, stride, dilation, strict=False):
        total = 0
        if padding == "same":
            total = max((-(-size // step) - 1) * step + (k - 1) * spread + 1 - size, 0)
        out.append((total // 2, total - total // 2))
    return out[0], out[1]


def padding_name(layer: Any, prefer: Any = None) -> str | None:
    """Return "same" or "valid" if that padding gives the layer's border, even if the border was
    given by numbers; None if neither does.

    ``prefer`` is tried first, then the layer's own padding.
    """
    for name in (prefer, layer.padding, "valid", "same"):
        if (
            isinstance(name, str)
            and name in PADDINGS
            and pads(name, layer.input_shape, layer.kernel, layer.stride, layer.dilation)
            == layer.pads
        ):
            return name
    return None


def store(layer: Any, **values: Any) -> None:
    """Set parameters of a layer while it is made. A layer is frozen, so that assigning fails."""
    for name, value in values.items():
        object.__setattr__(layer, name, value)


def per_channel(scale: float | tuple[float, ...]) -> bool:
    """True for a tuple of scales, one per channel."""
    return isinstance(scale, tuple)


def checked_weights(weights: Any, axes: int) -> Array:
    weights = np.asarray(weights)
    if weights.ndim != axes or weights.dtype.name not in TYPES or 0 in weights.shape:
        raise ValueError(
            f"weights: got shape {weights.shape} {weights.dtype}, allowed is {axes} axes of "
            "uint8 or int8 (or float16), each of size 1 or more"
        )
    if weights.dtype.kind == "f" and not np.all(np.isfinite(weights)):
        raise ValueError("weights: got a value that is not finite, allowed are finite numbers")
    return weights


def checked_shape(given: Any) -> Shape3:
    shape = whole(given)
    if len(shape) != 3 or min(shape) < 1:
        raise ValueError(f"input_shape: got {given}, allowed is (H, W, C), each at least 1")
    return shape[0], shape[1], shape[2]


def checked_dtype(given: str, weights: Array) -> str:
    allowed = TYPES[weights.dtype.name]
    if given and given not in allowed:
        raise ValueError(
            f"dtype: got {given!r}, allowed with {weights.dtype} weights is {', '.join(allowed)}"
        )
    return given or allowed[0]


def checked_groups(given: Any, weights: Array, input_shape: Shape3, depthwise: bool) -> int:
    try:
        groups = operator.index(given)
    except TypeError:
        groups = 0
    if groups == 1:
        return groups
    kind = str(weights.dtype)
    # only convolutions of float16 may have groups
    most = 1
    if depthwise:
        kind = "depthwise"
    elif kind == "float16":
        most = math.gcd(len(weights), input_shape[2])
    if groups < 1 or most % groups:
        words = "1"
        if most > 1:
            words = f"a divisor of {most}, which divides input and output channels"
        raise ValueError(
            f"groups: got {given!r}, allowed with {kind} weights {weights.shape} is {words}"
        )
    return groups


def check_type(dtype: str) -> None:
    if dtype not in (*QUANTIZED, "float16"):
        raise ValueError(f"dtype: got {dtype!r}, allowed is {', '.join(QUANTIZED)} or float16")


def checked_bias(bias: Any, outputs: int, dtype: str) -> Array:
    if bias is None:
        bias = np.zeros(outputs, np.int32)
    bias = np.asarray(bias)
    if dtype not in QUANTIZED:
        # layers of float16 or float32 have real outputs, and so a real bias
        stored, kinds, words = dtype, "iuf", f"finite {dtype}"
        high = float(np.finfo(dtype).max)
        low = -high
    elif dtype == "int16":
        # float64 keeps a sum with this bias exact
        stored, kinds, words = "int64", "iu", "within 2**52"
        low, high = -(2**52), 2**52 - 1
    else:
        stored, kinds, words = "int32", "iu", "within int32"
        low, high = -(2**31), 2**31 - 1
    fits = bias.shape == (outputs,) and bias.dtype.kind in kinds
    if not fits or not np.all((bias >= low) & (bias <= high)):
        raise ValueError(
            f"bias: got shape {bias.shape} {bias.dtype}, allowed is ({outputs},) {words}"
        )
    return bias.astype(stored)


def check_quantization(layer: Any, dtype: str, outputs: int) -> None:
    """Raise ValueError if a scale or zero point does not fit the type, or if the activation is
    unknown.
    """
    centred = dtype in ("int16", "float32") and layer.op not in [f"{kind}_pool" for kind in POOLS]
    for name in ("input_q", "other_q", "weight_q", "output_q"):
        q = getattr(layer, name, UNIT)
        if not isinstance(q, QuantParams):
            raise ValueError(f"{name}: got {q!r}, allowed is QuantParams(scale, zero_point)")
        if isinstance(q.scale, tuple) and (name != "weight_q" or len(q.scale) != outputs):
            allowed = f"1 or {outputs}" if name == "weight_q" else "1"
            raise ValueError(f"{name}: got {len(q.scale)} scales, allowed is {allowed}")
        holds = HOLDS.get(dtype, (0, 0))
        if name == "weight_q" and hasattr(layer, "weights"):
            codes = layer.weights.dtype
            if codes.kind in "iu":
                holds = np.iinfo(codes).min, np.iinfo(codes).max
            else:
                holds = 0, 0
        count = len(q.zero_points)
        if count and (name != "weight_q" or count != outputs):
            allowed = f"one, or {outputs} for weights, one per output channel"
            raise ValueError(f"{name}: got {count} zero points, allowed is {allowed}")
        for zero in (q.zero_point, *q.zero_points):
            if not holds[0] <= zero <= holds[1]:
                raise ValueError(
                    f"{name}: got zero point {zero}, allowed is {holds[0]} to {holds[1]}"
                )
        if centred and np.any(q.zeros):
            raise ValueError(
                f"{name}: got zero point {np.max(q.zeros)}, allowed with {dtype} activations is 0"
            )
    allowed = f"one of {ACTIVATIONS}"
    known = layer.activation in ACTIVATIONS
    if dtype in QUANTIZED and hasattr(layer, "weights"):
        allowed += " or leaky>>1 to leaky>>31"
        known = known or leak_of(layer.activation) > 0
    if not known:
        raise ValueError(f"activation: got {layer.activation!r}, allowed is {allowed}")


def leak_of(activation: str | None) -> int:
    """Return N for the activation "leaky>>N", which shifts codes below the zero point right by N
    bits; 0 for any other activation.

    >>> leak_of("leaky>>3"), leak_of("relu")
    (3, 0)
    """
    shift = re.fullmatch(r"leaky>>([1-9]|[12]\d|3[01])", str(activation))
    if shift is None:
        return 0
    return int(shift[1])


def output_dtype(layer: Any) -> str:
    """Return the type of a layer's output: "int32" if it gives sums, else the type of its input."""
    if getattr(layer, "output", "") == "sums":
        return SUMS
    return layer.dtype


def check_output(layer: Any, dtype: str) -> None:
    """Raise ValueError if ``output`` is unknown, or if it does not fit the type, the activation or
    the output scale of the layer.
    """
    allowed: tuple[str, ...] = OUTPUTS[:1]
    if dtype in ("int8", "uint8"):
        allowed = OUTPUTS
    if layer.output not in allowed:
        raise ValueError(
            f"output: got {layer.output!r}, allowed with {dtype} is {' or '.join(allowed)}"
        )
    if layer.output == "codes":
        return
    if layer.activation not in (None, "relu"):
        raise ValueError(
            f"activation: got {layer.activation!r}, allowed with sums is None or 'relu'"
        )
    if layer.output_q != UNIT:
        raise ValueError(
            f"output_q: got {layer.output_q}, allowed with sums is {UNIT}: sums are in units of "
            "input scale * weight scale"
        )


def checked_bits(bits: Any, weights: Array) -> int:
    """Return the width of a weight in bits: 1, 2, 4 or 8. int8 weights are in two's complement;
    weights of 1 bit may also be -1 and 1.

    Raises ValueError for another width. If a weight is outside of the range of its width, raises
    ValueError, which shows the first such weight.
    """
    signed = weights.dtype.kind == "i"
    if bits not in WEIGHT_BITS or (bits != 8 and weights.dtype.kind == "f"):
        allowed = "1, 2, 4 or 8"
        if weights.dtype.kind == "f":
            allowed = "8, the default (float16 weights always have 16 bits)"
        raise ValueError(
            f"weight_bits: got {bits!r}, allowed with {weights.dtype} weights is {allowed}"
        )
    if bits == 8 or (bits == 1 and signed and np.all(np.abs(weights) == 1)):
        return int(bits)
    low = 0
    high = 2**bits - 1
    if signed:
        low = -(2 ** (bits - 1))
        high = 2 ** (bits - 1) - 1
    wrong = weights[(weights < low) | (weights > high)]
    if wrong.size:
        allowed = f"{bits} bits is {low} to {high}"
        if bits == 1:
            allowed = f"1 bit is {low} to {high}"
            if signed:
                allowed += ", or -1 and 1"
        raise ValueError(f"weights: got {wrong[0]}, allowed with {allowed}")
    return int(bits)


def check_window(layer: Any, names: Sequence[str]) -> None:
    for name in names:
        value = getattr(layer, name)
        if np.shape(value) != (2,) or np.asarray(value).dtype.kind not in "iu" or min(value) < 1:
            raise ValueError(f"{name}: got {value!r}, allowed is (h, w), each at least 1")
        store(layer, **{name: tuple(int(n) for n in value)})


def check_size(layer: Any) -> None:
    if min(layer.output_shape) < 1:
        least = [
            (kernel - 1) * spread + 1 - sum(pad)
            for kernel, spread, pad in zip(layer.kernel, layer.dilation, layer.pads, strict=True)
        ]
        raise ValueError(
            f"input_shape: got {layer.input_shape}, too small for a kernel of {layer.kernel} with "
            f"padding {layer.padding}; allowed H x W is at least {least[0]} x {least[1]}"
        )
    if math.prod(layer.output_shape) > MOST_OUTPUTS:
        raise ValueError(
            f"padding: got {layer.padding}, which makes an output of "
            f"{shape_text(layer.output_shape)}, "
            f"allowed are at most {MOST_OUTPUTS} elements"
        )


def output_size(layer: Any) -> Pair:
    sizes = [
        (size + sum(pad) - (kernel - 1) * dilation - 1) // stride + 1
        for size, pad, kernel, stride, dilation in zip(
            layer.input_shape, layer.pads, layer.kernel, layer.stride, layer.dilation, strict=False
        )
    ]
    return sizes[0], sizes[1]


def weight_parameters(layer: Any) -> dict[str, Any]:
    """Return the width of the weights and the kind of output as columns of a sweep; each is left
    out if it has its usual value.
    """
    usual = {"weight_bits": 8, "output": "codes"}
    return {name: getattr(layer, name) for name in usual if getattr(layer, name) != usual[name]}


def weight_text(layer: Any) -> str:
    """Return the width of the weights and the kind of output as a text; each is left out if it has
    its usual value.
    """
    text = ""
    if layer.weight_bits != 8:
        text = f", {layer.weight_bits}-bit weights"
    if layer.output != "codes":
        text += f", {layer.output}"
    return text


def kind_text(layer: Any) -> str:
    """Return the beginning of a convolution's text, which says whether the convolution is depthwise
    or has groups.
    """
    if layer.depthwise:
        return "depthwise "
    if layer.groups > 1:
        return f"{layer.groups} groups "
    return ""


def activation_text(layer: Any) -> str:
    if layer.activation:
        return f", {layer.activation}"
    return ""


def window_parameters(layer: Any) -> dict[str, Any]:
    rows, columns = layer.pads
    return {
        **by_axis("input", "hwc", layer.input_shape),
        **by_axis("output", "hwc", layer.output_shape),
        **by_axis("kernel", "hw", layer.kernel),
        **by_axis("stride", "hw", layer.stride),
        "padding": padding_text(layer),
        **by_axis("pad", ("top", "bottom", "left", "right"), (*rows, *columns)),
    }


def by_axis(name: str, axes: Sequence[str], sizes: Sequence[int]) -> dict[str, int]:
    """Return sizes by name and axis: the keys are such as ``input_h``, the values are sizes. Axes
    without a size are left out.
    """
    return {f"{name}_{axis}": size for axis, size in zip(axes, sizes, strict=False)}


def padding_text(layer: Any) -> str:
    """Return the name of the layer's padding, or "explicit" if it was given by numbers."""
    if isinstance(layer.padding, str):
        return layer.padding
    return "explicit"


def quantization_parameters(layer: Any) -> dict[str, Any]:
    out = {"activation": layer.activation}
    for name in ("input", "weight", "output"):
        one = getattr(layer, f"{name}_q", None)
        if one is not None:
            out |= {f"{name}_scale": one.scale, f"{name}_zero_point": one.zero_point}
    return out | {"dtype": layer.dtype}


def window_text(layer: Any) -> str:
    return (
        f"{'x'.join(map(str, layer.kernel))}, {shape_text(layer.input_shape)} -> "
        f"{shape_text(layer.output_shape)}, stride {layer.stride[0]}x{layer.stride[1]}, padding "
        f"{layer.padding}{activation_text(layer)}"
    )


def whole(numbers: Any) -> tuple[int, ...]:
    """Return the numbers as plain ints; an empty tuple if one of them is not a whole number."""
    try:
        return tuple(operator.index(n) for n in numbers)
    except TypeError:
        return ()


def shape_text(shape: Shape) -> str:
    return "x".join(map(str, shape))


def checked_padding(padding: Any) -> Any:
    if isinstance(padding, str) and padding in PADDINGS:
        return padding
    # if the padding is not two pairs, None takes the place of its numbers, and ``whole`` finds it
    try:
        (top, bottom), (left, right) = padding
    except (TypeError, ValueError):
        top = bottom = left = right = None
    sides = whole((top, bottom, left, right))
    if not sides or min(sides) < 0:
        raise ValueError(
            f'padding: got {padding!r}, allowed is "same", "valid" or '
            "((top, bottom), (left, right)), none negative"
        )
    return sides[:2], sides[2:]
