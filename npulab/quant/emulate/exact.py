"""float16 sums over windows that are taken exactly and rounded once: rule "fp16".

float64 holds most sums whole.  Where it may not, the sum has a bound of its error, and the few
outputs that the bound leaves open are taken again in whole numbers.  A sum that is exactly zero is
+0; NaN and infinities go through as IEEE 754 has them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from fractions import Fraction
from operator import mul

import numpy as np

from npulab.quant.emulate.pooling import counts, taken
from npulab.quant.emulate.sliding import windows
from npulab.quant.floats import Near, halves, nearest_half
from npulab.quant.layers import Conv2D, FullyConnected, Pool2D

ELEMENTS = 65_536  # of windows laid out at a time
UNITS = 2**24  # every float16 number is a multiple of 1 / UNITS
EXACT = 2.0**53
MOST = 2**22  # elements of a window whose sum 64 bits hold, in UNITS
Bounds = tuple[float, float]


def summed(
    layer: Conv2D | FullyConnected | Pool2D, given: np.ndarray, bounds: Bounds
) -> np.ndarray:
    """Output ``(N, H, W, C)`` float16 of images ``(N, H, W, C)`` float16, of a layer with weights
    or an average.

    Raises ValueError for an average of windows of more than 2**22 elements.
    """
    if isinstance(layer, Pool2D):
        return average(layer, given, bounds)
    if isinstance(layer, FullyConnected):
        rows = given.reshape(-1, given.shape[-1])
        return dense(rows, Weights(layer.weights.T, layer.bias), bounds).reshape(
            *given.shape[:3], -1
        )
    if layer.depthwise:
        return np.stack(
            [
                depthwise(windows(layer, image), layer.weights[0], layer.bias, bounds)
                for image in given
            ]
        )
    ready = Weights(layer.weights.reshape(len(layer.weights), -1).T, layer.bias)
    sums = [dense(some, ready, bounds) for image in given for some in columns(layer, image)]
    return np.concatenate(sums).reshape(len(given), *layer.output_shape)


def columns(layer: Conv2D, image: np.ndarray) -> Iterator[np.ndarray]:
    """The windows of an image ``(H, W, C)`` as rows ``(positions, kernel_h * kernel_w * C)``, some
    at a time."""
    every = windows(layer, image)  # (H, W, C, kernel_h, kernel_w)
    depth = math.prod(every.shape[2:])
    step = max(1, ELEMENTS // (every.shape[1] * depth))
    for row in range(0, len(every), step):
        yield every[row : row + step].transpose(0, 1, 3, 4, 2).reshape(-1, depth)


class Weights:
    """Weights ``(K, O)`` and bias ``(O,)``, float16, as float64 for many rows."""

    def __init__(self, weights: np.ndarray, bias: np.ndarray) -> None:
        self.halves = weights, bias
        self.values, self.bias = weights.astype(np.float64), bias.astype(np.float64)
        self.sizes, self.start = np.abs(self.values), np.abs(self.bias)
        self.most, self.largest = self.sizes.sum(0).max(), self.start.max()
        self.units = _unit(weights), _unit(bias) * UNITS


def dense(rows: np.ndarray, ready: Weights, bounds: Bounds) -> np.ndarray:
    """Sums ``(rows, O)`` float16 of rows ``(rows, K)`` times weights, plus bias, within bounds."""
    x, (weights, bias) = rows.astype(np.float64), ready.halves
    total = x @ ready.values + ready.bias
    error: np.ndarray | float = 0.0
    # every partial sum is a multiple of the unit, and no larger than this
    unit = min(_unit(rows) * ready.units[0], ready.units[1]) / UNITS**2
    finite = np.where(np.isfinite(x), np.abs(x), 0)
    if finite.max(initial=0) * ready.most + ready.largest >= unit * EXACT:
        error = (finite @ ready.sizes + ready.start) * ((len(weights) + 2) / EXACT)
    return halves(
        Near(total + 0.0, 0.0, error),
        lambda at: again(rows[at[0]], weights[:, at[1]], bias[at[1]], bounds),
        bounds,
    )


def depthwise(
    every: np.ndarray, weights: np.ndarray, bias: np.ndarray, bounds: Bounds
) -> np.ndarray:
    """Sums ``(H, W, O)`` float16 of windows ``(H, W, C, kernel_h, kernel_w)`` times weights
    ``(kernel_h, kernel_w, O)``, plus bias, within bounds."""
    several = weights.shape[2] // every.shape[2]
    near = Near(np.broadcast_to(bias.astype(np.float64), (*every.shape[:2], len(bias))))
    for i, j in np.ndindex(*weights.shape[:2]):
        near += np.repeat(every[..., i, j], several, -1).astype(np.float64) * weights[i, j]
    return halves(
        near + 0.0,
        lambda at: again(
            every[at[0], at[1], at[2] // several].ravel(),
            weights[..., at[2]].ravel(),
            bias[at[2]],
            bounds,
        ),
        bounds,
    )


def again(
    x: Iterable[np.float16], weights: Iterable[np.float16], bias: np.float16, bounds: Bounds
) -> np.float16:
    """One sum in whole numbers."""
    numbers, by = ([int(float(one) * UNITS) for one in some] for some in (x, weights))
    total = Fraction(sum(map(mul, numbers, by)), UNITS**2) + Fraction(float(bias))
    low, high = bounds
    return nearest_half(
        Fraction(low) if total <= low else Fraction(high) if total >= high else total
    )


def average(layer: Pool2D, images: np.ndarray, bounds: Bounds) -> np.ndarray:
    """Means ``(N, H, W, C)`` float16 of the elements of each window that lie in the image."""
    if math.prod(layer.kernel) > MOST:
        raise ValueError(
            f"kernel: got {layer.kernel}, allowed with rule fp16 is one of at most {MOST} elements"
        )
    return np.stack([halves(Near(_mean(layer, image)), _never, bounds) for image in images])


def _mean(layer: Pool2D, image: np.ndarray) -> np.ndarray:
    """Means float64 that round to float16 as the exact ones do."""
    count, finite = counts(layer), np.isfinite(image)
    wide = image.astype(np.float64)
    total = taken(layer, (np.where(finite, wide, 0) * UNITS).astype(np.int64), np.int64)
    whole, rest = np.divmod(np.abs(total), count)
    eighths, rest = np.divmod(8 * rest, count)
    # half of an eighth stands for all that lies between two eighths of a unit; rounding looks at no
    # finer ones
    out = np.sign(total) * (whole + (eighths + 0.5 * (rest > 0)) / 8) / UNITS
    if finite.all():
        return out
    special = taken(layer, wide, np.float64)
    return np.where(np.isfinite(special), out, special)


def _never(place: tuple[int, ...]) -> np.float16:
    raise AssertionError(place)


def _unit(values: np.ndarray) -> int:
    """The lowest bit that any of the numbers has, in 1 / UNITS; that of the largest where all are
    0."""
    whole = (np.where(np.isfinite(values), values, 0).astype(np.float64) * UNITS).astype(np.int64)
    every = int(np.bitwise_or.reduce(whole, axis=None)) or 2**40
    return every & -every
