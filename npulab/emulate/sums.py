"""Accumulators, fast: matrix products in floating point, guarded so that every one is exact.

Input codes of 8 bits times weights are whole numbers, and so is every partial sum in any order: while
none can reach 2**24, float32 holds each exactly, with or without fused multiply-add.  The bound is taken
from the weights at hand, ``128 * sum |w| + |bias|`` per channel, which is far looser than the worst
case.  Past it the sum is split into shares that pass, joined in float64; int16 codes go in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise, product

import numpy as np

from npulab.layers import Conv2D, FullyConnected
from npulab.quant import EXACT_FLOAT32, EXACT_FLOAT64, Scratch

SHARE = 16_384  # weights looked at at a time
Range = tuple[int, int]


@dataclass(frozen=True)
class Codes:
    """Input codes as they enter the products: uint8 is moved to int8, which halves what a sum can reach."""

    dtype: np.dtype
    zero_point: int

    @property
    def zero(self) -> int:
        """The zero point of the codes."""
        return self.zero_point - (128 if self.dtype == np.uint8 else 0)

    @property
    def reach(self) -> int:
        """The largest size of a code, the border's included."""
        return max(2 ** 15 if self.dtype == np.int16 else 2 ** 7, abs(self.zero))

    def of(self, x: np.ndarray) -> np.ndarray:
        """The input as int8 or int16."""
        return (x ^ np.uint8(0x80)).view(np.int8) if self.dtype == np.uint8 else x


@dataclass(frozen=True)
class Weights:
    """Weights of some channels made ready.

    ``values`` are float, ``(depth, channels)`` or per tap ``(kernel_h, kernel_w, ...)``, ``shares`` the
    stretches of a sum that stay exact in their type, ``bias`` float64 with the input's zero point folded
    in, ``most`` the largest size that an accumulator can have.
    ``single``: their own type holds every accumulator, bias and all; ``bias_row`` is then the bias in that
    type, repeated along a row.  ``products``, where there is one, multiplies int8 codes by these weights.
    """

    values: np.ndarray
    shares: tuple[Range, ...]
    bias: np.ndarray
    most: float
    repeat: int = 1
    products: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None
    single: bool = field(init=False)
    bias_row: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "single", len(self.shares) == 1 and self.most < _exact(self.values.dtype))
        object.__setattr__(self, "bias_row", np.tile(self.bias.astype(self.values.dtype), self.repeat))


class Dense:
    """Convolution and fully connected layers, as matrix products over windows laid out in rows.

    ``groups`` are ranges of output channels.  Where ``keep`` is false and the weights are much more than the
    outputs, each group is made ready when its turn comes and forgotten after it.  ``fast`` multiplies the
    codes as they are, where the processor can and the sums allow it.
    """

    def __init__(self, layer: Conv2D | FullyConnected, dtype: np.dtype, keep: bool = True, fast: bool = False) -> None:
        self.layer = layer
        self.float = np.dtype(np.float64 if dtype == np.int16 else np.float32)
        self.codes = Codes(dtype, layer.input_q.zero_point)
        channels = len(layer.weights)
        self.flat = layer.weights.reshape(channels, -1)
        self.depth = self.flat.shape[1]
        self.across = layer.output_shape[1] if isinstance(layer, Conv2D) else 1
        outputs = int(np.prod(layer.output_shape))
        self.keep = keep or self.flat.size <= outputs
        # a share of the weights as float takes as much as the outputs, or half as much as all of the weights
        count = 1 if self.keep else min(channels, -(-self.flat.size // max(SHARE, outputs, self.flat.size // 8)))
        edges = np.linspace(0, channels, count + 1).astype(int).tolist()
        self.groups = list(pairwise(edges))
        self._kept: dict[Range, Weights] = {}
        self.fast = fast and self.keep and self._multiplies()
        self.taken = np.dtype(np.int8) if self.fast else self.float
        self.windows = Windows(layer, self.codes, self.taken) if isinstance(layer, Conv2D) else None
        # windows are many times the input, but are read faster than outputs are worked on
        self.width = 0 if self.windows is None or self.windows.pointwise else self.depth // 2

    def weights(self, group: Range) -> Weights:
        """The weights of a range of channels."""
        ready = self._kept.get(group) or self._ready(*group)
        if self.keep:
            self._kept[group] = ready
        return ready

    def _multiplies(self) -> bool:
        """Whether products of codes of 8 bits give every sum as float32."""
        from npulab.emulate import dots

        ready = self.weights(self.groups[0])
        fits = self.float == np.float32 and ready.single and -128 <= ready.values.min() <= ready.values.max() <= 127
        if not (fits and dots.available()):
            return False
        products = dots.Products(ready.values.astype(np.int8))
        # the weights as float are not needed any more
        self._kept[self.groups[0]] = replace(ready, values=ready.values[:0].copy(), products=products)
        return True

    def _ready(self, first: int, end: int) -> Weights:
        layer = self.layer
        values = np.empty((self.depth, end - first), self.float)
        np.subtract(self.flat[first:end].T, layer.weight_q.zero_point, out=values, casting="unsafe", dtype=self.float)
        count = 1
        while True:
            edges = np.linspace(0, self.depth, count + 1).astype(int).tolist()
            shares = tuple(pairwise(edges))
            sizes = np.array([_sizes(values[a:b]) for a, b in shares])
            if self.codes.reach * sizes.max() < _exact(self.float):
                break
            count += 1 + count // 4
        bias = layer.bias[first:end] - self.codes.zero * values.sum(0, dtype=np.float64)
        most = float((self.codes.reach * sizes.sum(0) + np.abs(bias)).max())
        return Weights(values, shares, bias, most, self.across if len(self.groups) == 1 else 1)

    def sums(self, ready: Weights, image: np.ndarray, rows: Range, scratch: Scratch) -> np.ndarray:
        """Accumulators ``(positions, channels)`` without bias, of output rows; float32 or float64, exact."""
        columns = self._columns(image, rows, scratch)
        shape = len(columns), ready.values.shape[1]
        made = scratch.take("product", shape, self.float)
        if ready.products is not None:
            return ready.products(columns, made)
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

    def _columns(self, image: np.ndarray, rows: Range, scratch: Scratch) -> np.ndarray:
        if self.windows is not None:
            return self.windows.columns(image, rows, scratch)
        codes = image[slice(*rows)].reshape(-1, self.depth)
        if codes.dtype == self.taken:
            return codes
        out = scratch.take("columns", codes.shape, self.taken)
        np.copyto(out, codes)
        return out


class Windows:
    """The windows of a convolution's input, as rows of a matrix, for a block of output rows at a time."""

    def __init__(self, layer: Conv2D, codes: Codes, dtype: np.dtype) -> None:
        self.layer, self.dtype = layer, dtype
        self.border = Border(layer, codes.zero)
        self.out_w, self.depth = layer.output_shape[1], layer.input_shape[2]
        self.span = layer.kernel[0] * layer.kernel[1] * self.depth
        self.pointwise = layer.kernel == (1, 1) and not any(map(any, layer.pads))

    def columns(self, image: np.ndarray, rows: Range, scratch: Scratch) -> np.ndarray:
        """Windows ``(positions, kernel_h * kernel_w * C)`` of output rows."""
        (down, right), (first, end) = self.layer.stride, rows
        if self.pointwise and down == right == 1 and image.dtype == self.dtype:
            return image[first:end].reshape(-1, self.span)
        out = scratch.take("columns", (end - first, self.out_w, self.span), self.dtype)
        if self.pointwise:
            np.copyto(out, image[first * down:(end - 1) * down + 1:down, :(self.out_w - 1) * right + 1:right])
            return out.reshape(-1, self.span)
        (kernel_h, kernel_w), (spread_h, spread_w) = self.layer.kernel, self.layer.dilation
        lines, inside, a, b = self.border.lines(rows)
        left, width = self.border.left, self.border.width
        bordered = scratch.take("image", (lines, self.border.across, self.depth), self.dtype)
        bordered[:inside.start] = bordered[inside.stop:] = self.border.zero
        bordered[inside, :left] = bordered[inside, left + width:] = self.border.zero
        np.copyto(bordered[inside, left:left + width], image[a:b])
        taps = out.reshape(end - first, self.out_w, kernel_h, kernel_w * self.depth)
        per_row, per_column, per_value = bordered.strides
        strides = per_row * down, per_column * right, per_value
        # neighbouring taps are neighbours in memory unless they are spread
        run, count = (self.depth * kernel_w, 1) if spread_w == 1 else (self.depth, kernel_w)
        for i, j in product(range(kernel_h), range(count)):
            at = i * spread_h * per_row + j * spread_w * per_column
            tap = np.ndarray((end - first, self.out_w, run), self.dtype, bordered, at, strides)
            np.copyto(taps[:, :, i, j * run:(j + 1) * run], tap)
        return out.reshape(-1, self.span)


class Depthwise:
    """Depthwise convolution: a multiply-add of whole rows for each tap.

    Weights are repeated along a row, and at a stride past 1 the columns are sorted by phase, so that every
    tap reads one run of memory.  ``fast`` takes numba's loop, which reads the codes as they are.
    """

    def __init__(self, layer: Conv2D, dtype: np.dtype, fast: bool = False) -> None:
        self.layer = layer
        self.codes = Codes(dtype, layer.input_q.zero_point)
        self.border = Border(layer, self.codes.zero)
        self.out_w, self.channels = layer.output_shape[1:]
        self.copies = self.channels // layer.input_shape[2]
        self.groups = [(0, self.channels)]
        self.width = 0
        taps = np.subtract(layer.weights[0], layer.weight_q.zero_point, dtype=np.float64, casting="unsafe")
        sizes = self.codes.reach * np.abs(taps).sum((0, 1))
        bias = layer.bias - self.codes.zero * taps.sum((0, 1))
        self.float = np.dtype(np.float32 if sizes.max() < EXACT_FLOAT32 else np.float64)
        self.fast = fast and self.float == np.float32
        # repeating weights along the row pays where there are rows enough to share them
        repeat = self.out_w if self.fast or layer.output_shape[0] > taps.shape[0] * taps.shape[1] else 1
        values = np.tile(taps.astype(self.float), (1, 1, repeat))
        # of every tap: the line below the first, the phase of its columns, where its run begins
        steps = [(i * layer.dilation[0], *divmod(j * layer.dilation[1], layer.stride[1]))
                 for i, j in product(*map(range, layer.kernel))]
        self.places = tuple(np.array(one) for one in zip(*((line, phase, at * self.channels)
                                                           for line, at, phase in steps), strict=True))
        self._ready = Weights(values, ((0, 1),), bias, float((sizes + np.abs(bias)).max()), self.out_w)

    def weights(self, group: Range) -> Weights:
        """The weights, of all channels."""
        return self._ready

    def sums(self, ready: Weights, image: np.ndarray, rows: Range, scratch: Scratch) -> np.ndarray:
        """Accumulators ``(positions, channels)`` without bias, of output rows; float32 or float64, exact."""
        down, (first, end) = self.layer.stride[0], rows
        phases = self._phases(image, rows, scratch)
        across = self.out_w * self.channels
        shape = end - first, across // ready.values.shape[2], ready.values.shape[2]
        total = scratch.take("product", shape, self.float)
        if self.fast:
            from npulab.emulate import jit

            jit.depthwise(phases, ready.values.reshape(-1, across), *self.places, down, total.reshape(-1, across))
            return total.reshape(-1, self.channels)
        part = scratch.take("part", shape, self.float)
        for number, (line, phase, at) in enumerate(zip(*self.places, strict=True)):
            tap = phases[line:line + (end - 1 - first) * down + 1:down, phase, at:at + across].reshape(shape)
            values = ready.values[divmod(number, self.layer.kernel[1])]
            np.multiply(tap, values, out=part if number else total)
            if number:
                total += part
        return total.reshape(-1, self.channels)

    def _phases(self, image: np.ndarray, rows: Range, scratch: Scratch) -> np.ndarray:
        """Bordered input ``(lines, phase, columns * C)`` that output rows need."""
        right, left = self.layer.stride[1], self.border.left
        lines, inside, a, b = self.border.lines(rows)
        across = -(-self.border.across // right)
        shape = lines, right, across, self.layer.input_shape[2], self.copies
        out = scratch.take("image", shape, image.dtype if self.fast else self.float)
        out[:inside.start] = out[inside.stop:] = self.border.zero
        for phase in range(right):
            column = (phase - left) % right  # the first input column of this phase
            at = (column + left) // right
            picked = image[a:b, column::right, :, None]
            out[inside, phase, :at] = out[inside, phase, at + picked.shape[1]:] = self.border.zero
            np.copyto(out[inside, phase, at:at + picked.shape[1]], picked)
        return out.reshape(lines, right, across * self.channels)


class Border:
    """Where the rows that a block of output rows needs lie in the input, and the border around them."""

    def __init__(self, layer: Conv2D, zero: int) -> None:
        (self.top, _), (self.left, after) = layer.pads
        self.height, self.width, _ = layer.input_shape
        self.across = self.left + self.width + after
        self.zero = zero
        self.step, self.reach = layer.stride[0], (layer.kernel[0] - 1) * layer.dilation[0] + 1

    def lines(self, rows: Range) -> tuple[int, slice, int, int]:
        """(lines with border, those of them inside the input, first and end of these in the input)."""
        start = rows[0] * self.step - self.top
        count = (rows[1] - 1 - rows[0]) * self.step + self.reach
        a = min(max(start, 0), self.height)
        b = max(min(start + count, self.height), a)
        inside = min(max(a - start, 0), count)
        return count, slice(inside, inside + b - a), a, b


def _sizes(values: np.ndarray) -> np.ndarray:
    """``sum |w|`` of every column, float64, a stretch of rows at a time."""
    step = max(1, SHARE // values.shape[1])
    parts = [np.abs(values[i:i + step]).sum(0, dtype=np.float64) for i in range(0, len(values), step)]
    return np.sum(parts, axis=0)


def _exact(dtype: np.dtype) -> int:
    return EXACT_FLOAT32 if dtype == np.float32 else EXACT_FLOAT64
