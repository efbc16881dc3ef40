"""The items of a buffer: each run of its bits with the meaning that a layout gives it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise, repeat
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy import ndarray as Array

from npulab.layout.parts import Sums

if TYPE_CHECKING:
    from npulab.layout.stored import Stored

COORDINATES = ("core", "channel", "plane", "row", "column")
BESIDE = ("other", "fill", "sum", "constant")


class Item(NamedTuple):
    """A run of bits of a buffer and its meaning: ``bits`` bits from bit ``bit`` of the buffer.

    ``kind`` is the caller's name for elements, or "fill", "sum", "constant" or "other" for the bits
    between them. ``value`` is the element or the fill, else 0. ``core`` to ``column`` say which
    element it is, None for an axis that the tensor does not have; ``weights`` is 1 for an element,
    else 0.
    """

    bit: int
    bits: int
    kind: str
    value: int = 0
    core: int | None = None
    channel: int | None = None
    plane: int | None = None
    row: int | None = None
    column: int | None = None
    weights: int = 0


def items_of(
    layout: Stored, tensor: Array, data: Array, kind: str, axes: dict[str, int]
) -> list[Item]:
    """Return items for the elements of a tensor, their copies, and the bits between, in the order
    of the buffer.

    ``kind`` is the kind of elements. ``axes`` states the axis of the tensor for some of the names
    ``core``, ``channel``, ``plane``, ``row`` and ``column``. Raises ValueError for another name or
    an axis that the tensor does not have.
    """
    for name, axis in axes.items():
        if name not in COORDINATES or not 0 <= axis < tensor.ndim:
            raise ValueError(
                f"{name}: got axis {axis}, allowed are {', '.join(COORDINATES)}, each an axis from "
                f"0 to {tensor.ndim - 1}"
            )
    values = tensor
    if tensor.dtype.kind == "f":
        values = tensor.view(f"u{tensor.itemsize}")
    numbers = np.arange(tensor.size).reshape(tensor.shape)[layout.inside].reshape(-1)
    places = layout.places_before_swap().reshape(-1)[numbers]
    # Elements are sorted by place here, so that the sort of all items at the end is quick.
    order = np.argsort(layout.swapped(places), kind="stable")
    places = places[order]
    numbers = numbers[order]
    index = np.unravel_index(numbers, tensor.shape)
    columns: list[Iterable[int | None]] = []
    for name in COORDINATES:
        if name in axes:
            columns.append(index[axes[name]].tolist())
        else:
            columns.append(repeat(None))
    elements = values.reshape(-1)[numbers].tolist()
    out: list[Item] = []
    for copy in (0, *layout.copies):
        bits = (layout.swapped(places + copy) * layout.place_bits).tolist()
        same = repeat(layout.bits), repeat(kind)
        rows = zip(bits, *same, elements, *columns, repeat(1), strict=False)
        out += map(Item._make, rows)
    out += _beside(layout, data, np.array([item.bit for item in out]))
    return sorted(out, key=itemgetter(0))


def _beside(layout: Stored, data: Array, bits: Array) -> Iterator[Item]:
    """Yield items for the runs of bits between elements; ``bits`` has the first bit of each
    element.
    """
    step = layout.place_bits
    differs = np.unpackbits(data ^ layout.blank(layout.size), bitorder="little")
    filled = ~differs.reshape(-1, step).any(1)
    kinds = np.where(filled, BESIDE.index("fill"), BESIDE.index("other"))
    for part in layout.parts:
        number = BESIDE.index("constant")
        if isinstance(part, Sums):
            number = BESIDE.index("sum")
        places = np.arange(part.offset, part.end) ^ max(layout.swap - 1, 0)
        for at in range(8 // step):
            kinds[places * (8 // step) + at] = number
    for at in range(layout.itemsize):
        kinds[bits // step + at] = -1
    for start, end in pairwise([0, *(np.flatnonzero(np.diff(kinds)) + 1).tolist(), len(kinds)]):
        if kinds[start] < 0:
            continue
        name = BESIDE[kinds[start]]
        value = 0
        if name == "fill":
            value = layout.fill
        yield Item(start * step, (end - start) * step, name, value)
