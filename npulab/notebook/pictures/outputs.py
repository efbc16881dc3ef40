"""Pictures of bisections, of accumulators with their output codes, and of outputs."""

from __future__ import annotations

import itertools
import textwrap
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy import ndarray

from npulab.analysis.bisect import Bisected
from npulab.analysis.bisect.parts import name_of
from npulab.analysis.check import Comparison
from npulab.analysis.mismatch.summary import Mismatches, mismatches
from npulab.captures.journal import outcomes_counted
from npulab.notebook.pictures.picture import (
    RIGHT,
    WRONG,
    Picture,
    bare,
    canvas,
    legend,
    open_frame,
    write_values,
)
from npulab.notebook.signs import LARGER, SMALLER
from npulab.quant.codes import Scales, codes_by_rule, real_values, same_codes
from npulab.quant.floats import steps
from npulab.quant.rules import Rule
from npulab.support.text import plural

NUMBERED = 12  # an image of at most this many rows and columns has numbers in its cells
CHANNELS = 4  # at most this many channels are drawn if the caller names none
DISPUTED = 8  # the sentence names at most this many accumulators with different codes
LABELLED = 17  # at most this many bars have their numbers
BINS = 24
LINE = 44  # the most characters in a line of a row's label
TALL = 0.3  # the height of a bar, in inches
TIES = 64  # ties have no lines over this many codes or more: they would hide the bars
# The colours of codes, light enough for black text, distinct for people who do not see all colours;
# neighbouring codes differ, because a code modulo the number of colours chooses its colour.
CODES = ("#8fc1e3", "#f6c667", "#d9d9d9")
SIGNED = LinearSegmentedColormap.from_list("signed", [SMALLER, "#f7f7f7", LARGER])
OUTCOMES = {
    "pass": "#8fc1e3",
    "fail": "#e08a3c",
    "hang": "#4a4a4a",
    "poisons": "#9a6fb0",
}
OUTCOMES |= {"reboots": "#8c6d5a", "not executed": "#e8c9a4", "refused": "#d9d9d9"}


def bisection_trials(found: Bisected) -> Picture:
    """Draw the trials of a bisection, a row for each: the parts (fields and buffers) that were
    taken from the bad capture, and the outcome.

    A column is a part in which the two captures differ, in the order of ``found.differences``; the
    columns of the culprits have their names.
    """
    trials = list(found.journal)
    names = [name_of(part.key) for part in found.differences]
    outcomes = Counter(trial.outcome for trial in trials)
    counted = outcomes_counted(outcomes)
    counts = ", ".join(f"{count} {outcome}" for outcome, count in counted.items())
    text = f"{plural(len(trials), 'trial')} of {plural(len(names), 'part')} ({counts}); "
    text += plural(len(found.culprits), "culprit")
    colours = np.ones((len(trials), len(names), 3))
    labels = []
    for number, trial in enumerate(trials):
        changed = np.isin(names, trial.subset)
        colours[number, changed] = to_rgb(OUTCOMES[trial.outcome])
        labels.append(f"{number + 1}  {trial.outcome}")
    with canvas((8.4, 1.3 + 0.16 * len(trials))) as (figure, ax):
        ax.imshow(colours, aspect="auto", extent=(0, len(names), len(trials), 0))
        ax.set_yticks(np.arange(len(trials)) + 0.5, labels)
        for column in range(1, len(names)):
            ax.axvline(column, color="white", linewidth=0.5)
        for row in range(1, len(trials)):
            ax.axhline(row, color="white", linewidth=1.5)
        columns = [names.index(name_of(key)) for key in found.culprits]
        for column in columns:
            ax.axvspan(column, column + 1, fill=False, edgecolor="black", linewidth=1.2, zorder=3)
        fields = [field for *_, field in found.culprits]
        ax.set_xticks(np.add(columns, 0.5), fields, rotation=20, ha="right")
        ax.tick_params(length=0)
        ax.set_xlabel(
            "parts, in the order in which they differ; coloured are those taken from the bad "
            "capture"
        )
        patches = []
        for outcome, colour in OUTCOMES.items():
            if outcomes[outcome]:
                patches.append(Patch(facecolor=colour, label=f"trial: {outcome}"))
        legend(figure, patches, len(counted))
        ax.set_title(text)
    return Picture(text, figure)


def output_difference(found: Comparison, channels: list[int] | None = None) -> Picture:
    """Draw predicted output, captured output and their difference, a row of three images per
    channel.

    ``channels`` are numbers of channels; by default the channels, at most four, in which most
    outputs differ. Raises ValueError if the comparison lacks an output.
    """
    if found.predicted is None or found.captured is None:
        raise ValueError(
            f"{found.case}: there is no output to draw ({found.verdict}: {found.reason})"
        )
    difference = steps(found.captured, found.predicted)
    if channels is None:
        channels = _most_different(difference)
    text = _difference_text(found)
    panels = _difference_panels(found.predicted, found.captured, difference)
    if found.unit == "ulp":
        panels[-1] = replace(panels[-1], title="difference in ulp")
    size = 9.2, 0.5 + 2.6 * len(channels)
    with canvas(size, len(channels), 3, squeeze=False) as (figure, axes):
        for line, channel in zip(axes, channels, strict=True):
            for ax, panel in zip(line, panels, strict=True):
                panel.draw(figure, ax, channel)
        figure.suptitle(text)
    return Picture(text, figure)


def _difference_text(found: Comparison) -> str:
    case = found.case
    if found.simulated:
        case += " (simulated)"
    return (
        f"{case}: {found.verdict}, {found.mismatches} of {found.compared} outputs differ, "
        f"largest difference {found.largest}"
    )


def _most_different(difference: ndarray) -> list[int]:
    wrong = np.count_nonzero(difference, axis=(0, 1))
    most = np.argsort(-wrong, kind="stable")[:CHANNELS]
    return sorted(most.tolist())


@dataclass(frozen=True)
class _Panel:
    """A tensor ``(H, W, C)`` to draw, with its colour map and the values at the two ends of the
    map.
    """

    title: str
    tensor: ndarray
    colours: Any
    low: float
    high: float

    def draw(self, figure: Figure, ax: Any, channel: int) -> None:
        values = self.tensor[:, :, channel]
        image = ax.imshow(values, cmap=self.colours, vmin=self.low, vmax=self.high)
        ax.set_title(f"{self.title}, channel {channel}")
        _values_or_bar(figure, ax, values, image)


def _difference_panels(predicted: ndarray, captured: ndarray, difference: ndarray) -> list[_Panel]:
    low, high = _range(predicted, captured)
    limit = max(int(np.abs(difference).max()), 1)
    return [
        _Panel("predicted", predicted, "viridis", low, high),
        _Panel("captured", captured, "viridis", low, high),
        _Panel("captured - predicted", difference, SIGNED, -limit, limit),
    ]


def _range(predicted: ndarray, captured: ndarray) -> tuple[float, float]:
    """Return the values at the two ends of the colour map: for codes the lowest and the highest
    code of their type, for real numbers the lowest and the highest finite number in both outputs
    (0 and 1 if no number is finite).
    """
    if captured.dtype.kind != "f":
        info = np.iinfo(captured.dtype)
        return info.min, info.max
    both = np.concatenate([predicted, captured], axis=None).astype(np.float64)
    finite = both[np.isfinite(both)]
    if not finite.size:
        return 0.0, 1.0
    return float(finite.min()), float(finite.max())


def _values_or_bar(figure: Figure, ax: Any, values: ndarray, image: Any) -> None:
    """Write the values into their cells if there is room, or else add a colour bar."""
    ax.set_xticks([])
    ax.set_yticks([])
    if max(values.shape) <= NUMBERED:
        write_values(ax, values, image)
    else:
        figure.colorbar(image, ax=ax)


def number_line(
    accumulators: Iterable[int],
    scales: Scales,
    zero_point: int = 0,
    rules: Iterable[str | Rule] | None = None,
) -> Picture:
    """Draw the output code that each rule gives each accumulator, with the accumulators on a line
    of real values; rules that give the same codes share a row.

    Arguments and errors as for ``codes_by_rule``, which computes the codes. A bar is a run of
    accumulators (dots) with the same code; it ends half way to the next dot, which has another
    code. Dashed lines are ties: real values half way between two codes.
    """
    codes = codes_by_rule(accumulators, scales, zero_point, rules)
    real = real_values(codes.columns, scales)
    groups = same_codes(codes)
    rows = f"{len(groups)} different rows of codes"
    ratio = float(real_values(1, scales))
    disputed = codes.columns[codes.nunique() > 1].tolist()
    text = f"{len(codes)} rules, {len(real)} accumulators, ratio {ratio:.9g}: {rows}; "
    text += _disputed_text(disputed, len(real))
    labels = []
    heights = []
    for names, _ in groups:
        label = textwrap.fill(", ".join(names), LINE, break_on_hyphens=False)
        labels.append(label)
        heights.append(0.14 + 0.145 * max(label.count("\n") + 1, 2))
    with canvas((8.4, 0.85 + sum(heights))) as (figure, ax):
        ends = np.cumsum([0, *heights])
        middles = (ends[1:] + ends[:-1]) / 2
        for (_, row), middle in zip(groups, middles.tolist(), strict=True):
            _line_of_codes(ax, real, row, middle)
        ax.set_ylim(ends[-1], 0)
        ax.set_yticks(middles, labels, fontsize=8)
        ax.tick_params(axis="y", length=0)
        ax.spines[["left", "right", "top"]].set_visible(False)
        ax.margins(x=0)
        low, high = ax.get_xlim()
        if high - low < TIES:
            for tie in np.arange(np.floor(low - 0.5) + 1.5, high):
                ax.axvline(tie, color="#555555", linestyle=(0, (3, 3)), linewidth=0.8, zorder=3)
        ax.ticklabel_format(axis="x", useOffset=False)
        ax.set_xlabel(
            "accumulator * ratio of scales; dots are the accumulators, numbers the output codes,\n"
            "dashed lines ties; neighbouring codes have different colours"
        )
        ax.set_title(f"{len(codes)} rules, {rows}", loc="left")
    return Picture(text, figure)


def _disputed_text(accumulators: list[int], of: int) -> str:
    if not accumulators:
        return "none that they disagree about"
    if len(accumulators) == of > 1:
        return "they disagree about all of them"
    listed = ", ".join(map(str, accumulators[:DISPUTED]))
    if len(accumulators) > DISPUTED:
        listed += f" and {len(accumulators) - DISPUTED} more"
    return f"they disagree about {listed}"


def _line_of_codes(ax: Any, real: ndarray, codes: ndarray, middle: float) -> None:
    """Draw a bar for each run of neighbouring accumulators that have the same code, and a dot for
    each accumulator.
    """
    half = 0.5
    if len(real) > 1:
        half = np.diff(real).min() / 2
    edges = np.concatenate([[real[0] - half], (real[1:] + real[:-1]) / 2, [real[-1] + half]])
    changes = np.flatnonzero(np.diff(codes)) + 1
    for first, end in itertools.pairwise([0, *changes, len(codes)]):
        start = edges[first]
        width = edges[end] - start
        colour = CODES[int(codes[first]) % len(CODES)]
        ax.barh(middle, width, TALL, left=start, color=colour, edgecolor="white", linewidth=1.5)
        ax.text(
            start + width / 2,
            middle - 0.12 * TALL,
            str(codes[first]),
            ha="center",
            va="center",
            fontsize=8,
            zorder=4,
            bbox={"facecolor": colour, "edgecolor": "none", "pad": 0.6},
        )
    dots = np.full(len(real), middle + 0.33 * TALL)
    ax.plot(real, dots, ".", color="black", markersize=3, gid="on colour")


def output_comparison(found: Comparison) -> Picture:
    """Draw how captured and predicted output differ: counts by difference, a map of the pixels,
    counts by channel, border against interior.

    The numbers are those of ``mismatches(found)``, which defines the border. If the outputs are
    equal, the picture has a histogram of their codes and the map with the border. Raises ValueError
    if the comparison does not have two outputs.
    """
    counted = mismatches(found)
    rows = 1
    height = 3.3
    if counted.differ:
        rows = 2
        height = 6.4
    with canvas((8.8, height), rows, 2, width_ratios=(1.1, 1), squeeze=False) as (figure, axes):
        _error_map(figure, axes[0, 1], counted)
        if counted.differ:
            _by_difference(axes[0, 0], counted)
            _by_channel(axes[1, 0], counted)
            _by_place(axes[1, 1], counted)
        else:
            _codes(axes[0, 0], found)
        figure.suptitle(
            f"{counted.case}: {found.verdict}, {counted.differ} of {counted.outputs} outputs differ"
        )
    return Picture(f"{counted.case}: {found.verdict}; {counted}", figure)


def _codes(ax: Any, found: Comparison) -> None:
    """Draw a histogram of the codes of equal outputs. It shows whether the codes vary: outputs of a
    single code, or of clamped codes, prove little by being equal.
    """
    codes = np.asarray(found.captured).ravel()
    if codes.dtype.kind == "f":
        codes = codes[np.isfinite(codes)].astype(np.float64)
        ax.hist(codes, 2 * BINS, color=RIGHT)
        shown = "none finite"
        if codes.size:
            shown = f"{codes.min():.3g} to {codes.max():.3g}"
        ax.set_title(f"captured numbers, {shown}; predicted are the same", loc="left")
        ax.set_xlabel("output")
    else:
        info = np.iinfo(codes.dtype)
        ax.hist(codes, np.linspace(info.min, info.max + 1, 2 * BINS + 1), color=RIGHT)
        shown = f"{codes.min()} to {codes.max()}"
        ax.set_title(f"captured codes, {shown}; predicted are the same", loc="left")
        ax.set_xlabel("output code")
    bare(ax, "outputs")


def _by_difference(ax: Any, counted: Mismatches) -> None:
    units = counted.unit
    if units == "code":
        units = "codes"
    table = counted.by_difference
    equal = table.difference == 0
    ax.set_title(
        f"captured - predicted ({table.outputs[equal].sum()} equal, not drawn)", loc="left"
    )
    differences = table.difference[~equal].to_numpy()
    counts = table.outputs[~equal].to_numpy()
    bare(ax, "outputs")
    ax.set_xlabel(f"difference in {units}")
    if len(differences) <= LABELLED and np.ptp(differences) <= 2 * LABELLED:
        bars = ax.bar(differences, counts, 0.6, color=_signs(differences))
        ax.bar_label(bars, fontsize=8)
        ax.margins(y=0.12)
        ax.set_xticks(sorted({-1, 0, 1, *differences.tolist()}))
    else:
        values, edges = np.histogram(differences, BINS, weights=counts)
        colours = _signs(edges[:-1] + edges[1:])
        ax.bar(edges[:-1], values, np.diff(edges), align="edge", color=colours, edgecolor="white")
        span = f"{differences.min():+d} to {differences.max():+d}"
        ax.set_xlabel(f"difference in {units}, {span} in {BINS} bins")


def _signs(differences: ndarray) -> list[str]:
    """Return a colour for each difference: ``LARGER`` if it is above 0, else ``SMALLER``."""
    return np.where(differences > 0, LARGER, SMALLER).tolist()


def _error_map(figure: Figure, ax: Any, counted: Mismatches) -> None:
    worst = counted.worst
    image = ax.imshow(worst, cmap="Oranges", vmin=0, vmax=max(int(worst.max(initial=0)), 4))
    title = "largest difference of a pixel"
    if counted.unit == "ulp":
        title += ", in ulp"
    ax.set_title(title, loc="left")
    _values_or_bar(figure, ax, worst, image)
    inside = np.argwhere(~counted.border)
    if counted.border.any() and len(inside):
        top, left = inside.min(axis=0) - 0.5
        bottom, right = inside.max(axis=0) + 0.5
        x = [left, right, right, left, left]
        y = [top, top, bottom, bottom, top]
        ax.plot(x, y, color="black", linewidth=1.5)
        ax.set_xlabel("outside of the line: windows that touch the padding")


def _by_channel(ax: Any, counted: Mismatches) -> None:
    table = counted.by_channel
    bars = ax.bar(table.channel, table.differ, 0.6, color=WRONG)
    if len(table) <= LABELLED:
        ax.bar_label(bars, fontsize=8)
        ax.set_xticks(table.channel)
    ax.set_xlim(-0.75, max(len(table), 4) - 0.25)
    ax.set_ylim(0, max(table.differ.max() * 1.15, 1))
    ax.set_title(f"outputs that differ, of {table.outputs[0]} in each channel", loc="left")
    ax.set_xlabel("channel")
    bare(ax, "outputs")


def _by_place(ax: Any, counted: Mismatches) -> None:
    labels = []
    shares = []
    for row in counted.by_place.itertuples():
        labels.append(f"{row.place}\n{row.differ} of {row.outputs}")
        share = "no such output"
        if row.outputs:
            share = f"{row.share:.1%}"
        shares.append(share)
    bars = ax.barh(labels, counted.by_place.share * 100, color=[WRONG, RIGHT], height=0.6)
    ax.bar_label(bars, shares, padding=3)
    ax.invert_yaxis()
    ax.set_xlim(0, 118)
    ax.set_xticks([0, 25, 50, 75, 100])
    ax.set_title("share of outputs that differ, in %", loc="left")
    open_frame(ax)
