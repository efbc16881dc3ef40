"""What every view is made of: a model that works anywhere, and a thin anywidget that shows it."""

from __future__ import annotations

import html
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from npulab.captures.capture import ROWS_SHOWN
from npulab.notebook.signs import VARIABLES

HERE = Path(__file__).parent


# It is a trait type, not a @validate method: while a message of several traits is taken in,
# traitlets runs those methods last and takes back only what TraitError refuses.
class Numbers(traitlets.TraitType[Any, Any]):
    """A whole number, or a tuple of them, each in a range that its owner knows.

    ``form`` names them, as in ``(word, bit)``; ``ranges`` is called with the owner and the numbers
    and gives (least, end) of each.  With ``empty`` an empty tuple is allowed, too.  Raises
    ValueError for anything else.
    """

    def __init__(
        self,
        form: str,
        default: Any,
        ranges: Callable[..., Iterable[tuple[int, int]]],
        empty: bool = False,
    ) -> None:
        super().__init__(default)
        self.form, self.ranges, self.empty = form, ranges, empty

    def validate(self, obj: Any, value: Any) -> Any:
        return self.check(self.name, obj, value)

    def check(self, name: str | None, owner: Any, value: Any) -> Any:
        """The numbers as Python has them; ``name`` is what the message calls the value."""
        names, single = re.findall(r"\w+", self.form), "(" not in self.form
        numbers: tuple[int, ...] | None = None
        with suppress(TypeError):
            numbers = tuple(operator.index(number) for number in ([value] if single else value))
        if numbers == () and self.empty:
            return ()
        if numbers is None or len(numbers) != len(names):
            raise ValueError(f"{name}: got {value!r:.80}, allowed is {self.form}")
        ranges = self.ranges(owner, *numbers)
        for what, number, (least, end) in zip(names, numbers, ranges, strict=True):
            if not least <= number < end:
                if single:
                    of = ""
                else:
                    of = f" of {numbers}"
                raise ValueError(
                    f"{name}: got {what} {number}{of}, allowed is {least} to {end - 1}"
                )
        if single:
            return numbers[0]
        return numbers


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
        if self.simulated:
            simulated = ", <b>simulated</b>"
        else:
            simulated = ""
        shown = html.escape(self.summary if text is None else text)
        return f"<p><b>{html.escape(self.title)}</b>{simulated}; {shown}</p>"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.line})"


class View(anywidget.AnyWidget):
    """A view of a ``model``, whose static face stands where no browser runs the view; what that one
    does not have is of one of ``more``.

    ``_linked`` names the traits that the page may set, ``_followed`` those that it only reads,
    ``_together`` those of them that it gets in one message when the model's ``turn`` changes.  They
    are those of the class of the model, ``_of``, and the page has all that the view does not
    declare itself, without ``_kept``.  A public attribute that the view does not have is the
    model's, too.
    """

    title = traitlets.Unicode().tag(sync=True)
    summary = traitlets.Unicode().tag(sync=True)
    simulated = traitlets.Bool().tag(sync=True)
    model: Any = None  # until it is made, as where its arguments are refused
    _of: type[traitlets.HasTraits]
    _linked: tuple[str, ...] = ()
    _followed: tuple[str, ...] = ()
    _together: tuple[str, ...] = ()
    _kept: tuple[str, ...] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        for name in (*cls._linked, *cls._followed, *cls._together):
            if not hasattr(cls, name):
                trait = copy(getattr(cls._of, name))
                trait.metadata = {**trait.metadata, "sync": name not in cls._kept}
                trait.read_only = False  # for the link; the page's word is not asked for
                trait.class_init(cls, name)
                setattr(cls, name, trait)
        super().__init_subclass__(**kwargs)

    def __init__(self, model: Model, *more: Model, **traits: Any) -> None:
        self.model = model
        of = {
            name: next((one for one in (model, *more) if one.has_trait(name)), model)
            for name in ("title", "summary", *self._linked, *self._followed, *self._together)
        }
        # what a linked trait may be can hang on the others, so it comes last
        given = {
            name: getattr(of[name], name)
            for name in (*self._together, *self._followed, *self._linked)
        }
        super().__init__(
            title=model.title, summary=model.summary, simulated=model.simulated, **traits, **given
        )
        for name in self._linked:
            traitlets.link((of[name], name), (self, name))
        for name in ("title", "summary", *self._followed):
            if of[name].has_trait(name):
                traitlets.dlink((of[name], name), (self, name))
        if self._together:
            model.observe(self._turned, "turn")
        self.on_msg(self._receive)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or self.model is None:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(self.model, name)

    def _turned(self, _: Any) -> None:
        with self.hold_sync():
            for name in self._together:
                setattr(self, name, getattr(self.model, name))

    def _receive(self, _: Any, content: Any, __: Any) -> None:
        """What the page sends goes to ``press`` of the model."""
        self.model.press(content)

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        data, metadata = super()._repr_mimebundle_(**kwargs) or ({}, {})
        return {**data, "text/html": self.model._repr_html_()}, metadata

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model.line})"


def assets(*names: str) -> tuple[str, str]:
    """The script and the style sheet of a view: the colours of differences, what all share, then
    each
    ``name.js`` and ``name.css`` there is."""
    script, style = (
        "".join(
            path.read_text(encoding="utf-8")
            for name in ("frame", *names)
            if (path := HERE / f"{name}.{kind}").exists()
        )
        for kind in ("js", "css")
    )
    return script, VARIABLES + style


def table_html(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of texts for a view's static face, cut to the rows that are shown."""
    rows = list(rows)
    cells = [
        "".join(f"<td style='text-align:left'>{html.escape(cell)}</td>" for cell in row)
        for row in rows[: ROWS_SHOWN - 2]
    ]
    if len(rows) > len(cells):
        cells.append(f"<td colspan='{len(names)}'>… {len(rows) - len(cells)} more</td>")
    head = "".join(f"<th style='text-align:left'>{name}</th>" for name in names)
    return (
        f"<table style='font-family:monospace'><tr>{head}</tr>"
        f"{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"
    )
