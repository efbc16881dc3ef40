"""The layouts of tensors and weights: tensors in planes of 16-byte pixels, weights in groups of
kernels. A kernel has all weights of one output channel."""

from __future__ import annotations

import numpy as np

from npulab.layout import Layout, kernel_groups, nc1hwc2
from npulab.npus.kit import up

# The bytes of a pixel in a plane (Mesa's FEATURE_ATOMIC_SIZE, MTX; C:dump-x2).
ATOM = 16
# A group has 32 kernels of int8 or 16 of fp16 (Mesa's WEIGHT_ATOMIC_SIZE, MTX).
GROUP_BYTES = 32
# A group is divided into blocks of this many input channels, for int8 and fp16 (Mesa, MTX).
BLOCK = 32
# Depthwise weights are divided into blocks of this many channels (Mesa).
DEPTHWISE_BLOCK = 64
# The number of kernels is filled up to a multiple of this (Mesa).
KERNELS = 2
# The operands of four output channels: biases, negated zero points of the weights, and shares (the
# channel's scale as a part of the largest scale; open-rknpu).
OPERANDS = np.dtype([("bias", "<i4", 4), ("zero", "<i2", 4), ("share", "<u2", 4)])


def per_atom(dtype: str) -> int:
    """Return the number of channels in a pixel of a plane (C2 of NC1HWC2).

    >>> [per_atom(dtype) for dtype in ("int8", "float16", "int32")]
    [16, 8, 4]
    """
    return ATOM // np.dtype(dtype).itemsize


def features(
    shape: tuple[int, int, int], dtype: str = "int8", *, row_pitch: int = 0, plane_pitch: int = 0
) -> Layout:
    """Return the layout of a tensor ``(H, W, C)`` in planes of ``per_atom`` channels: NC1HWC2.

    Elements are little-endian. Pitches are bytes from row to row and from plane to plane; 0 means
    that there are no gaps.

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
    """Return the shape of weights OHWI (depthwise 1HWC) with their fill.

    Channels are filled up to whole atoms, the number of kernels to an even number.

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
    """Return the layout of weights OHWI (depthwise 1HWC), given their shape with fill.

    Weights lie in groups of kernels, each group in blocks of input channels. The order in a block
    is rows, columns, kernels of the group, channels of the block; the last group or block may be
    short. For kernel k, channel c, row y and column x, int8 is
    ``[k/32][c/32][y][x][k%32][c%32]``, fp16 ``[k/16][c/32][y][x][k%16][c%32]``, depthwise
    ``[c/64][y][x][c%64]``.

    >>> print(weights((64, 1, 1, 64)))
    O1I1HWO2I2, O2=32, I2=32, packed: (64, 1, 1, 64) int8, 4096 bytes
    """
    if depthwise:
        return kernel_groups(shape, 1, DEPTHWISE_BLOCK, dtype=dtype)
    return kernel_groups(shape, GROUP_BYTES // np.dtype(dtype).itemsize, BLOCK, dtype=dtype)


def pack_weights(tensor: np.ndarray, depthwise: bool = False, fill: int = 0) -> bytes:
    """Return the bytes of weights OHWI (depthwise 1HWC).

    ``fill`` is stored in channels that complete an atom, 0 in a kernel that makes the number of
    kernels even.
    """
    shape = weights_shape(tensor.shape, depthwise, tensor.dtype.name)
    out = np.zeros(shape, tensor.dtype)
    out[: tensor.shape[0]] = fill
    out[: tensor.shape[0], ..., : tensor.shape[3]] = tensor
    return weights(shape, depthwise, tensor.dtype.name).pack(out)
