"""The Markdown of notes, read by mistune and written as HTML or as Markdown.

Allowed are paragraphs, lists, headings, tables, fences, ``code``, **bold**, and links to http,
https and ``#``, whose address is shown. Everything else, HTML above all, is plain text. Reading
takes time in proportion to the length of the text.
"""

from __future__ import annotations

import html
import re
import textwrap
from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mistune import BlockParser, BlockState, InlineParser, InlineState, Markdown

BLOCKS = ["fenced_code", "atx_heading", "list", "table", "blank_line"]
HEADING = r"^ {0,3}(?P<atx_1>#{1,6})(?P<atx_2>[ \t]+[^\s#].*?)$"  # a heading must have a text
TABLE = r"^[^\n|]*\|[^\n]*\n[^\n|]*\|[^\n]*$"  # a table's head and rule have bars
RULE = re.compile(r" *\|?(?: *:?-{1,99}:? *\|)* *:?-{0,99}:? *$")
BOLD = r"\*\*(?P<bold>[^*\n]+)\*\*"
LINK = (
    r"\[(?P<link_text>[^\[\]\n]{1,400})\]"
    r"\((?P<link_href>(?:https?://|#)[^\s()<>\"'`\\]{1,1000})\)"
)
MOST_COLUMNS, MOST_RULE = 64, 2**12
# invisible characters that no page needs: controls, and marks that turn the direction of the text
HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069"
    "\ufeff\ufffe\uffff]"
)
HTML = {
    "paragraph": "<p>{}</p>",
    "heading": "<h4>{}</h4>",
    "block_code": "<pre><code>{}</code></pre>",
    "ul": "<ul>{}</ul>",
    "ol": "<ol>{}</ol>",
    "list_item": "<li>{}</li>",
    "table": "<table>{}</table>",
    "row": "<tr>{}</tr>",
    "head": '<th scope="col">{}</th>',
    "cell": "<td>{}</td>",
    "codespan": "<code>{}</code>",
    "strong": "<strong>{}</strong>",
    "link": '<a href="{href}" rel="noopener noreferrer nofollow">{}</a> ({href})',
}

Block = dict[str, Any]


def plain(text: str) -> str:
    r"""Return a text in which invisible characters are replaced by their escapes.

    >>> plain("a\x00b")
    'a\\x00b'
    """
    text = text.replace("\r\n", "\n")
    return HIDDEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def read_markdown(text: str) -> list[Block]:
    r"""Return the blocks of a note's text (paragraphs, lists, tables, ...), as tokens of mistune.

    >>> [block["type"] for block in read_markdown("a **b**\n\n- c")]
    ['paragraph', 'list']
    """
    tokens: Any = _reader()(plain(text))
    out: list[Block] = []
    before = None
    for token in tokens:
        kind = None
        if token["type"] == "list":
            kind = _ordered(token)
        if kind is not None and kind == before:
            # adjacent lists with different signs become one list
            out[-1]["children"] += token["children"]
        elif token["type"] != "blank_line":
            out.append(token)
        before = kind
    return out


@cache
def _reader() -> Markdown:
    """Return mistune's reader with the rules that notes allow; no rule reads HTML."""
    from mistune import create_markdown

    out = create_markdown(renderer=None)
    out.block.specification["atx_heading"] = HEADING
    out.block.register("table", TABLE, _read_table)
    out.inline.register("strong", BOLD, _strong)
    out.inline.register("place", LINK, _link)
    out.block.rules = out.block.list_rules = BLOCKS
    out.inline.rules = ["codespan", "strong", "place", "softbreak"]
    return out


def _strong(inline: InlineParser, found: re.Match[str], state: InlineState) -> int:
    state.append_token({"type": "strong", "children": [{"type": "text", "raw": found["bold"]}]})
    return found.end()


def _link(inline: InlineParser, found: re.Match[str], state: InlineState) -> int:
    text = found["link_text"].strip() or found["link_href"]
    state.append_token(
        {"type": "link", "href": found["link_href"], "children": [{"type": "text", "raw": text}]}
    )
    return found.end()


def _read_table(block: BlockParser, found: re.Match[str], state: BlockState) -> int | None:
    """Read a table (a head, a rule, and rows) and return the place after it, or None if there is no
    table.

    A row with fewer cells than the head gets empty cells; in a row with more cells, the last cell
    of the table's width takes the surplus.
    """
    line, rule = found[0].split("\n")
    head = _cells(line)
    if "-" not in rule or len(rule) >= MOST_RULE or not RULE.match(rule):
        return None
    if not len(_cells(rule)) == len(head) <= MOST_COLUMNS:
        return None
    rows = [_row("head", head)]
    place = found.end() + 1
    while "|" in (line := state.src[place : state.src.find("\n", place) + 1]):
        cells = _cells(line)
        surplus = cells[len(head) - 1 :]
        if surplus:
            cells[len(head) - 1 :] = ["|".join(surplus)]
        cells += [""] * (len(head) - len(cells))
        rows.append(_row("cell", cells))
        place += len(line)
    state.append_token({"type": "table", "children": rows})
    return place


def _cells(line: str) -> list[str]:
    line = line.strip().removeprefix("|").removesuffix("|")
    return [cell.strip() for cell in line.split("|")]


def _row(kind: str, cells: list[str]) -> Block:
    tokens = []
    for cell in cells:
        kind_of_cell = kind
        if not cell:  # a cell without a text is no heading in HTML
            kind_of_cell = "cell"
        tokens.append({"type": kind_of_cell, "text": cell})
    return {"type": "row", "children": tokens}


def _ordered(block: Block) -> bool:
    return bool(block["attrs"]["ordered"])


def _inner(block: Block) -> list[Block]:
    """Return the tokens inside a block, without blank lines; line breaks in the text of a list's
    item become spaces.
    """
    parts = []
    for part in block.get("children", ()):
        if block["type"] == "block_text" and part["type"] == "softbreak":
            part = {"type": "text", "raw": " "}
        if part["type"] != "blank_line":
            parts.append(part)
    return parts


def to_html(blocks: Iterable[Block]) -> str:
    """Return blocks as HTML with every text escaped; headings of any level are h4."""
    return "\n".join(map(_html, blocks))


def _html(block: Block) -> str:
    kind = block["type"]
    if kind == "softbreak":
        return "\n"
    if kind == "list":
        kind = "ul"
        if _ordered(block):
            kind = "ol"
    if kind == "block_code":
        inner = html.escape(block["raw"].removesuffix("\n"))
    elif "raw" in block:
        inner = html.escape(block["raw"])
    else:
        inner = "".join(map(_html, _inner(block)))
    return HTML.get(kind, "{}").format(inner, href=html.escape(block.get("href", "")))


# Functions that write Markdown


def to_markdown(blocks: Iterable[Block]) -> str:
    """Return Markdown that reads as the same blocks; signs that mean themselves are escaped."""
    return "\n\n".join(map(_markdown, blocks))


def _markdown(block: Block) -> str:
    kind, inner = block["type"], _inner(block)
    if kind == "text":
        return escaped(block["raw"])
    if kind == "softbreak":
        return "\n"
    if kind == "codespan":
        return _code(block["raw"])
    if kind == "block_code":
        return fenced(block["raw"].removesuffix("\n"))
    if kind == "list":
        sign = "- "
        if _ordered(block):
            sign = "1. "
        items = []
        for part in inner:
            text = textwrap.indent(_markdown(part), " " * len(sign))
            items.append(sign + text.lstrip(" "))
        return "\n".join(items)
    if kind == "list_item":
        between = "\n"
        if any(part["type"] == "paragraph" for part in inner):
            between = "\n\n"
        return between.join(map(_markdown, inner))
    if kind == "table":
        rows = []
        for row in inner:
            rows.append([_markdown(cell).replace("|", "\\|") for cell in row["children"]])
        return table_markdown(rows)
    text = "".join(map(_markdown, inner))
    if kind == "strong":
        return f"**{text.strip() or '&nbsp;'}**"
    if kind == "link":
        return f"[{text}](<{block['href']}>) ({escaped(block['href'])})"
    if kind in ("head", "cell"):
        return text
    text = "\n".join(map(_safe_start, text.split("\n")))
    if kind == "heading":
        return f"#### {text}"
    return text


def _fence(text: str, least: int) -> str:
    """Return the backticks to put around code: at least ``least``, and more than any run of
    backticks in it.
    """
    longest = max(re.findall("`*", text), key=len)
    return "`" * max(least, len(longest) + 1)


def _code(text: str) -> str:
    sign = _fence(text, 1)
    if text.startswith((" ", "`")) or text.endswith("`"):
        text = f" {text} "
    return f"{sign}{text}{sign}"


def escaped(text: str) -> str:
    """Return a text with every sign of Markdown and HTML escaped, except ``|``, which separates the
    cells of a table.
    """
    text = html.escape(text, quote=False)
    # a "!" at the end would make a picture of a link behind it
    return re.sub(r"([\\`*_\[\]~$]|!$)", r"\\\1", text)


def text_markdown(text: str, cell: bool = False) -> str:
    """Return plain text as one line of Markdown, or, with ``cell``, as a cell of a table."""
    line = escaped(plain(text)).replace("\n", " ").strip()
    if cell:
        return line.replace("|", "\\|")
    return _safe_start(line)


def table_markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; its cells are Markdown already, and the first row is its head."""
    lines = ["| " + " | ".join(cell or " " for cell in row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + " --- |" * len(rows[0]), *lines[1:]])


def fenced(text: str, kind: str = "") -> str:
    """Return a text as a code block, whose fence is longer than any in the text; ``kind`` names the
    language.
    """
    sign = _fence(text, 3)
    return f"{sign}{kind}\n{text}\n{sign}"


def _safe_start(line: str) -> str:
    """Return a line of Markdown, escaped so that it begins no list, rule, heading or table."""
    line = line.strip()
    line = re.sub(r"^([0-9]{1,9})([.)])", r"\1\\\2", line)
    if line[:1] and line[0] in "-+=:|#":
        return f"\\{line}"
    return line
