"""Constants by channel of a planar task (an addition or multiplication by one number per
channel)."""

from __future__ import annotations

import numpy as np

from npulab.npus.ane.coefficients.kernel import HALF, MOST_CHANNELS

# Two rows of a tensor in the constant section, which the task reads as its second source: no
# engines, no fill (joshuaswarren/mil-hwx-compiler: env_bcast_mul_1x1024x375_blob_1x1024x1 and 64 to
# 3072 channels).


def encode_constants(bias: np.ndarray, scale: np.ndarray) -> bytes:
    """The section of (C,) float16 biases and scales: C of the ones, then C of the others.

    An addition has scales of 1, a multiplication biases of 0.  Raises ValueError for another shape
    or type.

    >>> encode_constants(np.zeros(2, np.float16), np.full(2, 0.5, np.float16)).hex(" ", 2)
    '0000 0000 0038 0038'
    """
    for name, array in (("bias", bias), ("scale", scale)):
        if array.dtype != np.float16 or array.ndim != 1 or array.shape != bias.shape \
                or not 1 <= len(array) <= MOST_CHANNELS:
            raise ValueError(f"channel constants: {name}: got shape {array.shape} {array.dtype}, allowed is "
                             f"{bias.shape if name == 'scale' else '(C,)'} float16")
    return np.concatenate([bias, scale]).astype("<f2").tobytes()


def decode_constants(data: bytes) -> tuple[np.ndarray, np.ndarray]:
    """(C,) float16 biases and scales; the inverse of ``encode_constants``; ValueError for another
    size."""
    if not data or len(data) % (2 * HALF) or len(data) > 2 * HALF * MOST_CHANNELS:
        raise ValueError(f"channel constants: got {len(data)} bytes, allowed are multiples of {2 * HALF} up to "
                         f"{2 * HALF * MOST_CHANNELS}")
    halves = np.frombuffer(data, "<f2")
    return halves[:len(halves) // 2].copy(), halves[len(halves) // 2:].copy()
