"""Moves of tensors around an NN job: jobs of the tensor processor (TP) written and read back.

A job reads the elements of a window, tile by tile: columns first, then rows, then planes. Nested
output loops give the address to which each element is written: loop 0 is the innermost, loop 6 has
no end. A move is split into a job for each core of the processor that takes part. Addresses are in
bytes. Elements of the window outside the image are the zero point.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from npulab.captures.target import Features
from npulab.npus.kit import Capture, ceil_div
from npulab.npus.vivante.facts import USUAL, Shape, Size
from npulab.npus.vivante.plans import Lowered
from npulab.quant.layers import Conv2D

Sides = tuple[tuple[int, int], tuple[int, int]]
Values = dict[str, Any]
# Mesa 25.0.7, etnaviv_ml_tp.c
SMALL_IMAGE = 8  # an image of one plane with at most this many columns is moved by one core
# An image of one of these widths and of 3 planes is moved by one core.
ONE_CORE_WIDTHS, ONE_CORE_PLANES = (224, 320), 3


@dataclass(frozen=True)
class Move:
    """A move of a tensor by TP jobs: the ``kind`` of the jobs, the name of the buffer that they
    read (``source``) and of the buffer that they write (``target``)."""

    kind: str
    source: str
    target: str


@dataclass(frozen=True)
class Moved:
    """The effect of a capture's TP jobs around its NN job.

    ``image`` is the (H, W, C) of the tensor that they read, None if no TP job comes before the NN
    job. ``border`` is the ((top, bottom), (left, right)) that a pad job adds, None without one.
    ``split`` is the (top, left) border of planes that a job splits, None if no job splits them.
    ``hwc_in`` is True if a job transposes the input from H x W x C to planes, ``hwc_out`` if a job
    transposes the output back.
    """

    image: Shape | None = None
    border: Sides | None = None
    split: Size | None = None
    hwc_in: bool = False
    hwc_out: bool = False

    @property
    def split_size(self) -> Size:
        """(rows, columns) of the image whose planes are split, including the border that a pad job
        adds."""
        assert self.image is not None
        (top, bottom), (left, right) = self.border or ((0, 0), (0, 0))
        return top + self.image[0] + bottom, left + self.image[1] + right


def moved_by(
    move: Move, conv: Conv2D, low: Lowered, facts: Features, where: Features
) -> list[Values]:
    """Return the values of the TP jobs of a move, by field: a job for each core that takes part.

    ``where`` has the addresses of buffers by name."""
    cores, (height, width, channels) = facts["tp_cores"], conv.input_shape
    q = conv.input_q
    if move.kind == "detranspose":
        q = conv.output_q
    ends = Ends(where[move.source], where[move.target], q.zero_point)
    if move.kind == "transpose":
        return transpose((channels, height, width), ends)
    if move.kind == "pad":
        return pad((channels, height, width), conv.pads, cores, ends)
    if move.kind == "detranspose":
        rows, columns, planes = conv.output_shape
        return detranspose((planes, rows, columns), ends)
    if move.source == "padded":
        (top, bottom), (left, right) = conv.pads
        height, width = top + height + bottom, left + width + right
    return reshuffle((channels, height, width), (low.rows, low.columns), low.border, cores, ends)


def moves_of(capture: Capture) -> Moved:
    """Return the moves that a capture's TP jobs make. Raises ValueError for a job on the wrong side
    of the NN job, and for an image without columns."""
    out, after_nn, channels = Moved(), False, capture.values["kernel_z_size"]
    for task, job in enumerate(capture.jobs):
        if job.block != "TP":
            after_nn = True
            continue
        t = capture.maps["TP"].decode(job.words)
        width, image = t["in_image_stride"], None
        top, left = -t["in_window_y_start"], -t["in_window_x_start"]
        if t["out_loop_1_reset"] and t["out_loop_3_reset"]:
            rows, columns = out.split or (0, 0)
            kind, out = "reshuffle", replace(out, split=(max(rows, top), max(columns, left)))
            channels = capture.values["kernel_z_size"] // 4
        elif t["out_loop_6_inc"]:
            below = t["in_window_y_end"] + 1 - t["in_image_y_size"]
            right = t["in_window_x_end"] + 1 - t["in_image_x_size"]
            kind, out = "pad", replace(out, border=((top, below), (left, right)))
        elif t["out_loop_3_inc"]:
            kind, out = "detranspose", replace(out, hwc_out=True)
        else:
            kind, out = "transpose", replace(out, hwc_in=True)
            image = t["in_image_z_size"], t["in_image_y_size"], t["in_image_x_size"]
        if after_nn != (kind == "detranspose") or not width:
            raise ValueError(
                f"lift for vivante: task {task}: got a {kind} job, allowed is a detranspose job "
                "only after the NN job, any other only before it, and only images with columns"
            )
        if not after_nn and out.image is None:
            out = replace(out, image=image or (t["in_image_slice"] // width, width, 0))
    if out.image is not None and not out.image[2]:
        out = replace(out, image=(*out.image[:2], channels))
    return out


def moved_input(capture: Capture, moved: Moved) -> np.ndarray:
    """Return the input ``(H, W, C)`` that lies in memory before the TP jobs."""
    assert moved.image is not None
    height, width, channels = moved.image
    if moved.hwc_in:
        return tensor_of(capture, "tensor", moved.image)
    return tensor_of(capture, "tensor", (channels, height, width)).transpose(1, 2, 0)


def tensor_of(capture: Capture, name: str, shape: Shape) -> np.ndarray:
    """Return the tensor at the start of a buffer; ValueError if the buffer is too short for it."""
    data, need = capture.buffers[name], math.prod(shape)
    if len(data) < need:
        raise ValueError(
            f"capture {capture.name}: buffer {name!r} has {len(data)} bytes, its jobs "
            f"ask for a tensor of {' x '.join(map(str, shape))}, which is {need} bytes"
        )
    return np.frombuffer(data, np.uint8, need).reshape(shape)


# The values of TP jobs


class Ends(NamedTuple):
    """A move's two addresses in memory, ``source`` and ``target``, and the tensor's zero point."""

    source: int
    target: int
    zero_point: int


class Axis(NamedTuple):
    """An axis (rows or columns) as a TP job reads it, in elements: the ``size`` of the image, the
    ``start`` of the window, the length of the ``window`` and the length of a ``tile``."""

    size: int
    start: int
    window: int
    tile: int


class Share(NamedTuple):
    """A core's share of a dimension: the core writes ``size`` outputs, made of ``before`` cells of
    border and of the ``inputs`` that follow the border.

    ``read`` is the number of inputs in the shares of earlier cores, ``written`` of outputs.
    """

    size: int
    inputs: int
    before: int
    read: int
    written: int


def shares(outputs: int, inputs: int, step: int, before: int, cores: int) -> Iterator[Share]:
    """Yield the share of each core. A core's outputs are the outputs that no core has yet, divided
    by the number of cores without a share and rounded up.

    An output takes ``step`` inputs; ``before`` cells of border come before the first input. The
    last shares have fewer inputs if there are too few.
    """
    read = written = 0
    for core in range(cores):
        size = ceil_div(outputs - written, cores - core)
        border = max(before - step * written, 0)
        count = inputs - read
        if core < cores - 1:
            count = min(max(step * size - border, 0), count)
        if size:
            yield Share(size, count, border, read, written)
        read, written = read + count, written + size


def reshuffle(
    image: Shape,
    planes: Size,
    border: Size,
    cores: int,
    ends: Ends,
) -> list[Values]:
    """Return the values of the TP jobs that split each plane of an image into four smaller planes.

    ``image`` is the size (C, H, W), ``planes`` the (rows, columns) of a smaller plane, ``border``
    the (top, left) border of the image."""
    channels, height, width = image
    rows, columns = planes
    plane = rows * columns
    small = width <= SMALL_IMAGE and channels == 1
    if small or (width in ONE_CORE_WIDTHS and channels == ONE_CORE_PLANES):
        cores = 1
    sizes = columns, rows, channels
    # Cores share the columns if there are more than 4 columns for each channel. Else they share the
    # longest of columns, rows and channels; the last of these if several are equally long.
    along = 0
    if 4 * channels >= columns:
        along = max(range(3), key=lambda n: (sizes[n], n))
    axes = [
        (columns, width, 2, border[1]),
        (rows, height, 2, border[0]),
        (channels, channels, 1, 0),
    ]
    parts = [Share(size, inputs, before, 0, 0) for size, inputs, _, before in axes]
    resets = {"out_loop_1_reset": 1, "out_loop_3_reset": 1, "out_loop_6_inc": 4 * plane}
    out = []
    for share in shares(*axes[along], cores):
        parts[along] = share
        x, y, z = parts
        source = ends.source + x.read + width * y.read + width * height * z.read
        target = ends.target + x.written + columns * y.written + 4 * plane * z.written
        job = _job(
            Axis(x.inputs, -x.before, 2 * x.size, 2 * x.size),
            Axis(y.inputs, -y.before, 2 * y.size, 2 * y.size),
            (z.inputs, width, width * height),
            [(plane, 2), (1, x.size), (2 * plane, 2), (columns, y.size)],
            Ends(source, target, ends.zero_point),
        )
        out.append(job | resets)
    return _with_flush(out)


def transpose(image: Shape, ends: Ends) -> list[Values]:
    """Return the values of the TP job that reads a tensor H x W x C and writes its planes;
    ``image`` is the size (C, H, W)."""
    channels, height, width = image
    return [
        _job(
            Axis(channels, 0, channels, 1),
            Axis(width, 0, width, width),
            (height, channels, width * channels),
            [(1, width), (width * height, channels), (width, height)],
            ends,
        )
    ]


def detranspose(image: Shape, ends: Ends) -> list[Values]:
    """Return the values of the TP job that reads planes and writes them as H x W x C; ``image`` is
    the size (C, H, W)."""
    channels, height, width = image
    rows = height * channels
    size = width * rows
    return [
        _job(
            Axis(width, 0, width, 1),
            Axis(rows, 0, rows, 1),
            (1, width, size),
            [(channels, width), (0, 1), (width * channels, height), (1, channels), (size, 1)],
            ends,
        )
    ]


def pad(
    image: Shape,
    border: Sides,
    cores: int,
    ends: Ends,
) -> list[Values]:
    """Return the values of the TP jobs that add a border ((top, bottom), (left, right)) to each
    plane; every core takes some planes. ``image`` is the size (C, H, W) without the border."""
    channels, height, width = image
    (top, bottom), (left, right) = border
    rows = top + height + bottom
    columns = left + width + right
    plane = rows * columns
    if width == 1:
        cores = 1
    out = []
    for share in shares(channels, channels, 1, 0, cores):
        source = ends.source + width * height * share.read
        job = _job(
            Axis(width, -left, columns, columns),
            Axis(height, -top, rows, rows),
            (share.inputs, width, width * height),
            [(0, 1), (1, columns), (columns, rows)],
            Ends(source, ends.target + plane * share.written, ends.zero_point),
        )
        out.append(job | {"out_loop_6_inc": plane})
    return _with_flush(out)


def _job(x: Axis, y: Axis, planes: Shape, loops: Sequence[Size], ends: Ends) -> Values:
    """Return the values of a TP job that reads columns ``x``, rows ``y`` and ``planes`` (count,
    bytes from row to row, bytes from plane to plane). ``loops`` are the output's loops from the
    innermost, each (bytes of a step, number of steps)."""
    out = {
        **USUAL["TP"],
        "in_image_z_size": planes[0],
        "in_image_stride": planes[1],
        "in_image_slice": planes[2],
        "in_image_base_address": ends.source,
        "out_image_base_address": ends.target,
        "in_zp": ends.zero_point,
        "out_zp": ends.zero_point,
    }
    for name, axis in (("x", x), ("y", y)):
        out |= {
            f"in_image_{name}_size": axis.size,
            f"in_window_{name}_start": axis.start,
            f"in_window_{name}_end": axis.start + axis.window - 1,
            f"in_tile_{name}_size": axis.tile,
            f"in_tile_{name}_inc": axis.tile,
        }
    for n, (step, count) in enumerate(loops):
        out |= {f"out_loop_{n}_inc": step, f"out_loop_{n}_count": count}
    return out


def _with_flush(parts: list[Values]) -> list[Values]:
    """Change the values of jobs so that only the last job flushes, and return them."""
    for part in parts:
        part["no_flush"] = 1
    parts[-1]["no_flush"] = 0
    return parts
