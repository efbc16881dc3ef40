"""Convolutions and fully connected layers in whole numbers. They are computed block by block: first
the accumulators, then outputs by a rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from numpy import ndarray as Array

from npulab.quant.emulate.engines import clamp_range, multipliers, parts_of, saturation_of
from npulab.quant.emulate.saturating import Saturation, excess
from npulab.quant.emulate.sums import Dense, Depthwise, Weights
from npulab.quant.layers import Conv2D, Weighted
from npulab.quant.requantize import NOTHING, Requantizer, Scratch, within
from npulab.quant.rules import Rule

# A block has about BLOCK elements: few enough for the second-level cache, and enough to need few
# calls.
BLOCK = 160_000
Group = tuple[int, int]


class Sums:
    """The accumulators of a layer; images are ``(N, H, W, C)``, rows of a fully connected layer
    ``(1, N, 1, I)``.
    """

    def __init__(self, layer: Weighted, dtype: np.dtype, keep: bool, fast: bool = False) -> None:
        self.layer = layer = upright(layer)
        self.work: Dense | Depthwise = (
            Depthwise(layer, dtype, fast)
            if isinstance(layer, Conv2D) and layer.depthwise
            else Dense(layer, dtype, keep, fast)
        )

    def blocks(
        self,
        images: Array,
        out_shape: tuple[int, ...],
        scratch: Scratch,
    ) -> Iterator[tuple[int, Group, Group, Weights, Array]]:
        """Yield (image number, range of channels, range of output rows, weights, exact sums
        ``(positions, channels)``) for each block.

        The sums are with or without the bias, as ``weights`` says. The next block overwrites them.
        """
        if isinstance(self.layer, Conv2D):
            images = images.reshape(-1, *self.layer.input_shape)
            out_shape = (len(images), *self.layer.output_shape)
        _, height, width, channels = out_shape
        # The blocks of a small layer have at most an eighth as many elements as its tensors have
        # bytes, because a block is copied several times, in numbers of four bytes.
        tensors = images[0].size + self.layer.weights.size + 5 * math.prod(out_shape[1:])
        step = max(1, min(BLOCK, tensors // 8) // (width * max(channels, self.work.width)))
        for number, image in enumerate(images):
            codes = self.work.codes.of(image)
            for group in self.work.groups:
                ready = self.work.weights(group)
                for first in range(0, height, step):
                    rows = first, min(first + step, height)
                    yield number, group, rows, ready, self.work.sums(ready, codes, rows, scratch)


class Quantized:
    """A quantized layer, its input type and a rule, prepared to run. If ``fast`` is true, numba's
    loops are used.

    ``saturation`` says how products are added; by default they are added as the rule's engine adds
    them.
    """

    def __init__(
        self,
        layer: Weighted,
        dtype: np.dtype,
        rule: str | Rule,
        keep: bool,
        fast: bool,
        saturation: Saturation | None = None,
    ) -> None:
        self.parts = parts_of(layer, dtype, rule)
        self.layer, self.saturation = layer, saturation or saturation_of(layer, dtype, rule)
        self.register = self.parts[0][0]
        formed = [multipliers(layer, *part) for part in self.parts]
        self.multiplier, self.right_shift = (
            np.concatenate(one) for one in zip(*formed, strict=True)
        )
        self.zero_point = layer.output_q.zero_point
        self.low, self.high = clamp_range(layer, dtype, rule)
        self.fast = fast and self.saturation is None
        self.sums = Sums(layer, dtype, keep, self.fast)
        self._made: dict[tuple[Group, int], Requantizer] = {}
        self._compiled: dict[tuple[Group, int], Callable[[Array, Array], None] | None] = {}

    def run(self, images: Array, out: Array, scratch: Scratch) -> None:
        """Write the output codes ``(N, H, W, C)`` of images ``(N, H, W, C)``."""
        channels = out.shape[-1]
        left: dict[Group, list[tuple[Array, Array]]] = {
            group: [] for group in self.sums.work.groups
        }
        rows = out.reshape(-1, channels)
        if self.saturation is not None:
            self._run_saturating(images, out, scratch)
            return
        for number, group, (first, end), ready, sums in self.sums.blocks(
            images, out.shape, scratch
        ):
            width = len(sums) // (end - first)
            start = number * out[0].size // channels + first * width
            into, run = rows[start : start + len(sums), slice(*group)], group[1] - group[0]
            # outputs are requantized faster in long rows; a whole output row can be one such row if
            # the block has all channels
            if run == channels:
                into, run = into.reshape(end - first, -1), width * channels
            compiled = None
            if self.fast:
                compiled = self._fast(group, run, ready)
            if compiled is not None:
                compiled(sums.reshape(-1, run), into)
                continue
            sums = _biased(sums, ready, scratch)
            if ready.most > self.register.accumulators[1]:
                sums = within(sums.astype(np.int64), self.register, group[0]).astype(np.float64)
            at, near = self._requantizer(group, run)(sums.reshape(-1, run), into, scratch)
            left[group].append((at + start * (group[1] - group[0]), near))
        # The rule computes the undecided outputs of a whole layer in one call, because even a call
        # with few outputs takes time.
        for group, found in left.items():
            at, near = (np.concatenate(one) for one in zip(NOTHING, *found, strict=True))
            if at.size:
                self._requantizer(group, group[1] - group[0]).recompute(
                    at, near, rows[:, slice(*group)]
                )

    def _run_saturating(self, images: Array, out: Array, scratch: Scratch) -> None:
        """Write the output codes of a layer whose accumulators saturate."""
        assert self.saturation is not None
        everything = 0, out.shape[-1]
        requantizer = self._requantizer(everything, out.shape[-1])
        for x, output in zip(images, out, strict=True):
            sums = np.empty((1, *output.shape), np.int64)
            accumulate(self.layer, x[None], sums, self.saturation)
            held = within(sums, self.register, 0).astype(np.float64).reshape(-1, out.shape[-1])
            rows = output.reshape(held.shape)
            requantizer.recompute(*requantizer(held, rows, scratch), rows)

    def _requantizer(self, group: Group, run: int) -> Requantizer:
        """Return the rule prepared for rows of ``run`` accumulators of a group of channels."""
        if (group, run) not in self._made:
            first, end = group
            mine = tuple(
                (by, max(a, first) - first, min(b, end) - first)
                for by, a, b in self.parts
                if a < end and b > first
            )
            self._made[group, run] = Requantizer(
                mine,
                np.ascontiguousarray(self.multiplier[first:end]),
                np.ascontiguousarray(self.right_shift[first:end]),
                self.zero_point,
                self.low,
                self.high,
                run // (end - first),
            )
        return self._made[group, run]

    def _fast(
        self, group: Group, run: int, ready: Weights
    ) -> Callable[[Array, Array], None] | None:
        """Return the compiled loop; None if no compiled loop computes this rule or these sums."""
        if (group, run) not in self._compiled:
            from npulab.quant.emulate import jit

            rows = jit.Rows(self._requantizer(group, run), ready.bias_row)
            single = ready.products is not None or (
                ready.single and ready.values.dtype == np.float32
            )
            usable = rows.usable and single and ready.most <= self.register.accumulators[1]
            if usable:
                self._compiled[group, run] = rows
            else:
                self._compiled[group, run] = None
        return self._compiled[group, run]


def accumulate(
    layer: Weighted,
    images: Array,
    out: Array,
    saturation: Saturation | None = None,
) -> None:
    """Write the accumulators ``(N, H, W, C)`` int64 of images ``(N, H, W, C)``. They are true sums,
    or saturated sums if ``saturation`` is given.
    """
    channels = out.shape[-1]
    scratch, work = Scratch(), Sums(layer, images.dtype, keep=False)
    for number, group, (first, end), ready, sums in work.blocks(images, out.shape, scratch):
        start = first * (len(sums) // (end - first))
        out[number].reshape(-1, channels)[start : start + len(sums), slice(*group)] = _biased(
            sums, ready, scratch
        )
    if saturation is not None:
        out -= excess(layer, images, saturation)


def summed(
    layer: Weighted,
    images: Array,
    rule: str | Rule,
    saturation: Saturation | None = None,
) -> Array:
    """Return the accumulators ``(N, H, W, C)`` int32 of images ``(N, H, W, C)``, for a layer whose
    outputs are sums.

    An accumulator that int32 cannot hold wraps if the rule's register wraps; otherwise ValueError
    is raised. Raises the errors of ``parts_of`` too.
    """
    by = parts_of(layer, images.dtype, rule)[0][0]
    if isinstance(layer, Conv2D):
        positions = images.shape[:1]
    else:
        positions = images.shape[:-1]
    out = np.empty((*positions, *layer.output_shape), np.int64)
    accumulate(layer, images, out, saturation or saturation_of(layer, images.dtype, rule))
    sums = within(out, replace(by, register=32)).astype(np.int32)
    if layer.activation == "relu":
        return np.maximum(sums, 0)
    return sums


def upright(layer: Weighted) -> Weighted:
    """Return a convolution along one row as a convolution along a column.

    The numbers and their order are the same, but the layer then has many rows, which can be divided
    into blocks.
    """
    if (
        not isinstance(layer, Conv2D)
        or layer.input_shape[0] > 1
        or layer.kernel[0] > 1
        or any(layer.pads[0])
    ):
        return layer
    _, width, depth = layer.input_shape
    return replace(
        layer,
        weights=layer.weights.swapaxes(1, 2),
        input_shape=(width, 1, depth),
        stride=layer.stride[::-1],
        dilation=layer.dilation[::-1],
        padding=layer.pads[::-1],
    )


def _biased(sums: Array, ready: Weights, scratch: Scratch) -> Array:
    """Return the accumulators, in float32 or float64: the sums plus their bias."""
    if ready.products is not None:
        out = scratch.take("biased", sums.shape, np.float64)
        np.copyto(out, sums)
        return out
    if ready.single or sums.dtype == np.float64:
        rows = sums.reshape(-1, len(ready.bias_row) if ready.single else len(ready.bias))
        if ready.single:
            rows += ready.bias_row
        else:
            rows += ready.bias
        return sums
    return np.add(sums, ready.bias, out=scratch.take("biased", sums.shape, np.float64))
