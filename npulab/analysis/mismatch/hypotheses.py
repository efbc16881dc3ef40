"""Which neighbouring explanation of a layer predicts a captured output that the present one does
not.

``changes`` has the table of all changes of an explanation, ``fits`` computes changes from the
output, ``predicting`` computes the output of an explanation, ``pooling`` does both for a pooling
layer. Here the changes are tried, alone and in pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray as Array

from npulab.analysis.compared import OUTPUT
from npulab.analysis.mismatch import plain, pooling
from npulab.analysis.mismatch.changes import CHANGES, ENOUGH, Change, Kinds, changes_of, varied
from npulab.analysis.mismatch.fits import UNWRITTEN, other_bias, permutation, unwritten
from npulab.analysis.mismatch.predicting import Explanation, Hypothesis, Sums, predict
from npulab.analysis.mismatch.solved import constant, solved, solved_halves
from npulab.analysis.mismatch.words import field_trials
from npulab.captures.capture import Capture
from npulab.captures.registry import target
from npulab.quant.floats import steps
from npulab.quant.layers import LAYERS, Conv2D, FullyConnected, Network, Pool2D
from npulab.quant.rules import QUANTIZED, Rule
from npulab.support.late import pd
from npulab.support.refuse import refuse_if

COLUMNS = ["kind", "change", "mismatches", "compared", "equal"]
PRESENT = "present"
FIELD = "field"
# The attribute of the table that says which fields were tried on the simulated device.
FIELDS = "fields"
# A line of the summary names at most this many changes of one kind.
MOST_SHOWN = 8
# At most this many single changes are tried together with every other change.
FIRST = 6
# All pairs of changes together compute at most this many products, in about a second.
WORK = 2 * 10**10
Progress = Callable[[list[Change]], Iterable[Change]]
Fit = Callable[[Any, Array, Array, Any], list[Change]]


class Method(NamedTuple):
    """How a kind of layer is explained.

    ``predict`` returns the output of an explanation; ``kinds`` are the kinds of changes; ``kept``
    makes the object that keeps sums for many predictions. A fit computes changes from the output:
    ``solved`` fits one number and is tried with the single changes, ``before_pairs`` and
    ``after_pairs`` before and after pairs of changes. ``cost`` returns the products that one
    prediction takes.
    """

    predict: Callable[..., Array]
    kinds: Kinds
    kept: Callable[[], Any]
    solved: tuple[Fit, ...]
    before_pairs: tuple[Fit, ...]
    after_pairs: tuple[Fit, ...]
    cost: Callable[[Any, Array], int]


class Tried(NamedTuple):
    """A change, and the number of outputs that differ with it. Changes with equally many mismatches
    are sorted by ``number``, their place in the table.
    """

    mismatches: int
    number: int
    kind: str
    words: str


def hypotheses(
    layer: Any,
    x: Any = None,
    output: Any = None,
    rule: str | Rule = "tflite-reference",
    progress: Progress = iter,
) -> pd.DataFrame:
    """Return how many outputs differ with each neighbouring explanation: kind, change, mismatches,
    compared, equal.

    Kinds are rule, zero point, ratio (a shift or multiplier that is off), clamp, bias, weight (one
    that is solved from the differences), accumulator, padding, stride phase, stride, channel order,
    kernel and unwritten (whole channels or rows of the output hold only 0 or only the zero point,
    although other outputs were predicted). Of a pooling they are, in place of rule, bias,
    accumulator and kernel: kind of pooling, rounding, border (what padding counts), window,
    divisor, register (too few bits of the sums are kept), order of division, and reciprocal. Of any
    other layer they are rule, kind, scale, clamp and orders, and with weights of float16 also those
    of a convolution.
    ``x`` and ``output`` are ``(H, W, C)`` or ``(N, H, W, C)``, as for ``emulate``, and of one type.
    A ``Comparison`` that differs may take the place of all four arguments. If its target simulates
    the capture, there are rows of the kind field, too: what the simulated device writes with other
    values of each field, addresses apart, as many as take a few seconds. ``attrs["fields"]`` says
    how many of how many values were tried.

    The first row is the present explanation, and the only row if it makes the outputs equal; the
    other rows are sorted by mismatches, then in the order of the table of changes. All rows with
    ``equal`` give the captured output, so they are tied. Changes that are
    not possible (a rule that cannot express the ratio, a padding with another output shape) have no
    row.

    If no single change makes the outputs equal, and the outputs are enough to decide, further
    changes are tried until one does: a permutation of the output channels; then the nearest changes
    together with every other change, as far as time allows (their kind reads ``rule + padding``);
    then other biases, or for averages sums that are off by multiples of a power of two.
    ``progress`` is called with the changes and yields them one by one, as tqdm does. Raises
    ValueError for what is no layer, and for tensors that do not fit the layer.
    """
    from npulab.registers.shown import Table

    capture = None
    if x is None and output is None and not isinstance(layer, EXPLAINED):
        capture = getattr(layer, "capture", None)
        layer, x, output, rule = _parts_of_comparison(layer)
    x, output = _tensors(layer, x, output)
    search = _search(layer, x, output, rule, progress, capture)
    rows = []
    for row in search.rows():
        wrong = row.mismatches
        rows.append((row.kind, row.words, wrong, output.size, wrong == 0))
    table = Table(rows, columns=COLUMNS)
    table.attrs[FIELDS] = search.said[-1]
    return table


def _tensors(layer: Any, x: Any, output: Any) -> tuple[Any, Array]:
    """Return the input, or a tuple of inputs, and the output as arrays; raises ValueError if they
    or the layer cannot be explained."""
    if not isinstance(layer, EXPLAINED):
        raise ValueError(f"layer: got {layer!r}, allowed is a layer, as emulate takes it")
    for name, tensor in (("x", x), ("output", output)):
        if tensor is None:
            raise ValueError(f"{name}: got None, allowed is a tensor")
    output = np.asarray(output)
    if isinstance(x, tuple | list):
        x = tuple(map(np.asarray, x))
    else:
        x = np.asarray(x)
    dtype = _dtype_of(x)
    refuse_if(
        output.dtype != dtype or output.size == 0,
        "output",
        f"shape {output.shape} {output.dtype}",
        f"is {dtype}, as the input is, with at least one output",
    )
    return x, output


def _search(
    layer: Any, x: Any, output: Array, rule: str | Rule, progress: Progress, capture: Any
) -> _Search:
    start: Explanation
    if isinstance(layer, Pool2D) and layer.dtype in QUANTIZED:
        method = POOLING
        start = pooling.Pooled(layer, x, rule)
    elif isinstance(layer, Conv2D | FullyConnected) and layer.dtype in QUANTIZED:
        method = WEIGHTED
        start = Hypothesis(layer, x, rule)
    else:
        method = OTHERS
        start = plain.Plain(layer, x, rule)
    return _Search(start, output, progress, method, method.kept(), capture)


def _dtype_of(x: Any) -> np.dtype[Any]:
    if isinstance(x, tuple):
        x = x[0]
    dtype: np.dtype[Any] = x.dtype
    return dtype


def _parts_of_comparison(found: Any) -> list[Any]:
    """Return layer, input, captured output and rule of a comparison; raises ValueError if it does
    not have one of them.
    """
    parts: list[Any] = [getattr(found, name, None) for name in ("layer", "x", "captured", "rule")]
    refuse_if(
        any(part is None for part in parts),
        "hypotheses",
        f"{found!r}",
        "is a layer with x and output, or a Comparison with layer, x and captured output",
    )
    layer, x, output, rule = parts
    if isinstance(layer, FullyConnected):
        # each batch is a row of an image
        outputs, inputs = layer.weights.shape
        x = np.reshape(x, (-1, inputs))
        output = np.reshape(output, (-1, outputs))
    return [layer, x, output, rule]


def summary_lines(frame: pd.DataFrame) -> list[str]:
    r"""Return the result of ``hypotheses`` as lines: the changes that make the outputs equal, or
    else the nearest changes, then the fewest mismatches of each kind.

    >>> import pandas as pd
    >>> rows = [("present", "rule gemmlowp", 2, 90, False), ("bias", "bias left out", 0, 90, True)]
    >>> print(*summary_lines(pd.DataFrame(rows, columns=COLUMNS)), sep="\n")
    equal with: bias left out (0 of 90 differ)
    best of each kind alone: bias 0
    """
    present, rest = frame.iloc[0], frame.iloc[1:]
    size, wrong = present.compared, present.mismatches
    if present.equal:
        return [f"equal with: {present.change} (0 of {size} differ)"]
    few = ""
    if size < ENOUGH:
        few = f"; {size} outputs are too few to be sure"
    lines = []
    equal = rest[rest.equal]
    several = equal.kind.map(takes_several)
    for _, group in equal.groupby("kind", sort=False):
        changes = _alternatives(group.change)
        lines.append(f"equal with: {changes} (0 of {size} differ){few}")
    if len(equal) > 1:
        lines.append(f"tied: these {len(equal)} give the same output")
    if len(equal) and several.all():
        lines.insert(0, "no single change explains it: it takes more than one")
    least = rest.mismatches.min()
    if not lines and _nearer(least, wrong):
        nearest = rest[rest.mismatches == least]
        changes = _alternatives(nearest.change)
        lines.append(f"nearest: {changes} ({least} of {size} differ){few}")
    if not lines:
        lines.append(f"no neighbouring explanation is nearer ({wrong} of {size} differ)")
    if not len(equal):
        lines.append("no single change explains it: it takes more than one, or none of these")
    first = "\n".join(lines)
    for row in rest[rest.kind == UNWRITTEN].itertuples():
        count = row.mismatches
        if count and _nearer(count, wrong) and row.change not in first:
            lines.append(f"besides: {row.change} ({count} of {size} differ elsewhere)")
    kinds = rest[~rest.kind.str.contains(" + ", regex=False)].groupby("kind", sort=False)
    counts = [f"{kind} {count}" for kind, count in kinds.mismatches.min().items()]
    if counts:
        lines.append(f"best of each kind alone: {', '.join(counts)}")
    if frame.attrs.get(FIELDS):
        lines.append(frame.attrs[FIELDS])
    return lines


def takes_several(kind: str) -> bool:
    """True if an explanation of this kind is a pair of changes."""
    return " + " in kind


def _alternatives(changes: Iterable[str]) -> str:
    """Return the first changes of a list as text, and how many more there are."""
    shown = list(changes)
    more = len(shown) - MOST_SHOWN
    if more > 0:
        shown[MOST_SHOWN:] = [f"{more} more"]
    return " or ".join(shown)


@dataclass(frozen=True, eq=False)
class _Search:
    """The search among the changes of an explanation ``start`` for one that predicts a captured
    ``output``.
    """

    start: Explanation
    output: Array
    progress: Progress
    method: Method
    kept: Any
    capture: Capture | None = None
    # sentences on what was tried on the simulated device, said at the end of the search
    said: list[str] = field(default_factory=lambda: [""])

    def rows(self) -> list[Tried]:
        """Return the present explanation, then the changes, those with fewest mismatches first."""
        predicted = self.method.predict(self.start, self.kept)
        words = self.start.words
        if predicted.shape != self.output.shape:
            words += f", output shape {predicted.shape}"
        wrong = _mismatches(predicted, self.output)
        present = Tried(wrong, -1, PRESENT, words)
        if not wrong:
            return [present]
        changes = changes_of(self.method.kinds, self.start, self.output)
        changes += self._own_rules()
        changes += unwritten(self.start, predicted, self.output)
        enough = varied(self.output) >= ENOUGH
        if enough:
            changes += self._solved(self.start, predicted)
        count = len(changes)
        found = list(self._tried(self.start, self.progress(changes), self.kept))
        # fits of many numbers come last, and only if enough outputs can contradict them
        if enough and not _reordered(found):
            for fit in self.method.before_pairs:
                found += self._fitted(fit, predicted, count)
        found += self._fields(count, _holds(found))
        if enough:
            if not _holds(found):
                found += self._pairs(changes, found, wrong)
            for fit in self.method.after_pairs:
                if not _holds(found):
                    found += self._fitted(fit, predicted, count)
        return [present, *sorted(found)]

    def _own_rules(self) -> list[Change]:
        """Return changes to the rules that the target of the capture states."""
        if self.capture is None:
            return []
        changes = []
        for by in target(self.capture.target).rules:
            if by.name != self.start.rule_name and self.output.dtype.name in by.types:
                change = partial(replace, rule=by.name)
                changes.append(Change("rule", f"rounding rule {by.name}", change, "rule"))
        return changes

    def _solved(self, start: Explanation, predicted: Array) -> list[Change]:
        """Return the changes of one number that are solved from the differences."""
        changes = []
        for fit in self.method.solved:
            changes += fit(start, predicted, self.output, self.kept)
        return changes

    def _fields(self, number: int, answered: bool) -> list[Tried]:
        """Return the trials of fields on the target's simulated device, fewer of them if the output
        is ``answered`` by a change of the layer; ``number`` is their place in the table.
        """
        if self.capture is None or OUTPUT not in self.capture.buffers:
            return []
        trials = field_trials(self.capture, self.output.itemsize, self.progress, answered)
        self.said.append(trials.said)
        return [Tried(trial.mismatches, number, FIELD, trial.words) for trial in trials.trials]

    def _fitted(self, fit: Fit, predicted: Array, number: int) -> list[Tried]:
        """Return the changes that a fit computes from the outputs; ``number`` is their place in the
        table, after the other changes.
        """
        if predicted.shape != self.output.shape:
            return []
        fitted = fit(self.start, predicted, self.output, self.kept)
        tried = self._tried(self.start, fitted, self.kept)
        return [row._replace(number=number) for row in tried]

    def _tried(self, start: Explanation, changes: Iterable[Change], kept: Any) -> Iterator[Tried]:
        shape = self.output.shape
        for number, change in enumerate(changes):
            try:
                predicted = self.method.predict(change.apply(start), kept, shape)
            except (ValueError, LookupError):  # the change is not possible for this layer
                continue
            if predicted.shape == shape:
                wrong = _mismatches(predicted, self.output)
                yield Tried(wrong, number, change.kind, change.words)

    def _pairs(self, changes: list[Change], singles: list[Tried], wrong: int) -> list[Tried]:
        """Return the pairs of changes that have fewer mismatches than every single change: the
        nearest change of each kind is tried with every other change.
        """
        total = len(changes)
        singles = sorted(singles)
        best: dict[str, Tried] = {}
        for single in singles:
            if single.number < total and _nearer(single.mismatches, wrong):
                best.setdefault(single.kind, single)
        count = min(FIRST, WORK // (self.method.cost(self.start, self.output) * total))
        nearest = wrong
        if singles:
            nearest = singles[0].mismatches
        found: dict[frozenset[str], Tried] = {}
        for single in list(best.values())[:count]:
            first = changes[single.number]
            start = first.apply(self.start)
            kept = self.method.kept()
            others = [change for change in changes if change.part != first.part]
            solved = self._solved(start, self.method.predict(start, kept))
            others += [change for change in solved if change.part != first.part]
            for pair in self._tried(start, self.progress(others), kept):
                both = frozenset((single.words, pair.words))
                if both in found or not _nearer(pair.mismatches, nearest):
                    continue
                place = total * (2 + len(found))
                kind = f"{single.kind} + {pair.kind}"
                words = f"{single.words} with {pair.words}"
                found[both] = Tried(pair.mismatches, place, kind, words)
        return list(found.values())


def _cost_of_weighted(start: Hypothesis, output: Array) -> int:
    """Return the cost of one prediction as the number of products that take the same time. Each
    output to requantize, each weight to prepare and the call count as several products.
    """
    weights = start.layer.weights.size
    products = weights // output.shape[-1] + 200
    return int(output.size * products + 50 * weights + 5_000_000)


def _cost_of_pooling(start: pooling.Pooled, output: Array) -> int:
    """Return the cost of one prediction in products of a convolution that take the same time."""
    return 600 * output.size + 30_000_000


def _cost_of_others(start: plain.Plain, output: Array) -> int:
    """Return the cost of one prediction in products of a convolution that take the same time."""
    weights = getattr(start.layer, "weights", output[..., :1])
    return int(40 * output.size * (weights.size // output.shape[-1] + 10) + 30_000_000)


EXPLAINED = (*LAYERS, Network)
WEIGHTED = Method(
    predict, CHANGES, Sums, (solved,), (permutation,), (other_bias,), _cost_of_weighted
)
POOLING = Method(
    pooling.predict,
    pooling.CHANGES,
    pooling.Windows,
    (constant,),
    (permutation,),
    (pooling.off_by_multiples,),
    _cost_of_pooling,
)
OTHERS = Method(
    plain.predict,
    plain.CHANGES,
    dict,
    (constant, solved_halves),
    (permutation,),
    (),
    _cost_of_others,
)


def _holds(found: list[Tried]) -> bool:
    return any(row.mismatches == 0 for row in found)


def _reordered(found: list[Tried]) -> bool:
    """True if an order of the outputs that has a name explains them."""
    return any(row.mismatches == 0 and row.words.startswith("output ") for row in found)


def _nearer(few: int, many: int) -> bool:
    """True if ``few`` mismatches are fewer than ``many`` by more than chance: any other explanation
    is right for some of the wrong outputs.
    """
    return few == 0 < many or many - few > 4 * (many / 64 + 1) ** 0.5


def _mismatches(predicted: Array, output: Array) -> int:
    if predicted.shape != output.shape:
        return output.size
    if output.dtype.kind == "f":
        return int(np.count_nonzero(steps(predicted, output)))
    return int(np.count_nonzero(predicted != output))
