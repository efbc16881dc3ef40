"""Texts in the cells of a table that is written as CSV, where a spreadsheet may open it.

A spreadsheet runs a cell that begins with ``=``, ``+``, ``-`` or ``@`` as a formula, whoever wrote
the text.  Such a text is written behind an apostrophe, which is taken away when it is read; a number
is written as it is.
"""

from __future__ import annotations

import re

APOSTROPHE = "'"
SIGNS = "=+\\-@\uff1d\uff0b\uff0d\uff20"  # the last four are wide forms, which some spreadsheets take alike
FORMULA = re.compile(rf"'*(?:\s*[{SIGNS}]|[\t\r\n])")
NUMBER = re.compile(r"[+-]?(?:0[xX][0-9a-fA-F]+|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)")
# a comment is cut at its commas there, and a quote opens a cell
INSIDE = re.compile(rf"""'*[\s"]*[{SIGNS}]""")


def guarded(text: str) -> str:
    """A text as a cell has it: no formula.

    >>> guarded("=1+1"), guarded("'=1"), guarded("-1"), guarded("a=1")
    ("'=1+1", "''=1", '-1', 'a=1')
    """
    if not FORMULA.match(text) or NUMBER.fullmatch(text):
        return text
    return APOSTROPHE + text


def unguarded(cell: str) -> str:
    """The text that a cell was written for.

    >>> unguarded("'=1+1"), unguarded("'a'")
    ('=1+1', "'a'")
    """
    if cell.startswith(APOSTROPHE) and FORMULA.match(cell):
        return cell[1:]
    return cell


def guarded_comment(line: str) -> str:
    """A comment's line of which a spreadsheet makes no formula where it cuts it at its commas.

    >>> guarded_comment('a,"=1",-b')
    'a,\\'"=1",\\'-b'
    """
    first, *others = line.split(",")
    kept = [first]
    for part in others:
        risky = INSIDE.match(part) and not NUMBER.fullmatch(part)
        kept.append(APOSTROPHE + part if risky else part)
    return ",".join(kept)


def unguarded_comment(line: str) -> str:
    """The line that ``guarded_comment`` was given."""
    first, *others = line.split(",")
    kept = [first]
    for part in others:
        written = part.startswith(APOSTROPHE) and INSIDE.match(part)
        kept.append(part[1:] if written else part)
    return ",".join(kept)
