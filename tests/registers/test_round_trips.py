"""Every map comes back from each format that npulab writes and reads."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from conftest import shared
from round_trip import READ, TABLES, places, read, rows_in, there_and_back

import npulab
from npulab.registers.formats import RegisterTable

# These are of the same kinds as the others, and larger.
LARGE = [
    "tp",
    "update4",
    "h11",
    "h13",
    "h14",
    "h15",
    "h16",
    "h17",
    "h18",
    "full",
    "small",
    "registers",
]


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=pytest.mark.long if path.stem in LARGE else (), id=path.stem)
        for path in TABLES
    ],
)
def test_every_shipped_map_comes_back_from_each_format(path: Path, tmp_path: Path) -> None:
    table = npulab.read_map(path)
    assert (
        sum(row["width"] for row in table.rows if "field" in row)
        == sum(map(len, places(table).values()))
        > 50
    )
    for to in READ:
        assert places(there_and_back(table, to, tmp_path)) == places(table)


def test_the_public_database_comes_back_from_each_format(tmp_path: Path) -> None:
    path = shared("data/rknpu/registers.xml")
    table, _ = read(path)
    space = "{http://nouveau.freedesktop.org/}"
    fields = [
        (int(one.get("low", one.get("pos"))), int(one.get("high", one.get("pos"))))
        for one in ET.parse(path).iter(f"{space}bitfield")
    ]
    assert sum(high - low + 1 for low, high in fields) == sum(row["width"] for row in table.rows)
    for to in READ:
        there_and_back(table, to, tmp_path)


def test_maps_without_blocks_and_with_enums_in_pieces_come_back(tmp_path: Path) -> None:
    rows = rows_in("""
block,offset,register,field,lsb,width,at,value
,0,R,split,0,2,0,enum:e
,4,S,split,5,2,2,enum:e
,8,T,plain,0,4,,enum:e
B,0,R,f,0,3,,
""")
    table = RegisterTable.of(rows, {"e": {0: "a", 9: "b"}})
    for to in READ:
        there_and_back(table, to, tmp_path)


def one_word(field: str, offset: int, lsb: int, width: int, **more: object) -> dict[str, Any]:
    """The row of a run of bits of register W."""
    place = {"block": "B", "register": "W", "offset": offset}
    return {**place, "field": field, "lsb": lsb, "width": width, **more}


def two_words(
    field: str, low: int, high: int, register: str = "W", at: int = 0, **more: str
) -> list[dict[str, Any]]:
    """Rows of a field that goes over two words of a register."""
    whole = {"register": register, **more}
    return [
        one_word(field, at, low, 32 - low, **whole, at=0),
        one_word(field, at + 4, 0, high, **whole, at=32 - low),
    ]


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "rows",
    [
        two_words("W", 0, 32),
        two_words("W", 4, 16),
        two_words("other", 4, 16),
        two_words("W.in", 4, 16),
        [*two_words("W", 4, 16), one_word("X", 4, 20, 3)],
        [*two_words("W.in", 4, 16), one_word("X", 0, 0, 3)],
        [*two_words("W", 0, 8, feature="a"), *two_words("W", 0, 12, feature="b")],
        [row for n in range(3) for row in two_words(f"W[{n}]", 0, 20, f"W[{n}]", 8 * n)],
        [one_word("W", 0, 4, 20)],
        [one_word("W", 0, 9, 1, value="signed")],
    ],
    ids=lambda rows: "-".join(dict.fromkeys(f"{row['field']}{row['lsb']}" for row in rows)),
)
def test_fields_of_two_words_come_back(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    table = RegisterTable.of(rows)
    for to in READ:
        there_and_back(table, to, tmp_path)
