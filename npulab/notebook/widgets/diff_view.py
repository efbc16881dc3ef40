"""The fields that differ between two captures, or two sets of them, to filter and to go through.

``DiffModel`` holds the state and all the logic and needs no browser; ``DiffView`` shows it.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from typing import Any

import traitlets

from npulab.analysis.check import diff_buffers
from npulab.captures.capture import Capture, CaptureSet
from npulab.notebook.widgets.diff_rows import DiffRow, rows
from npulab.notebook.widgets.frame import Model, Numbers, View, assets, table_html

MOST_QUERY = 200  # letters
COLUMNS = ("register", "field", "bits", "a", "b", "xor", "meaning")


class DiffModel(Model):
    """The fields that differ between two captures or two CaptureSets, by place, with filters; it
    needs no browser.

    ``rows`` are all of them. Can be set and observed: ``query`` (a name or a glob over field,
    register.field and block.register.field), ``unknown`` (only fields that nobody named),
    ``addresses`` (False leaves out those that point into memory) and ``selected`` (the index of a
    row, -1 none; always one that is shown, at first one that is no address). ``shown`` (indices),
    ``summary`` and ``hidden`` (rows that each filter leaves out) follow. Raises TypeError and
    ValueError as ``npulab.diff`` does, ValueError for an index outside.

    >>> from npulab.bits import RegisterMap
    >>> from npulab.capture import Job
    >>> registers = RegisterMap([{"block": "NN", "register": "CFG", "field": "relu", "lsb": 24, "width": 1}])
    >>> a, b = (Capture(name, "demo", "x", (Job("NN", [word]),), maps={"NN": registers})
    ...         for name, word in (("a", 0), ("b", 2 ** 24 + 1)))
    >>> model = DiffModel(a, b)
    >>> model.unknown = True
    >>> [model.rows[index].line for index in model.shown]
    ['job 0 NN CFG w0_0_24 [23:0] · a 0x0 = 0 · b 0x1 = 1 · bits that differ 0 · nobody named it · evidence unknown']
    >>> model.hidden
    {'with a name': 1}
    """

    query = traitlets.Unicode()
    unknown = traitlets.Bool()
    addresses = traitlets.Bool(True)
    selected = Numbers("row", -1, lambda owner, _: [(-1, owner.count)])
    shown = traitlets.List(traitlets.Int(), read_only=True)
    summary = traitlets.Unicode(read_only=True)

    def __init__(self, a: Capture | CaptureSet, b: Capture | CaptureSet) -> None:
        for one in (a, b):
            if not isinstance(one, Capture | CaptureSet):
                raise TypeError(
                    f"diff: got {type(one).__name__}, allowed is a Capture or CaptureSet, as "
                    "npulab.load "
                    "and load_all give"
                )
        self.a, self.b = a, b
        self.rows, self.equal = rows(a, b)
        if isinstance(a, Capture) and isinstance(b, Capture):
            self.buffers = [
                f"{row.buffer}: {row.bytes} byte{'s' * (row.bytes != 1)} from {row.first:#x} on"
                for row in diff_buffers(a, b).itertuples()
            ]
        else:
            self.buffers = []
        super().__init__()
        self._filter(None)

    # ---- what it says ----

    @property
    def count(self) -> int:
        """Fields that differ."""
        return len(self.rows)

    @property
    def title(self) -> str:
        return f"a {_name(self.a)}, b {_name(self.b)}"

    @property
    def simulated(self) -> bool:
        return any(
            one.simulated
            for side in (self.a, self.b)
            for one in ([side] if isinstance(side, Capture) else side)
        )

    @property
    def selection(self) -> DiffRow | None:
        """The row that is selected."""
        if self.selected < 0:
            return None
        return self.rows[self.selected]

    @property
    def hidden(self) -> dict[str, int]:
        """How many rows are left out, by the first filter that does it."""
        counts = dict.fromkeys(("addresses", "with a name", "of another name"), 0)
        for row in self.rows:
            if why := self._why(row):
                counts[why] += 1
        return {why: count for why, count in counts.items() if count}

    def to_markdown(self) -> str:
        """The rows that are shown as a Markdown table, whatever their names; what is left out as a
        count.

        >>> print(DiffModel(CaptureSet(()), CaptureSet(())).to_markdown())
        a 0 captures, b 0 captures: 0 fields differ, 0 are equal
        """
        cells = [[_plain(cell) for cell in row] for row in self._cells(self.shown)]
        title = f"{self.title}{' (simulated)' if self.simulated else ''}"
        lines = [f"{_plain(title)}: {_plain(self.summary)}"]
        if cells:
            table = [list(self.columns), *cells]
            wide = [max(len(row[n]) for row in table) for n in range(len(self.columns))]
            padded = [[cell.ljust(w) for cell, w in zip(row, wide, strict=True)] for row in table]
            padded.insert(1, ["-" * w for w in wide])
            lines += ["", *(f"| {' | '.join(row)} |" for row in padded)]
        return "\n".join(lines)

    @property
    def columns(self) -> tuple[str, ...]:
        if any(row.job != "0" for row in self.rows):
            return "job", *COLUMNS
        return COLUMNS

    def _cells(self, indices: Iterable[int]) -> list[list[str]]:
        out = []
        for row in (self.rows[index] for index in indices):
            cells = [
                row.where,
                row.field,
                row.bits,
                row.hex_a,
                row.hex_b,
                row.xor_text,
                row.meaning,
            ]
            out.append([row.job, *cells] if len(self.columns) > len(cells) else cells)
        return out

    # ---- what follows ----

    def _why(self, row: DiffRow) -> str:
        """Which filter leaves a row out, "" for none."""
        if row.address and not self.addresses:
            return "addresses"
        if self.unknown and not row.automatic:
            return "with a name"
        if self.query.strip() and not row.matches(self.query[:MOST_QUERY]):
            return "of another name"
        return ""

    @traitlets.observe("query", "unknown", "addresses")
    def _filter(self, _: Any) -> None:
        self.set_trait(
            "shown", [index for index, row in enumerate(self.rows) if not self._why(row)]
        )
        addresses = sum(row.address for row in self.rows)
        fields = self.count - addresses
        counts = f"{fields} field{'s' * (fields != 1)} differ{'s' * (fields == 1)}, "
        if addresses:
            counts += f"{addresses} address{'es' * (addresses != 1)}, "
        hidden = ", ".join(f"{why} {count}" for why, count in self.hidden.items())
        if hidden:
            hidden = f"{len(self.shown)} shown, hidden: {hidden}"
        else:
            hidden = ""
        self.set_trait(
            "summary",
            "; ".join(
                filter(
                    None,
                    [
                        f"{counts}{self.equal} are equal",
                        hidden,
                        *(f"buffer {one}" for one in self.buffers),
                    ],
                )
            ),
        )
        if self.selected not in self.shown:
            self.selected = self._first()

    @traitlets.observe("selected")
    def _choose(self, change: Any) -> None:
        if change.new not in self.shown and self.shown:
            self.selected = self._first()

    def _first(self) -> int:
        """The first row that is shown and no address; else the first, -1 for none."""
        return next(
            (index for index in self.shown if not self.rows[index].address),
            next(iter(self.shown), -1),
        )

    def _repr_html_(self) -> str:
        return self.heading_html() + table_html(self.columns, self._cells(self.shown))


class DiffView(View):
    """The fields that differ between two captures, bit by bit, addresses below all others: arrows
    go through them, / filters by name, u leaves those that nobody named, a takes addresses in or
    out, c copies the table as Markdown.

    ``query``, ``unknown``, ``addresses`` and ``selected`` are the model's and can be set and
    observed; ``shown``, ``summary`` and ``selection`` follow them.  Everything else is on
    ``model``.
    """

    _esm, _css = assets("diff_view")
    _linked = ("query", "unknown", "addresses", "selected")
    _of, _followed = DiffModel, ("shown",)

    columns = traitlets.List(traitlets.Unicode()).tag(sync=True)
    rows: traitlets.List[Any] = traitlets.List().tag(sync=True)
    markdown = traitlets.Unicode().tag(sync=True)

    def __init__(self, a: Capture | CaptureSet, b: Capture | CaptureSet) -> None:
        model = DiffModel(a, b)
        rows = [
            {
                "cells": cells,
                "line": row.line,
                "address": row.address,
                "automatic": row.automatic,
                "binary": row.binary,
            }
            for row, cells in zip(model.rows, model._cells(range(model.count)), strict=True)
        ]
        super().__init__(model, columns=list(model.columns), rows=rows)
        model.observe(self._copy, ["summary", "shown"])
        self._copy(None)

    def _copy(self, _: Any) -> None:
        self.markdown = self.model.to_markdown()


def _plain(text: str) -> str:
    """A text that Markdown shows as it is.

    >>> print(_plain("a|b <c> `d` _pad_ in_h"))
    a\\|b &lt;c&gt; \\`d\\` \\_pad\\_ in_h
    """
    out = html.escape(" ".join(text.split()), quote=False)
    for letter in "\\`*~|":
        out = out.replace(letter, f"\\{letter}")
    # inside of a word an underscore is one
    out = re.sub(r"(?<![A-Za-z0-9_])_|_(?![A-Za-z0-9_])", r"\\_", out)
    return out.replace("](", "]\\(")


def _name(side: Capture | CaptureSet) -> str:
    if isinstance(side, Capture):
        return f"{side.target}/{side.name}"
    return f"{len(side)} capture{'s' * (len(side) != 1)}"
