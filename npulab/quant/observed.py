"""Accumulators with the outputs that an unknown rule made from them, compared with the outputs of
known rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray as Array

from npulab.quant.emulate import clamp_range
from npulab.quant.emulate.engines import EXACT, REAL, Parts, parts
from npulab.quant.functions import Function, function_of
from npulab.quant.layers import ACTIVATIONS
from npulab.quant.requantize import within
from npulab.quant.rules import QUANTIZED, Factors, QuantParams, Rule

OPS = ("conv", "depthwise", "fully_connected")
# A witness is searched in at most ``CHANNELS`` channels of different ratios of scales, at most
# ``LEVELS`` rounding boundaries, and ``NEAR`` accumulators on each side of a boundary.
NEAR = 3
LEVELS = 256
CHANNELS = 8
SCALES = ("input_q", "weight_q", "output_q")


@dataclass(frozen=True)
class Candidate:
    """A rule or an engine that is compared with the outputs. ``parts`` are (rule, first channel,
    end channel), ``bounds`` the lowest and highest output of its clamp.
    """

    name: str
    parts: Parts
    bounds: tuple[float, float]

    def function(self, zero_point: int | None) -> Function:
        """Return the function that the candidate computes before the clamp."""
        rules = {by for by, _, _ in self.parts}
        if len(rules) == 1:
            return function_of(self.parts[0][0], zero_point)
        channels = [(f"channels {first} to {end - 1}", by) for by, first, end in self.parts]
        return Function("channels", tuple(channels))


@dataclass(frozen=True)
class Stage:
    """The parameters of a layer that decide, together with an engine's name, its rule and clamp."""

    op: str | None
    output_q: QuantParams
    activation: str | None


class Mismatches(NamedTuple):
    """The outputs that a candidate does not predict; each array has a value per mismatch.

    ``differences`` are output minus prediction. The other arrays are masks. ``tie``: the
    accumulator is a tie of the candidate's first rule. ``negative``: the accumulator is below 0.
    ``saturated``: the output is at a bound of the clamp.
    """

    differences: Array
    tie: Array
    negative: Array
    saturated: Array


class Witness(NamedTuple):
    """An accumulator for which candidates give different outputs; ``outputs`` has the output of
    each.
    """

    accumulator: int
    channel: int
    outputs: Array


@dataclass(frozen=True)
class Given:
    """The parameters that a caller gives: a layer, and keywords that replace attributes of the
    layer.
    """

    layer: Any = None
    input_q: QuantParams | None = None
    weight_q: QuantParams | None = None
    output_q: QuantParams | None = None
    activation: str | None = None

    def value(self, name: str) -> Any:
        """Return the keyword ``name`` if it was given, else the layer's attribute of that name,
        else None.
        """
        value = getattr(self, name)
        if value is None:
            value = getattr(self.layer, name, None)
        return value


@dataclass(frozen=True, eq=False)
class Observed:
    """Accumulators and outputs ``(N, C)``, and all parameters from which a known rule predicts
    outputs.

    ``scales`` are the scales of input, weights and output. ``bias`` is ``(C,)`` and is added to
    real outputs. ``bounds`` are the lowest and highest output of the clamp.
    """

    accumulators: Array
    outputs: Array
    scales: tuple[Any, Any, Any]
    bias: Array
    stage: Stage
    bounds: tuple[float, float]

    @property
    def real(self) -> bool:
        return self.outputs.dtype == np.float32

    @property
    def zero_point(self) -> int:
        return self.stage.output_q.zero_point

    @property
    def channels(self) -> int:
        return self.outputs.shape[1]

    @property
    def saturated(self) -> Array:
        """A mask that is true for outputs at a bound of the clamp."""
        return np.isin(self.outputs, self.bounds)

    def of_rule(self, by: Rule) -> Candidate:
        """Return the candidate that uses a rule for all channels."""
        return Candidate(by.name, ((by, 0, self.channels),), self.bounds)

    def of_engine(self, name: str) -> Candidate:
        """Return the candidate of an engine. Raises ValueError or LookupError if the engine does
        not compute such a layer.
        """
        dtype = self.outputs.dtype.name
        if self.real or self.stage.op not in OPS:
            raise ValueError(
                f"rules: got the engine {name} without a layer that has {', '.join(QUANTIZED)} "
                "outputs, allowed without such a layer are rules"
            )
        scales = "tensor"
        if np.ndim(self.scales[1]):
            scales = "channel"
        stage: Any = self.stage  # a stage has all attributes of a layer that the clamp reads
        return Candidate(
            name,
            parts(name, self.stage.op, dtype, scales, self.channels),
            clamp_range(stage, dtype, name),
        )

    def engines(self, known: Mapping[Function, int]) -> Iterator[str]:
        """Yield the names of the engines without a mismatch; none if no layer was given.

        A key of ``known`` is a function, its value the function's number of mismatches. Most
        engines compute the function of some rule that was compared already; comparing each engine
        again made an identification 1.4 times slower.
        """
        if self.real or self.stage.op not in OPS:
            return
        for name in EXACT:
            try:
                candidate = self.of_engine(name)
                wrong = None
                if candidate.bounds == self.bounds:
                    wrong = known.get(candidate.function(self.zero_point))
                if wrong is None:
                    wrong = int(np.count_nonzero(self.predict(candidate) != self.outputs))
            except (ValueError, LookupError):
                continue
            if not wrong:
                yield name

    def predict(
        self,
        candidate: Candidate,
        accumulators: Array | None = None,
        channels: range | None = None,
    ) -> Array:
        """Return a candidate's outputs ``(N, channels)``; raises ValueError if a rule cannot
        represent the scales or hold the accumulators.
        """
        if accumulators is None:
            accumulators = self.accumulators
        if channels is None:
            channels = range(self.channels)
        predicted = []
        for by, first, end in candidate.parts:
            first = max(first, channels.start)
            end = min(end, channels.stop)
            if first < end:
                sums = accumulators[:, first - channels.start : end - channels.start]
                predicted.append(self._by_rule(by, sums, first, candidate.bounds))
        if len(predicted) == 1:
            return predicted[0]
        return np.concatenate(predicted, axis=1)

    def _by_rule(self, by: Rule, sums: Array, first: int, bounds: tuple[float, float]) -> Array:
        """Return the outputs of one rule for the columns of ``sums``, which are the channels from
        ``first`` on.
        """
        low, high = bounds
        channels = slice(first, first + sums.shape[1])
        multiplier, right_shift = self._factors(by)
        multiplier = multiplier[channels]
        right_shift = right_shift[channels]
        sums = within(sums, by, first)
        if self.real:
            outputs = by.exact(sums, multiplier, right_shift) + self.bias[channels]
            return np.clip(outputs, low, high)
        return by.fast(sums, multiplier, right_shift, self.zero_point, int(low), int(high))

    def _factors(self, by: Rule) -> Factors:
        """Return (multiplier, right_shift) of all channels. They are computed together, because a
        rule may need the scales of all channels.
        """
        multiplier, right_shift = by.multiplier(*self.scales)
        shape = (self.channels,)
        return np.broadcast_to(multiplier, shape), np.broadcast_to(right_shift, shape)

    def mismatches(self, candidate: Candidate) -> Mismatches:
        """Return the outputs that a candidate does not predict; ``tie`` is true where its first
        rule has a tie.
        """
        predicted = self.predict(candidate)
        places = np.nonzero(predicted != self.outputs)
        outputs = self.outputs[places]
        sums = self.accumulators[places]
        by = candidate.parts[0][0]
        ratio = by.real(*self._factors(by))[places[1]]
        real = sums * ratio
        return Mismatches(
            outputs.astype(np.float64) - predicted[places],
            real - np.floor(real) == 0.5,
            sums < 0,
            self.saturated[places],
        )

    def witness(self, classes: Sequence[Sequence[Candidate]]) -> Witness | None:
        """Return the accumulator for which the candidates of ``classes`` give the most different
        outputs; None if they agree.

        Only accumulators near a rounding boundary at the scales of this observation are tried.
        """
        input_scale, weight_scale, output_scale = self.scales
        ratio = input_scale * weight_scale / output_scale
        ratios = np.broadcast_to(ratio, (self.channels,))
        levels = np.unique(np.linspace(*self.bounds, LEVELS).round()) - self.zero_point
        most = 1
        witness = None
        for channel in np.unique(ratios, return_index=True)[1][:CHANNELS]:
            sums = near_boundaries(ratios[channel], levels)
            only = range(channel, channel + 1)
            predicted = [self.predict(same[0], sums[:, None], only)[:, 0] for same in classes]
            outputs = np.array(predicted)
            count = distinct(outputs)
            if count.max(initial=0) > most:
                place = int(count.argmax())
                most = int(count[place])
                witness = Witness(sums[place], channel, outputs[:, place])
        return witness


def observe(accumulators: Any, outputs: Any, given: Given) -> Observed:
    """Return the checked observation; raises ValueError or TypeError, which names the parameter
    that does not fit.
    """
    sums = array_of("accumulators", accumulators)
    codes = array_of("outputs", outputs)
    _refuse_arrays(sums, codes)
    real = codes.dtype == np.float32
    channels = codes.shape[-1]
    quantized = {name: given.value(name) for name in SCALES}
    if real:
        quantized["output_q"] = QuantParams(1.0)
    scales = [_scale(name, q, channels) for name, q in quantized.items()]
    activation = given.value("activation")
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation: got {activation!r}, allowed is one of {ACTIVATIONS}")
    bias = np.asarray(getattr(given.layer, "bias", 0), np.float32)
    if bias.size not in (1, channels):
        raise ValueError(
            f"layer: got {bias.size} channels, allowed is {channels} channels, as the outputs have"
        )
    stage = Stage(getattr(given.layer, "op", None), quantized["output_q"], activation)
    bounds = REAL[activation]
    if not real:
        layer: Any = stage  # ``clamp_range`` reads only attributes that a stage has
        bounds = clamp_range(layer, codes.dtype)
    return Observed(
        sums.astype(np.int64).reshape(-1, channels),
        codes.reshape(-1, channels),
        (scales[0], scales[1], scales[2]),
        np.broadcast_to(bias.ravel(), (channels,)),
        stage,
        bounds,
    )


def array_of(name: str, values: Any) -> Array:
    """Return values as an array in this machine's byte order; raises ValueError if they cannot be
    made an array.
    """
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, OverflowError):
        raise ValueError(
            f"{name}: got a {type(values).__name__} that is not an array, "
            "allowed is an array (..., C)"
        ) from None
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _refuse_arrays(accumulators: Array, outputs: Array) -> None:
    """Raise TypeError or ValueError if the arrays are not accumulators and the outputs of each."""
    if accumulators.dtype.kind not in "iu":
        raise TypeError(f"accumulators: got {accumulators.dtype}, allowed are whole numbers")
    if outputs.dtype.name not in (*QUANTIZED, "float32"):
        raise TypeError(
            f"outputs: got {outputs.dtype}, allowed is {', '.join(QUANTIZED)} or float32"
        )
    if accumulators.size and int(accumulators.max()) >= 2**63:
        raise ValueError(f"accumulators: got {accumulators.max()}, allowed is below 2**63")
    if accumulators.shape != outputs.shape or outputs.size == 0 or outputs.ndim == 0:
        raise ValueError(
            f"outputs: got shape {outputs.shape}, allowed is the accumulators' "
            f"shape {accumulators.shape}, (..., C) and not empty"
        )


def _scale(name: str, q: Any, channels: int) -> Array:
    """Return the scale of input, weights or output, a float32 number as float64; or one such number
    per channel.
    """
    if not isinstance(q, QuantParams):
        raise ValueError(
            f"{name}: got {q!r}, allowed is QuantParams(scale, zero_point), or a layer that has it"
        )
    if isinstance(q.scale, tuple):
        allowed = "one, a plain number"
        if name == "weight_q":
            allowed = f"1 or {channels}, one per channel"
        if name != "weight_q" or len(q.scale) != channels:
            raise ValueError(f"{name}: got {len(q.scale)} scales, allowed is {allowed}")
    # a scale too large for float32 becomes infinite, and rules refuse an infinite scale
    with np.errstate(over="ignore"):
        return np.asarray(q.scale, np.float32).astype(np.float64)


def near_boundaries(ratio: float, codes: Array) -> Array:
    """Return accumulators, within int32, next to the boundaries where the outputs of rules change.

    Rules that round to nearest change between two codes, rules that round down change at a code.
    """
    boundaries = np.rint(np.concatenate([codes, codes + 0.5]) / ratio)
    sums = boundaries[:, None] + np.arange(-NEAR, NEAR + 1)
    return np.unique(sums[np.abs(sums) < 2**31]).astype(np.int64)


def distinct(codes: Array) -> Array:
    """Return the number of different codes in each column."""
    return 1 + np.count_nonzero(np.diff(np.sort(codes, axis=0), axis=0), axis=0)
