"""Jobs of the tensor processor (TP): tensors moved from one layout to another, the work split over
its cores.

A job reads its window tile by tile (columns, then rows, then planes) and hands each element to
nested output loops: loop 0 is the innermost, loop 6 counts on without an end.  Addresses are in
bytes; cells outside the image are the zero point.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from npulab.npus.kit import ceil_div
from npulab.npus.vivante.facts import USUAL

Values = dict[str, Any]
# Mesa 25.0.7, etnaviv_ml_tp.c
SMALL_IMAGE = 8  # columns of a single plane that one core does
ONE_CORE_WIDTHS, ONE_CORE_PLANES = (224, 320), 3


class Ends(NamedTuple):
    """The addresses from which and to which a tensor is moved, and its zero point."""

    source: int
    target: int
    zero_point: int


class Axis(NamedTuple):
    """What a job reads of rows or columns: how many there are, where its window begins and how many
    it has, and how many are in a tile."""

    size: int
    start: int
    window: int
    tile: int


class Part(NamedTuple):
    """A core's share of one dimension: ``size`` outputs, which take ``inputs`` and of which
    ``before`` are border; ``read`` and ``written`` count what the parts before it take and make."""

    size: int
    inputs: int
    before: int
    read: int
    written: int


def shares(outputs: int, inputs: int, step: int, before: int, cores: int) -> Iterator[Part]:
    """How ``outputs`` are split over cores: each takes the rest divided by the cores left; an
    output takes ``step`` inputs, ``before`` of them are border, and no part takes an input that is
    not there."""
    read = written = 0
    for core in range(cores):
        size = ceil_div(outputs - written, cores - core)
        border = max(before - step * written, 0)
        left = inputs - read
        count = left if core == cores - 1 else min(max(step * size - border, 0), left)
        if size:
            yield Part(size, count, border, read, written)
        read, written = read + count, written + size


def reshuffle(image: tuple[int, int, int], planes: tuple[int, int], border: tuple[int, int],
              cores: int, ends: Ends) -> list[Values]:
    """Split the planes of ``image`` (C, H, W) into four ``planes`` (rows, columns) each, with a
    (top, left) border.  One job for each part."""
    channels, height, width = image
    rows, columns = planes
    plane = rows * columns
    if (width <= SMALL_IMAGE and channels == 1) \
            or (width in ONE_CORE_WIDTHS and channels == ONE_CORE_PLANES):
        cores = 1
    sizes = columns, rows, channels
    # the longest dimension is split, of equal ones the last
    along = max(range(3), key=lambda n: (sizes[n], n)) if 4 * channels >= columns else 0
    axes = [(columns, width, 2, border[1]), (rows, height, 2, border[0]), (channels, channels, 1, 0)]
    whole = [Part(size, inputs, before, 0, 0) for size, inputs, _, before in axes]
    out = []
    for part in shares(*axes[along], cores):
        x, y, z = (part if n == along else share for n, share in enumerate(whole))
        out.append(_job(
            Axis(x.inputs, -x.before, 2 * x.size, 2 * x.size),
            Axis(y.inputs, -y.before, 2 * y.size, 2 * y.size),
            (z.inputs, width, width * height),
            [(plane, 2), (1, x.size), (2 * plane, 2), (columns, y.size)],
            Ends(ends.source + x.read + width * y.read + width * height * z.read,
                 ends.target + x.written + columns * y.written + 4 * plane * z.written,
                 ends.zero_point),
        ) | {"out_loop_1_reset": 1, "out_loop_3_reset": 1, "out_loop_6_inc": 4 * plane})
    return _with_flush(out)


def transpose(image: tuple[int, int, int], ends: Ends) -> list[Values]:
    """H x W x C to planes; ``image`` is (C, H, W)."""
    channels, height, width = image
    return [_job(Axis(channels, 0, channels, 1), Axis(width, 0, width, width),
                 (height, channels, width * channels),
                 [(1, width), (width * height, channels), (width, height)], ends)]


def detranspose(image: tuple[int, int, int], ends: Ends) -> list[Values]:
    """Planes to H x W x C; ``image`` is (C, H, W)."""
    channels, height, width = image
    rows, size = height * channels, width * height * channels
    return [_job(Axis(width, 0, width, 1), Axis(rows, 0, rows, 1), (1, width, size),
                 [(channels, width), (0, 1), (width * channels, height), (1, channels), (size, 1)],
                 ends)]


def pad(image: tuple[int, int, int], border: tuple[tuple[int, int], tuple[int, int]], cores: int,
        ends: Ends) -> list[Values]:
    """Planes with a border of ((top, bottom), (left, right)); ``image`` is (C, H, W).  Split over
    planes."""
    channels, height, width = image
    (top, bottom), (left, right) = border
    rows, columns = top + height + bottom, left + width + right
    plane = rows * columns
    return _with_flush([
        _job(Axis(width, -left, columns, columns), Axis(height, -top, rows, rows),
             (part.inputs, width, width * height), [(0, 1), (1, columns), (columns, rows)],
             Ends(ends.source + width * height * part.read, ends.target + plane * part.written,
                  ends.zero_point)) | {"out_loop_6_inc": plane}
        for part in shares(channels, channels, 1, 0, 1 if width == 1 else cores)])


def _job(x: Axis, y: Axis, planes: tuple[int, int, int], loops: Sequence[tuple[int, int]],
         ends: Ends) -> Values:
    """Values of a job over columns ``x``, rows ``y`` and ``planes``: (how many, bytes of a row,
    bytes of a plane); ``loops`` are (bytes of a step, steps) of the output from the innermost."""
    out = {**USUAL["TP"], "in_image_z_size": planes[0], "in_image_stride": planes[1],
           "in_image_slice": planes[2], "in_image_base_address": ends.source,
           "out_image_base_address": ends.target, "in_zp": ends.zero_point,
           "out_zp": ends.zero_point}
    for name, axis in (("x", x), ("y", y)):
        out |= {f"in_image_{name}_size": axis.size, f"in_window_{name}_start": axis.start,
                f"in_window_{name}_end": axis.start + axis.window - 1,
                f"in_tile_{name}_size": axis.tile, f"in_tile_{name}_inc": axis.tile}
    for n, (step, count) in enumerate(loops):
        out |= {f"out_loop_{n}_inc": step, f"out_loop_{n}_count": count}
    return out


def _with_flush(parts: list[Values]) -> list[Values]:
    """Only the last part flushes."""
    return [part | {"no_flush": int(part is not parts[-1])} for part in parts]
