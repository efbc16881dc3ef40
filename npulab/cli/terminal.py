"""Answers on a terminal: as wide as it is, coloured, a page at a time."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Protocol

from npulab.support.answers import Part, Table, shown, tone
from npulab.support.text import cell, visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

STYLES = {"good": "green", "bad": "bold red", "open": "yellow", "quiet": "dim"}
GAP = 2  # columns between two cells
INDENT = 4  # of what stands below its row
NAME = 16  # columns that a name keeps; a longer one is broken behind a _ or the like
PROSE, SENTENCES = 40, 32  # a column with longer cells than that is of sentences, and keeps so many
SOFT = re.compile(r"[^_./-]*[_./-]|[^_./-]+")
LESS = "-FRX"  # as git has it: no pager for what fits, colours, and the text stays


def print_parts(parts: Sequence[Part], console: Console | None = None) -> None:
    """Print lines and tables on a terminal; through a pager where they are taller than it is."""
    from rich.console import Console, Group
    from rich.text import Text

    console = console or Console(highlight=False)
    body = Group(
        *(
            _table(part, console.width) if isinstance(part, Table) else Text(visible(part))
            for part in shown(parts)
        )
    )
    tall = len(console.render_lines(body, pad=False)) >= console.height and sys.stdin.isatty()
    os.environ.setdefault("LESS", LESS)
    with console.pager(styles=not console.no_color) if tall else nullcontext():
        console.print(body)


def folded(text: str, width: int) -> list[str]:
    """Lines of at most so many columns, broken between words; a word that is longer behind a ``_``,
    ``.``, ``/`` or ``-``, and anywhere if there is none.

    >>> folded("see out_image_tile_x_size", 15)
    ['see out_image_', 'tile_x_size']
    """
    lines = [""]
    for word in re.findall(" *[^ ]+", text):
        long = len(word.strip()) > width
        if long:
            pieces = [
                part[at : at + width]
                for part in SOFT.findall(word)
                for at in range(0, len(part), width)
            ]
        else:
            pieces = [word]
        for piece in pieces:
            if len(lines[-1]) + len(piece) > width:
                lines.append("")
                piece = piece.lstrip()
            lines[-1] += piece
    return lines


def widths(columns: Sequence[Sequence[str]], most: int) -> list[int]:
    """Widths of the columns that fit side by side into ``most`` with their gaps, from the first on.

    The widest ones give way first, as far as words stay whole.

    >>> rows = ["field", "in_image_x_size"], ["value", "4"], ["note", "columns of the image, " * 3]
    >>> widths(rows, 80), widths(rows, 60), widths(rows, 40)
    ([15, 5, 56], [15, 5, 36], [15, 5])
    """
    natural = [max(map(len, column)) for column in columns]
    least = [
        SENTENCES
        if wide > PROSE
        else min(NAME, max(len(word) for text in column for word in text.split(" ")))
        for column, wide in zip(columns, natural, strict=True)
    ]
    while len(least) > 1 and sum(least) + GAP * (len(least) - 1) > most:
        least.pop()
    free, limit = most - GAP * (len(least) - 1), max(natural)

    def capped() -> list[int]:
        return [min(wide, max(kept, limit)) for wide, kept in zip(natural, least, strict=False)]

    while limit > 1 and sum(capped()) > free:
        limit -= 1
    return [min(width, free) for width in capped()]


def _table(table: Table, most: int) -> Text:
    """A table that fits.  Where it is wider, what all rows have in common stands in one line, and
    the columns that do not fit stand below their row."""
    from rich.text import Text

    texts = {name: [visible(cell(row.get(name))) for row in table.rows] for name in table.names}
    wide = sum(max(map(len, (name, *column))) + GAP for name, column in texts.items()) - GAP > most
    common = [
        name for name, column in texts.items() if wide and len(column) > 1 and len({*column}) == 1
    ]
    names = [name for name in table.names if name not in common] or [*table.names]
    across = widths([[name, *texts[name]] for name in names], most)
    out = Text()

    def put(cells: Sequence[str], styles: Sequence[str]) -> None:
        columns = [folded(text, width) for text, width in zip(cells, across, strict=False)]
        for line in zip_longest(*columns, fillvalue=""):
            for text, width, style in zip(line, across, styles, strict=False):
                out.append(f"{text:{width}}", style).append(" " * GAP)
            out.right_crop(GAP)
            out.append("\n")

    if len(names) < len(table.names):
        out.append(", ".join(f"{name} {texts[name][0]}" for name in common) + "\n", "dim")
    put(names, ["bold"] * len(names))
    for at, row in enumerate(table.rows):
        put(
            [texts[name][at] for name in names],
            [STYLES.get(tone(name, row.get(name)), "") for name in names],
        )
        below = [f"{name} {texts[name][at]}" for name in names[len(across) :] if texts[name][at]]
        for line in folded(" · ".join(below), most - INDENT):
            out.append(f"{'':{INDENT}}{line}\n" if line else "", "dim")
    out.right_crop(1)
    return out


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

    columns: tuple[Any, ...] = (
        SpinnerColumn(),
        TextColumn("{task.fields[count]}"),
        BarColumn(bar_width=24),
        TimeRemainingColumn(elapsed_when_finished=True),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown_progress:
        task = shown_progress.add_task("", total=None, count=f"0 {unit}s")

        def bar(done: int, total: int | None = None, text: str = "") -> None:
            of = ""
            if total is not None:
                of = f" of {total}"
            shown_progress.update(
                task,
                completed=done,
                total=total,
                description=text.replace("[", r"\["),
                count=f"{done}{of} {unit}s",
            )

        yield bar
