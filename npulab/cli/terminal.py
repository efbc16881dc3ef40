"""Answers on a terminal: fitted to its width, coloured, and through a pager if they are long."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Protocol

from npulab.support.answers import Lines, Part, Table, shown, tone
from npulab.support.text import cell, visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

STYLES = {"good": "green", "bad": "bold red", "open": "yellow", "quiet": "dim"}
# Blank characters: ``GAP`` between two cells, ``INDENT`` before cells that stand below their row.
GAP = 2
INDENT = 4
# A column of names is not made narrower than ``NAME`` characters; a longer name is broken after one
# of _ . / -. A column with a cell of more than ``PROSE`` characters has sentences, and is at least
# ``SENTENCES`` characters wide.
NAME = 16
PROSE, SENTENCES = 40, 32
SOFT = re.compile(r"[^_./-]*[_./-]|[^_./-]+")
# Options of the pager less, as git sets them: F prints a text that fits without paging, R keeps
# colours, X leaves the text on the screen at the end.
LESS = "-FRX"


def print_parts(parts: Sequence[Part], console: Console | None = None) -> None:
    """Print lines and tables on a terminal, through a pager if they need more lines than it has."""
    from rich.console import Console, Group
    from rich.text import Text

    console = console or Console(highlight=False)
    texts = []
    for part in shown(parts):
        if isinstance(part, Lines):
            texts.append(Text(visible(part.fitted(console.width))))
        elif isinstance(part, Table):
            texts.append(_text_of_table(part, console.width))
        else:
            texts.append(Text(visible(part)))
    body = Group(*texts)
    os.environ.setdefault("LESS", LESS)
    pager: AbstractContextManager[Any] = nullcontext()
    if len(console.render_lines(body, pad=False)) >= console.height and sys.stdin.isatty():
        pager = console.pager(styles=not console.no_color)
    with pager:
        console.print(body)


def folded(text: str, width: int) -> list[str]:
    """Return the lines of a text, of at most ``width`` columns, broken between words.

    A longer word is broken after a ``_``, ``.``, ``/`` or ``-``, and anywhere if it has none.

    >>> folded("see out_image_tile_x_size", 15)
    ['see out_image_', 'tile_x_size']
    """
    lines = [""]
    for word in re.findall(" *[^ ]+", text):
        pieces = [word]
        if len(word.strip()) > width:
            pieces = []
            for part in SOFT.findall(word):
                pieces += [part[at : at + width] for at in range(0, len(part), width)]
        for piece in pieces:
            if len(lines[-1]) + len(piece) > width:
                lines.append("")
                piece = piece.lstrip()
            lines[-1] += piece
    return lines


def widths(columns: Sequence[Sequence[str]], most: int) -> list[int]:
    """Return the widths of the first columns of a table, as many columns as fit into ``most``
    characters with the gaps between them.

    ``columns`` has the texts of each column. The widest columns are narrowed first, but not so far
    that a word of at most ``NAME`` characters would be broken.

    >>> rows = ["field", "in_image_x_size"], ["value", "4"], ["note", "columns of the image, " * 3]
    >>> widths(rows, 80), widths(rows, 60), widths(rows, 40)
    ([15, 5, 56], [15, 5, 36], [15, 5])
    """
    natural = [max(map(len, column)) for column in columns]
    least = []
    for column, wide in zip(columns, natural, strict=True):
        longest_word = max(map(len, " ".join(column).split(" ")))
        least.append(SENTENCES if wide > PROSE else min(NAME, longest_word))
    while len(least) > 1 and sum(least) + GAP * (len(least) - 1) > most:
        least.pop()
    free, limit = most - GAP * (len(least) - 1), max(natural)

    def capped() -> list[int]:
        return [min(wide, max(kept, limit)) for wide, kept in zip(natural, least, strict=False)]

    while limit > 1 and sum(capped()) > free:
        limit -= 1
    return [min(width, free) for width in capped()]


def _text_of_table(table: Table, most: int) -> Text:
    """Return a table as text of at most ``most`` columns.

    If the table is wider, a column whose cells are all equal goes to a line above the table, and
    columns that do not fit stand below their row.
    """
    from rich.text import Text

    texts: dict[str, list[str]] = {}
    room = most + GAP
    for name in table.names:
        texts[name] = [visible(cell(row.get(name))) for row in table.rows]
        room -= max(map(len, (name, *texts[name]))) + GAP
    common = []
    if room < 0 and len(table.rows) > 1:
        common = [name for name, column in texts.items() if len({*column}) == 1]
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
        styles = [STYLES.get(tone(name, row.get(name)), "") for name in names]
        put([texts[name][at] for name in names], styles)
        below = [f"{name} {texts[name][at]}" for name in names[len(across) :] if texts[name][at]]
        if below:
            for line in folded(" · ".join(below), most - INDENT):
                out.append(f"{'':{INDENT}}{line}\n", "dim")
    out.right_crop(1)
    return out


class Bar(Protocol):
    """A function that shows the progress of long work: its arguments are how much is done, how much
    there is in all, and a text.
    """

    def __call__(self, done: int, total: int | None = None, text: str = "") -> None: ...


@contextmanager
def progress(unit: str, hidden: bool = False) -> Iterator[Bar]:
    """Show on stderr how much of the work is done and how long the remaining work takes; yields the
    ``Bar`` to call.

    Nothing is shown if stderr is not a terminal. ``hidden`` shows nothing either: it is for work in
    which a person types on the terminal.
    """
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
