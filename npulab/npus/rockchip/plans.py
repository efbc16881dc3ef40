"""The registers of a convolution: its rows cut into tasks, and the values of fields by full name.

Source: Mesa's rocket driver (rkt_task.c, rkt_regcmd.c) for RK3588, and a captured matrix
multiplication (WT).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from npulab.npus.kit import SIGNED, as_1x1, ceil_div, of_type, read_table, refuse_if, up
from npulab.npus.kit.layers import as_dense, per_tensor, plain_activation
from npulab.npus.rockchip.facts import FACTS
from npulab.npus.rockchip.layouts import ATOM, KERNELS, per_atom
from npulab.quant.layers import Conv2D, FullyConnected
from npulab.quant.rules import NAMED, TwoSteps, rule

# The convolution buffer of the chip: the number of its banks, entries of a bank, bytes of an entry.
BANKS, BANK_ENTRIES, ENTRY_BYTES = 12, 256, 128
# The input gets this many banks if the weights would leave it fewer.
SPLIT_BANKS = 7
# A part of the field FEATURE_GRAINS. Mesa says of it: "seems to pass the most tests".
GRAINS = 50
# The number of output channels is filled up to a multiple of this: dense, depthwise.
CHANNELS, DEPTHWISE_CHANNELS = 32, 64
# Codes of element types in fields of precision (WT; C:dump-x2).
INT8, FP16, INT32 = 0, 2, 4
# The code of a depthwise convolution in the field CONV_MODE.
DEPTHWISE = 3
# The driver quirk of a matrix multiplication that writes its sums without requantizing them.
ACCUMULATORS = "int32-output"
# The feature of chips that multiply each channel by its share of the largest scale, and then by the
# largest scale, with a rounding after each.
TWICE = "twice_half_even"
# The feature of chips on which dilated kernels were seen.
DILATION = "dilation"
# The rounding rule of a chip without and with the feature TWICE.
RULES = {False: "rockchip-rk3588:half-even", True: "rockchip-rv1103:half-even-twice"}
# The fields whose value depends on the layer, with the name of the value, which ``_geometry`` or
# ``converter`` computes.
FIELDS = read_table(FACTS.here / "fields.csv")


class RowTask(NamedTuple):
    """The rows of a convolution that run in one task.

    ``top`` is the first input row, ``rows`` the number of input rows, ``above`` the rows of padding
    above them. ``first`` is the first output row, ``outputs`` the number of output rows.
    ``data_banks`` and ``weight_banks`` are the banks of the convolution buffer for input and
    weights.
    """

    top: int
    rows: int
    above: int
    first: int
    outputs: int
    data_banks: int
    weight_banks: int


def as_convolution(layer: Any) -> Conv2D:
    """Return a layer as an int8 convolution.

    Codes of uint8 are moved down by 128; a fully connected layer becomes a convolution of one
    pixel. Raises ValueError for a layer that is not covered.
    """
    if not isinstance(layer, Conv2D | FullyConnected) or layer.dtype not in ("int8", "uint8"):
        raise ValueError(
            f"lower for rockchip: got {layer!r} of {getattr(layer, 'dtype', 'no type')}, allowed "
            "is a Conv2D or FullyConnected of int8 or uint8"
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
    layer = as_dense(per_tensor(plain_activation(layer, "lower for rockchip")))
    if layer.depthwise and layer.weights.shape[3] != layer.input_shape[2]:
        raise ValueError(
            f"lower for rockchip: got {layer.weights.shape[3]} depthwise outputs of "
            f"{layer.input_shape[2]} channels, allowed are as many outputs as channels"
        )
    return of_type(layer, "int8")


def cut(conv: Conv2D) -> list[RowTask]:
    """Return the tasks of a convolution, by rows from the top.

    It is one task if the whole input fits into the banks that weights leave. Raises ValueError if
    the input of a single output row does not fit.
    """
    height, width, channels = conv.input_shape
    rows = conv.output_shape[0]
    above, below = conv.pads[0]
    atoms_of_entry = ENTRY_BYTES // ATOM
    whole, last = divmod(ceil_div(channels, ATOM), atoms_of_entry)
    # Atoms of a column beyond whole entries share entries with those of other columns; only three
    # atoms take an entry of their own in each column (Mesa).
    rest = ceil_div(last * width, atoms_of_entry)
    if last == 3:
        rest = width
    entries = whole * width + rest
    weight_banks = ceil_div(conv.weights.size, ENTRY_BYTES * BANK_ENTRIES) + 1
    wanted = ceil_div(entries * height, BANK_ENTRIES)
    fits = weight_banks + 1 < BANKS
    banks = SPLIT_BANKS
    if fits:
        banks = BANKS - weight_banks
    if wanted <= banks:
        return [RowTask(0, height, above, 0, rows, wanted, BANKS - wanted)]
    if not fits:
        weight_banks = BANKS - SPLIT_BANKS
    most = BANK_ENTRIES * banks // entries
    stride = conv.stride[0]
    kernel = (conv.kernel[0] - 1) * conv.dilation[0] + 1
    tasks: list[RowTask] = []
    first = 0
    while first < rows:
        start = first * stride - above
        top = max(start, 0)
        end = min(top + most, height)
        padded = end
        if end == height:
            padded += below
        fitting = min((padded - start - kernel) // stride + 1, rows - first)
        if fitting < 1:
            raise ValueError(
                f"lower for rockchip: got {conv!r}, and {most} rows of its input fit the "
                f"convolution buffer, allowed are kernels of at most {most} rows"
            )
        padding = max(-start, 0)
        tasks.append(RowTask(top, end - top, padding, first, fitting, banks, weight_banks))
        first += fitting
    return tasks


def values(
    conv: Conv2D,
    task: RowTask,
    where: Mapping[str, int],
    facts: Mapping[str, int],
    sums: bool,
) -> dict[str, int]:
    """Return the values of the fields that depend on the layer, by full name.

    ``where`` has the addresses of buffers by name, ``facts`` the features of the chip. ``sums``
    asks for a matrix multiplication, with rows as input and rows of int32 sums as output. Raises
    ValueError for dilation or scales that the chip does not support.
    """
    refuse_if(
        conv.dilation != (1, 1) and not facts.get(DILATION),
        "lower for rockchip",
        f"dilation {conv.dilation}",
        "on this chip is (1, 1)",
    )
    quantities = {**where, **task._asdict(), **_geometry(conv, task, where, sums)}
    cases = {"always": True, "depthwise": conv.depthwise, "sums": sums, "outputs": not sums}
    cases["one channel"] = conv.input_shape[2] == 1 and not sums
    cases["shares"] = not sums and bool(facts.get(TWICE))
    if not sums:
        quantities |= converter(conv, facts)
    fields = {}
    for row in FIELDS:
        if cases[row["when"]]:
            value = row["value"]
            if value in quantities:
                fields[row["field"]] = quantities[value]
            else:
                fields[row["field"]] = int(value, 0)
    return fields


def _geometry(conv: Conv2D, task: RowTask, where: Mapping[str, int], sums: bool) -> dict[str, int]:
    """Return the sizes and addresses of a task, by the names that ``fields.csv`` uses."""
    outputs = conv.output_shape[2]
    kernel_h, kernel_w = conv.kernel
    stored_channels = up(conv.input_shape[2], ATOM)
    kernels = up(outputs, KERNELS)
    filled = up(outputs, CHANNELS)
    if conv.depthwise:
        kernels = 1
        filled = up(outputs, DEPTHWISE_CHANNELS)
    kernel_bytes = kernel_h * kernel_w * stored_channels
    # A later task reuses the weights of the first, unless the banks are split by SPLIT_BANKS.
    whole_buffer = task.data_banks + task.weight_banks == BANKS
    reuse = task.first > 0 and whole_buffer and task.data_banks != SPLIT_BANKS
    return {
        "kernel_h": kernel_h,
        "kernel_w": kernel_w,
        "kernels": kernels,
        "kernel_bytes": kernel_bytes,
        "weight_bytes": kernel_bytes * kernels,
        "weight_reuse": int(reuse),
        "stride_y": conv.stride[0],
        "stride_x": conv.stride[1],
        "gap_y": conv.dilation[0] - 1,
        "gap_x": conv.dilation[1] - 1,
        "left": conv.pads[1][0],
        "padding": padding_word(conv.input_q.zero_point, conv),
        "stored_channels": stored_channels,
        "last_output": outputs - 1,
        "last_lane": filled - 1,
        **_input_places(conv, task, where["input"], sums),
        **_output_places(conv, task, where["output"], sums),
    }


def _input_places(conv: Conv2D, task: RowTask, address: int, sums: bool) -> dict[str, int]:
    """Return the values that state where the input lies, by the names that ``fields.csv`` uses.

    The input is planes, rows of a single channel, or with ``sums`` rows of all channels.
    """
    height, width, channels = conv.input_shape
    values = {"width": width, "stored_width": width, "last_channel": channels - 1}
    values["plain_rows"] = int(sums or channels == 1)
    values["grains"] = GRAINS + conv.stride[0] + 1
    line, surface, pitch = 4 * width, width * height - 4 * width, ATOM * width
    entries = ceil_div(width * ceil_div(channels, ATOM) * 2, ENTRY_BYTES // ATOM)
    if sums:
        values["grains"] = height + 1
        pitch = up(channels, ATOM)
        line, surface = pitch // ATOM, 0
    elif channels == 1:
        pitch = max(width, ATOM)
        values["stored_width"] = pitch
        line, surface = pitch, pitch * (height - 1)
        entries = pitch * height
    # Mesa's driver has this special case for 40 columns of 40 channels.
    if (width, channels) == (40, 40):
        entries = 40
    values |= {"line": line, "surface": surface, "entries": entries}
    values["input"] = address + task.top * pitch
    return values


def _output_places(conv: Conv2D, task: RowTask, address: int, sums: bool) -> dict[str, int]:
    """Return the values that state where the output lies, by the names that ``fields.csv`` uses.

    The output is planes, or with ``sums`` rows of int32 sums.
    """
    height, width, outputs = conv.output_shape
    surface = width * height
    surfaces = 2
    notch = 0
    if sums:
        surface = 1
        surfaces = 8
        notch = ceil_div(outputs, per_atom("int32")) - 1
    elif conv.depthwise:
        surfaces = 4
    return {
        "output_width": width,
        "output_pixels": width * task.outputs,
        "notch": notch,
        "last_row": task.outputs - 1,
        "last_column": width - 1,
        "last_surface": surfaces - 1,
        "output": address + task.first * ATOM * (width + notch),
        "output_surface": surface,
        "surface_add": surface * surfaces,
    }


def converter(conv: Conv2D, facts: Mapping[str, int]) -> dict[str, int]:
    """Return the values that requantize sums, by the names that ``fields.csv`` uses.

    Raises ValueError for scales that the chip cannot hold.
    """
    by_channel = bool(facts.get(TWICE))
    scale = conv.weight_q.scale
    if isinstance(scale, tuple) and not by_channel:
        raise ValueError(
            f"lower for rockchip: got weight_q with {len(scale)} scales, allowed on this "
            "chip is one"
        )
    by = rule(RULES[by_channel])
    multiplier, shift = by.multiplier(conv.input_q.scale, scale, conv.output_q.scale)
    if by_channel:
        _, multiplier = TwoSteps.split(multiplier)
    return {
        "multiplier": int(np.max(multiplier)),
        "right_shift": int(np.max(shift)),
        "output_zero_point": conv.output_q.zero_point,
        "no_relu": int(conv.activation is None),
        "weight_offset": -conv.weight_q.zero_point,
    }


def shares(conv: Conv2D) -> np.ndarray:
    """Return each output channel's scale as a part of the largest scale, ``(outputs,) int64`` with
    14 bits of fraction."""
    multiplier, _ = NAMED[RULES[True]].multiplier(
        conv.input_q.scale, conv.weight_q.scale, conv.output_q.scale
    )
    share, _ = TwoSteps.split(multiplier)
    return np.broadcast_to(share, (conv.output_shape[2],))


def padding_word(zero: int, conv: Conv2D) -> int:
    """Return the value of PAD_VALUE for the input's zero point.

    A tap outside of the image reads its low byte. Mesa's driver repeats this byte in the second
    byte for a depthwise kernel with zero point 11, and for a kernel of 3 or more columns with zero
    point -128; why it is necessary is not known.
    """
    repeated = conv.kernel[1] >= 3 and zero == -SIGNED
    if not repeated and not (conv.depthwise and zero == 0x0B):
        return zero % 2**32
    word = zero % 2**8 * 0x101
    if zero < 0:
        word += 0xFFFF0000
    return word
