"""From what a driver sent back to the layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from npulab.captures.capture import Capture
from npulab.captures.target import Lifted, Range, Unsupported
from npulab.layout import hwc
from npulab.npus.kit.fields import Raw, expect, values_of
from npulab.npus.kit.layers import behind, of_type, padding_names
from npulab.npus.kit.memory import bytes_at, tensor_at
from npulab.npus.kit.numbers import as_codes, ceil_div, up, wrapped
from npulab.npus.rockchip import layouts
from npulab.npus.rockchip.coefficients import CONVOLUTION, channels_of, weights_of, weights_shape
from npulab.npus.rockchip.halves import halves
from npulab.npus.rockchip.plans import (
    ACCUMULATORS,
    BIAS,
    BIAS_OFFSETS_SHARES,
    DEPTHWISE,
    FP16,
    INT8,
    INT32,
    RULES,
    SHARE_SHIFT,
    SUM,
    TWICE,
    converter,
    shares,
)
from npulab.npus.rockchip.words import EXPECTED, by_channel, covered
from npulab.quant.emulate import accumulate
from npulab.quant.layers import PADDINGS, Conv2D
from npulab.quant.rules import QuantParams, TwoSteps, rule


def lift(capture: Capture) -> Lifted:
    """The layer of the capture's tasks, its input and captured output.

    int8 convolutions come back as they were lowered: as uint8 where ``capture.parameters`` say so,
    else with int8 codes as memory has them; a matrix multiplication to int32 as a 1x1 layer over
    one column whose output are sums; fp16 captures as a convolution and the elements that follow
    it, as far as task records or the output show that they ran. Raises ValueError where words or
    bytes make no layer, Unsupported without registers, weights or addresses.
    """
    jobs = [values_of(job, capture.maps) for job in capture.jobs]
    first = next((v for v in jobs if CONVOLUTION in v), None)
    if first is None:
        raise Unsupported(f"capture {capture.name}: got no task with a convolution, a layer is lifted from one so far")
    if first["CNA.CONV_CON1.IN_PRECISION"] == FP16:
        return halves(capture, jobs)
    if first["CNA.CONV_CON1.IN_PRECISION"] != INT8:
        raise Unsupported(f"lift for rockchip: got IN_PRECISION {first['CNA.CONV_CON1.IN_PRECISION']}, allowed are "
                           f"{INT8} (int8) and {FP16} (fp16) so far")
    if any(CONVOLUTION not in v for v in jobs):
        raise Unsupported(f"capture {capture.name}: got other tasks beside a convolution of int8, a layer is lifted "
                           "from one so far")
    return _codes(capture, jobs)


def rule_of(capture: Capture) -> str:
    """The rounding rule of a capture's first convolution; Unsupported without one."""
    jobs = (values_of(job, capture.maps) for job in capture.jobs)
    v = next((v for v in jobs if CONVOLUTION in v), None)
    if v is None:
        raise Unsupported(f"capture {capture.name}: got no task with a convolution")
    return "fp16" if v["CNA.CONV_CON1.IN_PRECISION"] == FP16 else RULES[by_channel(v)]


def replay(capture: Capture) -> Sequence[Range]:
    """The sums of a matrix multiplication to int32 beside those captured: no layer has such an
    output.

    Empty for every other capture, and where input or output were not recorded.
    """
    try:
        layer, x, output = lift(capture)
    except Unsupported:
        return ()
    if not isinstance(layer, Conv2D) or ACCUMULATORS not in layer.driver_quirks or x is None or output is None:
        return ()
    return [Range("output", accumulate(layer, x).astype("<i4").tobytes(), output.astype("<i4").tobytes())]


def _codes(capture: Capture, jobs: Sequence[Raw]) -> Lifted:
    """The int8 layer of convolution tasks that share everything but their rows."""
    v = jobs[0]
    for one in jobs:
        covered(one)
    if v[CONVOLUTION] not in (0, DEPTHWISE):
        raise ValueError(f"lift for rockchip: got {CONVOLUTION} {v[CONVOLUTION]}, allowed is 0 or {DEPTHWISE}")
    depthwise, (outputs, channels) = v[CONVOLUTION] == DEPTHWISE, channels_of(v)
    sums = v["DPU.DATA_FORMAT.OUT_PRECISION"] == INT32
    if not sums and v["DPU.DATA_FORMAT.OUT_PRECISION"] != INT8:
        raise Unsupported(f"lift for rockchip: got OUT_PRECISION {v['DPU.DATA_FORMAT.OUT_PRECISION']}, allowed are "
                           f"{INT8} and {INT32} with int8 input so far")
    shape, *_ = weights_shape(v)
    single = bool(v["CNA.CONV_CON1.ARGB_IN"])
    pitch = layouts.ATOM * v["CNA.FC_DATA_SIZE0.DMA_WIDTH"]
    pitch = v["CNA.DMA_CON1.LINE_STRIDE"] * (layouts.ATOM if sums else 1) if sums or single else pitch
    out_w, notch = v["DPU.DATA_CUBE_WIDTH.WIDTH"] + 1, v["DPU.DATA_CUBE_NOTCH_ADDR.NOTCH_ADDR_0"]
    rows, height = _rows(jobs, pitch, layouts.ATOM * (out_w + notch))
    stride = v["CNA.CONV_CON3.CONV_Y_STRIDE"], v["CNA.CONV_CON3.CONV_X_STRIDE"]
    if 0 in stride or not pitch:
        raise ValueError(f"lift for rockchip: got strides {stride} and rows of {pitch} bytes, allowed is at least 1")
    width = v["CNA.FC_DATA_SIZE0.DMA_WIDTH"]
    weights, kernels = weights_of(capture, v), channels if depthwise else outputs
    spread = v["CNA.CONV_CON3.ATROUS_Y_DILATION"] + 1, v["CNA.CONV_CON3.ATROUS_X_DILATION"] + 1
    before = v["CNA.PAD_CON0.PAD_TOP"], v["CNA.PAD_CON0.PAD_LEFT"]
    after = map(behind, (height, width), (rows, out_w), shape[1:3], stride, before, spread)
    top, left = ((first, max(last, 0)) for first, last in zip(before, after, strict=True))
    zero = wrapped(v["CNA.PAD_CON1.PAD_VALUE"], 8)
    bias, weight_zero, parts = _operands(capture, v, kernels)
    centred = weights.astype(np.int64) - weight_zero
    bias = bias + zero * (centred.sum((0, 1, 2)) if depthwise else centred.sum((1, 2, 3)))
    out_zero = v["DPU.OUT_CVT_OFFSET.OUT_CVT_OFFSET"]
    relu = not v["DPU.BS_CFG.BS_BYPASS"] and not v["DPU.BS_CFG.BS_RELU_BYPASS"]
    scales = _scales(v, parts) if not sums else 1.0
    layer = Conv2D(weights, bias, (height, width, channels), stride, (top, left), spread, depthwise,
                   activation="relu" if relu else None, input_q=QuantParams(1.0, zero),
                   weight_q=QuantParams(scales, weight_zero), output_q=QuantParams(1.0, out_zero),
                   driver_quirks=frozenset({ACCUMULATORS} if sums else ()))
    if layer.output_shape != (rows, out_w, kernels):
        raise ValueError(f"lift for rockchip: got an output of {(rows, out_w, kernels)}, allowed with {layer!r} is "
                         f"{layer.output_shape}")
    x = _input(capture, v, layer, single, pitch) if "input" in capture.buffers else None
    output = _output(capture, v, layer, sums) if "output" in capture.buffers else None
    return _known(capture.parameters, layer, v, x, output, sums)


def _rows(jobs: Sequence[Raw], pitch: int, out_pitch: int) -> tuple[int, int]:
    """(output rows, input rows) of all tasks together; ValueError where one does not go on where
    the others end."""
    first, rows, height = jobs[0], 0, 0
    moving = {"CNA.CBUF_CON0.WEIGHT_REUSE", "CNA.DATA_SIZE0.DATAIN_HEIGHT", "CNA.DATA_SIZE3.DATAOUT_ATOMICS",
              "CNA.PAD_CON0.PAD_TOP", "CNA.FEATURE_DATA_ADDR.FEATURE_BASE_ADDR", "CNA.FC_DATA_SIZE0.DMA_HEIGHT",
              "CORE.DATAOUT_SIZE_0.DATAOUT_HEIGHT", "DPU.DST_BASE_ADDR.DST_BASE_ADDR", "DPU.DATA_CUBE_HEIGHT.HEIGHT",
              "DPU.WDMA_SIZE_1.HEIGHT_WDMA", "DPU_RDMA.RDMA_DATA_CUBE_HEIGHT.HEIGHT"}
    for task, v in enumerate(jobs):
        wrong = next((name for name, value in first.items() if name not in moving and v.get(name) != value
                      and not name.startswith("PC.") and not name.startswith("TASK.")), None)
        if wrong:
            raise ValueError(f"lift for rockchip: task {task}, {wrong}: got {v.get(wrong)}, allowed is {first[wrong]} "
                             "as in the first task")
        where = v["DPU.DST_BASE_ADDR.DST_BASE_ADDR"] - first["DPU.DST_BASE_ADDR.DST_BASE_ADDR"]
        if where != rows * out_pitch:
            raise ValueError(f"lift for rockchip: task {task}, DPU.DST_BASE_ADDR: got {where} bytes behind the first "
                             f"task's, allowed is {rows * out_pitch}")
        top = v["CNA.FEATURE_DATA_ADDR.FEATURE_BASE_ADDR"] - first["CNA.FEATURE_DATA_ADDR.FEATURE_BASE_ADDR"]
        if top % max(pitch, 1) or top < 0:
            raise ValueError(f"lift for rockchip: task {task}, CNA.FEATURE_DATA_ADDR: got {top} bytes behind the first "
                             f"task's, allowed is a multiple of {pitch}")
        step = v["CNA.CONV_CON3.CONV_Y_STRIDE"]
        if top // max(pitch, 1) - v["CNA.PAD_CON0.PAD_TOP"] + first["CNA.PAD_CON0.PAD_TOP"] != rows * step:
            raise ValueError(f"lift for rockchip: task {task}, CNA.FEATURE_DATA_ADDR: got input row "
                             f"{top // max(pitch, 1)}, allowed is the one that output row {rows} begins with")
        rows += v["DPU.DATA_CUBE_HEIGHT.HEIGHT"] + 1
        height = max(height, top // max(pitch, 1) + v["CNA.DATA_SIZE0.DATAIN_HEIGHT"])
    return rows, height


def _operands(capture: Capture, v: Raw, outputs: int) -> tuple[np.ndarray, int, np.ndarray]:
    """(biases as added, zero point of weights, shares) of the output channels."""
    whole = np.full(outputs, 2 ** TwoSteps.share_bits)
    zero = -v["DPU.BS_OW_OP.OW_OP"]
    if v["DPU.BS_CFG.BS_BYPASS"]:
        return np.zeros(outputs, np.int64), zero, whole
    use, address = v.get("DPU_RDMA.RDMA_BRDMA_CFG.BRDMA_DATA_USE"), v.get("DPU_RDMA.RDMA_BS_BASE_ADDR.BS_BASE_ADDR", 0)
    want = BIAS_OFFSETS_SHARES if by_channel(v) else BIAS
    if use != want or not v["DPU.BS_CFG.BS_ALU_SRC"] or v["DPU.BS_CFG.BS_ALU_ALGO"] != SUM:
        raise ValueError(f"lift for rockchip: got BRDMA_DATA_USE {use} and BS_ALU_ALGO {v['DPU.BS_CFG.BS_ALU_ALGO']}, "
                         f"allowed are {want} and {SUM} with operands from memory")
    if not by_channel(v):
        return np.frombuffer(bytes_at(capture, "biases", address, 4 * outputs), "<i4").astype(np.int64), zero, whole
    expect(v, {"DPU.BS_CFG.BS_MUL_SHIFT": (SHARE_SHIFT,)},
           "lift for rockchip: got a shift of {got} in BS_CFG, allowed is {allowed}")
    expect(v, {"DPU.BS_CFG.RESERVED_1": (0,)}, EXPECTED)
    kind = np.dtype([("bias", "<i4", 4), ("zero", "<i2", 4), ("share", "<u2", 4)])
    size = ceil_div(outputs, 4) * kind.itemsize
    blocks = np.frombuffer(bytes_at(capture, "biases", address, size), kind)
    zeros = {int(one) for one in blocks["zero"].ravel()[:outputs]}
    if len(zeros) > 1:
        raise ValueError(f"lift for rockchip: got weight zero points {sorted(-one for one in zeros)}, allowed is one")
    return (blocks["bias"].ravel()[:outputs].astype(np.int64), -zeros.pop(),
            blocks["share"].ravel()[:outputs].astype(np.int64))


def _scales(v: Raw, parts: np.ndarray) -> float | tuple[float, ...]:
    """The ratio of scales that gives these words again, per channel where the shares are."""
    multiplier, shift = v["DPU.OUT_CVT_SCALE.OUT_CVT_SCALE"], v["DPU.OUT_CVT_SHIFT.OUT_CVT_SHIFT"]
    by = rule(RULES[by_channel(v)])
    low, high = (2 ** 14, 2 ** 15) if not by_channel(v) else (1, 2 ** 15 - 1)
    if not low <= multiplier <= high or not by.right_shifts[0] <= shift <= by.right_shifts[1]:
        raise ValueError(f"lift for rockchip: got OUT_CVT_SCALE {multiplier} and OUT_CVT_SHIFT {shift}, allowed are "
                         f"{low} to {high} and {by.right_shifts[0]} to {by.right_shifts[1]}")
    if not by_channel(v):
        # one more than the mantissa, which 2**14 can only be where it is all ones
        return float((multiplier - 1 if multiplier > 2 ** 14 else 2 ** 15 - 1) * 2.0 ** -shift)
    if not np.all(parts > 0) or parts.max() != 2 ** TwoSteps.share_bits:
        raise ValueError(f"lift for rockchip: got shares from {parts.min()} to {parts.max()}, allowed are 1 to "
                         f"{2 ** TwoSteps.share_bits}, which one of them is")
    every = tuple(float(one) * multiplier * 2.0 ** -(TwoSteps.share_bits + shift) for one in parts)
    return every[0] if len(set(every)) == 1 else every


def _input(capture: Capture, v: Raw, layer: Conv2D, single: bool, pitch: int) -> np.ndarray:
    """The input's int8 codes ``(H, W, C)``."""
    (height, width, channels), base = layer.input_shape, v["CNA.FEATURE_DATA_ADDR.FEATURE_BASE_ADDR"]
    if single:
        layout = hwc((height, width, 1), row_pitch=pitch)
        return as_codes(tensor_at(capture, "input", base, layout), "int8")
    if ACCUMULATORS in layer.driver_quirks:
        rows = layouts.rows((height, channels), row_pitch=pitch)
        return tensor_at(capture, "input", base, rows)[:, None]
    line = v["CNA.DMA_CON1.LINE_STRIDE"]
    layout = layouts.features(layer.input_shape, row_pitch=layouts.ATOM // 4 * line,
                              plane_pitch=layouts.ATOM * (v["CNA.DMA_CON2.SURF_STRIDE"] + line))
    return tensor_at(capture, "input", base, layout)


def _output(capture: Capture, v: Raw, layer: Conv2D, sums: bool) -> np.ndarray:
    """The captured output ``(H, W, C)``."""
    dtype, width = "int32" if sums else "int8", layer.output_shape[1]
    pitch = layouts.ATOM * (width + v["DPU.DATA_CUBE_NOTCH_ADDR.NOTCH_ADDR_0"])
    base, plane = v["DPU.DST_BASE_ADDR.DST_BASE_ADDR"], layouts.ATOM * v["DPU.DST_SURF_STRIDE.DST_SURF_STRIDE"]
    if not sums:
        layout = layouts.features(layer.output_shape, dtype, row_pitch=pitch, plane_pitch=plane)
        return tensor_at(capture, "output", base, layout)
    shape = layer.output_shape[0], up(layer.output_shape[2], 4)
    rows = layouts.rows(shape, dtype, row_pitch=pitch)
    if width != 1 or plane != layouts.ATOM:
        raise ValueError(f"lift for rockchip: got sums of {width} columns in planes {plane} bytes apart, allowed are 1 "
                         f"and {layouts.ATOM}")
    return tensor_at(capture, "output", base, rows)[:, None, :layer.output_shape[2]]


def _known(known: Mapping[str, Any], layer: Conv2D, v: Raw, x: np.ndarray | None, output: np.ndarray | None, sums: bool,
           ) -> Lifted:
    """The layer with scales, padding name and type as known, where they give the same words."""
    names = padding_names(layer, (known.get("padding"), *PADDINGS))
    layer = replace(layer, padding=names[0] if names else layer.padding)
    scales: list[Any] = [known.get(f"{name}_scale") for name in ("input", "weight", "output")]
    scales[1] = tuple(scales[1]) if isinstance(scales[1], list) else scales[1]
    if not sums and None not in scales:
        try:
            input_q, weight_q, output_q = (QuantParams(scale, q.zero_point) for scale, q in
                                           zip(scales, (layer.input_q, layer.weight_q, layer.output_q), strict=True))
            named = replace(layer, input_q=input_q, weight_q=weight_q, output_q=output_q)
            facts = {TWICE: int(by_channel(v))}
            if converter(named, facts) == converter(layer, facts) and (not by_channel(v)
                                                                       or np.array_equal(shares(named), shares(layer))):
                layer = named
        except ValueError:
            pass  # what is known is not what ran
    if known.get("dtype") != "uint8":
        return Lifted(layer, x, output)
    return Lifted(of_type(layer, "uint8"), None if x is None else as_codes(x, "uint8"),
                  output if output is None or sums else as_codes(output, "uint8"))
