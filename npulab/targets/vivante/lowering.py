"""From a layer to what a driver would send, to cores with the plain coefficient stream (V7)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from npulab.capture import Capture, Job
from npulab.layers import Conv2D
from npulab.quant import Mantissa, QuantParams
from npulab.target import Unanswerable
from npulab.targets.vivante import coefficients
from npulab.targets.vivante.coefficients import Coefficients, Geometry, ceil_div
from npulab.targets.vivante.commands import start_commands, writes
from npulab.targets.vivante.facts import CHIPS, PATTERNS, USUAL_CHIP, maps

# vendor API default; no capture has shown how ties go
MULTIPLIER = Mantissa("vivante-v7:half-even", bits=15, ties="half-even")
LEADING_ONE, MOST_SHIFT = 2 ** MULTIPLIER.bits, 128

ADDRESSES = {"nn": 0x50000000, "coefficients": 0x40000000, "input": 0x60000000, "output": 0x70000000}
ALIGNMENT = 64
# Mesa 25.0.7, etnaviv_ml_nn.c; SRAM_START, SMALLEST_CACHE_END and RING_OFF also C:update4-vendor
SRAM_START, SMALLEST_CACHE_END, SMALL_IMAGE_CACHE = 0x800, 0xA00, 0x800
RING_OFF = 0x3FFFFFF
MOST_KERNELS = 127  # per core in one superblock
WIDEST_TILE, WIDE_SPAN, MIDDLE_SPAN = 64, 36, 18  # columns
FIRST_PIXEL = 3
# A stride 2 tile keeps an odd height (drivers of 2023; C:update4-vendor and -mesa); Mesa 25 makes it even.
ODD_STRIDE2_TILE = "odd-stride2-tile"


@dataclass(frozen=True, eq=False)
class Lowered:
    """A layer as the NN unit runs it: stride 1, planes x rows x columns.

    ``weights`` are ``(O, planes, kernel_h, kernel_w) uint8``; ``pad`` is (top, left); ``output`` the
    (rows, columns) that leave the unit, ``stride`` that of the layer, ``pooled`` whether only the
    first pixel of each 2x2 leaves it.
    """

    weights: np.ndarray
    rows: int
    columns: int
    pad: tuple[int, int]
    output: tuple[int, int]
    stride: int
    pooled: bool

    @property
    def before_pooling(self) -> tuple[int, int]:
        factor = 2 if self.pooled else 1
        return self.output[0] * factor, self.output[1] * factor


def lower(layer: Conv2D, chip: str = USUAL_CHIP, x: np.ndarray | None = None, name: str = "lowered",
          addresses: Mapping[str, int] | None = None, features: Iterable[str] = ()) -> Capture:
    """What Mesa 25 would send for a layer: words, commands, coefficients and, with ``x``, the input.

    ``x`` is ``(H, W, C)`` in the type of the weights.  int8 layers are shifted to uint8 as the driver
    does.  ``features`` are habits of a driver (``odd-stride2-tile``); ``layer.habits`` count too.  It
    departs from Mesa where that swaps rows and columns (images that are not square), where it pads
    stride 2 inputs narrower than 5 and depthwise ones in the NN unit, and where it has padding wrong
    (kernels past 5x5).
    Raises ValueError for a layer or chip that is not covered, LookupError for an unknown feature or
    address.
    """
    facts = plain_chip(chip)
    layer, x = _unsigned(layer, x)
    _supported(layer, facts)
    low = plan(layer)
    habits, where = {*layer.habits, *features}, {**ADDRESSES, **(addresses or {})}
    _asked_for(habits, where)
    geometry, values = _fields(layer, low, facts, habits)
    content = _content(layer, low, geometry, facts)
    buffer = coefficients.encode(content, geometry)
    values |= _caches(geometry, facts, values, max(coefficients.sizes(buffer, geometry)))
    values |= {"kernel_address": where["coefficients"], "in_image_address": where["input"],
               "out_image_address": where["output"]}
    commands = start_commands(where["nn"])
    buffers = {"commands": commands.tobytes(), "coefficients": buffer}
    if x is not None:
        buffers["input"] = planes(layer, low, x).tobytes()
    registers = maps(chip)
    start = Job.from_writes("STATE", writes(commands), registers["STATE"])
    job = Job("NN", registers["NN"].encode(values), start=start)
    return Capture(name, "vivante", chip, (job,), buffers, where, layer.parameters, "simulated",
                   tool="npulab lower", maps=registers)


def plain_chip(chip: str) -> Mapping[str, int]:
    """The features of a chip with plain coefficient streams; Unanswerable for any other."""
    facts = CHIPS.get(chip)
    plain = [name for name, known in CHIPS.items() if known.get("plain_coefficients")]
    if facts is None or not facts.get("plain_coefficients"):
        raise Unanswerable(f"chip: got {chip!r}, plain coefficient streams are known of {', '.join(plain)}")
    return facts


def _asked_for(habits: set[str], where: Mapping[str, int]) -> None:
    """Refuse habits and addresses that there are not."""
    for what, got, allowed in (("features", habits, {ODD_STRIDE2_TILE}), ("addresses", set(where), set(ADDRESSES))):
        if got - allowed:
            raise LookupError(f"{what}: got {sorted(got - allowed)[0]!r}, allowed are {', '.join(sorted(allowed))}")
    for what, at in where.items():
        if not isinstance(at, int) or not 0 <= at < 2 ** 32 or at % ALIGNMENT:
            raise ValueError(f"addresses: got {what} {at!r}, allowed is a multiple of {ALIGNMENT} within 32 bits")


def _unsigned(layer: Conv2D, x: np.ndarray | None) -> tuple[Conv2D, np.ndarray | None]:
    """int8 tensors and their zero points moved up by 128, as the driver stores them."""
    if not isinstance(layer, Conv2D) or layer.dtype != layer.weights.dtype:
        raise ValueError(f"lower for vivante: got {layer!r} of {getattr(layer, 'dtype', 'no type')}, allowed is a "
                         "Conv2D of uint8 or int8")
    if x is not None:
        x = np.asarray(x)
        if x.shape != layer.input_shape or x.dtype != layer.weights.dtype:
            raise ValueError(f"x: got shape {x.shape} {x.dtype}, allowed is {layer.input_shape} of the weights' "
                             f"{layer.weights.dtype}")
    if layer.weights.dtype == np.uint8:
        return layer, x
    moved = [QuantParams(q.scale, q.zero_point + 128) for q in (layer.input_q, layer.weight_q, layer.output_q)]
    layer = replace(layer, weights=(layer.weights.astype(np.int16) + 128).astype(np.uint8),
                    input_q=moved[0], weight_q=moved[1], output_q=moved[2], dtype="uint8")
    return layer, None if x is None else (x.astype(np.int16) + 128).astype(np.uint8)


def _supported(layer: Conv2D, facts: Mapping[str, int]) -> None:
    wrong = None
    for name, q in (("input_q", layer.input_q), ("weight_q", layer.weight_q), ("output_q", layer.output_q)):
        if isinstance(q.scale, tuple):
            wrong = f"{name}: got a scale per channel, allowed is one per tensor"
        elif not 0 <= q.zero_point <= 255:
            wrong = f"{name}: got zero point {q.zero_point}, allowed is 0 to 255"
    if layer.dilation != (1, 1):
        wrong = f"dilation: got {layer.dilation}, allowed is (1, 1)"
    if layer.stride not in ((1, 1), (2, 2)):
        wrong = f"stride: got {layer.stride}, allowed is (1, 1) or (2, 2)"
    if layer.activation not in (None, "relu"):
        wrong = f"activation: got {layer.activation!r}, allowed is None or 'relu'"
    if max(layer.kernel) > facts["max_kernel"]:
        wrong = f"kernel: got {layer.kernel}, allowed is up to {facts['max_kernel']}"
    most = 2 ** (facts["offset_bits"] - 1)
    if max(layer.pads[0][0], layer.pads[1][0]) > most:
        wrong = f"padding: got {layer.padding}, allowed is up to {most} above and to the left"
    if wrong is None and not 0 <= _multiplier(layer)[1] < MOST_SHIFT:
        wrong = (f"scales: got {layer.input_q.scale} * {layer.weight_q.scale} / {layer.output_q.scale}, allowed is a "
                 f"right shift of 0 to {MOST_SHIFT - 1} (got {_multiplier(layer)[1]})")
    if layer.depthwise and layer.weights.shape[3] != layer.input_shape[2]:
        wrong = f"weights: got {layer.weights.shape[3]} depthwise channels, allowed is {layer.input_shape[2]}"
    if wrong:
        raise ValueError(f"lower for vivante: {wrong}")


def plan(layer: Conv2D) -> Lowered:
    """The layer at stride 1: planes split for stride 2, depthwise made dense, 1x1 on one channel made 2x2."""
    zero = layer.weight_q.zero_point
    (height, width, channels), output = layer.input_shape, layer.output_shape[:2]
    weights = layer.weights.transpose(0, 3, 1, 2)
    if layer.depthwise:
        dense = np.full((channels, channels, *layer.kernel), zero, np.uint8)
        dense[range(channels), range(channels)] = weights[0]
        weights = dense
    stride, (top, _), (left, _) = layer.stride[0], *layer.pads
    pointwise = layer.kernel == (1, 1)
    if pointwise and channels == 1:
        weights = np.pad(weights, [(0, 0), (0, 0), (0, 1), (0, 1)], constant_values=zero)
    if stride == 1 or layer.depthwise or pointwise:
        return Lowered(weights, height, width, (top, left), output, stride, stride == 2)
    split = split_planes(weights, zero)
    if layer.padding == "valid":
        rows, columns = ceil_div(height, 2), ceil_div(width, 2)
    else:
        rows, columns = (o + k - 1 for o, k in zip(output, split.shape[2:], strict=True))
    return Lowered(split, rows, columns, (0, 0), output, stride, False)


def split_planes(planes: np.ndarray, fill: int) -> np.ndarray:
    """``(..., C, H, W)`` to ``(..., 4 C, ceil(H/2), ceil(W/2))``, odd sizes filled up behind: plane
    ``4 c + 2 dy + dx`` holds rows dy, dy + 2, ... and columns dx, dx + 2, ... of ``c``.

    Of kernels as of images: source arXiv 1712.02502, figure 3.
    """
    *front, channels, height, width = planes.shape
    even = np.pad(planes, [(0, 0)] * (len(front) + 1) + [(0, height % 2), (0, width % 2)],
                  constant_values=fill)
    rows, columns = even.shape[-2] // 2, even.shape[-1] // 2
    cells = even.reshape(*front, channels, rows, 2, columns, 2)
    return np.moveaxis(cells, (-3, -1), (-4, -3)).reshape(*front, 4 * channels, rows, columns)


def join_planes(planes: np.ndarray) -> np.ndarray:
    """The inverse of ``split_planes`` for even sizes."""
    *front, channels, rows, columns = planes.shape
    cells = planes.reshape(*front, channels // 4, 2, 2, rows, columns)
    return np.moveaxis(cells, (-4, -3), (-3, -1)).reshape(*front, channels // 4, 2 * rows, 2 * columns)


def planes(layer: Conv2D, low: Lowered, x: np.ndarray) -> np.ndarray:
    """The input ``(H, W, C)`` as the NN unit reads it: ``(planes, rows, columns) uint8``."""
    planar = np.ascontiguousarray(np.asarray(x, np.uint8).transpose(2, 0, 1))
    if low.stride == 1 or low.pooled:
        return planar
    (top, _), (left, _) = layer.pads
    height, width = 2 * low.rows, 2 * low.columns
    canvas = np.full((planar.shape[0], height, width), layer.input_q.zero_point, np.uint8)
    part = planar[:, :height - top, :width - left]
    canvas[:, top:top + part.shape[1], left:left + part.shape[2]] = part
    return split_planes(canvas, layer.input_q.zero_point)


def _fields(layer: Conv2D, low: Lowered, facts: Mapping[str, int], habits: set[str],
            ) -> tuple[Geometry, dict[str, Any]]:
    """Geometry and the fields that do not depend on the coefficients' size."""
    channels, planes_in, kernel_h, kernel_w = low.weights.shape
    tile, blocks = tiling(low, facts, habits)
    multiplier, shift = _multiplier(layer)
    out_h, out_w = low.before_pooling
    geometry = Geometry(facts["nn_cores"], channels, planes_in, kernel_h, kernel_w, blocks,
                        layer.weight_q.zero_point, low.output[0] * low.output[1], low.columns)
    return geometry, {
        "kernel_xy_size": kernel_w, "kernel_y_size": kernel_h, "kernel_z_size": planes_in,
        "kernels_per_core": ceil_div(ceil_div(channels, facts["nn_cores"]), blocks),
        "pooling": "first_pixel" if low.pooled else "none", "pooling_xy_size": int(not low.pooled),
        "nn_layer_flush": 1, "in_image_x_size": low.columns, "in_image_y_size": low.rows,
        "in_image_x_offset": -low.pad[1], "in_image_y_offset": -low.pad[0],
        "relu": int(layer.activation == "relu"), "post_multiplier": multiplier - LEADING_ONE,
        "post_shift": shift, "out_image_x_size": out_w, "out_image_y_size": out_h,
        "out_image_z_size": channels, "rounding_mode": 1, "out_image_tile_x_size": tile[1],
        "out_image_tile_y_size": tile[0], "in_image_border_const": layer.input_q.zero_point,
        "in_image_x_stride": low.columns, "in_image_y_stride": low.rows,
        "out_image_x_stride": low.output[1], "out_image_y_stride": low.output[0],
        "coef_zero_point": layer.weight_q.zero_point, "out_zero_point": layer.output_q.zero_point,
        "out_image_circular_buf_end_addr_plus_1": RING_OFF * 64,
        "in_image_circular_buf_end_addr_plus_1": RING_OFF * 64,
        "further3": RING_OFF, "further4": np.inf, "further5": -np.inf}


def _multiplier(layer: Conv2D) -> tuple[int, int]:
    return multiplier_of(*(q.scale for q in (layer.input_q, layer.weight_q, layer.output_q)))


def multiplier_of(*scales: Any) -> tuple[int, int]:
    """(multiplier, right shift) of input, weight and output scale."""
    multiplier, shift = MULTIPLIER.multiplier(*scales)
    return int(multiplier), int(shift)


def tiling(low: Lowered, facts: Mapping[str, int], habits: set[str]) -> tuple[tuple[int, int], int]:
    """((tile height, tile width), superblocks)."""
    channels, _, kernel_h, kernel_w = low.weights.shape
    height, width = low.before_pooling
    tile_w = min(width, WIDEST_TILE)
    span, depth = kernel_h - 1 + tile_w, facts["accumulation_depth"]
    mode = 1
    if span <= WIDE_SPAN:
        mode = 1 if tile_w > 32 else 2 if tile_w > 16 else 4 if tile_w > 8 else 8
        mode = min(mode, 4 if span > MIDDLE_SPAN else 2)  # looks the wrong way round, and is what the driver does
    tile_h = min(facts["input_depth"] * mode - kernel_h + 1, mode * depth, height)
    if low.stride == 2 and ODD_STRIDE2_TILE not in habits:
        tile_h -= tile_h % 2
    tile_h = max(tile_h, 1)
    fit = depth * mode // tile_h
    if kernel_w == 1:
        fit = min(fit, depth // 3)
    share = ceil_div(channels, facts["nn_cores"])
    fit = max(min(fit, share, MOST_KERNELS), 1)
    passes = ceil_div(channels, facts["nn_cores"] * fit)
    return (tile_h, tile_w), ceil_div(share, ceil_div(channels, passes * facts["nn_cores"]))


def _content(layer: Conv2D, low: Lowered, geometry: Geometry, facts: Mapping[str, int]) -> Coefficients:
    """Weights, corrected biases and offsets for every slot of the buffer."""
    g = geometry
    weights = np.full((g.slots, g.planes, g.kernel_h, g.kernel_w), g.zero_point, np.uint8)
    weights[:g.channels] = low.weights
    sums = (low.weights.astype(np.int64) - g.zero_point).sum((1, 2, 3))
    bias = np.zeros(g.slots, np.int32)
    bias[:g.channels] = (layer.bias - layer.input_q.zero_point * sums).astype(np.int32)
    offsets = (np.arange(g.slots) * g.plane_bytes).astype(np.uint32)
    content = Coefficients(weights, bias, offsets, (), 0)
    zrl = coefficients.choose_zrl(content, g, facts["zrl_bits"])
    return replace(content, zrl=(zrl,) * g.used)


def _caches(geometry: Geometry, facts: Mapping[str, int], values: Mapping[str, Any], largest_stream: int,
            ) -> dict[str, Any]:
    """Fields of the on-chip caches."""
    sram, coefficient_bytes = facts["sram"], geometry.used * largest_stream
    image = 0
    if geometry.superblocks > 1:
        tile = (values["out_image_tile_x_size"] + geometry.kernel_w - 1) \
            * (values["out_image_tile_y_size"] + geometry.kernel_h - 1)
        image = _align(_align(tile, 16) * geometry.planes, 128)
    out: dict[str, Any] = {"kernel_cache_start_address": SRAM_START}
    if SRAM_START + coefficient_bytes + image < sram:
        end = max(min(_align(SRAM_START + coefficient_bytes, 128), sram), SMALLEST_CACHE_END)
        out |= {"kernel_caching_mode": "full", "kernel_cache_end_address": end}
    else:
        image = image if image < sram else 0
        end = sram - image
        msb, low_half, high = next(row[1:] for row in PATTERNS if geometry.channels >= row[0])
        out |= {"kernel_caching_mode": "partial", "kernel_cache_end_address": end,
                "kernel_pattern_msb": msb, "kernel_pattern_low": low_half, "kernel_pattern_high": high}
    out |= {"image_caching_mode": "full" if image else "none",
            "image_cache_start_address": 0, "image_cache_end_address": SRAM_START}
    if image >= SMALL_IMAGE_CACHE:
        out |= {"image_cache_start_address": end, "image_cache_end_address": min(end + image, sram)}
    return out


def _align(size: int, to: int) -> int:
    return ceil_div(size, to) * to
