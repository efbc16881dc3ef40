"""From what a driver sent back to the layer, from cores with the plain coefficient stream (V7)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from npulab.capture import Capture
from npulab.layers import Conv2D, padding_name
from npulab.quant import QuantParams
from npulab.target import Item, Lifted, Unanswerable
from npulab.targets.vivante import coefficients
from npulab.targets.vivante.coefficients import Coefficients, Geometry, ceil_div
from npulab.targets.vivante.facts import UNCOVERED
from npulab.targets.vivante.lowering import (
    FIRST_PIXEL,
    LEADING_ONE,
    MULTIPLIER,
    ODD_STRIDE2_TILE,
    join_planes,
    multiplier_of,
    plain_chip,
    plan,
    tiling,
)

# rounding by rounding_mode; every capture has 1, and that 0 is toward zero is a guess from the vendor's API
ROUNDING = {1: MULTIPLIER.ties, 0: "toward-zero"}


def lift(capture: Capture) -> Lifted:
    """The unlowered layer of an NN job, its input and captured output.

    The words fix the arithmetic; where they leave several readings (stride 2 with padding, 1x1 on
    one channel), ``capture.parameters`` decide if they are there, else the plainest reading does.
    Raises ValueError where words or coefficients make no layer, Unanswerable without coefficients.
    """
    facts = plain_chip(capture.chip)
    if len(capture.jobs) != 1 or capture.jobs[0].block != "NN":
        raise Unanswerable(f"capture {capture.name}: got jobs {', '.join(job.block for job in capture.jobs)}, a layer "
                           "is lifted from one NN job so far")
    v, known = capture.values, _known(capture.parameters)
    _liftable(v)
    geometry = geometry_of(v, facts)
    content = coefficients.decode(_buffer(capture, "coefficients"), geometry)
    _offsets(content, geometry)
    weights = content.weights[:geometry.channels]
    sums = (weights.astype(np.int64) - geometry.zero_point).sum((1, 2, 3))
    bias = (content.bias[:geometry.channels] + v["in_image_border_const"] * sums).astype(np.int32)
    planar = _image(capture, v)
    layer, border = _unlowered(v, weights, bias, known, planar)
    x = None if planar is None else _input(planar, layer, border)
    return Lifted(_with_habits(layer, v, facts), x, _output(capture, v))


def rule_of(capture: Capture) -> str:
    """The rounding rule that a capture's rounding_mode asks for; ValueError for an unknown mode."""
    mode = capture.values["rounding_mode"]
    if mode not in ROUNDING:
        raise ValueError(f"lift for vivante: block NN field rounding_mode: got {mode}, allowed is one of "
                         f"{list(ROUNDING)}")
    return f"vivante-v7:{ROUNDING[mode]}"


def recode(capture: Capture) -> bytes:
    """The coefficient buffer decoded and encoded again."""
    geometry = geometry_of(capture.values, plain_chip(capture.chip))
    return coefficients.encode(coefficients.decode(_buffer(capture, "coefficients"), geometry), geometry)


def explain(capture: Capture) -> list[Item]:
    """Every bit of the coefficient buffer, as items in order."""
    geometry = geometry_of(capture.values, plain_chip(capture.chip))
    return list(coefficients.walk(_buffer(capture, "coefficients"), geometry))


def geometry_of(values: Mapping[str, Any], facts: Mapping[str, int]) -> Geometry:
    """The coefficient buffer's geometry, from decoded NN words; ValueError for a size of 0."""
    v = values
    for name in ("out_image_z_size", "kernel_z_size", "kernel_xy_size", "kernel_y_size", "kernels_per_core"):
        if v[name] == 0:
            raise ValueError(f"block NN field {name}: got 0, allowed is at least 1")
    blocks = ceil_div(ceil_div(v["out_image_z_size"], facts["nn_cores"]), v["kernels_per_core"])
    return Geometry(facts["nn_cores"], v["out_image_z_size"], v["kernel_z_size"], v["kernel_y_size"],
                    v["kernel_xy_size"], blocks, v["coef_zero_point"],
                    v["out_image_x_stride"] * v["out_image_y_stride"], v["in_image_x_size"])


def _buffer(capture: Capture, name: str) -> bytes:
    if name not in capture.buffers:
        raise Unanswerable(f"capture {capture.name}: buffer {name!r} is missing, there are "
                           f"{', '.join(capture.buffers) or 'none'}")
    return capture.buffers[name]


def _known(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Of the recorded parameters those that are of the kind they should be."""
    whole = {f"{name}_{axis}" for name in ("input", "kernel", "stride") for axis in "hw"}
    pads_ = {f"pad_{side}" for side in ("top", "bottom", "left", "right")}
    kinds = dict.fromkeys(whole, (int, 1)) | dict.fromkeys(pads_, (int, 0)) \
        | {f"{name}_scale": (float, 0.0) for name in ("input", "weight", "output")}
    out = {name: value for name, value in parameters.items() if name in kinds and not isinstance(value, bool)
           and isinstance(value, kinds[name][0]) and value >= kinds[name][1]}
    plain = {"padding": str, "depthwise": bool}
    return out | {name: parameters[name] for name, kind in plain.items() if isinstance(parameters.get(name), kind)}


def _liftable(v: Mapping[str, Any]) -> None:
    """Refuse words that say something else than a layer that is covered."""
    for name in UNCOVERED:
        if v[name] != 0:
            raise ValueError(f"lift for vivante: block NN field {name}: got {v[name]}, allowed is 0")
    if v["pooling"] not in (0, FIRST_PIXEL):
        raise ValueError(f"lift for vivante: block NN field pooling: got {v['pooling']}, allowed is 0 or {FIRST_PIXEL}")
    for name in ("in_image_x_offset", "in_image_y_offset"):
        if v[name] > 0:
            raise ValueError(f"lift for vivante: block NN field {name}: got {v[name]}, allowed is up to 0")
    for axis in "xy":
        size, room = v[f"in_image_{axis}_size"], v[f"in_image_{axis}_stride"]
        if not 0 < size <= room:
            raise ValueError(f"lift for vivante: block NN field in_image_{axis}_size: got {size}, allowed is 1 to "
                             f"{room} (in_image_{axis}_stride)")
    for size, room in zip(_output_size(v), (v["out_image_y_stride"], v["out_image_x_stride"]), strict=True):
        if not 0 < size <= room:
            raise ValueError(f"lift for vivante: output of {_output_size(v)} rows and columns, allowed is up to its "
                             f"strides {v['out_image_y_stride']} and {v['out_image_x_stride']}")


def _output_size(v: Mapping[str, Any]) -> tuple[int, int]:
    """(rows, columns) that leave the unit: of each 2x2 one where it pools."""
    step = 2 if v["pooling"] == FIRST_PIXEL else 1
    return ceil_div(v["out_image_y_size"], step), ceil_div(v["out_image_x_size"], step)


def _offsets(content: Coefficients, geometry: Geometry) -> None:
    """Refuse an output plane that is not behind the one before it."""
    want = np.arange(geometry.channels) * geometry.plane_bytes
    wrong = np.flatnonzero(content.offsets[:geometry.channels] != want)
    if len(wrong):
        raise ValueError(f"coefficients: the output offset of channel {wrong[0]} is {content.offsets[wrong[0]]}, "
                         f"allowed is {want[wrong[0]]}")


def _unlowered(v: Mapping[str, Any], weights: np.ndarray, bias: np.ndarray, known: Mapping[str, Any],
               planar: np.ndarray | None) -> tuple[Conv2D, tuple[int, int] | None]:
    """The layer, and for split planes the (top, left) border that the joined input carries."""
    zero = v["coef_zero_point"]
    common: dict[str, Any] = {"bias": bias, "activation": "relu" if v["relu"] else None, **_quantization(v, known)}
    out, sizes = _output_size(v), (v["in_image_y_size"], v["in_image_x_size"])
    if v["pooling"] == 0 and _is_split(v, weights, known):
        return _strided(weights, zero, out, sizes, known, common, planar)
    stride = 2 if v["pooling"] == FIRST_PIXEL else 1
    if _is_pointwise(weights, zero, [ceil_div(size, stride) for size in sizes] == list(out), known):
        weights = weights[:, :, :1, :1]
    depthwise = _is_depthwise(weights, zero, stride == 2 and weights.shape[2:] != (1, 1), known)
    if depthwise:
        weights = weights[range(len(weights)), range(len(weights))][None]
    offsets = -v["in_image_y_offset"], -v["in_image_x_offset"]
    shape, border = _border(sizes, offsets, out, weights.shape[2:], stride)
    layer = Conv2D(weights.transpose(0, 2, 3, 1), input_shape=(*shape, v["kernel_z_size"]),
                   stride=(stride, stride), padding=border, depthwise=depthwise, **common)
    return _named_padding(layer, known), None


def _strided(weights: np.ndarray, zero: int, out: tuple[int, int], sizes: tuple[int, int], known: Mapping[str, Any],
             common: Mapping[str, Any], planar: np.ndarray | None) -> tuple[Conv2D, tuple[int, int]]:
    """A stride 2 layer from split planes: as known, if that gives these sizes and the planes hold nothing but
    the zero point around its image, else without a border before."""
    joined = join_planes(weights)
    kernel = tuple(_used(joined, axis, known.get(f"kernel_{name}"), zero) for axis, name in ((2, "h"), (3, "w")))
    ohwi = joined[:, :, :kernel[0], :kernel[1]].transpose(0, 2, 3, 1)
    if {"input_h", "input_w", "pad_top", "pad_bottom", "pad_left", "pad_right"} <= set(known):
        border = ((known["pad_top"], known["pad_bottom"]), (known["pad_left"], known["pad_right"]))
        layer = Conv2D(ohwi, input_shape=(known["input_h"], known["input_w"], ohwi.shape[3]), stride=(2, 2),
                       padding=border, **common)
        layer = _named_padding(layer, known)
        low = plan(layer)
        before = border[0][0], border[1][0]
        if (low.output, (low.rows, low.columns)) == (out, sizes) and _only_fill_around(planar, layer, before):
            return layer, before
    shape, border = _border((2 * sizes[0], 2 * sizes[1]), (0, 0), out, kernel, 2)
    return _named_padding(Conv2D(ohwi, input_shape=(*shape, ohwi.shape[3]), stride=(2, 2), padding=border, **common),
                          {}), (0, 0)


def _only_fill_around(planar: np.ndarray | None, layer: Conv2D, before: tuple[int, int]) -> bool:
    """Whether joined planes hold the input's zero point wherever the layer's image does not lie."""
    if planar is None:
        return True
    around = join_planes(planar).copy()
    around[:, before[0]:before[0] + layer.input_shape[0], before[1]:before[1] + layer.input_shape[1]] \
        = layer.input_q.zero_point
    return bool(np.all(around == layer.input_q.zero_point))


def _used(joined: np.ndarray, axis: int, known: int | None, zero: int) -> int:
    """Rows or columns of a joined kernel: as known, else one less than it has, if what is cut off is empty."""
    size = joined.shape[axis]
    for kernel in (known or size - 1, size - 1):
        if size - 2 < kernel <= size and np.all(joined.take(range(kernel, size), axis) == zero):
            return kernel
    return size


def _border(sizes: tuple[int, ...], before: tuple[int, ...], out: tuple[int, ...], kernel: tuple[int, ...], stride: int,
            ) -> tuple[list[int], Any]:
    """(input sizes, padding) for windows from ``before`` the image on that give ``out`` outputs: what no
    window can reach is cut off, what windows reach behind the image is border."""
    shape, border = [], []
    for size, top, o, k in zip(sizes, before, out, kernel, strict=True):
        behind = stride * (o - 1) + k - size - top
        border.append((top, max(behind, 0)))
        shape.append(size + min(behind + stride - 1, 0))
    if min(shape) < 1:
        raise ValueError(f"lift for vivante: got an output of {tuple(out)} from an input of {tuple(sizes)}, which "
                         "no window reaches")
    return shape, tuple(border)


def _named_padding(layer: Conv2D, known: Mapping[str, Any]) -> Conv2D:
    """The same layer with its padding by name, where a name gives the same border."""
    name = padding_name(layer, known.get("padding"))
    return replace(layer, padding=name) if name else layer


def _is_pointwise(weights: np.ndarray, zero: int, full: bool, known: Mapping[str, Any]) -> bool:
    """Whether a 2x2 kernel on one plane stands for 1x1: its other cells are empty, and it is known to
    or the output is as large as a 1x1 kernel makes it."""
    if weights.shape[1:] != (1, 2, 2) or np.any(weights.reshape(-1, 4)[:, 1:] != zero):
        return False
    kernel = known.get("kernel_h"), known.get("kernel_w")
    return full if None in kernel else kernel == (1, 1)


def _is_split(v: Mapping[str, Any], weights: np.ndarray, known: Mapping[str, Any]) -> bool:
    """Whether planes are a split stride 2 image: known, or an odd kernel's missing cells are all empty."""
    if weights.shape[1] % 4 or v["in_image_x_offset"] or v["in_image_y_offset"]:
        return False
    if "stride_h" in known:
        return bool(known["stride_h"] == 2)
    if min(weights.shape[2:]) < 2:
        return False
    joined = join_planes(weights)
    return bool(np.all(joined[:, :, -1] == v["coef_zero_point"])
                and np.all(joined[:, :, :, -1] == v["coef_zero_point"])
                and np.any(joined != v["coef_zero_point"]))


def _is_depthwise(weights: np.ndarray, zero: int, pooled: bool, known: Mapping[str, Any]) -> bool:
    """Whether all kernels off the diagonal are empty, and it is known to be depthwise, or only such a layer
    is pooled, or those on the diagonal are not empty."""
    outputs, planes_in = weights.shape[:2]
    used = np.any(weights != zero, axis=(2, 3))
    if outputs != planes_in or np.any(used & ~np.eye(outputs, dtype=bool)):
        return False
    if "depthwise" in known:
        return bool(known["depthwise"])
    return pooled or (outputs > 1 and bool(np.all(used.diagonal())))


def _quantization(v: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, QuantParams]:
    """The known scales if they give these words, else all of the scale in the weights."""
    want = LEADING_ONE + v["post_multiplier"], v["post_shift"]
    scales: list[Any] = [known.get(name) for name in ("input_scale", "weight_scale", "output_scale")]
    if not all(isinstance(scale, float) and scale > 0 for scale in scales) \
            or multiplier_of(*scales) != want:
        scales = [1.0, want[0] / 2.0 ** want[1], 1.0]
    zeros = v["in_image_border_const"], v["coef_zero_point"], v["out_zero_point"]
    return {name: QuantParams(scale, zero) for name, scale, zero
            in zip(("input_q", "weight_q", "output_q"), scales, zeros, strict=True)}


def _with_habits(layer: Conv2D, v: Mapping[str, Any], facts: Mapping[str, int]) -> Conv2D:
    """Note the driver's habit where the tile shows it."""
    low = plan(layer)
    even, odd = (tiling(low, facts, habits)[0][0] for habits in (set[str](), {ODD_STRIDE2_TILE}))
    seen = v["out_image_tile_y_size"]
    return replace(layer, habits=frozenset({ODD_STRIDE2_TILE})) if seen == odd != even else layer


def _image(capture: Capture, v: Mapping[str, Any]) -> np.ndarray | None:
    """The planes that the unit reads, ``(planes, rows, columns)``."""
    if "input" not in capture.buffers:
        return None
    planar = _planar(capture, "input", v["kernel_z_size"], v["in_image_y_stride"], v["in_image_x_stride"])
    return planar[:, :v["in_image_y_size"], :v["in_image_x_size"]]


def _input(planar: np.ndarray, layer: Conv2D, border: tuple[int, int] | None) -> np.ndarray:
    """The layer's input ``(H, W, C)``; ``border`` is what split planes hold above and left of it."""
    height, width, _ = layer.input_shape
    if border is not None:
        planar = join_planes(planar)[:, border[0]:, border[1]:]
        short = max(height - planar.shape[1], 0), max(width - planar.shape[2], 0)
        # rows that no window reaches were not handed to the unit
        planar = np.pad(planar, [(0, 0), (0, short[0]), (0, short[1])],
                        constant_values=layer.input_q.zero_point)
    return planar[:, :height, :width].transpose(1, 2, 0)


def _output(capture: Capture, v: Mapping[str, Any]) -> np.ndarray | None:
    if "output" not in capture.buffers:
        return None
    rows, columns = _output_size(v)
    planar = _planar(capture, "output", v["out_image_z_size"], v["out_image_y_stride"], v["out_image_x_stride"])
    outside = np.ones(planar.shape, bool)
    outside[:, :rows, :columns] = False
    if len(np.unique(planar[outside])) > 1:
        raise ValueError(f"lift for vivante: the output buffer holds data outside the {rows} rows and {columns} "
                         "columns that its words say")
    return planar[:, :rows, :columns].transpose(1, 2, 0)


def _planar(capture: Capture, name: str, planes: int, rows: int, columns: int) -> np.ndarray:
    data, need = capture.buffers[name], planes * rows * columns
    if len(data) < need:
        raise ValueError(f"capture {capture.name}: buffer {name!r} has {len(data)} bytes, its words say "
                         f"{planes} planes of {rows}x{columns}, {need} bytes")
    return np.frombuffer(data, np.uint8, need).reshape(planes, rows, columns)
