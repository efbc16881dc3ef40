"""Operators without weights as TensorFlow Lite's reference kernels compute them.

Codes go through tables, or through gemmlowp's fixed-point arithmetic; float32 values through
float32 arithmetic.  Sources: tensorflow/lite/kernels/internal/reference and the Prepare functions
of tensorflow/lite/kernels, of the release that ``npulab.ENGINES`` names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from npulab.quant import fixed
from npulab.quant.emulate.engines import REAL
from npulab.quant.layers.operation import RULED, Operation, Placeholder
from npulab.quant.rules import QUANTIZED, RULES, QuantParams, Rule, half_away

GEMMLOWP = RULES["gemmlowp"]
Tensors = Sequence[np.ndarray]
SOFTMAX_BITS, SUM_BITS = 5, 12  # integer bits of a difference, and of a sum of exponentials
LEFT = {"int8": 20, "uint8": 20, "int16": 15}  # bits that codes are moved up before they are scaled
RESIZE = 2**10  # parts of a pixel


def batches(layer: Operation, x: Any, rule: str | Rule) -> np.ndarray:
    """The output for tensors as the layer states them, or, where it states a batch of 1, with any
    batch or none, which the output has too.

    Raises LookupError for a rule that the operator is not known under, ValueError for tensors that
    do not fit.
    """
    known = RULED[layer.kind]
    if known and rule not in known:
        raise LookupError(f"rule: got {rule!r}, allowed with {layer} is one of {', '.join(known)}")
    given = tuple(
        np.asarray(one)
        for one in (x if len(layer.moving) > 1 and isinstance(x, tuple | list) else (x,))
    )
    stated = [layer.inputs[place] for place in layer.moving]
    if len(given) != len(stated) or any(
        one.dtype.name != part.dtype for one, part in zip(given, stated, strict=False)
    ):
        got = ", ".join(f"{one.shape} {one.dtype}" for one in given)
        raise ValueError(f"x: got {got}, allowed with {layer} is {' and '.join(map(str, stated))}")
    single = all(part.shape[:1] == (1,) for part in (*stated, layer.output))
    images = _images(given, stated, single)
    if images is None:
        got = ", ".join(str(one.shape) for one in given)
        raise ValueError(
            f"x: got {got}, allowed with {layer} is "
            f"{' and '.join(str(part.shape) for part in stated)}"
            f"{', with another batch or without it' * single}"
        )
    out = [operate(layer, _with_constants(layer, image)) for image in images]
    if single and all(one.shape == part.shape[1:] for one, part in zip(given, stated, strict=True)):
        return out[0][0]
    if len(out) > 1:
        return np.concatenate(out)
    return out[0]


def _images(given: Tensors, stated: Sequence[Placeholder], single: bool) -> list[Tensors] | None:
    """The tensors image by image, in the stated shapes; None where they do not fit."""
    sizes = {one.size // math.prod(part.shape) for one, part in zip(given, stated, strict=True)}
    if len(sizes) != 1 or any(
        one.size % math.prod(part.shape) for one, part in zip(given, stated, strict=True)
    ):
        return None
    (count,) = sizes
    if count == 0 or (count > 1 and not single):
        return None
    for one, part in zip(given, stated, strict=True):
        inner = part.shape
        if single:
            inner = part.shape[1:]
        if one.shape not in (part.shape, inner, (count, *inner)):
            return None
    return [
        tuple(one.reshape(count, *part.shape)[n] for one, part in zip(given, stated, strict=True))
        for n in range(count)
    ]


def _with_constants(layer: Operation, moving: Tensors) -> list[np.ndarray]:
    tensors = iter(moving)
    return [
        layer.constants[place] if place in layer.constants else next(tensors)
        for place in range(len(layer.inputs))
    ]


def operate(layer: Operation, tensors: Tensors) -> np.ndarray:
    """The output, of tensors in the shapes that the layer states, constants among them."""
    out = KERNELS[layer.kind](layer, tensors)
    return (
        np.ascontiguousarray(out).reshape(layer.output.shape).astype(layer.output.dtype, copy=False)
    )


def _single(q: QuantParams) -> np.float32:
    return np.float32(np.asarray(q.scale))


def _range(dtype: str) -> tuple[int, int]:
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


def _bounds(layer: Operation, activation: str | None) -> tuple[int, int]:
    """The codes that an activation allows."""
    low, high = _range(layer.dtype)
    first, last = REAL[activation]
    q = layer.output.q
    scale = _single(q)
    if math.isfinite(first):
        low = max(low, q.zero_point + int(half_away(np.float32(first) / scale)))
    if math.isfinite(last):
        high = min(high, q.zero_point + int(half_away(np.float32(last) / scale)))
    return low, high


def _scaled(values: np.ndarray, ratio: float, zero_point: int = 0) -> np.ndarray:
    """Whole numbers times a ratio of scales, as a multiplier of 31 bits has it."""
    return GEMMLOWP.exact(values, *GEMMLOWP.of_ratio(np.asarray(ratio, np.float64)), zero_point)


def _centred(x: np.ndarray, of: Placeholder) -> np.ndarray:
    return x.astype(np.int64) - of.q.zero_point


# ---- element by element ----


def _sum(layer: Operation, tensors: Tensors) -> np.ndarray:
    sign = 1
    if layer.kind == "SUB":
        sign = -1
    a, b = tensors
    activation = layer.options["activation"]
    if layer.dtype not in QUANTIZED:
        return _clamped(a + sign * b, layer, activation)
    left = LEFT[layer.dtype]
    one, other = (float(_single(part.q)) for part in layer.inputs)
    largest = 2 * max(one, other)
    sums = sum(
        _scaled(_centred(x, part) * 2**left, factor * scale / largest)
        if factor > 0
        else -_scaled(_centred(x, part) * 2**left, scale / largest)
        for x, part, scale, factor in zip(
            tensors, layer.inputs, (one, other), (1, sign), strict=True
        )
    )
    ratio = largest / (2.0**left * float(_single(layer.output.q)))
    return _scaled(np.asarray(sums), ratio, layer.output.q.zero_point).clip(
        *_bounds(layer, activation)
    )


def _product(layer: Operation, tensors: Tensors) -> np.ndarray:
    a, b = tensors
    activation = layer.options["activation"]
    if layer.dtype not in QUANTIZED:
        return _clamped(a * b, layer, activation)
    ratio = _single(layer.inputs[0].q) * _single(layer.inputs[1].q) / _single(layer.output.q)
    products = _centred(a, layer.inputs[0]) * _centred(b, layer.inputs[1])
    return _scaled(products, float(ratio), layer.output.q.zero_point).clip(
        *_bounds(layer, activation)
    )


def _clamped(values: np.ndarray, layer: Operation, activation: str | None) -> np.ndarray:
    low, high = REAL[activation]
    if layer.dtype != "float32":
        return values
    return np.clip(values, np.float32(low), np.float32(high))


def _extreme(layer: Operation, tensors: Tensors) -> np.ndarray:
    return (np.maximum if layer.kind == "MAXIMUM" else np.minimum)(*tensors)


def _rectified(layer: Operation, tensors: Tensors) -> np.ndarray:
    (x,), activation = tensors, layer.kind.lower()
    if layer.dtype not in QUANTIZED:
        return _clamped(x, layer, activation)
    part = layer.inputs[0]
    ratio = float(_single(part.q) / _single(layer.output.q))
    return _scaled(_centred(x, part), ratio, layer.output.q.zero_point).clip(
        *_bounds(layer, activation)
    )


def _leaky(layer: Operation, tensors: Tensors) -> np.ndarray:
    (x,), part, alpha = tensors, layer.inputs[0], np.float32(layer.options["alpha"])
    if layer.dtype not in QUANTIZED:
        return np.where(x > 0, x, x * alpha)
    values, zero, scale = _centred(x, part), layer.output.q.zero_point, _single(layer.output.q)
    above = _scaled(values, float(_single(part.q) / scale), zero)
    slope = float(_single(part.q) * alpha / scale)
    if slope >= 0:
        below = _scaled(values, abs(slope))
    else:
        below = -_scaled(values, -slope)
    return np.where(values >= 0, above, below + zero).clip(*_range(layer.dtype))


def _curve(layer: Operation, tensors: Tensors) -> np.ndarray:
    """A function of one number: of codes of 8 bits by a table of all of them."""
    (x,), part = tensors, layer.inputs[0]
    function = _tanh
    if layer.kind == "LOGISTIC":
        function = _logistic
    with np.errstate(over="ignore"):
        if layer.dtype == "float32":
            return function(x)
        if layer.dtype == "int16":
            raise LookupError(
                f"rule: got tflite-reference with {layer}, allowed with it is int8, uint8 or "
                "float32"
            )
        low, high = _range(part.dtype)
        codes = np.arange(low, high + 1)
        values = function(_single(part.q) * (codes - part.q.zero_point).astype(np.float32))
    inverse = np.float32(1) / _single(layer.output.q)
    table = (half_away(values * inverse) + layer.output.q.zero_point).clip(*_range(layer.dtype))
    return table[x.astype(np.int64) - low]


def _logistic(values: np.ndarray) -> np.ndarray:
    # an exponential of float32 is that of float64, rounded
    return np.float32(1) / (np.float32(1) + np.exp(-values.astype(np.float64)).astype(np.float32))


def _tanh(values: np.ndarray) -> np.ndarray:
    return np.tanh(values.astype(np.float64)).astype(np.float32)


def _hard_swish(layer: Operation, tensors: Tensors) -> np.ndarray:
    (x,), part = tensors, layer.inputs[0]
    if layer.dtype == "float32":
        return x * np.clip(x + np.float32(3), np.float32(0), np.float32(6)) / np.float32(6)
    fine = np.float32(1 / 128) * _single(part.q)  # the input's scale with 7 more bits
    (multiplier, shift), (relu, relu_shift) = (
        _short(float(fine / scale)) for scale in (_single(layer.output.q), np.float32(3 / 32768))
    )
    values = _centred(x, part) * 2**7
    outputs = fixed.product(values, multiplier, 15)
    slope = values
    if relu_shift > 0:
        slope = np.clip(slope * 2 ** (relu_shift - 1), -(2**15), 2**15 - 1)
    slope = fixed.product(slope, relu, 15)
    if relu_shift > 0:
        slope = np.clip(slope * 2, -(2**15), 2**15 - 1)
    slope = fixed.shifted_right(slope, max(-relu_shift, 0))
    slope = (slope + 2**15) >> 1
    doubled = slope * outputs
    out = np.minimum(np.sign(doubled) * (np.abs(doubled) >> 15), 2**15 - 1)
    return (fixed.shifted_right(out, -shift) + layer.output.q.zero_point).clip(*_range(layer.dtype))


def _short(ratio: float) -> tuple[int, int]:
    """(multiplier of 16 bits, left shift) of a ratio."""
    multiplier, right_shift = (int(n) for n in GEMMLOWP.of_ratio(np.asarray(ratio)))
    return min((multiplier + 2**15) >> 16, 2**15 - 1), -right_shift


def _softmax(layer: Operation, tensors: Tensors) -> np.ndarray:
    (x,), part, beta = tensors, layer.inputs[0], layer.options["beta"]
    if layer.dtype == "float32":
        raised = np.exp(
            ((x - x.max(-1, keepdims=True)) * np.float32(beta)).astype(np.float64)
        ).astype(np.float32)
        return raised / raised.sum(-1, keepdims=True, dtype=np.float32)
    if layer.dtype == "int16":
        raise LookupError(
            f"rule: got tflite-reference with {layer}, allowed with it is int8, uint8 or float32"
        )
    factor = min(
        float(np.float32(beta)) * float(_single(part.q)) * 2.0 ** (31 - SOFTMAX_BITS), 2.0**31 - 1
    )
    multiplier, right_shift = (int(n) for n in GEMMLOWP.of_ratio(np.asarray(factor / 2.0**31)))
    left = 31 - right_shift
    least = -math.floor((2**SOFTMAX_BITS - 1) * 2.0 ** (31 - SOFTMAX_BITS) / 2.0**left)
    apart = x.astype(np.int64) - x.max(-1, keepdims=True).astype(np.int64)
    counts = apart >= least
    moved = fixed.product(np.where(counts, apart, 0) * 2**left, multiplier)
    raised = fixed.exponential(moved, SOFTMAX_BITS)
    sums = np.where(counts, fixed.shifted_right(raised, SUM_BITS), 0).sum(-1, keepdims=True)
    inverse, bits = fixed.reciprocal(sums, SUM_BITS)
    low, high = _range(layer.dtype)
    wide = 8 * np.dtype(layer.dtype).itemsize
    out = fixed.shifted_right(fixed.product(inverse, raised), bits + 31 - wide) + low
    return np.where(counts, out.clip(low, high), low)


def _quantize(layer: Operation, tensors: Tensors) -> np.ndarray:
    (x,), part, q = tensors, layer.inputs[0], layer.output.q
    if x.dtype.kind == "f":
        with np.errstate(over="ignore", invalid="ignore"):
            codes = half_away(
                np.nan_to_num(
                    (x / _single(q)).astype(np.float64), posinf=2.0**31, neginf=-(2.0**31)
                )
            )
    else:
        ratio = float(_single(part.q)) / float(_single(q))
        codes = _scaled(_centred(x, part), ratio)
    return (codes + q.zero_point).clip(*_range(layer.dtype))


def _dequantize(layer: Operation, tensors: Tensors) -> np.ndarray:
    part = layer.inputs[0]
    return (float(_single(part.q)) * _centred(tensors[0], part)).astype(np.float32)


# ---- moves of elements ----


def _same(layer: Operation, tensors: Tensors) -> np.ndarray:
    return tensors[0]


def _transpose(layer: Operation, tensors: Tensors) -> np.ndarray:
    return tensors[0].transpose(*np.asarray(tensors[1]).ravel().tolist())


def _concatenation(layer: Operation, tensors: Tensors) -> np.ndarray:
    if layer.kind == "PACK":
        return np.stack(tensors, layer.options["axis"])
    parts = []
    for x, part in zip(tensors, layer.inputs, strict=True):
        if layer.dtype == "uint8" and part.q != layer.output.q:
            scale = _single(part.q) * (np.float32(1) / _single(layer.output.q))
            bias = np.float32(-part.q.zero_point) * scale
            moved = half_away(x.astype(np.float32) * scale + bias) + layer.output.q.zero_point
            x = moved.clip(*_range("uint8")).astype(np.uint8)
        parts.append(x)
    return np.concatenate(parts, layer.options["axis"])


def _split(layer: Operation, tensors: Tensors) -> np.ndarray:
    if layer.kind == "UNPACK":
        return np.take(tensors[0], layer.part, layer.options["axis"])
    if layer.kind == "SPLIT":
        axis, x = int(np.asarray(tensors[0]).ravel()[0]), tensors[1]
        size = layer.output.shape[axis]
        first = layer.part * size
    else:
        x, sizes, axis = (
            tensors[0],
            np.asarray(tensors[1]).ravel().tolist(),
            int(np.asarray(tensors[2]).ravel()[0]),
        )
        if -1 in sizes:
            sizes[sizes.index(-1)] = x.shape[axis] - sum(sizes) - 1
        size, first = sizes[layer.part], sum(sizes[: layer.part])
    return np.take(x, range(first, first + size), axis)


def _slice(layer: Operation, tensors: Tensors) -> np.ndarray:
    x, begins, sizes = tensors[0], *(np.asarray(one).ravel().tolist() for one in tensors[1:3])
    return x[
        tuple(
            slice(begin, None if size < 0 else begin + size)
            for begin, size in zip(begins, sizes, strict=True)
        )
    ]


def _strided_slice(layer: Operation, tensors: Tensors) -> np.ndarray:
    x, options = tensors[0], layer.options
    begins, ends, strides = (np.asarray(one).ravel().tolist() for one in tensors[1:4])
    places: list[Any] = []
    for n, (begin, end, stride) in enumerate(zip(begins, ends, strides, strict=True)):
        bit = 2**n
        if options["ellipsis_mask"] & bit:
            places.append(Ellipsis)
        elif options["new_axis_mask"] & bit:
            places.append(None)
        elif options["shrink_axis_mask"] & bit:
            places.append(0 if options["begin_mask"] & bit else begin)
        else:
            if options["offset"]:
                end = begin + end
            places.append(
                slice(
                    None if options["begin_mask"] & bit else begin,
                    None if options["end_mask"] & bit else end,
                    stride,
                )
            )
    return x[tuple(places)]


def _pad(layer: Operation, tensors: Tensors) -> np.ndarray:
    value = layer.output.q.zero_point
    if len(tensors) > 2:
        value = np.asarray(tensors[2]).ravel()[0]
    return np.pad(tensors[0], np.asarray(tensors[1]).tolist(), constant_values=value)


# ---- sums and neighbours ----


def _mean(layer: Operation, tensors: Tensors) -> np.ndarray:
    x, part = tensors[0], layer.inputs[0]
    axes = tuple(sorted({int(axis) % x.ndim for axis in np.asarray(tensors[1]).ravel()}))
    count = math.prod(x.shape[axis] for axis in axes)
    if layer.dtype == "float32":
        return (x.sum(axes, dtype=np.float32) / np.float32(count)).astype(np.float32)
    q = layer.output.q
    sums = x.astype(np.int64).sum(axes)
    multiplier, right_shift = (
        int(n) for n in GEMMLOWP.of_ratio(np.asarray(float(_single(part.q) / _single(q))))
    )
    # the count goes into the multiplier, with as many bits as that leaves
    shift = min(count.bit_length() - 1, 32, 31 - right_shift)
    scaled = GEMMLOWP.exact(
        sums - count * part.q.zero_point, multiplier * 2**shift // count, right_shift + shift
    )
    return (scaled + q.zero_point).clip(*_range(layer.dtype))


def _place_of_largest(layer: Operation, tensors: Tensors) -> np.ndarray:
    return np.argmax(tensors[0], int(np.ravel(tensors[1])[0]))


def _resized(layer: Operation) -> tuple[tuple[int, int], tuple[int, int], bool, bool]:
    """(sizes before and after) of rows and of columns, and where pixels lie."""
    (height, width), (out_h, out_w) = layer.inputs[0].shape[1:3], layer.output.shape[1:3]
    align, centred = (bool(layer.options[name]) for name in ("align_corners", "half_pixel_centers"))
    return (height, out_h), (width, out_w), align, centred


def _scale(size: int, count: int, align: bool) -> np.float32:
    """Pixels of the input for one of the output."""
    if align and count > 1:
        return np.float32(size - 1) / np.float32(count - 1)
    return np.float32(size) / np.float32(count)


def _nearest(layer: Operation, tensors: Tensors) -> np.ndarray:
    *axes, align, centred = _resized(layer)
    places = []
    for size, count in axes:
        scale = _scale(size, count, align)
        at = (np.arange(count).astype(np.float32) + np.float32(0.5 if centred else 0)) * scale
        if align:
            index = half_away(at)
        else:
            index = np.floor(at)
        places.append(np.clip(index.astype(np.int64), 0 if centred else None, size - 1))
    return tensors[0][:, places[0]][:, :, places[1]]


def _bilinear(layer: Operation, tensors: Tensors) -> np.ndarray:
    *axes, align, centred = _resized(layer)
    if layer.dtype in ("int8", "int16"):
        (y0, y1, y), (x0, x1, x) = (
            _fixed_neighbours(size, count, align, centred) for size, count in axes
        )
        total = _corners(tensors[0].astype(np.int64), (y0, y1, y), (x0, x1, x), RESIZE)
        nudged = total + np.where(total > 0, 2**19, -(2**19))
        return np.sign(nudged) * (np.abs(nudged) >> 20)
    (y0, y1, y), (x0, x1, x) = (
        _real_neighbours(size, count, align, centred) for size, count in axes
    )
    total = _corners(tensors[0].astype(np.float32), (y0, y1, y), (x0, x1, x), np.float32(1))
    if layer.dtype == "float32":
        return total
    return np.floor(total + np.float32(0.5))


def _corners(image: np.ndarray, rows: Any, columns: Any, one: Any) -> np.ndarray:
    """The four neighbours of each output, by how near they are."""
    (y0, y1, y), (x0, x1, x) = rows, columns
    y, x = y[:, None, None], x[None, :, None]
    first, second = image[:, y0], image[:, y1]
    return (
        first[:, :, x0] * (one - y) * (one - x)
        + second[:, :, x0] * y * (one - x)
        + first[:, :, x1] * (one - y) * x
        + second[:, :, x1] * y * x
    )


def _fixed_neighbours(
    size: int, count: int, align: bool, centred: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(lower, upper, parts of a pixel from the lower to the output)."""
    if align and count > 1:
        step = (RESIZE * (size - 1) + (count - 1) // 2) // (count - 1)
    else:
        step = (RESIZE * size + count // 2) // count
    at = np.arange(count) * step + (step // 2 - RESIZE // 2 if centred else 0)
    lower = np.maximum(np.sign(at) * (np.abs(at) // RESIZE), 0)
    return lower, np.clip((at + RESIZE - 1) // RESIZE, 0, size - 1), at - RESIZE * lower


def _real_neighbours(
    size: int, count: int, align: bool, centred: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    scale = _scale(size, count, align)
    at = np.arange(count).astype(np.float32)
    if centred:
        at = (at + np.float32(0.5)) * scale - np.float32(0.5)
    else:
        at = at * scale
    floor = np.floor(at)
    lower = np.maximum(floor, 0).astype(np.int64)
    upper = np.minimum(np.ceil(at), size - 1).astype(np.int64)
    return lower, np.maximum(upper, 0), (at - lower).astype(np.float32)


KERNELS: Mapping[str, Callable[[Operation, Tensors], np.ndarray]] = MappingProxyType(
    {
        "ADD": _sum,
        "SUB": _sum,
        "MUL": _product,
        "MAXIMUM": _extreme,
        "MINIMUM": _extreme,
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
        "PACK": _concatenation,
        "UNPACK": _split,
        "SPLIT": _split,
        "SPLIT_V": _split,
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
