"""Orders of axes: a convolution and a depthwise convolution by the formulas of TensorFlow, NNAPI and
PyTorch, each with its own order of weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import npulab
from npulab.layout import convert_axes, dense_weights


def long(*values: Any) -> list[Any]:
    return [pytest.param(value, marks=pytest.mark.long) for value in values]


Pair = tuple[int, int]


def patch(x: np.ndarray, place: tuple[int, ...], window: Pair, s: Pair, d: Pair) -> np.ndarray:
    """``x[b, s0 * i + d0 * di, s1 * j + d1 * dj, :]`` for each (di, dj) of a window; ``place`` is
    (b, i, j).
    """
    rows = s[0] * place[1] + d[0] * np.arange(window[0])
    columns = s[1] * place[2] + d[1] * np.arange(window[1])
    return x[place[0], rows[:, None], columns]


def tensorflow_conv2d(x: np.ndarray, window: np.ndarray, s: Pair, out: Pair) -> np.ndarray:
    y = np.zeros((len(x), *out, window.shape[3]), int)
    for *place, k in np.ndindex(y.shape):
        y[*place, k] = np.sum(patch(x, place, window.shape[:2], s, (1, 1)) * window[..., k])
    return y


def tensorflow_depthwise(
    x: np.ndarray, window: np.ndarray, s: Pair, rate: Pair, out: Pair
) -> np.ndarray:
    kh, kw, channels, multiplier = window.shape
    y = np.zeros((len(x), *out, channels * multiplier), int)
    for *place, k, q in np.ndindex(len(x), *out, channels, multiplier):
        taps = patch(x, place, (kh, kw), s, rate)[..., k]
        y[*place, k * multiplier + q] = np.sum(taps * window[:, :, k, q])
    return y


def nnapi_conv2d(
    x: np.ndarray, window: np.ndarray, bias: np.ndarray, s: Pair, out: Pair
) -> np.ndarray:
    y = np.zeros((len(x), *out, len(window)), int)
    for *place, channel in np.ndindex(y.shape):
        taps = patch(x, place, window.shape[1:3], s, (1, 1))
        y[*place, channel] = bias[channel] + np.sum(taps * window[channel])
    return y


def nnapi_depthwise(
    x: np.ndarray, window: np.ndarray, bias: np.ndarray, s: Pair, out: Pair
) -> np.ndarray:
    multiplier = window.shape[3] // x.shape[3]
    y = np.zeros((len(x), *out, window.shape[3]), int)
    for *place, k, q in np.ndindex(len(x), *out, x.shape[3], multiplier):
        at = k * multiplier + q
        taps = patch(x, place, window.shape[1:3], s, (1, 1))[..., k]
        y[*place, at] = bias[at] + np.sum(taps * window[0, :, :, at])
    return y


def pytorch_conv2d(
    x: np.ndarray, window: np.ndarray, bias: np.ndarray, s: Pair, d: Pair, groups: int, out: Pair
) -> np.ndarray:
    """NCHW and OIHW: each group of output channels sees its own input channels."""
    o, per, kh, kw = window.shape
    y = np.zeros((len(x), o, *out), int)
    for b, k, i, j in np.ndindex(y.shape):
        first = k // (o // groups) * per
        taps = patch(x.transpose(0, 2, 3, 1), (b, i, j), (kh, kw), s, d)
        own = taps[..., first : first + per].transpose(2, 0, 1)
        y[b, k, i, j] = bias[k] + np.sum(own * window[k])
    return y


def same(x: np.ndarray, kernel: Pair, s: Pair, d: Pair) -> np.ndarray:
    """``x`` NHWC with the zeros that SAME puts around it."""
    around = []
    for n, k, stride, step in zip(x.shape[1:3], kernel, s, d, strict=True):
        total = max((-(-n // stride) - 1) * stride + (k - 1) * step + 1 - n, 0)
        around.append((total // 2, total - total // 2))
    return np.pad(x, [(0, 0), *around, (0, 0)])


@pytest.mark.parametrize("seed", [0, 1, 2, 3, *long(*range(4, 60))])
def test_a_convolution_in_three_conventions(seed: int) -> None:
    rng = np.random.default_rng([30, seed])
    kernel, s = tuple(rng.integers(1, 4, 2).tolist()), tuple(rng.integers(1, 4, 2).tolist())
    channels, outs, n = int(rng.integers(1, 5)), int(rng.integers(1, 6)), int(rng.integers(1, 3))
    size = tuple(rng.integers(4, 8, 2).tolist())
    hwio = rng.integers(-127, 128, (*kernel, channels, outs)).astype(np.int8)
    bias = rng.integers(-99, 99, outs).astype(np.int32)
    x = rng.integers(-128, 128, (n, *size, channels)).astype(np.int8)
    ohwi = convert_axes(hwio, "HWIO", "OHWI")
    oihw = convert_axes(hwio, "HWIO", "OIHW")
    padding = ("same", "valid")[seed % 2]
    layer = npulab.Conv2D(ohwi, bias, (*size, channels), s, padding)
    got = npulab.accumulate(layer, x)
    wide = same(x.astype(int), kernel, s, (1, 1)) if padding == "same" else x.astype(int)
    out = got.shape[1:3]
    if padding == "same":
        assert out == tuple(-(-a // b) for a, b in zip(size, s, strict=True))
    assert np.array_equal(got, tensorflow_conv2d(wide, hwio.astype(int), s, out) + bias)
    assert np.array_equal(got, nnapi_conv2d(wide, ohwi.astype(int), bias, s, out))
    nchw = convert_axes(wide, "NHWC", "NCHW")
    torch = pytorch_conv2d(nchw, oihw.astype(int), bias, s, (1, 1), 1, out)
    assert np.array_equal(got, convert_axes(torch, "NCHW", "NHWC"))
    for order in ("OHWI", "OIHW", "IHWO", "WHIO"):
        there = convert_axes(hwio, "HWIO", order)
        assert np.array_equal(convert_axes(there, order, "HWIO"), hwio)


@pytest.mark.parametrize("seed", [0, 1, 2, 3, *long(*range(4, 60))])
def test_a_depthwise_convolution_in_three_conventions(seed: int) -> None:
    rng = np.random.default_rng([31, seed])
    kernel, s, d = (tuple(rng.integers(1, 4, 2).tolist()) for _ in range(3))
    if seed % 2:
        d = (1, 1)
    channels, multiplier, n = int(rng.integers(1, 5)), int(rng.integers(1, 4)), 2
    size = tuple(rng.integers(7, 10, 2).tolist())
    hwcm = rng.integers(-127, 128, (*kernel, channels, multiplier)).astype(np.int8)
    bias = rng.integers(-99, 99, channels * multiplier).astype(np.int32)
    x = rng.integers(-128, 128, (n, *size, channels)).astype(np.int8)
    one = convert_axes(hwcm, "HWCM", "1HW(CM)")
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
    torch = convert_axes(one, "1HWC", "(CM)1HW", C=channels)
    y = pytorch_conv2d(wide.transpose(0, 3, 1, 2), torch.astype(int), bias, s, d, channels, out)
    assert np.array_equal(got, convert_axes(y, "NCHW", "NHWC"))
    dense = dense_weights(hwcm, "HWCM", channels)
    assert np.array_equal(
        got, npulab.accumulate(npulab.Conv2D(dense, bias, (*size, channels), s, padding, d), x)
    )
    back = convert_axes(torch, "(CM)1HW", "HWCM", C=channels)
    assert np.array_equal(back, hwcm)
