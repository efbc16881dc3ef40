"""The project's captures are what their recorder makes."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from conftest import CAPTURES
from record_simulated import record
from record_simulated_ane import record as record_ane

import npulab
from npulab.captures.capture import PROVENANCES, TEXTS, Capture, Job
from npulab.captures.devices import Simulated
from npulab.captures.store import case_folders
from npulab.captures.sweep import Sweep


def test_simulated_captures_are_recorded_the_same_again(captures: npulab.CaptureSet) -> None:
    again = {capture.name: capture for capture in record()}
    assert sorted(again) == [capture.name for capture in captures if capture.simulated]
    for name, capture in again.items():
        assert capture == captures[name]


def test_simulated_captures_of_the_ane_are_recorded_the_same_again() -> None:
    kept = npulab.load_all(CAPTURES / "ane")
    again = {capture.name: capture for capture in record_ane()}
    assert sorted(again) == [capture.name for capture in kept if capture.simulated]
    assert [name for name, capture in again.items() if capture != kept[name]] == []


def test_names_of_simulated_captures_say_so() -> None:
    folders = case_folders(CAPTURES)
    assert [
        path for path in folders if npulab.load(path).simulated != path.name.startswith("sim-")
    ] == []


def test_what_lies_beside_a_simulated_capture_of_the_ane_agrees() -> None:
    """Each network that says a layer; its statements of registers and weights are as many as
    written down here.
    """
    found = {capture.name: npulab.check(capture) for capture in npulab.load_all(CAPTURES / "ane")}
    assert all(
        one.verdict == "equal" and not one.claims_wrong and one.max == 0 for one in found.values()
    )
    assert {name for name, one in found.items() if len(one.claims) < 50} == {"sim-3x3-depthwise"}
    weights = {
        name: [(claim.expected, claim.got) for claim in one.claims if claim.field == "coefficients"]
        for name, one in found.items()
    }
    assert weights["sim-3x3-same"] == [(1152, 1152), (32, 32)]
    assert weights["sim-1x1-relu"] == [(512, 512)]
    assert weights["sim-1x1-stride2"] == [(256, 256), (32, 32)]


def test_simulated_outputs_hold_ties(captures: npulab.CaptureSet) -> None:
    """Some accumulators lie exactly between two outputs, so that the captures tell the rounding."""
    ties = 0
    for name in ("sim-1x1", "sim-3x3-same"):
        lifted = npulab.target("vivante").lift(captures[name])
        outputs = [
            npulab.emulate(lifted.layer, lifted.x, f"vivante-v7:{rounding}")
            for rounding in ("half-even", "half-up", "half-away")
        ]
        ties += int(np.sum((outputs[0] != outputs[1]) | (outputs[0] != outputs[2])))
    assert ties >= 5


def test_simulated_device_is_an_oracle(captures: npulab.CaptureSet) -> None:
    device, capture = Simulated(), captures["sim-1x1"]
    assert device(capture) == "pass"
    assert device(capture.with_fields(post_shift=8)) == "fail"
    assert device(capture.with_fields(kernel_xy_size=0)) == "hang"
    assert Simulated(expected=b"")(capture) == "fail"


@pytest.mark.sample(11)
@pytest.mark.parametrize(
    "folder", case_folders(CAPTURES), ids=lambda path: f"{path.parent.name}/{path.name}"
)
def test_every_capture_is_understood(folder: Path) -> None:
    """Words and coefficients round-trip; the output is predicted, or there is a stated reason
    why not.
    """
    capture = npulab.load(folder)
    found = npulab.check(capture)
    assert found.words
    assert found.coefficients is not False
    if capture.simulated:
        assert found.verdict == "equal"
    else:
        assert found.verdict == "equal" or found.reason
        assert found.verdict != "differs"


def test_each_text_of_a_capture_is_a_field_of_captures_and_sweeps() -> None:
    for kind in (Capture, Sweep):
        assert {*TEXTS} <= {field.name for field in fields(kind)}


def test_every_provenance_says_what_it_is() -> None:
    """Words and outputs come from one of these; only the last is npulab's own."""
    assert [*PROVENANCES] == [
        "board",
        "vendor driver",
        "open driver",
        "compiler",
        "RTL simulation",
        "vendor simulator",
        "foreign simulator",
        "simulated",
    ]
    for name in PROVENANCES:
        assert Capture("a", "demo", "x", (), provenance=name).simulated is (name == "simulated")
    with pytest.raises(ValueError, match="allowed is one of board, vendor driver, open driver"):
        Capture("a", "demo", "x", (), provenance="hearsay")


def test_words_and_output_have_a_provenance_each(tmp_path: Path) -> None:
    """A compiler's words that a simulator ran: both are stored and shown; "" is the words' own."""
    chip = "vipnano-qi-a311d"
    job = Job("NN", np.zeros(len(npulab.target("vivante").maps(chip)["NN"]), np.uint32))
    words = Capture("x", "vivante", chip, (job,), provenance="compiler")
    assert (words.origin, words.simulated) == ("compiler", False)
    ran = replace(words, buffers={"output": b"\1"}, output_provenance="vendor simulator")
    assert "compiler, output of vendor simulator" in repr(ran)
    assert "vendor simulator" in ran._repr_html_()
    again = npulab.load(npulab.save(ran, tmp_path / "ran"))
    assert (again.provenance, again.output_provenance) == ("compiler", "vendor simulator")
    assert not again.simulated
    assert replace(ran, output_provenance="simulated").simulated
    description = json.loads((npulab.save(words, tmp_path / "words") / "capture.json").read_text())
    assert "output_provenance" not in description
    with pytest.raises(ValueError, match="got output_provenance 'dream', allowed is one of board"):
        replace(ran, output_provenance="dream")
