"""float16 sums over windows, computed exactly and rounded once: rule "fp16".

float64 holds most sums exactly. For any other sum a bound of its error is known. If the bound
leaves two float16 results possible, the output is computed again in whole numbers. A sum of exactly
zero is +0; NaN and infinities are treated as in IEEE 754.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from fractions import Fraction

import numpy as np
from numpy import ndarray as Array

from npulab.quant.emulate.pooling import counts, taken
from npulab.quant.emulate.sliding import windows
from npulab.quant.floats import Near, halves, nearest_half
from npulab.quant.layers import Conv2D, FullyConnected, Pool2D, Weighted

ELEMENTS = 65_536  # windows are copied into rows in blocks of at most ELEMENTS elements

# Every finite float16 number is a multiple of 1 / UNITS. A float64 holds every whole number up to
# EXACT. A sum of at most MOST float16 numbers, in units of 1 / UNITS, fits into 64 bits.
UNITS = 2**24
EXACT = 2.0**53
MOST = 2**22
Bounds = tuple[float, float]


def summed(layer: Weighted | Pool2D, given: Array, bounds: Bounds) -> Array:
    """Return the output ``(N, H, W, C)`` float16 of images ``(N, H, W, C)`` float16, for a layer
    with weights or for average pooling.

    Raises ValueError for average pooling with windows of more than 2**22 elements.
    """
    if isinstance(layer, Pool2D):
        return average(layer, given, bounds)
    if isinstance(layer, FullyConnected):
        rows = given.reshape(-1, given.shape[-1])
        sums = dense(rows, HalfWeights(layer.weights.T, layer.bias), bounds)
        return sums.reshape(*given.shape[:3], -1)
    out = []
    if layer.depthwise:
        for image in given:
            every = windows(layer, image)
            out.append(depthwise(every, layer.weights[0], layer.bias, bounds))
    else:
        ready = HalfWeights(layer.weights.reshape(len(layer.weights), -1).T, layer.bias)
        for image in given:
            out += [dense(rows, ready, bounds) for rows in columns(layer, image)]
    return np.concatenate(out).reshape(len(given), *layer.output_shape)


def columns(layer: Conv2D, image: Array) -> Iterator[Array]:
    """Yield the windows of an image ``(H, W, C)`` as rows ``(positions, kernel_h * kernel_w * C)``,
    block by block.
    """
    every = windows(layer, image)  # (H, W, C, kernel_h, kernel_w)
    depth = math.prod(every.shape[2:])
    step = max(1, ELEMENTS // (every.shape[1] * depth))
    for row in range(0, len(every), step):
        yield every[row : row + step].transpose(0, 1, 3, 4, 2).reshape(-1, depth)


class HalfWeights:
    """Weights ``(K, O)`` and bias ``(O,)`` of float16. They are also kept as float64, so that many
    rows can be multiplied by them.
    """

    def __init__(self, weights: Array, bias: Array) -> None:
        self.half_weights = weights
        self.half_bias = bias
        self.weights = weights.astype(np.float64)
        self.bias = bias.astype(np.float64)
        self.sizes = np.abs(self.weights)
        self.most = self.sizes.sum(0).max()
        self.most_bias = np.abs(self.bias).max()
        self.unit = _unit(weights)
        self.bias_unit = _unit(bias) * UNITS


def dense(rows: Array, ready: HalfWeights, bounds: Bounds) -> Array:
    """Return the sums ``(rows, O)`` float16 of rows ``(rows, K)`` times weights, plus bias, clamped
    to ``bounds``.
    """
    x = rows.astype(np.float64)
    total = x @ ready.weights + ready.bias
    error: Array | float = 0.0
    # every partial sum is a multiple of ``unit``, so that float64 holds it exactly if it is below
    # ``unit * EXACT``
    unit = min(_unit(rows) * ready.unit, ready.bias_unit) / UNITS**2
    finite = np.where(np.isfinite(x), np.abs(x), 0)
    if finite.max(initial=0) * ready.most + ready.most_bias >= unit * EXACT:
        reach = finite @ ready.sizes + np.abs(ready.bias)
        error = reach * ((x.shape[1] + 2) / EXACT)

    def again(place: tuple[int, ...]) -> np.float16:
        row, channel = place
        weights = ready.half_weights[:, channel]
        return in_whole_numbers(rows[row], weights, ready.half_bias[channel], bounds)

    return halves(Near(total + 0.0, 0.0, error), again, bounds)


def depthwise(every: Array, weights: Array, bias: Array, bounds: Bounds) -> Array:
    """Return the sums ``(H, W, O)`` float16 of windows ``(H, W, C, kernel_h, kernel_w)`` times
    weights ``(kernel_h, kernel_w, O)``, plus bias, clamped to ``bounds``.
    """
    height, width, channels = every.shape[:3]
    copies = weights.shape[2] // channels
    near = Near(np.broadcast_to(bias.astype(np.float64), (height, width, len(bias))))
    for i, j in np.ndindex(*weights.shape[:2]):
        near += np.repeat(every[..., i, j], copies, -1).astype(np.float64) * weights[i, j]

    def again(place: tuple[int, ...]) -> np.float16:
        row, column, channel = place
        window = every[row, column, channel // copies].ravel()
        return in_whole_numbers(window, weights[..., channel].ravel(), bias[channel], bounds)

    return halves(near + 0.0, again, bounds)


def in_whole_numbers(
    x: Iterable[np.float16], weights: Iterable[np.float16], bias: np.float16, bounds: Bounds
) -> np.float16:
    """Return one sum of products plus a bias. It is computed exactly in whole numbers, clamped to
    ``bounds`` and rounded once.
    """
    units = 0
    for number, weight in zip(x, weights, strict=True):
        units += int(float(number) * UNITS) * int(float(weight) * UNITS)
    total = Fraction(units, UNITS**2) + Fraction(float(bias))
    low, high = bounds
    if total <= low:
        return nearest_half(Fraction(low))
    if total >= high:
        return nearest_half(Fraction(high))
    return nearest_half(total)


def average(layer: Pool2D, images: Array, bounds: Bounds) -> Array:
    """Return the mean of each window, ``(N, H, W, C)`` float16; only elements that lie in the image
    are counted.
    """
    if math.prod(layer.kernel) > MOST:
        raise ValueError(
            f"kernel: got {layer.kernel}, allowed with rule fp16 is a kernel of at most {MOST} "
            "elements"
        )
    return np.stack([halves(Near(_mean(layer, image)), _never, bounds) for image in images])


def _mean(layer: Pool2D, image: Array) -> Array:
    """Return float64 numbers that round to the same float16 numbers as the exact means."""
    count = counts(layer)
    finite = np.isfinite(image)
    wide = image.astype(np.float64)
    total = taken(layer, (np.where(finite, wide, 0) * UNITS).astype(np.int64), np.int64)
    # the mean in eighths of a unit of 1 / UNITS; whole units are divided off first, because eight
    # times the largest total does not fit into 64 bits
    whole, rest = np.divmod(np.abs(total), count)
    eighths, rest = np.divmod(8 * rest, count)
    # a remainder of the division into eighths is replaced by half of an eighth: both lie between
    # the same two eighths, and so round to the same float16 number
    means = np.sign(total) * (whole + (eighths + 0.5 * (rest > 0)) / 8) / UNITS
    if finite.all():
        return means
    special = taken(layer, wide, np.float64)
    return np.where(np.isfinite(special), means, special)


def _never(place: tuple[int, ...]) -> np.float16:
    """Stand in for the exact computation of a mean. It is never called, because the numbers of
    ``_mean`` have no error.
    """
    raise AssertionError(place)


def _unit(values: Array) -> int:
    """Return the lowest bit that is set in any of the numbers, in units of 1 / UNITS; 2**40 if all
    numbers are 0.
    """
    whole = (np.where(np.isfinite(values), values, 0).astype(np.float64) * UNITS).astype(np.int64)
    every = int(np.bitwise_or.reduce(whole, axis=None)) or 2**40
    return every & -every
