"""Notebooks that were saved in ``npulab lab``, opened again with a new kernel."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import nbformat
import pytest
from blank_page import browser, chromium
from conftest import CAPTURES, ROOT
from lab import Lab, Opened

SHIPPED = "1-first-capture.ipynb"
MINE = "mine.ipynb"
VIEWS = ("view = RegisterView(a)\nview", "editor = MapEditor(npulab.draft(a.maps['NN']), a)\neditor", "DiffView(a, b)",
         "ByteView(a, 'coefficients')", "OutputView(npulab.check(a))", "BisectView(a, b)",
         "npulab.notebook.widgets.LawView(npulab.find_laws([[0], [1], [2], [3]] * 8, {'size': [0, 1, 2, 3] * 8}))")
START = (f"import npulab\nfrom npulab.notebook.widgets import *\na = npulab.load({str(CAPTURES / 'vivante/sim-3x3-same')!r})\n"
         f"b = npulab.load({str(CAPTURES / 'vivante/sim-3x3-stride2-relu')!r})")
KERNEL = {"kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}}


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    chromium()
    scratch = tmp_path_factory.mktemp("saved")
    root = scratch / "root"
    root.mkdir()
    shutil.copy(ROOT / "notebooks" / SHIPPED, root)
    cells = [nbformat.v4.new_code_cell(text) for text in (START, *VIEWS)]
    nbformat.write(nbformat.v4.new_notebook(metadata=KERNEL, cells=cells), root / MINE)
    lab = Lab(scratch, f"--ServerApp.root_dir={root}")
    try:
        with browser() as started, Opened(lab, started, MINE) as page:
            yield page
    finally:
        lab.close()


def save(opened: Opened) -> None:
    opened.page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save').then(done => !!done)")
    opened.page.wait_for_function("() => !window.jupyterapp.shell.currentWidget.context.model.dirty")


def test_every_view_is_there_again_as_it_was_last(opened: Opened) -> None:
    cells = opened.run_all()
    assert [output for cell in cells for output in cell["outputs"] if output["output_type"] == "error"] == []
    opened.ask("view.put('relu', 1); editor.draft.rename('relu', 'clamped'); RegisterView(b)")
    opened.settle()
    before = opened.texts()
    assert len(before) == len(VIEWS)
    save(opened)
    opened.turn_to(MINE)
    opened.page.wait_for_function("count => document.querySelectorAll('.npulab-heading').length >= count", arg=len(VIEWS) - 1)
    opened.settle()
    assert "model not found" not in "".join(opened.texts())
    assert opened.texts() == before
    assert opened.page.locator(".npulab-registers .npulab-bit.differs").get_attribute("data-bit") == "24"
    assert "rename relu to clamped" in opened.texts()[1]
    saved = nbformat.read(opened.lab.root / MINE, 4)
    states = saved.metadata.widgets["application/vnd.jupyter.widget-state+json"]["state"].values()
    assert sum(state["model_module"] == "anywidget" for state in states) == len(VIEWS)
    assert opened.problems == []


def test_a_shipped_notebook_is_not_changed_by_opening_it(opened: Opened) -> None:
    opened.turn_to(SHIPPED)
    opened.settle()
    save(opened)  # as autosave does
    assert (opened.lab.root / SHIPPED).read_bytes() == (ROOT / "notebooks" / SHIPPED).read_bytes()
    assert opened.problems == []


def test_nobody_asks_about_news(opened: Opened) -> None:
    assert opened.page.locator("text=/Jupyter news/").count() == 0
    assert opened.page.locator(".jp-toastContainer .Toastify__toast").count() == 0
