"""Answers on a terminal: as wide as it is, coloured, a page at a time."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

from npulab.support.answers import Part, Table, shown, tone
from npulab.support.text import cell, visible

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

STYLES = {"good": "green", "bad": "bold red", "open": "yellow", "quiet": "dim"}
GAP = 2  # columns between two cells
LEAST = 6  # columns that a cell keeps on a narrow terminal
PROSE = 20  # columns from which on a cell is broken between words
LESS = "-FRX"  # as git has it: no pager for what fits, colours, and the text stays


def print_parts(parts: Sequence[Part], console: Console | None = None) -> None:
    """Print lines and tables on a terminal; through a pager where they are taller than it is."""
    from rich.console import Console, Group
    from rich.text import Text

    console = console or Console(highlight=False)
    body = Group(*(_table(part, console.width) if isinstance(part, Table) else Text(visible(part))
                   for part in shown(parts)))
    tall = len(console.render_lines(body, pad=False)) >= console.height and sys.stdin.isatty()
    os.environ.setdefault("LESS", LESS)
    with console.pager(styles=not console.no_color) if tall else nullcontext():
        console.print(body)


def widths(natural: Sequence[int], words: Sequence[int], most: int) -> list[int]:
    """Widths of columns that fit into ``most`` with their gaps.

    ``natural`` is the longest cell of each, ``words`` the longest word.  The widest ones give way
    first, and words are broken only where whole ones do not fit.

    >>> widths([4, 30, 90], [4, 30, 9], 60), widths([4, 30, 90], [4, 30, 9], 40)
    ([4, 30, 22], [4, 21, 9])
    """
    free = most - GAP * (len(natural) - 1)
    kept = _capped(natural, words, free)
    return kept if sum(kept) <= free else _capped(kept, [LEAST] * len(kept), free)


def _capped(wide: Sequence[int], least: Sequence[int], free: int) -> list[int]:
    """Widths of which none goes below its least, all others below one limit."""
    limit = max(wide, default=0)
    while limit > LEAST and sum(map(max, least, (min(width, limit) for width in wide))) > free:
        limit -= 1
    return [min(width, max(at_least, limit)) for width, at_least in zip(wide, least, strict=True)]


def _table(table: Table, most: int) -> RenderableType:
    """A table that fits; where it is wider, what all rows have in common stands in one line."""
    from rich.console import Group
    from rich.table import Table as RichTable
    from rich.text import Text

    texts = {name: [visible(cell(row.get(name))) for row in table.rows] for name in table.names}
    wide = sum(max(map(len, (name, *column))) + GAP for name, column in texts.items()) - GAP > most
    common = [name for name, column in texts.items() if wide and len(column) > 1 and len({*column}) == 1]
    names = [name for name in table.names if name not in common] or [*table.names]
    cells = [*zip(*(texts[name] for name in names), strict=True)]
    columns = [(name, *texts[name]) for name in names]
    natural = [max(map(len, column)) for column in columns]
    words = [width if width <= PROSE else max(len(word) for text in column for word in text.split(" "))
             for column, width in zip(columns, natural, strict=True)]
    out = RichTable(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="bold")
    for name, width in zip(names, widths(natural, words, most), strict=True):
        out.add_column(Text(name), width=width, overflow="fold")
    for row, line in zip(table.rows, cells, strict=True):
        out.add_row(*(Text(text, STYLES.get(tone(name, row.get(name)), ""))
                      for name, text in zip(names, line, strict=True)))
    if len(names) == len(table.names):
        return out
    return Group(Text(", ".join(f"{name} {texts[name][0]}" for name in common), "dim"), out)


class Bar(Protocol):
    """Progress of long work."""

    def __call__(self, done: int, total: int | None = None, text: str = "") -> None: ...


@contextmanager
def progress(unit: str, hidden: bool = False) -> Iterator[Bar]:
    """A line on stderr that says how far work is and how long it takes yet; nothing if that is no
    terminal, or ``hidden`` since a person types there."""
    if hidden or not sys.stderr.isatty():
        yield lambda done, total=None, text="": None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

    columns: tuple[Any, ...] = (SpinnerColumn(), TextColumn("{task.fields[count]}"), BarColumn(bar_width=24),
                                TimeRemainingColumn(elapsed_when_finished=True), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown_progress:
        task = shown_progress.add_task("", total=None, count=f"0 {unit}s")

        def bar(done: int, total: int | None = None, text: str = "") -> None:
            of = f" of {total}" if total is not None else ""
            shown_progress.update(task, completed=done, total=total, description=text.replace("[", r"\["),
                                  count=f"{done}{of} {unit}s")
        yield bar
