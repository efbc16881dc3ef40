"""The outputs that a bit moves, and the place of the bit that follows from them: in a weight, in a
bias, or in neither (control).

A set of outputs is kept as the bits of an int.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy import ndarray as Array

from npulab.analysis.scan.records import NOWHERE, Probe
from npulab.quant.layers import Conv2D

# Items of ``View.reads`` for an output that reads no weight, and for one that reads several.
NO_TAP, SEVERAL = -1, -2
# The tap in the ``Site`` of a bit of a bias.
BIAS = -2
# Outputs of a type of at least this many bytes probably never reach its lowest or highest value.
WIDE = 4
# If no layer is known, a weight is assumed to move at most this share of a channel's outputs.
LOCAL = 1 / 8
ACCUMULATOR_BITS = 32


@dataclass(eq=False)
class View:
    """An input (number ``index``), the bits ``base`` of the buffer that stay flipped, and their
    ``output``.

    For each output: ``channel`` is its channel; ``reads`` the tap that it reads, NO_TAP or SEVERAL;
    ``amplitude`` the input that this tap multiplies. If no image says which taps are read,
    ``mapped`` is False, and all ``reads`` are SEVERAL.
    """

    index: int
    probe: Probe
    base: Array
    output: Array
    channel: Array
    reads: Array
    amplitude: Array
    mapped: bool

    @property
    def step(self) -> float | None:
        return self.probe.step

    @cached_property
    def everything(self) -> int:
        return 2**self.output.size - 1

    @cached_property
    def channels(self) -> tuple[int, ...]:
        """The outputs of each channel, as an int whose bit i stands for output i."""
        return tuple(as_set(self.channel == number) for number in np.unique(self.channel))

    @cached_property
    def span(self) -> tuple[float, float]:
        if self.output.dtype.kind not in "iu":
            return -math.inf, math.inf
        info = np.iinfo(self.output.dtype)
        return float(info.min), float(info.max)

    def cut(self, values: Array) -> Array:
        """A mask of the values that are at the lowest or highest value of their type."""
        return (values <= self.span[0]) | (values >= self.span[1])

    @cached_property
    def free(self) -> Array:
        """A mask of the outputs that are not at the lowest or highest value of their type."""
        return ~self.cut(self.output.ravel())

    @cached_property
    def lone(self) -> Array:
        """A mask of the free outputs that read no weight, so that they show the bias alone."""
        return self.free & (self.reads == NO_TAP)

    @property
    def saturated(self) -> float:
        """The share (0 to 1) of outputs that are at the lowest or highest value of their type."""
        return float((~self.free).mean())

    @property
    def shown(self) -> int:
        """The number of free outputs that read exactly one weight."""
        return int(np.count_nonzero((self.reads >= 0) & self.free))

    @cached_property
    def exact(self) -> bool:
        """True if the lowest bit of every weight moves an output by whole steps, or no step is
        known.
        """
        return self.step is None or not np.any(self.amplitude % self.step)

    def moved(self, output: Array) -> Array:
        """A mask of the outputs that differ from this view's; all are True if the shape differs."""
        if output.shape != self.output.shape:
            return np.ones(self.output.size, bool)
        both_nan = (output != output) & (self.output != self.output)
        return ((output != self.output) & ~both_nan).ravel()

    def effect(self, number: int, moved: int, output: Array) -> Effect:
        """The effect of a bit that moved the outputs ``moved`` under this view; ``number`` is the
        view's.
        """
        places = np.flatnonzero(from_set(moved, self.output.size))
        if output.shape != self.output.shape:
            unknown = np.full(len(places), np.nan)
            return Effect(number, moved, places, unknown, np.ones(len(places), bool))
        before, after = self.output.ravel()[places], output.ravel()[places]
        cut = self.cut(before) | self.cut(after)
        if output.dtype.itemsize >= WIDE:
            # if different outputs became equal, something limits them before the end of their type
            for value in np.unique(after):
                cut |= (after == value) & (np.ptp(before[after == value]) > 0)
        change = after.astype(np.float64) - before.astype(np.float64)
        return Effect(number, moved, places, change, cut)


class Effect(NamedTuple):
    """What flipping one bit under one view does: the set ``moved`` of outputs that moved, their
    ``places`` in the flat output, and the ``change`` of each in output steps. ``cut`` is True for
    an output that was or came to be at the end of its type.
    """

    view: int
    moved: int
    places: Array
    change: Array
    cut: Array

    @property
    def even(self) -> bool:
        """True if all outputs off the end of their type moved by the same amount, up to one step.
        The sign does not count, because an accumulator that wraps around moves the other way.
        """
        free = np.abs(self.change[~self.cut])
        if len(free):
            return bool(np.ptp(free) <= 1)
        return not np.isnan(self.change).any()


def view_of(index: int, probe: Probe, layer: Conv2D | None, base: Array, output: Array) -> View:
    """What an output shows (``View``); raises ValueError if the output has another shape than the
    layer's."""
    if layer is not None and output.shape != layer.output_shape:
        raise ValueError(
            f"run: got an output of shape {output.shape}, allowed is that of the layer, "
            f"{layer.output_shape}"
        )
    channel = np.zeros(output.size, int)
    if output.ndim > 1:
        channel = np.arange(output.size) % output.shape[-1]
    mapped = layer is not None and probe.image is not None
    reads, amplitude = np.full(output.size, SEVERAL), np.zeros(output.size)
    if layer is not None and probe.image is not None:
        reads, amplitude = readings(layer, probe.image)
    return View(index, probe, base, output, channel, reads, amplitude, mapped)


def as_set(mask: Array) -> int:
    """The set of the outputs that are True in a mask: an int whose bit i stands for output i."""
    return int.from_bytes(np.packbits(mask.ravel(), bitorder="little").tobytes(), "little")


def from_set(outputs: int, size: int) -> Array:
    """A mask ``(size,) bool`` of outputs from their set, an int."""
    raw = np.frombuffer(outputs.to_bytes((size + 7) // 8, "little"), np.uint8)
    return np.unpackbits(raw, count=size, bitorder="little").astype(bool)


def readings(layer: Conv2D, image: Array) -> tuple[Array, Array]:
    """Return two flat arrays with an entry for each output.

    The first has the number of the only tap (row, column, input channel) that reads an input other
    than 0; NO_TAP if there is none, SEVERAL if there are more. The second has the input that this
    tap reads.
    """
    height, width, channels = layer.output_shape
    depth = layer.input_shape[2]
    padded = np.pad(image, (*layer.pads, (0, 0)))
    count = np.zeros(layer.output_shape, int)
    taps = np.full(layer.output_shape, NO_TAP)
    amplitude = np.zeros(layer.output_shape)
    # each item has, for each output channel, the number of an input channel that it reads
    if layer.depthwise:
        planes = [np.arange(channels) * depth // channels]
    else:
        planes = [np.full(channels, plane) for plane in range(depth)]
    for row, column, plane in product(range(layer.kernel[0]), range(layer.kernel[1]), planes):
        y, x = row * layer.dilation[0], column * layer.dilation[1]
        seen = padded[
            y : y + (height - 1) * layer.stride[0] + 1 : layer.stride[0],
            x : x + (width - 1) * layer.stride[1] + 1 : layer.stride[1],
        ][..., plane]
        taps = np.where(seen, (row * layer.kernel[1] + column) * depth + plane, taps)
        amplitude = np.where(seen, seen, amplitude)
        count += seen != 0
    return np.where(count > 1, SEVERAL, taps).ravel(), amplitude.ravel()


class Site(NamedTuple):
    """The place of a bit in the layer, as far as its effects on outputs show it."""

    # "weight", "bias", "control", or "either" (of a weight or of a bias)
    role: str
    channel: int = NOWHERE
    tap: int = NOWHERE
    # True if outputs moved by at most one step: by rounding, a bias may move only some outputs of
    # its channel.
    weak: bool = False


def site_of(view: View, effect: Effect) -> Site:
    """The site of a bit that one effect shows."""
    channels, taps = view.channel[effect.places], view.reads[effect.places]
    channel, tap = int(channels[0]), int(taps[0])
    if (channels != channel).any():
        return Site("control")
    mine = view.channel == channel
    if not view.mapped:
        # a weight moves a few outputs, a bias all outputs of its channel, by the same amount
        few = len(effect.places) <= max(1, LOCAL * mine.size)
        whole = effect.even and len(effect.places) == mine.size
        if few or whole or not mine.all():
            return Site("either", channel)
        return Site("control", channel)
    if (taps == SEVERAL).any():
        return Site("either", channel)
    # a bias, too, may move only one output, by one step, if rounding hides the change of the others
    weak = bool(np.abs(effect.change).max() < 2) and view.step not in (None, 1)
    if tap != NO_TAP and (taps == tap).all():
        unread = mine & (view.reads != tap) & view.free
        if (view.exact or not weak) and unread.any():
            return Site("weight", channel, tap, weak)
        return Site("either", channel, tap, weak)
    if effect.even and from_set(effect.moved, view.output.size)[mine & view.lone].all():
        return Site("bias", channel, BIAS, weak)
    if weak:
        return Site("either", channel)
    return Site("control", channel)


def joined(sites: Sequence[Site]) -> Site:
    """The site on which all effects of a bit agree. Weak effects (of at most one step) count only
    if there are no others.
    """
    if any(site.role == "control" for site in sites) or len({site.channel for site in sites}) > 1:
        return Site("control")
    for weak in (False, True):
        sure = {site for site in sites if site.role != "either" and site.weak == weak}
        if len(sure) == 1:
            return sure.pop()
        if sure:
            if weak:
                return Site("either", sites[0].channel)
            return Site("control")
    return sites[0]
