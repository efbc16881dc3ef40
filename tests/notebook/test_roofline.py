"""A roofline: points, roof and numbers are those of the arithmetic, in light and in dark."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb

import npulab
import npulab.notebook.pictures
from npulab.notebook.pictures import Picture
from npulab.notebook.pictures.dark import darkened
from npulab.npus.ane.training import Step, roofline_points

POINTS = [
    {"name": "copy", "flops": 1e9, "bytes": 1e9, "ms": 20.0},
    {"name": "bend", "flops": 1e12, "bytes": 1e10, "ms": None},
    {"name": "product", "flops": 4e12, "bytes": 1e9, "ms": 800.0},
]


def marks(picture: Picture) -> dict[tuple[float, float], tuple[str, str]]:
    """Marker and face of each point by its place."""
    return {
        (line.get_xdata()[0], line.get_ydata()[0]): (line.get_marker(), line.get_markerfacecolor())
        for line in picture.figure.axes[0].lines
        if line.get_marker() != "None"
    }


def numbers(picture: Picture) -> list[list[str]]:
    return [row.split() for row in picture.figure.axes[1].texts[0].get_text().splitlines()]


def test_points_lie_where_they_should() -> None:
    picture = npulab.notebook.pictures.roofline(POINTS, 10, 100)
    assert marks(picture) == {
        (1, 0.05): ("o", "#2b6ca3"),
        (100, 10): ("o", "none"),
        (4000, 5): ("o", "#2b6ca3"),
    }
    roof = picture.figure.axes[0].lines[0]
    low, high = picture.figure.axes[0].get_xlim()
    assert np.allclose(roof.get_xdata(), [low, 100, high])
    assert np.allclose(roof.get_ydata(), [low / 10, 10, 10])
    assert (picture.figure.axes[0].get_xscale(), picture.figure.axes[0].get_yscale()) == (
        "log",
        "log",
    )
    assert low < 1 < 4000 < high


def test_numbers_are_beside() -> None:
    assert numbers(npulab.notebook.pictures.roofline(POINTS, 10, 100)) == [
        ["FLOP/byte", "allowed", "TFLOPS", "share"],
        ["1", "copy", "1", "0.1", "m", "0.05", "50.0%"],
        ["2", "bend", "100", "10", "c", "-", "-"],
        ["3", "product", "4e+03", "10", "c", "5", "50.0%"],
    ]


def test_picture_says_its_numbers() -> None:
    one = npulab.notebook.pictures.roofline(pd.DataFrame(POINTS), 10, 100, title="made up")
    assert repr(one) == (
        "made up: 3 kernels under 10 TFLOPS and 100 GB/s (bend at 100 FLOP per byte): 1 bound by memory; 2 with times: "
        "4.88 TFLOPS in 820.000 ms, 48.8% of the peak"
    )
    assert one.figure.get_suptitle().replace("\n", " ") == one.text
    assert (
        repr(npulab.notebook.pictures.roofline([{"name": "a", "flops": 1, "bytes": 2}], 10, 100))
        == "1 kernels under 10 TFLOPS and 100 GB/s (bend at 100 FLOP per byte): 1 bound by memory; 0 with times"
    )


def test_on_either_page_it_can_be_read() -> None:
    figure = npulab.notebook.pictures.roofline(POINTS, {"dense": 10, "sparse": 20}, 100).figure
    ax, beside = figure.axes
    for least_of_lines in (4.5, 3.0):  # first as it is, then for a dark page, on which colours stay
        with darkened(figure) if least_of_lines == 3.0 else nullcontext():
            paper = luminance(figure.get_facecolor()[:3])
            inks = [(line.get_color(), least_of_lines) for line in ax.lines] + [
                (text.get_color(), 4.5) for text in (*beside.texts, *ax.texts, ax.xaxis.label)
            ]
            for ink, least in inks:
                low, high = sorted((paper, luminance(to_rgb(ink))))
                assert (high + 0.05) / (low + 0.05) > least, (ink, least)


def luminance(colour: Any) -> float:
    """Relative luminance as WCAG 2 has it."""
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_what_is_above_the_roof_is_told() -> None:
    picture = npulab.notebook.pictures.roofline(
        [*POINTS, {"name": "wrong", "flops": 1e12, "bytes": 1e9, "ms": 50.0}], 10, 100
    )
    assert picture.text.endswith("; above the roof, which cannot be: wrong")
    assert marks(picture)[1000, 20] == ("X", "#c4501b")


def test_several_peaks() -> None:
    picture = npulab.notebook.pictures.roofline(POINTS, {"claimed": 10, "measured": 18.6}, 100)
    assert "under 10 TFLOPS (claimed) and" in picture.text
    dashed = picture.figure.axes[0].lines[1]
    assert dashed.get_linestyle() == "--"
    assert dashed.get_ydata().tolist() == [18.6, 18.6]
    assert math.isclose(dashed.get_xdata()[0], 186)
    assert "measured 18.6" in [text.get_text() for text in picture.figure.axes[0].texts]


def test_numbers_of_points_that_crowd_do_not_cover_each_other() -> None:
    picture = npulab.notebook.pictures.roofline(
        [{"name": f"k{n}", "flops": 1e12 + n, "bytes": 1e9} for n in range(5)], 10, 100
    )
    heights = [text.get_position()[1] for text in picture.figure.axes[0].texts]
    assert [text.get_text() for text in picture.figure.axes[0].texts] == ["1", "2", "3", "4", "5"]
    assert np.diff(heights).min() >= 9


def test_kernels_of_a_training_step() -> None:
    picture = npulab.notebook.pictures.roofline(
        roofline_points(Step(768, 2048, 512, 12), {"qkv_backward": 0.5}), 15.8, 120
    )
    assert repr(picture) == (
        "6 kernels under 15.8 TFLOPS and 120 GB/s (bend at 132 FLOP per byte): 2 bound by memory; 1 with times: "
        "3.63 TFLOPS in 0.500 ms, 22.9% of the peak"
    )
    assert [row[1] for row in numbers(picture)[1:]] == [
        "forward_attention",
        "forward_ffn",
        "ffn_backward",
        "sdpa_backward_1",
        "sdpa_backward_2",
        "qkv_backward",
    ]
    assert numbers(picture)[5][2:] == ["52.2", "6.26", "m", "-", "-"]


def test_many_points_and_long_names() -> None:
    picture = npulab.notebook.pictures.roofline(
        [{"name": "kernel " * 9, "flops": 10.0**n, "bytes": 1e6} for n in range(50)], 10, 100
    )
    rows = picture.figure.axes[1].texts[0].get_text().splitlines()
    assert len(rows) == 42
    assert rows[-1] == "    and 10 more"
    assert rows[1].startswith("  1 kernel kernel kernel ke…     1e-06   1e-07 m")
    assert len(marks(picture)) == 50
    assert picture._repr_png_().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("points", "peak", "bandwidth", "message"),
    [
        (
            [],
            10,
            100,
            "points: got no rows, allowed are rows with name, flops, bytes and, where there are times, ms",
        ),
        (
            [{"name": "a", "flops": 1}],
            10,
            100,
            "points: got no column 'bytes', allowed are rows with name, flops, bytes and, where there are times, ms",
        ),
        (
            [{"name": "a", "flops": 1, "bytes": 0}],
            10,
            100,
            "bytes of a: got 0, allowed is a positive finite number",
        ),
        (
            [{"name": "a", "flops": math.inf, "bytes": 1}],
            10,
            100,
            "flops of a: got inf, allowed is a positive finite number",
        ),
        (
            [{"name": "a", "flops": 1, "bytes": 1, "ms": -1.0}],
            10,
            100,
            "ms of a: got -1.0, allowed is a positive finite number",
        ),
        (POINTS, 0, 100, "peak: got 0, allowed is a positive finite number"),
        (POINTS, {}, 100, "peak: got no peaks, allowed is one or more of TFLOPS by name"),
        (POINTS, {"a": "fast"}, 100, "peak 'a': got 'fast', allowed is a positive finite number"),
        (POINTS, 10, math.nan, "bandwidth: got nan, allowed is a positive finite number"),
    ],
)
def test_points_refused(points: Any, peak: Any, bandwidth: Any, message: str) -> None:
    with pytest.raises(ValueError) as error:
        npulab.notebook.pictures.roofline(points, peak, bandwidth)
    assert str(error.value) == message
