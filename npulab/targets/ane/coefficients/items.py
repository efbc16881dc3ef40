"""Every bit of a kernel buffer, and what it says."""

from __future__ import annotations

import numpy as np

from npulab.target import Item
from npulab.targets.ane.coefficients.fast import STEP, read, walk
from npulab.targets.ane.coefficients.kernel import ALIGN, COUNT_BYTES, HALF, MASK_BITS, Kernel, Places, places, planes
from npulab.targets.ane.coefficients.tensors import gathered, index_map, refuse_places

KINDS = ("bias", "weight", "fill", "count", "mask")
NONE = -1
# bit, bits, kind, value, engine, channel, plane, row, column, weights
COLUMNS = 10


def explain(kernel: Kernel, data: bytes, at: np.ndarray | None = None) -> list[Item]:
    """Every bit of the engines' buffers as items in the order of the section.

    Kinds: ``bias`` and ``weight`` (value: the 16 bits), ``fill``; of sparse kernels also ``count`` (bytes of masks and
    weights that follow) and ``mask`` (8 bits).  Item: ``core`` is the engine, ``plane`` the input channel of the
    group; ``weights`` is 1 for a weight and for a mask the number of weights which it says are 0, so that they sum up
    to the weights of the kernel.  ``at`` as with ``decode``, which says what is raised.
    """
    joined = gathered(data, at)
    blocks, engines = _sparse(kernel, joined) if kernel.sparse else _dense(kernel, joined)
    refuse_places(at, engines)
    table = np.concatenate(blocks)
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
    read(kernel, data)
    table = planes(kernel)
    where = places(kernel, table)
    byte, engine = index_map(kernel, table)
    halves = np.frombuffer(data, "<u2")
    every = np.arange(kernel.outputs)
    blocks = [_fill(kernel, where)]
    if kernel.bias:
        blocks.append(_block("bias", 8 * HALF, byte[:, 0], engine, halves[byte[:, 0] // HALF], channel=every))
    weights = byte[:, kernel.bias:].ravel()
    channel, step = np.divmod(np.arange(len(weights)), kernel.depth * kernel.slots)
    plane, slot = np.divmod(step, kernel.slots)
    tap = kernel.taps()[slot]
    there = tap >= 0
    row, column = np.divmod(tap, kernel.kernel_w)
    made = _block("weight", 8 * HALF, weights, engine[channel], halves[weights // HALF], 1, channel=channel,
                  plane=plane, row=row, column=column)[there]
    absent = _block("fill", 8 * HALF, weights, engine[channel], halves[weights // HALF])[~there]
    return [*blocks, made, absent], where.engines


def _sparse(kernel: Kernel, data: bytes) -> tuple[list[np.ndarray], np.ndarray]:
    read(kernel, data)
    table, masks, bodies, starts = walk(kernel, data)
    stored = np.array([len(body) for body in bodies]) - [len(mask) for mask in masks]
    where = places(kernel, table, stored // HALF)
    start, octets = np.array(starts), np.frombuffer(data, np.uint8)
    count = np.array([len(body) for body in bodies])
    blocks = [_fill(kernel, where), _block("count", 8 * COUNT_BYTES, start - COUNT_BYTES, table.engine, count)]
    for lanes in np.unique(table.lanes).tolist():
        chosen = np.flatnonzero(table.lanes == lanes)
        if kernel.bias:
            byte = (start[chosen] - COUNT_BYTES - HALF * lanes)[:, None] + HALF * np.arange(lanes)
            blocks.append(_block("bias", 8 * HALF, byte.ravel(), np.repeat(table.engine[chosen], lanes),
                                 _halves(octets, byte.ravel()),
                                 channel=(table.first[chosen, None] + np.arange(lanes)).ravel()))
        mask = np.stack([masks[i] for i in chosen.tolist()])
        at = start[chosen, None] + np.cumsum(STEP[mask], 1) - STEP[mask]
        bits = np.unpackbits(mask[..., None], -1, bitorder="little").view(bool)
        slots = kernel.mask_slots(lanes)
        width = slots // (kernel.depth * kernel.slots)
        there = np.zeros((len(chosen), bits[0].size), bool)
        there[:, :slots].reshape(len(chosen), -1, kernel.slots, width)[:, :, kernel.taps() >= 0, :lanes] = True
        zeros = (there.reshape(bits.shape) & ~bits).sum(2)
        engine = np.broadcast_to(table.engine[chosen, None], at.shape)
        blocks.append(_block("mask", MASK_BITS, at.ravel(), engine.ravel(), mask.ravel(), zeros.ravel()))
        number, octet, bit = np.nonzero(bits)
        byte = (at[..., None] + 1 + HALF * (np.cumsum(bits, 2) - 1))[number, octet, bit]
        step, lane = np.divmod(MASK_BITS * octet + bit, width)
        plane, slot = np.divmod(step, kernel.slots)
        row, column = np.divmod(kernel.taps()[slot], kernel.kernel_w)
        blocks.append(_block("weight", 8 * HALF, byte, table.engine[chosen][number], _halves(octets, byte), 1,
                             channel=table.first[chosen][number] + lane, plane=plane, row=row, column=column))
    return blocks, where.engines


def _halves(octets: np.ndarray, byte: np.ndarray) -> np.ndarray:
    return octets[byte] + 2 ** 8 * octets[byte + 1].astype(np.int64)


def _fill(kernel: Kernel, where: Places) -> np.ndarray:
    """Fill behind each run of planes, those of it that have any."""
    table = planes(kernel)
    last = np.flatnonzero(np.diff(table.run, append=-1))
    ends = where.start[last] + where.size[last]
    gaps = ends % -ALIGN * -1
    chosen = gaps > 0
    return _block("fill", 8 * gaps[chosen], ends[chosen], table.engine[last][chosen], 0)
