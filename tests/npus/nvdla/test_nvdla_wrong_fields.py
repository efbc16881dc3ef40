"""What the simulated device does with a wrong field where no RTL confirms it, as the page says it."""

from __future__ import annotations

import pytest
from conftest import CAPTURES, shared
from wrong_fields import Wrong, check_row, rows_of

import npulab
from npulab.captures.capture import Capture
from npulab.npus.nvdla import imported

FULL, CDP, SDP = "a layer of nv_full", "a trace of CDP", "a trace of SDP"
FAR = {"SDP.D_DST_BASE_ADDR_LOW.DST_BASE_ADDR_LOW": 2**24}


ROWS = {
    "other chips, whose buffer holds several atoms in an entry": (
        Wrong(FULL, {"SDP.D_DATA_CUBE_HEIGHT.HEIGHT": 20}, "hang", "SDP waits for .* CACC gives"),
        Wrong(FULL, {"CSC.D_OP_ENABLE.OP_EN": 0}, "hang", "waits for CSC, which nobody started"),
        Wrong(FULL, {"CDMA.D_DAIN_ADDR_LOW_0.DATAIN_ADDR_LOW_0": 2**16}, "hang", "nothing was put"),
        Wrong(FULL, {"CSC.D_BANK.DATA_BANK": 14}, "hang", "looks for data elsewhere than CDMA"),
    ),
    "CDP, on every chip": (
        Wrong(CDP, {"CDP_RDMA.D_DATA_CUBE_HEIGHT.HEIGHT": 8191}, "hang", r"CDP_RDMA \(SRC\) reads"),
        Wrong(CDP, {"CDP_RDMA.D_OP_ENABLE.OP_EN": 0}, "hang", "CDP waits for CDP_RDMA"),
    ),
    "an output that nothing writes": (Wrong(SDP, FAR, "hang", "no job writes"),),
    "formats and modes that `expected.csv` lacks, sizes beyond the simulation": (
        Wrong(FULL, {"CSC.D_BATCH_NUMBER.BATCHES": 1}, "refused", "BATCHES"),
        Wrong(FULL, {"CDMA.D_WEIGHT_FORMAT.WEIGHT_FORMAT": 1}, "refused", "WEIGHT_FORMAT"),
    ),
}


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
