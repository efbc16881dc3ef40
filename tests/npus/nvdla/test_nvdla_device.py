"""The simulated device against recorded traces: what it leaves in memory, and what makes it
hang.
"""

from __future__ import annotations

import tracemalloc
import zlib
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from conftest import shared

import npulab
from npulab.captures.target import Hang, Unsupported
from npulab.npus.nvdla import imported
from npulab.npus.nvdla.simulate import executed, simulate

CASES = [
    "nv_large/dc_8x8x32_1x1x32x32_int8_0",
    "nv_large/pdp_3x3x33_2x2_ave_int8_0",
    "nv_large/sdp_passthrough_8x8x32_pack_inc_int8",
    "nv_medium_512/dc_8x16x128_3x3x128x32_int8",
    "nv_small/cdp_8x8x32_lrn3_int8_1",
    "nv_small/cdp_8x8x32_lrn5_int8_0",
    "nv_small/cdp_8x8x64_lrn3_int8_7",
    "nv_small/dc_13x15x64_5x3x64x16_int8_0",
    "nv_small/dc_1x1x8_1x1x8x1_int8_0",
    "nv_small/dc_24x33x55_5x5x55x25_int8_0",
    "nv_small/dc_24x44x14_5x3x14x41_int8_0",
    "nv_small/dc_6x8x192_3x3x192x32_int8_0",
    "nv_small/dc_8x8x36_4x4x36x16_dilation_int8_0",
    "nv_small/img_51x96x4_1x10x4x32_A8B8G8R8_int8_0",
    "nv_small/pdp_16x6x16_4x2_split_max_int8_0",
    "nv_small/pdp_28x28x8_2x2_max_int8_0",
    "nv_small/pdp_7x9x10_3x3_int8",
    "nv_small/pdp_8x8x64_2x2_min_int8_0",
    "nv_small/pdp_8x9x19_3x3_ave_int8_1",
    "nv_small/sdp_1x1x8_pass_through_int8_0",
    "nv_small/sdp_23x13x42_bs_int8_mem_0",
    "nv_small/sdp_3x3x33_bn_int8_reg_0",
    "nv_small/sdp_3x3x33_bn_int8_reg_1",
    "nv_small/sdp_3x3x33_bs_bn_int8_0",
    "nv_small/sdp_3x3x33_bs_int8_reg_0",
    "nv_small/sdp_3x3x33_ew_int8_reg_0",
    "nv_small/sdp_3x3x33_ew_le_lin_int8",
    "nv_small/sdp_4x22x42_bypass_int8",
    "nv_small/sdp_8x8x32_bypass_int8_1",
    "nvdlav1/conv_8x8_fc_int16",
    "nvdlav1/pdp_max_pooling_int16",
    "nvdlav1/sdp_relu_int16",
]
DIRECT, FEATURES = "nv_small/dc_24x44x14_5x3x14x41_int8_0", "nv_small/sdp_23x13x42_bs_int8_mem_0"


@cache
def read(folder: Path) -> npulab.Capture:
    (capture,) = imported.read(folder).values()
    assert isinstance(capture, npulab.Capture)
    return capture


def trace(name: str) -> npulab.Capture:
    return read(shared(f"data/nvdla/{name}"))


@pytest.mark.parametrize("name", CASES)
def test_memory_is_as_recorded(name: str) -> None:
    capture = trace(name)
    memory, place = executed(capture)
    assert capture.parameters["checks"]
    for row in capture.parameters["checks"]:
        got = memory.read(row["memory"], row["address"], row["size"]).tobytes()
        if row["buffer"]:
            assert got == capture.buffers[row["buffer"]][: row["size"]]
        else:
            assert zlib.crc32(got) == row["crc"]
    assert simulate(capture) == memory.read(place.memory, place.base, place.size).tobytes()


@pytest.mark.parametrize(
    ("name", "changed", "why"),
    [
        (
            DIRECT,
            {"CSC.D_WEIGHT_SIZE_EXT_1.WEIGHT_CHANNEL_EXT": 6},
            "WEIGHT_CHANNEL_EXT is 6 and CDMA.D_DATAIN_SIZE_1.DATAIN_CHANNEL is 13: kernels have to have the channels",
        ),
        (
            DIRECT,
            {"CDMA.D_WEIGHT_BYTES.WEIGHT_BYTES": 128},
            "WEIGHT_BYTES is 128: CSC looks for data elsewhere than CDMA puts them",
        ),
        (
            DIRECT,
            {"CDMA.D_WEIGHT_BYTES.WEIGHT_BYTES": 128, "CSC.D_WEIGHT_BYTES.WEIGHT_BYTES": 128},
            r"CDMA.D_WEIGHT_BYTES.WEIGHT_BYTES are 128 bytes, weights .* take 8610: the convolution waits for the rest",
        ),
        (
            DIRECT,
            {"CACC.D_DATAOUT_SIZE_0.DATAOUT_WIDTH": 3},
            "CACC waits for sums that CSC never asks for",
        ),
        (
            DIRECT,
            {"SDP.D_DATA_CUBE_WIDTH.WIDTH": 3},
            "SDP waits for 41 channels of 45x4, CACC gives 41 of 45x26",
        ),
        (
            DIRECT,
            {"SDP.D_FEATURE_MODE_CFG.FLYING_MODE": 0},
            "CACC waits for SDP, whose SDP.D_FEATURE_MODE_CFG.FLYING_MODE is 0",
        ),
        (DIRECT, {"SDP.D_OP_ENABLE.OP_EN": 0}, "a convolution waits for SDP, which nobody started"),
        (
            DIRECT,
            {"CDMA.D_DAIN_ADDR_HIGH_0.DATAIN_ADDR_HIGH_0": 1},
            "reads pri_mem 0x180018400 to .*, where nothing was put",
        ),
        (
            DIRECT,
            {"CDMA.D_LINE_STRIDE.LINE_STRIDE": 9},
            "CDMA.D_LINE_STRIDE.LINE_STRIDE is 0x9, off its alignment of 8",
        ),
        (
            FEATURES,
            {"SDP_RDMA.D_BRDMA_CFG.BRDMA_DISABLE": 1},
            "BS_MUL_CFG takes operands from memory, .*BRDMA_DISABLE is 1",
        ),
        (
            FEATURES,
            {"SDP.D_DST_BASE_ADDR_LOW.DST_BASE_ADDR_LOW": 0x10},
            "writes pri_mem 0x10 to .*, past what is set aside",
        ),
        (
            FEATURES,
            {"SDP_RDMA.D_OP_ENABLE.OP_EN": 0},
            "SDP from memory waits for SDP_RDMA, which nobody started",
        ),
    ],
)
def test_what_hangs_says_why(name: str, changed: dict[str, int], why: str) -> None:
    with pytest.raises(Hang, match=why):
        simulate(trace(name).with_fields(**short(trace(name), changed)))


@pytest.mark.parametrize(
    ("name", "changed", "why"),
    [
        (DIRECT, {"CDMA.D_MISC_CFG.CONV_MODE": 1}, "CDMA.D_MISC_CFG.CONV_MODE is 1, covered is 0"),
        (
            DIRECT,
            {"CSC.D_MISC_CFG.PROC_PRECISION": 2},
            "CSC.D_MISC_CFG.PROC_PRECISION is 2, covered is 0 as in CDMA.D_MISC_CFG.PROC_PRECISION",
        ),
        (
            FEATURES,
            {"SDP.D_FEATURE_MODE_CFG.BATCH_NUMBER": 3},
            "SDP.D_FEATURE_MODE_CFG.BATCH_NUMBER is 3",
        ),
    ],
)
def test_what_is_not_covered_is_named(name: str, changed: dict[str, int], why: str) -> None:
    with pytest.raises(Unsupported, match=why):
        simulate(trace(name).with_fields(**short(trace(name), changed)))


def test_a_chip_with_other_atoms_gives_another_output() -> None:
    capture = trace(DIRECT)
    assert simulate(replace(capture, chip="nv_small_256")) != simulate(capture)
    with pytest.raises(Unsupported, match="chip: got 'nv_none', allowed is one of nv_small, "):
        simulate(replace(capture, chip="nv_none"))


def short(capture: npulab.Capture, values: dict[str, int]) -> dict[str, int]:
    """The same values by the names that the map has for the fields."""
    registers = capture.maps[capture.jobs[0].block]
    names = {f"{item.block}.{item.register}.{item.name}": registers.key(item) for item in registers}
    return {names[name]: value for name, value in values.items()}


@pytest.mark.parametrize(
    "changed",
    [
        {
            f"{unit}.D_DATA_CUBE_{name}.{name}": 8191
            for unit in ("SDP", "SDP_RDMA")
            for name in ("WIDTH", "HEIGHT", "CHANNEL")
        },
        {"SDP.D_DATA_CUBE_WIDTH.WIDTH": 8191, "SDP_RDMA.D_DATA_CUBE_WIDTH.WIDTH": 8191},
    ],
)
def test_large_cubes_are_refused_before_anything_is_made(changed: dict[str, int]) -> None:
    capture = trace("nv_small/sdp_8x8x32_bypass_int8_1")
    capture = capture.with_fields(**short(capture, changed))
    tracemalloc.start()
    with pytest.raises(
        (Hang, Unsupported),
        match=r"the elements of SDP's output are|where nothing was put|past what is",
    ):
        simulate(capture)
    assert tracemalloc.get_traced_memory()[1] < 64 * 2**20
    tracemalloc.stop()
