"""The project's captures are what their recorder makes."""

from __future__ import annotations

import numpy as np
from record_simulated import record

import npulab
from npulab.devices import Simulated


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
