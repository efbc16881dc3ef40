"""Rows of a register map, as a table of text."""

from __future__ import annotations

import csv
import textwrap


def map_rows(table: str) -> list[dict[str, str]]:
    """The rows of a table, whose first line names its columns."""
    return [*csv.DictReader(textwrap.dedent(table).strip().splitlines())]
