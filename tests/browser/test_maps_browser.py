"""A map being made, a session and a report in a real browser: JupyterLab where a kernel counts, a page of its own else."""

from __future__ import annotations

import json
import shutil
import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from blank_page import BlankPage
from conftest import CAPTURES, ROOT
from lab import Lab, Opened
from playwright.sync_api import Browser, Locator, expect
from test_maps_contract import EVIL, NASTY, folder, hostile, nasty_table  # noqa: F401
from test_views_browser import drawn

import npulab
import npulab.notebook.widgets

CELLS = (
    "import npulab.notebook.widgets, numpy as np\n"
    "session = npulab.session('story.json', author='ada')\n"
    "a, b = (session.attach(f'captures/{name}') for name in ('sim-3x3-same', 'sim-3x3-stride2-relu'))\n"
    "draft = npulab.draft('nn.csv', features=['nn_v7'])",
    "npulab.notebook.widgets.MapEditor(draft, b)",
    "view = npulab.RegisterView(b, draft=draft)\nview",
    "npulab.notebook.widgets.DiffView(a, b)",
    "npulab.notebook.widgets.ByteView(a)",
    "npulab.notebook.widgets.OutputView(npulab.check(a))",
    "npulab.notebook.widgets.BisectView(a, b)",
    "sweep = npulab.load_sweep('sweep.npz')\n"
    "npulab.notebook.widgets.LawView(npulab.find_laws(sweep.words[:24, :2] & 0x3f, sweep.parameters.iloc[:24, :4]))",
)
EDITOR, REGISTERS, BYTES = 1, 2, 4
# Of each frame, how long after the one before it came, while a tester scrolls.
SCROLL = """async ([selector, frames]) => {
  const grid = document.querySelector(selector), times = [];
  const frame = () => new Promise(done => requestAnimationFrame(done));
  const inside = [...grid.querySelectorAll('*'), grid].find(one => one.scrollHeight > one.clientHeight + 10_000);
  const drawn = () => [...grid.querySelectorAll('canvas')].map(one => one.toDataURL()).join();
  await frame();
  const before = drawn();
  for (let n = 0, last = await frame(); n < frames; n++) {
    inside.scrollTop += n % 3 ? 120 : 50_000;
    const now = await frame(); times.push(now - last); last = now;
  }
  await frame();
  return [times, inside.scrollTop, inside.scrollHeight, before.length > 1000 && drawn() !== before];
}"""


@pytest.fixture(scope="module")
def place(lab: Lab) -> Path:
    """The folder of an investigation, with a notebook."""
    made = lab.root / "maps"
    for name in ("sim-3x3-same", "sim-3x3-stride2-relu"):
        shutil.copytree(CAPTURES / "vivante" / name, made / "captures" / name)
    shutil.copy(CAPTURES / "vivante/sweep-layers-s905d3.npz", made / "sweep.npz")
    for name in ("nn.csv", "enums.csv", "sources.csv"):
        shutil.copy(ROOT / "npulab/npus/vivante" / name, made)
    cells = [{"cell_type": "code", "id": f"c{n}", "metadata": {}, "execution_count": None, "outputs": [], "source": source}
             for n, source in enumerate(CELLS)]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    (made / "work.ipynb").write_text(json.dumps({"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}))
    return made


@pytest.fixture(scope="module")
def opened(lab: Lab, chrome: Browser, place: Path) -> Iterator[Opened]:
    with Opened(lab, chrome, "maps/work.ipynb") as one:
        cells = one.run_all()
        errors = [output for cell in cells for output in cell["outputs"] if output["output_type"] == "error"]
        assert errors == []
        yield one


def shown(opened: Opened, cell: int) -> Locator:
    """What a cell shows last; before it comes a bar if the work takes long."""
    return opened.page.locator(".jp-CodeCell").nth(cell).locator(".jp-OutputArea-output").last


def test_edit_a_field_and_see_a_capture_decode_anew(opened: Opened) -> None:
    editor, registers = shown(opened, EDITOR), shown(opened, REGISTERS)
    bit = registers.locator('[data-word="2"][data-bit="24"]')
    assert "relu" in bit.get_attribute("aria-label")
    editor.locator("[role=grid]").first.focus()
    for key in ("/", *"w2 relu"):
        opened.page.keyboard.press(key)
    expect(editor.locator(".found")).to_have_text("1 field")
    for key in ("Enter", "Enter"):
        opened.page.keyboard.press(key)
    opened.page.keyboard.press("Control+A")
    opened.page.keyboard.type("clamp_below")
    opened.page.keyboard.press("Enter")
    opened.settle()
    assert "rename relu to clamp_below" in editor.locator("[role=status]").inner_text()
    assert "clamp_below" in bit.get_attribute("aria-label")
    assert opened.ask("print(draft.steps, draft.decode(b).fields.query('field == \"clamp_below\"').value.tolist())") == \
        "['rename relu to clamp_below'] [1]"
    bit.hover()
    assert "clamp_below" in registers.locator("[role=status]").inner_text()
    opened.ask("draft.split('in_image_x_size', widths=[3, 10], names=['low', 'high'])")
    opened.settle()
    split = registers.locator('[data-word="1"][data-bit="6"]')
    assert "low" in split.get_attribute("aria-label")
    editor.locator("[role=grid]").first.focus()
    for _ in range(2):
        opened.page.keyboard.press("u")
        opened.settle()
    assert "relu" in bit.get_attribute("aria-label")
    assert "in_image_x_size" in split.get_attribute("aria-label")
    assert opened.ask("print(draft.steps, draft.saved)") == "[] True"
    assert opened.problems == []


@pytest.mark.parametrize("theme", ["Light", "Dark"])
def test_no_findings_of_axe_in_any_widget(opened: Opened, theme: str) -> None:
    opened.theme(f"JupyterLab {theme}")
    found = []
    for cell in range(1, len(CELLS)):
        marked = shown(opened, cell)
        marked.scroll_into_view_if_needed()
        marked.evaluate("(one, cell) => { (one.querySelector('.jupyter-widgets') ?? one).id = 'looked-at-' + cell; }", cell)
        assert opened.page.locator(f"#looked-at-{cell}").evaluate("one => one.querySelectorAll('*').length") > 20, CELLS[cell]
        found += [f"{CELLS[cell]}: {one['id']}: {node['html'][:160]}"
                  for one in Axe().run(opened.page, context=f"#looked-at-{cell}").response["violations"] for node in one["nodes"]]
    assert found == []
    assert opened.problems == []


def test_four_mebibytes_are_drawn_as_they_scroll(opened: Opened) -> None:
    opened.ask("from IPython.display import display")
    opened.page.evaluate("window.jupyterapp.commands.execute('notebook:insert-cell-below')")
    opened.page.evaluate("() => { window.jupyterapp.shell.currentWidget.content.activeCell.model.sharedModel.setSource("
                         "'npulab.notebook.widgets.ByteView(np.random.default_rng(0).integers(0, 256, 2 ** 22, dtype=np.uint8))'); }")
    opened.page.evaluate("window.jupyterapp.commands.execute('notebook:run-cell').then(() => true)")
    opened.settle()
    last = opened.page.locator(".jp-OutputArea-output", has_text="4194304").last
    last.wait_for()
    last.scroll_into_view_if_needed()
    last.evaluate("one => { one.id = 'large'; }")
    times, top, height, moved = opened.page.evaluate(SCROLL, ["#large", 60])
    assert moved, "the picture follows"
    assert top > 900_000, (top, height)
    print(f"frames: median {statistics.median(times):.1f} ms, longest {max(times):.1f} ms")
    assert opened.problems == []


def test_notes_survive_a_restart_of_the_kernel(opened: Opened, place: Path) -> None:
    opened.ask("note = session.note('**two** where the stride is 2', field='relu'); "
               "_ = session.note('sixteen bytes', capture=a, buffer='coefficients', offset=16, size=16); "
               "view.cursor = (2, 24); _ = session.open_view(view)")
    opened.page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart().then(() => true)")
    opened.settle()
    assert opened.ask("print('session' in globals())") == "False"
    said = opened.ask("import npulab; again = npulab.session('story.json'); shown = again.show(); "
                      "print(sorted(note.text for note in again.notes), len(again.captures), again.problems, tuple(shown.cursor))")
    assert said.replace("()", "[]", 1) == "['**two** where the stride is 2', 'sixteen bytes'] 2 [] (2, 24)"
    assert "**two** where the stride is 2" in (place / "story.json").read_text()


# Pages of their own


def evil_capture(name: str = "sim-3x3-same") -> npulab.Capture:
    """A capture whose every name is a script."""
    capture = npulab.load(CAPTURES / "vivante" / name)
    draft = npulab.draft(capture.maps["NN"])
    for n, field in enumerate(("relu", "kernel_xy_size", "post_shift", "stride", "brick_mode", "kernels_per_core")):
        if field in draft.map.decode(capture.words):
            draft.rename(field, f"{NASTY[n]}{EVIL}")
    draft.retype("pooling_xy_size", names={0: EVIL, 1: EVIL + "1"})
    draft.set_note("prelu", EVIL)
    capture = draft.decode(capture)
    return replace(capture, name=EVIL + name, source=EVIL, tool=EVIL, chip=capture.chip,
                   buffers={**capture.buffers, EVIL: EVIL.encode() * 9})


def evil_laws() -> npulab.notebook.widgets.LawView:
    sweep = npulab.load_sweep(CAPTURES / "vivante/sweep-layers-s905d3.npz")
    parameters = sweep.parameters.iloc[:24, :3]
    parameters = parameters.rename(columns={parameters.columns[0]: EVIL})
    return npulab.notebook.widgets.LawView(npulab.find_laws(sweep.words[:24, :1] & 0x3f, parameters))


MAKES: dict[str, Callable[[], Any]] = {
    "registers": lambda: npulab.RegisterView(evil_capture(), evil_capture("sim-3x3-stride2-relu")),
    "editor": lambda: npulab.notebook.widgets.MapEditor(npulab.draft(evil_capture().maps["NN"]), evil_capture()),
    "rows": lambda: npulab.notebook.widgets.MapEditor(npulab.draft(nasty_table())),
    "diff": lambda: npulab.notebook.widgets.DiffView(evil_capture(), evil_capture("sim-3x3-stride2-relu")),
    "bytes": lambda: npulab.notebook.widgets.ByteView(evil_capture(), EVIL),
    "outputs": lambda: npulab.notebook.widgets.OutputView(replace(npulab.check(npulab.load(CAPTURES / "vivante/sim-3x3-same")), case=EVIL, reason=EVIL)),
    "bisection": lambda: npulab.notebook.widgets.BisectView(evil_capture(), evil_capture("sim-3x3-stride2-relu")),
    "laws": evil_laws,
}


@pytest.mark.parametrize("name", MAKES)
def test_hostile_names_are_text_in_every_view(chrome: Browser, name: str) -> None:
    view = MAKES[name]()
    bundle = view._repr_mimebundle_()
    html = (bundle[0] if isinstance(bundle, tuple) else bundle)["text/html"]
    page = chrome.new_page()
    page.set_content(f"<title>calm</title><div id='root'>{html}</div>")
    assert page.title() == "calm"
    assert page.locator("#root").evaluate("one => one.querySelectorAll('script, img, iframe, a[href^=\"javascript\"]').length") == 0
    assert EVIL in page.inner_text("#root") or name in ("outputs", "rows", "laws")
    page.close()
    with BlankPage(chrome, drawn(view)) as blank:
        for key in ("Tab", "ArrowDown", "ArrowRight", "End", "Home"):
            blank.press(key)
        assert blank.page.title() == "widget"
        assert blank.page.locator("#root").evaluate("one => one.querySelectorAll('script, img, iframe, a').length") == 0
        assert EVIL in blank.page.inner_text("#root") or name in ("rows", "outputs")


def test_a_report_opens_with_no_network_and_runs_no_script(chrome: Browser, folder: Path) -> None:  # noqa: F811
    path = hostile(folder).report(folder / "out.html")
    moved = folder / "elsewhere" / "out.html"
    moved.parent.mkdir()
    moved.write_bytes(path.read_bytes())
    for theme in ("light", "dark"):
        context = chrome.new_context(offline=True, color_scheme=theme, viewport={"width": 900, "height": 900})
        page = context.new_page()
        heard: list[str] = []
        page.on("dialog", lambda dialog, heard=heard: (heard.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request, heard=heard: heard.append(request.url) if not request.url.startswith((moved.as_uri(), "data:")) else None)
        page.on("console", lambda said, heard=heard: heard.append(said.text))
        page.on("pageerror", lambda error, heard=heard: heard.append(str(error)))
        page.goto(moved.as_uri())
        assert page.title() != "ran"
        assert EVIL in page.inner_text("body")
        assert page.evaluate("[...document.images].every(one => one.complete && one.naturalWidth > 0)")
        assert page.evaluate("document.querySelectorAll('script, iframe, object, embed, form').length") == 0
        assert heard == []
        context.close()


def test_a_drawing_of_a_map_runs_no_script(chrome: Browser, tmp_path: Path) -> None:
    npulab.write_map(nasty_table(), tmp_path / "map.svg")
    page = chrome.new_page()
    heard: list[str] = []
    page.on("dialog", lambda dialog: (heard.append(dialog.message), dialog.dismiss()))
    page.on("request", lambda request: heard.append(request.url) if not request.url.endswith("map.svg") else None)
    page.goto((tmp_path / "map.svg").as_uri())
    assert page.evaluate("document.querySelectorAll('script, a, image, foreignObject').length") == 0
    assert page.evaluate("document.title ?? ''") != "ran"
    assert heard == []
    page.close()
