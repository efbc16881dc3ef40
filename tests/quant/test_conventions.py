"""Conventions: each framework's formula, written as it is stated, gives what npulab computes;
formats are strides.
"""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import npulab
from npulab.layout import (
    CONVENTIONS,
    FORMATS,
    convert_axes,
    dense_weights,
    find_layout,
    format_layout,
    format_strides,
    is_format,
    markers,
    memory_format,
    strides_layout,
)
from npulab.quant.layers import Conv2D, pads
from npulab.quant.rules import QuantParams

Ints = np.ndarray
CASES, MANY = 25, 1000


def border(x: Ints, sides: Any) -> Ints:
    """(B, H, W, C) with zeros around it."""
    return np.pad(x, ((0, 0), *sides, (0, 0)))


def windows(size: Any, kernel: Any, strides: Any, rate: Any) -> list[int]:
    """How many windows fit, by rows and by columns."""
    return ((np.subtract(size, 1) - np.subtract(kernel, 1) * rate) // strides + 1).tolist()


# The formulas of the seed, each in the order of its framework; x has its border.


def tensorflow_conv(x: Ints, filters: Ints, strides: Any, rate: Any) -> Ints:
    """output[b, i, j, k] = sum_{di, dj, q} input[b, s1 i + di, s2 j + dj, q] filter[di, dj, q,
    k]
    """
    (batch, height, width, _), (kh, kw, inputs, outputs) = x.shape, filters.shape
    rows, columns = windows((height, width), (kh, kw), strides, rate)
    out = np.zeros((batch, rows, columns, outputs), np.int64)
    for b, i, j, k in np.ndindex(out.shape):
        out[b, i, j, k] = sum(
            x[b, strides[0] * i + rate[0] * di, strides[1] * j + rate[1] * dj, q]
            * filters[di, dj, q, k]
            for di, dj, q in product(range(kh), range(kw), range(inputs))
        )
    return out


def tensorflow_depthwise(x: Ints, filters: Ints, strides: Any, rate: Any) -> Ints:
    """output[b, i, j, k M + q] = sum_{di, dj} filter[di, dj, k, q] input[b, s1 i + r0 di, s2 j +
    r1 dj, k]
    """
    (batch, height, width, _), (kh, kw, channels, multiplier) = x.shape, filters.shape
    rows, columns = windows((height, width), (kh, kw), strides, rate)
    out = np.zeros((batch, rows, columns, channels * multiplier), np.int64)
    for b, i, j, k, q in np.ndindex(*out.shape[:3], channels, multiplier):
        out[b, i, j, k * multiplier + q] = sum(
            filters[di, dj, k, q]
            * x[b, strides[0] * i + rate[0] * di, strides[1] * j + rate[1] * dj, k]
            for di, dj in product(range(kh), range(kw))
        )
    return out


def nnapi_conv(x: Ints, filters: Ints, bias: Ints, strides: Any, rate: Any) -> Ints:
    """output[b, i, j, channel] = sum_{di, dj, k} (input[b, s1 i + di, s2 j + dj, k]
    filter[channel, di, dj, k]) + bias[channel]
    """
    (batch, height, width, _), (outputs, kh, kw, inputs) = x.shape, filters.shape
    rows, columns = windows((height, width), (kh, kw), strides, rate)
    out = np.zeros((batch, rows, columns, outputs), np.int64)
    for b, i, j, channel in np.ndindex(out.shape):
        out[b, i, j, channel] = bias[channel] + sum(
            x[b, strides[0] * i + rate[0] * di, strides[1] * j + rate[1] * dj, k]
            * filters[channel, di, dj, k]
            for di, dj, k in product(range(kh), range(kw), range(inputs))
        )
    return out


def nnapi_depthwise(x: Ints, filters: Ints, bias: Ints, strides: Any, rate: Any) -> Ints:
    """output[b, i, j, k M + q] = sum_{di, dj} (input[b, s1 i + di, s2 j + dj, k] filter[1, di,
    dj, k M + q]) + bias[k M + q]
    """
    (batch, height, width, channels), (_, kh, kw, outputs) = x.shape, filters.shape
    multiplier = outputs // channels
    rows, columns = windows((height, width), (kh, kw), strides, rate)
    out = np.zeros((batch, rows, columns, outputs), np.int64)
    for b, i, j, k, q in np.ndindex(*out.shape[:3], channels, multiplier):
        out[b, i, j, k * multiplier + q] = bias[k * multiplier + q] + sum(
            x[b, strides[0] * i + rate[0] * di, strides[1] * j + rate[1] * dj, k]
            * filters[0, di, dj, k * multiplier + q]
            for di, dj in product(range(kh), range(kw))
        )
    return out


def pytorch_conv(x: Ints, weight: Ints, bias: Ints, strides: Any, rate: Any, groups: int) -> Ints:
    """out[b, o] = bias[o] + sum_k weight[o, k] * input[b, k of the group of o], a
    cross-correlation of planes; NCHW.
    """
    (batch, channels, height, width), (outputs, inputs, kh, kw) = x.shape, weight.shape
    assert inputs * groups == channels
    rows, columns = windows((height, width), (kh, kw), strides, rate)
    out = np.zeros((batch, outputs, rows, columns), np.int64)
    for b, o, i, j in np.ndindex(out.shape):
        first = o // (outputs // groups) * inputs
        out[b, o, i, j] = bias[o] + sum(
            weight[o, k, di, dj]
            * x[b, first + k, strides[0] * i + rate[0] * di, strides[1] * j + rate[1] * dj]
            for k, di, dj in product(range(inputs), range(kh), range(kw))
        )
    return out


def case(seed: int, depthwise: bool) -> tuple[Conv2D, Ints, Ints, Ints, dict[str, Any]]:
    """(layer, x, x and weights as real codes with the border, how the window moves)."""
    random = np.random.default_rng(seed)
    channels, outputs = int(random.integers(1, 5)), int(random.integers(1, 5))
    kernel, stride, dilation = (tuple(int(n) for n in random.integers(1, 4, 2)) for _ in range(3))
    shape = tuple(
        int((k - 1) * d + 1 + random.integers(0, 6)) for k, d in zip(kernel, dilation, strict=True)
    )
    wide = (1, *kernel, channels * outputs) if depthwise else (outputs, *kernel, channels)
    weights = random.integers(-128, 128, wide).astype(np.int8)
    layer = Conv2D(
        weights,
        random.integers(-1000, 1000, wide[3] if depthwise else outputs),
        (*shape, channels),
        stride,
        ("same", "valid")[seed % 2],
        dilation,
        depthwise,
        input_q=QuantParams(1.0, int(random.integers(-128, 128))),
        weight_q=QuantParams(1.0, int(random.integers(-128, 128))),
    )
    x = random.integers(-128, 128, (int(random.integers(1, 3)), *shape, channels)).astype(np.int8)
    codes = border(x.astype(np.int64) - layer.input_q.zero_point, layer.pads)
    return (
        layer,
        x,
        codes,
        weights.astype(np.int64) - layer.weight_q.zero_point,
        {"strides": stride, "rate": dilation},
    )


def agrees(formula: str, count: int) -> None:
    for seed in range(count):
        depthwise = "depthwise" in formula
        layer, x, codes, weights, moves = case(seed, depthwise)
        channels, expected = layer.input_shape[2], npulab.accumulate(layer, x)
        names = CONVENTIONS[formula.split()[0]]
        to, sizes = (names.depthwise, {"C": channels}) if depthwise else (names.weights, {})
        theirs = convert_axes(weights, "1HWC" if depthwise else "OHWI", to, **sizes)
        codes = convert_axes(codes, "NHWC", names.activations)
        if formula == "tensorflow conv":
            out = tensorflow_conv(codes, theirs, **moves) + layer.bias
        elif formula == "tensorflow depthwise":
            out = tensorflow_depthwise(codes, theirs, **moves) + layer.bias
        elif formula == "nnapi conv":
            out = nnapi_conv(codes, theirs, layer.bias, **moves)
        elif formula == "nnapi depthwise":
            out = nnapi_depthwise(codes, theirs, layer.bias, **moves)
        else:
            out = pytorch_conv(
                codes, theirs, layer.bias, **moves, groups=channels if depthwise else 1
            )
        assert np.array_equal(convert_axes(out, names.activations, "NHWC"), expected), (
            formula,
            seed,
        )
        back = convert_axes(theirs, to, "1HWC" if depthwise else "OHWI", **sizes)
        assert np.array_equal(back, weights)


def pytorch_groups(count: int) -> None:
    for seed in range(count):
        random = np.random.default_rng(seed)
        groups, inputs, outputs = (int(n) for n in random.integers(1, 4, 3))
        weight = random.integers(-128, 128, (groups * outputs, inputs, 2, 3)).astype(np.int8)
        zero = int(random.integers(-128, 128))
        layer = Conv2D(
            dense_weights(weight, "OIHW", groups, fill=zero),
            random.integers(-99, 99, groups * outputs),
            (5, 6, groups * inputs),
            (1, 2),
            "same",
            weight_q=QuantParams(1.0, zero),
        )
        x = random.integers(-128, 128, (2, *layer.input_shape)).astype(np.int8)
        planes = convert_axes(border(x.astype(np.int64), layer.pads), "NHWC", "NCHW")
        out = pytorch_conv(
            planes, weight.astype(np.int64) - zero, layer.bias, (1, 2), (1, 1), groups
        )
        assert np.array_equal(convert_axes(out, "NCHW", "NHWC"), npulab.accumulate(layer, x)), seed


counts = pytest.mark.parametrize("count", [CASES, pytest.param(MANY, marks=pytest.mark.long)])


@counts
@pytest.mark.parametrize("kind", ["conv", "depthwise"])
@pytest.mark.parametrize("framework", ["tensorflow", "nnapi", "pytorch"])
def test_a_formula_gives_our_sums(framework: str, kind: str, count: int) -> None:
    agrees(f"{framework} {kind}", count)


@counts
def test_pytorch_conv2d_with_groups(count: int) -> None:
    pytorch_groups(count)


def test_a_depthwise_convolution_is_a_dense_one_of_fill() -> None:
    for seed in range(CASES):
        layer, x, *_ = case(seed, depthwise=True)
        channels = layer.input_shape[2]
        for source in ("1HWC", "HWCM", "C1HW"):
            theirs = convert_axes(layer.weights, "1HWC", source, C=channels)
            dense = dense_weights(theirs, source, channels, layer.weight_q.zero_point)
            same = Conv2D(
                dense,
                layer.bias,
                layer.input_shape,
                layer.stride,
                layer.padding,
                layer.dilation,
                input_q=layer.input_q,
                weight_q=layer.weight_q,
            )
            assert np.array_equal(npulab.accumulate(same, x), npulab.accumulate(layer, x)), (
                source,
                seed,
            )


def test_groups_of_one_channel_are_depthwise() -> None:
    weights = np.arange(24).reshape(6, 1, 2, 2)  # PyTorch's, of 3 input channels
    assert np.array_equal(
        convert_axes(weights, "OIHW", "IHWO"), convert_axes(weights, "C1HW", "1HWC")
    )
    assert np.array_equal(dense_weights(weights, "OIHW", 3), dense_weights(weights, "C1HW", 3))
    assert dense_weights(weights, "OIHW", 1).tolist() == weights.transpose(0, 2, 3, 1).tolist()
    assert dense_weights(weights, "C1HW", 3, to="HWIO").shape == (2, 2, 3, 6)


def test_channels_are_numbered_input_channel_first() -> None:
    hwcm = np.arange(6).reshape(1, 1, 3, 2)  # 3 channels, 2 outputs of each
    assert convert_axes(hwcm, "HWCM", "1HWC").ravel().tolist() == [0, 1, 2, 3, 4, 5]
    assert convert_axes(hwcm, "HWCM", "HWMC").ravel().tolist() == [0, 2, 4, 1, 3, 5]
    assert convert_axes(np.arange(6), "(MC)", "(CM)", C=3).tolist() == [0, 3, 1, 4, 2, 5]


@pytest.mark.parametrize(
    ("shape", "source", "to", "sizes", "message"),
    [
        (
            (1, 2, 3, 4),
            "OHWI",
            "HWIX",
            {},
            "to: got 'HWIX', allowed are the letters of 'OHWI', each once",
        ),
        (
            (1, 2, 3),
            "OHWI",
            "HWIO",
            {},
            "tensor: got shape (1, 2, 3), allowed are 4 axes, as 'OHWI' says",
        ),
        (
            (1, 2, 3, 4),
            "OHWI",
            "HWIOO",
            {},
            "to: got 'HWIOO', allowed are capital letters, each once, 1, and letters of one axis in brackets, such as "
            "'OHWI' or '1HW(CM)'",
        ),
        (
            (1, 2, 3, 4),
            "ohwi",
            "HWIO",
            {},
            "source: got 'ohwi', allowed are capital letters, each once, 1, and letters of one axis in brackets, such as "
            "'OHWI' or '1HW(CM)'",
        ),
        (
            (2, 2, 3, 4),
            "1HWC",
            "HWCM",
            {"C": 2},
            "tensor: got 2 indices on an axis that the order calls 1, allowed is 1",
        ),
        (
            (1, 2, 3, 4),
            "1HWC",
            "HWCM",
            {},
            "sizes: got no size of C, M, allowed are sizes of all but one of these letters, such as C=2: they divide the 4 indices of (CM)",
        ),
        (
            (1, 2, 3, 4),
            "1HWC",
            "HWCM",
            {"C": 3},
            "sizes: got C=3, allowed are sizes whose product is the 4 indices of CM",
        ),
        (
            (1, 2, 3, 4),
            "1HWC",
            "HWCM",
            {"C": 0},
            "sizes: got C=0, allowed are sizes whose product is the 4 indices of CM",
        ),
        (
            (1, 2, 3, 4),
            "1HWC",
            "HWCM",
            {"C": 1, "M": 2},
            "sizes: got C=1, M=2, allowed are sizes whose product is the 4 indices of CM",
        ),
        (
            (1, 2, 3, 4),
            "OHWI",
            "HWIO",
            {"I": 3},
            "sizes: got I=3, allowed are sizes whose product is the 4 indices of I",
        ),
        ((1, 2, 3, 4), "OHWI", "HWIO", {"C": 3}, "sizes: got C=3, allowed are letters of 'OHWI'"),
    ],
)
def test_orders_refused(
    shape: Any, source: str, to: str, sizes: dict[str, int], message: str
) -> None:
    with pytest.raises(ValueError) as error:
        convert_axes(np.zeros(shape), source, to, **sizes)
    assert str(error.value) == message


def test_groups_refused() -> None:
    with pytest.raises(ValueError) as error:
        dense_weights(np.zeros((4, 1, 1, 1)), "OIHW", 3)
    assert str(error.value) == "groups: got 3, allowed is a divisor of the 4 output channels"
    with pytest.raises(ValueError) as error:
        dense_weights(np.zeros((4, 1, 1, 1), np.int8), "OIHW", 2, fill=128)
    assert str(error.value) == "fill: got 128, allowed is -128 to 127, the range of int8"


@given(
    size=st.integers(1, 64),
    kernel=st.integers(1, 9),
    stride=st.integers(1, 9),
    dilation=st.integers(1, 5),
)
def test_same_is_as_it_is_stated(size: int, kernel: int, stride: int, dilation: int) -> None:
    (before, after), _ = pads("same", (size, 1, 1), (kernel, 1), (stride, 1), (dilation, 1))
    reach = (kernel - 1) * dilation + 1
    outputs = math.ceil(size / stride)
    total = max((outputs - 1) * stride + reach - size, 0)
    assert (before, after) == (total // 2, total - total // 2)
    # TensorFlow states the total by the rest of the division
    assert total == max(reach - (size % stride or stride), 0)
    layer = Conv2D(
        np.zeros((1, kernel, 1, 1), np.int8),
        np.zeros(1, int),
        (size, 1, 1),
        (stride, 1),
        "same",
        (dilation, 1),
    )
    assert layer.output_shape[0] == outputs
    # every input from the first window's start on is reached, and no window begins outside of it
    # all
    assert before < reach
    assert after < reach


# Shapes and strides as PyTorch documents them: the tutorial on channels last, torch.Tensor.to,
# c10/core/MemoryFormat.h.
@pytest.mark.parametrize(
    ("shape", "name", "strides"),
    [
        ((10, 3, 32, 32), "contiguous", (3072, 1024, 32, 1)),
        ((10, 3, 32, 32), "channels_last", (3072, 1, 96, 3)),
        ((2, 3, 4, 4), "channels_last", (48, 1, 12, 3)),
        ((4, 1, 2, 2), "channels_last", (4, 1, 2, 1)),
        ((2, 3, 4, 5, 6), "channels_last_3d", (360, 1, 90, 18, 3)),
        ((2, 3, 4, 5, 6), "contiguous", (360, 120, 30, 6, 1)),
        ((), "contiguous", ()),
        ((0, 3, 2, 2), "contiguous", (12, 4, 2, 1)),
        ((2, 0, 3), "contiguous", (3, 3, 1)),
        ((0, 3, 2, 2), "channels_last", (12, 1, 6, 3)),
        ((2, 3), "contiguous", (3, 1)),
    ],
)
def test_strides_of_formats(shape: tuple[int, ...], name: str, strides: tuple[int, ...]) -> None:
    assert format_strides(shape, name) == strides
    assert is_format(shape, strides, name)


@pytest.mark.parametrize(
    ("shape", "strides", "suggested", "fitting"),
    [
        # one channel: both are without gaps, the stride of the channel decides
        ((2, 1, 4, 4), (16, 16, 4, 1), "contiguous", {"contiguous", "channels_last"}),
        ((2, 1, 4, 4), (16, 1, 4, 1), "channels_last", {"contiguous", "channels_last"}),
        # one pixel
        ((2, 8, 1, 1), (8, 1, 1, 1), "contiguous", {"contiguous", "channels_last"}),
        ((2, 8, 1, 1), (8, 1, 8, 8), "channels_last", {"contiguous", "channels_last"}),
        # N111 says nothing
        ((5, 1, 1, 1), (1, 1, 1, 1), "contiguous", {"contiguous", "channels_last"}),
        ((5, 1, 1, 1), (7, 7, 7, 7), "contiguous", set()),
        # one row: N1H1 of both kinds
        ((1, 1, 6, 1), (6, 1, 1, 1), "channels_last", {"contiguous", "channels_last"}),
        ((1, 1, 6, 1), (6, 6, 1, 1), "contiguous", {"contiguous", "channels_last"}),
        # a part of a larger tensor has gaps: no format without gaps, the order is seen all the same
        ((2, 3, 4, 4), (192, 1, 24, 3), "channels_last", set()),
        ((2, 3, 4, 4), (96, 32, 8, 1), "contiguous", set()),
        # an expanded channel
        ((2, 3, 4, 4), (16, 0, 4, 1), "contiguous", set()),
        ((0, 3, 2, 2), (12, 1, 6, 3), "contiguous", {"contiguous", "channels_last"}),
        ((2, 3, 4, 5, 6), (360, 1, 90, 18, 3), "channels_last_3d", {"channels_last_3d"}),
        (
            (2, 1, 4, 5, 6),
            (120, 1, 30, 6, 1),
            "channels_last_3d",
            {"contiguous", "channels_last_3d"},
        ),
        ((2, 1, 4, 5, 6), (120, 120, 30, 6, 1), "contiguous", {"contiguous", "channels_last_3d"}),
        ((3, 4, 4), (1, 12, 3), "contiguous", set()),
        ((4, 3), (3, 1), "contiguous", {"contiguous"}),
    ],
)
def test_format_of_strides(shape: Any, strides: Any, suggested: str, fitting: set[str]) -> None:
    assert memory_format(shape, strides) == suggested
    assert {name for name in FORMATS if is_format(shape, strides, name)} == fitting


@given(shape=st.lists(st.integers(1, 4), min_size=4, max_size=5).map(tuple))
def test_formats_are_what_numpy_has(shape: tuple[int, ...]) -> None:
    last = "channels_last" if len(shape) == 4 else "channels_last_3d"
    moved = np.moveaxis(np.zeros((shape[0], *shape[2:], shape[1]), np.int16), -1, 1)
    for name, tensor in (("contiguous", np.zeros(shape, np.int16)), (last, moved)):
        strides = tuple(one // 2 for one in tensor.strides)
        # numpy leaves strides of one index as they come
        assert [one for one, n in zip(strides, shape, strict=True) if n > 1] == [
            one for one, n in zip(format_strides(shape, name), shape, strict=True) if n > 1
        ]
        assert is_format(shape, strides, name)
        layout = format_layout(shape, name, dtype="int16")
        values = np.arange(math.prod(shape), dtype=np.int16).reshape(shape)
        held = values if name == "contiguous" else np.moveaxis(values, 1, -1)
        assert layout.pack(values) == held.astype("<i2").tobytes()
        assert np.array_equal(layout.unpack(held.astype("<i2").tobytes()), values)
    if min(shape) > 1:
        assert memory_format(shape, format_strides(shape, last)) == last
        assert memory_format(shape, format_strides(shape, "contiguous")) == "contiguous"


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        ((2, 5, 4, 3), "channels_last"),
        ((2, 5, 4, 3), "contiguous"),
        ((2, 3, 2, 4, 3), "channels_last_3d"),
        ((2, 3, 2, 4, 3), "contiguous"),
    ],
)
def test_layout_of_a_format_is_found(shape: tuple[int, ...], name: str) -> None:
    layout = format_layout(shape, name)
    tensors = markers(shape)
    found = find_layout(tensors, [layout.pack(one) for one in tensors])
    assert np.array_equal(found.index_map(), layout.index_map())


def test_layout_of_strides() -> None:
    part = np.arange(48, dtype=np.uint8).reshape(2, 4, 6)[:, 1:3, ::2]
    layout = strides_layout(part.shape, (24, 6, 2), offset=6, size=48)
    assert np.array_equal(layout.unpack(np.arange(48, dtype=np.uint8).tobytes()), part)
    turned = strides_layout((2, 3), (3, -1), offset=2)
    assert turned.index_map().tolist() == [[2, 1, 0], [5, 4, 3]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: format_strides((1, 2, 3, 4), "nhwc"),
            "format: got 'nhwc', allowed is contiguous, channels_last, channels_last_3d",
        ),
        (
            lambda: format_strides((1, 2, 3), "channels_last"),
            "shape: got (1, 2, 3), allowed with channels_last are 4 axes",
        ),
        (
            lambda: format_strides((1, -2), "contiguous"),
            "shape: got (1, -2), allowed are whole numbers, none negative",
        ),
        (
            lambda: memory_format((1, 2), (1,)),
            "strides: got (1,), allowed are 2, one for each axis of (1, 2)",
        ),
        (
            lambda: memory_format((1, 2), (1, 0.5)),
            "strides: got (1, 0.5), allowed are whole numbers",
        ),
        (
            lambda: strides_layout((2, 3), (0, 1)),
            "loops: got two elements at one place in CR, strides 1 0: (2, 3) uint8, 0 bytes",
        ),
    ],
)
def test_formats_refused(call: Any, message: str) -> None:
    with pytest.raises(ValueError) as error:
        call()
    assert str(error.value) == message
