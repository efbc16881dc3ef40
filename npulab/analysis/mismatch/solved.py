"""Changes of one number that are solved from the differences: a weight, a bias, a zero point, a
shift or a multiplier; and two channels that are exchanged.

Each captured output allows an interval of accumulators. A change of one number moves each
accumulator by a known multiple of the change (the direction ``along``). So each output allows an
interval of the number, and the number lies in all these intervals. Directions are first tried on a
few outputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray as Array

from npulab.analysis.mismatch.changes import Change, with_layer
from npulab.analysis.mismatch.predicting import Explanation, Hypothesis, Sums, Weighted
from npulab.quant.emulate import clamp_range
from npulab.quant.emulate.engines import REAL, multipliers, parts_of
from npulab.quant.emulate.sliding import windows
from npulab.quant.layers import Conv2D, FullyConnected

# Directions are first tried on at most this many wrong outputs, and as many right ones.
SEEN = 64
# At most this many other values of weights, or pairs of channels, are tried.
MOST_TIED = 256
# A multiplier of few bits is not quite the ratio, so a product may be off by this, in output codes.
SLACK = 0.05
MOST_SHIFT = 16
# A line is fitted to at least this many outputs.
FEW = 4
# A robust fit of a line is repeated this many times.
ROUNDS = 8
LEAST_RATIO = 2**-8
# A ratio counts as a power of two if it is off by less than this share of the power.
CLOSE = 0.02


class Allowed(NamedTuple):
    """Accumulators ``(N, C)`` of an explanation, with the lowest and the highest accumulators that
    the captured outputs allow. ``wrong`` marks the outputs that are predicted wrongly; ``inputs``
    are the inputs of the layer, less their zero point.
    """

    total: Array
    lowest: Array
    highest: Array
    wrong: Array
    inputs: Array

    @property
    def channels(self) -> Array:
        """The channels in which outputs differ."""
        return np.flatnonzero(self.wrong.any(0))


def allowed_sums(start: Hypothesis, output: Array) -> tuple[Array, Array]:
    """Return the lowest and the highest accumulator ``(N, C)`` that each captured output allows, as
    real numbers that follow from the direction in which the rule rounds.
    """
    layer = start.layer
    count = output.shape[-1]
    codes = output.reshape(-1, count).astype(np.int64)
    low, high = clamp_range(layer, output.dtype, start.rule)
    ratio = layer.input_q.scale * np.asarray(layer.weight_q.scale) / layer.output_q.scale  # type: ignore[operator]
    real = codes - layer.output_q.zero_point
    (rule, _, _), *_ = parts_of(layer, output.dtype, start.rule)
    below, above = _rounding_span(rule.rounding_direction, real)
    lowest = (real - below) / ratio
    highest = (real + above) / ratio
    # a saturated output bounds the accumulator only on one side
    lowest[codes <= low] = -np.inf
    highest[codes >= high] = np.inf
    return lowest, highest


def _rounding_span(direction: str, real: Array) -> tuple[Array, Array]:
    """Return how far below and above an output (``real``) the real numbers reach that a direction
    of rounding rounds to this output.
    """
    if direction == "nearest":
        return np.array(0.5), np.array(0.5)
    if direction == "floor":
        return np.array(0.0), np.array(1.0)
    return np.where(real > 0, 0.0, 1.0), np.where(real < 0, 0.0, 1.0)


def solved(start: Hypothesis, predicted: Array, output: Array, sums: Sums) -> list[Change]:
    """Return the changes of one number of a quantized layer, and the exchanges of two channels,
    that may explain all outputs.
    """
    if predicted.shape != output.shape:
        return []
    found = _of_codes(start, predicted, output, sums)
    changes = list(_zero_points(start, found, predicted, output, sums))
    changes += _ratios(start, found, output)
    return [*changes, *_of_channels(start, found)]


def solved_halves(start: Explanation, predicted: Array, output: Array, kept: Any) -> list[Change]:
    """Return the changes of one number, and the exchanges of two channels, of a layer with weights
    of float16, whose sums are exact and rounded once; an empty list for other layers.
    """
    layer = start.layer
    weighted = isinstance(layer, Conv2D | FullyConnected) and layer.dtype == "float16"
    if not weighted or predicted.shape != output.shape or not np.all(np.isfinite(output)):
        return []
    found = _of_halves(start, predicted, output)
    changes = []
    for power in _powers(found.total, found.lowest, found.highest):
        changes.append(_shift(power, partial(_scaled_halves, power=power)))
    return [*changes, *_of_channels(start, found)]


def constant(start: Explanation, predicted: Array, output: Array, kept: Any) -> list[Change]:
    """Return the change of the output zero point that moves every code by the same number, as a
    list; empty if that is less than 2.
    """
    step = _constant_step(start, predicted, output)
    if abs(step) < 2 or output.dtype == np.int16:
        return []
    q = start.layer.output_q or start.layer.input_q
    moved = replace(q, zero_point=q.zero_point + step)
    part = "output zero point"
    if hasattr(start, "offset"):
        return [Change("zero point", f"{part} {step:+d}", partial(replace, offset=step), part)]
    change = partial(with_layer, output_q=moved)
    return [Change("zero point", f"{part} {step:+d}", change, part)]


def _constant_step(start: Explanation, predicted: Array, output: Array) -> int:
    """Return the median difference, captured less predicted, of the outputs that do not saturate; 0
    if all do.
    """
    if predicted.shape != output.shape or output.dtype.kind == "f":
        return 0
    low, high = clamp_range(start.layer, output.dtype, start.rule)
    inside = (predicted > low) & (predicted < high) & (output > low) & (output < high)
    if not inside.any():
        return 0
    apart = output[inside].astype(np.int64) - predicted[inside]
    return int(np.median(apart))


# What the outputs allow


def _of_codes(start: Hypothesis, predicted: Array, output: Array, sums: Sums) -> Allowed:
    layer = start.layer
    count = output.shape[-1]
    total = sums.of(layer, start.x).reshape(-1, count)
    lowest, highest = allowed_sums(start, output)
    for by, first, end in parts_of(layer, output.dtype, start.rule):
        _, shifts = multipliers(layer, by, first, end)
        scale = np.broadcast_to(layer.weight_q.scale, (count,))[first:end]
        unit = layer.output_q.scale / (layer.input_q.scale * scale)  # type: ignore[operator]
        spare = (by.max_deviation(shifts) + SLACK) * unit
        lowest[:, first:end] -= spare
        highest[:, first:end] += spare
    wrong = (predicted != output).reshape(-1, count)
    inputs = start.x.astype(np.int64) - layer.input_q.zero_point
    return Allowed(total, lowest, highest, wrong, inputs)


def _of_halves(start: Explanation, predicted: Array, output: Array) -> Allowed:
    layer: Any = start.layer
    count = output.shape[-1]
    codes = output.reshape(-1, count)
    values = codes.astype(np.float64)
    with np.errstate(over="ignore"):
        before = np.nextafter(codes, np.float16(-np.inf)).astype(np.float64)
        after = np.nextafter(codes, np.float16(np.inf)).astype(np.float64)
    lowest, highest = (before + values) / 2, (values + after) / 2
    low, high = REAL[layer.activation]
    lowest[values <= low] = -np.inf
    highest[values >= high] = np.inf
    inputs = start.x.astype(np.float64)
    total = np.empty(codes.shape)
    for channel in range(count):
        taps = _taps(layer, inputs, channel)
        weights = layer.weights.ravel()[_places(layer, channel)].astype(np.float64)
        total[:, channel] = np.tensordot(taps, weights, 3).ravel() + float(layer.bias[channel])
    wrong = (predicted != output).reshape(-1, count)
    return Allowed(total, lowest, highest, wrong, inputs)


def _taps(layer: Weighted, inputs: Array, channel: int) -> Array:
    """Return the inputs ``(..., C, kernel_h, kernel_w)`` that meet the weights of an output
    channel."""
    if isinstance(layer, FullyConnected):
        return inputs.reshape(-1, layer.weights.shape[1], 1, 1)
    every = windows(layer, inputs)
    depth = layer.weights.shape[3]
    group = channel * layer.groups // len(layer.weights)
    first = group * depth
    if layer.depthwise:
        depth = 1
        first = channel * layer.input_shape[2] // layer.output_shape[2]
    return every[..., first : first + depth, :, :]


def _places(layer: Weighted, channel: int) -> Array:
    """Return the places of the weights of an output channel in the flat weights, ``(C, kernel_h,
    kernel_w)``."""
    every = np.arange(layer.weights.size).reshape(layer.weights.shape)
    if isinstance(layer, FullyConnected):
        return every[channel][:, None, None]
    if layer.depthwise:
        return every[:, :, :, channel]
    return every[channel].transpose(2, 0, 1)


def _sample(wrong: Array) -> Array:
    """Return a few places of wrong outputs and a few of right ones, each spread evenly."""
    found = []
    for places in (np.flatnonzero(wrong), np.flatnonzero(~wrong)):
        spread = np.linspace(0, max(len(places) - 1, 0), min(SEEN, len(places)))
        found.append(places[spread.astype(int)])
    return np.concatenate(found)


def _between(total: Array, along: Array, lowest: Array, highest: Array) -> tuple[Array, Array]:
    """Return, for each of K directions ``along (N, K)``, the least and the greatest number with
    which ``total + number * along`` stays within the bounds. The least is above the greatest if no
    number does.
    """
    low, high = (lowest - total)[:, None], (highest - total)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        first, second = low / along, high / along
    still = along == 0
    least = np.where(along > 0, first, second)
    most = np.where(along > 0, second, first)
    inside = (low <= 0) & (high >= 0)
    least[still] = np.where(inside, -np.inf, np.inf).repeat(along.shape[1], 1)[still]
    most[still] = np.where(inside, np.inf, -np.inf).repeat(along.shape[1], 1)[still]
    return least.max(0), most.min(0)


# Zero points


def _zero_points(
    start: Hypothesis, found: Allowed, predicted: Array, output: Array, sums: Sums
) -> Iterator[Change]:
    """Yield changes of a zero point by more than 1; the table of changes has those by 1."""
    layer = start.layer
    if output.dtype == np.int16:  # codes of int16 have no zero point
        return
    for name in ("input", "weight"):
        q = getattr(layer, f"{name}_q")
        if q.zero_points:  # with a zero point for each channel, no single step moves all
            continue
        one: dict[str, Any] = {f"{name}_q": replace(q, zero_point=q.zero_point + 1)}
        moved = sums.of(replace(layer, **one), start.x).reshape(found.total.shape)
        for step in _whole_steps(found, moved - found.total):
            if step != -q.zero_point:
                yield _zero_point(name, q, step)
    step = _constant_step(start, predicted, output)
    if abs(step) > 1 and step != -layer.output_q.zero_point:
        yield _zero_point("output", layer.output_q, step)


def _whole_steps(found: Allowed, along: Array) -> list[int]:
    """Return a few whole numbers, other than -1, 0 and 1, with which ``number * along`` brings all
    accumulators into their intervals.
    """
    total, lowest, highest = found.total.ravel(), found.lowest.ravel(), found.highest.ravel()
    least, most = _between(total, along.reshape(-1, 1), lowest, highest)
    if not np.isfinite(least[0]) or not np.isfinite(most[0]):
        return []
    steps = range(math.ceil(least[0]), math.floor(most[0]) + 1)
    return [step for step in steps[:FEW] if abs(step) > 1]


def _zero_point(name: str, q: Any, step: int) -> Change:
    part = f"{name} zero point"
    changed: dict[str, Any] = {f"{name}_q": replace(q, zero_point=q.zero_point + step)}
    return Change("zero point", f"{part} {step:+d}", partial(with_layer, **changed), part)


# Ratios


def _ratios(start: Hypothesis, found: Allowed, output: Array) -> Iterator[Change]:
    """Yield the shift or the multiplier by which the outputs are off: in all channels or, if only
    one channel differs, in that channel.
    """
    columns = slice(None)
    where = ""
    if len(found.channels) == 1 and found.total.shape[1] > 1:
        channel = int(found.channels[0])
        columns = slice(channel, channel + 1)
        where = f" in channel {channel}"
    total = found.total[:, columns]
    lowest, highest = found.lowest[:, columns], found.highest[:, columns]
    powers = _powers(total, lowest, highest)
    for power in powers:
        yield _shift(power, partial(_scaled, factor=2.0**power, columns=columns), where)
    if powers or not np.any(total):
        return
    least, most = _between(0 * total.ravel(), total.reshape(-1, 1), lowest.ravel(), highest.ravel())
    factor = (float(least[0]) + float(most[0])) / 2
    if least[0] > most[0] or not np.isfinite(factor):
        middle = (lowest + highest) / 2
        factor, _ = robust_line(total[np.isfinite(middle)], middle[np.isfinite(middle)])
    # if the ratio is nearer to 1, the rounding rule is off and not the multiplier
    if factor > 0 and abs(factor - 1) > LEAST_RATIO and np.isfinite(factor):
        words = f"multiplier times {factor:.6g}{where}"
        change = partial(_scaled, factor=factor, columns=columns)
        yield Change("ratio", words, change, "ratio")


def _powers(total: Array, lowest: Array, highest: Array) -> list[int]:
    """Return the exponents of the powers of two by which the accumulators may be off: those that
    all outputs allow; if there are none, that of the usual ratio of captured to predicted, if it is
    near a power of two.
    """
    if not np.any(total):
        return []
    least, most = _between(0 * total.ravel(), total.reshape(-1, 1), lowest.ravel(), highest.ravel())
    powers = []
    for power in range(-MOST_SHIFT, MOST_SHIFT + 1):
        if power and least[0] <= 2.0**power <= most[0]:
            powers.append(power)
    if powers:
        return sorted(powers, key=abs)[:FEW]
    middle = (lowest + highest) / 2
    inside = np.isfinite(middle)
    slope, _ = robust_line(total[inside], middle[inside])
    if not slope > 0:
        return []
    power = round(math.log2(slope))
    if power and abs(slope / 2.0**power - 1) < CLOSE:
        return [power]
    return []


def robust_line(x: Array, y: Array) -> tuple[float, float]:
    """Return slope and offset of the line through most of the points ``(N,)``: least squares over
    the nearer half of them, repeated; (nan, nan) for too few points.

    >>> slope, offset = robust_line(np.arange(9.0), np.array([1, 3, 5, 7, 99, 11, 13, 15, 17]))
    >>> round(slope, 6), round(offset, 6)
    (2.0, 1.0)
    """
    near = np.ones(len(x), bool)
    slope = offset = math.nan
    for _ in range(ROUNDS):
        if near.sum() < FEW or np.ptp(x[near]) == 0:
            return math.nan, math.nan
        slope, offset = map(float, np.polyfit(x[near], y[near], 1))
        apart = np.abs(y - slope * x - offset)
        near = apart <= np.median(apart)
    return slope, offset


def _shift(power: int, change: Any, where: str = "") -> Change:
    words = f"right shift {-power:+d}{where} (captured is predicted times 2**{power})"
    return Change("ratio", words, change, "ratio")


def _scaled(of: Hypothesis, factor: float, columns: slice) -> Hypothesis:
    """Return the hypothesis with the ratio of scales multiplied by ``factor`` in some channels; the
    activation keeps the codes of its bounds.
    """
    layer = of.layer
    if columns == slice(None):
        q = replace(layer.input_q, scale=layer.input_q.scale * factor)  # type: ignore[operator]
        return with_layer(of, input_q=q)
    scales = np.broadcast_to(layer.weight_q.scale, layer.output_shape[-1:]).copy()
    scales[columns] *= factor
    return with_layer(of, weight_q=replace(layer.weight_q, scale=tuple(scales.tolist())))


def _scaled_halves(of: Explanation, power: int) -> Explanation:
    layer: Any = of.layer
    factor = np.float16(2.0**power)
    return with_layer(of, weights=layer.weights * factor, bias=layer.bias * factor)


# Weights, and channels exchanged


def _of_channels(start: Any, found: Allowed) -> list[Change]:
    """Return the changes of a weight if one channel differs, the exchanges of two channels if two
    differ, and the exchanges of input channels.
    """
    channels = found.channels.tolist()
    changes = []
    if len(channels) == 1:
        for zero in _folded_zeros(start.layer):
            changes += _weights(start.layer, found, channels[0], zero)
    if len(channels) == 2:
        changes += _exchanged(start.layer, *channels)
    return [*changes, *_input_channels(start.layer, found)]


def _folded_zeros(layer: Weighted) -> list[int]:
    """Return what may be added to the inputs of a wrong weight: 0, or the input zero point. Many
    NPUs store a bias that holds the products of zero point and weights, so a wrong weight leaves
    the bias of the right one.
    """
    if layer.weights.dtype.kind == "f" or not layer.input_q.zero_point:
        return [0]
    return [0, layer.input_q.zero_point]


def _weights(layer: Weighted, found: Allowed, channel: int, zero: int) -> list[Change]:
    """Return the changes of one weight of a channel, those that change the fewest bits first;
    ``zero`` is added to the inputs that the weight is multiplied with.
    """
    taps = _taps(layer, found.inputs, channel) + zero
    places = _places(layer, channel)
    total, wrong = found.total[:, channel], found.wrong[:, channel]
    if len(total) < FEW:
        return []
    lowest, highest = found.lowest[:, channel], found.highest[:, channel]
    rows = _sample(wrong)
    few = taps[np.unravel_index(rows, taps.shape[:-3])].reshape(len(rows), -1)
    least, most = _between(total[rows], few, lowest[rows], highest[rows])
    tried = []
    for plane, row, column in np.argwhere((least <= most).reshape(places.shape)).tolist():
        place = int(places[plane, row, column])
        old = layer.weights.ravel()[place]
        along = taps[..., plane, row, column].reshape(-1, 1)
        first, last = _between(total, along, lowest, highest)
        for value in _values(old, float(first[0]), float(last[0])):
            tried.append((_bits_apart(old, value), place, value))
    tried.sort()
    changes = []
    for _, place, value in tried[:MOST_TIED]:
        old = layer.weights.ravel()[place]
        words = f"weight of {_named_place(layer, place)} is {value}, not {old}"
        step = 0
        if zero:
            words += " (as stored, beside the same bias)"
            step = (value - int(old)) * zero
        change = partial(_with_weight, place=place, value=value, channel=channel, step=step)
        changes.append(Change("weight", words, change, "weight"))
    return changes


def _values(old: Any, least: float, most: float) -> list[Any]:
    """Return the values that a weight may have instead of ``old``: ``old`` plus ``least`` to
    ``most``.
    """
    if not least <= most or not np.isfinite(least) or not np.isfinite(most):
        return []
    if old.dtype.kind == "f":
        with np.errstate(over="ignore"):
            middle = float(old) + (least + most) / 2
            near = np.array([middle, float(old) + least, float(old) + most], np.float16)
        apart = near.astype(np.float64) - float(old)
        near = near[(apart >= least) & (apart <= most)]
        return [value for value in dict.fromkeys(near.tolist()) if value != old]
    info = np.iinfo(old.dtype)
    first = max(math.ceil(least) + int(old), info.min)
    last = min(math.floor(most) + int(old), info.max)
    return [value for value in range(first, last + 1) if value != old]


def _bits_apart(old: Any, value: Any) -> int:
    """Return the number of bits in which two values of a weight differ."""
    kind = old.dtype
    bits = np.array([old, value], kind).view(f"u{kind.itemsize}")
    return int(bits[0] ^ bits[1]).bit_count()


def _named_place(layer: Weighted, place: int) -> str:
    index = [int(axis) for axis in np.unravel_index(place, layer.weights.shape)]
    if isinstance(layer, FullyConnected):
        return f"channel {index[0]}, input {index[1]}"
    first, row, column, last = index
    if layer.depthwise:
        return f"channel {last}, row {row}, column {column}"
    return f"channel {first}, row {row}, column {column}, plane {last}"


def _with_weight(of: Any, place: int, value: Any, channel: int, step: int) -> Any:
    weights, bias = of.layer.weights.copy(), of.layer.bias.copy()
    weights.reshape(-1)[place] = value
    bias[channel] += step
    return with_layer(of, weights=weights, bias=bias)


def _exchanged(layer: Weighted, one: int, other: int) -> list[Change]:
    """Return the changes by which the weights, or the biases, of two channels are exchanged."""
    order = np.arange(layer.output_shape[-1])
    order[[one, other]] = other, one
    axis = 0
    if isinstance(layer, Conv2D) and layer.depthwise:
        axis = 3
    weights = np.take(layer.weights, order, axis)
    named = f"of channels {one} and {other} exchanged"
    return [
        Change("channel order", f"weights {named}", partial(with_layer, weights=weights), "kernel"),
        Change(
            "channel order", f"biases {named}", partial(with_layer, bias=layer.bias[order]), "bias"
        ),
    ]


def _input_channels(layer: Weighted, found: Allowed) -> Iterator[Change]:
    """Yield the pairs of input channels that, exchanged, may explain all outputs."""
    if isinstance(layer, Conv2D) and (layer.depthwise or layer.groups > 1):
        return
    wrong = np.argwhere(found.wrong)
    sample = wrong[_sample(np.ones(len(wrong), bool))]
    taps = _taps(layer, found.inputs, 0)
    count = taps.shape[-3]
    fits = np.triu(np.ones((count, count), bool), 1)
    zero: Any = 0
    if layer.weights.dtype.kind != "f":
        zero = layer.weight_q.zeros
    for row, channel in sample:
        inputs = taps[np.unravel_index(row, taps.shape[:-3])].reshape(count, -1)
        weights = layer.weights.ravel()[_places(layer, channel)].astype(inputs.dtype)
        weights = (
            weights.reshape(count, -1) - np.broadcast_to(zero, layer.output_shape[-1])[channel]
        )
        products = weights @ inputs.T
        own = np.diag(products)
        total = found.total[row, channel] + products + products.T - own - own[:, None]
        fits &= (total >= found.lowest[row, channel]) & (total <= found.highest[row, channel])
    for one, other in np.argwhere(fits)[:MOST_TIED].tolist():
        order = np.arange(count)
        order[[one, other]] = other, one
        words = f"input channels {one} and {other} exchanged"
        change = partial(_with_inputs, order=order)
        yield Change("channel order", words, change, "input order")


def _with_inputs(of: Any, order: Array) -> Any:
    layer = of.layer
    if isinstance(layer, FullyConnected):
        x = of.x.reshape(-1, len(order))[:, order]
        return replace(of, x=x.reshape(of.x.shape))
    return replace(of, x=np.ascontiguousarray(of.x[..., order]))
