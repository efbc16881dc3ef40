"""From what a driver sent back to the layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from npulab.captures.capture import Capture
from npulab.captures.target import Item, Lifted, Unsupported
from npulab.npus.kit.fields import expect
from npulab.npus.kit.layers import behind, padding_names
from npulab.npus.kit.memory import buffer_of
from npulab.npus.kit.numbers import ceil_div
from npulab.npus.vivante import coefficients
from npulab.npus.vivante.coefficients import Coefficients, Geometry
from npulab.npus.vivante.facts import FACTS, HWC_TENSORS, INT8_MODEL, NN_ALONE, ODD_STRIDE2_TILE, PAD_JOB, UNCOVERED
from npulab.npus.vivante.lowering import coded_chip, planned
from npulab.npus.vivante.moves import Moved, Sides, moved_by, moved_input, moves_of
from npulab.npus.vivante.plans import join_planes, plan
from npulab.npus.vivante.words import (
    FIRST_PIXEL,
    MULTIPLIERS,
    folded_zero,
    generation,
    multiplier_of,
    ratio_of,
    tiling,
)
from npulab.quant.layers import Conv2D
from npulab.quant.rules import QuantParams

# rounding by rounding_mode; every capture has 1, and that 0 is toward zero is a guess from the
# vendor's API
ROUNDING = {1: MULTIPLIERS["nn_v7"].ties, 0: "toward-zero"}
Facts = Mapping[str, int]


def lift(capture: Capture) -> Lifted:
    """The unlowered layer of an NN job and the TP jobs around it, its input and captured output.

    Words and TP jobs fix the arithmetic; where they leave several readings (stride 2 with padding
    whose TP jobs were not recorded, 1x1 on one channel), ``capture.parameters`` decide if they are
    there, else the plainest reading does. int8 models come back as uint8, fully connected layers
    and additions as the convolution that ran. Raises ValueError where words or coefficients make no
    layer, Unsupported without coefficients.
    """
    facts, v, blocks = coded_chip(capture.chip), _nn_values(capture), [job.block for job in capture.jobs]
    if blocks.count("NN") != 1 or {*blocks} - {"NN", "TP"}:
        raise Unsupported(f"capture {capture.name}: got {_told_jobs(capture)}, a layer is lifted from one NN job and "
                           "the TP jobs around it so far")
    known, moved = _known(capture.parameters), moves_of(capture)
    _liftable(v, facts)
    _packed(v, moved)
    geometry = geometry_of(v, facts)
    content = coefficients.decode(buffer_of(capture, "coefficients"), geometry)
    if not v["no_z_offset"]:
        _offsets(content, geometry)
    weights = content.weights[:geometry.channels]
    sums = (weights.astype(np.int64) - geometry.zero_point).sum((1, 2, 3))
    bias = (content.bias[:geometry.channels] + folded_zero(facts, v["in_image_border_const"]) * sums).astype(np.int32)
    planar = None if moved.image and "tensor" in capture.buffers else _image(capture, v)
    layer, border = _unlowered(v, weights, bias, known, planar, moved, facts)
    x = None if planar is None else _input(planar, layer, border)
    if moved.image is not None and "tensor" in capture.buffers:
        x = moved_input(capture, moved)
    if moved.border is not None:
        layer, x = _without(moved.border, layer, x, planar is not None)
    seen = {INT8_MODEL} if _signed(weights, content.symbols) else set()
    layer = _with_habits(layer, v, moved, facts, seen)
    _refuse_other_moves(capture, layer, facts)
    return Lifted(layer, x, _output(capture, v, moved))


def rule_of(capture: Capture) -> str:
    """The rounding rule that a capture's rounding_mode asks for.

    Raises ValueError for an unknown mode, Unsupported without an NN job.
    """
    mode = _nn_values(capture)["rounding_mode"]
    if mode not in ROUNDING:
        raise ValueError(f"lift for vivante: block NN field rounding_mode: got {mode}, allowed is one of "
                         f"{list(ROUNDING)}")
    family = MULTIPLIERS[generation(FACTS.features(capture.chip))].name.partition(":")[0]
    return f"{family}:{ROUNDING[mode]}"


def recode(capture: Capture) -> bytes:
    """The coefficient buffer decoded and encoded again; Unsupported without one or without an NN
    job."""
    geometry = geometry_of(_nn_values(capture), coded_chip(capture.chip))
    content = coefficients.decode(buffer_of(capture, "coefficients"), geometry)
    return coefficients.encode(content, geometry)


def explain(capture: Capture) -> list[Item]:
    """Every bit of the coefficient buffer, as items in order; Unsupported without one or without
    an NN job."""
    geometry = geometry_of(_nn_values(capture), coded_chip(capture.chip))
    return list(coefficients.walk(buffer_of(capture, "coefficients"), geometry))


def geometry_of(values: Mapping[str, Any], facts: Facts) -> Geometry:
    """The coefficient buffer's geometry, from decoded NN words; ValueError for a size of 0."""
    v = values
    for name in ("out_image_z_size", "kernel_z_size", "kernel_xy_size", "kernel_y_size", "kernels_per_core"):
        if v[name] == 0:
            raise ValueError(f"block NN field {name}: got 0, allowed is at least 1")
    blocks = ceil_div(ceil_div(v["out_image_z_size"], facts["nn_cores"]), v["kernels_per_core"])
    return Geometry(facts["nn_cores"], v["out_image_z_size"], v["kernel_z_size"], v["kernel_y_size"],
                    v["kernel_xy_size"], blocks, v["coef_zero_point"],
                    v["out_image_x_stride"] * v["out_image_y_stride"], v["in_image_x_size"],
                    depthwise=bool(v["depthwise"] if facts.get("native_depthwise") else v["pooling"] == FIRST_PIXEL),
                    huffman=bool(facts.get("huffman_coefficients")))


def _nn_values(capture: Capture) -> dict[str, Any]:
    """Fields of the NN job, the first of several, as meant."""
    words = next((job.words for job in capture.jobs if job.block == "NN"), None)
    if words is None:
        raise Unsupported(f"capture {capture.name}: got {_told_jobs(capture)}, allowed are captures with an NN job")
    return capture.maps["NN"].decode(words)


def _told_jobs(capture: Capture) -> str:
    return "jobs " + ", ".join(job.block for job in capture.jobs) if capture.jobs else "no jobs"


def _refuse_other_moves(capture: Capture, layer: Conv2D, facts: Facts) -> None:
    """Refuse TP jobs that are not those which the layer needs, wherever its tensors lie."""
    registers = capture.maps["TP"]
    tasks = [task for task, job in enumerate(capture.jobs) if job.block == "TP"]
    got = {task: registers.decode(capture.jobs[task].words) for task in tasks}
    conv, low, moves = planned(layer, facts, layer.habits)
    for move in moves if tasks else []:
        first = got[tasks[0]] if tasks else {}
        where = {end: first.get(f"{side}_image_base_address", 0)
                 for side, end in (("in", move.source), ("out", move.target))}
        for part in moved_by(move, conv, low, facts, where):
            if not tasks:
                raise ValueError(f"lift for vivante: a {move.kind} job is missing")
            task = tasks.pop(0)
            want = registers.decode(registers.encode(part))
            wrong = next((name for name, value in want.items() if got[task][name] != value), None)
            if wrong:
                raise ValueError(f"lift for vivante: task {task}, a {move.kind} job, field {wrong}: got "
                                 f"{got[task][wrong]}, allowed with {layer} is {want[wrong]}")
    if tasks:
        raise ValueError(f"lift for vivante: task {tasks[0]} is a TP job that {layer} does not need")


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


def _liftable(v: Mapping[str, Any], facts: Facts) -> None:
    """Refuse words that say something else than a layer that is covered."""
    allowed = {**dict.fromkeys(UNCOVERED, (0,)), "no_z_offset": (int(bool(facts.get("nn_v8"))),),
               "depthwise": (0, 1) if facts.get("native_depthwise") else (0,), "pooling": (0, FIRST_PIXEL)}
    expect(v, allowed, "lift for vivante: block NN field {name}: got {got}, allowed is {allowed}")
    for name in ("out_image_tile_x_size", "out_image_tile_y_size"):
        if v[name] == 0:
            raise ValueError(f"lift for vivante: block NN field {name}: got 0, allowed is at least 1")
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


def _packed(v: Mapping[str, Any], moved: Moved) -> None:
    """Refuse gaps in an image that TP jobs write, or in an output that they read: they know
    none."""
    tensors = [("in_image", moved.image is not None, (v["in_image_y_size"], v["in_image_x_size"])),
               ("out_image", moved.hwc_out, _output_size(v))]
    for name, is_moved, sizes in tensors:
        for axis, size in zip("yx", sizes, strict=True):
            if is_moved and v[f"{name}_{axis}_stride"] != size:
                raise ValueError(f"lift for vivante: block NN field {name}_{axis}_stride: got "
                                 f"{v[f'{name}_{axis}_stride']}, allowed of a tensor that TP jobs move is {size}")


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
               planar: np.ndarray | None, moved: Moved, facts: Facts) -> tuple[Conv2D, tuple[int, int] | None]:
    """The layer, and for split planes the (top, left) border that the joined input carries."""
    common: dict[str, Any] = {"bias": bias, "activation": "relu" if v["relu"] else None,
                              **_quantization(v, known, facts)}
    split = moved.split is not None or (moved.image is None and not v["depthwise"] and _is_split(v, weights, known))
    if v["pooling"] == 0 and split:
        return _strided(v, weights, known, common, planar, moved, facts)
    plainest = _at_once(v, weights, known, common, facts)
    may_be_split = moved.image is None and not v["depthwise"] and v["pooling"] == 0 and len(weights[0]) % 4 == 0
    if may_be_split and "stride_h" not in known and not _agrees(plainest, v, facts):
        layer, border = _strided(v, weights, known, common, planar, moved, facts)
        if _agrees(layer, v, facts):
            return layer, border
    return plainest, None


def _agrees(layer: Conv2D, v: Mapping[str, Any], facts: Facts) -> bool:
    """Whether a layer is lowered to the sizes, offsets, tile and kernels per core that the words
    have."""
    low = plan(layer, facts)
    share = ceil_div(low.channels, facts["nn_cores"])
    tiled = [(tile[0], ceil_div(share, blocks))
             for tile, blocks in (tiling(low, facts, habits) for habits in (set[str](), {ODD_STRIDE2_TILE}))]
    sizes, pad = (v["in_image_y_size"], v["in_image_x_size"]), (-v["in_image_y_offset"], -v["in_image_x_offset"])
    return (low.rows, low.columns, low.pad) == (*sizes, pad) \
        and (v["out_image_tile_y_size"], v["kernels_per_core"]) in tiled


def _at_once(v: Mapping[str, Any], weights: np.ndarray, known: Mapping[str, Any], common: Mapping[str, Any],
             facts: Facts) -> Conv2D:
    """The layer whose planes are not split: at stride 1, or pooled."""
    zero, out, sizes = v["coef_zero_point"], _output_size(v), (v["in_image_y_size"], v["in_image_x_size"])
    stride = 2 if v["pooling"] == FIRST_PIXEL else 1
    one_plane = v["kernel_z_size"] == 1  # not only each kernel's, as of a native depthwise layer
    if one_plane and _is_pointwise(weights, zero, [ceil_div(size, stride) for size in sizes] == list(out), known):
        weights = weights[:, :, :1, :1]
    depthwise = bool(v["depthwise"])
    if depthwise:
        weights = weights.transpose(1, 0, 2, 3)
    elif not facts.get("native_depthwise") \
            and _is_depthwise(weights, zero, stride == 2 and weights.shape[2:] != (1, 1), known):
        depthwise, weights = True, weights[range(len(weights)), range(len(weights))][None]
    offsets = -v["in_image_y_offset"], -v["in_image_x_offset"]
    shape, border = _border(sizes, offsets, out, weights.shape[2:], stride)
    layer = Conv2D(weights.transpose(0, 2, 3, 1), input_shape=(*shape, v["kernel_z_size"]),
                   stride=(stride, stride), padding=border, depthwise=depthwise, **common)
    return _named(layer, known, lambda one: not plan(one, facts).split)


def _strided(v: Mapping[str, Any], weights: np.ndarray, known: Mapping[str, Any], common: Mapping[str, Any],
             planar: np.ndarray | None, moved: Moved, facts: Facts) -> tuple[Conv2D, tuple[int, int]]:
    """A stride 2 layer from split planes: as known, if that gives these sizes and the planes hold
    nothing but the zero point around its image, else as TP jobs say, else without a border
    before."""
    out, sizes = _output_size(v), (v["in_image_y_size"], v["in_image_x_size"])
    if weights.shape[1] % 4:
        raise ValueError(f"lift for vivante: block NN field kernel_z_size: got {weights.shape[1]}, allowed with planes "
                         "that TP jobs split is a multiple of 4")
    zero, joined = v["coef_zero_point"], join_planes(weights)

    def fits(layer: Conv2D) -> bool:
        low = plan(layer, facts)
        return low.split and (low.output, (low.rows, low.columns)) == (out, sizes)

    plainest = None
    for kernel in product(_used(joined, 2, known.get("kernel_h"), zero), _used(joined, 3, known.get("kernel_w"), zero)):
        ohwi = joined[:, :, :kernel[0], :kernel[1]].transpose(0, 2, 3, 1)
        for shape, border, name in _places(out, sizes, kernel, known, moved):
            try:
                dense = Conv2D(ohwi, input_shape=(*shape, ohwi.shape[3]), stride=(2, 2), padding=border, **common)
            except ValueError:
                continue  # what is known is not what ran
            for layer in (_as_depthwise(dense, zero, known, facts), dense):
                layer = _named(layer, name, fits)
                before = layer.pads[0][0], layer.pads[1][0]
                if fits(layer) and _only_fill_around(planar, layer, before):
                    return layer, before
            plainest = plainest or (_named(dense, name, fits), (dense.pads[0][0], dense.pads[1][0]))
    if plainest is None:
        raise ValueError(f"lift for vivante: got planes of {sizes} for an output of {out}, which no layer of stride 2 "
                         f"with a kernel of up to {joined.shape[2:]} makes")
    return plainest


def _places(out: tuple[int, int], sizes: tuple[int, int], kernel: tuple[int, ...], known: Mapping[str, Any],
            moved: Moved) -> Iterator[tuple[tuple[int, int], Sides, Mapping[str, Any]]]:
    """(input sizes, border, what is known of the border's name) that split planes can come from."""
    if {"input_h", "input_w", "pad_top", "pad_bottom", "pad_left", "pad_right"} <= set(known):
        shape = known["input_h"], known["input_w"]
        border = (known["pad_top"], known["pad_bottom"]), (known["pad_left"], known["pad_right"])
        if moved.split is None or (moved.split_size, moved.split) == (shape, (border[0][0], border[1][0])):
            yield shape, border, known
    if moved.split is None:
        shape, border = _border((2 * sizes[0], 2 * sizes[1]), (0, 0), out, kernel, 2)
    else:
        shape = moved.split_size
        below, right = map(behind, shape, out, kernel, (2, 2), moved.split)
        border = (moved.split[0], max(below, 0)), (moved.split[1], max(right, 0))
    yield shape, border, {}


def _as_depthwise(layer: Conv2D, zero: int, known: Mapping[str, Any], facts: Facts) -> Conv2D:
    """The depthwise layer that a dense one stands for, if it does."""
    weights = layer.weights.transpose(0, 3, 1, 2)
    if facts.get("native_depthwise") or not _is_depthwise(weights, zero, False, known):
        return layer
    channels = range(len(weights))
    return replace(layer, weights=weights[channels, channels].transpose(1, 2, 0)[None], depthwise=True)


def _only_fill_around(planar: np.ndarray | None, layer: Conv2D, before: tuple[int, int]) -> bool:
    """Whether joined planes hold the input's zero point wherever the layer's image does not lie."""
    if planar is None:
        return True
    around = join_planes(planar).copy()
    around[:, before[0]:before[0] + layer.input_shape[0], before[1]:before[1] + layer.input_shape[1]] \
        = layer.input_q.zero_point
    return bool(np.all(around == layer.input_q.zero_point))


def _used(joined: np.ndarray, axis: int, known: int | None, zero: int) -> list[int]:
    """Rows or columns that a joined kernel may have: as known, else one less than there are, if
    what is cut off is empty, else all."""
    size = joined.shape[axis]
    return [kernel for kernel in dict.fromkeys((known or size - 1, size - 1, size))
            if kernel > 0 and size - 2 < kernel <= size and np.all(joined.take(range(kernel, size), axis) == zero)]


def _border(sizes: tuple[int, ...], before: tuple[int, ...], out: tuple[int, ...], kernel: tuple[int, ...], stride: int,
            ) -> tuple[tuple[int, int], Sides]:
    """(input sizes, padding) for windows from ``before`` the image on that give ``out`` outputs:
    what no window can reach is cut off, what windows reach behind the image is border."""
    shape, border = [], []
    for size, top, o, k in zip(sizes, before, out, kernel, strict=True):
        reach = behind(size, o, k, stride, top)
        border.append((top, max(reach, 0)))
        shape.append(size + min(reach + stride - 1, 0))
    if min(shape) < 1:
        raise ValueError(f"lift for vivante: got an output of {tuple(out)} from an input of {tuple(sizes)}, which "
                         "no window reaches")
    return (shape[0], shape[1]), (border[0], border[1])


def _named(layer: Conv2D, known: Mapping[str, Any], fits: Callable[[Conv2D], bool]) -> Conv2D:
    """The same layer with its padding by name, where a name gives the same border; the first that
    fits."""
    names = padding_names(layer, (known.get("padding"), "valid", "same"))
    options = [*(replace(layer, padding=name) for name in names), layer]
    return next((one for one in options if fits(one)), options[0])


def _is_pointwise(weights: np.ndarray, zero: int, full: bool, known: Mapping[str, Any]) -> bool:
    """Whether a 2x2 kernel on one plane stands for 1x1: its other cells are empty, and it is known
    to or the output is as large as a 1x1 kernel makes it."""
    if weights.shape[1:] != (1, 2, 2) or np.any(weights.reshape(-1, 4)[:, 1:] != zero):
        return False
    kernel = known.get("kernel_h"), known.get("kernel_w")
    return full if None in kernel else kernel == (1, 1)


def _is_split(v: Mapping[str, Any], weights: np.ndarray, known: Mapping[str, Any]) -> bool:
    """Whether planes are a split stride 2 image: known, or an odd kernel's missing cells are all
    empty."""
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
    """Whether all kernels off the diagonal are empty, and it is known to be depthwise, or only such
    a layer is pooled, or those on the diagonal are not empty."""
    outputs, planes_in = weights.shape[:2]
    used = np.any(weights != zero, axis=(2, 3))
    if outputs != planes_in or np.any(used & ~np.eye(outputs, dtype=bool)):
        return False
    if "depthwise" in known:
        return bool(known["depthwise"])
    return pooled or (outputs > 1 and bool(np.all(used.diagonal())))


def _quantization(v: Mapping[str, Any], known: Mapping[str, Any], facts: Facts) -> dict[str, QuantParams]:
    """The known scales if they give these words, else all of the scale in the weights."""
    want = v["post_multiplier"], v["post_shift"]
    scales: list[Any] = [known.get(name) for name in ("input_scale", "weight_scale", "output_scale")]
    if not all(isinstance(scale, float) and scale > 0 for scale in scales) or multiplier_of(facts, *scales) != want:
        scales = [1.0, ratio_of(facts, *want), 1.0]
    zeros = v["in_image_border_const"], v["coef_zero_point"], v["out_zero_point"]
    return {name: QuantParams(scale, zero) for name, scale, zero
            in zip(("input_q", "weight_q", "output_q"), scales, zeros, strict=True)}


def _signed(weights: np.ndarray, symbols: tuple[int, ...]) -> bool:
    """Whether a symbol map is the one for an int8 model and not that for uint8."""
    return bool(symbols) and symbols != coefficients.choose_symbols(weights) \
        and symbols == coefficients.choose_symbols(weights - np.uint8(128))


def _with_habits(layer: Conv2D, v: Mapping[str, Any], moved: Moved, facts: Facts, seen: set[str]) -> Conv2D:
    """Note the driver's habits, those ``seen`` and those that the jobs show."""
    seen = seen | ({HWC_TENSORS} if moved.hwc_in or moved.hwc_out else set())
    seen |= {PAD_JOB} if moved.border is not None else set()
    _, low, _ = planned(layer, facts, seen)
    seen |= {NN_ALONE} if low.split and moved.split is None else set()
    even, odd = (tiling(low, facts, habits)[0][0] for habits in (set[str](), {ODD_STRIDE2_TILE}))
    if v["out_image_tile_y_size"] == odd != even:
        seen.add(ODD_STRIDE2_TILE)
    return replace(layer, habits=frozenset(seen))


def _without(border: Sides, layer: Conv2D, x: np.ndarray | None, padded: bool) -> tuple[Conv2D, np.ndarray | None]:
    """The layer as it was before a job added its border, and its input where that is still the
    ``padded`` one."""
    (top, bottom), (left, right) = border
    height, width, channels = layer.input_shape
    shape = height - top - bottom, width - left - right, channels
    if layer.pads != ((0, 0), (0, 0)) or min(shape) < 1:
        raise ValueError(f"lift for vivante: got a border of {border} from a job and one of {layer.pads}, allowed is "
                         "one of them")
    if x is not None and padded:
        x = x[top:top + shape[0], left:left + shape[1]]
    return replace(layer, input_shape=shape, padding=border), x


def _image(capture: Capture, v: Mapping[str, Any]) -> np.ndarray | None:
    """The planes that the unit reads, ``(planes, rows, columns)``."""
    if "input" not in capture.buffers:
        return None
    planar = _planar(capture, "input", v["kernel_z_size"], v["in_image_y_stride"], v["in_image_x_stride"])
    return planar[:, :v["in_image_y_size"], :v["in_image_x_size"]]


def _input(planar: np.ndarray, layer: Conv2D, border: tuple[int, int] | None) -> np.ndarray:
    """The layer's input ``(H, W, C)``; ``border`` is what split planes hold above and left of
    it."""
    height, width, _ = layer.input_shape
    if border is not None:
        planar = join_planes(planar)[:, border[0]:, border[1]:]
        short = max(height - planar.shape[1], 0), max(width - planar.shape[2], 0)
        # rows that no window reaches were not handed to the unit
        planar = np.pad(planar, [(0, 0), (0, short[0]), (0, short[1])],
                        constant_values=layer.input_q.zero_point)
    return planar[:, :height, :width].transpose(1, 2, 0)


def _output(capture: Capture, v: Mapping[str, Any], moved: Moved) -> np.ndarray | None:
    if "output" not in capture.buffers:
        return None
    rows, columns = _output_size(v)
    if moved.hwc_out:
        shape = rows, columns, v["out_image_z_size"]
        data, need = capture.buffers["output"], rows * columns * shape[2]
        if len(data) < need:
            raise ValueError(f"capture {capture.name}: buffer 'output' has {len(data)} bytes, its words say "
                             f"{rows} x {columns} x {shape[2]}, {need} bytes")
        return np.frombuffer(data, np.uint8, need).reshape(shape)
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
