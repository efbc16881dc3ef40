"""Every bit of the engines' buffers, and what it says."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

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
NONE = -1  # a coordinate that an item does not have
# items as rows of numbers, for numpy: ``kind`` is an index of KINDS, ``core`` the engine
ITEMS = np.dtype([(name, np.int64) for name in Item._fields])


def explain(kernel: Kernel, data: bytes, at: np.ndarray | None = None) -> list[Item]:
    """Return every bit of the engines' buffers as items in the order of the section.

    Kinds: ``bias``, ``weight`` and ``table`` (value: the 16 bits), ``fill``; of sparse kernels also
    ``count`` (bytes of masks and weights that follow) and ``mask`` (8 bits).  Item: ``core`` is the
    engine, ``plane`` the input channel of the group; ``weights`` is 1 for a weight (0 for its
    copies) and for a mask the number of weights which it says are 0, so that they sum up to the
    weights of the kernel.  ``at`` and the errors are those of ``decode``.
    """
    joined = gathered(data, at)
    table = planes(kernel)
    if kernel.sparse:
        tensors_of(kernel, *read(kernel, joined))
        walked = walk(kernel, joined)
        where = walked.where
        blocks = [*_sparse(kernel, walked, joined)]
        refuse_places(at, where.engines)
    else:
        where = places(kernel, table)
        refuse_places(at, where.engines)
        tensors_of(kernel, *read(kernel, joined))
        blocks = [*_dense(kernel, where, joined)]
    rows = np.concatenate([*blocks, _fill(table, where), _tables(kernel, joined, where)])
    if at is not None:
        moved = np.asarray(at, np.int64).reshape(-1, 2)[:, 0] - where.engines[:, 0]
        rows["bit"] += 8 * moved[rows["core"]]
    return _as_items(rows[np.argsort(rows["bit"], kind="stable")])


def _as_items(rows: np.ndarray) -> list[Item]:
    columns = {}
    for name in Item._fields:
        column = rows[name]
        if name in COORDINATES:
            column = column.astype(object)
            column[rows[name] == NONE] = None
        columns[name] = column.tolist()
    columns["kind"] = [KINDS[kind] for kind in columns["kind"]]
    return list(map(Item, *columns.values()))


def _item_rows(kind: str, byte: np.ndarray, **columns: np.ndarray | int) -> np.ndarray:
    """Rows of one kind, by the byte at which each begins; columns left out are 16 bits, value 0, no
    weight, and no coordinate."""
    rows = np.full(len(byte), NONE, ITEMS)
    rows["kind"] = KINDS.index(kind)
    rows["bit"] = 8 * byte
    given = {"bits": 8 * HALF, "value": 0, "weights": 0, **columns}
    for name, column in given.items():
        rows[name] = column
    return rows


def _dense(kernel: Kernel, where: Places, data: bytes) -> Iterator[np.ndarray]:
    numbers = labels(kernel)
    at = np.flatnonzero(numbers)
    channel, step = np.divmod(numbers[at] - 1, kernel.steps)
    plane, slot = np.divmod(step - kernel.bias_rows, kernel.slots)
    taps = kernel.taps()
    tap = taps[slot]
    row, column = np.divmod(tap, kernel.kernel_w)
    first_of_tap = np.zeros(len(taps), np.int64)
    first_of_tap[np.unique(taps, return_index=True)[1]] = 1
    engine = where.engine_of(HALF * at)
    value = np.frombuffer(data, "<u2")[at]

    def halfwords(kind: str, some: np.ndarray, **columns: np.ndarray) -> np.ndarray:
        chosen = {name: column[some] for name, column in columns.items()}
        return _item_rows(kind, HALF * at[some], core=engine[some], value=value[some], **chosen)

    is_bias = plane < 0
    is_absent = ~is_bias & (tap < 0)
    yield halfwords("bias", is_bias, channel=channel)
    yield halfwords("fill", is_absent)
    yield halfwords(
        "weight",
        ~is_bias & ~is_absent,
        weights=first_of_tap[slot],
        channel=channel,
        plane=plane,
        row=row,
        column=column,
    )


def _sparse(kernel: Kernel, walked: Walked, data: bytes) -> Iterator[np.ndarray]:
    table = walked.table
    start = walked.where.start + HALF * kernel.bias * table.lanes
    count = np.array([len(body) for body in walked.bodies])
    yield _item_rows("count", start, bits=8 * COUNT_BYTES, core=table.engine, value=count)
    for same in alike(table):
        engine = table.engine[same.planes, None]
        if kernel.bias:
            byte = walked.where.start[same.planes, None] + HALF * np.arange(same.lanes)
            yield _item_rows(
                "bias",
                byte.ravel(),
                core=np.repeat(engine, same.lanes),
                value=_halves(data, byte.ravel()),
                channel=same.channels.ravel(),
            )
        yield from _masks_and_weights(kernel, walked, same, start + COUNT_BYTES, data)


def _masks_and_weights(
    kernel: Kernel, walked: Walked, same: Alike, start: np.ndarray, data: bytes
) -> Iterator[np.ndarray]:
    """Rows of planes of equally many lanes; ``start`` is the byte of each plane's first mask."""
    masks = masks_of(kernel, same.lanes)
    engine = walked.table.engine[same.planes]
    mask = np.stack([walked.masks[number] for number in same.planes.tolist()])
    bits = bits_of(mask)
    step = STEP[mask] + masks.gaps
    at = start[same.planes, None] + np.cumsum(step, 1) - step
    yield _item_rows(
        "mask",
        at.ravel(),
        bits=MASK_BITS,
        core=np.repeat(engine, len(masks.numbers)),
        value=mask.ravel(),
        weights=(masks.used & ~bits).sum(2).ravel(),
    )
    # masks without bits for weights follow the weights of the mask before them
    gaps = np.tile(masks.gaps, len(engine))
    before = np.cumsum(gaps) - gaps
    empty = np.repeat((at + STEP[mask]).ravel() - before, gaps) + np.arange(gaps.sum())
    yield _item_rows("mask", empty, bits=MASK_BITS, core=np.repeat(engine, masks.gaps.sum()))
    number, octet, bit = np.nonzero(bits)
    behind = at[..., None] + 1 + HALF * (np.cumsum(bits, 2) - 1)
    byte = behind[bits]
    cell, lane = np.divmod(MASK_BITS * masks.numbers[octet] + bit, kernel.mask_width(same.lanes))
    plane, slot = np.divmod(cell, kernel.slots)
    row, column = np.divmod(kernel.taps()[slot], kernel.kernel_w)
    yield _item_rows(
        "weight",
        byte,
        core=engine[number],
        value=_halves(data, byte),
        weights=1,
        channel=same.channels[number, lane],
        plane=plane,
        row=row,
        column=column,
    )


def _tables(kernel: Kernel, data: bytes, where: Places) -> np.ndarray:
    halves = kernel.table_bytes // HALF
    byte = (where.engines[:, :1] + HALF * np.arange(halves)).ravel()
    engine = np.repeat(np.arange(len(where.engines)), halves)
    return _item_rows("table", byte, core=engine, value=_halves(data, byte))


def _fill(table: Planes, where: Places) -> np.ndarray:
    fill = fills(table, where)
    return _item_rows("fill", fill.byte, bits=8 * fill.size, core=fill.engine)


def _halves(data: bytes, byte: np.ndarray) -> np.ndarray:
    """Return the 16 bits at bytes, which in sparse buffers need not be even."""
    array = np.frombuffer(data, np.uint8)
    return array[byte] + 2**8 * array[byte + 1].astype(np.int64)
