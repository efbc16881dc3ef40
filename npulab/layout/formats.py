"""Memory formats of PyTorch: a format changes the strides of a tensor, not the order of its axes.

A format is named as PyTorch names it. Shapes and strides are in logical order, ``(N, C, H, W)`` or
``(N, C, D, H, W)``; strides count elements. Source: c10/core/MemoryFormat.h, c10/core/Contiguity.h.
"""

from __future__ import annotations

import operator
from typing import Any

from npulab.layout.nest import Layout, Loop
from npulab.layout.stored import Shape, place_bytes
from npulab.support.refuse import refuse_if

# The order of axes of each format, from the outermost to the innermost; "contiguous" has the
# tensor's own order.
ORDERS = {"channels_last": (0, 2, 3, 1), "channels_last_3d": (0, 2, 3, 4, 1)}
FORMATS = ("contiguous", *ORDERS)


def format_strides(shape: Shape, name: str) -> tuple[int, ...]:
    """Return the strides of a tensor of ``shape`` in a format: for each axis, the number of
    elements from one index to the next.

    Raises ValueError for an unknown format, and for a shape with another number of axes than the
    format has.

    >>> format_strides((10, 3, 32, 32), "contiguous")
    (3072, 1024, 32, 1)
    >>> format_strides((10, 3, 32, 32), "channels_last")
    (3072, 1, 96, 3)
    """
    sizes = _whole("shape", shape)
    step, out = 1, [0] * len(sizes)
    for axis in reversed(_order(sizes, name)):
        out[axis] = step
        # PyTorch counts an empty axis as one index in the contiguous format only.
        if name == "contiguous":
            step *= max(sizes[axis], 1)
        else:
            step *= sizes[axis]
    return tuple(out)


def is_format(shape: Shape, strides: tuple[int, ...], name: str) -> bool:
    """Return true if ``strides`` are the strides of a format without gaps.

    This is what ``tensor.is_contiguous(memory_format=...)`` returns in PyTorch. The stride of an
    axis with one index does not matter, so several formats may fit. A format with another number of
    axes than the shape never fits. Raises ValueError for an unknown format, and if shape and
    strides have different lengths.
    """
    sizes, steps = _pair(shape, strides)
    if name in ORDERS and len(sizes) != len(ORDERS[name]):
        return False
    if name == "contiguous" and 0 in sizes:
        return True
    expected = format_strides(sizes, name)
    return all(size == 1 or steps[axis] == expected[axis] for axis, size in enumerate(sizes))


def memory_format(shape: Shape, strides: tuple[int, ...]) -> str:
    """Return the format that PyTorch assigns to strides, as ``tensor.suggest_memory_format()``
    does.

    The format is "channels_last" (or "channels_last_3d") if strides grow in the order of that
    format, also with gaps. For any other strides it is "contiguous", even if the tensor is not
    contiguous: ``is_format`` tests that. If axes of one index allow both formats, the strides of
    these axes decide; if these are equal too (N, 1, 1, 1 with one stride) the format is
    "contiguous". Raises ValueError if shape and strides have different lengths.

    >>> memory_format((2, 1, 4, 4), (16, 16, 4, 1)), memory_format((2, 1, 4, 4), (16, 1, 4, 1))
    ('contiguous', 'channels_last')
    """
    sizes, steps = _pair(shape, strides)
    for name, order in ORDERS.items():
        if len(sizes) == len(order) and _grows(sizes, steps, order):
            return name
    return "contiguous"


def format_layout(shape: Shape, name: str, *, dtype: str = "uint8", **stored: Any) -> Layout:
    """Return the layout, in bytes, of a tensor of ``shape`` (in logical order) in a memory format.

    ``stored`` are further fields of ``Layout``. Raises ValueError as ``format_strides`` and
    ``Layout`` do.

    >>> format_layout((1, 3, 1, 2), "channels_last").index_map()[0, :, 0]
    array([[0, 3],
           [1, 4],
           [2, 5]])
    """
    return strides_layout(shape, format_strides(shape, name), dtype=dtype, **stored)


def strides_layout(
    shape: Shape, strides: tuple[int, ...], *, dtype: str = "uint8", **stored: Any
) -> Layout:
    """Return the layout, in bytes, of a tensor whose ``strides`` count elements.

    Loops are ordered by the strides of their axes, the largest first; among equal strides an axis
    of one index is last. Raises ValueError if shape and strides have different lengths, and as
    ``Layout`` does, such as for two elements at one place, or an empty axis.
    """
    sizes, steps = _pair(shape, strides)
    itemsize = place_bytes(dtype)
    order = sorted(range(len(sizes)), key=lambda axis: (-abs(steps[axis]), sizes[axis] == 1))
    loops = [Loop(axis, 1, steps[axis] * itemsize) for axis in order]
    return Layout(sizes, tuple(loops), dtype=dtype, **stored)


def _grows(sizes: tuple[int, ...], steps: tuple[int, ...], order: tuple[int, ...]) -> bool:
    """Return true if strides grow from the innermost axis of ``order`` outwards.

    Each stride is at least the stride times the size of the next inner axis.
    """
    if steps[1] == 0:
        return False
    least = 0
    for axis in reversed(order):
        # Equal strides of batch and channels do not count as channels last.
        if sizes[axis] == 0 or steps[axis] < least or (axis == 0 and least == steps[1]):
            return False
        least = steps[axis] * max(sizes[axis], 1)
    return True


def _order(sizes: tuple[int, ...], name: str) -> tuple[int, ...]:
    refuse_if(name not in FORMATS, "format", repr(name), f"is {', '.join(FORMATS)}")
    order = ORDERS.get(name, tuple(range(len(sizes))))
    refuse_if(len(order) != len(sizes), "shape", sizes, f"with {name} are {len(order)} axes")
    return order


def _pair(shape: Any, strides: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    sizes = _whole("shape", shape)
    steps = _whole("strides", strides, least=-(2**62))
    allowed = f"are {len(sizes)}, one for each axis of {sizes}"
    refuse_if(len(sizes) != len(steps), "strides", steps, allowed)
    return sizes, steps


def _whole(name: str, numbers: Any, least: int = 0) -> tuple[int, ...]:
    try:
        out = tuple(map(operator.index, numbers))
    except TypeError:
        out = (least - 1,)
    allowed = "are whole numbers"
    if not least:
        allowed += ", none negative"
    refuse_if(min(out, default=least) < least, name, repr(numbers), allowed)
    return out
