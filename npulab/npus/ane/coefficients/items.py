"""The bits of the engines' buffers explained, as a list of items that each state a meaning."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy import ndarray as Array

from npulab.npus.ane.coefficients.fast import (
    STEP,
    Alike,
    Walked,
    alike,
    bits_of,
    fills,
    gathered,
    labels,
    masks_of,
    read,
    refuse_places,
    spans_of,
    tensors_of,
    walk,
)
from npulab.npus.ane.coefficients.kernel import (
    COUNT_BYTES,
    MASK_BITS,
    Kernel,
    Places,
    Planes,
    places,
    planes,
)
from npulab.npus.ane.memory import HALF
from npulab.npus.kit import Item

KINDS = ("bias", "weight", "fill", "count", "mask", "table")
COORDINATES = ("channel", "plane", "row", "column")
# The value of a coordinate that an item does not have.
NONE = -1
# An item as a row of numbers: ``kind`` is an index into KINDS, ``core`` is the engine.
ITEMS = np.dtype([(name, np.int64) for name in Item._fields])


def explain(kernel: Kernel, data: bytes, at: Array | None = None) -> list[Item]:
    """Return items for every bit of the engines' buffers, in the order of the section.

    Kinds are ``bias``, ``weight``, ``table`` (each a value of 16 bits) and ``fill``. Sparse kernels
    also have ``count`` (the number of bytes of masks and weights that follow) and ``mask`` (8
    bits). ``core`` of an item is the engine, ``plane`` the input channel in its group. ``weights``
    is 1 for a weight, 0 for a further copy of it, and for a mask the number of weights that it
    marks as 0; its sum is the number of weights of the kernel. ``at`` and the errors are those of
    ``decode``.
    """
    joined = gathered(data, at)
    table = planes(kernel)
    if kernel.sparse:
        tensors_of(kernel, *read(kernel, joined))
        walked = walk(kernel, joined)
        where = walked.where
        refuse_places(at, where.engines)
        blocks = [*_sparse(kernel, walked, joined)]
    else:
        where = places(kernel, table)
        refuse_places(at, where.engines)
        tensors_of(kernel, *read(kernel, joined))
        blocks = [_dense(kernel, where, joined)]
    blocks.append(_fill(table, where))
    blocks.append(_tables(kernel, joined, where))
    rows = np.concatenate(blocks)
    if at is not None:
        offsets = spans_of(at)[:, 0]
        moved = offsets - where.engines[:, 0]
        rows["bit"] += 8 * moved[rows["core"]]
    order = np.argsort(rows["bit"], kind="stable")
    return _as_items(rows[order])


def _as_items(rows: Array) -> list[Item]:
    columns = {}
    for name in Item._fields:
        column = rows[name]
        if name in COORDINATES:
            column = column.astype(object)
            column[rows[name] == NONE] = None
        columns[name] = column.tolist()
    columns["kind"] = [KINDS[kind] for kind in columns["kind"]]
    return list(map(Item, *columns.values()))


def _item_rows(kind: str, byte: Array, **columns: Array | int) -> Array:
    """Return rows of ``ITEMS`` of one kind; ``byte`` has the byte at which each row begins.

    Without other ``columns``, a row has 16 bits, value 0, no weight and no coordinate.
    """
    rows = np.full(len(byte), NONE, ITEMS)
    rows["kind"] = KINDS.index(kind)
    rows["bit"] = 8 * byte
    rows["bits"] = 8 * HALF
    rows["value"] = 0
    rows["weights"] = 0
    for name, column in columns.items():
        rows[name] = column
    return rows


def _dense(kernel: Kernel, where: Places, data: bytes) -> Array:
    """Return a row of ``ITEMS`` for each halfword of a channel: bias, weight or absent tap."""
    numbers = labels(kernel)
    at = np.flatnonzero(numbers)
    byte = HALF * at
    number = numbers[at] - 1
    channel, step = np.divmod(number, kernel.steps)
    plane, slot = np.divmod(step - kernel.bias_rows, kernel.slots)
    taps = kernel.taps()
    tap = taps[slot]
    row, column = np.divmod(tap, kernel.kernel_w)
    # A weight that is stored several times counts once.
    first_slots = np.unique(taps, return_index=True)[1]
    first_of_tap = np.zeros(len(taps), bool)
    first_of_tap[first_slots] = True
    is_first = first_of_tap[slot]
    is_bias = plane < 0
    is_weight = ~is_bias & (tap >= 0)
    value = np.frombuffer(data, "<u2")[at]
    engine = where.engine_of(byte)
    # Every row starts as fill; rows of absent taps stay fill.
    rows = _item_rows("fill", byte, core=engine, value=value)
    rows["kind"][is_bias] = KINDS.index("bias")
    rows["kind"][is_weight] = KINDS.index("weight")
    rows["weights"] = is_weight & is_first
    rows["channel"] = np.where(is_bias | is_weight, channel, NONE)
    for name, coordinate in (("plane", plane), ("row", row), ("column", column)):
        rows[name] = np.where(is_weight, coordinate, NONE)
    return rows


def _sparse(kernel: Kernel, walked: Walked, data: bytes) -> Iterator[Array]:
    table = walked.table
    starts = walked.where.start
    count_at = starts + HALF * kernel.bias * table.lanes
    count = np.array([len(body) for body in walked.bodies])
    yield _item_rows("count", count_at, bits=8 * COUNT_BYTES, core=table.engine, value=count)
    for same in alike(table):
        if kernel.bias:
            lanes = np.arange(same.lanes)
            places_of_lanes = starts[same.planes, None] + HALF * lanes
            byte = places_of_lanes.ravel()
            engine = np.repeat(table.engine[same.planes], same.lanes)
            value = _halves(data, byte)
            channel = same.channels.ravel()
            yield _item_rows("bias", byte, core=engine, value=value, channel=channel)
        mask_at = count_at[same.planes] + COUNT_BYTES
        yield from _masks_and_weights(kernel, walked, same, mask_at, data)


def _masks_and_weights(
    kernel: Kernel, walked: Walked, same: Alike, start: Array, data: bytes
) -> Iterator[Array]:
    """Yield the rows of masks and weights of planes with equally many lanes.

    ``start`` has for each plane the byte at which its masks begin.
    """
    masks = masks_of(kernel, same.lanes)
    engine = walked.table.engine[same.planes]
    plane_numbers = same.planes.tolist()
    mask = np.stack([walked.masks[number] for number in plane_numbers])
    bits = bits_of(mask)
    step = STEP[mask] + masks.gaps
    before_mask = np.cumsum(step, 1) - step
    at = start[:, None] + before_mask
    zeros = masks.used & ~bits
    rows = _item_rows("mask", at.ravel(), bits=MASK_BITS, value=mask.ravel())
    rows["core"] = np.repeat(engine, len(masks.numbers))
    rows["weights"] = zeros.sum(2).ravel()
    yield rows
    # A mask byte without a bit for a weight lies after the weights of the mask before it.
    gaps = np.tile(masks.gaps, len(engine))
    before = np.cumsum(gaps) - gaps
    ends = at + STEP[mask]
    numbers = np.arange(gaps.sum())
    gap_at = np.repeat(ends.ravel() - before, gaps) + numbers
    gap_engine = np.repeat(engine, masks.gaps.sum())
    yield _item_rows("mask", gap_at, bits=MASK_BITS, core=gap_engine)
    number, octet, bit = np.nonzero(bits)
    order = np.cumsum(bits, 2) - 1
    first_weight = at[..., None] + 1
    after_mask = first_weight + HALF * order
    byte = after_mask[bits]
    bit_of_plane = MASK_BITS * masks.numbers[octet] + bit
    cell, lane = np.divmod(bit_of_plane, kernel.mask_width(same.lanes))
    plane, slot = np.divmod(cell, kernel.slots)
    tap = kernel.taps()[slot]
    row, column = np.divmod(tap, kernel.kernel_w)
    value = _halves(data, byte)
    rows = _item_rows("weight", byte, core=engine[number], value=value, weights=1)
    rows["channel"] = same.channels[number, lane]
    rows["plane"] = plane
    rows["row"] = row
    rows["column"] = column
    yield rows


def _tables(kernel: Kernel, data: bytes, where: Places) -> Array:
    halves = kernel.table_bytes // HALF
    offsets = where.engines[:, :1]
    places_of_halves = offsets + HALF * np.arange(halves)
    byte = places_of_halves.ravel()
    engine = np.repeat(np.arange(len(offsets)), halves)
    return _item_rows("table", byte, core=engine, value=_halves(data, byte))


def _fill(table: Planes, where: Places) -> Array:
    fill = fills(table, where)
    return _item_rows("fill", fill.byte, bits=8 * fill.size, core=fill.engine)


def _halves(data: bytes, byte: Array) -> Array:
    """Return the 16 bits that begin at each byte; in sparse buffers a byte may be odd."""
    array = np.frombuffer(data, np.uint8)
    high = array[byte + 1].astype(np.int64)
    return array[byte] + 2**8 * high
