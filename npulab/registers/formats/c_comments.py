"""Comments of C: notes of people, and npulab's own annotations, which state facts that C cannot
express.

``/* npulab: {"evidence": "K", "at": 14} */`` states columns for the declaration next to it. An
annotation is JSON in which ``/*``, ``*/`` and ``??`` are escaped: the first two would begin or end
a comment, and the third would begin a trigraph.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

MARK = "npulab:"
TEXTS = (
    "block",
    "feature",
    "word",
    "register",
    "field",
    "value",
    "address",
    "evidence",
    "note",
    "enum",
    "prefix",
    "name",
    "copyright",
    "sparse",
    "words",
)
NUMBERS = ("base", "at", "align")
PLAIN = re.compile(r"[ -~]{1,400}")
LICENCE = re.compile(r"copyright|spdx|licen[cs]e", re.IGNORECASE)


def annotation(said: Mapping[str, Any]) -> str:
    r"""Return an annotation, the comment that states these values by name; blank for no values.

    >>> annotation({"note": "a */ b"})
    '/* npulab: {"note": "a *\\u002f b"} */'
    """
    if not said:
        return ""
    text = json.dumps(dict(said), ensure_ascii=True)
    text = re.sub(r"/(?=\*)|(?<=\*)/|(?<=\?)\?|\x7f", lambda one: f"\\u{ord(one[0]):04x}", text)
    return f"/* {MARK} {text} */"


def said_in(text: str) -> dict[str, Any] | None:
    """Return the values by name that an annotation states; None for any other comment.
    Raises ValueError for a broken annotation."""
    if not text.strip().startswith(MARK):
        return None
    try:
        said = json.loads(text.strip().removeprefix(MARK))
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict):
        raise ValueError(
            f"got the annotation {text.strip()[:80]!r}, allowed is one object of JSON after {MARK}"
        )
    for name, value in said.items():
        if name in TEXTS:
            known = isinstance(value, str)
        elif name in NUMBERS:
            known = type(value) is int
        elif name == "hole":
            known = value is True
        else:
            known = False
        if not known:
            raise ValueError(
                f"got the annotation {name} = {str(value)[:40]!r}, allowed are texts for "
                f"{', '.join(TEXTS)}, whole numbers for {', '.join(NUMBERS)} and true for hole"
            )
    return said


def note_in(text: str) -> str:
    r"""Return the text of a comment on one line, without the marks of documentation tools.

    >>> note_in("*< the width\n * in pixels ")
    'the width in pixels'
    """
    lines = (re.sub(r"^\s*[*/!]*<?\s?", "", line) for line in text.split("\n"))
    return " ".join(" ".join(lines).split())


def note_comment(note: str) -> str:
    """Return a comment from which ``note_in`` reads this note; blank if no plain comment can, so
    that the note needs an annotation.
    """
    fits = (
        PLAIN.fullmatch(note)
        and "*/" not in note
        and "/*" not in note
        and "??" not in note
        and "\\" not in note
        and not note.startswith(MARK)
        and note_in(f" {note} ") == note
        and not LICENCE.search(note)
    )
    if fits:
        return f"/* {note} */"
    return ""


def licence_in(text: str) -> str:
    """Return the lines of a comment about copyright or licence; blank for any other comment."""
    if not LICENCE.search(text) or text.strip().startswith(MARK):
        return ""
    return "\n".join(re.sub(r"^\s*\*? ?", "", line).rstrip() for line in text.split("\n")).strip(
        "\n"
    )


def licence_comment(text: str) -> str:
    """Return a comment from which ``licence_in`` reads this text or, if no plain comment can carry
    it, an annotation; blank for a blank text.
    """
    if not text:
        return ""
    inner = "\n" + "".join(f" * {line}".rstrip() + "\n" for line in text.split("\n")) + " "
    if (
        "*/" in inner
        or "/*" in inner
        or "??" in inner
        or "\\" in inner
        or licence_in(inner) != text
        or not re.fullmatch(r"[ -~\n]*", inner)
    ):
        return annotation({"copyright": text})
    return f"/*{inner}*/"
