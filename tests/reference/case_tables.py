"""Cases of tests as tables: a row a line, cells between ``|``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def cases(text: str, *kinds: Callable[[str], Any]) -> list[tuple[Any, ...]]:
    """The rows of a table, each cell made by the function of its column; a column without one has
    texts.

    >>> cases("a | 1", str, int), cases("SDP.D_A.B=3 | x", fields)
    ([('a', 1)], [({'SDP.D_A.B': 3}, 'x')])
    """
    rows = []
    for line in text.strip().splitlines():
        cells = [cell.strip() for cell in line.split(" | ")]
        made = [kind(cell) for kind, cell in zip(kinds, cells, strict=False)]
        rows.append((*made, *cells[len(made) :]))
    return rows


def whole(cell: str) -> int:
    """A number, decimal or with ``0x``."""
    return int(cell, 0)


def fields(cell: str) -> dict[str, int]:
    """Values of fields by name, from ``NAME=VALUE`` separated by blanks."""
    pairs = [pair.split("=") for pair in cell.split()]
    return {name: whole(value) for name, value in pairs}


def escaped(cell: str) -> str:
    r"""A text in which ``\n`` is the end of a line and ``\x20`` a blank at an end."""
    return cell.encode().decode("unicode_escape")
