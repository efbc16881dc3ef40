"""Pictures: the same bytes on every run, and a sentence that says their number."""

from __future__ import annotations

from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

import npulab


def test_picture_says_its_number_and_is_the_same_twice(captures: npulab.CaptureSet) -> None:
    found = npulab.check(captures["update4-mesa"])
    one, two = npulab.output_difference(found), npulab.output_difference(found)
    assert repr(one) == "update4-mesa: not executed, 9 of 9 outputs differ, largest difference 136"
    assert one._repr_png_() == two._repr_png_()
    assert one == two


def test_picture_shows_the_channels_that_differ_most(captures: npulab.CaptureSet) -> None:
    capture = captures["sim-3x3-same"]
    output = bytearray(capture.buffers["output"])
    for channel, count in ((7, 30), (2, 20), (11, 10)):
        output[100 * channel:100 * channel + count] = bytes(255 - value for value in output[100 * channel:100 * channel + count])
    found = npulab.check(capture.with_buffers(output=bytes(output)))
    titles = [ax.get_title() for ax in npulab.output_difference(found).figure.axes if ax.get_title().startswith("predicted")]
    assert titles == ["predicted, channel 0", "predicted, channel 2", "predicted, channel 7", "predicted, channel 11"]
    one = npulab.output_difference(found, channels=[7])
    assert [ax.get_title() for ax in one.figure.axes][:2] == ["predicted, channel 7", "captured, channel 7"]


def test_picture_of_a_simulated_capture_says_so(captures: npulab.CaptureSet, tmp_path: Path) -> None:
    picture = npulab.output_difference(npulab.check(captures["sim-1x1"]))
    assert "(simulated)" in repr(picture)
    assert "(simulated)" in picture.figure.get_suptitle()
    picture.save(tmp_path / "p.png")
    assert np.ptp(matplotlib.image.imread(tmp_path / "p.png")) > 0


def test_nothing_to_draw(captures: npulab.CaptureSet) -> None:
    found = npulab.check(captures["sim-1x1"].with_buffers(coefficients=bytes(40)))
    with pytest.raises(ValueError, match=r"^sim-1x1: there is no output to draw \(differs: coefficients: got 40 bytes"):
        npulab.output_difference(found)
