"""The base of every view: a model that works without a browser, and an anywidget that shows it."""

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
from traitlets import Bool, HasTraits, Int, List, TraitType, Unicode, dlink, link, observe

from npulab.captures.capture import ROWS_SHOWN
from npulab.notebook.signs import VARIABLES
from npulab.support.refuse import near

HERE = Path(__file__).parent
MOST_NAMED = 12  # an error lists at most this many names


# ``Numbers`` is a trait type and has no @validate method: traitlets runs such a method only after
# all traits of a message are set, and takes a value back only if the method raised TraitError.
class Numbers(TraitType[Any, Any]):
    """A trait for a whole number, or a tuple of whole numbers, each in a range that the trait's
    owner gives.

    ``form`` names the numbers, as in ``(word, bit)``; ``ranges`` is called with the owner and the
    numbers, and returns (least, end) for each number. With ``empty`` an empty tuple is allowed,
    too. Raises ValueError for any other value.
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
        """Return the value as int or tuple of ints; raises ValueError, which begins with ``name``,
        for a value that is not allowed.
        """
        names = re.findall(r"\w+", self.form)
        single = "(" not in self.form
        given = value
        if single:
            given = [value]
        numbers: tuple[int, ...] | None = None
        with suppress(TypeError):
            numbers = tuple(map(operator.index, given))
        if numbers == () and self.empty:
            return ()
        if numbers is None or len(numbers) != len(names):
            raise ValueError(f"{name}: got {value!r:.80}, allowed is {self.form}")
        of = ""
        if not single:
            of = f" of {numbers}"
        ranges = self.ranges(owner, *numbers)
        for part, number, (least, end) in zip(names, numbers, ranges, strict=True):
            if not least <= number < end:
                raise ValueError(
                    f"{name}: got {part} {number}{of}, allowed is {least} to {end - 1}"
                )
        if single:
            return numbers[0]
        return numbers


class NameIn(TraitType[str, Any]):
    """A trait for one of the names that an attribute of the trait's owner has; "" means no name."""

    default_value = ""

    def __init__(self, attribute: str) -> None:
        super().__init__()
        self.attribute = attribute

    def validate(self, obj: Any, value: Any) -> str:
        names = list(getattr(obj, self.attribute))
        if value != "" and value not in names:
            shown = ", ".join(names[:MOST_NAMED])
            if len(names) > MOST_NAMED:
                shown += ", …"
            raise LookupError(
                f"{self.name}: got {value!r:.80}, allowed are {shown}{near(str(value), names)}"
            )
        return str(value)


class Model(HasTraits):
    """The state and the logic of a view.

    Subclasses have a ``title``, a ``summary``, and ``simulated``, True if they show simulated
    captures.
    """

    title: Any
    summary: Any
    simulated: Any

    @property
    def line(self) -> str:
        """The title and the summary in one line, which ``repr`` shows."""
        return f"{self.marked_title}: {self.summary}"

    @property
    def marked_title(self) -> str:
        """The title, which also says if the captures are simulated."""
        if self.simulated:
            return f"{self.title}, simulated"
        return str(self.title)

    def heading_html(self, text: str | None = None) -> str:
        """Return the first paragraph of the view's HTML: the title and ``text``, by default the
        summary.
        """
        heading = f"<b>{html.escape(self.title)}</b>"
        if self.simulated:
            heading += ", <b>simulated</b>"
        if text is None:
            text = self.summary
        return f"<p>{heading}; {html.escape(text)}</p>"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.line})"


class ActingModel(Model):
    """A model that acts on messages of its page; ``status`` reports the last message's result."""

    status = Unicode()

    def press(self, message: Any) -> None:
        """Act on a message of the page and report the result in ``status``. If the message is
        refused, ``status`` has the error, which is not raised.
        """
        self.status = ""  # observers then see the next status even if it has the same text
        try:
            self.status = self._act(message)
        except (ValueError, LookupError, OverflowError, OSError) as error:
            self.status = f"refused: {error}"

    def _act(self, message: Any) -> str:
        raise NotImplementedError


class RowsModel(Model):
    """A model of ``rows``: ``shown`` has the indices of the rows that its filters keep,
    ``selected`` is one of these indices, or -1 if no row is shown.
    """

    rows: Sequence[Any]
    selected = Numbers("row", -1, lambda owner, _: [(-1, owner.count)])
    shown = List(Int(), read_only=True)
    summary = Unicode(read_only=True)

    @property
    def count(self) -> int:
        """The number of rows, shown or not."""
        return len(self.rows)

    @property
    def selection(self) -> Any:
        """The selected row; None if no row is shown."""
        if self.selected < 0:
            return None
        return self.rows[self.selected]

    def show_rows(self, shown: list[int]) -> None:
        """Show the rows of these indices and no others."""
        self.set_trait("shown", shown)
        self.set_trait("summary", self._summary())
        self._choose(None)

    @observe("selected")
    def _choose(self, _: Any) -> None:
        if self.selected not in self.shown:
            self.selected = self._first()

    def _first(self) -> int:
        """Return the index of the row that is selected at first, -1 if no row is shown."""
        return next(iter(self.shown), -1)

    def _summary(self) -> str:
        raise NotImplementedError


class View(anywidget.AnyWidget):
    """A view of a ``model``; where no browser runs the view, the model's HTML is shown.

    ``_linked`` names the traits that the page may set, ``_followed`` the traits that the page only
    reads, ``_together`` the traits that it reads in one message when the model's ``turn``
    changes. A view may have further models, ``more``; a trait comes from a further model only if
    ``model`` does not have the trait. ``_fixed`` names attributes of the model that the page gets
    as lists when the view is made. Traits that the view does not declare are copied from ``_of``,
    the class of the model; the page gets all traits of the view except ``_kept``. A public
    attribute that the view does not have is looked up in the model.
    """

    title = Unicode().tag(sync=True)
    summary = Unicode().tag(sync=True)
    simulated = Bool().tag(sync=True)
    model: Any = None  # None until the view's model is made
    _of: type[HasTraits]
    _linked: tuple[str, ...] = ()
    _followed: tuple[str, ...] = ()
    _together: tuple[str, ...] = ()
    _fixed: tuple[str, ...] = ()
    _kept: tuple[str, ...] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        for declared in vars(cls).values():
            if isinstance(declared, TraitType):
                declared.tag(sync=True)
        for name in (*cls._linked, *cls._followed, *cls._together, *cls._fixed):
            if not hasattr(cls, name):
                trait: Any = List()
                if name not in cls._fixed:
                    trait = copy(getattr(cls._of, name))
                trait.metadata = {**trait.metadata, "sync": name not in cls._kept}
                # the link must set the trait; values that the page sends are ignored
                trait.read_only = False
                trait.class_init(cls, name)
                setattr(cls, name, trait)
        super().__init_subclass__(**kwargs)

    def __init__(self, model: Model, *more: Model, **traits: Any) -> None:
        self.model = model
        of = dict[str, Model]()
        given = {name: list(getattr(model, name)) for name in self._fixed}
        # linked traits come last, because their ranges can depend on other traits
        for name in (*self._together, *self._followed, *self._linked):
            of[name] = model
            for owner in (*reversed(more), model):
                if owner.has_trait(name):
                    of[name] = owner
            given[name] = getattr(of[name], name)
        super().__init__(
            title=model.title, summary=model.summary, simulated=model.simulated, **traits, **given
        )
        for name in self._linked:
            link((of[name], name), (self, name))
        for name in self._followed:
            dlink((of[name], name), (self, name))
        for name in ("title", "summary"):
            for owner in (model, *more):
                if owner.has_trait(name):
                    dlink((owner, name), (self, name))
                    break
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
        """Give a message of the page to ``press`` of the model."""
        self.model.press(content)

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        data, metadata = super()._repr_mimebundle_(**kwargs) or ({}, {})
        return {**data, "text/html": self.model._repr_html_()}, metadata

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model.line})"


def assets(*names: str) -> tuple[str, str]:
    """Return the script and the style sheet of a view as texts: the files ``frame``, which all
    views share, then the files of each name.

    The style sheet begins with variables for the colours of differences.
    """
    script, style = "", VARIABLES
    for name in ("frame", *names):
        script += (HERE / f"{name}.js").read_text(encoding="utf-8")
        sheet = HERE / f"{name}.css"
        if sheet.exists():
            style += sheet.read_text(encoding="utf-8")
    return script, style


def table_html(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of texts as HTML; if the rows are too many, the last row says how many are
    left out.
    """
    rows = list(rows)
    shown = rows[: ROWS_SHOWN - 2]
    head = "".join(f"<th style='text-align:left'>{name}</th>" for name in names)
    table = f"<table style='font-family:monospace'><tr>{head}</tr>"
    for row in shown:
        cells = "".join(f"<td style='text-align:left'>{html.escape(cell)}</td>" for cell in row)
        table += f"<tr>{cells}</tr>"
    if len(rows) > len(shown):
        more = len(rows) - len(shown)
        table += f"<tr><td colspan='{len(names)}'>… {more} more</td></tr>"
    return f"{table}</table>"
