"""Where an output differs: which neighbouring explanation makes it equal.

A change is a table row: its kind, a label, and a function that maps one hypothesis to another, so
that two changes are combined by calling one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from npulab.quant.emulate import ENGINES, Saturation, accumulate, clamp_range
from npulab.quant.emulate.engines import activation_codes, multipliers, parts_of, saturation_of
from npulab.quant.emulate.saturating import of_outputs
from npulab.quant.layers import ACTIVATIONS, Conv2D, FullyConnected, Pair, pads
from npulab.quant.requantize import within
from npulab.quant.rules import ORDERS, QUANTIZED, RULES, Rule
from npulab.support.late import pd
from npulab.support.refuse import refuse_if

if TYPE_CHECKING:
    from npulab.analysis.check import Comparison

COLUMNS = ["kind", "change", "mismatches", "compared", "equal"]
PRESENT, UNWRITTEN = "present", "unwritten"
FIRST = 6  # of the nearest single changes, how many are tried with every other change
WORK = 2 * 10**10  # products that trying pairs may take: about a second
ENOUGH = (
    16  # outputs besides the most frequent code; fewer are equal with some pair or fit by chance
)
RUN = 8  # outputs that lie in channels or rows of one code, side by side; fewer are so by chance
SEEN = 64  # wrong outputs that a way of adding products is first tried on
# products in a group, and bits of a saturating register: 18 hold any four products of 8 bits
GROUPS, WIDTHS = (2, 4), (16, 17, 15, 14, 13, 12)
# outputs of a channel that a fitted bias needs, saturated ones and the most frequent code left out
FREE = 4
Codes = np.ndarray
Weighted = Conv2D | FullyConnected


@dataclass(frozen=True, eq=False)
class Hypothesis:
    """How an input is thought to become an output; what is left out is as ``emulate`` has it.

    ``saturation`` is how products are added, by default as the rule's engine adds them, ``sums``
    changes accumulators int64, ``clamp`` takes codes int64, zero point, lowest, highest and the
    type's limits, ``after`` are applied to the outputs, one after the other.
    """

    layer: Weighted
    x: np.ndarray
    rule: str | Rule
    saturation: Saturation | None = None
    sums: Callable[[np.ndarray], np.ndarray] | None = None
    clamp: Callable[[Codes, int, int, int, np.iinfo[Any]], Codes] | None = None
    after: tuple[Callable[[np.ndarray], np.ndarray], ...] = ()


class Change(NamedTuple):
    """A way to explain it otherwise; two changes of one ``part`` are not tried together."""

    kind: str
    words: str
    apply: Callable[[Hypothesis], Hypothesis]
    part: str


class Tried(NamedTuple):
    """A change and how many outputs differ with it."""

    mismatches: int
    number: int
    kind: str
    words: str


def hypotheses(
    layer: Weighted | Comparison,
    x: Any = None,
    output: Any = None,
    rule: str | Rule = "tflite-reference",
    progress: Callable[[list[Change]], Iterable[Change]] = iter,
) -> pd.DataFrame:
    """How many outputs differ with each neighbouring explanation: kind, change, mismatches,
    compared, equal.

    Kinds are rule, zero point, clamp, bias, accumulator, padding, stride phase, channel order,
    kernel and unwritten (whole channels or rows of the output hold nothing but 0 or the zero point,
    where more was expected). ``x`` and ``output`` are ``(H, W, C)`` or ``(N, H, W, C)`` as
    ``emulate`` has them, of one type; in place of all four a ``Comparison`` that differs.  The
    first row is the present explanation, and the only one where it holds; the others are sorted by
    mismatches, then as the table of changes has them, the plainest first.  Changes that cannot be
    (a rule that cannot say the ratio, a padding with another output shape) have no row.  Where no
    single change makes the outputs equal and they are enough to tell, these follow until one does:
    a permutation of the output channels, the nearest changes with every other one as far as that is
    quick (their kind reads ``rule + padding``), other biases. ``progress`` is put around the
    changes, as tqdm is. Raises ValueError for a layer without weights or real outputs, and tensors
    that do not fit.
    """
    from npulab.registers.shown import Table

    if x is None and output is None and not isinstance(layer, Conv2D | FullyConnected):
        parts: list[Any] = [
            getattr(layer, name, None) for name in ("layer", "x", "captured", "rule")
        ]
        refuse_if(
            any(part is None for part in parts),
            "hypotheses",
            f"{layer!r}",
            "is a layer with x and output, or a Comparison with layer, x and captured output",
        )
        layer, x, output, rule = parts
        if isinstance(layer, FullyConnected):  # a row for each batch
            x, output = (
                np.reshape(a, (-1, n))
                for a, n in zip((x, output), layer.weights.shape[::-1], strict=True)
            )
    if not isinstance(layer, Conv2D | FullyConnected) or layer.dtype not in QUANTIZED:
        raise ValueError(
            f"layer: got {layer!r}, allowed is a Conv2D or FullyConnected of {', '.join(QUANTIZED)}"
        )
    if x is None or output is None:
        raise ValueError(f"{'x' if x is None else 'output'}: got None, allowed is a tensor")
    x, output = np.asarray(x), np.asarray(output)
    refuse_if(
        output.dtype != x.dtype or output.size == 0,
        "output",
        f"shape {output.shape} {output.dtype}",
        f"is {x.dtype} as the input is, at least one",
    )
    rows = _search(Hypothesis(layer, x, rule), output, progress)
    return Table(
        [(row.kind, row.words, row.mismatches, output.size, row.mismatches == 0) for row in rows],
        columns=COLUMNS,
    )


def summary_lines(frame: pd.DataFrame) -> list[str]:
    """What ``hypotheses`` found, in lines: what makes the outputs equal or what is nearest, then
    the best of each kind.

    >>> import pandas as pd
    >>> rows = [("present", "rule gemmlowp", 2, 90, False), ("bias", "bias left out", 0, 90, True)]
    >>> print(*summary_lines(pd.DataFrame(rows, columns=COLUMNS)), sep="\\n")
    equal with: bias left out (0 of 90 differ)
    best of each kind alone: bias 0
    """
    present, rest = frame.iloc[0], frame.iloc[1:]
    size = present.compared
    if present.equal:
        return [f"equal with: {present.change} (0 of {size} differ)"]
    few = ""
    if size < ENOUGH:
        few = f"; {size} outputs are few to tell"
    near = rest[rest.mismatches == rest.mismatches.min()]
    lines = [
        f"equal with: {' or '.join(group.change)} (0 of {size} differ){few}"
        for _, group in rest[rest.equal].groupby("kind", sort=False)
    ]
    if not lines and len(near) and _nearer(near.mismatches.iloc[0], present.mismatches):
        lines = [
            f"nearest: {' or '.join(near.change)} ({near.mismatches.iloc[0]} of {size} differ){few}"
        ]
    lines = lines or [
        f"no neighbouring explanation is nearer ({present.mismatches} of {size} differ)"
    ]
    empty = rest[(rest.kind == UNWRITTEN) & ~rest.equal]
    lines += [
        f"besides: {change} ({count} of {size} differ elsewhere)"
        for change, count in zip(empty.change, empty.mismatches, strict=True)
        if _nearer(count, present.mismatches) and not any(change in line for line in lines)
    ]
    best = rest.groupby("kind", sort=False).mismatches.min()
    counts = ", ".join(f"{kind} {count}" for kind, count in best.items() if " + " not in str(kind))
    if counts:
        return [*lines, f"best of each kind alone: {counts}"]
    return lines


# The search


def _search(
    start: Hypothesis,
    output: np.ndarray,
    progress: Callable[[list[Change]], Iterable[Change]],
) -> list[Tried]:
    sums = Sums()
    predicted = predict(start, sums)
    wrong = _mismatches(predicted, output)
    present = Tried(
        wrong, -1, PRESENT, f"rule {start.rule if isinstance(start.rule, str) else start.rule.name}"
    )
    if predicted.shape != output.shape:
        present = present._replace(words=f"{present.words}, output shape {predicted.shape}")
    if not wrong:
        return [present]
    changes = [
        Change(kind, words, apply, part)
        for kind, table in CHANGES
        for words, part, apply in table(start, output)
    ]
    changes += _unwritten(start, predicted, output)
    found = list(_tried(start, progress(changes), output, sums))
    # last what fits many numbers
    for fit in (_permutation, None, _other_bias) if _varied(output) >= ENOUGH else ():
        if any(row.mismatches == 0 for row in found):
            break
        if fit is None:
            found += _pairs(start, changes, output, found, wrong, progress)
        elif predicted.shape == output.shape:
            fitted = _tried(start, fit(start, predicted, output, sums), output, sums)
            found += [row._replace(number=len(changes)) for row in fitted]
    return [present, *sorted(found)]


def _varied(output: np.ndarray) -> int:
    """How many outputs are not the most frequent code."""
    return int(output.size - np.unique(output, return_counts=True)[1].max())


def _tried(
    start: Hypothesis, changes: Iterable[Change], output: np.ndarray, sums: Sums
) -> Iterator[Tried]:
    for number, change in enumerate(changes):
        try:
            predicted = predict(change.apply(start), sums, output.shape)
        except (ValueError, LookupError):  # nothing that can be
            continue
        if predicted.shape == output.shape:
            yield Tried(_mismatches(predicted, output), number, change.kind, change.words)


def _pairs(
    start: Hypothesis,
    changes: list[Change],
    output: np.ndarray,
    singles: list[Tried],
    wrong: int,
    progress: Callable[[list[Change]], Iterable[Change]],
) -> list[Tried]:
    """Pairs of changes that are nearer than every single one: the nearest of each kind with every
    other change."""
    best: dict[str, Tried] = {}
    for one in sorted(singles):
        if one.number < len(changes) and _nearer(one.mismatches, wrong):
            best.setdefault(one.kind, one)
    # an output is requantized in the time of some products, a weight made ready too, and calls have
    # a price
    weights = start.layer.weights.size
    once = output.size * (weights // output.shape[-1] + 200) + 50 * weights + 5_000_000
    count = min(FIRST, WORK // (once * len(changes)))
    nearest = min((one.mismatches for one in singles), default=wrong)
    found: dict[frozenset[int], Tried] = {}
    for one in list(best.values())[:count]:
        first = changes[one.number]
        base, sums = first.apply(start), Sums()
        others = [change for change in changes if change.part != first.part]
        for pair in _tried(base, progress(others), output, sums):
            both = frozenset((one.number, changes.index(others[pair.number])))
            if _nearer(pair.mismatches, nearest) and both not in found:
                found[both] = Tried(
                    pair.mismatches,
                    len(changes) * (2 + len(found)),
                    f"{one.kind} + {pair.kind}",
                    f"{one.words} with {pair.words}",
                )
    return list(found.values())


def _nearer(few: int, many: int) -> bool:
    """Whether fewer mismatches are more than chance: some of the wrong outputs hit by any other
    explanation."""
    return few == 0 < many or many - few > 4 * (many / 64 + 1) ** 0.5


def _mismatches(predicted: np.ndarray, output: np.ndarray) -> int:
    if predicted.shape == output.shape:
        return int(np.count_nonzero(predicted != output))
    return output.size


class Sums:
    """Accumulators without bias, of the last layer asked for and of the first, which most changes
    share."""

    def __init__(self) -> None:
        self._held: dict[tuple[Any, ...], tuple[Any, np.ndarray]] = {}

    def of(
        self, layer: Weighted, x: np.ndarray, saturation: Saturation | None = None
    ) -> np.ndarray:
        """Accumulators ``(..., C)`` int64 with the bias; a new array."""
        window = (layer.pads, layer.stride, layer.dilation) if isinstance(layer, Conv2D) else ()
        key = (
            id(layer.weights),
            id(x),
            layer.input_q.zero_point,
            layer.weight_q.zero_point,
            window,
            saturation,
        )
        if key not in self._held:
            if len(self._held) > 1:
                del self._held[list(self._held)[-1]]
            plain = replace(layer, bias=np.zeros_like(layer.bias))
            self._held[key] = (
                (layer.weights, x),
                accumulate(plain, x, saturation),
            )  # what is held keeps its id
        return self._held[key][1] + layer.bias


def predict(e: Hypothesis, sums: Sums, shape: tuple[int, ...] | None = None) -> np.ndarray:
    """The output of a hypothesis; raises ValueError if it would not have the shape."""
    if shape is not None and e.layer.output_shape != shape[-len(e.layer.output_shape) :]:
        raise ValueError(f"shape: got {e.layer.output_shape}, allowed is {shape}")
    return _codes(
        e, sums.of(e.layer, e.x, e.saturation or saturation_of(e.layer, e.x.dtype, e.rule))
    )


def _codes(e: Hypothesis, total: np.ndarray) -> np.ndarray:
    """The outputs of a hypothesis' accumulators ``(..., C)``."""
    layer, dtype = e.layer, e.x.dtype
    if e.sums is not None:
        total = e.sums(total)
    low, high = clamp_range(layer, dtype, e.rule)
    if e.clamp is not None:  # it takes the codes of the activation, whatever the type can hold
        low, high = (
            int(code)
            for code in np.clip(activation_codes(layer, dtype, e.rule), -(2**31), 2**31 - 1)
        )
    zero, out = layer.output_q.zero_point, np.empty(total.shape, dtype)
    for by, first, end in parts_of(layer, dtype, e.rule):
        factors = multipliers(layer, by, first, end)
        sums = within(total[..., first:end], by, first)
        if e.clamp is None:
            out[..., first:end] = by.fast(sums, *factors, zero, low, high)
        else:
            out[..., first:end] = e.clamp(
                by.exact(sums, *factors, zero), zero, low, high, np.iinfo(dtype)
            )
    for change in e.after:
        out = change(out)
    return out


# The changes: each gives (words, part, function) of what can be changed in an explanation

Changes = Iterator[tuple[str, str, Callable[[Hypothesis], Hypothesis]]]


def _rules(start: Hypothesis, output: np.ndarray) -> Changes:
    mine = start.rule if isinstance(start.rule, str) else start.rule.name
    if mine in RULES:
        base = mine
    else:
        base = mine.rpartition(":")[0]
    names = [name for name, by in RULES.items() if output.dtype.name in by.types]
    names.sort(
        key=lambda name: name.partition(":")[0] != mine.partition(":")[0]
    )  # the nearest first
    for name in (*names, *(f"{base}:{order}" for order in ORDERS if base in RULES), *ENGINES):
        if name != mine:
            yield f"rounding rule {name}", "rule", partial(replace, rule=name)


def _zero_points(start: Hypothesis, output: np.ndarray) -> Changes:
    params = {name: getattr(start.layer, f"{name}_q") for name in ("input", "weight", "output")}
    changes = [
        (f"{step:+d}", name, params[name].zero_point + step)
        for step, name in product((1, -1), params)
    ]
    changes += [("left out", name, 0) for name, q in params.items() if abs(q.zero_point) > 1]
    for words, name, zero in changes:
        yield (
            f"{name} zero point {words}",
            f"{name} zero point",
            partial(_with_layer, **{f"{name}_q": replace(params[name], zero_point=zero)}),
        )


def _with_layer(e: Hypothesis, **changed: Any) -> Hypothesis:
    return replace(e, layer=replace(e.layer, **changed))


def _paddings(start: Hypothesis, output: np.ndarray) -> Changes:
    layer = start.layer
    if not isinstance(layer, Conv2D):
        return
    (top, bottom), (left, right) = layer.pads
    around = tuple(
        ((size - 1) * spread // 2,) * 2
        for size, spread in zip(layer.kernel, layer.dilation, strict=True)
    )
    named: list[tuple[str, Any]] = [(f"padding {name}", name) for name in ("same", "valid")]
    named += [
        ("padding symmetric", around),
        (f"odd row {_side(top, bottom)}", ((bottom, top), (left, right))),
        (f"odd column {_side(left, right)}", ((top, bottom), (right, left))),
        (
            f"odd row {_side(top, bottom)}, odd column {_side(left, right)}",
            ((bottom, top), (right, left)),
        ),
        ("border in front only", ((top + bottom, 0), (left + right, 0))),
        ("border behind only", ((0, top + bottom), (0, left + right))),
    ]
    named += [
        (_moved_words(down, across), _moved(layer.pads, down, across))
        for down, across in product((0, 1, -1), repeat=2)
        if down or across
    ]
    seen = {layer.pads}
    for words, padding in named:
        border = pads(padding, layer.input_shape, layer.kernel, layer.stride, layer.dilation)
        if border not in seen:
            seen.add(border)
            yield words, "window", partial(_with_pads, border=border)
    if any(map(any, layer.pads)):
        info, zero = np.iinfo(output.dtype), layer.input_q.zero_point
        codes = {
            f"border of code {code}": code
            for code in dict.fromkeys((0, int(info.min)))
            if code != zero
        }
        codes |= {f"border of zero point {step:+d}": zero + step for step in (1, -1)}
        for words, code in codes.items():
            if info.min <= code <= info.max:
                yield words, "border", partial(_bordered, constant_values=code)
        yield "border of the edge repeated", "border", partial(_bordered, mode="edge")
        yield "border of the image mirrored", "border", partial(_bordered, mode="reflect")


def _side(before: int, after: int) -> str:
    if before < after:
        return "in front"
    return "behind"


def _moved(border: tuple[Pair, Pair], down: int, across: int) -> tuple[Pair, Pair]:
    """Border of windows that lie further down and across; below 0 it cuts the image."""
    (top, bottom), (left, right) = border
    return (top - down, bottom + down), (left - across, right + across)


def _moved_words(down: int, across: int) -> str:
    rows = {0: "", 1: "one row down", -1: "one row up"}[down]
    columns = {0: "", 1: "one column right", -1: "one column left"}[across]
    return f"windows {' and '.join(filter(None, (rows, columns)))}"


def _with_pads(e: Hypothesis, border: tuple[Pair, Pair]) -> Hypothesis:
    """Other borders, where a negative one cuts the image."""
    height, width = e.x.shape[-3:-1]
    (top, bottom), (left, right) = (tuple(max(-n, 0) for n in pair) for pair in border)
    x = e.x
    if top or bottom or left or right:
        x = e.x[..., top : height - bottom, left : width - right, :]
    padding = tuple(tuple(max(n, 0) for n in pair) for pair in border)
    return _with_layer(replace(e, x=x), input_shape=x.shape[-3:], padding=padding)


def _bordered(e: Hypothesis, **how: Any) -> Hypothesis:
    """The border made part of the image."""
    assert isinstance(e.layer, Conv2D)
    x = np.pad(e.x, [(0, 0)] * (e.x.ndim - 3) + [*e.layer.pads, (0, 0)], **how)
    return _with_layer(replace(e, x=x), input_shape=x.shape[-3:], padding="valid")


# codes before the clamp, zero point, lowest and highest by the activation, limits of the type
CLAMPS: dict[str, Callable[[Codes, int, int, int, np.iinfo[Any]], Codes]] = {
    "wraps around, not saturated": lambda q, zero, low, high, info: (
        q.clip(low, high) & 2**info.bits - 1
    ),
    "saturated before the zero point": lambda q, zero, low, high, info: (
        (q - zero).clip(info.min, info.max) + zero
    ).clip(max(low, info.min), min(high, info.max)),
    "saturated at half the range": lambda q, zero, low, high, info: q.clip(
        max(low, info.min), min(high, info.max // 2)
    ),
    "saturated as the other sign": lambda q, zero, low, high, info: q.clip(low, high).clip(
        *_other_sign(info)
    ),
    "lowest code left out": lambda q, zero, low, high, info: q.clip(
        max(low, info.min + 1), min(high, info.max)
    ),
    "nothing below code 0": lambda q, zero, low, high, info: q.clip(
        max(low, 0), min(high, info.max)
    ),
}


def _other_sign(info: np.iinfo[Any]) -> Pair:
    half = 2 ** (info.bits - 1)
    if info.min:
        return 0, 2 * half - 1
    return -half, half - 1


def _clamps(start: Hypothesis, output: np.ndarray) -> Changes:
    for activation in ACTIVATIONS:
        if activation != start.layer.activation:
            yield (
                f"activation {activation}" if activation else "no activation",
                "activation",
                partial(_with_layer, activation=activation),
            )
    for words, clamp in CLAMPS.items():
        yield words, "clamp", partial(replace, clamp=clamp)
    if output.dtype.itemsize == 1:
        yield "output of the other sign (xor 0x80)", "sign", partial(_after, change=_flipped_sign)


def _flipped_sign(out: np.ndarray) -> np.ndarray:
    return (out.view(np.uint8) ^ np.uint8(0x80)).view(out.dtype)


def _after(e: Hypothesis, change: Callable[[np.ndarray], np.ndarray]) -> Hypothesis:
    return replace(e, after=(*e.after, change))


def _before(e: Hypothesis, change: Callable[[np.ndarray], np.ndarray]) -> Hypothesis:
    return replace(e, x=change(e.x))


def _orders(start: Hypothesis, output: np.ndarray) -> Changes:
    image = isinstance(start.layer, Conv2D)
    for words, change in _reorders(output.shape, image):
        yield f"output {words}", "output order", partial(_after, change=change)
    for words, change in _reorders(
        start.x.shape, image or start.x.shape[-1] != start.layer.weights.shape[-1]
    ):
        yield f"input {words}", "input order", partial(_before, change=change)


def _reorders(
    shape: tuple[int, ...], image: bool
) -> Iterator[tuple[str, Callable[[np.ndarray], np.ndarray]]]:
    """Other orders of a tensor's elements that keep its shape."""
    count = shape[-1]
    orders = {"channels reversed": np.arange(count)[::-1]}
    orders |= {f"channels rotated by {n:+d}": np.roll(np.arange(count), n) for n in (1, -1)}
    groups = [n for n in range(2, count) if count % n == 0]
    orders |= {
        f"channels reversed in groups of {n}": np.arange(count).reshape(-1, n)[:, ::-1].ravel()
        for n in groups
    }
    orders |= {
        f"channels interleaved by {n}": np.arange(count).reshape(n, -1).T.ravel() for n in groups
    }
    seen = {tuple(range(count))}
    for words, order in orders.items():
        if tuple(order) not in seen:
            seen.add(tuple(order))
            yield words, partial(np.take, indices=order, axis=-1)
    if not image:
        return
    height, width = shape[-3:-1]
    if height > 1:
        yield "rows flipped", lambda a: a[..., ::-1, :, :]
    if width > 1:
        yield "columns flipped", lambda a: a[..., ::-1, :]
    if height > 1 and width > 1:
        yield "rows and columns flipped", lambda a: a[..., ::-1, ::-1, :]
        if height == width:
            yield "rows and columns swapped", lambda a: a.swapaxes(-2, -3)
    if count > 1 and height * width > 1:
        # as bytes lie in memory: channel by channel, or all channels of a pixel side by side
        yield "stored plane by plane", lambda a: np.moveaxis(a, -1, -3).reshape(a.shape)
        yield (
            "stored pixel by pixel",
            lambda a: np.moveaxis(a.reshape(*a.shape[:-3], count, height, width), -3, -1),
        )


def _phases(start: Hypothesis, output: np.ndarray) -> Changes:
    if not isinstance(start.layer, Conv2D):
        return
    down, across = start.layer.stride
    for i, j in [*product(range(down), range(across))][1:]:
        where = " and ".join([f"row {i}"] * (down > 1) + [f"column {j}"] * (across > 1))
        yield f"sampled from {where} of the stride", "window", partial(_sampled, down=i, across=j)
    if down != across:
        yield "stride swapped", "window", partial(_refitted, output=output, stride=(across, down))


def _sampled(e: Hypothesis, down: int, across: int) -> Hypothesis:
    assert isinstance(e.layer, Conv2D)
    return _with_pads(e, _moved(e.layer.pads, down, across))


def _kernels(start: Hypothesis, output: np.ndarray) -> Changes:
    layer = start.layer
    weights = layer.weights
    if not isinstance(layer, Conv2D) or layer.kernel == (1, 1):
        return
    one, height, width, depth = weights.shape
    changes: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "kernel rows flipped": lambda w: w[:, ::-1],
        "kernel columns flipped": lambda w: w[:, :, ::-1],
        "kernel flipped (convolution)": lambda w: w[:, ::-1, ::-1],
        "weights read plane by plane": lambda w: w.reshape(one, depth, height, width).transpose(
            0, 2, 3, 1
        ),
        "weights read pixel by pixel": lambda w: w.transpose(0, 3, 1, 2).reshape(w.shape),
    }
    if height == width:
        changes["kernel transposed"] = lambda w: w.swapaxes(1, 2)
    seen = [weights]
    for words, change in changes.items():
        changed = change(weights)
        if not any(np.array_equal(changed, other) for other in seen):
            seen.append(changed)
            yield words, "kernel", partial(_with_layer, weights=changed)
    for dilation in dict.fromkeys(((1, 1), (2, 2), layer.dilation[::-1])):
        if dilation != layer.dilation:
            yield (
                f"dilation {dilation[0]}x{dilation[1]}",
                "window",
                partial(_refitted, output=output, dilation=dilation),
            )


def _refitted(e: Hypothesis, output: np.ndarray, **changed: Any) -> Hypothesis:
    """A changed layer with its border as it is, or else as the output's shape needs it."""
    layer = e.layer
    assert isinstance(layer, Conv2D)
    sizes = output.shape[-3:-1]
    stride, dilation = changed.get("stride", layer.stride), changed.get("dilation", layer.dilation)
    spans = [(size - 1) * spread + 1 for size, spread in zip(layer.kernel, dilation, strict=True)]
    now = [
        (size + sum(pad) - span) // step + 1
        for size, pad, span, step in zip(layer.input_shape, layer.pads, spans, stride, strict=False)
    ]
    more = [
        max((out - 1) * step + span - size, 0)
        for out, step, span, size in zip(sizes, stride, spans, layer.input_shape, strict=False)
    ]
    border = layer.pads if tuple(now) == sizes else tuple((n // 2, n - n // 2) for n in more)
    return _with_layer(e, padding=border, **changed)


def _biases(start: Hypothesis, output: np.ndarray) -> Changes:
    if np.any(start.layer.bias):
        yield "bias left out", "bias", partial(_with_layer, bias=np.zeros_like(start.layer.bias))


def _accumulators(start: Hypothesis, output: np.ndarray) -> Changes:
    yield (
        "wrapped at 16 bits",
        "accumulator",
        partial(replace, sums=lambda sums: sums.astype(np.int16).astype(np.int64)),
    )
    yield (
        "saturated at 16 bits",
        "accumulator",
        partial(replace, sums=lambda sums: sums.clip(-(2**15), 2**15 - 1)),
    )


def _saturations(start: Hypothesis, output: np.ndarray) -> Changes:
    """Ways to add products that are right for half of a sample of the wrong outputs, or for
    more."""
    layer, x = start.layer, start.x
    sums = Sums()
    predicted = predict(start, sums)
    if (
        predicted.shape != output.shape or _varied(output) < ENOUGH
    ):  # narrow registers make any constant output
        return
    channels = output.shape[-1]
    wrong = np.flatnonzero(predicted != output)
    # evenly from all of them, so that no single channel or corner decides
    places = wrong[np.linspace(0, wrong.size - 1, min(SEEN, wrong.size)).astype(int)]
    positions, columns = np.divmod(places, channels)
    total = sums.of(layer, x).reshape(-1, channels)[positions]
    shown = output.reshape(-1, channels)[positions, columns]
    for saturation in _ways_to_saturate(layer):
        off = of_outputs(layer, x, saturation, positions)
        if not off.any():
            continue
        codes = _codes(start, total - off)[np.arange(len(columns)), columns]
        if 2 * np.count_nonzero(codes == shown) >= len(shown):
            yield str(saturation), "accumulator", partial(replace, saturation=saturation)


def _ways_to_saturate(layer: Weighted) -> Iterator[Saturation]:
    """Groups, widths and orders of K that differ for a layer."""
    if not isinstance(layer, Conv2D) or layer.depthwise:
        depth = 1
    else:
        depth = layer.input_shape[2]
    if isinstance(layer, Conv2D):
        kernel = layer.kernel
    else:
        kernel = 1, 1
    stored = (True, False) if layer.input_q.zero_point or layer.weight_q.zero_point else (True,)
    for group, bits in product(GROUPS, WIDTHS):
        orders = ["HWC"]
        if kernel != (1, 1) and depth > 1:
            orders += ["CHW"]
        orders += (
            ["WHC"] if 1 not in kernel and depth % group else []
        )  # else no group leaves its tap
        for order, kept in product(orders, stored):
            yield Saturation(group, bits, order, kept)


CHANGES: tuple[tuple[str, Callable[[Hypothesis, np.ndarray], Changes]], ...] = (
    ("rule", _rules),
    ("zero point", _zero_points),
    ("clamp", _clamps),
    ("bias", _biases),
    ("accumulator", _accumulators),
    ("accumulator", _saturations),
    ("padding", _paddings),
    ("stride phase", _phases),
    ("channel order", _orders),
    ("kernel", _kernels),
)


def _unwritten(start: Hypothesis, predicted: np.ndarray, output: np.ndarray) -> list[Change]:
    """Channels, else rows, that hold 0 or the zero point everywhere, and should not: nobody wrote
    them."""
    if predicted.shape != output.shape:
        return []
    out = []
    if isinstance(start.layer, Conv2D):
        axes = {"channel": -1, "row": -3}
    else:
        axes = {"channel": -1}
    for code, (name, axis) in product(
        dict.fromkeys((0, start.layer.output_q.zero_point)), axes.items()
    ):
        rest = tuple(i for i in range(output.ndim) if i != output.ndim + axis)
        empty = np.all(output == code, axis=rest) & np.any(predicted != code, axis=rest)
        runs = [
            run
            for run in np.split(np.arange(len(empty)), np.flatnonzero(np.diff(empty)) + 1)
            if empty[run[0]] and len(run) * output.size // len(empty) >= RUN
        ]
        if runs and sum(map(len, runs)) < len(empty):
            out.append(
                Change(
                    UNWRITTEN,
                    f"{_spans(name, runs)}: captured is {code} everywhere",
                    partial(
                        _after,
                        change=partial(_filled, axis=axis, code=code, places=np.concatenate(runs)),
                    ),
                    f"{name} of {code}",
                )
            )
    return out


def _filled(out: np.ndarray, axis: int, code: int, places: np.ndarray) -> np.ndarray:
    out = out.copy()
    np.moveaxis(out, axis, 0)[places] = code
    return out


def _spans(name: str, runs: list[np.ndarray]) -> str:
    spans = [
        f"{run[0]} to {run[-1]}" if len(run) > 2 else " and ".join(map(str, run)) for run in runs
    ]
    return f"{name}{'s' * (len(runs) > 1 or len(runs[0]) > 1)} {', '.join(spans[:8])}{', ...' * (len(spans) > 8)}"


# What is fitted to the output, where nothing above holds


def _permutation(
    start: Hypothesis, predicted: np.ndarray, output: np.ndarray, sums: Sums
) -> list[Change]:
    """Every captured channel found among the predicted ones."""
    columns, captured = (
        [column.tobytes() for column in tensor.reshape(-1, tensor.shape[-1]).T]
        for tensor in (predicted, output)
    )
    where: dict[bytes, list[int]] = {}
    for channel, column in enumerate(columns):
        where.setdefault(column, []).append(channel)
    order = []
    for channel, column in enumerate(captured):
        left = where.get(column)
        if not left:
            return []
        order.append(left.pop(left.index(channel) if channel in left else 0))
    moved = [channel for channel, source in enumerate(order) if channel != source]
    named = ", ".join(f"{channel} holds {order[channel]}" for channel in moved[:8])
    return [
        Change(
            "channel order",
            f"output channels permuted: {named}{', ...' if len(moved) > 8 else ''}",
            partial(_after, change=partial(np.take, indices=order, axis=-1)),
            "output order",
        )
    ]


def _other_bias(
    start: Hypothesis, predicted: np.ndarray, output: np.ndarray, sums: Sums
) -> list[Change]:
    """Biases that explain every output of their channel: what rounds to an output is an interval of
    accumulators."""
    layer = start.layer
    count = output.shape[-1]
    toward = parts_of(layer, output.dtype, start.rule)[0][0].rounding_direction
    ratio = layer.input_q.scale * np.asarray(layer.weight_q.scale) / layer.output_q.scale  # type: ignore[operator]
    codes, total = (
        output.reshape(-1, count).astype(np.int64),
        sums.of(layer, start.x).reshape(-1, count),
    )
    low, high = clamp_range(layer, output.dtype, start.rule)
    real = codes - layer.output_q.zero_point
    below = {"nearest": np.float64(0.5), "floor": np.float64(0.0)}.get(
        toward, np.where(real > 0, 0.0, 1.0)
    )
    above = {"nearest": np.float64(0.5), "floor": np.float64(1.0)}.get(
        toward, np.where(real < 0, 0.0, 1.0)
    )
    least = np.where(codes <= low, -np.inf, (real - below) / ratio - total).max(0)
    most = np.where(codes >= high, np.inf, (real + above) / ratio - total).min(0)
    off = np.flatnonzero(np.any(predicted.reshape(-1, count) != codes, axis=0))
    free = [
        np.unique(one[(one > low) & (one < high)], return_counts=True)[1] for one in codes[:, off].T
    ]
    if any(one.sum() - one.max(initial=0) < FREE for one in free) or np.any(
        least[off] > most[off] + 2
    ):
        return []
    steps = np.zeros(count, np.int64)
    steps[off] = np.rint((least[off] + most[off]) / 2).astype(np.int64)
    shown = ", ".join(f"{steps[channel]:+d} in channel {channel}" for channel in off[:4])
    return [
        Change(
            "bias",
            f"bias off by {shown}{f', and in {len(off) - 4} more' if len(off) > 4 else ''}",
            partial(_with_layer, bias=layer.bias + steps),
            "bias",
        )
    ]
