"""A job of the convolution units, from its registers and memory to the accumulators that it hands
over to the next unit.

CDMA reads the weights and the features (or an image), CSC moves windows over them, CMAC multiplies,
CACC adds up and rounds. These registers are ignored, because captures have any value in them:
banks, entries, packing, releases, the padding on the right and below, operands of disabled steps.
Data that the hardware keeps from the job before (DATA_REUSE, WEIGHT_REUSE) is read again from the
address in the registers.

Elements and weights are multiplied in floating point, which is exact here: a sum is cut into
shares so short that every partial sum, in any order, is a whole number that the type holds. 1024
products of int8 are at most 2**24, the limit of float32. 2**23 products of int16 are at most 2**53,
the limit of float64, in which the shares are added. Source: the int8 and int16 traces of nvdla/hw
for rounding and the accumulator's 32 bits; nvdla/hw cmod/cacc for the width of a sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy import ndarray as Array

from npulab.captures.target import Features, Unsupported
from npulab.npus.kit import Raw, up, wrapped
from npulab.npus.nvdla.facts import Pair
from npulab.npus.nvdla.fetch import read_features, read_image, read_weights, weights_of
from npulab.npus.nvdla.memory import Memory
from npulab.npus.nvdla.rules import RULES, Rules, saturated, shifted
from npulab.npus.nvdla.units.fields import Fields
from npulab.quant.rules import EXACT_FLOAT32, EXACT_FLOAT64

PIXEL = 1  # value of the field DATAIN_FORMAT for an image
MOST_SUMS = 2**24  # most accumulators of a job that is simulated
MOST_PRODUCTS = 2**37
PROCESSED = tuple(
    f"{unit}.D_MISC_CFG.PROC_PRECISION" for unit in ("CSC", "CDMA", "CMAC_A", "CMAC_B", "CACC")
)
SUM_BITS = {1: 34, 2: 48}  # bits of a sum, by the bytes of an element
HANDED_BITS = 32
SHARE = 1024  # most products that a share of a sum has
# A block of outputs may take half as many bytes as the tensors, but at least LEAST_SPARE and at
# most MOST_SPARE.
LEAST_SPARE, MOST_SPARE = 2**16, 2**23
SUM_BYTES = 64  # bytes that a sum takes until it is an accumulator
FLOATS = {1: "f4", 2: "f8"}  # the type in which elements are multiplied, by the bytes of an element
assert SHARE * 2**14 <= EXACT_FLOAT32
assert EXACT_FLOAT64 >= 2**23 * 2**30  # products of the longest sum of int16 elements


def handed_over(sums: Array, truncate: int, itemsize: int = 1, rules: Rules = RULES) -> Array:
    """Return accumulators int32 of sums, whole numbers of any type of at most 2**53 in size.

    A sum is saturated to 34 bits (48 for elements of 2 bytes), divided by ``2**truncate`` (0 to 31)
    and rounded half away from zero, and saturated to 32 bits; under ``rules`` that do not saturate
    the accumulators are int64.

    >>> handed_over(np.array([5, -5, 2 ** 33]), 1)
    array([         3,         -3, 2147483647], dtype=int32)
    """
    whole = np.asarray(sums).astype(np.int64)
    if not rules.saturate_stages:
        return shifted(whole, truncate, rules.rounding)
    short = shifted(saturated(whole, SUM_BITS[itemsize]), truncate, rules.rounding)
    return saturated(short, HANDED_BITS).astype(np.int32)


@dataclass(frozen=True)
class Window:
    """How windows move over an input. The output's size, stride, dilation and padding are
    (height, width).

    ``before`` is the padding (above, to the left). Taps outside the input, on any side, read
    ``pad_value``.
    """

    output: Pair
    stride: Pair = (1, 1)
    dilation: Pair = (1, 1)
    before: Pair = (0, 0)
    pad_value: int = 0


@dataclass(frozen=True)
class Share:
    """A part of the products of a sum: the products of taps ``first`` up to ``end`` (a kernel's
    taps are numbered row by row) with channels ``start`` up to ``stop``.
    """

    first: int
    end: int
    start: int
    stop: int

    @property
    def depth(self) -> int:
        """The number of products that each sum has in this share."""
        return (self.end - self.first) * (self.stop - self.start)


def shares(taps: int, channels: int) -> Iterator[Share]:
    """Yield the shares of a sum over taps and channels, none longer than 1024 products."""
    many = max(1, SHARE // channels)
    for first in range(0, taps, many):
        for start in range(0, channels, SHARE):
            yield Share(first, min(first + many, taps), start, min(start + SHARE, channels))


def convolve(
    x: Array,
    weights: Array,
    window: Window,
    truncate: int = 0,
    lanes: int = 0,
    rules: Rules = RULES,
) -> Array:
    """Return the accumulators ``(height, width, lanes) int32`` of a convolution, as CACC hands them
    over.

    ``x`` is ``(H, W, C)``, ``weights`` ``(K, R, S, C)``, both int8 or both int16. With ``lanes``
    in all, lanes past the kernels are 0. ``rules`` are the accumulator's. A sum has at most 2**23
    products, as registers cannot state more.
    """
    kernels, taps = len(weights), weights.shape[1] * weights.shape[2]
    (height, width), channels = window.output, weights.shape[3]
    type_ = np.dtype(FLOATS[x.itemsize])
    result: Any = np.int64
    if rules.saturate_stages:
        result = np.int32
    out = np.zeros((height * width, max(lanes, kernels)), result)
    parts = list(shares(taps, channels))
    flat = weights.reshape(kernels, taps, channels)
    spare = min(MOST_SPARE, max(LEAST_SPARE, (x.nbytes + weights.nbytes + out.nbytes) // 2))
    deepest = max(part.depth for part in parts)
    step = max(1, spare // (deepest * (x.itemsize + type_.itemsize) + kernels * SUM_BYTES))
    for at in range(0, height * width, step):
        outputs = np.arange(at, min(at + step, height * width))
        joined = np.zeros((len(outputs), kernels), np.float64)
        for part in parts:
            read = _windows(x, weights.shape[2], window, part, outputs).astype(type_)
            few = max(1, spare // 4 // (part.depth * type_.itemsize))
            for k in range(0, kernels, few):
                group = flat[k : k + few, part.first : part.end, part.start : part.stop]
                joined[:, k : k + few] += read @ group.reshape(-1, part.depth).astype(type_).T
        out[outputs, :kernels] = handed_over(joined, truncate, x.itemsize, rules)
    return out.reshape(height, width, -1)


def _windows(
    x: Array,
    across: int,
    window: Window,
    share: Share,
    outputs: Array,
) -> Array:
    """Return the elements that a share's taps read for outputs counted by rows, ``(outputs,
    products)``; kernels are ``across`` taps wide."""
    row, column = np.divmod(outputs[:, None], window.output[1])
    tap_row, tap_column = np.divmod(np.arange(share.first, share.end), across)
    down = row * window.stride[0] - window.before[0] + tap_row * window.dilation[0]
    over = column * window.stride[1] - window.before[1] + tap_column * window.dilation[1]
    outside = (down < 0) | (down >= x.shape[0]) | (over < 0) | (over >= x.shape[1])
    down[outside], over[outside] = 0, 0
    read = x[down, over, share.start : share.stop]
    read[outside] = window.pad_value
    return read.reshape(len(outputs), -1)


def run(values: Raw, features: Features, memory: Memory, rules: Rules = RULES) -> Array:
    """Return the accumulators ``(height, width, lanes) int32`` of the job that the registers
    describe.

    ``features`` are a chip's (``atomic_c``, ``atomic_k``, ``atomic_k_int16`` if it differs,
    ``memory_atom``, ``int16``). The lanes are the kernels, and accumulators of 0 up to a whole
    atom of memory. Raises Unsupported, naming register and value, for Winograd, batches,
    compressed weights, fp16, int16 on a chip without it, pixel formats that no source states, and
    jobs too large to be simulated; Hang for registers that contradict each other; and the errors of
    ``memory``.
    """
    fields = Fields(values, features)
    itemsize = _covered(fields)
    image = fields["CDMA.D_DATAIN_FORMAT.DATAIN_FORMAT"] == PIXEL
    stored = weights_of(fields, itemsize, image)
    window = window_of(values, itemsize, rules)
    pixels = prod(window.output)
    products = pixels * prod(stored.shape)
    lanes = up(stored.kernels, features["memory_atom"] // itemsize)
    if pixels * lanes > MOST_SUMS or products > MOST_PRODUCTS:
        raise Unsupported(
            f"CSC.D_DATAOUT_SIZE_0.DATAOUT_WIDTH: got {pixels} pixels of {lanes} lanes and "
            f"{products} products, allowed to be simulated are {MOST_SUMS} "
            f"accumulators and {MOST_PRODUCTS} products"
        )
    if image:
        x = read_image(fields, memory, itemsize, rules)
        weights = _by_pixels(read_weights(fields, memory, stored, rules), x.shape[2])
    else:
        x = read_features(fields, memory, itemsize, rules)
        weights = read_weights(fields, memory, stored, rules)
    return convolve(x, weights, window, fields["CACC.D_CLIP_CFG.CLIP_TRUNCATE"], lanes, rules)


def window_of(values: Raw, itemsize: int = 1, rules: Rules = RULES) -> Window:
    """Return the movement of windows that the registers describe.

    An image has no dilation, and CDMA adds its padding on the left.
    """
    fields = Fields(values, {})
    dilation = fields.pair("CSC.D_DILATION_EXT.{}_DILATION_EXT", ("Y", "X"))
    left = fields["CSC.D_ZERO_PADDING.PAD_LEFT"]
    pad_value = 0
    if fields["CDMA.D_DATAIN_FORMAT.DATAIN_FORMAT"] == PIXEL:
        dilation, left = (1, 1), 0
    if rules.pad_value:
        pad_value = wrapped(fields["CSC.D_ZERO_PADDING_VALUE.PAD_VALUE"], 8 * itemsize)
    return Window(
        fields.pair("CSC.D_DATAOUT_SIZE_0.DATAOUT_{}"),
        fields.pair("CSC.D_CONV_STRIDE_EXT.CONV_{}_STRIDE_EXT", ("Y", "X")),
        dilation,
        (fields["CSC.D_ZERO_PADDING.PAD_TOP"], left),
        pad_value,
    )


def image_sums(fields: Fields, memory: Memory, weights: Array, rules: Rules = RULES) -> Array:
    """Return the accumulators ``(outputs, kernels) int32`` of an image's job on int8 weights ``(K,
    R, 1, S * channels)``, counted by rows.

    Raises as ``run``.
    """
    x = read_image(fields, memory, 1, rules)
    window = window_of(fields.values, 1, rules)
    by_pixel = _by_pixels(weights, x.shape[2])
    truncate = fields["CACC.D_CLIP_CFG.CLIP_TRUNCATE"]
    sums = convolve(x, by_pixel, window, truncate, rules=rules)
    return sums.reshape(-1, len(weights))


def _by_pixels(weights: Array, channels: int) -> Array:
    """Return an image's weights ``(K, R, 1, S * channels)`` as ``(K, R, S, channels)``. If they end
    in the middle of a pixel, its last channels are filled with 0."""
    kernels, height, _, depth = weights.shape
    across = -(-depth // channels)
    whole = np.pad(weights[:, :, 0], ((0, 0), (0, 0), (0, across * channels - depth)))
    return whole.reshape(kernels, height, across, channels)


def _covered(fields: Fields) -> int:
    """Return the number of bytes of an element as it is multiplied. Raises Unsupported for a job
    that the simulated units do not cover.
    """
    fields.expect("run convolution")
    given = {name: fields.precision(name) for name in PROCESSED if name in fields.values}
    if len(set(given.values())) > 1:
        raise Unsupported(
            f"{', '.join(given)}: got {', '.join(str(fields[name]) for name in given)}, allowed is "
            "one precision for all"
        )
    itemsize = next(iter(given.values()), 1)
    wide = max(itemsize, fields.precision("CDMA.D_MISC_CFG.IN_PRECISION"))
    if wide == 2 and not fields.features.get("int16"):
        raise Unsupported(f"{PROCESSED[0]}: got int16, allowed on this chip is int8")
    fields.agree("format")
    return itemsize
