"""Every bit of a kernel buffer, and what it says."""

from __future__ import annotations

import numpy as np

from npulab.captures.target import Item
from npulab.npus.ane.coefficients.fast import STEP, gathered, index_map, octets, read, refuse_places, tensors_of, walk
from npulab.npus.ane.coefficients.kernel import (
    ALIGN,
    COUNT_BYTES,
    HALF,
    MASK_BITS,
    Kernel,
    Places,
    places,
    planes,
)

KINDS = ("bias", "weight", "fill", "count", "mask", "table")
NONE = -1
# bit, bits, kind, value, engine, channel, plane, row, column, weights
COLUMNS = 10


def explain(kernel: Kernel, data: bytes, at: np.ndarray | None = None) -> list[Item]:
    """Every bit of the engines' buffers as items in the order of the section.

    Kinds: ``bias``, ``weight`` and ``table`` (value: the 16 bits), ``fill``; of sparse kernels also
    ``count`` (bytes of masks and weights that follow) and ``mask`` (8 bits).  Item: ``core`` is the
    engine, ``plane`` the input channel of the group; ``weights`` is 1 for a weight (0 where it lies
    again) and for a mask the number of weights which it says are 0, so that they sum up to the
    weights of the kernel.  ``at`` as with ``decode``, which says what is raised.
    """
    joined = gathered(data, at)
    if not kernel.sparse:
        refuse_places(at, places(kernel, planes(kernel)).engines)
    tensors_of(kernel, *read(kernel, joined))
    blocks, engines = _sparse(kernel, joined) if kernel.sparse else _dense(kernel, joined)
    refuse_places(at, engines)
    table = np.concatenate([*blocks, _tables(kernel, joined, engines)])
    if at is not None:
        table[:, 0] += 8 * (np.asarray(at, np.int64).reshape(-1, 2)[:, 0] - engines[:, 0])[table[:, 4]]
    table = table[np.argsort(table[:, 0], kind="stable")]
    cells = table.astype(object)
    cells[table == NONE] = None
    out = cells.T.tolist()
    out[2] = [KINDS[kind] for kind in out[2]]
    return list(map(Item._make, zip(*out, strict=True)))


def _block(kind: str, bits: int | np.ndarray, byte: np.ndarray, engine: np.ndarray, value: np.ndarray | int,
           weights: np.ndarray | int = 0, **of: np.ndarray) -> np.ndarray:
    out = np.full((len(byte), COLUMNS), NONE, np.int64)
    columns = (8 * byte, bits, KINDS.index(kind), value, engine, *(of.get(name, NONE) for name in
                                                                   ("channel", "plane", "row", "column")), weights)
    for number, column in enumerate(columns):
        out[:, number] = column
    return out


def _dense(kernel: Kernel, data: bytes) -> tuple[list[np.ndarray], np.ndarray]:
    table = planes(kernel)
    where = places(kernel, table)
    byte, engine = index_map(kernel, table)
    halves = np.frombuffer(data, "<u2")
    blocks = [_fill(kernel, where)]
    if kernel.bias:
        biases = byte[:, :kernel.bias_rows].ravel()
        blocks.append(_block("bias", 8 * HALF, biases, np.repeat(engine, kernel.bias_rows), halves[biases // HALF],
                             channel=np.repeat(np.arange(kernel.outputs), kernel.bias_rows)))
    weights = byte[:, kernel.bias_rows:].ravel()
    channel, step = np.divmod(np.arange(len(weights)), kernel.depth * kernel.slots)
    plane, slot = np.divmod(step, kernel.slots)
    taps = kernel.taps()
    once = np.isin(np.arange(len(taps)), np.unique(taps, return_index=True)[1])
    tap = taps[slot]
    there = tap >= 0
    row, column = np.divmod(tap, kernel.kernel_w)
    made = _block("weight", 8 * HALF, weights, engine[channel], halves[weights // HALF], once[slot], channel=channel,
                  plane=plane, row=row, column=column)[there]
    absent = _block("fill", 8 * HALF, weights, engine[channel], halves[weights // HALF])[~there]
    return [*blocks, made, absent], where.engines


def _sparse(kernel: Kernel, data: bytes) -> tuple[list[np.ndarray], np.ndarray]:
    table, where, masks, bodies = walk(kernel, data)
    start = where.start + HALF * kernel.bias * table.lanes + COUNT_BYTES
    bytes_, count = np.frombuffer(data, np.uint8), np.array([len(body) for body in bodies])
    blocks = [_fill(kernel, where), _block("count", 8 * COUNT_BYTES, start - COUNT_BYTES, table.engine, count)]
    for lanes in np.unique(table.lanes).tolist():
        chosen = np.flatnonzero(table.lanes == lanes)
        first, engine = table.first[chosen], table.engine[chosen]
        if kernel.bias:
            byte = where.start[chosen, None] + HALF * np.arange(lanes)
            blocks.append(_block("bias", 8 * HALF, byte.ravel(), np.repeat(engine, lanes),
                                 _halves(bytes_, byte.ravel()), channel=(first[:, None] + np.arange(lanes)).ravel()))
        index, gaps, there = octets(kernel, lanes)
        mask = np.stack([masks[i] for i in chosen.tolist()])
        step = STEP[mask] + gaps
        at = start[chosen, None] + np.cumsum(step, 1) - step
        bits = np.unpackbits(mask[..., None], -1, bitorder="little").view(bool)
        blocks.append(_block("mask", MASK_BITS, at.ravel(), np.repeat(engine, len(index)), mask.ravel(),
                             (there & ~bits).sum(2).ravel()))
        empty = np.repeat((at + STEP[mask]).ravel(), np.tile(gaps, len(chosen)))
        empty += np.concatenate([np.arange(gap) for gap in gaps.tolist()] * len(chosen))
        blocks.append(_block("mask", MASK_BITS, empty, np.repeat(engine, gaps.sum()), 0))
        number, octet, bit = np.nonzero(bits)
        byte = (at[..., None] + 1 + HALF * (np.cumsum(bits, 2) - 1))[number, octet, bit]
        width = kernel.mask_slots(lanes) // (kernel.depth * kernel.slots)
        cell, lane = np.divmod(MASK_BITS * index[octet] + bit, width)
        plane, slot = np.divmod(cell, kernel.slots)
        row, column = np.divmod(kernel.taps()[slot], kernel.kernel_w)
        blocks.append(_block("weight", 8 * HALF, byte, engine[number], _halves(bytes_, byte), 1,
                             channel=first[number] + lane, plane=plane, row=row, column=column))
    return blocks, where.engines


def _halves(data: np.ndarray, byte: np.ndarray) -> np.ndarray:
    return data[byte] + 2 ** 8 * data[byte + 1].astype(np.int64)


def _tables(kernel: Kernel, data: bytes, engines: np.ndarray) -> np.ndarray:
    byte = (engines[:, :1] + HALF * np.arange(kernel.table_bytes // HALF)).ravel()
    engine = np.repeat(np.arange(len(engines)), kernel.table_bytes // HALF)
    return _block("table", 8 * HALF, byte, engine, _halves(np.frombuffer(data, np.uint8), byte))


def _fill(kernel: Kernel, where: Places) -> np.ndarray:
    """Fill behind each run of planes, those of it that have any."""
    table = planes(kernel)
    last = np.flatnonzero(np.diff(table.run, append=-1))
    ends = where.start[last] + where.size[last]
    gaps = ends % -ALIGN * -1
    chosen = gaps > 0
    return _block("fill", 8 * gaps[chosen], ends[chosen], table.engine[last][chosen], 0)
