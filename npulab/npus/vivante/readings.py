"""Finds the layer that an NN job stands for: the candidates from the plainest on, and the rule that
chooses one.

The words of an NN job fix its arithmetic, but several layers can be lowered to the same words: a
stride 2 layer whose planes are split is, for the unit, a stride 1 layer over four times the planes.
So ``candidates`` yields every layer that the job can stand for, the plainest first, and ``chosen``
lowers each of them again: the first that gives the same words is the layer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from numpy import ndarray as Array

from npulab.captures.target import Features
from npulab.npus.kit import behind, ceil_div, padding_names, up
from npulab.npus.vivante import words
from npulab.npus.vivante.coefficients import MESA, VENDOR
from npulab.npus.vivante.dialects import ring_unit
from npulab.npus.vivante.facts import Size, Values, tensor_bytes
from npulab.npus.vivante.moves import Moved, Sides
from npulab.npus.vivante.plans import Lowered, join_planes, plan
from npulab.npus.vivante.quirks import ODD_STRIDE2_TILE, VENDOR_DIALECT
from npulab.quant.layers import Conv2D, QuantParams

SCALES = "input_scale", "weight_scale", "output_scale"
# If the probability that a part of square kernels is empty by chance is below this, the vendor
# added the part.
UNLIKELY = 0.001
REFUSED = "lift for vivante: block NN field {name}: got {got}, allowed is {allowed}"


@dataclass(frozen=True, eq=False)
class Reading:
    """The facts read of an NN job before it is known which layer it makes.

    ``values`` are the job's fields; ``weights`` ``(channels, planes, kernel_h, kernel_w)`` and
    ``bias`` are the unit's; ``planes`` are the recorded planes that the unit reads, or None if they
    were not recorded or TP jobs make them of a recorded tensor; ``known`` are the recorded
    parameters of the layer; ``dialect`` is the writer's, and ``cut`` the (rows, columns) above and
    to the left that the vendor added to make the kernels square and that ``weights`` do not have.
    """

    values: Values
    facts: Features
    moved: Moved
    known: Values
    weights: Array
    bias: Array
    planes: Array | None
    dialect: str = MESA
    cut: Size = (0, 0)

    @property
    def vendor(self) -> bool:
        return self.dialect == VENDOR

    @property
    def quirks(self) -> set[str]:
        """The quirks of a driver with which layers are lowered to compare them."""
        if self.vendor:
            return {VENDOR_DIALECT}
        return set()

    @property
    def zero(self) -> int:
        return int(self.values["coef_zero_point"])

    @property
    def sizes(self) -> Size:
        """(rows, columns) of the planes that the unit reads."""
        return self.values["in_image_y_size"], self.values["in_image_x_size"]

    @property
    def window(self) -> Size:
        """(rows, columns) that the unit adds above and to the left of the image."""
        return -self.values["in_image_y_offset"], -self.values["in_image_x_offset"]

    @property
    def offsets(self) -> Size:
        """(rows, columns) of the border that the layer has above and to the left."""
        top, left = self.window
        return top - self.cut[0], left - self.cut[1]

    @property
    def output(self) -> Size:
        return output_size(self.values)

    def layer(
        self,
        weights: Array,
        shape: Size,
        stride: int,
        border: Sides,
        depthwise: bool = False,
    ) -> Conv2D:
        """The layer of weights ``(O, C, kernel_h, kernel_w)`` over an image of (H, W).

        Activation and zero points come from the words. The recorded scales are used if they give
        the multiplier and shift of these words; else the scale of the weights is the whole ratio,
        and the tensors have a scale of 1.
        """
        values = self.values
        multiplier = values["post_multiplier"], values["post_shift"]
        scales: list[Any] = [self.known.get(name) for name in SCALES]
        if not all(scales) or words.multiplier_of(self.facts, *scales) != multiplier:
            scales = [1.0, words.ratio_of(self.facts, *multiplier), 1.0]
        channels = weights.shape[1]
        if depthwise:
            channels = values["kernel_z_size"]
        activation = None
        if values["relu"]:
            activation = "relu"
        return Conv2D(
            weights.transpose(0, 2, 3, 1),
            self.bias,
            (*shape, channels),
            (stride, stride),
            border,
            depthwise=depthwise,
            input_q=QuantParams(scales[0], values["in_image_border_const"]),
            weight_q=QuantParams(scales[1], self.zero),
            output_q=QuantParams(scales[2], values["out_zero_point"]),
            activation=activation,
        )


@dataclass(frozen=True, eq=False)
class Candidate:
    """A layer that the job can stand for; ``border`` is the (top, left) border that split planes
    hold of it, None if the planes are not split."""

    layer: Conv2D
    border: Size | None = None


def chosen(r: Reading) -> Candidate:
    """Return the first candidate that lowers to the words of the job.

    If no candidate does (because a driver that npulab does not know chose another tile, say), the
    first that at least agrees with the recorded planes is returned.
    """
    seen = []
    agreements = []
    for candidate in candidates(r):
        agreement = _agreement(candidate, r)
        if all(agreement):
            return candidate
        seen.append(candidate)
        agreements.append(agreement)
    if not seen:
        raise ValueError(
            f"lift for vivante: got planes of {r.sizes} for an output of {r.output}, "
            "which no layer of stride 2 with a kernel of at most "
            f"{join_planes(r.weights).shape[2:]} makes"
        )
    return seen[agreements.index(max(agreements))]


def candidates(r: Reading) -> Iterator[Candidate]:
    """Yield every layer that the job can stand for, the plainest first."""
    if r.values["pooling"]:
        yield from _unsplit(r)
    elif r.moved.split is not None:
        yield from _split(r)
    elif r.moved.image is not None or r.values["depthwise"] or _looks_thinned(r):
        yield from _unsplit(r)
    elif _looks_split(r):
        yield from _split(r)
    else:
        yield from _unsplit(r)
        if r.weights.shape[1] % 4 == 0 and "stride_h" not in r.known:
            yield from _split(r)


def output_size(values: Values) -> Size:
    """Return (rows, columns) that leave the unit; if the unit pools, it keeps a pixel of each
    2x2."""
    rows = values["out_image_y_size"]
    columns = values["out_image_x_size"]
    if values["pooling"] == words.FIRST_PIXEL:
        return ceil_div(rows, 2), ceil_div(columns, 2)
    return rows, columns


def _agreement(candidate: Candidate, r: Reading) -> tuple[bool, bool]:
    """Return two booleans: whether a candidate lowers to the words of the job, and whether it
    agrees with the recorded planes.

    Unsplit planes were cut to the sizes in the words when the candidate was made, so they agree if
    the lowered layer has unsplit planes too. Split planes have to have the sizes in the words.
    """
    layer = candidate.layer
    low = plan(layer, r.facts, r.quirks)
    same_sizes = low.output == r.output and (low.rows, low.columns) == r.sizes
    if candidate.border is None:
        same_planes = not low.split
    else:
        same_planes = low.split and same_sizes
    same_words = same_planes and same_sizes and low.pad == r.window and _same_choices(low, r)
    if same_planes and candidate.border is not None and r.planes is not None:
        same_planes = _only_fill_around(r.planes, layer, candidate.border)
    return same_words, same_planes


def _same_choices(low: Lowered, r: Reading) -> bool:
    """True if Mesa 25, or a driver of 2023, picks the words' tile and kernels per core for the
    plan. The law of the vendor's tiles is not known; for its jobs, true if it makes this kernel."""
    if r.vendor:
        return low.kernel == (r.values["kernel_y_size"], r.values["kernel_xy_size"])
    share = ceil_div(low.channels, r.facts["nn_cores"])
    wanted = r.values["out_image_tile_y_size"], r.values["kernels_per_core"]
    for quirks in (set[str](), {ODD_STRIDE2_TILE}):
        tiling = words.tiling(low, r.facts, quirks)
        tile_h, _ = tiling.size
        kernels = ceil_div(share, tiling.superblocks)
        if (tile_h, kernels) == wanted:
            return True
    return False


def _only_fill_around(planes: Array, layer: Conv2D, before: Size) -> bool:
    """True if joined planes hold the input's zero point wherever the layer's image does not lie."""
    height, width, _ = layer.input_shape
    top, left = before
    around = join_planes(planes) != layer.input_q.zero_point
    around[:, top : top + height, left : left + width] = False
    return not around.any()


# Planes that are not split


def _unsplit(r: Reading) -> Iterator[Candidate]:
    """Yield the layer whose planes are not split, at stride 1 or pooled, by each padding name."""
    values = r.values
    weights = r.weights
    depthwise = bool(values["depthwise"])
    stride = 1
    if values["pooling"] == words.FIRST_PIXEL:
        stride = 2
    # The field counts the planes of all kernels; the weights of a native depthwise layer have one
    # plane a kernel, so their shape does not say it.
    if values["kernel_z_size"] == 1 and _is_pointwise(r, stride):
        weights = weights[:, :, :1, :1]
    if depthwise:
        weights = weights.transpose(1, 0, 2, 3)
    shape, border = _reached(r.sizes, r.offsets, r.output, weights.shape[2:], stride)
    layer = r.layer(weights, shape, stride, border, depthwise)
    # If the stride is 2 and the kernel larger than 1x1, Mesa pools depthwise layers only.
    pooled = stride == 2 and layer.kernel != (1, 1) and not r.vendor
    layer = _as_depthwise(layer, r, pooled)
    for named in _by_name(layer, r.known.get("padding")):
        yield Candidate(named)


def _is_pointwise(r: Reading, stride: int) -> bool:
    """True if a 2x2 kernel on one plane stands for 1x1.

    Its other cells are empty, and either the recorded kernel is 1x1 or, if none is recorded, the
    output is as large as a 1x1 kernel makes it.
    """
    if r.weights.shape[1:] != (1, 2, 2):
        return False
    cells = r.weights.reshape(-1, 4)
    if np.any(cells[:, 1:] != r.zero):
        return False
    kernel = r.known.get("kernel_h"), r.known.get("kernel_w")
    if None in kernel:
        rows, columns = r.sizes
        return r.output == (ceil_div(rows, stride), ceil_div(columns, stride))
    return kernel == (1, 1)


# Planes of a stride 2 image, split in four


def _looks_thinned(r: Reading) -> bool:
    """True if the layer may be a 1x1 layer of stride 2 that the vendor runs at stride 1, by keeping
    every second row and column of the image.

    Signs of it are the recorded kernel, and a ring of the image that is four times as large.
    """
    if not r.vendor or r.weights.shape[2:] != (1, 1):
        return False
    kernel = r.known.get("kernel_h"), r.known.get("kernel_w")
    if None not in kernel:
        of_one_channel = r.weights.shape[1] == 4 and not np.any(r.weights[:, 1:] != r.zero)
        return kernel == (1, 1) and not of_one_channel
    unit = ring_unit(r.facts)
    image = tensor_bytes(r.values)["input"]
    ring = r.values["in_image_circular_buf_size"]
    return bool(ring == up(4 * image, unit))


def _looks_split(r: Reading) -> bool:
    """True if planes are a split stride 2 image: recorded so, or the cells that an odd kernel does
    not have are all empty."""
    if r.weights.shape[1] % 4 or r.offsets != (0, 0):
        return False
    if "stride_h" in r.known:
        return bool(r.known["stride_h"] == 2)
    if min(r.weights.shape[2:]) < 2:
        return False
    used = join_planes(r.weights) != r.zero
    in_last = used[:, :, -1].any() or used[..., -1].any()
    return bool(used.any() and not in_last)


def _split(r: Reading) -> Iterator[Candidate]:
    """Yield stride 2 layers whose planes are split, depthwise before dense for each kernel size.

    The recorded image comes first, then the image that TP jobs describe; without TP jobs, that
    image has no border above and to the left."""
    planes = r.weights.shape[1]
    if planes % 4:
        allowed = "a multiple of 4, with planes that TP jobs split"
        raise ValueError(REFUSED.format(name="kernel_z_size", got=planes, allowed=allowed))
    joined = join_planes(r.weights)
    heights = _kernel_sizes(joined, 2, r.known.get("kernel_h"), r.zero)
    widths = _kernel_sizes(joined, 3, r.known.get("kernel_w"), r.zero)
    for kernel in product(heights, widths):
        weights = joined[:, :, : kernel[0], : kernel[1]]
        for image in _images(r, kernel):
            try:
                dense = r.layer(weights, image.shape, 2, image.border)
            except ValueError:
                continue  # The recorded parameters are not those of the layer that ran.
            (top, _), (left, _) = image.border
            for layer in (_as_depthwise(dense, r, False), dense):
                for named in _by_name(layer, image.padding):
                    yield Candidate(named, (top, left))


def _kernel_sizes(joined: Array, axis: int, known: int | None, zero: int) -> list[int]:
    """Return the rows or columns that a joined kernel may have, the likeliest first.

    If the last row or column holds weights, only the joined size is possible. Else the kernel may
    also be 1 smaller (odd), which is the likelier size unless the joined size was recorded.
    """
    size = joined.shape[axis]
    if np.any(joined.take(size - 1, axis) != zero):
        return [size]
    if known == size:
        return [size, size - 1]
    return [size - 1, size]


@dataclass(frozen=True)
class SplitImage:
    """An image that split planes can come from: (H, W), its border, and the recorded name of it."""

    shape: Size
    border: Sides
    padding: str | None = None


def _images(r: Reading, kernel: Size) -> Iterator[SplitImage]:
    """Yield the images that split planes can come from.

    The recorded image is the first, if it does not contradict TP jobs; then the image that TP jobs
    describe or, without TP jobs, the image without a border above and to the left.
    """
    known = r.known
    split = r.moved.split
    if {"input_h", "input_w", "pad_top", "pad_bottom", "pad_left", "pad_right"} <= set(known):
        shape = known["input_h"], known["input_w"]
        top = known["pad_top"]
        left = known["pad_left"]
        border = (top, known["pad_bottom"]), (left, known["pad_right"])
        if split is None or (r.moved.split_size, split) == (shape, (top, left)):
            yield SplitImage(shape, border, known.get("padding"))
    if split is None:
        rows, columns = r.sizes
        joined = 2 * rows, 2 * columns
        yield SplitImage(*_reached(joined, (0, 0), r.output, kernel, 2))
    else:
        shape = r.moved.split_size
        below, right = map(behind, shape, r.output, kernel, (2, 2), split)
        top, left = split
        yield SplitImage(shape, ((top, max(below, 0)), (left, max(right, 0))))


# Kernels that the vendor made square


def without_squaring(weights: Array, zero: int, known: Values) -> tuple[Array, Size]:
    """Return weights ``(O, planes, rows, columns)`` without the cells that the vendor adds to make
    a kernel square, and how many rows and columns of them lay above and to the left.

    The vendor adds empty rows to a kernel that is wider than high, or columns to one that is higher
    than wide, half of them before the kernel. Empty cells count as added if the recorded size of
    the kernel says so. Without a recorded size, they do if so many would hardly be empty by chance.
    With or without them the layer computes the same.
    """
    rows, columns = weights.shape[2:]
    if rows != columns or not np.any(weights != zero):
        return weights, (0, 0)
    height = _kept(weights, 2, zero, known.get("kernel_h"))
    width = _kept(weights, 3, zero, known.get("kernel_w"))
    top, left = (rows - height) // 2, (columns - width) // 2
    if height < width:
        return weights[:, :, top : top + height], (top, 0)
    if width < height:
        return weights[..., left : left + width], (0, left)
    return weights, (0, 0)


def _kept(weights: Array, axis: int, zero: int, known: int | None) -> int:
    """Return the rows or columns of square kernels that were not added: the recorded number, or the
    fewest, if all others are empty."""
    used = weights != zero
    size = weights.shape[axis]
    along = used.any(tuple({0, 1, 2, 3} - {axis}))
    numbers = range(1, size)
    if known is not None:
        numbers = range(known, min(known + 1, size))
    for kept in numbers:
        before = (size - kept) // 2
        outside = along.copy()
        outside[before : before + kept] = False
        if not outside.any():
            if known is None and _chance(used, kept) > UNLIKELY:
                break
            return kept
    return size


def _chance(used: Array, kept: int) -> float:
    """Return the probability that all cells outside ``kept`` rows or columns are empty by
    chance, estimated from the share of empty cells inside; kernels that are wholly empty do not
    count."""
    kernels = int(np.count_nonzero(used.any((2, 3))))
    size = used.shape[2]
    inside = kernels * size * kept
    empty = 1 - np.count_nonzero(used) / inside
    return float(empty) ** (kernels * size * (size - kept))


# Steps that both kinds of candidates take


def _as_depthwise(layer: Conv2D, r: Reading, pooled: bool) -> Conv2D:
    """Return the depthwise layer that a dense one stands for, if it does.

    All kernels off the diagonal have to be empty. Then the recorded parameters decide; without
    them a pooled layer is depthwise, and so is a layer with no empty kernel on the diagonal.
    """
    outputs, _, _, planes = layer.weights.shape
    if r.facts.get("native_depthwise") or outputs != planes:
        return layer
    used = np.any(layer.weights != r.zero, axis=(1, 2))
    if np.any(used & ~np.eye(outputs, dtype=bool)):
        return layer
    likely = pooled or (outputs > 1 and np.all(used.diagonal()))
    if not r.known.get("depthwise", likely):
        return layer
    channels = range(outputs)
    weights = layer.weights[channels, :, :, channels].transpose(1, 2, 0)
    return replace(layer, weights=weights[None], depthwise=True)


def _reached(
    sizes: tuple[int, ...],
    before: tuple[int, ...],
    out: tuple[int, ...],
    kernel: tuple[int, ...],
    stride: int,
) -> tuple[Size, Sides]:
    """Return (H, W) and the border of the image that windows reach.

    For each axis, ``before`` is how far the first window begins before the image, and ``out`` is
    the number of windows. Cells of the image that no window reaches are cut off. Cells outside the
    image that a window reaches are border.
    """
    shape = []
    border = []
    for size, first, outputs, length in zip(sizes, before, out, kernel, strict=True):
        past = behind(size, outputs, length, stride, first)
        border.append((first, max(past, 0)))
        shape.append(size + min(past + stride - 1, 0))
    if min(shape) < 1:
        raise ValueError(
            f"lift for vivante: got an output of {tuple(out)} from an input of {tuple(sizes)}, "
            "which no window reaches"
        )
    return (shape[0], shape[1]), (border[0], border[1])


def _by_name(layer: Conv2D, recorded: str | None) -> Iterator[Conv2D]:
    """Yield the layer with its border given by each padding name that means this border, then by
    cells.
    """
    for name in padding_names(layer, (recorded, "valid", "same")):
        yield replace(layer, padding=name)
    yield layer
