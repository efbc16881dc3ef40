"""A story as one page of HTML, or as Markdown with its figures beside it."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from npulab.notebook.sessions.markdown import (
    fenced,
    plain,
    read_markdown,
    table_markdown,
    text_markdown,
    to_html,
    to_markdown,
)

MARK_HTML, MARK_MARKDOWN = '<meta name="generator" content="npulab report">', "<!-- npulab report -->"
MOST_ROWS = 400
SHORT, WHOLE = 12, ' class="w"'  # letters of a word that is not broken
STYLE = """
:root { color-scheme: light dark; --text: #1b1b1b; --page: #fff; --soft: #555; --line: #bbb; --code: #f2f2f2;
  --link: #0b4fb3; }
@media (prefers-color-scheme: dark) { :root { --text: #e8e8e8; --page: #16181c; --soft: #b4b4b4; --line: #555;
  --code: #25282e; --link: #9cc2ff; } }
body { margin: 0; color: var(--text); background: var(--page); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 1rem; overflow-wrap: anywhere; }
h2 { margin-top: 2.2rem; border-bottom: 1px solid var(--line); }
a { color: var(--link); text-decoration: underline; }
table { border-collapse: collapse; margin: .6rem 0; font-size: .9rem; }
caption { text-align: left; color: var(--soft); }
th, td { border: 1px solid var(--line); padding: .15rem .5rem; text-align: left; vertical-align: top; }
pre, code { background: var(--code); font: .9rem/1.4 ui-monospace, monospace; }
pre { padding: .5rem; white-space: pre-wrap; }
@media (min-width: 50rem) { .w { overflow-wrap: normal; } }
img { max-width: 100%; background: #fff; }
figure { margin: 1rem 0; }
.note { border-left: 4px solid var(--line); padding-left: 1rem; margin: 1rem 0; }
.said { color: var(--soft); font-size: .9rem; margin: .2rem 0; }
.look { border: 2px solid currentColor; padding: .3rem .6rem; }
@media print { pre, .note { break-inside: avoid; } }
"""
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


@dataclass(frozen=True)
class Title:
    """A heading of level 1 to 3; ``place`` is what ``#`` links say."""

    text: str
    level: int = 2
    place: str = ""


@dataclass(frozen=True)
class Text:
    """A paragraph of plain text; ``look`` where it is something to look at."""

    text: str
    look: bool = False


@dataclass(frozen=True)
class Told:
    """Somebody's Markdown, and who said it when."""

    text: str
    said: str = ""
    place: str = ""


@dataclass(frozen=True)
class Grid:
    """A table of plain texts."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""


@dataclass(frozen=True)
class Again:
    """What shows a claim again, from the shell and in Python."""

    shell: str = ""
    python: str = ""


@dataclass(frozen=True)
class Shown:
    """A PNG and what it shows."""

    png: bytes
    caption: str

    @property
    def name(self) -> str:
        return f"{hashlib.sha256(self.png).hexdigest()[:16]}.png"


Piece = Title | Text | Told | Grid | Again | Shown


def html_page(story: Sequence[Piece]) -> str:
    """One page that needs nothing else: no script, no network, light and dark."""
    title = next((one.text for one in story if isinstance(one, Title)), "report")
    body = "\n".join(_HTML[type(one)](one) for one in story)
    return (f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n{MARK_HTML}\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{_text(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n</body>\n"
            "</html>\n")


def markdown_page(story: Sequence[Piece], folder: str) -> str:
    """The same as Markdown; its figures lie in ``folder`` by ``Shown.name``."""
    return f"{MARK_MARKDOWN}\n\n" + "\n\n".join(_markdown(one, folder) for one in story) + "\n"


def _text(text: str) -> str:
    return html.escape(plain(text))


def _title(one: Title) -> str:
    place = f' id="{_text(one.place)}"' if one.place else ""
    return f"<h{one.level}{place}>{_text(one.text)}</h{one.level}>"


def _paragraph(one: Text) -> str:
    return f'<p class="look"><strong>To look at:</strong> {_text(one.text)}</p>' if one.look \
        else f"<p>{_text(one.text)}</p>"


def _told(one: Told) -> str:
    said = f'<p class="said">{_text(one.said)}</p>' if one.said else ""
    place = f' id="{_text(one.place)}"' if one.place else ""
    return f'<div class="note"{place}>\n{said}\n{to_html(read_markdown(one.text))}\n</div>'


def _grid(one: Grid) -> str:
    head = "".join(f'<th scope="col"{WHOLE}>{_text(name)}</th>' for name in one.columns)
    rows = ["".join(_cell(cell) for cell in row) for row in _cut(one)]
    caption = f"<caption>{_text(one.caption)}</caption>" if one.caption else ""
    return f"<table>{caption}<tr>{head}</tr>\n" + "\n".join(f"<tr>{row}</tr>" for row in rows) + "</table>"


def _cell(text: str) -> str:
    """A cell that is broken inside of words only where one is long."""
    short = max(map(len, re.split(r"[\s-]", text))) <= SHORT
    return f"<td{WHOLE if short else ''}>{_text(text)}</td>"


def _again(one: Again) -> str:
    return "\n".join(f'<p class="said">Again, {name}:</p>\n<pre><code>{_text(text)}</code></pre>'
                     for name, text in (("from the shell", one.shell), ("in Python", one.python)) if text)


def _shown(one: Shown) -> str:
    data = base64.b64encode(one.png).decode()
    caption = _text(one.caption)
    return (f'<figure><img alt="{caption}" src="data:image/png;base64,{data}">'
            f"<figcaption>{caption}</figcaption></figure>")


_HTML: dict[type, Callable[..., str]] = {Title: _title, Text: _paragraph, Told: _told, Grid: _grid, Again: _again,
                                         Shown: _shown}


def _markdown(one: Piece, folder: str) -> str:
    if isinstance(one, Title):
        return f"{'#' * one.level} {text_markdown(one.text)}"
    if isinstance(one, Text):
        return f"**To look at:** {text_markdown(one.text)}" if one.look else text_markdown(one.text)
    if isinstance(one, Told):
        said = f"{text_markdown(one.said)}\n\n" if one.said else ""
        return f"---\n\n{said}{to_markdown(read_markdown(one.text))}"
    if isinstance(one, Grid):
        rows = [one.columns, *_cut(one)]
        table = table_markdown([[text_markdown(cell, True) for cell in row] for row in rows])
        return f"{text_markdown(one.caption)}\n\n{table}" if one.caption else table
    if isinstance(one, Again):
        both = (("sh", one.shell), ("python", one.python))
        return "\n\n".join(fenced(plain(text), kind) for kind, text in both if text)
    caption = text_markdown(one.caption)
    return f"![{caption}](<{quote(folder)}/{one.name}>)\n\n{caption}"


def _cut(one: Grid) -> list[tuple[str, ...]]:
    rows = list(one.rows[:MOST_ROWS])
    if len(one.rows) > len(rows):
        rows.append((f"… {len(one.rows) - len(rows)} more", *[""] * (len(one.columns) - 1)))
    return rows
