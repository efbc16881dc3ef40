"""``npulab check`` on folders of public traces as they lie in their repository, whole and
broken.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import shared
from test_cli import run  # noqa: F401

import npulab
from npulab.captures.target import Range

SDP, PDP, CDP = "sdp_8x8x32_bypass_int8_1", "pdp_7x9x10_3x3_int8", "cdp_8x8x32_lrn3_int8_1"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three traces of nv_small that a test may break."""
    for name in (SDP, PDP, CDP):
        shutil.copytree(shared(f"data/nvdla/nv_small/{name}"), tmp_path / "nv_small" / name)
    return tmp_path


def edit(folder: Path, case: str, old: str, new: str) -> tuple[Path, int]:
    """Change a trace where a pattern is first found: (its file, the line)."""
    file = folder / "nv_small" / case / f"{case}.cfg"
    text = file.read_text()
    match = re.search(old, text)
    assert match, old
    file.write_text(text[: match.start()] + match.expand(new) + text[match.end() :])
    return file, 1 + text.count("\n", 0, match.start())


def test_processes_say_the_same(run: Any) -> None:
    path = shared("data/nvdla/nv_large")
    assert run("check", path, "--jobs", 2) == run("check", path)


def test_a_wrong_crc_is_told_with_its_line(run: Any, folder: Path) -> None:
    _, line = edit(folder, PDP, r"(check_crc\(.*)0x\w+\)", r"\g<1>0x12345678)")
    status, lines, err = run("check", folder)
    assert (status, err) == (1, "")
    assert lines[-1] == "3 captures, 1 differs (2 equal, 1 differs)"
    told = next(one for one in lines if one.startswith(PDP))
    assert re.search(
        rf"  differs  pri_mem 0x\w+ \(line {line}\): CRC-32 of 24896 bytes is 0x\w+, the run had 0x12345678$",
        told,
    )
    row = next(json.loads(one) for one in run("check", folder, "--json")[1] if PDP in one)
    assert (row["compared"], row["mismatches"], row["verdict"]) == (24896, 24896, "differs")


def test_golden_bytes_that_differ_are_counted(run: Any, tmp_path: Path) -> None:
    folder = tmp_path / "nvdlav1" / "sdp_relu_int16"
    shutil.copytree(shared("data/nvdla/nvdlav1/sdp_relu_int16"), folder)
    golden = (
        folder / re.findall(r"dump_mem\s+\S+\s+\S+\s+(\S+)", (folder / "input.txn").read_text())[0]
    )
    text = golden.read_text()
    at = [match.start() for match in re.finditer(r"0x\w\w\b", text)]
    for n in (7, 100):
        text = text[: at[n] + 3] + f"{int(text[at[n] + 3], 16) ^ 5:x}" + text[at[n] + 4 :]
    golden.write_text(text)
    status, lines, _ = run("check", tmp_path, "--json")
    row = json.loads(lines[0])
    assert (status, row["compared"], row["mismatches"], row["verdict"]) == (1, 4096, 2, "differs")
    assert row["reason"].endswith(": 2 of 4096 bytes differ, the first at 0x7")
    assert npulab.check(npulab.load(folder)).first == (7,)
    assert 1 <= npulab.check(npulab.load(folder)).max <= 5


def test_ranges_say_where_they_differ() -> None:
    assert list(Range("a", b"abc", b"abd").differing) == [2]
    assert list(Range("a", b"abc", b"ab").differing) == [2]
    assert list(Range("a", b"", b"ab").differing) == [0, 1]
    assert not Range("a", b"abc", b"abc").differing
    assert not Range("a", b"abc", crc=0x352441C2).differing
    assert len(Range("a", b"abc", crc=1).differing) == 3
    assert [
        Range("a", one, other).largest
        for one, other in ((b"\0", b"\xff"), (b"\xff", b"\0"), (b"a", b""))
    ] == [255, 255, 0]
    assert str(Range("a", b"abc", b"ab")) == "a: 1 of 2 bytes differ, the first at 0x2"


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        pytest.param(r"(?s)intr_notify.*", "", "line ", id="cut short"),
        pytest.param(
            r"NVDLA_SDP\.D_DATA_CUBE_WIDTH_0",
            "NVDLA_SDP.D_CUBE_WIDTH_0",
            "line {line}: got register 'NVDLA_SDP.D_CUBE_WIDTH_0', allowed is NVDLA_SDP.D_DATA_CUBE_WIDTH_0",
            id="register",
        ),
        pytest.param(
            r'"SDP_0_input\.dat"',
            '"SDP_1_input.dat"',
            "line {line}: got file 'SDP_1_input.dat'",
            id="file",
        ),
        pytest.param(
            r"mem_load\((\w+), 0x80000000",
            r"mem_init(\1, 0x80000000, 0x7ff, ALL_ZERO);\nmem_load(\1, 0x80000000",
            "line ",
            id="past its memory",
        ),
    ],
)
def test_a_broken_trace_leaves_the_others(
    old: str,
    new: str,
    said: str,
    run: Any,
    folder: Path,
) -> None:
    file, line = edit(folder, SDP, old, new)
    status, lines, err = run("check", folder)
    assert status == 1
    assert lines[-1] == "2 captures, 0 differ, 1 unreadable (2 equal)"
    assert err.startswith(f"npulab: {file}, {said.format(line=line)}")
    assert err.count("\n") == 1
    assert run("check", file.parent)[0] == run("check", file)[0] == 1
    assert run("show", file.parent)[0] == 2


def test_an_operation_past_its_memory_is_told_with_its_line(run: Any, folder: Path) -> None:
    edit(folder, SDP, r"(NVDLA_SDP\.D_DST_BASE_ADDR_LOW_0, )0x\w+", r"\g<1>0x10")
    status, lines, err = run("check", folder, "--json")
    row = next(json.loads(one) for one in lines if SDP in one)
    assert (status, err, row["verdict"], row["compared"]) == (1, "", "differs", 0)
    assert re.match(
        rf"capture {SDP}, operation 0 \(line \d+\): memory: got pri_mem 0x10 to ", row["reason"]
    )


def test_the_chip_may_be_said(run: Any, folder: Path) -> None:
    shutil.move(folder / "nv_small", folder / "mine")
    assert run("check", folder)[0] == 0  # the usual one
    status, lines, _ = run("check", folder, "--chip", "nv_large")
    assert status == 1
    assert lines[-1].startswith("3 captures, ")
    shutil.copytree(shared("data/nvdla/nv_medium_512"), folder / "mine", dirs_exist_ok=True)
    one = folder / "mine" / "dc_8x16x128_3x3x128x32_int8"
    assert [run("check", one, "--chip", chip)[0] for chip in ("nv_medium_512", "nv_small")] == [
        0,
        1,
    ]
    assert run("check", one, "--chip", "nv_tiny")[::2] == (
        2,
        "npulab: chip: got 'nv_tiny', target nvdla knows nv_small, nv_small_256, nv_small_256_full, nv_medium_512, "
        "nv_medium_1024_full, nv_large, nv_full\n",
    )


def test_images_may_be_packed(run: Any, folder: Path) -> None:
    import gzip

    for file in folder.rglob("*.dat"):
        file.with_name(f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()
    assert run("check", folder)[0] == 0
