"""Register maps written to a file, read again and written again."""

from __future__ import annotations

import csv
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from conftest import ROOT
from pace import limit

import npulab
from npulab.registers.formats import FORMATS, RegisterTable

Places = dict[tuple[str, str, str], tuple[int, ...]]
Reader = Callable[[Path], RegisterTable]


def row(field: str, lsb: int = 0, width: int = 8, **more: Any) -> dict[str, Any]:
    """A row of a map."""
    return {"field": field, "lsb": lsb, "width": width, **more}


TABLES = sorted(
    path
    for path in (ROOT / "npulab" / "npus").rglob("*.csv")
    if {"field", "lsb", "width"}
    <= {*path.read_text(encoding="utf-8").partition("\n")[0].split(",")}
)
READ = ("struct", "macros", "xml", "rdl", "svd")  # C is the first two


def rows_in(text: str) -> list[dict[str, str]]:
    """The rows of a table that a test states as text, below the names of its columns."""
    return [*csv.DictReader(text.strip().splitlines())]


def cells(rows: Iterable[Mapping[str, Any]], columns: str) -> list[tuple[Any, ...]]:
    """Some columns of rows, each row as a tuple; None for a cell that a row does not have."""
    return [tuple(map(row.get, columns.split())) for row in rows]


def places(table: RegisterTable) -> Places:
    """Where each bit of each named value lies, in bits from its block's start, by block, feature
    and field.
    """
    found: dict[tuple[str, str, str], dict[int, int]] = {}
    for row in table.rows:
        if "field" not in row:
            continue
        name = row["field"]
        if "register" in row and "at" not in row:
            name = f"{row['register']}.{name}"
        place = found.setdefault((row.get("block", ""), row.get("feature", ""), name), {})
        for bit in range(row["width"]):
            at = row["offset"] * 8 + row["lsb"] + bit
            assert place.setdefault(row.get("at", 0) + bit, at) == at
    return {key: tuple(bits[n] for n in sorted(bits)) for key, bits in found.items()}


def read(path: Path, reader: Reader = npulab.read_map) -> tuple[RegisterTable, list[str]]:
    """The table in a file, and the texts of the warnings of its reader."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        table = reader(path)
    return table, [str(one.message) for one in told]


def refusals(
    reader: Reader, texts: Sequence[bytes], count: int, path: Path, seed: int
) -> list[str]:
    """The errors of a reader for texts with random changes, which are written to a path; nothing
    for a text that is still a map."""
    random = np.random.RandomState(seed)
    said = []
    for n in range(count):
        path.write_bytes(changed(texts[n % len(texts)], random))
        begin = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                reader(path).check()
            except (ValueError, LookupError) as error:
                said.append(str(error))
        assert time.process_time() - begin < limit(1)
    assert said
    assert not any("\n" in text for text in said)
    return said


def changed(text: bytes, random: np.random.RandomState) -> bytes:
    """A text with a few bytes changed, left out, doubled or moved."""
    data = bytearray(text)
    for _ in range(random.randint(1, 4)):
        at, size = random.randint(len(data)), random.randint(1, 40)
        kind = random.randint(5)
        if kind == 0:
            data[at] = random.randint(256)
        elif kind == 1:
            del data[at : at + size]
        elif kind == 2:
            data[at:at] = data[at : at + size]
        elif kind == 3:
            data[at : at + 1] = b"%d" % random.randint(10**9)
        else:
            del data[random.randint(len(data)) :]
        data = data or bytearray(b"<")
    return bytes(data)


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
