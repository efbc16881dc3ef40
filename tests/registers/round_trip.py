"""Register maps written to a file, read again and written again."""

from __future__ import annotations

import warnings
from pathlib import Path

from conftest import ROOT

import npulab
from npulab.registers.formats import FORMATS, RegisterTable

Places = dict[tuple[str, str, str], tuple[int, ...]]


TABLES = sorted(
    path
    for path in (ROOT / "npulab" / "npus").rglob("*.csv")
    if {"field", "lsb", "width"}
    <= {*path.read_text(encoding="utf-8").partition("\n")[0].split(",")}
)
READ = ("struct", "macros", "xml", "rdl", "svd")  # C is the first two


def places(table: RegisterTable) -> Places:
    """Where each bit of each named value lies, in bits from its block's start, by block, feature
    and field.
    """
    found: dict[tuple[str, str, str], dict[int, int]] = {}
    for row in table.rows:
        if "field" not in row:
            continue
        inside = f"{row['register']}." if "register" in row and "at" not in row else ""
        place = found.setdefault(
            (row.get("block", ""), row.get("feature", ""), inside + row["field"]), {}
        )
        for bit in range(row["width"]):
            assert (
                place.setdefault(row.get("at", 0) + bit, at := row["offset"] * 8 + row["lsb"] + bit)
                == at
            )
    return {key: tuple(bits[n] for n in sorted(bits)) for key, bits in found.items()}


def read(path: Path) -> tuple[RegisterTable, list[str]]:
    """The table in a file, and what was told of it."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        table = npulab.read_map(path)
    return table, [str(one.message) for one in told]


def there_and_back(table: RegisterTable, to: str, folder: Path) -> RegisterTable:
    """Export, import, export again: the same table, the same bytes, nothing told."""
    first, second = (folder / name / f"map{FORMATS[to].suffix}" for name in (f"{to}1", f"{to}2"))
    for path in (first, second):
        path.parent.mkdir(parents=True)
    assert npulab.write_map(table, first, to=to) == [first]
    again, told = read(first)
    assert (told, again.rows, again.enums, again.copyright) == (
        [],
        table.rows,
        table.enums,
        table.copyright,
    )
    npulab.write_map(again, second, to=to)
    assert second.read_bytes() == first.read_bytes()
    return again
