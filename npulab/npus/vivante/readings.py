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
# Empty rows or columns of square kernels count as added by the vendor if the probability that they
# are empty by chance is at most this.
UNLIKELY = 0.001
REFUSED = "lift for vivante: block NN field {name}: got {got}, allowed is {allowed}"


@dataclass(frozen=True, eq=False)
class Reading:
    """What is read of an NN job before it is known which layer the job stands for.

    ``values`` are the job's values by field, ``facts`` the chip's features, ``moved`` the effect of
    TP jobs. ``weights`` ``(channels, planes, kernel_h, kernel_w)`` are the unit's, ``bias`` is the
    layer's. ``planes`` are the recorded planes that the unit reads; None if they were not recorded,
    or if TP jobs make them of a recorded tensor. ``known`` are the recorded parameters of the
    layer. ``dialect`` is the writer's. ``cut`` are the (rows, columns) above and to the left that
    the vendor added to make kernels square; ``weights`` do not have them.
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
        """The driver's quirks with which a candidate is lowered to compare it with the job."""
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
        """(rows, columns) of border that the unit adds above and to the left of the image."""
        return -self.values["in_image_y_offset"], -self.values["in_image_x_offset"]

    @property
    def offsets(self) -> Size:
        """(rows, columns) of the layer's border above and to the left: ``window`` without the rows
        and columns that the vendor added to the kernel."""
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
        """The layer of ``weights`` ``(O, C, kernel_h, kernel_w)`` over an image of (H, W); of a
        depthwise layer they are ``(1, C, kernel_h, kernel_w)``.

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
    """A layer that the job can stand for. ``border`` is the part, (top, left), of its border that
    split planes hold; None if the planes are not split."""

    layer: Conv2D
    border: Size | None = None


def chosen(r: Reading) -> Candidate:
    """Return the first candidate that lowers to the words of the job.

    If no candidate does, for example because an unknown driver chose another tile, the first
    candidate that agrees with the recorded planes is returned, else the first of all. Raises
    ValueError if there is no candidate.
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
            f"lift for vivante: got planes of {r.sizes} (rows, columns) for an output of "
            f"{r.output}, allowed are sizes of a stride 2 layer with a kernel of at most "
            f"{join_planes(r.weights).shape[2:]}"
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
    """Return the (rows, columns) of the output that the unit stores: half as many, rounded up, if
    it pools, because it then keeps one pixel of each 2x2."""
    rows = values["out_image_y_size"]
    columns = values["out_image_x_size"]
    if values["pooling"] == words.FIRST_PIXEL:
        return ceil_div(rows, 2), ceil_div(columns, 2)
    return rows, columns


def _agreement(candidate: Candidate, r: Reading) -> tuple[bool, bool]:
    """Return (whether a candidate lowers to the words of the job, whether it agrees with the
    recorded planes).

    A candidate of unsplit planes was made from the sizes in the words, so it agrees if it is
    lowered to unsplit planes. A candidate of split planes has to be lowered to the sizes in the
    words, and the recorded planes have to be the zero point outside of its image.
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
    """True if Mesa 25, or a driver of 2023, chooses the job's tile height and kernels per core for
    the plan ``low``. The law of the vendor's tiles is not known, so a job in the vendor's dialect
    only has to have the plan's kernel size."""
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
    """True if recorded split planes, joined again, hold the input's zero point everywhere outside
    of the layer's image, which begins at row and column ``before``."""
    height, width, _ = layer.input_shape
    top, left = before
    around = join_planes(planes) != layer.input_q.zero_point
    around[:, top : top + height, left : left + width] = False
    return not around.any()


# Planes that are not split


def _unsplit(r: Reading) -> Iterator[Candidate]:
    """Yield the layer whose planes are not split, at stride 1 or pooled: once with each padding
    name that fits, then with the padding in cells."""
    values = r.values
    weights = r.weights
    depthwise = bool(values["depthwise"])
    stride = 1
    if values["pooling"] == words.FIRST_PIXEL:
        stride = 2
    # The number of planes is tested by kernel_z_size and not by the weights' shape, because each
    # kernel of a native depthwise layer has one plane.
    if values["kernel_z_size"] == 1 and _is_pointwise(r, stride):
        weights = weights[:, :, :1, :1]
    if depthwise:
        weights = weights.transpose(1, 0, 2, 3)
    shape, border = _reached(r.sizes, r.offsets, r.output, weights.shape[2:], stride)
    layer = r.layer(weights, shape, stride, border, depthwise)
    # Mesa pools a stride 2 layer with a kernel larger than 1x1 only if the layer is depthwise.
    pooled = stride == 2 and layer.kernel != (1, 1) and not r.vendor
    layer = _as_depthwise(layer, r, pooled)
    for named in _by_name(layer, r.known.get("padding")):
        yield Candidate(named)


def _is_pointwise(r: Reading, stride: int) -> bool:
    """True if the 2x2 kernels on one plane stand for 1x1 kernels.

    This is so if only their first cell is not empty and the recorded kernel is 1x1. If no kernel
    was recorded, the output has to be as large as a 1x1 kernel makes it.
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
    """True if the layer may be a 1x1 layer of stride 2 that the vendor runs at stride 1, on every
    second row and column of the image.

    This is so if the recorded kernel is 1x1. If no kernel was recorded, the image's ring (memory
    range) has to be four times as large as the image that the unit reads.
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
    """True if the planes look like a split stride 2 image: the recorded stride is 2 or, without a
    recorded stride, the last row and column of the joined kernels are empty, as of odd kernels."""
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
    """Yield stride 2 layers whose planes are split: for each kernel size and each image of
    ``_images``, the depthwise layer before the dense layer."""
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
                continue  # the recorded parameters are those of another layer
            (top, _), (left, _) = image.border
            for layer in (_as_depthwise(dense, r, False), dense):
                for named in _by_name(layer, image.padding):
                    yield Candidate(named, (top, left))


def _kernel_sizes(joined: Array, axis: int, known: int | None, zero: int) -> list[int]:
    """Return the numbers of rows (``axis`` 2) or columns (3) that the layer's kernel may have, the
    likeliest first. ``joined`` are the kernels of four split planes, joined again.

    If the last row or column is not empty, only the joined size is possible. Else the kernel may
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
    """An image that split planes can come from: its size (H, W), its border in cells, and the
    recorded name of its padding."""

    shape: Size
    border: Sides
    padding: str | None = None


def _images(r: Reading, kernel: Size) -> Iterator[SplitImage]:
    """Yield the images that split planes can come from, for a kernel (rows, columns).

    The recorded image comes first, if it does not contradict TP jobs. Next comes the image that TP
    jobs describe or, without TP jobs, an image without a border above and to the left.
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
    a kernel square, and the (rows, columns) of them that lay above and to the left.

    The vendor adds empty rows to a kernel wider than high, or empty columns to a kernel higher than
    wide, half of them before the kernel. Empty cells count as added if the recorded size of the
    kernel says so; without a recorded size, if they are unlikely to be empty by chance
    (``UNLIKELY``). Added cells do not change the layer's result.
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
    """Return how many rows (``axis`` 2) or columns (3) of square kernels the vendor did not add:
    the recorded number ``known``, or without it the smallest number, such that all rows or columns
    around them are empty."""
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
    """Return the probability that all cells outside ``kept`` rows or columns are empty by chance.
    It is estimated from the share of empty cells inside; kernels without a weight do not count.
    ``used`` is True where a weight is not the zero point."""
    kernels = int(np.count_nonzero(used.any((2, 3))))
    size = used.shape[2]
    inside = kernels * size * kept
    empty = 1 - np.count_nonzero(used) / inside
    return float(empty) ** (kernels * size * (size - kept))


# Steps for candidates of split and of unsplit planes


def _as_depthwise(layer: Conv2D, r: Reading, pooled: bool) -> Conv2D:
    """Return the depthwise layer that a dense layer stands for, else the dense layer.

    All weights that join an input channel to another output channel have to be empty. Then the
    recorded parameter decides. Without it, a pooled layer counts as depthwise, and so does a layer
    of several channels that each have a kernel that is not empty.
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
    """Return the size (H, W) of an image as far as windows reach, and its border in cells.

    For each axis, ``before`` is how many cells the first window begins before the image, and
    ``out`` is the number of windows. Cells of the image past the last window and its step are cut
    off. Cells outside the image that a window reaches are border.
    """
    shape = []
    border = []
    for size, first, outputs, length in zip(sizes, before, out, kernel, strict=True):
        past = behind(size, outputs, length, stride, first)
        border.append((first, max(past, 0)))
        shape.append(size + min(past + stride - 1, 0))
    if min(shape) < 1:
        raise ValueError(
            f"lift for vivante: got an output of {tuple(out)} (rows, columns) from an input of "
            f"{tuple(sizes)}, allowed is an input that the windows reach"
        )
    return (shape[0], shape[1]), (border[0], border[1])


def _by_name(layer: Conv2D, recorded: str | None) -> Iterator[Conv2D]:
    """Yield the layer with each padding name that stands for its border, the recorded name first,
    then with its padding in cells.
    """
    for name in padding_names(layer, (recorded, "valid", "same")):
        yield replace(layer, padding=name)
    yield layer
