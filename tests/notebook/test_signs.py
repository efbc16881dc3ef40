"""What was captured is larger: one colour in pictures and views, and another one where it is
smaller.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
from blank_page import THEMES, BlankPage
from matplotlib.colors import to_rgb
from playwright.sync_api import Browser
from test_output_view import compared
from test_views_browser import drawn, settled

from npulab.analysis.check import Comparison
from npulab.notebook import widgets
from npulab.notebook.pictures import output_comparison, output_difference
from npulab.notebook.signs import LARGER, SMALLER
from npulab.notebook.widgets import OutputView

LARGE, SMALL = (np.array(to_rgb(colour)) * 255 for colour in (LARGER, SMALLER))
# colours of the corners of the picture of differences, and of the two in the legend
SEEN = """() => { const canvas = document.querySelectorAll('canvas')[2], at = canvas.getContext('2d'), side = canvas.width - 4;
  const pixel = (x, y) => [...at.getImageData(x, y, 1, 1).data.slice(0, 3)];
  return [pixel(3, 3), pixel(side, 3), ...['.larger', '.smaller'].map(name =>
    getComputedStyle(document.querySelector(`.legend ${name}`)).backgroundColor.match(/\\d+/g).map(Number))]; }"""


def outputs(most: int = 100) -> Comparison:
    """One channel of two columns: captured is larger on the left, smaller on the right."""
    predicted = np.full((2, 2, 1), 128, np.uint8)
    return compared(predicted, (predicted + np.array([[[most], [-most]]])).astype(np.uint8))


def test_the_picture_of_differences_has_both() -> None:
    image = output_difference(outputs(), [0]).figure.axes[2].images[0]
    assert np.allclose(image.cmap(image.norm([100, -100]))[:, :3] * 255, [LARGE, SMALL], atol=1)
    assert min(image.cmap(image.norm(0))[:3]) > 0.9  # paper


@pytest.mark.parametrize("most", [3, 100])
def test_bars_of_differences_have_both(most: int) -> None:
    bars = [
        bar for bar in output_comparison(outputs(most)).figure.axes[0].patches if bar.get_height()
    ]
    assert [bar.get_facecolor()[:3] for bar in bars] == [to_rgb(SMALLER), to_rgb(LARGER)]


@pytest.mark.sample(1)
@pytest.mark.parametrize("theme", THEMES)
def test_the_view_of_outputs_has_both(chrome: Browser, theme: str) -> None:
    with BlankPage(chrome, drawn(OutputView(outputs(127))), theme) as page:
        settled(page)
        left, right, larger, smaller = page.page.evaluate(SEEN)
        assert (larger, smaller) == (LARGE.round().tolist(), SMALL.round().tolist())
        assert np.abs(np.array([left, right]) - [LARGE, SMALL]).max() < 6


def test_no_style_sheet_has_them_again() -> None:
    for path in sorted((widgets.frame.HERE).glob("*.css")):
        assert not re.search(r"--npulab-(larger|smaller)\s*:", path.read_text(encoding="utf-8")), (
            path
        )
