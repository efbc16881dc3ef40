"""One job of the convolution units, from its registers and memory to the accumulators that the next
unit is handed.

CDMA reads features or an image and the weights, CSC moves windows over them, CMAC multiplies, CACC
adds up and shortens.  What the registers state beyond that is not looked at: banks, entries,
packing, releases, the padding on the right and below, and operands of what is off hold anything in
captures.  Data that is kept from the job before (DATA_REUSE, WEIGHT_REUSE) is read again from where
the registers say.

Elements and weights are multiplied in floating point, in shares of a sum so short that no partial
sum, in whatever order, leaves the whole numbers that the type holds: 1024 products of int8 reach
2**24 in float32, and 2**23 products of int16 reach 2**53 in float64, in which the shares are
joined.  Source: the int8 and int16 traces of nvdla/hw for rounding and the accumulator's 32 bits;
nvdla/hw cmod/cacc for the width of a sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from npulab.captures.target import Features, Unsupported
from npulab.npus.kit import Raw, refuse_if, wrapped
from npulab.npus.nvdla.facts import Pair
from npulab.npus.nvdla.fetch import read_features, read_image, read_weights, weights_of
from npulab.npus.nvdla.memory import ByteMemory
from npulab.npus.nvdla.rules import RULES, Rules, saturated, shifted
from npulab.npus.nvdla.units.fields import Fields
from npulab.quant.rules import EXACT_FLOAT32, EXACT_FLOAT64

PIXEL = 1  # DATAIN_FORMAT of an image
MOST_SUMS = 2**24  # accumulators
MOST_PRODUCTS = 2**37
PROCESSED = tuple(
    f"{unit}.D_MISC_CFG.PROC_PRECISION" for unit in ("CSC", "CDMA", "CMAC_A", "CMAC_B", "CACC")
)
SUM_BITS = {1: 34, 2: 48}  # of a sum, by the bytes of an element
HANDED_BITS = 32
MOST_TRUNCATE = 31  # CACC.D_CLIP_CFG.CLIP_TRUNCATE has 5 bits
SHARE = 1024  # products of a share
# bytes that a block of outputs may take beside the tensors, which are at least half as large where
# they are more
LEAST_SPARE, MOST_SPARE = 2**16, 2**23
SUM_BYTES = 64  # of which each sum takes so many on its way to an accumulator
LONGEST_SUM = EXACT_FLOAT64 // 2**30  # of a sum of int16 elements
FLOATS: dict[int, np.dtype[Any]] = {1: np.dtype(np.float32), 2: np.dtype(np.float64)}
assert SHARE * 2**14 <= EXACT_FLOAT32


def handed_over(
    sums: np.ndarray, truncate: int, itemsize: int = 1, rules: Rules = RULES
) -> np.ndarray:
    """Accumulators int32 of sums, whole numbers of any type of at most 2**53 in size.

    A sum is limited to 34 bits (48 for elements of 2 bytes), divided by ``2**truncate`` and rounded
    half away from zero, and limited to 32 bits; under ``rules`` that do not saturate they are
    int64. Raises ValueError for a truncate outside 0 to 31.

    >>> handed_over(np.array([5, -5, 2 ** 33]), 1)
    array([         3,         -3, 2147483647], dtype=int32)
    """
    refuse_if(not 0 <= truncate <= MOST_TRUNCATE, "truncate", truncate, f"is 0 to {MOST_TRUNCATE}")
    whole = np.asarray(sums).astype(np.int64)
    if not rules.saturate_stages:
        return shifted(whole, truncate, rules.rounding)
    short = shifted(saturated(whole, SUM_BITS[itemsize]), truncate, rules.rounding)
    return saturated(short, HANDED_BITS).astype(np.int32)


@dataclass(frozen=True)
class Window:
    """How windows move over an input: the output's ``(height, width)``, and what there is of
    (height, width) each.

    ``before`` is the padding above and left of the input; taps outside of it, on any side, read
    ``pad_value``. Raises ValueError for a size, stride or dilation below 1 and a padding below 0.
    """

    output: Pair
    stride: Pair = (1, 1)
    dilation: Pair = (1, 1)
    before: Pair = (0, 0)
    pad_value: int = 0

    def __post_init__(self) -> None:
        if min(*self.output, *self.stride, *self.dilation) < 1 or min(self.before) < 0:
            raise ValueError(
                f"{self}: allowed are output, stride and dilation of 1 or more, before of 0 or more"
            )


@dataclass(frozen=True)
class Share:
    """Taps ``first`` to ``end``, counted by rows, of which the channels ``start`` to ``stop`` are
    added up."""

    first: int
    end: int
    start: int
    stop: int

    @property
    def depth(self) -> int:
        """Products of a sum."""
        return (self.end - self.first) * (self.stop - self.start)


def shares(taps: int, channels: int) -> Iterator[Share]:
    """The shares of a sum over taps and channels, none longer than 1024 products."""
    many = max(1, SHARE // channels)
    for first in range(0, taps, many):
        for start in range(0, channels, SHARE):
            yield Share(first, min(first + many, taps), start, min(start + SHARE, channels))


def convolve(
    x: np.ndarray,
    weights: np.ndarray,
    window: Window,
    truncate: int = 0,
    lanes: int = 0,
    rules: Rules = RULES,
) -> np.ndarray:
    """Accumulators ``(height, width, lanes) int32`` of a convolution, as the accumulator hands them
    over.

    ``x`` is ``(H, W, C)``, ``weights`` ``(K, R, S, C)``, both int8 or both int16.  Lanes past the
    kernels, where there are to be ``lanes`` in all, are 0.  ``rules`` are those of the accumulator.
    Raises ValueError for other types and shapes, and for more than 2**23 products of a sum.
    """
    _check(x, weights, window, lanes)
    kernels, taps = len(weights), weights.shape[1] * weights.shape[2]
    (height, width), channels = window.output, weights.shape[3]
    type_ = FLOATS[x.itemsize]
    out = np.zeros(
        (height * width, max(lanes, kernels)), np.int32 if rules.saturate_stages else np.int64
    )
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
        out[outputs[0] : outputs[-1] + 1, :kernels] = handed_over(
            joined, truncate, x.itemsize, rules
        )
    return out.reshape(height, width, -1)


def _windows(
    x: np.ndarray,
    across: int,
    window: Window,
    share: Share,
    outputs: np.ndarray,
) -> np.ndarray:
    """What a share's taps read for outputs counted by rows, ``(outputs, products)``; kernels are
    ``across`` taps wide."""
    starts = np.divmod(outputs[:, None], window.output[1])
    taps = np.divmod(np.arange(share.first, share.end), across)
    down, over = (
        start * stride - before + tap * dilation
        for start, stride, before, tap, dilation in zip(
            starts, window.stride, window.before, taps, window.dilation, strict=True
        )
    )
    outside = (down < 0) | (down >= x.shape[0]) | (over < 0) | (over >= x.shape[1])
    down[outside], over[outside] = 0, 0
    read = x[down, over, share.start : share.stop]
    read[outside] = window.pad_value
    return read.reshape(len(outputs), -1)


def _check(x: np.ndarray, weights: np.ndarray, window: Window, lanes: int) -> None:
    if x.dtype not in (np.int8, np.int16) or weights.dtype != x.dtype:
        raise ValueError(
            f"x, weights: got {x.dtype}, {weights.dtype}, allowed is int8 or int16 for both"
        )
    if (
        x.ndim != 3
        or weights.ndim != 4
        or weights.shape[3] != x.shape[2]
        or not (x.size and weights.size)
    ):
        raise ValueError(
            f"x, weights: got {x.shape}, {weights.shape}, allowed is (H, W, C), (K, R, S, C)"
        )
    if weights[0].size > LONGEST_SUM:
        raise ValueError(
            f"weights: got {weights[0].size} products of a sum, allowed is up to {LONGEST_SUM}"
        )
    least, most = np.iinfo(x.dtype).min, np.iinfo(x.dtype).max
    if not least <= window.pad_value <= most:
        raise ValueError(f"pad_value: got {window.pad_value}, allowed is {least} to {most}")
    refuse_if(lanes and lanes < len(weights), "lanes", lanes, f"is {len(weights)} or more")


def run(values: Raw, features: Features, memory: ByteMemory, rules: Rules = RULES) -> np.ndarray:
    """Accumulators ``(height, width, lanes) int32`` of the job that the registers describe.

    ``features`` are those of a chip (``atomic_c``, ``atomic_k``, ``atomic_k_int16`` where it
    differs, ``memory_atom``, ``int16``).  The lanes are the kernels, and accumulators
    of 0 up to a whole atom of memory. Raises Unsupported, naming register and value, for what is
    not covered: Winograd, batches, compressed weights, fp16, int16 on a chip without it, pixel
    formats that no source states, and jobs too large to be simulated; Hang for registers that
    contradict each other.  What ``memory`` raises comes through.
    """
    fields = Fields(values, features)
    itemsize = _covered(fields)
    image = fields["CDMA.D_DATAIN_FORMAT.DATAIN_FORMAT"] == PIXEL
    stored, window = weights_of(fields, itemsize, image), window_of(values, itemsize, rules)
    pixels, atom = prod(window.output), features["memory_atom"] // itemsize
    lanes = -(-stored.kernels // atom) * atom
    if pixels * lanes > MOST_SUMS or pixels * prod(stored.shape) > MOST_PRODUCTS:
        raise Unsupported(
            f"CSC.D_DATAOUT_SIZE_0.DATAOUT_WIDTH: got {pixels} pixels of {lanes} lanes and "
            f"{pixels * prod(stored.shape)} products, allowed to be simulated are {MOST_SUMS} "
            f"accumulators and {MOST_PRODUCTS} products"
        )
    x = (read_image if image else read_features)(fields, memory, itemsize, rules)
    weights = read_weights(fields, memory, stored, rules)
    if image:
        weights = _by_pixels(weights, x.shape[2])
    return convolve(x, weights, window, fields["CACC.D_CLIP_CFG.CLIP_TRUNCATE"], lanes, rules)


def window_of(values: Raw, itemsize: int = 1, rules: Rules = RULES) -> Window:
    """How the windows move.

    An image has no dilation, and its padding on the left is in what CDMA makes of it.
    """
    fields = Fields(values, {})
    image = fields["CDMA.D_DATAIN_FORMAT.DATAIN_FORMAT"] == PIXEL
    return Window(
        fields.pair("CSC.D_DATAOUT_SIZE_0.DATAOUT_{}"),
        fields.pair("CSC.D_CONV_STRIDE_EXT.CONV_{}_STRIDE_EXT", ("Y", "X")),
        (1, 1) if image else fields.pair("CSC.D_DILATION_EXT.{}_DILATION_EXT", ("Y", "X")),
        (
            fields["CSC.D_ZERO_PADDING.PAD_TOP"],
            0 if image else fields["CSC.D_ZERO_PADDING.PAD_LEFT"],
        ),
        wrapped(fields["CSC.D_ZERO_PADDING_VALUE.PAD_VALUE"], 8 * itemsize)
        if rules.pad_value
        else 0,
    )


def _by_pixels(weights: np.ndarray, channels: int) -> np.ndarray:
    """An image's weights ``(K, R, 1, S * channels)`` as ``(K, R, S, channels)``; where they end
    within a pixel, what is left of it counts as 0."""
    kernels, height, _, depth = weights.shape
    across = -(-depth // channels)
    whole = np.pad(weights[:, :, 0], ((0, 0), (0, 0), (0, across * channels - depth)))
    return whole.reshape(kernels, height, across, channels)


def _covered(fields: Fields) -> int:
    """Bytes of a processed element, where the job is one that is covered."""
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
        raise Unsupported(f"{PROCESSED[0]}: got int16, the chip has no int16")
    fields.agree("format")
    return itemsize
