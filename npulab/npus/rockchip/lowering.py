"""From a layer to what a driver would send: jobs, their register writes, weights, biases and the
command stream."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from npulab.layout import hwc
from npulab.npus.kit import COMMANDS, Capture, Job, Raw, RegisterMap, offsets_of, read_table
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
from npulab.npus.rockchip.facts import FACTS, REGISTERS, USUAL_CHIP
from npulab.npus.rockchip.plans import ACCUMULATORS, TWICE, as_convolution, cut, shares, values
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
# every write of a job in order, with the value where a layer does not decide it; those noted
# "reads" only with biases
ORDER = [
    (row["register"], int(row["value"], 0), row["note"])
    for row in read_table(FACTS.here / "rocket.csv")
]
UNITS = {
    "sums": 0x0D,
    "outputs": 0x1D,
}  # that run: the DPU's reads only where there are biases (WT, Mesa)
BLOCK_ALIGN = 64  # of a block of commands (Mesa)


def lower(
    layer: Layer,
    chip: str = USUAL_CHIP,
    x: Any = None,
    name: str = "lowered",
    addresses: Mapping[str, int] | None = None,
    features: Iterable[str] = (),
) -> Capture:
    """What Mesa's rocket driver would send for a layer: a job for each task, weights, biases,
    commands and, with ``x``, the input.

    ``x`` is ``(H, W, C)`` in the type of the layer, uint8 codes are moved down by 128 as the driver
    does.  The feature ``int32-output`` (a driver quirk of a lifted layer too) asks for a matrix
    multiplication that gives its sums: a 1x1 layer over one column, ``x`` is ``(M, 1, K)`` or ``(M,
    K)``, of a ``FullyConnected`` also ``(K,)``.  Chips that round twice have the arithmetic
    registers and bias blocks of open-rknpu; geometry and weights are those of RK3588. It departs
    from Mesa where that packs weights of more than 16 and less than 32 channels without their fill,
    in rows after the first task of a one-channel input, and in ReLU, which Mesa leaves to the
    type's range. Raises ValueError for a layer that is not covered, Unsupported for an unknown
    chip, LookupError for an unknown feature or address.
    """
    facts, quirks = FACTS.features(chip), {*getattr(layer, "driver_quirks", ()), *features}
    features_asked(quirks, [ACCUMULATORS])
    where = placed(ADDRESSES, addresses, ALIGNMENT)
    registers, sums = FACTS.maps(chip)[REGISTERS], ACCUMULATORS in quirks
    conv = as_convolution(layer)
    if sums:
        conv = _product(conv, layer, x)
    codes = None
    if x is not None:
        codes = _codes(layer, conv.input_shape, x)
    jobs = [_job(values(conv, task, where, facts, sums), registers, sums) for task in cut(conv)]
    zero = conv.weight_q.zero_point
    buffers = {"coefficients": layouts.pack_weights(conv.weights, conv.depthwise, zero)}
    if not sums:
        buffers["biases"] = biases(conv, bool(facts.get(TWICE)))
    if codes is not None:
        buffers["input"] = packed_input(codes, conv, sums)
    units = UNITS["sums" if sums else "outputs"]
    jobs, buffers[COMMANDS] = _linked(jobs, where["commands"], units, registers)
    used = {name: at for name, at in where.items() if name in buffers or name == "output"}
    parameters = {**layer.parameters, **({ACCUMULATORS: True} if sums else {})}
    return lowered(FACTS, name, chip, jobs, buffers, used, parameters)


def biases(conv: Conv2D, by_channel: bool) -> bytes:
    """The biases as the unit adds them, little-endian int32: less what the input's zero point adds
    to every sum.

    With ``by_channel`` in blocks of four channels: their biases, then int16 zero points of weights,
    negated, then uint16 shares of the largest scale. Raises ValueError where a bias leaves int32.
    """
    centred = conv.weights.astype(np.int64) - conv.weight_q.zero_point
    if conv.depthwise:
        taps = centred.sum((0, 1, 2))
    else:
        taps = centred.sum((1, 2, 3))
    whole = conv.bias - conv.input_q.zero_point * taps
    wrong = np.flatnonzero((whole < -(2**31)) | (whole >= 2**31))
    if len(wrong):
        raise ValueError(
            f"lower for rockchip: got a bias of {whole[wrong[0]]} in channel {wrong[0]} with the "
            "input's "
            "zero point folded in, allowed is int32"
        )
    if not by_channel:
        return whole.astype("<i4").tobytes()
    zeros, rest = np.full_like(whole, -conv.weight_q.zero_point), -len(whole) % 4
    blocks = np.zeros(ceil_div(len(whole), 4), layouts.OPERANDS)
    for name, operands in (("bias", whole), ("zero", zeros), ("share", shares(conv))):
        blocks[name] = np.pad(operands, (0, rest)).reshape(-1, 4)
    return blocks.tobytes()


def packed_input(codes: np.ndarray, conv: Conv2D, sums: bool) -> bytes:
    """The input buffer of int8 codes ``(H, W, C)``: planes of 16 channels, one channel as rows of
    uint8, with ``sums`` row by row; fill is the zero point."""
    height, width, channels = codes.shape
    shape, dtype = (height, width, up(channels, layouts.ATOM)), "int8"
    if sums:
        layout = hwc(shape, dtype=dtype)
    elif channels == 1:
        shape, dtype = (height, max(width, layouts.ATOM), 1), "uint8"
        layout = hwc(shape, dtype=dtype)
    else:
        layout = layouts.features(shape)
    out = np.full(shape, conv.input_q.zero_point, np.int8)
    out[:, :width, :channels] = codes
    return layout.pack(as_codes(out, dtype))


def _product(conv: Conv2D, layer: Layer, x: Any) -> Conv2D:
    """The convolution as a matrix multiplication of as many rows as ``x`` has."""
    zeros = conv.weight_q.zero_point, conv.input_q.zero_point
    if (
        (conv.kernel, conv.stride, conv.pads) != ((1, 1), (1, 1), ((0, 0), (0, 0)))
        or conv.depthwise
        or conv.input_shape[1] != 1
        or conv.activation is not None
        or np.any(conv.bias)
        or any(zeros)
    ):
        raise ValueError(
            f"lower for rockchip: got the feature {ACCUMULATORS} with {layer!r}, allowed "
            "is a 1x1 layer over one column without bias, zero points and activation"
        )
    if isinstance(layer, FullyConnected) and x is not None and np.ndim(x) > 1:
        return Conv2D(conv.weights, conv.bias, (len(x), 1, conv.input_shape[2]))
    return conv


def _codes(layer: Layer, shape: tuple[int, int, int], x: Any) -> np.ndarray:
    """The input as int8 codes ``(H, W, C)``."""
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
    """The jobs with the writes that end their blocks, and the blocks one behind the other from
    ``at`` on: each is filled up to ``BLOCK_ALIGN`` and names the next."""
    sizes = [len(job.writes) + END_WORDS for job in jobs]
    out, data = [], b""
    for job, size, following in zip(jobs, sizes, [*sizes[1:], 0], strict=True):
        filled = 0
        if following:
            filled = up(size * WORDS.itemsize, BLOCK_ALIGN)
        end = block_end(units, at + len(data) + filled if following else 0, following)
        data += stream([*(Command.to(*write) for write in job.writes), *end]).ljust(filled, b"\0")
        ending = writes_of(commands(stream(end)))
        out.append(replace(job, start=Job.from_writes(REGISTERS, ending, registers)))
    return out, data


def _job(values: Raw, registers: RegisterMap, sums: bool) -> Job:
    """A job of every write in order."""
    order = [
        (offsets_of(registers)[name], value)
        for name, value, note in ORDER
        if note != "reads" or not sums
    ]
    words = registers.state(order)
    for name, value in values.items():
        registers[name].insert(words, registers[name].raw(value))
    state = [(offset, int(words[registers.index[offset]])) for offset, _ in order]
    return Job.from_writes(REGISTERS, state, registers)
