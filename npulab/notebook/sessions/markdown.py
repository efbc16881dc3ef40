"""The Markdown of notes: what mistune reads of it, as HTML or Markdown that say only that.

Paragraphs, lists, headings, tables, fences, ``code``, **bold**, and links to http, https and ``#``,
of which the place is shown.  Everything else, HTML above all, is text; nothing takes longer than
its length.
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
HEADING = r"^ {0,3}(?P<atx_1>#{1,6})(?P<atx_2>[ \t]+[^\s#].*?)$"  # with a text
TABLE = r"^[^\n|]*\|[^\n]*\n[^\n|]*\|[^\n]*$"  # a line and the rule below it
RULE = re.compile(r" *\|?(?: *:?-{1,99}:? *\|)* *:?-{0,99}:? *$")
BOLD = r"\*\*(?P<bold>[^*\n]+)\*\*"
LINK = (
    r"\[(?P<link_text>[^\[\]\n]{1,400})\]"
    r"\((?P<link_href>(?:https?://|#)[^\s()<>\"'`\\]{1,1000})\)"
)
MOST_COLUMNS, MOST_RULE = 64, 2**12
# what no page needs: controls, and signs that turn the direction of what follows
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
    """A text in which what cannot be seen is spelled out, so that it can.

    >>> plain("a\\x00b")
    'a\\\\x00b'
    """
    return HIDDEN.sub(
        lambda found: found[0].encode("unicode_escape").decode(), text.replace("\r\n", "\n")
    )


def read_markdown(text: str) -> list[Block]:
    """The blocks of a text, as mistune has them.

    >>> [block["type"] for block in read_markdown("a **b**\\n\\n- c")]
    ['paragraph', 'list']
    """
    tokens: Any = _reader()(plain(text))
    out: list[Block] = []
    for before, token in zip([None, *tokens], tokens, strict=False):
        lists = before and before["type"] == token["type"] == "list"
        if lists and _ordered(token) == _ordered(before):
            out[-1]["children"] += token["children"]  # numbered in another way
        elif token["type"] != "blank_line":
            out.append(token)
    return out


@cache
def _reader() -> Markdown:
    """What reads blocks: no rule of it knows HTML."""
    from mistune import create_markdown

    out = create_markdown(renderer=None)
    out.block.specification["atx_heading"] = HEADING
    out.block.register("table", TABLE, _table)
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


def _table(block: BlockParser, found: re.Match[str], state: BlockState) -> int | None:
    """A head, a rule, and rows that are as long as the head: the last cell has what is too much."""
    line, rule = found[0].split("\n")
    head = _cells(line)
    if (
        "-" not in rule
        or len(rule) >= MOST_RULE
        or not RULE.match(rule)
        or not len(_cells(rule)) == len(head) <= MOST_COLUMNS
    ):
        return None
    rows, place = [head], found.end() + 1
    while "|" in (line := state.src[place : state.src.find("\n", place) + 1]):
        cells = _cells(line)
        last = ["|".join(cells[len(head) - 1 :])] * (len(cells) >= len(head))
        rows.append([*cells[: len(head) - 1], *last, *[""] * (len(head) - len(cells))])
        place += len(line)
    state.append_token(
        {
            "type": "table",
            "children": [
                {
                    "type": "row",
                    "children": [
                        {"type": "cell" if number or not cell else "head", "text": cell}
                        for cell in row
                    ],
                }
                for number, row in enumerate(rows)
            ],
        }
    )
    return place


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")]


def _ordered(block: Block) -> bool:
    return bool(block["attrs"]["ordered"])


def _inner(block: Block) -> list[Block]:
    """What a block is made of; the lines of a list's item are one."""
    parts = [part for part in block.get("children", ()) if part["type"] != "blank_line"]
    joined = block["type"] == "block_text"
    return [
        {"type": "text", "raw": " "} if joined and part["type"] == "softbreak" else part
        for part in parts
    ]


def to_html(blocks: Iterable[Block]) -> str:
    """HTML of blocks, every text of it escaped; headings of any level are h4."""
    return "\n".join(map(_html, blocks))


def _html(block: Block) -> str:
    kind = block["type"]
    if kind == "softbreak":
        return "\n"
    if kind == "list":
        if _ordered(block):
            kind = "ol"
        else:
            kind = "ul"
    if "raw" in block:
        inner = html.escape(block["raw"].removesuffix("\n" * (kind == "block_code")))
    else:
        inner = "".join(map(_html, _inner(block)))
    return HTML.get(kind, "{}").format(inner, href=html.escape(block.get("href", "")))


# Written as Markdown


def to_markdown(blocks: Iterable[Block]) -> str:
    """Markdown of blocks that reads as the same blocks, every other sign of it escaped."""
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
        if _ordered(block):
            sign = "1."
        else:
            sign = "-"
        texts = [textwrap.indent(_markdown(part), " " * (len(sign) + 1)) for part in inner]
        return "\n".join(f"{sign} {text.lstrip(' ')}" for text in texts)
    if kind == "list_item":
        blank = any(part["type"] == "paragraph" for part in inner)
        return ("\n" * (1 + blank)).join(map(_markdown, inner))
    if kind == "table":
        return table_markdown(
            [[_markdown(cell).replace("|", "\\|") for cell in row["children"]] for row in inner]
        )
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
    """Signs around code, more of them than any run in the text."""
    return "`" * max(least, 1 + max((len(run) for run in re.findall("`+", text)), default=0))


def _code(text: str) -> str:
    sign = _fence(text, 1)
    blank = " " * (text.startswith((" ", "`")) or text.endswith("`"))
    return f"{sign}{blank}{text}{blank}{sign}"


def escaped(text: str) -> str:
    """A text in which no sign is Markdown's or HTML's; what stands in a table has its bars escaped
    there."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(
        r"([\\`*_\[\]~$]|!$)", r"\\\1", text
    )  # a sign before a link would make it a picture


def text_markdown(text: str, cell: bool = False) -> str:
    """A line of plain text as Markdown, or a cell of a table."""
    line = escaped(plain(text)).replace("\n", " ").strip()
    if cell:
        return line.replace("|", "\\|")
    return _safe_start(line)


def table_markdown(rows: Sequence[Sequence[str]]) -> str:
    """A table of cells that are Markdown already, the first row its head."""
    lines = ["| " + " | ".join(cell or " " for cell in row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + " --- |" * len(rows[0]), *lines[1:]])


def fenced(text: str, kind: str = "") -> str:
    """A fence longer than any in the text."""
    sign = _fence(text, 3)
    return f"{sign}{kind}\n{text}\n{sign}"


def _safe_start(line: str) -> str:
    """A line that begins no block: no list, rule, heading or table."""
    line = line.strip()
    line = re.sub(r"^([0-9]{1,9})([.)])", r"\1\\\2", line)
    if line[:1] and line[0] in "-+=:|#":
        return f"\\{line}"
    return line
