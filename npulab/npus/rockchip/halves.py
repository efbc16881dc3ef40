"""fp16 captures: a convolution of one channel and the elements that follow it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from npulab.captures.capture import Capture
from npulab.captures.target import Lifted, Unsupported
from npulab.layout import hwc
from npulab.npus.kit.fields import Raw
from npulab.npus.kit.memory import tensor_at
from npulab.npus.rockchip import layouts
from npulab.npus.rockchip.coefficients import CONVOLUTION, weights_of
from npulab.npus.rockchip.plans import FP16, SUM
from npulab.npus.rockchip.words import covered
from npulab.quant.layers import Conv2D, Elementwise, Network

ELEMENTS = "DPU.FEATURE_MODE_CFG.FLYING_MODE"


def halves(capture: Capture, jobs: Sequence[Raw]) -> Lifted:
    """The fp16 convolution of the first task, and the elements that go on from its output."""
    v = next(v for v in jobs if CONVOLUTION in v)
    covered(v)
    if not v["DPU.BS_CFG.BS_BYPASS"] or v[CONVOLUTION]:
        raise Unsupported("lift for rockchip: got fp16 with biases or depthwise, a layer is lifted without so far")
    if v["DPU.DATA_FORMAT.OUT_PRECISION"] != FP16 or not v["CNA.CONV_CON1.ARGB_IN"]:
        raise Unsupported("lift for rockchip: got fp16 of several channels or to another type, a layer is lifted from "
                           "one channel to fp16 so far")
    weights, width = weights_of(capture, v), v["CNA.FC_DATA_SIZE0.DMA_WIDTH"]
    height = v["CNA.DATA_SIZE0.DATAIN_HEIGHT"]
    stride = v["CNA.CONV_CON3.CONV_Y_STRIDE"], v["CNA.CONV_CON3.CONV_X_STRIDE"]
    out = v["DPU.DATA_CUBE_HEIGHT.HEIGHT"] + 1, v["DPU.DATA_CUBE_WIDTH.WIDTH"] + 1
    layer = Conv2D(weights, np.zeros(len(weights)), (height, width, weights.shape[3]), stride)
    if layer.output_shape[:2] != out:
        raise ValueError(f"lift for rockchip: got an output of {out}, allowed with {layer!r} is "
                         f"{layer.output_shape[:2]}")
    x = None
    if "input" in capture.buffers:
        layout = hwc((height, width, 1), dtype="float16", row_pitch=2 * v["CNA.DMA_CON1.LINE_STRIDE"])
        x = tensor_at(capture, "input", v["CNA.FEATURE_DATA_ADDR.FEATURE_BASE_ADDR"], layout)
    following = _following(jobs, v)
    if following is None:
        return Lifted(layer, x, _half_output(capture, v, layer.output_shape))
    return Lifted(Network((layer, _elements(following, layer.output_shape))), x,
                  _half_output(capture, following, layer.output_shape))


def _following(jobs: Sequence[Raw], v: Raw) -> Raw | None:
    """The task of elements that reads what a convolution wrote: one whose record says that it
    ended, if there is."""
    found = [one for one in jobs if one.get(ELEMENTS) and CONVOLUTION not in one
             and one.get("DPU_RDMA.RDMA_SRC_BASE_ADDR.SRC_BASE_ADDR") == v["DPU.DST_BASE_ADDR.DST_BASE_ADDR"]
             and not one["DPU.FEATURE_MODE_CFG.TP_EN"] and not one["DPU.FEATURE_MODE_CFG.NONALIGN"]
             and one["DPU.DATA_CUBE_HEIGHT.HEIGHT"] == v["DPU.DATA_CUBE_HEIGHT.HEIGHT"]]
    ended = [one for one in found if one.get("TASK.interrupt_status.interrupt_status")]
    return next(iter(ended or found), None)


def _elements(v: Raw, shape: tuple[int, int, int]) -> Elementwise:
    """What a task of elements adds or multiplies with."""
    size = v["DPU.DATA_CUBE_HEIGHT.HEIGHT"] + 1, v["DPU.DATA_CUBE_WIDTH.WIDTH"] + 1
    if size != shape[:2] or any(v[f"DPU.{unit}_CFG.{unit}_BYPASS"] != 1 for unit in ("BN", "EW")) \
            or v["DPU.DATA_FORMAT.OUT_PRECISION"] != FP16:
        raise Unsupported(f"lift for rockchip: got elements of {size} with more than the first unit of the DPU, or "
                           f"not to fp16, allowed are {shape[:2]} to fp16 with that one")
    scale, bias = 1.0, 0.0
    if not v["DPU.BS_CFG.BS_BYPASS"] and not v["DPU.BS_CFG.BS_ALU_BYPASS"]:
        if v["DPU.BS_CFG.BS_ALU_SRC"] or v["DPU.BS_CFG.BS_ALU_ALGO"] != SUM or not v["DPU.BS_CFG.BS_MUL_BYPASS"]:
            raise Unsupported("lift for rockchip: got elements that are not added or multiplied alone, by a register")
        bias = float(np.array(v["DPU.BS_ALU_CFG.BS_ALU_OPERAND"], np.uint32).view(np.float32))
    elif not v["DPU.BS_CFG.BS_BYPASS"] and not v["DPU.BS_CFG.BS_MUL_BYPASS"]:
        if v["DPU.BS_MUL_CFG.BS_MUL_SRC"]:
            raise Unsupported("lift for rockchip: got elements that are multiplied by memory, allowed is a register")
        scale = float(np.array(v["DPU.BS_MUL_CFG.BS_MUL_OPERAND"], np.uint16).view(np.float16))
    relu = not v["DPU.BS_CFG.BS_BYPASS"] and not v["DPU.BS_CFG.BS_RELU_BYPASS"]
    return Elementwise("copy", shape, scale=scale, bias=bias, activation="relu" if relu else None)


def _half_output(capture: Capture, v: Raw, shape: tuple[int, int, int]) -> np.ndarray | None:
    """The captured fp16 output ``(H, W, C)``."""
    if "output" not in capture.buffers:
        return None
    pitch = layouts.ATOM * (shape[1] + v["DPU.DATA_CUBE_NOTCH_ADDR.NOTCH_ADDR_0"])
    layout = layouts.features(shape, "float16", row_pitch=pitch,
                              plane_pitch=layouts.ATOM * v["DPU.DST_SURF_STRIDE.DST_SURF_STRIDE"])
    return tensor_at(capture, "output", v["DPU.DST_BASE_ADDR.DST_BASE_ADDR"], layout)
