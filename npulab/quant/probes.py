"""Search for the fewest accumulators whose outputs tell rounding rules apart.

Candidates are accumulators next to boundaries where an output changes, at small and large ratios of
scales. Two rules are separated by a candidate if they give different outputs for it. The search
picks the fewest candidates that separate all rules that some candidate separates.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray as Array

from npulab.quant.emulate.engines import EXACT
from npulab.quant.functions import Function, function_of, functions
from npulab.quant.identify import (
    Group,
    Identification,
    identify_rounding,
    names_or_rules,
    rules_of_type,
)
from npulab.quant.layers import Conv2D, FullyConnected
from npulab.quant.observed import OPS, Given, Observed, array_of, distinct, near_boundaries, observe
from npulab.quant.requantize import within
from npulab.quant.rules import QuantParams, Rule, rule
from npulab.support.late import pd
from npulab.support.refuse import refuse_if

# With an input scale that is a power of two, orders "D" and "P" give the same ratio; with an output
# scale that is not a power of two, order "S" gives another ratio.
INPUT_SCALE = 0.5
OUTPUT_SCALE = float(np.float32(0.0871))
# An odd zero point sends ties to another neighbour if it is added before the rounding than if it is
# added after, which tells such rules apart. int16 has the zero point 0.
ZERO_POINTS = {"int8": 3, "uint8": 131, "int16": 0}
# Candidates are made at the ratios of scales 2**-n for each n of ``TIES``, because ties exist at
# powers of two; at ``DRAWN`` random ratios; and at ``DRAWN`` ratios just above the smallest. There
# are at most ``CODES`` random codes for each ratio.
TIES = (1, 2, 3, 4, 7, 8, 12, 20, 23)
DRAWN = 12
CODES = 60
WIDTH = 16  # the search for the fewest probes continues at most WIDTH sets of probes

Layer = Conv2D | FullyConnected


@dataclass(frozen=True, eq=False)
class Probes:
    """Accumulators, each with a scale of its own, whose outputs tell ``rules`` apart.

    ``layers`` are to be run on the unknown engine (``single_op_model(layer)`` of each) with an
    input of zeros. Their weights are 0, each output channel is a probe, and the biases are the
    accumulators. Usually there is one layer, ``layer``, with the input ``x``; if an engine takes
    only one scale per layer, there is a layer for each scale. ``name`` takes the outputs of the
    layers and returns the rules that fit. ``groups`` are the rules that have the same expected
    outputs, with the reason.
    """

    layers: tuple[Layer, ...]
    rules: tuple[Rule, ...]
    groups: tuple[Group, ...]

    @property
    def layer(self) -> Layer:
        """The only layer; raises ValueError if there are several layers."""
        if len(self.layers) != 1:
            raise ValueError(
                f"layer: got probes of {len(self.layers)} layers, one for each scale, allowed is "
                "one layer: use .layers"
            )
        return self.layers[0]

    @property
    def accumulators(self) -> Array:
        """The accumulator of each probe, ``(P,)`` int64."""
        return np.concatenate([layer.bias for layer in self.layers]).astype(np.int64)

    @property
    def scales(self) -> Array:
        """The weight scale of each probe, ``(P,)`` float64."""
        scales = [np.broadcast_to(layer.weight_q.scale, layer.bias.shape) for layer in self.layers]
        return np.concatenate(scales)

    @property
    def x(self) -> Array:
        """The input of ``layer``: zeros. If there are several ``layers``, each takes zeros of its
        ``input_shape``.
        """
        return np.zeros(self.layer.input_shape, self.layer.dtype)

    @cached_property
    def expected(self) -> pd.DataFrame:
        """The expected output codes: a row per rule, a column per probe."""
        sums = self.accumulators
        observed = self._observed(np.zeros(sums.shape, self.layers[0].dtype))
        codes = [observed.predict(observed.of_rule(by))[0] for by in self.rules]
        return pd.DataFrame(codes, [by.name for by in self.rules])

    def name(self, outputs: Any) -> Identification:
        """Return the rules that fit outputs. ``outputs`` are P codes, or a list with the codes of
        each of ``layers``.

        If one of ``rules`` fits, then no rule of ``rules`` outside of its group fits. A rule that
        is not in ``rules`` may fit as well.
        """
        codes = self._codes(outputs)
        first = self.layers[0]
        found = identify_rounding(
            self.accumulators,
            codes,
            input_q=first.input_q,
            weight_q=QuantParams(tuple(self.scales)),
            output_q=first.output_q,
            rules=self.rules,
        )
        ends = np.cumsum([len(layer.bias) for layer in self.layers])
        engines = list(EXACT)
        for layer, share in zip(self.layers, np.split(codes, ends[:-1]), strict=True):
            observed = observe(layer.bias.astype(np.int64), share, Given(layer))
            fit = set(observed.engines({}))
            engines = [name for name in engines if name in fit]
        return replace(found, engines=tuple(engines))

    def _observed(self, codes: Array) -> Observed:
        first = self.layers[0]
        weight_q = QuantParams(tuple(self.scales))
        given = Given(input_q=first.input_q, weight_q=weight_q, output_q=first.output_q)
        return observe(self.accumulators, codes, given)

    def _codes(self, outputs: Any) -> Array:
        """Return the codes ``(P,)``; raises ValueError if the outputs are not P codes of the
        layers' type.
        """
        dtype = self.layers[0].dtype
        size = len(self.accumulators)
        info = np.iinfo(dtype)
        allowed = f"allowed is {size} codes of {dtype}, one per probe"
        shares = outputs
        if not isinstance(outputs, list | tuple):
            shares = [outputs]
        try:
            arrays = [array_of("outputs", share).ravel() for share in shares]
            codes = np.concatenate([np.empty(0, dtype), *arrays])
        except (ValueError, TypeError):
            raise ValueError(
                f"outputs: got a {type(outputs).__name__} that holds no codes, {allowed}"
            ) from None
        if codes.dtype.kind not in "iuf" or codes.size != size:
            raise ValueError(f"outputs: got {codes.size} {codes.dtype}, {allowed}")
        fits = (codes >= info.min) & (codes <= info.max) & (codes == np.rint(codes))
        wrong = np.flatnonzero(~fits)
        if wrong.size:
            raise ValueError(f"outputs: got {codes[wrong[0]]} of probe {wrong[0]}, {allowed}")
        return codes.astype(dtype)

    def __repr__(self) -> str:
        first = self.layers[0]
        scales = _counted(len(set(self.scales)), "scale")
        groups = _counted(len(functions(self.rules, first.output_q.zero_point)), "group")
        return (
            f"Probes({len(self.scales)} accumulators at {scales} tell {len(self.rules)} "
            f"{first.dtype} rules into {groups})"
        )


def rounding_probes(
    dtype: str = "int8",
    rules: Iterable[str | Rule] | str | Rule | None = None,
    per_channel: bool = True,
    seed: int = 0,
    op: str = "conv",
    count: int | None = None,
    allowed: Mapping[str, Any] | None = None,
) -> Probes:
    """Return the fewest probes found that tell rules of an output type apart.

    ``dtype`` is int8, uint8 or int16; ``rules`` as for ``identify_rounding``. Without
    ``per_channel`` every scale has a layer of its own, for engines that take one scale per tensor.
    ``op`` is "conv" (1x1), "depthwise" or "fully_connected": a runtime may round each in its own
    way. Some kernels use another rule for their last channels, which shows on an ordinary layer
    only. The same arguments give the same probes.

    The fewest probes separate only the rules asked for. A rule that was not asked for often fits
    too. A larger ``count``, such as 16, adds ties of both signs and parities, then the probes that
    separate most pairs a second time: fewer rules are named falsely. ``allowed`` is what an NPU can
    do, as ``target.allowed`` states it: only its values of ``ratio`` (of scales),
    ``output_zero_point`` and ``input_c`` are used.

    Raises LookupError for an unknown rule. Raises ValueError if a rule does not have this type or
    no allowed ratio, or if ``count`` is below the fewest probes or above the number of candidates.

    >>> probes = rounding_probes("int8")
    >>> probes.name(probes.expected.loc["gemmlowp"])
    Identification(gemmlowp fits all 8 outputs; engines that fit: tflite-reference, tflite-micro)
    """
    for name, got, known in (("dtype", dtype, ZERO_POINTS), ("op", op, OPS)):
        if not isinstance(got, str) or got not in known:
            raise ValueError(f"{name}: got {got!r}, allowed is {', '.join(known)}")
    seed = _number("seed", seed, 0, 2**32 - 1)
    reach = _reach(dtype, allowed or {})
    asked = _asked(rules, dtype)
    classes = functions(asked, reach.zero_point)
    pool = _pool(dtype, [same[0] for same, _ in classes], seed, reach)
    picks = _fewest(pool, sparing=not per_channel)
    if count is not None:
        picks = _filled(pool, picks, _number("count", count, len(picks), len(pool.scales)))
    probes = pool.only(picks)
    layers = []
    for first, end in _layer_ranges(probes, per_channel):
        scale: Any = float(probes.scales[first])
        if per_channel:
            scale = tuple(probes.scales)
        bias = probes.sums[first:end]
        layers.append(_layer(op, dtype, bias, (probes.input_scale, scale), reach))
    return Probes(tuple(layers), tuple(asked), tuple(_groups(classes, pool, probes)))


class Reach(NamedTuple):
    """What probes may use on an NPU: the zero point of outputs, the number of input channels of a
    layer, and the ratios of scales. ``ratios`` is None if ratios of any size are allowed.
    """

    zero_point: int
    channels: int
    ratios: tuple[float, ...] | None


def _reach(dtype: str, allowed: Mapping[str, Any]) -> Reach:
    """Return what the probes of a type may use. The zero point is that of ``ZERO_POINTS`` if it is
    allowed, else the lowest that is allowed.
    """
    zero_point = ZERO_POINTS[dtype]
    zero_points = allowed.get("output_zero_point", [zero_point])
    low, high = min(zero_points), max(zero_points)
    between = isinstance(zero_points, tuple) and low <= zero_point <= high
    if not between and zero_point not in zero_points:
        zero_point = low
    ratios = None
    if "ratio" in allowed:
        ratios = tuple(map(float, allowed["ratio"]))
    return Reach(int(zero_point), int(min(allowed.get("input_c", [1]))), ratios)


def _number(name: str, given: Any, low: int, high: int) -> int:
    try:
        number = operator.index(given)
    except TypeError:
        number = low - 1
    refuse_if(not low <= number <= high, name, repr(given), f"is a whole number, {low} to {high}")
    return number


def _asked(rules: Iterable[str | Rule] | str | Rule | None, dtype: str) -> list[Rule]:
    """Return the rules that the caller asks for, by default all rules of the type."""
    if rules is None:
        return rules_of_type(dtype)
    asked = list(map(rule, names_or_rules(rules)))
    for by in asked:
        if dtype not in by.types:
            raise ValueError(f"dtype: got {dtype}, allowed with {by.name} is {', '.join(by.types)}")
    return asked


@dataclass(frozen=True, eq=False)
class Pool:
    """K candidates for probes: the weight scale, the accumulator ``sums`` and the code per rule,
    ``(rules, K)``, of each.

    ``ties`` is 0 to 3 for the sign and parity of a tie, and -1 if the accumulator is no tie.
    """

    scales: Array
    sums: Array
    codes: Array
    ties: Array
    input_scale: float

    def only(self, picks: list[int]) -> Pool:
        """Return a pool of the picked candidates, sorted by scale and accumulator."""
        picked = np.array(picks, np.int64)
        at = picked[np.lexsort((self.sums[picked], self.scales[picked]))]
        return Pool(
            self.scales[at], self.sums[at], self.codes[:, at], self.ties[at], self.input_scale
        )


def _pool(dtype: str, rules: Sequence[Rule], seed: int, reach: Reach) -> Pool:
    """Return candidate accumulators next to rounding boundaries, for ratios that are powers of two
    and for random ratios.
    """
    random = np.random.RandomState(seed)
    info = np.iinfo(dtype)
    zero_point = reach.zero_point
    input_scale = _input_scale(rules, zero_point)
    # At the smallest ratio the largest code needs an accumulator of 31 bits. Just above that ratio
    # accumulators have more bits than float32 holds, so that float32 rules and multipliers of 31
    # bits differ.
    smallest = info.bits - 31
    wholes = [2.0**-shift for shift in TIES if -shift >= smallest]
    drawn = []
    for high in (-1, smallest + 2):
        drawn += [2.0 ** random.uniform(smallest, high) for _ in range(DRAWN)]
    if reach.ratios is not None:
        wholes = sorted({*reach.ratios}.intersection(wholes))
        drawn = sorted({*reach.ratios}.difference(wholes))
    found = []
    refused = ""
    for ratio in wholes + drawn:
        scale = float(np.float32(ratio * OUTPUT_SCALE / input_scale))
        levels = random.permutation(np.arange(info.min + 1, info.max))[:CODES] - zero_point
        sums = near_boundaries(ratio, levels)
        try:
            codes = _codes_at(rules, sums, (input_scale, scale, OUTPUT_SCALE), zero_point)
        except ValueError as error:
            refused = str(error)
            continue
        codes = codes.clip(info.min, info.max)
        ties = np.full(len(sums), -1)
        if ratio in wholes:
            real = sums * ratio
            kind = 2 * (sums < 0) + np.floor(real).astype(int) % 2
            ties = np.where(real % 1 == 0.5, kind, -1)
        # one candidate is kept for each way to separate the rules and each kind of tie
        kept = _distinct_columns(np.vstack([_alike(codes), ties]))
        found.append((np.full(len(kept), scale), sums[kept], codes[:, kept], ties[kept]))
    if not found:
        raise ValueError(
            f"rules: got {len(rules)} rules, allowed are rules with a ratio of scales in common; "
            f"{refused}"
        )
    columns = [np.concatenate(column, axis=-1) for column in zip(*found, strict=True)]
    return Pool(columns[0], columns[1], columns[2], columns[3], input_scale)


def _input_scale(rules: Sequence[Rule], zero_point: int) -> float:
    """Return the input scale of the probes: equal to the output scale if some rules differ only in
    the orders "D" and "P".

    These orders differ only if the input scale is not a power of two. An input scale that equals
    the output scale keeps ties.
    """
    orders: dict[Function, set[str]] = {}
    for by in rules:
        any_order = function_of(replace(by, order=""), zero_point)
        orders.setdefault(any_order, set()).add(by.order)
    if any(used >= {"D", "P"} for used in orders.values()):
        return OUTPUT_SCALE
    return INPUT_SCALE


def _codes_at(
    rules: Sequence[Rule], sums: Array, scales: tuple[float, float, float], zero_point: int
) -> Array:
    """Return outputs ``(rules, N)`` before the clamp. Raises ValueError if a rule cannot represent
    the ratio of these scales.
    """
    codes = []
    for by in rules:
        multiplier, right_shift = by.multiplier(*scales)
        codes.append(by.exact(within(sums, by), multiplier, right_shift, zero_point))
    return np.array(codes)


def _alike(codes: Array) -> Array:
    """Return, for every row and column, the number of the first row that has the same code in that
    column.
    """
    return np.array([(codes == row).argmax(0) for row in codes])


def _distinct_columns(rows: Array) -> Array:
    """Return the numbers of the columns that differ from one another; of equal columns the first is
    returned. The numbers are in the order of the columns' values.
    """
    # sorting brings equal columns together and keeps their order, so that the first comes first
    order = np.lexsort(rows[::-1])
    columns = rows[:, order]
    other = np.any(columns[:, 1:] != columns[:, :-1], axis=0)
    return order[np.concatenate([[True], other])]


class Choice(NamedTuple):
    """Some candidates, ``picks``, and the rules that they separate.

    ``labels`` has a number for each rule; two rules are separated if their numbers differ.
    ``separated`` is how many different numbers there are. ``scales`` is how many different scales
    the candidates have, or 0 if their number does not count.
    """

    labels: Array
    separated: int
    scales: int
    picks: tuple[int, ...]


def _fewest(pool: Pool, sparing: bool) -> list[int]:
    """Return the fewest candidates found that separate all rules that can be separated. The search
    keeps the ``WIDTH`` best sets of candidates at each step.

    If two sets separate equally many rules and ``sparing`` is true, the set with fewer scales is
    better.
    """
    alike = _alike(pool.codes)
    ways = alike
    if sparing:
        ways = np.vstack([alike, np.unique(pool.scales, return_inverse=True)[1]])
    columns = _distinct_columns(ways)
    alike = alike[:, columns]
    rules = len(alike)
    most = len(np.unique(alike, axis=0))
    tried = WIDTH
    if sparing:
        tried = WIDTH * 4
    kept = [Choice(np.zeros(rules, np.int64), 1, 0, ())]
    for _ in range(rules):
        found: dict[bytes, Choice] = {}
        for choice in kept:
            both = choice.labels[:, None] * rules + alike
            separated = distinct(both)
            order = np.argsort(-separated, kind="stable")[:tried]
            for at, labels in zip(order.tolist(), _alike(both[:, order]).T, strict=True):
                picks = (*choice.picks, int(columns[at]))
                scales = 0
                if sparing:
                    scales = len(set(pool.scales[list(picks)]))
                key = labels.tobytes()
                if key not in found or found[key].scales > scales:
                    found[key] = Choice(labels, int(separated[at]), scales, picks)
        best = sorted(found.values(), key=lambda choice: (-choice.separated, choice.scales))
        kept = best[:WIDTH]
        if kept[0].separated == most:
            break
    return list(kept[0].picks)


def _filled(pool: Pool, picks: list[int], count: int) -> list[int]:
    """Return ``count`` candidates: the picked ones, then one tie of every kind that is missing,
    then one at a time the candidate that separates most pairs of rules.

    A pair counts less, the more of the returned candidates separate it. A pair is ordered: (A, B)
    is separated if A gives more than B, and (B, A) if B gives more.
    """
    above = pool.codes[:, None] > pool.codes[None]
    picks = list(picks)
    often = above[..., picks].sum(-1)
    kinds = np.unique(pool.ties[pool.ties >= 0])
    missing = [kind for kind in kinds if kind not in pool.ties[picks]]
    while len(picks) < count:
        # each probe that already separates a pair divides the value of the pair by four
        value = np.tensordot(4.0**-often, above, 2)
        value[picks] = -1
        if missing:
            value[pool.ties != missing.pop(0)] = -1
        pick = int(value.argmax())
        picks.append(pick)
        often += above[..., pick]
    return picks


def _groups(classes: Sequence[tuple[list[Rule], str]], pool: Pool, probes: Pool) -> Iterable[Group]:
    """Yield the rules that have equal outputs at all probes."""
    equal: dict[bytes, list[tuple[list[Rule], str]]] = {}
    for function, codes in zip(classes, probes.codes, strict=True):
        equal.setdefault(codes.tobytes(), []).append(function)
    for alike in equal.values():
        rules: list[Rule] = []
        for same, _ in alike:
            rules += same
        names = tuple(by.name for by in rules)
        if len(alike) > 1:
            reason = f"not separated by any of {len(pool.scales)} candidates"
            yield Group(names, reason, False)
        elif len(names) > 1:
            yield Group(names, alike[0][1])


def _layer_ranges(probes: Pool, per_channel: bool) -> list[tuple[int, int]]:
    """Return (first, end) of the probes of each layer: one layer of all probes, or one for each
    scale.
    """
    starts = [0]
    if not per_channel:
        starts += (np.flatnonzero(np.diff(probes.scales)) + 1).tolist()
    return list(zip(starts, [*starts[1:], len(probes.scales)], strict=True))


def _layer(op: str, dtype: str, bias: Array, scales: tuple[float, Any], reach: Reach) -> Layer:
    """Return a layer whose weights are 0, so that each bias is an accumulator."""
    input_scale, scale = scales
    count = len(bias)
    kind = np.int8
    if dtype == "uint8":
        kind = np.uint8  # type: ignore[assignment]
    quantized: dict[str, Any] = {
        "input_q": QuantParams(input_scale),
        "weight_q": QuantParams(scale),
        "output_q": QuantParams(OUTPUT_SCALE, reach.zero_point),
        "dtype": dtype,
    }
    if op == "fully_connected":
        return FullyConnected(np.zeros((count, 1), kind), bias, **quantized)
    if op == "depthwise":
        weights = np.zeros((1, 1, 1, count), kind)
        return Conv2D(weights, bias, (1, 1, count), depthwise=True, **quantized)
    shape = (1, 1, reach.channels)
    return Conv2D(np.zeros((count, *shape), kind), bias, shape, **quantized)


def _counted(count: int, noun: str) -> str:
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun}s"
