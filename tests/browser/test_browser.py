"""``npulab lab`` in a real browser: every notebook runs, and a click on a bit reaches Python."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT
from lab import Lab, Opened
from playwright.sync_api import Browser

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
# those with a view that no other test opens in the lab from a notebook as it is shipped
SAMPLE = ("3-bisect-fields", "7-emulated-against-captured")
BROKEN = ("Error displaying widget", "Error creating widget", "Loading widget...", "Javascript Error",
          "Failed to load model class")
# a folder to look at what the tests saw
PICTURES = os.environ.get("NPULAB_PICTURES")


@pytest.fixture(scope="module")
def opened(lab: Lab, chrome: Browser) -> Iterator[Opened]:
    """One page for every notebook: JupyterLab takes longer to load than most notebooks to run."""
    with Opened(lab, chrome, f"notebooks/{NOTEBOOKS[0].name}") as page:
        yield page


def picture(opened: Opened, name: str) -> None:
    if PICTURES:
        opened.picture(Path(PICTURES) / f"{name}.png")


# nbval runs every notebook on every run; what the lab adds is that views are shown
@pytest.mark.parametrize("path", [
    pytest.param(path, id=path.stem, marks=() if path.stem in SAMPLE else pytest.mark.long) for path in NOTEBOOKS])
def test_notebook_runs_in_the_lab(opened: Opened, path: Path) -> None:
    opened.turn_to(f"notebooks/{path.name}")
    cells = [cell for cell in opened.run_all() if cell["cell_type"] == "code"]
    errors = [output for cell in cells for output in cell["outputs"] if output["output_type"] == "error"]
    assert errors == []
    assert all(cell["execution_count"] for cell in cells)
    assert [text for text in opened.texts() if any(word in text for word in BROKEN)] == []
    assert opened.problems == []
    for theme in ("Dark", "Light") if PICTURES else ():
        opened.theme(f"JupyterLab {theme}")
        picture(opened, f"{path.stem}-{theme.lower()}")
    assert opened.problems == []
    assert (opened.lab.root / "notebooks" / path.name).read_bytes() == path.read_bytes()


def test_the_first_screen_of_the_start_notebook_is_a_named_register_block(opened: Opened) -> None:
    opened.turn_to(f"notebooks/{NOTEBOOKS[0].name}")
    high = opened.page.viewport_size["height"]
    output = opened.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-OutputArea-output").first
    assert "in_image_x_size" in output.inner_text()  # as stored, with nothing run
    assert 0 <= output.bounding_box()["y"] < high / 2
    opened.run_all()
    for theme in ("Dark", "Light"):
        opened.theme(f"JupyterLab {theme}")
        opened.page.keyboard.press("Control+Home")
        view = opened.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .npulab-bit").first
        view.scroll_into_view_if_needed()
        assert 0 <= view.bounding_box()["y"] < high
        picture(opened, f"start-{theme.lower()}")
    assert opened.problems == []


def test_click_on_a_bit_reaches_python(opened: Opened) -> None:
    opened.turn_to("notebooks/1-first-capture.ipynb")
    opened.run_all()
    before = int(opened.ask("print(view.words[2])"))
    opened.page.locator('.npulab-bit[data-word="2"][data-bit="24"]').dblclick()
    opened.settle()
    assert int(opened.ask("print(view.words[2])")) == before ^ 2 ** 24
    assert opened.ask("print(view.changed)") == "{'relu': (0, 1)}"
    assert opened.ask("print(npulab.diff(capture, view.capture).field.tolist())") == "['relu']"
    opened.page.keyboard.press("m")  # would turn the cell into text if it reached the lab
    opened.page.keyboard.press("Space")
    opened.settle()
    assert int(opened.ask("print(view.words[2])")) == before
    opened.ask("view.words = (*view.words[:2], 7, *view.words[3:])")
    opened.settle()
    assert opened.page.locator('.npulab-bit[data-word="2"][data-bit="2"]').inner_text() == "1"
    assert opened.problems == []
