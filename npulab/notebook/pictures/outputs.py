"""Bisections, accumulators and outputs drawn."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import Any

import numpy as np
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from npulab.analysis.bisect import Bisected
from npulab.analysis.bisect.parts import name_of
from npulab.analysis.check import Comparison
from npulab.analysis.mismatch.summary import Mismatches, mismatches
from npulab.notebook.pictures.picture import RIGHT, WRONG, Picture, bare, canvas
from npulab.notebook.signs import LARGER, SMALLER
from npulab.quant.codes import Scales, codes_by_rule, real_values, same_codes
from npulab.quant.floats import steps
from npulab.quant.rules import Rule
from npulab.support.text import plural

NUMBERED = 12  # cells a side up to which every value is written into its cell
CHANNELS = 4
LABELLED = 17  # bars up to which each has its number
BINS = 24
LINE = 44  # characters of a row's label
TALL = 0.3  # inches of a bar
# told apart by people who do not see all colours, and light enough for black text; neighbouring
# codes differ
CODES = ("#8fc1e3", "#f6c667", "#d9d9d9")
SIGNED = LinearSegmentedColormap.from_list("signed", [SMALLER, "#f7f7f7", LARGER])
OUTCOMES = {"pass": "#8fc1e3", "fail": "#e08a3c", "hang": "#4a4a4a"}


def bisection_trials(found: Bisected) -> Picture:
    """The trials of a bisection, a row each: which parts were taken from the bad capture, and what
    came of it.

    Columns are the parts that differ, in their order; the culprits are named.
    """
    trials = list(found.journal)
    names = [name_of(part.key) for part in found.differences]
    changed = np.array([np.isin(names, trial.subset) for trial in trials]).reshape(
        len(trials), len(names)
    )
    counts = ", ".join(
        f"{sum(trial.outcome == outcome for trial in trials)} {outcome}" for outcome in OUTCOMES
    )
    text = (
        f"{plural(len(trials), 'trial')} of {plural(len(names), 'part')} ({counts}); "
        f"{plural(len(found.culprits), 'culprit')}"
    )
    colours = np.array([to_rgb(OUTCOMES[trial.outcome]) for trial in trials]).reshape(-1, 1, 3)
    with canvas((8.4, 1.3 + 0.16 * len(trials))) as (figure, ax):
        ax.imshow(
            np.where(changed[:, :, None], colours, 1.0),
            aspect="auto",
            extent=(0, len(names), len(trials), 0),
        )
        ax.set_yticks(
            np.arange(len(trials)) + 0.5,
            [f"{number}  {trial.outcome}" for number, trial in enumerate(trials, 1)],
        )
        ax.set_xticks(
            [names.index(name_of(key)) + 0.5 for key in found.culprits],
            [key[3] for key in found.culprits],
            rotation=20,
            ha="right",
        )
        for line in range(1, len(names)):
            ax.axvline(line, color="white", linewidth=0.5)
        for line in range(1, len(trials)):
            ax.axhline(line, color="white", linewidth=1.5)
        for key in found.culprits:
            at = names.index(name_of(key))
            ax.axvspan(at, at + 1, fill=False, edgecolor="black", linewidth=1.2, zorder=3)
        ax.tick_params(length=0)
        ax.set_xlabel(
            "parts, in the order in which they differ; coloured are those taken from the bad "
            "capture"
        )
        seen = [name for name in OUTCOMES if any(trial.outcome == name for trial in trials)]
        figure.legend(
            handles=[Patch(facecolor=OUTCOMES[name], label=f"trial: {name}") for name in seen],
            loc="outside lower center",
            ncols=len(OUTCOMES),
            frameon=False,
        )
        ax.set_title(text)
    return Picture(text, figure)


def output_difference(found: Comparison, channels: list[int] | None = None) -> Picture:
    """Predicted and captured output and their difference, a row per channel.

    ``channels`` are shown, by default those that differ most, at most four.
    Raises ValueError where the comparison has no output.
    """
    if found.predicted is None or found.captured is None:
        raise ValueError(
            f"{found.case}: there is no output to draw ({found.verdict}: {found.reason})"
        )
    difference = steps(found.captured, found.predicted)
    shown = _most_different(difference) if channels is None else channels
    with canvas((9.2, 0.5 + 2.6 * len(shown)), len(shown), 3, squeeze=False) as (figure, axes):
        for line, channel in zip(axes, shown, strict=True):
            _row(figure, line, channel, found, difference)
        figure.suptitle(_text(found))
    return Picture(_text(found), figure)


def _text(found: Comparison) -> str:
    if found.simulated:
        simulated = " (simulated)"
    else:
        simulated = ""
    return (
        f"{found.case}{simulated}: {found.verdict}, {found.mismatches} of {found.compared} outputs "
        "differ, "
        f"largest difference {found.largest}"
    )


def _most_different(difference: np.ndarray) -> list[int]:
    wrong = np.count_nonzero(difference, axis=(0, 1))
    return sorted(np.argsort(-wrong, kind="stable")[:CHANNELS].tolist())


def _row(
    figure: Figure, axes: Any, channel: int, found: Comparison, difference: np.ndarray
) -> None:
    assert found.predicted is not None
    assert found.captured is not None
    limit = max(int(np.abs(difference).max()), 1)
    if found.unit == "ulp":
        apart = "difference in ulp"
    else:
        apart = "captured - predicted"
    ends = _range(found)
    panels = (
        ("predicted", found.predicted, "viridis", ends),
        ("captured", found.captured, "viridis", ends),
        (apart, difference, SIGNED, (-limit, limit)),
    )
    for ax, (title, tensor, colours, (low, high)) in zip(axes, panels, strict=True):
        values = tensor[:, :, channel]
        image = ax.imshow(values, cmap=colours, vmin=low, vmax=high)
        ax.set_title(f"{title}, channel {channel}")
        ax.set_xticks([])
        ax.set_yticks([])
        if max(values.shape) <= NUMBERED:
            _numbers(ax, values, image)
        else:
            figure.colorbar(image, ax=ax)


def _range(found: Comparison) -> tuple[float, float]:
    """Codes have the range of their type, real numbers that of all that are finite."""
    assert found.predicted is not None
    assert found.captured is not None
    if found.captured.dtype.kind != "f":
        info = np.iinfo(found.captured.dtype)
        return info.min, info.max
    both = np.concatenate([found.predicted.ravel(), found.captured.ravel()]).astype(np.float64)
    both = both[np.isfinite(both)]
    return (float(both.min()), float(both.max())) if both.size else (0.0, 1.0)


def _numbers(ax: Any, values: np.ndarray, image: Any, size: int = 8) -> None:
    for (row, column), value in np.ndenumerate(values):
        red, green, blue, _ = image.cmap(image.norm(value))
        light = 0.299 * red + 0.587 * green + 0.114 * blue > 0.55 or np.isnan(
            value
        )  # a NaN has no colour
        ax.text(
            column,
            row,
            f"{value:.3g}" if values.dtype.kind == "f" else str(value),
            ha="center",
            va="center",
            color="black" if light else "white",
            fontsize=size,
        )


def number_line(
    accumulators: Iterable[int],
    scales: Scales,
    zero_point: int = 0,
    rules: Iterable[str | Rule] | None = None,
) -> Picture:
    """Output codes of accumulators by every rule, on one line of real values; rules that agree
    share a row.

    Arguments and errors as of ``codes_by_rule``, whose numbers these are.  Every bar is a code, and
    ends half way between two accumulators (dots) that get different ones, so that a rule switches
    at the next dot; dashed lines are ties.
    """
    codes = codes_by_rule(accumulators, scales, zero_point, rules)
    groups, real = same_codes(codes), real_values(codes.columns, scales)
    disputed = [int(sum_) for sum_ in codes.columns[codes.nunique().to_numpy() > 1]]
    if not disputed:
        agree = "none that they disagree about"
    else:
        agree = f"they disagree about {_listed(disputed)}"
    if len(disputed) == len(real) > 1:
        agree = "they disagree about all of them"
    text = (
        f"{len(codes)} rules, {len(real)} accumulators, ratio {float(real_values(1, scales)):.9g}: "
        f"{len(groups)} different rows of codes; {agree}"
    )
    labels = [textwrap.fill(", ".join(names), LINE, break_on_hyphens=False) for names, _ in groups]
    heights = [0.14 + 0.145 * max(label.count("\n") + 1, 2) for label in labels]
    with canvas((8.4, 0.85 + sum(heights))) as (figure, ax):
        ends = np.concatenate([[0], np.cumsum(heights)])
        middles = (ends[1:] + ends[:-1]) / 2
        for (_, row), middle in zip(groups, middles, strict=True):
            _line_of_codes(ax, real, row, float(middle))
        ax.set_ylim(ends[-1], 0)
        ax.set_yticks(middles, labels, fontsize=8)
        ax.tick_params(axis="y", length=0)
        ax.spines[["left", "right", "top"]].set_visible(False)
        ax.margins(x=0)
        low, high = ax.get_xlim()
        for tie in np.arange(np.floor(low), np.ceil(high) + 1) + 0.5:
            if low < tie < high and high - low < 64:
                ax.axvline(tie, color="#555555", linestyle=(0, (3, 3)), linewidth=0.8, zorder=3)
        ax.ticklabel_format(axis="x", useOffset=False)
        ax.set_xlabel(
            "accumulator * ratio of scales; dots are the accumulators, numbers the output codes,\n"
            "dashed lines ties; neighbouring codes have different colours"
        )
        ax.set_title(f"{len(codes)} rules, {len(groups)} different rows of codes", loc="left")
    return Picture(text, figure)


def _listed(numbers: list[int]) -> str:
    more = ""
    if len(numbers) > CHANNELS * 2:
        more = f" and {len(numbers) - CHANNELS * 2} more"
    return ", ".join(map(str, numbers[: CHANNELS * 2])) + more


def _line_of_codes(ax: Any, real: np.ndarray, codes: np.ndarray, middle: float) -> None:
    """A bar for every run of accumulators with the same code."""
    half = 0.5
    if len(real) > 1:
        half = np.diff(real).min(initial=np.inf) / 2
    edges = np.concatenate([[real[0] - half], (real[1:] + real[:-1]) / 2, [real[-1] + half]])
    changes = np.flatnonzero(np.diff(codes)) + 1
    for first, end in zip([0, *changes], [*changes, len(codes)], strict=True):
        left, width = edges[first], edges[end] - edges[first]
        colour = CODES[int(codes[first]) % len(CODES)]
        ax.barh(middle, width, TALL, left=left, color=colour, edgecolor="white", linewidth=1.5)
        ax.text(
            left + width / 2,
            middle - 0.12 * TALL,
            str(codes[first]),
            ha="center",
            va="center",
            fontsize=8,
            zorder=4,
            bbox={"facecolor": colour, "edgecolor": "none", "pad": 0.6},
        )
    ax.plot(
        real,
        np.full(len(real), middle + 0.33 * TALL),
        ".",
        color="black",
        markersize=3,
        gid="on colour",
    )


def output_comparison(found: Comparison) -> Picture:
    """How captured and predicted output differ: counts by difference, where, by channel, border
    against interior.

    The numbers are those of ``mismatches(found)``, which says the border.  Of equal outputs: which
    codes they have, and where the border is. Raises ValueError where the comparison has no two
    outputs.
    """
    counted = mismatches(found)
    text = f"{counted.case}: {found.verdict}; {counted}"
    with canvas(
        (8.8, 6.4 if counted.differ else 3.3),
        2 if counted.differ else 1,
        2,
        width_ratios=(1.1, 1),
        squeeze=False,
    ) as (figure, axes):
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
    return Picture(text, figure)


def _codes(ax: Any, found: Comparison) -> None:
    """Which codes equal outputs have: were all one, or clamped, their being equal would say
    little."""
    assert found.captured is not None
    codes = found.captured.ravel()
    if codes.dtype.kind == "f":
        codes = codes[np.isfinite(codes)].astype(np.float64)
        ax.hist(codes, 2 * BINS, color=RIGHT)
        said = "none finite"
        if codes.size:
            said = f"{codes.min():.3g} to {codes.max():.3g}"
        ax.set_title(f"captured numbers, {said}; predicted are the same", loc="left")
        ax.set_xlabel("output")
    else:
        ax.hist(
            codes,
            np.linspace(np.iinfo(codes.dtype).min, np.iinfo(codes.dtype).max + 1, 2 * BINS + 1),
            color=RIGHT,
        )
        ax.set_title(
            f"captured codes, {codes.min()} to {codes.max()}; predicted are the same", loc="left"
        )
        ax.set_xlabel("output code")
    bare(ax, "outputs")


def _by_difference(ax: Any, counted: Mismatches) -> None:
    if counted.unit == "code":
        units = "codes"
    else:
        units = counted.unit
    apart, counts = (counted.by_difference[name].to_numpy() for name in ("difference", "outputs"))
    equal = int(counts[apart == 0].sum())
    ax.set_title(f"captured - predicted ({equal} equal, not drawn)", loc="left")
    apart, counts = apart[apart != 0], counts[apart != 0]
    bare(ax, "outputs")
    ax.set_xlabel(f"difference in {units}")
    if len(apart) <= LABELLED and np.ptp(apart) <= 2 * LABELLED:
        ax.bar_label(ax.bar(apart, counts, 0.6, color=_signs(apart)), fontsize=8)
        ax.margins(y=0.12)
        ax.set_xticks(sorted({-1, 0, 1, *apart.tolist()}))
    else:
        values, edges = np.histogram(apart, BINS, weights=counts)
        colours = _signs(edges[:-1] + edges[1:])
        ax.bar(edges[:-1], values, np.diff(edges), align="edge", color=colours, edgecolor="white")
        ax.set_xlabel(f"difference in {units}, {apart.min():+d} to {apart.max():+d} in {BINS} bins")


def _signs(differences: np.ndarray) -> list[str]:
    """The colour of each difference."""
    return [LARGER if difference > 0 else SMALLER for difference in differences]


def _error_map(figure: Figure, ax: Any, counted: Mismatches) -> None:
    image = ax.imshow(
        counted.worst, cmap="Oranges", vmin=0, vmax=max(int(counted.worst.max(initial=0)), 4)
    )
    ax.set_title(f"largest difference of a pixel{', in ulp' * (counted.unit == 'ulp')}", loc="left")
    ax.set_xticks([])
    ax.set_yticks([])
    if max(counted.worst.shape) <= NUMBERED:
        _numbers(ax, counted.worst, image)
    else:
        figure.colorbar(image, ax=ax)
    inside = np.argwhere(~counted.border)
    if counted.border.any() and len(inside):
        (top, left), (bottom, right) = inside.min(0) - 0.5, inside.max(0) + 0.5
        ax.plot(
            [left, right, right, left, left],
            [top, top, bottom, bottom, top],
            color="black",
            linewidth=1.5,
        )
        ax.set_xlabel("outside of the line: windows that touch the padding")


def _by_channel(ax: Any, counted: Mismatches) -> None:
    channels, wrong, outputs = (
        counted.by_channel[name].to_numpy() for name in ("channel", "differ", "outputs")
    )
    bars = ax.bar(channels, wrong, 0.6, color=WRONG)
    if len(channels) <= LABELLED:
        ax.bar_label(bars, fontsize=8)
        ax.set_xticks(channels)
    ax.set_xlim(-0.75, max(len(channels), 4) - 0.25)
    ax.set_ylim(0, max(int(wrong.max(initial=0)) * 1.15, 1))
    ax.set_title(f"outputs that differ, of {outputs[0]} in each channel", loc="left")
    ax.set_xlabel("channel")
    bare(ax, "outputs")


def _by_place(ax: Any, counted: Mismatches) -> None:
    frame = counted.by_place
    labels = [
        f"{place}\n{differ} of {outputs}"
        for place, outputs, differ in zip(frame.place, frame.outputs, frame.differ, strict=True)
    ]
    bars = ax.barh(labels, frame.share * 100, color=[WRONG, RIGHT], height=0.6)
    shown = [
        f"{share:.1%}" if outputs else "no such output"
        for share, outputs in zip(frame.share, frame.outputs, strict=True)
    ]
    ax.bar_label(bars, shown, padding=3)
    ax.invert_yaxis()
    ax.set_xlim(0, 118)
    ax.set_xticks([0, 25, 50, 75, 100])
    ax.set_title("share of outputs that differ, in %", loc="left")
    ax.spines[["right", "top"]].set_visible(False)
