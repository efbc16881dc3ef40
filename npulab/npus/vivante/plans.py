"""The plan of a layer for the NN unit: every layer becomes a convolution of stride 1 on an image of
planes x rows x columns."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace

import numpy as np
from numpy import ndarray as Array

from npulab.captures.target import Features
from npulab.npus.kit import ceil_div
from npulab.npus.vivante.facts import Shape, Size
from npulab.npus.vivante.quirks import KERNEL_SPLIT_6_7, VENDOR_DIALECT
from npulab.quant.emulate.addition import weighted
from npulab.quant.layers import Add, Conv2D, FullyConnected, QuantParams

# Mesa 25.0.7, etnaviv_ml_nn.c
WIDEST_FULL = 15  # the most rows and columns of a fully connected layer's kernel
# Columns of the image of an addition on V7: the first of these numbers that divides a plane.
ADDITION_WIDTHS = (128, 64, 32)
WIDEST_ADDITION = 63  # the most columns of a row if none of ADDITION_WIDTHS divides the plane
# Input widths at which the driver on V7 splits the planes of a stride 2 depthwise layer.
NARROW_DEPTHWISE = range(3, 6)
# Input widths at which Mesa 25.0.7 splits the kernel of a stride 2 depthwise layer on V7.
SPLIT_DEPTHWISE = range(3, 8)
NARROW_POINTWISE = 3  # columns: V8 may split a stride 2 layer of a 1x1 kernel on a narrower input
# The vendor pools a dense layer whose kernel has at most this many rows and columns (V).
WIDEST_POOLED = 2
MOST_OUTPUTS = 2**14 - 1  # the largest value of the field out_image_z_size


@dataclass(frozen=True, eq=False)
class Lowered:
    """A layer as the NN unit runs it.

    ``weights`` are ``(O, planes, kernel_h, kernel_w) uint8``; of a native depthwise layer they are
    ``(C, 1, kernel_h, kernel_w)``. ``planes``, ``rows`` and ``columns`` are the sizes of the image
    that the unit reads. ``pad`` is the (top, left) border that the unit adds; ``border`` is the
    border that the planes already hold, in rows and columns of the layer's input. ``output`` is the
    (rows, columns) that the unit writes, ``stride`` the stride of the layer.

    The other fields are flags. ``pooled``: the unit writes only the first pixel of each 2x2.
    ``split``: each plane of a stride 2 image was split into four. ``depthwise``: the unit runs the
    layer as depthwise. ``runs``: the driver tries to code runs of zero points. ``thinned``: the
    unit reads only every second row and column of a stride 2 image.
    """

    weights: Array
    planes: int
    rows: int
    columns: int
    pad: Size
    output: Size
    stride: int = 1
    pooled: bool = False
    split: bool = False
    border: Size = (0, 0)
    depthwise: bool = False
    runs: bool = True
    thinned: bool = False

    @property
    def channels(self) -> int:
        return len(self.weights)

    @property
    def kernel(self) -> Size:
        return self.weights.shape[2], self.weights.shape[3]

    @property
    def before_pooling(self) -> Size:
        rows, columns = self.output
        if self.pooled:
            return 2 * rows, 2 * columns
        return rows, columns


def as_convolution(
    layer: Conv2D | FullyConnected | Add,
    facts: Features,
    quirks: Set[str] = frozenset(),
) -> Conv2D:
    """Return the convolution that the unit runs in place of a layer; a Conv2D is returned as it is.

    Raises ValueError for an addition in the vendor's dialect, because a shader adds in its jobs.
    """
    if isinstance(layer, FullyConnected):
        widest = WIDEST_FULL
        if VENDOR_DIALECT in quirks:
            widest = facts["max_kernel"]
        return _full(layer, widest)
    if isinstance(layer, Add) and VENDOR_DIALECT in quirks:
        raise ValueError(
            f"lower for vivante: got {layer} in the dialect 'vendor', allowed is a Conv2D or "
            "FullyConnected, because the vendor's compiler runs additions on the shader"
        )
    if isinstance(layer, Add):
        return _addition(layer, facts)
    return layer


def _full(layer: FullyConnected, widest: int) -> Conv2D:
    """Return the convolution that a fully connected layer becomes. The inputs become an image and
    the kernel has the image's size. The number of columns is the largest divisor of the number of
    inputs that is at most ``widest``. Rows follow in the same way, then planes.
    """
    outputs, inputs = layer.weights.shape
    width = _divisor(inputs, widest)
    height = _divisor(inputs // width, widest)
    shape = inputs // width // height, height, width
    return Conv2D(
        layer.weights.reshape(outputs, *shape).transpose(0, 2, 3, 1),
        layer.bias,
        (*shape[1:], shape[0]),
        activation=layer.activation,
        input_q=layer.input_q,
        weight_q=layer.weight_q,
        output_q=layer.output_q,
    )


def _addition(layer: Add, facts: Features) -> Conv2D:
    """Return the convolution that adds two tensors. Its image holds the planes of the first tensor,
    then of the second; its kernel has one weight for each tensor.

    On V7 each tensor becomes one plane with rows of another length, and the kernel is 2x2, with a
    single cell that is not empty. On V8 the image has twice the channels, and the kernel is 1x1."""
    *weights, bias, scale = weighted(layer)
    height, width, channels = image_of(layer)
    if facts.get("nn_v8"):
        _refuse_many(layer, channels)
        kernel = np.zeros((channels, 1, 1, 2 * channels), np.uint8)
        for part, weight in enumerate(weights):
            kernel[range(channels), 0, 0, part * channels + np.arange(channels)] = weight
        shape, padding = (height, width, 2 * channels), ((0, 0), (0, 0))
    else:
        kernel = np.zeros((1, 2, 2, 2), np.uint8)
        kernel[0, 0, 0] = weights
        plane = height * width
        columns = _divisor(plane, WIDEST_ADDITION)
        # The loop goes from the narrowest width to the widest, and keeps the last that divides a
        # plane.
        for usual in reversed(ADDITION_WIDTHS):
            if plane % usual == 0:
                columns = usual
        shape, padding = (plane * channels // columns, columns, 2), ((0, 1), (0, 1))
    return Conv2D(
        kernel,
        np.full(len(kernel), bias),
        shape,
        padding=padding,
        activation=layer.activation,
        input_q=layer.input_q,
        weight_q=QuantParams(scale, 0),
        output_q=layer.output_q,
    )


def image_of(layer: Add) -> Shape:
    """Return (H, W, C) of each tensor of an addition; missing axes are 1. Raises ValueError for
    tensors of more than three axes."""
    if len(layer.input_shape) > 3:
        raise ValueError(f"lower for vivante: got {layer}, allowed are tensors of up to three axes")
    height, width, channels = (1, 1, 1, *layer.input_shape)[-3:]
    return height, width, channels


def _divisor(of: int, most: int) -> int:
    """Return the largest divisor of the number ``of`` that is at most ``most``."""
    return max(n for n in range(1, most + 1) if of % n == 0)


def _refuse_many(layer: Conv2D | Add, channels: int) -> None:
    """Raise ValueError for more channels than a job can have. Called before an array of channels x
    channels is made."""
    if channels > MOST_OUTPUTS:
        raise ValueError(
            f"lower for vivante: got {layer}, allowed are up to {MOST_OUTPUTS} channels"
        )


def plan(
    layer: Conv2D, facts: Features, quirks: Set[str] = frozenset(), addition: bool = False
) -> Lowered:
    """Return the layer as the NN unit runs it, at stride 1.

    A stride 2 layer is pooled, or its planes are split, or it is thinned (1x1 in the vendor's
    dialect), as ``Lowered`` explains. A depthwise layer is made dense if the chip has no native
    depthwise. A 1x1 kernel on one channel is made 2x2. The vendor makes kernels square on V7.
    """
    low = _planned(layer, facts, quirks, addition)
    if VENDOR_DIALECT in quirks and not facts.get("nn_v8"):
        return _squared(low, layer.weight_q.zero_point)
    return low


def _squared(low: Lowered, zero: int) -> Lowered:
    """Return a plan with square kernels. Empty rows or columns are added, half of them before the
    kernel, so the first window begins that much earlier. A kernel of one column stays as it is.

    ``zero`` is the weight of an empty cell. Split planes get as many rows and columns as the square
    kernel reaches.
    """
    rows, columns = low.kernel
    if columns == 1:
        return low
    size = max(rows, columns)
    top, left = (size - rows) // 2, (size - columns) // 2
    added = (0, 0), (0, 0), (top, size - rows - top), (left, size - columns - left)
    weights = np.pad(low.weights, added, constant_values=zero)
    low = replace(low, weights=weights, pad=(low.pad[0] + top, low.pad[1] + left))
    if not low.split:
        return low
    return replace(low, rows=low.output[0] + size - 1, columns=low.output[1] + size - 1)


def _planned(layer: Conv2D, facts: Features, quirks: Set[str], addition: bool) -> Lowered:
    """Return the plan of a layer before the vendor makes its kernels square."""
    zero = layer.weight_q.zero_point
    (height, width, channels), output = layer.input_shape, layer.output_shape[:2]
    weights = layer.weights.transpose(0, 3, 1, 2)
    native = layer.depthwise and bool(facts.get("native_depthwise"))
    if native:
        weights = weights.transpose(1, 0, 2, 3)
    elif layer.depthwise:
        _refuse_many(layer, channels)
        dense = np.full((channels, channels, *layer.kernel), zero, np.uint8)
        dense[range(channels), range(channels)] = weights[0]
        weights = dense
    stride, before = layer.stride[0], (layer.pads[0][0], layer.pads[1][0])
    one_cell = weights
    if layer.kernel == (1, 1) and channels == 1:
        weights = np.pad(weights, [(0, 0), (0, 0), (0, 1), (0, 1)], constant_values=zero)
    low = Lowered(
        weights,
        channels,
        height,
        width,
        before,
        output,
        stride,
        depthwise=native,
        runs=not addition and weights.shape[2:] != (1, 1),
    )
    if stride == 1:
        return low
    if VENDOR_DIALECT in quirks and not facts.get("nn_v8"):
        return _vendor_stride_2(layer, low, one_cell)
    split = _is_split(layer, facts)
    broken = (
        KERNEL_SPLIT_6_7 in quirks and layer.depthwise and not native and width in SPLIT_DEPTHWISE
    )
    if not split and not broken:
        return replace(low, pooled=True)
    low = _split(layer, low, weights)
    return replace(low, split=split)


def _split(layer: Conv2D, low: Lowered, weights: Array) -> Lowered:
    """Return the plan of a stride 2 layer whose planes, and those of ``weights``, are split into
    four. ``low`` is the plan without the split."""
    height, width, channels = layer.input_shape
    output = low.output
    cells = split_planes(weights, layer.weight_q.zero_point)
    if layer.padding == "valid":
        rows, columns = ceil_div(height, 2), ceil_div(width, 2)
    else:
        rows = output[0] + cells.shape[2] - 1
        columns = output[1] + cells.shape[3] - 1
    return replace(
        low,
        weights=cells,
        planes=4 * channels,
        rows=rows,
        columns=columns,
        pad=(0, 0),
        split=True,
        border=low.pad,
    )


def _vendor_stride_2(layer: Conv2D, low: Lowered, weights: Array) -> Lowered:
    """Return the plan of a stride 2 layer as the vendor makes it on V7.

    The layer is pooled if the image has an even width and no border above and to the left, and the
    kernel is depthwise or small. Else a 1x1 layer without a border on several channels is thinned.
    Else its planes are split. This is the vendor's choice in 52 of the 54 layers by which the law
    was found, and in 52 of 53 others (V). The three exceptions are dense and have kernels of 3 and
    4 rows or columns.
    """
    height, width, channels = layer.input_shape
    pointwise = layer.kernel == (1, 1)
    small = layer.depthwise or max(layer.kernel) <= WIDEST_POOLED
    if width % 2 == 0 and low.pad == (0, 0) and small:
        return replace(low, pooled=True)
    if pointwise and channels > 1 and layer.pads == ((0, 0), (0, 0)):
        return replace(low, rows=ceil_div(height, 2), columns=ceil_div(width, 2), thinned=True)
    low = _split(layer, low, weights)
    rows, columns = low.kernel
    return replace(low, rows=low.output[0] + rows - 1, columns=low.output[1] + columns - 1)


def _is_split(layer: Conv2D, facts: Features) -> bool:
    """True if Mesa splits the planes of a stride 2 layer before the unit reads them; False if the
    unit pools."""
    _, width, channels = layer.input_shape
    pointwise = layer.kernel == (1, 1)
    if facts.get("nn_v8"):
        narrow = width < NARROW_POINTWISE or channels == 1
        return not layer.depthwise and (not pointwise or (narrow and layer.padding != "same"))
    return not pointwise and (not layer.depthwise or width in NARROW_DEPTHWISE)


def split_planes(planes: Array, fill: int) -> Array:
    """Return planes ``(..., C, H, W)`` split into four each: ``(..., 4 C, ceil(H/2), ceil(W/2))``.

    New plane ``4 c + 2 dy + dx`` holds rows dy, dy + 2, ... and columns dx, dx + 2, ... of plane
    ``c``, of a kernel or an image. Odd H and W first get a row or column of ``fill`` at their end.
    Source: arXiv 1712.02502, figure 3.
    """
    *front, channels, height, width = planes.shape
    missing = [(0, 0)] * (len(front) + 1) + [(0, height % 2), (0, width % 2)]
    even = np.pad(planes, missing, constant_values=fill)
    rows, columns = even.shape[-2] // 2, even.shape[-1] // 2
    cells = even.reshape(*front, channels, rows, 2, columns, 2)
    return np.moveaxis(cells, (-3, -1), (-4, -3)).reshape(*front, 4 * channels, rows, columns)


def join_planes(planes: Array) -> Array:
    """Return planes ``(..., C, 2 H, 2 W)`` from split planes ``(..., 4 C, H, W)``; the inverse of
    ``split_planes`` if sizes are even."""
    *front, channels, rows, columns = planes.shape
    cells = planes.reshape(*front, channels // 4, 2, 2, rows, columns)
    joined = np.moveaxis(cells, (-4, -3), (-3, -1))
    return joined.reshape(*front, channels // 4, 2 * rows, 2 * columns)


def split_image(planar: Array, low: Lowered, fill: int) -> Array:
    """Return the split planes that the unit reads for a stride 2 layer, with the border that
    ``low`` states. ``planar`` are the layer's planes ``(C, H, W)``; the border is ``fill``."""
    (top, left), height, width = low.border, 2 * low.rows, 2 * low.columns
    canvas = np.full((len(planar), height, width), fill, np.uint8)
    part = planar[:, : max(height - top, 0), : max(width - left, 0)]
    canvas[:, top : top + part.shape[1], left : left + part.shape[2]] = part
    return split_planes(canvas, fill)
