"""A function drawn with its approximation: the lines are the numbers given, the sentence says
the largest error.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

import npulab
import npulab.notebook.pictures
from npulab.notebook.pictures import Picture
from npulab.notebook.pictures.function import DOTTED

X = np.linspace(-2, 2, 401)


def lines(picture: Picture, ax: int) -> list[np.ndarray]:
    return [np.asarray(line.get_xydata()) for line in picture.figure.axes[ax].lines]


def test_lines_are_the_numbers_given() -> None:
    near = np.round(np.sin(X), 2)
    above, below = (
        lines(npulab.notebook.pictures.function_error(X, near, np.sin(X)), ax) for ax in (0, 1)
    )
    assert np.array_equal(above[0], np.stack([X, np.sin(X)], 1))
    assert np.array_equal(above[1], np.stack([X, near], 1))
    assert np.array_equal(below[0], np.stack([X, near - np.sin(X)], 1))
    assert below[1].tolist() == [below[0][np.argmax(np.abs(below[0][:, 1]))].tolist()]


def test_picture_says_its_number() -> None:
    off = np.where(X == 1, np.square(X) - 0.25, np.square(X))
    one = npulab.notebook.pictures.function_error(X, off, np.square(X), name="square")
    assert (
        repr(one) == "square: 401 inputs from -2 to 2, largest error -0.25 at x = 1 (0.75, true 1)"
    )
    assert one.figure.get_suptitle() == repr(one)
    assert [text.get_text() for text in one.figure.axes[1].texts] == ["-0.25 at 1"]
    assert [text.get_text() for text in one.figure.axes[0].get_legend().get_texts()] == [
        "true",
        "approximation",
    ]


def test_order_and_shape_do_not_matter() -> None:
    mixed = np.random.default_rng(3).permutation(X)
    one = npulab.notebook.pictures.function_error(
        mixed.reshape(-1, 1), np.cos(mixed).reshape(-1, 1) + 1, np.cos(mixed).reshape(-1, 1)
    )
    assert np.array_equal(lines(one, 0)[0], np.stack([X, np.cos(X)], 1))
    assert repr(one).startswith("401 inputs from -2 to 2, largest error 1 at x = ")


def test_what_is_not_finite_is_left_out_or_counted() -> None:
    x = [0.0, 1.0, 2.0, 3.0, 4.0, np.nan, np.inf]
    y = [np.inf, 1.0, np.nan, np.nan, 4.5, 1.0, 1.0]
    true = [np.inf, 1.0, 2.0, np.nan, 4.0, 1.0, 1.0]
    picture = npulab.notebook.pictures.function_error(np.array(x, np.float16), y, true)
    assert (
        repr(picture)
        == "2 inputs from 1 to 4, largest error 0.5 at x = 4 (4.5, true 4); at 1 more only one of the two is finite"
    )
    assert lines(picture, 0)[1].tolist() == [[1, 1], [4, 4.5]]


def test_few_points_are_dots() -> None:
    for count, marker in ((DOTTED, "."), (DOTTED + 1, "None")):
        x = np.arange(count)
        assert (
            npulab.notebook.pictures.function_error(x, x, x).figure.axes[0].lines[1].get_marker()
            == marker
        )


def test_no_error_and_a_long_name_are_drawn_on_white(tmp_path: Path) -> None:
    picture = npulab.notebook.pictures.function_error([1], [2], [2], name="a name " * 30)
    picture.save(tmp_path / "p.png")
    image = matplotlib.image.imread(tmp_path / "p.png")
    assert image[0, 0].tolist() == [1, 1, 1, 1]
    assert image[..., :3].min() < 0.2
    assert "\n" in picture.figure.get_suptitle()
    assert repr(picture).endswith("1 inputs from 1 to 1, largest error 0 at x = 1 (2, true 2)")


def test_what_cannot_be_drawn() -> None:
    with pytest.raises(
        ValueError,
        match=r"^function_error: got x \(3,\), y \(2,\) and true \(3,\), allowed are three arrays of one shape$",
    ):
        npulab.notebook.pictures.function_error([1, 2, 3], [1, 2], [1, 2, 3])
    with pytest.raises(
        ValueError,
        match=r"^function_error: got no x where y and true are finite, allowed is at least one$",
    ):
        npulab.notebook.pictures.function_error([1], [np.nan], [1])
