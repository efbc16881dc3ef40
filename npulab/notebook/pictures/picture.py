"""What every picture has: the sentence with its number, and the same bytes on every run."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from os import PathLike
from typing import Any

from matplotlib.figure import Figure

DPI = 100
STYLE: Any = {"font.size": 8, "axes.titlesize": 9, "figure.facecolor": "white", "image.interpolation": "nearest"}
WRONG, RIGHT = "#c4501b", "#2b6ca3"


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


def bare(ax: Any, label: str) -> None:
    ax.set_ylabel(label)
    ax.spines[["right", "top"]].set_visible(False)
    ax.yaxis.get_major_locator().set_params(integer=True)
