"""What TP jobs do around an NN job: the jobs of each move, and the moves read back from jobs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from npulab.npus.kit import Capture
from npulab.npus.vivante import tensor_jobs
from npulab.npus.vivante.plans import Lowered
from npulab.npus.vivante.tensor_jobs import Ends
from npulab.quant.layers import Conv2D

Sides = tuple[tuple[int, int], tuple[int, int]]


@dataclass(frozen=True)
class Move:
    """TP jobs that move a tensor: what they do, and the names of where they read and write."""

    kind: str
    source: str
    target: str


@dataclass(frozen=True)
class Moved:
    """What the TP jobs of a capture do around its NN job.

    ``image`` (H, W, C) is what they read, None where none comes before it; ``border`` ((top,
    bottom), (left, right)) what a pad job adds; ``split`` the (top, left) border of split planes,
    None where they are not split; ``hwc_in`` and ``hwc_out`` whether tensors are transposed.
    """

    image: tuple[int, int, int] | None = None
    border: Sides | None = None
    split: tuple[int, int] | None = None
    hwc_in: bool = False
    hwc_out: bool = False

    @property
    def split_size(self) -> tuple[int, int]:
        """(rows, columns) of the image that is split: with its border, where a job adds one."""
        assert self.image is not None
        (top, bottom), (left, right) = self.border or ((0, 0), (0, 0))
        return top + self.image[0] + bottom, left + self.image[1] + right


def moved_by(move: Move, conv: Conv2D, low: Lowered, facts: Mapping[str, int],
             where: Mapping[str, int]) -> list[dict[str, Any]]:
    """The TP jobs of a move, one for each core that takes part."""
    cores, (height, width, channels) = facts["tp_cores"], conv.input_shape
    q = conv.output_q if move.kind == "detranspose" else conv.input_q
    ends = Ends(where[move.source], where[move.target], q.zero_point)
    if move.kind == "transpose":
        return tensor_jobs.transpose((channels, height, width), ends)
    if move.kind == "pad":
        return tensor_jobs.pad((channels, height, width), conv.pads, cores, ends)
    if move.kind == "detranspose":
        rows, columns, planes = conv.output_shape
        return tensor_jobs.detranspose((planes, rows, columns), ends)
    if move.source == "padded":
        (top, bottom), (left, right) = conv.pads
        height, width = top + height + bottom, left + width + right
    return tensor_jobs.reshuffle((channels, height, width), (low.rows, low.columns), low.border,
                                 cores, ends)


def moves_of(capture: Capture) -> Moved:
    """What the TP jobs do; ValueError for one that does something else."""
    out, seen, z = Moved(), False, capture.values["kernel_z_size"]
    for task, job in enumerate(capture.jobs):
        if job.block != "TP":
            seen = True
            continue
        t = capture.maps["TP"].decode(job.words)
        width, image = t["in_image_stride"], None
        top, left = -t["in_window_y_start"], -t["in_window_x_start"]
        if t["out_loop_1_reset"] and t["out_loop_3_reset"]:
            before = out.split or (0, 0)
            kind, out = "reshuffle", replace(out, split=(max(before[0], top), max(before[1], left)))
            z = capture.values["kernel_z_size"] // 4
        elif t["out_loop_6_inc"]:
            below = t["in_window_y_end"] + 1 - t["in_image_y_size"]
            right = t["in_window_x_end"] + 1 - t["in_image_x_size"]
            kind, out = "pad", replace(out, border=((top, below), (left, right)))
        elif t["out_loop_3_inc"]:
            kind, out = "detranspose", replace(out, hwc_out=True)
        else:
            kind, out = "transpose", replace(out, hwc_in=True)
            image = t["in_image_z_size"], t["in_image_y_size"], t["in_image_x_size"]
        if seen != (kind == "detranspose") or not width:
            raise ValueError(f"lift for vivante: task {task} is a {kind} job on the wrong side of "
                             "the NN job, or of an image without columns")
        if not seen and out.image is None:
            out = replace(out, image=image or (t["in_image_slice"] // width, width, 0))
    if out.image is not None:
        out = replace(out, image=(*out.image[:2], out.image[2] or z))
    return out


def moved_input(capture: Capture, moved: Moved) -> np.ndarray:
    """The input ``(H, W, C)`` as it lies in memory before the TP jobs."""
    assert moved.image is not None
    height, width, channels = moved.image
    if moved.hwc_in:
        return tensor_of(capture, "tensor", moved.image)
    return tensor_of(capture, "tensor", (channels, height, width)).transpose(1, 2, 0)


def tensor_of(capture: Capture, name: str, shape: tuple[int, int, int]) -> np.ndarray:
    """The tensor at the start of a buffer; ValueError if the buffer is too short for it."""
    data, need = capture.buffers[name], math.prod(shape)
    if len(data) < need:
        raise ValueError(f"capture {capture.name}: buffer {name!r} has {len(data)} bytes, its jobs "
                         f"say {' x '.join(map(str, shape))}, {need} bytes")
    return np.frombuffer(data, np.uint8, need).reshape(shape)
