"""From a capture to the layer that its words say, and its weight buffer decoded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from npulab.captures.capture import Capture
from npulab.captures.target import Item, Lifted, Unsupported
from npulab.npus.nvdla.events import MEMORIES
from npulab.npus.nvdla.facts import CHIPS
from npulab.npus.nvdla.layouts import Cube, Weights
from npulab.npus.nvdla.lowering import averages
from npulab.npus.nvdla.memory import Memory, Outside
from npulab.npus.nvdla.points import ALU, BOTH, MUL, READERS, RULE
from npulab.npus.nvdla.registers import CONVOLUTION, units_of, values_of
from npulab.npus.nvdla.scaling import Scaling, scaling_of
from npulab.npus.nvdla.units.rounding import signed
from npulab.quant.layers import Add, Conv2D, Pool2D, padding_name
from npulab.quant.rules import QuantParams

POOLS = ("average", "max", "min")
MOST = 2 ** 22
# an addition of tensors of one scale rounds as TensorFlow Lite's does, once
ADDITION = "tflite-reference"
Values = Mapping[str, int]


def lift(capture: Capture) -> Lifted:
    """The layer that a capture of one job says: a convolution with one bias and one scaling, a
    pooling, an addition.

    Input and output scales are 1 and the weight scales say the multipliers, as words do not tell
    them apart; of two inputs that are added only the sum of the zero points is known.  The input is
    read from memory, the output from the buffer of that name; a tensor nobody recorded is None.
    Raises Unsupported naming what the layer cannot say: other units, tables, PReLU, two roundings,
    fp16 and int16.
    """
    v, units = _job(capture)
    chip, memory = CHIPS[capture.chip], Memory.of(capture)
    if units & {"CDP", "RBK", "BDMA"}:
        raise Unsupported(f"capture {capture.name}: got {', '.join(sorted(units))}, allowed are a convolution into "
                           "SDP, SDP and PDP, each alone")
    try:
        if "PDP" in units:
            if "SDP" in units:
                raise Unsupported(f"capture {capture.name}: got SDP into PDP, which is no one layer")
            return _pooling(capture, v, chip, memory)
        if "SDP" not in units:
            raise Unsupported(f"capture {capture.name}: got {', '.join(sorted(units)) or 'no unit'} started, allowed "
                               "are jobs of SDP or PDP")
        return (_convolution if units & {*CONVOLUTION} else _addition)(capture, v, chip, memory)
    except Outside as error:
        raise Unsupported(f"capture {capture.name}: {error}") from None
    except ValueError as error:
        if isinstance(error, Unsupported):
            raise
        raise Unsupported(f"capture {capture.name}: its words say no layer: {error}") from None


def rule_of(capture: Capture) -> str:
    """The rounding rule of a capture: SDP's own, for an addition TensorFlow Lite's, which is the
    same there."""
    _, units = _job(capture)
    return RULE.name if units & {*CONVOLUTION} or "SDP" not in units else ADDITION


def recode(capture: Capture) -> bytes:
    """The coefficient buffer unpacked and packed again; Unsupported without one."""
    weights, data = _coefficients(capture)
    return weights.pack(weights.unpack(data))


def explain(capture: Capture) -> list[Item]:
    """Every weight of the coefficient buffer and the fill behind them, in order; Unsupported
    without one."""
    weights, data = _coefficients(capture)
    places = weights.places().reshape(-1)
    order = np.argsort(places)
    kernel, row, column, plane = np.unravel_index(order, weights.shape)
    values = weights.unpack(data).reshape(-1)[order]
    out = [Item(int(at) * 8, 8 * weights.itemsize, "weight", int(value), None, int(k), int(c), int(y), int(x), 1)
           for at, value, k, y, x, c in zip(places[order], values, kernel, row, column, plane, strict=True)]
    fill = len(data) - weights.used
    return [*out, Item(8 * weights.used, 8 * fill, "fill")] if fill else out


def _job(capture: Capture) -> tuple[Values, set[str]]:
    if len(capture.jobs) != 1 or capture.chip not in CHIPS:
        raise Unsupported(f"capture {capture.name}: got {len(capture.jobs)} jobs on {capture.chip}, allowed is one on "
                           f"{', '.join(CHIPS)}")
    (job,) = capture.jobs
    if not job.writes:
        raise Unsupported(f"capture {capture.name}: got a job without register writes, allowed is one with")
    return values_of(job), {*units_of(job)}


def _weights(v: Values, chip: Mapping[str, int]) -> Weights:
    height, width = (v[f"CSC.D_WEIGHT_SIZE_EXT_0.WEIGHT_{name}_EXT"] + 1 for name in ("HEIGHT", "WIDTH"))
    channels, kernels = (v[f"CSC.D_WEIGHT_SIZE_EXT_1.WEIGHT_{name}"] + 1 for name in ("CHANNEL_EXT", "KERNEL"))
    return Weights(kernels, height, width, channels, chip["atomic_k"], chip["atomic_c"])


def _coefficients(capture: Capture) -> tuple[Weights, bytes]:
    if "coefficients" not in capture.buffers:
        raise Unsupported(f"capture {capture.name}: buffer 'coefficients' is missing")
    v, units = _job(capture)
    if "CSC" not in units:
        raise Unsupported(f"capture {capture.name}: got {', '.join(sorted(units))}, a convolution has coefficients")
    _whole(v, "CSC.D_MISC_CFG.PROC_PRECISION", "CSC.D_WEIGHT_FORMAT.WEIGHT_FORMAT")
    weights, data = _weights(v, CHIPS[capture.chip]), capture.buffers["coefficients"]
    if len(data) != weights.size:
        raise ValueError(f"buffer 'coefficients': got {len(data)} bytes, allowed for {weights.shape} is {weights.size}")
    return weights, data


def _whole(v: Values, *names: str) -> None:
    """Refuse fields that are not 0: other types, other ways to compute."""
    for name in names:
        if v[name]:
            raise Unsupported(f"{name} is {v[name]}, layers are lifted where it is 0")


def _address(v: Values, low: str) -> int:
    return v[low] + 2 ** 32 * v[low.replace("_LOW", "_HIGH")]


def _cube(v: Values, unit: str, side: str, shape: tuple[int, int, int], atom: int) -> tuple[Cube, int]:
    """The cube that SRC or DST registers place, and its address."""
    line, surface = (v[f"{unit}.D_{side}_{part}_STRIDE.{side}_{part}_STRIDE"] for part in ("LINE", "SURFACE"))
    return Cube(*shape, atom, line, surface), _address(v, f"{unit}.D_{side}_BASE_ADDR_LOW.{side}_BASE_ADDR_LOW")


def _read(memory: Memory, name: str, cube: Cube, where: int) -> np.ndarray | None:
    if not memory.holds(name, where, cube.size):
        return None
    return cube.unpack(memory.read(name, where, cube.size).tobytes())[..., :cube.channels]


def _output(capture: Capture, cube: Cube) -> np.ndarray | None:
    data = capture.buffers.get("output")
    return None if data is None else cube.unpack(data)[..., :cube.channels]


def _shape(v: Values, names: str) -> tuple[int, int, int]:
    height, width, channels = (v[names.format(name)] + 1 for name in ("HEIGHT", "WIDTH", "CHANNEL"))
    return height, width, channels


def _operands(v: Values, memory: Memory, shape: tuple[int, int, int], atom: int) -> Any:
    """What gives a stage's operands."""
    def operand(stage: str, part: str) -> np.ndarray:
        register = signed(v[f"SDP.D_DP_{stage}_{part}_SRC_VALUE.{stage}_{part}_OPERAND"], 16)
        if not v[f"SDP.D_DP_{stage}_{part}_CFG.{stage}_{part}_SRC"]:
            return np.full(shape[2], register, np.int64)
        reader = f"SDP_RDMA.D_{READERS[stage]}RDMA_CFG.{READERS[stage]}RDMA_"
        use, size = v[f"{reader}DATA_USE"], v[f"{reader}DATA_SIZE"] + 1
        if v[f"{reader}DISABLE"] or use not in (BOTH, {"ALU": ALU, "MUL": MUL}[part]):
            raise Unsupported(f"{reader}DATA_USE is {use} and DISABLE {v[f'{reader}DISABLE']}, the {part} of {stage} "
                               "waits for an operand")
        per, parts = bool(v[f"{reader}DATA_MODE"]), 1 + (use == BOTH)
        place = f"SDP_RDMA.D_{stage}_{{0}}.{stage}_{{0}}"
        each = atom * parts * size
        pitches = (v[place.format("LINE_STRIDE")], v[place.format("SURFACE_STRIDE")]) if per else (each, each)
        rows = shape[:2] if per else (1, 1)
        cube = Cube(*rows, -(-shape[2] // atom) * atom * parts, each, *pitches, itemsize=size)
        where = MEMORIES[v[f"{reader}RAM_TYPE"]], _address(v, place.format("BASE_ADDR_LOW"))
        if per and not memory.holds(*where, cube.size):
            if np.prod(shape) > MOST:
                raise Unsupported(f"SDP.D_DATA_CUBE is {shape}, a tensor that nobody recorded is lifted up to {MOST} "
                                   "elements")
            return np.zeros(shape, np.int64)
        data = memory.read(*where, cube.size)
        read = cube.unpack(data.tobytes())[..., (parts - 1) * (part == "MUL")::parts][..., :shape[2]].astype(np.int64)
        return read if per else read[0, 0]
    return operand


def _convolution(capture: Capture, v: Values, chip: Mapping[str, int], memory: Memory) -> Lifted:
    _whole(v, "CSC.D_MISC_CFG.CONV_MODE", "CDMA.D_MISC_CFG.IN_PRECISION", "CSC.D_MISC_CFG.PROC_PRECISION",
           "SDP.D_DATA_FORMAT.PROC_PRECISION", "SDP.D_DATA_FORMAT.OUT_PRECISION", "CSC.D_DATAIN_FORMAT.DATAIN_FORMAT",
           "CSC.D_WEIGHT_FORMAT.WEIGHT_FORMAT", "CSC.D_BATCH_NUMBER.BATCHES", "CSC.D_POST_Y_EXTENSION.Y_EXTENSION",
           "CDMA.D_CVT_CFG.CVT_EN", "SDP.D_FEATURE_MODE_CFG.BATCH_NUMBER", "SDP.D_FEATURE_MODE_CFG.WINOGRAD")
    weights = _weights(v, chip)
    data = memory.read(MEMORIES[v["CDMA.D_WEIGHT_RAM_TYPE.WEIGHT_RAM_TYPE"]],
                       _address(v, "CDMA.D_WEIGHT_ADDR_LOW.WEIGHT_ADDR_LOW"), weights.used)
    codes = weights.unpack(data.tobytes())
    shape = _shape(v, "SDP.D_DATA_CUBE_{0}.{0}")
    size = (v["CDMA.D_DATAIN_SIZE_0.DATAIN_HEIGHT"] + 1, v["CDMA.D_DATAIN_SIZE_0.DATAIN_WIDTH"] + 1,
            v["CDMA.D_DATAIN_SIZE_1.DATAIN_CHANNEL"] + 1)
    wide = codes.astype(np.int64)
    none = np.zeros(weights.kernels, np.int64)
    given = Scaling(128 * np.abs(wide).sum((1, 2, 3)), none, none + 1).scale(
        none + 1, v["CACC.D_CLIP_CFG.CLIP_TRUNCATE"], "CACC.D_CLIP_CFG.CLIP_TRUNCATE")
    found = scaling_of(v, given, _operands(v, memory, shape, chip["memory_atom"]))
    if found.other is not None:
        raise Unsupported("SDP.D_DP_BS_ALU_CFG adds a tensor to a convolution, which is no one layer")
    if np.any(found.most >= 2 ** 31):
        raise Unsupported("SDP may saturate sums at 32 bits, which no layer says")
    zero = signed(v["CSC.D_ZERO_PADDING_VALUE.PAD_VALUE"], 8)
    strides = _pair(v, "CSC.D_CONV_STRIDE_EXT.CONV_Y_STRIDE_EXT", "CSC.D_CONV_STRIDE_EXT.CONV_X_STRIDE_EXT")
    dilation = _pair(v, "CSC.D_DILATION_EXT.Y_DILATION_EXT", "CSC.D_DILATION_EXT.X_DILATION_EXT")
    behind = v["CDMA.D_ZERO_PADDING.PAD_BOTTOM"], v["CDMA.D_ZERO_PADDING.PAD_RIGHT"]
    dilation = tuple(1 if taps == 1 else step for taps, step in zip(weights.shape[1:3], dilation, strict=True))
    strides, padding = zip(*map(_axis, size[:2], shape[:2], weights.shape[1:3], strides, dilation, (
        v["CSC.D_ZERO_PADDING.PAD_TOP"], v["CSC.D_ZERO_PADDING.PAD_LEFT"]), behind), strict=True)
    layer = _named(Conv2D, weights=codes, bias=found.bias + zero * wide.sum((1, 2, 3)), input_shape=size,
                   stride=strides, padding=padding, dilation=dilation, activation="relu" if found.relu else None,
                   input_q=QuantParams(1.0, zero), weight_q=QuantParams(found.scales),
                   output_q=QuantParams(1.0, found.zero_point))
    if layer.output_shape != shape:
        raise Unsupported(f"SDP.D_DATA_CUBE is {shape}, the convolution gives {layer.output_shape}")
    source = Cube(*size, chip["memory_atom"], v["CDMA.D_LINE_STRIDE.LINE_STRIDE"], v["CDMA.D_SURF_STRIDE.SURF_STRIDE"])
    x = _read(memory, MEMORIES[v["CDMA.D_DAIN_RAM_TYPE.DATAIN_RAM_TYPE"]], source,
              _address(v, "CDMA.D_DAIN_ADDR_LOW_0.DATAIN_ADDR_LOW_0"))
    return Lifted(layer, x, _output(capture, _cube(v, "SDP", "DST", shape, chip["memory_atom"])[0]))


def _named(layer_type: Any, **parameters: Any) -> Any:
    """A layer whose padding has a name where one says the same."""
    layer = layer_type(**parameters)
    name = padding_name(layer)
    return layer_type(**{**parameters, "padding": name}) if name else layer


def _pair(v: Values, down: str, across: str) -> tuple[int, ...]:
    return v[down] + 1, v[across] + 1


def _axis(size: int, out: int, taps: int, stride: int, spread: int, before: int, behind: int,
          ) -> tuple[int, tuple[int, int]]:
    """(stride, border before and behind) that give the output's size: what the registers say, or
    the border that the windows reach; a step that is never made may be any number."""
    reach = (taps - 1) * spread + 1
    needed = max((out - 1) * stride + reach - size - before, 0)
    for border in (behind, needed):
        if (size + before + border - reach) // stride + 1 == out:
            return stride, (before, border)
    return (size + before + needed - reach + 1 if out == 1 else stride), (before, needed)


def _pooling(capture: Capture, v: Values, chip: Mapping[str, int], memory: Memory) -> Lifted:
    _whole(v, "PDP.D_DATA_FORMAT.INPUT_DATA")
    method = v["PDP.D_OPERATION_MODE_CFG.POOLING_METHOD"]
    shape, out = (_shape(v, f"PDP.D_DATA_CUBE_{side}_{{0}}.CUBE_{side}_{{0}}") for side in ("IN", "OUT"))
    config = "PDP.D_POOLING_KERNEL_CFG.KERNEL_"
    kernel = _pair(v, f"{config}HEIGHT", f"{config}WIDTH")
    stride = _pair(v, f"{config}STRIDE_HEIGHT", f"{config}STRIDE_WIDTH")
    pads = {name: v[f"PDP.D_POOLING_PADDING_CFG.PAD_{name}"] for name in ("TOP", "LEFT", "BOTTOM", "RIGHT")}
    if method >= len(POOLS):
        raise Unsupported(f"PDP.D_OPERATION_MODE_CFG.POOLING_METHOD is {method}, layers have 0 to 2")
    stride, padding = zip(*map(_axis, shape[:2], out[:2], kernel, stride, (1, 1), (pads["TOP"], pads["LEFT"]),
                               (pads["BOTTOM"], pads["RIGHT"])), strict=True)
    if POOLS[method] == "average":
        # the border behind counts only where a window reaches it
        padding = tuple((before, behind if (n - 1) * step + taps > size + before else 0) for (before, behind), n, step,
                        taps, size in zip(padding, out, stride, kernel, shape, strict=False))
        if np.any(padding):
            raise Unsupported(f"PDP averages {kernel} with padding {padding}, which it counts; a layer does not")
        across, down = (v[f"PDP.D_RECIP_KERNEL_{name}.RECIP_KERNEL_{name}"] for name in ("WIDTH", "HEIGHT"))
        if not averages(kernel[0] * kernel[1], across, down):
            raise Unsupported(f"PDP.D_RECIP_KERNEL_WIDTH is {across}, D_RECIP_KERNEL_HEIGHT {down}, which rounds "
                               f"averages of {kernel} otherwise than a layer")
    layer = _named(Pool2D, kind=POOLS[method], kernel=kernel, input_shape=shape, stride=stride, padding=padding)
    if layer.output_shape != out:
        raise Unsupported(f"PDP.D_DATA_CUBE_OUT is {out}, the pooling gives {layer.output_shape}")
    source, where = _cube(v, "PDP_RDMA", "SRC", shape, chip["memory_atom"])
    x = _read(memory, MEMORIES[v["PDP_RDMA.D_SRC_RAM_CFG.SRC_RAM_TYPE"]], source, where)
    return Lifted(layer, x, _output(capture, _cube(v, "PDP", "DST", out, chip["memory_atom"])[0]))


def _addition(capture: Capture, v: Values, chip: Mapping[str, int], memory: Memory) -> Lifted:
    _whole(v, "SDP.D_DATA_FORMAT.PROC_PRECISION", "SDP.D_DATA_FORMAT.OUT_PRECISION",
           "SDP_RDMA.D_FEATURE_MODE_CFG.IN_PRECISION", "SDP.D_FEATURE_MODE_CFG.BATCH_NUMBER")
    shape = _shape(v, "SDP.D_DATA_CUBE_{0}.{0}")
    none = np.zeros(shape[2], np.int64)
    found = scaling_of(v, Scaling(none + 128, none, none + 1), _operands(v, memory, shape, chip["memory_atom"]))
    if found.other is None:
        raise Unsupported("SDP scales one tensor from memory, which no layer says")
    if np.any(found.multiplier != 1) or np.any(found.bias != found.bias[0]):
        raise Unsupported("SDP scales what it adds, or adds a number per channel, which no layer says")
    if found.other.min() < -128 or found.other.max() > 127:
        raise Unsupported(f"SDP adds a tensor of {int(found.other.min())} to {int(found.other.max())}, layers have "
                           "int8")
    first = int(np.clip(-found.bias[0], -128, 127))
    layer = Add(shape, "relu" if found.relu else None, QuantParams(1.0, first),
                QuantParams(1.0, -int(found.bias[0]) - first), QuantParams(2.0 ** found.shift, found.zero_point))
    source, where = _cube(v, "SDP_RDMA", "SRC", shape, chip["memory_atom"])
    x = _read(memory, MEMORIES[v["SDP_RDMA.D_SRC_DMA_CFG.SRC_RAM_TYPE"]], source, where)
    other = found.other.astype(np.int8) if "other" in capture.buffers or "memory" in capture.parameters else None
    return Lifted(layer, (x, other),
                  _output(capture, _cube(v, "SDP", "DST", shape, chip["memory_atom"])[0]))
