"""The simulated device: computes output bytes from words and bytes, job by job, item by item.

It shares only the tables and the kit with the rest of the folder, so that its agreement with lift
and emulation proves something.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
from numpy import ndarray as Array

from npulab.captures.target import Features
from npulab.layout.bitstream import BitReader
from npulab.npus.kit import DEVICE, Capture, Hang, Job, Unsupported, hang_if, known, up, wrapped
from npulab.npus.kit.memory import Memory, address_of
from npulab.npus.vivante import device_v8, device_vendor
from npulab.npus.vivante.facts import CHIPS, EXPECTED, Values, expected, tensor_bytes

STREAM_ALIGN = 64
FIRST_PIXEL = 3
# The arrays of a simulated job may take at most MEMORY bytes. The tensor processor has LOOPS output
# loops with a count; the loop around them has none.
MEMORY = 2**30
LOOPS = 6
# A TP job may move at most MOST_ELEMENTS (bytes of the image). At most AT_ONCE of them are moved in
# one step, to bound the index arrays.
MOST_ELEMENTS = 2**24
AT_ONCE = 2**18
ADDRESSES = 2**32


def simulate(capture: Capture) -> bytes:
    """Return the output buffer after the capture's NN and TP jobs ran in order.

    A single NN job reads the buffers by their names; several jobs read and write memory, in which
    each buffer lies at its address. Raises Hang, with the reason, if the hardware would hang, such
    as for a size of 0, an address off its alignment, a coefficient stream of another size than its
    header says, a zero-run width that the chip does not have, an output outside its buffer, or
    memory that is read before it is written.
    """
    chip = CHIPS.get(capture.chip, {})
    blocks = [job.block for job in capture.jobs]
    if not blocks or {*blocks} - {"NN", "TP"}:
        raise Unsupported(
            f"capture {capture.name}: got jobs {', '.join(blocks) or 'none'}, the simulated "
            "device runs NN and TP jobs"
        )
    if not chip or chip.get("unknown_coefficients"):
        raise Unsupported(
            f"chip: got {capture.chip!r}, the simulated device does not know the format of its "
            "coefficient streams"
        )
    if blocks == ["NN"]:
        image = capture.buffers.get("input", b"")
        coefficients = capture.buffers.get("coefficients", b"")
        return _run(_job_values(capture, capture.jobs[0]), image, coefficients, chip)
    before = {name: data for name, data in capture.buffers.items() if name != "output"}
    memory = Memory(before, capture.addresses)
    written = b""
    for job in capture.jobs:
        v = _job_values(capture, job)
        if job.block == "TP":
            move(v, memory)
            continue
        image = memory.read(v["in_image_address"], tensor_bytes(v)["input"])
        written = _run(v, image, memory.stretch(v["kernel_address"]), chip)
        memory.write(v["out_image_address"], written)
    if blocks[-1] == "NN":
        return written
    base = address_of(capture, "output", "where its last job writes")
    written = memory.stretch(base)
    if not written:
        raise Hang(f"no job writes the output at {base:#x}")
    return written


def _job_values(capture: Capture, job: Job) -> dict[str, Any]:
    """Return a job's values by field, corrected if the vendor's compiler wrote the job. Raises Hang
    for an address off its alignment."""
    for _, item, raw in job.values(capture.maps):
        if item.align and item.value(raw) % item.align:
            raise Hang(f"{item.name} is {item.value(raw):#x}, off its alignment of {item.align}")
    v = capture.maps[job.block].decode(job.words)
    if job.block == "NN" and device_vendor.is_vendors(v):
        return device_vendor.as_meant(v)
    return v


def _run(v: Values, data: bytes, buffer: bytes, chip: Features) -> bytes:
    """Return the output bytes of one NN job, from its values ``v``, its input ``data`` and its
    coefficient ``buffer``."""
    _refuse_unknown(v, chip)
    image = _image(v, data)
    channels = v["out_image_z_size"]
    flat = np.full(tensor_bytes(v)["output"], v["out_zero_point"], np.uint8)
    sums, bits = _plain_sums, 15
    if chip.get("huffman_coefficients"):
        sums = _huffman_sums
    if chip.get("nn_v8"):
        bits = 23
    for channel, accumulators, offset in sums(buffer, image, v, chip):
        if channel < channels:  # Mesa fills up the last cores' shares with kernels of no channel
            _store(flat, requantized(accumulators, v, bits), offset, v)
    return flat.tobytes()


def _plain_sums(
    buffer: bytes,
    image: Array,
    v: Values,
    chip: Features,
) -> Iterator[tuple[int, Array, int]]:
    """Yield (channel, accumulators, output offset in bytes) of each kernel of plain streams (V7),
    core by core."""
    streams = _streams(buffer, v, chip["nn_cores"])
    for core, (reader, size) in enumerate(streams):
        start = reader.position
        yield from _kernels(reader, core, len(streams), image, v, chip["zrl_bits"])
        used = (reader.position - start + 7) // 8
        if up(used, STREAM_ALIGN) != size:
            raise Hang(
                f"a core waits for {size} bytes of coefficients, its stream ends at byte {used}"
            )


def _huffman_sums(
    buffer: bytes,
    image: Array,
    v: Values,
    chip: Features,
) -> Iterator[tuple[int, Array, int]]:
    """Yield (channel, accumulators, output offset in bytes) of each kernel on V8. The unit
    subtracts 128 from each input code, and writes the output planes in the order of channels.
    """
    windows = _windows(image - 128, v)
    for channel, bias, weights in device_v8.kernels(buffer, v, chip["nn_cores"]):
        planes = windows
        if v["depthwise"]:
            planes = windows[channel : channel + 1]
        kernel = np.reshape(weights, (-1, *windows.shape[3:])) - v["coef_zero_point"]
        sums = bias + np.einsum("phw,pyxhw->yx", kernel, planes)
        yield channel, sums, channel * v["out_image_y_stride"] * v["out_image_x_stride"]


def _refuse_unknown(v: Values, chip: Features) -> None:
    """Raise Hang for values that the simulated NN unit does not know, for an output that its
    strides do not hold, and for tensors that take more than ``MEMORY``."""
    known(v, {**EXPECTED["device"], **expected(chip, device_vendor.is_vendors(v))})
    if device_vendor.is_vendors(v):
        device_vendor.refuse_rings(v, tensor_bytes(v))
    if v["depthwise"] and v["kernel_z_size"] != v["out_image_z_size"]:
        raise Hang(
            f"depthwise from {v['kernel_z_size']} planes to {v['out_image_z_size']}, "
            "but a depthwise job has as many output planes as input planes"
        )
    rows, columns, step = v["out_image_y_size"], v["out_image_x_size"], _step(v)
    if columns > step * v["out_image_x_stride"] or rows > step * v["out_image_y_stride"]:
        raise Hang(
            "the output's rows or columns are larger than its strides leave room for; "
            "out_image_y_stride or out_image_x_stride is too small"
        )
    room = MEMORY // 8  # accumulators and windows take 8 bytes an element
    windows = v["kernel_z_size"] * (rows + 15) * (columns + 15)
    if max(tensor_bytes(v)["output"], windows) > room:
        raise Hang(f"the tensors do not fit the simulated unit's {MEMORY} bytes of memory")
    known(v, EXPECTED["rounding"])


def _step(v: Values) -> int:
    """Return the distance, in rows and in columns, between output pixels that are stored: 2 if the
    unit pools, else 1.
    """
    if v["pooling"] == FIRST_PIXEL:
        return 2
    return 1


def _image(v: Values, data: bytes) -> Array:
    """Return the input planes with the border that windows reach, ``(planes, rows, columns)
    int64``. ``data`` are the input's bytes."""
    planes, pitch_rows, pitch = v["kernel_z_size"], v["in_image_y_stride"], v["in_image_x_stride"]
    rows, columns = v["in_image_y_size"], v["in_image_x_size"]
    if rows > pitch_rows or columns > pitch or len(data) < planes * pitch_rows * pitch:
        raise Hang(
            f"the input of {planes} planes of {rows}x{columns} lies outside its strides or its "
            f"{len(data)} bytes"
        )
    stored = np.frombuffer(data, np.uint8, planes * pitch_rows * pitch)
    inside = stored.reshape(planes, pitch_rows, pitch)
    top, left = v["in_image_y_offset"], v["in_image_x_offset"]
    height = v["out_image_y_size"] + v["kernel_y_size"] - 1
    width = v["out_image_x_size"] + v["kernel_xy_size"] - 1
    out = np.full((planes, height, width), v["in_image_border_const"], np.int64)
    first_row, end_row = max(0, -top), min(height, rows - top)
    first, end = max(0, -left), min(width, columns - left)
    if end_row > first_row and end > first:
        part = inside[:, first_row + top : end_row + top, first + left : end + left]
        out[:, first_row:end_row, first:end] = part
    return out


def _streams(buffer: bytes, v: Values, cores: int) -> list[tuple[BitReader, int]]:
    """Return, for each used core, a reader of its plain stream and the stream's size in bytes."""
    start = up(4 * cores, STREAM_ALIGN)
    if len(buffer) < start:
        raise Hang(f"the coefficient buffer of {len(buffer)} bytes has no room for its header")
    out = []
    for core in range(cores):
        size = int.from_bytes(buffer[4 * core : 4 * core + 4], "little")
        idle = core >= v["out_image_z_size"]
        if size % STREAM_ALIGN or (size == 0) != idle or start + size > len(buffer):
            raise Hang(
                f"core {core} is given {size} bytes of coefficients, an idle core needs 0, a used "
                f"core a multiple of {STREAM_ALIGN} that ends inside the buffer"
            )
        if size:
            out.append((BitReader(buffer, 8 * start, 8 * (start + size)), size))
        start += size
    return out


def _kernels(
    reader: BitReader,
    core: int,
    used: int,
    image: Array,
    v: Values,
    widest_run: int,
) -> list[tuple[int, Array, int]]:
    """Return (channel, accumulators, output offset in bytes) of each kernel in one core's stream.

    The vendor's kernels are in any order; their channel follows from their output offset.
    """
    out: list[tuple[int, Array, int]] = []
    vendor = device_vendor.is_vendors(v)
    plane = v["out_image_y_stride"] * v["out_image_x_stride"]
    try:
        run_bits, kernels = reader.read(8), reader.read(16)
        if run_bits > widest_run:
            raise Hang(f"a stream has zero-run width {run_bits}, the chip has at most {widest_run}")
        weights = _Weights(reader, run_bits, v["coef_zero_point"], vendor)
        resident, done = v["kernels_per_core"], 0
        while kernels > done:
            # All superblocks are full except the last.
            share = min(resident, kernels - done)
            first = core * share + done * used
            block = _superblock(weights, share, kernels - done <= resident, image, v)
            for channel, (sums, offset) in enumerate(block, first):
                if vendor:
                    channel = offset // plane
                out.append((channel, sums, offset))
            done += share
    except EOFError as error:
        raise Hang(f"a core reads past the end of its coefficient stream: {error}") from None
    return out


def _superblock(
    weights: _Weights,
    share: int,
    last: bool,
    image: Array,
    v: Values,
) -> list[tuple[Array, int]]:
    """Return (accumulators, output offset in bytes) of the ``share`` kernels of one superblock,
    which a core works on at a time. ``last`` is True for the core's last superblock.

    Each weight is read from the stream once, then applied to all outputs of its kernel.
    """
    planes, kernel_h, kernel_w = v["kernel_z_size"], v["kernel_y_size"], v["kernel_xy_size"]
    codes: list[list[int]] = [[] for _ in range(share)]  # by kernel: its weights in stream order
    biases, offsets = [0] * share, [0] * share
    at_once = 1
    if kernel_h == kernel_w == 1 and v["out_image_z_size"] > 8 and not weights.vendor:
        at_once = 6
    cells = _cells(kernel_h, kernel_w, planes, v, weights.vendor)
    for first in range(0, planes, at_once):
        group = range(first, min(first + at_once, planes))
        for k in range(share):
            for plane in group:
                for cell in cells:
                    codes[k].append(weights.next())
                    if plane == 0 and cell == (0, 0):
                        biases[k] = weights.bias()
            if group[-1] == planes - 1:
                offsets[k] = weights.offset()
        if last and planes > 1 and at_once == 1 and not weights.vendor:
            weights.stop()
    if last:
        weights.stop()
    rows, columns = np.transpose(cells)
    kernels = np.zeros((share, planes, kernel_h, kernel_w), np.int64)
    kernels[:, :, rows, columns] = np.reshape(codes, (share, planes, -1))
    kernels -= v["coef_zero_point"]
    sums = np.einsum("kphw,pyxhw->kyx", kernels, _windows(image, v))
    sums += np.array(biases)[:, None, None]
    return list(zip(sums, offsets, strict=True))


def _windows(image: Array, v: Values) -> Array:
    """Return the windows of all outputs, ``(planes, rows, columns, kernel rows, kernel columns)``.

    They are views of the image, so they take no memory.
    """
    size = v["kernel_y_size"], v["kernel_xy_size"]
    return np.lib.stride_tricks.sliding_window_view(image, size, (1, 2))


def _cells(
    kernel_h: int,
    kernel_w: int,
    planes: int,
    v: Values,
    vendor: bool,
) -> list[tuple[int, int]]:
    """Return (row, column) of each cell of a kernel's plane, in stream order.

    Mesa writes a wide kernel by pairs of rows: the first three columns of the two rows, then the
    other columns of the two rows.
    """
    wide = kernel_w > 3 and (planes > 1 or v["in_image_x_size"] > 64 or v["pooling"] == FIRST_PIXEL)
    if vendor or not wide:
        return [*product(range(kernel_h), range(kernel_w))]
    out: list[tuple[int, int]] = []
    for top in range(0, kernel_h, 2):
        rows = range(top, min(top + 2, kernel_h))
        out += product(rows, range(3))
        out += product(rows, range(3, kernel_w))
    return out


class _Weights:
    """Reads a plain stream weight by weight; a run of zero points becomes single weights. In a
    stream of the vendor, one bias may lie within a run."""

    def __init__(self, reader: BitReader, run_bits: int, zero: int, vendor: bool) -> None:
        self.reader, self.run_bits, self.zero, self.vendor = reader, run_bits, zero, vendor
        # Weights that were read and not yet returned, the next at the end.
        self.held: list[int] = []
        self.biases = 0  # biases read since the last weights were read

    def next(self) -> int:
        if not self.held:
            run = self.reader.read(self.run_bits)
            self.held = [self.reader.read(8)] + [self.zero] * run
            self.biases = 0
        return self.held.pop()

    def bias(self) -> int:
        if self.vendor:
            hang_if(self.biases and self.held, "a run of zero points goes over two biases")
            self.biases += 1
        else:
            self.stop()
        return wrapped(self.reader.read(32))

    def offset(self) -> int:
        self.stop()
        return self.reader.read(32)

    def stop(self) -> None:
        hang_if(self.held, "a run of zero points goes past the end of its kernel")


def requantized(accumulators: Array, v: Values, bits: int = 15) -> Array:
    """Return the output codes of accumulators, computed with integers only.

    The multiplier has ``bits`` bits after its leading 1. On V7 the field ``post_shift`` includes
    the shift by these bits, on V8 it does not.
    """
    multiplier, shift = 2**bits + v["post_multiplier"], v["post_shift"]
    if bits > 15:
        shift += bits
    low = 0
    if v["relu"]:
        low = v["out_zero_point"]
    # A product has at most 31 + 24 bits, so int64 is exact. Any shift by more than 62 bits gives
    # the same as a shift by 62.
    shift = min(shift, 62)
    product, unit = wrapped(accumulators) * multiplier, 2**shift
    whole, below = product >> shift, product & (unit - 1)
    above = unit - below
    if v["rounding_mode"] == 0:  # round toward zero
        whole += (product < 0) & (below > 0)
    else:  # round to nearest, ties to even
        whole += (below > above) | ((below == above) & (whole % 2 == 1))
    return np.clip(whole + v["out_zero_point"], low, 255).astype(np.uint8)


def _store(flat: Array, tile: Array, offset: int, v: Values) -> None:
    """Write the pixels of an output plane that the unit stores into ``flat``, the output's bytes,
    from ``offset`` on. Raises Hang if they lie outside."""
    step = _step(v)
    kept, pitch = tile[::step, ::step], v["out_image_x_stride"]
    if kept.shape[1] > pitch or offset + (kept.shape[0] - 1) * pitch + kept.shape[1] > flat.size:
        raise Hang(f"an output plane of {kept.shape} at offset {offset} lies outside the output")
    rows, columns = np.indices(kept.shape)
    flat[offset + rows * pitch + columns] = kept


# The tensor processor


def move(t: Values, memory: Memory) -> None:
    """Run the TP job of values ``t``: copy a window of an image to the addresses that the job's
    output loops give.

    Raises Hang if the hardware would hang or its behaviour is not known.
    """
    known(t, EXPECTED["move"], f"TP job: {DEVICE}")
    if t["in_zp"] != t["out_zp"]:
        raise Hang(
            f"TP job: its zero points are {t['in_zp']} and {t['out_zp']}, the simulated unit knows "
            "only jobs whose two zero points are equal"
        )
    top, rows, tile_h = _window(t, "y")
    left, columns, tile_w = _window(t, "x")
    plane, tile = rows * columns, tile_h * tile_w
    elements = t["in_image_z_size"] * plane
    if elements > MOST_ELEMENTS:
        raise Hang(f"TP job: it moves {elements} bytes, the simulated unit at most {MOST_ELEMENTS}")
    for start in range(0, elements, AT_ONCE):
        numbers = np.arange(start, min(start + AT_ONCE, elements), dtype=np.int64)
        z, which, place = numbers // plane, numbers % plane // tile, numbers % tile
        y = top + which // (columns // tile_w) * tile_h + place // tile_w
        x = left + which % (columns // tile_w) * tile_w + place % tile_w
        inside = (y >= 0) & (y < t["in_image_y_size"]) & (x >= 0) & (x < t["in_image_x_size"])
        values = np.full(len(numbers), t["in_zp"], np.uint8)
        address = t["in_image_base_address"] + z * t["in_image_slice"]
        address += y * t["in_image_stride"] + x
        values[inside] = memory.gather(address[inside] % ADDRESSES)
        memory.scatter(_written(t, numbers), values)


def _window(t: Values, axis: str) -> tuple[int, int, int]:
    """Return (start, length, tile length) of a window along ``axis``, "x" (columns) or "y" (rows).
    Raises Hang unless whole tiles, one after the other, fill the window."""
    start, end = t[f"in_window_{axis}_start"], t[f"in_window_{axis}_end"]
    size = t[f"in_tile_{axis}_size"]
    length = end + 1 - start
    if size == 0 or t[f"in_tile_{axis}_inc"] != size or length < 1 or length % size:
        raise Hang(
            f"TP job: in {axis} a window from {start} to {end} in tiles of {size}, "
            f"{t[f'in_tile_{axis}_inc']} apart, but whole adjacent tiles have to fill it"
        )
    return start, length, size


def _written(t: Values, numbers: Array) -> Array:
    """Return the address to which a TP job writes each element; ``numbers`` counts elements in the
    order in which they are read."""
    out = np.full(numbers.shape, t["out_image_base_address"], np.int64)
    for loop in range(LOOPS):
        count = t[f"out_loop_{loop}_count"]
        hang_if(count == 0, f"TP job: out_loop_{loop}_count is 0")
        out += numbers % count * t[f"out_loop_{loop}_inc"]
        numbers = numbers // count
    return (out + numbers * t[f"out_loop_{LOOPS}_inc"]) % ADDRESSES
