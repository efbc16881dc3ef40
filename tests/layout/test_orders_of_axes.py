"""Orders of axes: a convolution and a depthwise convolution by the formulas of TensorFlow, NNAPI and
PyTorch, each with its own order of weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import npulab
import npulab.layout


def long(*values: Any) -> list[Any]:
    return [pytest.param(value, marks=pytest.mark.long) for value in values]


def tensorflow_conv2d(
    x: np.ndarray, window: np.ndarray, s: tuple[int, int], out: tuple[int, int]
) -> np.ndarray:
    n, kh, kw, o = len(x), *window.shape[:2], window.shape[3]
    y = np.zeros((n, *out, o), int)
    for b, i, j, k in np.ndindex(y.shape):
        y[b, i, j, k] = sum(
            x[b, s[0] * i + di, s[1] * j + dj, q] * window[di, dj, q, k]
            for di in range(kh)
            for dj in range(kw)
            for q in range(window.shape[2])
        )
    return y


def tensorflow_depthwise(
    x: np.ndarray,
    window: np.ndarray,
    s: tuple[int, int],
    rate: tuple[int, int],
    out: tuple[int, int],
) -> np.ndarray:
    kh, kw, channels, multiplier = window.shape
    y = np.zeros((len(x), *out, channels * multiplier), int)
    for b, i, j, k, q in np.ndindex(len(x), *out, channels, multiplier):
        y[b, i, j, k * multiplier + q] = sum(
            window[di, dj, k, q] * x[b, s[0] * i + rate[0] * di, s[1] * j + rate[1] * dj, k]
            for di in range(kh)
            for dj in range(kw)
        )
    return y


def nnapi_conv2d(
    x: np.ndarray, window: np.ndarray, bias: np.ndarray, s: tuple[int, int], out: tuple[int, int]
) -> np.ndarray:
    y = np.zeros((len(x), *out, len(window)), int)
    for b, i, j, channel in np.ndindex(y.shape):
        y[b, i, j, channel] = bias[channel] + sum(
            x[b, s[0] * i + di, s[1] * j + dj, k] * window[channel, di, dj, k]
            for di in range(window.shape[1])
            for dj in range(window.shape[2])
            for k in range(window.shape[3])
        )
    return y


def nnapi_depthwise(
    x: np.ndarray, window: np.ndarray, bias: np.ndarray, s: tuple[int, int], out: tuple[int, int]
) -> np.ndarray:
    channels = x.shape[3]
    multiplier = window.shape[3] // channels
    y = np.zeros((len(x), *out, window.shape[3]), int)
    for b, i, j, k, q in np.ndindex(len(x), *out, channels, multiplier):
        at = k * multiplier + q
        y[b, i, j, at] = bias[at] + sum(
            x[b, s[0] * i + di, s[1] * j + dj, k] * window[0, di, dj, at]
            for di in range(window.shape[1])
            for dj in range(window.shape[2])
        )
    return y


def pytorch_conv2d(
    x: np.ndarray,
    window: np.ndarray,
    bias: np.ndarray,
    s: tuple[int, int],
    d: tuple[int, int],
    groups: int,
    out: tuple[int, int],
) -> np.ndarray:
    """NCHW and OIHW: each group of output channels sees its own input channels."""
    o, per, kh, kw = window.shape
    y = np.zeros((len(x), o, *out), int)
    for b, k, i, j in np.ndindex(y.shape):
        first = k // (o // groups) * per
        y[b, k, i, j] = bias[k] + sum(
            x[b, first + c, s[0] * i + d[0] * di, s[1] * j + d[1] * dj] * window[k, c, di, dj]
            for c in range(per)
            for di in range(kh)
            for dj in range(kw)
        )
    return y


def same(
    x: np.ndarray, kernel: tuple[int, int], s: tuple[int, int], d: tuple[int, int]
) -> np.ndarray:
    """``x`` NHWC with the zeros that SAME puts around it."""
    around = []
    for n, k, stride, step in zip(x.shape[1:3], kernel, s, d, strict=True):
        total = max((-(-n // stride) - 1) * stride + (k - 1) * step + 1 - n, 0)
        around.append((total // 2, total - total // 2))
    return np.pad(x, [(0, 0), *around, (0, 0)])


@pytest.mark.parametrize("seed", [0, 1, 2, 3, *long(*range(4, 60))])
def test_a_convolution_in_three_conventions(seed: int) -> None:
    rng = np.random.default_rng([30, seed])
    kernel, s = tuple(map(int, rng.integers(1, 4, 2))), tuple(map(int, rng.integers(1, 4, 2)))
    channels, outs, n = int(rng.integers(1, 5)), int(rng.integers(1, 6)), int(rng.integers(1, 3))
    size = tuple(int(v) for v in rng.integers(4, 8, 2))
    hwio = rng.integers(-127, 128, (*kernel, channels, outs)).astype(np.int8)
    bias = rng.integers(-99, 99, outs).astype(np.int32)
    x = rng.integers(-128, 128, (n, *size, channels)).astype(np.int8)
    ohwi = npulab.layout.convert_axes(hwio, "HWIO", "OHWI")
    oihw = npulab.layout.convert_axes(hwio, "HWIO", "OIHW")
    padding = ("same", "valid")[seed % 2]
    layer = npulab.Conv2D(ohwi, bias, (*size, channels), s, padding)
    got = npulab.accumulate(layer, x)
    wide = same(x.astype(int), kernel, s, (1, 1)) if padding == "same" else x.astype(int)
    out = got.shape[1:3]
    if padding == "same":
        assert out == tuple(-(-a // b) for a, b in zip(size, s, strict=True))
    assert np.array_equal(got, tensorflow_conv2d(wide, hwio.astype(int), s, out) + bias)
    assert np.array_equal(got, nnapi_conv2d(wide, ohwi.astype(int), bias, s, out))
    nchw = npulab.layout.convert_axes(wide, "NHWC", "NCHW")
    torch = pytorch_conv2d(nchw, oihw.astype(int), bias, s, (1, 1), 1, out)
    assert np.array_equal(got, npulab.layout.convert_axes(torch, "NCHW", "NHWC"))
    for order in ("OHWI", "OIHW", "IHWO", "WHIO"):
        there = npulab.layout.convert_axes(hwio, "HWIO", order)
        assert np.array_equal(npulab.layout.convert_axes(there, order, "HWIO"), hwio)


@pytest.mark.parametrize("seed", [0, 1, 2, 3, *long(*range(4, 60))])
def test_a_depthwise_convolution_in_three_conventions(seed: int) -> None:
    rng = np.random.default_rng([31, seed])
    kernel, s, d = (tuple(map(int, rng.integers(1, 4, 2))) for _ in range(3))
    if seed % 2:
        d = (1, 1)
    channels, multiplier, n = int(rng.integers(1, 5)), int(rng.integers(1, 4)), 2
    size = tuple(int(v) for v in rng.integers(7, 10, 2))
    hwcm = rng.integers(-127, 128, (*kernel, channels, multiplier)).astype(np.int8)
    bias = rng.integers(-99, 99, channels * multiplier).astype(np.int32)
    x = rng.integers(-128, 128, (n, *size, channels)).astype(np.int8)
    one = npulab.layout.convert_axes(hwcm, "HWCM", "1HW(CM)")
    padding = ("same", "valid")[seed // 2 % 2]
    got = npulab.accumulate(
        npulab.Conv2D(one, bias, (*size, channels), s, padding, d, depthwise=True), x
    )
    wide, out = (
        same(x.astype(int), kernel, s, d) if padding == "same" else x.astype(int),
        got.shape[1:3],
    )
    assert np.array_equal(got, tensorflow_depthwise(wide, hwcm.astype(int), s, d, out) + bias)
    if d == (1, 1):
        assert np.array_equal(got, nnapi_depthwise(wide, one.astype(int), bias, s, out))
    torch = npulab.layout.convert_axes(one, "1HWC", "(CM)1HW", C=channels)
    y = pytorch_conv2d(wide.transpose(0, 3, 1, 2), torch.astype(int), bias, s, d, channels, out)
    assert np.array_equal(got, npulab.layout.convert_axes(y, "NCHW", "NHWC"))
    dense = npulab.layout.dense_weights(hwcm, "HWCM", channels)
    assert np.array_equal(
        got, npulab.accumulate(npulab.Conv2D(dense, bias, (*size, channels), s, padding, d), x)
    )
    back = npulab.layout.convert_axes(torch, "(CM)1HW", "HWCM", C=channels)
    assert np.array_equal(back, hwcm)
