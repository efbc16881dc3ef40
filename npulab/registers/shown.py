"""Tables for people: texts are whole and aligned left, addresses are in base 16."""

from __future__ import annotations

import html
from typing import Any

import pandas as pd

from npulab.support.text import part_said

MOST_ROWS = 60  # the most rows that are shown as HTML
# A key of ``attrs``: the fields that point into memory, each as (block, register, field).
ADDRESSES = "addresses"
# A key of ``attrs``: how many of how many jobs the table is about; absent if it is about all jobs.
LOOKED_AT = "looked_at"
FIELD = ["block", "register", "field"]
VALUES = {"raw", "value", "a", "b", "good", "bad"}  # the columns whose values may be addresses
NONE = "–"  # the text that is shown for a missing value
LEFT = " style='text-align:left'"


class Table(pd.DataFrame):  # type: ignore[misc]  # pandas has no types here
    """A DataFrame that shows its texts whole and aligned left; a selection from it does so too.

    Addresses are shown in base 16 but stay numbers. The column ``address`` says which rows are
    about an address; without that column, these are the rows whose field is in
    ``attrs["addresses"]``. A missing value is shown as a dash. ``attrs["looked_at"]`` says how many
    of the jobs the table is about; if it is there, a line below the table says the same.

    >>> Table({"field": ["output_address"], "a": [0x80001000], "address": [True]})
                field           a  address
    0  output_address  0x80001000     True
    """

    @property
    def _constructor(self) -> type[Table]:
        return Table

    def _shown(self) -> pd.DataFrame:
        """The rows as they are shown: addresses are texts, missing values are dashes."""
        frame, columns = pd.DataFrame(self).copy(), set(self.columns)
        if "address" in columns:
            rows = [value is True or value == 1 for value in frame["address"]]
        elif "field" in columns:
            keys = [name for name in FIELD if name in columns]
            columns_of = [FIELD.index(name) for name in keys]
            known = {tuple(place[n] for n in columns_of) for place in self.attrs.get(ADDRESSES, ())}
            rows = [place in known for place in frame[keys].itertuples(index=False, name=None)]
        else:
            rows = []
        if any(rows):
            for name in sorted(VALUES & columns):
                texts = [*frame[name]]
                for n, is_address in enumerate(rows):
                    if is_address:
                        texts[n] = _hex(texts[n])
                frame[name] = pd.Series(texts, frame.index, object)
        for number, (_, column) in enumerate(frame.items()):
            if column.dtype.kind in "Oi" and column.isna().any():
                frame.isetitem(number, column.astype(object).where(column.notna(), NONE))
        return frame

    def __repr__(self) -> str:
        with pd.option_context("display.max_colwidth", None):
            text = repr(self._shown())
        if self.attrs.get(LOOKED_AT):
            text += f"\n{part_said(self.attrs[LOOKED_AT])}"
        return text

    def _repr_html_(self) -> str:
        frame = self._shown()
        with pd.option_context("display.max_colwidth", None):
            rows = frame.to_html(max_rows=MOST_ROWS, border=0).split("<tr")
        texts = [dtype.kind == "O" for dtype in self.dtypes]
        text = "<tr".join(_aligned(row, texts) for row in rows)
        if self.attrs.get(LOOKED_AT):
            text += f"<p>{html.escape(part_said(self.attrs[LOOKED_AT]))}</p>"
        return text


def with_part(table: pd.DataFrame, *sources: Any) -> pd.DataFrame:
    """Return the table. If one of its sources (sweeps, laws) is about a part of the jobs only, a
    line below the returned table says how many of how many jobs these are."""
    for source in sources:
        if getattr(source, LOOKED_AT, ""):
            table = Table(table)
            table.attrs[LOOKED_AT] = source.looked_at
            return table
    return table


def _hex(value: Any) -> Any:
    if isinstance(value, list):
        return [_hex(item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:#x}"
    return value


def _aligned(row: str, texts: list[bool]) -> str:
    """Return a row of an HTML table in which the cells of text columns are aligned left; a row of
    column names is treated alike. ``texts`` says of each column whether it has texts.

    >>> _aligned("><td>a</td><td>1</td></tr>", [True, False])
    "><td style='text-align:left'>a</td><td>1</td></tr>"
    """
    tag = "<td" if "<td>" in row else "<th"
    before, *cells = row.split(f"{tag}>")
    # the first cells have the names of the rows, not values of columns
    first = len(cells) - len(texts)
    if first < 0:
        return row
    for cell, is_left in zip(cells, [False] * first + texts, strict=True):
        style = LEFT if is_left else ""
        before += f"{tag}{style}>{cell}"
    return before
