"""fp16 captures: a convolution of one channel and the elements that follow it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from npulab.captures.capture import Capture
from npulab.captures.target import Lifted, Unsupported
from npulab.layout import hwc
from npulab.npus.kit.fields import Raw
from npulab.npus.kit.memory import tensor_at
from npulab.npus.rockchip import words
from npulab.npus.rockchip.coefficients import output_of, weights_of
from npulab.npus.rockchip.plans import FP16, SUM
from npulab.quant.layers import Conv2D, Elementwise, Network

ELEMENTS = "DPU.FEATURE_MODE_CFG.FLYING_MODE"


def halves(capture: Capture, jobs: Sequence[Raw]) -> Lifted:
    """The fp16 convolution of the first task, and the elements that go on from its output."""
    v = next(v for v in jobs if words.CONVOLUTION in v)
    words.check_supported(v)
    if not v["DPU.BS_CFG.BS_BYPASS"] or v[words.CONVOLUTION]:
        raise Unsupported("lift for rockchip: got fp16 with biases or depthwise, a layer is lifted "
                          "without so far")
    if v[words.OUTPUT_PRECISION] != FP16 or not v["CNA.CONV_CON1.ARGB_IN"]:
        raise Unsupported("lift for rockchip: got fp16 of several channels or to another type, a "
                          "layer is lifted from one channel to fp16 so far")
    weights, (size, output, stride), x = weights_of(capture, v), words.Sizes.of(v), None
    conv = Conv2D(weights, np.zeros(len(weights)), (*size[:2], weights.shape[3]), stride)
    if conv.output_shape[:2] != output[:2]:
        raise ValueError(f"lift for rockchip: got an output of {output[:2]}, allowed with {conv!r} is "
                         f"{conv.output_shape[:2]}")
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
    tasks = [task for task in jobs if task.get(ELEMENTS) and words.CONVOLUTION not in task
             and task.get("DPU_RDMA.RDMA_SRC_BASE_ADDR.SRC_BASE_ADDR") == v[words.OUTPUT_AT]
             and not task["DPU.FEATURE_MODE_CFG.TP_EN"]
             and not task["DPU.FEATURE_MODE_CFG.NONALIGN"]
             and words.output_size(task)[0] == words.output_size(v)[0]]
    ended = [task for task in tasks if task.get("TASK.interrupt_status.interrupt_status")]
    return next(iter(ended or tasks), None)


def _elements(v: Raw, shape: tuple[int, int, int]) -> Elementwise:
    """What a task of elements adds or multiplies with."""
    size = words.output_size(v)
    bypassed = v["DPU.BN_CFG.BN_BYPASS"] == 1 and v["DPU.EW_CFG.EW_BYPASS"] == 1
    if size != shape[:2] or not bypassed or v[words.OUTPUT_PRECISION] != FP16:
        raise Unsupported(f"lift for rockchip: got elements of {size} with more than the first unit "
                          f"of the DPU, or not to fp16, allowed are {shape[:2]} to fp16 with that one")
    scale, bias = 1.0, 0.0
    if words.applies(v, "ALU"):
        if v["DPU.BS_CFG.BS_ALU_SRC"] or v["DPU.BS_CFG.BS_ALU_ALGO"] != SUM or words.applies(v, "MUL"):
            raise Unsupported("lift for rockchip: got elements that are not added or multiplied "
                              "alone, by a register")
        bias = float(np.uint32(v["DPU.BS_ALU_CFG.BS_ALU_OPERAND"]).view(np.float32))
    elif words.applies(v, "MUL"):
        if v["DPU.BS_MUL_CFG.BS_MUL_SRC"]:
            raise Unsupported("lift for rockchip: got elements that are multiplied by memory, allowed "
                              "is a register")
        scale = float(np.uint16(v["DPU.BS_MUL_CFG.BS_MUL_OPERAND"]).view(np.float16))
    activation = "relu" if words.applies(v, "RELU") else None
    return Elementwise("copy", shape, scale=scale, bias=bias, activation=activation)
