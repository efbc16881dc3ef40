"""How long views take in a browser, in one run of pytest-benchmark:

    pytest -o addopts= tests/tools/bench_views.py

What a page does by itself is timed in the page: drawing a view, answering a click (until the next
layout), each frame while four mebibytes scroll (a screen's frame lasts 16.7 ms, and reading along
needs 33 ms at most).  A click through the kernel is timed in JupyterLab, from the click until the
page shows what Python made of it, and so is a step through a sweep of 10,000 captures of 151 words.
``load`` is how many processes wanted a processor meanwhile: only numbers of a machine with fewer
than its processors say what a free one does.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
from blank_page import BlankPage, browser
from conftest import CAPTURES
from lab import Lab, Opened
from playwright.sync_api import Browser
from test_register_view import wide
from test_views_browser import scrolled

import npulab
from npulab.captures.sweep import Sweep
from npulab.notebook.widgets import LawView, MapEditor, RegisterView, SweepView, WritesView

# a bit far from the one before, so that the cursor, the list and the status line move
CLICK = """([word, bit]) => {
  const cell = document.querySelector(`[data-word='${word}'][data-bit='${bit}']`), box = cell.getBoundingClientRect();
  const start = performance.now();
  for (const type of ["pointerdown", "mousedown", "pointerup", "mouseup", "click"]) {
    cell.dispatchEvent(new PointerEvent(type, { bubbles: true, cancelable: true, buttons: 1, clientX: box.x + 4, clientY: box.y + 4 }));
  }
  document.body.getBoundingClientRect();
  return performance.now() - start;
}"""
# from a key until the text of an element is another
PRESSED = """([selector, text]) => new Promise(done => {
  const start = performance.now(), shown = document.querySelector(selector), before = shown.textContent;
  const seen = new MutationObserver(() => shown.textContent !== before && (seen.disconnect(), done(performance.now() - start)));
  seen.observe(shown, { childList: true, characterData: true, subtree: true });
  document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key: text, bubbles: true, cancelable: true }));
})"""


def large(count: int = 10_000) -> Sweep:
    """A sweep of a map of 151 words, forty of which move."""
    random, registers = np.random.default_rng(1), npulab.target("ane").registers
    words = random.integers(0, 2**32, (1, len(registers)), dtype=np.uint32).repeat(count, 0)
    words[:, :40] ^= random.integers(0, 256, (count, 40), dtype=np.uint32)
    return Sweep(words, {"width": random.integers(0, 100, count)}, registers=registers)


VIEWS: dict[str, Callable[[], Any]] = {
    "registers, 34 words": lambda: RegisterView(npulab.load(CAPTURES / "vivante/update4-vendor")),
    "registers, 128 words": lambda: RegisterView(wide(128)),
    "map editor, 151 words": lambda: MapEditor(npulab.draft(npulab.target("ane").registers)),
    "sweep, 151 words": lambda: SweepView(large(100)),
    "writes, 90": lambda: WritesView(npulab.load(CAPTURES / "nvdla/sim-3x3-same")),
    "laws, 4 words": lambda: LawView(
        npulab.find_laws(
            np.arange(256).reshape(64, 4) % 7,
            {"size": np.arange(64) % 7, "other": np.arange(64) % 5},
        )
    ),
}


@pytest.fixture(scope="module")
def started() -> Iterator[Browser]:
    with browser() as one:
        yield one


@pytest.fixture(autouse=True)
def load(benchmark: Any) -> Iterator[None]:
    yield
    benchmark.extra_info["load"] = round(os.getloadavg()[0], 1)


@pytest.mark.parametrize("name", VIEWS)
def test_drawn_and_clicked(benchmark: Any, started: Browser, name: str) -> None:
    view, drawn, clicked = VIEWS[name](), [], []

    def once() -> None:
        with BlankPage(started, view) as page:
            drawn.append(page.render_ms)
            cells = page.page.locator("[data-word][data-bit]").count()
            clicked.extend(
                page.page.evaluate(CLICK, [at // 32 % (cells // 32), at % 32])
                for at in range(3, 400, 37)
            )

    benchmark.pedantic(once, rounds=3)
    benchmark.extra_info |= {
        "render_ms": min(drawn),
        "click_ms": statistics.median(clicked),
        "click_worst_ms": max(clicked),
    }


def test_map_edited(benchmark: Any, started: Browser) -> None:
    """An edit as the page takes it in: the fields of 151 words, of which one has another name."""
    view = VIEWS["map editor, 151 words"]()
    with BlankPage(started, view) as page:

        def edit() -> None:
            view.model.press(
                {
                    "do": "cell",
                    "field": view.rows[3][0],
                    "column": "field",
                    "text": f"n{len(times)}",
                }
            )
            traits = {
                name: getattr(view, name)
                for name in ("rows", "places", "values", "steps", "status")
            }
            times.append(
                page.page.evaluate(
                    """traits => { const start = performance.now(); window.push(traits);
                document.body.getBoundingClientRect(); return performance.now() - start; }""",
                    traits,
                )
            )

        times: list[float] = []
        benchmark.pedantic(edit, rounds=10)
    benchmark.extra_info["page_ms"] = statistics.median(times)


def test_bytes_scrolled(benchmark: Any, started: Browser) -> None:
    times, costs = benchmark.pedantic(scrolled, (started,))
    benchmark.extra_info |= {
        "frame_ms": statistics.median(times),
        "cost_ms": statistics.median(costs),
    }


def test_through_the_kernel(benchmark: Any, started: Browser, tmp_path: Path) -> None:
    """Flips in a register view, steps in a sweep of 10,000 captures, in JupyterLab."""
    tools = Path(__file__).parent
    cells = [
        f"import npulab\nnpulab.RegisterView(npulab.load({str(CAPTURES / 'vivante/update4-vendor')!r}))",
        f"import sys\nsys.path[:0] = {[str(tools), str(tools.parent), *(str(tools.parent / one) for one in ('notebook', 'browser', 'reference'))]!r}\n"
        "from bench_views import SweepView, large\nSweepView(large())",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells])
    notebook.metadata["kernelspec"] = {
        "display_name": "Python 3",
        "language": "python",
        "name": "python3",
    }
    (tmp_path / "root").mkdir()
    nbformat.write(notebook, tmp_path / "root/bench.ipynb")
    lab = Lab(tmp_path, f"--ServerApp.root_dir={tmp_path / 'root'}")
    flips, steps = [], []
    try:
        with Opened(lab, started, "bench.ipynb") as opened:
            opened.run_all()
            for kind, key, times in (("registers", " ", flips), ("sweep", ".", steps)):
                opened.page.locator(f".npulab-{kind} .npulab-bit").first.click()
                opened.settle()
                times += [
                    opened.page.evaluate(PRESSED, [f".npulab-{kind} .npulab-summary", key])
                    for _ in range(30)
                ]
    finally:
        lab.close()
    benchmark.pedantic(lambda: None)
    benchmark.extra_info |= {
        "flip_ms": statistics.median(flips),
        "flip_worst_ms": max(flips),
        "step_ms": statistics.median(steps),
        "steps_a_second": 1000 / statistics.median(steps),
    }
