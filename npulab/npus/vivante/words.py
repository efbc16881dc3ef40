"""The 34 words of an NN job, from a layer's plan and the bytes of its coefficients."""

from __future__ import annotations

from collections.abc import Set
from typing import Any, NamedTuple

import numpy as np

from npulab.captures.target import Features
from npulab.npus.kit import ceil_div, up
from npulab.npus.vivante.dialects import MARK, SRAM_START, mark_of, ring_unit
from npulab.npus.vivante.facts import PATTERNS, USUAL, Size, tensor_bytes
from npulab.npus.vivante.plans import Lowered
from npulab.npus.vivante.quirks import MESA_OFFSETS, ODD_STRIDE2_TILE, VENDOR_DIALECT
from npulab.quant.layers import Conv2D
from npulab.quant.rules import Mantissa

# A multiplier halfway between two codes is rounded to the even one, as in the vendor's simulator
# (V). No capture of a board has shown such a multiplier.
MULTIPLIERS = {
    "nn_v7": Mantissa("vivante-v7:half-even", bits=15, ties="half-even"),
    "nn_v8": Mantissa("vivante-v8:half-even", bits=23, ties="half-even"),
}
MOST_SHIFT = 128  # post_shift has 7 bits

# Mesa 25.0.7, etnaviv_ml_nn.c; SMALLEST_CACHE_END also C:update4-vendor.
SMALLEST_CACHE_END, SMALL_IMAGE_CACHE = 0xA00, 0x800
# A core has at most MOST_KERNELS in a superblock. An output tile has at most WIDEST_TILE columns;
# the two spans are bounds of the tile's columns plus kernel_h - 1.
MOST_KERNELS = 127
WIDEST_TILE, WIDE_SPAN, MIDDLE_SPAN = 64, 36, 18
# The vendor's compiler on V7. Key: the most columns of a tile. Value: how many rows of this tile
# stand in one line of a core's accumulators, or of its input buffer (V: all 395 layers fit).
ACCUMULATOR_LINES = {8: 8, 16: 4, 32: 2}
INPUT_LINES = {MIDDLE_SPAN: 4, WIDE_SPAN: 2}
# V8: the output pixels that take one row of accumulators, and the most rows of an output tile.
TILE_PIXELS, TALLEST_TILE = 64, 4
# The field ``pooling`` has raw FIRST_PIXEL if the unit keeps the first pixel of each 2x2. The V8
# header states the length of each core's stream from byte STREAM_LENGTHS on. A length is a word,
# and so is a bias.
FIRST_PIXEL = 3
STREAM_LENGTHS, WORD_BYTES = 28, 4


def generation(facts: Features) -> str:
    """Return the feature, ``nn_v7`` or ``nn_v8``, that the chip has."""
    if facts.get("nn_v8"):
        return "nn_v8"
    return "nn_v7"


def multiplier_of(facts: Features, *scales: Any) -> Size:
    """Return (post multiplier without its leading 1, post shift) for ``scales``: of the input, the
    weights and the output."""
    rule = MULTIPLIERS[generation(facts)]
    multiplier, shift = rule.multiplier(*scales)
    return int(multiplier) - 2**rule.bits, int(shift) - _kept(facts)


def ratio_of(facts: Features, multiplier: int, shift: int) -> float:
    """Return the ratio of scales (input * weight / output) that a job's post multiplier and post
    shift stand for.
    """
    return (2 ** MULTIPLIERS[generation(facts)].bits + multiplier) / 2.0 ** (shift + _kept(facts))


def folded_zero(facts: Features, zero_point: int) -> int:
    """Return the factor z of a bias as the coefficient buffer stores it: bias - z * sum(weight -
    weight's zero point).

    On V7 z is the input's zero point. On V8 it is that zero point less 128, because the unit
    subtracts 128 from each input code.
    """
    if facts.get("nn_v8"):
        return zero_point - 128
    return zero_point


def _kept(facts: Features) -> int:
    """Return the difference of a right shift by the rule and the post shift in the words: the bits
    of the multiplier's fraction on V8, 0 on V7."""
    if facts.get("nn_v8"):
        return MULTIPLIERS["nn_v8"].bits
    return 0


class Tiling(NamedTuple):
    """The (rows, columns) of an output tile, and the number of superblocks (kernels that a core
    works on at a time) of each core."""

    size: Size
    superblocks: int


def tiling(low: Lowered, facts: Features, quirks: Set[str] = frozenset()) -> Tiling:
    """Return the tile and superblocks that the driver chooses."""
    if VENDOR_DIALECT in quirks and not facts.get("nn_v8"):
        return _vendor_tiling(low, facts)
    height, width = low.before_pooling
    tile_w = min(width, WIDEST_TILE)
    mode = interleave(low.kernel[0], tile_w, facts)
    tile_h = min(
        facts["input_depth"] * mode - low.kernel[0] + 1, mode * facts["accumulation_depth"], height
    )
    if facts.get("nn_v8"):
        tile_h = min(tile_h, TALLEST_TILE)
    if low.stride == 2 and ODD_STRIDE2_TILE not in quirks:
        tile_h -= tile_h % 2
    tile_h = max(tile_h, 1)
    cores, share = facts["nn_cores"], ceil_div(low.channels, facts["nn_cores"])
    fit = max(min(_resident(low, (tile_h, tile_w), mode, facts), share, MOST_KERNELS), 1)
    passes = ceil_div(low.channels, cores * fit)
    return Tiling((tile_h, tile_w), ceil_div(share, ceil_div(low.channels, passes * cores)))


def _vendor_tiling(low: Lowered, facts: Features) -> Tiling:
    """Return a tile and superblocks that the vendor's compiler may choose on V7.

    The choice is the fewest superblocks, then the widest, then the highest tile that fits. Columns
    and rows are then shared evenly by the tiles. The tiles of all 395 layers are within these
    limits (V). The compiler often chooses a lower or narrower tile, by a law that is not known (the
    page says how often).
    """
    height, width = low.before_pooling
    tile_w = ceil_div(width, ceil_div(width, WIDEST_TILE))
    if low.pooled:
        tile_w = up(tile_w, 2)
    rows = facts["accumulation_depth"] * _lines(tile_w, ACCUMULATOR_LINES)
    most = min(MOST_KERNELS, rows)
    if low.kernel == (1, 1):
        most = min(most, facts["accumulation_depth"] // 3)
    share = ceil_div(low.channels, facts["nn_cores"])
    blocks = ceil_div(share, most)
    span = tile_w + low.kernel[1] - 1
    input_rows = facts["input_depth"] * _lines(span, INPUT_LINES)
    fit = min(input_rows - low.kernel[0] + 1, rows // ceil_div(share, blocks), height)
    if low.pooled:
        fit -= fit % 2
    tile_h = ceil_div(height, ceil_div(height, max(fit, 1)))
    if low.pooled and fit > 1:
        tile_h = up(tile_h, 2)
    return Tiling((tile_h, tile_w), blocks)


def _lines(columns: int, limits: dict[int, int]) -> int:
    """Return how many rows of ``columns`` columns stand in one line of a buffer. Key of ``limits``:
    the most columns. Value: the number of rows."""
    for most, lines in limits.items():
        if columns <= most:
            return lines
    return 1


def interleave(kernel_h: int, tile_w: int, facts: Features) -> int:
    """Return the interleave mode: the number of rows of a narrow tile that stand in one line of the
    input buffer.
    """
    span = kernel_h - 1 + tile_w
    if span > WIDE_SPAN:
        return 1
    if tile_w > 32:
        mode = 1
    elif tile_w > 16:
        mode = 2
    else:
        mode = 4
    if facts.get("nn_v8"):
        if span > MIDDLE_SPAN:
            return min(mode, 2)
        return mode
    if tile_w <= 8:
        mode = 8
    # A wider span is allowed a larger mode, which looks wrong, but the driver does the same.
    if span > MIDDLE_SPAN:
        return min(mode, 4)
    return min(mode, 2)


def _resident(low: Lowered, tile: Size, mode: int, facts: Features) -> int:
    """Return the number of kernels whose accumulators a core can keep at a time."""
    depth, pointwise = facts["accumulation_depth"], low.kernel[1] == 1
    if not facts.get("nn_v8"):
        fit = depth * mode // tile[0]
        if pointwise:
            return min(fit, depth // 3)
        return fit
    if pointwise:
        rows = ceil_div(tile[0], mode)
    else:
        pixels = ceil_div(tile[0] * tile[1], low.stride)
        rows = ceil_div(pixels, TILE_PIXELS) * low.stride
    return min(depth // rows, depth * 6 // 9)


def nn_values(
    layer: Conv2D,
    low: Lowered,
    facts: Features,
    quirks: Set[str],
    cached: int,
) -> dict[str, Any]:
    """Return the values of an NN job by field, without addresses. ``cached`` is the number of bytes
    of coefficients that go on chip."""
    (tile_h, tile_w), blocks = tiling(low, facts, quirks)
    scales = layer.input_q.scale, layer.weight_q.scale, layer.output_q.scale
    multiplier, shift = multiplier_of(facts, *scales)
    kernel_h, kernel_w = low.kernel
    out_h, out_w = low.before_pooling
    top, left = _offsets(layer, low, quirks)
    v8, pooling = int(bool(facts.get("nn_v8"))), "none"
    if low.pooled:
        pooling = "first_pixel"
    values = {
        **USUAL["NN"],
        "no_z_offset": v8,
        "no_flush": v8,
        "depthwise": int(low.depthwise),
        "kernel_xy_size": kernel_w,
        "kernel_y_size": kernel_h,
        "kernel_z_size": low.planes,
        "kernels_per_core": ceil_div(ceil_div(low.channels, facts["nn_cores"]), blocks),
        "pooling": pooling,
        "pooling_xy_size": int(not low.pooled),
        "in_image_x_size": low.columns,
        "in_image_y_size": low.rows,
        "in_image_x_offset": left,
        "in_image_y_offset": top,
        "relu": int(layer.activation == "relu"),
        "post_multiplier": multiplier,
        "post_shift": shift,
        "out_image_x_size": out_w,
        "out_image_y_size": out_h,
        "out_image_z_size": low.channels,
        "out_image_tile_x_size": tile_w,
        "out_image_tile_y_size": tile_h,
        "in_image_border_const": layer.input_q.zero_point,
        "in_image_x_stride": low.columns,
        "in_image_y_stride": low.rows,
        "out_image_x_stride": low.output[1],
        "out_image_y_stride": low.output[0],
        "coef_zero_point": layer.weight_q.zero_point,
        "out_zero_point": layer.output_q.zero_point,
        "further4": np.inf,
        "further5": -np.inf,
        **_caches(low, facts, (tile_h, tile_w), blocks, cached),
    }
    if VENDOR_DIALECT in quirks:
        values |= _vendor_values(low, facts, values, cached)
    return values


def _vendor_values(
    low: Lowered,
    facts: Features,
    values: dict[str, Any],
    cached: int,
) -> dict[str, Any]:
    """Return the values, by field, that the vendor's compiler writes instead of Mesa's (V), without
    the ends of rings. ``values`` are Mesa's, ``cached`` the bytes of coefficients that go on chip.

    Each law holds in all 395 layers of A311D, if tile, superblocks and stream sizes are given.
    """
    v8 = facts.get("nn_v8")
    rows, columns = low.kernel
    sizes = tensor_bytes(values)
    planes = {
        "in": values["in_image_x_stride"] * values["in_image_y_stride"],
        "out": values["out_image_x_stride"] * values["out_image_y_stride"],
    }
    out: dict[str, Any] = {
        MARK: mark_of(low.pooled),
        "planes_of_64": int(planes["in"] % 64 == 0) + 2 * int(planes["out"] % 64 == 0),
        "out_image_circular_buf_size": up(sizes["output"], ring_unit(facts)),
    }
    image = sizes["input"]
    if low.thinned:
        # Another job splits the image into four parts, of which the unit reads one. The ring holds
        # all four.
        image *= 4
    out["in_image_circular_buf_size"] = up(image, ring_unit(facts))
    if v8:
        out["w18_28_1"] = 1
    else:
        for axis in "xy":
            out[f"in_image_{axis}_offset_sign"] = int(values[f"in_image_{axis}_offset"] < 0)
        if rows > columns:
            # A kernel higher than wide has one column; the vendor marks it and writes its rows as
            # its width.
            out |= {"layer_type": 1, "kernel_xy_size": rows}
    if low.depthwise:
        out["kernel_z_size"] = 1
    return out | _vendor_caches(low, facts, values, cached)


def _vendor_caches(
    low: Lowered,
    facts: Features,
    values: dict[str, Any],
    cached: int,
) -> dict[str, Any]:
    """Return the values of the on-chip caches, by field, as the vendor's compiler writes them: the
    room for an image tile comes first, then the coefficients.

    The result is empty for a layer that does not fit on chip; no such layer was seen.
    """
    tile_h, tile_w = values["out_image_tile_y_size"], values["out_image_tile_x_size"]
    rows, columns = low.kernel
    area = min(low.rows * low.columns, (tile_h + rows - 1) * (tile_w + columns - 1))
    unit = ring_unit(facts)
    start = SRAM_START + up(up(area, 16) * low.planes, unit)
    end = up(start + cached, unit)
    if end > facts["sram"]:
        return {}
    out = {
        "kernel_caching_mode": "full",
        "kernel_cache_start_address": start,
        "kernel_cache_end_address": end,
        "image_caching_mode": "none",
        "image_cache_start_address": 0,
        "image_cache_end_address": SRAM_START,
    }
    share = ceil_div(low.channels, facts["nn_cores"])
    if values["kernels_per_core"] < share and low.kernel != (1, 1):
        # Each of several superblocks reads the whole image, so the image is cached too.
        out |= {
            "image_caching_mode": "full",
            "image_cache_start_address": SRAM_START,
            "image_cache_end_address": start,
        }
    return out


def cached_bytes(
    low: Lowered,
    facts: Features,
    streams: int,
    largest: int,
    vendor: bool = False,
) -> int:
    """Return how many bytes of coefficients go on chip. ``streams`` is the number of bytes of all
    cores' streams, ``largest`` the number of bytes of the largest stream."""
    if vendor and not facts.get("nn_v8"):
        return facts["nn_cores"] * largest
    if facts.get("nn_v8"):
        head = up(STREAM_LENGTHS + WORD_BYTES * facts["nn_cores"], 64)
        return head + streams + WORD_BYTES * low.channels
    return min(low.channels, facts["nn_cores"]) * largest


def _offsets(layer: Conv2D, low: Lowered, quirks: Set[str]) -> Size:
    """Return (row, column) of the input at which the first window begins, negative in a border."""
    if MESA_OFFSETS not in quirks or layer.padding != "same":
        return -low.pad[0], -low.pad[1]
    kernel, width, offset = low.kernel[1], low.columns, 0
    if kernel > 2 and low.stride == 1:
        offset = -2
        if kernel < 5:
            offset = -1
    elif kernel > 2 and (width < 5 or (layer.depthwise and 5 in (kernel, width))):
        offset = -2
        if (width <= 5) == (kernel < 5):
            offset = -1
    return offset, offset


def _caches(low: Lowered, facts: Features, tile: Size, blocks: int, cached: int) -> dict[str, Any]:
    """Return the values of the on-chip caches, by field, as Mesa writes them: of the coefficients
    (``cached`` bytes), and of the image if the job has several superblocks (``blocks``)."""
    sram, image = facts["sram"], 0
    if blocks > 1:
        area = (tile[0] + low.kernel[0] - 1) * (tile[1] + low.kernel[1] - 1)
        image = up(up(area, 16) * low.planes, 128)
    out: dict[str, Any] = {"kernel_cache_start_address": SRAM_START}
    if SRAM_START + cached + image < sram:
        end = max(min(up(SRAM_START + cached, 128), sram), SMALLEST_CACHE_END)
        out |= {"kernel_caching_mode": "full", "kernel_cache_end_address": end}
    else:
        if SRAM_START + cached >= sram or image > sram:
            image = 0
        end = sram - image
        _, msb, low_half, high = next(row for row in PATTERNS if low.channels >= row[0])
        out |= {
            "kernel_caching_mode": "partial",
            "kernel_cache_end_address": end,
            "kernel_pattern_msb": msb,
            "kernel_pattern_low": low_half,
            "kernel_pattern_high": high,
        }
    out["image_caching_mode"] = "none"
    if image:
        out["image_caching_mode"] = "full"
    out |= {"image_cache_start_address": 0, "image_cache_end_address": SRAM_START}
    if image >= SMALL_IMAGE_CACHE:
        out |= {"image_cache_start_address": end, "image_cache_end_address": min(end + image, sram)}
    if facts.get("nn_v8"):
        # Mesa does not cache on V8 yet.
        out |= {"kernel_caching_mode": "none", "image_caching_mode": "none"}
    return out
