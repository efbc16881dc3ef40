"""A picture: a figure, and a sentence with the numbers of the figure; every run gives the same
bytes.
"""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from npulab.notebook.pictures.dark import darkened, ink_on, on_any_page
from npulab.support.answers import attended

DPI = 100
STYLE: Any = {
    "font.size": 8,
    "axes.titlesize": 9,
    "figure.facecolor": "white",
    "image.interpolation": "nearest",
    "legend.frameon": False,
}
WRONG, RIGHT = "#c4501b", "#2b6ca3"


# these selectors match a page of JupyterLab or VS Code whose theme is dark
DARK_PAGES = ("[data-jp-theme-light='false']", ".vscode-dark")
RULES = ".npulab-light {{display: none}} {page} .npulab-dark {{display: block}}"
THEMES = f"<style>{' '.join(f'{page} {RULES.format(page=page)}' for page in DARK_PAGES)}</style>"


@contextmanager
def canvas(size: tuple[float, float], *panels: int, **options: Any) -> Iterator[tuple[Figure, Any]]:
    """Yield a figure of the given inches and its axes, as ``Figure.subplots`` returns them; inside
    the context npulab's style applies."""
    with rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        yield figure, figure.subplots(*panels, **options)


@dataclass(frozen=True)
class Picture:
    """A figure and the sentence that says what it shows."""

    text: str
    figure: Figure = field(repr=False, compare=False)

    def __repr__(self) -> str:
        return self.text

    def _drawn(self) -> bytes:
        out = io.BytesIO()
        self.figure.savefig(out, format="png", dpi=DPI, metadata={"Software": None})
        return out.getvalue()

    @cached_property
    def _png(self) -> bytes:
        # a figure is drawn once, because its layout moves by a pixel when it is drawn again
        return self._drawn()

    def _repr_png_(self) -> bytes:
        return self._png

    def dark_png(self) -> bytes:
        """Return the PNG of this picture with the colours for a dark page."""
        with darkened(self.figure):
            return self._drawn()

    @cached_property
    def _any_png(self) -> bytes:
        with on_any_page(self.figure):
            return self._drawn()

    def _repr_mimebundle_(self, **_: Any) -> dict[str, bytes]:
        """Return the PNG that a notebook stores: transparent, for light and dark pages."""
        return {"image/png": self._any_png}

    def _repr_html_(self) -> str | None:
        """Return the light and the dark picture as HTML if a person sits at the notebook; else
        None, so that the notebook stores only the PNG of ``_repr_mimebundle_``.
        """
        if attended():
            return self.both_html()
        return None

    def both_html(self) -> str:
        """Return the light and the dark picture as HTML; JupyterLab and VS Code show the
        picture that fits their theme.
        """
        text = html.escape(self.text, quote=True)
        light = base64.b64encode(self._repr_png_()).decode()
        dark = base64.b64encode(self.dark_png()).decode()
        return (
            f"{THEMES}<div class='npulab-light'>"
            f"<img alt='{text}' src='data:image/png;base64,{light}'></div>"
            f"<div class='npulab-dark' hidden>"
            f"<img alt='{text}' src='data:image/png;base64,{dark}'></div>"
        )

    def save(self, path: str | PathLike[str]) -> None:
        """Write the picture to a file; the suffix names the format."""
        self.figure.savefig(path, dpi=DPI)


def legend(figure: Figure, patches: list[Any], columns: int = 0, **options: Any) -> None:
    """Put a legend below the axes, in ``columns`` columns; 0 puts all patches in one row."""
    figure.legend(
        handles=patches, loc="outside lower center", ncols=columns or len(patches), **options
    )


def open_frame(ax: Any) -> None:
    ax.spines[["right", "top"]].set_visible(False)


def bare(ax: Any, label: str) -> None:
    ax.set_ylabel(label)
    open_frame(ax)
    ax.yaxis.get_major_locator().set_params(integer=True)


def write_values(ax: Any, values: Any, image: Any) -> None:
    """Write each value into its cell of an image; masked cells stay empty."""
    masked = np.ma.getmaskarray(values)
    for (row, column), value in np.ndenumerate(values):
        if masked[row, column]:
            continue
        text = str(value)
        if values.dtype.kind == "f":
            text = f"{value:.3g}"
        ink = "black"  # the cell of a NaN has no colour
        if not np.isnan(value):
            ink = ink_on(image.cmap(image.norm(value)))
        number = ax.text(column, row, text, ha="center", va="center", color=ink, fontsize=8)
        number.set_in_layout(False)  # measuring numbers took half the time of drawing
