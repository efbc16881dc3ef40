"""From what a driver sent back to the layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from npulab.captures.target import Item, Lifted, Unsupported
from npulab.npus.kit import Capture, behind, buffer_of, ceil_div, expect, padding_names, refuse_if
from npulab.npus.vivante import coefficients, words
from npulab.npus.vivante.coefficients import Coefficients, Geometry
from npulab.npus.vivante.facts import CHIPS, EXPECTED, FACTS, expected, tensor_bytes
from npulab.npus.vivante.lowering import coded_chip, planned
from npulab.npus.vivante.moves import Moved, Sides, moved_by, moved_input, moves_of, tensor_of
from npulab.npus.vivante.plans import join_planes, plan
from npulab.npus.vivante.quirks import HWC_TENSORS, INT8_MODEL, NN_ALONE, ODD_STRIDE2_TILE, PAD_JOB
from npulab.npus.vivante.words import ratio_of
from npulab.quant.layers import Add, Conv2D, FullyConnected, Layer, QuantParams, per_channel

# rounding by rounding_mode; every capture has 1, and that 0 is toward zero is a guess from the
# vendor's API
ROUNDING = {1: words.MULTIPLIERS["nn_v7"].ties, 0: "toward-zero"}
TENSORS = "input", "weight", "output"
# of recorded parameters the type and the least value
KINDS: dict[str, tuple[type, Any]] = {
    **dict.fromkeys(
        (f"{name}_{axis}" for name in ("input", "kernel", "stride") for axis in "hw"), (int, 1)
    ),
    **dict.fromkeys(("pad_top", "pad_bottom", "pad_left", "pad_right"), (int, 0)),
    **dict.fromkeys((f"{name}_scale" for name in TENSORS), (float, 0.0)),
    "padding": (str, ""),
    "depthwise": (bool, False),
}
LEAST_OFFSET = -16  # of a window, on any chip
REFUSED = "lift for vivante: block NN field {name}: got {got}, allowed is {allowed}"
Facts = Mapping[str, int]


@dataclass(frozen=True, eq=False)
class Reading:
    """What is read of an NN job before it is known which layer it makes.

    ``v`` are its fields; ``weights`` ``(channels, planes, kernel_h, kernel_w)`` and ``bias`` those
    of the unit; ``planar`` the planes that it reads, if they were recorded and no job makes them of
    a recorded tensor; ``known`` the recorded parameters of the layer.
    """

    v: Mapping[str, Any]
    facts: Facts
    moved: Moved
    known: Mapping[str, Any]
    weights: np.ndarray
    bias: np.ndarray
    planar: np.ndarray | None

    @property
    def zero(self) -> int:
        return int(self.v["coef_zero_point"])

    @property
    def sizes(self) -> tuple[int, int]:
        """(rows, columns) of the planes that the unit reads."""
        return self.v["in_image_y_size"], self.v["in_image_x_size"]

    @property
    def output(self) -> tuple[int, int]:
        return _output_size(self.v)

    def layer(
        self,
        weights: np.ndarray,
        shape: tuple[int, int],
        stride: int,
        border: Sides,
        depthwise: bool = False,
    ) -> Conv2D:
        """A layer of these weights ``(O, C, kernel_h, kernel_w)`` and (H, W), with the activation
        and quantization that the words say; the known scales if they give these words, else all
        of the scale in the weights."""
        v, want = self.v, (self.v["post_multiplier"], self.v["post_shift"])
        scales: list[Any] = [self.known.get(f"{name}_scale") for name in TENSORS]
        if not all(scales) or words.multiplier_of(self.facts, *scales) != want:
            scales = [1.0, words.ratio_of(self.facts, *want), 1.0]
        input_q, weight_q, output_q = map(
            QuantParams, scales, (v["in_image_border_const"], self.zero, v["out_zero_point"])
        )
        ohwi = weights.transpose(0, 2, 3, 1)
        return Conv2D(
            ohwi,
            self.bias,
            (*shape, v["kernel_z_size"] if depthwise else ohwi.shape[3]),
            (stride, stride),
            border,
            depthwise=depthwise,
            input_q=input_q,
            weight_q=weight_q,
            output_q=output_q,
            activation="relu" if v["relu"] else None,
        )


def lift(capture: Capture) -> Lifted:
    """The unlowered layer of an NN job and the TP jobs around it, its input and captured output.

    Words and TP jobs fix the arithmetic; where they leave several readings (stride 2 with padding
    whose TP jobs were not recorded, 1x1 on one channel), ``capture.parameters`` decide if they are
    there, else the plainest reading does. int8 models come back as uint8, fully connected layers
    and additions as the convolution that ran. Raises ValueError where words or coefficients make no
    layer, Unsupported without coefficients.
    """
    facts, v, blocks = (
        coded_chip(capture.chip),
        _nn_values(capture),
        [job.block for job in capture.jobs],
    )
    if blocks.count("NN") != 1 or {*blocks} - {"NN", "TP"}:
        raise Unsupported(
            f"capture {capture.name}: got {_job_names(capture)}, a layer is lifted from one NN job "
            "and "
            "the TP jobs around it so far"
        )
    moved = moves_of(capture)
    _liftable(v, facts)
    _packed(v, moved)
    geometry = geometry_of(v, facts)
    content = coefficients.decode(buffer_of(capture, "coefficients"), geometry)
    if not v["no_z_offset"]:
        _offsets(content, geometry)
    weights = content.weights[: geometry.channels]
    sums = (weights.astype(np.int64) - geometry.zero_point).sum((1, 2, 3))
    zero = words.folded_zero(facts, v["in_image_border_const"])
    bias = (content.bias[: geometry.channels] + zero * sums).astype(np.int32)
    before = None
    if moved.image and "tensor" in capture.buffers:
        before = moved_input(capture, moved)
    planar = None
    if before is None:
        planar = _image(capture, v)
    known = {name: value for name, value in capture.parameters.items() if _is_known(name, value)}
    layer, border = _unlowered(Reading(v, facts, moved, known, weights, bias, planar))
    if planar is None:
        x = before
    else:
        x = _input(planar, layer, border)
    if moved.border is not None:
        layer, x = _without(moved.border, layer, x, planar is not None)
    if _signed(weights, content.symbols):
        seen = {INT8_MODEL}
    else:
        seen = set()
    layer = _with_quirks(layer, v, moved, facts, seen)
    _refuse_other_moves(capture, layer, facts)
    return Lifted(layer, x, _output(capture, v, moved))


def rule_of(capture: Capture) -> str:
    """The rounding rule that a capture's rounding_mode asks for.

    Raises ValueError for an unknown mode, Unsupported without an NN job.
    """
    mode = _nn_values(capture)["rounding_mode"]
    expect({"rounding_mode": mode}, {"rounding_mode": ROUNDING}, REFUSED)
    family = words.MULTIPLIERS[words.generation(FACTS.features(capture.chip))].name.partition(":")[
        0
    ]
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
    expect(v, EXPECTED["geometry"], "block NN field {name}: got {got}, allowed is {allowed}")
    blocks = ceil_div(ceil_div(v["out_image_z_size"], facts["nn_cores"]), v["kernels_per_core"])
    return Geometry(
        facts["nn_cores"],
        v["out_image_z_size"],
        v["kernel_z_size"],
        v["kernel_y_size"],
        v["kernel_xy_size"],
        blocks,
        v["coef_zero_point"],
        v["out_image_x_stride"] * v["out_image_y_stride"],
        v["in_image_x_size"],
        depthwise=bool(
            v["depthwise"] if facts.get("native_depthwise") else v["pooling"] == words.FIRST_PIXEL
        ),
        huffman=bool(facts.get("huffman_coefficients")),
    )


def _nn_values(capture: Capture) -> dict[str, Any]:
    """Fields of the NN job, the first of several, as meant."""
    nn = next((job.words for job in capture.jobs if job.block == "NN"), None)
    if nn is None:
        raise Unsupported(
            f"capture {capture.name}: got {_job_names(capture)}, allowed are captures with an NN "
            "job"
        )
    return capture.maps["NN"].decode(nn)


def _job_names(capture: Capture) -> str:
    if capture.jobs:
        return "jobs " + ", ".join(job.block for job in capture.jobs)
    return "no jobs"


def _refuse_other_moves(capture: Capture, layer: Conv2D, facts: Facts) -> None:
    """Refuse TP jobs that are not those which the layer needs, wherever its tensors lie."""
    registers = capture.maps["TP"]
    left = [
        (task, registers.decode(job.words))
        for task, job in enumerate(capture.jobs)
        if job.block == "TP"
    ]
    conv, low, moves = planned(layer, facts, layer.driver_quirks)
    for move in moves if left else []:
        first = {}
        if left:
            first = left[0][1]
        where = {
            move.source: first.get("in_image_base_address", 0),
            move.target: first.get("out_image_base_address", 0),
        }
        for part in moved_by(move, conv, low, facts, where):
            if not left:
                raise ValueError(f"lift for vivante: a {move.kind} job is missing")
            task, got = left.pop(0)
            want = registers.decode(registers.encode(part))
            wrong = next((name for name, value in want.items() if got[name] != value), None)
            if wrong:
                raise ValueError(
                    f"lift for vivante: task {task}, a {move.kind} job, field {wrong}: "
                    f"got {got[wrong]}, allowed with {layer} is {want[wrong]}"
                )
    if left:
        raise ValueError(
            f"lift for vivante: task {left[0][0]} is a TP job that {layer} does not need"
        )


def _is_known(name: str, value: Any) -> bool:
    """Whether a recorded parameter is of the kind that it should be."""
    if name not in KINDS:
        return False
    kind, least = KINDS[name]
    sound = isinstance(value, kind) and isinstance(value, bool) == (kind is bool)
    return sound and bool(value >= least)


def _liftable(v: Mapping[str, Any], facts: Facts) -> None:
    """Refuse words that say something else than a layer that is covered."""
    expect(v, expected(facts), REFUSED)
    for axis in "xy":
        expect(
            v,
            {
                f"in_image_{axis}_offset": range(LEAST_OFFSET, 1),
                f"in_image_{axis}_size": range(1, v[f"in_image_{axis}_stride"] + 1),
            },
            REFUSED,
        )
    size, pitches = _output_size(v), (v["out_image_y_stride"], v["out_image_x_stride"])
    if not all(0 < length <= room for length, room in zip(size, pitches, strict=True)):
        raise ValueError(
            f"lift for vivante: output of {size} rows and columns, allowed is up to "
            f"its strides {pitches[0]} and {pitches[1]}"
        )


def _packed(v: Mapping[str, Any], moved: Moved) -> None:
    """Refuse gaps in an image that TP jobs write, or in an output that they read: the jobs have no
    pitch for them."""
    rows, columns = _output_size(v)
    if moved.image is None:
        packed = {}
    else:
        packed = {
            "in_image_y_stride": (v["in_image_y_size"],),
            "in_image_x_stride": (v["in_image_x_size"],),
        }
    if moved.hwc_out:
        packed |= {"out_image_y_stride": (rows,), "out_image_x_stride": (columns,)}
    expect(v, packed, REFUSED.replace("allowed", "allowed of a tensor that TP jobs move", 1))


def _output_size(v: Mapping[str, Any]) -> tuple[int, int]:
    """(rows, columns) that leave the unit: of each 2x2 one where it pools."""
    if v["pooling"] == words.FIRST_PIXEL:
        step = 2
    else:
        step = 1
    return ceil_div(v["out_image_y_size"], step), ceil_div(v["out_image_x_size"], step)


def _offsets(content: Coefficients, geometry: Geometry) -> None:
    """Refuse an output plane that is not behind the one before it."""
    want = np.arange(geometry.channels) * geometry.plane_bytes
    wrong = np.flatnonzero(content.offsets[: geometry.channels] != want)
    if len(wrong):
        raise ValueError(
            f"coefficients: the output offset of channel {wrong[0]} is "
            f"{content.offsets[wrong[0]]}, "
            f"allowed is {want[wrong[0]]}"
        )


def _unlowered(r: Reading) -> tuple[Conv2D, tuple[int, int] | None]:
    """The layer, and for split planes the (top, left) border that the joined input carries."""
    pooled, split = r.v["pooling"] != 0, r.moved.split is not None
    may_be_split = r.moved.image is None and not r.v["depthwise"]
    if not pooled and (split or (may_be_split and _is_split(r))):
        return _strided(r)
    plainest = _at_once(r)
    if (
        may_be_split
        and not pooled
        and r.weights.shape[1] % 4 == 0
        and "stride_h" not in r.known
        and not _agrees(plainest, r)
    ):
        layer, border = _strided(r)
        if _agrees(layer, r):
            return layer, border
    return plainest, None


def _agrees(layer: Conv2D, r: Reading) -> bool:
    """Whether a layer is lowered to the sizes, offsets, tile and kernels per core that the words
    have."""
    v, low = r.v, plan(layer, r.facts)
    share = ceil_div(low.channels, r.facts["nn_cores"])
    tiled = [
        (tile[0], ceil_div(share, blocks))
        for tile, blocks in (
            words.tiling(low, r.facts, quirks) for quirks in (set[str](), {ODD_STRIDE2_TILE})
        )
    ]
    pad = -v["in_image_y_offset"], -v["in_image_x_offset"]
    return ((low.rows, low.columns), low.pad) == (r.sizes, pad) and (
        v["out_image_tile_y_size"],
        v["kernels_per_core"],
    ) in tiled


def _at_once(r: Reading) -> Conv2D:
    """The layer whose planes are not split: at stride 1, or pooled."""
    v, weights, depthwise = r.v, r.weights, bool(r.v["depthwise"])
    if v["pooling"] == words.FIRST_PIXEL:
        stride = 2
    else:
        stride = 1
    # one plane in all, not only of each kernel as in a native depthwise layer
    if v["kernel_z_size"] == 1 and _is_pointwise(r, stride):
        weights = weights[:, :, :1, :1]
    if depthwise:
        weights = weights.transpose(1, 0, 2, 3)
    offsets = -v["in_image_y_offset"], -v["in_image_x_offset"]
    shape, border = _border(r.sizes, offsets, r.output, weights.shape[2:], stride)
    layer = r.layer(weights, shape, stride, border, depthwise)
    layer = _as_depthwise(layer, r, stride == 2 and layer.kernel != (1, 1))
    return _named(layer, r.known, lambda option: not plan(option, r.facts).split)


def _strided(r: Reading) -> tuple[Conv2D, tuple[int, int]]:
    """A stride 2 layer from split planes: as known, if that gives these sizes and the planes hold
    nothing but the zero point around its image, else as TP jobs say, else without a border
    before."""
    if r.weights.shape[1] % 4:
        raise ValueError(
            REFUSED.format(
                name="kernel_z_size",
                got=r.weights.shape[1],
                allowed="a multiple of 4, with planes that TP jobs split",
            )
        )
    joined = join_planes(r.weights)

    def fits(layer: Conv2D) -> bool:
        low = plan(layer, r.facts)
        return low.split and (low.output, (low.rows, low.columns)) == (r.output, r.sizes)

    plainest = None
    for kernel in product(
        _used(joined, 2, r.known.get("kernel_h"), r.zero),
        _used(joined, 3, r.known.get("kernel_w"), r.zero),
    ):
        for shape, border, name in _places(r, kernel):
            try:
                dense = r.layer(joined[:, :, : kernel[0], : kernel[1]], shape, 2, border)
            except ValueError:
                continue  # what is known is not what ran
            for layer in (_as_depthwise(dense, r, False), dense):
                layer = _named(layer, name, fits)
                before = layer.pads[0][0], layer.pads[1][0]
                if fits(layer) and _only_fill_around(r.planar, layer, before):
                    return layer, before
            plainest = plainest or (layer, before)
    if plainest is None:
        raise ValueError(
            f"lift for vivante: got planes of {r.sizes} for an output of {r.output}, "
            f"which no layer of stride 2 with a kernel of at most {joined.shape[2:]} "
            "makes"
        )
    return plainest


def _places(
    r: Reading,
    kernel: tuple[int, ...],
) -> Iterator[tuple[tuple[int, int], Sides, Mapping[str, Any]]]:
    """(input sizes, border, what is known of the border's name) that split planes can come from."""
    known, split = r.known, r.moved.split
    if {"input_h", "input_w", "pad_top", "pad_bottom", "pad_left", "pad_right"} <= set(known):
        shape = known["input_h"], known["input_w"]
        rows, columns = (
            (known[f"pad_{a}"], known[f"pad_{b}"])
            for a, b in (("top", "bottom"), ("left", "right"))
        )
        if split is None or (r.moved.split_size, split) == (shape, (rows[0], columns[0])):
            yield shape, (rows, columns), known
    if split is None:
        yield *_border((2 * r.sizes[0], 2 * r.sizes[1]), (0, 0), r.output, kernel, 2), {}
    else:
        shape = r.moved.split_size
        below, right = map(behind, shape, r.output, kernel, (2, 2), split)
        yield shape, ((split[0], max(below, 0)), (split[1], max(right, 0))), {}


def _as_depthwise(layer: Conv2D, r: Reading, pooled: bool) -> Conv2D:
    """The depthwise layer that a dense one stands for, if it does: all kernels off the diagonal are
    empty, and it is known to be depthwise, or only such a layer is pooled, or those on the diagonal
    are not empty."""
    outputs, _, _, planes = layer.weights.shape
    used = np.any(layer.weights != r.zero, axis=(1, 2))
    if (
        r.facts.get("native_depthwise")
        or outputs != planes
        or np.any(used & ~np.eye(outputs, dtype=bool))
    ):
        return layer
    if not r.known.get("depthwise", pooled or (outputs > 1 and np.all(used.diagonal()))):
        return layer
    channels = range(outputs)
    weights = layer.weights[channels, :, :, channels].transpose(1, 2, 0)
    return replace(layer, weights=weights[None], depthwise=True)


def _only_fill_around(planar: np.ndarray | None, layer: Conv2D, before: tuple[int, int]) -> bool:
    """Whether joined planes hold the input's zero point wherever the layer's image does not lie."""
    if planar is None:
        return True
    (height, width, _), (top, left) = layer.input_shape, before
    around = join_planes(planar) != layer.input_q.zero_point
    around[:, top : top + height, left : left + width] = False
    return not around.any()


def _used(joined: np.ndarray, axis: int, known: int | None, zero: int) -> list[int]:
    """Rows or columns that a joined kernel may have: as known, else one less than there are, if
    what is cut off is empty, else all."""
    size = joined.shape[axis]
    return [
        kernel
        for kernel in dict.fromkeys((known or size - 1, size - 1, size))
        if kernel > 0
        and size - 2 < kernel <= size
        and np.all(joined.take(range(kernel, size), axis) == zero)
    ]


def _border(
    sizes: tuple[int, ...],
    before: tuple[int, ...],
    out: tuple[int, ...],
    kernel: tuple[int, ...],
    stride: int,
) -> tuple[tuple[int, int], Sides]:
    """(input sizes, padding) for windows from ``before`` the image on that give ``out`` outputs:
    what no window can reach is cut off, what windows reach behind the image is border."""
    shape, border = [], []
    for size, top, o, k in zip(sizes, before, out, kernel, strict=True):
        reach = behind(size, o, k, stride, top)
        border.append((top, max(reach, 0)))
        shape.append(size + min(reach + stride - 1, 0))
    if min(shape) < 1:
        raise ValueError(
            f"lift for vivante: got an output of {tuple(out)} from an input of {tuple(sizes)}, "
            "which "
            "no window reaches"
        )
    return (shape[0], shape[1]), (border[0], border[1])


def _named(layer: Conv2D, known: Mapping[str, Any], fits: Callable[[Conv2D], bool]) -> Conv2D:
    """The same layer with its padding by name, where a name gives the same border; the first that
    fits."""
    names = padding_names(layer, (known.get("padding"), "valid", "same"))
    options = [*(replace(layer, padding=name) for name in names), layer]
    return next((option for option in options if fits(option)), options[0])


def _is_pointwise(r: Reading, stride: int) -> bool:
    """Whether a 2x2 kernel on one plane stands for 1x1: its other cells are empty, and it is known
    to or the output is as large as a 1x1 kernel makes it."""
    if r.weights.shape[1:] != (1, 2, 2) or np.any(r.weights.reshape(-1, 4)[:, 1:] != r.zero):
        return False
    kernel = r.known.get("kernel_h"), r.known.get("kernel_w")
    if None in kernel:
        return r.output == (ceil_div(r.sizes[0], stride), ceil_div(r.sizes[1], stride))
    return kernel == (1, 1)


def _is_split(r: Reading) -> bool:
    """Whether planes are a split stride 2 image: known, or an odd kernel's missing cells are all
    empty."""
    if r.weights.shape[1] % 4 or r.v["in_image_x_offset"] or r.v["in_image_y_offset"]:
        return False
    if "stride_h" in r.known:
        return bool(r.known["stride_h"] == 2)
    if min(r.weights.shape[2:]) < 2:
        return False
    used = join_planes(r.weights) != r.zero
    return bool(used.any()) and not (used[:, :, -1].any() or used[..., -1].any())


def _signed(weights: np.ndarray, symbols: tuple[int, ...]) -> bool:
    """Whether a symbol map is the one for an int8 model and not that for uint8."""
    return (
        bool(symbols)
        and symbols != coefficients.choose_symbols(weights)
        and symbols == coefficients.choose_symbols(weights - np.uint8(128))
    )


def _with_quirks(
    layer: Conv2D, v: Mapping[str, Any], moved: Moved, facts: Facts, seen: set[str]
) -> Conv2D:
    """The layer with the driver's quirks: those ``seen`` and those that the jobs show."""
    seen = seen | ({HWC_TENSORS} if moved.hwc_in or moved.hwc_out else set())
    if moved.border is not None:
        seen |= {PAD_JOB}
    else:
        seen |= set()
    _, low, _ = planned(layer, facts, seen)
    if low.split and moved.split is None:
        seen |= {NN_ALONE}
    else:
        seen |= set()
    even, odd = (
        words.tiling(low, facts, quirks)[0][0] for quirks in (set[str](), {ODD_STRIDE2_TILE})
    )
    if v["out_image_tile_y_size"] == odd != even:
        seen.add(ODD_STRIDE2_TILE)
    return replace(layer, driver_quirks=frozenset(seen))


def _without(
    border: Sides, layer: Conv2D, x: np.ndarray | None, padded: bool
) -> tuple[Conv2D, np.ndarray | None]:
    """The layer as it was before a job added its border, and its input where that is still the
    ``padded`` one."""
    (top, bottom), (left, right) = border
    height, width, channels = layer.input_shape
    shape = height - top - bottom, width - left - right, channels
    refuse_if(
        layer.pads != ((0, 0), (0, 0)) or min(shape) < 1,
        "lift for vivante",
        f"a border of {border} from a job and one of {layer.pads}",
        "is one of them",
    )
    if x is not None and padded:
        x = x[top : top + shape[0], left : left + shape[1]]
    return replace(layer, input_shape=shape, padding=border), x


def _image(capture: Capture, v: Mapping[str, Any]) -> np.ndarray | None:
    """The planes that the unit reads, ``(planes, rows, columns)``."""
    if "input" not in capture.buffers:
        return None
    planar = tensor_of(
        capture, "input", (v["kernel_z_size"], v["in_image_y_stride"], v["in_image_x_stride"])
    )
    return planar[:, : v["in_image_y_size"], : v["in_image_x_size"]]


def _input(planar: np.ndarray, layer: Conv2D, border: tuple[int, int] | None) -> np.ndarray:
    """The layer's input ``(H, W, C)``; ``border`` is what split planes hold above and left of
    it."""
    height, width, _ = layer.input_shape
    if border is not None:
        planar = join_planes(planar)[:, border[0] :, border[1] :]
        short = max(height - planar.shape[1], 0), max(width - planar.shape[2], 0)
        # rows that no window reaches were not handed to the unit
        planar = np.pad(
            planar, [(0, 0), (0, short[0]), (0, short[1])], constant_values=layer.input_q.zero_point
        )
    return planar[:, :height, :width].transpose(1, 2, 0)


def extent(capture: Capture, lifted: Lifted) -> range:
    """The bytes of the output's buffer that the jobs write, gaps between rows included."""
    return range(math.prod(_stored_output(_nn_values(capture), moves_of(capture))))


def _stored_output(v: Mapping[str, Any], moved: Moved) -> tuple[int, int, int]:
    """The sizes of the output in memory, in the order of its axes there."""
    channels = v["out_image_z_size"]
    if moved.hwc_out:
        return *_output_size(v), channels
    return channels, v["out_image_y_stride"], v["out_image_x_stride"]


def _output(capture: Capture, v: Mapping[str, Any], moved: Moved) -> np.ndarray | None:
    if "output" not in capture.buffers:
        return None
    rows, columns = _output_size(v)
    planar = tensor_of(capture, "output", _stored_output(v, moved))
    if moved.hwc_out:
        return planar
    outside = np.ones(planar.shape, bool)
    outside[:, :rows, :columns] = False
    if len(np.unique(planar[outside])) > 1:
        raise ValueError(
            f"lift for vivante: the output buffer holds data outside the {rows} rows "
            f"and {columns} columns that its words say"
        )
    return planar[:, :rows, :columns].transpose(1, 2, 0)


STORED_UP = {
    "uint8": 0,
    "int8": 128,
}  # what drivers add to the codes of a model; the unit sees uint8


def outline(subject: Capture | Layer) -> Mapping[str, Any]:
    """Outputs (how many), channels, zero points and scale (input * weights / output) by name.

    Nothing of a capture without an NN job or of an unknown chip, and of layers that drivers make no
    NN job of.  A scale per channel is left out, and of an addition all but outputs and their zero
    point: drivers recut it and choose its weights.
    """
    if isinstance(subject, Capture):
        return _of_words(subject)
    if not isinstance(subject, Conv2D | FullyConnected | Add) or subject.dtype not in STORED_UP:
        return {}
    up = STORED_UP[subject.dtype]
    found: dict[str, Any] = {
        "outputs": math.prod(subject.output_shape),
        "output zero point": subject.output_q.zero_point + up,
    }
    if isinstance(subject, Add):
        return found
    found |= {
        "channels": subject.output_shape[-1],
        "input zero point": subject.input_q.zero_point + up,
    }
    if per_channel(subject.weight_q.scale):
        return found
    scales: list[Any] = [q.scale for q in (subject.input_q, subject.weight_q, subject.output_q)]
    return {
        **found,
        "weight zero point": subject.weight_q.zero_point
        + STORED_UP.get(subject.weights.dtype.name, 0),
        "scale": scales[0] * scales[1] / scales[2],
    }


def _of_words(capture: Capture) -> dict[str, Any]:
    if capture.chip not in CHIPS or "NN" not in {job.block for job in capture.jobs}:
        return {}
    v = _nn_values(capture)
    return {
        "outputs": tensor_bytes(v)["output"],
        "output zero point": v["out_zero_point"],
        "channels": v["out_image_z_size"],
        "input zero point": v["in_image_border_const"],
        "weight zero point": v["coef_zero_point"],
        "scale": ratio_of(CHIPS[capture.chip], v["post_multiplier"], v["post_shift"]),
    }
