"""Writer of Markdown: a section for each register, a table of its fields."""

from __future__ import annotations

import re
from itertools import groupby

from npulab.registers.formats.drawn import Drawn, drawn
from npulab.registers.formats.tables import RegisterTable

HEAD = ("| bits | field | value | evidence | note |", "| ---: | --- | --- | --- | --- |")
ENTITIES = str.maketrans(
    {
        "&": "&amp;",
        "<": "&lt;",
        ">": "&gt;",
        "$": "&#36;",
        "|": "&#124;",
        '"': "&quot;",
        "@": "&#64;",
    }
)


def markdown_text(table: RegisterTable) -> str:
    """Return a table as Markdown: the registers of each block, each with its fields from the
    highest bit, then the enums and the copyright.

    Texts are escaped: nothing in them is read as HTML, as a link, or as the end of a cell or line.
    """
    lines = []
    for block, some in groupby(drawn(table), lambda register: register.block):
        lines += [f"# {_escaped(block) or 'Registers'}", ""]
        for register in some:
            chips = ""
            if register.feature:
                chips = f", chips with {_escaped(register.feature)}"
            lines += [
                f"## {_escaped(register.register)}",
                "",
                f"Offset `{register.offset:#06x}`{chips}.",
                "",
                *HEAD,
                *_rows(register),
                "",
            ]
    if table.enums:
        lines += ["# Enums", ""]
    for name, values in table.enums.items():
        lines += [
            f"## {_escaped(name)}",
            "",
            "| raw | name |",
            "| ---: | --- |",
            *(f"| `{raw:#x}` | {_escaped(text)} |" for raw, text in values.items()),
            "",
        ]
    if table.copyright:
        lines += ["# Copyright", ""]
        for line in table.copyright.splitlines():
            if line:
                line = f"{_escaped(line)}  "
            lines.append(line)
        lines.append("")
    return "\n".join(lines)


def _rows(register: Drawn) -> list[str]:
    """Return the lines of a register's table."""
    out = []
    for box in reversed(register.boxes):
        note = str(box.row.get("note", ""))
        if "address" in box.row:
            note = "; ".join(filter(None, ("an address", note)))
        texts = [box.name, box.meaning, str(box.row.get("evidence", "")), note]
        out.append(f"| {' | '.join([box.bits, *map(_escaped, texts)])} |")
    return out


def _escaped(text: str) -> str:
    r"""Return a text that Markdown shows as ``text`` is.

    >>> _escaped("a_b *c* <b>|[x](y)")
    'a_b \\*c\\* &lt;b&gt;&#124;\\[x\\]\\(y\\)'
    """
    out = re.sub(r"([\\`*\[\]()~!#{}])", r"\\\1", text).translate(ENTITIES)
    # an underscore inside a word needs no escape
    out = re.sub(r"(?<![A-Za-z0-9_])_|_(?![A-Za-z0-9_])", r"\\_", out)
    out = re.sub(r"(?i)\b(https?|ftp|mailto):", r"\1&#58;", out)
    return re.sub(r"(?i)\b(www)\.", r"\1&#46;", out)
