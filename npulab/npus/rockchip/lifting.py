"""Lifting: from the jobs that a driver sent to the layer that they run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy import ndarray as Array

from npulab.captures.target import Lifted, Range, Unsupported
from npulab.layout import Layout, hwc
from npulab.npus.kit import (
    Capture,
    Raw,
    address_of,
    bytes_at,
    expect,
    refuse_if,
    tensor_at,
    values_of,
)
from npulab.npus.kit.layers import behind, of_type, padding_names
from npulab.npus.kit.numbers import as_codes, ceil_div, up, wrapped
from npulab.npus.rockchip import layouts, plans, words
from npulab.npus.rockchip.coefficients import output_layout, output_of, weights_of
from npulab.npus.rockchip.facts import REGISTERS, SECOND
from npulab.npus.rockchip.plans import ACCUMULATORS, FP16, INT8, INT32
from npulab.npus.rockchip.words import CONVOLUTION, INPUT_AT, OUTPUT_AT, OUTPUT_PRECISION, PRECISION
from npulab.quant.emulate import accumulate
from npulab.quant.layers import PADDINGS, Conv2D, Elementwise, Network
from npulab.quant.rules import QuantParams, TwoSteps, rule

# Only these fields, and fields of MOVING_BLOCKS, may differ between the tasks of one layer.
MOVING = {row["field"] for row in plans.FIELDS if row["moves"]}
ELEMENTS = "DPU.FEATURE_MODE_CFG.FLYING_MODE"
MOVING_BLOCKS = ("PC.", "TASK.")
Pair = tuple[int, int]


def lift(capture: Capture) -> Lifted:
    """Return the layer of the capture's tasks, its input and its captured output.

    - int8: a convolution. It is uint8 if ``capture.parameters`` states this type, else int8 with
      the codes in memory.
    - int8 with int32 sums as output (a matrix multiplication): a 1x1 layer over one column, with
      the sums as output.
    - fp16: the first convolution and, in a network, the task of elements (an addition or
      multiplication by a number) that reads its output.

    Raises ValueError if words or bytes fit no layer. Raises Unsupported for other tasks, and for a
    capture without registers, weights or addresses.
    """
    jobs, first = _tasks(capture)
    if first[PRECISION] == FP16:
        return halves(capture, jobs)
    refuse_if(
        first[PRECISION] != INT8,
        "lift for rockchip",
        f"IN_PRECISION {first[PRECISION]}",
        f"are {INT8} (int8) and {FP16} (fp16) so far",
        Unsupported,
    )
    if any(CONVOLUTION not in v for v in jobs):
        raise Unsupported(
            f"capture {capture.name}: got tasks other than a convolution of int8, a layer is "
            "lifted from one so far"
        )
    return _codes(capture, jobs)


def rule_of(capture: Capture) -> str:
    """Return the name of the rounding rule of a capture's first convolution.

    Raises Unsupported for a capture without a convolution.
    """
    _, v = _tasks(capture)
    if v[PRECISION] == FP16:
        return "fp16"
    return plans.RULES[words.applies(v, "MUL")]


def replay(capture: Capture) -> Sequence[Range]:
    """Return the predicted and the captured int32 sums of a matrix multiplication.

    ``check`` compares them here, because the output of a layer is not sums. The result is empty for
    any other capture, and if input or output was not recorded.
    """
    try:
        layer, x, output = lift(capture)
    except Unsupported:
        return ()
    if ACCUMULATORS not in getattr(layer, "driver_quirks", ()) or x is None or output is None:
        return ()
    predicted = accumulate(layer, x).astype("<i4")
    captured = output.astype("<i4")
    return [Range("output", predicted.tobytes(), captured.tobytes())]


def extent(capture: Capture, lifted: Lifted) -> range:
    """Return the range of bytes of the buffer ``output`` that the tasks write, gaps and fill
    included."""
    jobs, v = _tasks(capture)
    layer = lifted.layer
    shape = layer.output_shape
    if v[PRECISION] == FP16:
        v = _following(jobs, v) or v
        layout = output_layout(v, shape, "float16")
    elif ACCUMULATORS in layer.driver_quirks:
        layout = _sums_layout(v, shape)
    else:
        layout = output_layout(v, shape, "int8")
    start = v[OUTPUT_AT] - address_of(capture, "output", "where the buffer lies")
    return range(start, start + layout.size)


def covers(capture: Capture) -> Collection[int]:
    """Return the numbers of the tasks that ``lift`` uses.

    These are all tasks; in fp16 only the first convolution and the task of elements after it.
    """
    jobs, v = _tasks(capture)
    if v[PRECISION] != FP16:
        return range(len(jobs))
    following = _following(jobs, v)
    return [task for task, job in enumerate(jobs) if job is v or job is following]


def _tasks(capture: Capture) -> tuple[list[Raw], Raw]:
    """Return the values of all tasks, and the values of the first convolution.

    Raises Unsupported for a capture without a convolution, and for registers of block NPU2.
    """
    refuse_if(
        any(job.block == SECOND for job in capture.jobs),
        f"capture {capture.name}",
        f"registers of block {SECOND}",
        f"are registers of block {REGISTERS} so far, to lift a layer",
        Unsupported,
    )
    jobs: list[Raw] = [values_of(job, capture.maps) for job in capture.jobs]
    for v in jobs:
        if CONVOLUTION in v:
            return jobs, v
    raise Unsupported(
        f"capture {capture.name}: got no task with a convolution, a layer is lifted from one so far"
    )


def _codes(capture: Capture, jobs: Sequence[Raw]) -> Lifted:
    """Return the layer of int8 convolution tasks, each of which computes some of its rows."""
    for v in jobs:
        words.check_supported(v)
    v = jobs[0]
    words.check(v, "to codes", Unsupported)
    depthwise = v[CONVOLUTION] == plans.DEPTHWISE
    sums = v[OUTPUT_PRECISION] == INT32
    (_, width, channels), (_, out_w, kernels), stride = words.Sizes.of(v)
    if depthwise:
        kernels = channels
    pitch = _pitch(v, width, sums)
    rows, height = _joined_rows(jobs, pitch)
    refuse_if(
        0 in stride or not pitch,
        "lift for rockchip",
        f"strides {stride} and rows of {pitch} bytes",
        "is at least 1",
    )
    weights = weights_of(capture, v)
    spread = v["CNA.CONV_CON3.ATROUS_Y_DILATION"] + 1, v["CNA.CONV_CON3.ATROUS_X_DILATION"] + 1
    padding = _padding(v, (height, width), (rows, out_w), weights.shape[1:3], stride, spread)
    zero = wrapped(v["CNA.PAD_CON1.PAD_VALUE"], 8)
    bias, weight_zero, shares = _operands(capture, v, kernels)
    # The driver adds to the biases what the input's zero point adds to the sums.
    taps = (weights.astype(np.int64) - weight_zero).sum((1, 2))
    bias = bias + zero * taps.sum(int(not depthwise))
    weight_scale: float | tuple[float, ...] = 1.0
    quirks = []
    if sums:
        quirks.append(ACCUMULATORS)
    else:
        weight_scale = _scales(v, shares)
    layer = Conv2D(
        weights,
        bias,
        (height, width, channels),
        stride,
        padding,
        spread,
        depthwise,
        activation=_activation(v),
        input_q=QuantParams(1.0, zero),
        weight_q=QuantParams(weight_scale, weight_zero),
        output_q=QuantParams(1.0, v["DPU.OUT_CVT_OFFSET.OUT_CVT_OFFSET"]),
        driver_quirks=frozenset(quirks),
    )
    refuse_if(
        layer.output_shape != (rows, out_w, kernels),
        "lift for rockchip",
        f"an output of {(rows, out_w, kernels)}",
        f"with {layer!r} is {layer.output_shape}",
    )
    x = _input(capture, v, layer, pitch)
    output = _output(capture, v, layer)
    return _as_known(capture.parameters, layer, v, x, output)


def _pitch(v: Raw, width: int, sums: bool) -> int:
    """Return the bytes from one input row to the next; ``width`` is the input's width in pixels.

    ``sums`` is true for a matrix multiplication.
    """
    if sums:
        return layouts.ATOM * v["CNA.DMA_CON1.LINE_STRIDE"]
    if v["CNA.CONV_CON1.ARGB_IN"]:
        return v["CNA.DMA_CON1.LINE_STRIDE"]
    return layouts.ATOM * width


def _padding(
    v: Raw, inputs: Pair, outputs: Pair, kernel: Sequence[int], stride: Pair, spread: Pair
) -> tuple[Pair, Pair]:
    """Return the padding (before, after) of rows and of columns.

    Registers hold only the padding before; the padding after follows from the sizes.
    """
    top, left = v["CNA.PAD_CON0.PAD_TOP"], v["CNA.PAD_CON0.PAD_LEFT"]
    bottom = behind(inputs[0], outputs[0], kernel[0], stride[0], top, spread[0])
    right = behind(inputs[1], outputs[1], kernel[1], stride[1], left, spread[1])
    return (top, max(bottom, 0)), (left, max(right, 0))


def _joined_rows(jobs: Sequence[Raw], pitch: int) -> tuple[int, int]:
    """Return the numbers of output rows and of input rows of all tasks together.

    ``pitch`` is the bytes from one input row to the next. Raises ValueError if a task does not
    begin at the row after the tasks before it, or if fields other than rows and places differ.
    """
    first = jobs[0]
    pitch = max(pitch, 1)
    notch = first["DPU.DATA_CUBE_NOTCH_ADDR.NOTCH_ADDR_0"]
    row_bytes = layouts.ATOM * (words.output_size(first)[1] + notch)
    alike = []
    for name in first:
        if name not in MOVING and not name.startswith(MOVING_BLOCKS):
            alike.append(name)
    rows = height = 0
    for task, v in enumerate(jobs):
        where = f"lift for rockchip: task {task}, "
        for name in alike:
            if v.get(name) != first[name]:
                raise ValueError(
                    f"{where}{name}: got {v.get(name)}, allowed is {first[name]} as in the first "
                    "task"
                )
        at = v[OUTPUT_AT] - first[OUTPUT_AT]
        if at != rows * row_bytes:
            raise ValueError(
                f"{where}DPU.DST_BASE_ADDR: got {at} bytes after the first task's, allowed is "
                f"{rows * row_bytes}"
            )
        read = v[INPUT_AT] - first[INPUT_AT]
        top = read // pitch
        if read % pitch or top < 0:
            raise ValueError(
                f"{where}CNA.FEATURE_DATA_ADDR: got {read} bytes after the first task's, allowed "
                f"is a multiple of {pitch}"
            )
        above = v["CNA.PAD_CON0.PAD_TOP"] - first["CNA.PAD_CON0.PAD_TOP"]
        if top - above != rows * v["CNA.CONV_CON3.CONV_Y_STRIDE"]:
            raise ValueError(
                f"{where}CNA.FEATURE_DATA_ADDR: got input row {top}, allowed is the row that "
                f"output row {rows} begins with"
            )
        rows += words.output_size(v)[0]
        height = max(height, top + v["CNA.DATA_SIZE0.DATAIN_HEIGHT"])
    return rows, height


def _operands(capture: Capture, v: Raw, outputs: int) -> tuple[Array, int, Array]:
    """Return the biases that the unit adds, the zero point of weights, and the shares.

    Biases and shares have a number for each output channel. A share is the channel's scale as a
    part of the largest scale, with 14 bits of fraction.
    """
    whole = np.full(outputs, 2**TwoSteps.share_bits)
    zero = -v["DPU.BS_OW_OP.OW_OP"]
    if v["DPU.BS_CFG.BS_BYPASS"]:
        return np.zeros(outputs, np.int64), zero, whole
    address = v.get("DPU_RDMA.RDMA_BS_BASE_ADDR.BS_BASE_ADDR", 0)
    if not words.applies(v, "MUL"):
        words.check(v, "biases")
        data = bytes_at(capture, "biases", address, 4 * outputs)
        return np.frombuffer(data, "<i4").astype(np.int64), zero, whole
    words.check(v, "shares")
    size = ceil_div(outputs, 4) * layouts.OPERANDS.itemsize
    blocks = np.frombuffer(bytes_at(capture, "biases", address, size), layouts.OPERANDS)
    biases = blocks["bias"].ravel()[:outputs].astype(np.int64)
    zeros = -blocks["zero"].ravel()[:outputs].astype(np.int64)
    shares = blocks["share"].ravel()[:outputs].astype(np.int64)
    refuse_if(
        zeros.min() != zeros.max(),
        "lift for rockchip",
        f"weight zero points {np.unique(zeros).tolist()}",
        "is one",
    )
    return biases, int(zeros[0]), shares


def _scales(v: Raw, shares: Array) -> float | tuple[float, ...]:
    """Return the ratio of scales, input * weight / output, that the values of a task state.

    It is one number, or a number for each output channel if the shares differ.
    """
    multiplier, shift = v["DPU.OUT_CVT_SCALE.OUT_CVT_SCALE"], v["DPU.OUT_CVT_SHIFT.OUT_CVT_SHIFT"]
    by_channel = words.applies(v, "MUL")
    least, most = rule(plans.RULES[by_channel]).right_shifts
    multipliers = range(2**14, 2**15 + 1)
    if by_channel:
        multipliers = range(1, 2**15)
    allowed = {"DPU.OUT_CVT_SCALE.OUT_CVT_SCALE": multipliers}
    allowed["DPU.OUT_CVT_SHIFT.OUT_CVT_SHIFT"] = range(least, most + 1)
    expect(v, allowed, words.EXPECTED)
    if not by_channel:
        # The multiplier is the mantissa plus 1, and is 2**14 if all bits of the mantissa are 1.
        mantissa = multiplier - 1
        if multiplier == 2**14:
            mantissa = 2**15 - 1
        return float(mantissa * 2.0**-shift)
    largest = 2**TwoSteps.share_bits
    if not np.all(shares > 0) or shares.max() != largest:
        raise ValueError(
            f"lift for rockchip: got shares from {shares.min()} to {shares.max()}, allowed "
            f"are 1 to {largest}, one of them {largest}"
        )
    scales = tuple((shares * (multiplier * 2.0 ** -(TwoSteps.share_bits + shift))).tolist())
    if len(set(scales)) == 1:
        return scales[0]
    return scales


def _input(capture: Capture, v: Raw, layer: Conv2D, pitch: int) -> Array | None:
    """Return the input as int8 codes ``(H, W, C)``, None if the capture has no input."""
    if "input" not in capture.buffers:
        return None
    height, width, channels = layer.input_shape
    if v["CNA.CONV_CON1.ARGB_IN"]:
        layout = hwc((height, width, 1), row_pitch=pitch)
    elif ACCUMULATORS in layer.driver_quirks:
        layout = hwc((height, 1, channels), dtype="int8", row_pitch=pitch)
    else:
        line = v["CNA.DMA_CON1.LINE_STRIDE"]
        layout = layouts.features(
            layer.input_shape,
            row_pitch=layouts.ATOM // 4 * line,
            plane_pitch=layouts.ATOM * (v["CNA.DMA_CON2.SURF_STRIDE"] + line),
        )
    return as_codes(tensor_at(capture, "input", v[INPUT_AT], layout), "int8")


def _output(capture: Capture, v: Raw, layer: Conv2D) -> Array | None:
    """Return the captured output ``(H, W, C)``, None if the capture has no output."""
    if "output" not in capture.buffers:
        return None
    if ACCUMULATORS not in layer.driver_quirks:
        return output_of(capture, v, layer.output_shape, "int8")
    filled = tensor_at(capture, "output", v[OUTPUT_AT], _sums_layout(v, layer.output_shape))
    return filled[..., : layer.output_shape[2]]


def _sums_layout(v: Raw, shape: tuple[int, int, int]) -> Layout:
    """Return the layout of the int32 sums of a matrix multiplication; a row is filled up to whole
    atoms.
    """
    height, width, channels = shape
    plane = layouts.ATOM * v["DPU.DST_SURF_STRIDE.DST_SURF_STRIDE"]
    refuse_if(
        width != 1 or plane != layouts.ATOM,
        "lift for rockchip",
        f"sums of {width} columns in planes {plane} bytes apart",
        f"are 1 and {layouts.ATOM}",
    )
    pitch = layouts.ATOM * (width + v["DPU.DATA_CUBE_NOTCH_ADDR.NOTCH_ADDR_0"])
    filled = up(channels, layouts.per_atom("int32"))
    return hwc((height, 1, filled), dtype="int32", row_pitch=pitch)


def _as_known(
    known: Mapping[str, Any], layer: Conv2D, v: Raw, x: Array | None, output: Array | None
) -> Lifted:
    """Return the layer, input and output with the scales, padding name and type in ``known``.

    ``known`` are the capture's parameters. They are used only if the layer then has the same words.
    """
    names = padding_names(layer, (known.get("padding"), *PADDINGS))
    if names:
        layer = replace(layer, padding=names[0])
    sums = ACCUMULATORS in layer.driver_quirks
    if not sums:
        layer = _with_scales(known, layer, words.applies(v, "MUL"))
    if known.get("dtype") == "uint8":
        layer = of_type(layer, "uint8")
        if x is not None:
            x = as_codes(x, "uint8")
        if output is not None and not sums:
            output = as_codes(output, "uint8")
    return Lifted(layer, x, output)


def _with_scales(known: Mapping[str, Any], layer: Conv2D, by_channel: bool) -> Conv2D:
    """Return the layer with the scales in ``known``, if it then has the same words, else as it is.

    ``by_channel`` is true if the task scales each channel by a share.
    """
    changed: dict[str, Any] = {}
    try:
        for name in ("input", "weight", "output"):
            scale = known.get(f"{name}_scale")
            if scale is None:
                return layer
            if isinstance(scale, list):
                scale = tuple(scale)
            changed[f"{name}_q"] = replace(getattr(layer, f"{name}_q"), scale=scale)
        named = replace(layer, **changed)
        facts = {plans.TWICE: int(by_channel)}
        same = plans.converter(named, facts) == plans.converter(layer, facts)
        if same and by_channel:
            same = np.array_equal(plans.shares(named), plans.shares(layer))
    # The chip cannot hold the recorded scales, so they are not those of the run.
    except ValueError:
        return layer
    if same:
        return named
    return layer


def halves(capture: Capture, jobs: Sequence[Raw]) -> Lifted:
    """Return the fp16 layer: the first convolution and the task of elements that reads its output.

    ``jobs`` are the values of all tasks.
    """
    v = next(v for v in jobs if CONVOLUTION in v)
    words.check_supported(v)
    words.check(v, "fp16", Unsupported)
    weights = weights_of(capture, v)
    (height, width, _), output, stride = words.Sizes.of(v)
    biases = np.zeros(len(weights))
    conv = Conv2D(weights, biases, (height, width, weights.shape[3]), stride)
    refuse_if(
        conv.output_shape[:2] != output[:2],
        "lift for rockchip",
        f"an output of {output[:2]}",
        f"with {conv!r} is {conv.output_shape[:2]}",
    )
    x = None
    if "input" in capture.buffers:
        pitch = 2 * v["CNA.DMA_CON1.LINE_STRIDE"]
        layout = hwc((height, width, 1), dtype="float16", row_pitch=pitch)
        x = tensor_at(capture, "input", v[INPUT_AT], layout)
    following = _following(jobs, v)
    layer: Conv2D | Network = conv
    if following:
        layer = Network((conv, _elements(following, conv.output_shape)))
    captured = None
    if "output" in capture.buffers:
        captured = output_of(capture, following or v, conv.output_shape, "float16")
    return Lifted(layer, x, captured)


def _following(jobs: Sequence[Raw], v: Raw) -> Raw | None:
    """Return the task of elements that reads the output of convolution ``v``, None without one.

    If there are several, it is the first whose task record states that it ended, else the first.
    """
    tasks = []
    for task in jobs:
        if not task.get(ELEMENTS) or CONVOLUTION in task:
            continue
        if task.get("DPU_RDMA.RDMA_SRC_BASE_ADDR.SRC_BASE_ADDR") != v[OUTPUT_AT]:
            continue
        if task["DPU.FEATURE_MODE_CFG.TP_EN"] or task["DPU.FEATURE_MODE_CFG.NONALIGN"]:
            continue
        if words.output_size(task)[0] == words.output_size(v)[0]:
            tasks.append(task)
    ended = [task for task in tasks if task.get("TASK.interrupt_status.interrupt_status")]
    for task in ended or tasks:
        return task
    return None


def _elements(v: Raw, shape: tuple[int, int, int]) -> Elementwise:
    """Return the addition or multiplication of a task of elements, for an output of ``shape``."""
    size = words.output_size(v)
    words.check(v, "elements", Unsupported)
    refuse_if(
        size != shape[:2],
        "lift for rockchip",
        f"elements of {size}",
        f"are {shape[:2]}",
        Unsupported,
    )
    scale, bias = 1.0, 0.0
    if words.applies(v, "ALU"):
        words.check(v, "added", Unsupported)
        bias = float(np.uint32(v["DPU.BS_ALU_CFG.BS_ALU_OPERAND"]).view(np.float32))
    elif words.applies(v, "MUL"):
        words.check(v, "multiplied", Unsupported)
        scale = float(np.uint16(v["DPU.BS_MUL_CFG.BS_MUL_OPERAND"]).view(np.float16))
    return Elementwise("copy", shape, scale=scale, bias=bias, activation=_activation(v))


def _activation(v: Raw) -> str | None:
    if words.applies(v, "RELU"):
        return "relu"
    return None
