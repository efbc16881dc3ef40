"""Orders of axes in which frameworks state convolutions, and tensors moved between these orders.

An order is a text with a letter for each axis: ``OHWI``. Letters in brackets are one axis, whose
first letter is the slowest: the last axis of ``1HW(CM)`` has C * M channels, and channel
``c * M + m`` is output ``m`` of input channel ``c``. ``1`` is an axis of one index.

In every order, a convolution is the sum over the window and over the input channels, and a
depthwise convolution is the sum over the window alone. With padding "SAME" there are ``ceil(n /
stride)`` outputs for n inputs. Windows then reach ``max((outputs - 1) * stride + (kernel - 1) *
dilation + 1 - n, 0)`` indices beyond the inputs. Half of these indices, rounded down, are padded
before the inputs, all others after. "VALID" pads nothing.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np
from numpy import ndarray as Array

GROUP = re.compile(r"\(([A-Z]+)\)|([A-Z1])")
# Orders with C * M channels in one axis are read as another spelling, which says so.
SPELLED = {"1HWC": "1HW(CM)", "C1HW": "(CM)1HW"}


@dataclass(frozen=True)
class Convention:
    """The orders of axes of a framework.

    ``weights`` is the order of the weights of a convolution, ``depthwise`` that of a depthwise
    convolution, ``activations`` that of inputs and outputs.
    """

    weights: str
    depthwise: str
    activations: str


# Sources: tf.nn.conv2d, tf.nn.depthwise_conv2d; ANEURALNETWORKS_CONV_2D,
# ANEURALNETWORKS_DEPTHWISE_CONV_2D (NeuralNetworks.h); tensorflow/lite/kernels/conv.cc,
# depthwise_conv.cc; torch.nn.functional.conv2d, which is depthwise if groups is C.
CONVENTIONS = {
    "tensorflow": Convention("HWIO", "HWCM", "NHWC"),
    "nnapi": Convention("OHWI", "1HW(CM)", "NHWC"),
    "tflite": Convention("OHWI", "1HW(CM)", "NHWC"),
    "pytorch": Convention("OIHW", "(CM)1HW", "NCHW"),
}


def convert_axes(tensor: Array, source: str, to: str, **sizes: int) -> Array:
    """Return a tensor (C-contiguous) with its axes moved from the order ``source`` to ``to``.

    ``sizes`` (such as ``C=2``) are needed for letters that are one axis in ``source`` and separate
    axes in ``to``; one letter of such an axis may be left out. ``1HWC`` is read as ``1HW(CM)``,
    ``C1HW`` as ``(CM)1HW``. Values and type stay as they are. Raises ValueError for orders with
    different letters, for sizes whose product is not the size of their axis, and for an order with
    another number of axes than the tensor.

    >>> weights = np.arange(8, dtype=np.int8).reshape(1, 1, 2, 4)
    >>> convert_axes(weights, "HWIO", "OHWI").shape
    (4, 1, 1, 2)
    >>> convert_axes(weights, "HWCM", "1HW(CM)").ravel()
    array([0, 1, 2, 3, 4, 5, 6, 7], dtype=int8)
    >>> convert_axes(np.zeros((6, 1, 3, 3)), "(CM)1HW", "HWCM", C=2).shape
    (3, 3, 2, 3)
    """
    tensor = np.asarray(tensor)
    old, new = _parsed("source", source), _parsed("to", to)
    letters, wanted = "".join(old).replace("1", ""), "".join(new).replace("1", "")
    if set(letters) != set(wanted):
        raise ValueError(f"to: got {to!r}, allowed are the letters of {source!r}, each once")
    if tensor.ndim != len(old):
        raise ValueError(
            f"tensor: got shape {tensor.shape}, allowed are {len(old)} axes, as {source!r} says"
        )
    unknown = [name for name in sizes if name not in letters]
    if unknown:
        raise ValueError(
            f"sizes: got {unknown[0]}={sizes[unknown[0]]}, allowed are letters of {source!r}"
        )
    length: dict[str, int] = {}
    for axis, size in zip(old, tensor.shape, strict=True):
        # Several letters that are one axis in both orders need no sizes.
        stays = len(axis) > 1 and axis in new and not set(axis) & set(sizes)
        length |= _split(axis, size, dict.fromkeys(axis[1:], 1) if stays else sizes)
    whole = tensor.reshape([length[letter] for letter in letters])
    moved = whole.transpose([letters.index(letter) for letter in wanted])
    shape = [math.prod(length[letter] for letter in axis.replace("1", "")) for axis in new]
    return np.ascontiguousarray(moved).reshape(shape)


def dense_weights(
    weights: Array, source: str, groups: int, fill: float = 0, to: str = "OHWI"
) -> Array:
    """Return the weights of a grouped or depthwise convolution as those of a dense convolution.

    In a dense convolution each output channel reads every input channel. An output channel of group
    n has the given weights for the input channels of group n, and ``fill`` (the zero point) for all
    others. ``source`` is an order with O and I, in which I counts the input channels of one group;
    or for a depthwise convolution an order with C and M, and ``groups`` is the size of C. The
    result takes ``groups`` times the memory of ``weights``. Raises ValueError for groups that do
    not divide the output channels, for a fill outside of the type's range, and the errors of
    ``convert_axes``.

    >>> dense_weights(np.array([7, 8, 9, 10]).reshape(4, 1, 1, 1), "OIHW", 2)[..., 0, 0, :]
    array([[ 7,  0],
           [ 8,  0],
           [ 0,  9],
           [ 0, 10]])
    """
    letters = set(SPELLED.get(source, source))
    if {"C", "M"} <= letters:
        grouped = convert_axes(weights, source, "CMHW", C=groups)[:, :, :, :, None]
    else:
        plain = convert_axes(weights, source, "OHWI")
        if groups < 1 or len(plain) % groups:
            raise ValueError(
                f"groups: got {groups}, allowed is a divisor of the {len(plain)} output channels"
            )
        grouped = plain.reshape(groups, -1, *plain.shape[1:])
    dtype = grouped.dtype
    if dtype.kind in "iu":
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        if not low <= fill <= high:
            raise ValueError(f"fill: got {fill}, allowed is {low} to {high}, the range of {dtype}")
    count, outputs, height, width, inputs = grouped.shape
    dense = np.full((count, outputs, height, width, count, inputs), fill, dtype)
    for group in range(count):
        dense[group, :, :, :, group] = grouped[group]
    return convert_axes(dense.reshape(count * outputs, height, width, count * inputs), "OHWI", to)


def _parsed(name: str, text: str) -> list[str]:
    """Return the axes of an order, each as a text of one or more letters.

    Raises ValueError, with ``name``, for a text that is not an order.
    """
    given = SPELLED.get(text, text)
    found = [one.group(1) or one.group(2) for one in GROUP.finditer(given)]
    letters = "".join(found).replace("1", "")
    if GROUP.sub("", given) or not found or len(set(letters)) != len(letters):
        raise ValueError(
            f"{name}: got {text!r}, allowed are capital letters, each once, 1, and letters of one "
            "axis in brackets, such as 'OHWI' or '1HW(CM)'"
        )
    return found


def _split(axis: str, size: int, sizes: dict[str, int]) -> dict[str, int]:
    """Return the size of each letter of ``axis``, which has ``size`` indices.

    ``sizes`` are the sizes that the caller gave, by letter.
    """
    if axis == "1":
        if size != 1:
            raise ValueError(
                f"tensor: got {size} indices on an axis that the order calls 1, allowed is 1"
            )
        return {}
    given = {letter: sizes[letter] for letter in axis if letter in sizes}
    free = [letter for letter in axis if letter not in given]
    if len(free) > 1:
        raise ValueError(
            f"sizes: got no size of {', '.join(free)}, allowed are sizes of all but one of these "
            f"letters, such as {free[0]}=2: they divide the {size} indices of ({axis})"
        )
    known = math.prod(given.values())
    if min(given.values(), default=1) < 1 or size % known or (not free and known != size):
        said = ", ".join(f"{letter}={one}" for letter, one in given.items())
        raise ValueError(
            f"sizes: got {said}, allowed are sizes whose product is the {size} indices of {axis}"
        )
    return given | dict.fromkeys(free, size // known)
