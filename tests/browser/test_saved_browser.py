"""Notebooks that were saved in ``npulab lab``, opened again with a new kernel."""

from __future__ import annotations

from collections.abc import Iterator

import nbformat
import pytest
from conftest import CAPTURES, ROOT
from lab import Lab, Opened
from playwright.sync_api import Browser

SHIPPED = "notebooks/1-first-capture.ipynb"
MINE = "saved/mine.ipynb"
VIEWS = ("view = RegisterView(a)\nview", "editor = MapEditor(npulab.draft(a.maps['NN']), a)\neditor", "DiffView(a, b)",
         "ByteView(a, 'coefficients')", "OutputView(npulab.check(a))", "BisectView(a, b)",
         f"sweep = SweepView(npulab.load_sweep({str(CAPTURES / 'heron/sweep-jobs.npz')!r}))\nsweep.at = 40\nsweep",
         "npulab.notebook.widgets.LawView(npulab.find_laws([[0], [1], [2], [3]] * 8, {'size': [0, 1, 2, 3] * 8}))")
START = (f"import npulab\nfrom npulab.notebook.widgets import *\na = npulab.load({str(CAPTURES / 'vivante/sim-3x3-same')!r})\n"
         f"b = npulab.load({str(CAPTURES / 'vivante/sim-3x3-stride2-relu')!r})")
KERNEL = {"kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}}


@pytest.fixture(scope="module")
def opened(lab: Lab, chrome: Browser) -> Iterator[Opened]:
    (lab.root / MINE).parent.mkdir()
    cells = [nbformat.v4.new_code_cell(text) for text in (START, *VIEWS)]
    nbformat.write(nbformat.v4.new_notebook(metadata=KERNEL, cells=cells), lab.root / MINE)
    with Opened(lab, chrome, MINE) as page:
        yield page


# ipywidgets' manager takes itself for restored when the new kernel has said that it has no widgets, even if the
# notebook's are not read yet; what is drawn between the two stays "model not found" until the notebook is opened again.
OPENINGS = 6
# What each output says; of a long table only what is in sight, the page draws more or fewer of the other rows, and not
# where in it the cursor is, which is the page's own.
SEEN = """() => [...document.querySelectorAll('.jp-OutputArea-output')].map(output => {
  const copy = output.cloneNode(true);
  copy.querySelector('.npulab-map .detail')?.remove();
  copy.querySelectorAll('[aria-rowindex]').forEach(row => row.getAttribute('aria-rowindex') > 10 && row.remove());
  return copy.textContent; })"""


def test_every_view_is_there_again_as_it_was_last(opened: Opened) -> None:
    cells = opened.run_all()
    assert [output for cell in cells for output in cell["outputs"] if output["output_type"] == "error"] == []
    opened.ask("view.put('relu', 1); editor.draft.rename('relu', 'clamped'); RegisterView(b)")
    opened.page.wait_for_function("() => document.body.textContent.includes('; 1 step, not saved')")  # it is told last
    opened.settle()
    before = opened.page.evaluate(SEEN)
    assert len(before) == len(VIEWS)
    opened.save()
    for _ in range(OPENINGS):
        opened.turn_to(MINE)
        opened.settle()
        if "model not found" not in "".join(opened.texts()):
            break
    assert opened.page.evaluate(SEEN) == before
    assert opened.page.locator(".npulab-registers .npulab-bit.differs").get_attribute("data-bit") == "24"
    assert "rename relu to clamped" in opened.texts()[1]
    saved = nbformat.read(opened.lab.root / MINE, 4)
    states = saved.metadata.widgets["application/vnd.jupyter.widget-state+json"]["state"].values()
    assert sum(state["model_module"] == "anywidget" for state in states) == len(VIEWS)
    assert opened.problems == []


def test_a_shipped_notebook_is_not_changed_by_opening_it(opened: Opened) -> None:
    opened.turn_to(SHIPPED)
    opened.settle()
    opened.save()  # as autosave does
    assert (opened.lab.root / SHIPPED).read_bytes() == (ROOT / SHIPPED).read_bytes()
    assert opened.problems == []


def test_nobody_asks_about_news(opened: Opened) -> None:
    assert opened.page.locator("text=/Jupyter news/").count() == 0
    assert opened.page.locator(".jp-toastContainer .Toastify__toast").count() == 0
