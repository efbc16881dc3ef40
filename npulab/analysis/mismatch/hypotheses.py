"""Which neighbouring explanation makes an output that differs equal.

``changes`` is the table of all changes of an explanation, ``fits`` computes changes from the
output, ``predicting`` computes the output of an explanation, ``pooling`` does both for a pooling;
here the changes are tried, alone and
in pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy import ndarray as Array

from npulab.analysis.mismatch import pooling
from npulab.analysis.mismatch.changes import ENOUGH, Change, changes_of, varied
from npulab.analysis.mismatch.fits import UNWRITTEN, other_bias, permutation, unwritten
from npulab.analysis.mismatch.predicting import Explanation, Hypothesis, Sums, Weighted, predict
from npulab.quant.layers import Conv2D, FullyConnected, Pool2D
from npulab.quant.rules import QUANTIZED, Rule
from npulab.support.late import pd
from npulab.support.refuse import refuse_if

if TYPE_CHECKING:
    from npulab.analysis.check import Comparison

COLUMNS = ["kind", "change", "mismatches", "compared", "equal"]
PRESENT = "present"
MOST_SHOWN = 8  # most changes of one kind that a line of the summary names
FIRST = 6  # most single changes that are tried together with every other change
WORK = 2 * 10**10  # most products to compute for all pairs together: about a second
Progress = Callable[[list[Change]], Iterable[Change]]
Fit = Callable[[Any, Array, Array, Any], list[Change]]


class Method(NamedTuple):
    """How a kind of layer is explained: the functions that predict an output and list the changes,
    the class that keeps sums for many predictions, the fits that are tried before pairs of changes
    and after them, and the cost of one prediction in products.
    """

    predict: Callable[..., Array]
    changes: Callable[[Any, Array], list[Change]]
    kept: Callable[[], Any]
    before_pairs: tuple[Fit, ...]
    after_pairs: tuple[Fit, ...]
    cost: Callable[[Any, Array], int]


class Tried(NamedTuple):
    """A change, and how many outputs differ with it. Sorted, changes with equally many mismatches
    keep the order of the table.
    """

    mismatches: int
    number: int
    kind: str
    words: str


def hypotheses(
    layer: Weighted | Pool2D | Comparison,
    x: Any = None,
    output: Any = None,
    rule: str | Rule = "tflite-reference",
    progress: Progress = iter,
) -> pd.DataFrame:
    """Return how many outputs differ with each neighbouring explanation: kind, change, mismatches,
    compared, equal.

    Kinds are rule, zero point, clamp, bias, accumulator, padding, stride phase, channel order,
    kernel and unwritten (whole channels or rows of the output hold only 0 or only the zero point,
    although other outputs were predicted). Of a pooling they are, in place of rule, bias,
    accumulator and kernel: kind of pooling, rounding, border (what padding counts), window,
    divisor, register (too few bits of the sums are kept), order of division, and reciprocal.
    ``x`` and ``output`` are ``(H, W, C)`` or ``(N, H, W, C)``, as for ``emulate``, and of one type.
    A ``Comparison`` that differs may take the place of all four arguments.

    The first row is the present explanation, and the only row if it makes the outputs equal; the
    other rows are sorted by mismatches, then in the order of the table of changes. Changes that are
    not possible (a rule that cannot express the ratio, a padding with another output shape) have no
    row.

    If no single change makes the outputs equal, and the outputs are enough to decide, further
    changes are tried until one does: a permutation of the output channels; then the nearest changes
    together with every other change, as far as time allows (their kind reads ``rule + padding``);
    then other biases, or for averages sums that are off by multiples of a power of two.
    ``progress`` is called with the changes and yields them one by one, as tqdm does. Raises
    ValueError for a layer that has neither weights nor windows, for real outputs, and for tensors
    that do not fit the layer.
    """
    from npulab.registers.shown import Table

    if x is None and output is None and not isinstance(layer, EXPLAINED):
        layer, x, output, rule = _parts_of_comparison(layer)
    if not isinstance(layer, EXPLAINED) or layer.dtype not in QUANTIZED:
        allowed = f"a Conv2D, FullyConnected or Pool2D of {', '.join(QUANTIZED)}"
        raise ValueError(f"layer: got {layer!r}, allowed is {allowed}")
    for name, tensor in (("x", x), ("output", output)):
        if tensor is None:
            raise ValueError(f"{name}: got None, allowed is a tensor")
    x, output = np.asarray(x), np.asarray(output)
    refuse_if(
        output.dtype != x.dtype or output.size == 0,
        "output",
        f"shape {output.shape} {output.dtype}",
        f"is {x.dtype}, as the input is, with at least one output",
    )
    start: Explanation
    if isinstance(layer, Pool2D):
        method = POOLING
        start = pooling.Pooled(layer, x, rule)
    else:
        method = WEIGHTED
        start = Hypothesis(layer, x, rule)
    rows = []
    for row in _Search(start, output, progress, method, method.kept()).rows():
        wrong = row.mismatches
        rows.append((row.kind, row.words, wrong, output.size, wrong == 0))
    return Table(rows, columns=COLUMNS)


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
        # a row for each batch
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
    for _, group in rest[rest.equal].groupby("kind", sort=False):
        changes = _alternatives(group.change)
        lines.append(f"equal with: {changes} (0 of {size} differ){few}")
    least = rest.mismatches.min()
    if not lines and _nearer(least, wrong):
        nearest = rest[rest.mismatches == least]
        changes = _alternatives(nearest.change)
        lines.append(f"nearest: {changes} ({least} of {size} differ){few}")
    if not lines:
        lines.append(f"no neighbouring explanation is nearer ({wrong} of {size} differ)")
    first = "\n".join(lines)
    for row in rest[rest.kind == UNWRITTEN].itertuples():
        count = row.mismatches
        if count and _nearer(count, wrong) and row.change not in first:
            lines.append(f"besides: {row.change} ({count} of {size} differ elsewhere)")
    kinds = rest[~rest.kind.str.contains(" + ", regex=False)].groupby("kind", sort=False)
    counts = [f"{kind} {count}" for kind, count in kinds.mismatches.min().items()]
    if counts:
        lines.append(f"best of each kind alone: {', '.join(counts)}")
    return lines


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
        changes = self.method.changes(self.start, self.output)
        changes += unwritten(self.start, predicted, self.output)
        count = len(changes)
        found = list(self._tried(self.start, self.progress(changes), self.kept))
        # changes that fit many numbers are tried last, and only if enough outputs can contradict
        # them
        if varied(self.output) >= ENOUGH:
            for fit in self.method.before_pairs:
                if not _holds(found):
                    found += self._fitted(fit, predicted, count)
            if not _holds(found):
                found += self._pairs(changes, found, wrong)
            for fit in self.method.after_pairs:
                if not _holds(found):
                    found += self._fitted(fit, predicted, count)
        return [present, *sorted(found)]

    def _fitted(self, fit: Fit, predicted: Array, number: int) -> list[Tried]:
        """Return the changes that a fit computes from the outputs; ``number`` places them behind
        the other changes.
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
            except (ValueError, LookupError):  # a change that is not possible
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
        found: dict[frozenset[int], Tried] = {}
        for single in list(best.values())[:count]:
            first = changes[single.number]
            start = first.apply(self.start)
            others = [change for change in changes if change.part != first.part]
            for pair in self._tried(start, self.progress(others), self.method.kept()):
                second = changes.index(others[pair.number])
                both = frozenset((single.number, second))
                if both in found or not _nearer(pair.mismatches, nearest):
                    continue
                place = total * (2 + len(found))
                kind = f"{single.kind} + {pair.kind}"
                words = f"{single.words} with {pair.words}"
                found[both] = Tried(pair.mismatches, place, kind, words)
        return list(found.values())


def _cost_of_weighted(start: Hypothesis, output: Array) -> int:
    """Return the cost of one prediction in products: to requantize an output, and to prepare a
    weight, takes the time of some products, and every call takes time too."""
    weights = start.layer.weights.size
    products = weights // output.shape[-1] + 200
    return int(output.size * products + 50 * weights + 5_000_000)


def _cost_of_pooling(start: pooling.Pooled, output: Array) -> int:
    """Return the cost of one prediction in products of a convolution that take the same time."""
    return 600 * output.size + 30_000_000


EXPLAINED = (Conv2D, FullyConnected, Pool2D)
WEIGHTED = Method(predict, changes_of, Sums, (permutation,), (other_bias,), _cost_of_weighted)
POOLING = Method(
    pooling.predict,
    pooling.changes_of,
    pooling.Windows,
    (permutation,),
    (pooling.off_by_multiples,),
    _cost_of_pooling,
)


def _holds(found: list[Tried]) -> bool:
    return any(row.mismatches == 0 for row in found)


def _nearer(few: int, many: int) -> bool:
    """True if ``few`` mismatches are less than ``many`` by more than chance: any other explanation
    predicts some of the wrong outputs right.
    """
    return few == 0 < many or many - few > 4 * (many / 64 + 1) ** 0.5


def _mismatches(predicted: Array, output: Array) -> int:
    if predicted.shape == output.shape:
        return int(np.count_nonzero(predicted != output))
    return output.size
