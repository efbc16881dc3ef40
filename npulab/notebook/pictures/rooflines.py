"""A roofline: what memory and computing allow kernels of some intensity, and what they achieved."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

from npulab.notebook.pictures.picture import RIGHT, WRONG, Picture, canvas
from npulab.support.late import pd
from npulab.support.refuse import positive, refuse_if

LISTED = 40  # points that have a row of numbers
NAME = 24  # letters of a name in a row
NEAR = (0.035, 0.05)  # share of the picture within which labels are put one above the other
LEVELS = 6  # of labels one above the other; more begin again
QUIET = "#6e6e6e"


@dataclass(frozen=True)
class Point:
    """A kernel: operations, bytes, time in milliseconds (NaN where it was not measured)."""

    name: str
    flops: float
    bytes: float
    ms: float

    @property
    def intensity(self) -> float:
        """Operations a byte."""
        return self.flops / self.bytes

    @property
    def tflops(self) -> float:
        """What was achieved; NaN without a time."""
        return self.flops / self.ms / 1e9

    @property
    def timed(self) -> bool:
        """Whether there is a time."""
        return not math.isnan(self.ms)


def roofline(
    points: Any, peak: float | Mapping[str, float], bandwidth: float, title: str = ""
) -> Picture:
    """Kernels under their roof, both axes logarithmic: operations a byte across, TFLOPS up.

    ``points`` is a DataFrame, or what makes one, with a row per kernel: name, flops, bytes and,
    where there are times, ms (NaN where not).  ``peak`` is in TFLOPS, or several by name, of which
    the first is the roof and the others are dashed; ``bandwidth`` in GB/s (1e9 bytes).  A kernel
    with a time is a filled point with a line to what it could be, one without a hollow point on the
    roof; above the roof, where something must be wrong, it is a cross. Beside it, a row of numbers
    for each, the first 40: FLOP per byte, TFLOPS that the roof allows (``m``: memory is the limit,
    ``c``: computing), TFLOPS achieved, and its share of what is allowed. Raises ValueError for
    points that lack a column or are not positive, and for a peak or bandwidth that is not.

    >>> roofline([{"name": "one", "flops": 2e9, "bytes": 1e7, "ms": 1.0}], 10, 100)
    1 kernels under 10 TFLOPS and 100 GB/s (bend at 100 FLOP per byte): 0 bound by memory; 1 with times: 2.00 TFLOPS \
in 1.000 ms, 20.0% of the peak
    """
    kernels, peaks = _points(points), _peaks(peak)
    speed = positive("bandwidth", bandwidth)
    name, top = next(iter(peaks.items()))
    bend = top * 1e3 / speed
    text = _text(kernels, name, top, speed, bend)
    with canvas(
        (10.4, max(4.2, 1.4 + 0.17 * min(len(kernels), LISTED))), 1, 2, width_ratios=(1.25, 1)
    ) as (figure, (ax, beside)):
        _axes(ax, kernels, peaks, speed, bend)
        low, high = ax.get_xlim()
        across = np.array([low, bend, high])
        ax.plot(
            across, np.minimum(top, across * speed / 1e3), color="black", linewidth=1.4, zorder=2
        )
        for other, height in list(peaks.items())[1:]:
            ax.plot(
                [height * 1e3 / speed, high],
                [height, height],
                color=QUIET,
                linewidth=1,
                linestyle="--",
                zorder=1,
            )
            ax.annotate(
                f"{other} {height:g}",
                (high, height),
                (-2, 2),
                textcoords="offset points",
                ha="right",
                fontsize=8,
                color=QUIET,
            )
        _draw(ax, kernels, top, speed)
        ax.grid(color=QUIET, alpha=0.25, linewidth=0.5)
        ax.set_axisbelow(True)
        beside.set_axis_off()
        beside.text(
            0,
            1,
            _numbers(kernels, top, speed),
            va="top",
            family="monospace",
            fontsize=8,
            linespacing=1.5,
            transform=beside.transAxes,
        )
        figure.suptitle(textwrap.fill(f"{title}: {text}" if title else text, 130))
    return Picture(f"{title}: {text}" if title else text, figure)


def _text(kernels: list[Point], name: str, top: float, speed: float, bend: float) -> str:
    memory = sum(kernel.intensity < bend for kernel in kernels)
    timed = [kernel for kernel in kernels if kernel.timed]
    roof = f"{top:g} TFLOPS{f' ({name})' if name else ''}"
    text = (
        f"{len(kernels)} kernels under {roof} and {speed:g} GB/s (bend at {bend:.3g} FLOP per "
        f"byte): {memory} "
        f"bound by memory; {len(timed)} with times"
    )
    if not timed:
        return text
    ms = sum(kernel.ms for kernel in timed)
    tflops = sum(kernel.flops for kernel in timed) / ms / 1e9
    above = [kernel.name for kernel in timed if _share(kernel, top, speed) > 1]
    return f"{text}: {tflops:.2f} TFLOPS in {ms:.3f} ms, {tflops / top:.1%} of the peak" + (
        f"; above the roof, which cannot be: {', '.join(above)}" if above else ""
    )


def _allowed(kernel: Point, top: float, speed: float) -> float:
    return min(top, kernel.intensity * speed / 1e3)


def _share(kernel: Point, top: float, speed: float) -> float:
    return kernel.tflops / _allowed(kernel, top, speed)


def _axes(
    ax: Any, kernels: list[Point], peaks: Mapping[str, float], speed: float, bend: float
) -> None:
    """Both axes reach half a decade past everything."""
    top = next(iter(peaks.values()))
    intensities = [bend, *(kernel.intensity for kernel in kernels)]
    heights = [
        *peaks.values(),
        *(_allowed(kernel, top, speed) for kernel in kernels),
        *(kernel.tflops for kernel in kernels if kernel.timed),
    ]
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlim(min(intensities) / 3, max(intensities) * 3)
    ax.set_ylim(min(heights) / 3, max(heights) * 3)
    for axis, (low, high) in ((ax.xaxis, ax.get_xlim()), (ax.yaxis, ax.get_ylim())):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 1e4 else (1,)))
        axis.set_major_formatter(FormatStrFormatter("%g"))
        axis.set_minor_formatter(NullFormatter())
    ax.set_xlabel("FLOP per byte")
    ax.set_ylabel("TFLOPS")
    ax.spines[["right", "top"]].set_visible(False)


def _draw(ax: Any, kernels: list[Point], top: float, speed: float) -> None:
    """Points with the numbers of their rows; where they crowd, one number above the other."""
    placed: list[tuple[float, float, int]] = []
    to_share = ax.transAxes.inverted()
    order = sorted(range(len(kernels)), key=lambda number: (kernels[number].intensity, number))
    for number in order:
        kernel = kernels[number]
        allowed = _allowed(kernel, top, speed)
        at = allowed
        if kernel.timed:
            at = kernel.tflops
        above = kernel.timed and at > allowed
        if kernel.timed and not above:
            ax.plot(
                [kernel.intensity] * 2,
                [at, allowed],
                color=RIGHT,
                linewidth=0.8,
                linestyle=":",
                zorder=2,
            )
        ax.plot(
            [kernel.intensity],
            [at],
            linestyle="",
            marker="X" if above else "o",
            markersize=6,
            zorder=3,
            color=WRONG if above else RIGHT,
            markerfacecolor=WRONG if above else RIGHT if kernel.timed else "none",
        )
        x, y = to_share.transform(ax.transData.transform((kernel.intensity, at)))
        level = 1 + max(
            (
                had
                for left, height, had in placed
                if x - left < NEAR[0] and abs(y - height) < NEAR[1]
            ),
            default=-1,
        )
        placed.append((x, y, level))
        label = ax.annotate(
            str(number + 1),
            (kernel.intensity, at),
            (0, 6 + 9 * (level % LEVELS)),
            textcoords="offset points",
            ha="center",
            fontsize=8,
        )
        label.set_in_layout(False)


def _numbers(kernels: list[Point], top: float, speed: float) -> str:
    rows = [f"{'':>3} {'':{NAME}} {'FLOP/byte':>9} {'allowed':>9} {'TFLOPS':>8} {'share':>7}"]
    bend = top * 1e3 / speed
    for number, kernel in enumerate(kernels[:LISTED], 1):
        if kernel.intensity < bend:
            bound = "m"
        else:
            bound = "c"
        if kernel.timed:
            had = f"{kernel.tflops:8.3g} {_share(kernel, top, speed):7.1%}"
        else:
            had = f"{'-':>8} {'-':>7}"
        if len(kernel.name) <= NAME:
            name = kernel.name
        else:
            name = f"{kernel.name[: NAME - 1]}…"
        rows.append(
            f"{number:>3} {name:{NAME}} {kernel.intensity:9.3g} "
            f"{_allowed(kernel, top, speed):7.3g} {bound} {had}"
        )
    if len(kernels) > LISTED:
        rows.append(f"    and {len(kernels) - LISTED} more")
    return "\n".join(rows)


def _points(points: Any) -> list[Point]:
    if isinstance(points, pd.DataFrame):
        table = points
    else:
        table = pd.DataFrame(points)
    missing = [name for name in ("name", "flops", "bytes") if name not in table]
    if missing or table.empty:
        raise ValueError(
            f"points: got {f'no column {missing[0]!r}' if missing and not table.empty else 'no rows'}, "
            "allowed are rows with name, flops, bytes and, where there are times, ms"
        )
    if "ms" in table:
        times = table["ms"]
    else:
        times = [math.nan] * len(table)
    out = []
    for name, flops, moved, ms in zip(
        table["name"], table["flops"], table["bytes"], times, strict=True
    ):
        out.append(
            Point(
                str(name),
                positive(f"flops of {name}", flops),
                positive(f"bytes of {name}", moved),
                math.nan if pd.isna(ms) else positive(f"ms of {name}", ms),
            )
        )
    return out


def _peaks(peak: float | Mapping[str, float]) -> dict[str, float]:
    if not isinstance(peak, Mapping):
        return {"": positive("peak", peak)}
    refuse_if(not peak, "peak", "no peaks", "is one or more of TFLOPS by name")
    return {name: positive(f"peak {name!r}", one) for name, one in peak.items()}
