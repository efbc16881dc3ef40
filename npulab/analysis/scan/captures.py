"""Inputs that show weights alone: impulse images, and captures with them; and a capture's outputs
read."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from npulab.analysis.scan.records import Probe
from npulab.analysis.scan.sites import ACCUMULATOR_BITS, NO_TAP, readings
from npulab.captures.capture import COMMANDS, Capture
from npulab.captures.registry import target
from npulab.quant.layers import Conv2D
from npulab.quant.rules import QUANTIZED, QuantParams

NEAR = 4  # output scales, each a quarter of the one before, that every input is looked at through
NOISE = 8  # a random image has this part of an impulse

Reached = list[list[tuple[int, int]]]


def impulses(layer: Conv2D, amplitude: int = 1) -> list[np.ndarray]:
    """Images ``(H, W, C) int64`` against the input zero point, 0 but for impulses, that show every
    weight alone.

    Impulses lie so far apart that no output reads two of them; every weight that the layer can show
    is read by an output of one of the images, and where there is room outputs are left that read
    the bias alone.
    """
    down, across = (_reached(axis, layer) for axis in (0, 1))
    depth, groups = layer.input_shape[2], layer.input_shape[2] if layer.depthwise else 1
    missing = {
        (row, column, channel)
        for channel in range(depth)
        for row in {row for one in down for row, _ in one}
        for column in {c for one in across for c, _ in one}
    }
    out = []
    while missing:
        image = np.zeros(layer.input_shape, np.int64)
        occupied = np.zeros((*layer.output_shape[:2], groups), bool)
        for channel in range(depth):
            free = occupied[..., channel if layer.depthwise else 0]
            while place := _best_place(
                down, across, {tap[:2] for tap in missing if tap[2] == channel}, free
            ):
                row, column = place
                image[row, column, channel] = amplitude
                for (r, y), (c, x) in product(down[row], across[column]):
                    free[y, x] = True
                    missing.discard((r, c, channel))
        out.append(image)
    return out


def _reached(axis: int, layer: Conv2D) -> Reached:
    """(tap, output) pairs by input row (axis 0) or column (axis 1)."""
    size, outputs, taps = layer.input_shape[axis], layer.output_shape[axis], layer.kernel[axis]
    stride, spread, before = layer.stride[axis], layer.dilation[axis], layer.pads[axis][0]
    out: Reached = [[] for _ in range(size)]
    for tap, place in product(range(taps), range(outputs)):
        at = place * stride + tap * spread - before
        if 0 <= at < size:
            out[at].append((tap, place))
    return out


def _best_place(
    down: Reached, across: Reached, missing: set[tuple[int, int]], taken: np.ndarray
) -> tuple[int, int] | None:
    """(row, column) of an impulse that shows most of the missing taps in outputs that are free, the
    first of equals; an impulse that would take the last free output must be the image's first."""
    best, most = None, 0
    used = np.count_nonzero(taken)
    for row, column in product(range(len(down)), range(len(across))):
        ys, xs = [y for _, y in down[row]], [x for _, x in across[column]]
        size = len(ys) * len(xs)
        if size <= most or taken[np.ix_(ys, xs)].any() or (used and used + size == taken.size):
            continue
        count = sum((r, c) in missing for (r, _), (c, _) in product(down[row], across[column]))
        if count > most:
            best, most = (row, column), count
    return best


def reader(capture: Capture) -> Callable[[bytes], np.ndarray]:
    """Output bytes as ``(H, W, C)``: where each element lies is asked of the target's ``lift``,
    once; an output of another size stays bytes."""
    found: dict[int, tuple[np.dtype[Any], np.ndarray]] = {}

    def read(output: bytes) -> np.ndarray:
        size, raw = len(output), np.frombuffer(output, np.uint8)
        if not found:
            found[size] = _places(capture, size)
        if size in found:
            return raw[found[size][1]].view(found[size][0])[..., 0]
        return raw

    return read


def _places(capture: Capture, size: int) -> tuple[np.dtype[Any], np.ndarray]:
    """The type of an element and where its bytes lie: each byte of the output is lifted with its
    number."""
    numbers, places, dtype = np.arange(size), np.zeros(1, np.int64), np.dtype(np.uint8)
    for digit in range(math.ceil(math.log(max(size, 2), 256))):
        code = (numbers // 256**digit % 256).astype(np.uint8).tobytes()
        lifted = target(capture.target).lift(capture.with_buffers(output=code)).output
        if lifted is None:
            raise ValueError(
                f"capture {capture.name}: got no output of what the device gave, allowed is one "
                "that the "
                "target lifts"
            )
        dtype, raw = lifted.dtype, np.ascontiguousarray(lifted)[..., None].view(np.uint8)
        places = places + raw.astype(np.int64) * 256**digit
    return dtype, places


def opened(layer: Conv2D) -> Conv2D:
    """The layer with all the weights that an NPU may have made of it: dense, and with kernels that
    a stride divides (a stride taken apart) or of 2x2 at least."""
    sizes = [
        max(-(-kernel // stride) * stride, 2)
        for kernel, stride in zip(layer.kernel, layer.stride, strict=True)
    ]
    (top, bottom), (left, right) = layer.pads
    more = [
        (size - kernel) * spread
        for size, kernel, spread in zip(sizes, layer.kernel, layer.dilation, strict=True)
    ]
    shape = (layer.output_shape[2], *sizes, layer.input_shape[2])
    return replace(
        layer,
        weights=np.zeros(shape, layer.weights.dtype),
        bias=np.zeros(shape[0], np.int64),
        depthwise=False,
        padding=((top, bottom + more[0]), (left, right + more[1])),
        weight_q=QuantParams(1.0, layer.weight_q.zero_point),
    )


def probes_of(capture: Capture, layer: Conv2D, through: bool, seed: int) -> list[Probe]:
    """Inputs for a lifted layer: impulses, nothing at all where no impulse image shows a bias
    alone, and noise.

    ``through`` several output scales, with an input zero point of 0, which is silent whether an NPU
    takes the zero point off the input or has it in the bias; else as the capture has it. Raises
    ValueError for what is no convolution of codes.
    """
    if not isinstance(layer, Conv2D) or layer.dtype not in QUANTIZED:
        raise ValueError(
            f"layer: got {layer}, allowed is a Conv2D of {', '.join(QUANTIZED)}; others are "
            "scanned with "
            "inputs of your own"
        )
    info = np.iinfo(layer.dtype)
    if through:
        layer = replace(
            layer, input_q=QuantParams(1.0, 0), weight_q=QuantParams(1.0, layer.weight_q.zero_point)
        )
    zero = layer.input_q.zero_point
    up, down = int(info.max) - zero, zero - int(info.min)
    high = 2 ** (max(up, down).bit_length() - 1)
    every = opened(layer)
    images = impulses(every, high if up >= down else -high)
    shows_bias = [bool(np.any(readings(every, image)[0] == NO_TAP)) for image in images]
    if not all(shows_bias):
        images.append(np.zeros(layer.input_shape, np.int64))
        shows_bias.append(True)
    noise = max(high // NOISE, 1)
    images.append(
        np.random.default_rng(seed).integers(
            max(-noise, -down), min(noise, up) + 1, layer.input_shape
        )
    )
    lower = target(capture.target).lower
    fed = [
        _fed(capture, lower(layer, chip=capture.chip, x=(image + zero).astype(layer.dtype)))
        for image in images
    ]
    if not through:
        return [Probe(one) for one in fed]
    middle = (int(info.min) + int(info.max) + 1) // 2
    # an order is told where it moves an output by 4 steps or more, and not to the end of its type
    window = info.bits - 1
    far = (2**power for power in (0, window // 2, *range(window, ACCUMULATOR_BITS, window - 2)))
    steps = dict.fromkeys(
        [
            *((number, high * 4**power) for power in range(NEAR) for number in range(len(images))),
            *((shows_bias.index(True), step) for step in far),
        ]
    )
    out = [
        Probe(changed, images[number], float(step), float(middle))
        for number, step in steps
        if (changed := _scaled(fed[number], layer, step, middle)) is not None
    ]
    if not out:
        raise ValueError(
            f"capture {capture.name}: its target cannot say other output scales, allowed are then "
            "inputs "
            "of your own"
        )
    return out


def _fed(capture: Capture, other: Capture) -> Capture:
    """The capture with the tensors of another that go in: its input, and what jobs before it move
    there."""
    kept = (COMMANDS, "coefficients", "output")
    return capture.with_buffers(
        **{
            name: data
            for name, data in other.buffers.items()
            if name not in kept and (name == "input" or name in capture.buffers)
        }
    )


def _scaled(capture: Capture, layer: Conv2D, step: int, middle: int) -> Capture | None:
    """The capture with the layer's input zero point, an output scale of ``step`` accumulator units,
    its zero point in the middle and no activation; None where its target cannot say that."""
    known = target(capture.target)
    wanted = replace(layer, activation=None, output_q=QuantParams(float(step), middle))
    try:
        a, b = (known.lower(one, chip=capture.chip) for one in (known.lift(capture).layer, wanted))
    except ValueError:
        return None
    tasks = (
        range(len(capture.jobs))
        if len(a.jobs) == len(b.jobs) == len(capture.jobs)
        else [capture.main]
    )
    changed = capture
    for task in tasks:
        old, new = (one.jobs[task if len(tasks) > 1 else one.main].words for one in (a, b))
        words = capture.jobs[task].words
        changed = changed.with_words((words & ~(old ^ new)) | (new & (old ^ new)), task)
    got = known.lift(changed).layer
    ratio = np.max(got.input_q.scale) * np.max(got.weight_q.scale) / np.max(got.output_q.scale)
    exact = (
        np.isclose(ratio * step, 1.0, rtol=1e-9)
        and got.input_q.zero_point == layer.input_q.zero_point
    )
    if exact and got.activation is None:
        return changed
    return None
