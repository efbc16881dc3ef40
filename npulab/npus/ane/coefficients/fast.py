"""Kernel buffers written and read, whole planes at a time.

A plane has the biases and weights of several output channels (lanes); ``kernel.py`` explains
planes, lanes and slots. The halfwords of a channel are its biases, then its weights, in the order
in which a lane stores them. All planes with equally many lanes are handled together.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray as Array
from numpy.lib.stride_tricks import sliding_window_view

from npulab.npus.ane.coefficients.kernel import (
    COUNT_BYTES,
    MASK_BITS,
    Kernel,
    Places,
    Planes,
    places,
    planes,
)
from npulab.npus.ane.memory import HALF, UNIT as ALIGN
from npulab.npus.kit import refuse_if, up

MASK_STEPS = [1 + HALF * mask.bit_count() for mask in range(2**MASK_BITS)]
# The bytes of a mask and the weights that it announces, by the mask's value.
STEP = np.array(MASK_STEPS)
# All bits of a float16 but the sign. A sparse kernel leaves out a weight if these are 0.
MAGNITUDE = 0x7FFF
# Weights and biases, as float16 or as halfwords; biases are None if the kernel has none.
Tensors = tuple[Array, Array | None]
# The bytes of a mask that announces 8 weights, with these weights.
BYTES = 1 + HALF * MASK_BITS


# Tensors to halfwords, and back


def halves_of(kernel: Kernel, weights: Any, bias: Any) -> Tensors:
    """Return the bits of weights and bias, as uint16, in the order in which lanes store them.

    The shapes are (outputs, depth, slots) and (outputs, bias_rows). Raises ValueError if weights or
    bias are not float16 or have another shape than the kernel's.
    """
    halves = _halves("weights", weights, kernel.shape)
    by_channel = np.moveaxis(halves, 3, _axis_of_channels(kernel))
    rows = by_channel.reshape(kernel.outputs, kernel.depth, -1)
    return _stored(kernel, rows), _bias_halves(kernel, bias)


def _halves(name: str, values: Any, shape: tuple[int, ...]) -> Array:
    """Return the bits of ``values`` as uint16; raise ValueError unless they are float16 of a
    shape."""
    values = np.asarray(values)
    wrong = values.dtype != np.float16 or values.shape != shape
    got = f"shape {values.shape} {values.dtype}"
    refuse_if(wrong, f"coefficients: {name}", got, f"is {shape} float16")
    return np.ascontiguousarray(values, "<f2").view("<u2")


def _axis_of_channels(kernel: Kernel) -> int:
    """Return the place of the last axis of ``kernel.shape`` in (outputs, depth, kernel_h,
    kernel_w).

    The last axis is that of outputs for a depthwise kernel, else that of input channels.
    """
    return int(not kernel.depthwise)


def _bias_halves(kernel: Kernel, bias: Any) -> Array | None:
    if bias is None:
        refuse_if(kernel.bias, "coefficients: bias", "none", "with this kernel is one")
        return None
    refuse_if(not kernel.bias, "coefficients: bias", "one", "with this kernel is none")
    halves = _halves("bias", bias, (kernel.outputs,))
    return np.repeat(halves[:, None], kernel.bias_rows, 1)


def _stored(kernel: Kernel, rows: Array) -> Array:
    """Return weights (outputs, depth, taps) in the order of slots, as (outputs, depth, slots).

    A slot without a tap gets 0.
    """
    if kernel.stride == (1, 1):
        return rows
    # An absent tap has the number -1, which selects the zero that is appended.
    absent = np.zeros((kernel.outputs, kernel.depth, 1), rows.dtype)
    extended = np.concatenate([rows, absent], 2)
    return extended[..., kernel.taps()]


def tensors_of(kernel: Kernel, halves: Array, bias: Array | None) -> Tensors:
    """Return weights and bias as float16, from the halfwords that ``halves_of`` returns.

    Raises ValueError if the halfword of an absent tap is not 0, or if copies of a weight or bias
    differ.
    """
    rows = halves
    if kernel.stride != (1, 1):
        rows = _present_taps(kernel, halves)
    by_channel = rows.reshape(kernel.outputs, kernel.depth, kernel.kernel_h, kernel.kernel_w)
    moved = np.moveaxis(by_channel, _axis_of_channels(kernel), 3)
    weights = np.ascontiguousarray(moved).view(np.float16)
    if bias is None:
        return weights, None
    # A kernel that computes several output columns at a time has a copy of the bias for each.
    last_row = bias[:, -1:]
    _refuse_others(kernel, bias, last_row, -kernel.bias_rows)
    biases = np.ascontiguousarray(bias[:, 0])
    return weights, biases.view(np.float16)


def _present_taps(kernel: Kernel, halves: Array) -> Array:
    """Return weights (outputs, depth, taps) from halfwords (outputs, depth, slots).

    This is the inverse of ``_stored``. Raises ValueError if an absent tap is not 0, or if copies of
    a weight differ.
    """
    taps = kernel.taps()
    present = taps >= 0
    count = kernel.kernel_h * kernel.kernel_w
    rows = np.empty((kernel.outputs, kernel.depth, count), "<u2")
    rows[..., taps[present]] = halves[..., present]
    _refuse_others(kernel, halves, _stored(kernel, rows), 0)
    return rows


def _refuse_others(kernel: Kernel, got: Array, allowed: Array, first: int) -> None:
    """Raise ValueError for the first halfword of ``got`` that differs from ``allowed``.

    Both arrays have a row for each channel. ``first`` is the step of a row's first halfword, as
    ``place_of`` counts steps.
    """
    got = got.reshape(kernel.outputs, -1)
    allowed = allowed.reshape(kernel.outputs, -1)
    allowed = np.broadcast_to(allowed, got.shape)
    wrong = np.argwhere(got != allowed)
    if not len(wrong):
        return
    channel, number = wrong[0].tolist()
    engine, byte = place_of(kernel, channel, first + number)
    value = int(got[channel, number])
    wanted = int(allowed[channel, number])
    place = at_byte(engine, byte)
    raise ValueError(
        f"{place}: got 0x{value:04x}, allowed is 0x{wanted:04x}: "
        "the halfword of an absent tap is 0, and copies of a weight or bias are equal"
    )


def place_of(kernel: Kernel, channel: int, step: int) -> tuple[int, int]:
    """Return the engine and the byte of its buffer at which a channel has its halfword ``step``.

    The kernel is not sparse. Step 0 is the channel's first weight; biases have steps below 0.
    """
    number = 1 + channel * kernel.steps + kernel.bias_rows + step
    found = np.flatnonzero(labels(kernel) == number)
    byte = HALF * int(found[0])
    return places(kernel, planes(kernel)).of_byte(byte)


def at_byte(engine: int, byte: int) -> str:
    """Return the begin of an error about a byte of an engine's buffer."""
    return f"coefficients: engine {engine}, byte {byte} of its buffer"


# Sections and the engines' buffers in them


def gathered(data: bytes, at: Array | None) -> bytes:
    """Return the engines' buffers one after another, cut out of the section ``data``.

    ``at`` has (offset, size) in bytes of each buffer; without ``at``, ``data`` is returned. Raises
    ValueError if a buffer leaves the section, or if all buffers together are larger than it.
    """
    if at is None:
        return data
    spans = spans_of(at).tolist()
    total = 0
    for engine, (offset, size) in enumerate(spans):
        total += size
        end = offset + size
        if min(offset, size) < 0 or end > len(data):
            raise ValueError(
                f"coefficients: engine {engine}: got {size} bytes at byte {offset}, "
                f"allowed is within the {len(data)} of the section"
            )
    # Checked before joining: overlapping places could need any amount of memory.
    got = f"{total} bytes for {len(spans)} engines"
    allowed = f"are the {len(data)} of the section"
    refuse_if(total > len(data), "coefficients", got, allowed)
    return b"".join(data[offset : offset + size] for offset, size in spans)


def spans_of(at: Array) -> Array:
    """Return ``at`` as an array: offset and size in bytes of each engine's buffer, (engines, 2)."""
    return np.asarray(at, np.int64).reshape(-1, 2)


def refuse_places(at: Array | None, engines: Array) -> None:
    """Raise ValueError if number or sizes of the buffers in ``at`` are not those of ``engines``.

    ``engines`` are (offset, size) of each engine's buffer as the kernel needs them.
    """
    if at is None:
        return
    given = spans_of(at)[:, 1].tolist()
    wanted = engines[:, 1].tolist()
    pairs = zip_longest(given, wanted, fillvalue="no")
    for engine, (size, right_size) in enumerate(pairs):
        got = f"{len(given)} engines, engine {engine} with {size} bytes"
        allowed = f"are {len(wanted)} engines, engine {engine} with {right_size}"
        refuse_if(size != right_size, "coefficients", got, allowed)


# Whole buffers


class Alike(NamedTuple):
    """All planes of a kernel that have ``lanes`` lanes.

    ``planes`` (P,) are their numbers in ``Planes``, ``channels`` (P, lanes) the output channel of
    each lane.
    """

    lanes: int
    planes: Array
    channels: Array


def alike(table: Planes) -> Iterator[Alike]:
    """Yield the planes of a kernel in groups with equally many lanes."""
    for lanes in np.unique(table.lanes).tolist():
        chosen = np.flatnonzero(table.lanes == lanes)
        channels = table.first[chosen, None] + np.arange(lanes)
        yield Alike(lanes, chosen, channels)


def write(kernel: Kernel, weights: Array, bias: Array | None) -> bytes:
    """Return all engines' buffers as bytes, from the halfwords of ``halves_of``."""
    if kernel.sparse:
        return _write_sparse(kernel, weights, bias)
    rows = weights.reshape(kernel.outputs, -1)
    if bias is not None:
        rows = np.concatenate([bias, rows], 1)
    return _interleaved(kernel, rows).tobytes()


def read(kernel: Kernel, data: bytes) -> Tensors:
    """Return the halfwords of weights and biases in all engines' buffers, the inverse of ``write``.

    Raises ValueError, with engine and byte, for bytes that contradict the kernel.
    """
    if kernel.sparse:
        return _read_sparse(kernel, data)
    table = planes(kernel)
    where = places(kernel, table)
    _refuse_size(data, where.total)
    rows = np.empty((kernel.outputs, kernel.steps), "<u2")
    halves = np.frombuffer(data, "<u2")
    for same, windows, starts in _windows(kernel, table, where, halves):
        by_step = windows[starts].reshape(-1, kernel.steps, same.lanes)
        rows[same.channels] = by_step.transpose(0, 2, 1)
    _refuse_fill(data, table, where)
    biases, weights = np.split(rows, [kernel.bias_rows], 1)
    weights = weights.reshape(kernel.outputs, kernel.depth, kernel.slots)
    if not kernel.bias:
        return weights, None
    return weights, biases


def _refuse_size(data: bytes, size: int) -> None:
    wrong = len(data) != size
    allowed = f"are the {size} of the kernel's engines"
    refuse_if(wrong, "coefficients", f"{len(data)} bytes", allowed)


def _windows(
    kernel: Kernel, table: Planes, where: Places, halves: Array
) -> Iterator[tuple[Alike, Array, Array]]:
    """Yield (planes, windows, numbers) for each group of planes with equally many lanes.

    Window i is a view of the halfwords from i on, as long as a plane of the group. ``numbers`` has
    for each plane of the group the number of the window that is this plane.
    """
    starts = where.start // HALF
    # Indexed by its numbers, a group is copied in one statement; a loop over planes is far slower.
    for same in alike(table):
        size = same.lanes * kernel.steps
        windows = sliding_window_view(halves, size, writeable=True)
        yield same, windows, starts[same.planes]


def labels(kernel: Kernel) -> Array:
    """Return the meaning of each halfword of a buffer that is not sparse, as a number, (N,) int64.

    The number is 1 + ``channel * steps + step``; the steps of a channel are its biases, then its
    weights. Fill and tables have 0.
    """
    numbers = 1 + np.arange(kernel.outputs * kernel.steps)
    rows = numbers.reshape(kernel.outputs, -1)
    return _interleaved(kernel, rows)


def _interleaved(kernel: Kernel, rows: Array) -> Array:
    """Return the halfwords of all buffers of a kernel that is not sparse.

    ``rows`` (outputs, steps) has the halfwords of each channel: biases, then weights.
    """
    table = planes(kernel)
    where = places(kernel, table)
    out = np.zeros(where.total // HALF, rows.dtype)
    for same, windows, starts in _windows(kernel, table, where, out):
        by_step = rows[same.channels].transpose(0, 2, 1)
        windows[starts] = by_step.reshape(len(starts), -1)
    return out


class Fills(NamedTuple):
    """The fill after runs of planes: its first byte, its number of bytes, and its engine.

    Each field is an array with an element for each fill.
    """

    byte: Array
    size: Array
    engine: Array


def fills(table: Planes, where: Places) -> Fills:
    """Return the fill after each run of planes whose bytes are no multiple of 64."""
    last = np.flatnonzero(np.diff(table.run, append=-1))
    ends = where.start[last] + where.size[last]
    size = ends % -ALIGN * -1
    needed = size > 0
    engine = table.engine[last]
    return Fills(ends[needed], size[needed], engine[needed])


def _refuse_fill(data: bytes, table: Planes, where: Places) -> None:
    fill = fills(table, where)
    before = np.cumsum(fill.size) - fill.size
    numbers = np.arange(fill.size.sum())
    at = np.repeat(fill.byte - before, fill.size) + numbers
    stored = np.frombuffer(data, np.uint8)
    wrong = np.flatnonzero(stored[at])
    if not len(wrong):
        return
    byte = int(at[wrong[0]])
    place = at_byte(*where.of_byte(byte))
    raise ValueError(f"{place}: got 0x{data[byte]:02x} in the fill, allowed is 0x00")


# Buffers of sparse kernels


class Masks(NamedTuple):
    """The mask bytes of a sparse plane, of which M have at least one bit that stands for a weight.

    ``numbers`` (M,) are the numbers of these bytes among all mask bytes of the plane. ``gaps`` (M,)
    is how many bytes without such a bit follow each of them; those bytes are 0. ``used`` (M, 8) is
    true for a bit, lowest first, that stands for a weight.
    """

    numbers: Array
    gaps: Array
    used: Array


def masks_of(kernel: Kernel, lanes: int) -> Masks:
    """Return the mask bytes of a sparse plane with ``lanes`` lanes."""
    used = _no_bits(kernel, 1, lanes).view(bool)
    cells = _cells(kernel, lanes, used)
    present = kernel.taps() >= 0
    cells[:, :, present, :lanes] = True
    has_bits = used[0].any(1)
    numbers = np.flatnonzero(has_bits)
    gaps = np.diff(numbers, append=len(has_bits)) - 1
    return Masks(numbers, gaps, used[0, numbers])


def _no_bits(kernel: Kernel, count: int, lanes: int, dtype: str = "u1") -> Array:
    """Return zeros (count, bytes, 8): an element for each mask bit of ``count`` planes."""
    return np.zeros((count, kernel.mask_bytes(lanes), MASK_BITS), dtype)


def _cells(kernel: Kernel, lanes: int, bits: Array) -> Array:
    """Return the values of mask bits ``bits`` (P, bytes, 8) as a view (P, depth, slots, width).

    ``width`` is ``kernel.mask_width(lanes)``, the number of mask bits for each slot.
    """
    width = kernel.mask_width(lanes)
    size = kernel.depth * kernel.slots * width
    flat = bits.reshape(len(bits), -1)
    used = flat[:, :size]
    return used.reshape(-1, kernel.depth, kernel.slots, width)


def _write_sparse(kernel: Kernel, weights: Array, bias: Array | None) -> bytes:
    table = planes(kernel)
    bodies: list[bytes] = [b""] * len(table.first)
    stored = np.zeros(len(table.first), np.int64)
    for same in alike(table):
        masks = masks_of(kernel, same.lanes)
        halves = _no_bits(kernel, len(same.planes), same.lanes, "<u2")
        cells = _cells(kernel, same.lanes, halves)
        of_planes = weights[same.channels]
        cells[..., : same.lanes] = of_planes.transpose(0, 2, 3, 1)
        block = halves[:, masks.numbers]
        bits = block & MAGNITUDE != 0
        room = _room(bits, masks)
        room[..., :1] = np.packbits(bits, -1, "little")
        room[..., 1:BYTES] = block.view(np.uint8)
        count = bits.sum((1, 2))
        stored[same.planes] = count
        kept = room[_kept(bits, masks)].tobytes()
        begin = 0
        mask_bytes = kernel.mask_bytes(same.lanes)
        sizes = mask_bytes + HALF * count
        for number, size in zip(same.planes.tolist(), sizes.tolist(), strict=True):
            bodies[number] = kept[begin : begin + size]
            begin += size
    where = places(kernel, table, stored)
    out = bytearray(where.total)
    for (start, channels), body in zip(_heads(table, where), bodies, strict=True):
        plane = len(body).to_bytes(COUNT_BYTES, "little") + body
        if bias is not None:
            plane = bias[channels].tobytes() + plane
        out[start : start + len(plane)] = plane
    return bytes(out)


def _heads(table: Planes, where: Places) -> Iterator[tuple[int, slice]]:
    """Yield the byte at which each plane begins, and the output channels of its lanes."""
    ends = table.first + table.lanes
    return zip(where.start.tolist(), map(slice, table.first, ends), strict=True)


def _room(bits: Array, masks: Masks) -> Array:
    """Return zeros (P, M, bytes): room for each mask of each plane and the bytes after it.

    After a mask come its weights, at most 8, and then mask bytes whose bits stand for no weight.
    """
    size = BYTES + int(masks.gaps.max())
    return np.zeros((*bits.shape[:2], size), np.uint8)


def _kept(bits: Array, masks: Masks) -> Array:
    """Return true for each byte of ``_room`` that is stored, given the mask bits ``bits``."""
    kept = _room(bits, masks) == 0
    weight_bytes = np.repeat(bits, HALF, -1)
    kept[..., 1:BYTES] = weight_bytes
    gap_bytes = kept[..., BYTES:]
    numbers = np.arange(gap_bytes.shape[-1])
    gap_bytes[:] = numbers < masks.gaps[:, None]
    return kept


def _read_sparse(kernel: Kernel, data: bytes) -> Tensors:
    walked = walk(kernel, data)
    weights = np.zeros((kernel.outputs, kernel.depth, kernel.slots), "<u2")
    for same in alike(walked.table):
        halves = _no_bits(kernel, len(same.planes), same.lanes, "<u2")
        masks = masks_of(kernel, same.lanes)
        halves[:, masks.numbers] = _stored_weights(kernel, walked, same, masks)
        cells = _cells(kernel, same.lanes, halves)
        of_lanes = cells[..., : same.lanes]
        weights[same.channels] = of_lanes.transpose(0, 3, 1, 2)
    if not kernel.bias:
        return weights, None
    bias = np.empty((kernel.outputs, 1), "<u2")
    for start, channels in _heads(walked.table, walked.where):
        lanes = channels.stop - channels.start
        bias[channels, 0] = np.frombuffer(data, "<u2", lanes, start)
    return weights, bias


def _stored_weights(kernel: Kernel, walked: Walked, same: Alike, masks: Masks) -> Array:
    """Return the weight (halfword) of each mask bit, (P, M, 8); 0 for a bit that is not set."""
    numbers = same.planes.tolist()
    stacked = np.stack([walked.masks[number] for number in numbers])
    bits = bits_of(stacked)
    bodies = b"".join([walked.bodies[number] for number in numbers])
    room = _room(bits, masks)
    room[_kept(bits, masks)] = np.frombuffer(bodies, np.uint8)
    weight_bytes = np.ascontiguousarray(room[..., 1:BYTES])
    block = weight_bytes.view("<u2")
    nonzero = block & MAGNITUDE != 0
    allowed = masks.used & nonzero
    wrong_bits = bits & ~allowed
    wrong_gaps = room[..., BYTES:]
    wrong = wrong_bits.any((1, 2)) | wrong_gaps.any((1, 2))
    if wrong.any():
        number = int(wrong.argmax())
        start = walked.where.start[numbers[number]]
        engine, byte = walked.where.of_byte(int(start))
        byte += _head(kernel, same.lanes)
        _refuse_stored(engine, byte, room[number], masks)
    return block


def bits_of(masks: Array) -> Array:
    """Return the 8 bits of each mask byte along a new last axis, lowest bit first."""
    bits = np.unpackbits(masks[..., None], -1, bitorder="little")
    return bits.view(bool)


def _head(kernel: Kernel, lanes: int) -> int:
    """Return the number of bytes of a sparse plane before its masks: biases and the count."""
    return HALF * lanes * kernel.bias + COUNT_BYTES


def _refuse_stored(engine: int, at: int, room: Array, masks: Masks) -> None:
    """Raise ValueError for the first wrong mask bit of a plane.

    A bit is wrong if it is set and stands for no weight, or if its stored weight is 0. ``at`` is
    the byte of the engine's buffer at which the plane's masks begin.
    """
    rows = zip(room.tolist(), masks.gaps.tolist(), masks.used.tolist(), strict=True)
    for row, gap, used in rows:
        _refuse_bits(at_byte(engine, at), row, used)
        mask = row[0]
        at += 1 + HALF * mask.bit_count()
        for byte, without in enumerate(row[BYTES:], at):
            refuse_if(without, at_byte(engine, byte), "a mask without taps", "is 0")
        at += gap


def _refuse_bits(place: str, row: list[int], used: list[bool]) -> None:
    """Raise ValueError for the first bit of a mask that stands for no weight, or whose weight is 0.

    ``place`` begins the error.
    """
    mask = row[0]
    for bit in range(MASK_BITS):
        if not mask >> bit & 1:
            continue
        at = 1 + HALF * bit
        value = row[at] + 2**8 * row[at + 1]
        got = ""
        if not used[bit]:
            got = "a bit for an absent tap or lane"
        elif not value & MAGNITUDE:
            got = f"a weight of 0x{value:04x}"
        refuse_if(got, f"{place}, bit {bit}", got, "are bits for weights that are not 0")


class Walked(NamedTuple):
    """The buffers of a sparse kernel, divided into planes.

    ``table`` are the planes, ``where`` are their places. For each plane, ``bodies`` has the bytes
    of masks and weights, ``masks`` the mask bytes with a bit that stands for a weight.
    """

    table: Planes
    where: Places
    masks: list[Array]
    bodies: list[bytes]


def walk(kernel: Kernel, data: bytes) -> Walked:
    """Return the planes of a sparse kernel's buffers; their sizes follow from counts and masks.

    Raises ValueError for a number of bytes that the kernel cannot have. Raises ValueError, with
    engine and byte, for counts, masks or fill that contradict the kernel or the buffer.
    """
    # A huge kernel is refused before arrays of its size are made.
    least_bytes = kernel.least_bytes
    wrong = len(data) < least_bytes or len(data) % ALIGN
    allowed = f"are multiples of {ALIGN} of at least {least_bytes}"
    refuse_if(wrong, "coefficients", f"{len(data)} bytes", allowed)
    table = planes(kernel)
    gaps_by_lanes = {}
    for same in alike(table):
        gaps = masks_of(kernel, same.lanes).gaps
        gaps_by_lanes[same.lanes] = gaps.tolist()
    masks: list[Array] = []
    bodies: list[bytes] = []
    stored: list[int] = []
    at, base, before = 0, 0, -1
    ends_run = np.diff(table.run, append=-1) != 0
    columns = np.stack([table.engine, table.lanes, ends_run], 1)
    for engine, lanes, ends in columns.tolist():
        if engine != before:
            base, before = at, engine
            at += kernel.table_bytes
        start = at + _head(kernel, lanes)
        count_at = start - COUNT_BYTES
        count = int.from_bytes(data[count_at:start], "little")
        place = at_byte(engine, count_at - base)
        least = kernel.mask_bytes(lanes)
        rest = max(len(data) - start, 0)
        most = min(least * BYTES, rest)
        if not least <= count <= most:
            raise ValueError(f"{place}: got a count of {count} bytes, allowed is {least} to {most}")
        at = start + count
        body = data[start:at]
        masks.append(_masks_in(body, gaps_by_lanes[lanes], place))
        bodies.append(body)
        stored.append((count - least) // HALF)
        if ends:
            at = up(at, ALIGN)
    _refuse_size(data, at)
    where = places(kernel, table, np.array(stored))
    _refuse_fill(data, table, where)
    return Walked(table, where, masks, bodies)


def _masks_in(body: bytes, gaps: list[int], place: str) -> Array:
    """Return the mask bytes of a plane's ``body`` that have a bit for a weight.

    The place of a mask depends on the mask before it, so masks are read one by one; ``gaps`` are
    those of ``Masks``. Raises ValueError, which begins with ``place``, if masks and weights do not
    fill the body.
    """
    seen = bytearray()
    # ``steps`` is local because this loop takes most of the time of decoding.
    at, end, steps = 0, len(body), MASK_STEPS
    for gap in gaps:
        if at >= end:
            break
        mask = body[at]
        seen.append(mask)
        at += steps[mask] + gap
    if at != end or len(seen) < len(gaps):
        allowed = f"is as many as its masks ask for, here {at} or more"
        raise ValueError(f"{place}: got a count of {end} bytes, allowed {allowed}")
    return np.frombuffer(bytes(seen), np.uint8)
