"""Operators without weights as TensorFlow Lite's reference kernels compute them.

Codes are computed by tables or by gemmlowp's fixed-point arithmetic, float32 values by float32
arithmetic. Sources: tensorflow/lite/kernels/internal/reference, and the Prepare functions of
tensorflow/lite/kernels, both of the release that ``npulab.ENGINES`` names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray as Array

from npulab.quant import fixed
from npulab.quant.emulate.engines import REAL
from npulab.quant.layers.operation import RULED, Operation, Placeholder
from npulab.quant.rules import QUANTIZED, RULES, Rule, half_away, shift_right

GEMMLOWP = RULES["gemmlowp"]
Tensors = Sequence[Array]
# A softmax of codes computes in fixed point: a difference of two inputs has ``SOFTMAX_BITS``
# integer bits, a sum of exponentials has ``SUM_BITS``.
SOFTMAX_BITS = 5
SUM_BITS = 12
# A key is a type of codes, the value the number of bits by which they are shifted left before they
# are scaled.
LEFT = {"int8": 20, "uint8": 20, "int16": 15}
RESIZE = 2**10  # a resize divides the distance of two pixels into RESIZE parts


def batches(layer: Operation, x: Any, rule: str | Rule) -> Array:
    """Return the output for tensors in the shapes that the layer states.

    If the batch is 1 in all of these shapes, the tensors may have another batch or none, and so has
    the output. Raises LookupError for a rule under which the operator is not known, ValueError for
    tensors that do not fit.
    """
    known = RULED[layer.kind]
    if known and rule not in known:
        raise LookupError(f"rule: got {rule!r}, allowed with {layer} is one of {', '.join(known)}")
    tensors = x
    if len(layer.moving) == 1 or not isinstance(x, tuple | list):
        tensors = (x,)
    given = tuple(map(np.asarray, tensors))
    stated = [layer.inputs[place] for place in layer.moving]
    if [tensor.dtype.name for tensor in given] != [part.dtype for part in stated]:
        got = ", ".join(f"{tensor.shape} {tensor.dtype}" for tensor in given)
        raise ValueError(f"x: got {got}, allowed with {layer} is {' and '.join(map(str, stated))}")
    single = all(part.shape[:1] == (1,) for part in (*stated, layer.output))
    images = _images(given, stated, single)
    if images is None:
        got = ", ".join(str(tensor.shape) for tensor in given)
        allowed = " and ".join(str(part.shape) for part in stated)
        if single:
            allowed += ", with another batch or without it"
        raise ValueError(f"x: got {got}, allowed with {layer} is {allowed}")
    outputs = [operate(layer, _with_constants(layer, image)) for image in images]
    if single and all(map(_lacks_batch, given, stated)):
        return outputs[0][0]
    if len(outputs) > 1:
        return np.concatenate(outputs)
    return outputs[0]


def _images(given: Tensors, stated: Sequence[Placeholder], single: bool) -> list[Tensors] | None:
    """Return a tuple of tensors for each image, in the shapes that the layer states; None if the
    given tensors do not fit these shapes.
    """
    images = []
    for x, part in zip(given, stated, strict=True):
        count, rest = divmod(x.size, math.prod(part.shape))
        allowed = [part.shape, (count, *part.shape)]
        if single:
            allowed = [part.shape, part.shape[1:], (count, *part.shape[1:])]
        if rest or not count or x.shape not in allowed or (count > 1 and not single):
            return None
        images.append(x.reshape(count, *part.shape))
    if len({len(x) for x in images}) > 1:
        return None
    return list(zip(*images, strict=True))


def _lacks_batch(x: Array, part: Placeholder) -> bool:
    return x.shape == part.shape[1:]


def _with_constants(layer: Operation, moving: Tensors) -> list[Array]:
    tensors = dict(zip(layer.moving, moving, strict=True)) | dict(layer.constants)
    return [tensors[place] for place in range(len(layer.inputs))]


def operate(layer: Operation, tensors: Tensors) -> Array:
    """Return the output for all tensors of the operator, constants included. The tensors have the
    shapes that the layer states.
    """
    output = np.ascontiguousarray(KERNELS[layer.kind](layer, tensors))
    return output.reshape(layer.output.shape).astype(layer.output.dtype, copy=False)


def _scale(part: Placeholder) -> np.float32:
    return np.float32(np.asarray(part.q.scale))


def _codes_of(dtype: str) -> tuple[int, int]:
    """Return the lowest and the highest code of a type."""
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


def _as_codes(values: Array, layer: Operation) -> Array:
    """Return whole numbers of steps of the output scale as codes: the zero point is added, and the
    sum is clamped to the type of the output.
    """
    low, high = _codes_of(layer.dtype)
    return (values + layer.output.q.zero_point).clip(low, high)


def _requantized(
    values: Array, ratio: np.floating | float, layer: Operation, activation: str | None
) -> Array:
    """Return codes for whole numbers times a ratio of scales, clamped to the output's type and to
    the activation.
    """
    codes = _times(values, ratio, layer.output.q.zero_point)
    low, high = _codes_of(layer.dtype)
    first, last = REAL[activation]
    zero_point = layer.output.q.zero_point
    scale = _scale(layer.output)
    if math.isfinite(first):
        low = max(low, zero_point + int(half_away(np.float32(first) / scale)))
    if math.isfinite(last):
        high = min(high, zero_point + int(half_away(np.float32(last) / scale)))
    return codes.clip(low, high)


def _clamped(values: Array, layer: Operation, activation: str | None) -> Array:
    """Return real numbers clamped to the activation. Whole numbers that are not codes are returned
    unchanged.
    """
    low, high = REAL[activation]
    if layer.dtype != "float32":
        return values
    return np.clip(values, np.float32(low), np.float32(high))


def _times(values: Array, ratio: np.floating | float, zero_point: int = 0) -> Array:
    """Return whole numbers times a ratio of scales, by a multiplier of 31 bits, plus the zero
    point.
    """
    multiplier, right_shift = _multiplier(ratio)
    return GEMMLOWP.exact(values, multiplier, right_shift, zero_point)


def _multiplier(ratio: np.floating | float) -> tuple[int, int]:
    """Return (multiplier of 31 bits, right shift) for a ratio."""
    multiplier, right_shift = GEMMLOWP.of_ratio(np.asarray(ratio, np.float64))
    return int(multiplier), int(right_shift)


def _centred(x: Array, part: Placeholder) -> Array:
    return x.astype(np.int64) - part.q.zero_point


def _whole_numbers(constant: Array) -> list[int]:
    """Return a constant tensor that holds axes, sizes or positions as a plain list."""
    return np.asarray(constant).ravel().tolist()


# ---- element by element ----


def _sum(layer: Operation, tensors: Tensors) -> Array:
    a, b = tensors
    activation = layer.options["activation"]
    subtract = layer.kind == "SUB"
    if layer.dtype not in QUANTIZED:
        total = a - b if subtract else a + b
        return _clamped(total, layer, activation)
    first, second = layer.inputs
    left = 2 ** LEFT[layer.dtype]
    largest = 2 * max(float(_scale(first)), float(_scale(second)))
    moved = _times(_centred(a, first) * left, float(_scale(first)) / largest)
    other = _times(_centred(b, second) * left, float(_scale(second)) / largest)
    if subtract:
        other = -other
    ratio = largest / (left * float(_scale(layer.output)))
    return _requantized(moved + other, ratio, layer, activation)


def _product(layer: Operation, tensors: Tensors) -> Array:
    a, b = tensors
    activation = layer.options["activation"]
    if layer.dtype not in QUANTIZED:
        return _clamped(a * b, layer, activation)
    first, second = layer.inputs
    ratio = _scale(first) * _scale(second) / _scale(layer.output)
    products = _centred(a, first) * _centred(b, second)
    return _requantized(products, ratio, layer, activation)


def _maximum(layer: Operation, tensors: Tensors) -> Array:
    return np.maximum(*tensors)


def _minimum(layer: Operation, tensors: Tensors) -> Array:
    return np.minimum(*tensors)


def _rectified(layer: Operation, tensors: Tensors) -> Array:
    (x,) = tensors
    activation = layer.kind.lower()
    if layer.dtype not in QUANTIZED:
        return _clamped(x, layer, activation)
    part = layer.inputs[0]
    ratio = _scale(part) / _scale(layer.output)
    return _requantized(_centred(x, part), ratio, layer, activation)


def _leaky(layer: Operation, tensors: Tensors) -> Array:
    (x,) = tensors
    part = layer.inputs[0]
    alpha = np.float32(layer.options["alpha"])
    if layer.dtype not in QUANTIZED:
        return np.where(x > 0, x, x * alpha)
    values = _centred(x, part)
    scale = _scale(layer.output)
    above = _times(values, _scale(part) / scale)
    # the multiplier of a negative slope is its absolute value, and the sign is changed after the
    # rounding
    slope = _scale(part) * alpha / scale
    below = _times(values, abs(slope))
    if slope < 0:
        below = -below
    return _as_codes(np.where(values >= 0, above, below), layer)


def _curve(layer: Operation, tensors: Tensors) -> Array:
    """Return the logistic function or the hyperbolic tangent of each number. Codes of 8 bits are
    looked up in a table that has the result for every code.
    """
    _refuse_int16(layer)
    (x,) = tensors
    function = _tanh
    if layer.kind == "LOGISTIC":
        function = _logistic
    part = layer.inputs[0]
    with np.errstate(over="ignore"):
        if layer.dtype == "float32":
            return function(x)
        low, high = _codes_of(part.dtype)
        codes = np.arange(low, high + 1)
        values = function(_scale(part) * (codes - part.q.zero_point).astype(np.float32))
    inverse = np.float32(1) / _scale(layer.output)
    table = _as_codes(half_away(values * inverse), layer)
    return table[x.astype(np.int64) - low]


def _refuse_int16(layer: Operation) -> None:
    """Raise LookupError for int16, whose reference kernels use tables that are not known here."""
    if layer.dtype == "int16":
        raise LookupError(
            f"rule: got tflite-reference for {layer} of int16, allowed with this operator is int8, "
            "uint8 or float32"
        )


def _logistic(values: Array) -> Array:
    return np.float32(1) / (np.float32(1) + _exponential(-values))


def _exponential(values: Array) -> Array:
    """Return the exponential of float32 numbers: computed in float64, then rounded to float32."""
    return np.exp(values.astype(np.float64)).astype(np.float32)


def _tanh(values: Array) -> Array:
    return np.tanh(values.astype(np.float64)).astype(np.float32)


def _hard_swish(layer: Operation, tensors: Tensors) -> Array:
    (x,) = tensors
    part = layer.inputs[0]
    if layer.dtype == "float32":
        clipped = np.clip(x + np.float32(3), np.float32(0), np.float32(6))
        return x * clipped / np.float32(6)
    fine = np.float32(1 / 128) * _scale(part)  # the input's scale with 7 more bits
    multiplier, shift = _short(fine / _scale(layer.output))
    relu, relu_shift = _short(fine / np.float32(3 / 32768))
    values = _centred(x, part) * 2**7
    outputs = fixed.product(values, multiplier, 15)
    slope: Array = values
    # A left shift is divided into two shifts, each of which saturates: the multiplication comes
    # before the last bit.
    if relu_shift > 0:
        slope = _saturated16(slope * 2 ** (relu_shift - 1))
    slope = fixed.product(slope, relu, 15)
    if relu_shift > 0:
        slope = _saturated16(slope * 2)
    slope = fixed.shifted_right(slope, max(-relu_shift, 0))
    doubled = ((slope + 2**15) >> 1) * outputs
    product = np.minimum(shift_right(doubled, 15, "toward-zero"), 2**15 - 1)
    return _as_codes(fixed.shifted_right(product, -shift), layer)


def _short(ratio: np.floating) -> tuple[int, int]:
    """Return (multiplier of 16 bits, left shift) for a ratio."""
    multiplier, right_shift = _multiplier(ratio)
    return min((multiplier + 2**15) >> 16, 2**15 - 1), -right_shift


def _saturated16(values: Array) -> Array:
    return np.clip(values, -(2**15), 2**15 - 1)


def _softmax(layer: Operation, tensors: Tensors) -> Array:
    (x,) = tensors
    _refuse_int16(layer)
    beta = np.float32(layer.options["beta"])
    if layer.dtype == "float32":
        raised = _exponential((x - x.max(-1, keepdims=True)) * beta)
        return raised / raised.sum(-1, keepdims=True, dtype=np.float32)
    one = 2.0 ** (31 - SOFTMAX_BITS)
    factor = min(float(beta) * float(_scale(layer.inputs[0])) * one, 2.0**31 - 1)
    multiplier, right_shift = _multiplier(factor / 2.0**31)
    left = 31 - right_shift
    # the kernel takes the exponential of a difference below this limit as 0
    least = -math.floor((2**SOFTMAX_BITS - 1) * one / 2.0**left)
    apart = x.astype(np.int64) - x.max(-1, keepdims=True).astype(np.int64)
    counts = apart >= least
    moved = fixed.product(np.where(counts, apart, 0) * 2**left, multiplier)
    raised = fixed.exponential(moved, SOFTMAX_BITS)
    shares = np.where(counts, fixed.shifted_right(raised, SUM_BITS), 0)
    inverse, bits = fixed.reciprocal(shares.sum(-1, keepdims=True), SUM_BITS)
    low, high = _codes_of(layer.dtype)
    wide = 8 * np.dtype(layer.dtype).itemsize
    codes = fixed.shifted_right(fixed.product(inverse, raised), bits + 31 - wide) + low
    return np.where(counts, codes.clip(low, high), low)


def _quantize(layer: Operation, tensors: Tensors) -> Array:
    (x,) = tensors
    part = layer.inputs[0]
    if x.dtype.kind == "f":
        with np.errstate(over="ignore", invalid="ignore"):
            steps = (x / _scale(layer.output)).astype(np.float64)
        steps = np.nan_to_num(steps, posinf=2.0**31, neginf=-(2.0**31))
        return _as_codes(half_away(steps), layer)
    ratio = float(_scale(part)) / float(_scale(layer.output))
    return _as_codes(_times(_centred(x, part), ratio), layer)


def _dequantize(layer: Operation, tensors: Tensors) -> Array:
    part = layer.inputs[0]
    return (float(_scale(part)) * _centred(tensors[0], part)).astype(np.float32)


# ---- moves of elements ----


def _same(layer: Operation, tensors: Tensors) -> Array:
    return tensors[0]


def _transpose(layer: Operation, tensors: Tensors) -> Array:
    return tensors[0].transpose(_whole_numbers(tensors[1]))


def _pack(layer: Operation, tensors: Tensors) -> Array:
    return np.stack(tensors, layer.options["axis"])


def _concatenation(layer: Operation, tensors: Tensors) -> Array:
    output = layer.output
    parts = []
    for x, part in zip(tensors, layer.inputs, strict=True):
        if layer.dtype == "uint8" and part.q != output.q:
            scale = _scale(part) * (np.float32(1) / _scale(output))
            bias = np.float32(-part.q.zero_point) * scale
            moved = half_away(x.astype(np.float32) * scale + bias)
            x = _as_codes(moved, layer).astype(np.uint8)
        parts.append(x)
    return np.concatenate(parts, layer.options["axis"])


def _unpack(layer: Operation, tensors: Tensors) -> Array:
    return np.take(tensors[0], layer.part, layer.options["axis"])


def _split(layer: Operation, tensors: Tensors) -> Array:
    """Return one of the equal parts into which a tensor is divided along an axis."""
    axis = _whole_numbers(tensors[0])[0]
    size = layer.output.shape[axis]
    first = layer.part * size
    return np.take(tensors[1], range(first, first + size), axis)


def _split_by_sizes(layer: Operation, tensors: Tensors) -> Array:
    """Return one of the parts, of given sizes, into which a tensor is divided along an axis. A size
    of -1 stands for the elements that no other part has.
    """
    x = tensors[0]
    sizes = _whole_numbers(tensors[1])
    axis = _whole_numbers(tensors[2])[0]
    if -1 in sizes:
        sizes[sizes.index(-1)] = x.shape[axis] - sum(sizes) - 1
    first = sum(sizes[: layer.part])
    return np.take(x, range(first, first + sizes[layer.part]), axis)


def _slice(layer: Operation, tensors: Tensors) -> Array:
    begins, sizes = map(_whole_numbers, tensors[1:3])
    places = []
    for begin, size in zip(begins, sizes, strict=True):
        end: int | None = begin + size
        if size < 0:
            end = None
        places.append(slice(begin, end))
    return tensors[0][tuple(places)]


def _strided_slice(layer: Operation, tensors: Tensors) -> Array:
    """Return every n-th element of a range of each axis. In a mask, bit i, counted from the lowest
    as 0, belongs to axis i.
    """
    options = layer.options
    begins, ends, strides = map(_whole_numbers, tensors[1:4])
    places: list[Any] = []
    for axis, (begin, end, stride) in enumerate(zip(begins, ends, strides, strict=True)):
        bit = 2**axis
        first: int | None = begin
        last: int | None = end
        if options["offset"]:
            last = begin + end
        if options["begin_mask"] & bit:
            first = None
        if options["end_mask"] & bit:
            last = None
        if options["ellipsis_mask"] & bit:
            places.append(Ellipsis)
        elif options["new_axis_mask"] & bit:
            places.append(None)
        elif options["shrink_axis_mask"] & bit:
            places.append(first or 0)
        else:
            places.append(slice(first, last, stride))
    return tensors[0][tuple(places)]


def _pad(layer: Operation, tensors: Tensors) -> Array:
    value = layer.output.q.zero_point
    if len(tensors) > 2:
        value = _whole_numbers(tensors[2])[0]
    return np.pad(tensors[0], np.asarray(tensors[1]).tolist(), constant_values=value)


# ---- sums and neighbours ----


def _mean(layer: Operation, tensors: Tensors) -> Array:
    x = tensors[0]
    part = layer.inputs[0]
    axes = tuple({axis % x.ndim for axis in _whole_numbers(tensors[1])})
    count = math.prod(x.shape[axis] for axis in axes)
    if layer.dtype == "float32":
        return (x.sum(axes, dtype=np.float32) / np.float32(count)).astype(np.float32)
    sums = x.astype(np.int64).sum(axes) - count * part.q.zero_point
    multiplier, right_shift = _multiplier(_scale(part) / _scale(layer.output))
    # The mean is the sum times ``multiplier / count``. The multiplier is shifted left before the
    # division, so that the quotient has as many bits as possible.
    shift = min(count.bit_length() - 1, 32, 31 - right_shift)
    divided = multiplier * 2**shift // count
    return _as_codes(GEMMLOWP.exact(sums, divided, right_shift + shift), layer)


def _place_of_largest(layer: Operation, tensors: Tensors) -> Array:
    return np.argmax(tensors[0], _whole_numbers(tensors[1])[0])


class Axis(NamedTuple):
    """One axis of an image to be resized: its rows, or its columns."""

    inputs: int  # ``inputs`` is the number of pixels of the input along this axis.
    outputs: int  # ``outputs`` is the number of pixels of the output along this axis.
    align: bool  # ``align``: the corner pixels of input and output have the same position.
    centred: bool  # ``centred``: a pixel's position is the middle of its square, not its corner.

    @property
    def step(self) -> np.float32:
        """The distance of two neighbouring output pixels, in pixels of the input."""
        if self.align and self.outputs > 1:
            return np.float32(self.inputs - 1) / np.float32(self.outputs - 1)
        return np.float32(self.inputs) / np.float32(self.outputs)


class Neighbours(NamedTuple):
    """For each output pixel of an axis, the numbers of the two input pixels between which it lies.

    ``part`` is the distance from the lower one: float32 in pixels, or whole numbers in units of
    1 / RESIZE pixel.
    """

    lower: Array
    upper: Array
    part: Array


def _axes(layer: Operation) -> Iterator[Axis]:
    """Yield two axes of an image to be resized: first its rows, then its columns."""
    align = bool(layer.options["align_corners"])
    centred = bool(layer.options["half_pixel_centers"])
    for place in (1, 2):
        yield Axis(layer.inputs[0].shape[place], layer.output.shape[place], align, centred)


def _nearest(layer: Operation, tensors: Tensors) -> Array:
    rows, columns = map(_nearest_pixels, _axes(layer))
    return tensors[0][:, rows][:, :, columns]


def _nearest_pixels(axis: Axis) -> Array:
    at = np.arange(axis.outputs).astype(np.float32)
    if axis.centred:
        at += np.float32(0.5)
    at *= axis.step
    pixels = half_away(at) if axis.align else np.floor(at)
    return pixels.astype(np.int64).clip(0, axis.inputs - 1)


def _bilinear(layer: Operation, tensors: Tensors) -> Array:
    image = tensors[0]
    if layer.dtype in ("int8", "int16"):
        rows, columns = map(_fixed_neighbours, _axes(layer))
        total = _interpolated(image.astype(np.int64), rows, columns, RESIZE)
        nudged = total + np.where(total > 0, 2**19, -(2**19))
        return shift_right(nudged, 20, "toward-zero")
    rows, columns = map(_real_neighbours, _axes(layer))
    total = _interpolated(image.astype(np.float32), rows, columns, np.float32(1))
    if layer.dtype == "float32":
        return total
    return np.floor(total + np.float32(0.5))


def _interpolated(image: Array, rows: Neighbours, columns: Neighbours, whole: Any) -> Any:
    """Return, for each output pixel, the weighted sum of its four neighbours in the input; the
    nearer a neighbour is, the larger is its weight.

    ``whole`` is the distance of two input pixels in the unit of ``Neighbours.part``.
    """
    y = rows.part[:, None, None]
    x = columns.part[None, :, None]
    above = image[:, rows.lower]
    below = image[:, rows.upper]
    total = above[:, :, columns.lower] * (whole - y) * (whole - x)
    total += below[:, :, columns.lower] * y * (whole - x)
    total += above[:, :, columns.upper] * (whole - y) * x
    total += below[:, :, columns.upper] * y * x
    return total


def _fixed_neighbours(axis: Axis) -> Neighbours:
    """Return the neighbours, with distances in whole units of 1 / RESIZE pixel."""
    size = axis.inputs
    count = axis.outputs
    step = (RESIZE * size + count // 2) // count
    if axis.align and count > 1:
        step = (RESIZE * (size - 1) + (count - 1) // 2) // (count - 1)
    at = np.arange(count) * step
    if axis.centred:
        at += step // 2 - RESIZE // 2
    # The kernel rounds this division toward zero, ``//`` rounds it down. They differ only for
    # negative numbers, which become 0 in either case.
    lower = np.maximum(at // RESIZE, 0)
    upper = np.clip((at + RESIZE - 1) // RESIZE, 0, size - 1)
    return Neighbours(lower, upper, at - RESIZE * lower)


def _real_neighbours(axis: Axis) -> Neighbours:
    """Return the neighbours, with distances in pixels, float32."""
    at = np.arange(axis.outputs).astype(np.float32)
    if axis.centred:
        at = (at + np.float32(0.5)) * axis.step - np.float32(0.5)
    else:
        at = at * axis.step
    lower = np.maximum(np.floor(at), 0).astype(np.int64)
    upper = np.minimum(np.ceil(at), axis.inputs - 1).astype(np.int64)
    return Neighbours(lower, np.maximum(upper, 0), (at - lower).astype(np.float32))


KERNELS: Mapping[str, Callable[[Operation, Tensors], Array]] = MappingProxyType(
    {
        "ADD": _sum,
        "SUB": _sum,
        "MUL": _product,
        "MAXIMUM": _maximum,
        "MINIMUM": _minimum,
        "RELU": _rectified,
        "RELU6": _rectified,
        "RELU_N1_TO_1": _rectified,
        "LEAKY_RELU": _leaky,
        "LOGISTIC": _curve,
        "TANH": _curve,
        "HARD_SWISH": _hard_swish,
        "SOFTMAX": _softmax,
        "QUANTIZE": _quantize,
        "DEQUANTIZE": _dequantize,
        "RESHAPE": _same,
        "SQUEEZE": _same,
        "EXPAND_DIMS": _same,
        "TRANSPOSE": _transpose,
        "CONCATENATION": _concatenation,
        "PACK": _pack,
        "UNPACK": _unpack,
        "SPLIT": _split,
        "SPLIT_V": _split_by_sizes,
        "SLICE": _slice,
        "STRIDED_SLICE": _strided_slice,
        "PAD": _pad,
        "PADV2": _pad,
        "MEAN": _mean,
        "ARG_MAX": _place_of_largest,
        "RESIZE_BILINEAR": _bilinear,
        "RESIZE_NEAREST_NEIGHBOR": _nearest,
    }
)
