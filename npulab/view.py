"""Pictures that say their number in text too, and are the same bytes on every run."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from os import PathLike
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from npulab.compare import Comparison

DPI = 100
STYLE: Any = {"font.size": 8, "axes.titlesize": 9, "figure.facecolor": "white", "image.interpolation": "nearest"}
NUMBERED = 12  # cells a side up to which every value is written into its cell
CHANNELS = 4


@dataclass(frozen=True)
class Picture:
    """A figure and the sentence that says what it shows."""

    text: str
    figure: Figure = field(repr=False, compare=False)

    def __repr__(self) -> str:
        return self.text

    def _repr_png_(self) -> bytes:
        out = io.BytesIO()
        self.figure.savefig(out, format="png", dpi=DPI, metadata={"Software": None})
        return out.getvalue()

    def save(self, path: str | PathLike[str]) -> None:
        """Write it; the suffix says the format."""
        self.figure.savefig(path, dpi=DPI)


def output_difference(found: Comparison, channels: list[int] | None = None) -> Picture:
    """Predicted and captured output and their difference, a row per channel.

    ``channels`` are shown, by default those that differ most, at most four.
    Raises ValueError where the comparison has no output.
    """
    if found.predicted is None or found.captured is None:
        raise ValueError(f"{found.case}: there is no output to draw ({found.verdict}: {found.reason})")
    difference = found.captured.astype(int) - found.predicted.astype(int)
    shown = _most_different(difference) if channels is None else channels
    with rc_context(STYLE):
        figure = Figure(figsize=(7.2, 0.5 + 2.1 * len(shown)), layout="constrained")
        axes = figure.subplots(len(shown), 3, squeeze=False)
        for line, channel in zip(axes, shown, strict=True):
            _row(figure, line, channel, found, difference)
        figure.suptitle(_text(found))
    return Picture(_text(found), figure)


def _text(found: Comparison) -> str:
    simulated = " (simulated)" if found.simulated else ""
    return (f"{found.case}{simulated}: {found.verdict}, {found.mismatches} of {found.compared} outputs differ, "
            f"largest difference {found.max}")


def _most_different(difference: np.ndarray) -> list[int]:
    wrong = np.count_nonzero(difference, axis=(0, 1))
    return sorted(np.argsort(-wrong, kind="stable")[:CHANNELS].tolist())


def _row(figure: Figure, axes: Any, channel: int, found: Comparison, difference: np.ndarray) -> None:
    assert found.predicted is not None
    assert found.captured is not None
    limit = max(int(np.abs(difference).max()), 1)
    panels = (("predicted", found.predicted, "viridis", (0, 255)), ("captured", found.captured, "viridis", (0, 255)),
              ("captured - predicted", difference, "RdBu", (-limit, limit)))
    for ax, (title, tensor, colours, (low, high)) in zip(axes, panels, strict=True):
        values = tensor[:, :, channel]
        low, high = (low, high) if title.startswith("captured -") else _range(found, low, high)
        image = ax.imshow(values, cmap=colours, vmin=low, vmax=high)
        ax.set_title(f"{title}, channel {channel}")
        ax.set_xticks([])
        ax.set_yticks([])
        if max(values.shape) <= NUMBERED:
            _numbers(ax, values, image)
        else:
            figure.colorbar(image, ax=ax)


def _range(found: Comparison, low: int, high: int) -> tuple[int, int]:
    """Signed outputs have a range of their own."""
    assert found.captured is not None
    return (low, high) if found.captured.dtype == np.uint8 else (low - 128, high - 128)


def _numbers(ax: Any, values: np.ndarray, image: Any) -> None:
    for (row, column), value in np.ndenumerate(values):
        red, green, blue, _ = image.cmap(image.norm(value))
        light = 0.299 * red + 0.587 * green + 0.114 * blue > 0.55
        ax.text(column, row, str(value), ha="center", va="center", color="black" if light else "white", fontsize=7)
