"""Changes that are computed from the captured output: unwritten channels, permuted channels, other
biases.

Each change fits many numbers at once, so it is tried only if no plainer change makes the outputs
equal.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray as Array

from npulab.analysis.mismatch.changes import Change, after, with_layer
from npulab.analysis.mismatch.predicting import Explanation, Hypothesis, Sums
from npulab.analysis.mismatch.solved import allowed_sums
from npulab.analysis.mismatch.summary import spans
from npulab.quant.emulate import clamp_range
from npulab.quant.layers import Conv2D, Pool2D

UNWRITTEN = "unwritten"
# At least this many neighbouring outputs of one code count as unwritten.
RUN = 8
# A bias is fitted from at least this many outputs of its channel; saturated outputs and outputs of
# the most frequent code do not count.
FREE = 4
# A text names at most this many channels.
SHOWN = 8
BIASES_SHOWN = 4


def unwritten(start: Explanation, predicted: Array, output: Array) -> list[Change]:
    """Return changes for channels, and for rows, in which the captured output is one code, 0 or the
    zero point, although other outputs are predicted: the device probably did not write them.
    """
    if predicted.shape != output.shape:
        return []
    axes = {"channel": -1}
    if isinstance(start.layer, Conv2D | Pool2D):
        axes["row"] = -3
    found = []
    assert start.layer.output_q is not None
    for code in dict.fromkeys((0, start.layer.output_q.zero_point)):
        for name, axis in axes.items():
            rest = tuple(np.delete(np.arange(output.ndim), axis).tolist())
            empty = np.all(output == code, axis=rest)
            empty &= np.any(predicted != code, axis=rest)
            least = math.ceil(RUN * len(empty) / output.size)
            runs = _runs_of_true(empty, least)
            if not runs:
                continue
            places = np.concatenate(runs)
            if len(places) < len(empty):
                words = f"{spans(name, runs)}: captured is {code} everywhere"
                filled = partial(_filled, axis=axis, code=code, places=places)
                change = partial(after, change=filled)
                found.append(Change(UNWRITTEN, words, change, f"{name} of {code}"))
    return found


def _runs_of_true(flags: Array, least: int) -> list[Array]:
    """Return the runs of at least ``least`` neighbouring True flags, each as the indices in it."""
    starts = np.flatnonzero(np.diff(flags)) + 1
    runs = np.split(np.arange(len(flags)), starts)
    return [run for run in runs if flags[run[0]] and len(run) >= least]


def _filled(out: Array, axis: int, code: int, places: Array) -> Array:
    out = out.copy()
    np.moveaxis(out, axis, 0)[places] = code
    return out


def permutation(start: Explanation, predicted: Array, output: Array, sums: Any) -> list[Change]:
    """Return the change that permutes the predicted channels so that each equals a captured
    channel, as a list; empty if there is none.
    """
    places: dict[bytes, list[int]] = {}
    for channel, column in enumerate(_channels(predicted)):
        places.setdefault(column, []).append(channel)
    order = []
    moved = []
    for channel, column in enumerate(_channels(output)):
        free = places.get(column)
        if not free:
            return []
        source = free[0]
        if channel in free:
            source = channel
        else:
            moved.append(f"{channel} holds {source}")
        free.remove(source)
        order.append(source)
    if len(moved) > SHOWN:
        moved[SHOWN:] = ["..."]
    permuted = partial(np.take, indices=order, axis=-1)
    change = partial(after, change=permuted)
    words = f"output channels permuted: {', '.join(moved)}"
    return [Change("channel order", words, change, "output order")]


def _channels(tensor: Array) -> list[bytes]:
    columns = tensor.reshape(-1, tensor.shape[-1]).T
    return [column.tobytes() for column in columns]


def other_bias(start: Hypothesis, predicted: Array, output: Array, sums: Sums) -> list[Change]:
    """Return the change to the biases that explains all outputs of each channel, as a list; empty
    if there is none.

    Each output allows an interval of changes to its bias, and all intervals of a channel must have
    a number in common.
    """
    layer = start.layer
    count = output.shape[-1]
    codes = output.reshape(-1, count).astype(np.int64)
    total = sums.of(layer, start.x).reshape(-1, count)
    low, high = clamp_range(layer, output.dtype, start.rule)
    wrong = predicted.reshape(-1, count) != codes
    off = np.flatnonzero(np.any(wrong, axis=0))
    for column in codes[:, off].T:
        inside = column[(column > low) & (column < high)]
        _, counts = np.unique(inside, return_counts=True)
        if counts.sum() - counts.max(initial=0) < FREE:
            return []
    lowest, highest = allowed_sums(start, output)
    lowest -= total
    highest -= total
    least = lowest.max(0)[off]
    most = highest.min(0)[off]
    if np.any(least > most + 2):
        return []
    middle = np.rint((least + most) / 2).astype(np.int64)
    bias = np.zeros(count, np.int64) + layer.bias
    bias[off] += middle
    shown = [f"{step:+d} in channel {channel}" for channel, step in zip(off, middle, strict=True)]
    words = ", ".join(shown[:BIASES_SHOWN])
    if len(off) > BIASES_SHOWN:
        words += f", and in {len(off) - BIASES_SHOWN} more"
    change = partial(with_layer, bias=bias)
    return [Change("bias", f"bias off by {words}", change, "bias")]
