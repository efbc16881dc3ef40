"""From a capture to the layer that its words say, and its weight buffer decoded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np
from numpy import ndarray as Array

from npulab.captures.target import Hang, Item, Lifted, Unsupported
from npulab.layout import Layout
from npulab.npus.kit import Capture, behind, buffer_of, refuse_if, wrapped
from npulab.npus.nvdla import waiting
from npulab.npus.nvdla.device import Units
from npulab.npus.nvdla.facts import CHIPS, CONVOLUTION, Pair, Shape
from npulab.npus.nvdla.fetch import FEATURES, cube_of, stored_weights, weights_at
from npulab.npus.nvdla.layouts import Cube
from npulab.npus.nvdla.lowering import POOLS, averages
from npulab.npus.nvdla.memory import Memory, Outside
from npulab.npus.nvdla.points import RULE, Scaling, scaling_of
from npulab.npus.nvdla.registers import units_of
from npulab.npus.nvdla.units import pool_stream
from npulab.npus.nvdla.units.fields import Fields
from npulab.npus.nvdla.units.sdp import Stage
from npulab.quant.layers import Add, Conv2D, Pool2D, QuantParams, padding_name

MOST = 2**22  # most elements of a tensor that nobody recorded
# An addition of tensors of one scale rounds once, as TensorFlow Lite's does.
ADDITION = "tflite-reference"


class Cut(ValueError):
    """A recorded buffer is shorter than the words say."""


def lift(capture: Capture) -> Lifted:
    """Return the layer of a capture of one job: a convolution with one bias and one scaling, a
    pooling, or an addition.

    Words state only the ratio of the scales. So input and output scales are returned as 1, and the
    weight scales as the multipliers. Of the zero points of two inputs that are added, words state
    only the sum. The input is read from memory, the output from the buffer ``output``; a tensor
    that nobody recorded is None. Raises Unsupported naming what a layer cannot express, such as
    other units, tables, PReLU, two roundings, fp16 and int16, and for an output that is cut short.
    Raises ``Cut`` naming a buffer that the job reads and that is shorter than the words say.
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
        raise Unsupported(f"capture {capture.name}: got SDP into PDP, which is not one layer")
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
        if Units.known(v.features):
            Units(v.features).wait(v, units, memory)
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
    """Return the rounding rule of a capture: SDP's own or, for an addition, that of TensorFlow
    Lite, which gives the same results there.
    """
    _, units = _job(capture)
    if units & {*CONVOLUTION} or "SDP" not in units:
        return RULE.name
    return ADDITION


def recode(capture: Capture) -> bytes:
    """Return the coefficient buffer with its weights unpacked and packed again; Unsupported without
    the buffer.
    """
    layout, data = _coefficients(capture)
    return layout.pack(layout.unpack(data))


def explain(capture: Capture) -> list[Item]:
    """Return every weight of the coefficient buffer and the fill after them, in order; Unsupported
    without the buffer."""
    layout, data = _coefficients(capture)
    return layout.items(data, channel=0, row=1, column=2, plane=3)


def _job(capture: Capture) -> tuple[Fields, set[str]]:
    if len(capture.jobs) != 1 or capture.chip not in CHIPS:
        raise Unsupported(
            f"capture {capture.name}: got {len(capture.jobs)} jobs on {capture.chip}, allowed is "
            f"one on {', '.join(CHIPS)}"
        )
    (job,) = capture.jobs
    if not job.writes:
        raise Unsupported(
            f"capture {capture.name}: got a job without register writes, allowed is one with writes"
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
    """Raise ``Cut`` if a recorded buffer lies at an address and has fewer bytes there."""
    for name, data in capture.buffers.items():
        start = capture.addresses.get(name)
        if start is None or name == "output" or "memory" in capture.parameters:
            continue
        needed = address + size - start
        if (address == start or start < address < start + len(data)) and len(data) < needed:
            raise Cut(
                f"capture {capture.name}: buffer {name!r}: got {len(data)} bytes, allowed by its "
                f"words are {needed}"
            )


def _tensor(capture: Capture, memory: Memory, cube: Cube) -> Array | None:
    """Return the tensor of a cube; None if nobody recorded it."""
    if not memory.holds(cube.memory, cube.base, cube.size):
        _refuse_cut(capture, cube.base, cube.size)
        return None
    data = memory.read(cube.memory, cube.base, cube.size).tobytes()
    return cube.unpack(data)[..., : cube.channels]


def _output(capture: Capture, v: Fields, unit: str, shape: Shape) -> Array | None:
    """Return the output that a unit wrote; None if nobody recorded it."""
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
    """Return the bytes of the output's buffer that the last unit writes, gaps and padding lanes
    included."""
    v, units = _job(capture)
    unit = "SDP"
    if "PDP" in units:
        unit = "PDP"
    return range(v.placed(unit, "DST", lifted.layer.output_shape).size)


def _operands(
    capture: Capture, v: Fields, memory: Memory, shape: Shape
) -> Callable[[str, str], Array]:
    """Return a function that gives the operands of a stage and part: ``(C,)``, or ``(H, W, C)`` if
    each element has one.
    """

    def operand(name: str, part: str) -> Array:
        stage = Stage(v, name, shape, v.features["memory_atom"])
        if part not in stage.from_memory:
            return np.full(shape[2], stage.registers[part], np.int64)
        waiting.for_operands(v, stage)
        cube = stage.cube
        if stage.per_element and not memory.holds(cube.memory, cube.base, cube.size):
            _refuse_cut(capture, cube.base, cube.size)
            if np.prod(shape) > MOST:
                raise Unsupported(
                    f"SDP.D_DATA_CUBE is {shape}, a tensor that nobody recorded is lifted up to "
                    f"{MOST} elements"
                )
            return np.zeros(shape, np.int64)
        operands = stage.operands(memory, slice(0, cube.surfaces), slice(0, cube.height))
        block = operands.mul
        if part == "ALU":
            block = operands.alu
        tensor = block.transpose(1, 2, 0, 3).reshape(cube.height, cube.width, -1)
        tensor = tensor[..., : shape[2]]
        if stage.per_element:
            return tensor
        return tensor[0, 0]

    return operand


def _convolution(capture: Capture, v: Fields, memory: Memory) -> Lifted:
    waiting.convolving(v)
    v.expect("lift convolution")
    weights = stored_weights(v)
    codes = weights.unpack(memory.read(*weights_at(v), weights.used).tobytes())
    shape = v.shape("SDP.D_DATA_CUBE_{0}.{0}")
    size = v.shape(FEATURES)
    wide = codes.astype(np.int64)
    none = np.zeros(weights.kernels, np.int64)
    sums = Scaling(128 * np.abs(wide).sum((1, 2, 3)), none, none + 1)
    clip = "CACC.D_CLIP_CFG.CLIP_TRUNCATE"
    truncated = sums.scale(none + 1, v[clip], clip)
    scaling = scaling_of(v, truncated, _operands(capture, v, memory, shape))
    if scaling.other is not None:
        raise Unsupported(
            "SDP.D_DP_BS_ALU_CFG adds a tensor to a convolution, which is not one layer"
        )
    if np.any(scaling.most >= 2**31):
        raise Unsupported("SDP may saturate sums at 32 bits, which no layer says")
    zero = wrapped(v["CSC.D_ZERO_PADDING_VALUE.PAD_VALUE"], 8)
    down, across = v.pair("CSC.D_DILATION_EXT.{}_DILATION_EXT", ("Y", "X"))
    # The dilation of a kernel with one row or one column has no effect.
    if weights.height == 1:
        down = 1
    if weights.width == 1:
        across = 1
    rate_y, rate_x = v.pair("CSC.D_CONV_STRIDE_EXT.CONV_{}_STRIDE_EXT", ("Y", "X"))
    # CSC has the border before the input, CDMA the border after it.
    top = v["CSC.D_ZERO_PADDING.PAD_TOP"]
    left = v["CSC.D_ZERO_PADDING.PAD_LEFT"]
    bottom = v["CDMA.D_ZERO_PADDING.PAD_BOTTOM"]
    right = v["CDMA.D_ZERO_PADDING.PAD_RIGHT"]
    rows = Taps(size[0], shape[0], weights.height, rate_y, top, bottom, down)
    columns = Taps(size[1], shape[1], weights.width, rate_x, left, right, across)
    layer: Any = Conv2D(
        codes,
        scaling.bias + zero * wide.sum((1, 2, 3)),
        size,
        (rows.stated_stride(), columns.stated_stride()),
        (rows.border(), columns.border()),
        (down, across),
        activation=_activation(scaling),
        input_q=QuantParams(1.0, zero),
        weight_q=QuantParams(scaling.scales),
        output_q=QuantParams(1.0, scaling.zero_point),
    )
    layer = _by_name(layer)
    atomics = v["CSC.D_ATOMICS.ATOMICS"] + 1
    if Units.known(v.features) and atomics != shape[0] * shape[1]:
        raise Unsupported(
            f"CSC.D_ATOMICS.ATOMICS says {atomics} outputs of a kernel, the layer has "
            f"{shape[0] * shape[1]}"
        )
    if layer.output_shape != shape:
        raise Unsupported(f"SDP.D_DATA_CUBE is {shape}, the convolution gives {layer.output_shape}")
    x = _tensor(capture, memory, cube_of(v))
    return Lifted(layer, x, _output(capture, v, "SDP", shape))


def _activation(scaling: Scaling) -> str | None:
    if scaling.relu:
        return "relu"
    return None


def _by_name(layer: Any) -> Any:
    """Return the layer with its padding by name, if a name gives this padding."""
    return replace(layer, padding=padding_name(layer) or layer.padding)


@dataclass(frozen=True)
class Taps:
    """A window along one axis as registers say it: input and output size, taps, stride, the border
    before and after the input, and dilation."""

    size: int
    out: int
    taps: int
    stride: int
    before: int
    after: int
    dilation: int = 1

    @classmethod
    def of(cls, course: pool_stream.Course) -> Taps:
        """Return the window of PDP along an axis."""
        _, *numbers = astuple(course)
        return cls(*numbers)

    @property
    def needed(self) -> int:
        """How many cells after the input the windows reach."""
        past = behind(self.size, self.out, self.taps, self.stride, self.before, self.dilation)
        return max(past, 0)

    def steps(self, after: int) -> int:
        """Return how far the first window can move along the axis, if ``after`` cells of border
        follow the input.
        """
        return self.size + self.before + after - (self.taps - 1) * self.dilation - 1

    def gives_output(self, after: int) -> bool:
        return self.steps(after) // self.stride + 1 == self.out

    def border(self) -> Pair:
        """Return the border (before, after) that gives the output's size: the registers' border if
        it does, else the border that the windows reach.
        """
        if self.gives_output(self.after):
            return self.before, self.after
        return self.before, self.needed

    @property
    def counted(self) -> Pair:
        """The border that averages count: none after the input if no window reaches it."""
        before, after = self.border()
        return before, after * (self.needed > 0)

    def stated_stride(self) -> int:
        """Return the stride that the registers state.

        A single output makes no step, so its stride may be any number: if the stated stride would
        give more outputs, a longer one is returned.
        """
        if self.out > 1 or self.gives_output(self.after) or self.gives_output(self.needed):
            return self.stride
        return self.steps(self.needed) + 1


def _pooling(capture: Capture, v: Fields, memory: Memory) -> Lifted:
    v.agree("pooling")
    v.agree("pooling from memory")
    v.expect("lift pooling")
    if not pool_stream.plain(v):
        raise Unsupported(
            "PDP.D_POOLING_PADDING_CFG states padding that no window reaches, which PDP counts; a "
            "layer does not"
        )
    kind = POOLS[v["PDP.D_OPERATION_MODE_CFG.POOLING_METHOD"]]
    shape = v.shape("PDP.D_DATA_CUBE_IN_{0}.CUBE_IN_{0}")
    out = v.shape("PDP.D_DATA_CUBE_OUT_{0}.CUBE_OUT_{0}")
    kernel = v.pair("PDP.D_POOLING_KERNEL_CFG.KERNEL_{}")
    rows, columns = map(Taps.of, pool_stream.courses(v))
    stride = rows.stated_stride(), columns.stated_stride()
    padding = rows.border(), columns.border()
    if kind == "average":
        padding = rows.counted, columns.counted
        if np.any(padding):
            raise Unsupported(
                f"PDP averages {kernel} with padding {padding}, which it counts; a layer does not"
            )
        across = v["PDP.D_RECIP_KERNEL_WIDTH.RECIP_KERNEL_WIDTH"]
        down = v["PDP.D_RECIP_KERNEL_HEIGHT.RECIP_KERNEL_HEIGHT"]
        if not averages(kernel[0] * kernel[1], across, down):
            raise Unsupported(
                f"PDP.D_RECIP_KERNEL_WIDTH is {across}, D_RECIP_KERNEL_HEIGHT {down}, which rounds "
                f"averages of {kernel} otherwise than a layer"
            )
    layer = _by_name(Pool2D(kind, kernel, shape, stride, padding))
    if layer.output_shape != out:
        raise Unsupported(f"PDP.D_DATA_CUBE_OUT is {out}, the pooling gives {layer.output_shape}")
    x = _tensor(capture, memory, v.placed("PDP_RDMA", "SRC", shape))
    return Lifted(layer, x, _output(capture, v, "PDP", out))


def _addition(capture: Capture, v: Fields, memory: Memory) -> Lifted:
    v.agree("points")
    v.expect("lift addition")
    shape = v.shape("SDP.D_DATA_CUBE_{0}.{0}")
    none = np.zeros(shape[2], np.int64)
    codes = Scaling(none + 128, none, none + 1)
    scaling = scaling_of(v, codes, _operands(capture, v, memory, shape))
    other, bias = scaling.other, int(scaling.bias[0])
    if other is None:
        raise Unsupported("SDP scales one tensor from memory, which no layer says")
    if np.any(scaling.multiplier != 1) or np.any(scaling.bias != bias):
        raise Unsupported(
            "SDP scales the tensor that it adds, or adds a number per channel, which no layer says"
        )
    if other.min() < -128 or other.max() > 127:
        raise Unsupported(
            f"SDP adds a tensor of {int(other.min())} to {int(other.max())}, layers have int8"
        )
    first = int(np.clip(-bias, -128, 127))
    layer = Add(
        shape,
        _activation(scaling),
        QuantParams(1.0, first),
        QuantParams(1.0, -bias - first),
        QuantParams(2.0**scaling.shift, scaling.zero_point),
    )
    x = _tensor(capture, memory, v.placed("SDP_RDMA", "SRC", shape))
    second = None
    if "other" in capture.buffers or "memory" in capture.parameters:
        second = other.astype(np.int8)
    return Lifted(layer, (x, second), _output(capture, v, "SDP", shape))
