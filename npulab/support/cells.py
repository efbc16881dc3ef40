"""Texts in the cells of a CSV table, guarded for the case that a spreadsheet opens it.

A spreadsheet runs a cell that begins with ``=``, ``+``, ``-`` or ``@`` as a formula, whoever wrote
the text. So an apostrophe is written before such a text, and is removed when the text is read; a
number gets no apostrophe. In some countries spreadsheets cut a line at its semicolons, or at tabs,
without regard to quotes. So a part of a text after a semicolon, a tab or the end of a line gets an
apostrophe too, if it begins as a formula does.
"""

from __future__ import annotations

import re
from collections.abc import Callable

APOSTROPHE = "'"
# ``=``, ``+``, ``-`` and ``@``, then the full-width form of each: some spreadsheets also run a
# formula that begins with a full-width form.
SIGNS = "=+\\-@\uff1d\uff0b\uff0d\uff20"
FORMULA = re.compile(rf"'*(?:\s*[{SIGNS}]|[\t\r\n])")
NUMBER = re.compile(r"[+-]?(?:0[xX][0-9a-fA-F]+|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)")
CUT = re.compile(r"([;\t\r\n])")
CUT_COMMENT = re.compile(r"([,;\t])")
# Matches a part of a cell that begins as a formula: one of ``SIGNS``, perhaps after apostrophes,
# blanks and quotes.
INSIDE = re.compile(rf"""'*[\s"]*[{SIGNS}]""")


def guarded(text: str) -> str:
    """The text to write into a cell, with apostrophes so that no spreadsheet takes it for a
    formula.

    >>> guarded("=1+1"), guarded("'=1"), guarded("-1"), guarded("a=1"), guarded("a;=1")
    ("'=1+1", "''=1", '-1', 'a=1', "a;'=1")
    """
    cell = _parts(text, CUT, _guarded_part)
    if not FORMULA.match(text) or NUMBER.fullmatch(text):
        return cell
    return APOSTROPHE + cell


def unguarded(cell: str) -> str:
    """The text that a cell stands for: the reverse of ``guarded``.

    >>> unguarded("'=1+1"), unguarded("'a'"), unguarded("a;'=1")
    ('=1+1', "'a'", 'a;=1')
    """
    text = _parts(cell, CUT, _unguarded_part)
    if text.startswith(APOSTROPHE) and FORMULA.match(text):
        return text[1:]
    return text


def guarded_comment(line: str) -> str:
    r"""The line to write for a comment, with apostrophes so that no part of it becomes a formula,
    wherever a spreadsheet cuts it.

    >>> guarded_comment('a,"=1",-b;=2')
    'a,\'"=1",\'-b;\'=2'
    """
    return _parts(line, CUT_COMMENT, _guarded_part)


def unguarded_comment(line: str) -> str:
    """The comment line from which ``guarded_comment`` made this line."""
    return _parts(line, CUT_COMMENT, _unguarded_part)


def _parts(text: str, cut: re.Pattern[str], change: Callable[[str], str]) -> str:
    """Cut a text at the separators that ``cut`` matches, apply ``change`` to each part but the
    first, and join parts and separators again."""
    parts = cut.split(text)  # parts are at even places, separators at odd places
    for number in range(2, len(parts), 2):
        parts[number] = change(parts[number])
    return "".join(parts)


def _guarded_part(part: str) -> str:
    risky = INSIDE.match(part) and not NUMBER.fullmatch(part)
    if risky:
        return APOSTROPHE + part
    return part


def _unguarded_part(part: str) -> str:
    written = part.startswith(APOSTROPHE) and INSIDE.match(part)
    if written:
        return part[1:]
    return part
