"""What the simulated device does with a wrong field, as the page says it."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest
from conftest import CAPTURES
from wrong_fields import Wrong, check_row, rows_of, unnamed_reasons

import npulab
from npulab.captures.capture import Capture
from npulab.support.files import read_table

ROWS: dict[str, list[Wrong]] = {}
for _row in read_table(Path(__file__).with_name("wrong_fields.csv")):
    _fields = {}
    for _pair in _row["fields"].split():
        _name, _, _value = _pair.partition("=")
        _fields[_name] = int(_value, 0)
    _task = int(_row["task"]) if _row["task"] else None
    _wrong = Wrong(_row["capture"], _fields, _row["outcome"], _row["reason"], _task)
    ROWS.setdefault(_row["row"], []).append(_wrong)
NAMES = sorted({wrong.of for wrong in chain.from_iterable(ROWS.values())})


@pytest.fixture(scope="module")
def goods() -> dict[str, Capture]:
    return {name: npulab.load(CAPTURES / "ane" / name) for name in NAMES}


@pytest.mark.parametrize("row", ROWS)
def test_the_device_does_what_the_page_says(row: str, goods: dict[str, Capture]) -> None:
    check_row("ane", row, goods, ROWS[row])


def test_each_row_of_the_page_is_tried() -> None:
    assert [*ROWS] == [*rows_of("ane")]


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["sim-add", "sim-3x3-same", "sim-3x3-depthwise", "sim-tanh"])
def test_no_field_hangs_for_a_reason_that_the_page_lacks(
    name: str, goods: dict[str, Capture]
) -> None:
    assert not unnamed_reasons(goods[name], ROWS)
