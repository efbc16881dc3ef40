"""A roofline: the speed that memory and computing allow for each intensity, and the speed that
kernels achieved."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

from npulab.notebook.pictures.picture import RIGHT, WRONG, Picture, canvas, open_frame
from npulab.support.late import pd
from npulab.support.refuse import positive, refuse_if

LISTED = 40  # at most this many kernels have a row of numbers
NAME = 24  # a kernel's name is cut to this many letters in its row
# Labels of points nearer to each other than these shares of the axes' width and height are stacked.
NEAR = (0.035, 0.05)
LEVELS = 6  # a stack has at most this many labels; the next label lies at its bottom again
QUIET = "#6e6e6e"


@dataclass(frozen=True)
class Point:
    """A kernel: its operations, the bytes that it moves, its time in milliseconds (NaN if it was
    not measured).
    """

    name: str
    flops: float
    bytes: float
    ms: float

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.flops / self.bytes

    @property
    def tflops(self) -> float:
        """The speed achieved, in TFLOPS; NaN for a kernel without a time."""
        return self.flops / self.ms / 1e9

    @property
    def timed(self) -> bool:
        """True if the kernel has a time."""
        return not math.isnan(self.ms)


@dataclass(frozen=True)
class _Roof:
    """The peaks in TFLOPS by name, of which the first is the limit, and the bandwidth in GB/s."""

    peaks: Mapping[str, float]
    bandwidth: float

    @property
    def top(self) -> float:
        return next(iter(self.peaks.values()))

    @property
    def bend(self) -> float:
        """The intensity, in operations per byte, from which computing is the limit rather than
        memory.
        """
        return self.top * 1e3 / self.bandwidth

    def allowed(self, point: Point) -> float:
        return min(self.top, point.intensity * self.bandwidth / 1e3)

    def share(self, point: Point) -> float:
        return point.tflops / self.allowed(point)


def roofline(
    points: Any, peak: float | Mapping[str, float], bandwidth: float, title: str = ""
) -> Picture:
    r"""Draw kernels under their roof, both axes logarithmic: operations per byte across, TFLOPS up.

    ``points`` is a DataFrame, or data that pandas makes a DataFrame of, with a row per kernel:
    name, flops, bytes and, if times were measured, ms (NaN for a kernel without a time). ``peak``
    is in TFLOPS, or several by name: the first is the roof, the others are dashed; ``bandwidth`` is
    in GB/s (1e9 bytes). A kernel with a time is a filled point with a line up to the roof, a kernel
    without a time is a hollow point on the roof; a point above the roof, where something must be
    wrong, is a cross. At the right stands a row of numbers for each of the first 40 kernels: FLOP
    per byte, TFLOPS that the roof allows (``m``: memory is the limit, ``c``: computing), TFLOPS
    achieved, and their share of the allowed. Raises ValueError for points that lack a column or are
    not positive, and for a peak or bandwidth that is not positive.

    >>> picture = roofline([{"name": "a", "flops": 2e9, "bytes": 1e7, "ms": 1.0}], 10, 100)
    >>> picture.text.split("; ")[1]
    '1 with times: 2.00 TFLOPS in 1.000 ms, 20.0% of the peak'
    """
    kernels = _points(points)
    roof = _Roof(_peaks(peak), positive("bandwidth", bandwidth))
    text = _summary(kernels, roof)
    if title:
        text = f"{title}: {text}"
    height = max(4.2, 1.4 + 0.17 * min(len(kernels), LISTED))
    with canvas((10.4, height), 1, 2, width_ratios=(1.25, 1)) as (figure, (ax, numbers)):
        _axes(ax, kernels, roof)
        _draw_roof(ax, roof)
        _draw_kernels(ax, kernels, roof)
        ax.grid(color=QUIET, alpha=0.25, linewidth=0.5)
        ax.set_axisbelow(True)
        numbers.set_axis_off()
        numbers.text(
            0,
            1,
            _rows_of_numbers(kernels, roof),
            va="top",
            family="monospace",
            fontsize=8,
            linespacing=1.5,
            transform=numbers.transAxes,
        )
        figure.suptitle(textwrap.fill(text, 130))
    return Picture(text, figure)


def _points(points: Any) -> list[Point]:
    table = pd.DataFrame(points)
    allowed = "allowed are rows with name, flops, bytes and, where there are times, ms"
    if table.empty:
        raise ValueError(f"points: got no rows, {allowed}")
    for column in ("name", "flops", "bytes"):
        if column not in table:
            raise ValueError(f"points: got no column {column!r}, {allowed}")
    kernels = []
    for row in table.to_dict("records"):
        name = row["name"]
        ms = row.get("ms", math.nan)
        if pd.isna(ms):
            ms = math.nan
        else:
            ms = positive(f"ms of {name}", ms)
        flops = positive(f"flops of {name}", row["flops"])
        moved = positive(f"bytes of {name}", row["bytes"])
        kernels.append(Point(str(name), flops, moved, ms))
    return kernels


def _peaks(peak: float | Mapping[str, float]) -> dict[str, float]:
    if not isinstance(peak, Mapping):
        return {"": positive("peak", peak)}
    refuse_if(not peak, "peak", "no peaks", "is one or more of TFLOPS by name")
    return {name: positive(f"peak {name!r}", value) for name, value in peak.items()}


def _summary(kernels: list[Point], roof: _Roof) -> str:
    memory = sum(kernel.intensity < roof.bend for kernel in kernels)
    timed = [kernel for kernel in kernels if kernel.timed]
    peak = f"{roof.top:g} TFLOPS"
    name = next(iter(roof.peaks))
    if name:
        peak += f" ({name})"
    text = f"{len(kernels)} kernels under {peak} and {roof.bandwidth:g} GB/s"
    text += f" (bend at {roof.bend:.3g} FLOP per byte): {memory} bound by memory"
    text += f"; {len(timed)} with times"
    if not timed:
        return text
    ms = sum(kernel.ms for kernel in timed)
    tflops = sum(kernel.flops for kernel in timed) / ms / 1e9
    text += f": {tflops:.2f} TFLOPS in {ms:.3f} ms, {tflops / roof.top:.1%} of the peak"
    above = [kernel.name for kernel in timed if roof.share(kernel) > 1]
    if above:
        text += f"; above the roof, which cannot be: {', '.join(above)}"
    return text


def _axes(ax: Any, kernels: list[Point], roof: _Roof) -> None:
    """Make both axes logarithmic, with ends that are a factor of 3 away from the outermost points
    and peaks.
    """
    intensities = [roof.bend]
    heights = [*roof.peaks.values()]
    for kernel in kernels:
        intensities.append(kernel.intensity)
        heights.append(roof.allowed(kernel))
        if kernel.timed:
            heights.append(kernel.tflops)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlim(min(intensities) / 3, max(intensities) * 3)
    ax.set_ylim(min(heights) / 3, max(heights) * 3)
    for axis in (ax.xaxis, ax.yaxis):
        low, high = axis.get_view_interval()
        ticks = [1]
        if high / low < 1e4:
            ticks = [1, 2, 5]
        axis.set_major_locator(LogLocator(subs=ticks))
        axis.set_major_formatter(FormatStrFormatter("%g"))
        axis.set_minor_formatter(NullFormatter())
    ax.set_xlabel("FLOP per byte")
    ax.set_ylabel("TFLOPS")
    open_frame(ax)


def _draw_roof(ax: Any, roof: _Roof) -> None:
    low, high = ax.get_xlim()
    across = np.array([low, roof.bend, high])
    height = np.minimum(roof.top, across * roof.bandwidth / 1e3)
    ax.plot(across, height, color="black", linewidth=1.4, zorder=2)
    for name, peak in [*roof.peaks.items()][1:]:
        bend = peak * 1e3 / roof.bandwidth
        ax.plot([bend, high], [peak, peak], color=QUIET, linewidth=1, linestyle="--", zorder=1)
        ax.annotate(
            f"{name} {peak:g}",
            (high, peak),
            (-2, 2),
            textcoords="offset points",
            ha="right",
            fontsize=8,
            color=QUIET,
        )


def _draw_kernels(ax: Any, kernels: list[Point], roof: _Roof) -> None:
    """Draw the points of the kernels with the numbers of their rows; numbers of points that lie
    close together are stacked.
    """
    placed: list[tuple[float, float, int]] = []
    numbered = sorted(enumerate(kernels, 1), key=lambda item: item[1].intensity)
    for number, kernel in numbered:
        x = kernel.intensity
        y = _draw_kernel(ax, kernel, roof.allowed(kernel))
        across, up = ax.transAxes.inverted().transform(ax.transData.transform((x, y)))
        level = 0
        for left, height, taken in placed:
            if across - left < NEAR[0] and abs(up - height) < NEAR[1]:
                level = max(level, taken + 1)
        placed.append((across, up, level))
        label = ax.annotate(
            str(number),
            (x, y),
            (0, 6 + 9 * (level % LEVELS)),
            textcoords="offset points",
            ha="center",
            fontsize=8,
        )
        label.set_in_layout(False)


def _draw_kernel(ax: Any, kernel: Point, allowed: float) -> float:
    """Draw the point of a kernel, and return its height in TFLOPS: achieved, or allowed if the
    kernel has no time.
    """
    x = kernel.intensity
    height = allowed
    marker = "o"
    colour = RIGHT
    face = "none"
    if kernel.timed:
        height = kernel.tflops
        face = RIGHT
    if kernel.timed and height > allowed:
        marker = "X"
        colour = face = WRONG
    elif kernel.timed:
        to_roof = [height, allowed]
        ax.plot([x, x], to_roof, color=RIGHT, linewidth=0.8, linestyle=":", zorder=2)
    ax.plot([x], [height], marker, markersize=6, zorder=3, color=colour, markerfacecolor=face)
    return height


def _rows_of_numbers(kernels: list[Point], roof: _Roof) -> str:
    rows = [f"{'':>3} {'':{NAME}} {'FLOP/byte':>9} {'allowed':>9} {'TFLOPS':>8} {'share':>7}"]
    for number, kernel in enumerate(kernels[:LISTED], 1):
        bound = "c"
        if kernel.intensity < roof.bend:
            bound = "m"
        achieved = f"{'-':>8} {'-':>7}"
        if kernel.timed:
            achieved = f"{kernel.tflops:8.3g} {roof.share(kernel):7.1%}"
        name = kernel.name
        if len(name) > NAME:
            name = f"{name[: NAME - 1]}…"
        allowed = f"{roof.allowed(kernel):7.3g} {bound}"
        rows.append(f"{number:>3} {name:{NAME}} {kernel.intensity:9.3g} {allowed} {achieved}")
    if len(kernels) > LISTED:
        rows.append(f"    and {len(kernels) - LISTED} more")
    return "\n".join(rows)
