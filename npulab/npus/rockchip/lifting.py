"""From what a driver sent back to the layer."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

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
from npulab.npus.rockchip.plans import ACCUMULATORS, FP16, INT8, INT32
from npulab.npus.rockchip.words import CONVOLUTION, INPUT_AT, OUTPUT_AT, OUTPUT_PRECISION, PRECISION
from npulab.quant.emulate import accumulate
from npulab.quant.layers import PADDINGS, Conv2D, Elementwise, Network
from npulab.quant.rules import QuantParams, TwoSteps, rule

# fields that differ between the tasks of a layer, and blocks that do
MOVING = {row["field"] for row in plans.FIELDS if row["moves"]}
ELEMENTS = "DPU.FEATURE_MODE_CFG.FLYING_MODE"
MOVING_BLOCKS = ("PC.", "TASK.")


def lift(capture: Capture) -> Lifted:
    """The layer of the capture's tasks, its input and captured output.

    int8 convolutions come back as they were lowered: as uint8 where ``capture.parameters`` say so,
    else with int8 codes as memory has them; a matrix multiplication to int32 as a 1x1 layer over
    one column whose output are sums; fp16 captures as a convolution and the elements that follow
    it, as far as task records or the output show that they ran. Raises ValueError where words or
    bytes make no layer, Unsupported without registers, weights or addresses.
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
            f"capture {capture.name}: got other tasks beside a convolution of int8, a "
            "layer is lifted from one so far"
        )
    return _codes(capture, jobs)


def rule_of(capture: Capture) -> str:
    """The rounding rule of a capture's first convolution; Unsupported without one."""
    _, v = _tasks(capture)
    if v[PRECISION] == FP16:
        return "fp16"
    return plans.RULES[words.applies(v, "MUL")]


def replay(capture: Capture) -> Sequence[Range]:
    """The sums of a matrix multiplication to int32 beside those captured: no layer has such an
    output.

    Empty for every other capture, and where input or output were not recorded.
    """
    try:
        layer, x, output = lift(capture)
    except Unsupported:
        return ()
    if ACCUMULATORS not in getattr(layer, "driver_quirks", ()) or x is None or output is None:
        return ()
    predicted, captured = (part.astype("<i4").tobytes() for part in (accumulate(layer, x), output))
    return [Range("output", predicted, captured)]


def extent(capture: Capture, lifted: Lifted) -> range:
    """The bytes of the output's buffer that the tasks write, gaps and fill included."""
    jobs, v = _tasks(capture)
    layer, shape = lifted.layer, lifted.layer.output_shape
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
    """The tasks that a layer is lifted from: of fp16 the first convolution and the elements that
    follow it, of int8 all."""
    jobs, v = _tasks(capture)
    if v[PRECISION] != FP16:
        return range(len(jobs))
    lifted = [v, _following(jobs, v)]
    return [task for task, own in enumerate(jobs) if any(own is one for one in lifted)]


def _tasks(capture: Capture) -> tuple[list[Raw], Raw]:
    """(values of all tasks, those of the first convolution); Unsupported without one."""
    jobs = [values_of(job, capture.maps) for job in capture.jobs]
    first = next((v for v in jobs if CONVOLUTION in v), None)
    if first is None:
        raise Unsupported(
            f"capture {capture.name}: got no task with a convolution, a layer is lifted "
            "from one so far"
        )
    return [*jobs], first


def _codes(capture: Capture, jobs: Sequence[Raw]) -> Lifted:
    """The int8 layer of convolution tasks that share everything but their rows."""
    for v in jobs:
        words.check_supported(v)
    v = jobs[0]
    words.check(v, "to codes", Unsupported)
    depthwise, sums = v[CONVOLUTION] == plans.DEPTHWISE, v[OUTPUT_PRECISION] == INT32
    (_, width, channels), (_, out_w, outputs), stride = words.Sizes.of(v)
    kernels = outputs
    if depthwise:
        kernels = channels
    pitch = layouts.ATOM * width
    if sums or v["CNA.CONV_CON1.ARGB_IN"]:
        pitch = v["CNA.DMA_CON1.LINE_STRIDE"] * (layouts.ATOM if sums else 1)
    rows, height = _rows(jobs, pitch)
    refuse_if(
        0 in stride or not pitch,
        "lift for rockchip",
        f"strides {stride} and rows of {pitch} bytes",
        "is at least 1",
    )
    weights = weights_of(capture, v)
    spread = v["CNA.CONV_CON3.ATROUS_Y_DILATION"] + 1, v["CNA.CONV_CON3.ATROUS_X_DILATION"] + 1
    before = v["CNA.PAD_CON0.PAD_TOP"], v["CNA.PAD_CON0.PAD_LEFT"]
    after = map(behind, (height, width), (rows, out_w), weights.shape[1:3], stride, before, spread)
    top, left = ((first, max(last, 0)) for first, last in zip(before, after, strict=True))
    zero = wrapped(v["CNA.PAD_CON1.PAD_VALUE"], 8)
    bias, weight_zero, shares = _operands(capture, v, kernels)
    centred = weights.astype(np.int64) - weight_zero
    bias = bias + zero * (centred.sum((0, 1, 2)) if depthwise else centred.sum((1, 2, 3)))
    layer = Conv2D(
        weights,
        bias,
        (height, width, channels),
        stride,
        (top, left),
        spread,
        depthwise,
        activation="relu" if words.applies(v, "RELU") else None,
        input_q=QuantParams(1.0, zero),
        weight_q=QuantParams(1.0 if sums else _scales(v, shares), weight_zero),
        output_q=QuantParams(1.0, v["DPU.OUT_CVT_OFFSET.OUT_CVT_OFFSET"]),
        driver_quirks=frozenset({ACCUMULATORS} if sums else ()),
    )
    refuse_if(
        layer.output_shape != (rows, out_w, kernels),
        "lift for rockchip",
        f"an output of {(rows, out_w, kernels)}",
        f"with {layer!r} is {layer.output_shape}",
    )
    x = None
    if "input" in capture.buffers:
        x = _input(capture, v, layer, pitch)
    output = None
    if "output" in capture.buffers:
        output = _output(capture, v, layer)
    return _as_known(capture.parameters, layer, v, x, output)


def _rows(jobs: Sequence[Raw], pitch: int) -> tuple[int, int]:
    """(output rows, input rows) of all tasks together; ValueError if one does not go on where the
    others end."""
    first, rows, height, pitch = jobs[0], 0, 0, max(pitch, 1)
    columns = words.output_size(first)[1] + first["DPU.DATA_CUBE_NOTCH_ADDR.NOTCH_ADDR_0"]
    for task, v in enumerate(jobs):
        where = f"lift for rockchip: task {task}, "
        wrong = next(
            (
                name
                for name, value in first.items()
                if name not in MOVING
                and v.get(name) != value
                and not name.startswith(MOVING_BLOCKS)
            ),
            None,
        )
        if wrong:
            raise ValueError(
                f"{where}{wrong}: got {v.get(wrong)}, allowed is {first[wrong]} as in "
                "the first task"
            )
        at = v[OUTPUT_AT] - first[OUTPUT_AT]
        refuse_if(
            at != rows * layouts.ATOM * columns,
            f"{where}DPU.DST_BASE_ADDR",
            f"{at} bytes behind the first task's",
            f"is {rows * layouts.ATOM * columns}",
        )
        top, rest = divmod(v[INPUT_AT] - first[INPUT_AT], pitch)
        if rest or top < 0:
            raise ValueError(
                f"{where}CNA.FEATURE_DATA_ADDR: got {top * pitch + rest} bytes behind the "
                f"first task's, allowed is a multiple of {pitch}"
            )
        above = v["CNA.PAD_CON0.PAD_TOP"] - first["CNA.PAD_CON0.PAD_TOP"]
        if top - above != rows * v["CNA.CONV_CON3.CONV_Y_STRIDE"]:
            raise ValueError(
                f"{where}CNA.FEATURE_DATA_ADDR: got input row {top}, allowed is the one "
                f"that output row {rows} begins with"
            )
        rows += words.output_size(v)[0]
        height = max(height, top + v["CNA.DATA_SIZE0.DATAIN_HEIGHT"])
    return rows, height


def _operands(capture: Capture, v: Raw, outputs: int) -> tuple[np.ndarray, int, np.ndarray]:
    """(biases as added, zero point of weights, shares) of the output channels."""
    whole, zero = np.full(outputs, 2**TwoSteps.share_bits), -v["DPU.BS_OW_OP.OW_OP"]
    if v["DPU.BS_CFG.BS_BYPASS"]:
        return np.zeros(outputs, np.int64), zero, whole
    by_channel = words.applies(v, "MUL")
    words.check(v, "shares" if by_channel else "biases")
    address = v.get("DPU_RDMA.RDMA_BS_BASE_ADDR.BS_BASE_ADDR", 0)
    if not by_channel:
        data = bytes_at(capture, "biases", address, 4 * outputs)
        return np.frombuffer(data, "<i4").astype(np.int64), zero, whole
    size = ceil_div(outputs, 4) * layouts.OPERANDS.itemsize
    blocks = np.frombuffer(bytes_at(capture, "biases", address, size), layouts.OPERANDS)
    biases, zeros, shares = (
        blocks[name].ravel()[:outputs].astype(np.int64) for name in ("bias", "zero", "share")
    )
    refuse_if(
        len({*zeros.tolist()}) > 1,
        "lift for rockchip",
        f"weight zero points {sorted({*(-zeros).tolist()})}",
        "is one",
    )
    return biases, -int(zeros[0]), shares


def _scales(v: Raw, shares: np.ndarray) -> float | tuple[float, ...]:
    """The ratio of scales that gives these words again, per channel where the shares are."""
    multiplier, shift = v["DPU.OUT_CVT_SCALE.OUT_CVT_SCALE"], v["DPU.OUT_CVT_SHIFT.OUT_CVT_SHIFT"]
    by_channel, one = words.applies(v, "MUL"), 2**TwoSteps.share_bits
    least, most = rule(plans.RULES[by_channel]).right_shifts
    if by_channel:
        low, high = 1, 2**15 - 1
    else:
        low, high = 2**14, 2**15
    expect(
        v,
        {
            "DPU.OUT_CVT_SCALE.OUT_CVT_SCALE": range(low, high + 1),
            "DPU.OUT_CVT_SHIFT.OUT_CVT_SHIFT": range(least, most + 1),
        },
        words.EXPECTED,
    )
    if not by_channel:
        # one more than the mantissa, which 2**14 can only be where it is all ones
        return float((multiplier - 1 if multiplier > 2**14 else 2**15 - 1) * 2.0**-shift)
    if not np.all(shares > 0) or shares.max() != one:
        raise ValueError(
            f"lift for rockchip: got shares from {shares.min()} to {shares.max()}, allowed "
            f"are 1 to {one}, which one of them is"
        )
    scales = tuple((shares * (multiplier * 2.0 ** -(TwoSteps.share_bits + shift))).tolist())
    if len({*scales}) == 1:
        return scales[0]
    return scales


def _input(capture: Capture, v: Raw, layer: Conv2D, pitch: int) -> np.ndarray:
    """The input's int8 codes ``(H, W, C)``."""
    if v["CNA.CONV_CON1.ARGB_IN"]:
        layout = hwc((*layer.input_shape[:2], 1), row_pitch=pitch)
    elif ACCUMULATORS in layer.driver_quirks:
        layout = hwc((layer.input_shape[0], 1, layer.input_shape[2]), dtype="int8", row_pitch=pitch)
    else:
        line = v["CNA.DMA_CON1.LINE_STRIDE"]
        layout = layouts.features(
            layer.input_shape,
            row_pitch=layouts.ATOM // 4 * line,
            plane_pitch=layouts.ATOM * (v["CNA.DMA_CON2.SURF_STRIDE"] + line),
        )
    return as_codes(tensor_at(capture, "input", v[INPUT_AT], layout), "int8")


def _output(capture: Capture, v: Raw, layer: Conv2D) -> np.ndarray:
    """The captured output ``(H, W, C)``."""
    if ACCUMULATORS not in layer.driver_quirks:
        return output_of(capture, v, layer.output_shape, "int8")
    layout = _sums_layout(v, layer.output_shape)
    return tensor_at(capture, "output", v[OUTPUT_AT], layout)[..., : layer.output_shape[2]]


def _sums_layout(v: Raw, shape: tuple[int, int, int]) -> Layout:
    """Where the sums of a matrix multiplication lie, with those that complete a row's last atom."""
    height, width, channels = shape
    plane = layouts.ATOM * v["DPU.DST_SURF_STRIDE.DST_SURF_STRIDE"]
    refuse_if(
        width != 1 or plane != layouts.ATOM,
        "lift for rockchip",
        f"sums of {width} columns in planes {plane} bytes apart",
        f"are 1 and {layouts.ATOM}",
    )
    pitch = layouts.ATOM * (width + v["DPU.DATA_CUBE_NOTCH_ADDR.NOTCH_ADDR_0"])
    return hwc((height, 1, up(channels, layouts.per_atom("int32"))), dtype="int32", row_pitch=pitch)


def _as_known(
    known: Mapping[str, Any], layer: Conv2D, v: Raw, x: np.ndarray | None, output: np.ndarray | None
) -> Lifted:
    """The layer with scales, padding name and type as known, if they give the same words."""
    names = padding_names(layer, (known.get("padding"), *PADDINGS))
    layer = replace(layer, padding=names[0] if names else layer.padding)
    sums = ACCUMULATORS in layer.driver_quirks
    if not sums:
        layer = _with_scales(known, layer, words.applies(v, "MUL"))
    if known.get("dtype") != "uint8":
        return Lifted(layer, x, output)
    return Lifted(
        of_type(layer, "uint8"),
        None if x is None else as_codes(x, "uint8"),
        output if output is None or sums else as_codes(output, "uint8"),
    )


def _with_scales(known: Mapping[str, Any], layer: Conv2D, by_channel: bool) -> Conv2D:
    """The layer with the scales that are known, if they give the same words."""
    scales: list[Any] = [known.get(f"{name}_scale") for name in ("input", "weight", "output")]
    if None in scales:
        return layer
    if isinstance(scales[1], list):
        scales[1] = tuple(scales[1])
    try:
        changed: dict[str, Any] = {
            name: replace(getattr(layer, name), scale=scale)
            for name, scale in zip(("input_q", "weight_q", "output_q"), scales, strict=True)
        }
        named = replace(layer, **changed)
        facts = {plans.TWICE: int(by_channel)}
        same = plans.converter(named, facts) == plans.converter(layer, facts)
        if same and (not by_channel or np.array_equal(plans.shares(named), plans.shares(layer))):
            return named
    except ValueError:
        pass  # what is known is not what ran
    return layer


def halves(capture: Capture, jobs: Sequence[Raw]) -> Lifted:
    """The fp16 convolution of the first task, and the elements that go on from its output."""
    v = next(v for v in jobs if words.CONVOLUTION in v)
    words.check_supported(v)
    words.check(v, "fp16", Unsupported)
    weights, (size, output, stride), x = weights_of(capture, v), words.Sizes.of(v), None
    conv = Conv2D(weights, np.zeros(len(weights)), (*size[:2], weights.shape[3]), stride)
    refuse_if(
        conv.output_shape[:2] != output[:2],
        "lift for rockchip",
        f"an output of {output[:2]}",
        f"with {conv!r} is {conv.output_shape[:2]}",
    )
    if "input" in capture.buffers:
        pitch = 2 * v["CNA.DMA_CON1.LINE_STRIDE"]
        layout = hwc((*size[:2], 1), dtype="float16", row_pitch=pitch)
        x = tensor_at(capture, "input", v[words.INPUT_AT], layout)
    following = _following(jobs, v)
    layer = Network((conv, _elements(following, conv.output_shape))) if following else conv
    captured = None
    if "output" in capture.buffers:
        captured = output_of(capture, following or v, conv.output_shape, "float16")
    return Lifted(layer, x, captured)


def _following(jobs: Sequence[Raw], v: Raw) -> Raw | None:
    """The task of elements that reads what a convolution wrote: preferably one whose record says
    that it ended."""
    tasks = [
        task
        for task in jobs
        if task.get(ELEMENTS)
        and words.CONVOLUTION not in task
        and task.get("DPU_RDMA.RDMA_SRC_BASE_ADDR.SRC_BASE_ADDR") == v[words.OUTPUT_AT]
        and not task["DPU.FEATURE_MODE_CFG.TP_EN"]
        and not task["DPU.FEATURE_MODE_CFG.NONALIGN"]
        and words.output_size(task)[0] == words.output_size(v)[0]
    ]
    ended = [task for task in tasks if task.get("TASK.interrupt_status.interrupt_status")]
    return next(iter(ended or tasks), None)


def _elements(v: Raw, shape: tuple[int, int, int]) -> Elementwise:
    """What a task of elements adds or multiplies with."""
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
    activation = None
    if words.applies(v, "RELU"):
        activation = "relu"
    return Elementwise("copy", shape, scale=scale, bias=bias, activation=activation)
