"""Kernel buffers written and read whole planes at a time."""

from __future__ import annotations

import numpy as np

from npulab.targets.ane.coefficients.kernel import (
    ALIGN,
    COUNT_BYTES,
    HALF,
    MASK_BITS,
    Kernel,
    Places,
    Planes,
    ceil_div,
    places,
    planes,
)

STEP = np.array([1 + HALF * n.bit_count() for n in range(2 ** MASK_BITS)])  # bytes of a mask and its weights
MAGNITUDE = 0x7FFF  # of float16; weights of either zero are left out
BYTES = 1 + HALF * MASK_BITS  # a mask with all of its weights


def write(kernel: Kernel, weights: np.ndarray, bias: np.ndarray | None) -> bytes:
    """The buffer of (outputs, depth, slots) halfwords, and of (outputs,) ones where the kernel has a bias."""
    table = planes(kernel)
    if kernel.sparse:
        return _write_sparse(kernel, table, weights, bias)
    where = places(kernel, table)
    rows = _rows(weights, bias)
    out = np.zeros(int(where.engines[-1].sum()) // HALF, "<u2")
    starts = where.start // HALF
    for lanes in np.unique(table.lanes).tolist():
        chosen = np.flatnonzero(table.lanes == lanes)
        block = rows[table.first[chosen, None] + np.arange(lanes)].transpose(0, 2, 1).reshape(len(chosen), -1)
        for start, plane in zip(starts[chosen].tolist(), block, strict=True):
            out[start:start + len(plane)] = plane
    return out.tobytes()


def read(kernel: Kernel, data: bytes) -> tuple[np.ndarray, np.ndarray | None]:
    """The halfwords of a buffer as ``write`` takes them; raises ValueError with engine and byte."""
    if kernel.sparse:
        return _read_sparse(kernel, data)
    table = planes(kernel)
    where = places(kernel, table)
    refuse_size(len(data), int(where.engines[-1].sum()))
    halves = np.frombuffer(data, "<u2")
    rows = np.empty((kernel.outputs, kernel.bias + kernel.depth * kernel.slots), "<u2")
    starts = where.start // HALF
    for lanes in np.unique(table.lanes).tolist():
        chosen = np.flatnonzero(table.lanes == lanes)
        size = lanes * rows.shape[1]
        block = np.empty((len(chosen), size), "<u2")
        for start, plane in zip(starts[chosen].tolist(), block, strict=True):
            plane[:] = halves[start:start + size]
        rows[table.first[chosen, None] + np.arange(lanes)] = block.reshape(len(chosen), -1, lanes).transpose(0, 2, 1)
    _refuse_fill(data, table, where)
    weights = rows[:, kernel.bias:].reshape(kernel.outputs, kernel.depth, kernel.slots)
    return weights, rows[:, 0] if kernel.bias else None


def _rows(weights: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
    rows = weights.reshape(len(weights), -1)
    return rows if bias is None else np.concatenate([bias[:, None], rows], 1)


def _refuse_fill(data: bytes, table: Planes, where: Places) -> None:
    """Raises ValueError for a byte that is set behind the last plane of a run."""
    last = np.flatnonzero(np.diff(table.run, append=-1))
    ends = where.start[last] + where.size[last]
    gaps = ends % -ALIGN * -1
    at = np.repeat(ends - np.cumsum(gaps) + gaps, gaps) + np.arange(gaps.sum())
    wrong = np.flatnonzero(np.frombuffer(data, np.uint8)[at])
    if len(wrong):
        byte = int(at[wrong[0]])
        engine = int(np.searchsorted(where.engines[:, 0], byte, "right")) - 1
        _refuse_byte(engine, byte - int(where.engines[engine, 0]), data[byte])


def _refuse_byte(engine: int, at: int, value: int) -> None:
    raise ValueError(f"coefficients: engine {engine}, byte {at} of its buffer: got 0x{value:02x} in the fill, allowed "
                     "is 0")


def refuse_size(size: int, allowed: int) -> None:
    """Raises ValueError where the buffer has not the size that the kernel asks for."""
    if size != allowed:
        raise ValueError(f"coefficients: got {size} bytes, allowed are the {allowed} of the kernel's engines")


# Sparse


def _write_sparse(kernel: Kernel, table: Planes, weights: np.ndarray, bias: np.ndarray | None) -> bytes:
    bodies: list[np.ndarray] = [np.zeros(0, np.uint8)] * len(table.first)
    for lanes in np.unique(table.lanes).tolist():
        chosen = np.flatnonzero(table.lanes == lanes)
        block = weights[table.first[chosen, None] + np.arange(lanes)].transpose(0, 2, 3, 1)
        width = kernel.mask_slots(lanes) // (kernel.depth * kernel.slots)
        block = np.pad(block, ((0, 0), (0, 0), (0, 0), (0, width - lanes))).reshape(len(chosen), -1)
        block = np.pad(block, ((0, 0), (0, block.shape[1] % -MASK_BITS * -1))).reshape(len(chosen), -1, MASK_BITS)
        stored = block & MAGNITUDE != 0
        masks = np.packbits(stored, -1, "little")
        each = np.concatenate([masks, np.ascontiguousarray(block, "<u2").view(np.uint8)], -1)
        ends = np.cumsum(STEP[masks[..., 0]].sum(1))[:-1]
        for index, body in zip(chosen.tolist(), np.split(each[_kept(stored)], ends), strict=True):
            bodies[index] = body
    masks_bytes = ceil_div(np.array([kernel.mask_slots(n) for n in table.lanes.tolist()]), MASK_BITS)
    where = places(kernel, table, (np.array([len(body) for body in bodies]) - masks_bytes) // HALF)
    out = bytearray(int(where.engines[-1].sum()))
    biases = b"" if bias is None else bias.astype("<u2").tobytes()
    spans = zip(where.start.tolist(), table.first.tolist(), table.lanes.tolist(), bodies, strict=True)
    for start, first, lanes, body in spans:
        head = biases[HALF * first:HALF * (first + lanes)] + len(body).to_bytes(COUNT_BYTES, "little")
        out[start:start + len(head) + len(body)] = head + body.tobytes()
    return bytes(out)


def _kept(stored: np.ndarray) -> np.ndarray:
    """Which bytes of a mask with all of its weights are there: (..., 8) bits to (..., 17)."""
    kept = np.ones((*stored.shape[:-1], BYTES), bool)
    kept[..., 1:] = np.repeat(stored, HALF, -1)
    return kept


def _read_sparse(kernel: Kernel, data: bytes) -> tuple[np.ndarray, np.ndarray | None]:
    table, masks, bodies, starts = walk(kernel, data)
    weights = np.zeros((kernel.outputs, kernel.depth, kernel.slots), "<u2")
    for lanes in np.unique(table.lanes).tolist():
        chosen = np.flatnonzero(table.lanes == lanes)
        mask = np.stack([masks[i] for i in chosen.tolist()])
        stored = np.unpackbits(mask[..., None], -1, bitorder="little").view(bool)
        each = np.zeros((*mask.shape, BYTES), np.uint8)
        each[_kept(stored)] = np.concatenate([bodies[i] for i in chosen.tolist()])
        block = np.ascontiguousarray(each[..., 1:]).view("<u2").reshape(len(chosen), -1)
        stored = stored.reshape(len(chosen), -1)
        slots = kernel.mask_slots(lanes)
        width = slots // (kernel.depth * kernel.slots)
        absent = np.ones(stored.shape, bool)
        absent[:, :slots].reshape(len(chosen), -1, kernel.slots, width)[:, :, kernel.taps() >= 0, :lanes] = False
        wrong = np.argwhere(stored & (absent | (block & MAGNITUDE == 0)))
        if len(wrong):
            plane, slot = wrong[0].tolist()
            engine = int(table.engine[chosen[plane]])
            head = int(np.searchsorted(table.engine, engine))
            base = starts[head] - COUNT_BYTES - HALF * kernel.bias * int(table.lanes[head])
            _refuse_stored(engine, starts[chosen[plane]] - base, mask[plane], slot, bool(absent[plane, slot]))
        block = block[:, :slots].reshape(len(chosen), kernel.depth, kernel.slots, width)[..., :lanes]
        weights[table.first[chosen, None] + np.arange(lanes)] = block.transpose(0, 3, 1, 2)
    if not kernel.bias:
        return weights, None
    bias = np.empty(kernel.outputs, "<u2")
    for start, first, lanes in zip(starts, table.first.tolist(), table.lanes.tolist(), strict=True):
        at = start - COUNT_BYTES - HALF * lanes
        bias[first:first + lanes] = np.frombuffer(data, "<u2", lanes, at)
    return weights, bias


def _refuse_stored(engine: int, start: int, mask: np.ndarray, slot: int, absent: bool) -> None:
    byte = start + int(STEP[mask[:slot // MASK_BITS]].sum())
    said = "a mask bit for a tap or lane that the kernel has not" if absent else "a weight of 0 that is stored"
    raise ValueError(f"coefficients: engine {engine}, byte {byte} of its buffer, bit {slot % MASK_BITS}: got {said}, "
                     "allowed are bits for weights that are not 0")


def walk(kernel: Kernel, data: bytes) -> tuple[Planes, list[np.ndarray], list[np.ndarray], list[int]]:
    """Planes of a sparse buffer, the masks and the body of each, and the byte at which the body begins.

    Raises ValueError with engine and byte for counts and masks that do not go with the kernel or the buffer.
    """
    if len(data) < kernel.least_bytes or len(data) % ALIGN:
        raise ValueError(f"coefficients: got {len(data)} bytes, allowed are multiples of {ALIGN} from "
                         f"{kernel.least_bytes} on")
    table = planes(kernel)
    masks, bodies, starts = [], [], []
    at, base, steps = 0, 0, STEP.tolist()
    ends = np.diff(table.run, append=-1).astype(bool).tolist()
    for number, (engine, lanes, last) in enumerate(
            zip(table.engine.tolist(), table.lanes.tolist(), ends, strict=True)):
        if number == 0 or engine != table.engine[number - 1]:
            base = at
        at += HALF * lanes * kernel.bias
        start = at + COUNT_BYTES
        count = int.from_bytes(data[at:start], "little")
        wanted = ceil_div(kernel.mask_slots(lanes), MASK_BITS)
        body = data[start:start + count]
        if start + count > len(data) or not wanted <= count <= wanted * BYTES:
            raise ValueError(f"coefficients: engine {engine}, byte {at - base} of its buffer: got a count of {count} "
                             f"bytes, allowed is {wanted} to {min(wanted * BYTES, max(len(data) - start, 0))}")
        seen, place = bytearray(), 0
        # one mask tells where the next one is, so there is nothing to do at a time
        while place < count:
            mask = body[place]
            seen.append(mask)
            place += steps[mask]
        if place != count or len(seen) != wanted:
            raise ValueError(f"coefficients: engine {engine}, byte {at - base} of its buffer: got a count of {count} "
                             f"bytes, in which there are {len(seen)} masks that ask for {place} bytes, allowed are "
                             f"{wanted} masks")
        masks.append(np.frombuffer(bytes(seen), np.uint8))
        bodies.append(np.frombuffer(body, np.uint8))
        starts.append(start)
        at = start + count
        if last:
            fill = data[at:ceil_div(at, ALIGN) * ALIGN]
            if any(fill):
                byte = next(i for i, one in enumerate(fill) if one)
                _refuse_byte(engine, at - base + byte, fill[byte])
            at += len(fill)
    refuse_size(len(data), at)
    return table, masks, bodies, starts
