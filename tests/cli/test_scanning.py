"""``npulab scan`` and ``npulab layout`` in the shell: the library's answers, journals, sentences."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT
from test_cli import run  # noqa: F401 - a fixture

import npulab
from npulab import layout
from npulab.analysis.scan import scan_capture
from npulab.captures import store
from npulab.layout import Layout, Loop, Planes, markers, nc1hwc2

CAPTURE = ROOT / "captures" / "vivante" / "sim-1x1"
# a device of which the buffer "data" has four bits of a number, one that hangs and three that are
# dead; every run is counted in a file
DEVICES = """
from pathlib import Path
from npulab.captures.target import Run

class Board:
    def run(self, capture):
        with Path("ran").open("a") as file:
            file.write("x")
        byte = capture.buffers["data"][0]
        if byte & 16:
            return Run("hang", reason="no interrupt")
        return Run("done", bytes([100 + byte % 16]))

class Words:
    def run(self, capture):
        return Run("done", bytes([int(capture.words[1]) % 4]))

class Stopped(Board):
    def run(self, capture):
        if Path("ran").exists() and len(Path("ran").read_text()) >= 5:
            raise KeyboardInterrupt
        return super().run(capture)
"""
COMMAND = f"command:{sys.executable} -S program.py"
PROGRAM = """import pathlib, sys
folder = pathlib.Path(sys.argv[1])
byte = (folder / "data.bin").read_bytes()[0]
if byte & 16:
    sys.exit(124)
(folder / "output.bin").write_bytes(bytes([100 + byte % 16]))
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a capture ``good``, the module ``mine`` of devices, and a program."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    Path("mine.py").write_text(DEVICES)
    Path("program.py").write_text(PROGRAM)
    store.save(npulab.load(CAPTURE).with_buffers(data=b"\x05"), "good")
    return tmp_path


def runs_made() -> int:
    path = Path("ran")
    if not path.exists():
        return 0
    return len(path.read_text())


SCAN = ("good", "--buffer", "data", "--input", "good")


def test_a_scan_is_the_answer_of_the_library(run: Any, here: Path) -> None:
    sys.path.insert(0, "")
    import mine  # type: ignore[import-not-found]

    good = npulab.load("good")
    found = scan_capture(good, mine.Board(), "data", inputs=[good])
    status, lines, said = run("scan", *SCAN, "--device", "python:mine:Board")
    assert (status, said) == (0, "")
    assert lines == str(found).splitlines()
    assert "simulated" not in lines[1]
    kinds = {"data": 4, "dead": 3, "hang": 1}
    assert found.counts == kinds
    status, lines, _ = run("scan", *SCAN, "--device", "python:mine:Board", "--json")
    whole, *rows = map(json.loads, lines)
    assert status == 0
    assert whole["what"] == "scan"
    assert {kind: whole[kind] for kind in kinds} == kinds
    assert (whole["runs"], whole["hangs"]) == (found.runs, found.hangs)
    assert sum(row["bits"] for row in rows) == 8
    assert {row["what"] for row in rows} == {"bits"}
    hang = next(row for row in rows if row["kind"] == "hang")
    assert (hang["first"], hang["bits"], hang["channel"]) == (4, 1, None)


def test_a_scan_asks_a_program(run: Any, here: Path) -> None:
    options = [*SCAN, "--timeout", "30", "--json"]
    status, lines, _ = run("scan", *options, "--device", COMMAND)
    kinds = json.loads(lines[0])
    assert status == 0
    assert [kinds[kind] for kind in ("data", "dead", "hang")] == [4, 3, 1]


def test_a_scan_goes_on_with_its_journal(run: Any, here: Path) -> None:
    device = ["--device", "python:mine:Stopped", "--resume", "j.jsonl"]
    status, lines, said = run("scan", *SCAN, *device)
    assert (status, lines) == (1, [])
    assert said == "npulab: stopped, j.jsonl has every run so far\n"
    assert runs_made() == 5
    device[1] = "python:mine:Board"
    status, lines, _ = run("scan", *SCAN, *device, "--json")
    assert status == 0
    assert runs_made() == json.loads(lines[0])["runs"]
    assert run("scan", *SCAN, *device, "--json")[1] == lines
    assert runs_made() == json.loads(lines[0])["runs"]
    status, _, said = run("scan", *SCAN, *device, "--seed", "1")
    assert status == 2
    assert "j.jsonl: is a journal of something else: seed 0, not 1" in said


def test_words_of_a_job_are_scanned(run: Any, here: Path) -> None:
    options = ["good", "--task", "0", "--input", "good", "--device", "python:mine:Words"]
    status, lines, _ = run("scan", *options, "--json")
    whole, *rows = map(json.loads, lines)
    assert status == 0
    moved = [(row["first"], row["bits"]) for row in rows if row["kind"] != "dead"]
    assert sum(bits for _, bits in moved) == 2
    assert moved[0][0] == 32
    assert whole["hangs"] == 0


def test_a_scan_says_what_is_simulated(run: Any) -> None:
    options = [CAPTURE, "--device", "simulated", "--task", "0", "--max-hangs", "0", "--checks", "0"]
    status, lines, _ = run("scan", *options, "--input", CAPTURE)
    assert status == 0
    assert lines[1].startswith("simulated: npulab's own device ran it")


REFUSED_SCANS = {
    "board": "allowed is simulated, command:PROGRAM",
    "manual": "--device: got 'manual', allowed is a device that runs without a",
    "simulated --timeout 3": "--timeout: got device 'simulated'",
    "simulated --buffer dat": "buffer: got 'dat', capture good has",
    "simulated --task 9": "task: got 9, capture good has 0 to 0",
    "simulated --task 0 --buffer data": "--task: got --buffer data too",
    "simulated --votes 0": "votes: got 0, allowed is a whole number from 1",
    "simulated --resume none/j": "none: no such folder",
}


@pytest.mark.parametrize("device", REFUSED_SCANS)
def test_a_scan_refuses_in_a_sentence(run: Any, here: Path, device: str) -> None:
    status, lines, said = run("scan", "good", "--device", *device.split())
    assert (status, lines, said.count("\n")) == (2, [], 1)
    assert REFUSED_SCANS[device] in said


def test_markers_of_units_show_planes(run: Any, here: Path) -> None:
    names = ["a.npy", "b.npy", "c.npy", "d.npy", "e.npy"]
    status, _, _ = run("layout", *names, "--markers", "8,6", "--unit", "4")
    assert status == 0
    nibbles = Layout((8, 6, 2), (Loop(0, stride=12), Loop(2), Loop(1)), dtype="uint4")
    paths = []
    for name in names:
        Path(f"{name}.bin").write_bytes(Planes((8, 6), (nibbles,)).pack(np.load(name)))
        paths += [name, f"{name}.bin"]
    status, lines, _ = run("layout", *paths)
    assert (status, lines[0]) == (0, "bits of (8, 6) uint8: r 48, b/4 24, c 4; 48 bytes")
    status, lines, _ = run("layout", *paths, "--json")
    record = json.loads(lines[0])
    assert (record["held"], record["proved"], record["warnings"]) == (1, 1, [])


def test_markers_and_their_buffers_show_the_layout(run: Any, here: Path) -> None:
    status, lines, _ = run("layout", "a.npy", "b.npy", "--markers", "2,3,5")
    assert (status, lines) == (0, ["a.npy, b.npy: markers (2, 3, 5) uint8"])
    wanted = nc1hwc2((2, 3, 5), 4)
    for name, tensor in zip("ab", markers((2, 3, 5)), strict=True):
        assert np.array_equal(np.load(f"{name}.npy"), tensor)
        Path(f"{name}.bin").write_bytes(wanted.pack(tensor))
    pairs = ["a.npy", "a.bin", "b.npy", "b.bin"]
    status, lines, _ = run("layout", *pairs)
    assert status == 0
    found = npulab.find_layout(
        [np.load("a.npy"), np.load("b.npy")], [Path(f"{name}.bin").read_bytes() for name in "ab"]
    )
    assert lines == str(found).splitlines()
    assert lines[0].startswith("C1HWC2, C2=4")
    status, lines, _ = run("layout", *pairs, "--json")
    record = json.loads(lines[0])
    assert (status, len(lines)) == (0, 1)
    assert (record["sure"], record["own"], record["filled"]) == (True, 30, 18)
    assert eval(record["code"], vars(layout)) == found.layout
    # one byte that no element explains: not sure
    for name in "ab":
        Path(f"{name}.bin").write_bytes(Path(f"{name}.bin").read_bytes() + bytes([ord(name)]))
    status, lines, _ = run("layout", *pairs, "--json")
    record = json.loads(lines[0])
    assert (status, record["sure"], record["unexplained"]) == (1, False, [[48, 1]])


REFUSED_LAYOUTS = {
    "a.npy": "layout: got 1 file, allowed are a tensor and its buffer",
    "a.npy none.bin": "none.bin",
    "mine.py program.py": "mine.py: got no npy array",
    "a.npy --markers 2,x": "--markers: got '2,x', allowed are sizes of axes",
    "new.npy --markers 40,40": "captures: got 1 for 1600 elements with 256",
    "a.npy c.npy --markers 2,3": "a.npy",
}


@pytest.mark.parametrize("options", REFUSED_LAYOUTS)
def test_a_layout_refuses_in_a_sentence(run: Any, here: Path, options: str) -> None:
    np.save("a.npy", np.arange(6, dtype=np.uint8).reshape(2, 3))
    before = Path("a.npy").read_bytes()
    status, lines, said = run("layout", *options.split())
    assert (status, lines, said.count("\n")) == (2, [], 1)
    assert REFUSED_LAYOUTS[options] in said
    assert Path("a.npy").read_bytes() == before
    assert not Path("c.npy").exists()
