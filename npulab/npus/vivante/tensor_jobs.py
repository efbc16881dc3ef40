"""Jobs of the tensor processor (TP): tensors moved from one layout to another, the work split over
its cores.

A job reads its window tile by tile (columns, then rows, then planes) and hands each element to
nested output loops: loop 0 is the innermost, loop 6 counts on without an end.  Addresses are in
bytes; cells outside the image are the zero point.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from npulab.npus.kit.numbers import ceil_div
from npulab.npus.vivante.facts import RING_OFF

Values = dict[str, Any]
# Mesa 25.0.7, etnaviv_ml_tp.c
COMMON: Values = {
    "in_image_global_mem": 1, "alu_i2f_enable": 1, "alu_f2i_enable": 1, "in_tile_x_size": 1, "in_tile_x_inc": 1,
    "out_image_global_mem": 1, "last": 1, "out_loop_3_count": 1, "out_loop_4_count": 1, "out_loop_5_count": 1,
    "flat_rounding_mode": 1, "integer_rounding_mode": 1, "in_image_circular_buf_end_address_plus_1": RING_OFF,
    "out_image_circular_buf_end_address_plus_1": RING_OFF}
SMALL_IMAGE = 8  # columns of a single plane that one core does
ONE_CORE_WIDTHS, ONE_CORE_PLANES = (224, 320), 3


class Part(NamedTuple):
    """A core's share of one dimension: ``size`` outputs of which ``before`` are border, and where
    they start.

    ``given`` and ``done`` count what the parts before it read and write.
    """

    size: int
    taken: int
    before: int
    given: int
    done: int


def shares(outputs: int, inputs: int, step: int, before: int, cores: int) -> Iterator[Part]:
    """How ``outputs`` are split over cores: each the rest divided by the cores left; an output
    takes ``step`` inputs, ``before`` of them are border, and no part takes an input that is not
    there."""
    given = done = 0
    for core in range(cores):
        size = ceil_div(outputs - done, cores - core)
        border = max(before - step * done, 0)
        taken = inputs - given if core == cores - 1 else min(max(step * size - border, 0), inputs - given)
        if size:
            yield Part(size, taken, border, given, done)
        given, done = given + taken, done + size


def reshuffle(image: tuple[int, int, int], planes: tuple[int, int], border: tuple[int, int], zero_point: int,
              cores: int, source: int, target: int) -> list[Values]:
    """Split the planes of ``image`` (C, H, W) into four ``planes`` (rows, columns) each, with a
    (top, left) border.

    ``source`` and ``target`` are addresses.  One job for each part.
    """
    channels, height, width = image
    rows, columns = planes
    plane = rows * columns
    if (width <= SMALL_IMAGE and channels == 1) or (width in ONE_CORE_WIDTHS and channels == ONE_CORE_PLANES):
        cores = 1
    along = 0
    if 4 * channels >= columns:
        sizes = columns, rows, channels
        for dimension in (1, 2):
            along = dimension if sizes[dimension] >= sizes[along] else along
    axes = [(columns, width, 2, border[1]), (rows, height, 2, border[0]), (channels, channels, 1, 0)]
    whole = [Part(size, taken, before, 0, 0) for size, taken, _, before in axes]
    out = []
    for part in shares(*axes[along], cores):
        x, y, z = (part if n == along else one for n, one in enumerate(whole))
        out.append(COMMON | {
            "in_image_x_size": x.taken, "in_image_y_size": y.taken, "in_image_z_size": z.taken,
            "in_image_stride": width, "in_image_slice": width * height,
            "in_window_x_start": -x.before, "in_window_y_start": -y.before,
            "in_window_x_end": 2 * x.size - 1 - x.before, "in_window_y_end": 2 * y.size - 1 - y.before,
            "in_tile_x_size": 2 * x.size, "in_tile_x_inc": 2 * x.size,
            "in_tile_y_size": 2 * y.size, "in_tile_y_inc": 2 * y.size,
            "in_image_base_address": source + x.given + width * y.given + width * height * z.given,
            "out_image_base_address": target + x.done + columns * y.done + 4 * plane * z.done,
            "out_loop_1_reset": 1, "out_loop_3_reset": 1, "out_loop_0_inc": plane, "out_loop_0_count": 2,
            "out_loop_1_inc": 1, "out_loop_1_count": x.size, "out_loop_2_inc": 2 * plane, "out_loop_2_count": 2,
            "out_loop_3_inc": columns, "out_loop_3_count": y.size, "out_loop_6_inc": 4 * plane,
            "in_zp": zero_point, "out_zp": zero_point})
    return _with_flush(out)


def transpose(image: tuple[int, int, int], zero_point: int, source: int, target: int) -> list[Values]:
    """H x W x C to planes; ``image`` is (C, H, W)."""
    channels, height, width = image
    return [COMMON | {
        "in_image_x_size": channels, "in_image_y_size": width, "in_image_z_size": height, "in_image_stride": channels,
        "in_image_slice": width * channels, "in_window_x_end": channels - 1, "in_window_y_end": width - 1,
        "in_tile_y_size": width, "in_tile_y_inc": width, "in_image_base_address": source,
        "out_image_base_address": target, "out_loop_0_inc": 1, "out_loop_0_count": width,
        "out_loop_1_inc": width * height, "out_loop_1_count": channels, "out_loop_2_inc": width,
        "out_loop_2_count": height, "in_zp": zero_point, "out_zp": zero_point}]


def detranspose(image: tuple[int, int, int], zero_point: int, source: int, target: int) -> list[Values]:
    """Planes to H x W x C; ``image`` is (C, H, W)."""
    channels, height, width = image
    return [COMMON | {
        "in_image_x_size": width, "in_image_y_size": height * channels, "in_image_z_size": 1, "in_image_stride": width,
        "in_image_slice": width * height * channels, "in_window_x_end": width - 1,
        "in_window_y_end": height * channels - 1, "in_tile_y_size": 1, "in_tile_y_inc": 1,
        "in_image_base_address": source, "out_image_base_address": target, "out_loop_0_inc": channels,
        "out_loop_0_count": width, "out_loop_1_count": 1, "out_loop_2_inc": width * channels,
        "out_loop_2_count": height, "out_loop_3_inc": 1, "out_loop_3_count": channels,
        "out_loop_4_inc": width * height * channels, "in_zp": zero_point, "out_zp": zero_point}]


def pad(image: tuple[int, int, int], border: tuple[tuple[int, int], tuple[int, int]], zero_point: int, cores: int,
        source: int, target: int) -> list[Values]:
    """Planes with a border of ((top, bottom), (left, right)); ``image`` is (C, H, W).  Split over
    planes."""
    channels, height, width = image
    (top, bottom), (left, right) = border
    rows, columns = top + height + bottom, left + width + right
    out = []
    for part in shares(channels, channels, 1, 0, 1 if width == 1 else cores):
        out.append(COMMON | {
            "in_image_x_size": width, "in_image_y_size": height, "in_image_z_size": part.taken,
            "in_image_stride": width, "in_image_slice": width * height, "in_window_x_start": -left,
            "in_window_y_start": -top, "in_window_x_end": width - 1 + right, "in_window_y_end": height - 1 + bottom,
            "in_tile_x_size": columns, "in_tile_x_inc": columns, "in_tile_y_size": rows, "in_tile_y_inc": rows,
            "in_image_base_address": source + width * height * part.given,
            "out_image_base_address": target + rows * columns * part.done, "out_loop_0_count": 1,
            "out_loop_1_inc": 1, "out_loop_1_count": columns, "out_loop_2_inc": columns, "out_loop_2_count": rows,
            "out_loop_6_inc": rows * columns, "in_zp": zero_point, "out_zp": zero_point})
    return _with_flush(out)


def _with_flush(parts: list[Values]) -> list[Values]:
    """Only the last part flushes."""
    return [part | {"no_flush": int(part is not parts[-1])} for part in parts]
