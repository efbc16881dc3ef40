"""Lowering: from a layer to the jobs that a driver would send.

They have register writes, weights, biases and the command stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from npulab.captures.target import Unsupported
from npulab.layout import hwc
from npulab.npus.kit import (
    COMMANDS,
    Capture,
    Job,
    Raw,
    RegisterMap,
    offsets_of,
    read_table,
    refuse_if,
)
from npulab.npus.kit.layers import undilated
from npulab.npus.kit.lowering import features_asked, lowered, placed
from npulab.npus.kit.numbers import as_codes, ceil_div, up
from npulab.npus.rockchip import layouts
from npulab.npus.rockchip.commands import (
    END_WORDS,
    WORDS,
    Command,
    block_end,
    commands,
    stream,
    writes_of,
)
from npulab.npus.rockchip.facts import FACTS, REGISTERS, USUAL_CHIP, registers_of
from npulab.npus.rockchip.plans import (
    ACCUMULATORS,
    DILATION,
    TWICE,
    as_convolution,
    cut,
    shares,
    values,
)
from npulab.quant.layers import Conv2D, FullyConnected

Layer = Conv2D | FullyConnected
ADDRESSES = {
    "commands": 0xF0000000,
    "coefficients": 0xC0000000,
    "biases": 0xE0000000,
    "input": 0x10000000,
    "output": 0x80000000,
}
ALIGNMENT = 16
# Every write of a job in order: the register, its value if it is equal for all layers, and a note.
# Writes with the note "reads" are left out of a job without biases.
ORDER = [
    (row["register"], int(row["value"], 0), row["note"])
    for row in read_table(FACTS.here / "rocket.csv")
]
# The bits of the units that run: of a matrix multiplication to sums, and of other layers, which
# also run the unit that reads biases for the DPU (WT, Mesa).
UNITS = {"sums": 0x0D, "outputs": 0x1D}
# A block of commands begins at a multiple of this many bytes (Mesa).
BLOCK_ALIGN = 64


def lower(
    layer: Layer,
    chip: str = USUAL_CHIP,
    x: Any = None,
    name: str = "lowered",
    addresses: Mapping[str, int] | None = None,
    features: Iterable[str] = (),
) -> Capture:
    """Return the capture that Mesa's rocket driver would give for a layer: a job for each task,
    with weights, biases, commands and, if ``x`` is given, the input.

    ``x`` is ``(H, W, C)`` in the type of the layer; uint8 codes are moved down by 128, as the
    driver does. ``addresses`` replaces addresses of buffers by name. The feature ``int32-output``
    asks for a matrix multiplication that writes its sums; a lifted layer may have it as a driver
    quirk. The layer is then 1x1 over one column, and ``x`` is ``(M, 1, K)`` or ``(M, K)``, for a
    ``FullyConnected`` also ``(K,)``. For chips that round twice, arithmetic registers and bias
    blocks are those of open-rknpu, geometry and weights those of RK3588.

    The jobs differ from Mesa's in three cases: weights of more than 16 and fewer than 32 channels,
    which Mesa packs without fill; rows after the first task of a one-channel input; and ReLU, for
    which Mesa relies on the range of the type. A clamp that no code reaches is left out.

    Raises ValueError for a layer that is not covered, Unsupported for an unknown chip, LookupError
    for an unknown feature or name of a buffer.
    """
    facts = FACTS.features(chip)
    other = registers_of(chip) != REGISTERS
    refuse_if(other, "lower: chip", chip, "is one with RK3588's registers so far", Unsupported)
    quirks = {*getattr(layer, "driver_quirks", ()), *features}
    features_asked(quirks, [ACCUMULATORS])
    where = placed(ADDRESSES, addresses, ALIGNMENT)
    registers = FACTS.maps(chip)[REGISTERS]
    sums = ACCUMULATORS in quirks
    conv = as_convolution(layer)
    if not facts.get(DILATION):
        conv = undilated(conv)
    if sums:
        conv = _product(conv, layer, x)
    zero = conv.weight_q.zero_point
    buffers = {"coefficients": layouts.pack_weights(conv.weights, conv.depthwise, zero)}
    if not sums:
        buffers["biases"] = biases(conv, bool(facts.get(TWICE)))
    if x is not None:
        codes = _codes(layer, conv.input_shape, x)
        buffers["input"] = packed_input(codes, conv, sums)
    jobs = [_job(values(conv, task, where, facts, sums), registers, sums) for task in cut(conv)]
    parameters = {**layer.parameters, "activation": conv.activation}
    units = UNITS["outputs"]
    if sums:
        units = UNITS["sums"]
        parameters[ACCUMULATORS] = True
    jobs, buffers[COMMANDS] = _linked(jobs, where["commands"], units, registers)
    used = {name: at for name, at in where.items() if name in buffers or name == "output"}
    return lowered(FACTS, name, chip, jobs, (buffers, used), parameters)


def biases(conv: Conv2D, by_channel: bool) -> bytes:
    """Return the bytes of the biases that the unit adds, little-endian int32.

    What the input's zero point adds to every sum is subtracted from the biases. With ``by_channel``
    the bytes are blocks of four channels: biases, then negated zero points of weights (int16), then
    each channel's share of the largest scale (uint16). Raises ValueError if a bias leaves int32.
    """
    centred = conv.weights.astype(np.int64) - conv.weight_q.zero_point
    taps = centred.sum((1, 2))
    taps = taps.sum(int(not conv.depthwise))
    whole = conv.bias - conv.input_q.zero_point * taps
    wrong = np.flatnonzero((whole < -(2**31)) | (whole >= 2**31))
    if len(wrong):
        raise ValueError(
            f"lower for rockchip: got a bias of {whole[wrong[0]]} in channel {wrong[0]} with the "
            "input's zero point folded in, allowed is a value of int32"
        )
    if not by_channel:
        return whole.astype("<i4").tobytes()
    zeros = np.full_like(whole, -conv.weight_q.zero_point)
    operands = {"bias": whole, "zero": zeros, "share": shares(conv)}
    blocks = np.zeros(ceil_div(len(whole), 4), layouts.OPERANDS)
    for name, per_channel in operands.items():
        filled = np.pad(per_channel, (0, -len(whole) % 4))
        blocks[name] = filled.reshape(-1, 4)
    return blocks.tobytes()


def packed_input(codes: np.ndarray, conv: Conv2D, sums: bool) -> bytes:
    """Return the bytes of the input, from int8 codes ``(H, W, C)``.

    They are planes of 16 channels; a single channel is rows of uint8; with ``sums``, rows of all
    channels. Fill is the zero point.
    """
    height, width, channels = codes.shape
    shape = (height, width, up(channels, layouts.ATOM))
    dtype = "int8"
    if sums:
        layout = hwc(shape, dtype=dtype)
    elif channels == 1:
        shape = (height, max(width, layouts.ATOM), 1)
        dtype = "uint8"
        layout = hwc(shape, dtype=dtype)
    else:
        layout = layouts.features(shape)
    filled = np.full(shape, conv.input_q.zero_point, np.int8)
    filled[:, :width, :channels] = codes
    return layout.pack(as_codes(filled, dtype))


def _product(conv: Conv2D, layer: Layer, x: Any) -> Conv2D:
    """Return the convolution of a matrix multiplication, with as many rows as ``x`` has.

    Raises ValueError for a ``layer`` that is not a matrix multiplication to sums.
    """
    pointwise = (conv.kernel, conv.stride, conv.pads) == ((1, 1), (1, 1), ((0, 0), (0, 0)))
    plain = pointwise and not conv.depthwise and conv.activation is None
    zero = not np.any(conv.bias) and conv.weight_q.zero_point == conv.input_q.zero_point == 0
    if not plain or not zero or conv.input_shape[1] != 1:
        raise ValueError(
            f"lower for rockchip: got the feature {ACCUMULATORS} with {layer!r}, allowed "
            "is a 1x1 layer over one column without bias, zero points and activation"
        )
    if isinstance(layer, FullyConnected) and x is not None and np.ndim(x) > 1:
        return Conv2D(conv.weights, conv.bias, (len(x), 1, conv.input_shape[2]))
    return conv


def _codes(layer: Layer, shape: tuple[int, int, int], x: Any) -> np.ndarray:
    """Return the input ``x`` of a layer as int8 codes ``(H, W, C)``; raise ValueError for another
    shape or type."""
    x = np.asarray(x)
    fits = x.shape == shape or (x.ndim != 3 and x.size == np.prod(shape))
    if x.dtype.name != layer.dtype or not fits or (x.ndim < 3 and 1 not in shape[:2]):
        raise ValueError(f"x: got shape {x.shape} {x.dtype}, allowed is {shape} of {layer.dtype}")
    return as_codes(x.reshape(shape), "int8")


def _linked(
    jobs: Sequence[Job],
    at: int,
    units: int,
    registers: RegisterMap,
) -> tuple[list[Job], bytes]:
    """Return the jobs with the writes that end their blocks, and the bytes of all blocks.

    The first block is at address ``at``. Each block is filled up to ``BLOCK_ALIGN`` bytes, and its
    end has the address of the next. ``units`` are the bits of the units that run.
    """
    ended = []
    data = b""
    sizes = [len(job.writes) + END_WORDS for job in jobs]
    for number, job in enumerate(jobs):
        filled = 0
        end = block_end(units)
        if number + 1 < len(jobs):
            filled = up(sizes[number] * WORDS.itemsize, BLOCK_ALIGN)
            end = block_end(units, at + len(data) + filled, sizes[number + 1])
        body = [Command.to(*write) for write in job.writes]
        data += stream([*body, *end]).ljust(filled, b"\0")
        ending = writes_of(commands(stream(end)))
        ended.append(replace(job, start=Job.from_writes(REGISTERS, ending, registers)))
    return ended, data


def _job(values: Raw, registers: RegisterMap, sums: bool) -> Job:
    """Return a job with every write of ``ORDER``, with ``values`` by full field name.

    With ``sums``, the writes that read biases are left out.
    """
    offsets = offsets_of(registers)
    order = []
    for name, value, note in ORDER:
        if note != "reads" or not sums:
            order.append((offsets[name], value))
    words = registers.state(order)
    for name, value in values.items():
        registers[name].insert(words, registers[name].raw(value))
    state = [(offset, int(words[registers.index[offset]])) for offset, _ in order]
    return Job.from_writes(REGISTERS, state, registers)
