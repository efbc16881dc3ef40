"""Which rounding rule made these outputs, and which accumulators would tell.

Two rules are one function where they are the same arithmetic under two names; everything else that
gives the same outputs here is only not told apart yet.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from npulab.quant.emulate import clamp_range
from npulab.quant.emulate.engines import EXACT, NAMES, REAL, Parts, parts
from npulab.quant.layers import ACTIVATIONS, Conv2D, FullyConnected
from npulab.quant.requantize import within
from npulab.quant.rules import (
    QUANTIZED,
    RULES,
    DoubleRounding,
    Float,
    Float32Bits,
    Half,
    Hybrid,
    Mantissa,
    QuantParams,
    Rule,
    rule,
)
from npulab.support.late import pd
from npulab.support.refuse import refuse_if

OPS = ("conv", "depthwise", "fully_connected")
# An input scale that is a power of two makes orders "D" and "P" of the ratio the same number, an
# output scale that is not keeps "S" another; odd zero points turn ties where they are added before
# the rounding.
INPUT_SCALE, OUTPUT_SCALE = 0.5, float(np.float32(0.0871))
ZERO_POINTS = {"int8": 3, "uint8": 131, "int16": 0}
TIES = (1, 2, 3, 4, 7, 8, 12, 20, 23)  # right shifts that are whole ratios: ties exist
DRAWN, CODES, NEAR, WIDTH = (
    12,
    60,
    3,
    16,
)  # ratios of each kind, codes of each, accumulators beside a boundary, beam
SHOWN = 6  # names in a sentence


class Group(NamedTuple):
    """Rules that give the same outputs, and why; ``same`` says that they are one function."""

    rules: tuple[str, ...]
    reason: str
    same: bool = True


class Closest(NamedTuple):
    """A rule that does not fit, with what its mismatches have in common."""

    rule: str
    mismatches: int
    pattern: str


@dataclass(frozen=True, eq=False)
class Identification:
    """Which rules fit outputs.

    ``table`` has a row per rule, fewest mismatches first: rule, mismatches, compared, fits, the
    first that differs (accumulator, channel, got, predicted) and ``reason``, why a rule does not
    apply.  ``fits`` are the rules without a mismatch, ``groups`` those of them that are one
    function or that these accumulators cannot separate.  Where nothing fits, ``closest`` are the
    rules with the fewest mismatches, and ``by_channel`` (first, end, rules) says which fit ranges
    of channels, if every channel has one.  ``engines`` are those of ``npulab.ENGINES`` that round
    these accumulators, true sums, without a mismatch; none where no layer was given.
    """

    table: pd.DataFrame
    fits: tuple[str, ...]
    groups: tuple[Group, ...]
    compared: int
    saturated: int
    closest: tuple[Closest, ...] = ()
    by_channel: pd.DataFrame | None = None
    engines: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self._of_rules() + (
            f"; engines that fit: {', '.join(self.engines)}" if self.engines else ""
        )

    def _of_rules(self) -> str:
        outputs = f"{self.compared} outputs" + (
            f" ({self.saturated} saturated)" if self.saturated else ""
        )
        if len(self.fits) == 1:
            return f"{self.fits[0]} fits all {outputs}"
        if self.fits:
            if all(group.same for group in self.groups):
                how = "one function"
            else:
                how = "not told apart"
            return f"{_names(self.fits)} fit all {outputs}: {how}"
        if not self.closest:
            return f"no rule applies to these {outputs}"
        near, first = _names([one.rule for one in self.closest]), self.closest[0]
        said = f"no rule fits all {outputs}; closest {near}: {first.mismatches} differ ({first.pattern})"
        if self.by_channel is None:
            ranges = []
        else:
            ranges = self.by_channel.itertuples(index=False, name=None)
        return "; ".join(
            [
                said,
                *(
                    f"channels {first} to {end - 1}: {_names(rules)}"
                    for first, end, rules in ranges
                ),
            ]
        )

    def __repr__(self) -> str:
        return f"Identification({self})"


@dataclass(frozen=True, kw_only=True)
class _Engine(Rule):
    """What an engine does to the outputs of a layer: a rule for each part of its channels, and its
    own clamp."""

    parts: Parts
    bounds: tuple[int, int]


@dataclass(frozen=True, eq=False)
class _Recorded:
    """Accumulators and outputs ``(N, C)``, and everything but the rule that turns one into the
    other."""

    accumulators: np.ndarray
    outputs: np.ndarray
    scales: tuple[Any, Any, Any]  # of input, weights, output
    zero_point: int
    low: float
    high: float
    bias: Any = 0  # of real outputs
    layer: Any = None  # op, activation and output_q of the layer that was given

    def engine(self, name: str) -> _Engine:
        """What an engine does to such outputs; raises ValueError or LookupError where it has no
        such layer."""
        dtype, channels = self.outputs.dtype, self.outputs.shape[1]
        if self.layer is None or dtype == np.float32:
            got = "no layer"
            if self.layer is not None:
                got = f"{dtype} outputs"
            raise ValueError(
                f"rules: got {name} with {got}, allowed with an engine is a layer that has "
                f"{', '.join(QUANTIZED)} outputs"
            )
        if np.ndim(self.scales[1]):
            scales = "channel"
        else:
            scales = "tensor"
        return _Engine(
            name,
            parts=parts(name, self.layer.op, dtype.name, scales, channels),
            bounds=clamp_range(self.layer, dtype, name),
        )

    def engines(self, known: Mapping[Any, int]) -> Iterator[str]:
        """Engines without a mismatch; ``known`` are mismatches by function."""
        for name in EXACT if self.layer is not None else ():
            try:
                by = self.engine(name)
                wrong = None
                if by.bounds == (self.low, self.high):
                    wrong = known.get(_function(by, self.zero_point))
                if wrong is None:
                    wrong = int(np.count_nonzero(self.predict(by) != self.outputs))
            except (ValueError, LookupError):
                continue
            if not wrong:
                yield name

    def predict(
        self, by: Rule, accumulators: np.ndarray | None = None, channels: Any = slice(None)
    ) -> np.ndarray:
        """Outputs by a rule; raises ValueError where it cannot say the scales or hold the
        accumulators."""
        if accumulators is None:
            accumulators = self.accumulators
        if isinstance(by, _Engine):
            own = replace(self, low=by.bounds[0], high=by.bounds[1])
            numbers = np.arange(self.outputs.shape[1])[channels]
            out = np.empty(accumulators.shape, np.int64)
            for part, first, end in by.parts:
                mine = (numbers >= first) & (numbers < end)
                out[:, mine] = own.predict(part, accumulators[:, mine], numbers[mine])
            return out
        multiplier, right_shift = (one[channels] for one in self.factors(by))
        accumulators = within(accumulators, by)
        if self.outputs.dtype == np.float32:
            return np.clip(
                by.exact(accumulators, multiplier, right_shift) + self.bias, self.low, self.high
            )
        return by.fast(
            accumulators, multiplier, right_shift, self.zero_point, int(self.low), int(self.high)
        )

    def factors(self, by: Rule) -> tuple[np.ndarray, np.ndarray]:
        """(multiplier, right_shift) of every channel."""
        if isinstance(by, _Engine):
            by = by.parts[0][0]
        multiplier, right_shift = by.multiplier(*self.scales)
        shape = self.outputs.shape[1:]
        return np.broadcast_to(multiplier, shape), np.broadcast_to(right_shift, shape)

    def pattern(self, by: Rule) -> str:
        """What the mismatches of a rule have in common."""
        predicted = self.predict(by)
        at = np.nonzero(predicted != self.outputs)
        got, want, sums = self.outputs[at], predicted[at], self.accumulators[at]
        values, counts = np.unique(got.astype(np.float64) - want, return_counts=True)
        most = np.argsort(-counts, kind="stable")[:3]
        said = [f"{'all' if len(values) == 1 else counts[i]} {values[i]:+g}" for i in most]
        if len(values) > len(most):
            mean = np.average(values, weights=counts)
            said = [f"by {values[0]:+g} to {values[-1]:+g}, mean {mean:+.3g}"]
        multiplier, right_shift = (one[at[1]] for one in self.factors(by))
        real = sums * by.real(multiplier, right_shift)
        for name, which in (
            ("at ties", real - np.floor(real) == 0.5),
            ("of negative accumulators", sums < 0),
            ("saturated", (got == self.low) | (got == self.high)),
        ):
            if which.any():
                said.append(f"{'all' if which.all() else int(which.sum())} {name}")
        return ", ".join(said)

    def witness(self, classes: Sequence[Sequence[Rule]]) -> str:
        """An accumulator with these scales that most classes of rules disagree about, in words."""
        a, b, c = self.scales
        ratios = np.broadcast_to(a * b / c, self.outputs.shape[1:])
        between = np.unique(np.linspace(self.low, self.high, 256).round())
        best, said = (
            1,
            "no accumulator near a boundary with these scales would; the scales of rounding_probes "
            "do",
        )
        for channel in np.unique(ratios, return_index=True)[1][:8]:
            sums = _beside(ratios[channel], between - self.zero_point)
            codes = np.array(
                [
                    self.predict(one[0], sums[:, None], slice(channel, channel + 1))[:, 0]
                    for one in classes
                ]
            )
            count = _distinct(codes)
            if count.max(initial=0) > best:
                at = int(count.argmax())
                best = int(count[at])
                told = [
                    f"{code} by "
                    + _names(
                        [
                            by.name
                            for one, mine in zip(classes, codes[:, at], strict=True)
                            if mine == code
                            for by in one
                        ]
                    )
                    for code in np.unique(codes[:, at])
                ]
                said = f"accumulator {sums[at]} in channel {channel} would give {', '.join(told)}"
        return said


def identify_rounding(
    accumulators: Any,
    outputs: Any,
    layer: Conv2D | FullyConnected | None = None,
    *,
    input_q: QuantParams | None = None,
    weight_q: QuantParams | None = None,
    output_q: QuantParams | None = None,
    activation: str | None = None,
    rules: Iterable[str | Rule] | str | Rule | None = None,
) -> Identification:
    """Every rule that turns these accumulators into these outputs, and what cannot be told apart.

    ``accumulators`` are ``(..., C)`` true sums with the bias, as ``emulate.accumulate`` gives them;
    ``outputs`` of the same shape are int8, uint8 or int16; or float32, with sums without the bias
    and ``input_q.scale`` that of the row.  Scales, zero point and activation are the layer's, or
    those given by keyword.  ``rules`` are names or rules; left out, all that have this type of
    output, each in its usual order of scales.  With a layer they may be engines of
    ``npulab.ENGINES`` too, whose rule depends on it. Raises ValueError or TypeError naming what
    does not go together; LookupError for an unknown rule.
    """
    recorded = _recorded(accumulators, outputs, layer, input_q, weight_q, output_q, activation)
    dtype = recorded.outputs.dtype.name
    applied, wrong, rows = [], [], []
    for by in _rules_of(rules, dtype, recorded.engine):
        try:
            if dtype not in by.types:
                raise ValueError(
                    f"outputs: got {dtype}, allowed with {by.name} is {', '.join(by.types)}"
                )
            predicted = recorded.predict(by)
        except ValueError as error:
            rows.append(
                (by.name, None, 0, False, None, None, None, None, f"not applicable: {error}")
            )
            continue
        differ = predicted != recorded.outputs
        applied.append(by)
        wrong.append(differ.sum(0))
        first = None
        if differ.any():
            at = np.unravel_index(int(differ.argmax()), differ.shape)
            first = recorded.accumulators[at], at[1], recorded.outputs[at], predicted[at]
        rows.append(
            (by.name, int(wrong[-1].sum()), differ.size, first is None, *(first or (None,) * 4), "")
        )
    return _identified(
        recorded, applied, np.reshape(wrong, (len(applied), recorded.outputs.shape[1])), rows
    )


def _rules_of(
    rules: Iterable[str | Rule] | str | Rule | None,
    dtype: str,
    engine: Callable[[str], Rule] = rule,
) -> list[Rule]:
    """The rules asked for; left out, all of an output type.  ``engine`` gives the rule of an
    engine's name."""
    if rules is not None:
        if isinstance(rules, str | Rule):
            names = (rules,)
        elif isinstance(rules, Iterable):
            names = tuple(rules)
        else:
            names = None
        for one in (rules,) if names is None else names:
            if not isinstance(one, str | Rule):
                raise TypeError(f"rules: got {one!r}, allowed are names or rules")
        refuse_if(not names, "rules", "none", "is one or more")
        return [engine(one) if one in NAMES else rule(one) for one in names]
    # sums of int16 codes have more than 32 bits, which a float takes
    return [
        replace(by, register=48) if dtype == "int16" and isinstance(by, Float) else by
        for by in RULES.values()
        if dtype in by.types
    ]


def _recorded(
    accumulators: Any,
    outputs: Any,
    layer: Any,
    input_q: QuantParams | None = None,
    weight_q: QuantParams | None = None,
    output_q: QuantParams | None = None,
    activation: str | None = None,
) -> _Recorded:
    accumulators, outputs = _array("accumulators", accumulators), _array("outputs", outputs)
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
            f"outputs: got shape {outputs.shape}, allowed is that of the accumulators, "
            f"{accumulators.shape}, (..., C) and not empty"
        )
    real, channels = outputs.dtype == np.float32, outputs.shape[-1]
    given = {"input_q": input_q, "weight_q": weight_q, "output_q": output_q}
    quantized: dict[str, Any] = {
        name: getattr(layer, name, None) if one is None else one for name, one in given.items()
    }
    if real:
        quantized["output_q"] = QuantParams(1.0)
    for name, one in quantized.items():
        if not isinstance(one, QuantParams):
            raise ValueError(
                f"{name}: got {one!r}, allowed is QuantParams(scale, zero_point), or a layer that "
                "has it"
            )
        if isinstance(one.scale, tuple) and (name != "weight_q" or len(one.scale) != channels):
            allowed = "one, a plain number"
            if name == "weight_q":
                allowed = f"1 or {channels}, one per channel"
            raise ValueError(f"{name}: got {len(one.scale)} scales, allowed is {allowed}")
    if activation is None:
        activation = getattr(layer, "activation", None)
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation: got {activation!r}, allowed is one of {ACTIVATIONS}")
    with np.errstate(over="ignore"):  # what float32 does not hold is refused by the rules
        a, b, c = (
            np.asarray(quantized[name].scale, np.float32).astype(np.float64) for name in given
        )
    op = getattr(layer, "op", None)
    like: Any = SimpleNamespace(output_q=quantized["output_q"], activation=activation, op=op)
    bias = np.asarray(getattr(layer, "bias", 0), np.float32)
    if bias.size not in (1, channels):
        raise ValueError(
            f"layer: got {bias.size} channels, allowed is {channels}, those of the outputs"
        )
    if real:
        limits: tuple[float, float] = REAL[activation]
    else:
        limits = clamp_range(like, outputs.dtype)
    return _Recorded(
        accumulators.astype(np.int64).reshape(-1, channels),
        outputs.reshape(-1, channels),
        (a, b, c),
        quantized["output_q"].zero_point,
        *limits,
        bias,
        like if op in OPS and not real else None,
    )


def _array(name: str, values: Any) -> np.ndarray:
    """An array in this machine's byte order."""
    try:
        out = np.asarray(values)
    except (ValueError, TypeError, OverflowError):
        raise ValueError(
            f"{name}: got a {type(values).__name__} that is no array, allowed is (..., C)"
        ) from None
    return out.astype(out.dtype.newbyteorder("="), copy=False)


def _identified(
    recorded: _Recorded,
    applied: list[Rule],
    wrong: np.ndarray,
    rows: list[tuple[Any, ...]],
) -> Identification:
    """``wrong`` are mismatches ``(rules, C)``."""
    table = pd.DataFrame(
        rows,
        columns=[
            "rule",
            "mismatches",
            "compared",
            "fits",
            "accumulator",
            "channel",
            "got",
            "predicted",
            "reason",
        ],
    )
    whole = ["mismatches", "accumulator", "channel"] + (
        [] if recorded.outputs.dtype == np.float32 else ["got", "predicted"]
    )
    table = table.astype(dict.fromkeys(whole, "Int64")).sort_values(
        "mismatches", kind="stable", ignore_index=True
    )
    totals = wrong.sum(1)
    fits = [by for by, total in zip(applied, totals, strict=True) if total == 0]
    classes = functions(fits, recorded.zero_point)
    groups = [
        Group(tuple(by.name for by in one), reason) for one, reason in classes if len(one) > 1
    ]
    if len(classes) > 1:
        witness = recorded.witness([one for one, _ in classes])
        groups.insert(
            0,
            Group(
                tuple(by.name for by in fits),
                f"not separated by these accumulators: {witness}",
                False,
            ),
        )
    saturated = int(np.isin(recorded.outputs, (recorded.low, recorded.high)).sum())
    known = {
        _function(by, recorded.zero_point): int(total)
        for by, total in zip(applied, totals, strict=True)
    }
    said = Identification(
        table,
        tuple(by.name for by in fits),
        tuple(groups),
        recorded.outputs.size,
        saturated,
        engines=tuple(recorded.engines(known)),
    )
    if fits or not applied:
        return said
    closest = tuple(
        Closest(by.name, int(total), recorded.pattern(by))
        for by, total in zip(applied, totals, strict=True)
        if total == totals.min()
    )
    ranges = list(_ranges([by.name for by in applied], wrong == 0))
    by_channel = pd.DataFrame(ranges, columns=["first", "end", "rules"])
    return replace(
        said, closest=closest, by_channel=by_channel if by_channel["rules"].map(len).all() else None
    )


def _ranges(names: Sequence[str], fits: np.ndarray) -> Iterator[tuple[int, int, tuple[str, ...]]]:
    """(first, end, rules that fit all of it): the fewest ranges of channels; ``fits`` is ``(rules,
    C)``."""
    first, alive = 0, fits[:, 0]
    for channel in range(1, fits.shape[1] + 1):
        if channel < fits.shape[1]:
            still = alive & fits[:, channel]
        else:
            still = np.zeros_like(alive)
        if not still.any():
            yield first, channel, tuple(name for name, fit in zip(names, alive, strict=True) if fit)
            first, still = channel, fits[:, min(channel, fits.shape[1] - 1)]
        alive = still


def _names(rules: Sequence[str]) -> str:
    """The first few by name, the rest by number."""
    more = ""
    if len(rules) > SHOWN:
        more = f" and {len(rules) - SHOWN} more"
    return ", ".join(rules[:SHOWN]) + more


def functions(rules: Iterable[Rule], zero_point: int | None = None) -> list[tuple[list[Rule], str]]:
    """Rules by what they compute, whatever they are called, with the reason why those are one
    function.

    With a zero point, also those that are one function with that one.

    >>> [len(same) for same, reason in functions([rule("qnnpack-q31"), rule("gemmlowp:S"), rule("gemmlowp")])]
    [2, 1]
    """
    found: dict[Any, list[Rule]] = {}
    for by in rules:
        found.setdefault(_function(by, zero_point), []).append(by)
    out = []
    for (kind, values), same in found.items():
        if len({_function(by, None) for by in same}) == 1:
            only = ""
        else:
            only = f", the zero point being {zero_point}"
        text = ", ".join(f"{name} {value}" for name, value in values)
        out.append((same, f"one function: {kind.__name__} with {text}{only}"))
    return out


def _function(by: Rule, zero_point: int | None) -> tuple[type[Rule], tuple[tuple[str, Any], ...]]:
    """Class and parameters of what a rule computes."""
    if isinstance(by, _Engine) and len({part for part, _, _ in by.parts}) == 1:
        by = by.parts[0][0]
    kind, values = (
        type(by),
        {one.name: getattr(by, one.name) for one in fields(by) if one.name != "name"},
    )
    if not by.wraps:  # then it only says what is refused
        del values["register"]
    if kind is Float32Bits:  # the bits of a float32 are what rounding to 31 bits leaves of it
        kind = DoubleRounding
    if isinstance(by, Float) and kind is Float and by.zero_point_first:
        values["ties"] = "half-even"
        values["zero_point_first"] = zero_point != 0
    if (
        kind in (Float, Half, Hybrid, Mantissa) and by.order == "P"
    ):  # their quotient becomes a float32
        values["order"] = "S"
    return kind, tuple(values.items())


@dataclass(frozen=True, eq=False)
class Probes:
    """Accumulators, each with a scale of its own, whose outputs tell ``rules`` apart.

    ``layers`` are what to run on what is asked (``single_op_model(layer)`` of each), with zeros as
    input: weights 0, one output channel per probe, the accumulators as biases.  There is one,
    ``layer``, whose input is ``x``; or one for each scale where a layer takes only one.  ``name``
    takes their outputs.  ``groups`` are the rules that have the same expected outputs, and why.
    """

    layers: tuple[Conv2D | FullyConnected, ...]
    rules: tuple[Rule, ...]
    groups: tuple[Group, ...]

    @property
    def layer(self) -> Conv2D | FullyConnected:
        """The one layer; raises ValueError where the probes need several."""
        if len(self.layers) != 1:
            raise ValueError(
                f"layer: got probes of {len(self.layers)} layers, one for each scale; allowed is "
                ".layers"
            )
        return self.layers[0]

    @property
    def accumulators(self) -> np.ndarray:
        """``(P,)`` int64."""
        return np.concatenate([layer.bias for layer in self.layers]).astype(np.int64)

    @property
    def scales(self) -> np.ndarray:
        """Weight scales ``(P,)`` float64."""
        return np.concatenate(
            [np.broadcast_to(layer.weight_q.scale, layer.bias.shape) for layer in self.layers]
        )

    @property
    def x(self) -> np.ndarray:
        """The input of ``layer``, zeros; each of ``layers`` takes zeros of its own
        ``input_shape``."""
        return np.zeros(self.layer.input_shape, self.layer.dtype)

    @property
    def _quantized(self) -> dict[str, Any]:
        first = self.layers[0]
        return {
            "input_q": first.input_q,
            "weight_q": QuantParams(tuple(self.scales)),
            "output_q": first.output_q,
        }

    @cached_property
    def expected(self) -> pd.DataFrame:
        """The output codes by rule (rows) and probe (columns)."""
        sums = self.accumulators
        recorded = _recorded(
            sums, np.zeros(sums.shape, self.layers[0].dtype), None, **self._quantized
        )
        return pd.DataFrame(
            [recorded.predict(by)[0] for by in self.rules], [by.name for by in self.rules]
        )

    def name(self, outputs: Any) -> Identification:
        """The rules that fit outputs: P codes, or a list of those of each of ``layers``.

        A fit says that no other of ``rules`` does it; a rule that is not among them may fit as
        well.
        """
        sums, codes = self.accumulators, self._codes(outputs)
        found = identify_rounding(sums, codes, **self._quantized, rules=self.rules)
        ends = np.cumsum([len(layer.bias) for layer in self.layers])[:-1]
        some = zip(np.split(sums, ends), np.split(codes, ends), self.layers, strict=True)
        fit = [set(_recorded(*one).engines({})) for one in some]
        return replace(
            found, engines=tuple(name for name in EXACT if all(name in engines for engines in fit))
        )

    def _codes(self, outputs: Any) -> np.ndarray:
        """The codes ``(P,)``; raises ValueError if the outputs are not P codes of the type."""
        dtype, size = self.layers[0].dtype, len(self.accumulators)
        info, allowed = np.iinfo(dtype), f"allowed is {size} codes of {dtype}, one per probe"
        try:
            if isinstance(outputs, list | tuple):
                each = outputs
            else:
                each = [outputs]
            codes = np.concatenate(
                [np.empty(0, dtype), *(_array("outputs", one).ravel() for one in each)]
            )
        except (ValueError, TypeError):
            raise ValueError(
                f"outputs: got a {type(outputs).__name__} that holds no codes, {allowed}"
            ) from None
        if codes.dtype.kind not in "iuf" or codes.size != size:
            raise ValueError(f"outputs: got {codes.size} {codes.dtype}, {allowed}")
        wrong = np.flatnonzero(
            ~((codes >= info.min) & (codes <= info.max) & (codes == np.rint(codes)))
        )
        if wrong.size:
            raise ValueError(f"outputs: got {codes[wrong[0]]} of probe {wrong[0]}, {allowed}")
        return codes.astype(dtype)

    def __repr__(self) -> str:
        first, many = self.layers[0], len(set(self.scales))
        groups = len(functions(self.rules, first.output_q.zero_point))
        return (
            f"Probes({len(self.scales)} accumulators at {many} scale{'s' * (many > 1)} tell "
            f"{len(self.rules)} "
            f"{first.dtype} rules into {groups} group{'s' * (groups > 1)})"
        )


def rounding_probes(
    dtype: str = "int8",
    rules: Iterable[str | Rule] | str | Rule | None = None,
    per_channel: bool = True,
    seed: int = 0,
    op: str = "conv",
    count: int | None = None,
) -> Probes:
    """The fewest probes found that tell rules of an output type apart.

    ``dtype`` is int8, uint8 or int16; ``rules`` as for ``identify_rounding``.  Without
    ``per_channel`` every scale has a layer of its own, for what takes one scale per tensor.  ``op``
    is "conv" (1x1), "depthwise" or "fully_connected": a runtime may round each in its own way.  A
    kernel that rounds its last channels otherwise shows that on an ordinary layer only.  The same
    arguments give the same probes.

    The fewest are chosen for the rules asked and no other, so that a rule nobody listed often fits
    all that one of them fits.  A ``count``, say 16, adds ties of both signs and parities, then what
    separates most pairs a second time: fewer are named falsely. Raises LookupError for an unknown
    rule, ValueError if a rule does not have this type or ``count`` is not between the fewest probes
    and all candidates.

    >>> probes = rounding_probes("int8")
    >>> probes.name(probes.expected.loc["gemmlowp"])
    Identification(gemmlowp fits all 8 outputs; engines that fit: tflite-reference, tflite-micro)
    """
    for name, got, allowed in (("dtype", dtype, ZERO_POINTS), ("op", op, OPS)):
        if not isinstance(got, str) or got not in allowed:
            raise ValueError(f"{name}: got {got!r}, allowed is {', '.join(allowed)}")
    seed = _number("seed", seed, 0, 2**32 - 1)
    candidates = _rules_of(rules, dtype)
    for by in candidates:
        if dtype not in by.types:
            raise ValueError(f"dtype: got {dtype}, allowed with {by.name} is {', '.join(by.types)}")
    zero_point = ZERO_POINTS[dtype]
    classes = functions(candidates, zero_point)
    scales, sums, codes, ties, input_scale = _candidates(
        dtype, [one[0] for one, _ in classes], zero_point, seed
    )
    picks = _fewest(codes, scales, not per_channel)
    if count is not None:
        picks = _filled(picks, codes, ties, _number("count", count, len(picks), len(scales)))
    at = np.array(sorted(picks, key=lambda at: (scales[at], sums[at])), np.int64)
    kinds: dict[bytes, list[tuple[list[Rule], str]]] = {}
    for one, row in zip(classes, codes[:, at], strict=True):
        kinds.setdefault(row.tobytes(), []).append(one)
    groups = []
    for same in kinds.values():
        names = tuple(by.name for one, _ in same for by in one)
        if len(same) > 1:
            groups.append(
                Group(names, f"not separated by any of {codes.shape[1]} candidates", False)
            )
        elif len(names) > 1:
            groups.append(Group(names, same[0][1]))
    quantized = {
        "input_q": QuantParams(input_scale),
        "output_q": QuantParams(OUTPUT_SCALE, zero_point),
        "dtype": dtype,
    }
    if per_channel:
        apart = [at]
    else:
        apart = np.split(at, np.flatnonzero(np.diff(scales[at])) + 1)
    layers = [
        _layer(op, sums[one], tuple(scales[one]) if per_channel else scales[one[0]], **quantized)
        for one in apart
    ]
    return Probes(tuple(layers), tuple(candidates), tuple(groups))


def _number(name: str, given: Any, low: int, high: int) -> int:
    try:
        number = operator.index(given)
    except TypeError:
        number = low - 1
    refuse_if(not low <= number <= high, name, repr(given), f"is a whole number, {low} to {high}")
    return number


def _layer(op: str, bias: np.ndarray, scale: Any, **quantized: Any) -> Conv2D | FullyConnected:
    """Weights 0, so that the bias is the accumulator."""
    count, kind = len(bias), np.uint8 if quantized["dtype"] == "uint8" else np.int8
    quantized["weight_q"] = QuantParams(scale)
    if op == "fully_connected":
        return FullyConnected(np.zeros((count, 1), kind), bias, **quantized)
    if op == "depthwise":
        return Conv2D(
            np.zeros((1, 1, 1, count), kind), bias, (1, 1, count), depthwise=True, **quantized
        )
    return Conv2D(np.zeros((count, 1, 1, 1), kind), bias, (1, 1, 1), **quantized)


def _candidates(
    dtype: str,
    rules: Sequence[Rule],
    zero_point: int,
    seed: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, float]:
    """(weight scales ``(K,)``, accumulators ``(K,)``, codes by rule ``(R, K)``, kind of tie
    ``(K,)``, input scale).

    The kind is sign and parity of a tie, -1 if an accumulator is not a tie.
    """
    random, info = np.random.RandomState(seed), np.iinfo(dtype)
    # with this, the largest code needs an accumulator of 31 bits; past it float32 cuts, and 31 bits
    # of multiplier
    if info.bits == 8:
        smallest = 8 - 31
    else:
        smallest = 16 - 31
    drawn = [
        2.0 ** random.uniform(smallest, high) for high in (-1, smallest + 2) for _ in range(DRAWN)
    ]
    wholes = [2.0**-n for n in TIES if -n >= smallest]
    ratios = wholes + drawn
    # orders "D" and "P" differ where the input scale is no power of two; as large as the output's,
    # ties remain
    orders: dict[Any, set[str]] = {}
    for by in rules:
        kind, values = _function(by, zero_point)
        orders.setdefault((kind, *(one for one in values if one[0] != "order")), set()).add(
            by.order
        )
    input_scale = INPUT_SCALE
    if any({"D", "P"} <= some for some in orders.values()):
        input_scale = OUTPUT_SCALE
    found: list[tuple[np.ndarray, ...]] = []
    refused = ""
    for ratio in ratios:
        scale = float(np.float32(ratio * OUTPUT_SCALE / input_scale))
        some = random.permutation(np.arange(info.min + 1, info.max))[:CODES] - zero_point
        sums = _beside(ratio, some)
        try:
            factors = [by.multiplier(input_scale, scale, OUTPUT_SCALE) for by in rules]
            codes = np.array(
                [
                    by.exact(within(sums, by), *factor, zero_point)
                    for by, factor in zip(rules, factors, strict=True)
                ]
            )
        except ValueError as error:
            refused = str(error)
            continue
        codes = codes.clip(info.min, info.max)
        alike, real = _alike(codes), sums * ratio
        tie = np.where(
            (ratio in wholes) & (real % 1 == 0.5),
            2 * (sums < 0) + np.floor(real).astype(int) % 2,
            -1,
        )
        kept = np.unique(np.vstack([alike, tie]), axis=1, return_index=True)[1]
        found.append((np.full(len(kept), scale), sums[kept], codes[:, kept], tie[kept]))
    if not found:
        raise ValueError(f"rules: got {len(rules)} that share no ratio of scales; {refused}")
    scales, sums, codes, ties = (np.concatenate(one, -1) for one in zip(*found, strict=True))
    return scales, sums, codes, ties, input_scale


def _beside(ratio: float, codes: np.ndarray) -> np.ndarray:
    """Accumulators within int32 next to where outputs change, rounding to nearest or down."""
    at = np.rint(np.concatenate([codes, codes + 0.5]) / ratio)[:, None] + np.arange(-NEAR, NEAR + 1)
    return np.unique(at[np.abs(at) < 2**31]).astype(np.int64)


def _alike(codes: np.ndarray) -> np.ndarray:
    """For every row and column the first row with the same code in that column."""
    return np.array([(codes == row).argmax(0) for row in codes])


def _distinct(codes: np.ndarray) -> np.ndarray:
    """How many codes are in each column."""
    return 1 + (np.diff(np.sort(codes, axis=0), axis=0) > 0).sum(0)


def _fewest(codes: np.ndarray, scales: np.ndarray, sparing: bool) -> list[int]:
    """Columns that tell apart all rows that can be: the fewest that a search keeping the ``WIDTH``
    best finds.

    With ``sparing``, sets of as many rows told apart and fewer scales come first.
    """
    alike = _alike(codes)
    label = []
    if sparing:
        label = [np.unique(scales, return_inverse=True)[1]]
    columns = np.unique(np.vstack([alike, *label]), axis=1, return_index=True)[1]
    alike, rows = alike[:, columns], len(alike)
    whole = len(np.unique(alike, axis=0))
    kept: list[tuple[int, int, np.ndarray, list[int]]] = [(0, 0, np.zeros(rows, np.int64), [])]
    for _ in range(rows):
        found: dict[bytes, tuple[int, int, np.ndarray, list[int]]] = {}
        for _, _, told, picks in kept:
            both = told[:, None] * rows + alike
            count = _distinct(both)
            for at in np.argsort(-count, kind="stable")[: WIDTH * 4 if sparing else WIDTH]:
                _, first, which = np.unique(both[:, at], return_index=True, return_inverse=True)
                taken = [*picks, int(columns[at])]
                used = 0
                if sparing:
                    used = len(set(scales[taken]))
                key = first[which].tobytes()
                if key not in found or found[key][1] > used:
                    found[key] = -int(count[at]), used, first[which], taken
        kept = sorted(found.values(), key=lambda one: one[:2])[:WIDTH]
        if -kept[0][0] == whole:
            break
    return kept[0][3]


def _filled(picks: list[int], codes: np.ndarray, ties: np.ndarray, count: int) -> list[int]:
    """``count`` columns: the picked, ties of every kind, then what separates the pairs that fewest
    separate.

    A pair is in order: the one rule above the other, and below it.
    """
    above = codes[:, None] > codes[None]
    picks, often = list(picks), above[..., picks].sum(-1)
    missing = [kind for kind in np.unique(ties[ties >= 0]) if kind not in ties[picks]]
    while len(picks) < count:
        value = np.tensordot(4.0**-often, above, 2)
        value[picks] = -1
        if missing:
            value[ties != missing.pop(0)] = -1
        picks.append(int(value.argmax()))
        often += above[..., picks[-1]]
    return picks
