"""SDP, PDP and CDP of the nvdla target on a cube of 64 x 64 x 256, and public traces run again:

    pytest -o addopts= -s tests/tools/bench_nvdla_units.py

Figures are millions of lanes in a second, on one thread; of the plain way, element by element, on
one row of it.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import nvdla_units_plain as plain
import pytest
from conftest import shared
from rates import rated
from test_nvdla_units import BASE, Bytes, as_lists, entries

from npulab.npus.nvdla import imported
from npulab.npus.nvdla.simulate import replay
from npulab.npus.nvdla.units import cdp, pdp, sdp

HEIGHT, WIDTH, CHANNELS, ATOM = 64, 64, 256, 32
LANE = "million lanes"
LANES = HEIGHT * WIDTH * CHANNELS
TABLES = entries(random.Random(1))
ARITHMETIC = {
    "SDP.D_CVT_SCALE.CVT_SCALE": 3,
    "SDP.D_CVT_SHIFT.CVT_SHIFT": 4,
    "SDP.D_DP_BS_MUL_SRC_VALUE.BS_MUL_OPERAND": 77,
    "SDP.D_DP_BS_MUL_CFG.BS_MUL_SHIFT_VALUE": 5,
    "SDP.D_DP_BN_CFG.BN_BYPASS": 1,
    "SDP.D_DP_EW_CFG.EW_BYPASS": 1,
    "SDP.S_LUT_INFO.LUT_LO_INDEX_SELECT": 2,
    "PDP.D_OPERATION_MODE_CFG.FLYING_MODE": 1,
    "PDP.D_POOLING_KERNEL_CFG.KERNEL_WIDTH": 2,
    "PDP.D_POOLING_KERNEL_CFG.KERNEL_HEIGHT": 2,
    "PDP.D_POOLING_PADDING_CFG.PAD_TOP": 1,
    "PDP.D_POOLING_PADDING_CFG.PAD_LEFT": 1,
    "PDP.D_RECIP_KERNEL_WIDTH.RECIP_KERNEL_WIDTH": 21845,
    "PDP.D_RECIP_KERNEL_HEIGHT.RECIP_KERNEL_HEIGHT": 21845,
    "CDP.D_DATIN_SCALE.DATIN_SCALE": 1,
    "CDP.D_DATOUT_SCALE.DATOUT_SCALE": 1,
    "CDP.D_LRN_CFG.NORMALZ_LEN": 1,
    "CDP.S_LUT_INFO.LUT_LO_INDEX_SELECT": 8,
}


def registers() -> dict[str, int]:
    v = dict(ARITHMETIC)
    for block, side, start in (
        ("SDP_RDMA", "SRC", 0),
        ("SDP", "DST", LANES),
        ("PDP_RDMA", "SRC", 0),
        ("PDP", "DST", LANES),
        ("CDP_RDMA", "SRC", 0),
        ("CDP", "DST", LANES),
    ):
        v |= {
            f"{block}.D_{side}_BASE_ADDR_LOW.{side}_BASE_ADDR_LOW": BASE + start,
            f"{block}.D_{side}_LINE_STRIDE.{side}_LINE_STRIDE": WIDTH * ATOM,
            f"{block}.D_{side}_SURFACE_STRIDE.{side}_SURFACE_STRIDE": HEIGHT * WIDTH * ATOM,
        }
    for name, size in (("HEIGHT", HEIGHT), ("WIDTH", WIDTH), ("CHANNEL", CHANNELS)):
        v |= {
            f"SDP.D_DATA_CUBE_{name}.{name}": size - 1,
            f"CDP_RDMA.D_DATA_CUBE_{name}.{name}": size - 1,
            f"PDP.D_DATA_CUBE_IN_{name}.CUBE_IN_{name}": size - 1,
            f"PDP.D_DATA_CUBE_OUT_{name}.CUBE_OUT_{name}": size - 1,
        }
    return v


@pytest.mark.benchmark(group="units")
@pytest.mark.parametrize("unit", ["SDP", "SDP with tables", "PDP", "CDP"])
def test_unit(benchmark: Any, unit: str) -> None:
    v, memory, features = registers(), Bytes(0, 2 * LANES), {"memory_atom": ATOM}
    if unit == "PDP":
        rated(benchmark, LANES / 1e6, LANE, pdp.run, v, features, memory)
    elif unit == "CDP":
        rated(benchmark, LANES / 1e6, LANE, cdp.run, v, features, memory, TABLES)
    else:
        v["SDP.D_DP_EW_CFG.EW_BYPASS"] = int(unit == "SDP")
        rated(benchmark, LANES / 1e6, LANE, sdp.run, v, features, memory, TABLES)


@pytest.mark.benchmark(group="units")
@pytest.mark.parametrize("unit", ["SDP", "PDP", "CDP"])
def test_unit_by_elements(benchmark: Any, unit: str) -> None:
    v, tables, lanes = registers(), as_lists(TABLES), 4096
    x = np.random.default_rng(0).integers(-128, 128, lanes).tolist()
    plane = [x[row * 64 : row * 64 + 64] for row in range(64)]
    ways = {
        "SDP": lambda: [plain.sdp_element(v, one, {}, None) for one in x],
        "PDP": lambda: [
            plain.pdp_element(v, plane, row, column) for row in range(64) for column in range(64)
        ],
        "CDP": lambda: [plain.cdp_element(v, x, lane, lanes, tables) for lane in range(lanes)],
    }
    rated(benchmark, lanes / 1e6, LANE, ways[unit])


@pytest.mark.benchmark(group="traces")
def test_traces(benchmark: Any) -> None:
    """All public traces at hand, read before."""
    captures = list(imported.read(shared("data/nvdla")).values())
    benchmark.pedantic(lambda: [replay(capture) for capture in captures], rounds=3, warmup_rounds=1)
