"""NVDLA: register maps, traces read to captures, memory; what is broken is told with its line."""

from __future__ import annotations

import gzip
import json
import re
import time
import tracemalloc
import warnings
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from case_tables import cases, escaped, fields
from conftest import shared
from fuzz_mutators import change_bytes, change_text
from hypothesis import given, settings, strategies as st
from nvdla_layers import public_traces
from pace import limit
from test_cli import run  # noqa: F401 - a fixture

import npulab
from npulab.captures.store import save
from npulab.captures.target import Range
from npulab.npus.kit.fields import values_of
from npulab.npus.nvdla import imported
from npulab.npus.nvdla.facts import CHIPS, TABLES
from npulab.npus.nvdla.images import read_lines, read_records, spelled_anyhow, spelled_as_usual
from npulab.npus.nvdla.memory import Memory, Outside, checked
from npulab.npus.nvdla.registers import lut_of, units_of
from npulab.npus.nvdla.writing import write_trace

ATOMS = {
    "nv_small": (8, 8, 8),
    "nv_small_256": (32, 8, 8),
    "nv_small_256_full": (32, 8, 8),
    "nv_medium_512": (32, 16, 16),
    "nv_medium_1024_full": (32, 32, 32),
    "nv_large": (64, 32, 32),
    "nv_full": (64, 32, 32),
}
WRITTEN = re.compile(r"^\s*(?:reg_write\(|write_reg\s)", re.M)
COMMENT = re.compile(r"^// NVDLA_(\w+)\.(\w+)_0\.(\w+):(?:\w+ : )?(0x[0-9a-f]+)$", re.M)


@pytest.fixture(scope="module")
def folder() -> Path:
    return shared("data/nvdla")


@pytest.fixture(scope="module")
def traces() -> npulab.CaptureSet:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return public_traces()


# Maps


def test_maps_hold_what_the_sources_list() -> None:
    small, full = TABLES["SMALL"], TABLES["FULL"]
    assert (len(small), len(full)) == (531, 427)
    assert sum(not item.automatic for item in small) == 1282
    assert sum(not item.automatic for item in full) == 1178
    for registers in (small, full):
        assert len(registers.index) == len(registers)  # an address is one register's
    assert {item.block for item in full} < {item.block for item in small}
    assert small["SDP.D_CVT_SHIFT.CVT_SHIFT"].width == 6


def test_maps_differ_in_low_bits_of_byte_numbers_only() -> None:
    small, full = (
        {f"{one.block}.{one.register}.{one.name}": one for one in table if not one.automatic}
        for table in TABLES.values()
    )
    moved = [name for name in full if full[name].pieces[0][1:3] != small[name].pieces[0][1:3]]
    assert len(moved) == 56
    narrow = {name for name in moved if full[name].pieces[0].lsb == small[name].pieces[0].lsb}
    assert narrow == {
        f"{unit}.{name}"
        for unit in ("CDMA", "CSC")
        for name in ("D_ENTRY_PER_SLICE.ENTRIES", "D_BANK.DATA_BANK", "D_BANK.WEIGHT_BANK")
    }
    for name in {*moved} - narrow:
        assert full[name].meaning.steps == (("*", 2 ** full[name].pieces[0].lsb),)
        assert small[name].pieces[0].lsb == 0
    same = [name for name in full if name not in moved]
    assert all(
        full[name].meaning == small[name].meaning and full[name].names == small[name].names
        for name in same
    )


def test_enums_are_whole() -> None:
    for name, raw, text in cases(
        """
SDP.D_FEATURE_MODE_CFG.OUTPUT_DST | 1 | PDP
PDP.D_OPERATION_MODE_CFG.FLYING_MODE | 1 | OFF_FLYING
CDP.D_LRN_CFG.NORMALZ_LEN | 3 | LEN9
SDP.S_LUT_ACCESS_CFG.LUT_TABLE_ID | 1 | LO
CDMA.D_DATAIN_FORMAT.PIXEL_FORMAT | 12 | T_A8B8G8R8
SDP_RDMA.D_BRDMA_CFG.BRDMA_DATA_USE | 2 | BOTH
""",
        str,
        int,
    ):
        for table in TABLES.values():
            assert table[name].text(raw) == text


def test_chips_have_their_atoms() -> None:
    assert {
        chip: tuple(facts[name] for name in ("atomic_c", "atomic_k", "memory_atom"))
        for chip, facts in CHIPS.items()
    } == ATOMS
    assert [chip for chip in CHIPS if CHIPS[chip].get("int16")] == ["nv_full"]
    of = npulab.target("nvdla")
    evidence = {item.evidence for table in TABLES.values() for item in table if not item.automatic}
    assert evidence == {"R", "H"} < set(of.sources)
    assert {*of.maps("nv_full")} == {"SMALL", "FULL"}


# The traces at hand


def test_every_trace_reads(traces: npulab.CaptureSet, folder: Path) -> None:
    known = json.loads((folder / "cases.json").read_text())
    assert sorted(traces.names) == sorted(name.split("/")[1] for name in known)
    for name, case in known.items():
        chip, _, short = name.replace("nvdlav1", "nv_full").partition("/")
        capture = traces[short]
        assert (capture.chip, capture.provenance, len(capture.jobs)) == (chip, "RTL simulation", 1)
        kernels = CHIPS[chip][
            "atomic_k_int16" if chip == "nv_full" else "atomic_k"
        ]  # of that one the traces are int16
        assert {**case["atoms"], "note": ""} == {
            "atomic_c": ATOMS[chip][0],
            "atomic_k": kernels,
            "memory_atom": ATOMS[chip][2],
            "note": "",
        }
        found = [
            {"address": f"{row['address']:#x}", "size": row["size"], "crc32": f"{row['crc']:#010x}"}
            for row in capture.parameters["checks"]
            if row["crc"] is not None
        ]
        assert found == case.get("checks", found)
        assert capture.parameters["checks"]
        assert all(row["task"] == 1 for row in capture.parameters["checks"])


def test_every_write_is_in_a_job(traces: npulab.CaptureSet) -> None:
    for capture in traces:
        (said,) = capture.parameters["operations"]
        assert said["inherited"] == 0
        assert len(WRITTEN.findall(Path(capture.source).read_text())) == len(capture.jobs[0].writes)
        assert units_of(capture.jobs[0]) == said["units"]


def test_units_are_those_of_the_operation(traces: npulab.CaptureSet) -> None:
    kinds = {capture.name.split("_")[0]: set() for capture in traces}
    for capture in traces:
        kinds[capture.name.split("_")[0]].add(
            frozenset(capture.parameters["operations"][0]["units"])
        )
    convolution = frozenset({"CDMA", "CSC", "CMAC_A", "CMAC_B", "CACC", "SDP"})
    assert kinds["dc"] == kinds["img"] == kinds["conv"] == {convolution}
    assert kinds["cdp"] == {frozenset({"CDP", "CDP_RDMA"})}
    assert kinds["sdp"] == {frozenset({"SDP", "SDP_RDMA"})}
    assert kinds["pdp"] == {
        frozenset({"PDP", "PDP_RDMA"}),
        frozenset({"SDP", "SDP_RDMA", "PDP"}),
    }  # one is fused


def test_fields_are_as_the_traces_comment_them(traces: npulab.CaptureSet) -> None:
    """Some traces say behind a write what its fields are; of byte numbers they leave out other
    low bits.
    """
    seen = 0
    for capture in traces:
        values = values_of(capture.jobs[0], TABLES, unwritten=True)
        for unit, register, name, value in COMMENT.findall(Path(capture.source).read_text()):
            if not re.search("ADDR|STRIDE|BYTES", register):
                assert values[f"{unit}.{register}.{name}"] == int(value, 16)
                seen += 1
    assert seen > 300


def test_addresses_are_of_the_registers_that_comments_name(folder: Path) -> None:
    names = {offset: f"{unit}.{name}" for unit, offset, name in TABLES["FULL"].registers}
    said = [
        match
        for file in folder.glob("nvdlav1/*/input.txn")
        for match in re.findall(
            r"write_reg 0xffff(\w{4}) \w+ #NVDLA_(\w+\.[A-Z0-9_]+?)_0", file.read_text()
        )
    ]
    assert len(said) > 180
    for address, name in said:
        assert names[4 * int(address, 16)].startswith(name)


def test_lookup_tables_are_what_was_written(traces: npulab.CaptureSet) -> None:
    le, lo = lut_of(traces["cdp_8x8x32_lrn3_int8_1"].jobs[0], "CDP")
    assert (le.dtype, le.shape, lo.shape) == (np.int16, (65,), (257,))
    assert le.tolist() == list(range(65))
    assert lo.tolist() == list(range(257))
    le, lo = lut_of(traces["sdp_3x3x33_ew_le_lin_int8"].jobs[0], "SDP")
    assert le.any()
    with pytest.raises(LookupError, match=r"^unit: got 'PDP', allowed are SDP and CDP"):
        lut_of(traces["cdp_8x8x32_lrn3_int8_1"].jobs[0], "PDP")


def test_full_map_says_bytes(traces: npulab.CaptureSet) -> None:
    values = values_of(traces["conv_8x8_fc_int16"].jobs[0], TABLES, unwritten=True)
    assert values["CDMA.D_DAIN_ADDR_LOW_0.DATAIN_ADDR_LOW_0"] == 0x80000000
    assert values["CDMA.D_LINE_STRIDE.LINE_STRIDE"] == 0x100
    assert values["CDMA.D_WEIGHT_BYTES.WEIGHT_BYTES"] == 0x10000


def plain_memory(source: Path) -> dict[int, int]:
    """Bytes by address as a trace loads them, read record by record."""
    out: dict[int, int] = {}
    for line in source.read_text().split("\n"):
        line = line.split("//")[0]
        if found := re.match(r"mem_init\(\w+, (\w+), (\w+)", line):
            out.update(
                dict.fromkeys(range(int(found[1], 16), int(found[1], 16) + int(found[2], 16)), 0)
            )
        elif found := re.match(r'mem_load\(\w+, (\w+), "(.*)"', line):
            for start, payload in re.findall(
                r"offset:(\w+), size:\d+, payload:([^}]*)}", (source.parent / found[2]).read_text()
            ):
                for i, byte in enumerate(payload.split()):
                    out[int(found[1], 16) + int(start, 16) + i] = int(byte, 16)
    return out


def test_memory_is_as_loaded(traces: npulab.CaptureSet) -> None:
    seen = 0
    for capture in traces:
        memory = Memory.of(capture)
        if capture.chip == "nv_full" or held(memory) > 60000:
            continue
        plain = plain_memory(Path(capture.source))
        assert held(memory) == len(plain)
        for name, at, data in memory.ranges:
            assert name == "pri_mem"
            assert data.tolist() == [plain[at + i] for i in range(len(data))]
        seen += 1
    assert seen >= 14


def test_lines_of_bytes_are_loaded(traces: npulab.CaptureSet) -> None:
    capture = traces["pdp_max_pooling_int16"]
    text = (Path(capture.source).parent / "input_feature_map.dat").read_text()
    plain = [
        int(word, 16) for line in text.split("\n") if line.startswith("0x") for word in line.split()
    ]
    assert Memory.of(capture).read("pri_mem", 0x80000000, 0x2000).tolist() == plain[:0x2000]
    golden = capture.buffers["output_feature_map"]
    assert len(golden) == 0x1880
    assert golden[:4] == bytes([0x11, 0x20, 0x11, 0x21])
    (after,) = checked(capture, Memory.of(capture), 1)
    assert after.captured == golden != after.predicted


def held(memory: Memory) -> int:
    """Bytes in all ranges."""
    return sum(len(data) for _, _, data in memory.ranges)


def played(capture: npulab.Capture, device: Callable[[Any, Memory], None]) -> list[Range]:
    """What the checks find as jobs run one behind the other."""
    memory = Memory.of(capture)
    found = [*checked(capture, memory, 0)]
    for task, job in enumerate(capture.jobs):
        if task:
            memory.load(capture, task)
        device(job, memory)
        found += checked(capture, memory, task + 1)
    return found


def test_checks_pass_where_memory_is_golden(traces: npulab.CaptureSet) -> None:
    """Two cases say the golden bytes in a file of their own or with another case's."""
    capture = traces["pdp_max_pooling_int16"]

    def device(_: Any, memory: Memory) -> None:
        memory.write("pri_mem", 0x80100000, capture.buffers["output_feature_map"])

    assert [not one.differing for one in played(capture, device)] == [True]
    small = traces["sdp_8x8x32_bypass_int8_1"]

    def copies(_: Any, memory: Memory) -> None:
        memory.write("pri_mem", 0x80080000, memory.read("pri_mem", 0x80000000, 0x800))

    assert [not one.differing for one in played(small, copies)] == [True]


def test_every_capture_is_saved_and_loaded(traces: npulab.CaptureSet, tmp_path: Path) -> None:
    for capture in traces:
        if sum(map(len, capture.buffers.values())) < 10**6:
            again = npulab.load(npulab.save(capture, tmp_path / capture.name))
            assert again == capture
            assert all(
                np.array_equal(a[2], b[2])
                for a, b in zip(Memory.of(again).ranges, Memory.of(capture).ranges, strict=True)
            )


def test_reading_takes_little_more_memory_than_the_trace(folder: Path) -> None:
    path = folder / "nv_small" / "img_51x96x4_1x10x4x32_A8B8G8R8_int8_0"
    imported.read(folder / "nv_small" / "sdp_1x1x8_pass_through_int8_0")
    tracemalloc.start()
    capture = npulab.load(path)
    memory = Memory.of(capture)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * held(memory)


# Made traces

SDP = {
    "SDP_RDMA": ["D_DATA_CUBE_WIDTH_0, 0x0"],
    "SDP": ["D_DATA_CUBE_WIDTH_0, 0x0", "D_CVT_SCALE_0, 0x1"],
}
IMAGE = "{\n{offset:0x0, size:4, payload:0x01 0x02 0x03 0x04} ,\n{offset:0x8, size:2, payload:0x0a 0xFF} ,\n}\n"


def writes(unit: str, *said: str, group: int | None = None) -> list[str]:
    pointer = [] if group is None else [f"reg_write(NVDLA_{unit}.S_POINTER_0, {group});"]
    return pointer + [f"reg_write(NVDLA_{unit}.{one});" for one in said]


def enabled(*units: str) -> list[str]:
    return [f"reg_write(NVDLA_{unit}.D_OP_ENABLE_0, 0x1);" for unit in units]


def passed(width: int = 0, group: int | None = None) -> list[str]:
    """An SDP that reads from memory."""
    return [
        *writes("SDP_RDMA", f"D_DATA_CUBE_WIDTH_0, {width}", group=group),
        *writes("SDP", f"D_DATA_CUBE_WIDTH_0, {width}", "D_FEATURE_MODE_CFG_0, 0", group=group),
        *enabled("SDP_RDMA", "SDP"),
    ]


def end(
    event: str = "e0", unit: str = "SDP_0", address: int = 0x100, size: int = 4, crc: int = 0
) -> list[str]:
    return [
        f"intr_notify({unit}, {event});",
        f"check_crc({event}, pri_mem, {address:#x}, {size}, {crc:#x});",
    ]


def made(where: Path, lines: Iterable[str], **images: str) -> Path:
    where.mkdir(parents=True)
    (where / f"{where.name}.cfg").write_text("\n".join([*lines, ""]))
    for name, text in {"a": IMAGE, **images}.items():
        (where / f"{name}.dat").write_text(text)
    return where


LOADS = ["mem_init(pri_mem, 0x100, 0x20, ALL_ZERO);", 'mem_load(pri_mem, 0x100, "a.dat");']


def test_groups_keep_their_registers(tmp_path: Path) -> None:
    """Two layers at once in both groups, then one that writes only what is new in the first."""
    lines = [
        *LOADS,
        *writes(
            "SDP",
            "S_LUT_ACCESS_CFG_0, 0x30000",
            "S_LUT_ACCESS_DATA_0, 7",
            "S_LUT_ACCESS_DATA_0, 0xfffe",
        ),
        *passed(1, 0),
        *passed(2, 1),
        *end(),
        *end("e1", "SDP_1"),
        *writes("SDP", "D_CVT_SCALE_0, 3", group=0),
        *writes("SDP_RDMA", group=0),
        *writes("SDP", "S_LUT_ACCESS_CFG_0, 0x30001", "S_LUT_ACCESS_DATA_0, 9"),
        *enabled("SDP", "SDP_RDMA"),
        *end("e2"),
    ]
    capture = npulab.load(made(tmp_path / "case", lines))
    assert [one["units"] for one in capture.parameters["operations"]] == [
        {"SDP_RDMA": 0, "SDP": 0},
        {"SDP_RDMA": 1, "SDP": 1},
        {"SDP": 0, "SDP_RDMA": 0},
    ]
    assert [units_of(job) for job in capture.jobs] == [
        one["units"] for one in capture.parameters["operations"]
    ]
    values = [values_of(job, TABLES, unwritten=True) for job in capture.jobs]
    assert [one["SDP.D_DATA_CUBE_WIDTH.WIDTH"] for one in values] == [1, 2, 1]
    assert [one["SDP_RDMA.D_DATA_CUBE_WIDTH.WIDTH"] for one in values] == [1, 2, 1]
    assert [one["SDP.D_CVT_SCALE.CVT_SCALE"] for one in values] == [0, 0, 3]
    assert [one["inherited"] > 0 for one in capture.parameters["operations"]] == [False, True, True]
    assert [lut_of(job, "SDP")[1][:3].tolist() for job in capture.jobs] == [
        [7, -2, 0],
        [7, -2, 0],
        [7, 9, 0],
    ]
    assert [row["task"] for row in capture.parameters["checks"]] == [1, 2, 3]
    assert npulab.load(npulab.save(capture, tmp_path / "saved" / "case")) == capture


def test_units_interleave(tmp_path: Path) -> None:
    """CDP is written while SDP runs, and both are waited for in the other order."""
    pooled = writes("CDP", "D_LRN_CFG_0, 1") + writes("CDP_RDMA", "D_DATA_CUBE_WIDTH_0, 5")
    lines = [
        *LOADS,
        *pooled[:1],
        *passed(1),
        *pooled[1:],
        *enabled("CDP", "CDP_RDMA"),
        *end("late", "CDP_0"),
        *end("soon", "SDP_0"),
    ]
    capture = npulab.load(made(tmp_path / "case", lines))
    assert [set(one["units"]) for one in capture.parameters["operations"]] == [
        {"SDP", "SDP_RDMA"},
        {"CDP", "CDP_RDMA"},
    ]
    assert [(row["name"], row["task"]) for row in capture.parameters["checks"]] == [
        ("late", 2),
        ("soon", 1),
    ]
    assert values_of(capture.jobs[1], TABLES, unwritten=True)["CDP.D_LRN_CFG.NORMALZ_LEN"] == 1
    assert sum(len(job.writes) for job in capture.jobs) == len(WRITTEN.findall("\n".join(lines)))


def test_chain_is_one_operation(tmp_path: Path) -> None:
    """The convolution into SDP into PDP, with events of other units between the enables."""
    lines = [
        *LOADS,
        *writes("SDP", "D_FEATURE_MODE_CFG_0, 3"),
        *writes("PDP", "D_OPERATION_MODE_CFG_0, 1"),
        *enabled("PDP", "SDP", "CACC"),
        "sync_notify(NVDLA_CACC, x);",
        "sync_wait(NVDLA_CMAC_A, x);",
        *enabled("CMAC_A", "CSC"),
        "poll_reg_equal(NVDLA_CDMA.S_CBUF_FLUSH_STATUS_0, 0x1);",
        *enabled("CDMA"),
        *end("e0", "PDP_0"),
    ]
    capture = npulab.load(made(tmp_path / "case", lines))
    assert [set(one["units"]) for one in capture.parameters["operations"]] == [
        {"CDMA", "CSC", "CMAC_A", "CACC", "SDP", "PDP"}
    ]


def test_polls_reads_and_interrupts_stay_where_they_were(tmp_path: Path) -> None:
    """What a trace asks the device is kept with the job and the write that it stands at, through
    a save, and is written back in order."""
    poll = "poll_reg_equal(NVDLA_CDMA.S_CBUF_FLUSH_STATUS_0, 0x1);"
    field = "poll_field_not_equal(NVDLA_SDP.S_STATUS_0, 0x3, 0x1);"
    read = "reg_read(NVDLA_SDP.S_STATUS_0);"
    first, second = passed(), passed()
    lines = [
        poll,
        *LOADS,
        *first[:2],
        field,
        *first[2:],
        read,
        *end("e0"),
        "intr_notify(SDP_1, unchecked);",
        "check_nothing(unchecked);",
        poll,
        *second,
        *end("e1"),
        read,
    ]
    capture = npulab.load(made(tmp_path / "case", lines))
    rows = [
        (row["task"], row["writes"], row["statement"], row["of"], row["arguments"])
        for row in capture.parameters["waits"]
    ]
    inherited = [row["inherited"] for row in capture.parameters["operations"]]
    flush, status = "CDMA.S_CBUF_FLUSH_STATUS", "SDP.S_STATUS"
    assert rows == [
        (0, 0, "poll_reg_equal", flush, ["0x1"]),
        (0, 2, "poll_field_not_equal", status, ["0x3", "0x1"]),
        (0, len(first), "reg_read", status, []),
        (0, len(first), "intr_notify", "SDP_0", ["e0"]),
        (1, inherited[1], "intr_notify", "SDP_1", ["unchecked"]),
        (1, inherited[1], "poll_reg_equal", flush, ["0x1"]),
        (1, inherited[1] + len(second), "intr_notify", "SDP_0", ["e1"]),
        (2, 0, "reg_read", status, []),
    ]
    saved = npulab.load(save(capture, tmp_path / "saved"))
    assert saved.parameters["waits"] == capture.parameters["waits"]
    again = write_trace(saved, tmp_path / "again")
    text = (again / f"{saved.name}.cfg").read_text()
    asked = re.compile(r"^(?:poll|reg_read|intr).*$", re.MULTILINE)
    assert asked.findall(text) == [line for line in lines if asked.match(line)]
    read_again = npulab.load(again).parameters["waits"]
    assert [(row["task"], row["writes"], row["of"]) for row in read_again] == [
        (task, writes, of) for task, writes, _, of, _ in rows
    ]


def test_memory_changes_between_jobs(tmp_path: Path) -> None:
    """What an image does not say stays as the job before left it."""
    lines = [
        *LOADS,
        *passed(),
        *end(crc=zlib.crc32(b"\1\2\3\4")),
        'mem_load(pri_mem, 0x100, "a.dat");',
        "mem_init(sec_mem, 0x100, 8, ALL_ZERO);",
        *passed(),
        *end("e1", size=12, crc=zlib.crc32(b"\1\2\3\4\5\5\5\5\x0a\xff\5\5")),
    ]
    capture = npulab.load(made(tmp_path / "case", lines))
    rows = capture.parameters["memory"]
    assert [row["task"] for row in rows] == [0, 0, 1, 1]
    assert [row.get("runs") for row in rows] == [None, None, [[0, 4], [8, 2]], None]

    def device(job: Any, memory: Memory) -> None:
        memory.write("sec_mem" if job is capture.jobs[1] else "pri_mem", 0x104, b"\5" * 4)
        memory.write("pri_mem", 0x104, b"\5" * 8)

    found = played(capture, device)
    assert [not one.differing for one in found] == [
        True,
        False,
    ]  # the image says 0a ff before the second job
    assert found[1].predicted == b"\1\2\3\4" + b"\5" * 8


def test_memory_reads_and_refuses(tmp_path: Path) -> None:
    memory = Memory.of(npulab.load(made(tmp_path / "case", [*LOADS, *passed(), *end()])))
    memory.write("pri_mem", 0x102, np.array([[-1, 2], [3, 4]], np.int8))
    assert memory.read("pri_mem", 0x102, 10).tolist() == [255, 2, 3, 4, 0, 0, 10, 255, 0, 0]
    with pytest.raises(ValueError, match="read-only"):
        memory.read("pri_mem", 0x100, 1)[0] = 1
    for call in (
        lambda: memory.read("pri_mem", 0x11D, 4),
        lambda: memory.read("sec_mem", 0x100, 1),
        lambda: memory.write("pri_mem", 0xFF, b"\0\0"),
        lambda: memory.write("pri_mem", 0, b"\0"),
    ):
        with pytest.raises(
            Outside,
            match=r"^memory: got (pri|sec)_mem 0x\w+ to 0x\w+, allowed are (pri_mem 0x100 to 0x120|none of it)$",
        ):
            call()


def test_statements_may_be_spelled_otherwise(tmp_path: Path) -> None:
    lines = [
        "  mem_init ( 1 , 256, 0X20 , ALL_ZERO ) ; # all",
        ' mem_load(pri_mem,0x100,"a.dat");mem_load(0, 0x100, "a.dat"); // twice',
        "",
        *passed(),
        "intr_notify(NVDLA_SDP_0, e);",
        'check_file(e, 1, 0x100, 0xa, "a.dat"); // check_crc(',
    ]
    capture = npulab.load(made(tmp_path / "case", lines))
    assert [row["memory"] for row in capture.parameters["memory"]] == [
        "pri_mem",
        "pri_mem",
        "sec_mem",
    ]
    assert [not one.differing for one in checked(capture, Memory.of(capture), 1)] == [True]
    assert capture.addresses == {"a": 0x100}


def test_txn_memory_belongs_to_both(tmp_path: Path) -> None:
    text = [
        "load_mem 0x50000000 0x4 a.dat # sram",
        "write_reg 0xffff2801 0x0",
        "write_reg 0xffff2802 0x1 // RDMA",
        "write_reg 0xffff2c0e 1",
        "read_reg 0xffff0003 0x1 0x1",
        "write_reg 0xffff0003 0xffffffff",
        "dump_mem 0x50000000 2 b.dat",
    ]
    (tmp_path / "input.txn").write_text("\n".join(text))
    (tmp_path / "a.dat").write_text("Crc=0x1\n 0x01 0x02\n0x03 0x04\n0x05\n")
    (tmp_path / "b.dat.gz").write_bytes(gzip.compress(b"dump\n\n0x01 0x02 \n==\n"))
    capture = npulab.load(tmp_path)
    assert (capture.name, capture.chip, capture.jobs[0].block) == (tmp_path.name, "nv_full", "FULL")
    memory = Memory.of(capture)
    assert [memory.read(name, 0x50000000, 4).tolist() for name in ("pri_mem", "sec_mem")] == [
        [1, 2, 3, 4]
    ] * 2
    assert [not one.differing for one in checked(capture, memory, 1)] == [True]


# Images

SPELLED = st.lists(
    st.tuples(st.integers(0, 2**20), st.binary(min_size=1, max_size=40)), min_size=1, max_size=6
)


@given(SPELLED, st.booleans(), st.booleans(), st.randoms(use_true_random=False))
def test_records_read_at_once_are_those_read_one_by_one(
    records: list[tuple[int, bytes]], upper: bool, listed: bool, random: Any
) -> None:
    digits = "{:#04x}" if not upper else "0x{:02X}"
    text = "".join(
        f"{{offset:{start:#x}, size:{len(data)}, payload:{' '.join(map(digits.format, data))}}}{random.choice([',', ' ,', ''])}"
        + random.choice(["\n", "\r\n", "\n\n", " "])
        for start, data in records
    )
    chunk = ("{\n" + text + "}\n" if listed else text).encode()
    usual, plain = spelled_as_usual(chunk), spelled_anyhow(chunk)
    assert usual is not None
    assert [part.tolist() for part in usual] == [part.tolist() for part in plain]
    assert plain[0].tolist() == [start for start, _ in records]
    assert plain[2].tobytes() == b"".join(data for _, data in records)


@pytest.mark.parametrize("count", [80, pytest.param(200, marks=pytest.mark.long)])
def test_a_changed_letter_is_never_read_at_once_as_something_else(count: int) -> None:
    settings(max_examples=count)(given(SPELLED, st.data())(not_misread))()


def not_misread(records: list[tuple[int, bytes]], data: Any) -> None:
    text = bytearray(
        "".join(
            f"{{offset:{start:#x}, size:{len(one)}, payload:{' '.join(map('{:#04x}'.format, one))}}} ,\n"
            for start, one in records
        ).encode()
    )
    at = data.draw(st.integers(0, len(text) - 1))
    if data.draw(st.booleans()):
        text[at] = data.draw(st.sampled_from(list(b"0x9af{}, :\noptsize-g\xff")))
    else:
        text[at : at + 1] = data.draw(st.sampled_from([b"", b"  ", b"00", b"x", b"}"]))
    chunk = bytes(text)
    usual = spelled_as_usual(chunk)
    try:
        plain = spelled_anyhow(chunk)
    except ValueError:
        assert usual is None
    else:
        assert usual is None or [part.tolist() for part in usual] == [
            part.tolist() for part in plain
        ]


def test_spaced_records_are_read_too(tmp_path: Path) -> None:
    (tmp_path / "a.dat").write_text("{ { offset : 16 ,\n size: 0x3, payload : 0x01\t0x02 0x03 } }")
    image = read_records(tmp_path / "a.dat")
    assert (image.name, image.data, image.runs.tolist(), image.whole) == (
        "a",
        bytes(16) + b"\1\2\3",
        [[16, 3]],
        False,
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1: got no record, allowed is at least one"),
        ("{\n}\n", "got no record"),
        (IMAGE[:40], "line 2: got '{offset:0x0, size:4, payload:0x01 0x02', allowed is"),
        (IMAGE[:-2], "line 4: ends inside a list, allowed is a } for every {"),
        (IMAGE.replace("0x03", "0x3g"), "line 2: got "),
        (
            IMAGE.replace("size:2", "size:3"),
            "line 3: got 2 bytes of payload, allowed are the 3 that its size says",
        ),
        (IMAGE.replace("offset:0x8", "offset:-8"), "line 3: got "),
        ("{" * 60000, "line 1: ends inside a list"),
        (" " * 3000000 + "x", "bytes without a '}', allowed are up to"),
    ],
)
def test_broken_records_are_told(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "a.dat").write_text(text)
    start = time.process_time()
    with pytest.raises(ValueError) as found:
        read_records(tmp_path / "a.dat")
    assert str(found.value).startswith(f"{tmp_path / 'a.dat'}")
    assert said in str(found.value)
    assert time.process_time() - start < limit(1)


def test_records_that_lie_far_apart_are_packed(tmp_path: Path) -> None:
    (tmp_path / "a.dat").write_text(IMAGE.replace("offset:0x8", "offset:0x90000000"))
    image = read_records(tmp_path / "a.dat")
    assert (image.data, image.packed, image.extent) == (b"\1\2\3\4\x0a\xff", True, 0x90000002)
    assert image.runs.tolist() == [[0, 4], [0x90000000, 2]]
    text = "\n".join(WHOLE)
    path = made(tmp_path / "case", [text], a=(tmp_path / "a.dat").read_text())
    with pytest.raises(
        ValueError,
        match=r"line 2: got 2415919138 bytes of memory in all, allowed are up to 1073741824",
    ):
        npulab.load(path)


def test_a_trace_may_reach_beyond_32_mib(tmp_path: Path) -> None:
    """A pass of two atoms, the second one 40 MiB behind the first."""
    far = 40 * 2**20
    payload = bytes(range(1, 17))
    parts = [
        f"{{offset:{at:#x}, size:8, payload:0x{payload[first : first + 8].hex(' ').replace(' ', ' 0x')}}}"
        for at, first in ((0, 0), (far, 8))
    ]
    rdma = {
        "D_DATA_CUBE_CHANNEL": 15,
        "D_SRC_BASE_ADDR_LOW": 0x80000000,
        "D_SRC_LINE_STRIDE": 8,
        "D_SRC_SURFACE_STRIDE": far,
        "D_FEATURE_MODE_CFG": 0,
        "D_BRDMA_CFG": 1,
        "D_NRDMA_CFG": 1,
        "D_ERDMA_CFG": 1,
        "D_SRC_DMA_CFG": 1,
    }
    sdp = fields("""
D_DATA_CUBE_CHANNEL=15 D_DST_BASE_ADDR_LOW=0x100 D_DST_LINE_STRIDE=8
D_DST_SURFACE_STRIDE=8 D_FEATURE_MODE_CFG=0 D_DP_BS_CFG=1 D_DP_BN_CFG=1 D_DP_EW_CFG=1
D_CVT_SCALE=1 D_DST_DMA_CFG=1
""")
    lines = [
        "mem_init(pri_mem, 0x80000000, 0x4, ALL_ZERO);",
        'mem_load(pri_mem, 0x80000000, "a.dat");',
        "mem_init(pri_mem, 0x100, 0x10, ALL_ZERO);",
        *(
            f"reg_write(NVDLA_{unit}.{name}_0, {value:#x});"
            for unit, values in (("SDP_RDMA", rdma), ("SDP", sdp))
            for name, value in values.items()
        ),
        *enabled("SDP", "SDP_RDMA"),
        *end(size=16, crc=zlib.crc32(payload)),
    ]
    path = made(tmp_path / "nv_small" / "case", lines, a="{\n" + " ,\n".join(parts) + "\n}\n")
    tracemalloc.start()
    capture = npulab.load(path)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(capture.buffers["a"]) == 16
    assert most < 2**23
    result = npulab.check(capture)
    assert (result.verdict, result.compared) == ("equal", 16), result
    saved = npulab.load(save(capture, tmp_path / "saved"))
    assert npulab.check(saved).verdict == "equal"
    again = npulab.load(write_trace(capture, tmp_path / "again"))
    assert again.buffers == capture.buffers
    assert npulab.check(again).verdict == "equal"
    wrong = capture.with_buffers(a=payload[:15] + b"\0")
    assert npulab.check(wrong).verdict == "differs"


def test_broken_lines_and_archives_are_told(tmp_path: Path) -> None:
    (tmp_path / "a.dat").write_text("W=1\n0x01 0x02\n0x03 0x4\n")
    with pytest.raises(
        ValueError, match=r"a.dat, line 3: got '0x03 0x4', allowed are bytes 0x00 to 0xff"
    ):
        read_lines(tmp_path / "a.dat", 3)
    (tmp_path / "a.dat").write_text("0x01 0x02 0x03\n")
    assert read_lines(tmp_path / "a.dat", 2).data == b"\1\2"
    with pytest.raises(ValueError, match=r"a.dat: got 3 bytes, allowed are at least 4$"):
        read_lines(tmp_path / "a.dat", 4)
    (tmp_path / "b.dat.gz").write_bytes(gzip.compress(IMAGE.encode())[:-9])
    with pytest.raises(ValueError, match=r"b.dat.gz: cannot be unpacked: "):
        read_records(tmp_path / "b.dat.gz")
    (tmp_path / "b.dat.gz").write_bytes(gzip.compress(bytes(2**23)))
    with pytest.raises(ValueError, match=r"b.dat.gz, line 1: got "):
        read_records(tmp_path / "b.dat.gz")


# Broken traces

WHOLE = [*LOADS, *passed(), *end()]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    cases(
        r"""
NVDLA_SDP.D_FEATURE_MODE_CFG_0 | NVDLA_SDP.D_FEATURE_MODE_CGF_0 | line 5: got register 'NVDLA_SDP.D_FEATURE_MODE_CGF_0', allowed is NVDLA_SDP.D_FEATURE_MODE_CFG_0
NVDLA_SDP.D_DATA | NVDLA_XYZ.D_DATA | line 4: got register
NVDLA_SDP.D_DATA_CUBE_WIDTH_0, 0 | 17, 0 | line 4: got register '17', allowed is a unit of CFGROM, GLB,\x20
D_FEATURE_MODE_CFG_0, 0 | D_FEATURE_MODE_CFG_0, 0x1ffffffff | line 5: got value '0x1ffffffff', allowed is 0 to 0xffffffff
D_FEATURE_MODE_CFG_0, 0 | D_FEATURE_MODE_CFG_0, 0xzz | line 5: got value '0xzz', allowed is 0 to 0xffffffff
D_FEATURE_MODE_CFG_0, 0 | D_FEATURE_MODE_CFG_0, -1 | line 5: got value '-1'
D_FEATURE_MODE_CFG_0, 0 | D_FEATURE_MODE_CFG_0 | line 5: got reg_write with 1 arguments, allowed are 2
mem_init( | mem_copy( | line 1: got statement 'mem_copy', allowed are mem_init,\x20
ALL_ZERO | NONE | line 1: got pattern 'NONE', allowed is ALL_ZERO
pri_mem, 0x100, 0x20 | dram, 0x100, 0x20 | line 1: got memory 'dram', allowed are sec_mem, pri_mem, 0 and 1
0x20, ALL | 0x5, ALL | line 2: got a.dat of 0xa bytes at 0x100, past the end of the memory there, allowed is up to 0x105
0x20, ALL | 0xffffffffff, ALL | line 1: got 1099511627775 bytes of memory in all, allowed are up to 1073741824
0x20, ALL | 0, ALL | line 1: got size 0 at address 0x100
0x100, 0x20 | 0xfffffffffff0, 0x20 | line 1: got size 0x20 at address 0xfffffffffff0, allowed is 1 to 0x10
"a.dat" | "b.dat" | line 2: got file 'b.dat', which is not next to the trace, nor is 'b.dat.gz'
"a.dat" | "../case/a.dat" | line 2: got file '../case/a.dat', allowed is the plain name of a file
"a.dat" | "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" | next to the trace, of at most 255 bytes
"a.dat" | a.dat | line 2: got file 'a.dat', allowed is a name in quotes
0x100, 4, 0x0 | 0x100, 33, 0x0 | line 9: got a check of 0x21 bytes at 0x100, past the end of the memory there
0x100, 4, 0x0 | 0x100, 4, 0x | line 9: got CRC '0x'
intr_notify(SDP_0 | intr_notify(SDP | line 8: got unit 'SDP', allowed is one such as SDP_0
;\nintr | \nintr | line 7: got 'reg_write(NVDLA_SDP.D_OP_ENABLE_0, 0x1)', allowed is a statement
reg_write(NVDLA_SDP_RDMA.D_OP_ENABLE_0, 0x1);\n |  | line 6: got SDP enabled without SDP_RDMA, allowed are
D_FEATURE_MODE_CFG_0, 0 | D_FEATURE_MODE_CFG_0, 1 | line 7: got SDP, SDP_RDMA enabled without CDMA, CSC, CACC, CMAC_A, allowed are
""",
        escaped,
        escaped,
        escaped,
    ),
)
def test_broken_traces_are_told(old: str, new: str, said: str, tmp_path: Path) -> None:
    text = "\n".join(WHOLE)
    assert old in text
    path = made(tmp_path / "case", [text.replace(old, new, 1)])
    with pytest.raises(ValueError) as found:
        npulab.load(path)
    assert str(found.value).startswith(f"{path / 'case.cfg'}, ")
    assert said in str(found.value)


def test_a_cut_trace_is_always_refused(tmp_path: Path) -> None:
    """Two layers, so that a whole one may stand before the cut."""
    text = "\n".join([*WHOLE, *passed(group=1), *end("e1", "SDP_1")])
    path = made(tmp_path / "case", [])
    for size in range(0, len(text), 3):
        (path / "case.cfg").write_text(text[:size])
        first = text[:size].rstrip() == "\n".join(WHOLE)  # a trace of its own
        assert recorded(path) is first, text[:size][-40:]


def recorded(path: Path) -> bool:
    """Whether a trace reads; what does not names file and line."""
    said = ""
    try:
        imported.read_trace(path / "case.cfg")
    except ValueError as error:
        said = str(error)
    assert re.fullmatch(rf"({re.escape(str(path))}/case\.cfg, line \d+: [^\n]+)?", said), said
    return not said


def test_broken_txn_is_told(tmp_path: Path) -> None:
    text = "load_mem 0x100 4 a.dat\nwrite_reg 0xffff2802 1\nwrite_reg 0xffff2c0e 1\nwait\ndump_mem 0x100 4 a.dat\n"
    (tmp_path / "a.dat").write_text("0x01 0x02 0x03 0x04\n")
    for old, new, said in cases(
        r"""
load_mem | load | line 1: got command 'load', allowed are load_mem,\x20
0x100 4 | 0x100 5 | line 1:\x20
0xffff2802 | 0xffff2bff | line 2: got address '0xffff2bff'
0xffff2802 | 0x2802 | line 2: got address '0x2802'
2802 1 | 2802 1z | line 2: got value '1z'
2802 1 | 2802 | line 2: got write_reg with 1 arguments, allowed are 2
dump_mem 0x100 4 a.dat\n |  | line 4: ends before a check
a.dat | b.dat | line 1: got file 'b.dat'
""",
        escaped,
        escaped,
        escaped,
    ):
        (tmp_path / "input.txn").write_text(text.replace(old, new, 1))
        with pytest.raises(ValueError) as found:
            npulab.load(tmp_path / "input.txn")
        assert said in str(found.value)


def test_the_other_cases_go_on(tmp_path: Path, run: Any) -> None:
    folder = tmp_path / "traces"
    for chip, name, lines in (
        ("nv_small", "good", WHOLE),
        ("nv_small", "cut", WHOLE[:-1]),
        ("nv_large", "both", WHOLE),
        ("nv_small", "both", WHOLE),
    ):
        made(folder / chip / name, lines)
    made(folder / "nv_small" / "empty", [])
    assert imported.recognises(folder)
    with pytest.warns(UserWarning, match=r"line \d+: ") as told:
        found = npulab.load_all(folder)
    assert [str(one.message).split(", line")[0] for one in told] == [
        str(folder / "nv_small" / name / f"{name}.cfg") for name in ("cut", "empty")
    ]
    assert {one.name: one.chip for one in found} == {
        "nv_large-both": "nv_large",
        "nv_small-both": "nv_small",
        "good": "nv_small",
    }
    assert npulab.load(folder, "good") == found["good"]
    with pytest.raises(
        ValueError, match=r"cut.cfg, line 8: got event 'e0', which nothing checks or waits for"
    ):
        npulab.load(folder, "cut")
    status, out, error = run("check", str(folder), "--json")
    assert status == 1
    assert [json.loads(line)["case"] for line in out] == found.names
    assert [line.split(", line")[0] for line in error.splitlines()] == [
        f"npulab: {folder}/nv_small/{name}/{name}.cfg" for name in ("cut", "empty")
    ]
    status, out, _ = run("check", str(folder))
    assert out[-1].startswith("3 captures, ")
    assert ", 2 unreadable (" in out[-1]
    status, _, error = run(
        "import", str(folder), str(tmp_path / "captures"), "--name", "x", "--chip", "nv_full"
    )
    assert status == 2
    assert error.count("npulab: ") == 2
    again = npulab.load_all(tmp_path / "captures")
    assert {one.name for one in again} == {"x-nv_large-both", "x-nv_small-both", "x-good"}
    assert {one.chip for one in again} == {"nv_full"}
    assert run("check", str(folder / "nv_small" / "cut"))[0] == 1
    assert run("list", str(folder))[0] == 2


def test_chip_is_that_of_the_nearest_folder(tmp_path: Path) -> None:
    for where, chip in cases("""
nv_small/nv_medium_512/a | nv_medium_512
x/b | nv_small
nvdlav1/c | nv_full
nv_small_256_full/d | nv_small_256_full
"""):
        assert npulab.load(made(tmp_path / where, WHOLE)).chip == chip
    capture = npulab.load(tmp_path / "nvdlav1" / "c")
    assert capture.jobs[0].block == "FULL"
    assert values_of(capture.jobs[0], TABLES, unwritten=True)["SDP_RDMA.D_OP_ENABLE.OP_EN"] == 1


# Mutations


def mutations(count: int, folder: Path) -> None:
    random = Random(5)
    texts = {
        "case.cfg": "\n".join([*WHOLE, *passed(group=1), *end("e1", "SDP_1")]),
        "a.dat": IMAGE,
        "input.txn": "load_mem 0x100 4 b.dat\nwrite_reg 0xffff2802 1\nwrite_reg 0xffff2c0e 1\nwait\ndump_mem 0x100 4 b.dat\n",
        "b.dat": "W=0x1\n0x01 0x02 0x03 0x04\n",
    }
    sides = {"case": ("case.cfg", "a.dat"), "line": ("input.txn", "b.dat")}
    for side, names in sides.items():
        (folder / side).mkdir()
        for name in names:
            (folder / side / name).write_text(texts[name])
    slowest = 0.0
    for number in range(count):
        side = ("case", "line")[number % 2]
        name = sides[side][random.randrange(2)]
        change = random.choice([change_text, change_bytes])
        (folder / side / name).write_bytes(change(random, texts[name].encode()))
        start, said = time.process_time(), ""
        try:
            Memory.of(imported.read_trace(folder / side / sides[side][0]))
        except ValueError as error:
            said = str(error)
        assert re.fullmatch(
            rf"({re.escape(str(folder))}/\w+/(case\.cfg|input\.txn), line \d+: [^\n]+)?", said
        ), said
        slowest = max(slowest, time.process_time() - start)
        (folder / side / name).write_text(texts[name])
    assert slowest < 1


def test_mutated_files_are_refused_with_a_sentence(tmp_path: Path) -> None:
    mutations(200, tmp_path)


@pytest.mark.long
def test_ten_thousand_mutated_files_are_refused_with_a_sentence(tmp_path: Path) -> None:
    mutations(10000, tmp_path)
