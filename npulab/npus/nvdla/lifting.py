"""From a capture to the layer that its words say, and its weight buffer decoded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from npulab.captures.target import Hang, Item, Lifted, Unsupported
from npulab.layout import Layout
from npulab.npus.kit import Capture, behind, buffer_of, refuse_if, wrapped
from npulab.npus.nvdla import waiting
from npulab.npus.nvdla.facts import CHIPS, CONVOLUTION, MEMORIES
from npulab.npus.nvdla.fetch import DATA, DATA_MEMORY, FEATURES, PITCHES, stored_weights, weights_at
from npulab.npus.nvdla.layouts import Cube
from npulab.npus.nvdla.lowering import POOLS, averages
from npulab.npus.nvdla.memory import Memory, Outside
from npulab.npus.nvdla.points import RULE, Scaling, scaling_of
from npulab.npus.nvdla.registers import units_of
from npulab.npus.nvdla.units.fields import Fields
from npulab.npus.nvdla.units.sdp import Stage
from npulab.quant.layers import Add, Conv2D, Pool2D, QuantParams, padding_name

MOST = 2**22
# an addition of tensors of one scale rounds as TensorFlow Lite's does, once
ADDITION = "tflite-reference"
Shape = tuple[int, int, int]


class Cut(ValueError):
    """A buffer was recorded, and ends before what the words say of it."""


def lift(capture: Capture) -> Lifted:
    """The layer that a capture of one job says: a convolution with one bias and one scaling, a
    pooling, an addition.

    Input and output scales are 1 and the weight scales say the multipliers, as words do not tell
    them apart; of two inputs that are added only the sum of the zero points is known.  The input is
    read from memory, the output from the buffer of that name; a tensor nobody recorded is None.
    Raises Unsupported naming what the layer cannot say: other units, tables, PReLU, two roundings,
    fp16 and int16, an output that is cut; ``Cut`` naming a buffer that the job reads and that ends
    before what the words say.
    """
    v, units = _job(capture)
    memory = Memory.of(capture)
    refuse_if(
        units & {"CDP", "RBK", "BDMA"},
        f"capture {capture.name}",
        ", ".join(sorted(units)),
        "are a convolution into SDP, SDP and PDP, each alone",
        Unsupported,
    )
    if {"PDP", "SDP"} <= units:
        raise Unsupported(f"capture {capture.name}: got SDP into PDP, which is no one layer")
    if not units & {"PDP", "SDP"}:
        raise Unsupported(
            f"capture {capture.name}: got {', '.join(sorted(units)) or 'no unit'} started, allowed "
            "are jobs of SDP or PDP"
        )
    if "PDP" in units:
        lifted = _pooling
    elif units & {*CONVOLUTION}:
        lifted = _convolution
    else:
        lifted = _addition
    try:
        waiting.for_units(v, units)
        return lifted(capture, v, memory)
    except (Unsupported, Cut):
        raise
    except (Outside, Hang) as error:
        if isinstance(error, Outside):
            _refuse_cut(capture, error.address, error.size)
        raise Unsupported(f"capture {capture.name}: {error}") from None
    except ValueError as error:
        raise Unsupported(f"capture {capture.name}: its words say no layer: {error}") from None


def rule_of(capture: Capture) -> str:
    """The rounding rule of a capture: SDP's own, for an addition TensorFlow Lite's, which is the
    same there."""
    _, units = _job(capture)
    if units & {*CONVOLUTION} or "SDP" not in units:
        return RULE.name
    return ADDITION


def recode(capture: Capture) -> bytes:
    """The coefficient buffer unpacked and packed again; Unsupported without one."""
    layout, data = _coefficients(capture)
    return layout.pack(layout.unpack(data))


def explain(capture: Capture) -> list[Item]:
    """Every weight of the coefficient buffer and the fill behind them, in order; Unsupported
    without one."""
    layout, data = _coefficients(capture)
    return layout.items(data, channel=0, row=1, column=2, plane=3)


def _job(capture: Capture) -> tuple[Fields, set[str]]:
    if len(capture.jobs) != 1 or capture.chip not in CHIPS:
        raise Unsupported(
            f"capture {capture.name}: got {len(capture.jobs)} jobs on {capture.chip}, allowed is "
            "one on "
            f"{', '.join(CHIPS)}"
        )
    (job,) = capture.jobs
    if not job.writes:
        raise Unsupported(
            f"capture {capture.name}: got a job without register writes, allowed is one with"
        )
    return Fields.of(job, CHIPS[capture.chip]), {*units_of(job)}


def _coefficients(capture: Capture) -> tuple[Layout, bytes]:
    data = buffer_of(capture, "coefficients")
    v, units = _job(capture)
    if "CSC" not in units:
        raise Unsupported(
            f"capture {capture.name}: got {', '.join(sorted(units))}, a convolution has "
            "coefficients"
        )
    v.expect("recode")
    weights = stored_weights(v)
    if len(data) != weights.size:
        raise ValueError(
            f"buffer 'coefficients': got {len(data)} bytes, allowed for {weights.shape} is "
            f"{weights.size}"
        )
    return weights.layout(), data


def _refuse_cut(capture: Capture, address: int, size: int) -> None:
    """Raise ``Cut`` where a recorded buffer lies at an address and has not so many bytes there."""
    for name, data in capture.buffers.items():
        start = capture.addresses.get(name)
        if start is None or name == "output" or "memory" in capture.parameters:
            continue
        needed = address + size - start
        if (address == start or start < address < start + len(data)) and len(data) < needed:
            raise Cut(
                f"capture {capture.name}: buffer {name!r}: got {len(data)} bytes, allowed by its "
                "words are "
                f"{needed}"
            )


def _read(capture: Capture, memory: Memory, cube: Cube) -> np.ndarray | None:
    """The tensor of a cube; None if nobody recorded it."""
    if not memory.holds(cube.memory, cube.base, cube.size):
        _refuse_cut(capture, cube.base, cube.size)
        return None
    return cube.unpack(memory.read(cube.memory, cube.base, cube.size).tobytes())[
        ..., : cube.channels
    ]


def _output(capture: Capture, v: Fields, unit: str, shape: Shape) -> np.ndarray | None:
    """The output that a unit wrote; None if nobody recorded it."""
    data = capture.buffers.get("output")
    if data is None:
        return None
    cube = v.placed(unit, "DST", shape)
    if len(data) < cube.size:
        raise Unsupported(
            f"capture {capture.name}: buffer 'output' has {len(data)} bytes, its words say "
            f"{cube.size}"
        )
    return cube.unpack(data)[..., : shape[2]]


def extent(capture: Capture, lifted: Lifted) -> range:
    """The bytes of the output's buffer that the last unit writes, gaps and padding lanes
    included."""
    v, units = _job(capture)
    if "PDP" in units:
        unit = "PDP"
    else:
        unit = "SDP"
    return range(v.placed(unit, "DST", lifted.layer.output_shape).size)


def _operands(
    capture: Capture, v: Fields, memory: Memory, shape: Shape
) -> Callable[[str, str], np.ndarray]:
    """What gives the operands of a stage's part: ``(C,)``, or ``(H, W, C)`` per element."""

    def operand(name: str, part: str) -> np.ndarray:
        stage = Stage(v, name, shape, v.features["memory_atom"])
        if part not in stage.from_memory:
            return np.full(shape[2], stage.registers[part], np.int64)
        if not v["SDP_RDMA.D_OP_ENABLE.OP_EN"]:
            raise Hang(
                f"SDP.D_DP_{name}_{part}_CFG waits for an operand from memory, nobody started "
                "SDP_RDMA"
            )
        v.agree("points")
        cube = stage.cube
        if stage.per_element and not memory.holds(cube.memory, cube.base, cube.size):
            _refuse_cut(capture, cube.base, cube.size)
            if np.prod(shape) > MOST:
                raise Unsupported(
                    f"SDP.D_DATA_CUBE is {shape}, a tensor that nobody recorded is lifted up to "
                    f"{MOST} "
                    "elements"
                )
            return np.zeros(shape, np.int64)
        operands = stage.operands(memory, slice(0, cube.surfaces), slice(0, cube.height))
        block = operands.mul
        if part == "ALU":
            block = operands.alu
        tensor = block.transpose(1, 2, 0, 3).reshape(cube.height, cube.width, -1)[..., : shape[2]]
        if stage.per_element:
            return tensor
        return tensor[0, 0]

    return operand


def _convolution(capture: Capture, v: Fields, memory: Memory) -> Lifted:
    waiting.convolving(v)
    v.expect("lift convolution")
    weights = stored_weights(v)
    codes = weights.unpack(memory.read(*weights_at(v), weights.used).tobytes())
    shape, size = v.shape("SDP.D_DATA_CUBE_{0}.{0}"), v.shape(FEATURES)
    wide = codes.astype(np.int64)
    none = np.zeros(weights.kernels, np.int64)
    truncated = Scaling(128 * np.abs(wide).sum((1, 2, 3)), none, none + 1).scale(
        none + 1, v["CACC.D_CLIP_CFG.CLIP_TRUNCATE"], "CACC.D_CLIP_CFG.CLIP_TRUNCATE"
    )
    scaling = scaling_of(v, truncated, _operands(capture, v, memory, shape))
    if scaling.other is not None:
        raise Unsupported(
            "SDP.D_DP_BS_ALU_CFG adds a tensor to a convolution, which is no one layer"
        )
    if np.any(scaling.most >= 2**31):
        raise Unsupported("SDP may saturate sums at 32 bits, which no layer says")
    zero = wrapped(v["CSC.D_ZERO_PADDING_VALUE.PAD_VALUE"], 8)
    down, across = v.pair("CSC.D_DILATION_EXT.{}_DILATION_EXT", ("Y", "X"))
    dilation = 1 if weights.height == 1 else down, 1 if weights.width == 1 else across
    stride, padding = zip(
        *map(
            _axis,
            size[:2],
            shape[:2],
            weights.shape[1:3],
            v.pair("CSC.D_CONV_STRIDE_EXT.CONV_{}_STRIDE_EXT", ("Y", "X")),
            dilation,
            (v["CSC.D_ZERO_PADDING.PAD_TOP"], v["CSC.D_ZERO_PADDING.PAD_LEFT"]),
            (v["CDMA.D_ZERO_PADDING.PAD_BOTTOM"], v["CDMA.D_ZERO_PADDING.PAD_RIGHT"]),
        ),
        strict=True,
    )
    layer = _named(
        Conv2D(
            codes,
            scaling.bias + zero * wide.sum((1, 2, 3)),
            size,
            stride,
            padding,
            dilation,
            activation="relu" if scaling.relu else None,
            input_q=QuantParams(1.0, zero),
            weight_q=QuantParams(scaling.scales),
            output_q=QuantParams(1.0, scaling.zero_point),
        )
    )
    if layer.output_shape != shape:
        raise Unsupported(f"SDP.D_DATA_CUBE is {shape}, the convolution gives {layer.output_shape}")
    source = Cube(
        *size,
        v.features["memory_atom"],
        v[PITCHES[0]],
        v[PITCHES[1]],
        1,
        MEMORIES[v[DATA_MEMORY]],
        v.address(DATA),
    )
    return Lifted(layer, _read(capture, memory, source), _output(capture, v, "SDP", shape))


def _named(layer: Any) -> Any:
    """The layer with the name of its padding, if it has one."""
    return replace(layer, padding=padding_name(layer) or layer.padding)


def _axis(
    size: int,
    out: int,
    taps: int,
    stride: int,
    spread: int,
    before: int,
    stated: int,
) -> tuple[int, tuple[int, int]]:
    """(stride, border before and behind) that give the output's size: what the registers say, or
    the border that the windows reach; a step that is never made may be any number."""
    reach = (taps - 1) * spread + 1
    needed = max(behind(size, out, taps, stride, before, spread), 0)
    for border in (stated, needed):
        if (size + before + border - reach) // stride + 1 == out:
            return stride, (before, border)
    return (size + before + needed - reach + 1 if out == 1 else stride), (before, needed)


def _pooling(capture: Capture, v: Fields, memory: Memory) -> Lifted:
    v.agree("pooling")
    v.agree("pooling from memory")
    v.expect("lift pooling")
    kind = POOLS[v["PDP.D_OPERATION_MODE_CFG.POOLING_METHOD"]]
    shape, out = (
        v.shape(f"PDP.D_DATA_CUBE_{side}_{{0}}.CUBE_{side}_{{0}}") for side in ("IN", "OUT")
    )
    kernel, stride = (
        v.pair(f"PDP.D_POOLING_KERNEL_CFG.KERNEL_{name}") for name in ("{}", "STRIDE_{}")
    )
    top, left, bottom, right = (
        v[f"PDP.D_POOLING_PADDING_CFG.PAD_{side}"] for side in ("TOP", "LEFT", "BOTTOM", "RIGHT")
    )
    stride, padding = zip(
        *map(_axis, shape[:2], out[:2], kernel, stride, (1, 1), (top, left), (bottom, right)),
        strict=True,
    )
    if kind == "average":
        # the border behind counts only where a window reaches it
        reached = map(behind, shape, out, kernel, stride, (top, left))
        padding = tuple(
            (before, after if reach > 0 else 0)
            for (before, after), reach in zip(padding, reached, strict=True)
        )
        if np.any(padding):
            raise Unsupported(
                f"PDP averages {kernel} with padding {padding}, which it counts; a layer does not"
            )
        across, down = (
            v[f"PDP.D_RECIP_KERNEL_{name}.RECIP_KERNEL_{name}"] for name in ("WIDTH", "HEIGHT")
        )
        if not averages(kernel[0] * kernel[1], across, down):
            raise Unsupported(
                f"PDP.D_RECIP_KERNEL_WIDTH is {across}, D_RECIP_KERNEL_HEIGHT {down}, which rounds "
                f"averages of {kernel} otherwise than a layer"
            )
    layer = _named(Pool2D(kind, kernel, shape, stride, padding))
    if layer.output_shape != out:
        raise Unsupported(f"PDP.D_DATA_CUBE_OUT is {out}, the pooling gives {layer.output_shape}")
    return Lifted(
        layer,
        _read(capture, memory, v.placed("PDP_RDMA", "SRC", shape)),
        _output(capture, v, "PDP", out),
    )


def _addition(capture: Capture, v: Fields, memory: Memory) -> Lifted:
    v.agree("points")
    v.expect("lift addition")
    shape = v.shape("SDP.D_DATA_CUBE_{0}.{0}")
    none = np.zeros(shape[2], np.int64)
    scaling = scaling_of(
        v, Scaling(none + 128, none, none + 1), _operands(capture, v, memory, shape)
    )
    other, bias = scaling.other, int(scaling.bias[0])
    if other is None:
        raise Unsupported("SDP scales one tensor from memory, which no layer says")
    if np.any(scaling.multiplier != 1) or np.any(scaling.bias != bias):
        raise Unsupported(
            "SDP scales what it adds, or adds a number per channel, which no layer says"
        )
    if other.min() < -128 or other.max() > 127:
        raise Unsupported(
            f"SDP adds a tensor of {int(other.min())} to {int(other.max())}, layers have int8"
        )
    first = int(np.clip(-bias, -128, 127))
    layer = Add(
        shape,
        "relu" if scaling.relu else None,
        QuantParams(1.0, first),
        QuantParams(1.0, -bias - first),
        QuantParams(2.0**scaling.shift, scaling.zero_point),
    )
    recorded = "other" in capture.buffers or "memory" in capture.parameters
    x = (
        _read(capture, memory, v.placed("SDP_RDMA", "SRC", shape)),
        other.astype(np.int8) if recorded else None,
    )
    return Lifted(layer, x, _output(capture, v, "SDP", shape))
