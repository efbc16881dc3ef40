"""Kernel buffers written and read, whole planes at a time.

A channel's halfwords are its biases and then its weights, in the order in which a lane of a plane
stores them.  Planes of equally many lanes are handled together.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any, NamedTuple

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
from npulab.npus.kit import refuse_if, up

MASK_STEPS = [1 + HALF * mask.bit_count() for mask in range(2**MASK_BITS)]
STEP = np.array(MASK_STEPS)  # bytes of a mask and its weights
MAGNITUDE = 0x7FFF  # of float16: weights of +0 and of -0 are left out
BYTES = 1 + HALF * MASK_BITS  # a mask with all of its weights
SHORT = 256  # halfwords: shorter planes are placed together, longer planes one by one


# Tensors and halfwords


def halves_of(kernel: Kernel, weights: Any, bias: Any) -> tuple[np.ndarray, np.ndarray | None]:
    """Return float16 weights and bias as (outputs, depth, slots) and (outputs, bias_rows) uint16.

    Raises ValueError for another type or shape.
    """
    weights = np.asarray(weights)
    refuse_if(
        weights.dtype != np.float16 or weights.shape != kernel.shape,
        "coefficients: weights",
        f"shape {weights.shape} {weights.dtype}",
        f"is {kernel.shape} float16",
    )
    by_channel = np.moveaxis(weights, 3, _axis_of_channels(kernel))
    halves = np.ascontiguousarray(by_channel, "<f2").view("<u2")
    rows = halves.reshape(kernel.outputs, kernel.depth, -1)
    return _stored(kernel, rows), _bias_halves(kernel, bias)


def _axis_of_channels(kernel: Kernel) -> int:
    """Where the last axis of the weights goes in (outputs, depth, kernel_h, kernel_w)."""
    return int(not kernel.depthwise)


def _bias_halves(kernel: Kernel, bias: Any) -> np.ndarray | None:
    if bias is None:
        refuse_if(kernel.bias, "coefficients: bias", "none", "with this kernel is one")
        return None
    refuse_if(not kernel.bias, "coefficients: bias", "one", "with this kernel is none")
    bias = np.asarray(bias)
    refuse_if(
        bias.dtype != np.float16 or bias.shape != (kernel.outputs,),
        "coefficients: bias",
        f"shape {bias.shape} {bias.dtype}",
        f"is ({kernel.outputs},) float16",
    )
    halves = np.ascontiguousarray(bias, "<f2").view("<u2")
    return np.repeat(halves[:, None], kernel.bias_rows, 1)


def _stored(kernel: Kernel, rows: np.ndarray) -> np.ndarray:
    """Return (outputs, depth, taps) in the order of the buffer, with zeros for absent taps."""
    if kernel.stride == (1, 1):
        return rows
    # an absent tap has the number -1 and so takes the zero that is appended
    absent = np.zeros((*rows.shape[:2], 1), rows.dtype)
    return np.concatenate([rows, absent], 2)[..., kernel.taps()]


def tensors_of(
    kernel: Kernel, halves: np.ndarray, bias: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return weights and bias; the inverse of ``halves_of``.

    Raises ValueError for a halfword that is set where the kernel has no tap, and for copies of a
    weight that differ.
    """
    rows = halves
    if kernel.stride != (1, 1):
        taps = kernel.taps()
        present = taps >= 0
        rows = np.empty((kernel.outputs, kernel.depth, kernel.kernel_h * kernel.kernel_w), "<u2")
        rows[..., taps[present]] = halves[..., present]
        _refuse_others(kernel, halves, _stored(kernel, rows), 0)
    by_channel = rows.reshape(kernel.outputs, kernel.depth, kernel.kernel_h, kernel.kernel_w)
    weights = np.moveaxis(by_channel, _axis_of_channels(kernel), 3)
    if bias is not None:
        _refuse_others(kernel, bias, bias[:, -1:], -kernel.bias_rows)
        bias = np.ascontiguousarray(bias[:, 0]).view(np.float16)
    return np.ascontiguousarray(weights).view(np.float16), bias


def _refuse_others(kernel: Kernel, got: np.ndarray, allowed: np.ndarray, first: int) -> None:
    """Raise ValueError for the first halfword that differs; each row begins with step ``first``."""
    got = got.reshape(kernel.outputs, -1)
    allowed = np.broadcast_to(allowed.reshape(kernel.outputs, -1), got.shape)
    wrong = np.argwhere(got != allowed)
    if not len(wrong):
        return
    channel, number = wrong[0].tolist()
    engine, byte = place_of(kernel, channel, first + number)
    raise ValueError(
        f"{at_byte(engine, byte)}: got 0x{int(got[channel, number]):04x}, "
        f"allowed is 0x{int(allowed[channel, number]):04x}: "
        "no tap of the kernel, or one that lies there more than once"
    )


def place_of(kernel: Kernel, channel: int, step: int) -> tuple[int, int]:
    """Return engine and byte of its buffer of a channel's weight, in a kernel that is not sparse.

    Biases have the steps before 0.
    """
    number = 1 + channel * kernel.steps + kernel.bias_rows + step
    byte = HALF * int(np.flatnonzero(labels(kernel) == number)[0])
    return places(kernel, planes(kernel)).of_byte(byte)


def at_byte(engine: int, byte: int) -> str:
    """The beginning of a refusal: where in the buffers."""
    return f"coefficients: engine {engine}, byte {byte} of its buffer"


# Sections and engines


def gathered(data: bytes, at: np.ndarray | None) -> bytes:
    """Return the engines' buffers one after another, out of a section and their (offset, size).

    Raises ValueError for places outside of the section, and for more bytes than it has.
    """
    if at is None:
        return data
    spans = np.asarray(at, np.int64).reshape(-1, 2).tolist()
    for engine, (offset, size) in enumerate(spans):
        if min(offset, size) < 0 or offset + size > len(data):
            raise ValueError(
                f"coefficients: engine {engine}: got {size} bytes at byte {offset}, "
                f"allowed is within the {len(data)} of the section"
            )
    # before joining: places that overlap could ask for any amount of memory
    total = sum(size for _, size in spans)
    refuse_if(
        total > len(data),
        "coefficients",
        f"{total} bytes for {len(spans)} engines",
        f"are the {len(data)} of the section",
    )
    return b"".join(data[offset : offset + size] for offset, size in spans)


def refuse_places(at: np.ndarray | None, engines: np.ndarray) -> None:
    """Raise ValueError if registers give other engines or sizes than the kernel asks for."""
    if at is None:
        return
    given = np.asarray(at, np.int64).reshape(-1, 2)[:, 1].tolist()
    wanted = engines[:, 1].tolist()
    for engine, (got, allowed) in enumerate(zip_longest(given, wanted, fillvalue="no")):
        if got != allowed:
            raise ValueError(
                f"coefficients: got {len(given)} engines, engine {engine} with {got} bytes, "
                f"allowed are {len(wanted)} engines, engine {engine} with {allowed}"
            )


# Buffers


class Alike(NamedTuple):
    """The planes that have ``lanes`` lanes: their numbers (P,), and channels (P, lanes)."""

    lanes: int
    planes: np.ndarray
    channels: np.ndarray


def alike(table: Planes) -> Iterator[Alike]:
    """Yield the planes by their number of lanes."""
    for lanes in np.unique(table.lanes).tolist():
        chosen = np.flatnonzero(table.lanes == lanes)
        yield Alike(lanes, chosen, table.first[chosen, None] + np.arange(lanes))


def write(kernel: Kernel, weights: np.ndarray, bias: np.ndarray | None) -> bytes:
    """Return the buffer of (outputs, depth, slots) halfwords and (outputs, bias_rows) biases."""
    if kernel.sparse:
        return _write_sparse(kernel, weights, bias)
    rows = weights.reshape(kernel.outputs, -1)
    if bias is not None:
        rows = np.concatenate([bias, rows], 1)
    return _interleaved(kernel, rows).tobytes()


def read(kernel: Kernel, data: bytes) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the halfwords of a buffer as ``write`` takes them.

    Raises ValueError with engine and byte.
    """
    if kernel.sparse:
        return _read_sparse(kernel, data)
    table = planes(kernel)
    where = places(kernel, table)
    refuse_if(
        len(data) != where.total,
        "coefficients",
        f"{len(data)} bytes",
        f"are the {where.total} of the kernel's engines",
    )
    halves = np.frombuffer(data, "<u2")
    rows = np.empty((kernel.outputs, kernel.steps), "<u2")
    starts = where.start // HALF
    for same in alike(table):
        size = same.lanes * kernel.steps
        if size < SHORT:
            block = halves[starts[same.planes, None] + np.arange(size)]
        else:
            begins = starts[same.planes].tolist()
            block = np.stack([halves[begin : begin + size] for begin in begins])
        by_step = block.reshape(-1, kernel.steps, same.lanes)
        rows[same.channels] = by_step.transpose(0, 2, 1)
    _refuse_fill(data, table, where)
    weights = rows[:, kernel.bias_rows :].reshape(kernel.outputs, kernel.depth, kernel.slots)
    if not kernel.bias:
        return weights, None
    return weights, rows[:, : kernel.bias_rows]


def labels(kernel: Kernel) -> np.ndarray:
    """Return (N,) int64: what each halfword of a buffer that is not sparse is.

    It is 1 + ``channel * steps + step``, a channel's steps being its biases and then its weights;
    0 for fill and tables.
    """
    numbers = 1 + np.arange(kernel.outputs * kernel.steps)
    return _interleaved(kernel, numbers.reshape(kernel.outputs, -1))


def _interleaved(kernel: Kernel, rows: np.ndarray) -> np.ndarray:
    """Return the halfwords of a buffer that is not sparse, from channels (outputs, steps)."""
    table = planes(kernel)
    where = places(kernel, table)
    out = np.zeros(where.total // HALF, rows.dtype)
    starts = where.start // HALF
    for same in alike(table):
        by_step = rows[same.channels].transpose(0, 2, 1)
        block = by_step.reshape(len(by_step), -1)
        size = block.shape[1]
        if size < SHORT:
            out[starts[same.planes, None] + np.arange(size)] = block
            continue
        for start, plane in zip(starts[same.planes].tolist(), block, strict=True):
            out[start : start + size] = plane
    return out


class Fills(NamedTuple):
    """The fill after each run of planes: byte, number of bytes, and engine, (R,) each."""

    byte: np.ndarray
    size: np.ndarray
    engine: np.ndarray


def fills(table: Planes, where: Places) -> Fills:
    """Return the fill that completes each run of planes to 64 bytes, if it needs any."""
    last = np.flatnonzero(np.diff(table.run, append=-1))
    ends = where.start[last] + where.size[last]
    size = ends % -ALIGN * -1
    needed = size > 0
    return Fills(ends[needed], size[needed], table.engine[last][needed])


def _refuse_fill(data: bytes, table: Planes, where: Places) -> None:
    fill = fills(table, where)
    before = np.cumsum(fill.size) - fill.size
    at = np.repeat(fill.byte - before, fill.size) + np.arange(fill.size.sum())
    wrong = np.flatnonzero(np.frombuffer(data, np.uint8)[at])
    if len(wrong):
        byte = int(at[wrong[0]])
        place = at_byte(*where.of_byte(byte))
        raise ValueError(f"{place}: got 0x{data[byte]:02x} in the fill, allowed is 0")


# Sparse buffers


class Masks(NamedTuple):
    """The mask bytes of a plane: some have bits for weights, the bytes between them never have.

    ``numbers`` (M,) are the mask bytes that have bits for weights, ``gaps`` (M,) counts the bytes
    without that follow each of them, ``used`` (M, 8) says which of their bits are for weights.
    """

    numbers: np.ndarray
    gaps: np.ndarray
    used: np.ndarray


def masks_of(kernel: Kernel, lanes: int) -> Masks:
    """Return the mask bytes of a plane of so many lanes."""
    used = np.zeros((1, kernel.mask_bytes(lanes), MASK_BITS), bool)
    _cells(kernel, lanes, used)[:, :, kernel.taps() >= 0, :lanes] = True
    numbers = np.flatnonzero(used[0].any(1))
    gaps = np.diff(numbers, append=used.shape[1]) - 1
    return Masks(numbers, gaps, used[0, numbers])


def _cells(kernel: Kernel, lanes: int, bits: np.ndarray) -> np.ndarray:
    """The view (P, depth, slots, width) of what belongs to the bits (P, bytes, 8) of masks."""
    width = kernel.mask_width(lanes)
    flat = bits.reshape(len(bits), -1)[:, : kernel.depth * kernel.slots * width]
    return flat.reshape(-1, kernel.depth, kernel.slots, width)


def _write_sparse(kernel: Kernel, weights: np.ndarray, bias: np.ndarray | None) -> bytes:
    table = planes(kernel)
    bodies: list[np.ndarray] = [np.zeros(0, np.uint8)] * len(table.first)
    stored = np.zeros(len(table.first), np.int64)
    for same in alike(table):
        masks = masks_of(kernel, same.lanes)
        whole = np.zeros((len(same.planes), kernel.mask_bytes(same.lanes), MASK_BITS), "<u2")
        cells = _cells(kernel, same.lanes, whole)
        cells[..., : same.lanes] = weights[same.channels].transpose(0, 2, 3, 1)
        block = whole[:, masks.numbers]
        bits = block & MAGNITUDE != 0
        each = _each(bits, masks)
        each[..., :1] = np.packbits(bits, -1, "little")
        each[..., 1:BYTES] = block.view(np.uint8)
        stored[same.planes] = bits.sum((1, 2))
        ends = np.cumsum(kernel.mask_bytes(same.lanes) + HALF * stored[same.planes])
        body_of = np.split(each[_kept(bits, masks)], ends[:-1])
        for number, body in zip(same.planes.tolist(), body_of, strict=True):
            bodies[number] = body
    where = places(kernel, table, stored)
    out = bytearray(where.total)
    heads = where.start.tolist(), table.first.tolist(), table.lanes.tolist()
    for start, first, lanes, body in zip(*heads, bodies, strict=True):
        head = b""
        if bias is not None:
            head = bias[first : first + lanes].astype("<u2").tobytes()
        plane = head + len(body).to_bytes(COUNT_BYTES, "little") + body.tobytes()
        out[start : start + len(plane)] = plane
    return bytes(out)


def _each(bits: np.ndarray, masks: Masks) -> np.ndarray:
    """Room (P, M, bytes) for each mask, all of its weights, and the masks without after it."""
    return np.zeros((*bits.shape[:2], BYTES + int(masks.gaps.max())), np.uint8)


def _kept(bits: np.ndarray, masks: Masks) -> np.ndarray:
    """Which bytes of that room a buffer stores, if these bits are set."""
    kept = _each(bits, masks) == 0
    kept[..., 1:BYTES] = np.repeat(bits, HALF, -1)
    kept[..., BYTES:] = np.arange(int(masks.gaps.max())) < masks.gaps[:, None]
    return kept


def _read_sparse(kernel: Kernel, data: bytes) -> tuple[np.ndarray, np.ndarray | None]:
    walked = walk(kernel, data)
    table, where = walked.table, walked.where
    weights = np.zeros((kernel.outputs, kernel.depth, kernel.slots), "<u2")
    for same in alike(table):
        masks = masks_of(kernel, same.lanes)
        numbers = same.planes.tolist()
        bits = bits_of(np.stack([walked.masks[number] for number in numbers]))
        bodies = b"".join([walked.bodies[number] for number in numbers])
        each = _each(bits, masks)
        each[_kept(bits, masks)] = np.frombuffer(bodies, np.uint8)
        block = np.ascontiguousarray(each[..., 1:BYTES]).view("<u2")
        allowed = masks.used & (block & MAGNITUDE != 0)
        wrong = (bits & ~allowed).any((1, 2)) | each[..., BYTES:].any((1, 2))
        if wrong.any():
            number = int(wrong.argmax())
            plane = numbers[number]
            engine, byte = where.of_byte(int(where.start[plane]))
            _refuse_stored(engine, byte + _head(kernel, same.lanes), each[number], masks)
        whole = np.zeros((len(numbers), kernel.mask_bytes(same.lanes), MASK_BITS), "<u2")
        whole[:, masks.numbers] = block
        cells = _cells(kernel, same.lanes, whole)
        weights[same.channels] = cells[..., : same.lanes].transpose(0, 3, 1, 2)
    if not kernel.bias:
        return weights, None
    bias = np.empty(kernel.outputs, "<u2")
    heads = where.start.tolist(), table.first.tolist(), table.lanes.tolist()
    for start, first, lanes in zip(*heads, strict=True):
        bias[first : first + lanes] = np.frombuffer(data, "<u2", lanes, start)
    return weights, bias[:, None]


def bits_of(masks: np.ndarray) -> np.ndarray:
    """Return the bits (..., 8) of mask bytes, lowest first."""
    return np.unpackbits(masks[..., None], -1, bitorder="little").view(bool)


def _head(kernel: Kernel, lanes: int) -> int:
    """Bytes of a sparse plane before its masks: biases and the count."""
    return HALF * lanes * kernel.bias + COUNT_BYTES


def _refuse_stored(engine: int, at: int, each: np.ndarray, masks: Masks) -> None:
    """Raise ValueError for the first bit of a plane that is not for a weight other than 0.

    ``at`` is the byte at which the plane's masks begin.
    """
    rows = zip(each.tolist(), masks.gaps.tolist(), masks.used.tolist(), strict=True)
    for row, gap, used in rows:
        behind = at + 1
        for bit in range(MASK_BITS):
            if not row[0] >> bit & 1:
                continue
            value = row[1 + HALF * bit] + 2**8 * row[2 + HALF * bit]
            got = ""
            if not used[bit]:
                got = "a bit for a tap or lane that is none"
            elif not value & MAGNITUDE:
                got = f"a weight of 0x{value:04x}"
            allowed = "are bits for weights that are not 0"
            refuse_if(got, f"{at_byte(engine, at)}, bit {bit}", got, allowed)
            behind += HALF
        for byte, mask in enumerate(row[BYTES:], behind):
            refuse_if(mask, at_byte(engine, byte), "a mask of taps that are none", "is 0")
        at = behind + gap


class Walked(NamedTuple):
    """A sparse buffer taken apart: its planes, where they lie, and of each plane the masks that
    have bits for weights, and its body, which is masks and weights."""

    table: Planes
    where: Places
    masks: list[np.ndarray]
    bodies: list[bytes]


def walk(kernel: Kernel, data: bytes) -> Walked:
    """Find the planes of a sparse buffer, whose sizes depend on their masks.

    Raises ValueError with engine and byte for counts, masks and fill that do not go with the kernel
    or the buffer.
    """
    # a huge kernel must be refused before anything of its size is made
    refuse_if(
        len(data) < kernel.least_bytes or len(data) % ALIGN,
        "coefficients",
        f"{len(data)} bytes",
        f"are multiples of {ALIGN} of at least {kernel.least_bytes}",
    )
    table = planes(kernel)
    gaps_by_lanes = {}
    for same in alike(table):
        gaps_by_lanes[same.lanes] = masks_of(kernel, same.lanes).gaps.tolist()
    masks, bodies, stored = [], [], []
    at, base, before = 0, 0, -1
    ends_run = np.diff(table.run, append=-1).astype(bool).tolist()
    rows = zip(table.engine.tolist(), table.lanes.tolist(), ends_run, strict=True)
    for engine, lanes, ends in rows:
        if engine != before:
            base, before = at, engine
            at += kernel.table_bytes
        start = at + _head(kernel, lanes)
        count = int.from_bytes(data[start - COUNT_BYTES : start], "little")
        place = at_byte(engine, start - COUNT_BYTES - base)
        least = kernel.mask_bytes(lanes)
        most = min(least * BYTES, max(len(data) - start, 0))
        if not least <= count <= least * BYTES or start + count > len(data):
            raise ValueError(f"{place}: got a count of {count} bytes, allowed is {least} to {most}")
        body = data[start : start + count]
        masks.append(_masks_in(body, gaps_by_lanes[lanes], place))
        bodies.append(body)
        stored.append((count - least) // HALF)
        at = start + count
        if ends:
            at = up(at, ALIGN)
    refuse_if(
        len(data) != at,
        "coefficients",
        f"{len(data)} bytes",
        f"are the {at} of the kernel's engines",
    )
    where = places(kernel, table, np.array(stored))
    _refuse_fill(data, table, where)
    return Walked(table, where, masks, bodies)


def _masks_in(body: bytes, gaps: list[int], place: str) -> np.ndarray:
    """Return the masks of a body that have bits for weights; ``place`` says where its count lies.

    A mask tells where the next mask is, so there is no way to look at many of them at a time.
    """
    seen = bytearray()
    at, end, steps = 0, len(body), MASK_STEPS  # local: this loop takes most of the time
    for gap in gaps:
        if at >= end:
            break
        mask = body[at]
        seen.append(mask)
        at += steps[mask] + gap
    if at != end or len(seen) != len(gaps):
        raise ValueError(
            f"{place}: got a count of {end} bytes, "
            f"allowed is as many as its masks ask for, here {at} or more"
        )
    return np.frombuffer(bytes(seen), np.uint8)
