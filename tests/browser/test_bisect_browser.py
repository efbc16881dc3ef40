"""The bisect view in a real JupyterLab: keys, buttons, undo, Stop while an oracle runs, reload and resume."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from lab import CELLS, Lab, Opened
from playwright.sync_api import Browser, Page
from store_notebooks import METADATA

# fields of a synthetic map; two of them together break it, and an oracle takes its time
NAME = "bisect/bisect.ipynb"
CELL = """\
import time
from dataclasses import replace
import numpy as np
import npulab
import npulab.notebook.widgets
from npulab.registers.map import RegisterMap
from npulab.captures.capture import Capture, Job

rows = [{"block": "NN", "offset": 4 * (n // 4), "register": f"R{n // 4}", "field": f"f{n}", "lsb": 8 * (n % 4),
         "width": 8} for n in range(44)]
maps = {"NN": RegisterMap(rows)}
good = Capture("good", "demo", "x", (Job("NN", np.zeros(11, np.uint32)),), maps=maps, provenance="simulated")
bad = replace(good.with_fields(**{f"f{n}": n + 1 for n in range(44)}), name="bad")
pause, held = 0.3, False

def oracle(capture):
    time.sleep(pause)
    while held:
        time.sleep(0.01)
    return "fail" if capture.values["f7"] and capture.values["f30"] else "pass"
"""
VIEW = 'view = npulab.notebook.widgets.BisectView(good, bad, oracle, journal="run.jsonl")\nview'
SEEN = 320  # ms, more than what a trial must be shown before an answer counts
RUN_VIEW = """() => {
  window.jupyterapp.shell.currentWidget.content.activeCellIndex = 1;
  return window.jupyterapp.commands.execute('notebook:run-cell').then(done => !!done); }"""
PICTURES = os.environ.get("NPULAB_PICTURES")


@pytest.fixture
def opened(lab: Lab, chrome: Browser) -> Iterator[Opened]:
    (lab.root / NAME).parent.mkdir()
    cells = [nbformat.v4.new_code_cell(code) for code in (CELL, VIEW)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=METADATA), lab.root / NAME)
    with Opened(lab, chrome, NAME) as page:
        yield page


def trial(page: Page, number: int, passed: bool = False) -> None:
    """Wait until the page shows a trial, or has come so far."""
    page.wait_for_function("""([number, passed]) => {
      const shown = parseInt(document.querySelector('.npulab-bisect .where').textContent.slice(6));
      return passed ? shown >= number : shown === number; }""", arg=[number, passed])


def answer(page: Page, key: str, then: int) -> None:
    """Press a key when the trial was there long enough to be seen, and wait for the next."""
    page.wait_for_timeout(SEEN)
    page.keyboard.press(key)
    trial(page, then)


def state(page: Page, name: str) -> None:
    page.wait_for_selector(f".npulab-bisect[data-state={name}]")


def seen(page: Page) -> list[str]:
    """What a person sees of a trial: its number, why, the fields, the suspects, the counts."""
    return [page.inner_text(f".npulab-bisect {part}") for part in (".where", ".reason", ".tried", ".suspects", ".counts")]


def test_bisect_view_in_the_lab(opened: Opened) -> None:
    page = opened.page
    opened.run_all()

    page.click(".npulab-bisect .npulab-heading")
    for key, then in (("p", 2), ("f", 3), ("h", 4), ("u", 3), ("a", 3), ("p", 4)):
        answer(page, key, then)
        if key == "a":
            page.wait_for_selector(".npulab-bisect .reason:has-text('asked again')")
    assert opened.ask("print(view.model.counts)") == "{'pass': 2, 'fail': 1, 'hang': 0}"
    page.wait_for_timeout(SEEN)
    page.click(".npulab-bisect button.hang")
    for then in (5, 4, 3, 2, 1):
        trial(page, then)
        if then > 1:
            page.click(".npulab-bisect button.undo")

    page.click(".npulab-bisect .status")
    for key in ("m", "y", "d", "d", "x", "b", "1", "ArrowUp", "Enter"):  # what would change the notebook
        page.keyboard.press(key)
    cells = page.evaluate(CELLS)
    assert [(cell["cell_type"], "".join(cell["source"])) for cell in cells] == [("code", CELL), ("code", VIEW)]
    assert not page.evaluate("() => window.jupyterapp.shell.currentWidget.content.mode === 'edit'")

    page.keyboard.press("r")
    state(page, "runs")
    trial(page, 3, passed=True)
    page.keyboard.press("s")
    state(page, "stopped")
    told = int(opened.ask("print(len(view.model.session.journal))"))
    page.wait_for_timeout(400)
    assert int(opened.ask("print(len(view.model.session.journal))")) == told < 12  # it has really stopped
    before = seen(page)

    page.keyboard.press("Control+s")  # is the lab's
    page.wait_for_function("() => !window.jupyterapp.shell.currentWidget.context.model.dirty")
    assert '"execution_count": 2' in (opened.lab.root / NAME).read_text()
    opened.ask("held = True")
    page.click(".npulab-bisect button.run")
    state(page, "runs")
    opened.reload(NAME)
    state(page, "runs")  # the kernel is the same, and so is the view
    assert seen(page) == before
    page.evaluate(RUN_VIEW)  # the new view takes the journal over; what runs counts no more
    state(page, "asks")
    assert seen(page) == before
    opened.ask("pause, held = 0, False")

    page.click(".npulab-bisect .npulab-heading")
    page.keyboard.press("r")
    state(page, "done")
    found = "NN R1.f7 = 8 (good 0) and NN R7.f30 = 31 (good 0) together break"
    assert found in page.inner_text(".npulab-bisect [role=status]")
    assert opened.ask("print([key[3] for key in view.result.culprits])") == "['f7', 'f30']"
    assert len((opened.lab.root / "bisect/run.jsonl").read_text().splitlines()) > 10
    assert opened.problems == []
    for theme in ("Light", "Dark") if PICTURES else ():
        opened.theme(f"JupyterLab {theme}")
        opened.picture(Path(str(PICTURES)) / f"bisect-{theme.lower()}.png")
