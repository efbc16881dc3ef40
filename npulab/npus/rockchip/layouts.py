"""The layouts of tensors and weights: features in planes of 16-byte pixels, rows, and weights in
groups of kernels."""

from __future__ import annotations

import numpy as np

from npulab.layout import Layout, kernel_groups, nc1hwc2
from npulab.npus.kit import up

ATOM = 16  # bytes of a pixel in a plane (Mesa's FEATURE_ATOMIC_SIZE, MTX; C:dump-x2)
GROUP_BYTES = 32  # a group is 32 kernels of int8, 16 of fp16 (Mesa's WEIGHT_ATOMIC_SIZE, MTX)
BLOCK = 32  # channels of a block, of either type (Mesa, MTX)
DEPTHWISE_BLOCK = 64  # channels of a block of depthwise weights (Mesa)
KERNELS = 2  # kernels are filled up to a multiple of this (Mesa)
# The operands of four output channels: biases, negated zero points of weights, shares (open-rknpu).
OPERANDS = np.dtype([("bias", "<i4", 4), ("zero", "<i2", 4), ("share", "<u2", 4)])


def per_atom(dtype: str) -> int:
    """Return C2, the number of channels that a pixel of a plane holds.

    >>> [per_atom(dtype) for dtype in ("int8", "float16", "int32")]
    [16, 8, 4]
    """
    return ATOM // np.dtype(dtype).itemsize


def features(
    shape: tuple[int, int, int], dtype: str = "int8", *, row_pitch: int = 0, plane_pitch: int = 0
) -> Layout:
    """Return a tensor ``(H, W, C)`` in planes of ``per_atom`` channels, little-endian: NC1HWC2.

    Pitches are bytes; without them planes and rows are packed.

    >>> print(features((2, 3, 20)))
    C1HWC2, C2=16, strides 96 48 16 1: (2, 3, 20) int8, 192 bytes
    """
    return nc1hwc2(
        shape, per_atom(dtype), dtype=dtype, row_pitch=row_pitch, plane_pitch=plane_pitch
    )


def weights_shape(
    shape: tuple[int, ...],
    depthwise: bool = False,
    dtype: str = "int8",
) -> tuple[int, int, int, int]:
    """Return the shape OHWI of weights with their fill: channels are filled up to whole atoms, the
    number of kernels to an even number.

    >>> weights_shape((5, 3, 3, 20)), weights_shape((1, 3, 3, 20), depthwise=True)
    ((6, 3, 3, 32), (1, 3, 3, 32))
    """
    outputs, height, width, channels = shape
    if not depthwise:
        outputs = up(outputs, KERNELS)
    return outputs, height, width, up(channels, per_atom(dtype))


def weights(
    shape: tuple[int, int, int, int],
    depthwise: bool = False,
    dtype: str = "int8",
) -> Layout:
    """Return the layout of weights OHWI (depthwise 1HWC) whose sizes are filled up already: groups
    of kernels, in each group blocks of channels.

    The order in a block is rows, columns, kernels of the group, channels of the block; the last
    group or block may be short.  int8: ``[k/32][c/32][y][x][k%32][c%32]``, fp16 has groups of 16,
    depthwise ``[c/64][y][x][c%64]``.

    >>> print(weights((64, 1, 1, 64)))
    O1I1HWO2I2, O2=32, I2=32, packed: (64, 1, 1, 64) int8, 4096 bytes
    """
    if depthwise:
        return kernel_groups(shape, 1, DEPTHWISE_BLOCK, dtype=dtype)
    return kernel_groups(shape, GROUP_BYTES // np.dtype(dtype).itemsize, BLOCK, dtype=dtype)


def pack_weights(tensor: np.ndarray, depthwise: bool = False, fill: int = 0) -> bytes:
    """Return the weight buffer of a tensor OHWI (depthwise 1HWC), with ``fill`` in the channels
    that complete an atom and 0 in the kernel that makes their number even."""
    shape = weights_shape(tensor.shape, depthwise, tensor.dtype.name)
    out = np.zeros(shape, tensor.dtype)
    out[: tensor.shape[0]] = fill
    out[: tensor.shape[0], ..., : tensor.shape[3]] = tensor
    return weights(shape, depthwise, tensor.dtype.name).pack(out)
