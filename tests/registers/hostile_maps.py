"""Texts that would run or break a page, a table that has them everywhere, and elements of a page."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from npulab.registers.formats import RegisterTable

EVIL = "<script>document.title='ran'</script>"


NASTY = (
    '"><img src=x onerror=alert(1)>',
    "*/ int evil; /*",
    "'; DROP TABLE x; --",
    "[a](javascript:alert(1))",
    "<% system('touch ran') %>",
    "]]></svg><script>alert(1)</script>",
    "a|b`c\\",
    "&lt;b&gt; &amp; %s {0} $(touch ran)",
    "// \\",
    '"; #include "/etc/passwd"',
    EVIL,
)


def nasty_table() -> RegisterTable:
    rows = [
        {
            "block": "B" + text,
            "offset": 4 * n,
            "register": "R" + text,
            "field": "f" + text,
            "lsb": 0,
            "width": 3,
            "value": "enum:e" + str(n),
            "evidence": "E" + text,
            "note": text,
        }
        for n, text in enumerate(NASTY)
    ]
    rows += [
        {
            "block": "B" + NASTY[0],
            "offset": 0x100,
            "register": "S",
            "field": f"g{text}",
            "lsb": 2 * n,
            "width": 2,
            "note": text * 3,
        }
        for n, text in enumerate(NASTY)
    ]
    return RegisterTable.of(
        rows, {f"e{n}": {0: text, 5: "b" + text} for n, text in enumerate(NASTY)}
    )


class Tags(HTMLParser):
    """What a browser would take for elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def harmless(text: str) -> None:
    """Nothing in a page runs or asks for anything."""
    for tag, attributes in Tags(text).seen:
        assert tag not in (
            "script",
            "iframe",
            "object",
            "embed",
            "form",
            "base",
            "link",
            "foreignobject",
        ), tag
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            assert name not in ("src", "href", "xlink:href") or re.match(
                r"(#|https?:|data:image/png|mailto:)", value or ""
            ), (tag, value)
            assert tag != "img" or name != "src" or (value or "").startswith("data:"), value
