"""``npulab lab`` in a real browser: shipped notebooks, a map being made, a bisection, views that
are saved and opened again.

One lab and one page serve all of it, each part with a notebook and a kernel of its own: the page
alone takes as long as five notebooks.
"""

from __future__ import annotations

import os
import shutil
import statistics
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from axe_playwright_python.sync_playwright import Axe
from blank_page import chromium
from conftest import CAPTURES, ROOT
from lab import CELLS, SIZE, Lab, Opened
from playwright.sync_api import Browser, Locator, Page, expect
from store_notebooks import METADATA

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
START, FIRST = (path for path in NOTEBOOKS if path.stem in ("0-start", "1-first-capture"))
BROKEN = (
    "Error displaying widget",
    "Error creating widget",
    "Loading widget...",
    "Javascript Error",
    "Failed to load model class",
    "model not found",
)
DIRTY = "() => window.jupyterapp.shell.currentWidget.context.model.dirty"
# a folder to look at what the tests saw
PICTURES = os.environ.get("NPULAB_PICTURES")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """``npulab lab`` on a copy of the notebooks beside their captures."""
    chromium()
    root = tmp_path_factory.mktemp("root")
    shutil.copytree(ROOT / "notebooks", root / "notebooks")
    (root / "captures").symlink_to(CAPTURES)
    started = Lab(tmp_path_factory.mktemp("lab"), f"--ServerApp.root_dir={root}")
    yield started
    started.close()


@pytest.fixture(scope="module")
def opened(lab: Lab, chrome: Browser) -> Iterator[Opened]:
    with Opened(lab, chrome) as page:
        yield page


def picture(opened: Opened, name: str) -> None:
    if PICTURES:
        opened.picture(Path(PICTURES) / f"{name}.png")


def write(lab: Lab, name: str, *cells: str) -> None:
    """A notebook of one's own."""
    (lab.root / name).parent.mkdir(exist_ok=True)
    nbformat.write(
        nbformat.v4.new_notebook(
            metadata=METADATA, cells=[nbformat.v4.new_code_cell(cell) for cell in cells]
        ),
        lab.root / name,
    )


def run(opened: Opened) -> None:
    """Run the whole notebook: every cell, without an error, and every view is shown."""
    cells = [cell for cell in opened.run_all() if cell["cell_type"] == "code"]
    assert [
        output for cell in cells for output in cell["outputs"] if output["output_type"] == "error"
    ] == []
    assert all(cell["execution_count"] for cell in cells)
    assert [text for text in opened.texts() if any(word in text for word in BROKEN)] == []
    assert opened.problems == []


# Shipped notebooks


def test_the_first_screen_of_the_start_notebook_is_a_named_register_block(opened: Opened) -> None:
    opened.turn_to(f"notebooks/{START.name}")
    high = opened.page.viewport_size["height"]
    output = opened.page.locator(
        ".jp-NotebookPanel:not(.lm-mod-hidden) .jp-OutputArea-output"
    ).first
    assert "in_image_x_size" in output.inner_text()  # as stored, with nothing run
    assert 0 <= output.bounding_box()["y"] < high / 2
    run(opened)
    for theme in ("Dark", "Light"):
        opened.theme(f"JupyterLab {theme}")
        opened.page.keyboard.press("Control+Home")
        view = opened.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .npulab-bit").first
        view.scroll_into_view_if_needed()
        assert 0 <= view.bounding_box()["y"] < high
        picture(opened, f"start-{theme.lower()}")
    assert opened.problems == []


@pytest.fixture(scope="module")
def first_capture(opened: Opened) -> Opened:
    """A shipped notebook, opened and not run."""
    opened.turn_to(f"notebooks/{FIRST.name}")
    opened.settle()
    return opened


def test_a_shipped_notebook_is_not_changed_by_opening_it(first_capture: Opened) -> None:
    assert not first_capture.page.evaluate(DIRTY)
    cells = first_capture.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Cell")
    assert cells.locator(".jp-InputPlaceholder").count() == 1  # the asserts are folded
    assert cells.last.locator(".jp-InputPlaceholder").count() == 1
    first_capture.save()  # as autosave does
    assert (first_capture.lab.root / "notebooks" / FIRST.name).read_bytes() == FIRST.read_bytes()
    assert first_capture.problems == []


def test_click_on_a_bit_reaches_python(first_capture: Opened) -> None:
    opened = first_capture
    run(opened)
    before = int(opened.ask("print(view.words[2])"))
    opened.page.locator('.npulab-bit[data-word="2"][data-bit="24"]').dblclick()
    opened.settle()
    assert int(opened.ask("print(view.words[2])")) == before ^ 2**24
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


# nbval runs every notebook on every run; what the lab adds is that views are shown
@pytest.mark.long
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_in_the_lab(opened: Opened, path: Path) -> None:
    opened.turn_to(f"notebooks/{path.name}")
    assert not opened.page.evaluate(DIRTY)
    run(opened)
    for theme in ("Dark", "Light") if PICTURES else ():
        opened.theme(f"JupyterLab {theme}")
        picture(opened, f"{path.stem}-{theme.lower()}")
    assert opened.problems == []
    assert (opened.lab.root / "notebooks" / path.name).read_bytes() == path.read_bytes()


# A map being made


MAPS = "maps/work.ipynb"
SESSION = (
    "import npulab.notebook.widgets, numpy as np\n"
    "session = npulab.session('story.json', author='ada')\n"
    "a, b = (session.attach(f'captures/{name}') for name in ('sim-3x3-same', 'sim-3x3-stride2-relu'))\n"
    "draft = npulab.draft('nn.csv', features=['nn_v7'])",
    "npulab.notebook.widgets.MapEditor(draft, b)",
    "view = npulab.RegisterView(b, draft=draft)\nview",
)
EDITOR, REGISTERS = 1, 2
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
def maps(opened: Opened) -> Opened:
    """A notebook of an investigation, run, in a folder with its captures and its map."""
    made = opened.lab.root / "maps"
    write(opened.lab, MAPS, *SESSION)
    for name in ("sim-3x3-same", "sim-3x3-stride2-relu"):
        shutil.copytree(CAPTURES / "vivante" / name, made / "captures" / name)
    for name in ("nn.csv", "enums.csv", "sources.csv"):
        shutil.copy(ROOT / "npulab/npus/vivante" / name, made)
    opened.turn_to(MAPS)
    run(opened)
    return opened


def shown(opened: Opened, cell: int) -> Locator:
    """What a cell shows last; before it comes a bar if the work takes long."""
    return opened.page.locator(".jp-CodeCell").nth(cell).locator(".jp-OutputArea-output").last


def test_edit_a_field_and_see_a_capture_decode_anew(maps: Opened) -> None:
    opened = maps
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
    assert (
        opened.ask(
            "print(draft.steps, draft.decode(b).fields.query('field == \"clamp_below\"').value.tolist())"
        )
        == "['rename relu to clamp_below'] [1]"
    )
    bit.hover()
    assert "clamp_below" in registers.locator("[role=status]").inner_text()
    notebook = opened.lab.root / MAPS
    stored = notebook.read_bytes()
    for act in ("", "undo"):  # Ctrl+S saves the map, and not the notebook around it
        if act:
            opened.ask("draft.undo()")
        editor.locator("[role=grid]").first.focus()
        opened.page.keyboard.press("Control+S")
        opened.settle()
        assert editor.locator("[role=status]").inner_text() == "saved as nn.csv"
        assert ("clamp_below" in (notebook.parent / "nn.csv").read_text()) is (act == "")
    assert notebook.read_bytes() == stored
    opened.ask("draft.redo()")
    opened.settle()
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


def test_four_mebibytes_are_drawn_as_they_scroll(maps: Opened) -> None:
    opened = maps
    opened.ask("from IPython.display import display")
    opened.page.evaluate("window.jupyterapp.commands.execute('notebook:insert-cell-below')")
    opened.page.evaluate(
        "() => { window.jupyterapp.shell.currentWidget.content.activeCell.model.sharedModel.setSource("
        "'npulab.notebook.widgets.ByteView(np.random.default_rng(0).integers(0, 256, 2 ** 22, dtype=np.uint8))'); }"
    )
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


def test_notes_survive_a_restart_of_the_kernel(maps: Opened) -> None:
    opened = maps
    opened.ask(
        "note = session.note('**two** where the stride is 2', field='relu'); "
        "_ = session.note('sixteen bytes', capture=a, buffer='coefficients', offset=16, size=16); "
        "view.cursor = (2, 24); _ = session.open_view(view)"
    )
    opened.page.evaluate(
        "() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart().then(() => true)"
    )
    opened.settle()
    assert opened.ask("print('session' in globals())") == "False"
    said = opened.ask(
        "import npulab; again = npulab.session('story.json'); shown = again.show(); "
        "print(sorted(note.text for note in again.notes), len(again.captures), again.problems, tuple(shown.cursor))"
    )
    assert (
        said.replace("()", "[]", 1)
        == "['**two** where the stride is 2', 'sixteen bytes'] 2 [] (2, 24)"
    )
    assert "**two** where the stride is 2" in (opened.lab.root / "maps/story.json").read_text()


# Views that are saved and opened again


MINE = "saved/mine.ipynb"
VIEWS = (
    "view = RegisterView(a)\nview",
    "editor = MapEditor(npulab.draft(a.maps['NN']), a)\neditor",
    "DiffView(a, b)",
    "ByteView(a, 'coefficients')",
    "OutputView(npulab.check(a))",
    "BisectView(a, b)",
    f"sweep = SweepView(npulab.load_sweep({str(CAPTURES / 'heron/sweep-jobs.npz')!r}))\nsweep.at = 40\nsweep",
    "npulab.notebook.widgets.LawView(npulab.find_laws([[0], [1], [2], [3]] * 8, {'size': [0, 1, 2, 3] * 8}))",
)
IMPORTS = (
    f"import npulab\nfrom npulab.notebook.widgets import *\na = npulab.load({str(CAPTURES / 'vivante/sim-3x3-same')!r})\n"
    f"b = npulab.load({str(CAPTURES / 'vivante/sim-3x3-stride2-relu')!r})"
)


@pytest.fixture(scope="module")
def mine(opened: Opened) -> Opened:
    """A notebook with every view, run."""
    write(opened.lab, MINE, IMPORTS, *VIEWS)
    opened.turn_to(MINE)
    run(opened)
    return opened


PLANTED = '<p style="color: #777; background: #888">nobody can read this</p>'


# of axe's rules one looks at colours, and takes longer than all others, which look at what a theme
# leaves as it is
@pytest.mark.sample(1)
@pytest.mark.parametrize(("theme", "colours"), [("Light", False), ("Light", True), ("Dark", True)])
def test_no_findings_of_axe_in_any_widget(mine: Opened, theme: str, colours: bool) -> None:
    opened = mine
    opened.theme(f"JupyterLab {theme}")
    for cell in range(1, len(VIEWS) + 1):
        marked = shown(opened, cell)
        marked.scroll_into_view_if_needed()
        marked.evaluate(
            "(one, cell) => { (one.querySelector('.jupyter-widgets') ?? one).id = 'looked-at-' + cell; }",
            cell,
        )
        assert (
            opened.page.locator(f"#looked-at-{cell}").evaluate(
                "one => one.querySelectorAll('*').length"
            )
            > 20
        ), VIEWS[cell - 1]
    if colours:
        # axe judges no text that it takes for hidden: what is not in sight, and all in a body
        # without a height that hides what overflows, as the lab's is
        opened.page.add_style_tag(content="body { height: 100vh; }")
        opened.stretch()
        opened.page.locator("#looked-at-1").evaluate(
            "(one, text) => one.insertAdjacentHTML('beforeend', text)", PLANTED
        )
    # once for all of them: axe reads the whole page, whatever it looks at; rows of one view have
    # the same colours, and all of them are judged in a page of their own
    context = {
        "include": [[f"#looked-at-{cell}"] for cell in range(1, len(VIEWS) + 1)],
        "exclude": [["[role=row]:nth-child(n + 5)"]] if colours else [],
    }
    options = (
        {"runOnly": ["color-contrast"]}
        if colours
        else {"rules": {"color-contrast": {"enabled": False}}}
    )
    told = (
        Axe()
        .run(opened.page, context=context, options={**options, "resultTypes": ["violations"]})
        .response
    )
    found = [
        f"{one['id']}: {node['target']}: {node['html'][:160]}"
        for one in told["violations"]
        for node in one["nodes"]
    ]
    assert [one for one in found if not one.endswith(PLANTED)] == []
    assert len(found) == colours
    if colours:
        opened.page.locator("#looked-at-1 > p").evaluate_all("all => all.at(-1).remove()")
        opened.page.set_viewport_size(SIZE)
    assert opened.problems == []


# ipywidgets' manager takes itself for restored when the new kernel has said that it has no widgets,
# even if the notebook's are not read yet; what is drawn between the two stays "model not found"
# until the notebook is opened again.
OPENINGS = 6
# What each output says; of a long table only what is in sight, the page draws more or fewer of the
# other rows, and not where in it the cursor is, which is the page's own.
SEEN = """() => [...document.querySelectorAll('.jp-OutputArea-output')].map(output => {
  const copy = output.cloneNode(true);
  copy.querySelector('.npulab-map .detail')?.remove();
  copy.querySelectorAll('[aria-rowindex]').forEach(row => row.getAttribute('aria-rowindex') > 10 && row.remove());
  return copy.textContent; })"""


def test_every_view_is_there_again_as_it_was_last(mine: Opened) -> None:
    opened = mine
    opened.ask("view.put('relu', 1); editor.draft.rename('relu', 'clamped'); RegisterView(b)")
    opened.page.wait_for_function(
        "() => document.body.textContent.includes('; 1 step, not saved')"
    )  # it is told last
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
    assert (
        opened.page.locator(".npulab-registers .npulab-bit.differs").get_attribute("data-bit")
        == "24"
    )
    assert "rename relu to clamped" in opened.texts()[1]
    saved = nbformat.read(opened.lab.root / MINE, 4)
    states = saved.metadata.widgets["application/vnd.jupyter.widget-state+json"]["state"].values()
    assert sum(state["model_module"] == "anywidget" for state in states) == len(VIEWS)
    assert opened.problems == []


def test_nobody_asks_about_news(opened: Opened) -> None:
    assert opened.page.locator("text=/Jupyter news/").count() == 0
    assert opened.page.locator(".jp-toastContainer .Toastify__toast").count() == 0


# The bisect view: keys, buttons, undo, Stop while an oracle runs, reload and resume


# fields of a synthetic map; two of them together break it, and an oracle takes its time
BISECT = "bisect/bisect.ipynb"
PAIR = """\
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
BISECTION = (
    'view = npulab.notebook.widgets.BisectView(good, bad, oracle, journal="run.jsonl")\nview'
)
LOOK = 320  # ms, more than what a trial must be shown before an answer counts
RUN_VIEW = """() => {
  window.jupyterapp.shell.currentWidget.content.activeCellIndex = 1;
  return window.jupyterapp.commands.execute('notebook:run-cell').then(done => !!done); }"""


def trial(page: Page, number: int, passed: bool = False) -> None:
    """Wait until the page shows a trial, or has come so far."""
    page.wait_for_function(
        """([number, passed]) => {
      const shown = parseInt(document.querySelector('.npulab-bisect .where').textContent.slice(6));
      return passed ? shown >= number : shown === number; }""",
        arg=[number, passed],
    )


def answer(page: Page, key: str, then: int) -> None:
    """Press a key when the trial was there long enough to be seen, and wait for the next."""
    page.wait_for_timeout(LOOK)
    page.keyboard.press(key)
    trial(page, then)


def state(page: Page, name: str) -> None:
    page.wait_for_selector(f".npulab-bisect[data-state={name}]")


def seen(page: Page) -> list[str]:
    """What a person sees of a trial: its number, why, the fields, the suspects, the counts."""
    return [
        page.inner_text(f".npulab-bisect {part}")
        for part in (".where", ".reason", ".tried", ".suspects", ".counts")
    ]


def test_bisect_view_in_the_lab(opened: Opened) -> None:
    page = opened.page
    write(opened.lab, BISECT, PAIR, BISECTION)
    opened.turn_to(BISECT)
    run(opened)

    page.click(".npulab-bisect .npulab-heading")
    for key, then in (("p", 2), ("f", 3), ("h", 4), ("u", 3), ("a", 3), ("p", 4)):
        answer(page, key, then)
        if key == "a":
            page.wait_for_selector(".npulab-bisect .reason:has-text('asked again')")
    assert opened.ask("print(view.model.counts)") == "{'pass': 2, 'fail': 1, 'hang': 0}"
    page.wait_for_timeout(LOOK)
    page.click(".npulab-bisect button.hang")
    for then in (5, 4, 3, 2, 1):
        trial(page, then)
        if then > 1:
            page.click(".npulab-bisect button.undo")

    page.click(".npulab-bisect .status")
    for key in (
        "m",
        "y",
        "d",
        "d",
        "x",
        "b",
        "1",
        "ArrowUp",
        "Enter",
    ):  # what would change the notebook
        page.keyboard.press(key)
    cells = page.evaluate(CELLS)
    assert [(cell["cell_type"], "".join(cell["source"])) for cell in cells] == [
        ("code", PAIR),
        ("code", BISECTION),
    ]
    assert not page.evaluate("() => window.jupyterapp.shell.currentWidget.content.mode === 'edit'")

    page.keyboard.press("r")
    state(page, "runs")
    trial(page, 3, passed=True)
    page.keyboard.press("s")
    state(page, "stopped")
    told = int(opened.ask("print(len(view.model.session.journal))"))
    page.wait_for_timeout(400)
    assert (
        int(opened.ask("print(len(view.model.session.journal))")) == told < 12
    )  # it has really stopped
    before = seen(page)

    page.keyboard.press("Control+s")  # is the lab's
    page.wait_for_function("() => !window.jupyterapp.shell.currentWidget.context.model.dirty")
    assert '"execution_count": 2' in (opened.lab.root / BISECT).read_text()
    opened.ask("held = True")
    page.click(".npulab-bisect button.run")
    state(page, "runs")
    opened.reload(BISECT)
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
