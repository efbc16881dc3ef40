"""One job of the convolution units, from its registers and memory to the accumulators that the next
unit is handed.

CDMA reads features or an image and the weights, CSC moves windows over them, CMAC multiplies, CACC
adds up and shortens.  What the registers state beyond that is not looked at: banks, entries,
packing, releases, the padding on the right and below, and operands of what is off hold anything in
captures.  Data that is kept from the job before (DATA_REUSE, WEIGHT_REUSE) is read again from where
the registers say.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from npulab.captures.target import Features, Unsupported
from npulab.npus.nvdla.fetch import read_features, read_image, read_weights, weights_of
from npulab.npus.nvdla.memory import ByteMemory
from npulab.npus.nvdla.products import Window, convolve
from npulab.npus.nvdla.rules import RULES, Rules
from npulab.npus.nvdla.units.fields import Fields
from npulab.npus.nvdla.units.rounding import signed

PIXEL = 1  # DATAIN_FORMAT of an image
MOST_SUMS = 2 ** 24  # accumulators
MOST_PRODUCTS = 2 ** 37
PROCESSED = tuple(f"{unit}.D_MISC_CFG.PROC_PRECISION" for unit in ("CSC", "CDMA", "CMAC_A", "CMAC_B", "CACC"))


def run(values: Mapping[str, int], features: Features, memory: ByteMemory, rules: Rules = RULES) -> np.ndarray:
    """Accumulators ``(height, width, lanes) int32`` of the job that the registers describe.

    ``features`` are those of a chip (``atomic_c``, ``atomic_k``, ``atomic_k_int16`` where it
    differs, ``memory_atom``, ``int16``, ``full_map``).  The lanes are the kernels, and accumulators
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
        raise Unsupported(f"CSC.D_DATAOUT_SIZE_0.DATAOUT_WIDTH: got {pixels} pixels of {lanes} lanes and "
                           f"{pixels * prod(stored.shape)} products, allowed to be simulated are {MOST_SUMS} "
                           f"accumulators and {MOST_PRODUCTS} products")
    read = read_image if image else read_features
    x = read(fields, memory, itemsize, rules)
    weights = read_weights(fields, memory, stored, rules)
    if image:
        weights = _by_pixels(weights, x.shape[2])
    return convolve(x, weights, window, fields["CACC.D_CLIP_CFG.CLIP_TRUNCATE"], lanes, rules)


def window_of(values: Mapping[str, int], itemsize: int = 1, rules: Rules = RULES) -> Window:
    """How the windows move.

    An image has no dilation, and its padding on the left is in what CDMA makes of it.
    """
    fields = Fields(values, {})
    image = fields["CDMA.D_DATAIN_FORMAT.DATAIN_FORMAT"] == PIXEL
    return Window(
        fields.pair("CSC.D_DATAOUT_SIZE_0.DATAOUT_{}"),
        fields.pair("CSC.D_CONV_STRIDE_EXT.CONV_{}_STRIDE_EXT", ("Y", "X")),
        (1, 1) if image else fields.pair("CSC.D_DILATION_EXT.{}_DILATION_EXT", ("Y", "X")),
        (fields["CSC.D_ZERO_PADDING.PAD_TOP"], 0 if image else fields["CSC.D_ZERO_PADDING.PAD_LEFT"]),
        signed(fields["CSC.D_ZERO_PADDING_VALUE.PAD_VALUE"], 8 * itemsize) if rules.pad_value else 0)


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
        raise Unsupported(f"{', '.join(given)}: got {', '.join(str(fields[name]) for name in given)}, allowed is "
                           "one precision for all")
    itemsize = next(iter(given.values()), 1)
    wide = max(itemsize, fields.precision("CDMA.D_MISC_CFG.IN_PRECISION"))
    if wide == 2 and not fields.features.get("int16"):
        raise Unsupported(f"{PROCESSED[0]}: got int16, the chip has no int16")
    fields.agree("format")
    return itemsize
