"""The views of bytes, differences and outputs drawn in a blank page: keys, search, frames, and
what axe finds.
"""

from __future__ import annotations

import base64
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import test_edited as edited
from anywidget import AnyWidget
from blank_page import BlankPage, colours
from conftest import CAPTURES
from playwright.sync_api import Browser
from test_diff_view import NASTY, A, B
from test_output_view import compared

import npulab
from npulab.captures.target import Item
from npulab.notebook.widgets import ByteView, DiffView, OutputView

# Bytes travel to the page as a DataView; a page that is driven from outside takes texts.
BYTES = """
const kept = new Map();
function revived(model, name) {
  const value = model.get(name);
  if (typeof value?.base64 !== "string") return value;
  if (kept.get(name)?.value !== value) {
    const once = Uint8Array.from(atob(value.base64), one => one.charCodeAt(0)), times = value.times ?? 1;
    const all = new Uint8Array(once.length * times);
    for (let n = 0; n < times; n++) all.set(once, n * once.length);
    kept.set(name, { value, view: new DataView(all.buffer) });
  }
  return kept.get(name).view;
}
export default { render: ({ model, el }) => mount(View).render({ model: { ...model, get: name => revived(model, name) }, el }) };
"""
KEYS = "() => { window.leaked = []; document.addEventListener('keydown', event => window.leaked.push(event.key)); }"
# The cost of what the view does in each frame, and the time from one frame to the next.
FRAMES = """() => { const ask = window.requestAnimationFrame.bind(window); window.costs = [];
  window.plain = ask;
  window.requestAnimationFrame = act => ask(now => { const start = performance.now(); act(now);
                                                     window.costs.push(performance.now() - start); }); }"""
SCROLL = """async steps => { const grid = document.querySelector('.grid'), times = [];
  const frame = () => new Promise(done => window.plain(done));
  await frame(); window.costs.length = 0;
  for (let n = 0, last = performance.now(); n < steps; n++) {
    grid.scrollTop += n % 2 ? 90 : 60000; await frame(); const now = performance.now(); times.push(now - last); last = now; }
  await frame();
  return [times, window.costs, grid.scrollTop]; }"""
# The colours of the first canvas.
PIXELS = """() => { const canvas = document.querySelector('canvas'), at = canvas.getContext('2d');
  return [...new Set(new Uint32Array(at.getImageData(0, 0, canvas.width, canvas.height).data.buffer))]; }"""
CORNER = """() => { const canvas = document.querySelector('canvas'), box = canvas.getBoundingClientRect();
  return [box.left, box.top, box.width / 78]; }"""
COPIED = """() => { const data = new DataTransfer();
  document.activeElement.dispatchEvent(new ClipboardEvent('copy', { clipboardData: data, bubbles: true, cancelable: true }));
  return data.getData('text/plain'); }"""
# JupyterLab changes its rules, then says so on the body.
THEME = """rules => { document.querySelector('style').textContent = rules +
  'body { background: var(--jp-layout-color0); margin: 8px }'; document.body.dataset.jpThemeLight = 'false'; }"""


def text(value: Any) -> Any:
    return {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def drawn(widget: AnyWidget) -> Any:
    """The widget as a page takes it: bytes as texts."""
    state = {name: text(value) for name, value in widget.get_state().items()}
    return SimpleNamespace(
        _esm=str(widget._esm).replace("export default mount(View);", BYTES),
        _css=widget._css,
        get_state=lambda: state,
    )


def sync(page: BlankPage, view: AnyWidget, seen: tuple[int, int] = (0, 0)) -> tuple[int, int]:
    """Give Python what the page sent since, and the page what follows from it."""
    saved, sent = page.saved, page.sent
    names = [name for name in view.keys if not name.startswith("_") and name != "layout"]
    before = {name: getattr(view, name) for name in names}
    for traits in saved[seen[0] :]:
        view.set_state(traits)
    for message in sent[seen[1] :]:
        view._handle_custom_msg(message, [])
    asked = {name for traits in saved[seen[0] :] for name in traits}
    page.push(
        **{
            name: text(getattr(view, name))
            for name in names
            if name in asked or getattr(view, name) != before[name]
        }
    )
    return len(saved), len(sent)


def status(page: BlankPage) -> str:
    return page.page.inner_text("[role=status]")


def settled(page: BlankPage) -> None:
    page.page.evaluate(
        "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
    )


def nasty_bytes() -> ByteView:
    capture = npulab.Capture(
        NASTY,
        NASTY,
        "x",
        (),
        {"coefficients": NASTY.encode() * 20},
        {"coefficients": 0x1000},
        provenance="simulated",
    )
    view = ByteView(
        capture,
        items=[Item(8 * n, 8, NASTY if n % 3 else "fill", n) for n in range(60)],
        reference=b"?" + NASTY.encode() * 19,
    )
    view.query, view.element, view.selection = "<script", "text", (3, 5)
    return view


def nasty_outputs() -> OutputView:
    draw = np.random.default_rng(0)
    predicted = draw.integers(0, 256, (6, 5, 4), dtype=np.uint8)
    captured = np.where(draw.random(predicted.shape) < 0.3, 7, predicted).astype(np.uint8)
    return OutputView(compared(predicted, captured, simulated=True, reason=NASTY, case=NASTY))


def nasty_diff() -> DiffView:
    view = DiffView(replace(A, name=NASTY, provenance="simulated"), B)
    view.selected = 5
    return view


@pytest.mark.sample(1)
@pytest.mark.parametrize("make", [nasty_bytes, nasty_diff, nasty_outputs])
def test_no_findings_in_both_themes_and_names_stay_text(chrome: Browser, make: Any) -> None:
    with BlankPage(chrome, drawn(make())) as page:
        settled(page)
        assert page.accessibility() == []
        assert page.page.inner_text(".npulab-simulated") == "simulated"
        assert NASTY in page.page.inner_text("#root")
        assert page.page.locator("#root script, #root a").count() == 0
        pictures = page.page.locator("canvas").count()
        light = page.page.evaluate(PIXELS) if pictures else None
        page.page.evaluate(THEME, colours("dark"))
        settled(page)
        assert page.accessibility() == []
        if pictures:
            dark = page.page.evaluate(PIXELS)
            assert min(len(light), len(dark)) > 20, "letters and shades are drawn"
            common = len(set(light) & set(dark))
            greys = make is nasty_outputs  # a value has the same grey in both
            assert common > len(light) / 2 if greys else common < len(light) / 2, (
                "the picture follows the theme"
            )
        assert page.errors == []
        page.cleanup()
        assert page.listeners == 0


def test_bytes_by_key(chrome: Browser) -> None:
    view = ByteView(npulab.load(CAPTURES / "vivante/sim-3x3-same"))
    with BlankPage(chrome, drawn(view)) as page:
        page.page.evaluate(KEYS)
        page.press("Tab " * 7)
        assert page.page.evaluate("document.activeElement.getAttribute('role')") == "application"
        page.press(
            "ArrowDown ArrowRight End ArrowRight Home ArrowUp PageDown m d Enter",
        )
        assert page.saved[-1]["ends"] == [0x1C0, 0x1C0]
        assert status(page).startswith("byte 0x1c0 (448) · 01 = 1 · "), "before Python says more"
        seen = sync(page, view)
        assert status(page) == view.about["line"]
        assert f" · {view.about['meanings'][0]}" in status(page)
        assert page.page.locator(".values td").all_inner_texts() == [
            value for _, value in view.model.values(0x1C0)
        ]
        page.press("Shift+ArrowRight Shift+ArrowDown [")
        seen = sync(page, view, seen)
        assert page.saved[-2]["ends"] == [0x1C0, 0x1D1]
        assert view.model.kind_of[view.cursor] != view.model.kind_of[view.cursor - 1]
        page.press("Control+End")
        assert page.saved[-1]["ends"] == [959, 959]
        assert page.page.evaluate(COPIED) == f"{view.model.data[959]:02x}"
        page.press("Control+Home /")
        page.page.keyboard.type("00 80")
        seen = sync(page, view, seen)
        assert page.page.inner_text(".found") == f"{view.found} matches"
        page.press("Enter")
        seen = sync(page, view, seen)
        assert (view.selection, view.ordinal) == ((3, 2), 1)
        assert status(page).endswith("2 bytes selected from 0x3")
        page.press("n n N")
        seen = sync(page, view, seen)
        assert page.page.inner_text(".found") == f"2 of {view.found} matches"
        page.press("g")
        page.page.keyboard.type("0x1000")
        page.press("Enter")
        seen = sync(page, view, seen)
        assert status(page).startswith("go to: got byte 4096, allowed is 0 to 959 · byte 0x")
        page.press("g")
        page.page.keyboard.type("0")
        page.press("Escape k")
        seen = sync(page, view, seen)
        assert view.colour == "status"
        assert "zero" in page.page.inner_text(".legend")
        assert page.page.evaluate("window.leaked") == ["Tab"] * 7 + [
            "Shift",
            "Shift",
            "Control",
            "Control",
        ]
        left, top, letter = page.page.evaluate(CORNER)
        page.page.mouse.move(left + 11 * letter, top + 27)
        assert page.saved[-1] == {"pointed": 0}
        seen = sync(page, view, seen)
        assert "byte 0x0 (0) · address 0x40000000 · 80 = 128" in status(page)
        page.page.mouse.down()
        page.page.mouse.move(left + (10 + 3 * 9 + 2) * letter, top + 27 + 18)
        page.page.mouse.up()
        assert page.saved[-1]["ends"] == [0, 0x19], "drawn over bytes; there is a gap in the middle"
        page.page.mouse.move(left + (10 + 3 * 16 + 3 + 15.5) * letter, top + 27)
        assert page.saved[-1] == {"pointed": 15}, "the letters are bytes too"
        page.page.mouse.move(left, top - 40)
        assert page.saved[-1] == {"pointed": -1}
        page.page.focus(".grid")
        page.press("Control+Home Shift+ArrowRight e")
        assert page.page.input_value(".write") == view.model.data[:2].tobytes().hex(" ")
        page.page.keyboard.type("12 ?3")
        page.press("Enter")
        seen = sync(page, view, seen)
        assert view.model.data[:2].tolist() == [0x12, 0x03]
        assert view.model.counts["changed"] == 2
        page.press("u")
        seen = sync(page, view, seen)
        assert view.model.counts.get("changed", 0) == 0
        page.page.click(".map", position={"x": 20, "y": 500})
        assert page.page.evaluate("document.querySelector('.grid').scrollTop") == 18 * (60 - 28)
        assert page.errors == []


def scrolled(chrome: Browser) -> tuple[list[float], list[float]]:
    """From frame to frame while four mebibytes scroll, and what the view does in each, in
    milliseconds.
    """
    # the page takes a part of it and repeats that: a tester's line is slower than the notebook's
    tile = np.random.default_rng(0).integers(0, 256, 2**16, dtype=np.uint8)
    data = np.tile(tile, 64)
    other = data.copy()
    other[::4096] ^= 1
    view = ByteView(data, reference=other)
    view.query = "00"
    sent = drawn(view)
    assert view.classes == view.classes[: 2**16] * 64
    sent.get_state().update(
        data=text(tile.tobytes()) | {"times": 64},
        classes=text(view.classes[: 2**16]) | {"times": 64},
    )
    sent._esm = f"({FRAMES})();\n{sent._esm}"
    page = BlankPage(chrome, sent)
    with page:
        settled(page)
        times, costs, top = page.page.evaluate(SCROLL, 60)
        assert top > 1_000_000
        assert len(costs) >= 60
        page.press("End")
        assert page.errors == []
    return times, costs


def test_four_mebibytes_scroll(chrome: Browser) -> None:
    scrolled(chrome)


def test_a_window_that_moves_is_drawn(chrome: Browser) -> None:
    view = ByteView(bytes(16), reference=bytes(15) + b"\1")
    with BlankPage(chrome, drawn(view)) as page:
        settled(page)
        view.compare(bytes(16))
        page.push(classes=text(view.classes), statuses=view.statuses, summary=view.summary)
        assert page.page.inner_text(".legend").strip() == "fill 16"
        page.push(
            start=4096, data=text(bytes([65] * 32)), classes=text(bytes(32)), ends=[4100, 4100]
        )
        settled(page)
        assert status(page).startswith("byte 0x1004 (4100) · 41 = 65")
        page.page.evaluate("document.body.dataset.jpThemeLight = 'false'")
        settled(page)
        assert page.errors == []


def test_jobs_that_differ_are_the_first_sentence(chrome: Browser) -> None:
    view = DiffView(edited.GOOD, edited.capture("b", edited.INSERTED))
    with BlankPage(chrome, view) as page:
        assert page.page.locator(".npulab-diff > *").nth(1).inner_text() == view.summary
        assert page.page.locator("tbody tr").count() == 1
        assert (page.accessibility(), page.errors) == ([], [])
    fields = edited.capture("b", [edited.job(0, 1), *edited.JOBS[1:]])
    with BlankPage(chrome, DiffView(edited.GOOD, fields)) as page:
        assert page.page.locator(".npulab-diff > *").nth(1).get_attribute("class") == "tools"


def test_differences_by_key(chrome: Browser) -> None:
    view = DiffView(A, B)
    with BlankPage(chrome, drawn(view)) as page:
        page.page.evaluate(KEYS)
        page.press("Tab " * 5)
        assert status(page) == view.model.rows[1].line
        page.press("ArrowDown ArrowDown End ArrowUp Home PageDown m x Enter")
        seen = sync(page, view)
        assert view.selected == 0, "the addresses are below"
        assert page.page.evaluate("document.activeElement.dataset.index") == "0"
        assert (
            page.page.locator("tbody tr")
            .nth(5)
            .inner_text()
            .startswith("1 address: where buffers lie")
        )
        page.page.locator("[data-index='3']").hover()
        assert status(page) == view.model.rows[3].line, "the pointer tells"
        page.press("a u")
        seen = sync(page, view, seen)
        assert (view.addresses, view.unknown, view.shown) == (False, True, [3, 4])
        assert page.page.locator("tbody tr").count() == 2
        assert page.page.locator("[aria-pressed=true]").inner_text() == "only unknown"
        assert "hidden: addresses 1, with a name 3" in page.page.inner_text(".npulab-summary")
        assert page.page.evaluate("document.activeElement.dataset.index") == "3", (
            "the focus stays in the table"
        )
        page.press("u /")
        page.page.keyboard.type("stri")
        seen = sync(page, view, seen)
        assert (
            page.page.locator("tbody tr")
            .all_inner_texts()[0]
            .startswith("\t".join(view.model._cells([2])[0]))
        )
        assert page.page.locator("tbody .flip").all_inner_texts() == ["0", "1", "1", "0"], (
            "01 over 10"
        )
        page.press("Enter c")
        assert page.page.evaluate("document.activeElement.dataset.index") == "2"
        assert page.page.evaluate("window.leaked") == ["Tab"] * 5
        page.page.wait_for_function(
            "() => /copied 1 rows|to_markdown/.test(document.querySelector('.status').textContent)"
        )
        page.page.click("button.addresses")
        assert page.saved[-1] == {"addresses": True}
        assert page.errors == []


def test_outputs_by_key(chrome: Browser) -> None:
    view = nasty_outputs()
    with BlankPage(chrome, drawn(view)) as page:
        page.page.evaluate(KEYS)
        page.press("Tab Tab")
        first = list(view.place)
        page.press("End PageDown ArrowUp ArrowLeft ] ] ] ] [ m Enter")
        assert page.saved[-1] == {"place": [4, 3, 2]}
        seen = sync(page, view)
        assert (
            status(page)
            == view.about
            == view.model.describe(4, 3, 2)
            != view.model.describe(*first)
        )
        assert page.page.inner_text("[aria-current]").split("\t")[0] == "2"
        page.press("d")
        seen = sync(page, view, seen)
        assert view.model.difference[view.place] != 0
        assert "difference" in status(page)
        page.press("D D")
        sync(page, view, seen)
        assert page.sent == [{"seek": 1}, {"seek": -1}, {"seek": -1}]
        page.page.click("[data-channel='1']")
        assert page.saved[-1]["place"][2] == 1
        settled(page)
        page.page.locator("canvas").nth(2).click(position={"x": 70, "y": 110})
        assert page.saved[-1]["place"][:2] == [2, 1]
        assert {"pointed": [2, 1, 1]} in page.saved, "the pointer was there"
        page.page.mouse.move(2, 2)
        assert page.saved[-1] == {"pointed": []}
        assert page.page.evaluate("window.leaked") == ["Tab", "Tab"]
        assert page.errors == []


def test_outputs_with_one_in_each_channel(chrome: Browser) -> None:
    predicted = np.arange(70, dtype=np.uint8).reshape(1, 1, 70)
    view = OutputView(compared(predicted, predicted ^ (predicted == 40).astype(np.uint8)))
    with BlankPage(chrome, drawn(view)) as page:
        settled(page)
        page.press("Tab Tab ArrowRight ArrowUp ]")
        assert [traits["place"][2] for traits in page.saved] == [41, 9, 10]
        page.press("PageDown")
        assert page.saved[-1]["place"] == [0, 0, 69], "the last row is not full"
        page.page.locator("canvas").nth(2).click(position={"x": 3, "y": 12})
        assert page.saved[-1]["place"] == [0, 0, 32]
        assert page.errors == []
