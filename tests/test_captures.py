"""The project's captures are what their recorder makes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import CAPTURES
from record_simulated import record

import npulab
from npulab.devices import Simulated
from npulab.store import case_folders


def test_simulated_captures_are_recorded_the_same_again(captures: npulab.CaptureSet) -> None:
    again = {capture.name: capture for capture in record()}
    assert sorted(again) == [capture.name for capture in captures if capture.simulated]
    for name, capture in again.items():
        assert capture == captures[name]


def test_simulated_outputs_hold_ties(captures: npulab.CaptureSet) -> None:
    """Some accumulators lie exactly between two outputs, so that the captures tell the rounding."""
    ties = 0
    for name in ("sim-1x1", "sim-3x3-same"):
        lifted = npulab.target("vivante").lift(captures[name])
        outputs = [npulab.emulate(lifted.layer, lifted.x, f"vivante-v7:{rounding}")
                   for rounding in ("half-even", "half-up", "half-away")]
        ties += int(np.sum((outputs[0] != outputs[1]) | (outputs[0] != outputs[2])))
    assert ties >= 5


def test_simulated_device_is_an_oracle(captures: npulab.CaptureSet) -> None:
    device, capture = Simulated(), captures["sim-1x1"]
    assert device(capture) == "pass"
    assert device(capture.with_fields(post_shift=8)) == "fail"
    assert device(capture.with_fields(kernel_xy_size=0)) == "hang"
    assert Simulated(expected=b"")(capture) == "fail"


@pytest.mark.parametrize("folder", case_folders(CAPTURES), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_capture_is_understood(folder: Path) -> None:
    """Words and coefficients round-trip; the output is predicted, or there is a stated reason why not."""
    capture = npulab.load(folder)
    found = npulab.check(capture)
    assert found.words
    assert found.coefficients is not False
    if capture.simulated:
        assert found.verdict == "equal"
    else:
        assert found.verdict == "equal" or found.reason
        assert found.verdict != "differs"
