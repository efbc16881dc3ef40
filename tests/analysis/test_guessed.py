"""What a simulated device only guesses is said to be a guess, wherever a hang is reported."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import CAPTURES, shared

import npulab
from npulab import Capture, bisect_fields, target
from npulab.analysis.bisect import Bisection
from npulab.analysis.scan import Scan, scan, scan_capture
from npulab.captures.devices import Command, InProcess, Probed, Simulated
from npulab.captures.journal import Guessed, Journal, Trial
from npulab.captures.target import GUESS, Hang, Run
from npulab.notebook.widgets.bisect_view import BisectModel

# a field that hangs each simulated device; of nv_small the rule is that of its RTL
GUESSED = {
    "vivante/sim-3x3-same": {"kernels_per_core": 0},
    "nvdla/sim-full-map": {"SDP.D_DATA_CUBE_HEIGHT.HEIGHT": 20},
    "ane/sim-3x3-same": {"Header.Header[8].RBE0": 0},
    "onert/sim-uint8": {"batches": 0},
}
KNOWN = {"nvdla/sim-3x3-same": {"SDP.D_DATA_CUBE_HEIGHT.HEIGHT": 20}}
BOARD = [sys.executable, "-I", "-S", "-c", "import sys; sys.exit(124)"]


def pair(name: str, fields: dict[str, int]) -> tuple[Capture, Capture]:
    good = npulab.load(CAPTURES / name)
    return good, good.with_fields(**fields)


@pytest.mark.parametrize(("name", "fields"), GUESSED.items())
def test_a_guess_is_said_with_the_reason(name: str, fields: dict[str, int]) -> None:
    _, bad = pair(name, fields)
    run = Simulated().run(bad)
    assert (run.outcome, run.guessed) == ("hang", True)
    assert run.reason.endswith(f", {GUESS}")
    assert run.reason.count(GUESS) == 1
    assert target(bad.target).simulate([bad])[0] == run


def test_what_the_rtl_says_is_no_guess() -> None:
    ((name, fields),) = KNOWN.items()
    good, bad = pair(name, fields)
    run = Simulated().run(bad)
    assert (run.outcome, run.guessed) == ("hang", False)
    assert GUESS not in run.reason
    first, after, last = target("nvdla").simulate([bad, good, good])
    assert (first.guessed, after.guessed, last) == (False, False, after)
    assert after.reason.startswith(f"the device hangs since capture {bad.name}: SDP waits")


def test_a_job_of_cdp_on_nv_small_is_a_guess() -> None:
    """The rules of the RTL are those of the convolution, SDP and PDP."""
    good = npulab.load(shared("data/nvdla/nv_small/cdp_8x8x32_lrn3_int8_1"))
    bad = good.with_fields(**{"CDP_RDMA.D_DATA_CUBE_HEIGHT.HEIGHT": 8191})
    first, after = target("nvdla").simulate([bad, good])
    assert (first.outcome, first.guessed) == ("hang", True)
    assert first.reason.startswith("CDP_RDMA (SRC) reads")
    assert after.reason.count(GUESS) == 1
    assert after.guessed


@pytest.mark.sample(2)
@pytest.mark.parametrize(("name", "fields"), GUESSED.items())
def test_a_bisection_that_ends_on_a_guess_says_so(
    name: str, fields: dict[str, int], tmp_path: Path
) -> None:
    good, bad = pair(name, fields)
    found = bisect_fields(good, bad, Simulated(), journal=tmp_path / "trials.jsonl")
    assert found.found
    assert found.guessed == found.hangs > 0
    trials = "1 trial" if found.hangs == 1 else f"{found.hangs} trials"
    said = f"; {trials} hung on the simulated device, {GUESS}"
    assert found.sentence.endswith(said)
    assert said in repr(found)
    assert said in found._repr_html_()
    assert said in found.script()
    (record,) = found.records()
    assert record["guessed"] == found.guessed
    # the journal keeps it, and a session that goes on from the journal says it too
    lines = (tmp_path / "trials.jsonl").read_text().splitlines()[1:]
    for line in map(json.loads, lines):
        assert line.get("guessed", False) == (line["outcome"] == "hang")
    again = Bisection(good, bad, journal=tmp_path / "trials.jsonl")
    assert again.result.sentence == found.sentence
    assert repr(again).endswith(f"{found.sentence})")
    model = BisectModel(good, bad, Simulated())
    model.run(wait=True)
    assert said in model._repr_html_()


def test_a_guess_passes_through_a_function_and_a_probe() -> None:
    good, bad = pair(*next(iter(GUESSED.items())))
    asked = []

    def oracle(capture: Capture) -> str:
        asked.append(capture)
        return Probed(Simulated(), good)(capture)

    assert GUESS in bisect_fields(good, bad, oracle).sentence
    assert asked


def test_what_hung_a_device_is_no_guess() -> None:
    good, bad = pair(*next(iter(GUESSED.items())))

    class Board:
        def run(self, capture: Capture) -> bytes:
            if capture.words.tolist() == bad.words.tolist():
                raise Hang("no interrupt came")
            return good.buffers["output"]

    assert InProcess(Board()).run(bad) == Run("hang", reason="no interrupt came")
    found = bisect_fields(good, bad, InProcess(Board()))
    assert (found.hangs, found.guessed) == (1, 0)
    assert "guess" not in found.sentence
    command = Command(BOARD, timeout=20)
    assert command.run(bad).guessed is False
    assert not isinstance(command(bad), Guessed)
    program = bisect_fields(good, bad, command, max_hangs=2)
    assert program.hangs > 0
    assert "guess" not in program.sentence


def test_a_simulated_device_stays_a_guess_inside_another_device() -> None:
    _, bad = pair(*next(iter(GUESSED.items())))

    class Inside:
        def run(self, capture: Capture) -> bytes:
            output: bytes = target(capture.target).simulate(capture)
            return output

    assert InProcess(Inside()).run(bad).guessed


class Test_scan:
    """A byte whose lowest bit hangs the device."""

    @staticmethod
    def scanned(hang: Guessed | None, journal: Journal | None = None) -> Scan:
        def run(data: bytes, x: int) -> np.ndarray | Guessed | None:
            if data[0] % 2:
                return hang
            return np.array([data[0] // 2 + x])

        return scan(bytes([0x34]), run, [0, 1], journal=journal)

    def test_guesses_are_counted_and_said(self, tmp_path: Path) -> None:
        found = self.scanned(Guessed("hang"), Journal(tmp_path / "scan.jsonl"))
        assert found.guessed == found.hangs > 0
        assert f"{found.hangs} hung ({found.guessed} of them a guess)" in repr(found)
        said = f"hung on the simulated device, {GUESS}"
        assert [note for note in found.notes if note.endswith(said)]
        assert said in found._repr_html_()
        again = self.scanned(None, Journal.read(tmp_path / "scan.jsonl"))
        assert again.guessed == found.guessed

    @pytest.mark.parametrize("guessed", [True, False])
    def test_a_device_says_which_it_is(self, guessed: bool) -> None:
        good, _ = pair("vivante/sim-1x1", {})

        class Device:
            def run(self, capture: Capture) -> Run:
                if capture.buffers["coefficients"][0] != good.buffers["coefficients"][0]:
                    return Run("hang", reason="it waits", guessed=guessed)
                return Run("done", good.buffers["output"])

        found = scan_capture(good, Device(), inputs=[good])
        assert found.hangs > 0
        assert found.guessed == guessed * found.hangs
        assert ("guess" in repr(found)) == any("guess" in note for note in found.notes) == guessed


def test_a_journal_refuses_a_guess_of_another_type(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "a.jsonl", {})
    journal.add(Trial(("a",), "why", Guessed("hang")))
    journal.add(Trial(("b",), "why", "hang"))
    assert [trial.guessed for trial in Journal.read(tmp_path / "a.jsonl")] == [True, False]
    text = (tmp_path / "a.jsonl").read_text()
    (tmp_path / "b.jsonl").write_text(text.replace('"guessed": true', '"guessed": 1'))
    with pytest.raises(ValueError, match=r"line 2: guessed: got 1, allowed is true or false"):
        Journal.read(tmp_path / "b.jsonl")
