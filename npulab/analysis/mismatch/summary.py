"""Where outputs differ and by how much: counts for each difference, each channel, each place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray as Array

from npulab.quant.floats import steps, unit
from npulab.support.late import pd
from npulab.support.text import plural

if TYPE_CHECKING:
    from npulab.analysis.check import Comparison

BYTES_SHOWN = 32
AXES = ("row", "column", "channel")
# A text names at most this many runs of channels or rows.
SPANS_SHOWN = 8
# A sentence has at most this many differences; of more it has the range and the mean.
SHOWN = 3


@dataclass(frozen=True, eq=False)
class Mismatches:
    """The outputs that differ between a captured and a predicted output, counted in four ways.

    ``by_difference`` has a row for every ``captured - predicted`` that occurs, also for 0, in units
    of ``unit`` ("code", or "ulp" for real numbers), with the columns difference, outputs.
    ``by_channel`` has the columns channel, outputs, differ, largest. ``by_place`` has the columns
    place, outputs, differ, share, and two rows: ``border`` are the outputs whose window reaches
    into the padding, ``interior`` all others. ``worst`` is, for each pixel, the largest absolute
    difference over its channels, ``(H, W)`` int64. ``border`` is a mask ``(H, W) bool``.
    """

    case: str
    by_difference: pd.DataFrame
    by_channel: pd.DataFrame
    by_place: pd.DataFrame
    worst: Array
    border: Array
    unit: str = "code"

    @property
    def differ(self) -> int:
        """The number of outputs that differ."""
        return int(self.by_channel.differ.sum())

    @property
    def outputs(self) -> int:
        """The number of outputs that were compared."""
        return int(self.by_channel.outputs.sum())

    def __str__(self) -> str:
        parts = [f"{self.differ} of {self.outputs} outputs differ"]
        if self.differ:
            wrong = np.count_nonzero(self.by_channel.differ)
            parts.append(self._differences())
            parts.append(f"in {wrong} of {len(self.by_channel)} channels")
        for place, outputs, differ, share in self.by_place.itertuples(index=False, name=None):
            text = f"{place} {differ} of {outputs}"
            if outputs:
                text += f" ({share:.0%})"
            parts.append(text)
        return "; ".join(parts)

    def _differences(self) -> str:
        """Return the differences as text, the most frequent first. If there are more than ``SHOWN``
        different ones, the text has their range and mean.
        """
        wrong = self.by_difference[self.by_difference.difference != 0]
        text = ""
        if self.unit != "code":
            text = f" {self.unit}"
        if len(wrong) > SHOWN:
            low, high = wrong.difference.min(), wrong.difference.max()
            mean = np.average(wrong.difference, weights=wrong.outputs)
            return f"by {low:+d} to {high:+d}, mean {mean:+.1f}{text}"
        most = wrong.sort_values("outputs", ascending=False, kind="stable")
        rows = most.itertuples(index=False, name=None)
        return ", ".join(f"{count} by {step:+d}" for step, count in rows) + text

    def __repr__(self) -> str:
        return f"Mismatches({self.case}: {self})"


def mismatches(found: Comparison) -> Mismatches:
    """Return where the two outputs of a comparison differ.

    Raises ValueError if the comparison does not have two outputs ``(H, W, C)``.
    """
    if found.predicted is None or found.captured is None:
        reason = f"{found.verdict}: {found.reason}"
        raise ValueError(f"{found.case}: there are no two outputs to compare ({reason})")
    if found.predicted.ndim != 3:
        raise ValueError(f"{found.case}: got outputs {found.predicted.shape}, allowed is (H, W, C)")
    case = found.case
    if found.simulated:
        case += " (simulated)"
    difference = steps(found.captured, found.predicted)
    height, width, channels = difference.shape
    size = np.abs(difference)
    wrong = difference != 0
    apart, counts = np.unique(difference, return_counts=True)
    by_channel = pd.DataFrame(
        {
            "channel": np.arange(channels),
            "outputs": height * width,
            "differ": wrong.sum((0, 1)),
            "largest": size.max((0, 1), initial=0),
        }
    )
    border = touches_padding(found.layer, (height, width))
    places = []
    for name, where in (("border", border), ("interior", ~border)):
        outputs = int(where.sum()) * channels
        differ = int(wrong[where].sum())
        share = differ / max(outputs, 1)
        places.append((name, outputs, differ, share))
    return Mismatches(
        case,
        pd.DataFrame({"difference": apart, "outputs": counts}),
        by_channel,
        pd.DataFrame(places, columns=["place", "outputs", "differ", "share"]),
        size.max(-1, initial=0),
        border,
        unit(found.captured.dtype),
    )


def where(found: Comparison) -> str:
    """Return a text that says where the outputs differ: in which rows, columns or channels, if they
    are few; and whether only at the border, where windows reach into the padding. "" if the
    differences lie everywhere.

    Raises ValueError as ``mismatches`` does.
    """
    summary = mismatches(found)
    wrong = steps(found.captured, found.predicted) != 0
    parts = []
    for axis, name in enumerate(AXES):
        others = tuple(other for other in range(3) if other != axis)
        hit = np.flatnonzero(wrong.any(others))
        if 0 < 2 * len(hit) <= wrong.shape[axis]:
            parts.append(f"all in {spans(name, runs_of(hit))}")
    border, interior = summary.by_place.differ
    if border and not interior:
        parts.append("all at the border")
    elif interior and not border and summary.border.any():
        parts.append("none at the border")
    return "; ".join(parts)


def runs_of(numbers: Array) -> list[Array]:
    """Return ascending numbers as runs of neighbours."""
    return np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1)


def spans(name: str, runs: Sequence[Array]) -> str:
    """Return runs of numbers as text.

    >>> spans("channel", runs_of(np.array([3, 5, 6, 8, 9, 10])))
    'channels 3, 5 and 6, 8 to 10'
    """
    texts = []
    for run in runs[:SPANS_SHOWN]:
        if len(run) > 2:
            texts.append(f"{run[0]} to {run[-1]}")
        else:
            texts.append(" and ".join(map(str, run)))
    if len(runs) > SPANS_SHOWN:
        texts.append("...")
    if len(runs) > 1 or len(runs[0]) > 1:
        name += "s"
    return f"{name} {', '.join(texts)}"


def touches_padding(layer: Any, size: tuple[int, ...]) -> Array:
    """Return a mask ``(H, W) bool`` of the outputs whose window reaches into the padding; all False
    without padding.

    >>> from npulab import Conv2D
    >>> weights = np.zeros((1, 3, 3, 1), np.uint8)
    >>> layer = Conv2D(weights, np.zeros(1, int), (5, 5, 1), (2, 2), "same")
    >>> touches_padding(layer, (3, 3)).astype(int).tolist()
    [[1, 1, 1], [1, 0, 1], [1, 1, 1]]
    """
    if getattr(layer, "pads", None) is None:
        return np.zeros(size, bool)
    spread = getattr(layer, "dilation", (1, 1))
    outside = []
    for axis in (0, 1):
        before, _ = layer.pads[axis]
        first = np.arange(size[axis]) * layer.stride[axis] - before
        last = first + (layer.kernel[axis] - 1) * spread[axis]
        outside.append((first < 0) | (last >= layer.input_shape[axis]))
    rows, columns = outside
    return rows[:, None] | columns


def in_hex(tensor: Array) -> str:
    """Return the first bytes of a tensor as text, two hexadecimal digits for each. A code is one
    byte; real numbers are little-endian.

    >>> in_hex(np.array([-1, 16]))
    'FF 10'
    """
    kind = np.dtype("u1")
    if tensor.dtype.kind == "f":
        kind = tensor.dtype.newbyteorder("<")
    data = tensor.astype(kind).tobytes()
    text = data[:BYTES_SHOWN].hex(" ").upper()
    if len(data) > BYTES_SHOWN:
        text += " ..."
    return text


def window(predicted: Array, captured: Array) -> list[str]:
    """Return four lines: a title, predicted and captured outputs around their first difference in
    hexadecimal, and marks under the outputs that differ.
    """
    wrong = steps(predicted, captured).ravel() != 0
    total = wrong.size
    first = int(wrong.argmax()) - BYTES_SHOWN // 4
    start = max(min(first, total - BYTES_SHOWN), 0)
    end = min(start + BYTES_SHOWN, total)
    digits = 2 * predicted.dtype.itemsize
    marks = ""
    for differs in wrong[start:end]:
        mark = " "
        if differs:
            mark = "^"
        marks += mark * digits + " "
    title = f"outputs {start} to {end - 1} of {total}, by row, column, channel"
    more = int(wrong[end:].sum())
    if more:
        title += f"; {plural(more, 'difference')} after them"
    return [
        title,
        f"predicted {_codes_in_hex(predicted.ravel()[start:end])}",
        f"captured  {_codes_in_hex(captured.ravel()[start:end])}",
        f"          {marks.rstrip()}",
    ]


def _codes_in_hex(codes: Array) -> str:
    """Return codes, or the bit patterns of real numbers, in hexadecimal with leading zeros."""
    size = codes.dtype.itemsize
    if codes.dtype.kind == "f":
        codes = codes.copy().view(f"u{size}")
    mask = 256**size - 1
    return " ".join(f"{code & mask:0{2 * size}X}" for code in codes.tolist())
