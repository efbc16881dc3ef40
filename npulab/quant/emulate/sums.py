"""Accumulators, fast: matrix products in floating point, each guarded so that it is exact.

Input codes of 8 bits times weights are whole numbers, and so is every partial sum in any order.
float32 holds all of them exactly if none can reach 2**24, with or without fused multiply-add. The
largest possible sum of a channel is computed from its weights, as the largest code times ``sum
|w|``. This allows far deeper layers than assuming that all weights are as large as their type
allows. If that sum is too large, a matrix product is divided into shares of the depth that are
exact, which are added in float64. A depthwise sum is then computed in float64 as a whole, and so is
a matrix product of int16 codes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise, product

import numpy as np
from numpy import ndarray as Array

from npulab.quant.layers import Conv2D, Pool2D, Weighted
from npulab.quant.requantize import Scratch
from npulab.quant.rules import EXACT_FLOAT32, EXACT_FLOAT64

# A group has at least SHARE weights, and about SHARE absolute values of weights are summed at once.
SHARE = 16_384
Range = tuple[int, int]


@dataclass(frozen=True)
class Codes:
    """Input codes as they enter the products: 128 is subtracted from uint8 codes, so that they
    become int8 and the largest possible sum is halved. Other codes stay as they are.
    """

    dtype: np.dtype
    zero_point: int

    @property
    def zero(self) -> int:
        """The zero point of the codes as they enter the products."""
        return self.zero_point - (128 if self.dtype == np.uint8 else 0)

    @property
    def reach(self) -> int:
        """The largest absolute value of a code, including the codes of the border."""
        return max(2**15 if self.dtype == np.int16 else 2**7, abs(self.zero))

    def of(self, x: Array) -> Array:
        """Return the codes ``x`` as they enter the products, int8 or int16."""
        if self.dtype == np.uint8:
            return (x ^ np.uint8(0x80)).view(np.int8)
        return x


@dataclass(frozen=True)
class Weights:
    """The weights of some channels, prepared for the products.

    ``values`` are float32 or float64: ``(depth, channels)``, or ``(kernel_h, kernel_w, repeat *
    channels)`` for a depthwise convolution. ``shares`` are the ranges of the depth whose sums are
    exact in that type. ``bias`` is float64 and contains the effect of the input's zero point.
    ``most`` is the largest absolute value of an accumulator. ``repeat`` is the number of times that
    the channels stand in a row.
    ``single`` is true if the type of ``values`` holds every accumulator with its bias; ``bias_row``
    is then the bias in that type, for a whole row. If ``products`` is not None, it computes
    accumulators of int8 codes in int32, with the bias; ``values`` then have no rows and
    ``bias_row`` is 0.
    """

    values: Array
    shares: tuple[Range, ...]
    bias: Array
    most: float
    repeat: int = 1
    products: Callable[[Array, Array], Array] | None = None
    single: bool = field(init=False)
    bias_row: Array = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "single", len(self.shares) == 1 and self.most < _exact(self.values.dtype)
        )
        row = np.tile(self.bias.astype(self.values.dtype), self.repeat)
        object.__setattr__(self, "bias_row", row if self.products is None else np.zeros_like(row))


class Dense:
    """Convolutions and fully connected layers, as matrix products over windows laid out in rows.

    A group is a range of output channels. If ``keep`` is false and there are more weights than
    outputs, each group is prepared when it is needed and discarded after use; otherwise all
    weights are one group, prepared once. Codes are multiplied as int8 if ``fast`` is true, weights
    are prepared once, the processor can multiply int8 codes, and the sums fit into int32.
    """

    def __init__(self, layer: Weighted, dtype: np.dtype, keep: bool, fast: bool) -> None:
        self.layer = layer
        self.float = np.dtype(np.float64 if dtype == np.int16 else np.float32)
        self.codes = Codes(dtype, layer.input_q.zero_point)
        channels = len(layer.weights)
        self.border = Border(layer, self.codes.zero) if isinstance(layer, Conv2D) else None
        if self.border is None:
            weights = layer.weights
        else:
            weights = layer.weights[:, *self.border.taps]
        self.flat = weights.reshape(channels, -1)
        self.depth = self.flat.shape[1]
        if isinstance(layer, Conv2D):
            self.across = layer.output_shape[1]
        else:
            self.across = 1
        outputs = int(np.prod(layer.output_shape))
        self.keep = keep or self.flat.size <= outputs
        # A group has about as many weights as the layer has outputs, but at least an eighth of all
        # weights: an eighth in float32 takes half as much memory as all weights in 8 bits.
        if self.keep:
            count = 1
        else:
            count = min(channels, -(-self.flat.size // max(SHARE, outputs, self.flat.size // 8)))
        self.groups = list(pairwise(np.linspace(0, channels, count + 1).astype(int).tolist()))
        self._kept: dict[Range, Weights] = {}
        self.fast = fast and self.keep and self._multiplies()
        self.taken = np.dtype(np.int8) if self.fast else self.float
        self.windows = (
            Windows(layer, self.border, self.taken)
            if isinstance(layer, Conv2D) and self.border
            else None
        )
        # A block also holds the windows of its outputs, ``depth`` elements for each. Each counts as
        # half an element, because reading windows is faster than computing outputs.
        if self.windows is None or self.windows.pointwise:
            self.width = 0
        else:
            self.width = self.depth // 2

    def weights(self, group: Range) -> Weights:
        """Return the prepared weights of a range of channels."""
        ready = self._kept.get(group) or self._ready(*group)
        if self.keep:
            self._kept[group] = ready
        return ready

    def _multiplies(self) -> bool:
        """True if the processor's products of 8-bit codes give every accumulator; these products
        are then prepared.
        """
        from npulab.quant.emulate import dots

        ready = self.weights(self.groups[0])
        small = (
            -128 <= ready.values.min() <= ready.values.max() <= 127
            and -128 <= self.codes.zero <= 127
        )
        fits = small and self.float == np.float32 and ready.most < 2**31
        if not (fits and dots.available()):
            return False
        products = dots.Products(ready.values.astype(np.int8), ready.bias)
        # with products of codes the weights as float are not needed
        self._kept[self.groups[0]] = replace(
            ready, values=ready.values[:0].copy(), products=products
        )
        return True

    def _ready(self, first: int, end: int) -> Weights:
        layer = self.layer
        values = np.empty((self.depth, end - first), self.float)
        zeros = np.broadcast_to(layer.weight_q.zeros, layer.output_shape[-1:])
        np.subtract(
            self.flat[first:end].T,
            zeros[first:end],
            out=values,
            casting="unsafe",
            dtype=self.float,
        )
        count = 1
        while True:
            shares = tuple(pairwise(np.linspace(0, self.depth, count + 1).astype(int).tolist()))
            sizes = np.array([_sizes(values[a:b]) for a, b in shares])
            if self.codes.reach * sizes.max() < _exact(self.float):
                break
            count += 1 + count // 4
        bias = layer.bias[first:end] - self.codes.zero * values.sum(0, dtype=np.float64)
        most = float((self.codes.reach * sizes.sum(0) + np.abs(bias)).max())
        return Weights(values, shares, bias, most, self.across if len(self.groups) == 1 else 1)

    def sums(self, ready: Weights, image: Array, rows: Range, scratch: Scratch) -> Array:
        """Return the sums ``(positions, channels)`` of output rows, exact: float32 or float64
        without the bias, or int32 with it.
        """
        columns = self._columns(image, rows, scratch)
        shape = len(columns), ready.values.shape[1]
        if ready.products is not None:
            return ready.products(columns, scratch.take("product", shape, np.int32))
        made = scratch.take("product", shape, self.float)
        # Every number here is finite and every sum is exact. Some BLAS kernels nevertheless raise
        # floating point warnings now and then, for numbers that they read beyond the matrices.
        with np.errstate(all="ignore"):
            if len(ready.shares) == 1:
                return np.matmul(columns, ready.values, out=made)
            joined = scratch.take("joined", shape, np.float64)
            for number, (a, b) in enumerate(ready.shares):
                np.matmul(columns[:, a:b], ready.values[a:b], out=made)
                if number:
                    joined += made
                else:
                    np.copyto(joined, made)
            return joined

    def _columns(self, image: Array, rows: Range, scratch: Scratch) -> Array:
        if self.windows is not None:
            return self.windows.columns(image, rows, scratch)
        codes = image[slice(*rows)].reshape(-1, self.depth)
        if codes.dtype == self.taken:
            return codes
        out = scratch.take("columns", codes.shape, self.taken)
        np.copyto(out, codes)
        return out


class Windows:
    """The windows of a convolution's input as rows of a matrix, made for one block of output rows
    at a time.
    """

    def __init__(self, layer: Conv2D, border: Border, dtype: np.dtype) -> None:
        self.border, self.dtype, self.spread = border, dtype, layer.dilation
        self.out_w = layer.output_shape[1]
        self.span = border.kernel[0] * border.kernel[1] * border.depth
        self.pointwise = border.kernel == (1, 1) and not any(map(any, layer.pads))

    def columns(self, image: Array, rows: Range, scratch: Scratch) -> Array:
        """Return the windows ``(positions, kernel_h * kernel_w * C)`` of output rows."""
        border, (first, end) = self.border, rows
        down, right, depth = border.down, border.right, border.depth
        if self.pointwise and down == right == 1 and image.dtype == self.dtype:
            return image[first:end].reshape(-1, self.span)
        out = scratch.take("columns", (end - first, self.out_w, self.span), self.dtype)
        if self.pointwise:
            np.copyto(
                out,
                image[
                    first * down : (end - 1) * down + 1 : down,
                    : (self.out_w - 1) * right + 1 : right,
                ],
            )
            return out.reshape(-1, self.span)
        (kernel_h, kernel_w), (spread_h, spread_w) = border.kernel, self.spread
        lines, inside, a, b = border.lines(rows)
        within, left, after = border.columns()
        bordered = scratch.take("image", (lines, border.across, depth), self.dtype)
        bordered[: inside.start] = bordered[inside.stop :] = border.zero
        bordered[inside, : within.start] = bordered[inside, within.stop :] = border.zero
        np.copyto(bordered[inside, within], image[a:b, left:after])
        taps = out.reshape(end - first, self.out_w, kernel_h, kernel_w * depth)
        per_row, per_column, per_value = bordered.strides
        strides = per_row * down, per_column * right, per_value
        # neighbouring taps are neighbours in memory unless the kernel is dilated
        if spread_w == 1:
            run, count = depth * kernel_w, 1
        else:
            run, count = depth, kernel_w
        for i, j in product(range(kernel_h), range(count)):
            at = i * spread_h * per_row + j * spread_w * per_column
            tap = Array((end - first, self.out_w, run), self.dtype, bordered, at, strides)
            np.copyto(taps[:, :, i, j * run : (j + 1) * run], tap)
        return out.reshape(-1, self.span)


class Depthwise:
    """Depthwise convolution: for each tap of the kernel, whole rows times the weights of the tap,
    added up.

    If the layer has enough rows, weights are stored repeated along a row. If the stride is above 1,
    the columns are sorted by phase (column number modulo the stride), so that every tap reads one
    run of memory. If ``fast`` is true, numba's loop is used, which reads the codes as int8.
    """

    def __init__(self, layer: Conv2D, dtype: np.dtype, fast: bool) -> None:
        self.layer = layer
        self.codes = Codes(dtype, layer.input_q.zero_point)
        self.border = Border(layer, self.codes.zero)
        self.out_w, self.channels = layer.output_shape[1:]
        self.copies = self.channels // layer.input_shape[2]
        self.groups = [(0, self.channels)]
        self.width = 0
        kernel = layer.weights[0][self.border.taps].astype(np.int16)
        kernel -= layer.weight_q.zeros.astype(np.int16)
        sizes = self.codes.reach * np.abs(kernel).sum((0, 1), dtype=np.float64)
        bias = layer.bias - self.codes.zero * kernel.sum((0, 1), dtype=np.float64)
        self.float = np.dtype(np.float32 if sizes.max() < EXACT_FLOAT32 else np.float64)
        self.fast = fast and self.float == np.float32 and -128 <= self.codes.zero <= 127
        # repeated weights save time only if many rows use them
        repeat = 1
        if self.fast or layer.output_shape[0] > kernel.shape[0] * kernel.shape[1]:
            repeat = self.out_w
        if repeat > 1:
            values = np.tile(kernel.astype(self.float), (1, 1, repeat))
        else:
            values = kernel.astype(self.float)
        # two taps of a kernel row read columns of the same phase if a multiple of ``period`` lies
        # between their numbers
        self.period = layer.stride[1] // math.gcd(layer.stride[1], layer.dilation[1])
        self._ready = Weights(
            values, ((0, 1),), bias, float((sizes + np.abs(bias)).max()), self.out_w
        )

    def weights(self, group: Range) -> Weights:
        """Return the prepared weights of all channels."""
        return self._ready

    def sums(self, ready: Weights, image: Array, rows: Range, scratch: Scratch) -> Array:
        """Return the accumulators ``(positions, channels)`` of output rows without the bias, exact
        in float32 or float64.
        """
        down, (first, end) = self.layer.stride[0], rows
        phases = self._phases(image, rows, scratch)
        across = self.out_w * self.channels
        shape = end - first, across // ready.values.shape[2], ready.values.shape[2]
        total = scratch.take("product", shape, self.float)
        if self.fast:
            from npulab.quant.emulate import jit

            weights = ready.values.reshape(*self.border.kernel, across)
            layer = self.layer
            sums = total.reshape(-1, across)
            jit.depthwise(phases, weights, layer.dilation, layer.stride, self.channels, sums)
            return total.reshape(-1, self.channels)
        per_line, per_phase, per_value = phases.strides
        (kernel_h, kernel_w), (spread_h, spread_w) = self.border.kernel, self.layer.dilation
        apart = spread_w * self.period // self.border.right * self.channels * per_value
        for j in range(min(self.period, kernel_w)):
            at, phase = divmod(j * spread_w, self.border.right)
            taps = Array(
                (kernel_h, len(range(j, kernel_w, self.period)), *shape),
                self.float,
                phases,
                phase * per_phase + at * self.channels * per_value,
                (spread_h * per_line, apart, down * per_line, shape[2] * per_value, per_value),
            )
            into = total
            if j:
                into = scratch.take("part", shape, self.float)
            # ``einsum`` passes over the rows once for each tap
            np.einsum("ijnxk,ijk->nxk", taps, ready.values[:, j :: self.period], out=into)
            if j:
                total += into
        return total.reshape(-1, self.channels)

    def _phases(self, image: Array, rows: Range, scratch: Scratch) -> Array:
        """Return the bordered input ``(lines, phase, columns * C)`` that output rows need."""
        right = self.border.right
        lines, inside, a, b = self.border.lines(rows)
        within, left, after = self.border.columns()
        across = -(-self.border.across // right)
        shape = lines, right, across, self.border.depth, self.copies
        out = scratch.take("image", shape, image.dtype if self.fast else self.float)
        out[: inside.start] = out[inside.stop :] = self.border.zero
        for phase in range(right):
            # the first column of the input that has this phase, counted from ``left``
            column = (phase - within.start) % right
            at = (within.start + column) // right
            picked = image[a:b, left + column : after : right, :, None]
            out[inside, phase, :at] = out[inside, phase, at + picked.shape[1] :] = self.border.zero
            np.copyto(out[inside, phase, at : at + picked.shape[1]], picked)
        return out.reshape(lines, right, across * self.channels)


class Border:
    """The border around an input, and the taps of a kernel that are not always in the border.

    A tap that reads only the border adds nothing, and a dilated kernel may have such taps very far
    out. They are left out: ``taps`` are the ranges of rows and columns of the kernel that remain.
    ``top`` and ``left`` are the sizes of the border that the remaining taps need.
    """

    def __init__(self, layer: Conv2D | Pool2D, zero: float) -> None:
        self.zero = zero
        self.height, self.width, self.depth = layer.input_shape
        meets = [
            _meets(*one)
            for one in zip(
                layer.kernel,
                layer.dilation,
                layer.stride,
                [pad[0] for pad in layer.pads],
                layer.input_shape,
                layer.output_shape,
                strict=False,
            )
        ]
        self.taps = tuple(slice(first, last + 1) for first, last in meets)
        self.kernel = tuple(last + 1 - first for first, last in meets)
        # ``top`` or ``left`` is negative if the first remaining tap begins inside the input
        self.top, self.left = (
            pad[0] - first * spread
            for pad, (first, _), spread in zip(layer.pads, meets, layer.dilation, strict=True)
        )
        self.down, self.right = layer.stride
        self.reach, across = (
            (count - 1) * spread + 1
            for count, spread in zip(self.kernel, layer.dilation, strict=True)
        )
        self.across = (layer.output_shape[1] - 1) * self.right + across

    def lines(self, rows: Range) -> tuple[int, slice, int, int]:
        """Return what a range of output rows reads: (how many lines, border included; the slice of
        these lines that is not border; the first input line of that slice, and the line after its
        last).
        """
        return _inside(
            rows[0] * self.down - self.top,
            (rows[1] - 1 - rows[0]) * self.down + self.reach,
            self.height,
        )

    def columns(self) -> tuple[slice, int, int]:
        """Return (the slice of the columns, border included, that is not border; the first input
        column of that slice, and the column after its last).
        """
        return _inside(-self.left, self.across, self.width)[1:]


def _meets(kernel: int, spread: int, step: int, before: int, size: int, count: int) -> Range:
    """Return the first and the last tap of an axis that read inside the input for at least one
    output.

    Both are tap 0 if no tap reads inside the input.
    """
    first_of = np.arange(kernel) * spread - before
    # first output for which the tap is not in the border before the input
    output = np.maximum(-(first_of // step), 0)
    hit = np.flatnonzero((output < count) & (first_of + output * step < size))
    if hit.size:
        return int(hit[0]), int(hit[-1])
    return 0, 0


def _inside(start: int, count: int, size: int) -> tuple[int, slice, int, int]:
    """Return (count, slice, first, end) for ``count`` indices that begin at ``start``: the slice of
    them that lies in 0 to ``size``, and the indices at which that slice begins and ends.
    """
    a = min(max(start, 0), size)
    b = max(min(start + count, size), a)
    first = min(max(a - start, 0), count)
    return count, slice(first, first + b - a), a, b


def _sizes(values: Array) -> Array:
    """Return ``sum |w|`` of every column, float64. Only a few rows are summed at once, so that
    their absolute values need little memory.
    """
    step = max(1, SHARE // values.shape[1])
    parts = [
        np.abs(values[i : i + step]).sum(0, dtype=np.float64) for i in range(0, len(values), step)
    ]
    return np.sum(parts, axis=0)


def _exact(dtype: np.dtype) -> int:
    if dtype == np.float32:
        return EXACT_FLOAT32
    return EXACT_FLOAT64
