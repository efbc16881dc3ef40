"""What every view is made of: a model that works anywhere, and a thin anywidget that shows it."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from copy import copy
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from npulab.captures.capture import ROWS_SHOWN

HERE = Path(__file__).parent


class Model(traitlets.HasTraits):
    """The state and the logic of a view; subclasses have a ``title``, a ``summary`` and say whether
    what they show is ``simulated``."""

    title: Any
    summary: Any
    simulated: Any

    @property
    def line(self) -> str:
        """The state in one line, for ``repr``."""
        return f"{self.title}{', simulated' if self.simulated else ''}: {self.summary}"

    def heading_html(self, text: str | None = None) -> str:
        """The heading of the static face, a paragraph with ``text`` (default: the summary)."""
        simulated = ", <b>simulated</b>" if self.simulated else ""
        shown = html.escape(self.summary if text is None else text)
        return f"<p><b>{html.escape(self.title)}</b>{simulated}; {shown}</p>"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.line})"


class View(anywidget.AnyWidget):
    """A view of a ``model``, whose static face stands where no browser runs the view.

    ``_linked`` names the traits that the page may set, ``_followed`` those that it only reads; both
    are those of the class of the model, ``_of``, and the page has all that the view does not
    declare itself.  A public attribute that the view does not have is the model's, too.
    """

    title = traitlets.Unicode().tag(sync=True)
    summary = traitlets.Unicode().tag(sync=True)
    simulated = traitlets.Bool().tag(sync=True)
    model: Any = None  # until it is made, as where its arguments are refused
    _of: type[traitlets.HasTraits]
    _linked: tuple[str, ...] = ()
    _followed: tuple[str, ...] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        for name in (*cls._linked, *cls._followed):
            if not hasattr(cls, name):
                trait = copy(getattr(cls._of, name))
                trait.metadata = {**trait.metadata, "sync": True}
                trait.read_only = False  # for the link; the page's word is not asked for
                trait.class_init(cls, name)
                setattr(cls, name, trait)
        super().__init_subclass__(**kwargs)

    def __init__(self, model: Model, **traits: Any) -> None:
        self.model = model
        # what a linked trait may be can hang on the others, so it comes last
        super().__init__(title=model.title, summary=model.summary, simulated=model.simulated, **traits,
                         **{name: getattr(model, name) for name in self._linked})
        for name in self._linked:
            traitlets.link((model, name), (self, name))
        for name in ("title", "summary", *self._followed):
            if model.has_trait(name):
                traitlets.dlink((model, name), (self, name))
        self.on_msg(self._receive)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or self.model is None:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(self.model, name)

    def _receive(self, _: Any, content: Any, __: Any) -> None:
        """What the page sends goes to ``press`` of the model."""
        self.model.press(content)

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        data, metadata = super()._repr_mimebundle_(**kwargs)
        return {**data, "text/html": self.model._repr_html_()}, metadata

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model.line})"


def assets(*names: str) -> tuple[str, str]:
    """The script and the style sheet of a view: what all share, then each ``name.js`` and
    ``name.css`` there is."""
    script, style = ("".join(path.read_text(encoding="utf-8") for name in ("frame", *names)
                             if (path := HERE / f"{name}.{kind}").exists()) for kind in ("js", "css"))
    return script, style


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
