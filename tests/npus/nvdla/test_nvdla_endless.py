"""Polls of traces whose value no register can have under their mask: nvdla/hw#24, #61 and #85, where
mask and value of a line of the googlenet trace were swapped, and the player waited for ever.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import CAPTURES

import npulab
from npulab import cli
from npulab.captures.store import save
from npulab.npus.nvdla.writing import write_trace

# "write_reg 0xffff1402 0x3000f", and the poll of it: address, mask, value
WRITE = "write_reg 0xffff1402 0x3000f"
GOOD = "read_reg 0xffff1402 0x000f000f 0x0003000f"
STUCK = "read_reg 0xffff0003 0x0 0xffffffff"
WHY = "no value under mask 0x0 is 0xffffffff: it waits for ever"


def trace(folder: Path, *lines: str) -> Path:
    path = folder / "a.txn"
    path.write_text("\n".join([*lines, ""]))
    return path


def test_a_poll_that_can_match_is_equal(tmp_path: Path) -> None:
    capture = npulab.load(trace(tmp_path, WRITE, GOOD))
    assert capture.jobs[0].writes == ((4 * 0x1402, 0x3000F),)
    assert "endless" not in capture.parameters
    assert npulab.check(capture).verdict == "equal"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (STUCK, WHY),
        ("read_reg 0xffff1402 0x000f000f 0x1000f", ""),
        ("read_reg 0xffff1402 0x0003000f 0x000f000f", "no value under mask 0x3000f is 0xf000f"),
        ("read_reg 0xffff0003 0x1 0x3", "no value under mask 0x1 is 0x3"),
        ("read_reg 0xffff0003 0x3 0x1", ""),
    ],
)
def test_which_polls_never_end(line: str, why: str, tmp_path: Path) -> None:
    capture = npulab.load(trace(tmp_path, WRITE, GOOD, line))
    rows = capture.parameters.get("endless", [])
    assert [row["line"] for row in rows] == [3] * bool(why)
    assert all(row["why"].startswith(why) for row in rows)


def test_check_and_show_say_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = trace(tmp_path, WRITE, GOOD, STUCK)
    for capture in (npulab.load(path), npulab.load(save(npulab.load(path), tmp_path / "kept"))):
        found = npulab.check(capture)
        assert (found.verdict, found.compared) == ("differs", 8)
        assert f"GLB.S_INTR_STATUS (line 3), {WHY}" in found.reason
    assert cli.main(["show", str(path)]) == 0
    assert WHY in capsys.readouterr().out


def test_a_trace_that_checks_memory_says_it_too(tmp_path: Path) -> None:
    capture = npulab.load(CAPTURES / "nvdla/sim-1x1-relu")
    path = write_trace(capture, tmp_path)
    assert npulab.check(npulab.load(path)).verdict == "equal"
    (file,) = tmp_path.rglob("*.cfg")
    lines = file.read_text().split("\n")
    at = next(number for number, line in enumerate(lines) if line.startswith("reg_write"))
    lines.insert(at + 1, "poll_field_equal(NVDLA_CDMA.S_STATUS_0, 0x1, 0x2);")
    file.write_text("\n".join(lines))
    found = npulab.check(npulab.load(file))
    assert found.verdict == "differs"
    assert f"CDMA.S_STATUS (line {at + 2}), no value under mask 0x1 is 0x2" in found.reason
