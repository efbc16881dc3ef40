"""Search for the rounding rule that made given outputs from given accumulators.

A rule fits if it gives all of these outputs. Rules that fit may be one function: the same
arithmetic under two names. Rules that fit but are different functions may be told apart by further
accumulators.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any, NamedTuple

import numpy as np

from npulab.quant.emulate.engines import NAMES
from npulab.quant.functions import by_function
from npulab.quant.layers import Conv2D, FullyConnected
from npulab.quant.observed import Candidate, Given, Mismatches, Observed, Witness, observe
from npulab.quant.rules import RULES, Float, QuantParams, Rule, rule
from npulab.support.late import pd
from npulab.support.refuse import refuse_if

# A sentence lists at most ``SHOWN`` names of rules, and at most ``DIFFERENCES`` values of output
# minus prediction.
SHOWN = 6
DIFFERENCES = 3


class Group(NamedTuple):
    """Rules that give the same outputs, and the reason; ``same`` is true if they are one
    function.
    """

    rules: tuple[str, ...]
    reason: str
    same: bool = True


class Closest(NamedTuple):
    """A rule that does not fit, with its number of mismatches. ``pattern`` is a text that says what
    the mismatches have in common.
    """

    rule: str
    mismatches: int
    pattern: str


@dataclass(frozen=True, eq=False)
class Identification:
    """The rules that fit outputs.

    ``table`` has a row per rule, fewest mismatches first. Its columns are rule, mismatches,
    compared, fits, the first mismatch (accumulator, channel, got, predicted) and ``reason``, which
    says why a rule does not apply. ``fits`` are the rules that apply and have no mismatch.
    ``groups`` are fitting rules that are one function, or that these accumulators cannot tell
    apart.

    If no rule fits, ``closest`` are the rules with the fewest mismatches. ``by_channel`` is then a
    table with the columns first, end and rules: the rules that fit all channels ``first`` to ``end
    - 1``. It is None if some channel fits no rule. ``engines`` are the engines of
    ``npulab.ENGINES`` that give these outputs if the accumulators are true sums; empty without a
    layer.
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
        text = self._rules_text()
        if self.engines:
            text += f"; engines that fit: {', '.join(self.engines)}"
        return text

    def _rules_text(self) -> str:
        outputs = f"{self.compared} outputs"
        if self.saturated:
            outputs += f" ({self.saturated} saturated)"
        if len(self.fits) == 1:
            return f"{self.fits[0]} fits all {outputs}"
        if self.fits:
            how = "not told apart"
            if all(group.same for group in self.groups):
                how = "one function"
            return f"{_names(self.fits)} fit all {outputs}: {how}"
        if not self.closest:
            return f"no rule applies to these {outputs}"
        names = _names([by.rule for by in self.closest])
        first = self.closest[0]
        text = f"no rule fits all {outputs}; closest {names}: {first.mismatches} differ"
        text += f" ({first.pattern})"
        if self.by_channel is not None:
            for start, end, rules in self.by_channel.itertuples(index=False, name=None):
                text += f"; channels {start} to {end - 1}: {_names(rules)}"
        return text

    def __repr__(self) -> str:
        return f"Identification({self})"


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
    own: Iterable[Rule] = (),
) -> Identification:
    """Return every rule that turns these accumulators into these outputs; rules that cannot be told
    apart are grouped.

    ``accumulators`` are ``(..., C)`` true sums with the bias, as ``emulate.accumulate`` gives them.
    ``outputs`` have the same shape and are int8, uint8, int16 or float32. With float32 outputs the
    sums are without the bias, and ``input_q.scale`` is the scale of the row. Scales, zero point and
    activation are the layer's, unless a keyword gives them. ``rules`` are names or rules, by
    default all rules that have this type of output, each in its usual order of scales. With a layer
    they may also be engines of ``npulab.ENGINES``: the layer decides which rule an engine uses.

    Raises ValueError or TypeError, which names the parameter that does not fit; LookupError for an
    unknown rule.
    """
    observed = observe(accumulators, outputs, Given(layer, input_q, weight_q, output_q, activation))
    trials = []
    applied = []
    fits = []
    known = {}
    for trial in _trials(observed, _candidates(observed, rules, own)):
        trials.append(trial)
        if not trial.refused:
            applied.append(trial)
            known[trial.candidate.function(observed.zero_point)] = trial.total
            if not trial.total:
                fits.append(trial.candidate)
    found = Identification(
        _table(observed, trials),
        _names_of(fits),
        tuple(_groups(observed, fits)),
        observed.outputs.size,
        int(np.count_nonzero(observed.saturated)),
        engines=tuple(observed.engines(known)),
    )
    if fits or not applied:
        return found
    ranges = pd.DataFrame(list(_ranges(applied)), columns=["first", "end", "rules"])
    if not ranges["rules"].map(len).all():
        ranges = None
    return replace(found, closest=tuple(_closest(observed, applied)), by_channel=ranges)


class Trial(NamedTuple):
    """A candidate compared with the outputs.

    ``wrong`` is the number of mismatches of each channel, ``(C,)``. ``first`` is the first
    mismatch: accumulator, channel, got, predicted. ``refused`` says why the candidate does not
    apply.
    """

    candidate: Candidate
    wrong: np.ndarray
    first: tuple[Any, ...] = (None,) * 4
    refused: str = ""

    @property
    def total(self) -> int:
        return int(self.wrong.sum())


def names_or_rules(rules: Iterable[str | Rule] | str | Rule) -> tuple[str | Rule, ...]:
    """Return the given names and rules as a tuple of at least one item. Raises TypeError for an
    item that is neither a name nor a rule, ValueError if there is no item.
    """
    if isinstance(rules, str | Rule) or not isinstance(rules, Iterable):
        rules = (rules,)
    names = tuple(rules)
    for name in names:
        if not isinstance(name, str | Rule):
            raise TypeError(f"rules: got {name!r}, allowed are names or rules")
    refuse_if(not names, "rules", "none", "is one or more")
    return names


def of_type(rules: Iterable[Rule], dtype: str) -> list[Rule]:
    """Return the rules, among those given, that have outputs of a type."""
    return [by for by in rules if dtype in by.types]


def rules_of_type(dtype: str) -> list[Rule]:
    """Return all rules that have an output type."""
    rules = of_type(RULES.values(), dtype)
    if dtype != "int16":
        return rules
    # sums of int16 codes have more than 32 bits, so that rules of float arithmetic take 48 bits
    widened: list[Rule] = []
    for by in rules:
        if isinstance(by, Float):
            by = replace(by, register=48)
        widened.append(by)
    return widened


def _candidates(
    observed: Observed, rules: Iterable[str | Rule] | str | Rule | None, own: Iterable[Rule]
) -> list[Candidate]:
    dtype = observed.outputs.dtype.name
    if rules is None:
        rules = rules_of_type(dtype)
    candidates = []
    for name in (*names_or_rules(rules), *of_type(own, dtype)):
        if isinstance(name, str) and name in NAMES:
            candidates.append(observed.of_engine(name))
        else:
            candidates.append(observed.of_rule(rule(name)))
    return candidates


def _trials(observed: Observed, candidates: Iterable[Candidate]) -> Iterator[Trial]:
    """Yield each candidate compared with the outputs.

    This is a generator because it is faster: it holds the arrays of a candidate until the arrays of
    the next are made. A function called per candidate freed its arrays first, the system took the
    memory pages back, and identifying took 1.3 times as long.
    """
    dtype = observed.outputs.dtype.name
    for candidate in candidates:
        try:
            for by, _, _ in candidate.parts:
                if dtype not in by.types:
                    raise ValueError(
                        f"outputs: got {dtype}, allowed with {by.name} is {', '.join(by.types)}"
                    )
            predicted = observed.predict(candidate)
        except ValueError as error:
            yield Trial(candidate, np.empty(0, int), refused=f"not applicable: {error}")
            continue
        differ = predicted != observed.outputs
        trial = Trial(candidate, differ.sum(0))
        if trial.total:
            place = np.unravel_index(int(differ.argmax()), differ.shape)
            got = observed.outputs[place]
            first = observed.accumulators[place], place[1], got, predicted[place]
            trial = trial._replace(first=first)
        yield trial


def _table(observed: Observed, trials: Sequence[Trial]) -> pd.DataFrame:
    """Return the table of ``Identification``: a row per trial, fewest mismatches first."""
    rows = []
    for trial in trials:
        row: dict[str, Any] = {"rule": trial.candidate.name}
        row["mismatches"] = None if trial.refused else trial.total
        row["compared"] = 0 if trial.refused else observed.outputs.size
        row["fits"] = row["mismatches"] == 0
        row |= zip(("accumulator", "channel", "got", "predicted"), trial.first, strict=True)
        row["reason"] = trial.refused
        rows.append(row)
    whole = ["mismatches", "accumulator", "channel"]
    if not observed.real:
        whole += ["got", "predicted"]
    table = pd.DataFrame(rows).astype(dict.fromkeys(whole, "Int64"))
    return table.sort_values("mismatches", kind="stable", ignore_index=True)


def _groups(observed: Observed, fits: Sequence[Candidate]) -> Iterator[Group]:
    """Yield groups of fitting rules. The first group has all fitting rules, if they compute several
    functions; each next group is a function that two or more rules compute.
    """
    functions = by_function(fits, Candidate.function, observed.zero_point)
    if len(functions) > 1:
        classes = [same for same, _ in functions]
        text = _witness_text(observed.witness(classes), classes)
        reason = f"not separated by these accumulators: {text}"
        yield Group(_names_of(fits), reason, False)
    for same, reason in functions:
        if len(same) > 1:
            yield Group(_names_of(same), reason)


def _witness_text(witness: Witness | None, classes: Sequence[Sequence[Candidate]]) -> str:
    """Return a sentence about the accumulator that would distinguish the functions."""
    if witness is None:
        return (
            "no accumulator near a boundary with these scales would; the scales of "
            "rounding_probes do"
        )
    names: dict[int, list[str]] = {}
    for same, output in zip(classes, witness.outputs, strict=True):
        names.setdefault(output, []).extend(_names_of(same))
    answers = [f"{output} by {_names(names[output])}" for output in sorted(names)]
    return (
        f"accumulator {witness.accumulator} in channel {witness.channel} would give "
        f"{', '.join(answers)}"
    )


def _closest(observed: Observed, applied: Sequence[Trial]) -> Iterator[Closest]:
    """Yield the rules with the fewest mismatches."""
    least = min(trial.total for trial in applied)
    for trial in applied:
        if trial.total == least:
            pattern = _pattern_text(observed.mismatches(trial.candidate))
            yield Closest(trial.candidate.name, least, pattern)


def _pattern_text(mismatches: Mismatches) -> str:
    """Return a text that says what the mismatches of a rule have in common."""
    values, counts = np.unique(mismatches.differences, return_counts=True)
    if len(values) > DIFFERENCES:
        mean = np.average(values, weights=counts)
        texts = [f"by {values[0]:+g} to {values[-1]:+g}, mean {mean:+.3g}"]
    elif len(values) == 1:
        texts = [f"all {values[0]:+g}"]
    else:
        most = np.argsort(-counts, kind="stable")
        texts = [f"{counts[place]} {values[place]:+g}" for place in most]
    for name, which in (
        ("at ties", mismatches.tie),
        ("of negative accumulators", mismatches.negative),
        ("saturated", mismatches.saturated),
    ):
        if which.all():
            texts.append(f"all {name}")
        elif which.any():
            texts.append(f"{np.count_nonzero(which)} {name}")
    return ", ".join(texts)


def _ranges(trials: Sequence[Trial]) -> Iterator[tuple[int, int, tuple[str, ...]]]:
    """Yield as few ranges of channels as possible, each as (first, end, the rules that fit all
    channels of the range).
    """
    fits = np.array([trial.wrong for trial in trials]) == 0
    channels = fits.shape[1]
    first = 0
    while first < channels:
        alive = fits[:, first]
        end = first + 1
        while end < channels and (alive & fits[:, end]).any():
            alive = alive & fits[:, end]
            end += 1
        fitting = compress((trial.candidate for trial in trials), alive)
        yield first, end, _names_of(fitting)
        first = end


def _names_of(candidates: Iterable[Candidate]) -> tuple[str, ...]:
    return tuple(by.name for by in candidates)


def _names(rules: Sequence[str]) -> str:
    """Return a text with the first few names of rules, and how many more there are."""
    text = ", ".join(rules[:SHOWN])
    if len(rules) > SHOWN:
        text += f" and {len(rules) - SHOWN} more"
    return text
