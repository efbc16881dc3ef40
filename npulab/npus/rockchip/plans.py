"""What the registers say for a convolution: its cut into tasks, and values by full name.

Source: Mesa's rocket driver (rkt_task.c, rkt_regcmd.c) for RK3588, and a captured matrix
multiplication (WT).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from npulab.npus.kit import SIGNED, as_1x1, ceil_div, of_type, read_table, refuse_if, up
from npulab.npus.rockchip.facts import FACTS
from npulab.npus.rockchip.layouts import ATOM, KERNELS, per_atom
from npulab.quant.layers import Conv2D, FullyConnected
from npulab.quant.rules import NAMED, TwoSteps, rule

BANKS, BANK_ENTRIES, ENTRY_BYTES = 12, 256, 128  # of the convolution buffer
SPLIT_BANKS = 7  # for the input where weights leave it fewer
GRAINS = 50  # Mesa: "seems to pass the most tests"
CHANNELS, DEPTHWISE_CHANNELS = 32, 64  # output channels are filled up to
INT8, FP16, INT32 = 0, 2, 4  # codes of a precision (WT; C:dump-x2)
DEPTHWISE = 3  # code of a convolution mode
ACCUMULATORS = (
    "int32-output"  # a driver quirk: a matrix multiplication whose sums are written as they are
)
TWICE = "twice_half_even"  # the feature of chips that have a share of each channel
DILATION = "dilation"  # the feature of chips whose kernels were seen spread
RULES = {False: "rockchip-rk3588:half-even", True: "rockchip-rv1103:half-even-twice"}  # by TWICE


# fields that a layer decides
FIELDS = read_table(FACTS.here / "fields.csv")


class Task(NamedTuple):
    """Rows of a convolution that run together: first and number of input rows, their border above,
    first and number of output rows, banks of the convolution buffer for input and weights."""

    top: int
    rows: int
    above: int
    first: int
    outputs: int
    data_banks: int
    weight_banks: int


def as_convolution(layer: Any) -> Conv2D:
    """The int8 convolution that a layer becomes: codes of uint8 less 128, fully connected layers
    over one pixel.

    Raises ValueError for a layer that is not covered.
    """
    if not isinstance(layer, Conv2D | FullyConnected) or layer.dtype not in ("int8", "uint8"):
        raise ValueError(
            f"lower for rockchip: got {layer!r} of {getattr(layer, 'dtype', 'no type')}, allowed "
            "is a "
            "Conv2D or FullyConnected of int8 or uint8"
        )
    if isinstance(layer, FullyConnected):
        layer = as_1x1(layer)
    down = 0
    if layer.dtype == "uint8":
        down = SIGNED
    for name in ("input_q", "output_q"):
        zero = getattr(layer, name).zero_point - down
        if not -128 <= zero <= 127:
            raise ValueError(
                f"lower for rockchip: got {name} with zero point {zero + down}, allowed with "
                f"{layer.dtype} is {down - 128} to {down + 127}"
            )
    if layer.activation not in (None, "relu"):
        raise ValueError(
            f"lower for rockchip: got activation {layer.activation!r}, allowed is None or 'relu'"
        )
    if layer.depthwise and layer.input_shape[2] == 1:
        layer = replace(layer, weights=layer.weights.transpose(3, 1, 2, 0), depthwise=False)
    elif layer.depthwise and layer.weights.shape[3] != layer.input_shape[2]:
        raise ValueError(
            f"lower for rockchip: got {layer.weights.shape[3]} depthwise outputs of "
            f"{layer.input_shape[2]} channels, allowed is the same number"
        )
    return of_type(layer, "int8")


def cut(conv: Conv2D) -> list[Task]:
    """The tasks of a convolution: one where its input fits the banks that weights leave, else by
    rows from the top.

    Raises ValueError where not even one output row's input fits.
    """
    (height, width, channels), (rows, *_) = conv.input_shape, conv.output_shape
    above, below = conv.pads[0]
    atoms_of_entry = ENTRY_BYTES // ATOM
    whole, last = divmod(ceil_div(channels, ATOM), atoms_of_entry)
    entries = whole * width + (width if last == 3 else ceil_div(last * width, atoms_of_entry))
    weight_banks = ceil_div(conv.weights.size, ENTRY_BYTES * BANK_ENTRIES) + 1
    wanted, fits = ceil_div(entries * height, BANK_ENTRIES), weight_banks + 1 < BANKS
    banks = SPLIT_BANKS
    if fits:
        banks = BANKS - weight_banks
    if wanted <= banks:
        return [Task(0, height, above, 0, rows, wanted, BANKS - wanted)]
    if not fits:
        weight_banks = BANKS - SPLIT_BANKS
    most, stride = BANK_ENTRIES * banks // entries, conv.stride[0]
    kernel = (conv.kernel[0] - 1) * conv.dilation[0] + 1
    out: list[Task] = []
    first = 0
    while first < rows:
        start = first * stride - above
        top, pad = max(start, 0), max(-start, 0)
        end = min(top + most, height)
        behind = 0
        if end == height:
            behind = below
        fitting = min((end + behind - start - kernel) // stride + 1, rows - first)
        if fitting < 1:
            raise ValueError(
                f"lower for rockchip: got {conv!r}, of whose input {most} rows fit the "
                f"convolution buffer, allowed are kernels of at most {most} rows"
            )
        out.append(Task(top, end - top, pad, first, fitting, banks, weight_banks))
        first += fitting
    return out


def values(
    conv: Conv2D,
    task: Task,
    where: Mapping[str, int],
    facts: Mapping[str, int],
    sums: bool,
) -> dict[str, int]:
    """Values by full name of what is not as in every job; ``where`` are the buffers' addresses.

    ``sums`` asks for a matrix multiplication: rows in, rows of int32 out.
    Raises ValueError for a border or scales that the registers cannot say.
    """
    refuse_if(
        conv.dilation != (1, 1) and not facts.get(DILATION),
        "lower for rockchip",
        f"dilation {conv.dilation}",
        "on this chip is (1, 1)",
    )
    quantities = {**where, **task._asdict(), **_geometry(conv, task, where, sums)}
    cases = {
        "always": True,
        "one channel": conv.input_shape[2] == 1 and not sums,
        "depthwise": conv.depthwise,
        "sums": sums,
        "outputs": not sums,
        "shares": not sums and bool(facts.get(TWICE)),
    }
    if not sums:
        quantities |= converter(conv, facts)
    return {
        row["field"]: quantities[value] if (value := row["value"]) in quantities else int(value, 0)
        for row in FIELDS
        if cases[row["when"]]
    }


def _geometry(conv: Conv2D, task: Task, where: Mapping[str, int], sums: bool) -> dict[str, int]:
    """What the fields of ``fields.csv`` say of sizes and places, by the names in it."""
    (height, width, channels), (_, out_w, outputs) = conv.input_shape, conv.output_shape
    (kernel_h, kernel_w), depthwise = conv.kernel, conv.depthwise
    stored_channels, single = up(channels, ATOM), channels == 1 and not sums
    if depthwise:
        kernels = 1
    else:
        kernels = up(outputs, KERNELS)
    stored_width = width
    if single:
        stored_width = max(width, ATOM)
    line, surface, pitch = 4 * width, width * height - 4 * width, ATOM * width
    entries = ceil_div(width * ceil_div(channels, ATOM) * 2, ENTRY_BYTES // ATOM)
    if single:
        line, surface, pitch = stored_width, stored_width * (height - 1), stored_width
        entries = stored_width * height
    elif (width, channels) == (40, 40):
        entries = 40
    if sums:
        line, surface, pitch = stored_channels // ATOM, 0, stored_channels
    if sums:
        output_surface = 1
    else:
        output_surface = out_w * conv.output_shape[0]
    if sums:
        surfaces = 8
    elif depthwise:
        surfaces = 4
    else:
        surfaces = 2
    notch = 0
    if sums:
        notch = ceil_div(outputs, per_atom("int32")) - 1
    kernel_bytes = kernel_h * kernel_w * stored_channels
    whole_buffer = task.data_banks + task.weight_banks == BANKS
    return {
        "weight_reuse": int(task.first > 0 and whole_buffer and task.data_banks != SPLIT_BANKS),
        "plain_rows": int(sums or single),
        "grains": height + 1 if sums else GRAINS + conv.stride[0] + 1,
        "stride_y": conv.stride[0],
        "stride_x": conv.stride[1],
        "gap_y": conv.dilation[0] - 1,
        "gap_x": conv.dilation[1] - 1,
        "width": width,
        "stored_width": stored_width,
        "stored_channels": stored_channels,
        "last_channel": channels - 1,
        "output_width": out_w,
        "output_pixels": out_w * task.outputs,
        "kernel_h": kernel_h,
        "kernel_w": kernel_w,
        "kernels": kernels,
        "kernel_bytes": kernel_bytes,
        "weight_bytes": kernel_bytes * kernels,
        "entries": entries,
        "left": conv.pads[1][0],
        "line": line,
        "surface": surface,
        "input": where["input"] + task.top * pitch,
        "padding": padding_word(conv.input_q.zero_point, conv),
        "last_row": task.outputs - 1,
        "last_column": out_w - 1,
        "last_output": outputs - 1,
        "last_lane": up(outputs, DEPTHWISE_CHANNELS if depthwise else CHANNELS) - 1,
        "output": where["output"] + task.first * ATOM * (out_w + notch),
        "output_surface": output_surface,
        "notch": notch,
        "last_surface": surfaces - 1,
        "surface_add": output_surface * surfaces,
    }


def converter(conv: Conv2D, facts: Mapping[str, int]) -> dict[str, int]:
    """What makes outputs of sums, by the names of ``fields.csv``; ValueError for scales that the
    chip cannot say."""
    by_channel, scale = bool(facts.get(TWICE)), conv.weight_q.scale
    if isinstance(scale, tuple) and not by_channel:
        raise ValueError(
            f"lower for rockchip: got weight_q with {len(scale)} scales, allowed on this "
            "chip is one"
        )
    by = rule(RULES[by_channel])
    multiplier, shift = by.multiplier(conv.input_q.scale, scale, conv.output_q.scale)
    if by_channel:
        multiplier = TwoSteps.split(multiplier)[1]
    return {
        "multiplier": int(np.max(multiplier)),
        "right_shift": int(np.max(shift)),
        "output_zero_point": conv.output_q.zero_point,
        "no_relu": int(conv.activation is None),
        "weight_offset": -conv.weight_q.zero_point,
    }


def shares(conv: Conv2D) -> np.ndarray:
    """Each output channel's share of the largest scale, ``(O,) int64`` with 14 bits of fraction."""
    multiplier, _ = NAMED[RULES[True]].multiplier(
        conv.input_q.scale, conv.weight_q.scale, conv.output_q.scale
    )
    return np.broadcast_to(TwoSteps.split(multiplier)[0], (conv.output_shape[2],))


def padding_word(zero: int, conv: Conv2D) -> int:
    """PAD_VALUE for a zero point: its low byte is what a tap beside the image reads.

    The driver repeats it in the byte above in two cases, which it found to be needed.
    """
    if (conv.kernel[1] >= 3 and zero == -SIGNED) or (conv.depthwise and zero == 0x0B):
        return (zero % 2**8 * 0x101 + (0xFFFF0000 if zero < 0 else 0)) % 2**32
    return zero % 2**32
