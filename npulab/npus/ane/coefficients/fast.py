"""Kernel buffers written and read whole planes at a time, and every bit of them explained."""

from __future__ import annotations

from typing import Any

import numpy as np

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
from npulab.npus.ane.memory import UNIT as ALIGN
from npulab.npus.kit import Item, ceil_div, refuse_if, up

STEP = np.array(
    [1 + HALF * n.bit_count() for n in range(2**MASK_BITS)]
)  # bytes of a mask and its weights
MAGNITUDE = 0x7FFF  # of float16; weights of either zero are left out
BYTES = 1 + HALF * MASK_BITS  # a mask with all of its weights
SHORT = 256  # halfwords of planes that are quicker to place one by one than plane by plane
KINDS = ("bias", "weight", "fill", "count", "mask", "table")
NONE = -1
# bit, bits, kind, value, engine, channel, plane, row, column, weights
COLUMNS = 10


def halves_of(kernel: Kernel, weights: Any, bias: Any) -> tuple[np.ndarray, np.ndarray | None]:
    """Float16 weights and bias as (outputs, depth, slots) and (outputs, bias_rows) uint16;
    ValueError for others."""
    weights = np.asarray(weights)
    refuse_if(
        weights.dtype != np.float16 or weights.shape != kernel.shape,
        "coefficients: weights",
        f"shape {weights.shape} {weights.dtype}",
        f"is {kernel.shape} float16",
    )
    if (bias is not None) != kernel.bias:
        raise ValueError(
            f"coefficients: bias: got {'none' if bias is None else 'one'}, allowed with this "
            "kernel is "
            f"{'one' if kernel.bias else 'none'}"
        )
    if bias is not None:
        bias = np.asarray(bias)
        refuse_if(
            bias.dtype != np.float16 or bias.shape != (kernel.outputs,),
            "coefficients: bias",
            f"shape {bias.shape} {bias.dtype}",
            f"is ({kernel.outputs},) float16",
        )
        bias = np.repeat(
            np.ascontiguousarray(bias, "<f2").view("<u2")[:, None], kernel.bias_rows, 1
        )
    if kernel.depthwise:
        order = 3, 0, 1, 2
    else:
        order = 0, 3, 1, 2
    rows = (
        np.ascontiguousarray(weights.transpose(order), "<f2")
        .view("<u2")
        .reshape(kernel.outputs, kernel.depth, -1)
    )
    return _stored(kernel, rows), bias


def _stored(kernel: Kernel, rows: np.ndarray) -> np.ndarray:
    """(outputs, depth, taps) in the order in which they lie, with zeros for absent taps."""
    if kernel.stride == (1, 1):
        return rows
    return np.concatenate([rows, np.zeros((*rows.shape[:2], 1), rows.dtype)], 2)[..., kernel.taps()]


def tensors_of(
    kernel: Kernel, halves: np.ndarray, bias: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """The inverse of ``halves_of``; ValueError for a halfword that is set where the kernel has no
    tap, and for one that lies there several times and is not always the same."""
    rows = halves
    if kernel.stride != (1, 1):
        taps = kernel.taps()
        there = taps >= 0
        rows = np.empty((kernel.outputs, kernel.depth, kernel.kernel_h * kernel.kernel_w), "<u2")
        rows[..., taps[there]] = halves[..., there]
        _refuse_others(kernel, halves.reshape(kernel.outputs, -1), _stored(kernel, rows), 0)
    if bias is not None:
        _refuse_others(kernel, bias, bias[:, -1:], -kernel.bias_rows)
        bias = bias[:, 0]
    shape = (kernel.outputs, kernel.depth, kernel.kernel_h, kernel.kernel_w)
    if kernel.depthwise:
        order = 1, 2, 3, 0
    else:
        order = 0, 2, 3, 1
    weights = np.ascontiguousarray(rows.reshape(shape).transpose(order))
    return weights.view(np.float16), None if bias is None else np.ascontiguousarray(bias).view(
        np.float16
    )


def _refuse_others(kernel: Kernel, got: np.ndarray, allowed: np.ndarray, step: int) -> None:
    allowed = np.broadcast_to(allowed.reshape(kernel.outputs, -1), got.shape)
    wrong = np.argwhere(got != allowed)
    if len(wrong):
        channel, number = wrong[0].tolist()
        engine, byte = place_of(kernel, channel, step + number)
        raise ValueError(
            f"coefficients: engine {engine}, byte {byte} of its buffer: got "
            f"0x{int(got[channel, number]):04x}, allowed is 0x{int(allowed[channel, number]):04x}: "
            "no tap "
            "of the kernel, or one that lies there more than once"
        )


def labels(kernel: Kernel) -> np.ndarray:
    """(N,) int64 of the halfwords of a buffer that is not sparse: 1 + ``channel * steps + step``, a
    channel's steps being its biases and then its weights; 0 for fill and tables."""
    rows = kernel.outputs, kernel.steps
    return _placed(kernel, 1 + np.arange(rows[0] * rows[1]).reshape(rows))


def place_of(kernel: Kernel, channel: int, step: int) -> tuple[int, int]:
    """Engine, and byte of its buffer, of a weight of a channel of a kernel that is not sparse;
    biases lie before the first."""
    number = 1 + channel * kernel.steps + kernel.bias_rows + step
    byte = HALF * int(np.flatnonzero(labels(kernel) == number)[0])
    starts = places(kernel, planes(kernel)).engines[:, 0]
    engine = int(np.searchsorted(starts, byte, "right")) - 1
    return engine, byte - int(starts[engine])


def gathered(data: bytes, at: np.ndarray | None) -> bytes:
    """The engines' buffers one behind another, out of a section and the (offset, size) of each.

    Raises ValueError for places outside of the section, and for more bytes than it has.
    """
    if at is None:
        return data
    spans = np.asarray(at, np.int64).reshape(-1, 2).tolist()
    for engine, (offset, size) in enumerate(spans):
        if offset < 0 or size < 0 or offset + size > len(data):
            raise ValueError(
                f"coefficients: engine {engine}: got {size} bytes at byte {offset}, allowed is "
                "within the "
                f"{len(data)} of the section"
            )
    total = sum(size for _, size in spans)
    refuse_if(
        total > len(data),
        "coefficients",
        f"{total} bytes for {len(spans)} engines",
        f"are the {len(data)} of the section",
    )
    return b"".join(data[offset : offset + size] for offset, size in spans)


def refuse_places(at: np.ndarray | None, engines: np.ndarray) -> None:
    """Raises ValueError where registers give another number of engines, or other sizes, than the
    kernel asks for."""
    if at is None:
        return
    given = np.asarray(at, np.int64).reshape(-1, 2)[:, 1].tolist()
    wanted = engines[:, 1].tolist()
    if given != wanted:
        first = next(
            (i for i, (a, b) in enumerate(zip(given, wanted, strict=False)) if a != b),
            min(len(given), len(wanted)),
        )
        raise ValueError(
            f"coefficients: got {len(given)} engines, engine {first} with "
            f"{(given + [0] * 16)[first]} bytes, allowed are {len(wanted)} engines, engine {first} "
            "with "
            f"{(wanted + [0] * 16)[first]}"
        )


# Buffers


def write(kernel: Kernel, weights: np.ndarray, bias: np.ndarray | None) -> bytes:
    """The buffer of (outputs, depth, slots) halfwords, and of (outputs, bias_rows) where the kernel
    has a bias."""
    if kernel.sparse:
        return _write_sparse(kernel, planes(kernel), weights, bias)
    rows = weights.reshape(kernel.outputs, -1)
    return _placed(kernel, rows if bias is None else np.concatenate([bias, rows], 1)).tobytes()


def _placed(kernel: Kernel, rows: np.ndarray) -> np.ndarray:
    """The halfwords of a buffer that is not sparse, out of those (outputs, steps) of each
    channel.
    """
    table = planes(kernel)
    where = places(kernel, table)
    out = np.zeros(int(where.engines[-1].sum()) // HALF, rows.dtype)
    starts = where.start // HALF
    for lanes in np.unique(table.lanes).tolist():
        chosen = np.flatnonzero(table.lanes == lanes)
        block = (
            rows[table.first[chosen, None] + np.arange(lanes)]
            .transpose(0, 2, 1)
            .reshape(len(chosen), -1)
        )
        if block.shape[1] < SHORT:
            out[starts[chosen, None] + np.arange(block.shape[1])] = block
            continue
        for start, plane in zip(starts[chosen].tolist(), block, strict=True):
            out[start : start + len(plane)] = plane
    return out


def read(kernel: Kernel, data: bytes) -> tuple[np.ndarray, np.ndarray | None]:
    """The halfwords of a buffer as ``write`` takes them; raises ValueError with engine and byte."""
    if kernel.sparse:
        return _read_sparse(kernel, data)
    table = planes(kernel)
    where = places(kernel, table)
    size = int(where.engines[-1].sum())
    refuse_if(
        len(data) != size,
        "coefficients",
        f"{len(data)} bytes",
        f"are the {size} of the kernel's engines",
    )
    halves = np.frombuffer(data, "<u2")
    rows = np.empty((kernel.outputs, kernel.steps), "<u2")
    starts = where.start // HALF
    for lanes in np.unique(table.lanes).tolist():
        chosen = np.flatnonzero(table.lanes == lanes)
        size = lanes * rows.shape[1]
        if size < SHORT:
            block = halves[starts[chosen, None] + np.arange(size)]
        else:
            block = np.stack([halves[start : start + size] for start in starts[chosen].tolist()])
        rows[table.first[chosen, None] + np.arange(lanes)] = block.reshape(
            len(chosen), -1, lanes
        ).transpose(0, 2, 1)
    _refuse_fill(data, table, where)
    weights = rows[:, kernel.bias_rows :].reshape(kernel.outputs, kernel.depth, kernel.slots)
    return weights, rows[:, : kernel.bias_rows] if kernel.bias else None


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
        raise ValueError(
            f"coefficients: engine {engine}, byte {byte - int(where.engines[engine, 0])} of its "
            "buffer: "
            f"got 0x{data[byte]:02x} in the fill, allowed is 0"
        )


# Sparse


def octets(kernel: Kernel, lanes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of the masks of a plane (M of them): (P,) those that have bits for weights, how many without
    follow each, and (P, 8) which of their bits are for weights."""
    there = np.zeros(ceil_div(kernel.mask_slots(lanes), MASK_BITS) * MASK_BITS, bool)
    shape = kernel.depth, kernel.slots, kernel.mask_slots(lanes) // (kernel.depth * kernel.slots)
    there[: kernel.mask_slots(lanes)].reshape(shape)[:, kernel.taps() >= 0, :lanes] = True
    bits = there.reshape(-1, MASK_BITS)
    index = np.flatnonzero(bits.any(1))
    return index, np.diff(index, append=len(bits)) - 1, bits[index]


def _write_sparse(
    kernel: Kernel, table: Planes, weights: np.ndarray, bias: np.ndarray | None
) -> bytes:
    bodies: list[np.ndarray] = [np.zeros(0, np.uint8)] * len(table.first)
    stored = np.zeros(len(table.first), np.int64)
    for lanes in np.unique(table.lanes).tolist():
        chosen = np.flatnonzero(table.lanes == lanes)
        index, gaps, _ = octets(kernel, lanes)
        slots = kernel.mask_slots(lanes)
        cells = np.zeros(
            (len(chosen), kernel.depth, kernel.slots, slots // (kernel.depth * kernel.slots)), "<u2"
        )
        cells[..., :lanes] = weights[table.first[chosen, None] + np.arange(lanes)].transpose(
            0, 2, 3, 1
        )
        whole = np.pad(cells.reshape(len(chosen), -1), ((0, 0), (0, slots % -MASK_BITS * -1)))
        block = whole.reshape(len(chosen), -1, MASK_BITS)[:, index]
        bits = block & MAGNITUDE != 0
        each = np.zeros((*block.shape[:2], BYTES + int(gaps.max())), np.uint8)
        each[..., :1] = np.packbits(bits, -1, "little")
        each[..., 1:BYTES] = block.view(np.uint8)
        stored[chosen] = bits.sum((1, 2))
        sizes = len(index) + int(gaps.sum()) + HALF * stored[chosen]
        for number, body in zip(
            chosen.tolist(), np.split(each[_kept(bits, gaps)], np.cumsum(sizes)[:-1]), strict=True
        ):
            bodies[number] = body
    where = places(kernel, table, stored)
    out = bytearray(int(where.engines[-1].sum()))
    if bias is None:
        biases = b""
    else:
        biases = bias.astype("<u2").tobytes()
    spans = zip(
        where.start.tolist(), table.first.tolist(), table.lanes.tolist(), bodies, strict=True
    )
    for start, first, lanes, body in spans:
        head = biases[HALF * first : HALF * (first + lanes)] + len(body).to_bytes(
            COUNT_BYTES, "little"
        )
        out[start : start + len(head) + len(body)] = head + body.tobytes()
    return bytes(out)


def _kept(bits: np.ndarray, gaps: np.ndarray) -> np.ndarray:
    """Which bytes are there of a mask, all of its weights and the masks without weights behind it:
    (..., P, 8) bits to (..., P, bytes)."""
    kept = np.ones((*bits.shape[:-1], BYTES + int(gaps.max())), bool)
    kept[..., 1:BYTES] = np.repeat(bits, HALF, -1)
    kept[..., BYTES:] = np.arange(int(gaps.max())) < gaps[:, None]
    return kept


def _read_sparse(kernel: Kernel, data: bytes) -> tuple[np.ndarray, np.ndarray | None]:
    table, where, masks, bodies = walk(kernel, data)
    weights = np.zeros((kernel.outputs, kernel.depth, kernel.slots), "<u2")
    for lanes in np.unique(table.lanes).tolist():
        chosen = np.flatnonzero(table.lanes == lanes)
        index, gaps, there = octets(kernel, lanes)
        bits = np.unpackbits(
            np.stack([masks[i] for i in chosen.tolist()])[..., None], -1, bitorder="little"
        ).view(bool)
        each = np.zeros((*bits.shape[:2], BYTES + int(gaps.max())), np.uint8)
        each[_kept(bits, gaps)] = np.frombuffer(
            b"".join([bodies[i] for i in chosen.tolist()]), np.uint8
        )
        block = np.ascontiguousarray(each[..., 1:BYTES]).view("<u2")
        wrong = np.flatnonzero(
            (bits & ~(there & (block & MAGNITUDE != 0))).any((1, 2)) | each[..., BYTES:].any((1, 2))
        )
        if len(wrong):
            plane, engine = int(wrong[0]), int(table.engine[chosen[wrong[0]]])
            at = int(where.start[chosen[plane]] - where.engines[engine, 0])
            _refuse_stored(engine, at + _head(kernel, lanes), each[plane], gaps, there)
        slots = kernel.mask_slots(lanes)
        whole = np.zeros((len(chosen), ceil_div(slots, MASK_BITS), MASK_BITS), "<u2")
        whole[:, index] = block
        cells = whole.reshape(len(chosen), -1)[:, :slots].reshape(
            len(chosen), kernel.depth, kernel.slots, -1
        )
        weights[table.first[chosen, None] + np.arange(lanes)] = cells[..., :lanes].transpose(
            0, 3, 1, 2
        )
    if not kernel.bias:
        return weights, None
    bias = np.empty(kernel.outputs, "<u2")
    for start, first, lanes in zip(
        where.start.tolist(), table.first.tolist(), table.lanes.tolist(), strict=True
    ):
        bias[first : first + lanes] = np.frombuffer(data, "<u2", lanes, start)
    return weights, bias[:, None]


def _head(kernel: Kernel, lanes: int) -> int:
    """Bytes of a sparse plane before its masks: biases and the count."""
    return HALF * lanes * kernel.bias + COUNT_BYTES


def _refuse_stored(
    engine: int, at: int, each: np.ndarray, gaps: np.ndarray, there: np.ndarray
) -> None:
    """Raises ValueError for the first bit of a plane that is not for a weight which is not 0;
    ``at`` is the byte at which its masks begin."""
    for row, gap, weights in zip(each.tolist(), gaps.tolist(), there.tolist(), strict=True):
        place = at + 1
        for bit in range(MASK_BITS):
            if row[0] >> bit & 1:
                value = row[1 + HALF * bit] + 2**8 * row[2 + HALF * bit]
                if not weights[bit] or not value & MAGNITUDE:
                    said = "a bit for a tap or lane that is none"
                    if weights[bit]:
                        said = f"a weight of 0x{value:04x}"
                    raise ValueError(
                        f"coefficients: engine {engine}, byte {at} of its buffer, bit {bit}: got "
                        f"{said}, "
                        "allowed are bits for weights that are not 0"
                    )
                place += HALF
        if any(row[BYTES:]):
            at = place + next(i for i, mask in enumerate(row[BYTES:]) if mask)
            raise ValueError(
                f"coefficients: engine {engine}, byte {at} of its buffer: got a mask of taps that "
                "are "
                "none, allowed is 0"
            )
        at = place + gap


def walk(kernel: Kernel, data: bytes) -> tuple[Planes, Places, list[np.ndarray], list[bytes]]:
    """Planes of a sparse buffer and where they lie; of each the masks that have bits for weights,
    and the body, which is masks and weights.

    Raises ValueError with engine and byte for counts, masks and fill that do not go with the kernel
    or the buffer.
    """
    refuse_if(
        len(data) < kernel.least_bytes or len(data) % ALIGN,
        "coefficients",
        f"{len(data)} bytes",
        f"are multiples of {ALIGN} from {kernel.least_bytes} on",
    )
    table = planes(kernel)
    masks, bodies, stored = [], [], []
    at, base, before, steps = 0, 0, -1, STEP.tolist()
    following = {
        lanes: octets(kernel, lanes)[1].tolist() for lanes in np.unique(table.lanes).tolist()
    }
    ends = np.diff(table.run, append=-1).astype(bool).tolist()
    for engine, lanes, last in zip(table.engine.tolist(), table.lanes.tolist(), ends, strict=True):
        if engine != before:
            base, before, at = at, engine, at + kernel.table_bytes
        start = at + _head(kernel, lanes)
        count = int.from_bytes(data[start - COUNT_BYTES : start], "little")
        wanted = ceil_div(kernel.mask_slots(lanes), MASK_BITS)
        body = data[start : start + count]
        got = (
            f"coefficients: engine {engine}, byte {start - COUNT_BYTES - base} of its buffer: got "
            "a count of "
            f"{count} bytes, allowed is"
        )
        if start + count > len(data) or not wanted <= count <= wanted * BYTES:
            raise ValueError(f"{got} {wanted} to {min(wanted * BYTES, max(len(data) - start, 0))}")
        seen, place = bytearray(), 0
        # one mask tells where the next one is, so there is no way to look at many of them at a time
        for gap in following[lanes]:
            if place >= count:
                break
            mask = body[place]
            seen.append(mask)
            place += steps[mask] + gap
        if place != count or len(seen) != len(following[lanes]):
            raise ValueError(f"{got} as many as its masks ask for, here {place} or more")
        masks.append(np.frombuffer(bytes(seen), np.uint8))
        bodies.append(body)
        stored.append((count - wanted) // HALF)
        at = start + count
        if last:
            at = up(at, ALIGN)
    refuse_if(
        len(data) != at,
        "coefficients",
        f"{len(data)} bytes",
        f"are the {at} of the kernel's engines",
    )
    where = places(kernel, table, np.array(stored))
    _refuse_fill(data, table, where)
    return table, where, masks, bodies


# Every bit of a buffer, and what it says


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
    if kernel.sparse:
        blocks, engines = _sparse(kernel, joined)
    else:
        blocks, engines = _dense(kernel, joined)
    refuse_places(at, engines)
    table = np.concatenate([*blocks, _tables(kernel, joined, engines)])
    if at is not None:
        table[:, 0] += (
            8 * (np.asarray(at, np.int64).reshape(-1, 2)[:, 0] - engines[:, 0])[table[:, 4]]
        )
    table = table[np.argsort(table[:, 0], kind="stable")]
    cells = table.astype(object)
    cells[table == NONE] = None
    out = cells.T.tolist()
    out[2] = [KINDS[kind] for kind in out[2]]
    return list(map(Item._make, zip(*out, strict=True)))


def _block(
    kind: str,
    bits: int | np.ndarray,
    byte: np.ndarray,
    engine: np.ndarray,
    value: np.ndarray | int,
    weights: np.ndarray | int = 0,
    **of: np.ndarray,
) -> np.ndarray:
    out = np.full((len(byte), COLUMNS), NONE, np.int64)
    columns = (
        8 * byte,
        bits,
        KINDS.index(kind),
        value,
        engine,
        *(of.get(name, NONE) for name in ("channel", "plane", "row", "column")),
        weights,
    )
    for number, column in enumerate(columns):
        out[:, number] = column
    return out


def _dense(kernel: Kernel, data: bytes) -> tuple[list[np.ndarray], np.ndarray]:
    where, numbers, taps = places(kernel, planes(kernel)), labels(kernel), kernel.taps()
    at = np.flatnonzero(numbers)
    channel, step = np.divmod(numbers[at] - 1, kernel.steps)
    plane, slot = np.divmod(step - kernel.bias_rows, kernel.slots)
    row, column = np.divmod(taps[slot], kernel.kernel_w)
    once = np.isin(np.arange(len(taps)), np.unique(taps, return_index=True)[1])[slot]
    engine = np.searchsorted(where.engines[:, 0], HALF * at, "right") - 1
    values, bias, there = np.frombuffer(data, "<u2")[at], plane < 0, taps[slot] >= 0
    of = {"channel": channel, "plane": plane, "row": row, "column": column}
    blocks = [_fill(kernel, where)]
    for kind, some, names in (
        ("bias", bias, ["channel"]),
        ("weight", ~bias & there, [*of]),
        ("fill", ~bias & ~there, []),
    ):
        blocks.append(
            _block(
                kind,
                8 * HALF,
                HALF * at[some],
                engine[some],
                values[some],
                once[some] if kind == "weight" else 0,
                **{name: of[name][some] for name in names},
            )
        )
    return blocks, where.engines


def _sparse(kernel: Kernel, data: bytes) -> tuple[list[np.ndarray], np.ndarray]:
    table, where, masks, bodies = walk(kernel, data)
    start = where.start + HALF * kernel.bias * table.lanes + COUNT_BYTES
    bytes_, count = np.frombuffer(data, np.uint8), np.array([len(body) for body in bodies])
    blocks = [
        _fill(kernel, where),
        _block("count", 8 * COUNT_BYTES, start - COUNT_BYTES, table.engine, count),
    ]
    for lanes in np.unique(table.lanes).tolist():
        chosen = np.flatnonzero(table.lanes == lanes)
        first, engine = table.first[chosen], table.engine[chosen]
        if kernel.bias:
            byte = where.start[chosen, None] + HALF * np.arange(lanes)
            blocks.append(
                _block(
                    "bias",
                    8 * HALF,
                    byte.ravel(),
                    np.repeat(engine, lanes),
                    _halves(bytes_, byte.ravel()),
                    channel=(first[:, None] + np.arange(lanes)).ravel(),
                )
            )
        index, gaps, there = octets(kernel, lanes)
        mask = np.stack([masks[i] for i in chosen.tolist()])
        step = STEP[mask] + gaps
        at = start[chosen, None] + np.cumsum(step, 1) - step
        bits = np.unpackbits(mask[..., None], -1, bitorder="little").view(bool)
        blocks.append(
            _block(
                "mask",
                MASK_BITS,
                at.ravel(),
                np.repeat(engine, len(index)),
                mask.ravel(),
                (there & ~bits).sum(2).ravel(),
            )
        )
        empty = np.repeat((at + STEP[mask]).ravel(), np.tile(gaps, len(chosen)))
        empty += np.concatenate([np.arange(gap) for gap in gaps.tolist()] * len(chosen))
        blocks.append(_block("mask", MASK_BITS, empty, np.repeat(engine, gaps.sum()), 0))
        number, octet, bit = np.nonzero(bits)
        byte = (at[..., None] + 1 + HALF * (np.cumsum(bits, 2) - 1))[number, octet, bit]
        width = kernel.mask_slots(lanes) // (kernel.depth * kernel.slots)
        cell, lane = np.divmod(MASK_BITS * index[octet] + bit, width)
        plane, slot = np.divmod(cell, kernel.slots)
        row, column = np.divmod(kernel.taps()[slot], kernel.kernel_w)
        blocks.append(
            _block(
                "weight",
                8 * HALF,
                byte,
                engine[number],
                _halves(bytes_, byte),
                1,
                channel=first[number] + lane,
                plane=plane,
                row=row,
                column=column,
            )
        )
    return blocks, where.engines


def _halves(data: np.ndarray, byte: np.ndarray) -> np.ndarray:
    return data[byte] + 2**8 * data[byte + 1].astype(np.int64)


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
