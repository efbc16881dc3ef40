"""The captures that contradict a law, drawn over the captures looked at: the line is the numbers
given, the sentence says how many there are.
"""

from __future__ import annotations

import re

import pytest

from npulab.notebook.pictures import Picture, disproof


def line(picture: Picture) -> list[list[float]]:
    return picture.figure.axes[0].lines[0].get_xydata().tolist()


def test_the_line_steps_up_at_each_capture_that_contradicts_the_law() -> None:
    picture = disproof([7, 2, 7], 10, 5, "input_w - 1")
    assert line(picture) == [[0, 0], [3, 1], [8, 2], [10, 2]]
    assert picture.figure.axes[0].lines[1].get_xdata() == [5, 5]
    said = "input_w - 1: 2 captures of 10 contradict it, first the capture 2"
    assert (repr(picture), picture.figure.axes[0].get_title()) == (said, said)


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ([], "a law (simulated): no capture of 10 contradicts it"),
        ([9], "a law (simulated): 1 capture of 10 contradicts it, first the capture 9"),
    ],
)
def test_none_and_one(numbers: list[int], said: str) -> None:
    assert repr(disproof(numbers, 10, 5, "a law", note="simulated")) == said


@pytest.mark.parametrize(
    ("numbers", "captures", "said"),
    [
        ([3, 10], 10, "numbers: got [10], allowed are 0 to 9"),
        ([-1], 10, "numbers: got [-1], allowed are 0 to 9"),
        ([], 1, "captures: got 1, allowed is 2 or more"),
    ],
)
def test_what_cannot_be_drawn_is_refused(numbers: list[int], captures: int, said: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        disproof(numbers, captures, 5, "a law")
