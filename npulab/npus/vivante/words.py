"""The 34 words of an NN job, from a layer's geometry and the bytes of its coefficients."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any, NamedTuple

import numpy as np

from npulab.npus.kit import ceil_div, up
from npulab.npus.vivante.facts import PATTERNS, USUAL
from npulab.npus.vivante.plans import Lowered
from npulab.npus.vivante.quirks import MESA_OFFSETS, ODD_STRIDE2_TILE
from npulab.quant.layers import Conv2D
from npulab.quant.rules import Mantissa

# vendor API default; no capture has shown how ties go
MULTIPLIERS = {
    "nn_v7": Mantissa("vivante-v7:half-even", bits=15, ties="half-even"),
    "nn_v8": Mantissa("vivante-v8:half-even", bits=23, ties="half-even"),
}
MOST_SHIFT = 128

# Mesa 25.0.7, etnaviv_ml_nn.c; SRAM_START and SMALLEST_CACHE_END also C:update4-vendor
SRAM_START, SMALLEST_CACHE_END, SMALL_IMAGE_CACHE = 0x800, 0xA00, 0x800
MOST_KERNELS = 127  # per core in one superblock
WIDEST_TILE, WIDE_SPAN, MIDDLE_SPAN = 64, 36, 18  # columns
TILE_PIXELS, TALLEST_TILE = 64, 4  # of V8
FIRST_PIXEL = 3
STREAM_LENGTHS, WORD_BYTES = (
    28,
    4,
)  # where the V8 header has them; the biases are words behind the streams


def generation(facts: Mapping[str, int]) -> str:
    """``nn_v7`` or ``nn_v8``, whichever feature a chip has."""
    if facts.get("nn_v8"):
        return "nn_v8"
    return "nn_v7"


def multiplier_of(facts: Mapping[str, int], *scales: Any) -> tuple[int, int]:
    """(post multiplier behind its leading one, post shift) of input, weight and output scale."""
    rule = MULTIPLIERS[generation(facts)]
    multiplier, shift = rule.multiplier(*scales)
    return int(multiplier) - 2**rule.bits, int(shift) - _kept(facts)


def ratio_of(facts: Mapping[str, int], multiplier: int, shift: int) -> float:
    """The ratio of scales that a post multiplier and shift say."""
    return (2 ** MULTIPLIERS[generation(facts)].bits + multiplier) / 2.0 ** (shift + _kept(facts))


def folded_zero(facts: Mapping[str, int], zero_point: int) -> int:
    """What a stored bias takes off the input zero point's share, in units of the weights' sum: the
    unit of V8 works on codes less 128."""
    if facts.get("nn_v8"):
        return zero_point - 128
    return zero_point


def _kept(facts: Mapping[str, int]) -> int:
    """Bits of fraction that the shift of V8 does not count."""
    if facts.get("nn_v8"):
        return MULTIPLIERS["nn_v8"].bits
    return 0


class Tiling(NamedTuple):
    """The (rows, columns) of an output tile, and how many superblocks a core's kernels take."""

    size: tuple[int, int]
    superblocks: int


def tiling(low: Lowered, facts: Mapping[str, int], quirks: Set[str] = frozenset()) -> Tiling:
    """Return the tile and superblocks that the driver chooses."""
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


def interleave(kernel_h: int, tile_w: int, facts: Mapping[str, int]) -> int:
    """The interleave mode: how many rows of a narrow tile share a line of the input buffer."""
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
    return min(
        mode, 4 if span > MIDDLE_SPAN else 2
    )  # looks the wrong way round, and is what the driver does


def _resident(low: Lowered, tile: tuple[int, int], mode: int, facts: Mapping[str, int]) -> int:
    """Kernels whose sums a core has room for."""
    depth = facts["accumulation_depth"]
    if not facts.get("nn_v8"):
        fit = depth * mode // tile[0]
        if low.kernel[1] == 1:
            return min(fit, depth // 3)
        return fit
    if low.kernel[1] == 1:
        fit = depth // ceil_div(tile[0], mode)
    else:
        fit = depth // (ceil_div(ceil_div(tile[0] * tile[1], low.stride), TILE_PIXELS) * low.stride)
    return min(fit, depth * 6 // 9)


def nn_values(
    layer: Conv2D,
    low: Lowered,
    facts: Mapping[str, int],
    quirks: Set[str],
    cached: int,
) -> dict[str, Any]:
    """Fields of the NN job by name, addresses apart; ``cached`` are the coefficients' bytes that go
    on chip."""
    (tile_h, tile_w), blocks = tiling(low, facts, quirks)
    multiplier, shift = multiplier_of(
        facts, *(q.scale for q in (layer.input_q, layer.weight_q, layer.output_q))
    )
    kernel_h, kernel_w = low.kernel
    (out_h, out_w), (top, left) = low.before_pooling, _offsets(layer, low, quirks)
    v8 = int(bool(facts.get("nn_v8")))
    return {
        **USUAL["NN"],
        "no_z_offset": v8,
        "no_flush": v8,
        "depthwise": int(low.depthwise),
        "kernel_xy_size": kernel_w,
        "kernel_y_size": kernel_h,
        "kernel_z_size": low.planes,
        "kernels_per_core": ceil_div(ceil_div(low.channels, facts["nn_cores"]), blocks),
        "pooling": "first_pixel" if low.pooled else "none",
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


def cached_bytes(low: Lowered, facts: Mapping[str, int], streams: int, largest: int) -> int:
    """Bytes of coefficients that go on chip, from those of all streams and of the largest."""
    if facts.get("nn_v8"):
        head = up(STREAM_LENGTHS + WORD_BYTES * facts["nn_cores"], 64)
        return head + streams + WORD_BYTES * low.channels
    return min(low.channels, facts["nn_cores"]) * largest


def _offsets(layer: Conv2D, low: Lowered, quirks: Set[str]) -> tuple[int, int]:
    """(first row, first column) of the window."""
    if MESA_OFFSETS not in quirks or layer.padding != "same":
        return -low.pad[0], -low.pad[1]
    kernel, width, offset = low.kernel[1], low.columns, 0
    if low.stride == 1 and kernel > 2:
        offset = -2
        if kernel < 5:
            offset = -1
    elif (
        low.stride == 2 and kernel > 2 and (width < 5 or (layer.depthwise and 5 in (kernel, width)))
    ):
        offset = -2
        if (width <= 5 and kernel < 5) or (width > 5 and kernel >= 5):
            offset = -1
    return offset, offset


def _caches(
    low: Lowered, facts: Mapping[str, int], tile: tuple[int, int], blocks: int, cached: int
) -> dict[str, Any]:
    """Fields of the on-chip caches."""
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
        msb, low_half, high = next(row[1:] for row in PATTERNS if low.channels >= row[0])
        out |= {
            "kernel_caching_mode": "partial",
            "kernel_cache_end_address": end,
            "kernel_pattern_msb": msb,
            "kernel_pattern_low": low_half,
            "kernel_pattern_high": high,
        }
    out |= {
        "image_caching_mode": "full" if image else "none",
        "image_cache_start_address": 0,
        "image_cache_end_address": SRAM_START,
    }
    if image >= SMALL_IMAGE_CACHE:
        out |= {"image_cache_start_address": end, "image_cache_end_address": min(end + image, sram)}
    if facts.get("nn_v8"):  # the driver does not cache on these yet
        out |= {"kernel_caching_mode": "none", "image_caching_mode": "none"}
    return out
