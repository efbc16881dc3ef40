"""Inputs that show each weight alone (impulse images, and captures that hold them), and a reader of
a capture's outputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import chain, product
from typing import Any

import numpy as np
from numpy import ndarray as Array

from npulab.analysis.scan.records import Probe
from npulab.analysis.scan.sites import ACCUMULATOR_BITS, NO_TAP, readings
from npulab.captures.capture import COMMANDS, Capture
from npulab.captures.registry import target
from npulab.quant.layers import Conv2D
from npulab.quant.rules import QUANTIZED, QuantParams

# Every input is run with this many output scales; each output step is 4 times as many accumulator
# units as the step before.
NEAR = 4
# The largest value of a random image is an impulse divided by this.
NOISE = 8

Reached = list[list[tuple[int, int]]]


def impulses(layer: Conv2D, amplitude: int = 1) -> list[Array]:
    """Images ``(H, W, C) int64`` that show every weight alone. They are 0 (the input zero point)
    except for single pixels, the impulses.

    Impulses lie so far apart that no output reads two of them. Every weight that the layer can show
    is read by an output of one of the images. If there is room, some outputs read no impulse and
    show the bias alone.
    """
    down, across = _reached(0, layer), _reached(1, layer)
    depth = layer.input_shape[2]
    rows = {row for row, _ in chain.from_iterable(down)}
    columns = {column for column, _ in chain.from_iterable(across)}
    # by input channel: the taps (row, column) that no image shows yet
    missing = [set(product(rows, columns)) for _ in range(depth)]
    images = []
    while any(missing):
        image = np.zeros(layer.input_shape, np.int64)
        # each channel of a depthwise layer has outputs of its own
        taken = np.zeros((depth, *layer.output_shape[:2]), bool)
        for channel in range(depth):
            own = taken[0]
            if layer.depthwise:
                own = taken[channel]
            while place := _best_place(down, across, missing[channel], own):
                row, column = place
                image[row, column, channel] = amplitude
                for (tap_row, y), (tap_column, x) in product(down[row], across[column]):
                    own[y, x] = True
                    missing[channel].discard((tap_row, tap_column))
        images.append(image)
    return images


def _reached(axis: int, layer: Conv2D) -> Reached:
    """For each input row (axis 0) or column (axis 1): the pairs (kernel tap, output) that
    read it.
    """
    size, outputs, taps = layer.input_shape[axis], layer.output_shape[axis], layer.kernel[axis]
    stride, spread, before = layer.stride[axis], layer.dilation[axis], layer.pads[axis][0]
    reached: Reached = [[] for _ in range(size)]
    for tap, place in product(range(taps), range(outputs)):
        at = place * stride + tap * spread - before
        if 0 <= at < size:
            reached[at].append((tap, place))
    return reached


def _best_place(
    down: Reached, across: Reached, missing: set[tuple[int, int]], taken: Array
) -> tuple[int, int] | None:
    """The place (row, column) of the impulse that shows most ``missing`` taps in outputs that no
    other impulse uses (``taken`` is False); the first such place, or None if there is none.

    A further impulse of an image leaves at least one output unused, which shows the bias alone.
    """
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


def reader(capture: Capture) -> Callable[[bytes], Array]:
    """A function that turns the bytes of an output into an array ``(H, W, C)``.

    At its first call it finds, with the ``lift`` of the target, where each element lies; an output
    of another size is returned as bytes.
    """
    found: dict[int, tuple[np.dtype[Any], Array]] = {}

    def read(output: bytes) -> Array:
        size, raw = len(output), np.frombuffer(output, np.uint8)
        if not found:
            found[size] = _element_places(capture, size)
        if size not in found:
            return raw
        dtype, places = found[size]
        return raw[places].view(dtype)[..., 0]

    return read


def _element_places(capture: Capture, size: int) -> tuple[np.dtype[Any], Array]:
    """Return the type of an element and the places of its bytes in the output.

    To find the places, outputs are lifted in which each byte holds a digit (base 256) of its own
    number, once for each digit.
    """
    numbers, places, dtype = np.arange(size), np.zeros(1, np.int64), np.dtype(np.uint8)
    for digit in range(math.ceil(math.log(max(size, 2), 256))):
        code = (numbers // 256**digit % 256).astype(np.uint8).tobytes()
        lifted = target(capture.target).lift(capture.with_buffers(output=code)).output
        if lifted is None:
            raise ValueError(
                f"capture {capture.name}: got no output from ``lift`` of its target, allowed is a "
                "capture that is lifted with its output"
            )
        dtype, raw = lifted.dtype, np.ascontiguousarray(lifted)[..., None].view(np.uint8)
        places = places + raw.astype(np.int64) * 256**digit
    return dtype, places


def opened(layer: Conv2D) -> Conv2D:
    """The layer with every weight that an NPU may have stored for it.

    It is dense, and its kernel has at least 2x2 taps and sizes that the stride divides, because an
    NPU may split a stride into phases.
    """
    sizes, added = [], []
    for kernel, stride, spread in zip(layer.kernel, layer.stride, layer.dilation, strict=True):
        size = max(-(-kernel // stride) * stride, 2)
        sizes.append(size)
        added.append((size - kernel) * spread)
    (top, bottom), (left, right) = layer.pads
    shape = (layer.output_shape[2], *sizes, layer.input_shape[2])
    return replace(
        layer,
        weights=np.zeros(shape, layer.weights.dtype),
        bias=np.zeros(shape[0], np.int64),
        depthwise=False,
        padding=((top, bottom + added[0]), (left, right + added[1])),
        weight_q=QuantParams(1.0, layer.weight_q.zero_point),
    )


def probes_of(capture: Capture, layer: Conv2D, through: bool, seed: int) -> list[Probe]:
    """Inputs for scanning a lifted layer: impulses, zeros if not every impulse image shows a bias
    alone, and a random image.

    With ``through`` each input is run with several output scales, and with an input zero point of
    0: then an input of 0 adds nothing, whether an NPU subtracts the zero point from the input or
    has it in the bias. Otherwise the scales and the zero point are those of the capture. Raises
    ValueError for a layer that is not a convolution of codes.
    """
    if not isinstance(layer, Conv2D) or layer.dtype not in QUANTIZED:
        raise ValueError(
            f"layer: got {layer}, allowed is a Conv2D of {', '.join(QUANTIZED)}; others are "
            "scanned with inputs of your own"
        )
    if through:
        weight_q = QuantParams(1.0, layer.weight_q.zero_point)
        layer = replace(layer, input_q=QuantParams(1.0, 0), weight_q=weight_q)
    images, high = _images(layer, seed)
    fed = []
    for image in images:
        x = (image + layer.input_q.zero_point).astype(layer.dtype)
        lowered = target(capture.target).lower(layer, chip=capture.chip, x=x)
        fed.append(_with_inputs(capture, lowered))
    if not through:
        return [Probe(given) for given in fed]
    info = np.iinfo(layer.dtype)
    middle = (int(info.min) + int(info.max) + 1) // 2
    every = opened(layer)
    # the first image that shows a bias alone
    lone = next(i for i, image in enumerate(images) if np.any(readings(every, image)[0] == NO_TAP))
    # The order of a bit shows if the bit moves an output by at least 4 steps, and not to the end of
    # the output's type.
    window = info.bits - 1
    steps = [(i, high * 4**power) for power, i in product(range(NEAR), range(len(images)))]
    for power in (0, window // 2, *range(window, ACCUMULATOR_BITS, window - 2)):
        steps.append((lone, 2**power))
    probes = []
    for i, step in dict.fromkeys(steps):
        given = _scaled(fed[i], layer, step, middle)
        if given is not None:
            probes.append(Probe(given, images[i], float(step), float(middle)))
    if not probes:
        raise ValueError(
            f"capture {capture.name}: got a target whose ``lower`` refuses other output scales, "
            "allowed is a target that takes them, or inputs of your own"
        )
    return probes


def _images(layer: Conv2D, seed: int) -> tuple[list[Array], int]:
    """Return images as differences from the input zero point, and the size of their impulses: the
    largest power of two that the input's type holds."""
    info, zero = np.iinfo(layer.dtype), layer.input_q.zero_point
    up, down = int(info.max) - zero, zero - int(info.min)
    high = 2 ** (max(up, down).bit_length() - 1)
    amplitude = high
    if up < down:
        amplitude = -high
    every = opened(layer)
    images = impulses(every, amplitude)
    if not all(np.any(readings(every, image)[0] == NO_TAP) for image in images):
        images.append(np.zeros(layer.input_shape, np.int64))
    noise = max(high // NOISE, 1)
    least, most = max(-noise, -down), min(noise, up)
    images.append(np.random.default_rng(seed).integers(least, most + 1, layer.input_shape))
    return images, high


def _with_inputs(capture: Capture, other: Capture) -> Capture:
    """The capture with the buffer ``input`` of another capture, and with all further buffers that
    both have, except commands, coefficients and output.
    """
    taken = {}
    for name, data in other.buffers.items():
        if name == "input" or (
            name in capture.buffers and name not in (COMMANDS, "coefficients", "output")
        ):
            taken[name] = data
    return capture.with_buffers(**taken)


def _scaled(capture: Capture, layer: Conv2D, step: int, middle: int) -> Capture | None:
    """The capture with the layer's input zero point, an output step of ``step`` accumulator units,
    the output zero point ``middle`` and no activation; None if the target cannot state that."""
    known = target(capture.target)
    wanted = replace(layer, activation=None, output_q=QuantParams(float(step), middle))
    try:
        before = known.lower(known.lift(capture).layer, chip=capture.chip)
        after = known.lower(wanted, chip=capture.chip)
    except ValueError:
        return None
    changed = capture
    if len(before.jobs) == len(after.jobs) == len(capture.jobs):
        for task in range(len(capture.jobs)):
            changed = _with_changes(changed, before.jobs[task].words, after.jobs[task].words, task)
    else:
        changed = _with_changes(changed, before.words, after.words, capture.main)
    got = known.lift(changed).layer
    ratio = np.max(got.input_q.scale) * np.max(got.weight_q.scale) / np.max(got.output_q.scale)
    same_zero = got.input_q.zero_point == layer.input_q.zero_point
    if np.isclose(ratio * step, 1.0, rtol=1e-9) and same_zero and got.activation is None:
        return changed
    return None


def _with_changes(capture: Capture, old: Array, new: Array, task: int) -> Capture:
    """The capture with some bits of a job changed. ``old`` and ``new`` are the words of two lowered
    jobs: each bit in which they differ is set as in ``new``.
    """
    words, differs = capture.jobs[task].words, old ^ new
    return capture.with_words((words & ~differs) | (new & differs), task)
