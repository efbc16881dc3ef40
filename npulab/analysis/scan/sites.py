"""Which outputs a bit moves, and where it belongs by that: a weight, a bias, or nothing that a
layer has.

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

from npulab.analysis.scan.records import NOWHERE, Probe
from npulab.quant.layers import Conv2D

NO_TAP, SEVERAL, BIAS = -1, -2, -2  # an output reads no weight, more than one; the tap of a bias
WIDE = 4  # bytes of a type whose end is not likely to be where outputs stop
LOCAL = (
    1 / 8
)  # share of the outputs that one weight or bias moves at most, where nothing is known of the layer
ACCUMULATOR_BITS = 32


@dataclass(eq=False)
class View:
    """An input, the bits that stay flipped under it, and the output of the buffer so."""

    index: int
    probe: Probe
    base: np.ndarray
    output: np.ndarray
    channel: np.ndarray  # of each output
    reads: np.ndarray  # the tap that an output reads, NO_TAP, or SEVERAL
    amplitude: np.ndarray  # with which it reads it
    mapped: bool  # reads were told by an image, they are SEVERAL otherwise

    @property
    def step(self) -> float | None:
        return self.probe.step

    @cached_property
    def everything(self) -> int:
        return 2**self.output.size - 1

    @cached_property
    def channels(self) -> tuple[int, ...]:
        """The outputs of each channel."""
        return tuple(as_set(self.channel == one) for one in np.unique(self.channel))

    @cached_property
    def span(self) -> tuple[float, float]:
        if self.output.dtype.kind not in "iu":
            return -math.inf, math.inf
        info = np.iinfo(self.output.dtype)
        return float(info.min), float(info.max)

    def cut(self, values: np.ndarray) -> np.ndarray:
        """Which outputs are at the end of their type."""
        return (values <= self.span[0]) | (values >= self.span[1])

    @cached_property
    def free(self) -> np.ndarray:
        """Which outputs are not at the end of their type."""
        return ~self.cut(self.output.ravel())

    @cached_property
    def lone(self) -> np.ndarray:
        """Which of these read no weight: they show the bias."""
        return self.free & (self.reads == NO_TAP)

    @property
    def saturated(self) -> float:
        """The share of outputs at the end of their type."""
        return float((~self.free).mean())

    @property
    def shown(self) -> int:
        """How many outputs read one weight alone and are not at the end of their type."""
        return int(np.count_nonzero((self.reads >= 0) & self.free))

    @cached_property
    def exact(self) -> bool:
        """Whether every weight's lowest bit moves an output by a whole number of steps."""
        return self.step is None or not np.any(self.amplitude % self.step)

    def moved(self, output: np.ndarray) -> np.ndarray:
        """Which outputs differ; all of them where the shape does."""
        if output.shape != self.output.shape:
            return np.ones(self.output.size, bool)
        return (
            (output != self.output) & ~((output != output) & (self.output != self.output))
        ).ravel()

    def effect(self, number: int, moved: int, output: np.ndarray) -> Effect:
        """What an output says of the bit that moved some outputs of this view, which has a
        number."""
        places = np.flatnonzero(from_set(moved, self.output.size))
        if output.shape != self.output.shape:
            return Effect(
                number, moved, places, np.full(len(places), np.nan), np.ones(len(places), bool)
            )
        before, after = self.output.ravel()[places], output.ravel()[places]
        cut = self.cut(before) | self.cut(after)
        if output.dtype.itemsize >= WIDE:
            # outputs that differed and became one stop short of the end of their type
            for value in np.unique(after):
                cut |= (after == value) & (np.ptp(before[after == value]) > 0)
        return Effect(
            number, moved, places, after.astype(np.float64) - before.astype(np.float64), cut
        )


class Effect(NamedTuple):
    """What flipping one bit did in one view: the outputs that moved, where and by how much."""

    view: int
    moved: int
    places: np.ndarray
    change: np.ndarray
    cut: np.ndarray  # whether the output is at the end of its type, before or after

    @property
    def even(self) -> bool:
        """Whether all outputs moved by as much, as far as their type lets them; an accumulator that
        wraps around moves the other way."""
        free = np.abs(self.change[~self.cut])
        if len(free):
            return bool(np.ptp(free) <= 1)
        return not np.isnan(self.change).any()


def view_of(
    index: int, probe: Probe, layer: Conv2D | None, base: np.ndarray, output: np.ndarray
) -> View:
    """The view that an output is; raises ValueError where it is not shaped as the layer's."""
    if layer is not None and output.shape != layer.output_shape:
        raise ValueError(
            f"run: got an output of shape {output.shape}, allowed is that of the layer, "
            f"{layer.output_shape}"
        )
    if output.ndim > 1:
        channel = np.arange(output.size) % output.shape[-1]
    else:
        channel = np.zeros(output.size, int)
    mapped = layer is not None and probe.image is not None
    reads, amplitude = np.full(output.size, SEVERAL), np.zeros(output.size)
    if layer is not None and probe.image is not None:
        reads, amplitude = readings(layer, probe.image)
    return View(index, probe, base, output, channel, reads, amplitude, mapped)


def as_set(mask: np.ndarray) -> int:
    """A set of outputs as the bits of one number."""
    return int.from_bytes(np.packbits(mask.ravel(), bitorder="little").tobytes(), "little")


def from_set(outputs: int, size: int) -> np.ndarray:
    raw = np.frombuffer(outputs.to_bytes((size + 7) // 8, "little"), np.uint8)
    return np.unpackbits(raw, count=size, bitorder="little").astype(bool)


def readings(layer: Conv2D, image: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(taps, amplitudes) by output: the one tap of (row, column, input channel) that reads
    something, NO_TAP or SEVERAL, and what it reads; both flat."""
    height, width, channels = layer.output_shape
    depth = layer.input_shape[2]
    padded = np.pad(image, (*layer.pads, (0, 0)))
    count, taps = (
        np.zeros((height, width, channels), int),
        np.full((height, width, channels), NO_TAP),
    )
    amplitude = np.zeros((height, width, channels))
    # the input channels that output channels read, one at a time
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
    role: str  # "weight", "bias", "either" or "control"
    channel: int = NOWHERE
    tap: int = NOWHERE
    # outputs moved by one step at most, as rounding may move some of a channel and not others
    weak: bool = False


def site_of(view: View, effect: Effect) -> Site:
    """Where the bit belongs by one effect."""
    channels, taps = view.channel[effect.places], view.reads[effect.places]
    channel, tap = int(channels[0]), int(taps[0])
    if (channels != channel).any():
        return Site("control")
    mine = view.channel == channel
    if not view.mapped:
        most = max(1, LOCAL * mine.size)
        local = (
            not mine.all()
            or len(effect.places) <= most
            or (effect.even and len(effect.places) == mine.size)
        )
        return Site("either" if local else "control", channel)
    if (taps == SEVERAL).any():
        return Site("either", channel)
    # also a bias moves a single output by one where the others round the other way
    weak = bool(np.abs(effect.change).max() < 2) and view.step not in (None, 1)
    if tap != NO_TAP and (taps == tap).all():
        sure = (not weak or view.exact) and bool((mine & (view.reads != tap) & view.free).any())
        return Site("weight" if sure else "either", channel, tap, weak)
    if effect.even and from_set(effect.moved, view.output.size)[mine & view.lone].all():
        return Site("bias", channel, BIAS, weak)
    return Site("either" if weak else "control", channel)


def joined(sites: Sequence[Site]) -> Site:
    """One site of what several effects say."""
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
