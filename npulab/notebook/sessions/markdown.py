"""The Markdown of notes: a small part of it, read to values and written as HTML or Markdown that say only that.

Paragraphs, lists, headings, tables, fences, ``code``, **bold**, and links to http, https and ``#``, of which the place
is shown.  Everything else, HTML above all, is text; nothing takes longer than its length.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from typing import NamedTuple

FENCE = re.compile(r" {0,3}(?P<sign>`{3,}|~{3,})[^`]*$")
HEADING = re.compile(r"#{1,6} +(?P<text>.*)$")
ITEM = re.compile(r" {0,8}(?P<sign>[-*+]|[0-9]{1,9}[.)]) +(?P<text>.*)$")
RULE = re.compile(r" *\|?(?: *:?-{1,99}:? *\|)* *:?-{0,99}:? *$")
LINK = r"\[(?P<text>[^\[\]\n]{1,400})\]\((?P<href>(?:https?://|#)[^\s()<>\"'`\\]{1,1000})\)"
INLINE = re.compile(rf"`(?P<code>[^`\n]+)`|\*\*(?P<bold>[^*\n]+)\*\*|{LINK}")
STARTS = (*"`~#-*+0123456789",)  # of lines that may begin a block
MOST_COLUMNS = 64
# what no page needs: controls, and signs that turn the direction of what follows
HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069"
                    "\ufeff\ufffe\uffff]")


class Part(NamedTuple):
    """A run of text: text, code, bold, or link with its place."""

    kind: str
    text: str
    href: str = ""


class Block(NamedTuple):
    """paragraph, heading (a line), list or numbered (a line each), table (a row each), or code (one text)."""

    kind: str
    lines: tuple[tuple[Part, ...], ...] = ()
    rows: tuple[tuple[tuple[Part, ...], ...], ...] = ()
    text: str = ""


def plain(text: str) -> str:
    """A text in which what cannot be seen is spelled out, so that it can.

    >>> plain("a\\x00b")
    'a\\\\x00b'
    """
    return HIDDEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text.replace("\r\n", "\n"))


def read_markdown(told: str) -> list[Block]:
    """The blocks of a text.

    >>> [block.kind for block in read_markdown("a **b**\\n\\n- c")]
    ['paragraph', 'list']
    """
    lines = plain(told).split("\n")
    out: list[Block] = []
    place = 0
    while place < len(lines):
        line = lines[place]
        if not line:
            place += 1
        elif found := FENCE.match(line):
            place = _fence(lines, place, found["sign"], out)
        elif (found := HEADING.match(line)) and (text := found["text"].strip(" #\t")):
            out.append(Block("heading", (inline(text),)))
            place += 1
        elif found := ITEM.match(line):
            place = _list(lines, place, out)
        elif _is_table(lines, place):
            place = _table(lines, place, out)
        elif line.strip():
            start = place
            while place < len(lines) and lines[place].strip() and (place == start or not _begins(lines, place)):
                place += 1
            out.append(Block("paragraph", tuple(inline(one.strip()) for one in lines[start:place])))
        else:
            place += 1
    return out


def inline(text: str) -> tuple[Part, ...]:
    """The runs of a line."""
    out: list[Part] = []
    place = 0
    for found in INLINE.finditer(text):
        if found.start() > place:
            out.append(Part("text", text[place:found.start()]))
        kind = str(found.lastgroup)
        out.append(Part("link", found["text"].strip() or found["href"], found["href"]) if kind == "href"
                   else Part(kind, found[kind]))
        place = found.end()
    return (*out, Part("text", text[place:])) if place < len(text) else tuple(out)


def _begins(lines: Sequence[str], place: int) -> bool:
    line = lines[place]
    if "|" not in line and not line.lstrip(" ").startswith(STARTS):
        return False
    return bool(FENCE.match(line) or HEADING.match(line) or ITEM.match(line)) or _is_table(lines, place)


def _fence(lines: Sequence[str], place: int, sign: str, out: list[Block]) -> int:
    """A fence ends with a line of as many signs or more, or with the text."""
    start = place = place + 1
    while place < len(lines):
        line = lines[place].strip()
        if len(line) >= len(sign) and line == sign[0] * len(line):
            break
        place += 1
    out.append(Block("code", text="\n".join(lines[start:place])))
    return place + 1


def _list(lines: Sequence[str], place: int, out: list[Block]) -> int:
    items: list[list[str]] = []
    numbered = None
    while place < len(lines) and lines[place].strip():
        found = ITEM.match(lines[place])
        if found:
            kind = found["sign"][0].isdigit()
            if numbered is None:
                numbered = kind
            elif kind != numbered:
                break
            items.append([found["text"]])
        elif lines[place].startswith("  ") and not _begins(lines, place):
            items[-1].append(lines[place].strip())
        else:
            break
        place += 1
    out.append(Block("numbered" if numbered else "list", tuple(inline(" ".join(one)) for one in items)))
    return place


def _is_table(lines: Sequence[str], place: int) -> bool:
    if place + 1 >= len(lines) or "|" not in lines[place]:
        return False
    rule = lines[place + 1]
    return "|" in rule and "-" in rule and len(rule) < 2 ** 12 and RULE.match(rule) is not None \
        and len(_cells(rule)) == len(_cells(lines[place])) <= MOST_COLUMNS


def _table(lines: Sequence[str], place: int, out: list[Block]) -> int:
    head = _cells(lines[place])
    rows = [head]
    place += 2
    while place < len(lines) and "|" in lines[place]:
        cells = _cells(lines[place])
        kept = [*cells[:len(head) - 1], "|".join(cells[len(head) - 1:])] if len(cells) > len(head) else cells
        rows.append([*kept, *[""] * (len(head) - len(kept))])
        place += 1
    out.append(Block("table", rows=tuple(tuple(inline(cell) for cell in row) for row in rows)))
    return place


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")]


# Written as HTML


def to_html(blocks: Sequence[Block], heading: str = "h4") -> str:
    """HTML of blocks, every text of it escaped; headings of any level are ``heading``."""
    return "\n".join(_block_html(block, heading) for block in blocks)


def _block_html(block: Block, heading: str) -> str:
    if block.kind == "code":
        return f"<pre><code>{html.escape(block.text)}</code></pre>"
    if block.kind == "heading":
        return f"<{heading}>{line_html(block.lines[0])}</{heading}>"
    if block.kind == "table":
        head, *rows = block.rows
        lines = ["".join(f'<th scope="col">{line_html(cell)}</th>' if cell else "<td></td>" for cell in head),
                 *("".join(f"<td>{line_html(cell)}</td>" for cell in row) for row in rows)]
        return "<table>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"
    if block.kind in ("list", "numbered"):
        tag = "ol" if block.kind == "numbered" else "ul"
        return f"<{tag}>" + "".join(f"<li>{line_html(line)}</li>" for line in block.lines) + f"</{tag}>"
    return "<p>" + "\n".join(line_html(line) for line in block.lines) + "</p>"


def line_html(parts: Sequence[Part]) -> str:
    return "".join(_part_html(part) for part in parts)


def _part_html(part: Part) -> str:
    text = html.escape(part.text)
    if part.kind == "code":
        return f"<code>{text}</code>"
    if part.kind == "bold":
        return f"<strong>{text}</strong>"
    if part.kind == "link":
        href = html.escape(part.href)
        return f'<a href="{href}" rel="noopener noreferrer nofollow">{text}</a> ({href})'
    return text


# Written as Markdown


def to_markdown(blocks: Sequence[Block]) -> str:
    """Markdown of blocks that reads as the same blocks, every other sign of it escaped."""
    return "\n\n".join(_block_markdown(block) for block in blocks)


def _block_markdown(block: Block) -> str:
    if block.kind == "code":
        return fenced(block.text)
    if block.kind == "heading":
        return f"#### {line_markdown(block.lines[0])}"
    if block.kind == "table":
        rows = [[line_markdown(cell, True) for cell in row] for row in block.rows]
        return table_markdown(rows)
    if block.kind in ("list", "numbered"):
        return "\n".join(f"{'1.' if block.kind == 'numbered' else '-'} {line_markdown(line)}" for line in block.lines)
    return "\n".join(line_markdown(line) for line in block.lines)


def line_markdown(parts: Sequence[Part], cell: bool = False) -> str:
    text = "".join(_part_markdown(part) for part in parts)
    return text.replace("|", "\\|") if cell else _safe_start(text)


def _part_markdown(part: Part) -> str:
    if part.kind == "code":
        return f"` {part.text} `" if part.text.startswith(" ") else f"`{part.text}`"
    if part.kind == "bold":
        return f"**{escaped(part.text).strip() or '&nbsp;'}**"
    if part.kind == "link":
        return f"[{escaped(part.text)}](<{part.href}>) ({escaped(part.href)})"
    return escaped(part.text)


def escaped(text: str) -> str:
    """A text in which no sign is Markdown's or HTML's; what stands in a table has its bars escaped there."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]~$]|!$)", r"\\\1", text)  # a sign before a link would make it a picture


def text_markdown(text: str, cell: bool = False) -> str:
    """A line of plain text as Markdown, or a cell of a table."""
    line = escaped(plain(text)).replace("\n", " ").strip()
    return line.replace("|", "\\|") if cell else _safe_start(line)


def table_markdown(rows: Sequence[Sequence[str]]) -> str:
    """A table of cells that are Markdown already, the first row its head."""
    lines = ["| " + " | ".join(cell or " " for cell in row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + " --- |" * len(rows[0]), *lines[1:]])


def fenced(text: str, kind: str = "") -> str:
    """A fence longer than any in the text."""
    sign = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{sign}{kind}\n{text}\n{sign}"


def _safe_start(line: str) -> str:
    """A line that begins no block: no list, rule, heading or table."""
    line = line.strip()
    line = re.sub(r"^([0-9]{1,9})([.)])", r"\1\\\2", line)
    return f"\\{line}" if line[:1] and line[0] in "-+=:|#" else line
