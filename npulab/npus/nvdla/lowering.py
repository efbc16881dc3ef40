"""From a layer to the job that a driver would send: register writes, and weights, operands and
input in memory.

``programs.csv`` says which field of a job holds which value of the layer, and if it is stored
less 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from npulab.captures.target import Features
from npulab.npus.kit import (
    Capture,
    Raw,
    behind,
    ceil_div,
    lowered,
    placed,
    read_table,
    refuse_if,
    up,
)
from npulab.npus.kit.layers import as_1x1, as_dense, plain_activation
from npulab.npus.nvdla.facts import FACTS, USUAL_CHIP, FieldValues, Pair, Shape, block_of
from npulab.npus.nvdla.layouts import Cube, Weights
from npulab.npus.nvdla.points import (
    RULE,
    Operands,
    Points,
    halves,
    program,
    reading,
    scaled,
    summed,
)
from npulab.npus.nvdla.units import pool_stream
from npulab.npus.nvdla.units.fields import Fields
from npulab.npus.nvdla.units.pdp import KEPT_BITS, kept
from npulab.quant.layers import Add, Conv2D, FullyConnected, Layer, Pool2D

ADDRESSES = {
    "input": 0x80000000,
    "other": 0x88000000,
    "coefficients": 0x90000000,
    "bs": 0xA0000000,
    "bn": 0xA8000000,
    "output": 0xB0000000,
}
ALIGNMENT, ADDRESS_BITS = 32, 40  # multiple in bytes, and bits, of an address on any chip
POOLS = ("average", "max", "min")  # indexed by the raw value of POOLING_METHOD
RECIPROCAL = 2**16
MOST_POOLED = 8  # most rows and columns of a pooling window
PROGRAMS = read_table(FACTS.here / "programs.csv")
# The values of a job's fields, by the names of programs.csv.
Quantities = Mapping[str, int]


def lower(
    layer: Layer,
    chip: str = USUAL_CHIP,
    x: Any = None,
    name: str = "lowered",
    addresses: Raw | None = None,
) -> Capture:
    """Return the register program of a layer for a chip, its weights (``coefficients``), the
    operands of SDP's stages (``bs``, ``bn``) and, with ``x``, the input.

    These int8 layers are covered. Convolutions and fully connected layers with symmetric weights,
    one scale or one per channel, and no activation or ReLU. Max, min and average pooling, if the
    unit rounds averages as the layer does. Additions of two tensors with the same scale, if the
    output's scale is that scale times a power of two. Another activation is accepted if it gives
    the same codes as none or as ReLU.
    ``x`` is ``(H, W, C)`` int8, for additions a pair of them. The whole input and a group of
    kernels have to fit into the convolution buffer, because a layer is not cut into several jobs.
    Raises ValueError for a layer that is not covered, Unsupported for an unknown chip, LookupError
    for an unknown address.
    Source: traces of nvdla/hw; for biases of two bytes, pairs of bias and multiplier, averages and
    padding the RTL simulation of nv_small, 640 layers.
    """
    features = FACTS.features(chip)
    where = placed(ADDRESSES, addresses, ALIGNMENT, ADDRESS_BITS)
    if layer.dtype != "int8" or not isinstance(layer, Conv2D | FullyConnected | Pool2D | Add):
        raise ValueError(
            f"lower for nvdla: got {layer!r} of {layer.dtype}, allowed is a Conv2D, "
            "FullyConnected, Pool2D or Add of int8"
        )
    if isinstance(layer, FullyConnected):
        if np.shape(x) == layer.input_shape:
            x = np.reshape(x, (1, 1, -1))
        layer = as_1x1(layer)
    layer = _plain(layer)
    tensors = _input_tensors(layer, x)
    quantities = _quantities(layer, features["memory_atom"], where)
    buffers: dict[str, bytes] = {}
    if isinstance(layer, Conv2D):
        values, buffers = _convolution(layer, features, where, quantities)
    elif isinstance(layer, Pool2D):
        values = _pooling(layer, quantities)
        refuse_if(
            not pool_stream.plain(Fields(values, features)),
            "lower for nvdla: padding",
            layer.pads,
            "leaves no window before the input that gives no output: PDP would count it",
        )
    else:
        values = _addition(layer, where, quantities)
    shape = _three(layer.input_shape)
    cube = Cube.packed(*shape, features["memory_atom"])
    for key, tensor in tensors.items():
        buffers[key] = cube.pack(tensor.reshape(shape))
    used = {"input", "output", *buffers}
    if isinstance(layer, Add):
        used.add("other")
    block = block_of(chip)
    jobs = [program(values, block, FACTS.maps(chip)[block])]
    addresses = {key: at for key, at in where.items() if key in used}
    return lowered(FACTS, name, chip, jobs, (buffers, addresses), layer.parameters)


def _plain(layer: Conv2D | Pool2D | Add) -> Conv2D | Pool2D | Add:
    """Return the layer as the units run it: a depthwise convolution made dense, and without an
    activation that changes no code."""
    if isinstance(layer, Pool2D):
        return plain_activation(layer, "lower for nvdla, pooling", (None,))
    if isinstance(layer, Conv2D):
        layer = as_dense(layer)
    return plain_activation(layer, "lower for nvdla")


def _input_tensors(layer: Layer, x: Any) -> dict[str, np.ndarray]:
    """Return the input tensors by the names of their buffers; ValueError for other shapes."""
    if x is None:
        return {}
    names, allowed, tensors = ["input"], "", [np.asarray(x)]
    if isinstance(layer, Add):
        names, allowed = ["input", "other"], "a pair, each "
        if isinstance(x, tuple | list):
            tensors = [np.asarray(tensor) for tensor in x]
    wanted = [(layer.input_shape, np.dtype(np.int8))] * len(names)
    if [(tensor.shape, tensor.dtype) for tensor in tensors] != wanted:
        got = " and ".join(f"shape {tensor.shape} {tensor.dtype}" for tensor in tensors)
        raise ValueError(f"x: got {got}, allowed is {allowed}{layer.input_shape} of int8")
    return dict(zip(names, tensors, strict=True))


def _three(shape: tuple[int, ...]) -> Shape:
    """Return an addition's shape as (H, W, C): axes before the last two count as rows."""
    *rows, width, channels = (1, 1, *shape)
    return int(np.prod(rows)), width, channels


def _quantities(layer: Any, atom: int, where: Quantities) -> FieldValues:
    """Return the quantities of any layer: sizes, pitches, windows, and halves of addresses."""
    out: FieldValues = {}
    for side, shape in (("input", layer.input_shape), ("output", layer.output_shape)):
        cube = Cube.packed(*_three(shape), atom)
        out |= {
            f"{side}_h": cube.height,
            f"{side}_w": cube.width,
            f"{side}_c": cube.channels,
            f"{side}_line": cube.row_pitch,
            f"{side}_surface": cube.plane_pitch,
        }
    for name in ("kernel", "stride", "dilation"):
        if hasattr(layer, name):
            out[f"{name}_h"], out[f"{name}_w"] = getattr(layer, name)
    if hasattr(layer, "pads"):
        (out["top"], out["bottom"]), (out["left"], out["right"]) = layer.pads
    for name, at in where.items():
        out[f"{name}_low"], out[f"{name}_high"] = halves(at)
    return out


def _filled(job: str, quantities: Quantities) -> FieldValues:
    """Return the fields of a job of ``programs.csv``, filled from quantities."""
    out = {}
    for row in PROGRAMS:
        value = row["value"]
        if row["job"] != job:
            continue
        if value.isdecimal():
            out[row["field"]] = int(value)
        else:
            out[row["field"]] = quantities[value] - int(row["less"] or 0)
    return out


def _convolution(
    layer: Conv2D, chip: Features, where: Quantities, quantities: Quantities
) -> tuple[FieldValues, dict[str, bytes]]:
    _supported(layer)
    count = layer.output_shape[2]
    channels, atoms = layer.input_shape[2], (chip["atomic_k"], chip["atomic_c"])
    weights = Weights(count, *layer.kernel, channels, *atoms)
    entries, banks = _buffered(Cube.packed(*layer.input_shape, chip["memory_atom"]), weights, chip)
    zero, wide = layer.input_q.zero_point, layer.weights.astype(np.int64)
    # The unit multiplies codes with their zero point in them, which the bias takes off; the padding
    # has that zero point as its value, so that this holds at the border too.
    bias = layer.bias.astype(np.int64) - zero * wide.sum((1, 2, 3))
    scales = np.broadcast_to(layer.weight_q.scale, (count,))
    multiplier, shift = RULE.multiplier(layer.input_q.scale, scales, layer.output_q.scale)
    points = scaled(
        bias,
        multiplier,
        shift,
        layer.output_q.zero_point,
        layer.activation == "relu",
        128 * np.abs(wide).sum((1, 2, 3)),
    )
    more = {
        "entries": entries,
        "data_banks": banks,
        "pad_value": zero,
        "weight_banks": chip["cbuf_banks"] - banks,
        "kernel_bytes": weights.used // count,
        # CDMA fills whole entries and CSC frees the entries of the kernels: more bytes than these
        # would leave entries that spoil the next convolution (RTL simulation).
        "weight_bytes": up(weights.used, chip["cbuf_entry"]),
        "output_pixels": quantities["output_h"] * quantities["output_w"],
    }
    values = _filled("convolution", {**quantities, **more})
    values |= _points(points, where, quantities, flying=True)
    buffers = {"coefficients": weights.pack(layer.weights)}
    for stage, operands in points.operands.items():
        buffers[stage.lower()] = operands.bytes(chip["memory_atom"])
    return values, buffers


def _supported(layer: Conv2D) -> None:
    wrong = None
    if layer.depthwise or layer.weights.dtype != np.int8:
        wrong = f"got {layer!r} with {layer.weights.dtype} weights, allowed is int8, not depthwise"
    if layer.weight_q.zero_point:
        wrong = f"weight_q: got zero point {layer.weight_q.zero_point}, allowed is 0"
    for name, q in (("input_q", layer.input_q), ("output_q", layer.output_q)):
        if not -128 <= q.zero_point <= 127:
            wrong = f"{name}: got zero point {q.zero_point}, allowed is -128 to 127"
    if wrong:
        raise ValueError(f"lower for nvdla: {wrong}")


def _buffered(cube: Cube, weights: Weights, chip: Features) -> Pair:
    """Return (entries that a line of the input takes, banks that the whole input takes) in the
    convolution buffer.

    Raises ValueError if input and weights do not fit.
    """
    atoms = chip["cbuf_entry"] // cube.atom  # atoms in a full entry
    full, rest = divmod(cube.surfaces, atoms)
    entries = full * cube.width
    if rest:
        # Surfaces that fill no whole entry take a power of two of its atoms, and the other atoms
        # hold further pixels.
        entries += ceil_div(cube.width, atoms // 2 ** (rest - 1).bit_length())
    banks = ceil_div(entries * cube.height, chip["cbuf_entries"])
    group = min(weights.kernels, weights.group) * weights.used // weights.kernels
    kept = ceil_div(group, chip["cbuf_entry"] * chip["cbuf_entries"])
    if banks + kept > chip["cbuf_banks"]:
        raise ValueError(
            f"lower for nvdla: got {banks} banks for the input and {kept} for a group of kernels, "
            f"allowed are {chip['cbuf_banks']} banks of the convolution buffer together"
        )
    return entries, banks


def _points(
    points: Points,
    where: Quantities,
    quantities: Quantities,
    flying: bool,
) -> FieldValues:
    """Return the fields of SDP and, if it reads memory, of SDP_RDMA."""
    quantities = {**quantities, "flying": flying}
    out = {**_filled("points", quantities), **points.values}
    if flying and not points.operands:
        return out
    out |= _filled("operands", quantities)
    for stage in ("BS", "BN"):
        out |= reading(stage, points.operands.get(stage), where[stage.lower()])
    return out


def _addition(layer: Add, where: Quantities, quantities: Quantities) -> FieldValues:
    scales: list[Any] = [layer.input_q.scale, layer.other_q.scale, layer.output_q.scale]
    first, other, out = np.asarray(scales, np.float32).tolist()
    shift = -1
    if out >= first:
        shift = int(np.log2(out / first))
    if first != other or not 0 <= shift < 32 or first * 2.0**shift != out:
        raise ValueError(
            f"lower for nvdla: scales: got {layer.input_q.scale} and {layer.other_q.scale} to "
            f"{layer.output_q.scale}, allowed are equal input scales, and an output scale that is "
            "theirs times a power of two"
        )
    offset = -layer.input_q.zero_point - layer.other_q.zero_point
    points = summed(offset, shift, layer.output_q.zero_point, layer.activation == "relu")
    pitches = quantities["input_line"], quantities["input_surface"]
    return {
        **_points(points, where, quantities, flying=False),
        **_filled("addition", quantities),
        **reading("BS", Operands(alu=np.zeros(1, np.int64)), where["other"], pitches),
    }


def _pooling(layer: Pool2D, quantities: Quantities) -> FieldValues:
    if max(layer.kernel) > MOST_POOLED:
        raise ValueError(
            f"lower for nvdla: kernel: got {layer.kernel}, allowed with pooling is up to "
            f"{MOST_POOLED}"
        )
    reciprocals = (0, 0)
    if layer.kind == "average":
        taps = layer.kernel[0] * layer.kernel[1]
        refuse_if(
            np.any(layer.pads),
            "lower for nvdla: padding",
            layer.pads,
            "with averages is none: the unit divides by the whole window",
        )
        # The unit rounds after each reciprocal: with the second worth exactly 1, only the first
        # rounding can change a value. Of the other order the unit would keep too few bits.
        reciprocals = (RECIPROCAL + taps // 2) // taps, RECIPROCAL
        refuse_if(
            not averages(taps, *reciprocals),
            "lower for nvdla: kernel",
            layer.kernel,
            f"are averages that a reciprocal of 16 bits rounds right, not of {taps}",
        )
    more = {"method": POOLS.index(layer.kind)}
    more["reciprocal_w"], more["reciprocal_h"] = reciprocals
    # PDP divides the padding after the input by the stride to count the windows that end in it:
    # padding that no window reaches would hang it or give other bytes (RTL simulation, 124 jobs).
    for axis, side in enumerate(("bottom", "right")):
        windows = layer.kernel[axis], layer.stride[axis], layer.pads[axis][0]
        reached = behind(layer.input_shape[axis], layer.output_shape[axis], *windows)
        more[side] = max(reached, 0)
    return _filled("pooling", {**quantities, **more})


def averages(taps: int, across: int, down: int) -> bool:
    """True if PDP gives the average, rounded half away from 0, of every sum of ``taps`` int8
    elements. PDP multiplies the sum by the reciprocals of width and height, and after each rounds
    and keeps few bits (``pdp.kept``).

    >>> averages(16, 4096, 65536), averages(16, 65536, 4096)
    (True, False)
    """
    got = sums = np.arange(-128 * taps, 127 * taps + 1)
    for reciprocal, bits in zip((across, down), KEPT_BITS, strict=True):
        got = kept(got * reciprocal, bits)
    return bool(np.array_equal(got, np.sign(sums) * ((np.abs(sums) + taps // 2) // taps)))
