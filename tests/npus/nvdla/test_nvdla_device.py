"""The simulated device against recorded traces: what it leaves in memory, and what makes it
hang.
"""

from __future__ import annotations

import csv
import sys
import tracemalloc
import zlib
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from case_tables import fields
from conftest import CAPTURES, shared
from nvdla_layers import public_traces

import npulab
from npulab.captures.devices import Against, InProcess, Probed
from npulab.captures.target import Hang, Run, Unsupported
from npulab.npus.nvdla.simulate import executed, simulate

OTHER_BUILDS = {"sdp_3x3x33_ew_int8_reg_0", "sdp_3x3x33_ew_le_lin_int8"}
SHIPPED = [
    "rtl-10-conv",
    "rtl-17-dilated",
    "rtl-2-pointwise",
    "rtl-21-per-channel",
    "rtl-299-average",
    "rtl-33-wide-bias",
    "rtl-4-padded",
    "rtl-425-pool",
    "rtl-6-add",
    "rtl-8-many",
]
DIRECT, FEATURES = "dc_24x44x14_5x3x14x41_int8_0", "sdp_23x13x42_bs_int8_mem_0"


def trace(name: str) -> npulab.Capture:
    return public_traces()[name]


def test_memory_is_as_recorded() -> None:
    """But for two traces of another build of nv_small: the chip has no Y stage, as its RTL says."""
    traces = public_traces()
    assert len(traces) == 32
    assert {one.name for one in traces if not as_recorded(one)} == OTHER_BUILDS


def as_recorded(capture: npulab.Capture) -> bool:
    memory, _ = executed(capture)
    assert capture.parameters["checks"]
    equal = True
    for row in capture.parameters["checks"]:
        got = memory.read(row["memory"], row["address"], row["size"]).tobytes()
        if row["buffer"]:
            equal &= got == capture.buffers[row["buffer"]][: row["size"]]
        else:
            equal &= zlib.crc32(got) == row["crc"]
    return equal


@pytest.mark.parametrize(
    ("name", "changed", "why"),
    [
        (
            DIRECT,
            {"CDMA.D_DATAIN_SIZE_0.DATAIN_HEIGHT": 3},
            "SDP waits for 7020 atoms: CSC waits for 44 lines, CDMA gives 4",
        ),
        (
            DIRECT,
            {"CDMA.D_WEIGHT_BYTES.WEIGHT_BYTES": 8611},
            "CSC waits for 1 kernels, CDMA tells of 0: CDMA.D_WEIGHT_BYTES.WEIGHT_BYTES is 8611, not whole atoms",
        ),
        (
            DIRECT,
            {"CDMA.D_BANK.WEIGHT_BANK": 31, "CDMA.D_BANK.DATA_BANK": 31},
            "each waits for the other to empty the buffer",
        ),
        (
            DIRECT,
            {"CDMA.D_DAIN_RAM_TYPE.DATAIN_RAM_TYPE": 0},
            "DATAIN_RAM_TYPE is 0, a memory that the chip does not have",
        ),
        (DIRECT, {"CSC.D_ATOMICS.ATOMICS": 1}, "SDP waits for 7020 atoms: CACC gives 12"),
        (
            DIRECT,
            {"SDP.D_DATA_CUBE_HEIGHT.HEIGHT": 99},
            "SDP waits for 15600 atoms: CACC gives 7020",
        ),
        (
            DIRECT,
            {"SDP.D_FEATURE_MODE_CFG.FLYING_MODE": 0},
            "SDP waits for 7020 atoms, of SDP_RDMA's cube come fewer",
        ),
        (DIRECT, {"SDP.D_OP_ENABLE.OP_EN": 0}, "nothing is written: the job starts CACC, "),
        (
            FEATURES,
            {"SDP_RDMA.D_BRDMA_CFG.BRDMA_DISABLE": 1},
            "SDP waits for 1794 operands, SDP_RDMA gives fewer of BS MUL",
        ),
        (
            FEATURES,
            {"SDP.D_DST_BASE_ADDR_LOW.DST_BASE_ADDR_LOW": 0x10},
            "no job writes pri_mem 0x10 to ",
        ),
        (FEATURES, {"SDP_RDMA.D_OP_ENABLE.OP_EN": 0}, "SDP waits for 1794 atoms, of SDP_RDMA's"),
    ],
)
def test_what_hangs_says_why(name: str, changed: dict[str, int], why: str) -> None:
    with pytest.raises(Hang, match=why):
        simulate(trace(name).with_fields(**short(trace(name), changed)))


@pytest.mark.parametrize(
    "changed",
    [
        {"CACC.D_DATAOUT_SIZE_0.DATAOUT_WIDTH": 3},
        {"CSC.D_MISC_CFG.PROC_PRECISION": 2},
        {"CSC.D_WEIGHT_BYTES.WEIGHT_BYTES": 128},
        {"CDMA.D_DAIN_ADDR_HIGH_0.DATAIN_ADDR_HIGH_0": 1},
        {"SDP.D_FEATURE_MODE_CFG.BATCH_NUMBER": 3},
        {"CDMA.D_DATAIN_SIZE_EXT_0.DATAIN_WIDTH_EXT": 5},
    ],
)
def test_fields_that_no_unit_reads_change_nothing(changed: dict[str, int]) -> None:
    capture = trace(DIRECT)
    assert simulate(capture.with_fields(**short(capture, changed))) == simulate(capture)


def test_a_chip_with_other_atoms_gives_another_output() -> None:
    capture = trace(DIRECT)
    assert simulate(replace(capture, chip="nv_small_256")) != simulate(capture)
    with pytest.raises(Unsupported, match="chip: got 'nv_none', allowed is one of nv_small, "):
        simulate(replace(capture, chip="nv_none"))


def short(capture: npulab.Capture, values: dict[str, int]) -> dict[str, int]:
    """The same values by the names that the map has for the fields."""
    registers = capture.maps[capture.jobs[0].block]
    return {registers.key(registers[name]): value for name, value in values.items()}


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
    capture = trace("sdp_8x8x32_bypass_int8_1")
    capture = capture.with_fields(**short(capture, changed))
    tracemalloc.start()
    with pytest.raises(
        (Hang, Unsupported),
        match=r"the elements of SDP's output are|no job writes",
    ):
        simulate(capture)
    assert tracemalloc.get_traced_memory()[1] < 64 * 2**20
    tracemalloc.stop()


def shipped() -> list[npulab.Capture]:
    """The captures of npulab whose outputs the RTL wrote."""
    kept = npulab.load_all(CAPTURES / "nvdla")
    return [capture for capture in kept if capture.provenance == "RTL simulation"]


def test_the_shipped_captures_of_the_rtl() -> None:
    """One of each kind; all bytes by the device, and all layers by the emulation."""
    captures = shipped()
    assert [capture.name for capture in captures] == SHIPPED
    assert {capture.chip for capture in captures} == {"nv_small"}
    assert all("sifive/block-nvdla-sifive 19906b1" in capture.source for capture in captures)
    files = [path for name in SHIPPED for path in (CAPTURES / "nvdla" / name).iterdir()]
    assert sum(path.stat().st_size for path in files) < 64 * 1024
    for capture in captures:
        assert simulate(capture) == capture.buffers["output"], capture.name
    assert sum(len(capture.buffers["output"]) for capture in captures) == 7048
    checks = [npulab.check(capture) for capture in captures]
    assert (sum(found.compared for found in checks), {found.mismatches for found in checks}) == (
        6087,
        {0},
    )
    refused = {found.case: found.reason.split(",")[0] for found in checks if found.layer is None}
    assert refused == {
        "rtl-299-average": "PDP.D_RECIP_KERNEL_WIDTH is 65536",
        "rtl-425-pool": "PDP.D_POOLING_PADDING_CFG states padding that no window reaches",
    }


def test_the_shipped_captures_of_the_rtl_are_as_recorded() -> None:
    """But for the source, which says the RTL."""
    for capture in shipped():
        recorded = npulab.load(shared(f"data/nvdla_rtl/captures/{capture.name}"))
        assert replace(recorded, source=capture.source) == capture


def test_every_capture_of_the_rtl_is_simulated_to_its_bytes() -> None:
    """Averages as `lower` wrote them before, and pooling with surplus padding, are among them."""
    names = sorted(path.name for path in shared("data/nvdla_rtl/captures").iterdir())
    assert len(names) == 29
    for name in names:
        capture = npulab.load(shared(f"data/nvdla_rtl/captures/{name}"))
        assert capture.provenance == "RTL simulation"
        assert simulate(capture) == capture.buffers["output"], name


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("name", "culprit"),
    [
        ("bad-shift", "CVT_SHIFT"),
        ("bad-ramtype", "DATAIN_RAM_TYPE"),
        ("bad-unwritten", "CVT_EN"),
    ],
)
def test_a_bisection_names_the_planted_field_and_nothing_else(name: str, culprit: str) -> None:
    """Ten other fields differ that the RTL ignores."""
    good = npulab.load(CAPTURES / "nvdla" / "sim-3x3-same")
    bad = npulab.load(shared(f"data/nvdla_rtl/bisect/{name}"))
    found = npulab.bisect_fields(good, bad, npulab.Simulated(simulate(good)))
    assert found.found
    assert [key[3] for key in found.culprits] == [culprit]


# What a job leaves for the next


@cache
def base() -> npulab.Capture:
    """The good job of the table of the RTL's answers: registers as there, drawn weights."""
    draw = np.random.RandomState(0)
    weights = draw.randint(-128, 128, (16, 3, 3, 16)).astype(np.int8)
    bias = draw.randint(-20000, 20000, 16).astype(np.int32)
    one = npulab.QuantParams(1.0, 0)
    layer = npulab.Conv2D(
        weights,
        bias,
        (5, 6, 16),
        padding="same",
        input_q=one,
        weight_q=npulab.QuantParams(25166 / 2**23),
        output_q=one,
    )
    x = draw.randint(-128, 128, (5, 6, 16)).astype(np.int8)
    of = npulab.target("nvdla")
    return npulab.Simulated().record(of.lower(layer, chip="nv_small", x=x))


def answers() -> list[dict[str, str]]:
    with shared("data/nvdla_rtl/fields.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def changed(good: npulab.Capture, name: str, raw: int) -> npulab.Capture:
    """The job with a field at a raw value, whatever its values mean."""
    registers = good.maps[good.jobs[0].block]
    words = good.jobs[0].words.copy()
    registers[short(good, {name: 0}).popitem()[0]].insert(words, raw)
    return good.with_words(words)


def test_the_base_has_the_registers_of_the_table() -> None:
    good = base()
    values = good.maps[good.jobs[0].block].decode(good.jobs[0].words, raw=True)
    for row in answers():
        (name,) = short(good, {row["field"]: 0})
        assert values[name] == int(row["good"]), row["field"]


@pytest.mark.sample(2)
@pytest.mark.parametrize("units", ["CDMA", "CACC CMAC_A CMAC_B", "CSC", "SDP SDP_RDMA"])
def test_a_changed_field_does_what_it_does_on_the_rtl(units: str) -> None:
    """This job and the good one after it; every row, though a few rules were seen in the table."""
    good = base()
    output = good.buffers["output"]
    for row in answers():
        if row["field"].split(".")[0] not in units.split():
            continue
        worse = changed(good, row["field"], int(row["value"]))
        first, second = npulab.target("nvdla").simulate([worse, good])
        assert said(first, output) == row["rtl"], row
        if first.outcome != "hang":
            words = {"pass": "ok", "fail": "wrong", "hang": "stuck"}
            assert words[said(second, output)] == row["next_job_on_rtl"], row


def said(run: Run, output: bytes) -> str:
    if run.outcome == "hang":
        return "hang"
    return "pass" if run.output == output else "fail"


def test_a_device_that_hangs_stays_so() -> None:
    good = base()
    worse = changed(good, "CSC.D_ATOMICS.ATOMICS", 28)
    runs = npulab.target("nvdla").simulate([good, worse, good])
    assert [run.outcome for run in runs] == ["done", "hang", "hang"]
    assert "the device hangs since capture" in runs[2].reason


def test_a_list_of_several_chips_is_refused() -> None:
    good = base()
    with pytest.raises(ValueError, match=r"got captures of \['nv_large', 'nv_small'\], allowed"):
        npulab.target("nvdla").simulate([good, replace(good, chip="nv_large")])


def poisoning(good: npulab.Capture) -> npulab.Capture:
    """The good job with more bytes of weights than CSC gives back, and fields that nothing reads."""
    worse = changed(good, "CDMA.D_WEIGHT_BYTES.WEIGHT_BYTES", 2304 + 128)
    worse = changed(worse, "CACC.D_LINE_STRIDE.LINE_STRIDE", 64)
    return changed(worse, "CDMA.D_ZERO_PADDING.PAD_TOP", 3)


def test_a_bisection_finds_what_spoils_the_next_job() -> None:
    good = base()
    device = Probed(npulab.Simulated(), good, before_failures=True)
    found = npulab.bisect_fields(good, poisoning(good), device, symptom="poisons")
    assert found.found
    assert [key[3] for key in found.culprits] == ["WEIGHT_BYTES"]
    assert "= 2432 (good 2304) spoils the job after it" in found.sentence
    assert found.journal[0].outcome == "poisons"
    without = npulab.bisect_fields(good, poisoning(good), Probed(npulab.Simulated(), good))
    assert "BAD passes on this device" in without.sentence
    assert "poisoned the device: symptom 'poisons' finds by what" in without.sentence


def test_the_shell_bisects_what_poisons(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from npulab.cli.shell import main

    good = base()
    npulab.save(good, tmp_path / "good")
    npulab.save(poisoning(good), tmp_path / "bad")
    names = [str(tmp_path / "good"), str(tmp_path / "bad")]
    assert main(["bisect", *names, "--device", "simulated", "--symptom", "poisons"]) == 0
    assert "WEIGHT_BYTES = 2432 (good 2304) spoils the job after it" in capsys.readouterr().out
    assert main(["bisect", *names, "--device", "simulated", "--probe"]) == 1
    assert "poisoned the device" in capsys.readouterr().out
    assert main(["bisect", *names, "--device", "manual", "--probe"]) == 2
    assert "--probe: got --device 'manual', allowed is a device" in capsys.readouterr().err


# Two devices against each other

# fields that a wrong simulation overlooks, with the raw value that the bad job has
PLANTED = fields("""
SDP.D_CVT_SHIFT.CVT_SHIFT=21 SDP.D_CVT_SCALE.CVT_SCALE=20000
SDP.D_CVT_OFFSET.CVT_OFFSET=40 SDP.D_DP_BS_CFG.BS_ALU_BYPASS=1
SDP.D_DP_BS_CFG.BS_RELU_BYPASS=0 CACC.D_CLIP_CFG.CLIP_TRUNCATE=3
CSC.D_ZERO_PADDING_VALUE.PAD_VALUE=90 CSC.D_ZERO_PADDING.PAD_LEFT=0
CSC.D_CONV_STRIDE_EXT.CONV_X_STRIDE_EXT=1 CSC.D_DILATION_EXT.Y_DILATION_EXT=1
""")


class Overlooks:
    """The simulated device, but a field has the value of the good job whatever the job says."""

    def __init__(self, good: npulab.Capture, name: str, raw: int) -> None:
        self.good, self.name, self.raw = good, name, raw

    def run(self, capture: npulab.Capture) -> bytes:
        return simulate(changed(capture, self.name, self.raw))


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", PLANTED)
def test_the_field_about_which_two_devices_disagree_is_named(name: str) -> None:
    good = bad = base()
    for field, raw in PLANTED.items():
        if field.split(".")[0] == name.split(".")[0]:
            bad = changed(bad, field, raw)
    bad = changed(bad, "CDMA.D_ZERO_PADDING.PAD_TOP", 5)
    (row,) = [row for row in answers() if row["field"] == name][:1]
    wrong = InProcess(Overlooks(good, name, int(row["good"])))
    found = npulab.bisect_fields(good, bad, Against(npulab.Simulated(), wrong))
    assert found.found, found.sentence
    assert name.endswith(f".{found.culprits[0][3]}")
    assert all(name.split(".")[2] in {key[3] for key in group} for group in found.groups)


def test_the_shell_bisects_a_disagreement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from npulab.cli.shell import main

    good = base()
    bad = changed(changed(good, "SDP.D_CVT_SHIFT.CVT_SHIFT", 21), "CDMA.D_ZERO_PADDING.PAD_TOP", 5)
    npulab.save(good, tmp_path / "good")
    npulab.save(bad, tmp_path / "bad")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("sim.py").write_text(
        "import npulab\n"
        "class Wrong:\n"
        "    def run(self, capture):\n"
        "        fixed = capture.with_fields(CVT_SHIFT=23)\n"
        "        return npulab.target('nvdla').simulate(fixed)\n"
    )
    asked = ["bisect", "good", "bad", "--device", "python:sim:Wrong", "--against", "simulated"]
    assert main(asked) == 0
    assert "CVT_SHIFT = 21 (good 23) breaks it" in capsys.readouterr().out
    assert main([*asked, "--probe"]) == 2
    assert "--against: got --probe or --symptom poisons too" in capsys.readouterr().err
    assert main(["bisect", "bad", "good", *asked[3:]]) == 2
    assert "the devices disagree about it" in capsys.readouterr().err


def test_pooling_ignores_the_precision_and_names_what_is_not_covered() -> None:
    capture = npulab.load(shared("data/nvdla_rtl/captures/rtl-25-pool"))
    output = capture.buffers["output"]
    assert simulate(changed(capture, "PDP.D_DATA_FORMAT.INPUT_DATA", 1)) == output
    with pytest.raises(Unsupported, match="POOLING_METHOD is 3, covered is 0 or 1 or 2"):
        simulate(changed(capture, "PDP.D_OPERATION_MODE_CFG.POOLING_METHOD", 3))


def test_a_huge_input_of_pooling_is_refused_before_it_is_read() -> None:
    capture = npulab.load(shared("data/nvdla_rtl/captures/rtl-25-pool"))
    for unit in ("PDP", "PDP_RDMA"):
        for name in ("WIDTH", "HEIGHT", "CHANNEL"):
            field = f"{unit}.D_DATA_CUBE_IN_{name}.CUBE_IN_{name}"
            capture = changed(capture, field, 8191)
    tracemalloc.start()
    with pytest.raises(Unsupported, match="the elements of PDP's input are"):
        simulate(capture)
    assert tracemalloc.get_traced_memory()[1] < 16 * 2**20
    tracemalloc.stop()
