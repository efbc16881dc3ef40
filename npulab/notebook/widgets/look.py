"""How the views look: what they share, and what each has of its own."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import anywidget

from npulab.captures.capture import ROWS_SHOWN

HERE = Path(__file__).parent


class Faced(anywidget.AnyWidget):
    """A view that shows the static face of its ``model`` where no browser runs it."""

    model: Any

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        data, metadata = super()._repr_mimebundle_(**kwargs)
        return {**data, "text/html": self.model._repr_html_()}, metadata


def styles(name: str) -> str:
    """The style sheet of a view: the shared rules, then its own from the file of that name."""
    return "".join((HERE / file).read_text(encoding="utf-8") for file in ("look.css", name))


def table_html(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of texts for a view's static face, cut to the rows that are shown."""
    rows = list(rows)
    cells = ["".join(f"<td style='text-align:left'>{html.escape(cell)}</td>" for cell in row)
             for row in rows[:ROWS_SHOWN - 2]]
    if len(rows) > len(cells):
        cells.append(f"<td colspan='{len(names)}'>… {len(rows) - len(cells)} more</td>")
    head = "".join(f"<th style='text-align:left'>{name}</th>" for name in names)
    return (f"<table style='font-family:monospace'><tr>{head}</tr>"
            f"{''.join(f'<tr>{row}</tr>' for row in cells)}</table>")
