"""What the simulated device does with a wrong field where no RTL confirms it, as the page says it."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import CAPTURES, shared
from wrong_fields import check_row, rows_of, wrong_rows

import npulab
from npulab.captures.capture import Capture
from npulab.npus.nvdla import imported

FULL, CDP, SDP = "a layer of nv_full", "a trace of CDP", "a trace of SDP"
ROWS = wrong_rows(Path(__file__).with_name("wrong_fields.csv"))


@pytest.fixture(scope="module")
def goods() -> dict[str, Capture]:
    found = {FULL: npulab.load(CAPTURES / "nvdla" / "sim-full-map")}
    for name, folder in ((CDP, "cdp_8x8x32_lrn3_int8_1"), (SDP, "sdp_8x8x32_bypass_int8_1")):
        (found[name],) = imported.read(shared(f"data/nvdla/nv_small/{folder}")).values()
    return found


@pytest.mark.parametrize("row", ROWS)
def test_the_device_does_what_the_page_says(row: str, goods: dict[str, Capture]) -> None:
    check_row("nvdla", row, goods, ROWS[row])


def test_each_row_of_the_page_is_tried() -> None:
    assert [*ROWS] == [*rows_of("nvdla")]
