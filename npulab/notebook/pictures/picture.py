"""What every picture has: the sentence with its number, and the same bytes on every run."""

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

from matplotlib import rc_context
from matplotlib.figure import Figure

from npulab.notebook.pictures.dark import darkened
from npulab.support.answers import attended

DPI = 100
STYLE: Any = {
    "font.size": 8,
    "axes.titlesize": 9,
    "figure.facecolor": "white",
    "image.interpolation": "nearest",
}
WRONG, RIGHT = "#c4501b", "#2b6ca3"


# what JupyterLab and VS Code say of their theme
DARK_PAGES = ("[data-jp-theme-light='false']", ".vscode-dark")
RULES = ".npulab-light {{display: none}} {page} .npulab-dark {{display: block}}"
THEMES = f"<style>{' '.join(f'{page} {RULES.format(page=page)}' for page in DARK_PAGES)}</style>"


@contextmanager
def canvas(size: tuple[float, float], *panels: int, **options: Any) -> Iterator[tuple[Figure, Any]]:
    """A figure of so many inches and its axes, as ``Figure.subplots`` gives them; what is drawn on
    it meanwhile is in npulab's style."""
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
        return self._drawn()  # once: the layout moves by a pixel when a figure is drawn again

    def _repr_png_(self) -> bytes:
        return self._png

    def dark_png(self) -> bytes:
        """The same picture for a dark page."""
        with darkened(self.figure):
            return self._drawn()

    def _repr_html_(self) -> str | None:
        """Both pictures in a lab; where nobody sits at the notebook, the light one alone."""
        if attended():
            return self.both_html()
        return None

    def both_html(self) -> str:
        """Both, of which a lab shows the one of its theme."""
        images = [
            (kind, extra, base64.b64encode(data).decode())
            for kind, extra, data in (
                ("light", "", self._repr_png_()),
                ("dark", " hidden", self.dark_png()),
            )
        ]
        text = html.escape(self.text, quote=True)
        return THEMES + "".join(
            f"<div class='npulab-{kind}'{extra}>"
            f"<img alt='{text}' src='data:image/png;base64,{data}'></div>"
            for kind, extra, data in images
        )

    def save(self, path: str | PathLike[str]) -> None:
        """Write it; the suffix says the format."""
        self.figure.savefig(path, dpi=DPI)


def bare(ax: Any, label: str) -> None:
    ax.set_ylabel(label)
    ax.spines[["right", "top"]].set_visible(False)
    ax.yaxis.get_major_locator().set_params(integer=True)
