"""The fields that differ between two captures, or two sets of captures, to filter and to step
through.

``DiffModel`` holds the state and all the logic and needs no browser; ``DiffView`` shows it.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from traitlets import Bool, List, Unicode, observe

from npulab.analysis.check import diff_buffers, differences
from npulab.analysis.edited import streams_differ
from npulab.captures.capture import Capture, CaptureSet
from npulab.notebook.widgets.diff_rows import DiffRow, captures_of, rows
from npulab.notebook.widgets.frame import RowsModel, View, assets, table_html
from npulab.support.text import plural

MOST_QUERY = 200  # at most this many letters of a query are used
FILTERS = ("addresses", "with a name", "of another name")
COLUMNS = ("register", "field", "bits", "a", "b", "xor", "meaning")


class DiffModel(RowsModel):
    """The fields that differ between two captures or two CaptureSets, sorted by place, with
    filters; it needs no browser.

    ``rows`` are all fields that differ. These can be set and observed: ``query`` (a name or a glob
    over field, register.field and block.register.field), ``unknown`` (True shows only fields that
    nobody named), ``addresses`` (False leaves out fields that point into memory) and ``selected``
    (the index of a shown row, at first of a field that is not an address; -1 if none is shown).
    ``shown`` (indices of rows), ``summary`` and ``hidden`` (the number of rows that each filter
    leaves out) follow. If jobs were put in, left out or moved, ``streams`` says so in one sentence,
    which begins ``summary``. Raises TypeError and ValueError as ``npulab.diff`` does, ValueError
    for an index outside.

    >>> from npulab.bits import RegisterMap
    >>> from npulab.capture import Job
    >>> relu = {"block": "NN", "register": "CFG", "field": "relu", "lsb": 24, "width": 1}
    >>> registers = RegisterMap([relu])
    >>> a, b = (Capture(name, "demo", "x", (Job("NN", [word]),), maps={"NN": registers})
    ...         for name, word in (("a", 0), ("b", 2 ** 24 + 1)))
    >>> model = DiffModel(a, b)
    >>> model.unknown = True
    >>> model.shown
    [0]
    >>> model.selection.line.split(" · ")[:4]
    ['job 0 NN CFG w0_0_24 [23:0]', 'a 0x0', 'b 0x1', 'bits that differ 0']
    >>> model.hidden
    {'with a name': 1}
    """

    query = Unicode()
    unknown = Bool()
    addresses = Bool(True)

    def __init__(self, a: Capture | CaptureSet, b: Capture | CaptureSet) -> None:
        for side in (a, b):
            if not isinstance(side, Capture | CaptureSet):
                raise TypeError(
                    f"diff: got {type(side).__name__}, allowed is a Capture or CaptureSet, as "
                    "npulab.load and load_all give"
                )
        self.a, self.b = a, b
        self.rows, self.equal = rows(a, b)
        self.buffers = []
        self.streams = ""  # a sentence if jobs were put in, left out or moved
        if isinstance(a, Capture) and isinstance(b, Capture):
            if self.rows and self.rows[0].of_job:  # rows of whole jobs come first
                self.streams = streams_differ(differences(a, b), len(a.jobs))
            for row in diff_buffers(a, b).itertuples():
                count = plural(row.bytes, "byte")
                self.buffers.append(f"{row.buffer}: {count} from {row.first:#x} on")
        super().__init__()
        self._filter(None)

    # ---- the state as text ----

    @property
    def title(self) -> str:
        return f"a {_name(self.a)}, b {_name(self.b)}"

    @property
    def simulated(self) -> bool:
        captures = (*captures_of(self.a), *captures_of(self.b))
        return any(capture.simulated for capture in captures)

    @property
    def hidden(self) -> dict[str, int]:
        """The number of rows that each filter leaves out, by the filter's name; a row counts for
        the first filter that leaves it out.
        """
        counts = Counter(map(self._filter_of, self.rows))
        return {name: counts[name] for name in FILTERS if counts[name]}

    def to_markdown(self) -> str:
        """Return Markdown: a sentence, which also counts the hidden rows, and a table of the rows
        that are shown.

        >>> print(DiffModel(CaptureSet(()), CaptureSet(())).to_markdown())
        a 0 captures, b 0 captures: 0 fields differ, 0 are equal
        """
        title = self.title
        if self.simulated:
            title += " (simulated)"
        lines = [f"{_escaped(title)}: {_escaped(self.summary)}"]
        if not self.shown:
            return lines[0]
        table = [list(self.columns)]
        for cells in self._cells(self.shown):
            table.append([*map(_escaped, cells)])
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        table.insert(1, ["-" * width for width in widths])
        lines.append("")
        for row in table:
            lines.append(f"| {' | '.join(map(str.ljust, row, widths))} |")
        return "\n".join(lines)

    @property
    def columns(self) -> tuple[str, ...]:
        if any(row.job != "0" for row in self.rows):
            return "job", *COLUMNS
        return COLUMNS

    def _cells(self, indices: Iterable[int]) -> list[list[str]]:
        table = []
        for index in indices:
            row = self.rows[index]
            hexes = row.hex_a, row.hex_b, row.xor_text
            cells = [row.job, row.where, row.field, row.bits, *hexes, row.meaning]
            table.append(cells[-len(self.columns) :])
        return table

    # ---- filters ----

    def _filter_of(self, row: DiffRow) -> str:
        """Return the name of the first filter that leaves the row out; "" if the row is shown."""
        if row.address and not self.addresses:
            return "addresses"
        if self.unknown and not row.automatic:
            return "with a name"
        if self.query.strip() and not row.matches(self.query[:MOST_QUERY]):
            return "of another name"
        return ""

    @observe("query", "unknown", "addresses")
    def _filter(self, _: Any) -> None:
        self.show_rows([index for index, row in enumerate(self.rows) if not self._filter_of(row)])

    def _first(self) -> int:
        """Return the index of the first shown row that is not an address, or else of the first
        shown row; -1 if no row is shown.
        """
        for index in self.shown:
            if not self.rows[index].address:
                return index
        return super()._first()

    def _summary(self) -> str:
        addresses = sum(row.address for row in self.rows)
        fields = sum(not (row.address or row.of_job) for row in self.rows)
        counts = f"{fields} fields differ"
        if fields == 1:
            counts = "1 field differs"
        if addresses == 1:
            counts += ", 1 address"
        elif addresses:
            counts += f", {addresses} addresses"
        parts = [f"{self.streams or counts}, {self.equal} are equal"]
        hidden = ", ".join(f"{name} {count}" for name, count in self.hidden.items())
        if hidden:
            parts.append(f"{len(self.shown)} shown, hidden: {hidden}")
        parts += [f"buffer {text}" for text in self.buffers]
        return "; ".join(parts)

    def _repr_html_(self) -> str:
        return self.heading_html() + table_html(self.columns, self._cells(self.shown))


class DiffView(View):
    """The fields that differ between two captures, bit by bit, addresses last: arrows step through
    the fields, / filters by name, u shows only fields that nobody named, a shows or hides
    addresses, c copies the table as Markdown.

    ``query``, ``unknown``, ``addresses`` and ``selected`` are the model's and can be set and
    observed; ``shown``, ``summary`` and ``selection`` follow them. Everything else is on ``model``.
    """

    _esm, _css = assets("diff_view")
    _linked = ("query", "unknown", "addresses", "selected")
    _of, _followed, _fixed = DiffModel, ("shown",), ("columns",)

    rows: List[Any] = List()
    markdown = Unicode()
    streams = Bool()

    def __init__(self, a: Capture | CaptureSet, b: Capture | CaptureSet) -> None:
        model = DiffModel(a, b)
        rows = []
        for row, cells in zip(model.rows, model._cells(range(model.count)), strict=True):
            shown = {
                name: getattr(row, name) for name in ("line", "address", "automatic", "binary")
            }
            rows.append({"cells": cells, **shown})
        super().__init__(model, rows=rows, streams=bool(model.streams))
        model.observe(self._copy, ["summary", "shown"])
        self._copy(None)

    def _copy(self, _: Any) -> None:
        self.markdown = self.model.to_markdown()


def _escaped(text: str) -> str:
    """Return a text as one line, with the signs of Markdown and HTML escaped.

    >>> print(_escaped("a|b <c> `d` _pad_ in_h"))
    a\\|b &lt;c&gt; \\`d\\` \\_pad\\_ in_h
    """
    out = html.escape(" ".join(text.split()), quote=False)
    for letter in "\\`*~|":
        out = out.replace(letter, f"\\{letter}")
    # an underscore inside a word needs no escape
    out = re.sub(r"(?<![A-Za-z0-9_])_|_(?![A-Za-z0-9_])", r"\\_", out)
    return out.replace("](", "]\\(")


def _name(side: Capture | CaptureSet) -> str:
    if isinstance(side, Capture):
        return f"{side.target}/{side.name}"
    return plural(len(side), "capture")
