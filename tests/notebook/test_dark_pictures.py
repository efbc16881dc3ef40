"""Pictures for a dark page: paper and ink change places, the figure is as it was afterwards."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable

import numpy as np
import pytest
from conftest import CAPTURES
from fake_laws import fake_laws
from IPython.core.formatters import DisplayFormatter
from map_rows import map_rows
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.text import Text

import npulab
from npulab.layout import kernel_groups, nc1hwc2
from npulab.notebook import pictures
from npulab.notebook.pictures import Picture, blocks
from npulab.notebook.pictures.dark import MIDDLE, PAPER, darkened
from npulab.registers.map import RegisterMap

CASE = CAPTURES / "vivante/sim-5x5-same"


def compared() -> npulab.Comparison:
    capture = npulab.load(CASE)
    wrong = bytearray(capture.buffers["output"])
    wrong[5] ^= 3
    return npulab.check(capture.with_buffers(output=bytes(wrong)))


def trials() -> Picture:
    good = npulab.load(CAPTURES / "vivante/sim-3x3-same")
    bad = good.with_fields(relu=1, post_shift=24)
    return pictures.bisection_trials(
        npulab.bisect_fields(good, bad, lambda trial: "fail" if trial.values["relu"] else "pass")
    )


MADE: dict[str, Callable[[], Picture]] = {
    "flips": lambda: pictures.flip_map(fake_laws().words),
    "laws": lambda: pictures.law_map(fake_laws()),
    "scatter": lambda: pictures.law_scatter(fake_laws(), "w0_3_7"),
    "layout": lambda: pictures.layout_map(kernel_groups((4, 3, 3, 2), 4, 4, align=64)),
    "small layout": lambda: pictures.layout_map(nc1hwc2((3, 3, 3), 4)),
    "block": lambda: pictures.block_map(
        npulab.registers.map.RegisterMap(
            [
                {"register": f"w{n}", "offset": 4 * n, "field": "a", "lsb": n, "width": 8}
                for n in range(4)
            ]
        )
    ),
    "comparison": lambda: pictures.output_comparison(compared()),
    "difference": lambda: pictures.output_difference(compared(), [0]),
    "stream": lambda: pictures.stream_map(npulab.load(CASE), rows=3),
    "trials": trials,
    "function": lambda: pictures.function_error(
        np.arange(9), np.arange(9) ** 2, np.arange(9) ** 2 + 0.5
    ),
    "proof": lambda: pictures.disproof([3, 7], 10, 5, "a law"),
    "roof": lambda: pictures.roofline(
        [{"name": "one", "flops": 2e9, "bytes": 1e7, "ms": 1.0}], 10, 100
    ),
    "line": lambda: pictures.number_line(
        range(20, 40), (0.1, 0.1, 0.7), rules=["gemmlowp", "ruy-x86"]
    ),
}


def test_a_framed_legend_is_paper_too() -> None:
    """A user's own plot: its letters are swapped, so is what they stand on."""
    figure = Figure()
    figure.subplots().plot([1, 2], label="one")
    frame = figure.axes[0].legend().get_frame()
    before = frame.get_facecolor(), frame.get_edgecolor()
    with darkened(figure):
        assert max(frame.get_facecolor()[:3]) < 0.1
        assert frame.get_facecolor()[3] == before[0][3]
        assert frame.get_edgecolor() != before[1]
    assert (frame.get_facecolor(), frame.get_edgecolor()) == before


def pixels(png: bytes) -> np.ndarray:
    return imread(io.BytesIO(png))[..., :3]


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", MADE)
def test_a_picture_for_both_themes(name: str) -> None:
    made, again = MADE[name](), MADE[name]()
    light = made._repr_png_()
    assert again == made
    assert again._repr_png_() == light, "every run gives the same bytes"
    dark = made.dark_png()
    bright, dim = pixels(light), pixels(dark)
    assert bright.shape == dim.shape
    assert bright[0, 0].mean() > 0.99
    assert dim[0, 0].mean() < 0.1, "the paper"
    assert dim.mean() < 0.4
    assert made._repr_png_() == light, "drawing it dark changes nothing"
    small = [
        text.get_text()
        for text in made.figure.findobj(Text)
        if text.get_text() and text.get_fontsize() < 8
    ]
    assert small == []
    html = made.both_html()
    images = re.findall(
        r"<div class='npulab-(\w+)'( hidden)?><img alt='([^']*)' src='data:image/png;base64,([^']*)'></div>",
        html,
    )
    assert [(kind, hidden) for kind, hidden, *_ in images] == [("light", ""), ("dark", " hidden")]
    assert base64.b64decode(images[0][3]) == light
    assert "data-jp-theme-light='false'" in html


def luminance(grey: float) -> float:
    return ((grey + 0.055) / 1.055) ** 2.4


def test_ink_for_any_page_is_as_far_from_light_as_from_dark_paper() -> None:
    light, ink, dark = (luminance(grey) + 0.05 for grey in (1, MIDDLE, PAPER))
    assert min(light / ink, ink / dark) > 4.3


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", MADE)
def test_what_a_notebook_stores_is_right_on_any_page(name: str) -> None:
    light, made = MADE[name]()._repr_png_(), MADE[name]()  # each drawn once
    stored = imread(io.BytesIO(DisplayFormatter().format(made)[0]["image/png"]))
    assert stored.shape[:2] == pixels(light).shape[:2]
    assert stored[0, 0, 3] == 0, "the paper"
    opaque = stored[stored[..., 3] > 0.5, :3]
    assert (opaque > 0.95).all(-1).mean() < 0.05, "no slab on a dark page"
    assert (opaque < 0.1).all(-1).mean() < 0.05, "no slab on a light page"
    on_white = stored[..., :3] * stored[..., 3:] + 1 - stored[..., 3:]
    grey = np.ptp(pixels(light), axis=-1) < 0.06
    assert np.abs(on_white - pixels(light))[~grey].mean() < 0.05, "colours stay"


@pytest.mark.parametrize(
    ("name", "keys"), [("trials", ["trial: pass", "trial: fail"]), ("layout", ["fill"])]
)
def test_legends_name_colours(name: str, keys: list[str]) -> None:
    figure = MADE[name]().figure
    assert [text.get_text() for legend in figure.legends for text in legend.get_texts()] == keys


def test_the_number_is_in_the_title() -> None:
    made = MADE["layout"]()
    assert "72 of 72 elements" in " ".join(made.figure.get_suptitle().split())


NAMELESS = map_rows(
    """
    field,lsb,width,evidence
    a,0,8,K
    ,8,8,C:sweep
    ,16,4,guess
    ,20,4,
    """
)


@pytest.mark.parametrize("registers", [npulab.target("vivante").registers, RegisterMap(NAMELESS)])
def test_a_block_is_drawn_with_every_bit_in_the_colour_of_its_status(
    registers: RegisterMap,
) -> None:
    axes = pictures.block_map(registers).figure.axes[0]
    cells = np.asarray(axes.images[0].get_array())
    status = registers.status()
    for name, colour in blocks.COLOURS.items():
        counted = (cells == to_rgb(colour)).all(-1).sum(1)
        assert counted.tolist() == status[name].tolist(), name


def test_a_block_has_the_names_of_its_fields() -> None:
    registers = npulab.target("vivante").registers
    axes = pictures.block_map(registers).figure.axes[0]
    # bit 31 on the left: the six bits of the shift are the upper ones of word 2
    names = {text.get_text(): text.get_position() for text in axes.texts}
    assert names["post_shift"][0] < names["brick_distance"][0]
    assert {names[name][1] for name in ("post_shift", "brick_distance")} == {2}
