"""Which comment of a C file belongs to which member, macro or struct. A comment is one of npulab's
annotations, or a note of people.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from typing import Any, NamedTuple

from npulab.registers.formats.c_comments import MARK, note_in, said_in
from npulab.registers.formats.c_text import Comment, Source
from npulab.support.refuse import refusing

NEAR = 2**8  # the most characters between an annotation and its struct
FAR = 2**12  # the most characters between a comment and its member or macro
SIGNS = re.compile(r"[\[\](),;{}]")
DEPTHS = {"(": 1, "[": 1, ")": -1, "]": -1}  # what a sign adds to the depth of brackets


class Span(NamedTuple):
    """The place of a member, enumerator or macro in the text: ``code[start:end]``."""

    start: int
    end: int


class Comments(NamedTuple):
    """The comments of a file: ``words`` has what annotations state (values by name), ``notes`` the
    notes of people. A key is the start of the span to which the comment belongs."""

    words: dict[int, dict[str, Any]]
    notes: dict[int, str]


def comments_of(source: Source, spans: Iterable[Span], before: bool = True) -> Comments:
    """Return the comments of each span: those after the span on its line, those inside the span
    and, if ``before``, those before the span.

    Raises ValueError with file and line for an annotation that is broken.
    """
    out = Comments({}, {})
    if not source.comments:
        return out
    ordered = sorted(spans, key=lambda span: (span.end, span.start))
    ends = [span.end for span in ordered]
    for comment in source.comments:
        following = bisect_right(ends, comment.start)  # the first span that ends after the comment
        span = None
        if following and _follows(source, comment, ends[following - 1]):
            span = ordered[following - 1]
        elif following < len(ordered) and (before or comment.start >= ordered[following].start):
            between = source.code[comment.end : ordered[following].start]
            if len(between) <= FAR and not re.search(r"[{};]", between):
                span = ordered[following]
        if span is None:
            continue
        words = annotation_in(source, comment)
        if words is not None:
            out.words[span.start] = {**out.words.get(span.start, {}), **words}
        elif span.end <= comment.start or not _heads_list(source, comment):
            note = f"{out.notes.get(span.start, '')} {note_in(comment.text)}".strip()
            if note:
                out.notes[span.start] = note
    return out


def _follows(source: Source, comment: Comment, end: int) -> bool:
    """True if a comment begins on the line on which a span ends, with only blanks between them."""
    between = source.code[end : comment.start]
    return len(between) < FAR and not between.strip() and "\n" not in between


def _heads_list(source: Source, comment: Comment) -> bool:
    """True if a comment follows an opening brace and ends its line: it is about the whole list in
    the braces, not about the first member."""
    before = source.code[max(0, comment.start - FAR) : comment.start].rpartition("\n")[2]
    after = source.code[comment.end : comment.end + FAR].partition("\n")[0]
    return before.rstrip().endswith("{") and after.isspace()


def annotation_in(source: Source, comment: Comment) -> dict[str, Any] | None:
    """Return the values by name that an annotation states; None for any other comment. Raises
    ValueError with file and line for a broken annotation.
    """
    if MARK not in comment.text:
        return None
    with refusing(source.where(comment.start)):
        return said_in(comment.text)


def annotation_before(source: Source, position: int) -> dict[str, Any]:
    """Return the values by name that an annotation states right before the struct or union whose
    name is at ``position``; an empty dict if there is no annotation.
    """
    start = -1
    for word in ("struct", "union"):
        found = source.code.rfind(word, max(0, position - NEAR), position + len(word))
        start = max(start, found)
    at = bisect_right(source.comments, start, key=lambda comment: comment.end) - 1
    if at < 0:
        return {}
    comment = source.comments[at]
    between = source.code[comment.end : start]
    if len(between) > NEAR or between.strip() not in ("", "typedef"):
        return {}
    return annotation_in(source, comment) or {}


def span_at(code: str, start: int, ends: str) -> Span:
    """Return the span from ``start`` to the first sign of ``ends`` that is outside of brackets,
    including this sign unless it is a closing brace; to the end of the text if there is no such
    sign."""
    depth = 0
    for match in SIGNS.finditer(code, start):
        if depth <= 0 and match[0] in ends:
            if match[0] == "}":
                return Span(start, match.start())
            return Span(start, match.end())
        depth += DEPTHS.get(match[0], 0)
    return Span(start, len(code))
