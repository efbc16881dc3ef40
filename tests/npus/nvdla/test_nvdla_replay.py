"""Public traces of the nvdla target run again: every checked byte, and which trace proves which
rule.
"""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from case_tables import cases, fields
from conftest import CAPTURES, ROOT, shared
from nvdla_layers import public_traces

import npulab
from npulab.captures.capture import Capture, Job
from npulab.captures.target import Unsupported
from npulab.npus.nvdla import facts, registers
from npulab.npus.nvdla.rules import MUTATIONS
from npulab.npus.nvdla.simulate import mutated, replay
from npulab.npus.nvdla.writing import write_trace

SMALL, KINDS = "nv_small", ("dc", "img", "pdp", "sdp")
# Of the traces of nv_small without tables, EW and CDP those that are not equal under a changed
# rule, as published beside the traces: named ones, or their kinds.
NAMED = {
    "half up": {
        "dc_14x7x49",
        "dc_24x33x55",
        "dc_24x44x14",
        "dc_32x26x76",
        "pdp_12x9x19",
        "pdp_24x16x1",
    },
    "half to even": {
        "dc_14x7x49",
        "dc_24x33x55",
        "dc_24x44x14",
        "dc_32x26x76",
        "pdp_12x9x19",
        "pdp_24x16x1",
        "sdp_3x3x33_bn",
        "pdp_8x8x64_2x2_ave",
    },
    "no shift while the multiplier is bypassed": {
        "sdp_3x3x33_bn_int8_mem_0",
        "sdp_3x3x33_bn_int8_reg_1",
        "sdp_5x24x18_bs_int8_mem_0",
    },
    "no 17-bit saturation": set(),
    "no 32-bit saturation": set(),
}
KINDS_FAILING = {
    "floor": {"dc": 7, "sdp": 6, "pdp": 8},
    "toward zero": {"dc": 7, "sdp": 5, "pdp": 8},
    "weights as plain K, R, S, C": {"dc": 10, "img": 10},
    "kernel rows and columns swapped": {"dc": 10},
    "padding lanes as zero": {"dc": 3, "sdp": 6},
    "pad value 0": {"dc": 9},
}


@pytest.fixture(scope="module")
def traces() -> dict[str, Capture]:
    return {capture.name: capture for capture in public_traces()}


@pytest.fixture(scope="module")
def table(traces: dict[str, Capture]) -> dict[str, dict[str, bool]]:
    """By trace and changed rule, whether the trace stays equal."""
    return {name: mutated(capture) for name, capture in traces.items()}


def test_check_replays(traces: dict[str, Capture]) -> None:
    said = npulab.check(traces["sdp_3x3x33_ew_le_lin_int8"])
    assert (said.verdict, said.compared, said.mismatches) == ("equal", 0xF00, 0)


def test_gaps_keep_their_bytes(traces: dict[str, Capture]) -> None:
    """A trace that writes into zeroed memory, of which gaps are part of what is checked."""
    capture = traces["sdp_4x22x42_bypass_int8"]
    ones = b"\1" * 0x1080
    row = {
        "task": 0,
        "memory": "pri_mem",
        "address": 0x90000120,
        "size": 0x1080,
        "line": 3,
        "buffer": "ones",
    }
    memory = [
        *(one for one in capture.parameters["memory"] if one["address"] != row["address"]),
        row,
    ]
    (got,) = replay(
        replace(
            capture,
            buffers={**capture.buffers, "ones": ones},
            parameters={**capture.parameters, "memory": memory},
        )
    )
    (plain,) = replay(capture)
    assert got.predicted == plain.predicted  # this one has no gaps
    assert not set(plain.predicted) <= {0, 1}
    with_gaps = traces["sdp_3x3x33_ew_le_lin_int8"]
    assert replay(with_gaps)[0].predicted.count(0) > 0xF00 - 3 * 3 * 40


def test_table_of_changed_rules(
    table: dict[str, dict[str, bool]], traces: dict[str, Capture]
) -> None:
    """The rows that are published, for the traces at hand: each named trace fails and no other
    does.
    """
    judged = [
        name
        for name, capture in traces.items()
        if capture.chip == SMALL and name.startswith(KINDS) and "_ew_" not in name
    ]
    assert len(judged) == 20
    assert all(table[name]["none"] for name in table)
    for rule, starts in NAMED.items():
        failing = {name for name in judged if not table[name][rule]}
        assert failing == {name for name in judged if name.startswith(tuple(starts))}, rule
    for rule, most in KINDS_FAILING.items():
        failing = [name.split("_")[0] for name in judged if not table[name][rule]]
        assert {kind for kind in most if kind in {name.split("_")[0] for name in judged}} == set(
            failing
        ), rule
        assert all(failing.count(kind) <= most[kind] for kind in most), rule


def test_traces_that_prove_a_rule_by_themselves(table: dict[str, dict[str, bool]]) -> None:
    failing = {rule: {name for name in table if not table[name][rule]} for rule in MUTATIONS}
    assert failing["priorities of tables ignored"] == {"cdp_8x8x64_lrn3_int8_7"}
    assert failing["floor in tables and EW"] == {
        "cdp_8x8x32_lrn5_int8_0",
        "cdp_8x8x64_lrn3_int8_7",
        "sdp_3x3x33_ew_int8_reg_0",
        "sdp_3x3x33_ew_le_lin_int8",
    }
    for rule in ("floor", "half up"):
        assert failing[f"{rule} in CDP's converters"] == {"cdp_8x8x32_lrn5_int8_0"}
    for rule in (
        "half up in tables and EW",
        "16-bit fraction in the SDP's tables",
        "no 9-bit saturation in CDP",
    ):
        assert not failing[rule]  # what no trace here tells
    assert "conv_8x8_fc_int16" in failing["weights as plain K, R, S, C"]


# What the page says


def page() -> str:
    return (ROOT / "npulab" / "npus" / "nvdla" / "README.md").read_text(encoding="utf-8")


def published() -> dict[str, list[str]]:
    """The page's table: by changed rule, what shipped captures and public traces show of it."""
    part = page().partition("## Which rule a trace proves")[2].partition("\n## ")[0]
    rows = {}
    for line in part.splitlines():
        if line.startswith("|"):
            rule, *cells = line.strip("|").split("|")
            rows[rule.strip()] = [cell.strip() for cell in cells]
    assert rows.pop("changed rule") == ["shipped, of 10", "public, of 32"]
    assert set(rows.pop("---")) == {"---"}
    return rows


def shown(stays: dict[str, dict[str, bool]], rule: str) -> str:
    """How many captures notice a changed rule, and the first of them."""
    names = sorted(name for name in stays if not stays[name][rule])
    return f"{len(names)}: `{names[0]}`" if names else "invisible"


def test_the_page_says_what_each_shipped_capture_proves() -> None:
    kept = npulab.load_all(CAPTURES / "nvdla")
    stays = {one.name: mutated(one) for one in kept if one.provenance == "RTL simulation"}
    assert len(stays) == 10
    assert all(rules["none"] for rules in stays.values())
    expected = {rule: shown(stays, rule) for rule in MUTATIONS if rule != "none"}
    assert {rule: cells[0] for rule, cells in published().items()} == expected
    assert [name for name in stays if all(stays[name].values())] == ["rtl-425-pool"]


def test_the_page_says_what_each_public_trace_proves(table: dict[str, dict[str, bool]]) -> None:
    assert len(table) == 32
    expected = {rule: shown(table, rule) for rule in MUTATIONS if rule != "none"}
    assert {rule: cells[1] for rule, cells in published().items()} == expected


def test_the_page_says_of_each_rule_who_proves_it_or_that_it_is_invisible() -> None:
    rows = published()
    invisible = [rule for rule in rows if set(rows[rule]) == {"invisible"}]
    assert (len(rows), len(invisible)) == (18, 5)
    said = " ".join(page().rpartition("|\n")[2].split())
    for rule in invisible:
        assert f"*{rule}*" in said or f"*{rule[0].upper()}{rule[1:]}*" in said


def test_the_page_names_the_traces_that_the_rtl_does_not_reproduce() -> None:
    with shared("facts/nvdla_results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    names = {row["case"] for row in rows if row["project"] == "nv_small" and "_ew_" in row["case"]}
    assert len(names) == 4
    assert {name for name in names if f"`{name}`" in page()} == names


def test_a_capture_proves_what_its_trace_proves(tmp_path: Path) -> None:
    """Its output is what is compared; nothing proves a rule if there is none."""
    capture = npulab.load(CAPTURES / "nvdla" / "sim-1x1-relu")
    stays = mutated(capture)
    assert stays == mutated(npulab.load(write_trace(capture, tmp_path)))
    assert {rule for rule in stays if not stays[rule]} >= {"floor", "half to even"}
    spoilt = capture.with_buffers(output=bytes(576))
    assert not any(mutated(spoilt).values())
    buffers = {name: data for name, data in capture.buffers.items() if name != "output"}
    assert all(mutated(replace(capture, buffers=buffers)).values())


# Captures made here, without any trace


def made(writes: dict[str, int], size: int = 64, chip: str = SMALL) -> Capture:
    """One operation over 64 zeroed bytes that are all checked."""
    block = facts.block_of(chip)
    maps = facts.maps(chip)
    names = {f"{unit}.{name}": offset for unit, offset, name in maps[block].registers}
    job = Job.from_writes(
        block, [(names[name], value) for name, value in writes.items()], maps[block]
    )
    row = {"task": 0, "memory": "pri_mem", "address": 0, "size": size, "line": 1, "buffer": ""}
    check = {
        "task": 1,
        "memory": "pri_mem",
        "address": 0,
        "size": size,
        "line": 2,
        "name": "x",
        "crc": 0,
    }
    return Capture(
        "made", "nvdla", chip, (job,), parameters={"memory": [row], "checks": [check]}, maps=maps
    )


PASS = fields("""
SDP.D_DP_BS_CFG=1 SDP.D_DP_BN_CFG=1 SDP.D_DP_EW_CFG=1 SDP.D_CVT_SCALE=1 SDP.D_CVT_OFFSET=5
SDP.D_DST_DMA_CFG=1 SDP_RDMA.D_SRC_DMA_CFG=1 SDP.D_OP_ENABLE=1 SDP_RDMA.D_OP_ENABLE=1
""")


def test_an_operation_writes_what_its_registers_say() -> None:
    (one,) = replay(made({**PASS, "SDP.D_DST_BASE_ADDR_LOW": 16}))
    assert one.predicted == bytes(16) + bytes([251] * 8) + bytes(40)
    assert str(one).startswith("pri_mem 0x0 (line 2): CRC-32 of 64 bytes is 0x")


def test_the_full_map_counts_bytes_too() -> None:
    (one,) = replay(made({**PASS, "SDP.D_DST_BASE_ADDR_LOW": 32}, chip="nv_full"))
    assert one.predicted == bytes(32) + bytes([251] * 32)


def test_what_cannot_run_is_told() -> None:
    with pytest.raises(
        ValueError,
        match=r"capture made, operation 0: memory: got pri_mem 0x40 to 0x48, allowed are",
    ):
        replay(made({**PASS, "SDP.D_DST_BASE_ADDR_LOW": 64}))
    with pytest.raises(
        ValueError,
        match=r"capture made, operation 0: SDP\.D_DP_BS_ALU_CFG takes operands from memory",
    ):
        replay(
            made(
                {**PASS, "SDP.D_DP_BS_CFG": 0, "SDP.D_DP_BS_ALU_CFG": 1, "SDP_RDMA.D_BRDMA_CFG": 1}
            )
        )
    with pytest.raises(
        ValueError, match="capture made, operation 0: CDP waits for CDP_RDMA, which nobody started"
    ):
        replay(made({"CDP.D_OP_ENABLE": 1}))
    with pytest.raises(
        Unsupported, match=r"SDP\.D_DATA_FORMAT\.PROC_PRECISION is 2, covered are 0"
    ):
        replay(made({**PASS, "SDP.D_DATA_FORMAT": 2}))
    with pytest.raises(Unsupported, match="units: got RBK, covered are CDMA, CSC"):
        replay(made({"RBK.D_OP_ENABLE": 1}))
    assert npulab.check(made({**PASS, "SDP.D_DATA_FORMAT": 2})).verdict == "nothing to compare"
    assert replay(replace(made(PASS), parameters={})) == ()


SIZES = (
    ("SDP", "SDP.D_DATA_CUBE_{}"),
    ("CDP", "CDP_RDMA.D_DATA_CUBE_{}"),
    ("PDP", "PDP.D_DATA_CUBE_IN_{}"),
)


@pytest.mark.parametrize(("unit", "name"), SIZES)
@pytest.mark.parametrize(
    ("height", "width", "channels", "words"),
    cases(
        """
8191 | 8191 | 8191 | got a cube of 8192 x 8192 x 8192, covered are up to 33554432 elements
8191 | 0 | 8191 | got a cube of 8192 x 1 x 8192, covered are up to 33554432 elements
4095 | 0 | 1199 | in up to 524288 rows of all surfaces
0 | 8191 | 4095 | memory: got
127 | 2047 | 15 | memory: got
""",
        int,
        int,
        int,
    ),
)
def test_cubes_of_all_sizes_end_soon(
    unit: str, name: str, height: int, width: int, channels: int, words: str
) -> None:
    """Before anything large is set aside; where no stride steps, nothing is outside until much
    is done.
    """
    sizes = {"HEIGHT": height, "WIDTH": width, "CHANNEL": channels}
    writes = PASS if unit == "SDP" else {f"{unit}.D_OP_ENABLE": 1, f"{unit}_RDMA.D_OP_ENABLE": 1}
    writes = writes | {name.format(size): value for size, value in sizes.items()}
    if unit == "PDP":
        writes |= {name.replace("IN", "OUT").format(size): value for size, value in sizes.items()}
        writes["PDP.D_OPERATION_MODE_CFG"] = 16
    with pytest.raises(ValueError, match=words):
        replay(made(writes))


def test_no_stride_steps_over_one_row() -> None:
    """All rows and surfaces in one place."""
    for unit, name in SIZES:
        writes = (
            PASS
            if unit == "SDP"
            else {
                f"{unit}.D_OP_ENABLE": 1,
                f"{unit}_RDMA.D_OP_ENABLE": 1,
                "PDP.D_OPERATION_MODE_CFG": 16,
                "PDP.D_DST_RAM_CFG": 1,
                "PDP_RDMA.D_SRC_RAM_CFG": 1,
                "CDP.D_DST_DMA_CFG": 1,
                "CDP_RDMA.D_SRC_DMA_CFG": 1,
            }
        )
        writes = writes | {name.format("HEIGHT"): 200, name.format("CHANNEL"): 99}
        if unit == "PDP":
            writes |= {"PDP.D_DATA_CUBE_OUT_HEIGHT": 200, "PDP.D_DATA_CUBE_OUT_CHANNEL": 99}
        assert len(replay(made(writes))) == 1


def test_tables_are_those_of_the_job() -> None:
    capture = made({**PASS, "SDP.S_LUT_ACCESS_CFG": 2**17})
    le, lo = registers.lut_of(capture.jobs[0], "SDP")
    assert not np.any(le)
    assert not np.any(lo)
